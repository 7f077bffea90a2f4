//! Requests: a queue for each key, one write at a time, and readers together.
//!
//! A key is idle, or its head is being read from the own disk, or a head is on its way to the replicas. Whoever wants to see
//! the key, or to compare it with a condition, gets a head that is settled; where the disk has one that is not, it is renewed
//! first. What is on its way when nobody waits for it any more is given up when it is on the own disk, and the key is marked.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::super::head::EntryHead;
use super::super::message::ObjectMessage;
use super::super::name::EntryName;
use super::confirm::Awaiting;
use super::reign::Phase;
use super::{Alarm, EntryAnswer, EntryError, EntryOperation, EntryRequest, ObjectCoordinator, Out};
use crate::id::NodeId;
use crate::objects::Condition;
use crate::slots::{HeadRank, SlotEpoch, SlotId, Tag};
use crate::time::TimerInstant;

/// A request that is not answered.
#[derive(Debug)]
pub(super) enum Open {
    Entry(Box<OpenEntry>),
    Listing {
        slots: BTreeSet<SlotId>,
        /// How many entries have yet to be settled, and slots to be confirmed.
        left: usize,
    },
}

#[derive(Debug)]
pub(super) struct OpenEntry {
    pub(super) slot: SlotId,
    name: EntryName,
    operation: EntryOperation,
    /// Whether a replica may have heard of it.
    pub(super) is_sent: bool,
}

/// One key with something to be done.
#[derive(Debug, Default)]
pub(super) struct Key {
    queue: VecDeque<Waiter>,
    state: KeyState,
}

#[derive(Debug, Default)]
enum KeyState {
    #[default]
    Idle,
    /// The own disk was asked what is there. Each waiter with the question, whether the epoch lasts, that it needs.
    Loading(Vec<(Waiter, u64)>),
    Storing(Storing),
}

/// A head on its way to the replicas.
#[derive(Debug)]
struct Storing {
    head: EntryHead,
    /// Whose write it is; `None` when it is renewed.
    write: Option<u64>,
    /// Who wants to see it.
    waiters: Vec<(Waiter, u64)>,
    /// Whether it is on the own disk, with or without its parts. The next head is read from there.
    is_own: bool,
    complete: BTreeSet<NodeId>,
    quorum: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    Request(u64),
    Listing(u64),
    /// The repair of the key.
    Heal,
}

impl ObjectCoordinator {
    pub(super) fn take_request(&mut self, request: EntryRequest, now: TimerInstant, out: &mut Out) {
        let EntryRequest { id, name, operation, expires_at } = request;
        let slot = self.slot_of(&name);
        let is_write = !matches!(operation, EntryOperation::Read);
        let entry = OpenEntry { slot, name: name.clone(), operation, is_sent: false };
        self.open(id, Open::Entry(Box::new(entry)), expires_at, now, out);
        if !self.requests.contains_key(&id) {
            return;
        }
        let Some(reign) = self.reigns.get(&slot) else {
            let primary_epoch = self.epochs.get(&slot).map(|known| known.seen).unwrap_or_default();
            return self.answer(id, Err(EntryError::NotPrimary { primary_epoch }), out);
        };
        let is_full = self.unsettled_count >= self.config.unsettled_max;
        if is_write && is_full && !reign.unsettled.contains_key(&name) {
            return self.answer(id, Err(EntryError::TooManyRequests), out);
        }
        self.enqueue(slot, &name, Waiter::Request(id), now, out);
    }

