//! Which member hosts a grain: everyone computes it, and everyone gets the same answer.
//!
//! Each candidate draws a score from the grain's name and its own; the highest score wins. Nobody keeps a table. A member
//! that comes takes only the grains for which it draws the highest score, and one that goes leaves only its own behind:
//! all others stay where they are.
//!
//! There are two ways to draw. [`PlacementHash::Protoactor`] is protoactor-go's, bit for bit, and must be used as soon as
//! one Go node is in the cluster: two members that draw differently would both host a grain. It is skewed when addresses
//! differ in their last digits only. [`PlacementHash::Synod`] is even.

use alloc::vec::Vec;
use core::cmp::Reverse;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::identity::ClusterIdentity;
use crate::roster::{PeerRuntime, RosterMember};

/// How scores are drawn. All members of a cluster must draw alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementHash {
    /// As protoactor-go does: FNV-1a with 32 bits over the identity and the address. The kind is not part of it, so
    /// grains of different kinds with one identity live together.
    #[default]
    Protoactor,
    /// 64 bits of XXH3 over kind, identity and the member's stable name. A member that restarts gets its grains back,
    /// even at another address.
    Synod,
}

impl PlacementHash {
    /// The member that hosts `grain`: of those that have its kind, the one with the highest score. The order of `members`
    /// does not matter. `None` when nobody has the kind.
    pub fn owner<'a>(
        self,
        grain: &ClusterIdentity,
        members: impl IntoIterator<Item = &'a RosterMember>,
    ) -> Option<&'a RosterMember> {
        let mut candidates = members.into_iter().filter(|member| hosts(member, grain.kind()));
        let first = candidates.next()?;
        let Some(second) = candidates.next() else { return Some(first) };
        let candidates = [first, second].into_iter().chain(candidates);
        match self {
            Self::Protoactor => {
                let after_identity = fnv1a(FNV_OFFSET, grain.identity().as_bytes());
                let score =
                    |member: &RosterMember| fnv1a(after_identity, member.authority.as_str().as_bytes());
                // Go starts from a best score of 0 and wants more than that.
                highest(candidates, score).filter(|owner| score(owner) > 0)
            }
            Self::Synod => {
                let mut bytes = Vec::new();
                push_part(&mut bytes, grain.kind());
                push_part(&mut bytes, grain.identity());
                let name_at = bytes.len();
                highest(candidates, |member| {
                    bytes.truncate(name_at);
                    push_part(&mut bytes, stable_name(member));
                    xxh3_64_with_seed(&bytes, SEED)
                })
            }
        }
    }
}

fn hosts(member: &RosterMember, kind: &str) -> bool {
    member.kinds.iter().any(|hosted| hosted == kind)
}

/// The candidate with the highest score; of equals the one with the smallest id.
fn highest<'a, S: Ord>(
    candidates: impl Iterator<Item = &'a RosterMember>,
    mut score: impl FnMut(&RosterMember) -> S,
) -> Option<&'a RosterMember> {
    candidates.max_by_key(|member| (score(member), Reverse(&member.id)))
}

/// What stays of a member when it restarts: a synod node's name without the number of its life.
fn stable_name(member: &RosterMember) -> &str {
    let id = member.id.as_str();
    match member.runtime {
        PeerRuntime::Synod => id.rsplit_once('#').map_or(id, |(name, _)| name),
        PeerRuntime::Protoactor => id,
    }
}

/// The length goes first, so that no two different lists of parts share a byte string.
fn push_part(bytes: &mut Vec<u8>, part: &str) {
    bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
    bytes.extend_from_slice(part.as_bytes());
}

/// FNV-1a, going on from `hash`.
fn fnv1a(hash: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(FNV_PRIME))
}

const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;
/// Sets placement apart from every other use of the same hash. Part of the protocol: changing it moves every grain.
const SEED: u64 = u64::from_le_bytes(*b"synod-gr");

#[cfg(test)]
mod tests;
