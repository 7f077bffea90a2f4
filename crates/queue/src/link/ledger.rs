//! Commands without an outcome, by their numbers.

use std::collections::VecDeque;

use tokio::time::Instant;

/// Things with numbers that rise by one, of which any may go.
pub(super) struct Ledger<T> {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Option<Entry<T>>>,
}

/// One of them.
pub(super) struct Entry<T> {
    pub(super) since: Instant,
    pub(super) is_sent: bool,
    pub(super) item: T,
}

impl<T> Ledger<T> {
    pub(super) const fn new() -> Self {
        Self { first: 1, places: VecDeque::new() }
    }

    /// From the first one that is left to the last, gaps included: what the window of the leader counts.
    pub(super) fn span(&self) -> usize {
        self.places.len()
    }

    /// Adds one, and tells its number.
    pub(super) fn push(&mut self, now: Instant, is_sent: bool, item: T) -> u64 {
        self.places.push_back(Some(Entry { since: now, is_sent, item }));
        self.first + self.places.len() as u64 - 1
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let entry = self.places.get_mut(place)?.take();
        self.drop_gaps();
        entry.map(|entry| entry.item)
    }

    /// All that are left, with their numbers, in order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Entry<T>)> {
        let numbered = (self.first..).zip(self.places.iter_mut());
        numbered.filter_map(|(number, entry)| entry.as_mut().map(|entry| (number, entry)))
    }

    /// When the oldest one came.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.places.front()?.as_ref().map(|entry| entry.since)
    }

    /// Takes out those that came before a time, with their numbers.
    pub(super) fn expire(&mut self, before: Instant) -> Vec<(u64, Entry<T>)> {
        let mut expired = Vec::new();
        while let Some(Some(entry)) = self.places.front()
            && entry.since <= before
        {
            expired.extend(self.places.pop_front().flatten().map(|entry| (self.first, entry)));
            self.first += 1;
            self.drop_gaps();
        }
        expired
    }

    /// Begins anew with the numbers; those that were sent are taken out, with the numbers that they had, for nobody knows
    /// what became of them.
    pub(super) fn renumber(&mut self) -> Vec<(u64, T)> {
        let numbered = (self.first..).zip(self.places.drain(..));
        let numbered = numbered.filter_map(|(number, entry)| entry.map(|entry| (number, entry)));
        let (sent, unsent): (Vec<_>, Vec<_>) = numbered.partition(|(_, entry)| entry.is_sent);
        self.first = 1;
        self.places = unsent.into_iter().map(|(_, entry)| Some(entry)).collect();
        sent.into_iter().map(|(number, entry)| (number, entry.item)).collect()
    }

    fn drop_gaps(&mut self) {
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn numbers_stay_with_their_things() {
        let start = Instant::now();
        let mut ledger = Ledger::new();
        for (step, item) in ["a", "b", "c", "d"].into_iter().enumerate() {
            let now = start + Duration::from_secs(step as u64);
            assert_eq!(ledger.push(now, false, item), step as u64 + 1);
        }
        assert_eq!(ledger.remove(3), Some("c"));
        assert_eq!((ledger.remove(3), ledger.remove(0), ledger.remove(9)), (None, None, None));
        assert_eq!(ledger.span(), 4);
        let expired = ledger.expire(start + Duration::from_secs(1)).into_iter();
        assert_eq!(
            expired.map(|(number, entry)| (number, entry.item)).collect::<Vec<_>>(),
            [(1, "a"), (2, "b")]
        );
        assert_eq!(ledger.span(), 1, "the gap behind them went too");
        assert_eq!(ledger.push(start, false, "e"), 5);
        for (number, entry) in ledger.iter_mut() {
            entry.is_sent = number == 4;
        }
        assert_eq!(ledger.renumber(), [(4, "d")]);
        assert_eq!(
            ledger.iter_mut().map(|(number, entry)| (number, entry.item)).collect::<Vec<_>>(),
            [(1, "e")]
        );
    }
}
