//! The calls of a replica to the others of its group.
//!
//! Entries go over a stream on which requests follow each other without waiting for answers, as far as a window allows.
//! Whoever asks drives both directions: dropping the answers takes the requests back.

use std::collections::VecDeque;
use std::future::Future;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::uri::PathAndQuery;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, alias::SnapshotOf};
use prost::Message;
use synod_cluster::remote::BearerToken;
use synod_wire::raft as wire;
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use super::snapshot::SnapshotFile;
use super::types::{ReplicaNode, Types, Vote, read_id, read_vote, write_entry, write_id, write_vote};
use crate::blocking::blocking;
use crate::connect::Channels;

/// Calls the replicas of a group.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) channels: Arc<Channels>,
    pub(crate) cluster: String,
    pub(crate) group: u16,
    pub(crate) token: BearerToken,
    pub(crate) heartbeat: Duration,
}

impl Caller {
    /// Whom a call is meant for.
    pub(crate) fn target(&self, id: u64) -> wire::Target {
        wire::Target { cluster: self.cluster.clone(), group: self.group.into(), id }
    }

    /// One question and its answer, in time.
    pub(crate) async fn ask<Q, A>(
        &self,
        address: &str,
        path: &'static str,
        question: Q,
        patience: Duration,
    ) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let call = async {
            let mut grpc = self.grpc(address).await?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(self.token.show(question), PathAndQuery::from_static(path), codec).await
        };
        let answer = tokio::time::timeout(patience, call).await;
        answer
            .map_err(|_| Status::deadline_exceeded("the peer did not answer in time"))?
            .map(tonic::Response::into_inner)
    }

    /// Sends a snapshot in pieces.
    pub(crate) async fn install(
        &self,
        address: &str,
        pieces: impl Stream<Item = wire::InstallRequest> + Send + 'static,
    ) -> Result<wire::InstallReply, Status> {
        let mut grpc = self.grpc(address).await?;
        let codec = ProstCodec::<wire::InstallRequest, wire::InstallReply>::default();
        let path = PathAndQuery::from_static(INSTALL_PATH);
        grpc.client_streaming(self.token.show(pieces), path, codec).await.map(tonic::Response::into_inner)
    }

    async fn grpc(&self, address: &str) -> Result<Grpc<Channel>, Status> {
        let channel = self.channels.to(address, settings).map_err(Status::invalid_argument)?;
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }
}

/// How peers are connected to.
fn settings(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .tcp_nodelay(true)
}

impl RaftNetworkFactory<Types> for Caller {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &ReplicaNode) -> Peer {
        Peer { caller: self.clone(), id: target, address: node.address.clone() }
    }
}

/// One other replica.
pub(crate) struct Peer {
    caller: Caller,
    id: u64,
    address: String,
}

impl Peer {
    async fn vote_at(
        &self,
        path: &'static str,
        request: VoteRequest<Types>,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let question = wire::VoteRequest {
            target: Some(self.caller.target(self.id)),
            vote: Some(write_vote(&request.vote)),
            last: request.last_log_id.as_ref().map(write_id),
            is_transfer: request.leadership_transfer,
        };
        let patience = self.caller.heartbeat * CALL_HEARTBEATS;
        let reply: wire::VoteReply =
            self.caller.ask(&self.address, path, question, patience).await.map_err(unreachable)?;
        let vote = read_vote(reply.vote).map_err(|error| broken(&error))?;
        Ok(VoteResponse { vote, vote_granted: reply.is_granted, last_log_id: reply.last.map(read_id) })
    }

