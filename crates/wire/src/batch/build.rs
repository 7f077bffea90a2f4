//! Building batches: as many messages as fit into what a Go node accepts.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, length_delimiter_len};

use super::{Envelope, EnvelopeFault, PidRef};
use crate::actor::Pid;
use crate::dialect::{Dialect, encoded_pid};
use crate::limits::{BATCH_MESSAGES_SENT_MAX, FRAME_BYTES_SENT_MAX};
use crate::remote::{MessageBatch, MessageEnvelope, MessageHeader, RemoteMessage};

/// Collects messages for one peer until a frame is full.
///
/// Push until [`Push::Full`], then [`finish`](Self::finish) and push the same message again; the builder starts over and
/// keeps its dialect. Messages leave in the order in which they came. A message that cannot be sent at all is refused
/// with an error and leaves the batch as it was.
///
/// The size is known exactly at every step, so no frame is ever encoded in vain.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    dialect: Dialect,
    batch: MessageBatch,
    /// Encoded size of `batch`.
    batch_bytes: usize,
    type_ids: HashMap<String, i32>,
    target_ids: PidIds,
    sender_ids: PidIds,
}

impl BatchBuilder {
    /// An empty batch for a peer that speaks `dialect`.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            batch: MessageBatch::default(),
            batch_bytes: 0,
            type_ids: HashMap::new(),
            target_ids: PidIds::default(),
            sender_ids: PidIds::default(),
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
                batches.frames.extend(builder.finish());
                pushed = builder.push(&message);
            }
            if let Err(error) = pushed {
                batches.refused.push((position, error));
            }
        }
        batches.frames.extend(builder.finish());
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
        if self.batch.envelopes.len() >= BATCH_MESSAGES_SENT_MAX {
            return Ok(Push::Full);
        }

        let known_type = self.type_ids.get(message.type_name).copied();
        let known_target = self.target_ids.find(self.target_key(message.target));
        let known_sender = message.sender.map(|sender| self.sender_ids.find((sender.address, sender.id)));
        let next_type = next_index(&self.batch.type_names);
        let next_target = next_index(&self.batch.targets);
        let next_sender = next_index(&self.batch.senders);
        let envelope = MessageEnvelope {
            type_id: known_type.unwrap_or(next_type),
            message_data: message.payload.clone(),
            target: known_target.unwrap_or(next_target),
            sender: known_sender.map_or(0, |known| 1 + known.unwrap_or(next_sender)),
            serializer_id: message.serializer.id(),
            message_header: message
                .headers
                .filter(|headers| !headers.is_empty())
                .map(|headers| MessageHeader { header_data: headers.clone() }),
            target_request_id: message.target.request_id,
            sender_request_id: message.sender.map_or(0, |sender| sender.request_id),
        };
        let new_type = known_type.is_none().then_some(message.type_name);
        let new_target = known_target.is_none().then(|| self.encode_target(message.target));
        let new_sender = message.sender.filter(|_| known_sender == Some(None)).map(table_entry);

        let batch_bytes = self.batch_bytes
            + new_type.map_or(0, |name| field_bytes(name.len()))
            + new_target.as_ref().map_or(0, |target| field_bytes(target.len()))
            + new_sender.as_ref().map_or(0, |sender| field_bytes(sender.encoded_len()))
            + field_bytes(envelope.encoded_len());
        let frame_bytes = field_bytes(batch_bytes);
        if frame_bytes > FRAME_BYTES_SENT_MAX {
            return if self.batch.envelopes.is_empty() {
                Err(UnsendableMessage::TooLarge { frame_bytes })
            } else {
                Ok(Push::Full)
            };
        }

        // Nothing was changed up to here, and nothing can fail from here on.
        if let Some(name) = new_type {
            self.type_ids.insert(name.to_owned(), envelope.type_id);
            self.batch.type_names.push(name.to_owned());
        }
        if let Some(target) = new_target {
            let (address, id) = self.target_key(message.target);
            self.target_ids.insert(address.to_owned(), id.to_owned(), envelope.target);
            self.batch.targets.push(target);
        }
        if let Some(sender) = new_sender {
            self.sender_ids.insert(sender.address.clone(), sender.id.clone(), envelope.sender - 1);
            self.batch.senders.push(sender);
        }
        self.batch.envelopes.push(envelope);
        self.batch_bytes = batch_bytes;
        Ok(Push::Added)
    }

    /// Takes the batch as a frame and starts over; `None` when it is empty.
    pub fn finish(&mut self) -> Option<RemoteMessage> {
        let Self { batch, .. } = std::mem::replace(self, Self::new(self.dialect));
        (!batch.envelopes.is_empty()).then(|| RemoteMessage::from(batch))
    }

    /// How many messages the batch has.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.batch.envelopes.len()
    }

    /// Whether the batch has no messages.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.batch.envelopes.is_empty()
    }

    /// Encoded size of the frame that [`finish`](Self::finish) would return, in bytes.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        if self.is_empty() { 0 } else { field_bytes(self.batch_bytes) }
    }

    /// What makes two targets of this dialect the same entry.
    const fn target_key<'a>(&self, target: PidRef<'a>) -> (&'a str, &'a str) {
        match self.dialect {
            Dialect::A => (target.address, target.id),
            Dialect::B => ("", target.id),
        }
    }

    fn encode_target(&self, target: PidRef<'_>) -> Bytes {
        match self.dialect {
            Dialect::A => table_entry(target).encode_to_vec().into(),
            Dialect::B => Bytes::copy_from_slice(target.id.as_bytes()),
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
    /// The frames in the order in which they have to be sent.
    pub frames: Vec<RemoteMessage>,
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

/// Positions of PIDs in a table, found without building an owned key.
#[derive(Clone, Debug, Default)]
struct PidIds(HashMap<String, HashMap<String, i32>>);

impl PidIds {
    fn find(&self, (address, id): (&str, &str)) -> Option<i32> {
        self.0.get(address)?.get(id).copied()
    }

    fn insert(&mut self, address: String, id: String, position: i32) {
        self.0.entry(address).or_default().insert(id, position);
    }
}

/// A PID as a table holds it. The request id is the envelope's, or one actor would fill many entries.
fn table_entry(pid: PidRef<'_>) -> Pid {
    PidRef { request_id: 0, ..pid }.to_pid()
}

/// Encoded size of a length-delimited field with a number below 16.
fn field_bytes(content: usize) -> usize {
    1 + length_delimiter_len(content) + content
}

/// The index of the next entry of a table. No table has more entries than the batch has messages, of which
/// [`BATCH_MESSAGES_SENT_MAX`] is the bound.
const fn next_index<T>(table: &[T]) -> i32 {
    table.len() as i32
}
