//! The part of the tour that is about what nodes keep: three nodes with disks, S3 and a job queue on each of them, and some
//! that die.

mod jobs;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use synod_cluster::quickstart::{QuickstartReport, QuickstartStep};
use synod_core::NodeId;
use synod_core::objects::{EntryName, Space};
use synod_core::slots::SlotRegistryConfig;
use synod_queue::Client;
use synod_s3::client::S3Client;
use synod_store::config::NodeConfig;
use synod_store::node::{Node, NodeOptions, Origin};
use synod_store::objects::KeeperConfig;
use tokio::time::Instant;

use crate::gateway::GatewayApi;
use crate::jobs::JobsApi;

/// Puts, gets, loses a node, and gets again.
pub(super) async fn tour(tell: &mut (dyn FnMut(&QuickstartStep) + Send)) -> QuickstartReport {
    let began = Instant::now();
    let dir = std::env::temp_dir().join(format!(
        "synod-quickstart-{}-{:08x}",
        std::process::id(),
        fastrand::u32(..)
    ));
    let mut steps = Vec::new();
    let mut tour = Tour { dir: dir.clone(), config: None, nodes: Vec::new(), key: None };
    // Each step needs the one before it.
    let mut note = |name, node: Option<&str>, at: Instant, seen: Result<String, String>| {
        let step = QuickstartStep::new(name, node, at.elapsed(), seen);
        tell(&step);
        let ok = step.ok;
        steps.push(step);
        ok
    };
    let at = Instant::now();
    let mut ok = note("objects", None, at, tour.start().await);
    if ok {
        let at = Instant::now();
        ok = note("put", Some("node1"), at, tour.put().await);
    }
    if ok {
        let at = Instant::now();
        ok = note("get", Some("node3"), at, tour.get(2, "without asking where it is").await);
    }
    if ok {
        let at = Instant::now();
        ok = note("once", None, at, tour.race().await);
    }
    if ok {
        let (at, primary) = (Instant::now(), tour.primary());
        let name = format!("node{}", primary + 1);
        ok = note("failover", Some(&name), at, tour.lose(primary).await);
    }
    if ok {
        let at = Instant::now();
        ok = note("back", None, at, tour.bring_back().await);
    }
    if ok {
        let at = Instant::now();
        ok = note("jobs", None, at, tour.do_jobs().await);
    }
    if ok {
        let (at, leader) = (Instant::now(), tour.leader());
        let name = format!("node{}", leader + 1);
        note("leader", Some(&name), at, tour.lose_leader(leader).await);
    }
    tour.stop().await;
    // It is in the temporary directory either way.
    drop(std::fs::remove_dir_all(&dir));
    QuickstartReport::new(steps, began.elapsed())
}

struct Tour {
    dir: PathBuf,
    config: Option<NodeConfig>,
    nodes: Vec<Option<Running>>,
    key: Option<(String, String)>,
}

/// A node with all that it serves.
struct Running {
    node: Node,
    gateway: GatewayApi,
    jobs: JobsApi,
    s3: SocketAddr,
    client: Client,
}

impl Running {
    /// Ends it without a word.
    async fn kill(self) {
        self.jobs.stop(Duration::ZERO).await;
        self.gateway.stop(Duration::ZERO).await;
        self.node.kill().await;
    }
}

impl Tour {
    async fn start(&mut self) -> Result<String, String> {
        let config = NodeConfig::parse(&layout(&self.dir)?).map_err(|error| error.to_string())?;
        self.config = Some(config.clone());
        let mut starting = tokio::task::JoinSet::new();
        for index in 0..NODES {
            let config = config.clone();
            starting.spawn(async move { (index, start(index, config, true).await) });
        }
        let mut started: Vec<_> = starting.join_all().await;
        started.sort_by_key(|(index, _)| *index);
        for (_, node) in started {
            self.nodes.push(Some(node?));
        }
        let Some(Some(first)) = self.nodes.first() else { return Err("no node runs".to_owned()) };
        let key = first.gateway.new_key("quickstart").await?;
        self.key = Some((key.id, key.secret));
        let addresses = self.nodes.iter().flatten().map(|node| node.s3.to_string());
        Ok(format!("S3 on {}", addresses.collect::<Vec<_>>().join(", ")))
    }

    async fn put(&self) -> Result<String, String> {
        let client = self.client(0)?;
        expect(client.create_bucket(BUCKET).await, 200)?;
        expect(client.put(BUCKET, KEY, body(), &[]).await, 200)?;
        Ok(format!("{} KiB are on the disks of a majority", BODY_BYTES / 1024))
    }

    async fn get(&self, index: usize, how: &str) -> Result<String, String> {
        let reply = expect(self.client(index)?.get(BUCKET, KEY).await, 200)?;
        match reply.body == body() {
            true => Ok(format!("the same {} KiB, {how}", BODY_BYTES / 1024)),
            false => Err("other bytes came back".to_owned()),
        }
    }

