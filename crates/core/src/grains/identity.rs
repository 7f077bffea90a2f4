//! What a grain is called.
//!
//! A grain has no address, only a name: the kind says what it is, the identity says which one. Whoever knows both can call
//! it, wherever it happens to live. As one text they are `kind/identity`; a kind has no slash, so the first one divides.

use alloc::format;
use alloc::sync::Arc;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

/// The name of a grain as one text, `kind/identity`: what queues, logs and events are keyed by.
///
/// Keys are in order of a hash of their text: in a table of many names the next one to compare with is told by a number,
/// not by texts that begin alike. The order is the same on every node and says nothing else.
#[derive(Clone)]
pub struct GrainKey {
    hash: u64,
    text: Arc<str>,
}

impl GrainKey {
    fn new(text: &str) -> Self {
        Self { hash: xxh3_64(text.as_bytes()), text: Arc::from(text) }
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for GrainKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for GrainKey {}

impl PartialOrd for GrainKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for GrainKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.hash.cmp(&other.hash).then_with(|| {
            // Copies of one key share their text, which need not be looked at then.
            if Arc::ptr_eq(&self.text, &other.text) { Ordering::Equal } else { self.text.cmp(&other.text) }
        })
    }
}

impl Hash for GrainKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Display for GrainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for GrainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The name of a grain, made of two parts. Cheap to clone, and small: a node with a million grains has several million.
#[derive(Clone)]
pub struct ClusterIdentity {
    key: GrainKey,
}

impl ClusterIdentity {
    /// Joins a kind and an identity.
    ///
    /// # Errors
    /// [`IdentityError`] says which part is wrong, and why.
    pub fn new(kind: &str, identity: &str) -> Result<Self, IdentityError> {
        check_kind(kind)?;
        check_part("an identity", identity, IDENTITY_BYTES_MAX)?;
        Ok(Self { key: GrainKey::new(&format!("{kind}/{identity}")) })
    }

    /// What the grain is.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.parts().0
    }

    /// Which one of its kind it is.
    #[must_use]
    pub fn identity(&self) -> &str {
        self.parts().1
    }

    /// Both as one text.
    #[must_use]
    pub const fn key(&self) -> &GrainKey {
        &self.key
    }

    /// A kind has no slash, so the first one divides.
    fn parts(&self) -> (&str, &str) {
        self.key.text.split_once('/').unwrap_or_default()
    }
}

impl FromStr for ClusterIdentity {
    type Err = IdentityError;

    /// Parses `kind/identity`; the first slash divides.
    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let (kind, identity) = text.split_once('/').ok_or(IdentityError::MissingSlash)?;
        Self::new(kind, identity)
    }
}

// A kind has no slash, so equal keys have equal parts: the text alone is compared.
impl PartialEq for ClusterIdentity {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for ClusterIdentity {}

impl PartialOrd for ClusterIdentity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ClusterIdentity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl Hash for ClusterIdentity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl fmt::Display for ClusterIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.key, f)
    }
}

impl fmt::Debug for ClusterIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.key, f)
    }
}

/// A text is not the name of a grain. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// There is nothing to tell the kind from the identity.
    #[error("the name of a grain is kind/identity; the slash is missing")]
    MissingSlash,
    /// A part is empty.
    #[error("{what} must not be empty")]
    Empty {
        /// The part.
        what: &'static str,
    },
    /// A part is too long.
    #[error("{what} has at most {max} bytes, this one has {bytes}")]
    TooLong {
        /// The part.
        what: &'static str,
        /// Length of the refused text.
        bytes: usize,
        /// The longest length.
        max: usize,
    },
    /// The kind contains a slash, and the key could not be taken apart again.
    #[error("a kind must not contain a slash, {kind:?} does")]
    SlashInKind {
        /// The refused kind.
        kind: Arc<str>,
    },
    /// A part contains a control character, which would garble every log it is printed to.
    #[error("{what} must not contain the control character {character:?}")]
    ControlCharacter {
        /// The part.
        what: &'static str,
        /// The first refused character.
        character: char,
    },
}

/// Whether `kind` can be the first part of a name.
pub(super) fn check_kind(kind: &str) -> Result<(), IdentityError> {
    check_part("a kind", kind, KIND_BYTES_MAX)?;
    if kind.contains('/') { Err(IdentityError::SlashInKind { kind: Arc::from(kind) }) } else { Ok(()) }
}

fn check_part(what: &'static str, text: &str, max: usize) -> Result<(), IdentityError> {
    if text.is_empty() {
        return Err(IdentityError::Empty { what });
    }
    if text.len() > max {
        return Err(IdentityError::TooLong { what, bytes: text.len(), max });
    }
    match text.chars().find(|character| character.is_control()) {
        Some(character) => Err(IdentityError::ControlCharacter { what, character }),
        None => Ok(()),
    }
}

/// Longest kind in bytes.
pub const KIND_BYTES_MAX: usize = 128;
/// Longest identity in bytes.
pub const IDENTITY_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_key_is_divided_at_its_first_slash() {
        let grain: ClusterIdentity = "Chat/room/7".parse().expect("a name");
        assert_eq!((grain.kind(), grain.identity()), ("Chat", "room/7"));
        assert_eq!(grain.to_string(), "Chat/room/7");
        assert_eq!(ClusterIdentity::new("Chat", "room/7"), Ok(grain));
    }

    #[test]
    fn parts_that_cannot_be_names_are_refused_with_the_part_named() {
        let empty = |what| Err(IdentityError::Empty { what });
        assert_eq!(ClusterIdentity::new("", "a"), empty("a kind"));
        assert_eq!(ClusterIdentity::new("Chat", ""), empty("an identity"));
        assert_eq!("/a".parse::<ClusterIdentity>(), empty("a kind"));
        assert_eq!("Chat/".parse::<ClusterIdentity>(), empty("an identity"));
        assert_eq!("Chat".parse::<ClusterIdentity>(), Err(IdentityError::MissingSlash));
        assert_eq!(
            ClusterIdentity::new("Chat/room", "7"),
            Err(IdentityError::SlashInKind { kind: "Chat/room".into() })
        );
        assert_eq!(
            ClusterIdentity::new("Chat", "a\nb"),
            Err(IdentityError::ControlCharacter { what: "an identity", character: '\n' })
        );
        let longest = "k".repeat(IDENTITY_BYTES_MAX);
        assert!(ClusterIdentity::new(&longest[..KIND_BYTES_MAX], &longest).is_ok());
        let (bytes, max) = (KIND_BYTES_MAX + 1, KIND_BYTES_MAX);
        assert_eq!(
            ClusterIdentity::new(&longest[..bytes], "a"),
            Err(IdentityError::TooLong { what: "a kind", bytes, max })
        );
    }

    #[test]
    fn names_that_look_alike_without_the_divider_are_different() {
        // protoactor-go keys its cache by identity and kind with a dot between them, where these two collide.
        assert_ne!(ClusterIdentity::new("c", "a.b"), ClusterIdentity::new("b.c", "a"));
    }
}
