//! What observers are told.

use super::coordinator::MembershipCoordinatorState;
use super::engine::GossipEvent;
use super::message::Refusal;
use super::quarantine::QuarantineReason;
use super::status::NodeStatus;
use super::table::MembershipError;
use super::topology::{TopologyApplyError, TopologyUpdate};
use crate::gossip::{GossipUpdate, GossiperEvent};
use crate::grains::GrainEvent;
use crate::id::{Authority, MemberId};
use crate::jobs::{Event as JobEvent, QueueStats, SessionStats, SessionTotals};
use crate::objects::ObjectEvent;
use crate::pubsub::PubSubEvent;
use crate::remote::RemoteEvent;
use crate::roster::RosterUpdate;
use crate::slots::SlotEvent;
use crate::time::TimerInstant;
use alloc::string::String;
use alloc::vec::Vec;

/// An event of the cluster, as published on the event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterEvent {
    /// Dissemination made progress or met a contradiction.
    Gossip {
        /// What happened.
        event: GossipEvent,
        /// When.
        observed_at: TimerInstant,
    },
    /// A member of the gossip gave a sign of life, was blocked, or the members came to agree on something.
    Gossiper {
        /// What happened.
        event: GossiperEvent,
        /// When.
        observed_at: TimerInstant,
    },
    /// Another member's entry of the gossip state changed.
    GossipStateUpdated {
        /// The entry.
        update: GossipUpdate,
        /// When.
        observed_at: TimerInstant,
    },
    /// Something happened to a grain or to a call of one.
    Grain {
        /// What happened.
        event: GrainEvent,
        /// When.
        observed_at: TimerInstant,
    },
    /// An address is kept out from now on, or was refused because it is.
    MemberQuarantined {
        /// The address.
        authority: Authority,
        /// Why.
        reason: QuarantineReason,
        /// When.
        observed_at: TimerInstant,
    },
    /// A member changed its state in this node's view.
    MemberStatusChanged {
        /// Name and life.
        member: MemberId,
        /// Its address.
        authority: Authority,
        /// The state before; `None` for a life that was not known.
        from: Option<NodeStatus>,
        /// The state now.
        to: NodeStatus,
        /// When.
        observed_at: TimerInstant,
    },
    /// An input was refused or two members contradict each other.
    Membership {
        /// What happened.
        event: MembershipEvent,
        /// When.
        observed_at: TimerInstant,
    },
    /// What happened to jobs of a group that this node leads, within a short while.
    Jobs {
        /// Which group.
        group: u16,
        /// What happened, in order.
        events: Vec<JobEvent>,
        /// How much more happened than there is room for here.
        omitted: u64,
        /// When the first of it did.
        observed_at: TimerInstant,
    },
    /// What happened to the objects of this node within a short while.
    Objects {
        /// What happened, in order.
        events: Vec<ObjectEvent>,
        /// When the first of it did.
        observed_at: TimerInstant,
    },
    /// Something happened to a topic of this node.
    PubSub {
        /// What happened.
        event: PubSubEvent,
        /// When.
        observed_at: TimerInstant,
    },
    /// A quarantine ended.
    QuarantineLifted {
        /// The address.
        authority: Authority,
        /// When.
        observed_at: TimerInstant,
    },
    /// The queues of a group that this node leads, in numbers, and who works for them: once a second while they change and
    /// somebody listens.
    Queues {
        /// Which group.
        group: u16,
        /// Its queues: how deep, how much of that is in flight, delayed or dead, how old, and what was done so far.
        queues: Vec<QueueStats>,
        /// How many more queues there are than there is room for here.
        omitted: u64,
        /// Some of its workers, each with its credits and how much it holds.
        workers: Vec<SessionStats>,
        /// All of its workers together.
        worker_totals: SessionTotals,
        /// When.
        observed_at: TimerInstant,
    },
    /// This side of a split is too small to give up on the other.
    QuorumLost {
        /// Members that answer, this node included.
        reachable: usize,
        /// Members that do not.
        suspected: usize,
        /// When.
        observed_at: TimerInstant,
    },
    /// This side may decide again.
    QuorumRegained {
        /// When.
        observed_at: TimerInstant,
    },
    /// A connection changed, or something came over one that could not be used.
    Remote {
        /// What happened.
        event: RemoteEvent,
        /// When.
        observed_at: TimerInstant,
    },
    /// The list of everyone this node deals with changed.
    RosterUpdated {
        /// The list, and what changed.
        update: RosterUpdate,
        /// When.
        observed_at: TimerInstant,
    },
    /// This node begins a new life; whatever was tied to the old one is void.
    SelfRejoining {
        /// The life that ended.
        previous: MemberId,
        /// The life that begins.
        current: MemberId,
        /// Why.
        reason: RejoinReason,
        /// When.
        observed_at: TimerInstant,
    },
    /// The node stopped.
    Shutdown {
        /// What it had been.
        mode: MembershipCoordinatorState,
        /// When.
        observed_at: TimerInstant,
    },
    /// A part failed to stop.
    ShutdownFailed {
        /// The failure.
        reason: String,
        /// When.
        observed_at: TimerInstant,
    },
    /// What happened to the slots of this node within a short while.
    Slots {
        /// What happened, in order.
        events: Vec<SlotEvent>,
        /// When the first of it did.
        observed_at: TimerInstant,
    },
    /// The node started.
    Startup {
        /// As what.
        mode: MembershipCoordinatorState,
        /// When.
        observed_at: TimerInstant,
    },
    /// A part failed to start; the others were stopped again.
    StartupFailed {
        /// As what it tried to start.
        mode: MembershipCoordinatorState,
        /// The failure.
        reason: String,
        /// When.
        observed_at: TimerInstant,
    },
    /// A topology update could not be applied.
    TopologyApplyFailed {
        /// Why.
        reason: TopologyApplyError,
        /// The time of the update.
        observed_at: TimerInstant,
    },
    /// The set of active members changed.
    TopologyUpdated {
        /// The changes and the whole.
        update: TopologyUpdate,
    },
}

