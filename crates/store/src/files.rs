//! The memory of a node: its registry on its disk, so that a restart forgets nothing that anybody was told.
//!
//! ```text
//!   registry/                  mode 0700, its files 0600
//!     lock                     held for as long as a process uses the directory
//!     snapshot.json            everything up to one moment, for machines and people
//!     oplog.log/               what came since, a log of batches; see synod-log
//!     audit.log                takeovers, one line of JSON each, for people
//! ```
//!
//! What is read at the start is the snapshot and then the log over it. Everything in them is joined by a maximum: the
//! highest promise, the newest head, the record that precedes. A batch is one record of the log, so it is there whole or
//! not at all; where a batch is too large for that, its heads come first, since a head without its promise does no harm,
//! and a promise without its head could.
//!
//! **Nothing is repaired by guessing.** What is damaged, of another cluster or of a later version is refused with the file
//! and the place, and the directory is left as it is. All of it is read before any of it is changed. Only the torn end of
//! the log, which nobody was told of, is cut off, and [`Recovered::cut`] says so.
//!
//! ```
//! use synod_core::Incarnation;
//! use synod_store::files::{Entry, RegistryFiles};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path().join("registry");
//! let (files, recovered) = RegistryFiles::open(&dir)?;
//! assert_eq!(recovered.incarnation, None);
//! files.append(&[Entry::Incarnation(Incarnation::FIRST)])?.wait()?;
//! drop(files);
//!
//! let (files, recovered) = RegistryFiles::open(&dir)?;
//! assert_eq!(recovered.incarnation, Some(Incarnation::FIRST));
//! # files.close()?;
//! # Ok(())
//! # }
//! ```

mod audit;
mod checksum;
mod disk;
mod entry;
mod error;
mod snapshot;
mod state;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use synod_core::Incarnation;
use synod_core::slots::{BootstrapState, Restored, Takeover};
use synod_log::sim_disk::SimDisk;
use synod_log::{Cut, Log, LogConfig, Recovery, Ticket};

use disk::PrivateDisk;
pub use entry::{DecodeError, DecodeProblem, Entry, EntryRefusal, TAKEOVER_BYTES_MAX};
pub use error::FilesError;
use state::State;

/// The registry of one node on its disk. Every method may be called from any thread.
pub struct RegistryFiles {
    dir: PathBuf,
    log: Log,
    kept: Mutex<Kept>,
    /// Held for the whole of a snapshot, so that an older one never replaces a newer one.
    snapshotting: Mutex<()>,
    /// Locked for as long as this lives: two processes would promise twice.
    _lock: File,
}

/// What is on the disk or on its way there.
struct Kept {
    state: State,
    /// Bytes of entries in the log that the last snapshot does not have.
    oplog_bytes: u64,
}

/// What was on the disk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recovered {
    /// The beginning of the cluster, if this node has one.
    pub bootstrap: Option<BootstrapState>,
    /// The last life of this node, if it lived.
    pub incarnation: Option<Incarnation>,
    /// What the registry goes on with. Whether the cluster is new is not for the disk to say, so that is false.
    pub restored: Restored,
    /// Takeovers since the last snapshot; `audit.log` has all of them.
    pub takeovers: Vec<String>,
    /// The torn end of the log that was cut off. Nobody was told of it.
    pub cut: Option<Cut>,
}

/// A directory that was read and locked, and in which nothing was changed yet: whoever may not use it leaves it as it is.
pub struct FoundFiles {
    dir: PathBuf,
    state: State,
    oplog_bytes: u64,
    /// There is none as long as there is no directory.
    lock: Option<File>,
}

impl FoundFiles {
    /// Reads a directory, which need not be there. Blocks on the disk.
    ///
    /// # Errors
    /// As [`RegistryFiles::open`].
    pub fn look(dir: &Path) -> Result<Self, FilesError> {
        if !dir.exists() {
            return Ok(Self { dir: dir.into(), state: State::default(), oplog_bytes: 0, lock: None });
        }
        disk::make_private_dir(dir)?;
        let lock = disk::lock(dir)?;
        // Everything is read, and everything can be used, before anything is changed.
        let (state, oplog_bytes) = read(dir)?;
        Ok(Self { dir: dir.into(), state, oplog_bytes, lock: Some(lock) })
    }

