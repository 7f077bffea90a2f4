//! Objects on fenced slots: what a replica keeps, and what a primary may show.
//!
//! The registry ([`crate::slots`]) gives every slot at most one primary per epoch. That alone keeps nothing safe: it only
//! numbers those who may try. What keeps entries safe is the same bargain once more, for many entries instead of one
//! register: before a primary serves, a majority of the replicas *fences* its epoch, durably, and tells what it stores;
//! the primary takes over whatever is newer there; from then on every write goes to all replicas and counts when a majority
//! has it on disk. Nothing here trusts the promises of the registry, only that an epoch belongs to one node.
//!
//! ```text
//!   primary of e                     replicas
//!   ────────────                     ────────
//!   fence(e) ──────────────────────► e at or above my fence? keep it (disk)
//!   ◄─────────────────────────────── fenced, with a digest of what I store
//!   a majority? where digests differ:
//!   compare ───────────────────────► these entries of mine count more
//!   adopt them, then serve:
//!   store(e, head) ────────────────► e at or above my fence? keep it (disk)
//!   ◄─────────────────────────────── stored, and its parts are here
//! ```
//!
//! An *entry* is anything with a name: an object, a bucket, an access key, an upload, a part of an upload. Its *head* says
//! what it is; the bytes of large objects are *parts*, written before the head that names them and never changed.
//! [`handle_message`] is the replica, over whatever [`EntryTable`] keeps its entries; [`ObjectCoordinator`] is the primary, of all
//! slots of a node.

mod archive;
mod coordinator;
mod head;
mod message;
mod name;
mod replica;

pub use archive::{ArchiveRecord, ArchiveRecordError, ArchiveStep, parse_generation};
pub use coordinator::{
    EntryAnswer, EntryError, EntryOperation, EntryRequest, ObjectConfig, ObjectConfigError,
    ObjectCoordinator, ObjectCounters, ObjectEvent, ObjectOutcome, ObjectProgress, RanksQuery,
};
pub use head::{Condition, EntryHead, SlotSummary};
pub use message::{FenceRefusal, Fenced, ObjectMessage};
pub use name::{BUCKET_BYTES_MAX, EntryName, KEY_BYTES_MAX, NameError, Space};
pub use replica::{EntryTable, SlotFence, confirm, handle_message, summarize};
