//! Whole nodes in one process, for tests of what is built on them.
//!
//! A [`TestCluster`] runs the production code of every node on a network in memory. Nothing of it needs a port, and all its
//! waiting is tokio's, so a test that pauses time lives through minutes of elections, splits and timeouts in
//! milliseconds, and the network breaks exactly when the test says so.
//!
//! ```
//! use std::time::Duration;
//! use synod_cluster::grains::{GrainContext, GrainError};
//! use synod_cluster::{TestCluster, grain};
//!
//! #[grain]
//! trait Counter {
//!     async fn add(&mut self, number: u64) -> Result<u64, GrainError>;
//! }
//!
//! #[derive(Default)]
//! struct InMemory(u64);
//!
//! impl CounterGrain for InMemory {
//!     async fn add(&mut self, _: &mut GrainContext, number: u64) -> Result<u64, GrainError> {
//!         self.0 += number;
//!         Ok(self.0)
//!     }
//! }
//!
//! # // In a test this is `#[tokio::test(start_paused = true)]`.
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let kind = Counter::kind(|_identity| InMemory::default());
//! let mut cluster = TestCluster::builder().nodes(3).kind(kind).seed(7).start().await?;
//! assert_eq!(cluster.node(0).grain::<Counter>("a")?.add(40).await?, 40);
//! assert_eq!(cluster.node(2).grain::<Counter>("a")?.add(2).await?, 42);
//!
//! // Node 0 is alone; the others go on without it.
//! cluster.partition(&[&[0], &[1, 2]]);
//! tokio::time::sleep(Duration::from_secs(60)).await;
//! cluster.node(1).grain::<Counter>("b")?.add(1).await?;
//!
//! // A crash, and the same node again.
//! cluster.heal();
//! cluster.kill(2);
//! cluster.restart(2).await?;
//! cluster.settled().await?;
//! cluster.node(2).grain::<Counter>("b")?.add(1).await?;
//! # Ok(())
//! # }
//! ```
//!
//! What a seed repeats: every chance that a node takes (peers, pauses, phases) and every latency that varies. The order in
//! which tokio runs tasks that are ready at the same moment is tokio's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use synod_core::gossip::GossipMemberId;
use synod_core::{Authority, NodeId};

use crate::cluster::{Cluster, ClusterConfig, Discovery};
use crate::grains::GrainKind;
use crate::incarnation::{IncarnationStore, MemoryIncarnationStore};
use crate::provider::{ClusterProvider, ClusterProviderError};
use crate::remote::{MemoryNetwork, RemoteConfig};

/// How the nodes of a [`TestCluster`] are made.
pub struct TestClusterBuilder {
    nodes: usize,
    kinds: Vec<GrainKind>,
    seed: u64,
    patience: Duration,
    latency: Option<RangeInclusive<Duration>>,
    configure: Option<Box<Configure>>,
}

type Configure = dyn Fn(usize, &mut ClusterConfig) + Send + Sync;

impl TestClusterBuilder {
    /// How many nodes. 1 to 100. Default 3.
    #[must_use]
    pub const fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// A kind of grains that every node hosts.
    #[must_use]
    pub fn kind(mut self, kind: GrainKind) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Feeds every chance that nodes and network take. Default 0.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long bytes take between two nodes: a fixed time (`x..=x`), or one drawn anew for every write. Default no time.
    #[must_use]
    pub const fn latency(mut self, latency: RangeInclusive<Duration>) -> Self {
        self.latency = Some(latency);
        self
    }

    /// How long [`settled`](TestCluster::settled) waits. Default 5 min, which in paused time is no time at all.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Changes the settings of a node, given by its number, before each of its starts. Its name, its address and its
    /// network are the cluster's own, and a listener for the api or polls for other nodes would be real sockets.
    #[must_use]
    pub fn configure(
        mut self,
        configure: impl Fn(usize, &mut ClusterConfig) + Send + Sync + 'static,
    ) -> Self {
        self.configure = Some(Box::new(configure));
        self
    }

    /// Starts all nodes and waits until they are [`settled`](TestCluster::settled).
    ///
    /// # Errors
    /// A node cannot be started with its settings, or they do not settle.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(self) -> Result<TestCluster, TestClusterError> {
        if !(1..=NODES_MAX).contains(&self.nodes) {
            return Err(TestClusterError::Nodes { nodes: self.nodes });
        }
        let network = MemoryNetwork::new(self.seed);
        if let Some(latency) = &self.latency {
            network.set_default_latency(latency.clone());
        }
        let slots = (0..self.nodes).map(Slot::new).collect();
        let mut cluster = TestCluster { builder: self, network, slots };
        for node in 0..cluster.len() {
            cluster.restart(node).await?;
        }
        cluster.settled().await?;
        Ok(cluster)
    }
}

impl fmt::Debug for TestClusterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestClusterBuilder")
            .field("nodes", &self.nodes)
            .field("kinds", &self.kinds)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// Whole nodes in this process, by number from 0. Dropping it ends them all.
