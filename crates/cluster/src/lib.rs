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

pub mod api;
pub mod automanaged;
pub mod clock;
pub mod cluster;
pub mod core;
pub mod event_stream;
pub mod extension;
pub mod gossiper;
pub mod grains;
mod http_server;
pub mod incarnation;
pub mod membership;
pub mod metrics;
mod numbers;
pub mod provider;
pub mod pubsub;
pub mod quickstart;
pub mod remote;
pub mod roster;
pub mod test_cluster;
#[cfg(test)]
mod testing;
pub mod transport;

pub use self::core::{AlreadyStarted, ClusterCore, ClusterMode, TopologyListener};
pub use api::{ApiError, ApiExtension, Exposition};
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
    MembershipHandleError, MembershipTask, MembershipView, MembershipViews, QuarantineListener,
};
pub use metrics::{
    ClusterMetrics, EventCount, EventResult, EventSummary, MetricFamily, MetricsConfig, MetricsConfigError,
    MetricsError,
};
pub use provider::{ClusterProvider, ClusterProviderError, LocalClusterConfig, LocalClusterProvider};
pub use pubsub::{PubSub, PubSubConfig, PubSubConfigError, PubSubError};
pub use quickstart::{QuickstartBootstrap, QuickstartReport, QuickstartSettings, QuickstartStep};
pub use roster::{RosterTask, RosterWiring, SynodPeerListener};
/// # Example
///
/// ```
/// use synod_cluster::grains::{GrainContext, GrainError};
/// use synod_cluster::remote::RemoteConfig;
/// use synod_cluster::{Cluster, ClusterConfig, ClusterProvider, grain};
///
/// /// Counts.
/// #[grain]
/// pub trait Counter {
///     /// Adds, and returns the sum so far.
///     async fn add(&mut self, number: u64) -> Result<u64, GrainError>;
///     /// Returns the sum.
///     async fn sum(&mut self) -> Result<u64, GrainError>;
/// }
///
/// #[derive(Default)]
/// struct InMemory {
///     sum: u64,
/// }
///
/// impl CounterGrain for InMemory {
///     async fn add(&mut self, _: &mut GrainContext, number: u64) -> Result<u64, GrainError> {
///         let sum = self.sum.checked_add(number);
///         self.sum = sum.ok_or_else(|| GrainError::new("OVERFLOW", "the sum is too large"))?;
///         Ok(self.sum)
///     }
///
///     async fn sum(&mut self, _: &mut GrainContext) -> Result<u64, GrainError> {
///         Ok(self.sum)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listen = RemoteConfig::new(([127, 0, 0, 1], 0).into());
/// let mut config = ClusterConfig::new("first".parse()?, listen);
/// config.kinds.push(Counter::kind(|_identity| InMemory::default()));
/// let mut cluster = Cluster::new(config)?;
/// cluster.start_member().await?;
///
/// let counter = cluster.grain::<Counter>("user:123")?;
/// counter.add(40).await?;
/// counter.add(2).await?;
/// assert_eq!(counter.sum().await?, 42);
/// cluster.shutdown(true).await?;
/// # Ok(())
/// # }
/// ```
pub use synod_macros::grain;
#[doc(hidden)]
pub use synod_macros::grain_of_facade;
pub use test_cluster::{TestCluster, TestClusterBuilder, TestClusterError};
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
