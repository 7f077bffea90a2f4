//! Nodes as processes of their own, in one directory, for as long as this process lives.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use synod_queue::Client;
use synod_queue::link::LinkConfig;
use synod_store::http_client::get_json;

use crate::jobs::QueueJson;

/// Some nodes, of which any may be down.
#[derive(Debug)]
pub(crate) struct Nodes {
    dir: PathBuf,
    synod: PathBuf,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    name: String,
    api: SocketAddr,
    process: Option<Child>,
}

impl Nodes {
    /// Makes the directory and the configuration. Nothing runs yet.
    pub(crate) fn lay_out(dir: &Path, synod: PathBuf, count: usize) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let mut nodes = Vec::new();
        let mut next_port = PORT_FIRST + std::process::id() % 500 * PORTS_PER_NODE * 9;
        for number in 1..=count {
            let api = free_ports(&mut next_port)?;
            nodes.push(Node { name: format!("node{number}"), api, process: None });
        }
        let mut yaml = String::from(
            "registry:
  backend: gossip
  namespace: verify
  gossip: {gossip_interval_ms: 100, full_sync_interval_sec: 1, suspect_timeout_sec: 10, fail_timeout_sec: 20}
initial_cluster:
  replication: {total_slots: 12, replicas: 3}
  nodes:
",
        );
        for Node { name, api, .. } in &nodes {
            yaml += &format!("    - {{node_id: {name}, bind_addr: '{api}', disks: [{{path: ./{name}}}]}}\n");
        }
        fs::write(dir.join(CONFIG), yaml)?;
        Ok(Self { dir: dir.into(), synod, nodes })
    }

    pub(crate) fn start_all(&mut self) -> io::Result<()> {
        (0..self.nodes.len()).try_for_each(|node| self.start(node))
    }

    /// Starts a node that is down.
    pub(crate) fn start(&mut self, node: usize) -> io::Result<()> {
        let Node { name, process, .. } = &mut self.nodes[node];
        let log = OpenOptions::new().create(true).append(true).open(self.dir.join(format!("{name}.log")))?;
        let arguments = ["start", "--conf", CONFIG, "--node", name, "--leave-patience", "2"];
        let mut command = Command::new(&self.synod);
        let command =
            command.args(arguments).current_dir(&self.dir).stdin(Stdio::null()).stdout(Stdio::null());
        *process = Some(command.stderr(log).spawn()?);
        Ok(())
    }

    /// Starts those again that ended though nobody killed them, and tells how many.
    pub(crate) fn revive(&mut self) -> io::Result<u32> {
        let mut revived = 0;
        for node in 0..self.nodes.len() {
            let process = self.nodes[node].process.as_mut();
            if process.map(Child::try_wait).transpose()?.flatten().is_some() {
                self.start(node)?;
                revived += 1;
            }
        }
        Ok(revived)
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, node: usize) -> io::Result<()> {
        if let Some(mut process) = self.nodes[node].process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, node: usize, signal: &str) -> io::Result<()> {
        let Some(process) = &self.nodes[node].process else { return Ok(()) };
        let sent = Command::new("kill").args(["-s", signal, &process.id().to_string()]).status()?;
        if sent.success() { Ok(()) } else { Err(io::Error::other(format!("SIG{signal} could not be sent"))) }
    }

    /// Has all leave, and waits for that.
    pub(crate) async fn stop(&mut self) {
        for node in 0..self.nodes.len() {
            // One that is gone already has nothing to hear.
            drop(self.signal(node, "TERM"));
        }
        let deadline = Instant::now() + PATIENCE;
        for node in 0..self.nodes.len() {
            while let Some(process) = &mut self.nodes[node].process
                && matches!(process.try_wait(), Ok(None))
                && Instant::now() < deadline
            {
                tokio::time::sleep(PAUSE).await;
            }
            drop(self.kill(node));
        }
    }

    /// Asks a node to leave, and waits until it has.
    pub(crate) async fn leave(&mut self, node: usize) -> Result<(), String> {
        self.signal(node, "TERM").map_err(|error| error.to_string())?;
        let deadline = Instant::now() + PATIENCE;
        while let Some(process) = &mut self.nodes[node].process {
            if !matches!(process.try_wait(), Ok(None)) {
                self.nodes[node].process = None;
            } else if Instant::now() > deadline {
                return Err(format!("{} did not leave for {} s", self.name(node), PATIENCE.as_secs()));
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    /// A client of the queue that knows all nodes.
    pub(crate) fn client(&self, name: &str, patience: Duration) -> Client {
        let peers = self.nodes.iter().map(|node| format!("{}:{}", node.api.ip(), node.api.port() + 1));
        Client::new(LinkConfig { name: name.to_owned(), patience, ..LinkConfig::new(peers) })
    }

    /// Waits until there is a leader, which it tells, and all nodes have what it has, but for what is on its way.
    pub(crate) async fn until_whole(&mut self) -> Result<usize, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let leader = self.until_served().await?;
            let mut applied = Vec::new();
            for api in self.apis() {
                let seen = look(api).await.and_then(|seen| Some(seen.groups.first()?.applied_index));
                applied.push(seen);
            }
            let first = applied.iter().flatten().max().copied().unwrap_or(0);
            if applied.iter().all(|one| one.is_some_and(|one| one + NEAR >= first)) {
                return Ok(leader);
            }
            if Instant::now() > deadline {
                return Err(format!("a node did not catch up for {} s", PATIENCE.as_secs()));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    pub(crate) fn apis(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.api).collect()
    }

    /// Where each node keeps its part of the queue.
    pub(crate) fn queue_dirs(&self) -> Vec<PathBuf> {
        self.nodes.iter().map(|node| self.dir.join(&node.name).join("queue")).collect()
    }

    /// The node that leads, if one says so and all others know of a leader: then none is missing. All are asked at once, for
    /// one that is frozen does not answer.
    async fn leader(&self) -> Option<usize> {
        let mut asked = tokio::task::JoinSet::new();
        for (node, api) in self.apis().into_iter().enumerate() {
            asked.spawn(async move { (node, look(api).await) });
        }
        let (mut leader, mut following) = (None, 0);
        while let Some(answer) = asked.join_next().await {
            let Ok((node, Some(seen))) = answer else { continue };
            let Some(group) = seen.groups.first() else { continue };
            following += usize::from(group.leader.is_some());
            if group.leads && group.serves && group.voters.len() >= 3 {
                leader = leader.max(Some((group.term, node)));
            }
        }
        leader.filter(|_| following == self.nodes.len()).map(|(_, node)| node)
    }

    /// Waits until no node is missing, and tells which one leads. Starts nodes again that have ended.
    pub(crate) async fn until_served(&mut self) -> Result<usize, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(leader) = self.leader().await {
                return Ok(leader);
            }
            if Instant::now() > deadline {
                return Err(format!("not all nodes were there, with a leader, for {} s", PATIENCE.as_secs()));
            }
            self.revive().map_err(|error| error.to_string())?;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            // There is nobody left to hear of it.
            drop(self.kill(node));
        }
    }
}

