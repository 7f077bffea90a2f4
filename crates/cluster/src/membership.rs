//! The hands of the membership coordinator.
//!
//! The coordinator decides and returns an outcome; [`MembershipDriver`] carries it out, always in this order, so that
//! nobody hears of a life that is not stored and nothing goes to an address that was just closed:
//!
//! ```text
//!   persist incarnation ──► quarantine (transport, then listeners) ──► publish events ──► publish topology ──► send
//! ```
//!
//! The driver keeps no time and starts no task. [`MembershipTask`] does both: it runs a driver on tokio and gives out
//! [`MembershipHandle`]s to it.

pub mod codec;
mod task;

pub use task::{
    Departure, MembershipExit, MembershipHandle, MembershipHandleError, MembershipTask, MembershipView,
    MembershipViews,
};

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_core::membership::{
    ClusterEvent, ConfigError, GossipMessage, GossipOutbound, MembershipCoordinator,
    MembershipCoordinatorConfig, MembershipCoordinatorError, MembershipCoordinatorOutcome,
    MembershipCoordinatorState, MembershipEvent, QuarantineEvent, QuarantineReason,
};
use synod_core::{Authority, MemberId, NodeId, TimerInstant};
use tokio::sync::Notify;

use crate::event_stream::EventStream;
use crate::incarnation::{IncarnationStore, IncarnationStoreError, begin_life};
use crate::lock;
use crate::transport::GossipTransport;

/// Mirrors the quarantine, as the transport does: an identity table, a connection pool.
pub trait QuarantineListener: Send {
    /// An address is kept out, or let in again. Called before anybody else hears of it; must not block.
    fn quarantine_changed(&mut self, event: &QuarantineEvent);
}

/// One listener for the successive drivers of one node.
impl QuarantineListener for Arc<Mutex<dyn QuarantineListener>> {
    fn quarantine_changed(&mut self, event: &QuarantineEvent) {
        lock(self).quarantine_changed(event);
    }
}

/// Carries out what the membership coordinator of one node decides.
///
/// Inputs are `handle_*`, [`start_member`](Self::start_member), [`start_client`](Self::start_client) and
/// [`stop`](Self::stop); [`poll`](Self::poll) should be called at [`wake_at`](Self::wake_at) or earlier, and
/// [`handle_inbound`](Self::handle_inbound) whenever [`inbound_ready`](Self::inbound_ready) says so. Time is
/// monotonic, also across a stop and a later start. An error that the coordinator reports has been carried out, too:
/// observers hear of a refused join.
pub struct MembershipDriver<T> {
    coordinator: MembershipCoordinator,
    transport: T,
    stream: EventStream,
    store: Box<dyn IncarnationStore>,
    listeners: Vec<Box<dyn QuarantineListener>>,
    /// What the transport and the listeners keep out. The coordinator forgets its quarantine when it stops.
    kept_out: BTreeSet<Authority>,
    /// Targets whose failure was traced and that have not been reached since.
    failing: BTreeSet<Authority>,
    wake_at: Option<TimerInstant>,
    leave_timeout: Duration,
    /// Raised when something was published or the quarantine changed.
    revision: u64,
    superseded: Option<(MemberId, Authority)>,
    counters: Arc<MembershipCounters>,
}

