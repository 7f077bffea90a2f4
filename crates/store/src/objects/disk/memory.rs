//! What a disk remembers of its slots, so that the questions that come most often cost no transaction.

use synod_core::objects::{EntryHead, EntryName, EntryTable, SlotFence, SlotSummary};
use synod_core::slots::{HeadRank, SlotId};

use super::error::DiskError;
use super::table::{Counts, UNKNOWN};

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

/// Fences and summaries alone: what messages that need no more are answered from.
pub(super) struct FromMemory<'a>(pub(super) &'a Memory);

impl FromMemory<'_> {
    fn slot(&self, slot: SlotId) -> SlotState {
        self.0.slots.get(slot.index()).copied().unwrap_or(UNKNOWN)
    }
}

/// Says that a message needs the tables.
fn not_in_memory<R>() -> Result<R, DiskError> {
    Err(DiskError::Refused { reason: "this message is not answered from memory".into() })
}

impl EntryTable for FromMemory<'_> {
    type Error = DiskError;

    fn fence(&mut self, slot: SlotId) -> Result<SlotFence, DiskError> {
        Ok(self.slot(slot).fence)
    }

    fn summary(&mut self, slot: SlotId) -> Result<SlotSummary, DiskError> {
        Ok(self.slot(slot).summary)
    }

    fn set_fence(&mut self, _: SlotId, _: SlotFence) -> Result<(), DiskError> {
        not_in_memory()
    }

    fn rank(&mut self, _: SlotId, _: &EntryName) -> Result<Option<HeadRank>, DiskError> {
        not_in_memory()
    }

    fn head(&mut self, _: SlotId, _: &EntryName) -> Result<Option<EntryHead>, DiskError> {
        not_in_memory()
    }

    fn ranks(
        &mut self,
        _: SlotId,
        _: Option<&EntryName>,
        _: Option<&EntryName>,
        _: usize,
    ) -> Result<Vec<(EntryName, HeadRank)>, DiskError> {
        not_in_memory()
    }

    fn put(&mut self, _: SlotId, _: &EntryName, _: &EntryHead) -> Result<(), DiskError> {
        not_in_memory()
    }

    fn remove(&mut self, _: SlotId, _: &EntryName) -> Result<(), DiskError> {
        not_in_memory()
    }

    fn has_parts(&mut self, _: &EntryHead) -> Result<bool, DiskError> {
        not_in_memory()
    }
}
