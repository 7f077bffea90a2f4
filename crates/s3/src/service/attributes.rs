//! What is known of an object beside its bytes: its tags, its parts, and whose it is.

use std::sync::Arc;

use s3s::dto::{
    Checksum, DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectAclInput, GetObjectAclOutput,
    GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts, GetObjectTaggingInput,
    GetObjectTaggingOutput, Grant, Grantee, ObjectAttributes, ObjectPart, Owner, Permission,
    PutObjectAclInput, PutObjectAclOutput, PutObjectTaggingInput, PutObjectTaggingOutput, StorageClass, Type,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};
use synod_core::objects::{Condition, EntryName};
use synod_store::objects::contract::{ObjectStore, WriteOutcome};

use super::conditions::ReadConditions;
use super::metadata::{shown_tags, tags_of_document};
use super::{Service, bucket_of, check_version, no_such_key, object_name};
use crate::digests::show_sum;
use crate::errors::{not_here, record_error, store_error};
use crate::records::{ObjectMeta, Pair, Record as _};
use crate::text::{etag, timestamp};

impl<S: ObjectStore> Service<S> {
    pub(super) async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let name = object_name(&input.bucket, &input.key)?;
        let object = self.read_object(&name, &ReadConditions::default()).await?;
        let known = [
            ObjectAttributes::ETAG,
            ObjectAttributes::CHECKSUM,
            ObjectAttributes::OBJECT_PARTS,
            ObjectAttributes::STORAGE_CLASS,
            ObjectAttributes::OBJECT_SIZE,
        ];
        // Several may come in one header.
        let asked: Vec<&str> = input
            .object_attributes
            .iter()
            .flat_map(|attribute| attribute.as_str().split(','))
            .map(str::trim)
            .collect();
        if asked.iter().any(|attribute| !known.contains(attribute)) {
            return Err(s3_error!(InvalidArgument, "Invalid attribute name specified."));
        }
        let wants = |attribute: &str| asked.contains(&attribute);
        let meta = &object.meta;
        let checksum = meta.sum.as_ref().filter(|_| wants(ObjectAttributes::CHECKSUM)).map(|sum| {
            let mut shown = Checksum { checksum_type: Some(sum.checksum_type()), ..Checksum::default() };
            show_sum!(shown, Some(sum));
            shown
        });
        let parts = match wants(ObjectAttributes::OBJECT_PARTS) && !meta.part_sizes.is_empty() {
            true => Some(shown_parts(meta, input.part_number_marker, input.max_parts)?),
            false => None,
        };
        Ok(S3Response::new(GetObjectAttributesOutput {
            checksum,
            e_tag: wants(ObjectAttributes::ETAG).then(|| etag(&object.entry.etag)),
            last_modified: Some(timestamp(object.entry.content.modified_ms)),
            object_parts: parts,
            object_size: i64::try_from(object.entry.content.size)
                .ok()
                .filter(|_| wants(ObjectAttributes::OBJECT_SIZE)),
            storage_class: wants(ObjectAttributes::STORAGE_CLASS)
                .then(|| StorageClass::from_static(StorageClass::STANDARD)),
            ..GetObjectAttributesOutput::default()
        }))
    }

    pub(super) async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let name = object_name(&input.bucket, &input.key)?;
        let object = self.read_object(&name, &ReadConditions::default()).await?;
        let tag_set = shown_tags(&object.meta.tags);
        Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id: None }))
    }

    pub(super) async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let name = object_name(&input.bucket, &input.key)?;
        self.set_tags(&name, &tags_of_document(input.tagging.tag_set)?).await?;
        Ok(S3Response::new(PutObjectTaggingOutput::default()))
    }

    pub(super) async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let name = object_name(&input.bucket, &input.key)?;
        self.set_tags(&name, &[]).await?;
        Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
    }

    pub(super) async fn get_object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        let bucket = bucket_of(&request)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let name = object_name(&input.bucket, &input.key)?;
        self.read_object(&name, &ReadConditions::default()).await?;
        let owner = bucket.owner();
        Ok(S3Response::new(GetObjectAclOutput {
            grants: Some(vec![full_control(&owner)]),
            owner: Some(owner),
            request_charged: None,
        }))
    }

    /// Sets what is so in any case; anything else is refused.
    pub(super) async fn put_object_acl(
        &self,
        request: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let name = object_name(&input.bucket, &input.key)?;
        self.read_object(&name, &ReadConditions::default()).await?;
        let acl = input.acl.as_ref().map(s3s::dto::ObjectCannedACL::as_str);
        match acl {
            Some("private" | "bucket-owner-full-control") => {
                Ok(S3Response::new(PutObjectAclOutput::default()))
            }
            _ => Err(not_here("An ACL other than private")),
        }
    }

    /// Replaces the tags of an object. Neither its `ETag` nor its time change.
    async fn set_tags(&self, name: &EntryName, tags: &[Pair]) -> S3Result<()> {
        for _ in 0..CHANGE_ATTEMPTS_MAX {
            let entry = self.store().read(name).await.map_err(store_error)?.ok_or_else(no_such_key)?;
            let mut meta = ObjectMeta::from_bytes(entry.content.meta.clone()).map_err(record_error)?;
            meta.tags = tags.to_vec();
            let mut content = entry.content;
            content.meta = meta.to_bytes();
            if content.meta.len() > synod_store::objects::content::META_BYTES_MAX {
                return Err(s3_error!(InvalidTag, "There is no room for these tags."));
            }
            let same = Condition::TagIs(entry.tag);
            let outcome = self.store().write(name, same, Arc::clone(&entry.etag), content).await;
            if let WriteOutcome::Done(_) = outcome.map_err(store_error)? {
                return Ok(());
            }
        }
        Err(s3_error!(OperationAborted, "Others change the object all the time. Try again."))
    }
}

/// Who owns something may do everything with it, and nobody else may do anything: who else may is said of access keys.
pub(super) fn full_control(owner: &Owner) -> Grant {
    Grant {
        grantee: Some(Grantee {
            display_name: owner.display_name.clone(),
            email_address: None,
            id: owner.id.clone(),
            type_: Type::from_static(Type::CANONICAL_USER),
            uri: None,
        }),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }
}

fn shown_parts(
    meta: &ObjectMeta,
    marker: Option<i32>,
    limit: Option<i32>,
) -> S3Result<GetObjectAttributesParts> {
    let all = meta.parts();
    let start = usize::try_from(marker.unwrap_or(0)).unwrap_or(0).min(all.len());
    let end = (start + super::listing::limit_of(limit)?).min(all.len());
    let number = |place: usize| i32::try_from(place).ok();
    // Parts are told one by one only where each has a sum of its own.
    let has_sums = meta.sum.as_ref().is_some_and(|sum| sum.composite_of > 0);
    let parts = (start..end).map(|place| {
        let part = &all[place];
        let mut shown = ObjectPart {
            part_number: number(place + 1),
            size: i64::try_from(part.size).ok(),
            ..ObjectPart::default()
        };
        show_sum!(shown, part.sum.as_ref());
        shown
    });
    Ok(GetObjectAttributesParts {
        is_truncated: Some(end < all.len()),
        max_parts: Some(super::listing::shown_limit(limit)),
        next_part_number_marker: number(end),
        part_number_marker: number(start),
        parts: has_sums.then(|| parts.collect()),
        total_parts_count: number(all.len()),
    })
}

/// How often a change is begun anew when another one came in between.
const CHANGE_ATTEMPTS_MAX: usize = 16;
