//! A store in memory, as strict as the real one: it compares conditions, enforces bounds, and keeps the bytes of parts apart
//! from the entries that name them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Bytes, BytesMut};
use synod_core::objects::{Condition, EntryHead, EntryName, Space};
use synod_core::slots::{SlotEpoch, Tag};
use synod_store::objects::content::{
    BRIEF_BYTES_MAX, Body, Content, Entry, INLINE_BYTES_MAX, META_BYTES_MAX, PART_BYTES_MAX, PartId, PartRef,
};
use synod_store::objects::contract::{
    BodyStream, BodyWriter, LIST_MAX, ListItem, ListPage, ListPosition, ListQuery, ListedEntry, ObjectStore,
    StoreError, WriteOutcome,
};
use tokio::sync::mpsc;

/// A store in memory.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<Memory>>);

#[derive(Default)]
struct Memory {
    entries: BTreeMap<EntryName, Entry>,
    /// Bytes of parts, with the slot that they were written for.
    parts: HashMap<PartId, (u16, Bytes)>,
    sequence: u64,
    failure: Option<StoreError>,
    reads: u64,
}

impl MemoryStore {
    /// Lets everything fail in this way, or nothing any more.
    pub fn fail(&self, failure: Option<StoreError>) {
        self.lock().failure = failure;
    }

    /// How many entries there are of a kind.
    pub fn count(&self, space: Space) -> usize {
        self.lock().entries.keys().filter(|name| name.space() == space).count()
    }

    /// How often entries were read.
    pub fn reads(&self) -> u64 {
        self.lock().reads
    }

    /// Changes when an entry was written.
    pub fn set_modified(&self, space: Space, bucket: &str, key_prefix: &str, modified_ms: u64) {
        for (name, entry) in &mut self.lock().entries {
            if name.space() == space && name.bucket() == bucket && name.key().starts_with(key_prefix) {
                entry.content.modified_ms = modified_ms;
            }
        }
    }

    /// Spoils the record of an entry as a later version of the gateway would.
    pub fn spoil(&self, space: Space, bucket: &str, key: &str) {
        let name = EntryName::new(space, bucket, key).unwrap();
        let mut memory = self.lock();
        let entry = memory.entries.get_mut(&name).unwrap();
        entry.content.meta = Bytes::from_static(&[9, 1, 2, 3]);
    }

    /// Forgets the bytes of all parts.
    pub fn lose_parts(&self) {
        self.lock().parts.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap()
    }

    fn available(&self) -> Result<MutexGuard<'_, Memory>, StoreError> {
        let memory = self.lock();
        match memory.failure.clone() {
            Some(failure) => Err(failure),
            None => Ok(memory),
        }
    }
}

impl ObjectStore for MemoryStore {
    type Writer = MemoryWriter;

    async fn read(&self, name: &EntryName) -> Result<Option<Entry>, StoreError> {
        let mut memory = self.available()?;
        memory.reads += 1;
        Ok(memory.entries.get(name).cloned())
    }

    async fn write(
        &self,
        name: &EntryName,
        condition: Condition,
        etag: Arc<str>,
        content: Content,
    ) -> Result<WriteOutcome, StoreError> {
        let too_large = |reason: &str| Err(StoreError::TooLarge { reason: reason.to_owned() });
        if content.meta.len() > META_BYTES_MAX {
            return too_large("meta");
        }
        if content.brief.len() > BRIEF_BYTES_MAX {
            return too_large("brief");
        }
        assert_eq!(content.body.bytes(), content.size, "the size of a content is that of its body");
        let mut memory = self.available()?;
        match &content.body {
            Body::Inline(bytes) if bytes.len() > INLINE_BYTES_MAX => return too_large("inline"),
            Body::Inline(_) => {}
            Body::Parts(parts) => {
                for part in parts.iter() {
                    let (slot, bytes) =
                        memory.parts.get(&part.id).expect("a part that an entry names is there");
                    assert_eq!(*slot, slot_of(name), "a part is in the slot of the entry that names it");
                    assert_eq!(bytes.len() as u64, part.bytes);
                }
            }
        }
        let current = memory.entries.get(name).cloned();
        if !holds(&condition, current.as_ref()) {
            return Ok(WriteOutcome::Refused(current));
        }
        // What is stored went through bytes, as it does on a disk.
        let content = Content::from_bytes(content.to_bytes()).unwrap();
        memory.sequence += 1;
        let tag = Tag { epoch: SlotEpoch::new(1), sequence: memory.sequence };
        memory.entries.insert(name.clone(), Entry { tag, etag, content });
        Ok(WriteOutcome::Done(Some(tag)))
    }

