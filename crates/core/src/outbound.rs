//! What happens to a message when its target cannot be reached right now.
//!
//! There is one association per address. While it is connected messages pass. While it is not they wait in a bounded
//! queue, and a connection is tried again and again with growing, jittered pauses. In quarantine nothing waits: what was
//! queued becomes dead letters, with the reason, and whatever comes is refused.
//!
//! ```text
//!                 connected                        quarantine
//!  Disconnected ─────────────► Connected ─────────────────────────► Quarantined
//!       ▲  ▲ └────────────────────┘ disconnected                        │
//!       │  └──────────── quarantine (from here, too) ───────────────────┤
//!       └──────────────────── released, or its time is over ────────────┘
//! ```
//!
//! Messages to one address keep their order, whatever happens in between: while a backlog is being flushed, new ones
//! line up behind it.

mod config;

pub use config::{OutboundConfig, OutboundConfigError, OverflowPolicy};

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::deadline::DeadlineQueue;
use crate::id::Authority;
use crate::time::TimerInstant;

/// Where an association stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssociationState {
    /// No connection; messages wait.
    Disconnected,
    /// Messages pass.
    Connected,
    /// Nothing passes.
    Quarantined {
        /// Why.
        reason: String,
        /// When it ends by itself; `None` until it is released.
        until: Option<TimerInstant>,
    },
}

impl fmt::Display for AssociationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disconnected => "disconnected",
            Self::Connected => "connected",
            Self::Quarantined { .. } => "quarantined",
        })
    }
}

/// Why a message was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLetterReason {
    /// The target left the cluster.
    Departed,
    /// The node runs, but has no such actor.
    NoSuchActor,
    /// Newer messages needed its place in the queue.
    DroppedOldest,
    /// The queue was full.
    QueueFull,
    /// The target is quarantined, with the reason.
    Quarantined(String),
    /// The message alone is larger than the queue.
    TooLarge,
    /// There are too many addresses already.
    TooManyAssociations,
    /// The peer does not know messages of this type, and would come to harm by it.
    UnknownToPeer,
    /// The message cannot be put on the wire.
    Unsendable(String),
    /// The target could not be reached again and again.
    Unreachable,
}

/// A message that will not be delivered. Its sender must be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter<M> {
    /// Where it should have gone.
    pub target: Authority,
    /// The message.
    pub message: M,
    /// Why it does not go.
    pub reason: DeadLetterReason,
}

/// A change of an association, for observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutboundEvent {
    /// A connection stands.
    Connected(Authority),
    /// A connection was lost.
    Disconnected(Authority),
    /// Messages that had waited went out.
    Flushed {
        /// To whom.
        target: Authority,
        /// How many, in this batch.
        messages: usize,
        /// How many still wait.
        remaining: usize,
    },
    /// An address is quarantined.
    Quarantined {
        /// The address.
        target: Authority,
        /// Why.
        reason: String,
        /// How many waiting messages became dead letters.
        dead_letters: usize,
    },
    /// A quarantine ended.
    Released(Authority),
    /// Several tries to connect in a row have failed. The address is tried again for the next message.
    Unreachable {
        /// The address.
        target: Authority,
        /// How many waiting messages became dead letters.
        dead_letters: usize,
    },
}

/// What a call asks the driver to do, in the order of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundOutcome<M> {
    /// Messages that will not be delivered.
    pub dead_letters: Vec<DeadLetter<M>>,
    /// Events for observers.
    pub events: Vec<OutboundEvent>,
    /// Messages to write to connections, in order.
    pub deliver: Vec<(Authority, M)>,
    /// Connections to open; each is answered by `handle_connected` or `handle_connect_failed`.
    pub connect: Vec<Authority>,
    /// When to poll next, if anything waits for a time.
    pub wake_at: Option<TimerInstant>,
}

impl<M> Default for OutboundOutcome<M> {
    fn default() -> Self {
        Self {
            dead_letters: Vec::new(),
            events: Vec::new(),
            deliver: Vec::new(),
            connect: Vec::new(),
            wake_at: None,
        }
    }
}

/// A report about a connection does not fit what is known. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{target} is {state}; it cannot become {requested} and nothing was changed")]
pub struct OutboundError {
    /// The address.
    pub target: Authority,
    /// Its state.
    pub state: AssociationState,
    /// What was reported.
    pub requested: &'static str,
}

