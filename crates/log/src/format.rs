//! The bytes of segments and records. Pure: bytes in, bytes or types out.

use std::hash::{BuildHasher, RandomState};

use crate::error::Damage;

/// How a segment stands to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentKind {
    /// It goes on where the one before it ends.
    Next = 0,
    /// The log begins anew with it, and what comes before it does not count.
    Reset = 1,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) kind: SegmentKind,
    pub(crate) first_index: u64,
    pub(crate) salt: u64,
}

impl SegmentHeader {
    /// A header with a salt that nobody knows before.
    pub(crate) fn new(kind: SegmentKind, first_index: u64) -> Self {
        Self { kind, first_index, salt: RandomState::new().hash_one(first_index) }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEGMENT_HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.kind as u16).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.first_index.to_le_bytes());
        bytes.extend(self.salt.to_le_bytes());
        let checksum = header_checksum(&bytes);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the header at the beginning of a segment. An error says at which byte.
    pub(crate) fn decode(segment: &[u8]) -> Result<Self, (usize, Damage)> {
        let is_foreign = segment.iter().zip(MAGIC).any(|(byte, magic)| *byte != magic);
        if is_foreign {
            return Err((0, Damage::Foreign));
        }
        let bytes = segment.get(..SEGMENT_HEADER_BYTES).ok_or((segment.len(), Damage::ShortHeader))?;
        if u32_at(bytes, 12) != header_checksum(bytes) {
            return Err((0, Damage::Header));
        }
        match u16_at(bytes, 8) {
            VERSION => {}
            version => return Err((8, Damage::Version(version))),
        }
        let kind = match u16_at(bytes, 10) {
            0 => SegmentKind::Next,
            1 => SegmentKind::Reset,
            _ => return Err((10, Damage::Header)),
        };
        Ok(Self { kind, first_index: u64_at(bytes, 16), salt: u64_at(bytes, 24) })
    }

    /// Whether these bytes, which are no valid header, can be what a crash leaves of one: pieces of it, zeros between
    /// them, and nothing behind. Anything else was written by somebody else.
    pub(crate) fn may_be_torn(segment: &[u8]) -> bool {
        let is_own = segment.iter().zip(MAGIC).all(|(byte, magic)| *byte == magic || *byte == 0);
        is_own && segment.len() <= SEGMENT_HEADER_BYTES
    }
}

/// A record or a mark as it stands in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawRecord<'a> {
    pub(crate) index: u64,
    pub(crate) vouched: u64,
    pub(crate) payload: &'a [u8],
}

impl<'a> RawRecord<'a> {
    /// Vouches for all records up to an index, without being one.
    pub(crate) fn mark(index: u64) -> RawRecord<'static> {
        RawRecord { index, vouched: index, payload: &[] }
    }

    /// Reads what the bytes begin with; `None` if that is not a whole and sound record.
    pub(crate) fn decode(salt: u64, bytes: &'a [u8]) -> Option<Self> {
        let end = RECORD_HEADER_BYTES.checked_add(payload_bytes(bytes)?)?;
        let record = bytes.get(..end)?;
        let (index, vouched) = (u64_at(record, 8), u64_at(record, 16));
        let payload = &record[RECORD_HEADER_BYTES..];
        // No record has the index 0, so that zeros are none, whatever the salt.
        let is_sound = index > 0 && (vouched < index || (vouched == index && payload.is_empty()));
        (is_sound && u32_at(record, 0) == record_checksum(salt, record)).then_some(Self {
            index,
            vouched,
            payload,
        })
    }

    pub(crate) fn encode(&self, salt: u64, output: &mut Vec<u8>) {
        let start = output.len();
        output.extend([0; 4]);
        // Payloads are bounded by the configuration far below what these four bytes can say.
        output.extend((self.payload.len() as u32).to_le_bytes());
        output.extend(self.index.to_le_bytes());
        output.extend(self.vouched.to_le_bytes());
        output.extend(self.payload);
        let checksum = record_checksum(salt, &output[start..]);
        output[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
    }

    pub(crate) fn is_mark(&self) -> bool {
        self.vouched == self.index
    }

    /// Its size in the segment.
    pub(crate) fn bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.payload.len()
    }
}

/// The length that the header of a record states, if there is a whole header.
pub(crate) fn payload_bytes(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..RECORD_HEADER_BYTES)?;
    usize::try_from(u32_at(header, 4)).ok()
}

