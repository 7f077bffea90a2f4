//! What happens to the grains of this node when they belong elsewhere: after a change of the roster, before this node
//! leaves, and when another node ran one of them too.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::mem;

use super::outbox::{Due, Parcel};
use super::outcome::{ClaimId, GrainHost, RelocationReceipt, RelocationRecord, STOPPED_MAX};
use super::{
    ActivationCommand, ActivationEvent, ActivationOutcome, ActivationRefusal, Alarm, Entry, GrainSnapshot,
    SnapshotDrop, State, StopReason, VirtualActorRegistry,
};
use crate::gossip::GossipMemberId;
use crate::grains::{ActorPid, ClusterIdentity};
use crate::roster::{PeerRuntime, RosterMember};
use crate::time::TimerInstant;

/// What a grain leaves behind on a node where it does not run.
pub(super) struct Estate {
    /// Activations that have ended and that its owner may not know of.
    pub(super) stopped: Vec<ActorPid>,
    pub(super) snapshot: Option<GrainSnapshot>,
    /// Where it was on its way to.
    pub(super) sent_to: Option<GrainHost>,
}

impl<R> VirtualActorRegistry<R> {
    /// Goes by this roster from now on. Grains that another member hosts by it are stopped, and states that are kept for
    /// such are handed over.
    pub fn handle_roster(&mut self, members: &[RosterMember], now: TimerInstant) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        self.forget(now);
        let left: Vec<_> = self
            .history
            .members()
            .iter()
            .filter(|member| members.iter().all(|other| other.id != member.id))
            .map(|member| member.id.clone())
            .collect();
        self.history.advance(members, &self.own, now);
        self.yield_grains(StopReason::Moved, now, &mut out);
        self.note_gone(&left, &mut out);
        self.readdress(&left, now, &mut out);
        self.finish(out)
    }

    /// This node lives on as `own`. The roster that follows decides what that changes.
    pub fn handle_rejoin(&mut self, own: GossipMemberId) {
        self.own.id = own;
    }

    /// This node leaves: nothing is started any more, and what runs is stopped. [`ActivationEvent::Drained`] tells when
    /// that is done and every state has arrived elsewhere. There is no way back.
    pub fn handle_leave(&mut self, now: TimerInstant) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        self.leaving = true;
        self.yield_grains(StopReason::Leaving, now, &mut out);
        self.finish(out)
    }

    /// A host of a grain yields it, with its state or without. A state is kept until the grain starts; it may come before
    /// the roster that makes this node the owner. If the grain runs here, it ran twice, and this one stays.
    pub fn handle_relocation(&mut self, record: RelocationRecord, now: TimerInstant) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        self.forget(now);
        if record.is_leaving && self.leavers.get(&record.from.id).is_none() {
            self.leavers.insert(&record.from.id, (), now + self.config.handover_window);
        }
        if self.leaving {
            self.send_past(record, now, &mut out);
            return self.finish(out);
        }
        let grain = &record.grain;
        if record.is_confirmed() {
            self.confirm(&record, &mut out);
        }
        for theirs in record.stopped.iter().take(STOPPED_MAX) {
            self.note_end(grain, theirs, &record.from, now, &mut out);
        }
        if let Some(snapshot) = record.snapshot.clone() {
            self.take_in(grain, snapshot, now, &mut out);
        }
        self.note_answer(&record, &mut out);
        self.finish(out)
    }

    /// What was handed over has arrived.
    pub fn handle_receipt(&mut self, receipt: &RelocationReceipt) -> ActivationOutcome<R> {
        let RelocationReceipt { grain, by, stopped, version } = receipt;
        let is_it = self.outbox.get(grain).is_some_and(|parcel| {
            let sent = parcel.record.snapshot.as_ref().map(|snapshot| snapshot.version);
            parcel.to.id == *by && parcel.record.stopped == *stopped && sent == *version
        });
        if is_it {
            self.outbox.take(grain);
        }
        self.finish(ActivationOutcome::default())
    }
}

impl<R> VirtualActorRegistry<R> {
    pub(super) fn owner(&self, grain: &ClusterIdentity) -> Option<&RosterMember> {
        self.config.placement.owner(grain, self.history.members())
    }

    /// Who hosts the grain when this node does not.
    pub(super) fn successor(&self, grain: &ClusterIdentity) -> Option<&RosterMember> {
        let others = self.history.members().iter().filter(|member| member.id != self.own.id);
        self.config.placement.owner(grain, others)
    }

