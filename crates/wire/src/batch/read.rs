//! Reading a batch: from numbers back to names.
//!
//! A batch is read in two walks over its bytes. The first only counts, so that a hostile list is refused before it costs
//! anything; the second notes for every envelope its numbers and where its payload lies. Payloads stay where they are,
//! and the names of the tables are copied into one text, in which they are checked once and sliced for free:
//!
//! ```text
//!   frame  │ type names │ targets │ envelopes … payload … payload … │ senders │
//!               │            │          └──► records: numbers, payload at 71..103
//!               └────────────┴──────────► text: "chat.Sayroom/110.0.0.1:8080alice"
//! ```
//!
//! Whatever is unusual (a batch in pieces, a group, a wrong type) is left to prost, which decides whether it is a batch
//! or what is wrong with it. So this reader must never accept what prost does not, and may decline what it does.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use prost::Message;

use super::{Envelope, EnvelopeFault, PidRef, Serializer, Table};
use crate::dialect::{Dialect, DialectError, Listener, Spoken};
use crate::limits::{Counted, PAYLOAD_BYTES_MAX};
use crate::remote::{MessageBatch, MessageHeader};
use crate::scan::{Fields, Value};

/// A batch that a peer sent, in a dialect that is understood. Comes from [`Frame::decode`](crate::Frame::decode).
///
/// Two batches are equal when they were sent as equal bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedBatch {
    frame: Bytes,
    dialect: Option<Dialect>,
    /// All names of the tables.
    text: String,
    type_names: Vec<Span>,
    targets: Vec<PidSpan>,
    senders: Vec<PidSpan>,
    envelopes: Vec<Record>,
    headers: Vec<BTreeMap<String, String>>,
}

impl ReceivedBatch {
    /// Reads the batch at `range` of a frame, or leaves it to prost.
    pub(crate) fn read(frame: &Bytes, range: Range<usize>) -> Option<Self> {
        let bytes = frame.get(range.clone())?;
        let sizes = Sizes::of(bytes)?;
        let mut batch = Self {
            frame: frame.clone(),
            dialect: None,
            text: String::with_capacity(sizes.text_bytes),
            type_names: Vec::with_capacity(sizes.type_names),
            targets: Vec::with_capacity(sizes.targets),
            senders: Vec::with_capacity(sizes.senders),
            envelopes: Vec::with_capacity(sizes.envelopes),
            headers: Vec::new(),
        };
        let mut listener = Listener::default();
        let mut headers = HeadersSeen::default();
        let mut fields = Fields(bytes);
        while let Some(field) = fields.next() {
            match field? {
                (1, Value::Delimited(name)) => {
                    let name = batch.keep(str::from_utf8(name).ok()?);
                    batch.type_names.push(name);
                }
                (2, Value::Delimited(target)) => {
                    let target = Spoken::hear(target)?;
                    listener.handle(batch.targets.len(), &target);
                    let (address, id) = target.pid();
                    let target = batch.keep_pid(address, id);
                    batch.targets.push(target);
                }
                (3, Value::Delimited(envelope)) => {
                    let end = range.end - fields.0.len();
                    let record = batch.note(envelope, end, &mut headers)?;
                    batch.envelopes.push(record);
                }
                (4, Value::Delimited(sender)) => {
                    let (address, id) = pid(sender)?;
                    let sender = batch.keep_pid(address, id);
                    batch.senders.push(sender);
                }
                (1..=4, _) => return None,
                _ => {}
            }
        }
        batch.dialect = listener.dialect().ok()?;
        Some(batch)
    }

    /// The same for a batch that prost has read.
    pub(crate) fn from_decoded(batch: &MessageBatch) -> Result<Option<Self>, DialectError> {
        Dialect::of_targets(&batch.targets)?;
        let bytes = Bytes::from(batch.encode_to_vec());
        Ok(Self::read(&bytes, 0..bytes.len()))
    }

    /// The dialect in which the peer wants to be answered; `None` when this batch does not tell.
    #[must_use]
    pub const fn dialect(&self) -> Option<Dialect> {
        self.dialect
    }

