//! What a host of grains asks for, answers and tells.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::snapshot::{GrainSnapshot, RelocationRecord, SnapshotDrop};
use crate::gossip::GossipMemberId;
use crate::grains::{ActorPid, ClusterIdentity};
use crate::roster::RosterMember;
use crate::time::TimerInstant;

/// Numbers the activations of one node. Never used twice in the life of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActivationId(pub(super) u64);

impl ActivationId {
    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ActivationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for ActivationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Why a grain is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StopReason {
    /// Nobody called it for its idle limit.
    Idle,
    /// By the current roster another member hosts it.
    Moved,
    /// This node leaves the cluster.
    Leaving,
    /// Another member runs it too, and is the owner.
    Duplicate,
    /// It was started for a request that is no longer known.
    Orphan,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActivationCommand {
    /// Start the grain. Answered by `handle_spawned` or `handle_spawn_failed`, with the same activation.
    Spawn {
        /// The grain.
        grain: ClusterIdentity,
        /// The activation.
        activation: ActivationId,
        /// The state to start from.
        snapshot: Option<GrainSnapshot>,
    },
    /// Let the grain finish what it has been sent, ask it for a snapshot, and stop it. Answered by `handle_terminated`.
    Stop {
        /// The grain.
        grain: ClusterIdentity,
        /// The activation on this node.
        pid: ActorPid,
        /// Why.
        reason: StopReason,
    },
    /// Ask another node to stop its activation: this node is the owner.
    StopRemote {
        /// The grain.
        grain: ClusterIdentity,
        /// The activation on the other node.
        pid: ActorPid,
    },
    /// Hand the state of a grain to the member that hosts it now. If it cannot be delivered, give it back with
    /// `handle_relocation`: it is kept, and goes where it belongs with the next roster.
    Transfer {
        /// To whom.
        to: RosterMember,
        /// What.
        record: RelocationRecord,
    },
    /// Tell every member that this activation is over, so that nobody calls it any more.
    Announce {
        /// The grain.
        grain: ClusterIdentity,
        /// The activation that is over.
        pid: ActorPid,
    },
}

/// Why a request for an activation is refused. Nothing was started for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActivationRefusal {
    /// The kind is not hosted here.
    #[error("this node does not host grains of kind {kind:?}")]
    UnknownKind {
        /// The kind.
        kind: String,
    },
    /// Another member hosts the grain.
    #[error("{grain} is hosted by {} at {}", owner.id, owner.authority)]
    NotOwner {
        /// The grain.
        grain: ClusterIdentity,
        /// Who does, going by the roster of this node.
        owner: RosterMember,
    },
    /// By the roster of this node nobody hosts the grain.
    #[error("no member of the roster hosts {grain}")]
    NoOwner {
        /// The grain.
        grain: ClusterIdentity,
    },
    /// This node leaves and starts nothing any more.
    #[error("this node leaves the cluster and does not start {grain}")]
    Leaving {
        /// The grain.
        grain: ClusterIdentity,
        /// Who hosts it next.
        successor: Option<RosterMember>,
    },
    /// There are too many activations.
    #[error("{grain} was not started: this node has {max} activations already")]
    TooManyActivations {
        /// The grain.
        grain: ClusterIdentity,
        /// Most activations.
        max: usize,
    },
    /// Too many requests wait for this grain.
    #[error("{max} requests already wait for {grain} to start")]
    TooManyWaiters {
        /// The grain.
        grain: ClusterIdentity,
        /// Most of them.
        max: usize,
    },
    /// The grain is started only from a snapshot, and there is none.
    #[error("{grain} needs its state to start, and this node does not have it")]
    StateMissing {
        /// The grain.
        grain: ClusterIdentity,
    },
    /// It could not be started.
    #[error("{grain} could not be started: {reason}")]
    SpawnFailed {
        /// The grain.
        grain: ClusterIdentity,
        /// Why.
        reason: String,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivationReply<R> {
    /// To whom.
    pub to: R,
    /// The grain.
    pub grain: ClusterIdentity,
    /// The activation, or why there is none.
    pub result: Result<ActorPid, ActivationRefusal>,
}

/// A change of an activation, for observers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActivationEvent {
    /// A grain runs that did not run here before.
    Activated {
        /// The grain.
        grain: ClusterIdentity,
        /// Its activation.
        pid: ActorPid,
        /// The number of it.
        activation: ActivationId,
    },
    /// A grain runs again.
    Reactivated {
        /// The grain.
        grain: ClusterIdentity,
        /// Its activation.
        pid: ActorPid,
        /// The number of it.
        activation: ActivationId,
        /// The version of the state from which it went on.
        restored: Option<u64>,
    },
    /// A grain ended by itself.
    Deactivated {
        /// The grain.
        grain: ClusterIdentity,
        /// Its activation.
        pid: ActorPid,
    },
    /// A grain was idle and is unloaded.
    Passivated {
        /// The grain.
        grain: ClusterIdentity,
        /// Its activation.
        pid: ActorPid,
    },
    /// A grain was stopped because another member hosts it.
    HandedOver {
        /// The grain.
        grain: ClusterIdentity,
        /// Its activation.
        pid: ActorPid,
        /// Who hosts it next, as far as is known.
        to: Option<GossipMemberId>,
        /// The version of the state that it left behind.
        snapshot: Option<u64>,
    },
    /// A grain could not be started.
    SpawnFailed {
        /// The grain.
        grain: ClusterIdentity,
        /// Why.
        reason: String,
    },
    /// A grain that needs a state has none: it cannot be started, or it left none behind.
    SnapshotMissing {
        /// The grain.
        grain: ClusterIdentity,
    },
    /// A state was lost.
    SnapshotDropped {
        /// The grain.
        grain: ClusterIdentity,
        /// The version of the state.
        version: u64,
        /// Why.
        reason: SnapshotDrop,
    },
    /// A grain runs twice.
    Duplicate {
        /// The grain.
        grain: ClusterIdentity,
        /// The activation here, unless it is just starting.
        ours: Option<ActorPid>,
        /// The activation elsewhere.
        theirs: ActorPid,
        /// Who keeps it: the owner by the current roster.
        winner: Option<GossipMemberId>,
    },
    /// This node leaves, and no grain runs here any more.
    Drained,
}

/// What a call asks the driver to do, in the order of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivationOutcome<R> {
    /// Events for observers.
    pub events: Vec<ActivationEvent>,
    /// What to do, in order: a state travels before the end of its activation is announced.
    pub commands: Vec<ActivationCommand>,
    /// Answers to requests.
    pub replies: Vec<ActivationReply<R>>,
    /// When to poll next, if any grain may become idle.
    pub wake_at: Option<TimerInstant>,
}

impl<R> Default for ActivationOutcome<R> {
    fn default() -> Self {
        Self { events: Vec::new(), commands: Vec::new(), replies: Vec::new(), wake_at: None }
    }
}

impl<R> ActivationOutcome<R> {
    pub(super) fn refuse(&mut self, to: R, grain: &ClusterIdentity, refusal: ActivationRefusal) {
        self.replies.push(ActivationReply { to, grain: grain.clone(), result: Err(refusal) });
    }

    pub(super) fn tell_drops(&mut self, dropped: Vec<(ClusterIdentity, u64, SnapshotDrop)>) {
        self.events.extend(
            dropped.into_iter().map(|(grain, version, reason)| ActivationEvent::SnapshotDropped {
                grain,
                version,
                reason,
            }),
        );
    }
}
