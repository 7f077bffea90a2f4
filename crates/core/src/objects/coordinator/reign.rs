//! A reign: one slot in one epoch, from the first fence to the later one that ends it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::super::head::SlotSummary;
use super::super::message::{FenceRefusal, Fenced};
use super::super::name::EntryName;
use super::comparing::Purpose;
use super::confirm::Awaiting;
use super::requests::{Key, Open};
use super::{Alarm, EntryError, ObjectCoordinator, ObjectEvent, Out};
use crate::id::NodeId;
use crate::slots::{HeadRank, SlotEpoch, SlotId};
use crate::time::TimerInstant;

/// What is known of the epochs of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Epochs {
    /// The latest that anybody mentioned.
    pub(super) seen: SlotEpoch,
    /// The latest that this node had. Its tags are used, so it does not begin again.
    pub(super) reigned: SlotEpoch,
}

/// How far a reign is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for the fences of a majority, the own disk among them.
    Fencing,
    /// It takes over what counts more elsewhere.
    Recovering,
    Serving,
}

/// One slot in one epoch.
#[derive(Debug)]
pub(super) struct Reign {
    pub(super) epoch: SlotEpoch,
    pub(super) phase: Phase,
    /// What each replica stored when it had fenced this epoch: before it stored anything of it.
    pub(super) granted: BTreeMap<NodeId, SlotSummary>,
    /// Who was compared to the end.
    compared: BTreeSet<NodeId>,
    pub(super) adopted: u64,
    /// Whether all replicas had the same entries of earlier epochs after they had fenced this one.
    pub(super) is_clean: bool,
    /// The last number given to a write.
    pub(super) sequence: u64,
    /// Keys with something to be done.
    pub(super) keys: BTreeMap<EntryName, Key>,
    /// Keys of which something was sent to replicas, up to this rank, and is not known to be on a majority.
    pub(super) unsettled: BTreeMap<EntryName, HeadRank>,
    /// The last question, whether the epoch lasts, that a majority affirmed.
    pub(super) confirmed: u64,
    /// Answers that wait for such a question.
    pub(super) awaiting: Vec<Awaiting>,
}

impl Reign {
    fn new(epoch: SlotEpoch) -> Self {
        Self {
            epoch,
            phase: Phase::Fencing,
            granted: BTreeMap::new(),
            compared: BTreeSet::new(),
            adopted: 0,
            is_clean: false,
            sequence: 0,
            keys: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            confirmed: 0,
            awaiting: Vec::new(),
        }
    }

    /// Those who have fenced, and have nothing that `own` lacks.
    fn taken_over(&self, own: &NodeId) -> usize {
        let summary = self.granted.get(own);
        let is_taken_over =
            |(node, told): &(&NodeId, &SlotSummary)| Some(*told) == summary || self.compared.contains(*node);
        self.granted.iter().filter(is_taken_over).count()
    }
}

impl ObjectCoordinator {
    pub(super) fn take_elected(&mut self, slot: SlotId, epoch: SlotEpoch, now: TimerInstant, out: &mut Out) {
        if !self.is_replica(slot, &self.own) {
            return;
        }
        let known = self.epochs.entry(slot).or_default();
        if epoch < known.seen || epoch <= known.reigned {
            return;
        }
        *known = Epochs { seen: epoch, reigned: epoch };
        self.end_reign(slot, epoch, out);
        self.reigns.insert(slot, Reign::new(epoch));
        self.fence_now(slot, now, out);
    }

    /// Asks those who have not fenced the slot yet.
    fn fence_now(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let Some(reign) = self.reigns.get(&slot).filter(|reign| reign.phase != Phase::Serving) else {
            return;
        };
        for replica in self.bootstrap.replicas(slot) {
            if !reign.granted.contains_key(replica) {
                out.fences.entry(replica.clone()).or_default().push((slot, reign.epoch));
            }
        }
        self.alarms.set(&Alarm::Fence(slot), now + self.config.resend_interval);
    }

    pub(super) fn fence_again(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        self.counters.resends += 1;
        self.fence_now(slot, now, out);
    }

    pub(super) fn take_fenced(
        &mut self,
        from: &NodeId,
        fenced: &[Fenced],
        refused: &[FenceRefusal],
        now: TimerInstant,
        out: &mut Out,
    ) {
        for Fenced { slot, epoch, summary } in fenced {
            if !self.is_replica(*slot, from) {
                continue;
            }
            if let Some(reign) = self.reigns.get_mut(slot).filter(|reign| reign.epoch == *epoch) {
                // The first answer counts: a later one may tell of what was stored in this epoch.
                reign.granted.entry(from.clone()).or_insert(*summary);
                self.recover_on(*slot, now, out);
            }
        }
        for FenceRefusal { slot, asked, fence } in refused {
            let is_ours = self.reigns.get(slot).is_some_and(|reign| reign.epoch == *asked);
            if let Some(fence) = fence.filter(|fence| is_ours && fence > asked)
                && self.is_replica(*slot, from)
            {
                self.counters.stale += 1;
                self.step_down(*slot, fence, out);
            }
        }
    }

