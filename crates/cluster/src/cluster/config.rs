//! What a node is made of, checked once.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_core::NodeId;
use synod_core::membership::MembershipCoordinatorConfig;

use crate::api::ApiExtension;
use crate::automanaged::AutomanagedConfig;
use crate::event_stream::EventStreamConfig;
use crate::gossiper::{GossiperError, TokioGossiperConfig};
use crate::grains::{GrainKind, GrainsConfig};
use crate::incarnation::{IncarnationStore, MemoryIncarnationStore};
use crate::metrics::MetricsConfig;
use crate::provider::ClusterProviderError;
use crate::pubsub::PubSubConfig;
use crate::remote::{PeerService, RemoteConfig};

/// How a node finds the others.
#[derive(Clone, Debug)]
pub enum Discovery {
    /// By the seeds of its membership settings. For clusters of synod nodes only.
    Seeds,
    /// By polling health addresses, as protoactor-go's automanaged provider does.
    Automanaged(AutomanagedConfig),
}

/// What a node is made of.
#[derive(Clone)]
pub struct ClusterConfig {
    /// The name of the node.
    pub node: NodeId,
    /// Where it listens, and the bounds of its connections.
    pub remote: RemoteConfig,
    /// How membership behaves, and the seeds to join.
    pub membership: MembershipCoordinatorConfig,
    /// How gossip behaves. Default [`TokioGossiperConfig::default`]; [`TokioGossiperConfig::protoactor`] beside Go nodes.
    pub gossip: TokioGossiperConfig,
    /// How it finds the others. Default [`Discovery::Seeds`].
    pub discovery: Discovery,
    /// The kinds of grains that it hosts. Default none.
    pub kinds: Vec<GrainKind>,
    /// How grains are placed, hosted and called.
    pub grains: GrainsConfig,
    /// How topics and their subscribers behave. Grains that subscribe are placed as `grains` says.
    pub pubsub: PubSubConfig,
    /// Bounds of the event stream.
    pub events: EventStreamConfig,
    /// Where the node answers questions about itself over HTTP, see [`api`](crate::api). Nothing there is authenticated.
    /// Default nowhere.
    pub api: Option<SocketAddr>,
    /// What the application adds to that listener: paths, a condition of readiness, numbers. Default nothing.
    pub extension: Option<Arc<dyn ApiExtension>>,
    /// gRPC services that peers may call beside those of the cluster, on the same listener. Default none.
    pub services: Vec<Arc<dyn PeerService>>,
    /// Which numbers are kept, and where they are told.
    pub metrics: MetricsConfig,
    /// Where the number of the last life is kept. Default in memory, counted from the time of day, for nodes that keep
    /// nothing across restarts.
    pub incarnations: Arc<Mutex<dyn IncarnationStore>>,
    /// How long a shutdown waits for messages that are still queued. 0 to 10 min. Default 5 s.
    pub shutdown_patience: Duration,
    /// Feeds the choice of peers and every other chance, where a part has no seed of its own. A fixed seed makes a run
    /// repeatable; `None`, the default, draws one at every start.
    pub seed: Option<u64>,
}

impl ClusterConfig {
    /// The defaults for `node` with these settings of its connections.
    #[must_use]
    pub fn new(node: NodeId, remote: RemoteConfig) -> Self {
        Self {
            node,
            remote,
            membership: MembershipCoordinatorConfig::default(),
            gossip: TokioGossiperConfig::default(),
            discovery: Discovery::Seeds,
            kinds: Vec::new(),
            grains: GrainsConfig::default(),
            pubsub: PubSubConfig::default(),
            events: EventStreamConfig::default(),
            api: None,
            extension: None,
            services: Vec::new(),
            metrics: MetricsConfig::default(),
            incarnations: Arc::new(Mutex::new(MemoryIncarnationStore::from_wall_clock())),
            shutdown_patience: Duration::from_secs(5),
            seed: None,
        }
    }

    /// Checks every part.
    ///
    /// # Errors
    /// The first setting that cannot be used, by name.
    pub fn validate(&self) -> Result<(), ClusterProviderError> {
        self.remote.validate().map_err(|error| ClusterProviderError::Remote(error.into()))?;
        self.membership.validate()?;
        self.gossip.validate().map_err(GossiperError::from)?;
        self.grains.validate().map_err(|error| ClusterProviderError::Grains(error.into()))?;
        self.pubsub.validate()?;
        self.metrics.validate()?;
        if let Discovery::Automanaged(automanaged) = &self.discovery {
            automanaged.validate().map_err(|error| ClusterProviderError::Automanaged(error.into()))?;
        }
        if self.shutdown_patience > SHUTDOWN_PATIENCE_MAX {
            return Err(ClusterProviderError::ShutdownPatience { value: self.shutdown_patience });
        }
        Ok(())
    }
}

impl fmt::Debug for ClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterConfig")
            .field("node", &self.node)
            .field("remote", &self.remote)
            .field("membership", &self.membership)
            .field("gossip", &self.gossip)
            .field("discovery", &self.discovery)
            .field("kinds", &self.kinds)
            .finish_non_exhaustive()
    }
}

const SHUTDOWN_PATIENCE_MAX: Duration = Duration::from_secs(600);
