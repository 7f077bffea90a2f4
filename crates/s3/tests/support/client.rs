//! A small client of S3: it signs by itself, so that a gateway is not tested with its own library.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::digest::{hex, hmac, sha256};

/// A request as it is built.
#[derive(Clone)]
pub struct Call {
    pub method: String,
    /// Not encoded.
    pub path: String,
    pub query: Vec<(String, String)>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub id: String,
    pub secret: String,
    /// Seconds to add to the clock.
    pub skew: i64,
    pub host: Option<String>,
    pub address: SocketAddr,
    /// How the payload is told in the signature; its SHA-256 if `None`.
    pub payload: Option<String>,
    pub region: String,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The text of the first element of that name.
    pub fn element(&self, name: &str) -> String {
        self.elements(name).into_iter().next().unwrap_or_default()
    }

    /// The texts of all elements of that name, in their order.
    pub fn elements(&self, name: &str) -> Vec<String> {
        let text = self.text();
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let mut found = Vec::new();
        let mut rest = text.as_str();
        while let Some((_, after)) = rest.split_once(&open) {
            let (inside, after) = after.split_once(&close).unwrap_or((after, ""));
            found.push(unescape(inside));
            rest = after;
        }
        found
    }

    /// Status and code of an error, or status and nothing.
    pub fn outcome(&self) -> (u16, String) {
        (self.status, self.element("Code"))
    }
}

impl Call {
    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_lowercase(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    pub fn with_key(mut self, id: &str, secret: &str) -> Self {
        (self.id, self.secret) = (id.to_owned(), secret.to_owned());
        self
    }

    pub fn host_name(&self) -> String {
        self.host.clone().unwrap_or_else(|| self.address.to_string())
    }

    fn canonical_query(&self) -> String {
        let mut pairs: Vec<_> =
            self.query.iter().map(|(name, value)| (uri(name, true), uri(value, true))).collect();
        pairs.sort();
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
    }

    /// Signs in the headers. Answers the signature, which chunks go on from, and the time.
    pub fn sign(&mut self) -> (String, String) {
        let time = amz_time(self.skew);
        let payload = self.payload.clone().unwrap_or_else(|| hex(&sha256(&self.body)));
        self.headers.push(("x-amz-date".into(), time.clone()));
        self.headers.push(("x-amz-content-sha256".into(), payload.clone()));
        let mut signed = self.headers.clone();
        signed.push(("host".into(), self.host_name()));
        signed.sort();
        let names = signed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");
        let lines: String = signed.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let request = format!(
            "{}\n{}\n{}\n{lines}\n{names}\n{payload}",
            self.method,
            uri(&self.path, false),
            self.canonical_query()
        );
        let scope = format!("{}/{}/s3/aws4_request", &time[..8], self.region);
        let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&sha256(request.as_bytes())));
        let signature = hex(&hmac(&self.signing_key(&time), to_sign.as_bytes()));
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.id
        );
        self.headers.push(("authorization".into(), value));
        (signature, time)
    }

    /// Signs in the query.
    pub fn presign(mut self, expires: u64) -> Self {
        let time = amz_time(self.skew);
        let scope = format!("{}/{}/s3/aws4_request", &time[..8], self.region);
        let mut signed = self.headers.clone();
        signed.push(("host".into(), self.host_name()));
        signed.sort();
        let names = signed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");
        let lines: String = signed.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        for (name, value) in [
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256".to_owned()),
            ("X-Amz-Credential", format!("{}/{scope}", self.id)),
            ("X-Amz-Date", time.clone()),
            ("X-Amz-Expires", expires.to_string()),
            ("X-Amz-SignedHeaders", names.clone()),
        ] {
            self.query.push((name.to_owned(), value));
        }
        let request = format!(
            "{}\n{}\n{}\n{lines}\n{names}\nUNSIGNED-PAYLOAD",
            self.method,
            uri(&self.path, false),
            self.canonical_query()
        );
        let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&sha256(request.as_bytes())));
        let signature = hex(&hmac(&self.signing_key(&time), to_sign.as_bytes()));
        self.query.push(("X-Amz-Signature".into(), signature));
        self
    }

    pub fn signing_key(&self, time: &str) -> [u8; 32] {
        let date = hmac(format!("AWS4{}", self.secret).as_bytes(), &time.as_bytes()[..8]);
        let region = hmac(&date, self.region.as_bytes());
        hmac(&hmac(&region, b"s3"), b"aws4_request")
    }

    /// Signs and sends.
    pub async fn send(mut self) -> Answer {
        self.sign();
        self.send_unsigned().await
    }

    /// Sends as it is.
    pub async fn send_unsigned(self) -> Answer {
        let bytes = self.bytes();
        exchange(self.address, &bytes, self.method == "HEAD").await
    }

    /// The bytes of the request.
    pub fn bytes(&self) -> Vec<u8> {
        let mut query = self.canonical_query();
        if !query.is_empty() {
            query.insert(0, '?');
        }
        let mut text = format!(
            "{} {}{query} HTTP/1.1\r\nhost: {}\r\n",
            self.method,
            uri(&self.path, false),
            self.host_name()
        );
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let has_length = self.headers.iter().any(|(name, _)| name == "content-length");
        if !has_length && (!self.body.is_empty() || matches!(self.method.as_str(), "PUT" | "POST")) {
            text.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        text.push_str("connection: close\r\n\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// Sends bytes over a connection of their own and reads what comes back.
pub async fn exchange(address: SocketAddr, request: &[u8], is_head: bool) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A gateway may answer and close before it has read everything.
    drop(stream.write_all(request).await);
    let mut bytes = Vec::new();
    let reading = async { while let Ok(1..) = stream.read_buf(&mut bytes).await {} };
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("an answer comes");
    parse(&bytes, is_head)
}

fn parse(bytes: &[u8], is_head: bool) -> Answer {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("an answer has headers: {:?}", String::from_utf8_lossy(bytes)));
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.lines();
    let status: u16 = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    if status == 100 {
        return parse(&bytes[end + 4..], is_head);
    }
    let headers: BTreeMap<_, _> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let mut body = bytes[end + 4..].to_vec();
    if headers.get("transfer-encoding").is_some_and(|value| value == "chunked") {
        body = dechunked(&body);
    } else if let Some(length) = headers.get("content-length").filter(|_| !is_head && status != 304) {
        let length: usize = length.parse().unwrap();
        assert!(body.len() <= length, "an answer has no more bytes than it says");
    }
    Answer { status, headers, body }
}

fn dechunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 4 + size..];
    }
    body
}

/// A text in the form of a URI.
pub fn uri(text: &str, slash_too: bool) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            b'/' if !slash_too => "/".to_owned(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// A time as signatures have it.
pub fn amz_time(skew: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + skew;
    let (year, month, day) = civil(now.div_euclid(86_400));
    let second = now.rem_euclid(86_400);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// The date of a day after 1970-01-01.
fn civil(day: i64) -> (i64, i64, i64) {
    let (mut year, mut left) = (1970, day);
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    while left >= 365 + i64::from(is_leap(year)) {
        left -= 365 + i64::from(is_leap(year));
        year += 1;
    }
    let months = [31, 28 + i64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= months[month] {
        left -= months[month];
        month += 1;
    }
    (year, month as i64 + 1, left + 1)
}

fn unescape(text: &str) -> String {
    let pairs =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&#34;", "\""), ("&amp;", "&")];
    pairs.iter().fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}
