//! The segments of a log and what is done to them, one call after the other, with no thread in sight.
//!
//! The flusher owns the [`Store`] and is the only one to change files. Readers share its list of [`Segments`], which holds
//! only what is durable: the list grows after a sync, and shrinks before files do.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::config::LogConfig;
use crate::disk::{Disk, DiskFile};
use crate::error::{Corruption, Damage, DiskError, LogError, OpenError};
use crate::format::{
    FIRST_INDEX, RECORD_HEADER_BYTES, RawRecord, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentKind,
    payload_bytes, segment_name,
};
use crate::recovery::{Recovery, read_segments};

/// A durable record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the log.
    pub index: u64,
    /// What was appended.
    pub payload: Vec<u8>,
}

/// The files of a log. After an error it must not be used any more: what is on the disk is not known.
pub(crate) struct Store {
    disk: Arc<dyn Disk>,
    segment_bytes_max: usize,
    segments: Arc<Segments>,
    /// Whether a mark stands behind the last record.
    is_sealed: bool,
    /// Up to where the file of the last segment is known to reach, with zeros behind the last record.
    filled_bytes: usize,
    /// How many zeros are written at a time. See [`FILL_BYTES`].
    fill_bytes: usize,
    buffer: Vec<u8>,
}

impl Store {
    /// Reads what is there, cuts off what a crash has torn, and makes the rest durable.
    pub(crate) fn open(disk: Arc<dyn Disk>, config: &LogConfig) -> Result<(Self, Recovery), OpenError> {
        config.validate()?;
        let found = read_segments(&*disk)?;
        if let Some(cut) = found.cut.as_ref().filter(|cut| cut.offset == 0) {
            disk.remove(&cut.file).map_err(DiskError::at("remove", &cut.file))?;
        }
        // The process before may have ended between a creation or removal and the sync of the directory.
        disk.sync_dir().map_err(DiskError::at("sync", "directory"))?;
        if let Some(last) = found.segments.last() {
            if found.cut.as_ref().is_some_and(|cut| cut.offset > 0) {
                last.file.truncate(last.length as u64).map_err(DiskError::at("truncate", &last.name))?;
            }
            // Or between a write and its sync: what can be read is not durable for that.
            last.sync()?;
        }
        // Only now that their successor is durable.
        for name in &found.leftovers {
            disk.remove(name).map_err(DiskError::at("remove", name))?;
        }
        if !found.leftovers.is_empty() {
            disk.sync_dir().map_err(DiskError::at("sync", "directory"))?;
        }
        let (cut, is_sealed) = (found.cut, found.is_sealed);
        let filled_bytes = if cut.is_none() { found.filled_bytes } else { 0 };
        let segments = Arc::new(Segments { list: RwLock::new(found.segments), shrinking: RwLock::new(()) });
        let mut store = Self {
            disk,
            segment_bytes_max: config.segment_bytes_max,
            segments,
            is_sealed,
            filled_bytes,
            fill_bytes: FILL_BYTES,
            buffer: Vec::new(),
        };
        if store.segments.read().is_empty() {
            store.add_segment(SegmentKind::Next, FIRST_INDEX)?;
        }
        store.seal()?;
        let (first_index, last_index) = (store.segments.first_index(), store.segments.last_index());
        Ok((store, Recovery { first_index, last_index, cut }))
    }

    /// Appends records, with one write and one sync for as many as fit into a segment, and says after each sync how many
    /// more are durable.
    pub(crate) fn append<P: AsRef<[u8]>>(
        &mut self,
        payloads: &[P],
        mut on_durable: impl FnMut(usize),
    ) -> Result<(), DiskError> {
        let mut rest = payloads;
        while let Some(next) = rest.first() {
            let mut tail = self.segments.tail();
            if !self.fits(tail.length, next.as_ref()) {
                self.add_segment(SegmentKind::Next, tail.next_index)?;
                tail = self.segments.tail();
            }
            let vouched = tail.next_index - 1;
            let mut records = Vec::new();
            self.buffer.clear();
            for payload in rest.iter().map(AsRef::as_ref) {
                let offset = tail.length + self.buffer.len();
                if !self.fits(offset, payload) {
                    break;
                }
                let index = tail.next_index + records.len() as u64;
                RawRecord { index, vouched, payload }.encode(tail.salt, &mut self.buffer);
                records.push((index, offset));
            }
            let bytes = self.buffer.len();
            self.fill_ahead(&tail);
            self.write_buffer(&tail)?;
            self.is_sealed = false;
            {
                let mut segments = self.segments.write();
                let Some(last) = segments.last_mut() else { break };
                last.length += bytes;
                last.next_index += records.len() as u64;
                for (index, offset) in &records {
                    last.landmarks.pass(*index, *offset);
                }
            }
            rest = &rest[records.len()..];
            on_durable(records.len());
        }
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        Ok(())
    }

