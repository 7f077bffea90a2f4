//! The primary's side of all slots of one node: it fences, takes over, then serves, and it teaches a disk that has forgotten.
//!
//! A driver says what the registry decided ([`handle_elected`](ObjectCoordinator::handle_elected),
//! [`handle_deposed`](ObjectCoordinator::handle_deposed)), brings requests and the answers of replicas, those of its own disk
//! included, and calls [`handle_timeout`](ObjectCoordinator::handle_timeout) when the last outcome said so. Time is monotonic.
//! Each call returns an [`ObjectOutcome`], to be carried out in the order of its fields.
//!
//! ```text
//!   elected ──► fencing ──majority──► recovering ──nothing lacks──► serving ──a later fence──► lost
//!                                     compare, adopt                │
//!                                     (reign, comparing)            ├─ requests: one write at a time per key
//!                                                                   ├─ confirm:  does the epoch last? for all readers at once
//!                                                                   └─ healing:  do all replicas have the same?
//! ```
//!
//! **What may be shown.** A head is *settled* when it cannot vanish any more: a majority has stored it as accepted in this
//! epoch, or the slot is *clean*, which means that every replica had the same entries after it had fenced this epoch. Anything
//! else on the own disk may be on a minority only: it is stored again, *renewed*, before anybody sees it or a condition is
//! compared with it. A write whose request ran out of time leaves a mark on its key, up to its rank, until something of that
//! rank or above is settled; until the own disk has it nothing else is done with that key. A read is answered with what the own disk had after the read came, and when a majority has said,
//! to a question that was asked after the read came, that it has fenced nothing later.

mod comparing;
mod config;
mod confirm;
mod healing;
mod learning;
mod outcome;
mod reign;
mod requests;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::head::EntryHead;
use super::message::ObjectMessage;
use super::name::EntryName;
use crate::deadline::DeadlineQueue;
use crate::id::NodeId;
use crate::slots::{BootstrapState, HeadRank, SlotEpoch, SlotId, Tag};
use crate::time::TimerInstant;
use comparing::Comparison;
pub use config::{ObjectConfig, ObjectConfigError};
use confirm::Confirms;
use healing::Healing;
use learning::Learning;
pub use outcome::{
    EntryAnswer, EntryError, EntryOperation, EntryRequest, ObjectCounters, ObjectEvent, ObjectOutcome,
    ObjectProgress, RanksQuery,
};
use reign::{Epochs, Phase, Reign};
use requests::Open;

/// The object machine of one node.
#[derive(Debug)]
pub struct ObjectCoordinator {
    own: NodeId,
    bootstrap: Arc<BootstrapState>,
    config: ObjectConfig,
    reigns: BTreeMap<SlotId, Reign>,
    epochs: BTreeMap<SlotId, Epochs>,
    requests: BTreeMap<u64, Open>,
    /// Heads that the own disk was asked for, and whether to ask once more: the question was that of a reign that is over.
    loads: BTreeMap<EntryName, bool>,
    /// How many keys of all reigns are marked as unsettled.
    unsettled_count: usize,
    confirms: Confirms,
    /// Comparisons with other replicas by the number of the question.
    comparisons: BTreeMap<u64, Comparison>,
    comparisons_waiting: VecDeque<Comparison>,
    learning: BTreeMap<SlotId, Learning>,
    learning_total: usize,
    healing: Healing,
    alarms: DeadlineQueue<Alarm>,
    next_round: u64,
    counters: ObjectCounters,
}

/// What waits for its time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    Request(u64),
    Fence(SlotId),
    Store(EntryName),
    Confirm,
    Compare(u64),
    Learn(SlotId),
    Heal(SlotId),
    Check,
    Repair(EntryName),
}

/// An outcome in the making.
#[derive(Default)]
struct Out {
    outcome: ObjectOutcome,
    /// Fences of many slots in one message.
    fences: BTreeMap<NodeId, Vec<(SlotId, SlotEpoch)>>,
}

