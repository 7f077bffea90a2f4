//! One record per node name, each only ever replaced by a greater one.
//!
//! The table's version counts *its own* changes. It is never compared with another table's version: it only answers
//! "what changed since", and an equality of views is an equality of content digests.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use core::ops::Bound;

use super::delta::{DELTA_RECORDS_MAX, MembershipDelta, MembershipSnapshot};
use super::quarantine::QuarantineReason;
use super::record::NodeRecord;
use super::status::NodeStatus;
use crate::id::{Authority, Incarnation, MemberId, NodeId};

/// Counts the changes of one table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MembershipVersion(u64);

impl MembershipVersion {
    /// The version of an empty table.
    pub const ZERO: Self = Self(0);

    /// The version with this number.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The version after this one.
    const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for MembershipVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for MembershipVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// The replicated table of members.
#[derive(Clone, Debug)]
pub struct MembershipTable {
    entries: BTreeMap<NodeId, Entry>,
    /// Which node changed at which version: the order in which deltas are cut.
    changes: BTreeMap<MembershipVersion, NodeId>,
    version: MembershipVersion,
    digest: u128,
    members_max: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    record: NodeRecord,
    changed_at: MembershipVersion,
}

/// One step of the table: what a node's record was, and what it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordChange {
    /// The record before, if the node was known.
    pub previous: Option<NodeRecord>,
    /// The record now.
    pub current: NodeRecord,
}

