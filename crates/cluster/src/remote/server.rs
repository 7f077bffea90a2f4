//! The listener: takes connections, checks who opens a stream, and hands what comes over it to the processes.
//!
//! A stream that a peer opened carries messages towards this node only. The way back carries one ConnectResponse and, at
//! the end, one DisconnectRequest or an error; anything else would make a Go node drop the connection, and an end
//! without either would make it lose everything it sends from then on.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message as _;
use synod_core::Authority;
use synod_core::outbound::{AssociationState, DeadLetterReason};
use synod_wire::limits::FRAME_BYTES_RECEIVED_MAX;
use synod_wire::remote::connect_request::ConnectionType;
use synod_wire::remote::{ConnectResponse, RemoteMessage, ServerConnection};
use synod_wire::{Envelope, Frame, PidRef, ReceivedBatch, actor, names};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::Stream;
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{CompressionEncoding, Streaming};
use tonic::server::StreamingService;

use super::codec::FrameCodec;
use super::counters::add;
use super::crew::Crew;
use super::detach::detach;
use super::link::Link;
use super::message::{Message, TypeName};
use super::network::Listener;
use super::pid::Pid;
use super::process::{Letter, Process, ProcessEnded};
use super::socket::{Established, Socket};
use super::{Inner, SystemKind, shut_down};

/// Takes connections until the node shuts down.
pub(super) async fn accept(inner: Arc<Inner>, mut listener: Listener) {
    let mut shutdown = inner.shutdown.subscribe();
    let places = Arc::new(Semaphore::new(inner.config.inbound_connections_max));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shut_down(&mut shutdown) => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely. Trying again at once would only burn time.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            add(&inner.counters.connections_refused, 1);
            inner.refuse(&peer, "a connection beyond inbound_connections_max; it was closed");
            continue;
        };
        let counters = Arc::clone(&inner.counters);
        match Socket::inbound(stream, counters, inner.config.handshake_timeout, place) {
            Ok(socket) => {
                // The connection and the readers of its streams: each frame concerns both.
                let tasks = Arc::clone(&inner);
                let crew = Crew::new(move |task| tasks.spawn(task));
                crew.join(serve_connection(Arc::clone(&inner), crew.clone(), socket, peer));
            }
            Err(error) => tracing::debug!(%error, %peer, "a connection was gone before it was served"),
        }
    }
}

async fn serve_connection(inner: Arc<Inner>, crew: Crew, socket: Socket, peer: String) {
    let established = socket.established();
    let progress = established.clone();
    let mut shutdown = inner.shutdown.subscribe();
    let connection_inner = Arc::clone(&inner);
    let connection_peer: Arc<str> = Arc::from(peer.as_str());
    let service = service_fn(move |request: Request<Incoming>| {
        let receive = Receive {
            inner: Arc::clone(&connection_inner),
            crew: crew.clone(),
            established: established.clone(),
            peer: Arc::clone(&connection_peer),
        };
        async move { Ok::<_, Infallible>(answer(receive, request.map(Body::new)).await) }
    });
    let mut connection = std::pin::pin!(
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .max_header_list_size(HEADER_BYTES_MAX)
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .serve_connection(TokioIo::new(socket), service)
    );
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = shut_down(&mut shutdown) => {
            // The streams say goodbye first. Who does not hang up then is hung up on.
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GOODBYE_TIMEOUT, connection).await {
                Ok(ended) => ended,
                Err(_) => Ok(()),
            }
        }
    };
    if progress.is_expired() {
        inner.refuse(&peer, "a connection that did not say who it is in time; it was closed");
    } else if let Err(error) = ended {
        tracing::debug!(%error, peer, "a connection ended");
    }
}

async fn answer(receive: Receive, request: Request<Body>) -> Response<Body> {
    if request.uri().path() != names::RECEIVE_METHOD {
        if let Some(service) = receive.inner.service_for(request.uri().path()) {
            // Whoever calls a service says who it is in its own way.
            receive.established.set();
            return service.call(request).await;
        }
        receive.inner.refuse(&receive.peer, &format!("a call of {}; it was refused", request.uri().path()));
        return Status::unimplemented("this node does not serve that").into_http();
    }
    tonic::server::Grpc::new(FrameCodec)
        .max_decoding_message_size(FRAME_BYTES_RECEIVED_MAX)
        .accept_compressed(CompressionEncoding::Gzip)
        .streaming(receive, request)
        .await
}

