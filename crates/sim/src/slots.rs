//! Whole clusters of slot registries, whose disks, clocks, networks and detectors of failures do their worst.
//!
//! A third world: each node is a production [`SlotRegistry`](synod_core::slots::SlotRegistry), and the world is its driver
//! and its disk. An outcome is told to nobody before it is durable, and a crash takes with it what was not; it can hit
//! between two messages of one outcome. Nodes restart with what is on their disk, now and then with an empty one. Who is
//! alive is what each node last heard of each other one, late, and sometimes plainly wrong.
//!
//! Clients write, conditionally write and read the registers of slots all the while. What they saw must be a history that
//! one register could have had; no epoch of a slot may ever have two primaries. A run ends by healing everything: then all
//! slots are served, all maps are equal, and nothing more happens. Last, a primary is killed and the time is taken.

mod checks;
mod clients;
mod detector;
mod faults;
mod node;
mod world;

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::network::NetworkConfig;
use crate::report::TraceSink;
use world::World;

/// How a run with slots is set up.
#[derive(Clone, Debug)]
pub struct SlotSimConfig {
    /// The seed of all chance.
    pub seed: u64,
    /// How many nodes there are, 1 to [`SLOT_NODES_MAX`].
    pub nodes: usize,
    /// How many slots.
    pub slots: u16,
    /// How many nodes store each slot.
    pub replicas: u8,
    /// How many of them must have stored a write.
    pub min_write_replicas: u8,
    /// How many clients ask for something, each one thing at a time.
    pub clients: usize,
    /// How the network behaves while nothing worse is done to it.
    pub network: NetworkConfig,
    /// Something that a driver could do wrong, to see that it is noticed.
    pub mistake: Option<Mistake>,
}

impl SlotSimConfig {
    /// A small cluster, with a layout that the seed chooses.
    #[must_use]
    pub fn new(seed: u64, nodes: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x51_07);
        let replicas = if nodes >= 5 && rng.bool() { 5 } else { 3 };
        Self {
            seed,
            nodes,
            slots: if rng.u32(..8) == 0 { 64 } else { 12 },
            replicas,
            min_write_replicas: if rng.u32(..6) == 0 { rng.u8(1..=replicas) } else { 1 },
            clients: 5,
            network: NetworkConfig { loss: 0.01, duplicates: 0.05, ..NetworkConfig::default() },
            mistake: None,
        }
    }
}

/// A mistake around a registry that must come to light.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Messages leave before what they tell of is durable.
    SendBeforePersist,
    /// A disk comes back with promises lower than those it had confirmed.
    ForgetPromises,
    /// A primary takes it for granted that its epoch lasts, and asks nobody before it answers a reader.
    ConfirmNothing,
    /// A granter does not say what it stores, so that nobody recovers it.
    RecoverNothing,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::SendBeforePersist, Self::ForgetPromises, Self::ConfirmNothing, Self::RecoverNothing];
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SendBeforePersist => "messages leave before what they tell of is durable",
            Self::ForgetPromises => "a disk forgets promises",
            Self::ConfirmNothing => "readers are answered without asking",
            Self::RecoverNothing => "a new primary recovers nothing",
        })
    }
}

/// A run with slots failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {:.3} s: {what}", at.as_secs_f64())]
pub struct SlotViolation {
    /// When.
    pub at: Duration,
    /// What was broken.
    pub what: String,
}

/// The summary of a run with slots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SlotReport {
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
    /// Messages that nodes sent, and gossip.
    pub messages_sent: u64,
    /// Messages that the network lost or cut off.
    pub messages_lost: u64,
    /// Requests that clients made.
    pub requests: u64,
    /// Writes that were acknowledged, conditional ones among them.
    pub written: u64,
    /// Reads that were answered, and conditions that did not hold.
    pub read: u64,
    /// Writes that may have happened or not.
    pub unknown: u64,
    /// Epochs that had a primary.
    pub elections: u64,
    /// Nodes that were killed.
    pub crashes: u64,
    /// Disks that were lost.
    pub disks_lost: u64,
    /// How long it took until every slot was served after everything was healed, in milliseconds.
    pub served_after_ms: u64,
    /// How long it took until all maps were equal after everything was healed, in milliseconds.
    pub converged_after_ms: u64,
    /// How long it took until every slot was back with its first replica and every node was ready, in milliseconds.
    pub home_after_ms: u64,
    /// What happened when a primary was killed in a cluster that was well; `None` where nobody could replace it.
    pub failover: Option<Failover>,
}

