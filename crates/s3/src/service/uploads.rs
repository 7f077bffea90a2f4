//! Uploads in several parts: begun, fed, listed, given up. [`super::complete`] makes objects of them.
//!
//! An upload is an entry `key NUL id`, and each of its parts one `key NUL id NUL number`, all in the slot where the object
//! will be: its bytes are written there once and never moved.

use std::ops::Range;
use std::sync::Arc;

use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, ChecksumType, CopyPartResult,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, Initiator, ListPartsInput, ListPartsOutput,
    Part, Range as AskedRange, StorageClass, UploadPartCopyInput, UploadPartCopyOutput, UploadPartInput,
    UploadPartOutput,
};
use s3s::{S3Error, S3Request, S3Response, S3Result, s3_error};
use synod_core::objects::{Condition, EntryName, Space};
use synod_store::objects::content::{Content, Entry, META_BYTES_MAX};
use synod_store::objects::contract::{
    LIST_MAX, ListItem, ListPosition, ListQuery, ObjectStore, WriteOutcome,
};

use super::body::{Received, Sent};
use super::buckets::owner;
use super::conditions::ReadConditions;
use super::metadata::{meta_of, refuse_unsupported, tags_of_header};
use super::objects::PARTS_MAX;
use super::{OBJECT_BYTES_MAX, Service, bucket_of, caller_of, check_key, object_name};
use crate::digests::{Algorithm, Promised, given_sums, show_sum};
use crate::errors::{not_here, record_error, store_error};
use crate::now_ms;
use crate::records::{PartBrief, Record as _, UploadBrief, UploadRecord};
use crate::text::{etag, hex, timestamp};

/// An upload that is there.
pub(super) struct Upload {
    pub(super) entry: Entry,
    pub(super) record: UploadRecord,
    pub(super) brief: UploadBrief,
}

impl Upload {
    /// How its parts are summed, if they are.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::from_number(self.brief.algorithm)
    }

    /// What the sum of the object will be one of.
    pub(super) fn checksum_type(&self) -> Option<ChecksumType> {
        self.algorithm().map(|_| match self.brief.is_full_object {
            true => ChecksumType::from_static(ChecksumType::FULL_OBJECT),
            false => ChecksumType::from_static(ChecksumType::COMPOSITE),
        })
    }
}