/// Whether some valid record or mark in the bytes vouches for `index`. Looks at every offset, because behind a bad record
/// nobody knows where the next one begins.
pub(crate) fn is_vouched_for(index: u64, salt: u64, bytes: &[u8]) -> bool {
    (0..bytes.len().saturating_sub(RECORD_HEADER_BYTES - 1)).any(|start| {
        let candidate = &bytes[start..];
        // Cheap questions first: a checksum at every offset would take the square of the time.
        let (claimed, vouched) = (u64_at(candidate, 8), u64_at(candidate, 16));
        let is_plausible = vouched >= index && claimed >= vouched && claimed - index < bytes.len() as u64;
        is_plausible && RawRecord::decode(salt, candidate).is_some()
    })
}

/// The name of the segment that begins with an index. Names sort like indices.
pub(crate) fn segment_name(first_index: u64) -> String {
    format!("{first_index:020}{SEGMENT_SUFFIX}")
}

/// The first index in the name of a segment; `None` for other files, an error for what only looks like a segment.
pub(crate) fn parse_segment_name(name: &str) -> Option<Result<u64, Damage>> {
    let digits = name.strip_suffix(SEGMENT_SUFFIX)?;
    let index = digits
        .parse()
        .ok()
        .filter(|index| segment_name(*index) == name && (FIRST_INDEX..=INDEX_MAX).contains(index));
    Some(index.ok_or(Damage::Name))
}

fn header_checksum(header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..SEGMENT_HEADER_BYTES])
}

fn record_checksum(salt: u64, record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &record[4..])
}

/// The callers have made sure that the bytes are there.
fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(number)
}

/// Indices begin with 1, so that 0 can mean "none yet".
pub(crate) const FIRST_INDEX: u64 = 1;
/// Where a log may begin at the latest. No log gets so far that an index behind it does not fit.
pub(crate) const INDEX_MAX: u64 = u64::MAX / 2;
pub(crate) const SEGMENT_HEADER_BYTES: usize = 32;
pub(crate) const RECORD_HEADER_BYTES: usize = 24;
/// No segment is longer, whatever is configured.
pub(crate) const SEGMENT_BYTES_LIMIT: usize = 1 << 30;
const MAGIC: [u8; 8] = *b"SYNODLOG";
const VERSION: u16 = 1;
const SEGMENT_SUFFIX: &str = ".seg";

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes on disk, written out once: a change of the format must be a change of the version.
    #[test]
    fn the_format_is_what_it_always_was() {
        for (kind, start) in
            [(SegmentKind::Next, b"SYNODLOG\x01\0\0\0"), (SegmentKind::Reset, b"SYNODLOG\x01\0\x01\0")]
        {
            let header = SegmentHeader { kind, first_index: 7, salt: 9 };
            let bytes = header.encode();
            assert_eq!(bytes[..12], *start);
            assert_eq!(bytes[16..], [7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        }

        let mut bytes = Vec::new();
        let record = RawRecord { index: 8, vouched: 6, payload: b"abc" };
        record.encode(9, &mut bytes);
        assert_eq!(bytes[4..], *b"\x03\0\0\0\x08\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0abc");
        assert_eq!(RawRecord::decode(9, &bytes), Some(record));
        assert_eq!(RawRecord::decode(10, &bytes), None, "the salt of another segment");
        assert_eq!(segment_name(42), "00000000000000000042.seg");
    }

    /// Whatever comes after version 1 keeps the place of the version and of the checksum, or it could not be told from damage.
    #[test]
    fn an_unknown_version_is_told_from_damage() {
        let mut bytes = SegmentHeader::new(SegmentKind::Next, 1).encode();
        bytes[8] = 2;
        assert_eq!(SegmentHeader::decode(&bytes), Err((0, Damage::Header)));
        let checksum = header_checksum(&bytes);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), Err((8, Damage::Version(2))));
    }

    /// Zeros stand behind the end of a log. For one salt in four billion their checksum is right.
    #[test]
    fn nothing_has_the_index_zero_though_its_checksum_be_right() {
        let mut bytes = Vec::new();
        RawRecord::mark(0).encode(9, &mut bytes);
        assert_eq!(RawRecord::decode(9, &bytes), None);
    }

    #[test]
    fn only_names_of_segments_are_taken_for_such() {
        assert_eq!(parse_segment_name("00000000000000000042.seg"), Some(Ok(42)));
        assert_eq!(parse_segment_name("lock"), None);
        for odd in [
            "42.seg",
            "00000000000000000000.seg",
            "+0000000000000000042.seg",
            "99999999999999999999.seg",
            "09223372036854775808.seg",
        ] {
            assert_eq!(parse_segment_name(odd), Some(Err(Damage::Name)), "{odd}");
        }
    }
}
