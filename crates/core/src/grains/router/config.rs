//! The settings of the calling side, checked once.

use alloc::vec::Vec;
use core::time::Duration;

use crate::outbound::OverflowPolicy;

/// Settings of a [`GrainRpcRouter`](super::GrainRpcRouter).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterConfig {
    /// How many calls to one grain are under way at a time. With 1 a caller's calls to a grain take effect in order; more
    /// is faster and gives that up. 1 to 1000. Default 1.
    pub concurrency_limit: usize,
    /// How many calls to one grain wait for their turn. More rides out longer bursts, fewer tells callers sooner. 0 to
    /// 100 000. Default 128.
    pub queue_depth: usize,
    /// Which call goes when that many wait. Default [`OverflowPolicy::RejectNew`].
    pub overflow: OverflowPolicy,
    /// Most calls at a time, to all grains. 1 to 10 000 000. Default 100 000.
    pub calls_max: usize,
    /// How long one attempt of a call may take. Shorter finds a grain that moved sooner, longer has patience with slow
    /// ones. 1 ms to 1 h. Default 5 s.
    pub attempt_timeout: Duration,
    /// What follows an attempt that failed, unless a call brings its own policy. Default: six more attempts after 50 ms,
    /// each time twice as much, at most 1 s: longer together than a grain takes to change its host.
    pub retry: RetryPolicy,
    /// The versions of the call schema that this node speaks. Both sides use the highest that they share. 1 to 32
    /// versions, none of them 0. Default 1 alone.
    pub schema_versions: Vec<u32>,
    /// A call that takes longer is told to observers as slow; `None` tells of none. 1 µs to 1 h. Default 1 s.
    pub latency_alert: Option<Duration>,
}

impl Default for RouterConfig {
    fn default() -> Self {
        let (base, cap) = (Duration::from_millis(50), Duration::from_secs(1));
        Self {
            concurrency_limit: 1,
            queue_depth: 128,
            overflow: OverflowPolicy::RejectNew,
            calls_max: 100_000,
            attempt_timeout: Duration::from_secs(5),
            retry: RetryPolicy::Backoff { retries: 6, base, cap },
            schema_versions: [SCHEMA_BASE].into(),
            latency_alert: Some(Duration::from_secs(1)),
        }
    }
}

impl RouterConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), RouterConfigError> {
        let counts = [
            ("concurrency_limit", self.concurrency_limit, 1, 1000),
            ("queue_depth", self.queue_depth, 0, 100_000),
            ("calls_max", self.calls_max, 1, 10_000_000),
            ("schema_versions", self.schema_versions.len(), 1, SCHEMAS_MAX),
        ];
        for (field, value, min, max) in counts {
            if !(min..=max).contains(&value) {
                return Err(RouterConfigError::Count { field, value, min, max });
            }
        }
        if self.schema_versions.contains(&0) {
            return Err(RouterConfigError::SchemaZero);
        }
        check_duration("attempt_timeout", self.attempt_timeout, TIMEOUT_MIN)?;
        if let Some(alert) = self.latency_alert {
            check_duration("latency_alert", alert, Duration::from_micros(1))?;
        }
        self.retry.validate()
    }
}

/// What follows an attempt that failed. Whatever it says, no attempt begins after the call's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Nothing: the call fails.
    None,
    /// Another attempt, always after the same pause.
    Fixed {
        /// Most further attempts. 1 to 100.
        retries: u32,
        /// The pause. 0 to 1 h.
        delay: Duration,
    },
    /// Another attempt after a pause that doubles each time, and is up to a fifth shorter or longer by chance so that
    /// callers do not come back all at once.
    Backoff {
        /// Most further attempts. 1 to 100.
        retries: u32,
        /// The first pause. 1 ms to 1 h.
        base: Duration,
        /// The longest pause, before chance. `base` to 1 h.
        cap: Duration,
    },
}

impl RetryPolicy {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), RouterConfigError> {
        let retries = match *self {
            Self::None => return Ok(()),
            Self::Fixed { retries, delay } => {
                check_duration("retry.delay", delay, Duration::ZERO)?;
                retries
            }
            Self::Backoff { retries, base, cap } => {
                check_duration("retry.base", base, TIMEOUT_MIN)?;
                check_duration("retry.cap", cap, base)?;
                retries
            }
        };
        if (1..=RETRIES_MAX).contains(&retries) {
            return Ok(());
        }
        let (value, max) = (retries as usize, RETRIES_MAX as usize);
        Err(RouterConfigError::Count { field: "retry.retries", value, min: 1, max })
    }

    /// The pause before the attempt that follows `attempts`; `None` when there is none.
    pub(super) fn pause(&self, attempts: u32, rng: &mut fastrand::Rng) -> Option<Duration> {
        match *self {
            Self::Fixed { retries, delay } if attempts <= retries => Some(delay),
            Self::Backoff { retries, base, cap } if attempts <= retries => {
                let doubled = base.saturating_mul(1 << attempts.saturating_sub(1).min(DOUBLINGS_MAX));
                Some(doubled.min(cap).mul_f64(0.8 + 0.4 * rng.f64()))
            }
            Self::None | Self::Fixed { .. } | Self::Backoff { .. } => None,
        }
    }
}

