//! Buckets: created, found, listed, deleted.

use std::sync::Arc;

use s3s::dto::{
    Bucket as ListedBucket, BucketLocationConstraint, CreateBucketInput, CreateBucketOutput,
    DeleteBucketInput, DeleteBucketOutput, GetBucketLocationInput, GetBucketLocationOutput, HeadBucketInput,
    HeadBucketOutput, ListBucketsInput, ListBucketsOutput, Owner,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};
use synod_core::objects::{Condition, Space};
use synod_store::objects::content::{Content, META_BYTES_MAX};
use synod_store::objects::contract::{
    LIST_MAX, ListItem, ListPosition, ListQuery, ObjectStore, WriteOutcome,
};

use super::{Bucket, Service, bucket_name, bucket_of, caller_of, no_such_bucket};
use crate::errors::{not_here, record_error, store_error};
use crate::now_ms;
use crate::records::{BucketBrief, BucketRecord, Record as _};
use crate::text::timestamp;

impl<S: ObjectStore> Service<S> {
    pub(super) async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let caller = caller_of(&request)?;
        let input = request.input;
        let acl = input.acl.as_ref().map(s3s::dto::BucketCannedACL::as_str);
        let is_granted = input.grant_full_control.is_some()
            || input.grant_read.is_some()
            || input.grant_read_acp.is_some()
            || input.grant_write.is_some()
            || input.grant_write_acp.is_some();
        if !matches!(acl, None | Some("private")) || is_granted {
            return Err(not_here("An ACL other than private"));
        }
        if input.object_lock_enabled_for_bucket == Some(true) {
            return Err(not_here("Locking of objects"));
        }
        let ownership = input.object_ownership.as_ref().map(s3s::dto::ObjectOwnership::as_str);
        if !matches!(ownership, None | Some("BucketOwnerEnforced")) {
            return Err(not_here("Ownership of objects by others than the owner of their bucket"));
        }
        if let Some(configuration) = input.create_bucket_configuration {
            let region = configuration.location_constraint.as_ref().map(BucketLocationConstraint::as_str);
            if region.is_some_and(|region| !region.is_empty() && region != self.0.region) {
                return Err(s3_error!(
                    IllegalLocationConstraintException,
                    "Buckets are created in {} here.",
                    self.0.region
                ));
            }
            if configuration.bucket.is_some() || configuration.location.is_some() {
                return Err(not_here("A directory bucket"));
            }
        }
        let name = bucket_name(&input.bucket)?;
        let record =
            BucketRecord { owner: caller.id.to_string(), created_ms: now_ms(), ..BucketRecord::default() };
        let outcome =
            self.store().write(&name, Condition::Absent, Arc::from(""), bucket_content(&record)?).await;
        self.0.buckets.forget(&input.bucket);
        if let WriteOutcome::Refused(current) = outcome.map_err(store_error)? {
            let owner = match current {
                Some(current) => BucketRecord::from_bytes(current.content.meta).map_err(record_error)?.owner,
                None => String::new(),
            };
            if owner != *caller.id {
                return Err(s3_error!(
                    BucketAlreadyExists,
                    "The requested bucket name is not available. Please select a different name and try again."
                ));
            }
        }
        let location = Some(format!("/{}", input.bucket));
        Ok(S3Response::new(CreateBucketOutput { location }))
    }

    pub(super) async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        let bucket = &request.input.bucket;
        let name = bucket_name(bucket)?;
        // What was read a moment ago is not enough to delete it.
        let current = self.store().read(&name).await.map_err(store_error)?.ok_or_else(no_such_bucket)?;
        for space in [Space::Object, Space::Upload] {
            let query = ListQuery {
                space,
                bucket: bucket.clone(),
                prefix: String::new(),
                delimiter: String::new(),
                after: None,
                limit: 1,
                beside: None,
            };
            if !self.store().list(query).await.map_err(store_error)?.items.is_empty() {
                return Err(s3_error!(BucketNotEmpty, "The bucket you tried to delete is not empty"));
            }
        }
        let outcome = self.store().delete(&name, Condition::TagIs(current.tag)).await;
        self.0.buckets.forget(bucket);
        match outcome.map_err(store_error)? {
            WriteOutcome::Done(_) => Ok(S3Response::new(DeleteBucketOutput::default())),
            WriteOutcome::Refused(None) => Err(no_such_bucket()),
            WriteOutcome::Refused(Some(_)) => {
                Err(s3_error!(OperationAborted, "The bucket was changed meanwhile. Try again."))
            }
        }
    }

    pub(super) fn head_bucket(
        &self,
        request: &S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        bucket_of(request)?;
        let bucket_region = Some(self.0.region.clone());
        Ok(S3Response::new(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() }))
    }

    pub(super) fn get_bucket_location(
        &self,
        request: &S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        bucket_of(request)?;
        // The first region of all is told by saying nothing.
        let region = Some(self.0.region.clone()).filter(|region| region != "us-east-1");
        let location_constraint = region.map(BucketLocationConstraint::from);
        Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
    }

    pub(super) async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let caller = caller_of(&request)?;
        let input = request.input;
        let limit = match input.max_buckets {
            None => BUCKETS_MAX,
            Some(count) => usize::try_from(count)
                .ok()
                .filter(|count| (1..=BUCKETS_MAX).contains(count))
                .ok_or_else(|| s3_error!(InvalidArgument, "max-buckets is 1 to {BUCKETS_MAX}."))?,
        };
        let prefix = input.prefix.clone().unwrap_or_default();
        let mut after = input.continuation_token.map(ListPosition::Key);
        let mut buckets: Vec<ListedBucket> = Vec::new();
        let mut token = None;
        'pages: loop {
            let query = ListQuery {
                space: Space::Bucket,
                bucket: String::new(),
                prefix: prefix.clone(),
                delimiter: String::new(),
                after,
                limit: LIST_MAX,
                beside: None,
            };
            let page = self.store().list(query).await.map_err(store_error)?;
            after = None;
            for item in page.items {
                let ListItem::Entry(listed) = item else { continue };
                let brief = BucketBrief::from_bytes(listed.brief).map_err(record_error)?;
                after = Some(ListPosition::Key(listed.key.clone()));
                if !caller.may_see(&listed.key, &brief.owner) {
                    continue;
                }
                if buckets.len() == limit {
                    token = buckets.last().and_then(|last| last.name.clone());
                    break 'pages;
                }
                buckets.push(ListedBucket {
                    name: Some(listed.key),
                    creation_date: Some(timestamp(brief.created_ms)),
                    bucket_region: Some(self.0.region.clone()),
                });
            }
            if !page.is_truncated || after.is_none() {
                break;
            }
        }
        Ok(S3Response::new(ListBucketsOutput {
            buckets: Some(buckets),
            owner: Some(owner(&caller.id)),
            prefix: input.prefix,
            continuation_token: token,
        }))
    }

    /// Changes what is known of a bucket.
    pub(super) async fn change_bucket(
        &self,
        name: &str,
        change: impl Fn(&mut BucketRecord) + Send + Sync,
    ) -> S3Result<()> {
        let entry_name = bucket_name(name)?;
        for _ in 0..CHANGE_ATTEMPTS_MAX {
            let current = self.store().read(&entry_name).await.map_err(store_error)?;
            let current = current.ok_or_else(no_such_bucket)?;
            let mut record = BucketRecord::from_bytes(current.content.meta).map_err(record_error)?;
            change(&mut record);
            let content = bucket_content(&record)?;
            let condition = Condition::TagIs(current.tag);
            let outcome = self.store().write(&entry_name, condition, Arc::from(""), content).await;
            self.0.buckets.forget(name);
            if let WriteOutcome::Done(_) = outcome.map_err(store_error)? {
                return Ok(());
            }
        }
        Err(s3_error!(OperationAborted, "Others change the bucket all the time. Try again."))
    }
}

/// The owner of something, as documents show it.
pub(super) fn owner(id: &str) -> Owner {
    Owner { id: Some(id.to_owned()), display_name: Some(id.to_owned()) }
}

impl Bucket {
    pub(super) fn owner(&self) -> Owner {
        owner(&self.record.owner)
    }
}

fn bucket_content(record: &BucketRecord) -> S3Result<Content> {
    let brief = BucketBrief {
        owner: record.owner.clone(),
        created_ms: record.created_ms,
        has_lifecycle: !record.lifecycle.is_empty(),
    };
    let meta = record.to_bytes();
    if meta.len() > META_BYTES_MAX {
        return Err(s3_error!(InvalidRequest, "The configuration of the bucket is too large."));
    }
    Ok(Content { modified_ms: now_ms(), brief: brief.to_bytes(), meta, ..Content::default() })
}

/// Most buckets in one answer.
const BUCKETS_MAX: usize = 10_000;
/// How often a change is begun anew when another one came in between.
const CHANGE_ATTEMPTS_MAX: usize = 16;
