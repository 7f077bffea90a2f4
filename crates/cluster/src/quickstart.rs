//! A cluster to look at: some nodes of one process on real sockets, and a tour that shows what they can do.
//!
//! ```text
//!   QuickstartSettings ──► QuickstartBootstrap ──► tour ──► one QuickstartStep after the other ──► shutdown
//!     all mistakes at once     the nodes                       ✓ or ✗, how long, and why not
//! ```
//!
//! The nodes are whole [`Cluster`]s that know nothing of each other but an address; only their timers are shorter than
//! those of production, so that nobody has to wait for the loss of a node to be noticed.

mod sample;
mod settings;
mod tour;

pub use sample::{COUNTER_ADD, COUNTER_KIND, COUNTER_WHERE, Counter, Greeter};
pub use settings::{
    NODES_MAX, NODES_MIN, QuickstartApi, QuickstartSettingError, QuickstartSettings, QuickstartSettingsError,
};
pub use tour::{QuickstartReport, QuickstartStep};

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use synod_core::Authority;
use synod_core::membership::{MembershipCoordinatorConfig, PhiConfig};
use tokio::time::Instant;

use crate::cluster::{Cluster, ClusterConfig};
use crate::gossiper::TokioGossiperConfig;
use crate::grains::GrainKind;
use crate::metrics::MetricsConfig;
use crate::provider::{ClusterProvider, ClusterProviderError};
use crate::remote::{RegisterError, RemoteConfig, RemoteStartError};
use settings::Plan;

/// The nodes of a quickstart. Dropping it ends them all without a word.
#[derive(Debug)]
pub struct QuickstartBootstrap {
    /// In the order in which they are started: seeds first.
    nodes: Vec<Node>,
    host: IpAddr,
    seeds: Vec<String>,
    api: QuickstartApi,
    metrics: MetricsConfig,
    /// The counters that were found on each node, by the name of the node.
    counters: BTreeMap<String, Vec<String>>,
}

#[derive(Debug)]
struct Node {
    name: String,
    /// 0 lets the system choose.
    port: u16,
    running: Option<Cluster>,
}

impl QuickstartBootstrap {
    /// A cluster that is not started.
    ///
    /// # Errors
    /// Every setting that is missing or cannot be used.
    pub fn new(settings: &QuickstartSettings) -> Result<Self, QuickstartSettingsError> {
        let Plan { host, nodes, seeds, api, metrics } = settings.plan()?;
        let nodes = nodes.into_iter().map(|(name, port)| Node { name, port, running: None }).collect();
        Ok(Self { nodes, host, seeds, api, metrics, counters: BTreeMap::new() })
    }

    /// Starts every node and shows what they can do, a step at a time. `tell` hears of each step when it is done.
    ///
    /// Afterwards every node is up, unless something failed.
    pub async fn tour(&mut self, tell: &mut (dyn FnMut(&QuickstartStep) + Send)) -> QuickstartReport {
        tour::run(self, tell).await
    }

    /// Leaves with every node, the first one last, a step for each.
    pub async fn shutdown(&mut self, tell: &mut (dyn FnMut(&QuickstartStep) + Send)) -> QuickstartReport {
        tour::stop(self, tell).await
    }

    /// The nodes that run, in the order of their first start.
    pub fn nodes(&self) -> impl Iterator<Item = &Cluster> {
        self.nodes.iter().filter_map(|node| node.running.as_ref())
    }

    /// Names and addresses of the nodes that run.
    pub fn addresses(&self) -> impl Iterator<Item = (&str, &Authority)> {
        self.nodes.iter().filter_map(|node| Some((node.name.as_str(), node.authority()?)))
    }

    /// Where the first node answers questions over HTTP; `None` when it does not.
    #[must_use]
    pub fn api_address(&self) -> Option<SocketAddr> {
        self.nodes.first()?.running.as_ref()?.api_address()
    }

