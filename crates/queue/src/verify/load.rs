//! What a queue has to do while its nodes fail: clients of all kinds of jobs, and workers that are not all good ones.
//!
//! Everything is recorded. Clients and workers are futures, for whoever runs them to let go of as processes die.

mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use synod_core::jobs::check::{Expectations, Record};
use synod_core::jobs::{
    Backoff, CancelGuard, ClientId, Dedupe, JobId, Op, QueueName, QueueSettings, Quota, Submit, UserKey,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::history::History;
use super::witness::RecordedClient;
use crate::access::{Answer, CallError, Question, QueueAccess as _};
use crate::client::Client;
use crate::link::{Link, LinkConfig};

pub use self::worker::WorkerEnd;

/// Clients and workers, and what they share. Clones are the same load.
#[derive(Clone, Debug)]
pub struct Load {
    link: LinkConfig,
    history: History,
    counters: Arc<Counters>,
}

/// What a load has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadDone {
    /// Submits, with an answer or without.
    pub submitted: u64,
    /// Submits of which nobody knows what became of them.
    pub unanswered: u64,
}

#[derive(Debug, Default)]
struct Counters {
    /// Clients submit nothing more.
    is_enough: AtomicBool,
    /// Workers do nothing but good.
    is_calm: AtomicBool,
    /// Workers leave.
    is_over: AtomicBool,
    submitted: AtomicU64,
    unanswered: AtomicU64,
}

impl Load {
    /// How many clients and workers there should be at a time, so that caps are reached.
    pub const CLIENTS: u64 = 4;
    /// See [`CLIENTS`](Self::CLIENTS).
    pub const WORKERS: u64 = 6;

    /// Sets the queues and caps, and writes down what is to be expected of them.
    ///
    /// # Errors
    /// Nobody answered in time.
    pub async fn set_up(link: LinkConfig, history: History) -> Result<Self, CallError> {
        let load = Self { link, history, counters: Arc::default() };
        let link = load.link("verify");
        let plain = QueueSettings { ttr_ms: TTR_MS, ..QueueSettings::default() };
        let settings = [
            (PLAIN, QueueSettings { inflight_max: Some(INFLIGHT_MAX), ..plain.clone() }),
            (ORDERED, plain.clone()),
            (LATER, plain.clone()),
            (
                TRIED,
                QueueSettings { max_attempts: 3, backoff: Backoff { base_ms: 20, cap_ms: 200 }, ..plain },
            ),
        ];
        for (name, settings) in settings {
            link.call(Op::QueueSet { queue: queue(name)?, settings: Some(Box::new(settings)) }).await?;
        }
        link.call(Op::QuotaSet { quota: Quota::Clients, max: Some(UNFINISHED_MAX) }).await?;
        link.call(Op::QuotaSet { quota: Quota::Workers, max: Some(HELD_MAX) }).await?;
        load.history.expect(Expectations {
            unfinished_per_client_max: Some(UNFINISHED_MAX),
            inflight_per_session_max: Some(HELD_MAX),
            inflight_per_queue_max: BTreeMap::from([(queue(PLAIN)?, INFLIGHT_MAX)]),
            has_listing: false,
            is_drained: false,
        });
        Ok(load)
    }

