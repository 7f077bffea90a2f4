//! Who may change things over the api: whoever knows the secret of the cluster.
//!
//! A cluster with a secret can be reached by others, so what changes it or tells its keys asks for a token that is derived
//! from the secret. A cluster without one listens on the loopback interface only, where everybody is at home.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Json, Response};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::StatusCode;
use http::header::WWW_AUTHENTICATE;
use sha2::Sha256;
use synod_cluster::remote::BearerToken;
use synod_core::slots::ClusterId;

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
}

/// What the peers of a cluster show each other.
pub(crate) fn peer_token(secret: &ClusterSecret, cluster: ClusterId) -> String {
    token(secret, &format!("peer {cluster}"))
}

/// What whoever knows a secret can say, and nobody else. Each purpose has its own.
fn token(secret: &ClusterSecret, purpose: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.bytes()).expect("a key of any length will do");
    mac.update(format!("synod {purpose} token v1").as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken(..)")
    }
}

/// Lets a request pass that shows the token, if there is one.
pub(crate) async fn check(State(token): State<Option<AdminToken>>, request: Request, next: Next) -> Response {
    let token = BearerToken::new(token.as_ref().map(AdminToken::text));
    match token.check(request.headers()) {
        Err(_) => {
            let said = "this needs the secret of the cluster; name its file with --secret-file";
            let body = Json(serde_json::json!({ "error": said }));
            (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], body).into_response()
        }
        Ok(()) => next.run(request).await,
    }
}
