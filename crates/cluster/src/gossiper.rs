//! The hands of the gossip machine.
//!
//! [`TokioGossiper`] runs one task that owns the clock of both kinds of gossip: the machine of `synod-core` decides what
//! members tell each other under which key, and in the same rounds the membership driver spreads who is a member at
//! all. Writes of this node and requests of peers wait in bounded queues, requests to peers run as tasks of their own,
//! and each outcome is carried out in one order:
//!
//! ```text
//!   set_state, handle_request ──► queues ┐                    ┌──► publish updates and events, show consensus
//!   roster (event stream) ───────────────┼─► GossipTask ──────┼──► answer
//!   interval, timeouts ──────────────────┤   machine, then    └──► send ──► GossipCarrier::exchange, a task each
//!   MembershipTask::turn ────────────────┘   membership                          └──► answered, failed or late
//! ```
//!
//! Reads (`get_state`, `blocked_members`, `phase`) look at the machine directly and never wait for the task.
//! [`InMemoryGossipNetwork`] is a road inside one process, over the real wire format:
//!
//! ```
//! use std::time::Duration;
//! use synod_cluster::{EventStream, Gossiper, InMemoryGossipNetwork, MonotonicClock, TokioGossiper};
//! use synod_core::TimerInstant;
//! use synod_core::gossip::{GossipKey, GossipMemberId, GossipValue};
//! use synod_core::membership::ClusterEvent;
//! use synod_core::roster::{PeerRuntime, RosterMember, RosterUpdate};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (network, stream) = (InMemoryGossipNetwork::default(), EventStream::default());
//! let mut members = Vec::new();
//! for name in ["first", "second"] {
//!     let authority = format!("{name}:8401").parse()?;
//!     let (kinds, runtime) = (Vec::new(), PeerRuntime::Synod);
//!     members.push(RosterMember { id: GossipMemberId::new(name)?, authority, kinds, runtime });
//! }
//! let update = RosterUpdate { hash: 0, members: members.clone(), joined: Vec::new(), left: Vec::new() };
//! stream.publish(ClusterEvent::RosterUpdated { update, observed_at: TimerInstant::ZERO });
//!
//! let mut gossipers = Vec::new();
//! for member in &members {
//!     let carrier = network.carrier(&member.authority, "gossip");
//!     let clock = MonotonicClock::start();
//!     let gossiper = TokioGossiper::new(Default::default(), stream.clone(), clock, carrier)?;
//!     network.attach(&member.authority, &gossiper);
//!     gossiper.start(member.id.clone()).await?;
//!     gossipers.push(gossiper);
//! }
//! let motto = GossipKey::new("motto")?;
//! gossipers[0].set_state(motto.clone(), GossipValue::new("text", b"tell everybody")?)?;
//! tokio::time::sleep(Duration::from_secs(1)).await;
//! assert_eq!(gossipers[1].get_state(&motto)[&members[0].id].value.bytes(), b"tell everybody");
//! # Ok(())
//! # }
//! ```

mod carrier;
pub mod codec;
mod config;
mod consensus;
mod counters;
mod heartbeat;
mod in_memory;
mod peers;
mod task;
mod tokio_gossiper;

pub use carrier::{GossipCarrier, GossipCarrierError};
pub use config::{ACTOR_NAME_BYTES_MAX, DELTA_BYTES_MAX, TokioGossiperConfig, TokioGossiperConfigError};
pub use consensus::{Agreement, ConsensusHandle};
pub use counters::GossiperCounters;
pub use heartbeat::{ActorStatisticsSource, NoStatistics};
pub use in_memory::{InMemoryGossipCarrier, InMemoryGossipNetwork, RoadConditions};
pub use tokio_gossiper::{COMMANDS_MAX, REQUESTS_MAX, TokioGossiper};

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use synod_core::gossip::{
    self, BlockReason, ConsensusCheckId, ConsensusChecker, GossipKey, GossipKeyValue, GossipMapKey,
    GossipMemberId, GossipValue, GossiperState,
};
use synod_core::membership::GossipPhase;

/// A node's part in the gossip, as the rest of the node sees it.
pub trait Gossiper: Send + Sync {
    /// Takes part as `own`. The first round is due at once.
    ///
    /// # Errors
    /// Refused while running, and under the id of the run before: its peers have blocked it.
    fn start(&self, own: GossipMemberId) -> impl Future<Output = Result<(), GossiperError>> + Send;

    /// Says goodbye, waits for gossip on its way and for the goodbye to arrive, within the configured bound, and
    /// releases everything. From the first moment on nothing is accepted any more. A cancelled call does not stop the
    /// stopping.
    ///
    /// # Errors
    /// Refused while not running.
    fn stop(&self) -> impl Future<Output = Result<(), GossiperError>> + Send;

