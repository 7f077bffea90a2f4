//! Elections: who stands, who grants, who serves, and who hands over.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use super::super::candidacy::Candidacy;
use super::super::id::{SlotEpoch, SlotId};
use super::super::message::{Grant, Refusal, RefusalReason};
use super::super::record::{ElectionCause, SlotRecord, SlotState};
use super::super::reign::{Head, Reign, ReignPhase, VALUE_BYTES_MAX};
use super::{Out, Slot, SlotEvent, SlotRegistry, Standing};
use crate::id::NodeId;
use crate::time::TimerInstant;

impl SlotRegistry {
    /// Why the primary of `slot` is missing, if it is.
    fn missing(&self, slot: SlotId, now: TimerInstant) -> Option<ElectionCause> {
        let kept = self.slots.get(&slot)?;
        let Some(record) = self.map.record(slot) else { return Some(ElectionCause::First) };
        if record.primary == self.own.node {
            return kept.reign.is_none().then_some(ElectionCause::Renewed);
        }
        match self.standing(&record.primary) {
            Standing::Suspect => Some(ElectionCause::PrimarySuspect),
            Standing::Failed => Some(ElectionCause::PrimaryFailed),
            Standing::Leaving => Some(ElectionCause::PrimaryLeaving),
            Standing::Alive | Standing::Unknown => {
                let is_silent = now >= kept.claimed_at + self.bootstrap.pace.suspect_timeout;
                is_silent.then_some(ElectionCause::PrimarySilent)
            }
        }
    }

    pub(super) fn reconsider_all(&mut self, now: TimerInstant, out: &mut Out) {
        let slots: Vec<SlotId> = self.slots.keys().copied().collect();
        for slot in slots {
            self.reconsider(slot, now, out);
        }
    }

    /// Sets the alarm at which this node asks itself whether it should stand for `slot`.
    pub(super) fn reconsider(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let Some(kept) = self.slots.get(&slot) else { return };
        if self.is_leaving
            || !kept.learning_from.is_empty()
            || kept.reign.is_some()
            || kept.candidacy.is_some()
        {
            self.campaigns.clear(&slot);
            return;
        }
        let delay = self.campaign_delay(slot, out);
        let claimed_at = self.slots[&slot].claimed_at;
        let at = match self.missing(slot, now) {
            None => claimed_at + self.bootstrap.pace.suspect_timeout + delay,
            // An alarm that is set already has waited for its turn.
            Some(_) => match self.campaigns.get(&slot) {
                Some(at) if at <= now + delay => return,
                _ => now + delay,
            },
        };
        self.campaigns.set(&slot, at);
    }

    /// How long this node leaves the others the way: by its rank among those who remain, longer after each failure.
    pub(super) fn campaign_delay(&mut self, slot: SlotId, out: &mut Out) -> Duration {
        let primary = self.map.record(slot).map(|record| &record.primary);
        let is_primary = primary == Some(&self.own.node);
        let mut remaining =
            self.bootstrap.replicas(slot).filter(|replica| is_primary || primary != Some(*replica));
        let rank = match remaining.position(|replica| *replica == self.own.node) {
            Some(rank) if !is_primary => u32::try_from(rank).unwrap_or(u32::MAX),
            _ => 0,
        };
        let attempts = self.slots.get(&slot).map_or(0, |kept| kept.attempts);
        if rank == 0 && attempts == 0 {
            return Duration::ZERO;
        }
        let step = self.config.rank_delay;
        let jitter_max = u64::try_from(step.as_nanos() / 2).unwrap_or(u64::MAX);
        let rng = &mut self.rng;
        let jitter = *out.jitter.get_or_insert_with(|| Duration::from_nanos(rng.u64(..=jitter_max)));
        // Without a spread of their own, two candidates that failed together would fail together again.
        let spread = if attempts == 0 { Duration::ZERO } else { jitter * 2u32.pow(attempts.min(4)) };
        step * rank + jitter + spread
    }

    pub(super) fn campaign_if_missing(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        if self.is_leaving || !self.slots.get(&slot).is_some_and(Slot::is_free) {
            return;
        }
        match self.missing(slot, now) {
            Some(cause) => self.sound(slot, cause, now, out),
            None => self.reconsider(slot, now, out),
        }
    }

