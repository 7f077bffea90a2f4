//! Copies are written: small ones at once, others in parts, each read from the cluster when it is its turn.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use synod_core::objects::{ArchiveRecord, EntryName};
use synod_store::objects::content::Entry;
use synod_store::objects::contract::{BodyStream, ObjectStore as _};

use super::Worker;
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
            let found = self.archive.look(name).await?.filter(|found| found.is_same_content(&copy));
            if let Some(found) = found.and_then(|found| found.generation) {
                let archived = ArchiveRecord::Archived { of, copy: found, contested_ms: None };
                record.replace(&self.objects, archived).await?;
                return Ok(());
            }
        }
        let begun = ArchiveRecord::Uploading { of, upload: None };
        let Some(mut record) = record.replace(&self.objects, begun).await? else { return Ok(()) };
        let body = self.objects.read_body(name, &entry.content.body, 0..copy.size);
        let mut body = Pieces { body, held: Bytes::new() };
        if copy.size <= AT_ONCE_MAX {
            let whole = body.take(copy.size).await?;
            self.archive.put(name, &copy, whole).await?;
        } else {
            let upload = self.archive.begin(name, &copy).await?;
            let begun = ArchiveRecord::Uploading { of, upload: Some(upload.clone()) };
            let Some(known) = record.replace(&self.objects, begun).await? else {
                return self.archive.abort(name, &upload).await;
            };
            record = known;
            let part_bytes = AT_ONCE_MAX.max(copy.size.div_ceil(PARTS_MAX));
            let mut parts = Vec::new();
            let mut left = copy.size;
            while left > 0 {
                let part = body.take(part_bytes.min(left)).await?;
                left -= part_bytes.min(left);
                parts.push(self.archive.put_part(name, &upload, parts.len(), part).await?);
            }
            // What was overwritten or deleted meanwhile is not brought back.
            if !record.is_current(&self.objects).await? {
                return self.archive.abort(name, &upload).await;
            }
            self.archive.complete(name, &upload, parts).await?;
        }
        let contested_ms = is_contested.then(now_ms);
        let archived = ArchiveRecord::Archived { of, copy: of, contested_ms };
        if record.replace(&self.objects, archived).await?.is_some() {
            self.archive.counters().archived.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The bytes of a body, in pieces of a wanted size.
struct Pieces {
    body: BodyStream,
    held: Bytes,
}

impl Pieces {
    async fn take(&mut self, mut bytes: u64) -> Result<Vec<Bytes>, ArchiveError> {
        let mut taken = Vec::new();
        while bytes > 0 {
            if self.held.is_empty() {
                let next = self.body.next().await.unwrap_or_else(|| {
                    let reason = "a body ended before its end".to_owned();
                    Err(synod_store::objects::contract::StoreError::Unavailable { reason })
                });
                self.held = next?;
                continue;
            }
            let piece = self.held.split_to(self.held.len().min(usize::try_from(bytes).unwrap_or(usize::MAX)));
            bytes -= piece.len() as u64;
            taken.push(piece);
        }
        Ok(taken)
    }
}

/// Larger bodies go in parts, of at least so much.
const AT_ONCE_MAX: u64 = 8 << 20;
/// S3 takes ten thousand.
const PARTS_MAX: u64 = 9_000;
/// An object that was not written just now may have been taken from the archive.
const RESTORED_AGE_MS: u64 = 10_000;
