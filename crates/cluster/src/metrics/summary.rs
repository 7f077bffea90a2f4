//! Events in the few words that exporters need: what happened, to whom, and how it ended.
//!
//! An exporter of numbers keeps every label for ever, so it gets kind and result; the log gets the subject as well.

use std::fmt::Display;

use synod_core::gossip::GossiperEvent;
use synod_core::grains::{ActivationEvent, GrainEvent, RouterEvent};
use synod_core::membership::{ClusterEvent, GossipEvent, MembershipEvent, NodeStatus};
use synod_core::outbound::OutboundEvent;
use synod_core::pubsub::PubSubEvent;
use synod_core::remote::RemoteEvent;

use super::MetricFamily;

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventResult {
    /// As it should.
    Ok,
    /// Not as it should.
    Failed,
}

impl EventResult {
    /// Its name in labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
        }
    }
}

/// An event in few words.
#[derive(Clone, Copy)]
pub struct EventSummary<'a> {
    /// What it is about.
    pub family: MetricFamily,
    /// What happened.
    pub kind: &'static str,
    /// To whom: a member, an address, a grain or a topic.
    pub subject: Option<&'a dyn Display>,
    /// How it ended.
    pub result: EventResult,
}

impl<'a> EventSummary<'a> {
    /// The summary of `event`.
    #[must_use]
    pub fn of(event: &'a ClusterEvent) -> Self {
        match event {
            ClusterEvent::Gossip { event, .. } => Self::of_membership_gossip(event),
            ClusterEvent::Gossiper { event, .. } => Self::of_gossiper(event),
            ClusterEvent::GossipStateUpdated { update, .. } => {
                Self::new(MetricFamily::Gossip, "state_updated", EventResult::Ok).about(&update.member)
            }
            ClusterEvent::Grain { event, .. } => Self::of_grain(event),
            ClusterEvent::Jobs { .. } => Self::new(MetricFamily::Storage, "jobs", EventResult::Ok),
            ClusterEvent::Objects { .. } => Self::new(MetricFamily::Storage, "objects", EventResult::Ok),
            ClusterEvent::PubSub { event, .. } => Self::of_pubsub(event),
            ClusterEvent::Queues { .. } => Self::new(MetricFamily::Storage, "queues", EventResult::Ok),
            ClusterEvent::Remote { event, .. } => Self::of_remote(event),
            ClusterEvent::Slots { .. } => Self::new(MetricFamily::Storage, "slots", EventResult::Ok),
            other => Self::of_membership(other),
        }
    }

    fn of_membership(event: &'a ClusterEvent) -> Self {
        let (kind, result, subject): (_, _, Option<&dyn Display>) = match event {
            ClusterEvent::MemberQuarantined { authority, .. } => {
                ("quarantined", EventResult::Failed, Some(authority))
            }
            ClusterEvent::QuarantineLifted { authority, .. } => {
                ("quarantine_lifted", EventResult::Ok, Some(authority))
            }
            ClusterEvent::MemberStatusChanged { authority, to, .. } => {
                let (kind, result) = match to {
                    NodeStatus::Joining => ("member_joining", EventResult::Ok),
                    NodeStatus::Up => ("member_up", EventResult::Ok),
                    NodeStatus::Suspect => ("member_suspect", EventResult::Failed),
                    NodeStatus::Leaving => ("member_leaving", EventResult::Ok),
                    NodeStatus::Dead => ("member_dead", EventResult::Failed),
                    NodeStatus::Removed => ("member_removed", EventResult::Ok),
                };
                (kind, result, Some(authority))
            }
            ClusterEvent::Membership { event, .. } => match event {
                MembershipEvent::Superseded { by, .. } => ("superseded", EventResult::Failed, Some(by)),
                MembershipEvent::JoinRefused { by, .. } => ("join_refused", EventResult::Failed, Some(by)),
                _ => ("refused", EventResult::Failed, None),
            },
            ClusterEvent::QuorumLost { .. } => ("quorum_lost", EventResult::Failed, None),
            ClusterEvent::QuorumRegained { .. } => ("quorum_regained", EventResult::Ok, None),
            ClusterEvent::RosterUpdated { .. } => ("roster_updated", EventResult::Ok, None),
            ClusterEvent::SelfRejoining { current, .. } => ("rejoining", EventResult::Failed, Some(current)),
            ClusterEvent::Shutdown { .. } => ("shutdown", EventResult::Ok, None),
            ClusterEvent::ShutdownFailed { .. } => ("shutdown", EventResult::Failed, None),
            ClusterEvent::Startup { .. } => ("startup", EventResult::Ok, None),
            ClusterEvent::StartupFailed { .. } => ("startup", EventResult::Failed, None),
            ClusterEvent::TopologyApplyFailed { .. } => ("topology_updated", EventResult::Failed, None),
            ClusterEvent::TopologyUpdated { .. } => ("topology_updated", EventResult::Ok, None),
            _ => ("other", EventResult::Ok, None),
        };
        Self { family: MetricFamily::Membership, kind, subject, result }
    }

