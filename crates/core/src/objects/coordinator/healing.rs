//! Healing: do all replicas have the same, and if not, what does each lack?
//!
//! In brief first: the summaries of many slots in one question. Slots that differ are compared entry by entry with each
//! replica that differs, and every entry in question is settled and then stored on all of them. Old tombstones go the same
//! way, and are forgotten when every replica has said that it has them.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::super::head::{EntryHead, SlotSummary};
use super::super::message::ObjectMessage;
use super::super::name::EntryName;
use super::comparing::{Comparison, Purpose};
use super::requests::Waiter;
use super::{Alarm, ObjectCoordinator, ObjectEvent, ObjectProgress, Out};
use crate::id::NodeId;
use crate::slots::{HeadRank, SlotEpoch, SlotId, Tag};
use crate::time::TimerInstant;

/// What is being healed.
#[derive(Debug, Default)]
pub(super) struct Healing {
    /// Slots whose time has come.
    ready: BTreeSet<SlotId>,
    checking: Option<Checking>,
    /// Slots to be compared, with the replica that differs.
    pairs: VecDeque<(SlotId, NodeId)>,
    /// A comparison that goes on when everything it has found is repaired.
    paused: Option<Comparison>,
    names: VecDeque<(SlotId, EntryName, Suspicion)>,
    /// Entries that wait to be settled.
    wanted: BTreeMap<EntryName, Suspicion>,
    /// Entries that are settled and on their way to all.
    repairs: BTreeMap<EntryName, Repair>,
    /// Slots that differed in this pass, and who answered.
    differing: BTreeMap<SlotId, BTreeSet<NodeId>>,
    pass: Pass,
    progress: ObjectProgress,
}

/// What a pass has done so far.
#[derive(Debug, Default)]
struct Pass {
    is_open: bool,
    checked: u64,
    repaired: u64,
    failed: u64,
}

/// A question for summaries.
#[derive(Debug)]
struct Checking {
    round: u64,
    until: TimerInstant,
    slots: BTreeMap<SlotId, (SlotEpoch, Told)>,
}

/// What each replica said of a slot: its fence, and what it stores.
type Told = BTreeMap<NodeId, (SlotEpoch, SlotSummary)>;

/// Why an entry is looked at.
#[derive(Debug)]
enum Suspicion {
    /// Some replica lacks it, or has another one: this, where it counts more than what is here.
    Differs(Option<EntryHead>),
    /// It is an old tombstone, and is to be forgotten.
    Old(Tag),
}

/// An entry on its way to all replicas.
#[derive(Debug)]
struct Repair {
    slot: SlotId,
    epoch: SlotEpoch,
    head: EntryHead,
    /// Who has yet to store it.
    left: BTreeSet<NodeId>,
    until: TimerInstant,
    is_forgotten_then: bool,
}

impl Healing {
    pub(super) fn progress(&self) -> ObjectProgress {
        let asked = self.checking.as_ref().map_or(0, |checking| checking.slots.len());
        let mut progress = self.progress;
        progress.heal_is_running = self.pass.is_open || !self.ready.is_empty();
        progress.heal_pass_left = (self.ready.len() + asked) as u64;
        if self.pass.is_open {
            progress.heal_pass_checked = self.pass.checked;
            progress.heal_pass_failed = self.pass.failed;
        }
        progress
    }

    /// A page of differences. What an earlier page has found and is still under way is not looked at twice.
    pub(super) fn take_differences(
        &mut self,
        slot: SlotId,
        newer: Vec<(EntryName, EntryHead)>,
        behind: Vec<EntryName>,
    ) {
        let newer = newer.into_iter().map(|(name, head)| (slot, name, Suspicion::Differs(Some(head))));
        self.names.extend(newer);
        self.names.extend(behind.into_iter().map(|name| (slot, name, Suspicion::Differs(None))));
    }

    pub(super) fn pause(&mut self, comparison: Comparison) {
        self.paused = Some(comparison);
    }

