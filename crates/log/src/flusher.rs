//! The one that writes: takes all that has come, makes it durable, answers in order.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::config::LogConfig;
use crate::error::LogError;
use crate::store::Store;
use crate::ticket::Completion;

/// What the flusher and the callers share.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// There is a command, or the log is to stop.
    pub(crate) work: Condvar,
    /// There is room in the queue, a compaction is done, or the log has stopped.
    pub(crate) room: Condvar,
}

/// The queue, under the lock.
pub(crate) struct State {
    pub(crate) commands: VecDeque<Command>,
    /// What the records cost that are not durable yet, those that the flusher has in hand included.
    pub(crate) waiting_bytes: usize,
    /// The index of the next record.
    pub(crate) next_index: u64,
    /// Why nothing is accepted any more.
    pub(crate) stopped: Option<LogError>,
    /// Compactions that wait: the log may begin elsewhere when they are done.
    pub(crate) compactions: usize,
    /// Of a flusher that is a task, and sleeps.
    waker: Option<Waker>,
    pub(crate) durable_records: u64,
    pub(crate) syncs: u64,
    pub(crate) refused: u64,
}

pub(crate) enum Command {
    /// One answer for all payloads, of which there may be none.
    Append {
        payloads: Vec<Vec<u8>>,
        completion: Completion,
    },
    Maintain {
        maintenance: Maintenance,
        completion: Completion,
    },
}

/// What removes records.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Maintenance {
    TruncateAfter(u64),
    CompactBefore(u64),
    ResetTo(u64),
}

