//! Records of copies, as entries of the cluster. Every change is under a condition, so that none goes backwards.

use std::sync::Arc;

use synod_core::objects::{ArchiveRecord, Condition, EntryName, Space};
use synod_core::slots::Tag;
use synod_store::objects::content::Content;
use synod_store::objects::contract::{ObjectStore, StoreError, WriteOutcome};

use crate::now_ms;

/// A record that is there, or that there is none, as it was read.
#[derive(Clone, Debug)]
pub(crate) struct KnownRecord {
    name: EntryName,
    tag: Option<Tag>,
    pub(crate) record: Option<ArchiveRecord>,
}

/// Reads the record of an object.
pub(crate) async fn read<S: ObjectStore>(store: &S, object: &EntryName) -> Result<KnownRecord, StoreError> {
    let name = record_name(object)?;
    let Some(entry) = store.read(&name).await? else {
        return Ok(KnownRecord { name, tag: None, record: None });
    };
    let record = parse(&entry.content.meta).ok_or_else(|| damaged(object))?;
    Ok(KnownRecord { name, tag: Some(entry.tag), record: Some(record) })
}

/// The record in the bytes of an entry.
pub(crate) fn parse(bytes: &[u8]) -> Option<ArchiveRecord> {
    let (version, text) = bytes.split_first()?;
    if *version != VERSION {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

impl KnownRecord {
    /// Writes another record in place of this one, unless somebody else did: then `None`.
    pub(crate) async fn replace<S: ObjectStore>(
        &self,
        store: &S,
        record: ArchiveRecord,
    ) -> Result<Option<Self>, StoreError> {
        let mut meta = vec![VERSION];
        meta.extend_from_slice(record.to_text().as_bytes());
        let content = Content { modified_ms: now_ms(), meta: meta.into(), ..Content::default() };
        let written = store.write(&self.name, self.condition(), Arc::from(""), content).await?;
        Ok(match written {
            WriteOutcome::Done(tag) => Some(Self { name: self.name.clone(), tag, record: Some(record) }),
            WriteOutcome::Refused(_) => None,
        })
    }

    /// Deletes the record, unless somebody else changed it: then false.
    pub(crate) async fn remove<S: ObjectStore>(&self, store: &S) -> Result<bool, StoreError> {
        Ok(matches!(store.delete(&self.name, self.condition()).await?, WriteOutcome::Done(_)))
    }

    /// Whether the record is still this one.
    pub(crate) async fn is_current<S: ObjectStore>(&self, store: &S) -> Result<bool, StoreError> {
        Ok(store.read(&self.name).await?.map(|entry| entry.tag) == self.tag)
    }

    fn condition(&self) -> Condition {
        self.tag.map_or(Condition::Absent, Condition::TagIs)
    }
}

fn record_name(object: &EntryName) -> Result<EntryName, StoreError> {
    EntryName::new(Space::Archive, object.bucket(), object.key()).map_err(|_| damaged(object))
}

fn damaged(object: &EntryName) -> StoreError {
    StoreError::Damaged { reason: format!("the archive record of {object} cannot be read") }
}

/// The version of all records.
const VERSION: u8 = 1;