impl ObjectCoordinator {
    /// The machine of `own`. `unlearned` are the slots of which its disk has no memory.
    ///
    /// # Panics
    /// When `own` is not part of the cluster, or a setting is out of range.
    #[must_use]
    pub fn new(
        own: NodeId,
        bootstrap: Arc<BootstrapState>,
        config: ObjectConfig,
        unlearned: BTreeSet<SlotId>,
        now: TimerInstant,
    ) -> (Self, ObjectOutcome) {
        assert!(bootstrap.node(&own).is_some(), "{own} is not part of its cluster");
        assert_eq!(config.validate(), Ok(()), "sound settings");
        // Half of the numbers are room enough, whatever the first one is.
        let first = (config.instance & (u64::MAX >> 1)) + 1;
        let mut machine = Self {
            own,
            bootstrap,
            reigns: BTreeMap::new(),
            epochs: BTreeMap::new(),
            requests: BTreeMap::new(),
            loads: BTreeMap::new(),
            unsettled_count: 0,
            confirms: Confirms::new(first),
            comparisons: BTreeMap::new(),
            comparisons_waiting: VecDeque::new(),
            learning: BTreeMap::new(),
            learning_total: 0,
            healing: Healing::default(),
            alarms: DeadlineQueue::new(),
            next_round: first,
            counters: ObjectCounters::default(),
            config,
        };
        let mut out = Out::default();
        machine.begin_learning(unlearned, now, &mut out);
        let outcome = machine.finish(now, out);
        (machine, outcome)
    }

    /// The registry says that this node is the primary of `slot` in `epoch`. An epoch that is over, or that this node had
    /// already, changes nothing.
    pub fn handle_elected(&mut self, now: TimerInstant, slot: SlotId, epoch: SlotEpoch) -> ObjectOutcome {
        let mut out = Out::default();
        self.take_elected(slot, epoch, now, &mut out);
        self.finish(now, out)
    }

    /// The registry knows of a later epoch of `slot`.
    pub fn handle_deposed(&mut self, now: TimerInstant, slot: SlotId, epoch: SlotEpoch) -> ObjectOutcome {
        let mut out = Out::default();
        self.step_down(slot, epoch, &mut out);
        self.finish(now, out)
    }

    /// Somebody wants something to be done with an entry. The answer comes in this or in a later outcome, before
    /// [`handle_timeout`](Self::handle_timeout) returns after its time is over.
    ///
    /// # Panics
    /// When another request in flight has the same id.
    pub fn handle_request(&mut self, now: TimerInstant, request: EntryRequest) -> ObjectOutcome {
        let mut out = Out::default();
        self.take_request(request, now, &mut out);
        self.finish(now, out)
    }

    /// A page of a listing was read from the own disk: is all of it settled, and does this node still serve `slots` in these
    /// epochs? `entries` is everything in the stretch that the page is about, tombstones included: what is not listed because
    /// it is deleted is shown as much as what is.
    ///
    /// # Panics
    /// When another request in flight has the same id.
    pub fn handle_settle(
        &mut self,
        now: TimerInstant,
        id: u64,
        entries: Vec<(EntryName, HeadRank)>,
        slots: Vec<(SlotId, SlotEpoch)>,
        expires_at: TimerInstant,
    ) -> ObjectOutcome {
        let mut out = Out::default();
        self.take_settle(id, entries, slots, expires_at, now, &mut out);
        self.finish(now, out)
    }

    /// What the own disk has of an entry, to one question in [`ObjectOutcome::load`].
    pub fn handle_loaded(
        &mut self,
        now: TimerInstant,
        name: &EntryName,
        head: Option<EntryHead>,
    ) -> ObjectOutcome {
        let mut out = Out::default();
        self.take_loaded(name, head, now, &mut out);
        self.finish(now, out)
    }

    /// What the own disk has of a stretch of names, to one question in [`ObjectOutcome::load_ranks`].
    pub fn handle_ranks(
        &mut self,
        now: TimerInstant,
        slot: SlotId,
        round: u64,
        ranks: Vec<(EntryName, HeadRank)>,
    ) -> ObjectOutcome {
        let mut out = Out::default();
        self.take_ranks(slot, round, ranks, now, &mut out);
        self.finish(now, out)
    }

    /// What a replica answered, the one on the own disk included. What is not an answer, or not of a replica of the slot that
    /// it is about, changes nothing.
    pub fn handle_message(
        &mut self,
        now: TimerInstant,
        from: &NodeId,
        message: ObjectMessage,
    ) -> ObjectOutcome {
        let mut out = Out::default();
        match message {
            ObjectMessage::Fenced { fenced, refused } => {
                self.take_fenced(from, &fenced, &refused, now, &mut out);
            }
            ObjectMessage::Stored { slot, epoch, name, rank, is_complete } => {
                self.take_stored(from, slot, epoch, &name, rank, is_complete, now, &mut out);
            }
            ObjectMessage::Stale { slot, epoch, fence } => {
                let is_ours = self.reigns.get(&slot).is_some_and(|reign| reign.epoch == epoch);
                if is_ours && fence > epoch && self.is_replica(slot, from) {
                    self.counters.stale += 1;
                    self.step_down(slot, fence, &mut out);
                }
            }
            ObjectMessage::Confirmed { round, stale } => self.take_confirmed(from, round, &stale, &mut out),
            ObjectMessage::Summaries { round, slots } => self.take_summaries(from, round, &slots),
            ObjectMessage::Compared { slot, round, fence, is_learned, newer, behind, covered } => {
                let answer = comparing::Answer { fence, is_learned, newer, behind, covered };
                self.take_compared(from, slot, round, answer, now, &mut out);
            }
            ObjectMessage::Adopted { slot, round } if *from == self.own => {
                self.take_adopted(slot, round, now, &mut out);
            }
            _ => {}
        }
        self.finish(now, out)
    }