/// A setting is out of range. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouterConfigError {
    /// A number is out of range.
    #[error("router.{field} must be {min} to {max}, it is {value}")]
    Count {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: usize,
        /// The smallest value.
        min: usize,
        /// The largest value.
        max: usize,
    },
    /// A duration is out of range.
    #[error("router.{field} must be {min:?} to {max:?}, it is {value:?}")]
    Duration {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: Duration,
        /// The shortest value.
        min: Duration,
        /// The longest value.
        max: Duration,
    },
    /// A version is zero.
    #[error("router.schema_versions must not contain 0, which is no version")]
    SchemaZero,
}

fn check_duration(field: &'static str, value: Duration, min: Duration) -> Result<(), RouterConfigError> {
    let max = TIMEOUT_MAX;
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(RouterConfigError::Duration { field, value, min, max })
    }
}

/// The version that is spoken by whoever never said which: protoactor-go, and a synod node before it says more.
pub const SCHEMA_BASE: u32 = 1;
/// Most versions of one side.
pub const SCHEMAS_MAX: usize = 32;
const RETRIES_MAX: u32 = 100;
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Beyond so many doublings the longest pause is reached with any settings.
const DOUBLINGS_MAX: u32 = 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_a_range_and_is_named_when_it_is_out_of_it() {
        let sound = RouterConfig::default();
        assert_eq!(sound.validate(), Ok(()));
        assert_eq!(RouterConfig { queue_depth: 0, latency_alert: None, ..sound.clone() }.validate(), Ok(()));
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let fixed = |retries, delay| RetryPolicy::Fixed { retries, delay };
        let backoff = |retries, base, cap| RetryPolicy::Backoff { retries, base, cap };
        let cases = [
            (RouterConfig { concurrency_limit: 0, ..sound.clone() }, "concurrency_limit"),
            (RouterConfig { queue_depth: 100_001, ..sound.clone() }, "queue_depth"),
            (RouterConfig { calls_max: 0, ..sound.clone() }, "calls_max"),
            (RouterConfig { attempt_timeout: Duration::ZERO, ..sound.clone() }, "attempt_timeout"),
            (RouterConfig { latency_alert: Some(day), ..sound.clone() }, "latency_alert"),
            (RouterConfig { schema_versions: [].into(), ..sound.clone() }, "schema_versions"),
            (RouterConfig { retry: fixed(0, second), ..sound.clone() }, "retry.retries"),
            (RouterConfig { retry: fixed(1, day), ..sound.clone() }, "retry.delay"),
            (RouterConfig { retry: backoff(101, second, second), ..sound.clone() }, "retry.retries"),
            (RouterConfig { retry: backoff(1, Duration::ZERO, second), ..sound.clone() }, "retry.base"),
            (RouterConfig { retry: backoff(1, second, second / 2), ..sound.clone() }, "retry.cap"),
        ];
        for (config, name) in cases {
            let Err(RouterConfigError::Count { field, .. } | RouterConfigError::Duration { field, .. }) =
                config.validate()
            else {
                panic!("{name} was accepted");
            };
            assert_eq!(field, name);
        }
        let zero = RouterConfig { schema_versions: [1, 0].into(), ..sound };
        assert_eq!(zero.validate(), Err(RouterConfigError::SchemaZero));
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_differ_by_chance() {
        let (base, cap) = (Duration::from_millis(100), Duration::from_millis(300));
        let policy = RetryPolicy::Backoff { retries: 4, base, cap };
        let pauses = |seed| {
            let mut rng = fastrand::Rng::with_seed(seed);
            [1, 2, 3, 4, 5].map(|attempts| policy.pause(attempts, &mut rng))
        };
        for (pause, middle) in pauses(1).into_iter().zip([100, 200, 300, 300]) {
            let middle = Duration::from_millis(middle);
            let pause = pause.expect("a pause");
            assert!(pause >= middle.mul_f64(0.8) && pause <= middle.mul_f64(1.2), "{pause:?}");
        }
        assert_eq!(pauses(1)[4], None);
        assert_eq!(pauses(1), pauses(1));
        assert_ne!(pauses(1), pauses(2));
    }
}
