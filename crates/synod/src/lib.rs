//! synod: a cluster that forms itself.
//!
//! This crate is the facade: it re-exports the layers that applications use, and it is home to the `synod` binary.
//!
//! - [`core`]: the machines, which decide everything and do nothing;
//! - [`cluster`]: the drivers that run them on tokio, and [`macro@grain`], which makes typed grains of a trait (of a
//!   `.proto` file, `synod-build` does);
//! - [`sim`]: the simulator, for testing against a hostile network.

pub use synod_cluster as cluster;
#[doc(inline)]
pub use synod_cluster::grain_of_facade as grain;
pub use synod_core as core;
pub use synod_sim as sim;

/// The README's example compiles and runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
