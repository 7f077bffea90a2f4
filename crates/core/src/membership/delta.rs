//! What travels: the records that changed since some version of the sender's table.
//!
//! Versions are local to the table that counted them. A delta says "these are all my changes after `from`, up to and
//! including `to`", which lets the receiver notice that it missed something, and lets an acknowledgement name exactly
//! what arrived.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::record::NodeRecord;
use super::table::MembershipVersion;
use crate::id::NodeId;

/// A contiguous range of one table's changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipDelta {
    from: MembershipVersion,
    to: MembershipVersion,
    records: Vec<NodeRecord>,
}

impl MembershipDelta {
    /// Checks the parts of a delta, usually as decoded from a peer.
    ///
    /// # Errors
    /// [`DeltaError`] when the range runs backwards, the delta is larger than [`DELTA_RECORDS_MAX`], or it holds two
    /// statements about one node.
    pub fn new(
        from: MembershipVersion,
        to: MembershipVersion,
        records: Vec<NodeRecord>,
    ) -> Result<Self, DeltaError> {
        if from > to {
            return Err(DeltaError::Backwards { from, to });
        }
        if records.len() > DELTA_RECORDS_MAX {
            return Err(DeltaError::TooLarge { records: records.len() });
        }
        let mut seen = BTreeSet::new();
        if let Some(double) = records.iter().find(|record| !seen.insert(&record.member.node)) {
            return Err(DeltaError::DuplicateNode { node: double.member.node.clone() });
        }
        Ok(Self { from, to, records })
    }

    /// A delta cut from a table, which holds one record per node by construction.
    pub(super) const fn cut(
        from: MembershipVersion,
        to: MembershipVersion,
        records: Vec<NodeRecord>,
    ) -> Self {
        Self { from, to, records }
    }

    /// The sender's version after which the changes begin.
    #[must_use]
    pub const fn from(&self) -> MembershipVersion {
        self.from
    }

    /// The sender's version of the last change included.
    #[must_use]
    pub const fn to(&self) -> MembershipVersion {
        self.to
    }

    /// The changed records, oldest change first.
    #[must_use]
    pub fn records(&self) -> &[NodeRecord] {
        &self.records
    }
}

/// A delta was malformed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// The range ends before it begins.
    #[error("the peer sent a delta from version {from} to the earlier version {to}; nothing was changed")]
    Backwards {
        /// Claimed start of the range.
        from: MembershipVersion,
        /// Claimed end of the range.
        to: MembershipVersion,
    },
    /// More records than one delta may hold.
    #[error(
        "the peer sent {records} records, a delta holds at most {DELTA_RECORDS_MAX}; nothing was changed"
    )]
    TooLarge {
        /// Number of records in the refused delta.
        records: usize,
    },
    /// Two records of one node.
    #[error("the peer sent two records of node {node} in one delta; nothing was changed")]
    DuplicateNode {
        /// The node named twice.
        node: NodeId,
    },
}

/// A whole table at one moment, in node order, tombstones included. Empty while the coordinator is stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipSnapshot {
    /// The table's version at that moment.
    pub version: MembershipVersion,
    /// Every record.
    pub records: Vec<NodeRecord>,
}

impl MembershipSnapshot {
    /// The record of one node.
    #[must_use]
    pub fn record(&self, node: &NodeId) -> Option<&NodeRecord> {
        let found = self.records.binary_search_by(|record| record.member.node.cmp(node)).ok()?;
        self.records.get(found)
    }
}

/// Most records one delta carries. At the longest names this is some 1.7 MiB, well under the 4 MiB frame of the wire.
pub const DELTA_RECORDS_MAX: usize = 4096;
