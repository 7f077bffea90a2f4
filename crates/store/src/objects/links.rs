//! The way to the object planes of other nodes: one stream for all that is said, and calls for parts.
//!
//! Everything said to a peer waits in one bounded queue and leaves on one stream, as many frames at a time as wait. What
//! finds no room, or was on a stream that broke, is lost: machines ask again, and whoever waits for a reply is told that the
//! way is broken. Parts travel on a connection of their own, so that a large body does not hold up a small head.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use synod_cluster::remote::BearerToken;
use synod_core::slots::ClusterId;
use synod_core::{Authority, MemberId, NodeId};
use synod_wire::objects as wire;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::service::{DELIVER_PATH, MESSAGE_BYTES_MAX, READ_PART_PATH, WRITE_PART_PATH};
use crate::codec::cluster_bytes;
use crate::lock;

/// The links of a node to all others.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: BTreeMap<NodeId, Link>,
    token: BearerToken,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct Link {
    queue: mpsc::Sender<wire::ObjectFrame>,
    parts: Channel,
    task: JoinHandle<()>,
}

impl Links {
    /// Links from `own` to each of `peers`. `broken` is told when a stream to a peer broke: replies of that peer may be
    /// lost.
    ///
    /// # Errors
    /// An address that is not one.
    pub(crate) fn start(
        cluster: ClusterId,
        own: &MemberId,
        peers: impl IntoIterator<Item = (NodeId, Authority)>,
        broken: &Arc<dyn Fn(&NodeId) + Send + Sync>,
        token: BearerToken,
    ) -> Result<Self, tonic::transport::Error> {
        let mut links = BTreeMap::new();
        for (node, authority) in peers {
            let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
                .initial_stream_window_size(WINDOW_BYTES)
                .initial_connection_window_size(WINDOW_BYTES)
                .tcp_nodelay(true);
            let (queue, waiting) = mpsc::channel(QUEUE_MAX);
            let speaker = Speaker {
                channel: endpoint.connect_lazy(),
                peer: node.clone(),
                waiting: Arc::new(Mutex::new(waiting)),
                envelope: wire::ObjectBatch {
                    cluster: cluster_bytes(cluster),
                    node: own.node.to_string(),
                    incarnation: own.incarnation.get(),
                    frames: Vec::new(),
                },
                broken: Arc::clone(broken),
                token: token.clone(),
            };
            let task = tokio::spawn(speaker.run());
            links.insert(node, Link { queue, parts: endpoint.connect_lazy(), task });
        }
        Ok(Self { links, token, dropped: AtomicU64::new(0) })
    }

    /// Says something to a peer. False when there was no room; then it is lost, and counted.
    pub(crate) fn send(&self, to: &NodeId, frame: wire::ObjectFrame) -> bool {
        let is_sent = self.links.get(to).is_some_and(|link| link.queue.try_send(frame).is_ok());
        if !is_sent {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_sent
    }

    /// How much found no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Has `to` keep a part, whose header and data come as a stream.
    pub(crate) async fn write_part(
        &self,
        to: &NodeId,
        chunks: impl Stream<Item = wire::PartChunk> + Send + 'static,
    ) -> Result<wire::PartSeal, Status> {
        let mut grpc = Grpc::new(self.parts(to)?);
        ready(&mut grpc).await?;
        let codec = ProstCodec::<wire::PartChunk, wire::PartSeal>::default();
        let path = http::uri::PathAndQuery::from_static(WRITE_PART_PATH);
        Ok(grpc.client_streaming(self.token.show(chunks), path, codec).await?.into_inner())
    }

    /// Reads a range of a part from `from`.
    pub(crate) async fn read_part(
        &self,
        from: &NodeId,
        request: wire::PartRequest,
    ) -> Result<Streaming<wire::PartData>, Status> {
        let mut grpc = Grpc::new(self.parts(from)?).max_decoding_message_size(MESSAGE_BYTES_MAX);
        ready(&mut grpc).await?;
        let codec = ProstCodec::<wire::PartRequest, wire::PartData>::default();
        let path = http::uri::PathAndQuery::from_static(READ_PART_PATH);
        Ok(grpc.server_streaming(self.token.show(request), path, codec).await?.into_inner())
    }

    fn parts(&self, node: &NodeId) -> Result<Channel, Status> {
        let link =
            self.links.get(node).ok_or_else(|| Status::not_found(format!("there is no node {node}")))?;
        Ok(link.parts.clone())
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.links.values().for_each(|link| link.task.abort());
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))
}

