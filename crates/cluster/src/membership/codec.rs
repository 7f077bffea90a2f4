//! Membership messages as bytes.
//!
//! The coordinator speaks in types whose rules hold by construction: a name is a name, a life has a number, a delta has
//! no node twice. A peer speaks in bytes. This module is the door between the two, and everything is checked at the
//! door: [`decode`] returns a message in which nothing is left to doubt, or an error that names the part at fault.
//!
//! ```text
//!   GossipMessage ── write ──► synod.membership.Message ── payload::encode ──► bytes
//!   GossipMessage ◄── read ─── synod.membership.Message ◄── payload::decode ── bytes (version first, lists counted)
//! ```
//!
//! Both are plain functions without state. The form of the bytes is described in `membership.proto` of `synod-wire`.

mod read;
mod write;

use std::fmt;

use bytes::Bytes;
use synod_core::membership::{DELTA_RECORDS_MAX, DeltaError, GossipMessage, MEMBERS_MAX, MembershipError};
use synod_core::{AuthorityError, IncarnationError, NodeIdError};
use synod_wire::limits::MEMBERSHIP_RECORDS_MAX;
use synod_wire::membership::{Format, Message};
use synod_wire::{PayloadError, payload};

/// Writes a message for a peer that is a synod node. It travels under the name
/// [`MEMBERSHIP_MESSAGE`](synod_wire::names::MEMBERSHIP_MESSAGE).
///
/// A quarantine's explanation in words is cut off after [`DETAIL_BYTES_MAX`]: the peer must learn that it is refused,
/// however long-winded the operator was.
///
/// # Errors
/// [`MembershipCodecError`] when the message has more of something than a peer would read.
pub fn encode(message: &GossipMessage) -> Result<Bytes, MembershipCodecError> {
    Ok(payload::encode(&write::message(message)?)?)
}

/// Reads a message that a peer sent.
///
/// # Errors
/// [`MembershipCodecError`] says what is wrong with it, and where.
pub fn decode(bytes: Bytes) -> Result<GossipMessage, MembershipCodecError> {
    // A later version may use the other fields for something else, so its number is looked at before they are.
    let Format { version } = payload::decode(bytes.clone())?;
    if version != VERSION {
        return Err(MembershipCodecError::UnknownVersion { version });
    }
    read::message(payload::decode::<Message>(bytes)?)
}

/// A membership message cannot be read, or must not be sent. It was dropped; nothing was changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipCodecError {
    /// The bytes are no message, or have too many records.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The peer speaks another version of these messages.
    #[error("a membership message has version {version}, this node reads version {VERSION}; it was dropped")]
    UnknownVersion {
        /// The version, as it was sent. Zero when there is none.
        version: u32,
    },
    /// Something is missing without which the message means nothing, or of a kind that is not known here.
    #[error("a membership message lacks {field} in {part}; it was dropped")]
    Missing {
        /// Where.
        part: MessagePart,
        /// What.
        field: &'static str,
    },
    /// A name is no node name.
    #[error("a membership message has a bad name in {part}: {source}; it was dropped")]
    Node {
        /// Where.
        part: MessagePart,
        /// What is wrong with it.
        source: NodeIdError,
    },
    /// An address is no `host:port`.
    #[error("a membership message has a bad address in {part}: {source}; it was dropped")]
    Authority {
        /// Where.
        part: MessagePart,
        /// What is wrong with it.
        source: AuthorityError,
    },
    /// A number is no incarnation.
    #[error("a membership message has a bad incarnation in {part}: {source}; it was dropped")]
    Incarnation {
        /// Where.
        part: MessagePart,
        /// What is wrong with it.
        source: IncarnationError,
    },
    /// A number is no status.
    #[error("a membership message has the unknown status {status} in {part}; it was dropped")]
    Status {
        /// Where.
        part: MessagePart,
        /// The number, as it was sent.
        status: i32,
    },
    /// A number of members is larger than any cluster.
    #[error(
        "a membership message counts {members} members in {part}, where {MEMBERS_MAX} are the most; it was dropped"
    )]
    TooManyMembers {
        /// Where.
        part: MessagePart,
        /// How many it says there are.
        members: usize,
    },
    /// The bits of those who hold a view are not whole words, or more than [`SEEN_WORDS_MAX`].
    #[error(
        "a membership message has {bytes} bytes of seen bits, where whole words of 8 and at most {SEEN_WORDS_MAX} \
         of them are allowed; it was dropped"
    )]
    Seen {
        /// How many bytes there are.
        bytes: usize,
    },
    /// A quarantine is explained at more length than [`DETAIL_BYTES_MAX`].
    #[error(
        "a membership message explains a quarantine in {bytes} bytes, where at most {DETAIL_BYTES_MAX} are allowed; \
         it was dropped"
    )]
    DetailTooLong {
        /// How long the explanation is.
        bytes: usize,
    },
    /// The records do not make a delta.
    #[error(transparent)]
    Delta(#[from] DeltaError),
    /// This node refuses for a reason for which peers have no word.
    #[error("a membership message was not sent, because its format has no word for: {reason}")]
    UnspeakableReason {
        /// The reason.
        reason: MembershipError,
    },
}

/// A part of a membership message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePart {
    /// What is said.
    Body,
    /// The reason of a refusal.
    Reason,
    /// A record of a delta, from 0.
    Record(usize),
    /// Who speaks.
    Sender,
    /// The weight of the sender's view.
    Standing,
    /// What the sender believes about the receiver.
    Verdict,
}

impl fmt::Display for MessagePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body => f.write_str("its body"),
            Self::Reason => f.write_str("the reason of a refusal"),
            Self::Record(index) => write!(f, "record {index}"),
            Self::Sender => f.write_str("its sender"),
            Self::Standing => f.write_str("the standing"),
            Self::Verdict => f.write_str("the verdict"),
        }
    }
}

/// The version of the messages that this node writes and reads.
pub const VERSION: u32 = 1;
/// Most words of seen bits: one bit for each member of the largest view.
pub const SEEN_WORDS_MAX: usize = MEMBERS_MAX.div_ceil(64);
/// Longest explanation of a quarantine, in bytes.
pub const DETAIL_BYTES_MAX: usize = 1024;

/// One word of seen bits, in bytes.
const WORD_BYTES: usize = size_of::<u64>();

// What the table cuts must fit through the door, and nothing larger.
const _: () = assert!(MEMBERSHIP_RECORDS_MAX == DELTA_RECORDS_MAX);

#[cfg(test)]
mod tests;
