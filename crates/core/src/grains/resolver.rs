//! Whether an actor can be reached, going by the newest view of the cluster.
//!
//! A PID names a node by its address. Whether anything may be sent there is not up to the sender: it depends on who lives
//! at that address now, how that member stands, and whether the address is kept out.
//!
//! ```text
//!   text ──► does it fit? ──► is the address quarantined? ──► who is there, and how is it?
//!             │ PidError         │ Quarantine                    │ joining, up          Ready
//!                                                                │ suspect, leaving     Ready, with a hint
//!                                                                │ dead, removed, none  Unreachable
//! ```
//!
//! A view is complete and numbered. An older one than the last is refused, so no answer ever goes back behind another.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::identity::ClusterIdentity;
use super::pid::{ActorPid, PidError};
use super::rendezvous::PlacementHash;
use crate::gossip::GossipMemberId;
use crate::id::{Authority, MemberId};
use crate::membership::{NodeRecord, NodeStatus, QuarantineEntry, QuarantineReason};
use crate::roster::{PeerRuntime, RosterMember};

/// Numbers the views of one node, in the order in which it made them. Means nothing on another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewVersion(pub u64);

/// Everything that decides whether an actor can be reached.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    version: ViewVersion,
    hosts: Vec<RosterMember>,
    places: BTreeMap<Authority, Place>,
}

/// What is known of one address.
#[derive(Clone, Debug)]
struct Place {
    member: Option<(GossipMemberId, NodeStatus)>,
    quarantine: Option<String>,
}

impl ClusterView {
    /// Puts a view together: `roster` lists who there is, `records` say how the synod members stand and whom the roster
    /// lists no more, `quarantine` says which addresses are kept out.
    #[must_use]
    pub fn new(
        version: ViewVersion,
        roster: &[RosterMember],
        records: &[NodeRecord],
        quarantine: &[QuarantineEntry],
    ) -> Self {
        let standing: BTreeMap<GossipMemberId, &NodeRecord> =
            records.iter().map(|record| (GossipMemberId::from(&record.member), record)).collect();
        let status = |id: &GossipMemberId| standing.get(id).map_or(NodeStatus::Up, |record| record.status);
        let mut places: BTreeMap<Authority, Place> = BTreeMap::new();
        let listed = roster.iter().map(|member| (&member.authority, member.id.clone(), status(&member.id)));
        let recorded = standing.iter().map(|(id, record)| (&record.authority, id.clone(), record.status));
        for (authority, id, status) in listed.chain(recorded) {
            let place = places.entry(authority.clone()).or_insert(Place { member: None, quarantine: None });
            // An address outlives its members. Whoever lives there now speaks for it.
            if place.member.as_ref().is_none_or(|(_, known)| presence(status) > presence(*known)) {
                place.member = Some((id, status));
            }
        }
        for entry in quarantine {
            let place =
                places.entry(entry.authority.clone()).or_insert(Place { member: None, quarantine: None });
            if keeps_out(entry, place.member.as_ref().map(|(id, _)| id), roster) {
                place.quarantine = Some(entry.reason.to_string());
            }
        }
        let takes_grains = |member: &&RosterMember| {
            let quarantined = places.get(&member.authority).is_some_and(|place| place.quarantine.is_some());
            status(&member.id).is_active() && !quarantined
        };
        let hosts = roster.iter().filter(takes_grains).cloned().collect();
        Self { version, hosts, places }
    }

    /// Its number.
    #[must_use]
    pub const fn version(&self) -> ViewVersion {
        self.version
    }

    /// The members on which grains may be placed: on the roster, neither leaving nor kept out.
    #[must_use]
    pub fn hosts(&self) -> &[RosterMember] {
        &self.hosts
    }
}

/// What may be expected of an actor that can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteHint {
    /// Its node is silent and may be lost: expect to have to try again.
    Suspect,
    /// Its node is about to go: what lives there still answers, nothing new is placed there.
    Leaving,
}

