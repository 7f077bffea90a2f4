//! Which pages of other origins may use a bucket.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue,
    ORIGIN, VARY,
};
use http::{Method, Response, StatusCode};
use s3s::{S3Error, S3Result};

use crate::errors::custom;
use crate::records::CorsRecord;

/// Answers a browser that asks before it sends a request.
pub(crate) fn preflight(rules: &[CorsRecord], headers: &HeaderMap) -> S3Result<Response<s3s::Body>> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(origin) = text(ORIGIN) else {
        return Err(custom(
            "BadRequest",
            StatusCode::BAD_REQUEST,
            "Insufficient information. Origin request header needed.",
        ));
    };
    let Some(method) = text(ACCESS_CONTROL_REQUEST_METHOD) else {
        return Err(custom(
            "BadRequest",
            StatusCode::BAD_REQUEST,
            "Invalid Access-Control-Request-Method: null",
        ));
    };
    if rules.is_empty() {
        return Err(forbidden("CORSResponse: CORS is not enabled for this bucket."));
    }
    let asked: Vec<String> = text(ACCESS_CONTROL_REQUEST_HEADERS)
        .unwrap_or_default()
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect();
    let allows_headers = |rule: &CorsRecord| {
        let allows =
            |name: &String| rule.headers.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name));
        asked.iter().all(allows)
    };
    let rule = rules.iter().find(|rule| allows_request(rule, origin, method) && allows_headers(rule));
    let Some(rule) = rule else {
        return Err(forbidden("CORSResponse: This CORS request is not allowed."));
    };
    let mut response = Response::new(s3s::Body::empty());
    tell(rule, origin, response.headers_mut());
    put(response.headers_mut(), ACCESS_CONTROL_ALLOW_HEADERS, &asked.join(", "));
    if let Some(seconds) = rule.max_age_seconds {
        put(response.headers_mut(), ACCESS_CONTROL_MAX_AGE, &seconds.to_string());
    }
    Ok(response)
}

/// Tells a browser in the headers of an answer that a page of another origin may read it, if it may.
pub(crate) fn allow(rules: &[CorsRecord], origin: &HeaderValue, method: &Method, headers: &mut HeaderMap) {
    let Ok(origin) = origin.to_str() else { return };
    if let Some(rule) = rules.iter().find(|rule| allows_request(rule, origin, method.as_str())) {
        tell(rule, origin, headers);
    }
}

fn allows_request(rule: &CorsRecord, origin: &str, method: &str) -> bool {
    rule.methods.iter().any(|allowed| allowed == method)
        && rule.origins.iter().any(|pattern| matches(pattern, origin))
}

fn tell(rule: &CorsRecord, origin: &str, headers: &mut HeaderMap) {
    if rule.origins.iter().any(|pattern| pattern == "*") {
        put(headers, ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    } else {
        put(headers, ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        put(headers, ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
    }
    put(headers, ACCESS_CONTROL_ALLOW_METHODS, &rule.methods.join(", "));
    put(headers, ACCESS_CONTROL_EXPOSE_HEADERS, &rule.exposed.join(", "));
    put(headers, VARY, "Origin, Access-Control-Request-Headers, Access-Control-Request-Method");
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value)
        && !value.is_empty()
    {
        headers.insert(name, value);
    }
}

/// Whether a text is what a pattern says, in which one `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, end)) => {
            text.len() >= start.len() + end.len() && text.starts_with(start) && text.ends_with(end)
        }
    }
}

fn forbidden(message: &str) -> S3Error {
    custom("AccessForbidden", StatusCode::FORBIDDEN, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_star_stands_for_anything() {
        for (pattern, text, expected) in [
            ("*", "http://a", true),
            ("http://*.example.com", "http://x.example.com", true),
            ("http://*.example.com", "http://example.com", false),
            ("http://a", "http://a", true),
            ("http://a", "http://ab", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
