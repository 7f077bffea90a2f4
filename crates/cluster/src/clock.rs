//! The clock that drivers hand to their machines.
//!
//! A machine is told the time as a [`TimerInstant`], counted from a zero that its driver chose. This clock fixes that
//! zero once and translates in both directions. It reads tokio's clock, so a test that pauses tokio's time pauses the
//! machines, too.

use std::time::Duration;

use synod_core::TimerInstant;
use tokio::time::Instant;

/// A monotonic clock with its own zero. Copies share the zero.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    zero: Instant,
}

impl MonotonicClock {
    /// A clock whose zero is now.
    #[must_use]
    pub fn start() -> Self {
        Self { zero: Instant::now() }
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> TimerInstant {
        TimerInstant::ZERO + self.zero.elapsed()
    }

    /// The moment `at` as a timer of tokio understands it. A moment that is unreasonably far away is brought nearer:
    /// whoever waits for it wakes up early and waits again.
    #[must_use]
    pub fn instant(&self, at: TimerInstant) -> Instant {
        let since_zero = at.saturating_since(TimerInstant::ZERO);
        self.zero.checked_add(since_zero).unwrap_or_else(|| Instant::now() + FAR_AWAY)
    }
}

/// Far enough to cost nothing, near enough for every platform's clock.
const FAR_AWAY: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_virtual_time_and_translates_back() {
        let clock = MonotonicClock::start();
        assert_eq!(clock.now(), TimerInstant::ZERO);
        tokio::time::sleep_until(clock.instant(TimerInstant::from_millis(1_500))).await;
        assert_eq!(clock.now(), TimerInstant::from_millis(1_500));
    }
}
