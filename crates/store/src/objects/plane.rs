//! The object plane of a running node: the machine, its disks, and the ways to the other nodes.
//!
//! ```text
//!   gateways ──► ask ──┐                                  ┌──► answers
//!   peers ─────► hear ─┼──► ObjectCoordinator ──► outcome ┼──► peers
//!   own disks, timer ──┘        (a lock)                  └──► own disks ──► (durable) ──► hear
//! ```
//!
//! Whoever has something for the machine locks it, and carries out what it says after the lock is free. Two outcomes may be
//! carried out in any order: messages may be late, doubled and lost anyway. What must be durable before it is told is
//! durable because it goes to a disk as a message, whose answer comes back when it is.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use synod_cluster::MonotonicClock;
use synod_cluster::remote::BearerToken;
use synod_core::objects::{
    self, EntryAnswer, EntryError, EntryName, EntryOperation, EntryRequest, ObjectConfig, ObjectCoordinator,
    ObjectCounters, ObjectEvent, ObjectMessage, ObjectOutcome, ObjectProgress, Space,
};
use synod_core::slots::{BootstrapState, ClusterId, SlotEpoch, SlotEvent, SlotId, slot_of};
use synod_core::{MemberId, NodeId, TimerInstant};
use synod_wire::objects as wire;
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};

use super::body::PartError;
use super::codec::{self, Heard};
use super::content::PartRef;
use super::disk::{Disk, DiskError};
use super::links::Links;
use super::request;
use crate::lock;
use crate::registry::RegistryHandle;

/// What a plane is started with.
pub(crate) struct PlaneParts {
    pub(crate) own: MemberId,
    pub(crate) bootstrap: Arc<BootstrapState>,
    pub(crate) registry: RegistryHandle,
    pub(crate) disks: Vec<Disk>,
    pub(crate) clock: MonotonicClock,
    pub(crate) config: ObjectConfig,
    pub(crate) token: BearerToken,
}

/// The object plane of a node.
pub(crate) struct Plane {
    own: NodeId,
    cluster: ClusterId,
    bootstrap: Arc<BootstrapState>,
    registry: RegistryHandle,
    disks: Vec<Disk>,
    clock: MonotonicClock,
    machine: Mutex<ObjectCoordinator>,
    links: Links,
    /// Who waits for an answer of the own machine.
    waiting: Mutex<HashMap<u64, Waiter>>,
    /// Who waits for a reply of another node.
    asked: Mutex<HashMap<u64, (NodeId, oneshot::Sender<wire::Reply>)>>,
    ids: AtomicU64,
    wake_at: Mutex<Option<TimerInstant>>,
    wake: Notify,
    events: broadcast::Sender<ObjectEvent>,
    fresh: broadcast::Sender<EntryName>,
    suspects: mpsc::Sender<(SlotId, PartRef)>,
    lost: watch::Sender<Option<String>>,
}

/// Parts that cannot be read here, with their slots.
pub(crate) type Suspects = mpsc::Receiver<(SlotId, PartRef)>;
type Waiter = Box<dyn FnOnce(Result<EntryAnswer, EntryError>) + Send>;

