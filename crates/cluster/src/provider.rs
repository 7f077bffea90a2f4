//! A node, put together.
//!
//! A provider starts the parts of a node in order (address, extension, membership) and stops them in reverse. When a
//! part fails to start, those before it are stopped again and observers are told why, so a node either runs as a whole
//! or not at all.
//!
//! [`LocalClusterProvider`] does it for nodes of one process, on an [`InMemoryNetwork`].

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_core::gossip::GossipNameError;
use synod_core::grains::{IdentityError, PidError};
use synod_core::membership::{
    ClusterEvent, ConfigError, Member, MembershipCoordinatorConfig, QuarantineReason,
};
use synod_core::roster::RosterConfigError;
use synod_core::{Authority, MemberId, NodeId};

use crate::api::ApiError;
use crate::automanaged::AutomanagedError;
use crate::clock::MonotonicClock;
use crate::core::{AlreadyStarted, ClusterCore, ClusterMode, TopologyListener};
use crate::event_stream::{EventStream, EventStreamConfig, EventStreamConfigError};
use crate::extension::ClusterExtension;
use crate::gossiper::GossiperError;
use crate::grains::GrainsStartError;
use crate::incarnation::{IncarnationStore, MemoryIncarnationStore};
use crate::membership::{
    MembershipDriver, MembershipDriverError, MembershipExit, MembershipHandle, MembershipHandleError,
    MembershipTask, QuarantineListener,
};
use crate::metrics::{ClusterMetrics, MetricsConfigError, MetricsError};
use crate::pubsub::PubSubConfigError;
use crate::remote::{RegisterError, RemoteStartError};
use crate::transport::{AttachError, InMemoryNetwork};

/// Brings a node into a cluster and out of it again.
pub trait ClusterProvider: Send {
    /// Starts the node as a member.
    ///
    /// # Errors
    /// Refused while started. When a part fails nothing runs, and the event stream says why.
    fn start_member(&mut self) -> impl Future<Output = Result<(), ClusterProviderError>> + Send;

    /// Starts the node as an observer.
    ///
    /// # Errors
    /// As [`start_member`](Self::start_member).
    fn start_client(&mut self) -> impl Future<Output = Result<(), ClusterProviderError>> + Send;

    /// Stops the node; a graceful one leaves first and waits until the others know. Harmless when it is stopped.
    ///
    /// # Errors
    /// A part did not end as it should; the node is stopped all the same, and the event stream says why.
    fn shutdown(&mut self, graceful: bool) -> impl Future<Output = Result<(), ClusterProviderError>> + Send;
}

/// What a node of a local cluster is made of.
#[derive(Clone)]
pub struct LocalClusterConfig {
    /// The name of the node.
    pub node: NodeId,
    /// Its address on the network.
    pub authority: Authority,
    /// The network that its peers are on.
    pub network: InMemoryNetwork,
    /// How membership behaves, and the seeds to join.
    pub membership: MembershipCoordinatorConfig,
    /// Bounds of the event stream.
    pub events: EventStreamConfig,
    /// Whether questions for numbers are answered. They cost a few additions per event. Default true.
    pub metrics_enabled: bool,
    /// Where the number of the last life is kept. Default in memory, as long as the configuration or a copy lives.
    pub incarnations: Arc<Mutex<dyn IncarnationStore>>,
    /// Feeds the choice of peers. A fixed seed makes a run repeatable; `None`, the default, draws one at every start.
    pub seed: Option<u64>,
}

impl LocalClusterConfig {
    /// The defaults for `node` at `authority` on `network`.
    #[must_use]
    pub fn new(node: NodeId, authority: Authority, network: InMemoryNetwork) -> Self {
        Self {
            node,
            authority,
            network,
            membership: MembershipCoordinatorConfig::default(),
            events: EventStreamConfig::default(),
            metrics_enabled: true,
            incarnations: Arc::new(Mutex::new(MemoryIncarnationStore::new())),
            seed: None,
        }
    }
}

impl fmt::Debug for LocalClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalClusterConfig")
            .field("node", &self.node)
            .field("authority", &self.authority)
            .field("membership", &self.membership)
            .field("events", &self.events)
            .field("metrics_enabled", &self.metrics_enabled)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// One node of a cluster inside this process. Dropping it stops the node without a word to the others, as a crash would.
pub struct LocalClusterProvider {
    config: LocalClusterConfig,
    clock: MonotonicClock,
    stream: EventStream,
    extension: ClusterExtension,
    quarantine_listeners: Vec<Arc<Mutex<dyn QuarantineListener>>>,
    membership: Option<MembershipHandle>,
}

