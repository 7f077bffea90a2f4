//! Who may call a service of the peer listener: whoever shows its token, where there is one.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Status};

/// What is shown with every call. Without a secret, nothing.
#[derive(Clone, Default)]
pub struct BearerToken(Option<MetadataValue<Ascii>>);

impl BearerToken {
    /// The token with this text; `None` where none is asked for, or where the text cannot be a header.
    #[must_use]
    pub fn new(text: Option<&str>) -> Self {
        Self(text.and_then(|text| format!("{SCHEME}{text}").parse().ok()))
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.0.as_ref()?.to_str().ok()?.strip_prefix(SCHEME)
    }

    /// A call that shows it.
    #[must_use]
    pub fn show<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(header) = &self.0 {
            request.metadata_mut().insert("authorization", header.clone());
        }
        request
    }

    /// Whether a call shows it.
    ///
    /// # Errors
    /// It does not. Nothing was done.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Status> {
        let Some(expected) = &self.0 else { return Ok(()) };
        let shown = headers.get(AUTHORIZATION).map(http::HeaderValue::as_bytes).unwrap_or_default();
        match is_same(shown, expected.as_bytes()) {
            true => Ok(()),
            false => Err(Status::unauthenticated("this cluster has a secret; see secret_file")),
        }
    }
}

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

/// Whether two texts are the same, in a time that does not tell how much of one is right.
fn is_same(shown: &[u8], expected: &[u8]) -> bool {
    let differences = shown.iter().zip(expected).fold(0, |all, (one, other)| all | (one ^ other));
    shown.len() == expected.len() && std::hint::black_box(differences) == 0
}

const SCHEME: &str = "Bearer ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_is_let_in() {
        let token = BearerToken::new(Some("0123"));
        for (shown, is_fine) in [
            ("Bearer 0123", true),
            ("Bearer 0124", false),
            ("Bearer 01234", false),
            ("0123", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, shown.parse().expect("a header"));
            assert_eq!(token.check(&headers).is_ok(), is_fine, "{shown}");
            assert!(
                BearerToken::default().check(&headers).is_ok(),
                "where there is no secret all are let in"
            );
        }
        assert!(token.check(&HeaderMap::new()).is_err());
        let call = token.show(());
        assert_eq!(
            call.metadata().get("authorization").map(MetadataValue::as_bytes),
            Some(&b"Bearer 0123"[..])
        );
        assert_eq!((token.text(), BearerToken::default().text()), (Some("0123"), None));
        assert!(!format!("{token:?}").contains("0123"), "it is not shown to those who read logs");
    }
}
