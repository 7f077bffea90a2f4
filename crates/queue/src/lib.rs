//! The replicated job queue of synod: it survives its leader.
//!
//! [`synod_core::jobs`] decides what becomes of each job; this crate does the rest.

#![forbid(unsafe_code)]

pub mod access;
mod desk;
mod jobs;
pub mod link;
mod service;
mod token;
mod wire;

pub use desk::DeskConfig;
pub use jobs::{Applied, Jobs};
pub use service::QueueService;
pub use token::Token;
mod client;
mod raft;
mod worker;
pub use client::{Client, ClientError};
pub use worker::{Job, RunningWorker, Verdict, Worker};