    /// Opens the directory, and makes it if there is none. Blocks on the disk.
    ///
    /// # Errors
    /// As [`RegistryFiles::open`].
    pub fn open(self) -> Result<(RegistryFiles, Recovered), FilesError> {
        let Self { dir, mut state, oplog_bytes, lock } = self;
        let lock = if let Some(lock) = lock {
            lock
        } else {
            disk::make_private_dir(&dir)?;
            let lock = disk::lock(&dir)?;
            if read(&dir)?.0 != state {
                // Somebody made it after it was looked for.
                return Err(FilesError::InUse { dir });
            }
            lock
        };
        let oplog = dir.join(OPLOG);
        disk::make_private_dir(&oplog)?;
        let private = PrivateDisk::open(&oplog)?;
        let (log, recovery) = Log::open(log_config(), private).map_err(FilesError::opening(&oplog))?;
        let cut = recovery.cut;
        if let Some(Cut { file, offset, bytes }) = &cut {
            tracing::warn!(dir = %dir.display(), file, offset, bytes, "cut off the torn end of the registry's log");
        }
        let recovered = Recovered {
            bootstrap: state.bootstrap.clone(),
            incarnation: state.incarnation,
            restored: state.restored(),
            takeovers: std::mem::take(&mut state.takeovers),
            cut,
        };
        let kept = Mutex::new(Kept { state, oplog_bytes });
        let files = RegistryFiles { dir, log, kept, snapshotting: Mutex::new(()), _lock: lock };
        Ok((files, recovered))
    }

    /// The beginning of the cluster that it belongs to, if it belongs to one.
    #[must_use]
    pub const fn bootstrap(&self) -> Option<&BootstrapState> {
        self.state.bootstrap.as_ref()
    }

    /// The last life of the node, if it lived.
    #[must_use]
    pub const fn incarnation(&self) -> Option<Incarnation> {
        self.state.incarnation
    }
}

impl RegistryFiles {
    /// Opens a directory, or makes one, and reads what is there. Blocks on the disk.
    ///
    /// # Errors
    /// Another process has the directory, something in it is damaged, cut off or of a later version, or the disk failed.
    /// Nothing in it was changed, unless the disk failed.
    pub fn open(dir: &Path) -> Result<(Self, Recovered), FilesError> {
        FoundFiles::look(dir)?.open()
    }

    /// Writes entries down, as one batch with one sync. They are durable when the ticket says so, and with them all that
    /// was handed in before; a batch of none waits for just that. Only blocks while far too much is waiting for the disk.
    ///
    /// # Errors
    /// An entry cannot be written or is of another cluster, and none of the batch was; or the disk failed, now or earlier.
    pub fn append(&self, entries: &[Entry]) -> Result<Ticket, FilesError> {
        let (first, rest) = entry::encode(entries)?;
        let mut kept = self.lock();
        kept.state.check(entries).map_err(|foreign| FilesError::foreign(&self.dir, foreign))?;
        kept.oplog_bytes += (first.len() + rest.iter().map(Vec::len).sum::<usize>()) as u64;
        let mut ticket = self.log.append(first)?;
        for batch in rest {
            ticket = self.log.append(batch)?;
        }
        for entry in entries {
            // Checked above; the state is what a snapshot is made of, so it must not miss anything that the log has.
            assert!(kept.state.apply(entry).is_ok(), "an entry was checked and is refused");
        }
        kept.state.takeovers.clear();
        Ok(ticket)
    }

    /// Whether so much was written since the last snapshot that it is time for one.
    #[must_use]
    pub fn wants_snapshot(&self) -> bool {
        self.lock().oplog_bytes > OPLOG_BYTES_MAX
    }

    /// Writes a snapshot of everything that was handed in so far, and removes from the log what is in it. Blocks until
    /// that is durable: a task calls it by way of `spawn_blocking` or the like. Entries may be appended meanwhile.
    ///
    /// # Errors
    /// The disk failed. The snapshot before it is still there, and so is the log.
    pub fn snapshot(&self) -> Result<(), FilesError> {
        let _snapshotting = self.snapshotting.lock().unwrap_or_else(PoisonError::into_inner);
        let (fence, state, oplog_bytes) = {
            let kept = self.lock();
            (self.log.append(entry::fence())?, kept.state.clone(), kept.oplog_bytes)
        };
        // A snapshot must not be ahead of the log: what it covers and the log lacks would look like a loss.
        let covers = fence.wait()?;
        snapshot::write(&self.dir, SNAPSHOT, &state, covers)?;
        self.log.compact_before(covers + 1)?.wait()?;
        self.lock().oplog_bytes -= oplog_bytes;
        Ok(())
    }

