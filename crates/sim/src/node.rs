//! One simulated process: its machine, its clock, and whether it runs.

use std::time::Duration;

use synod_core::membership::{GossipMessage, MembershipCoordinator};
use synod_core::{Authority, Incarnation, NodeId, TimerInstant};

/// What a process does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// It runs.
    Running,
    /// It is frozen: messages wait in its socket, its timers do not fire.
    Paused,
    /// It crashed.
    Crashed,
    /// It left the cluster and exited.
    Left,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) authority: Authority,
    pub(crate) coordinator: MembershipCoordinator,
    pub(crate) power: Power,
    /// What its disk holds.
    pub(crate) stored: Option<Incarnation>,
    pub(crate) clock: Clock,
    /// When the machine asked to be polled; an event in the queue counts only if it says the same.
    pub(crate) wake_at: Option<Duration>,
    /// Messages that arrived while it was frozen.
    pub(crate) backlog: Vec<GossipMessage>,
}

impl Node {
    /// Whether the process exists, frozen or not.
    pub(crate) fn lives(&self) -> bool {
        matches!(self.power, Power::Running | Power::Paused)
    }
}

/// A clock with its own zero and its own speed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    offset: Duration,
    /// How much faster than true time it runs, in parts per million.
    drift_ppm: i64,
}

impl Clock {
    pub(crate) fn random(drift_ppm_max: u32, rng: &mut fastrand::Rng) -> Self {
        let bound = i64::from(drift_ppm_max);
        Self { offset: Duration::from_millis(rng.u64(0..3_600_000)), drift_ppm: rng.i64(-bound..=bound) }
    }

    /// What the clock shows at true time `at`.
    pub(crate) fn show(&self, at: Duration) -> TimerInstant {
        let nanos = i128::try_from(at.as_nanos()).unwrap_or(i128::MAX);
        let shown = nanos + nanos * i128::from(self.drift_ppm) / 1_000_000;
        TimerInstant::from_nanos(u64::try_from(shown).unwrap_or(0)) + self.offset
    }

    /// The first true time at which the clock shows at least `shown`.
    pub(crate) fn when(&self, shown: TimerInstant) -> Duration {
        let local = i128::from(shown.saturating_sub(self.offset).as_nanos());
        let nanos = local * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm));
        // The divisions round down; two nanoseconds later the clock is certainly there.
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0) + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_at_least_what_was_waited_for() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..10_000 {
            let clock = Clock::random(1_000, &mut rng);
            let at = Duration::from_nanos(rng.u64(0..1_000_000_000_000));
            let shown = clock.show(at) + Duration::from_nanos(rng.u64(0..1_000_000_000));
            let when = clock.when(shown);
            assert!(clock.show(when) >= shown, "{clock:?} {at:?}");
            assert!(clock.show(when).saturating_since(shown) < Duration::from_nanos(10), "{clock:?} {at:?}");
        }
    }
}
