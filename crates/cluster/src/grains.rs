//! Grains: actors that are always there.
//!
//! A grain has a kind and an identity, and nobody starts it. Whoever calls it computes which member hosts it, asks that
//! member where it runs (which starts it if it does not) and remembers the answer. When the member is gone another one
//! hosts it, and the next call finds it there.
//!
//! ```text
//!   GrainRef::call ──► GrainRpcRouter ──► PidCache ──► owner by rendezvous ──► its activator ──► VirtualActorRegistry
//!                          │  turn, deadline, retries                                               │ Spawn
//!                          └──────────────── GrainRequest ───────────────────────────► GrainActor ◄─┘
//! ```
//!
//! The protocol is protoactor-go's, so a grain may live on a Go node and be called from Rust, and the other way round.
//!
//! The short way to write one is a trait with [`#[grain]`](crate::grain) on it. [`Grain`] and [`GrainRef`] are what lies
//! below: calls by position, and bytes.

mod broadcast;
mod caller;
mod calls;
#[doc(hidden)]
pub mod codec;
mod config;
mod error;
mod grain;
mod handover;
mod host;
mod service;
mod timers;

pub use broadcast::{Audience, Broadcast, Broadcasts};
pub use caller::GrainRef;
pub use config::{GrainsConfig, GrainsConfigError, GrainsStartError};
pub use error::{CallError, GrainError};
pub use grain::{Grain, GrainContext, GrainKind};
pub use service::GrainService;
#[doc(hidden)]
pub use service::generated;
pub use synod_core::grains::{ClusterIdentity, GrainSnapshot, IdentityError, RetryPolicy};
pub use timers::{TIMER_MAX, TIMER_NAME_BYTES_MAX, TIMERS_MAX, TimerError};

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use synod_core::Authority;
use synod_core::gossip::GossipMemberId;
use synod_core::grains::{
    ActivationCommand, ActivationId, ActivationOutcome, ActivationRefusal, ActorPid, AttemptFailure,
    CallCounts, ClaimId, ClusterView, CorrelationId, GrainEvent, GrainHost, HandoverCounts, LatencyHistogram,
    PidCache, PidCacheCounts, PidError, ResolveResult, Resolver, RouterCommand, RouterOutcome, ViewVersion,
    VirtualActorRegistry,
};
use synod_core::membership::ClusterEvent;
use synod_core::roster::{RosterMember, RosterUpdate};
use synod_core::time::TimerInstant;
use synod_wire::actor::Touch;
use synod_wire::cluster::{self as wire, ActivationResponse, ActivationTerminated};
use synod_wire::names;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::clock::MonotonicClock;
use crate::event_stream::EventStream;
use crate::gossiper::ActorStatisticsSource;
use crate::lock;
use crate::membership::MembershipView;
use crate::pubsub::{PubSub, WeakPubSub};
use crate::remote::{Lane, Message, Pid, Remote};
use broadcast::BroadcastBoard;
use calls::Calls;
use handover::HandoverMessage;
use host::{Activator, Announcements, GrainActor};
pub(crate) use host::{actor_pid, remote_pid};

/// The grains of a cluster, as one node sees them. Clones are the same.
#[derive(Clone)]
pub struct Grains {
    inner: Arc<Inner>,
}

struct Inner {
    remote: Remote,
    clock: MonotonicClock,
    stream: EventStream,
    config: GrainsConfig,
    kinds: HashMap<String, GrainKind>,
    registry: Mutex<VirtualActorRegistry<Asker>>,
    calls: Calls,
    /// What travels beside calls that have this many milliseconds left; most have the same.
    deadline_headers: RwLock<Option<(u64, Headers)>>,
    cache: Mutex<PidCache>,
    members: RwLock<Arc<[RosterMember]>>,
    resolver: Mutex<Resolver>,
    membership: Mutex<Arc<MembershipView>>,
    /// Told after everything was done that a roster asks for.
    followed: watch::Sender<()>,
    /// When the first of the machines wants to be polled, in nanoseconds.
    wake_at: AtomicU64,
    timer: Notify,
    drained: watch::Sender<bool>,
    broadcasts: BroadcastBoard,
    pubsub: Mutex<Option<WeakPubSub>>,
    tick: Mutex<Option<JoinHandle<()>>>,
}

