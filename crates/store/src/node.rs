//! A whole node: its disk, its place in the cluster, its registry and its listeners, started and stopped as one.
//!
//! ```text
//!   start:  lock the disk ──► which cluster? ──► may this name start? ──► cluster runtime ──► registry ──► hints
//!   stop:   hand the slots over ──► hints ──► cluster runtime (leaves) ──► registry
//! ```
//!
//! Which cluster: the disk knows, or the nodes of the configuration that run already, or the configuration itself begins
//! it. Equal configurations begin the same cluster, so it does not matter which node is the first.

mod admission;
mod events;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use synod_cluster::remote::{BearerToken, PeerService, RemoteConfig};
use synod_cluster::{
    ApiExtension, Cluster, ClusterConfig, ClusterProvider, ClusterProviderError, IncarnationStore,
    IncarnationStoreError, MembershipHandle,
};
use synod_core::membership::{ClusterEvent, MembershipCoordinatorConfig, NodeStatus, PhiConfig};
use synod_core::slots::{
    BootstrapNode, BootstrapState, ClusterId, Envelope, EnvelopeBody, Pace, SlotRegistryConfig, Standing,
    Takeover,
};
use synod_core::{Incarnation, MemberId, NodeId};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::admin::{AdminToken, peer_token};
use crate::api::{ApiParts, StoreApi};
use crate::codec;
use crate::config::{ClusterSecret, NodeConfig};
use crate::files::{Entry, FilesError, RegistryFiles};
use crate::hints::{Hint, Hints, HintsConfig, HintsError};
use crate::objects::{
    KeeperConfig, Objects, ObjectsError, ObjectsParts, ObjectsService, RunningObjects, open_disks,
};
use crate::registry::{Broadcast, RegistryExit, RegistryHandle, RegistryParts, RegistryStartError};
use crate::service::SlotsService;
pub use admission::{AdmissionError, JoinRequest};

/// How a node comes to its cluster.
#[derive(Clone, Debug)]
pub enum Origin {
    /// By a configuration file: it forms the cluster, or joins the one that it describes.
    Config(Box<NodeConfig>),
    /// By the nodes of a running cluster, which tell it everything.
    Join(JoinRequest),
}

/// What a node is started with.
#[derive(Clone)]
pub struct NodeOptions {
    /// Its name.
    pub node: NodeId,
    /// How it comes to its cluster.
    pub origin: Origin,
    /// Takes the name over from a suspect that was silent for long enough.
    pub force_takeover: bool,
    /// The word of the operator that no slot of the cluster was ever served, so that nobody has to be heard before this
    /// node votes.
    pub is_new_cluster: bool,
    /// Settings of its registry.
    pub registry: SlotRegistryConfig,
    /// How it keeps its objects whole.
    pub keeper: KeeperConfig,
    /// Further parts of its api, of gateways that are started when it runs.
    pub extensions: Vec<Arc<dyn ApiExtension>>,
    /// Further services of its peer listener.
    pub services: Vec<Arc<dyn PeerServices>>,
}

/// Services of the peer listener that are made when the node knows to which cluster it belongs.
pub trait PeerServices: Send + Sync + 'static {
    /// The services for this cluster.
    fn services(&self, passport: &Passport) -> Vec<Arc<dyn PeerService>>;
}

/// What the nodes of a cluster have in common, and what they show to each other.
#[derive(Clone, Debug)]
pub struct Passport {
    /// Which cluster it is.
    pub cluster: ClusterId,
    /// The token that peers show, where the cluster has a secret.
    pub peer_token: Option<String>,
    /// The token that clients and operators show, where the cluster has a secret.
    pub admin_token: Option<String>,
}

/// A running node.
pub struct Node {
    cluster: Cluster,
    registry: RegistryHandle,
    hints: Option<Arc<Hints>>,
    objects: RunningObjects,
    tasks: Vec<JoinHandle<()>>,
    own: BootstrapNode,
    takeover: Option<Takeover>,
}

