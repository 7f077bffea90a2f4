//! The decoders that are fuzzed.
//!
//! A new decoder gets a function that reads the bytes and asserts what must hold, and a line in [`TARGETS`]:
//!
//! ```text
//!   fn health(input: &[u8]) {
//!       if let Ok(report) = Health::parse(input) {
//!           assert_eq!(Health::parse(&report.to_json()), Ok(report));
//!       }
//!   }
//!
//!   Target::new("health", health, || vec![br#"{"status":"up"}"#.to_vec()]),
//! ```
//!
//! Whatever is accepted should also survive being written and read again: that finds what a panic does not.

pub(crate) mod cluster;
mod core;
mod wire;

use crate::engine::{MEMORY_PER_BYTE, Target};
use crate::seeds;

pub use wire::PAYLOAD_NAMES;

/// All targets.
pub const TARGETS: &[Target] = &[
    Target::new("frame", wire::frame, wire::frames),
    // Three copies are alive at once: what was read, what was written, and what was read again.
    Target::new("round-trip", wire::round_trip, wire::frames).with_memory_per_byte(4 * MEMORY_PER_BYTE),
    Target::new("dialect", wire::dialect, wire::target_tables).with_memory_per_byte(4 * MEMORY_PER_BYTE),
    Target::new("payload", wire::payload, wire::payloads).with_memory_per_byte(4 * MEMORY_PER_BYTE),
    Target::new("any", wire::any, wire::anys).with_memory_per_byte(2 * MEMORY_PER_BYTE),
    Target::new("identifiers", core::identifiers, core::texts),
    Target::new("grain-names", core::grain_names, core::grains_and_pids),
    Target::new("gossip-map", core::gossip_map, core::gossip_maps),
    Target::new("gossip-state", cluster::gossip_state, cluster::gossip_states)
        .with_memory_per_byte(4 * MEMORY_PER_BYTE),
    Target::new("membership", cluster::membership_message, cluster::membership_messages)
        .with_memory_per_byte(4 * MEMORY_PER_BYTE),
    Target::new("grain-json", cluster::json_argument, cluster::json_arguments)
        .with_memory_per_byte(4 * MEMORY_PER_BYTE),
    Target::new("relocation", cluster::relocation, cluster::relocations),
    Target::new("batch", cluster::batch, cluster::batches).with_memory_per_byte(4 * MEMORY_PER_BYTE),
    Target::new("health", cluster::health, cluster::reports).with_memory_per_byte(4 * MEMORY_PER_BYTE),
];

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().chain(crate::planted::PLANTED).find(|target| target.name == name).copied()
}

/// What a target begins with: its own seeds and those that are kept as files.
///
/// # Errors
/// Those of the file system, and a file that is not hexadecimal.
pub fn seeds(target: &Target) -> std::io::Result<Vec<Vec<u8>>> {
    let mut inputs = seeds::kept(target.name)?;
    inputs.extend((target.seeds)());
    Ok(inputs)
}
