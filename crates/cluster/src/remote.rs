//! Remoting: actors on this node, and messages between nodes.
//!
//! A [`Remote`] is a post office. It has a listener for what comes in, one association per peer for what goes out, and a
//! registry of everybody who receives mail here. It speaks protoactor-go's protocol, so its peers may be Go nodes of
//! either dialect:
//!
//! ```text
//!   send ──► local? ──► process ──► mailbox ──► Actor::receive
//!      └───► peer?  ──► link (two lanes) ──► frames ──► connection        (core::outbound decides when to connect,
//!                                                                          what waits, and what is a dead letter)
//!   listener ──► stream ──► frames ──► letters, grouped by target ──► process
//! ```
//!
//! Messages from one sender to one target keep their order and arrive at most once. What cannot be delivered becomes a
//! dead letter: it is counted, published, and answered with a `DeadLetterResponse`, so that nobody waits in vain.

mod actor;
mod associations;
mod bearer_token;
mod cell;
mod client;
mod codec;
mod config;
mod counters;
mod crew;
mod detach;
mod link;
mod mailbox;
mod memory_network;
mod message;
mod network;
mod peer_service;
mod pid;
mod post;
mod process;
mod requests;
mod server;
mod socket;
mod watches;
mod works;

pub(crate) use actor::unless_panicked;
pub use actor::{Actor, ActorContext};
pub use bearer_token::BearerToken;
pub use config::{RemoteConfig, RemoteConfigError};
pub use counters::RemoteCounters;
pub use link::Lane;
pub use memory_network::MemoryNetwork;
pub use message::{DecodeMessageError, Message, TypeName};
pub use network::Network;
pub use peer_service::PeerService;
pub use pid::Pid;
pub use process::{Letter, Process, ProcessEnded, RegisterError, SystemMessage};
pub use requests::RequestError;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use prost::Name;
use synod_core::outbound::{AssociationState, DeadLetterReason, OutboundPipeline};
use synod_core::{Authority, TimerInstant};
use synod_wire::actor::{PoisonPill, Stop, TerminatedReason};
use synod_wire::limits::ACTOR_ID_BYTES_MAX;
use synod_wire::names;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::clock::MonotonicClock;
use crate::event_stream::EventStream;
use crate::lock;
use cell::ActorCell;
use counters::add;
use link::{LaneBounds, Link, Outgoing};
use network::Listener;
use pid::AutoIds;
use process::ProcessRegistry;
use requests::{PendingRequest, PendingRequests};
use watches::Watches;
use works::Works;

/// The post office of one node. Clones are the same one. It works from
/// [`open`](Self::open) to [`shutdown`](Self::shutdown).
#[derive(Clone)]
pub struct Remote {
    inner: Arc<Inner>,
}

