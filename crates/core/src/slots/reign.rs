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
    /// What was written, at most [`VALUE_BYTES_MAX`].
    pub value: Arc<[u8]>,
}

/// How far a primary is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReignPhase {
    /// It was granted its epoch and lacks the newest head of its granters. It serves nobody yet.
    Recovering {
        /// The tag it lacks.
        lacks: Tag,
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
            Some((tag, from)) if replica.tag() < Some(*tag) => {
                ReignPhase::Recovering { lacks: *tag, from: from.clone() }
            }
            _ => ReignPhase::Serving,
        };
        Self { epoch: candidacy.epoch(), phase, sequence: 0, spreading: None, committed: None }
    }

    /// The replica of the primary has stored more. True when that was what it lacked.
    pub fn handle_recovered(&mut self, replica: &SlotReplica) -> bool {
        let ReignPhase::Recovering { lacks, .. } = &self.phase else { return false };
        let is_whole = replica.tag() >= Some(*lacks);
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
        let head = Head { tag: Tag { epoch: self.epoch, sequence: self.sequence }, value };
        self.spread(own, head.clone());
        head
    }

    /// Writes what this primary inherits again, with a tag of its own epoch: the head to store here and at all others.
    ///
    /// It may be on a minority only, and must not be read before it is on a quorum: it could vanish with the next election.
    /// Nor may it keep its old tag. Somewhere there may be another head, which an earlier primary wrote and never got to a
    /// quorum; if its tag is larger, it would come back later and undo what was read meanwhile. A tag of this epoch is above
    /// them all.
    ///
    /// # Panics
    /// When it does not serve.
    pub fn renew(&mut self, own: &NodeId, inherited: &Head) -> Head {
        self.begin_write(own, Arc::clone(&inherited.value))
    }

    /// Begins to spread a head that this primary has stored.
    pub fn spread(&mut self, own: &NodeId, head: Head) {
        self.spreading = Some(Spreading { head, stored_by: BTreeSet::from([own.clone()]) });
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
