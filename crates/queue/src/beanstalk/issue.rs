//! Commands about single jobs on their way to the queue: several of one connection may be under way at once.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use synod_core::jobs::{CancelGuard, Fence, JobId, Op, Refusal, Reply as Done, Submit};
use tokio::time::{Instant, sleep};

use super::node::Node;
use super::reply::Reply;
use crate::access::{CallError, QueueAccess};

/// A command that is under way.
pub(crate) type UnderWay = Pin<Box<dyn Future<Output = Issued> + Send>>;

/// What became of a command.
#[derive(Debug)]
pub(crate) struct Issued {
    pub(crate) reply: Reply,
    /// How long its body was.
    pub(crate) bytes: usize,
    /// Which job it was about, and what the connection has to do with that job now.
    pub(crate) about: Option<(JobId, Hold)>,
}

/// What a connection has to do with a job after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// As before.
    Same,
    /// It holds the job, and its time has started anew.
    Anew,
    /// It does not hold the job.
    Ended,
}

impl Issued {
    /// What needed nothing of the queue.
    pub(crate) const fn at_once(reply: Reply) -> Self {
        Self { reply, bytes: 0, about: None }
    }
}

pub(crate) async fn put<Q: QueueAccess>(access: Q, node: Arc<Node>, submit: Submit) -> Issued {
    let bytes = submit.body.len();
    let reply = match call(&access, &node, Op::Submit(submit)).await {
        Ok(Done::Submitted { job } | Done::Duplicate { job }) => Reply::Inserted(job),
        Ok(_) => Reply::INTERNAL_ERROR,
        Err(error) => error.into(),
    };
    Issued { reply, bytes, about: None }
}

/// Deletes a job, which this connection holds by `fence`, or held, or does not.
pub(crate) async fn delete<Q: QueueAccess>(
    access: Q,
    node: Arc<Node>,
    job: JobId,
    fence: Option<Fence>,
) -> Issued {
    if let Some(fence) = fence {
        let result = call(&access, &node, Op::Cancel { job, guard: CancelGuard::Held(fence) }).await;
        if !matches!(result, Err(CallError::Refused(Refusal::LeaseLost | Refusal::JobUnknown))) {
            return about(job, Hold::Ended, result.map(|_| Reply::DELETED));
        }
    }
    // A job whose lease has ended may wait for anybody, and anybody may delete it.
    let result = call(&access, &node, Op::Cancel { job, guard: CancelGuard::Idle }).await;
    about(job, Hold::Ended, result.map(|_| Reply::DELETED))
}

/// Says something about a job that this connection holds, if it does.
pub(crate) async fn speak<Q: QueueAccess>(access: Q, node: Arc<Node>, op: Option<Op>, job: JobId) -> Issued {
    let Some(op) = op else {
        return about(job, Hold::Same, Ok(Reply::NOT_FOUND));
    };
    let (hold, word) = match &op {
        Op::Nack { .. } => (Hold::Ended, "RELEASED"),
        Op::Bury { .. } => (Hold::Ended, "BURIED"),
        _ => (Hold::Anew, "TOUCHED"),
    };
    let result = call(&access, &node, op).await.map(|done| match done {
        // It was tried as often as it may be.
        Done::Dead => Reply::Word("BURIED"),
        _ => Reply::Word(word),
    });
    about(job, hold, result)
}

pub(crate) async fn kick_job<Q: QueueAccess>(access: Q, node: Arc<Node>, job: JobId) -> Issued {
    let result = call(&access, &node, Op::KickJob { job }).await;
    about(job, Hold::Same, result.map(|_| Reply::Word("KICKED")))
}

/// What became of a command about a job. One of which nobody knows whether it was done leaves the job as it was here.
fn about(job: JobId, hold: Hold, result: Result<Reply, CallError>) -> Issued {
    let hold = match &result {
        Ok(_) => hold,
        Err(CallError::Refused(Refusal::LeaseLost | Refusal::JobUnknown)) => Hold::Ended,
        Err(_) => Hold::Same,
    };
    Issued { reply: result.unwrap_or_else(Reply::from), bytes: 0, about: Some((job, hold)) }
}

/// Has something done. Where there is too much under way already, the client waits for a while before it is refused.
pub(crate) async fn call(access: &impl QueueAccess, node: &Node, op: Op) -> Result<Done, CallError> {
    let until = Instant::now() + node.config.over_cap_wait;
    let mut pause = PAUSE_MIN;
    loop {
        match access.call(op.clone()).await {
            Err(CallError::Busy | CallError::Refused(Refusal::ClientOverCap)) if Instant::now() < until => {
                sleep(pause).await;
                pause = (2 * pause).min(PAUSE_MAX);
            }
            result => return result,
        }
    }
}

/// How long a command that cannot be taken now waits before it is tried again, at first and at last.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
