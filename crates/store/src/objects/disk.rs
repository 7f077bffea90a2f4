//! One disk of one node: the heads of entries in a database, the parts as files beside it.
//!
//! ```text
//!   format           which version this is, and for how many slots
//!   meta.redb        heads, index, fences, which entries name which parts
//!   parts/xx/yy/id   parts, in directories by a hash of their ids
//!   tmp/             parts that are being written; emptied at start
//! ```
//!
//! One thread writes ([`writer`]): it runs [`handle_message`] over the tables for whatever waits, in one transaction, and
//! answers when that is durable. Reads do not wait for it. Fences and summaries are in memory too, never ahead of the disk.
//! When a commit fails, nobody knows what the disk will say next time: it takes part in nothing any more. A part that cannot
//! be written, on the other hand, is only that part.

mod error;
mod format;
mod garbage;
mod limits;
mod listing;
mod memory;
mod part_calls;
mod parts;
mod table;
mod values;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use redb::{Database, Durability, ReadableDatabase, ReadableTableMetadata, WriteTransaction};
use synod_core::objects::{EntryHead, EntryName, ObjectMessage, SlotFence, SlotSummary, handle_message};
use synod_core::slots::{HeadRank, SlotEpoch, SlotId, Tag};
use tokio::sync::watch;

pub(crate) use self::error::DiskError;
use self::format::{check_format, write_format};
use self::limits::{SMALL_JOB_BYTES, check_head, message_bytes};
pub(crate) use self::listing::{DiskListItem, DiskListPage, DiskListQuery};
use self::memory::{Memory, SlotState};
pub(crate) use self::parts::PartSeal;
use self::parts::PartStore;
use self::table::{Changes, HEADS, INDEX, MISSING, TOMBSTONES, Tables, UNKNOWN};
use self::writer::{Job, Queue, QueueLimit, Work};
use super::content::PartId;

/// How a disk is used.
#[derive(Clone)]
pub(crate) struct DiskOptions {
    /// How many slots the cluster has. Part of the format of the disk: it never changes.
    pub(crate) total_slots: u16,
    /// How many bytes of the database are kept in memory. Default 32 MiB.
    pub(crate) cache_bytes: usize,
    /// How many messages one transaction takes at most. More share the cost of a commit, and hold up the first of them
    /// longer. Default 1024.
    pub(crate) batch_max: usize,
    /// How many messages wait for the writer at most; further ones are refused as [`DiskError::Busy`]. Default 16384.
    pub(crate) queue_max: usize,
    /// How many bytes wait for the writer at most. Default 64 MiB.
    pub(crate) queue_bytes_max: usize,
    /// How many entries one page of a listing looks at, so that a page in a desert of tombstones ends too. Default 65536.
    pub(crate) list_scan_max: usize,
    /// How long a part stays after its last entry stopped naming it, for those who still read it. Default ten minutes.
    pub(crate) trash_grace_ms: u64,
    /// How long a part stays that no entry names yet. Must be longer than any upload of one body takes. Default one day.
    pub(crate) orphan_grace_ms: u64,
    /// Milliseconds of the wall clock.
    pub(crate) clock: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl DiskOptions {
    /// The defaults, for a cluster of so many slots.
    pub(crate) fn new(total_slots: u16) -> Self {
        Self {
            total_slots,
            cache_bytes: 32 << 20,
            batch_max: 1024,
            queue_max: 16 * 1024,
            queue_bytes_max: 64 << 20,
            list_scan_max: 64 * 1024,
            trash_grace_ms: 10 * 60 * 1000,
            orphan_grace_ms: 24 * 60 * 60 * 1000,
            clock: Arc::new(wall_clock_ms),
        }
    }
}

/// Told what came of a message, on the thread that writes: it must not wait for the disk.
pub(crate) type Done = Box<dyn FnOnce(Result<Option<ObjectMessage>, DiskError>) + Send>;

/// A disk. Clones are the same disk; it is closed with the last of them, after what waits is written.
#[derive(Clone)]
pub(crate) struct Disk {
    open: Arc<OpenDisk>,
}

struct OpenDisk {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

/// What the disk and its writer share.
struct Shared {
    dir: PathBuf,
    entries_path: Arc<Path>,
    options: DiskOptions,
    database: Database,
    parts: Arc<PartStore>,
    queue: Queue,
    memory: RwLock<Memory>,
    failure: watch::Sender<Option<DiskError>>,
    damaged_entries: AtomicU64,
    orphan_position: Mutex<Option<PartId>>,
}

/// What is on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    /// Entries, without tombstones.
    pub(crate) entries: u64,
    /// Tombstones.
    pub(crate) tombstones: u64,
    /// Parts that entries name.
    pub(crate) parts: u64,
    /// Their bytes.
    pub(crate) part_bytes: u64,
    /// How many of those are not here.
    pub(crate) missing_parts: u64,
    /// How many bytes the database has.
    pub(crate) meta_bytes: u64,
    /// How often an entry was found damaged since the disk was opened.
    pub(crate) damaged_entries: u64,
    /// How often a part was found damaged since the disk was opened.
    pub(crate) damaged_parts: u64,
}

impl Disk {
    /// Opens the disk in a directory, or makes one there. Reads the index once.
    ///
    /// # Errors
    /// The directory is in use, cannot be read, is damaged or of another version. Nothing was overwritten.
    pub(crate) fn open(dir: &Path, options: &DiskOptions) -> Result<Self, DiskError> {
        Self::open_with(dir, options, |path, builder| builder.create(path))
    }

