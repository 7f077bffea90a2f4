//! The handle that everybody else holds, and what it shares with the task.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use synod_core::Authority;
use synod_core::gossip::{
    self, BlockReason, ConsensusCheckId, ConsensusChecker, GossipKey, GossipKeyValue, GossipMapKey,
    GossipMemberId, GossipState, GossipValue, GossiperState,
};
use synod_core::membership::{GossipMessage, GossipOutbound, GossipPhase, QuarantineEvent};
use synod_wire::cluster;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::carrier::{AnyCarrier, GossipCarrier};
use super::codec;
use super::config::TokioGossiperConfig;
use super::consensus::{ConsensusHandle, HeldChecks};
use super::counters::GossiperCounters;
use super::heartbeat::{ActorStatisticsSource, NoStatistics};
use super::peers::Peers;
use super::task::{Command, GossipTask, Line, Request, Write};
use super::{Gossiper, GossiperError};
use crate::clock::MonotonicClock;
use crate::event_stream::EventStream;
use crate::lock;
use crate::membership::{MembershipDriver, MembershipHandle, MembershipTask};
use crate::transport::{GossipTransport, GossipTransportError};

/// The gossiper of one node, on tokio. Clones are the same gossiper. When the last one is dropped the task ends without
/// a word to the others, as a crash would.
///
/// It learns who its peers are from the rosters that are published on its event stream, and there it publishes what
/// it hears. A transport hands requests of peers to [`handle_wire_request`](Self::handle_wire_request), or to
/// [`handle_request`](Self::handle_request) if it reads them itself.
#[derive(Clone)]
pub struct TokioGossiper {
    handle: Arc<Handle>,
}

/// What dies with the last clone. The command sender in it tells the task.
struct Handle {
    shared: Arc<Shared>,
    life: Mutex<Option<Life>>,
}

/// One run, from start to stop.
struct Life {
    commands: mpsc::Sender<Command>,
    /// Apart from the commands, so that no flood of peers' requests displaces what this node has to say.
    requests: mpsc::Sender<Request>,
    /// Taken by the first call to stop.
    stop: Option<oneshot::Sender<()>>,
    /// Becomes true at the very end; closed without when the task was aborted.
    ended: watch::Receiver<bool>,
    membership: Option<MembershipHandle>,
}

/// What the handles and the task see.
pub(super) struct Shared {
    pub(super) config: TokioGossiperConfig,
    pub(super) clock: MonotonicClock,
    pub(super) stream: EventStream,
    pub(super) carrier: Arc<dyn AnyCarrier>,
    pub(super) statistics: Mutex<Arc<dyn ActorStatisticsSource>>,
    /// Only the task changes the running machine, so its effects have one order; everybody may look.
    pub(super) machine: Mutex<gossip::Gossiper>,
    pub(super) peers: Mutex<Peers>,
    pub(super) checks: HeldChecks,
    pub(super) counters: Arc<GossiperCounters>,
}

impl Shared {
    pub(super) fn machine(&self) -> MutexGuard<'_, gossip::Gossiper> {
        lock(&self.machine)
    }

    pub(super) fn is_running(&self) -> bool {
        self.machine().lifecycle() == GossiperState::Running
    }
}

impl TokioGossiper {
    /// A gossiper that was never started. It reads the time from `clock` and takes `carrier` to its peers.
    ///
    /// # Errors
    /// A setting out of range, by name.
    pub fn new(
        config: TokioGossiperConfig,
        stream: EventStream,
        clock: MonotonicClock,
        carrier: impl GossipCarrier,
    ) -> Result<Self, GossiperError> {
        config.validate()?;
        let machine = gossip::Gossiper::new(config.gossip.clone())?;
        let shared = Shared {
            config,
            clock,
            stream,
            carrier: Arc::new(carrier),
            statistics: Mutex::new(Arc::new(NoStatistics)),
            machine: Mutex::new(machine),
            peers: Mutex::default(),
            checks: HeldChecks::default(),
            counters: Arc::default(),
        };
        Ok(Self { handle: Arc::new(Handle { shared: Arc::new(shared), life: Mutex::new(None) }) })
    }

