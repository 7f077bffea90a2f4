//! A whole node on real sockets: remoting, membership, gossip and the roster, started and stopped as one.
//!
//! ```text
//!   start:  bind ──► extension ──► membership + gossip ──► open ──► roster (health endpoint) ──► follower ──► api
//!   stop:   leave ──► gossip says goodbye ──► api ──► roster ──► follower ──► extension ──► remoting
//! ```
//!
//! Each part needs those before it, so when one fails to start, what runs already is stopped in reverse and the event
//! stream says why. Peers are found through seeds (synod nodes), or through a list of health addresses, which is how
//! protoactor-go nodes take part.

mod config;
mod follower;
mod road;

pub use config::{ClusterConfig, Discovery};
pub use road::{RemoteGossipCarrier, RemoteGossipTransport};

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prost::Name;
use synod_core::gossip::{ConsensusChecker, ExtractError, GossipKey, GossipMemberId, GossipValue};
use synod_core::grains::ResolveResult;
use synod_core::membership::{ClusterEvent, Member};
use synod_core::roster::{Roster, RosterConfig, RosterMember};
use synod_core::{Authority, MemberId};
use synod_wire::cluster::{ClusterTopology, Member as WireMember};
use synod_wire::{names, payload};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::api::{ApiServer, ApiSources};
use crate::automanaged::{AutomanagedConfig, AutomanagedProvider};
use crate::clock::MonotonicClock;
use crate::core::{AlreadyStarted, ClusterCore, ClusterMode};
use crate::event_stream::EventStream;
use crate::extension::ClusterExtension;
use crate::gossiper::{Gossiper, GossiperError, TokioGossiper};
use crate::grains::{Audience, Broadcasts, GrainKind, GrainRef, GrainService, Grains};
use crate::membership::{MembershipDriver, MembershipExit, MembershipHandle, MembershipTask};
use crate::metrics::{ClusterMetrics, MetricsError, Reporter};
use crate::provider::{ClusterProvider, ClusterProviderError};
use crate::pubsub::PubSub;
use crate::remote::{Remote, RemoteConfig};
use crate::roster::{KINDS_KEY, RosterTask, RosterWiring};
use follower::Follower;
use road::GossipLetters;

/// One node of a cluster on real sockets. Dropping it stops the node without a word to the others, as a crash would.
pub struct Cluster {
    config: ClusterConfig,
    clock: MonotonicClock,
    stream: EventStream,
    extension: ClusterExtension,
    parts: Option<Parts>,
}

impl Cluster {
    /// A node that is not started. Its settings are checked here, before anything runs.
    ///
    /// # Errors
    /// A setting that cannot be used.
    pub fn new(mut config: ClusterConfig) -> Result<Self, ClusterProviderError> {
        config.validate()?;
        if let Some(seed) = config.seed {
            let mut seeds = fastrand::Rng::with_seed(seed);
            for part in [&mut config.remote.seed, &mut config.gossip.seed, &mut config.grains.seed] {
                let drawn = seeds.u64(..);
                part.get_or_insert(drawn);
            }
        }
        let stream = EventStream::new(config.events)?;
        let extension = ClusterExtension::new(stream.clone(), ClusterCore::new(config.metrics.enabled));
        Ok(Self { config, clock: MonotonicClock::start(), stream, extension, parts: None })
    }

    /// The events of this node, across starts and stops.
    #[must_use]
    pub const fn events(&self) -> &EventStream {
        &self.stream
    }

    /// The clock of its events, and of the times at which its gossip arrived.
    #[must_use]
    pub const fn clock(&self) -> MonotonicClock {
        self.clock
    }

    /// The post office of the node; `None` while it is stopped.
    #[must_use]
    pub fn remote(&self) -> Option<&Remote> {
        self.parts.as_ref().map(|parts| &parts.remote)
    }

    /// The gossiper of the node; `None` while it is stopped, and for clients.
    #[must_use]
    pub fn gossiper(&self) -> Option<&TokioGossiper> {
        self.parts.as_ref()?.gossiper.as_ref()
    }

    /// The grains of the cluster; `None` while it is stopped.
    #[must_use]
    pub fn grains(&self) -> Option<&Grains> {
        self.parts.as_ref()?.grains.as_ref()
    }