    /// Writes a line about a takeover to `audit.log`. Blocks until it is durable.
    ///
    /// # Errors
    /// The disk failed.
    pub fn audit(&self, takeover: &Takeover, unix_millis: u64) -> Result<(), FilesError> {
        audit::append(&self.dir.join(AUDIT), takeover, unix_millis)
    }

    /// How many takeovers `audit.log` has.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn takeover_count(&self) -> Result<u64, FilesError> {
        audit::count(&self.dir.join(AUDIT))
    }

    /// Makes everything durable and lets go of the directory. Dropping does the same, and tells nobody if it fails.
    ///
    /// # Errors
    /// The disk failed, now or earlier.
    pub fn close(self) -> Result<(), FilesError> {
        Ok(self.log.close()?)
    }

    /// The beginning of the cluster, as far as it was handed in.
    #[must_use]
    pub fn bootstrap(&self) -> Option<BootstrapState> {
        self.lock().state.bootstrap.clone()
    }

    /// The last life of this node, as far as it was handed in.
    #[must_use]
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.lock().state.incarnation
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a directory: what is kept, and how many bytes of the log are not in the snapshot. Changes nothing.
fn read(dir: &Path) -> Result<(State, u64), FilesError> {
    let oplog = dir.join(OPLOG);
    let snapshot = snapshot::read(&dir.join(SNAPSHOT))?;
    let (mut state, covers) = snapshot.map_or_else(Default::default, |(state, covers)| (state, Some(covers)));
    // To open a log cuts off its torn end, so it is a copy in memory that is opened.
    let copy = SimDisk::with_contents(disk::read_files(&oplog)?);
    let (copy, found) = Log::open(log_config(), copy).map_err(FilesError::opening(&oplog))?;
    check_range(dir, covers, &found)?;
    let mut oplog_bytes = 0;
    for record in copy.records(found.first_index.max(covers.unwrap_or(0) + 1)) {
        let record = record.map_err(FilesError::reading(&oplog))?;
        oplog_bytes += record.payload.len() as u64;
        let decoded = entry::decode(&record.payload);
        for entry in decoded.map_err(FilesError::decoding(&oplog, record.index))? {
            state.apply(&entry).map_err(|foreign| FilesError::foreign(&oplog, foreign))?;
        }
    }
    Ok((state, oplog_bytes))
}

/// Whether a snapshot and a log belong together: the log goes on where the snapshot ends, and it was there before.
fn check_range(dir: &Path, covers: Option<u64>, log: &Recovery) -> Result<(), FilesError> {
    let (snapshot, oplog) = (dir.join(SNAPSHOT), dir.join(OPLOG));
    match covers {
        None if log.first_index > 1 => {
            Err(FilesError::SnapshotMissing { file: snapshot, first_index: log.first_index })
        }
        Some(covers) if log.last_index < covers => {
            Err(FilesError::OplogTruncated { file: oplog, last_index: log.last_index, covers })
        }
        Some(covers) if log.first_index > covers + 1 => {
            Err(FilesError::OplogGap { file: oplog, first_index: log.first_index, covers })
        }
        _ => Ok(()),
    }
}

fn log_config() -> LogConfig {
    LogConfig {
        record_bytes_max: entry::BATCH_BYTES_MAX,
        segment_bytes_max: SEGMENT_BYTES_MAX,
        ..LogConfig::default()
    }
}

/// How much may be written after a snapshot before the next one is asked for.
pub const OPLOG_BYTES_MAX: u64 = 8 << 20;
/// The last segment of the log stays behind every snapshot, so it is kept small.
const SEGMENT_BYTES_MAX: usize = 2 << 20;
const SNAPSHOT: &str = "snapshot.json";
const OPLOG: &str = "oplog.log";
const AUDIT: &str = "audit.log";

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
