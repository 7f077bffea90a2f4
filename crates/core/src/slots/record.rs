//! What is gossiped: who serves a slot, and what a node says of itself.
//!
//! Both are replaced whole, by the larger one of a total order. That makes every merge commutative, associative and
//! idempotent without further thought, and a part of a record can never be mixed with a part of another.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;

use super::hlc::HlcTimestamp;
use super::id::{SlotEpoch, SlotId};
use crate::id::{Authority, MemberId, NodeId};

/// Whether a slot is being moved. Slots are not moved yet: their replicas are fixed when the cluster begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotState {
    /// It stays where it is.
    #[default]
    Stable,
}

impl fmt::Display for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stable => "stable",
        })
    }
}

/// Why an election was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElectionCause {
    /// The slot never had a primary.
    First,
    /// The primary was suspected.
    PrimarySuspect,
    /// The primary had failed.
    PrimaryFailed,
    /// The primary was leaving.
    PrimaryLeaving,
    /// The primary was there, but did not say any more that it serves the slot.
    PrimarySilent,
    /// The primary asked for it.
    HandedOver,
    /// The primary itself began anew, after a restart or after it was refused.
    Renewed,
}

impl ElectionCause {
    /// All of them, in the order of their numbers on the wire, from 0.
    pub const ALL: [Self; 7] = [
        Self::First,
        Self::PrimarySuspect,
        Self::PrimaryFailed,
        Self::PrimaryLeaving,
        Self::PrimarySilent,
        Self::HandedOver,
        Self::Renewed,
    ];

    /// Its place in [`ALL`](Self::ALL).
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for ElectionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "the slot had no primary yet",
            Self::PrimarySuspect => "the primary was suspected",
            Self::PrimaryFailed => "the primary had failed",
            Self::PrimaryLeaving => "the primary was leaving",
            Self::PrimarySilent => "the primary no longer said that it serves the slot",
            Self::HandedOver => "the primary handed the slot over",
            Self::Renewed => "the primary began a new epoch itself",
        })
    }
}

/// The result of one election: unique for its slot and epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlotRecord {
    /// The slot.
    pub slot: SlotId,
    /// The epoch.
    pub epoch: SlotEpoch,
    /// Who serves it in this epoch.
    pub primary: NodeId,
    /// Who stores it.
    pub replicas: Vec<NodeId>,
    /// Whether it is being moved.
    pub state: SlotState,
    /// When it was published.
    pub updated_at: HlcTimestamp,
    /// Who granted the epoch.
    pub granted_by: Vec<NodeId>,
    /// Why there was an election.
    pub cause: ElectionCause,
}

impl SlotRecord {
    /// The order in which records of one slot replace each other. Only the epoch ever matters: two different records of
    /// one epoch are a broken promise, and what follows is there to keep the order total even then.
    #[must_use]
    pub fn precedence(&self, other: &Self) -> Ordering {
        let key = |record: &Self| (record.epoch, record.primary.clone(), record.updated_at, record.cause);
        let first = key(self).cmp(&key(other));
        first
            .then_with(|| self.replicas.cmp(&other.replicas))
            .then_with(|| self.granted_by.cmp(&other.granted_by))
    }

    /// Joins two records of one slot: the one that precedes.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        if other.precedence(&self).is_gt() { other } else { self }
    }

    /// Whether two records say different things of one epoch, which a majority of promises excludes.
    #[must_use]
    pub fn contradicts(&self, other: &Self) -> bool {
        self.slot == other.slot && self.epoch == other.epoch && self.primary != other.primary
    }
}

/// What a node says of itself. Whether it is alive is for others to judge, and is not in here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeRecord {
    /// The node and which life of it.
    pub member: MemberId,
    /// Where its peer listener is reached.
    pub address: Authority,
    /// Drawn at its start, to tell two processes apart that claim the same life.
    pub instance: u64,
    /// It is on its way out. A life that leaves never returns.
    pub leaving: bool,
    /// When it said so.
    pub heartbeat: HlcTimestamp,
}

impl NodeRecord {
    /// The order in which records of one node replace each other.
    #[must_use]
    pub fn precedence(&self, other: &Self) -> Ordering {
        let key = |record: &Self| {
            (
                record.member.incarnation,
                record.leaving,
                record.heartbeat,
                record.instance,
                record.address.clone(),
            )
        };
        key(self).cmp(&key(other))
    }

    /// Joins two records of one node: the one that precedes.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        if other.precedence(&self).is_gt() { other } else { self }
    }
}

#[cfg(test)]
pub(crate) mod tests;
