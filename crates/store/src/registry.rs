//! The slot registry of a running node: the machine, its disk, its peers and its timer, in one task.
//!
//! ```text
//!   peers ──► deliver ──┐                             ┌──► events
//!   clients ► request ──┼──► SlotRegistry ──► disk ───┼──► gossip (memberlist)
//!   membership, gossip ─┘    (all that waits)         └──► peers, answers
//! ```
//!
//! The task takes all that waits, lets the machine decide, writes what it wants written with one sync, and only then lets
//! anybody hear of it. A disk that fails ends the task: nothing that was not written may be told, and nothing can be
//! written any more.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_cluster::MonotonicClock;
use synod_cluster::remote::BearerToken;
use synod_core::slots::{
    Answer, BootstrapState, ClusterId, Envelope, EnvelopeBody, NodeRecord, RegistryCounters, RegistryOutcome,
    RequestError, RequestId, Restored, SlotEvent, SlotId, SlotMessage, SlotRecord, SlotRegistry,
    SlotRegistryConfig, SlotView, Standing,
};
use synod_core::{Authority, MemberId, NodeId, TimerInstant};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::codec;
use crate::files::{Entry, FilesError, RegistryFiles};
use crate::lock;
use crate::peers::Peers;
use crate::register::{self, RegisterAnswer, RegisterError, RegisterOperation};

/// Sends gossip to everyone, as far as it gets.
pub(crate) trait Broadcast: Send + Sync + 'static {
    fn broadcast(&self, payload: &[u8]);
}

/// What a registry is started with.
pub(crate) struct RegistryParts {
    pub(crate) own: MemberId,
    pub(crate) address: Authority,
    pub(crate) instance: u64,
    pub(crate) bootstrap: Arc<BootstrapState>,
    pub(crate) config: SlotRegistryConfig,
    pub(crate) restored: Restored,
    pub(crate) files: Arc<RegistryFiles>,
    pub(crate) gossip: Option<Arc<dyn Broadcast>>,
    pub(crate) clock: MonotonicClock,
    pub(crate) unix_millis_at_zero: u64,
    pub(crate) seed: u64,
    pub(crate) token: BearerToken,
}

/// A handle to a running registry. Clones are the same one.
#[derive(Clone, Debug)]
pub struct RegistryHandle {
    commands: mpsc::Sender<Command>,
    machine: Arc<Mutex<SlotRegistry>>,
    peers: Arc<Peers>,
    events: broadcast::Sender<SlotEvent>,
    exit: watch::Receiver<Option<RegistryExit>>,
    cluster: ClusterId,
    clock: MonotonicClock,
    refused_envelopes: Arc<AtomicU64>,
}

/// Why a registry ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryExit {
    /// It was stopped.
    Stopped,
    /// Its disk failed. Nothing was told that was not written.
    DiskFailed {
        /// What went wrong.
        reason: String,
    },
    /// Another process took the name of the node over.
    NameTaken {
        /// The other life.
        by: MemberId,
    },
}

impl fmt::Display for RegistryExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("it was stopped"),
            Self::DiskFailed { reason } => write!(f, "its disk failed: {reason}"),
            Self::NameTaken { by } => write!(f, "the name of this node was taken over by {by}"),
        }
    }
}

impl RegistryHandle {
    /// Starts the registry of a node.
    pub(crate) async fn start(parts: RegistryParts) -> Result<Self, RegistryStartError> {
        let RegistryParts {
            own,
            address,
            instance,
            bootstrap,
            config,
            restored,
            files,
            gossip,
            clock,
            token,
            ..
        } = parts;
        let cluster = bootstrap.cluster_id();
        let mut ways = Vec::new();
        for node in bootstrap.nodes.iter().filter(|node| node.node != own.node) {
            let peer = node.peer().map_err(|error| RegistryStartError::Address(error.to_string()))?;
            ways.push((node.node.clone(), peer));
        }
        let peers = Peers::start(cluster, &own, ways, token)
            .map_err(|error| RegistryStartError::Address(error.to_string()))?;
        let peers = Arc::new(peers);
        let (machine, first) = SlotRegistry::start(
            own,
            address,
            instance,
            bootstrap,
            config,
            restored,
            parts.unix_millis_at_zero,
            parts.seed,
            clock.now(),
        )?;
        let machine = Arc::new(Mutex::new(machine));
        let (commands, waiting) = mpsc::channel(COMMANDS_MAX);
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let (exit, exited) = watch::channel(None);
        let mut task = RegistryTask {
            machine: Arc::clone(&machine),
            cluster,
            files,
            gossip,
            peers: Arc::clone(&peers),
            events: events.clone(),
            requests: HashMap::new(),
            clock,
            wake_at: None,
            snapshot: None,
        };
        task.carry_out(vec![first]).await?;
        tokio::spawn(async move {
            let ended = task.run(waiting).await;
            // Everybody who is interested has a receiver; nobody may be.
            exit.send_replace(Some(ended));
        });
        Ok(Self {
            commands,
            machine,
            peers,
            events,
            exit: exited,
            cluster,
            clock,
            refused_envelopes: Arc::default(),
        })
    }