impl<T: GossipTransport> MembershipDriver<T> {
    /// A stopped driver for `node`, which listens at `authority`.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(
        node: NodeId,
        authority: Authority,
        config: MembershipCoordinatorConfig,
        transport: T,
        stream: EventStream,
        store: Box<dyn IncarnationStore>,
    ) -> Result<Self, ConfigError> {
        let leave_timeout = config.leave_timeout;
        Ok(Self {
            coordinator: MembershipCoordinator::new(node, authority, config)?,
            transport,
            stream,
            store,
            listeners: Vec::new(),
            kept_out: BTreeSet::new(),
            failing: BTreeSet::new(),
            wake_at: None,
            leave_timeout,
            revision: 0,
            superseded: None,
            counters: Arc::default(),
        })
    }

    /// Adds someone who mirrors the quarantine. Listeners are called after the transport, in the order they came.
    pub fn add_quarantine_listener(&mut self, listener: Box<dyn QuarantineListener>) {
        self.listeners.push(listener);
    }

    /// Starts as a member, in the life after the stored one. `seed` feeds the coordinator's choice of peers.
    ///
    /// # Errors
    /// Refused while running; then nothing is stored. Without a stored life nothing is started.
    pub fn start_member(&mut self, seed: u64, now: TimerInstant) -> Result<(), MembershipDriverError> {
        self.check_stopped()?;
        let incarnation = begin_life(&mut *self.store).map_err(MembershipDriverError::NoLife)?;
        self.superseded = None;
        self.step(now, |coordinator| coordinator.start_member(incarnation, seed, now))
    }

    /// Starts as an observer. A client is in nobody's table and needs no life of its own.
    ///
    /// # Errors
    /// Refused while running.
    pub fn start_client(&mut self, seed: u64, now: TimerInstant) -> Result<(), MembershipDriverError> {
        self.check_stopped()?;
        self.superseded = None;
        self.step(now, |coordinator| coordinator.start_client(seed, now))
    }

    /// Stops at once. The transport and the listeners let everyone in again, as the coordinator forgets why it did not.
    ///
    /// # Errors
    /// Refused while stopped.
    pub fn stop(&mut self, now: TimerInstant) -> Result<(), MembershipDriverError> {
        self.step(now, |coordinator| coordinator.stop(now))
    }

    /// A provider reports that `member` wants to join, or is there, at `authority`.
    ///
    /// # Errors
    /// Refused by the coordinator, or [`MembershipDriverError::LifeNotStored`].
    pub fn handle_join(
        &mut self,
        member: &MemberId,
        authority: &Authority,
        now: TimerInstant,
    ) -> Result<(), MembershipDriverError> {
        self.step(now, |coordinator| coordinator.handle_join(member, authority, now))
    }

    /// `node` asks to leave, or is asked to.
    ///
    /// # Errors
    /// As [`handle_join`](Self::handle_join).
    pub fn handle_leave(&mut self, node: &NodeId, now: TimerInstant) -> Result<(), MembershipDriverError> {
        self.step(now, |coordinator| coordinator.handle_leave(node, now))
    }

    /// A decision from outside: `node` is dead.
    ///
    /// # Errors
    /// As [`handle_join`](Self::handle_join).
    pub fn handle_down(&mut self, node: &NodeId, now: TimerInstant) -> Result<(), MembershipDriverError> {
        self.step(now, |coordinator| coordinator.handle_down(node, now))
    }

    /// Another detector says that `node` is gone.
    ///
    /// # Errors
    /// As [`handle_join`](Self::handle_join).
    pub fn handle_suspicion(
        &mut self,
        node: &NodeId,
        now: TimerInstant,
    ) -> Result<(), MembershipDriverError> {
        self.step(now, |coordinator| coordinator.handle_suspicion(node, now))
    }

    /// A sign of life of `member` that did not come as gossip.
    ///
    /// # Errors
    /// As [`handle_join`](Self::handle_join).
    pub fn handle_heartbeat(
        &mut self,
        member: &MemberId,
        now: TimerInstant,
    ) -> Result<(), MembershipDriverError> {
        self.step(now, |coordinator| coordinator.handle_heartbeat(member, now))
    }

    /// The transport, or an operator, wants `authority` kept out.
    ///
    /// # Errors
    /// As [`handle_join`](Self::handle_join).
    pub fn handle_quarantine(
        &mut self,
        authority: &Authority,
        reason: QuarantineReason,
        now: TimerInstant,
    ) -> Result<(), MembershipDriverError> {
        self.step(now, |coordinator| coordinator.handle_quarantine(authority, reason, now))
    }

    /// Lets `authority` in again before its time.
    ///
    /// # Errors
    /// As [`handle_join`](Self::handle_join).
    pub fn release(&mut self, authority: &Authority, now: TimerInstant) -> Result<(), MembershipDriverError> {
        self.step(now, |coordinator| coordinator.handle_release(authority, now))
    }

    /// Takes in everything that arrived. A message that the coordinator refuses is counted and does not cost the
    /// others.
    ///
    /// # Errors
    /// Refused while stopped; [`MembershipDriverError::LifeNotStored`] when a message demanded a new life.
    pub fn handle_inbound(&mut self, now: TimerInstant) -> Result<(), MembershipDriverError> {
        if !self.is_running() {
            return Err(MembershipCoordinatorError::NotStarted.into());
        }
        for message in self.transport.poll_inbound() {
            self.handle_gossip(message, now)?;
            if !self.is_running() {
                break;
            }
        }
        Ok(())
    }

    /// Runs whatever is due.
    ///
    /// # Errors
    /// Refused while stopped.
    pub fn poll(&mut self, now: TimerInstant) -> Result<(), MembershipDriverError> {
        self.step(now, |coordinator| coordinator.poll(now))
    }

    /// Whether the coordinator runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.coordinator.state() != MembershipCoordinatorState::Stopped
    }

    /// When to poll next. `None` only while stopped.
    #[must_use]
    pub const fn wake_at(&self) -> Option<TimerInstant> {
        self.wake_at
    }

    /// The transport's notice that something arrived.
    #[must_use]
    pub fn inbound_ready(&self) -> Arc<Notify> {
        self.transport.inbound_ready()
    }

    /// The later life that took this node's name over, if that is why the driver stopped.
    #[must_use]
    pub const fn superseded(&self) -> Option<&(MemberId, Authority)> {
        self.superseded.as_ref()
    }

    /// What went wrong without failing a call.
    #[must_use]
    pub const fn counters(&self) -> &Arc<MembershipCounters> {
        &self.counters
    }

    /// The coordinator, for inspection.
    #[must_use]
    pub const fn coordinator(&self) -> &MembershipCoordinator {
        &self.coordinator
    }

    fn check_stopped(&self) -> Result<(), MembershipDriverError> {
        match self.coordinator.state() {
            MembershipCoordinatorState::Stopped => Ok(()),
            state => Err(MembershipCoordinatorError::InvalidState { state }.into()),
        }
    }

    fn handle_gossip(
        &mut self,
        message: GossipMessage,
        now: TimerInstant,
    ) -> Result<(), MembershipDriverError> {
        let sender = message.sender.authority().clone();
        match self.step(now, |coordinator| coordinator.handle_gossip(message, now)) {
            Err(MembershipDriverError::Refused(error)) => {
                self.counters.messages_refused.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%sender, %error, "a message was refused");
                Ok(())
            }
            result => result,
        }
    }

    /// Calls the coordinator and carries out what it returns, also when it refuses.
    fn step(
        &mut self,
        now: TimerInstant,
        call: impl FnOnce(
            &mut MembershipCoordinator,
        ) -> Result<MembershipCoordinatorOutcome, MembershipCoordinatorError>,
    ) -> Result<(), MembershipDriverError> {
        let before = self.coordinator.state();
        let (outcome, result) = match call(&mut self.coordinator) {
            Ok(outcome) => (outcome, Ok(())),
            Err(mut error) => {
                let outcome = match &mut error {
                    MembershipCoordinatorError::Membership { outcome, .. } => std::mem::take(&mut **outcome),
                    _ => MembershipCoordinatorOutcome::default(),
                };
                (outcome, Err(error.into()))
            }
        };
        let told_to_stop =
            outcome.member_events.iter().any(|event| matches!(event, ClusterEvent::Shutdown { .. }));
        self.perform(outcome, now)?;
        if before != MembershipCoordinatorState::Stopped && !self.is_running() {
            self.release_all();
            if !told_to_stop {
                // The coordinator gave up by itself; observers hear of a stop however it came about.
                self.publish(ClusterEvent::Shutdown { mode: before, observed_at: now });
            }
        }
        result
    }

    fn perform(
        &mut self,
        outcome: MembershipCoordinatorOutcome,
        now: TimerInstant,
    ) -> Result<(), MembershipDriverError> {
        if let Some(incarnation) = outcome.persist
            && let Err(error) = self.store.persist(incarnation)
        {
            return Err(self.give_up(error, now));
        }
        for event in &outcome.quarantine_events {
            self.apply_quarantine(event);
        }
        for event in outcome.member_events {
            if let ClusterEvent::Membership { event: MembershipEvent::Superseded { by, at }, .. } = &event {
                self.superseded = Some((by.clone(), at.clone()));
            }
            self.publish(event);
        }
        if let Some(event) = outcome.topology_event {
            self.publish(event);
        }
        for outbound in outcome.gossip_outbound {
            self.send(outbound);
        }
        self.wake_at = outcome.wake_at.or(self.wake_at).filter(|_| self.is_running());
        Ok(())
    }

    /// A life that is not stored must not be lived: the node stops, and of the outcome nothing is told to anyone.
    fn give_up(&mut self, error: IncarnationStoreError, now: TimerInstant) -> MembershipDriverError {
        tracing::error!(%error, "the node stops because its new life cannot be stored");
        if let Ok(outcome) = self.coordinator.stop(now) {
            self.release_all();
            outcome.member_events.into_iter().for_each(|event| self.publish(event));
        }
        self.wake_at = None;
        MembershipDriverError::LifeNotStored(error)
    }

    fn apply_quarantine(&mut self, event: &QuarantineEvent) {
        match event {
            QuarantineEvent::Quarantined { authority, .. } => self.kept_out.insert(authority.clone()),
            QuarantineEvent::Cleared { authority } => self.kept_out.remove(authority),
        };
        self.revision += 1;
        self.transport.apply_quarantine(event);
        for listener in &mut self.listeners {
            listener.quarantine_changed(event);
        }
    }

    /// The quarantine ended with the coordinator that kept it.
    fn release_all(&mut self) {
        for authority in std::mem::take(&mut self.kept_out) {
            self.apply_quarantine(&QuarantineEvent::Cleared { authority });
        }
        self.failing.clear();
    }

    fn publish(&mut self, event: ClusterEvent) {
        self.revision += 1;
        self.stream.publish(event);
    }

    /// Sends, or counts the failure. A target that fails is traced once, until it is reached again.
    fn send(&mut self, outbound: GossipOutbound) {
        let target = outbound.target.clone();
        match self.transport.send(outbound) {
            Ok(()) => {
                if self.failing.remove(&target) {
                    tracing::info!(%target, "messages are accepted again");
                }
            }
            Err(error) => {
                self.counters.sends_failed.fetch_add(1, Ordering::Relaxed);
                if self.failing.len() >= FAILING_TARGETS_MAX {
                    self.failing.clear();
                }
                if self.failing.insert(target) {
                    tracing::warn!(%error, "a message could not be sent; gossip will repair it");
                }
            }
        }
    }
}

