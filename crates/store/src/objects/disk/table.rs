//! The tables of a disk inside one transaction: what a replica does to them, and what follows from that.
//!
//! ```text
//!   heads       slot, name     -> head                  what a replica stores
//!   index       name           -> rank, size, …         the same in brief, in the order of listings
//!   fences      slot           -> fence, learned
//!   tombstones  slot, age, name -> tag                  those that may be forgotten first, first
//!   namings     part, name     -> slot, bytes, root     which entries name a part; when none does, it is trash
//!   missing     part                                    named, and not here
//!   trash       due, part                               when a part may go
//!   dying       part           -> due                   the same the other way round
//! ```

use std::collections::{BTreeMap, HashSet};

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};
use synod_core::objects::{EntryHead, EntryName, EntryTable, SlotFence, SlotSummary};
use synod_core::slots::{HeadRank, SlotEpoch, SlotId};

use super::Shared;
use super::error::DiskError;
use super::memory::SlotState;
use super::values::{self, IndexRow};
use crate::objects::content::{Body, Content, PartId, PartRef};

/// All tables, open for one batch. What is remembered in memory changes with [`Tables::into_changes`], after the commit.
pub(super) struct Tables<'a> {
    shared: &'a Shared,
    heads: Table<'a, &'static [u8], &'static [u8]>,
    index: Table<'a, &'static [u8], &'static [u8]>,
    fences: Table<'a, u16, &'static [u8]>,
    tombstones: Table<'a, &'static [u8], (u64, u64)>,
    namings: Table<'a, &'static [u8], &'static [u8]>,
    missing: Table<'a, u128, ()>,
    trash: Table<'a, (u64, u128), ()>,
    dying: Table<'a, u128, u64>,
    now_ms: u64,
    changes: Changes,
}

/// What a batch changes beside the tables.
#[derive(Default)]
pub(super) struct Changes {
    /// Whether the tables changed at all.
    pub(super) is_dirty: bool,
    /// Slots that are remembered differently.
    pub(super) slots: BTreeMap<SlotId, SlotState>,
    pub(super) counts: Counts,
    /// Parts whose files go, once the batch is durable.
    pub(super) doomed: HashSet<PartId>,
}

/// How many of each a disk has, or how many more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) entries: i64,
    pub(super) tombstones: i64,
    pub(super) parts: i64,
    pub(super) part_bytes: i64,
}

impl Counts {
    pub(super) const fn add(&mut self, more: Self) {
        self.entries += more.entries;
        self.tombstones += more.tombstones;
        self.parts += more.parts;
        self.part_bytes += more.part_bytes;
    }
}

impl<'a> Tables<'a> {
    pub(super) fn open(transaction: &'a WriteTransaction, shared: &'a Shared) -> Result<Self, DiskError> {
        let failed = shared.failed_entries();
        Ok(Self {
            shared,
            heads: transaction.open_table(HEADS).map_err(&failed)?,
            index: transaction.open_table(INDEX).map_err(&failed)?,
            fences: transaction.open_table(FENCES).map_err(&failed)?,
            tombstones: transaction.open_table(TOMBSTONES).map_err(&failed)?,
            namings: transaction.open_table(NAMINGS).map_err(&failed)?,
            missing: transaction.open_table(MISSING).map_err(&failed)?,
            trash: transaction.open_table(TRASH).map_err(&failed)?,
            dying: transaction.open_table(DYING).map_err(&failed)?,
            now_ms: (shared.options.clock)(),
            changes: Changes::default(),
        })
    }

    pub(super) fn into_changes(self) -> Changes {
        self.changes
    }

    /// Commits even if nothing changes: the tables themselves are new.
    pub(super) const fn set_dirty(&mut self) {
        self.changes.is_dirty = true;
    }

