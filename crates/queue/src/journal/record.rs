//! The bytes of a record.
//!
//! ```text
//!   version u8 │ kind u8 │ group u16 │ ...
//!
//!   entry      term u64 │ index u64 │ kind u8 │ body
//!   truncate   is there u8 │ term u64 │ index u64
//!   purge      term u64 │ index u64
//!   vote       term u64 │ replica u64 │ is committed u8
//!   committed  is there u8 │ term u64 │ index u64
//! ```
//!
//! Numbers are little-endian. The log below has a checksum for each record.

use bytes::{Buf, BufMut, Bytes};

use super::{Entry, EntryId, Fault, Vote};

/// What a group did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Entry(Entry),
    Truncate(Option<EntryId>),
    Purge(EntryId),
    Vote(Vote),
    Committed(Option<EntryId>),
}

impl Record {
    pub(super) fn encode(&self, group: u16) -> Vec<u8> {
        let mut bytes = match self {
            Self::Entry(entry) => return encode_entry(group, entry),
            _ => start(self.kind(), group, 0),
        };
        match self {
            Self::Entry(_) => {}
            Self::Truncate(id) | Self::Committed(id) => {
                bytes.put_u8(u8::from(id.is_some()));
                put_id(&mut bytes, id.unwrap_or(EntryId { term: 0, index: 0 }));
            }
            Self::Purge(id) => put_id(&mut bytes, *id),
            Self::Vote(vote) => {
                bytes.put_u64_le(vote.term);
                bytes.put_u64_le(vote.replica);
                bytes.put_u8(u8::from(vote.is_committed));
            }
        }
        bytes
    }

    /// The group of a record, and what it did. The body of an entry stays where it is.
    pub(super) fn decode(mut bytes: Bytes) -> Result<(u16, Self), Fault> {
        if bytes.len() < 4 {
            return Err(Fault::Length);
        }
        let (version, kind, group) = (bytes.get_u8(), bytes.get_u8(), bytes.get_u16_le());
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        let length = match kind {
            ENTRY | VOTE | TRUNCATE | COMMITTED => 17,
            PURGE => 16,
            _ => return Err(Fault::Kind),
        };
        if bytes.len() < length || (kind != ENTRY && bytes.len() > length) {
            return Err(Fault::Length);
        }
        let record = match kind {
            ENTRY => {
                let id = get_id(&mut bytes);
                Self::Entry(Entry { id, kind: bytes.get_u8(), body: bytes })
            }
            PURGE => Self::Purge(get_id(&mut bytes)),
            VOTE => {
                let (term, replica) = (bytes.get_u64_le(), bytes.get_u64_le());
                Self::Vote(Vote { term, replica, is_committed: get_flag(&mut bytes)? })
            }
            _ => {
                let is_there = get_flag(&mut bytes)?;
                let id = Some(get_id(&mut bytes)).filter(|_| is_there);
                if kind == TRUNCATE { Self::Truncate(id) } else { Self::Committed(id) }
            }
        };
        Ok((group, record))
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Entry(_) => ENTRY,
            Self::Truncate(_) => TRUNCATE,
            Self::Purge(_) => PURGE,
            Self::Vote(_) => VOTE,
            Self::Committed(_) => COMMITTED,
        }
    }
}

/// The record of an entry: its body is copied here, and nowhere else.
pub(super) fn encode_entry(group: u16, entry: &Entry) -> Vec<u8> {
    let mut bytes = start(ENTRY, group, entry.body.len());
    put_id(&mut bytes, entry.id);
    bytes.put_u8(entry.kind);
    bytes.put_slice(&entry.body);
    bytes
}

fn start(kind: u8, group: u16, body: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENTRY_OVERHEAD + body);
    bytes.put_u8(VERSION);
    bytes.put_u8(kind);
    bytes.put_u16_le(group);
    bytes
}

fn put_id(bytes: &mut Vec<u8>, id: EntryId) {
    bytes.put_u64_le(id.term);
    bytes.put_u64_le(id.index);
}

fn get_id(bytes: &mut Bytes) -> EntryId {
    EntryId { term: bytes.get_u64_le(), index: bytes.get_u64_le() }
}

fn get_flag(bytes: &mut Bytes) -> Result<bool, Fault> {
    match bytes.get_u8() {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Fault::Kind),
    }
}

/// What comes before the body of an entry.
pub(super) const ENTRY_OVERHEAD: usize = 21;

const VERSION: u8 = 1;
const ENTRY: u8 = 1;
const TRUNCATE: u8 = 2;
const PURGE: u8 = 3;
const VOTE: u8 = 4;
const COMMITTED: u8 = 5;
