//! The endpoint at which a node says that it is there.
//!
//! One route, `GET /_health`, over HTTP/1.1. Go peers take a single answer that fails or comes late for a departure, so
//! the server does nothing but answer, holds only so many connections, and lets none of them linger: whoever opens one
//! and does not ask is cut off.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::config::{AutomanagedConfigError, check_count, check_duration};
use super::health::HealthReport;
use crate::http_server::{HttpBounds, HttpServer};

/// Bounds of a [`HealthServer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthServerConfig {
    /// Most connections at a time. Beyond it newcomers wait until one ends. 1 to 10 000. Default 256.
    pub connections_max: usize,
    /// How long a connection may stay without a complete request: the first, and each after an answer. Shorter frees
    /// connections sooner; longer than the peers' refresh interval lets them keep theirs. 10 ms to 1 h. Default 15 s.
    pub request_timeout: Duration,
}

impl Default for HealthServerConfig {
    fn default() -> Self {
        Self { connections_max: 256, request_timeout: Duration::from_secs(15) }
    }
}

impl HealthServerConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), AutomanagedConfigError> {
        check_count("server.connections_max", self.connections_max, 10_000)?;
        check_duration("server.request_timeout", self.request_timeout)
    }
}

/// A server that answers `/_health` until it is stopped. Dropping it cuts all connections.
pub struct HealthServer {
    server: HttpServer,
    counters: Arc<HealthServerCounters>,
}

/// What a server did, counted from its start.
#[derive(Debug, Default)]
pub struct HealthServerCounters {
    answers: AtomicU64,
    waits: Arc<AtomicU64>,
}

impl HealthServerCounters {
    /// Reports given.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// How often all connections were in use.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

impl HealthServer {
    /// Takes the address `listen`. Nothing is answered before [`start`](Self::start).
    ///
    /// # Errors
    /// The address is taken or is not this machine's.
    pub async fn bind(listen: SocketAddr) -> Result<TcpListener, HealthServerError> {
        TcpListener::bind(listen).await.map_err(|error| HealthServerError::bind(listen, &error))
    }

    /// Answers on `listener` with the newest of `reports`.
    ///
    /// # Errors
    /// A bound out of range, or a listener that does not know its address.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(
        listener: TcpListener,
        reports: watch::Receiver<HealthReport>,
        config: HealthServerConfig,
    ) -> Result<Self, HealthServerError> {
        config.validate()?;
        let counters: Arc<HealthServerCounters> = Arc::default();
        let answer = Answer { reports, counters: Arc::clone(&counters) };
        let router = Router::new().route(HEALTH_PATH, get(health)).with_state(answer);
        let HealthServerConfig { connections_max, request_timeout } = config;
        let bounds = HttpBounds { connections_max, request_timeout };
        let server = HttpServer::start(listener, router, bounds, Arc::clone(&counters.waits))
            .map_err(|error| HealthServerError::Listener(error.to_string()))?;
        Ok(Self { server, counters })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// What it did.
    #[must_use]
    pub const fn counters(&self) -> &Arc<HealthServerCounters> {
        &self.counters
    }

    /// Frees the address, lets the answers that are on their way go out, and waits until every connection has ended.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}

impl fmt::Debug for HealthServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthServer").field("address", &self.address()).finish_non_exhaustive()
    }
}

/// The health endpoint could not be opened. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HealthServerError {
    /// Another process has the address.
    #[error("the health address {address} is in use; nothing was started")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be used here.
    #[error("the health address {address} cannot be used ({reason}); nothing was started")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        reason: String,
    },
    /// A bound is out of range.
    #[error(transparent)]
    Config(#[from] AutomanagedConfigError),
    /// The listener is broken.
    #[error("the health listener does not know its address ({0}); nothing was started")]
    Listener(String),
}

impl HealthServerError {
    fn bind(address: SocketAddr, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::AddressInUse { address },
            _ => Self::Bind { address, reason: error.to_string() },
        }
    }
}

#[derive(Clone)]
struct Answer {
    reports: watch::Receiver<HealthReport>,
    counters: Arc<HealthServerCounters>,
}

async fn health(State(answer): State<Answer>) -> ([(http::HeaderName, &'static str); 1], Vec<u8>) {
    answer.counters.answers.fetch_add(1, Ordering::Relaxed);
    let body = answer.reports.borrow().encode();
    ([(CONTENT_TYPE, "application/json; charset=UTF-8")], body)
}

/// Where the report is.
pub const HEALTH_PATH: &str = "/_health";
