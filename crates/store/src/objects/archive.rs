//! What an archive needs of the objects of a node, beside the store itself: which of them it is to look after, what happens
//! to them, and a place in the status of the node.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use synod_cluster::Exposition;
use synod_core::objects::{EntryName, Space};
use synod_core::slots::{SlotId, Tag};
use tokio::sync::broadcast;

use super::content::Entry;
use super::contract::StoreError;
use super::handle::Objects;
use super::plane::Plane;

/// How an archive is, whenever somebody asks.
pub type ArchiveReport = Box<dyn Fn() -> ArchiveStatusJson + Send + Sync>;

/// The archive of a node, as `synod store status --json` shows it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ArchiveStatusJson {
    /// Objects that this node serves and whose copies it has yet to write or to delete, as far as it knows.
    pub pending: u64,
    /// Copies that were written, since the node started.
    pub archived: u64,
    /// Copies that were deleted, since the node started.
    pub deleted: u64,
    /// Objects that are being taken from the archive into the cluster, because somebody read them.
    pub restoring: u64,
    /// Objects that were taken from the archive into the cluster, wholly or as far as they were lost, since the node started.
    pub restored: u64,
    /// Bodies that were read from the archive because no replica could give them, since the node started.
    pub rescued: u64,
    /// Since when something fails, in milliseconds of the wall clock.
    pub failing_since_unix_ms: Option<u64>,
    /// What failed last, while something fails.
    pub last_error: Option<String>,
}

impl ArchiveStatusJson {
    pub(crate) fn expose(&self, text: &mut Exposition) {
        text.one_gauge(
            "synod_archive_pending",
            "Copies that have yet to be written or deleted.",
            self.pending,
        );
        text.one_gauge(
            "synod_archive_restoring",
            "Objects that are being taken from the archive.",
            self.restoring,
        );
        let help = "Whether copies cannot be written or deleted.";
        text.one_gauge("synod_archive_failing", help, u64::from(self.failing_since_unix_ms.is_some()));
        text.counters(
            "synod_archive",
            &[
                ("archived", "Copies that were written.", self.archived),
                ("deleted", "Copies that were deleted.", self.deleted),
                ("restored", "Objects that were taken from the archive.", self.restored),
                ("rescued", "Bodies that no replica could give.", self.rescued),
            ],
        );
    }
}

/// Objects of one slot, with their records, as the disk of this node has them. Whoever acts on it reads them again: it may
/// be newer than what a majority has.
#[derive(Clone, Debug, Default)]
pub struct ArchivePage {
    /// In the order of names, all objects and then all records: an object with a record comes twice.
    pub pairs: Vec<ArchivePair>,
    /// Where to go on; `None` after the last page.
    pub next: Option<EntryName>,
}

/// One object and its record.
#[derive(Clone, Debug)]
pub struct ArchivePair {
    /// The name of the object.
    pub object: EntryName,
    /// Its generation, if it is there.
    pub generation: Option<Tag>,
    /// The record, if there is one.
    pub record: Option<Bytes>,
}

impl Objects {
    /// Objects that were written or deleted by the primary on this node, or may have been, from now on. Whoever is too slow
    /// misses the oldest.
    #[must_use]
    pub fn fresh(&self) -> broadcast::Receiver<EntryName> {
        self.plane.fresh()
    }

    /// The slots that this node serves.
    #[must_use]
    pub fn slots_served(&self) -> Vec<SlotId> {
        self.plane.serving().into_iter().map(|(slot, _)| slot).collect()
    }

    /// Whether the registry says that this node is the primary of an entry.
    #[must_use]
    pub fn is_primary_of(&self, name: &EntryName) -> bool {
        self.plane.registry().primary(self.plane.slot_of(name)).as_ref() == Some(self.plane.own())
    }

    /// One page of the objects of a slot that this node stores, and of their records.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn archive_page(
        &self,
        slot: SlotId,
        after: Option<EntryName>,
        limit: usize,
    ) -> Result<ArchivePage, StoreError> {
        let plane = std::sync::Arc::clone(&self.plane);
        let read = tokio::task::spawn_blocking(move || read_page(&plane, slot, after.as_ref(), limit));
        let page = read.await.map_err(|error| error.to_string()).and_then(|page| page);
        page.map_err(|reason| StoreError::Unavailable { reason })
    }
}

fn read_page(
    plane: &Plane,
    slot: SlotId,
    after: Option<&EntryName>,
    limit: usize,
) -> Result<ArchivePage, String> {
    let Some(disk) = plane.own_disk(slot) else { return Ok(ArchivePage::default()) };
    let ranks = disk.ranks(slot, after, None, limit).map_err(|error| error.to_string())?;
    let is_full = ranks.len() == limit;
    let next = ranks.last().filter(|_| is_full).map(|(name, _)| name.clone());
    let mut page = ArchivePage { pairs: Vec::new(), next };
    for (name, _) in ranks {
        if !matches!(name.space(), Space::Object | Space::Archive) {
            continue;
        }
        let entry = |space| {
            let name = EntryName::new(space, name.bucket(), name.key()).map_err(|error| error.to_string())?;
            let head = disk.head(slot, &name).map_err(|error| error.to_string())?;
            let entry = head.map(Entry::of_head).transpose().map_err(|error| error.to_string())?;
            Ok::<_, String>((name, entry.flatten()))
        };
        let ((object, found), (_, record)) = (entry(Space::Object)?, entry(Space::Archive)?);
        page.pairs.push(ArchivePair {
            object,
            generation: found.map(|entry| entry.tag),
            record: record.map(|entry| entry.content.meta),
        });
    }
    Ok(page)
}