    /// Who hosts the grain when all are gone who are known to leave.
    fn heir(&self, grain: &ClusterIdentity) -> Option<&RosterMember> {
        let stays = |member: &&RosterMember| {
            let leaves = self.leaving && member.id == self.own.id;
            !leaves && self.leavers.get(&member.id).is_none()
        };
        self.config.placement.owner(grain, self.history.members().iter().filter(stays))
    }

    /// Who hosts the grain from now on.
    pub(super) fn next_host(&self, grain: &ClusterIdentity) -> Option<GrainHost> {
        if let Some(to) = self.ceded(grain) {
            return Some(to.clone());
        }
        // Who leaves would only have to pass it on, and may not get that done.
        let next =
            self.heir(grain).or_else(|| if self.leaving { self.successor(grain) } else { self.owner(grain) });
        next.map(GrainHost::from)
    }

    /// The activation `pid`, if there was one, does not run here any more. Keeps its state, or hands both to whoever hosts
    /// the grain.
    pub(super) fn pass_on(
        &mut self,
        grain: &ClusterIdentity,
        pid: Option<&ActorPid>,
        snapshot: Option<GrainSnapshot>,
        now: TimerInstant,
        out: &mut ActivationOutcome<R>,
    ) {
        if let Some(snapshot) = snapshot {
            self.keep_newer(grain, snapshot, out);
        }
        let Some(to) = self.next_host(grain).filter(|host| host.id != self.own.id) else { return };
        if self.is_foreign(&to.id) {
            let snapshot = self.snapshots.take(grain);
            // Kept here it would only grow stale, and be taken for the truth when the grain returns.
            let dropped =
                snapshot.map(|snapshot| (grain.clone(), snapshot.version, SnapshotDrop::ForeignHost));
            return out.tell_drops(dropped);
        }
        let Estate { mut stopped, snapshot, sent_to } = self.take_estate(grain);
        add_latest(&mut stopped, pid.cloned());
        let went = sent_to.filter(|other| other.id != to.id);
        if stopped.is_empty() && snapshot.is_none() {
            return;
        }
        let known = self.yielded.get(grain).filter(|known| known.to.id == to.id);
        let (number, ceded_at) = known.map_or((None, None), |known| (known.claim, known.ceded_at));
        if known.is_none() || !stopped.is_empty() {
            self.note_yield(grain, &to, number, ceded_at, now);
        }
        let claim = number.map(|number| ClaimId { claimer: to.id.clone(), number });
        let (grain, from, before, is_leaving) = (grain.clone(), self.own.clone(), Vec::new(), self.leaving);
        let record = RelocationRecord { grain, from, stopped, snapshot, claim, before, went, is_leaving };
        self.send_record(to, record, now, out);
    }

    /// Takes everything out of the tables that whoever hosts the grain next is to have.
    pub(super) fn take_estate(&mut self, grain: &ClusterIdentity) -> Estate {
        let (mut stopped, mut sent_to) = (Vec::new(), None);
        let mut snapshot = self.snapshots.take(grain);
        if let Some(Parcel { to, record, .. }) = self.outbox.take(grain) {
            // What is still on its way may be newer.
            if version(snapshot.as_ref()) < version(record.snapshot.as_ref()) {
                snapshot = record.snapshot;
            }
            stopped = record.stopped;
            sent_to = Some(to);
        }
        add_latest(&mut stopped, self.strays.remove(grain).into_iter().flatten());
        Estate { stopped, snapshot, sent_to }
    }

    /// Remembers ends that the owner of the grain may have to be told of.
    pub(super) fn add_strays(
        &mut self,
        grain: &ClusterIdentity,
        ended: impl IntoIterator<Item = ActorPid>,
        now: TimerInstant,
    ) {
        let mut strays = self.strays.remove(grain).unwrap_or_default();
        add_latest(&mut strays, ended);
        if !strays.is_empty() {
            self.strays.insert(grain, strays, now + self.config.handover_window);
        }
    }

    fn confirm(&self, record: &RelocationRecord, out: &mut ActivationOutcome<R>) {
        let (grain, by, stopped) = (record.grain.clone(), self.own.id.clone(), record.stopped.clone());
        let receipt = RelocationReceipt { grain, by, stopped, version: version(record.snapshot.as_ref()) };
        out.commands.push(ActivationCommand::Confirm { to: record.from.clone(), receipt });
    }

