//! The world of slots: the driver of every registry, the network between them, and the course of a run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use synod_core::slots::{
    BootstrapNode, BootstrapState, HlcTimestamp, NodeRecord, Pace, RegistryOutcome, Replication, SlotId,
    SlotMessage, SlotRecord, SlotRegistryConfig,
};
use synod_core::{Incarnation, MemberId, NodeId, TimerInstant};

use super::checks::Notes;
use super::clients::Client;
use super::detector::Detector;
use super::node::{Disk, Node};
use super::{Failover, Mistake, SLOTS_SCENARIO, SlotReport, SlotSimConfig, SlotViolation};
use crate::history::{Ask, Request, Said, check};
use crate::network::Network;
use crate::report::{TraceLine, TraceSink};

pub(super) struct World {
    pub(super) config: SlotSimConfig,
    pub(super) bootstrap: Arc<BootstrapState>,
    pub(super) registry_config: SlotRegistryConfig,
    pub(super) now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    scheduled: u64,
    pub(super) rng: fastrand::Rng,
    pub(super) network: Network,
    /// The share of messages that are late by seconds.
    pub(super) strays: f64,
    /// The share of requests that are reads; `None` where one client writes and the others read.
    pub(super) reads: Option<f64>,
    pub(super) nodes: Vec<Node>,
    pub(super) detectors: Vec<Detector>,
    pub(super) clients: Vec<Client>,
    /// What clients asked of each slot and what they were told.
    pub(super) histories: BTreeMap<SlotId, Vec<Request>>,
    /// How many values were written, so that each is unique.
    pub(super) values: u64,
    /// Nothing more is done to the cluster.
    pub(super) is_healed: bool,
    /// Clients ask for nothing.
    pub(super) is_quiet: bool,
    pub(super) notes: Notes,
    pub(super) report: SlotReport,
    trace: Option<TraceSink>,
    violation: Option<SlotViolation>,
}

/// Something that is to happen.
pub(super) enum Happening {
    Deliver { to: usize, from: MemberId, message: SlotMessage },
    Gossip { to: usize, records: Vec<SlotRecord>, nodes: Vec<NodeRecord> },
    Wake { node: usize, life: u64 },
    Written { node: usize, life: u64 },
    Thaw { node: usize, life: u64 },
    Exit { node: usize, life: u64 },
    Start { node: usize },
    Detect { observer: usize },
    Ask { client: usize },
    Request { node: usize, client: usize, slot: SlotId, number: usize, patience: Duration },
    Answered { client: usize, slot: SlotId, number: usize, to: Option<usize> },
    TiredOf { client: usize, slot: SlotId, number: usize },
    Fault,
}

impl Happening {
    /// The process that has to run for it.
    const fn at(&self) -> Option<usize> {
        match self {
            Self::Deliver { to, .. } | Self::Gossip { to, .. } => Some(*to),
            Self::Wake { node, .. }
            | Self::Written { node, .. }
            | Self::Exit { node, .. }
            | Self::Request { node, .. } => Some(*node),
            _ => None,
        }
    }
}

