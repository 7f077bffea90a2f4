//! Everyone this node deals with, whatever they run.
//!
//! Synod nodes know each other through membership; protoactor-go nodes are only observed, by polls and by their gossip.
//! The roster is the list of both that gossip, placement and pub/sub go by.
//!
//! ```text
//!   membership ──► synod members, as they stand ──────────────┐
//!   polls      ──► foreign members; kinds of all members ─────┼──► one list in order of ids ──► update, on a change
//!   gossip     ──► foreign members that live, or are over ────┘
//! ```
//!
//! No single source is believed about a foreign member's end. A poll that fails is a hint, and no hint at all while the
//! member gossips; what ends a life at once is its own farewell, the end of its heartbeats, or another life at its
//! address.

mod config;

pub use config::{RosterConfig, RosterConfigError};

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use crate::gossip::GossipMemberId;
use crate::id::{Authority, MemberId, MemberIdError, NodeId};
use crate::membership::{Member, TopologyError, TopologyUpdate};
use crate::murmur::murmur3_64;
use crate::time::TimerInstant;

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

/// The roster after a change. Taking `left` out of the list before, and putting `joined` in by id, gives `members`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterUpdate {
    /// The topology hash, as protoactor-go computes it.
    pub hash: u64,
    /// Everybody, this node included, in order of their ids.
    pub members: Vec<RosterMember>,
    /// Who came, and whoever was there and is known better now: the kinds of a synod member are learned after it.
    pub joined: Vec<RosterMember>,
    /// Who went.
    pub left: Vec<RosterMember>,
}

/// What one round of polls found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PollResult {
    /// The members that answered.
    pub members: Vec<RosterMember>,
    /// How many answered as members of another cluster.
    pub strangers: usize,
    /// How many did not answer, or not so that one could use it.
    pub missing: usize,
}

/// What a call asks the driver to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RosterOutcome {
    /// What was polled and not taken. The same refusals come with every poll, as long as their reasons last.
    pub refusals: Vec<RosterRefusal>,
    /// Synod nodes that answered and that membership does not know: it should try to join them.
    pub join_hints: Vec<Member>,
    /// The new roster, if it changed.
    pub update: Option<RosterUpdate>,
}

/// A polled member was not taken. The roster is as if it had not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RosterRefusal {
    /// Another member answers for the same address.
    #[error("{id} claims {authority}, which is the address of {holder}; it was ignored")]
    AddressTaken {
        /// Who was refused.
        id: GossipMemberId,
        /// The address.
        authority: Authority,
        /// Whose it is.
        holder: GossipMemberId,
    },
    /// Gossip says that this life is over.
    #[error("{id} at {authority} answers, but its life is over; it was ignored until it restarts")]
    Gone {
        /// Who was refused.
        id: GossipMemberId,
        /// Its address.
        authority: Authority,
    },
    /// One life claims two addresses.
    #[error("{id} claims {authority}, but is known at {known}; this was ignored")]
    Moved {
        /// Who was refused.
        id: GossipMemberId,
        /// The address that it claims.
        authority: Authority,
        /// The address that it has.
        known: Authority,
    },
    /// It says that it runs synod, but its id is none of synod's.
    #[error("{id} at {authority} is no synod node ({error}); it was ignored")]
    NotASynodId {
        /// Who was refused.
        id: GossipMemberId,
        /// Its address.
        authority: Authority,
        /// What is wrong with the id.
        error: MemberIdError,
    },
    /// The roster is full.
    #[error("{id} at {authority} was ignored: the roster has {max} members already")]
    TooMany {
        /// Who was refused.
        id: GossipMemberId,
        /// Its address.
        authority: Authority,
        /// Most members.
        max: usize,
    },
}

impl RosterRefusal {
    /// The address of whoever was refused.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        match self {
            Self::AddressTaken { authority, .. }
            | Self::Gone { authority, .. }
            | Self::Moved { authority, .. }
            | Self::NotASynodId { authority, .. }
            | Self::TooMany { authority, .. } => authority,
        }
    }
}

/// A topology was not taken. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RosterError {
    /// It contradicts itself.
    #[error("the topology contradicts itself ({0}); the roster stands")]
    InvalidTopology(TopologyError),
    /// It has too many members.
    #[error("{members} members are more than the roster's {max}; the roster stands")]
    TooManyMembers {
        /// How many there would be.
        members: usize,
        /// Most members.
        max: usize,
    },
}

