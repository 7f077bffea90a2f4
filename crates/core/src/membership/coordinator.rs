//! One node's judgement of the whole cluster.
//!
//! The coordinator owns the table, the detector, the quarantine and the gossip engine of a node and is the only place
//! where they meet. It has no side effects: each call returns a [`MembershipCoordinatorOutcome`].
//!
//! **Contract for drivers.** Time is monotonic. Inputs are `handle_*`; `poll` runs whatever is due and should be called
//! at the `wake_at` of the last outcome, or earlier. Of an outcome, do in this order: persist the incarnation, apply
//! quarantine events, publish member events, publish the topology event, send gossip. An error leaves the machine as it
//! was and may still carry an outcome (a refused join is reported to observers, too).

mod exchange;
mod rounds;
mod run;
mod verdict;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::config::{ConfigError, MembershipCoordinatorConfig};
use super::delta::MembershipSnapshot;
use super::engine::GossipPhase;
use super::event::{ClusterEvent, MembershipEvent, QuarantineEvent};
use super::message::{GossipMessage, GossipOutbound};
use super::phi::PhiFailureDetector;
use super::quarantine::{QuarantineEntry, QuarantineReason};
use super::record::NodeRecord;
use super::status::NodeStatus;
use super::table::MembershipError;
use super::topology::Member;
use crate::id::{Authority, Incarnation, MemberId, NodeId};
use crate::time::TimerInstant;
use run::Run;

/// Whether and how a coordinator takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipCoordinatorState {
    /// Not running: every input is refused.
    Stopped,
    /// A member of the cluster.
    Member,
    /// An observer: it learns about members and is none.
    Client,
}

impl fmt::Display for MembershipCoordinatorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "stopped",
            Self::Member => "member",
            Self::Client => "client",
        })
    }
}

/// What a call asks the driver to do, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipCoordinatorOutcome {
    /// Store this incarnation durably before anything is sent.
    pub persist: Option<Incarnation>,
    /// Changes of the quarantine, for everyone who mirrors it.
    pub quarantine_events: Vec<QuarantineEvent>,
    /// Events for observers, oldest first.
    pub member_events: Vec<ClusterEvent>,
    /// The topology update, if a window closed with an effect.
    pub topology_event: Option<ClusterEvent>,
    /// Messages to send.
    pub gossip_outbound: Vec<GossipOutbound>,
    /// When to poll next. `None` only while stopped.
    pub wake_at: Option<TimerInstant>,
}

/// A call was refused. The machine is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipCoordinatorError {
    /// The coordinator is stopped.
    #[error("the membership coordinator is not started; nothing was changed")]
    NotStarted,
    /// The call does not fit the present state.
    #[error("the membership coordinator is a {state}; this call is refused and nothing was changed")]
    InvalidState {
        /// The present state.
        state: MembershipCoordinatorState,
    },
    /// The input about a member was refused.
    #[error("{error}")]
    Membership {
        /// Why.
        error: MembershipError,
        /// What observers and the sender are told about it.
        outcome: Box<MembershipCoordinatorOutcome>,
    },
}

type Outcome = Result<MembershipCoordinatorOutcome, MembershipCoordinatorError>;

/// The membership machine of one node.
#[derive(Debug)]
pub struct MembershipCoordinator {
    node: NodeId,
    authority: Authority,
    config: Arc<MembershipCoordinatorConfig>,
    /// Everything that exists only between start and stop.
    run: Option<Run>,
}

