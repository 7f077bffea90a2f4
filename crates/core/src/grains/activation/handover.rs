//! The question before a start: does anybody still run it?
//!
//! ```text
//!   new owner                                             previous owner
//!     request ─► Claiming ──── claim(roster digest) ────► behind?  ─► "outdated": the new owner lags, and refuses
//!                   │                                     runs it? ─► Stopping, finishes what it was sent
//!                   │ ◄──── relocation: state, or nothing ────────────┘
//!                Spawning ───── receipt ────────────────► forgets the state
//! ```
//!
//! Whoever yields does not start the grain again before its own roster has changed, and then asks the one it yielded to.
//! So members that go through the same rosters, each in its own time, never run a grain twice. Answers may name others
//! that know more; they are asked too. Nobody waits for longer than the patience: then the grain starts without, and an
//! event says so.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::outcome::{BEFORE_MAX, ClaimId, ClaimRecord, GrainHost, RelocationRecord};
use super::relocation::Estate;
use super::{
    ActivationCommand, ActivationEvent, ActivationId, ActivationOutcome, ActivationRefusal, Alarm, Entry,
    State, StopReason, VirtualActorRegistry,
};
use crate::gossip::GossipMemberId;
use crate::grains::ClusterIdentity;
use crate::roster::{PeerRuntime, RosterMember};
use crate::time::TimerInstant;

/// A start that waits for previous owners.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    asked: Vec<Asked>,
    until: TimerInstant,
    /// Those that went away without an answer.
    silent: Vec<GossipMemberId>,
}

#[derive(Clone, Debug)]
struct Asked {
    host: GrainHost,
    is_answered: bool,
    is_asked_again: bool,
}

/// A grain that this node yielded a moment ago.
#[derive(Clone, Debug)]
pub(super) struct Yielded {
    pub(super) to: GrainHost,
    /// The question that the end of the activation answers.
    pub(super) claim: Option<u64>,
    /// Who was given it before.
    went: Option<GrainHost>,
    /// The generation of the roster by which this node would still be the owner. As long as it goes by that, it does not
    /// start the grain.
    pub(super) ceded_at: Option<u64>,
    /// Whether it was given back since. Then it may start here, once the other was asked.
    pub(super) is_back: bool,
}