impl<S: ObjectStore> Service<S> {
    pub(super) async fn create_multipart_upload(
        &self,
        mut request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        bucket_of(&request)?;
        let caller = caller_of(&request)?;
        refuse_unsupported!(request.input)?;
        let input = &mut request.input;
        object_name(&input.bucket, &input.key)?;
        let (algorithm, is_full_object) =
            asked_sum(input.checksum_algorithm.as_ref(), input.checksum_type.as_ref())?;
        let mut meta = meta_of!(*input);
        meta.tags = tags_of_header(input.tagging.as_deref())?;
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|_| s3_error!(InternalError, "The system gives no random numbers."))?;
        let upload_id = hex(&random);
        let brief = UploadBrief {
            initiator: caller.id.to_string(),
            algorithm: algorithm.map_or(0, |algorithm| algorithm as u32),
            is_full_object,
        };
        let meta = UploadRecord { meta: Some(meta) }.to_bytes();
        if meta.len() > META_BYTES_MAX {
            return Err(s3_error!(
                MetadataTooLarge,
                "Your metadata headers exceed the maximum allowed metadata size"
            ));
        }
        let content = Content { modified_ms: now_ms(), brief: brief.to_bytes(), meta, ..Content::default() };
        let name = upload_name(&input.bucket, &input.key, &upload_id)?;
        let outcome = self.store().write(&name, Condition::Absent, Arc::from(""), content).await;
        match outcome.map_err(store_error)? {
            WriteOutcome::Done(_) => {}
            WriteOutcome::Refused(_) => {
                return Err(s3_error!(InternalError, "An upload has that id already."));
            }
        }
        let checksum_type = algorithm.map(|_| match is_full_object {
            true => ChecksumType::from_static(ChecksumType::FULL_OBJECT),
            false => ChecksumType::from_static(ChecksumType::COMPOSITE),
        });
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket.clone()),
            key: Some(input.key.clone()),
            upload_id: Some(upload_id),
            checksum_algorithm: algorithm.map(|algorithm| ChecksumAlgorithm::from_static(algorithm.name())),
            checksum_type,
            ..CreateMultipartUploadOutput::default()
        }))
    }

    pub(super) async fn upload_part(
        &self,
        mut request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        bucket_of(&request)?;
        let stream = request.input.body.take();
        let input = &request.input;
        if input.sse_customer_algorithm.is_some() || input.sse_customer_key.is_some() {
            return Err(not_here("Encryption by the server"));
        }
        let name = part_name(&input.bucket, &input.key, &input.upload_id, input.part_number)?;
        let promised = Promised::of(&request.headers, given_sums!(input))?;
        let sent = Sent::of(&request, stream, input.content_length, promised)?;
        let upload = self.upload(&input.bucket, &input.key, &input.upload_id).await?;
        if let (Some(expected), Some(given)) = (upload.algorithm(), sent.promised.algorithm)
            && expected != given
        {
            return Err(s3_error!(
                InvalidRequest,
                "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                expected.name().to_lowercase(),
                given.name().to_lowercase()
            ));
        }
        let received = self.receive(&name, sent, upload.algorithm()).await?;
        let brief = PartBrief { sum: received.sums.sum.clone() };
        let e_tag = hex(&received.sums.md5);
        self.write_part(&name, &input.bucket, &input.key, &input.upload_id, received).await?;
        let mut output = UploadPartOutput { e_tag: Some(etag(&e_tag)), ..UploadPartOutput::default() };
        show_sum!(output, &brief.sum);
        Ok(S3Response::new(output))
    }

    pub(super) async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        if input.sse_customer_algorithm.is_some() || input.copy_source_sse_customer_algorithm.is_some() {
            return Err(not_here("Encryption by the server"));
        }
        let name = part_name(&input.bucket, &input.key, &input.upload_id, input.part_number)?;
        let upload = self.upload(&input.bucket, &input.key, &input.upload_id).await?;
        let conditions = ReadConditions {
            if_match: input.copy_source_if_match.as_ref(),
            if_none_match: input.copy_source_if_none_match.as_ref(),
            if_modified_since: input.copy_source_if_modified_since.as_ref(),
            if_unmodified_since: input.copy_source_if_unmodified_since.as_ref(),
        };
        let (source_name, source) = self.copy_source(&input.copy_source, &conditions).await?;
        let range = copied_range(input.copy_source_range.as_deref(), source.entry.content.size)?;
        let received =
            self.copy_body(&source_name, &source.entry.content, range, &name, upload.algorithm()).await?;
        let sum = received.sums.sum.clone();
        let e_tag = hex(&received.sums.md5);
        let modified_ms =
            self.write_part(&name, &input.bucket, &input.key, &input.upload_id, received).await?;
        let mut result = CopyPartResult {
            e_tag: Some(etag(&e_tag)),
            last_modified: Some(timestamp(modified_ms)),
            ..CopyPartResult::default()
        };
        show_sum!(result, &sum);
        let copy_part_result = Some(result);
        Ok(S3Response::new(UploadPartCopyOutput { copy_part_result, ..UploadPartCopyOutput::default() }))
    }

    pub(super) async fn list_parts(
        &self,
        request: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        let bucket = bucket_of(&request)?;
        let input = request.input;
        let upload = self.upload(&input.bucket, &input.key, &input.upload_id).await?;
        let limit = super::listing::limit_of(input.max_parts)?;
        let marker = input.part_number_marker.unwrap_or(0);
        let prefix = format!("{}\0{}\0", input.key, input.upload_id);
        let after = usize::try_from(marker).unwrap_or(0).min(99_999);
        let mut parts = Vec::new();
        let mut is_truncated = false;
        if limit > 0 {
            let query = ListQuery {
                space: Space::UploadPart,
                bucket: input.bucket.clone(),
                after: (after > 0).then(|| ListPosition::Key(format!("{prefix}{after:05}"))),
                prefix: prefix.clone(),
                delimiter: String::new(),
                limit,
                beside: Some(input.key.clone()),
            };
            let page = self.store().list(query).await.map_err(store_error)?;
            is_truncated = page.is_truncated;
            for item in page.items {
                let ListItem::Entry(listed) = item else { continue };
                let brief = PartBrief::from_bytes(listed.brief).map_err(record_error)?;
                let mut part = Part {
                    part_number: listed.key.strip_prefix(&prefix).and_then(|number| number.parse().ok()),
                    e_tag: Some(etag(&listed.etag)),
                    size: i64::try_from(listed.size).ok(),
                    last_modified: Some(timestamp(listed.modified_ms)),
                    ..Part::default()
                };
                show_sum!(part, &brief.sum);
                parts.push(part);
            }
        }
        let next_part_number_marker = parts.last().and_then(|part| part.part_number).filter(|_| is_truncated);
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            initiator: Some(initiator(&upload.brief.initiator)),
            owner: Some(bucket.owner()),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            part_number_marker: Some(marker),
            next_part_number_marker,
            max_parts: Some(super::listing::shown_limit(input.max_parts)),
            is_truncated: Some(is_truncated),
            checksum_algorithm: upload
                .algorithm()
                .map(|algorithm| ChecksumAlgorithm::from_static(algorithm.name())),
            checksum_type: upload.checksum_type(),
            parts: Some(parts),
            ..ListPartsOutput::default()
        }))
    }

    pub(super) async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        bucket_of(&request)?;
        let input = request.input;
        if input.if_match_initiated_time.is_some() {
            return Err(not_here("Giving up an upload by its time"));
        }
        let upload = self.upload(&input.bucket, &input.key, &input.upload_id).await?;
        let name = upload_name(&input.bucket, &input.key, &input.upload_id)?;
        let outcome = self.store().delete(&name, Condition::TagIs(upload.entry.tag)).await;
        if let WriteOutcome::Refused(_) = outcome.map_err(store_error)? {
            return Err(no_such_upload());
        }
        delete_parts(self.store(), &input.bucket, &input.key, &input.upload_id).await.map_err(store_error)?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    pub(super) async fn upload(&self, bucket: &str, key: &str, id: &str) -> S3Result<Upload> {
        let name = upload_name(bucket, key, id)?;
        let entry = self.store().read(&name).await.map_err(store_error)?.ok_or_else(no_such_upload)?;
        let record = UploadRecord::from_bytes(entry.content.meta.clone()).map_err(record_error)?;
        let brief = UploadBrief::from_bytes(entry.content.brief.clone()).map_err(record_error)?;
        Ok(Upload { entry, record, brief })
    }

    /// Writes a part. Answers when.
    async fn write_part(
        &self,
        name: &EntryName,
        bucket: &str,
        key: &str,
        id: &str,
        received: Received,
    ) -> S3Result<u64> {
        let modified_ms = now_ms();
        let brief = PartBrief { sum: received.sums.sum };
        let content = Content {
            modified_ms,
            size: received.body.bytes(),
            brief: brief.to_bytes(),
            body: received.body,
            ..Content::default()
        };
        let e_tag = Arc::from(hex(&received.sums.md5));
        self.store().write(name, Condition::Any, e_tag, content).await.map_err(store_error)?;
        // An upload that was given up meanwhile did not take this part with it.
        if let Err(error) = self.upload(bucket, key, id).await {
            if error.code() == &s3s::S3ErrorCode::NoSuchUpload {
                self.store().delete(name, Condition::Any).await.map_err(store_error)?;
            }
            return Err(error);
        }
        Ok(modified_ms)
    }
}

