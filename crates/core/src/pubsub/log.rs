//! What some subscriber still needs, in the order in which it was published.
//!
//! Every subscriber needs everything from its own place to the end, so the number that needs an entry never falls
//! towards the end of the log: an entry that nobody needs is always the first one, and is dropped at once.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::time::TimerInstant;

/// The messages of one topic, numbered.
#[derive(Clone, Debug)]
pub(super) struct Log<P> {
    entries: VecDeque<Entry<P>>,
    first: u64,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Entry<P> {
    payload: P,
    bytes: usize,
    published_at: TimerInstant,
    needed_by: usize,
}

impl<P: Clone> Log<P> {
    pub(super) const fn new() -> Self {
        Self { entries: VecDeque::new(), first: 0, bytes: 0 }
    }

    pub(super) fn push(&mut self, payload: P, bytes: usize, needed_by: usize, now: TimerInstant) {
        self.bytes += bytes;
        self.entries.push_back(Entry { payload, bytes, published_at: now, needed_by });
    }

    /// One subscriber needs the messages from `from` up to `to` no longer.
    pub(super) fn release(&mut self, from: u64, to: u64) {
        for number in from.max(self.first)..to {
            if let Some(entry) = self.index(number).and_then(|index| self.entries.get_mut(index)) {
                entry.needed_by = entry.needed_by.saturating_sub(1);
            }
        }
        while self.entries.front().is_some_and(|entry| entry.needed_by == 0) {
            self.pop();
        }
    }

    /// Drops the oldest message, whoever needs it.
    pub(super) fn pop(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.first += 1;
            self.bytes -= entry.bytes;
        }
    }

    /// Where a delivery that begins at `from` ends: before the message that is one too many. At least one fits.
    pub(super) fn batch_end(&self, from: u64, messages_max: usize, bytes_max: usize) -> u64 {
        let Some(start) = self.index(from) else { return from };
        let mut bytes = 0_usize;
        let fitting = self.entries.iter().skip(start).take(messages_max).take_while(|entry| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(entry.bytes.max(1));
            is_first || bytes <= bytes_max
        });
        from + fitting.count() as u64
    }

    pub(super) fn payloads(&self, from: u64, to: u64) -> Vec<P> {
        let Some(start) = self.index(from) else { return Vec::new() };
        let length = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
        self.entries.iter().skip(start).take(length).map(|entry| entry.payload.clone()).collect()
    }

    /// Every message with its size and when it was published, the oldest first.
    pub(super) fn entries(&self) -> impl DoubleEndedIterator<Item = (&P, usize, TimerInstant)> {
        self.entries.iter().map(|entry| (&entry.payload, entry.bytes, entry.published_at))
    }

    /// The number of the oldest message.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }

    /// The number that the next message gets.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn oldest(&self) -> Option<TimerInstant> {
        self.entries.front().map(|entry| entry.published_at)
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }
}
