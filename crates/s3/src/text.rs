//! How things are written down: hexadecimal, `ETag`s, times, and keys in listings.

use std::time::{Duration, UNIX_EPOCH};

use s3s::dto::{ETag, Timestamp};

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
        text.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
    }
    text
}

/// An `ETag` as the protocol has it.
pub(crate) fn etag(value: &str) -> ETag {
    ETag::Strong(value.to_owned())
}

/// A time as the protocol has it.
pub(crate) fn timestamp(ms: u64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_millis(ms.min(TIME_MS_MAX)))
}

/// A time in milliseconds of the wall clock; times before 1970 are 1970.
pub(crate) fn milliseconds(time: &Timestamp) -> u64 {
    let mut text = Vec::new();
    if time.format(s3s::dto::TimestampFormat::EpochSeconds, &mut text).is_err() {
        return 0;
    }
    let seconds: f64 = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    // A negative or absurd number of seconds saturates.
    (seconds * 1000.0) as u64
}

/// A text in which only what is safe everywhere stands for itself.
pub(crate) fn url_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            _ => {
                encoded.push('%');
                encoded.push(char::from(b"0123456789ABCDEF"[usize::from(byte >> 4)]));
                encoded.push(char::from(b"0123456789ABCDEF"[usize::from(byte & 15)]));
            }
        }
    }
    encoded
}

/// Reads such a text back. `None` when it is none.
pub(crate) fn url_decoded(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            b'+' if plus_is_space => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The last moment that a time of the protocol can name: the end of the year 9999.
const TIME_MS_MAX: u64 = 253_402_300_799_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_encoded_and_read_back() {
        for text in ["plain/key-1_2.3~4", "a b+c", "\u{e9}\u{1}%", ""] {
            assert_eq!(url_decoded(&url_encoded(text), false).as_deref(), Some(text));
        }
        assert_eq!(url_encoded("a b+c"), "a%20b%2Bc");
        assert_eq!(url_decoded("a+b", true).as_deref(), Some("a b"));
        for broken in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(url_decoded(broken, false), None, "{broken}");
        }
    }

    #[test]
    fn times_are_read_back() {
        for ms in [0, 1_700_000_000_123, 253_402_300_799_000] {
            assert_eq!(milliseconds(&timestamp(ms)) / 1000, ms / 1000);
        }
    }
}