pub struct TestCluster {
    builder: TestClusterBuilder,
    network: MemoryNetwork,
    slots: Vec<Slot>,
}

/// A place for the successive lives of one node.
struct Slot {
    name: String,
    lives: u64,
    incarnations: MemoryIncarnationStore,
    node: Option<Cluster>,
}

impl Slot {
    fn new(number: usize) -> Self {
        let incarnations = MemoryIncarnationStore::new();
        Self { name: format!("node-{number}"), lives: 0, incarnations, node: None }
    }

    fn authority(&self) -> Authority {
        Authority::new(&format!("{}:{PORT}", self.name)).expect("the cluster's own names are host names")
    }
}

impl TestCluster {
    /// Three nodes without grains; the builder changes that.
    #[must_use]
    pub const fn builder() -> TestClusterBuilder {
        TestClusterBuilder {
            nodes: 3,
            kinds: Vec::new(),
            seed: 0,
            patience: Duration::from_secs(300),
            latency: None,
            configure: None,
        }
    }

    /// A node that runs.
    ///
    /// # Panics
    /// There is no such node, or it does not run: a mistake in the test.
    #[must_use]
    pub fn node(&self, number: usize) -> &Cluster {
        match &self.slot(number).node {
            Some(node) => node,
            None => panic!("node {number} does not run"),
        }
    }

    /// Whether a node runs.
    ///
    /// # Panics
    /// There is no such node.
    #[must_use]
    pub fn is_running(&self, number: usize) -> bool {
        self.slot(number).node.is_some()
    }

    /// The nodes that run, with their numbers.
    pub fn running(&self) -> impl Iterator<Item = (usize, &Cluster)> {
        self.slots.iter().enumerate().filter_map(|(number, slot)| Some((number, slot.node.as_ref()?)))
    }

    /// How many nodes there are, running or not.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always a node")]
    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Where a node is reached, on [`network`](Self::network).
    ///
    /// # Panics
    /// There is no such node.
    #[must_use]
    pub fn authority(&self, number: usize) -> Authority {
        self.slot(number).authority()
    }

    /// The network, for everything that the methods here are too coarse for.
    #[must_use]
    pub const fn network(&self) -> &MemoryNetwork {
        &self.network
    }

    /// Splits the network into these groups of nodes. Nothing gets through between two groups, in silence; nodes that no
    /// group names are a group of their own. Cuts that were made before are mended where they are inside of a group.
    ///
    /// # Panics
    /// There is no such node.
    pub fn partition(&self, groups: &[&[usize]]) {
        let group = |number: usize| groups.iter().position(|group| group.contains(&number));
        for &number in groups.iter().copied().flatten() {
            drop(self.authority(number));
        }
        for a in 0..self.len() {
            for b in a + 1..self.len() {
                if group(a) == group(b) {
                    self.network.heal(&self.authority(a), &self.authority(b));
                } else {
                    self.network.cut(&self.authority(a), &self.authority(b));
                }
            }
        }
    }

    /// Mends every cut. What had stalled flows on.
    pub fn heal(&self) {
        self.network.heal_all();
    }

    /// Ends a node as a crash would: without a word, with all its connections reset. Harmless when it does not run.
    ///
    /// # Panics
    /// There is no such node.
    pub fn kill(&mut self, number: usize) {
        let authority = self.authority(number);
        drop(self.slots[number].node.take());
        self.network.kill(&authority);
    }

    /// Stops a node as an operator would: it hands over its grains and says goodbye. Harmless when it does not run.
    ///
    /// # Errors
    /// Its membership did not end in order. It is stopped anyhow.
    ///
    /// # Panics
    /// There is no such node.
    pub async fn stop(&mut self, number: usize) -> Result<(), TestClusterError> {
        let stopped = match self.slot_mut(number).node.take() {
            Some(mut node) => node.shutdown(true).await,
            None => Ok(()),
        };
        stopped.map_err(|source| TestClusterError::Node { node: number, source })
    }

    /// Starts a node that does not run, under the same name and address, and with nothing else left of its last life.
    /// It may take until [`settled`](Self::settled) before the others know. Harmless when it runs.
    ///
    /// # Errors
    /// The settings cannot be used.
    ///
    /// # Panics
    /// There is no such node, or this is outside of a tokio runtime.
    pub async fn restart(&mut self, number: usize) -> Result<(), TestClusterError> {
        if self.is_running(number) {
            return Ok(());
        }
        let config = self.config(number);
        self.slots[number].lives += 1;
        let started = async {
            let mut node = Cluster::new(config)?;
            node.start_member().await?;
            Ok(node)
        };
        let node = started.await.map_err(|source| TestClusterError::Node { node: number, source })?;
        self.slots[number].node = Some(node);
        Ok(())
    }

