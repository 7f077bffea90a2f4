//! Who the peers are and where: the roster as gossip needs it.

use std::collections::BTreeMap;

use synod_core::Authority;
use synod_core::gossip::GossipMemberId;
use synod_core::roster::{RosterMember, RosterUpdate};

/// The roster by id and by address.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_id: BTreeMap<GossipMemberId, RosterMember>,
    by_authority: BTreeMap<Authority, GossipMemberId>,
}

impl Peers {
    /// Replaces the roster. Returns who is gone: whoever was in the roster before, and whoever the update says has
    /// left, and is not in it now. Updates in between may have been missed, so neither says it all.
    pub(super) fn replace(&mut self, update: &RosterUpdate) -> Vec<GossipMemberId> {
        let by_id = update.members.iter().map(|member| (member.id.clone(), member.clone()));
        let before = std::mem::replace(&mut self.by_id, by_id.collect());
        let addresses = update.members.iter().map(|member| (member.authority.clone(), member.id.clone()));
        self.by_authority = addresses.collect();
        let left = update.left.iter().map(|member| member.id.clone());
        let mut gone: Vec<_> =
            before.into_keys().chain(left).filter(|id| !self.by_id.contains_key(id)).collect();
        gone.sort();
        gone.dedup();
        gone
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn ids(&self) -> Vec<GossipMemberId> {
        self.by_id.keys().cloned().collect()
    }

    pub(super) fn member(&self, id: &GossipMemberId) -> Option<&RosterMember> {
        self.by_id.get(id)
    }

    pub(super) fn at(&self, authority: &Authority) -> Option<&GossipMemberId> {
        self.by_authority.get(authority)
    }
}
