//! The replicated job queue of synod: it survives its leader.
//!
//! [`synod_core::jobs`] decides what becomes of each job; this crate does the rest.

#![forbid(unsafe_code)]

pub mod access;
pub mod beanstalk;
pub mod memory;
