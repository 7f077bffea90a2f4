//! Which bucket a request means by its host: `bucket.domain`, beside `/bucket` in the path.

use std::net::IpAddr;

use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

/// The domains of a gateway, in lower case and without ports.
#[derive(Clone, Debug)]
pub(crate) struct Domains(Vec<String>);

impl Domains {
    pub(crate) fn new(domains: &[String]) -> Self {
        Self(domains.iter().map(|domain| bare(domain).to_ascii_lowercase()).collect())
    }

    /// The bucket in a `Host` header. A host that is none of the domains names none: whoever comes by an address or by a
    /// name that nobody told us has the bucket in the path.
    pub(crate) fn bucket(&self, host: &str) -> Option<String> {
        let host = bare(host).to_ascii_lowercase();
        if host.parse::<IpAddr>().is_ok() {
            return None;
        }
        let below = |domain: &String| Some(host.strip_suffix(domain)?.strip_suffix('.')?.to_owned());
        self.0.iter().find_map(below).filter(|bucket| !bucket.is_empty())
    }

    /// The bucket that a request means, by its host or by its path.
    pub(crate) fn bucket_of(&self, host: Option<&str>, path: &str) -> Option<String> {
        if let Some(bucket) = host.and_then(|host| self.bucket(host)) {
            return Some(bucket);
        }
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        crate::text::url_decoded(first, false).filter(|bucket| !bucket.is_empty())
    }
}

impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let virtual_host = VirtualHost::new(host);
        Ok(match self.bucket(host) {
            Some(bucket) => virtual_host.with_bucket(bucket),
            None => virtual_host,
        })
    }
}

/// A host without its port.
fn bare(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_found_in_the_host_or_in_the_path() {
        let domains = Domains::new(&["localhost".to_owned(), "s3.example.com:8080".to_owned()]);
        for (host, path, bucket) in [
            ("localhost:9000", "/photos/a", Some("photos")),
            ("photos.localhost", "/a/b", Some("photos")),
            ("Photos.S3.Example.com:8080", "/a", Some("photos")),
            ("a.b.s3.example.com", "/", Some("a.b")),
            ("127.0.0.1:9000", "/photos", Some("photos")),
            ("[::1]:9000", "/photos", Some("photos")),
            ("elsewhere.org", "/photos/a", Some("photos")),
            ("notlocalhost", "/photos", Some("photos")),
            ("localhost", "/", None),
        ] {
            assert_eq!(domains.bucket_of(Some(host), path).as_deref(), bucket, "{host}{path}");
        }
    }
}
