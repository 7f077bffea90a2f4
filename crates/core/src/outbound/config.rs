//! The settings of the outbound pipeline, checked once.

use core::time::Duration;

/// What to do with a message for which the queue has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// The oldest messages make room. For state that is repeated anyway.
    DropOldest,
    /// The new message is refused. For requests whose sender can react.
    RejectNew,
}

/// Settings of an [`OutboundPipeline`](super::OutboundPipeline).
#[derive(Clone, Debug, PartialEq)]
pub struct OutboundConfig {
    /// Most messages that wait for one address. More rides out longer outages and holds more memory. 1 to 1 000 000.
    /// Default 1024.
    pub queue_messages_max: usize,
    /// Most bytes that wait for one address. 1 to 1 GiB. Default 4 MiB.
    pub queue_bytes_max: usize,
    /// What happens beyond. Default [`OverflowPolicy::DropOldest`].
    pub overflow: OverflowPolicy,
    /// How many waiting messages go out at once after a reconnect; the next batch follows with the next poll, so that one
    /// reconnect does not hold up everything else. 1 to 100 000. Default 256.
    pub flush_batch: usize,
    /// The pause after the first failed connection; it doubles with each further one. 1 ms to 1 h. Default 100 ms.
    pub backoff_min: Duration,
    /// The longest pause between two tries. `backoff_min` to 1 h. Default 10 s.
    pub backoff_max: Duration,
    /// After so many failed connections in a row, what waits becomes dead letters and observers are told that the address
    /// cannot be reached. More rides out longer outages, fewer tells senders sooner. 1 to 1000. Default 5, which with the
    /// other defaults takes some three seconds.
    pub connect_failures_max: usize,
    /// Most addresses known at a time. 1 to 100 000. Default 10 000.
    pub associations_max: usize,
}

impl Default for OutboundConfig {
    fn default() -> Self {
        Self {
            queue_messages_max: 1024,
            queue_bytes_max: 4 << 20,
            overflow: OverflowPolicy::DropOldest,
            flush_batch: 256,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
            connect_failures_max: 5,
            associations_max: 10_000,
        }
    }
}

impl OutboundConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), OutboundConfigError> {
        let counts = [
            ("queue_messages_max", self.queue_messages_max, 1_000_000),
            ("queue_bytes_max", self.queue_bytes_max, 1 << 30),
            ("flush_batch", self.flush_batch, 100_000),
            ("connect_failures_max", self.connect_failures_max, 1000),
            ("associations_max", self.associations_max, 100_000),
        ];
        for (field, value, max) in counts {
            if !(1..=max).contains(&value) {
                return Err(OutboundConfigError::Count { field, value, max });
            }
        }
        let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(3600));
        let durations = [
            ("backoff_min", self.backoff_min, shortest),
            ("backoff_max", self.backoff_max, self.backoff_min.max(shortest)),
        ];
        for (field, value, min) in durations {
            if !(min..=longest).contains(&value) {
                return Err(OutboundConfigError::Duration { field, value, min, max: longest });
            }
        }
        Ok(())
    }
}

/// A setting is out of range. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutboundConfigError {
    /// A number is out of range.
    #[error("outbound.{field} must be 1 to {max}, it is {value}")]
    Count {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: usize,
        /// The largest value.
        max: usize,
    },
    /// A duration is out of range.
    #[error("outbound.{field} must be {min:?} to {max:?}, it is {value:?}")]
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
}
