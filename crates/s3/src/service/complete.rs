//! The end of an upload: its parts become an object, without moving their bytes.

use std::sync::Arc;

use bytes::Bytes;
use s3s::dto::{CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart};
use s3s::{S3Request, S3Response, S3Result, s3_error};
use synod_core::objects::{Condition, EntryName};
use synod_store::objects::content::{Body, Entry, INLINE_BYTES_MAX, PartRef};
use synod_store::objects::contract::{BodyWriter as _, ObjectStore};

use super::conditions::write_condition;
use super::objects::{PARTS_MAX, object_content};
use super::uploads::{Upload, delete_parts, no_such_upload, part_name, upload_name};
use super::{Service, bucket_of, object_name};
use crate::digests::{Algorithm, combined_sum, composite_sum, given_sums, md5, show_sum};
use crate::errors::{record_error, store_error};
use crate::records::{ObjectMeta, PartBrief, Record as _, SumRecord};
use crate::text::{etag, hex};

/// A part of the upload as it is stored.
struct StoredPart {
    entry: Entry,
    sum: Option<SumRecord>,
}

impl<S: ObjectStore> Service<S> {
    pub(super) async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        bucket_of(&request)?;
        // Between the object and the end of its upload nobody may hang up.
        let service = self.clone();
        match tokio::spawn(async move { service.complete_whole(request).await }).await {
            Ok(outcome) => outcome,
            Err(error) => Err(s3_error!(InternalError, "The upload could not be completed: {error}.")),
        }
    }

    async fn complete_whole(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let host =
            request.headers.get(http::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let location = format!("http://{host}/{}/{}", request.input.bucket, request.input.key);
        let mut input = request.input;
        let name = object_name(&input.bucket, &input.key)?;
        let condition = write_condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let asked = input.multipart_upload.take().and_then(|upload| upload.parts).unwrap_or_default();
        let numbers = checked_numbers(&asked)?;
        let (e_tag, sum) = match self.upload(&input.bucket, &input.key, &input.upload_id).await {
            Ok(upload) => self.complete(&input, &name, condition, &upload, &asked, &numbers).await?,
            // Whoever asks again because the first answer was lost is told what became of it.
            Err(error) if error.code() == &s3s::S3ErrorCode::NoSuchUpload => {
                self.completed_before(&name, &input.upload_id).await?
            }
            Err(error) => return Err(error),
        };
        let mut output = CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            location: Some(location),
            e_tag: Some(etag(&e_tag)),
            checksum_type: sum.as_ref().map(SumRecord::checksum_type),
            ..CompleteMultipartUploadOutput::default()
        };
        show_sum!(output, &sum);
        Ok(S3Response::new(output))
    }

    async fn complete(
        &self,
        input: &CompleteMultipartUploadInput,
        name: &EntryName,
        condition: Condition,
        upload: &Upload,
        asked: &[CompletedPart],
        numbers: &[i32],
    ) -> S3Result<(Arc<str>, Option<SumRecord>)> {
        let parts = self.stored_parts(input, asked, numbers).await?;
        if let Some(size) = input.mpu_object_size {
            let sum: u64 = parts.iter().map(|part| part.entry.content.size).sum();
            if u64::try_from(size) != Ok(sum) {
                return Err(s3_error!(
                    InvalidRequest,
                    "The provided 'x-amz-mp-object-size' header value {size} does not match what was computed: {sum}"
                ));
            }
        }
        let mut meta = upload.record.meta.clone().unwrap_or_default();
        meta.upload_id.clone_from(&input.upload_id);
        meta.sum = object_sum(upload, &parts)?;
        check_sum(input, meta.sum.as_ref())?;
        describe_parts(&mut meta, &parts);
        let digests: Vec<u8> = parts.iter().flat_map(|part| unhex(&part.entry.etag)).collect();
        let e_tag: Arc<str> = Arc::from(format!("{}-{}", hex(&md5(&digests)), parts.len()));
        if condition != Condition::Any {
            self.check_early(name, &condition).await?;
        }
        let body = self.joined(name, &parts).await?;
        let object = object_content(meta, body)?;
        let sum = object.sum.clone();
        self.write_object(name, condition, &e_tag, object).await?;
        // The object is there. What is left of the upload is in nobody's way, and a later look removes it.
        let upload_name = upload_name(&input.bucket, &input.key, &input.upload_id)?;
        let removed = async {
            self.store().delete(&upload_name, Condition::Any).await?;
            delete_parts(self.store(), &input.bucket, &input.key, &input.upload_id).await
        };
        if let Err(error) = removed.await {
            tracing::warn!(%error, name = %upload_name, "parts of a completed upload stay for now");
        }
        Ok((e_tag, sum))
    }

    async fn completed_before(&self, name: &EntryName, id: &str) -> S3Result<(Arc<str>, Option<SumRecord>)> {
        let entry = self.store().read(name).await.map_err(store_error)?.ok_or_else(no_such_upload)?;
        let meta = ObjectMeta::from_bytes(entry.content.meta).map_err(record_error)?;
        match meta.upload_id == id {
            true => Ok((entry.etag, meta.sum)),
            false => Err(no_such_upload()),
        }
    }

    /// The parts that the client names, if they are what it says.
    async fn stored_parts(
        &self,
        input: &CompleteMultipartUploadInput,
        asked: &[CompletedPart],
        numbers: &[i32],
    ) -> S3Result<Vec<StoredPart>> {
        let mut names = Vec::with_capacity(numbers.len());
        for number in numbers {
            names.push(part_name(&input.bucket, &input.key, &input.upload_id, *number)?);
        }
        let entries = super::each(names, |name| {
            let store = self.store().clone();
            async move { store.read(&name).await }
        });
        let mut parts = Vec::with_capacity(numbers.len());
        for (entry, asked) in entries.await.into_iter().zip(asked) {
            let entry = entry.map_err(store_error)?.ok_or_else(invalid_part)?;
            let brief = PartBrief::from_bytes(entry.content.brief.clone()).map_err(record_error)?;
            if asked.e_tag.as_ref().is_none_or(|asked| asked.value() != &*entry.etag) {
                return Err(invalid_part());
            }
            for (algorithm, text) in given_sums!(asked) {
                let stored = brief.sum.as_ref().filter(|sum| sum.algorithm() == Some(algorithm));
                if text.is_some_and(|text| stored.is_none_or(|sum| sum.text() != text)) {
                    return Err(invalid_part());
                }
            }
            parts.push(StoredPart { entry, sum: brief.sum });
        }
        if let Some((_, others)) = parts.split_last()
            && others.iter().any(|part| part.entry.content.size < PART_BYTES_MIN)
        {
            return Err(s3_error!(
                EntityTooSmall,
                "Your proposed upload is smaller than the minimum allowed size"
            ));
        }
        let size: u64 = parts.iter().map(|part| part.entry.content.size).sum();
        if size > UPLOAD_BYTES_MAX {
            return Err(s3_error!(
                EntityTooLarge,
                "Your proposed upload exceeds the maximum allowed object size."
            ));
        }
        Ok(parts)
    }

    /// The bodies of the parts as one.
    async fn joined(&self, name: &EntryName, parts: &[StoredPart]) -> S3Result<Body> {
        if let [StoredPart { entry, .. }] = parts {
            return Ok(entry.content.body.clone());
        }
        let mut joined: Vec<PartRef> = Vec::new();
        for part in parts {
            match &part.entry.content.body {
                Body::Parts(refs) => joined.extend_from_slice(refs),
                Body::Inline(bytes) if bytes.is_empty() => {}
                Body::Inline(bytes) => self.append(name, &mut joined, bytes).await?,
            }
        }
        Ok(Body::Parts(joined.into()))
    }

    /// Puts a few bytes behind others that are in parts. What is too little to be a part of its own is written once more
    /// together with what is before it.
    async fn append(&self, name: &EntryName, joined: &mut Vec<PartRef>, bytes: &Bytes) -> S3Result<()> {
        let mut writer = self.store().body_writer(name);
        writer.write(bytes.clone()).await.map_err(store_error)?;
        if let Body::Parts(refs) = writer.finish().await.map_err(store_error)? {
            joined.extend_from_slice(&refs);
            return Ok(());
        }
        let mut start = joined.len();
        let mut size = bytes.len() as u64;
        while size <= INLINE_BYTES_MAX as u64 && start > 0 {
            start -= 1;
            size += joined[start].bytes;
        }
        let again = Body::Parts(joined.split_off(start).into());
        let mut stream = self.store().read_body(name, &again, 0..again.bytes());
        let mut writer = self.store().body_writer(name);
        let mut left = again.bytes();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(store_error)?;
            left = left.saturating_sub(piece.len() as u64);
            writer.write(piece).await.map_err(store_error)?;
        }
        writer.write(bytes.clone()).await.map_err(store_error)?;
        match writer.finish().await.map_err(store_error)? {
            Body::Parts(refs) if left == 0 => {
                joined.extend_from_slice(&refs);
                Ok(())
            }
            _ => Err(s3_error!(
                InternalError,
                "The last bytes of an upload could not be joined to the others."
            )),
        }
    }
}