    /// The same, over something else that keeps the bytes of the database.
    #[cfg(test)]
    fn open_on_backend(
        dir: &Path,
        options: &DiskOptions,
        backend: impl redb::StorageBackend,
    ) -> Result<Self, DiskError> {
        Self::open_with(dir, options, |_, builder| builder.create_with_backend(backend))
    }

    fn open_with(
        dir: &Path,
        options: &DiskOptions,
        create: impl FnOnce(&Path, &redb::Builder) -> Result<Database, redb::DatabaseError>,
    ) -> Result<Self, DiskError> {
        fs::create_dir_all(dir).map_err(DiskError::at("create", dir))?;
        let (format_path, entries_path) = (dir.join("format"), dir.join("meta.redb"));
        let is_known = check_format(&format_path, options.total_slots)?;
        if is_known && !entries_path.exists() {
            return Err(DiskError::EntriesMissing { file: entries_path });
        }
        let mut builder = Database::builder();
        builder.set_cache_size(options.cache_bytes);
        let database = create(&entries_path, &builder).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => DiskError::InUse { dir: dir.into() },
            other => unreadable(&entries_path, other),
        })?;
        let shared = Shared {
            dir: dir.into(),
            entries_path: entries_path.into(),
            options: options.clone(),
            database,
            // From here on this process is alone: the database has a lock.
            parts: Arc::new(PartStore::open(dir)?),
            queue: Queue::default(),
            memory: RwLock::new(Memory {
                slots: vec![UNKNOWN; options.total_slots.into()],
                ..Memory::default()
            }),
            failure: watch::Sender::new(None),
            damaged_entries: AtomicU64::new(0),
            orphan_position: Mutex::default(),
        };
        let recalled = writer::in_transaction(&shared, |tables| {
            if !is_known {
                tables.set_dirty();
            }
            tables.recall()
        })?;
        shared.remember(recalled);
        if !is_known {
            // Last: without it nothing here was ever acknowledged.
            write_format(dir, options.total_slots)?;
        }
        let shared = Arc::new(shared);
        let its = Arc::clone(&shared);
        let writer = std::thread::Builder::new().name("object-disk".into()).spawn(move || writer::run(&its));
        let writer = Some(writer.map_err(DiskError::at("start a thread for", dir))?);
        Ok(Self { open: Arc::new(OpenDisk { shared, writer }) })
    }

    /// Does what a message asks of a replica, in the next transaction. `done` is told the answer when that is durable, or
    /// why there is none; then nothing was acknowledged, though a message about several entries may have changed some of
    /// them. Never blocks: when too much waits already, `done` is told [`DiskError::Busy`] at once, on this thread.
    pub(crate) fn submit(&self, message: ObjectMessage, done: Done) {
        if let Err(error) = self.check(&message) {
            return done(Err(error));
        }
        let bytes = message_bytes(&message);
        let work = Work::new(move |tables: &mut Tables<'_>| handle_message(tables, &message), done);
        self.push(bytes, Box::new(work));
    }

    /// What is remembered of a slot: durable, and at least what was last acknowledged.
    pub(crate) fn fence(&self, slot: SlotId) -> SlotFence {
        self.shared().slot(slot).fence
    }

    /// What is stored of a slot, in brief.
    pub(crate) fn summary(&self, slot: SlotId) -> SlotSummary {
        self.shared().slot(slot).summary
    }

    /// There is nothing to learn of these slots: the cluster is new, or this is its only replica. Durable on return. Blocks.
    ///
    /// # Errors
    /// The disk failed, is busy, or there are no such slots.
    pub(crate) fn set_learned(&self, slots: &[SlotId]) -> Result<(), DiskError> {
        slots.iter().try_for_each(|slot| self.check_slot(*slot))?;
        let slots = slots.to_vec();
        self.in_writer(move |tables| slots.iter().try_for_each(|slot| tables.set_learned(*slot)))
    }

    /// Removes an entry that cannot be read, so that it can be had from another replica. Its slot has no memory from then on,
    /// and must be learned anew from all of them: this one may have been among the few that had the entry. False if it can be
    /// read, and nothing was changed. Blocks.
    ///
    /// # Errors
    /// The disk failed or is busy.
    pub(crate) fn forget_damaged(&self, slot: SlotId, name: &EntryName) -> Result<bool, DiskError> {
        self.check_place(slot, name)?;
        let name = name.clone();
        self.in_writer(move |tables| tables.forget_damaged(slot, &name))
    }

    /// The head of an entry, as it is stored.
    ///
    /// # Errors
    /// It is damaged, or the disk failed.
    pub(crate) fn head(&self, slot: SlotId, name: &EntryName) -> Result<Option<EntryHead>, DiskError> {
        let heads = self.read_table(HEADS)?;
        table::read_head(&heads, self.shared(), slot, name)
    }

    /// Entries of a slot in order: those after `after`, up to and with `upto`, at most `limit` of them.
    ///
    /// # Errors
    /// One is damaged, or the disk failed.
    pub(crate) fn ranks(
        &self,
        slot: SlotId,
        after: Option<&EntryName>,
        upto: Option<&EntryName>,
        limit: usize,
    ) -> Result<Vec<(EntryName, HeadRank)>, DiskError> {
        let heads = self.read_table(HEADS)?;
        table::read_ranks(&heads, self.shared(), slot, after, upto, limit)
    }

    /// One page of the entries in slots that are wanted, without tombstones, in the order of their names.
    ///
    /// # Errors
    /// An entry is damaged, or the disk failed.
    pub(crate) fn list(
        &self,
        query: &DiskListQuery,
        wanted: &dyn Fn(SlotId) -> bool,
    ) -> Result<DiskListPage, DiskError> {
        let index = self.read_table(INDEX)?;
        listing::list(&index, self.shared(), query, wanted)
    }

    /// Tombstones of a slot that were written before a time, oldest first.
    ///
    /// # Errors
    /// The disk failed.
    pub(crate) fn old_tombstones(
        &self,
        slot: SlotId,
        before_ms: u64,
        limit: usize,
    ) -> Result<Vec<(EntryName, Tag)>, DiskError> {
        let failed = self.shared().failed_storage();
        let tombstones = self.read_table(TOMBSTONES)?;
        let (start, end) = (values::tombstone_key(slot, 0, b""), values::tombstone_key(slot, before_ms, b""));
        let mut found = Vec::new();
        for row in tombstones.range(start.as_slice()..end.as_slice()).map_err(&failed)?.take(limit) {
            let (key, tag) = row.map_err(&failed)?;
            let (epoch, sequence) = tag.value();
            let name =
                values::tombstone_name(key.value()).ok_or_else(|| self.shared().damaged("a tombstone"))?;
            found.push((name, Tag { epoch: SlotEpoch::new(epoch), sequence }));
        }
        Ok(found)
    }

    /// What is on the disk.
    ///
    /// # Errors
    /// The disk failed.
    pub(crate) fn usage(&self) -> Result<DiskUsage, DiskError> {
        let shared = self.shared();
        let missing = self.read_table(MISSING)?.len().map_err(shared.failed_storage())?;
        let meta =
            fs::metadata(&shared.entries_path).map_err(DiskError::at("look at", &shared.entries_path))?;
        let counts = self.read_memory().counts;
        let count = |number: i64| u64::try_from(number).unwrap_or_default();
        Ok(DiskUsage {
            entries: count(counts.entries - counts.tombstones),
            tombstones: count(counts.tombstones),
            parts: count(counts.parts),
            part_bytes: count(counts.part_bytes),
            missing_parts: missing,
            meta_bytes: meta.len(),
            damaged_entries: shared.damaged_entries.load(Ordering::Relaxed),
            damaged_parts: shared.parts.damaged.load(Ordering::Relaxed),
        })
    }

    /// Why the disk takes part in nothing any more, if so.
    pub(crate) fn failed(&self) -> Option<DiskError> {
        self.shared().failure()
    }

    /// Tells when the disk fails.
    pub(crate) fn failures(&self) -> watch::Receiver<Option<DiskError>> {
        self.shared().failure.subscribe()
    }

    fn shared(&self) -> &Shared {
        &self.open.shared
    }

    fn read_memory(&self) -> std::sync::RwLockReadGuard<'_, Memory> {
        self.shared().memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_table<K: redb::Key + 'static, V: redb::Value + 'static>(
        &self,
        table: redb::TableDefinition<'_, K, V>,
    ) -> Result<redb::ReadOnlyTable<K, V>, DiskError> {
        self.check_failure()?;
        let shared = self.shared();
        let transaction = shared.database.begin_read().map_err(DiskError::entries(&shared.entries_path))?;
        transaction.open_table(table).map_err(DiskError::entries(&shared.entries_path))
    }

    fn check_failure(&self) -> Result<(), DiskError> {
        self.failed().map_or(Ok(()), Err)
    }

    fn check(&self, message: &ObjectMessage) -> Result<(), DiskError> {
        match message {
            ObjectMessage::Fence { slots } => slots.iter().try_for_each(|(slot, _)| self.check_slot(*slot)),
            ObjectMessage::Store { slot, name, head, .. } => {
                self.check_place(*slot, name).and_then(|()| check_head(name, head))
            }
            ObjectMessage::Adopt { slot, heads, .. } => {
                self.check_slot(*slot)?;
                heads.iter().try_for_each(|(name, head)| {
                    self.check_place(*slot, name).and_then(|()| check_head(name, head))
                })
            }
            ObjectMessage::Forget { slot, entries, .. } => {
                entries.iter().try_for_each(|(name, _)| self.check_place(*slot, name))
            }
            _ => Ok(()),
        }
    }

    fn check_slot(&self, slot: SlotId) -> Result<(), DiskError> {
        let total = self.shared().options.total_slots;
        match slot.get() < total {
            true => Ok(()),
            false => Err(DiskError::Refused { reason: format!("there is no slot {slot} of {total}") }),
        }
    }

    fn check_place(&self, slot: SlotId, name: &EntryName) -> Result<(), DiskError> {
        let place = name.slot(self.shared().options.total_slots);
        match place == slot {
            true => Ok(()),
            false => Err(DiskError::Refused { reason: format!("{name} is in slot {place}, not in {slot}") }),
        }
    }

    fn push(&self, bytes: usize, job: Box<dyn Job>) {
        let options = &self.shared().options;
        let limit = QueueLimit { jobs: options.queue_max, bytes: options.queue_bytes_max };
        let pushed = match self.failed() {
            Some(error) => Err((job, error)),
            None => self.shared().queue.push(bytes, job, limit),
        };
        if let Err((job, error)) = pushed {
            job.finish(Err(error));
        }
    }

    /// Runs work on the tables and waits until it is durable.
    fn in_writer<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tables<'_>) -> Result<R, DiskError> + Send + 'static,
    ) -> Result<R, DiskError> {
        let (done, result) = mpsc::sync_channel(1);
        let tell = move |outcome| {
            // Whoever asked waits right here.
            drop(done.send(outcome));
        };
        self.push(SMALL_JOB_BYTES, Box::new(Work::new(work, tell)));
        result.recv().unwrap_or_else(|_| Err(self.failed().unwrap_or(DiskError::Closed)))
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("dir", &self.shared().dir).finish_non_exhaustive()
    }
}

