//! Conditions on what is there: those of reads, which are compared here, and those of writes, which the store compares.

use std::ops::Range;
use std::sync::Arc;

use http::header::{CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, LAST_MODIFIED};
use s3s::dto::{ETagCondition, Range as AskedRange, Timestamp};
use s3s::{S3Error, S3Result, s3_error};
use synod_core::objects::Condition;
use synod_store::objects::content::Entry;

use super::no_such_key;
use crate::text::{milliseconds, timestamp};

/// What a reader asks of what is there.
#[derive(Default)]
pub(super) struct ReadConditions<'a> {
    pub(super) if_match: Option<&'a ETagCondition>,
    pub(super) if_none_match: Option<&'a ETagCondition>,
    pub(super) if_modified_since: Option<&'a Timestamp>,
    pub(super) if_unmodified_since: Option<&'a Timestamp>,
}

/// How a condition of a reader does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmet {
    Precondition,
    NotModified,
}

impl ReadConditions<'_> {
    /// Compares in the order that HTTP prescribes: the time counts only where no `ETag` does.
    pub(super) fn check(&self, entry: &Entry) -> Result<(), Unmet> {
        let is = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(etag) => etag.value() == &*entry.etag,
        };
        let modified = entry.content.modified_ms / 1000;
        let is_newer = |time: &Timestamp| modified > milliseconds(time) / 1000;
        match (self.if_match, self.if_unmodified_since) {
            (Some(condition), _) if !is(condition) => return Err(Unmet::Precondition),
            (None, Some(time)) if is_newer(time) => return Err(Unmet::Precondition),
            _ => {}
        }
        match (self.if_none_match, self.if_modified_since) {
            (Some(condition), _) if is(condition) => Err(Unmet::NotModified),
            (None, Some(time)) if !is_newer(time) => Err(Unmet::NotModified),
            _ => Ok(()),
        }
    }
}

/// A read is refused.
pub(super) fn unmet_read(unmet: Unmet, entry: &Entry) -> S3Error {
    match unmet {
        Unmet::Precondition => precondition_failed(),
        Unmet::NotModified => {
            let mut error = s3_error!(NotModified, "Not Modified");
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_str(&format!("\"{}\"", entry.etag)) {
                headers.insert(ETAG, value);
            }
            let mut time = Vec::new();
            let format = s3s::dto::TimestampFormat::HttpDate;
            if timestamp(entry.content.modified_ms).format(format, &mut time).is_ok()
                && let Ok(value) = HeaderValue::from_bytes(&time)
            {
                headers.insert(LAST_MODIFIED, value);
            }
            error.set_headers(headers);
            error
        }
    }
}

/// What a writer asks of what is there, as the store compares it.
pub(super) fn write_condition(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<Condition> {
    let one = |etag: &s3s::dto::ETag| Arc::from([Arc::from(etag.value())]);
    match (if_match, if_none_match) {
        (None, None) => Ok(Condition::Any),
        (Some(ETagCondition::Any), None) => Ok(Condition::Present),
        (Some(ETagCondition::ETag(etag)), None) => Ok(Condition::EtagIn(one(etag))),
        (None, Some(ETagCondition::Any)) => Ok(Condition::Absent),
        (None, Some(ETagCondition::ETag(etag))) => Ok(Condition::EtagNotIn(one(etag))),
        (Some(_), Some(_)) => Err(crate::errors::not_here("If-Match together with If-None-Match")),
    }
}

/// A write was refused because of what is there.
pub(super) fn unmet_write(condition: &Condition, current: Option<&Entry>) -> S3Error {
    match (condition, current) {
        (Condition::EtagIn(_) | Condition::Present, None) => no_such_key(),
        _ => precondition_failed(),
    }
}

/// Whether a condition holds of what was read; the store decides when it is written.
pub(super) fn seems_unmet(condition: &Condition, current: Option<&Entry>) -> bool {
    !match condition {
        Condition::Any => true,
        Condition::Absent | Condition::Never => current.is_none(),
        Condition::Present => current.is_some(),
        Condition::EtagIn(etags) => current.is_some_and(|entry| etags.contains(&entry.etag)),
        Condition::EtagNotIn(etags) => current.is_none_or(|entry| !etags.contains(&entry.etag)),
        Condition::TagIs(tag) => current.is_some_and(|entry| entry.tag == *tag),
    }
}

pub(super) fn precondition_failed() -> S3Error {
    s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold")
}

/// The bytes that a reader asks for.
pub(super) fn asked_range(asked: AskedRange, size: u64) -> S3Result<Range<u64>> {
    match asked.check(size) {
        Ok(range) if size > 0 => Ok(range),
        _ => {
            let mut error = s3_error!(InvalidRange, "The requested range is not satisfiable");
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
                headers.insert(CONTENT_RANGE, value);
            }
            headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
            error.set_headers(headers);
            Err(error)
        }
    }
}
