//! Object storage: entries with conditions that hold, and bodies of any size.
//!
//! [`ObjectStore`] is what a gateway needs: read, write and delete an entry, list, and move bodies in and out as streams.
//! Everything that a protocol like S3 adds (buckets, access keys, uploads) is made of entries by the gateway.
//!
//! ```text
//!   gateway ──► ObjectStore ──► body: parts to all replicas, straight from here
//!                          └──► head: to the primary of its slot, which asks the replicas
//! ```

pub mod content;
pub mod contract;
#[allow(dead_code, unused_imports, reason = "not every part of a disk has a caller yet")]
pub(crate) mod disk;
