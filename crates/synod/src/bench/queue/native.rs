//! The rows through the native protocol.
//!
//! ```text
//!   submitter ──► link ──┐             ┌──► link ──► worker: acknowledges what it is given
//!   submitter ──► link ──┼──► leader ──┼──► link ──► worker
//!        ▲               ┘             └                │
//!        └───────── a job came to its end ◄─────────────┘
//! ```
//!
//! A link bears as many calls at once as the window of the leader, so the load is spread over several. Their answers come in
//! the order of the calls.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use synod_core::jobs::{CancelGuard, Delivery, JobId, Op, QueueName, Reply, SessionId, Submit};
use synod_queue::access::{Answer, CallError, PeekState, Question, QueueAccess};
use synod_queue::link::{Link, LinkConfig, SessionEvent};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Load, Operation, PATIENCE, Tally, split, take_place};

/// Runs one row.
pub(super) async fn run(config: LinkConfig, load: Load) -> Tally {
    match QueueName::new(&load.queue) {
        Ok(queue) => Native { config, queue, load }.run().await,
        Err(error) => {
            let mut tally = Tally::default();
            tally.fail(error);
            tally
        }
    }
}

struct Native {
    config: LinkConfig,
    queue: QueueName,
    load: Load,
}

impl Native {
    async fn run(self) -> Tally {
        let lanes = split(self.load.in_flight, self.load.in_flight.div_ceil(LANE_MAX));
        let mut tally = Tally::default();
        // What has a place has not come to its end yet.
        let places = Arc::new(Semaphore::new(self.load.in_flight as usize));
        let (stop, stopped) = watch::channel(false);
        let mut workers = JoinSet::new();
        if self.load.operation == Operation::Life {
            for _ in &lanes {
                match Worker::open(&self, Arc::clone(&places)).await {
                    Ok(worker) => drop(workers.spawn(worker.run(stopped.clone()))),
                    Err(error) => tally.fail(format!("a worker was not let in: {error}")),
                }
            }
        }
        let submitters: Vec<Link> = lanes.iter().map(|_| Link::new(self.config.clone())).collect();
        // The first answer of a link says that it has found the leader, which is not what is measured.
        for link in &submitters {
            if let Err(error) = link.ask(Question::Overview).await {
                tally.fail(error);
            }
        }
        if !tally.failures.is_empty() {
            return tally;
        }
        let began = Instant::now();
        let until = self.load.until();
        let mut tasks = JoinSet::new();
        for (link, lane) in submitters.iter().zip(&lanes) {
            let op = Op::Submit(Submit::new(self.queue.clone(), self.load.body.clone()));
            let (link, lane, places) = (link.clone(), *lane as usize, Arc::clone(&places));
            tasks.spawn(async move {
                match self.load.operation {
                    Operation::Enqueue => submit(link, &op, lane, None, until).await,
                    Operation::Life => submit(link, &op, lane, Some(&places), until).await,
                }
            });
        }
        let mut submitted = Vec::new();
        for (some, jobs) in tasks.join_all().await {
            tally.add(some);
            submitted.extend(jobs);
        }
        match self.load.operation {
            Operation::Enqueue => {
                tally.jobs = submitted.len() as u64;
                tally.took = began.elapsed();
                cancel(&submitters, &submitted, &mut tally).await;
            }
            Operation::Life => {
                // All places are free when all jobs have come to their end.
                let all = places.acquire_many(self.load.in_flight);
                if timeout(PATIENCE, all).await.is_err() {
                    tally.fail("jobs did not come to their end in time");
                }
                tally.took = began.elapsed();
                stop.send_replace(true);
                for some in workers.join_all().await {
                    tally.add(some);
                }
            }
        }
        self.empty(&submitters[0], &mut tally).await;
        tally
    }

    /// Takes back what is left, which is nothing unless something went wrong.
    async fn empty(&self, link: &Link, tally: &mut Tally) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let (queue, state) = (self.queue.clone(), PeekState::Ready);
            match link.ask(Question::Peek { queue, state }).await {
                Ok(Answer::Job(Some(job))) => {
                    tally.fail("a job was left in the queue, and taken back");
                    let cancelled = link.call(Op::Cancel { job: job.view.id, guard: CancelGuard::Any }).await;
                    if let Err(error) = cancelled {
                        return tally.fail(error);
                    }
                }
                Ok(_) => return,
                Err(error) => return tally.fail(error),
            }
        }
        tally.fail("jobs are left in the queue");
    }
}

