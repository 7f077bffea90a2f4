//! One job: what it is, where it stands, and what became of it so far.

use alloc::vec::Vec;

use bytes::Bytes;

use super::id::{ClientId, Fence, JobId, SessionId, UserKey};
use super::settings::Backoff;

/// One job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) id: JobId,
    /// The place of its queue.
    pub(super) queue: u32,
    pub(super) client: ClientId,
    pub(super) priority: u32,
    pub(super) ttr_ms: u64,
    /// 0 for ever.
    pub(super) max_attempts: u32,
    pub(super) backoff: Backoff,
    pub(super) group: Option<UserKey>,
    /// At which queue time it is dropped if nobody holds it.
    pub(super) expires_ms: Option<u64>,
    pub(super) submitted: Moment,
    pub(super) state: JobState,
    /// Tries that count, the one in progress included.
    pub(super) attempts: u32,
    /// Of the last assignment.
    pub(super) fence: Fence,
    pub(super) counts: JobCounts,
    pub(super) body: Bytes,
    /// Of what happened since it was accepted, the latest.
    pub(super) history: Vec<HistoryEntry>,
}

impl Job {
    /// Adds to the history, which forgets its oldest entry when it is full.
    pub(super) fn remember(&mut self, index: u64, time_ms: u64, what: What, session: Option<SessionId>) {
        if self.history.len() >= HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push(HistoryEntry { index, time_ms, what, session });
    }

    /// Whether it has been tried as often as it may be.
    pub(super) const fn is_worn_out(&self) -> bool {
        self.max_attempts > 0 && self.attempts >= self.max_attempts
    }
}

/// When something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Moment {
    /// At which entry of the log.
    pub index: u64,
    /// At which queue time.
    pub time_ms: u64,
    /// At which time of day, as the leader saw it.
    pub wall_ms: u64,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum JobState {
    /// It waits for a worker.
    Ready,
    /// A worker holds it.
    Reserved {
        /// Who.
        session: SessionId,
        /// Until which queue time.
        deadline_ms: u64,
        /// Whether it came by a credit, which goes back with the job.
        by_credit: bool,
    },
    /// It waits for its time.
    Delayed {
        /// Until which queue time.
        until_ms: u64,
        /// Whether it was tried before. Its group waits for it then; it does not wait for a job that is not due yet.
        is_retry: bool,
    },
    /// It is put aside.
    Dead {
        /// Why.
        reason: DeadReason,
        /// Since which entry of the log.
        since_index: u64,
    },
    /// There is no more to do. Only some of these are remembered.
    Finished {
        /// How it ended.
        how: Finish,
    },
}

impl JobState {
    /// Whether its client waits for it.
    pub(super) const fn is_unfinished(&self) -> bool {
        matches!(self, Self::Ready | Self::Reserved { .. } | Self::Delayed { .. })
    }
}

/// Why a job is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum DeadReason {
    /// It was tried as often as it may be.
    Attempts,
    /// A worker put it aside.
    Buried,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Finish {
    /// It was done.
    Acked,
    /// It was not wanted any more.
    Cancelled,
    /// Nobody took it in time.
    Expired,
    /// It was tried as often as it may be, in a queue that keeps no dead.
    Dropped,
}

/// How often things happened to a job. The names are those of beanstalkd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobCounts {
    /// It was given out.
    pub reserves: u32,
    /// A worker held it for too long.
    pub timeouts: u32,
    /// A worker gave it back.
    pub releases: u32,
    /// It died.
    pub buries: u32,
    /// It was made ready by hand.
    pub kicks: u32,
}

/// One line in the life of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HistoryEntry {
    /// At which entry of the log.
    pub index: u64,
    /// At which queue time.
    pub time_ms: u64,
    /// What happened.
    pub what: What,
    /// Who had to do with it.
    pub session: Option<SessionId>,
}

/// What the history of a job remembers. That it was accepted, and when, is part of the job itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum What {
    /// Its delay was over.
    Ready,
    /// It was given out.
    Assigned,
    /// It was done.
    Acked,
    /// A worker held it for too long.
    TimedOut,
    /// Its worker was gone.
    WorkerDown,
    /// A worker gave it back.
    Released,
    /// A worker put it aside.
    Buried,
    /// It was tried as often as it may be.
    WornOut,
    /// It was not wanted any more.
    Cancelled,
    /// Nobody took it in time.
    Expired,
    /// It was made ready by hand.
    Kicked,
}

impl What {
    /// All of them, in the order of their numbers in snapshots: new ones go to the end.
    pub(super) const ALL: [Self; 11] = [
        Self::Ready,
        Self::Assigned,
        Self::Acked,
        Self::TimedOut,
        Self::WorkerDown,
        Self::Released,
        Self::Buried,
        Self::WornOut,
        Self::Cancelled,
        Self::Expired,
        Self::Kicked,
    ];
}

/// How many lines of its life each job remembers.
pub const HISTORY_MAX: usize = 16;
