//! The connection to one peer, from the first try to its end.
//!
//! It carries two streams, one per lane. Each begins with our ConnectRequest and one ConnectResponse; after that
//! everything goes from us to the peer, and the first thing that comes back means that the peer wants no more.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use synod_core::outbound::DeadLetterReason;
use synod_core::remote::RemoteEvent;
use synod_core::roster::PeerRuntime;
use synod_wire::limits::{BATCH_MESSAGES_SENT_MAX, BLOCK_LIST_MEMBERS_MAX};
use synod_wire::remote::{RemoteMessage, ServerConnection};
use synod_wire::{BatchBuilder, Dialect, Envelope, Frame, FrameError, Push, names};
use tokio_stream::Stream;
use tonic::codec::Streaming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::codec::FrameCodec;
use super::counters::add;
use super::crew::Crew;
use super::link::{Lane, Link, Outgoing};
use super::socket::Socket;
use super::{Inner, shut_down};

/// Opens connection `number` to the peer of `link` and serves it until it ends.
pub(super) async fn run(inner: Arc<Inner>, link: Arc<Link>, number: u64) {
    let timeout = inner.config.connect_timeout;
    let mut shutdown = inner.shutdown.subscribe();
    let opened = tokio::select! {
        opened = tokio::time::timeout(timeout, open(&inner, &link, number)) => opened,
        () = link.hang_up.notified() => return,
        () = shut_down(&mut shutdown) => return,
    };
    let (answers, own) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => {
            tracing::debug!(peer = %link.authority, %error, "a connection could not be opened");
            // Before the failure is noted: a quarantine leaves nothing to try again.
            if let Some(reason) = error.invalid_association() {
                inner.invalid_association(&link.authority, &reason);
            }
            return inner.connect_failed(&link, number);
        }
        Err(_) => {
            tracing::debug!(peer = %link.authority, ?timeout, "a connection was not opened in time");
            return inner.connect_failed(&link, number);
        }
    };
    if !inner.connected(&link, number) {
        return;
    }
    let [mut control, mut user] = answers;
    let end = tokio::select! {
        end = end_of(&mut control) => end,
        end = end_of(&mut user) => end,
        () = link.hang_up.notified() => End::HungUp,
        () = shut_down(&mut shutdown) => End::HungUp,
        // The peer knows this connection by the life that is over, and may have blocked that.
        () = renamed(&inner, &own) => End::HungUp,
    };
    tracing::debug!(peer = %link.authority, ?end, "a connection ended");
    // A Go node of the other dialect cannot even read the first frame, and says so with this code.
    inner.lost(&link, number, matches!(end, End::Refused(Code::Internal)));
}

/// How a connection ended.
#[derive(Debug)]
enum End {
    /// The peer wants no more.
    Disconnected,
    /// This node ended it.
    HungUp,
    /// The peer, or the network, said why.
    Refused(Code),
}

/// Waits for the end of a stream. Whatever comes after the handshake is one.
async fn end_of(answers: &mut Streaming<Bytes>) -> End {
    match answers.message().await {
        Ok(_) => End::Disconnected,
        Err(status) => End::Refused(status.code()),
    }
}

async fn open(
    inner: &Arc<Inner>,
    link: &Arc<Link>,
    number: u64,
) -> Result<([Streaming<Bytes>; 2], Arc<str>), ConnectError> {
    let own = inner.member_id().await;
    let channel = dial(inner, link).await?;
    let mut streams = Vec::with_capacity(2);
    for lane in Lane::ALL {
        streams.push(open_stream(inner, link, number, lane, (&channel, &own)).await?);
    }
    let streams = streams.try_into().map_err(|_| ConnectError::Dial("two streams were opened".into()))?;
    Ok((streams, own))
}

/// Waits until this node is known by another id than `own`.
async fn renamed(inner: &Inner, own: &str) {
    let mut member_id = inner.member_id.subscribe();
    // The sender lives as long as the node.
    drop(member_id.wait_for(|known| known.as_deref() != Some(own)).await);
}

async fn dial(inner: &Arc<Inner>, link: &Link) -> Result<Channel, ConnectError> {
    let counters = Arc::clone(&inner.counters);
    let (network, own, peer) =
        (inner.config.network.clone(), inner.authority.clone(), link.authority.clone());
    let connector = tower_service_fn(move |_: Uri| {
        let (network, own, peer) = (network.clone(), own.clone(), peer.clone());
        let counters = Arc::clone(&counters);
        async move {
            let stream = network.connect(&own, &peer).await?;
            Ok::<_, io::Error>(TokioIo::new(Socket::outbound(stream, counters)?))
        }
    });
    Endpoint::from_shared(format!("http://{}", link.authority))
        .map_err(|error| ConnectError::Dial(error.to_string()))?
        // The lanes and the connection that writes their frames.
        .executor(Crew::new(|task| drop(tokio::spawn(task))))
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .connect_with_connector(connector)
        .await
        .map_err(|error| ConnectError::Dial(error.to_string()))
}

