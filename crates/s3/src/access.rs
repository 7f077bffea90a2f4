//! Who signed a request, and whether they may do what they ask for.

use std::sync::Arc;

use http::{HeaderMap, Uri};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::{CopyObjectInput, CopySource, UploadPartCopyInput};
use s3s::path::S3Path;
use s3s::{S3Request, S3Result, s3_error};
use synod_store::objects::contract::ObjectStore;

use crate::records::AccessRecord;
use crate::request::Note;
use crate::service::{Bucket, Service};
use crate::text::url_decoded;

/// Who sent a request. Every operation finds it in the extensions of its request.
#[derive(Clone)]
pub(crate) struct Caller {
    /// The id of the access key.
    pub(crate) id: Arc<str>,
    /// What it may do.
    pub(crate) access: Arc<AccessRecord>,
}

/// What an operation needs to be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// To have a key.
    Nothing,
    CreateBucket,
    Read,
    Write,
    Owner,
}

impl Need {
    fn of(operation: &str) -> Self {
        match operation {
            "ListBuckets" => Self::Nothing,
            "CreateBucket" => Self::CreateBucket,
            "GetObject"
            | "HeadObject"
            | "ListObjects"
            | "ListObjectsV2"
            | "ListObjectVersions"
            | "HeadBucket"
            | "GetBucketLocation"
            | "GetBucketVersioning"
            | "GetObjectTagging"
            | "GetObjectAttributes"
            | "GetObjectAcl"
            | "GetBucketAcl"
            | "GetObjectLockConfiguration" => Self::Read,
            "PutObject"
            | "DeleteObject"
            | "DeleteObjects"
            | "CopyObject"
            | "CreateMultipartUpload"
            | "UploadPart"
            | "UploadPartCopy"
            | "CompleteMultipartUpload"
            | "AbortMultipartUpload"
            | "ListParts"
            | "ListMultipartUploads"
            | "PutObjectTagging"
            | "DeleteObjectTagging"
            | "PutObjectAcl" => Self::Write,
            // Configuration and deletion of a bucket, and whatever else there is: who knows no better asks for the most.
            _ => Self::Owner,
        }
    }
}

impl Caller {
    /// Whether the caller may do something with a bucket, whether it is there or not.
    fn may(&self, need: Need, name: &str, bucket: Option<&Bucket>) -> bool {
        if bucket.is_some_and(|bucket| *bucket.record.owner == *self.id) {
            return true;
        }
        let grants = self.access.grants.iter().filter(|grant| grant.bucket == "*" || grant.bucket == name);
        let mut grants = grants.peekable();
        match need {
            Need::Nothing => grants.peek().is_some(),
            Need::CreateBucket => self.access.may_create_buckets,
            Need::Read => grants.any(|grant| grant.read),
            Need::Write => grants.any(|grant| grant.write),
            Need::Owner => grants.any(|grant| grant.owner),
        }
    }

    /// Whether a bucket is one that the caller sees in a listing.
    pub(crate) fn may_see(&self, name: &str, owner: &str) -> bool {
        *owner == *self.id
            || self.access.grants.iter().any(|grant| grant.bucket == "*" || grant.bucket == name)
    }
}

#[async_trait::async_trait]
impl<S: ObjectStore> S3Auth for Service<S> {
    async fn get_secret_key(&self, id: &str) -> S3Result<SecretKey> {
        let access = self.access_key(id).await?;
        Ok(SecretKey::from(access.secret.as_str()))
    }
}

#[async_trait::async_trait]
impl<S: ObjectStore> S3Access for Service<S> {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        if let Some(note) = cx.extensions_mut().get::<Arc<Note>>().cloned() {
            note.set_operation(cx.s3_op().name());
        }
        let Some(credentials) = cx.credentials() else {
            return Err(s3_error!(AccessDenied, "Anonymous requests are not served."));
        };
        let id: Arc<str> = Arc::from(credentials.access_key.as_str());
        check_signed_headers(cx.headers(), cx.uri())?;
        let caller = Caller { access: self.access_key(&id).await?, id };
        let need = Need::of(cx.s3_op().name());
        let bucket = match cx.s3_path() {
            S3Path::Root => None,
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => Some(&**bucket),
        };
        if let S3Path::Object { key, .. } = cx.s3_path() {
            crate::service::check_key(key)?;
        }
        match (need, bucket) {
            (Need::Nothing, _) => {}
            (Need::CreateBucket, Some(name)) => {
                if !caller.may(need, name, None) {
                    return Err(s3_error!(AccessDenied, "The access key may not create buckets."));
                }
            }
            (_, Some(name)) => {
                let bucket = match cx.s3_path() {
                    S3Path::Object { .. } => self.bucket_if_there(name).await?,
                    S3Path::Bucket { .. } | S3Path::Root => self.bucket_now(name).await?,
                };
                if !caller.may(need, name, bucket.as_deref()) {
                    return Err(s3_error!(AccessDenied, "The access key may not do that with this bucket."));
                }
                let Some(bucket) = bucket else { return Err(crate::service::no_such_bucket()) };
                check_owner(cx.headers(), "x-amz-expected-bucket-owner", &bucket)?;
                cx.extensions_mut().insert(bucket);
            }
            (_, None) => return Err(s3_error!(AccessDenied, "The access key may not do that.")),
        }
        cx.extensions_mut().insert(caller);
        Ok(())
    }

    async fn copy_object(&self, req: &mut S3Request<CopyObjectInput>) -> S3Result<()> {
        self.check_source(&req.input.copy_source, &req.headers, &req.extensions).await
    }

    async fn upload_part_copy(&self, req: &mut S3Request<UploadPartCopyInput>) -> S3Result<()> {
        self.check_source(&req.input.copy_source, &req.headers, &req.extensions).await
    }
}