    /// What another replica has of an entry that is not here.
    pub(super) fn found_elsewhere(&self, name: &EntryName) -> Option<EntryHead> {
        match self.wanted.get(name) {
            Some(Suspicion::Differs(head)) => head.clone(),
            _ => None,
        }
    }

    pub(super) fn take_stored(&mut self, from: &NodeId, name: &EntryName, rank: HeadRank) {
        if let Some(repair) = self.repairs.get_mut(name).filter(|repair| repair.head.rank() == rank) {
            repair.left.remove(from);
        }
    }

    fn is_idle(&self) -> bool {
        self.names.is_empty() && self.wanted.is_empty() && self.repairs.is_empty()
    }
}

impl ObjectCoordinator {
    pub(super) fn heal_soon(&mut self, slot: SlotId) {
        if self.serves(slot).is_some() {
            self.healing.ready.insert(slot);
        }
    }

    /// Nothing of a slot is healed from here any more.
    pub(super) fn heal_no_more(&mut self, slot: SlotId) {
        let healing = &mut self.healing;
        healing.ready.remove(&slot);
        healing.differing.remove(&slot);
        healing.pairs.retain(|(other, _)| *other != slot);
        healing.paused.take_if(|one| one.slot == slot);
        healing.names.retain(|(other, _, _)| *other != slot);
        if let Some(checking) = &mut healing.checking {
            checking.slots.remove(&slot);
        }
        let total_slots = self.bootstrap.replication.total_slots;
        healing.wanted.retain(|name, _| name.slot(total_slots) != slot);
        let alarms = &mut self.alarms;
        healing.repairs.retain(|name, repair| {
            if repair.slot == slot {
                alarms.clear(&Alarm::Repair(name.clone()));
            }
            repair.slot != slot
        });
    }

    pub(super) fn take_old_tombstones(&mut self, slot: SlotId, entries: Vec<(EntryName, Tag)>) {
        let room = NAMES_MAX.saturating_sub(self.healing.names.len());
        // What finds no room is still old the next time.
        let entries = entries.into_iter().take(room).filter(|(name, _)| self.slot_of(name) == slot);
        let names: Vec<_> = entries.map(|(name, tag)| (slot, name, Suspicion::Old(tag))).collect();
        if self.serves(slot).is_some() {
            self.healing.names.extend(names);
        }
    }

    /// Does the next step of healing that can be done.
    pub(super) fn heal_on(&mut self, now: TimerInstant, out: &mut Out) {
        self.close_check(now, out);
        while self.healing.wanted.len() + self.healing.repairs.len() < self.config.repairs_max {
            let Some((slot, name, suspicion)) = self.healing.names.pop_front() else { break };
            let healing = &mut self.healing;
            if !healing.wanted.contains_key(&name) && !healing.repairs.contains_key(&name) {
                healing.wanted.insert(name.clone(), suspicion);
                self.enqueue(slot, &name, Waiter::Heal, now, out);
            }
        }
        if !self.healing.is_idle() || self.is_comparing(Purpose::Heal) {
            return;
        }
        if let Some(comparison) = self.healing.paused.take() {
            self.comparisons_waiting.push_back(comparison);
        } else if let Some((slot, peer)) = self.healing.pairs.pop_front() {
            self.compare(slot, &peer, Purpose::Heal);
        } else if self.healing.checking.is_none() {
            self.close_pass(now, out);
            self.check(now, out);
        }
    }

    fn close_pass(&mut self, now: TimerInstant, out: &mut Out) {
        if !self.healing.pass.is_open {
            return;
        }
        let Pass { checked, repaired, failed, .. } = core::mem::take(&mut self.healing.pass);
        out.outcome.events.push(ObjectEvent::HealFinished { checked, repaired, failed });
        self.healing.progress.heal_finished_at = Some(now);
        self.healing.progress.heal_pass_checked = checked;
        self.healing.progress.heal_pass_failed = failed;
        for (slot, _) in core::mem::take(&mut self.healing.differing) {
            // Where something was repaired, all may be equal now.
            let soon = self.config.resend_interval * 8;
            let pause = if repaired > 0 && failed == 0 { soon } else { self.config.heal_interval };
            self.alarms.set(&Alarm::Heal(slot), now + pause);
        }
    }

