//! How long calls take: a fixed set of buckets instead of every single number.
//!
//! Buckets are as wide as a thirty-second of the numbers that fall into them, so what is read back is at most about three
//! percent too large, from microseconds to hours, in eight kilobytes. Whole numbers only; recording finds its bucket with
//! a few shifts.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

/// The distribution of durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyHistogram {
    buckets: Vec<u64>,
    count: u64,
    sum: Duration,
    longest: Duration,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0, sum: Duration::ZERO, longest: Duration::ZERO }
    }
}

impl LatencyHistogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min(MICROS_MAX);
        self.buckets[bucket(micros)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(duration);
        self.longest = self.longest.max(duration);
    }

    /// Counts everything that `other` counted.
    pub fn add(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.longest = self.longest.max(other.longest);
    }

    /// How many were counted.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// All of them together.
    #[must_use]
    pub const fn sum(&self) -> Duration {
        self.sum
    }

    /// The longest one, exactly.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// The duration that so many of a million do not exceed: 500 000 for the median, 999 000 for all but one in a thousand.
    /// Never less than the truth, and at most a thirty-second more. `None` when nothing was counted.
    #[must_use]
    pub fn quantile(&self, per_million: u32) -> Option<Duration> {
        let share = u128::from(self.count) * u128::from(per_million.min(MILLION));
        let rank = share.div_ceil(u128::from(MILLION)).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += u128::from(*count);
            seen >= rank
        })?;
        Some(Duration::from_micros(upper_bound(bucket)).min(self.longest))
    }

    /// How many took at most `limit`, or a few less: those in the last thirty-second below it may count as longer.
    #[must_use]
    pub fn count_within(&self, limit: Duration) -> u64 {
        let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        let within = self.buckets.iter().enumerate().take_while(|(bucket, _)| upper_bound(*bucket) <= limit);
        within.map(|(_, count)| count).sum()
    }
}

/// Where a number is counted: small ones each for themselves, larger ones by their first bits.
const fn bucket(micros: u64) -> usize {
    if micros < SUB_BUCKETS {
        return micros as usize;
    }
    let shift = micros.ilog2() - SUB_BUCKETS.ilog2();
    (shift as u64 * SUB_BUCKETS + (micros >> shift)) as usize
}

/// The largest number of a bucket, and a microsecond more: what was cut off counts too.
const fn upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB_BUCKETS {
        return bucket + 1;
    }
    let shift = bucket / SUB_BUCKETS - 1;
    let first_bits = bucket - shift * SUB_BUCKETS;
    (first_bits + 1) << shift
}

/// Buckets between a number and its double.
const SUB_BUCKETS: u64 = 32;
/// What takes longer, some nineteen hours, counts as this long.
const MICROS_MAX: u64 = (1 << 36) - 1;
const BUCKETS: usize = bucket(MICROS_MAX) + 1;
const MILLION: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_within_a_limit_unless_they_are_very_close_to_it() {
        let mut histogram = LatencyHistogram::default();
        for micros in [10, 900, 2_000, 90_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        let within = |micros| histogram.count_within(Duration::from_micros(micros));
        assert_eq!([within(0), within(10), within(11), within(1_000)], [0, 0, 1, 2]);
        assert_eq!([within(2_100), within(89_000_000), within(95_000_000)], [3, 3, 4]);
        assert_eq!(histogram.count_within(Duration::MAX), histogram.count());
    }

    #[test]
    fn every_number_falls_into_a_bucket_that_is_at_most_a_thirty_second_too_large() {
        let mut number = 0;
        let mut last = 0;
        while number < MICROS_MAX {
            let bucket = bucket(number);
            assert!(bucket >= last && bucket < BUCKETS, "{number}");
            last = bucket;
            let bound = upper_bound(bucket);
            assert!(bound > number && bound - number <= (number / 32).max(1), "{number} is read as {bound}");
            number += number / 1000 + 1;
        }
        assert_eq!(BUCKETS, 1024);
    }

    #[test]
    fn quantiles_are_read_back_within_the_width_of_a_bucket() {
        let mut histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile(500_000), None);
        for micros in 1..=10_000 {
            histogram.record(Duration::from_micros(micros));
        }
        for (per_million, exact) in [(0, 1), (500_000, 5_000), (990_000, 9_900), (1_000_000, 10_000)] {
            let read = histogram.quantile(per_million).expect("a quantile").as_micros();
            assert!(read >= exact && read <= exact + (exact / 32).max(1), "{exact} is read as {read}");
        }
        assert_eq!((histogram.count(), histogram.longest()), (10_000, Duration::from_millis(10)));
        assert_eq!(histogram.sum(), Duration::from_micros(10_000 * 10_001 / 2));
        // What takes longer than anything is counted, and the longest is exact.
        histogram.record(Duration::MAX);
        assert_eq!(histogram.longest(), Duration::MAX);
    }
}
