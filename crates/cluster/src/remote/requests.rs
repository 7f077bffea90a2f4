//! Requests that wait for their answers.
//!
//! All of them share one process, `future$1`, and are told apart by the request id that every node echoes. So a request
//! costs a number and a slot, not a name, and a batch of a thousand requests names its sender once.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::BuildHasherDefault;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use synod_wire::actor::DeadLetterResponse;
use tokio::sync::oneshot;

use super::message::Message;
use super::pid::Pid;
use super::process::{Letter, Process, ProcessEnded, SystemMessage};
use crate::lock;
use crate::numbers::NumberHasher;

/// A request failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is no such actor, or it cannot be reached.
    #[error("{target} does not exist or cannot be reached; the request was not handled")]
    DeadLetter {
        /// Whom it was for.
        target: Pid,
    },
    /// No answer came in time. The request may have been handled all the same.
    #[error("{target} did not answer in time; it may have handled the request")]
    Timeout {
        /// Whom it was for.
        target: Pid,
    },
    /// The request was not taken for delivery.
    #[error(transparent)]
    Send(#[from] super::SendError),
    /// As many requests wait as may.
    #[error("{max} requests wait for answers already, as many as may; nothing was sent")]
    TooManyRequests {
        /// How many may.
        max: usize,
    },
    /// The answer is not what was asked for.
    #[error(transparent)]
    Answer(#[from] super::message::DecodeMessageError),
    /// The node shut down before an answer came.
    #[error("the node shut down before {target} answered; it may have handled the request")]
    ShutDown {
        /// Whom it was for.
        target: Pid,
    },
}

pub(super) type Answer = Result<Message, NoSuchTarget>;

/// The target answered that it does not exist, or the transport did in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoSuchTarget;

/// By number, which this node counts up.
type Waiting = HashMap<u32, oneshot::Sender<Answer>, BuildHasherDefault<NumberHasher>>;

/// The process behind `future$1`.
pub(super) struct PendingRequests {
    shards: [Mutex<Waiting>; SHARDS],
    next: AtomicU32,
    len: AtomicUsize,
    max: usize,
}

impl PendingRequests {
    pub(super) fn new(max: usize) -> Self {
        Self { shards: Default::default(), next: AtomicU32::new(1), len: AtomicUsize::new(0), max }
    }

    /// A number for a request, and where its answer will appear.
    pub(super) fn begin(&self) -> Option<(u32, oneshot::Receiver<Answer>)> {
        if self.len.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.len.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        loop {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            // 0 means no request. After four thousand million requests the numbers begin anew, and some may still wait.
            if id == 0 {
                continue;
            }
            if let Entry::Vacant(vacant) = lock(self.shard(id)).entry(id) {
                vacant.insert(sender);
                return Some((id, receiver));
            }
        }
    }

    /// Nobody waits for the answer any more.
    pub(super) fn cancel(&self, id: u32) {
        self.take(id);
    }

    fn take(&self, id: u32) -> Option<oneshot::Sender<Answer>> {
        let taken = lock(self.shard(id)).remove(&id);
        if taken.is_some() {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    const fn shard(&self, id: u32) -> &Mutex<Waiting> {
        &self.shards[id as usize % SHARDS]
    }
}

impl Process for PendingRequests {
    /// An answer that nobody waits for came too late; its request has failed already.
    fn deliver(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        for Letter { request_id, message } in letters.drain(..) {
            if let Some(waiting) = self.take(request_id) {
                let answer = if message.is::<DeadLetterResponse>() { Err(NoSuchTarget) } else { Ok(message) };
                drop(waiting.send(answer));
            }
        }
        Ok(())
    }

    fn tell(&self, _: SystemMessage) -> Result<(), ProcessEnded> {
        Ok(())
    }
}

impl fmt::Debug for PendingRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRequests").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Ends a request when its caller goes away.
pub(super) struct PendingRequest<'a> {
    pub(super) requests: &'a PendingRequests,
    pub(super) id: u32,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.requests.cancel(self.id);
    }
}

const SHARDS: usize = 16;