    async fn open_stream<S>(&self, mut input: S) -> Result<Option<AppendStream<S>>, RPCError<Types>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin + 'static,
    {
        // The first request goes with the call, so that a lone one takes one round trip.
        let Some(first) = input.next().await else { return Ok(None) };
        let (requests, queue) = mpsc::channel(WINDOW_REQUESTS + 1);
        let (first, bytes) = write_request(first, Some(self.caller.target(self.id)));
        drop(requests.try_send(first));
        let patience = self.caller.heartbeat * STREAM_HEARTBEATS;
        let call = async {
            let mut grpc = self.caller.grpc(&self.address).await?;
            let codec = ProstCodec::<wire::AppendRequest, wire::AppendReply>::default();
            let queue = self.caller.token.show(ReceiverStream::new(queue));
            grpc.streaming(queue, PathAndQuery::from_static(APPEND_PATH), codec).await
        };
        let call = tokio::time::timeout(patience, call).await;
        let late = |_| unreachable(Status::deadline_exceeded("the peer did not answer in time"));
        let replies = call.map_err(late)?.map_err(unreachable)?.into_inner();
        let deadline = Box::pin(tokio::time::sleep(patience));
        let waiting = VecDeque::from([bytes]);
        Ok(Some(AppendStream {
            input: Some((input, requests)),
            replies: Some(replies),
            waiting,
            waiting_bytes: bytes,
            patience,
            deadline,
            held: None,
            held_until: Box::pin(tokio::time::sleep(COMMIT_HELD)),
        }))
    }
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let input = Box::pin(futures_util::stream::once(std::future::ready(request)));
        let replies = self.open_stream(input).await?;
        let reply = match replies {
            Some(mut replies) => replies.next().await,
            None => None,
        };
        let silent = || broken(&std::io::Error::other("the peer did not answer"));
        reply.ok_or_else(silent)?.map(AppendEntriesResponse::from)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>, RPCError<Types>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let replies: BoxStream<'s, _> = match self.open_stream(input).await? {
                Some(replies) => Box::pin(replies),
                None => Box::pin(futures_util::stream::empty()),
            };
            Ok(replies)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.vote_at(VOTE_PATH, request).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.vote_at(PRE_VOTE_PATH, request).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Types, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let send = tokio::time::timeout(option.soft_ttl(), self.send_snapshot(vote, snapshot));
        tokio::select! {
            sent = send => {
                let late = |_| Status::deadline_exceeded("the snapshot took too long");
                let status = match sent.map_err(late).flatten() {
                    Ok(vote) => return Ok(SnapshotResponse::new(vote)),
                    Err(status) => status,
                };
                // What has arrived stays there: the next attempt goes on with it.
                tracing::info!(group = self.caller.group, peer = %self.address, %status, "a snapshot did not get through");
                Err(StreamingError::Unreachable(Unreachable::new(&status)))
            }
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let question = wire::TransferRequest {
            target: Some(self.caller.target(*request.to_node_id())),
            from: Some(write_vote(request.from_leader())),
            last: request.last_log_id().map(write_id),
        };
        let patience = self.caller.heartbeat * CALL_HEARTBEATS;
        let ask = self.caller.ask(&self.address, TRANSFER_PATH, question, patience);
        let reply: wire::TransferReply = ask.await.map_err(unreachable)?;
        Ok(match reply.refusal.is_empty() {
            true => Ok(()),
            false => {
                tracing::info!(group = self.caller.group, peer = %self.address, reason = %reply.refusal, "a transfer was refused");
                let (expected, actual) = (request.last_log_id().copied(), None);
                Err(TransferLeaderError::LogNotFlushed { expected, actual })
            }
        })
    }

    fn backoff(&self) -> Option<Backoff> {
        // Whoever comes back is to be found soon.
        Some(Backoff::new(std::iter::repeat(self.caller.heartbeat)))
    }
}

impl Peer {
    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: SnapshotOf<Types, SnapshotFile>,
    ) -> Result<Vote, Status> {
        let (file, name) = (snapshot.snapshot, snapshot.meta.last_log_id);
        let (target, name) = (self.caller.target(self.id), file.name(name.as_ref()));
        let question = wire::OffsetRequest { target: Some(target.clone()), name: Some(name) };
        let ask = self.caller.ask(&self.address, OFFSET_PATH, question, OFFSET_PATIENCE);
        let offset = ask.await.map(|reply: wire::OffsetReply| reply.offset.min(name.bytes))?;
        let first = wire::InstallRequest {
            target: Some(target),
            vote: Some(write_vote(&vote)),
            name: Some(name),
            offset,
            data: Bytes::new(),
        };
        let (chunks, queue) = mpsc::channel(SNAPSHOT_CHUNKS_MAX);
        // It ends when nobody takes what it reads.
        tokio::spawn(read_chunks(file, first, chunks));
        let reply = self.caller.install(&self.address, ReceiverStream::new(queue)).await?;
        read_vote(reply.vote).map_err(|error| Status::internal(error.to_string()))
    }
}