    /// Goes on as far as the fences and comparisons so far allow.
    pub(super) fn recover_on(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let (majority, count) = (self.bootstrap.majority(), self.bootstrap.replica_count());
        let Some(reign) = self.reigns.get_mut(&slot) else { return };
        let Some(summary) = reign.granted.get(&self.own).copied() else { return };
        if reign.granted.len() == count && reign.granted.values().all(|told| *told == summary) {
            reign.is_clean = true;
        }
        if reign.phase == Phase::Serving || reign.granted.len() < majority {
            return;
        }
        if reign.taken_over(&self.own) >= majority {
            // Nothing but its own writes may change what is on the own disk while it serves.
            if self.is_adopting(slot) {
                return;
            }
            return self.serve(slot, now, out);
        }
        reign.phase = Phase::Recovering;
        let is_different = |(_, told): &(&NodeId, &SlotSummary)| **told != summary;
        let differing = reign.granted.iter().filter(is_different).map(|(node, _)| node.clone());
        let peers: Vec<NodeId> = differing.filter(|node| !reign.compared.contains(node)).collect();
        for peer in peers {
            self.compare(slot, &peer, Purpose::Recover);
        }
    }

    /// All that `peer` has, and that counts more, is on the own disk.
    pub(super) fn recovered_from(&mut self, slot: SlotId, peer: &NodeId, now: TimerInstant, out: &mut Out) {
        if let Some(reign) = self.reigns.get_mut(&slot) {
            reign.compared.insert(peer.clone());
            self.recover_on(slot, now, out);
        }
    }

    fn serve(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let Some(reign) = self.reigns.get_mut(&slot) else { return };
        reign.phase = Phase::Serving;
        let Reign { epoch, adopted, is_clean, .. } = *reign;
        let waiting: Vec<EntryName> = reign.keys.keys().cloned().collect();
        self.alarms.clear(&Alarm::Fence(slot));
        self.drop_comparisons(slot, Purpose::Recover);
        out.outcome.events.push(ObjectEvent::SlotServing { slot, epoch, adopted });
        // A clean slot can wait for its turn; the turns of slots are spread over the interval.
        let turn = self.config.heal_interval * u32::from(slot.get() % 64) / 64;
        let pause = if is_clean { self.config.heal_interval + turn } else { self.config.resend_interval * 4 };
        self.alarms.set(&Alarm::Heal(slot), now + pause);
        for name in waiting {
            self.advance(slot, &name, now, out);
        }
    }

    /// A later epoch than that of this node is known: whoever waits goes elsewhere.
    pub(super) fn step_down(&mut self, slot: SlotId, by: SlotEpoch, out: &mut Out) {
        let known = self.epochs.entry(slot).or_default();
        known.seen = known.seen.max(by);
        if self.reigns.get(&slot).is_some_and(|reign| reign.epoch < by) {
            self.end_reign(slot, by, out);
        }
    }

    fn end_reign(&mut self, slot: SlotId, by: SlotEpoch, out: &mut Out) {
        let Some(reign) = self.reigns.remove(&slot) else { return };
        self.counters.step_downs += 1;
        out.outcome.events.push(ObjectEvent::SlotLost { slot, epoch: reign.epoch, by });
        for alarm in [Alarm::Fence(slot), Alarm::Heal(slot)] {
            self.alarms.clear(&alarm);
        }
        for name in reign.keys.into_keys() {
            self.alarms.clear(&Alarm::Store(name));
        }
        self.unsettled_count -= reign.unsettled.len();
        self.drop_comparisons(slot, Purpose::Recover);
        self.drop_comparisons(slot, Purpose::Heal);
        self.heal_no_more(slot);
        let concerned = self.requests.iter().filter_map(|(id, open)| match open {
            Open::Entry(entry) if entry.slot == slot => Some((*id, entry.is_sent)),
            Open::Listing { slots, .. } if slots.contains(&slot) => Some((*id, false)),
            _ => None,
        });
        for (id, is_sent) in concerned.collect::<Vec<_>>() {
            let lost = EntryError::NotPrimary { primary_epoch: by };
            self.answer(id, Err(if is_sent { EntryError::Indeterminate } else { lost }), out);
        }
    }
}
