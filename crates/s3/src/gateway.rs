//! The gateway as others start and stop it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::S3ServiceBuilder;
use synod_store::objects::contract::ObjectStore;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::counters::{Counted, GatewayCounters};
use crate::hosts::Domains;
use crate::server::{Front, serve};
use crate::service::Service;

/// How a gateway is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Where it listens. Port 0 is any that is free.
    pub listen: SocketAddr,
    /// Domains below which each bucket is a host, such as `localhost` for `bucket.localhost`. The bucket in the path works
    /// with and without them. Default: none.
    pub domains: Vec<String>,
    /// What clients are told of where their buckets are. Signatures for any region are taken. Default: `us-east-1`.
    pub region: String,
    /// Most connections at a time; others wait to be taken. More cost memory, about 128 KiB each while bodies pass.
    /// At least 1. Default: 1024.
    pub connections_max: usize,
    /// How long a client may take to begin a request and to send its headers. Default: 60 seconds.
    pub header_timeout: Duration,
    /// How long a client may send nothing while it sends a body. Default: 60 seconds.
    pub body_timeout: Duration,
    /// Largest document that a client may send: lists of keys, configurations. Default: 4 MiB.
    pub document_bytes_max: usize,
}

impl GatewayConfig {
    /// Everything as the defaults say.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            domains: Vec::new(),
            region: "us-east-1".to_owned(),
            connections_max: 1024,
            header_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(60),
            document_bytes_max: 4 << 20,
        }
    }

    fn check(&self) -> Result<(), GatewayError> {
        let invalid = |field, reason: &str| GatewayError::Config { field, reason: reason.to_owned() };
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if !is_label(&self.region) || self.region.len() > 64 {
            return Err(invalid("region", "it has 1 to 64 letters, digits and `-`"));
        }
        let is_domain = |domain: &String| domain.len() <= 253 && domain.split('.').all(is_label);
        if !self.domains.iter().all(is_domain) {
            return Err(invalid("domains", "a domain is letters, digits and `-`, with dots between them"));
        }
        if self.connections_max == 0 {
            return Err(invalid("connections_max", "nobody could connect"));
        }
        if self.header_timeout.is_zero() || self.body_timeout.is_zero() {
            return Err(invalid("header_timeout, body_timeout", "no client is that fast"));
        }
        if self.document_bytes_max < 1024 {
            return Err(invalid("document_bytes_max", "at least 1024 bytes"));
        }
        Ok(())
    }
}

/// A running gateway. Dropped, it stops at once.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    counted: Arc<Counted>,
    stop: watch::Sender<Option<Duration>>,
    server: JoinHandle<()>,
}

impl Gateway {
    /// Begins to listen and to serve.
    ///
    /// # Errors
    /// The configuration says something impossible, or the address cannot be listened on.
    pub async fn start<S: ObjectStore>(store: S, config: GatewayConfig) -> Result<Self, GatewayError> {
        config.check()?;
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|source| GatewayError::Listen { address: config.listen, reason: source.to_string() })?;
        let address = listener
            .local_addr()
            .map_err(|source| GatewayError::Listen { address: config.listen, reason: source.to_string() })?;
        let counted = Arc::new(Counted::new());
        let service = Service::new(store, config.region.clone());
        let domains = Domains::new(&config.domains);
        let mut builder = S3ServiceBuilder::new(service.clone());
        builder.set_auth(service.clone());
        builder.set_access(service.clone());
        builder.set_host(domains.clone());
        let mut limits = S3Config::default();
        limits.xml_max_body_size = config.document_bytes_max;
        // Forms are refused before they get there, and would be kept in memory.
        (limits.post_object_max_file_size, limits.form_max_fields_size, limits.form_max_parts) = (0, 0, 0);
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(limits))));
        let front = Front::new(builder.build(), service, domains, Arc::clone(&counted), config);
        let (stop, stopped) = watch::channel(None);
        let server = tokio::spawn(serve(listener, Arc::new(front), stopped));
        Ok(Self { address, counted, stop, server })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> GatewayCounters {
        self.counted.shown()
    }

    /// Takes no new connections, lets the requests that are under way come to their end for so long, and ends the others.
    pub async fn shutdown(self, patience: Duration) {
        self.stop.send_replace(Some(patience));
        if let Err(error) = self.server.await {
            tracing::error!(%error, "the gateway did not end well");
        }
    }
}

/// A gateway cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// The configuration says something impossible.
    #[error("`{field}` of the gateway: {reason}")]
    Config {
        /// Which field.
        field: &'static str,
        /// Why.
        reason: String,
    },
    /// The address cannot be listened on.
    #[error("the gateway cannot listen on {address}: {reason}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
}