    /// Starts together with the membership of this node: both gossip in the same rounds, under the member id of the
    /// driver, and when the driver begins a new life so does the gossiper. `driver` was started as a member, with the
    /// time of this gossiper's clock.
    ///
    /// The membership ends when it is told to through its handle, when it gives up, and at the latest when this
    /// gossiper stops. The gossiper keeps a handle of its own, so it is never abandoned before.
    ///
    /// # Errors
    /// As [`start`](Gossiper::start), and for a driver that does not run as a member. The driver is dropped then.
    pub async fn start_with_membership<T: GossipTransport + 'static>(
        &self,
        driver: MembershipDriver<T>,
    ) -> Result<MembershipHandle, GossiperError> {
        let own = driver.coordinator().own().ok_or(GossiperError::NotAMember)?;
        let own = GossipMemberId::from(own);
        let (task, handle) = MembershipTask::new(driver, self.shared().clock);
        self.launch(own, Some((task, handle.clone()))).await?;
        Ok(handle)
    }

    /// Counts actors with `source` from the next round on.
    pub fn set_statistics_source(&self, source: impl ActorStatisticsSource) {
        *lock(&self.shared().statistics) = Arc::new(source);
    }

    /// `from` sent `state`. What is newer is taken, and the answer says what `from` lacks. `None` means: do not answer,
    /// so that the sender offers again what could not be taken. `from` is who the transport says it is, see
    /// [`member_at`](Self::member_at): what a Go peer writes into its message is the id of the receiver.
    ///
    /// # Errors
    /// Refused while not running and from blocked members.
    pub async fn handle_request(
        &self,
        from: GossipMemberId,
        state: GossipState,
    ) -> Result<Option<GossipState>, GossiperError> {
        let (reply, answer) = oneshot::channel();
        let requests = self.life(|life| life.requests.clone())?;
        let request = Request { from, state, reply };
        requests.send(request).await.map_err(|_| GossiperError::AlreadyStopped)?;
        answer.await.map_err(|_| GossiperError::AlreadyStopped)?
    }

    /// As [`handle_request`](Self::handle_request), for a request from the peer at `from` as it came over the wire.
    /// Entries that cannot be read are skipped and counted.
    ///
    /// # Errors
    /// As [`handle_request`](Self::handle_request).
    pub async fn handle_wire_request(
        &self,
        from: &Authority,
        request: cluster::GossipRequest,
    ) -> Result<Option<cluster::GossipResponse>, GossiperError> {
        let decoded = codec::decode_state(request.state.unwrap_or_default());
        self.counters().note_undecodable(decoded.undecodable);
        // A stranger may be a peer that the roster does not know yet: what it says is taken, and as it has no
        // watermarks here it is told nothing.
        let from = self.member_at(from).unwrap_or_else(stranger);
        let answer = self.handle_request(from, decoded.state).await?;
        Ok(answer.map(|state| codec::encode_response(&state)))
    }

    /// Who is at `authority`, by the current roster.
    #[must_use]
    pub fn member_at(&self, authority: &Authority) -> Option<GossipMemberId> {
        lock(&self.shared().peers).at(authority).cloned()
    }

    /// The membership that runs, or ran, together with the latest run of this gossiper.
    #[must_use]
    pub fn membership(&self) -> Option<MembershipHandle> {
        lock(&self.handle.life).as_ref()?.membership.clone()
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> &Arc<GossiperCounters> {
        &self.shared().counters
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &TokioGossiperConfig {
        &self.shared().config
    }

    pub(super) fn downgrade(&self) -> WeakGossiper {
        WeakGossiper { handle: Arc::downgrade(&self.handle) }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    async fn launch<T: GossipTransport + 'static>(
        &self,
        own: GossipMemberId,
        membership: Option<(MembershipTask<T>, MembershipHandle)>,
    ) -> Result<(), GossiperError> {
        let (membership_task, membership) = membership.unzip();
        loop {
            let mut ending = {
                let mut life = lock(&self.handle.life);
                match life.as_ref().filter(|life| !life.is_over()) {
                    None => {
                        *life = Some(self.begin(own, membership_task, membership)?);
                        return Ok(());
                    }
                    Some(running) if running.stop.is_some() => return Err(GossiperError::AlreadyStarted),
                    Some(ending) => ending.ended.clone(),
                }
            };
            // The run before still says goodbye, which is bounded. That it was aborted meanwhile is an end, too.
            drop(ending.wait_for(|ended| *ended).await);
        }
    }

    fn begin<T: GossipTransport + 'static>(
        &self,
        own: GossipMemberId,
        membership_task: Option<MembershipTask<T>>,
        membership: Option<MembershipHandle>,
    ) -> Result<Life, GossiperError> {
        let shared = self.shared();
        let seed = shared.config.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let first = shared.machine().start(own.clone(), seed, shared.clock.now())?;
        lock(&shared.peers).clear();
        let (commands, command_receiver) = mpsc::channel(COMMANDS_MAX);
        let (requests, request_receiver) = mpsc::channel(REQUESTS_MAX);
        let (stop, stop_receiver) = oneshot::channel();
        let (ended_sender, ended) = watch::channel(false);
        let line = Line {
            commands: command_receiver,
            requests: request_receiver,
            stop: stop_receiver,
            ended: ended_sender,
        };
        let task = GossipTask::new(Arc::clone(shared), own, membership_task, line);
        tokio::spawn(task.run(first));
        Ok(Life { commands, requests, stop: Some(stop), ended, membership })
    }

    fn life<R>(&self, look: impl FnOnce(&Life) -> R) -> Result<R, GossiperError> {
        lock(&self.handle.life).as_ref().map(look).ok_or(GossiperError::NotStarted)
    }

    async fn send(&self, command: Command) -> Result<(), GossiperError> {
        let commands = self.life(|life| life.commands.clone())?;
        commands.send(command).await.map_err(|_| GossiperError::AlreadyStopped)
    }

    async fn write(&self, write: Write) -> Result<(), GossiperError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Write { write, reply: Some(reply) }).await?;
        answer.await.map_err(|_| GossiperError::AlreadyStopped)?
    }
}

