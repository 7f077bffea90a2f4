//! When the next round of gossip is: every interval, and soon after a change.
//!
//! A round ahead of its time does not move the regular ones. If it did, nodes that hear of the same change at the same
//! moment would speak at the same moment from then on.

use core::time::Duration;

use crate::haste::Haste;
use crate::time::TimerInstant;

#[derive(Clone, Debug)]
pub(super) struct Rounds {
    interval: Duration,
    next_at: TimerInstant,
    eager_at: Option<TimerInstant>,
    haste: Haste,
}

/// Why a round is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// It is time.
    Regular,
    /// Something is new.
    Eager,
}

impl Rounds {
    /// The first regular round is at `first_at`.
    pub(super) const fn new(
        interval: Duration,
        eager_delay: Option<Duration>,
        first_at: TimerInstant,
    ) -> Self {
        Self { interval, next_at: first_at, eager_at: None, haste: Haste::new(eager_delay, interval) }
    }

    /// Something is new: a round comes as soon as there is haste for it, if that is before the regular one.
    pub(super) fn hurry(&mut self, now: TimerInstant) {
        if self.eager_at.is_none() {
            self.eager_at = self.haste.take_before(self.next_at, now);
        }
    }

    /// The round that is due, if one is. A regular one does for both.
    pub(super) fn take_due(&mut self, now: TimerInstant) -> Option<Round> {
        if self.next_at <= now {
            self.next_at = now + self.interval;
            self.eager_at = None;
            return Some(Round::Regular);
        }
        self.eager_at.take_if(|at| *at <= now).map(|_| Round::Eager)
    }

    /// When a round is due next.
    pub(super) fn next_at(&self) -> TimerInstant {
        self.eager_at.map_or(self.next_at, |at| at.min(self.next_at))
    }
}