/// The list of everyone, merged from membership, polls and gossip.
///
/// Inputs: [`start`](Self::start) first and once, then `handle_*`; time is monotonic. The sources need not be in step:
/// in whatever order their inputs come, polls that go on lead to the same roster. There is no `poll`: a roster changes
/// with its inputs only.
///
/// Membership comes first: of a synod member and a foreign one at the same address, or of the same id, the synod member
/// is listed.
#[derive(Clone, Debug)]
pub struct Roster {
    config: RosterConfig,
    own: Option<Own>,
    synod: BTreeMap<NodeId, Member>,
    /// The kinds of synod members, also of those that membership does not know yet.
    kinds: BTreeMap<MemberId, Vec<String>>,
    foreign: BTreeMap<GossipMemberId, Foreign>,
    alive_at: BTreeMap<GossipMemberId, TimerInstant>,
    gone: BTreeSet<GossipMemberId>,
    gone_order: VecDeque<GossipMemberId>,
    reported: BTreeMap<GossipMemberId, RosterMember>,
}

#[derive(Clone, Debug)]
struct Own {
    member: Member,
    kinds: Vec<String>,
}

#[derive(Clone, Debug)]
struct Foreign {
    authority: Authority,
    kinds: Vec<String>,
    /// Polls missed in a row.
    misses: u32,
}