    /// Asks the others whether they would grant the next epoch.
    fn sound(&mut self, slot: SlotId, cause: ElectionCause, now: TimerInstant, out: &mut Out) {
        let others = self.other_replicas(slot);
        let own = self.own.node.clone();
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        let epoch = kept.seen.max(kept.replica.promised()).next();
        kept.sounding = Some((epoch, BTreeSet::from([own.clone()])));
        kept.cause = cause;
        kept.refused_by.clear();
        self.campaigns.clear(&slot);
        self.rounds.set(&slot, now + self.config.round_timeout);
        for other in others {
            out.to(&other).soundings.push((slot, epoch));
        }
        self.take_willing(&own, slot, epoch, now, out);
    }

    pub(super) fn take_sounding(
        &mut self,
        asker: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        now: TimerInstant,
        out: &mut Out,
    ) {
        match self.why_not(asker, slot, epoch, false, now) {
            Some(None) => out.to(asker).willing.push((slot, epoch)),
            Some(Some(refusal)) => out.to(asker).refused.push(refusal),
            None => {}
        }
    }

    pub(super) fn take_willing(
        &mut self,
        by: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let majority = self.bootstrap.majority();
        let is_replica = self.bootstrap.replicas(slot).any(|replica| replica == by);
        let Some(kept) = self.slots.get_mut(&slot).filter(|_| is_replica) else { return };
        let Some((sounded, willing)) = &mut kept.sounding else { return };
        if *sounded != epoch {
            return;
        }
        willing.insert(by.clone());
        if willing.len() >= majority {
            let cause = kept.cause;
            self.stand(slot, cause, false, now, out);
        }
    }

    /// Whether this node would refuse `candidate` the epoch; `None` when the two have nothing to do with each other.
    fn why_not(
        &self,
        candidate: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        endorsed: bool,
        now: TimerInstant,
    ) -> Option<Option<Refusal>> {
        let kept = self.slots.get(&slot)?;
        self.bootstrap.replicas(slot).find(|replica| *replica == candidate)?;
        let is_primary = self.map.record(slot).is_some_and(|record| record.primary == *candidate);
        let promised = kept.replica.promised();
        let reason = if !kept.learning_from.is_empty() {
            RefusalReason::Learning
        } else if endorsed && kept.reign.as_ref().is_some_and(|reign| !reign.is_settled()) {
            RefusalReason::Busy
        } else if !endorsed && !is_primary && self.missing(slot, now).is_none() {
            RefusalReason::PrimaryAlive
        } else if kept.replica.clone().grant(epoch, candidate).is_err() {
            RefusalReason::Promised
        } else {
            return Some(None);
        };
        Some(Some(Refusal { slot, asked: epoch, promised, reason }))
    }

    /// Promises the next epoch to itself and asks the others for it.
    fn stand(
        &mut self,
        slot: SlotId,
        cause: ElectionCause,
        endorsed: bool,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let others = self.other_replicas(slot);
        let own = self.own.node.clone();
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        let epoch = kept.seen.max(kept.replica.promised()).next();
        kept.seen = epoch;
        let promised = kept.replica.grant(epoch, &own);
        assert!(promised.is_ok(), "an epoch above all promised ones was refused");
        out.promise(slot, &kept.replica);
        kept.sounding = None;
        kept.candidacy = Some(Candidacy::new(epoch, &own, kept.replica.rank()));
        kept.cause = cause;
        kept.refused_by.clear();
        self.campaigns.clear(&slot);
        self.rounds.set(&slot, now + self.config.round_timeout);
        self.counters.campaigns += 1;
        out.events.push(SlotEvent::CampaignStarted { slot, epoch, cause });
        for other in others {
            let batch = out.to(&other);
            if endorsed { &mut batch.endorsed_asks } else { &mut batch.asks }.push((slot, epoch));
        }
        self.win_if_granted(slot, now, out);
    }

    pub(super) fn take_ask(
        &mut self,
        candidate: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        endorsed: bool,
        now: TimerInstant,
        out: &mut Out,
    ) {
        if let Some(kept) = self.slots.get_mut(&slot) {
            kept.seen = kept.seen.max(epoch);
        }
        match self.why_not(candidate, slot, epoch, endorsed, now) {
            Some(None) => {}
            Some(Some(refusal)) => {
                self.counters.refusals += 1;
                out.to(candidate).refused.push(refusal);
                return;
            }
            None => return,
        }
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        let granted = kept.replica.grant(epoch, candidate);
        assert!(granted.is_ok(), "what would be granted was refused");
        out.promise(slot, &kept.replica);
        let stored = kept.replica.rank();
        out.to(candidate).granted.push(Grant { slot, epoch, stored });
        self.counters.grants += 1;
        self.step_down(slot, epoch, now, out);
        if let Some(kept) = self.slots.get_mut(&slot) {
            // The candidate gets the time to become the primary before this node stands against it.
            let is_outbid = kept.candidacy.as_ref().is_some_and(|candidacy| candidacy.epoch() < epoch);
            if is_outbid || kept.sounding.is_some() {
                (kept.candidacy, kept.sounding) = (None, None);
                self.rounds.clear(&slot);
            }
            let at = now + self.config.round_timeout + self.campaign_delay(slot, out);
            if !self.is_leaving {
                self.campaigns.set(&slot, at);
            }
        }
    }

