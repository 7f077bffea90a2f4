//! How connections to other nodes are made: over TCP, or over what a test or an embedding program has instead.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use tonic::transport::{Channel, Endpoint};

/// Makes channels.
pub trait Connect: fmt::Debug + Send + Sync + 'static {
    /// A channel that connects when it is used, and again when the connection broke.
    fn channel(&self, endpoint: &Endpoint) -> Channel;

    /// A channel that is connected.
    fn connect<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> BoxFuture<'a, Result<Channel, tonic::transport::Error>>;
}

/// Channels over TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnect;

impl Connect for TcpConnect {
    fn channel(&self, endpoint: &Endpoint) -> Channel {
        endpoint.connect_lazy()
    }

    fn connect<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> BoxFuture<'a, Result<Channel, tonic::transport::Error>> {
        Box::pin(endpoint.connect())
    }
}

/// One channel for each address, for all who want one.
#[derive(Debug)]
pub struct Channels {
    connect: Arc<dyn Connect>,
    kept: Mutex<BTreeMap<String, Channel>>,
}

impl Channels {
    /// Channels that are made like this.
    #[must_use]
    pub fn new(connect: Arc<dyn Connect>) -> Self {
        Self { connect, kept: Mutex::default() }
    }

    /// The channel to an address, which connects when it is used, and again when the connection broke.
    pub(crate) fn to(
        &self,
        address: &str,
        settings: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<Channel, String> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = kept.get(address) {
            return Ok(channel.clone());
        }
        let endpoint =
            Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
        let channel = self.connect.channel(&settings(endpoint));
        kept.insert(address.into(), channel.clone());
        Ok(channel)
    }
}

impl Default for Channels {
    fn default() -> Self {
        Self::new(Arc::new(TcpConnect))
    }
}