/// The queue as a node sees it, if it answers.
pub(crate) async fn look(api: SocketAddr) -> Option<QueueJson> {
    get_json(&format!("http://{api}/v1/queue"), LOOK_TIMEOUT).await.ok()
}

/// As many free ports in a row as a node has listeners. They are below those that the system gives to outgoing connections,
/// or one of these could take them before the node does.
fn free_ports(next: &mut u32) -> io::Result<SocketAddr> {
    for _ in 0..1_000 {
        let first = PORT_FIRST + (*next - PORT_FIRST) % (PORT_LAST - PORT_FIRST);
        *next = first + PORTS_PER_NODE;
        let is_free = |port: u32| {
            let address = (Ipv4Addr::LOCALHOST, u16::try_from(port).unwrap_or_default());
            TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
        };
        if (first..first + PORTS_PER_NODE).all(is_free) {
            return Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), u16::try_from(first).unwrap_or_default()));
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "there are no free ports"))
}

const CONFIG: &str = "cluster.yaml";
const PORTS_PER_NODE: u32 = 5;
const PORT_FIRST: u32 = 11_000;
const PORT_LAST: u32 = 32_000;
/// Far longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
const LOOK_TIMEOUT: Duration = Duration::from_millis(500);
/// A replica that is behind by so few entries, under load, has caught up.
const NEAR: u64 = 50;
