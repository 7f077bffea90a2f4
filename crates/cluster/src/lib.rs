//! The drivers of synod: everything the cluster *does*, and nothing it *decides*.
//!
//! A machine of `synod-core` returns an outcome; a driver of this crate turns it into effects, always in one order:
//! persist, quarantine, publish, send.
//!
//! ```text
//!   GossipTransport ──► MembershipDriver ──► EventStream ──► ClusterExtension ──► ClusterCore ──► TopologyListener
//!         ▲                  │   │                 └───────► anyone who subscribes
//!         └──────────────────┘   └──► IncarnationStore, QuarantineListener
//! ```
//!
//! What members tell each other beyond who is a member goes through a [`TokioGossiper`], which runs the membership in
//! its own rounds.
//! [`RosterTask`] lists everyone there is to talk to; with [`AutomanagedProvider`] that includes protoactor-go nodes.
//!
//! [`LocalClusterProvider`] ties the parts together for nodes of one process; it is the shortest way to see a cluster
//! form:
//!
//! ```
//! use synod_cluster::{ClusterProvider, InMemoryNetwork, LocalClusterConfig, LocalClusterProvider};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let network = InMemoryNetwork::default();
//! let mut first = LocalClusterProvider::new(LocalClusterConfig::new(
//!     "first".parse()?, "first:8401".parse()?, network.clone(),
//! ))?;
//! let mut config = LocalClusterConfig::new("second".parse()?, "second:8401".parse()?, network);
//! config.membership.seeds.push("first:8401".parse()?);
//! let mut second = LocalClusterProvider::new(config)?;
//!
//! first.start_member().await?;
//! second.start_member().await?;
//! let membership = second.membership().ok_or("not running")?;
//! membership.wait_until(|view| view.members.len() == 2).await?;
//! second.shutdown(true).await?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod automanaged;
pub mod clock;
pub mod cluster;
pub mod core;
pub mod event_stream;
pub mod extension;
pub mod gossiper;
pub mod grains;
pub mod incarnation;
pub mod membership;
pub mod metrics;
pub mod provider;
pub mod pubsub;
pub mod remote;
pub mod roster;
#[cfg(test)]
mod testing;
pub mod transport;

pub use self::core::{AlreadyStarted, ClusterCore, ClusterMode, TopologyListener};
pub use automanaged::{AutomanagedConfig, AutomanagedConfigError, AutomanagedError, AutomanagedProvider};
pub use clock::MonotonicClock;
pub use cluster::{Cluster, ClusterConfig, Discovery};
pub use event_stream::{Delivery, EventStream, EventStreamConfig, EventStreamConfigError, Subscription};
pub use extension::ClusterExtension;
pub use gossiper::{
    ActorStatisticsSource, ConsensusHandle, GossipCarrier, GossipCarrierError, Gossiper, GossiperCounters,
    GossiperError, InMemoryGossipCarrier, InMemoryGossipNetwork, TokioGossiper, TokioGossiperConfig,
    TokioGossiperConfigError,
};
pub use incarnation::{IncarnationStore, IncarnationStoreError, MemoryIncarnationStore};
pub use membership::{
    Departure, MembershipCounters, MembershipDriver, MembershipDriverError, MembershipExit, MembershipHandle,
    MembershipHandleError, MembershipTask, MembershipView, QuarantineListener,
};
pub use metrics::{ClusterMetrics, MetricsError};
pub use provider::{ClusterProvider, ClusterProviderError, LocalClusterConfig, LocalClusterProvider};
pub use pubsub::{PubSub, PubSubConfig, PubSubConfigError, PubSubError};
pub use roster::{RosterTask, RosterWiring, SynodPeerListener};
pub use transport::{
    AttachError, GossipTransport, GossipTransportError, InMemoryNetwork, InMemoryNetworkConfigError,
    InMemoryTransport,
};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, and goes on when another thread panicked while it held the lock: no critical section of this crate leaves
/// its data half changed.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
