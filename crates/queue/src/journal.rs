//! The journal of a node: what all its Raft groups have to remember, in one log with one sync for all of them.
//!
//! ```text
//!   group 0 ── entries, vote ──┐
//!   group 1 ── entries, vote ──┼──► synod_log: one queue, one flusher, one sync
//!   group 2 ── entries, vote ──┘
//! ```
//!
//! A record says which group it belongs to. Groups write entries behind each other, take them back from the end
//! ([`truncate_after`](Journal::truncate_after)), drop them from the beginning ([`purge`](Journal::purge)), and keep their
//! vote and how far their log is committed. Nothing is written over: opening the journal replays the records in order.
//!
//! **Order.** Records become durable in the order in which they were handed in, so that a truncation or a purge needs no
//! waiting: whatever comes later is not durable before it.
//!
//! **Memory.** Of each entry the journal keeps where it is, and the bodies of the newest ones up to a bound. Older bodies are
//! read back from the log.
//!
//! **Space.** Segments whose entries no group needs any more are given back by [`compact`](Journal::compact). Votes and the
//! like that are still needed there are written anew at the end first.
//!
//! **Committed.** How far a log is committed costs no sync of its own: it goes along with the next record of its group. A
//! crash may lose it, and the group then learns it from its leader.

mod group;
mod record;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use synod_log::{Disk, Flusher, Log, LogConfig, LogError, LogStats, OpenError, Recovery, Ticket};

use self::group::{GroupState, Place};
use self::record::Record;

/// Where an entry stands in the log of its group: the term of the leader that made it, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId {
    /// The term.
    pub term: u64,
    /// The number, without gaps from 0 on.
    pub index: u64,
}

/// For whom a replica voted, and whether that one has won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// The term of the election.
    pub term: u64,
    /// The candidate.
    pub replica: u64,
    /// Whether a majority voted for it.
    pub is_committed: bool,
}

/// One entry of the log of a group. What its body means, the journal does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it stands.
    pub id: EntryId,
    /// What kind of body it has.
    pub kind: u8,
    /// The body.
    pub body: Bytes,
}

/// What a group has to remember besides its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Its vote.
    pub vote: Option<Vote>,
    /// How far its log is committed, as far as that is known.
    pub committed: Option<EntryId>,
    /// The last entry that was purged.
    pub purged: Option<EntryId>,
    /// The last entry; the last that was purged if there are none.
    pub last: Option<EntryId>,
}

/// The bounds of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// The log below. `record_bytes_max` bounds an entry, with [`ENTRY_OVERHEAD`](Self::ENTRY_OVERHEAD) bytes on top.
    /// Default: records of 9 MiB, of which 64 MiB may wait, in segments of 64 MiB.
    pub log: LogConfig,
    /// So many bytes of the newest entries of each group are kept in memory once they are durable. More spares followers that
    /// are behind the disk of their leader. Default 64 MiB.
    pub cache_bytes_max: usize,
}

impl JournalConfig {
    /// What an entry takes besides its body.
    pub const ENTRY_OVERHEAD: usize = record::ENTRY_OVERHEAD;

    fn check(&self) -> Result<(), JournalError> {
        // Something may go along with the largest entry.
        let (queue, min) = (self.log.queue_bytes_max, self.log.record_bytes_max.saturating_mul(2));
        if queue < min.saturating_add(QUEUE_BYTES_SPARE) {
            return Err(JournalError::Queue { value: queue, min: min + QUEUE_BYTES_SPARE });
        }
        Ok(())
    }
}

impl Default for JournalConfig {
    fn default() -> Self {
        let log =
            LogConfig { record_bytes_max: 9 << 20, queue_bytes_max: 64 << 20, segment_bytes_max: 64 << 20 };
        Self { log, cache_bytes_max: 64 << 20 }
    }
}

/// The journal of a node. Share it behind an [`Arc`](std::sync::Arc).
pub struct Journal {
    log: Log,
    config: JournalConfig,
    state: Mutex<State>,
    /// Held while segments are given back, so that one does it at a time.
    compaction: tokio::sync::Mutex<()>,
}

impl Journal {
    /// What an entry costs in the queue of the log, on top of its body.
    pub const ENTRY_COST: usize = JournalConfig::ENTRY_OVERHEAD + LogConfig::RECORD_OVERHEAD;

    /// Opens the journal on a disk, or begins one. Blocks until all of it is read.
    ///
    /// # Errors
    /// A setting is out of range, the disk failed, or durable data is damaged or makes no sense; the error says which file and
    /// where.
    pub fn open(config: JournalConfig, disk: impl Disk) -> Result<(Self, Recovery), JournalError> {
        config.check()?;
        let (log, recovery) = Log::open(config.log.clone(), disk)?;
        Ok((Self::replay(config, log, &recovery)?, recovery))
    }

