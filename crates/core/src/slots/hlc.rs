//! Hybrid logical time: the time of day where it helps, a counter where it does not.
//!
//! A stamp never goes backwards on a node, and the stamp of an effect is above that of its cause, whatever the clocks of
//! the two nodes say. It is there to be shown and to age things. Nothing that must be safe depends on it: clocks lie.

use core::fmt;
use core::time::Duration;

/// A moment: 48 bits of milliseconds since 1970, and 16 bits that count within one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HlcTimestamp(u64);

impl HlcTimestamp {
    /// The stamp with these bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits, in the order of time.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The time of day in it, in milliseconds since 1970.
    #[must_use]
    pub const fn unix_millis(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    /// How many stamps of the same millisecond came before it.
    #[must_use]
    pub const fn counter(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for HlcTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.unix_millis(), self.counter())
    }
}

/// The hybrid clock of one node.
#[derive(Clone, Debug)]
pub struct Hlc {
    last: HlcTimestamp,
    offset_max: Duration,
}

impl Hlc {
    /// A clock that goes on after `last`, and that follows no clock which is ahead of its own by more than `offset_max`.
    #[must_use]
    pub const fn new(last: HlcTimestamp, offset_max: Duration) -> Self {
        Self { last, offset_max }
    }

    /// A stamp above all that this clock gave or took, at this time of day.
    pub fn tick(&mut self, unix_millis: u64) -> HlcTimestamp {
        let wall = wall(unix_millis);
        // A counter that overflows carries into the milliseconds, which keeps the order.
        self.last = if wall > self.last { wall } else { HlcTimestamp(self.last.0.saturating_add(1)) };
        self.last
    }

    /// Takes a stamp from another node, so that later ones of this node are above it.
    ///
    /// # Errors
    /// The stamp is too far ahead. It was not taken: one bad clock must not carry all others with it.
    pub fn observe(&mut self, stamp: HlcTimestamp, unix_millis: u64) -> Result<(), ClockAhead> {
        let ahead = Duration::from_millis(stamp.unix_millis().saturating_sub(unix_millis));
        if ahead > self.offset_max {
            return Err(ClockAhead { ahead });
        }
        self.last = self.last.max(stamp);
        Ok(())
    }

    /// The last stamp given or taken.
    #[must_use]
    pub const fn last(&self) -> HlcTimestamp {
        self.last
    }
}

/// The clock of another node is too far ahead of this one's. Its stamp was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stamp of a peer is {ahead:?} ahead of this node's clock; it was not followed")]
pub struct ClockAhead {
    /// By how much.
    pub ahead: Duration,
}

const fn wall(unix_millis: u64) -> HlcTimestamp {
    HlcTimestamp(unix_millis << COUNTER_BITS)
}

const COUNTER_BITS: u32 = 16;

#[cfg(test)]
mod tests {
    use proptest::collection::vec as list;
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn stamps_rise_whatever_the_clock_does() {
        let mut clock = Hlc::new(HlcTimestamp::default(), MINUTE);
        let stamps = [1000, 1000, 900, 1001].map(|millis| clock.tick(millis));
        assert!(stamps.is_sorted_by(|a, b| a < b), "{stamps:?}");
        assert_eq!(
            stamps.map(|stamp| (stamp.unix_millis(), stamp.counter())),
            [(1000, 0), (1000, 1), (1000, 2), (1001, 0)]
        );
    }

    #[test]
    fn an_effect_is_stamped_above_its_cause_and_a_wild_clock_is_not_followed() {
        let mut clock = Hlc::new(HlcTimestamp::default(), MINUTE);
        let cause = wall(30_000);
        assert_eq!(clock.observe(cause, 1000), Ok(()));
        assert!(clock.tick(1000) > cause);
        let wild = wall(1_000_000);
        let before = clock.last();
        assert_eq!(clock.observe(wild, 1000), Err(ClockAhead { ahead: Duration::from_millis(999_000) }));
        assert_eq!(clock.last(), before);
    }

    #[test]
    fn a_full_counter_carries_into_the_time() {
        let mut clock = Hlc::new(HlcTimestamp(wall(5).0 | 0xFFFF), MINUTE);
        let stamp = clock.tick(5);
        assert_eq!((stamp.unix_millis(), stamp.counter()), (6, 0));
    }

    proptest! {
        /// Two nodes whose clocks jump as they like, and stamps that travel between them.
        #[test]
        fn stamps_rise_and_effects_are_above_their_causes(
            steps in list((any::<bool>(), any::<bool>(), 0u64..5_000), 1..50),
        ) {
            let offset_max = Duration::from_secs(2);
            let mut clocks = [(); 2].map(|()| Hlc::new(HlcTimestamp::default(), offset_max));
            let mut sent = HlcTimestamp::default();
            for (at_first, sends, millis) in steps {
                let clock = &mut clocks[usize::from(at_first)];
                let before = clock.last();
                if sends {
                    sent = clock.tick(millis);
                    prop_assert!(sent > before && sent.unix_millis() >= millis);
                    prop_assert_eq!(clock.last(), sent);
                } else if let Err(refused) = clock.observe(sent, millis) {
                    prop_assert!(refused.ahead > offset_max);
                    prop_assert_eq!(clock.last(), before);
                } else {
                    prop_assert!(clock.last() >= before);
                    // Whatever the clock says next.
                    prop_assert!(clock.tick(0) > sent);
                }
            }
        }
    }
}