/// The associations of one node. `M` is a message; the pipeline only moves it.
///
/// Inputs: [`send`](Self::send) and `handle_*`; [`poll`](Self::poll) at the `wake_at` of the last outcome. Time is
/// monotonic. Every message that goes in comes out exactly once: in `deliver` or in `dead_letters`.
#[derive(Clone, Debug)]
pub struct OutboundPipeline<M> {
    associations: BTreeMap<Authority, Association<M>>,
    timers: DeadlineQueue<Authority>,
    config: OutboundConfig,
    rng: fastrand::Rng,
}

#[derive(Clone, Debug)]
struct Association<M> {
    state: AssociationState,
    queue: VecDeque<(M, usize)>,
    queued_bytes: usize,
    /// A connection was asked for and not yet answered.
    connecting: bool,
    /// The next connection waits for its time.
    pausing: bool,
    failures: u32,
    connected_at: TimerInstant,
}

impl<M> OutboundPipeline<M> {
    /// A pipeline that knows nobody. `seed` feeds the jitter.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(config: OutboundConfig, seed: u64) -> Result<Self, OutboundConfigError> {
        config.validate()?;
        let rng = fastrand::Rng::with_seed(seed);
        Ok(Self { associations: BTreeMap::new(), timers: DeadlineQueue::new(), config, rng })
    }

    /// Sends `message`, which takes `bytes` on the wire, to `target`.
    pub fn send(&mut self, target: &Authority, message: M, bytes: usize) -> OutboundOutcome<M> {
        let mut out = OutboundOutcome::default();
        if !self.has_room_for(target) {
            out.bury(target, message, DeadLetterReason::TooManyAssociations);
            return self.finish(out);
        }
        let association = self.associations.entry(target.clone()).or_default();
        match &association.state {
            AssociationState::Quarantined { reason, .. } => {
                let reason = DeadLetterReason::Quarantined(reason.clone());
                out.bury(target, message, reason);
            }
            AssociationState::Connected if association.queue.is_empty() => {
                out.deliver.push((target.clone(), message));
            }
            AssociationState::Connected | AssociationState::Disconnected => {
                association.enqueue(target, message, bytes, &self.config, &mut out);
                association.connect_if_wanted(target, &mut out);
            }
        }
        self.finish(out)
    }

    /// Takes back messages that were delivered to a connection and did not go out over it. They are older than
    /// everything that waits, and go first. Call after [`handle_disconnected`](Self::handle_disconnected).
    pub fn handle_unsent(&mut self, target: &Authority, messages: Vec<(M, usize)>) -> OutboundOutcome<M> {
        let mut out = OutboundOutcome::default();
        let has_room = self.has_room_for(target);
        match self.associations.get(target).map(|association| &association.state) {
            Some(AssociationState::Quarantined { reason, .. }) => {
                let reason = DeadLetterReason::Quarantined(reason.clone());
                out.bury_all(target, messages, &reason);
            }
            _ if !has_room => out.bury_all(target, messages, &DeadLetterReason::TooManyAssociations),
            _ => {
                let association = self.associations.entry(target.clone()).or_default();
                association.put_back(target, messages, &self.config, &mut out);
                association.connect_if_wanted(target, &mut out);
            }
        }
        self.finish(out)
    }

    /// A connection stands; what waited goes out, a batch at a time.
    ///
    /// # Errors
    /// Refused in quarantine: close the connection.
    pub fn handle_connected(
        &mut self,
        target: &Authority,
        now: TimerInstant,
    ) -> Result<OutboundOutcome<M>, OutboundError> {
        let mut out = OutboundOutcome::default();
        let open =
            |association: &Association<M>| !matches!(association.state, AssociationState::Quarantined { .. });
        let association = self.association_if(target, open, "connected")?;
        association.connecting = false;
        association.pausing = false;
        association.failures = 0;
        if association.state != AssociationState::Connected {
            association.state = AssociationState::Connected;
            association.connected_at = now;
            out.events.push(OutboundEvent::Connected(target.clone()));
        }
        self.timers.clear(target);
        self.flush(target, now, &mut out);
        Ok(self.finish(out))
    }

    /// A connection was lost. It is opened again for the next message, or at once if some wait; but not before
    /// `backoff_min` has passed since it was opened, so that a peer which takes every connection and ends it is not
    /// stormed.
    ///
    /// # Errors
    /// Refused when there was none.
    pub fn handle_disconnected(
        &mut self,
        target: &Authority,
        now: TimerInstant,
    ) -> Result<OutboundOutcome<M>, OutboundError> {
        let mut out = OutboundOutcome::default();
        let connected = |association: &Association<M>| association.state == AssociationState::Connected;
        let backoff_min = self.config.backoff_min;
        let association = self.association_if(target, connected, "disconnected")?;
        association.state = AssociationState::Disconnected;
        out.events.push(OutboundEvent::Disconnected(target.clone()));
        let earliest = association.connected_at + backoff_min;
        if now < earliest {
            association.pausing = true;
            self.timers.set(target, earliest);
        } else {
            association.connect_if_wanted(target, &mut out);
            self.timers.clear(target);
        }
        Ok(self.finish(out))
    }

    /// A connection could not be opened. It is tried again after a pause if messages wait. When that has gone on for too
    /// long they become dead letters.
    ///
    /// # Errors
    /// Refused when none was asked for.
    pub fn handle_connect_failed(
        &mut self,
        target: &Authority,
        now: TimerInstant,
    ) -> Result<OutboundOutcome<M>, OutboundError> {
        let asked = |association: &Association<M>| association.connecting;
        let mut out = OutboundOutcome::default();
        let failures_max = self.config.connect_failures_max;
        let association = self.association_if(target, asked, "failed to connect")?;
        association.connecting = false;
        let failures = association.failures as usize + 1;
        if failures >= failures_max {
            let letters = association.drain();
            let dead_letters = letters.len();
            for message in letters {
                out.bury(target, message, DeadLetterReason::Unreachable);
            }
            if failures == failures_max {
                out.events.push(OutboundEvent::Unreachable { target: target.clone(), dead_letters });
            }
        }
        self.retry_later(target, now);
        Ok(self.finish(out))
    }

    /// `target` has just been heard from, over a connection of its own: it is there, so the pause before the next try is
    /// cut down to the shortest one. Harmless when there is none.
    pub fn handle_heard(&mut self, target: &Authority, now: TimerInstant) -> OutboundOutcome<M> {
        if self.associations.get(target).is_some_and(|association| association.pausing) {
            let soon = now + self.config.backoff_min;
            if self.timers.get(target).is_some_and(|planned| planned > soon) {
                self.timers.set(target, soon);
            }
        }
        self.finish(OutboundOutcome::default())
    }

    /// Keeps `target` out until `until` (`None`: until released). What waits becomes dead letters. A quarantine is kept
    /// whatever the number of associations: whoever asks for it bounds the number of quarantines.
    pub fn handle_quarantine(
        &mut self,
        target: &Authority,
        reason: String,
        until: Option<TimerInstant>,
    ) -> OutboundOutcome<M> {
        let mut out = OutboundOutcome::default();
        let association = self.associations.entry(target.clone()).or_default();
        let letters = association.drain();
        let dead_letters = letters.len();
        for message in letters {
            out.bury(target, message, DeadLetterReason::Quarantined(reason.clone()));
        }
        association.connecting = false;
        association.pausing = false;
        association.failures = 0;
        association.state = AssociationState::Quarantined { reason: reason.clone(), until };
        match until {
            Some(at) => self.timers.set(target, at),
            None => self.timers.clear(target),
        }
        out.events.push(OutboundEvent::Quarantined { target: target.clone(), reason, dead_letters });
        self.finish(out)
    }

    /// Ends a quarantine before its time: disconnected, with an empty queue that works. Harmless otherwise.
    pub fn handle_release(&mut self, target: &Authority) -> OutboundOutcome<M> {
        let mut out = OutboundOutcome::default();
        self.release(target, &mut out);
        self.finish(out)
    }

    /// The target left the cluster: what waits becomes dead letters, and the association is forgotten.
    pub fn handle_departed(&mut self, target: &Authority) -> OutboundOutcome<M> {
        let mut out = OutboundOutcome::default();
        self.timers.clear(target);
        if let Some(mut association) = self.associations.remove(target) {
            for message in association.drain() {
                out.bury(target, message, DeadLetterReason::Departed);
            }
        }
        self.finish(out)
    }

    /// Runs everything that is due: ends quarantines, tries connections again, goes on flushing.
    pub fn poll(&mut self, now: TimerInstant) -> OutboundOutcome<M> {
        let mut out = OutboundOutcome::default();
        // What a flush leaves behind is due again at once; it waits for the next poll, so that others get their turn.
        let mut due = Vec::new();
        while let Some(target) = self.timers.pop_due(now) {
            due.push(target);
        }
        for target in due {
            match self
                .associations
                .get_mut(&target)
                .map(|association| (&association.state, association.connecting))
            {
                Some((AssociationState::Quarantined { .. }, _)) => self.release(&target, &mut out),
                Some((AssociationState::Connected, _)) => self.flush(&target, now, &mut out),
                Some((AssociationState::Disconnected, false)) => {
                    let Some(association) = self.associations.get_mut(&target) else { continue };
                    association.pausing = false;
                    // Nobody is waiting: the next message may try at once, the pause is over.
                    if association.queue.is_empty() {
                        association.failures = 0;
                    }
                    association.connect_if_wanted(&target, &mut out);
                }
                Some((AssociationState::Disconnected, true)) | None => {}
            }
        }
        self.finish(out)
    }

    /// Where an address stands; unknown ones are disconnected.
    #[must_use]
    pub fn state(&self, target: &Authority) -> AssociationState {
        self.associations.get(target).map_or(AssociationState::Disconnected, |a| a.state.clone())
    }

    /// How many messages wait for an address, and how many bytes they take.
    #[must_use]
    pub fn queued(&self, target: &Authority) -> (usize, usize) {
        self.associations.get(target).map_or((0, 0), |a| (a.queue.len(), a.queued_bytes))
    }

    /// The association of `target` if a report about it makes sense.
    fn association_if(
        &mut self,
        target: &Authority,
        fits: impl FnOnce(&Association<M>) -> bool,
        requested: &'static str,
    ) -> Result<&mut Association<M>, OutboundError> {
        let unknown = Association::default();
        let association = self.associations.get(target).unwrap_or(&unknown);
        if !fits(association) {
            let state = association.state.clone();
            return Err(OutboundError { target: target.clone(), state, requested });
        }
        if !self.has_room_for(target) {
            let state = AssociationState::Disconnected;
            return Err(OutboundError {
                target: target.clone(),
                state,
                requested: "known: there are too many",
            });
        }
        Ok(self.associations.entry(target.clone()).or_default())
    }

    /// Whether `target` is known or may become so. Associations that hold nothing make room: forgetting them loses nothing.
    fn has_room_for(&mut self, target: &Authority) -> bool {
        if self.associations.contains_key(target) {
            return true;
        }
        if self.associations.len() >= self.config.associations_max {
            self.associations.retain(|_, association| !association.is_idle());
        }
        self.associations.len() < self.config.associations_max
    }

    fn flush(&mut self, target: &Authority, now: TimerInstant, out: &mut OutboundOutcome<M>) {
        let Some(association) = self.associations.get_mut(target) else { return };
        let messages = association.queue.len().min(self.config.flush_batch);
        if messages == 0 {
            return;
        }
        for (message, bytes) in association.queue.drain(..messages) {
            association.queued_bytes -= bytes;
            out.deliver.push((target.clone(), message));
        }
        let remaining = association.queue.len();
        out.events.push(OutboundEvent::Flushed { target: target.clone(), messages, remaining });
        if remaining > 0 {
            self.timers.set(target, now);
        }
    }

    fn release(&mut self, target: &Authority, out: &mut OutboundOutcome<M>) {
        if let Some(association) = self.associations.get_mut(target)
            && matches!(association.state, AssociationState::Quarantined { .. })
        {
            association.state = AssociationState::Disconnected;
            self.timers.clear(target);
            out.events.push(OutboundEvent::Released(target.clone()));
        }
    }

    /// Plans the next try: twice as late as the last one, up to the longest pause, and a fifth earlier or later by chance.
    fn retry_later(&mut self, target: &Authority, now: TimerInstant) {
        let Some(association) = self.associations.get_mut(target) else { return };
        let doubled = self.config.backoff_min.saturating_mul(1 << association.failures.min(DOUBLINGS_MAX));
        association.failures = association.failures.saturating_add(1);
        association.pausing = true;
        let pause = doubled.min(self.config.backoff_max).mul_f64(0.8 + 0.4 * self.rng.f64());
        self.timers.set(target, now + pause);
    }

    fn finish(&self, mut out: OutboundOutcome<M>) -> OutboundOutcome<M> {
        out.wake_at = self.timers.next();
        out
    }
}