/// Submits until its time is over, with so many calls under way, and waits for the last answer. With places, every job takes
/// one.
async fn submit(
    link: Link,
    op: &Op,
    lane: usize,
    places: Option<&Semaphore>,
    until: Instant,
) -> (Tally, Vec<JobId>) {
    let (mut tally, mut jobs) = (Tally::default(), Vec::new());
    let mut calls = VecDeque::with_capacity(lane);
    loop {
        while calls.len() < lane && Instant::now() < until {
            if let Some(places) = places
                && !take_place(places, calls.is_empty()).await
            {
                break;
            }
            let sent = Instant::now();
            match link.begin(op.clone()).await {
                Ok(call) => calls.push_back((sent, call)),
                Err(error) => {
                    tally.fail(error);
                    return (tally, jobs);
                }
            }
        }
        let Some((sent, call)) = calls.pop_front() else { return (tally, jobs) };
        match call.await {
            Ok(Reply::Submitted { job }) => {
                tally.submissions.push(sent.elapsed());
                if places.is_none() {
                    jobs.push(job);
                }
            }
            other => {
                match other {
                    Ok(reply) => tally.fail(format!("a submission was answered with {reply:?}")),
                    Err(error) => tally.fail(error),
                }
                // The place of a job that never was.
                if let Some(places) = places {
                    places.add_permits(1);
                }
            }
        }
    }
}

/// Takes jobs back, over all links.
async fn cancel(links: &[Link], jobs: &[JobId], tally: &mut Tally) {
    let mut tasks = JoinSet::new();
    for (link, jobs) in links.iter().zip(jobs.chunks(jobs.len().div_ceil(links.len()).max(1))) {
        let (link, jobs) = (link.clone(), jobs.to_vec());
        tasks.spawn(async move {
            let mut tally = Tally::default();
            let mut calls = VecDeque::new();
            let mut jobs = jobs.into_iter();
            loop {
                while calls.len() < LANE_MAX as usize
                    && let Some(job) = jobs.next()
                {
                    match link.begin(Op::Cancel { job, guard: CancelGuard::Any }).await {
                        Ok(call) => calls.push_back(call),
                        Err(error) => tally.fail(error),
                    }
                }
                let Some(call) = calls.pop_front() else { return tally };
                if let Err(error) = call.await {
                    tally.fail(format!("a job was not taken back: {error}"));
                }
            }
        });
    }
    for some in tasks.join_all().await {
        tally.add(some);
    }
}

/// Acknowledges every job that it is given.
struct Worker {
    link: Link,
    session: SessionId,
    credits: u32,
    queue: QueueName,
    events: mpsc::UnboundedReceiver<SessionEvent>,
    places: Arc<Semaphore>,
}

impl Worker {
    async fn open(native: &Native, places: Arc<Semaphore>) -> Result<Self, CallError> {
        let link = Link::new(native.config.clone());
        let session = SessionId::new(fastrand::u64(1..1 << 48));
        let events = link.open_session(session).await?;
        // One worker must be able to take what the others leave.
        let credits = native.load.in_flight;
        let worker = Self { link, session, credits, queue: native.queue.clone(), events, places };
        worker.grant().await?;
        Ok(worker)
    }

    async fn grant(&self) -> Result<(), CallError> {
        let (session, credits, queues) = (self.session, self.credits, vec![self.queue.clone()]);
        self.link.call(Op::Credit { session, queues, credits, replaces: true }).await.map(drop)
    }

    async fn run(mut self, mut stopped: watch::Receiver<bool>) -> Tally {
        let mut tally = Tally::default();
        let mut acks = VecDeque::new();
        let mut heard = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            let first = async {
                match acks.front_mut() {
                    Some(ack) => Pin::as_mut(ack).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                count = self.events.recv_many(&mut heard, EVENTS_AT_ONCE) => {
                    if count == 0 {
                        tally.fail(CallError::Closed);
                        return tally;
                    }
                    for event in heard.drain(..) {
                        match self.hear(event).await {
                            Ok(Some(ack)) => acks.push_back(Box::pin(ack)),
                            Ok(None) => tally.fail("a worker lost what it held"),
                            Err(error) => tally.fail(error),
                        }
                    }
                }
                result = first => {
                    acks.pop_front();
                    match result {
                        Ok(_) => {
                            tally.jobs += 1;
                            self.places.add_permits(1);
                        }
                        Err(error) => tally.fail(format!("a job was not acknowledged: {error}")),
                    }
                }
                () = async { drop(stopped.wait_for(|is_stopped| *is_stopped).await) } => break,
            }
        }
        if let Err(error) = self.link.call(Op::SessionClose { session: self.session }).await {
            tally.fail(error);
        }
        tally
    }

    /// Begins to acknowledge a job; `None` when there was none.
    async fn hear(
        &self,
        event: SessionEvent,
    ) -> Result<Option<impl Future<Output = Result<Reply, CallError>> + use<>>, CallError> {
        match event {
            SessionEvent::Delivery(Delivery { job, fence, .. }) => {
                self.link.begin(Op::Ack { job, fence }).await.map(Some)
            }
            SessionEvent::Lost(_) => Ok(None),
            SessionEvent::Restarted => self.grant().await.map(|()| None),
        }
    }
}

/// Jobs of one link at a time. Less than the window of a leader, so that no call waits on this side.
const LANE_MAX: u32 = 512;
/// Events of a session that are taken at once.
const EVENTS_AT_ONCE: usize = 256;