    fn of_membership_gossip(event: &'a GossipEvent) -> Self {
        let (kind, result, subject): (_, _, Option<&dyn Display>) = match event {
            GossipEvent::ConflictDetected { rejected, .. } => {
                ("conflict", EventResult::Failed, Some(&rejected.member))
            }
            GossipEvent::Confirmed { .. } => ("confirmed", EventResult::Ok, None),
            GossipEvent::Disseminated { .. } => ("disseminated", EventResult::Ok, None),
            GossipEvent::Late { .. } => ("late", EventResult::Failed, None),
            GossipEvent::ReconcilingRequested { peer, .. } => ("gap", EventResult::Failed, Some(peer)),
        };
        Self { family: MetricFamily::Gossip, kind, subject, result }
    }

    fn of_gossiper(event: &'a GossiperEvent) -> Self {
        let (kind, result, subject): (_, _, Option<&dyn Display>) = match event {
            GossiperEvent::Alive { member } => ("alive", EventResult::Ok, Some(member)),
            GossiperEvent::Blocked { member, .. } => ("blocked", EventResult::Failed, Some(member)),
            GossiperEvent::Consensus(_) => ("consensus", EventResult::Ok, None),
        };
        Self { family: MetricFamily::Gossip, kind, subject, result }
    }

    fn of_remote(event: &'a RemoteEvent) -> Self {
        let (kind, result, subject): (_, _, Option<&dyn Display>) = match event {
            RemoteEvent::Association(event) => match event {
                OutboundEvent::Connected(peer) => ("connected", EventResult::Ok, Some(peer)),
                OutboundEvent::Disconnected(peer) => ("disconnected", EventResult::Failed, Some(peer)),
                OutboundEvent::Flushed { target, .. } => ("flushed", EventResult::Ok, Some(target)),
                OutboundEvent::Quarantined { target, .. } => {
                    ("quarantined", EventResult::Failed, Some(target))
                }
                OutboundEvent::Released(peer) => ("released", EventResult::Ok, Some(peer)),
                OutboundEvent::Unreachable { target, .. } => {
                    ("unreachable", EventResult::Failed, Some(target))
                }
            },
            RemoteEvent::BlockedByPeer { peer } => ("blocked_by_peer", EventResult::Failed, Some(peer)),
            RemoteEvent::DeadLetter { authority, .. } => {
                ("dead_letter", EventResult::Failed, Some(authority))
            }
            RemoteEvent::InputRefused { peer, .. } => ("input_refused", EventResult::Failed, Some(peer)),
            RemoteEvent::InvalidAssociation { peer, .. } => {
                ("invalid_association", EventResult::Failed, Some(peer))
            }
            _ => ("other", EventResult::Ok, None),
        };
        Self { family: MetricFamily::Remote, kind, subject, result }
    }

