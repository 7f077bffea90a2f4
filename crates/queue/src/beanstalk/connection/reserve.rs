//! Waiting for a job.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use synod_core::jobs::{Delivery, Fence, JobId, JobState, Op, QueueName, Refusal, Reply as Done, SessionId};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, Ready};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Connection, Gone};
use crate::access::{Answer, CallError, JobAnswer, Question, QueueAccess};
use crate::beanstalk::issue;
use crate::beanstalk::node::Node;
use crate::beanstalk::reply::Reply;

/// A job that was reserved.
struct Reserved {
    job: JobId,
    fence: Fence,
    /// How much of its time is left.
    left: Duration,
    ttr: Duration,
    body: Bytes,
}

impl From<Delivery> for Reserved {
    fn from(delivery: Delivery) -> Self {
        let ttr = Duration::from_millis(delivery.ttr_ms);
        Self { job: delivery.job, fence: delivery.fence, left: ttr, ttr, body: delivery.body }
    }
}

impl<Q: QueueAccess> Connection<Q> {
    /// Waits for a job: so many seconds, or for ever.
    pub(super) async fn reserve(&mut self, seconds: Option<u32>) -> Result<Reply, Gone> {
        self.become_worker();
        let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
        let mut result = self.reserve_until(until).await?;
        if let Err(CallError::Refused(Refusal::SessionUnknown)) = result {
            // The queue took this connection for dead, and has given its jobs to others.
            self.forget_session();
            result = self.reserve_until(until).await?;
        }
        Ok(result.unwrap_or_else(Reply::from))
    }

    /// Reserves this very job.
    pub(super) async fn reserve_job(&mut self, job: JobId) -> Reply {
        self.become_worker();
        let session = match self.session().await {
            Ok(session) => session,
            Err(error) => return error.into(),
        };
        match self.access.reserve(session, job).await {
            Ok(delivery) => self.took(delivery.into()),
            Err(error) => {
                if let CallError::Refused(Refusal::SessionUnknown) = error {
                    self.forget_session();
                }
                error.into()
            }
        }
    }

    /// The session of this connection, which is opened when it is first needed.
    pub(super) async fn session(&mut self) -> Result<SessionId, CallError> {
        if let Some(session) = self.session {
            return Ok(session);
        }
        let node = u64::from(self.node.config.node) << (u64::BITS - NODE_BITS);
        let session = SessionId::new(fastrand::u64(..) >> NODE_BITS | node);
        let op = Op::SessionOpen { session, secret: fastrand::u64(..) };
        // From here on it has to be closed, whatever is heard of its opening.
        self.session = Some(session);
        let opened = issue::call(&self.access, &self.node, op).await;
        if let Err(CallError::Refused(_)) = opened {
            self.session = None;
        }
        opened.map(|_| session)
    }

    fn forget_session(&mut self) {
        self.session = None;
        self.held.clear();
    }

    async fn reserve_until(&mut self, until: Option<Instant>) -> Result<Result<Reply, CallError>, Gone> {
        let session = match self.session().await {
            Ok(session) => session,
            Err(error) => return Ok(Err(error)),
        };
        let now = Instant::now();
        let soon_at = self.held.soon_at(now);
        let is_soon = soon_at.is_some_and(|soon_at| soon_at <= now);
        if is_soon || until.is_some_and(|until| until <= now) {
            let nothing = if is_soon { Reply::DEADLINE_SOON } else { Reply::TIMED_OUT };
            let taken = self.take_now(session).await;
            return Ok(taken.map(|taken| taken.map_or(nothing, |reserved| self.took(reserved))));
        }
        let _waiting = Waiting::new(self.node.clone(), self.watched.clone());
        let access = self.access.clone();
        let mut pull = Box::pin(access.pull(session, self.watched.clone()));
        loop {
            let may_read = self.may_read();
            tokio::select! {
                biased;
                delivery = &mut pull => return Ok(delivery.map(|delivery| self.took(delivery.into()))),
                () = sleep_until(soon_at.unwrap_or(now)), if soon_at.is_some() => {
                    return Ok(Ok(Reply::DEADLINE_SOON));
                }
                () = sleep_until(until.unwrap_or(now)), if until.is_some() => return Ok(Ok(Reply::TIMED_OUT)),
                written = self.writer.write_buf(&mut self.output), if !self.output.is_empty() => {
                    if !matches!(written, Ok(1..)) {
                        return Err(Gone);
                    }
                }
                read = self.reader.read_buf(&mut self.input), if may_read => {
                    // Whoever says no more cannot delete what it would get.
                    if !self.heard(&read) || self.is_ended {
                        return Err(Gone);
                    }
                }
                // One that has sent more than is read of it could go unheard.
                () = sleep(CLOSED_CHECK), if !may_read => {
                    if self.is_ended || self.is_closed() {
                        return Err(Gone);
                    }
                }
            }
        }
    }

