//! A small S3 client: what the benchmark, the tour and the tests of this project speak to a gateway with.
//!
//! It signs every request (version 4, the body unsigned), keeps connections open, and understands nothing: an answer is a
//! status, headers and bytes. Applications have better clients in every language.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use sha2::{Digest as _, Sha256};

/// A client of one endpoint, with one access key.
pub struct S3Client {
    http: Client<HttpConnector, Full<Bytes>>,
    host: String,
    access_key_id: String,
    secret: String,
    region: String,
    /// The key that signs on one day, which takes four hashes to make.
    day_key: Mutex<Option<(String, [u8; 32])>>,
}

/// What a gateway answered.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Reply {
    /// A header as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The `ETag`, without its quotes.
    #[must_use]
    pub fn etag(&self) -> Option<&str> {
        Some(self.header("etag")?.trim_matches('"'))
    }

    /// The text of the body, for errors and small answers.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A request got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{host}: {reason}")]
pub struct ClientError {
    /// Who was asked.
    pub host: String,
    /// What went wrong.
    pub reason: String,
}

impl S3Client {
    /// A client of `endpoint`, `http://host:port`.
    #[must_use]
    pub fn new(endpoint: &str, access_key_id: &str, secret: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(usize::MAX)
            .build(connector);
        Self {
            http,
            host: endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned(),
            access_key_id: access_key_id.to_owned(),
            secret: secret.to_owned(),
            region: "us-east-1".to_owned(),
            day_key: Mutex::new(None),
        }
    }

    /// Signs for another region than `us-east-1`.
    #[must_use]
    pub fn with_region(mut self, region: &str) -> Self {
        region.clone_into(&mut self.region);
        self
    }

    /// Puts an object.
    ///
    /// # Errors
    /// No answer came.
    pub async fn put(
        &self,
        bucket: &str,
        key: &str,
        body: Bytes,
        headers: &[(&str, &str)],
    ) -> Result<Reply, ClientError> {
        self.call(Method::PUT, &object_path(bucket, key), &[], headers, body).await
    }

