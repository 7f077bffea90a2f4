//! Reading what is on the disk, and telling an end that a crash has torn from damage.

use crate::disk::{Disk, DiskFile};
use crate::error::{Corruption, Damage, DiskError, OpenError};
use crate::format::{
    FIRST_INDEX, RawRecord, SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentKind,
    is_vouched_for, parse_segment_name,
};
use crate::store::{Landmarks, Segment};

/// What was found when a log was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The index of the first record; one more than `last_index` if there are none.
    pub first_index: u64,
    /// The index of the last record.
    pub last_index: u64,
    /// What a crash had left behind the last record, and what was cut off. Zeros are nothing.
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
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) segments: Vec<Segment>,
    /// Names of segments that an interrupted reset has left: the log begins behind them.
    pub(crate) leftovers: Vec<String>,
    pub(crate) cut: Option<Cut>,
    /// Whether a mark vouches for the last record already.
    pub(crate) is_sealed: bool,
    /// The length of the last segment's file, with the zeros behind its end.
    pub(crate) filled_bytes: usize,
}

/// Reads all segments. Changes nothing.
pub(crate) fn read_segments(disk: &dyn Disk) -> Result<Found, OpenError> {
    let mut files = read_headers(disk)?;
    let mut found = Found::default();
    if let Some(torn) = files.pop_if(|file| file.header.is_none()) {
        found.cut = Some(Cut { file: torn.name, offset: 0, bytes: torn.length as u64 });
    }
    let is_reset = |file: &SegmentFile| file.header.is_some_and(|header| header.kind == SegmentKind::Reset);
    let start = files.iter().rposition(is_reset).unwrap_or(0);
    found.leftovers = files.drain(..start).map(|file| file.name).collect();

    // A segment was only begun when the one before it was durable: then that one is whole, too.
    let last = if found.cut.is_some() { None } else { files.len().checked_sub(1) };
    for (position, SegmentFile { name, file, length, header }) in files.into_iter().enumerate() {
        // Only the last file can be without, and that one is gone.
        let Some(header) = header else { break };
        let (first_index, salt) = (header.first_index, header.salt);
        let expected = found.segments.last().map(|before| before.next_index);
        if let Some(expected) = expected.filter(|expected| *expected != first_index) {
            return Err(Corruption::new(&name, 0, Damage::Gap { expected, found: first_index }).into());
        }
        let mut bytes = vec![0; length];
        let read = file.read_at(0, &mut bytes).map_err(DiskError::at("read", &name))?;
        bytes.truncate(read);
        let scan = scan(&name, header, &bytes)?;
        // Zeros are what was filled in ahead and never written to. If they stand in the place of durable records, a record
        // behind them is missing its predecessor, or the next segment is.
        let rest = bytes.get(scan.end..).unwrap_or_default();
        if rest.iter().any(|byte| *byte != 0) {
            let index = scan.next_index;
            if Some(position) != last || is_vouched_for(index, salt, rest) {
                return Err(Corruption::new(&name, scan.end, Damage::Record { index }).into());
            }
            found.cut = Some(Cut { file: name.clone(), offset: scan.end as u64, bytes: rest.len() as u64 });
        }
        found.is_sealed = scan.is_sealed;
        found.filled_bytes = bytes.len();
        found.segments.push(Segment {
            name,
            file: file.into(),
            first_index,
            next_index: scan.next_index,
            length: scan.end,
            salt,
            landmarks: scan.landmarks,
        });
    }
    Ok(found)
}

/// A file with the name of a segment.
struct SegmentFile {
    name: String,
    file: Box<dyn DiskFile>,
    length: usize,
    /// `None` for the last one, if a crash came before its header was durable.
    header: Option<SegmentHeader>,
}

/// Opens all segments, in order. Refuses any file that is not one of this log.
fn read_headers(disk: &dyn Disk) -> Result<Vec<SegmentFile>, OpenError> {
    let mut names = Vec::new();
    for name in disk.list().map_err(DiskError::at("list", "directory"))? {
        match parse_segment_name(&name) {
            Some(Ok(first_index)) => names.push((first_index, name)),
            Some(Err(damage)) => return Err(Corruption::new(&name, 0, damage).into()),
            None => {}
        }
    }
    names.sort_unstable();

    let last = names.len().saturating_sub(1);
    let mut files = Vec::new();
    for (position, (first_index, name)) in names.into_iter().enumerate() {
        let file = disk.open(&name).map_err(DiskError::at("open", &name))?;
        let length = file.length().map_err(DiskError::at("measure", &name))?;
        let length = usize::try_from(length).ok().filter(|length| *length <= SEGMENT_BYTES_LIMIT);
        let length = length.ok_or_else(|| Corruption::new(&name, SEGMENT_BYTES_LIMIT, Damage::Length))?;
        let mut start = [0; SEGMENT_HEADER_BYTES];
        let read = file.read_at(0, &mut start).map_err(DiskError::at("read", &name))?;
        let header = match SegmentHeader::decode(&start[..read]) {
            Ok(header) if header.first_index == first_index => Some(header),
            Ok(_) => return Err(Corruption::new(&name, 16, Damage::Header).into()),
            // A version that is not known says so with a checksum that is right: no crash made that.
            Err((offset, damage @ Damage::Version(_))) => {
                return Err(Corruption::new(&name, offset, damage).into());
            }
            // Records are only written once the header is durable. A lone bad header at the end of the log, where a new
            // segment may begin, is therefore one that was never finished.
            Err(_)
                if position == last
                    && length <= SEGMENT_HEADER_BYTES
                    && SegmentHeader::may_be_torn(&start[..read])
                    && (position > 0 || first_index == FIRST_INDEX) =>
            {
                None
            }
            Err((offset, damage)) => return Err(Corruption::new(&name, offset, damage).into()),
        };
        files.push(SegmentFile { name, file, length, header });
    }
    Ok(files)
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
    while let Some(record) = RawRecord::decode(header.salt, bytes.get(scan.end..).unwrap_or_default()) {
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