impl Node {
    /// Starts a node.
    ///
    /// # Errors
    /// A part could not be started; then nothing runs.
    pub async fn start(options: NodeOptions) -> Result<Self, NodeError> {
        let started = Instant::now();
        let admitted = admission::admit(&options).await?;
        let admission::Admitted { own, bootstrap, files, recovered, seen, secret, takeover } = admitted;
        if let Some(takeover) = &takeover {
            tracing::warn!(%takeover, "a name was taken over");
        }
        let takeovers = files.takeover_count()?;
        let files = Arc::new(files);
        let bootstrap = Arc::new(bootstrap);
        // A disk that cannot be used is found before anybody hears of this node.
        let disks = open_disks(&own, &bootstrap, options.is_new_cluster).await?;
        let shown = secret.as_ref().map(|secret| peer_token(secret, bootstrap.cluster_id()));
        let token = BearerToken::new(shown.as_deref());
        let (service, api) = (
            SlotsService::new(token.clone()),
            StoreApi::new(options.extensions, secret.as_ref().map(AdminToken::of)),
        );
        let object_service = ObjectsService::new(token.clone());
        let last = recovered.incarnation.max(seen);
        let mut config = cluster_config(&own, &bootstrap, &files, last, &api)?;
        config.services = vec![
            Arc::new(service.clone()) as Arc<dyn PeerService>,
            Arc::new(object_service.clone()) as Arc<dyn PeerService>,
        ];
        let passport = Passport {
            cluster: bootstrap.cluster_id(),
            peer_token: token.text().map(ToOwned::to_owned),
            admin_token: secret.as_ref().map(|secret| AdminToken::of(secret).text().to_owned()),
        };
        for more in &options.services {
            config.services.extend(more.services(&passport));
        }
        let mut cluster = Cluster::new(config)?;
        cluster.start_member().await?;
        let Some((member, membership)) = cluster.own().zip(cluster.membership().cloned()) else {
            return Err(NodeError::Ended);
        };
        let instance = fastrand::u64(..);
        let hints = start_hints(&own, &member, &bootstrap, instance, secret.as_ref()).await;
        let (hints, heard) = match hints {
            Ok(started) => started,
            Err(error) => {
                // What runs already must not be left behind.
                drop(cluster.shutdown(false).await);
                return Err(error);
            }
        };
        let clock = cluster.clock();
        let restored =
            synod_core::slots::Restored { is_new_cluster: options.is_new_cluster, ..recovered.restored };
        let gossip = hints.clone().map(|hints| hints as Arc<dyn Broadcast>);
        let parts = RegistryParts {
            own: member.clone(),
            address: own.peer().map_err(|error| NodeError::Address(error.to_string()))?,
            instance,
            bootstrap: Arc::clone(&bootstrap),
            config: options.registry,
            restored,
            files,
            gossip,
            clock,
            unix_millis_at_zero: unix_millis().saturating_sub(clock.now().as_nanos() / 1_000_000),
            seed: instance,
            token: token.clone(),
        };
        let registry = match RegistryHandle::start(parts).await {
            Ok(registry) => registry,
            Err(error) => {
                drop(cluster.shutdown(false).await);
                return Err(error.into());
            }
        };
        service.open(bootstrap.cluster_id(), registry.clone());
        let parts = ObjectsParts {
            own: member.clone(),
            bootstrap: Arc::clone(&bootstrap),
            registry: registry.clone(),
            disks,
            clock,
            keeper: options.keeper,
            token,
        };
        let objects = match RunningObjects::start(parts, &object_service) {
            Ok(objects) => objects,
            Err(error) => {
                drop(cluster.shutdown(false).await);
                registry.stop().await;
                return Err(error.into());
            }
        };
        let mut tasks = vec![
            tokio::spawn(follow_membership(
                membership.clone(),
                registry.clone(),
                own.node.clone(),
                Arc::clone(&bootstrap),
            )),
            tokio::spawn(events::publish(
                registry.events(),
                cluster.events().clone(),
                clock,
                |events, observed_at| ClusterEvent::Slots { events, observed_at },
            )),
            tokio::spawn(events::publish(
                objects.objects().events(),
                cluster.events().clone(),
                clock,
                |events, observed_at| ClusterEvent::Objects { events, observed_at },
            )),
        ];
        if let (Some(hints), Some(heard)) = (&hints, heard) {
            let body = EnvelopeBody::BootstrapSnapshot((*bootstrap).clone());
            let cluster = bootstrap.cluster_id();
            Hints::broadcast(hints, &codec::envelope(&Envelope { cluster, body }));
            tasks.push(tokio::spawn(follow_hints(heard, membership.clone(), registry.clone())));
        }
        api.open(ApiParts {
            own: member,
            registry: registry.clone(),
            membership,
            hints: hints.clone(),
            objects: objects.view(),
            started,
            takeovers,
        });
        Ok(Self { cluster, registry, hints, objects, tasks, own, takeover })
    }

