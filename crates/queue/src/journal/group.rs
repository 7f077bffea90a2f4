//! What the journal knows of one group: where its entries are, the newest of them, and the little besides.

use std::collections::VecDeque;

use super::record::Record;
use super::{Entry, EntryId, Fault, JournalConfig, Remembered, Vote};

/// Where an entry is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) term: u64,
    /// The index of its record.
    pub(super) record: u64,
    /// Bytes of the entries of this group up to and with this one, since the first that was ever seen.
    end: u64,
    /// The same over all groups.
    offset: u64,
}

/// Something that one record holds, and which one that is.
#[derive(Clone, Copy, Debug)]
struct Kept<T> {
    value: T,
    record: u64,
}

#[derive(Debug, Default)]
pub(super) struct GroupState {
    vote: Option<Kept<Vote>>,
    purged: Option<Kept<EntryId>>,
    committed: Option<EntryId>,
    /// The record that holds `committed`; `None` while it is only noted.
    committed_record: Option<u64>,
    is_noted: bool,
    /// The index of the first place.
    first: u64,
    places: VecDeque<Place>,
    /// The last entries, in memory.
    cache: VecDeque<Entry>,
    cached_bytes: usize,
    /// Bytes of all entries up to the one before the first place.
    base: u64,
}

impl GroupState {
    pub(super) fn push(&mut self, entry: Entry, record: u64, offset: u64) {
        if self.places.is_empty() {
            self.first = entry.id.index;
        }
        let end = self.end() + cost(&entry) as u64;
        self.places.push_back(Place { term: entry.id.term, record, end, offset });
        self.cached_bytes += cost(&entry);
        self.cache.push_back(entry);
    }

    /// Forgets the bodies of the oldest entries, of those that are durable.
    pub(super) fn evict(&mut self, bytes_max: usize, durable: u64) {
        while self.cached_bytes > bytes_max && self.cache.len() > 1 {
            let oldest = self.places.len() - self.cache.len();
            if self.places[oldest].record > durable {
                return;
            }
            self.forget_oldest();
        }
    }

    pub(super) fn truncate_after(&mut self, last: Option<EntryId>) {
        let next = last.map_or(0, |last| last.index + 1);
        let keep = usize::try_from(next.saturating_sub(self.first)).unwrap_or(usize::MAX);
        while self.places.len() > keep {
            self.places.pop_back();
            if let Some(entry) = self.cache.pop_back() {
                self.cached_bytes -= cost(&entry);
            }
        }
    }

    pub(super) fn purge(&mut self, upto: EntryId, record: u64) {
        while !self.places.is_empty() && self.first <= upto.index {
            if self.cache.len() == self.places.len() {
                self.forget_oldest();
            }
            if let Some(place) = self.places.pop_front() {
                self.base = place.end;
            }
            self.first += 1;
        }
        if self.purged.is_none_or(|purged| purged.value.index <= upto.index) {
            self.purged = Some(Kept { value: upto, record });
        }
    }

    pub(super) fn set_vote(&mut self, vote: Vote, record: u64) {
        self.vote = Some(Kept { value: vote, record });
    }

    pub(super) fn note_committed(&mut self, committed: Option<EntryId>) {
        if self.committed != committed {
            self.committed = committed;
            self.is_noted = true;
        }
    }

    /// The record that is to go along with the next one, if there is something to write down.
    pub(super) fn committed_record(&self) -> Option<Record> {
        self.is_noted.then_some(Record::Committed(self.committed))
    }

    /// What was noted was written down, with this record.
    pub(super) fn was_written(&mut self, record: Option<u64>) {
        if self.is_noted {
            self.is_noted = false;
            self.committed_record = record;
        }
    }

    /// What has to be written anew for all records before `oldest` to be dispensable.
    pub(super) fn kept_before(&self, oldest: u64) -> impl Iterator<Item = Record> + use<> {
        let vote = self.vote.filter(|kept| kept.record < oldest).map(|kept| Record::Vote(kept.value));
        let purged = self.purged.filter(|kept| kept.record < oldest).map(|kept| Record::Purge(kept.value));
        let committed = self.committed_record.filter(|record| *record < oldest);
        let committed = committed.map(|_| Record::Committed(self.committed));
        vote.into_iter().chain(purged).chain(committed)
    }

