//! What goes into the log: frames of commands.
//!
//! A frame is one entry of the log. It says how much time has passed for its leader since the frame before, and what is to
//! be done, in order. Nothing in it says what follows from that: assignments, time-outs and dead letters are derived by
//! every replica that applies the frame.

use alloc::boxed::Box;
use alloc::vec::Vec;

use bytes::Bytes;

use super::id::{ClientId, Fence, GatewayId, JobId, QueueName, SessionId, UserKey};
use super::settings::{Backoff, JobLimits, QueueSettings, Quota};
use crate::id::NodeId;

/// One entry of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Milliseconds of the leader's monotonic clock since its frame before; 0 in the first frame of a leader. Queue time is
    /// the sum, so it cannot jump, and stands still during an election.
    pub dt_ms: u32,
    /// The leader's time of day, in milliseconds since 1970. Only ever shown.
    pub wall_ms: u64,
    /// What to do, in order.
    pub commands: Vec<Command>,
}

/// Something to do, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// By which it is known when it comes again. Without one it is done as often as it comes.
    pub token: Option<Token>,
    /// What.
    pub op: Op,
}

impl From<Op> for Command {
    fn from(op: Op) -> Self {
        Self { token: None, op }
    }
}

/// The number that a gateway gave to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Token {
    /// Who numbers.
    pub gateway: GatewayId,
    /// The number, rising from 1. Numbers may arrive out of order within the window of the limits.
    pub sequence: u64,
}

/// What can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Remembers a gateway, so that its tokens count. Again does nothing.
    GatewayOpen {
        /// Which.
        gateway: GatewayId,
    },
    /// Forgets a gateway, which will send nothing more. Again does nothing.
    GatewayClose {
        /// Which.
        gateway: GatewayId,
    },
    /// A new job.
    Submit(Submit),
    /// A worker is there. A session that is open with the same secret goes on with what it holds.
    SessionOpen {
        /// Which.
        session: SessionId,
        /// What tells its owner from others who know its number.
        secret: u64,
    },
    /// A worker is gone: what it holds is for others.
    SessionClose {
        /// Which.
        session: SessionId,
    },
    /// A worker takes so many jobs more, pushed to it as they come.
    Credit {
        /// Which.
        session: SessionId,
        /// Of these queues from now on; empty: as before.
        queues: Vec<QueueName>,
        /// How many more.
        credits: u32,
        /// Whether these replace what is left of earlier ones, instead of adding to it. With none, nothing more comes.
        replaces: bool,
    },
    /// A worker takes what is there, now, and no more.
    Pull {
        /// Which.
        session: SessionId,
        /// Of these queues.
        queues: Vec<QueueName>,
        /// At most so many.
        count: u32,
        /// For so long, instead of what each job says.
        ttr_ms: Option<u64>,
    },
    /// A worker takes one job, wherever it waits.
    Reserve {
        /// Which worker.
        session: SessionId,
        /// Which job.
        job: JobId,
    },
    /// The job is done. Gives back the credit by which it came.
    Ack {
        /// Which.
        job: JobId,
        /// By which assignment.
        fence: Fence,
    },
    /// The job was not done. Gives back the credit by which it came.
    Nack {
        /// Which.
        job: JobId,
        /// By which assignment.
        fence: Fence,
        /// When to try again; `None`: as the job's back-off says.
        delay_ms: Option<u64>,
        /// With this priority from now on.
        priority: Option<u32>,
        /// Whether the try does not count.
        returns_attempt: bool,
    },
    /// The job is put aside, among the dead. Gives back the credit by which it came.
    Bury {
        /// Which.
        job: JobId,
        /// By which assignment.
        fence: Fence,
        /// With this priority from now on.
        priority: Option<u32>,
    },
    /// The worker needs longer.
    Extend {
        /// For which job.
        job: JobId,
        /// By which assignment.
        fence: Fence,
        /// So long from now, instead of what the job says.
        ttr_ms: Option<u64>,
    },
    /// The worker needs longer for all that it holds.
    ExtendAll {
        /// Which.
        session: SessionId,
    },
    /// The job is not wanted any more.
    Cancel {
        /// Which.
        job: JobId,
        /// In which states.
        guard: CancelGuard,
    },
    /// Dead jobs of a queue are ready again, longest dead first; where none is dead, delayed ones, soonest due first.
    Kick {
        /// Which queue.
        queue: QueueName,
        /// At most so many.
        count: u32,
    },
    /// A dead or delayed job is ready again.
    KickJob {
        /// Which.
        job: JobId,
    },
    /// A queue gives out nothing for a while.
    Pause {
        /// Which.
        queue: QueueName,
        /// How long; `None`: until it is resumed.
        millis: Option<u64>,
    },
    /// A queue takes no new jobs, until it is resumed.
    Drain {
        /// Which; `None`: all.
        queue: Option<QueueName>,
    },
    /// Ends pause and drain.
    Resume {
        /// Of which queue; `None`: ends the drain of all.
        queue: Option<QueueName>,
    },
    /// How a queue treats its jobs from now on.
    QueueSet {
        /// Which.
        queue: QueueName,
        /// How; `None`: as a queue that was never set, which is forgotten when nothing uses it.
        settings: Option<Box<QueueSettings>>,
    },
    /// How many jobs a client may have unfinished or a worker may hold.
    QuotaSet {
        /// Whose.
        quota: Quota,
        /// `None`: no cap of its own.
        max: Option<u32>,
    },
    /// Other bounds of the whole state.
    LimitsSet(Box<JobLimits>),
    /// Nothing but the time that has passed.
    Tick,
    /// This node leads from here on. Only ever shown.
    Lead {
        /// Its name.
        node: NodeId,
    },
}

/// A new job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    /// Whose cap it counts against.
    pub client: ClientId,
    /// Where it waits.
    pub queue: QueueName,
    /// Smaller goes first.
    pub priority: u32,
    /// Not before so long from now.
    pub delay_ms: u64,
    /// How long a worker may hold it; `None`: as the queue says.
    pub ttr_ms: Option<u64>,
    /// How often it is tried, 0 for ever; `None`: as the queue says.
    pub max_attempts: Option<u32>,
    /// How long it waits after a try that failed; `None`: as the queue says.
    pub backoff: Option<Backoff>,
    /// Jobs of one group are done one after the other, in their order.
    pub group: Option<UserKey>,
    /// It is dropped when nobody took it for so long. What is dead stays.
    pub ttl_ms: Option<u64>,
    /// It is not taken when the queue took another one with the same key not long ago.
    pub dedupe: Option<Dedupe>,
    /// What there is to do.
    pub body: Bytes,
}

impl Submit {
    /// A job with this body for this queue, and nothing special about it.
    #[must_use]
    pub fn new(queue: QueueName, body: impl Into<Bytes>) -> Self {
        Self {
            client: ClientId::default(),
            queue,
            priority: 0,
            delay_ms: 0,
            ttr_ms: None,
            max_attempts: None,
            backoff: None,
            group: None,
            ttl_ms: None,
            dedupe: None,
            body: body.into(),
        }
    }
}

/// By what a queue knows a job that it has taken already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dedupe {
    /// The same for the same job.
    pub key: UserKey,
    /// For so long from now.
    pub window_ms: u64,
}

/// In which states a job is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelGuard {
    /// While nobody holds it.
    Idle,
    /// While this assignment holds.
    Held(Fence),
    /// In any; whoever holds it loses it.
    Any,
}
