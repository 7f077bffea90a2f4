//! The archive tier: what is in the cluster is also kept in an S3 bucket elsewhere.
//!
//! ```text
//!   write ──► cluster (acknowledged) ──► worker of the primary ──► copy elsewhere ──► record in the cluster
//!   read  ──► cluster ──► bytes that no replica has, objects that the cluster never had ──► copy elsewhere
//! ```
//!
//! [`Archive`] is the bucket and the names in it, [`ArchiveWorker`] keeps it up to date with what the node serves, and
//! [`Archived`] is the object store with both, for gateways. What is to be done for an object is decided by
//! [`synod_core::objects::ArchiveRecord`]. The client library of the bucket is named in one module only.

#![forbid(unsafe_code)]

mod archived;
mod bucket;
mod copy;
mod names;
mod records;
mod settings;
mod worker;

pub use archived::Archived;
pub use bucket::Archive;
pub use settings::{ArchiveError, ArchiveSettings};
pub use worker::{ArchiveWorker, WorkerConfig};

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Locks; what a panic left behind is taken as it is, since every change of it is whole.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Milliseconds of the wall clock.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
