//! Two clusters in one process, real sockets and disks: one that is used, and one that is its archive.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use synod_archive::{Archive, ArchiveSettings, ArchiveWorker, Archived, WorkerConfig};
use synod_core::NodeId;
use synod_core::objects::{EntryName, Space};
use synod_core::slots::SlotRegistryConfig;
use synod_s3::client::{Reply, S3Client, object_path};
use synod_s3::{Gateway, GatewayConfig, Keys, Permissions};
use synod_store::config::{ArchiveSecret, NodeConfig};
use synod_store::node::{Node, NodeOptions, Origin};
use synod_store::objects::contract::ObjectStore;
use synod_store::objects::{KeeperConfig, Objects};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// The cluster that is the archive of others.
pub(crate) struct Elsewhere {
    node: Node,
    gateway: Option<Gateway>,
    address: SocketAddr,
    key: (String, String),
    pub(crate) client: S3Client,
    /// What is between it and those whose archive it is.
    pub(crate) valve: Valve,
    _dir: tempfile::TempDir,
}

impl Elsewhere {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let config = NodeConfig::parse(&yaml(dir.path(), 1, "elsewhere")).expect("a configuration");
        let node = start_node(&config, 1).await;
        let key = new_key(node.objects().clone()).await;
        let gateway = listen(node.objects().clone(), any_address()).await;
        let address = gateway.address();
        let client = client(address, &key);
        let made = client.create_bucket(BUCKET).await.expect("an answer");
        assert!(made.status.is_success(), "{}", made.text());
        let valve = Valve::before(address).await;
        Self { node, gateway: Some(gateway), address, key, client, valve, _dir: dir }
    }

    /// Nobody is reached there from now on.
    pub(crate) async fn go_down(&mut self) {
        self.gateway.take().expect("a gateway").shutdown(Duration::ZERO).await;
    }

    pub(crate) async fn come_back(&mut self) {
        self.gateway = Some(listen(self.node.objects().clone(), self.address).await);
    }

    /// The lines of a configuration that make it the archive.
    fn yaml(&self) -> String {
        let (address, (id, secret)) = (self.valve.address, &self.key);
        format!(
            "archive:
  archive_type: s3
  s3:
    bucket: {BUCKET}
    endpoint: http://{address}
    allow_http: true
    credentials: {{access_key_id: '{id}', secret_access_key: '{secret}'}}
"
        )
    }

    /// The copy of an object of the cluster with the default namespace, if it is there.
    pub(crate) async fn copy(&self, key: &str) -> Option<Reply> {
        let reply = self.client.get(BUCKET, &format!("default/{PHOTOS}/{key}")).await.expect("an answer");
        reply.status.is_success().then_some(reply)
    }

    pub(crate) async fn until_copied(&self, key: &str, body: &Bytes) -> Reply {
        eventually(&format!("{key} is archived"), async || {
            let copy = self.copy(key).await.ok_or("no copy")?;
            if copy.body == *body { Ok(copy) } else { Err(format!("{} other bytes", copy.body.len())) }
        })
        .await
    }

    /// How many requests of an operation had this answer.
    pub(crate) fn answered(&self, operation: &str, status: u16) -> u64 {
        let counters = self.gateway.as_ref().expect("a gateway").counters();
        let of = counters.operations.iter().find(|of| of.operation == operation);
        of.and_then(|of| of.statuses.get(&status)).copied().unwrap_or(0)
    }

    /// Uploads in parts that nobody has ended.
    pub(crate) async fn open_uploads(&self) -> usize {
        let path = format!("/{BUCKET}");
        let reply = self.client.call(Method::GET, &path, &[("uploads", "")], &[], Bytes::new()).await;
        reply.expect("an answer").text().matches("<UploadId>").count()
    }

    /// Begins an upload in parts of the copy of an object, and leaves it.
    pub(crate) async fn leave_upload(&self, key: &str) -> String {
        let path = object_path(BUCKET, &format!("default/{PHOTOS}/{key}"));
        let reply = self.client.call(Method::POST, &path, &[("uploads", "")], &[], Bytes::new()).await;
        let text = reply.expect("an answer").text();
        let (_, rest) = text.split_once("<UploadId>").expect("an upload");
        rest.split_once('<').expect("an upload").0.to_owned()
    }
}

