//! What coordinators say to each other.
//!
//! Every message begins with the sender's own record, so that nobody answers a stranger blindly. An exchange is a push
//! of changes, answered by an acknowledgement that names the version it acknowledges and, when the two views still
//! differ, carries the other side's changes. Whatever is lost is noticed by comparing digests later.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::delta::MembershipDelta;
use super::record::NodeRecord;
use super::table::{MembershipError, MembershipVersion};
use crate::id::{Authority, NodeId};

/// A message to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipOutbound {
    /// Where it goes.
    pub target: Authority,
    /// What is said.
    pub message: GossipMessage,
}

/// One message between coordinators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipMessage {
    /// Who speaks.
    pub sender: GossipSender,
    /// What it says.
    pub body: GossipBody,
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GossipSender {
    /// A member, with its own record.
    Member(NodeRecord),
    /// A client that only listens; the address to answer to.
    Client(Authority),
}

impl GossipSender {
    /// Where answers go.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        match self {
            Self::Member(record) => &record.authority,
            Self::Client(authority) => authority,
        }
    }
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GossipBody {
    /// "I have merged your changes up to `version`", and possibly "here are mine".
    Ack {
        /// The receiver's version that is acknowledged.
        version: MembershipVersion,
        /// The sender's view after the merge.
        view: ViewDigest,
        /// The sender's changes, when the views differ.
        delta: Option<MembershipDelta>,
    },
    /// "I am alive."
    Heartbeat {
        /// Counts the heartbeats of this life.
        sequence: u64,
    },
    /// "Let me in": the record to admit is the sender's.
    Join,
    /// "Are you there?", to an address outside the sender's view: a lost part of the cluster, perhaps.
    Probe {
        /// What the sender believes about the one it asks, if it gave it up.
        verdict: Option<NodeRecord>,
        /// The weight of the sender's view.
        standing: Standing,
    },
    /// "Send me your changes after `after`."
    Pull {
        /// The last version of the receiver that the sender holds.
        after: MembershipVersion,
    },
    /// "These changed here."
    Push {
        /// The changes.
        delta: MembershipDelta,
        /// The sender's view.
        view: ViewDigest,
    },
    /// "I do not accept this from you."
    Refused(Refusal),
    /// "You are in", with the table.
    Welcome {
        /// The table, as changes since the beginning.
        delta: MembershipDelta,
        /// The sender's view.
        view: ViewDigest,
    },
}

/// A view in brief: its digest, and who is known to hold exactly this view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewDigest {
    /// The version of the sender's table that the digest belongs to.
    pub version: MembershipVersion,
    /// The table digest.
    pub digest: u128,
    /// One bit per node, in the order of the names that the digest covers. Equal digests imply an equal order.
    pub seen: Vec<u64>,
}

/// Why a message was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, as the refusing node's error says it.
    pub reason: MembershipError,
    /// What the refusing node knows about the refused one.
    pub verdict: Option<NodeRecord>,
    /// The weight of the refusing node's view.
    pub standing: Standing,
}

/// The weight of a view, for the case that two parts of a cluster gave each other up: the lighter one yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How many members answer there.
    pub reachable: usize,
    /// The smallest name among them.
    pub lowest: NodeId,
}

impl Standing {
    /// Compares two weights: more members, or among equals the smaller name, weighs more.
    #[must_use]
    pub fn weigh(&self, other: &Self) -> Ordering {
        self.reachable.cmp(&other.reachable).then_with(|| other.lowest.cmp(&self.lowest))
    }
}