impl<M> Default for Association<M> {
    fn default() -> Self {
        Self {
            state: AssociationState::Disconnected,
            queue: VecDeque::new(),
            queued_bytes: 0,
            connecting: false,
            pausing: false,
            failures: 0,
            connected_at: TimerInstant::default(),
        }
    }
}

impl<M> Association<M> {
    fn enqueue(
        &mut self,
        target: &Authority,
        message: M,
        bytes: usize,
        config: &OutboundConfig,
        out: &mut OutboundOutcome<M>,
    ) {
        if bytes > config.queue_bytes_max {
            return out.bury(target, message, DeadLetterReason::TooLarge);
        }
        while self.queue.len() >= config.queue_messages_max
            || self.queued_bytes + bytes > config.queue_bytes_max
        {
            if config.overflow == OverflowPolicy::RejectNew {
                return out.bury(target, message, DeadLetterReason::QueueFull);
            }
            let Some((oldest, freed)) = self.queue.pop_front() else { break };
            self.queued_bytes -= freed;
            out.bury(target, oldest, DeadLetterReason::DroppedOldest);
        }
        self.queued_bytes += bytes;
        self.queue.push_back((message, bytes));
    }

    /// Puts older messages before those that wait. What has no room then goes as if all of them came now, in order.
    fn put_back(
        &mut self,
        target: &Authority,
        messages: Vec<(M, usize)>,
        config: &OutboundConfig,
        out: &mut OutboundOutcome<M>,
    ) {
        for (message, bytes) in messages.into_iter().rev() {
            if bytes > config.queue_bytes_max {
                out.bury(target, message, DeadLetterReason::TooLarge);
            } else {
                self.queued_bytes += bytes;
                self.queue.push_front((message, bytes));
            }
        }
        while self.queue.len() > config.queue_messages_max || self.queued_bytes > config.queue_bytes_max {
            let (excess, reason) = match config.overflow {
                OverflowPolicy::DropOldest => (self.queue.pop_front(), DeadLetterReason::DroppedOldest),
                OverflowPolicy::RejectNew => (self.queue.pop_back(), DeadLetterReason::QueueFull),
            };
            let Some((message, bytes)) = excess else { break };
            self.queued_bytes -= bytes;
            out.bury(target, message, reason);
        }
    }

