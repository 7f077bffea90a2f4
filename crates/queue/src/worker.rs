//! A worker: takes jobs of some queues, as many at a time as it can do, and tells what became of each.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use synod_core::jobs::{Assignment, Delivery, Fence, JobId, NameError, Op, QueueName, SessionId};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

use crate::access::{CallError, QueueAccess};
use crate::client::{Client, ClientError};
use crate::link::{Link, SessionEvent};

/// A worker that has not begun yet.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use synod_queue::{Client, Job, Worker};
///
/// let client = Client::connect(["127.0.0.1:7371", "127.0.0.1:7381", "127.0.0.1:7391"]);
/// let worker = Worker::new(&client).queue("emails")?.concurrency(16);
/// let running = worker.start(|job: Job| async move {
///     println!("{} for the {}. time: {:?}", job.id, job.attempt, job.body);
///     Ok::<(), std::io::Error>(())
/// }).await?;
/// running.stop(std::time::Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Worker {
    link: Link,
    queues: Vec<QueueName>,
    concurrency: u32,
    keeps_leases: bool,
}

/// A job to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Which.
    pub id: JobId,
    /// Which assignment of it. It only grows: whatever the job writes elsewhere can be guarded with it.
    pub fence: Fence,
    /// Where it waited.
    pub queue: QueueName,
    /// Which try it is, from 1.
    pub attempt: u32,
    /// How long it may take, unless the worker keeps its leases.
    pub time_to_run: Duration,
    /// What there is to do.
    pub body: Bytes,
}

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Done,
    /// It is to be tried again: after so long, or as its back-off says.
    Retry(Option<Duration>),
    /// It is put aside.
    Bury,
}

impl From<()> for Verdict {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl<E> From<Result<(), E>> for Verdict {
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(_) => Self::Retry(None),
        }
    }
}

impl Worker {
    /// A worker that does one job at a time, of no queue yet.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self { link: client.link().clone(), queues: Vec::new(), concurrency: 1, keeps_leases: true }
    }

    /// Takes jobs of this queue too.
    ///
    /// # Errors
    /// The name is not one of a queue.
    pub fn queue(mut self, name: &str) -> Result<Self, NameError> {
        self.queues.push(QueueName::new(name)?);
        Ok(self)
    }

    /// Does so many jobs at a time.
    #[must_use]
    pub const fn concurrency(mut self, jobs: u32) -> Self {
        self.concurrency = jobs;
        self
    }

    /// Whether the lease of a job is kept up for as long as it is worked on, which is so unless said otherwise. Without
    /// that, a job that takes longer than its time to run goes to another worker.
    #[must_use]
    pub const fn keep_leases(mut self, keeps: bool) -> Self {
        self.keeps_leases = keeps;
        self
    }

    /// Begins to work. A job that is lost, because its time was over or the queue gave this worker up, is stopped.
    ///
    /// # Errors
    /// The queue did not take the worker in.
    pub async fn start<F, R>(
        self,
        handler: impl Fn(Job) -> F + Send + Sync + 'static,
    ) -> Result<RunningWorker, ClientError>
    where
        F: Future<Output = R> + Send + 'static,
        R: Into<Verdict> + Send + 'static,
    {
        // Upper bits are for gateways.
        let session = SessionId::new(fastrand::u64(1..1 << 48));
        let events = self.link.open_session(session).await?;
        let (stop, stopped) = oneshot::channel();
        let (finished, finishes) = mpsc::unbounded_channel();
        let task =
            Task { worker: self, session, handler: Arc::new(handler), running: BTreeMap::new(), finished };
        task.grant(task.worker.concurrency, true).await?;
        Ok(RunningWorker { session, stop, task: tokio::spawn(task.run(events, finishes, stopped)) })
    }
}

/// A worker at work. Dropping it does not stop it.
#[derive(Debug)]
pub struct RunningWorker {
    session: SessionId,
    stop: oneshot::Sender<Duration>,
    task: JoinHandle<()>,
}

impl RunningWorker {
    /// Under which number the queue knows it.
    #[must_use]
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// Takes nothing more, lets what is begun come to its end, for so long at most, and leaves. What is not done by then is
    /// for others.
    pub async fn stop(self, patience: Duration) {
        // A worker that has ended already need not be told.
        self.stop.send(patience).unwrap_or_default();
        drop(self.task.await);
    }
}

struct Task<H> {
    worker: Worker,
    session: SessionId,
    handler: Arc<H>,
    running: BTreeMap<Assignment, AbortHandle>,
    finished: mpsc::UnboundedSender<Finished>,
}

/// A job came to its end; whether its credit went back with it.
struct Finished {
    assignment: Assignment,
    has_returned_credit: bool,
}

