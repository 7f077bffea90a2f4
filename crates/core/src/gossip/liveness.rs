//! Who is heard, who is blocked, and whose farewell is still being told.
//!
//! A sign of life is a heartbeat with a greater number than the last, noted at the time it arrived *here*: an echo of an
//! old one is none, and no clock is compared with another. Whoever is silent for too long is blocked, and so is whoever
//! says goodbye. A blocked id never returns, because ids are never used twice; its process may, under a new one. Only a
//! verdict of this node's own side of a split can be wrong, and is taken back when this node changes sides.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::id::GossipMemberId;
use crate::time::TimerInstant;

/// Why a member is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockReason {
    /// It was silent for longer than the heartbeat expiration.
    Expired,
    /// It announced that it leaves.
    Left,
    /// The driver asked for it.
    Requested,
    /// It is this node itself, in an earlier life.
    Outlived,
}

/// Signs of life and the block list.
#[derive(Clone, Debug, Default)]
pub(super) struct Liveness {
    alive_at: BTreeMap<GossipMemberId, TimerInstant>,
    blocked: BTreeMap<GossipMemberId, BlockReason>,
    blocked_order: VecDeque<GossipMemberId>,
    farewells: VecDeque<(TimerInstant, GossipMemberId)>,
}

impl Liveness {
    /// A sign of life.
    pub(super) fn note_alive(&mut self, member: &GossipMemberId, now: TimerInstant) {
        self.alive_at.insert(member.clone(), now);
    }

    /// Something of the member is known; if it never gives a sign of life, its silence begins here.
    pub(super) fn note_known(&mut self, member: &GossipMemberId, now: TimerInstant) {
        if let Entry::Vacant(vacant) = self.alive_at.entry(member.clone()) {
            vacant.insert(now);
        }
    }

    /// The member is this node itself now, whose silence nobody waits for.
    pub(super) fn forget(&mut self, member: &GossipMemberId) {
        self.alive_at.remove(member);
    }

    /// This node itself was paused for that long before `now`, which is nobody's silence.
    pub(super) fn forgive(&mut self, pause: Duration, now: TimerInstant) {
        for at in self.alive_at.values_mut() {
            *at = now.min(*at + pause);
        }
    }

    /// Members that have been silent for longer than `expiration`.
    pub(super) fn expired(&self, expiration: Duration, now: TimerInstant) -> Vec<GossipMemberId> {
        let silent = |at: TimerInstant| now.saturating_since(at) > expiration;
        self.alive_at.iter().filter(|(_, at)| silent(**at)).map(|(member, _)| member.clone()).collect()
    }

    /// Blocks a member. False when it is blocked already. The list is bounded: the id that has been on it for longest
    /// makes room, by which time nobody speaks of it any more.
    pub(super) fn block(&mut self, member: &GossipMemberId, reason: BlockReason) -> bool {
        if self.blocked.contains_key(member) {
            return false;
        }
        if self.blocked_order.len() == BLOCKED_MAX
            && let Some(oldest) = self.blocked_order.pop_front()
        {
            self.blocked.remove(&oldest);
        }
        self.alive_at.remove(member);
        self.blocked.insert(member.clone(), reason);
        self.blocked_order.push_back(member.clone());
        true
    }

    /// Takes back what was blocked on request. What silence and farewells have shown is true for anybody.
    pub(super) fn pardon_requested(&mut self) {
        self.blocked.retain(|_, reason| *reason != BlockReason::Requested);
        self.blocked_order.retain(|member| self.blocked.contains_key(member));
    }

    /// The farewell of a member is told until `until`, which never lies before that of an earlier call.
    pub(super) fn tell_farewell(&mut self, member: &GossipMemberId, until: TimerInstant) {
        self.farewells.push_back((until, member.clone()));
    }

    /// Takes one member whose farewell has been told long enough; call until it returns `None`.
    pub(super) fn pop_farewell(&mut self, now: TimerInstant) -> Option<GossipMemberId> {
        self.farewells.front().filter(|(until, _)| *until <= now)?;
        self.farewells.pop_front().map(|(_, member)| member)
    }

    pub(super) fn is_blocked(&self, member: &GossipMemberId) -> bool {
        self.blocked.contains_key(member)
    }

    pub(super) fn blocked(&self) -> impl Iterator<Item = (&GossipMemberId, BlockReason)> {
        self.blocked.iter().map(|(member, reason)| (member, *reason))
    }
}

/// Most ids on the block list.
pub const BLOCKED_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn the_oldest_block_makes_room_for_the_newest() {
        let mut liveness = Liveness::default();
        let id = |number: usize| GossipMemberId::new(&format!("m{number}")).expect("an id");
        for number in 0..=BLOCKED_MAX {
            assert!(liveness.block(&id(number), BlockReason::Expired));
        }
        assert_eq!(liveness.blocked().count(), BLOCKED_MAX);
        assert!(!liveness.is_blocked(&id(0)) && liveness.is_blocked(&id(BLOCKED_MAX)));
    }
}
