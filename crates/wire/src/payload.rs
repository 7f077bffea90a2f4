//! Payloads: the messages of the protocol itself, read and written with care.
//!
//! Protobuf makes every field optional, but a Go node does not: it dereferences some of them unseen, and a message that
//! lacks one costs it an actor with all its state, or its life. So each message says here which fields it needs and
//! where its lists are, and [`encode`] and [`decode`] hold it to that. Messages of applications do not pass through
//! here; they are the application's own business.

mod shapes;

use bytes::Bytes;
use prost::{Message, Name};
use prost_types::Any;

use crate::limits::{Counted, PAYLOAD_BYTES_MAX};
use crate::scan::{self, ScanError, Shape};

/// A message of the protocol itself. Implemented for those that travel in envelopes or as gossip values.
pub trait Payload: Message + Name + Default + sealed::Checked {}

impl<M: Message + Name + Default + sealed::Checked> Payload for M {}

/// Reads a message that a peer sent. Its lists are counted before they are decoded.
///
/// # Errors
/// [`PayloadError`] says what is wrong with it.
pub fn decode<M: Payload>(bytes: Bytes) -> Result<M, PayloadError> {
    if bytes.len() > PAYLOAD_BYTES_MAX {
        return Err(PayloadError::TooLarge { type_name: M::full_name(), bytes: bytes.len() });
    }
    count::<M>(&bytes)?;
    let message =
        M::decode(bytes).map_err(|source| PayloadError::Undecodable { type_name: M::full_name(), source })?;
    message.check().map_err(|fault| fault.in_message(M::full_name()))?;
    Ok(message)
}

/// Writes a message for a peer.
///
/// # Errors
/// [`PayloadError`] when a Go node would come to harm by it, or when it is more than a synod node would read.
pub fn encode<M: Payload>(message: &M) -> Result<Bytes, PayloadError> {
    message.check().and_then(|()| message.check_sent()).map_err(|fault| fault.in_message(M::full_name()))?;
    let bytes = message.encoded_len();
    if bytes > PAYLOAD_BYTES_MAX {
        return Err(PayloadError::TooLarge { type_name: M::full_name(), bytes });
    }
    let bytes = Bytes::from(message.encode_to_vec());
    count::<M>(&bytes)?;
    Ok(bytes)
}

/// Reads the value of a gossip key.
///
/// # Errors
/// [`PayloadError`] when it is of another type, or something is wrong with it.
pub fn decode_any<M: Payload>(any: &Any) -> Result<M, PayloadError> {
    // What stands before the last slash says where the type is described, and differs between languages.
    let type_name = any.type_url.rsplit('/').next().unwrap_or_default();
    if type_name != M::full_name() {
        return Err(PayloadError::WrongType { type_name: M::full_name(), type_url: any.type_url.clone() });
    }
    decode(Bytes::copy_from_slice(&any.value))
}

/// Writes the value of a gossip key.
///
/// # Errors
/// As [`encode`].
pub fn encode_any<M: Payload>(message: &M) -> Result<Any, PayloadError> {
    Ok(Any { type_url: M::type_url(), value: encode(message)?.into() })
}

/// A message is not what its type name promises. It was dropped: not handled if it was received, not sent otherwise.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// More bytes than [`PAYLOAD_BYTES_MAX`].
    #[error("a {type_name} has {bytes} bytes, where at most {PAYLOAD_BYTES_MAX} are allowed; it was dropped")]
    TooLarge {
        /// The type of the message.
        type_name: String,
        /// How many bytes it has.
        bytes: usize,
    },
    /// More elements than are allowed.
    #[error("a {type_name} has more than {max} {what}; it was dropped")]
    TooMany {
        /// The type of the message.
        type_name: String,
        /// Of what.
        what: Counted,
        /// How many there may be.
        max: usize,
    },
    /// The bytes are not a protobuf message.
    #[error("a {type_name} is not a protobuf message; it was dropped")]
    Malformed {
        /// The type that it should have.
        type_name: String,
    },
    /// The bytes are a protobuf message, but not of this type.
    #[error("a {type_name} cannot be decoded; it was dropped")]
    Undecodable {
        /// The type that it should have.
        type_name: String,
        /// What the decoder says.
        source: prost::DecodeError,
    },
    /// A field is missing without which the message means nothing.
    #[error("a {type_name} lacks {field}; it was dropped")]
    Missing {
        /// The type of the message.
        type_name: String,
        /// The field.
        field: &'static str,
    },
    /// A gossip message mentions a member about which it says nothing.
    #[error("a {type_name} has no values of member {member_id:?}; it was dropped")]
    EmptyMember {
        /// The type of the message.
        type_name: String,
        /// The member.
        member_id: String,
    },
    /// A published message points outside the table of type names.
    #[error("a {type_name} has a message of type {index} of {entries}; it was dropped")]
    TypeIndex {
        /// The type of the message.
        type_name: String,
        /// The index, as it was sent.
        index: i32,
        /// How many type names there are.
        entries: usize,
    },
    /// A published message is encoded in a way that is not known here.
    #[error("a {type_name} has a message with the unknown serializer {id}; it was dropped")]
    UnknownSerializer {
        /// The type of the message.
        type_name: String,
        /// The id of the serializer, as it was sent.
        id: i32,
    },
    /// A gossip value is of another type than its key promises.
    #[error("a value of type {type_url:?} was found in the place of a {type_name}; it was dropped")]
    WrongType {
        /// The type that it should have.
        type_name: String,
        /// The type that it has.
        type_url: String,
    },
}

fn count<M: Payload>(bytes: &[u8]) -> Result<(), PayloadError> {
    scan::check(bytes, &M::SHAPE).map_err(|error| match error {
        ScanError::TooMany(what) => {
            PayloadError::TooMany { type_name: M::full_name(), what, max: what.max() }
        }
        ScanError::Malformed => PayloadError::Malformed { type_name: M::full_name() },
    })
}

/// What a message lacks, before it is known which message it is.
pub enum Fault {
    /// A field.
    Missing(&'static str),
    /// The values of a gossiped member.
    EmptyMember(String),
    /// A type name.
    TypeIndex(i32, usize),
    /// A known serializer.
    UnknownSerializer(i32),
}

impl Fault {
    fn in_message(self, type_name: String) -> PayloadError {
        match self {
            Self::Missing(field) => PayloadError::Missing { type_name, field },
            Self::EmptyMember(member_id) => PayloadError::EmptyMember { type_name, member_id },
            Self::TypeIndex(index, entries) => PayloadError::TypeIndex { type_name, index, entries },
            Self::UnknownSerializer(id) => PayloadError::UnknownSerializer { type_name, id },
        }
    }
}

mod sealed {
    use super::{Fault, Shape};

    /// What is known about a message besides its fields.
    pub trait Checked {
        /// Where its lists are.
        const SHAPE: Shape;

        /// Whether it means something.
        fn check(&self) -> Result<(), Fault> {
            Ok(())
        }

        /// Whether it also does a Go node no harm.
        fn check_sent(&self) -> Result<(), Fault> {
            Ok(())
        }
    }
}