impl World {
    pub(super) fn new(config: SlotSimConfig, trace: Option<TraceSink>) -> Self {
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let bootstrap = Arc::new(layout(&config));
        let suspect_after = Duration::from_millis(rng.u64(600..2000));
        let detectors = (0..config.nodes).map(|_| {
            // Some see everything late.
            let factor = if rng.u32(..10) == 0 { 3 } else { 1 };
            Detector::new(suspect_after * factor, suspect_after * factor * 3)
        });
        let detectors = detectors.collect();
        let nodes = (0..config.nodes).map(|index| Node {
            name: name(index),
            disk: Disk::default(),
            life: 0,
            process: None,
            clock_offset: match rng.u32(..10) {
                // Further than stamps are followed.
                0 => 600_000,
                _ => rng.i64(-20_000..20_000),
            },
            disk_delay_max: FAST_DISK,
        });
        let nodes = nodes.collect();
        let report = SlotReport {
            seed: config.seed,
            nodes: config.nodes,
            scenario: SLOTS_SCENARIO.to_owned(),
            slots: config.slots,
            replicas: u8::try_from(bootstrap.replica_count()).unwrap_or(u8::MAX),
            ..SlotReport::default()
        };
        Self {
            registry_config: SlotRegistryConfig {
                rebalance_delay: Duration::from_secs(5),
                requests_per_slot_max: if rng.u32(..4) == 0 { 2 } else { 256 },
                ..SlotRegistryConfig::default()
            },
            bootstrap,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            scheduled: 0,
            network: Network::new(config.network.clone(), config.nodes),
            strays: [0.0, 0.01, 0.1][rng.usize(..3)],
            reads: [Some(0.4), Some(0.9), None][rng.usize(..3)],
            nodes,
            detectors,
            clients: (0..config.clients).map(|_| Client::default()).collect(),
            histories: BTreeMap::new(),
            values: 0,
            is_healed: false,
            is_quiet: false,
            notes: Notes::new(config.nodes),
            report,
            trace,
            violation: None,
            rng,
            config,
        }
    }

    pub(super) fn run(mut self) -> Result<SlotReport, SlotViolation> {
        for node in 0..self.config.nodes {
            let after = Duration::from_millis(self.rng.u64(..500));
            self.schedule(after, Happening::Start { node });
            self.schedule(after, Happening::Detect { observer: node });
        }
        for client in 0..self.config.clients {
            self.schedule(Duration::from_millis(300), Happening::Ask { client });
        }
        self.schedule(Duration::from_secs(2), Happening::Fault);
        self.pass(STORY)?;
        self.heal();
        self.settle()?;
        self.rest()?;
        self.fail_over()?;
        self.read_all()?;
        self.report.unknown = self.histories.values().flatten().filter(|one| is_unknown(one)).count() as u64;
        self.report.messages_sent = self.network.sent;
        self.report.messages_lost = self.network.lost;
        self.report.simulated_ms = millis(self.now);
        Ok(self.report)
    }

    /// Everything is healed. Waits until all slots are served, all maps equal, and all slots with their first replica.
    fn settle(&mut self) -> Result<(), SlotViolation> {
        let healed = self.now;
        let (mut served, mut equal) = (None, None);
        loop {
            let after = self.now - healed;
            if served.is_none() && self.unserved().is_none() {
                served = Some(after);
            }
            if equal.is_none() && served.is_some() && self.are_maps_equal() {
                equal = Some(after);
            }
            let left = self.unsettled();
            if let (Some(served), Some(equal), None) = (served, equal, &left) {
                self.report.served_after_ms = millis(served);
                self.report.converged_after_ms = millis(equal);
                self.report.home_after_ms = millis(after);
                return Ok(());
            }
            let is_late = served.is_none() && after > SERVED_MAX
                || equal.is_none() && after > SERVED_MAX + 2 * FULL_SYNC
                || after > HOME_MAX;
            if is_late {
                // What clients saw matters more than what is late.
                self.check_histories()?;
                let left = self.unserved().or(left).unwrap_or_else(|| "the maps differ".to_owned());
                self.fail(format!("{after:?} after everything was healed {left}"));
            }
            self.pass(POLLING)?;
        }
    }

    /// A cluster that nothing is done to does nothing but say that it is there.
    fn rest(&mut self) -> Result<(), SlotViolation> {
        self.is_quiet = true;
        self.pass(Duration::from_secs(6))?;
        let (elections, messages) = (self.report.elections, self.network.sent);
        self.pass(REST)?;
        let messages = self.network.sent - messages;
        // Each says every second to every other what it serves, and compares digests now and then.
        let most = (self.nodes.len() * self.nodes.len()) as u64 * (REST.as_secs() + 1) * 2;
        if self.report.elections != elections {
            self.fail("a cluster at rest held elections".to_owned());
        } else if messages > most {
            self.fail(format!("a cluster at rest sent {messages} messages in {REST:?}"));
        }
        if self.nodes.iter().filter_map(|node| node.process.as_ref()).any(|one| !one.requests.is_empty()) {
            self.fail("requests were never answered".to_owned());
        }
        self.wake_clients();
        self.pass(Duration::from_secs(1))
    }

