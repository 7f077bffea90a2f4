//! The head of an entry: which write it is, and what was written.

use alloc::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::name::EntryName;
use crate::slots::{HeadRank, SlotEpoch, Tag};

/// The newest thing that a replica knows of an entry. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryHead {
    /// Which write it is: the generation of the entry.
    pub tag: Tag,
    /// The epoch whose primary had it stored last: that of the tag, or that of a later primary that took it over.
    pub accepted: SlotEpoch,
    /// Whether the entry is deleted: then this is its tombstone.
    pub is_deleted: bool,
    /// What conditions compare. Empty for a tombstone.
    pub etag: Arc<str>,
    /// What was written. Nothing here reads it.
    pub content: Bytes,
}

impl EntryHead {
    /// Which of two heads counts.
    #[must_use]
    pub const fn rank(&self) -> HeadRank {
        HeadRank { accepted: self.accepted, tag: self.tag }
    }
}

/// What must hold of an entry for a write to take effect. A deleted entry is an absent one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Anything.
    #[default]
    Any,
    /// It is not there.
    Absent,
    /// It is there.
    Present,
    /// It is there with one of these.
    EtagIn(Arc<[Arc<str>]>),
    /// It is not there with any of these.
    EtagNotIn(Arc<[Arc<str>]>),
    /// It is there, as this write.
    TagIs(Tag),
    /// It is not there, and no tombstone says that it was. A deletion under this condition leaves a tombstone, which makes
    /// the condition fail for everybody else.
    Never,
}

impl Condition {
    /// Whether it holds of what is there.
    #[must_use]
    pub fn holds(&self, current: Option<&EntryHead>) -> bool {
        if matches!(self, Self::Never) {
            return current.is_none();
        }
        let current = current.filter(|head| !head.is_deleted);
        match self {
            Self::Any => true,
            Self::Absent | Self::Never => current.is_none(),
            Self::Present => current.is_some(),
            Self::EtagIn(etags) => current.is_some_and(|head| etags.contains(&head.etag)),
            Self::EtagNotIn(etags) => current.is_none_or(|head| !etags.contains(&head.etag)),
            Self::TagIs(tag) => current.is_some_and(|head| head.tag == *tag),
        }
    }
}

/// What a replica stores of one slot, in brief: two replicas with equal summaries store the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotSummary {
    /// The sum of a 128-bit hash of each name with its rank.
    pub digest: u128,
    /// How many entries, tombstones included.
    pub count: u64,
}

impl SlotSummary {
    /// An entry came to be stored.
    pub fn add(&mut self, name: &EntryName, rank: HeadRank) {
        self.digest = self.digest.wrapping_add(entry_digest(name, rank));
        self.count = self.count.wrapping_add(1);
    }

    /// An entry is stored no longer.
    pub fn subtract(&mut self, name: &EntryName, rank: HeadRank) {
        self.digest = self.digest.wrapping_sub(entry_digest(name, rank));
        self.count = self.count.wrapping_sub(1);
    }
}

fn entry_digest(name: &EntryName, rank: HeadRank) -> u128 {
    let mut bytes = alloc::vec::Vec::with_capacity(name.as_bytes().len() + 24);
    for number in [rank.accepted.get(), rank.tag.epoch.get(), rank.tag.sequence] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    bytes.extend_from_slice(name.as_bytes());
    xxh3_128(&bytes)
}
