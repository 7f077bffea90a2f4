//! A cluster of processes: its configuration, its directory, its nodes, and what can be done to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use synod_store::api::{MemberJson, SlotJson, StatusJson};

use crate::http::{self, Reply};

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) nodes: usize,
    pub(crate) slots: u16,
    pub(crate) host: IpAddr,
    pub(crate) namespace: String,
    pub(crate) suspect_timeout_sec: u64,
    pub(crate) fail_timeout_sec: u64,
}

impl Layout {
    /// So patient that a busy machine makes no node look dead.
    pub(crate) fn patient() -> Self {
        Self { suspect_timeout_sec: 10, fail_timeout_sec: 20, ..Self::default() }
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            nodes: 3,
            slots: 60,
            host: Ipv4Addr::LOCALHOST.into(),
            namespace: "default".to_owned(),
            suspect_timeout_sec: 1,
            fail_timeout_sec: 3,
        }
    }
}

/// Where a node is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) api: SocketAddr,
    /// The network namespace of the node, if it has one of its own.
    pub(crate) namespace: Option<String>,
}

/// A cluster whose processes end with this value.
#[derive(Debug)]
pub(crate) struct TestCluster {
    pub(crate) dir: PathBuf,
    pub(crate) places: Vec<Place>,
    /// How much the nodes are to log, if not what they log by default.
    pub(crate) log_level: Option<&'static str>,
    processes: BTreeMap<usize, Child>,
}

impl TestCluster {
    /// Writes the configuration. Nothing runs yet.
    pub(crate) fn new(layout: &Layout) -> Self {
        let places = (1..=layout.nodes).map(|number| {
            let api = SocketAddr::new(layout.host, free_ports(layout.host));
            Place { name: format!("node{number}"), api, namespace: None }
        });
        Self::at(layout, places.collect(), "")
    }

    /// The same with nodes at given places, and more lines in the configuration.
    pub(crate) fn at(layout: &Layout, places: Vec<Place>, more: &str) -> Self {
        let cluster = Self { dir: new_dir(), places, log_level: None, processes: BTreeMap::new() };
        fs::write(cluster.dir.join(CONFIG), cluster.yaml(layout) + more).expect("a configuration");
        cluster
    }

    /// A cluster of three that runs and is ready.
    pub(crate) fn started() -> Self {
        Self::start_new(&Layout::default())
    }

    /// The same of another layout.
    pub(crate) fn start_new(layout: &Layout) -> Self {
        let mut cluster = Self::new(layout);
        cluster.start_all();
        cluster.until_agreed(&(0..layout.nodes).collect::<Vec<_>>());
        cluster
    }

    /// The configuration.
    pub(crate) fn yaml(&self, layout: &Layout) -> String {
        let Layout { slots, namespace, suspect_timeout_sec, fail_timeout_sec, .. } = layout;
        let mut yaml = format!(
            "registry:
  backend: gossip
  namespace: {namespace}
  gossip:
    gossip_interval_ms: 100
    full_sync_interval_sec: 1
    suspect_timeout_sec: {suspect_timeout_sec}
    fail_timeout_sec: {fail_timeout_sec}
initial_cluster:
  replication: {{total_slots: {slots}, replicas: 3}}
  nodes:
"
        );
        for Place { name, api, .. } in &self.places {
            let node = format!("{{node_id: {name}, bind_addr: '{api}', disks: [{{path: ./{name}}}]}}");
            yaml += &format!("    - {node}\n");
        }
        yaml
    }

    pub(crate) fn start_all(&mut self) {
        for index in 0..self.places.len() {
            self.start(index);
        }
    }

    /// Starts a node by the configuration.
    pub(crate) fn start(&mut self, index: usize) {
        let name = self.places[index].name.clone();
        self.run(index, &["start", "--conf", CONFIG, "--node", &name]);
    }

    /// Starts a node with these arguments.
    pub(crate) fn run(&mut self, index: usize, arguments: &[&str]) {
        let dir = self.dir.clone();
        self.run_in(&dir, index, arguments);
    }

