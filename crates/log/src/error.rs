//! What can go wrong with a log: the disk, what is on it, or what is asked of it.

use std::io;
use std::sync::Arc;

use crate::config::LogConfigError;

/// A log could not be opened. Nothing that it contains was changed, unless the disk failed in the middle of cutting off a
/// torn end.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] LogConfigError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Durable data is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
}

/// A call was refused, or a record did not become durable.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The payload is larger than `record_bytes_max`. Nothing was written.
    #[error("a record of {bytes} bytes was refused, at most {max} are allowed")]
    TooLarge {
        /// The size of the payload.
        bytes: usize,
        /// The largest size.
        max: usize,
    },
    /// The records of a batch cost more than `queue_bytes_max` together. Nothing was written.
    #[error("a batch of {bytes} bytes was refused, at most {max} may wait to become durable")]
    BatchTooLarge {
        /// What the records cost, as counted by `queue_bytes_max`.
        bytes: usize,
        /// The most that may wait.
        max: usize,
    },
    /// Too many bytes wait to become durable. Nothing was written.
    #[error("{waiting} bytes wait to become durable, at most {max} may")]
    QueueFull {
        /// The bytes that wait.
        waiting: usize,
        /// The most that may.
        max: usize,
    },
    /// The log does not reach to that index, or no more. Nothing was changed.
    #[error("index {index} is out of the log, which holds {first} to {last}")]
    OutOfRange {
        /// The index that was asked for.
        index: u64,
        /// The first index of the log.
        first: u64,
        /// The last one.
        last: u64,
    },
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
    /// The disk failed, now or earlier. Nothing was acknowledged since.
    #[error("the log stopped: {0}")]
    Disk(#[from] DiskError),
    /// What was read is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
}

/// The disk refused an operation.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot {operation} {file}: {source}")]
pub struct DiskError {
    /// What was tried.
    pub operation: &'static str,
    /// With which file of the log; `directory` for the one that they are in, or its path while it is opened.
    pub file: String,
    /// What the disk said.
    pub source: Arc<io::Error>,
}

/// Durable data is damaged. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} is damaged at byte {offset}: {damage}")]
pub struct Corruption {
    /// The file.
    pub file: String,
    /// Where in the file.
    pub offset: u64,
    /// What is wrong there.
    pub damage: Damage,
}

/// How data is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The name ends like that of a segment, but is none.
    #[error("the name is not that of a segment")]
    Name,
    /// The file does not begin like a segment: it belongs to another program.
    #[error("the file is not a segment of a log")]
    Foreign,
    /// The file ends within the header of the segment.
    #[error("the header of the segment is not complete")]
    ShortHeader,
    /// The header of a segment fails its checksum or belongs to another file.
    #[error("the header of the segment is not valid")]
    Header,
    /// The segment was written by another version of this program, most likely a newer one.
    #[error("version {0} of the format is not known")]
    Version(u16),
    /// A file is longer than any segment.
    #[error("the file is longer than a segment can be")]
    Length,
    /// A record fails its checksum or ends too early, and it was durable once.
    #[error("the record {index} is not valid, though it was durable")]
    Record {
        /// The index that should be there.
        index: u64,
    },
    /// Between two segments records are missing.
    #[error("the segment begins with {found}, the one before it ends before {expected}")]
    Gap {
        /// The index that should come next.
        expected: u64,
        /// The index that does.
        found: u64,
    },
}

impl DiskError {
    /// For `map_err`: says what was tried with which file.
    pub(crate) fn at(operation: &'static str, file: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { operation, file: file.into(), source: Arc::new(source) }
    }
}

impl Corruption {
    pub(crate) fn new(file: &str, offset: usize, damage: Damage) -> Self {
        Self { file: file.into(), offset: offset as u64, damage }
    }
}