    pub(super) fn take_grant(&mut self, granter: &NodeId, grant: Grant, now: TimerInstant, out: &mut Out) {
        let is_replica = self.bootstrap.replicas(grant.slot).any(|replica| replica == granter);
        let Some(kept) = self.slots.get_mut(&grant.slot).filter(|_| is_replica) else { return };
        if let Some(candidacy) = &mut kept.candidacy {
            candidacy.handle_grant(granter, grant.epoch, grant.stored);
            kept.refused_by.remove(granter);
            self.win_if_granted(grant.slot, now, out);
        }
    }

    pub(super) fn take_refusal(&mut self, by: &NodeId, refusal: Refusal, now: TimerInstant, out: &mut Out) {
        let (count, majority) = (self.bootstrap.replica_count(), self.bootstrap.majority());
        let Some(kept) = self.slots.get_mut(&refusal.slot) else { return };
        kept.seen = kept.seen.max(refusal.promised);
        let asked = match (&kept.candidacy, &kept.sounding) {
            (Some(candidacy), _) => Some(candidacy.epoch()),
            (None, Some((epoch, _))) => Some(*epoch),
            (None, None) => None,
        };
        if asked != Some(refusal.asked) {
            return;
        }
        kept.refused_by.insert(by.clone(), refusal.reason);
        if kept.refused_by.len() > count - majority {
            self.give_up(refusal.slot, now, out);
        }
    }

    /// A candidacy came to nothing. It is tried again later, and with a later epoch.
    fn give_up(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        self.rounds.clear(&slot);
        if let Some(kept) = self.slots.get_mut(&slot) {
            (kept.candidacy, kept.sounding) = (None, None);
            kept.attempts = kept.attempts.saturating_add(1);
        }
        self.campaigns.clear(&slot);
        self.reconsider(slot, now, out);
    }

    fn win_if_granted(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let majority = self.bootstrap.majority();
        // A primary that recovers still has its candidacy, and later grants change nothing any more.
        let Some(kept) = self.slots.get_mut(&slot).filter(|kept| kept.reign.is_none()) else { return };
        let Some(candidacy) = kept.candidacy.as_ref().filter(|candidacy| candidacy.is_won(majority)) else {
            return;
        };
        if kept.replica.promised() != candidacy.epoch() {
            // This node has meanwhile promised a later epoch itself.
            self.give_up(slot, now, out);
            return;
        }
        let reign = Reign::new(candidacy, &kept.replica);
        if let ReignPhase::Recovering { from, .. } = reign.phase() {
            out.to(from).ask_heads.push((slot, reign.epoch()));
            self.rounds.set(&slot, now + self.config.round_timeout);
        }
        kept.reign = Some(reign);
        self.serve_if_recovered(slot, now, out);
    }

    /// Publishes the record of a primary that lacks nothing.
    fn serve_if_recovered(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let updated_at = self.stamp(now);
        let own = self.own.node.clone();
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        let Some(reign) = kept.reign.as_mut().filter(|reign| reign.is_serving()) else { return };
        let Some(candidacy) = kept.candidacy.take() else { return };
        let (epoch, cause) = (reign.epoch(), kept.cause);
        let granted_by = candidacy.granters().iter().cloned().collect();
        // What an earlier primary wrote may be on a minority only.
        let inherited = kept.replica.head().cloned().map(|head| reign.spread(&own, head));
        if let Some(head) = &inherited {
            kept.replica.store(head);
            out.keep(slot, head);
        }
        kept.attempts = 0;
        kept.claimed_at = now;
        self.rounds.clear(&slot);
        self.counters.elections += 1;
        let replicas = self.bootstrap.replicas(slot).cloned().collect();
        let state = SlotState::Stable;
        let record = SlotRecord { slot, epoch, primary: own, replicas, state, updated_at, granted_by, cause };
        out.events.push(SlotEvent::Elected { slot, epoch, cause });
        self.adopt_record(record, now, out);
        for other in self.other_replicas(slot) {
            out.to(&other).claims.push((slot, epoch));
        }
        self.spread_now(slot, now, out);
        if let Some(head) = inherited {
            let own = self.own.node.clone();
            self.take_stored(&own, slot, epoch, head.tag, now, out);
        }
        self.next_request_of(slot, now, out);
    }