impl MembershipTable {
    /// An empty table for at most `members_max` names, tombstones included.
    #[must_use]
    pub const fn new(members_max: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            changes: BTreeMap::new(),
            version: MembershipVersion::ZERO,
            digest: 0,
            members_max,
        }
    }

    /// Admits `member` at `authority` as `Joining`. Returns `None` when exactly this life is already known and alive.
    ///
    /// # Errors
    /// The join is refused, and nothing is changed, when the life is over or older than the known one, when the name or
    /// the address belongs to another live process, or when the table is full.
    pub fn try_join(
        &mut self,
        member: &MemberId,
        authority: &Authority,
    ) -> Result<Option<RecordChange>, MembershipError> {
        if let Some(entry) = self.entries.get(&member.node) {
            let known = &entry.record;
            match member.incarnation.cmp(&known.member.incarnation) {
                Ordering::Less => {
                    return Err(MembershipError::StaleIncarnation {
                        member: member.clone(),
                        known: known.member.incarnation,
                    });
                }
                Ordering::Equal if known.status.is_final() => {
                    return Err(MembershipError::DeadIncarnation {
                        member: member.clone(),
                        status: known.status,
                    });
                }
                Ordering::Equal if known.authority != *authority => {
                    return Err(MembershipError::IdentityConflict {
                        member: member.clone(),
                        held_at: known.authority.clone(),
                        requested_at: authority.clone(),
                    });
                }
                Ordering::Equal => return Ok(None),
                Ordering::Greater => {}
            }
        }
        if let Some(holder) = self.other_live_holder(authority, &member.node) {
            return Err(MembershipError::AuthorityConflict {
                authority: authority.clone(),
                held_by: holder.member.clone(),
                requested_by: member.clone(),
            });
        }
        self.check_room(&member.node)?;
        Ok(Some(self.store(NodeRecord::joining(member.clone(), authority.clone()))))
    }

    /// Moves a node along an edge of its life. Moving to the present state changes nothing and returns `None`.
    ///
    /// A suspect that becomes `Up` is refuted: its record outranks the suspicion wherever that has spread.
    ///
    /// # Errors
    /// Unknown nodes and edges that do not exist are refused; nothing is changed.
    pub fn transition(
        &mut self,
        node: &NodeId,
        to: NodeStatus,
    ) -> Result<Option<RecordChange>, MembershipError> {
        let Some(record) = self.record(node) else {
            return Err(MembershipError::UnknownNode { node: node.clone() });
        };
        let from = record.status;
        if from == to {
            return Ok(None);
        }
        if !from.can_become(to) {
            return Err(MembershipError::InvalidTransition { member: record.member.clone(), from, to });
        }
        let mut next = record.clone();
        next.status = to;
        if from == NodeStatus::Suspect && to == NodeStatus::Up {
            next.refutation = next.refutation.next();
        }
        Ok(Some(self.store(next)))
    }

    /// Takes `record` if it outranks what is known. Returns `None`, and changes nothing, when it does not.
    ///
    /// # Errors
    /// A new name is refused when the table is full.
    pub fn merge(&mut self, record: &NodeRecord) -> Result<Option<RecordChange>, MembershipError> {
        match self.record(&record.member.node) {
            Some(known) if !record.supersedes(known) => return Ok(None),
            Some(_) => {}
            None => self.check_room_for_new(&record.member.node)?,
        }
        Ok(Some(self.store(record.clone())))
    }

    /// Forgets a removed node. The name may then be learnt anew.
    pub(super) fn prune(&mut self, node: &NodeId) {
        if self.record(node).is_some_and(|record| record.status == NodeStatus::Removed)
            && let Some(entry) = self.entries.remove(node)
        {
            // The digest does not cover removed records, so forgetting one does not make views differ.
            self.changes.remove(&entry.changed_at);
        }
    }

    /// The record of one node.
    #[must_use]
    pub fn record(&self, node: &NodeId) -> Option<&NodeRecord> {
        self.entries.get(node).map(|entry| &entry.record)
    }

    /// All records in node order.
    pub fn records(&self) -> impl Iterator<Item = &NodeRecord> {
        self.entries.values().map(|entry| &entry.record)
    }

    /// The count of changes so far.
    #[must_use]
    pub const fn version(&self) -> MembershipVersion {
        self.version
    }

    /// A digest of all records but the removed ones. Two tables with equal digests hold equal views.
    ///
    /// Removed records are left out because each node forgets them in its own time.
    #[must_use]
    pub const fn digest(&self) -> u128 {
        self.digest
    }

    /// The changes after `from`, at most [`DELTA_RECORDS_MAX`] of them; a longer history continues at the delta's end.
    #[must_use]
    pub fn delta_since(&self, from: MembershipVersion) -> MembershipDelta {
        self.delta_since_except(from, |_| false)
    }

    /// Like [`delta_since`](Self::delta_since), without the records that the receiver is known to hold.
    #[must_use]
    pub fn delta_since_except(
        &self,
        from: MembershipVersion,
        known: impl Fn(&NodeRecord) -> bool,
    ) -> MembershipDelta {
        let mut changes = self.changes.range((Bound::Excluded(from), Bound::Unbounded));
        let mut to = from;
        let records = changes.by_ref().take(DELTA_RECORDS_MAX).filter_map(|(version, node)| {
            to = *version;
            self.record(node).filter(|record| !known(record)).cloned()
        });
        let records: Vec<_> = records.collect();
        if changes.next().is_none() {
            to = self.version.max(from);
        }
        MembershipDelta::cut(from, to, records)
    }

    /// Everything, for a reader or a newcomer.
    #[must_use]
    pub fn snapshot(&self) -> MembershipSnapshot {
        MembershipSnapshot { version: self.version, records: self.records().cloned().collect() }
    }

    /// A live node other than `node` that listens at `authority`.
    fn other_live_holder(&self, authority: &Authority, node: &NodeId) -> Option<&NodeRecord> {
        self.records().find(|record| {
            record.authority == *authority && record.member.node != *node && !record.status.is_final()
        })
    }

    fn check_room(&self, node: &NodeId) -> Result<(), MembershipError> {
        if self.entries.contains_key(node) { Ok(()) } else { self.check_room_for_new(node) }
    }

    fn check_room_for_new(&self, node: &NodeId) -> Result<(), MembershipError> {
        if self.entries.len() >= self.members_max {
            return Err(MembershipError::TableFull { node: node.clone(), members_max: self.members_max });
        }
        Ok(())
    }

    fn store(&mut self, record: NodeRecord) -> RecordChange {
        self.version = self.version.next();
        self.digest = self.digest.wrapping_add(covered_digest(&record));
        let node = record.member.node.clone();
        self.changes.insert(self.version, node.clone());
        let entry = Entry { record: record.clone(), changed_at: self.version };
        let previous = self.entries.insert(node, entry).map(|old| {
            self.changes.remove(&old.changed_at);
            self.digest = self.digest.wrapping_sub(covered_digest(&old.record));
            old.record
        });
        RecordChange { previous, current: record }
    }
}

