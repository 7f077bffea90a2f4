//! A notice board with a letter box for everyone who asked for one.
//!
//! Publishing puts a copy of the event into the box of each subscriber and onto a short strip of recent events, which
//! newcomers get first. A publisher never waits: a box that is full loses its oldest letter, and its owner is told how
//! many it lost before it reads on. Nobody's code runs while the board is being written, so a subscriber may publish
//! from within its own processing.
//!
//! ```text
//!   publish ──► replay strip (newest 256) ──► copied into a new subscriber's box
//!          └──► box ──► recv()          the box keeps the newest 1024; what it lost comes first, as Missed(n)
//! ```
//!
//! The roster is not only news but a state, and whoever missed it would deal with the wrong members until the next
//! change. So the latest one is kept apart from the boxes: [`EventStream::watch_roster`].

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use synod_core::membership::ClusterEvent;
use tokio::sync::{Notify, watch};

use crate::lock;

/// Bounds of an [`EventStream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventStreamConfig {
    /// How many recent events a new subscriber is given. More tells a latecomer more of what happened and keeps more in
    /// memory. 0 to [`EVENTS_MAX`]. Default 256.
    pub replay_capacity: usize,
    /// How many events wait for one subscriber. More forgives a slower subscriber and keeps more in memory. 1 to
    /// [`EVENTS_MAX`]. Default 1024.
    pub queue_capacity: usize,
}

impl Default for EventStreamConfig {
    fn default() -> Self {
        Self { replay_capacity: 256, queue_capacity: 1024 }
    }
}

impl EventStreamConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub const fn validate(&self) -> Result<(), EventStreamConfigError> {
        if self.replay_capacity > EVENTS_MAX {
            let (field, value) = ("replay_capacity", self.replay_capacity);
            return Err(EventStreamConfigError { field, value, min: 0 });
        }
        if self.queue_capacity == 0 || self.queue_capacity > EVENTS_MAX {
            let (field, value) = ("queue_capacity", self.queue_capacity);
            return Err(EventStreamConfigError { field, value, min: 1 });
        }
        Ok(())
    }
}

/// A bound of the event stream is out of range. Nothing was created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} of the event stream must be {min} to {EVENTS_MAX}, it is {value}; nothing was created")]
pub struct EventStreamConfigError {
    /// The field.
    pub field: &'static str,
    /// The refused value.
    pub value: usize,
    /// The smallest value.
    pub min: usize,
}

/// A handle to the board. Clones write on the same one; when the last is dropped the subscriptions end.
#[derive(Clone)]
pub struct EventStream {
    board: Arc<Board>,
    /// Shared by the handles only, so that subscriptions do not keep the stream open.
    _open: Arc<OpenBoard>,
}

impl EventStream {
    /// An empty stream without subscribers.
    ///
    /// # Errors
    /// A bound out of range.
    pub fn new(config: EventStreamConfig) -> Result<Self, EventStreamConfigError> {
        config.validate()?;
        Ok(Self::with_validated(config))
    }

    /// Hands `event` to every subscriber and to those who come soon. It returns at once, however slow they are.
    pub fn publish(&self, event: ClusterEvent) {
        let event = Arc::new(event);
        if matches!(*event, ClusterEvent::RosterUpdated { .. }) {
            self.board.roster.send_replace(Some(Arc::clone(&event)));
        }
        let to_wake: Vec<Arc<LetterBox>> = {
            // Boxes are filled under the board's lock, so everyone sees one order and a newcomer neither misses nor
            // doubles an event. Wakers may run foreign code; they wait until the lock is free.
            let mut state = lock(&self.board.state);
            if self.board.config.replay_capacity > 0 {
                if state.replay.len() == self.board.config.replay_capacity {
                    state.replay.pop_front();
                }
                state.replay.push_back(Arc::clone(&event));
            }
            for letter_box in state.boxes.values() {
                self.board.deliver(letter_box, Arc::clone(&event));
            }
            state.boxes.values().cloned().collect()
        };
        for letter_box in to_wake {
            letter_box.arrived.notify_one();
        }
    }

    /// Subscribes: first come the recent events, then everything from now on.
    #[must_use = "dropping a subscription ends it"]
    pub fn subscribe(&self) -> Subscription {
        self.open_box(true)
    }

    /// Subscribes to everything from now on, without the recent events.
    #[must_use = "dropping a subscription ends it"]
    pub fn subscribe_live(&self) -> Subscription {
        self.open_box(false)
    }

    /// The latest [`ClusterEvent::RosterUpdated`], however long ago it was published, and notice of every later one.
    #[must_use]
    pub fn watch_roster(&self) -> watch::Receiver<Option<Arc<ClusterEvent>>> {
        self.board.roster.subscribe()
    }

