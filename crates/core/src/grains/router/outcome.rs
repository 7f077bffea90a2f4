//! What the calling side asks for, answers and tells. Every line names its call.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use super::config::{RetryPolicy, RouterConfigError};
use crate::grains::{ActorPid, ClusterIdentity};
use crate::id::Authority;
use crate::time::TimerInstant;

/// Numbers the calls of one router. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CorrelationId(pub(super) u64);

impl CorrelationId {
    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A call. What is said in it is the driver's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRequest {
    /// Whom to call.
    pub grain: ClusterIdentity,
    /// When the caller stops waiting, whatever happens in between.
    pub deadline: TimerInstant,
    /// The lowest version of the call schema in which the request can be said.
    pub schema_min: u32,
    /// What follows an attempt that failed; `None` for the router's own policy.
    pub retry: Option<RetryPolicy>,
    /// Where the grain was found last. A call whose turn it is goes there without looking; one that has to wait, and every
    /// further attempt, looks when its turn has come.
    pub known: Option<ActorPid>,
    /// Whether doing it twice does harm. Then it is not tried again once the grain may have handled it.
    pub once: bool,
}

/// What a grain answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What was asked for.
    Success,
    /// That it cannot be had.
    GrainError,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttemptFailure {
    /// No member hosts the kind.
    #[error("no member hosts the grain")]
    NoHost,
    /// The host did not start the grain.
    #[error("the host did not start the grain: {0}")]
    ActivationRefused(String),
    /// The host cannot be reached.
    #[error("{0} cannot be reached")]
    Unreachable(Authority),
    /// The host is kept out.
    #[error("{0} is quarantined")]
    Quarantined(Authority),
    /// The activation was no longer there.
    #[error("the activation was no longer there")]
    DeadLetter,
    /// There was no answer in the time of one attempt.
    #[error("there was no answer in the time of an attempt")]
    NoAnswer,
    /// The request cannot be written, or the answer cannot be read.
    #[error("request or answer cannot be coded: {0}")]
    Uncodable(String),
    /// The host and this node share no version of the call schema.
    #[error("{0} and this node share no version of the call schema")]
    NoCommonSchema(Authority),
    /// The request cannot be said in the version that the host and this node share.
    #[error("the request needs schema version {needed}, {peer} and this node share {shared}")]
    SchemaTooOld {
        /// The host.
        peer: Authority,
        /// The lowest version in which it can be said.
        needed: u32,
        /// The version that they share.
        shared: u32,
    },
    /// The answer is said in another version than was agreed.
    #[error("the answer has schema version {answered}, agreed is {agreed}")]
    AnswerSchema {
        /// The version of the answer.
        answered: u32,
        /// The version of the request.
        agreed: u32,
    },
}

impl AttemptFailure {
    /// Whether another attempt may go better: the grain may be elsewhere by then.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        match self {
            Self::NoHost
            | Self::ActivationRefused(_)
            | Self::Unreachable(_)
            | Self::Quarantined(_)
            | Self::DeadLetter
            | Self::NoAnswer => true,
            Self::Uncodable(_)
            | Self::NoCommonSchema(_)
            | Self::SchemaTooOld { .. }
            | Self::AnswerSchema { .. } => false,
        }
    }
}

/// Why a call was not accepted. It never waited, and nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallRejection {
    /// Too many calls to this grain wait already.
    #[error("{depth} calls already wait for this grain")]
    QueueFull {
        /// Most of them.
        depth: usize,
    },
    /// There are too many calls.
    #[error("{max} calls are under way already")]
    TooManyCalls {
        /// Most of them.
        max: usize,
    },
    /// Its time was over before it began.
    #[error("the deadline had passed before the call")]
    DeadlinePassed,
    /// Its retry policy is out of range.
    #[error("{0}")]
    Retry(RouterConfigError),
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallEnd {
    /// It was not accepted.
    Rejected(CallRejection),
    /// It was answered.
    Completed {
        /// What was answered.
        answer: Answer,
        /// How long it took, waiting included.
        latency: Duration,
    },
    /// It failed for good.
    Failed(AttemptFailure),
    /// A newer call needed its place in the queue.
    DroppedOldest,
    /// Its time was over, or the last attempt got no answer.
    TimedOut {
        /// How many attempts were made; 0 if it was still waiting for its turn.
        attempts: u32,
    },
    /// Its caller lost interest.
    Cancelled,
}