impl Life {
    fn is_over(&self) -> bool {
        *self.ended.borrow() || self.ended.has_changed().is_err()
    }
}

impl Gossiper for TokioGossiper {
    async fn start(&self, own: GossipMemberId) -> Result<(), GossiperError> {
        self.launch::<NoTransport>(own, None).await
    }

    async fn stop(&self) -> Result<(), GossiperError> {
        let mut ended = {
            let mut life = lock(&self.handle.life);
            let life = life.as_mut().ok_or(GossiperError::NotStarted)?;
            let stop = life.stop.take().ok_or(GossiperError::AlreadyStopped)?;
            if stop.send(()).is_err() {
                return Err(GossiperError::Aborted);
            }
            life.ended.clone()
        };
        ended.wait_for(|ended| *ended).await.map(|_| ()).map_err(|_| GossiperError::Aborted)
    }

    fn get_state(&self, key: &GossipKey) -> BTreeMap<GossipMemberId, GossipKeyValue> {
        let machine = self.shared().machine();
        machine.state(key).map(|(member, entry)| (member.clone(), entry.clone())).collect()
    }

    fn set_state(&self, key: GossipKey, value: GossipValue) -> Result<(), GossiperError> {
        let write = Write::State(key, value);
        match self.life(|life| life.commands.try_send(Command::Write { write, reply: None }))? {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(GossiperError::AlreadyStopped),
            Err(TrySendError::Full(_)) => {
                self.counters().add_commands_dropped(1);
                Err(GossiperError::QueueFull)
            }
        }
    }

    async fn set_state_request(&self, key: GossipKey, value: GossipValue) -> Result<(), GossiperError> {
        self.write(Write::State(key, value)).await
    }

    async fn set_map_state(
        &self,
        key: GossipKey,
        map_key: GossipMapKey,
        value: Vec<u8>,
    ) -> Result<(), GossiperError> {
        self.write(Write::MapValue(key, map_key, value)).await
    }

    async fn remove_map_state(&self, key: GossipKey, map_key: GossipMapKey) -> Result<(), GossiperError> {
        self.write(Write::MapRemoval(key, map_key)).await
    }

    fn get_map_state(&self, key: &GossipKey, map_key: &GossipMapKey) -> Option<Arc<[u8]>> {
        self.shared().machine().map_value(key, map_key)
    }

    fn get_map_keys(&self, key: &GossipKey) -> Vec<GossipMapKey> {
        self.shared().machine().map_keys(key)
    }

    async fn register_consensus_check(
        &self,
        checker: ConsensusChecker,
    ) -> Result<ConsensusHandle, GossiperError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Register { checker, reply }).await?;
        answer.await.map_err(|_| GossiperError::AlreadyStopped)?
    }

    fn remove_consensus_check(&self, id: ConsensusCheckId) -> bool {
        self.shared().checks.remove(id)
    }

    fn blocked_members(&self) -> BTreeMap<GossipMemberId, BlockReason> {
        let machine = self.shared().machine();
        machine.blocked_members().map(|(member, reason)| (member.clone(), reason)).collect()
    }

    fn phase(&self) -> Option<GossipPhase> {
        self.membership()?.view().phase
    }

    fn lifecycle(&self) -> GossiperState {
        self.shared().machine().lifecycle()
    }
}

impl fmt::Debug for TokioGossiper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioGossiper")
            .field("lifecycle", &self.lifecycle())
            .field("counters", self.counters())
            .finish_non_exhaustive()
    }
}

/// A gossiper that somebody else keeps alive.
#[derive(Clone)]
pub(super) struct WeakGossiper {
    handle: Weak<Handle>,
}

impl WeakGossiper {
    pub(super) fn upgrade(&self) -> Option<TokioGossiper> {
        self.handle.upgrade().map(|handle| TokioGossiper { handle })
    }
}

/// The transport of the membership that a gossiper without membership does not have.
pub(super) enum NoTransport {}

impl GossipTransport for NoTransport {
    fn send(&mut self, _: GossipOutbound) -> Result<(), GossipTransportError> {
        match *self {}
    }

    fn poll_inbound(&mut self) -> Vec<GossipMessage> {
        match *self {}
    }

    fn inbound_ready(&self) -> Arc<Notify> {
        match *self {}
    }

    fn apply_quarantine(&mut self, _: &QuarantineEvent) {
        match *self {}
    }
}

/// An id that is nobody's: a name that no member can have, for senders that are not in the roster.
fn stranger() -> GossipMemberId {
    GossipMemberId::new(STRANGER).unwrap_or_else(|_| unreachable!("a constant name"))
}

/// So many commands wait for the task; who wants an answer waits with more, who does not is refused.
pub const COMMANDS_MAX: usize = 256;
/// So many requests of peers wait for the task; who brings more waits itself.
pub const REQUESTS_MAX: usize = 64;
const STRANGER: &str = "(not in the roster)";
