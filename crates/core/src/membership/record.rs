//! What one node says about another, and which of two such statements wins.
//!
//! Records are compared, never voted on. Of two records of one name the greater wins, in this order:
//!
//! 1. **incarnation**: a later life replaces an earlier one at once;
//! 2. **finality**: live < leaving < dead < removed, so a verdict on a life is final;
//! 3. **refutation**: among live records the one with more refuted suspicions is newer;
//! 4. **status**: joining < up < suspect;
//! 5. **authority**: only two processes that claim one name and one life ever differ here.
//!
//! A total order makes `max` a join of a semilattice: merging is commutative, associative, idempotent and monotone.
//!
//! The incarnation names a *life* (it is half of [`MemberId`], which other systems hold on to), so a live node that
//! clears itself of a suspicion must not change it; it raises the [`Refutation`] beside it. Only a node that was
//! declared dead takes a new incarnation.

use core::cmp::Ordering;

use xxhash_rust::xxh3::xxh3_128;

use super::status::NodeStatus;
use crate::id::{AUTHORITY_BYTES_MAX, Authority, MemberId, NODE_ID_BYTES_MAX};

/// How many suspicions of one life have been refuted, by the accused or by a witness that heard it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Refutation(pub u32);

impl Refutation {
    /// The number after this one. It saturates: a node would have to be suspected four billion times in one life.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// One statement about one node: which life, where, and in which state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Name and life.
    pub member: MemberId,
    /// Where its peer listener is.
    pub authority: Authority,
    /// Its state.
    pub status: NodeStatus,
    /// How many suspicions of this life were refuted.
    pub refutation: Refutation,
}

impl NodeRecord {
    /// A record of a life that just begins.
    #[must_use]
    pub const fn joining(member: MemberId, authority: Authority) -> Self {
        Self { member, authority, status: NodeStatus::Joining, refutation: Refutation(0) }
    }

    /// The order of the module documentation. Only records of one name are comparable in a meaningful way.
    #[must_use]
    pub fn precedence(&self, other: &Self) -> Ordering {
        (self.member.incarnation, finality(self.status), self.refutation, self.status, &self.authority).cmp(
            &(
                other.member.incarnation,
                finality(other.status),
                other.refutation,
                other.status,
                &other.authority,
            ),
        )
    }

    /// Whether this record replaces `other` in a merge.
    #[must_use]
    pub fn supersedes(&self, other: &Self) -> bool {
        self.precedence(other) == Ordering::Greater
    }

    /// A 128-bit hash of the whole record; equal records have equal digests on every node and platform.
    #[must_use]
    pub fn digest(&self) -> u128 {
        let node = self.member.node.as_str().as_bytes();
        // A length comes first, so that no two different records share a byte string.
        let parts: [&[u8]; 6] = [
            &[self.status as u8],
            &(node.len() as u64).to_le_bytes(),
            &self.member.incarnation.get().to_le_bytes(),
            &self.refutation.0.to_le_bytes(),
            node,
            self.authority.as_str().as_bytes(),
        ];
        let mut bytes = [0_u8; RECORD_BYTES_MAX];
        let mut length = 0;
        for part in parts {
            bytes[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        xxh3_128(&bytes[..length])
    }
}

/// Room for every record: names and addresses are bounded where they are parsed.
const RECORD_BYTES_MAX: usize = 1 + 8 + 8 + 4 + NODE_ID_BYTES_MAX + AUTHORITY_BYTES_MAX;

/// The coarse step of the order: what no refutation can undo.
const fn finality(status: NodeStatus) -> u8 {
    match status {
        NodeStatus::Joining | NodeStatus::Up | NodeStatus::Suspect => 0,
        NodeStatus::Leaving => 1,
        NodeStatus::Dead => 2,
        NodeStatus::Removed => 3,
    }
}