    /// Kills a node that serves, and takes the time.
    fn fail_over(&mut self) -> Result<(), SlotViolation> {
        let now = self.time();
        let counts =
            self.nodes.iter().map(|node| node.process.as_ref().map(|one| one.registry.serving_count()));
        let serving: Vec<_> = counts.enumerate().filter(|(_, count)| *count > Some(0)).collect();
        if self.bootstrap.replica_count() < 3 || serving.is_empty() {
            return Ok(());
        }
        let (node, _) = serving[self.rng.usize(..serving.len())];
        let slots = self.bootstrap.slots().filter(|slot| {
            self.nodes[node].process.as_ref().is_some_and(|process| process.serves(*slot, now).is_some())
        });
        let slots: Vec<SlotId> = slots.collect();
        let killed = self.now;
        self.notes.watch(node, slots.iter().copied());
        self.crash(node);
        let mut equal = None;
        while equal.is_none() || self.notes.served_again.is_none() {
            if self.now - killed > SERVED_MAX {
                self.check_histories()?;
                self.fail(format!("the slots of n{node} are not served after {SERVED_MAX:?}"));
            }
            self.pass(Duration::from_millis(10))?;
            if self.notes.served_again.is_some() && equal.is_none() && self.are_maps_equal() {
                equal = Some(self.now);
            }
        }
        let since = |at: Option<Duration>| millis(at.unwrap_or(self.now).saturating_sub(killed));
        self.report.failover = Some(Failover {
            slots: slots.len(),
            suspected_after_ms: since(self.notes.suspected),
            served_after_ms: since(self.notes.served_again),
            converged_after_ms: since(equal),
        });
        self.start(node);
        self.pass(Duration::from_secs(2))
    }

    /// What was acknowledged is there to the end.
    fn read_all(&mut self) -> Result<(), SlotViolation> {
        self.is_quiet = true;
        self.pass(Duration::from_secs(6))?;
        self.clients = self.bootstrap.slots().map(|_| Client::default()).collect();
        let mut unread: Vec<SlotId> = self.bootstrap.slots().collect();
        // A slot may just be handed back to the node that was killed.
        for _ in 0..3 {
            for slot in &unread {
                let route = self.nodes[0].process.as_ref().and_then(|process| process.registry.route(*slot));
                match route.and_then(|route| self.index_of(&route.primary)) {
                    Some(node) => self.send_request(slot.index(), *slot, Ask::Read, node),
                    None => self.fail(format!("nobody knows who serves slot {slot}")),
                }
            }
            self.pass(Duration::from_secs(5))?;
            unread.retain(|slot| {
                let last = self.histories.get(slot).and_then(|all| all.last());
                !last.is_some_and(|last| last.ended.is_some() && matches!(last.said, Said::Found(_)))
            });
        }
        if let Some(slot) = unread.first() {
            self.fail(format!("slot {slot} could not be read at the end"));
        }
        self.check_histories()?;
        self.pass(Duration::ZERO)
    }

    fn check_histories(&mut self) -> Result<(), SlotViolation> {
        for (slot, requests) in &self.histories {
            if let Err(problem) = check(requests) {
                return Err(SlotViolation { at: self.now, what: format!("slot {slot}: {problem}") });
            }
        }
        Ok(())
    }

    fn wake_clients(&mut self) {
        self.is_quiet = false;
        for client in 0..self.clients.len() {
            self.schedule(Duration::ZERO, Happening::Ask { client });
        }
    }

