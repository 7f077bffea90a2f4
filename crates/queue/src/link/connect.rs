//! Finds the leader and connects to it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::uri::PathAndQuery;
use synod_cluster::remote::BearerToken;
use synod_core::jobs::GatewayId;
use synod_wire::queue as wire;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};
use tonic_prost::ProstCodec;

use super::LinkConfig;
use crate::connect::Connect;
use crate::service::{CONNECT_PATH, MESSAGE_BYTES_MAX, PROTOCOL_VERSION};

/// A stream to the leader that was welcomed.
pub(super) struct Connection {
    pub(super) requests: mpsc::Sender<wire::Request>,
    pub(super) responses: Streaming<wire::Response>,
    pub(super) window: usize,
    pub(super) silence: Duration,
    /// Since which entry of the log the queue knows the numbers of this link.
    pub(super) since: u64,
}

impl Connection {
    /// Says goodbye, and waits a little for the leader to hear it.
    pub(super) async fn close(self) {
        let Self { requests, mut responses, .. } = self;
        let goodbye = wire::Request { goodbye: true, ..wire::Request::default() };
        let heard = async {
            // Without the connection there is nobody to say it to.
            drop(requests.send(goodbye).await);
            drop(requests);
            // Whatever the leader still says concerns nobody.
            while let Ok(Some(_)) = responses.message().await {}
        };
        drop(timeout(GOODBYE, heard).await);
    }
}

/// Looks for the leader.
pub(super) struct Seeker {
    hello: wire::Hello,
    token: BearerToken,
    connect: Arc<dyn Connect>,
    /// All nodes that were heard of.
    addresses: BTreeSet<String>,
}

impl Seeker {
    pub(super) fn new(config: &LinkConfig) -> Self {
        let hello = wire::Hello {
            version: PROTOCOL_VERSION,
            group: config.group.into(),
            gateway: fastrand::u64(1..),
            name: config.name.clone(),
        };
        let (token, connect) = (config.token.clone(), Arc::clone(&config.connect));
        Self { hello, token, connect, addresses: config.seeds.iter().cloned().collect() }
    }

    /// As whom the queue knows this link.
    pub(super) const fn gateway(&self) -> GatewayId {
        GatewayId::new(self.hello.gateway)
    }

    /// Comes as somebody else from now on, whose numbers were never used.
    pub(super) fn rename(&mut self) {
        self.hello.gateway = fastrand::u64(1..);
    }

    /// Asks all nodes again and again, side by side, until one of them says that it leads. A node that hangs delays nobody.
    ///
    /// # Errors
    /// A node says that there is no such group.
    pub(super) async fn seek(&mut self) -> Result<Connection, NoGroup> {
        let began = Instant::now();
        let mut searches = FuturesUnordered::new();
        for address in &self.addresses {
            searches.push(self.ask(address.clone(), began));
        }
        loop {
            match searches.next().await {
                Some(Found::Leader(connection)) => return Ok(*connection),
                Some(Found::NoGroup) => return Err(NoGroup),
                Some(Found::Hint { from, leader }) => {
                    searches.push(self.ask(from, began));
                    if !leader.is_empty()
                        && self.addresses.len() < ADDRESSES_MAX
                        && self.addresses.insert(leader.clone())
                    {
                        searches.push(self.ask(leader, began));
                    }
                }
                // Without anybody to ask there is nothing to find.
                None => std::future::pending().await,
            }
        }
    }
}

impl Seeker {
    fn ask(&self, address: String, began: Instant) -> impl Future<Output = Found> + Send + use<> {
        ask(address, began, self.hello.clone(), self.token.clone(), Arc::clone(&self.connect))
    }
}

/// The cluster has no group of this number.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoGroup;

enum Found {
    Leader(Box<Connection>),
    NoGroup,
    Hint { from: String, leader: String },
}

/// Asks one node until it has something to say.
async fn ask(
    address: String,
    began: Instant,
    hello: wire::Hello,
    token: BearerToken,
    connector: Arc<dyn Connect>,
) -> Found {
    let mut channel = None;
    loop {
        if channel.is_none() {
            channel = connect(&*connector, &address).await;
        }
        if let Some(connected) = &channel {
            match timeout(ANSWER_PATIENCE, greet(connected.clone(), &hello, &token)).await {
                Ok(Ok(Greeted::Welcome(connection))) => return Found::Leader(connection),
                Ok(Ok(Greeted::NotLeader(leader))) => {
                    sleep(pause(began)).await;
                    return Found::Hint { from: address, leader };
                }
                Ok(Err(status)) if status.code() == Code::NotFound => {
                    // So that whoever goes on asking does not do so without a pause.
                    sleep(LONG_PAUSE).await;
                    return Found::NoGroup;
                }
                Ok(Err(status)) => {
                    tracing::debug!(%address, %status, "a node did not say whether it leads");
                    channel = None;
                }
                Err(_) => channel = None,
            }
        }
        sleep(pause(began)).await;
    }
}

/// How long it takes until a node is asked again: not long while an election may be under way, longer after that.
fn pause(began: Instant) -> Duration {
    if began.elapsed() < ELECTION_PATIENCE { PAUSE } else { LONG_PAUSE }
}

async fn connect(connector: &dyn Connect, address: &str) -> Option<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW);
    connector.connect(&endpoint).await.ok()
}

enum Greeted {
    Welcome(Box<Connection>),
    NotLeader(String),
}

async fn greet(channel: Channel, hello: &wire::Hello, token: &BearerToken) -> Result<Greeted, tonic::Status> {
    let (requests, outgoing) = mpsc::channel(REQUESTS_MAX);
    let first = wire::Request { hello: Some(hello.clone()), ..wire::Request::default() };
    // There is room for the first one.
    drop(requests.try_send(first));
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<wire::Request, wire::Response>::default();
    let path = PathAndQuery::from_static(CONNECT_PATH);
    let request = token.show(ReceiverStream::new(outgoing));
    let mut responses = grpc.streaming(request, path, codec).await?.into_inner();
    let greeting = responses.message().await?.and_then(|response| response.greeting);
    match greeting {
        Some(wire::response::Greeting::Welcome(welcome)) => Ok(Greeted::Welcome(Box::new(Connection {
            requests,
            responses,
            window: usize::try_from(welcome.window).unwrap_or(usize::MAX).max(1),
            silence: Duration::from_millis(welcome.silence_ms.max(SILENCE_MS_MIN).into()),
            since: welcome.since,
        }))),
        Some(wire::response::Greeting::NotLeader(told)) => Ok(Greeted::NotLeader(told.leader)),
        None => Err(tonic::Status::unavailable("the node ended the stream without a greeting")),
    }
}

/// How long it takes until a node is asked again, at first.
const PAUSE: Duration = Duration::from_millis(25);
/// And when no leader was found for longer than an election takes.
const LONG_PAUSE: Duration = Duration::from_millis(250);
const ELECTION_PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a node may take to say whether it leads. A leader has to write that down first.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_millis(500);
/// Messages between the driver and the connection.
const REQUESTS_MAX: usize = 8;
/// Bytes on their way to this side before the leader has to wait.
const STREAM_WINDOW: u32 = 4 << 20;
/// A leader that would have streams talk more often than this is not listened to.
const SILENCE_MS_MIN: u32 = 300;
/// Nodes that are asked.
const ADDRESSES_MAX: usize = 64;
