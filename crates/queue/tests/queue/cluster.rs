//! Three nodes in this process, each with a listener and a disk of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use synod_cluster::remote::PeerService;
use synod_core::jobs::JobLimits;
use synod_log::FileDisk;
use synod_queue::link::LinkConfig;
use synod_queue::raft::GroupConfig;
use synod_queue::{Client, DeskConfig, QueueNode, QueueOptions, QueueServices};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long anything may take that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Some nodes, of which any may be down.
pub(crate) struct Cluster {
    dir: TempDir,
    addresses: Vec<SocketAddr>,
    options: Box<dyn Fn(&mut QueueOptions) + Send + Sync>,
    pub(crate) nodes: Vec<Option<Node>>,
}

pub(crate) struct Node {
    pub(crate) queue: QueueNode,
    listener: JoinHandle<()>,
}

impl Cluster {
    pub(crate) async fn start(count: usize) -> Self {
        Self::with(count, |_| {}).await
    }

    /// Nodes whose options are changed before they start.
    pub(crate) async fn with(
        count: usize,
        options: impl Fn(&mut QueueOptions) + Send + Sync + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut addresses = Vec::new();
        let mut kept = Vec::new();
        for _ in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            addresses.push(listener.local_addr().expect("an address"));
            kept.push(listener);
        }
        drop(kept);
        let nodes = (0..count).map(|_| None).collect();
        let mut cluster = Self { dir, addresses, options: Box::new(options), nodes };
        for node in 0..count {
            cluster.start_node(node).await;
        }
        cluster
    }

    pub(crate) async fn start_node(&mut self, node: usize) {
        self.try_start_node(node).await.expect("a node");
    }

    pub(crate) async fn try_start_node(&mut self, node: usize) -> Result<(), synod_queue::QueueError> {
        let services = QueueServices::new("test".to_owned(), Some("peer"), Some("client"));
        let listener = TcpListener::bind(self.addresses[node]).await.expect("the port is free");
        let listener = tokio::spawn(listen(listener, services.peer_services()));
        let nodes =
            self.addresses.iter().enumerate().map(|(node, address)| (name(node), address.to_string()));
        let mut options = QueueOptions {
            node: name(node),
            nodes: nodes.collect(),
            dir: self.node_dir(node),
            groups: 1,
            group: GroupConfig::default(),
            desk: DeskConfig::default(),
            limits: JobLimits::default(),
            is_new_cluster: true,
            beanstalk: None,
        };
        (self.options)(&mut options);
        let started = QueueNode::start(options, &services).await;
        if started.is_err() {
            listener.abort();
        }
        self.nodes[node] = Some(Node { queue: started?, listener });
        Ok(())
    }

    pub(crate) fn node_dir(&self, node: usize) -> std::path::PathBuf {
        Path::new(self.dir.path()).join(name(node))
    }

    /// A client that knows all nodes.
    pub(crate) fn client(&self) -> Client {
        self.client_of(0)
    }

    /// The same, of another group than the first.
    pub(crate) fn client_of(&self, group: u16) -> Client {
        let node = self.nodes.iter().flatten().next().expect("a node runs");
        Client::new(LinkConfig { group, ..node.queue.link_config() })
    }

    /// Ends a node without a word.
    pub(crate) async fn kill(&mut self, node: usize) {
        let Node { queue, listener } = self.nodes[node].take().expect("it runs");
        listener.abort();
        queue.stop(Duration::ZERO).await;
        drop(listener.await);
        // A node in this process lets its log go a little after it has stopped.
        let log = self.node_dir(node).join("log");
        eventually("the log is let go", || FileDisk::open(&log).ok()).await;
    }

    /// Has a node hand over what it leads, and leave.
    pub(crate) async fn leave(&mut self, node: usize) -> bool {
        let Node { queue, listener } = self.nodes[node].take().expect("it runs");
        let is_handed_over = queue.stop(PATIENCE).await;
        listener.abort();
        drop(listener.await);
        is_handed_over
    }

    /// Waits until a node leads, and all that are to vote do. Tells which.
    pub(crate) async fn leader(&self) -> usize {
        self.leader_of(0).await
    }

    /// The same, of another group than the first.
    pub(crate) async fn leader_of(&self, group: u16) -> usize {
        let count = self.nodes.iter().flatten().count();
        eventually("a leader of the whole group", || {
            self.nodes.iter().enumerate().find_map(|(node, running)| {
                let view = running.as_ref()?.queue.groups().swap_remove(group.into());
                let is_whole = view.status.voters.len() >= count.min(3);
                (view.lead.is_own && view.lead.serves && is_whole).then_some(node)
            })
        })
        .await
    }
}

/// Waits until all replicas of a group that run are as far as each other, and says that they have come to the same.
pub(crate) async fn replicas_agree(cluster: &Cluster, group: u16) {
    let digests = eventually("all are as far", || {
        let nodes = cluster.nodes.iter().flatten();
        let digests: Vec<_> = nodes.map(|node| node.queue.groups()[usize::from(group)].digest).collect();
        digests.iter().all(|digest| digest.0 == digests[0].0).then_some(digests)
    });
    let digests = digests.await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

pub(crate) fn name(node: usize) -> String {
    format!("node{}", node + 1)
}

/// Waits for something that only a look tells.
pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("in time")
}

async fn listen(listener: TcpListener, services: Vec<Arc<dyn PeerService>>) {
    let services = Arc::new(services);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let services = Arc::clone(&services);
        connections.spawn(async move {
            let answer = service_fn(|request: http::Request<hyper::body::Incoming>| {
                let name = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or_default();
                let service = services.iter().find(|service| service.name() == name).expect("a service");
                let answer = service.call(request.map(tonic::body::Body::new));
                async move { Ok::<_, std::convert::Infallible>(answer.await) }
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // Whoever hangs up has done so.
            drop(connection.serve_connection(TokioIo::new(stream), answer).await);
        });
    }
}
