//! What the queue has to do while its nodes fail: clients of all kinds of jobs, and workers that are not all good ones.

mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use synod_core::jobs::check::{Expectations, Record};
use synod_core::jobs::{
    Backoff, CancelGuard, ClientId, Dedupe, JobId, Op, QueueName, QueueSettings, Quota, Submit, UserKey,
};
use synod_queue::Client;
use synod_queue::access::{Answer, CallError, Question, QueueAccess as _};
use synod_queue::link::{Link, LinkConfig};
use synod_queue::verify::{History, RecordedClient};
use tokio::task::{JoinHandle, JoinSet};

use super::nodes::look;

/// Clients and workers at work.
pub(super) struct Load {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
    workers: Vec<std::thread::JoinHandle<()>>,
    looker: JoinHandle<BTreeSet<u64>>,
}

/// What the load has done.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct LoadDone {
    /// Leaders that were seen, less the first.
    pub(super) elections: u64,
    pub(super) submitted: u64,
    /// Submits of which nobody knows what became of them.
    pub(super) unanswered: u64,
    /// Workers that went without a word.
    pub(super) vanished: u64,
    /// Whether everything was done in the end.
    pub(super) is_drained: bool,
}

/// What all of them share.
struct Shared {
    peers: Vec<String>,
    history: History,
    /// Clients submit nothing more.
    is_enough: AtomicBool,
    /// Workers do nothing but good.
    is_calm: AtomicBool,
    /// Workers leave.
    is_over: AtomicBool,
    submitted: AtomicU64,
    unanswered: AtomicU64,
    vanished: AtomicU64,
}

impl Shared {
    fn link(&self, name: &str) -> Link {
        Link::new(LinkConfig { name: name.to_owned(), ..LinkConfig::new(self.peers.iter().cloned()) })
    }
}

impl Load {
    /// Sets the queues up and begins.
    pub(super) async fn start(
        apis: Vec<SocketAddr>,
        history: History,
        mut rng: fastrand::Rng,
    ) -> Result<Self, String> {
        let mut peers = Vec::new();
        for api in &apis {
            peers.extend(look(*api).await.into_iter().flat_map(|seen| seen.peers));
        }
        let shared = Arc::new(Shared {
            peers,
            history: history.clone(),
            is_enough: AtomicBool::new(false),
            is_calm: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            submitted: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            vanished: AtomicU64::new(0),
        });
        history
            .expect(set_up(&shared).await.map_err(|error| format!("the queues could not be set: {error}"))?);
        let mut clients = JoinSet::new();
        for number in 1..=CLIENTS {
            clients.spawn(client(Arc::clone(&shared), ClientId::new(number), rng.fork()));
        }
        let mut workers = Vec::new();
        for number in 0..WORKERS {
            let (shared, rng) = (Arc::clone(&shared), rng.fork());
            workers.push(std::thread::spawn(move || worker::run(&shared, number, rng)));
        }
        let looker = tokio::spawn(look_around(Arc::clone(&shared), apis));
        Ok(Self { shared, clients, workers, looker })
    }

    /// Submits nothing more, waits until everything is done, and ends.
    pub(super) async fn finish(self) -> Result<LoadDone, String> {
        let Self { shared, clients, workers, looker } = self;
        shared.is_enough.store(true, Ordering::Relaxed);
        drop(clients.join_all().await);
        shared.is_calm.store(true, Ordering::Relaxed);
        let client = Client::new(LinkConfig::new(shared.peers.iter().cloned()));
        let is_drained = drain(&client).await;
        // Without a drain, whatever is left is somewhere: nobody can list it while it moves.
        if is_drained {
            let left =
                dead(&client).await.map_err(|error| format!("the dead could not be listed: {error}"))?;
            left.into_iter().for_each(|job| shared.history.saw(Record::Left { job }));
        }
        let expectations = shared.history.recording().map_err(|error| error.to_string())?.expectations;
        shared.history.expect(Expectations { has_listing: is_drained, is_drained: true, ..expectations });
        shared.is_over.store(true, Ordering::Relaxed);
        let joined =
            tokio::task::spawn_blocking(move || workers.into_iter().all(|worker| worker.join().is_ok()));
        if !joined.await.unwrap_or(false) {
            return Err("a worker of the load ended with a panic".to_owned());
        }
        let terms = looker.await.map_err(|error| error.to_string())?;
        Ok(LoadDone {
            elections: (terms.len() as u64).saturating_sub(1),
            submitted: shared.submitted.load(Ordering::Relaxed),
            unanswered: shared.unanswered.load(Ordering::Relaxed),
            vanished: shared.vanished.load(Ordering::Relaxed),
            is_drained,
        })
    }
}

