//! The promise that a writer gets for a record: wait for it on a thread, or await it in a task of any runtime.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::LogError;

/// Resolves to the index of a record, or of the last of several, once it is durable. As a future it needs no particular runtime.
///
/// Dropping it does not take the record back.
#[derive(Debug)]
#[must_use = "a record is durable only when its ticket says so"]
pub struct Ticket {
    slot: Arc<Slot>,
    index: u64,
}

impl Ticket {
    /// A ticket and the other side, which resolves it.
    pub(crate) fn new(index: u64) -> (Self, Completion) {
        let slot = Arc::new(Slot::default());
        (Self { slot: Arc::clone(&slot), index }, Completion { slot, index })
    }

    /// The index that the record will have, if it becomes durable.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Blocks until the record is durable, and returns its index.
    ///
    /// # Errors
    /// The disk failed, here or at an earlier record, or the log was torn down. Whether the record is on the disk is not
    /// known; recovery may find it.
    #[must_use = "whether the record is durable is what it says"]
    pub fn wait(self) -> Result<u64, LogError> {
        let mut state = self.slot.lock();
        loop {
            if let Some(result) = &state.result {
                return result.clone();
            }
            state.is_thread_waiting = true;
            state = self.slot.resolved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Future for Ticket {
    type Output = Result<u64, LogError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock();
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// The side of the flusher. Dropped without a word, for example by a panic, it says that the log is closed.
#[derive(Debug)]
pub(crate) struct Completion {
    slot: Arc<Slot>,
    index: u64,
}

impl Completion {
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    pub(crate) fn succeed(self) {
        self.slot.resolve(Ok(self.index));
    }

    pub(crate) fn fail(self, error: LogError) {
        self.slot.resolve(Err(error));
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.slot.resolve(Err(LogError::Closed));
    }
}

#[derive(Debug, Default)]
struct Slot {
    state: Mutex<SlotState>,
    resolved: Condvar,
}

#[derive(Debug, Default)]
struct SlotState {
    result: Option<Result<u64, LogError>>,
    waker: Option<Waker>,
    /// Waking threads asks the kernel even if there are none, for every single record.
    is_thread_waiting: bool,
}

impl Slot {
    /// The first word counts.
    fn resolve(&self, result: Result<u64, LogError>) {
        let (waker, is_thread_waiting) = {
            let mut state = self.lock();
            if state.result.is_some() {
                return;
            }
            state.result = Some(result);
            (state.waker.take(), state.is_thread_waiting)
        };
        if is_thread_waiting {
            self.resolved.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