    /// How many envelopes there are, good and bad.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.envelopes.len()
    }

    /// Whether there are no envelopes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.envelopes.is_empty()
    }

    /// How many entries a table has.
    #[must_use]
    pub const fn entries(&self, table: Table) -> usize {
        match table {
            Table::TypeNames => self.type_names.len(),
            Table::Targets => self.targets.len(),
            Table::Senders => self.senders.len(),
        }
    }

    /// The messages in the order in which they were sent. Targets without an address, which is all of them in dialect
    /// B, get `own_address`: the peer means this node.
    ///
    /// An error stands for one envelope; those after it are as good as if it had not been there.
    pub fn envelopes<'a>(
        &'a self,
        own_address: &'a str,
    ) -> impl ExactSizeIterator<Item = Result<Envelope<'a>, EnvelopeError>> {
        self.envelopes.iter().map(move |record| self.open(record, own_address))
    }

    /// The same with the places of their names in the tables, for a reader that looks up every name only once.
    pub fn placed_envelopes<'a>(
        &'a self,
        own_address: &'a str,
    ) -> impl ExactSizeIterator<Item = Result<(Places, Envelope<'a>), EnvelopeError>> {
        self.envelopes.iter().map(move |record| {
            let envelope = self.open(record, own_address)?;
            // All numbers were looked up in their tables, so none is negative.
            let places = Places {
                type_name: record.type_id as usize,
                target: record.target as usize,
                sender: envelope.sender.is_some().then(|| record.sender as usize - 1),
            };
            Ok((places, envelope))
        })
    }

    #[inline]
    fn open<'a>(&'a self, record: &Record, own_address: &'a str) -> Result<Envelope<'a>, EnvelopeError> {
        let type_name = look_up(Table::TypeNames, &self.type_names, record.type_id)?;
        let target = look_up(Table::Targets, &self.targets, record.target)?;
        let sender = match record.sender {
            0 => None,
            index => Some(look_up(Table::Senders, &self.senders, index)?),
        };
        let serializer = Serializer::from_id(record.serializer_id)
            .ok_or(EnvelopeError::UnknownSerializer { id: record.serializer_id })?;
        if record.payload.len() > PAYLOAD_BYTES_MAX {
            return Err(EnvelopeError::PayloadTooLarge { bytes: record.payload.len() });
        }
        let mut target = self.pid(target, record.target_request_id);
        if target.address.is_empty() {
            target.address = own_address;
        }
        let envelope = Envelope {
            target,
            sender: sender.map(|sender| self.pid(sender, record.sender_request_id)),
            type_name: &self.text[type_name.range()],
            serializer,
            payload: self.frame.slice(record.payload.range()),
            headers: record
                .headers
                .and_then(|index| self.headers.get(index as usize))
                .filter(|headers| !headers.is_empty()),
        };
        envelope.check()?;
        Ok(envelope)
    }

    #[inline]
    fn pid(&self, pid: &PidSpan, request_id: u32) -> PidRef<'_> {
        PidRef { address: &self.text[pid.address.range()], id: &self.text[pid.id.range()], request_id }
    }

    /// Copies a name behind all others.
    fn keep(&mut self, name: &str) -> Span {
        let start = self.text.len();
        self.text.push_str(name);
        Span::new(start, self.text.len())
    }

    fn keep_pid(&mut self, address: &str, id: &str) -> PidSpan {
        PidSpan { address: self.keep(address), id: self.keep(id) }
    }

    /// Notes what an envelope says that ends at `end` of the frame. `headers_seen` runs over the whole batch.
    #[inline]
    fn note<'a>(
        &mut self,
        envelope: &'a [u8],
        end: usize,
        headers_seen: &mut HeadersSeen<'a>,
    ) -> Option<Record> {
        let mut record = Record::default();
        let mut fields = Fields(envelope);
        // As everywhere in protobuf, the last of several values counts, and numbers are cut to their type.
        while let Some(field) = fields.next() {
            match field? {
                (1, Value::Varint(value)) => record.type_id = value as i32,
                (2, Value::Delimited(payload)) => {
                    let end = end - fields.0.len();
                    record.payload = Span::new(end - payload.len(), end);
                }
                (3, Value::Varint(value)) => record.target = value as i32,
                (4, Value::Varint(value)) => record.sender = value as i32,
                (5, Value::Varint(value)) => record.serializer_id = value as i32,
                (6, Value::Delimited(header)) => self.note_headers(header, &mut record, headers_seen)?,
                (7, Value::Varint(value)) => record.target_request_id = value as u32,
                (8, Value::Varint(value)) => record.sender_request_id = value as u32,
                (1..=8, _) => return None,
                _ => {}
            }
        }
        Some(record)
    }

    /// Prost reads headers, after they were counted. Those of calls are mostly the same in a whole batch, and then they are
    /// read once.
    fn note_headers<'a>(
        &mut self,
        header: &'a [u8],
        record: &mut Record,
        seen: &mut HeadersSeen<'a>,
    ) -> Option<()> {
        for field in Fields(header) {
            if let (1, Value::Delimited(entry)) = field? {
                seen.count += 1;
                if seen.count > Counted::Headers.max() || Fields(entry).any(|field| field.is_none()) {
                    return None;
                }
            }
        }
        // No more of them than there are envelopes, which were counted.
        let next = self.headers.len() as u32;
        let index = match (record.headers, seen.last) {
            (None, Some((last, index))) if last == header => {
                (record.headers, seen.is_shared) = (Some(index), true);
                return Some(());
            }
            (None, _) => {
                self.headers.push(BTreeMap::new());
                seen.last = Some((header, next));
                next
            }
            // Headers in pieces, of which the first was like that of another envelope.
            (Some(index), _) if seen.is_shared => {
                self.headers.push(self.headers.get(index as usize)?.clone());
                seen.last = None;
                next
            }
            (Some(index), _) => {
                seen.last = None;
                index
            }
        };
        (record.headers, seen.is_shared) = (Some(index), false);
        let headers = self.headers.get_mut(index as usize)?;
        let mut merged = MessageHeader { header_data: std::mem::take(headers) };
        merged.merge(header).ok()?;
        *headers = merged.header_data;
        Some(())
    }
}