impl Drop for OpenDisk {
    fn drop(&mut self) {
        self.shared.queue.close();
        // The last clone may have gone with an answer, on the thread of the writer; it ends by itself then.
        let writer = self.writer.take().filter(|writer| writer.thread().id() != std::thread::current().id());
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!(dir = %self.shared.dir.display(), "the thread of a disk panicked");
        }
    }
}

impl Shared {
    fn slot(&self, slot: SlotId) -> SlotState {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        memory.slots.get(slot.index()).copied().unwrap_or(UNKNOWN)
    }

    /// Takes over what a batch changed, after it is durable.
    fn remember(&self, changes: Changes) {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        for (slot, state) in changes.slots {
            if let Some(known) = memory.slots.get_mut(slot.index()) {
                *known = state;
            }
        }
        memory.counts.add(changes.counts);
    }

    fn begin_write(&self) -> Result<WriteTransaction, DiskError> {
        let failed = DiskError::entries(&self.entries_path);
        let mut transaction = self.database.begin_write().map_err(DiskError::entries(&self.entries_path))?;
        transaction.set_durability(Durability::Immediate).map_err(failed)?;
        Ok(transaction)
    }

    fn failure(&self) -> Option<DiskError> {
        self.failure.borrow().clone()
    }

    /// The disk has failed; the first reason stays.
    fn fail(&self, error: &DiskError) {
        self.failure.send_if_modified(|known| {
            let is_first = known.is_none();
            if is_first {
                tracing::error!(dir = %self.dir.display(), %error, "a disk has failed");
                *known = Some(error.clone());
            }
            is_first
        });
    }

    fn failed_entries(&self) -> impl Fn(redb::TableError) -> DiskError {
        DiskError::entries(&self.entries_path)
    }

    fn failed_storage(&self) -> impl Fn(redb::StorageError) -> DiskError + use<> {
        DiskError::entries(&self.entries_path)
    }

    fn damaged(&self, problem: impl fmt::Display) -> DiskError {
        DiskError::EntriesDamaged { file: self.entries_path.to_path_buf(), problem: problem.to_string() }
    }

    fn damaged_entry(&self, slot: SlotId, name: &EntryName) -> DiskError {
        self.damaged_entries.fetch_add(1, Ordering::Relaxed);
        DiskError::DamagedEntry { slot, name: name.clone() }
    }
}

fn unreadable(file: &Path, error: redb::DatabaseError) -> DiskError {
    match error {
        redb::DatabaseError::Storage(redb::StorageError::Io(error))
            if !matches!(
                error.kind(),
                std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof
            ) =>
        {
            DiskError::at("open", file)(error)
        }
        other => DiskError::EntriesDamaged { file: file.into(), problem: other.to_string() },
    }
}

fn wall_clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