    /// How many subscriptions exist.
    #[must_use]
    pub fn subscriber_count(&self) -> usize {
        lock(&self.board.state).boxes.len()
    }

    /// How many events all subscribers together have missed since the stream was created.
    #[must_use]
    pub fn missed_total(&self) -> u64 {
        self.board.missed_total.load(Ordering::Relaxed)
    }

    fn with_validated(config: EventStreamConfig) -> Self {
        let (roster, _) = watch::channel(None);
        let board =
            Arc::new(Board { config, state: Mutex::default(), missed_total: AtomicU64::new(0), roster });
        Self { _open: Arc::new(OpenBoard(Arc::clone(&board))), board }
    }

    fn open_box(&self, replay: bool) -> Subscription {
        let letter_box = Arc::new(LetterBox::default());
        let mut state = lock(&self.board.state);
        if replay {
            for event in &state.replay {
                self.board.deliver(&letter_box, Arc::clone(event));
            }
        }
        let key = state.next_key;
        state.next_key += 1;
        state.boxes.insert(key, Arc::clone(&letter_box));
        Subscription { board: Arc::clone(&self.board), key, letter_box }
    }
}

impl Default for EventStream {
    fn default() -> Self {
        Self::with_validated(EventStreamConfig::default())
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("subscribers", &self.subscriber_count()).finish_non_exhaustive()
    }
}

/// What a subscriber finds in its box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The next event.
    Event(Arc<ClusterEvent>),
    /// So many events were lost here, because the box was full.
    Missed(u64),
}

/// One subscriber's box. Dropping it unsubscribes.
pub struct Subscription {
    board: Arc<Board>,
    key: u64,
    letter_box: Arc<LetterBox>,
}

impl Subscription {
    /// The next delivery; waits for one. `None` when the stream is gone and the box is empty.
    ///
    /// A cancelled call loses nothing.
    pub async fn recv(&mut self) -> Option<Delivery> {
        loop {
            {
                let mut contents = lock(&self.letter_box.contents);
                if let Some(delivery) = contents.take() {
                    return Some(delivery);
                }
                if contents.closed {
                    return None;
                }
            }
            // A publication since the look into the box left a permit behind, so this cannot sleep through it.
            self.letter_box.arrived.notified().await;
        }
    }

    /// The next delivery, if one is there.
    pub fn try_recv(&mut self) -> Option<Delivery> {
        lock(&self.letter_box.contents).take()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        lock(&self.board.state).boxes.remove(&self.key);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The state behind all handles and subscriptions. Its lock is taken before the lock of a box, never after.
struct Board {
    config: EventStreamConfig,
    state: Mutex<BoardState>,
    missed_total: AtomicU64,
    roster: watch::Sender<Option<Arc<ClusterEvent>>>,
}

#[derive(Default)]
struct BoardState {
    replay: VecDeque<Arc<ClusterEvent>>,
    boxes: BTreeMap<u64, Arc<LetterBox>>,
    next_key: u64,
}

impl Board {
    fn deliver(&self, letter_box: &LetterBox, event: Arc<ClusterEvent>) {
        let mut contents = lock(&letter_box.contents);
        if contents.events.len() == self.config.queue_capacity {
            contents.events.pop_front();
            contents.missed += 1;
            self.missed_total.fetch_add(1, Ordering::Relaxed);
        }
        contents.events.push_back(event);
    }
}

#[derive(Default)]
struct LetterBox {
    contents: Mutex<Contents>,
    arrived: Notify,
}

#[derive(Default)]
struct Contents {
    /// Lost since the last delivery. They are older than everything in the box, so they are told first.
    missed: u64,
    events: VecDeque<Arc<ClusterEvent>>,
    closed: bool,
}

impl Contents {
    fn take(&mut self) -> Option<Delivery> {
        if self.missed > 0 {
            return Some(Delivery::Missed(std::mem::take(&mut self.missed)));
        }
        self.events.pop_front().map(Delivery::Event)
    }
}

/// Closes the boxes when the last handle of the stream goes.
struct OpenBoard(Arc<Board>);

impl Drop for OpenBoard {
    fn drop(&mut self) {
        let boxes: Vec<_> = lock(&self.0.state).boxes.values().cloned().collect();
        for letter_box in boxes {
            lock(&letter_box.contents).closed = true;
            letter_box.arrived.notify_one();
        }
    }
}

/// Largest bound of a stream, in events.
pub const EVENTS_MAX: usize = 65_536;

#[cfg(test)]
mod tests;