    /// Messages of the registry of `from`.
    pub(crate) async fn deliver(
        &self,
        from: MemberId,
        messages: Vec<SlotMessage>,
    ) -> Result<(), RegistryClosed> {
        self.tell(Command::Deliver { from, messages }).await
    }

    /// What membership thinks of a node.
    pub(crate) async fn standing(&self, node: NodeId, standing: Standing) -> Result<(), RegistryClosed> {
        self.tell(Command::Standing { node, standing }).await
    }

    /// Records that came with gossip.
    pub(crate) async fn gossip(
        &self,
        records: Vec<SlotRecord>,
        nodes: Vec<NodeRecord>,
    ) -> Result<(), RegistryClosed> {
        self.tell(Command::Gossip { records, nodes }).await
    }

    /// Does something with the register of a slot, if this node is its primary.
    pub(crate) async fn request(
        &self,
        slot: SlotId,
        operation: RegisterOperation,
        patience: Duration,
    ) -> RegisterAnswer {
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Request { slot, operation, patience, reply }).await?;
        Ok(answer.await.map_err(|_| RegistryClosed)??)
    }

    /// Does something with the register of a slot, on whichever node is its primary. While the slot has none, it waits.
    ///
    /// # Errors
    /// It was refused, or could not be done within `patience`.
    pub async fn register(
        &self,
        slot: SlotId,
        operation: RegisterOperation,
        patience: Duration,
    ) -> RegisterAnswer {
        let deadline = tokio::time::Instant::now() + patience.min(register::PATIENCE_MAX);
        let own = self.own();
        let (bytes, total_slots) = match &operation {
            RegisterOperation::Read => (0, self.bootstrap().replication.total_slots),
            RegisterOperation::Write { value, .. } => (value.len(), self.bootstrap().replication.total_slots),
        };
        loop {
            let route = lock(&self.machine).route(slot);
            let Some(route) = route else {
                return Err(RequestError::NoSuchSlot { slot, total_slots }.into());
            };
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let answer = if route.primary == own {
                self.request(slot, operation.clone(), left).await
            } else {
                let request = register::write_request(self.cluster, slot, &operation, left);
                match self.peers.request(&route.primary, request, left).await {
                    Ok(reply) => match register::read_reply(slot, bytes, total_slots, reply) {
                        Ok(answer) => answer.map_err(RegisterError::from),
                        Err(error) => Err(unreachable(slot, &route.primary, &error.to_string())),
                    },
                    // The request may have arrived before the connection broke.
                    Err(_) if matches!(operation, RegisterOperation::Write { .. }) && left.is_zero() => {
                        Err(RequestError::Indeterminate.into())
                    }
                    Err(status) if is_unsent(&status) || operation == RegisterOperation::Read => {
                        Err(unreachable(slot, &route.primary, status.message()))
                    }
                    Err(_) => Err(RequestError::Indeterminate.into()),
                }
            };
            let is_worth_another = matches!(
                &answer,
                Err(RegisterError::Refused(RequestError::NotPrimary { .. })
                    | RegisterError::Unreachable { .. })
            );
            if !is_worth_another || tokio::time::Instant::now() + RETRY_PAUSE >= deadline {
                return answer;
            }
            // Nothing tells when a slot gets a primary that this node learns of by gossip.
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// The primary of a slot, as far as this node knows; before any election, whoever is to be it first.
    #[must_use]
    pub fn primary(&self, slot: SlotId) -> Option<NodeId> {
        lock(&self.machine).route(slot).map(|route| route.primary)
    }

    /// Begins to leave, and waits until the slots are handed over, at most for `patience`. True if they all were.
    pub async fn leave(&self, patience: Duration) -> bool {
        if self.tell(Command::Leave).await.is_err() {
            return false;
        }
        let drained = async {
            while !lock(&self.machine).is_drained() {
                tokio::time::sleep(DRAIN_PAUSE).await;
            }
        };
        tokio::time::timeout(patience, drained).await.is_ok()
    }

    /// Stops the task, and waits until it has ended.
    pub async fn stop(&self) -> RegistryExit {
        // It may have ended before; then it says how.
        self.tell(Command::Stop).await.ok();
        self.ended().await
    }

    /// Waits until the task has ended, and says why it did.
    pub async fn ended(&self) -> RegistryExit {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await;
        ended.ok().and_then(|ended| ended.clone()).unwrap_or(RegistryExit::Stopped)
    }

    /// What happens from now on. Whoever is too slow misses the oldest.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<SlotEvent> {
        self.events.subscribe()
    }

    /// Whether the node can serve; else why not.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn check_ready(&self) -> Result<(), String> {
        if let Some(exit) = &*self.exit.borrow() {
            return Err(format!("the registry ended: {exit}"));
        }
        let machine = lock(&self.machine);
        let learning = machine.learning_count();
        if learning > 0 {
            let from = machine.learning_from().iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
            return Err(format!(
                "this node has no memory of {learning} of its slots and has to hear {from} before it votes on them; \
                 in a cluster that never served anything, --new-cluster starts without them"
            ));
        }
        match machine.vacant_count() {
            0 => Ok(()),
            vacant => Err(format!("{vacant} slots have no primary")),
        }
    }

    /// A digest of the slot map: equal maps have equal digests.
    #[must_use]
    pub fn digest(&self) -> String {
        let machine = lock(&self.machine);
        // The digests of the parts, folded so that their order counts.
        let folded = machine.map().digests().iter().fold(0u64, |all, part| all.rotate_left(1) ^ part);
        format!("{folded:016x}")
    }

    /// The beginning of the cluster.
    #[must_use]
    pub fn bootstrap(&self) -> Arc<BootstrapState> {
        Arc::clone(lock(&self.machine).bootstrap())
    }

    /// The records of all slots, in order.
    #[must_use]
    pub fn slots(&self) -> Vec<SlotRecord> {
        lock(&self.machine).map().records().cloned().collect()
    }

    /// What is known of one slot; `None` when there is no such slot.
    #[must_use]
    pub fn slot(&self, slot: SlotId) -> Option<SlotView> {
        lock(&self.machine).view(slot, self.clock.now())
    }

    /// What each node said of itself last, and what this node thinks of it.
    #[must_use]
    pub fn nodes(&self) -> Vec<(NodeId, Standing, Option<NodeRecord>)> {
        let machine = lock(&self.machine);
        machine.nodes().map(|(node, standing, record)| (node.clone(), standing, record.cloned())).collect()
    }

    /// Slots that this node serves, that it has yet to learn about, and that have no primary.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let machine = lock(&self.machine);
        (machine.serving_count(), machine.learning_count(), machine.vacant_count())
    }

    /// How often things happened.
    #[must_use]
    pub fn counters(&self) -> RegistryCounters {
        lock(&self.machine).counters()
    }

    /// Messages to other registries: delivered, failed, and dropped for want of room.
    #[must_use]
    pub fn message_counts(&self) -> (u64, u64, u64) {
        let counters = self.peers.counters();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&counters.delivered), load(&counters.failed), load(&counters.dropped))
    }

    /// How many envelopes of gossip were ignored: of other versions, kinds and clusters, or malformed.
    #[must_use]
    pub fn refused_envelopes(&self) -> u64 {
        self.refused_envelopes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_refused_envelope(&self) {
        self.refused_envelopes.fetch_add(1, Ordering::Relaxed);
    }

    fn own(&self) -> NodeId {
        lock(&self.machine).own().node.clone()
    }

    async fn tell(&self, command: Command) -> Result<(), RegistryClosed> {
        self.commands.send(command).await.map_err(|_| RegistryClosed)
    }
}

