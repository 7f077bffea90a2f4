//! A fuzzer for every decoder of synod, small enough to read, on stable Rust and without a C++ toolchain.
//!
//! A fuzzer is a patient visitor who tries every door handle. It feeds a decoder bytes, watches through
//! instrumentation which branches they reach, keeps the inputs that reached something new, and changes those further.
//! So it works its way in, where plain noise is refused at the first field.
//!
//! ```text
//!    seeds ──► corpus ──► mutate ──► run the target ──► new branches? ──► into the corpus
//!                ▲                       │
//!                └───────────────────────┴─► panic, too slow, too much memory, death ──► finding
//! ```
//!
//! `fuzz/run` builds this crate and everything beneath it with the coverage instrumentation that LLVM already has, see
//! [`coverage`], and calls the binary. The binary runs each target in a process of its own, so that also an abort, an
//! overflowing stack or an endless loop leaves the input behind that caused it, see [`recorder`].
//!
//! To add a target, see [`targets`].

#![deny(unsafe_code)]

pub mod coverage;
pub mod engine;
mod fields;
pub mod memory;
mod mutate;
pub mod planted;
pub mod recorder;
pub mod seeds;
pub mod targets;
