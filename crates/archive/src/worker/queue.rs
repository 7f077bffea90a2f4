//! Names of objects that have to be looked at, each once, and slots to be walked. Bounded: what finds no room is found again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Mutex;

use synod_core::objects::EntryName;
use synod_core::slots::SlotId;
use tokio::sync::Notify;

use crate::settings::ArchiveError;
use crate::{lock, now_ms};

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Something can be taken.
    filled: Notify,
    /// There is room again.
    emptied: Notify,
    /// There is a slot to be walked.
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<EntryName>,
    known: HashMap<EntryName, Known>,
    slots: BTreeSet<SlotId>,
    /// How often in a row something failed.
    failures: u32,
    last_error: Option<String>,
}

/// A name that waits, or that a lane has.
#[derive(Debug, Default)]
struct Known {
    is_taken: bool,
    /// It was offered again while a lane had it.
    is_wanted_again: bool,
    failing_since_ms: Option<u64>,
}

impl Queue {
    /// Puts a name into the queue. False when there is no room.
    pub(super) fn offer(&self, name: EntryName) -> bool {
        let mut state = lock(&self.state);
        if let Some(known) = state.known.get_mut(&name) {
            known.is_wanted_again = known.is_taken;
            return true;
        }
        if state.known.len() >= NAMES_MAX {
            return false;
        }
        state.known.insert(name.clone(), Known::default());
        state.waiting.push_back(name);
        drop(state);
        self.filled.notify_one();
        true
    }

    /// The same for somebody who can wait.
    pub(super) async fn offer_when_there_is_room(&self, name: EntryName) {
        loop {
            let emptied = self.emptied.notified();
            if self.offer(name.clone()) {
                return;
            }
            emptied.await;
        }
    }

    /// The next name. Whoever takes it says how it went.
    pub(super) async fn take(&self) -> EntryName {
        loop {
            let filled = self.filled.notified();
            {
                let mut state = lock(&self.state);
                if let Some(name) = state.waiting.pop_front() {
                    if let Some(known) = state.known.get_mut(&name) {
                        known.is_taken = true;
                    }
                    if !state.waiting.is_empty() {
                        // The others may have been told of one that is gone.
                        self.filled.notify_one();
                    }
                    return name;
                }
            }
            filled.await;
        }
    }

    /// There is nothing more to be done for a name. Answers how often in a row something failed.
    pub(super) fn done(&self, name: &EntryName) -> u32 {
        let mut state = lock(&self.state);
        let was_failing = state.known.values().any(|known| known.failing_since_ms.is_some());
        let is_wanted_again = state.known.remove(name).is_some_and(|known| known.is_wanted_again);
        state.failures = 0;
        let is_failing = state.known.values().any(|known| known.failing_since_ms.is_some());
        if was_failing && !is_failing {
            state.last_error = None;
            tracing::info!("the archive takes everything again");
        }
        drop(state);
        self.emptied.notify_one();
        if is_wanted_again {
            self.offer(name.clone());
        }
        0
    }

    /// It did not work, and is tried again when the others had their turn. Answers how often in a row something failed.
    pub(super) fn failed(&self, name: &EntryName, error: &ArchiveError) -> u32 {
        let mut state = lock(&self.state);
        if state.known.values().all(|known| known.failing_since_ms.is_none()) {
            tracing::warn!(object = %name, %error, "the archive does not take an object; it is tried again until it does");
        }
        let known = state.known.entry(name.clone()).or_default();
        known.is_taken = false;
        known.is_wanted_again = false;
        known.failing_since_ms.get_or_insert_with(now_ms);
        state.waiting.push_back(name.clone());
        state.failures = state.failures.saturating_add(1);
        state.last_error = Some(format!("{name}: {error}"));
        let failures = state.failures;
        drop(state);
        self.filled.notify_one();
        failures
    }

    /// Wants slots to be walked.
    pub(super) fn walk(&self, slots: impl IntoIterator<Item = SlotId>) {
        lock(&self.state).slots.extend(slots);
        self.wanted.notify_one();
    }

    /// The next slot to be walked.
    pub(super) async fn next_slot(&self) -> SlotId {
        loop {
            let wanted = self.wanted.notified();
            if let Some(slot) = lock(&self.state).slots.pop_first() {
                return slot;
            }
            wanted.await;
        }
    }

    /// How many names wait or are being worked on.
    pub(super) fn pending(&self) -> usize {
        lock(&self.state).known.len()
    }

    /// Since when something fails, and what failed last.
    pub(super) fn failing(&self) -> (Option<u64>, Option<String>) {
        let state = lock(&self.state);
        let since = state.known.values().filter_map(|known| known.failing_since_ms).min();
        (since, state.last_error.clone().filter(|_| since.is_some()))
    }
}

const NAMES_MAX: usize = 10_000;