    pub(super) fn take_settle(
        &mut self,
        id: u64,
        entries: Vec<(EntryName, HeadRank)>,
        slots: Vec<(SlotId, SlotEpoch)>,
        expires_at: TimerInstant,
        now: TimerInstant,
        out: &mut Out,
    ) {
        // One more than there is, until all is asked for.
        let listing = Open::Listing { slots: slots.iter().map(|(slot, _)| *slot).collect(), left: 1 };
        self.open(id, listing, expires_at, now, out);
        for (slot, epoch) in &slots {
            if self.serves(*slot) != Some(*epoch) {
                let primary_epoch = self.epochs.get(slot).map(|known| known.seen).unwrap_or_default();
                return self.answer(id, Err(EntryError::NotPrimary { primary_epoch }), out);
            }
        }
        let mut unsettled = Vec::new();
        for (name, rank) in entries {
            let slot = self.slot_of(&name);
            let Some(reign) = self.reigns.get(&slot).filter(|reign| reign.phase == Phase::Serving) else {
                let primary_epoch = self.epochs.get(&slot).map(|known| known.seen).unwrap_or_default();
                return self.answer(id, Err(EntryError::NotPrimary { primary_epoch }), out);
            };
            if rank.accepted > reign.epoch {
                self.step_down(slot, rank.accepted, out);
                let primary_epoch = rank.accepted;
                return self.answer(id, Err(EntryError::NotPrimary { primary_epoch }), out);
            }
            let is_settled = reign.is_clean || rank.accepted == reign.epoch;
            if !is_settled || reign.unsettled.contains_key(&name) {
                unsettled.push((slot, name));
            }
        }
        let Some(Open::Listing { left, .. }) = self.requests.get_mut(&id) else { return };
        *left += unsettled.len() + slots.len();
        for (slot, name) in unsettled {
            self.enqueue(slot, &name, Waiter::Listing(id), now, out);
        }
        for (slot, _) in slots {
            let round = self.confirms.want(slot);
            self.await_confirmed(slot, Awaiting { round, id, answer: None }, out);
        }
        self.settle_one(id, out);
    }

    fn open(&mut self, id: u64, open: Open, expires_at: TimerInstant, now: TimerInstant, out: &mut Out) {
        self.counters.requests += 1;
        let is_full = self.requests.len() >= self.config.requests_max;
        let before = self.requests.insert(id, open);
        assert!(before.is_none(), "two requests in flight have the id {id}");
        if is_full {
            return self.answer(id, Err(EntryError::TooManyRequests), out);
        }
        if expires_at <= now {
            return self.answer(id, Err(EntryError::Expired), out);
        }
        self.alarms.set(&Alarm::Request(id), expires_at);
    }

    pub(super) fn enqueue(
        &mut self,
        slot: SlotId,
        name: &EntryName,
        waiter: Waiter,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let is_looking = self.is_looking(waiter);
        let Some(reign) = self.reigns.get_mut(&slot) else { return };
        let key = reign.keys.entry(name.clone()).or_default();
        if let KeyState::Loading(waiters) = &mut key.state
            && is_looking
            && key.queue.is_empty()
            && waiters.iter().all(|(other, _)| is_looking_in(&self.requests, *other))
        {
            // Nothing was written since the disk was asked, or it would be before this one in the queue.
            let round = if matches!(waiter, Waiter::Request(_)) { self.confirms.want(slot) } else { 0 };
            waiters.push((waiter, round));
            return;
        }
        key.queue.push_back(waiter);
        self.advance(slot, name, now, out);
    }

    /// Begins with whoever is first in the queue of a key, if it is idle and the slot is served.
    pub(super) fn advance(&mut self, slot: SlotId, name: &EntryName, now: TimerInstant, out: &mut Out) {
        let Some(reign) = self.reigns.get_mut(&slot).filter(|reign| reign.phase == Phase::Serving) else {
            return;
        };
        let Some(key) = reign.keys.get_mut(name) else { return };
        if !matches!(key.state, KeyState::Idle) {
            return;
        }
        let Some(first) = key.queue.pop_front() else {
            reign.keys.remove(name);
            return;
        };
        let mut waiters = Vec::new();
        if is_looking_in(&self.requests, first) {
            let mut next = Some(first);
            while let Some(waiter) = next {
                let round = if matches!(waiter, Waiter::Request(_)) { self.confirms.want(slot) } else { 0 };
                waiters.push((waiter, round));
                next = key.queue.pop_front_if(|waiter| is_looking_in(&self.requests, *waiter));
            }
        } else {
            let Waiter::Request(id) = first else { return };
            if let Some(Open::Entry(entry)) = self.requests.get(&id)
                && let EntryOperation::Write { condition: Condition::Any, etag, content } = &entry.operation
            {
                let (etag, content) = (etag.clone(), content.clone());
                let draft = Draft { is_deleted: false, etag, content };
                return self.write(slot, name, id, draft, now, out);
            }
            waiters.push((first, 0));
        }
        key.state = KeyState::Loading(waiters);
        if let Some(again) = self.loads.get_mut(name) {
            // What is being read may be older than what this reign took over.
            *again = true;
        } else {
            self.loads.insert(name.clone(), false);
            out.outcome.load.push(name.clone());
        }
    }

