//! Who may speak to a queue: whoever knows the secret of its cluster, where there is one.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Status};

/// What is shown with every call. Without a secret, nothing.
#[derive(Clone, Default)]
pub struct Token(Option<MetadataValue<Ascii>>);

impl Token {
    /// The token with this text; `None` where none is asked for, or where the text cannot be a header.
    #[must_use]
    pub fn bearer(text: Option<&str>) -> Self {
        Self(text.and_then(|text| format!("Bearer {text}").parse().ok()))
    }

    /// The header that shows it.
    pub(crate) fn header(&self) -> Option<MetadataValue<Ascii>> {
        self.0.clone()
    }

    /// A call that shows it.
    pub(crate) fn show<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(header) = &self.0 {
            request.metadata_mut().insert("authorization", header.clone());
        }
        request
    }

    /// Whether a call shows it.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Status> {
        let Some(expected) = &self.0 else { return Ok(()) };
        let shown = headers.get(AUTHORIZATION).map(http::HeaderValue::as_bytes).unwrap_or_default();
        match is_same(shown, expected.as_bytes()) {
            true => Ok(()),
            false => Err(Status::unauthenticated("this cluster has a secret; see secret_file")),
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Whether two texts are the same, in a time that does not tell how much of them is.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_is_let_in() {
        let token = Token::bearer(Some("0123"));
        for (shown, is_fine) in [("Bearer 0123", true), ("Bearer 0124", false), ("0123", false), ("", false)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, shown.parse().expect("header"));
            assert_eq!(token.check(&headers).is_ok(), is_fine, "{shown}");
            assert!(Token::default().check(&headers).is_ok());
        }
        assert!(token.check(&HeaderMap::new()).is_err());
        assert_eq!(
            token.show(()).metadata().get("authorization").map(MetadataValue::as_bytes),
            Some(&b"Bearer 0123"[..])
        );
    }
}
