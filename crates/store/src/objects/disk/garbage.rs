//! Parts that nobody names any more: found, and removed when nobody can be reading them.
//!
//! A part that its last entry stopped naming waits in the trash for a while, for those who have read the head and not yet
//! the part. A part that no entry ever named is left of a write that came to nothing; since parts are written before their
//! heads, it is given much longer. Whether a part is named is asked inside a transaction of the writer, and its name is taken
//! away there too, so that no head that names it can come in between.

use std::fs::Metadata;
use std::time::{Duration, UNIX_EPOCH};

use super::Disk;
use super::error::DiskError;
use crate::lock;
use crate::objects::content::PartId;

/// What was collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GarbageReport {
    /// Parts that were in the trash long enough, and were removed.
    pub(crate) trashed: usize,
    /// Parts that no entry ever named, and were removed.
    pub(crate) orphans: usize,
    /// Whether the trash contains more that is due.
    pub(crate) is_more_due: bool,
    /// Whether the search for orphans came to the end of the disk; the next one begins anew.
    pub(crate) is_round_done: bool,
}

impl Disk {
    /// Removes up to `limit` parts whose time in the trash is over, and looks at up to `limit` parts for those that nobody
    /// ever named. Every call goes on where the last one ended. Blocks.
    ///
    /// # Errors
    /// The disk failed, or is busy. What was not removed is found again.
    pub(crate) fn collect_garbage(&self, now_ms: u64, limit: usize) -> Result<GarbageReport, DiskError> {
        // One at a time: each goes on where the one before ended.
        let mut position = lock(&self.shared().orphan_position);
        let parts = &self.shared().parts;
        let (trashed, is_more_due) = self.in_writer(move |tables| tables.empty_trash(now_ms, limit))?;
        let grace_ms = self.shared().options.orphan_grace_ms;
        let is_old = |_: PartId, metadata: &Metadata| {
            written_ms(metadata).is_some_and(|written| written.saturating_add(grace_ms) <= now_ms)
        };
        let walk = parts.walk(*position, limit, is_old)?;
        *position = if walk.is_finished { None } else { walk.end };
        let old = walk.found;
        let orphans = match old.is_empty() {
            true => Vec::new(),
            false => self.in_writer(move |tables| tables.doom_orphans(&old))?,
        };
        for id in trashed.iter().chain(&orphans) {
            parts.remove_unnamed(*id)?;
        }
        Ok(GarbageReport {
            trashed: trashed.len(),
            orphans: orphans.len(),
            is_more_due,
            is_round_done: walk.is_finished,
        })
    }
}

fn written_ms(metadata: &Metadata) -> Option<u64> {
    let since: Duration = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}
