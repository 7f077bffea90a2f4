//! Clients that write and read registers all the time, and the law that what they saw must obey.
//!
//! The law is linearizability, which for registers with tags is simple: a tag is given to one value, an operation that
//! began after another one had ended sees no older tag, and a write no equal one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::http;

type Tag = (u64, u64);

/// One operation that was answered with a tag.
#[derive(Clone, Debug)]
struct Operation {
    slot: u16,
    is_write: bool,
    tag: Tag,
    value: String,
    began: Instant,
    ended: Instant,
}

/// What clients did and saw. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    operations: Vec<Operation>,
    failures: Vec<String>,
    attempts: u64,
}

/// Clients that go on until they are told to stop.
pub(crate) struct Clients {
    history: History,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl History {
    /// Writes a value of its own to `slot` by way of the node at `api`, and notes what came of it.
    pub(crate) fn write(&self, api: SocketAddr, slot: u16) -> Result<Tag, String> {
        let value = {
            let mut seen = self.lock();
            seen.attempts += 1;
            format!("value {}", seen.attempts)
        };
        let began = Instant::now();
        let reply = http::send(api, "PUT", &path(slot), &value).and_then(http::Sent::reply);
        self.note(slot, Some(value), began, reply)
    }

    /// Reads `slot` by way of the node at `api`, and notes what came of it.
    pub(crate) fn read(&self, api: SocketAddr, slot: u16) -> Result<Tag, String> {
        let began = Instant::now();
        let reply = http::send(api, "GET", &path(slot), "").and_then(http::Sent::reply);
        self.note(slot, None, began, reply)
    }

    /// Notes what became of the write of a value, or of a read.
    pub(crate) fn note(
        &self,
        slot: u16,
        written: Option<String>,
        began: Instant,
        reply: Result<http::Reply, String>,
    ) -> Result<Tag, String> {
        let ended = Instant::now();
        let is_read = written.is_none();
        let outcome = reply.and_then(|reply| match reply.tag() {
            Some(tag) if reply.status == 200 => Ok((tag, reply.body)),
            // There is nothing yet, which is older than all that there will be.
            None if is_read && reply.status == 404 => Ok(((0, 0), String::new())),
            _ => Err(format!("slot {slot}: status {}: {}", reply.status, reply.body)),
        });
        let is_write = !is_read;
        let mut seen = self.lock();
        match outcome {
            Ok((tag, body)) => {
                let value = written.unwrap_or(body);
                seen.operations.push(Operation { slot, is_write, tag, value, began, ended });
                Ok(tag)
            }
            Err(failure) => {
                seen.failures.push(failure.clone());
                Err(failure)
            }
        }
    }

    /// What was not answered, or not with a tag.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.lock().failures.clone()
    }

    /// How many operations were answered.
    pub(crate) fn answered(&self) -> usize {
        self.lock().operations.len()
    }

    /// Checks the law.
    pub(crate) fn check(&self) {
        let seen = self.lock();
        let mut values: BTreeMap<(u16, Tag), &str> = BTreeMap::new();
        for operation in &seen.operations {
            let known = values.entry((operation.slot, operation.tag)).or_insert(&operation.value);
            assert_eq!(*known, operation.value, "one tag, one value: {operation:?}");
        }
        let mut by_slot: BTreeMap<u16, Vec<&Operation>> = BTreeMap::new();
        for operation in &seen.operations {
            by_slot.entry(operation.slot).or_default().push(operation);
        }
        for operations in by_slot.values() {
            let mut ended: Vec<&Operation> = operations.clone();
            ended.sort_by_key(|operation| operation.ended);
            let mut began: Vec<&Operation> = operations.clone();
            began.sort_by_key(|operation| operation.began);
            // The newest of all that had ended before an operation began.
            let (mut newest, mut ended) = (None::<&Operation>, ended.into_iter().peekable());
            for operation in began {
                while let Some(earlier) = ended.next_if(|earlier| earlier.ended < operation.began) {
                    newest = newest.into_iter().chain([earlier]).max_by_key(|operation| operation.tag);
                }
                let Some(newest) = newest else { continue };
                let is_later =
                    if operation.is_write { operation.tag > newest.tag } else { operation.tag >= newest.tag };
                assert!(is_later, "{operation:?}\nbegan after this had ended:\n{newest:?}");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clients {
    /// One client for each of the nodes. They share `slots`, so that they meet.
    pub(crate) fn start(apis: &[SocketAddr], slots: &[u16]) -> Self {
        let (history, is_over) = (History::default(), Arc::new(AtomicBool::new(false)));
        let threads = apis.iter().map(|api| {
            let (api, slots, history, is_over) =
                (*api, slots.to_vec(), history.clone(), Arc::clone(&is_over));
            std::thread::spawn(move || {
                for slot in slots.iter().cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    // What fails is noted; the clients go on.
                    drop(history.write(api, *slot));
                    drop(history.read(api, *slot));
                    std::thread::sleep(PAUSE);
                }
            })
        });
        let threads = threads.collect();
        Self { history, is_over, threads }
    }

    /// Waits until so many more operations were answered.
    pub(crate) fn until_more(&self, count: usize) {
        let goal = self.history.answered() + count;
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.history.answered() < goal {
            assert!(Instant::now() < deadline, "clients are not answered: {:?}", self.history.failures());
            std::thread::sleep(PAUSE);
        }
    }

    /// Lets them finish, and returns what they saw.
    pub(crate) fn stop(mut self) -> History {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a client");
        }
        self.history.clone()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn path(slot: u16) -> String {
    format!("/v1/slots/{slot}/register")
}

const PAUSE: Duration = Duration::from_millis(5);

#[test]
#[should_panic(expected = "began after this had ended")]
fn a_write_with_an_old_tag_is_noticed() {
    let history = History::default();
    let write = |tag: &str, value: &str| {
        let reply = http::Reply { status: 200, etag: Some(tag.to_owned()), body: String::new() };
        history.note(1, Some(value.to_owned()), Instant::now(), Ok(reply)).expect("a tag");
    };
    write("\"2.1\"", "new");
    write("\"1.9\"", "old");
    history.check();
}