    /// The registry of the node.
    #[must_use]
    pub const fn registry(&self) -> &RegistryHandle {
        &self.registry
    }

    /// The object store of the node.
    #[must_use]
    pub const fn objects(&self) -> &Objects {
        self.objects.objects()
    }

    /// The cluster runtime of the node.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Its place in the layout of the cluster.
    #[must_use]
    pub const fn place(&self) -> &BootstrapNode {
        &self.own
    }

    /// Whose name it took over, if it did.
    #[must_use]
    pub const fn takeover(&self) -> Option<&Takeover> {
        self.takeover.as_ref()
    }

    /// Waits until the node can go on no longer, and says why.
    pub async fn ended(&self) -> NodeEnd {
        let membership = self.cluster.membership().cloned();
        let membership_ended = async {
            match membership {
                Some(membership) => membership.ended().await,
                None => synod_cluster::MembershipExit::Stopped,
            }
        };
        tokio::select! {
            exit = self.registry.ended() => NodeEnd::Registry(exit),
            exit = membership_ended => NodeEnd::Membership(exit),
            reason = self.objects.failed() => NodeEnd::Disk(reason),
        }
    }

    /// Hands the slots over, says goodbye and stops. True when all slots were taken over by others within `patience`.
    pub async fn shutdown(mut self, patience: Duration) -> bool {
        let is_drained = self.registry.leave(patience).await;
        if self.hints.is_some() {
            // Whoever still takes this node for a primary is told otherwise, instead of finding a closed door and not knowing
            // whether its write took effect.
            tokio::time::sleep(FAREWELL).await;
        }
        for task in self.tasks.drain(..) {
            task.abort();
            drop(task.await);
        }
        if let Some(hints) = self.hints.take() {
            hints.leave(LEAVE_TIMEOUT).await;
        }
        self.objects.stop().await;
        // A node that leaves is gone either way; the event stream of the cluster says how.
        drop(self.cluster.shutdown(true).await);
        self.registry.stop().await;
        is_drained
    }
}

impl Node {
    /// Stops at once, without a word to the others: what a crash looks like to them.
    pub async fn kill(mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
        self.objects.stop().await;
        drop(self.cluster.shutdown(false).await);
        self.registry.stop().await;
    }
}

/// Why a node came to its end by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    /// Its registry ended.
    Registry(RegistryExit),
    /// Its membership ended.
    Membership(synod_cluster::MembershipExit),
    /// A disk with objects failed. Nothing was told that was not written.
    Disk(String),
}

