//! The state between start and stop, and everything that happens without a message: evidence, timers, verdicts.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::time::Duration;

use super::rounds::{Round, Rounds};
use super::{MembershipCoordinatorError, MembershipCoordinatorOutcome, MembershipCoordinatorState, Outcome};
use crate::deadline::DeadlineQueue;
use crate::id::{Authority, MemberId, NodeId};
use crate::membership::config::MembershipCoordinatorConfig;
use crate::membership::engine::{GossipEngine, GossipPhase};
use crate::membership::event::{ClusterEvent, MembershipEvent, QuarantineEvent};
use crate::membership::health::LocalHealth;
use crate::membership::heartbeat::HeartbeatRing;
use crate::membership::message::Standing;
use crate::membership::phi::{PhiEffect, PhiFailureDetector};
use crate::membership::quarantine::{QuarantineReason, QuarantineTable};
use crate::membership::record::NodeRecord;
use crate::membership::status::NodeStatus;
use crate::membership::table::{MembershipError, MembershipTable, RecordChange};
use crate::membership::topology::{Member, TopologyWindow};
use crate::time::TimerInstant;

/// A running coordinator.
///
/// Two clocks are used. `now` is the driver's. *Observed* time is the driver's minus the time this node itself was
/// paused: silence and suspicion are measured in it, so that a node that wakes up accuses nobody of its own sleep.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) mode: MembershipCoordinatorState,
    /// This node's identity; a client has one too, but it is in nobody's table.
    pub(super) own: MemberId,
    pub(super) authority: Authority,
    pub(super) config: Arc<MembershipCoordinatorConfig>,
    pub(super) table: MembershipTable,
    pub(super) quarantine: QuarantineTable,
    pub(super) detector: PhiFailureDetector,
    pub(super) engine: GossipEngine,
    pub(super) health: LocalHealth,
    pub(super) ring: HeartbeatRing,
    /// The members that the ring makes this node listen to.
    watched: BTreeSet<NodeId>,
    /// Whether that may have changed in this step.
    ring_changed: bool,
    window: TopologyWindow,
    /// Since when each node is in its state, and when that state runs out. Observed time.
    pub(super) since: BTreeMap<NodeId, TimerInstant>,
    pub(super) timers: DeadlineQueue<NodeId>,
    /// When suspicion last began or ended anywhere. Observed time.
    pub(super) unsettled_at: TimerInstant,
    pub(super) quorum_lost: bool,
    /// How long this node itself was paused in all.
    paused: Duration,
    /// When the driver was asked to call again.
    promised_wake: TimerInstant,
    rounds: Rounds,
    next_heartbeat_at: TimerInstant,
    pub(super) heartbeats_sent: u64,
    pub(super) next_reconnect_at: TimerInstant,
    /// Present until some member has taken us in.
    pub(super) joining: Option<Joining>,
    /// When a node that nobody takes in goes on alone.
    pub(super) form_alone_at: Option<TimerInstant>,
    pub(super) rng: fastrand::Rng,
    pub(super) superseded: bool,
    /// Whether this node announced that it goes.
    leaving: bool,
}

/// The wish to be let in.
#[derive(Clone, Debug)]
pub(super) struct Joining {
    /// Whom to ask, best first.
    pub(super) contacts: Vec<Authority>,
    pub(super) attempts: u32,
    pub(super) next_at: TimerInstant,
    /// Set after yielding to another part of the cluster: only a welcome counts, old acquaintances are ignored.
    pub(super) yielding: bool,
}

