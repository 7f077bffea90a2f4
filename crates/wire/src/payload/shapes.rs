//! What each message of the protocol needs, and where its lists are.
//!
//! The order is that of the `.proto` files. A message that is missing here can neither be read nor written by accident.

use super::{Fault, sealed::Checked};
use crate::actor::{DeadLetterResponse, PoisonPill, Stop, Terminated, Touch, Touched, Unwatch, Watch};
use crate::batch::Serializer;
use crate::cluster::{
    Acknowledge, ActivationRequest, ActivationResponse, ActivationTerminated, ClusterTopology,
    DeliverBatchRequestTransport, GossipMap, GossipRequest, GossipResponse, GossipState, GrainErrorResponse,
    GrainRequest, GrainResponse, Initialize, MemberHeartbeat, NotifyAboutFailingSubscribersRequest,
    NotifyAboutFailingSubscribersResponse, PubSubAutoRespondBatchTransport, PubSubBatchTransport,
    PubSubEnvelope, PublishResponse, SubscribeRequest, SubscribeResponse, SubscriberIdentity, Subscribers,
    UnsubscribeRequest, UnsubscribeResponse,
};
use crate::limits::Counted;
use crate::membership::{Format, Message};
use crate::remote::{ActorPidRequest, ActorPidResponse};
use crate::scan::{Inside, Shape};

/// Messages that have no lists and need nothing.
macro_rules! plain {
    ($($message:ty),* $(,)?) => {
        $(impl Checked for $message {
            const SHAPE: Shape = Shape(&[]);
        })*
    };
}

plain!(
    DeadLetterResponse,
    PoisonPill,
    Stop,
    Touch,
    Touched,
    ActorPidRequest,
    ActorPidResponse,
    ActivationResponse,
    ActivationTerminated,
    GrainRequest,
    GrainResponse,
    Initialize,
    Acknowledge,
    SubscribeResponse,
    UnsubscribeResponse,
    NotifyAboutFailingSubscribersResponse,
    PublishResponse,
    Format,
    // `google.protobuf.Empty`, the value of the gossip key of a member that leaves.
    (),
);

// ---- actor.proto ----

impl Checked for Watch {
    const SHAPE: Shape = Shape(&[]);

    fn check(&self) -> Result<(), Fault> {
        present(self.watcher.as_ref(), "Watcher")
    }
}

impl Checked for Unwatch {
    const SHAPE: Shape = Shape(&[]);

    fn check(&self) -> Result<(), Fault> {
        present(self.watcher.as_ref(), "Watcher")
    }
}

impl Checked for Terminated {
    const SHAPE: Shape = Shape(&[]);

    fn check(&self) -> Result<(), Fault> {
        present(self.who.as_ref(), "who")
    }
}

// ---- cluster.proto ----

impl Checked for ActivationRequest {
    const SHAPE: Shape = Shape(&[]);

    fn check(&self) -> Result<(), Fault> {
        present(self.cluster_identity.as_ref(), "cluster_identity")
    }
}

impl Checked for ClusterTopology {
    const SHAPE: Shape = Shape(&[
        Inside::list_of(2, Counted::TopologyMembers, &MEMBER),
        Inside::list_of(3, Counted::TopologyMembers, &MEMBER),
        Inside::list_of(4, Counted::TopologyMembers, &MEMBER),
        Inside::list(5, Counted::BlockedMembers),
    ]);
}

const MEMBER: Shape = Shape(&[Inside::list(4, Counted::MemberKinds)]);

impl Checked for MemberHeartbeat {
    const SHAPE: Shape = Shape(&[Inside::one(1, &ACTOR_STATISTICS)]);
}

const ACTOR_STATISTICS: Shape = Shape(&[Inside::list(1, Counted::MemberKinds)]);

// ---- gossip.proto ----

impl Checked for GossipRequest {
    const SHAPE: Shape = Shape(&[Inside::one(1, &GOSSIP_STATE)]);

    fn check(&self) -> Result<(), Fault> {
        present(self.state.as_ref(), "state")
    }

    fn check_sent(&self) -> Result<(), Fault> {
        self.state.as_ref().map_or(Ok(()), no_empty_members)
    }
}

impl Checked for GossipResponse {
    const SHAPE: Shape = Shape(&[Inside::one(1, &GOSSIP_STATE)]);

    fn check_sent(&self) -> Result<(), Fault> {
        self.state.as_ref().map_or(Ok(()), no_empty_members)
    }
}

