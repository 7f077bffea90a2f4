//! The settings of a topic, checked once.

use core::time::Duration;

use crate::grains::PlacementHash;

/// Settings of a [`PubSubBroker`](super::PubSubBroker).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// How hard a message is tried to be delivered. Default [`Guarantee::AtMostOnce`], which is what protoactor-go does.
    pub guarantee: Guarantee,
    /// What becomes of messages for subscribers that cannot be reached at the moment. Default
    /// [`PartitionPolicy::Delay`].
    pub partition: PartitionPolicy,
    /// What gives way when the buffer is full and messages must arrive. Default [`OverflowRule::RejectNew`].
    pub overflow: OverflowRule,
    /// Most messages that are kept for subscribers that have not had them. More rides out longer outages and costs
    /// memory. 1 to 10 000 000. Default 10 000.
    pub buffer_messages_max: usize,
    /// Most bytes of such messages. 1 to 64 GiB. Default 16 MiB.
    pub buffer_bytes_max: usize,
    /// How long a message is kept. 1 ms to 7 days. Default 1 min.
    pub expiry: Duration,
    /// Most subscribers of the topic. 1 to 65 536. Default 10 000.
    pub subscribers_max: usize,
    /// Most messages in one delivery. 1 to 65 536. Default 2000.
    pub batch_messages_max: usize,
    /// Most bytes in one delivery; a single message may be larger. 1 to 16 MiB. Default 1 MiB.
    pub batch_bytes_max: usize,
    /// How long an acknowledgement may take before the delivery counts as failed. Longer than subscribers may take.
    /// 1 ms to 1 h. Default 15 s.
    pub delivery_timeout: Duration,
    /// The pause after a delivery failed; it doubles with each failure in a row. 1 ms to 1 h. Default 100 ms.
    pub redelivery_base: Duration,
    /// The longest such pause. `redelivery_base` to 1 h. Default 10 s.
    pub redelivery_cap: Duration,
    /// How long subscribers on a node that left may come back before they are removed. 0 to 1 h. Default 10 s.
    pub departed_grace: Duration,
    /// How grains that subscribe are placed. The same as everywhere in the cluster.
    pub placement: PlacementHash,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            guarantee: Guarantee::AtMostOnce,
            partition: PartitionPolicy::Delay,
            overflow: OverflowRule::RejectNew,
            buffer_messages_max: 10_000,
            buffer_bytes_max: 16 * MIB,
            expiry: Duration::from_secs(60),
            subscribers_max: 10_000,
            batch_messages_max: 2000,
            batch_bytes_max: MIB,
            delivery_timeout: Duration::from_secs(15),
            redelivery_base: Duration::from_millis(100),
            redelivery_cap: Duration::from_secs(10),
            departed_grace: Duration::from_secs(10),
            placement: PlacementHash::default(),
        }
    }
}

impl TopicConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), TopicConfigError> {
        let counts = [
            ("buffer_messages_max", self.buffer_messages_max, 10_000_000),
            ("buffer_bytes_max", self.buffer_bytes_max, BUFFER_BYTES_MAX),
            ("subscribers_max", self.subscribers_max, 65_536),
            ("batch_messages_max", self.batch_messages_max, 65_536),
            ("batch_bytes_max", self.batch_bytes_max, 16 * MIB),
        ];
        for (field, value, max) in counts {
            if !(1..=max).contains(&value) {
                return Err(TopicConfigError::Count { field, value, max });
            }
        }
        let durations = [
            ("expiry", self.expiry, MILLISECOND, EXPIRY_MAX),
            ("delivery_timeout", self.delivery_timeout, MILLISECOND, HOUR),
            ("redelivery_base", self.redelivery_base, MILLISECOND, HOUR),
            ("redelivery_cap", self.redelivery_cap, self.redelivery_base, HOUR),
            ("departed_grace", self.departed_grace, Duration::ZERO, HOUR),
        ];
        for (field, value, min, max) in durations {
            if !(min..=max).contains(&value) {
                return Err(TopicConfigError::Duration { field, value, min, max });
            }
        }
        Ok(())
    }
}

impl TopicConfig {
    /// What whoever creates a topic may decide otherwise.
    #[must_use]
    pub const fn options(&self) -> TopicOptions {
        TopicOptions { guarantee: self.guarantee, partition: self.partition, overflow: self.overflow }
    }

    pub(super) const fn set_options(&mut self, options: TopicOptions) {
        let TopicOptions { guarantee, partition, overflow } = options;
        (self.guarantee, self.partition, self.overflow) = (guarantee, partition, overflow);
    }
}

/// What whoever creates a topic decides about it. Topics that nobody created behave as their host is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicOptions {
    /// How hard a message is tried to be delivered. Default [`Guarantee::AtMostOnce`].
    pub guarantee: Guarantee,
    /// What becomes of messages for subscribers that cannot be reached at the moment. Default
    /// [`PartitionPolicy::Delay`].
    pub partition: PartitionPolicy,
    /// What gives way when the buffer is full and messages must arrive. Default [`OverflowRule::RejectNew`].
    pub overflow: OverflowRule,
}

impl Default for TopicOptions {
    fn default() -> Self {
        TopicConfig::default().options()
    }
}

/// How hard a message is tried to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// It is sent once and forgotten. What is lost on the way is lost.
    AtMostOnce,
    /// It is kept and sent until the subscriber acknowledges it, or it expires. It may arrive twice.
    AtLeastOnce,
}

/// What becomes of messages for subscribers that cannot be reached at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionPolicy {
    /// They are kept until the subscribers are back, within the bounds of the buffer.
    Delay,
    /// They are dropped for these subscribers. The others have them.
    Drop,
}

/// What gives way when the buffer is full and messages must arrive. What was only delayed always gives way, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverflowRule {
    /// The oldest messages, for those who have not had them.
    DropOldest,
    /// The publisher, who is told so.
    RejectNew,
}

/// A setting of a topic cannot be used. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicConfigError {
    /// A number is out of its range.
    #[error("{field} must be 1 to {max}, it is {value}")]
    Count {
        /// The setting.
        field: &'static str,
        /// The refused value.
        value: usize,
        /// The largest value.
        max: usize,
    },
    /// A time is out of its range.
    #[error("{field} must be {min:?} to {max:?}, it is {value:?}")]
    Duration {
        /// The setting.
        field: &'static str,
        /// The refused value.
        value: Duration,
        /// The smallest value.
        min: Duration,
        /// The largest value.
        max: Duration,
    },
}

const MIB: usize = 1024 * 1024;
const BUFFER_BYTES_MAX: usize = if usize::BITS > 32 { 65_536 * MIB } else { 1024 * MIB };
const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const EXPIRY_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
