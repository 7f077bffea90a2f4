//! What a gateway needs of a queue, wherever the queue's leader is.

use std::future::Future;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use synod_core::jobs::{
    DeadCursor, Delivery, JobId, JobQueue, JobView, Op, QueueName, QueueStats, Refusal, Reply, SessionId,
    Totals,
};

/// A queue that can be used: through the leader of its group, in this process or not.
///
/// Calls wait through elections. A call that is sent again counts once.
pub trait QueueAccess: Clone + Send + Sync + 'static {
    /// Has something done.
    fn call(&self, op: Op) -> impl Future<Output = Result<Reply, CallError>> + Send;

    /// Takes one job of these queues for a session, as soon as there is one. Dropping the future takes the wish back: what
    /// would come later is given back.
    fn pull(
        &self,
        session: SessionId,
        queues: Vec<QueueName>,
    ) -> impl Future<Output = Result<Delivery, CallError>> + Send;

    /// Takes this very job for a session.
    fn reserve(
        &self,
        session: SessionId,
        job: JobId,
    ) -> impl Future<Output = Result<Delivery, CallError>> + Send;

    /// Asks something, of the leader as it is now.
    fn ask(&self, question: Question) -> impl Future<Output = Result<Answer, CallError>> + Send;
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// The queue as a whole.
    Overview,
    /// All queues.
    Queues,
    /// One queue.
    Queue(QueueName),
    /// One job and its life, and its body if that is wanted.
    Job {
        /// Which.
        job: JobId,
        /// Whether its body is wanted too.
        with_body: bool,
    },
    /// The first job of a queue in some state, with its body.
    Peek {
        /// Which queue.
        queue: QueueName,
        /// In which state.
        state: PeekState,
    },
    /// Dead jobs, longest dead first.
    Dead {
        /// Of which queue.
        queue: QueueName,
        /// Where to go on.
        after: Option<DeadCursor>,
        /// At most so many.
        count: u32,
    },
}

/// Where to look for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeekState {
    /// What the next pull would get.
    Ready,
    /// What is due first.
    Delayed,
    /// What has been dead for longest.
    Dead,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Question::Overview`].
    Overview(Box<Overview>),
    /// To [`Question::Queues`].
    Queues(Vec<QueueStats>),
    /// To [`Question::Queue`]; `None`: there is none.
    Queue(Option<Box<QueueStats>>),
    /// To [`Question::Job`] and [`Question::Peek`]; `None`: there is none.
    Job(Option<Box<JobAnswer>>),
    /// To [`Question::Dead`].
    Dead {
        /// Some of them.
        jobs: Vec<JobView>,
        /// Where to go on, if there are more.
        more: Option<DeadCursor>,
    },
}

/// The queue as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// The last entry of the log that was applied.
    pub index: u64,
    /// Queue time, in milliseconds.
    pub time_ms: u64,
    /// What happened since the beginning.
    pub totals: Totals,
    /// How many jobs there are.
    pub jobs: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Longest body that is taken.
    pub body_bytes_max: u32,
    /// How many queues there are.
    pub queues: u64,
    /// How many sessions are open.
    pub sessions: u64,
    /// Whether no queue takes new jobs.
    pub is_draining: bool,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobAnswer {
    /// The job.
    pub view: JobView,
    /// Queue time at which it was looked at, in milliseconds.
    pub time_ms: u64,
    /// Which node led when it was submitted, and at each event of its history, as far as that is still known.
    #[serde(default)]
    pub nodes: Vec<Option<String>>,
    /// Its body, if it was wanted and is there. It travels beside the rest.
    #[serde(skip)]
    pub body: Option<Bytes>,
}

/// A call did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// It was refused, and nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There was no leader for too long. Whether the call was carried out is not known.
    #[error("the queue had no leader for too long; whether the command was carried out is not known")]
    NoLeader,
    /// The cluster has no such group. Nothing was changed.
    #[error("the queue has no group {group}")]
    GroupUnknown {
        /// Its number.
        group: u16,
    },
    /// There are as many calls under way as there may be.
    #[error("too many calls are under way")]
    Busy,
    /// This end of the queue was closed.
    #[error("the queue was closed")]
    Closed,
    /// The other side says something that cannot be.
    #[error("the leader's answer makes no sense: {0}")]
    Nonsense(String),
}

/// Looks something up in the state.
pub(crate) fn look(queue: &JobQueue, question: Question) -> Answer {
    let job = |id, with_body: bool| {
        queue.job(id).map(|view| {
            let body = if with_body { queue.body(id) } else { None };
            let entries =
                [view.submitted.index].into_iter().chain(view.history.iter().map(|entry| entry.index));
            let nodes = entries.map(|index| queue.leader_at(index).map(ToString::to_string)).collect();
            Box::new(JobAnswer { view, time_ms: queue.time_ms(), nodes, body })
        })
    };
    match question {
        Question::Overview => Answer::Overview(Box::new(Overview {
            index: queue.index(),
            time_ms: queue.time_ms(),
            totals: queue.totals(),
            jobs: queue.job_count() as u64,
            bytes: queue.body_bytes(),
            body_bytes_max: queue.limits().body_bytes_max,
            queues: queue.queues().count() as u64,
            sessions: queue.sessions().count() as u64,
            is_draining: queue.is_draining(),
        })),
        Question::Queues => Answer::Queues(queue.queues().collect()),
        Question::Queue(name) => Answer::Queue(queue.queue(&name).map(Box::new)),
        Question::Job { job: id, with_body } => Answer::Job(job(id, with_body)),
        Question::Peek { queue: name, state } => {
            let found = match state {
                PeekState::Ready => queue.peek_ready(&name),
                PeekState::Delayed => queue.peek_delayed(&name),
                PeekState::Dead => queue.peek_dead(&name),
            };
            Answer::Job(found.and_then(|id| job(id, true)))
        }
        Question::Dead { queue: name, after, count } => {
            let count = usize::try_from(count).unwrap_or(usize::MAX).min(DEAD_PAGE_MAX);
            let (jobs, more) = queue.list_dead(&name, after, count);
            Answer::Dead { jobs, more }
        }
    }
}

/// Most dead jobs that are listed at once.
const DEAD_PAGE_MAX: usize = 1_000;
