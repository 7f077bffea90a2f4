//! What a disk remembers of its slots, so that the questions that come most often cost no transaction.

use synod_core::objects::{SlotFence, SlotSummary};

use super::table::Counts;

/// What is kept in memory of a disk: never ahead of it.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) slots: Vec<SlotState>,
    pub(super) counts: Counts,
}

/// What is remembered of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotState {
    pub(super) fence: SlotFence,
    pub(super) summary: SlotSummary,
}