    /// Every member's entry under `key`, this node's included; nothing of blocked members. Empty while not running.
    fn get_state(&self, key: &GossipKey) -> BTreeMap<GossipMemberId, GossipKeyValue>;

    /// Writes an entry of this node and returns at once. It is told from the next round on.
    ///
    /// # Errors
    /// [`GossiperError::QueueFull`] when more writes wait than may; it is counted and nothing was written. A write that
    /// the machine refuses later, because a bound is hit or the key is reserved, is counted and traced.
    fn set_state(&self, key: GossipKey, value: GossipValue) -> Result<(), GossiperError>;

    /// Writes an entry of this node and returns when it can be read.
    ///
    /// # Errors
    /// Refused while not running, for the gossiper's own keys, for keys that hold a map, and beyond a bound.
    fn set_state_request(
        &self,
        key: GossipKey,
        value: GossipValue,
    ) -> impl Future<Output = Result<(), GossiperError>> + Send;

    /// Sets one entry of the map under `key`, for all members to read, and returns when it can be read.
    ///
    /// # Errors
    /// As [`set_state_request`](Self::set_state_request), and for keys that hold a plain value.
    fn set_map_state(
        &self,
        key: GossipKey,
        map_key: GossipMapKey,
        value: Vec<u8>,
    ) -> impl Future<Output = Result<(), GossiperError>> + Send;

    /// Removes one entry of the map under `key`, whoever set it. Harmless when there is none.
    ///
    /// # Errors
    /// As [`set_map_state`](Self::set_map_state).
    fn remove_map_state(
        &self,
        key: GossipKey,
        map_key: GossipMapKey,
    ) -> impl Future<Output = Result<(), GossiperError>> + Send;

    /// The value that stands in the map under `key`, whoever set it.
    fn get_map_state(&self, key: &GossipKey, map_key: &GossipMapKey) -> Option<Arc<[u8]>>;

    /// The keys that have a value in the map under `key`, in order.
    fn get_map_keys(&self, key: &GossipKey) -> Vec<GossipMapKey>;

    /// Compares what all members say under the keys of `checker` from now on. Its extractors run inside the gossiper:
    /// they must neither block, nor panic, nor call the gossiper.
    ///
    /// # Errors
    /// Refused while not running and beyond a bound.
    fn register_consensus_check(
        &self,
        checker: ConsensusChecker,
    ) -> impl Future<Output = Result<ConsensusHandle, GossiperError>> + Send;

    /// Removes a consensus check. Returns whether there was one of that id.
    fn remove_consensus_check(&self, id: ConsensusCheckId) -> bool;

    /// Everyone who gets no gossip and is not listened to, and why. Empty while not running.
    fn blocked_members(&self) -> BTreeMap<GossipMemberId, BlockReason>;

    /// How far the last change of the membership has spread; `None` without membership.
    fn phase(&self) -> Option<GossipPhase>;

    /// Whether it runs.
    fn lifecycle(&self) -> GossiperState;
}

/// A call to a gossiper failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GossiperError {
    /// A setting is out of range. Nothing was created.
    #[error("the gossiper cannot be configured like this: {0}")]
    InvalidConfig(#[from] TokioGossiperConfigError),
    /// The gossiper runs already.
    #[error("the gossiper is already started; nothing was changed")]
    AlreadyStarted,
    /// The gossiper was never started.
    #[error("the gossiper is not started; nothing was changed")]
    NotStarted,
    /// The gossiper was stopped.
    #[error("the gossiper is already stopped; nothing was changed")]
    AlreadyStopped,
    /// The task was aborted or panicked. The gossiper is stopped and nobody was told goodbye.
    #[error("the gossip task was aborted; the gossiper is stopped and its peers were not told")]
    Aborted,
    /// The membership driver is stopped, or runs as a client, which takes no part in gossip.
    #[error("only a member can gossip, and the membership driver runs as none; nothing was started")]
    NotAMember,
    /// As many writes as may wait for the task already do.
    #[error("{COMMANDS_MAX} commands wait for the gossiper already; this one was dropped")]
    QueueFull,
    /// The consensus check is gone, so nobody will ever know.
    #[error("the consensus check was removed")]
    CheckRemoved,
    /// It did not happen in time.
    #[error("it did not happen within {timeout:?}")]
    Timeout {
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The machine refused the call. Nothing was changed.
    #[error(transparent)]
    Refused(gossip::GossiperError),
}

impl From<gossip::GossiperError> for GossiperError {
    fn from(error: gossip::GossiperError) -> Self {
        match error {
            gossip::GossiperError::AlreadyStarted => Self::AlreadyStarted,
            gossip::GossiperError::NotStarted => Self::NotStarted,
            gossip::GossiperError::AlreadyStopped => Self::AlreadyStopped,
            gossip::GossiperError::InvalidConfig(error) => Self::InvalidConfig(error.into()),
            refused => Self::Refused(refused),
        }
    }
}

#[cfg(test)]
mod tests;
