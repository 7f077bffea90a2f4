//! What one part of a node learns, told to the others.

use synod_core::gossip::{GossipMemberId, GossipValue, GossiperEvent};
use synod_core::membership::{ClusterEvent, NodeStatus, QuarantineReason};
use synod_core::remote::RemoteEvent;
use synod_core::roster::{RosterMember, RosterUpdate};
use synod_core::{Authority, MemberId, NodeId};
use synod_wire::cluster::{ClusterTopology, Member as WireMember};
use synod_wire::payload;
use tokio::sync::mpsc;

use super::topology_key;
use crate::event_stream::{Delivery, Subscription};
use crate::gossiper::{Gossiper, TokioGossiper};
use crate::grains::Grains;
use crate::membership::MembershipHandle;
use crate::pubsub::PubSub;
use crate::remote::Remote;

/// Carries what one part learns to the others.
pub(super) struct Follower {
    pub(super) remote: Remote,
    pub(super) membership: MembershipHandle,
    pub(super) gossiper: Option<TokioGossiper>,
    pub(super) grains: Grains,
    pub(super) pubsub: PubSub,
    pub(super) node: NodeId,
}

impl Follower {
    pub(super) async fn run(
        self,
        mut events: Subscription,
        mut hints: mpsc::Receiver<(MemberId, Authority)>,
    ) {
        let mut views = self.membership.views();
        loop {
            tokio::select! {
                Some(view) = views.next() => self.grains.handle_membership(&view),
                delivery = events.recv() => match delivery {
                    None => return,
                    Some(Delivery::Event(event)) => {
                        self.follow(&event);
                        self.follow_refusal(&event).await;
                    }
                    // Every roster carries all members; what was missed between two of them is made up by the next.
                    Some(Delivery::Missed(events)) => tracing::warn!(events, "cluster events were missed"),
                },
                Some((member, authority)) = hints.recv() => {
                    if member.node == self.node {
                        continue;
                    }
                    if let Err(error) = self.membership.join(member.clone(), authority).await {
                        tracing::debug!(%member, %error, "a node that answered a poll was not let in");
                    }
                }
            }
        }
    }

    fn follow(&self, event: &ClusterEvent) {
        match event {
            ClusterEvent::RosterUpdated { update, .. } => self.follow_roster(update),
            ClusterEvent::MemberStatusChanged { authority, to, .. } => {
                self.pubsub.handle_reachability(authority, *to != NodeStatus::Suspect);
            }
            ClusterEvent::MemberQuarantined { authority, .. }
            | ClusterEvent::QuarantineLifted { authority, .. } => {
                self.grains.handle_quarantine(authority);
            }
            ClusterEvent::SelfRejoining { current, .. } => {
                self.remote.open(&current.to_string());
                self.grains.handle_rejoin(GossipMemberId::from(current));
            }
            ClusterEvent::Gossiper { event: GossiperEvent::Blocked { .. }, .. } => {
                if let Some(gossiper) = &self.gossiper {
                    let blocked = gossiper.blocked_members();
                    self.remote.set_blocked(blocked.keys().map(ToString::to_string).collect());
                }
            }
            _ => {}
        }
    }

    /// What the connections find invalid is kept out by the membership, too, so that nothing is placed or resolved there.
    async fn follow_refusal(&self, event: &ClusterEvent) {
        let ClusterEvent::Remote { event: RemoteEvent::InvalidAssociation { peer, reason }, .. } = event
        else {
            return;
        };
        let reason = QuarantineReason::InvalidAssociation(reason.clone());
        if let Err(error) = self.membership.quarantine(peer.clone(), reason).await {
            tracing::debug!(%peer, %error, "an invalid association was not quarantined");
        }
    }

    fn follow_roster(&self, update: &RosterUpdate) {
        self.grains.handle_roster(update);
        self.pubsub.handle_roster(update);
        for gone in &update.left {
            if !update.members.iter().any(|member| member.authority == gone.authority) {
                self.remote.depart(&gone.authority);
            }
        }
        let Some(gossiper) = &self.gossiper else { return };
        match topology_value(update) {
            // A gossiper that is stopping has nobody to tell any more.
            Some(value) => drop(gossiper.set_state(topology_key(), value)),
            None => tracing::error!("the topology is too large to be told"),
        }
    }
}

/// The members as a Go node tells them.
fn topology_value(update: &RosterUpdate) -> Option<GossipValue> {
    let members = |list: &[RosterMember]| list.iter().map(wire_member).collect();
    let topology = ClusterTopology {
        topology_hash: update.hash,
        members: members(&update.members),
        joined: members(&update.joined),
        left: members(&update.left),
        blocked: Vec::new(),
    };
    let any = payload::encode_any(&topology).ok()?;
    GossipValue::new(&any.type_url, &any.value).ok()
}

fn wire_member(member: &RosterMember) -> WireMember {
    WireMember {
        host: member.authority.host().to_owned(),
        port: i32::from(member.authority.port()),
        id: member.id.to_string(),
        kinds: member.kinds.clone(),
    }
}