    pub(super) fn tell_heads(&self, peer: &NodeId, slots: Vec<(SlotId, SlotEpoch)>, out: &mut Out) {
        // Only to the primary that this node has promised to: what it tells is then final for all earlier epochs, and
        // nothing of a later one is in it.
        let mut heads: Vec<(SlotId, Head)> = Vec::new();
        for (slot, epoch) in slots {
            let Some(replica) = self.slots.get(&slot).map(|kept| &kept.replica) else { continue };
            let promised = replica.promised();
            if promised > epoch {
                out.send.push((peer.clone(), super::SlotMessage::Stale { slot, epoch, promised }));
            } else if promised == epoch {
                heads.extend(replica.head().map(|head| (slot, head.clone())));
            }
        }
        // A few at a time, so that no message is too long.
        for some in heads.chunks(HEADS_PER_MESSAGE_MAX) {
            let heads = some.to_vec();
            out.send.push((peer.clone(), super::SlotMessage::Heads { heads }));
        }
    }

    pub(super) fn take_head(&mut self, slot: SlotId, head: &Head, now: TimerInstant, out: &mut Out) {
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        let Some(reign) = kept.reign.as_mut().filter(|reign| !reign.is_serving()) else { return };
        if head.accepted >= reign.epoch() || head.value.len() > VALUE_BYTES_MAX {
            return;
        }
        if kept.replica.store(head) {
            out.keep(slot, head);
        }
        if reign.handle_recovered(&kept.replica) {
            self.serve_if_recovered(slot, now, out);
        }
    }

    /// A primary wants this node to take `slot` over.
    pub(super) fn take_over(
        &mut self,
        from: &NodeId,
        slot: SlotId,
        epoch: SlotEpoch,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let record = self.map.record(slot);
        let is_by_primary = record.is_some_and(|record| record.primary == *from && record.epoch == epoch);
        let is_free = self.slots.get(&slot).is_some_and(|kept| {
            kept.learning_from.is_empty() && kept.reign.is_none() && kept.candidacy.is_none()
        });
        if is_by_primary && is_free && !self.is_leaving {
            self.stand(slot, ElectionCause::HandedOver, true, now, out);
        }
    }

    /// Offers slots to others: all of them when this node leaves, else those whose first replica is back.
    pub(super) fn hand_over(&mut self, now: TimerInstant, out: &mut Out) {
        let mut offers = Vec::new();
        for (slot, kept) in &self.slots {
            let Some(reign) = kept.reign.as_ref().filter(|reign| reign.is_serving() && reign.is_settled())
            else {
                continue;
            };
            if !self.is_leaving && kept.offered_at.is_some_and(|at| now < at + self.config.rebalance_delay) {
                continue;
            }
            let is_fit = |node: &&NodeId| **node != self.own.node && self.standing(node) == Standing::Alive;
            let mut replicas = self.bootstrap.replicas(*slot);
            let to = if self.is_leaving {
                replicas.find(is_fit)
            } else {
                let is_back = |node: &&NodeId| now >= self.nodes[*node].since + self.config.rebalance_delay;
                replicas.next().filter(is_fit).filter(is_back)
            };
            if let Some(to) = to {
                offers.push((to.clone(), *slot, reign.epoch()));
            }
        }
        for (to, slot, epoch) in offers {
            out.to(&to).hand_over.push((slot, epoch));
            let resume_at = now + self.offer_patience();
            if let Some(kept) = self.slots.get_mut(&slot) {
                kept.offered_at = Some(now);
            }
            let is_sooner = self.rounds.get(&slot).is_none_or(|at| resume_at < at);
            if is_sooner {
                self.rounds.set(&slot, resume_at);
            }
        }
        if self.is_leaving {
            self.next_claims = self.next_claims.min(now + self.config.round_timeout);
        }
    }

    /// How long requests wait for another node to take an offered slot: a few round trips with a disk write.
    pub(super) fn offer_patience(&self) -> Duration {
        self.config.rank_delay / 2
    }

