//! The connections of a gateway, and what is done with each request before and after S3 has its say.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, EXPECT, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::service::S3Service;
use s3s::{S3Error, s3_error};
use synod_store::objects::contract::ObjectStore;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::chunks::ChunkGuard;
use crate::cors;
use crate::counters::Counted;
use crate::digests::{Algorithm, BodyHasher, Promised};
use crate::errors::{body_error, not_here};
use crate::gateway::GatewayConfig;
use crate::hosts::Domains;
use crate::request::{AnswerBody, Note, RequestBody};
use crate::service::Service;

/// Takes connections until it is told to stop.
pub(crate) async fn serve<S: ObjectStore>(
    listener: TcpListener,
    front: Arc<Front<S>>,
    stopped: watch::Receiver<Option<Duration>>,
) {
    let room = Arc::new(Semaphore::new(front.config.connections_max));
    let mut connections = JoinSet::new();
    let taken = |stream: TcpStream, permit: OwnedSemaphorePermit| {
        let (front, stopped) = (Arc::clone(&front), stopped.clone());
        async move {
            front.counted.connections.fetch_add(1, Ordering::Relaxed);
            front.counted.connections_total.fetch_add(1, Ordering::Relaxed);
            connection(stream, &front, stopped).await;
            front.counted.connections.fetch_sub(1, Ordering::Relaxed);
            drop(permit);
        }
    };
    let mut stopping = stopped.clone();
    loop {
        if room.available_permits() == 0 {
            front.counted.connections_delayed.fetch_add(1, Ordering::Relaxed);
        }
        let accepted = async {
            let permit = Arc::clone(&room).acquire_owned().await.ok()?;
            Some((listener.accept().await, permit))
        };
        let stopping = async { drop(stopping.wait_for(Option::is_some).await) };
        tokio::select! {
            () = stopping => break,
            Some(_) = connections.join_next() => {}
            // The semaphore is never closed.
            Some((accepted, permit)) = accepted => match accepted {
                Ok((stream, _)) => drop(connections.spawn(taken(stream, permit))),
                Err(error) => {
                    // Usually there are too many open files: others must be closed first.
                    tracing::warn!(%error, "no connection can be taken");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // Whoever the system has let in already would be cut off with the listener, in the middle of its request. It is asked
    // directly: what the runtime knows of it may be late.
    if let Ok(listener) = listener.into_std() {
        while let (Ok((stream, _)), Ok(permit)) = (listener.accept(), Arc::clone(&room).try_acquire_owned()) {
            if stream.set_nonblocking(true).is_ok()
                && let Ok(stream) = TcpStream::from_std(stream)
            {
                connections.spawn(taken(stream, permit));
            }
        }
    }
    let patience = stopped.borrow().unwrap_or_default();
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(patience, all).await.is_err() {
        connections.shutdown().await;
    }
}

async fn connection<S: ObjectStore>(
    stream: TcpStream,
    front: &Arc<Front<S>>,
    mut stopped: watch::Receiver<Option<Duration>>,
) {
    // Answers are written whole; waiting to send more at once would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection is gone already");
        return;
    }
    let state = stopped.clone();
    let answer = service_fn(|request| {
        let (front, state) = (Arc::clone(front), state.clone());
        async move {
            let mut response = front.answer(request).await;
            if state.borrow().is_some() {
                // The next request is better sent elsewhere.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(front.config.header_timeout)
        .max_buf_size(CONNECTION_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(connection);
    // The next request of a busy client may be on its way already, and would be lost if the connection ended at once.
    let stopping = async {
        drop(stopped.wait_for(Option::is_some).await);
        tokio::time::sleep(LAST_REQUEST_TIME).await;
    };
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = stopping => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// What stands before S3.
pub(crate) struct Front<S> {
    s3: S3Service,
    service: Service<S>,
    domains: Domains,
    counted: Arc<Counted>,
    config: GatewayConfig,
    /// Requests are named by the start of the gateway and by their number.
    first_name: u64,
    names: AtomicU64,
}

impl<S: ObjectStore> Front<S> {
    pub(crate) fn new(
        s3: S3Service,
        service: Service<S>,
        domains: Domains,
        counted: Arc<Counted>,
        config: GatewayConfig,
    ) -> Self {
        let first_name = fastrand::u64(..);
        Self { s3, service, domains, counted, config, first_name, names: AtomicU64::new(0) }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        let start = Instant::now();
        let note = Arc::new(Note::new());
        let method = request.method().clone();
        let origin = request.headers().get(ORIGIN).cloned();
        let bucket = origin.as_ref().and_then(|_| {
            let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
            self.domains.bucket_of(host, request.uri().path())
        });
        let expects = request.headers().contains_key(EXPECT);

        let mut response = if method == Method::OPTIONS {
            note.set_operation("Preflight");
            self.preflight(request.headers(), bucket.as_deref()).await
        } else {
            let response = self.call(request, &note).await;
            self.corrected(response, &note)
        };
        if method != Method::OPTIONS
            && let (Some(origin), Some(bucket)) = (&origin, &bucket)
        {
            self.allow_origin(&mut response, origin, &method, bucket).await;
        }
        // Whoever still sends a small body reads the answer only when it is sent. Who waits for leave to send does not.
        if !expects && let Some(unread) = note.take_unread() {
            drain(unread).await;
        }

        // A status that the protocol library does not know of its operation.
        if let Some(status) = response.extensions_mut().remove::<StatusCode>() {
            *response.status_mut() = status;
        }
        let status = response.status();
        self.counted.answered(note.operation(), status.as_u16(), start.elapsed());
        if (status.is_client_error() || status.is_server_error())
            && let Some(code) = response.body().bytes().as_deref().and_then(error_code)
        {
            self.counted.failed(code);
        }
        let name = self.first_name.wrapping_add(self.names.fetch_add(1, Ordering::Relaxed));
        if let Ok(name) = HeaderValue::from_str(&format!("{name:016X}")) {
            response.headers_mut().insert("x-amz-request-id", name);
        }
        response.headers_mut().insert(http::header::SERVER, HeaderValue::from_static("synod"));
        response.map(|body| AnswerBody::new(body, Arc::clone(&self.counted)))
    }

    async fn call(&self, request: Request<Incoming>, note: &Arc<Note>) -> Response<s3s::Body> {
        if let Some(error) = refused_early(&request) {
            return failed(error);
        }
        let headers = request.headers();
        let payload = headers.get("x-amz-content-sha256").map_or(&b""[..], HeaderValue::as_bytes);
        let guard = match payload {
            b"STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Some(ChunkGuard::new(false)),
            payload if payload.starts_with(b"STREAMING-") => Some(ChunkGuard::new(true)),
            _ => None,
        };
        let document = match guard.is_none() && is_document(request.method(), request.uri().query()) {
            true => match promised_of_document(headers, request.uri().query()) {
                Ok(promised) => promised.map(|promised| (BodyHasher::new(promised.algorithm), promised)),
                Err(error) => return failed(error),
            },
            false => None,
        };
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(Arc::clone(note));
        let body = RequestBody::new(
            body,
            Arc::clone(note),
            Arc::clone(&self.counted),
            self.config.body_timeout,
            guard,
            document,
        );
        let request = Request::from_parts(parts, s3s::Body::http_body(body));
        match self.s3.call(request).await {
            Ok(response) => response,
            Err(error) => {
                tracing::error!(?error, "a request could not be answered");
                failed(s3_error!(InternalError, "The request could not be answered."))
            }
        }
    }

    /// An answer that S3 gave, corrected where it knows less than we do: it takes every body that cannot be read to its end
    /// for a failure of the server.
    fn corrected(&self, response: Response<s3s::Body>, note: &Note) -> Response<s3s::Body> {
        let is_own = |bytes: &[u8]| contains(bytes, b"<Message>");
        if response.status() != StatusCode::INTERNAL_SERVER_ERROR
            || response.body().bytes().is_none_or(|bytes| is_own(&bytes))
        {
            return response;
        }
        failed(body_error(note.failure(), None))
    }

    async fn preflight(&self, headers: &HeaderMap, bucket: Option<&str>) -> Response<s3s::Body> {
        let rules = match bucket {
            Some(bucket) => self.service.bucket_now(bucket).await,
            None => Ok(None),
        };
        match rules {
            Ok(bucket) => {
                let rules = bucket.as_ref().map_or(&[][..], |bucket| &bucket.record.cors);
                cors::preflight(rules, headers).unwrap_or_else(failed)
            }
            Err(error) => failed(error),
        }
    }

    async fn allow_origin(
        &self,
        response: &mut Response<s3s::Body>,
        origin: &HeaderValue,
        method: &Method,
        bucket: &str,
    ) {
        // Whoever cannot be told that another origin may read the answer may not.
        if let Ok(Some(bucket)) = self.service.bucket_if_there(bucket).await {
            cors::allow(&bucket.record.cors, origin, method, response.headers_mut());
        }
    }
}

/// What is never served, whoever asks for it.
fn refused_early(request: &Request<Incoming>) -> Option<S3Error> {
    let headers = request.headers();
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes > HEADER_BYTES_MAX || request.uri().path().len() > HEADER_BYTES_MAX {
        return Some(s3_error!(RequestHeaderSectionTooLarge, "The headers of the request are too large."));
    }
    let begins =
        |name, value: &[u8]| headers.get(name).is_some_and(|given| given.as_bytes().starts_with(value));
    let is_form = headers
        .get_all(CONTENT_TYPE)
        .iter()
        .any(|kind| kind.as_bytes().to_ascii_lowercase().starts_with(b"multipart/form-data"));
    if request.method() == Method::POST && is_form {
        return Some(not_here("Upload by a form"));
    }
    let query = request.uri().query().unwrap_or_default();
    let is_old =
        query.split('&').any(|pair| pair.starts_with("Signature=") || pair.starts_with("AWSAccessKeyId="));
    if is_old || begins(AUTHORIZATION, b"AWS ") {
        return Some(s3_error!(
            InvalidRequest,
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
        ));
    }
    let lasts = query.split('&').find_map(|pair| pair.strip_prefix("X-Amz-Expires="));
    if lasts.is_some_and(|seconds| {
        !seconds.parse().is_ok_and(|seconds| (1..=PRESIGNED_SECONDS_MAX).contains(&seconds))
    }) {
        return Some(s3_error!(
            AuthorizationQueryParametersError,
            "X-Amz-Expires must be 1 second to a week."
        ));
    }
    None
}

/// Whether the body is a document, which is small and read whole, rather than the bytes of an object.
fn is_document(method: &Method, query: Option<&str>) -> bool {
    let has = |name: &&str| {
        let names =
            query.unwrap_or_default().split('&').map(|pair| pair.split('=').next().unwrap_or_default());
        names.into_iter().any(|given| given == *name)
    };
    method == Method::POST
        || (method == Method::PUT && ["cors", "lifecycle", "tagging", "acl"].iter().any(has))
}

/// What the headers promise of a document, if they do.
fn promised_of_document(headers: &HeaderMap, query: Option<&str>) -> Result<Option<Promised>, S3Error> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // Sums in a request that completes an upload are those of the object.
    let completes = query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("uploadId=")));
    let sums = Algorithm::ALL.map(|algorithm| {
        let sum = text(&format!("x-amz-checksum-{}", algorithm.name().to_lowercase()));
        (algorithm, sum.filter(|_| !completes))
    });
    match headers.contains_key("content-md5") || sums.iter().any(|(_, sum)| sum.is_some()) {
        true => Promised::of(headers, sums).map(Some),
        false => Ok(None),
    }
}

fn failed(error: S3Error) -> Response<s3s::Body> {
    error.to_http_response().unwrap_or_else(|_| {
        let mut response = Response::new(s3s::Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

fn error_code(document: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(document).ok()?;
    Some(text.split_once("<Code>")?.1.split_once("</Code>")?.0)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Reads what is left of a body, if it is little and comes soon.
async fn drain(mut body: Incoming) {
    let all = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, bytes::Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    // Whoever does not make it finds the connection closed.
    drop(tokio::time::timeout(DRAIN_TIME_MAX, all).await);
}

/// How long a connection waits for one more request when the gateway is to stop.
const LAST_REQUEST_TIME: Duration = Duration::from_secs(1);
/// How long to wait when no connection can be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Buffer of a connection.
const CONNECTION_BUFFER_BYTES: usize = 128 * 1024;
/// Largest headers of a request.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// How long a presigned request may last: a week.
const PRESIGNED_SECONDS_MAX: u64 = 7 * 86_400;
/// How much of a body is read that nobody asked for.
const DRAIN_BYTES_MAX: usize = 1 << 20;
/// How long that may take.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);
