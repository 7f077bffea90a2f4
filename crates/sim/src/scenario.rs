//! Named stories: what is done to a cluster, and when.
//!
//! A scenario is a script of faults, drawn from the seed. Every run ends the same way: all faults end, and all views must
//! agree before the time limit.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use synod_core::membership::MembershipCoordinator;

use crate::invariants::Violation;
use crate::report::{Report, TraceSink};
use crate::world::{SimConfig, SimError, Simulation};

/// A story with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A cluster forms, loses a node, gets it back, is split and healed.
    Tour,
    /// A cluster forms and nothing else happens.
    Form,
    /// A node is killed and stays dead.
    Crash,
    /// A node is killed and started again, twice.
    Restart,
    /// A node freezes for less than the suspect timeout and goes on.
    Pause,
    /// A part of the cluster is cut off for long enough to be given up.
    Partition,
    /// A node leaves gracefully.
    Leave,
    /// A tenth of all messages is lost and a node freezes for a while.
    Lossy,
    /// Random crashes, restarts, freezes, cuts, losses and departures for two minutes.
    Churn,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Self; 9] = [
        Self::Tour,
        Self::Form,
        Self::Crash,
        Self::Restart,
        Self::Pause,
        Self::Partition,
        Self::Leave,
        Self::Lossy,
        Self::Churn,
    ];

    /// The scenario's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tour => "tour",
            Self::Form => "form",
            Self::Crash => "crash",
            Self::Restart => "restart",
            Self::Pause => "pause",
            Self::Partition => "partition",
            Self::Leave => "leave",
            Self::Lossy => "lossy",
            Self::Churn => "churn",
        }
    }

    /// What happens, in a line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Tour => "a cluster forms, loses a node, gets it back, is split and healed",
            Self::Form => "a cluster forms and nothing else happens",
            Self::Crash => "a node is killed and stays dead",
            Self::Restart => "a node is killed and started again, twice",
            Self::Pause => "a node freezes for less than the suspect timeout and goes on",
            Self::Partition => "a part of the cluster is cut off for long enough to be given up",
            Self::Leave => "a node leaves gracefully",
            Self::Lossy => "a tenth of all messages is lost and a node freezes for a while",
            Self::Churn => "random faults of every kind for two minutes",
        }
    }

    /// What is done, after the cluster had `FORMING` to form.
    fn script(self, nodes: usize, rng: &mut fastrand::Rng) -> Vec<(Duration, Fault)> {
        let seconds = Duration::from_secs;
        let victim = rng.usize(..nodes);
        match self {
            Self::Form => Vec::new(),
            Self::Crash => vec![(seconds(0), Fault::Crash(victim)), (seconds(20), Fault::Nothing)],
            Self::Leave => vec![(seconds(0), Fault::Leave(victim)), (seconds(5), Fault::Nothing)],
            Self::Restart => vec![
                (seconds(0), Fault::Crash(victim)),
                // Soon enough to be replaced while it still counts as up, then late enough to be dead.
                (seconds(2), Fault::Restart(victim)),
                (seconds(12), Fault::Crash(victim)),
                (seconds(32), Fault::Restart(victim)),
            ],
            Self::Pause => vec![(seconds(0), Fault::Pause(victim)), (seconds(7), Fault::Resume(victim))],
            Self::Lossy => vec![
                (seconds(0), Fault::Loss(0.1)),
                (seconds(5), Fault::Pause(victim)),
                (seconds(12), Fault::Resume(victim)),
                (seconds(30), Fault::Nothing),
            ],
            Self::Partition => {
                vec![(seconds(0), Fault::Partition(minority(nodes, rng))), (seconds(40), Fault::Heal)]
            }
            Self::Tour => vec![
                (seconds(0), Fault::Crash(victim)),
                (seconds(15), Fault::Restart(victim)),
                (seconds(25), Fault::Partition(minority(nodes, rng))),
                (seconds(45), Fault::Heal),
            ],
            Self::Churn => churn(nodes, rng),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scenario {
    type Err = ScenarioError;

    fn from_str(name: &str) -> Result<Self, ScenarioError> {
        let found = Self::ALL.into_iter().find(|scenario| scenario.name() == name);
        found.ok_or_else(|| ScenarioError { name: name.to_owned() })
    }
}

/// There is no such scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// The name asked for.
    pub name: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Scenario::ALL.iter().map(|scenario| scenario.name()).collect();
        write!(f, "there is no scenario {:?}; there are {}", self.name, names.join(", "))
    }
}

impl std::error::Error for ScenarioError {}

/// One thing done to a cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process ends without warning.
    Crash(usize),
    /// A process starts again.
    Restart(usize),
    /// A process starts again with an empty disk.
    RestartWithoutDisk(usize),
    /// A process freezes.
    Pause(usize),
    /// A process goes on.
    Resume(usize),
    /// A node leaves gracefully.
    Leave(usize),
    /// The network is cut into this group and the rest.
    Partition(Vec<usize>),
    /// A node is heard and hears nobody.
    Deafen(usize),
    /// A node hears everybody and is not heard.
    Silence(usize),
    /// This share of messages vanishes.
    Loss(f64),
    /// Every fault of the network ends and nobody is frozen.
    Heal,
    /// Only time passes.
    Nothing,
}

