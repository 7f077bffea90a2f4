//! What happened to grains a moment ago, by key: bounded in time and in number.

use alloc::collections::{BTreeMap, VecDeque};

use crate::time::TimerInstant;

/// Values that are forgotten after a while. The oldest makes room.
#[derive(Clone, Debug)]
pub(super) struct Recent<K, V> {
    values: BTreeMap<K, (u64, V)>,
    order: VecDeque<(TimerInstant, u64, K)>,
    last_number: u64,
    max: usize,
}

impl<K: Ord + Clone, V> Recent<K, V> {
    pub(super) const fn new(max: usize) -> Self {
        Self { values: BTreeMap::new(), order: VecDeque::new(), last_number: 0, max }
    }

    /// Remembers `value` until then, in place of an earlier one. Later calls give later times.
    pub(super) fn insert(&mut self, key: &K, value: V, until: TimerInstant) {
        self.last_number += 1;
        self.values.insert(key.clone(), (self.last_number, value));
        self.order.push_back((until, self.last_number, key.clone()));
        while self.order.len() > self.max {
            self.drop_front();
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.values.get_mut(key).map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.values.remove(key).map(|(_, value)| value)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.values.keys()
    }

    pub(super) fn forget(&mut self, now: TimerInstant) {
        while self.next().is_some_and(|until| until <= now) {
            self.drop_front();
        }
    }

    /// When something is to be forgotten.
    pub(super) fn next(&self) -> Option<TimerInstant> {
        self.order.front().map(|(until, ..)| *until)
    }

    fn drop_front(&mut self) {
        let Some((_, number, key)) = self.order.pop_front() else { return };
        // Unless it was remembered anew.
        if self.values.get(&key).is_some_and(|(known, _)| *known == number) {
            self.values.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> TimerInstant {
        TimerInstant::from_millis(millis)
    }

    #[test]
    fn what_is_remembered_anew_stays_longer_and_the_oldest_makes_room() {
        let mut recent = Recent::new(3);
        recent.insert(&"a", 1, at(10));
        recent.insert(&"b", 2, at(20));
        recent.insert(&"a", 3, at(30));
        recent.forget(at(20));
        assert_eq!((recent.get(&"a"), recent.get(&"b"), recent.next()), (Some(&3), None, Some(at(30))));
        for (key, value) in [("c", 4), ("d", 5), ("e", 6)] {
            recent.insert(&key, value, at(40));
        }
        assert_eq!((recent.get(&"a"), recent.get(&"c")), (None, Some(&4)));
        recent.forget(at(40));
        assert_eq!(recent.next(), None);
        assert!(recent.values.is_empty());
    }
}
