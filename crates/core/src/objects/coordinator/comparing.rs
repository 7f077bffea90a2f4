//! Comparing the own disk with that of another replica, stretch by stretch.
//!
//! Each stretch is read from the own disk, sent, and answered with what counts more there; that is adopted before the next
//! stretch is read. Recovery, learning and healing are the same walk with another end.

use alloc::vec::Vec;

use super::super::head::EntryHead;
use super::super::message::ObjectMessage;
use super::super::name::EntryName;
use super::super::replica::COMPARED_MAX;
use super::{Alarm, ObjectCoordinator, Out, RanksQuery};
use crate::id::NodeId;
use crate::slots::{HeadRank, SlotEpoch, SlotId};
use crate::time::TimerInstant;

/// What a comparison is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A new primary takes over what a granter has.
    Recover,
    /// A disk without a memory asks what there was.
    Learn,
    /// A primary wants to know where another replica differs.
    Heal,
}

/// A walk through the names of a slot.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) slot: SlotId,
    pub(super) peer: NodeId,
    pub(super) purpose: Purpose,
    after: Option<EntryName>,
    state: State,
    /// How often this stretch was asked for.
    attempts: u32,
}

#[derive(Debug)]
enum State {
    Waiting,
    Loading,
    Asking {
        upto: Option<EntryName>,
        ranks: Vec<(EntryName, HeadRank)>,
    },
    /// The own disk adopts what came; then the walk goes on after this name, or ends.
    Adopting {
        heads: Vec<(EntryName, EntryHead)>,
        then: Option<EntryName>,
    },
}

/// The answer of a replica.
pub(super) struct Answer {
    pub(super) fence: SlotEpoch,
    pub(super) is_learned: bool,
    pub(super) newer: Vec<(EntryName, EntryHead)>,
    pub(super) behind: Vec<EntryName>,
    pub(super) covered: Option<EntryName>,
}

impl ObjectCoordinator {
    /// Compares the slot with `peer`, unless that is being done.
    pub(super) fn compare(&mut self, slot: SlotId, peer: &NodeId, purpose: Purpose) {
        let is_same = |one: &Comparison| one.slot == slot && one.peer == *peer && one.purpose == purpose;
        if !self.comparisons.values().any(is_same) && !self.comparisons_waiting.iter().any(is_same) {
            let peer = peer.clone();
            let comparison =
                Comparison { slot, peer, purpose, after: None, state: State::Waiting, attempts: 0 };
            self.comparisons_waiting.push_back(comparison);
        }
    }

    pub(super) fn is_comparing(&self, purpose: Purpose) -> bool {
        let is_such = |one: &Comparison| one.purpose == purpose;
        self.comparisons.values().any(is_such) || self.comparisons_waiting.iter().any(is_such)
    }

    /// Whether the own disk was told to adopt something for a recovery, and has not confirmed it.
    pub(super) fn is_adopting(&self, slot: SlotId) -> bool {
        self.comparisons.values().any(|one| {
            one.slot == slot && one.purpose == Purpose::Recover && matches!(one.state, State::Adopting { .. })
        })
    }

    pub(super) fn drop_comparisons(&mut self, slot: SlotId, purpose: Purpose) {
        let is_such = |one: &Comparison| one.slot == slot && one.purpose == purpose;
        self.comparisons_waiting.retain(|one| !is_such(one));
        let alarms = &mut self.alarms;
        self.comparisons.retain(|round, one| {
            if is_such(one) {
                alarms.clear(&Alarm::Compare(*round));
            }
            !is_such(one)
        });
    }

    /// Begins as many comparisons as there may be at once.
    pub(super) fn begin_comparisons(&mut self, now: TimerInstant, out: &mut Out) {
        while self.comparisons.len() < self.config.comparisons_max {
            let Some(comparison) = self.comparisons_waiting.pop_front() else { return };
            self.load_stretch(comparison, now, out);
        }
    }

    /// Reads the next stretch from the own disk.
    fn load_stretch(&mut self, mut comparison: Comparison, now: TimerInstant, out: &mut Out) {
        let round = self.new_round();
        comparison.state = State::Loading;
        let (slot, after) = (comparison.slot, comparison.after.clone());
        out.outcome.load_ranks.push(RanksQuery { slot, round, after, limit: COMPARED_MAX });
        self.alarms.set(&Alarm::Compare(round), now + self.config.resend_interval);
        self.comparisons.insert(round, comparison);
    }

    pub(super) fn take_ranks(
        &mut self,
        slot: SlotId,
        round: u64,
        ranks: Vec<(EntryName, HeadRank)>,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let Some(comparison) = self.comparisons.get_mut(&round).filter(|one| one.slot == slot) else {
            return;
        };
        if !matches!(comparison.state, State::Loading) {
            return;
        }
        let upto =
            if ranks.len() >= COMPARED_MAX { ranks.last().map(|(name, _)| name.clone()) } else { None };
        comparison.state = State::Asking { upto, ranks };
        self.ask(round, now, out);
    }