/// Deletes what is left of the parts of an upload.
pub(crate) async fn delete_parts<S: ObjectStore>(
    store: &S,
    bucket: &str,
    key: &str,
    id: &str,
) -> Result<(), synod_store::objects::contract::StoreError> {
    loop {
        let query = ListQuery {
            space: Space::UploadPart,
            bucket: bucket.to_owned(),
            prefix: format!("{key}\0{id}\0"),
            delimiter: String::new(),
            after: None,
            limit: LIST_MAX,
            beside: Some(key.to_owned()),
        };
        let page = store.list(query).await?;
        let mut names = Vec::new();
        for item in &page.items {
            if let ListItem::Entry(listed) = item
                && let Ok(name) = EntryName::new(Space::UploadPart, bucket, &listed.key)
            {
                names.push(name);
            }
        }
        let outcomes = super::each(names, |name| {
            let store = store.clone();
            async move { store.delete(&name, Condition::Any).await }
        });
        for outcome in outcomes.await {
            outcome?;
        }
        if !page.is_truncated {
            return Ok(());
        }
    }
}

/// How a client wants an object to be summed that it uploads in parts, and whether by a sum of all bytes.
fn asked_sum(
    algorithm: Option<&ChecksumAlgorithm>,
    kind: Option<&ChecksumType>,
) -> S3Result<(Option<Algorithm>, bool)> {
    let algorithm = algorithm.map(|name| {
        Algorithm::from_name(name.as_str()).ok_or_else(|| {
            s3_error!(InvalidRequest, "Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]")
        })
    });
    let algorithm = algorithm.transpose()?;
    match (algorithm, kind.map(ChecksumType::as_str)) {
        (None, None) => Ok((None, false)),
        (None, Some(_)) => Err(s3_error!(
            InvalidRequest,
            "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header."
        )),
        (Some(algorithm), None) => Ok((Some(algorithm), !algorithm.allows_composite())),
        (Some(algorithm), Some(ChecksumType::FULL_OBJECT)) if algorithm.allows_full_object() => {
            Ok((Some(algorithm), true))
        }
        (Some(algorithm), Some(ChecksumType::COMPOSITE)) if algorithm.allows_composite() => {
            Ok((Some(algorithm), false))
        }
        (Some(algorithm), Some(kind)) => Err(s3_error!(
            InvalidRequest,
            "The {kind} checksum type cannot be used with the {} checksum algorithm.",
            algorithm.name()
        )),
    }
}