/// A node could not be started. Nothing runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// It may not start under its name, or not in this cluster.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// Its disk.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// It would listen to everybody without a secret.
    #[error(
        "node {node} would listen on {bind}, which others can reach, without a secret; write one with `synod secret new`, \
         and name the file in `secret_file`"
    )]
    SecretRequired {
        /// The node.
        node: NodeId,
        /// Where it would listen.
        bind: SocketAddr,
    },
    /// An address cannot be used.
    #[error("an address cannot be used: {0}")]
    Address(String),
    /// The cluster runtime did not start.
    #[error(transparent)]
    Cluster(#[from] ClusterProviderError),
    /// The registry did not start.
    #[error(transparent)]
    Registry(#[from] RegistryStartError),
    /// Its objects cannot be served.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// Gossip did not start.
    #[error(transparent)]
    Hints(#[from] HintsError),
    /// The name of a host has no address.
    #[error("the host {host} of node {node} has no address: {error}")]
    Resolve {
        /// The node.
        node: NodeId,
        /// The host.
        host: String,
        /// What the system said.
        error: io::Error,
    },
    /// The node ended while it started.
    #[error("the node ended while it started; another process may run under its name")]
    Ended,
}

impl Broadcast for Hints {
    fn broadcast(&self, payload: &[u8]) {
        Self::broadcast(self, payload);
    }
}

/// The life of the node, kept with its registry.
struct FileIncarnations {
    files: Arc<RegistryFiles>,
    last: Option<Incarnation>,
}

impl IncarnationStore for FileIncarnations {
    fn load(&mut self) -> Result<Option<Incarnation>, IncarnationStoreError> {
        Ok(self.last)
    }

    fn persist(&mut self, incarnation: Incarnation) -> Result<(), IncarnationStoreError> {
        let failed =
            |error: FilesError| IncarnationStoreError::Persist { incarnation, reason: error.to_string() };
        let ticket = self.files.append(&[Entry::Incarnation(incarnation)]).map_err(failed)?;
        ticket.wait().map_err(|error| failed(error.into()))?;
        self.last = Some(incarnation);
        Ok(())
    }
}

fn cluster_config(
    own: &BootstrapNode,
    bootstrap: &Arc<BootstrapState>,
    files: &Arc<RegistryFiles>,
    last: Option<Incarnation>,
    api: &StoreApi,
) -> Result<ClusterConfig, NodeError> {
    let address = |error: synod_core::AuthorityError| NodeError::Address(error.to_string());
    let mut remote = RemoteConfig::new(SocketAddr::new(own.bind.ip(), own.ports.peer));
    remote.advertised = Some(own.peer().map_err(address)?);
    let mut config = ClusterConfig::new(own.node.clone(), remote);
    let mut seeds = Vec::new();
    for other in bootstrap.nodes.iter().filter(|other| other.node != own.node) {
        seeds.push(other.peer().map_err(address)?);
    }
    let rank = bootstrap.nodes.iter().position(|node| node.node == own.node).unwrap_or(0);
    let rank = u32::try_from(rank).unwrap_or(u32::MAX);
    config.membership = membership_config(bootstrap.pace);
    config.membership.seeds = seeds;
    config.membership.form_alone_after = Some(FORM_ALONE_STEP * rank.saturating_add(1));
    config.api = Some(own.bind);
    config.extension = Some(Arc::new(api.clone()) as Arc<dyn ApiExtension>);
    config.incarnations = Arc::new(Mutex::new(FileIncarnations { files: Arc::clone(files), last }));
    Ok(config)
}

/// Membership at the pace of the cluster: a node is suspected after `suspect_timeout` without a heartbeat, at the latest,
/// and given up `fail_timeout` after that.
fn membership_config(pace: Pace) -> MembershipCoordinatorConfig {
    let heartbeat_interval =
        (pace.suspect_timeout / 5).clamp(Duration::from_millis(20), Duration::from_secs(1));
    let acceptable_pause = pace.suspect_timeout.saturating_sub(heartbeat_interval * 2);
    MembershipCoordinatorConfig {
        phi: PhiConfig {
            acceptable_pause,
            first_heartbeat_estimate: heartbeat_interval,
            expected_response_after: heartbeat_interval,
            min_std_deviation: (heartbeat_interval / 10).max(Duration::from_millis(1)),
            ..PhiConfig::default()
        },
        heartbeat_interval,
        suspect_timeout: pace.fail_timeout.min(Duration::from_secs(3600)),
        gossip_interval: pace.gossip_interval.min(Duration::from_millis(200)),
        gossip_fanout: usize::from(pace.fanout),
        reconnect_interval: RECONNECT_INTERVAL.min(pace.full_sync_interval),
        ..MembershipCoordinatorConfig::default()
    }
}

type StartedHints = (Option<Arc<Hints>>, Option<mpsc::Receiver<Hint>>);

async fn start_hints(
    own: &BootstrapNode,
    member: &MemberId,
    bootstrap: &BootstrapState,
    instance: u64,
    secret: Option<&ClusterSecret>,
) -> Result<StartedHints, NodeError> {
    if bootstrap.nodes.len() == 1 {
        return Ok((None, None));
    }
    let address = |error: synod_core::AuthorityError| NodeError::Address(error.to_string());
    let gossip = own.gossip().map_err(address)?;
    let mut peers = Vec::new();
    for other in bootstrap.nodes.iter().filter(|other| other.node != own.node) {
        peers.push((other.node.clone(), other.gossip().map_err(address)?.to_string()));
    }
    let resolved = tokio::net::lookup_host(gossip.as_str()).await;
    let advertise = resolved.and_then(|mut found| {
        found.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is none"))
    });
    let advertise = advertise.map_err(|error| NodeError::Resolve {
        node: own.node.clone(),
        host: own.advertise_host.clone(),
        error,
    })?;
    let pace = bootstrap.pace;
    let config = HintsConfig {
        node: own.node.clone(),
        instance,
        incarnation: member.incarnation.get(),
        bind: SocketAddr::new(own.bind.ip(), own.ports.gossip),
        advertise,
        label: bootstrap.cluster_id().to_string(),
        peers,
        gossip_interval: pace.gossip_interval.min(Duration::from_secs(10)),
        fanout: usize::from(pace.fanout).min(16),
        suspect_timeout: pace.suspect_timeout.clamp(Duration::from_millis(300), Duration::from_secs(60)),
        full_sync_interval: pace.full_sync_interval,
        rejoin_interval: RECONNECT_INTERVAL.min(pace.full_sync_interval),
        secret: secret.map(|secret| *secret.bytes()),
    };
    let (hints, heard) = Hints::start(config).await?;
    Ok((Some(Arc::new(hints)), Some(heard)))
}

/// Tells the registry what membership thinks of the other nodes.
async fn follow_membership(
    membership: MembershipHandle,
    registry: RegistryHandle,
    own: NodeId,
    bootstrap: Arc<BootstrapState>,
) {
    let mut views = membership.views();
    while let Some(view) = views.next().await {
        for node in bootstrap.nodes.iter().map(|node| &node.node).filter(|node| **node != own) {
            let standing = match view.status(node) {
                None => Standing::Unknown,
                Some(NodeStatus::Joining | NodeStatus::Up) => Standing::Alive,
                Some(NodeStatus::Suspect) => Standing::Suspect,
                Some(NodeStatus::Leaving) => Standing::Leaving,
                Some(NodeStatus::Dead | NodeStatus::Removed) => Standing::Failed,
            };
            if registry.standing(node.clone(), standing).await.is_err() {
                return;
            }
        }
    }
}

/// Hands hints on: gossip to the registry, suspicions to membership.
async fn follow_hints(
    mut heard: mpsc::Receiver<Hint>,
    membership: MembershipHandle,
    registry: RegistryHandle,
) {
    let bootstrap = registry.bootstrap();
    while let Some(hint) = heard.recv().await {
        match hint {
            Hint::Down { node } => {
                // It may be gone already, or unknown; then there is nothing to suspect.
                drop(membership.suspect(node).await);
            }
            Hint::Received { from, payload } => {
                match codec::read_envelope(bootstrap.cluster_id(), &payload) {
                    Ok(Envelope { body: EnvelopeBody::SlotDelta { records, nodes }, .. }) => {
                        if registry.gossip(records, nodes).await.is_err() {
                            return;
                        }
                    }
                    Ok(Envelope { body: EnvelopeBody::BootstrapSnapshot(state), .. }) => {
                        // Of the same cluster, so of the same layout; which of them wrote it down first matters to nobody here.
                        let differing = bootstrap.differences(&state);
                        if !differing.is_empty() {
                            let settings = differing.join(", ");
                            tracing::warn!(%from, settings, "a node of this cluster runs with other settings");
                        }
                    }
                    Err(refusal) => {
                        registry.note_refused_envelope();
                        tracing::debug!(%from, %refusal, "gossip was ignored");
                    }
                }
            }
            Hint::NameConflict { node, address, .. } => {
                tracing::warn!(%node, %address, "a second process claims the name of a node");
            }
            _ => {}
        }
    }
}

fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.ok().and_then(|since| u64::try_from(since.as_millis()).ok()).unwrap_or(0)
}

/// Where the registry of a node is, on its first disk.
pub(crate) fn registry_dir(node: &BootstrapNode) -> Option<PathBuf> {
    Some(PathBuf::from(node.disks.first()?).join("registry"))
}

/// How much later each node in order forms the cluster alone when nobody lets it in.
const FORM_ALONE_STEP: Duration = Duration::from_millis(400);
/// How often nodes that are away are looked for.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(2);
/// How long a node that serves nothing any more still answers.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long gossip may take to say goodbye.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