    pub(super) fn take_loaded(
        &mut self,
        name: &EntryName,
        head: Option<EntryHead>,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let slot = self.slot_of(name);
        let Some(is_wanted_again) = self.loads.remove(name) else { return };
        let Some(reign) = self.reigns.get_mut(&slot) else { return };
        let Some(key) = reign.keys.get_mut(name) else { return };
        let KeyState::Loading(waiters) = &mut key.state else { return };
        if is_wanted_again {
            self.loads.insert(name.clone(), false);
            out.outcome.load.push(name.clone());
            return;
        }
        let waiters = core::mem::take(waiters);
        key.state = KeyState::Idle;
        let mut is_settled = reign.is_clean;
        let mut head = head;
        match &head {
            Some(found) if found.accepted > reign.epoch => {
                let by = found.accepted;
                return self.step_down(slot, by, out);
            }
            Some(found) => {
                is_settled =
                    (is_settled || found.accepted == reign.epoch) && !reign.unsettled.contains_key(name);
            }
            // Nothing can be made safe that is not there. What is on its way takes effect when it is found.
            None => {
                is_settled = true;
                if waiters.iter().any(|(waiter, _)| *waiter == Waiter::Heal)
                    && let Some(found) = self.healing.found_elsewhere(name)
                {
                    is_settled = false;
                    head = Some(found);
                }
            }
        }
        match head {
            Some(found) if !is_settled && !waiters.is_empty() => {
                self.counters.renewals += 1;
                let head = EntryHead { accepted: reign.epoch, ..found };
                let quorum = self.bootstrap.majority();
                let (is_own, complete) = (false, BTreeSet::new());
                let storing = Storing { head, write: None, waiters, is_own, complete, quorum };
                self.store(slot, name, storing, now, out);
            }
            head => self.resolve(slot, name, head.as_ref(), waiters, now, out),
        }
    }

    /// Tells everyone who waited what is there, which is settled.
    fn resolve(
        &mut self,
        slot: SlotId,
        name: &EntryName,
        head: Option<&EntryHead>,
        waiters: Vec<(Waiter, u64)>,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let visible = head.filter(|head| !head.is_deleted);
        for (waiter, round) in waiters {
            let id = match waiter {
                Waiter::Request(id) => id,
                Waiter::Listing(id) => {
                    self.settle_one(id, out);
                    continue;
                }
                Waiter::Heal => {
                    self.repair(slot, name, head, now, out);
                    continue;
                }
            };
            let Some(Open::Entry(entry)) = self.requests.get(&id) else { continue };
            let (answer, round) = match &entry.operation {
                EntryOperation::Read => (EntryAnswer::Found(visible.cloned()), round),
                EntryOperation::Write { condition, etag, content } => {
                    if condition.holds(head) {
                        let (etag, content) = (etag.clone(), content.clone());
                        let draft = Draft { is_deleted: false, etag, content };
                        return self.write(slot, name, id, draft, now, out);
                    }
                    (EntryAnswer::Refused(visible.cloned()), self.confirms.want(slot))
                }
                EntryOperation::Delete { condition, content } => {
                    let holds = condition.holds(head);
                    if holds && (visible.is_some() || *condition == Condition::Never) {
                        let draft = Draft { is_deleted: true, etag: "".into(), content: content.clone() };
                        return self.write(slot, name, id, draft, now, out);
                    }
                    let answer = match holds {
                        true => EntryAnswer::NothingDeleted,
                        false => EntryAnswer::Refused(visible.cloned()),
                    };
                    (answer, self.confirms.want(slot))
                }
            };
            self.await_confirmed(slot, Awaiting { round, id, answer: Some(answer) }, out);
        }
        self.advance(slot, name, now, out);
    }

