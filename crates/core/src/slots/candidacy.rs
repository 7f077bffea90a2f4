//! A replica that asks for an epoch of a slot, and counts who granted it.

use alloc::collections::BTreeSet;

use super::id::SlotEpoch;
use super::reign::HeadRank;
use crate::id::NodeId;

/// One attempt to become the primary of a slot. The candidate has promised the epoch to itself before it asks others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidacy {
    epoch: SlotEpoch,
    granters: BTreeSet<NodeId>,
    /// The newest head that a granter has, and who has it.
    newest: Option<(HeadRank, NodeId)>,
}

impl Candidacy {
    /// An attempt at `epoch` by `own`, whose head has the rank `stored`.
    #[must_use]
    pub fn new(epoch: SlotEpoch, own: &NodeId, stored: Option<HeadRank>) -> Self {
        let mut candidacy = Self { epoch, granters: BTreeSet::new(), newest: None };
        candidacy.handle_grant(own, epoch, stored);
        candidacy
    }

    /// `granter` promised `epoch`, and its head at that time has the rank `stored`. A grant for another epoch means nothing.
    pub fn handle_grant(&mut self, granter: &NodeId, epoch: SlotEpoch, stored: Option<HeadRank>) {
        if epoch != self.epoch {
            return;
        }
        self.granters.insert(granter.clone());
        if let Some(rank) = stored
            && self.newest.as_ref().is_none_or(|(newest, _)| *newest < rank)
        {
            self.newest = Some((rank, granter.clone()));
        }
    }

    /// Whether so many granters are enough.
    #[must_use]
    pub fn is_won(&self, majority: usize) -> bool {
        self.granters.len() >= majority
    }

    /// The epoch asked for.
    #[must_use]
    pub const fn epoch(&self) -> SlotEpoch {
        self.epoch
    }

    /// Who granted it so far, the candidate among them.
    #[must_use]
    pub const fn granters(&self) -> &BTreeSet<NodeId> {
        &self.granters
    }

    /// The newest head among the granters. Whoever wins adopts it before serving.
    #[must_use]
    pub const fn newest(&self) -> Option<&(HeadRank, NodeId)> {
        self.newest.as_ref()
    }
}