async fn open_stream(
    inner: &Arc<Inner>,
    link: &Arc<Link>,
    number: u64,
    lane: Lane,
    (channel, own): (&Channel, &str),
) -> Result<Streaming<Bytes>, ConnectError> {
    let hello = hello(inner, own)?;
    let frames = LaneFrames::new(Arc::clone(inner), Arc::clone(link), lane, number, hello);
    let mut grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
    grpc.ready().await.map_err(|error| ConnectError::Dial(error.to_string()))?;
    let path = PathAndQuery::from_static(names::RECEIVE_METHOD);
    let answer = grpc.streaming(Request::new(frames), path, FrameCodec).await?;
    let mut answers = answer.into_inner();
    let Some(first) = answers.message().await? else { return Err(ConnectError::NoAnswer) };
    match Frame::decode(first) {
        Ok(Frame::Connected(response)) => {
            link.note_runtime(if response.runtime.is_empty() {
                PeerRuntime::Protoactor
            } else {
                PeerRuntime::Synod
            });
            inner.agree(&link.authority, &response.call_schemas)?;
            if response.blocked && lane == Lane::Control {
                tracing::warn!(peer = %link.authority, "the peer has blocked this node");
                inner.publish(RemoteEvent::BlockedByPeer { peer: link.authority.clone() });
            }
            Ok(answers)
        }
        _ => Err(ConnectError::NoAnswer),
    }
}

/// What a node says first.
fn hello(inner: &Inner, own: &str) -> Result<Bytes, FrameError> {
    let connection = ServerConnection {
        member_id: own.to_owned(),
        address: inner.address.to_string(),
        block_list: inner.blocked().iter().take(BLOCK_LIST_MEMBERS_MAX).cloned().collect(),
        runtime: super::RUNTIME.to_owned(),
        call_schemas: inner.config.call_schemas.clone(),
    };
    Ok(RemoteMessage::connect(connection)?.encode_to_vec().into())
}

/// The frames of one lane, made when the connection has room for them.
struct LaneFrames {
    inner: Arc<Inner>,
    link: Arc<Link>,
    lane: Lane,
    number: u64,
    hello: Option<Bytes>,
    builder: BatchBuilder,
    dialect: Dialect,
    taken: VecDeque<Outgoing>,
    /// For how many frames the lane is taken for busy: one that had several messages lately has many senders.
    busy: u8,
    /// While others may still add to the next frame.
    patience: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl LaneFrames {
    fn new(inner: Arc<Inner>, link: Arc<Link>, lane: Lane, number: u64, hello: Bytes) -> Self {
        let dialect = link.dialect();
        let builder = BatchBuilder::new(dialect);
        let (hello, taken) = (Some(hello), VecDeque::new());
        let (busy, patience) = (0, None);
        Self { inner, link, lane, number, hello, builder, dialect, taken, busy, patience }
    }

    /// Waits for the messages of the next frame. On a lane with many senders the first of them would travel alone, and the
    /// others right behind it; so whoever has something to do on this thread does it first.
    fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.patience.is_none() {
            ready!(self.link.poll_any(self.lane, self.number, context));
            self.patience = (self.busy > 0).then(|| Box::pin(tokio::task::yield_now()) as _);
        }
        if let Some(patience) = &mut self.patience {
            ready!(patience.as_mut().poll(context));
            self.patience = None;
        }
        self.link.take(self.lane, self.number, BATCH_MESSAGES_SENT_MAX, &mut self.taken);
        self.busy = if self.taken.len() > 1 { BUSY_FRAMES } else { self.busy.saturating_sub(1) };
        Poll::Ready(())
    }

