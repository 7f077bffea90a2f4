//! Reading what is on the disk, and telling an end that a crash has torn from damage.

use crate::disk::Disk;
use crate::error::{Corruption, Damage, DiskError, OpenError};
use crate::format::{
    RawRecord, SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_BYTES, SegmentHeader, is_vouched_for, parse_segment_name,
};
use crate::store::{FIRST_INDEX, Landmarks, Segment};

/// What was found when a log was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The index of the first record; one more than `last_index` if there are none.
    pub first_index: u64,
    /// The index of the last record.
    pub last_index: u64,
    /// What a crash had left behind the last record, and what was cut off.
    pub cut: Option<Cut>,
}

/// The end of a log that a crash has torn. None of its records was acknowledged, unless the disk damaged them later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub file: String,
    /// Where it was cut; 0 if it was removed, because the crash came before its header was durable.
    pub offset: u64,
    /// How many bytes were cut off.
    pub bytes: u64,
}

/// What recovery found and has not changed yet.
pub(crate) struct Found {
    pub(crate) segments: Vec<Segment>,
    pub(crate) cut: Option<Cut>,
    /// Whether a mark vouches for the last record already.
    pub(crate) is_sealed: bool,
}

/// Reads all segments. Changes nothing.
pub(crate) fn read_segments(disk: &dyn Disk) -> Result<Found, OpenError> {
    let mut names = Vec::new();
    for name in disk.list().map_err(DiskError::at("list", "directory"))? {
        match parse_segment_name(&name) {
            Some(Ok(first_index)) => names.push((first_index, name)),
            Some(Err(damage)) => return Err(Corruption::new(&name, 0, damage).into()),
            None => {}
        }
    }
    names.sort_unstable();

    let mut found = Found { segments: Vec::new(), cut: None, is_sealed: false };
    let last = names.len().saturating_sub(1);
    for (position, (first_index, name)) in names.into_iter().enumerate() {
        let expected = found.segments.last().map(|before| before.next_index);
        if let Some(expected) = expected.filter(|expected| *expected != first_index) {
            return Err(Corruption::new(&name, 0, Damage::Gap { expected, found: first_index }).into());
        }
        let file = disk.open(&name).map_err(DiskError::at("open", &name))?;
        let length = file.length().map_err(DiskError::at("measure", &name))?;
        let length = usize::try_from(length).ok().filter(|length| *length <= SEGMENT_BYTES_LIMIT);
        let length = length.ok_or_else(|| Corruption::new(&name, SEGMENT_BYTES_LIMIT, Damage::Length))?;
        let mut bytes = vec![0; length];
        let read = file.read_at(0, &mut bytes).map_err(DiskError::at("read", &name))?;
        bytes.truncate(read);

        let header = match SegmentHeader::decode(&bytes) {
            Ok(header) if header.first_index == first_index => header,
            // Records are only written once the header is durable. A lone bad header at the end of the log, where a new
            // segment may begin, is therefore one that was never finished.
            Err(Damage::Header)
                if position == last
                    && bytes.len() <= SEGMENT_HEADER_BYTES
                    && (expected.is_some() || first_index == FIRST_INDEX) =>
            {
                found.cut = Some(Cut { file: name, offset: 0, bytes: bytes.len() as u64 });
                break;
            }
            Ok(_) => return Err(Corruption::new(&name, 0, Damage::Header).into()),
            Err(damage) => return Err(Corruption::new(&name, 0, damage).into()),
        };
        let scan = scan(&name, header, &bytes)?;
        if scan.end < bytes.len() {
            let (salt, index) = (header.salt, scan.next_index);
            if position != last || is_vouched_for(index, salt, &bytes[scan.end..]) {
                return Err(Corruption::new(&name, scan.end, Damage::Record { index }).into());
            }
            let (offset, bytes) = (scan.end as u64, (bytes.len() - scan.end) as u64);
            found.cut = Some(Cut { file: name.clone(), offset, bytes });
        }
        found.is_sealed = scan.is_sealed;
        found.segments.push(Segment {
            name,
            file: file.into(),
            first_index,
            next_index: scan.next_index,
            length: scan.end,
            salt: header.salt,
            landmarks: scan.landmarks,
        });
    }
    Ok(found)
}

/// The valid beginning of a segment.
struct Scan {
    next_index: u64,
    end: usize,
    is_sealed: bool,
    landmarks: Landmarks,
}

fn scan(name: &str, header: SegmentHeader, bytes: &[u8]) -> Result<Scan, Corruption> {
    let mut scan = Scan {
        next_index: header.first_index,
        end: SEGMENT_HEADER_BYTES,
        is_sealed: false,
        landmarks: Landmarks::default(),
    };
    while let Some(record) = RawRecord::decode(header.salt, &bytes[scan.end..]) {
        let expected = scan.next_index - u64::from(record.is_mark());
        if record.index != expected {
            // No crash makes a sound record of the wrong number.
            return Err(Corruption::new(name, scan.end, Damage::Record { index: scan.next_index }));
        }
        if !record.is_mark() {
            scan.landmarks.pass(record.index, scan.end);
            scan.next_index += 1;
        }
        scan.is_sealed = record.is_mark();
        scan.end += record.bytes();
    }
    Ok(scan)
}