struct Receive {
    inner: Arc<Inner>,
    crew: Crew,
    established: Established,
    peer: Arc<str>,
}

type Answered = Result<tonic::Response<Answers>, Status>;

impl StreamingService<Bytes> for Receive {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = Pin<Box<dyn Future<Output = Answered> + Send>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        let reader = StreamReader {
            inner: Arc::clone(&self.inner),
            frames: request.into_inner(),
            answers: sender,
            established: self.established.clone(),
            peer: self.peer.to_string(),
            type_names: HashMap::new(),
            letters: VecDeque::new(),
        };
        self.crew.join(reader.run());
        Box::pin(std::future::ready(Ok(tonic::Response::new(Answers(answers)))))
    }
}

/// What goes back on a stream.
struct Answers(mpsc::Receiver<Result<Bytes, Status>>);

impl Stream for Answers {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // A reader that was aborted leaves without a word, and an end without a word is taken for a promise by Go.
        match std::task::ready!(self.0.poll_recv(context)) {
            Some(answer) => Poll::Ready(Some(answer)),
            None => Poll::Ready(Some(Err(Status::unavailable("the stream is over")))),
        }
    }
}

/// Reads one stream.
struct StreamReader {
    inner: Arc<Inner>,
    frames: Streaming<Bytes>,
    answers: mpsc::Sender<Result<Bytes, Status>>,
    established: Established,
    /// Who is at the other end: the address of the socket, and after the handshake that of the node.
    peer: String,
    /// Names seen on this stream, so that a name that comes again costs nothing.
    type_names: HashMap<String, TypeName>,
    letters: VecDeque<Letter>,
}

impl StreamReader {
    async fn run(mut self) {
        let status = match self.shake_hands().await {
            Ok(connection) => {
                self.established.set();
                self.peer.clone_from(&connection.address);
                self.read(&connection).await
            }
            Err(status) => {
                add(&self.inner.counters.handshakes_refused, 1);
                self.inner.refuse(&self.peer, &format!("{}; the stream was ended", status.message()));
                status
            }
        };
        tracing::debug!(peer = self.peer, code = ?status.code(), reason = status.message(), "a stream ended");
        // If the peer is gone nobody is told, and nobody needs to be.
        drop(self.answers.send(Err(status)).await);
    }

