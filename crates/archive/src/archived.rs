//! The object store of a cluster with its archive, for gateways.
//!
//! What is in the cluster is read and written as without an archive. The archive is asked when bytes are lost on all replicas,
//! and when the cluster does not have an object and never had it. In both cases what is read is taken back.
//!
//! **What was deleted stays so.** The copy of a deleted object may be in the archive for long: the archive may be down. So
//! whoever deletes an object makes sure that it has a record, before; and an object with a record that is not in the cluster
//! is deleted. Taking an object back is a race with deletions that see nothing to be deleted: such a deletion leaves a
//! tombstone, and an object is taken back only where there is none.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use synod_core::objects::{ArchiveRecord, Condition, EntryName, Space};
use synod_core::slots::{SlotEpoch, Tag};
use synod_store::objects::content::{Body, Content, Entry, PartId, PartRef};
use synod_store::objects::contract::{
    BodyStream, BodyWriter as _, ListPage, ListQuery, ObjectStore, StoreError, WriteOutcome,
};
use tokio::sync::{Semaphore, mpsc};

use crate::bucket::Archive;
use crate::copy::Copy;
use crate::records::KnownRecord;
use crate::settings::ArchiveError;
use crate::{lock, now_ms, records};

/// An object store with an archive, or without: then it is the store alone. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Archived<S> {
    store: S,
    archive: Option<Arc<Tier>>,
}

#[derive(Debug)]
struct Tier {
    archive: Archive,
    /// Objects that are being taken back in the background, wholly or as far as they are lost.
    restoring: Mutex<HashSet<EntryName>>,
    room: Arc<Semaphore>,
}

impl<S: ObjectStore> Archived<S> {
    /// The store with an archive, if there is one.
    #[must_use]
    pub fn new(store: S, archive: Option<Archive>) -> Self {
        let tier = |archive| {
            let room = Arc::new(Semaphore::new(RESTORES_MAX));
            Arc::new(Tier { archive, restoring: Mutex::default(), room })
        };
        Self { store, archive: archive.map(tier) }
    }

    /// The archive, for what is archived.
    fn tier(&self, name: &EntryName) -> Option<&Arc<Tier>> {
        self.archive.as_ref().filter(|_| name.space() == Space::Object)
    }

    /// What the archive has of an object that is not in the cluster and never was.
    async fn look(&self, tier: &Tier, name: &EntryName) -> Result<Option<Copy>, StoreError> {
        if records::read(&self.store, name).await?.record.is_some() {
            return Ok(None);
        }
        tier.archive.look(name).await.map_err(unavailable)
    }

    /// Takes an object back that is only in the archive, so that conditions are compared with it.
    async fn restore_before(&self, tier: &Arc<Tier>, name: &EntryName) -> Result<(), StoreError> {
        if self.store.read(name).await?.is_some() {
            return Ok(());
        }
        let Some(copy) = self.look(tier, name).await? else { return Ok(()) };
        self.restore(tier, name, &copy).await
    }

    /// Brings the bytes of a copy into the cluster.
    async fn fetch(
        &self,
        tier: &Tier,
        name: &EntryName,
        generation: Option<Tag>,
        size: u64,
    ) -> Result<Body, StoreError> {
        let mut writer = self.store.body_writer(name);
        let (pieces, mut coming) = mpsc::channel(PIECES_MAX);
        let (archive, object) = (tier.archive.clone(), name.clone());
        let reading = tokio::spawn(async move {
            let read = archive.read(&object, generation, 0..size, &pieces).await;
            read.map_err(unavailable)
        });
        while let Some(piece) = coming.recv().await {
            writer.write(piece?).await?;
        }
        reading.await.map_err(|error| StoreError::Unavailable { reason: error.to_string() })??;
        writer.finish().await
    }

