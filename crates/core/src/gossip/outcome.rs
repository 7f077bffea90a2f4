//! What a call asks the driver to do.

use alloc::vec::Vec;
use core::fmt;

use super::consensus::ConsensusEvent;
use super::error::GossipBoundError;
use super::id::{GossipKey, GossipMemberId};
use super::liveness::BlockReason;
use super::state::{GossipState, GossipUpdate};
use crate::time::TimerInstant;

/// What a call asks the driver to do, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GossiperOutcome {
    /// Changes of other members' entries, for observers.
    pub updates: Vec<GossipUpdate>,
    /// What follows from them, oldest first.
    pub events: Vec<GossiperEvent>,
    /// Entries that were not taken, for counters and logs.
    pub refusals: Vec<GossipRefusal>,
    /// The answer to the request that was handled; it may be empty. `None` after a request means: do not answer it, so
    /// that the sender offers again what was refused.
    pub answer: Option<GossipState>,
    /// Requests to send. Report what becomes of each with its token.
    pub requests: Vec<GossipRequest>,
    /// Requests that were not answered in time, and who did not. A later answer to one is refused.
    pub timed_out: Vec<(RequestToken, GossipMemberId)>,
    /// Whether the next round is due.
    pub round_due: bool,
    /// When to poll next. `None` only when stopped.
    pub wake_at: Option<TimerInstant>,
}

/// Something that follows from an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GossiperEvent {
    /// A newer heartbeat of the member arrived, directly or through others.
    Alive {
        /// The member.
        member: GossipMemberId,
    },
    /// The member is blocked from now on: it gets no gossip and is not listened to.
    Blocked {
        /// The member.
        member: GossipMemberId,
        /// Why.
        reason: BlockReason,
    },
    /// A consensus check changed its mind.
    Consensus(ConsensusEvent),
}

/// A message to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipRequest {
    /// Names this request in [`handle_response`](super::Gossiper::handle_response) and
    /// [`handle_failure`](super::Gossiper::handle_failure).
    pub token: RequestToken,
    /// Who sends it: always this node. What a Go peer wants to read in this field is a matter of its wire format.
    pub from: GossipMemberId,
    /// Who gets it.
    pub target: GossipMemberId,
    /// What the target lacks; never empty.
    pub state: GossipState,
    /// When it counts as unanswered.
    pub deadline: TimerInstant,
}

/// Names one request of one gossiper; never used twice, not even after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestToken(pub(super) u64);

impl fmt::Display for RequestToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Something in a received state was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipRefusal {
    /// Whose entry.
    pub member: GossipMemberId,
    /// Which entry; `None` for all of the member's.
    pub key: Option<GossipKey>,
    /// Why.
    pub reason: GossipRefusalReason,
}

/// Why something was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GossipRefusalReason {
    /// The member is blocked.
    Blocked,
    /// A bound was hit.
    Bound(GossipBoundError),
}