    /// That was done, with records from `next` on.
    pub(super) fn was_rewritten(&mut self, oldest: u64, next: &mut u64) {
        let mut take = |record: &mut u64| {
            if *record < oldest {
                *record = *next;
                *next += 1;
            }
        };
        if let Some(kept) = &mut self.vote {
            take(&mut kept.record);
        }
        if let Some(kept) = &mut self.purged {
            take(&mut kept.record);
        }
        if let Some(record) = &mut self.committed_record {
            take(record);
        }
    }

    /// Whether these may follow the last entry.
    pub(super) fn check_next(&self, entries: &[Entry]) -> Result<(), Fault> {
        let first = match self.last() {
            Some(last) => last.index + 1,
            None => entries.first().map_or(0, |entry| entry.id.index),
        };
        let is_next = (first..).zip(entries).all(|(index, entry)| entry.id.index == index);
        if is_next { Ok(()) } else { Err(Fault::Gap) }
    }

    /// Whether an entry that was found in the log may stand there. What came before it may have been given back.
    pub(super) fn check_replayed(&self, entry: &Entry) -> Result<(), Fault> {
        match self.places.is_empty() {
            true => Ok(()),
            false => self.check_next(std::slice::from_ref(entry)),
        }
    }

    /// Whether the entries that a replay has left are without a gap.
    pub(super) fn check(&self) -> Result<(), Fault> {
        let expected = self.purged.map_or(0, |purged| purged.value.index + 1);
        if self.places.is_empty() || self.first == expected { Ok(()) } else { Err(Fault::Gap) }
    }

    pub(super) fn remembered(&self) -> Remembered {
        Remembered {
            vote: self.vote.map(|kept| kept.value),
            committed: self.committed,
            purged: self.purged.map(|kept| kept.value),
            last: self.last(),
        }
    }

    pub(super) fn place(&self, index: u64) -> Option<&Place> {
        self.places.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    pub(super) fn look(&self, from: u64, to: u64, bytes_max: usize) -> (Vec<Place>, Vec<Entry>) {
        let next = self.first + self.places.len() as u64;
        let (from, to) = (from.max(self.first), to.min(next));
        let (mut places, mut entries, mut bytes) = (Vec::new(), Vec::new(), 0);
        let cache_first = next - self.cache.len() as u64;
        for index in from..to {
            let Some(place) = self.place(index) else { break };
            let before =
                index.checked_sub(1).and_then(|index| self.place(index)).map_or(self.base, |place| place.end);
            bytes += place.end - before;
            if bytes > bytes_max as u64 && index > from {
                break;
            }
            match index.checked_sub(cache_first).and_then(|at| self.cache.get(usize::try_from(at).ok()?)) {
                Some(entry) => entries.push(entry.clone()),
                None => places.push(*place),
            }
        }
        (places, entries)
    }

    pub(super) fn bytes_after(&self, index: Option<u64>) -> u64 {
        let start = match index {
            Some(index) if index >= self.first => {
                self.place(index).map_or_else(|| self.end(), |place| place.end)
            }
            _ => self.base,
        };
        self.end() - start
    }

    pub(super) fn index_behind(&self, before: u64, bytes: u64) -> Option<u64> {
        let limit = self.place(before)?.end.checked_sub(bytes)?;
        let count = self.places.partition_point(|place| place.end <= limit);
        (self.first + count as u64).checked_sub(1).filter(|index| count > 0 && *index <= before)
    }

    /// The record of the oldest entry.
    pub(super) fn oldest_entry(&self) -> Option<u64> {
        self.places.front().map(|place| place.record)
    }

    pub(super) fn oldest_offset(&self) -> Option<u64> {
        self.places.front().map(|place| place.offset)
    }

    pub(super) fn cached_bytes(&self) -> usize {
        self.cached_bytes
    }

    fn last(&self) -> Option<EntryId> {
        let last = self
            .places
            .back()
            .map(|place| EntryId { term: place.term, index: self.first + self.places.len() as u64 - 1 });
        last.or_else(|| self.purged.map(|kept| kept.value))
    }

    fn end(&self) -> u64 {
        self.places.back().map_or(self.base, |place| place.end)
    }

    fn forget_oldest(&mut self) {
        if let Some(entry) = self.cache.pop_front() {
            self.cached_bytes -= cost(&entry);
        }
    }
}

fn cost(entry: &Entry) -> usize {
    entry.body.len() + JournalConfig::ENTRY_OVERHEAD
}