/// Whether an actor can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveResult {
    /// It can.
    Ready {
        /// The actor; its text is canonical.
        pid: ActorPid,
        /// Who lives at its address.
        member: GossipMemberId,
        /// What to expect, if not the usual.
        hint: Option<RouteHint>,
        /// By which view.
        version: ViewVersion,
    },
    /// Nobody lives at its address. Nothing may be sent.
    Unreachable {
        /// The address.
        authority: Authority,
        /// Who lived there last, as far as is known, and what became of it.
        node: Option<(GossipMemberId, NodeStatus)>,
        /// By which view.
        version: ViewVersion,
    },
    /// Its address is kept out. Nothing may be sent.
    Quarantine {
        /// The address.
        authority: Authority,
        /// Why.
        reason: String,
        /// By which view.
        version: ViewVersion,
    },
}

/// A view is not newer than the one that is known. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("view {} is not newer than {}, which stands", offered.0, current.0)]
pub struct StaleView {
    /// The refused one.
    pub offered: ViewVersion,
    /// The one that stands.
    pub current: ViewVersion,
}

/// Answers whether actors can be reached, by the newest view it was given.
///
/// Input: [`handle_view`](Self::handle_view) whenever roster, membership or quarantine changed. Answers change nothing and
/// need no time. Before the first view nobody can be reached.
#[derive(Clone, Debug, Default)]
pub struct Resolver {
    view: ClusterView,
}

impl Resolver {
    /// A resolver without a view.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes by `view` from now on.
    ///
    /// # Errors
    /// Refused unless it is newer than the last.
    pub fn handle_view(&mut self, view: ClusterView) -> Result<(), StaleView> {
        let (offered, current) = (view.version, self.view.version);
        if offered <= current {
            return Err(StaleView { offered, current });
        }
        self.view = view;
        Ok(())
    }

    /// Whether the actor with this PID can be reached.
    ///
    /// # Errors
    /// The text is no PID.
    pub fn resolve(&self, pid: &str) -> Result<ResolveResult, PidError> {
        pid.parse().map(|pid| self.resolve_pid(pid))
    }

    /// Whether `pid` can be reached.
    #[must_use]
    pub fn resolve_pid(&self, pid: ActorPid) -> ResolveResult {
        let (version, authority) = (self.view.version, pid.authority());
        let place = self.view.places.get(authority);
        if let Some(Place { quarantine: Some(reason), .. }) = place {
            let (authority, reason) = (authority.clone(), reason.clone());
            return ResolveResult::Quarantine { authority, reason, version };
        }
        let hint = match place.and_then(|place| place.member.as_ref()) {
            Some((member, NodeStatus::Joining | NodeStatus::Up)) => Ok((member, None)),
            Some((member, NodeStatus::Suspect)) => Ok((member, Some(RouteHint::Suspect))),
            Some((member, NodeStatus::Leaving)) => Ok((member, Some(RouteHint::Leaving))),
            gone @ (Some((_, NodeStatus::Dead | NodeStatus::Removed)) | None) => Err(gone.cloned()),
        };
        match hint {
            Ok((member, hint)) => ResolveResult::Ready { member: member.clone(), pid, hint, version },
            Err(node) => ResolveResult::Unreachable { authority: authority.clone(), node, version },
        }
    }

    /// The member on which `grain` is to be placed, if there is one.
    #[must_use]
    pub fn locate(&self, grain: &ClusterIdentity, placement: PlacementHash) -> Option<&RosterMember> {
        placement.owner(grain, &self.view.hosts)
    }

    /// The view that stands.
    #[must_use]
    pub const fn view(&self) -> &ClusterView {
        &self.view
    }
}

/// How much a member in this state is there.
const fn presence(status: NodeStatus) -> u8 {
    match status {
        NodeStatus::Joining | NodeStatus::Up | NodeStatus::Suspect => 2,
        NodeStatus::Leaving => 1,
        NodeStatus::Dead | NodeStatus::Removed => 0,
    }
}

/// Whether a quarantine concerns whoever lives at the address. One that follows a death concerns that life only.
fn keeps_out(entry: &QuarantineEntry, member: Option<&GossipMemberId>, roster: &[RosterMember]) -> bool {
    let Some(id) = member else { return true };
    let is_foreign =
        roster.iter().any(|listed| listed.id == *id && listed.runtime == PeerRuntime::Protoactor);
    let life: Option<MemberId> = if is_foreign { None } else { id.as_str().parse().ok() };
    match (life, &entry.reason) {
        (Some(life), _) => entry.covers(&life),
        (None, QuarantineReason::Dead(_)) => false,
        (None, _) => true,
    }
}

#[cfg(test)]
mod tests;
