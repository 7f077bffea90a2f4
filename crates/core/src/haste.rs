//! Haste in small doses: the first changes after a calm are dealt with at once, a storm of them is gathered.
//!
//! Timers that gather changes make everybody wait, also for the only change of the day. [`Haste`] lets a machine act a few
//! milliseconds after a change instead: [`HASTE_MAX`] times in a row, and in the long run so often per interval of the
//! timer. So the extra work is bounded however often things change.

use core::time::Duration;

use crate::time::TimerInstant;

/// How often a machine may act ahead of its timer.
#[derive(Clone, Debug)]
pub(crate) struct Haste {
    delay: Option<Duration>,
    interval: Duration,
    /// When all haste will be there again: each use moves it by a share of the interval.
    whole_at: TimerInstant,
}

impl Haste {
    /// Haste after `delay`, [`HASTE_MAX`] times per `interval`; without a delay never.
    pub(crate) const fn new(delay: Option<Duration>, interval: Duration) -> Self {
        Self { delay, interval, whole_at: TimerInstant::ZERO }
    }

    /// How long to wait from `now` on for what may come along; `None` when there is no haste left.
    pub(crate) fn take(&mut self, now: TimerInstant) -> Option<Duration> {
        let delay = self.delay.filter(|_| self.missing(now).is_zero())?;
        self.spend(now);
        Some(delay)
    }

    /// When to act, after the delay or as soon as there is haste again; `None` when the timer comes first, at `timer_at`.
    pub(crate) fn take_before(&mut self, timer_at: TimerInstant, now: TimerInstant) -> Option<TimerInstant> {
        let at = now + self.delay?.max(self.missing(now));
        if at >= timer_at {
            // What is not used is not spent, or a storm would leave none for the next interval.
            return None;
        }
        self.spend(now);
        Some(at)
    }

    fn spend(&mut self, now: TimerInstant) {
        self.whole_at = self.whole_at.max(now) + self.interval / HASTE_MAX;
    }

    /// How long it takes until there is haste for one use.
    fn missing(&self, now: TimerInstant) -> Duration {
        let reserve = self.interval - self.interval / HASTE_MAX;
        self.whole_at.saturating_since(now).saturating_sub(reserve)
    }
}

/// So often in a row, and in the long run per interval of its timer, a machine acts ahead of the timer. Enough for a few
/// nodes that start together.
pub const HASTE_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> TimerInstant {
        TimerInstant::from_millis(1_000 + millis)
    }

    #[test]
    fn haste_is_bounded_and_comes_back() {
        let mut haste = Haste::new(Some(2 * MS), 200 * MS);
        for calm in [0, 1_000] {
            let at_once = (0..100).filter(|_| haste.take(at(calm)) == Some(2 * MS));
            assert_eq!(at_once.count(), HASTE_MAX as usize);
            assert_eq!(haste.take_before(at(calm + 25), at(calm)), None, "the timer comes first");
            let next = haste.take_before(at(calm + 26), at(calm));
            assert_eq!(next, Some(at(calm + 25)), "the next comes with the next share");
        }
        let in_a_storm = (2_000..4_000).filter(|millis| haste.take(at(*millis)).is_some());
        assert_eq!(in_a_storm.count(), 11 * HASTE_MAX as usize - 1);
    }

    #[test]
    fn without_a_delay_there_is_no_haste() {
        let mut haste = Haste::new(None, MS);
        assert_eq!((haste.take(at(5)), haste.take_before(at(500), at(5))), (None, None));
    }
}
