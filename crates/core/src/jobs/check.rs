//! Whether a run of the whole system kept the promises of the queue.
//!
//! While a cluster runs, everybody writes down what they saw: clients what they submitted and what they were told, workers
//! what they got and whether their acks were taken, replicas the events of every entry that they applied and the hash of
//! their state. [`check`] puts these together. Every reply and event carries the index of its entry in the log, so the order
//! is known and nothing has to be searched for: events are replayed once, in their order, on a model that is simpler than
//! the machine and shares no code with it.
//!
//! The promises, by the numbers that [`Finding::promise`] gives:
//!
//! 1. No submit that was acknowledged is lost.
//! 2. Nothing comes from nowhere, and bodies arrive as they were submitted.
//! 3. An assignment has one holder, is committed before it is delivered, and its ack is taken once, and only while it holds.
//! 4. A job is given out again only after a loss that was recorded.
//! 5. A token makes one job.
//! 6. Jobs come by priority, then by number; those of a group one after the other; none before its time.
//! 7. No cap is exceeded at any time.
//! 8. A job is dead of its tries exactly when they are used up.
//! 9. Replicas agree.
//! 10. At the end nothing is left to do, where that is expected.

mod replay;
mod witnesses;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::effects::Event;
use super::frame::Token;
use super::id::{ClientId, Fence, JobId, QueueName, SessionId};

/// Something that somebody saw.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Record {
    /// A client submitted a job, once for every time that it sent it.
    Submit {
        /// By which it is known when it comes again.
        token: Token,
        /// XXH3 of the body, 64 bits.
        body_hash: u64,
        /// What the client was told.
        answer: SubmitAnswer,
    },
    /// A worker got a job.
    Delivery {
        /// Which worker.
        session: SessionId,
        /// Which job.
        job: JobId,
        /// By which assignment.
        fence: Fence,
        /// XXH3 of the body that it got.
        body_hash: u64,
    },
    /// A worker said that a job is done.
    Ack {
        /// Which worker.
        session: SessionId,
        /// Which job.
        job: JobId,
        /// By which assignment.
        fence: Fence,
        /// What the worker was told: whether it was taken, if anything.
        is_taken: Option<bool>,
    },
    /// A replica applied an entry, and this happened. In the order of its effects.
    Event {
        /// Which replica.
        replica: u64,
        /// What.
        event: Event,
    },
    /// The hash of a replica's state after an entry.
    Hash {
        /// Which replica.
        replica: u64,
        /// After which entry.
        index: u64,
        /// The hash, or the digest.
        hash: u128,
    },
    /// A job that is there at the end, in whatever state. Only meant where [`Expectations::has_listing`] says that all are
    /// recorded.
    Left {
        /// Which.
        job: JobId,
    },
}

/// What a client was told about a submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum SubmitAnswer {
    /// There is a job, this one.
    Accepted {
        /// Its number.
        job: JobId,
    },
    /// It was not taken, or another one was taken before it by its dedupe key.
    Refused,
    /// Nothing, or nothing in time: it may have been taken.
    Unknown,
}

/// What should hold in a run, besides the promises that always do. Caps must not change while it lasts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Expectations {
    /// Most unfinished jobs of a client.
    pub unfinished_per_client_max: Option<u32>,
    /// Most jobs that a session holds.
    pub inflight_per_session_max: Option<u32>,
    /// Most jobs in flight, by queue.
    pub inflight_per_queue_max: BTreeMap<QueueName, u32>,
    /// Whether every job that is there at the end is recorded.
    pub has_listing: bool,
    /// Whether there should be nothing left to do at the end. Dead jobs may be left.
    pub is_drained: bool,
}

