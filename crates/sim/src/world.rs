//! The world: nodes, network, and a queue of what happens next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use synod_core::membership::{
    ClusterEvent, ConfigError, GossipBody, GossipMessage, GossipPhase, GossipSender, MembershipCoordinator,
    MembershipCoordinatorConfig, MembershipCoordinatorError, MembershipCoordinatorOutcome, MembershipDelta,
    MembershipVersion, NodeRecord, NodeStatus, Refutation, ViewDigest,
};
use synod_core::{Authority, Incarnation, MemberId, NodeId};

use crate::invariants::{Observer, Step, Violation};
use crate::network::{Network, NetworkConfig};
use crate::node::{Clock, Node, Power};
use crate::report::{TraceLine, TraceSink};

/// How a simulation is set up.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// The seed of all chance.
    pub seed: u64,
    /// How many nodes there are: 1 to [`NODES_MAX`].
    pub nodes: usize,
    /// How the network behaves.
    pub network: NetworkConfig,
    /// The settings of every node; the seeds are filled in.
    pub membership: MembershipCoordinatorConfig,
    /// How fast or slow clocks may run, in parts per million.
    pub clock_drift_ppm_max: u32,
    /// How the cluster comes about.
    pub formation: Formation,
}

impl SimConfig {
    /// `nodes` nodes with production settings on an ordinary network.
    #[must_use]
    pub fn new(seed: u64, nodes: usize) -> Self {
        Self {
            seed,
            nodes,
            network: NetworkConfig::default(),
            membership: MembershipCoordinatorConfig::default(),
            clock_drift_ppm_max: 200,
            formation: Formation::Seeds { within: Duration::from_secs(1) },
        }
    }
}

/// How the cluster comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formation {
    /// Nodes start at random moments within this time and join through the first three.
    Seeds {
        /// The time within which all nodes start.
        within: Duration,
    },
    /// All nodes start at once and are told the whole membership, as if they had formed before.
    Formed,
}

/// A simulation cannot be set up or asked for what it is asked for.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Too few or too many nodes.
    #[error("a simulation has 1 to {NODES_MAX} nodes, not {nodes}")]
    Nodes {
        /// The refused number.
        nodes: usize,
    },
    /// A share of messages is not between 0 and 1.
    #[error("network.{field} is a share from 0 to 1, not {value}")]
    Share {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: f64,
    },
    /// The delays of the network are the wrong way round.
    #[error("the shortest delay {min:?} is longer than the longest {max:?}")]
    Delay {
        /// The shortest.
        min: Duration,
        /// The longest.
        max: Duration,
    },
    /// The membership settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Most nodes in one simulation.
pub const NODES_MAX: usize = 5_000;

/// A running simulation.
pub struct Simulation {
    config: SimConfig,
    now: Duration,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    rng: fastrand::Rng,
    nodes: Vec<Node>,
    observers: Vec<Observer>,
    by_authority: BTreeMap<Authority, usize>,
    network: Network,
    trace: Option<TraceSink>,
    pub(crate) steps: u64,
    pub(crate) status_changes: u64,
    pub(crate) topology_updates: u64,
    pub(crate) false_deaths: u64,
    /// When each node first believed each status of each member, in true time.
    beliefs: BTreeMap<(MemberId, NodeStatus), BTreeMap<usize, Duration>>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at: Duration,
    /// Breaks ties, so that equal times have one order.
    number: u64,
    node: usize,
    what: Happening,
}

#[derive(Debug)]
enum Happening {
    Boot,
    Wake,
    Deliver(Box<GossipMessage>),
}