    /// Gets an object.
    ///
    /// # Errors
    /// No answer came.
    pub async fn get(&self, bucket: &str, key: &str) -> Result<Reply, ClientError> {
        self.call(Method::GET, &object_path(bucket, key), &[], &[], Bytes::new()).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// No answer came.
    pub async fn delete(
        &self,
        bucket: &str,
        key: &str,
        headers: &[(&str, &str)],
    ) -> Result<Reply, ClientError> {
        self.call(Method::DELETE, &object_path(bucket, key), &[], headers, Bytes::new()).await
    }

    /// Creates a bucket.
    ///
    /// # Errors
    /// No answer came.
    pub async fn create_bucket(&self, bucket: &str) -> Result<Reply, ClientError> {
        self.call(Method::PUT, &format!("/{bucket}"), &[], &[], Bytes::new()).await
    }

    /// Calls anything. `path` is encoded already, `query` is not.
    ///
    /// # Errors
    /// No answer came.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Reply, ClientError> {
        let response = self.send(method, path, query, headers, body).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| self.failed(&error))?.to_bytes();
        Ok(Reply { status: head.status, headers: head.headers, body })
    }

    /// Gets an object without keeping it: its status, and how many bytes came.
    ///
    /// # Errors
    /// No answer came, or it broke off.
    pub async fn count(&self, bucket: &str, key: &str) -> Result<(StatusCode, u64), ClientError> {
        let mut bytes = 0;
        let status = self.read(bucket, key, |piece| bytes += piece.len() as u64).await?;
        Ok((status, bytes))
    }

    /// Gets an object piece by piece, as it comes.
    ///
    /// # Errors
    /// No answer came, or it broke off.
    pub async fn read(
        &self,
        bucket: &str,
        key: &str,
        mut taken: impl FnMut(&[u8]),
    ) -> Result<StatusCode, ClientError> {
        let path = object_path(bucket, key);
        let response = self.send(Method::GET, &path, &[], &[], Bytes::new()).await?;
        let (head, mut body) = response.into_parts();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.failed(&error))?;
            frame.data_ref().into_iter().for_each(|piece| taken(piece));
        }
        Ok(head.status)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<http::Response<Incoming>, ClientError> {
        let query = canonical_query(query);
        let time = Timestamp::of(SystemTime::now());
        let mut signed = vec![
            ("host".to_owned(), self.host.clone()),
            ("x-amz-content-sha256".to_owned(), UNSIGNED.to_owned()),
            ("x-amz-date".to_owned(), time.full()),
        ];
        signed
            .extend(headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())));
        signed.sort();
        let names = signed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");
        let lines: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{UNSIGNED}");
        let scope = format!("{}/{}/s3/aws4_request", time.day, self.region);
        let hashed = hex(&Sha256::digest(canonical.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{hashed}", time.full());
        let signature = hex(&hmac(&self.key_of(&time.day), text.as_bytes()));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.access_key_id
        );
        let target = match query.is_empty() {
            true => format!("http://{}{path}", self.host),
            false => format!("http://{}{path}?{query}", self.host),
        };
        let has_body = matches!(method, Method::PUT | Method::POST);
        let mut request =
            Request::builder().method(method).uri(target).header("authorization", authorization);
        if has_body {
            // A body without bytes has a length too.
            request = request.header("content-length", body.len());
        }
        for (name, value) in signed {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| self.failed(&error))?;
        self.http.request(request).await.map_err(|error| self.failed(&error))
    }

    fn key_of(&self, day: &str) -> [u8; 32] {
        let mut known = self.day_key.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((known, key)) = known.as_ref()
            && known == day
        {
            return *key;
        }
        let mut key = hmac(format!("AWS4{}", self.secret).as_bytes(), day.as_bytes());
        for piece in [self.region.as_str(), "s3", "aws4_request"] {
            key = hmac(&key, piece.as_bytes());
        }
        *known = Some((day.to_owned(), key));
        key
    }

    fn failed(&self, error: &dyn std::error::Error) -> ClientError {
        let mut reason = error.to_string();
        let mut next = error.source();
        while let Some(cause) = next {
            reason = format!("{reason}: {cause}");
            next = cause.source();
        }
        ClientError { host: self.host.clone(), reason }
    }
}

impl fmt::Debug for S3Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Client")
            .field("host", &self.host)
            .field("key", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

/// The path of an object, encoded.
#[must_use]
pub fn object_path(bucket: &str, key: &str) -> String {
    format!("/{bucket}/{}", encode(key, true))
}

fn canonical_query(query: &[(&str, &str)]) -> String {
    let mut pairs: Vec<_> =
        query.iter().map(|(name, value)| (encode(name, false), encode(value, false))).collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

fn encode(text: &str, keeps_slash: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(byte.into()),
            b'/' if keeps_slash => encoded.push('/'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    // Keys of any length will do.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return [0; 32] };
    mac.update(text);
    mac.finalize().into_bytes().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A moment as signatures spell it.
struct Timestamp {
    day: String,
    time: String,
}

impl Timestamp {
    fn of(at: SystemTime) -> Self {
        let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let (days, rest) = (seconds / 86400, seconds % 86400);
        let (year, month, day) = civil(days);
        Self {
            day: format!("{year:04}{month:02}{day:02}"),
            time: format!("{:02}{:02}{:02}", rest / 3600, rest / 60 % 60, rest % 60),
        }
    }

    fn full(&self) -> String {
        format!("{}T{}Z", self.day, self.time)
    }
}

/// The date of a day since 1970, by eras of 400 years that begin in March.
const fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + if month <= 2 { 1 } else { 0 }, month, day)
}

const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        assert_eq!(
            [civil(0), civil(59), civil(11_016), civil(20_772)],
            [(1970, 1, 1), (1970, 3, 1), (2000, 2, 29), (2026, 11, 15)]
        );
    }

    #[test]
    fn keys_are_encoded_once() {
        assert_eq!(object_path("b", "a b/c+%ü"), "/b/a%20b/c%2B%25%C3%BC");
        assert_eq!(canonical_query(&[("prefix", "a/b"), ("list-type", "2")]), "list-type=2&prefix=a%2Fb");
    }
}
