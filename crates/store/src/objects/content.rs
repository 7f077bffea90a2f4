//! What was written of an entry, and its bytes in a head.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use synod_core::objects::EntryHead;
use synod_core::slots::Tag;
use synod_wire::objects as wire;

/// An entry that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which write it is: the generation.
    pub tag: Tag,
    /// What conditions compare.
    pub etag: Arc<str>,
    /// What was written.
    pub content: Content,
}

/// What was written of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// When, in milliseconds of the wall clock. For people and for ageing.
    pub modified_ms: u64,
    /// How many bytes the body has.
    pub size: u64,
    /// What a listing shows beside size, time and `ETag`, at most [`BRIEF_BYTES_MAX`].
    pub brief: Bytes,
    /// What only whoever reads the entry wants to know, at most [`META_BYTES_MAX`].
    pub meta: Bytes,
    /// The bytes.
    pub body: Body,
}

/// The bytes of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// They are few, and in the head: at most [`INLINE_BYTES_MAX`].
    Inline(Bytes),
    /// They are in parts, in this order.
    Parts(Arc<[PartRef]>),
}

impl Default for Body {
    fn default() -> Self {
        Self::Inline(Bytes::new())
    }
}

/// A part: bytes that were written once, under a name of their own, and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartRef {
    /// Its name.
    pub id: PartId,
    /// How many bytes it has.
    pub bytes: u64,
    /// XXH3, 64 bits, of the checksums of its blocks: equal parts have equal ones.
    pub root: u64,
}

/// The name of a part: random, so that no two are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(pub u128);

impl PartId {
    /// A new one.
    #[must_use]
    pub fn random() -> Self {
        Self(fastrand::u128(..))
    }
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Content {
    /// The content as it is stored.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let (inline, parts) = match &self.body {
            Body::Inline(bytes) => (bytes.clone(), Vec::new()),
            Body::Parts(parts) => (Bytes::new(), parts.iter().map(part_to_wire).collect()),
        };
        let content = wire::EntryContent {
            modified_ms: self.modified_ms,
            size: self.size,
            brief: self.brief.clone(),
            meta: self.meta.clone(),
            inline,
            parts,
        };
        content.encode_to_vec().into()
    }

    /// Reads a content back.
    ///
    /// # Errors
    /// The bytes are not those of a content.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, ContentError> {
        let wire = wire::EntryContent::decode(bytes).map_err(|_| ContentError)?;
        let body = if wire.parts.is_empty() {
            Body::Inline(wire.inline)
        } else {
            Body::Parts(wire.parts.iter().map(part_from_wire).collect::<Result<_, _>>()?)
        };
        let content =
            Self { modified_ms: wire.modified_ms, size: wire.size, brief: wire.brief, meta: wire.meta, body };
        match content.body.bytes() == content.size {
            true => Ok(content),
            false => Err(ContentError),
        }
    }
}

impl Body {
    /// How many bytes there are.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Parts(parts) => parts.iter().map(|part| part.bytes).sum(),
        }
    }
}

impl Entry {
    /// The entry of a head; `None` for a tombstone.
    ///
    /// # Errors
    /// The content of the head cannot be read.
    pub fn of_head(head: EntryHead) -> Result<Option<Self>, ContentError> {
        if head.is_deleted {
            return Ok(None);
        }
        Ok(Some(Self { tag: head.tag, etag: head.etag, content: Content::from_bytes(head.content)? }))
    }
}

/// Bytes are not the content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are not the content of an entry")]
pub struct ContentError;

pub(crate) fn part_to_wire(part: &PartRef) -> wire::PartRef {
    wire::PartRef { id: Bytes::copy_from_slice(&part.id.0.to_be_bytes()), bytes: part.bytes, root: part.root }
}

pub(crate) fn part_from_wire(part: &wire::PartRef) -> Result<PartRef, ContentError> {
    let id = part.id.as_ref().try_into().map_err(|_| ContentError)?;
    Ok(PartRef { id: PartId(u128::from_be_bytes(id)), bytes: part.bytes, root: part.root })
}

/// Largest body that is kept in the head.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Largest part.
pub const PART_BYTES_MAX: u64 = 64 << 20;
/// Longest `brief`.
pub const BRIEF_BYTES_MAX: usize = 256;
/// Longest `meta`.
pub const META_BYTES_MAX: usize = 64 * 1024;