impl<S: ObjectStore> Service<S> {
    /// Who copies must be allowed to read what they copy.
    async fn check_source(
        &self,
        source: &CopySource,
        headers: &HeaderMap,
        extensions: &http::Extensions,
    ) -> S3Result<()> {
        let CopySource::Bucket { bucket: name, .. } = source else {
            return Err(crate::errors::not_here("Copying from an access point"));
        };
        let caller = extensions.get::<Caller>().ok_or_else(|| s3_error!(AccessDenied))?;
        let bucket = self.bucket_if_there(name).await?;
        if !caller.may(Need::Read, name, bucket.as_deref()) {
            return Err(s3_error!(AccessDenied, "The access key may not read the source of the copy."));
        }
        let Some(bucket) = bucket else { return Err(crate::service::no_such_bucket()) };
        check_owner(headers, "x-amz-source-expected-bucket-owner", &bucket)
    }
}

fn check_owner(headers: &HeaderMap, header: &str, bucket: &Bucket) -> S3Result<()> {
    match headers.get(header) {
        Some(expected) if expected.as_bytes() != bucket.record.owner.as_bytes() => {
            Err(s3_error!(AccessDenied, "The bucket belongs to somebody else than was expected."))
        }
        _ => Ok(()),
    }
}

/// Headers with a meaning for S3 count only when they are signed: otherwise who has a signed request could add, say, the
/// source of a copy to it.
fn check_signed_headers(headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
    let in_query = uri.query().unwrap_or_default().split('&').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        (name == "X-Amz-SignedHeaders").then(|| url_decoded(value, true))?
    });
    let is_presigned = in_query.is_some();
    let in_header = || {
        let authorization = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
        let (_, rest) = authorization.split_once("SignedHeaders=")?;
        Some(rest.split([',', ' ']).next().unwrap_or_default().to_owned())
    };
    let Some(signed) = in_query.or_else(in_header) else {
        return Err(s3_error!(AccessDenied, "The request does not say which of its headers are signed."));
    };
    let is_signed = |name: &str| signed.split(';').any(|signed| signed == name);
    let must_be_signed = |name: &str| {
        // The sum of the body of a presigned request is compared with the body, and cannot be known before.
        name == "host" || (name.starts_with("x-amz-") && !(is_presigned && name == "x-amz-content-sha256"))
    };
    match headers.keys().map(http::HeaderName::as_str).find(|name| must_be_signed(name) && !is_signed(name)) {
        Some(name) => Err(s3_error!(
            AccessDenied,
            "There were headers present in the request which were not signed: {name}."
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_protocol_count_only_when_signed() {
        let mut headers = HeaderMap::new();
        headers.insert("host", "h".parse().unwrap());
        headers.insert("x-amz-date", "d".parse().unwrap());
        headers.insert("range", "r".parse().unwrap());
        let signed = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=0";
        headers.insert("authorization", signed.parse().unwrap());
        let plain = Uri::from_static("/b/k");
        assert!(check_signed_headers(&headers, &plain).is_ok());
        headers.insert("x-amz-copy-source", "/b/other".parse().unwrap());
        assert!(check_signed_headers(&headers, &plain).is_err());

        let mut headers = HeaderMap::new();
        headers.insert("host", "h".parse().unwrap());
        headers.insert("x-amz-content-sha256", "s".parse().unwrap());
        let presigned = Uri::from_static("/b/k?X-Amz-SignedHeaders=content-type%3Bhost&X-Amz-Signature=0");
        assert!(check_signed_headers(&headers, &presigned).is_ok());
        headers.insert("x-amz-copy-source", "/b/other".parse().unwrap());
        assert!(check_signed_headers(&headers, &presigned).is_err());
        assert!(check_signed_headers(&headers, &plain).is_err());
    }
}