/// Reads a snapshot from an offset on, until it ends or nobody wants more of it.
async fn read_chunks(
    snapshot: SnapshotFile,
    first: wire::InstallRequest,
    chunks: mpsc::Sender<wire::InstallRequest>,
) {
    let SnapshotFile { path, file, bytes, .. } = snapshot;
    let (start, file) = (first.offset, Arc::new(file));
    let read = async || -> std::io::Result<()> {
        let mut offset = start;
        let mut is_wanted = chunks.send(first).await.is_ok();
        while offset < bytes && is_wanted {
            let portion = usize::try_from(bytes - offset).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
            let file = Arc::clone(&file);
            let data = blocking(move || {
                let mut data = vec![0; portion];
                file.read_exact_at(&mut data, offset).map(|()| data)
            });
            let data = data.await?;
            offset += portion as u64;
            let chunk = wire::InstallRequest { data: data.into(), ..Default::default() };
            is_wanted = chunks.send(chunk).await.is_ok();
        }
        Ok(())
    };
    if let Err(error) = read().await {
        // The stream ends early, and the receiver says so.
        tracing::warn!(%error, path = %path.display(), "a snapshot could not be read");
    }
}

/// The answers on a stream; whoever polls them sends the requests.
struct AppendStream<S> {
    input: Option<(S, mpsc::Sender<wire::AppendRequest>)>,
    replies: Option<Streaming<wire::AppendReply>>,
    /// The sizes of the requests without an answer.
    waiting: VecDeque<usize>,
    waiting_bytes: usize,
    patience: Duration,
    /// When the next answer is to be there, if one is expected.
    deadline: Pin<Box<Sleep>>,
    /// A request that only says what is committed. The next one with entries says it as well; it goes alone only if none
    /// comes in time. So a lone command costs every follower one message, and not a second one that its client waits behind.
    held: Option<AppendEntriesRequest<Types>>,
    /// When the held one goes alone.
    held_until: Pin<Box<Sleep>>,
}

impl<S: Stream<Item = AppendEntriesRequest<Types>> + Unpin> AppendStream<S> {
    fn send(&mut self, context: &mut Context<'_>) {
        while self.waiting.len() < WINDOW_REQUESTS && self.waiting_bytes < WINDOW_BYTES {
            let Some((input, requests)) = &mut self.input else { return };
            let (next, is_over) = match input.poll_next_unpin(context) {
                Poll::Ready(Some(request)) if request.entries.is_empty() => {
                    if self.held.replace(request).is_none() {
                        self.held_until.as_mut().reset(tokio::time::Instant::now() + COMMIT_HELD);
                    }
                    continue;
                }
                Poll::Ready(Some(request)) => {
                    self.held = None;
                    (Some(request), false)
                }
                Poll::Ready(None) => (self.held.take(), true),
                Poll::Pending if self.held.is_none() => return,
                Poll::Pending => match self.held_until.as_mut().poll(context) {
                    Poll::Ready(()) => (self.held.take(), false),
                    Poll::Pending => return,
                },
            };
            if let Some(request) = next {
                let (request, bytes) = write_request(request, None);
                // There is room for the whole window. If the other side is gone, the answers say so.
                drop(requests.try_send(request));
                if self.waiting.is_empty() {
                    self.await_anew();
                }
                self.waiting.push_back(bytes);
                self.waiting_bytes += bytes;
            }
            if is_over {
                self.input = None;
            }
        }
    }

    fn await_anew(&mut self) {
        self.deadline.as_mut().reset(tokio::time::Instant::now() + self.patience);
    }

    fn end(&mut self) {
        self.input = None;
        self.replies = None;
    }
}