/// The numbers of the parts that a client names, if they are in order.
fn checked_numbers(asked: &[CompletedPart]) -> S3Result<Vec<i32>> {
    let malformed = || {
        s3_error!(
            MalformedXML,
            "The XML you provided was not well-formed or did not validate against our published schema"
        )
    };
    if asked.is_empty() || asked.len() > PARTS_MAX {
        return Err(malformed());
    }
    let numbers: Option<Vec<i32>> = asked.iter().map(|part| part.part_number).collect();
    let numbers = numbers.ok_or_else(malformed)?;
    if asked.iter().any(|part| part.e_tag.is_none()) {
        return Err(malformed());
    }
    match numbers.is_sorted_by(|a, b| a < b) {
        true => Ok(numbers),
        false => Err(s3_error!(
            InvalidPartOrder,
            "The list of parts was not in ascending order. Parts must be ordered by part number."
        )),
    }
}

/// The sum of the object from those of its parts.
fn object_sum(upload: &Upload, parts: &[StoredPart]) -> S3Result<Option<SumRecord>> {
    let Some(algorithm) = upload.algorithm() else { return Ok(None) };
    let of_algorithm = |part: &StoredPart| part.sum.clone().filter(|sum| sum.algorithm() == Some(algorithm));
    let sums: Option<Vec<SumRecord>> = parts.iter().map(of_algorithm).collect();
    let sums =
        sums.ok_or_else(|| s3_error!(InvalidRequest, "A part has no checksum of the kind of the upload."))?;
    if !upload.brief.is_full_object {
        return Ok(Some(composite_sum(algorithm, sums.iter().map(|sum| &sum.value[..]))));
    }
    let sized = sums.iter().zip(parts).map(|(sum, part)| (&sum.value[..], part.entry.content.size));
    Ok(combined_sum(algorithm, sized))
}

