//! What a grain leaves behind when it stops, so that it can go on where it left off.
//!
//! The bytes are the application's; only the version is looked at: of two snapshots of one grain the newer counts. They
//! are kept in memory, for grains that were unloaded here and for those that were handed over and have not been called
//! yet, up to a number of bytes. It is a way to move state, not a place to store it.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::grains::ClusterIdentity;

/// The state of a grain at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrainSnapshot {
    /// Grows with every change of the state.
    pub version: u64,
    /// The state, as only the grain can read it.
    pub bytes: Arc<[u8]>,
}

/// Why a snapshot is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotDrop {
    /// It is larger than one snapshot may be.
    TooLarge,
    /// Newer ones needed its place.
    NoRoom,
    /// A newer one of the same grain is known.
    Stale,
    /// The grain runs already, without it.
    Late,
    /// This node does not host the kind.
    UnknownKind,
    /// The next host runs protoactor-go, which knows no snapshots.
    ForeignHost,
    /// The next host did not confirm it, and kept being there.
    Undelivered,
}

/// Snapshots of grains that do not run, bounded by their bytes. The oldest makes room.
#[derive(Clone, Debug)]
pub(super) struct SnapshotStore {
    /// With the number under which it was kept.
    snapshots: BTreeMap<ClusterIdentity, (u64, GrainSnapshot)>,
    order: BTreeMap<u64, ClusterIdentity>,
    last_number: u64,
    bytes: usize,
    bytes_max: usize,
    one_bytes_max: usize,
}

impl SnapshotStore {
    pub(super) const fn new(one_bytes_max: usize, bytes_max: usize) -> Self {
        Self {
            snapshots: BTreeMap::new(),
            order: BTreeMap::new(),
            last_number: 0,
            bytes: 0,
            bytes_max,
            one_bytes_max,
        }
    }

    /// Whether a snapshot is worth keeping.
    pub(super) fn check(
        &self,
        grain: &ClusterIdentity,
        snapshot: &GrainSnapshot,
    ) -> Result<(), SnapshotDrop> {
        if snapshot.bytes.len() > self.one_bytes_max {
            return Err(SnapshotDrop::TooLarge);
        }
        match self.get(grain) {
            Some(known) if known.version >= snapshot.version => Err(SnapshotDrop::Stale),
            _ => Ok(()),
        }
    }

    /// Keeps a snapshot. Returns those that are not kept, with the reason: this one, or older ones that made room.
    pub(super) fn keep(
        &mut self,
        grain: &ClusterIdentity,
        snapshot: GrainSnapshot,
    ) -> Vec<(ClusterIdentity, u64, SnapshotDrop)> {
        if let Err(reason) = self.check(grain, &snapshot) {
            return [(grain.clone(), snapshot.version, reason)].into();
        }
        self.take(grain);
        self.bytes += cost(grain, &snapshot);
        self.last_number += 1;
        self.snapshots.insert(grain.clone(), (self.last_number, snapshot));
        self.order.insert(self.last_number, grain.clone());
        let mut dropped = Vec::new();
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            if let Some(snapshot) = self.take(&oldest) {
                dropped.push((oldest, snapshot.version, SnapshotDrop::NoRoom));
            }
        }
        dropped
    }

    pub(super) fn take(&mut self, grain: &ClusterIdentity) -> Option<GrainSnapshot> {
        let (number, snapshot) = self.snapshots.remove(grain)?;
        self.order.remove(&number);
        self.bytes -= cost(grain, &snapshot);
        Some(snapshot)
    }

    pub(super) fn get(&self, grain: &ClusterIdentity) -> Option<&GrainSnapshot> {
        self.snapshots.get(grain).map(|(_, snapshot)| snapshot)
    }

    pub(super) fn grains(&self) -> impl Iterator<Item = &ClusterIdentity> {
        self.snapshots.keys()
    }
}

/// The name counts too: many small snapshots must not cost more than a few large ones.
fn cost(grain: &ClusterIdentity, snapshot: &GrainSnapshot) -> usize {
    snapshot.bytes.len() + grain.key().as_str().len() + OVERHEAD_BYTES
}

/// What an entry costs beside its name and its bytes.
const OVERHEAD_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn grain(identity: &str) -> ClusterIdentity {
        ClusterIdentity::new("Chat", identity).expect("a name")
    }

    fn snapshot(version: u64, bytes: usize) -> GrainSnapshot {
        GrainSnapshot { version, bytes: Arc::from(alloc::vec![7; bytes]) }
    }

    #[test]
    fn the_oldest_makes_room_and_what_went_is_told() {
        // Each costs its bytes, six of name and the overhead: 170. Three fit.
        let mut store = SnapshotStore::new(100, 510);
        for identity in ["a", "b", "c"] {
            assert_eq!(store.keep(&grain(identity), snapshot(1, 100)), []);
        }
        // A newer state of `a` makes it the youngest, so `b` goes.
        assert_eq!(store.keep(&grain("a"), snapshot(2, 100)), []);
        assert_eq!(store.keep(&grain("d"), snapshot(1, 100)), [(grain("b"), 1, SnapshotDrop::NoRoom)]);
        assert_eq!(store.take(&grain("c")).map(|taken| taken.version), Some(1));
        assert_eq!(store.keep(&grain("e"), snapshot(1, 100)), []);
        assert_eq!(store.grains().count(), 3);
    }

    #[test]
    fn only_newer_states_and_such_of_a_bearable_size_are_kept() {
        let mut store = SnapshotStore::new(100, 1000);
        assert_eq!(store.keep(&grain("a"), snapshot(5, 1)), []);
        for version in [4, 5] {
            let refused = store.keep(&grain("a"), snapshot(version, 1));
            assert_eq!(refused, [(grain("a"), version, SnapshotDrop::Stale)]);
        }
        assert_eq!(store.keep(&grain("b"), snapshot(1, 101)), [(grain("b"), 1, SnapshotDrop::TooLarge)]);
        assert_eq!(store.get(&grain("b")), None);
    }
}
