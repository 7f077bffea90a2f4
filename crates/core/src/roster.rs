//! Everyone this node deals with, whatever they run.
//!
//! Synod nodes know each other through membership; protoactor-go nodes are only observed, by polls and by their gossip.
//! The roster is the list of both that gossip, placement and pub/sub go by.

use alloc::string::String;
use alloc::vec::Vec;

use crate::gossip::GossipMemberId;
use crate::id::Authority;

/// What a member runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerRuntime {
    /// protoactor-go, or anything else that speaks like it.
    Protoactor,
    /// This software.
    Synod,
}

/// One member of the roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterMember {
    /// This life of it, as gossip names it.
    pub id: GossipMemberId,
    /// Where it listens, exactly as it advertises itself.
    pub authority: Authority,
    /// The kinds of grains it hosts, in order.
    pub kinds: Vec<String>,
    /// What it runs.
    pub runtime: PeerRuntime,
}

/// The roster after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterUpdate {
    /// The topology hash, as protoactor-go computes it.
    pub hash: u64,
    /// Everybody, this node included, in order of their ids.
    pub members: Vec<RosterMember>,
    /// Who came.
    pub joined: Vec<RosterMember>,
    /// Who went.
    pub left: Vec<RosterMember>,
}
