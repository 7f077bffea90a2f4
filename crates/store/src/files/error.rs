//! What can go wrong with the files of a registry, with the file and the place.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use synod_core::slots::{ClusterId, ForeignCluster};
use synod_log::{Corruption, Damage, LogError, OpenError};

use super::entry::{DecodeError, DecodeProblem, EntryRefusal};

/// The registry of a node could not be read or written. Nothing was overwritten.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// Another process uses the directory.
    #[error("{} is in use by another process", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The disk failed.
    #[error("cannot {operation} {}: {source}", file.display())]
    Disk {
        /// What was tried.
        operation: &'static str,
        /// With which file.
        file: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// A file contains something that was never written like that.
    #[error("{} is damaged at byte {offset}: {damage}; nothing was changed", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What is wrong there.
        damage: String,
    },
    /// An entry in the log cannot be read.
    #[error("{} is damaged in record {record}: {error}; nothing was changed", file.display())]
    DamagedEntry {
        /// The log.
        file: PathBuf,
        /// The record.
        record: u64,
        /// What is wrong with it, and where in it.
        error: DecodeError,
    },
    /// A file ends too early.
    #[error("{} ends at byte {offset}, before its end; nothing was changed", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Where it ends.
        offset: u64,
    },
    /// The log lacks records that were durable when the snapshot was written.
    #[error(
        "{} ends with record {last_index}, but the snapshot was written after record {covers}, and nobody knows what \
         followed; nothing was changed",
        file.display()
    )]
    OplogTruncated {
        /// The log.
        file: PathBuf,
        /// Its last record.
        last_index: u64,
        /// The last record that the snapshot covers.
        covers: u64,
    },
    /// Between the snapshot and the log records are missing.
    #[error(
        "{} begins with record {first_index}, but the snapshot ends with {covers}; nothing was changed",
        file.display()
    )]
    OplogGap {
        /// The log.
        file: PathBuf,
        /// Its first record.
        first_index: u64,
        /// The last record that the snapshot covers.
        covers: u64,
    },
    /// The log goes on behind a snapshot that is not there.
    #[error(
        "{} is missing, and the log begins with record {first_index}; nothing was changed",
        file.display()
    )]
    SnapshotMissing {
        /// The snapshot.
        file: PathBuf,
        /// The first record of the log.
        first_index: u64,
    },
    /// A file was written by a later version of this program.
    #[error(
        "{} is in version {version} of its format (byte {offset}), this program knows up to {known}; nothing was changed",
        file.display()
    )]
    LaterVersion {
        /// The file.
        file: PathBuf,
        /// Where that is said.
        offset: u64,
        /// Its version.
        version: u64,
        /// The last one that is known.
        known: u64,
    },
    /// An entry in the log was written by a later version of this program.
    #[error(
        "record {record} of {} is in version {version} of its format, this program knows up to {known}; nothing was changed",
        file.display()
    )]
    LaterEntry {
        /// The log.
        file: PathBuf,
        /// The record.
        record: u64,
        /// Its version.
        version: u8,
        /// The last one that is known.
        known: u8,
    },
    /// The directory belongs to another cluster.
    #[error("{} belongs to cluster {found}, not to {expected}; nothing was changed", file.display())]
    ForeignCluster {
        /// The directory or file.
        file: PathBuf,
        /// The cluster that it belongs to.
        found: ClusterId,
        /// The cluster that was expected.
        expected: ClusterId,
    },
    /// An entry cannot be written. None of its batch was.
    #[error(transparent)]
    Refused(#[from] EntryRefusal),
    /// The log refused a batch or has stopped.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl FilesError {
    /// For `map_err`: says what was tried with which file.
    pub(super) fn at(operation: &'static str, file: &Path) -> impl Fn(io::Error) -> Self {
        let file = file.to_path_buf();
        move |source| Self::Disk { operation, file: file.clone(), source: Arc::new(source) }
    }

    /// For `map_err`: a log that cannot be opened.
    pub(super) fn opening(oplog: &Path) -> impl FnOnce(OpenError) -> Self {
        move |error| match error {
            OpenError::Corrupt(corruption) => Self::of_segment(oplog, &corruption),
            other => Self::at("open", oplog)(io::Error::other(other)),
        }
    }

    /// For `map_err`: a log that cannot be read.
    pub(super) fn reading(oplog: &Path) -> impl FnOnce(LogError) -> Self {
        move |error| match error {
            LogError::Corrupt(corruption) => Self::of_segment(oplog, &corruption),
            other => Self::Log(other),
        }
    }

    /// For `map_err`: a record that cannot be decoded.
    pub(super) fn decoding(oplog: &Path, record: u64) -> impl FnOnce(DecodeError) -> Self {
        move |error| match error.problem {
            DecodeProblem::LaterVersion { version, known } => {
                Self::LaterEntry { file: oplog.into(), record, version, known }
            }
            _ => Self::DamagedEntry { file: oplog.into(), record, error },
        }
    }

    pub(super) fn foreign(file: &Path, ForeignCluster { own, foreign }: ForeignCluster) -> Self {
        Self::ForeignCluster { file: file.into(), found: own, expected: foreign }
    }

    fn of_segment(oplog: &Path, corruption: &Corruption) -> Self {
        let Corruption { file, offset, damage } = corruption;
        let (file, offset) = (oplog.join(file), *offset);
        match damage {
            Damage::Version(version) if u64::from(*version) > LOG_VERSION => {
                Self::LaterVersion { file, offset, version: (*version).into(), known: LOG_VERSION }
            }
            other => Self::Damaged { file, offset, damage: other.to_string() },
        }
    }
}

/// The version of the segments of a log that this program knows.
const LOG_VERSION: u64 = 1;