    async fn shake_hands(&mut self) -> Result<ServerConnection, Status> {
        let timeout = self.inner.config.handshake_timeout;
        let first = tokio::time::timeout(timeout, self.frames.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no handshake came in time"))??
            .ok_or_else(|| Status::cancelled("the stream ended before a handshake"))?;
        let connection = match Frame::decode(first) {
            Ok(Frame::Connect(ConnectionType::ServerConnection(connection))) => connection,
            Ok(Frame::Connect(ConnectionType::ClientConnection(_))) => {
                return Err(Status::unimplemented("clients without an address are not served"));
            }
            Ok(_) => return Err(Status::failed_precondition("the first frame was no handshake")),
            Err(error) => return Err(Status::invalid_argument(error.to_string())),
        };
        let authority = Authority::new(&connection.address).ok();
        let Some(authority) = authority.filter(|authority| authority.as_str() == connection.address) else {
            return Err(Status::invalid_argument("the address in the handshake is not a host:port"));
        };
        if let (AssociationState::Quarantined { reason, .. }, _) = self.inner.association(&authority) {
            return Err(Status::permission_denied(format!("{authority} is quarantined: {reason}")));
        }
        if !self.inner.shares_schema(&connection.call_schemas) {
            let offered = &connection.call_schemas;
            let problem = format!("{} speaks only {offered:?} of the call schema", connection.address);
            return Err(Status::failed_precondition(problem));
        }
        let response = ConnectResponse {
            member_id: self.inner.member_id().await.to_string(),
            blocked: self.inner.is_blocked(&connection.member_id),
            runtime: super::RUNTIME.to_owned(),
            call_schemas: self.inner.config.call_schemas.clone(),
        };
        let frame =
            RemoteMessage::connected(response).map_err(|error| Status::internal(error.to_string()))?;
        self.answer(frame).await?;
        Ok(connection)
    }

    async fn read(&mut self, connection: &ServerConnection) -> Status {
        // What the peer runs is believed only where this node dials it: anybody can claim another's address here, and a
        // Go node would die of what only synod nodes are sent.
        let link = self.inner.link_to(&connection.address);
        if let Some(link) = &link {
            self.inner.heard(&link.authority);
        }
        let mut shutdown = self.inner.shutdown.subscribe();
        let mut shut_down = std::pin::pin!(shut_down(&mut shutdown));
        let mut useless = 0;
        loop {
            // In this order: the end of the node is looked for only when there is nothing to read, and a peer cannot send
            // so fast that this never happens.
            let next = tokio::select! {
                biased;
                next = self.frames.message() => next,
                () = &mut shut_down => return self.say_goodbye().await,
            };
            let frame = match next {
                Ok(Some(frame)) => frame,
                // Go takes an end that is no error for one it caused itself and would not open the stream again.
                Ok(None) => return Status::unavailable("the peer ended the stream"),
                Err(status) => {
                    // What gRPC refuses by itself (beyond all bounds, broken off, badly compressed) has no cause but
                    // the peer. A connection that was lost has one.
                    if std::error::Error::source(&status).is_none() {
                        add(&self.inner.counters.frames_refused, 1);
                        self.inner.refuse(&self.peer, &format!("{}; the stream was ended", status.message()));
                    }
                    return status;
                }
            };
            add(&self.inner.counters.frames_received, 1);
            let frame_bytes = frame.len();
            let problem = match Frame::decode(frame) {
                Ok(Frame::Batch(batch)) => {
                    self.take(&batch, frame_bytes, connection, link.as_ref()).await;
                    continue;
                }
                Ok(Frame::Disconnect) => return Status::unavailable("the peer disconnected"),
                Ok(Frame::Connect(_) | Frame::Connected(_)) => {
                    "a second handshake; it was ignored".to_owned()
                }
                Err(error) => error.to_string(),
            };
            add(&self.inner.counters.frames_refused, 1);
            self.inner.refuse(&self.peer, &problem);
            useless += 1;
            if useless == USELESS_FRAMES_MAX {
                return Status::invalid_argument("too many frames could not be used");
            }
        }
    }

    async fn say_goodbye(&mut self) -> Status {
        let goodbye = self.answer(RemoteMessage::disconnect()).await;
        if goodbye.is_ok() {
            // Let the peer end the stream itself, so that it has read the goodbye.
            let rest = async { while let Ok(Some(_)) = self.frames.message().await {} };
            drop(tokio::time::timeout(GOODBYE_TIMEOUT / 2, rest).await);
        }
        Status::unavailable("the node shuts down")
    }

    async fn answer(&self, frame: RemoteMessage) -> Result<(), Status> {
        let sent = self.answers.send(Ok(frame.encode_to_vec().into())).await;
        sent.map_err(|_| Status::cancelled("the peer is gone"))
    }

    async fn take(
        &mut self,
        batch: &ReceivedBatch,
        frame_bytes: usize,
        connection: &ServerConnection,
        link: Option<&Arc<Link>>,
    ) {
        let inner = Arc::clone(&self.inner);
        let is_blocked = inner.is_blocked(&connection.member_id);
        let mut ignored = 0;
        if !is_blocked {
            if let (Some(link), Some(dialect)) = (link, batch.dialect()) {
                inner.note_dialect(link, dialect);
            }
            add(&inner.counters.messages_received, batch.len());
        }
        let mut group = Group::new();
        let mut sender: Option<(PidRef<'_>, Pid)> = None;
        let mut last_headers = None;
        let mut last_type: Option<(&str, TypeName, SystemKind)> = None;
        for envelope in batch.envelopes(&inner.address) {
            let envelope = match envelope {
                Ok(envelope) => envelope,
                Err(error) => {
                    add(&inner.counters.envelopes_refused, 1);
                    inner.refuse(&self.peer, &error.to_string());
                    continue;
                }
            };
            if is_blocked {
                if !inner.hears_blocked(envelope.target.id) {
                    ignored += 1;
                    continue;
                }
                add(&inner.counters.messages_received, 1);
            }
            let (type_name, system) = match &last_type {
                Some((text, name, system)) if same_text(text, envelope.type_name) => (name.clone(), *system),
                _ => {
                    let name = self.type_name(envelope.type_name);
                    let system = SystemKind::of(envelope.type_name);
                    last_type = Some((envelope.type_name, name.clone(), system));
                    (name, system)
                }
            };
            let headers = envelope.headers.map(|headers| headers_of(headers, &mut last_headers));
            let message = Message { headers, ..message(&envelope, type_name, &mut sender) };
            if envelope.target.address != &*inner.address {
                let target = Pid::from(envelope.target);
                inner.refuse(&self.peer, "a message for another node; it became a dead letter");
                inner.bury(&target, &message, &DeadLetterReason::NoSuchActor);
                continue;
            }
            if system != SystemKind::User {
                // It may concern what came before it.
                inner.deliver_group(&mut group, &mut self.letters, frame_bytes).await;
                let target = Pid::new(Arc::clone(&inner.address), envelope.target.id);
                if !inner.deliver_system(&target, system, &message) {
                    add(&inner.counters.messages_refused, 1);
                    inner.refuse(
                        &self.peer,
                        &format!("a {} that says nothing; it was ignored", message.type_name),
                    );
                }
                continue;
            }
            if system == SystemKind::User && is_misread_dead_letter(&message) {
                continue;
            }
            if !group.is_for(envelope.target.id) {
                inner.deliver_group(&mut group, &mut self.letters, frame_bytes).await;
                group.aim(envelope.target.id, &inner);
            }
            self.letters.push_back(Letter { request_id: envelope.target.request_id, message });
        }
        inner.deliver_group(&mut group, &mut self.letters, frame_bytes).await;
        if ignored > 0 {
            add(&inner.counters.messages_from_blocked, ignored);
            inner.refuse(&self.peer, "messages of a blocked member; they were ignored");
        }
    }

    fn type_name(&mut self, text: &str) -> TypeName {
        if let Some(name) = self.type_names.get(text) {
            return name.clone();
        }
        if self.type_names.len() == TYPE_NAMES_KEPT {
            self.type_names.clear();
        }
        let name = TypeName::from(text);
        self.type_names.insert(text.to_owned(), name.clone());
        name
    }
}

/// Letters in a row for one target.
pub(super) struct Group<'a> {
    /// When its batch came. For a while the reader has time for what comes of the letters.
    began: Instant,
    target: Option<&'a str>,
    process: Option<Arc<dyn Process>>,
    /// Targets of the same batch that have used up the patience for a full mailbox, and are not waited for again.
    stuck: Vec<&'a str>,
}

impl<'a> Group<'a> {
    fn new() -> Self {
        Self { began: Instant::now(), target: None, process: None, stuck: Vec::new() }
    }

