//! What went wrong, as S3 says it.

use http::StatusCode;
use http::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use s3s::{S3Error, S3ErrorCode, s3_error};
use synod_store::objects::contract::StoreError;

use crate::records::RecordError;
use crate::request::BodyFailure;

/// A store could not do what it was asked for.
pub(crate) fn store_error(error: StoreError) -> S3Error {
    match error {
        StoreError::Unavailable { reason } => later(s3_error!(SlowDown, "Not now: {reason}. Try again.")),
        StoreError::Indeterminate => later(s3_error!(
            ServiceUnavailable,
            "Whether the write took effect is not known. Read it, or write it again."
        )),
        StoreError::TooLarge { reason } => s3_error!(EntityTooLarge, "Too large: {reason}."),
        StoreError::Full { reason } => {
            custom("InsufficientStorage", StatusCode::INSUFFICIENT_STORAGE, format!("No room: {reason}."))
        }
        error => {
            tracing::error!(%error, "the store failed");
            s3_error!(InternalError, "The store failed: {error}.")
        }
    }
}

/// What the gateway once wrote cannot be read.
pub(crate) fn record_error(error: RecordError) -> S3Error {
    tracing::error!(%error, "a record cannot be read");
    s3_error!(InternalError, "A record cannot be read: {error}.")
}

/// An error whose code the protocol library does not know.
pub(crate) fn custom(code: &'static str, status: StatusCode, message: impl Into<String>) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message.into());
    error.set_status_code(status);
    error
}

/// The body of a request could not be read to its end. What the protocol library found itself, only its words tell.
pub(crate) fn body_error(failure: Option<BodyFailure>, found: Option<&s3s::StdError>) -> S3Error {
    let found = found.map(ToString::to_string).unwrap_or_default();
    match failure {
        Some(BodyFailure::Cut) => s3_error!(IncompleteBody, "The body ended early."),
        Some(BodyFailure::Idle) => s3_error!(RequestTimeout, "Nothing of the body came for too long."),
        Some(BodyFailure::ChunkTooLarge) => {
            s3_error!(EntityTooLarge, "A signed chunk of the body is too large.")
        }
        Some(BodyFailure::ChunkMalformed) => {
            s3_error!(InvalidRequest, "The chunks of the body are malformed.")
        }
        Some(BodyFailure::Digest) => {
            s3_error!(
                BadDigest,
                "The Content-MD5 or checksum value that you specified did not match what the server received."
            )
        }
        None if found.contains("SignatureMismatch") => {
            s3_error!(SignatureDoesNotMatch, "A chunk of the body is not signed as it should be.")
        }
        None if found.contains("Incomplete") => s3_error!(IncompleteBody, "The body ended early."),
        None if found.contains("AwsChunkedStream") => {
            s3_error!(InvalidRequest, "The chunks of the body are malformed.")
        }
        None => custom(
            "XAmzContentSHA256Mismatch",
            StatusCode::BAD_REQUEST,
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        ),
    }
}

/// Something that is not done here. It is refused, so that nobody believes that it was done.
pub(crate) fn not_here(what: &str) -> S3Error {
    s3_error!(NotImplemented, "{what} is not implemented here.")
}

fn later(mut error: S3Error) -> S3Error {
    let mut headers = HeaderMap::new();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    error.set_headers(headers);
    error
}
