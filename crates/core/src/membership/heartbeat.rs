//! Who listens to whose heartbeat.
//!
//! All live members stand on a ring, in the order of a hash of their names. Each sends its heartbeat to the few members
//! that follow it and listens to the few that precede it, so that every member has the same number of watchers and the
//! traffic of a node does not grow with the cluster. When watchers die the ring closes and others take over.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;

use xxhash_rust::xxh3::xxh3_64;

use crate::id::NodeId;

/// The ring of live members, seen from one of them.
#[derive(Clone, Debug)]
pub struct HeartbeatRing {
    own: Position,
    others: BTreeSet<Position>,
    /// The newest heartbeat heard of each member. Doubled and late ones are no signs of life.
    heard: BTreeMap<NodeId, u64>,
    width: usize,
}

/// Ordered by hash, so that neighbours by name (and often by rack) are not neighbours on the ring.
type Position = (u64, NodeId);

impl HeartbeatRing {
    /// The ring as seen by `own`, with `width` watchers per member.
    #[must_use]
    pub fn new(own: &NodeId, width: usize) -> Self {
        Self { own: position(own), others: BTreeSet::new(), heard: BTreeMap::new(), width }
    }

    /// Adds a live member.
    pub fn insert(&mut self, node: &NodeId) {
        self.others.insert(position(node));
    }

    /// Takes a member off the ring.
    pub fn remove(&mut self, node: &NodeId) {
        self.others.remove(&position(node));
        self.heard.remove(node);
    }

    /// Notes heartbeat number `sequence` of `node`. True when it is newer than all before.
    pub fn is_news(&mut self, node: &NodeId, sequence: u64) -> bool {
        match self.heard.get_mut(node) {
            Some(newest) if *newest >= sequence => false,
            Some(newest) => {
                *newest = sequence;
                true
            }
            None => {
                self.heard.insert(node.clone(), sequence);
                true
            }
        }
    }

    /// The members that this node sends its heartbeat to.
    #[must_use]
    pub fn watchers(&self) -> Vec<NodeId> {
        let after = self.others.range((Bound::Excluded(&self.own), Bound::Unbounded));
        self.first_of(after.chain(&self.others))
    }

    /// The members whose heartbeat this node listens for.
    #[must_use]
    pub fn watched(&self) -> Vec<NodeId> {
        let before = self.others.range((Bound::Unbounded, Bound::Excluded(&self.own)));
        self.first_of(before.rev().chain(self.others.iter().rev()))
    }

    fn first_of<'a>(&self, positions: impl Iterator<Item = &'a Position>) -> Vec<NodeId> {
        positions.take(self.width.min(self.others.len())).map(|(_, node)| node.clone()).collect()
    }
}

fn position(node: &NodeId) -> Position {
    (xxh3_64(node.as_str().as_bytes()), node.clone())
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    fn rings(nodes: usize, width: usize) -> BTreeMap<NodeId, HeartbeatRing> {
        let names: Vec<_> =
            (0..nodes).map(|n| NodeId::new(&format!("n{n}")).expect("a valid name")).collect();
        let ring_of = |own: &NodeId| {
            let mut ring = HeartbeatRing::new(own, width);
            names.iter().filter(|name| *name != own).for_each(|name| ring.insert(name));
            (own.clone(), ring)
        };
        names.iter().map(ring_of).collect()
    }

    #[test]
    fn everyone_is_heard_by_exactly_those_that_listen() {
        for nodes in [1, 2, 5, 6, 7, 100] {
            let rings = rings(nodes, 5);
            for (own, ring) in &rings {
                let watchers = ring.watchers();
                assert_eq!(watchers.len(), 5.min(nodes - 1));
                assert_eq!(watchers.iter().collect::<BTreeSet<_>>().len(), watchers.len(), "no doubles");
                for watcher in &watchers {
                    assert!(rings[watcher].watched().contains(own), "{watcher} does not listen to {own}");
                }
            }
        }
    }

    #[test]
    fn only_a_newer_heartbeat_is_news() {
        let mut ring = rings(3, 2).pop_first().expect("three rings").1;
        let peer = NodeId::new("n1").expect("a valid name");
        assert!(ring.is_news(&peer, 5));
        assert!(!ring.is_news(&peer, 5), "a doubled heartbeat");
        assert!(!ring.is_news(&peer, 4), "a late heartbeat");
        assert!(ring.is_news(&peer, 6));
        ring.remove(&peer);
        assert!(ring.is_news(&peer, 1), "a new life counts from one again");
    }
}
