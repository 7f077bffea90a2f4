//! What the owner of a disk does with parts: writes, reads and looks for them.

use std::ops::Bound;

use synod_core::objects::EntryName;
use synod_core::slots::SlotId;

use super::Disk;
use super::error::DiskError;
use super::limits::SMALL_JOB_BYTES;
use super::parts::{PartReader, PartSeal, PartWriter};
use super::table::{MISSING, NAMINGS, Tables};
use super::values;
use super::writer::Work;
use crate::objects::content::{PartId, PartRef};

impl Disk {
    /// Begins to write a part. This and everything else about parts blocks.
    ///
    /// # Errors
    /// There is no room, or the file cannot be made.
    pub(crate) fn create_part(&self, id: PartId) -> Result<PartFile, DiskError> {
        self.check_failure()?;
        let writer = self.shared().parts.create(id)?;
        Ok(PartFile { disk: self.clone(), id, writer })
    }

    /// A part, to read from; `None` if it is not here.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub(crate) fn open_part(&self, id: PartId) -> Result<Option<PartReader>, DiskError> {
        self.check_failure()?;
        self.shared().parts.open_part(id)
    }

    /// Whether a part is here, for good, as it is named. A damaged one is not.
    ///
    /// # Errors
    /// Its file cannot be read.
    #[cfg_attr(not(test), allow(dead_code, reason = "for whoever checks the parts of a disk"))]
    pub(crate) fn has_part(&self, part: &PartRef) -> Result<bool, DiskError> {
        match self.open_part(part.id) {
            Ok(found) => {
                Ok(found.is_some_and(|found| (found.bytes(), found.root()) == (part.bytes, part.root)))
            }
            Err(error) if error.is_damage() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a part. If entries name it, it is missing from then on.
    ///
    /// # Errors
    /// The disk failed, or is busy.
    pub(crate) fn remove_part(&self, id: PartId) -> Result<(), DiskError> {
        self.in_writer(move |tables| tables.remove_part(id))?;
        self.shared().parts.remove_unnamed(id)
    }

    /// Parts that stored heads name and that are not here, in the order of their ids, each with an entry that names it.
    ///
    /// # Errors
    /// The disk failed.
    pub(crate) fn missing_parts(
        &self,
        limit: usize,
        after: Option<PartId>,
    ) -> Result<Vec<(PartRef, SlotId, EntryName)>, DiskError> {
        let failed = self.shared().failed_storage();
        let (missing, namings) = (self.read_table(MISSING)?, self.read_table(NAMINGS)?);
        let start = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.0));
        let (mut found, mut came) = (Vec::new(), Vec::new());
        for row in missing.range::<u128>((start, Bound::Unbounded)).map_err(&failed)? {
            let id = PartId(row.map_err(&failed)?.0.value());
            if found.len() == limit {
                break;
            }
            let from = id.0.to_be_bytes();
            let mut names = namings.range(from.as_slice()..).map_err(&failed)?;
            let Some((key, value)) = names.next().transpose().map_err(&failed)? else {
                continue;
            };
            let naming = values::naming_from_bytes(key.value(), value.value());
            let Some(naming) = naming.filter(|(part, ..)| part.id == id) else {
                continue;
            };
            // It may have come while the head that names it was being written.
            match self.shared().parts.is_present(&naming.0)? {
                true => came.push(id),
                false => found.push(naming),
            }
        }
        came.into_iter().for_each(|id| self.part_came(id));
        Ok(found)
    }

    /// Parts that stored heads name, in the order of their ids: those after `after`, each with its slot.
    ///
    /// # Errors
    /// The disk failed.
    pub(crate) fn named_parts(
        &self,
        after: Option<PartId>,
        limit: usize,
    ) -> Result<Vec<(PartRef, SlotId)>, DiskError> {
        let failed = self.shared().failed_storage();
        let namings = self.read_table(NAMINGS)?;
        // A part may be named twice; the first name will do.
        let from = after.map_or(Some(0), |after| after.0.checked_add(1)).map(u128::to_be_bytes);
        let Some(from) = from else { return Ok(Vec::new()) };
        let mut found: Vec<(PartRef, SlotId)> = Vec::new();
        for row in namings.range(from.as_slice()..).map_err(&failed)? {
            let (key, value) = row.map_err(&failed)?;
            let Some((part, slot, _)) = values::naming_from_bytes(key.value(), value.value()) else {
                continue;
            };
            if found.last().is_some_and(|(last, _)| last.id == part.id) {
                continue;
            }
            if found.len() == limit {
                break;
            }
            found.push((part, slot));
        }
        Ok(found)
    }

    /// Whether a stored head names a part.
    ///
    /// # Errors
    /// The disk failed.
    pub(crate) fn is_named(&self, id: PartId) -> Result<bool, DiskError> {
        let failed = self.shared().failed_storage();
        let namings = self.read_table(NAMINGS)?;
        let from = id.0.to_be_bytes();
        let mut names = namings.range(from.as_slice()..).map_err(&failed)?;
        let first = names.next().transpose().map_err(&failed)?;
        Ok(first.is_some_and(|(key, _)| key.value().starts_with(&from)))
    }

    /// Parts that are here, in some order that stays the same: those after `after`.
    ///
    /// # Errors
    /// A directory cannot be read.
    #[cfg_attr(not(test), allow(dead_code, reason = "for whoever checks the parts of a disk"))]
    pub(crate) fn part_ids(&self, after: Option<PartId>, limit: usize) -> Result<Vec<PartId>, DiskError> {
        self.check_failure()?;
        Ok(self.shared().parts.walk(after, limit, |_, _| true)?.found)
    }

    /// A part has its place now. If heads were waiting for it, they do no longer.
    fn part_came(&self, id: PartId) {
        let work = Work::new(
            move |tables: &mut Tables<'_>| tables.clear_missing(id),
            move |cleared: Result<(), DiskError>| {
                if let Err(error) = cleared {
                    // It is seen to be here by whoever looks for missing parts next.
                    tracing::debug!(part = %id, %error, "cannot note that a part came");
                }
            },
        );
        self.push(SMALL_JOB_BYTES, Box::new(work));
    }
}

/// A part that is being written. Dropped before it is sealed, it leaves nothing.
pub(crate) struct PartFile {
    disk: Disk,
    id: PartId,
    writer: PartWriter,
}

impl PartFile {
    /// Takes more bytes.
    ///
    /// # Errors
    /// There is no room, the part becomes too large, or the file cannot be written. The part is of no use then.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        self.writer.write(bytes)
    }

    /// Makes the part durable. A part that is here already stays as it is, or is replaced if it is damaged.
    ///
    /// # Errors
    /// There is no room, the file cannot be written, or the part is here already with other bytes.
    pub(crate) fn seal(self) -> Result<PartSeal, DiskError> {
        let seal = self.writer.seal()?;
        let missing = self.disk.read_table(MISSING)?;
        if missing.get(self.id.0).map_err(self.disk.shared().failed_storage())?.is_some() {
            self.disk.part_came(self.id);
        }
        Ok(seal)
    }
}