impl Run {
    pub(super) fn new(
        mode: MembershipCoordinatorState,
        own: NodeRecord,
        config: Arc<MembershipCoordinatorConfig>,
        seed: u64,
        now: TimerInstant,
    ) -> Self {
        let NodeRecord { member: own, authority, .. } = own;
        let mut rng = fastrand::Rng::with_seed(seed);
        // A random phase keeps nodes that start together from speaking together.
        let phase = |rng: &mut fastrand::Rng, interval: Duration| interval.mul_f64(rng.f64());
        Self {
            table: MembershipTable::new(config.members_max),
            quarantine: QuarantineTable::new(config.members_max),
            detector: detector(&config),
            engine: engine(mode, &own, &authority, &config, rng.u64(..)),
            health: LocalHealth::default(),
            ring: HeartbeatRing::new(&own.node, config.heartbeat_monitors),
            watched: BTreeSet::new(),
            ring_changed: false,
            window: TopologyWindow::new(config.topology_emit_interval, config.eager_delay),
            since: BTreeMap::new(),
            timers: DeadlineQueue::new(),
            unsettled_at: now,
            quorum_lost: false,
            paused: Duration::ZERO,
            promised_wake: now,
            rounds: Rounds::new(
                config.gossip_interval,
                config.eager_delay,
                now + phase(&mut rng, config.gossip_interval),
            ),
            next_heartbeat_at: now + phase(&mut rng, config.heartbeat_interval),
            heartbeats_sent: 0,
            next_reconnect_at: now + config.reconnect_interval,
            joining: None,
            form_alone_at: None,
            superseded: false,
            leaving: false,
            rng,
            mode,
            own,
            authority,
            config,
        }
    }

    /// Runs `action` and turns what it gathered into an outcome, whether it succeeded or was refused.
    pub(super) fn step(
        &mut self,
        now: TimerInstant,
        action: impl FnOnce(&mut Self, &mut MembershipCoordinatorOutcome) -> Result<(), MembershipError>,
    ) -> Outcome {
        self.note_wake(now);
        let mut out = MembershipCoordinatorOutcome::default();
        let result = action(self, &mut out);
        self.finish(now, &mut out);
        match result {
            Ok(()) => Ok(out),
            Err(error) => {
                out.tell(MembershipEvent::Refused(error.clone()), now);
                Err(MembershipCoordinatorError::Membership { error, outcome: Box::new(out) })
            }
        }
    }

    /// The first step of a life.
    pub(super) fn begin(&mut self, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        out.member_events.push(ClusterEvent::Startup { mode: self.mode, observed_at: now });
        let own_authority = self.authority.clone();
        let contacts: Vec<_> =
            self.config.seeds.iter().filter(|seed| **seed != own_authority).cloned().collect();
        self.enter_own(now, out);
        if contacts.is_empty() || !self.config.gossip_enabled {
            // Nobody to ask, or no way to ask: the provider's word is all there is.
            self.become_up(now, out);
        } else {
            self.joining = Some(Joining { contacts, attempts: 0, next_at: now, yielding: false });
            let patience =
                self.config.form_alone_after.filter(|_| self.mode == MembershipCoordinatorState::Member);
            self.form_alone_at = patience.map(|patience| now + patience);
        }
    }

    /// Another detector than this node's own says that `node` is gone. Its next heartbeat refutes that.
    pub(super) fn suspicion(
        &mut self,
        node: &NodeId,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        if *node == self.own.node {
            return Err(MembershipError::NotOneself { node: node.clone() });
        }
        if self.table.record(node).is_none() {
            return Err(MembershipError::UnknownNode { node: node.clone() });
        }
        self.suspect(node, now, out);
        Ok(())
    }

    fn suspect(&mut self, node: &NodeId, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        if self.table.record(node).is_some_and(|record| record.status.is_reachable()) {
            self.change(node, NodeStatus::Suspect, now, out);
            self.tell_accused(node, out);
        }
    }

