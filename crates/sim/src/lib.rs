//! A whole cluster in one thread, on a network that does its worst.
//!
//! The simulator runs the production machines of `synod-core`: the same code that a node runs, driven by a virtual clock
//! and a virtual network instead of tokio and sockets. Messages are delayed, lost, doubled, reordered and cut off by
//! partitions; nodes crash, restart with a new incarnation, freeze, and live with clocks that run fast or slow. All
//! chance comes from one seed, so one seed is one history, to the last message.
//!
//! A second world does the same for grains: see [`run_grains`]; a third for the registry of slots: see [`run_slots`];
//! and a fourth for the objects on them: see [`run_objects`].
//!
//! After every step the [invariants](Violation) of membership are checked. A run ends by healing everything and waiting
//! for all views to agree. A failure names the seed and the command that replays it.

mod grains;
mod history;
mod invariants;
mod network;
mod node;
mod objects;
mod report;
mod scenario;
mod slots;
mod world;

pub use grains::{GRAIN_NODES_MAX, GrainReport, GrainScenario, GrainSimConfig, GrainViolation, run_grains};
pub use invariants::Violation;
pub use network::NetworkConfig;
pub use objects::{
    OBJECT_NODES_MAX, OBJECTS_SCENARIO, OBJECTS_SUMMARY, ObjectMistake, ObjectReport, ObjectSimConfig,
    ObjectViolation, run_objects,
};
pub use report::{Report, TraceLine, TraceSink};
pub use scenario::{Fault, RunError, Scenario, ScenarioError, run_scenario};
pub use slots::{
    Failover, Mistake, Percentiles, SLOT_NODES_MAX, SLOTS_SCENARIO, SLOTS_SUMMARY, SlotReport, SlotSimConfig,
    SlotTimes, SlotViolation, run_slots,
};
pub use world::{Formation, NODES_MAX, SimConfig, SimError, Simulation};
