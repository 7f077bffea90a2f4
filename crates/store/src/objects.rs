//! Object storage: entries with conditions that hold, and bodies of any size.
//!
//! [`ObjectStore`] is what a gateway needs: read, write and delete an entry, list, and move bodies in and out as streams.
//! Everything that a protocol like S3 adds (buckets, access keys, uploads) is made of entries by the gateway. [`Objects`] is
//! the store of a running node.
//!
//! ```text
//!   gateway ──► Objects ──► body: parts to all replicas, straight from here
//!                      └──► head: to the primary of its slot, which asks the replicas
//! ```
//!
//! What is decided is decided in [`synod_core::objects`]; what is here moves bytes.
//!
//! [`ObjectStore`]: contract::ObjectStore

mod archive;
mod body;
mod codec;
pub mod content;
pub mod contract;
mod disk;
mod handle;
mod keeper;
mod links;
mod list;
mod plane;
mod request;
mod running;
mod service;

pub use archive::{ArchivePage, ArchivePair, ArchiveReport, ArchiveStatusJson};
pub use body::PlaneWriter;
pub use handle::Objects;
pub use keeper::{KeeperConfig, ScrubProgress};
pub use plane::PlaneStartError;
pub use running::{HealJson, ObjectsError, ScrubJson, StoreStatusJson, UnrepairedJson};
pub(crate) use running::{ObjectsParts, ObjectsView, RunningObjects, open_disks};
pub(crate) use service::ObjectsService;
