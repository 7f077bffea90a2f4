//! What goes into an object coordinator, and what comes out.

use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;

use super::super::head::{Condition, EntryHead};
use super::super::message::ObjectMessage;
use super::super::name::EntryName;
use crate::id::NodeId;
use crate::slots::{SlotEpoch, SlotId, Tag};
use crate::time::TimerInstant;

/// What somebody wants to be done with one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRequest {
    /// What its answer is called. No two requests in flight have the same, those of
    /// [`handle_settle`](super::ObjectCoordinator::handle_settle) included.
    pub id: u64,
    /// The entry.
    pub name: EntryName,
    /// What to do.
    pub operation: EntryOperation,
    /// When nobody waits for the answer any more.
    pub expires_at: TimerInstant,
}

/// What to do with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryOperation {
    /// Say what is there.
    Read,
    /// Write it whole.
    Write {
        /// What must hold of what is there.
        condition: Condition,
        /// What conditions compare later.
        etag: Arc<str>,
        /// What is written.
        content: Bytes,
    },
    /// Delete it.
    Delete {
        /// What must hold of what is there.
        condition: Condition,
        /// What the tombstone says.
        content: Bytes,
    },
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryAnswer {
    /// This is there; nothing in place of a tombstone.
    Found(Option<EntryHead>),
    /// Written, or deleted, as this write.
    Written(Tag),
    /// There was nothing to be deleted.
    NothingDeleted,
    /// The condition does not hold: this is there. Nothing was changed.
    Refused(Option<EntryHead>),
    /// What was listed can be shown.
    Settled,
}

/// A request was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// This node does not serve the slot. Nothing was changed.
    #[error(
        "this node is not the primary of the slot, which is in epoch {primary_epoch}; nothing was changed"
    )]
    NotPrimary {
        /// The latest epoch of the slot that this node has heard of.
        primary_epoch: SlotEpoch,
    },
    /// The time was over before anything was written. Nothing was changed.
    #[error("the time was over; nothing was changed")]
    Expired,
    /// A write was begun, and whether it takes effect is not known.
    #[error("a write was begun; whether it takes effect is not known")]
    Indeterminate,
    /// As many requests as there may be are in flight. Nothing was changed.
    #[error("too many requests are in flight; nothing was changed")]
    TooManyRequests,
}

/// What a driver does, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectOutcome {
    /// Read these heads from the own disk, then call [`handle_loaded`](super::ObjectCoordinator::handle_loaded) once for
    /// each. A head is as new as everything that the own disk has confirmed.
    pub load: Vec<EntryName>,
    /// Read these ranks from the own disk, then call [`handle_ranks`](super::ObjectCoordinator::handle_ranks).
    pub load_ranks: Vec<RanksQuery>,
    /// Messages; those to this node itself, which come first, are for the replica on its own disk. That disk takes messages,
    /// its own and those of others, in the order in which they come, and it has those of this outcome in its queue before
    /// any other leaves: a replica that has lost its memory learns from here whatever it was told by this node before.
    pub send: Vec<(NodeId, ObjectMessage)>,
    /// Answers to requests.
    pub answers: Vec<(u64, Result<EntryAnswer, EntryError>)>,
    /// What happened.
    pub events: Vec<ObjectEvent>,
    /// When to call [`handle_timeout`](super::ObjectCoordinator::handle_timeout).
    pub next_timeout: Option<TimerInstant>,
}

/// What to read from the own disk: [`EntryTable::ranks`](super::super::EntryTable::ranks) without an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RanksQuery {
    /// The slot.
    pub slot: SlotId,
    /// Which question it is.
    pub round: u64,
    /// Names after this one, or all.
    pub after: Option<EntryName>,
    /// So many at most.
    pub limit: usize,
}

/// Something happened that is worth a line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectEvent {
    /// This node serves a slot.
    SlotServing {
        /// The slot.
        slot: SlotId,
        /// The epoch.
        epoch: SlotEpoch,
        /// How many entries it took over from other replicas first.
        adopted: u64,
    },
    /// This node serves a slot no longer, or did not come to it.
    SlotLost {
        /// The slot.
        slot: SlotId,
        /// The epoch that is over.
        epoch: SlotEpoch,
        /// The later epoch.
        by: SlotEpoch,
    },
    /// The disk of this node has a memory of the slot again.
    Learned {
        /// The slot.
        slot: SlotId,
    },
    /// Replicas were compared, and repaired where they differed.
    HealFinished {
        /// How many slots.
        checked: u64,
        /// How many entries all replicas have now.
        repaired: u64,
        /// How many entries some replica did not take.
        failed: u64,
    },
}

/// How far things are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectProgress {
    /// Slots that wait for a majority of fences.
    pub fencing: usize,
    /// Slots whose entries are taken over.
    pub recovering: usize,
    /// Slots that are served.
    pub serving: usize,
    /// Those of them whose replicas are known to have had the same when this node became their primary, or since.
    pub clean: usize,
    /// Slots of which the disk had no memory at the start.
    pub learning_total: usize,
    /// Those of them that are not learned yet.
    pub learning_left: usize,
    /// Slots whose replicas were compared, since the start.
    pub heal_slots_checked: u64,
    /// Those of them whose replicas differed.
    pub heal_slots_differing: u64,
    /// Entries that all replicas have again.
    pub heal_entries_repaired: u64,
    /// Entries that some replica did not take in time.
    pub heal_entries_failed: u64,
    /// Whether replicas are being compared or repaired.
    pub heal_is_running: bool,
    /// Slots that were compared in this pass, or in the last one.
    pub heal_pass_checked: u64,
    /// Slots that wait for it.
    pub heal_pass_left: u64,
    /// Entries that some replica did not take in this pass, or in the last one.
    pub heal_pass_failed: u64,
    /// When the last comparison of replicas ended.
    pub heal_finished_at: Option<TimerInstant>,
}

/// How often something happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounters {
    /// Requests taken, listings included.
    pub requests: u64,
    /// Reads that were answered.
    pub found: u64,
    /// Writes and deletions that took effect.
    pub written: u64,
    /// Deletions of nothing.
    pub nothing_deleted: u64,
    /// Conditions that did not hold.
    pub refused: u64,
    /// Listings that were settled.
    pub settled: u64,
    /// Requests for slots that this node does not serve.
    pub not_primary: u64,
    /// Requests whose time was over before anything was written.
    pub expired: u64,
    /// Writes without a known end.
    pub indeterminate: u64,
    /// Requests beyond the bound.
    pub too_many: u64,
    /// Heads that were stored again before they were shown.
    pub renewals: u64,
    /// Questions that were asked again.
    pub resends: u64,
    /// Questions whether an epoch lasts.
    pub confirm_rounds: u64,
    /// Refusals by replicas that know a later epoch.
    pub stale: u64,
    /// Reigns that ended.
    pub step_downs: u64,
    /// Tombstones that every replica was told to forget.
    pub forgotten: u64,
}
