//! A small HTTP server that cannot be kept busy: so many connections, and none of them lingers.
//!
//! Whoever opens a connection and does not ask is cut off; whoever finds all of them in use waits in the system's queue.
//! The health endpoint and the api listener both answer through it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tower_service::Service;

/// Bounds of an [`HttpServer`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpBounds {
    /// Most connections at a time.
    pub(crate) connections_max: usize,
    /// How long a connection may stay without a complete request.
    pub(crate) request_timeout: Duration,
}

/// Answers over HTTP/1.1 until it is stopped. Dropping it cuts all connections.
pub(crate) struct HttpServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    serving: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Answers on `listener` as `router` says, and counts in `waits` how often all connections were in use.
    ///
    /// # Errors
    /// The listener does not know its address.
    pub(crate) fn start(
        listener: TcpListener,
        router: Router,
        bounds: HttpBounds,
        waits: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(serve(listener, router, bounds, stopped, waits));
        Ok(Self { address, stop, serving: Some(serving) })
    }

    /// Where it listens.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Frees the address, lets the answers that are on their way go out, and waits until every connection has ended.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(serving) = self.serving.take() {
            // It ends by itself; only a panic in it could be told, and hyper's are contained in their connections.
            drop(serving.await);
        }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: HttpBounds,
    mut stopped: watch::Receiver<bool>,
    waits: Arc<AtomicU64>,
) {
    let slots = Arc::new(Semaphore::new(bounds.connections_max));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => break,
            accepted = accept(&listener, &slots, &waits) => accepted,
        };
        match accepted {
            Ok((stream, slot)) => {
                let served =
                    serve_connection(stream, router.clone(), bounds.request_timeout, stopped.clone(), slot);
                connections.spawn(served);
            }
            Err(error) => {
                // Out of file descriptors, mostly: what helps is to let some connections end.
                tracing::warn!(%error, "an HTTP connection could not be accepted");
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
    waits: &AtomicU64,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    if slots.available_permits() == 0 {
        waits.fetch_add(1, Ordering::Relaxed);
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
        tracing::debug!(%error, "an HTTP connection ended early");
    }
}

/// How long a stop waits for connections to end by themselves.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// How old a connection grows before its peer has to open a new one.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(60);
/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Largest head of a request, in bytes.
const REQUEST_BYTES_MAX: usize = 16 * 1024;
