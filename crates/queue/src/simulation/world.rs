//! A cluster, its clients and its workers in one simulated network, and what is done to them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use synod_core::jobs::JobLimits;
use synod_core::jobs::check::Record;
use synod_log::LogConfig;
use synod_log::sim_disk::SimDisk;
use tempfile::TempDir;
use turmoil::Sim;

use super::network::{SimConnect, listen};
use super::planted::{Mistake, is_planted};
use crate::desk::DeskConfig;
use crate::jobs::Jobs;
use crate::journal::{Journal, JournalConfig};
use crate::link::LinkConfig;
use crate::node::{QueueNode, QueueOptions, QueueServices};
use crate::raft::GroupConfig;
use crate::verify::{History, Load, Replay, ReplayError, StoppedReplica, WorkerEnd, hashed, replay_all};

/// Everything that is simulated.
pub(super) struct World {
    pub(super) sim: Sim<'static>,
    pub(super) rng: fastrand::Rng,
    pub(super) nodes: Vec<Rc<Node>>,
    /// The workers of the host `fleeting` are to be gone without a word.
    pub(super) vanish: Rc<Cell<bool>>,
    pub(super) stage: Rc<Stage>,
    pub(super) history: History,
    /// What logs have said before they were cut, and what that has led to.
    chronicle: (Replay, Jobs),
    keeps_logs: bool,
    next_look: Duration,
    dir: TempDir,
}

/// A node, whether it runs or not.
pub(super) struct Node {
    pub(super) name: String,
    dir: PathBuf,
    pub(super) disk: RefCell<SimDisk>,
    pub(super) running: RefCell<Option<Rc<QueueNode>>>,
    /// Why it ended by itself.
    pub(super) ended: RefCell<Option<String>>,
    rng: RefCell<fastrand::Rng>,
    group: GroupConfig,
}