impl Shared {
    pub(crate) fn new(next_index: u64) -> Self {
        let state = State {
            commands: VecDeque::new(),
            waiting_bytes: 0,
            next_index,
            stopped: None,
            compactions: 0,
            waker: None,
            durable_records: 0,
            syncs: 0,
            refused: 0,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), room: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a command to the flusher.
    pub(crate) fn push(&self, mut state: MutexGuard<'_, State>, command: Command) {
        // The flusher sleeps only while there is none, and takes all there are.
        let is_first = state.commands.is_empty();
        state.commands.push_back(command);
        let waker = state.waker.take();
        drop(state);
        if is_first {
            self.work.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Refuses all that comes from now on. The first reason stays, except that a failure is worth more than a close.
    pub(crate) fn stop(&self, reason: LogError) {
        let mut state = self.lock();
        if matches!(state.stopped, None | Some(LogError::Closed)) {
            state.stopped = Some(reason);
        }
        let waker = state.waker.take();
        drop(state);
        self.work.notify_all();
        self.room.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for commands and takes all there are; `None` when the log is stopped and all is done.
    fn take(&self) -> Option<VecDeque<Command>> {
        let mut state = self.lock();
        while state.commands.is_empty() {
            if state.stopped.is_some() {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Some(std::mem::take(&mut state.commands))
    }

    /// Whether there is something to do; not when the log is stopped and all is done.
    fn poll_work(&self, waker: &Waker) -> Poll<bool> {
        let mut state = self.lock();
        if !state.commands.is_empty() {
            return Poll::Ready(true);
        }
        if state.stopped.is_some() {
            return Poll::Ready(false);
        }
        state.waker = Some(waker.clone());
        Poll::Pending
    }
}

/// What a waiting record counts for.
pub(crate) fn cost(payload: &[u8]) -> usize {
    payload.len() + LogConfig::RECORD_OVERHEAD
}

/// Writes what is handed to a log. Where a log is opened with [`Log::open_apart`](crate::Log::open_apart), whoever opens it
/// runs this; dropping it stops the log.
pub struct Flusher {
    store: Store,
    // Last, so that nobody is told of the end before the files are let go.
    end: StopAtEnd,
}

impl Flusher {
    pub(crate) fn new(shared: Arc<Shared>, store: Store) -> Self {
        Self { store, end: StopAtEnd(shared) }
    }

    /// Serves until the log is closed or the disk fails. Blocks: for a thread of its own.
    ///
    /// # Errors
    /// The disk failed.
    pub fn run(mut self) -> Result<(), LogError> {
        let shared = Arc::clone(&self.end.0);
        while let Some(commands) = shared.take() {
            serve(&shared, &mut self.store, commands)?;
        }
        self.seal()
    }

    /// Serves until the log is closed or the disk fails, as a task whose disk takes its time, and blocks for nothing else:
    /// for simulations, where time is not that of the machine. What comes during a pause is written with what came before it.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn run_as_task<P: Future<Output = ()>>(
        mut self,
        mut pause: impl FnMut() -> P,
    ) -> Result<(), LogError> {
        let shared = Arc::clone(&self.end.0);
        while poll_fn(|context| shared.poll_work(context.waker())).await {
            pause().await;
            let commands = std::mem::take(&mut shared.lock().commands);
            serve(&shared, &mut self.store, commands)?;
        }
        self.seal()
    }

    fn seal(mut self) -> Result<(), LogError> {
        self.store.seal().map_err(|error| {
            self.end.0.stop(error.clone().into());
            error.into()
        })
    }
}

/// However the flusher ends, nobody waits for it any more: the queue is emptied, and dropped completions say so.
struct StopAtEnd(Arc<Shared>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.stop(LogError::Closed);
        let left = std::mem::take(&mut self.0.lock().commands);
        drop(left);
    }
}

fn serve(shared: &Shared, store: &mut Store, mut commands: VecDeque<Command>) -> Result<(), LogError> {
    while let Some(command) = commands.pop_front() {
        let (result, mut unanswered) = match command {
            Command::Append { mut payloads, completion } => {
                let mut completions = VecDeque::from([completion]);
                while let Some(Command::Append { .. }) = commands.front() {
                    if let Some(Command::Append { payloads: more, completion }) = commands.pop_front() {
                        payloads.extend(more);
                        completions.push_back(completion);
                    }
                }
                let mut costs = payloads.iter().map(|payload| cost(payload));
                let mut durable_index = store.segments().last_index();
                let result = store.append(&payloads, |durable| {
                    // Room is made before the answer, so that whoever has it finds the room.
                    let mut state = shared.lock();
                    state.waiting_bytes -= costs.by_ref().take(durable).sum::<usize>();
                    state.durable_records += durable as u64;
                    state.syncs += 1;
                    drop(state);
                    shared.room.notify_all();
                    durable_index += durable as u64;
                    let answered =
                        completions.partition_point(|completion| completion.index() <= durable_index);
                    completions.drain(..answered).for_each(Completion::succeed);
                });
                (result.map_err(LogError::from), completions)
            }
            Command::Maintain { maintenance, completion } => {
                let result = match maintenance {
                    Maintenance::TruncateAfter(index) => store.truncate_after(index),
                    Maintenance::CompactBefore(index) => store.compact_before(index).map_err(LogError::from),
                    Maintenance::ResetTo(index) => store.reset_to(index),
                };
                if matches!(maintenance, Maintenance::CompactBefore(_)) {
                    shared.lock().compactions -= 1;
                    shared.room.notify_all();
                }
                (result, VecDeque::from([completion]))
            }
        };
        match result {
            Ok(()) => unanswered.into_iter().for_each(Completion::succeed),
            Err(error) => {
                // First the door is closed, then those inside are told.
                shared.stop(error.clone());
                commands.append(&mut shared.lock().commands);
                unanswered.extend(commands.into_iter().map(Command::into_completion));
                unanswered.into_iter().for_each(|completion| completion.fail(error.clone()));
                return Err(error);
            }
        }
    }
    Ok(())
}

impl Command {
    fn into_completion(self) -> Completion {
        match self {
            Self::Append { completion, .. } | Self::Maintain { completion, .. } => completion,
        }
    }
}
