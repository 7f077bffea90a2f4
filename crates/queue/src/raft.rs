//! Raft groups: machines that are the same on several nodes, and survive the loss of some of them.
//!
//! Think of a choir with one conductor. Everything that is to happen is proposed to the conductor, the *leader*, who writes
//! it into the log of the group; once a majority of the voters has it on disk, it is *committed*, and every replica applies it
//! to its [`Machine`], in the same order. When the leader is not heard of any more, the voters elect another one, who has all
//! that was committed.
//!
//! ```text
//!   propose ──► Group ──► engine ──► log_store ──► journal ──► disk
//!                           │  ▲
//!              network ◄────┘  └──── service ◄──── other replicas
//!                           │
//!                           └──► machine: apply, snapshot
//! ```
//!
//! The engine is openraft. Nothing outside of this module knows it.
//!
//! **Identity.** A replica has a number that is drawn when its disk is new. A node that lost its disk comes back as a new
//! replica, and cannot vote twice.
//!
//! **Members.** All nodes know the layout of the cluster. The first of them founds the group alone, once the others say that
//! there is none. All others ask to be taken in; the leader lets them learn, then vote. A new replica of a node takes the
//! place of the old one.
//!
//! **Durability.** What is acknowledged is synced on a majority of the voters. Any failure of storage ends the replica
//! ([`Group::ended`]), and should end the process.

mod config;
mod group;
mod identity;
mod keeper;
mod lead;
mod log_store;
mod machine;
mod member;
mod network;
mod receive;
mod service;
mod snapshot;
#[cfg(test)]
mod tests;
mod types;

pub use config::{GroupConfig, GroupConfigError};
pub use group::{
    Applied, Group, GroupError, GroupParts, GroupStatus, NodeAddress, NotLeader, ProposeError, Proposed,
};
pub use identity::IdentityError;
pub use lead::{Lead, ReplicaInfo};
pub use machine::Machine;
pub use service::RaftService;
pub(crate) use snapshot::look_into;
pub(crate) use types::command_of;