    /// As [`open`](Self::open), without a thread: nothing is durable before the [`Flusher`] runs.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_apart(
        config: JournalConfig,
        disk: impl Disk,
    ) -> Result<(Self, Flusher, Recovery), JournalError> {
        config.check()?;
        let (log, flusher, recovery) = Log::open_apart(config.log.clone(), disk)?;
        Ok((Self::replay(config, log, &recovery)?, flusher, recovery))
    }

    fn replay(config: JournalConfig, log: Log, recovery: &Recovery) -> Result<Self, JournalError> {
        let mut state = State::default();
        for record in log.records(recovery.first_index) {
            let record = record?;
            let (index, bytes) = (record.index, Bytes::from(record.payload));
            let fault = |fault| JournalError::Record { index, fault };
            state.replay(index, bytes, config.cache_bytes_max).map_err(fault)?;
        }
        for (group, state) in &state.groups {
            state.check().map_err(|fault| JournalError::Group { group: *group, fault })?;
        }
        Ok(Self { log, config, state: Mutex::new(state), compaction: tokio::sync::Mutex::default() })
    }

    /// Writes entries behind the last of a group. They can be read when this returns, and are durable when the ticket says so.
    /// Never blocks.
    ///
    /// # Errors
    /// The entries do not follow the last one, one is too large, or the log is full or has stopped. None was written.
    pub fn append(&self, group: u16, entries: &[Entry]) -> Result<Ticket, JournalError> {
        let mut state = self.lock();
        let State { groups, written } = &mut *state;
        let group_state = groups.entry(group).or_default();
        group_state.check_next(entries).map_err(|fault| JournalError::Group { group, fault })?;
        let (ticket, first) = {
            let committed = group_state.committed_record().map(|record| record.encode(group));
            let records = entries.iter().map(|entry| record::encode_entry(group, entry));
            let records = committed.into_iter().chain(records);
            let ticket = self.log.try_append_all(records)?;
            let first = ticket.index() + 1 - entries.len() as u64;
            group_state.was_written(first.checked_sub(1));
            (ticket, first)
        };
        for (record, entry) in (first..).zip(entries) {
            *written += (entry.body.len() + JournalConfig::ENTRY_OVERHEAD) as u64;
            group_state.push(entry.clone(), record, *written);
        }
        if group_state.cached_bytes() > self.config.cache_bytes_max {
            group_state.evict(self.config.cache_bytes_max, self.log.durable_index());
        }
        Ok(ticket)
    }

    /// Takes back all entries of a group behind one; all of them if it is `None`. Never blocks.
    ///
    /// # Errors
    /// The log is full or has stopped. Nothing was changed.
    pub fn truncate_after(&self, group: u16, last: Option<EntryId>) -> Result<Ticket, JournalError> {
        self.write(group, Record::Truncate(last), |state, _| state.truncate_after(last))
    }

    /// Drops the entries of a group up to one, that one included. If the log ends before that, it goes on behind it. Never
    /// blocks.
    ///
    /// # Errors
    /// The log is full or has stopped. Nothing was changed.
    pub fn purge(&self, group: u16, upto: EntryId) -> Result<Ticket, JournalError> {
        self.write(group, Record::Purge(upto), |state, record| state.purge(upto, record))
    }

    /// Keeps the vote of a group. Never blocks.
    ///
    /// # Errors
    /// The log is full or has stopped. Nothing was changed.
    pub fn save_vote(&self, group: u16, vote: Vote) -> Result<Ticket, JournalError> {
        self.write(group, Record::Vote(vote), |state, record| state.set_vote(vote, record))
    }

    /// Notes how far the log of a group is committed. Goes along with the next record of the group.
    pub fn note_committed(&self, group: u16, committed: Option<EntryId>) {
        self.lock().groups.entry(group).or_default().note_committed(committed);
    }

    /// Writes down what was noted of a group and did not go along with anything. Never blocks.
    ///
    /// # Errors
    /// The log is full or has stopped.
    pub fn write_noted(&self, group: u16) -> Result<(), JournalError> {
        let mut state = self.lock();
        let group_state = state.groups.entry(group).or_default();
        let Some(record) = group_state.committed_record() else { return Ok(()) };
        let ticket = self.log.try_append(record.encode(group))?;
        group_state.was_written(Some(ticket.index()));
        Ok(())
    }

    /// Gives back the segments that no group needs any more.
    ///
    /// # Errors
    /// The log is full or has stopped.
    pub async fn compact(&self) -> Result<(), JournalError> {
        let _compaction = self.compaction.lock().await;
        let (ticket, oldest) = self.keep_needed()?;
        ticket.await?;
        self.log.compact_before(oldest)?.await?;
        Ok(())
    }

    /// Writes anew what is needed of the records before the oldest entry, and says which record that is in.
    fn keep_needed(&self) -> Result<(Ticket, u64), JournalError> {
        let mut state = self.lock();
        // The next record is not written yet: nothing before it is needed if no group has entries.
        let oldest = state.groups.values().filter_map(GroupState::oldest_entry).min();
        let oldest = oldest.unwrap_or_else(|| self.log.last_index() + 1);
        let mut records = Vec::new();
        for (group, group_state) in &state.groups {
            records.extend(group_state.kept_before(oldest).map(|record| record.encode(*group)));
        }
        let count = records.len() as u64;
        let ticket = self.log.try_append_all(records)?;
        let mut next = ticket.index() + 1 - count;
        for group_state in state.groups.values_mut() {
            group_state.was_rewritten(oldest, &mut next);
        }
        Ok((ticket, oldest))
    }

    /// Ends the journal: writes down what is noted, and waits until all of it is durable.
    ///
    /// # Errors
    /// The disk failed, now or earlier.
    pub fn close(self) -> Result<(), JournalError> {
        let groups: Vec<u16> = self.lock().groups.keys().copied().collect();
        for group in groups {
            self.write_noted(group)?;
        }
        Ok(self.log.close()?)
    }

    /// A ticket that resolves when all that was written so far is durable.
    ///
    /// # Errors
    /// The log has stopped.
    pub fn durable(&self) -> Result<Ticket, JournalError> {
        Ok(self.log.try_append_all(std::iter::empty::<Vec<u8>>())?)
    }

    /// What a group has to remember.
    #[must_use]
    pub fn remembered(&self, group: u16) -> Remembered {
        self.lock().groups.get(&group).map(GroupState::remembered).unwrap_or_default()
    }

    /// Entries of a group from `from` on and before `to`, those that there are, until they would exceed `bytes_max`; at least
    /// one if there is one. `None` if some have to be read from the disk: then ask [`read`](Self::read).
    #[must_use]
    pub fn read_cached(&self, group: u16, from: u64, to: u64, bytes_max: usize) -> Option<Vec<Entry>> {
        match self.look(group, from, to, bytes_max) {
            (places, entries) if places.is_empty() => Some(entries),
            _ => None,
        }
    }

    /// As [`read_cached`](Self::read_cached), and reads what is not in memory. Blocks on the disk.
    ///
    /// # Errors
    /// The disk failed, or what was read is damaged.
    pub fn read(&self, group: u16, from: u64, to: u64, bytes_max: usize) -> Result<Vec<Entry>, JournalError> {
        loop {
            let (places, mut entries) = self.look(group, from, to, bytes_max);
            match self.fetch(group, &places) {
                Ok(mut fetched) => {
                    fetched.append(&mut entries);
                    return Ok(fetched);
                }
                // They were purged and given back in the meantime: look again at what is left.
                Err(JournalError::Log(LogError::OutOfRange { first, .. }))
                    if places.iter().any(|place| place.record < first) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes of the entries of a group behind an index, as the log counts them; of all of them for `None`.
    #[must_use]
    pub fn bytes_after(&self, group: u16, index: Option<u64>) -> u64 {
        self.lock().groups.get(&group).map_or(0, |state| state.bytes_after(index))
    }

    /// The last entry of a group that has at least so many bytes of its entries between it and `before`, if there is one.
    #[must_use]
    pub fn index_behind(&self, group: u16, before: u64, bytes: u64) -> Option<u64> {
        self.lock().groups.get(&group)?.index_behind(before, bytes)
    }

    /// Bytes that all groups have written since the oldest entry of this one: what it keeps from being given back.
    #[must_use]
    pub fn bytes_held(&self, group: u16) -> u64 {
        let state = self.lock();
        let oldest = state.groups.get(&group).and_then(GroupState::oldest_offset);
        oldest.map_or(0, |offset| state.written.saturating_sub(offset))
    }

    /// The longest body of an entry.
    #[must_use]
    pub fn body_bytes_max(&self) -> usize {
        self.config.log.record_bytes_max.saturating_sub(JournalConfig::ENTRY_OVERHEAD)
    }

    /// The most that may be appended at a time, each entry counted with [`ENTRY_COST`](Self::ENTRY_COST) bytes on top of its
    /// body: later there is room for that much. One entry is never too much.
    #[must_use]
    pub fn portion_bytes_max(&self) -> usize {
        self.config.log.queue_bytes_max / 2
    }

    /// Bytes in a segment: the least that can be given back.
    #[must_use]
    pub fn segment_bytes_max(&self) -> usize {
        self.config.log.segment_bytes_max
    }

    /// The first record that the log still has. Grows when segments are given back.
    #[must_use]
    pub fn first_record(&self) -> u64 {
        self.log.first_index()
    }

    /// What the log below has done.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.log.stats()
    }

    fn write(
        &self,
        group: u16,
        record: Record,
        change: impl FnOnce(&mut GroupState, u64),
    ) -> Result<Ticket, JournalError> {
        let mut state = self.lock();
        let group_state = state.groups.entry(group).or_default();
        let committed = group_state.committed_record();
        let records = committed.into_iter().chain([record]).map(|record| record.encode(group));
        let ticket = self.log.try_append_all(records)?;
        group_state.was_written(ticket.index().checked_sub(1));
        change(group_state, ticket.index());
        Ok(ticket)
    }

    /// Where the entries are that are not in memory, and those behind them that are.
    fn look(&self, group: u16, from: u64, to: u64, bytes_max: usize) -> (Vec<Place>, Vec<Entry>) {
        let state = self.lock();
        state.groups.get(&group).map(|state| state.look(from, to, bytes_max)).unwrap_or_default()
    }

    fn fetch(&self, group: u16, places: &[Place]) -> Result<Vec<Entry>, JournalError> {
        let mut entries = Vec::with_capacity(places.len());
        while let Some(place) = places.get(entries.len()) {
            let portion = self.log.read(place.record, PORTION_BYTES)?;
            let before = entries.len();
            for record in portion {
                if places.get(entries.len()).is_none_or(|place| place.record != record.index) {
                    continue;
                }
                let index = record.index;
                match Record::decode(Bytes::from(record.payload)) {
                    Ok((owner, Record::Entry(entry))) if owner == group => entries.push(entry),
                    Ok(_) => return Err(JournalError::Record { index, fault: Fault::Kind }),
                    Err(fault) => return Err(JournalError::Record { index, fault }),
                }
            }
            if entries.len() == before {
                return Err(JournalError::Record { index: place.record, fault: Fault::Gap });
            }
        }
        Ok(entries)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("config", &self.config).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    groups: BTreeMap<u16, GroupState>,
    /// Bytes of all entries ever written, since the journal was opened and as far as it was replayed.
    written: u64,
}

impl State {
    fn replay(&mut self, index: u64, bytes: Bytes, cache_bytes_max: usize) -> Result<(), Fault> {
        let (group, record) = Record::decode(bytes)?;
        let state = self.groups.entry(group).or_default();
        match record {
            Record::Entry(entry) => {
                state.check_replayed(&entry)?;
                self.written += (entry.body.len() + JournalConfig::ENTRY_OVERHEAD) as u64;
                state.push(entry, index, self.written);
                state.evict(cache_bytes_max, u64::MAX);
            }
            Record::Truncate(last) => state.truncate_after(last),
            Record::Purge(upto) => state.purge(upto, index),
            Record::Vote(vote) => state.set_vote(vote, index),
            Record::Committed(committed) => {
                state.note_committed(committed);
                state.was_written(Some(index));
            }
        }
        Ok(())
    }
}

/// A journal could not be opened, or did not do what it was to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// `queue_bytes_max` of the log is too small. Nothing was opened.
    #[error("log.queue_bytes_max of a journal must be at least {min}, it is {value}")]
    Queue {
        /// The refused value.
        value: usize,
        /// The smallest value.
        min: usize,
    },
    /// It could not be opened.
    #[error("the journal cannot be opened: {0}")]
    Open(#[from] OpenError),
    /// The log below refused, or has stopped.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A record of the log is sound, but not one of a journal.
    #[error("record {index} of the journal {fault}")]
    Record {
        /// Which record.
        index: u64,
        /// What is wrong with it.
        fault: Fault,
    },
    /// The entries of a group make no sense.
    #[error("the entries of group {group} make no sense: one {fault}")]
    Group {
        /// Which group.
        group: u16,
        /// What is wrong with them.
        fault: Fault,
    },
}

impl JournalError {
    /// Whether it is only that too much waits to become durable: later there will be room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Log(LogError::QueueFull { .. }))
    }
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It was written by another version of this program, most likely a newer one.
    #[error("has version {0} of the format, which is not known")]
    Version(u8),
    /// It ends too early or is too long.
    #[error("has the wrong length")]
    Length,
    /// It is of a kind that is not known, or not expected there.
    #[error("is of the wrong kind")]
    Kind,
    /// Something is missing before it.
    #[error("does not follow the one before it")]
    Gap,
}

/// What is left in the queue beside two of the largest records.
const QUEUE_BYTES_SPARE: usize = 1024;
/// How much is read from the log at a time.
const PORTION_BYTES: usize = 1 << 20;