impl Remote {
    /// Binds the listener. Connections are taken, and opened, from [`open`](Self::open) on; until then messages wait.
    ///
    /// # Errors
    /// A setting out of range, or an address that cannot be listened on. Nothing runs then.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn bind(
        config: RemoteConfig,
        events: EventStream,
        clock: MonotonicClock,
    ) -> Result<Self, RemoteStartError> {
        config.validate()?;
        let (listener, authority) = Network::listen(&config).await?;
        let seed = config.seed.unwrap_or_else(|| RandomState::new().hash_one(authority.as_str()));
        let machine =
            OutboundPipeline::new(config.outbound.clone(), seed).map_err(RemoteConfigError::from)?;
        let address: Arc<str> = Arc::from(authority.as_str());
        let auto_ids = AutoIds::default();
        let requests = Arc::new(PendingRequests::new(config.requests_max));
        let future = auto_ids.next(names::ACTOR_PREFIX_FUTURE.trim_end_matches('$'));
        let requests_pid = Pid::new(Arc::clone(&address), future);
        let inner = Arc::new(Inner {
            bounds: LaneBounds {
                messages_max: config.lane_messages_max,
                bytes_max: config.lane_bytes_max,
                overflow: config.outbound.overflow,
            },
            processes: ProcessRegistry::new(config.processes_max),
            config,
            address,
            authority,
            listener: Mutex::new(Some(listener)),
            member_id: watch::Sender::new(None),
            blocked: RwLock::default(),
            requests,
            requests_pid,
            auto_ids,
            links: RwLock::default(),
            machine: Mutex::new(machine),
            wake_at: Mutex::default(),
            timer: Notify::new(),
            watches: Mutex::default(),
            clock,
            counters: Arc::default(),
            events,
            told: Mutex::default(),
            tasks: Mutex::default(),
            works: Works::new(),
            schema_listener: Mutex::default(),
            services: Mutex::default(),
            shutdown: watch::Sender::new(false),
            connections: AtomicU64::new(0),
        });
        // A fresh registry has room, and nobody has the name.
        let pending: Arc<dyn Process> = Arc::clone(&inner.requests) as Arc<dyn Process>;
        drop(inner.processes.add(&inner.requests_pid.shared_id(), pending));
        inner.spawn(Arc::clone(&inner).run_timer());
        Ok(Self { inner })
    }

    /// Serves `service` to peers too, on the same listener. Before [`open`](Self::open) nobody can call it.
    pub fn serve(&self, service: Arc<dyn PeerService>) {
        lock(&self.inner.services).push(service);
    }

    /// Takes and opens connections from now on. `member_id` is what peers know this life of the node by. Called again
    /// with another id it also opens the connections to peers anew, since those were told the old one.
    pub fn open(&self, member_id: &str) {
        self.inner.member_id.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(member_id);
            if is_new {
                *known = Some(Arc::from(member_id));
            }
            is_new
        });
        if let Some(listener) = lock(&self.inner.listener).take() {
            self.inner.spawn(server::accept(Arc::clone(&self.inner), listener));
        }
    }

    /// Tells `listener` which versions of the call schema each peer speaks, whenever a connection to it is opened.
    pub(crate) fn on_peer_schemas(&self, listener: Arc<SchemaListener>) {
        *lock(&self.inner.schema_listener) = Some(listener);
    }

    /// Starts an actor under a name of its own choosing.
    ///
    /// # Errors
    /// The name is taken or no name, or there are too many actors.
    pub fn spawn_named<A: Actor>(&self, id: &str, actor: A) -> Result<Pid, RegisterError> {
        check_name(id)?;
        self.spawn_actor(self.pid(id), actor)
    }

    /// Starts an actor under the next free name: `$1`, `$2`, …
    ///
    /// # Errors
    /// There are too many actors.
    pub fn spawn<A: Actor>(&self, actor: A) -> Result<Pid, RegisterError> {
        self.spawn_actor(self.pid(&self.inner.auto_ids.next("")), actor)
    }

    /// Starts an actor under `prefix` and the next free number.
    ///
    /// # Errors
    /// The prefix is no name, or there are too many actors.
    pub fn spawn_prefixed<A: Actor>(&self, prefix: &str, actor: A) -> Result<Pid, RegisterError> {
        check_name(prefix)?;
        self.spawn_actor(self.pid(&self.inner.auto_ids.next(prefix)), actor)
    }

    /// As [`spawn_prefixed`](Self::spawn_prefixed), for an actor that is made with its name.
    ///
    /// # Errors
    /// As [`spawn_prefixed`](Self::spawn_prefixed).
    pub fn spawn_prefixed_with<A: Actor>(
        &self,
        prefix: &str,
        make: impl FnOnce(Pid) -> A,
    ) -> Result<Pid, RegisterError> {
        check_name(prefix)?;
        let pid = self.pid(&self.inner.auto_ids.next(prefix));
        let actor = make(pid.clone());
        self.spawn_actor(pid, actor)
    }

    /// Enters a process that is no actor.
    ///
    /// # Errors
    /// As [`spawn_named`](Self::spawn_named).
    pub fn register(&self, id: &str, process: Arc<dyn Process>) -> Result<Pid, RegisterError> {
        check_name(id)?;
        if *self.inner.shutdown.borrow() {
            return Err(RegisterError::ShutDown);
        }
        let pid = Pid::new(Arc::clone(&self.inner.address), id);
        self.inner.processes.add(&pid.shared_id(), process)?;
        Ok(pid)
    }

    /// Takes a process out again. Returns whether there was one.
    pub fn unregister(&self, id: &str) -> bool {
        self.inner.processes.remove(id).is_some()
    }

    /// Sends a message. It returns at once: the message is in the mailbox of an actor of this node, or waits for its
    /// connection.
    ///
    /// # Errors
    /// The message was not taken for delivery. What is lost later becomes a dead letter.
    pub fn send(&self, target: &Pid, message: Message) -> Result<(), SendError> {
        self.inner.send(Lane::User, target, message)
    }

    /// Sends a message on a lane of choice.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_on(&self, lane: Lane, target: &Pid, message: Message) -> Result<(), SendError> {
        self.inner.send(lane, target, message)
    }

    /// Sends a message as soon as there is room for it. This is how to send a lot.
    ///
    /// # Errors
    /// As [`send`](Self::send), but never because a queue is full.
    pub async fn feed(&self, target: &Pid, mut message: Message) -> Result<(), SendError> {
        loop {
            message = match self.inner.try_send(Lane::User, target, message) {
                Ok(()) => return Ok(()),
                Err(Unsent::Failed(error)) => return Err(error),
                Err(Unsent::Full(message)) => message,
            };
            self.inner.room_for(target).await;
        }
    }

    /// Sends a message and waits for the answer.
    ///
    /// # Errors
    /// [`RequestError`] says whether the request may have been handled.
    pub async fn request(
        &self,
        target: &Pid,
        message: Message,
        timeout: Duration,
    ) -> Result<Message, RequestError> {
        self.request_on(Lane::User, target, message, timeout).await
    }

    /// Sends a message on a lane of choice and waits for the answer.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub async fn request_on(
        &self,
        lane: Lane,
        target: &Pid,
        message: Message,
        timeout: Duration,
    ) -> Result<Message, RequestError> {
        let answer = self.request_patiently(lane, target, message);
        let timed_out = || Err(RequestError::Timeout { target: target.clone() });
        tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| timed_out())
    }

    /// Sends a message and waits for the answer, however long that takes. For those who keep an eye on the time themselves.
    pub(crate) async fn request_patiently(
        &self,
        lane: Lane,
        target: &Pid,
        message: Message,
    ) -> Result<Message, RequestError> {
        let inner = &self.inner;
        let (id, answer) =
            inner.requests.begin().ok_or(RequestError::TooManyRequests { max: inner.config.requests_max })?;
        let _pending = PendingRequest { requests: &inner.requests, id };
        let sender = inner.requests_pid.clone().with_request_id(id);
        inner.send_and_wait(lane, target, message.with_sender(sender))?;
        match answer.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(RequestError::DeadLetter { target: target.clone() }),
            Err(_) => Err(RequestError::ShutDown { target: target.clone() }),
        }
    }

    /// Sends a message and waits for an `R`.
    ///
    /// # Errors
    /// As [`request`](Self::request), and when the answer is something else.
    pub async fn ask<R: prost::Message + Name + Default>(
        &self,
        target: &Pid,
        message: Message,
        timeout: Duration,
    ) -> Result<R, RequestError> {
        Ok(self.request(target, message, timeout).await?.decode()?)
    }

    /// Stops an actor now; what it has not read becomes dead letters.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn stop(&self, target: &Pid) -> Result<(), SendError> {
        self.send(target, Message::new(&Stop {}))
    }

    /// Stops an actor after the messages that were sent before.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn poison(&self, target: &Pid) -> Result<(), SendError> {
        self.send(target, Message::new(&PoisonPill {}))
    }

    /// Keeps an address out for a time, or until it is released.
    pub fn quarantine(&self, authority: &Authority, reason: &str, pause: Option<Duration>) {
        self.inner.quarantine(authority, reason, pause);
    }

    /// Lets an address in again.
    pub fn release(&self, authority: &Authority) {
        self.inner.release(authority);
    }

    /// The node at `authority` is gone: what waits for it becomes dead letters, and whoever watches an actor there hears
    /// of its end.
    pub fn depart(&self, authority: &Authority) {
        self.inner.depart(authority);
    }

    /// Where an address stands, and how many messages wait for it.
    #[must_use]
    pub fn association(&self, authority: &Authority) -> (AssociationState, usize) {
        self.inner.association(authority)
    }

    /// The members whose messages are ignored from now on.
    pub fn set_blocked(&self, members: BTreeSet<String>) {
        *self.inner.blocked.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(members);
    }

    /// Where peers reach this node.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.inner.authority
    }

    /// The actor `id` of this node, whether it exists or not.
    #[must_use]
    pub fn pid(&self, id: &str) -> Pid {
        Pid::new(Arc::clone(&self.inner.address), id)
    }

    /// What went over the connections.
    #[must_use]
    pub fn counters(&self) -> &RemoteCounters {
        &self.inner.counters
    }

    /// How many processes receive mail here, those of the node itself included.
    #[must_use]
    pub fn process_count(&self) -> usize {
        self.inner.processes.len()
    }

    /// How many addresses this node knows something about, as a peer's or a target's.
    #[must_use]
    pub fn peer_count(&self) -> usize {
        self.inner.links().len()
    }

    /// How many tasks run for connections, streams, and actors that have something to do.
    #[must_use]
    pub fn task_count(&self) -> usize {
        let mut tasks = lock(&self.inner.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.len() + self.inner.works.running()
    }

    /// How many requests wait for an answer.
    #[must_use]
    pub fn pending_requests(&self) -> usize {
        self.inner.requests.len()
    }

    /// Ends all actors, sends what is queued (at most for `patience`), says goodbye to the peers and releases everything.
    /// Returns whether everything ended in time; what did not was cut off. Harmless when it is shut down.
    pub async fn shutdown(&self, patience: Duration) -> bool {
        let inner = &self.inner;
        let deadline = tokio::time::Instant::now() + patience;
        for process in inner.processes.all() {
            // What has ended already needs no telling.
            drop(process.tell(SystemMessage::Stop));
        }
        let flushed = tokio::time::timeout_at(deadline, inner.flushed()).await.is_ok();
        inner.shutdown.send_replace(true);
        let mut tasks = std::mem::take(&mut *lock(&inner.tasks));
        let ended = tokio::time::timeout_at(deadline + GOODBYE, async {
            while tasks.join_next().await.is_some() {}
            inner.works.all_ended().await;
        });
        let ended = ended.await.is_ok();
        tasks.shutdown().await;
        inner.works.cut();
        // Actors hold their node, and it them.
        inner.processes.clear();
        *lock(&inner.schema_listener) = None;
        flushed && ended
    }

    /// A part of this node was sent something that it does not take.
    pub(crate) fn refuse_message(&self, peer: &str, problem: &str) {
        add(&self.inner.counters.messages_refused, 1);
        self.inner.refuse(peer, problem);
    }

    /// Ends everything at once, without a word to anybody.
    pub(crate) fn abort(&self) {
        self.inner.shutdown.send_replace(true);
        lock(&self.inner.tasks).abort_all();
        self.inner.works.cut();
        self.inner.processes.clear();
        *lock(&self.inner.schema_listener) = None;
    }

    fn spawn_actor<A: Actor>(&self, pid: Pid, actor: A) -> Result<Pid, RegisterError> {
        if *self.inner.shutdown.borrow() {
            return Err(RegisterError::ShutDown);
        }
        let cell = ActorCell::new(self.clone());
        self.inner.processes.add(&pid.shared_id(), Arc::clone(&cell) as Arc<dyn Process>)?;
        cell.begin(pid.clone(), actor);
        Ok(pid)
    }

    fn watch(&self, watcher: &Pid, other: &Pid) {
        self.inner.watch(watcher, other);
    }

    fn unwatch(&self, watcher: &Pid, other: &Pid) {
        self.inner.unwatch(watcher, other);
    }

    fn tell_terminated(&self, watcher: &Pid, who: &Pid, why: TerminatedReason) {
        self.inner.tell_terminated(watcher, who, why);
    }

    fn bury(&self, target: &Pid, message: &Message, reason: &DeadLetterReason) {
        self.inner.bury(target, message, reason);
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("authority", &self.inner.authority)
            .field("processes", &self.inner.processes)
            .finish_non_exhaustive()
    }
}

