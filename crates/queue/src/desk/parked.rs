//! Pulls that wait until there is something to pull.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use synod_core::jobs::QueueName;

use super::{StreamId, Wish};

/// Pulls that wait, the oldest first.
#[derive(Default)]
pub(super) struct Parked {
    next: u64,
    wishes: BTreeMap<u64, (StreamId, Wish)>,
    by_id: HashMap<(StreamId, u64), u64>,
    by_queue: HashMap<QueueName, BTreeSet<u64>>,
    by_stream: HashMap<StreamId, BTreeSet<u64>>,
}

impl Parked {
    pub(super) fn insert(&mut self, stream: StreamId, wish: Wish) {
        // An id that is used twice replaces the first.
        self.remove(stream, wish.id);
        let place = self.next;
        self.next += 1;
        self.by_id.insert((stream, wish.id), place);
        self.by_stream.entry(stream).or_default().insert(place);
        for queue in &wish.queues {
            self.by_queue.entry(queue.clone()).or_default().insert(place);
        }
        self.wishes.insert(place, (stream, wish));
    }

    /// How many a stream has.
    pub(super) fn count(&self, stream: StreamId) -> usize {
        self.by_stream.get(&stream).map_or(0, BTreeSet::len)
    }

    pub(super) fn remove(&mut self, stream: StreamId, id: u64) -> Option<Wish> {
        let place = *self.by_id.get(&(stream, id))?;
        self.take(place).map(|(_, wish)| wish)
    }

    pub(super) fn remove_all(&mut self, stream: StreamId) {
        for place in self.by_stream.remove(&stream).unwrap_or_default() {
            self.take(place);
        }
    }

    /// Takes out those that wait for a queue, the oldest first, at most so many.
    pub(super) fn wake(&mut self, queue: &QueueName, count: usize) -> Vec<(StreamId, Wish)> {
        let places: Vec<u64> = self.by_queue.get(queue).into_iter().flatten().take(count).copied().collect();
        places.into_iter().filter_map(|place| self.take(place)).collect()
    }

    fn take(&mut self, place: u64) -> Option<(StreamId, Wish)> {
        let (stream, wish) = self.wishes.remove(&place)?;
        self.by_id.remove(&(stream, wish.id));
        for queue in &wish.queues {
            if let Some(places) = self.by_queue.get_mut(queue) {
                places.remove(&place);
                if places.is_empty() {
                    self.by_queue.remove(queue);
                }
            }
        }
        if let Some(places) = self.by_stream.get_mut(&stream) {
            places.remove(&place);
            if places.is_empty() {
                self.by_stream.remove(&stream);
            }
        }
        Some((stream, wish))
    }
}

#[cfg(test)]
mod tests {
    use synod_core::jobs::SessionId;

    use super::*;

    fn wish(id: u64, queues: &[&str]) -> Wish {
        let queues = queues.iter().map(|name| QueueName::new(name).expect("name")).collect();
        Wish { id, session: SessionId::new(id), queues, count: 1, ttr_ms: None, waits: true }
    }

    #[test]
    fn the_oldest_is_woken_first_and_once() {
        let (a, b) = (QueueName::new("a").expect("name"), QueueName::new("b").expect("name"));
        let (first, second) = (StreamId(1), StreamId(2));
        let mut parked = Parked::default();
        parked.insert(first, wish(1, &["a", "b"]));
        parked.insert(second, wish(1, &["a"]));
        parked.insert(first, wish(2, &["b"]));
        assert_eq!((parked.count(first), parked.count(second)), (2, 1));
        let woken: Vec<_> = parked.wake(&a, 1).into_iter().map(|(stream, wish)| (stream, wish.id)).collect();
        assert_eq!(woken, [(first, 1)]);
        let woken: Vec<_> = parked.wake(&b, 9).into_iter().map(|(stream, wish)| (stream, wish.id)).collect();
        assert_eq!(woken, [(first, 2)], "the other one is gone from here too");
        assert!(parked.remove(first, 1).is_none());
        parked.remove_all(second);
        assert!(parked.wake(&a, 9).is_empty());
        assert!(parked.by_id.is_empty() && parked.by_queue.is_empty() && parked.by_stream.is_empty());
    }
}