impl LocalClusterProvider {
    /// A node that is not started. Its settings are checked here, before anything runs.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(config: LocalClusterConfig) -> Result<Self, ClusterProviderError> {
        config.membership.validate()?;
        let stream = EventStream::new(config.events)?;
        let extension = ClusterExtension::new(stream.clone(), ClusterCore::new(config.metrics_enabled));
        Ok(Self {
            config,
            clock: MonotonicClock::start(),
            stream,
            extension,
            quarantine_listeners: Vec::new(),
            membership: None,
        })
    }

    /// Adds someone who is told of every applied topology.
    pub fn add_topology_listener(&self, listener: Box<dyn TopologyListener>) {
        self.extension.add_listener(listener);
    }

    /// Adds someone who mirrors the quarantine, from the next start on.
    pub fn add_quarantine_listener(&mut self, listener: Arc<Mutex<dyn QuarantineListener>>) {
        self.quarantine_listeners.push(listener);
    }

    /// Reports that `member` wants to join, or is there, at `authority`.
    ///
    /// # Errors
    /// Refused by the coordinator, or the node is not started.
    pub async fn join(&self, member: MemberId, authority: Authority) -> Result<(), ClusterProviderError> {
        Ok(self.running()?.join(member, authority).await?)
    }

    /// Asks `node`, which may be this one, to leave.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn leave(&self, node: NodeId) -> Result<(), ClusterProviderError> {
        Ok(self.running()?.leave(node).await?)
    }

    /// Declares `node` dead.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn down(&self, node: NodeId) -> Result<(), ClusterProviderError> {
        Ok(self.running()?.down(node).await?)
    }

    /// Keeps `authority` out.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn quarantine(
        &self,
        authority: Authority,
        reason: QuarantineReason,
    ) -> Result<(), ClusterProviderError> {
        Ok(self.running()?.quarantine(authority, reason).await?)
    }

    /// Lets `authority` in again before its time.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn release(&self, authority: Authority) -> Result<(), ClusterProviderError> {
        Ok(self.running()?.release(authority).await?)
    }

    /// The events of this node, across starts and stops.
    #[must_use]
    pub const fn events(&self) -> &EventStream {
        &self.stream
    }

    /// The membership of the running node; `None` while it is stopped.
    ///
    /// A copy of the handle keeps the membership alive when the provider is dropped.
    #[must_use]
    pub fn membership(&self) -> Option<&MembershipHandle> {
        self.membership.as_ref().filter(|membership| membership.is_running())
    }

    /// As what the node takes part; `None` while it is stopped.
    #[must_use]
    pub fn mode(&self) -> Option<ClusterMode> {
        self.extension.mode()
    }

    /// The members of the last applied topology, in node order.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.extension.members()
    }

    /// The quarantined addresses, in order.
    #[must_use]
    pub fn blocked(&self) -> Vec<Authority> {
        self.extension.blocked()
    }

    /// The numbers now.
    ///
    /// # Errors
    /// Metrics are switched off.
    pub fn metrics(&self) -> Result<ClusterMetrics, MetricsError> {
        self.extension.metrics()
    }

    fn running(&self) -> Result<&MembershipHandle, ClusterProviderError> {
        self.membership().ok_or(ClusterProviderError::NotStarted)
    }

    async fn start(&mut self, mode: ClusterMode) -> Result<(), ClusterProviderError> {
        if self.membership().is_some() {
            let mode = self.mode().unwrap_or(mode);
            return Err(AlreadyStarted { mode }.into());
        }
        // A node that stopped by itself, because its name was taken over, left its parts behind.
        self.membership = None;
        self.extension.shutdown().await;
        match self.start_parts(mode) {
            Ok(membership) => {
                self.membership = Some(membership);
                Ok(())
            }
            Err(error) => {
                // The transport went with the driver; what remains is to stop the extension.
                self.extension.shutdown().await;
                let (reason, observed_at) = (error.to_string(), self.clock.now());
                let mode = mode.into();
                self.stream.publish(ClusterEvent::StartupFailed { mode, reason, observed_at });
                Err(error)
            }
        }
    }

    fn start_parts(&mut self, mode: ClusterMode) -> Result<MembershipHandle, ClusterProviderError> {
        let LocalClusterConfig { node, authority, network, membership, incarnations, seed, .. } =
            self.config.clone();
        let transport = network.attach(&authority)?;
        self.extension.start(mode)?;
        let store = Box::new(incarnations);
        let mut driver =
            MembershipDriver::new(node, authority, membership, transport, self.stream.clone(), store)?;
        for listener in &self.quarantine_listeners {
            driver.add_quarantine_listener(Box::new(Arc::clone(listener)));
        }
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let now = self.clock.now();
        match mode {
            ClusterMode::Member => driver.start_member(seed, now)?,
            ClusterMode::Client => driver.start_client(seed, now)?,
        }
        Ok(MembershipTask::spawn(driver, self.clock))
    }
}