    async fn restore(&self, tier: &Tier, name: &EntryName, copy: &Copy) -> Result<(), StoreError> {
        let body = self.fetch(tier, name, copy.generation, copy.size).await?;
        let content = Content {
            modified_ms: copy.modified_ms,
            size: copy.size,
            brief: copy.brief.clone(),
            meta: copy.meta.clone(),
            body,
        };
        let written = self.store.write(name, Condition::Never, Arc::clone(&copy.etag), content).await?;
        if matches!(written, WriteOutcome::Done(_)) {
            tier.archive.counters().restored.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes the bytes of an object again that no replica has. What is known of it stays as it is; its generation is another.
    async fn mend(&self, tier: &Tier, name: &EntryName, lost: &Body) -> Result<(), StoreError> {
        let Some(Rescue { entry, record, copy, contested_ms }) = self.rescuer(name, lost).await? else {
            return Ok(());
        };
        let body = self.fetch(tier, name, Some(copy), entry.content.size).await?;
        if !may_be_same(lost, &body) {
            return Err(StoreError::Damaged { reason: "the archive has other bytes".to_owned() });
        }
        let content = Content { body, ..entry.content };
        let written = self.store.write(name, Condition::TagIs(entry.tag), entry.etag, content).await?;
        if let WriteOutcome::Done(Some(of)) = written {
            tier.archive.counters().restored.fetch_add(1, Ordering::Relaxed);
            // The copy is still good, unless somebody has begun to write another one already.
            record.replace(&self.store, ArchiveRecord::Archived { of, copy, contested_ms }).await?;
        }
        Ok(())
    }

    /// Takes back what is only in the archive, in the background, once per object, a few at a time: the whole object, or the
    /// body that is lost. When too many are, the next reader does it.
    fn take_back_later(&self, tier: &Arc<Tier>, name: &EntryName, lost: Option<Body>) {
        let Ok(room) = Arc::clone(&tier.room).try_acquire_owned() else { return };
        if !lock(&tier.restoring).insert(name.clone()) {
            return;
        }
        tier.archive.counters().restoring.fetch_add(1, Ordering::Relaxed);
        let (this, tier, name) = (self.clone(), Arc::clone(tier), name.clone());
        tokio::spawn(async move {
            let taken = match &lost {
                None => this.restore_before(&tier, &name).await,
                Some(lost) => this.mend(&tier, &name, lost).await,
            };
            if let Err(error) = taken {
                tracing::warn!(object = %name, %error, "an object could not be taken from the archive");
            }
            lock(&tier.restoring).remove(&name);
            tier.archive.counters().restoring.fetch_sub(1, Ordering::Relaxed);
            drop(room);
        });
    }

    /// Passes the bytes of a body on, and goes on with those of the archive where the cluster cannot.
    async fn read_or_rescue(
        self,
        tier: Arc<Tier>,
        name: EntryName,
        body: Body,
        mut range: Range<u64>,
        pieces: mpsc::Sender<Result<Bytes, StoreError>>,
    ) {
        let mut own = self.store.read_body(&name, &body, range.clone());
        let lost = loop {
            match own.next().await {
                None => return,
                Some(Ok(piece)) => {
                    range.start += piece.len() as u64;
                    if pieces.send(Ok(piece)).await.is_err() {
                        return;
                    }
                }
                Some(Err(error @ StoreError::Damaged { .. })) => break error,
                Some(Err(error)) => {
                    // Whoever reads is told, or gone.
                    pieces.send(Err(error)).await.ok();
                    return;
                }
            }
        };
        match self.rescue(&tier, &name, &body, range, &pieces).await {
            Ok(true) => {
                tracing::warn!(object = %name, error = %lost, "bytes were read from the archive instead");
                tier.archive.counters().rescued.fetch_add(1, Ordering::Relaxed);
                self.take_back_later(&tier, &name, Some(body));
            }
            Ok(false) => {
                pieces.send(Err(lost)).await.ok();
            }
            Err(error) => {
                let StoreError::Damaged { reason } = lost else { return };
                let reason = format!("{reason}; {error}");
                pieces.send(Err(StoreError::Damaged { reason })).await.ok();
            }
        }
    }

    /// Reads what is lost from the archive, if that has the same generation. False when it does not.
    async fn rescue(
        &self,
        tier: &Tier,
        name: &EntryName,
        body: &Body,
        range: Range<u64>,
        pieces: &mpsc::Sender<Result<Bytes, StoreError>>,
    ) -> Result<bool, ArchiveError> {
        let Some(Rescue { copy, .. }) = self.rescuer(name, body).await? else { return Ok(false) };
        tier.archive.read(name, Some(copy), range, pieces).await?;
        Ok(true)
    }

    /// What the archive has in place of a body that is lost.
    async fn rescuer(&self, name: &EntryName, lost: &Body) -> Result<Option<Rescue>, StoreError> {
        // What was overwritten meanwhile is gone by right.
        let Some(entry) = self.store.read(name).await?.filter(|entry| entry.content.body == *lost) else {
            return Ok(None);
        };
        let record = records::read(&self.store, name).await?;
        Ok(match record.record {
            Some(ArchiveRecord::Archived { of, copy, contested_ms }) if of == entry.tag => {
                Some(Rescue { entry, record, copy, contested_ms })
            }
            _ => None,
        })
    }

    /// Passes on the bytes of an object that is only in the archive.
    async fn read_copy(
        self,
        tier: Arc<Tier>,
        name: EntryName,
        range: Range<u64>,
        pieces: mpsc::Sender<Result<Bytes, StoreError>>,
    ) {
        let read = async {
            let copy = tier.archive.look(&name).await?.ok_or(ArchiveError::Changed)?;
            tier.archive.read(&name, copy.generation, range, &pieces).await
        };
        if let Err(error) = read.await {
            pieces.send(Err(unavailable(error))).await.ok();
        }
    }
}

impl<S: ObjectStore> ObjectStore for Archived<S> {
    type Writer = S::Writer;

    async fn read(&self, name: &EntryName) -> Result<Option<Entry>, StoreError> {
        let found = self.store.read(name).await?;
        let Some(tier) = self.tier(name).filter(|_| found.is_none()) else { return Ok(found) };
        let copy = self.look(tier, name).await?;
        Ok(copy.map(|copy| Entry {
            tag: TAG_ELSEWHERE,
            etag: copy.etag,
            content: Content {
                modified_ms: copy.modified_ms,
                size: copy.size,
                brief: copy.brief,
                meta: copy.meta,
                body: body_elsewhere(copy.size),
            },
        }))
    }

    async fn write(
        &self,
        name: &EntryName,
        condition: Condition,
        etag: Arc<str>,
        mut content: Content,
    ) -> Result<WriteOutcome, StoreError> {
        let Some(tier) = self.tier(name) else {
            return self.store.write(name, condition, etag, content).await;
        };
        if condition != Condition::Any {
            self.restore_before(tier, name).await?;
        }
        if is_elsewhere(&content.body) {
            // Somebody read it and writes it again with other metadata: the bytes have to be here.
            let copy = tier.archive.look(name).await.map_err(unavailable)?;
            let copy = copy.ok_or_else(|| unavailable(ArchiveError::Changed))?;
            content.body = self.fetch(tier, name, copy.generation, copy.size).await?;
        }
        self.store.write(name, condition, etag, content).await
    }

    async fn delete(&self, name: &EntryName, condition: Condition) -> Result<WriteOutcome, StoreError> {
        let Some(tier) = self.tier(name) else { return self.store.delete(name, condition).await };
        if condition != Condition::Any {
            self.restore_before(tier, name).await?;
        }
        let record = records::read(&self.store, name).await?;
        if record.record.is_none() {
            // Somebody else may have written one meanwhile: that does as well.
            record.replace(&self.store, ArchiveRecord::Deleting { since_ms: now_ms() }).await?;
        }
        let deleted = self.store.delete(name, condition).await?;
        if deleted == WriteOutcome::Done(None) {
            // Whoever is taking the object back is refused by a tombstone, this one or another's.
            self.store.delete(name, Condition::Never).await?;
        }
        Ok(deleted)
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, StoreError> {
        self.store.list(query).await
    }

    fn body_writer(&self, name: &EntryName) -> S::Writer {
        self.store.body_writer(name)
    }

    fn read_body(&self, name: &EntryName, body: &Body, range: Range<u64>) -> BodyStream {
        let tier = match (self.tier(name), body) {
            (Some(tier), Body::Parts(_)) => Arc::clone(tier),
            _ => return self.store.read_body(name, body, range),
        };
        let (pieces, stream) = mpsc::channel(PIECES_MAX);
        if is_elsewhere(body) {
            self.take_back_later(&tier, name, None);
            tokio::spawn(self.clone().read_copy(tier, name.clone(), range, pieces));
        } else {
            tokio::spawn(self.clone().read_or_rescue(tier, name.clone(), body.clone(), range, pieces));
        }
        BodyStream::new(stream)
    }
}

/// An object that has lost its bytes, and the copy that has them.
struct Rescue {
    entry: Entry,
    record: KnownRecord,
    /// What the copy says its generation is.
    copy: Tag,
    contested_ms: Option<u64>,
}

/// Whether two bodies may have the same bytes. Those of parts that begin and end at the same places are known to or not to.
fn may_be_same(one: &Body, other: &Body) -> bool {
    let (Body::Parts(one), Body::Parts(other)) = (one, other) else { return true };
    let is_cut_alike = one.iter().map(|part| part.bytes).eq(other.iter().map(|part| part.bytes));
    !is_cut_alike || one.iter().map(|part| part.root).eq(other.iter().map(|part| part.root))
}

/// The body of an object that is only in the archive: one part that no disk has. It is never written.
fn body_elsewhere(bytes: u64) -> Body {
    Body::Parts([PartRef { id: PART_ELSEWHERE, bytes, root: 0 }].into())
}

fn is_elsewhere(body: &Body) -> bool {
    matches!(body, Body::Parts(parts) if parts.iter().any(|part| part.id == PART_ELSEWHERE))
}

fn unavailable(error: ArchiveError) -> StoreError {
    match error {
        ArchiveError::Store(error) => error,
        error => StoreError::Unavailable { reason: error.to_string() },
    }
}

/// Parts have random names: none has this one.
const PART_ELSEWHERE: PartId = PartId(0);
/// The generation of what is not in the cluster: epochs begin with 1.
const TAG_ELSEWHERE: Tag = Tag { epoch: SlotEpoch::new(0), sequence: 0 };
const RESTORES_MAX: usize = 4;
const PIECES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_told_wherever_parts_are_cut_alike() {
        let body = |parts: &[(u64, u64)]| {
            let part =
                |(bytes, root): &(u64, u64)| PartRef { id: PartId::random(), bytes: *bytes, root: *root };
            Body::Parts(parts.iter().map(part).collect())
        };
        let lost = body(&[(8, 1), (5, 2)]);
        assert!(may_be_same(&lost, &body(&[(8, 1), (5, 2)])));
        assert!(!may_be_same(&lost, &body(&[(8, 1), (5, 3)])));
        // An upload in parts is cut as its client wanted: nothing can be said.
        assert!(may_be_same(&lost, &body(&[(13, 4)])));
    }
}
