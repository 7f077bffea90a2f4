//! What a topic says: to whom what is delivered, what was refused, and what observers hear.

use alloc::vec::Vec;
use core::fmt;

use super::config::TopicOptions;
use super::name::TopicName;
use crate::grains::{ActorPid, ClusterIdentity};
use crate::id::Authority;
use crate::time::TimerInstant;

/// Who hears what is published.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subscriber {
    /// An actor. It is forgotten when it ends.
    Actor(ActorPid),
    /// A grain, wherever it runs. It stays until it unsubscribes.
    Grain(ClusterIdentity),
}

impl fmt::Display for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Actor(pid) => fmt::Display::fmt(pid, f),
            Self::Grain(grain) => fmt::Display::fmt(grain, f),
        }
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a call asks the driver to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct PubSubOutcome<P> {
    /// Send these, in this order.
    pub deliveries: Vec<Delivery<P>>,
    /// Tell observers.
    pub events: Vec<PubSubEvent>,
    /// Poll again then, or earlier; `None` when nothing is due.
    pub wake_at: Option<TimerInstant>,
}

impl<P> Default for PubSubOutcome<P> {
    fn default() -> Self {
        Self { deliveries: Vec::new(), events: Vec::new(), wake_at: None }
    }
}

/// Messages for subscribers on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<P> {
    /// Which it is, for the report.
    pub id: DeliveryId,
    /// The node.
    pub to: Authority,
    /// Everybody there who is to have the messages, in order.
    pub subscribers: Vec<Subscriber>,
    /// The messages, in order.
    pub messages: Vec<P>,
    /// Whether the topic waits for a report. Without it, only failures are of interest.
    pub needs_report: bool,
}

/// The number of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId(pub(super) u64);

/// What became of a delivery to one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryStatus {
    /// The subscriber has the messages.
    Delivered,
    /// There is no such actor.
    NoLongerReachable,
    /// The subscriber did not answer in time. It may have the messages.
    Timeout,
    /// Anything else.
    OtherError,
}

/// A batch was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// How many messages it had.
    pub messages: usize,
    /// How many subscribers are to have it, now or later.
    pub subscribers: usize,
}

/// A batch was not taken. Nobody has any of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishRefusal {
    /// There is nothing in it.
    #[error("the batch for {topic} is empty")]
    EmptyBatch {
        /// The topic.
        topic: TopicName,
    },
    /// Nobody created the topic, and nobody has subscribed to it.
    #[error("there is no topic {topic}; the message was dropped")]
    UnknownTopic {
        /// The topic.
        topic: TopicName,
    },
    /// Nobody would hear it.
    #[error("nobody subscribes to {topic}; the message was dropped")]
    NoSubscribers {
        /// The topic.
        topic: TopicName,
    },
    /// As much is kept already as may be.
    #[error(
        "{topic} keeps {messages} messages of {bytes} bytes that have not arrived, and has no room for more"
    )]
    BufferFull {
        /// The topic.
        topic: TopicName,
        /// How many messages are kept.
        messages: usize,
        /// How many bytes they have.
        bytes: usize,
    },
    /// It is more than is ever kept.
    #[error("a batch of {messages} messages and {bytes} bytes is more than {topic} keeps")]
    BatchTooLarge {
        /// The topic.
        topic: TopicName,
        /// How many messages it has.
        messages: usize,
        /// How many bytes they have.
        bytes: usize,
    },
}

/// A topic was not created. It is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateRefusal {
    /// Somebody did before.
    #[error("the topic {topic} has been created before")]
    AlreadyCreated {
        /// The topic.
        topic: TopicName,
        /// What it was created with.
        options: TopicOptions,
    },
}

/// Somebody was not subscribed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeRefusal {
    /// There are as many as may be.
    #[error("{topic} has {max} subscribers already, as many as may be; {subscriber} is not among them")]
    TooManySubscribers {
        /// The topic.
        topic: TopicName,
        /// Who was refused.
        subscriber: Subscriber,
        /// Most subscribers.
        max: usize,
    },
}

/// Something happened to a topic of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PubSubEvent {
    /// A topic was created somewhere in the cluster.
    Created {
        /// The topic.
        topic: TopicName,
        /// How it behaves.
        options: TopicOptions,
    },
    /// Messages were given up for some subscribers.
    Dropped {
        /// The topic.
        topic: TopicName,
        /// How many, each counted once per subscriber.
        messages: u64,
        /// Why.
        reason: DropReason,
    },
    /// Deliveries to a node go on.
    NodeResumed {
        /// The topic.
        topic: TopicName,
        /// The node.
        authority: Authority,
    },
    /// A node cannot be reached at the moment, and nothing is delivered there.
    NodeSuspended {
        /// The topic.
        topic: TopicName,
        /// The node.
        authority: Authority,
    },
    /// A batch was not taken.
    PublishRefused(PublishRefusal),
    /// Somebody new hears what is published.
    Subscribed {
        /// The topic.
        topic: TopicName,
        /// Who.
        subscriber: Subscriber,
    },
    /// Somebody hears it no longer, and did not ask for that.
    SubscriberRemoved {
        /// The topic.
        topic: TopicName,
        /// Who.
        subscriber: Subscriber,
        /// Why.
        reason: RemovalReason,
    },
    /// Somebody hears it no longer, as asked.
    Unsubscribed {
        /// The topic.
        topic: TopicName,
        /// Who.
        subscriber: Subscriber,
    },
}

/// Why messages were given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The buffer had no room for them.
    BufferFull,
    /// They were kept as long as messages are.
    Expired,
    /// The topic moved, and not all that it kept could go with it.
    Moved,
    /// Their subscribers could not be reached, and messages are not delayed.
    Partition,
}

/// Why a subscriber was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// Its node left and did not come back.
    NodeLeft,
    /// It has ended.
    NoLongerReachable,
}

/// How a topic has fared. Messages are counted once per subscriber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PubSubCounts {
    /// Messages that were taken, each counted once.
    pub published: u64,
    /// Batches that were not taken.
    pub refused: u64,
    /// Messages that were sent to the node of a subscriber, again ones included.
    pub forwarded: u64,
    /// Messages that a subscriber acknowledged.
    pub delivered: u64,
    /// Messages that were kept because their subscriber could not be reached.
    pub delayed: u64,
    /// Messages that were given up, for whatever reason.
    pub dropped: u64,
    /// Messages that were sent again.
    pub redelivered: u64,
    /// Deliveries to a subscriber that got no answer in time.
    pub timeouts: u64,
    /// Deliveries to a subscriber that failed otherwise.
    pub failures: u64,
}

impl PubSubCounts {
    /// These and `other` together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            published: self.published + other.published,
            refused: self.refused + other.refused,
            forwarded: self.forwarded + other.forwarded,
            delivered: self.delivered + other.delivered,
            delayed: self.delayed + other.delayed,
            dropped: self.dropped + other.dropped,
            redelivered: self.redelivered + other.redelivered,
            timeouts: self.timeouts + other.timeouts,
            failures: self.failures + other.failures,
        }
    }
}
