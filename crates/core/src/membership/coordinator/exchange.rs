//! Talking to peers: pushes and acknowledgements, admission, and what happens when two parts of a cluster that gave each
//! other up meet again.
//!
//! A verdict is final for the life it concerns, so two such parts cannot simply merge: together they would have declared
//! everyone dead. Instead the lighter part *yields*. Each of its members, when it meets the heavier part, forgets its
//! view with all verdicts in it, takes a new incarnation and asks to be let in, exactly as if it had been restarted.
//!
//! A refusal is answered at most once, by saying that one's own side is the heavier, and that is answered by nothing but
//! yielding. So no two nodes can refuse each other for ever.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Ordering;

use super::run::{Joining, Run};
use super::{MembershipCoordinatorOutcome, MembershipCoordinatorState};
use crate::id::{Authority, Incarnation, MemberId, NodeId};
use crate::membership::delta::MembershipDelta;
use crate::membership::event::{ClusterEvent, MembershipEvent, RejoinReason};
use crate::membership::message::{
    GossipBody, GossipMessage, GossipOutbound, GossipSender, Refusal, Standing, ViewDigest,
};
use crate::membership::record::NodeRecord;
use crate::membership::status::NodeStatus;
use crate::membership::table::{MembershipError, MembershipVersion};
use crate::time::TimerInstant;

impl Run {
    /// A message arrived.
    pub(super) fn gossip(
        &mut self,
        message: GossipMessage,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        if !self.config.gossip_enabled {
            return Err(MembershipError::GossipDisabled);
        }
        let sender = match message.sender {
            GossipSender::Member(record) => record,
            GossipSender::Client(authority) => return self.answer_client(&authority, &message.body, out),
        };
        if self.mode == MembershipCoordinatorState::Member && sender.member.node == self.own.node {
            return self.meet_namesake(&sender, &message.body, now, out);
        }
        // A refusal may come from a side that was given up, and settles which side goes on: quarantine must not stop it.
        if !matches!(message.body, GossipBody::Refused(_))
            && let Err(error) = self.check_quarantine(&sender.member, &sender.authority, now, out)
        {
            self.refuse(&sender, error.clone(), out);
            return Err(error);
        }
        if let Some(error) = self.over(&sender.member) {
            return self.meet_given_up(&sender, message.body, error, now, out);
        }
        if self.is_yielding() && !matches!(message.body, GossipBody::Welcome { .. } | GossipBody::Refused(_))
        {
            // Old acquaintances speak for the view that this node just gave up.
            return Ok(());
        }
        match message.body {
            GossipBody::Refused(refusal) => {
                self.was_refused(&sender, refusal, now, out);
                Ok(())
            }
            GossipBody::Probe { verdict, standing } => {
                self.was_probed(&sender, verdict, &standing, now, out);
                Ok(())
            }
            GossipBody::Join => self.admit(&sender, now, out),
            body => {
                self.merge(&sender.member.node, core::slice::from_ref(&sender), now, out);
                self.converse(&sender, body, now, out)
            }
        }
    }

    /// One round of pushes; a client asks a random member instead.
    pub(super) fn gossip_round(&mut self, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        if !self.config.gossip_enabled {
            return;
        }
        if self.mode == MembershipCoordinatorState::Client {
            return self.pull_as_client(out);
        }
        let (pushes, silent) = self.engine.round(&self.table, now);
        for _ in 0..silent {
            self.health.worsen();
        }
        let view = self.engine.view_digest(&self.table);
        for push in pushes {
            self.send(&push.target, GossipBody::Push { delta: push.delta, view: view.clone() }, out);
        }
    }

    /// "I am alive", to those that listen.
    pub(super) fn send_heartbeats(&mut self, out: &mut MembershipCoordinatorOutcome) {
        let alive = self.own_record().is_some_and(|own| own.status.is_active());
        if !(self.config.gossip_enabled && alive) {
            return;
        }
        self.heartbeats_sent += 1;
        for watcher in self.ring.watchers() {
            if let Some(target) = self.table.record(&watcher).map(|record| record.authority.clone()) {
                self.send(&target, GossipBody::Heartbeat { sequence: self.heartbeats_sent }, out);
            }
        }
    }

