//! The primary of one slot for one epoch: it recovers, then it writes, and it counts who stored what.
//!
//! What a slot stores here is a register: one value with a tag. It is the smallest thing that shows every promise of the
//! registry, a fenced write, a quorum, a read that nothing can take back.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;

use super::candidacy::Candidacy;
use super::id::{SlotEpoch, Tag};
use super::replica::SlotReplica;
use crate::id::NodeId;

/// A value and its tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    /// Which write it is.
    pub tag: Tag,
    /// The epoch whose primary had it stored last: that of the tag, or that of a later primary that took it over.
    pub accepted: SlotEpoch,
    /// What was written, at most [`VALUE_BYTES_MAX`].
    pub value: Arc<[u8]>,
}

impl Head {
    /// Which of two heads counts.
    #[must_use]
    pub const fn rank(&self) -> HeadRank {
        HeadRank { accepted: self.accepted, tag: self.tag }
    }
}

/// The order in which heads replace each other. The tag alone does not do: a primary that is over, and does not know it, can
/// write once more, on what it takes for the newest. Its tag is above that of an earlier write which a later primary has
/// meanwhile taken over and shown, and must not replace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeadRank {
    /// The epoch whose primary had the head stored last.
    pub accepted: SlotEpoch,
    /// Which write it is.
    pub tag: Tag,
}

/// How far a primary is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReignPhase {
    /// It was granted its epoch and lacks the newest head of its granters. It serves nobody yet.
    Recovering {
        /// Which head it lacks.
        lacks: HeadRank,
        /// Who has it.
        from: NodeId,
    },
    /// It serves.
    Serving,
}

/// One epoch of one slot, as its primary sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reign {
    epoch: SlotEpoch,
    phase: ReignPhase,
    sequence: u64,
    spreading: Option<Spreading>,
    committed: Option<Tag>,
}

/// A head on its way to the other replicas.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Spreading {
    head: Head,
    stored_by: BTreeSet<NodeId>,
}

impl Reign {
    /// The reign that a won candidacy begins. It recovers first if a granter has something that `replica` lacks.
    #[must_use]
    pub fn new(candidacy: &Candidacy, replica: &SlotReplica) -> Self {
        let phase = match candidacy.newest() {
            Some((rank, from)) if replica.rank() < Some(*rank) => {
                ReignPhase::Recovering { lacks: *rank, from: from.clone() }
            }
            _ => ReignPhase::Serving,
        };
        Self { epoch: candidacy.epoch(), phase, sequence: 0, spreading: None, committed: None }
    }

    /// The replica of the primary has stored more. True when that was what it lacked.
    pub fn handle_recovered(&mut self, replica: &SlotReplica) -> bool {
        let ReignPhase::Recovering { lacks, .. } = &self.phase else { return false };
        let is_whole = replica.rank() >= Some(*lacks);
        if is_whole {
            self.phase = ReignPhase::Serving;
        }
        is_whole
    }

    /// Begins a write: the head to store here and at all other replicas.
    ///
    /// # Panics
    /// When it does not serve.
    pub fn begin_write(&mut self, own: &NodeId, value: Arc<[u8]>) -> Head {
        assert!(self.is_serving(), "a primary writes before it has recovered");
        self.sequence += 1;
        let tag = Tag { epoch: self.epoch, sequence: self.sequence };
        self.spread(own, Head { tag, accepted: self.epoch, value })
    }

    /// Takes over a head of an earlier epoch, which may be on a minority only: the head to store here and at all other
    /// replicas. It must not be read before it is on a quorum: it could vanish with the next election.
    pub fn spread(&mut self, own: &NodeId, head: Head) -> Head {
        let head = Head { accepted: self.epoch, ..head };
        self.spreading = Some(Spreading { head: head.clone(), stored_by: BTreeSet::from([own.clone()]) });
        head
    }

    /// `replica` has stored the head with this tag. True when that makes a quorum of so many, for the first time.
    pub fn handle_stored(&mut self, replica: &NodeId, tag: Tag, quorum: usize) -> bool {
        let Some(spreading) = self.spreading.as_mut().filter(|spreading| spreading.head.tag == tag) else {
            return false;
        };
        spreading.stored_by.insert(replica.clone());
        let is_new = spreading.stored_by.len() >= quorum && self.committed != Some(tag);
        if is_new {
            self.committed = Some(tag);
        }
        is_new
    }

    /// The head that is spreading, while not everyone in `replicas` has stored it, and who has not.
    pub fn spreading<'a>(
        &'a self,
        replicas: impl Iterator<Item = &'a NodeId> + 'a,
    ) -> Option<(&'a Head, impl Iterator<Item = &'a NodeId> + 'a)> {
        let Spreading { head, stored_by } = self.spreading.as_ref()?;
        Some((head, replicas.filter(move |replica| !stored_by.contains(replica))))
    }

    /// Whether the newest head that this primary knows is on a quorum, so that it can be shown.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.spreading.as_ref().is_none_or(|spreading| self.committed == Some(spreading.head.tag))
    }

    /// The epoch.
    #[must_use]
    pub const fn epoch(&self) -> SlotEpoch {
        self.epoch
    }

    /// How far it is.
    #[must_use]
    pub const fn phase(&self) -> &ReignPhase {
        &self.phase
    }

    /// Whether it serves.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.phase == ReignPhase::Serving
    }
}

/// Longest value of a register in bytes.
pub const VALUE_BYTES_MAX: usize = 16 * 1024;
