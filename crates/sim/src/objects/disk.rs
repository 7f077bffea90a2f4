//! A simulated disk: what is durable, and the queue of what is not.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use synod_core::objects::{
    EntryHead, EntryName, EntryTable, ObjectMessage, RanksQuery, SlotFence, SlotSummary,
};
use synod_core::slots::{HeadRank, SlotEpoch, SlotId};

/// What is durable.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) fences: BTreeMap<SlotId, SlotFence>,
    pub(super) entries: BTreeMap<SlotId, BTreeMap<EntryName, EntryHead>>,
    /// Contents whose parts are not here before some time.
    pub(super) missing: BTreeMap<Vec<u8>, Duration>,
}

/// What is asked of a disk. Messages are taken in order and written together; the others look past the queue at what is
/// durable.
#[derive(Clone, Debug)]
pub(super) enum DiskOp {
    /// Of a coordinator, this node's own or another's.
    Message {
        from: usize,
        message: ObjectMessage,
    },
    Load(EntryName),
    Ranks(RanksQuery),
    /// Everything of a slot, for a listing of a client.
    Page {
        client: usize,
        slot: SlotId,
        epoch: SlotEpoch,
        began: Duration,
    },
}

/// The table that a replica sees in a transaction.
pub(super) struct Table<'a> {
    pub(super) disk: &'a mut Disk,
    pub(super) now: Duration,
    /// Something to draw lots with: whether parts are late.
    pub(super) lot: u64,
    /// Takes everything, whatever is fenced.
    pub(super) ignores_fence: bool,
}

impl EntryTable for Table<'_> {
    type Error = Infallible;

    fn fence(&mut self, slot: SlotId) -> Result<SlotFence, Infallible> {
        let known = self.disk.fences.get(&slot).copied().unwrap_or_default();
        let fence = if self.ignores_fence { SlotEpoch::ZERO } else { known.fence };
        Ok(SlotFence { fence, ..known })
    }

    fn set_fence(&mut self, slot: SlotId, fence: SlotFence) -> Result<(), Infallible> {
        self.disk.fences.insert(slot, fence);
        Ok(())
    }

    fn summary(&mut self, slot: SlotId) -> Result<SlotSummary, Infallible> {
        Ok(self.disk.summary(slot))
    }

    fn rank(&mut self, slot: SlotId, name: &EntryName) -> Result<Option<HeadRank>, Infallible> {
        Ok(self.disk.head(slot, name).map(EntryHead::rank))
    }

    fn head(&mut self, slot: SlotId, name: &EntryName) -> Result<Option<EntryHead>, Infallible> {
        Ok(self.disk.head(slot, name).cloned())
    }

    fn ranks(
        &mut self,
        slot: SlotId,
        after: Option<&EntryName>,
        upto: Option<&EntryName>,
        limit: usize,
    ) -> Result<Vec<(EntryName, HeadRank)>, Infallible> {
        Ok(self.disk.ranks(slot, after, upto, limit))
    }

    fn put(&mut self, slot: SlotId, name: &EntryName, head: &EntryHead) -> Result<(), Infallible> {
        self.disk.entries.entry(slot).or_default().insert(name.clone(), head.clone());
        if self.lot.is_multiple_of(16) && !head.is_deleted {
            let late = Duration::from_millis(self.lot / 16 % 1500);
            self.disk.missing.entry(head.content.to_vec()).or_insert(self.now + late);
        }
        Ok(())
    }

    fn remove(&mut self, slot: SlotId, name: &EntryName) -> Result<(), Infallible> {
        self.disk.entries.entry(slot).or_default().remove(name);
        Ok(())
    }

    fn has_parts(&mut self, head: &EntryHead) -> Result<bool, Infallible> {
        Ok(self.disk.missing.get(head.content.as_ref()).is_none_or(|until| *until <= self.now))
    }
}

impl Disk {
    pub(super) fn head(&self, slot: SlotId, name: &EntryName) -> Option<&EntryHead> {
        self.entries.get(&slot)?.get(name)
    }

    pub(super) fn heads(&self, slot: SlotId) -> impl Iterator<Item = (&EntryName, &EntryHead)> {
        self.entries.get(&slot).into_iter().flatten()
    }

    pub(super) fn ranks(
        &self,
        slot: SlotId,
        after: Option<&EntryName>,
        upto: Option<&EntryName>,
        limit: usize,
    ) -> Vec<(EntryName, HeadRank)> {
        let is_asked =
            |name: &EntryName| after.is_none_or(|after| name > after) && upto.is_none_or(|upto| name <= upto);
        let asked = self.heads(slot).filter(|(name, _)| is_asked(name));
        asked.map(|(name, head)| (name.clone(), head.rank())).take(limit).collect()
    }

    pub(super) fn is_learned(&self, slot: SlotId) -> bool {
        self.fences.get(&slot).is_some_and(|fence| fence.is_learned)
    }

    fn summary(&self, slot: SlotId) -> SlotSummary {
        let mut summary = SlotSummary::default();
        for (name, head) in self.heads(slot) {
            summary.add(name, head.rank());
        }
        summary
    }
}
