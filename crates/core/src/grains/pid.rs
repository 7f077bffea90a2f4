//! The name of one running actor: the node it runs on, and its id there.
//!
//! Where an identity says *which* grain, a PID says which *activation* of it. Its text is `host:port/id`; there is one
//! spelling of it, so two PIDs are equal when their texts are. The id is whatever its node chose; only what names the
//! machinery of a node, and could never be a grain, is refused.

use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use crate::id::{Authority, AuthorityError};

/// An actor on a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActorPid {
    authority: Authority,
    id: Arc<str>,
}

impl ActorPid {
    /// The actor `id` on the node at `authority`.
    ///
    /// # Errors
    /// [`PidError`] says what is wrong with the id.
    pub fn new(authority: Authority, id: &str) -> Result<Self, PidError> {
        Self::shared(authority, &Arc::from(id))
    }

    /// The actor `id` on the node at `authority`. The text is shared, not copied.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn shared(authority: Authority, id: &Arc<str>) -> Result<Self, PidError> {
        let first = id.split_once('/').map_or(&**id, |(first, _)| first);
        if first.is_empty() {
            return Err(PidError::EmptyId);
        }
        if id.len() > ACTOR_ID_BYTES_MAX {
            return Err(PidError::TooLong { bytes: id.len() });
        }
        if let Some(character) = id.chars().find(|character| character.is_control()) {
            return Err(PidError::ControlCharacter { character });
        }
        let is_reserved = RESERVED.contains(&first)
            || RESERVED_ALONE.contains(&&**id)
            || RESERVED_PREFIXES.iter().any(|prefix| first.starts_with(prefix));
        if is_reserved {
            return Err(PidError::Reserved { segment: Arc::from(first) });
        }
        Ok(Self { authority, id: Arc::clone(id) })
    }

    /// Its name on its node, to be shared.
    #[must_use]
    pub fn shared_id(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    /// Where its node listens.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Its name on that node.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl FromStr for ActorPid {
    type Err = PidError;

    /// Parses `host:port/id`; an IPv6 host is bracketed.
    fn from_str(text: &str) -> Result<Self, PidError> {
        let (authority, id) = text.split_once('/').ok_or(PidError::MissingId)?;
        let authority = Authority::new(authority).map_err(PidError::Authority)?;
        Self::new(authority, id)
    }
}

impl fmt::Display for ActorPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.authority, self.id)
    }
}

impl fmt::Debug for ActorPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not the PID of an actor that could be a grain. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PidError {
    /// There is no `/id`.
    #[error("a PID is host:port/id; the id is missing")]
    MissingId,
    /// What stands before the id is no address.
    #[error("a PID is host:port/id; {0}")]
    Authority(#[source] AuthorityError),
    /// The id, or its first part, is empty.
    #[error("the id of a PID must not be empty or begin with a slash")]
    EmptyId,
    /// The id is longer than [`ACTOR_ID_BYTES_MAX`].
    #[error("the id of a PID has at most {ACTOR_ID_BYTES_MAX} bytes, this one has {bytes}")]
    TooLong {
        /// Length of the refused id.
        bytes: usize,
    },
    /// The id contains a control character, which would garble every log it is printed to.
    #[error("the id of a PID must not contain the control character {character:?}")]
    ControlCharacter {
        /// The first refused character.
        character: char,
    },
    /// The id names a part of the node itself: a grain never has it, and what is sent there does harm.
    #[error("{segment:?} names a part of the node itself, no grain")]
    Reserved {
        /// The reserved name.
        segment: Arc<str>,
    },
}

/// Longest id in bytes: the longest identity, with what its host puts around it.
pub const ACTOR_ID_BYTES_MAX: usize = 1280;
/// What a node calls its own parts; nothing below them is a grain either.
const RESERVED: [&str; 8] = [
    "$pubsub-delivery",
    "EndpointSupervisor",
    "activator",
    "consul-provider",
    "deadletter",
    "eventstream",
    "gossip",
    "k8s-cluster-monitor",
];
/// What hosts the grains is none itself, but the grains are below it.
const RESERVED_ALONE: [&str; 1] = ["partition-activator"];
/// What a node calls its passing parts: one per request, one per supervisor.
const RESERVED_PREFIXES: [&str; 2] = ["future$", "guardian$"];

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn parse(text: &str) -> Result<ActorPid, PidError> {
        text.parse()
    }

    #[test]
    fn a_pid_has_one_text() {
        for text in ["127.0.0.1:8080/partition-activator/abc$1", "node-1:80/$7mYQl", "[::1]:80/a b//c"] {
            assert_eq!(parse(text).map(|pid| pid.to_string()), Ok(text.to_string()));
        }
        // Two spellings of one IPv6 address are one address.
        assert_eq!(parse("[0:0:0:0:0:0:0:1]:80/a"), parse("[::1]:80/a"));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_reason() {
        let authority = |error| Err(PidError::Authority(error));
        assert_eq!(parse("host:80"), Err(PidError::MissingId));
        assert_eq!(parse(":80/a"), authority(AuthorityError::MissingHost));
        assert_eq!(parse("host/a"), authority(AuthorityError::MissingPort));
        assert_eq!(parse("host:65536/a"), authority(AuthorityError::InvalidPort));
        assert_eq!(parse("host:0/a"), authority(AuthorityError::InvalidPort));
        assert_eq!(parse("::1:80/a"), authority(AuthorityError::InvalidHost));
        assert_eq!(parse("[::g]:80/a"), authority(AuthorityError::InvalidHost));
        assert_eq!(parse("nonhost/a"), authority(AuthorityError::MissingPort));
        assert_eq!(parse("host:80/"), Err(PidError::EmptyId));
        assert_eq!(parse("host:80//a"), Err(PidError::EmptyId));
        assert_eq!(parse("host:80/a\tb"), Err(PidError::ControlCharacter { character: '\t' }));
        let bytes = ACTOR_ID_BYTES_MAX + 1;
        let long = ["host:80/", &"x".repeat(bytes)].concat();
        assert_eq!(parse(&long), Err(PidError::TooLong { bytes }));
    }

    #[test]
    fn the_parts_of_a_node_are_no_grains() {
        for id in [
            "eventstream",
            "gossip",
            "EndpointSupervisor/$2",
            "future$2a",
            "guardian$1",
            "partition-activator",
        ] {
            let refused = parse(&["host:80/", id].concat());
            assert!(matches!(refused, Err(PidError::Reserved { .. })), "{id}: {refused:?}");
        }
        for id in ["gossiper", "partition-activator/gossip$1", "future", "$1"] {
            assert!(parse(&["host:80/", id].concat()).is_ok(), "{id}");
        }
    }
}
