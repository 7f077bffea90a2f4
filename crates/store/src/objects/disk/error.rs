//! What can go wrong with a disk, with the file and the entry.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use synod_core::objects::EntryName;
use synod_core::slots::SlotId;

use super::parts::PartSeal;
use crate::objects::content::PartId;

/// A disk could not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DiskError {
    /// Another process uses the directory.
    #[error("{} is in use by another process", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory was written by another version of this program, or by another program.
    #[error("{} says \"{found}\", and this program knows \"{known}\" alone; nothing was changed", file.display())]
    UnknownFormat {
        /// The file that says the version.
        file: PathBuf,
        /// What it says.
        found: String,
        /// What it should say.
        known: String,
    },
    /// There is a directory of a disk without its entries.
    #[error(
        "{} is missing, though the directory was in use before: entries that were acknowledged are lost here; \
         put it back, or empty the directory so that the disk is filled from the other replicas; nothing was changed",
        file.display()
    )]
    EntriesMissing {
        /// The file with the entries.
        file: PathBuf,
    },
    /// The file with the entries cannot be read.
    #[error("{} is damaged: {problem}; nothing was changed", file.display())]
    EntriesDamaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The file with the entries cannot be read or written. The disk takes part in nothing any more.
    #[error("the disk has failed, and nothing more is read from it or written to it: {}: {source}", file.display())]
    Failed {
        /// The file.
        file: PathBuf,
        /// What was said about it.
        source: Arc<redb::Error>,
    },
    /// The thread that writes has ended by a panic.
    #[error("the disk has failed: what was to be done with it panicked")]
    Panicked,
    /// A file of a part could not be read or written.
    #[error("cannot {operation} {}: {source}", file.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// With which file.
        file: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// There is no room for a part. Nothing was changed.
    #[error("there is no room for {}; nothing was changed", file.display())]
    Full {
        /// The file.
        file: PathBuf,
    },
    /// What is stored of an entry was never written like that.
    #[error("{name} in slot {slot} is damaged on disk; nothing was changed")]
    DamagedEntry {
        /// The slot.
        slot: SlotId,
        /// The entry.
        name: EntryName,
    },
    /// The file of a part contains something that was never written like that.
    #[error("{} is damaged: {damage}; nothing was changed", file.display())]
    DamagedPart {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        damage: PartDamage,
    },
    /// A part with this name is already there, with other bytes. Nothing was changed.
    #[error("part {id} is already here as {stored}, not as {written}; nothing was changed")]
    PartDiffers {
        /// Its name.
        id: PartId,
        /// What is there.
        stored: PartSeal,
        /// What was to be there.
        written: PartSeal,
    },
    /// More bytes were asked for than a part has.
    #[error("the part has {bytes} bytes, and byte {end} was asked for")]
    OutOfRange {
        /// How many it has.
        bytes: u64,
        /// Where the range ends.
        end: u64,
    },
    /// A message asks for what no disk of this cluster keeps. Nothing was changed.
    #[error("{reason}; nothing was changed")]
    Refused {
        /// What is wrong with it.
        reason: String,
    },
    /// Too much waits to be written. Nothing was changed.
    #[error("too much waits for the disk; nothing was changed")]
    Busy,
    /// The disk was closed. Nothing was changed.
    #[error("the disk is closed; nothing was changed")]
    Closed,
}

/// What is wrong with the file of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PartDamage {
    /// It is shorter or longer than it was.
    #[error("it has {found} bytes, not {expected}")]
    Length {
        /// How many it should have.
        expected: u64,
        /// How many it has.
        found: u64,
    },
    /// Its end does not say what part it is.
    #[error("it does not end like a part")]
    Footer,
    /// It is another part.
    #[error("it is part {found}")]
    Identity {
        /// Which one it is.
        found: PartId,
    },
    /// The checksums of its blocks are not those that were written.
    #[error("the checksums of its blocks")]
    Checksums,
    /// A block is not the one that was written.
    #[error("block {block}")]
    Block {
        /// Which one, from 0.
        block: u64,
    },
}

impl DiskError {
    /// Whether bytes on the disk are not those that were written there, and another replica should be asked for them.
    pub(crate) const fn is_damage(&self) -> bool {
        matches!(self, Self::DamagedEntry { .. } | Self::DamagedPart { .. })
    }

    /// Whether the disk can do nothing more.
    pub(super) const fn is_fatal(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::EntriesDamaged { .. } | Self::Panicked)
    }

    /// For `map_err`: says what was tried with which file.
    pub(super) fn at(operation: &'static str, file: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let file = file.to_path_buf();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { file: file.clone() },
            _ => Self::Io { operation, file: file.clone(), source: Arc::new(source) },
        }
    }

    /// For `map_err`: the file with the entries failed.
    pub(super) fn entries<E: Into<redb::Error>>(file: &Arc<Path>) -> impl Fn(E) -> Self + use<E> {
        let file = Arc::clone(file);
        move |error| match error.into() {
            redb::Error::Corrupted(problem) => Self::EntriesDamaged { file: file.to_path_buf(), problem },
            source => Self::Failed { file: file.to_path_buf(), source: Arc::new(source) },
        }
    }
}
