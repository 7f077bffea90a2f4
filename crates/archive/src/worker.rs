//! What keeps the archive up to date: on each node, for the slots that it serves.
//!
//! ```text
//!   fresh writes ──(hints, may be lost)──┐
//!                                        ├──► queue of names ──► a few lanes: read, decide, do, write it down
//!   all slots, at the start, after       │
//!   elections, and now and then ─────────┘
//! ```
//!
//! Nothing is remembered in memory that is not found again by a walk: a crash loses only the order. Lanes do one object at a
//! time, each step under the record of the object, so that two nodes that both hold themselves for its primary do no harm.

mod queue;
mod upload;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use synod_core::objects::{ArchiveRecord, ArchiveStep, EntryName, ObjectEvent};
use synod_core::slots::SlotId;
use synod_store::objects::contract::ObjectStore as _;
use synod_store::objects::{ArchiveStatusJson, Objects};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;

use crate::bucket::Archive;
use crate::copy::Copy;
use crate::settings::ArchiveError;
use crate::{now_ms, records};
use queue::Queue;

/// How a node keeps the archive up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// How many objects are copied at a time. Each holds up to a part in memory, 8 MiB unless the object is huge. At
    /// least 1; 4 by default.
    pub lanes: usize,
    /// How often all objects are compared with their records, whatever happened. Five minutes by default.
    pub walk_interval: Duration,
    /// How long a request to the archive that was given up may still take effect. Records of deletions are kept for so long.
    /// More than any request can take; one hour by default.
    pub grace: Duration,
    /// How long the worker waits at most after failures before it tries again. 15 seconds by default.
    pub backoff_max: Duration,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            lanes: 4,
            walk_interval: Duration::from_secs(300),
            grace: Duration::from_secs(3600),
            backoff_max: Duration::from_secs(15),
        }
    }
}

/// What happened, for the status of the node.
#[derive(Debug, Default)]
pub(crate) struct ArchiveCounters {
    pub(crate) archived: AtomicU64,
    pub(crate) deleted: AtomicU64,
    pub(crate) restoring: AtomicU64,
    pub(crate) restored: AtomicU64,
    pub(crate) rescued: AtomicU64,
}

/// Keeps the archive up to date with what a node serves. Dropped, it stops at once, and loses nothing.
#[derive(Debug)]
pub struct ArchiveWorker {
    tasks: Vec<JoinHandle<()>>,
}

impl ArchiveWorker {
    /// Starts it, and says in the status of the node how it is.
    #[must_use]
    pub fn start(objects: &Objects, archive: &Archive, config: WorkerConfig) -> Self {
        let queue = Arc::new(Queue::default());
        let (counters, reported) = (Arc::clone(archive.counters()), Arc::clone(&queue));
        objects.report_archive(Box::new(move || status(&counters, &reported)));
        // Before the first walk, or a write could come between them.
        let (fresh, events) = (objects.fresh(), objects.events());
        let worker = Arc::new(Worker { objects: objects.clone(), archive: archive.clone(), config, queue });
        worker.queue.walk(objects.slots_served());
        let mut tasks = vec![
            tokio::spawn(Arc::clone(&worker).follow_writes(fresh)),
            tokio::spawn(Arc::clone(&worker).follow_slots(events)),
            tokio::spawn(Arc::clone(&worker).walk()),
        ];
        tasks.extend((0..config.lanes.max(1)).map(|_| tokio::spawn(Arc::clone(&worker).work())));
        Self { tasks }
    }
}