impl<S: Stream<Item = AppendEntriesRequest<Types>> + Unpin> Stream for AppendStream<S> {
    type Item = Result<StreamAppendResult<Types>, RPCError<Types>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.send(context);
        let Some(replies) = &mut this.replies else { return Poll::Ready(None) };
        let item = match replies.poll_next_unpin(context) {
            Poll::Ready(Some(Ok(reply))) => {
                this.waiting_bytes -= this.waiting.pop_front().unwrap_or_default();
                this.await_anew();
                read_reply(reply)
            }
            Poll::Ready(Some(Err(status))) => Err(unreachable(status)),
            Poll::Ready(None) if this.waiting.is_empty() => {
                this.end();
                return Poll::Ready(None);
            }
            Poll::Ready(None) => Err(broken(&std::io::Error::other("the peer ended the stream"))),
            Poll::Pending if this.waiting.is_empty() => return Poll::Pending,
            Poll::Pending => match this.deadline.as_mut().poll(context) {
                Poll::Ready(()) => {
                    Err(unreachable(Status::deadline_exceeded("the peer did not answer in time")))
                }
                Poll::Pending => return Poll::Pending,
            },
        };
        if !matches!(item, Ok(Ok(_))) {
            this.end();
        }
        Poll::Ready(Some(item))
    }
}

fn write_request(
    request: AppendEntriesRequest<Types>,
    target: Option<wire::Target>,
) -> (wire::AppendRequest, usize) {
    let entries: Vec<_> = request.entries.into_iter().map(write_entry).collect();
    let bytes = entries.iter().map(|entry| entry.body.len() + ENTRY_BYTES).sum::<usize>() + ENTRY_BYTES;
    let request = wire::AppendRequest {
        target,
        vote: Some(write_vote(&request.vote)),
        previous: request.prev_log_id.as_ref().map(write_id),
        entries,
        committed: request.leader_commit.as_ref().map(write_id),
    };
    (request, bytes)
}

fn read_reply(reply: wire::AppendReply) -> Result<StreamAppendResult<Types>, RPCError<Types>> {
    use wire::append_reply::Outcome;
    match reply.outcome {
        Some(Outcome::Matching(matching)) => Ok(Ok(matching.id.map(read_id))),
        Some(Outcome::Conflict(id)) => Ok(Err(StreamAppendError::Conflict(read_id(id)))),
        Some(Outcome::Higher(vote)) => {
            let vote = read_vote(Some(vote)).map_err(|error| broken(&error))?;
            Ok(Err(StreamAppendError::HigherVote(vote)))
        }
        None => Err(broken(&std::io::Error::other("the peer's answer makes no sense"))),
    }
}

/// What to answer on a stream of entries.
pub(crate) fn write_reply(result: &StreamAppendResult<Types>) -> wire::AppendReply {
    use wire::append_reply::Outcome;
    let outcome = match result {
        Ok(matching) => Outcome::Matching(wire::Matching { id: matching.as_ref().map(write_id) }),
        Err(StreamAppendError::Conflict(conflict)) => Outcome::Conflict(write_id(conflict)),
        Err(StreamAppendError::HigherVote(vote)) => Outcome::Higher(write_vote(vote)),
    };
    wire::AppendReply { outcome: Some(outcome) }
}

#[allow(clippy::needless_pass_by_value)]
fn unreachable(status: Status) -> RPCError<Types> {
    RPCError::Unreachable(Unreachable::new(&status))
}

fn broken(error: &std::io::Error) -> RPCError<Types> {
    RPCError::Network(NetworkError::new(error))
}

