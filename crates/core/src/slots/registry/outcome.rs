//! What the registry takes in and gives out.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use super::super::hlc::HlcTimestamp;
use super::super::id::{SlotEpoch, SlotId, Tag};
use super::super::map::SlotConflict;
use super::super::message::SlotMessage;
use super::super::record::{ElectionCause, NodeRecord, SlotRecord};
use super::super::reign::{Head, VALUE_BYTES_MAX};
use super::super::replica::SlotReplica;
use crate::id::{MemberId, NodeId};
use crate::time::TimerInstant;

/// What this node thinks of another one. It is told so by membership, and keeps it to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// Nothing was heard of it since this node started.
    #[default]
    Unknown,
    /// It is there.
    Alive,
    /// It is silent.
    Suspect,
    /// It was silent for too long.
    Failed,
    /// It said that it leaves.
    Leaving,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Failed => "failed",
            Self::Leaving => "leaving",
        })
    }
}

/// What was on the disk of a node when it started.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// The slots whose promises are remembered. The others are learned from the other replicas before this node votes.
    pub replicas: BTreeMap<SlotId, SlotReplica>,
    /// Records of slots.
    pub records: Vec<SlotRecord>,
    /// Records of nodes.
    pub nodes: Vec<NodeRecord>,
    /// The last stamp of the hybrid clock.
    pub clock: HlcTimestamp,
    /// The word of an operator that no slot was ever served, so that there is nothing to be learned.
    pub is_new_cluster: bool,
}

/// Something to write down before anything is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryOp {
    /// An epoch was promised. Also written when a replica has learned what it may vote on.
    Promise {
        /// The slot.
        slot: SlotId,
        /// The epoch.
        epoch: SlotEpoch,
        /// To whom it was granted, if by a grant.
        granted_to: Option<NodeId>,
    },
    /// A head was stored.
    Head {
        /// The slot.
        slot: SlotId,
        /// The head.
        head: Head,
    },
    /// A record of a slot was learned or made.
    Record(SlotRecord),
    /// A record of a node was learned or made.
    Node(NodeRecord),
}

/// Something that happened, for observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotEvent {
    /// This node asks for an epoch.
    CampaignStarted {
        /// The slot.
        slot: SlotId,
        /// The epoch.
        epoch: SlotEpoch,
        /// Why.
        cause: ElectionCause,
    },
    /// This node was granted an epoch, has recovered, and serves.
    Elected {
        /// The slot.
        slot: SlotId,
        /// The epoch.
        epoch: SlotEpoch,
        /// Why there was an election.
        cause: ElectionCause,
    },
    /// This node no longer serves a slot.
    SteppedDown {
        /// The slot.
        slot: SlotId,
        /// Its epoch.
        epoch: SlotEpoch,
        /// The epoch that ended it.
        by: SlotEpoch,
    },
    /// This node has learned what it may have promised, and votes on the slot.
    Learned {
        /// The slot.
        slot: SlotId,
    },
    /// Two primaries of one epoch. A promise was broken: a disk lost what it had acknowledged, or a log was tampered with.
    Conflict(Box<SlotConflict>),
    /// Another process claims to be this node.
    NameTaken {
        /// What it says of itself.
        by: NodeRecord,
    },
}

/// A request of a client of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// What a request found or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The value was written.
    Written {
        /// With this tag.
        tag: Tag,
    },
    /// The condition of the write does not hold. Nothing was written.
    Differs {
        /// What is there.
        head: Option<Head>,
    },
    /// What is there.
    Read {
        /// The value and its tag.
        head: Option<Head>,
    },
}

/// A request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The cluster has no such slot.
    #[error("there is no slot {slot}; the cluster has {total_slots}")]
    NoSuchSlot {
        /// The slot.
        slot: SlotId,
        /// How many there are.
        total_slots: u16,
    },
    /// The value is too long.
    #[error("a value has at most {VALUE_BYTES_MAX} bytes, this one has {bytes}; nothing was written")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// This node is not the primary.
    #[error("this node is not the primary of slot {slot}; nothing was written")]
    NotPrimary {
        /// The slot.
        slot: SlotId,
        /// Who is, as far as this node knows.
        route: Route,
    },
    /// Too many requests wait for the slot.
    #[error("too many requests wait for slot {slot}; nothing was written")]
    Busy {
        /// The slot.
        slot: SlotId,
    },
    /// The time was over before the request was begun.
    #[error("the time was over before the request was begun; nothing was written")]
    TimedOut,
    /// The time was over, or the primary was deposed, while the write was on its way. It may yet be done, or not.
    #[error("the write was sent and not confirmed by a quorum; it may yet take effect")]
    Indeterminate,
}

/// Where requests for a slot go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// To whom: the primary, or whoever is to be it first.
    pub primary: NodeId,
    /// In which epoch; zero when there was no election yet.
    pub epoch: SlotEpoch,
}

/// What a call asks the driver to do, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryOutcome {
    /// Write these down durably before anything that follows.
    pub persist: Vec<RegistryOp>,
    /// Events for observers, oldest first.
    pub events: Vec<SlotEvent>,
    /// Records of slots to gossip.
    pub gossip_slots: Vec<SlotRecord>,
    /// Records of nodes to gossip.
    pub gossip_nodes: Vec<NodeRecord>,
    /// Messages to send.
    pub send: Vec<(NodeId, SlotMessage)>,
    /// Requests that are done.
    pub answers: Vec<(RequestId, Result<Answer, RequestError>)>,
    /// When to poll next.
    pub wake_at: Option<TimerInstant>,
}

/// What this node knows of one slot, to explain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// The slot.
    pub slot: SlotId,
    /// The newest record.
    pub record: Option<SlotRecord>,
    /// Who stores it, in the order in which they are to be its primary.
    pub replicas: Vec<NodeId>,
    /// What this node thinks of its primary.
    pub primary_standing: Option<Standing>,
    /// What this node keeps of it, if it stores it.
    pub local: Option<LocalSlotView>,
}

/// What this node keeps of one slot that it stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSlotView {
    /// The epoch below which it refuses everything.
    pub promised: SlotEpoch,
    /// To whom it granted that epoch.
    pub granted_to: Option<NodeId>,
    /// Whom it still has to hear before it votes. Empty when it votes.
    pub learning_from: Vec<NodeId>,
    /// The epoch it asks for, who granted it, and who refused and why.
    pub candidacy: Option<(SlotEpoch, Vec<NodeId>)>,
    /// Who refused its last candidacy, and why.
    pub refused_by: Vec<(NodeId, super::super::message::RefusalReason)>,
    /// Whether it serves the slot, or is about to.
    pub reign: Option<(SlotEpoch, bool)>,
    /// The tag of the newest head it has.
    pub stored: Option<Tag>,
    /// How long ago the primary said that it serves.
    pub claim_age: Duration,
}

/// How often something happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistryCounters {
    /// Epochs asked for.
    pub campaigns: u64,
    /// Epochs won.
    pub elections: u64,
    /// Reigns that ended.
    pub step_downs: u64,
    /// Epochs promised to others.
    pub grants: u64,
    /// Epochs not promised.
    pub refusals: u64,
    /// Records that contradicted each other.
    pub conflicts: u64,
    /// Stamps that were too far ahead to be followed.
    pub clocks_ahead: u64,
    /// Messages from lives that are over, or from strangers.
    pub strangers: u64,
}

/// Which request: a condition on what is there, and what to write; or a read.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Read,
    Write { expected: Option<Option<Tag>>, value: Arc<[u8]> },
}

/// Whose message it is.
pub(super) type Sender<'a> = &'a MemberId;