    /// This node leaves, and somebody who does not know it hands it a grain. It goes on to whoever comes next. If that is
    /// its sender, who stays, or this node is as good as gone or knows nobody, it is not confirmed: its sender keeps it, and
    /// goes on with it as soon as it hears that this node is gone.
    fn send_past(&mut self, mut record: RelocationRecord, now: TimerInstant, out: &mut ActivationOutcome<R>) {
        if self.drained || !record.is_confirmed() {
            return;
        }
        let Some(to) = self.heir(&record.grain).map(GrainHost::from) else { return };
        // Anyone else would not be asked for it: whoever owns it next takes its sender for the heir of this node.
        if to.id == record.from.id || self.is_foreign(&to.id) {
            return;
        }
        // One and the same state may be on its way to its sender, who gives it back before it has confirmed it.
        let is_known =
            |parcel: &Parcel| version(parcel.record.snapshot.as_ref()) >= version(record.snapshot.as_ref());
        if self.outbox.get(&record.grain).is_some_and(is_known) {
            return;
        }
        self.confirm(&record, out);
        let mut stopped =
            self.outbox.take(&record.grain).map_or_else(Vec::new, |parcel| parcel.record.stopped);
        add_latest(&mut stopped, mem::take(&mut record.stopped));
        // Who asks for it while this node is still there is sent after it.
        self.note_yield(&record.grain, &to, None, None, now);
        let (from, claim, before, went, is_leaving) = (self.own.clone(), None, Vec::new(), None, true);
        let record = RelocationRecord { from, stopped, claim, before, went, is_leaving, ..record };
        self.send_record(to, record, now, out);
    }

    /// Keeps a state of this node's own. Of several the newest goes on; an older one is of no use any more.
    pub(super) fn keep_newer(
        &mut self,
        grain: &ClusterIdentity,
        snapshot: GrainSnapshot,
        out: &mut ActivationOutcome<R>,
    ) {
        let dropped = self.snapshots.keep(grain, snapshot);
        out.tell_drops(dropped.into_iter().filter(|(_, _, reason)| *reason != SnapshotDrop::Stale));
    }

    /// Sends a record, and keeps it until it is confirmed if there is anything in it to be lost.
    pub(super) fn send_record(
        &mut self,
        to: GrainHost,
        record: RelocationRecord,
        now: TimerInstant,
        out: &mut ActivationOutcome<R>,
    ) {
        if record.is_confirmed() {
            self.counts.yielded += u64::from(!record.stopped.is_empty());
            let dropped = self.outbox.put(to.clone(), record.clone(), now);
            out.tell_drops(dropped);
        }
        out.commands.push(ActivationCommand::Transfer { to, record });
    }

    /// Sends again what is not confirmed, and gives up what was not for too long.
    pub(super) fn poll_outbox(&mut self, now: TimerInstant, out: &mut ActivationOutcome<R>) {
        while let Some(due) = self.outbox.pop_due(self.leaving, now) {
            match due {
                Due::Send(to, record) => {
                    // It may have begun to leave since.
                    let record = RelocationRecord { is_leaving: self.leaving, ..record };
                    out.commands.push(ActivationCommand::Transfer { to, record });
                }
                Due::GiveUp(RelocationRecord { grain, snapshot, .. }) => {
                    out.tell_drops(snapshot.map(|kept| (grain, kept.version, SnapshotDrop::Undelivered)));
                }
            }
        }
    }

    /// What has come to a node that does not own the grain goes on to the owner.
    pub(super) fn misplaced_due(
        &mut self,
        grain: &ClusterIdentity,
        now: TimerInstant,
        out: &mut ActivationOutcome<R>,
    ) {
        if !self.entries.contains_key(grain) {
            self.pass_on(grain, None, None, now, out);
        }
    }

    fn is_foreign(&self, id: &GossipMemberId) -> bool {
        let members = self.history.members();
        members.iter().any(|member| member.id == *id && member.runtime == PeerRuntime::Protoactor)
    }

    /// Hears that `theirs` is over. If the grain runs here and nobody has told of that end before, it ran twice.
    fn note_end(
        &mut self,
        grain: &ClusterIdentity,
        theirs: &ActorPid,
        from: &GrainHost,
        now: TimerInstant,
        out: &mut ActivationOutcome<R>,
    ) {
        let key = (grain.clone(), theirs.clone());
        if self.ended.get(&key).is_some() {
            return;
        }
        self.ended.insert(&key, (), now + self.config.handover_window);
        // A newcomer may be gone again before this node has heard of it.
        if let Some(yielded) = self.yielded.get_mut(grain).filter(|yielded| yielded.to.id == from.id) {
            yielded.is_back = true;
        }
        let entry = self.entries.get(grain).filter(|entry| !matches!(entry.state, State::Claiming(_)));
        let Some(entry) = entry else {
            // Until it starts here, the grain may turn out to belong to somebody who ran it too.
            self.add_strays(grain, [theirs.clone()], now);
            return self.watch_misplaced(grain, now);
        };
        let kept = entry.state.pid().cloned();
        if kept.as_ref() != Some(theirs) {
            let stopped = theirs.clone();
            out.events.push(ActivationEvent::Duplicate { grain: grain.clone(), kept, stopped });
        }
    }