    /// Runs everything that is due.
    pub fn handle_timeout(&mut self, now: TimerInstant) -> ObjectOutcome {
        let mut out = Out::default();
        while let Some(alarm) = self.alarms.pop_due(now) {
            match alarm {
                Alarm::Request(id) => self.expire(id, now, &mut out),
                Alarm::Fence(slot) => self.fence_again(slot, now, &mut out),
                Alarm::Store(name) => self.store_again(&name, now, &mut out),
                Alarm::Confirm => self.confirm_again(),
                Alarm::Compare(round) => self.compare_again(round, now, &mut out),
                Alarm::Learn(slot) => self.learn_again(slot, now, &mut out),
                Alarm::Heal(slot) => self.heal_soon(slot),
                Alarm::Check => self.check_again(now, &mut out),
                Alarm::Repair(name) => self.repair_again(&name, now, &mut out),
            }
        }
        self.finish(now, out)
    }

    /// An operator wants replicas to be compared now: those of some slots, or of all that this node serves.
    pub fn handle_heal(&mut self, now: TimerInstant, slots: Option<Vec<SlotId>>) -> ObjectOutcome {
        let slots = slots.unwrap_or_else(|| self.reigns.keys().copied().collect());
        for slot in slots {
            self.heal_soon(slot);
        }
        self.finish(now, Out::default())
    }

    /// Tombstones of a slot that are to be forgotten. They are so old that no message is under way any more that was sent
    /// before them.
    pub fn handle_old_tombstones(
        &mut self,
        now: TimerInstant,
        slot: SlotId,
        entries: Vec<(EntryName, Tag)>,
    ) -> ObjectOutcome {
        self.take_old_tombstones(slot, entries);
        self.finish(now, Out::default())
    }

    /// The slots that are served, with their epochs.
    pub fn serving(&self) -> impl Iterator<Item = (SlotId, SlotEpoch)> {
        let serving = self.reigns.iter().filter(|(_, reign)| reign.phase == Phase::Serving);
        serving.map(|(slot, reign)| (*slot, reign.epoch))
    }

    /// The epoch in which `slot` is served, if it is.
    #[must_use]
    pub fn serves(&self, slot: SlotId) -> Option<SlotEpoch> {
        self.reigns.get(&slot).filter(|reign| reign.phase == Phase::Serving).map(|reign| reign.epoch)
    }

    /// How far things are.
    #[must_use]
    pub fn progress(&self) -> ObjectProgress {
        let in_phase = |phase| self.reigns.values().filter(|reign| reign.phase == phase).count();
        ObjectProgress {
            fencing: in_phase(Phase::Fencing),
            recovering: in_phase(Phase::Recovering),
            serving: in_phase(Phase::Serving),
            clean: self.reigns.values().filter(|reign| reign.is_clean).count(),
            learning_total: self.learning_total,
            learning_left: self.learning.len(),
            ..self.healing.progress()
        }
    }

    /// How often things happened.
    #[must_use]
    pub const fn counters(&self) -> ObjectCounters {
        self.counters
    }

    /// Begins what has become possible, and puts everything in order.
    fn finish(&mut self, now: TimerInstant, mut out: Out) -> ObjectOutcome {
        self.heal_on(now, &mut out);
        self.begin_comparisons(now, &mut out);
        self.begin_confirming(now, &mut out);
        let Out { mut outcome, fences } = out;
        for (node, slots) in fences {
            outcome.send.push((node, ObjectMessage::Fence { slots }));
        }
        // Stable: the own disk comes first, and nothing else changes its place.
        outcome.send.sort_by_key(|(to, _)| *to != self.own);
        outcome.next_timeout = self.alarms.next();
        outcome
    }

    fn is_replica(&self, slot: SlotId, node: &NodeId) -> bool {
        slot.get() < self.bootstrap.replication.total_slots
            && self.bootstrap.replicas(slot).any(|replica| replica == node)
    }

    fn slot_of(&self, name: &EntryName) -> SlotId {
        name.slot(self.bootstrap.replication.total_slots)
    }

    /// A number for a question that was never asked before.
    const fn new_round(&mut self) -> u64 {
        self.next_round += 1;
        self.next_round
    }
}

#[cfg(test)]
mod tests;
