//! The replicated job queue of synod: it survives its leader.
//!
//! [`synod_core::jobs`] decides what becomes of each job; this crate does the rest.
//!
//! ```text
//!   Client, Worker ──► link ──► service ──► desk ──► raft ──► journal       on the leader
//!   beanstalkd's clients ──► beanstalk ──► link ──┘    │
//!                                                      └──► jobs, on every replica
//! ```
//!
//! A [`QueueNode`] puts these together. A [`Client`] submits jobs and a [`Worker`] does them, from anywhere; clients of
//! beanstalkd are served by every node ([`beanstalk`]). Whoever speaks to the queue does so through a [`link`], which finds
//! the leader and follows it: an election makes calls take longer, and nothing else.
//! Whether all that is so, [`verify`] finds out, of recordings and of the logs of nodes.

// The simulation takes the place of one function of the C library.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![cfg_attr(test, deny(unsafe_code))]

pub mod access;
pub mod beanstalk;
mod blocking;
mod client;
mod connect;
mod desk;
mod jobs;
pub mod journal;
pub mod link;
pub mod memory;
mod node;
pub mod raft;
mod service;
#[cfg(test)]
mod simulation;
pub mod verify;
mod wire;
mod worker;

pub use client::{Client, ClientError};
pub use connect::{Channels, Connect, TcpConnect};
pub use desk::DeskConfig;
pub use jobs::Jobs;
pub use node::{GroupView, QueueError, QueueNode, QueueOptions, QueueServices, WorkerView, WorkersView};
pub use service::QueueService;
pub use synod_cluster::remote::BearerToken;
pub use worker::{Job, RunningWorker, Verdict, Worker};