    /// Keeps a state that another node handed over.
    fn take_in(
        &mut self,
        grain: &ClusterIdentity,
        snapshot: GrainSnapshot,
        now: TimerInstant,
        out: &mut ActivationOutcome<R>,
    ) {
        let version = snapshot.version;
        if !self.kinds.contains_key(grain.kind()) {
            return out.tell_drops([(grain.clone(), version, SnapshotDrop::UnknownKind)]);
        }
        let entry = self.entries.get(grain);
        if let Some(State::Spawning { restored } | State::Active { restored, .. }) =
            entry.map(|entry| &entry.state)
        {
            // The one it was started from comes twice when its receipt was lost.
            if restored.is_none_or(|restored| restored < version) {
                out.tell_drops([(grain.clone(), version, SnapshotDrop::Late)]);
            }
            return;
        }
        if self.snapshots.get(grain).is_some_and(|known| known.version == version) {
            return;
        }
        let is_idle = entry.is_none();
        let dropped = self.snapshots.keep(grain, snapshot);
        out.tell_drops(dropped);
        if is_idle {
            self.watch_misplaced(grain, now);
        }
    }

    /// If something about a grain has come to the wrong node, either its sender lags behind, or this node does. After a
    /// while that is clear, and it is seen to then.
    fn watch_misplaced(&mut self, grain: &ClusterIdentity, now: TimerInstant) {
        if self.next_host(grain).is_some_and(|host| host.id != self.own.id) {
            self.alarms.set(&Alarm::Misplaced(grain.clone()), now + self.config.handover_patience);
        }
    }

    /// What was on its way to members that are gone goes to whoever hosts it now.
    fn readdress(&mut self, left: &[GossipMemberId], now: TimerInstant, out: &mut ActivationOutcome<R>) {
        if left.is_empty() {
            return;
        }
        let is_lost = |parcel: &&Parcel| left.contains(&parcel.to.id);
        let lost: Vec<_> =
            self.outbox.parcels().filter(is_lost).map(|parcel| parcel.record.grain.clone()).collect();
        for grain in lost {
            let Some(Parcel { record: RelocationRecord { stopped, snapshot, .. }, .. }) =
                self.outbox.take(&grain)
            else {
                continue;
            };
            self.add_strays(&grain, stopped, now);
            if let Some(snapshot) = snapshot {
                self.take_in(&grain, snapshot, now, out);
            }
            self.misplaced_due(&grain, now, out);
        }
    }

    /// Stops what another member hosts, refuses whoever waits for it, and hands over the states that are kept.
    fn yield_grains(&mut self, reason: StopReason, now: TimerInstant, out: &mut ActivationOutcome<R>) {
        // When nobody at all hosts a grain, stopping it would help nobody.
        let yields = |registry: &Self, grain: &ClusterIdentity| -> Option<ActivationRefusal> {
            match registry.may_start(grain) {
                Ok(()) | Err(ActivationRefusal::NoOwner { .. }) => None,
                Err(refusal) => Some(refusal),
            }
        };
        let yielded: Vec<_> = self
            .entries
            .keys()
            .filter_map(|grain| yields(self, grain).map(|refusal| (grain.clone(), refusal)))
            .collect();
        for (grain, refusal) in yielded {
            let Some(entry) = self.entries.get(&grain) else { continue };
            let is_claiming = matches!(entry, Entry { state: State::Claiming(_), .. });
            for waiter in self.take_waiters(&grain) {
                out.refuse(waiter, &grain, refusal.clone());
            }
            if is_claiming {
                self.drop_claim(&grain);
            } else {
                self.stop(&grain, reason, out);
            }
        }
        let kept = self.snapshots.grains().chain(self.strays.keys());
        let kept: BTreeSet<_> = kept.filter(|grain| !self.entries.contains_key(grain)).cloned().collect();
        for grain in kept {
            self.pass_on(&grain, None, None, now, out);
        }
    }
}

fn version(snapshot: Option<&GrainSnapshot>) -> Option<u64> {
    snapshot.map(|snapshot| snapshot.version)
}

/// Adds activations that are not known yet; if they become too many, the oldest are forgotten.
fn add_latest(known: &mut Vec<ActorPid>, more: impl IntoIterator<Item = ActorPid>) {
    for pid in more {
        if !known.contains(&pid) {
            known.push(pid);
        }
    }
    known.drain(..known.len().saturating_sub(STOPPED_MAX));
}