impl Plane {
    /// Starts the plane of a node. Parts that turn out to be missing or damaged come out of the receiver.
    ///
    /// # Errors
    /// An address cannot be used.
    pub(crate) fn start(parts: PlaneParts) -> Result<(Arc<Self>, Suspects), PlaneStartError> {
        let PlaneParts { own, bootstrap, registry, disks, clock, config, token } = parts;
        let cluster = bootstrap.cluster_id();
        let mut ways = Vec::new();
        for node in bootstrap.nodes.iter().filter(|node| node.node != own.node) {
            ways.push((node.node.clone(), node.peer().map_err(|error| PlaneStartError(error.to_string()))?));
        }
        let unlearned = bootstrap
            .slots()
            .filter(|slot| bootstrap.replicas(*slot).any(|node| *node == own.node))
            .filter(|slot| !disk_for(&disks, *slot).fence(*slot).is_learned)
            .collect();
        let (machine, first) =
            ObjectCoordinator::new(own.node.clone(), Arc::clone(&bootstrap), config, unlearned, clock.now());
        let (suspects, suspected) = mpsc::channel(SUSPECTS_MAX);
        let mut failed = None;
        let plane = Arc::new_cyclic(|weak: &Weak<Self>| {
            let to = weak.clone();
            let broken: Arc<dyn Fn(&NodeId) + Send + Sync> = Arc::new(move |node| {
                if let Some(plane) = to.upgrade() {
                    plane.forget_asked(node);
                }
            });
            let links = Links::start(cluster, &own, ways, &broken, token).unwrap_or_else(|error| {
                failed = Some(PlaneStartError(error.to_string()));
                Links::default()
            });
            Self {
                own: own.node,
                cluster,
                bootstrap,
                registry,
                disks,
                clock,
                machine: Mutex::new(machine),
                links,
                waiting: Mutex::default(),
                asked: Mutex::default(),
                // Replies to an earlier life must not be taken for ours.
                ids: AtomicU64::new(own.incarnation.get() << 32),
                wake_at: Mutex::default(),
                wake: Notify::new(),
                events: broadcast::channel(EVENTS_MAX).0,
                fresh: broadcast::channel(FRESH_MAX).0,
                suspects,
                lost: watch::channel(None).0,
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        plane.carry_out(first);
        Ok((plane, suspected))
    }

    /// Something that a peer said.
    pub(crate) fn hear(self: &Arc<Self>, from: &NodeId, heard: Heard) {
        match heard {
            Heard::Message(message) if is_for_replica(&message) => self.serve(from, message),
            Heard::Message(message) => self.handle(|machine, now| machine.handle_message(now, from, message)),
            Heard::Request(request) => request::serve(self, from, request),
            Heard::Reply(reply) => {
                let asked = lock(&self.asked).remove(&reply.id);
                if let Some((_, waiter)) = asked {
                    // Whoever asked may have given up.
                    waiter.send(reply).ok();
                }
            }
        }
    }

    /// Asks the own machine.
    pub(crate) fn request(
        self: &Arc<Self>,
        name: EntryName,
        operation: EntryOperation,
        patience: Duration,
        waiter: impl FnOnce(Result<EntryAnswer, EntryError>) + Send + 'static,
    ) {
        let is_watched = self.fresh.receiver_count() > 0
            && name.space() == Space::Object
            && !matches!(operation, EntryOperation::Read);
        let id = if is_watched {
            let (fresh, name) = (self.fresh.clone(), name.clone());
            self.wait(move |answer| {
                if matches!(answer, Ok(EntryAnswer::Written(_)) | Err(EntryError::Indeterminate)) {
                    // Whoever listened may be gone.
                    fresh.send(name).ok();
                }
                waiter(answer);
            })
        } else {
            self.wait(waiter)
        };
        let expires_at = self.clock.now() + patience;
        self.handle(|machine, now| {
            machine.handle_request(now, EntryRequest { id, name, operation, expires_at })
        });
    }

    /// Makes sure that a page of entries may be shown.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        entries: Vec<(EntryName, synod_core::slots::HeadRank)>,
        slots: Vec<(SlotId, SlotEpoch)>,
        patience: Duration,
    ) -> Result<EntryAnswer, EntryError> {
        let (reply, answer) = oneshot::channel();
        let id = self.wait(move |answered| drop(reply.send(answered)));
        let expires_at = self.clock.now() + patience;
        self.handle(|machine, now| machine.handle_settle(now, id, entries, slots, expires_at));
        answer.await.unwrap_or(Err(EntryError::Expired))
    }

    /// Sends a request to another node. The receiver fails when the way to it breaks.
    pub(crate) fn ask(
        &self,
        node: &NodeId,
        operation: wire::request::Operation,
        patience: Duration,
    ) -> Option<(u64, oneshot::Receiver<wire::Reply>)> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        lock(&self.asked).insert(id, (node.clone(), reply));
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let request = wire::Request { id, patience_ms, operation: Some(operation) };
        let frame = wire::ObjectFrame { body: Some(wire::object_frame::Body::Request(request)) };
        if self.links.send(node, frame) {
            return Some((id, answer));
        }
        lock(&self.asked).remove(&id);
        None
    }

    /// Nobody waits for this reply any more.
    pub(crate) fn give_up(&self, id: u64) {
        lock(&self.asked).remove(&id);
    }

    /// Answers a request of another node.
    pub(crate) fn reply(&self, to: &NodeId, id: u64, outcome: wire::reply::Outcome) {
        let reply = wire::Reply { id, outcome: Some(outcome) };
        self.links.send(to, wire::ObjectFrame { body: Some(wire::object_frame::Body::Reply(reply)) });
    }

    /// A part of this node is missing or damaged: it is fetched again.
    pub(crate) fn suspect_part(&self, slot: SlotId, part: PartRef, error: &PartError) {
        tracing::warn!(%slot, part = %part.id, %error, "a part cannot be read here; it is fetched from another replica");
        // When too many wait, the next reader or the next scrub finds it again.
        self.suspects.try_send((slot, part)).ok();
    }

    /// Runs the timer of the machine, for ever.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        loop {
            let wake_at = *lock(&self.wake_at);
            let now = self.clock.now();
            match wake_at {
                Some(at) if at <= now => {
                    *lock(&self.wake_at) = None;
                    self.handle(ObjectCoordinator::handle_timeout);
                }
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep(at.saturating_since(now)) => {}
                        () = self.wake.notified() => {}
                    }
                }
                None => self.wake.notified().await,
            }
        }
    }

    /// Follows the elections of the registry, for ever.
    pub(crate) async fn follow_elections(self: Arc<Self>) {
        let mut events = self.registry.events();
        self.catch_up();
        loop {
            match events.recv().await {
                Ok(SlotEvent::Elected { slot, epoch, .. }) => {
                    self.handle(|machine, now| machine.handle_elected(now, slot, epoch));
                }
                Ok(SlotEvent::SteppedDown { slot, by, .. }) => {
                    self.handle(|machine, now| machine.handle_deposed(now, slot, by));
                }
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(_)) => self.catch_up(),
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    /// Tells the machine everything that the registry knows now.
    fn catch_up(self: &Arc<Self>) {
        for record in self.registry.slots() {
            let slot = record.slot;
            // Not whether the record names this node: it may be that of an earlier life, whose tags are used. Who began again in
            // its epoch would have writes stored and confirmed that count less than what is there.
            let reign = self.registry.slot(slot).and_then(|view| view.local?.reign);
            match reign {
                Some((epoch, _)) => self.handle(|machine, now| machine.handle_elected(now, slot, epoch)),
                None => self.handle(|machine, now| machine.handle_deposed(now, slot, record.epoch)),
            }
        }
    }

    /// Gives something to the machine, and does what it says.
    pub(crate) fn handle(
        self: &Arc<Self>,
        input: impl FnOnce(&mut ObjectCoordinator, TimerInstant) -> ObjectOutcome,
    ) {
        let now = self.clock.now();
        let outcome = input(&mut lock(&self.machine), now);
        self.carry_out(outcome);
    }

    fn carry_out(self: &Arc<Self>, outcome: ObjectOutcome) {
        let mut outcomes = VecDeque::from([outcome]);
        while let Some(outcome) = outcomes.pop_front() {
            let ObjectOutcome { load, load_ranks, send, answers, events, next_timeout } = outcome;
            for (to, message) in send {
                if to != self.own {
                    if let Some(frame) = codec::write_message(message) {
                        self.links.send(&to, frame);
                    }
                } else if let Some(answer) = self.answer_at_once(&message) {
                    let now = self.clock.now();
                    outcomes.push_back(lock(&self.machine).handle_message(now, &self.own, answer));
                } else {
                    self.submit(&to, message);
                }
            }
            for name in load {
                match self.disk(self.slot_of(&name)).head(self.slot_of(&name), &name) {
                    Ok(head) => {
                        let now = self.clock.now();
                        outcomes.push_back(lock(&self.machine).handle_loaded(now, &name, head));
                    }
                    Err(error) => self.lose(&error),
                }
            }
            for query in load_ranks {
                let disk = self.disk(query.slot);
                match disk.ranks(query.slot, query.after.as_ref(), None, query.limit) {
                    Ok(ranks) => {
                        let now = self.clock.now();
                        let outcome = lock(&self.machine).handle_ranks(now, query.slot, query.round, ranks);
                        outcomes.push_back(outcome);
                    }
                    Err(error) => self.lose(&error),
                }
            }
            for (id, answer) in answers {
                let waiter = lock(&self.waiting).remove(&id);
                if let Some(waiter) = waiter {
                    waiter(answer);
                }
            }
            for event in events {
                // Nobody may listen.
                self.events.send(event).ok();
            }
            self.wake_by(next_timeout);
        }
    }

    /// An entry is damaged, or the disk is. Nothing goes on as if it were not: the node ends, and learns anew from the
    /// others when it is started again.
    fn lose(&self, error: &DiskError) {
        let mut reason = error.to_string();
        if let DiskError::DamagedEntry { slot, name } = error {
            let disk = self.disk(*slot).clone();
            let (slot, name) = (*slot, name.clone());
            reason += "; the slot is learned anew from the other replicas when the node is started again";
            // The thread of the disk may be the one that is here, and cannot wait for itself.
            std::thread::spawn(move || {
                if let Err(error) = disk.forget_damaged(slot, &name) {
                    tracing::error!(%error, "a damaged entry cannot be removed");
                }
            });
        }
        self.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            if is_first {
                *lost = Some(reason);
            }
            is_first
        });
    }

    /// Waits until the node can keep its objects no longer, and says why.
    pub(crate) async fn failed(&self) -> String {
        let mut lost = self.lost.subscribe();
        let own = async { lost.wait_for(Option::is_some).await.ok().and_then(|lost| lost.clone()) };
        let mut disks = tokio::task::JoinSet::new();
        for disk in &self.disks {
            let mut failures = disk.failures();
            disks.spawn(async move {
                let failed = failures.wait_for(Option::is_some).await.ok().and_then(|failed| failed.clone());
                failed.map(|error| error.to_string())
            });
        }
        let reason = tokio::select! {
            reason = own => reason,
            Some(reason) = disks.join_next() => reason.ok().flatten(),
        };
        match reason {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    fn wake_by(&self, at: Option<TimerInstant>) {
        let Some(at) = at else { return };
        let mut wake_at = lock(&self.wake_at);
        if wake_at.is_none_or(|known| at < known) {
            *wake_at = Some(at);
            drop(wake_at);
            self.wake.notify_one();
        }
    }

    /// Does what a peer, or the own machine, asks of the own replica.
    fn serve(self: &Arc<Self>, from: &NodeId, message: ObjectMessage) {
        match self.answer_at_once(&message) {
            Some(answer) => self.answer(from, answer),
            None => self.submit(from, message),
        }
    }

    fn submit(self: &Arc<Self>, from: &NodeId, message: ObjectMessage) {
        // A fence is for many slots; each disk has its own.
        for (disk, message) in self.by_disk(message) {
            let (plane, from) = (Arc::downgrade(self), from.clone());
            disk.submit(
                message,
                Box::new(move |done| {
                    let Some(plane) = plane.upgrade() else { return };
                    match done {
                        Ok(Some(answer)) => plane.answer(&from, answer),
                        Ok(None) => {}
                        // Whoever asked asks again.
                        Err(DiskError::Busy) => {}
                        Err(error @ DiskError::Refused { .. }) => {
                            tracing::warn!(%from, %error, "a message asks for what no disk keeps");
                        }
                        Err(error) => plane.lose(&error),
                    }
                }),
            );
        }
    }

    fn answer(self: &Arc<Self>, to: &NodeId, answer: ObjectMessage) {
        if *to == self.own {
            self.handle(|machine, now| machine.handle_message(now, to, answer));
        } else if let Some(frame) = codec::write_message(answer) {
            self.links.send(to, frame);
        }
    }

    /// Questions that need no disk: fences and summaries are in memory.
    fn answer_at_once(&self, message: &ObjectMessage) -> Option<ObjectMessage> {
        let fence = |slot| self.own_disk(slot).map(|disk| disk.fence(slot)).unwrap_or_default();
        let summary = |slot| self.own_disk(slot).map(|disk| disk.summary(slot)).unwrap_or_default();
        let Ok(answer) = match message {
            ObjectMessage::Confirm { round, slots } => {
                objects::confirm(*round, slots, |slot| Ok::<_, Infallible>(fence(slot)))
            }
            ObjectMessage::Summarize { round, slots } => {
                objects::summarize(*round, slots, |slot| Ok((fence(slot), summary(slot))))
            }
            _ => return None,
        };
        Some(answer)
    }

    fn by_disk(&self, message: ObjectMessage) -> Vec<(&Disk, ObjectMessage)> {
        match message {
            ObjectMessage::Fence { slots } => {
                let mut parted = vec![Vec::new(); self.disks.len()];
                for (slot, epoch) in slots.into_iter().filter(|(slot, _)| self.is_stored(*slot)) {
                    parted[disk_index(self.disks.len(), slot)].push((slot, epoch));
                }
                let parted = self.disks.iter().zip(parted).filter(|(_, slots)| !slots.is_empty());
                parted.map(|(disk, slots)| (disk, ObjectMessage::Fence { slots })).collect()
            }
            ObjectMessage::Store { slot, .. }
            | ObjectMessage::Compare { slot, .. }
            | ObjectMessage::Adopt { slot, .. }
            | ObjectMessage::Forget { slot, .. } => {
                self.own_disk(slot).map(|disk| (disk, message)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn wait(&self, waiter: impl FnOnce(Result<EntryAnswer, EntryError>) + Send + 'static) -> u64 {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        lock(&self.waiting).insert(id, Box::new(waiter));
        id
    }

    /// The way to a node is broken: what it was asked may never be answered.
    fn forget_asked(&self, node: &NodeId) {
        lock(&self.asked).retain(|_, (asked, _)| asked != node);
    }

    /// The slots that this node serves right now, with their epochs.
    pub(crate) fn serving(&self) -> Vec<(SlotId, SlotEpoch)> {
        lock(&self.machine).serving().collect()
    }

    /// How far fencing, learning and healing are.
    pub(crate) fn progress(&self) -> ObjectProgress {
        lock(&self.machine).progress()
    }

    /// What happened so far.
    pub(crate) fn counters(&self) -> ObjectCounters {
        lock(&self.machine).counters()
    }

    /// What happens from now on. Whoever is too slow misses the oldest.
    pub(crate) fn events(&self) -> broadcast::Receiver<ObjectEvent> {
        self.events.subscribe()
    }

    /// Objects that were written or deleted by the primary on this node, or may have been, from now on.
    pub(crate) fn fresh(&self) -> broadcast::Receiver<EntryName> {
        self.fresh.subscribe()
    }

    pub(crate) fn own(&self) -> &NodeId {
        &self.own
    }

    pub(crate) const fn cluster(&self) -> ClusterId {
        self.cluster
    }

    pub(crate) const fn registry(&self) -> &RegistryHandle {
        &self.registry
    }

    pub(crate) const fn bootstrap(&self) -> &Arc<BootstrapState> {
        &self.bootstrap
    }

    pub(crate) const fn links(&self) -> &Links {
        &self.links
    }

    pub(crate) fn disks(&self) -> &[Disk] {
        &self.disks
    }

    pub(crate) fn slot_of(&self, name: &EntryName) -> SlotId {
        name.slot(self.bootstrap.replication.total_slots)
    }

    pub(crate) fn write_quorum(&self) -> usize {
        self.bootstrap.write_quorum()
    }

    /// Who stores a slot.
    pub(crate) fn replicas(&self, slot: SlotId) -> Vec<NodeId> {
        self.bootstrap.replicas(slot).cloned().collect()
    }

    /// Whether a node is part of the cluster.
    pub(crate) fn knows(&self, node: &NodeId) -> bool {
        self.bootstrap.node(node).is_some()
    }

    /// Whether this node stores a slot.
    pub(crate) fn is_stored(&self, slot: SlotId) -> bool {
        slot.get() < self.bootstrap.replication.total_slots
            && self.bootstrap.replicas(slot).any(|node| *node == self.own)
    }

    /// The disk for a slot, if this node stores it.
    pub(crate) fn own_disk(&self, slot: SlotId) -> Option<&Disk> {
        self.is_stored(slot).then(|| self.disk(slot))
    }

    /// The disk for a slot.
    pub(crate) fn disk(&self, slot: SlotId) -> &Disk {
        disk_for(&self.disks, slot)
    }
}

fn is_for_replica(message: &ObjectMessage) -> bool {
    matches!(
        message,
        ObjectMessage::Fence { .. }
            | ObjectMessage::Store { .. }
            | ObjectMessage::Confirm { .. }
            | ObjectMessage::Summarize { .. }
            | ObjectMessage::Compare { .. }
            | ObjectMessage::Forget { .. }
    )
}

fn disk_for(disks: &[Disk], slot: SlotId) -> &Disk {
    &disks[disk_index(disks.len(), slot)]
}

/// Which of so many disks of a node keeps a slot. Part of the format of a node; it never changes.
fn disk_index(disks: usize, slot: SlotId) -> usize {
    // A checked bootstrap state has few disks, and at least one.
    let disks = u16::try_from(disks).unwrap_or(u16::MAX).max(1);
    slot_of(&slot.get().to_be_bytes(), disks).index()
}

/// The plane could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the object plane cannot be started: {0}")]
pub struct PlaneStartError(pub(crate) String);

const SUSPECTS_MAX: usize = 1024;
const EVENTS_MAX: usize = 4096;
const FRESH_MAX: usize = 4096;