impl<T> fmt::Debug for MembershipDriver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MembershipDriver")
            .field("state", &self.coordinator.state())
            .field("own", &self.coordinator.own())
            .field("wake_at", &self.wake_at)
            .finish_non_exhaustive()
    }
}

/// A call to a driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipDriverError {
    /// The coordinator refused the input. What it wanted observers to know has been published.
    #[error(transparent)]
    Refused(#[from] MembershipCoordinatorError),
    /// No life could be begun.
    #[error("{0}; the node was not started")]
    NoLife(#[source] IncarnationStoreError),
    /// The node had to begin a new life and could not store it.
    #[error("{0}; nothing of it was told to anyone, and the node stopped")]
    LifeNotStored(#[source] IncarnationStoreError),
}

/// What went wrong without failing a call.
#[derive(Debug, Default)]
pub struct MembershipCounters {
    sends_failed: AtomicU64,
    messages_refused: AtomicU64,
}

impl MembershipCounters {
    /// Messages that the transport did not take.
    #[must_use]
    pub fn sends_failed(&self) -> u64 {
        self.sends_failed.load(Ordering::Relaxed)
    }

    /// Messages from peers that the coordinator refused.
    #[must_use]
    pub fn messages_refused(&self) -> u64 {
        self.messages_refused.load(Ordering::Relaxed)
    }
}

/// So many failing targets are remembered; beyond that some are traced twice.
const FAILING_TARGETS_MAX: usize = 1024;

#[cfg(test)]
mod tests;