/// The bytes of an object that become a part.
fn copied_range(asked: Option<&str>, size: u64) -> S3Result<Range<u64>> {
    let Some(asked) = asked else {
        if size > OBJECT_BYTES_MAX {
            return Err(too_large_to_copy());
        }
        return Ok(0..size);
    };
    match AskedRange::parse(asked) {
        Ok(AskedRange::Int { first, last: Some(last) }) if last < size => {
            if last - first >= OBJECT_BYTES_MAX {
                return Err(too_large_to_copy());
            }
            Ok(first..last + 1)
        }
        Ok(AskedRange::Int { last: Some(_), .. }) => {
            Err(s3_error!(InvalidRange, "Range specified is not valid for source object of size: {size}"))
        }
        _ => Err(s3_error!(
            InvalidArgument,
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets of the first and last bytes to copy"
        )),
    }
}

pub(super) fn too_large_to_copy() -> S3Error {
    s3_error!(
        InvalidRequest,
        "The specified copy source is larger than the maximum allowable size for a copy source: {OBJECT_BYTES_MAX}"
    )
}

pub(super) fn upload_name(bucket: &str, key: &str, id: &str) -> S3Result<EntryName> {
    check_key(key)?;
    let is_id = id.len() == UPLOAD_ID_BYTES && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    match is_id {
        true => EntryName::new(Space::Upload, bucket, &format!("{key}\0{id}")).map_err(|_| no_such_upload()),
        false => Err(no_such_upload()),
    }
}

pub(super) fn part_name(bucket: &str, key: &str, id: &str, number: i32) -> S3Result<EntryName> {
    upload_name(bucket, key, id)?;
    if usize::try_from(number).ok().is_none_or(|number| !(1..=PARTS_MAX).contains(&number)) {
        return Err(s3_error!(
            InvalidArgument,
            "Part number must be an integer between 1 and {PARTS_MAX}, inclusive"
        ));
    }
    EntryName::new(Space::UploadPart, bucket, &format!("{key}\0{id}\0{number:05}"))
        .map_err(|_| no_such_upload())
}

pub(super) fn no_such_upload() -> S3Error {
    s3_error!(
        NoSuchUpload,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed."
    )
}

pub(super) fn initiator(id: &str) -> Initiator {
    let owner = owner(id);
    Initiator { id: owner.id, display_name: owner.display_name }
}

/// Letters of the id of an upload.
const UPLOAD_ID_BYTES: usize = 32;
