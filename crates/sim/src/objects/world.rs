//! The world of objects: the driver of every coordinator, its disk, the oracle, and the course of a run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use synod_core::objects::{
    EntryHead, EntryName, ObjectCoordinator, ObjectEvent, ObjectMessage, ObjectOutcome, Space, handle_message,
};
use synod_core::slots::{
    BootstrapNode, BootstrapState, HeadRank, HlcTimestamp, Pace, Replication, SlotEpoch, SlotId, Tag,
};
use synod_core::{NodeId, TimerInstant};

use super::clients::{Client, OpenRequest};
use super::disk::{Disk, DiskOp, Table};
use super::{OBJECTS_SCENARIO, ObjectMistake, ObjectReport, ObjectSimConfig, ObjectViolation};
use crate::history::{Ask, Request, Said, check};
use crate::network::Network;
use crate::report::{TraceLine, TraceSink};

pub(super) struct World {
    pub(super) config: ObjectSimConfig,
    pub(super) bootstrap: Arc<BootstrapState>,
    pub(super) now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    scheduled: u64,
    pub(super) rng: fastrand::Rng,
    pub(super) network: Network,
    /// The share of messages that are late by much.
    pub(super) strays: f64,
    pub(super) nodes: Vec<Node>,
    pub(super) keys: Vec<EntryName>,
    pub(super) clients: Vec<Client>,
    /// What clients asked of each key and what they were told.
    pub(super) histories: BTreeMap<EntryName, Vec<Request>>,
    /// The latest epoch of each slot, and whom the oracle gave it.
    pub(super) epochs: BTreeMap<SlotId, (u64, usize)>,
    /// When each tag was given, and to which value.
    pub(super) tagged: BTreeMap<(EntryName, Tag), (Duration, u64)>,
    /// How many values were written, so that each is unique.
    pub(super) values: u64,
    pub(super) next_id: u64,
    pub(super) is_healed: bool,
    pub(super) is_quiet: bool,
    pub(super) report: ObjectReport,
    pub(super) trace: Option<TraceSink>,
    violation: Option<ObjectViolation>,
}

pub(super) struct Node {
    pub(super) name: NodeId,
    pub(super) disk: Disk,
    pub(super) life: u64,
    pub(super) process: Option<Process>,
    pub(super) disk_delay_max: Duration,
    /// It is not frozen again before then: what waits in it gets old.
    pub(super) awake_until: Duration,
}

pub(super) struct Process {
    pub(super) machine: ObjectCoordinator,
    pub(super) wake_at: Option<TimerInstant>,
    pub(super) queue: VecDeque<DiskOp>,
    /// How many of the queue are in the transaction that is being written.
    pub(super) being_written: usize,
    pub(super) frozen: Option<Vec<Happening>>,
    pub(super) requests: BTreeMap<u64, OpenRequest>,
}

/// Something that is to happen.
pub(super) enum Happening {
    Deliver { to: usize, from: usize, message: ObjectMessage },
    Elected { node: usize, slot: SlotId, epoch: SlotEpoch },
    Deposed { node: usize, slot: SlotId, epoch: SlotEpoch },
    Wake { node: usize, life: u64 },
    Written { node: usize, life: u64 },
    Look { node: usize, life: u64, op: DiskOp },
    Thaw { node: usize, life: u64 },
    Start { node: usize },
    Oracle,
    Sweep,
    Ask { client: usize },
    Arrive { node: usize, client: usize, name: EntryName, number: usize, patience: Duration },
    List { node: usize, client: usize, slot: SlotId, began: Duration },
    Answered { client: usize, name: EntryName, number: usize },
    GoOn { client: usize, turn: u64 },
    Fault,
}

impl Happening {
    /// The process that has to run for it.
    const fn at(&self) -> Option<usize> {
        match self {
            Self::Deliver { to, .. } => Some(*to),
            Self::Elected { node, .. }
            | Self::Deposed { node, .. }
            | Self::Wake { node, .. }
            | Self::Written { node, .. }
            | Self::Look { node, .. }
            | Self::Arrive { node, .. }
            | Self::List { node, .. } => Some(*node),
            _ => None,
        }
    }
}

