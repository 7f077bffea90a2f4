//! The thread that writes: whatever waits is done in one transaction.
//!
//! A durable commit costs the same for one message as for a hundred, so while one is under way the next batch gathers by
//! itself; nothing ever waits for company. The answers go out after the commit, and after what memory says was brought up to
//! it: whoever has been told that an epoch is fenced finds it fenced.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

use super::Shared;
use super::error::DiskError;
use super::table::{Changes, Tables};
use crate::lock;

/// Something to do in a transaction, and whom to tell.
pub(super) trait Job: Send {
    /// Does it. Only a failure of the disk is an error here; any other is for whoever asked.
    fn run(&mut self, tables: &mut Tables<'_>) -> Result<(), DiskError>;
    /// Tells what came of it, once the transaction is durable or has failed.
    fn finish(self: Box<Self>, committed: Result<(), DiskError>);
}

/// Work whose result is told by a closure.
pub(super) struct Work<R, W, D> {
    work: Option<W>,
    result: Option<Result<R, DiskError>>,
    done: D,
}

impl<R, W, D> Work<R, W, D>
where
    W: FnOnce(&mut Tables<'_>) -> Result<R, DiskError> + Send,
    D: FnOnce(Result<R, DiskError>) + Send,
    R: Send,
{
    pub(super) const fn new(work: W, done: D) -> Self {
        Self { work: Some(work), result: None, done }
    }
}

impl<R, W, D> Job for Work<R, W, D>
where
    W: FnOnce(&mut Tables<'_>) -> Result<R, DiskError> + Send,
    D: FnOnce(Result<R, DiskError>) + Send,
    R: Send,
{
    fn run(&mut self, tables: &mut Tables<'_>) -> Result<(), DiskError> {
        let Some(work) = self.work.take() else {
            return Ok(());
        };
        match work(tables) {
            Err(error) if error.is_fatal() => Err(error),
            result => {
                self.result = Some(result);
                Ok(())
            }
        }
    }

    fn finish(self: Box<Self>, committed: Result<(), DiskError>) {
        let Self { result, done, .. } = *self;
        done(committed.and_then(|()| result.unwrap_or(Err(DiskError::Closed))));
    }
}

/// What waits for the writer, up to a number of jobs and of bytes.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    came: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<(usize, Box<dyn Job>)>,
    bytes: usize,
    is_closed: bool,
}

impl Queue {
    /// Adds a job, or gives it back with the reason.
    pub(super) fn push(
        &self,
        bytes: usize,
        job: Box<dyn Job>,
        limit: QueueLimit,
    ) -> Result<(), (Box<dyn Job>, DiskError)> {
        let mut waiting = lock(&self.waiting);
        if waiting.is_closed {
            return Err((job, DiskError::Closed));
        }
        // Alone, anything may wait: else what is larger than the bound would never be written.
        let is_over = waiting.jobs.len() >= limit.jobs || waiting.bytes.saturating_add(bytes) > limit.bytes;
        if is_over && !waiting.jobs.is_empty() {
            return Err((job, DiskError::Busy));
        }
        waiting.bytes += bytes;
        waiting.jobs.push_back((bytes, job));
        drop(waiting);
        self.came.notify_one();
        Ok(())
    }

    /// Takes no more; what waits is still done.
    pub(super) fn close(&self) {
        lock(&self.waiting).is_closed = true;
        self.came.notify_one();
    }

    /// Waits for something to do and takes all of it, up to `batch_max`; `None` when there will never be more.
    fn take(&self, batch_max: usize) -> Option<Vec<Box<dyn Job>>> {
        let mut waiting = lock(&self.waiting);
        while waiting.jobs.is_empty() {
            if waiting.is_closed {
                return None;
            }
            waiting = self.came.wait(waiting).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        let count = waiting.jobs.len().min(batch_max.max(1));
        let taken: Vec<_> = waiting.jobs.drain(..count).collect();
        waiting.bytes -= taken.iter().map(|(bytes, _)| bytes).sum::<usize>();
        Some(taken.into_iter().map(|(_, job)| job).collect())
    }
}

/// How much may wait.
#[derive(Clone, Copy)]
pub(super) struct QueueLimit {
    pub(super) jobs: usize,
    pub(super) bytes: usize,
}

/// Writes until the queue is closed and empty.
pub(super) fn run(shared: &Shared) {
    // However the thread ends, nobody waits for it in vain.
    let _fallen = Fallen(shared);
    while let Some(mut jobs) = shared.queue.take(shared.options.batch_max) {
        let committed = match shared.failure() {
            Some(error) => Err(error),
            None => run_batch(shared, &mut jobs),
        };
        if let Err(error) = &committed {
            shared.fail(error);
        }
        for job in jobs {
            job.finish(committed.clone());
        }
    }
}

fn run_batch(shared: &Shared, jobs: &mut [Box<dyn Job>]) -> Result<(), DiskError> {
    let changes = in_transaction(shared, |tables| jobs.iter_mut().try_for_each(|job| job.run(tables)))?;
    for id in &changes.doomed {
        if let Err(error) = shared.parts.unname(*id) {
            // It is found again among those that nobody names.
            tracing::warn!(part = %id, %error, "cannot remove a part");
        }
    }
    shared.remember(changes);
    Ok(())
}

/// Runs work on the tables and makes it durable.
pub(super) fn in_transaction(
    shared: &Shared,
    work: impl FnOnce(&mut Tables<'_>) -> Result<(), DiskError>,
) -> Result<Changes, DiskError> {
    let transaction = shared.begin_write()?;
    let mut tables = Tables::open(&transaction, shared)?;
    work(&mut tables)?;
    let changes = tables.into_changes();
    match changes.is_dirty {
        true => transaction.commit().map_err(DiskError::entries(&shared.entries_path))?,
        // What is there already is durable already.
        false => transaction.abort().map_err(DiskError::entries(&shared.entries_path))?,
    }
    Ok(changes)
}

struct Fallen<'a>(&'a Shared);

impl Drop for Fallen<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&DiskError::Panicked);
        }
        self.0.queue.close();
        for job in self.0.queue.take(usize::MAX).unwrap_or_default() {
            job.finish(Err(self.0.failure().unwrap_or(DiskError::Closed)));
        }
    }
}