/// A primary was killed, and others took its slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failover {
    /// How many slots it served.
    pub slots: usize,
    /// How long it took until another node first suspected it, in milliseconds.
    pub suspected_after_ms: u64,
    /// How long it took until all of its slots were served again, in milliseconds.
    pub served_after_ms: u64,
    /// How long it took until the maps of all survivors were equal again, in milliseconds.
    pub converged_after_ms: u64,
}

/// How long things took in many runs, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlotTimes {
    /// How many runs.
    pub seeds: usize,
    /// How many nodes each had.
    pub nodes: usize,
    /// From a kill until somebody suspected it.
    pub suspected_ms: Option<Percentiles>,
    /// From a kill until all slots of the killed node were served again.
    pub failover_ms: Option<Percentiles>,
    /// From the first suspicion until all slots of the killed node were served again.
    pub election_ms: Option<Percentiles>,
    /// From a kill until the maps of all survivors were equal.
    pub failover_converged_ms: Option<Percentiles>,
    /// From the end of all faults until all slots were served.
    pub healed_served_ms: Option<Percentiles>,
    /// From the end of all faults until all maps were equal.
    pub healed_converged_ms: Option<Percentiles>,
}

/// Half of the values are at most `p50`, and 99 of 100 at most `p99`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// The value in the middle.
    pub p50: u64,
    /// The value that one in a hundred exceeds.
    pub p99: u64,
    /// The largest value.
    pub max: u64,
}

impl Percentiles {
    /// Those of some values; `None` of none.
    fn of(values: impl Iterator<Item = u64>) -> Option<Self> {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        let max = *values.last()?;
        // The smallest value that so many of a hundred do not exceed.
        let at = |percent: usize| values[(values.len() * percent).div_ceil(100) - 1];
        Some(Self { p50: at(50), p99: at(99), max })
    }
}

impl SlotTimes {
    /// The times of these runs.
    #[must_use]
    pub fn of(reports: &[SlotReport]) -> Self {
        let failovers = || reports.iter().filter_map(|report| report.failover.as_ref());
        Self {
            seeds: reports.len(),
            nodes: reports.first().map_or(0, |report| report.nodes),
            suspected_ms: Percentiles::of(failovers().map(|one| one.suspected_after_ms)),
            failover_ms: Percentiles::of(failovers().map(|one| one.served_after_ms)),
            election_ms: Percentiles::of(
                failovers().map(|one| one.served_after_ms.saturating_sub(one.suspected_after_ms)),
            ),
            failover_converged_ms: Percentiles::of(failovers().map(|one| one.converged_after_ms)),
            healed_served_ms: Percentiles::of(reports.iter().map(|report| report.served_after_ms)),
            healed_converged_ms: Percentiles::of(reports.iter().map(|report| report.converged_after_ms)),
        }
    }
}

/// The name of a run with slots on the command line.
pub const SLOTS_SCENARIO: &str = "slots";

/// What happens in it, in a line.
pub const SLOTS_SUMMARY: &str =
    "registers of slots are written and read while nodes, disks and networks fail";

/// Most nodes in a run with slots.
pub const SLOT_NODES_MAX: usize = 16;

/// Runs a cluster to its end, with `trace` (if any) as the sink of events.
///
/// # Errors
/// A broken promise of the registry.
///
/// # Panics
/// There must be 1 to [`SLOT_NODES_MAX`] nodes, and a layout that a cluster can have.
pub fn run_slots(config: SlotSimConfig, trace: Option<TraceSink>) -> Result<SlotReport, SlotViolation> {
    assert!((1..=SLOT_NODES_MAX).contains(&config.nodes), "sound settings");
    World::new(config, trace).run()
}
