//! Names: who a node is, which life of it, and where it listens.
//!
//! [`NodeId`] is the stable name an operator chose. [`Incarnation`] counts the lives of that name: it is persisted and
//! raised at every start, so that two lives can never be confused. [`MemberId`] is both together and is unique per
//! life. [`Authority`] is the `host:port` of the node's peer listener. All are parsed once, at the edge; inside there
//! are no bare strings that could be swapped.

use alloc::format;
use alloc::sync::Arc;
use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

/// The stable name of a node, unique in its cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// Parses a node name: 1 to [`NODE_ID_BYTES_MAX`] characters of letters, digits, `-`, `_` and `.`.
    ///
    /// # Errors
    /// [`NodeIdError`] says what is wrong with the name.
    pub fn new(name: &str) -> Result<Self, NodeIdError> {
        if name.is_empty() {
            return Err(NodeIdError::Empty);
        }
        if name.len() > NODE_ID_BYTES_MAX {
            return Err(NodeIdError::TooLong { bytes: name.len() });
        }
        match name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))) {
            Some(character) => Err(NodeIdError::ForbiddenCharacter { character }),
            None => Ok(Self(Arc::from(name))),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    fn from_str(name: &str) -> Result<Self, NodeIdError> {
        Self::new(name)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text is not a node name. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeIdError {
    /// The name is empty.
    #[error("a node name must not be empty")]
    Empty,
    /// The name is longer than [`NODE_ID_BYTES_MAX`].
    #[error("a node name has at most {NODE_ID_BYTES_MAX} characters, this one has {bytes}")]
    TooLong {
        /// Length of the refused name.
        bytes: usize,
    },
    /// The name contains a character outside letters, digits, `-`, `_` and `.`.
    #[error("a node name consists of letters, digits, '-', '_' and '.'; {character:?} is none of them")]
    ForbiddenCharacter {
        /// The first refused character.
        character: char,
    },
}

/// Counts the lives of a node name. Persisted, and raised at every start above everything stored or seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u64);

impl Incarnation {
    /// The first life of a name that was never used before.
    pub const FIRST: Self = Self(1);

    /// Checks a number that came from a disk, a peer or a user.
    ///
    /// # Errors
    /// Zero, and anything above [`INCARNATION_MAX`], is refused.
    pub const fn new(value: u64) -> Result<Self, IncarnationError> {
        match value {
            0 => Err(IncarnationError::Zero),
            1..=INCARNATION_MAX => Ok(Self(value)),
            _ => Err(IncarnationError::TooLarge { value }),
        }
    }

    /// The life after this one, or `None` when the numbers are used up.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        if self.0 < INCARNATION_MAX { Some(Self(self.0 + 1)) } else { None }
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A number is not an incarnation. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IncarnationError {
    /// Zero stands for "no life yet" and is never a valid incarnation.
    #[error("an incarnation starts at 1; 0 is not a life of any node")]
    Zero,
    /// The number leaves no room for later lives, so it cannot have been reached by counting starts.
    #[error("an incarnation is at most {INCARNATION_MAX}, this one is {value}")]
    TooLarge {
        /// The refused number.
        value: u64,
    },
}

/// One life of one node: what other members see, and what they remember as dead.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId {
    /// The stable name.
    pub node: NodeId,
    /// Which life of that name.
    pub incarnation: Incarnation,
}

impl MemberId {
    /// Joins a name and a life.
    #[must_use]
    pub const fn new(node: NodeId, incarnation: Incarnation) -> Self {
        Self { node, incarnation }
    }
}

impl FromStr for MemberId {
    type Err = MemberIdError;

    /// Parses what [`Display`](fmt::Display) writes, `name#incarnation`, and no other spelling of it.
    fn from_str(text: &str) -> Result<Self, MemberIdError> {
        let (node, incarnation) = text.rsplit_once('#').ok_or(MemberIdError::MissingIncarnation)?;
        let node = NodeId::new(node).map_err(MemberIdError::Node)?;
        // `parse` would accept a plus sign and leading zeros; two texts would name one life.
        let is_canonical = incarnation == "0" || !incarnation.starts_with(['+', '0']);
        let number = match incarnation.parse::<u64>() {
            Ok(number) if is_canonical => number,
            _ => return Err(MemberIdError::NotANumber),
        };
        let incarnation = Incarnation::new(number).map_err(MemberIdError::Incarnation)?;
        Ok(Self { node, incarnation })
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.node, self.incarnation)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not a member id. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberIdError {
    /// There is no `#incarnation`.
    #[error("a member id is name#incarnation; the incarnation is missing")]
    MissingIncarnation,
    /// What stands before the `#` is not a node name.
    #[error("a member id is name#incarnation; {0}")]
    Node(#[source] NodeIdError),
    /// What stands after the `#` is not a plain number.
    #[error("a member id is name#incarnation; the incarnation is not a plain number")]
    NotANumber,
    /// The number is out of range.
    #[error("a member id is name#incarnation; {0}")]
    Incarnation(#[source] IncarnationError),
}

/// The `host:port` at which a node's peer listener is reached. IPv6 addresses are bracketed and canonical.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Authority(Arc<str>);

impl Authority {
    /// Parses `host:port` or `[ipv6]:port`.
    ///
    /// # Errors
    /// [`AuthorityError`] says which part is missing or malformed.
    pub fn new(text: &str) -> Result<Self, AuthorityError> {
        if text.len() > AUTHORITY_BYTES_MAX {
            return Err(AuthorityError::TooLong { bytes: text.len() });
        }
        let (host, port) = text.rsplit_once(':').ok_or(AuthorityError::MissingPort)?;
        // `parse` would accept a leading plus sign, which is not part of any address.
        let port = match port.parse::<u16>() {
            Ok(number) if number != 0 && port.starts_with(|c: char| c.is_ascii_digit()) => number,
            _ => return Err(AuthorityError::InvalidPort),
        };
        let canonical = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(address) => {
                let address: Ipv6Addr = address.parse().map_err(|_| AuthorityError::InvalidHost)?;
                format!("[{address}]:{port}")
            }
            None => {
                check_host_name(host)?;
                format!("{host}:{port}")
            }
        };
        Ok(Self(Arc::from(canonical)))
    }

    /// The canonical `host:port`, to be shared.
    #[must_use]
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// The canonical `host:port`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host alone; an IPv6 address keeps its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.0.rsplit_once(':').map_or(&*self.0, |(host, _)| host)
    }

    /// The port alone.
    #[must_use]
    pub fn port(&self) -> u16 {
        let port = self.0.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        assert!(port.is_some(), "{self} was parsed and has no port");
        port.unwrap_or_default()
    }
}

impl FromStr for Authority {
    type Err = AuthorityError;

    fn from_str(text: &str) -> Result<Self, AuthorityError> {
        Self::new(text)
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text is not a `host:port`. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// There is no `:port`.
    #[error("an authority is host:port; the port is missing")]
    MissingPort,
    /// The port is not a number from 1 to 65535.
    #[error("the port of an authority is a number from 1 to 65535")]
    InvalidPort,
    /// There is nothing before the port.
    #[error("an authority is host:port; the host is missing")]
    MissingHost,
    /// The host is neither a name, an IPv4 address nor a bracketed IPv6 address.
    #[error("the host of an authority is a name, an IPv4 address or an IPv6 address in brackets")]
    InvalidHost,
    /// The text is longer than [`AUTHORITY_BYTES_MAX`].
    #[error("an authority has at most {AUTHORITY_BYTES_MAX} characters, this one has {bytes}")]
    TooLong {
        /// Length of the refused text.
        bytes: usize,
    },
}

fn check_host_name(host: &str) -> Result<(), AuthorityError> {
    if host.is_empty() {
        return Err(AuthorityError::MissingHost);
    }
    let valid = host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if valid { Ok(()) } else { Err(AuthorityError::InvalidHost) }
}

/// Longest node name in bytes.
pub const NODE_ID_BYTES_MAX: usize = 128;
/// Longest authority in bytes: a DNS name of 253, a colon and five digits.
pub const AUTHORITY_BYTES_MAX: usize = 259;
/// Largest incarnation. It fits a JSON number exactly, and a counter of starts never reaches it honestly.
pub const INCARNATION_MAX: u64 = (1 << 53) - 1;

#[cfg(test)]
mod tests;