impl<R> VirtualActorRegistry<R> {
    /// A member that is the owner of a grain asks this node to yield it.
    pub fn handle_claim(&mut self, claim: ClaimRecord, now: TimerInstant) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        self.forget(now);
        let ClaimRecord { grain, from, number, roster } = claim;
        let is_same_view = roster == self.history.digest();
        let is_theirs = || self.owner(&grain).is_some_and(|owner| owner.id == from.id);
        if from.authority == self.own.authority {
            return self.finish(out);
        }
        if self.history.is_past(roster) || is_same_view && !is_theirs() {
            out.commands.push(ActivationCommand::Outdated { to: from, grain, number });
            return self.finish(out);
        }
        let is_claiming = matches!(self.entries.get(&grain), Some(Entry { state: State::Claiming(_), .. }));
        // Both ask each other, and neither is known to be ahead: one goes first, the other will be asked again.
        if is_claiming && self.own.id < from.id {
            return self.finish(out);
        }
        let ceded_at = (!is_same_view).then(|| self.history.generation());
        self.note_yield(&grain, &from, Some(number), ceded_at, now);
        if !self.entries.contains_key(&grain) {
            self.answer_claim(&grain, from, number, Vec::new(), now, &mut out);
            return self.finish(out);
        }
        for waiter in self.take_waiters(&grain) {
            let refusal = ActivationRefusal::NotOwner { grain: grain.clone(), owner: listed(&from) };
            out.refuse(waiter, &grain, refusal);
        }
        if is_claiming {
            let before = self.drop_claim(&grain);
            self.answer_claim(&grain, from, number, before, now, &mut out);
        } else {
            // The end of it is the answer.
            self.stop(&grain, StopReason::Moved, &mut out);
        }
        self.finish(out)
    }

    /// A member that was asked to yield says that this node goes by a roster of the past.
    pub fn handle_outdated(
        &mut self,
        grain: &ClusterIdentity,
        claim: &ClaimId,
        by: &GossipMemberId,
    ) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        if self.is_own_claim(grain, claim) {
            self.entries.remove(grain);
            self.alarms.clear(&Alarm::Claim(grain.clone()));
            for waiter in self.take_waiters(grain) {
                let refusal = ActivationRefusal::Outdated { grain: grain.clone(), by: by.clone() };
                out.refuse(waiter, grain, refusal);
            }
        }
        self.finish(out)
    }

    /// Asks the previous owners of a grain; it starts when they have answered.
    pub(super) fn begin_claim(
        &mut self,
        grain: &ClusterIdentity,
        previous: Vec<GrainHost>,
        waiters: Vec<R>,
        now: TimerInstant,
        out: &mut ActivationOutcome<R>,
    ) {
        self.last_activation += 1;
        self.counts.claimed += 1;
        let activation = ActivationId(self.last_activation);
        for host in &previous {
            self.ask(grain, activation, host.clone(), out);
        }
        let asked = previous.into_iter().map(Asked::new).collect();
        let until = now + self.config.handover_patience;
        let claim = Box::new(Claim { asked, until, silent: Vec::new() });
        self.enter(grain, Entry { activation, state: State::Claiming(claim) }, waiters);
        self.alarms.set(&Alarm::Claim(grain.clone()), (now + ASK_AGAIN).min(until));
    }

    /// `from` has answered; whoever it names is asked too.
    pub(super) fn note_answer(&mut self, record: &RelocationRecord, out: &mut ActivationOutcome<R>) {
        let grain = &record.grain;
        if !record.claim.as_ref().is_some_and(|claim| self.is_own_claim(grain, claim)) {
            return;
        }
        let (own, history) = (&self.own.authority, &self.history);
        let Some(Entry { activation, state: State::Claiming(claim), .. }) = self.entries.get_mut(grain)
        else {
            return;
        };
        let activation = *activation;
        let Some(asked) = claim.asked.iter_mut().find(|asked| asked.host.id == record.from.id) else {
            return;
        };
        asked.is_answered = true;
        let mut next = Vec::new();
        let named = record.went.iter().map(|host| (host, true));
        for (host, is_newer) in named.chain(record.before.iter().take(BEFORE_MAX).map(|host| (host, false))) {
            if host.authority == *own || history.has_left(&host.id) {
                continue;
            }
            let has_room = claim.asked.len() < ASKED_MAX;
            match claim.asked.iter_mut().find(|asked| asked.host.id == host.id) {
                // It had nothing when it was asked; since then it was given the grain.
                Some(asked) if is_newer && asked.is_answered && !asked.is_asked_again => {
                    asked.is_asked_again = true;
                    asked.is_answered = false;
                }
                Some(_) => continue,
                None if has_room => claim.asked.push(Asked::new(host.clone())),
                None => continue,
            }
            next.push(host.clone());
        }
        for host in next {
            self.ask(grain, activation, host, out);
        }
        self.settle_claim(grain, out);
    }

    /// These members are gone: they will not answer.
    pub(super) fn note_gone(&mut self, gone: &[GossipMemberId], out: &mut ActivationOutcome<R>) {
        if gone.is_empty() {
            return;
        }
        let mut settled = Vec::new();
        for (grain, entry) in &mut self.entries {
            let State::Claiming(claim) = &mut entry.state else { continue };
            let Claim { asked, silent, .. } = &mut **claim;
            for asked in asked.iter_mut().filter(|asked| !asked.is_answered && gone.contains(&asked.host.id))
            {
                asked.is_answered = true;
                silent.push(asked.host.id.clone());
            }
            settled.push(grain.clone());
        }
        for grain in settled {
            // Whoever comes after them may have what they had.
            let heirs = self.previous_hosts(&grain);
            let Some(Entry { activation, state: State::Claiming(claim), .. }) = self.entries.get_mut(&grain)
            else {
                continue;
            };
            let (activation, asked) = (*activation, &mut claim.asked);
            let is_new = |host: &GrainHost| asked.iter().all(|asked| asked.host.id != host.id);
            let heirs: Vec<_> = heirs.into_iter().filter(is_new).collect();
            asked.extend(heirs.iter().cloned().map(Asked::new));
            for host in heirs {
                self.ask(&grain, activation, host, out);
            }
            self.settle_claim(&grain, out);
        }
    }

    /// Asks again whoever has not answered, or has no more patience.
    pub(super) fn claim_due(
        &mut self,
        grain: &ClusterIdentity,
        now: TimerInstant,
        out: &mut ActivationOutcome<R>,
    ) {
        let Some(Entry { activation, state: State::Claiming(claim), .. }) = self.entries.get_mut(grain)
        else {
            return;
        };
        let (activation, until) = (*activation, claim.until);
        let pending = claim.asked.iter_mut().filter(|asked| !asked.is_answered);
        if until <= now {
            let silent: Vec<_> = pending
                .map(|asked| {
                    asked.is_answered = true;
                    asked.host.id.clone()
                })
                .collect();
            claim.silent.extend(silent);
            return self.settle_claim(grain, out);
        }
        let pending: Vec<_> = pending.map(|asked| asked.host.clone()).collect();
        for host in pending {
            self.ask(grain, activation, host, out);
        }
        self.alarms.set(&Alarm::Claim(grain.clone()), (now + ASK_AGAIN).min(until));
    }

    /// Gives a claim up. Returns who was asked.
    pub(super) fn drop_claim(&mut self, grain: &ClusterIdentity) -> Vec<GrainHost> {
        self.alarms.clear(&Alarm::Claim(grain.clone()));
        match self.entries.remove(grain) {
            Some(Entry { state: State::Claiming(claim), .. }) => {
                claim.asked.into_iter().map(|asked| asked.host).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Remembers to whom a grain goes.
    pub(super) fn note_yield(
        &mut self,
        grain: &ClusterIdentity,
        to: &GrainHost,
        claim: Option<u64>,
        ceded_at: Option<u64>,
        now: TimerInstant,
    ) {
        let went = self
            .yielded
            .get(grain)
            .and_then(|known| if known.to.id == to.id { known.went.clone() } else { Some(known.to.clone()) });
        let yielded = Yielded { to: to.clone(), claim, went, ceded_at, is_back: false };
        self.yielded.insert(grain, yielded, now + self.config.handover_window);
    }

    /// To whom this node yielded a grain that it would own by its roster.
    pub(super) fn ceded(&self, grain: &ClusterIdentity) -> Option<&GrainHost> {
        let is_ceded =
            |yielded: &&Yielded| !yielded.is_back && yielded.ceded_at == Some(self.history.generation());
        self.yielded.get(grain).filter(is_ceded).map(|yielded| &yielded.to)
    }

    /// Who may still run `grain` or hold its state.
    pub(super) fn previous_hosts(&self, grain: &ClusterIdentity) -> Vec<GrainHost> {
        let mut previous = self.history.previous_owners(grain, self.config.placement, &self.own);
        if let Some(Yielded { to, ceded_at, .. }) = self.yielded.get(grain)
            // One that this node has not heard of yet may be there all the same.
            && (self.history.is_listed(&to.id) || ceded_at.is_some() && !self.history.has_left(&to.id))
            && to.authority != self.own.authority
            && previous.iter().all(|host| host.id != to.id)
        {
            previous.push(to.clone());
        }
        previous
    }

    /// Answers a claim of a grain that does not run here.
    fn answer_claim(
        &mut self,
        grain: &ClusterIdentity,
        from: GrainHost,
        number: u64,
        mut before: Vec<GrainHost>,
        now: TimerInstant,
        out: &mut ActivationOutcome<R>,
    ) {
        let owner = self.owner(grain).filter(|owner| owner.runtime == PeerRuntime::Synod);
        before.extend(owner.map(GrainHost::from));
        // Who comes after both, if one of them left and came back before others had noticed.
        if self.history.is_recent() {
            let others = self.history.members().iter().filter(|member| {
                let is_one_of_us = [&self.own.authority, &from.authority].contains(&&member.authority);
                !is_one_of_us && member.runtime == PeerRuntime::Synod
            });
            before.extend(self.config.placement.owner(grain, others).map(GrainHost::from));
        }
        before.extend(self.previous_hosts(grain));
        let is_there = |host: &GrainHost| host.id != from.id && !self.history.has_left(&host.id);
        before.retain(|host| host.authority != self.own.authority && is_there(host));
        before.sort();
        before.dedup();
        before.truncate(BEFORE_MAX);
        let went = self.yielded.get(grain).and_then(|yielded| yielded.went.clone());
        let mut went = went.filter(is_there);
        let Estate { stopped, snapshot, sent_to } = self.take_estate(grain);
        if let Some(sent_to) = sent_to {
            // It may have arrived there.
            went = (sent_to.id != from.id).then_some(sent_to);
        }
        let claim = Some(ClaimId { claimer: from.id.clone(), number });
        let (grain, own, is_leaving) = (grain.clone(), self.own.clone(), self.leaving);
        let record =
            RelocationRecord { grain, from: own, stopped, snapshot, claim, before, went, is_leaving };
        self.send_record(from, record, now, out);
    }

    fn ask(
        &self,
        grain: &ClusterIdentity,
        activation: ActivationId,
        to: GrainHost,
        out: &mut ActivationOutcome<R>,
    ) {
        let (from, roster) = (self.own.clone(), self.history.digest());
        let claim = ClaimRecord { grain: grain.clone(), from, number: activation.0, roster };
        out.commands.push(ActivationCommand::Claim { to, claim });
    }

    fn is_own_claim(&self, grain: &ClusterIdentity, claim: &ClaimId) -> bool {
        claim.claimer == self.own.id
            && self.entries.get(grain).is_some_and(|entry| {
                entry.activation.0 == claim.number && matches!(entry.state, State::Claiming(_))
            })
    }

    fn settle_claim(&mut self, grain: &ClusterIdentity, out: &mut ActivationOutcome<R>) {
        let Some(Entry { state: State::Claiming(claim), .. }) = self.entries.get_mut(grain) else { return };
        if claim.asked.iter().any(|asked| !asked.is_answered) {
            return;
        }
        let silent = mem::take(&mut claim.silent);
        if !silent.is_empty() {
            out.events.push(ActivationEvent::HandoverMissed { grain: grain.clone(), silent });
        }
        self.alarms.clear(&Alarm::Claim(grain.clone()));
        if let Some(Entry { activation, .. }) = self.entries.remove(grain) {
            let waiters = self.take_waiters(grain);
            self.spawn(grain, activation, waiters, out);
        }
    }
}

impl Asked {
    const fn new(host: GrainHost) -> Self {
        Self { host, is_answered: false, is_asked_again: false }
    }
}

/// The member as refusals name it.
pub(super) fn listed(host: &GrainHost) -> RosterMember {
    let GrainHost { id, authority } = host.clone();
    RosterMember { id, authority, kinds: Vec::new(), runtime: PeerRuntime::Synod }
}

/// When a question without an answer is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// Most members that one claim asks.
const ASKED_MAX: usize = 16;