/// A message was not taken for delivery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The address of the target is not a canonical `host:port`.
    #[error("{address:?} is no host:port in its usual spelling; nothing was sent")]
    InvalidAddress {
        /// The address.
        address: String,
    },
    /// There is no room, no such actor, or no way. The sender is told here instead of by a dead letter.
    #[error("a message to {target} was not taken: {reason:?}")]
    Refused {
        /// The target.
        target: Pid,
        /// Why.
        reason: DeadLetterReason,
    },
    /// The node has shut down.
    #[error("the node has shut down; nothing was sent")]
    ShutDown,
}

/// A node was not started. Nothing runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteStartError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] RemoteConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {reason}; nothing was started")]
    Bind {
        /// The address.
        address: String,
        /// What the system says.
        reason: String,
    },
}

/// A message that was not sent, before anybody was told.
enum Unsent {
    Failed(SendError),
    Full(Message),
}

/// Which messages concern an actor itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SystemKind {
    Stop,
    Terminated,
    Unwatch,
    User,
    Watch,
}

impl SystemKind {
    fn of(type_name: &str) -> Self {
        match type_name {
            names::STOP => Self::Stop,
            names::TERMINATED => Self::Terminated,
            names::UNWATCH => Self::Unwatch,
            names::WATCH => Self::Watch,
            _ => Self::User,
        }
    }
}

