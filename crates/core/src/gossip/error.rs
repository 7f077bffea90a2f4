//! Why the gossiper refuses a call or an entry.

use super::config::GossiperConfigError;
use super::consensus::{CHECK_KEYS_MAX, CHECKS_MAX};
use super::id::{GossipKey, GossipMemberId};
use super::map::GossipMapError;
use super::outcome::RequestToken;
use super::store::{HEARTBEAT_BYTES_MAX, KEYS_PER_MEMBER_MAX, MEMBER_BYTES_MAX};

/// A call was refused. The machine is as it was before.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GossiperError {
    /// A setting is out of range.
    #[error("the gossiper cannot be configured like this: {0}")]
    InvalidConfig(#[from] GossiperConfigError),
    /// The gossiper runs already.
    #[error("the gossiper is already started; nothing was changed")]
    AlreadyStarted,
    /// The gossiper was never started.
    #[error("the gossiper is not started; nothing was changed")]
    NotStarted,
    /// The gossiper was stopped.
    #[error("the gossiper is already stopped; nothing was changed")]
    AlreadyStopped,
    /// The life of this name said goodbye, and its peers have blocked it for good.
    #[error("{member} has left the cluster and is blocked by its peers; start again under a new member id")]
    MemberIdReused {
        /// The id of the run that ended.
        member: GossipMemberId,
    },
    /// The member is on the block list.
    #[error("{member} is blocked; its message was ignored and nothing was changed")]
    Blocked {
        /// The member.
        member: GossipMemberId,
    },
    /// A node never blocks itself.
    #[error("{member} is this node itself; nothing was changed")]
    OwnMember {
        /// This node's id.
        member: GossipMemberId,
    },
    /// The answer belongs to no request that is waited for: it timed out, or its peer is gone.
    #[error("no request {token} is in flight; the answer was ignored and nothing was changed")]
    UnknownRequest {
        /// The token of the answer.
        token: RequestToken,
    },
    /// The key is written by the gossiper itself.
    #[error("the key {key} belongs to the gossiper; nothing was changed")]
    ReservedKey {
        /// The key.
        key: GossipKey,
    },
    /// The key holds a map, and maps are changed entry by entry.
    #[error("the key {key} holds a map; nothing was changed")]
    KeyHoldsMap {
        /// The key.
        key: GossipKey,
    },
    /// The key holds a plain value, which a map entry would destroy.
    #[error("the key {key} holds a plain value, not a map; nothing was changed")]
    KeyHoldsValue {
        /// The key.
        key: GossipKey,
    },
    /// This node has used up its sequence numbers, or those of a map entry.
    #[error("the sequence numbers are used up; nothing was changed")]
    SequenceExhausted,
    /// The heartbeat is larger than the room that is kept for it.
    #[error("a heartbeat has at most {HEARTBEAT_BYTES_MAX} bytes, this one has {bytes}; nothing was changed")]
    HeartbeatTooLarge {
        /// Size of the refused heartbeat.
        bytes: usize,
    },
    /// A bound of the state was hit.
    #[error("{0}; nothing was changed")]
    Bound(#[from] GossipBoundError),
    /// A map cannot take the entry.
    #[error("{0}; nothing was changed")]
    Map(#[from] GossipMapError),
    /// The topology names more members than the settings allow.
    #[error("the topology names {members} members, at most {max} are allowed; nothing was changed")]
    TooManyMembers {
        /// How many it names.
        members: usize,
        /// The bound.
        max: usize,
    },
    /// There are [`CHECKS_MAX`] consensus checks already.
    #[error("there are {CHECKS_MAX} consensus checks already; nothing was changed")]
    TooManyChecks,
    /// One consensus check covers more than [`CHECK_KEYS_MAX`] keys.
    #[error("a consensus check covers at most {CHECK_KEYS_MAX} keys, this one {keys}; nothing was changed")]
    TooManyCheckKeys {
        /// How many it covers.
        keys: usize,
    },
}

/// An entry exceeds a bound of the state. It was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GossipBoundError {
    /// The member has [`KEYS_PER_MEMBER_MAX`] keys already.
    #[error("a member has at most {KEYS_PER_MEMBER_MAX} gossip keys")]
    Keys,
    /// The member's entries would exceed [`MEMBER_BYTES_MAX`].
    #[error("the gossip entries of a member take at most {MEMBER_BYTES_MAX} bytes")]
    MemberBytes,
    /// There are as many members as the settings allow.
    #[error("gossip state is kept of at most {max} other members")]
    Members {
        /// The bound.
        max: usize,
    },
    /// The entries of all other members take as much as the settings allow.
    #[error("the gossip entries of all other members take at most {max} bytes")]
    StateBytes {
        /// The bound.
        max: usize,
    },
}
