//! The settings of a registry that are not the cluster's, checked once.

use core::time::Duration;

/// Settings of a [`SlotRegistry`](super::SlotRegistry). The pace of the cluster is in its bootstrap state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRegistryConfig {
    /// How long a candidate waits for grants, and a primary for what it asked of another replica, before it asks again.
    /// Longer than a round trip with a disk write. 10 ms to 1 min. Default 1 s.
    pub round_timeout: Duration,
    /// How much later the next replica in order becomes a candidate. It should exceed an election, or candidates get in
    /// each other's way. 10 ms to 1 min. Default 500 ms.
    pub rank_delay: Duration,
    /// How long the first replica of a slot must have been there before it is given the slot back. 0 to 24 h.
    /// Default 30 s.
    pub rebalance_delay: Duration,
    /// How far the clock of another node may be ahead before its stamps are not followed. 0 to 24 h. Default 1 min.
    pub clock_offset_max: Duration,
    /// Most requests that wait for one slot. 1 to 65 536. Default 256.
    pub requests_per_slot_max: usize,
}

impl Default for SlotRegistryConfig {
    fn default() -> Self {
        Self {
            round_timeout: Duration::from_secs(1),
            rank_delay: Duration::from_millis(500),
            rebalance_delay: Duration::from_secs(30),
            clock_offset_max: Duration::from_secs(60),
            requests_per_slot_max: 256,
        }
    }
}

impl SlotRegistryConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), SlotConfigError> {
        let (minute, day) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));
        let least = Duration::from_millis(10);
        let durations = [
            ("round_timeout", self.round_timeout, least, minute),
            ("rank_delay", self.rank_delay, least, minute),
            ("rebalance_delay", self.rebalance_delay, Duration::ZERO, day),
            ("clock_offset_max", self.clock_offset_max, Duration::ZERO, day),
        ];
        for (field, value, min, max) in durations {
            if !(min..=max).contains(&value) {
                return Err(SlotConfigError::Duration { field, value, min, max });
            }
        }
        if !(1..=65_536).contains(&self.requests_per_slot_max) {
            return Err(SlotConfigError::Requests { value: self.requests_per_slot_max });
        }
        Ok(())
    }
}

/// A setting is out of its range. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotConfigError {
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
    /// The bound of waiting requests.
    #[error("requests_per_slot_max is {value}; it must be from 1 to 65536")]
    Requests {
        /// Its value.
        value: usize,
    },
}