/// What came of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is wrong, the first [`FINDINGS_MAX`] of each promise.
    pub findings: Vec<Finding>,
    /// How many findings there were of each promise, from the first to the tenth.
    pub broken: [u64; 10],
    /// What was looked at. A check of nothing finds nothing.
    pub seen: Seen,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Seen {
    /// Submits that were acknowledged, each time.
    pub accepted: u64,
    /// Jobs.
    pub jobs: u64,
    /// Assignments.
    pub assignments: u64,
    /// Jobs that were done.
    pub acks: u64,
    /// Assignments that were lost: by time, by a worker that went, or given back.
    pub losses: u64,
    /// Jobs that died.
    pub dead: u64,
    /// Jobs that came to workers.
    pub deliveries: u64,
    /// Entries of the log after which more than one replica told its hash.
    pub compared: u64,
}

impl Report {
    /// Whether all promises were kept.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.broken.iter().all(|count| *count == 0)
    }

    pub(in crate::jobs) fn add(&mut self, finding: Finding) {
        let count = &mut self.broken[usize::from(finding.promise()) - 1];
        *count += 1;
        if *count <= FINDINGS_MAX {
            self.findings.push(finding);
        }
    }
}

/// Checks what was recorded. Records may come in any order, except that the events of one replica must be in its own.
#[must_use]
pub fn check(records: impl IntoIterator<Item = Record>, expectations: &Expectations) -> Report {
    let mut report = Report::default();
    let mut seen = witnesses::Witnesses::default();
    for record in records {
        seen.take(record);
    }
    let events = seen.committed(&mut report);
    let lives = replay::replay(&events, expectations, &mut report);
    seen.compare(&lives, expectations, &mut report);
    report
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// A client was told that its job was accepted; it never was.
    #[error("job {job} was acknowledged and is not in the log")]
    LostSubmit {
        /// Which.
        job: JobId,
    },
    /// A job did not end and is not there.
    #[error("job {job} did not end and is not there any more")]
    LostJob {
        /// Which.
        job: JobId,
    },
    /// A job that nobody submitted, or that had ended, is there.
    #[error("job {job} comes from nowhere")]
    Phantom {
        /// Which.
        job: JobId,
    },
    /// A body changed on its way.
    #[error("the body of job {job} is not the one that was submitted")]
    BodyDiffers {
        /// Which.
        job: JobId,
    },
    /// Two sessions got one assignment.
    #[error("assignment {fence} of job {job} has two holders, {first} and {second}")]
    TwoHolders {
        /// Which job.
        job: JobId,
        /// Which assignment.
        fence: Fence,
        /// One.
        first: SessionId,
        /// The other.
        second: SessionId,
    },
    /// A fence is not above the one before.
    #[error("fence {fence} of job {job} is not above the one before")]
    FenceNotNew {
        /// Which job.
        job: JobId,
        /// Which assignment.
        fence: Fence,
    },
    /// A worker got what was never given to it in the log.
    #[error("job {job} was delivered by an assignment {fence} that is not in the log")]
    DeliveredUncommitted {
        /// Which job.
        job: JobId,
        /// By which assignment.
        fence: Fence,
    },
    /// An ack was taken that did not hold the job, or was taken before.
    #[error("an ack of job {job} by assignment {fence} was taken, and did not hold the job")]
    WrongAck {
        /// Which job.
        job: JobId,
        /// By which assignment.
        fence: Fence,
    },
    /// Somebody held the job, and it was given to another.
    #[error("job {job} was given out as {fence} while {held} held")]
    DuplicateWithoutLoss {
        /// Which job.
        job: JobId,
        /// What held.
        held: Fence,
        /// What was given out.
        fence: Fence,
    },
    /// One token, two jobs.
    #[error("token {}/{} made the jobs {first} and {second}", token.gateway, token.sequence)]
    TokenTwice {
        /// Which token.
        token: Token,
        /// One.
        first: JobId,
        /// The other.
        second: JobId,
    },
    /// A better job was waiting.
    #[error("at {index}, job {job} was given out before job {better}")]
    OutOfOrder {
        /// At which entry of the log.
        index: u64,
        /// Which came.
        job: JobId,
        /// Which should have come.
        better: JobId,
    },
    /// Two jobs of one group at once.
    #[error("at {index}, job {job} was given out while job {holder} of its group was not done")]
    GroupOverlap {
        /// At which entry of the log.
        index: u64,
        /// Which came.
        job: JobId,
        /// Which was not done.
        holder: JobId,
    },
    /// Before its time.
    #[error("job {job} was ready at {time_ms} ms, before its time, {due_ms} ms")]
    TooEarly {
        /// Which.
        job: JobId,
        /// At which queue time.
        time_ms: u64,
        /// When it was due.
        due_ms: u64,
    },
    /// A client has more unfinished jobs than it may have.
    #[error("at {index}, client {client} has {count} unfinished jobs, at most {max} are allowed")]
    ClientOverCap {
        /// At which entry of the log.
        index: u64,
        /// Which.
        client: ClientId,
        /// How many it has.
        count: u32,
        /// How many it may have.
        max: u32,
    },
    /// A session holds more than it may.
    #[error("at {index}, session {session} holds {count} jobs, at most {max} are allowed")]
    SessionOverCap {
        /// At which entry of the log.
        index: u64,
        /// Which.
        session: SessionId,
        /// How many it holds.
        count: u32,
        /// How many it may hold.
        max: u32,
    },
    /// A queue has more jobs in flight than it may have.
    #[error("at {index}, queue {queue} has {count} jobs in flight, at most {max} are allowed")]
    QueueOverCap {
        /// At which entry of the log.
        index: u64,
        /// Which.
        queue: QueueName,
        /// How many it has.
        count: u32,
        /// How many it may have.
        max: u32,
    },
    /// Dead with tries left, or not dead without any.
    #[error("job {job} was tried {attempts} times of {max}, and is wrongly {}", if *is_dead { "dead" } else { "alive" })]
    WrongDeath {
        /// Which.
        job: JobId,
        /// How many tries counted.
        attempts: u32,
        /// How many it may have.
        max: u32,
        /// Whether it is dead.
        is_dead: bool,
    },
    /// The tries of a job were counted wrongly.
    #[error("try {told} of job {job} is its {counted}th")]
    WrongAttempt {
        /// Which.
        job: JobId,
        /// As the event says.
        told: u32,
        /// As the events before it say.
        counted: u32,
    },
    /// Two replicas have different states after one entry.
    #[error("after {index}, replicas {first} and {second} have different states")]
    HashesDiffer {
        /// After which entry of the log.
        index: u64,
        /// One.
        first: u64,
        /// The other.
        second: u64,
    },
    /// Two replicas did different things for one entry.
    #[error("at {index}, replicas {first} and {second} did different things")]
    EventsDiffer {
        /// At which entry of the log.
        index: u64,
        /// One.
        first: u64,
        /// The other.
        second: u64,
    },
    /// There is something left to do.
    #[error("job {job} was left to do")]
    NotDrained {
        /// Which.
        job: JobId,
    },
}

impl Finding {
    /// Which promise was not kept, from 1 to 10.
    #[must_use]
    pub const fn promise(&self) -> u8 {
        match self {
            Self::LostSubmit { .. } | Self::LostJob { .. } => 1,
            Self::Phantom { .. } | Self::BodyDiffers { .. } => 2,
            Self::TwoHolders { .. }
            | Self::FenceNotNew { .. }
            | Self::DeliveredUncommitted { .. }
            | Self::WrongAck { .. } => 3,
            Self::DuplicateWithoutLoss { .. } => 4,
            Self::TokenTwice { .. } => 5,
            Self::OutOfOrder { .. } | Self::GroupOverlap { .. } | Self::TooEarly { .. } => 6,
            Self::ClientOverCap { .. } | Self::SessionOverCap { .. } | Self::QueueOverCap { .. } => 7,
            Self::WrongDeath { .. } | Self::WrongAttempt { .. } => 8,
            Self::HashesDiffer { .. } | Self::EventsDiffer { .. } => 9,
            Self::NotDrained { .. } => 10,
        }
    }
}

/// How many findings of each promise a report tells.
pub const FINDINGS_MAX: u64 = 100;
