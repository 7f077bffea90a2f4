//! The S3 gateway of synod: objects over the protocol that every tool speaks.
//!
//! [`gateway`] listens and answers; [`keys`] says who may do what; [`lifecycle`] removes what has had its time. All of it
//! works on any [`synod_store::objects::contract::ObjectStore`], and keeps nothing of its own but what it may forget at any
//! time. No type of the protocol library leaves this crate.

#![forbid(unsafe_code)]

mod access;
mod cache;
mod chunks;
pub mod client;
mod cors;
pub mod counters;
mod digests;
mod errors;
pub mod gateway;
mod hosts;
pub mod keys;
pub mod lifecycle;
mod records;
mod request;
mod server;
mod service;
mod text;

pub use counters::GatewayCounters;
pub use gateway::{Gateway, GatewayConfig, GatewayError};
pub use keys::{AccessKey, KeyError, Keys, Permissions};
pub use lifecycle::{LifecycleReport, run_lifecycle_once};

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Locks; what a panic left behind is taken as it is, since every change of it is whole.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Milliseconds of the wall clock.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
