//! Further gRPC services on the listener of remoting.
//!
//! Nodes have one listener for each other. What does not travel as messages between actors, the slot registry for one, is
//! a service of its own beside `remote.Remoting`, on the same connections, address and bounds.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use tonic::body::Body;

use super::Inner;
use crate::lock;

/// A gRPC service that a node serves to its peers.
pub trait PeerService: Send + Sync + 'static {
    /// The full name of the service, as in the path of its calls: `package.Service`.
    fn name(&self) -> &str;

    /// Answers one call. What it takes in is for the service to bound.
    fn call(&self, request: Request<Body>) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
}

impl Inner {
    /// The service that the path of a call names.
    pub(super) fn service_for(&self, path: &str) -> Option<Arc<dyn PeerService>> {
        let (name, _method) = path.strip_prefix('/')?.rsplit_once('/')?;
        lock(&self.services).iter().find(|service| service.name() == name).cloned()
    }
}