    /// Removes all records behind an index, which must be one of the log or the one before its first.
    pub(crate) fn truncate_after(&mut self, index: u64) -> Result<(), LogError> {
        let segments = Arc::clone(&self.segments);
        let _shrinking = segments.shrink();
        self.remove_after(index)
    }

    /// Removes the segments that hold only records before an index. The last segment stays.
    pub(crate) fn compact_before(&mut self, index: u64) -> Result<(), DiskError> {
        let segments = Arc::clone(&self.segments);
        let _shrinking = segments.shrink();
        self.remove_before(index)
    }

    /// Removes all records, and lets the next one have an index, which must not be before the log.
    pub(crate) fn reset_to(&mut self, index: u64) -> Result<(), LogError> {
        let segments = Arc::clone(&self.segments);
        let _shrinking = segments.shrink();
        // Segments behind the new one would be taken for its successors.
        self.remove_after(index - 1)?;
        if self.segments.tail().first_index != index {
            self.add_segment(SegmentKind::Reset, index)?;
        }
        Ok(self.remove_before(index)?)
    }

    fn remove_after(&mut self, index: u64) -> Result<(), LogError> {
        // From the end, each durable before the next: whenever a crash comes, what is left has no gap.
        loop {
            let removed = {
                let mut segments = self.segments.write();
                let is_behind =
                    segments.len() > 1 && segments.last().is_some_and(|last| last.first_index > index);
                is_behind.then(|| segments.pop()).flatten()
            };
            let Some(segment) = removed else { break };
            self.remove(&segment.name)?;
        }
        let mut tail = self.segments.snapshot(index + 1);
        if index + 1 < tail.next_index {
            tail.length = tail.find(index + 1)?;
            tail.next_index = index + 1;
            if let Some(last) = self.segments.write().last_mut() {
                last.length = tail.length;
                last.next_index = tail.next_index;
                last.landmarks.forget_after(index);
            }
            tail.file.truncate(tail.length as u64).map_err(DiskError::at("truncate", &tail.name))?;
            tail.sync()?;
        }
        self.filled_bytes = tail.length;
        // The mark of an earlier end may be the end again.
        self.is_sealed = tail.ends_with_mark()?;
        Ok(())
    }

    fn remove_before(&self, index: u64) -> Result<(), DiskError> {
        loop {
            let removed = {
                let mut segments = self.segments.write();
                let is_before =
                    segments.len() > 1 && segments.first().is_some_and(|first| first.next_index <= index);
                is_before.then(|| segments.remove(0))
            };
            let Some(segment) = removed else { return Ok(()) };
            self.remove(&segment.name)?;
        }
    }

    /// Puts a mark behind the last record, which vouches for it and all before, and gives back what was filled in ahead.
    pub(crate) fn seal(&mut self) -> Result<(), DiskError> {
        let tail = self.segments.tail();
        // In an empty segment there is nothing to vouch for: that it exists vouches for the one before.
        if self.is_sealed || tail.next_index == tail.first_index {
            return Ok(());
        }
        // Only zeros go, so that it does not matter which of the two a crash leaves.
        tail.file.truncate(tail.length as u64).map_err(DiskError::at("truncate", &tail.name))?;
        self.buffer.clear();
        RawRecord::mark(tail.next_index - 1).encode(tail.salt, &mut self.buffer);
        self.write_buffer(&tail)?;
        self.is_sealed = true;
        self.filled_bytes = tail.length + self.buffer.len();
        if let Some(last) = self.segments.write().last_mut() {
            last.length += self.buffer.len();
        }
        Ok(())
    }

    pub(crate) fn segments(&self) -> &Arc<Segments> {
        &self.segments
    }

    /// Whether a record fits in at an offset, with a mark behind it.
    fn fits(&self, offset: usize, payload: &[u8]) -> bool {
        offset + payload.len() + 2 * RECORD_HEADER_BYTES <= self.segment_bytes_max
    }

