//! What a host of grains asks for, answers and tells.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::snapshot::{GrainSnapshot, SnapshotDrop};
use crate::gossip::GossipMemberId;
use crate::grains::{ActorPid, ClusterIdentity};
use crate::id::Authority;
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

/// A member that runs grains, or did.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrainHost {
    /// This life of it.
    pub id: GossipMemberId,
    /// Where it listens.
    pub authority: Authority,
}

impl From<&RosterMember> for GrainHost {
    fn from(member: &RosterMember) -> Self {
        Self { id: member.id.clone(), authority: member.authority.clone() }
    }
}

/// Numbers the questions of a node. Never used twice in its life.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId {
    /// Who asks.
    pub claimer: GossipMemberId,
    /// The activation that waits for the answers.
    pub number: u64,
}

/// The owner of a grain asks a previous owner to yield it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRecord {
    /// The grain.
    pub grain: ClusterIdentity,
    /// Who asks.
    pub from: GrainHost,
    /// The number of the question.
    pub number: u64,
    /// The digest of the roster by which it is the owner.
    pub roster: u64,
}

/// A host of a grain yields it: what ran there is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelocationRecord {
    /// The grain.
    pub grain: ClusterIdentity,
    /// Who hosted it.
    pub from: GrainHost,
    /// Activations that have ended, there or elsewhere, and that the owner may not know of; the latest is the last. At most
    /// [`STOPPED_MAX`].
    pub stopped: Vec<ActorPid>,
    /// Its state, if there is one.
    pub snapshot: Option<GrainSnapshot>,
    /// The question that this answers, if it was asked.
    pub claim: Option<ClaimId>,
    /// Who may know more: owners before that one. At most [`BEFORE_MAX`] are looked at.
    pub before: Vec<GrainHost>,
    /// Who was given the grain a moment ago.
    pub went: Option<GrainHost>,
    /// Whether the sender leaves: then it must not be left with the grain.
    pub is_leaving: bool,
}

impl RelocationRecord {
    /// Whether the receiver is to confirm it.
    #[must_use]
    pub const fn is_confirmed(&self) -> bool {
        !self.stopped.is_empty() || self.snapshot.is_some()
    }
}

/// A hand-over has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelocationReceipt {
    /// The grain.
    pub grain: ClusterIdentity,
    /// Who has it.
    pub by: GossipMemberId,
    /// The activations that were named.
    pub stopped: Vec<ActorPid>,
    /// The version of the state, if there was one.
    pub version: Option<u64>,
}

/// Most members that an answer names.
pub const BEFORE_MAX: usize = 8;
/// Most activations of whose end a hand-over tells; of more the latest are told.
pub const STOPPED_MAX: usize = 8;

/// Why a grain is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StopReason {
    /// Nobody called it for its idle limit.
    Idle,
    /// By the current roster another member hosts it.
    Moved,
    /// This node leaves the cluster.
    Leaving,
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
    /// Ask a member that may still run the grain to yield it. Answered by `handle_relocation` or `handle_outdated`; it is
    /// sent again until then, so a loss does no harm.
    Claim {
        /// Whom.
        to: GrainHost,
        /// What.
        claim: ClaimRecord,
    },
    /// Tell a member that asked that it goes by a roster of the past.
    Outdated {
        /// Whom.
        to: GrainHost,
        /// The grain.
        grain: ClusterIdentity,
        /// The number of its question.
        number: u64,
    },
    /// Yield a grain to the member that hosts it now. It is kept and sent again until its receipt comes, so a loss does
    /// no harm.
    Transfer {
        /// To whom.
        to: GrainHost,
        /// What.
        record: RelocationRecord,
    },
    /// Tell the last host of a grain that what it yielded is here.
    Confirm {
        /// Whom.
        to: GrainHost,
        /// What.
        receipt: RelocationReceipt,
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
    /// A member with a newer roster says that this node lags behind.
    #[error("{by} goes by a newer roster; this node does not start {grain} before it knows it")]
    Outdated {
        /// The grain.
        grain: ClusterIdentity,
        /// Who says so.
        by: GossipMemberId,
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
    /// A grain was started though members that may have run it did not yield it in time, or went away. It may have lost its
    /// state, and may run twice for a moment.
    HandoverMissed {
        /// The grain.
        grain: ClusterIdentity,
        /// Who did not answer.
        silent: Vec<GossipMemberId>,
    },
    /// A grain ran twice. The activation of the owner, this node, was kept; the other one is over.
    Duplicate {
        /// The grain.
        grain: ClusterIdentity,
        /// The activation here, unless it is just starting.
        kept: Option<ActorPid>,
        /// The activation elsewhere.
        stopped: ActorPid,
    },
    /// This node leaves, and no grain runs here any more.
    Drained,
}

/// How grains have changed hosts, from the view of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandoverCounts {
    /// Grains that previous owners were asked for before they were started here.
    pub claimed: u64,
    /// Grains that were started here though a previous owner had not answered.
    pub missed: u64,
    /// Grains that were yielded to another member.
    pub yielded: u64,
    /// Grains that ran here and elsewhere at the same time.
    pub duplicates: u64,
    /// States that were lost.
    pub snapshots_dropped: u64,
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
    /// When to poll next, if a grain may become idle, is waited for, or is on its way.
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

    pub(super) fn tell_drops(
        &mut self,
        dropped: impl IntoIterator<Item = (ClusterIdentity, u64, SnapshotDrop)>,
    ) {
        self.events.extend(
            dropped.into_iter().map(|(grain, version, reason)| ActivationEvent::SnapshotDropped {
                grain,
                version,
                reason,
            }),
        );
    }
}
