//! Changes of the active set, gathered per window and told once, as their net effect.
//!
//! Within one window a member may join, be suspected, die and return. Observers are told only how the active set at the
//! end of the window differs from the one at its beginning; if it does not differ they are told nothing. So no update
//! can contradict itself.
//!
//! After a calm nobody should have to wait long for the first change: a window is short then. Only when changes come in a
//! storm do windows last as long as they may.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use crate::haste::Haste;
use crate::id::{Authority, MemberId, NodeId};
use crate::time::TimerInstant;

/// An active member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Name and life.
    pub id: MemberId,
    /// Its address.
    pub authority: Authority,
}

/// How the active set changed, and a hash of what it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterTopology {
    /// A hash of the active members: equal sets have equal hashes on every node.
    pub hash: u64,
    /// Members that are new, among them restarted ones with their new incarnation.
    pub joined: Vec<Member>,
    /// Members that left, or that quarantine keeps out.
    pub left: Vec<Member>,
    /// Members that were declared dead.
    pub dead: Vec<Member>,
}

/// One aggregated change of the active set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyUpdate {
    /// The changes.
    pub topology: ClusterTopology,
    /// All active members after the changes, in node order.
    pub members: Vec<Member>,
    /// All quarantined addresses.
    pub blocked: Vec<Authority>,
    /// When the window closed.
    pub observed_at: TimerInstant,
}

impl TopologyUpdate {
    /// Puts an update together; the hash is computed from `members`.
    #[must_use]
    pub fn new(
        joined: Vec<Member>,
        left: Vec<Member>,
        dead: Vec<Member>,
        members: Vec<Member>,
        blocked: Vec<Authority>,
        observed_at: TimerInstant,
    ) -> Self {
        let hash = hash_of(&members);
        Self { topology: ClusterTopology { hash, joined, left, dead }, members, blocked, observed_at }
    }

    /// Checks that the update does not contradict itself.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn validate(&self) -> Result<(), TopologyError> {
        let ClusterTopology { joined, left, dead, .. } = &self.topology;
        let members = unique("members", &self.members)?;
        let mut changed: BTreeMap<&NodeId, &'static str> = BTreeMap::new();
        for (set, list) in [("joined", joined), ("left", left), ("dead", dead)] {
            for node in unique(set, list)? {
                if let Some(first) = changed.insert(node, set) {
                    return Err(TopologyError::Overlap { node: node.clone(), first, second: set });
                }
                if set != "joined" && members.contains(node) {
                    return Err(TopologyError::DepartedStillMember { node: node.clone(), set });
                }
            }
        }
        match joined.iter().find(|member| !self.members.contains(member)) {
            Some(member) => Err(TopologyError::JoinedNotMember { member: member.id.clone() }),
            None => Ok(()),
        }
    }
}

/// An update contradicts itself. It must not be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A node is named twice in one list.
    #[error("{node} is named twice in {set}")]
    Duplicate {
        /// The node.
        node: NodeId,
        /// The list.
        set: &'static str,
    },
    /// A node is in two lists of changes.
    #[error("{node} is in {first} and in {second}")]
    Overlap {
        /// The node.
        node: NodeId,
        /// One list.
        first: &'static str,
        /// The other list.
        second: &'static str,
    },
    /// A node departed and is a member all the same.
    #[error("{node} is in {set} and still among the members")]
    DepartedStillMember {
        /// The node.
        node: NodeId,
        /// The list of departures.
        set: &'static str,
    },
    /// A node joined and is not a member.
    #[error("{member} joined but is not among the members")]
    JoinedNotMember {
        /// The member.
        member: MemberId,
    },
}

/// A topology update could not be applied; the previous topology stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyApplyError {
    /// The cluster core was not started.
    #[error("the cluster is not started; the topology was not applied")]
    NotStarted,
    /// The update contradicts itself.
    #[error("the topology contradicts itself ({0}); the previous one stands")]
    InvalidTopology(TopologyError),
}

/// Gathers changes of the active set.
#[derive(Clone, Debug)]
pub struct TopologyWindow {
    reported: BTreeMap<NodeId, Member>,
    closes_at: Option<TimerInstant>,
    length: Duration,
    haste: Haste,
}

impl TopologyWindow {
    /// Windows of `length`; the first [`HASTE_MAX`](crate::HASTE_MAX) after a calm take `eager_delay`, if that is shorter.
    #[must_use]
    pub const fn new(length: Duration, eager_delay: Option<Duration>) -> Self {
        Self { reported: BTreeMap::new(), closes_at: None, length, haste: Haste::new(eager_delay, length) }
    }

    /// Something changed at `now` that nobody is in a hurry to hear of: opens a window of full length unless one is open.
    pub fn open_patiently(&mut self, now: TimerInstant) {
        self.closes_at.get_or_insert(now + self.length);
    }

    /// Something changed at `now`: opens a window unless one is open.
    pub fn open(&mut self, now: TimerInstant) {
        if self.closes_at.is_none() {
            let eager = self.haste.take(now).map(|delay| delay.min(self.length));
            self.closes_at = Some(now + eager.unwrap_or(self.length));
        }
    }

    /// When the open window closes.
    #[must_use]
    pub const fn closes_at(&self) -> Option<TimerInstant> {
        self.closes_at
    }

    /// Closes the window. `members` is the active set now; `died` tells death from departure. Returns `None` when the
    /// net effect is nothing.
    pub fn close(
        &mut self,
        members: Vec<Member>,
        died: impl Fn(&MemberId) -> bool,
        blocked: Vec<Authority>,
        now: TimerInstant,
    ) -> Option<TopologyUpdate> {
        self.closes_at = None;
        let present: BTreeMap<_, _> =
            members.iter().map(|member| (member.id.node.clone(), member.clone())).collect();
        let joined: Vec<_> = members
            .iter()
            .filter(|member| self.reported.get(&member.id.node) != Some(member))
            .cloned()
            .collect();
        let (dead, left): (Vec<_>, Vec<_>) = self
            .reported
            .values()
            .filter(|member| !present.contains_key(&member.id.node))
            .cloned()
            .partition(|member| died(&member.id));
        self.reported = present;
        let changed = !(joined.is_empty() && left.is_empty() && dead.is_empty());
        changed.then(|| TopologyUpdate::new(joined, left, dead, members, blocked, now))
    }
}

fn unique<'a>(set: &'static str, list: &'a [Member]) -> Result<BTreeSet<&'a NodeId>, TopologyError> {
    let mut nodes = BTreeSet::new();
    match list.iter().find(|member| !nodes.insert(&member.id.node)) {
        Some(double) => Err(TopologyError::Duplicate { node: double.id.node.clone(), set }),
        None => Ok(nodes),
    }
}

fn hash_of(members: &[Member]) -> u64 {
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort();
    let mut hasher = Xxh3::new();
    for member in sorted {
        for text in [member.id.node.as_str(), member.authority.as_str()] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&member.id.incarnation.get().to_le_bytes());
    }
    hasher.digest()
}

#[cfg(test)]
mod tests;
