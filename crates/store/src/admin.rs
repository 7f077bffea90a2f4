//! Who may change things over the api: whoever knows the secret of the cluster.
//!
//! A cluster with a secret can be reached by others, so what changes it or tells its keys asks for a token that is derived
//! from the secret. A cluster without one listens on the loopback interface only, where everybody is at home.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Json, Response};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::StatusCode;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use sha2::Sha256;

use crate::config::ClusterSecret;

/// What an operator shows to a node.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(String);

impl AdminToken {
    /// The token of the clusters with this secret.
    #[must_use]
    pub fn of(secret: &ClusterSecret) -> Self {
        Self(token(secret, "admin"))
    }

    /// The value of the `Authorization` header.
    #[must_use]
    pub fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// The token itself.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    fn is_shown(&self, header: &[u8]) -> bool {
        is_same(header, self.header().as_bytes())
    }
}

/// What whoever knows a secret can say, and nobody else. Each purpose has its own.
pub(crate) fn token(secret: &ClusterSecret, purpose: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.bytes()).expect("a key of any length will do");
    mac.update(format!("synod {purpose} token v1").as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether two are the same, in a time that does not tell how much of one is right.
pub(crate) fn is_same(shown: &[u8], expected: &[u8]) -> bool {
    let differences = shown.iter().zip(expected).fold(0, |all, (one, other)| all | (one ^ other));
    shown.len() == expected.len() && differences == 0
}

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken(..)")
    }
}

/// Lets a request pass that shows the token, if there is one.
pub(crate) async fn check(State(token): State<Option<AdminToken>>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(AUTHORIZATION).map(http::HeaderValue::as_bytes);
    match token {
        Some(token) if !shown.is_some_and(|header| token.is_shown(header)) => {
            let said = "this needs the secret of the cluster; name its file with --secret-file";
            let body = Json(serde_json::json!({ "error": said }));
            (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], body).into_response()
        }
        _ => next.run(request).await,
    }
}
