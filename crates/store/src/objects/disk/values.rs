//! What the tables of a disk contain, as bytes: a version, the fields, a checksum.
//!
//! The checksum is over the key too: a value that came to be under the key of another is as damaged as one with a flipped
//! bit. The database checks its pages only after a crash, so these are what notices a disk that lies.

use std::sync::Arc;

use bytes::Bytes;
use synod_core::objects::{EntryHead, EntryName, SlotFence};
use synod_core::slots::{HeadRank, SlotEpoch, SlotId, Tag};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::objects::content::{Content, PartId, PartRef};

/// What a listing, and whoever compares ranks, needs of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexRow {
    pub(super) slot: SlotId,
    pub(super) rank: HeadRank,
    pub(super) is_deleted: bool,
    /// Whether its bytes are in parts.
    pub(super) has_parts: bool,
    pub(super) etag: Arc<str>,
    pub(super) size: u64,
    pub(super) modified_ms: u64,
    pub(super) brief: Bytes,
}

impl IndexRow {
    pub(super) fn new(slot: SlotId, head: &EntryHead, content: &Content, has_parts: bool) -> Self {
        Self {
            slot,
            rank: head.rank(),
            is_deleted: head.is_deleted,
            has_parts,
            etag: head.etag.clone(),
            size: content.size,
            modified_ms: content.modified_ms,
            brief: content.brief.clone(),
        }
    }

    pub(super) fn to_bytes(&self, key: &[u8]) -> Vec<u8> {
        let mut bytes = Encoder::new(80 + self.etag.len() + self.brief.len());
        bytes.flags(self.is_deleted, self.has_parts);
        bytes.rank(self.rank);
        bytes.put(&self.slot.get().to_be_bytes());
        bytes.number(self.size);
        bytes.number(self.modified_ms);
        bytes.text(self.etag.as_bytes());
        bytes.text(&self.brief);
        bytes.finish(key)
    }

    pub(super) fn from_bytes(key: &[u8], bytes: &[u8]) -> Option<Self> {
        let mut bytes = Decoder::new(key, bytes)?;
        let (is_deleted, has_parts) = bytes.flags()?;
        let rank = bytes.rank()?;
        let slot = SlotId::new(u16::from_be_bytes(bytes.take()?));
        let (size, modified_ms) = (bytes.number()?, bytes.number()?);
        let etag = str::from_utf8(bytes.text()?).ok()?.into();
        let brief = Bytes::copy_from_slice(bytes.text()?);
        bytes.end()?;
        Some(Self { slot, rank, is_deleted, has_parts, etag, size, modified_ms, brief })
    }
}