    fn pass(&mut self, time: Duration) -> Result<(), SlotViolation> {
        let until = self.now + time;
        let mut at_once = 0;
        while let Some(Reverse((at, number))) = self.queue.peek().copied().filter(|next| next.0.0 <= until) {
            self.queue.pop();
            at_once = if at == self.now { at_once + 1 } else { 0 };
            self.now = at;
            if at_once > AT_ONCE_MAX {
                self.fail("a machine wants to be woken again and again, and time stands still".to_owned());
            }
            if let Some(happening) = self.happenings.remove(&number) {
                self.happen(happening);
            }
            if self.violation.is_some() {
                break;
            }
        }
        match self.violation.clone() {
            Some(violation) => Err(violation),
            None => {
                self.now = until;
                Ok(())
            }
        }
    }

    pub(super) fn happen(&mut self, happening: Happening) {
        let frozen = happening.at().and_then(|node| self.nodes[node].process.as_mut()?.frozen.as_mut());
        if let Some(frozen) = frozen {
            return frozen.push(happening);
        }
        let now = self.time();
        match happening {
            Happening::Deliver { to, from, message } => {
                if let Some(process) = &mut self.nodes[to].process {
                    let outcome = process.registry.handle_message(&from, message, now);
                    self.perform(to, outcome);
                }
            }
            Happening::Gossip { to, records, nodes } => {
                if let Some(process) = &mut self.nodes[to].process {
                    let outcome = process.registry.handle_gossip(records, nodes, now);
                    self.perform(to, outcome);
                }
            }
            Happening::Wake { node, life } => self.wake(node, life),
            Happening::Written { node, life } => self.written(node, life),
            Happening::Thaw { node, life } => self.thaw(node, life),
            Happening::Exit { node, life } => self.exit_if_drained(node, life),
            Happening::Start { node } => self.start(node),
            Happening::Detect { observer } => {
                self.detect(observer);
                self.check_node(observer);
            }
            Happening::Ask { client } => self.ask(client),
            Happening::Request { node, client, slot, number, patience } => {
                self.take_request(node, client, slot, number, patience);
            }
            Happening::Answered { client, slot, number, to } => self.take_answer(client, slot, number, to),
            Happening::TiredOf { client, slot, number } => self.tire_of(client, slot, number),
            Happening::Fault => self.strike(),
        }
    }

    // ---- The driver ----

    /// Carries an outcome out: first the disk, then, when it has confirmed, everything else, in order.
    pub(super) fn perform(&mut self, node: usize, mut outcome: RegistryOutcome) {
        self.note_wake(node, outcome.wake_at);
        let Some(process) = &mut self.nodes[node].process else { return };
        if self.config.mistake == Some(Mistake::SendBeforePersist) {
            let persist = std::mem::take(&mut outcome.persist);
            process.unwritten.push_back(RegistryOutcome { persist, ..RegistryOutcome::default() });
            self.release(node, outcome);
        } else {
            process.unwritten.push_back(outcome);
        }
        self.write_on(node);
    }

    /// Gives the disk the next batch, and lets go what has nothing to be written.
    fn write_on(&mut self, node: usize) {
        while let Some(process) = &mut self.nodes[node].process {
            if process.being_written > 0 || process.unwritten.is_empty() {
                return;
            }
            if process.unwritten.front().is_some_and(|first| !first.persist.is_empty()) {
                process.being_written = process.unwritten.len();
                let life = self.nodes[node].life;
                let most = u64::try_from(self.nodes[node].disk_delay_max.as_micros()).unwrap_or(u64::MAX);
                let delay = Duration::from_micros(self.rng.u64(50..most.max(100)));
                return self.schedule(delay, Happening::Written { node, life });
            }
            if let Some(outcome) = process.unwritten.pop_front() {
                self.release(node, outcome);
            }
        }
    }

