//! The slot registry of synod: which node serves which part of the data, and the node that carries it.
//!
//! [`synod_core::slots`] decides; this crate does. [`node`] puts a node together: [`config`] and [`cluster_url`] say to
//! which cluster it belongs, [`files`] is its memory, [`registry`] runs the machine, [`hints`] hears of other nodes through
//! SWIM, and [`api`] is what it says about itself over HTTP.

#![forbid(unsafe_code)]

pub mod admin;
pub mod api;
pub mod bootstrap_json;
pub mod cluster_url;
pub mod codec;
pub mod config;
pub mod files;
pub mod hints;
pub mod http_client;
pub mod node;
pub mod objects;
mod peers;
pub mod register;
pub mod registry;
mod service;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; what a panic left behind is taken as it is, since every change of it is whole.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