/// The registry of this node has ended. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the registry of this node has ended; nothing was done")]
pub struct RegistryClosed;

/// A registry could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryStartError {
    /// A setting out of range.
    #[error(transparent)]
    Config(#[from] synod_core::slots::SlotConfigError),
    /// The address of a node cannot be used.
    #[error("the address of a node cannot be used: {0}")]
    Address(String),
    /// The disk.
    #[error(transparent)]
    Files(#[from] FilesError),
}

enum Command {
    Deliver {
        from: MemberId,
        messages: Vec<SlotMessage>,
    },
    Standing {
        node: NodeId,
        standing: Standing,
    },
    Gossip {
        records: Vec<SlotRecord>,
        nodes: Vec<NodeRecord>,
    },
    Request {
        slot: SlotId,
        operation: RegisterOperation,
        patience: Duration,
        reply: oneshot::Sender<Result<Answer, RequestError>>,
    },
    Leave,
    Stop,
}

struct RegistryTask {
    machine: Arc<Mutex<SlotRegistry>>,
    cluster: ClusterId,
    files: Arc<RegistryFiles>,
    gossip: Option<Arc<dyn Broadcast>>,
    peers: Arc<Peers>,
    events: broadcast::Sender<SlotEvent>,
    requests: HashMap<RequestId, oneshot::Sender<Result<Answer, RequestError>>>,
    clock: MonotonicClock,
    wake_at: Option<TimerInstant>,
    /// A snapshot that is being written.
    snapshot: Option<tokio::task::JoinHandle<Result<(), FilesError>>>,
}

impl RegistryTask {
    async fn run(mut self, mut waiting: mpsc::Receiver<Command>) -> RegistryExit {
        let mut commands = Vec::new();
        loop {
            let wake_at = self.wake_at.unwrap_or_else(|| self.clock.now() + Duration::from_secs(1));
            let mut outcomes = Vec::new();
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.clock.instant(wake_at)) => {
                    let now = self.clock.now();
                    outcomes.push(lock(&self.machine).poll(now));
                }
                count = waiting.recv_many(&mut commands, COMMANDS_PER_TURN_MAX) => {
                    if count == 0 {
                        return self.close(RegistryExit::Stopped).await;
                    }
                }
            }
            for command in commands.drain(..) {
                if matches!(command, Command::Stop) {
                    // What came before it is still carried out.
                    let carried = self.carry_out(outcomes).await;
                    let exit = carried.map_or_else(disk_failed, |()| RegistryExit::Stopped);
                    return self.close(exit).await;
                }
                self.take(command, &mut outcomes);
            }
            let taken = outcomes.iter().flat_map(|outcome| &outcome.events).find_map(|event| match event {
                SlotEvent::NameTaken { by } => Some(by.member.clone()),
                _ => None,
            });
            if let Some(by) = taken {
                tracing::error!(%by, "another process runs under the name of this node; this one stops");
                return self.close(RegistryExit::NameTaken { by }).await;
            }
            if let Err(error) = self.carry_out(outcomes).await {
                tracing::error!(%error, "the registry cannot write any more; this node stops");
                return self.close(disk_failed(error)).await;
            }
            self.snapshot_if_due();
        }
    }

    fn take(&mut self, command: Command, outcomes: &mut Vec<RegistryOutcome>) {
        let now = self.clock.now();
        let mut machine = lock(&self.machine);
        match command {
            Command::Deliver { from, messages } => {
                outcomes
                    .extend(messages.into_iter().map(|message| machine.handle_message(&from, message, now)));
            }
            Command::Standing { node, standing } => {
                outcomes.push(machine.handle_standing(&node, standing, now));
            }
            Command::Gossip { records, nodes } => outcomes.push(machine.handle_gossip(records, nodes, now)),
            Command::Request { slot, operation, patience, reply } => {
                let begun = match operation {
                    RegisterOperation::Read => machine.read(slot, patience, now),
                    RegisterOperation::Write { value, expected } => {
                        machine.write(slot, expected, value, patience, now)
                    }
                };
                match begun {
                    Ok((request, outcome)) => {
                        self.requests.insert(request, reply);
                        outcomes.push(outcome);
                    }
                    // Whoever asked may be gone.
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Command::Leave => outcomes.push(machine.leave(now)),
            Command::Stop => {}
        }
    }

    /// Carries out outcomes: first the disk, then everything that somebody hears of.
    async fn carry_out(&mut self, mut outcomes: Vec<RegistryOutcome>) -> Result<(), FilesError> {
        let entries: Vec<Entry> =
            outcomes.iter_mut().flat_map(|outcome| outcome.persist.drain(..)).map(Entry::Op).collect();
        if !entries.is_empty() {
            self.files.append(&entries)?.await?;
        }
        for outcome in outcomes {
            self.wake_at = outcome.wake_at;
            for event in outcome.events {
                tell(&event);
                // Nobody may be listening.
                drop(self.events.send(event));
            }
            self.spread(outcome.gossip_slots, outcome.gossip_nodes);
            for (to, message) in outcome.send {
                self.peers.send(&to, message);
            }
            for (request, answer) in outcome.answers {
                if let Some(reply) = self.requests.remove(&request) {
                    // Whoever asked may be gone.
                    drop(reply.send(answer));
                }
            }
        }
        Ok(())
    }

    fn spread(&self, records: Vec<SlotRecord>, nodes: Vec<NodeRecord>) {
        let Some(gossip) = &self.gossip else { return };
        if records.is_empty() && nodes.is_empty() {
            return;
        }
        let body = EnvelopeBody::SlotDelta { records, nodes };
        gossip.broadcast(&codec::envelope(&Envelope { cluster: self.cluster, body }));
    }

    /// Begins to write a snapshot when the log has grown enough.
    fn snapshot_if_due(&mut self) {
        if let Some(running) = &mut self.snapshot {
            if !running.is_finished() {
                return;
            }
            self.snapshot = None;
        }
        if !self.files.wants_snapshot() {
            return;
        }
        let files = Arc::clone(&self.files);
        // Files block; other tasks must not wait for them.
        self.snapshot = Some(tokio::task::spawn_blocking(move || {
            let written = files.snapshot();
            if let Err(error) = &written {
                tracing::warn!(%error, "no snapshot of the registry was written; the log goes on to grow");
            }
            written
        }));
    }

    async fn close(mut self, exit: RegistryExit) -> RegistryExit {
        if let Some(running) = self.snapshot.take() {
            drop(running.await);
        }
        for (_, reply) in self.requests.drain() {
            drop(reply.send(Err(RequestError::Indeterminate)));
        }
        if exit == RegistryExit::Stopped {
            // The next start reads one file instead of a log.
            let files = Arc::clone(&self.files);
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || files.snapshot()).await {
                tracing::warn!(%error, "no snapshot of the registry was written; the log has everything");
            }
        }
        exit
    }
}