/// Happenings are ordered by time and number alone; the numbers are unique.
impl PartialEq for Happening {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Happening {}
impl PartialOrd for Happening {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Happening {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Simulation {
    /// Sets the world up; nothing has happened yet.
    ///
    /// # Errors
    /// Settings out of range.
    pub fn new(config: SimConfig) -> Result<Self, SimError> {
        validate(&config)?;
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let authorities: Vec<_> = (0..config.nodes).map(authority).collect();
        let mut membership = config.membership.clone();
        membership.seeds = authorities.iter().take(SEEDS).cloned().collect();
        let nodes = (0..config.nodes)
            .map(|index| {
                let coordinator = MembershipCoordinator::new(
                    node_id(index),
                    authorities[index].clone(),
                    membership.clone(),
                )?;
                Ok(Node {
                    id: node_id(index),
                    authority: authorities[index].clone(),
                    coordinator,
                    power: Power::Crashed,
                    stored: None,
                    clock: Clock::random(config.clock_drift_ppm_max, &mut rng),
                    wake_at: None,
                    backlog: Vec::new(),
                })
            })
            .collect::<Result<Vec<_>, ConfigError>>()?;
        let network = Network::new(config.network.clone(), config.nodes);
        let mut simulation = Self {
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            scheduled: 0,
            observers: (0..config.nodes).map(|_| Observer::default()).collect(),
            by_authority: authorities.into_iter().zip(0..).collect(),
            nodes,
            network,
            trace: None,
            steps: 0,
            status_changes: 0,
            topology_updates: 0,
            false_deaths: 0,
            beliefs: BTreeMap::new(),
            rng,
            config,
        };
        simulation.form();
        Ok(simulation)
    }

    /// Tells `sink` every event from now on.
    pub fn trace(&mut self, sink: TraceSink) {
        self.trace = Some(sink);
    }

    /// Lets simulated time pass.
    ///
    /// # Errors
    /// A broken invariant.
    pub fn run_for(&mut self, time: Duration) -> Result<(), Violation> {
        let until = self.now + time;
        while let Some(next) = self.queue.peek().filter(|next| next.0.at <= until) {
            self.now = next.0.at;
            self.step()?;
        }
        self.now = until;
        Ok(())
    }

