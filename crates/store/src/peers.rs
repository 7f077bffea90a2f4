//! The way to the registries of other nodes.
//!
//! Each peer has a queue and a task. The task takes all that waits, sends it as one call, and waits for the receipt before
//! it sends more, so that messages to one peer keep their order and a slow peer costs no more than its queue. What cannot
//! be delivered is dropped: the machine asks again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::Message as _;
use synod_cluster::remote::BearerToken;
use synod_core::slots::{ClusterId, SlotMessage};
use synod_core::{Authority, MemberId, NodeId};
use synod_wire::slots as wire;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::codec;
use crate::service::{DELIVER_PATH, MESSAGE_BYTES_MAX, REQUEST_PATH};

/// The peers of a node.
#[derive(Debug)]
pub(crate) struct Peers {
    peers: BTreeMap<NodeId, Peer>,
    token: BearerToken,
    counters: Arc<PeerCounters>,
}

/// What became of messages to peers.
#[derive(Debug, Default)]
pub(crate) struct PeerCounters {
    pub(crate) delivered: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) failed: AtomicU64,
}

#[derive(Debug)]
struct Peer {
    queue: mpsc::Sender<SlotMessage>,
    channel: Channel,
    task: JoinHandle<()>,
}

impl Peers {
    /// The way from `own` to each of `peers`. Connections are made when something is to be sent.
    ///
    /// # Errors
    /// An address that is not one.
    pub(crate) fn start(
        cluster: ClusterId,
        own: &MemberId,
        peers: impl IntoIterator<Item = (NodeId, Authority)>,
        token: BearerToken,
    ) -> Result<Self, tonic::transport::Error> {
        let counters = Arc::<PeerCounters>::default();
        let mut started = BTreeMap::new();
        for (node, authority) in peers {
            let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE)
                .tcp_nodelay(true);
            let channel = endpoint.connect_lazy();
            let (queue, waiting) = mpsc::channel(QUEUE_MAX);
            let link = Link {
                cluster,
                own: own.clone(),
                peer: node.clone(),
                channel: channel.clone(),
                token: token.clone(),
                counters: Arc::clone(&counters),
            };
            let task = tokio::spawn(link.run(waiting));
            started.insert(node, Peer { queue, channel, task });
        }
        Ok(Self { peers: started, token, counters })
    }

    /// Queues a message. One that finds no room is dropped and counted.
    pub(crate) fn send(&self, to: &NodeId, message: SlotMessage) {
        let sent = self.peers.get(to).is_some_and(|peer| peer.queue.try_send(message).is_ok());
        if !sent {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks `to` to do something for a client of this node.
    ///
    /// # Errors
    /// It could not be reached, or did not answer in time.
    pub(crate) async fn request(
        &self,
        to: &NodeId,
        request: wire::RegisterRequest,
        patience: Duration,
    ) -> Result<wire::RegisterReply, Status> {
        let peer = self.peers.get(to).ok_or_else(|| Status::not_found(format!("there is no node {to}")))?;
        let call = unary(peer.channel.clone(), REQUEST_PATH, self.token.show(request));
        match tokio::time::timeout(patience, call).await {
            Ok(answer) => answer,
            Err(_) => Err(Status::deadline_exceeded(format!("{to} did not answer in time"))),
        }
    }

    /// What became of messages.
    pub(crate) const fn counters(&self) -> &Arc<PeerCounters> {
        &self.counters
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.peers.values().for_each(|peer| peer.task.abort());
    }
}

struct Link {
    cluster: ClusterId,
    own: MemberId,
    peer: NodeId,
    channel: Channel,
    token: BearerToken,
    counters: Arc<PeerCounters>,
}

impl Link {
    async fn run(self, mut waiting: mpsc::Receiver<SlotMessage>) {
        let mut messages = Vec::new();
        loop {
            messages.clear();
            if waiting.recv_many(&mut messages, BATCH_MAX).await == 0 {
                return;
            }
            self.deliver(&messages).await;
        }
    }

    /// Sends messages in calls that are not too long.
    async fn deliver(&self, messages: &[SlotMessage]) {
        let mut rest = codec::batch(self.cluster, &self.own, messages);
        let all = std::mem::take(&mut rest.messages);
        let mut some = rest.clone();
        let mut length = 0;
        for message in all {
            let bytes = message.encoded_len();
            if length + bytes > BATCH_BYTES_MAX && !some.messages.is_empty() {
                self.send(std::mem::replace(&mut some, rest.clone())).await;
                length = 0;
            }
            length += bytes;
            some.messages.push(message);
        }
        self.send(some).await;
    }

    async fn send(&self, batch: wire::SlotBatch) {
        let count = batch.messages.len() as u64;
        let call = unary::<_, wire::SlotReceipt>(self.channel.clone(), DELIVER_PATH, self.token.show(batch));
        let counter = match tokio::time::timeout(DELIVER_TIMEOUT, call).await {
            Ok(Ok(_)) => &self.counters.delivered,
            Ok(Err(error)) => {
                tracing::debug!(peer = %self.peer, %error, "messages of the registry were not delivered");
                &self.counters.failed
            }
            Err(_) => {
                tracing::debug!(peer = %self.peer, "a peer did not take messages of the registry in time");
                &self.counters.failed
            }
        };
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

async fn unary<Q, R>(channel: Channel, path: &'static str, request: Request<Q>) -> Result<R, Status>
where
    Q: prost::Message + 'static,
    R: prost::Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
        .accept_compressed(CompressionEncoding::Gzip);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = http::uri::PathAndQuery::from_static(path);
    let reply = grpc.unary(request, path, ProstCodec::<Q, R>::default()).await?;
    Ok(reply.into_inner())
}

/// Most messages that wait for one peer.
const QUEUE_MAX: usize = 8192;
/// Most messages of one call.
const BATCH_MAX: usize = 1024;
/// From how many bytes on a call is cut in two.
const BATCH_BYTES_MAX: usize = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const DELIVER_TIMEOUT: Duration = Duration::from_secs(2);
const KEEP_ALIVE: Duration = Duration::from_secs(5);
