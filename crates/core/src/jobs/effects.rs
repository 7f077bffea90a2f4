//! What comes out of applying a frame: replies, deliveries and the events of jobs' lives.
//!
//! All replicas compute the same effects; only the leader carries them out, after the frame is committed. So nobody holds a
//! job whose assignment could still be lost.

use alloc::vec::Vec;

use bytes::Bytes;

use super::frame::Token;
use super::id::{ClientId, Fence, JobId, QueueName, SessionId, UserKey};
use super::job::DeadReason;

/// What a frame had for effects, in order. Reuse one: [`clear`](Self::clear) keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// One for each command of the frame.
    pub replies: Vec<Result<Reply, Refusal>>,
    /// Jobs to hand to their workers.
    pub deliveries: Vec<Delivery>,
    /// Assignments that ended without a word of their worker, which should hear of it. The credit by which a job came is
    /// not given back: only the worker knows when it is free again, and says so with [`Op::Credit`](super::Op::Credit).
    pub revocations: Vec<Revocation>,
    /// What happened.
    pub events: Vec<Event>,
    /// Queues that have jobs for whoever pulls, and had a reason to say so in this frame.
    pub ready: Vec<QueueName>,
    is_ignored: bool,
}

impl Effects {
    /// For a leader, which carries them out.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// For a follower: nothing is collected.
    #[must_use]
    pub fn ignored() -> Self {
        Self { is_ignored: true, ..Self::default() }
    }

    /// Forgets what was collected.
    pub fn clear(&mut self) {
        self.replies.clear();
        self.deliveries.clear();
        self.revocations.clear();
        self.events.clear();
        self.ready.clear();
    }

    /// Whether anything is collected.
    pub(super) const fn is_wanted(&self) -> bool {
        !self.is_ignored
    }
}

/// A command was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// As asked.
    Done,
    /// There is a new job.
    Submitted {
        /// Its number.
        job: JobId,
    },
    /// The queue has taken this job already, by its dedupe key. There is no new one.
    Duplicate {
        /// The number of the first.
        job: JobId,
    },
    /// The session is open.
    Opened {
        /// Whether it was open already.
        is_resumed: bool,
    },
    /// The session holds these now; their bodies are among the deliveries. Empty: nothing was there.
    Pulled(Vec<Assignment>),
    /// The job waits for its next try.
    Requeued,
    /// The job is dead: buried, or tried as often as it may be.
    Dead,
    /// So many jobs were moved or extended.
    Counted {
        /// How many.
        count: u32,
    },
}

/// One job in the hands of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignment {
    /// Which job.
    pub job: JobId,
    /// Which assignment of it.
    pub fence: Fence,
}

/// A command was not done. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Refusal {
    /// The gateway is not known, or was silent for so long that it was forgotten: what it sends again could be done twice.
    #[error("the gateway is not known; it must open anew and take new numbers")]
    GatewayUnknown,
    /// The result of the command is not remembered any more.
    #[error("the command is too old for its first result to be remembered")]
    SequenceTooOld,
    /// There are as many gateways as there may be.
    #[error("there are as many gateways as there may be")]
    TooManyGateways,
    /// There are as many sessions as there may be.
    #[error("there are as many sessions as there may be")]
    TooManySessions,
    /// There are as many queues as there may be, or the command names more than it may.
    #[error("there are as many queues as there may be")]
    TooManyQueues,
    /// There are as many clients with a cap of their own as there may be.
    #[error("there are as many clients with a cap of their own as there may be")]
    TooManyClients,
    /// There are as many jobs, or bytes of them, as there may be.
    #[error("there are as many jobs as there may be")]
    Full,
    /// The queue has as many jobs, or bytes of them, as it may have.
    #[error("the queue is full")]
    QueueFull,
    /// There are as many dedupe keys as there may be.
    #[error("there are as many dedupe keys as there may be")]
    TooManyDedupeKeys,
    /// The body is longer than it may be.
    #[error("the body is too long")]
    BodyTooLong,
    /// The client has as many unfinished jobs as it may have.
    #[error("the client has as many unfinished jobs as it may have")]
    ClientOverCap,
    /// The queue takes no new jobs.
    #[error("the queue takes no new jobs")]
    Draining,
    /// The session is not open.
    #[error("the session is not open")]
    SessionUnknown,
    /// The session is open, with another secret.
    #[error("the session belongs to somebody else")]
    SessionTaken,
    /// The session holds as many jobs as it may, or would have more credits than that.
    #[error("the session holds as many jobs as it may")]
    WorkerOverCap,
    /// There is no such queue.
    #[error("there is no such queue")]
    QueueUnknown,
    /// There is no such job.
    #[error("there is no such job")]
    JobUnknown,
    /// The assignment has ended: the job may be in other hands.
    #[error("the lease has ended; the job may be in other hands")]
    LeaseLost,
    /// Somebody holds the job.
    #[error("somebody holds the job")]
    JobHeld,
    /// The job is neither dead nor delayed.
    #[error("the job is neither dead nor delayed")]
    NothingToKick,
    /// An earlier job of the group comes first.
    #[error("an earlier job of the group comes first")]
    GroupHeld,
    /// A number in the command is out of its range.
    #[error("a number in the command is out of its range")]
    OutOfRange,
}

