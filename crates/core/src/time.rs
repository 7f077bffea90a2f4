//! The one time type of core: a point on the monotonic clock that the driver owns.
//!
//! A machine never asks what time it is; it is told. The zero point is whatever the driver chose (usually process
//! start), so an instant means nothing on another node and never travels on the wire.

use core::fmt;
use core::ops::Add;
use core::time::Duration;

/// A point in time on one node's monotonic clock, in nanoseconds since that node's own zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimerInstant(u64);

impl TimerInstant {
    /// The zero of the clock.
    pub const ZERO: Self = Self(0);

    /// The instant `nanos` nanoseconds after the clock's zero.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `millis` milliseconds after the clock's zero (saturating).
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the clock's zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this instant lies; zero when it does not.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The instant `duration` before this one, not before the clock's zero.
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

impl Add<Duration> for TimerInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl fmt::Display for TimerInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}s", self.0 / 1_000_000_000, self.0 / 1_000_000 % 1_000)
    }
}

impl fmt::Debug for TimerInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whole nanoseconds of `duration`, saturating after some 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let end = TimerInstant::from_nanos(u64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(TimerInstant::ZERO + Duration::MAX, end);
        assert_eq!(TimerInstant::ZERO.saturating_sub(Duration::from_secs(1)), TimerInstant::ZERO);
        assert_eq!(
            TimerInstant::from_millis(5).saturating_since(TimerInstant::from_millis(9)),
            Duration::ZERO
        );
    }
}
