//! Requests: a write is stored by a quorum, a read is of what a quorum has and confirmed by a majority.
//!
//! One request of a slot is under way at a time; the others wait in order. That is all the concurrency a register needs,
//! and it makes every answer the state between two writes.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::time::Duration;

use super::super::id::{SlotEpoch, SlotId, Tag};
use super::super::message::SlotMessage;
use super::super::reign::{Head, Reign, VALUE_BYTES_MAX};
use super::outcome::Request;
use super::{Answer, Out, RegistryOutcome, RequestError, RequestId, SlotRegistry, Waiting};
use crate::id::NodeId;
use crate::time::TimerInstant;

/// The request of a slot that is under way.
#[derive(Debug)]
pub(super) enum InFlight {
    /// A write, until a quorum has stored it.
    Storing { request: RequestId, tag: Tag },
    /// An answer that is known, until a majority confirms that nobody else could know better.
    Confirming { request: RequestId, nonce: u64, by: BTreeSet<NodeId>, answer: Answer },
}

impl InFlight {
    const fn request(&self) -> RequestId {
        match self {
            Self::Storing { request, .. } | Self::Confirming { request, .. } => *request,
        }
    }
}

impl SlotRegistry {
    /// Writes `value` to the register of `slot`. With `expected`, only if the tag there is that one, or if there is none for
    /// `Some(None)`. The answer comes with the outcome of this or of a later call.
    ///
    /// # Errors
    /// Refused at once. Nothing was written.
    pub fn write(
        &mut self,
        slot: SlotId,
        expected: Option<Option<Tag>>,
        value: Arc<[u8]>,
        patience: Duration,
        now: TimerInstant,
    ) -> Result<(RequestId, RegistryOutcome), RequestError> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(RequestError::TooLong { bytes: value.len() });
        }
        self.begin(slot, Request::Write { expected, value }, patience, now)
    }

    /// Reads the register of `slot`. The answer comes with the outcome of this or of a later call.
    ///
    /// # Errors
    /// Refused at once.
    pub fn read(
        &mut self,
        slot: SlotId,
        patience: Duration,
        now: TimerInstant,
    ) -> Result<(RequestId, RegistryOutcome), RequestError> {
        self.begin(slot, Request::Read, patience, now)
    }

    fn begin(
        &mut self,
        slot: SlotId,
        request: Request,
        patience: Duration,
        now: TimerInstant,
    ) -> Result<(RequestId, RegistryOutcome), RequestError> {
        let total_slots = self.bootstrap.replication.total_slots;
        let route = self.route(slot).ok_or(RequestError::NoSuchSlot { slot, total_slots })?;
        let kept = self.slots.get_mut(&slot).filter(|kept| kept.reign.is_some());
        let Some(kept) = kept else { return Err(RequestError::NotPrimary { slot, route }) };
        if kept.queue.len() >= self.config.requests_per_slot_max {
            return Err(RequestError::Busy { slot });
        }
        self.next_request += 1;
        let id = RequestId(self.next_request);
        kept.queue.push_back(id);
        self.requests.insert(id, Waiting { slot, request });
        self.expiries.set(&id, now + patience);
        let mut out = Out::default();
        self.next_request_of(slot, now, &mut out);
        Ok((id, self.finish(out)))
    }

    /// Begins the next request of `slot`, if none is under way and all that was written is on a quorum.
    pub(super) fn next_request_of(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let own = self.own.node.clone();
        let offer_patience = self.offer_patience();
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        let Some(reign) = &mut kept.reign else { return };
        if kept.offered_at.is_some_and(|at| now < at + offer_patience) {
            return;
        }
        if kept.in_flight.is_some() || !reign.is_serving() || !reign.is_settled() {
            return;
        }
        let Some(id) = kept.queue.pop_front() else { return };
        let Some(waiting) = self.requests.get(&id) else { return };
        let there = kept.replica.tag();
        let answer = match &waiting.request {
            Request::Write { expected, value } if expected.is_none_or(|expected| expected == there) => {
                let head = reign.begin_write(&own, Arc::clone(value));
                let is_newer = kept.replica.store(&head);
                assert!(is_newer, "the write of a primary is not the newest it knows");
                out.keep(slot, &head);
                kept.in_flight = Some(InFlight::Storing { request: id, tag: head.tag });
                self.spread_now(slot, now, out);
                self.take_stored(&own, slot, head.tag.epoch, head.tag, now, out);
                return;
            }
            Request::Write { .. } => Answer::Differs { head: kept.replica.head().cloned() },
            Request::Read => Answer::Read { head: kept.replica.head().cloned() },
        };
        let nonce = self.rng.u64(..);
        kept.in_flight = Some(InFlight::Confirming { request: id, nonce, by: BTreeSet::new(), answer });
        self.confirm_now(slot, now, out);
        let epoch = self.slots.get(&slot).and_then(|kept| kept.reign.as_ref()).map(Reign::epoch);
        if let Some(epoch) = epoch {
            self.take_confirmed(&own, slot, epoch, nonce, now, out);
        }
    }

    /// Sends what is spreading to those who have not stored it, and sets the alarm at which it is sent again.
    pub(super) fn spread_now(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let Some(reign) = self.slots.get(&slot).and_then(|kept| kept.reign.as_ref()) else { return };
        let Some((head, lacking)) = reign.spreading(self.bootstrap.replicas(slot)) else { return };
        let epoch = reign.epoch();
        let mut is_spreading = false;
        for replica in lacking {
            is_spreading = true;
            let head = head.clone();
            out.send.push((replica.clone(), SlotMessage::Store { slot, epoch, head }));
        }
        if is_spreading {
            // What is on a quorum can wait for those who are away.
            let pause = if reign.is_settled() { self.claims_interval() } else { self.config.round_timeout };
            self.rounds.set(&slot, now + pause);
        }
    }

    /// Asks whether the epoch still lasts, for an answer that waits for it.
    pub(super) fn confirm_now(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let Some(kept) = self.slots.get(&slot) else { return };
        let (Some(reign), Some(InFlight::Confirming { nonce, by, .. })) = (&kept.reign, &kept.in_flight)
        else {
            return;
        };
        let (epoch, nonce) = (reign.epoch(), *nonce);
        for replica in self.bootstrap.replicas(slot) {
            if *replica != self.own.node && !by.contains(replica) {
                out.send.push((replica.clone(), SlotMessage::Confirm { slot, epoch, nonce }));
            }
        }
        self.rounds.set(&slot, now + self.config.round_timeout);
    }

    pub(super) fn take_store(
        &mut self,
        primary: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        head: &Head,
        now: TimerInstant,
        out: &mut Out,
    ) {
        if !self.take_order(primary, slot, epoch, now, out) || head.value.len() > VALUE_BYTES_MAX {
            return;
        }
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        let head = Head { accepted: epoch, ..head.clone() };
        if kept.replica.store(&head) {
            out.keep(slot, &head);
        }
        out.send.push((primary.clone(), SlotMessage::Stored { slot, epoch, tag: head.tag }));
    }

    pub(super) fn take_confirm(
        &mut self,
        primary: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        nonce: u64,
        now: TimerInstant,
        out: &mut Out,
    ) {
        if self.take_order(primary, slot, epoch, now, out) {
            out.send.push((primary.clone(), SlotMessage::Confirmed { slot, epoch, nonce }));
        }
    }

    /// Whether this node follows the primary of `epoch`; tells it when it does not.
    fn take_order(
        &mut self,
        primary: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        now: TimerInstant,
        out: &mut Out,
    ) -> bool {
        let is_replica = self.bootstrap.replicas(slot).any(|replica| replica == primary);
        let Some(kept) = self.slots.get_mut(&slot).filter(|_| is_replica) else { return false };
        if !kept.learning_from.is_empty() {
            return false;
        }
        match kept.replica.accept(epoch) {
            Ok(is_raised) => {
                if is_raised {
                    out.promise(slot, &kept.replica);
                    kept.seen = kept.seen.max(epoch);
                    if kept.candidacy.as_ref().is_some_and(|candidacy| candidacy.epoch() < epoch) {
                        kept.candidacy = None;
                        self.rounds.clear(&slot);
                        if !self.is_leaving {
                            // Should its record never come, because it is gone as well.
                            let delay = self.config.round_timeout + self.campaign_delay(slot, out);
                            self.campaigns.set(&slot, now + delay);
                        }
                    }
                    self.step_down(slot, epoch, now, out);
                }
                if let Some(kept) = self.slots.get_mut(&slot) {
                    kept.claimed_at = now;
                }
                if is_raised {
                    // A candidacy that ended here leaves no alarm behind.
                    self.reconsider(slot, now, out);
                }
                true
            }
            Err(stale) => {
                let promised = stale.promised;
                out.send.push((primary.clone(), SlotMessage::Stale { slot, epoch, promised }));
                false
            }
        }
    }

    pub(super) fn take_stored(
        &mut self,
        replica: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        tag: Tag,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let quorum = self.bootstrap.write_quorum();
        let is_replica = self.bootstrap.replicas(slot).any(|one| one == replica);
        let Some(kept) = self.slots.get_mut(&slot).filter(|_| is_replica) else { return };
        let Some(reign) = kept.reign.as_mut().filter(|reign| reign.epoch() == epoch) else { return };
        if !reign.handle_stored(replica, tag, quorum) {
            return;
        }
        if let Some(InFlight::Storing { request, tag: written }) = kept.in_flight
            && written == tag
        {
            kept.in_flight = None;
            self.answer(request, Ok(Answer::Written { tag }), out);
        }
        self.next_request_of(slot, now, out);
    }

    pub(super) fn take_confirmed(
        &mut self,
        replica: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        nonce: u64,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let majority = self.bootstrap.majority();
        let is_replica = self.bootstrap.replicas(slot).any(|one| one == replica);
        let Some(kept) = self.slots.get_mut(&slot).filter(|_| is_replica) else { return };
        if kept.reign.as_ref().is_none_or(|reign| reign.epoch() != epoch) {
            return;
        }
        let Some(InFlight::Confirming { request, nonce: asked, by, answer }) = &mut kept.in_flight else {
            return;
        };
        if *asked != nonce {
            return;
        }
        by.insert(replica.clone());
        if by.len() >= majority {
            let (request, answer) = (*request, answer.clone());
            kept.in_flight = None;
            self.answer(request, Ok(answer), out);
            self.next_request_of(slot, now, out);
        }
    }

    /// The time of a request is over. Those that wait behind it have theirs.
    pub(super) fn expire(&mut self, request: RequestId, now: TimerInstant, out: &mut Out) {
        let Some(slot) = self.requests.get(&request).map(|waiting| waiting.slot) else { return };
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        kept.queue.retain(|queued| *queued != request);
        let error = match &kept.in_flight {
            Some(InFlight::Storing { request: under_way, .. }) if *under_way == request => {
                RequestError::Indeterminate
            }
            _ => RequestError::TimedOut,
        };
        if kept.in_flight.as_ref().is_some_and(|under_way| under_way.request() == request) {
            kept.in_flight = None;
        }
        self.answer(request, Err(error), out);
        // Whoever waits behind it must not wait for yet another request.
        self.next_request_of(slot, now, out);
    }

    /// Answers everyone who waits for a slot that this node no longer serves.
    pub(super) fn fail_requests(&mut self, slot: SlotId, out: &mut Out) {
        let Some(route) = self.route(slot) else { return };
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        let under_way = kept.in_flight.take();
        let queued = core::mem::take(&mut kept.queue);
        match under_way {
            Some(InFlight::Storing { request, .. }) => {
                self.answer(request, Err(RequestError::Indeterminate), out);
            }
            Some(InFlight::Confirming { request, .. }) => {
                self.answer(request, Err(RequestError::NotPrimary { slot, route: route.clone() }), out);
            }
            None => {}
        }
        for request in queued {
            self.answer(request, Err(RequestError::NotPrimary { slot, route: route.clone() }), out);
        }
    }

    fn answer(&mut self, request: RequestId, answer: Result<Answer, RequestError>, out: &mut Out) {
        self.expiries.clear(&request);
        if self.requests.remove(&request).is_some() {
            out.answers.push((request, answer));
        }
    }
}