    /// Lets zeros follow what is written, if that makes the file longer. Until they are used up, no write does, and a sync
    /// has only data to write and not the length as well. Large writes are not worth doubling: their sync costs little for
    /// what it makes durable.
    fn fill_ahead(&mut self, tail: &Segment) {
        let end = tail.length + self.buffer.len();
        if end > self.filled_bytes && self.buffer.len() <= self.fill_bytes / 4 {
            let filled = (end + self.fill_bytes).min(self.segment_bytes_max).max(end);
            self.buffer.resize(filled - tail.length, 0);
        }
        self.filled_bytes = self.filled_bytes.max(tail.length + self.buffer.len());
    }

    fn write_buffer(&self, tail: &Segment) -> Result<(), DiskError> {
        tail.file.write_at(tail.length as u64, &self.buffer).map_err(DiskError::at("write", &tail.name))?;
        tail.sync()
    }

    /// Everything before must be durable: that the new segment exists says so.
    fn add_segment(&mut self, kind: SegmentKind, first_index: u64) -> Result<(), DiskError> {
        let (name, header) = (segment_name(first_index), SegmentHeader::new(kind, first_index));
        let file = self.disk.create(&name).map_err(DiskError::at("create", &name))?;
        let segment = Segment {
            name,
            file: file.into(),
            first_index,
            next_index: first_index,
            length: SEGMENT_HEADER_BYTES,
            salt: header.salt,
            landmarks: Landmarks::default(),
        };
        segment.file.write_at(0, &header.encode()).map_err(DiskError::at("write", &segment.name))?;
        segment.sync()?;
        self.disk.sync_dir().map_err(DiskError::at("sync", "directory"))?;
        self.segments.write().push(segment);
        self.is_sealed = false;
        self.filled_bytes = SEGMENT_HEADER_BYTES;
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name).map_err(DiskError::at("remove", name))?;
        self.disk.sync_dir().map_err(DiskError::at("sync", "directory"))
    }
}

/// The durable part of a log, shared with readers. There is always at least one segment after opening.
pub(crate) struct Segments {
    list: RwLock<Vec<Segment>>,
    /// Readers share it for as long as they read, and whoever removes records holds it alone. The list itself is locked
    /// only for moments, so that nobody who reads a lot keeps the flusher from answering. Taken before the list.
    shrinking: RwLock<()>,
}

impl Segments {
    pub(crate) fn first_index(&self) -> u64 {
        self.read().first().map_or(FIRST_INDEX, |segment| segment.first_index)
    }

    pub(crate) fn last_index(&self) -> u64 {
        self.read().last().map_or(FIRST_INDEX, |segment| segment.next_index) - 1
    }

    /// Records from an index on, until they and their headers would exceed a size; at least one if there is one.
    pub(crate) fn records(&self, from: u64, bytes_max: usize) -> Result<Vec<Record>, LogError> {
        let _not_shrinking = self.shrinking.read().unwrap_or_else(PoisonError::into_inner);
        let (first, next) = (self.first_index(), self.last_index() + 1);
        if from < first || from > next {
            return Err(LogError::OutOfRange { index: from, first, last: next - 1 });
        }
        let (mut records, mut bytes, mut from, mut is_full) = (Vec::new(), 0, from, false);
        while from < next && !is_full {
            let segment = self.snapshot(from);
            segment.visit(from, |_, record| {
                is_full = !records.is_empty() && bytes + record.bytes() > bytes_max;
                if !is_full && record.index >= from {
                    bytes += record.bytes();
                    records.push(Record { index: record.index, payload: record.payload.to_vec() });
                }
                !is_full
            })?;
            from = segment.next_index;
        }
        Ok(records)
    }

    /// The last segment as it is now.
    fn tail(&self) -> Segment {
        self.snapshot(u64::MAX)
    }

    /// The segment with an index as it is now, or the last one, with the landmark for that index.
    fn snapshot(&self, index: u64) -> Segment {
        let segments = self.read();
        // Opening adds a segment if there is none, and nothing removes the last one.
        assert!(!segments.is_empty(), "a log has at least one segment");
        let position = segments.partition_point(|segment| segment.next_index <= index);
        segments[position.min(segments.len() - 1)].snapshot(index)
    }

