//! A cluster of replicas on the loopback interface, any of which can be killed, wiped and started again.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use openraft::async_runtime::watch::WatchReceiver as _;
use synod_cluster::remote::{BearerToken, PeerService};
use synod_log::FileDisk;
use synod_log::sim_disk::SimDisk;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::{Channel, Endpoint};

use super::List;
use crate::connect::{Channels, Connect};
use crate::journal::{Journal, JournalConfig};
use crate::raft::{
    Applied, Group, GroupConfig, GroupError, GroupParts, GroupStatus, NodeAddress, ProposeError, RaftService,
};

pub(super) const CLUSTER: &str = "the-cluster";
pub(super) const GROUP: u16 = 5;

/// Slow machines stall for longer than the default elections take.
pub(super) fn config() -> GroupConfig {
    GroupConfig { election_ms: 300..600, heartbeat_ms: 60, ..GroupConfig::default() }
}

pub(super) struct Node {
    pub(super) group: Group<List>,
    journal: Arc<Journal>,
    service: RaftService,
    calls: Calls,
    listener: JoinHandle<()>,
}

/// The calls of a node to the others, which can be kept from getting through.
#[derive(Clone, Debug, Default)]
struct Calls {
    is_cut: Arc<AtomicBool>,
    /// How often something did not get through.
    lost: Arc<AtomicUsize>,
}

impl Calls {
    fn pass(&self) -> io::Result<()> {
        if self.is_cut.load(Ordering::Relaxed) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Err(io::Error::other("the line is cut"));
        }
        Ok(())
    }
}

impl Connect for Calls {
    fn channel(&self, endpoint: &Endpoint) -> Channel {
        endpoint.connect_with_connector_lazy(self.clone())
    }

    fn connect<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> BoxFuture<'a, Result<Channel, tonic::transport::Error>> {
        Box::pin(endpoint.connect_with_connector(self.clone()))
    }
}

impl tower_service::Service<http::Uri> for Calls {
    type Response = TokioIo<Line>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        let calls = self.clone();
        Box::pin(async move {
            calls.pass()?;
            let stream = TcpStream::connect(uri.authority().map_or("", |to| to.as_str())).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(Line { stream, calls }))
        })
    }
}

/// A connection that breaks when it is used after it was cut.
struct Line {
    stream: TcpStream,
    calls: Calls,
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.calls.pass()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

pub(super) struct Cluster {
    pub(super) addresses: Vec<NodeAddress>,
    dirs: Vec<TempDir>,
    /// Nodes whose logs are not on a real disk.
    disks: BTreeMap<usize, SimDisk>,
    nodes: Vec<Option<Node>>,
    config: GroupConfig,
    token: BearerToken,
}

impl Cluster {
    /// So many nodes, all of which are started.
    pub(super) async fn start(count: usize, config: GroupConfig) -> Self {
        let mut cluster = Self::new(count, config).await;
        for node in 0..count {
            cluster.start_node(node).await;
        }
        cluster
    }

    /// So many nodes, none of which is started.
    pub(super) async fn new(count: usize, config: GroupConfig) -> Self {
        let mut addresses = Vec::new();
        let mut listeners = Vec::new();
        for node in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
            let address = listener.local_addr().expect("it has an address").to_string();
            addresses.push(NodeAddress { name: format!("node-{node}"), address });
            listeners.push(listener);
        }
        let dirs = (0..count).map(|_| TempDir::new().expect("there is a directory")).collect();
        let token = BearerToken::new(Some("of the cluster"));
        let (disks, nodes) = (BTreeMap::new(), (0..count).map(|_| None).collect());
        Self { addresses, dirs, disks, nodes, config, token }
    }

    pub(super) async fn start_node(&mut self, node: usize) {
        self.try_start_node(node).await.expect("the replica opens");
    }

    pub(super) async fn try_start_node(&mut self, node: usize) -> Result<(), GroupError> {
        let service = RaftService::new(CLUSTER.into(), self.token.clone());
        let address = &self.addresses[node].address;
        let listener = TcpListener::bind(address).await.expect("the port is still free");
        let listener = tokio::spawn(listen(listener, service.clone()));
        let opened = match self.disks.get(&node) {
            Some(disk) => Journal::open(JournalConfig::default(), disk.clone()),
            None => {
                let disk = FileDisk::open(self.dirs[node].path().join("log")).expect("the directory opens");
                Journal::open(JournalConfig::default(), disk)
            }
        };
        let journal = Arc::new(opened.expect("the journal opens").0);
        let calls = Calls::default();
        let parts = GroupParts {
            group: GROUP,
            node: self.addresses[node].name.clone(),
            nodes: self.addresses.clone(),
            dir: self.dirs[node].path().join("group"),
            journal: Arc::clone(&journal),
            config: self.config.clone(),
            machine: List::default(),
            service: service.clone(),
            channels: Arc::new(Channels::new(Arc::new(calls.clone()))),
            is_new_cluster: false,
        };
        let group = Group::open(parts).await.inspect_err(|_| listener.abort())?;
        self.nodes[node] = Some(Node { group, journal, service, calls, listener });
        Ok(())
    }