    pub(super) fn take_claims(
        &mut self,
        peer: &NodeId,
        claims: Vec<(SlotId, SlotEpoch)>,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let mut is_behind = false;
        for (slot, epoch) in claims {
            let known = self.map.record(slot).map_or(SlotEpoch::ZERO, |record| record.epoch);
            is_behind |= epoch > known;
            let Some(kept) = self.slots.get_mut(&slot) else { continue };
            kept.seen = kept.seen.max(epoch);
            let promised = kept.replica.promised();
            if epoch < promised && epoch == known {
                // Somebody asked for a later epoch and did not get it. The primary would find out with its next write.
                out.send.push((peer.clone(), super::SlotMessage::Stale { slot, epoch, promised }));
            }
            if epoch >= known {
                kept.claimed_at = now;
                self.reconsider(slot, now, out);
            }
        }
        if is_behind {
            self.send_digest(peer, out);
        }
    }

    pub(super) fn send_claims(&mut self, out: &mut Out) {
        let reigning = self.slots.iter().filter_map(|(slot, kept)| {
            let reign = kept.reign.as_ref().filter(|reign| reign.is_serving())?;
            Some((*slot, reign.epoch()))
        });
        for (slot, epoch) in reigning.collect::<Vec<_>>() {
            for other in self.other_replicas(slot) {
                out.to(&other).claims.push((slot, epoch));
            }
        }
    }

    pub(super) fn take_stale(
        &mut self,
        slot: SlotId,
        epoch: SlotEpoch,
        promised: SlotEpoch,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        kept.seen = kept.seen.max(promised);
        if promised > epoch && kept.reign.as_ref().is_some_and(|reign| reign.epoch() == epoch) {
            self.step_down(slot, promised, now, out);
        }
    }

    /// Ends the reign over `slot` if it is of an epoch before `by`.
    pub(super) fn step_down(&mut self, slot: SlotId, by: SlotEpoch, now: TimerInstant, out: &mut Out) {
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        let Some(epoch) = kept.reign.as_ref().map(Reign::epoch).filter(|epoch| *epoch < by) else { return };
        let was_serving = kept.reign.take().is_some_and(|reign| reign.is_serving());
        kept.candidacy = None;
        self.rounds.clear(&slot);
        if was_serving {
            self.counters.step_downs += 1;
            out.events.push(SlotEvent::SteppedDown { slot, epoch, by });
        }
        self.fail_requests(slot, out);
        self.reconsider(slot, now, out);
    }

    /// Something of `slot` was not answered in time.
    pub(super) fn repeat_round(&mut self, slot: SlotId, now: TimerInstant, out: &mut Out) {
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        match &kept.reign {
            Some(reign) if reign.is_serving() => {
                self.spread_now(slot, now, out);
                self.confirm_now(slot, now, out);
                self.next_request_of(slot, now, out);
            }
            Some(_) => {
                // Whoever has the newest head does not tell it. Another majority may have it too.
                kept.reign = None;
                self.give_up(slot, now, out);
            }
            None if kept.candidacy.is_some() || kept.sounding.is_some() => self.give_up(slot, now, out),
            None => {}
        }
    }

    /// Takes a record into the map, with all that follows from it.
    pub(super) fn adopt_record(&mut self, record: SlotRecord, now: TimerInstant, out: &mut Out) {
        let (slot, epoch) = (record.slot, record.epoch);
        let is_own = record.primary == self.own.node;
        if self.hlc.observe(record.updated_at, self.unix_millis(now)).is_err() {
            self.counters.clocks_ahead += 1;
        }
        match self.map.merge(record.clone()) {
            Ok(false) => return,
            Ok(true) => {}
            Err(conflict) => {
                self.counters.conflicts += 1;
                out.events.push(SlotEvent::Conflict(conflict));
                // Nobody writes in an epoch that two were granted. Only a new vote can tell who serves.
                self.step_down(slot, epoch.next(), now, out);
                if self.map.record(slot) != Some(&record) {
                    // To pass it on would make everyone who knows better do the same, for ever.
                    return;
                }
            }
        }
        out.persist.push(super::RegistryOp::Record(record.clone()));
        out.gossip_slots.push(record);
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        kept.seen = kept.seen.max(epoch);
        kept.claimed_at = now;
        if !is_own {
            kept.attempts = 0;
            kept.sounding = None;
            if kept.reign.is_none() && kept.candidacy.as_ref().is_some_and(|one| one.epoch() <= epoch) {
                kept.candidacy = None;
                self.rounds.clear(&slot);
            }
            self.step_down(slot, epoch, now, out);
        }
        self.campaigns.clear(&slot);
        self.reconsider(slot, now, out);
    }
}

/// Most heads in one message, each at most the length of a value.
const HEADS_PER_MESSAGE_MAX: usize = 64;