/// A call that is over. Its caller must be told, and so are observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedCall {
    /// The call.
    pub correlation: CorrelationId,
    /// Who was called.
    pub grain: ClusterIdentity,
    /// How it ended.
    pub end: CallEnd,
}

/// Something that observers are told, beside the end of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouterEvent {
    /// A peer and this node agreed on a version of the call schema.
    SchemaAgreed {
        /// The peer.
        peer: Authority,
        /// The version.
        version: u32,
    },
    /// A peer and this node share no version of the call schema: calls to it fail.
    SchemaRefused {
        /// The peer.
        peer: Authority,
        /// What it speaks.
        offered: Vec<u32>,
    },
    /// What a peer says about its schema was ignored: it names too many versions, or too many peers are known.
    SchemaIgnored {
        /// The peer.
        peer: Authority,
    },
    /// An attempt failed, and another one will be made.
    Retrying {
        /// The call.
        correlation: CorrelationId,
        /// Who is called.
        grain: ClusterIdentity,
        /// How many attempts have failed.
        attempts: u32,
        /// Why the last one did.
        failure: AttemptFailure,
        /// When the next one begins.
        at: TimerInstant,
    },
    /// A call took longer than it should.
    Slow {
        /// The call.
        correlation: CorrelationId,
        /// Who was called.
        grain: ClusterIdentity,
        /// How long it took.
        latency: Duration,
    },
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterCommand {
    /// Forget where the grain was found: it does not answer there.
    Evict {
        /// The call.
        correlation: CorrelationId,
        /// The grain.
        grain: ClusterIdentity,
        /// The activation that did not answer.
        pid: ActorPid,
    },
    /// Find the grain. Answered by `handle_resolved` or `handle_failure`.
    Resolve {
        /// The call.
        correlation: CorrelationId,
        /// The grain.
        grain: ClusterIdentity,
    },
    /// Send the request. Answered by `handle_response` or `handle_failure`.
    Send {
        /// The call.
        correlation: CorrelationId,
        /// To which activation.
        pid: ActorPid,
        /// In which version of the call schema.
        schema: u32,
        /// When the caller stops waiting, on this node's clock.
        deadline: TimerInstant,
        /// How long that is from now: what travels with the request, since clocks differ.
        remaining: Duration,
    },
}

/// What a call of the router asks the driver to do, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterOutcome {
    /// Calls that are over.
    pub ended: Vec<EndedCall>,
    /// Events for observers.
    pub events: Vec<RouterEvent>,
    /// What to do, in order.
    pub commands: Vec<RouterCommand>,
    /// When to poll next, if anything waits for a time.
    pub wake_at: Option<TimerInstant>,
}

/// How calls have fared. `accepted` is the sum of those that ended in any way but rejection and of those under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Calls that were taken on.
    pub accepted: u64,
    /// Calls that were not.
    pub rejected: u64,
    /// Calls that were answered, errors of grains included.
    pub completed: u64,
    /// Of those, calls that were answered with an error.
    pub grain_errors: u64,
    /// Calls that failed for good.
    pub failed: u64,
    /// Calls that made room for newer ones.
    pub dropped: u64,
    /// Calls whose time was over.
    pub timed_out: u64,
    /// Calls whose caller lost interest.
    pub cancelled: u64,
    /// Attempts beyond the first of each call.
    pub retries: u64,
    /// Calls that took longer than they should.
    pub slow: u64,
    /// Answers and failures for calls that were over.
    pub late: u64,
}

impl CallCounts {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            accepted: self.accepted + other.accepted,
            rejected: self.rejected + other.rejected,
            completed: self.completed + other.completed,
            grain_errors: self.grain_errors + other.grain_errors,
            failed: self.failed + other.failed,
            dropped: self.dropped + other.dropped,
            timed_out: self.timed_out + other.timed_out,
            cancelled: self.cancelled + other.cancelled,
            retries: self.retries + other.retries,
            slow: self.slow + other.slow,
            late: self.late + other.late,
        }
    }
}