    /// Asks for the summaries of slots whose time has come.
    fn check(&mut self, now: TimerInstant, out: &mut Out) {
        let mut slots = BTreeMap::new();
        while slots.len() < SLOTS_PER_CHECK_MAX {
            let Some(slot) = self.healing.ready.pop_first() else { break };
            if let Some(epoch) = self.serves(slot) {
                slots.insert(slot, (epoch, BTreeMap::new()));
            }
        }
        if slots.is_empty() {
            return;
        }
        let (round, until) = (self.new_round(), now + self.config.heal_patience);
        self.healing.checking = Some(Checking { round, until, slots });
        self.ask_summaries(now, out);
    }

    fn ask_summaries(&mut self, now: TimerInstant, out: &mut Out) {
        let Some(checking) = &self.healing.checking else { return };
        let mut asked: BTreeMap<&NodeId, Vec<SlotId>> = BTreeMap::new();
        for (slot, (_, told)) in &checking.slots {
            for replica in self.bootstrap.replicas(*slot).filter(|replica| !told.contains_key(*replica)) {
                asked.entry(replica).or_default().push(*slot);
            }
        }
        for (node, slots) in asked {
            let message = ObjectMessage::Summarize { round: checking.round, slots };
            out.outcome.send.push((node.clone(), message));
        }
        self.alarms.set(&Alarm::Check, now + self.config.resend_interval);
    }

    pub(super) fn check_again(&mut self, now: TimerInstant, out: &mut Out) {
        if self.healing.checking.as_ref().is_some_and(|checking| now < checking.until) {
            self.counters.resends += 1;
            self.ask_summaries(now, out);
        }
    }

    pub(super) fn take_summaries(
        &mut self,
        from: &NodeId,
        round: u64,
        summaries: &[(SlotId, SlotEpoch, SlotSummary)],
    ) {
        let Some(checking) = self.healing.checking.as_mut().filter(|checking| checking.round == round) else {
            return;
        };
        for (slot, fence, summary) in summaries {
            if let Some((_, told)) = checking.slots.get_mut(slot)
                && self.bootstrap.replicas(*slot).any(|replica| replica == from)
            {
                told.insert(from.clone(), (*fence, *summary));
            }
        }
    }

    /// Ends a question for summaries that all have answered, or whose time is over.
    fn close_check(&mut self, now: TimerInstant, out: &mut Out) {
        let count = self.bootstrap.replica_count();
        let is_over = |checking: &mut Checking| {
            now >= checking.until || checking.slots.values().all(|(_, told)| told.len() == count)
        };
        let Some(checking) = self.healing.checking.take_if(is_over) else { return };
        self.alarms.clear(&Alarm::Check);
        self.healing.pass.is_open = true;
        for (slot, (epoch, told)) in checking.slots {
            let Some(reign) = self.reigns.get_mut(&slot).filter(|reign| reign.epoch == epoch) else {
                continue;
            };
            self.healing.pass.checked += 1;
            self.healing.progress.heal_slots_checked += 1;
            self.alarms.set(&Alarm::Heal(slot), now + self.config.heal_interval);
            let Some(own) = told.get(&self.own).copied() else { continue };
            // Whoever has fenced this epoch changes by its writes alone; so equal summaries, whenever they were told, mean
            // that all had the same of earlier epochs.
            if told.len() == count && own.0 == epoch && told.values().all(|other| *other == own) {
                reign.is_clean = true;
                continue;
            }
            for (node, _) in told.iter().filter(|(_, (fence, _))| *fence < epoch) {
                out.fences.entry(node.clone()).or_default().push((slot, epoch));
                self.alarms.set(&Alarm::Heal(slot), now + self.config.resend_interval * 8);
            }
            let differing: Vec<NodeId> =
                told.iter().filter(|(_, other)| other.1 != own.1).map(|(node, _)| node.clone()).collect();
            if !differing.is_empty() {
                self.healing.progress.heal_slots_differing += 1;
                self.healing.differing.insert(slot, told.into_keys().collect());
                self.healing.pairs.extend(differing.into_iter().map(|node| (slot, node)));
            }
        }
    }

