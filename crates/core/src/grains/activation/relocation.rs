//! What happens to the grains of this node when they belong elsewhere: after a change of the roster, before this node
//! leaves, and when another node runs one of them too.

use alloc::vec::Vec;
use core::mem;

use super::{
    ActivationCommand, ActivationEvent, ActivationOutcome, ActivationRefusal, Entry, GrainSnapshot,
    RelocationRecord, SnapshotDrop, State, StopReason, VirtualActorRegistry,
};
use crate::gossip::GossipMemberId;
use crate::grains::{ActorPid, ClusterIdentity};
use crate::roster::{PeerRuntime, RosterMember};

/// What another node says about an activation of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerReport {
    /// It runs.
    Claimed,
    /// It is over.
    Terminated,
}

impl<R> VirtualActorRegistry<R> {
    /// Goes by this roster from now on. Grains that another member hosts by it are stopped, and states that are kept for
    /// such are handed over.
    pub fn handle_roster(&mut self, members: &[RosterMember]) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        self.members = members.to_vec();
        self.yield_grains(StopReason::Moved, &mut out);
        self.finish(out)
    }

    /// This node lives on as `own`. The roster that follows decides what that changes.
    pub fn handle_rejoin(&mut self, own: GossipMemberId) {
        self.own = own;
    }

    /// This node leaves: nothing is started any more, and what runs is stopped. [`ActivationEvent::Drained`] tells when
    /// that is done. There is no way back.
    pub fn handle_leave(&mut self) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        self.leaving = true;
        self.yield_grains(StopReason::Leaving, &mut out);
        self.finish(out)
    }

    /// The last host of a grain hands its state over, or the application brings one. It is kept until the grain starts;
    /// it may come before the roster that makes this node the owner.
    pub fn handle_relocation(&mut self, record: RelocationRecord) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        let RelocationRecord { grain, snapshot, .. } = record;
        let runs = matches!(
            self.entries.get(&grain),
            Some(Entry { state: State::Spawning { .. } | State::Active { .. }, .. })
        );
        let refusal = if !self.kinds.contains_key(grain.kind()) {
            Some(SnapshotDrop::UnknownKind)
        } else if runs {
            Some(SnapshotDrop::Late)
        } else {
            None
        };
        match refusal {
            Some(reason) => out.tell_drops([(grain, snapshot.version, reason)].into()),
            None => {
                let dropped = self.snapshots.keep(&grain, snapshot);
                out.tell_drops(dropped);
            }
        }
        self.finish(out)
    }

    /// Another node reports its activation `theirs` of `grain`. If the grain runs here too, the owner by the current
    /// roster keeps it and the other one is stopped.
    pub fn handle_peer_activation(
        &mut self,
        grain: &ClusterIdentity,
        theirs: &ActorPid,
        report: PeerReport,
    ) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        let Some(ours) = self.entries.get(grain).map(|entry| entry.state.pid().cloned()) else {
            return self.finish(out);
        };
        let winner = self.next_host(grain).map(|host| host.id.clone());
        let is_ours_to_keep = winner.as_ref() == Some(&self.own);
        // An activation that is over is no second one. It only matters if it shows that this node lags behind.
        if ours.as_ref() == Some(theirs) || is_ours_to_keep && report == PeerReport::Terminated {
            return self.finish(out);
        }
        let theirs = theirs.clone();
        if is_ours_to_keep {
            let grain = grain.clone();
            out.commands.push(ActivationCommand::StopRemote { grain, pid: theirs.clone() });
        } else {
            self.stop(grain, StopReason::Duplicate, &mut out);
        }
        out.events.push(ActivationEvent::Duplicate { grain: grain.clone(), ours, theirs, winner });
        self.finish(out)
    }
}

impl<R> VirtualActorRegistry<R> {
    pub(super) fn owner(&self, grain: &ClusterIdentity) -> Option<&RosterMember> {
        self.config.placement.owner(grain, &self.members)
    }

    /// Who hosts the grain when this node does not.
    pub(super) fn successor(&self, grain: &ClusterIdentity) -> Option<&RosterMember> {
        self.config.placement.owner(grain, self.members.iter().filter(|member| member.id != self.own))
    }

    /// Who hosts the grain from now on.
    pub(super) fn next_host(&self, grain: &ClusterIdentity) -> Option<&RosterMember> {
        if self.leaving { self.successor(grain) } else { self.owner(grain) }
    }

    /// Keeps the state of a grain that does not run here, or hands it to whoever hosts the grain.
    pub(super) fn pass_on(
        &mut self,
        grain: &ClusterIdentity,
        snapshot: GrainSnapshot,
        out: &mut ActivationOutcome<R>,
    ) {
        let Some(to) = self.next_host(grain).filter(|host| host.id != self.own).cloned() else {
            let dropped = self.snapshots.keep(grain, snapshot);
            return out.tell_drops(dropped);
        };
        // What could not be kept here cannot be kept there either.
        match self.snapshots.check(grain, &snapshot) {
            Ok(()) => {
                // An older state that waited here is of no use any more.
                self.snapshots.take(grain);
                self.transfer(to, grain, snapshot, out);
            }
            Err(SnapshotDrop::Stale) => self.hand_over(grain, out),
            Err(reason) => out.tell_drops([(grain.clone(), snapshot.version, reason)].into()),
        }
    }

    /// Hands over the state that is kept for `grain` if another member hosts it.
    fn hand_over(&mut self, grain: &ClusterIdentity, out: &mut ActivationOutcome<R>) {
        let host = self.next_host(grain).filter(|host| host.id != self.own).cloned();
        if let Some(to) = host
            && let Some(snapshot) = self.snapshots.take(grain)
        {
            self.transfer(to, grain, snapshot, out);
        }
    }

    fn transfer(
        &self,
        to: RosterMember,
        grain: &ClusterIdentity,
        snapshot: GrainSnapshot,
        out: &mut ActivationOutcome<R>,
    ) {
        if to.runtime == PeerRuntime::Protoactor {
            // Kept here it would only grow stale, and be taken for the truth when the grain returns.
            return out.tell_drops([(grain.clone(), snapshot.version, SnapshotDrop::ForeignHost)].into());
        }
        let record = RelocationRecord { grain: grain.clone(), from: self.own.clone(), snapshot };
        out.commands.push(ActivationCommand::Transfer { to, record });
    }

    /// Stops what another member hosts, refuses whoever waits for it, and hands over the states that are kept.
    fn yield_grains(&mut self, reason: StopReason, out: &mut ActivationOutcome<R>) {
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
            if let Some(entry) = self.entries.get_mut(&grain) {
                for waiter in mem::take(&mut entry.waiters) {
                    out.refuse(waiter, &grain, refusal.clone());
                }
            }
            self.stop(&grain, reason, out);
        }
        let kept: Vec<_> =
            self.snapshots.grains().filter(|grain| !self.entries.contains_key(grain)).cloned().collect();
        for grain in kept {
            self.hand_over(&grain, out);
        }
    }
}