impl Roster {
    /// The roster of a node that is a member, and that hosts `kinds`.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn member(own: Member, kinds: Vec<String>, config: RosterConfig) -> Result<Self, RosterConfigError> {
        Self::new(Some(Own { member: own, kinds: in_order(kinds) }), config)
    }

    /// The roster of a client, which is not on it.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn client(config: RosterConfig) -> Result<Self, RosterConfigError> {
        Self::new(None, config)
    }

    /// Tells of this node itself, if it is a member.
    pub fn start(&mut self) -> RosterOutcome {
        self.finish(RosterOutcome::default())
    }

    /// Membership has a new topology.
    ///
    /// # Errors
    /// Refused when it contradicts itself, and when it is too large.
    pub fn handle_topology(&mut self, update: &TopologyUpdate) -> Result<RosterOutcome, RosterError> {
        update.validate().map_err(RosterError::InvalidTopology)?;
        let own_node = self.own_node().cloned();
        let is_own = |member: &&Member| Some(&member.id.node) == own_node.as_ref();
        let synod: BTreeMap<NodeId, Member> = update
            .members
            .iter()
            .filter(|member| !is_own(member))
            .map(|member| (member.id.node.clone(), member.clone()))
            .collect();
        let (members, max) =
            (synod.len() + self.foreign.len() + usize::from(self.own.is_some()), self.config.members_max);
        if members > max {
            return Err(RosterError::TooManyMembers { members, max });
        }
        self.synod = synod;
        if let Some(own) = update.members.iter().find(is_own) {
            self.begin_life(&own.id);
        }
        Ok(self.finish(RosterOutcome::default()))
    }

    /// This node lives on as `current`. What gossip had said about others was said to its last life and is forgotten: a
    /// node that was cut off, and returns as another, finds those again that it had given up.
    pub fn handle_rejoin(&mut self, current: &MemberId) -> RosterOutcome {
        self.begin_life(current);
        self.finish(RosterOutcome::default())
    }

    /// A round of polls is over. If nobody at all answered, the fault is more likely here than everywhere else, and
    /// nothing changes.
    pub fn handle_poll(&mut self, result: PollResult, now: TimerInstant) -> RosterOutcome {
        let mut out = RosterOutcome::default();
        if result.members.is_empty() && result.strangers == 0 && result.missing > 0 {
            return out;
        }
        let (synod, mut foreign): (Vec<_>, Vec<_>) =
            result.members.into_iter().partition(|member| member.runtime == PeerRuntime::Synod);
        self.note_synod(synod, &mut out);
        // Whoever is known at its address keeps it, in whatever order they answered.
        foreign.sort_by_key(|member| (!self.is_known(member), member.id.clone()));
        let mut seen = BTreeSet::new();
        for member in foreign {
            let id = member.id.clone();
            match self.take_foreign(member, &seen) {
                Ok(()) => drop(seen.insert(id)),
                Err(refusal) => out.refusals.push(refusal),
            }
        }
        self.count_misses(&seen, now);
        self.finish(out)
    }

    /// A heartbeat of `member` came in.
    pub fn handle_alive(&mut self, member: &GossipMemberId, now: TimerInstant) {
        if self.alive_at.len() >= self.config.members_max && !self.alive_at.contains_key(member) {
            let grace = self.config.alive_grace;
            self.alive_at.retain(|_, at| now.saturating_since(*at) <= grace);
            if self.alive_at.len() >= self.config.members_max {
                return;
            }
        }
        self.alive_at.insert(member.clone(), now);
    }

    /// Gossip says that this life of `member` is over: it left, or its heartbeats ended. A foreign member goes at once
    /// and comes back under a new id only. About synod members membership decides.
    pub fn handle_blocked(&mut self, member: &GossipMemberId) -> RosterOutcome {
        self.foreign.remove(member);
        self.alive_at.remove(member);
        if self.gone.insert(member.clone()) {
            self.gone_order.push_back(member.clone());
            if self.gone_order.len() > GONE_MAX
                && let Some(oldest) = self.gone_order.pop_front()
            {
                self.gone.remove(&oldest);
            }
        }
        self.finish(RosterOutcome::default())
    }

    /// A synod member says which kinds of grains it hosts. It may be one that membership does not know yet.
    pub fn handle_kinds(&mut self, id: &MemberId, kinds: Vec<String>) -> RosterOutcome {
        if self.own_node() != Some(&id.node) {
            self.kinds.insert(id.clone(), in_order(kinds));
            self.forget_kinds(&BTreeSet::from([id.clone()]));
        }
        self.finish(RosterOutcome::default())
    }

    /// Everybody as last told, in order of their ids.
    pub fn members(&self) -> impl Iterator<Item = &RosterMember> {
        self.reported.values()
    }

    /// This node's own entry; `None` for a client.
    #[must_use]
    pub fn own(&self) -> Option<RosterMember> {
        self.own.as_ref().map(|own| entry(&own.member, own.kinds.clone()))
    }

    fn new(own: Option<Own>, config: RosterConfig) -> Result<Self, RosterConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            own,
            synod: BTreeMap::new(),
            kinds: BTreeMap::new(),
            foreign: BTreeMap::new(),
            alive_at: BTreeMap::new(),
            gone: BTreeSet::new(),
            gone_order: VecDeque::new(),
            reported: BTreeMap::new(),
        })
    }

    fn own_node(&self) -> Option<&NodeId> {
        self.own.as_ref().map(|own| &own.member.id.node)
    }

    fn begin_life(&mut self, current: &MemberId) {
        if let Some(own) = &mut self.own
            && own.member.id.node == current.node
            && own.member.id.incarnation < current.incarnation
        {
            own.member.id = current.clone();
            self.gone.clear();
            self.gone_order.clear();
        }
    }

    fn forget_kinds(&mut self, answered: &BTreeSet<MemberId>) {
        if self.kinds.len() > self.config.members_max {
            let synod = &self.synod;
            let is_listed = |id: &MemberId| synod.get(&id.node).is_some_and(|member| member.id == *id);
            self.kinds.retain(|id, _| answered.contains(id) || is_listed(id));
        }
    }

    /// Learns kinds, and finds out who should be joined.
    fn note_synod(&mut self, polled: Vec<RosterMember>, out: &mut RosterOutcome) {
        let mut answered = BTreeSet::new();
        for member in polled {
            let id: MemberId = match member.id.as_str().parse() {
                Ok(id) => id,
                Err(error) => {
                    let (id, authority) = (member.id, member.authority);
                    out.refusals.push(RosterRefusal::NotASynodId { id, authority, error });
                    continue;
                }
            };
            self.kinds.insert(id.clone(), in_order(member.kinds));
            answered.insert(id.clone());
            let is_known = self.own_node() == Some(&id.node)
                || self.synod.get(&id.node).is_some_and(|known| known.id.incarnation >= id.incarnation);
            if !is_known {
                out.join_hints.push(Member { id, authority: member.authority });
            }
        }
        self.forget_kinds(&answered);
    }

    fn is_known(&self, member: &RosterMember) -> bool {
        self.foreign.get(&member.id).is_some_and(|known| known.authority == member.authority)
    }

    /// Takes a foreign member that answered. `seen` did so before, in the same round.
    fn take_foreign(
        &mut self,
        member: RosterMember,
        seen: &BTreeSet<GossipMemberId>,
    ) -> Result<(), RosterRefusal> {
        let RosterMember { id, authority, kinds, .. } = member;
        if let Some(own) = &self.own
            && own.member.authority == authority
        {
            let holder = GossipMemberId::from(&own.member.id);
            return Err(RosterRefusal::AddressTaken { id, authority, holder });
        }
        if self.gone.contains(&id) {
            return Err(RosterRefusal::Gone { id, authority });
        }
        if let Some(known) = self.foreign.get_mut(&id) {
            if known.authority != authority {
                let known = known.authority.clone();
                return Err(RosterRefusal::Moved { id, authority, known });
            }
            // Go nodes fix the kinds of a member when it joins, and place grains by them. So do we.
            known.misses = 0;
            return Ok(());
        }
        let holder = self.foreign.iter().find(|(_, known)| known.authority == authority);
        match holder.map(|(id, _)| id.clone()) {
            Some(holder) if seen.contains(&holder) => {
                return Err(RosterRefusal::AddressTaken { id, authority, holder });
            }
            // It was restarted: its address speaks for another life now.
            Some(holder) => drop(self.foreign.remove(&holder)),
            None => {}
        }
        let max = self.config.members_max;
        if self.synod.len() + self.foreign.len() + usize::from(self.own.is_some()) >= max {
            return Err(RosterRefusal::TooMany { id, authority, max });
        }
        self.foreign.insert(id, Foreign { authority, kinds: in_order(kinds), misses: 0 });
        Ok(())
    }

    fn count_misses(&mut self, seen: &BTreeSet<GossipMemberId>, now: TimerInstant) {
        let RosterConfig { alive_grace, poll_misses_max, .. } = self.config;
        self.alive_at.retain(|_, at| now.saturating_since(*at) <= alive_grace);
        let alive_at = &self.alive_at;
        self.foreign.retain(|id, member| {
            if !seen.contains(id) && !alive_at.contains_key(id) {
                member.misses += 1;
            }
            member.misses <= poll_misses_max
        });
    }

    /// Puts the roster together and tells how it differs from the last one that was told.
    fn finish(&mut self, mut out: RosterOutcome) -> RosterOutcome {
        let members = self.merged();
        let joined: Vec<_> = members
            .values()
            .filter(|member| self.reported.get(&member.id) != Some(member))
            .cloned()
            .collect();
        let left: Vec<_> =
            self.reported.values().filter(|member| !members.contains_key(&member.id)).cloned().collect();
        if !(joined.is_empty() && left.is_empty()) {
            let ids: String = members.keys().map(GossipMemberId::as_str).collect();
            let hash = murmur3_64(ids.as_bytes());
            out.update =
                Some(RosterUpdate { hash, members: members.values().cloned().collect(), joined, left });
        }
        self.reported = members;
        out
    }

    fn merged(&self) -> BTreeMap<GossipMemberId, RosterMember> {
        let learned = |id: &MemberId| self.kinds.get(id).cloned().unwrap_or_default();
        let others = self.synod.values().map(|member| entry(member, learned(&member.id)));
        let mut members: BTreeMap<_, _> =
            self.own().into_iter().chain(others).map(|member| (member.id.clone(), member)).collect();
        let taken: BTreeSet<Authority> = members.values().map(|member| member.authority.clone()).collect();
        for (id, Foreign { authority, kinds, .. }) in &self.foreign {
            if !members.contains_key(id) && !taken.contains(authority) {
                let (id, authority, kinds) = (id.clone(), authority.clone(), kinds.clone());
                let runtime = PeerRuntime::Protoactor;
                members.insert(id.clone(), RosterMember { id, authority, kinds, runtime });
            }
        }
        members
    }
}

fn entry(member: &Member, kinds: Vec<String>) -> RosterMember {
    let (id, authority) = (GossipMemberId::from(&member.id), member.authority.clone());
    RosterMember { id, authority, kinds, runtime: PeerRuntime::Synod }
}

fn in_order(mut kinds: Vec<String>) -> Vec<String> {
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Most lives that are remembered as over. The oldest is forgotten first, by which time nobody speaks of it any more.
pub const GONE_MAX: usize = 65_536;

#[cfg(test)]
mod tests;