    fn become_worker(&mut self) {
        if !self.is_worker {
            self.is_worker = true;
            self.node.workers.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_closed(&self) -> bool {
        let ready = self.reader.ready(Interest::READABLE).now_or_never();
        ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed))
    }

    /// Takes what is there, without waiting.
    async fn take_now(&mut self, session: SessionId) -> Result<Option<Reserved>, CallError> {
        let op = Op::Pull { session, queues: self.watched.clone(), count: 1, ttr_ms: None };
        let Done::Pulled(taken) = issue::call(&self.access, &self.node, op).await? else {
            return Err(CallError::Nonsense("a pull was answered with something else".to_owned()));
        };
        let Some(taken) = taken.first() else {
            return Ok(None);
        };
        let (job, fence) = (taken.job, taken.fence);
        let error = match self.access.ask(Question::Job { job, with_body: true }).await {
            Ok(Answer::Job(answer)) => return Ok(answer.and_then(|answer| held_by(*answer, fence))),
            Ok(_) => CallError::Nonsense("a job was asked for, and something else was told".to_owned()),
            Err(error) => error,
        };
        // It cannot be handed over, so it goes back, as if it had not been taken.
        let op = Op::Nack { job, fence, delay_ms: Some(0), priority: None, returns_attempt: true };
        issue::call(&self.access, &self.node, op).await?;
        Err(error)
    }

    fn took(&mut self, reserved: Reserved) -> Reply {
        let Reserved { job, fence, left, ttr, body } = reserved;
        self.held.insert(job, fence, left, ttr);
        Reply::Reserved { job, body }
    }
}

/// A job, if this assignment still holds it.
fn held_by(answer: JobAnswer, fence: Fence) -> Option<Reserved> {
    let JobAnswer { view, time_ms, body, .. } = answer;
    match view.state {
        JobState::Reserved { deadline_ms, .. } if view.fence == fence => Some(Reserved {
            job: view.id,
            fence,
            left: Duration::from_millis(deadline_ms.saturating_sub(time_ms)),
            ttr: Duration::from_millis(view.ttr_ms),
            body: body?,
        }),
        _ => None,
    }
}

/// A connection waits for as long as this is there.
struct Waiting {
    node: Arc<Node>,
    tubes: Vec<QueueName>,
}

impl Waiting {
    fn new(node: Arc<Node>, tubes: Vec<QueueName>) -> Self {
        node.waiting.fetch_add(1, Ordering::Relaxed);
        for tube in &tubes {
            node.tubes.change(tube, |tube| tube.waiting += 1);
        }
        Self { node, tubes }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.node.waiting.fetch_sub(1, Ordering::Relaxed);
        for tube in &self.tubes {
            self.node.tubes.change(tube, |tube| tube.waiting -= 1);
        }
    }
}

/// The bits of a session's number that say which node it is of.
const NODE_BITS: u32 = 16;
/// How often a waiting client that is not read from is looked at.
const CLOSED_CHECK: Duration = Duration::from_secs(1);
