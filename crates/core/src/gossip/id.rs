//! The names and numbers of gossip.
//!
//! A Go peer uses any string as its member id and as a key, so these names are only kept short and printable. All are
//! parsed once, at the edge, and are types of their own so that they cannot be swapped.

use alloc::string::ToString;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use crate::id::MemberId;

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            #[doc = concat!("Parses ", $what, ": 1 to [`", stringify!($max), "`] bytes without control characters.")]
            ///
            /// # Errors
            /// [`GossipNameError`] says what is wrong with the text.
            pub fn new(text: &str) -> Result<Self, GossipNameError> {
                check(text, $what, $max)?;
                Ok(Self(Arc::from(text)))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = GossipNameError;

            fn from_str(text: &str) -> Result<Self, GossipNameError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type! {
    /// One life of one member, as gossip names it. It is never used again once that life is over.
    GossipMemberId, "a member id", MEMBER_ID_BYTES_MAX
}
name_type! {
    /// The name of one entry of a member's state.
    GossipKey, "a gossip key", KEY_BYTES_MAX
}
name_type! {
    /// The name of one entry of a map that is kept under a [`GossipKey`].
    GossipMapKey, "a map key", MAP_KEY_BYTES_MAX
}

impl GossipKey {
    /// A key of ours, known when this is compiled.
    pub(super) fn constant(text: &'static str) -> Self {
        assert!(check(text, "a gossip key", KEY_BYTES_MAX).is_ok(), "{text:?} is no gossip key");
        Self(Arc::from(text))
    }
}

impl From<&MemberId> for GossipMemberId {
    /// A node name and an incarnation are always short enough.
    fn from(member: &MemberId) -> Self {
        Self(Arc::from(member.to_string()))
    }
}

/// A text is not a name of this kind. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GossipNameError {
    /// The text is empty.
    #[error("{what} must not be empty")]
    Empty {
        /// The kind of name.
        what: &'static str,
    },
    /// The text is too long.
    #[error("{what} has at most {max} bytes, this one has {bytes}")]
    TooLong {
        /// The kind of name.
        what: &'static str,
        /// Length of the refused text.
        bytes: usize,
        /// The longest length.
        max: usize,
    },
    /// The text contains a control character, which would garble every log it is printed to.
    #[error("{what} must not contain the control character {character:?}")]
    ControlCharacter {
        /// The kind of name.
        what: &'static str,
        /// The first refused character.
        character: char,
    },
}

/// Orders the writes of one member, over all its keys: the greater number is the later write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceNumber(u64);

impl SequenceNumber {
    /// The first write of a member.
    pub const FIRST: Self = Self(1);
    /// The last one that the wire can carry.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// Checks a number that came from a peer.
    ///
    /// # Errors
    /// Zero and negative numbers are no writes.
    pub const fn new(value: i64) -> Result<Self, SequenceError> {
        if value > 0 { Ok(Self(value.unsigned_abs())) } else { Err(SequenceError { value }) }
    }

    /// The number after this one, or `None` when the numbers are used up.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        if self.0 < Self::MAX.0 { Some(Self(self.0 + 1)) } else { None }
    }

    /// The number before this one, or `None` before the first write.
    #[must_use]
    pub const fn previous(self) -> Option<Self> {
        if self.0 > 1 { Some(Self(self.0 - 1)) } else { None }
    }

    /// The number as the wire carries it.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0.cast_signed()
    }
}

impl fmt::Display for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A number is not a sequence number. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sequence number starts at 1, this one is {value}")]
pub struct SequenceError {
    /// The refused number.
    pub value: i64,
}

fn check(text: &str, what: &'static str, max: usize) -> Result<(), GossipNameError> {
    if text.is_empty() {
        return Err(GossipNameError::Empty { what });
    }
    if text.len() > max {
        return Err(GossipNameError::TooLong { what, bytes: text.len(), max });
    }
    match text.chars().find(|c| c.is_control()) {
        Some(character) => Err(GossipNameError::ControlCharacter { what, character }),
        None => Ok(()),
    }
}

/// Longest member id in bytes.
pub const MEMBER_ID_BYTES_MAX: usize = 256;
/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 256;
/// Longest map key in bytes.
pub const MAP_KEY_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Incarnation, NODE_ID_BYTES_MAX, NodeId};

    #[test]
    fn a_name_is_bounded_and_printable() {
        assert_eq!(GossipKey::new(""), Err(GossipNameError::Empty { what: "a gossip key" }));
        assert!(GossipKey::new(&"k".repeat(KEY_BYTES_MAX)).is_ok());
        let (bytes, max) = (KEY_BYTES_MAX + 1, KEY_BYTES_MAX);
        assert_eq!(
            GossipKey::new(&"k".repeat(bytes)),
            Err(GossipNameError::TooLong { what: "a gossip key", bytes, max })
        );
        assert_eq!(
            GossipMemberId::new("a\nb"),
            Err(GossipNameError::ControlCharacter { what: "a member id", character: '\n' })
        );
        // A Go peer may call itself anything that can be read.
        assert!(GossipMemberId::new("9m4e2mr0ui3e8a215n4g / \u{30ce}\u{30fc}\u{30c9}").is_ok());
    }

    #[test]
    fn every_member_of_ours_has_a_valid_gossip_id() {
        let node = NodeId::new(&"n".repeat(NODE_ID_BYTES_MAX)).expect("a node name");
        let member = MemberId::new(node, Incarnation::new((1 << 53) - 1).expect("an incarnation"));
        let id = GossipMemberId::from(&member);
        assert_eq!(GossipMemberId::new(id.as_str()), Ok(id));
    }

    #[test]
    fn a_sequence_number_is_what_the_wire_can_carry() {
        assert_eq!(SequenceNumber::new(0), Err(SequenceError { value: 0 }));
        assert_eq!(SequenceNumber::new(-1), Err(SequenceError { value: -1 }));
        assert_eq!(SequenceNumber::new(i64::MAX), Ok(SequenceNumber::MAX));
        assert_eq!(SequenceNumber::MAX.next(), None);
        assert_eq!(SequenceNumber::FIRST.previous(), None);
    }
}