    /// An entry in question is settled: it goes to all replicas that answer, and to the others too.
    pub(super) fn repair(
        &mut self,
        slot: SlotId,
        name: &EntryName,
        head: Option<&EntryHead>,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let Some(suspicion) = self.healing.wanted.remove(name) else { return };
        let (Some(head), Some(epoch)) = (head, self.serves(slot)) else { return };
        let is_forgotten_then = match suspicion {
            Suspicion::Old(tag) if !head.is_deleted || head.tag != tag => return,
            Suspicion::Old(_) => true,
            Suspicion::Differs(_) => false,
        };
        let replicas = self.bootstrap.replicas(slot).cloned();
        let answering = self.healing.differing.get(&slot);
        let is_waited_for =
            |node: &NodeId| is_forgotten_then || answering.is_none_or(|answering| answering.contains(node));
        let left = replicas.filter(is_waited_for).collect();
        let until = now + self.config.heal_patience;
        let repair = Repair { slot, epoch, head: head.clone(), left, until, is_forgotten_then };
        self.healing.repairs.insert(name.clone(), repair);
        for replica in self.bootstrap.replicas(slot) {
            let message = ObjectMessage::Store { slot, epoch, name: name.clone(), head: head.clone() };
            out.outcome.send.push((replica.clone(), message));
        }
        self.alarms.set(&Alarm::Repair(name.clone()), now + self.config.resend_interval);
    }

    pub(super) fn repair_again(&mut self, name: &EntryName, now: TimerInstant, out: &mut Out) {
        let Some(repair) = self.healing.repairs.get(name) else { return };
        if now >= repair.until {
            if !repair.is_forgotten_then {
                self.healing.pass.failed += 1;
                self.healing.progress.heal_entries_failed += 1;
            }
            self.healing.repairs.remove(name);
            return;
        }
        self.counters.resends += 1;
        for replica in &repair.left {
            let (slot, epoch, head) = (repair.slot, repair.epoch, repair.head.clone());
            out.outcome
                .send
                .push((replica.clone(), ObjectMessage::Store { slot, epoch, name: name.clone(), head }));
        }
        self.alarms.set(&Alarm::Repair(name.clone()), now + self.config.resend_interval);
    }

    /// Ends the repair of an entry that all have stored.
    pub(super) fn repaired(&mut self, name: &EntryName, out: &mut Out) {
        if self.healing.repairs.get(name).is_none_or(|repair| !repair.left.is_empty()) {
            return;
        }
        let Some(Repair { slot, epoch, head, is_forgotten_then, .. }) = self.healing.repairs.remove(name)
        else {
            return;
        };
        self.alarms.clear(&Alarm::Repair(name.clone()));
        if !is_forgotten_then {
            self.healing.pass.repaired += 1;
            self.healing.progress.heal_entries_repaired += 1;
            return;
        }
        self.counters.forgotten += 1;
        for replica in self.bootstrap.replicas(slot) {
            let entries = alloc::vec![(name.clone(), head.tag)];
            out.outcome.send.push((replica.clone(), ObjectMessage::Forget { slot, epoch, entries }));
        }
    }
}

/// Most slots in one question for summaries.
const SLOTS_PER_CHECK_MAX: usize = 256;
/// Most entries that wait to be looked at, besides one page of differences.
const NAMES_MAX: usize = 4096;
