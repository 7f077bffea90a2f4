//! Requests about many things at once: deleting many objects, listing uploads.

use std::sync::Arc;

use s3s::dto::{
    ChecksumAlgorithm, CommonPrefix, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, Error,
    ListMultipartUploadsInput, ListMultipartUploadsOutput, MultipartUpload, ObjectIdentifier, StorageClass,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};
use synod_core::objects::{Condition, Space};
use synod_store::objects::contract::{LIST_MAX, ListItem, ListPosition, ListQuery, ObjectStore};

use super::listing::{asks_encoding, limit_of, shown_limit, shown_text};
use super::uploads::initiator;
use super::{Service, bucket_of, check_version, object_name};
use crate::digests::Algorithm;
use crate::errors::{not_here, record_error, store_error};
use crate::records::{Record as _, UploadBrief};
use crate::text::timestamp;

impl<S: ObjectStore> Service<S> {
    pub(super) async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        if input.mfa.is_some() || input.bypass_governance_retention.is_some() {
            return Err(not_here("Locking of objects"));
        }
        let asked = input.delete.objects;
        if asked.is_empty() || asked.len() > DELETED_MAX {
            return Err(s3_error!(
                MalformedXML,
                "The XML you provided was not well-formed or did not validate against our published schema"
            ));
        }
        let bucket: Arc<str> = Arc::from(input.bucket);
        let outcomes = super::each(asked, |object| {
            let (service, bucket) = (self.clone(), Arc::clone(&bucket));
            async move { (object.key.clone(), service.delete_one(&bucket, object).await) }
        });
        let is_quiet = input.delete.quiet.unwrap_or(false);
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (key, outcome) in outcomes.await {
            match outcome {
                Ok(()) if is_quiet => {}
                Ok(()) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(error) => errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    message: error.message().map(str::to_owned),
                    key: Some(key),
                    version_id: None,
                }),
            }
        }
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: Some(errors),
            request_charged: None,
        }))
    }

    async fn delete_one(&self, bucket: &str, object: ObjectIdentifier) -> S3Result<()> {
        check_version(object.version_id.as_deref())?;
        if object.last_modified_time.is_some() || object.size.is_some() {
            return Err(not_here("Deleting by time or by size"));
        }
        let name = object_name(bucket, &object.key)?;
        let condition = match &object.e_tag {
            None => Condition::Any,
            Some(etag) if etag.value() == "*" => Condition::Present,
            Some(etag) => Condition::EtagIn(Arc::from([Arc::from(etag.value())])),
        };
        self.delete_entry(&name, condition).await
    }

    pub(super) async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let bucket = bucket_of(&request)?;
        let input = request.input;
        let is_encoded = asks_encoding(input.encoding_type.as_ref())?;
        let limit = limit_of(input.max_uploads)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let key_marker = input.key_marker.clone().unwrap_or_default();
        let id_marker = input.upload_id_marker.clone().unwrap_or_default();
        // The common part of a key, if the delimiter is in it behind the prefix. An id behind the key is none of it.
        let shared = |key: &str| -> Option<String> {
            let rest = key.strip_prefix(&prefix).filter(|_| !delimiter.is_empty())?;
            rest.find(&delimiter).map(|at| key[..prefix.len() + at + delimiter.len()].to_owned())
        };
        let mut after = match (key_marker.as_str(), id_marker.as_str()) {
            ("", _) => None,
            (key, _) if shared(key).as_deref() == Some(key) => Some(ListPosition::Prefix(key.to_owned())),
            (key, "") => Some(ListPosition::Prefix(format!("{key}\0"))),
            (key, id) => Some(ListPosition::Key(format!("{key}\0{id}"))),
        };
        let (mut uploads, mut prefixes): (Vec<MultipartUpload>, Vec<CommonPrefix>) = (Vec::new(), Vec::new());
        let mut next = (None, None);
        let mut is_truncated = false;
        'pages: loop {
            if limit == 0 {
                break;
            }
            let query = ListQuery {
                space: Space::Upload,
                bucket: input.bucket.clone(),
                prefix: prefix.clone(),
                delimiter: String::new(),
                after,
                limit: LIST_MAX,
                beside: None,
            };
            let page = self.store().list(query).await.map_err(store_error)?;
            let mut last_shared = None;
            after = None;
            for item in page.items {
                let ListItem::Entry(listed) = item else { continue };
                let Some((key, id)) = listed.key.split_once('\0') else { continue };
                let group = shared(key);
                if group.is_some() && group == last_shared {
                    continue;
                }
                if uploads.len() + prefixes.len() == limit {
                    is_truncated = true;
                    break 'pages;
                }
                if let Some(group) = group {
                    next = (Some(group.clone()), None);
                    after = Some(ListPosition::Prefix(group.clone()));
                    prefixes.push(CommonPrefix { prefix: Some(shown_text(&group, is_encoded)) });
                    last_shared = Some(group);
                    continue;
                }
                let brief = UploadBrief::from_bytes(listed.brief).map_err(record_error)?;
                next = (Some(key.to_owned()), Some(id.to_owned()));
                after = Some(ListPosition::Key(listed.key.clone()));
                let algorithm = Algorithm::from_number(brief.algorithm);
                uploads.push(MultipartUpload {
                    key: Some(shown_text(key, is_encoded)),
                    upload_id: Some(id.to_owned()),
                    initiated: Some(timestamp(listed.modified_ms)),
                    initiator: Some(initiator(&brief.initiator)),
                    owner: Some(bucket.owner()),
                    storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
                    checksum_algorithm: algorithm
                        .map(|algorithm| ChecksumAlgorithm::from_static(algorithm.name())),
                    ..MultipartUpload::default()
                });
            }
            if !page.is_truncated || after.is_none() {
                break;
            }
        }
        let (next_key, next_id) = if is_truncated { next } else { (None, None) };
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: Some(shown_text(&prefix, is_encoded)),
            delimiter: input.delimiter.map(|text| shown_text(&text, is_encoded)),
            key_marker: Some(shown_text(&key_marker, is_encoded)),
            upload_id_marker: Some(id_marker),
            next_key_marker: next_key.map(|key| shown_text(&key, is_encoded)),
            next_upload_id_marker: next_id,
            max_uploads: Some(shown_limit(input.max_uploads)),
            is_truncated: Some(is_truncated),
            uploads: Some(uploads),
            common_prefixes: Some(prefixes),
            encoding_type: input.encoding_type,
            ..ListMultipartUploadsOutput::default()
        }))
    }
}

/// Most objects that one request deletes.
const DELETED_MAX: usize = 1000;
