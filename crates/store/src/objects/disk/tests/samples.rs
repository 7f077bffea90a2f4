//! What the tests of a disk share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use bytes::Bytes;
use synod_core::objects::{EntryHead, EntryName, ObjectMessage, Space};
use synod_core::slots::{SlotEpoch, SlotId, Tag};
use tempfile::TempDir;

use crate::objects::content::{Body, Content, PartId, PartRef};
use crate::objects::disk::{Disk, DiskError, DiskOptions};

pub(super) const SLOTS: u16 = 8;

/// A disk in a directory of its own, with a clock that stands still.
pub(super) struct Bench {
    pub(super) dir: TempDir,
    pub(super) options: DiskOptions,
    pub(super) now_ms: Arc<AtomicU64>,
}

impl Bench {
    pub(super) fn new() -> Self {
        let now_ms = Arc::new(AtomicU64::new(1_000_000));
        let clock = Arc::clone(&now_ms);
        let options = DiskOptions {
            clock: Arc::new(move || clock.load(Ordering::SeqCst)),
            cache_bytes: 4 << 20,
            ..DiskOptions::new(SLOTS)
        };
        Self { dir: TempDir::new().unwrap(), options, now_ms }
    }

    pub(super) fn open(&self) -> Disk {
        Disk::open(self.dir.path(), &self.options).unwrap()
    }

    /// A disk that takes part in everything.
    pub(super) fn learned(&self) -> Disk {
        let disk = self.open();
        disk.set_learned(&all_slots()).unwrap();
        disk
    }
}

pub(super) fn all_slots() -> Vec<SlotId> {
    (0..SLOTS).map(SlotId::new).collect()
}

pub(super) fn object(key: &str) -> EntryName {
    EntryName::new(Space::Object, "photos", key).unwrap()
}

pub(super) fn named(space: Space, key: &str) -> EntryName {
    EntryName::new(space, "photos", key).unwrap()
}

pub(super) fn slot(name: &EntryName) -> SlotId {
    name.slot(SLOTS)
}

pub(super) fn tag(epoch: u64, sequence: u64) -> Tag {
    Tag { epoch: SlotEpoch::new(epoch), sequence }
}

/// A head whose body is in the head.
pub(super) fn inline(sequence: u64, bytes: &'static [u8]) -> EntryHead {
    head(sequence, &Content { body: Body::Inline(Bytes::from_static(bytes)), ..content(bytes.len() as u64) })
}

/// A head whose body is in parts.
pub(super) fn in_parts(sequence: u64, parts: &[PartRef]) -> EntryHead {
    let size = parts.iter().map(|part| part.bytes).sum();
    head(sequence, &Content { body: Body::Parts(parts.into()), ..content(size) })
}

pub(super) fn tombstone(sequence: u64, modified_ms: u64) -> EntryHead {
    let content = Content { modified_ms, ..Content::default() };
    EntryHead { is_deleted: true, etag: "".into(), ..head(sequence, &content) }
}

fn content(size: u64) -> Content {
    Content { modified_ms: 17, size, brief: Bytes::from_static(b"brief"), ..Content::default() }
}

pub(super) fn head(sequence: u64, content: &Content) -> EntryHead {
    EntryHead {
        tag: tag(1, sequence),
        accepted: SlotEpoch::new(1),
        is_deleted: false,
        etag: format!("etag-{sequence}").into(),
        content: content.to_bytes(),
    }
}

/// Has a message done, and waits until it is durable.
pub(super) fn tell(disk: &Disk, message: ObjectMessage) -> Result<Option<ObjectMessage>, DiskError> {
    let (done, answer) = mpsc::channel();
    disk.submit(message, Box::new(move |outcome| done.send(outcome).unwrap()));
    answer.recv().unwrap()
}

pub(super) fn store_message(name: &EntryName, head: &EntryHead) -> ObjectMessage {
    ObjectMessage::Store { slot: slot(name), epoch: head.accepted, name: name.clone(), head: head.clone() }
}

/// Has a head stored; whether its parts are there too.
pub(super) fn store(disk: &Disk, name: &EntryName, head: &EntryHead) -> bool {
    match tell(disk, store_message(name, head)).unwrap() {
        Some(ObjectMessage::Stored { is_complete, rank, .. }) => {
            assert_eq!(rank, head.rank());
            is_complete
        }
        other => panic!("{other:?}"),
    }
}

/// Writes a part.
pub(super) fn write_part(disk: &Disk, bytes: &[u8]) -> PartRef {
    write_part_as(disk, PartId::random(), bytes).unwrap()
}

pub(super) fn write_part_as(disk: &Disk, id: PartId, bytes: &[u8]) -> Result<PartRef, DiskError> {
    let mut part = disk.create_part(id)?;
    for piece in bytes.chunks(10_000) {
        part.write(piece)?;
    }
    let seal = part.seal()?;
    Ok(PartRef { id, bytes: seal.bytes, root: seal.root })
}

/// Bytes that do not repeat.
pub(super) fn noise(count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(count as u64);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}