#[allow(clippy::needless_pass_by_value)]
fn disk_failed(error: FilesError) -> RegistryExit {
    RegistryExit::DiskFailed { reason: error.to_string() }
}

fn tell(event: &SlotEvent) {
    match event {
        SlotEvent::CampaignStarted { slot, epoch, cause } => {
            tracing::debug!(%slot, %epoch, %cause, "stands for a slot");
        }
        SlotEvent::Elected { slot, epoch, cause } => tracing::debug!(%slot, %epoch, %cause, "serves a slot"),
        SlotEvent::SteppedDown { slot, epoch, by } => {
            tracing::debug!(%slot, %epoch, %by, "serves a slot no more");
        }
        SlotEvent::Learned { slot } => tracing::debug!(%slot, "votes on a slot"),
        SlotEvent::Conflict(conflict) => {
            let (known, received) = (&conflict.known, &conflict.received);
            tracing::error!(
                slot = %known.slot,
                epoch = %known.epoch,
                one = %known.primary,
                other = %received.primary,
                "two primaries of one epoch: a promise was broken"
            );
        }
        SlotEvent::NameTaken { by } => tracing::error!(by = %by.member, "the name of this node is taken"),
    }
}

fn unreachable(slot: SlotId, primary: &NodeId, reason: &str) -> RegisterError {
    RegisterError::Unreachable { slot, primary: primary.clone(), reason: reason.to_owned() }
}

/// Whether a call failed before the peer could have taken it.
fn is_unsent(status: &tonic::Status) -> bool {
    let source = std::error::Error::source(status);
    let mut next = source;
    while let Some(error) = next {
        if error.downcast_ref::<std::io::Error>().is_some_and(|error| {
            matches!(error.kind(), std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::TimedOut)
        }) {
            return true;
        }
        next = error.source();
    }
    status.message().contains("has not started yet")
}

/// Most commands that wait.
const COMMANDS_MAX: usize = 4096;
/// Most commands that share one sync.
const COMMANDS_PER_TURN_MAX: usize = 1024;
/// Most events that a slow listener can be behind.
const EVENTS_MAX: usize = 4096;
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
