//! The settings of an object coordinator, checked once.

use core::time::Duration;

/// Settings of an [`ObjectCoordinator`](super::ObjectCoordinator).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectConfig {
    /// Tells this life of the node from every other one: questions are numbered from here, so that an answer to an earlier
    /// life is not taken for one to this. A driver gives a random number, or one that rises. Default 0.
    pub instance: u64,
    /// How long a replica is given to answer before it is asked again. Longer than a round trip with a disk write. 10 ms to
    /// 1 min. Default 200 ms.
    pub resend_interval: Duration,
    /// How often the replicas of a slot are compared. 1 s to 24 h. Default 1 min.
    pub heal_interval: Duration,
    /// How long every replica is given to take a repaired entry before the repair counts as failed. 100 ms to 1 h.
    /// Default 5 s.
    pub heal_patience: Duration,
    /// Most requests in flight. 1 to 1 048 576. Default 4096.
    pub requests_max: usize,
    /// Most keys that are unsettled: a write of theirs has no known end. 1 to 1 048 576. Default 4096.
    pub unsettled_max: usize,
    /// Most stretches of names that are compared with other replicas at once. 1 to 4096. Default 32.
    pub comparisons_max: usize,
    /// Most entries that are repaired at once. 1 to 4096. Default 64.
    pub repairs_max: usize,
}

impl Default for ObjectConfig {
    fn default() -> Self {
        Self {
            instance: 0,
            resend_interval: Duration::from_millis(200),
            heal_interval: Duration::from_secs(60),
            heal_patience: Duration::from_secs(5),
            requests_max: 4096,
            unsettled_max: 4096,
            comparisons_max: 32,
            repairs_max: 64,
        }
    }
}

impl ObjectConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), ObjectConfigError> {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let durations = [
            ("resend_interval", self.resend_interval, second / 100, minute),
            ("heal_interval", self.heal_interval, second, minute * 60 * 24),
            ("heal_patience", self.heal_patience, second / 10, minute * 60),
        ];
        for (field, value, min, max) in durations {
            if !(min..=max).contains(&value) {
                return Err(ObjectConfigError::Duration { field, value, min, max });
            }
        }
        let counts = [
            ("requests_max", self.requests_max, 1 << 20),
            ("unsettled_max", self.unsettled_max, 1 << 20),
            ("comparisons_max", self.comparisons_max, 4096),
            ("repairs_max", self.repairs_max, 4096),
        ];
        for (field, value, max) in counts {
            if !(1..=max).contains(&value) {
                return Err(ObjectConfigError::Count { field, value, max });
            }
        }
        Ok(())
    }
}

/// A setting is out of its range. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectConfigError {
    /// A duration.
    #[error("{field} is {value:?}; it must be from {min:?} to {max:?}")]
    Duration {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: Duration,
        /// The least.
        min: Duration,
        /// The most.
        max: Duration,
    },
    /// A bound.
    #[error("{field} is {value}; it must be from 1 to {max}")]
    Count {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The most.
        max: usize,
    },
}