/// Sets the queues and caps, and tells what is to be expected of them.
async fn set_up(shared: &Shared) -> Result<Expectations, CallError> {
    let link = shared.link("verify");
    let plain = QueueSettings { ttr_ms: TTR_MS, ..QueueSettings::default() };
    let settings = [
        (PLAIN, QueueSettings { inflight_max: Some(INFLIGHT_MAX), ..plain.clone() }),
        (ORDERED, plain.clone()),
        (LATER, plain.clone()),
        (TRIED, QueueSettings { max_attempts: 3, backoff: Backoff { base_ms: 20, cap_ms: 200 }, ..plain }),
    ];
    for (name, settings) in settings {
        link.call(Op::QueueSet { queue: queue(name)?, settings: Some(Box::new(settings)) }).await?;
    }
    link.call(Op::QuotaSet { quota: Quota::Clients, max: Some(UNFINISHED_MAX) }).await?;
    link.call(Op::QuotaSet { quota: Quota::Workers, max: Some(HELD_MAX) }).await?;
    Ok(Expectations {
        unfinished_per_client_max: Some(UNFINISHED_MAX),
        inflight_per_session_max: Some(HELD_MAX),
        inflight_per_queue_max: BTreeMap::from([(queue(PLAIN)?, INFLIGHT_MAX)]),
        has_listing: false,
        is_drained: false,
    })
}

/// Submits jobs of all kinds, several at a time, and takes some back.
async fn client(shared: Arc<Shared>, id: ClientId, mut rng: fastrand::Rng) {
    let client = RecordedClient::new(shared.link("verify client"), shared.history.clone());
    while !shared.is_enough.load(Ordering::Relaxed) {
        let mut batch = JoinSet::new();
        for _ in 0..rng.u32(1..=12) {
            let Ok(job) = draw(id, &mut rng) else { continue };
            let client = client.clone();
            batch.spawn(async move { client.submit(job).await });
        }
        for submitted in batch.join_all().await {
            shared.submitted.fetch_add(1, Ordering::Relaxed);
            match submitted {
                Ok(Some(job)) if rng.u8(..50) == 0 => {
                    // Somebody may hold it by now.
                    drop(client.link().call(Op::Cancel { job, guard: CancelGuard::Idle }).await);
                }
                Ok(_) | Err(CallError::Refused(_)) => {}
                Err(_) => {
                    shared.unanswered.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(10..60))).await;
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

/// Writes down, time and again, the states that the nodes are in, and tells in which terms they were.
async fn look_around(shared: Arc<Shared>, apis: Vec<SocketAddr>) -> BTreeSet<u64> {
    let mut terms = BTreeSet::new();
    while !shared.is_over.load(Ordering::Relaxed) {
        for (replica, api) in (1..).zip(&apis) {
            let Some(group) = look(*api).await.and_then(|seen| seen.groups.into_iter().next()) else {
                continue;
            };
            if group.leads {
                terms.insert(group.term);
            }
            if let Ok(digest) = u64::from_str_radix(&group.digest, 16)
                && group.digest_index > 0
            {
                shared.history.saw(Record::Hash { replica, index: group.digest_index, hash: digest.into() });
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    terms
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
        tokio::time::sleep(LOOK_EVERY).await;
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
const CLIENTS: u64 = 4;
const WORKERS: u64 = 6;
const TTR_MS: u64 = 1_500;
const INFLIGHT_MAX: u32 = 12;
const UNFINISHED_MAX: u32 = 150;
const HELD_MAX: u32 = 6;
const LOOK_EVERY: Duration = Duration::from_millis(250);
const DRAIN_PATIENCE: Duration = Duration::from_secs(90);