/// Whether the sum of the object is what the client says.
fn check_sum(input: &CompleteMultipartUploadInput, sum: Option<&SumRecord>) -> S3Result<()> {
    if let (Some(asked), Some(sum)) = (&input.checksum_type, sum)
        && *asked != sum.checksum_type()
    {
        return Err(s3_error!(
            InvalidRequest,
            "The upload was not created with the checksum type {}.",
            asked.as_str()
        ));
    }
    for (algorithm, text) in given_sums!(input) {
        let Some(text) = text else { continue };
        let name = Algorithm::name(algorithm);
        match sum {
            Some(sum) if sum.algorithm() == Some(algorithm) => {
                // A sum of sums may be given with or without the number of parts behind it.
                let told = sum.text();
                if told != text && (sum.composite_of == 0 || told.split('-').next() != Some(text)) {
                    return Err(s3_error!(
                        BadDigest,
                        "The {name} you specified did not match the calculated checksum."
                    ));
                }
            }
            _ => return Err(s3_error!(InvalidRequest, "The upload was not created with a {name} checksum.")),
        }
    }
    Ok(())
}

/// Notes sizes and sums of the parts, as far as there is room.
fn describe_parts(meta: &mut ObjectMeta, parts: &[StoredPart]) {
    let mut runs: Vec<(u64, u32)> = Vec::new();
    for part in parts {
        let size = part.entry.content.size;
        match runs.last_mut() {
            Some((last, run)) if *last == size => *run += 1,
            _ => runs.push((size, 1)),
        }
    }
    meta.part_sizes = runs.iter().map(|(size, _)| *size).collect();
    if runs.len() < parts.len() {
        meta.part_runs = runs.iter().map(|(_, run)| *run).collect();
    }
    let sums: Vec<u8> = match meta.sum {
        Some(_) => {
            parts.iter().filter_map(|part| part.sum.as_ref()).flat_map(|sum| sum.value.clone()).collect()
        }
        None => Vec::new(),
    };
    if sums.len() <= PART_SUMS_BYTES_MAX {
        meta.part_sums = sums.into();
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn invalid_part() -> s3s::S3Error {
    s3_error!(
        InvalidPart,
        "One or more of the specified parts could not be found. The part may not have been uploaded, or the specified entity tag may not match the part's entity tag."
    )
}

/// Smallest part, except the last.
const PART_BYTES_MIN: u64 = 5 << 20;
/// Largest object.
const UPLOAD_BYTES_MAX: u64 = 5 << 40;
/// How much room sums of parts may take in what is known of an object.
const PART_SUMS_BYTES_MAX: usize = 24 * 1024;