    fn written(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let count = std::mem::take(&mut process.being_written);
        let batch: Vec<RegistryOutcome> = process.unwritten.drain(..count).collect();
        for outcome in &batch {
            outcome.persist.iter().for_each(|op| self.write(node, op));
        }
        for outcome in batch {
            self.release(node, outcome);
        }
        self.write_on(node);
    }

    /// Tells the world what is durable. A crash may come between any two messages.
    fn release(&mut self, node: usize, outcome: RegistryOutcome) {
        let RegistryOutcome { events, gossip_slots, gossip_nodes, send, answers, .. } = outcome;
        let Some(process) = &mut self.nodes[node].process else { return };
        let from = process.member.clone();
        let is_told = send.iter().any(|(_, message)| is_commitment(message));
        let is_last = match &mut process.dies_in {
            Some(0) if is_told => true,
            Some(left) if is_told => {
                *left -= 1;
                false
            }
            _ => false,
        };
        for event in events {
            self.note_event(node, event);
        }
        let cut = if is_last { self.rng.usize(..=send.len()) } else { send.len() };
        let is_whole = cut == send.len();
        for (to, message) in send.into_iter().take(cut) {
            self.send(node, &from, &to, message);
        }
        if is_whole {
            self.gossip(node, &gossip_slots, &gossip_nodes);
            for (id, answer) in answers {
                self.answered(node, id, answer);
            }
        }
        if is_last {
            self.crash_for_a_while(node);
        }
    }

    fn send(&mut self, node: usize, from: &MemberId, to: &NodeId, mut message: SlotMessage) {
        let Some(to) = self.index_of(to) else { return };
        match (self.config.mistake, &mut message) {
            (Some(Mistake::ConfirmNothing), SlotMessage::Confirm { slot, epoch, nonce }) => {
                let message = SlotMessage::Confirmed { slot: *slot, epoch: *epoch, nonce: *nonce };
                let from = member(to, self.nodes[to].life.max(1));
                return self
                    .schedule(Duration::from_micros(100), Happening::Deliver { to: node, from, message });
            }
            (Some(Mistake::RecoverNothing), SlotMessage::Grants { granted, .. }) => {
                granted.iter_mut().for_each(|grant| grant.stored = None);
            }
            _ => {}
        }
        if self.trace.is_some() {
            self.say(Some(node), "send", format!("n{to}: {message:?}"));
        }
        for delay in self.network.route(node, to, &mut self.rng) {
            let is_stray = self.rng.f64() < self.strays;
            let delay = if is_stray { delay + STRAY_MAX.mul_f64(self.rng.f64()) } else { delay };
            let (from, message) = (from.clone(), message.clone());
            self.schedule(delay, Happening::Deliver { to, from, message });
        }
    }

    fn gossip(&mut self, node: usize, records: &[SlotRecord], nodes: &[NodeRecord]) {
        if records.is_empty() && nodes.is_empty() {
            return;
        }
        let mut others: Vec<usize> = (0..self.nodes.len()).filter(|other| *other != node).collect();
        self.rng.shuffle(&mut others);
        for to in others.into_iter().take(usize::from(self.bootstrap.pace.fanout)) {
            let wait = self.bootstrap.pace.gossip_interval.mul_f64(self.rng.f64());
            for delay in self.network.route(node, to, &mut self.rng) {
                let (records, nodes) = (records.to_vec(), nodes.to_vec());
                self.schedule(wait + delay, Happening::Gossip { to, records, nodes });
            }
        }
    }

