//! What the registries of two nodes say to each other, and the envelope of what is gossiped.

use alloc::string::String;
use alloc::vec::Vec;

use super::bootstrap::{BootstrapState, ForeignCluster};
use super::id::{ClusterId, SlotEpoch, SlotId, Tag};
use super::record::{NodeRecord, SlotRecord};
use super::reign::{Head, HeadRank};

/// A message between the registries of two nodes. Any may be lost, late or doubled. One message speaks of many slots: when
/// a node dies, all of its slots are asked for at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotMessage {
    /// Somebody who would stand asks first whether it would be granted these epochs. Nothing is promised yet, so that one
    /// who alone has lost sight of a primary does not disturb it.
    Sound {
        /// Which epochs of which slots.
        asks: Vec<(SlotId, SlotEpoch)>,
    },
    /// It would. Where it would not, the answer is that of [`Grants`](Self::Grants).
    Willing {
        /// Which epochs of which slots.
        asks: Vec<(SlotId, SlotEpoch)>,
    },
    /// A candidate asks for epochs.
    AskGrants {
        /// Which epochs of which slots.
        asks: Vec<(SlotId, SlotEpoch)>,
        /// The primary itself wants it.
        endorsed: bool,
    },
    /// The answer.
    Grants {
        /// What was promised.
        granted: Vec<Grant>,
        /// What was not.
        refused: Vec<Refusal>,
    },
    /// A primary that recovers asks for heads.
    AskHeads {
        /// Its epochs of the slots.
        slots: Vec<(SlotId, SlotEpoch)>,
    },
    /// The answer.
    Heads {
        /// What is stored for them.
        heads: Vec<(SlotId, Head)>,
    },
    /// A primary asks the receiver to take its slots over.
    HandOver {
        /// The slots, and the epochs in which the sender serves them.
        slots: Vec<(SlotId, SlotEpoch)>,
    },
    /// A primary says what it serves.
    Claims {
        /// The slots and its epochs.
        slots: Vec<(SlotId, SlotEpoch)>,
    },
    /// A node without a memory of its promises asks for those of others.
    AskPromises {
        /// Which slots.
        slots: Vec<SlotId>,
        /// Which process asks.
        asker: u64,
    },
    /// The answer.
    Promises {
        /// Which process asked. What another one was told, in a life before, may be outdated.
        asker: u64,
        /// What the sender keeps of them.
        promises: Vec<Promise>,
    },
    /// A primary wants something stored.
    Store {
        /// The slot.
        slot: SlotId,
        /// The epoch of the primary.
        epoch: SlotEpoch,
        /// What to store.
        head: Head,
    },
    /// It is stored.
    Stored {
        /// The slot.
        slot: SlotId,
        /// The epoch of the primary.
        epoch: SlotEpoch,
        /// What is stored.
        tag: Tag,
    },
    /// A primary asks whether its epoch still lasts, before it answers a reader.
    Confirm {
        /// The slot.
        slot: SlotId,
        /// Its epoch.
        epoch: SlotEpoch,
        /// Which question it is.
        nonce: u64,
    },
    /// It does.
    Confirmed {
        /// The slot.
        slot: SlotId,
        /// The epoch of the primary.
        epoch: SlotEpoch,
        /// Which question it was.
        nonce: u64,
    },
    /// A primary is refused: a later epoch is promised.
    Stale {
        /// The slot.
        slot: SlotId,
        /// The epoch of the primary.
        epoch: SlotEpoch,
        /// What is promised.
        promised: SlotEpoch,
    },
    /// The sender's digests, to be compared.
    Digest {
        /// One for each bucket of the slot map.
        slots: Vec<u64>,
        /// One for all node records.
        nodes: u64,
    },
    /// Records, and which ones the sender wants in return.
    Delta {
        /// Records of slots.
        records: Vec<SlotRecord>,
        /// Records of nodes.
        nodes: Vec<NodeRecord>,
        /// Buckets of the slot map that the sender wants.
        wanted: Vec<u8>,
    },
}

/// An epoch of a slot was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The slot.
    pub slot: SlotId,
    /// The epoch.
    pub epoch: SlotEpoch,
    /// The rank of the head that the granter has.
    pub stored: Option<HeadRank>,
}

/// An epoch of a slot was not promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The slot.
    pub slot: SlotId,
    /// The epoch that was asked for.
    pub asked: SlotEpoch,
    /// What is promised.
    pub promised: SlotEpoch,
    /// Why.
    pub reason: RefusalReason,
}

/// Why an epoch was not promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalReason {
    /// As much or more is promised already.
    Promised,
    /// The primary is there, as far as the replica knows.
    PrimaryAlive,
    /// The primary has a write under way.
    Busy,
    /// The replica has lost its memory and is still learning what it may have promised.
    Learning,
}

impl RefusalReason {
    /// All of them, in the order of their numbers on the wire, from 0.
    pub const ALL: [Self; 4] = [Self::Promised, Self::PrimaryAlive, Self::Busy, Self::Learning];
}

/// What a replica keeps of a slot, for one that has lost its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The slot.
    pub slot: SlotId,
    /// What is promised.
    pub promised: SlotEpoch,
    /// The newest head.
    pub head: Option<Head>,
}

/// Something that is gossiped: small, sent to whoever listens, and understood only by nodes of the same cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Which cluster it is of.
    pub cluster: ClusterId,
    /// What it says.
    pub body: EnvelopeBody,
}

/// What an envelope says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvelopeBody {
    /// Records that have changed. Its kind is `slot_delta`.
    SlotDelta {
        /// Records of slots.
        records: Vec<SlotRecord>,
        /// Records of nodes.
        nodes: Vec<NodeRecord>,
    },
    /// The beginning of the cluster. Its kind is `bootstrap_snapshot`.
    BootstrapSnapshot(BootstrapState),
}

/// An envelope was not taken. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeRefusal {
    /// It is of a version that this node does not know, most likely a newer one.
    #[error("a gossip envelope of version {version} was ignored; this node knows version {ENVELOPE_VERSION}")]
    Version {
        /// The version.
        version: u32,
    },
    /// It is of a kind that this node does not know.
    #[error("a gossip envelope of the unknown kind {kind:?} was ignored")]
    Kind {
        /// The kind.
        kind: String,
    },
    /// It is of another cluster.
    #[error("a gossip envelope was ignored: {0}")]
    Foreign(#[from] ForeignCluster),
    /// It cannot be read.
    #[error("a gossip envelope was ignored; it is malformed: {reason}")]
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
}

/// The version of envelopes.
pub const ENVELOPE_VERSION: u32 = 1;
