//! What can go wrong with topics, and what is wrong with their settings.

use std::time::Duration;

use synod_core::Authority;
use synod_core::grains::IdentityError;
use synod_core::pubsub::{TopicConfigError, TopicName, TopicNameError};
use synod_wire::PayloadError;

use crate::grains::CallError;
use crate::remote::{DecodeMessageError, Pid, RegisterError};

/// A setting of publish and subscribe cannot be used. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PubSubConfigError {
    /// Of the topics.
    #[error(transparent)]
    Topic(#[from] TopicConfigError),
    /// Of the subscribers.
    #[error("subscriber_timeout must be 1 ms to 1 h, it is {value:?}")]
    SubscriberTimeout {
        /// The refused value.
        value: Duration,
    },
}

/// Creating, publishing or subscribing failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PubSubError {
    /// The name is none of a topic. Nothing was sent.
    #[error(transparent)]
    Topic(#[from] TopicNameError),
    /// Kind and identity do not name a grain. Nothing was sent.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The actor cannot subscribe. Nothing was sent.
    #[error("{pid} is no actor that could subscribe; nothing was sent")]
    NoActor {
        /// The refused actor.
        pid: Pid,
    },
    /// A channel of that size is none. Nothing was sent.
    #[error("the capacity of a channel must be 1 to 65536, it is {value}; nothing was sent")]
    Capacity {
        /// The refused value.
        value: usize,
    },
    /// Somebody created the topic before. It is as it was.
    #[error("the topic {topic} has been created before")]
    AlreadyCreated {
        /// The topic.
        topic: TopicName,
    },
    /// The topic belongs to a protoactor-go node, where topics have no options. Nothing was sent; subscribing and
    /// publishing work without creating it.
    #[error(
        "the topic {topic} belongs to {host}, a protoactor-go node, which has no options; nothing was sent"
    )]
    ForeignHost {
        /// The topic.
        topic: TopicName,
        /// The node.
        host: Authority,
    },
    /// Nobody created the topic, and nobody has subscribed to it. The messages were dropped.
    #[error("there is no topic {topic}; the messages were dropped")]
    UnknownTopic {
        /// The topic.
        topic: TopicName,
    },
    /// Nobody hears what is published there. The messages were dropped.
    #[error("nobody subscribes to {topic}; the messages were dropped")]
    NoSubscribers {
        /// The topic.
        topic: TopicName,
    },
    /// The topic keeps as much as it may. Nobody has the messages; publishing again later may succeed.
    #[error("{topic} keeps as many messages that have not arrived as it may; these were not taken")]
    BufferFull {
        /// The topic.
        topic: TopicName,
    },
    /// The topic did not take the messages.
    #[error("{topic} did not take the messages")]
    Failed {
        /// The topic.
        topic: TopicName,
    },
    /// The topic could not be asked, or refused.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The messages cannot be sent. Nothing was.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The answer of the topic is not what was asked for.
    #[error(transparent)]
    Answer(#[from] DecodeMessageError),
    /// There are too many actors for another handler. Nothing was sent.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The node is stopped. Nothing was sent.
    #[error("the node is stopped; nothing was sent")]
    Stopped,
}
