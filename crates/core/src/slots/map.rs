//! The slots of a cluster and who serves them: a dense array of records, with digests to find what differs.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::slice;

use xxhash_rust::xxh3::Xxh3Default;

use super::id::SlotId;
use super::record::SlotRecord;

/// The records of all slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMap {
    records: Vec<Option<SlotRecord>>,
    digests: Vec<u64>,
}

/// Two records say different things of one epoch of one slot. A majority of promises excludes it, so a promise was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotConflict {
    /// What was known.
    pub known: SlotRecord,
    /// What came.
    pub received: SlotRecord,
}

impl SlotMap {
    /// A map of so many slots, none with a record.
    #[must_use]
    pub fn new(total_slots: u16) -> Self {
        let mut map = Self { records: vec![None; usize::from(total_slots)], digests: vec![0; BUCKETS] };
        (0..BUCKETS).for_each(|bucket| map.refresh(bucket));
        map
    }

    /// Joins a record. True if it replaced what was known; a record of a slot that the map does not have changes nothing.
    ///
    /// # Errors
    /// It contradicts what was known. The map has then taken the one that precedes, as every other node does.
    pub fn merge(&mut self, record: SlotRecord) -> Result<bool, Box<SlotConflict>> {
        let bucket = bucket_of(record.slot);
        let Some(place) = self.records.get_mut(record.slot.index()) else { return Ok(false) };
        let conflict = match place {
            Some(known) if known.contradicts(&record) => {
                Some(SlotConflict { known: known.clone(), received: record.clone() })
            }
            _ => None,
        };
        let is_newer = place.as_ref().is_none_or(|known| record.precedence(known).is_gt());
        if is_newer {
            *place = Some(record);
            self.refresh(bucket);
        }
        conflict.map_or(Ok(is_newer), |conflict| Err(Box::new(conflict)))
    }

    /// The record of a slot.
    #[must_use]
    pub fn record(&self, slot: SlotId) -> Option<&SlotRecord> {
        self.records.get(slot.index())?.as_ref()
    }

    /// All records, in the order of their slots.
    pub fn records(&self) -> impl Iterator<Item = &SlotRecord> {
        self.records.iter().flatten()
    }

    /// One digest for each of [`BUCKETS`] parts of the map. Equal parts have equal digests on every node.
    #[must_use]
    pub fn digests(&self) -> &[u64] {
        &self.digests
    }

    /// The buckets in which this map differs from one with these digests; all of them when they cannot be compared.
    #[must_use]
    pub fn differing(&self, digests: &[u64]) -> Vec<u8> {
        let differs = |bucket: &usize| digests.get(*bucket) != Some(&self.digests[*bucket]);
        // There are fewer buckets than a byte can number.
        (0..BUCKETS).filter(differs).map(|bucket| bucket as u8).collect()
    }

    /// The records of a bucket.
    pub fn bucket(&self, bucket: u8) -> impl Iterator<Item = &SlotRecord> {
        self.records.iter().skip(usize::from(bucket)).step_by(BUCKETS).flatten()
    }

    fn refresh(&mut self, bucket: usize) {
        let mut hash = Xxh3Default::new();
        // The version of what is hashed.
        hash.update(&[1]);
        for record in self.bucket(bucket as u8) {
            // Everything that precedence looks at. Records that differ in anything else could never be told apart.
            hash.update(&record.slot.get().to_le_bytes());
            hash.update(&record.epoch.get().to_le_bytes());
            hash.update(&record.updated_at.bits().to_le_bytes());
            hash.update(&[record.cause.number()]);
            for names in [slice::from_ref(&record.primary), &record.replicas, &record.granted_by] {
                hash.update(&(names.len() as u64).to_le_bytes());
                for name in names {
                    hash.update(&(name.as_str().len() as u64).to_le_bytes());
                    hash.update(name.as_str().as_bytes());
                }
            }
        }
        self.digests[bucket] = hash.digest();
    }
}

const fn bucket_of(slot: SlotId) -> usize {
    slot.index() % BUCKETS
}

/// Into how many parts the digest of a map is cut. Their digests fit into one datagram.
pub const BUCKETS: usize = 64;

#[cfg(test)]
mod tests;
