//! A message on its way: encoded once by whoever sends it, decoded once by whoever reads it.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use bytes::Bytes;
use prost::Name;
use synod_wire::{Payload, PayloadError, Serializer, payload};

use super::pid::Pid;
use crate::numbers::NumberHasher;

/// The full name of a message type. Cheap to copy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeName(Arc<str>);

impl TypeName {
    /// The name of `M`. The first call per type and thread spells it, later ones share it.
    #[must_use]
    pub fn of<M: Name>() -> Self {
        with_name_of::<M, _>(Self::clone)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Looks at the name of `M`, which is spelled once per thread: to put it together allocates.
fn with_name_of<M: Name, T>(look: impl FnOnce(&TypeName) -> T) -> T {
    thread_local! {
        static NAMES: RefCell<HashMap<usize, TypeName, BuildHasherDefault<NumberHasher>>> = RefCell::default();
    }
    let spell: fn() -> String = M::full_name;
    NAMES.with_borrow_mut(|names| {
        // Types that share the function share the name.
        look(names.entry(spell as usize).or_insert_with(|| TypeName(Arc::from(spell()))))
    })
}

impl From<&str> for TypeName {
    fn from(name: &str) -> Self {
        Self(Arc::from(name))
    }
}

impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One message, encoded, without its target.
#[derive(Clone, PartialEq)]
pub struct Message {
    /// What it is.
    pub type_name: TypeName,
    /// How `payload` is encoded.
    pub serializer: Serializer,
    /// The encoded content.
    pub payload: Bytes,
    /// Who wants the answer.
    pub sender: Option<Pid>,
    /// What travels beside it.
    pub headers: Option<Arc<BTreeMap<String, String>>>,
}

impl Message {
    /// A message of an application, as protobuf.
    #[must_use]
    pub fn new<M: prost::Message + Name + 'static>(content: &M) -> Self {
        Self::raw(TypeName::of::<M>(), content.encode_to_vec().into())
    }

    /// A message of the protocol itself, checked so that no Go node comes to harm by it.
    ///
    /// # Errors
    /// Something is missing or too large.
    pub fn protocol<M: Payload + 'static>(content: &M) -> Result<Self, PayloadError> {
        Ok(Self::raw(TypeName::of::<M>(), payload::encode(content)?))
    }

    /// A message that is encoded already.
    #[must_use]
    pub const fn raw(type_name: TypeName, payload: Bytes) -> Self {
        Self { type_name, serializer: Serializer::Protobuf, payload, sender: None, headers: None }
    }

    /// The same message from `sender`, who wants the answer.
    #[must_use]
    pub fn with_sender(mut self, sender: Pid) -> Self {
        self.sender = Some(sender);
        self
    }

    /// The same message with headers.
    #[must_use]
    pub fn with_headers(mut self, headers: BTreeMap<String, String>) -> Self {
        self.headers = (!headers.is_empty()).then(|| Arc::new(headers));
        self
    }

    /// Whether it is an `M`.
    #[must_use]
    pub fn is<M: Name>(&self) -> bool {
        let name = self.type_name.as_str();
        // Others are mostly told by their end, which is known without looking anything up.
        name.ends_with(M::NAME) && with_name_of::<M, _>(|known| known.as_str() == name)
    }

    /// The content, if it is an `M`.
    ///
    /// # Errors
    /// It is of another type or another encoding, or it cannot be decoded.
    pub fn decode<M: prost::Message + Name + Default>(&self) -> Result<M, DecodeMessageError> {
        if !self.is::<M>() {
            return Err(DecodeMessageError::WrongType {
                expected: M::full_name(),
                found: self.type_name.to_string(),
            });
        }
        if self.serializer != Serializer::Protobuf {
            return Err(DecodeMessageError::NotProtobuf { type_name: self.type_name.to_string() });
        }
        M::decode(self.payload.clone()).map_err(|source| DecodeMessageError::Undecodable {
            type_name: self.type_name.to_string(),
            source,
        })
    }

    /// How much of a queue it takes, in bytes.
    pub(super) fn queue_bytes(&self) -> usize {
        let headers = self.headers.as_ref().map_or(0, |headers| {
            headers.iter().map(|(name, value)| name.len() + value.len() + HEADER_OVERHEAD_BYTES).sum()
        });
        self.payload.len() + headers + MESSAGE_OVERHEAD_BYTES
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("type_name", &self.type_name)
            .field("bytes", &self.payload.len())
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}

/// A message is not what was asked for. It is unchanged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeMessageError {
    /// It is of another type.
    #[error("a {found} came where a {expected} was expected")]
    WrongType {
        /// The type asked for.
        expected: String,
        /// The type it has.
        found: String,
    },
    /// It is not encoded as protobuf.
    #[error("a {type_name} came that is not encoded as protobuf")]
    NotProtobuf {
        /// The type it has.
        type_name: String,
    },
    /// Its bytes are not of its type.
    #[error("a {type_name} cannot be decoded")]
    Undecodable {
        /// The type it has.
        type_name: String,
        /// What the decoder says.
        source: prost::DecodeError,
    },
}

/// What a queued message takes besides its content.
const MESSAGE_OVERHEAD_BYTES: usize = 128;
/// What a header takes besides its text.
const HEADER_OVERHEAD_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use synod_wire::actor::{Touch, Touched, Watch};

    use super::*;

    #[test]
    fn a_message_is_only_what_it_says() {
        let message = Message::new(&Touch {});
        assert!(message.is::<Touch>() && !message.is::<Touched>());
        assert_eq!(message.decode::<Touch>(), Ok(Touch {}));
        assert!(matches!(message.decode::<Touched>(), Err(DecodeMessageError::WrongType { .. })));
        // A name that only ends alike is another one.
        let other = Message::raw(TypeName::from("reactor.Touch"), Bytes::new());
        assert!(!other.is::<Touch>());
        let json = Message { serializer: Serializer::Json, ..message };
        assert!(matches!(json.decode::<Touch>(), Err(DecodeMessageError::NotProtobuf { .. })));
        let broken = Message::raw(TypeName::of::<Touched>(), Bytes::from_static(&[0x0a, 9]));
        assert!(matches!(broken.decode::<Touched>(), Err(DecodeMessageError::Undecodable { .. })));
    }

    #[test]
    fn a_protocol_message_that_harms_a_go_node_is_not_made() {
        assert!(Message::protocol(&Watch { watcher: None }).is_err());
        assert!(Message::protocol(&Touch {}).is_ok());
    }
}