    /// A client: submits jobs of all kinds, several at a time, and takes some back, until it is enough.
    pub async fn submit(self, number: u64, mut rng: fastrand::Rng) {
        let (id, link) = (ClientId::new(number), self.link("verify client"));
        let client = RecordedClient::new(link, self.history.clone());
        while !self.counters.is_enough.load(Ordering::Relaxed) {
            let mut batch = JoinSet::new();
            for _ in 0..rng.u32(1..=12) {
                let Ok(job) = draw(id, &mut rng) else { continue };
                let client = client.clone();
                batch.spawn(async move { client.submit(job).await });
            }
            for submitted in batch.join_all().await {
                self.counters.submitted.fetch_add(1, Ordering::Relaxed);
                match submitted {
                    Ok(Some(job)) if rng.u8(..50) == 0 => {
                        // Somebody may hold it by now.
                        drop(client.link().call(Op::Cancel { job, guard: CancelGuard::Idle }).await);
                    }
                    Ok(_) | Err(CallError::Refused(_)) => {}
                    Err(_) => {
                        self.counters.unanswered.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            sleep(Duration::from_millis(rng.u64(10..60))).await;
        }
    }

    /// No client submits anything more.
    pub fn enough(&self) {
        self.counters.is_enough.store(true, Ordering::Relaxed);
    }

    /// Once the clients are gone: waits until everything is done, writes down what is left, and lets the workers leave. False
    /// if not everything was done in time.
    ///
    /// # Errors
    /// What is left could not be listed.
    pub async fn finish(&self) -> Result<bool, CallError> {
        self.enough();
        self.counters.is_calm.store(true, Ordering::Relaxed);
        let client = Client::new(self.link.clone());
        let is_drained = drain(&client).await;
        // Without a drain, whatever is left is somewhere: nobody can list it while it moves.
        if is_drained {
            let left = dead(&client).await?;
            left.into_iter().for_each(|job| self.history.saw(Record::Left { job }));
        }
        self.history.expect_more(|expectations| {
            expectations.has_listing = is_drained;
            expectations.is_drained = true;
        });
        self.counters.is_over.store(true, Ordering::Relaxed);
        Ok(is_drained)
    }

    /// Whether the workers leave.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.counters.is_over.load(Ordering::Relaxed)
    }

    /// What was done.
    #[must_use]
    pub fn done(&self) -> LoadDone {
        LoadDone {
            submitted: self.counters.submitted.load(Ordering::Relaxed),
            unanswered: self.counters.unanswered.load(Ordering::Relaxed),
        }
    }

    fn is_calm(&self) -> bool {
        self.counters.is_calm.load(Ordering::Relaxed)
    }

    fn link(&self, name: &str) -> Link {
        Link::new(LinkConfig { name: name.to_owned(), ..self.link.clone() })
    }
}

/// Some job.
fn draw(client: ClientId, rng: &mut fastrand::Rng) -> Result<Submit, CallError> {
    let body: Vec<u8> = (0..rng.usize(1..400)).map(|_| rng.u8(..)).collect();
    let key = |name: String| UserKey::new(name).map_err(|error| CallError::Nonsense(error.to_string()));
    let job = |name| Ok::<_, CallError>(Submit { client, ..Submit::new(queue(name)?, body) });
    Ok(match rng.u8(..10) {
        0..=3 => Submit { priority: rng.u32(..4), ..job(PLAIN)? },
        4..=6 => Submit { group: Some(key(format!("group {}", rng.u8(..6)))?), ..job(ORDERED)? },
        7 => Submit { delay_ms: rng.u64(1..800), priority: rng.u32(..2), ..job(LATER)? },
        8 => {
            let dedupe = Dedupe { key: key(format!("key {}", rng.u8(..40)))?, window_ms: 500 };
            Submit { dedupe: Some(dedupe), ..job(LATER)? }
        }
        _ => job(TRIED)?,
    })
}

/// Waits until nothing is left to do but what is dead. False if that takes too long.
async fn drain(client: &Client) -> bool {
    let deadline = Instant::now() + DRAIN_PATIENCE;
    let mut quiet = 0;
    while quiet < 3 && Instant::now() < deadline {
        let is_quiet = client
            .queues()
            .await
            .is_ok_and(|queues| queues.iter().all(|queue| queue.ready + queue.reserved + queue.delayed == 0));
        quiet = if is_quiet { quiet + 1 } else { 0 };
        sleep(LOOK_EVERY).await;
    }
    quiet >= 3
}

/// All jobs that were put aside.
async fn dead(client: &Client) -> Result<Vec<JobId>, CallError> {
    let mut found = Vec::new();
    for name in [PLAIN, ORDERED, LATER, TRIED] {
        let mut after = None;
        loop {
            let question = Question::Dead { queue: queue(name)?, after, count: 1_000 };
            let Answer::Dead { jobs, more } = client.link().ask(question).await? else {
                return Err(CallError::Nonsense("no list of the dead".to_owned()));
            };
            found.extend(jobs.into_iter().map(|job| job.id));
            after = more;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

fn queue(name: &str) -> Result<QueueName, CallError> {
    QueueName::new(name).map_err(|error| CallError::Nonsense(error.to_string()))
}

/// With priorities, and a cap on what is in flight.
const PLAIN: &str = "plain";
/// In groups, one job after the other.
const ORDERED: &str = "ordered";
/// With delays and dedupe keys.
const LATER: &str = "later";
/// Tried three times.
const TRIED: &str = "tried";
const TTR_MS: u64 = 1_500;
const INFLIGHT_MAX: u32 = 12;
const UNFINISHED_MAX: u32 = 150;
const HELD_MAX: u32 = 6;
const LOOK_EVERY: Duration = Duration::from_millis(250);
const DRAIN_PATIENCE: Duration = Duration::from_secs(90);