    fn wake(&mut self, node: usize, life: u64) {
        let now = self.time();
        if self.nodes[node].life != life {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.wake_at.is_some_and(|at| at <= now) {
            process.wake_at = None;
            let outcome = process.registry.poll(now);
            self.perform(node, outcome);
        }
    }

    fn note_wake(&mut self, node: usize, at: Option<TimerInstant>) {
        let now = self.time();
        let life = self.nodes[node].life;
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.wake_at == at {
            return;
        }
        process.wake_at = at;
        if let Some(at) = at {
            self.schedule(at.saturating_since(now), Happening::Wake { node, life });
        }
    }

    // ---- Small things ----

    pub(super) fn schedule(&mut self, after: Duration, happening: Happening) {
        self.scheduled += 1;
        self.queue.push(Reverse((self.now + after, self.scheduled)));
        self.happenings.insert(self.scheduled, happening);
    }

    pub(super) fn time(&self) -> TimerInstant {
        TimerInstant::from_nanos(u64::try_from(self.now.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn index_of(&self, node: &NodeId) -> Option<usize> {
        self.nodes.iter().position(|one| one.name == *node)
    }

    pub(super) fn fail(&mut self, what: String) {
        self.violation.get_or_insert(SlotViolation { at: self.now, what });
    }

    pub(super) fn say(&mut self, node: Option<usize>, kind: &'static str, text: String) {
        if let Some(trace) = &mut self.trace {
            let node = node.map(|node| format!("n{node}"));
            trace.receive(&TraceLine { at: self.now, node, kind, text });
        }
    }
}

fn layout(config: &SlotSimConfig) -> BootstrapState {
    let sound = "settings of the simulator are sound";
    let nodes = (9000..).step_by(10).take(config.nodes).enumerate().map(|(index, port)| {
        BootstrapNode::new(name(index), ([127, 0, 0, 1], port).into(), vec!["disk".to_owned()]).expect(sound)
    });
    let (total_slots, replicas) = (config.slots, config.replicas);
    let state = BootstrapState {
        initialized_at: HlcTimestamp::default(),
        initialized_by: name(0),
        namespace: "simulated".to_owned(),
        nodes: nodes.collect(),
        replication: Replication { total_slots, replicas, min_write_replicas: config.min_write_replicas },
        pace: Pace {
            gossip_interval: Duration::from_millis(200),
            full_sync_interval: FULL_SYNC,
            suspect_timeout: Duration::from_secs(3),
            fail_timeout: Duration::from_secs(9),
            fanout: 3,
        },
        archive: None,
        queue: synod_core::slots::QueueLayout::default(),
    };
    state.checked().expect(sound)
}

fn name(index: usize) -> NodeId {
    NodeId::new(&format!("n{index}")).expect("a name")
}

pub(super) fn member(index: usize, life: u64) -> MemberId {
    MemberId::new(name(index), Incarnation::new(life).expect("a life"))
}

/// Whether a message says that something was promised or stored, so that it had better be durable.
const fn is_commitment(message: &SlotMessage) -> bool {
    matches!(
        message,
        SlotMessage::Grants { .. }
            | SlotMessage::AskGrants { .. }
            | SlotMessage::Stored { .. }
            | SlotMessage::Store { .. }
            | SlotMessage::Promises { .. }
    )
}

fn is_unknown(request: &Request) -> bool {
    request.said == Said::Unknown && matches!(request.ask, Ask::Write { .. })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long things happen to the cluster.
pub(super) const STORY: Duration = Duration::from_secs(30);
/// Within this time after everything was healed every slot is served, and after a kill the slots of who was killed.
const SERVED_MAX: Duration = Duration::from_secs(30);
/// Within this time every slot is back with its first replica.
const HOME_MAX: Duration = Duration::from_secs(60);
/// How long a cluster at rest is watched.
const REST: Duration = Duration::from_secs(5);
const FULL_SYNC: Duration = Duration::from_secs(3);
const POLLING: Duration = Duration::from_millis(50);
/// The most that a stray message is late.
const STRAY_MAX: Duration = Duration::from_secs(8);
/// The longest write of a disk that is well.
pub(super) const FAST_DISK: Duration = Duration::from_millis(5);
/// Most things that happen at one moment. There are some hundreds at most unless a machine goes round in circles.
const AT_ONCE_MAX: u32 = 10_000;
