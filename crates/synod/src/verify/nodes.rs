//! Nodes as processes of their own, in one directory, for as long as this process lives.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use synod_store::http_client::get_json;

use crate::jobs::QueueJson;

/// Some nodes, of which any may be down.
#[derive(Debug)]
pub(super) struct Nodes {
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
    pub(super) fn lay_out(dir: &Path, synod: PathBuf, count: usize) -> io::Result<Self> {
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

    pub(super) fn start_all(&mut self) -> io::Result<()> {
        (0..self.nodes.len()).try_for_each(|node| self.start(node))
    }

    /// Starts a node that is down.
    pub(super) fn start(&mut self, node: usize) -> io::Result<()> {
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
    pub(super) fn revive(&mut self) -> io::Result<u32> {
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
    pub(super) fn kill(&mut self, node: usize) -> io::Result<()> {
        if let Some(mut process) = self.nodes[node].process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Sends a signal by its name.
    pub(super) fn signal(&self, node: usize, signal: &str) -> io::Result<()> {
        let Some(process) = &self.nodes[node].process else { return Ok(()) };
        let sent = Command::new("kill").args(["-s", signal, &process.id().to_string()]).status()?;
        if sent.success() { Ok(()) } else { Err(io::Error::other(format!("SIG{signal} could not be sent"))) }
    }

    /// Has all leave, and waits for that.
    pub(super) async fn stop(&mut self) {
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

    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    pub(super) fn apis(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.api).collect()
    }

    /// Where each node keeps its part of the queue.
    pub(super) fn queue_dirs(&self) -> Vec<PathBuf> {
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
    pub(super) async fn until_served(&mut self) -> Result<usize, String> {
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
pub(super) async fn look(api: SocketAddr) -> Option<QueueJson> {
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
