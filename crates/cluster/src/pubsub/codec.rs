//! Topics, subscribers and batches as they travel.

use std::collections::HashMap;

use synod_core::grains::{ActorPid, ClusterIdentity};
use synod_core::pubsub::{DeliveryStatus, Subscriber};
use synod_wire::Serializer;
use synod_wire::cluster::subscriber_identity::Identity;
use synod_wire::cluster::{self as wire, PubSubEnvelope, SubscriberDeliveryReport, SubscriberIdentity};

use crate::grains::{actor_pid, remote_pid};
use crate::remote::{Message, Pid, TypeName};

/// The subscriber, if it can be one.
pub(super) fn subscriber(identity: Option<&SubscriberIdentity>) -> Option<Subscriber> {
    match identity?.identity.as_ref()? {
        Identity::Pid(pid) => actor_pid(&Pid::from(pid)).map(Subscriber::Actor),
        Identity::ClusterIdentity(grain) => {
            ClusterIdentity::new(&grain.kind, &grain.identity).ok().map(Subscriber::Grain)
        }
    }
}

pub(super) fn wire_subscriber(subscriber: &Subscriber) -> SubscriberIdentity {
    let identity = match subscriber {
        Subscriber::Actor(pid) => Identity::Pid(wire_pid(pid)),
        Subscriber::Grain(grain) => Identity::ClusterIdentity(wire::ClusterIdentity {
            identity: grain.identity().to_owned(),
            kind: grain.kind().to_owned(),
        }),
    };
    SubscriberIdentity { identity: Some(identity) }
}

fn wire_pid(pid: &ActorPid) -> synod_wire::actor::Pid {
    (&remote_pid(pid)).into()
}

/// The table of type names, and the messages that point into it.
#[must_use]
pub fn pack(messages: &[Message]) -> (Vec<String>, Vec<PubSubEnvelope>) {
    let mut indices: HashMap<&TypeName, i32> = HashMap::new();
    let mut type_names = Vec::new();
    let envelopes = messages.iter().map(|message| {
        let type_id = *indices.entry(&message.type_name).or_insert_with(|| {
            type_names.push(message.type_name.to_string());
            i32::try_from(type_names.len() - 1).unwrap_or(i32::MAX)
        });
        let (message_data, serializer_id) = (message.payload.clone(), message.serializer.id());
        PubSubEnvelope { type_id, message_data, serializer_id }
    });
    let envelopes = envelopes.collect();
    (type_names, envelopes)
}

/// The messages of a batch that was checked when it was decoded.
#[must_use]
pub fn unpack(type_names: &[String], envelopes: Vec<PubSubEnvelope>) -> Vec<Message> {
    let type_names: Vec<_> = type_names.iter().map(|name| TypeName::from(name.as_str())).collect();
    let messages = envelopes.into_iter().filter_map(|envelope| {
        let type_name = type_names.get(usize::try_from(envelope.type_id).ok()?)?.clone();
        let serializer = Serializer::from_id(envelope.serializer_id)?;
        Some(Message { serializer, ..Message::raw(type_name, envelope.message_data) })
    });
    messages.collect()
}

/// How much of a topic's buffer a message takes.
pub(super) fn kept_bytes(message: &Message) -> usize {
    message.payload.len() + message.type_name.as_str().len()
}

pub(super) type Failures = Vec<(Subscriber, DeliveryStatus)>;

pub(super) fn failures(reports: &[SubscriberDeliveryReport]) -> Failures {
    let failed = reports.iter().filter_map(|report| {
        let status = match report.status() {
            wire::DeliveryStatus::Delivered => return None,
            wire::DeliveryStatus::SubscriberNoLongerReachable => DeliveryStatus::NoLongerReachable,
            wire::DeliveryStatus::Timeout => DeliveryStatus::Timeout,
            wire::DeliveryStatus::OtherError => DeliveryStatus::OtherError,
        };
        Some((subscriber(report.subscriber.as_ref())?, status))
    });
    failed.collect()
}

pub(super) fn wire_failures(failures: &Failures) -> Vec<SubscriberDeliveryReport> {
    let reports = failures.iter().map(|(subscriber, status)| {
        let status = match status {
            DeliveryStatus::Delivered => wire::DeliveryStatus::Delivered,
            DeliveryStatus::NoLongerReachable => wire::DeliveryStatus::SubscriberNoLongerReachable,
            DeliveryStatus::Timeout => wire::DeliveryStatus::Timeout,
            DeliveryStatus::OtherError => wire::DeliveryStatus::OtherError,
        };
        SubscriberDeliveryReport { subscriber: Some(wire_subscriber(subscriber)), status: status.into() }
    });
    reports.collect()
}
