//! The log that the registry and the queue are written to: records in order, durable when they are acknowledged.
//!
//! Think of a ledger with one clerk. Any number of writers hand in records and get a [`Ticket`] each; the clerk, one
//! thread, takes all that have come, writes them with one write and one `fdatasync`, and only then answers their tickets,
//! in order. Ten writers or ten thousand wait for the same one sync.
//!
//! ```text
//!   append ──► queue ──┐
//!   append ──► queue ──┼──► flusher: encode, write once, sync once ──► tickets, in order
//!   append ──► queue ──┘                │
//!                                       ▼
//!        00000000000000000001.seg   00000000000000004711.seg      names are the first index, in decimal
//!
//!   segment    magic "SYNODLOG" 8 │ version u16 │ kind u16 │ crc u32 │ first index u64 │ salt u64 │ records ... │ zeros
//!   record     crc u32 │ length u32 │ index u64 │ vouched u64 │ payload
//!   mark       crc u32 │ 0          │ index u64 │ the same    │
//! ```
//!
//! Numbers are little-endian, checksums CRC-32C. The checksum of a header covers the rest of it; that of a record covers
//! the salt of its segment and the rest of the record. The salt is drawn for each segment, so that no payload, whatever it
//! contains, can be taken for a record of the log.
//!
//! **Torn or broken.** A record says which index it *vouches* for: everything up to that one was durable before this
//! record was written. A crash can therefore only harm records that no other vouches for. Recovery meets a bad record and
//! looks ahead in the segment: if a valid record or mark vouches for what is missing, durable data is damaged, and the log
//! is refused, unchanged, with the file and the offset. If none does, it is the batch that a crash interrupted before
//! anybody was told that it is durable; it is cut off, and [`Recovery`] says so. Valid records of that batch behind the bad
//! one do not count: disks write the pieces of a batch in any order.
//!
//! Marks vouch for the end of the log; they are written when it is opened and closed. What remains undecidable is damage to
//! the last batch before a crash, which looks as if the crash had torn it: that is cut, and reported. A new segment is only
//! made when the one before it is durable, so that all but the last must be whole.
//!
//! **Zeros** stand behind the last record, written ahead together with the records that made the file longer: until they are
//! used up, a sync has data to write and not the length of the file. They are the end of a log as much as the end of its
//! file is.
//!
//! **Reset.** A log that jumps ahead, because a snapshot holds what comes before, begins a segment of its own kind. Once that
//! is durable, the segments before it do not count any more: opening the log removes what a crash has left of them.
//!
//! **Blocking.** `append`, `append_all` and all that reads or removes records may block. Tasks that share their thread use
//! `try_append`, `try_append_all` and await the tickets; the rest, which is rare, they leave to `spawn_blocking` or the like.
//!
//! **Fail-stop.** After a failed write or sync nobody knows what is on the disk, and asking again does not help: a kernel
//! may have dropped the pages that it could not write. After the first error nothing is acknowledged any more; waiting
//! tickets and later calls get that error. The way on is to open the log anew, best after the cause is gone: what the
//! kernel still shows of pages it failed to write is taken for written.
//!
//! ```
//! use synod_log::{Log, LogConfig, sim_disk::SimDisk};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (log, recovery) = Log::open(LogConfig::default(), SimDisk::new())?;
//! assert_eq!(recovery.cut, None);
//! let first = log.append("promise 7")?;
//! let second = log.append("promise 8")?;
//! assert_eq!((first.wait()?, second.wait()?), (1, 2));
//! assert_eq!(log.read(2, 4096)?[0].payload, b"promise 8");
//! log.close()?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod config;
mod disk;
mod error;
mod flusher;
mod format;
mod log;
mod recovery;
pub mod sim_disk;
mod store;
mod ticket;

pub use config::{LogConfig, LogConfigError};
pub use disk::{Disk, DiskFile, FileDisk};
pub use error::{Corruption, Damage, DiskError, LogError, OpenError};
pub use flusher::Flusher;
pub use log::{Log, LogStats, Records};
pub use recovery::{Cut, Recovery};
pub use store::Record;
pub use ticket::Ticket;