impl Fault {
    /// Does it.
    ///
    /// # Errors
    /// A broken invariant.
    pub fn strike(&self, simulation: &mut Simulation) -> Result<(), Violation> {
        match self {
            Self::Crash(node) => simulation.crash(*node),
            Self::Restart(node) => simulation.restart(*node)?,
            Self::RestartWithoutDisk(node) => simulation.restart_without_disk(*node)?,
            Self::Pause(node) => simulation.pause(*node),
            Self::Resume(node) => simulation.resume(*node),
            Self::Leave(node) => simulation.leave(*node)?,
            Self::Partition(group) => simulation.partition(std::slice::from_ref(group)),
            Self::Deafen(node) => simulation.deafen(*node),
            Self::Silence(node) => simulation.silence(*node),
            Self::Loss(loss) => simulation.set_loss(*loss),
            Self::Heal => simulation.heal(),
            Self::Nothing => {}
        }
        Ok(())
    }
}

/// A run failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The simulation could not be set up.
    #[error(transparent)]
    Setup(#[from] SimError),
    /// An invariant was broken.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The views did not agree in time after everything was healed.
    #[error("the views did not agree within {limit:?} after everything was healed: {why}")]
    NotConverged {
        /// The time allowed.
        limit: Duration,
        /// The first difference.
        why: String,
    },
}

/// Runs `scenario` to its end, with `trace` (if any) as the sink of events.
///
/// # Errors
/// A broken invariant, or views that do not agree in the end.
pub fn run_scenario(
    config: SimConfig,
    scenario: Scenario,
    trace: Option<TraceSink>,
) -> Result<Report, RunError> {
    let mut rng = fastrand::Rng::with_seed(config.seed ^ SCRIPT_SALT);
    let (seed, nodes) = (config.seed, config.nodes);
    let script = scenario.script(nodes, &mut rng);
    let mut simulation = Simulation::new(config)?;
    if let Some(sink) = trace {
        simulation.trace(sink);
    }
    simulation.run_for(FORMING)?;
    for (at, fault) in script {
        let at = FORMING + at;
        simulation.run_for(at.saturating_sub(simulation.now()))?;
        fault.strike(&mut simulation)?;
    }
    simulation.heal();
    let limit = convergence_limit(&simulation);
    let survivor = (0..nodes).find(|node| simulation.lives(*node));
    let converged = simulation.run_until(limit, |sim| survivor.is_none() || sim.converged().is_ok())?;
    let Some(took) = converged else {
        let why = simulation.converged().err().unwrap_or_default();
        return Err(RunError::NotConverged { limit, why });
    };
    let (messages_sent, messages_lost, messages_doubled) = simulation.messages();
    let view = survivor.map(|node| simulation.coordinator(node));
    Ok(Report {
        seed,
        nodes,
        scenario: scenario.name().to_owned(),
        simulated_ms: millis(simulation.now()),
        steps: simulation.steps,
        messages_sent,
        messages_lost,
        messages_doubled,
        status_changes: simulation.status_changes,
        topology_updates: simulation.topology_updates,
        false_deaths: simulation.false_deaths,
        converged_after_ms: millis(took),
        members: view.map_or(0, |view| view.active_members().len()),
        view_digest: format!("{:032x}", view.map_or(0, MembershipCoordinator::view_digest)),
    })
}

/// How long agreement may take: suspicion and verdict of whoever is gone, quarantine of whoever returns, and some rounds
/// in which lost parts look for each other.
fn convergence_limit(simulation: &Simulation) -> Duration {
    let membership = &simulation.config().membership;
    let pause = membership.phi.acceptable_pause + membership.heartbeat_interval * 3;
    // The worst health stretches patience eightfold.
    let verdict = (pause + membership.suspect_timeout) * 8;
    verdict + membership.quarantine_ttl + membership.dead_timeout + membership.reconnect_interval * 20
}

/// A random group of less than half of the nodes, one at least.
fn minority(nodes: usize, rng: &mut fastrand::Rng) -> Vec<usize> {
    let mut all: Vec<_> = (0..nodes).collect();
    rng.shuffle(&mut all);
    all.truncate(rng.usize(1..=(nodes.saturating_sub(1) / 2).max(1)));
    all
}

fn churn(nodes: usize, rng: &mut fastrand::Rng) -> Vec<(Duration, Fault)> {
    let mut at = Duration::ZERO;
    let mut script = Vec::new();
    while at < Duration::from_secs(120) {
        let node = rng.usize(..nodes);
        script.push((
            at,
            match rng.u32(..13) {
                0 | 1 => Fault::Crash(node),
                2 | 3 => Fault::Restart(node),
                4 => Fault::RestartWithoutDisk(node),
                5 => Fault::Pause(node),
                6 => Fault::Resume(node),
                7 => Fault::Partition(minority(nodes, rng)),
                8 => Fault::Loss(rng.f64() * 0.5),
                9 => Fault::Leave(node),
                10 => Fault::Deafen(node),
                11 => Fault::Silence(node),
                _ => Fault::Heal,
            },
        ));
        at += Duration::from_millis(rng.u64(100..8_000));
    }
    // Whoever is down comes back, so that the end of the story is about everybody.
    script.extend((0..nodes).map(|node| (at, Fault::Restart(node))));
    script
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The time a cluster gets to form before the script begins.
const FORMING: Duration = Duration::from_secs(10);
/// Keeps the script's chance apart from the network's.
const SCRIPT_SALT: u64 = 0x5eed_0f5c_4170_0001;