    /// Waits until every node that runs sees all of them and nobody else, and what each of them hosts. Nodes on both sides
    /// of a cut never do.
    ///
    /// # Errors
    /// They do not within the patience of the builder; the error says who sees whom.
    pub async fn settled(&self) -> Result<(), TestClusterError> {
        // Taken before the first look, so that no change after it is missed.
        let mut followed: Vec<_> =
            self.running().filter_map(|(_, node)| Some(node.grains()?.followed())).collect();
        let settled = async {
            while !self.is_settled() {
                let mut changes: Vec<_> =
                    followed.iter_mut().map(|followed| Box::pin(followed.changed())).collect();
                std::future::poll_fn(|context| {
                    let mut changes = changes.iter_mut();
                    if changes.any(|change| change.as_mut().poll(context).is_ready()) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                })
                .await;
            }
        };
        let settled = tokio::time::timeout(self.builder.patience, settled).await;
        settled.map_err(|_| TestClusterError::Unsettled { views: self.views() })
    }

    fn is_settled(&self) -> bool {
        let expected: Option<BTreeMap<GossipMemberId, BTreeSet<String>>> = self
            .running()
            .map(|(_, node)| {
                Some((GossipMemberId::from(&node.own()?), node.kind_names().into_iter().collect()))
            })
            .collect();
        let Some(expected) = expected else { return false };
        self.running().filter_map(|(_, node)| node.grains()).all(|grains| {
            let members = grains.members();
            members.len() == expected.len()
                && members.iter().all(|member| {
                    let kinds: BTreeSet<_> = member.kinds.iter().cloned().collect();
                    expected.get(&member.id) == Some(&kinds)
                })
        })
    }

    /// Whom each node sees.
    fn views(&self) -> Vec<(usize, Vec<String>)> {
        let view = |node: &Cluster| node.roster().iter().map(|member| member.id.to_string()).collect();
        self.running().map(|(number, node)| (number, view(node))).collect()
    }

    fn config(&self, number: usize) -> ClusterConfig {
        let slot = self.slot(number);
        let name = NodeId::new(&slot.name).expect("the cluster's own names are names of nodes");
        let remote = RemoteConfig::in_memory(self.network.clone(), slot.authority());
        let mut config = ClusterConfig::new(name.clone(), remote);
        config.kinds.clone_from(&self.builder.kinds);
        let incarnations: Arc<Mutex<dyn IncarnationStore>> = Arc::new(Mutex::new(slot.incarnations.clone()));
        config.incarnations = incarnations;
        let lives = u64::from(u32::MAX) & slot.lives;
        config.seed =
            Some(fastrand::Rng::with_seed(self.builder.seed ^ (number as u64) << 32 ^ lives).u64(..));
        // Without seeds a node begins a cluster of its own. That is for whoever comes first, and for nobody else.
        if self.running().next().is_some() {
            let others = self.slots.iter().enumerate().filter(|(other, _)| *other != number);
            config.membership.seeds = others.map(|(_, slot)| slot.authority()).collect();
        }
        if let Some(configure) = &self.builder.configure {
            configure(number, &mut config);
        }
        config.node = name;
        let RemoteConfig { network, bind, advertised, .. } =
            RemoteConfig::in_memory(self.network.clone(), slot.authority());
        config.remote = RemoteConfig { network, bind, advertised, ..config.remote };
        config.api = None;
        config.discovery = Discovery::Seeds;
        config
    }

    fn slot(&self, number: usize) -> &Slot {
        match self.slots.get(number) {
            Some(slot) => slot,
            None => panic!("there is no node {number}, there are {}", self.len()),
        }
    }

    fn slot_mut(&mut self, number: usize) -> &mut Slot {
        let nodes = self.len();
        match self.slots.get_mut(number) {
            Some(slot) => slot,
            None => panic!("there is no node {number}, there are {nodes}"),
        }
    }
}

impl fmt::Debug for TestCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestCluster")
            .field("nodes", &self.len())
            .field("running", &self.running().map(|(number, _)| number).collect::<Vec<_>>())
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}

/// Something went wrong with the nodes of a test.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestClusterError {
    /// A node did not start, or did not stop in order.
    #[error("node {node}: {source}")]
    Node {
        /// Its number.
        node: usize,
        /// What went wrong.
        source: ClusterProviderError,
    },
    /// So many nodes are too many for one process, or none at all.
    #[error("a test cluster has 1 to {NODES_MAX} nodes, not {nodes}; nothing was started")]
    Nodes {
        /// How many were asked for.
        nodes: usize,
    },
    /// The nodes do not see each other in time.
    #[error("the nodes did not settle; these see: {views:?}")]
    Unsettled {
        /// The numbers of the nodes, and whom each sees.
        views: Vec<(usize, Vec<String>)>,
    },
}

/// Most nodes of one cluster.
const NODES_MAX: usize = 100;
/// Where every node listens. The names differ.
const PORT: u16 = 8401;