    fn of_grain(event: &'a GrainEvent) -> Self {
        let (kind, result, subject): (_, _, Option<&dyn Display>) = match event {
            GrainEvent::Activation(event) => return Self::of_activation(event),
            GrainEvent::CallFailed(ended) => ("call_failed", EventResult::Failed, Some(&ended.grain)),
            GrainEvent::CallUnwritable { grain, .. } => ("call_unwritable", EventResult::Failed, Some(grain)),
            GrainEvent::PidDropped(dropped) => ("pid_dropped", EventResult::Ok, Some(&dropped.grain)),
            GrainEvent::Router(event) => match event {
                RouterEvent::SchemaAgreed { peer, .. } => ("schema_agreed", EventResult::Ok, Some(peer)),
                RouterEvent::SchemaRefused { peer, .. } => {
                    ("schema_refused", EventResult::Failed, Some(peer))
                }
                RouterEvent::SchemaIgnored { peer } => ("schema_ignored", EventResult::Failed, Some(peer)),
                RouterEvent::Retrying { grain, .. } => ("call_retried", EventResult::Failed, Some(grain)),
                RouterEvent::Slow { grain, .. } => ("call_slow", EventResult::Ok, Some(grain)),
                _ => ("other", EventResult::Ok, None),
            },
            _ => ("other", EventResult::Ok, None),
        };
        Self { family: MetricFamily::Grains, kind, subject, result }
    }

    fn of_activation(event: &'a ActivationEvent) -> Self {
        let (kind, result, subject): (_, _, Option<&dyn Display>) = match event {
            ActivationEvent::Activated { grain, .. } => ("activated", EventResult::Ok, Some(grain)),
            ActivationEvent::Reactivated { grain, .. } => ("reactivated", EventResult::Ok, Some(grain)),
            ActivationEvent::Deactivated { grain, .. } => ("deactivated", EventResult::Ok, Some(grain)),
            ActivationEvent::Passivated { grain, .. } => ("passivated", EventResult::Ok, Some(grain)),
            ActivationEvent::HandedOver { grain, .. } => ("handed_over", EventResult::Ok, Some(grain)),
            ActivationEvent::SpawnFailed { grain, .. } => ("spawn_failed", EventResult::Failed, Some(grain)),
            ActivationEvent::SnapshotMissing { grain } => {
                ("snapshot_missing", EventResult::Failed, Some(grain))
            }
            ActivationEvent::SnapshotDropped { grain, .. } => {
                ("snapshot_dropped", EventResult::Failed, Some(grain))
            }
            ActivationEvent::HandoverMissed { grain, .. } => {
                ("handover_missed", EventResult::Failed, Some(grain))
            }
            ActivationEvent::Duplicate { grain, .. } => ("duplicate", EventResult::Failed, Some(grain)),
            ActivationEvent::Drained => ("drained", EventResult::Ok, None),
            _ => ("other", EventResult::Ok, None),
        };
        Self { family: MetricFamily::Grains, kind, subject, result }
    }

    fn of_pubsub(event: &'a PubSubEvent) -> Self {
        let (kind, result, subject): (_, _, Option<&dyn Display>) = match event {
            PubSubEvent::Created { topic, .. } => ("created", EventResult::Ok, Some(topic)),
            PubSubEvent::Dropped { topic, .. } => ("dropped", EventResult::Failed, Some(topic)),
            PubSubEvent::NodeResumed { authority, .. } => ("node_resumed", EventResult::Ok, Some(authority)),
            PubSubEvent::NodeSuspended { authority, .. } => {
                ("node_suspended", EventResult::Failed, Some(authority))
            }
            PubSubEvent::PublishRefused(refusal) => ("publish_refused", EventResult::Failed, Some(refusal)),
            PubSubEvent::Subscribed { topic, .. } => ("subscribed", EventResult::Ok, Some(topic)),
            PubSubEvent::SubscriberRemoved { topic, .. } => {
                ("subscriber_removed", EventResult::Failed, Some(topic))
            }
            PubSubEvent::Unsubscribed { topic, .. } => ("unsubscribed", EventResult::Ok, Some(topic)),
            _ => ("other", EventResult::Ok, None),
        };
        Self { family: MetricFamily::PubSub, kind, subject, result }
    }

    const fn new(family: MetricFamily, kind: &'static str, result: EventResult) -> Self {
        Self { family, kind, subject: None, result }
    }

    fn about(self, subject: &'a dyn Display) -> Self {
        Self { subject: Some(subject), ..self }
    }

    /// Writes it to the log, with the target `synod::events`.
    pub(crate) fn log(&self) {
        let Self { family, kind, subject, result } = self;
        let result = result.as_str();
        match subject {
            Some(subject) => tracing::debug!(target: "synod::events", %family, kind, %subject, result),
            None => tracing::debug!(target: "synod::events", %family, kind, result),
        }
    }
}
