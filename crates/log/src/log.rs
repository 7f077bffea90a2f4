//! The log as its users see it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::vec;

use crate::config::LogConfig;
use crate::disk::Disk;
use crate::error::{DiskError, LogError, OpenError};
use crate::flusher::{Command, Flusher, Maintenance, Shared, State, cost};
use crate::format::{FIRST_INDEX, INDEX_MAX};
use crate::recovery::Recovery;
use crate::store::{Record, Segments, Store};
use crate::ticket::Ticket;

/// A log of records. Share it behind an [`Arc`]; every method may be called from any thread.
pub struct Log {
    config: LogConfig,
    shared: Arc<Shared>,
    segments: Arc<Segments>,
    flusher: Option<JoinHandle<Result<(), LogError>>>,
    /// Held for the whole of a truncation or reset, so that the range one was checked against does not move before it is
    /// carried out. Compactions are waited for first.
    maintenance: Mutex<()>,
}

impl Log {
    /// Opens the log on a disk, or begins one, and starts its flusher.
    ///
    /// # Errors
    /// A setting is out of range, the disk failed, or durable data is damaged.
    pub fn open(config: LogConfig, disk: impl Disk) -> Result<(Self, Recovery), OpenError> {
        let (mut log, flusher, recovery) = Self::open_apart(config, disk)?;
        let flusher = thread::Builder::new().name("synod-log".into()).spawn(|| flusher.run());
        log.flusher = Some(flusher.map_err(DiskError::at("start the flusher of", "directory"))?);
        Ok((log, recovery))
    }