    /// A client of the grain of this service and identity, wherever it lives.
    ///
    /// # Errors
    /// The node is stopped, or the identity does not name a grain.
    pub fn grain<S: GrainService>(&self, identity: &str) -> Result<S::Client, ClusterProviderError> {
        Ok(S::client(self.grain_ref(S::KIND, identity)?))
    }

    /// The grain of this kind and identity, wherever it lives, for calls without types.
    ///
    /// # Errors
    /// The node is stopped, or kind and identity do not name a grain.
    pub fn grain_ref(&self, kind: &str, identity: &str) -> Result<GrainRef, ClusterProviderError> {
        let grains = self.grains().ok_or(ClusterProviderError::NotStarted)?;
        Ok(grains.grain_ref(kind, identity)?)
    }

    /// Whether the actor with this PID, `host:port/id`, can be reached, going by the newest view of the cluster.
    ///
    /// # Errors
    /// The node is stopped, or the text is not the PID of anything that could be a grain.
    pub fn resolve(&self, pid: &str) -> Result<ResolveResult, ClusterProviderError> {
        let grains = self.grains().ok_or(ClusterProviderError::NotStarted)?;
        Ok(grains.resolve(pid)?)
    }

    /// Waits until this node knows so many members that host `kind`. Before that it may take another member for the owner of
    /// a grain than those do that know more.
    ///
    /// # Errors
    /// The node is stopped, or there are too few within `timeout`.
    pub async fn wait_for_hosts(
        &self,
        kind: &str,
        wanted: usize,
        timeout: Duration,
    ) -> Result<(), ClusterProviderError> {
        let grains = self.grains().ok_or(ClusterProviderError::NotStarted)?;
        let hosts =
            || grains.members().iter().filter(|member| member.kinds.iter().any(|one| one == kind)).count();
        let mut followed = grains.followed();
        let enough = async {
            while hosts() < wanted {
                // The sender lives as long as the grains.
                followed.changed().await.ok();
            }
        };
        let in_time = tokio::time::timeout(timeout, enough).await;
        in_time.map_err(|_| ClusterProviderError::TooFewHosts {
            kind: kind.to_owned(),
            wanted,
            found: hosts(),
        })
    }

