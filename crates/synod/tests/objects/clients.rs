//! Clients that write, read and delete a few objects all the time, each through one node until it fails them; and readers
//! that are loyal to a node whatever happens to it, for only who asks a node that has been deposed can catch it at telling
//! what was.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use synod_s3::client::{ClientError, Reply, S3Client};
use tokio::task::JoinHandle;

use crate::register::{Ask, Request, Said, check};
use crate::store::{ALL, BUCKET, Store};

/// What clients did and saw. Clones are the same one.
#[derive(Clone)]
pub(crate) struct History {
    start: Instant,
    seen: Arc<Mutex<Seen>>,
    next_value: Arc<AtomicU64>,
}

#[derive(Default)]
struct Seen {
    requests: BTreeMap<String, Vec<Request>>,
    /// Answers that no client should ever get.
    absurd: Vec<String>,
}

/// Clients that go on until they are told to stop.
pub(crate) struct Clients {
    history: History,
    is_over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Clients {
    /// So many for each node. They share a few objects, so that they meet.
    pub(crate) fn start(store: &Store, count: usize, seed: u64) -> Self {
        let history =
            History { start: Instant::now(), seen: Arc::default(), next_value: Arc::new(AtomicU64::new(1)) };
        let is_over = Arc::new(AtomicBool::new(false));
        let tasks = (0..count * ALL.len()).map(|number| {
            let mut client = Client {
                nodes: ALL.iter().map(|index| store.s3(*index)).collect(),
                node: number % ALL.len(),
                history: history.clone(),
                known: BTreeMap::new(),
                random: fastrand::Rng::with_seed(seed.wrapping_add(number as u64)),
            };
            let is_over = Arc::clone(&is_over);
            store.runtime().spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    client.turn().await;
                    tokio::time::sleep(PAUSE).await;
                }
            })
        });
        let readers = ALL.iter().map(|index| {
            let (node, history, is_over) = (store.s3(*index), history.clone(), Arc::clone(&is_over));
            store.runtime().spawn(async move {
                for key in KEYS.iter().cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    history.record(*index, key, Ask::Read, LOYAL_PATIENCE, read(&node, key)).await;
                    tokio::time::sleep(LOYAL_PAUSE).await;
                }
            })
        });
        let tasks = tasks.chain(readers).collect();
        Self { history, is_over, tasks }
    }

    /// Waits until so many more writes were confirmed.
    pub(crate) fn until_written(&self, count: usize) {
        let goal = self.history.written() + count;
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.history.written() < goal {
            assert!(Instant::now() < deadline, "clients are not answered");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets them finish, reads every object once more by way of every node, and checks all that was seen.
    pub(crate) fn stop_and_check(self, store: &Store) {
        self.is_over.store(true, Ordering::Relaxed);
        store.run(async {
            for task in self.tasks {
                task.await.expect("a client");
            }
            for index in ALL {
                let node = store.s3(*index);
                for key in KEYS {
                    let (said, _) =
                        self.history.record(*index, key, Ask::Read, PATIENCE, read(&node, key)).await;
                    assert_ne!(said, Said::Unknown, "everything can be read at the end");
                }
            }
        });
        self.history.check();
    }
}

/// One client.
struct Client {
    nodes: Vec<Arc<S3Client>>,
    node: usize,
    history: History,
    /// What this client saw last, with its tag.
    known: BTreeMap<&'static str, (u64, String)>,
    random: fastrand::Rng,
}

impl Client {
    /// Asks for something, and goes to another node if this one does not answer.
    async fn turn(&mut self) {
        let key = KEYS[self.random.usize(..KEYS.len())];
        let value = self.history.next_value.fetch_add(1, Ordering::Relaxed);
        let known = self.known.get(key).cloned();
        let ask = match (self.random.u32(..100), &known) {
            (0..30, Some((expected, _))) => Ask::Swap { expected: *expected, value },
            (30..45, _) => Ask::Put(value),
            (45..60, _) => Ask::Create(value),
            (60..70, _) => Ask::Delete,
            _ => Ask::Read,
        };
        let node = Arc::clone(&self.nodes[self.node]);
        let tag = known.map(|(_, tag)| format!("\"{tag}\"")).unwrap_or_default();
        let headers = match ask {
            Ask::Swap { .. } => vec![("if-match", tag.as_str())],
            Ask::Create(_) => vec![("if-none-match", "*")],
            _ => Vec::new(),
        };
        let (said, etag) = match ask {
            Ask::Read => self.history.record(self.node, key, ask, PATIENCE, read(&node, key)).await,
            Ask::Delete => {
                self.history.record(self.node, key, ask, PATIENCE, node.delete(BUCKET, key, &[])).await
            }
            Ask::Put(value) | Ask::Create(value) | Ask::Swap { value, .. } => {
                self.history
                    .record(self.node, key, ask, PATIENCE, node.put(BUCKET, key, body(value), &headers))
                    .await
            }
        };
        match (ask, said, etag) {
            (Ask::Read, Said::Found(Some(value)), Some(etag))
            | (Ask::Put(value) | Ask::Create(value) | Ask::Swap { value, .. }, Said::Done, Some(etag)) => {
                self.known.insert(key, (value, etag));
            }
            (_, Said::Unknown, _) => self.node = (self.node + 1) % self.nodes.len(),
            _ => {}
        }
    }
}

impl History {
    /// Notes what came of a request, unless it was certainly never sent.
    async fn record(
        &self,
        node: usize,
        key: &str,
        ask: Ask,
        patience: Duration,
        answer: impl Future<Output = Result<Reply, ClientError>>,
    ) -> (Said, Option<String>) {
        let began = self.start.elapsed();
        let answer = tokio::time::timeout(patience, answer).await;
        let ended = self.start.elapsed();
        let said = match &answer {
            Ok(Ok(reply)) => understand(ask, reply),
            // It was never sent.
            Ok(Err(error)) if error.reason.contains("(Connect)") => return (Said::Unknown, None),
            Ok(Err(_)) | Err(_) => Ok(Said::Unknown),
        };
        let mut seen = self.lock();
        let said = said.unwrap_or_else(|absurd| {
            seen.absurd.push(format!("{ask:?} of {key}: {absurd}"));
            Said::Unknown
        });
        if (ask, said) == (Ask::Read, Said::Unknown) {
            // Nothing follows from it.
            return (said, None);
        }
        seen.requests.entry(key.to_owned()).or_default().push(Request { ask, said, began, ended, node });
        let reply = answer.ok().and_then(Result::ok);
        (said, reply.and_then(|reply| reply.etag().map(str::to_owned)))
    }

    fn written(&self) -> usize {
        let seen = self.lock();
        seen.requests.values().flatten().filter(|request| request.said == Said::Done).count()
    }

    fn check(&self) {
        let seen = self.lock();
        let all = || seen.requests.values().flatten();
        let count = |is: fn(&&Request) -> bool| all().filter(is).count();
        let lost = count(|request| request.said == Said::Unknown);
        let refused = count(|request| matches!(request.said, Said::Refused { .. }));
        let done = count(|request| request.said == Said::Done);
        eprintln!(
            "{} requests: {done} writes done, {refused} refused, {lost} without a known end",
            all().count()
        );
        assert!(seen.absurd.is_empty(), "{:#?}", seen.absurd);
        assert!(done > 50 && refused > 10, "hardly anything was tested");
        for (key, requests) in &seen.requests {
            let checked = Instant::now();
            check(requests).unwrap_or_else(|problem| panic!("{key}: {problem}"));
            eprintln!("{key}: {} requests have an order, found in {:?}", requests.len(), checked.elapsed());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(node: &S3Client, key: &str) -> Result<Reply, ClientError> {
    node.get(BUCKET, key).await
}

/// What an answer says, or why it cannot be one.
fn understand(ask: Ask, reply: &Reply) -> Result<Said, String> {
    let absurd = || Err(format!("{}: {}", reply.status, reply.text().chars().take(200).collect::<String>()));
    match (ask, reply.status.as_u16()) {
        // Nothing is known, whatever the reason.
        (_, 500 | 503 | 504) => Ok(Said::Unknown),
        (Ask::Read, 404) if reply.text().contains("NoSuchKey") => Ok(Said::Found(None)),
        (Ask::Read, 200) => match value(&reply.body) {
            Some(value) => Ok(Said::Found(Some(value))),
            None => absurd(),
        },
        (Ask::Delete, 204) | (Ask::Put(_) | Ask::Create(_) | Ask::Swap { .. }, 200) => Ok(Said::Done),
        (Ask::Create(_) | Ask::Swap { .. }, 412) => Ok(Said::Refused { is_there: true }),
        (Ask::Swap { .. }, 404) if reply.text().contains("NoSuchKey") => {
            Ok(Said::Refused { is_there: false })
        }
        _ => absurd(),
    }
}

/// The object with a value. Some are too large for a head.
fn body(value: u64) -> Bytes {
    let name = format!("value {value}\n");
    let length = if value.is_multiple_of(4) { 100_000 } else { name.len() };
    name.bytes().cycle().take(length).collect()
}

/// The value of an object, if all of it is there and nothing else.
fn value(bytes: &Bytes) -> Option<u64> {
    let first = bytes.split(|byte| *byte == b'\n').next()?;
    let value = std::str::from_utf8(first).ok()?.strip_prefix("value ")?.parse().ok()?;
    (body(value) == *bytes).then_some(value)
}

const KEYS: [&str; 4] = ["a", "b", "c/d", "c/e"];
const PAUSE: Duration = Duration::from_millis(3);
/// Shorter than an election, so that clients do not only wait.
const PATIENCE: Duration = Duration::from_secs(4);
const LOYAL_PAUSE: Duration = Duration::from_millis(15);
/// Short, so that a node that wakes up has a request in its hands that began when it was no longer in office.
const LOYAL_PATIENCE: Duration = Duration::from_millis(600);
