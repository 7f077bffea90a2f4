//! Building batches: as many messages as fit into what a Go node accepts.
//!
//! Every message is written once, at the moment it is pushed, into the bytes that will be sent:
//!
//! ```text
//!   push ──► type names │ targets │ envelopes │ senders        four growing buffers, kept from batch to batch
//!   finish_frame ──► [key length ‖ type names ‖ targets ‖ envelopes ‖ senders]            one copy, one allocation
//! ```
//!
//! The few fields of an envelope are written by hand: prost would need a struct with its own strings for each message,
//! and would walk over all of them twice more. What comes out is byte for byte what prost writes.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::encoding::{btree_map, encoded_len_varint, string};

use super::names::NameTable;
use super::{Envelope, EnvelopeFault, PidRef};
use crate::dialect::{Dialect, encoded_pid};
use crate::limits::{BATCH_MESSAGES_SENT_MAX, FRAME_BYTES_SENT_MAX};

/// Collects messages for one peer until a frame is full.
///
/// Push until [`Push::Full`], then [`finish_frame`](Self::finish_frame) and push the same message again; the builder
/// starts over and keeps its dialect. Messages leave in the order in which they came. A message that cannot be sent at
/// all is refused with an error and leaves the batch as it was.
///
/// The size is known exactly at every step, so no frame is ever encoded in vain. A builder that is kept needs no new
/// memory for the next batch but the frame itself.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    dialect: Dialect,
    type_names: NameTable,
    targets: NameTable,
    senders: NameTable,
    /// The encoded envelopes, each with its key and length.
    envelopes: Vec<u8>,
    messages: usize,
}

