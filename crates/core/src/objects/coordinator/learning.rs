//! A disk without a memory: an earlier life of it may have fenced and stored what this one does not know.
//!
//! It takes part in nothing until it has compared itself with *every* other replica. Whoever had it fence or store something
//! has that on its own disk, or in the queue of it, before anybody heard of it; so the others together know all of it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::super::message::ObjectMessage;
use super::comparing::Purpose;
use super::{Alarm, ObjectCoordinator, ObjectEvent, Out};
use crate::id::NodeId;
use crate::slots::{SlotEpoch, SlotId};
use crate::time::TimerInstant;

/// What a slot without a memory has heard.
#[derive(Debug)]
pub(super) struct Learning {
    left: BTreeSet<NodeId>,
    fence: SlotEpoch,
    /// The order to the own disk that says that all is known.
    round: Option<u64>,
}

impl Learning {
    pub(super) fn hear(&mut self, fence: SlotEpoch) {
        self.fence = self.fence.max(fence);
    }
}

impl ObjectCoordinator {
    pub(super) fn begin_learning(&mut self, slots: BTreeSet<SlotId>, now: TimerInstant, out: &mut Out) {
        for slot in slots {
            if !self.is_replica(slot, &self.own) {
                continue;
            }
            let others = self.bootstrap.replicas(slot).filter(|replica| **replica != self.own);
            let left: BTreeSet<NodeId> = others.cloned().collect();
            let peers: Vec<NodeId> = left.iter().cloned().collect();
            self.learning.insert(slot, Learning { left, fence: SlotEpoch::ZERO, round: None });
            for peer in &peers {
                self.compare(slot, peer, Purpose::Learn);
            }
            if peers.is_empty() {
                self.learn_again(slot, now, out);
            }
        }
        self.learning_total = self.learning.len();
    }

    /// Everything that `peer` has is on the own disk.
    pub(super) fn learned_from(&mut self, slot: SlotId, peer: &NodeId, now: TimerInstant, out: &mut Out) {
        let Some(learning) = self.learning.get_mut(&slot) else { return };
        learning.left.remove(peer);
        if learning.left.is_empty() {
            self.learn_again(slot, now, out);
        }
    }

    /// All were heard: the own disk is told so.
    pub(super) fn learn_again(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let new_round = self.new_round();
        let Some(learning) = self.learning.get_mut(&slot) else { return };
        let round = *learning.round.get_or_insert(new_round);
        let learned = Some(learning.fence);
        let message = ObjectMessage::Adopt { slot, round, heads: Vec::new(), learned };
        out.outcome.send.push((self.own.clone(), message));
        self.alarms.set(&Alarm::Learn(slot), now + self.config.resend_interval);
    }

    /// Whether that was the answer of the own disk to the last order.
    pub(super) fn take_learned(
        &mut self,
        slot: SlotId,
        round: u64,
        now: TimerInstant,
        out: &mut Out,
    ) -> bool {
        let is_learned = self.learning.get(&slot).is_some_and(|learning| learning.round == Some(round));
        if is_learned {
            self.learning.remove(&slot);
            self.alarms.clear(&Alarm::Learn(slot));
            out.outcome.events.push(ObjectEvent::Learned { slot });
            // It may be the primary, and waits for nobody but its own disk.
            self.fence_again(slot, now, out);
        }
        is_learned
    }
}
