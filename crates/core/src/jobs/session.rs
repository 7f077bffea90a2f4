//! One worker: what it holds, and how much more it takes.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::id::JobId;

/// One open session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) secret: u64,
    /// How many more jobs it takes, pushed to it.
    pub(super) credits: u32,
    /// Of which queues, by their places, each once.
    pub(super) watching: Vec<u32>,
    /// Its own cap on what it holds.
    pub(super) inflight_max: Option<u32>,
    /// When it was last given a job, in the order of assignments. Who waits longest is served first.
    pub(super) last_served: u64,
    /// What it holds.
    pub(super) inflight: BTreeSet<JobId>,
    /// How many of those came by a credit.
    pub(super) by_credit: u32,
    /// Under which `last_served` it waits in the queues that it watches, if it does.
    pub(super) waits_as: Option<u64>,
}

impl Session {
    /// How many jobs it takes at a time: its credits, and those by which it got what it holds.
    pub(super) const fn granted(&self) -> u32 {
        self.credits.saturating_add(self.by_credit)
    }

    /// Whether it takes a job that is pushed to it.
    pub(super) fn takes_more(&self, inflight_max: u32) -> bool {
        self.credits > 0 && self.inflight.len() < inflight_max as usize
    }
}