/// Passes connections on, until it is told not to: then it cuts all of them after so many bytes, or keeps answers back.
pub(crate) struct Valve {
    address: SocketAddr,
    /// How many more bytes go towards the other end.
    room: Arc<watch::Sender<u64>>,
    /// How many more bytes come back before the rest waits.
    answers: Arc<watch::Sender<u64>>,
    task: tokio::task::JoinHandle<()>,
}

impl Valve {
    async fn before(address: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind(any_address()).await.expect("a port");
        let own = listener.local_addr().expect("an address");
        let room = Arc::new(watch::Sender::new(u64::MAX));
        let answers = Arc::new(watch::Sender::new(u64::MAX));
        let shared = (Arc::clone(&room), Arc::clone(&answers));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let (room, answers) = shared.clone();
                connections.spawn(pass_on(near, address, room, answers));
            }
        });
        Self { address: own, room, answers, task }
    }

    pub(crate) fn close_after(&self, bytes: u64) {
        self.room.send_replace(bytes);
    }

    /// Answers wait, after so many bytes of them.
    pub(crate) fn hold_after(&self, bytes: u64) {
        self.answers.send_replace(bytes);
    }

    pub(crate) fn open(&self) {
        self.room.send_replace(u64::MAX);
        self.answers.send_replace(u64::MAX);
    }

    /// Until something waits.
    pub(crate) async fn until_held(&self) {
        let mut answers = self.answers.subscribe();
        let held = tokio::time::timeout(PATIENCE, answers.wait_for(|left| *left < 64 << 10)).await;
        held.expect("not held in time").expect("a valve");
    }

    pub(crate) async fn until_closed(&self) {
        let mut room = self.room.subscribe();
        let closed = tokio::time::timeout(PATIENCE, room.wait_for(|room| *room == 0)).await;
        closed.expect("not closed in time").expect("a valve");
    }
}

impl Drop for Valve {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One connection, until either end closes it or there is no more room.
async fn pass_on(
    mut near: TcpStream,
    address: SocketAddr,
    room: Arc<watch::Sender<u64>>,
    answers: Arc<watch::Sender<u64>>,
) {
    let Ok(mut far) = TcpStream::connect(address).await else { return };
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.split(), far.split());
    let there = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = near_in.read(&mut buffer).await {
            let allowed = usize::try_from(take(&room, count as u64)).expect("no more than there are");
            if far_out.write_all(&buffer[..allowed]).await.is_err() || allowed < count {
                return;
            }
        }
    };
    let back = async {
        let (mut buffer, mut allowed) = (vec![0; 64 << 10], answers.subscribe());
        while let Ok(count @ 1..) = far_in.read(&mut buffer).await {
            let is_open = allowed.wait_for(|allowed| *allowed >= count as u64).await.is_ok();
            take(&answers, count as u64);
            if !is_open || near_out.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! { () = there => {}, () = back => {} }
}

/// Takes up to so many bytes of what is left, unless there is no end to it.
fn take(left: &watch::Sender<u64>, wanted: u64) -> u64 {
    let mut taken = 0;
    left.send_modify(|left| {
        taken = wanted.min(*left);
        if *left < u64::MAX {
            *left -= taken;
        }
    });
    taken
}

/// A cluster with an archive.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    config: NodeConfig,
    pub(crate) nodes: Vec<Option<Running>>,
    key: (String, String),
    pub(crate) client: S3Client,
}

pub(crate) struct Running {
    node: Node,
    gateway: Gateway,
    worker: Option<ArchiveWorker>,
    pub(crate) store: Archived<Objects>,
}

