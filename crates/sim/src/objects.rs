//! Whole clusters of object coordinators, on disks, networks and elections that do their worst.
//!
//! A fourth world: each node is a production [`ObjectCoordinator`](synod_core::objects::ObjectCoordinator) over a simulated
//! disk that runs the production [`handle_message`](synod_core::objects::handle_message) in transactions. A crash takes with it
//! what was not durable, and nobody has heard of that; disks are lost whole; parts of bodies are missing for a while. There is
//! no registry: an oracle hands out epochs, unique and rising, to whomever it likes, whether the primary before lives or not.
//!
//! Clients write, write on conditions, delete, read and list a few keys all the while, through any node. What they saw of a
//! key must be a history that one register could have had. A run ends by healing everything: then every slot is served, all
//! replicas are equal, every key can be read, and every request was answered.

mod clients;
mod disk;
mod faults;
mod world;

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::network::NetworkConfig;
use crate::report::TraceSink;
use world::World;

/// How a run with objects is set up.
#[derive(Clone, Debug)]
pub struct ObjectSimConfig {
    /// The seed of all chance.
    pub seed: u64,
    /// How many nodes there are, 1 to [`OBJECT_NODES_MAX`].
    pub nodes: usize,
    /// How many slots.
    pub slots: u16,
    /// How many keys clients care for.
    pub keys: usize,
    /// How many nodes store each slot.
    pub replicas: u8,
    /// How many of them must have stored a write.
    pub min_write_replicas: u8,
    /// How many clients ask for something, each one thing at a time.
    pub clients: usize,
    /// How the network behaves while nothing worse is done to it.
    pub network: NetworkConfig,
    /// Something that a replica or a driver could do wrong, to see that it is noticed.
    pub mistake: Option<ObjectMistake>,
}

impl ObjectSimConfig {
    /// A small cluster, with a layout that the seed chooses.
    #[must_use]
    pub fn new(seed: u64, nodes: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0b_1e);
        let replicas = if nodes >= 5 && rng.bool() { 5 } else { 3 };
        Self {
            seed,
            nodes,
            slots: rng.u16(1..=4),
            keys: rng.usize(1..=5),
            replicas,
            min_write_replicas: if rng.u32(..8) == 0 { rng.u8(1..=replicas) } else { 1 },
            clients: 4,
            network: NetworkConfig { loss: 0.01, duplicates: 0.05, ..NetworkConfig::default() },
            mistake: None,
        }
    }
}

/// A mistake around a coordinator that must come to light.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectMistake {
    /// A replica stores what an earlier epoch sends, whatever it has fenced.
    IgnoreFence,
    /// A disk comes back without the fences that it had confirmed.
    ForgetFence,
    /// Heads of earlier epochs are taken for heads of this one.
    RenewNothing,
    /// A disk that was lost takes part at once.
    SkipLearning,
    /// A replica says that something is stored before it is durable.
    AnswerBeforeDurable,
    /// A primary takes it for granted that its epoch lasts, and asks nobody before it answers a reader.
    ConfirmNothing,
    /// A new primary takes over nothing that others have.
    RecoverNothing,
}

impl ObjectMistake {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::IgnoreFence,
        Self::ForgetFence,
        Self::RenewNothing,
        Self::SkipLearning,
        Self::AnswerBeforeDurable,
        Self::ConfirmNothing,
        Self::RecoverNothing,
    ];
}

impl fmt::Display for ObjectMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IgnoreFence => "a replica stores what an earlier epoch sends",
            Self::ForgetFence => "a disk forgets its fences",
            Self::RenewNothing => "inherited heads are shown as they are",
            Self::SkipLearning => "a lost disk takes part at once",
            Self::AnswerBeforeDurable => "answers leave before what they tell of is durable",
            Self::ConfirmNothing => "readers are answered without asking",
            Self::RecoverNothing => "a new primary recovers nothing",
        })
    }
}

/// A run with objects failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {:.3} s: {what}", at.as_secs_f64())]
pub struct ObjectViolation {
    /// When.
    pub at: Duration,
    /// What was broken.
    pub what: String,
    /// Whether clients saw what cannot be.
    pub is_seen: bool,
}

/// The summary of a run with objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ObjectReport {
    /// The seed of all chance.
    pub seed: u64,
    /// How many nodes there were.
    pub nodes: usize,
    /// The scenario's name.
    pub scenario: String,
    /// How many slots.
    pub slots: u16,
    /// How many nodes stored each.
    pub replicas: u8,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
    /// Messages that nodes sent each other.
    pub messages_sent: u64,
    /// Messages that the network lost or cut off.
    pub messages_lost: u64,
    /// Requests that clients made.
    pub requests: u64,
    /// Writes and deletions that were acknowledged.
    pub written: u64,
    /// Reads that were answered, and conditions that did not hold.
    pub read: u64,
    /// Pages that were listed.
    pub listed: u64,
    /// Writes and deletions that may have happened or not.
    pub unknown: u64,
    /// Epochs that were handed out.
    pub elections: u64,
    /// Reigns that came to serve.
    pub reigns: u64,
    /// Nodes that were killed.
    pub crashes: u64,
    /// Disks that were lost.
    pub disks_lost: u64,
    /// Heads that were stored again before they were shown, by those who lived to the end.
    pub renewals: u64,
    /// Tombstones that were forgotten, by those who lived to the end.
    pub forgotten: u64,
    /// Entries that were repaired, by those who lived to the end.
    pub repaired: u64,
    /// How long it took until every slot was served after everything was healed, in milliseconds.
    pub served_after_ms: u64,
    /// How long it took until all replicas were equal after everything was healed, in milliseconds.
    pub equal_after_ms: u64,
}

/// The name of a run with objects on the command line.
pub const OBJECTS_SCENARIO: &str = "objects";

/// What happens in it, in a line.
pub const OBJECTS_SUMMARY: &str =
    "objects are written, deleted, read and listed while primaries, disks and networks fail";

/// Most nodes in a run with objects.
pub const OBJECT_NODES_MAX: usize = 16;

/// Runs a cluster to its end, with `trace` (if any) as the sink of events.
///
/// # Errors
/// A broken promise of the object plane.
///
/// # Panics
/// There must be 1 to [`OBJECT_NODES_MAX`] nodes, and a layout that a cluster can have.
pub fn run_objects(
    config: ObjectSimConfig,
    trace: Option<TraceSink>,
) -> Result<ObjectReport, ObjectViolation> {
    assert!((1..=OBJECT_NODES_MAX).contains(&config.nodes), "sound settings");
    World::new(config, trace).run()
}
