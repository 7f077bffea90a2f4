//! Objects: written whole, read whole or in part, deleted.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderValue};
use s3s::dto::{
    ChecksumMode, DeleteObjectInput, DeleteObjectOutput, GetObjectInput, GetObjectOutput, HeadObjectInput,
    HeadObjectOutput, PutObjectInput, PutObjectOutput, Range as AskedRange,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};
use synod_core::objects::{Condition, EntryName};
use synod_store::objects::content::{Content, Entry, INLINE_BYTES_MAX};
use synod_store::objects::contract::{ObjectStore, WriteOutcome};

use super::body::Sent;
use super::conditions::{ReadConditions, asked_range, seems_unmet, unmet_read, unmet_write, write_condition};
use super::metadata::{meta_of, refuse_unsupported, shown_metadata, tags_of_header};
use super::{Service, bucket_of, check_version, no_such_key, object_name};
use crate::digests::{Promised, given_sums, show_sum};
use crate::errors::{not_here, record_error, store_error};
use crate::now_ms;
use crate::records::{ObjectBrief, ObjectMeta, Record as _, SumRecord};
use crate::text::{etag, hex, timestamp};

impl<S: ObjectStore> Service<S> {
    pub(super) async fn put_object(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        bucket_of(&request)?;
        refuse_unsupported!(request.input)?;
        if request.input.write_offset_bytes.is_some() {
            return Err(not_here("Appending to an object"));
        }
        let input = &mut request.input;
        let name = object_name(&input.bucket, &input.key)?;
        let condition = write_condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let mut meta = meta_of!(*input);
        meta.tags = tags_of_header(input.tagging.as_deref())?;
        let stream = input.body.take();
        let input = &request.input;
        let promised = Promised::of(&request.headers, given_sums!(input))?;
        let sent = Sent::of(&request, stream, input.content_length, promised)?;
        if sent.length > INLINE_BYTES_MAX as u64 && condition != Condition::Any {
            // Whoever would be refused in the end need not send so much.
            self.check_early(&name, &condition).await?;
        }
        let received = self.receive(&name, sent, None).await?;
        meta.sum = received.sums.sum;
        let content = object_content(meta, received.body)?;
        let sum = content.sum.clone();
        let e_tag: Arc<str> = Arc::from(hex(&received.sums.md5));
        self.write_object(&name, condition, &e_tag, content).await?;
        let mut output = PutObjectOutput { e_tag: Some(etag(&e_tag)), ..PutObjectOutput::default() };
        output.checksum_type = sum.as_ref().map(SumRecord::checksum_type);
        show_sum!(output, &sum);
        Ok(S3Response::new(output))
    }

    pub(super) async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        if input.sse_customer_algorithm.is_some() || input.sse_customer_key.is_some() {
            return Err(not_here("Encryption by the server"));
        }
        check_version(input.version_id.as_deref())?;
        let name = object_name(&input.bucket, &input.key)?;
        let conditions = ReadConditions {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        let object = self.read_object(&name, &conditions).await?;
        let view = object.view(input.range, input.part_number, input.checksum_mode.as_ref())?;
        let body = self.send(&name, &object.entry.content, view.range.clone()).await?;
        let mut output =
            GetObjectOutput { body: Some(body), tag_count: object.tag_count(), ..GetObjectOutput::default() };
        show_object!(output, object, view);
        // A range in the answer makes it a partial one.
        Ok(S3Response::new(output))
    }

