//! Runs clients and workers beside nodes that fail, and looks at the nodes meanwhile.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use synod_core::jobs::check::Record;
use synod_queue::link::LinkConfig;
use synod_queue::verify::{History, Load, WorkerEnd};
use tokio::task::{JoinHandle, JoinSet};

use crate::nodes::look;

/// Clients and workers at work.
pub(super) struct RunningLoad {
    load: Load,
    clients: JoinSet<()>,
    workers: Vec<std::thread::JoinHandle<()>>,
    vanished: Arc<AtomicU64>,
    looker: JoinHandle<BTreeSet<u64>>,
}

/// What the load has done.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct Done {
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

impl RunningLoad {
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
        let load = Load::set_up(LinkConfig::new(peers), history.clone()).await;
        let load = load.map_err(|error| format!("the queues could not be set: {error}"))?;
        let mut clients = JoinSet::new();
        for number in 1..=Load::CLIENTS {
            clients.spawn(load.clone().submit(number, rng.fork()));
        }
        let (mut workers, vanished) = (Vec::new(), Arc::<AtomicU64>::default());
        for number in 0..Load::WORKERS {
            let (load, rng, vanished) = (load.clone(), rng.fork(), Arc::clone(&vanished));
            workers.push(std::thread::spawn(move || work(&load, number, rng, &vanished)));
        }
        let looker = tokio::spawn(look_around(load.clone(), history, apis));
        Ok(Self { load, clients, workers, vanished, looker })
    }

    /// Submits nothing more, waits until everything is done, and ends.
    pub(super) async fn finish(self) -> Result<Done, String> {
        let Self { load, clients, workers, vanished, looker } = self;
        load.enough();
        drop(clients.join_all().await);
        let is_drained =
            load.finish().await.map_err(|error| format!("the dead could not be listed: {error}"))?;
        let joined =
            tokio::task::spawn_blocking(move || workers.into_iter().all(|worker| worker.join().is_ok()));
        if !joined.await.unwrap_or(false) {
            return Err("a worker of the load ended with a panic".to_owned());
        }
        let terms = looker.await.map_err(|error| error.to_string())?;
        let done = load.done();
        Ok(Done {
            elections: (terms.len() as u64).saturating_sub(1),
            submitted: done.submitted,
            unanswered: done.unanswered,
            vanished: vanished.load(Ordering::Relaxed),
            is_drained,
        })
    }
}

/// Works until the load is over. Each worker has a runtime of its own: with that its sockets go, as those of a process that
/// died.
fn work(load: &Load, number: u64, mut rng: fastrand::Rng, vanished: &AtomicU64) {
    while !load.is_over() {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        // One that the queue did not answer begins anew.
        let end = runtime.block_on(load.work(number, &mut rng));
        vanished.fetch_add(u64::from(end == Ok(WorkerEnd::Vanishes)), Ordering::Relaxed);
        runtime.shutdown_background();
    }
}

/// Writes down, time and again, the states that the nodes are in, and tells in which terms they were.
async fn look_around(load: Load, history: History, apis: Vec<SocketAddr>) -> BTreeSet<u64> {
    let mut terms = BTreeSet::new();
    while !load.is_over() {
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
                history.saw(Record::Hash { replica, index: group.digest_index, hash: digest.into() });
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    terms
}

const LOOK_EVERY: Duration = Duration::from_millis(250);
