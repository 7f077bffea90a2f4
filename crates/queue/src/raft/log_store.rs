//! The log of a group, as the engine wants it: a thin layer over the journal.
//!
//! Appending hands the entries to the journal and returns. One task per group waits for the tickets, in order, and tells the
//! engine. Only votes are waited for.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{OptionalSend, alias::LogIdOf};
use synod_log::Ticket;
use tokio::sync::mpsc;

use super::types::{Entry, Types, Vote, entry_id, kept_entry, kept_vote, log_id, read_entry, vote_of};
use crate::blocking::blocking;
use crate::journal::{self, Journal, JournalError};

/// The log of one group.
pub(crate) struct LogStore {
    reader: LogReader,
    /// What waits to become durable, for the task that tells the engine. As much as the queue of the log lets in.
    waiting: mpsc::UnboundedSender<(Ticket, IOFlushed<Types>)>,
}

impl LogStore {
    /// The log of a group. Needs a runtime.
    pub(crate) fn new(journal: Arc<Journal>, group: u16) -> Self {
        let (waiting, tickets) = mpsc::unbounded_channel();
        tokio::spawn(tell(tickets));
        Self { reader: LogReader { journal, group }, waiting }
    }

    /// Has something written, and waits for room only if there is none.
    async fn write<T>(&self, mut write: impl FnMut(&Journal) -> Result<T, JournalError>) -> io::Result<T> {
        loop {
            match write(&self.reader.journal) {
                Err(error) if error.is_full() => {
                    let all = self.reader.journal.durable().map_err(io::Error::other)?;
                    all.await.map_err(io::Error::other)?;
                }
                written => return written.map_err(io::Error::other),
            }
        }
    }

    /// Gives segments back in the background, if it may be worth it.
    fn compact(&self, bytes: u64) {
        if bytes >= self.reader.journal.segment_bytes_max() as u64 / 4 {
            let journal = Arc::clone(&self.reader.journal);
            tokio::spawn(async move {
                if let Err(error) = journal.compact().await {
                    // If the disk failed, the log has stopped, and the next append tells the engine.
                    tracing::warn!(%error, "the journal could not give back segments");
                }
            });
        }
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let remembered = self.reader.journal.remembered(self.reader.group);
        Ok(LogState {
            last_purged_log_id: remembered.purged.map(log_id),
            last_log_id: remembered.last.map(log_id),
        })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.reader.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let ticket = self.write(|journal| journal.save_vote(self.reader.group, kept_vote(vote))).await?;
        ticket.await.map(drop).map_err(io::Error::other)
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<Types>>) -> io::Result<()> {
        self.reader.journal.note_committed(self.reader.group, committed.as_ref().map(entry_id));
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<Types>>> {
        Ok(self.reader.journal.remembered(self.reader.group).committed.map(log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().map(kept_entry).collect();
        let mut last = None;
        for portion in portions(&entries, self.reader.journal.portion_bytes_max()) {
            last = Some(self.write(|journal| journal.append(self.reader.group, portion)).await?);
        }
        match last {
            // The engine is gone if nobody takes it.
            Some(ticket) => drop(self.waiting.send((ticket, callback))),
            None => callback.io_completed(Ok(())),
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Types>>) -> io::Result<()> {
        let last = last.as_ref().map(entry_id);
        self.write(|journal| journal.truncate_after(self.reader.group, last)).await.map(drop)
    }

    async fn purge(&mut self, upto: LogIdOf<Types>) -> io::Result<()> {
        let (journal, group) = (&self.reader.journal, self.reader.group);
        let before = journal.bytes_after(group, None);
        drop(self.write(|journal| journal.purge(group, entry_id(&upto))).await?);
        self.compact(before.saturating_sub(journal.bytes_after(group, None)));
        Ok(())
    }
}

/// Reads the log of one group.
#[derive(Clone)]
pub(crate) struct LogReader {
    journal: Arc<Journal>,
    group: u16,
}

impl LogReader {
    async fn read(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let group = self.group;
        let entries = match self.journal.read_cached(group, from, to, bytes_max) {
            Some(entries) => entries,
            None => {
                let journal = Arc::clone(&self.journal);
                let read = move || journal.read(group, from, to, bytes_max).map_err(io::Error::other);
                blocking(read).await?
            }
        };
        entries.into_iter().map(read_entry).collect()
    }
}

impl RaftLogReader<Types> for LogReader {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        self.read(from, to, usize::MAX).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.journal.remembered(self.group).vote.map(vote_of))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start, end, READ_BYTES_MAX).await
    }
}

/// Entries in portions that fit into the queue of the log.
fn portions(entries: &[journal::Entry], bytes_max: usize) -> impl Iterator<Item = &[journal::Entry]> {
    let mut bytes = 0;
    entries.chunk_by(move |_, next| {
        // Only those behind the first of a portion are counted: one is never too much.
        bytes += next.body.len() + Journal::ENTRY_COST;
        let is_same = bytes <= bytes_max;
        if !is_same {
            bytes = 0;
        }
        is_same
    })
}

/// Tells the engine what is durable, in order.
async fn tell(mut tickets: mpsc::UnboundedReceiver<(Ticket, IOFlushed<Types>)>) {
    while let Some((ticket, callback)) = tickets.recv().await {
        callback.io_completed(ticket.await.map(drop).map_err(io::Error::other));
    }
}

/// The most that is read from the log for one message to a follower.
const READ_BYTES_MAX: usize = 4 << 20;
