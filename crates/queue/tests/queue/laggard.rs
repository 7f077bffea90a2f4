//! A node that was away for so long that the others have given back the entries which it missed: it gets a snapshot, while
//! clients and workers go on.
//!
//! With `SYNOD_LONG_TESTS` the snapshot is of a million jobs. What was measured is shown with the test.

#![allow(clippy::print_stderr, reason = "what was measured is shown with the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use synod_core::jobs::{QueueName, Submit};
use synod_queue::{Client, GroupView, Job, Worker};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, eventually, in_time, replicas_agree};

/// How many jobs nobody takes. They are what makes the snapshot large.
fn stock() -> u64 {
    if std::env::var_os("SYNOD_LONG_TESTS").is_some() { 1_000_000 } else { 20_000 }
}

/// Clients that submit one job after the other, each as soon as the one before is acknowledged.
struct Traffic {
    is_over: Arc<AtomicBool>,
    submitted: Arc<AtomicU64>,
    /// Longest call since somebody looked, in microseconds.
    longest: Arc<AtomicU64>,
    clients: JoinSet<()>,
}

impl Traffic {
    fn start(cluster: &Cluster) -> Self {
        let (is_over, submitted, longest) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let mut clients = JoinSet::new();
        for _ in 0..4 {
            let client = cluster.client();
            let (is_over, submitted, longest) =
                (Arc::clone(&is_over), Arc::clone(&submitted), Arc::clone(&longest));
            clients.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    client.submit("work", "x").await.expect("no call fails");
                    let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                    longest.fetch_max(took, Ordering::Relaxed);
                    submitted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self { is_over, submitted, longest, clients }
    }

    fn count(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed)
    }

    /// How long the longest call took since this was asked last.
    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.swap(0, Ordering::Relaxed))
    }

    async fn stop(mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = in_time(self.clients.join_next()).await {
            ended.expect("no client panics");
        }
        self.count()
    }
}

async fn fill_up(client: &Client, count: u64) {
    let queue = QueueName::new("stock").expect("a name");
    let mut left = count;
    while left > 0 {
        let batch = left.min(4_096);
        let jobs = (0..batch).map(|_| Submit::new(queue.clone(), vec![7; 200]));
        for result in client.submit_all(jobs).await {
            result.expect("no call fails");
        }
        left -= batch;
    }
}

fn view(cluster: &Cluster, node: usize) -> GroupView {
    cluster.nodes[node].as_ref().expect("it runs").queue.groups().swap_remove(0)
}

/// The group as its leader sees it.
fn led(cluster: &Cluster) -> Option<GroupView> {
    let running = (0..cluster.nodes.len()).filter(|node| cluster.nodes[*node].is_some());
    running.map(|node| view(cluster, node)).find(|view| view.lead.is_own)
}

async fn comes_back(is_wiped: bool) {
    let stock = stock();
    let mut cluster = Cluster::with(3, move |options| {
        // The snapshot is taken when all of the jobs are there, and the log behind it is given back at once.
        options.group.snapshot_log_bytes = stock * 256;
        options.group.kept_log_bytes = 0;
        options.is_new_cluster = false;
    })
    .await;
    let away = (cluster.leader().await + 1) % 3;
    let client = cluster.client();
    fill_up(&client, 10).await;
    let before = led(&cluster).expect("it leads").digest.0;
    eventually("it has the first jobs", || (view(&cluster, away).digest.0 >= before).then_some(())).await;
    cluster.kill(away).await;
    if is_wiped {
        std::fs::remove_dir_all(cluster.node_dir(away)).expect("it can be removed");
    }

    let done = Arc::new(AtomicU64::new(0));
    let noted = Arc::clone(&done);
    let worker = Worker::new(&client).queue("work").expect("a name").concurrency(16);
    let running = worker.start(move |_: Job| {
        noted.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    let running = in_time(running).await.expect("a worker");
    let traffic = Traffic::start(&cluster);
    let begun = Instant::now();
    let filler = cluster.client();
    fill_up(&filler, stock).await;
    let mut kept = stock + 10;
    eprintln!("{kept} jobs after {:?}, longest call {:?}", begun.elapsed(), traffic.longest());
    let purged = loop {
        let purged = led(&cluster).and_then(|view| view.status.purged);
        match purged.filter(|purged| *purged > before) {
            Some(purged) => break purged,
            None => fill_up(&filler, 1_000).await,
        }
        kept += 1_000;
    };
    eprintln!("a snapshot of {kept} after {:?}, longest call {:?}", begun.elapsed(), traffic.longest());

    let (begun, count) = (Instant::now(), traffic.count());
    cluster.start_node(away).await;
    eventually("it has what the others have", || {
        let (own, leads) = (view(&cluster, away), led(&cluster)?);
        (own.status.snapshot >= Some(purged) && own.digest.0 + 1_000 >= leads.digest.0).then_some(())
    })
    .await;
    cluster.leader().await;
    eprintln!("it is back after {:?}, longest call {:?}", begun.elapsed(), traffic.longest());
    eventually("more is submitted", || (traffic.count() > count + 100).then_some(())).await;
    let submitted = traffic.stop().await;
    eventually("all is done", || (done.load(Ordering::Relaxed) >= submitted).then_some(())).await;
    running.stop(Duration::from_secs(10)).await;
    assert_eq!(done.load(Ordering::Relaxed), submitted, "each is done once");
    replicas_agree(&cluster, 0).await;
    let queues = view(&cluster, away).queues;
    let found = queues.iter().find(|queue| queue.name.as_str() == "stock").expect("the queue");
    assert_eq!(found.ready, kept, "all that nobody took is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_old_log_gets_a_snapshot_while_others_work() {
    comes_back(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_empty_disk_gets_a_snapshot_while_others_work() {
    comes_back(true).await;
}
