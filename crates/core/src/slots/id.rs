//! The numbers of the registry: slots, their epochs, the tags of what is written, and the id of a cluster.

use core::fmt;
use core::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

/// One slot of the key space, from 0 to the number of slots less one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(u16);

impl SlotId {
    /// The slot with this number. Whether a cluster has it is for its bootstrap state to say.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The slot that a key belongs to: XXH3 of its bytes, 64 bits, seed 0, modulo the number of slots.
///
/// This is part of the format of a cluster and never changes. Known values for 2048 slots: the empty key is in slot 1218,
/// `a` in 1567, `user:123` in 850.
///
/// # Panics
/// When there are no slots; a checked bootstrap state has some.
#[must_use]
pub fn slot_of(key: &[u8], total_slots: u16) -> SlotId {
    let number = xxh3_64(key) % u64::from(total_slots);
    // Below `total_slots`, which is 16 bits wide.
    SlotId(number as u16)
}

/// The term of a primary of one slot. Zero is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotEpoch(u64);

impl SlotEpoch {
    /// Before the first primary.
    pub const ZERO: Self = Self(0);

    /// The epoch with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The epoch after this one.
    ///
    /// # Panics
    /// After 2^64 elections of one slot.
    #[must_use]
    pub const fn next(self) -> Self {
        assert!(self.0 < u64::MAX, "the epochs of a slot are used up");
        Self(self.0 + 1)
    }
}

impl fmt::Display for SlotEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The generation of something written: the epoch of its primary, then the place in that primary's order. Larger is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// The epoch in which it was written.
    pub epoch: SlotEpoch,
    /// Which write of that epoch, from 1.
    pub sequence: u64,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.sequence)
    }
}

/// Which cluster: a hash of its canonical configuration, so that equal configurations give the same cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(u128);

impl ClusterId {
    /// The cluster with this hash.
    #[must_use]
    pub const fn new(hash: u128) -> Self {
        Self(hash)
    }

    /// The hash.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ClusterId {
    type Err = ClusterIdError;

    fn from_str(text: &str) -> Result<Self, ClusterIdError> {
        let is_canonical =
            text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let hash = u128::from_str_radix(text, 16).ok().filter(|_| is_canonical);
        hash.map(Self).ok_or(ClusterIdError)
    }
}

/// A text is not the id of a cluster. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a cluster is 32 digits of lower-case hexadecimal")]
pub struct ClusterIdError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_belong_to_the_slots_that_are_published() {
        let slots = [b"".as_slice(), b"a", b"user:123"].map(|key| slot_of(key, 2048).get());
        assert_eq!(slots, [1218, 1567, 850]);
    }

    #[test]
    fn the_id_of_a_cluster_has_one_spelling() {
        let id = ClusterId::new(0xABC);
        assert_eq!(alloc::format!("{id}").parse(), Ok(id));
        for text in ["", "abc", "0000000000000000000000000000ABC", "+0000000000000000000000000000abc"] {
            assert_eq!(text.parse::<ClusterId>(), Err(ClusterIdError));
        }
    }
}