impl MembershipCoordinator {
    /// A stopped coordinator for `node`, which listens at `authority`.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(
        node: NodeId,
        authority: Authority,
        config: MembershipCoordinatorConfig,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { node, authority, config: Arc::new(config), run: None })
    }

    /// Starts as a member, in the life `incarnation`. `seed` feeds the choice of peers.
    ///
    /// # Errors
    /// Refused while running.
    pub fn start_member(&mut self, incarnation: Incarnation, seed: u64, now: TimerInstant) -> Outcome {
        self.start(MembershipCoordinatorState::Member, incarnation, seed, now)
    }

    /// Starts as an observer that learns from the seeds.
    ///
    /// # Errors
    /// Refused while running.
    pub fn start_client(&mut self, seed: u64, now: TimerInstant) -> Outcome {
        self.start(MembershipCoordinatorState::Client, Incarnation::FIRST, seed, now)
    }

    /// Stops at once and forgets everything. To leave gracefully, [`handle_leave`](Self::handle_leave) first.
    ///
    /// # Errors
    /// Refused while stopped.
    pub fn stop(&mut self, now: TimerInstant) -> Outcome {
        let run = self.run.take().ok_or(MembershipCoordinatorError::NotStarted)?;
        let event = ClusterEvent::Shutdown { mode: run.mode(), observed_at: now };
        Ok(MembershipCoordinatorOutcome { member_events: alloc::vec![event], ..Default::default() })
    }

    /// A provider reports that `member` wants to join, or is there, at `authority`.
    ///
    /// # Errors
    /// Refused for clients, for quarantined addresses, for lives that are over, and for names and addresses that
    /// another live process holds.
    pub fn handle_join(&mut self, member: &MemberId, authority: &Authority, now: TimerInstant) -> Outcome {
        self.member_run()?.step(now, |run, out| run.join(member, authority, now, out).map(|_| ()))
    }

    /// `node` asks to leave, or is asked to. It is `Leaving` until everybody knows, then `Removed`.
    ///
    /// # Errors
    /// Refused for clients, unknown nodes, and nodes that are suspect or gone.
    pub fn handle_leave(&mut self, node: &NodeId, now: TimerInstant) -> Outcome {
        self.member_run()?.step(now, |run, out| run.leave(node, now, out))
    }

    /// A decision from outside: `node` is dead, whatever the detector says.
    ///
    /// # Errors
    /// Refused for clients, for unknown nodes, for this node itself, and for nodes that are leaving or gone.
    pub fn handle_down(&mut self, node: &NodeId, now: TimerInstant) -> Outcome {
        self.member_run()?.step(now, |run, out| run.down(node, now, out))
    }

    /// Another detector, SWIM for one, says that `node` is gone. It is suspected at once; a heartbeat refutes that.
    ///
    /// # Errors
    /// Refused for clients, for unknown nodes and for this node itself. Of one that is suspect or gone it changes nothing.
    pub fn handle_suspicion(&mut self, node: &NodeId, now: TimerInstant) -> Outcome {
        self.member_run()?.step(now, |run, out| run.suspicion(node, now, out))
    }

    /// A sign of life of `member`.
    ///
    /// # Errors
    /// Refused for unknown, outdated, dead and quarantined members.
    pub fn handle_heartbeat(&mut self, member: &MemberId, now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, out| run.heartbeat(member, now, out))
    }

    /// A message from a peer's coordinator.
    ///
    /// # Errors
    /// Refused from quarantined addresses and from lives that are over; the outcome then carries the answer.
    pub fn handle_gossip(&mut self, message: GossipMessage, now: TimerInstant) -> Outcome {
        let outcome = self.running()?.step(now, |run, out| run.gossip(message, now, out));
        if self.run.as_ref().is_some_and(Run::is_superseded) {
            self.run = None;
        }
        outcome
    }

    /// The transport, or an operator, wants `authority` kept out.
    ///
    /// # Errors
    /// Refused while stopped, and for this node's own address.
    pub fn handle_quarantine(
        &mut self,
        authority: &Authority,
        reason: QuarantineReason,
        now: TimerInstant,
    ) -> Outcome {
        let run = self.running()?;
        run.step(now, |run, out| run.request_quarantine(authority, reason, now, out))
    }

    /// Lets `authority` in again before its time. Harmless when it is not quarantined.
    ///
    /// # Errors
    /// Refused while stopped.
    pub fn handle_release(&mut self, authority: &Authority, now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, out| {
            run.release(authority, now, out);
            Ok(())
        })
    }

    /// Runs everything that is due.
    ///
    /// # Errors
    /// Refused while stopped. Trouble with one member never fails a poll; it becomes an event.
    pub fn poll(&mut self, now: TimerInstant) -> Outcome {
        self.running()?.step(now, |run, out| {
            run.poll(now, out);
            Ok(())
        })
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> MembershipCoordinatorState {
        self.run.as_ref().map_or(MembershipCoordinatorState::Stopped, Run::mode)
    }

    /// The whole table; empty while stopped.
    #[must_use]
    pub fn snapshot(&self) -> MembershipSnapshot {
        self.run.as_ref().map(|run| run.table.snapshot()).unwrap_or_default()
    }

    /// The record of one node.
    #[must_use]
    pub fn record(&self, node: &NodeId) -> Option<&NodeRecord> {
        self.run.as_ref()?.table.record(node)
    }

    /// A digest of the view; equal on nodes that agree. Zero while stopped.
    #[must_use]
    pub fn view_digest(&self) -> u128 {
        self.run.as_ref().map_or(0, |run| run.table.digest())
    }

    /// All quarantined addresses; empty while stopped.
    #[must_use]
    pub fn quarantine_snapshot(&self) -> Vec<QuarantineEntry> {
        self.run.as_ref().map(|run| run.quarantine.snapshot()).unwrap_or_default()
    }

    /// The active members: joining, up or suspect, and not quarantined. In node order; empty while stopped.
    #[must_use]
    pub fn active_members(&self) -> Vec<Member> {
        self.run.as_ref().map(Run::active_members).unwrap_or_default()
    }

    /// This node's present identity; `None` while stopped and for clients.
    #[must_use]
    pub fn own(&self) -> Option<&MemberId> {
        self.run.as_ref()?.own()
    }

    /// This node's own state in the cluster; `None` while stopped and for clients.
    #[must_use]
    pub fn own_status(&self) -> Option<NodeStatus> {
        let run = self.run.as_ref()?;
        Some(run.table.record(&run.own()?.node)?.status)
    }

    /// How far the last change has spread. `None` while stopped.
    #[must_use]
    pub fn phase(&self) -> Option<GossipPhase> {
        self.run.as_ref().map(|run| run.engine.phase())
    }

    /// The local health score: 0 is well. Zero while stopped.
    #[must_use]
    pub fn health_score(&self) -> u32 {
        self.run.as_ref().map_or(0, |run| run.health.score())
    }

    /// The failure detector, for inspection.
    #[must_use]
    pub fn detector(&self) -> Option<&PhiFailureDetector> {
        self.run.as_ref().map(|run| &run.detector)
    }

    fn start(
        &mut self,
        mode: MembershipCoordinatorState,
        incarnation: Incarnation,
        seed: u64,
        now: TimerInstant,
    ) -> Outcome {
        if self.run.is_some() {
            return Err(MembershipCoordinatorError::InvalidState { state: self.state() });
        }
        let own = NodeRecord::joining(MemberId::new(self.node.clone(), incarnation), self.authority.clone());
        let run = Run::new(mode, own, Arc::clone(&self.config), seed, now);
        self.run.insert(run).step(now, |run, out| {
            run.begin(now, out);
            Ok(())
        })
    }

    fn running(&mut self) -> Result<&mut Run, MembershipCoordinatorError> {
        self.run.as_mut().ok_or(MembershipCoordinatorError::NotStarted)
    }

    fn member_run(&mut self) -> Result<&mut Run, MembershipCoordinatorError> {
        let run = self.running()?;
        match run.mode() {
            MembershipCoordinatorState::Member => Ok(run),
            state => Err(MembershipCoordinatorError::InvalidState { state }),
        }
    }
}

impl MembershipCoordinatorOutcome {
    fn tell(&mut self, event: MembershipEvent, observed_at: TimerInstant) {
        self.member_events.push(ClusterEvent::Membership { event, observed_at });
    }
}

#[cfg(test)]
mod tests;