    /// Sends a message to the event stream of every other member, once and without an answer. Returns to how many.
    ///
    /// # Errors
    /// The node is stopped. Nothing was sent.
    pub fn broadcast<M: prost::Message + Name + 'static>(
        &self,
        message: &M,
        to: Audience,
    ) -> Result<usize, ClusterProviderError> {
        Ok(self.grains().ok_or(ClusterProviderError::NotStarted)?.broadcast(message, to))
    }

    /// What members broadcast from now on.
    ///
    /// # Errors
    /// The node is stopped.
    pub fn broadcasts(&self) -> Result<Broadcasts, ClusterProviderError> {
        Ok(self.grains().ok_or(ClusterProviderError::NotStarted)?.broadcasts())
    }

    /// Where the api listener is; `None` while the node is stopped, and without one.
    #[must_use]
    pub fn api_address(&self) -> Option<SocketAddr> {
        self.parts.as_ref()?.api.as_ref().map(ApiServer::address)
    }

    /// The topics of the cluster; `None` while it is stopped.
    #[must_use]
    pub fn pubsub(&self) -> Option<&PubSub> {
        self.parts.as_ref()?.pubsub.as_ref()
    }

    /// The membership of the node; `None` while it is stopped.
    #[must_use]
    pub fn membership(&self) -> Option<&MembershipHandle> {
        self.parts.as_ref()?.membership.as_ref().filter(|membership| membership.is_running())
    }

    /// As what the node takes part; `None` while it is stopped.
    #[must_use]
    pub fn mode(&self) -> Option<ClusterMode> {
        self.extension.mode()
    }

    /// This life of the node; `None` while it is stopped, and for clients.
    #[must_use]
    pub fn own(&self) -> Option<MemberId> {
        self.membership()?.view().own.clone()
    }

    /// Everyone this node deals with, whatever they run, in order of their ids.
    #[must_use]
    pub fn roster(&self) -> Arc<[RosterMember]> {
        match self.parts.as_ref().and_then(|parts| parts.presence.as_ref()) {
            Some(Presence::Seeds(roster)) => roster.members(),
            Some(Presence::Automanaged(provider)) => provider.members(),
            None => Arc::from([]),
        }
    }

    /// The numbers now.
    ///
    /// # Errors
    /// Metrics are switched off.
    pub fn metrics(&self) -> Result<ClusterMetrics, MetricsError> {
        self.extension.metrics()
    }

    /// Waits until every member, synod or Go, says that it sees the same members, and returns their topology hash.
    ///
    /// # Errors
    /// They do not agree within `timeout`, or this node takes no part in gossip.
    pub async fn topology_consensus(&self, timeout: Duration) -> Result<u64, GossiperError> {
        let gossiper = self.gossiper().ok_or(GossiperError::NotStarted)?;
        let extract = |bytes: &[u8]| {
            let topology: ClusterTopology =
                payload::decode(bytes.to_vec().into()).map_err(|_| ExtractError)?;
            Ok(topology.topology_hash.to_be_bytes().to_vec())
        };
        let checker = ConsensusChecker::new(topology_key(), extract);
        let check = gossiper.register_consensus_check(checker).await?;
        let agreed = check.wait_for_consensus(timeout).await?;
        let hash = agreed.first().and_then(|bytes| <[u8; 8]>::try_from(bytes.as_slice()).ok());
        hash.map(u64::from_be_bytes).ok_or(GossiperError::CheckRemoved)
    }

    async fn start(&mut self, mode: ClusterMode) -> Result<(), ClusterProviderError> {
        if self.membership().is_some() {
            let mode = self.mode().unwrap_or(mode);
            return Err(AlreadyStarted { mode }.into());
        }
        // A node that stopped by itself, because its name was taken over, left its parts behind.
        self.stop_parts(false).await;
        let call_schemas = self.config.grains.router.schema_versions.clone();
        let remote = RemoteConfig { call_schemas, ..self.config.remote.clone() };
        let started = match Remote::bind(remote, self.stream.clone(), self.clock).await {
            Ok(remote) => {
                self.config.services.iter().for_each(|service| remote.serve(Arc::clone(service)));
                let mut parts = Parts::new(remote);
                let started = self.start_parts(mode, &mut parts).await;
                self.parts = Some(parts);
                started
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = &started {
            self.stop_parts(false).await;
            let (reason, observed_at) = (error.to_string(), self.clock.now());
            self.stream.publish(ClusterEvent::StartupFailed { mode: mode.into(), reason, observed_at });
        }
        started
    }

    async fn start_parts(
        &mut self,
        mode: ClusterMode,
        parts: &mut Parts,
    ) -> Result<(), ClusterProviderError> {
        self.extension.start(mode)?;
        // Before anything publishes, so that nothing is missed.
        let followed = self.stream.subscribe_live();
        let wiring = RosterWiring {
            events: self.stream.subscribe_live(),
            stream: self.stream.clone(),
            clock: self.clock,
        };
        let remote = parts.remote.clone();
        let authority = remote.authority().clone();
        let transport = RemoteGossipTransport::open(remote.clone())?;
        let store = Box::new(Arc::clone(&self.config.incarnations));
        let ClusterConfig { node, membership, gossip, .. } = self.config.clone();
        let mut driver = MembershipDriver::new(
            node.clone(),
            authority.clone(),
            membership,
            transport,
            self.stream.clone(),
            store,
        )?;
        let seed = self.config.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let now = self.clock.now();
        let own = match mode {
            ClusterMode::Member => {
                driver.start_member(seed, now)?;
                driver.coordinator().own().cloned()
            }
            ClusterMode::Client => {
                driver.start_client(seed, now)?;
                None
            }
        };
        let pubsub = self.make_pubsub();
        let mut kinds = if own.is_some() { self.config.kinds.clone() } else { Vec::new() };
        if own.is_some() && !self.hosts_own_topics() {
            kinds.push(pubsub.kind());
        }
        let grains_id = match &own {
            Some(own) => GossipMemberId::from(own),
            None => GossipMemberId::new(&format!("{node}@{authority}"))?,
        };
        let grains = Grains::start(
            self.config.grains.clone(),
            kinds,
            grains_id,
            &remote,
            self.stream.clone(),
            self.clock,
        )?;
        parts.grains = Some(grains.clone());
        pubsub.open(&remote, &grains)?;
        parts.pubsub = Some(pubsub.clone());
        let membership = match &own {
            Some(own) => {
                remote.open(&own.to_string());
                let actor_name = gossip.gossip_actor_name.clone();
                let carrier = RemoteGossipCarrier::new(remote.clone(), &actor_name);
                let gossiper = TokioGossiper::new(gossip, self.stream.clone(), self.clock, carrier)?;
                let letters = GossipLetters::new(remote.clone(), gossiper.clone());
                remote.register(&actor_name, Arc::new(letters))?;
                parts.gossip_actor = Some(actor_name);
                parts.gossiper = Some(gossiper.clone());
                gossiper.set_statistics_source(grains.clone());
                let membership = gossiper.start_with_membership(driver).await?;
                self.tell_kinds(&gossiper)?;
                membership
            }
            None => {
                remote.open(&format!("{node}@{authority}"));
                MembershipTask::spawn(driver, self.clock)
            }
        };
        parts.membership = Some(membership.clone());
        let (hint, hints) = mpsc::channel(HINTS_MAX);
        parts.presence = Some(self.start_presence(own, authority, wiring, hint).await?);
        let gossiper = parts.gossiper.clone();
        let sources = ApiSources {
            node: node.clone(),
            metrics: self.config.metrics.clone(),
            core: self.extension.core(),
            remote: remote.clone(),
            membership: membership.clone(),
            gossiper: gossiper.clone(),
            grains: grains.clone(),
            pubsub: pubsub.clone(),
        };
        let follower = Follower { remote, membership, gossiper, grains, pubsub, node };
        parts.follower = Some(tokio::spawn(follower.run(followed, hints)));
        if let Some(interval) = self.config.metrics.log_interval.filter(|_| self.config.metrics.enabled) {
            parts.reporter = Some(Reporter::start(interval, sources.clone()));
        }
        if let Some(listen) = self.config.api {
            parts.api = Some(ApiServer::start(listen, sources, self.config.extension.clone()).await?);
        }
        Ok(())
    }

    /// Says which kinds this node hosts, to those who do not ask its health endpoint.
    fn tell_kinds(&self, gossiper: &TokioGossiper) -> Result<(), ClusterProviderError> {
        let member = WireMember { kinds: self.kind_names(), ..WireMember::default() };
        let told = ClusterTopology { members: vec![member], ..ClusterTopology::default() };
        let value = payload::encode_any(&told).ok();
        let value = value.and_then(|any| GossipValue::new(&any.type_url, &any.value).ok());
        let key = GossipKey::new(KINDS_KEY).ok();
        if let (Some(key), Some(value)) = (key, value) {
            gossiper.set_state(key, value)?;
        }
        Ok(())
    }

    /// The kinds that it hosts as a member.
    pub(crate) fn kind_names(&self) -> Vec<String> {
        let topics = (!self.hosts_own_topics()).then_some(names::KIND_TOPIC);
        let kinds = self.config.kinds.iter().map(GrainKind::name).chain(topics);
        kinds.map(str::to_owned).collect()
    }

    /// Whether the application brings a kind for topics.
    fn hosts_own_topics(&self) -> bool {
        self.config.kinds.iter().any(|kind| kind.name() == names::KIND_TOPIC)
    }

    fn make_pubsub(&self) -> PubSub {
        let mut config = self.config.pubsub.clone();
        config.topic.placement = self.config.grains.activation.placement;
        PubSub::new(config, self.stream.clone(), self.clock)
    }

    async fn start_presence(
        &self,
        own: Option<MemberId>,
        authority: Authority,
        wiring: RosterWiring,
        hint: mpsc::Sender<(MemberId, Authority)>,
    ) -> Result<Presence, ClusterProviderError> {
        let own = own.map(|id| Member { id, authority });
        // A hint that finds no room comes again with the next poll.
        let on_synod_peer = Box::new(move |member, authority| drop(hint.try_send((member, authority))));
        Ok(match (&self.config.discovery, own) {
            (Discovery::Seeds, own) => {
                let config = RosterConfig {
                    members_max: self.config.membership.members_max,
                    ..RosterConfig::default()
                };
                let roster = match own {
                    Some(own) => Roster::member(own, self.kind_names(), config),
                    None => Roster::client(config),
                };
                Presence::Seeds(RosterTask::start(roster?, wiring))
            }
            (Discovery::Automanaged(automanaged), Some(own)) => {
                let automanaged = AutomanagedConfig { kinds: self.kind_names(), ..automanaged.clone() };
                let provider =
                    AutomanagedProvider::start_member(&automanaged, own, wiring, on_synod_peer).await?;
                Presence::Automanaged(provider)
            }
            (Discovery::Automanaged(automanaged), None) => {
                Presence::Automanaged(AutomanagedProvider::start_client(automanaged, wiring, on_synod_peer)?)
            }
        })
    }

    /// Stops what runs, in reverse. Returns how the membership ended, if there was one.
    async fn stop_parts(&mut self, graceful: bool) -> Option<MembershipExit> {
        let parts = self.parts.take()?;
        let mut exit = None;
        if let Some(api) = &parts.api {
            api.say_leaving();
        }
        if let Some(pubsub) = &parts.pubsub {
            pubsub.retire();
        }
        if graceful && let Some(grains) = &parts.grains {
            grains.drain(self.config.shutdown_patience).await;
        }
        if let Some(membership) = &parts.membership {
            let left = if graceful { membership.leave_and_stop().await.map(|_| ()) } else { Ok(()) };
            if !graceful || left.is_err() {
                // It may have ended before; then it says how.
                drop(membership.stop().await);
            }
            exit = Some(membership.ended().await);
        }
        if let Some(actor) = &parts.gossip_actor {
            if graceful && let Some(gossiper) = &parts.gossiper {
                // It may have ended with its membership. Whoever waits for an end has it either way.
                drop(gossiper.stop().await);
            }
            parts.remote.unregister(actor);
        }
        if let Some(api) = parts.api {
            api.stop().await;
        }
        match parts.presence {
            Some(Presence::Seeds(roster)) => roster.stop().await,
            Some(Presence::Automanaged(provider)) => provider.stop().await,
            None => {}
        }
        if let Some(follower) = parts.follower {
            follower.abort();
            drop(follower.await);
        }
        drop(parts.reporter);
        drop(parts.gossiper);
        if let Some(pubsub) = &parts.pubsub {
            pubsub.stop();
        }
        if let Some(grains) = &parts.grains {
            grains.stop();
        }
        self.extension.shutdown().await;
        let patience = if graceful { self.config.shutdown_patience } else { Duration::ZERO };
        parts.remote.shutdown(patience).await;
        exit
    }
}

impl ClusterProvider for Cluster {
    async fn start_member(&mut self) -> Result<(), ClusterProviderError> {
        self.start(ClusterMode::Member).await
    }

    async fn start_client(&mut self) -> Result<(), ClusterProviderError> {
        self.start(ClusterMode::Client).await
    }

    async fn shutdown(&mut self, graceful: bool) -> Result<(), ClusterProviderError> {
        match self.stop_parts(graceful).await {
            Some(MembershipExit::Aborted) => {
                let error = ClusterProviderError::Aborted;
                let (reason, observed_at) = (error.to_string(), self.clock.now());
                self.stream.publish(ClusterEvent::ShutdownFailed { reason, observed_at });
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(parts) = &self.parts {
            if let Some(follower) = &parts.follower {
                follower.abort();
            }
            // The letter box holds the gossiper, and the gossiper the way to the letter box.
            if let Some(actor) = &parts.gossip_actor {
                parts.remote.unregister(actor);
            }
            if let Some(pubsub) = &parts.pubsub {
                pubsub.stop();
            }
            if let Some(grains) = &parts.grains {
                grains.stop();
            }
            parts.remote.abort();
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("node", &self.config.node)
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}

/// What runs, in the order in which it was started.
struct Parts {
    remote: Remote,
    grains: Option<Grains>,
    pubsub: Option<PubSub>,
    gossip_actor: Option<String>,
    gossiper: Option<TokioGossiper>,
    membership: Option<MembershipHandle>,
    presence: Option<Presence>,
    follower: Option<JoinHandle<()>>,
    reporter: Option<Reporter>,
    api: Option<ApiServer>,
}

impl Parts {
    const fn new(remote: Remote) -> Self {
        Self {
            remote,
            grains: None,
            pubsub: None,
            gossip_actor: None,
            gossiper: None,
            membership: None,
            presence: None,
            follower: None,
            reporter: None,
            api: None,
        }
    }
}

enum Presence {
    Seeds(RosterTask),
    Automanaged(AutomanagedProvider),
}

fn topology_key() -> GossipKey {
    GossipKey::new(names::GOSSIP_KEY_TOPOLOGY).expect("the name of a key is a key")
}

/// Most nodes that were polled and wait to be told to membership.
const HINTS_MAX: usize = 64;
