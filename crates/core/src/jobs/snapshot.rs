//! The state as bytes: the same on every replica that has applied the same frames.
//!
//! A magic word, a version, then records in a fixed order, each with its length before it: the header, queues by place,
//! dedupe keys, sessions, clients, gateways, jobs by number, finished jobs, and a checksum of all before it, which is also
//! the hash of the state. What can be computed from these (who stands where in which queue, alarms, counts) is not written:
//! it is built again by the same code that builds it in daily life, and so cannot disagree with it.
//!
//! Taking a snapshot copies the small things at once and shares the jobs with the living state; writing it out can then take
//! its time elsewhere. Reading it back takes chunks as they come and keeps no more than the record that it is in.

mod decode;
mod encode;

pub use decode::{SnapshotDecoder, SnapshotError};
pub use encode::{Snapshot, SnapshotChunks};

/// The form of snapshots that this release writes. It reads that one and the one before, which told neither who led
/// nor since when gateways are known.
pub const SNAPSHOT_VERSION: u8 = 2;
const MAGIC: &[u8; 8] = b"synodjob";

/// The kinds of records, in their order.
mod kind {
    pub(super) const HEADER: u8 = 0;
    pub(super) const QUEUE: u8 = 1;
    pub(super) const DEDUPE: u8 = 2;
    pub(super) const SESSION: u8 = 3;
    pub(super) const CLIENT: u8 = 4;
    pub(super) const GATEWAY: u8 = 5;
    pub(super) const JOB: u8 = 6;
    pub(super) const FINISHED: u8 = 7;
    pub(super) const END: u8 = 8;
}
