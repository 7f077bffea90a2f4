//! The notebook itself: values, the entries that hold them, and how they travel.
//!
//! A value is opaque: bytes and the name of their type, like `google.protobuf.Any`. Nothing here looks inside, so values
//! of types that this node has never heard of are kept and passed on unchanged.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::fmt;

use super::id::{GossipKey, GossipMemberId, SequenceNumber};
use crate::time::TimerInstant;

/// An opaque value and the name of its type. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct GossipValue {
    type_url: Arc<str>,
    bytes: Arc<[u8]>,
}

impl GossipValue {
    /// Checks the sizes of a value: a type name of at most [`TYPE_URL_BYTES_MAX`] bytes and at most
    /// [`VALUE_BYTES_MAX`] bytes of content.
    ///
    /// # Errors
    /// [`GossipValueError`] says which of them is too large.
    pub fn new(type_url: &str, bytes: &[u8]) -> Result<Self, GossipValueError> {
        if type_url.len() > TYPE_URL_BYTES_MAX {
            return Err(GossipValueError::TypeUrlTooLong { bytes: type_url.len() });
        }
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(GossipValueError::TooLarge { bytes: bytes.len() });
        }
        Ok(Self { type_url: Arc::from(type_url), bytes: Arc::from(bytes) })
    }

    /// The value of an entry that says everything by being there.
    #[must_use]
    pub fn empty() -> Self {
        Self { type_url: Arc::from(EMPTY_TYPE_URL), bytes: Arc::from([]) }
    }

    /// The name of the type, as its sender wrote it.
    #[must_use]
    pub fn type_url(&self) -> &str {
        &self.type_url
    }

    /// The content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for GossipValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} bytes)", self.type_url, self.bytes.len())
    }
}

/// A value is too large. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GossipValueError {
    /// The name of the type is longer than [`TYPE_URL_BYTES_MAX`].
    #[error("the type name of a gossip value has at most {TYPE_URL_BYTES_MAX} bytes, this one has {bytes}")]
    TypeUrlTooLong {
        /// Length of the refused name.
        bytes: usize,
    },
    /// The content is larger than [`VALUE_BYTES_MAX`].
    #[error("a gossip value has at most {VALUE_BYTES_MAX} bytes, this one has {bytes}")]
    TooLarge {
        /// Size of the refused content.
        bytes: usize,
    },
}

/// One entry of a member's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipKeyValue {
    /// The value.
    pub value: GossipValue,
    /// Which write of its owner this is.
    pub sequence_number: SequenceNumber,
    /// When this node wrote or accepted the entry, on its own clock. It never travels: whoever accepts an entry stamps
    /// it anew, so that no clock is ever compared with another.
    pub local_timestamp: TimerInstant,
}

/// The entries of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GossipMemberState {
    values: BTreeMap<GossipKey, GossipKeyValue>,
}

impl GossipMemberState {
    /// Writes an entry, whatever was there. Returns what was there.
    pub fn insert(&mut self, key: GossipKey, entry: GossipKeyValue) -> Option<GossipKeyValue> {
        self.values.insert(key, entry)
    }

    /// One entry.
    #[must_use]
    pub fn get(&self, key: &GossipKey) -> Option<&GossipKeyValue> {
        self.values.get(key)
    }

    /// All entries in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&GossipKey, &GossipKeyValue)> {
        self.values.iter()
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&GossipKey) -> bool) {
        self.values.retain(|key, _| keep(key));
    }
}

/// What one message carries: some entries of some members. A member without entries is never part of it, because a Go
/// peer that is told of one crashes on the next entry for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GossipState {
    members: BTreeMap<GossipMemberId, GossipMemberState>,
}

impl GossipState {
    /// Adds an entry of `member`.
    pub fn insert(&mut self, member: &GossipMemberId, key: GossipKey, entry: GossipKeyValue) {
        self.members.entry(member.clone()).or_default().insert(key, entry);
    }

    /// The entries of one member.
    #[must_use]
    pub fn member(&self, member: &GossipMemberId) -> Option<&GossipMemberState> {
        self.members.get(member)
    }

    /// All members in order, each with at least one entry.
    pub fn members(&self) -> impl Iterator<Item = (&GossipMemberId, &GossipMemberState)> {
        self.members.iter()
    }

    /// How many members it speaks of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

/// An entry of another member changed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipUpdate {
    /// Whose entry.
    pub member: GossipMemberId,
    /// Which entry.
    pub key: GossipKey,
    /// The new value.
    pub value: GossipValue,
    /// The write that it comes from.
    pub sequence_number: SequenceNumber,
}

/// At most what an entry takes in a message.
pub(super) fn entry_bytes(key: &GossipKey, value: &GossipValue) -> usize {
    key.as_str().len() + value.type_url.len() + value.bytes.len() + ENTRY_OVERHEAD_BYTES
}

/// At most what naming a member takes in a message.
pub(super) fn member_bytes(member: &GossipMemberId) -> usize {
    member.as_str().len() + MEMBER_OVERHEAD_BYTES
}

/// Longest type name in bytes.
pub const TYPE_URL_BYTES_MAX: usize = 512;
/// Largest value in bytes.
pub const VALUE_BYTES_MAX: usize = 256 * 1024;
/// The type of a value without content.
pub const EMPTY_TYPE_URL: &str = "type.googleapis.com/google.protobuf.Empty";
/// All tags, lengths and numbers that protobuf puts around an entry.
pub(super) const ENTRY_OVERHEAD_BYTES: usize = 64;
/// All tags and lengths that protobuf puts around a member.
pub(super) const MEMBER_OVERHEAD_BYTES: usize = 16;