    /// Asks for a connection if messages wait for one and none is on its way.
    fn connect_if_wanted(&mut self, target: &Authority, out: &mut OutboundOutcome<M>) {
        let is_apart = self.state == AssociationState::Disconnected;
        if is_apart && !self.connecting && !self.pausing && !self.queue.is_empty() {
            self.connecting = true;
            out.connect.push(target.clone());
        }
    }

    /// Whether nothing is lost by forgetting it, except perhaps a pause.
    fn is_idle(&self) -> bool {
        let settled = !self.connecting && self.failures == 0;
        self.state == AssociationState::Disconnected && self.queue.is_empty() && settled
    }

    fn drain(&mut self) -> Vec<M> {
        self.queued_bytes = 0;
        self.queue.drain(..).map(|(message, _)| message).collect()
    }
}

impl<M> OutboundOutcome<M> {
    fn bury(&mut self, target: &Authority, message: M, reason: DeadLetterReason) {
        self.dead_letters.push(DeadLetter { target: target.clone(), message, reason });
    }

    fn bury_all(&mut self, target: &Authority, messages: Vec<(M, usize)>, reason: &DeadLetterReason) {
        for (message, _) in messages {
            self.bury(target, message, reason.clone());
        }
    }
}

/// Beyond so many doublings the longest pause is reached with any settings.
const DOUBLINGS_MAX: u32 = 22;

#[cfg(test)]
mod tests;