/// The headers of a batch, as far as it was read.
#[derive(Default)]
struct HeadersSeen<'a> {
    count: usize,
    /// How those that were read last are encoded, and where they stand.
    last: Option<(&'a [u8], u32)>,
    /// Whether the envelope at hand has those of another one.
    is_shared: bool,
}

/// Where the names of an envelope stand in the tables of its batch, from 0 in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Among the type names.
    pub type_name: usize,
    /// Among the targets.
    pub target: usize,
    /// Among the senders, if it has one.
    pub sender: Option<usize>,
}

/// An envelope of a batch cannot be delivered. That envelope was ignored, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// An index points behind the end of its table.
    #[error("the peer sent an envelope with {table} {index} of {entries}; the envelope was ignored")]
    IndexOutOfRange {
        /// Which table.
        table: Table,
        /// The index, as it was sent.
        index: i32,
        /// How many entries the table has.
        entries: usize,
    },
    /// An index points before the start of its table.
    #[error("the peer sent an envelope with {table} {index}, which is negative; the envelope was ignored")]
    NegativeIndex {
        /// Which table.
        table: Table,
        /// The index, as it was sent.
        index: i32,
    },
    /// The payload is encoded in a way that is not known here.
    #[error("the peer sent an envelope with the unknown serializer {id}; the envelope was ignored")]
    UnknownSerializer {
        /// The id of the serializer, as it was sent.
        id: i32,
    },
    /// The payload is larger than [`PAYLOAD_BYTES_MAX`].
    #[error(
        "the peer sent an envelope with a payload of {bytes} bytes, where at most {PAYLOAD_BYTES_MAX} are allowed; \
         the envelope was ignored"
    )]
    PayloadTooLarge {
        /// How large it is.
        bytes: usize,
    },
    /// A name is empty or too long, or there are too many headers.
    #[error("the peer sent an envelope with {0}; the envelope was ignored")]
    Invalid(#[from] EnvelopeFault),
}

/// How much is in a batch.
#[derive(Default)]
struct Sizes {
    type_names: usize,
    targets: usize,
    envelopes: usize,
    senders: usize,
    /// At least as many bytes as all names have.
    text_bytes: usize,
}

impl Sizes {
    /// `None` when there is more than there may be.
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut sizes = Self::default();
        for field in Fields(bytes) {
            let (number, Value::Delimited(content)) = field? else { continue };
            let (count, counted) = match number {
                1 => (&mut sizes.type_names, Counted::TypeNames),
                2 => (&mut sizes.targets, Counted::Targets),
                3 => (&mut sizes.envelopes, Counted::Envelopes),
                4 => (&mut sizes.senders, Counted::Senders),
                _ => continue,
            };
            *count += 1;
            if *count > counted.max() {
                return None;
            }
            if counted != Counted::Envelopes {
                sizes.text_bytes += content.len();
            }
        }
        Some(sizes)
    }
}

/// What an envelope says: numbers as they were sent, and where its payload lies in the frame.
#[derive(Clone, Debug, Default, PartialEq)]
struct Record {
    type_id: i32,
    target: i32,
    sender: i32,
    serializer_id: i32,
    target_request_id: u32,
    sender_request_id: u32,
    payload: Span,
    /// Position among all headers of the batch.
    headers: Option<u32>,
}

/// A stretch of the text or of the frame, both shorter than 4 GiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    const fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Address and id of an actor; in dialect B a target has no address.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PidSpan {
    address: Span,
    id: Span,
}

/// Address and id of an encoded PID, as a protobuf decoder reads it. Its request id is the envelope's to tell.
fn pid(bytes: &[u8]) -> Option<(&str, &str)> {
    let (mut address, mut id) = ("", "");
    for field in Fields(bytes) {
        match field? {
            (1, Value::Delimited(text)) => address = str::from_utf8(text).ok()?,
            (2, Value::Delimited(text)) => id = str::from_utf8(text).ok()?,
            (3, Value::Varint(_)) => {}
            (1..=3, _) => return None,
            _ => {}
        }
    }
    Some((address, id))
}

/// Entry `index` of a table. The wire counts senders from 1, everything else from 0.
#[inline]
fn look_up<T>(table: Table, entries: &[T], index: i32) -> Result<&T, EnvelopeError> {
    let first = if table == Table::Senders { 1 } else { 0 };
    let position = index.wrapping_sub(first) as u32 as usize;
    match entries.get(position) {
        Some(entry) if index >= first => Ok(entry),
        _ if index < first => Err(EnvelopeError::NegativeIndex { table, index }),
        _ => Err(EnvelopeError::IndexOutOfRange { table, index, entries: entries.len() }),
    }
}

const _: () = assert!(crate::limits::FRAME_BYTES_RECEIVED_MAX < u32::MAX as usize);