    /// Cuts a node off: it hears nobody, and nobody hears it. It goes on.
    pub(super) async fn cut(&mut self, node: usize) {
        let running = self.nodes[node].as_mut().expect("it runs");
        running.calls.is_cut.store(true, Ordering::Relaxed);
        running.listener.abort();
        drop((&mut running.listener).await);
    }

    /// How many calls of a node did not get through.
    pub(super) fn lost_calls(&self, node: usize) -> usize {
        self.nodes[node].as_ref().expect("it runs").calls.lost.load(Ordering::Relaxed)
    }

    /// Connects a node again.
    pub(super) async fn mend(&mut self, node: usize) {
        let listener =
            TcpListener::bind(&self.addresses[node].address).await.expect("the port is still free");
        let running = self.nodes[node].as_mut().expect("it runs");
        running.listener = tokio::spawn(listen(listener, running.service.clone()));
        running.calls.is_cut.store(false, Ordering::Relaxed);
    }

    /// Ends a node without a word.
    pub(super) async fn kill(&mut self, node: usize) {
        let Node { group, mut journal, listener, .. } = self.nodes[node].take().expect("it runs");
        listener.abort();
        group.stop().await;
        drop(group);
        // Tasks of the engine let go of it one after the other.
        let journal = loop {
            match Arc::try_unwrap(journal) {
                Ok(journal) => break journal,
                Err(shared) => journal = shared,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        drop(journal);
    }

    /// Has a node that does not run yet write its log to this disk.
    pub(super) fn put_log_on(&mut self, node: usize, disk: SimDisk) {
        self.disks.insert(node, disk);
    }

    pub(super) fn wipe(&mut self, node: usize) {
        self.dirs[node] = TempDir::new().expect("there is a directory");
    }

    pub(super) fn dir(&self, node: usize) -> &Path {
        self.dirs[node].path()
    }

    pub(super) fn group(&self, node: usize) -> &Group<List> {
        &self.nodes[node].as_ref().expect("it runs").group
    }

    pub(super) fn running(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_some())
    }

    /// Waits until somebody leads a group that serves, and says which node that is.
    pub(super) async fn leader(&self) -> usize {
        let mut waits = JoinSet::new();
        for node in self.running() {
            let mut lead = self.group(node).lead();
            waits.spawn(async move { lead.wait_for(|lead| lead.is_own && lead.serves).await.map(|_| node) });
        }
        let first = in_time("a leader", waits.join_next()).await;
        first.expect("nodes run").expect("nobody panics").expect("it goes on")
    }

    /// Proposes to whoever leads until it is applied. Entries that are told apart by their bytes may get in twice.
    pub(super) async fn put(&self, entry: impl Into<Bytes>) -> Applied<usize> {
        let entry = entry.into();
        loop {
            let leader = self.leader().await;
            let outcome = match self.group(leader).propose(entry.clone()).await {
                Ok(proposed) => in_time("an answer", proposed).await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(applied) => return applied,
                // A leader that has just ended is none any more.
                Err(ProposeError::NotLeader { .. } | ProposeError::Unknown | ProposeError::Stopped) => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Waits until all voters are there.
    pub(super) async fn complete(&self) -> GroupStatus {
        let leader = self.leader().await;
        let voters = self.config.voters.min(self.addresses.len());
        status_when(self.group(leader), |status| status.voters.len() == voters && !status.is_changing).await
    }

    /// Waits until all running nodes have applied this entry, and says what they have.
    pub(super) async fn settle(&self, index: u64) -> List {
        let mut lists = Vec::new();
        for node in self.running() {
            status_when(self.group(node), |status| status.applied >= Some(index)).await;
            lists.push(self.group(node).read(List::clone));
        }
        let first = lists.pop().expect("nodes run");
        for list in lists {
            assert_eq!(list, first);
        }
        first
    }
}

/// Waits until a replica is as it should be.
pub(super) async fn status_when(group: &Group<List>, is_it: impl Fn(&GroupStatus) -> bool) -> GroupStatus {
    let mut metrics = group.inner().raft.metrics();
    let wait = async {
        loop {
            metrics.borrow_and_update();
            let status = group.status();
            if is_it(&status) {
                return status;
            }
            metrics.changed().await.expect("it goes on");
        }
    };
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(status) => status,
        Err(_) => panic!("the replica does not get there: {:#?}", group.status()),
    }
}

pub(super) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

async fn listen(listener: TcpListener, service: RaftService) {
    // Dropped with the task: then all connections end at once.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("it listens");
        stream.set_nodelay(true).expect("it is a socket");
        let service = service.clone();
        connections.spawn(async move {
            let answer = service_fn(|request: http::Request<hyper::body::Incoming>| {
                let answer = service.call(request.map(tonic::body::Body::new));
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            drop(connection.serve_connection(TokioIo::new(stream), answer).await);
        });
    }
}

const PATIENCE: Duration = Duration::from_secs(30);