    /// Lets time pass until `condition` holds, looking every 50 ms. Returns how long it took, or `None` when
    /// it did not hold within `limit`.
    ///
    /// # Errors
    /// A broken invariant.
    pub fn run_until(
        &mut self,
        limit: Duration,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> Result<Option<Duration>, Violation> {
        let start = self.now;
        while !condition(self) {
            if self.now - start >= limit {
                return Ok(None);
            }
            self.run_for(LOOK_INTERVAL)?;
        }
        Ok(Some(self.now - start))
    }

    /// Ends a process without warning. Its disk stays.
    pub fn crash(&mut self, node: usize) {
        self.say("crash", format!("{} is killed", self.nodes[node].id));
        self.nodes[node].power = Power::Crashed;
        self.nodes[node].backlog.clear();
    }

    /// Starts a process that crashed or left, with the next incarnation.
    ///
    /// # Errors
    /// A broken invariant.
    pub fn restart(&mut self, node: usize) -> Result<(), Violation> {
        if self.nodes[node].lives() {
            return Ok(());
        }
        self.say("restart", format!("{} is started again", self.nodes[node].id));
        self.boot(node)
    }

    /// Starts a process whose disk was lost, so that it begins with the first incarnation again.
    ///
    /// # Errors
    /// A broken invariant.
    pub fn restart_without_disk(&mut self, node: usize) -> Result<(), Violation> {
        self.nodes[node].stored = None;
        self.restart(node)
    }

    /// Freezes a process.
    pub fn pause(&mut self, node: usize) {
        if self.nodes[node].power == Power::Running {
            self.say("pause", format!("{} freezes", self.nodes[node].id));
            self.nodes[node].power = Power::Paused;
        }
    }

    /// Unfreezes a process: it finds its messages and its missed timers.
    pub fn resume(&mut self, node: usize) {
        if self.nodes[node].power != Power::Paused {
            return;
        }
        self.say("resume", format!("{} goes on", self.nodes[node].id));
        self.nodes[node].power = Power::Running;
        for message in std::mem::take(&mut self.nodes[node].backlog) {
            self.schedule(self.now, node, Happening::Deliver(Box::new(message)));
        }
        self.nodes[node].wake_at = Some(self.now);
        self.schedule(self.now, node, Happening::Wake);
    }

    /// Asks a node to leave gracefully.
    ///
    /// # Errors
    /// A broken invariant.
    pub fn leave(&mut self, node: usize) -> Result<(), Violation> {
        if self.nodes[node].power != Power::Running {
            return Ok(());
        }
        self.say("leave", format!("{} leaves", self.nodes[node].id));
        let (id, at) = (self.nodes[node].id.clone(), self.nodes[node].clock.show(self.now));
        let result = self.nodes[node].coordinator.handle_leave(&id, at);
        self.perform(node, false, result)
    }

    /// Cuts the network: each group hears only itself, everybody else stays together.
    pub fn partition(&mut self, groups: &[Vec<usize>]) {
        let names = |group: &Vec<usize>| {
            let names: Vec<_> = group.iter().take(8).map(|node| self.nodes[*node].id.to_string()).collect();
            format!("{}{}", names.join(" "), if group.len() > 8 { " …" } else { "" })
        };
        let text = groups.iter().map(names).collect::<Vec<_>>().join(" | ");
        self.say("partition", format!("cut off: {text}"));
        self.network.partition(groups);
    }

    /// Cuts one direction: `node` is heard and hears nobody.
    pub fn deafen(&mut self, node: usize) {
        self.say("partition", format!("{} hears nobody", self.nodes[node].id));
        self.network.deafen(node);
    }

    /// Cuts one direction: `node` hears everybody and is not heard.
    pub fn silence(&mut self, node: usize) {
        self.say("partition", format!("nobody hears {}", self.nodes[node].id));
        self.network.silence(node);
    }

    /// Changes the share of messages that vanish.
    pub fn set_loss(&mut self, loss: f64) {
        self.say("network", format!("loses {:.0} % of all messages", loss * 100.0));
        self.network.set_loss(loss);
    }

    /// Ends every fault: no cuts, no loss, nobody frozen. Crashed processes stay down.
    pub fn heal(&mut self) {
        if self.network.heal() || self.nodes.iter().any(|node| node.power == Power::Paused) {
            self.say("heal", "no cuts, no loss, nobody frozen".to_owned());
        }
        for node in 0..self.nodes.len() {
            self.resume(node);
        }
    }

    /// Whether all running nodes agree, with exactly each other as members, all up; else why not.
    ///
    /// # Errors
    /// The first difference found.
    pub fn converged(&self) -> Result<(), String> {
        let running: Vec<_> = self.nodes.iter().filter(|node| node.lives()).collect();
        let Some(first) = running.first() else { return Err("nobody runs".to_owned()) };
        let mut expected: Vec<_> =
            running.iter().filter_map(|node| node.coordinator.own().cloned()).collect();
        expected.sort();
        for node in &running {
            let snapshot = node.coordinator.snapshot();
            let seen: Vec<_> =
                node.coordinator.active_members().into_iter().map(|member| member.id).collect();
            if seen != expected {
                return Err(format!("{} sees {seen:?} instead of {expected:?}", node.id));
            }
            if let Some(other) = expected.iter().find(|member| {
                snapshot.record(&member.node).is_none_or(|record| record.status != NodeStatus::Up)
            }) {
                return Err(format!("{} does not see {other} up", node.id));
            }
            if node.coordinator.view_digest() != first.coordinator.view_digest() {
                return Err(format!("{} and {} hold different views", first.id, node.id));
            }
            if node.coordinator.phase() != Some(GossipPhase::Confirmed) {
                return Err(format!("{} is not sure that all agree", node.id));
            }
        }
        Ok(())
    }

    /// When the last of the running nodes (other than the member itself) first believed `status`, or something more
    /// final, of the present or last life of `subject`. `None` while some node does not.
    #[must_use]
    pub fn believed_by_all(&self, subject: usize, status: NodeStatus) -> Option<Duration> {
        let member = MemberId::new(self.nodes[subject].id.clone(), self.nodes[subject].stored?);
        let mut last = Duration::ZERO;
        for (index, node) in self.nodes.iter().enumerate() {
            if index == subject || !node.lives() {
                continue;
            }
            let beliefs = NodeStatus::ALL.into_iter().filter(|later| *later >= status);
            let first = beliefs
                .filter_map(|later| self.beliefs.get(&(member.clone(), later))?.get(&index).copied())
                .min()?;
            last = last.max(first);
        }
        Some(last)
    }

    /// How many nodes have believed `status` of some life of `subject` at some time.
    #[must_use]
    pub fn believers(&self, subject: usize, status: NodeStatus) -> usize {
        let matching = self
            .beliefs
            .iter()
            .filter(|((member, believed), _)| member.node == self.nodes[subject].id && *believed == status);
        matching.map(|(_, nodes)| nodes.len()).sum()
    }

    /// The machine of one node, for inspection.
    #[must_use]
    pub fn coordinator(&self, node: usize) -> &MembershipCoordinator {
        &self.nodes[node].coordinator
    }

    /// Whether a process exists, frozen or not.
    #[must_use]
    pub fn lives(&self, node: usize) -> bool {
        self.nodes[node].lives()
    }

    /// True simulated time since the beginning.
    #[must_use]
    pub const fn now(&self) -> Duration {
        self.now
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &SimConfig {
        &self.config
    }

    /// Verdicts of death about processes that were running.
    #[must_use]
    pub const fn false_deaths(&self) -> u64 {
        self.false_deaths
    }

    /// Messages sent so far, and how many of them the network lost and doubled.
    #[must_use]
    pub const fn messages(&self) -> (u64, u64, u64) {
        (self.network.sent, self.network.lost, self.network.doubled)
    }

    fn form(&mut self) {
        match self.config.formation {
            Formation::Seeds { within } => {
                for node in 0..self.nodes.len() {
                    let at = within.mul_f64(self.rng.f64());
                    self.schedule(at, node, Happening::Boot);
                }
            }
            Formation::Formed => {
                let records: Vec<_> = (0..self.nodes.len())
                    .map(|index| NodeRecord {
                        member: MemberId::new(self.nodes[index].id.clone(), Incarnation::FIRST),
                        authority: self.nodes[index].authority.clone(),
                        status: NodeStatus::Up,
                        refutation: Refutation::default(),
                    })
                    .collect();
                for node in 0..self.nodes.len() {
                    self.schedule(Duration::ZERO, node, Happening::Boot);
                    let teller = records[usize::from(node == 0).min(records.len() - 1)].clone();
                    let mut chunks = Vec::new();
                    for part in records.chunks(synod_core::membership::DELTA_RECORDS_MAX) {
                        chunks.push(part.to_vec());
                    }
                    for part in chunks {
                        let (from, to) = (MembershipVersion::ZERO, MembershipVersion::new(part.len() as u64));
                        let Ok(delta) = MembershipDelta::new(from, to, part) else { continue };
                        let view = ViewDigest { version: to, digest: 0, seen: Vec::new() };
                        let body = GossipBody::Welcome { delta, view };
                        let sender = GossipSender::Member(teller.clone());
                        let message = Box::new(GossipMessage { sender, body });
                        self.schedule(Duration::from_nanos(1), node, Happening::Deliver(message));
                    }
                }
            }
        }
    }

    fn step(&mut self) -> Result<(), Violation> {
        let Some(Reverse(Scheduled { node, what, .. })) = self.queue.pop() else { return Ok(()) };
        let at = self.nodes[node].clock.show(self.now);
        match (what, self.nodes[node].power) {
            (Happening::Boot, _) => {
                self.say("start", format!("{} starts", self.nodes[node].id));
                self.boot(node)
            }
            (Happening::Wake, Power::Running) if self.nodes[node].wake_at == Some(self.now) => {
                let result = self.nodes[node].coordinator.poll(at);
                self.perform(node, true, result)
            }
            (Happening::Deliver(message), Power::Running) => {
                let result = self.nodes[node].coordinator.handle_gossip(*message, at);
                self.perform(node, false, result)
            }
            (Happening::Deliver(message), Power::Paused) => {
                if self.nodes[node].backlog.len() < BACKLOG_MAX {
                    self.nodes[node].backlog.push(*message);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn boot(&mut self, node: usize) -> Result<(), Violation> {
        let seed = self.rng.u64(..);
        let process = &mut self.nodes[node];
        let incarnation = process.stored.and_then(Incarnation::next).unwrap_or(Incarnation::FIRST);
        process.stored = Some(incarnation);
        process.power = Power::Running;
        let at = process.clock.show(self.now);
        // A process that starts has no state of an earlier one.
        if process.coordinator.stop(at).is_ok() {
            self.observers[node] = Observer::default();
        }
        let result = self.nodes[node].coordinator.start_member(incarnation, seed, at);
        self.perform(node, false, result)
    }

    /// Does what an outcome asks for, in the order that drivers keep, and checks the invariants.
    fn perform(
        &mut self,
        node: usize,
        polled: bool,
        result: Result<MembershipCoordinatorOutcome, MembershipCoordinatorError>,
    ) -> Result<(), Violation> {
        self.steps += 1;
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(MembershipCoordinatorError::Membership { outcome, .. }) => *outcome,
            Err(_) => return Ok(()),
        };
        self.check(node, polled, &outcome)?;
        if let Some(incarnation) = outcome.persist {
            self.nodes[node].stored = Some(incarnation);
        }
        for event in outcome.member_events.iter().chain(&outcome.topology_event) {
            self.observe(node, event);
        }
        for outbound in outcome.gossip_outbound {
            let Some(&to) = self.by_authority.get(&outbound.target) else { continue };
            for delay in self.network.route(node, to, &mut self.rng) {
                let message = Box::new(outbound.message.clone());
                self.schedule(self.now + delay, to, Happening::Deliver(message));
            }
        }
        if let Some(at) = outcome.wake_at {
            let at = self.nodes[node].clock.when(at).max(self.now);
            if self.nodes[node].wake_at != Some(at) {
                self.nodes[node].wake_at = Some(at);
                self.schedule(at, node, Happening::Wake);
            }
        }
        if self.nodes[node].coordinator.own_status() == Some(NodeStatus::Removed) {
            self.say("exit", format!("{} is gone", self.nodes[node].id));
            self.nodes[node].power = Power::Left;
        }
        Ok(())
    }

    fn check(
        &mut self,
        node: usize,
        polled: bool,
        outcome: &MembershipCoordinatorOutcome,
    ) -> Result<(), Violation> {
        let process = &self.nodes[node];
        let step = Step {
            now: process.clock.show(self.now),
            polled,
            thorough: self.nodes.len() <= THOROUGH_NODES || self.steps.is_multiple_of(THOROUGH_EVERY),
            own_authority: &process.authority,
            coordinator: &process.coordinator,
            outcome,
            config: &self.config.membership,
        };
        self.observers[node].check(&step).map_err(|(invariant, detail)| Violation {
            invariant,
            at: self.now,
            node: self.nodes[node].id.to_string(),
            detail,
        })
    }

    fn observe(&mut self, node: usize, event: &ClusterEvent) {
        match event {
            ClusterEvent::MemberStatusChanged { member, to, .. } => {
                self.status_changes += 1;
                let belief = self.beliefs.entry((member.clone(), *to)).or_default();
                belief.entry(node).or_insert(self.now);
                if *to == NodeStatus::Dead {
                    let alive = self.nodes.iter().any(|other| {
                        other.id == member.node && other.lives() && other.coordinator.own() == Some(member)
                    });
                    self.false_deaths += u64::from(alive);
                }
            }
            ClusterEvent::TopologyUpdated { .. } => self.topology_updates += 1,
            _ => {}
        }
        if self.trace.is_some()
            && let Some((kind, text)) = describe(event)
        {
            let line = TraceLine { at: self.now, node: Some(self.nodes[node].id.to_string()), kind, text };
            if let Some(sink) = &mut self.trace {
                sink.receive(&line);
            }
        }
    }

    fn say(&mut self, kind: &'static str, text: String) {
        if let Some(sink) = &mut self.trace {
            sink.receive(&TraceLine { at: self.now, node: None, kind, text });
        }
    }

    fn schedule(&mut self, at: Duration, node: usize, what: Happening) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled { at, number: self.scheduled, node, what }));
    }
}

/// An event in a few words; `None` for what would only be noise.
fn describe(event: &ClusterEvent) -> Option<(&'static str, String)> {
    Some(match event {
        ClusterEvent::MemberStatusChanged { member, from, to, .. } => match from {
            Some(from) => ("status", format!("{member}: {from} → {to}")),
            None => ("status", format!("{member}: {to}")),
        },
        ClusterEvent::MemberQuarantined { authority, reason, .. } => {
            ("quarantine", format!("{authority}: {reason}"))
        }
        ClusterEvent::QuarantineLifted { authority, .. } => ("quarantine", format!("{authority}: lifted")),
        ClusterEvent::TopologyUpdated { update } => {
            let names = |members: &[synod_core::membership::Member]| {
                members.iter().map(|member| member.id.to_string()).collect::<Vec<_>>().join(" ")
            };
            let mut text = format!("{} members", update.members.len());
            let changes = [
                ("joined", &update.topology.joined),
                ("left", &update.topology.left),
                ("dead", &update.topology.dead),
            ];
            for (what, list) in changes.into_iter().filter(|(_, list)| !list.is_empty()) {
                text.push_str(&format!(", {what}: {}", names(list)));
            }
            ("topology", text)
        }
        ClusterEvent::QuorumLost { reachable, suspected, .. } => {
            ("quorum", format!("lost: {reachable} reachable, {suspected} suspected"))
        }
        ClusterEvent::QuorumRegained { .. } => ("quorum", "regained".to_owned()),
        ClusterEvent::SelfRejoining { previous, current, reason, .. } => {
            ("rejoin", format!("{previous} → {current} ({reason:?})"))
        }
        _ => return None,
    })
}

fn validate(config: &SimConfig) -> Result<(), SimError> {
    if !(1..=NODES_MAX).contains(&config.nodes) {
        return Err(SimError::Nodes { nodes: config.nodes });
    }
    for (field, value) in [("loss", config.network.loss), ("duplicates", config.network.duplicates)] {
        if !(0.0..=1.0).contains(&value) {
            return Err(SimError::Share { field, value });
        }
    }
    let (min, max) = (config.network.delay_min, config.network.delay_max);
    if min > max {
        return Err(SimError::Delay { min, max });
    }
    config.membership.validate()?;
    Ok(())
}

fn node_id(index: usize) -> NodeId {
    #[expect(clippy::expect_used, reason = "the simulator's own names are valid by construction")]
    NodeId::new(&format!("n{index:03}")).expect("a letter and digits")
}

fn authority(index: usize) -> Authority {
    #[expect(clippy::expect_used, reason = "the simulator's own addresses are valid by construction")]
    Authority::new(&format!("n{index:03}.sim:8401")).expect("a name and a port")
}

/// How many nodes act as seeds.
const SEEDS: usize = 3;
/// How often [`Simulation::run_until`] looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Up to so many nodes the whole table is checked after every step; beyond, after every so many steps.
const THOROUGH_NODES: usize = 10;
const THOROUGH_EVERY: u64 = 256;
/// What a frozen process's socket holds.
const BACKLOG_MAX: usize = 10_000;