    /// The accused hears of the suspicion first, so that it can refute it.
    pub(super) fn tell_accused(&mut self, node: &NodeId, out: &mut MembershipCoordinatorOutcome) {
        if !self.config.gossip_enabled {
            return;
        }
        let Some(record) = self.table.record(node).cloned() else { return };
        // An empty range: the record is told out of turn and acknowledges nothing.
        let start = MembershipVersion::ZERO;
        let delta = MembershipDelta::cut(start, start, alloc::vec![record.clone()]);
        let view = self.engine.view_digest(&self.table);
        self.send(&record.authority, GossipBody::Push { delta, view }, out);
    }

    /// The last words of a leaving node.
    pub(super) fn say_goodbye(&mut self, out: &mut MembershipCoordinatorOutcome) {
        let peers = self.engine.random_peers(self.config.gossip_fanout);
        let view = self.engine.view_digest(&self.table);
        for node in peers {
            let delta = self.table.delta_since(self.engine.acked(&node).unwrap_or_default());
            if let Some(target) = self.table.record(&node).map(|record| record.authority.clone()) {
                self.send(&target, GossipBody::Push { delta, view: view.clone() }, out);
            }
        }
    }

    /// Asks for admission, again and again, ever less often.
    pub(super) fn ask_to_join(&mut self, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        let (fanout, interval) = (self.config.gossip_fanout, self.config.gossip_interval);
        let Some(joining) = self.joining.as_mut() else { return };
        let open = joining.contacts.iter().filter(|contact| self.quarantine.entry(contact).is_none());
        let mut targets: Vec<_> = open.cloned().collect();
        if joining.attempts < PREFERRED_TRIES {
            // Whoever yields asks the side it yields to; its old side would only take it back.
            targets.truncate(if joining.yielding { 1 } else { fanout });
        } else {
            self.rng.shuffle(&mut targets);
            targets.truncate(fanout);
        }
        joining.next_at = now + interval * (1 << joining.attempts.min(JOIN_BACKOFF_MAX));
        joining.attempts = joining.attempts.saturating_add(1);
        if self.mode == MembershipCoordinatorState::Client {
            // A client is not let in; it only needs to know whom to ask.
            return targets
                .iter()
                .for_each(|t| self.send(t, GossipBody::Pull { after: MembershipVersion::ZERO }, out));
        }
        for target in targets {
            self.send(&target, GossipBody::Join, out);
        }
    }