/// Hears which versions of the call schema a peer speaks.
pub(crate) type SchemaListener = dyn Fn(&Authority, &[u32]) + Send + Sync;

/// Everything behind the handles and tasks of a node.
struct Inner {
    config: RemoteConfig,
    bounds: LaneBounds,
    address: Arc<str>,
    authority: Authority,
    /// Until the node is opened.
    listener: Mutex<Option<Listener>>,
    /// Known once the node is opened.
    member_id: watch::Sender<Option<Arc<str>>>,
    blocked: RwLock<Arc<BTreeSet<String>>>,
    processes: ProcessRegistry,
    requests: Arc<PendingRequests>,
    requests_pid: Pid,
    auto_ids: AutoIds,
    links: RwLock<HashMap<Arc<str>, Arc<Link>>>,
    /// Taken before the lock of a lane, never after.
    machine: Mutex<OutboundPipeline<Outgoing>>,
    wake_at: Mutex<Option<TimerInstant>>,
    timer: Notify,
    watches: Mutex<Watches>,
    clock: MonotonicClock,
    counters: Arc<RemoteCounters>,
    events: EventStream,
    told: Mutex<Told>,
    /// The connections and streams.
    tasks: Mutex<JoinSet<()>>,
    works: Works,
    schema_listener: Mutex<Option<Arc<SchemaListener>>>,
    services: Mutex<Vec<Arc<dyn PeerService>>>,
    shutdown: watch::Sender<bool>,
    connections: AtomicU64,
}

/// How many dead letters and refusals were published lately.
#[derive(Debug, Default)]
struct Told {
    since: Option<TimerInstant>,
    count: usize,
}

/// Waits for the end of the node.
async fn shut_down(shutdown: &mut watch::Receiver<bool>) {
    // The sender lives as long as the node; without it there is nothing left to wait for.
    drop(shutdown.wait_for(|down| *down).await);
}

fn check_name(id: &str) -> Result<(), RegisterError> {
    let problem = if id.is_empty() {
        "it is empty"
    } else if id.len() > ACTOR_ID_BYTES_MAX {
        "it is too long"
    } else if id.starts_with(names::ACTOR_PREFIX_FUTURE) || id.starts_with(names::ACTOR_PREFIX_GUARDIAN) {
        "it belongs to requests and guardians"
    } else if id.chars().any(char::is_control) {
        "it has a control character"
    } else {
        return Ok(());
    };
    Err(RegisterError::InvalidName { id: id.to_owned(), problem })
}

/// What a node says it runs.
const RUNTIME: &str = concat!("synod/", env!("CARGO_PKG_VERSION"));
/// What the goodbyes of a shutdown may take besides the patience for what is queued.
const GOODBYE: Duration = Duration::from_secs(3);
