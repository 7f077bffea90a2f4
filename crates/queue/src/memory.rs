//! A queue in this process alone: the same machine as in a cluster, without a log behind it.
//!
//! It forgets everything with the process. It is there for tests, and for trying what speaks to a queue without a cluster.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use synod_core::jobs::{
    Command, Delivery, Effects, Frame, JobId, JobLimits, JobQueue, Op, QueueName, Refusal, Reply, SessionId,
    SettingOutOfRange,
};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::access::{Answer, CallError, Question, QueueAccess, look};

/// A queue in the memory of this process. Its clones are the same queue.
///
/// Queue time is the clock of tokio, from the moment at which the queue was made.
#[derive(Clone, Debug)]
pub struct MemoryQueue {
    shared: Arc<Shared>,
    /// Ends with the last clone.
    _timer: Arc<AbortOnDrop>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something to pull.
    ready: Notify,
    /// Something may be due earlier than before.
    due: Notify,
}

#[derive(Debug)]
struct State {
    queue: JobQueue,
    begun: Instant,
    effects: Effects,
}

#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl MemoryQueue {
    /// An empty queue. It lives in the tokio runtime in which it is made.
    ///
    /// # Errors
    /// A limit is out of its range.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(limits: JobLimits) -> Result<Self, SettingOutOfRange> {
        let queue = JobQueue::new(0, limits)?;
        let state = Mutex::new(State { queue, begun: Instant::now(), effects: Effects::new() });
        let shared = Arc::new(Shared { state, ready: Notify::new(), due: Notify::new() });
        let timer = tokio::spawn(keep_time(shared.clone())).abort_handle();
        Ok(Self { shared, _timer: Arc::new(AbortOnDrop(timer)) })
    }
}

impl QueueAccess for MemoryQueue {
    async fn call(&self, op: Op) -> Result<Reply, CallError> {
        Ok(self.shared.apply(op).0?)
    }

    async fn pull(&self, session: SessionId, queues: Vec<QueueName>) -> Result<Delivery, CallError> {
        loop {
            let woken = self.shared.ready.notified();
            // A job is taken and returned within one poll: whoever drops this future drops none with it.
            let op = Op::Pull { session, queues: queues.clone(), count: 1, ttr_ms: None };
            let (reply, delivery) = self.shared.apply(op);
            reply?;
            if let Some(delivery) = delivery {
                return Ok(delivery);
            }
            woken.await;
        }
    }

    async fn reserve(&self, session: SessionId, job: JobId) -> Result<Delivery, CallError> {
        let (reply, delivery) = self.shared.apply(Op::Reserve { session, job });
        reply?;
        delivery.ok_or_else(|| CallError::Nonsense(format!("job {job} was reserved and not delivered")))
    }

    async fn ask(&self, question: Question) -> Result<Answer, CallError> {
        // What is due by now has happened for whoever asks now.
        self.shared.apply(Op::Tick).0?;
        Ok(look(&self.shared.state().queue, question))
    }
}

impl Shared {
    /// Does one thing. What became of it, and the job that it brought, if it was to bring one.
    fn apply(&self, op: Op) -> (Result<Reply, Refusal>, Option<Delivery>) {
        let mut state = self.state();
        let State { queue, begun, effects } = &mut *state;
        let now_ms = millis(begun.elapsed());
        let frame = Frame {
            dt_ms: u32::try_from(now_ms.saturating_sub(queue.time_ms())).unwrap_or(u32::MAX),
            wall_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis),
            commands: vec![Command::from(op)],
        };
        effects.clear();
        let due_before = queue.next_due_ms();
        let applied = queue.apply(queue.index() + 1, &frame, effects);
        assert!(applied.is_ok(), "the next number is not stale");
        let reply = effects.replies.pop().unwrap_or(Ok(Reply::Done));
        let delivery = effects.deliveries.pop();
        let is_ready = !effects.ready.is_empty();
        let is_due_otherwise = queue.next_due_ms() != due_before;
        drop(state);
        if is_ready {
            self.ready.notify_waiters();
        }
        if is_due_otherwise {
            self.due.notify_one();
        }
        (reply, delivery)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets happen what happens by itself, until the last handle to the queue is dropped, which ends this.
async fn keep_time(shared: Arc<Shared>) {
    loop {
        let due = {
            let state = shared.state();
            state.queue.next_due_ms().map(|due_ms| state.begun + Duration::from_millis(due_ms))
        };
        match due {
            None => shared.due.notified().await,
            Some(due) => tokio::select! {
                () = sleep_until(due) => drop(shared.apply(Op::Tick)),
                () = shared.due.notified() => {}
            },
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use synod_core::jobs::Submit;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pull_that_was_given_up_takes_no_job() {
        let queue = MemoryQueue::new(JobLimits::default()).unwrap();
        let (session, tube) = (SessionId::new(1), QueueName::new("tube").unwrap());
        queue.call(Op::SessionOpen { session, secret: 0 }).await.unwrap();
        let mut given_up = Box::pin(queue.pull(session, vec![tube.clone()]));
        assert_eq!((&mut given_up).now_or_never(), None);
        let mut waiting = Box::pin(queue.pull(session, vec![tube.clone()]));
        assert_eq!((&mut waiting).now_or_never(), None);
        // The first is woken, and dropped before it looks.
        let submit = Submit { delay_ms: 5, ..Submit::new(tube.clone(), "body") };
        queue.call(Op::Submit(submit)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        drop(given_up);
        let delivery = waiting.await.unwrap();
        assert_eq!((delivery.attempt, &delivery.body[..]), (1, &b"body"[..]));
    }
}