/// Who asked where a grain runs.
#[derive(Clone, Debug)]
pub(in crate::grains) enum Asker {
    /// A call of this node.
    Call(CorrelationId),
    /// Another node, which waits for the answer there.
    Peer(Pid),
}

impl Grains {
    /// Opens the door for grains on `remote`, as the member `own`. It hosts `kinds`, once it has seen a roster.
    ///
    /// # Errors
    /// A setting that cannot be used, or a name that is taken.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(
        config: GrainsConfig,
        kinds: Vec<GrainKind>,
        own: GossipMemberId,
        remote: &Remote,
        stream: EventStream,
        clock: MonotonicClock,
    ) -> Result<Self, GrainsStartError> {
        config.validate()?;
        let kind_configs = kinds.iter().map(|kind| kind.config.clone()).collect();
        let own = GrainHost { id: own, authority: remote.authority().clone() };
        let registry = VirtualActorRegistry::new(own, kind_configs, config.activation.clone())
            .map_err(GrainsConfigError::from)?;
        let seed = config.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let calls = Calls::new(&config.router, seed).map_err(GrainsConfigError::from)?;
        let cache = PidCache::new(config.cache.clone()).map_err(GrainsConfigError::from)?;
        let grains = Self {
            inner: Arc::new(Inner {
                remote: remote.clone(),
                clock,
                stream,
                config,
                kinds: kinds.into_iter().map(|kind| (kind.name().to_owned(), kind)).collect(),
                registry: Mutex::new(registry),
                calls,
                deadline_headers: RwLock::default(),
                cache: Mutex::new(cache),
                members: RwLock::new(Arc::from([])),
                resolver: Mutex::default(),
                membership: Mutex::default(),
                followed: watch::Sender::default(),
                wake_at: AtomicU64::new(u64::MAX),
                timer: Notify::new(),
                drained: watch::Sender::new(false),
                broadcasts: BroadcastBoard::default(),
                pubsub: Mutex::default(),
                tick: Mutex::default(),
            }),
        };
        remote.register(names::ACTOR_PARTITION_ACTIVATOR, Arc::new(Activator(grains.clone())))?;
        if let Err(error) =
            remote.register(names::ACTOR_EVENT_STREAM, Arc::new(Announcements(grains.clone())))
        {
            remote.unregister(names::ACTOR_PARTITION_ACTIVATOR);
            return Err(error.into());
        }
        let inner = Arc::downgrade(&grains.inner);
        remote.on_peer_schemas(Arc::new(move |peer, offered| {
            if let Some(inner) = inner.upgrade() {
                let grains = Self { inner };
                grains.perform_calls(grains.inner.calls.handle_peer_schemas(peer, offered));
            }
        }));
        let ticking = tokio::spawn(grains.clone().run_timer());
        *lock(&grains.inner.tick) = Some(ticking);
        Ok(grains)
    }

    /// A client of the grain of this service and identity, whether it runs or not.
    ///
    /// # Errors
    /// The identity does not name a grain.
    pub fn grain<S: GrainService>(&self, identity: &str) -> Result<S::Client, IdentityError> {
        Ok(S::client(self.grain_ref(S::KIND, identity)?))
    }

    /// The grain of this kind and identity, whether it runs or not, for calls without types.
    ///
    /// # Errors
    /// Kind and identity do not name a grain.
    pub fn grain_ref(&self, kind: &str, identity: &str) -> Result<GrainRef, IdentityError> {
        Ok(GrainRef::new(self.clone(), ClusterIdentity::new(kind, identity)?))
    }

    /// Starts nothing any more, stops every grain of this node and waits until each has ended and its state has arrived at
    /// its next host, at most for `patience`. Returns whether that came about.
    pub async fn drain(&self, patience: Duration) -> bool {
        let outcome = lock(&self.inner.registry).handle_leave(self.inner.clock.now());
        self.perform_activation(outcome);
        let mut drained = self.inner.drained.subscribe();
        tokio::time::timeout(patience, drained.wait_for(|drained| *drained)).await.is_ok()
    }

    /// Closes the door. Calls that wait fail, and so do all that are made from now on.
    pub fn stop(&self) {
        self.inner.remote.unregister(names::ACTOR_PARTITION_ACTIVATOR);
        self.inner.remote.unregister(names::ACTOR_EVENT_STREAM);
        if let Some(ticking) = lock(&self.inner.tick).take() {
            ticking.abort();
        }
        self.inner.calls.stop();
    }

    /// The members are these now.
    pub fn handle_roster(&self, update: &RosterUpdate) {
        let members: Arc<[RosterMember]> = update.members.as_slice().into();
        *self.inner.members.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&members);
        self.renew_view();
        let placement = self.inner.config.activation.placement;
        let dropped = lock(&self.inner.cache).handle_roster(&members, placement);
        self.publish_drops(dropped.dropped);
        let outcome = lock(&self.inner.registry).handle_roster(&members, self.inner.clock.now());
        self.perform_activation(outcome);
        let kept: Vec<_> = lock(&self.inner.registry).kept().cloned().collect();
        for grain in kept {
            self.start_with_state(&grain);
        }
        for gone in &update.left {
            if !members.iter().any(|member| member.authority == gone.authority) {
                let now = self.inner.clock.now();
                for outcome in
                    self.inner.calls.decide_all(|router| router.handle_peer_gone(&gone.authority, now))
                {
                    self.perform_calls(outcome);
                }
            }
        }
        self.inner.followed.send_replace(());
    }

    /// How the members stand, and who is kept out.
    pub(crate) fn handle_membership(&self, view: &Arc<MembershipView>) {
        *lock(&self.inner.membership) = Arc::clone(view);
        self.renew_view();
    }

    /// An address is kept out from now on, or was let in again.
    pub(crate) fn handle_quarantine(&self, authority: &Authority) {
        let outcome = lock(&self.inner.cache).handle_authority_invalid(authority);
        self.publish_drops(outcome.dropped);
    }

    pub(crate) fn set_pubsub(&self, pubsub: WeakPubSub) {
        *lock(&self.inner.pubsub) = Some(pubsub);
    }

    pub(crate) fn pubsub(&self) -> Option<PubSub> {
        lock(&self.inner.pubsub).as_ref()?.upgrade()
    }

    /// Whether the actor with this PID can be reached, going by the newest view of the cluster.
    ///
    /// # Errors
    /// The text is not the PID of anything that could be a grain.
    pub fn resolve(&self, pid: &str) -> Result<ResolveResult, PidError> {
        lock(&self.inner.resolver).resolve(pid)
    }

    /// Puts together what the roster and the membership say, under a new number.
    fn renew_view(&self) {
        let members = self.members();
        // One at a time, so that a later view has a higher number.
        let mut resolver = lock(&self.inner.resolver);
        let membership = Arc::clone(&lock(&self.inner.membership));
        let version = ViewVersion(resolver.view().version().0 + 1);
        let view = ClusterView::new(version, &members, &membership.records.records, &membership.quarantine);
        // It is newer by one.
        resolver.handle_view(view).ok();
    }

    /// This node goes on under another id.
    pub fn handle_rejoin(&self, own: GossipMemberId) {
        lock(&self.inner.registry).handle_rejoin(own);
    }

    /// How calls of this node have fared.
    #[must_use]
    pub fn call_counts(&self) -> CallCounts {
        self.inner.calls.counts()
    }

    /// How long answered calls of this node took.
    #[must_use]
    pub fn latencies(&self) -> LatencyHistogram {
        self.inner.calls.latencies()
    }

    /// How the memory of found grains has served.
    #[must_use]
    pub fn cache_counts(&self) -> PidCacheCounts {
        lock(&self.inner.cache).counts()
    }

    /// How many grains run on this node, by kind.
    #[must_use]
    pub fn activation_counts(&self) -> BTreeMap<String, usize> {
        lock(&self.inner.registry).counts().map(|(kind, count)| (kind.to_owned(), count)).collect()
    }

    /// The members as calls see them.
    pub(crate) fn members(&self) -> Arc<[RosterMember]> {
        Arc::clone(&self.inner.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes whenever [`members`](Self::members) may have.
    pub(crate) fn followed(&self) -> watch::Receiver<()> {
        self.inner.followed.subscribe()
    }

    /// How grains have come to this node and gone from it.
    #[must_use]
    pub fn handover_counts(&self) -> HandoverCounts {
        lock(&self.inner.registry).handover_counts()
    }

    pub(crate) fn remote(&self) -> &Remote {
        &self.inner.remote
    }

    /// Why nothing may be sent to `pid`, if so.
    pub(in crate::grains) fn obstacle(&self, pid: &ActorPid) -> Option<AttemptFailure> {
        match lock(&self.inner.resolver).resolve_pid(pid.clone()) {
            ResolveResult::Ready { .. } => None,
            ResolveResult::Unreachable { authority, .. } => Some(AttemptFailure::Unreachable(authority)),
            ResolveResult::Quarantine { authority, .. } => Some(AttemptFailure::Quarantined(authority)),
        }
    }

    /// Where `grain` was found last, if that is remembered.
    pub(in crate::grains) fn recall(&self, grain: &ClusterIdentity, now: TimerInstant) -> Option<ActorPid> {
        let (found, outcome) = lock(&self.inner.cache).get(grain, now);
        self.publish_drops(outcome.dropped);
        found
    }

    /// Where `grain` runs: a place that is remembered, or the member to ask.
    pub(in crate::grains) fn look_up(
        &self,
        grain: &ClusterIdentity,
    ) -> Result<ActorPid, Option<RosterMember>> {
        if let Some(pid) = self.recall(grain, self.inner.clock.now()) {
            return Ok(pid);
        }
        let members = self.members();
        Err(self.inner.config.activation.placement.owner(grain, members.iter()).cloned())
    }

    pub(in crate::grains) fn remember(
        &self,
        grain: &ClusterIdentity,
        pid: &ActorPid,
        member: GossipMemberId,
    ) {
        let now = self.inner.clock.now();
        let outcome = lock(&self.inner.cache).insert(grain, pid.clone(), member, now);
        self.wake(outcome.wake_at);
        self.publish_drops(outcome.dropped);
    }

    /// The activation is over, somebody says.
    pub(in crate::grains) fn forget(&self, grain: &ClusterIdentity, pid: &ActorPid) {
        let outcome = lock(&self.inner.cache).handle_failed(grain, pid);
        self.publish_drops(outcome.dropped);
    }

    /// What travels beside a call that has `remaining` left, and nothing else to say.
    pub(in crate::grains) fn deadline_headers(&self, remaining: Duration) -> Headers {
        let millis = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
        let known = &self.inner.deadline_headers;
        if let Some((of, headers)) = &*known.read().unwrap_or_else(PoisonError::into_inner)
            && *of == millis
        {
            return Arc::clone(headers);
        }
        let headers = Arc::new(BTreeMap::from([(HEADER_DEADLINE.to_owned(), millis.to_string())]));
        *known.write().unwrap_or_else(PoisonError::into_inner) = Some((millis, Arc::clone(&headers)));
        headers
    }

    pub(in crate::grains) fn ask_registry(&self, grain: &ClusterIdentity, asker: Asker) {
        let now = self.inner.clock.now();
        let outcome = lock(&self.inner.registry).handle_activation_request(grain, asker, now);
        self.perform_activation(outcome);
    }

    pub(in crate::grains) fn spawned(
        &self,
        grain: &ClusterIdentity,
        activation: ActivationId,
        pid: ActorPid,
    ) {
        let now = self.inner.clock.now();
        let outcome = lock(&self.inner.registry).handle_spawned(grain, activation, pid, now);
        self.perform_activation(outcome);
    }

    pub(in crate::grains) fn spawn_failed(
        &self,
        grain: &ClusterIdentity,
        activation: ActivationId,
        reason: &str,
    ) {
        let outcome = lock(&self.inner.registry).handle_spawn_failed(grain, activation, reason);
        self.perform_activation(outcome);
    }

    pub(in crate::grains) fn terminated(
        &self,
        grain: &ClusterIdentity,
        pid: &ActorPid,
        snapshot: Option<GrainSnapshot>,
    ) {
        let now = self.inner.clock.now();
        let outcome = lock(&self.inner.registry).handle_terminated(grain, pid, snapshot, now);
        self.forget(grain, pid);
        self.perform_activation(outcome);
    }

    /// Another node says something about a grain that changes its host.
    pub(in crate::grains) fn take_handover(&self, message: HandoverMessage) {
        let now = self.inner.clock.now();
        let relocated = match &message {
            HandoverMessage::Relocation(record) => Some(record.grain.clone()),
            _ => None,
        };
        let mut registry = lock(&self.inner.registry);
        let outcome = match message {
            HandoverMessage::Claim(claim) => registry.handle_claim(claim, now),
            HandoverMessage::Outdated { grain, claim, by } => registry.handle_outdated(&grain, &claim, &by),
            HandoverMessage::Relocation(record) => registry.handle_relocation(record, now),
            HandoverMessage::Receipt(receipt) => registry.handle_receipt(&receipt),
        };
        drop(registry);
        self.perform_activation(outcome);
        if let Some(grain) = relocated {
            self.start_with_state(&grain);
        }
    }

    /// Starts a grain whose state is here, if its kind is like that and this is where it belongs.
    fn start_with_state(&self, grain: &ClusterIdentity) {
        let is_eager = self.inner.kinds.get(grain.kind()).is_some_and(|kind| kind.starts_with_state);
        let members = self.members();
        let owner = self.inner.config.activation.placement.owner(grain, members.iter());
        if is_eager && owner.is_some_and(|owner| owner.authority == *self.inner.remote.authority()) {
            let grain = GrainRef::new(self.clone(), grain.clone());
            // The next roster, or the next call, tries again.
            tokio::spawn(async move { drop(grain.request(Message::new(&Touch {})).await) });
        }
    }

    pub(in crate::grains) fn make(&self, grain: &ClusterIdentity) -> Option<Box<dyn grain::AnyGrain>> {
        self.inner.kinds.get(grain.kind()).map(|kind| (kind.factory)(grain))
    }

    /// Largest snapshot that is kept or handed over, in bytes.
    pub(crate) fn snapshot_bytes_max(&self) -> usize {
        self.inner.config.activation.snapshot_bytes_max
    }

    fn perform_activation(&self, outcome: ActivationOutcome<Asker>) {
        for event in outcome.events {
            if event == synod_core::grains::ActivationEvent::Drained {
                self.inner.drained.send_replace(true);
            }
            self.publish(GrainEvent::Activation(event));
        }
        for command in outcome.commands {
            self.perform_command(command);
        }
        for reply in outcome.replies {
            match reply.to {
                Asker::Call(correlation) => self.resolved_here(correlation, &reply.grain, reply.result),
                Asker::Peer(peer) => self.answer_peer(&peer, reply.result),
            }
        }
        self.wake(outcome.wake_at);
    }

    fn perform_command(&self, command: ActivationCommand) {
        match command {
            ActivationCommand::Spawn { grain, activation, snapshot } => {
                self.spawn(&grain, activation, snapshot);
            }
            // What it was sent before is still done; its actor reports the end.
            ActivationCommand::Stop { grain, pid, .. } => {
                if self.inner.remote.poison(&remote_pid(&pid)).is_err() {
                    self.terminated(&grain, &pid, None);
                }
            }
            ActivationCommand::Claim { to, claim } => self.tell(&to, &HandoverMessage::Claim(claim)),
            ActivationCommand::Outdated { to, grain, number } => {
                let by = lock(&self.inner.registry).own().id.clone();
                let claim = ClaimId { claimer: to.id.clone(), number };
                self.tell(&to, &HandoverMessage::Outdated { grain, claim, by });
            }
            ActivationCommand::Transfer { to, record } => {
                self.tell(&to, &HandoverMessage::Relocation(record));
            }
            ActivationCommand::Confirm { to, receipt } => self.tell(&to, &HandoverMessage::Receipt(receipt)),
            ActivationCommand::Announce { grain, pid } => self.announce(&grain, &pid),
        }
    }

    fn tell(&self, host: &GrainHost, message: &HandoverMessage) {
        let activator = Pid::new(host.authority.as_str(), names::ACTOR_PARTITION_ACTIVATOR);
        // The machine says it again if it matters; a loss now costs time.
        if let Err(error) = self.inner.remote.send(&activator, message.write()) {
            tracing::debug!(to = %host.id, %error, "a word about a grain that changes its host was not sent");
        }
    }

    fn spawn(&self, grain: &ClusterIdentity, activation: ActivationId, snapshot: Option<GrainSnapshot>) {
        let Some(instance) = self.make(grain) else {
            return self.spawn_failed(grain, activation, "its kind is not hosted here");
        };
        let prefix = format!("{}/{}", names::ACTOR_PARTITION_ACTIVATOR, grain.identity());
        let grains = self.clone();
        let spawned = self.inner.remote.spawn_prefixed_with(&prefix, |own| {
            GrainActor::new(grains, grain.clone(), activation, instance, own, snapshot)
        });
        if let Err(error) = spawned {
            self.spawn_failed(grain, activation, &error.to_string());
        }
    }

    fn answer_peer(&self, peer: &Pid, result: Result<ActorPid, ActivationRefusal>) {
        let response = match result {
            Ok(pid) => {
                let pid = Some((&remote_pid(&pid)).into());
                ActivationResponse { pid, failed: false, topology_hash: 0 }
            }
            Err(refusal) => {
                tracing::debug!(%refusal, "a request for a grain was refused");
                ActivationResponse { pid: None, failed: true, topology_hash: 0 }
            }
        };
        // Who asked may be gone; then nobody needs the answer.
        drop(self.inner.remote.send(peer, Message::new(&response)));
    }

    fn announce(&self, grain: &ClusterIdentity, pid: &ActorPid) {
        let identity =
            wire::ClusterIdentity { identity: grain.identity().to_owned(), kind: grain.kind().to_owned() };
        let terminated =
            ActivationTerminated { pid: Some((&remote_pid(pid)).into()), cluster_identity: Some(identity) };
        let message = Message::new(&terminated);
        let members = self.members();
        for member in members.iter().filter(|member| member.authority != *self.inner.remote.authority()) {
            let target = Pid::new(member.authority.as_str(), names::ACTOR_EVENT_STREAM);
            // Who misses it finds out with the next call.
            drop(self.inner.remote.send_on(Lane::User, &target, message.clone()));
        }
    }

    fn resolved_here(
        &self,
        correlation: CorrelationId,
        grain: &ClusterIdentity,
        result: Result<ActorPid, ActivationRefusal>,
    ) {
        let now = self.inner.clock.now();
        let outcome = match result {
            Ok(pid) => {
                let members = self.members();
                let host = members.iter().find(|member| member.authority == *pid.authority());
                if let Some(host) = host {
                    self.remember(grain, &pid, host.id.clone());
                }
                self.inner.calls.tell(correlation, |router| router.handle_resolved(correlation, pid, now))
            }
            Err(refusal) => {
                let failure = AttemptFailure::ActivationRefused(refusal.to_string());
                self.inner.calls.tell(correlation, |router| router.handle_failure(correlation, failure, now))
            }
        };
        self.perform_calls(outcome);
    }

    pub(in crate::grains) fn perform_calls(&self, outcome: RouterOutcome) {
        for event in outcome.events {
            self.publish(GrainEvent::Router(event));
        }
        for ended in outcome.ended {
            if !matches!(ended.end, synod_core::grains::CallEnd::Completed { .. }) {
                self.publish(GrainEvent::CallFailed(ended));
            }
        }
        for command in outcome.commands {
            // What concerns a call has reached it.
            if let RouterCommand::Evict { grain, pid, .. } = command {
                self.forget(&grain, &pid);
            }
        }
        self.wake(outcome.wake_at);
    }

    fn publish(&self, event: GrainEvent) {
        self.inner.stream.publish(ClusterEvent::Grain { event, observed_at: self.inner.clock.now() });
    }

    fn publish_drops(&self, dropped: Vec<synod_core::grains::DroppedPid>) {
        for dropped in dropped {
            self.publish(GrainEvent::PidDropped(dropped));
        }
    }

    /// Notes when a machine wants to be polled. Once noted it stays until then: most calls end before, and polling for
    /// nothing now and then costs less than keeping books.
    fn wake(&self, at: Option<TimerInstant>) {
        let Some(at) = at else { return };
        let at = u64::try_from(at.saturating_since(TimerInstant::ZERO).as_nanos()).unwrap_or(u64::MAX);
        if at < self.inner.wake_at.load(Ordering::Relaxed)
            && at < self.inner.wake_at.fetch_min(at, Ordering::SeqCst)
        {
            self.inner.timer.notify_one();
        }
    }

    async fn run_timer(self) {
        loop {
            let next = match self.inner.wake_at.load(Ordering::SeqCst) {
                u64::MAX => None,
                nanos => Some(TimerInstant::ZERO + Duration::from_nanos(nanos)),
            };
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(self.inner.clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.inner.timer.notified() => continue,
                () = due => {}
            }
            let now = self.inner.clock.now();
            if next.is_some_and(|at| at > now) {
                continue;
            }
            // Whoever still waits for a time says so again.
            self.inner.wake_at.store(u64::MAX, Ordering::SeqCst);
            let outcome = lock(&self.inner.registry).poll(now);
            self.perform_activation(outcome);
            for outcome in self.inner.calls.decide_all(|router| router.poll(now)) {
                self.perform_calls(outcome);
            }
            let outcome = lock(&self.inner.cache).poll(now);
            self.wake(outcome.wake_at);
            self.publish_drops(outcome.dropped);
        }
    }
}

impl ActorStatisticsSource for Grains {
    fn actor_count(&self) -> BTreeMap<String, i64> {
        let counts = self.activation_counts();
        counts.into_iter().map(|(kind, count)| (kind, i64::try_from(count).unwrap_or(i64::MAX))).collect()
    }
}

impl fmt::Debug for Grains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grains").field("activations", &self.activation_counts()).finish_non_exhaustive()
    }
}

type Headers = Arc<BTreeMap<String, String>>;

/// How long the caller still waits, in milliseconds.
const HEADER_DEADLINE: &str = "synod-deadline-ms";
/// Who calls whom, up to this call, a line each.
const HEADER_CHAIN: &str = "synod-chain";
