//! Reading a batch: from numbers back to names.

use bytes::Bytes;

use super::{Envelope, EnvelopeFault, PidRef, Serializer, Table};
use crate::actor::Pid;
use crate::dialect::{Dialect, DialectError, encoded_pid};
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::remote::{MessageBatch, MessageEnvelope};

/// A batch that a peer sent, in a dialect that is understood. Comes from [`Frame::decode`](crate::Frame::decode).
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedBatch {
    dialect: Option<Dialect>,
    type_names: Vec<String>,
    targets: Vec<Target>,
    senders: Vec<Pid>,
    envelopes: Vec<MessageEnvelope>,
}

impl ReceivedBatch {
    pub(crate) fn parse(batch: MessageBatch) -> Result<Self, DialectError> {
        let dialect = Dialect::of_targets(&batch.targets)?;
        let targets = batch
            .targets
            .iter()
            .enumerate()
            .map(|(position, bytes)| Target::parse(dialect, bytes).ok_or(DialectError::Unknown { position }))
            .collect::<Result<_, _>>()?;
        let MessageBatch { type_names, senders, envelopes, .. } = batch;
        Ok(Self { dialect, type_names, targets, senders, envelopes })
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

    /// The messages in the order in which they were sent. Targets without an address, which is all of them in dialect
    /// B, get `own_address`: the peer means this node.
    ///
    /// An error stands for one envelope; those after it are as good as if it had not been there.
    pub fn envelopes<'a>(
        &'a self,
        own_address: &'a str,
    ) -> impl ExactSizeIterator<Item = Result<Envelope<'a>, EnvelopeError>> {
        self.envelopes.iter().map(move |envelope| self.open(envelope, own_address))
    }

    fn open<'a>(
        &'a self,
        envelope: &'a MessageEnvelope,
        own_address: &'a str,
    ) -> Result<Envelope<'a>, EnvelopeError> {
        let type_name = look_up(Table::TypeNames, &self.type_names, envelope.type_id)?;
        let target = look_up(Table::Targets, &self.targets, envelope.target)?;
        let sender = match envelope.sender {
            0 => None,
            index => Some(look_up(Table::Senders, &self.senders, index)?),
        };
        let serializer = Serializer::from_id(envelope.serializer_id)
            .ok_or(EnvelopeError::UnknownSerializer { id: envelope.serializer_id })?;
        if envelope.message_data.len() > PAYLOAD_BYTES_MAX {
            return Err(EnvelopeError::PayloadTooLarge { bytes: envelope.message_data.len() });
        }
        let opened = Envelope {
            target: PidRef {
                address: if target.address.is_empty() { own_address } else { &target.address },
                id: &target.id,
                request_id: envelope.target_request_id,
            },
            sender: sender.map(|pid| PidRef { request_id: envelope.sender_request_id, ..PidRef::from(pid) }),
            type_name,
            serializer,
            payload: envelope.message_data.clone(),
            headers: envelope
                .message_header
                .as_ref()
                .map(|header| &header.header_data)
                .filter(|headers| !headers.is_empty()),
        };
        opened.check()?;
        Ok(opened)
    }
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

/// A receiver; in dialect B without address.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    address: String,
    id: String,
}

impl Target {
    fn parse(dialect: Option<Dialect>, bytes: &Bytes) -> Option<Self> {
        let (address, id) = match dialect {
            Some(Dialect::A) if !bytes.is_empty() => encoded_pid(bytes)?,
            _ => ("", str::from_utf8(bytes).ok()?),
        };
        Some(Self { address: address.to_owned(), id: id.to_owned() })
    }
}

/// Entry `index` of a table, counted as the wire counts it: senders from 1, everything else from 0.
fn look_up<T>(table: Table, entries: &[T], index: i32) -> Result<&T, EnvelopeError> {
    let from_zero = if table == Table::Senders { index.checked_sub(1) } else { Some(index) };
    from_zero
        .filter(|_| index >= 0)
        .and_then(|index| usize::try_from(index).ok())
        .ok_or(EnvelopeError::NegativeIndex { table, index })
        .and_then(|position| {
            entries.get(position).ok_or(EnvelopeError::IndexOutOfRange {
                table,
                index,
                entries: entries.len(),
            })
        })
}
