//! Copies are written: small ones at once, others in parts, each read from the cluster when it is its turn. Parts that the
//! archive has already are not sent again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use synod_core::objects::{ArchiveRecord, EntryName};
use synod_store::objects::content::Entry;
use synod_store::objects::contract::{ObjectStore as _, StoreError};

use super::Worker;
use crate::bucket::SentPart;
use crate::copy::Copy;
use crate::now_ms;
use crate::records::KnownRecord;
use crate::settings::ArchiveError;

impl Worker {
    /// Writes a copy of an object. It is written down before and after; when somebody else writes something down between,
    /// that counts.
    pub(super) async fn upload(
        &self,
        name: &EntryName,
        entry: &Entry,
        record: KnownRecord,
        is_contested: bool,
    ) -> Result<(), ArchiveError> {
        let copy = Copy::of(entry);
        let of = entry.tag;
        let is_old = now_ms().saturating_sub(entry.content.modified_ms) > RESTORED_AGE_MS;
        if record.record.is_none() && is_old {
            // What was taken from the archive is there already, as another generation.
            let found = match self.archive.look(name).await {
                Err(ArchiveError::Changed) => None,
                found => found?.filter(|found| found.is_same_content(&copy)),
            };
            if let Some(found) = found.and_then(|found| found.generation) {
                let archived = ArchiveRecord::Archived { of, copy: found, contested_ms: None };
                record.replace(&self.objects, archived).await?;
                return Ok(());
            }
        }
        let begun = ArchiveRecord::Uploading { of, upload: None };
        let Some(record) = record.replace(&self.objects, begun).await? else { return Ok(()) };
        if copy.size <= AT_ONCE_MAX {
            let whole = self.read_range(name, entry, 0..copy.size).await?;
            self.archive.put(name, &copy, whole).await?;
            return self.write_down(entry, &record, is_contested).await;
        }
        let upload = self.archive.begin(name, &copy).await?;
        let begun = ArchiveRecord::Uploading { of, upload: Some(upload.clone()) };
        let Some(record) = record.replace(&self.objects, begun).await? else {
            return self.archive.abort(name, &upload).await;
        };
        if self.send_parts(name, entry, &record, &upload, &BTreeMap::new()).await? {
            self.write_down(entry, &record, is_contested).await?;
        }
        Ok(())
    }

    /// Goes on with an upload in parts of an object that was left behind, by this node or another. Should the other still be
    /// at it, both send the same bytes.
    pub(super) async fn resume(
        &self,
        name: &EntryName,
        entry: &Entry,
        record: KnownRecord,
        upload: &str,
    ) -> Result<(), ArchiveError> {
        let Some(sent) = self.archive.sent_parts(name, upload).await? else {
            // It was completed and nobody wrote that down, or it has had its time.
            if self.archive.has(name, &Copy::of(entry)).await? {
                return self.write_down(entry, &record, true).await;
            }
            self.archive.abort(name, upload).await?;
            let begun = ArchiveRecord::Uploading { of: entry.tag, upload: None };
            record.replace(&self.objects, begun).await?;
            return Ok(());
        };
        tracing::debug!(object = %name, parts = sent.len(), "an upload to the archive goes on");
        match self.send_parts(name, entry, &record, upload, &sent).await {
            Ok(true) => self.write_down(entry, &record, true).await,
            Ok(false) => Ok(()),
            Err(error) => {
                if sent.len() as u64 == entry.content.size.div_ceil(part_bytes(entry.content.size)) {
                    // Nothing was missing, and it was not completed: one that never will be must not be gone on with for ever.
                    self.archive.abort(name, upload).await?;
                }
                Err(error)
            }
        }
    }

    /// Sends what is missing, and completes the upload. False when it was ended instead, because it is not wanted any more.
    async fn send_parts(
        &self,
        name: &EntryName,
        entry: &Entry,
        record: &KnownRecord,
        upload: &str,
        sent: &BTreeMap<usize, SentPart>,
    ) -> Result<bool, ArchiveError> {
        let size = entry.content.size;
        let part_bytes = part_bytes(size);
        let mut parts = Vec::new();
        let mut start = 0;
        while start < size {
            let range = start..size.min(start + part_bytes);
            start = range.end;
            let known = sent.get(&parts.len()).filter(|part| part.bytes == range.end - range.start);
            parts.push(match known {
                Some(part) => part.id.clone(),
                None => {
                    let part = self.read_range(name, entry, range).await?;
                    self.archive.put_part(name, upload, parts.len(), part).await?
                }
            });
        }
        // What was overwritten or deleted meanwhile is not brought back.
        if !record.is_current(&self.objects).await? {
            self.archive.abort(name, upload).await?;
            return Ok(false);
        }
        self.archive.complete(name, upload, parts).await?;
        Ok(true)
    }

    /// Writes down that the archive has the copy.
    async fn write_down(
        &self,
        entry: &Entry,
        record: &KnownRecord,
        is_contested: bool,
    ) -> Result<(), ArchiveError> {
        let of = entry.tag;
        let archived = ArchiveRecord::Archived { of, copy: of, contested_ms: is_contested.then(now_ms) };
        if record.replace(&self.objects, archived).await?.is_some() {
            self.archive.counters().archived.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Bytes of an object, at most a part of them.
    async fn read_range(
        &self,
        name: &EntryName,
        entry: &Entry,
        range: Range<u64>,
    ) -> Result<Vec<Bytes>, ArchiveError> {
        let mut missing = range.end - range.start;
        let mut body = self.objects.read_body(name, &entry.content.body, range);
        let mut pieces = Vec::new();
        while let Some(piece) = body.next().await {
            let piece = piece?;
            missing = missing.saturating_sub(piece.len() as u64);
            pieces.push(piece);
        }
        match missing {
            0 => Ok(pieces),
            _ => {
                let reason = "a body ended before its end".to_owned();
                Err(StoreError::Unavailable { reason }.into())
            }
        }
    }
}

/// How large the parts of an object are: it follows from its size, so that whoever goes on knows it too.
fn part_bytes(size: u64) -> u64 {
    AT_ONCE_MAX.max(size.div_ceil(PARTS_MAX))
}

/// Larger bodies go in parts, of at least so much.
const AT_ONCE_MAX: u64 = 8 << 20;
/// S3 takes ten thousand.
const PARTS_MAX: u64 = 9_000;
/// An object that was not written just now may have been taken from the archive.
const RESTORED_AGE_MS: u64 = 10_000;