    fn is_for(&self, target: &str) -> bool {
        self.target.is_some_and(|current| same_text(current, target))
    }

    fn aim(&mut self, target: &'a str, inner: &Inner) {
        self.target = Some(target);
        self.process = inner.processes.find(target);
    }

    fn deliver(&self, process: &dyn Process, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        // Most turns of grains take less than to get somebody else to do them. Those that take longer are not all waited
        // for: there may be other processors for them, and the rest of the batch has waited long enough.
        if self.began.elapsed() < BATCH_TIME {
            process.deliver_and_wait(letters)
        } else {
            process.deliver(letters)
        }
    }
}

impl Inner {
    fn hears_blocked(&self, target: &str) -> bool {
        self.processes.find(target).is_some_and(|process| process.hears_blocked())
    }

    /// Delivers the letters of a group. Waits, with patience but not forever, for a mailbox that is full.
    async fn deliver_group(
        self: &Arc<Self>,
        group: &mut Group<'_>,
        letters: &mut VecDeque<Letter>,
        frame_bytes: usize,
    ) {
        let Some(target) = group.target else { return };
        if letters.is_empty() {
            return;
        }
        detach(letters, frame_bytes);
        let reason = match &group.process {
            None => DeadLetterReason::NoSuchActor,
            Some(process) => match group.deliver(&**process, letters) {
                Err(_) => DeadLetterReason::NoSuchActor,
                Ok(()) if letters.is_empty() => return,
                Ok(()) => {
                    let is_stuck = group.stuck.iter().any(|stuck| same_text(stuck, target));
                    let patience = if is_stuck { Duration::ZERO } else { self.config.mailbox_patience };
                    match self.deliver_patiently(&**process, letters, patience).await {
                        None => return,
                        Some(reason) => {
                            if !is_stuck {
                                group.stuck.push(target);
                            }
                            reason
                        }
                    }
                }
            },
        };
        let target = Pid::new(Arc::clone(&self.address), target);
        for letter in letters.drain(..) {
            self.bury(&target, &letter.message, &reason);
        }
    }

