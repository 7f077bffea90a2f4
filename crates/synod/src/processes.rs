//! A cluster of processes of this program, for commands that put nodes through what nodes go through.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use synod_queue::Client;
use synod_queue::link::LinkConfig;
use synod_store::http_client::get_json;
use tokio::time::{Instant, sleep};

use crate::jobs::{GroupJson, QueueJson};

/// Nodes as processes, with their data in a directory that goes with them.
pub(crate) struct Processes {
    dir: PathBuf,
    ports: Vec<u16>,
    nodes: Vec<Option<Child>>,
}

impl Processes {
    /// Starts so many nodes of a new cluster on free ports of this machine.
    pub(crate) async fn start(count: usize) -> Result<Self, String> {
        let dir =
            std::env::temp_dir().join(format!("synod-{}-{:08x}", std::process::id(), fastrand::u32(..)));
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let ports = (0..count).map(|_| free_ports().ok_or_else(|| "no free ports were found".to_owned()));
        let ports = ports.collect::<Result<Vec<u16>, String>>()?;
        let mut text = "registry: {namespace: processes}\ninitial_cluster:\n  nodes:\n".to_owned();
        for (index, port) in ports.iter().enumerate() {
            let disk = dir.join(name(index));
            text += &format!(
                "    - {{node_id: {}, bind_addr: '127.0.0.1:{port}', disks: [{{path: '{}'}}]}}\n",
                name(index),
                disk.display()
            );
        }
        let file = dir.join("cluster.yaml");
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut started = Self { dir, ports, nodes: (0..count).map(|_| None).collect() };
        for index in 0..count {
            started.run(index)?;
        }
        started.until_whole().await?;
        Ok(started)
    }

    /// Starts a node that does not run.
    pub(crate) fn run(&mut self, index: usize) -> Result<(), String> {
        let text = |error: io::Error| format!("{} does not start: {error}", name(index));
        let log = File::options().create(true).append(true).open(self.log(index)).map_err(text)?;
        let child = Command::new(std::env::current_exe().map_err(text)?)
            .args(["start", "--no-s3", "--node", &name(index), "--conf"])
            .arg(self.dir.join("cluster.yaml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(text)?;
        self.nodes[index] = Some(child);
        Ok(())
    }

    /// Ends a node without a word, as kill -9 does.
    pub(crate) fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.nodes[index].take() {
            // It may have ended by itself; either way it is gone.
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// Asks a node to leave, and waits until it has.
    pub(crate) async fn leave(&mut self, index: usize) -> Result<(), String> {
        let Some(mut child) = self.nodes[index].take() else { return Ok(()) };
        let told = Command::new("kill").arg(child.id().to_string()).status();
        told.map_err(|error| format!("{} cannot be told to leave: {error}", name(index)))?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Ok(Some(_)) = child.try_wait() {
                return Ok(());
            }
            sleep(LOOK_EVERY).await;
        }
        drop(child.kill());
        Err(format!("{} did not leave; see {}", name(index), self.log(index).display()))
    }

    /// A client of the queue that knows all nodes.
    pub(crate) fn client(&self, client_name: &str) -> Client {
        let peers = self.ports.iter().map(|port| format!("127.0.0.1:{}", port + 1));
        let patience = Duration::from_secs(30);
        Client::new(LinkConfig { name: client_name.to_owned(), patience, ..LinkConfig::new(peers) })
    }

    /// Waits until a node leads and every node votes and has caught up. Tells which leads.
    pub(crate) async fn until_whole(&mut self) -> Result<usize, String> {
        let began = Instant::now();
        loop {
            let views = self.views().await;
            let leader =
                views.iter().position(|view| view.as_ref().is_some_and(|view| view.leads && view.serves));
            let voters = leader.and_then(|leader| Some(views[leader].as_ref()?.voters.len())).unwrap_or(0);
            let first = views.iter().flatten().map(|view| view.applied_index).max().unwrap_or(0);
            let is_near = |view: &Option<GroupJson>| {
                view.as_ref().is_some_and(|view| view.applied_index + NEAR >= first)
            };
            if let Some(leader) = leader
                && voters == self.nodes.len()
                && views.iter().all(is_near)
            {
                return Ok(leader);
            }
            for index in 0..self.nodes.len() {
                if let Some(Ok(Some(status))) = self.nodes[index].as_mut().map(Child::try_wait) {
                    return Err(format!(
                        "{} ended with {status}; see {}",
                        name(index),
                        self.log(index).display()
                    ));
                }
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("the cluster did not become whole; see {}", self.dir.display()));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// What each node says about the first group of the queue, of those that answer.
    async fn views(&self) -> Vec<Option<GroupJson>> {
        let mut views = Vec::new();
        for port in &self.ports {
            let url = format!("http://127.0.0.1:{port}/v1/queue");
            let shown: Option<QueueJson> = get_json(&url, Duration::from_secs(1)).await.ok();
            views.push(shown.and_then(|shown| shown.groups.into_iter().next()));
        }
        views
    }

    fn log(&self, index: usize) -> PathBuf {
        Path::new(&self.dir).join(format!("{}.log", name(index)))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for index in 0..self.nodes.len() {
            self.kill(index);
        }
        // It is in the temporary directory either way.
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

fn name(index: usize) -> String {
    format!("node{}", index + 1)
}

/// The first of five ports in a row that nobody uses now.
fn free_ports() -> Option<u16> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    (0..100).find_map(|_| {
        let first = fastrand::u16(20_000..32_000);
        (first..first + 5).all(is_free).then_some(first)
    })
}

/// How long a node may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A replica that is behind by so few entries, under load, has caught up.
const NEAR: u64 = 50;