impl BatchBuilder {
    /// An empty batch for a peer that speaks `dialect`.
    #[must_use]
    pub const fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            type_names: NameTable::new(TYPE_NAMES_KEY),
            targets: NameTable::new(TARGETS_KEY),
            senders: NameTable::new(SENDERS_KEY),
            envelopes: Vec::new(),
            messages: 0,
        }
    }

    /// Cuts `messages` into as few frames as this order allows.
    #[must_use]
    pub fn split<'a>(dialect: Dialect, messages: impl IntoIterator<Item = Envelope<'a>>) -> Batches {
        let mut builder = Self::new(dialect);
        let mut batches = Batches::default();
        for (position, message) in messages.into_iter().enumerate() {
            let mut pushed = builder.push(&message);
            if pushed == Ok(Push::Full) {
                batches.frames.extend(builder.finish_frame());
                pushed = builder.push(&message);
            }
            if let Err(error) = pushed {
                batches.refused.push((position, error));
            }
        }
        batches.frames.extend(builder.finish_frame());
        batches
    }

    /// Adds a message behind all others, if there is room.
    ///
    /// # Errors
    /// [`UnsendableMessage`] when the message fits into no batch. The batch is as it was.
    pub fn push(&mut self, message: &Envelope<'_>) -> Result<Push, UnsendableMessage> {
        message.check()?;
        if self.dialect == Dialect::B && encoded_pid(message.target.id.as_bytes()).is_some() {
            return Err(UnsendableMessage::AmbiguousTarget { id: message.target.id.to_owned() });
        }
        if self.messages >= BATCH_MESSAGES_SENT_MAX {
            return Ok(Push::Full);
        }

        let type_name = self.type_names.find("", message.type_name);
        let (target_address, target_id) = self.target_key(message.target);
        let target = self.targets.find(target_address, target_id);
        let sender = message.sender.map(|sender| self.senders.find(sender.address, sender.id));
        let envelope = EnvelopeFields {
            type_id: type_name.index as u32,
            target: target.index as u32,
            // Senders count from 1; 0 is none.
            sender: sender.as_ref().map_or(0, |sender| 1 + sender.index as u32),
            serializer_id: message.serializer.id().unsigned_abs(),
            target_request_id: message.target.request_id,
            sender_request_id: message.sender.map_or(0, |sender| sender.request_id),
            payload: &message.payload,
            headers: message.headers.filter(|headers| !headers.is_empty()),
        };
        let envelope_bytes = envelope.encoded_len();

        let batch_bytes = self.batch_bytes()
            + type_name.new_bytes
            + target.new_bytes
            + sender.as_ref().map_or(0, |sender| sender.new_bytes)
            + field_bytes(envelope_bytes);
        let frame_bytes = field_bytes(batch_bytes);
        if frame_bytes > FRAME_BYTES_SENT_MAX {
            return if self.is_empty() {
                Err(UnsendableMessage::TooLarge { frame_bytes })
            } else {
                Ok(Push::Full)
            };
        }

        // Nothing was changed up to here, and nothing can fail from here on.
        self.type_names.settle(&type_name, "", message.type_name);
        self.targets.settle(&target, target_address, target_id);
        if let (Some(found), Some(pid)) = (&sender, message.sender) {
            self.senders.settle(found, pid.address, pid.id);
        }
        envelope.encode(envelope_bytes, &mut self.envelopes);
        self.messages += 1;
        Ok(Push::Added)
    }

    /// Takes the batch as an encoded frame, a [`RemoteMessage`](crate::remote::RemoteMessage), and starts over; `None`
    /// when it is empty.
    pub fn finish_frame(&mut self) -> Option<Bytes> {
        if self.is_empty() {
            return None;
        }
        let mut frame = Vec::with_capacity(self.frame_bytes());
        put_length(BATCH_KEY, self.batch_bytes(), &mut frame);
        for part in
            [self.type_names.encoded(), self.targets.encoded(), &self.envelopes, self.senders.encoded()]
        {
            frame.extend_from_slice(part);
        }

        self.type_names.clear();
        self.targets.clear();
        self.senders.clear();
        self.envelopes.clear();
        // One large batch should not hold on to its memory for as long as the peer lives.
        self.envelopes.shrink_to(ENVELOPE_BYTES_KEPT);
        self.messages = 0;
        Some(frame.into())
    }

    /// How many messages the batch has.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.messages
    }

    /// Whether the batch has no messages.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Size of the frame that [`finish_frame`](Self::finish_frame) would return, in bytes.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        if self.is_empty() { 0 } else { field_bytes(self.batch_bytes()) }
    }

    const fn batch_bytes(&self) -> usize {
        self.type_names.encoded().len()
            + self.targets.encoded().len()
            + self.envelopes.len()
            + self.senders.encoded().len()
    }

    /// What makes two targets of this dialect the same entry.
    const fn target_key<'a>(&self, target: PidRef<'a>) -> (&'a str, &'a str) {
        match self.dialect {
            Dialect::A => (target.address, target.id),
            Dialect::B => ("", target.id),
        }
    }
}

/// What became of a message that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message that found the batch full has to be pushed again"]
pub enum Push {
    /// It is the last of the batch now.
    Added,
    /// There is no room. It is in no batch yet.
    Full,
}

/// Messages cut into frames.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batches {
    /// The encoded frames in the order in which they have to be sent.
    pub frames: Vec<Bytes>,
    /// The messages that are in no frame, by their position among all messages, and why.
    pub refused: Vec<(usize, UnsendableMessage)>,
}

/// A message cannot be put into any batch. It was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnsendableMessage {
    /// Alone in a frame it would still be larger than [`FRAME_BYTES_SENT_MAX`].
    #[error(
        "the message needs a frame of {frame_bytes} bytes, and peers accept {FRAME_BYTES_SENT_MAX}; it was not sent"
    )]
    TooLarge {
        /// How large the frame would be.
        frame_bytes: usize,
    },
    /// In dialect B, the target would be taken for a PID of dialect A.
    #[error("the target id {id:?} reads as an encoded PID; the message was not sent")]
    AmbiguousTarget {
        /// The id.
        id: String,
    },
    /// A name is empty or too long, or there are too many headers.
    #[error("the message has {0}; it was not sent")]
    Invalid(#[from] EnvelopeFault),
}