/// The key of a head: its slot, then its name.
pub(super) fn head_key(slot: SlotId, name: &EntryName) -> Vec<u8> {
    let mut key = Vec::with_capacity(2 + name.as_bytes().len());
    key.extend_from_slice(&slot.get().to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

pub(super) fn head_to_bytes(key: &[u8], head: &EntryHead) -> Vec<u8> {
    let mut bytes = Encoder::new(64 + head.etag.len() + head.content.len());
    bytes.flags(head.is_deleted, false);
    bytes.rank(head.rank());
    bytes.text(head.etag.as_bytes());
    bytes.put(&head.content);
    bytes.finish(key)
}

pub(super) fn head_from_bytes(key: &[u8], bytes: &[u8]) -> Option<EntryHead> {
    let mut bytes = Decoder::new(key, bytes)?;
    let (is_deleted, _) = bytes.flags()?;
    let HeadRank { accepted, tag } = bytes.rank()?;
    let etag = str::from_utf8(bytes.text()?).ok()?.into();
    let content = Bytes::copy_from_slice(bytes.0);
    Some(EntryHead { tag, accepted, is_deleted, etag, content })
}

pub(super) fn fence_to_bytes(slot: SlotId, fence: SlotFence) -> Vec<u8> {
    let mut bytes = Encoder::new(24);
    bytes.flags(fence.is_learned, false);
    bytes.number(fence.fence.get());
    bytes.finish(&slot.get().to_be_bytes())
}

pub(super) fn fence_from_bytes(slot: SlotId, bytes: &[u8]) -> Option<SlotFence> {
    let mut bytes = Decoder::new(&slot.get().to_be_bytes(), bytes)?;
    let (is_learned, _) = bytes.flags()?;
    let fence = SlotEpoch::new(bytes.number()?);
    bytes.end()?;
    Some(SlotFence { fence, is_learned })
}

/// The key of the fact that an entry names a part.
pub(super) fn naming_key(id: PartId, name: &EntryName) -> Vec<u8> {
    let mut key = Vec::with_capacity(16 + name.as_bytes().len());
    key.extend_from_slice(&id.0.to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

pub(super) fn naming_from_key(key: &[u8]) -> Option<(PartId, EntryName)> {
    let (id, name) = key.split_first_chunk()?;
    Some((PartId(u128::from_be_bytes(*id)), EntryName::from_bytes(name).ok()?))
}

pub(super) fn naming_to_bytes(key: &[u8], slot: SlotId, part: &PartRef) -> Vec<u8> {
    let mut bytes = Encoder::new(32);
    bytes.flags(false, false);
    bytes.put(&slot.get().to_be_bytes());
    bytes.number(part.bytes);
    bytes.number(part.root);
    bytes.finish(key)
}

pub(super) fn naming_from_bytes(key: &[u8], bytes: &[u8]) -> Option<(PartRef, SlotId, EntryName)> {
    let (id, name) = naming_from_key(key)?;
    let mut bytes = Decoder::new(key, bytes)?;
    bytes.flags()?;
    let slot = SlotId::new(u16::from_be_bytes(bytes.take()?));
    let part = PartRef { id, bytes: bytes.number()?, root: bytes.number()? };
    bytes.end()?;
    Some((part, slot, name))
}

/// The key of a tombstone among those of its slot: by age.
pub(super) fn tombstone_key(slot: SlotId, modified_ms: u64, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(10 + name.len());
    key.extend_from_slice(&slot.get().to_be_bytes());
    key.extend_from_slice(&modified_ms.to_be_bytes());
    key.extend_from_slice(name);
    key
}

pub(super) fn tombstone_name(key: &[u8]) -> Option<EntryName> {
    EntryName::from_bytes(key.get(10..)?).ok()
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn new(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.push(VERSION);
        Self(bytes)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn flags(&mut self, first: bool, second: bool) {
        self.0.push(u8::from(first) | u8::from(second) << 1);
    }

    fn number(&mut self, number: u64) {
        self.put(&number.to_be_bytes());
    }

    fn rank(&mut self, rank: HeadRank) {
        self.number(rank.accepted.get());
        self.number(rank.tag.epoch.get());
        self.number(rank.tag.sequence);
    }

    fn text(&mut self, text: &[u8]) {
        // What is longer was refused before it came here.
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
        self.put(&length.to_be_bytes());
        self.put(&text[..usize::from(length)]);
    }

    fn finish(mut self, key: &[u8]) -> Vec<u8> {
        let checksum = checksum(key, &self.0);
        self.number(checksum);
        self.0
    }
}

struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn new(key: &[u8], bytes: &'a [u8]) -> Option<Self> {
        let (bytes, stored) = bytes.split_last_chunk()?;
        let is_intact = u64::from_be_bytes(*stored) == checksum(key, bytes);
        let (version, bytes) = bytes.split_first()?;
        (is_intact && *version == VERSION).then_some(Self(bytes))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn flags(&mut self) -> Option<(bool, bool)> {
        let [flags] = self.take()?;
        Some((flags & 1 != 0, flags & 2 != 0))
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn rank(&mut self) -> Option<HeadRank> {
        let accepted = SlotEpoch::new(self.number()?);
        let epoch = SlotEpoch::new(self.number()?);
        Some(HeadRank { accepted, tag: Tag { epoch, sequence: self.number()? } })
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = u16::from_be_bytes(self.take()?);
        let (text, rest) = self.0.split_at_checked(length.into())?;
        self.0 = rest;
        Some(text)
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

fn checksum(key: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64(key))
}

const VERSION: u8 = 1;
