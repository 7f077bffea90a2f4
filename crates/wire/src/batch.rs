//! Batches: many messages in one frame, every name written once.
//!
//! A batch is a bundle of letters with one address book. The type names, receivers and senders that occur in the bundle
//! stand in three tables, and each envelope points into them by number:
//!
//! ```text
//!   type_names   targets    senders          envelopes
//!   0 chat.Say   0 room/1   1 alice          type 0, to 0, from 1, "hello"
//!                1 room/2   2 bob            type 0, to 1, from 2, "hi"       (from 0 would be: nobody)
//! ```
//!
//! [`BatchBuilder`] turns [`Envelope`]s into batches that a Go node accepts, [`ReceivedBatch`] turns batches back into
//! envelopes. An envelope with a wrong number costs only itself: Go sends messages of unrelated actors in one batch, and
//! one bad sender should not silence them all.

mod build;
mod names;
mod read;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;

use crate::actor::Pid;
use crate::limits::{ENVELOPE_HEADER_BYTES_MAX, ENVELOPE_HEADERS_MAX, Text, TextFault};

pub use build::{BatchBuilder, Batches, Push, UnsendableMessage};
pub use read::{EnvelopeError, Places, ReceivedBatch};

/// One message and its addresses, in whichever direction it travels.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope<'a> {
    /// Who is to receive it.
    pub target: PidRef<'a>,
    /// Where an answer goes.
    pub sender: Option<PidRef<'a>>,
    /// The full name of the message type. A Go node dies or hangs up when it does not know it.
    pub type_name: &'a str,
    /// How the payload is encoded.
    pub serializer: Serializer,
    /// The encoded message.
    pub payload: Bytes,
    /// What travels beside the message. Never an empty map when it was received.
    pub headers: Option<&'a BTreeMap<String, String>>,
}

impl<'a> Envelope<'a> {
    /// A protobuf message without sender and headers.
    #[must_use]
    pub const fn new(target: PidRef<'a>, type_name: &'a str, payload: Bytes) -> Self {
        Self { target, sender: None, type_name, serializer: Serializer::Protobuf, payload, headers: None }
    }

    /// The same with a sender, to which an answer goes. A Go node dials its address to answer.
    #[must_use]
    pub const fn with_sender(mut self, sender: PidRef<'a>) -> Self {
        self.sender = Some(sender);
        self
    }

    /// What holds for an envelope in either direction.
    #[inline]
    fn check(&self) -> Result<(), EnvelopeFault> {
        Text::TypeName.check(self.type_name)?;
        Text::TargetId.check(self.target.id)?;
        Text::TargetAddress.check(self.target.address)?;
        if let Some(sender) = &self.sender {
            Text::SenderId.check(sender.id)?;
            Text::SenderAddress.check(sender.address)?;
        }
        self.headers.map_or(Ok(()), check_headers)
    }
}

fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), EnvelopeFault> {
    if headers.len() > ENVELOPE_HEADERS_MAX {
        return Err(EnvelopeFault::TooManyHeaders { headers: headers.len() });
    }
    let bytes = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ENVELOPE_HEADER_BYTES_MAX {
        return Err(EnvelopeFault::HeadersTooLarge { bytes });
    }
    Ok(())
}

/// The name of an actor, borrowed from a batch or from a [`Pid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PidRef<'a> {
    /// The `host:port` of its node, exactly as that node spells it.
    pub address: &'a str,
    /// Its name on that node.
    pub id: &'a str,
    /// Which of the requests that share this actor is meant; 0 is none.
    pub request_id: u32,
}

impl<'a> PidRef<'a> {
    /// The actor `id` on the node at `address`.
    #[must_use]
    pub const fn new(address: &'a str, id: &'a str) -> Self {
        Self { address, id, request_id: 0 }
    }

    /// The same name, owned.
    #[must_use]
    pub fn to_pid(self) -> Pid {
        Pid { address: self.address.to_owned(), id: self.id.to_owned(), request_id: self.request_id }
    }
}

impl<'a> From<&'a Pid> for PidRef<'a> {
    fn from(pid: &'a Pid) -> Self {
        Self { address: &pid.address, id: &pid.id, request_id: pid.request_id }
    }
}

/// How a payload is encoded. Applications of Go can register more; none of them means anything here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Serializer {
    /// As protobuf. All that Go ever sends by itself.
    #[default]
    Protobuf,
    /// As JSON. Go hands types it does not know to the actor as text instead of failing.
    Json,
}

impl Serializer {
    /// The serializer with this number on the wire, if it is known.
    #[must_use]
    pub const fn from_id(id: i32) -> Option<Self> {
        match id {
            0 => Some(Self::Protobuf),
            1 => Some(Self::Json),
            _ => None,
        }
    }

    /// Its number on the wire.
    #[must_use]
    pub const fn id(self) -> i32 {
        match self {
            Self::Protobuf => 0,
            Self::Json => 1,
        }
    }
}

/// A table of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The names of message types, from 0.
    TypeNames,
    /// The receivers, from 0.
    Targets,
    /// The senders, from 1.
    Senders,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TypeNames => "type name",
            Self::Targets => "target",
            Self::Senders => "sender",
        })
    }
}

/// What is wrong with an envelope, whoever made it. Reads as the end of a sentence that says who did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeFault {
    /// A name is empty or too long.
    #[error(transparent)]
    Text(#[from] TextFault),
    /// More headers than [`ENVELOPE_HEADERS_MAX`].
    #[error("{headers} headers, where at most {ENVELOPE_HEADERS_MAX} are allowed")]
    TooManyHeaders {
        /// How many there are.
        headers: usize,
    },
    /// Larger headers than [`ENVELOPE_HEADER_BYTES_MAX`].
    #[error("headers of {bytes} bytes, where at most {ENVELOPE_HEADER_BYTES_MAX} are allowed")]
    HeadersTooLarge {
        /// Bytes of all names and values.
        bytes: usize,
    },
}
