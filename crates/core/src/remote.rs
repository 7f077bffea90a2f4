//! What observers are told about the connections between nodes.

use alloc::string::String;

use crate::id::Authority;
use crate::outbound::{DeadLetterReason, OutboundEvent};

/// Something happened between this node and another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteEvent {
    /// An association changed.
    Association(OutboundEvent),
    /// A peer says that it has blocked this life of this node.
    BlockedByPeer {
        /// The peer.
        peer: Authority,
    },
    /// A message did not reach its target. After a burst only every so many are told; the counters know them all.
    DeadLetter {
        /// The address of the target.
        authority: String,
        /// The id of the target.
        actor: String,
        /// The type of the message.
        type_name: String,
        /// Why.
        reason: DeadLetterReason,
    },
    /// A peer that this node dialled is none that it can deal with. Its address is quarantined.
    InvalidAssociation {
        /// The address.
        peer: Authority,
        /// Why.
        reason: String,
    },
    /// A peer sent something that cannot be used. It was ignored, or its stream was ended.
    InputRefused {
        /// Who sent it, as far as is known.
        peer: String,
        /// What was wrong, and what became of it.
        problem: String,
    },
}
