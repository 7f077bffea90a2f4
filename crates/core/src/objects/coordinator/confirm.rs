//! Does the epoch last? One question for all slots and all readers who came before it was asked.
//!
//! A question is under way, and readers come: they wait for the next one, which is asked when this one is answered, or when
//! it was not for a while. Late answers to earlier questions still count for those who came before them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::super::message::ObjectMessage;
use super::requests::Open;
use super::{Alarm, EntryAnswer, ObjectCoordinator, Out};
use crate::id::NodeId;
use crate::slots::{SlotEpoch, SlotId};
use crate::time::TimerInstant;

/// Questions that are under way, and slots that want the next one.
#[derive(Debug)]
pub(super) struct Confirms {
    /// The number of the next question.
    pub(super) next: u64,
    wanted: BTreeSet<SlotId>,
    rounds: BTreeMap<u64, Round>,
    /// Until then the last question is given time.
    patient_until: TimerInstant,
}

/// One question: of each slot that is not confirmed yet, its epoch and who affirmed it.
#[derive(Debug)]
struct Round {
    slots: BTreeMap<SlotId, (SlotEpoch, BTreeSet<NodeId>)>,
}

/// Something that waits until a question is affirmed.
#[derive(Debug)]
pub(super) struct Awaiting {
    pub(super) round: u64,
    pub(super) id: u64,
    /// `None` for a listing, which waits for more.
    pub(super) answer: Option<EntryAnswer>,
}

impl Confirms {
    pub(super) const fn new(first: u64) -> Self {
        Self {
            next: first,
            wanted: BTreeSet::new(),
            rounds: BTreeMap::new(),
            patient_until: TimerInstant::ZERO,
        }
    }

    /// The number of a question that is asked from now on.
    pub(super) fn want(&mut self, slot: SlotId) -> u64 {
        self.wanted.insert(slot);
        self.next
    }
}

impl ObjectCoordinator {
    /// Answers when the question `round`, or a later one, is affirmed.
    pub(super) fn await_confirmed(&mut self, slot: SlotId, awaiting: Awaiting, out: &mut Out) {
        let Some(reign) = self.reigns.get_mut(&slot) else { return };
        if reign.confirmed >= awaiting.round {
            self.release(awaiting, out);
        } else {
            reign.awaiting.push(awaiting);
        }
    }

    /// Asks the next question, if somebody wants it and the last one is answered.
    pub(super) fn begin_confirming(&mut self, now: TimerInstant, out: &mut Out) {
        let last = self.confirms.next - 1;
        let is_busy = self.confirms.rounds.contains_key(&last) && now < self.confirms.patient_until;
        if self.confirms.wanted.is_empty() || is_busy {
            return;
        }
        let mut slots = BTreeMap::new();
        let mut asked: BTreeMap<NodeId, Vec<(SlotId, SlotEpoch)>> = BTreeMap::new();
        for slot in core::mem::take(&mut self.confirms.wanted) {
            let Some(epoch) = self.serves(slot) else { continue };
            slots.insert(slot, (epoch, BTreeSet::new()));
            for replica in self.bootstrap.replicas(slot) {
                asked.entry(replica.clone()).or_default().push((slot, epoch));
            }
        }
        if slots.is_empty() {
            return;
        }
        let round = self.confirms.next;
        self.confirms.next += 1;
        self.counters.confirm_rounds += 1;
        self.confirms.rounds.insert(round, Round { slots });
        if self.confirms.rounds.len() > ROUNDS_MAX {
            self.confirms.rounds.pop_first();
        }
        for (node, slots) in asked {
            out.outcome.send.push((node, ObjectMessage::Confirm { round, slots }));
        }
        self.confirms.patient_until = now + self.config.resend_interval;
        self.alarms.set(&Alarm::Confirm, self.confirms.patient_until);
    }

    /// The last question was not answered in time: whoever still waits wants another one.
    pub(super) fn confirm_again(&mut self) {
        let Some((_, round)) = self.confirms.rounds.last_key_value() else { return };
        for (slot, (epoch, _)) in &round.slots {
            let waits = |reign: &&super::Reign| {
                reign.epoch == *epoch && !(reign.awaiting.is_empty() && reign.keys.is_empty())
            };
            if self.reigns.get(slot).filter(waits).is_some() {
                self.counters.resends += 1;
                self.confirms.wanted.insert(*slot);
            }
        }
    }

    pub(super) fn take_confirmed(
        &mut self,
        from: &NodeId,
        number: u64,
        stale: &[(SlotId, SlotEpoch)],
        out: &mut Out,
    ) {
        let majority = self.bootstrap.majority();
        let Some(round) = self.confirms.rounds.get_mut(&number) else { return };
        let stale: BTreeMap<SlotId, SlotEpoch> = stale.iter().copied().collect();
        let mut confirmed = Vec::new();
        let mut lost = Vec::new();
        for (slot, (epoch, by)) in &mut round.slots {
            if !self.bootstrap.replicas(*slot).any(|replica| replica == from) {
                continue;
            }
            if let Some(fence) = stale.get(slot) {
                // Zero: it has no memory of the slot, and counts for nothing.
                if fence > epoch {
                    lost.push((*slot, *epoch, *fence));
                }
                continue;
            }
            by.insert(from.clone());
            if by.len() >= majority {
                confirmed.push((*slot, *epoch));
            }
        }
        for (slot, _) in &confirmed {
            round.slots.remove(slot);
        }
        if round.slots.is_empty() {
            self.confirms.rounds.remove(&number);
        }
        for (slot, epoch, fence) in lost {
            if self.reigns.get(&slot).is_some_and(|reign| reign.epoch == epoch) {
                self.counters.stale += 1;
                self.step_down(slot, fence, out);
            }
        }
        for (slot, epoch) in confirmed {
            let Some(reign) = self.reigns.get_mut(&slot).filter(|reign| reign.epoch == epoch) else {
                continue;
            };
            reign.confirmed = reign.confirmed.max(number);
            let confirmed = reign.confirmed;
            let (released, kept): (Vec<_>, _) =
                core::mem::take(&mut reign.awaiting).into_iter().partition(|one| one.round <= confirmed);
            reign.awaiting = kept;
            for awaiting in released {
                self.release(awaiting, out);
            }
        }
    }

    fn release(&mut self, awaiting: Awaiting, out: &mut Out) {
        match awaiting.answer {
            Some(answer) => self.answer(awaiting.id, Ok(answer), out),
            None => self.settle_one(awaiting.id, out),
        }
    }

    /// One thing less that a listing waits for.
    pub(super) fn settle_one(&mut self, id: u64, out: &mut Out) {
        if let Some(Open::Listing { left, .. }) = self.requests.get_mut(&id) {
            *left -= 1;
            if *left == 0 {
                self.answer(id, Ok(EntryAnswer::Settled), out);
            }
        }
    }
}

/// How many questions without an answer are remembered.
const ROUNDS_MAX: usize = 16;