    /// Starts a node with these arguments in another working directory.
    pub(crate) fn run_in(&mut self, dir: &Path, index: usize, arguments: &[&str]) {
        let log = OpenOptions::new().create(true).append(true).open(self.log_file(index)).expect("a log");
        let mut command = match &self.places[index].namespace {
            None => Command::new(SYNOD),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace, SYNOD]);
                command
            }
        };
        let command = command.args(arguments).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null());
        command.envs(self.log_level.map(|level| ("SYNOD_LOG", level)));
        let process = command.stderr(log).spawn().expect("the binary runs");
        let before = self.processes.insert(index, process);
        assert!(before.is_none(), "{} runs already", self.places[index].name);
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, index: usize) {
        let mut process = self.processes.remove(&index).expect("a process");
        process.kill().expect("a process to kill");
        process.wait().expect("a process that ended");
    }

    /// The process of a node.
    pub(crate) fn pid(&self, index: usize) -> u32 {
        self.processes[&index].id()
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, index: usize, signal: &str) {
        let pid = self.pid(index).to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status().expect("kill");
        assert!(sent.success(), "SIG{signal} to {}", self.places[index].name);
    }

    /// Waits until a process has ended by itself.
    pub(crate) fn until_ended(&mut self, index: usize) -> ExitStatus {
        let mut process = self.processes.remove(&index).expect("a process");
        match wait(&mut process) {
            Some(status) => status,
            None => {
                process.kill().expect("a process to kill");
                panic!("{} does not end", self.places[index].name);
            }
        }
    }

    /// Runs the binary in the directory of the cluster until it ends.
    pub(crate) fn synod(&self, arguments: &[&str]) -> Output {
        synod_in(&self.dir, arguments)
    }

    pub(crate) fn disk(&self, index: usize) -> PathBuf {
        self.dir.join(&self.places[index].name)
    }

    /// What a node wrote to stderr.
    pub(crate) fn log(&self, index: usize) -> String {
        fs::read_to_string(self.log_file(index)).unwrap_or_default()
    }

    pub(crate) fn api(&self, index: usize) -> SocketAddr {
        self.places[index].api
    }

    /// The address that `join` takes.
    pub(crate) fn url(&self, indices: &[usize]) -> String {
        let seeds: Vec<String> = indices.iter().map(|index| self.api(*index).to_string()).collect();
        format!("cluster://{}", seeds.join(","))
    }

    pub(crate) fn ask(&self, index: usize, method: &str, path: &str, body: &str) -> Result<Reply, String> {
        let Place { name, api, namespace } = &self.places[index];
        let reply = match namespace {
            None => http::send(*api, method, path, body).and_then(http::Sent::reply),
            Some(namespace) => http::ask_in(namespace, *api, method, path, body),
        };
        reply.map_err(|error| format!("{name}: {error}"))
    }

    pub(crate) fn get(&self, index: usize, path: &str) -> Result<Reply, String> {
        self.ask(index, "GET", path, "")
    }

    pub(crate) fn status(&self, index: usize) -> Result<StatusJson, String> {
        self.get(index, "/v1/status")?.json()
    }

    pub(crate) fn slots(&self, index: usize) -> Result<Vec<SlotJson>, String> {
        self.get(index, "/v1/slots")?.json()
    }

    /// The node that serves the most slots. On a busy machine a node may have lost its own for a while.
    pub(crate) fn busiest(&self) -> usize {
        let slots = self.slots(0).expect("slots");
        let served = |index: &usize| slots.iter().filter(|slot| self.is_served_by(slot, *index)).count();
        (0..self.places.len()).max_by_key(served).expect("a node")
    }

    pub(crate) fn is_served_by(&self, slot: &SlotJson, index: usize) -> bool {
        slot.primary.as_ref() == Some(&self.places[index].name)
    }

    /// Waits until, as a node sees it, `deposed` serves no slot, and each that it served before is in a later epoch.
    pub(crate) fn until_fenced(&self, by: usize, deposed: usize, before: &[SlotJson]) {
        eventually(&format!("{by} sees the slots of {deposed} fenced"), || {
            let now = self.slots(by)?;
            if let Some(slot) = now.iter().find(|slot| self.is_served_by(slot, deposed)) {
                return Err(format!("{slot:?}"));
            }
            for (old, new) in before.iter().zip(&now).filter(|(old, _)| self.is_served_by(old, deposed)) {
                assert!(new.epoch != old.epoch, "a new primary without a new epoch: {old:?} {new:?}");
                if new.epoch < old.epoch {
                    // It had not heard of that epoch yet when the other one was cut off.
                    return Err(format!("{new:?}"));
                }
            }
            Ok(())
        });
    }

    /// What a node thinks of another one.
    pub(crate) fn opinion(&self, of: usize, on: usize) -> Result<MemberJson, String> {
        let members: Vec<MemberJson> = self.get(of, "/v1/members")?.json()?;
        let name = &self.places[on].name;
        members.into_iter().find(|member| member.node_id == *name).ok_or_else(|| format!("no {name}"))
    }

    /// Waits until one node holds another one for one of these.
    pub(crate) fn until_opinion(&self, of: usize, on: usize, statuses: &[&str]) -> MemberJson {
        eventually(&format!("{of} holds {on} for {statuses:?}"), || {
            let member = self.opinion(of, on)?;
            if statuses.contains(&member.status.as_str()) { Ok(member) } else { Err(member.status) }
        })
    }

    /// Writes a value, and returns its tag.
    pub(crate) fn write(&self, index: usize, slot: u16, value: &str) -> Result<(u64, u64), String> {
        let reply = self.ask(index, "PUT", &format!("/v1/slots/{slot}/register"), value)?;
        match reply.tag() {
            Some(tag) if reply.status == 200 => Ok(tag),
            _ => Err(format!("status {}: {}", reply.status, reply.body)),
        }
    }

    /// Writes the name of each slot to it, through one node after the other of these.
    pub(crate) fn write_all(&self, indices: &[usize], prefix: &str) {
        let slots = self.slots(indices[0]).expect("slots").len();
        for (slot, index) in (0..).zip(indices.iter().cycle()).take(slots) {
            self.write(*index, slot, &format!("{prefix}{slot}")).expect("a write");
        }
    }

    /// Checks that each slot has what [`write_all`](Self::write_all) wrote, through one node.
    pub(crate) fn read_all(&self, index: usize, prefix: &str) {
        self.read_all_but(&[], index, prefix);
    }

    /// The same without some slots.
    pub(crate) fn read_all_but(&self, left_out: &[u16], index: usize, prefix: &str) {
        let slots = self.slots(index).expect("slots").len();
        for slot in (0..).take(slots).filter(|slot| !left_out.contains(slot)) {
            let reply = self.get(index, &format!("/v1/slots/{slot}/register")).expect("an answer");
            assert_eq!((reply.status, reply.body), (200, format!("{prefix}{slot}")), "slot {slot}");
        }
    }

    /// Waits until these nodes are ready, hold each other alive, and have the same slot map.
    pub(crate) fn until_agreed(&self, indices: &[usize]) {
        eventually(&format!("{indices:?} agree"), || {
            let mut digests = BTreeSet::new();
            for index in indices {
                let ready = self.get(*index, "/readyz")?;
                if ready.status != 200 {
                    return Err(format!("{index}: {}", ready.body));
                }
                let status = self.status(*index)?;
                if status.nodes_alive != indices.len() {
                    return Err(format!("{index} sees {} alive", status.nodes_alive));
                }
                digests.insert(status.slot_map_digest);
            }
            if digests.len() == 1 { Ok(()) } else { Err(format!("{digests:?}")) }
        });
    }

    fn log_file(&self, index: usize) -> PathBuf {
        self.dir.join(format!("{}.log", self.places[index].name))
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        for process in self.processes.values_mut() {
            // It may have ended by itself.
            process.kill().ok();
            process.wait().ok();
        }
        if std::thread::panicking() {
            for (index, place) in self.places.iter().enumerate() {
                eprintln!("---- {} ----\n{}", place.name, self.log(index));
            }
        }
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// Runs the binary until it ends.
pub(crate) fn synod_in(dir: &Path, arguments: &[&str]) -> Output {
    let mut process = Command::new(SYNOD)
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let status = wait(&mut process);
    if status.is_none() {
        process.kill().expect("a process to kill");
    }
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    process.stdout.take().expect("piped").read_to_end(&mut stdout).expect("its output");
    process.stderr.take().expect("piped").read_to_end(&mut stderr).expect("its words");
    match status {
        Some(status) => Output { status, stdout, stderr },
        None => panic!("{arguments:?} does not end: {}", String::from_utf8_lossy(&stderr)),
    }
}

/// Asks again and again, until the answer is good.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) if Instant::now() >= deadline => panic!("not within {PATIENCE:?}: {what}: {error}"),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Whether tests that take minutes are wanted.
pub(crate) fn is_long_run() -> bool {
    std::env::var_os("SYNOD_LONG_TESTS").is_some()
}

fn wait(process: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = process.try_wait().expect("a process") {
            return Some(status);
        }
        std::thread::sleep(PAUSE);
    }
    None
}