impl<H, F, R> Task<H>
where
    H: Fn(Job) -> F + Send + Sync + 'static,
    F: Future<Output = R> + Send + 'static,
    R: Into<Verdict> + Send + 'static,
{
    async fn run(
        mut self,
        mut events: mpsc::UnboundedReceiver<SessionEvent>,
        mut finishes: mpsc::UnboundedReceiver<Finished>,
        mut stopped: oneshot::Receiver<Duration>,
    ) {
        // Whoever dropped the handle wants it to work on for as long as the process lives.
        let mut is_attended = true;
        let patience = loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.hear(event).await,
                    // The link is gone, and with it everything.
                    None => return self.abort_all(),
                },
                Some(finish) = finishes.recv() => self.finish(&finish).await,
                patience = &mut stopped, if is_attended => match patience {
                    Ok(patience) => break patience,
                    Err(_) => is_attended = false,
                },
            }
        };
        // Without an answer the session is closed all the same.
        drop(self.grant(0, true).await);
        let rest = async {
            while !self.running.is_empty() {
                match finishes.recv().await {
                    Some(finish) => drop(self.running.remove(&finish.assignment)),
                    None => return,
                }
            }
        };
        drop(timeout(patience, rest).await);
        self.abort_all();
        drop(self.worker.link.call(Op::SessionClose { session: self.session }).await);
    }

    async fn hear(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Delivery(delivery) => self.begin(delivery),
            SessionEvent::Lost(lost) => {
                if let Some(running) = self.running.remove(&lost) {
                    running.abort();
                    self.grant_or_warn(1, false).await;
                }
            }
            SessionEvent::Restarted => {
                self.abort_all();
                self.grant_or_warn(self.worker.concurrency, true).await;
            }
        }
    }

    fn begin(&mut self, delivery: Delivery) {
        let assignment = Assignment { job: delivery.job, fence: delivery.fence };
        let (link, finished) = (self.worker.link.clone(), self.finished.clone());
        let (handler, keeps_leases) = (Arc::clone(&self.handler), self.worker.keeps_leases);
        let job = Job {
            id: delivery.job,
            fence: delivery.fence,
            queue: delivery.queue,
            attempt: delivery.attempt,
            time_to_run: Duration::from_millis(delivery.ttr_ms),
            body: delivery.body,
        };
        let task = tokio::spawn(async move {
            let renew_every = (job.time_to_run / 2).max(RENEW_MIN);
            // A handler that panics has not done its job.
            let mut work = AbortOnDrop(tokio::spawn(async move { handler(job).await.into() }));
            let verdict = loop {
                match timeout(renew_every, &mut work.0).await {
                    Ok(verdict) => break verdict.unwrap_or(Verdict::Retry(None)),
                    Err(_) if keeps_leases => {
                        let Assignment { job, fence } = assignment;
                        // A lease that is lost is told of by itself.
                        drop(link.call(Op::Extend { job, fence, ttr_ms: None }).await);
                    }
                    Err(_) => {}
                }
            };
            let has_returned_credit = link.call(told(assignment, verdict)).await.is_ok();
            // The worker may have been given up.
            drop(finished.send(Finished { assignment, has_returned_credit }));
        });
        self.running.insert(assignment, task.abort_handle());
    }

    async fn finish(&mut self, finish: &Finished) {
        // One that was lost meanwhile has its credit back already.
        if self.running.remove(&finish.assignment).is_some() && !finish.has_returned_credit {
            self.grant_or_warn(1, false).await;
        }
    }

    async fn grant(&self, credits: u32, replaces: bool) -> Result<(), CallError> {
        let queues = self.worker.queues.clone();
        self.worker.link.call(Op::Credit { session: self.session, queues, credits, replaces }).await.map(drop)
    }

    async fn grant_or_warn(&self, credits: u32, replaces: bool) {
        if let Err(error) = self.grant(credits, replaces).await {
            tracing::warn!(%error, "a worker could not say that it takes more jobs");
        }
    }

    fn abort_all(&mut self) {
        for running in std::mem::take(&mut self.running).into_values() {
            running.abort();
        }
    }
}

/// What the queue is told about a job.
fn told(Assignment { job, fence }: Assignment, verdict: Verdict) -> Op {
    match verdict {
        Verdict::Done => Op::Ack { job, fence },
        Verdict::Bury => Op::Bury { job, fence, priority: None },
        Verdict::Retry(delay) => {
            let delay_ms = delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
            Op::Nack { job, fence, delay_ms, priority: None, returns_attempt: false }
        }
    }
}

/// A task that ends with whoever waits for it.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Leases are not renewed more often.
const RENEW_MIN: Duration = Duration::from_millis(50);