impl Drop for ArchiveWorker {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn status(counters: &ArchiveCounters, queue: &Queue) -> ArchiveStatusJson {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (failing_since_unix_ms, last_error) = queue.failing();
    ArchiveStatusJson {
        pending: queue.pending() as u64,
        archived: count(&counters.archived),
        deleted: count(&counters.deleted),
        restoring: count(&counters.restoring),
        restored: count(&counters.restored),
        rescued: count(&counters.rescued),
        failing_since_unix_ms,
        last_error,
    }
}

struct Worker {
    objects: Objects,
    archive: Archive,
    config: WorkerConfig,
    queue: Arc<Queue>,
}

impl Worker {
    async fn follow_writes(self: Arc<Self>, mut fresh: tokio::sync::broadcast::Receiver<EntryName>) {
        loop {
            match fresh.recv().await {
                Ok(name) => {
                    if !self.queue.offer(name) {
                        self.queue.walk(self.objects.slots_served());
                    }
                }
                // What was missed is found.
                Err(RecvError::Lagged(_)) => self.queue.walk(self.objects.slots_served()),
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn follow_slots(self: Arc<Self>, mut events: tokio::sync::broadcast::Receiver<ObjectEvent>) {
        loop {
            match events.recv().await {
                Ok(ObjectEvent::SlotServing { slot, .. }) => self.queue.walk([slot]),
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => self.queue.walk(self.objects.slots_served()),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Looks for what has to be done, slot by slot.
    async fn walk(self: Arc<Self>) {
        loop {
            let waited = tokio::time::timeout(self.config.walk_interval, self.queue.next_slot()).await;
            match waited {
                Ok(slot) => self.walk_slot(slot).await,
                Err(_) => self.queue.walk(self.objects.slots_served()),
            }
        }
    }

    async fn walk_slot(&self, slot: SlotId) {
        let mut after = None;
        loop {
            let page = match self.objects.archive_page(slot, after, PAGE_ENTRIES).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%slot, %error, "objects cannot be compared with the archive");
                    return;
                }
            };
            for pair in page.pairs {
                let record = pair.record.as_deref().and_then(records::parse);
                let step =
                    ArchiveRecord::next_step(record.as_ref(), pair.generation, now_ms(), self.grace_ms());
                if step != ArchiveStep::Nothing {
                    self.queue.offer_when_there_is_room(pair.object).await;
                }
            }
            after = page.next;
            if after.is_none() {
                return;
            }
            // Requests of clients come first.
            tokio::time::sleep(PAGE_PAUSE).await;
        }
    }

    /// One lane: does what is in the queue, for ever.
    async fn work(self: Arc<Self>) {
        loop {
            let name = self.queue.take().await;
            let done = self.settle(&name).await;
            let failures = match &done {
                Ok(()) => self.queue.done(&name),
                Err(error) => self.queue.failed(&name, error),
            };
            if failures > 0 {
                let pause = BACKOFF_MIN.saturating_mul(1 << failures.min(16)).min(self.config.backoff_max);
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Does for one object whatever has to be done, until there is nothing.
    async fn settle(&self, name: &EntryName) -> Result<(), ArchiveError> {
        // Another node looks after it, or will: it walks when it takes a slot over.
        while self.objects.is_primary_of(name) {
            // The record first: with an object that is older than its record one step too many is taken, never one too few.
            let record = records::read(&self.objects, name).await?;
            let object = self.objects.read(name).await?;
            let generation = object.as_ref().map(|entry| entry.tag);
            let step =
                ArchiveRecord::next_step(record.record.as_ref(), generation, now_ms(), self.grace_ms());
            tracing::debug!(object = %name, ?step, record = ?record.record, "archive");
            match (step, object) {
                (ArchiveStep::Nothing, _) => return Ok(()),
                (ArchiveStep::Upload { is_contested, abandoned }, Some(entry)) => {
                    if let Some(upload) = abandoned {
                        self.archive.abort(name, &upload).await?;
                    }
                    self.upload(name, &entry, record, is_contested).await?;
                }
                (ArchiveStep::Resume { upload }, Some(entry)) => {
                    self.resume(name, &entry, record, &upload).await?;
                }
                (ArchiveStep::Verify { copy }, Some(entry)) => {
                    let expected = Copy { generation: Some(copy), ..Copy::of(&entry) };
                    let next = match self.archive.has(name, &expected).await? {
                        true => ArchiveRecord::Archived { of: entry.tag, copy, contested_ms: None },
                        false => ArchiveRecord::Uploading { of: entry.tag, upload: None },
                    };
                    record.replace(&self.objects, next).await?;
                }
                (ArchiveStep::MarkDeleting { abandoned }, _) => {
                    if let Some(upload) = abandoned {
                        self.archive.abort(name, &upload).await?;
                    }
                    record.replace(&self.objects, ArchiveRecord::Deleting { since_ms: now_ms() }).await?;
                }
                (ArchiveStep::DeleteCopy, _) => {
                    self.archive.delete(name).await?;
                    let deleted = ArchiveRecord::Deleted { since_ms: now_ms() };
                    if record.replace(&self.objects, deleted).await?.is_some() {
                        self.archive.counters().deleted.fetch_add(1, Ordering::Relaxed);
                    }
                }
                (ArchiveStep::Forget, _) => {
                    // A copy that came back is deleted under a record that says so: whoever writes the object now knows it.
                    if self.archive.is_there(name).await? {
                        record.replace(&self.objects, ArchiveRecord::Deleting { since_ms: now_ms() }).await?;
                    } else if record.remove(&self.objects).await? {
                        return Ok(());
                    }
                }
                (
                    ArchiveStep::Upload { .. } | ArchiveStep::Resume { .. } | ArchiveStep::Verify { .. },
                    None,
                ) => return Ok(()),
            }
        }
        Ok(())
    }

    fn grace_ms(&self) -> u64 {
        u64::try_from(self.config.grace.as_millis()).unwrap_or(u64::MAX)
    }
}

const PAGE_ENTRIES: usize = 256;
const PAGE_PAUSE: Duration = Duration::from_millis(20);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
