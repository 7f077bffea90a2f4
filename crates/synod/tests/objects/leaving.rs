//! Nodes that are told to leave, one after the other, as in an upgrade: clients notice nothing that they cannot retry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use synod_s3::client::{Reply, S3Client};
use tokio::task::{JoinError, JoinHandle};

use crate::cluster::Layout;
use crate::store::{ALL, BUCKET, Store, bytes_of};

#[test]
fn no_request_fails_while_every_node_leaves_and_comes_back() {
    let mut store = Store::started(&Layout::default());
    let (counts, is_over) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let mut client = Client {
                nodes: ALL.iter().map(|index| store.s3(*index)).collect(),
                node: number % ALL.len(),
                counts: Arc::clone(&counts),
            };
            let is_over = Arc::clone(&is_over);
            store.runtime().spawn(async move {
                let mut round = 0;
                while !is_over.load(Ordering::Relaxed) {
                    client.put_and_get(number as u64, round).await;
                    round += 1;
                }
                round
            })
        })
        .collect();
    for index in ALL {
        counts.until_more(30);
        store.cluster.signal(*index, "TERM");
        assert_eq!(store.cluster.until_ended(*index).code(), Some(0));
        assert!(store.cluster.log(*index).contains("\nleft\n"), "{}", store.cluster.log(*index));
        counts.until_more(30);
        store.cluster.start(*index);
        store.cluster.until_agreed(ALL);
    }
    is_over.store(true, Ordering::Relaxed);
    let rounds: Vec<u64> = store.run(async {
        all_of(tasks).await.into_iter().map(|rounds| rounds.expect("no request failed")).collect()
    });
    let shown = |count: &AtomicU64| count.load(Ordering::Relaxed);
    eprintln!(
        "{} requests, {} were told to come again, {} connections refused",
        shown(&counts.answered),
        shown(&counts.later),
        shown(&counts.refused)
    );
    // All that was confirmed is there, whoever confirmed it.
    for (number, rounds) in (0..).zip(rounds) {
        for round in 0..rounds {
            let reply = store.get(round as usize % 3, &key(number, round));
            assert!(reply.body == body(number, round), "{}: {:?}", key(number, round), reply.status);
        }
    }
}

/// What clients were told.
#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    /// 503.
    later: AtomicU64,
    /// Nobody listened.
    refused: AtomicU64,
}

impl Counts {
    fn until_more(&self, count: u64) {
        let goal = self.answered.load(Ordering::Relaxed) + count;
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.answered.load(Ordering::Relaxed) < goal {
            assert!(Instant::now() < deadline, "clients are not answered");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A client that retries what it is told to retry, goes elsewhere when nobody listens, and takes anything else for a failure.
struct Client {
    nodes: Vec<Arc<S3Client>>,
    node: usize,
    counts: Arc<Counts>,
}

impl Client {
    async fn put_and_get(&mut self, number: u64, round: u64) {
        let (key, body) = (key(number, round), body(number, round));
        let put = self.ask(&key, Some(&body)).await;
        assert_eq!(put.status.as_u16(), 200, "{key}: {}", put.text());
        let got = self.ask(&key, None).await;
        assert!(got.status.as_u16() == 200 && got.body == body, "{key}: {}: {}", got.status, got.text());
    }

    /// Puts an object, or gets it.
    async fn ask(&mut self, key: &str, body: Option<&Bytes>) -> Reply {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            assert!(Instant::now() < deadline, "retried for too long");
            let node = &self.nodes[self.node];
            let reply = match body {
                Some(body) => node.put(BUCKET, key, body.clone(), &[]).await,
                None => node.get(BUCKET, key).await,
            };
            match reply {
                Ok(reply) if reply.status.as_u16() == 503 => {
                    self.counts.later.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(reply) => {
                    self.counts.answered.fetch_add(1, Ordering::Relaxed);
                    return reply;
                }
                Err(error) if error.reason.contains("(Connect)") => {
                    self.counts.refused.fetch_add(1, Ordering::Relaxed);
                    self.node = (self.node + 1) % self.nodes.len();
                }
                Err(error) => panic!("a request failed: {error}"),
            }
        }
    }
}

async fn all_of<T>(tasks: Vec<JoinHandle<T>>) -> Vec<Result<T, JoinError>> {
    let mut ended = Vec::new();
    for task in tasks {
        ended.push(task.await);
    }
    ended
}

fn key(number: u64, round: u64) -> String {
    format!("client{number}/{round:06}")
}

/// Some have parts, most have none.
fn body(number: u64, round: u64) -> Bytes {
    bytes_of(number << 32 | round, if round.is_multiple_of(4) { 200_000 } else { 500 })
}

const CLIENTS: usize = 6;