    /// Many clients want to be the first.
    async fn race(&self) -> Result<String, String> {
        let mut racing = tokio::task::JoinSet::new();
        for index in 0..RACERS {
            let client = self.client(index % NODES)?;
            racing.spawn(async move {
                let body = Bytes::from(format!("{index}"));
                let reply = client.put(BUCKET, "leader", body, &[("if-none-match", "*")]).await;
                reply.map(|reply| reply.status.as_u16())
            });
        }
        let statuses = racing.join_all().await;
        let count = |wanted: u16| {
            statuses.iter().filter(|status| matches!(status, Ok(one) if *one == wanted)).count()
        };
        match (count(200), count(412)) {
            (1, others) if others == RACERS - 1 => {
                Ok(format!("of {RACERS} puts with If-None-Match: * on three nodes one won"))
            }
            _ => Err(format!("{statuses:?}")),
        }
    }

    /// Loses a node without a word, and gets the object through another one.
    async fn lose(&mut self, index: usize) -> Result<String, String> {
        self.nodes[index].take().ok_or("the node is gone")?.kill().await;
        let client = self.client((index + 1) % NODES)?;
        let began = Instant::now();
        loop {
            let written = client.put(BUCKET, KEY, body(), &[]).await;
            match written {
                Ok(reply) if reply.status.is_success() => break,
                _ if began.elapsed() > PATIENCE => return Err(format!("nothing is written: {written:?}")),
                _ => {}
            }
        }
        let elapsed = began.elapsed().as_millis();
        self.get((index + 2) % NODES, "through the third").await?;
        Ok(format!("its primary was killed; the next write was acknowledged after {elapsed} ms"))
    }

    /// The node that serves the object.
    fn primary(&self) -> usize {
        let Some(Some(Running { node, .. })) = self.nodes.first() else { return 0 };
        let total_slots = node.registry().bootstrap().replication.total_slots;
        let slot = EntryName::new(Space::Object, BUCKET, KEY).map(|name| name.slot(total_slots));
        let primary = slot.ok().and_then(|slot| node.registry().primary(slot));
        let index = (0..NODES).find(|index| primary.as_ref().is_some_and(|node| *node == name(*index)));
        index.unwrap_or(0)
    }

    fn client(&self, index: usize) -> Result<Arc<S3Client>, String> {
        let Some(Some(Running { s3, .. })) = self.nodes.get(index) else {
            return Err("the node is gone".to_owned());
        };
        let (id, secret) = self.key.as_ref().ok_or("there is no key")?;
        Ok(Arc::new(S3Client::new(&format!("http://{s3}"), id, secret)))
    }

    async fn stop(&mut self) {
        for node in self.nodes.drain(..).flatten() {
            node.kill().await;
        }
    }
}

async fn start(index: usize, config: NodeConfig, is_new_cluster: bool) -> Result<Running, String> {
    let (gateway, jobs) = (GatewayApi::default(), JobsApi::default());
    let options = NodeOptions {
        node: name(index),
        origin: Origin::Config(Box::new(config)),
        force_takeover: false,
        is_new_cluster,
        registry: SlotRegistryConfig::default(),
        keeper: KeeperConfig::default(),
        extensions: vec![Arc::new(gateway.clone()), Arc::new(jobs.clone())],
        services: vec![Arc::new(jobs.clone())],
    };
    let node = Node::start(options).await.map_err(|error| error.to_string())?;
    let s3 = gateway.start(&node, None).await.map_err(|error| error.to_string())?;
    let client = jobs.start(&node, is_new_cluster).await.map_err(|error| error.to_string())?;
    let client = client.ok_or("the cluster has no job queue")?;
    Ok(Running { node, gateway, jobs, s3, client })
}

fn expect(
    reply: Result<synod_s3::client::Reply, synod_s3::client::ClientError>,
    status: u16,
) -> Result<synod_s3::client::Reply, String> {
    let reply = reply.map_err(|error| error.to_string())?;
    match reply.status.as_u16() == status {
        true => Ok(reply),
        false => Err(format!("status {}: {}", reply.status, reply.text())),
    }
}

fn name(index: usize) -> NodeId {
    let Ok(name) = NodeId::new(&format!("node{}", index + 1)) else { unreachable!("a node name") };
    name
}

fn layout(dir: &Path) -> Result<String, String> {
    let mut text = "registry:
  namespace: quickstart
  gossip: {gossip_interval_ms: 50, full_sync_interval_sec: 1, suspect_timeout_sec: 1, fail_timeout_sec: 2}
initial_cluster:
  replication: {total_slots: 64, replicas: 3}
  nodes:
"
    .to_owned();
    for index in 0..NODES {
        let port = free_ports().ok_or("no free ports were found")?;
        let disk = dir.join(format!("node{}", index + 1));
        text += &format!(
            "    - {{node_id: {}, bind_addr: '127.0.0.1:{port}', disks: [{{path: '{}'}}]}}\n",
            name(index),
            disk.display()
        );
    }
    Ok(text)
}

/// The first of five ports in a row that nobody uses now.
fn free_ports() -> Option<u16> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    (0..100).find_map(|_| {
        let first = fastrand::u16(20_000..32_000);
        (first..first + 5).all(is_free).then_some(first)
    })
}

fn body() -> Bytes {
    let mut bytes = vec![0; BODY_BYTES];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes.into()
}

const NODES: usize = 3;
const RACERS: usize = 12;
const BUCKET: &str = "quickstart";
const KEY: &str = "greetings/hello.bin";
const BODY_BYTES: usize = 256 * 1024;
const PATIENCE: Duration = Duration::from_secs(30);