impl Cluster {
    /// Nodes that are ready, with a bucket.
    pub(crate) async fn start(elsewhere: &Elsewhere, count: usize, has_workers: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let text = yaml(dir.path(), count, "default") + &elsewhere.yaml();
        let config = NodeConfig::parse(&text).expect("a configuration");
        let mut starting = tokio::task::JoinSet::new();
        for number in 1..=count {
            let config = config.clone();
            starting.spawn(async move { (number, Running::start(&config, number, has_workers).await) });
        }
        let mut nodes: Vec<Option<Running>> = (0..count).map(|_| None).collect();
        while let Some(started) = starting.join_next().await {
            let (number, running) = started.expect("a task");
            nodes[number - 1] = Some(running);
        }
        let first = nodes[0].as_ref().expect("a node");
        let key = new_key(first.store.clone()).await;
        let client = client(first.gateway.address(), &key);
        let made = client.create_bucket(PHOTOS).await.expect("an answer");
        assert!(made.status.is_success(), "{}", made.text());
        Self { dir, config, nodes, key, client }
    }

    pub(crate) fn store(&self) -> &Archived<Objects> {
        &self.nodes[0].as_ref().expect("a node").store
    }

    pub(crate) fn objects(&self) -> &Objects {
        self.nodes[0].as_ref().expect("a node").node.objects()
    }

    /// Ends a node without a word, in the middle of whatever it does.
    pub(crate) async fn kill(&mut self, index: usize) {
        let Running { node, gateway, worker, .. } = self.nodes[index].take().expect("a node");
        drop(worker);
        drop(gateway);
        node.kill().await;
    }

    pub(crate) async fn restart(&mut self, index: usize) {
        let running = Running::start(&self.config, index + 1, true).await;
        if index == 0 {
            self.client = client(running.gateway.address(), &self.key);
        }
        self.nodes[index] = Some(running);
    }

    pub(crate) fn stop_workers(&mut self) {
        for running in self.nodes.iter_mut().flatten() {
            running.worker = None;
        }
    }

    pub(crate) fn start_workers(&mut self) {
        for running in self.nodes.iter_mut().flatten() {
            let archive = open_archive(&running.node, &self.config);
            running.worker = Some(ArchiveWorker::start(running.node.objects(), &archive, worker_config()));
        }
    }

    pub(crate) async fn put(&self, key: &str, body: &Bytes) {
        let headers = [("content-type", "image/png"), ("x-amz-meta-author", "somebody")];
        let reply = self.client.put(PHOTOS, key, body.clone(), &headers).await.expect("an answer");
        assert!(reply.status.is_success(), "{key}: {}", reply.text());
    }

    pub(crate) async fn get(&self, key: &str) -> Reply {
        self.client.get(PHOTOS, key).await.expect("an answer")
    }

    pub(crate) async fn delete(&self, key: &str) {
        let reply = self.client.delete(PHOTOS, key, &[]).await.expect("an answer");
        assert!(reply.status.is_success(), "{key}: {}", reply.text());
    }

    /// Whether the cluster knows anything of the copy of an object.
    pub(crate) async fn has_record(&self, key: &str) -> bool {
        let name = EntryName::new(Space::Archive, PHOTOS, key).expect("a name");
        self.objects().read(&name).await.expect("an answer").is_some()
    }

    /// Removes the files of all parts on all disks, and says how many there were.
    pub(crate) fn lose_parts(&self) -> usize {
        let mut lost = 0;
        for number in 1..=self.nodes.len() {
            let dir = self.dir.path().join(format!("node{number}/objects/parts"));
            for file in files(&dir) {
                std::fs::remove_file(file).expect("a file");
                lost += 1;
            }
        }
        lost
    }
}