impl World {
    pub(super) fn new(config: ObjectSimConfig, trace: Option<TraceSink>) -> Self {
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let bootstrap = Arc::new(layout(&config));
        let nodes = (0..config.nodes).map(|index| Node {
            name: name(index),
            disk: Disk::default(),
            life: 0,
            process: None,
            disk_delay_max: FAST_DISK,
            awake_until: Duration::ZERO,
        });
        let report = ObjectReport {
            seed: config.seed,
            nodes: config.nodes,
            scenario: OBJECTS_SCENARIO.to_owned(),
            slots: config.slots,
            replicas: u8::try_from(bootstrap.replica_count()).unwrap_or(u8::MAX),
            ..ObjectReport::default()
        };
        let keys = (0..config.keys)
            .map(|key| EntryName::new(Space::Object, "bucket", &format!("key{key}")).expect("a name"));
        let mut world = Self {
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            scheduled: 0,
            network: Network::new(config.network.clone(), config.nodes),
            strays: [0.0, 0.01, 0.1][rng.usize(..3)],
            nodes: nodes.collect(),
            keys: keys.collect(),
            clients: (0..config.clients).map(|_| Client::default()).collect(),
            histories: BTreeMap::new(),
            epochs: bootstrap.slots().map(|slot| (slot, (0, 0))).collect(),
            tagged: BTreeMap::new(),
            values: 0,
            next_id: 0,
            is_healed: false,
            is_quiet: false,
            report,
            trace,
            violation: None,
            rng,
            bootstrap,
            config,
        };
        // A new cluster, by the word of its operator: everybody remembers that there was nothing.
        for node in 0..world.nodes.len() {
            for slot in world.stores(node) {
                let fence = synod_core::objects::SlotFence { is_learned: true, ..Default::default() };
                world.nodes[node].disk.fences.insert(slot, fence);
            }
        }
        world
    }