const GOSSIP_STATE: Shape = Shape(&[Inside::list_of(1, Counted::GossipMembers, &GOSSIP_MEMBER_ENTRY)]);
const GOSSIP_MEMBER_ENTRY: Shape = Shape(&[Inside::one(2, &GOSSIP_MEMBER_STATE)]);
const GOSSIP_MEMBER_STATE: Shape = Shape(&[Inside::list(1, Counted::GossipValues)]);

impl Checked for GossipMap {
    const SHAPE: Shape = Shape(&[Inside::list(1, Counted::GossipMapItems)]);
}

// ---- grain.proto ----

impl Checked for GrainErrorResponse {
    const SHAPE: Shape = Shape(&[Inside::list(3, Counted::GrainErrorDetails)]);
}

// ---- pubsub.proto ----

impl Checked for Subscribers {
    const SHAPE: Shape = Shape(&[Inside::list(1, Counted::Subscribers)]);

    fn check(&self) -> Result<(), Fault> {
        self.subscribers.iter().try_for_each(|subscriber| identified(Some(subscriber)))
    }
}

impl Checked for SubscribeRequest {
    const SHAPE: Shape = Shape(&[]);

    fn check(&self) -> Result<(), Fault> {
        identified(self.subscriber.as_ref())
    }
}

impl Checked for UnsubscribeRequest {
    const SHAPE: Shape = Shape(&[]);

    fn check(&self) -> Result<(), Fault> {
        identified(self.subscriber.as_ref())
    }
}

impl Checked for PubSubBatchTransport {
    const SHAPE: Shape = PUBLISHED;

    fn check(&self) -> Result<(), Fault> {
        published(&self.type_names, &self.envelopes)
    }
}

impl Checked for PubSubAutoRespondBatchTransport {
    const SHAPE: Shape = PUBLISHED;

    fn check(&self) -> Result<(), Fault> {
        published(&self.type_names, &self.envelopes)
    }
}

const PUBLISHED: Shape =
    Shape(&[Inside::list(1, Counted::PublishedTypeNames), Inside::list(2, Counted::PublishedMessages)]);

impl Checked for DeliverBatchRequestTransport {
    const SHAPE: Shape = Shape(&[Inside::one(1, &Subscribers::SHAPE), Inside::one(2, &PUBLISHED)]);

    fn check(&self) -> Result<(), Fault> {
        self.subscribers.as_ref().ok_or(Fault::Missing("subscribers"))?.check()?;
        self.batch.as_ref().ok_or(Fault::Missing("batch"))?.check()
    }
}

impl Checked for NotifyAboutFailingSubscribersRequest {
    const SHAPE: Shape = Shape(&[Inside::list(1, Counted::Subscribers)]);

    fn check(&self) -> Result<(), Fault> {
        self.invalid_deliveries.iter().try_for_each(|report| identified(report.subscriber.as_ref()))
    }
}

// ---- membership.proto ----

impl Checked for Message {
    const SHAPE: Shape =
        Shape(&[Inside::one(8, &ACK), Inside::one(13, &MEMBERSHIP_VIEW), Inside::one(15, &MEMBERSHIP_VIEW)]);
}

const ACK: Shape = Shape(&[Inside::one(3, &DELTA)]);
const MEMBERSHIP_VIEW: Shape = Shape(&[Inside::one(1, &DELTA)]);
const DELTA: Shape = Shape(&[Inside::list(3, Counted::MembershipRecords)]);

// ---- What the messages have in common ----

fn present<T>(field: Option<&T>, name: &'static str) -> Result<(), Fault> {
    field.map(|_| ()).ok_or(Fault::Missing(name))
}

fn identified(subscriber: Option<&SubscriberIdentity>) -> Result<(), Fault> {
    present(subscriber.and_then(|subscriber| subscriber.identity.as_ref()), "the identity of a subscriber")
}

fn no_empty_members(state: &GossipState) -> Result<(), Fault> {
    match state.members.iter().find(|(_, member)| member.values.is_empty()) {
        Some((member_id, _)) => Err(Fault::EmptyMember(member_id.clone())),
        None => Ok(()),
    }
}

fn published(type_names: &[String], envelopes: &[PubSubEnvelope]) -> Result<(), Fault> {
    for envelope in envelopes {
        let index = usize::try_from(envelope.type_id).ok();
        if index.and_then(|index| type_names.get(index)).is_none_or(String::is_empty) {
            return Err(Fault::TypeIndex(envelope.type_id, type_names.len()));
        }
        if Serializer::from_id(envelope.serializer_id).is_none() {
            return Err(Fault::UnknownSerializer(envelope.serializer_id));
        }
    }
    Ok(())
}