/// How far the load is.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) load: RefCell<Option<Load>>,
    /// Whether everything was done in the end; an error says why that cannot be said.
    pub(super) finished: RefCell<Option<Result<bool, String>>>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let dir = tempfile::tempdir().expect("a directory");
        let sim = turmoil::Builder::new()
            .rng_seed(seed)
            .epoch(std::time::UNIX_EPOCH + Duration::from_secs(1 << 30))
            .tick_duration(TICK)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(rng.u64(2..12)))
            .simulation_duration(Duration::from_secs(3_600))
            .tcp_capacity(1 << 16)
            .enable_random_order()
            .build();
        let keeps_logs = rng.bool();
        let group = if keeps_logs {
            GroupConfig::default()
        } else {
            let (snapshot_log_bytes, kept_log_bytes) = (rng.u64(32..96) << 10, rng.u64(128..256) << 10);
            GroupConfig { snapshot_log_bytes, kept_log_bytes, ..GroupConfig::default() }
        };
        let machine = Jobs::new(0, JobLimits::default()).expect("the limits are sound");
        let replay = Replay { replica: NODES as u64 + 1, ..Replay::default() };
        let mut world = Self {
            sim,
            nodes: Vec::new(),
            vanish: Rc::default(),
            stage: Rc::default(),
            history: History::in_memory(),
            chronicle: (replay, machine),
            keeps_logs,
            next_look: Duration::ZERO,
            rng: rng.fork(),
            dir,
        };
        for number in 1..=NODES {
            world.add_node(number, group.clone(), rng.fork());
        }
        world.add_clients(rng.fork());
        // Those that vanish have a machine of their own.
        let (fleeting, staying) = (0..Load::WORKERS).partition(|number| Load::is_fleeting(*number));
        world.add_workers("workers", staying, rng.fork());
        world.add_workers("fleeting", fleeting, rng.fork());
        world
    }

    fn add_node(&mut self, number: usize, group: GroupConfig, rng: fastrand::Rng) {
        let name = name_of(number);
        let node = Rc::new(Node {
            dir: self.dir.path().join(&name),
            disk: RefCell::new(new_disk()),
            name: name.clone(),
            running: RefCell::default(),
            ended: RefCell::default(),
            rng: RefCell::new(rng),
            group,
        });
        self.nodes.push(Rc::clone(&node));
        self.sim.host(name, move || {
            let node = Rc::clone(&node);
            async move {
                let reason = node.run().await;
                node.running.take();
                node.ended.replace(Some(reason));
                Ok(())
            }
        });
    }

    fn add_clients(&mut self, mut rng: fastrand::Rng) {
        let (stage, history) = (Rc::clone(&self.stage), self.history.clone());
        self.sim.client("clients", async move {
            let load = loop {
                // Without a group yet, again.
                if let Ok(load) = Load::set_up(link_config(), history.clone()).await {
                    break load;
                }
            };
            stage.load.replace(Some(load.clone()));
            let mut clients = tokio::task::JoinSet::new();
            for number in 1..=Load::CLIENTS {
                clients.spawn(load.clone().submit(number, rng.fork()));
            }
            clients.join_all().await;
            let finished = load.finish().await.map_err(|error| error.to_string());
            stage.finished.replace(Some(finished));
            Ok(())
        });
    }

    fn add_workers(&mut self, name: &'static str, numbers: Vec<u64>, rng: fastrand::Rng) {
        let rng = RefCell::new(rng);
        let (stage, vanish) = (Rc::clone(&self.stage), Rc::clone(&self.vanish));
        self.sim.host(name, move || {
            let (stage, vanish, mut rng) = (Rc::clone(&stage), Rc::clone(&vanish), rng.borrow_mut().fork());
            let numbers = numbers.clone();
            async move {
                let load = loop {
                    let load = stage.load.borrow().clone();
                    match load {
                        Some(load) => break load,
                        None => tokio::time::sleep(Duration::from_millis(100)).await,
                    }
                };
                let work = |number: u64, mut rng: fastrand::Rng| {
                    let load = load.clone();
                    async move {
                        while !load.is_over() {
                            // One that the queue did not answer begins anew.
                            if load.work(number, &mut rng).await == Ok(WorkerEnd::Vanishes) {
                                return true;
                            }
                        }
                        false
                    }
                };
                let mut workers: tokio::task::JoinSet<bool> =
                    numbers.into_iter().map(|number| work(number, rng.fork())).collect();
                while let Some(ended) = workers.join_next().await {
                    if ended? {
                        vanish.set(true);
                        std::future::pending::<()>().await;
                    }
                }
                Ok(())
            }
        });
    }

    /// Lets a little time pass.
    pub(super) fn step(&mut self) {
        self.sim.step().expect("nobody panics");
        if self.sim.elapsed() >= self.next_look {
            self.next_look = self.sim.elapsed() + LOOK_EVERY;
            self.look();
        }
    }

    /// Writes down the states that the nodes are in, and what their logs say before it is purged.
    fn look(&mut self) {
        for (replica, node) in (1..).zip(&self.nodes) {
            let running = node.running.borrow().clone();
            for view in running.into_iter().flat_map(|running| running.groups()) {
                let (index, digest) = view.digest;
                if index > 0 {
                    self.history.saw(Record::Hash { replica, index, hash: digest.into() });
                }
            }
        }
        if !self.keeps_logs {
            self.harvest();
        }
    }

    /// Takes what is committed of the log that has most, of those that still have what is wanted.
    pub(super) fn harvest(&mut self) {
        let (replay, machine) = &mut self.chronicle;
        let applied = |node: &&Rc<Node>| {
            let running = node.running.borrow().clone();
            running.iter().flat_map(|running| running.groups()).map(|view| view.digest.0).max()
        };
        let mut nodes: Vec<&Rc<Node>> = self.nodes.iter().collect();
        nodes.sort_by_cached_key(|node| std::cmp::Reverse(applied(node)));
        for node in nodes {
            // A log that is being begun, or was just lost, has nothing yet.
            let Ok(stopped) = node.stopped(NODES as u64 + 1) else { continue };
            let upto = stopped.noted();
            if upto >= Some(replay.end) && stopped.go_on(replay, machine, upto, &BTreeSet::new()).is_ok() {
                return;
            }
        }
    }

    /// The node that leads, as it sees it.
    pub(super) fn leader(&self) -> Option<usize> {
        self.nodes.iter().position(|node| {
            let running = node.running.borrow().clone();
            running.is_some_and(|running| running.groups().iter().any(|view| view.lead.is_own))
        })
    }

    /// Whether all nodes run, and all vote.
    pub(super) fn is_whole(&self) -> bool {
        self.leader().is_some_and(|leader| {
            let running = self.nodes[leader].running.borrow().clone();
            let voters = running.iter().flat_map(|running| running.groups()).map(|view| {
                let is_settled = !view.status.is_changing && view.status.learners.is_empty();
                if is_settled { view.status.voters.len() } else { 0 }
            });
            voters.sum::<usize>() == NODES && self.nodes.iter().all(|node| node.running.borrow().is_some())
        })
    }

    /// What the logs say in the end.
    pub(super) fn replays(&mut self) -> Vec<Replay> {
        let recording = self.history.recording().expect("it is in memory");
        let stopped = (1..).zip(&self.nodes).map(|(number, node)| node.stopped(number));
        let stopped = stopped.collect::<Result<Vec<_>, _>>().expect("the logs are sound");
        let mut replays = replay_all(&stopped, &hashed(&recording)).expect("the logs can be replayed");
        if !self.keeps_logs {
            replays.push(std::mem::take(&mut self.chronicle.0));
        }
        replays
    }
}

