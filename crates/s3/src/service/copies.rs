//! Copies of objects, within the store.

use std::sync::Arc;

use http::HeaderMap;
use s3s::dto::{
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, ETagCondition, MetadataDirective,
    TaggingDirective,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};
use synod_core::objects::{Condition, EntryName};
use synod_store::objects::contract::{ObjectStore, WriteOutcome};

use super::conditions::{ReadConditions, precondition_failed, seems_unmet, unmet_write, write_condition};
use super::metadata::{meta_of, refuse_unsupported, tags_of_header};
use super::objects::{StoredObject, object_content};
use super::uploads::too_large_to_copy;
use super::{OBJECT_BYTES_MAX, Service, bucket_of, check_version, no_such_key, object_name};
use crate::digests::{Algorithm, show_sum};
use crate::errors::{not_here, record_error, store_error};
use crate::records::{ObjectMeta, Record as _, SumRecord};
use crate::text::{etag, hex, timestamp};

/// What a copy changes of its source.
struct Changes {
    meta: Option<ObjectMeta>,
    tags: Option<Vec<crate::records::Pair>>,
    algorithm: Option<Algorithm>,
}

impl Changes {
    /// What is known of the copy.
    fn of(&self, source: &ObjectMeta) -> ObjectMeta {
        let mut meta = self.meta.clone().unwrap_or_else(|| source.clone());
        meta.tags = self.tags.clone().unwrap_or_else(|| source.tags.clone());
        meta
    }
}

impl<S: ObjectStore> Service<S> {
    pub(super) async fn copy_object(
        &self,
        mut request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        bucket_of(&request)?;
        refuse_unsupported!(request.input)?;
        let condition = condition_of_headers(&request.headers)?;
        let input = &mut request.input;
        if input.copy_source_sse_customer_algorithm.is_some() || input.copy_source_sse_customer_key.is_some()
        {
            return Err(not_here("Encryption by the server"));
        }
        let name = object_name(&input.bucket, &input.key)?;
        let changes = Changes {
            meta: match input.metadata_directive.as_ref().map(MetadataDirective::as_str) {
                None | Some(MetadataDirective::COPY) => None,
                Some(MetadataDirective::REPLACE) => Some(meta_of!(*input)),
                Some(_) => return Err(s3_error!(InvalidArgument, "Unknown metadata directive.")),
            },
            tags: match input.tagging_directive.as_ref().map(TaggingDirective::as_str) {
                None | Some(TaggingDirective::COPY) => None,
                Some(TaggingDirective::REPLACE) => Some(tags_of_header(input.tagging.as_deref())?),
                Some(_) => return Err(s3_error!(InvalidArgument, "Unknown tagging directive.")),
            },
            algorithm: match &input.checksum_algorithm {
                None => None,
                Some(name) => Some(Algorithm::from_name(name.as_str()).ok_or_else(|| {
                    s3_error!(InvalidRequest, "Checksum algorithm provided is unsupported.")
                })?),
            },
        };
        let conditions = ReadConditions {
            if_match: input.copy_source_if_match.as_ref(),
            if_none_match: input.copy_source_if_none_match.as_ref(),
            if_modified_since: input.copy_source_if_modified_since.as_ref(),
            if_unmodified_since: input.copy_source_if_unmodified_since.as_ref(),
        };
        let (source_name, source) = self.copy_source(&input.copy_source, &conditions).await?;
        if source.entry.content.size > OBJECT_BYTES_MAX {
            return Err(too_large_to_copy());
        }
        let (e_tag, sum, modified_ms) = match source_name == name {
            true => self.copy_to_itself(&name, condition, &changes, source).await?,
            false => self.copy_elsewhere(&source_name, &source, &name, condition, &changes).await?,
        };
        let mut result = CopyObjectResult {
            e_tag: Some(etag(&e_tag)),
            last_modified: Some(timestamp(modified_ms)),
            checksum_type: sum.as_ref().map(SumRecord::checksum_type),
            ..CopyObjectResult::default()
        };
        show_sum!(result, &sum);
        let copy_object_result = Some(result);
        Ok(S3Response::new(CopyObjectOutput { copy_object_result, ..CopyObjectOutput::default() }))
    }

