//! In which version two nodes speak about calls: the highest that both know.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::config::{SCHEMA_BASE, SCHEMAS_MAX};
use super::outcome::RouterEvent;
use crate::id::Authority;

/// The versions of this node, and what was agreed with each peer.
#[derive(Clone, Debug)]
pub(super) struct SchemaTable {
    supported: Vec<u32>,
    /// `None` for peers with which there is no common version.
    agreed: BTreeMap<Authority, Option<u32>>,
}

impl SchemaTable {
    pub(super) const fn new(supported: Vec<u32>) -> Self {
        Self { supported, agreed: BTreeMap::new() }
    }

    /// Agrees with a peer that speaks `offered`.
    pub(super) fn negotiate(&mut self, peer: &Authority, offered: &[u32]) -> RouterEvent {
        let peer = peer.clone();
        let is_full = self.agreed.len() >= PEERS_MAX && !self.agreed.contains_key(&peer);
        if offered.len() > SCHEMAS_MAX || is_full {
            return RouterEvent::SchemaIgnored { peer };
        }
        let common = self.highest_common(offered);
        self.agreed.insert(peer.clone(), common);
        match common {
            Some(version) => RouterEvent::SchemaAgreed { peer, version },
            None => RouterEvent::SchemaRefused { peer, offered: offered.to_vec() },
        }
    }

    /// The version to speak with a peer. One that said nothing speaks the base version.
    pub(super) fn version(&self, peer: &Authority) -> Option<u32> {
        match self.agreed.get(peer) {
            Some(agreed) => *agreed,
            None => self.highest_common(&[SCHEMA_BASE]),
        }
    }

    pub(super) fn forget(&mut self, peer: &Authority) {
        self.agreed.remove(peer);
    }

    fn highest_common(&self, offered: &[u32]) -> Option<u32> {
        shared_schema(&self.supported, offered)
    }
}

/// The highest version of the call schema that is in both lists, if there is one.
#[must_use]
pub fn shared_schema(supported: &[u32], offered: &[u32]) -> Option<u32> {
    supported.iter().copied().filter(|version| offered.contains(version)).max()
}

/// Most peers with which something was agreed.
const PEERS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec;

    use super::*;

    #[test]
    fn the_highest_common_version_is_spoken_with_each_peer() {
        let mut table = SchemaTable::new(vec![1, 3, 2]);
        let peers: Vec<_> =
            (1..=5).map(|n| Authority::new(&format!("h:{n}")).expect("an authority")).collect();
        table.negotiate(&peers[0], &[2, 3, 4]);
        table.negotiate(&peers[1], &[1, 2, 9]);
        let refused = table.negotiate(&peers[2], &[4, 5]);
        let refusal = RouterEvent::SchemaRefused { peer: peers[2].clone(), offered: vec![4, 5] };
        assert_eq!(refused, refusal);
        table.negotiate(&peers[3], &[]);
        let versions: Vec<_> = peers.iter().map(|peer| table.version(peer)).collect();
        assert_eq!(versions, [Some(3), Some(2), None, None, Some(SCHEMA_BASE)]);
        // A peer that restarted with more to say is believed, and one that is gone is unknown again.
        table.negotiate(&peers[2], &[3]);
        table.forget(&peers[0]);
        assert_eq!((table.version(&peers[2]), table.version(&peers[0])), (Some(3), Some(SCHEMA_BASE)));
        // A node that gave up the base version does not guess.
        assert_eq!(SchemaTable::new(vec![2]).version(&peers[4]), None);
    }

    #[test]
    fn what_a_peer_says_is_bounded() {
        let mut table = SchemaTable::new(vec![1]);
        let peer = Authority::new("h:1").expect("an authority");
        let many: Vec<u32> = (1..=33).collect();
        assert_eq!(table.negotiate(&peer, &many), RouterEvent::SchemaIgnored { peer: peer.clone() });
        for n in 1..=PEERS_MAX {
            table.negotiate(&Authority::new(&format!("n{n}:1")).expect("an authority"), &[1]);
        }
        assert_eq!(table.negotiate(&peer, &[1]), RouterEvent::SchemaIgnored { peer });
    }
}