impl Node {
    /// Runs until it ends by itself, and says why.
    async fn run(&self) -> String {
        match self.start().await {
            Ok(running) => {
                self.running.replace(Some(Rc::clone(&running)));
                let ended = running.ended();
                drop(running);
                ended.await
            }
            Err(error) => error.to_string(),
        }
    }

    async fn start(&self) -> Result<Rc<QueueNode>, Box<dyn std::error::Error>> {
        let log =
            LogConfig { record_bytes_max: 512 << 10, queue_bytes_max: 4 << 20, segment_bytes_max: 1 << 20 };
        let config = JournalConfig { log, cache_bytes_max: 32 << 10 };
        let (journal, flusher, _) = Journal::open_apart(config, self.disk.borrow().clone())?;
        let mut rng = self.rng.borrow_mut().fork();
        tokio::spawn(async move {
            // If the disk fails, the log says so to those who write.
            let pause = || tokio::time::sleep(Duration::from_micros(rng.u64(..6_000)));
            drop(flusher.run_as_task(pause).await);
        });
        let services = QueueServices::new("simulated".to_owned(), None, None);
        tokio::spawn(listen(PORT, services.peer_services()));
        let options = QueueOptions {
            node: self.name.clone(),
            nodes: (1..=NODES).map(|number| (name_of(number), address_of(number))).collect(),
            dir: self.dir.clone(),
            groups: 1,
            group: self.group.clone(),
            desk: DeskConfig::default(),
            limits: JobLimits::default(),
            is_new_cluster: false,
            beanstalk: None,
        };
        let connect = std::sync::Arc::new(SimConnect);
        Ok(Rc::new(QueueNode::start_with(options, &services, journal, connect).await?))
    }

    /// What a power cut leaves of its disk.
    pub(super) fn lose_power(&self, seed: u64) {
        let disk = self.disk.borrow().crash(seed);
        self.disk.replace(with_mistake(disk));
    }

    /// Its disk is gone, and there is a new one.
    pub(super) fn lose_disk(&self) {
        self.disk.replace(new_disk());
        drop(std::fs::remove_dir_all(&self.dir));
    }

    /// What it would have if it were stopped now.
    fn stopped(&self, number: u64) -> Result<StoppedReplica, ReplayError> {
        let disk = SimDisk::with_contents(self.disk.borrow().contents());
        StoppedReplica::open_on(disk, &self.dir, 0, number)
    }
}

fn new_disk() -> SimDisk {
    with_mistake(SimDisk::new())
}

fn with_mistake(disk: SimDisk) -> SimDisk {
    if is_planted(Mistake::NoSync) {
        disk.lie_about_syncs();
    }
    disk
}

fn link_config() -> LinkConfig {
    let connect = std::sync::Arc::new(SimConnect);
    LinkConfig { connect, ..LinkConfig::new((1..=NODES).map(address_of)) }
}

fn name_of(number: usize) -> String {
    format!("node-{number}")
}

fn address_of(number: usize) -> String {
    format!("{}:{PORT}", name_of(number))
}

pub(super) const NODES: usize = 3;
const PORT: u16 = 7371;
const TICK: Duration = Duration::from_millis(4);
const LOOK_EVERY: Duration = Duration::from_millis(120);