    /// Begins a write: from here on it may take effect.
    fn write(
        &mut self,
        slot: SlotId,
        name: &EntryName,
        id: u64,
        draft: Draft,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let quorum = self.bootstrap.write_quorum();
        let Some(reign) = self.reigns.get_mut(&slot) else { return };
        reign.sequence += 1;
        let Draft { is_deleted, etag, content } = draft;
        let (epoch, sequence) = (reign.epoch, reign.sequence);
        let head = EntryHead { tag: Tag { epoch, sequence }, accepted: epoch, is_deleted, etag, content };
        if let Some(Open::Entry(entry)) = self.requests.get_mut(&id) {
            entry.is_sent = true;
            // It is in the head.
            entry.operation = EntryOperation::Read;
        }
        let (waiters, complete) = (Vec::new(), BTreeSet::new());
        let storing = Storing { head, write: Some(id), waiters, is_own: false, complete, quorum };
        self.store(slot, name, storing, now, out);
    }

    fn store(&mut self, slot: SlotId, name: &EntryName, storing: Storing, now: TimerInstant, out: &mut Out) {
        let Some(reign) = self.reigns.get_mut(&slot) else { return };
        let rank = storing.head.rank();
        let mark = reign.unsettled.entry(name.clone()).or_insert_with(|| {
            self.unsettled_count += 1;
            rank
        });
        *mark = rank.max(*mark);
        reign.keys.entry(name.clone()).or_default().state = KeyState::Storing(storing);
        self.store_now(slot, name, now, out);
    }

    /// Sends what is on its way to those who have not stored it.
    fn store_now(&mut self, slot: SlotId, name: &EntryName, now: TimerInstant, out: &mut Out) {
        let Some(reign) = self.reigns.get(&slot) else { return };
        let Some(KeyState::Storing(storing)) = reign.keys.get(name).map(|key| &key.state) else { return };
        for replica in self.bootstrap.replicas(slot) {
            if !storing.complete.contains(replica) {
                let (name, head) = (name.clone(), storing.head.clone());
                let message = ObjectMessage::Store { slot, epoch: reign.epoch, name, head };
                out.outcome.send.push((replica.clone(), message));
            }
        }
        self.alarms.set(&Alarm::Store(name.clone()), now + self.config.resend_interval);
    }

