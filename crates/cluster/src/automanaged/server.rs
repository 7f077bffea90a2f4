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
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tower_service::Service;

use super::config::{AutomanagedConfigError, check_count, check_duration};
use super::health::HealthReport;

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
    address: SocketAddr,
    stop: watch::Sender<bool>,
    serving: Option<JoinHandle<()>>,
    counters: Arc<HealthServerCounters>,
}

/// What a server did, counted from its start.
#[derive(Debug, Default)]
pub struct HealthServerCounters {
    answers: AtomicU64,
    waits: AtomicU64,
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
        let address =
            listener.local_addr().map_err(|error| HealthServerError::Listener(error.to_string()))?;
        let counters: Arc<HealthServerCounters> = Arc::default();
        let answer = Answer { reports, counters: Arc::clone(&counters) };
        let router = Router::new().route(HEALTH_PATH, get(health)).with_state(answer);
        let (stop, stopped) = watch::channel(false);
        let serve = serve(listener, router, config, stopped, Arc::clone(&counters));
        Ok(Self { address, stop, serving: Some(tokio::spawn(serve)), counters })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it did.
    #[must_use]
    pub const fn counters(&self) -> &Arc<HealthServerCounters> {
        &self.counters
    }

    /// Frees the address, lets the answers that are on their way go out, and waits until every connection has ended.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(serving) = self.serving.take() {
            // It ends by itself; only a panic in it could be told, and hyper's are contained in their connections.
            drop(serving.await);
        }
    }
}

impl Drop for HealthServer {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

impl fmt::Debug for HealthServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthServer").field("address", &self.address).finish_non_exhaustive()
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

async fn serve(
    listener: TcpListener,
    router: Router,
    config: HealthServerConfig,
    mut stopped: watch::Receiver<bool>,
    counters: Arc<HealthServerCounters>,
) {
    let slots = Arc::new(Semaphore::new(config.connections_max));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => break,
            accepted = accept(&listener, &slots, &counters) => accepted,
        };
        match accepted {
            Ok((stream, slot)) => {
                let served =
                    serve_connection(stream, router.clone(), config.request_timeout, stopped.clone(), slot);
                connections.spawn(served);
            }
            Err(error) => {
                // Out of file descriptors, mostly: what helps is to let some connections end.
                tracing::warn!(%error, "a health connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // The address is free from here on; the connections end by themselves, after a grace at the latest.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// The slot comes first: as long as there is none, newcomers wait in the system's queue.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    counters: &HealthServerCounters,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    if slots.available_permits() == 0 {
        counters.waits.fetch_add(1, Ordering::Relaxed);
    }
    let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, slot))
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    request_timeout: Duration,
    mut stopped: watch::Receiver<bool>,
    _slot: OwnedSemaphorePermit,
) {
    let service = service_fn(move |request| router.clone().call(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(request_timeout)
        .max_buf_size(REQUEST_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return note_end(ended),
        _ = stopped.wait_for(|stopped| *stopped) => {}
        // Whoever asks and never reads the answers would stay for ever.
        () = tokio::time::sleep(CONNECTION_AGE_MAX) => {}
    }
    connection.as_mut().graceful_shutdown();
    if let Ok(ended) = tokio::time::timeout(STOP_GRACE, connection).await {
        note_end(ended);
    }
}

fn note_end(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a health connection ended early");
    }
}

/// Where the report is.
pub const HEALTH_PATH: &str = "/_health";
/// How long a stop waits for connections to end by themselves.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// How old a connection grows before its peer has to open a new one.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(60);
/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Largest head of a request, in bytes.
const REQUEST_BYTES_MAX: usize = 16 * 1024;
