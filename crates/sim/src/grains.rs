//! Grains on a cluster whose members learn of each other at different times.
//!
//! A second world beside the one of membership: each node has the production machines of grains (registry, router, cache,
//! placement), and the world does what a driver does with their commands. Who is a member is not worked out by gossip here
//! but drawn: every change reaches every node after a delay of its own, so views differ all the time. Handed-over messages
//! are lost, doubled and overtake each other; calls travel in order, as on a connection.
//!
//! A run ends by healing everything. Then every grain must be found by everybody, run once, and nothing may be left in any
//! table.

mod checks;
mod faults;
mod node;
mod world;

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::network::NetworkConfig;
use crate::report::TraceSink;
use world::World;

/// What happens to the nodes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrainScenario {
    /// Nodes come and leave politely. No grain may ever run twice, and no state may be lost.
    Moves,
    /// Nodes are killed, restarted and cut off. Grains may run twice while views differ, which is told in the end.
    Churn,
}

impl GrainScenario {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Moves, Self::Churn];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Moves => "grain-moves",
            Self::Churn => "grain-churn",
        }
    }

    /// What happens, in a line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Moves => "grains are called while nodes come and leave politely",
            Self::Churn => "grains are called while nodes are killed, restarted and cut off",
        }
    }
}

impl fmt::Display for GrainScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a run with grains is set up.
#[derive(Clone, Debug)]
pub struct GrainSimConfig {
    /// The seed of all chance.
    pub seed: u64,
    /// How many nodes there are, 1 to 64.
    pub nodes: usize,
    /// How many grains are called.
    pub grains: usize,
    /// What happens.
    pub scenario: GrainScenario,
    /// How the network behaves while nothing worse is done to it.
    pub network: NetworkConfig,
}

impl GrainSimConfig {
    /// A few grains on `nodes` nodes, on a network that loses and doubles some of what is handed over.
    #[must_use]
    pub fn new(seed: u64, nodes: usize, scenario: GrainScenario) -> Self {
        let network = NetworkConfig { loss: 0.02, duplicates: 0.05, ..NetworkConfig::default() };
        Self { seed, nodes, grains: 6, scenario, network }
    }
}

/// A run with grains failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {:.3} s: {what}", at.as_secs_f64())]
pub struct GrainViolation {
    /// When.
    pub at: Duration,
    /// What was broken.
    pub what: String,
}

/// The summary of a run with grains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GrainReport {
    /// The seed of all chance.
    pub seed: u64,
    /// How many nodes there were.
    pub nodes: usize,
    /// The scenario's name.
    pub scenario: String,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
    /// Calls that were made.
    pub calls: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Activations that were started.
    pub started: u64,
    /// Starts that asked previous owners first.
    pub claimed: u64,
    /// Starts whose previous owners did not answer.
    pub missed: u64,
    /// Pairs of activations of one grain that ran at the same time.
    pub overlaps: u64,
    /// Duplicates that owners told of.
    pub duplicates: u64,
    /// States that were dropped.
    pub states_dropped: u64,
}

/// Most nodes in a run with grains.
pub const GRAIN_NODES_MAX: usize = 64;

/// Runs a scenario to its end, with `trace` (if any) as the sink of events.
///
/// # Errors
/// A broken invariant.
///
/// # Panics
/// There must be 1 to [`GRAIN_NODES_MAX`] nodes, and one grain at least.
pub fn run_grains(config: GrainSimConfig, trace: Option<TraceSink>) -> Result<GrainReport, GrainViolation> {
    assert!((1..=GRAIN_NODES_MAX).contains(&config.nodes) && config.grains > 0, "sound settings");
    World::new(config, trace).run()
}
