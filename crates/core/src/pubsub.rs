//! Publish and subscribe: one says something to a topic, and everybody who subscribed hears it.
//!
//! A topic is a grain, so there is one of it in the cluster and everyone finds it. [`PubSubBroker`] is what that grain
//! thinks with:
//!
//! ```text
//!   publish ──► log of what somebody still needs ──► per node: one Delivery for all its subscribers at the same place
//!                  ▲  bounded, the oldest expires            │
//!                  └── acknowledged, failed, timed out ◄─────┘
//! ```
//!
//! A subscriber reads the log at its own pace and in order. With [`Guarantee::AtMostOnce`] it has read what was sent to
//! it; with [`Guarantee::AtLeastOnce`] what it acknowledged. That is the only difference between the two.
//!
//! A topic is there as soon as somebody creates it or subscribes to it. When it moves to another node, a [`TopicSnapshot`]
//! takes its subscribers and what they have not had along.

mod broker;
mod config;
mod log;
mod name;
mod outcome;

pub use broker::{KeptMessage, PubSubBroker, TopicSnapshot};
pub use config::{Guarantee, OverflowRule, PartitionPolicy, TopicConfig, TopicConfigError, TopicOptions};
pub use name::{TOPIC_BYTES_MAX, TopicName, TopicNameError};
pub use outcome::{
    CreateRefusal, Delivery, DeliveryId, DeliveryStatus, DropReason, PubSubCounts, PubSubEvent,
    PubSubOutcome, PublishRefusal, Published, RemovalReason, SubscribeRefusal, Subscriber,
};