/// The fields of `remote.MessageEnvelope`. What is zero or empty is not written, as everywhere in protobuf.
struct EnvelopeFields<'a> {
    type_id: u32,
    target: u32,
    sender: u32,
    serializer_id: u32,
    target_request_id: u32,
    sender_request_id: u32,
    payload: &'a [u8],
    headers: Option<&'a BTreeMap<String, String>>,
}

impl EnvelopeFields<'_> {
    fn encoded_len(&self) -> usize {
        let numbers = [
            self.type_id,
            self.target,
            self.sender,
            self.serializer_id,
            self.target_request_id,
            self.sender_request_id,
        ];
        numbers.into_iter().map(number_bytes).sum::<usize>()
            + if self.payload.is_empty() { 0 } else { field_bytes(self.payload.len()) }
            + self.headers.map_or(0, |headers| field_bytes(header_bytes(headers)))
    }

    /// Writes key, length and fields, in the order of their numbers.
    fn encode(&self, encoded_len: usize, buffer: &mut Vec<u8>) {
        buffer.reserve(field_bytes(encoded_len));
        put_length(ENVELOPES_KEY, encoded_len, buffer);
        put_number(0x08, self.type_id, buffer);
        if !self.payload.is_empty() {
            put_length(0x12, self.payload.len(), buffer);
            buffer.extend_from_slice(self.payload);
        }
        put_number(0x18, self.target, buffer);
        put_number(0x20, self.sender, buffer);
        put_number(0x28, self.serializer_id, buffer);
        if let Some(headers) = self.headers {
            put_length(0x32, header_bytes(headers), buffer);
            btree_map::encode(
                string::encode,
                string::encoded_len,
                string::encode,
                string::encoded_len,
                1,
                headers,
                buffer,
            );
        }
        put_number(0x38, self.target_request_id, buffer);
        put_number(0x40, self.sender_request_id, buffer);
    }
}

/// Encoded size of a `remote.MessageHeader`.
fn header_bytes(headers: &BTreeMap<String, String>) -> usize {
    btree_map::encoded_len(string::encoded_len, string::encoded_len, 1, headers)
}

/// Encoded size of a length-delimited field with a number below 16.
pub(super) fn field_bytes(content: usize) -> usize {
    1 + encoded_len_varint(content as u64) + content
}

/// Writes the key and the length of such a field.
#[inline]
pub(super) fn put_length(key: u8, length: usize, buffer: &mut Vec<u8>) {
    buffer.push(key);
    put_varint(length as u64, buffer);
}

/// Encoded size of an integer field with a number below 16.
fn number_bytes(value: u32) -> usize {
    if value == 0 { 0 } else { 1 + encoded_len_varint(value.into()) }
}

#[inline]
fn put_number(key: u8, value: u32, buffer: &mut Vec<u8>) {
    if value != 0 {
        buffer.push(key);
        put_varint(value.into(), buffer);
    }
}

#[inline]
fn put_varint(mut value: u64, buffer: &mut Vec<u8>) {
    while value >= 0x80 {
        buffer.push(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.push(value as u8);
}

/// `remote.RemoteMessage.message_batch`: number 1, length-delimited.
const BATCH_KEY: u8 = 0x0a;
// The fields of `remote.MessageBatch`: numbers 1 to 4, length-delimited.
const TYPE_NAMES_KEY: u8 = 0x0a;
const TARGETS_KEY: u8 = 0x12;
const ENVELOPES_KEY: u8 = 0x1a;
const SENDERS_KEY: u8 = 0x22;

/// How much memory for envelopes a builder keeps from one batch to the next, in bytes.
const ENVELOPE_BYTES_KEPT: usize = 256 * 1024;