/// Where the calls go.
pub(crate) const APPEND_PATH: &str = "/synod.raft.v1.Raft/Append";
pub(crate) const VOTE_PATH: &str = "/synod.raft.v1.Raft/Vote";
pub(crate) const PRE_VOTE_PATH: &str = "/synod.raft.v1.Raft/PreVote";
pub(crate) const OFFSET_PATH: &str = "/synod.raft.v1.Raft/Offset";
pub(crate) const INSTALL_PATH: &str = "/synod.raft.v1.Raft/Install";
pub(crate) const TRANSFER_PATH: &str = "/synod.raft.v1.Raft/Transfer";
pub(crate) const JOIN_PATH: &str = "/synod.raft.v1.Raft/Join";
pub(crate) const STATUS_PATH: &str = "/synod.raft.v1.Raft/Status";

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// How often a connection is probed, and how long its answer may take: one that leads nowhere is given up after both.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// How many heartbeats a call may take.
const CALL_HEARTBEATS: u32 = 3;
/// How many heartbeats a stream of entries may be without an answer that is due. Disks stall for longer than calls may take;
/// that a peer is gone, its heartbeats tell.
const STREAM_HEARTBEATS: u32 = 20;
/// How long a follower may be without word of what is committed, if nothing else is to be said to it. More saves messages
/// where there is little to do, and lets followers know later.
const COMMIT_HELD: Duration = Duration::from_millis(5);
/// How many requests of a stream may be without an answer.
const WINDOW_REQUESTS: usize = 16;
/// How many bytes of them. One request may exceed it.
const WINDOW_BYTES: usize = 8 << 20;
/// What an entry takes in a message besides its body, at most.
const ENTRY_BYTES: usize = 64;
/// How much of a snapshot goes into one message.
const CHUNK_BYTES: usize = 256 << 10;
/// How many of these are read ahead.
const SNAPSHOT_CHUNKS_MAX: usize = 4;
/// How long a receiver may take to say what it has of a snapshot.
const OFFSET_PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;
    use crate::journal::EntryId;
    use crate::raft::types::{Command, log_id};

    type Requests = UnboundedReceiverStream<AppendEntriesRequest<Types>>;

    /// A stream of appends whose answers nobody waits for, and where its requests come out.
    fn stream(input: Requests) -> (AppendStream<Requests>, mpsc::Receiver<wire::AppendRequest>) {
        let (requests, sent) = mpsc::channel(WINDOW_REQUESTS + 1);
        let patience = Duration::from_secs(1);
        let stream = AppendStream {
            input: Some((input, requests)),
            replies: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            patience,
            deadline: Box::pin(tokio::time::sleep(patience)),
            held: None,
            held_until: Box::pin(tokio::time::sleep(COMMIT_HELD)),
        };
        (stream, sent)
    }

    /// Entry `index` if there is one, and the word that those up to `committed` are committed.
    fn request(index: Option<u64>, committed: u64) -> AppendEntriesRequest<Types> {
        let id = |index| log_id(EntryId { term: 1, index });
        let payload = openraft::EntryPayload::Normal(Command(Bytes::from_static(b"x")));
        let entry = |index| openraft::Entry { log_id: id(index), payload };
        AppendEntriesRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: None,
            entries: index.map(entry).into_iter().collect(),
            leader_commit: Some(id(committed)),
        }
    }

    /// What has come out: how many entries with each message, and what it says is committed.
    fn taken(sent: &mut mpsc::Receiver<wire::AppendRequest>) -> Vec<(usize, u64)> {
        let all = std::iter::from_fn(|| sent.try_recv().ok());
        all.map(|request| (request.entries.len(), request.committed.map_or(0, |id| id.index))).collect()
    }

    async fn send(stream: &mut AppendStream<Requests>) {
        std::future::poll_fn(|context| {
            stream.send(context);
            Poll::Ready(())
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_committed_goes_with_the_next_entries_and_alone_when_none_come() {
        let (input, inputs) = mpsc::unbounded_channel();
        let (mut stream, mut sent) = stream(inputs.into());
        let mut after = async |requests: Vec<AppendEntriesRequest<Types>>, pause: Duration| {
            for request in requests {
                input.send(request).expect("it is taken");
            }
            tokio::time::sleep(pause).await;
            send(&mut stream).await;
            taken(&mut sent)
        };
        let soon = COMMIT_HELD / 5;
        assert_eq!(after(vec![request(Some(1), 0)], Duration::ZERO).await, [(1, 0)]);
        // A lone word of a commit waits, and the next entry says the same.
        assert_eq!(after(vec![request(None, 1)], soon).await, []);
        assert_eq!(after(vec![request(Some(2), 1)], soon).await, [(1, 1)]);
        // Where nothing follows it goes by itself, the latest of several; they do not put each other off.
        assert_eq!(after(vec![request(None, 2)], soon).await, []);
        assert_eq!(after(vec![request(None, 3)], soon).await, []);
        assert_eq!(after(vec![], COMMIT_HELD - 2 * soon).await, []);
        assert_eq!(after(vec![], soon * 2).await, [(0, 3)]);
        assert_eq!(after(vec![], COMMIT_HELD).await, []);
        // And it goes when nothing can follow any more.
        assert_eq!(after(vec![request(None, 4)], soon).await, []);
        drop(input);
        send(&mut stream).await;
        assert_eq!(taken(&mut sent), [(0, 4)]);
        assert!(stream.input.is_none());
    }
}