    pub(super) async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        if input.sse_customer_algorithm.is_some() || input.sse_customer_key.is_some() {
            return Err(not_here("Encryption by the server"));
        }
        check_version(input.version_id.as_deref())?;
        let name = object_name(&input.bucket, &input.key)?;
        let conditions = ReadConditions {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        let object = self.read_object(&name, &conditions).await?;
        let view = object.view(input.range, input.part_number, input.checksum_mode.as_ref())?;
        let mut output = HeadObjectOutput::default();
        show_object!(output, object, view);
        // The protocol library knows neither overrides nor the number of tags nor a partial one of answers to a HEAD.
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-amz-tagging-count", object.tag_count().map(|count| count.to_string())),
            ("content-type", input.response_content_type),
            ("cache-control", input.response_cache_control),
            ("content-disposition", input.response_content_disposition),
            ("content-encoding", input.response_content_encoding),
            ("content-language", input.response_content_language),
        ] {
            if let Some(value) = value {
                let value = HeaderValue::from_str(&value)
                    .map_err(|_| s3_error!(InvalidArgument, "A header cannot be overridden so."))?;
                headers.insert(name, value);
            }
        }
        let mut response = S3Response::with_headers(output, headers);
        if view.content_range.is_some() {
            response.extensions.insert(StatusCode::PARTIAL_CONTENT);
        }
        Ok(response)
    }

    pub(super) async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        if input.mfa.is_some() || input.bypass_governance_retention.is_some() {
            return Err(not_here("Locking of objects"));
        }
        if input.if_match_last_modified_time.is_some() || input.if_match_size.is_some() {
            return Err(not_here("Deleting by time or by size"));
        }
        check_version(input.version_id.as_deref())?;
        let name = object_name(&input.bucket, &input.key)?;
        let condition = write_condition(input.if_match.as_ref(), None)?;
        self.delete_entry(&name, condition).await?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    /// Deletes an object, if the condition holds.
    pub(super) async fn delete_entry(&self, name: &EntryName, condition: Condition) -> S3Result<()> {
        match self.store().delete(name, condition.clone()).await.map_err(store_error)? {
            WriteOutcome::Done(_) => Ok(()),
            WriteOutcome::Refused(current) => Err(unmet_write(&condition, current.as_ref())),
        }
    }

    /// Writes an object, if the condition holds. Answers when it was, for those who are told.
    pub(super) async fn write_object(
        &self,
        name: &EntryName,
        condition: Condition,
        e_tag: &Arc<str>,
        object: NewObject,
    ) -> S3Result<()> {
        let outcome = self.store().write(name, condition.clone(), Arc::clone(e_tag), object.content).await;
        match outcome.map_err(store_error)? {
            WriteOutcome::Done(_) => Ok(()),
            WriteOutcome::Refused(current) => Err(unmet_write(&condition, current.as_ref())),
        }
    }

    /// Refuses a write that would be refused in the end.
    pub(super) async fn check_early(&self, name: &EntryName, condition: &Condition) -> S3Result<()> {
        let current = self.store().read(name).await.map_err(store_error)?;
        match seems_unmet(condition, current.as_ref()) {
            true => Err(unmet_write(condition, current.as_ref())),
            false => Ok(()),
        }
    }

    pub(super) async fn read_object(
        &self,
        name: &EntryName,
        conditions: &ReadConditions<'_>,
    ) -> S3Result<StoredObject> {
        let entry = self.store().read(name).await.map_err(store_error)?.ok_or_else(no_such_key)?;
        conditions.check(&entry).map_err(|unmet| unmet_read(unmet, &entry))?;
        let meta = ObjectMeta::from_bytes(entry.content.meta.clone()).map_err(record_error)?;
        Ok(StoredObject { entry, meta })
    }
}

/// An object that is there.
pub(super) struct StoredObject {
    pub(super) entry: Entry,
    pub(super) meta: ObjectMeta,
}

/// What is shown of an object.
pub(super) struct View {
    pub(super) range: Range<u64>,
    /// Set when it is not the whole of it.
    pub(super) content_range: Option<String>,
    pub(super) parts_count: Option<i32>,
    pub(super) sum: Option<SumRecord>,
}

impl StoredObject {
    pub(super) fn view(
        &self,
        range: Option<AskedRange>,
        part: Option<i32>,
        mode: Option<&ChecksumMode>,
    ) -> S3Result<View> {
        let size = self.entry.content.size;
        let wants_sum = mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
        let partial = |range: Range<u64>| {
            // Nothing cannot be written as a first and a last byte.
            let shown = || format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1));
            (size > 0).then(shown)
        };
        match (range, part) {
            (Some(_), Some(_)) => Err(s3_error!(
                InvalidRequest,
                "Cannot specify both Range header and partNumber query parameter"
            )),
            (None, None) => {
                let sum = self.meta.sum.clone().filter(|_| wants_sum);
                Ok(View { range: 0..size, content_range: None, parts_count: None, sum })
            }
            (Some(asked), None) => {
                let range = asked_range(asked, size)?;
                let content_range = partial(range.clone());
                Ok(View { range, content_range, parts_count: None, sum: None })
            }
            (None, Some(number)) => {
                let parts = self.meta.parts();
                let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
                let index = index.ok_or_else(|| {
                    s3_error!(
                        InvalidArgument,
                        "Part number must be an integer between 1 and 10000, inclusive"
                    )
                })?;
                if parts.is_empty() && index == 0 {
                    let sum = self.meta.sum.clone().filter(|_| wants_sum);
                    return Ok(View {
                        range: 0..size,
                        content_range: partial(0..size),
                        parts_count: None,
                        sum,
                    });
                }
                let Some(part) = parts.get(index) else {
                    return Err(crate::errors::custom(
                        "InvalidPartNumber",
                        StatusCode::RANGE_NOT_SATISFIABLE,
                        "The requested partnumber is not satisfiable",
                    ));
                };
                let start: u64 = parts[..index].iter().map(|part| part.size).sum();
                let range = start..start + part.size;
                Ok(View {
                    content_range: partial(range.clone()),
                    range,
                    parts_count: i32::try_from(parts.len()).ok(),
                    sum: part.sum.clone().filter(|_| wants_sum),
                })
            }
        }
    }

    pub(super) fn tag_count(&self) -> Option<i32> {
        i32::try_from(self.meta.tags.len()).ok().filter(|count| *count > 0)
    }
}