    pub(super) fn join(
        &mut self,
        member: &MemberId,
        authority: &Authority,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<bool, MembershipError> {
        if self.engine.has_conflict() {
            return Err(MembershipError::UnresolvedConflict);
        }
        if member.node == self.own.node {
            // This node enters its own record; whoever reports it can only repeat it.
            let known = *member == self.own && *authority == self.authority;
            return if known {
                Ok(false)
            } else {
                Err(MembershipError::NotOneself { node: member.node.clone() })
            };
        }
        self.check_quarantine(member, authority, now, out)?;
        let change = self.table.try_join(member, authority)?;
        let joined = change.is_some();
        self.apply(change, now, out);
        Ok(joined)
    }

    pub(super) fn leave(
        &mut self,
        node: &NodeId,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        if self.engine.has_conflict() {
            return Err(MembershipError::UnresolvedConflict);
        }
        let change = self.table.transition(node, NodeStatus::Leaving)?;
        self.apply(change, now, out);
        Ok(())
    }

    pub(super) fn down(
        &mut self,
        node: &NodeId,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        if *node == self.own.node {
            return Err(MembershipError::NotOneself { node: node.clone() });
        }
        // Dead is reached through suspicion only, so both edges must exist before either is taken.
        let suspect = self.table.transition(node, NodeStatus::Suspect)?;
        self.apply(suspect, now, out);
        let dead = self.table.transition(node, NodeStatus::Dead)?;
        self.apply(dead, now, out);
        Ok(())
    }

    pub(super) fn heartbeat(
        &mut self,
        member: &MemberId,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        let Some(record) = self.table.record(&member.node) else {
            return Err(MembershipError::UnknownNode { node: member.node.clone() });
        };
        match member.incarnation.cmp(&record.member.incarnation) {
            Ordering::Less => {
                let known = record.member.incarnation;
                return Err(MembershipError::StaleIncarnation { member: member.clone(), known });
            }
            Ordering::Greater => return Err(MembershipError::UnknownNode { node: member.node.clone() }),
            Ordering::Equal => {}
        }
        let status = record.status;
        if status.is_final() {
            return Err(MembershipError::DeadIncarnation { member: member.clone(), status });
        }
        if !self.quarantine.is_empty() {
            let authority = record.authority.clone();
            self.check_quarantine(member, &authority, now, out)?;
        }
        if *member == self.own || !status.is_active() {
            return Ok(());
        }
        // A heartbeat that was under way while the ring moved on must not begin a watch: no further one will follow.
        if self.watched.contains(&member.node) || !self.config.gossip_enabled {
            self.detector.heartbeat(&member.node, self.observed(now));
        }
        // A reachable effect and a suspicion learnt from others are refuted alike: the member was heard.
        if status != NodeStatus::Up {
            self.change(&member.node, NodeStatus::Up, now, out);
        }
        Ok(())
    }

    pub(super) fn request_quarantine(
        &mut self,
        authority: &Authority,
        reason: QuarantineReason,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        if *authority == self.authority {
            return Err(MembershipError::NotOneself { node: self.own.node.clone() });
        }
        self.keep_out(authority, reason, now, out);
        Ok(())
    }

    pub(super) fn release(
        &mut self,
        authority: &Authority,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        if self.quarantine.release(authority).is_some() {
            self.let_in(authority, now, out);
        }
    }

    /// Everything that is due. Nothing here can fail: trouble with one member must not cost the others.
    pub(super) fn poll(&mut self, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        let observed = self.observed(now);
        let extra_pause = self.config.phi.acceptable_pause * self.health.score();
        while let Some(effect) = self.detector.poll(observed, extra_pause) {
            if let PhiEffect::Suspect(node) = effect {
                self.suspect(&node, now, out);
            }
        }
        while let Some(node) = self.timers.pop_due(observed) {
            self.state_ran_out(&node, now, out);
        }
        while let Some(entry) = self.quarantine.pop_expired(now) {
            self.let_in(&entry.authority, now, out);
        }
        if self.next_heartbeat_at <= now {
            self.next_heartbeat_at = now + self.config.heartbeat_interval;
            self.send_heartbeats(out);
        }
        match self.rounds.take_due(now) {
            // What everybody has heard of meanwhile needs no round of its own.
            Some(Round::Eager) if self.engine.phase() == GossipPhase::Confirmed => {}
            Some(_) => self.gossip_round(now, out),
            None => {}
        }
        if self.form_alone_at.is_some_and(|at| at <= now) {
            self.form_alone_at = None;
            if self.joining.take().is_some() {
                self.become_up(now, out);
            }
        }
        if self.joining.as_ref().is_some_and(|joining| joining.next_at <= now) {
            self.ask_to_join(now, out);
        }
        if self.next_reconnect_at <= now {
            self.next_reconnect_at = now + self.config.reconnect_interval;
            self.look_for_lost(out);
        }
        if self.window.closes_at().is_some_and(|at| at <= now) {
            let members = self.active_members();
            let blocked = self.quarantine.authorities().cloned().collect();
            let table = &self.table;
            let died = |id: &MemberId| {
                table.record(&id.node).is_some_and(|r| r.member == *id && r.status == NodeStatus::Dead)
            };
            let update = self.window.close(members, died, blocked, now);
            out.topology_event = update.map(|update| ClusterEvent::TopologyUpdated { update });
        }
    }

    pub(super) const fn mode(&self) -> MembershipCoordinatorState {
        self.mode
    }

    pub(super) const fn is_superseded(&self) -> bool {
        self.superseded
    }

    pub(super) fn own(&self) -> Option<&MemberId> {
        (self.mode == MembershipCoordinatorState::Member).then_some(&self.own)
    }

    pub(super) fn own_record(&self) -> Option<&NodeRecord> {
        self.table.record(&self.own()?.node)
    }

    pub(super) fn active_members(&self) -> Vec<Member> {
        let active = self.table.records().filter(|record| self.is_active(record));
        active.map(|r| Member { id: r.member.clone(), authority: r.authority.clone() }).collect()
    }

    /// The weight of this node's view.
    pub(super) fn standing(&self) -> Standing {
        let mut reachable = self.table.records().filter(|r| r.status.is_reachable() && self.is_active(r));
        let lowest = reachable.next().map_or(&self.own.node, |first| &first.member.node).clone();
        Standing { reachable: 1 + reachable.count(), lowest }
    }

    /// Moves a node along an edge. A refused edge is told to observers and changes nothing.
    pub(super) fn change(
        &mut self,
        node: &NodeId,
        to: NodeStatus,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        match self.table.transition(node, to) {
            Ok(change) => self.apply(change, now, out),
            Err(error) => out.tell(MembershipEvent::Refused(error), now),
        }
    }

    /// Brings everything in line with a changed record, and tells observers.
    pub(super) fn apply(
        &mut self,
        change: Option<RecordChange>,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        let Some(RecordChange { previous, current }) = change else { return };
        let node = current.member.node.clone();
        let tell = |out: &mut MembershipCoordinatorOutcome, record: &NodeRecord, from, to| {
            out.member_events.push(ClusterEvent::MemberStatusChanged {
                member: record.member.clone(),
                authority: record.authority.clone(),
                from,
                to,
                observed_at: now,
            });
        };
        let (same_life, replaced) = match previous.as_ref() {
            Some(old) if old.member == current.member => (Some(old), None),
            other => (None, other),
        };
        if let Some(old) = replaced {
            // A later life ends the earlier one, whatever it was doing.
            if !old.status.is_final() {
                tell(out, old, Some(old.status), NodeStatus::Removed);
            }
            self.forget(&node);
            let moved_in = old.authority == current.authority;
            if moved_in && self.quarantine.covering(&old.authority, &current.member).is_none() {
                self.release(&old.authority, now, out);
            }
        }
        let from = same_life.map(|old| old.status);
        if from != Some(current.status) {
            tell(out, &current, from, current.status);
            if current.status == NodeStatus::Suspect || from == Some(NodeStatus::Suspect) {
                self.unsettled_at = self.observed(now);
            }
        }
        let names_changed = previous.as_ref().is_none_or(|old| old.status == NodeStatus::Removed)
            || current.status == NodeStatus::Removed;
        self.engine.note_change(names_changed, now);
        let moved =
            same_life.is_none_or(|old| (old.status, old.refutation) != (current.status, current.refutation));
        if moved {
            self.start_timer(&current, now);
        }
        if current.status == NodeStatus::Dead && Some(&current.member) != self.own() {
            let reason = QuarantineReason::Dead(current.member.clone());
            self.keep_out(&current.authority, reason, now, out);
        }
        self.align(&current);
        self.hurry(now);
        if matches!(current.status, NodeStatus::Leaving | NodeStatus::Removed) {
            // Whoever goes in order still says its goodbyes, which want an answer.
            self.window.open_patiently(now);
        } else {
            self.window.open(now);
        }
        if Some(&current.member) == self.own() {
            self.leaving = current.status == NodeStatus::Leaving;
            if current.status == NodeStatus::Up {
                self.joining = self.joining.take().filter(|joining| joining.yielding);
            }
        }
    }

    /// Puts this node's own record into an empty table.
    pub(super) fn enter_own(&mut self, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        if self.mode != MembershipCoordinatorState::Member {
            return;
        }
        let own = NodeRecord::joining(self.own.clone(), self.authority.clone());
        if let Ok(change) = self.table.merge(&own) {
            self.apply(change, now, out);
        }
    }

    /// This node is part of the cluster now.
    pub(super) fn become_up(&mut self, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        self.joining = None;
        self.next_reconnect_at = now + self.config.reconnect_interval;
        if self.own_record().is_some_and(|own| own.status == NodeStatus::Joining) {
            let node = self.own.node.clone();
            self.change(&node, NodeStatus::Up, now, out);
        }
    }

    /// Empties the table and all that hangs on it, for a new life. Quarantines of addresses stay.
    pub(super) fn reset(&mut self, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        self.table = MembershipTable::new(self.config.members_max);
        self.detector = detector(&self.config);
        self.engine = engine(self.mode, &self.own, &self.authority, &self.config, self.rng.u64(..));
        self.ring = HeartbeatRing::new(&self.own.node, self.config.heartbeat_monitors);
        self.watched.clear();
        self.since.clear();
        self.timers = DeadlineQueue::new();
        self.heartbeats_sent = 0;
        for entry in self.quarantine.snapshot() {
            // The verdicts of the old life are void; others may think differently about those members.
            if matches!(entry.reason, QuarantineReason::Dead(_)) {
                self.release(&entry.authority, now, out);
            }
        }
        self.window.open(now);
    }

    /// Refuses what comes from a quarantined member, and tells observers that it tried.
    pub(super) fn check_quarantine(
        &self,
        member: &MemberId,
        authority: &Authority,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        let Some(entry) = self.quarantine.covering(authority, member) else { return Ok(()) };
        let (authority, reason) = (entry.authority.clone(), entry.reason.clone());
        out.member_events.push(ClusterEvent::MemberQuarantined {
            authority: authority.clone(),
            reason: reason.clone(),
            observed_at: now,
        });
        Err(MembershipError::Quarantined { authority, reason })
    }

    /// Peers lack something: it is told before the next round. A client has nothing to tell.
    pub(super) fn hurry(&mut self, now: TimerInstant) {
        if self.mode == MembershipCoordinatorState::Member && self.engine.peers().next().is_some() {
            self.rounds.hurry(now);
        }
    }

    pub(super) fn observed(&self, now: TimerInstant) -> TimerInstant {
        now.saturating_sub(self.paused)
    }

    fn keep_out(
        &mut self,
        authority: &Authority,
        reason: QuarantineReason,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        if let Some(evicted) = self.quarantine.make_room(authority) {
            self.let_in(&evicted.authority, now, out);
        }
        let ttl = Some(self.config.quarantine_ttl);
        if !self.quarantine.quarantine(authority, reason, ttl, now) {
            return;
        }
        let Some(entry) = self.quarantine.entry(authority) else { return };
        let (authority, reason) = (authority.clone(), entry.reason.clone());
        out.quarantine_events
            .push(QuarantineEvent::Quarantined { authority: authority.clone(), reason: reason.clone() });
        self.align_at(&authority, now);
        out.member_events.push(ClusterEvent::MemberQuarantined { authority, reason, observed_at: now });
    }

    fn let_in(&mut self, authority: &Authority, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        out.quarantine_events.push(QuarantineEvent::Cleared { authority: authority.clone() });
        out.member_events
            .push(ClusterEvent::QuarantineLifted { authority: authority.clone(), observed_at: now });
        self.align_at(authority, now);
    }

    fn is_active(&self, record: &NodeRecord) -> bool {
        record.status.is_active() && self.quarantine.covering(&record.authority, &record.member).is_none()
    }

    /// A change of quarantine concerns whoever is at the address.
    fn align_at(&mut self, authority: &Authority, now: TimerInstant) {
        let there: Vec<_> =
            self.table.records().filter(|record| record.authority == *authority).cloned().collect();
        for record in there {
            self.align(&record);
            self.window.open(now);
        }
    }

    /// Brings ring, detector and engine in line with one node's record and quarantine.
    fn align(&mut self, record: &NodeRecord) {
        let node = &record.member.node;
        if self.mode == MembershipCoordinatorState::Member && *node == self.own.node {
            return;
        }
        let kept_out = self.quarantine.covering(&record.authority, &record.member).is_some();
        if record.status.is_final() || kept_out {
            self.engine.remove_peer(node);
        } else {
            self.engine.set_peer(record, &self.table);
        }
        if record.status.is_active() && !kept_out {
            self.ring.insert(node);
        } else {
            self.ring.remove(node);
            self.detector.remove(node);
        }
        self.ring_changed = true;
    }

    /// Listens to the members that the ring names, and only to them.
    fn listen(&mut self, now: TimerInstant) {
        if self.mode != MembershipCoordinatorState::Member {
            return;
        }
        let wanted: BTreeSet<_> = self.ring.watched().into_iter().collect();
        if wanted == self.watched {
            return;
        }
        let observed = self.observed(now);
        for node in &wanted {
            self.detector.watch(node, observed);
        }
        for node in self.watched.difference(&wanted) {
            self.detector.remove(node);
        }
        self.watched = wanted;
    }

    fn forget(&mut self, node: &NodeId) {
        self.detector.remove(node);
        self.ring.remove(node);
        self.engine.remove_peer(node);
        self.watched.remove(node);
    }

    /// Measures how late the driver calls, and takes a long delay for what it is: a pause of this node.
    fn note_wake(&mut self, now: TimerInstant) {
        let late = now.saturating_since(self.promised_wake);
        if late > self.config.poll_lateness_max {
            self.paused += late;
            self.health.worsen();
        } else if late > 2 * self.config.gossip_interval {
            self.health.worsen();
        }
    }

    fn finish(&mut self, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        if core::mem::take(&mut self.ring_changed) {
            self.listen(now);
        }
        self.engine.evaluate(&self.table, now);
        if self.leaving && self.engine.phase() == GossipPhase::Confirmed {
            // Everybody knows that we go: now we are gone.
            let node = self.own.node.clone();
            self.change(&node, NodeStatus::Removed, now, out);
            self.say_goodbye(out);
        }
        if self.quorum_lost && self.census().1 == 0 {
            self.quorum_lost = false;
            out.member_events.push(ClusterEvent::QuorumRegained { observed_at: now });
        }
        let events = self.engine.take_events();
        out.member_events
            .extend(events.into_iter().map(|event| ClusterEvent::Gossip { event, observed_at: now }));
        out.wake_at = Some(self.next_wake());
        self.promised_wake = self.next_wake().max(now);
    }

    fn next_wake(&self) -> TimerInstant {
        let observed = [self.detector.next_check(), self.timers.next()];
        let observed = observed.into_iter().flatten().map(|at| at + self.paused);
        let plain = [
            Some(self.rounds.next_at()),
            Some(self.next_heartbeat_at),
            Some(self.next_reconnect_at),
            self.joining.as_ref().map(|joining| joining.next_at),
            self.form_alone_at,
            self.quarantine.next_expiry(),
            self.window.closes_at(),
        ];
        plain.into_iter().flatten().chain(observed).min().unwrap_or_else(|| self.rounds.next_at())
    }
}

fn detector(config: &MembershipCoordinatorConfig) -> PhiFailureDetector {
    // The configuration was validated when the coordinator was built.
    PhiFailureDetector::from_validated(config.phi.clone())
}

fn engine(
    mode: MembershipCoordinatorState,
    own: &MemberId,
    authority: &Authority,
    config: &MembershipCoordinatorConfig,
    seed: u64,
) -> GossipEngine {
    let own = (mode == MembershipCoordinatorState::Member).then(|| (own.node.clone(), authority.clone()));
    GossipEngine::new(own, config, seed)
}