    /// Looks for parts of the cluster that were lost: a seed or a dead member that is not in view.
    pub(super) fn look_for_lost(&mut self, out: &mut MembershipCoordinatorOutcome) {
        let up = self.own_record().is_some_and(|own| own.status == NodeStatus::Up);
        if !(self.config.gossip_enabled && up && self.joining.is_none()) {
            return;
        }
        let lost = |authority: &Authority| {
            *authority != self.authority
                && self.quarantine.entry(authority).is_none()
                && !self.engine.peers().any(|(_, in_view)| in_view == authority)
        };
        let given_up = self.table.records().filter(|record| record.status.is_final());
        let mut targets: Vec<_> = given_up
            .map(|record| (record.authority.clone(), Some(record.clone())))
            .chain(self.config.seeds.iter().map(|seed| (seed.clone(), None)))
            .filter(|(authority, _)| lost(authority))
            .collect();
        targets.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.is_some().cmp(&a.1.is_some())));
        targets.dedup_by(|a, b| a.0 == b.0);
        if targets.is_empty() {
            return;
        }
        let (target, verdict) = targets.swap_remove(self.rng.usize(..targets.len()));
        let standing = self.standing();
        self.send(&target, GossipBody::Probe { verdict, standing }, out);
    }

    /// An exchange with a peer that is live in our view.
    fn converse(
        &mut self,
        sender: &NodeRecord,
        body: GossipBody,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        let node = &sender.member.node;
        match body {
            GossipBody::Heartbeat { sequence } => {
                if self.ring.is_news(node, sequence) {
                    self.heartbeat(&sender.member, now, out)?;
                }
                self.met(now, out);
            }
            GossipBody::Pull { after } => {
                let delta = self.table.delta_since(after);
                let view = self.engine.view_digest(&self.table);
                self.send(&sender.authority, GossipBody::Push { delta, view }, out);
            }
            GossipBody::Push { delta, view } => self.take_push(sender, &delta, &view, now, out),
            GossipBody::Welcome { delta, view } => {
                if let Some(joining) = &mut self.joining {
                    joining.yielding = false;
                }
                self.take_push(sender, &delta, &view, now, out);
                self.engine.assume_informed(&self.table);
            }
            GossipBody::Ack { version, view, delta } => {
                let answers = self.engine.accept_ack(node, version, &self.table);
                if answers {
                    self.health.improve();
                }
                if let Some(delta) = &delta {
                    self.take_delta(sender, delta, now, out);
                }
                self.settle(sender, &view, out);
                if answers && self.engine.acked(node) < Some(self.table.version()) {
                    // It could not be told more before it answered.
                    self.hurry(now);
                }
                if let Some(delta) = delta {
                    let view = self.engine.view_digest(&self.table);
                    let ack = GossipBody::Ack { version: delta.to(), view, delta: None };
                    self.send(&sender.authority, ack, out);
                }
                self.met(now, out);
            }
            GossipBody::Join | GossipBody::Probe { .. } | GossipBody::Refused(_) => {}
        }
        Ok(())
    }

    fn take_push(
        &mut self,
        sender: &NodeRecord,
        delta: &MembershipDelta,
        view: &ViewDigest,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        let own_before = self.own.clone();
        // A peer that holds our view left nothing out, wherever its delta begins.
        self.engine.compare_view(&sender.member.node, view, &self.table);
        if !self.take_delta(sender, delta, now, out) || self.own != own_before {
            return;
        }
        self.met(now, out);
        if self.mode == MembershipCoordinatorState::Client {
            return;
        }
        let node = &sender.member.node;
        let equal = self.engine.compare_view(node, view, &self.table);
        let back = (!equal).then(|| {
            // What the peer just said it need not hear again.
            let said: BTreeMap<_, _> = delta.records().iter().map(|r| (&r.member.node, r)).collect();
            let known = |record: &NodeRecord| said.get(&record.member.node) == Some(&record);
            self.table.delta_since_except(self.engine.acked(node).unwrap_or_default(), known)
        });
        let back = back.filter(|back| !back.records().is_empty());
        let view = self.engine.view_digest(&self.table);
        self.send(&sender.authority, GossipBody::Ack { version: delta.to(), view, delta: back }, out);
    }

    /// Merges a peer's changes. False when some before them are missing; they are asked for instead.
    fn take_delta(
        &mut self,
        sender: &NodeRecord,
        delta: &MembershipDelta,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> bool {
        match self.engine.accept_delta(&sender.member.node, delta, now) {
            Ok(()) => {
                self.merge(&sender.member.node, delta.records(), now, out);
                true
            }
            Err(gap) => {
                self.send(&sender.authority, GossipBody::Pull { after: gap.after }, out);
                false
            }
        }
    }

    /// Takes every record that outranks ours. One that cannot be taken does not cost the others.
    fn merge(
        &mut self,
        peer: &NodeId,
        records: &[NodeRecord],
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        for record in records {
            if self.own().is_some_and(|own| own.node == record.member.node) {
                let before = self.own.clone();
                self.hear_about_oneself(peer, record, now, out);
                if self.own != before || self.superseded {
                    // The rest of the message belongs to the view that was just given up.
                    return;
                }
                continue;
            }
            let known = self.table.record(&record.member.node);
            let clash = known
                .filter(|known| known.member == record.member && known.authority != record.authority)
                .cloned();
            match self.table.merge(record) {
                Ok(change) => {
                    if let Some(known) = clash {
                        let (accepted, rejected) =
                            if change.is_some() { (record.clone(), known) } else { (known, record.clone()) };
                        self.engine.note_conflict(peer, accepted, rejected, now);
                    }
                    self.apply(change, now, out);
                }
                Err(error) => out.tell(MembershipEvent::Refused(error), now),
            }
        }
    }

    /// The exchange is over: do both hold the same view now?
    fn settle(&mut self, sender: &NodeRecord, view: &ViewDigest, out: &mut MembershipCoordinatorOutcome) {
        let node = &sender.member.node;
        if !self.engine.compare_view(node, view, &self.table) && self.engine.note_mismatch(node) {
            self.send(&sender.authority, GossipBody::Pull { after: MembershipVersion::ZERO }, out);
        }
    }

    /// A member spoke with us, so we are part of the cluster.
    fn met(&mut self, now: TimerInstant, out: &mut MembershipCoordinatorOutcome) {
        if self.joining.is_some() && !self.is_yielding() {
            self.become_up(now, out);
        }
    }

    fn admit(
        &mut self,
        sender: &NodeRecord,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        if self.mode != MembershipCoordinatorState::Member {
            return Err(MembershipError::NotAMember { authority: self.authority.clone() });
        }
        if let Err(error) = self.join(&sender.member, &sender.authority, now, out) {
            self.refuse(sender, error.clone(), out);
            return Err(error);
        }
        let delta = self.table.delta_since(MembershipVersion::ZERO);
        let view = self.engine.view_digest(&self.table);
        self.send(&sender.authority, GossipBody::Welcome { delta, view }, out);
        Ok(())
    }

    /// What a peer says about this node itself.
    fn hear_about_oneself(
        &mut self,
        peer: &NodeId,
        record: &NodeRecord,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        let own_status = self.own_record().map(|own| own.status);
        match record.member.incarnation.cmp(&self.own.incarnation) {
            Ordering::Less => {}
            Ordering::Greater => self.hear_of_later_life(record, now, out),
            Ordering::Equal if record.status.is_final() => {
                if own_status.is_some_and(|own| own < NodeStatus::Leaving) {
                    let via = self.table.record(peer).map(|peer| peer.authority.clone());
                    let life = record.member.incarnation;
                    self.rejoin(RejoinReason::DeclaredDead, life, via.as_ref(), now, out);
                }
            }
            Ordering::Equal => {
                let mut answer = record.clone();
                if record.status == NodeStatus::Suspect {
                    // Refute: alive, and one refutation ahead of the suspicion.
                    answer.status = own_status.unwrap_or(NodeStatus::Up);
                    answer.refutation = record.refutation.next();
                    self.health.worsen();
                }
                answer.authority = self.authority.clone();
                if let Ok(change) = self.table.merge(&answer) {
                    self.apply(change, now, out);
                }
            }
        }
    }

    /// A later life of this name exists: either this node forgot it, or another process took the name over.
    fn hear_of_later_life(
        &mut self,
        record: &NodeRecord,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        let taken_over = record.authority != self.authority && !record.status.is_final();
        if taken_over && self.joining.is_none() {
            self.superseded = true;
            let by = record.member.clone();
            out.tell(MembershipEvent::Superseded { by, at: record.authority.clone() }, now);
        } else if !taken_over {
            self.rejoin(RejoinReason::IncarnationUsed, record.member.incarnation, None, now, out);
        }
    }

    /// A message from a process with this node's own name.
    fn meet_namesake(
        &mut self,
        sender: &NodeRecord,
        body: &GossipBody,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        let error = match sender.member.incarnation.cmp(&self.own.incarnation) {
            Ordering::Greater => {
                self.hear_of_later_life(sender, now, out);
                return Ok(());
            }
            // An echo of one's own words: harmless.
            Ordering::Equal if sender.authority == self.authority => return Ok(()),
            Ordering::Equal => MembershipError::IdentityConflict {
                member: sender.member.clone(),
                held_at: self.authority.clone(),
                requested_at: sender.authority.clone(),
            },
            Ordering::Less => {
                let known = self.own.incarnation;
                MembershipError::StaleIncarnation { member: sender.member.clone(), known }
            }
        };
        if !matches!(body, GossipBody::Refused(_)) {
            self.refuse(sender, error.clone(), out);
        }
        Err(error)
    }

    /// A message from a life that is over here. It is told so, unless it gave us up too: then the lighter side yields.
    fn meet_given_up(
        &mut self,
        sender: &NodeRecord,
        body: GossipBody,
        error: MembershipError,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        match body {
            GossipBody::Probe { standing, .. } => self.weigh(sender, &standing, true, now, out),
            GossipBody::Refused(refusal) => {
                let last_word = matches!(refusal.reason, MembershipError::Outranked { .. });
                self.weigh(sender, &refusal.standing, !last_word, now, out);
            }
            _ => {
                self.refuse(sender, error.clone(), out);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Two sides that do not belong together: the lighter one yields, the heavier one says so if it may `answer`.
    fn weigh(
        &mut self,
        sender: &NodeRecord,
        theirs: &Standing,
        answer: bool,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        if self.joining.is_some() {
            return;
        }
        let mine = self.standing();
        let order = theirs.weigh(&mine).then_with(|| self.own.node.cmp(&sender.member.node));
        if order == Ordering::Greater {
            let above = self.own.incarnation;
            self.rejoin(RejoinReason::Outranked, above, Some(&sender.authority), now, out);
        } else if answer {
            self.refuse(sender, MembershipError::Outranked { reachable: mine.reachable }, out);
        }
    }

    /// Somebody outside our view, or for whom we are outside, asks whether we live.
    fn was_probed(
        &mut self,
        sender: &NodeRecord,
        verdict: Option<NodeRecord>,
        theirs: &Standing,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        if self.joining.is_some() || self.own().is_none() {
            return;
        }
        // A verdict on an earlier life says nothing about this one: whoever holds it has not met us yet.
        if let Some(verdict) = verdict.filter(|verdict| self.concerns_this_life(verdict)) {
            return self.was_judged(sender, &verdict, theirs, now, out);
        }
        let known = self.table.record(&sender.member.node);
        if known.is_some_and(|known| known.member == sender.member) {
            // The news of us has not reached the sender yet.
            let delta = self.table.delta_since(MembershipVersion::ZERO);
            let view = self.engine.view_digest(&self.table);
            self.send(&sender.authority, GossipBody::Push { delta, view }, out);
        } else {
            self.weigh(sender, theirs, true, now, out);
        }
    }

    fn was_refused(
        &mut self,
        sender: &NodeRecord,
        refusal: Refusal,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        if self.own().is_none() {
            return;
        }
        if let MembershipError::Outranked { .. } = refusal.reason {
            return self.weigh(sender, &refusal.standing, false, now, out);
        }
        if let Some(verdict) = &refusal.verdict {
            self.was_judged(sender, verdict, &refusal.standing, now, out);
        }
        if self.joining.is_some() {
            let by = sender.authority.clone();
            out.tell(MembershipEvent::JoinRefused { by, refusal }, now);
        }
    }

    /// A peer that we hold for alive holds us for dead or outdated. Its word counts unless it speaks for a small minority:
    /// a sick node that lost sight of everyone must not make everyone start over.
    fn was_judged(
        &mut self,
        sender: &NodeRecord,
        verdict: &NodeRecord,
        theirs: &Standing,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        if !self.concerns_this_life(verdict) {
            return;
        }
        let life = verdict.member.incarnation;
        if life > self.own.incarnation {
            return self.hear_of_later_life(verdict, now, out);
        }
        let leaving = self.own_record().is_some_and(|own| own.status >= NodeStatus::Leaving);
        if !verdict.status.is_final() || leaving {
            return;
        }
        if self.joining.is_some() || theirs.reachable * 2 >= self.standing().reachable {
            self.rejoin(RejoinReason::DeclaredDead, life, Some(&sender.authority), now, out);
        } else {
            let reachable = self.standing().reachable;
            self.refuse(sender, MembershipError::Outranked { reachable }, out);
        }
    }

    /// Begins a new life above `above`: a fresh table, a new incarnation, and a request to be let in.
    fn rejoin(
        &mut self,
        reason: RejoinReason,
        above: Incarnation,
        via: Option<&Authority>,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        let Some(next) = above.max(self.own.incarnation).next() else {
            self.superseded = true;
            let (by, at) = (self.own.clone(), self.authority.clone());
            return out.tell(MembershipEvent::Superseded { by, at }, now);
        };
        let known = self.table.records().filter(|record| !record.status.is_final());
        let mut contacts: Vec<_> = via.cloned().into_iter().collect();
        let old = self.joining.as_ref().map(|joining| joining.contacts.clone()).unwrap_or_default();
        let others = self.config.seeds.iter().cloned().chain(old).chain(known.map(|r| r.authority.clone()));
        for authority in others {
            if authority != self.authority && !contacts.contains(&authority) && contacts.len() < CONTACTS_MAX
            {
                contacts.push(authority);
            }
        }
        let fresh = self.joining.as_ref().is_some_and(|joining| !joining.yielding);
        let current = MemberId::new(self.own.node.clone(), next);
        let previous = core::mem::replace(&mut self.own, current.clone());
        out.persist = Some(next);
        out.member_events.push(ClusterEvent::SelfRejoining { previous, current, reason, observed_at: now });
        self.reset(now, out);
        self.enter_own(now, out);
        self.joining = Some(Joining { contacts, attempts: 0, next_at: now, yielding: !fresh });
    }

    fn pull_as_client(&mut self, out: &mut MembershipCoordinatorOutcome) {
        for node in self.engine.random_peers(1) {
            let after = self.engine.received(&node);
            if let Some(target) = self.table.record(&node).map(|record| record.authority.clone()) {
                self.send(&target, GossipBody::Pull { after }, out);
            }
        }
    }

    fn answer_client(
        &mut self,
        authority: &Authority,
        body: &GossipBody,
        out: &mut MembershipCoordinatorOutcome,
    ) -> Result<(), MembershipError> {
        let GossipBody::Pull { after } = body else {
            return Err(MembershipError::NotAMember { authority: authority.clone() });
        };
        if let Some(entry) = self.quarantine.entry(authority) {
            let error =
                MembershipError::Quarantined { authority: authority.clone(), reason: entry.reason.clone() };
            return Err(error);
        }
        let delta = self.table.delta_since(*after);
        let view = self.engine.view_digest(&self.table);
        self.send(authority, GossipBody::Push { delta, view }, out);
        Ok(())
    }

    /// Why `member` is over in our view, if it is.
    fn over(&self, member: &MemberId) -> Option<MembershipError> {
        let known = self.table.record(&member.node)?;
        let life = known.member.incarnation;
        match member.incarnation.cmp(&life) {
            Ordering::Less => Some(MembershipError::StaleIncarnation { member: member.clone(), known: life }),
            Ordering::Equal if known.status.is_final() => {
                Some(MembershipError::DeadIncarnation { member: member.clone(), status: known.status })
            }
            _ => None,
        }
    }

    fn concerns_this_life(&self, verdict: &NodeRecord) -> bool {
        verdict.member.node == self.own.node && verdict.member.incarnation >= self.own.incarnation
    }

    fn is_yielding(&self) -> bool {
        self.joining.as_ref().is_some_and(|joining| joining.yielding)
    }

    fn refuse(
        &mut self,
        sender: &NodeRecord,
        reason: MembershipError,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        let verdict = self.table.record(&sender.member.node).cloned();
        let refusal = Refusal { reason, verdict, standing: self.standing() };
        self.send(&sender.authority, GossipBody::Refused(refusal), out);
    }

    fn send(&mut self, target: &Authority, body: GossipBody, out: &mut MembershipCoordinatorOutcome) {
        let sender = match self.own_record() {
            Some(own) => GossipSender::Member(own.clone()),
            None => GossipSender::Client(self.authority.clone()),
        };
        let message = GossipMessage { sender, body };
        out.gossip_outbound.push(GossipOutbound { target: target.clone(), message });
    }
}

/// So many requests for admission go to the preferred contacts before all are tried.
const PREFERRED_TRIES: u32 = 5;
/// The pause between two requests grows up to the gossip interval times two to this power.
const JOIN_BACKOFF_MAX: u32 = 4;
/// Most addresses remembered to ask for admission.
const CONTACTS_MAX: usize = 16;