    pub(super) fn store_again(&mut self, name: &EntryName, now: TimerInstant, out: &mut Out) {
        self.counters.resends += 1;
        self.store_now(self.slot_of(name), name, now, out);
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn take_stored(
        &mut self,
        from: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        name: &EntryName,
        rank: HeadRank,
        is_complete: bool,
        now: TimerInstant,
        out: &mut Out,
    ) {
        if !self.is_replica(slot, from) {
            return;
        }
        let Some(reign) = self.reigns.get_mut(&slot).filter(|reign| reign.epoch == epoch) else { return };
        if is_complete {
            self.healing.take_stored(from, name, rank);
        }
        let Some(key) = reign.keys.get_mut(name) else { return self.repaired(name, out) };
        if let KeyState::Storing(storing) = &mut key.state
            && storing.head.rank() == rank
        {
            storing.is_own |= *from == self.own;
            if is_complete {
                storing.complete.insert(from.clone());
            }
            if storing.is_own && storing.complete.len() >= storing.quorum {
                self.settled(slot, name, now, out);
            } else {
                self.give_up_unwanted(slot, name, now, out);
            }
        }
        self.repaired(name, out);
    }

    /// Sends a head no longer that nobody waits for, once the own disk has it: it may come to light from there at any time, and
    /// whoever were told before what it replaces would be contradicted by a listing.
    fn give_up_unwanted(&mut self, slot: SlotId, name: &EntryName, now: TimerInstant, out: &mut Out) {
        let Some(key) = self.reigns.get_mut(&slot).and_then(|reign| reign.keys.get_mut(name)) else { return };
        if let KeyState::Storing(storing) = &key.state
            && storing.is_own
            && storing.write.is_none()
            && storing.waiters.is_empty()
        {
            key.state = KeyState::Idle;
            self.alarms.clear(&Alarm::Store(name.clone()));
            // Whoever waits behind it has a time of its own.
            self.advance(slot, name, now, out);
        }
    }

    /// What was on its way has come to a majority.
    fn settled(&mut self, slot: SlotId, name: &EntryName, now: TimerInstant, out: &mut Out) {
        self.alarms.clear(&Alarm::Store(name.clone()));
        let Some(reign) = self.reigns.get_mut(&slot) else { return };
        let Some(key) = reign.keys.get_mut(name) else { return };
        let KeyState::Storing(storing) = core::mem::take(&mut key.state) else { return };
        // What was sent before and counts more may still come to light; then it has to be settled itself.
        if reign.unsettled.get(name).is_some_and(|mark| *mark <= storing.head.rank()) {
            reign.unsettled.remove(name);
            self.unsettled_count -= 1;
        }
        if let Some(id) = storing.write {
            self.answer(id, Ok(EntryAnswer::Written(storing.head.tag)), out);
        }
        self.resolve(slot, name, Some(&storing.head), storing.waiters, now, out);
    }

    /// The time of a request is over.
    pub(super) fn expire(&mut self, id: u64, now: TimerInstant, out: &mut Out) {
        let mut error = EntryError::Expired;
        let waiting: Vec<(SlotId, EntryName)> = match self.requests.get(&id) {
            None => return,
            Some(Open::Entry(entry)) => {
                if entry.is_sent {
                    error = EntryError::Indeterminate;
                }
                alloc::vec![(entry.slot, entry.name.clone())]
            }
            Some(Open::Listing { slots, .. }) => {
                let reigns = slots.iter().filter_map(|slot| Some((*slot, self.reigns.get(slot)?)));
                reigns
                    .flat_map(|(slot, reign)| reign.keys.keys().map(move |name| (slot, name.clone())))
                    .collect()
            }
        };
        self.answer(id, Err(error), out);
        for reign in self.reigns.values_mut().filter(|reign| !reign.awaiting.is_empty()) {
            reign.awaiting.retain(|awaiting| awaiting.id != id);
        }
        for (slot, name) in waiting {
            self.leave_queue(slot, &name, id, now, out);
        }
    }

    /// Nobody waits for request `id` any more.
    fn leave_queue(&mut self, slot: SlotId, name: &EntryName, id: u64, now: TimerInstant, out: &mut Out) {
        let Some(key) = self.reigns.get_mut(&slot).and_then(|reign| reign.keys.get_mut(name)) else { return };
        let is_other = |waiter: &Waiter| *waiter != Waiter::Request(id) && *waiter != Waiter::Listing(id);
        key.queue.retain(is_other);
        match &mut key.state {
            KeyState::Idle => {}
            KeyState::Loading(waiters) => waiters.retain(|(waiter, _)| is_other(waiter)),
            KeyState::Storing(storing) => {
                storing.waiters.retain(|(waiter, _)| is_other(waiter));
                storing.write.take_if(|write| *write == id);
                self.give_up_unwanted(slot, name, now, out);
            }
        }
    }

    pub(super) fn answer(&mut self, id: u64, answer: Result<EntryAnswer, EntryError>, out: &mut Out) {
        if self.requests.remove(&id).is_none() {
            return;
        }
        self.alarms.clear(&Alarm::Request(id));
        let counters = &mut self.counters;
        *match &answer {
            Ok(EntryAnswer::Found(_)) => &mut counters.found,
            Ok(EntryAnswer::Written(_)) => &mut counters.written,
            Ok(EntryAnswer::NothingDeleted) => &mut counters.nothing_deleted,
            Ok(EntryAnswer::Refused(_)) => &mut counters.refused,
            Ok(EntryAnswer::Settled) => &mut counters.settled,
            Err(EntryError::NotPrimary { .. }) => &mut counters.not_primary,
            Err(EntryError::Expired) => &mut counters.expired,
            Err(EntryError::Indeterminate) => &mut counters.indeterminate,
            Err(EntryError::TooManyRequests) => &mut counters.too_many,
        } += 1;
        out.outcome.answers.push((id, answer));
    }

    fn is_looking(&self, waiter: Waiter) -> bool {
        is_looking_in(&self.requests, waiter)
    }
}

/// What is to be written.
struct Draft {
    is_deleted: bool,
    etag: alloc::sync::Arc<str>,
    content: bytes::Bytes,
}

/// Whether a waiter only wants to see what is there, so that many can look at once.
fn is_looking_in(requests: &alloc::collections::BTreeMap<u64, Open>, waiter: Waiter) -> bool {
    match waiter {
        Waiter::Listing(_) | Waiter::Heal => true,
        Waiter::Request(id) => match requests.get(&id) {
            Some(Open::Entry(entry)) => matches!(entry.operation, EntryOperation::Read),
            _ => true,
        },
    }
}