impl Refusal {
    /// Its number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The one with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// All of them, in the order of their numbers in snapshots: new ones go to the end.
    pub(super) const ALL: [Self; 22] = [
        Self::GatewayUnknown,
        Self::SequenceTooOld,
        Self::TooManyGateways,
        Self::TooManySessions,
        Self::TooManyQueues,
        Self::TooManyClients,
        Self::Full,
        Self::QueueFull,
        Self::TooManyDedupeKeys,
        Self::BodyTooLong,
        Self::ClientOverCap,
        Self::Draining,
        Self::SessionUnknown,
        Self::SessionTaken,
        Self::WorkerOverCap,
        Self::QueueUnknown,
        Self::JobUnknown,
        Self::LeaseLost,
        Self::JobHeld,
        Self::NothingToKick,
        Self::GroupHeld,
        Self::OutOfRange,
    ];
}

/// A job for a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// To whom.
    pub session: SessionId,
    /// Which job.
    pub job: JobId,
    /// What the worker must show to say anything about it.
    pub fence: Fence,
    /// Which command of the frame asked for it; `None`: it comes by a credit.
    pub pulled_by: Option<u32>,
    /// Where it waited.
    pub queue: QueueName,
    /// Which try it is, from 1.
    pub attempt: u32,
    /// How long the worker may hold it, from now.
    pub ttr_ms: u64,
    /// What there is to do.
    pub body: Bytes,
}

/// An assignment has ended, and its worker did not say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Who held it.
    pub session: SessionId,
    /// Which job.
    pub job: JobId,
    /// By which assignment.
    pub fence: Fence,
}

/// Something happened to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Event {
    /// At which entry of the log.
    pub index: u64,
    /// At which queue time.
    pub time_ms: u64,
    /// At which time of day, as the leader saw it.
    pub wall_ms: u64,
    /// To which job. Zero where a submit was refused.
    pub job: JobId,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum EventKind {
    /// It was accepted.
    Enqueue(Enqueued),
    /// Its delay is over.
    Ready,
    /// It was given out.
    Assign {
        /// To whom.
        session: SessionId,
        /// By which assignment.
        fence: Fence,
        /// Which try it is, from 1.
        attempt: u32,
        /// Until which queue time.
        deadline_ms: u64,
        /// What the session asked for.
        asked: Asked,
    },
    /// It is done.
    Ack {
        /// By whom.
        session: SessionId,
        /// By which assignment.
        fence: Fence,
    },
    /// Its lease ended. It waits again.
    TimeoutRequeue {
        /// What holds for it now.
        lost: Lost,
    },
    /// Its worker is gone. It waits again.
    WorkerDownRequeue {
        /// What holds for it now.
        lost: Lost,
    },
    /// Its worker gave it back. It waits again.
    Requeue {
        /// What holds for it now.
        lost: Lost,
    },
    /// It is among the dead.
    Dlq {
        /// Who held it.
        session: SessionId,
        /// By which assignment.
        fence: Fence,
        /// Why.
        reason: DeadReason,
        /// How often it was tried.
        attempts: u32,
        /// Smaller goes first, should it be kicked.
        priority: u32,
        /// Whether it is kept.
        is_kept: bool,
    },
    /// Its lease is longer.
    Extended {
        /// By which assignment.
        fence: Fence,
        /// Until which queue time.
        deadline_ms: u64,
    },
    /// It is not wanted any more.
    Cancelled,
    /// Nobody took it in time.
    Expired,
    /// It was dead or delayed, and is ready.
    Kicked,
    /// A submit was refused.
    Rejected {
        /// For which queue.
        queue: QueueName,
        /// Why.
        refusal: Refusal,
    },
}

impl EventKind {
    /// Its name on the wire and in listings.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Enqueue(_) => "enqueue",
            Self::Ready => "ready",
            Self::Assign { .. } => "assign",
            Self::Ack { .. } => "ack",
            Self::TimeoutRequeue { .. } => "timeout_requeue",
            Self::WorkerDownRequeue { .. } => "worker_down_requeue",
            Self::Requeue { .. } => "requeue",
            Self::Dlq { .. } => "dlq",
            Self::Extended { .. } => "extended",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Kicked => "kicked",
            Self::Rejected { .. } => "rejected",
        }
    }
}

/// What a session asked for when it got a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Asked {
    /// Whatever comes.
    Credit,
    /// Whatever is there.
    Pull,
    /// This very job, before its turn if need be.
    ByNumber,
}

/// A job as it was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Enqueued {
    /// The command that brought it.
    pub token: Option<Token>,
    /// Where it waits.
    pub queue: QueueName,
    /// Whose it is.
    pub client: ClientId,
    /// Smaller goes first.
    pub priority: u32,
    /// Not before this queue time.
    pub due_ms: u64,
    /// Its FIFO group.
    pub group: Option<UserKey>,
    /// How often it is tried, 0 for ever.
    pub max_attempts: u32,
    /// XXH3 of its body, 64 bits.
    pub body_hash: u64,
}

/// How an assignment ended, and when the job can be given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Lost {
    /// Who held it.
    pub session: SessionId,
    /// By which assignment.
    pub fence: Fence,
    /// Not before this queue time.
    pub due_ms: u64,
    /// Smaller goes first.
    pub priority: u32,
    /// How many tries count.
    pub attempts: u32,
}