    /// Reads everything that is kept in memory. An entry that cannot be read is forgotten, and its slot with it.
    pub(super) fn recall(&mut self) -> Result<(), DiskError> {
        let failed = self.shared.failed_storage();
        let mut damaged_fences = Vec::new();
        for row in self.fences.iter().map_err(&failed)? {
            let (slot, value) = row.map_err(&failed)?;
            let slot = SlotId::new(slot.value());
            match values::fence_from_bytes(slot, value.value()) {
                Some(fence) => self.changes.slots.entry(slot).or_default().fence = fence,
                None => damaged_fences.push(slot),
            }
        }
        let (mut repaired, mut damaged) = (Vec::new(), Vec::new());
        for row in self.index.iter().map_err(&failed)? {
            let (key, value) = row.map_err(&failed)?;
            let name = EntryName::from_bytes(key.value()).map_err(|error| self.shared.damaged(error))?;
            let slot = name.slot(self.shared.options.total_slots);
            let row = match IndexRow::from_bytes(key.value(), value.value()) {
                Some(row) => row,
                None => match self.row_of_head(slot, &name) {
                    Ok(row) => {
                        repaired.push((name.clone(), row.clone()));
                        row
                    }
                    Err(DiskError::DamagedEntry { .. }) => {
                        damaged.push((slot, name));
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            self.changes.slots.entry(slot).or_default().summary.add(&name, row.rank);
            self.changes.counts.entries += 1;
            self.changes.counts.tombstones += i64::from(row.is_deleted);
        }
        let mut previous = None;
        for row in self.namings.iter().map_err(&failed)? {
            let (key, value) = row.map_err(&failed)?;
            let (part, ..) = values::naming_from_bytes(key.value(), value.value())
                .ok_or_else(|| self.shared.damaged("which entries name a part"))?;
            if previous.replace(part.id) != Some(part.id) {
                self.changes.counts.parts += 1;
                self.changes.counts.part_bytes += part.bytes as i64;
            }
        }
        for (name, row) in repaired {
            tracing::warn!(%name, "repaired what a listing shows of an entry");
            self.put_index(&name, &row)?;
        }
        for slot in damaged_fences {
            tracing::error!(%slot, "the fence of a slot is damaged; it is learned again from the other replicas");
            self.set_fence(slot, SlotFence::default())?;
        }
        for (slot, name) in damaged {
            self.forget_damaged(slot, &name)?;
        }
        Ok(())
    }

    /// Removes an entry that cannot be read. Others relied on this disk to have it, so the slot has no memory any more until
    /// all other replicas were heard. False if the entry can be read.
    pub(super) fn forget_damaged(&mut self, slot: SlotId, name: &EntryName) -> Result<bool, DiskError> {
        let row = match (self.head(slot, name), self.index_row(name)) {
            (Ok(Some(_)), Ok(Some(_))) | (Ok(None), Ok(None)) => return Ok(false),
            (Ok(_) | Err(DiskError::DamagedEntry { .. }), Ok(row)) => row,
            (Ok(_) | Err(DiskError::DamagedEntry { .. }), Err(DiskError::DamagedEntry { .. })) => None,
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        tracing::error!(%slot, %name, "an entry is damaged; its slot is learned again from the other replicas");
        let fence = self.fence(slot)?;
        self.set_fence(slot, SlotFence { is_learned: false, ..fence })?;
        self.release_all(slot, name)?;
        self.delete_rows(slot, name)?;
        match row {
            Some(row) => self.uncount(name, &row)?,
            // Nobody knows how it was counted.
            None => self.recount(slot)?,
        }
        Ok(true)
    }

    /// Sums up a slot anew.
    fn recount(&mut self, slot: SlotId) -> Result<(), DiskError> {
        let failed = self.shared.failed_storage();
        let mut summary = SlotSummary::default();
        let prefix = slot.get().to_be_bytes();
        for row in self.heads.range(prefix.as_slice()..).map_err(&failed)? {
            let (key, _) = row.map_err(&failed)?;
            let Some(name) = key.value().strip_prefix(prefix.as_slice()) else {
                break;
            };
            let name = EntryName::from_bytes(name).map_err(|error| self.shared.damaged(error))?;
            match self.index_row(&name) {
                Ok(Some(row)) => summary.add(&name, row.rank),
                Ok(None) | Err(DiskError::DamagedEntry { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.slot(slot).summary = summary;
        Ok(())
    }

    /// Remembers that there is nothing to learn of a slot.
    pub(super) fn set_learned(&mut self, slot: SlotId) -> Result<(), DiskError> {
        let known = self.fence(slot)?;
        match known.is_learned {
            true => Ok(()),
            false => self.set_fence(slot, SlotFence { is_learned: true, ..known }),
        }
    }

    /// A part came, or it is seen to be here.
    pub(super) fn clear_missing(&mut self, id: PartId) -> Result<(), DiskError> {
        let failed = self.shared.failed_storage();
        let removed = self.missing.remove(id.0).map_err(failed)?.is_some();
        self.changes.is_dirty |= removed;
        Ok(())
    }

    /// The file of a part goes. Whoever names it misses it.
    pub(super) fn remove_part(&mut self, id: PartId) -> Result<(), DiskError> {
        self.changes.doomed.insert(id);
        match self.is_named(id)? {
            true => self.set_missing(id),
            false => Ok(()),
        }
    }

    /// Dooms parts in the trash whose time has come; how many, and whether there are more.
    pub(super) fn empty_trash(
        &mut self,
        now_ms: u64,
        limit: usize,
    ) -> Result<(Vec<PartId>, bool), DiskError> {
        let failed = self.shared.failed_storage();
        let mut due = Vec::new();
        for row in self.trash.range(..=(now_ms, u128::MAX)).map_err(&failed)?.take(limit + 1) {
            due.push(row.map_err(&failed)?.0.value());
        }
        let is_more = due.len() > limit;
        let mut gone = Vec::new();
        for (due_ms, id) in due.into_iter().take(limit) {
            self.changes.is_dirty = true;
            self.trash.remove((due_ms, id)).map_err(&failed)?;
            // Named again since, or released again since: then it is not this time that counts.
            if self.dying.get(id).map_err(&failed)?.is_none_or(|stored| stored.value() != due_ms) {
                continue;
            }
            self.dying.remove(id).map_err(&failed)?;
            if !self.is_named(PartId(id))? {
                gone.push(PartId(id));
            }
        }
        self.changes.doomed.extend(&gone);
        Ok((gone, is_more))
    }

    /// Dooms those of these parts that no entry names and that are not in the trash.
    pub(super) fn doom_orphans(&mut self, old: &[PartId]) -> Result<Vec<PartId>, DiskError> {
        let failed = self.shared.failed_storage();
        let mut gone = Vec::new();
        for id in old {
            let is_dying = self.dying.get(id.0).map_err(&failed)?.is_some();
            if !is_dying && !self.is_named(*id)? {
                gone.push(*id);
            }
        }
        self.changes.doomed.extend(&gone);
        Ok(gone)
    }

    fn slot(&mut self, slot: SlotId) -> &mut SlotState {
        self.changes.slots.entry(slot).or_insert_with(|| self.shared.slot(slot))
    }

    fn index_row(&self, name: &EntryName) -> Result<Option<IndexRow>, DiskError> {
        let key = name.as_bytes();
        let Some(value) = self.index.get(key).map_err(self.shared.failed_storage())? else {
            return Ok(None);
        };
        match IndexRow::from_bytes(key, value.value()) {
            Some(row) => Ok(Some(row)),
            None => self.row_of_head(name.slot(self.shared.options.total_slots), name).map(Some),
        }
    }

    /// What the index should say of an entry that is in it.
    fn row_of_head(&self, slot: SlotId, name: &EntryName) -> Result<IndexRow, DiskError> {
        match read_head(&self.heads, self.shared, slot, name)? {
            Some(head) => Ok(index_row(slot, &head, &content_of(slot, name, &head)?)),
            None => Err(self.shared.damaged_entry(slot, name)),
        }
    }

    fn put_index(&mut self, name: &EntryName, row: &IndexRow) -> Result<(), DiskError> {
        let key = name.as_bytes();
        self.changes.is_dirty = true;
        let value = row.to_bytes(key);
        self.index.insert(key, value.as_slice()).map_err(self.shared.failed_storage())?;
        Ok(())
    }

    fn delete_rows(&mut self, slot: SlotId, name: &EntryName) -> Result<(), DiskError> {
        let failed = self.shared.failed_storage();
        self.changes.is_dirty = true;
        self.heads.remove(values::head_key(slot, name).as_slice()).map_err(&failed)?;
        self.index.remove(name.as_bytes()).map_err(&failed)?;
        Ok(())
    }

    /// An entry is stored no longer, or not like this.
    fn uncount(&mut self, name: &EntryName, row: &IndexRow) -> Result<(), DiskError> {
        self.slot(row.slot).summary.subtract(name, row.rank);
        self.changes.counts.entries -= 1;
        if row.is_deleted {
            self.changes.counts.tombstones -= 1;
            let key = values::tombstone_key(row.slot, row.modified_ms, name.as_bytes());
            self.tombstones.remove(key.as_slice()).map_err(self.shared.failed_storage())?;
        }
        Ok(())
    }

    fn count(&mut self, name: &EntryName, row: &IndexRow) -> Result<(), DiskError> {
        self.slot(row.slot).summary.add(name, row.rank);
        self.changes.counts.entries += 1;
        if row.is_deleted {
            self.changes.counts.tombstones += 1;
            let key = values::tombstone_key(row.slot, row.modified_ms, name.as_bytes());
            let tag = (row.rank.tag.epoch.get(), row.rank.tag.sequence);
            self.tombstones.insert(key.as_slice(), tag).map_err(self.shared.failed_storage())?;
        }
        Ok(())
    }

    /// The parts that the stored head of an entry names. `None` when nobody knows, because the head is damaged.
    fn parts_of(&self, slot: SlotId, name: &EntryName) -> Result<Option<Vec<PartRef>>, DiskError> {
        match read_head(&self.heads, self.shared, slot, name) {
            Ok(Some(head)) => Ok(Some(parts_in(&content_of(slot, name, &head)?).to_vec())),
            Ok(None) => Ok(Some(Vec::new())),
            Err(DiskError::DamagedEntry { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_named(&self, id: PartId) -> Result<bool, DiskError> {
        let failed = self.shared.failed_storage();
        let from = id.0.to_be_bytes();
        let mut rows = self.namings.range(from.as_slice()..).map_err(&failed)?;
        let next = rows.next().transpose().map_err(&failed)?;
        Ok(next.is_some_and(|(key, _)| key.value().starts_with(&from)))
    }

    fn name_part(&mut self, slot: SlotId, name: &EntryName, part: &PartRef) -> Result<(), DiskError> {
        let failed = self.shared.failed_storage();
        if !self.is_named(part.id)? {
            self.changes.counts.parts += 1;
            self.changes.counts.part_bytes += part.bytes as i64;
        }
        let key = values::naming_key(part.id, name);
        let value = values::naming_to_bytes(&key, slot, part);
        self.namings.insert(key.as_slice(), value.as_slice()).map_err(&failed)?;
        self.dying.remove(part.id.0).map_err(&failed)?;
        match self.is_here(part)? {
            true => Ok(()),
            false => self.set_missing(part.id),
        }
    }

    /// An entry names a part no longer. When no other does, its time comes.
    fn release(&mut self, name: &EntryName, part: &PartRef) -> Result<(), DiskError> {
        let failed = self.shared.failed_storage();
        let key = values::naming_key(part.id, name);
        self.changes.is_dirty = true;
        let was_named = self.namings.remove(key.as_slice()).map_err(&failed)?.is_some();
        if !was_named || self.is_named(part.id)? {
            return Ok(());
        }
        self.changes.counts.parts -= 1;
        self.changes.counts.part_bytes -= part.bytes as i64;
        let due_ms = self.now_ms.saturating_add(self.shared.options.trash_grace_ms);
        self.missing.remove(part.id.0).map_err(&failed)?;
        self.trash.insert((due_ms, part.id.0), ()).map_err(&failed)?;
        self.dying.insert(part.id.0, due_ms).map_err(&failed)?;
        Ok(())
    }

    /// The same for all parts that an entry names, when its head cannot say which. Looks at every part of the disk.
    fn release_all(&mut self, slot: SlotId, name: &EntryName) -> Result<(), DiskError> {
        let failed = self.shared.failed_storage();
        let mut parts = Vec::new();
        for row in self.namings.iter().map_err(&failed)? {
            let (key, value) = row.map_err(&failed)?;
            let naming = values::naming_from_bytes(key.value(), value.value());
            parts.extend(naming.filter(|found| found.1 == slot && found.2 == *name).map(|found| found.0));
        }
        parts.iter().try_for_each(|part| self.release(name, part))
    }

    fn is_here(&self, part: &PartRef) -> Result<bool, DiskError> {
        Ok(!self.changes.doomed.contains(&part.id) && self.shared.parts.is_present(part)?)
    }

    fn set_missing(&mut self, id: PartId) -> Result<(), DiskError> {
        self.changes.is_dirty = true;
        self.missing.insert(id.0, ()).map_err(self.shared.failed_storage())?;
        Ok(())
    }
}

impl EntryTable for Tables<'_> {
    type Error = DiskError;

    fn fence(&mut self, slot: SlotId) -> Result<SlotFence, DiskError> {
        Ok(self.slot(slot).fence)
    }

    fn set_fence(&mut self, slot: SlotId, fence: SlotFence) -> Result<(), DiskError> {
        let value = values::fence_to_bytes(slot, fence);
        self.fences.insert(slot.get(), value.as_slice()).map_err(self.shared.failed_storage())?;
        self.changes.is_dirty = true;
        self.slot(slot).fence = fence;
        Ok(())
    }

    fn summary(&mut self, slot: SlotId) -> Result<SlotSummary, DiskError> {
        Ok(self.slot(slot).summary)
    }

    fn rank(&mut self, _: SlotId, name: &EntryName) -> Result<Option<HeadRank>, DiskError> {
        Ok(self.index_row(name)?.map(|row| row.rank))
    }

    fn head(&mut self, slot: SlotId, name: &EntryName) -> Result<Option<EntryHead>, DiskError> {
        read_head(&self.heads, self.shared, slot, name)
    }

    fn ranks(
        &mut self,
        slot: SlotId,
        after: Option<&EntryName>,
        upto: Option<&EntryName>,
        limit: usize,
    ) -> Result<Vec<(EntryName, HeadRank)>, DiskError> {
        read_ranks(&self.heads, self.shared, slot, after, upto, limit)
    }

    fn put(&mut self, slot: SlotId, name: &EntryName, head: &EntryHead) -> Result<(), DiskError> {
        let content = content_of(slot, name, head)?;
        let named = parts_in(&content);
        let before = self.index_row(name)?;
        let released = match &before {
            Some(row) if row.has_parts => self.parts_of(slot, name)?,
            _ => Some(Vec::new()),
        };
        match released {
            Some(parts) => {
                let kept: HashSet<PartId> = named.iter().map(|part| part.id).collect();
                let mut gone = parts.iter().filter(|part| !kept.contains(&part.id));
                gone.try_for_each(|part| self.release(name, part))?;
            }
            None => self.release_all(slot, name)?,
        }
        for part in named {
            self.name_part(slot, name, part)?;
        }
        if let Some(row) = before {
            self.uncount(name, &row)?;
        }
        let row = index_row(slot, head, &content);
        self.count(name, &row)?;
        self.put_index(name, &row)?;
        let key = values::head_key(slot, name);
        let value = values::head_to_bytes(&key, head);
        self.heads.insert(key.as_slice(), value.as_slice()).map_err(self.shared.failed_storage())?;
        Ok(())
    }

    fn remove(&mut self, slot: SlotId, name: &EntryName) -> Result<(), DiskError> {
        let Some(row) = self.index_row(name)? else {
            return Ok(());
        };
        match self.parts_of(slot, name)? {
            Some(parts) => parts.iter().try_for_each(|part| self.release(name, part))?,
            None => self.release_all(slot, name)?,
        }
        self.uncount(name, &row)?;
        self.delete_rows(slot, name)
    }

    fn has_parts(&mut self, head: &EntryHead) -> Result<bool, DiskError> {
        if head.is_deleted {
            return Ok(true);
        }
        let unreadable = |_| DiskError::Refused { reason: "the content of a head cannot be read".into() };
        let content = Content::from_bytes(head.content.clone()).map_err(unreadable)?;
        for part in parts_in(&content) {
            if !self.is_here(part)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The head of an entry in a table of heads.
pub(super) fn read_head(
    heads: &impl ReadableTable<&'static [u8], &'static [u8]>,
    shared: &Shared,
    slot: SlotId,
    name: &EntryName,
) -> Result<Option<EntryHead>, DiskError> {
    let key = values::head_key(slot, name);
    let Some(value) = heads.get(key.as_slice()).map_err(shared.failed_storage())? else {
        return Ok(None);
    };
    match values::head_from_bytes(&key, value.value()) {
        Some(head) => Ok(Some(head)),
        None => Err(shared.damaged_entry(slot, name)),
    }
}

/// The ranks of some entries of a slot.
pub(super) fn read_ranks(
    heads: &impl ReadableTable<&'static [u8], &'static [u8]>,
    shared: &Shared,
    slot: SlotId,
    after: Option<&EntryName>,
    upto: Option<&EntryName>,
    limit: usize,
) -> Result<Vec<(EntryName, HeadRank)>, DiskError> {
    use std::ops::Bound;
    let failed = shared.failed_storage();
    let start =
        after.map_or_else(|| slot.get().to_be_bytes().to_vec(), |after| values::head_key(slot, after));
    let rows =
        heads.range::<&[u8]>((Bound::Excluded(start.as_slice()), Bound::Unbounded)).map_err(&failed)?;
    let mut ranks = Vec::new();
    for row in rows {
        let (key, value) = row.map_err(&failed)?;
        let Some(name) = key.value().strip_prefix(slot.get().to_be_bytes().as_slice()) else {
            break;
        };
        if ranks.len() == limit || upto.is_some_and(|upto| name > upto.as_bytes()) {
            break;
        }
        let name = EntryName::from_bytes(name).map_err(|error| shared.damaged(error))?;
        match values::head_from_bytes(key.value(), value.value()) {
            Some(head) => ranks.push((name, head.rank())),
            None => return Err(shared.damaged_entry(slot, &name)),
        }
    }
    Ok(ranks)
}

fn index_row(slot: SlotId, head: &EntryHead, content: &Content) -> IndexRow {
    IndexRow::new(slot, head, content, !parts_in(content).is_empty())
}

fn content_of(slot: SlotId, name: &EntryName, head: &EntryHead) -> Result<Content, DiskError> {
    // Checked before it was stored.
    Content::from_bytes(head.content.clone())
        .map_err(|_| DiskError::DamagedEntry { slot, name: name.clone() })
}

fn parts_in(content: &Content) -> &[PartRef] {
    match &content.body {
        Body::Parts(parts) => parts,
        Body::Inline(_) => &[],
    }
}

/// Nothing is remembered of a slot that was never heard of.
pub(super) const UNKNOWN: SlotState = SlotState {
    fence: SlotFence { fence: SlotEpoch::ZERO, is_learned: false },
    summary: SlotSummary { digest: 0, count: 0 },
};

pub(super) const HEADS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("heads");
pub(super) const INDEX: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("index");
pub(super) const FENCES: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("fences");
pub(super) const TOMBSTONES: TableDefinition<'_, &[u8], (u64, u64)> = TableDefinition::new("tombstones");
pub(super) const NAMINGS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("namings");
pub(super) const MISSING: TableDefinition<'_, u128, ()> = TableDefinition::new("missing");
const TRASH: TableDefinition<'_, (u64, u128), ()> = TableDefinition::new("trash");
const DYING: TableDefinition<'_, u128, u64> = TableDefinition::new("dying");
