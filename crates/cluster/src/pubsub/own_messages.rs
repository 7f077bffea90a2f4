//! What synod nodes tell each other about topics beyond protoactor-go's protocol. Go nodes are never sent any of it.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use synod_core::pubsub::{
    Guarantee, KeptMessage, OverflowRule, PartitionPolicy, TopicName, TopicOptions, TopicSnapshot,
};
use synod_wire::Serializer;
use synod_wire::cluster::SubscriberIdentity;

use super::codec;
use crate::remote::{Message, TypeName};

/// Asks a topic to exist.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct CreateTopic {
    #[prost(message, optional, tag = "1")]
    pub(super) options: Option<WireOptions>,
}

/// It does.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct CreateTopicResponse {}

/// Tells a node that a topic exists.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct TopicCreated {
    #[prost(string, tag = "1")]
    pub(super) topic: String,
    #[prost(message, optional, tag = "2")]
    pub(super) options: Option<WireOptions>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct WireOptions {
    #[prost(bool, tag = "1")]
    at_least_once: bool,
    #[prost(bool, tag = "2")]
    drop_on_partition: bool,
    #[prost(bool, tag = "3")]
    drop_oldest: bool,
}

/// A topic on its way to its next host.
#[derive(Clone, PartialEq, prost::Message)]
struct TopicState {
    #[prost(message, optional, tag = "1")]
    created: Option<WireOptions>,
    #[prost(message, repeated, tag = "2")]
    subscribers: Vec<StateSubscriber>,
    #[prost(string, repeated, tag = "3")]
    type_names: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<StateMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StateSubscriber {
    #[prost(message, optional, tag = "1")]
    subscriber: Option<SubscriberIdentity>,
    #[prost(uint64, tag = "2")]
    needed: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StateMessage {
    #[prost(uint32, tag = "1")]
    type_index: u32,
    #[prost(int32, tag = "2")]
    serializer_id: i32,
    #[prost(uint64, tag = "3")]
    age_ms: u64,
    #[prost(bytes = "bytes", tag = "4")]
    payload: Bytes,
}

macro_rules! named {
    ($($message:ident),*) => {$(
        impl prost::Name for $message {
            const NAME: &'static str = stringify!($message);
            const PACKAGE: &'static str = "synod.pubsub";
        }
    )*};
}

named!(CreateTopic, CreateTopicResponse, TopicCreated);

impl From<TopicOptions> for WireOptions {
    fn from(options: TopicOptions) -> Self {
        Self {
            at_least_once: options.guarantee == Guarantee::AtLeastOnce,
            drop_on_partition: options.partition == PartitionPolicy::Drop,
            drop_oldest: options.overflow == OverflowRule::DropOldest,
        }
    }
}

impl From<WireOptions> for TopicOptions {
    fn from(wire: WireOptions) -> Self {
        let WireOptions { at_least_once, drop_on_partition, drop_oldest } = wire;
        Self {
            guarantee: if at_least_once { Guarantee::AtLeastOnce } else { Guarantee::AtMostOnce },
            partition: if drop_on_partition { PartitionPolicy::Drop } else { PartitionPolicy::Delay },
            overflow: if drop_oldest { OverflowRule::DropOldest } else { OverflowRule::RejectNew },
        }
    }
}

impl TopicCreated {
    pub(super) fn new(topic: &TopicName, options: TopicOptions) -> Self {
        Self { topic: topic.to_string(), options: Some(options.into()) }
    }
}

/// The snapshot as bytes.
pub(super) fn write_state(snapshot: TopicSnapshot<Message>) -> Vec<u8> {
    let mut indices: HashMap<TypeName, u32> = HashMap::new();
    let mut type_names = Vec::new();
    let messages = snapshot.messages.into_iter().map(|KeptMessage { payload: message, age, .. }| {
        let type_index = *indices.entry(message.type_name.clone()).or_insert_with(|| {
            type_names.push(message.type_name.to_string());
            u32::try_from(type_names.len() - 1).unwrap_or(u32::MAX)
        });
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        StateMessage { type_index, serializer_id: message.serializer.id(), age_ms, payload: message.payload }
    });
    let messages = messages.collect();
    let subscribers = snapshot.subscribers.iter().map(|(who, needed)| StateSubscriber {
        subscriber: Some(codec::wire_subscriber(who)),
        needed: *needed,
    });
    let state = TopicState {
        created: snapshot.created.map(WireOptions::from),
        subscribers: subscribers.collect(),
        type_names,
        messages,
    };
    prost::Message::encode_to_vec(&state)
}

/// How many bytes of a state its subscribers take, at most.
pub(super) fn subscribers_bytes(subscribers: impl Iterator<Item = usize>) -> usize {
    subscribers.map(|name_bytes| name_bytes + SUBSCRIBER_OVERHEAD_BYTES).sum()
}

/// The snapshot behind the bytes. What cannot be read of it is left out; that a whole message is missing would move the
/// place of everybody behind it, so then nothing is taken.
pub(super) fn read_state(bytes: &[u8]) -> Option<TopicSnapshot<Message>> {
    let state: TopicState = prost::Message::decode(bytes).ok()?;
    let type_names: Vec<_> = state.type_names.iter().map(|name| TypeName::from(name.as_str())).collect();
    let messages = state.messages.into_iter().map(|kept| {
        let type_name = type_names.get(usize::try_from(kept.type_index).ok()?)?.clone();
        let serializer = Serializer::from_id(kept.serializer_id)?;
        let payload = Message { serializer, ..Message::raw(type_name, kept.payload) };
        Some(KeptMessage {
            bytes: codec::kept_bytes(&payload),
            payload,
            age: Duration::from_millis(kept.age_ms),
        })
    });
    let messages = messages.collect::<Option<_>>()?;
    let subscribers = state.subscribers.iter().filter_map(|subscriber| {
        Some((codec::subscriber(subscriber.subscriber.as_ref())?, subscriber.needed))
    });
    let subscribers = subscribers.collect();
    Some(TopicSnapshot { created: state.created.map(TopicOptions::from), subscribers, messages })
}

const SUBSCRIBER_OVERHEAD_BYTES: usize = 32;