/// One part of an object that was uploaded in several.
pub(super) struct ObjectPart {
    pub(super) size: u64,
    pub(super) sum: Option<SumRecord>,
}

impl ObjectMeta {
    /// The parts of an object that was uploaded in several; none of one that was not.
    pub(super) fn parts(&self) -> Vec<ObjectPart> {
        let runs = self.part_runs.iter().copied().chain(std::iter::repeat(1));
        let sizes = self.part_sizes.iter().zip(runs);
        let sizes =
            sizes.flat_map(|(size, run)| std::iter::repeat_n(*size, usize::try_from(run).unwrap_or(0)));
        let algorithm = self.sum.as_ref().and_then(SumRecord::algorithm);
        let sum = |index: usize| {
            let algorithm = algorithm?;
            let start = index.checked_mul(algorithm.bytes())?;
            let bytes = self.part_sums.get(start..start + algorithm.bytes())?;
            Some(SumRecord::full(algorithm, Bytes::copy_from_slice(bytes)))
        };
        sizes.take(PARTS_MAX).enumerate().map(|(index, size)| ObjectPart { size, sum: sum(index) }).collect()
    }
}

/// An object that is about to be written.
pub(super) struct NewObject {
    pub(super) content: Content,
    pub(super) sum: Option<SumRecord>,
}

/// The content of an object that is written now.
pub(super) fn object_content(
    meta: ObjectMeta,
    body: synod_store::objects::content::Body,
) -> S3Result<NewObject> {
    let brief = ObjectBrief {
        algorithm: meta.sum.as_ref().map_or(0, |sum| sum.algorithm),
        is_composite: meta.sum.as_ref().is_some_and(|sum| sum.composite_of > 0),
    };
    let encoded = meta.to_bytes();
    if encoded.len() > synod_store::objects::content::META_BYTES_MAX {
        return Err(s3_error!(
            MetadataTooLarge,
            "Your metadata headers exceed the maximum allowed metadata size"
        ));
    }
    let content =
        Content { modified_ms: now_ms(), size: body.bytes(), brief: brief.to_bytes(), meta: encoded, body };
    Ok(NewObject { content, sum: meta.sum })
}

/// Shows an object in the answer to a GET or a HEAD.
macro_rules! show_object {
    ($output:expr, $object:expr, $view:expr) => {{
        let (output, object, view): (_, &StoredObject, &View) = (&mut $output, &$object, &$view);
        let meta = &object.meta;
        output.accept_ranges = Some("bytes".to_owned());
        output.content_length = i64::try_from(view.range.end - view.range.start).ok();
        output.content_range = view.content_range.clone();
        output.content_type =
            Some(meta.content_type.clone().unwrap_or_else(|| CONTENT_TYPE_DEFAULT.to_owned()));
        output.cache_control = meta.cache_control.clone();
        output.content_disposition = meta.content_disposition.clone();
        output.content_encoding = meta.content_encoding.clone();
        output.content_language = meta.content_language.clone();
        output.expires = meta.expires_ms.map(timestamp);
        output.e_tag = Some(etag(&object.entry.etag));
        output.last_modified = Some(timestamp(object.entry.content.modified_ms));
        output.metadata = shown_metadata(&meta.user);
        output.parts_count = view.parts_count;
        output.checksum_type = view.sum.as_ref().and(meta.sum.as_ref()).map(SumRecord::checksum_type);
        show_sum!(output, &view.sum);
    }};
}

use show_object;

/// What a body is when nobody said it.
const CONTENT_TYPE_DEFAULT: &str = "binary/octet-stream";
/// Most parts of an upload.
pub(super) const PARTS_MAX: usize = 10_000;
