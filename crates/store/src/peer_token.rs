//! Who may speak to a node as a peer: whoever knows the secret of the cluster.
//!
//! Every call of a peer shows a token that is derived from the secret and from the identity of the cluster. A cluster without
//! a secret listens on the loopback interface only, and asks for none.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use synod_core::slots::ClusterId;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Status};

use crate::admin::{is_same, token};
use crate::config::ClusterSecret;

/// What peers show each other. Without a secret, nothing.
#[derive(Clone, Default)]
pub(crate) struct PeerToken(Option<MetadataValue<Ascii>>);

impl PeerToken {
    /// The token of the peers of a cluster.
    pub(crate) fn of(secret: Option<&ClusterSecret>, cluster: ClusterId) -> Self {
        let header = secret.map(|secret| format!("Bearer {}", token(secret, &format!("peer {cluster}"))));
        // Hexadecimal digits can be a header.
        Self(header.and_then(|header| header.parse().ok()))
    }

    /// The token itself.
    pub(crate) fn text(&self) -> Option<String> {
        let header = self.0.as_ref()?.to_str().ok()?;
        header.strip_prefix("Bearer ").map(ToOwned::to_owned)
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
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Status> {
        let Some(expected) = &self.0 else { return Ok(()) };
        let shown = headers.get(AUTHORIZATION).map(http::HeaderValue::as_bytes).unwrap_or_default();
        match is_same(shown, expected.as_bytes()) {
            true => Ok(()),
            false => Err(Status::unauthenticated("peers of this cluster know its secret; see secret_file")),
        }
    }
}

impl std::fmt::Debug for PeerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerToken(..)")
    }
}