impl Running {
    async fn start(config: &NodeConfig, number: usize, has_worker: bool) -> Self {
        let node = start_node(config, number).await;
        let archive = open_archive(&node, config);
        let worker = has_worker.then(|| ArchiveWorker::start(node.objects(), &archive, worker_config()));
        let store = Archived::new(node.objects().clone(), Some(archive));
        let gateway = listen(store.clone(), any_address()).await;
        Self { node, gateway, worker, store }
    }
}

fn open_archive(node: &Node, config: &NodeConfig) -> Archive {
    let bootstrap = node.registry().bootstrap();
    let text = bootstrap.archive.as_deref().expect("an archive");
    let secret = config.archive_secret.as_ref().map(ArchiveSecret::expose);
    let settings = ArchiveSettings::parse(text, secret).expect("settings");
    Archive::open(&settings, &bootstrap.namespace).expect("an archive")
}

/// Soon again, so that a test sees the end of everything.
fn worker_config() -> WorkerConfig {
    WorkerConfig {
        walk_interval: Duration::from_secs(1),
        grace: Duration::from_secs(2),
        backoff_max: Duration::from_secs(1),
        ..WorkerConfig::default()
    }
}

async fn start_node(config: &NodeConfig, number: usize) -> Node {
    let options = NodeOptions {
        node: NodeId::new(&format!("node{number}")).expect("a name"),
        origin: Origin::Config(Box::new(config.clone())),
        force_takeover: false,
        is_new_cluster: false,
        registry: SlotRegistryConfig::default(),
        keeper: KeeperConfig::default(),
        extensions: Vec::new(),
        services: Vec::new(),
    };
    Node::start(options).await.expect("a node")
}

async fn listen<S: ObjectStore>(store: S, address: SocketAddr) -> Gateway {
    eventually("the gateway listens", async || {
        Gateway::start(store.clone(), GatewayConfig::new(address)).await.map_err(|error| error.to_string())
    })
    .await
}

async fn new_key<S: ObjectStore>(store: S) -> (String, String) {
    let keys = Keys::new(store);
    let key =
        eventually("a key", async || keys.create("test").await.map_err(|error| error.to_string())).await;
    keys.allow(&key.id, "*", Permissions::ALL).await.expect("permissions");
    keys.allow_creating_buckets(&key.id, true).await.expect("permissions");
    (key.id, key.secret)
}

fn client(address: SocketAddr, (id, secret): &(String, String)) -> S3Client {
    S3Client::new(&format!("http://{address}"), id, secret)
}

fn yaml(dir: &Path, count: usize, namespace: &str) -> String {
    let mut text = format!(
        "registry:
  namespace: {namespace}
  gossip: {{gossip_interval_ms: 100, full_sync_interval_sec: 1, suspect_timeout_sec: 5, fail_timeout_sec: 10}}
initial_cluster:
  replication: {{total_slots: 8, replicas: 3}}
  nodes:
"
    );
    for number in 1..=count {
        let (port, disk) = (free_ports(), dir.join(format!("node{number}")));
        let disk = disk.display();
        text += &format!(
            "    - {{node_id: node{number}, bind_addr: '127.0.0.1:{port}', disks: [{{path: '{disk}'}}]}}\n"
        );
    }
    text
}

/// Asks again and again, until the answer is good.
pub(crate) async fn eventually<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) if tokio::time::Instant::now() > deadline => {
                panic!("not within {PATIENCE:?}: {what}: {error}")
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Bytes that are not compressible and differ by their length.
pub(crate) fn body(bytes: usize) -> Bytes {
    let mut state = bytes as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

pub(crate) fn object(key: &str) -> EntryName {
    EntryName::new(Space::Object, PHOTOS, key).expect("a name")
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn any_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn free_ports() -> u16 {
    loop {
        let first =
            TcpListener::bind(any_address()).expect("a port").local_addr().expect("an address").port();
        let is_free = |port| TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).is_ok();
        if first < 65_000 && (first..first + 5).all(is_free) {
            return first;
        }
    }
}

pub(crate) const PHOTOS: &str = "photos";
const BUCKET: &str = "synod-archive";
const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(50);