impl ClusterProvider for LocalClusterProvider {
    async fn start_member(&mut self) -> Result<(), ClusterProviderError> {
        self.start(ClusterMode::Member).await
    }

    async fn start_client(&mut self) -> Result<(), ClusterProviderError> {
        self.start(ClusterMode::Client).await
    }

    async fn shutdown(&mut self, graceful: bool) -> Result<(), ClusterProviderError> {
        let Some(membership) = self.membership.clone() else { return Ok(()) };
        let stopped = if graceful {
            membership.leave_and_stop().await.map(|_| ())
        } else {
            membership.stop().await.map(|_| ())
        };
        self.extension.shutdown().await;
        self.membership = None;
        // A node that had stopped by itself has said so; only one that was torn down has not.
        if stopped.is_err() && membership.ended().await == MembershipExit::Aborted {
            let error = ClusterProviderError::Aborted;
            let (reason, observed_at) = (error.to_string(), self.clock.now());
            self.stream.publish(ClusterEvent::ShutdownFailed { reason, observed_at });
            return Err(error);
        }
        Ok(())
    }
}

impl fmt::Debug for LocalClusterProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalClusterProvider")
            .field("node", &self.config.node)
            .field("authority", &self.config.authority)
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}

/// A node could not be put together, taken apart or asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterProviderError {
    /// The membership task was aborted or panicked. The node is stopped.
    #[error("the membership task was aborted; the node is stopped and the others were not told")]
    Aborted,
    /// The node runs already.
    #[error(transparent)]
    AlreadyStarted(#[from] AlreadyStarted),
    /// The api listener did not start. What had started before was stopped again.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The address is taken. Nothing was started.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The health endpoint or the polls did not start. What had started before was stopped again.
    #[error(transparent)]
    Automanaged(#[from] AutomanagedError),
    /// A bound of the event stream is out of range.
    #[error(transparent)]
    Events(#[from] EventStreamConfigError),
    /// The gossiper did not start. What had started before was stopped again.
    #[error(transparent)]
    Gossiper(#[from] GossiperError),
    /// The grains did not start. What had started before was stopped again.
    #[error(transparent)]
    Grains(#[from] GrainsStartError),
    /// Kind and identity do not name a grain.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A text is not the PID of anything that could be a grain.
    #[error(transparent)]
    Pid(#[from] PidError),
    /// The name of a client is none that gossip can use.
    #[error(transparent)]
    Name(#[from] GossipNameError),
    /// A request to the running node failed.
    #[error(transparent)]
    Handle(#[from] MembershipHandleError),
    /// A setting of the membership is out of range. Nothing was started.
    #[error(transparent)]
    Membership(#[from] ConfigError),
    /// A setting of the numbers cannot be used. Nothing was started.
    #[error(transparent)]
    Metrics(#[from] MetricsConfigError),
    /// Too few members host a kind of grains.
    #[error("{found} members host {kind:?}, {wanted} were waited for")]
    TooFewHosts {
        /// The kind.
        kind: String,
        /// How many there should be.
        wanted: usize,
        /// How many there are.
        found: usize,
    },
    /// The node is not started.
    #[error("the node is not started; nothing was changed")]
    NotStarted,
    /// A setting of publish and subscribe is out of range. Nothing was started.
    #[error(transparent)]
    PubSub(#[from] PubSubConfigError),
    /// A part of the node found its name taken. What had started before was stopped again.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The connections did not start. Nothing runs.
    #[error(transparent)]
    Remote(#[from] RemoteStartError),
    /// A setting of the roster is out of range.
    #[error(transparent)]
    Roster(#[from] RosterConfigError),
    /// A shutdown would take too long.
    #[error("shutdown_patience must be at most 10 min, it is {value:?}")]
    ShutdownPatience {
        /// The refused value.
        value: Duration,
    },
    /// The membership did not start. What had started before it was stopped again.
    #[error(transparent)]
    Start(#[from] MembershipDriverError),
}

#[cfg(test)]
mod tests;