    async fn delete(&self, name: &EntryName, condition: Condition) -> Result<WriteOutcome, StoreError> {
        let mut memory = self.available()?;
        let current = memory.entries.get(name).cloned();
        if !holds(&condition, current.as_ref()) {
            return Ok(WriteOutcome::Refused(current));
        }
        memory.sequence += 1;
        let tag = Tag { epoch: SlotEpoch::new(1), sequence: memory.sequence };
        Ok(WriteOutcome::Done(memory.entries.remove(name).map(|_| tag)))
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, StoreError> {
        assert!(
            (1..=LIST_MAX).contains(&query.limit),
            "a page has 1 to {LIST_MAX} items, not {}",
            query.limit
        );
        let memory = self.available()?;
        let mut page = ListPage::default();
        for (name, entry) in &memory.entries {
            let key = name.key();
            if name.space() != query.space || name.bucket() != query.bucket || !key.starts_with(&query.prefix)
            {
                continue;
            }
            match &query.after {
                Some(ListPosition::Key(after)) if key <= after.as_str() => continue,
                Some(ListPosition::Prefix(after)) if key <= after.as_str() || key.starts_with(after) => {
                    continue;
                }
                _ => {}
            }
            let rest = &key[query.prefix.len()..];
            let shared = match query.delimiter.is_empty() {
                true => None,
                false => rest
                    .find(&query.delimiter)
                    .map(|at| key[..query.prefix.len() + at + query.delimiter.len()].to_owned()),
            };
            if let (Some(shared), Some(ListItem::Prefix(last))) = (&shared, page.items.last())
                && shared == last
            {
                continue;
            }
            if page.items.len() == query.limit {
                page.is_truncated = true;
                break;
            }
            page.items.push(match shared {
                Some(prefix) => ListItem::Prefix(prefix),
                None => ListItem::Entry(ListedEntry {
                    key: key.to_owned(),
                    tag: entry.tag,
                    etag: Arc::clone(&entry.etag),
                    size: entry.content.size,
                    modified_ms: entry.content.modified_ms,
                    brief: entry.content.brief.clone(),
                }),
            });
        }
        Ok(page)
    }

    fn body_writer(&self, name: &EntryName) -> MemoryWriter {
        MemoryWriter { store: self.clone(), slot: slot_of(name), gathered: BytesMut::new() }
    }

    fn read_body(&self, name: &EntryName, body: &Body, range: Range<u64>) -> BodyStream {
        let (pieces, stream) = mpsc::channel(4);
        assert!(range.start <= range.end && range.end <= body.bytes(), "a range is within its body");
        let whole = match (body, self.available()) {
            (_, Err(error)) => Err(error),
            (Body::Inline(bytes), Ok(_)) => Ok(bytes.clone()),
            (Body::Parts(parts), Ok(memory)) => {
                let mut whole = BytesMut::new();
                let mut missing = None;
                for part in parts.iter() {
                    match memory.parts.get(&part.id) {
                        Some((slot, bytes)) => {
                            assert_eq!(*slot, slot_of(name), "a body is read as that of its own entry");
                            whole.extend_from_slice(bytes);
                        }
                        None => missing = Some(StoreError::Damaged { reason: part.id.to_string() }),
                    }
                }
                missing.map_or(Ok(whole.freeze()), Err)
            }
        };
        tokio::spawn(async move {
            match whole {
                Err(error) => drop(pieces.send(Err(error)).await),
                Ok(whole) => {
                    let wanted = whole.slice(range.start as usize..range.end as usize);
                    for piece in wanted.chunks(100_000) {
                        if pieces.send(Ok(wanted.slice_ref(piece))).await.is_err() {
                            return;
                        }
                    }
                }
            }
        });
        BodyStream::new(stream)
    }
}

/// Takes a body.
pub struct MemoryWriter {
    store: MemoryStore,
    slot: u16,
    gathered: BytesMut,
}

impl BodyWriter for MemoryWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        drop(self.store.available()?);
        self.gathered.extend_from_slice(&bytes);
        Ok(())
    }

    async fn finish(self) -> Result<Body, StoreError> {
        let bytes = self.gathered.freeze();
        if bytes.len() <= INLINE_BYTES_MAX {
            return Ok(Body::Inline(bytes));
        }
        let mut memory = self.store.available()?;
        let parts = bytes.chunks(PART_BYTES_MAX as usize).map(|piece| {
            let part = PartRef { id: PartId::random(), bytes: piece.len() as u64, root: 0 };
            memory.parts.insert(part.id, (self.slot, bytes.slice_ref(piece)));
            part
        });
        Ok(Body::Parts(parts.collect()))
    }
}

fn slot_of(name: &EntryName) -> u16 {
    name.slot(2048).get()
}

fn holds(condition: &Condition, current: Option<&Entry>) -> bool {
    let head = current.map(|entry| EntryHead {
        tag: entry.tag,
        accepted: entry.tag.epoch,
        is_deleted: false,
        etag: Arc::clone(&entry.etag),
        content: Bytes::new(),
    });
    condition.holds(head.as_ref())
}
