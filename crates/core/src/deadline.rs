//! Alarms: at most one per key, found in order of time.
//!
//! Everything that waits for something keeps its alarm here, so that asking "is anything due" looks at one element,
//! whatever the number of members.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::time::TimerInstant;

/// A set of keys, each with one point in time.
#[derive(Clone, Debug)]
pub(crate) struct DeadlineQueue<K> {
    at: BTreeMap<K, TimerInstant>,
    order: BTreeSet<(TimerInstant, K)>,
}

impl<K: Ord + Clone> DeadlineQueue<K> {
    pub(crate) const fn new() -> Self {
        Self { at: BTreeMap::new(), order: BTreeSet::new() }
    }

    /// Sets the alarm of `key`, replacing an earlier one.
    pub(crate) fn set(&mut self, key: &K, at: TimerInstant) {
        if let Some(known) = self.at.get_mut(key) {
            if *known == at {
                return;
            }
            self.order.remove(&(*known, key.clone()));
            *known = at;
        } else {
            self.at.insert(key.clone(), at);
        }
        self.order.insert((at, key.clone()));
    }

    pub(crate) fn clear(&mut self, key: &K) {
        if let Some(at) = self.at.remove(key) {
            self.order.remove(&(at, key.clone()));
        }
    }

    /// Takes the earliest key whose time has come.
    pub(crate) fn pop_due(&mut self, now: TimerInstant) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        let (_, key) = self.order.pop_first()?;
        self.at.remove(&key);
        Some(key)
    }

    /// The time of `key`, if it has one.
    pub(crate) fn get(&self, key: &K) -> Option<TimerInstant> {
        self.at.get(key).copied()
    }

    /// The earliest time set.
    pub(crate) fn next(&self) -> Option<TimerInstant> {
        self.order.first().map(|(at, _)| *at)
    }
}
