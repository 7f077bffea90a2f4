//! Haste in small doses: the first changes after a calm are dealt with at once, a storm of them is gathered.
//!
//! Timers that gather changes make everybody wait, also for the only change of the day. [`Haste`] lets a machine act a few
//! milliseconds after a change instead, [`HASTE_MAX`] times per interval of the timer. What exceeds that waits for the
//! timer as it always did, so the extra work is bounded however often things change.

use core::time::Duration;

use crate::time::TimerInstant;

/// How often a machine may act ahead of its timer.
#[derive(Clone, Debug)]
pub(crate) struct Haste {
    delay: Option<Duration>,
    interval: Duration,
    /// When the present interval began, and how often there was haste in it.
    began_at: TimerInstant,
    used: u32,
}

impl Haste {
    /// Haste after `delay`, [`HASTE_MAX`] times per `interval`; without a delay never.
    pub(crate) const fn new(delay: Option<Duration>, interval: Duration) -> Self {
        Self { delay, interval, began_at: TimerInstant::ZERO, used: 0 }
    }

    /// How long to wait from `now` on for what may travel along; `None` to wait for the timer.
    pub(crate) fn take(&mut self, now: TimerInstant) -> Option<Duration> {
        let delay = self.delay?;
        if now >= self.began_at + self.interval {
            (self.began_at, self.used) = (now, 0);
        }
        if self.used == HASTE_MAX {
            return None;
        }
        self.used += 1;
        Some(delay)
    }
}

/// So often a machine acts ahead of its timer within one interval of it. Enough for a few nodes that start together.
pub const HASTE_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn haste_is_bounded_per_interval_and_comes_back() {
        let mut haste = Haste::new(Some(2 * MS), 200 * MS);
        for interval in 0..3 {
            let taken = (0..200).filter(|at| {
                let now = TimerInstant::from_millis(1_000 + interval * 200 + at);
                haste.take(now) == Some(2 * MS)
            });
            assert_eq!(taken.count(), HASTE_MAX as usize, "interval {interval}");
        }
    }

    #[test]
    fn without_a_delay_there_is_no_haste() {
        assert_eq!(Haste::new(None, MS).take(TimerInstant::from_millis(5)), None);
    }
}