    /// Returns why the rest was not taken, or nothing when everything was.
    async fn deliver_patiently(
        &self,
        process: &dyn Process,
        letters: &mut VecDeque<Letter>,
        patience: Duration,
    ) -> Option<DeadLetterReason> {
        let deadline = tokio::time::Instant::now() + patience;
        if let Some(room) = process.room() {
            loop {
                let mut has_room = std::pin::pin!(room.notified());
                has_room.as_mut().enable();
                match process.deliver(letters) {
                    Err(_) => return Some(DeadLetterReason::NoSuchActor),
                    Ok(()) if letters.is_empty() => return None,
                    Ok(()) => {}
                }
                if tokio::time::timeout_at(deadline, has_room).await.is_err() {
                    break;
                }
            }
        }
        add(&self.counters.mailbox_overflows, letters.len());
        Some(DeadLetterReason::QueueFull)
    }
}

fn message<'a>(
    envelope: &Envelope<'a>,
    type_name: TypeName,
    last_sender: &mut Option<(PidRef<'a>, Pid)>,
) -> Message {
    let sender = envelope.sender.map(|sender| match last_sender {
        Some((last, pid)) if same_text(last.id, sender.id) && same_text(last.address, sender.address) => {
            pid.clone().with_request_id(sender.request_id)
        }
        _ => {
            let pid = Pid::from(sender);
            *last_sender = Some((sender, pid.clone()));
            pid
        }
    });
    Message {
        type_name,
        serializer: envelope.serializer,
        payload: envelope.payload.clone(),
        sender,
        headers: None,
    }
}

/// Headers that are the same entry of a batch as the last ones are shared.
fn headers_of<'a>(headers: &'a Headers, last: &mut Option<(&'a Headers, Arc<Headers>)>) -> Arc<Headers> {
    match last {
        Some((known, shared)) if std::ptr::eq(*known, headers) => Arc::clone(shared),
        _ => Arc::clone(&last.insert((headers, Arc::new(headers.clone()))).1),
    }
}

type Headers = BTreeMap<String, String>;

/// An answer of a peer that took a PID for an id. What it answers is being sent again in its own dialect.
fn is_misread_dead_letter(message: &Message) -> bool {
    message.is::<actor::DeadLetterResponse>()
        && message
            .decode::<actor::DeadLetterResponse>()
            .is_ok_and(|response| synod_wire::Dialect::was_misread(&response))
}

/// Whether two texts are the same entry of a table, or equal.
fn same_text(a: &str, b: &str) -> bool {
    std::ptr::eq(a, b) || a == b
}

/// How long the reader of a stream lets actors work in its own time, per batch.
const BATCH_TIME: Duration = Duration::from_micros(500);
/// What may be unread on one stream before its peer has to wait.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// What may be unread on all streams of a connection together. A full user lane leaves room for the control lane.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// Most streams that one connection has at a time.
const STREAMS_PER_CONNECTION_MAX: u32 = 8;
/// Most bytes of HTTP headers.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// How often a silent connection is asked whether it still stands. Only clients may not ask Go too often.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the end of a connection may take when the node shuts down.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Frames that wait to go back on a stream: there are never more than these.
const ANSWERS_MAX: usize = 4;
/// After so many frames that cannot be used a stream is ended.
const USELESS_FRAMES_MAX: usize = 16;
/// Type names that a stream remembers.
const TYPE_NAMES_KEPT: usize = 4096;