/// Keeps one stream to one peer open.
struct Speaker {
    channel: Channel,
    peer: NodeId,
    waiting: Arc<Mutex<mpsc::Receiver<wire::ObjectFrame>>>,
    envelope: wire::ObjectBatch,
    broken: Arc<dyn Fn(&NodeId) + Send + Sync>,
    token: BearerToken,
}

impl Speaker {
    async fn run(self) {
        loop {
            // Nothing is opened before there is something to say.
            let first = std::future::poll_fn(|context| lock(&self.waiting).poll_recv(context)).await;
            let Some(first) = first else { return };
            let batches = Batches {
                waiting: Arc::clone(&self.waiting),
                envelope: self.envelope.clone(),
                next: Some(first),
            };
            if let Err(status) = self.speak(batches).await {
                tracing::info!(peer = %self.peer, %status, "the stream to a peer broke");
            }
            (self.broken)(&self.peer);
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    async fn speak(&self, batches: Batches) -> Result<Response<wire::ObjectReceipt>, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        ready(&mut grpc).await?;
        let codec = ProstCodec::<wire::ObjectBatch, wire::ObjectReceipt>::default();
        let path = http::uri::PathAndQuery::from_static(DELIVER_PATH);
        grpc.client_streaming(self.token.show(batches), path, codec).await
    }
}

/// All that waits, as one batch at a time.
struct Batches {
    waiting: Arc<Mutex<mpsc::Receiver<wire::ObjectFrame>>>,
    envelope: wire::ObjectBatch,
    next: Option<wire::ObjectFrame>,
}

impl Stream for Batches {
    type Item = wire::ObjectBatch;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<wire::ObjectBatch>> {
        let this = &mut *self;
        let mut waiting = lock(&this.waiting);
        let mut frames = Vec::new();
        let mut bytes = 0;
        loop {
            let frame = match this.next.take() {
                Some(frame) => frame,
                None => match waiting.poll_recv(context) {
                    Poll::Ready(Some(frame)) => frame,
                    Poll::Ready(None) if frames.is_empty() => return Poll::Ready(None),
                    Poll::Pending if frames.is_empty() => return Poll::Pending,
                    Poll::Ready(None) | Poll::Pending => break,
                },
            };
            bytes += frame.encoded_len();
            frames.push(frame);
            if bytes >= BATCH_BYTES || frames.len() >= BATCH_FRAMES_MAX {
                break;
            }
        }
        Poll::Ready(Some(wire::ObjectBatch { frames, ..this.envelope.clone() }))
    }
}

/// The first chunk of a part, which names it.
pub(crate) fn part_header(cluster: ClusterId, id: Bytes, slot: u16) -> wire::PartChunk {
    let header = wire::part_chunk::PartHeader { cluster: cluster_bytes(cluster), id, slot: slot.into() };
    wire::PartChunk { body: Some(wire::part_chunk::Body::Header(header)) }
}

/// Frames that may wait for one peer.
const QUEUE_MAX: usize = 8192;
/// A batch is sent when it has so many bytes, or as soon as nothing more waits.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_FRAMES_MAX: usize = 512;
const WINDOW_BYTES: u32 = 4 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Longer than a busy disk or processor holds a node up: what is under way when a stream is given up stays unknown.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