    fn ask(&mut self, round: u64, now: TimerInstant, out: &mut Out) {
        let Some(comparison) = self.comparisons.get(&round) else { return };
        let (slot, after) = (comparison.slot, comparison.after.clone());
        match &comparison.state {
            State::Waiting | State::Loading => {}
            State::Asking { upto, ranks } => {
                let (upto, ranks) = (upto.clone(), ranks.clone());
                let message = ObjectMessage::Compare { slot, round, after, upto, ranks };
                out.outcome.send.push((comparison.peer.clone(), message));
            }
            State::Adopting { heads, .. } => {
                let message = ObjectMessage::Adopt { slot, round, heads: heads.clone(), learned: None };
                out.outcome.send.push((self.own.clone(), message));
            }
        }
        self.alarms.set(&Alarm::Compare(round), now + self.config.resend_interval);
    }

    pub(super) fn compare_again(&mut self, round: u64, now: TimerInstant, out: &mut Out) {
        let Some(comparison) = self.comparisons.get_mut(&round) else { return };
        comparison.attempts += 1;
        self.counters.resends += 1;
        if matches!(comparison.state, State::Asking { .. }) && comparison.attempts >= ATTEMPTS_MAX {
            // Others may be there. This one comes again after them.
            let Some(mut comparison) = self.comparisons.remove(&round) else { return };
            (comparison.attempts, comparison.state) = (0, State::Waiting);
            match comparison.purpose {
                Purpose::Heal => {}
                Purpose::Recover | Purpose::Learn => self.comparisons_waiting.push_back(comparison),
            }
            return;
        }
        self.ask(round, now, out);
    }

    pub(super) fn take_compared(
        &mut self,
        from: &NodeId,
        slot: SlotId,
        round: u64,
        answer: Answer,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let Some(comparison) = self.comparisons.get_mut(&round) else { return };
        if comparison.slot != slot || comparison.peer != *from {
            return;
        }
        let State::Asking { upto, .. } = &comparison.state else { return };
        let Answer { fence, is_learned, newer, behind, covered } = answer;
        let purpose = comparison.purpose;
        // Who has no memory has nothing to tell to a primary, and is asked again. Between two that learn it counts: in a new
        // cluster nobody has a memory, and everybody asks everybody once. More than one lost disk at a time is not borne.
        if !is_learned && purpose != Purpose::Learn {
            return;
        }
        if purpose != Purpose::Learn
            && let Some(epoch) = self.reigns.get(&slot).map(|reign| reign.epoch)
        {
            if fence > epoch {
                self.counters.stale += 1;
                return self.step_down(slot, fence, out);
            }
            // Who granted this epoch and knows nothing of it has lost its memory since, and has not learned it again.
            if fence < epoch && purpose == Purpose::Recover {
                return;
            }
        }
        let then = covered.or_else(|| upto.clone());
        match purpose {
            Purpose::Learn => {
                if let Some(learning) = self.learning.get_mut(&slot) {
                    learning.hear(fence);
                }
            }
            Purpose::Recover => {
                if let Some(reign) = self.reigns.get_mut(&slot) {
                    reign.adopted += newer.len() as u64;
                }
            }
            Purpose::Heal => {
                self.alarms.clear(&Alarm::Compare(round));
                let Some(mut comparison) = self.comparisons.remove(&round) else { return };
                self.healing.take_differences(slot, newer, behind);
                if then.is_some() {
                    (comparison.after, comparison.attempts, comparison.state) = (then, 0, State::Waiting);
                    self.healing.pause(comparison);
                }
                return;
            }
        }
        if newer.is_empty() {
            return self.walk_on(round, then, now, out);
        }
        comparison.state = State::Adopting { heads: newer, then };
        self.ask(round, now, out);
    }

    /// The own disk has adopted something.
    pub(super) fn take_adopted(&mut self, slot: SlotId, round: u64, now: TimerInstant, out: &mut Out) {
        if self.take_learned(slot, round, now, out) {
            return;
        }
        let Some(comparison) = self.comparisons.get_mut(&round).filter(|one| one.slot == slot) else {
            return;
        };
        if let State::Adopting { then, .. } = &mut comparison.state {
            let then = then.take();
            let is_recovering = comparison.purpose == Purpose::Recover;
            self.walk_on(round, then, now, out);
            if is_recovering {
                // Others may be majority enough, and waited for this only.
                self.recover_on(slot, now, out);
            }
        }
    }

    fn walk_on(&mut self, round: u64, then: Option<EntryName>, now: TimerInstant, out: &mut Out) {
        self.alarms.clear(&Alarm::Compare(round));
        let Some(mut comparison) = self.comparisons.remove(&round) else { return };
        if then.is_some() {
            (comparison.after, comparison.attempts) = (then, 0);
            return self.load_stretch(comparison, now, out);
        }
        let Comparison { slot, peer, purpose, .. } = comparison;
        match purpose {
            Purpose::Recover => self.recovered_from(slot, &peer, now, out),
            Purpose::Learn => self.learned_from(slot, &peer, now, out),
            Purpose::Heal => {}
        }
    }
}

/// After so many questions without an answer somebody else is asked.
const ATTEMPTS_MAX: u32 = 10;
