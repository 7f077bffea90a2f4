//! The callbacks of memberlist, and its options. Nothing here decides or waits: the callbacks run under memberlist's lock,
//! and calling it from them would wait for ever.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use memberlist::Options;
use memberlist::delegate::{
    AliveDelegate, ConflictDelegate, Delegate, EventDelegate, MergeDelegate, NodeDelegate, PingDelegate,
};
use memberlist::net::NetTransportOptions;
use memberlist::proto::{EncryptionAlgorithm, Label, Meta, NodeState, SecretKey};
use memberlist::tokio::{TokioNetTransport, TokioSocketAddrResolver, TokioTcp};

use super::HintsError;
use super::config::HintsConfig;
use super::view::View;

pub(super) type Transport = TokioNetTransport<Arc<str>, TokioSocketAddrResolver, TokioTcp>;
pub(super) type Memberlist = memberlist::Memberlist<Transport, Bridge>;
type Member = Arc<NodeState<Arc<str>, SocketAddr>>;

/// Hands everything that memberlist tells to the [`View`].
pub(super) struct Bridge(pub(super) Arc<View>);

impl NodeDelegate for Bridge {
    async fn node_meta(&self, _limit: usize) -> Meta {
        // The configuration bounds the label, which is all that could make it too large.
        Meta::try_from(self.0.meta()).unwrap_or_default()
    }

    async fn notify_message(&self, message: Cow<'_, [u8]>) {
        self.0.received(&message);
    }

    // Nothing is carried by the exchange of states, which memberlist does not bound: what others put there is ignored.
}

impl AliveDelegate for Bridge {
    type Id = Arc<str>;
    type Address = SocketAddr;
    type Error = NotOfThisCluster;

    async fn notify_alive(&self, member: Member) -> Result<(), NotOfThisCluster> {
        if self.0.admit(member.id(), member.meta()).is_none() {
            self.0.counts.refused_members.add();
            return Err(NotOfThisCluster);
        }
        Ok(())
    }
}

impl EventDelegate for Bridge {
    type Id = Arc<str>;
    type Address = SocketAddr;

    async fn notify_join(&self, member: Member) {
        if let Some((node, life)) = self.0.admit(member.id(), member.meta()) {
            self.0.up(node, life);
        }
    }

    async fn notify_leave(&self, member: Member) {
        if let Some((node, _)) = self.0.admit(member.id(), member.meta()) {
            self.0.down(node);
        }
    }

    /// The record of a node changed while it was up: it restarted before anybody missed it.
    async fn notify_update(&self, member: Member) {
        self.notify_join(member).await;
    }
}

impl ConflictDelegate for Bridge {
    type Id = Arc<str>;
    type Address = SocketAddr;

    async fn notify_conflict(&self, _existing: Member, other: Member) {
        if let Some((node, life)) = self.0.admit(other.id(), other.meta()) {
            self.0.name_conflict(node, *other.address(), life);
        }
    }
}

impl PingDelegate for Bridge {
    type Id = Arc<str>;
    type Address = SocketAddr;

    async fn ack_payload(&self) -> Bytes {
        Bytes::new()
    }

    /// The time that memberlist gives is the one since the answer came, not that of the round trip, and is of no use.
    async fn notify_ping_complete(&self, member: Member, _since_answer: Duration, _payload: Bytes) {
        if let Some((node, _)) = self.0.admit(member.id(), member.meta()) {
            self.0.heard(node);
        }
    }
}

impl MergeDelegate for Bridge {
    type Id = Arc<str>;
    type Address = SocketAddr;
    type Error = NotOfThisCluster;

    /// Records are judged one by one, by [`AliveDelegate`], in joins as in everything else.
    async fn notify_merge(
        &self,
        _members: Arc<[NodeState<Arc<str>, SocketAddr>]>,
    ) -> Result<(), NotOfThisCluster> {
        Ok(())
    }
}

impl Delegate for Bridge {
    type Id = Arc<str>;
    type Address = SocketAddr;
}

/// Why a membership record is ignored.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the node is none of this cluster, or of a version that this one does not know")]
pub(super) struct NotOfThisCluster;

pub(super) fn options(config: &HintsConfig) -> Result<Options, HintsError> {
    let start_error = |reason: &dyn ToString| HintsError::Start { reason: reason.to_string() };
    let timing = config.timing();
    let options = Options::lan()
        .with_label(Label::try_from(config.label.as_str()).map_err(|error| start_error(&error))?)
        .with_timeout(timing.stream_timeout)
        .with_probe_interval(timing.probe_interval)
        .with_probe_timeout(timing.probe_timeout)
        .with_suspicion_mult(3)
        .with_suspicion_max_timeout_mult(2)
        .with_gossip_interval(config.gossip_interval)
        .with_gossip_nodes(config.fanout)
        .with_push_pull_interval(config.full_sync_interval)
        .with_gossip_to_the_dead_time(timing.dead_memory)
        // A node that comes back at another address need not wait until its death is forgotten.
        .with_dead_node_reclaim_time(timing.probe_interval);
    Ok(match config.secret {
        Some(key) => options
            .with_primary_key(SecretKey::Aes256(key))
            .with_encryption_algo(EncryptionAlgorithm::NoPadding)
            .with_gossip_verify_incoming(true)
            .with_gossip_verify_outgoing(true),
        None => options,
    })
}

pub(super) fn transport_options(
    config: &HintsConfig,
) -> NetTransportOptions<Arc<str>, TokioSocketAddrResolver, TokioTcp> {
    let mut options = NetTransportOptions::new(Arc::from(config.node.as_str()))
        .with_max_packet_size(packet_bytes_max(config))
        .maybe_advertise_address(Some(config.advertise));
    options.add_bind_address(config.bind);
    options
}

/// How many bytes of messages fit into one datagram.
pub(super) fn packet_bytes_max(config: &HintsConfig) -> usize {
    DATAGRAM_BYTES_MAX - FRAME_BYTES_MAX - config.label.len()
}

/// What every path of IPv6 carries in one piece.
const DATAGRAM_BYTES_MAX: usize = 1280 - 40 - 8;
/// What memberlist puts around the messages of a datagram beside the label, and does not count.
const FRAME_BYTES_MAX: usize = 64;