    fn shrink(&self) -> RwLockWriteGuard<'_, ()> {
        self.shrinking.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Segment>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Segment>> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One file, as far as it is durable.
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) first_index: u64,
    /// One more than the last index.
    pub(crate) next_index: u64,
    pub(crate) length: usize,
    pub(crate) salt: u64,
    pub(crate) landmarks: Landmarks,
}

impl Segment {
    fn sync(&self) -> Result<(), DiskError> {
        self.file.sync().map_err(DiskError::at("sync", &self.name))
    }

    fn ends_with_mark(&self) -> Result<bool, DiskError> {
        let mut end = [0; RECORD_HEADER_BYTES];
        let offset = (self.length - RECORD_HEADER_BYTES) as u64;
        let read = self.file.read_at(offset, &mut end).map_err(DiskError::at("read", &self.name))?;
        Ok(RawRecord::decode(self.salt, &end[..read]).is_some_and(|end| end.is_mark()))
    }

    /// Where a record of this segment begins.
    fn find(&self, index: u64) -> Result<usize, LogError> {
        let mut found = None;
        self.visit(index, |offset, record| {
            found = (record.index == index).then_some(offset);
            found.is_none()
        })?;
        found.ok_or_else(|| Corruption::new(&self.name, self.length, Damage::Record { index }).into())
    }

    /// Shows records with their offsets, beginning at or somewhat before an index, until the visitor says no.
    fn visit(
        &self,
        from: u64,
        mut visitor: impl FnMut(usize, RawRecord<'_>) -> bool,
    ) -> Result<(), LogError> {
        let (mut expected, mut offset) =
            self.landmarks.before(from).unwrap_or((self.first_index, SEGMENT_HEADER_BYTES));
        let mut chunk = Vec::new();
        let mut wanted = CHUNK_BYTES;
        while expected < self.next_index {
            chunk.resize(wanted.min(self.length - offset), 0);
            let read =
                self.file.read_at(offset as u64, &mut chunk).map_err(DiskError::at("read", &self.name))?;
            let mut used = 0;
            while let Some(record) = RawRecord::decode(self.salt, &chunk[used..read]) {
                if record.index != expected - u64::from(record.is_mark()) {
                    break;
                }
                if !record.is_mark() {
                    if !visitor(offset + used, record) {
                        return Ok(());
                    }
                    expected += 1;
                }
                used += record.bytes();
            }
            // Either the chunk ended within a record, which then gets a chunk that holds it, or the record is bad.
            let needed =
                payload_bytes(&chunk[used..read]).map_or(CHUNK_BYTES, |bytes| bytes + RECORD_HEADER_BYTES);
            let is_end = read < chunk.len() || chunk.len() == self.length - offset;
            let is_stuck = used == 0 && (needed <= read || is_end);
            if is_stuck && expected < self.next_index {
                let damage = Damage::Record { index: expected };
                return Err(Corruption::new(&self.name, offset, damage).into());
            }
            wanted = needed.max(CHUNK_BYTES);
            offset += used;
        }
        Ok(())
    }

    fn snapshot(&self, index: u64) -> Self {
        let landmarks = Landmarks(self.landmarks.before(index).into_iter().collect());
        Self { name: self.name.clone(), file: Arc::clone(&self.file), landmarks, ..*self }
    }
}

/// Where every so often a record begins, so that finding one reads little.
#[derive(Debug, Default)]
pub(crate) struct Landmarks(Vec<(u64, usize)>);

impl Landmarks {
    /// Takes note of a record, or not, if it is near the one before.
    pub(crate) fn pass(&mut self, index: u64, offset: usize) {
        if self.0.last().is_none_or(|(_, last)| offset >= last + LANDMARK_BYTES) {
            self.0.push((index, offset));
        }
    }

    fn before(&self, index: u64) -> Option<(u64, usize)> {
        self.0
            .partition_point(|(landmark, _)| *landmark <= index)
            .checked_sub(1)
            .map(|position| self.0[position])
    }

    fn forget_after(&mut self, index: u64) {
        self.0.retain(|(landmark, _)| *landmark <= index);
    }
}

/// Enough that few syncs in a hundred have to write the length of the file, and little to write twice.
const FILL_BYTES: usize = 256 << 10;
const LANDMARK_BYTES: usize = 64 << 10;
const CHUNK_BYTES: usize = 64 << 10;
const BUFFER_BYTES_KEPT: usize = 1 << 20;

#[cfg(test)]
mod tests;
