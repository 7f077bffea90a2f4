//! The names on the wire are those of the messages they stand for.
//!
//! The constants are what the code above this crate compares and sends, the generated types are what it decodes. If
//! the two part ways, a message arrives under a name that nobody looks for.

use prost::Name;
use synod_wire::{actor, cluster, membership, names, remote};

/// Pairs of a generated type and the constant that names it.
macro_rules! named {
    ($($message:ty => $name:ident),* $(,)?) => {
        [$((<$message>::full_name(), <$message>::type_url(), names::$name)),*]
    };
}

#[test]
fn every_constant_names_its_message() {
    let named = named![
        actor::Watch => WATCH,
        actor::Unwatch => UNWATCH,
        actor::Terminated => TERMINATED,
        actor::Stop => STOP,
        actor::PoisonPill => POISON_PILL,
        actor::Touch => TOUCH,
        actor::Touched => TOUCHED,
        actor::DeadLetterResponse => DEAD_LETTER_RESPONSE,
        actor::Pid => PID,
        remote::RemoteMessage => REMOTE_MESSAGE,
        remote::MessageBatch => MESSAGE_BATCH,
        remote::MessageEnvelope => MESSAGE_ENVELOPE,
        remote::ConnectRequest => CONNECT_REQUEST,
        remote::ConnectResponse => CONNECT_RESPONSE,
        remote::DisconnectRequest => DISCONNECT_REQUEST,
        remote::ActorPidRequest => ACTOR_PID_REQUEST,
        remote::ActorPidResponse => ACTOR_PID_RESPONSE,
        cluster::GossipRequest => GOSSIP_REQUEST,
        cluster::GossipResponse => GOSSIP_RESPONSE,
        cluster::GossipMap => GOSSIP_MAP,
        cluster::ClusterTopology => CLUSTER_TOPOLOGY,
        cluster::MemberHeartbeat => MEMBER_HEARTBEAT,
        cluster::ActivationRequest => ACTIVATION_REQUEST,
        cluster::ActivationResponse => ACTIVATION_RESPONSE,
        cluster::ActivationTerminated => ACTIVATION_TERMINATED,
        cluster::GrainRequest => GRAIN_REQUEST,
        cluster::GrainResponse => GRAIN_RESPONSE,
        cluster::GrainErrorResponse => GRAIN_ERROR_RESPONSE,
        cluster::Initialize => INITIALIZE,
        cluster::Acknowledge => ACKNOWLEDGE,
        cluster::Subscribers => SUBSCRIBERS,
        cluster::SubscribeRequest => SUBSCRIBE_REQUEST,
        cluster::SubscribeResponse => SUBSCRIBE_RESPONSE,
        cluster::UnsubscribeRequest => UNSUBSCRIBE_REQUEST,
        cluster::UnsubscribeResponse => UNSUBSCRIBE_RESPONSE,
        cluster::PubSubBatchTransport => PUB_SUB_BATCH_TRANSPORT,
        cluster::DeliverBatchRequestTransport => DELIVER_BATCH_REQUEST_TRANSPORT,
        cluster::PubSubAutoRespondBatchTransport => PUB_SUB_AUTO_RESPOND_BATCH_TRANSPORT,
        cluster::PublishResponse => PUBLISH_RESPONSE,
        cluster::NotifyAboutFailingSubscribersRequest => NOTIFY_ABOUT_FAILING_SUBSCRIBERS_REQUEST,
        cluster::NotifyAboutFailingSubscribersResponse => NOTIFY_ABOUT_FAILING_SUBSCRIBERS_RESPONSE,
        membership::Message => MEMBERSHIP_MESSAGE,
        () => EMPTY,
    ];
    for (full_name, type_url, constant) in named {
        assert_eq!(full_name, constant);
        assert_eq!(type_url, format!("{}{constant}", names::TYPE_URL_PREFIX));
    }
}