/// A new directory, which is the caller's to remove.
pub(crate) fn new_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nodes-{}-{number}", std::process::id()));
    fs::remove_dir_all(&dir).ok();
    fs::create_dir_all(&dir).expect("a directory");
    dir
}

/// All files below a directory and what is in them.
pub(crate) fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let mut bytes = Vec::new();
                File::open(&path).expect("a file").read_to_end(&mut bytes).expect("its bytes");
                found.insert(path, bytes);
            }
        }
    }
    found
}

/// The first of as many free ports in a row as a node has listeners. They are below those that the system gives to
/// outgoing connections, or one of these could take them before the node does.
pub(crate) fn free_ports(host: IpAddr) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (first, last) = (11_000, 32_000);
    let offset = std::process::id().wrapping_mul(PORTS_PER_NODE * 37);
    for _ in 0..1000 {
        let step = NEXT.fetch_add(PORTS_PER_NODE, Ordering::Relaxed);
        let port = first + offset.wrapping_add(step) % (last - first);
        let is_free = |port: u32| {
            let address = (host, u16::try_from(port).expect("a port"));
            TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
        };
        if (port..port + PORTS_PER_NODE).all(is_free) {
            return u16::try_from(port).expect("a port");
        }
    }
    panic!("no free ports");
}

pub(crate) const SYNOD: &str = env!("CARGO_BIN_EXE_synod");
pub(crate) const CONFIG: &str = "cluster.yaml";
const PORTS_PER_NODE: u32 = 5;
/// Far longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(45);
const PAUSE: Duration = Duration::from_millis(25);