    /// The object that is to be copied.
    pub(super) async fn copy_source(
        &self,
        source: &CopySource,
        conditions: &ReadConditions<'_>,
    ) -> S3Result<(EntryName, StoredObject)> {
        let CopySource::Bucket { bucket, key, version_id } = source else {
            return Err(not_here("Copying from an access point"));
        };
        check_version(version_id.as_deref())?;
        let name = object_name(bucket, key)?;
        let entry = self.store().read(&name).await.map_err(store_error)?.ok_or_else(no_such_key)?;
        conditions.check(&entry).map_err(|_| precondition_failed())?;
        let meta = ObjectMeta::from_bytes(entry.content.meta.clone()).map_err(record_error)?;
        Ok((name, StoredObject { entry, meta }))
    }

    async fn copy_elsewhere(
        &self,
        source_name: &EntryName,
        source: &StoredObject,
        name: &EntryName,
        condition: Condition,
        changes: &Changes,
    ) -> S3Result<(Arc<str>, Option<SumRecord>, u64)> {
        let algorithm = changes.algorithm.or_else(|| source.meta.sum.as_ref().and_then(SumRecord::algorithm));
        if condition != Condition::Any {
            self.check_early(name, &condition).await?;
        }
        let content = &source.entry.content;
        let received = self.copy_body(source_name, content, 0..content.size, name, algorithm).await?;
        let mut meta = changes.of(&source.meta);
        meta.sum = received.sums.sum;
        (meta.part_sizes, meta.part_runs, meta.part_sums) = <_>::default();
        meta.upload_id = String::new();
        let object = object_content(meta, received.body)?;
        let (sum, modified_ms) = (object.sum.clone(), object.content.modified_ms);
        let e_tag = Arc::from(hex(&received.sums.md5));
        self.write_object(name, condition, &e_tag, object).await?;
        Ok((e_tag, sum, modified_ms))
    }

    /// Changes what is known of an object, and leaves its bytes where they are.
    async fn copy_to_itself(
        &self,
        name: &EntryName,
        condition: Condition,
        changes: &Changes,
        mut source: StoredObject,
    ) -> S3Result<(Arc<str>, Option<SumRecord>, u64)> {
        if changes.meta.is_none() && changes.tags.is_none() && changes.algorithm.is_none() {
            return Err(s3_error!(
                InvalidRequest,
                "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, storage class, website redirect location or encryption attributes."
            ));
        }
        let has = source.meta.sum.as_ref().and_then(SumRecord::algorithm);
        if changes.algorithm.is_some() && changes.algorithm != has {
            return self.copy_elsewhere(&name.clone(), &source, name, condition, changes).await;
        }
        for _ in 0..CHANGE_ATTEMPTS_MAX {
            if seems_unmet(&condition, Some(&source.entry)) {
                return Err(unmet_write(&condition, Some(&source.entry)));
            }
            let mut meta = changes.of(&source.meta);
            let before = source.meta;
            (meta.sum, meta.upload_id) = (before.sum, before.upload_id);
            (meta.part_sizes, meta.part_runs, meta.part_sums) =
                (before.part_sizes, before.part_runs, before.part_sums);
            let object = object_content(meta, source.entry.content.body)?;
            let (sum, modified_ms) = (object.sum.clone(), object.content.modified_ms);
            // The bytes are those of exactly this write; of another one they might be gone.
            let same = Condition::TagIs(source.entry.tag);
            let e_tag = source.entry.etag;
            let outcome = self.store().write(name, same, Arc::clone(&e_tag), object.content).await;
            match outcome.map_err(store_error)? {
                WriteOutcome::Done(_) => return Ok((e_tag, sum, modified_ms)),
                WriteOutcome::Refused(None) => return Err(no_such_key()),
                WriteOutcome::Refused(Some(entry)) => {
                    let meta = ObjectMeta::from_bytes(entry.content.meta.clone()).map_err(record_error)?;
                    source = StoredObject { entry, meta };
                }
            }
        }
        Err(s3_error!(OperationAborted, "Others change the object all the time. Try again."))
    }
}

/// The condition of a write, where the protocol library does not read it.
fn condition_of_headers(headers: &HeaderMap) -> S3Result<Condition> {
    let read = |name| {
        let Some(value) = headers.get(name) else { return Ok(None) };
        ETagCondition::parse_http_header(http::HeaderValue::as_bytes(value))
            .map(Some)
            .map_err(|_| s3_error!(InvalidArgument, "A condition is malformed."))
    };
    let if_match = read(http::header::IF_MATCH)?;
    let if_none_match = read(http::header::IF_NONE_MATCH)?;
    write_condition(if_match.as_ref(), if_none_match.as_ref())
}

/// How often a change is begun anew when another one came in between.
const CHANGE_ATTEMPTS_MAX: usize = 16;