/// A record's share of the table digest. Addition makes the sum independent of order and cheap to keep.
fn covered_digest(record: &NodeRecord) -> u128 {
    if record.status == NodeStatus::Removed { 0 } else { record.digest() }
}

/// An input about a member was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// Another live node listens at the requested address.
    #[error(
        "{authority} belongs to the live member {held_by}; {requested_by} was refused and nothing changed"
    )]
    AuthorityConflict {
        /// The address in question.
        authority: Authority,
        /// Who holds it.
        held_by: MemberId,
        /// Who asked for it.
        requested_by: MemberId,
    },
    /// This life of the node is over; only a later incarnation may join.
    #[error("{member} is {status} and this life never returns; it must start with a higher incarnation")]
    DeadIncarnation {
        /// The life that is over.
        member: MemberId,
        /// How it ended.
        status: NodeStatus,
    },
    /// Membership is not exchanged with peers here.
    #[error("gossip is switched off on this node; the message was ignored")]
    GossipDisabled,
    /// Two processes claim the same name and the same life.
    #[error("{member} is held at {held_at}; the same identity at {requested_at} was refused")]
    IdentityConflict {
        /// The identity claimed twice.
        member: MemberId,
        /// Where the known one is.
        held_at: Authority,
        /// Where the refused one is.
        requested_at: Authority,
    },
    /// The requested edge does not exist.
    #[error("{member} is {from} and cannot become {to}; nothing was changed")]
    InvalidTransition {
        /// The member in question.
        member: MemberId,
        /// Its state.
        from: NodeStatus,
        /// The state asked for.
        to: NodeStatus,
    },
    /// A client asked for what only members may.
    #[error("{authority} is not a member; nothing was changed")]
    NotAMember {
        /// The client.
        authority: Authority,
    },
    /// A node cannot do this to itself.
    #[error("{node} is this node itself; nothing was changed")]
    NotOneself {
        /// This node.
        node: NodeId,
    },
    /// A larger part of the cluster went on; the smaller one has to start over.
    #[error("a part of the cluster with {reachable} members goes on; this view must yield to it")]
    Outranked {
        /// How many members it has.
        reachable: usize,
    },
    /// The address is quarantined.
    #[error("{authority} is quarantined ({reason}); nothing was changed")]
    Quarantined {
        /// The quarantined address.
        authority: Authority,
        /// Why it is.
        reason: QuarantineReason,
    },
    /// A later life of the node is already known.
    #[error("{member} is older than incarnation {known} of the same node; nothing was changed")]
    StaleIncarnation {
        /// The outdated life.
        member: MemberId,
        /// The life that is known.
        known: Incarnation,
    },
    /// The table holds as many names as it may.
    #[error("the table is full ({members_max} members); {node} was refused and nothing changed")]
    TableFull {
        /// The refused node.
        node: NodeId,
        /// The configured bound.
        members_max: usize,
    },
    /// Two views contradict each other; changes wait until they are settled.
    #[error("views of the cluster contradict each other; changes are refused until they are confirmed again")]
    UnresolvedConflict,
    /// No such node.
    #[error("node {node} is not known here; nothing was changed")]
    UnknownNode {
        /// The unknown name.
        node: NodeId,
    },
}

#[cfg(test)]
mod tests;