    /// Opens the log on a disk, or begins one, without a thread: nothing is durable before the [`Flusher`] runs.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_apart(config: LogConfig, disk: impl Disk) -> Result<(Self, Flusher, Recovery), OpenError> {
        let (store, recovery) = Store::open(Arc::new(disk), &config)?;
        let (shared, segments) =
            (Arc::new(Shared::new(recovery.last_index + 1)), Arc::clone(store.segments()));
        let flusher = Flusher::new(Arc::clone(&shared), store);
        Ok((Self { config, shared, segments, flusher: None, maintenance: Mutex::new(()) }, flusher, recovery))
    }

    /// Hands in a record. Blocks while the queue is full. Tickets resolve in the order of their records.
    ///
    /// # Errors
    /// The payload is too large, or the log has stopped.
    pub fn append(&self, payload: impl Into<Vec<u8>>) -> Result<Ticket, LogError> {
        self.enqueue(vec![payload.into()], true)
    }

    /// Hands in a record, without blocking: for tasks that share their thread with others.
    ///
    /// # Errors
    /// As [`append`](Self::append), or the queue is full.
    pub fn try_append(&self, payload: impl Into<Vec<u8>>) -> Result<Ticket, LogError> {
        self.enqueue(vec![payload.into()], false)
    }

    /// Hands in records that follow each other, with one ticket for the last of them: when it resolves, all are durable.
    /// Blocks while they do not all fit into the queue. None at all make a ticket that resolves once all that was handed
    /// in before is durable.
    ///
    /// A crash may leave the first of them without the rest, as with any records.
    ///
    /// # Errors
    /// A payload is too large, or all of them are, or the log has stopped. None of them was handed in.
    pub fn append_all<P: Into<Vec<u8>>>(
        &self,
        payloads: impl IntoIterator<Item = P>,
    ) -> Result<Ticket, LogError> {
        self.enqueue(payloads.into_iter().map(Into::into).collect(), true)
    }

    /// Hands in records that follow each other, without blocking.
    ///
    /// # Errors
    /// As [`append_all`](Self::append_all), or the queue is too full for all of them.
    pub fn try_append_all<P: Into<Vec<u8>>>(
        &self,
        payloads: impl IntoIterator<Item = P>,
    ) -> Result<Ticket, LogError> {
        self.enqueue(payloads.into_iter().map(Into::into).collect(), false)
    }

    /// Removes all records behind `index`, those included that were handed in before this call. The next record gets the
    /// index after it. Blocks until that is durable: a task calls it by way of `spawn_blocking` or the like.
    ///
    /// # Errors
    /// The index is not in the log nor the one before its first, or the log has stopped.
    pub fn truncate_after(&self, index: u64) -> Result<(), LogError> {
        self.maintain(index, |state, first| {
            let is_inside = index < state.next_index && index.saturating_add(1) >= first;
            is_inside.then(|| state.next_index = index + 1);
            is_inside.then_some(Maintenance::TruncateAfter(index))
        })
    }

    /// Removes the segments all of whose records come before `index`. The last segment always stays. Never blocks: it is
    /// done, and durable, when the ticket says so.
    ///
    /// # Errors
    /// The index is behind the log by more than one, or the log has stopped.
    pub fn compact_before(&self, index: u64) -> Result<Ticket, LogError> {
        let mut state = self.shared.lock();
        if let Some(error) = &state.stopped {
            return Err(error.clone());
        }
        if index > state.next_index {
            let (first, last) = (self.first_index(), state.next_index - 1);
            return Err(LogError::OutOfRange { index, first, last });
        }
        state.compactions += 1;
        let (ticket, completion) = Ticket::new(index);
        let maintenance = Maintenance::CompactBefore(index);
        self.shared.push(state, Command::Maintain { maintenance, completion });
        Ok(ticket)
    }

    /// Removes all records, those included that were handed in before this call, and lets the next one have `index`, for
    /// what comes before it is in a snapshot elsewhere. Blocks until that is durable: a task calls it by way of
    /// `spawn_blocking` or the like.
    ///
    /// A crash in the middle leaves the log as it was, or that without some records from `index` on, or reset.
    ///
    /// # Errors
    /// The index is before the log or larger than half of all numbers, or the log has stopped.
    pub fn reset_to(&self, index: u64) -> Result<(), LogError> {
        self.maintain(index, |state, first| {
            let is_ahead = (first..=INDEX_MAX).contains(&index);
            is_ahead.then(|| state.next_index = index);
            is_ahead.then_some(Maintenance::ResetTo(index))
        })
    }

    /// Makes all records durable, marks the end of the log and stops its flusher. Dropping a log does the same, and
    /// tells nobody if it fails.
    ///
    /// # Errors
    /// The disk failed, now or earlier.
    pub fn close(mut self) -> Result<(), LogError> {
        self.stop()
    }

    /// Durable records from an index on, until they would exceed `bytes_max`, each counted with 24 bytes on top of its
    /// payload; at least one if there is one. Blocks on the disk.
    ///
    /// # Errors
    /// The index is before the log or behind it by more than one, the disk failed, or a record is damaged.
    pub fn read(&self, from: u64, bytes_max: usize) -> Result<Vec<Record>, LogError> {
        self.segments.records(from, bytes_max)
    }

    /// All durable records from an index on, read in portions. Ends where the durable part ends when it gets there, or
    /// after the first error.
    #[must_use]
    pub fn records(&self, from: u64) -> Records<'_> {
        Records { log: self, next: Some(from), portion: Vec::new().into_iter() }
    }

    /// The index of the first record; one more than the last if there are none.
    #[must_use]
    pub fn first_index(&self) -> u64 {
        self.segments.first_index()
    }

    /// The index of the last record that was handed in; 0 before the first.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.shared.lock().next_index - FIRST_INDEX
    }

    /// The index of the last durable record; 0 before the first.
    #[must_use]
    pub fn durable_index(&self) -> u64 {
        self.segments.last_index()
    }

    /// What was done since the log was opened.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let state = self.shared.lock();
        let (durable_records, syncs, refused) = (state.durable_records, state.syncs, state.refused);
        LogStats { durable_records, syncs, refused, waiting_bytes: state.waiting_bytes }
    }

    fn enqueue(&self, payloads: Vec<Vec<u8>>, may_wait: bool) -> Result<Ticket, LogError> {
        let (records, largest) = (payloads.len(), payloads.iter().map(Vec::len).max().unwrap_or(0));
        if largest > self.config.record_bytes_max {
            self.shared.lock().refused += records as u64;
            return Err(LogError::TooLarge { bytes: largest, max: self.config.record_bytes_max });
        }
        let cost = payloads.iter().map(|payload| cost(payload)).fold(0, usize::saturating_add);
        let max = self.config.queue_bytes_max;
        let mut state = self.shared.lock();
        loop {
            if let Some(error) = &state.stopped {
                return Err(error.clone());
            }
            if cost > max {
                state.refused += records as u64;
                return Err(LogError::BatchTooLarge { bytes: cost, max });
            }
            if state.waiting_bytes + cost <= max {
                break;
            }
            if !may_wait {
                state.refused += records as u64;
                return Err(LogError::QueueFull { waiting: state.waiting_bytes, max });
            }
            state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.next_index += records as u64;
        state.waiting_bytes += cost;
        let (ticket, completion) = Ticket::new(state.next_index - 1);
        self.shared.push(state, Command::Append { payloads, completion });
        Ok(ticket)
    }

    /// Has something done once all is done that came before, and waits for it. Whoever prepares it looks at the first index
    /// of the log, and may refuse.
    fn maintain(
        &self,
        index: u64,
        prepare: impl FnOnce(&mut State, u64) -> Option<Maintenance>,
    ) -> Result<(), LogError> {
        let _maintenance = self.maintenance.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.shared.lock();
        while state.compactions > 0 && state.stopped.is_none() {
            state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(error) = &state.stopped {
            return Err(error.clone());
        }
        let (first, last) = (self.first_index(), state.next_index - 1);
        let maintenance = prepare(&mut state, first).ok_or(LogError::OutOfRange { index, first, last })?;
        let (ticket, completion) = Ticket::new(index);
        self.shared.push(state, Command::Maintain { maintenance, completion });
        ticket.wait().map(drop)
    }

    fn stop(&mut self) -> Result<(), LogError> {
        self.shared.stop(LogError::Closed);
        // A flusher that panicked has stopped the log on its way out.
        self.flusher.take().map_or(Ok(()), |flusher| flusher.join().unwrap_or(Err(LogError::Closed)))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // Whoever wants to know calls `close`.
        drop(self.stop());
    }
}

/// What a log has done since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Records that became durable.
    pub durable_records: u64,
    /// Syncs that made them so. Far fewer than records if many writers wait at a time.
    pub syncs: u64,
    /// Records that were refused because they were too large or the queue was full.
    pub refused: u64,
    /// Bytes that wait to become durable, as counted by `queue_bytes_max`.
    pub waiting_bytes: usize,
}

/// Durable records in order. Made by [`Log::records`].
pub struct Records<'a> {
    log: &'a Log,
    /// The next index to read; `None` after an error.
    next: Option<u64>,
    portion: vec::IntoIter<Record>,
}

impl Iterator for Records<'_> {
    type Item = Result<Record, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(record) = self.portion.next() {
            return Some(Ok(record));
        }
        match self.log.read(self.next?, PORTION_BYTES) {
            Ok(portion) => {
                self.next = portion.last().map(|record| record.index + 1);
                self.portion = portion.into_iter();
                self.portion.next().map(Ok)
            }
            Err(error) => {
                self.next = None;
                Some(Err(error))
            }
        }
    }
}

const PORTION_BYTES: usize = 256 << 10;