    pub(super) fn run(mut self) -> Result<ObjectReport, ObjectViolation> {
        for node in 0..self.config.nodes {
            self.start(node);
        }
        for client in 0..self.config.clients {
            self.schedule(Duration::from_millis(30), Happening::Ask { client });
        }
        self.schedule(Duration::ZERO, Happening::Oracle);
        self.schedule(Duration::from_millis(300), Happening::Sweep);
        self.schedule(Duration::from_millis(500), Happening::Fault);
        self.pass(STORY)?;
        self.heal();
        self.settle()?;
        self.read_all()?;
        for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
            let (counters, progress) = (process.machine.counters(), process.machine.progress());
            self.report.renewals += counters.renewals;
            self.report.forgotten += counters.forgotten;
            self.report.repaired += progress.heal_entries_repaired;
        }
        let is_unknown = |one: &&Request| one.said == Said::Unknown && one.ask != Ask::Read;
        self.report.unknown = self.histories.values().flatten().filter(is_unknown).count() as u64;
        self.report.messages_sent = self.network.sent;
        self.report.messages_lost = self.network.lost;
        self.report.simulated_ms = millis(self.now);
        Ok(self.report)
    }

    /// Everything is healed, and clients are quiet. Waits until every slot is served and all replicas are equal.
    fn settle(&mut self) -> Result<(), ObjectViolation> {
        let healed = self.now;
        let mut served = None;
        loop {
            let after = self.now - healed;
            let unserved = self.bootstrap.slots().find(|slot| self.primary(*slot).is_none());
            if unserved.is_none() && served.is_none() {
                served = Some(after);
                self.report.served_after_ms = millis(after);
                self.look_now();
            }
            let left = match unserved {
                Some(slot) => Some(format!("nobody serves slot {slot}")),
                None => self.unequal(),
            };
            let Some(left) = left else {
                self.report.equal_after_ms = millis(after);
                return Ok(());
            };
            if after > SETTLED_MAX {
                self.check_histories()?;
                self.fail(format!("{after:?} after everything was healed {left}"));
            }
            self.pass(Duration::from_millis(50))?;
        }
    }

    /// An operator asks every primary to compare its replicas.
    fn look_now(&mut self) {
        let now = self.time();
        for node in 0..self.nodes.len() {
            if let Some(process) = &mut self.nodes[node].process {
                let outcome = process.machine.handle_heal(now, None);
                self.perform(node, outcome);
            }
        }
    }

    /// What is left to be done before all replicas have the same, in words.
    fn unequal(&self) -> Option<String> {
        for slot in self.bootstrap.slots() {
            let replicas: Vec<usize> = self.replicas(slot);
            if let Some(node) = replicas.iter().find(|node| !self.nodes[**node].disk.is_learned(slot)) {
                return Some(format!("n{node} has not learned slot {slot}"));
            }
            let heads = |node: usize| self.nodes[node].disk.heads(slot).collect::<Vec<_>>();
            let first = replicas[0];
            if let Some(node) = replicas.iter().find(|node| heads(**node) != heads(first)) {
                let (one, other) = (heads(*node), heads(first));
                return Some(format!("n{node} and n{first} differ in slot {slot}: {one:?} and {other:?}"));
            }
        }
        None
    }

    /// What was acknowledged is there to the end, and nobody waits for an answer.
    fn read_all(&mut self) -> Result<(), ObjectViolation> {
        self.pass(Duration::from_secs(4))?;
        let waits = |node: &Node| node.process.as_ref().is_some_and(|one| !one.requests.is_empty());
        if let Some(node) = self.nodes.iter().position(waits) {
            self.fail(format!("requests to n{node} were never answered"));
        }
        self.clients = vec![Client::default()];
        for name in self.keys.clone() {
            match self.primary(self.slot_of(&name)) {
                Some(node) => self.send_request(0, &name, Ask::Read, node, Duration::from_secs(2)),
                None => self.fail(format!("nobody serves {} any more", name.key())),
            }
            self.pass(Duration::from_millis(2100))?;
            let last = self.histories.get(&name).and_then(|all| all.last());
            if !last.is_some_and(|last| last.ended.is_some() && matches!(last.said, Said::Found(_))) {
                self.fail(format!("{} could not be read at the end: {last:?}", name.key()));
            }
        }
        self.check_histories()?;
        self.pass(Duration::ZERO)
    }

    fn check_histories(&self) -> Result<(), ObjectViolation> {
        for (name, requests) in &self.histories {
            if let Err(problem) = check(requests) {
                let what = format!("{}: {problem}", name.key());
                return Err(ObjectViolation { at: self.now, what, is_seen: true });
            }
        }
        Ok(())
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) -> Result<(), ObjectViolation> {
        let end = self.now + time;
        while let Some(Reverse((at, number))) = self.queue.peek().copied().filter(|next| next.0.0 <= end) {
            self.queue.pop();
            self.now = at;
            if let Some(happening) = self.happenings.remove(&number) {
                self.happen(happening);
            }
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
        }
        self.now = end;
        self.violation.take().map_or(Ok(()), Err)
    }

    pub(super) fn happen(&mut self, happening: Happening) {
        if let Some(node) = happening.at()
            && let Some(process) = &mut self.nodes[node].process
            && let Some(missed) = &mut process.frozen
        {
            missed.push(happening);
            return;
        }
        let now = self.time();
        match happening {
            Happening::Deliver { to, from, message } => self.deliver(to, from, message),
            Happening::Elected { node, slot, epoch } => {
                self.with_machine(node, |machine| machine.handle_elected(now, slot, epoch));
            }
            Happening::Deposed { node, slot, epoch } => {
                self.with_machine(node, |machine| machine.handle_deposed(now, slot, epoch));
            }
            Happening::Wake { node, life } => self.wake(node, life),
            Happening::Written { node, life } => self.written(node, life),
            Happening::Look { node, life, op } => {
                if self.nodes[node].life == life && self.nodes[node].process.is_some() {
                    let answer = self.commit(node, &op);
                    self.told(node, op, answer);
                }
            }
            Happening::Thaw { node, life } => self.thaw(node, life),
            Happening::Start { node } => self.start(node),
            Happening::Oracle => self.hold_election(),
            Happening::Sweep => self.sweep_tombstones(),
            Happening::Ask { client } => self.ask(client),
            Happening::Arrive { node, client, name, number, patience } => {
                self.take_request(node, client, name, number, patience);
            }
            Happening::List { node, client, slot, began } => self.take_list(node, client, slot, began),
            Happening::Answered { client, name, number } => self.take_answer(client, &name, number),
            Happening::GoOn { client, turn } => self.go_on(client, turn),
            Happening::Fault => self.strike(),
        }
    }

    // ---- The driver ----

    pub(super) fn with_machine(
        &mut self,
        node: usize,
        call: impl FnOnce(&mut ObjectCoordinator) -> ObjectOutcome,
    ) {
        if let Some(process) = &mut self.nodes[node].process {
            let outcome = call(&mut process.machine);
            self.perform(node, outcome);
        }
    }

    /// Carries an outcome out, in the order of its fields.
    pub(super) fn perform(&mut self, node: usize, outcome: ObjectOutcome) {
        let ObjectOutcome { load, load_ranks, send, answers, events, next_timeout } = outcome;
        self.note_wake(node, next_timeout);
        for name in load {
            self.look(node, DiskOp::Load(name));
        }
        for query in load_ranks {
            self.look(node, DiskOp::Ranks(query));
        }
        for (to, message) in send {
            self.note_sent(&message);
            let Some(to) = self.index_of(&to) else { continue };
            if to == node {
                self.enqueue(node, DiskOp::Message { from: node, message });
            } else {
                self.send(node, to, &message);
            }
        }
        for (id, answer) in answers {
            self.answered(node, id, answer);
        }
        for event in events {
            if matches!(event, ObjectEvent::SlotServing { .. }) {
                self.report.reigns += 1;
            }
            self.say(Some(node), "objects", format!("{event:?}"));
        }
    }

    /// Notes which tag a request was given.
    fn note_sent(&mut self, message: &ObjectMessage) {
        let ObjectMessage::Store { name, head, .. } = message else { return };
        let (value, number) = written_in(head);
        let now = self.now;
        self.tagged.entry((name.clone(), head.tag)).or_insert_with(|| {
            if let Some(request) = self.histories.get_mut(name).and_then(|all| all.get_mut(number)) {
                request.given = Some((head.tag, now));
            }
            (now, value)
        });
    }

    fn send(&mut self, from: usize, to: usize, message: &ObjectMessage) {
        if self.config.mistake == Some(ObjectMistake::ConfirmNothing)
            && let ObjectMessage::Confirm { round, .. } = message
        {
            let message = ObjectMessage::Confirmed { round: *round, stale: Vec::new() };
            let happening = Happening::Deliver { to: from, from: to, message };
            return self.schedule(Duration::from_micros(100), happening);
        }
        if self.trace.is_some() {
            self.say(Some(from), "send", format!("n{to}: {message:?}"));
        }
        for delay in self.network.route(from, to, &mut self.rng) {
            let is_stray = self.rng.f64() < self.strays;
            let delay = if is_stray { delay + STRAY_MAX.mul_f64(self.rng.f64()) } else { delay };
            self.schedule(delay, Happening::Deliver { to, from, message: message.clone() });
        }
    }

    fn deliver(&mut self, to: usize, from: usize, mut message: ObjectMessage) {
        let is_for_the_disk = matches!(
            message,
            ObjectMessage::Fence { .. }
                | ObjectMessage::Store { .. }
                | ObjectMessage::Confirm { .. }
                | ObjectMessage::Summarize { .. }
                | ObjectMessage::Compare { .. }
                | ObjectMessage::Forget { .. }
        );
        if is_for_the_disk {
            return self.enqueue(to, DiskOp::Message { from, message });
        }
        if self.config.mistake == Some(ObjectMistake::RecoverNothing)
            && let ObjectMessage::Compared { newer, .. } = &mut message
        {
            newer.clear();
        }
        let now = self.time();
        let from = self.nodes[from].name.clone();
        self.with_machine(to, |machine| machine.handle_message(now, &from, message));
    }

    pub(super) fn enqueue(&mut self, node: usize, op: DiskOp) {
        if self.nodes[node].process.is_none() {
            return;
        }
        let mut early = None;
        if self.config.mistake == Some(ObjectMistake::AnswerBeforeDurable)
            && let DiskOp::Message { from, message } = &op
        {
            // As if it were done: on a copy.
            let mut copy = self.nodes[node].disk.clone();
            early = transact(&mut copy, self.now, 1, false, message).map(|answer| (*from, answer));
        }
        if let Some(process) = &mut self.nodes[node].process {
            process.queue.push_back(op);
        }
        if let Some((from, answer)) = early {
            self.tell(node, from, Some(answer));
        }
        self.write_on(node);
    }

    /// Looks at what is durable, some time from now.
    pub(super) fn look(&mut self, node: usize, op: DiskOp) {
        let life = self.nodes[node].life;
        let most = if self.rng.u32(..8) == 0 { 50_000 } else { 2000 };
        let delay = Duration::from_micros(self.rng.u64(20..most));
        self.schedule(delay, Happening::Look { node, life, op });
    }

    /// Gives the disk the next transaction: all that is in the queue.
    fn write_on(&mut self, node: usize) {
        let most = u64::try_from(self.nodes[node].disk_delay_max.as_micros()).unwrap_or(u64::MAX);
        let life = self.nodes[node].life;
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.being_written == 0 && !process.queue.is_empty() {
            process.being_written = process.queue.len();
            let delay = Duration::from_micros(self.rng.u64(50..most.max(100)));
            self.schedule(delay, Happening::Written { node, life });
        }
    }

    fn written(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let count = std::mem::take(&mut process.being_written);
        let batch: Vec<DiskOp> = process.queue.drain(..count).collect();
        let mut answers = Vec::new();
        for op in &batch {
            answers.push(self.commit(node, op));
        }
        for (op, answer) in batch.into_iter().zip(answers) {
            self.told(node, op, answer);
        }
        self.write_on(node);
    }

    /// Something becomes durable.
    pub(super) fn commit(&mut self, node: usize, op: &DiskOp) -> Committed {
        let (now, lot) = (self.now, self.rng.u64(..));
        let ignores_fence = self.config.mistake == Some(ObjectMistake::IgnoreFence);
        let total_slots = self.config.slots;
        let disk = &mut self.nodes[node].disk;
        match op {
            DiskOp::Message { message, .. } => {
                let ignores_fence = ignores_fence && matches!(message, ObjectMessage::Store { .. });
                Committed::Answer(transact(disk, now, lot, ignores_fence, message))
            }
            DiskOp::Load(name) => Committed::Head(disk.head(name.slot(total_slots), name).cloned()),
            DiskOp::Ranks(query) => {
                Committed::Ranks(disk.ranks(query.slot, query.after.as_ref(), None, query.limit))
            }
            DiskOp::Page { slot, .. } => {
                Committed::Page(disk.heads(*slot).map(|(name, head)| (name.clone(), head.clone())).collect())
            }
        }
    }

    /// The disk has confirmed something, and those who asked are told.
    fn told(&mut self, node: usize, op: DiskOp, committed: Committed) {
        let now = self.time();
        match (op, committed) {
            (DiskOp::Message { .. }, _)
                if self.config.mistake == Some(ObjectMistake::AnswerBeforeDurable) => {}
            (DiskOp::Message { from, .. }, Committed::Answer(answer)) => self.tell(node, from, answer),
            (DiskOp::Load(name), Committed::Head(mut head)) => {
                let slot = self.slot_of(&name);
                let renews_nothing = self.config.mistake == Some(ObjectMistake::RenewNothing);
                self.with_machine(node, |machine| {
                    if renews_nothing && let (Some(head), Some(epoch)) = (&mut head, machine.serves(slot)) {
                        head.accepted = head.accepted.max(epoch);
                    }
                    machine.handle_loaded(now, &name, head)
                });
            }
            (DiskOp::Ranks(query), Committed::Ranks(ranks)) => {
                self.with_machine(node, |machine| machine.handle_ranks(now, query.slot, query.round, ranks));
            }
            (DiskOp::Page { client, slot, epoch, began }, Committed::Page(page)) => {
                self.settle_page(node, client, slot, epoch, began, page);
            }
            _ => {}
        }
    }

    fn tell(&mut self, node: usize, from: usize, answer: Option<ObjectMessage>) {
        let Some(answer) = answer else { return };
        if from == node {
            // Not at once: the outcome that asked may not be carried out to the end.
            self.schedule(Duration::ZERO, Happening::Deliver { to: node, from, message: answer });
        } else {
            self.send(node, from, &answer);
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
            let outcome = process.machine.handle_timeout(now);
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

    pub(super) fn slot_of(&self, name: &EntryName) -> SlotId {
        name.slot(self.config.slots)
    }

    pub(super) fn replicas(&self, slot: SlotId) -> Vec<usize> {
        self.bootstrap.replicas(slot).filter_map(|node| self.index_of(node)).collect()
    }

    /// The slots that a node stores.
    pub(super) fn stores(&self, node: usize) -> Vec<SlotId> {
        self.bootstrap.slots().filter(|slot| self.replicas(*slot).contains(&node)).collect()
    }

    /// Who serves a slot in its latest epoch.
    pub(super) fn primary(&self, slot: SlotId) -> Option<usize> {
        let (epoch, node) = self.epochs[&slot];
        let process = self.nodes[node].process.as_ref()?;
        (process.machine.serves(slot) == Some(SlotEpoch::new(epoch))).then_some(node)
    }

    pub(super) fn fail(&mut self, what: String) {
        self.violation.get_or_insert(ObjectViolation { at: self.now, what, is_seen: false });
    }

    pub(super) fn say(&mut self, node: Option<usize>, kind: &'static str, text: String) {
        if let Some(trace) = &mut self.trace {
            let node = node.map(|node| format!("n{node}"));
            trace.receive(&TraceLine { at: self.now, node, kind, text });
        }
    }
}

/// What a transaction has to say.
pub(super) enum Committed {
    Answer(Option<ObjectMessage>),
    Head(Option<EntryHead>),
    Ranks(Vec<(EntryName, HeadRank)>),
    Page(Vec<(EntryName, EntryHead)>),
}

fn transact(
    disk: &mut Disk,
    now: Duration,
    lot: u64,
    ignores_fence: bool,
    message: &ObjectMessage,
) -> Option<ObjectMessage> {
    let Ok(answer) = handle_message(&mut Table { disk, now, lot, ignores_fence }, message);
    answer
}

/// The value that a head was written with, and the place of its request in the history of its key.
pub(super) fn written_in(head: &EntryHead) -> (u64, usize) {
    let number = |from: usize| {
        let bytes = head.content.get(from..from + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(u64::MAX, u64::from_le_bytes)
    };
    (number(0), usize::try_from(number(8)).unwrap_or(usize::MAX))
}

fn layout(config: &ObjectSimConfig) -> BootstrapState {
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
        pace: Pace::default(),
        archive: None,
        queue: synod_core::slots::QueueLayout::default(),
    };
    state.checked().expect(sound)
}

fn name(index: usize) -> NodeId {
    NodeId::new(&format!("n{index}")).expect("a name")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long things happen to the cluster.
pub(super) const STORY: Duration = Duration::from_secs(10);
/// Within this time after everything was healed every slot is served and all replicas are equal.
const SETTLED_MAX: Duration = Duration::from_secs(60);
/// The most that a stray message is late.
const STRAY_MAX: Duration = Duration::from_secs(1);
/// The longest transaction of a disk that is well.
pub(super) const FAST_DISK: Duration = Duration::from_millis(4);
