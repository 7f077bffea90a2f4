//! What the object planes of two nodes say to each other. A message may be lost, late or doubled; whoever needs an answer asks
//! again.

use alloc::vec::Vec;

use super::head::{EntryHead, SlotSummary};
use super::name::EntryName;
use crate::slots::{HeadRank, SlotEpoch, SlotId, Tag};

/// A message between nodes, or from a node to its own disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectMessage {
    /// A primary: take nothing of an earlier epoch any more, and tell me what you have.
    Fence {
        /// Slots and the epochs in which the sender is their primary.
        slots: Vec<(SlotId, SlotEpoch)>,
    },
    /// A replica: done.
    Fenced {
        /// Those that were fenced.
        fenced: Vec<Fenced>,
        /// Those that were not.
        refused: Vec<FenceRefusal>,
    },
    /// A primary: keep this.
    Store {
        /// The slot.
        slot: SlotId,
        /// The epoch of the primary.
        epoch: SlotEpoch,
        /// The entry.
        name: EntryName,
        /// Its head.
        head: EntryHead,
    },
    /// A replica: the head is on my disk, or one that counts more.
    Stored {
        /// The slot.
        slot: SlotId,
        /// The epoch of the primary.
        epoch: SlotEpoch,
        /// The entry.
        name: EntryName,
        /// What was to be stored.
        rank: HeadRank,
        /// Whether all parts that it names are here too. Until they are, it does not count for a majority.
        is_complete: bool,
    },
    /// A replica: no, a later epoch is fenced.
    Stale {
        /// The slot.
        slot: SlotId,
        /// The epoch of the primary.
        epoch: SlotEpoch,
        /// The fence.
        fence: SlotEpoch,
    },
    /// A primary: am I still the one?
    Confirm {
        /// Which question it is.
        round: u64,
        /// Slots and epochs.
        slots: Vec<(SlotId, SlotEpoch)>,
    },
    /// A replica: of all that was asked, except these.
    Confirmed {
        /// Which question it was.
        round: u64,
        /// Slots that are fenced later, with the fence, and slots of which this replica has no memory yet, with zero.
        stale: Vec<(SlotId, SlotEpoch)>,
    },
    /// Tell me in brief what you store of these slots.
    Summarize {
        /// Which question it is.
        round: u64,
        /// The slots.
        slots: Vec<SlotId>,
    },
    /// That.
    Summaries {
        /// Which question it was.
        round: u64,
        /// Of each slot its fence and the summary; slots of which this replica has no memory yet are left out.
        slots: Vec<(SlotId, SlotEpoch, SlotSummary)>,
    },
    /// This is what I have in a stretch of names. What do you have that counts more, and what that counts less?
    Compare {
        /// The slot.
        slot: SlotId,
        /// Which question it is.
        round: u64,
        /// The stretch begins after this name, or at the first one.
        after: Option<EntryName>,
        /// The stretch ends with this name, or with the last one.
        upto: Option<EntryName>,
        /// What the sender has of the stretch: all of it, in order.
        ranks: Vec<(EntryName, HeadRank)>,
    },
    /// That.
    Compared {
        /// The slot.
        slot: SlotId,
        /// Which question it was.
        round: u64,
        /// The fence of the slot at the one who answers.
        fence: SlotEpoch,
        /// Whether the one who answers has a memory of the slot.
        is_learned: bool,
        /// What counts more there, in order.
        newer: Vec<(EntryName, EntryHead)>,
        /// What counts less there, or is not there at all.
        behind: Vec<EntryName>,
        /// The answer is about the stretch up to this name; `None` when it is about all of it.
        covered: Option<EntryName>,
    },
    /// To the own disk: keep these as they are, where they count more. They came from a replica.
    Adopt {
        /// The slot.
        slot: SlotId,
        /// Which order it is.
        round: u64,
        /// The heads.
        heads: Vec<(EntryName, EntryHead)>,
        /// This was the last: the slot is learned, with this fence.
        learned: Option<SlotEpoch>,
    },
    /// From the own disk: done.
    Adopted {
        /// The slot.
        slot: SlotId,
        /// Which order it was.
        round: u64,
    },
    /// A primary: every replica has these tombstones, and they are old. Remove them.
    Forget {
        /// The slot.
        slot: SlotId,
        /// The epoch of the primary.
        epoch: SlotEpoch,
        /// Entries and the tags of their tombstones.
        entries: Vec<(EntryName, Tag)>,
    },
}

/// One slot that a replica has fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// The slot.
    pub slot: SlotId,
    /// The epoch.
    pub epoch: SlotEpoch,
    /// What the replica stores, told after the fence.
    pub summary: SlotSummary,
}

/// One slot that a replica has not fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceRefusal {
    /// The slot.
    pub slot: SlotId,
    /// The epoch that was asked for.
    pub asked: SlotEpoch,
    /// The later epoch that is fenced; `None` when the replica has no memory of the slot and must learn first.
    pub fence: Option<SlotEpoch>,
}