impl ClusterEvent {
    /// When the event was observed, on the clock of the node that reports it.
    #[must_use]
    pub const fn observed_at(&self) -> TimerInstant {
        match self {
            Self::Gossip { observed_at, .. }
            | Self::Gossiper { observed_at, .. }
            | Self::GossipStateUpdated { observed_at, .. }
            | Self::Grain { observed_at, .. }
            | Self::Jobs { observed_at, .. }
            | Self::MemberQuarantined { observed_at, .. }
            | Self::MemberStatusChanged { observed_at, .. }
            | Self::Membership { observed_at, .. }
            | Self::Objects { observed_at, .. }
            | Self::PubSub { observed_at, .. }
            | Self::QuarantineLifted { observed_at, .. }
            | Self::Queues { observed_at, .. }
            | Self::QuorumLost { observed_at, .. }
            | Self::QuorumRegained { observed_at }
            | Self::Remote { observed_at, .. }
            | Self::RosterUpdated { observed_at, .. }
            | Self::SelfRejoining { observed_at, .. }
            | Self::Shutdown { observed_at, .. }
            | Self::ShutdownFailed { observed_at, .. }
            | Self::Slots { observed_at, .. }
            | Self::Startup { observed_at, .. }
            | Self::StartupFailed { observed_at, .. }
            | Self::TopologyApplyFailed { observed_at, .. } => *observed_at,
            Self::TopologyUpdated { update } => update.observed_at,
        }
    }
}

/// Something about members that is not a change of state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MembershipEvent {
    /// An input was refused, with the reason.
    Refused(MembershipError),
    /// Another process took this node's name over, in a later life. This node stopped.
    Superseded {
        /// The later life.
        by: MemberId,
        /// Where it is.
        at: Authority,
    },
    /// A peer refused to let this node in.
    JoinRefused {
        /// The peer.
        by: Authority,
        /// What it said.
        refusal: Refusal,
    },
}

/// A change of the quarantine table. Whoever mirrors quarantine applies these before anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuarantineEvent {
    /// The address is kept out.
    Quarantined {
        /// The address.
        authority: Authority,
        /// Why.
        reason: QuarantineReason,
    },
    /// The address may connect again.
    Cleared {
        /// The address.
        authority: Authority,
    },
}

/// Why a node began a new life without a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejoinReason {
    /// The cluster declared the old life dead.
    DeclaredDead,
    /// A larger part of the cluster went on without it.
    Outranked,
    /// The incarnation it started with was already used.
    IncarnationUsed,
}