    /// Starts one node. Nobody is waited for but the port, which a node that was killed a moment ago may not have given
    /// back yet.
    async fn start(&mut self, index: usize, port_patience: Duration) -> Result<Authority, QuickstartError> {
        let node = &self.nodes[index];
        let mut config = self.config(node)?;
        let seeds =
            self.nodes.iter().filter(|seed| seed.name != node.name && self.seeds.contains(&seed.name));
        config.membership.seeds.extend(seeds.filter_map(Node::authority).cloned());
        let (name, deadline) = (node.name.clone(), Instant::now() + port_patience);
        if index == 0 {
            config.api = match self.api {
                QuickstartApi::Off => None,
                QuickstartApi::IfFree(address) | QuickstartApi::At(address) => Some(address),
            };
        }
        let mut cluster = Cluster::new(config.clone())?;
        while let Err(error) = cluster.start_member().await {
            let is_optional = matches!(self.api, QuickstartApi::IfFree(_)) && config.api.is_some();
            if is_optional && matches!(error, ClusterProviderError::Api(_)) {
                config.api = None;
                cluster = Cluster::new(config.clone())?;
                continue;
            }
            let taken = matches!(error, ClusterProviderError::Remote(RemoteStartError::Bind { .. }));
            if !taken || Instant::now() >= deadline {
                return Err(error.into());
            }
            tokio::time::sleep(PORT_PAUSE).await;
        }
        let remote = cluster.remote().ok_or(ClusterProviderError::NotStarted)?;
        remote.spawn_named(GREETER, Greeter::new(&name))?;
        let authority = remote.authority().clone();
        self.nodes[index].running = Some(cluster);
        Ok(authority)
    }

    fn config(&self, node: &Node) -> Result<ClusterConfig, QuickstartError> {
        let name = node.name.parse().map_err(|_| QuickstartError::Name(node.name.clone()))?;
        let remote = RemoteConfig::new(SocketAddr::new(self.host, node.port));
        let mut config = ClusterConfig::new(name, remote);
        config.membership = demo_membership(self.nodes.len());
        config.gossip = demo_gossip(self.nodes.len());
        config.metrics = self.metrics.clone();
        let host = node.name.clone();
        config.kinds.push(GrainKind::new(COUNTER_KIND, move |_| Counter::new(&host)));
        Ok(config)
    }
}

impl Node {
    fn authority(&self) -> Option<&Authority> {
        Some(self.running.as_ref()?.remote()?.authority())
    }
}

/// A node of the quickstart did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuickstartError {
    /// The node did not start.
    #[error(transparent)]
    Cluster(#[from] ClusterProviderError),
    /// The sample actor did not start.
    #[error(transparent)]
    Actor(#[from] RegisterError),
    /// No node can have this name.
    #[error("{0:?} is no name for a node")]
    Name(String),
}

/// Timers for people who watch: the loss of a node is noticed in two or three seconds. Many nodes of one
/// process speak less often, because they share its processors.
#[must_use]
pub fn demo_membership(nodes: usize) -> MembershipCoordinatorConfig {
    MembershipCoordinatorConfig {
        phi: PhiConfig {
            acceptable_pause: Duration::from_secs(1),
            first_heartbeat_estimate: Duration::from_millis(100),
            expected_response_after: Duration::from_secs(1),
            min_std_deviation: Duration::from_millis(50),
            ..PhiConfig::default()
        },
        heartbeat_interval: Duration::from_millis(100),
        suspect_timeout: Duration::from_secs(1),
        leave_timeout: Duration::from_secs(1),
        gossip_interval: Duration::from_millis(15 * nodes.clamp(4, 14) as u64),
        topology_emit_interval: Duration::from_millis(100),
        reconnect_interval: Duration::from_secs(1),
        ..MembershipCoordinatorConfig::default()
    }
}

/// Gossip for people who watch: a few nodes tell news ten times a second, many less often.
#[must_use]
pub fn demo_gossip(nodes: usize) -> TokioGossiperConfig {
    let mut config = TokioGossiperConfig::default();
    config.gossip.gossip_interval = Duration::from_millis(30 * nodes.clamp(3, 16) as u64);
    config.flush_timeout = Duration::from_secs(1);
    config
}

/// The name of the sample actor, on every node.
const GREETER: &str = "greeter";
const PORT_PAUSE: Duration = Duration::from_millis(50);