    /// Makes one frame of what was taken, and puts back what did not fit.
    fn frame(&mut self) -> Option<Bytes> {
        // In this order: a dialect that is known does not change any more, one that is guessed is looked at again below.
        let keep = self.link.is_guessing();
        if self.link.dialect() != self.dialect {
            self.dialect = self.link.dialect();
            self.builder = BatchBuilder::new(self.dialect);
        }
        let foreign = self.link.is_foreign();
        let mut kept = VecDeque::new();
        let mut count = 0;
        while let Some(mut outgoing) = self.taken.pop_front() {
            if foreign && let Some(reason) = harmful(&outgoing) {
                self.inner.bury(&outgoing.target, &outgoing.message, &reason);
                continue;
            }
            // The payload is lent, not copied: a copy of bytes that nobody shares yet would allocate.
            let payload = std::mem::take(&mut outgoing.message.payload);
            let envelope = envelope(&outgoing, payload);
            let pushed = self.builder.push(&envelope);
            outgoing.message.payload = envelope.payload;
            match pushed {
                Ok(Push::Added) => {
                    count += 1;
                    if keep {
                        kept.push_back(outgoing);
                    }
                }
                Ok(Push::Full) => {
                    self.taken.push_front(outgoing);
                    let rest = std::mem::take(&mut self.taken);
                    self.put_back(rest);
                    break;
                }
                Err(error) => {
                    let reason = DeadLetterReason::Unsendable(error.to_string());
                    self.inner.bury(&outgoing.target, &outgoing.message, &reason);
                }
            }
        }
        if keep && let Err(misspelt) = self.link.keep_unconfirmed(kept, self.dialect, self.number) {
            // The peer was heard while this was being written, and it speaks the other dialect.
            self.builder = BatchBuilder::new(self.dialect);
            self.put_back(misspelt);
            return None;
        }
        let frame = self.builder.finish_frame()?;
        add(&self.inner.counters.messages_sent, count);
        add(&self.inner.counters.frames_sent, 1);
        Some(frame)
    }

    fn put_back(&self, rest: VecDeque<Outgoing>) {
        for outgoing in self.link.put_back(self.lane, self.number, rest) {
            self.inner.bury(&outgoing.target, &outgoing.message, &DeadLetterReason::Unreachable);
        }
    }
}

impl Stream for LaneFrames {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = &mut *self;
        if let Some(hello) = this.hello.take() {
            return Poll::Ready(Some(hello));
        }
        loop {
            ready!(this.poll_take(context));
            if this.taken.is_empty() {
                return Poll::Ready(None);
            }
            if let Some(frame) = this.frame() {
                return Poll::Ready(Some(frame));
            }
        }
    }
}

fn envelope(outgoing: &Outgoing, payload: Bytes) -> Envelope<'_> {
    let Outgoing { target, message, .. } = outgoing;
    Envelope {
        target: target.as_ref(),
        sender: message.sender.as_ref().map(super::pid::Pid::as_ref),
        type_name: message.type_name.as_str(),
        serializer: message.serializer,
        payload,
        headers: message.headers.as_deref(),
    }
}

/// Why a Go node must not be sent this, if so: it dies of type names that it does not have, and of messages to its
/// guardians.
fn harmful(outgoing: &Outgoing) -> Option<DeadLetterReason> {
    if outgoing.message.type_name.as_str().starts_with(names::SYNOD_PREFIX) {
        Some(DeadLetterReason::UnknownToPeer)
    } else if outgoing.target.id().starts_with(names::ACTOR_PREFIX_GUARDIAN) {
        Some(DeadLetterReason::Unsendable("a Go node panics when a guardian is sent a message".into()))
    } else {
        None
    }
}

/// A connection was not opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("the peer cannot be dialled: {0}")]
    Dial(String),
    #[error("this node cannot say who it is: {0}")]
    Hello(#[from] FrameError),
    #[error("the peer speaks only {offered:?} of the call schema")]
    NoCommonSchema { offered: Vec<u32> },
    #[error("the peer did not answer the handshake")]
    NoAnswer,
    #[error("the peer refused the stream: {0}")]
    Refused(#[from] Status),
}

impl ConnectError {
    /// Why another try would end the same way: the peer was reached, and one of both cannot deal with the other.
    fn invalid_association(&self) -> Option<String> {
        match self {
            Self::NoCommonSchema { .. } => Some(self.to_string()),
            // What a peer says in its own words is shown, but not at any length.
            Self::Refused(status) if status.code() == Code::FailedPrecondition => {
                Some(format!("refused: {}", status.message().chars().take(REFUSAL_MAX).collect::<String>()))
            }
            _ => None,
        }
    }
}

/// Most characters of a peer's refusal that are shown.
const REFUSAL_MAX: usize = 200;

/// A `tower` service from a function, without the whole of `tower`.
fn tower_service_fn<F>(connect: F) -> ConnectWith<F> {
    ConnectWith(connect)
}

#[derive(Clone)]
struct ConnectWith<F>(F);

impl<F, Fut, S> tower_service::Service<Uri> for ConnectWith<F>
where
    F: FnMut(Uri) -> Fut,
    Fut: Future<Output = io::Result<S>>,
{
    type Response = S;
    type Error = io::Error;
    type Future = Fut;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Fut {
        (self.0)(uri)
    }
}

impl fmt::Debug for LaneFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneFrames")
            .field("peer", &self.link.authority)
            .field("lane", &self.lane)
            .finish_non_exhaustive()
    }
}

/// So many frames of one message each say that a lane has no more than one sender.
const BUSY_FRAMES: u8 = 16;
/// What a peer may send unread on all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// Largest answer of a peer. All it may say is who it is, or goodbye.
const ANSWER_BYTES_MAX: usize = 64 << 10;
