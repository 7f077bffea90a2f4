//! One replica of one slot: what it has promised, and the newest thing it stores.
//!
//! Everything that keeps a slot safe is a comparison with `promised`. It only rises, it is durable before anybody hears
//! of it, and whatever carries a smaller epoch is refused.

use super::id::{SlotEpoch, Tag};
use super::reign::{Head, HeadRank};
use crate::id::NodeId;

/// What one node keeps of one slot that it stores. A change is durable before it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotReplica {
    promised: SlotEpoch,
    granted_to: Option<NodeId>,
    head: Option<Head>,
}

impl SlotReplica {
    /// What was found on the disk, or learned from the other replicas.
    #[must_use]
    pub const fn restored(promised: SlotEpoch, granted_to: Option<NodeId>, head: Option<Head>) -> Self {
        Self { promised, granted_to, head }
    }

    /// Promises `epoch` to `candidate`: from now on nothing of an earlier epoch is accepted. The same grant may be asked for
    /// again, by the same candidate, since answers get lost.
    ///
    /// # Errors
    /// As much, or more, is promised already. Nothing was changed.
    pub fn grant(&mut self, epoch: SlotEpoch, candidate: &NodeId) -> Result<(), StaleEpoch> {
        let is_repeated = epoch == self.promised && self.granted_to.as_ref() == Some(candidate);
        if epoch <= self.promised && !is_repeated {
            return Err(StaleEpoch { promised: self.promised });
        }
        self.promised = epoch;
        self.granted_to = Some(candidate.clone());
        Ok(())
    }

    /// Takes an order of the primary of `epoch`, which promises that epoch too. True when the promise rose.
    ///
    /// # Errors
    /// A later epoch is promised. Nothing was changed.
    pub fn accept(&mut self, epoch: SlotEpoch) -> Result<bool, StaleEpoch> {
        if epoch < self.promised {
            return Err(StaleEpoch { promised: self.promised });
        }
        let is_raised = epoch > self.promised;
        if is_raised {
            self.promised = epoch;
            self.granted_to = None;
        }
        Ok(is_raised)
    }

    /// Keeps `head` if it counts more than what is stored. True if it did.
    pub fn store(&mut self, head: &Head) -> bool {
        let is_newer = self.rank() < Some(head.rank());
        if is_newer {
            self.head = Some(head.clone());
        }
        is_newer
    }

    /// The epoch below which everything is refused.
    #[must_use]
    pub const fn promised(&self) -> SlotEpoch {
        self.promised
    }

    /// Whom the promised epoch was granted to, if by a grant.
    #[must_use]
    pub const fn granted_to(&self) -> Option<&NodeId> {
        self.granted_to.as_ref()
    }

    /// The newest thing stored.
    #[must_use]
    pub const fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// How much the thing stored counts.
    #[must_use]
    pub fn rank(&self) -> Option<HeadRank> {
        self.head.as_ref().map(Head::rank)
    }

    /// The tag of the newest thing stored.
    #[must_use]
    pub fn tag(&self) -> Option<Tag> {
        self.head.as_ref().map(|head| head.tag)
    }
}

/// An epoch is over: a replica has promised a later one. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("epoch {promised} of the slot is promised; nothing was changed")]
pub struct StaleEpoch {
    /// What is promised.
    pub promised: SlotEpoch,
}
