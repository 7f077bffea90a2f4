//! Who owned grains a moment ago.
//!
//! A roster says who hosts a grain from now on, not who still runs it. For a while after a change the rosters before it
//! are kept: their owners are asked to yield before a grain is started here. In a stable cluster nothing is kept, and
//! nobody is asked.
//!
//! Members do not learn of changes at the same moment. A digest of the roster travels with what they ask of each other, so
//! that whoever is asked can tell a peer that is ahead from one that lags behind.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::outcome::GrainHost;
use crate::gossip::GossipMemberId;
use crate::grains::{ClusterIdentity, PlacementHash};
use crate::id::Authority;
use crate::roster::{PeerRuntime, RosterMember};
use crate::time::TimerInstant;

/// The roster, and those before it.
#[derive(Clone, Debug)]
pub(super) struct RosterHistory {
    members: Vec<RosterMember>,
    digest: u64,
    /// Counts the changes: a roster may come back.
    generation: u64,
    window: Duration,
    past: VecDeque<PastRoster>,
    /// Addresses of members that went, the oldest first. Whoever comes back from there may have run grains meanwhile.
    departed: Departed,
    returned: VecDeque<(Authority, TimerInstant)>,
}

#[derive(Clone, Debug)]
struct PastRoster {
    members: Vec<RosterMember>,
    digest: u64,
    until: TimerInstant,
    /// Whether this node was not there to see it, and takes it to have been what it first saw of the others.
    is_assumed: bool,
}

impl RosterHistory {
    pub(super) const fn new(window: Duration) -> Self {
        Self {
            members: Vec::new(),
            digest: 0,
            generation: 0,
            window,
            past: VecDeque::new(),
            departed: Departed { authorities: BTreeSet::new(), order: VecDeque::new() },
            returned: VecDeque::new(),
        }
    }

    /// Goes by `members` from now on. Returns whether that is a change.
    pub(super) fn advance(&mut self, members: &[RosterMember], own: &GrainHost, now: TimerInstant) -> bool {
        let digest = digest(members);
        if digest == self.digest {
            return false;
        }
        self.forget(now);
        self.generation += 1;
        let until = now + self.window;
        let before = core::mem::replace(&mut self.members, members.to_vec());
        let digest_before = core::mem::replace(&mut self.digest, digest);
        let is_listed = |members: &[RosterMember], authority: &Authority| {
            members.iter().any(|member| member.authority == *authority)
        };
        for member in before.iter().filter(|member| !is_listed(members, &member.authority)) {
            self.departed.insert(&member.authority);
        }
        for member in members.iter().filter(|member| !is_listed(&before, &member.authority)) {
            if member.authority != own.authority && self.departed.remove(&member.authority) {
                self.returned.push_back((member.authority.clone(), until));
            }
        }
        self.learn_kinds(members, until);
        // A node that was alone is new to the others; before it they were the cluster.
        let is_other = |member: &&RosterMember| member.authority != own.authority;
        let is_assumed = !before.iter().any(|member| is_other(&member));
        let before = if is_assumed { members.iter().filter(is_other).cloned().collect() } else { before };
        if !before.is_empty() {
            self.past.push_back(PastRoster { members: before, digest: digest_before, until, is_assumed });
        }
        while self.past.len() > PAST_MAX {
            self.past.pop_front();
        }
        while self.returned.len() > RETURNED_MAX {
            self.returned.pop_front();
        }
        true
    }

    /// What a member hosts is learned after it. Before this node came the others knew it all the same, and went by it.
    fn learn_kinds(&mut self, members: &[RosterMember], until: TimerInstant) {
        for past in self.past.iter_mut().filter(|past| past.is_assumed) {
            for member in past.members.iter_mut().filter(|member| member.kinds.is_empty()) {
                if let Some(known) = members.iter().find(|known| known.id == member.id) {
                    member.kinds.clone_from(&known.kinds);
                    past.until = until;
                }
            }
        }
    }

    /// Forgets what is too long ago to matter.
    pub(super) fn forget(&mut self, now: TimerInstant) {
        while self.past.front().is_some_and(|past| past.until <= now) {
            self.past.pop_front();
        }
        while self.returned.front().is_some_and(|(_, until)| *until <= now) {
            self.returned.pop_front();
        }
    }

    pub(super) fn members(&self) -> &[RosterMember] {
        &self.members
    }

    pub(super) const fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether whoever goes by the roster of this digest lags behind.
    pub(super) fn is_past(&self, digest: u64) -> bool {
        digest != self.digest && self.past.iter().any(|past| past.digest == digest)
    }

    pub(super) fn is_listed(&self, id: &GossipMemberId) -> bool {
        self.members.iter().any(|member| member.id == *id)
    }

    /// Whether the roster has changed a moment ago.
    pub(super) fn is_recent(&self) -> bool {
        !self.past.is_empty()
    }

    /// Whether a member was there a moment ago, and is not any more.
    pub(super) fn has_left(&self, id: &GossipMemberId) -> bool {
        let was_listed = |past: &PastRoster| past.members.iter().any(|member| member.id == *id);
        !self.is_listed(id) && self.past.iter().any(was_listed)
    }

    /// The members that may still run `grain`, or hold its state: its owners by the rosters before this one, as far as
    /// they are still there and would understand the question.
    pub(super) fn previous_owners(
        &self,
        grain: &ClusterIdentity,
        placement: PlacementHash,
        own: &GrainHost,
    ) -> Vec<GrainHost> {
        let mut found: Vec<GrainHost> = Vec::new();
        let find = |authority: &Authority| self.members.iter().find(|member| member.authority == *authority);
        let past = self.past.iter().rev().filter_map(|past| {
            let owner = placement.owner(grain, &past.members)?;
            if find(&owner.authority).is_some() {
                return Some(owner);
            }
            // One that left gave its grains to whoever came after it among those it knew.
            placement.owner(grain, past.members.iter().filter(|member| find(&member.authority).is_some()))
        });
        let returned = (!self.returned.is_empty())
            .then(|| {
                let has_returned = |member: &&RosterMember| {
                    self.returned.iter().any(|(authority, _)| *authority == member.authority)
                };
                placement.owner(grain, self.members.iter().filter(has_returned))
            })
            .flatten();
        for owner in past.chain(returned) {
            // It may live on under another id.
            if let Some(member) = find(&owner.authority)
                && member.authority != own.authority
                && member.runtime == PeerRuntime::Synod
                && found.iter().all(|other| other.id != member.id)
            {
                found.push(GrainHost::from(member));
            }
        }
        found
    }
}

#[derive(Clone, Debug)]
struct Departed {
    authorities: BTreeSet<Authority>,
    order: VecDeque<Authority>,
}

impl Departed {
    fn insert(&mut self, authority: &Authority) {
        if self.authorities.insert(authority.clone()) {
            self.order.push_back(authority.clone());
        }
        if self.order.len() > DEPARTED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.authorities.remove(&oldest);
        }
    }

    fn remove(&mut self, authority: &Authority) -> bool {
        let is_known = self.authorities.remove(authority);
        if is_known {
            self.order.retain(|other| other != authority);
        }
        is_known
    }
}

/// The same for the same members, in whatever order.
fn digest(members: &[RosterMember]) -> u64 {
    let mut bytes = Vec::new();
    members.iter().fold(SEED, |sum, member| {
        bytes.clear();
        let names = [member.id.as_str(), member.authority.as_str()];
        for part in names.into_iter().chain(member.kinds.iter().map(alloc::string::String::as_str)) {
            bytes.extend_from_slice(part.as_bytes());
            bytes.push(0);
        }
        bytes.push(u8::from(member.runtime == PeerRuntime::Synod));
        sum.wrapping_add(xxh3_64_with_seed(&bytes, SEED))
    })
}

/// Most rosters that are kept after they were replaced.
const PAST_MAX: usize = 8;
/// Most addresses of departed members that are remembered.
const DEPARTED_MAX: usize = 1024;
/// Most members that count as returned at a time.
const RETURNED_MAX: usize = 256;
const SEED: u64 = 0x726f_7374_6572;

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec;

    use super::*;

    fn member(name: &str) -> RosterMember {
        RosterMember {
            id: GossipMemberId::new(&format!("{name}#1")).expect("an id"),
            authority: Authority::new(&format!("{name}:1")).expect("an authority"),
            kinds: vec!["Chat".into()],
            runtime: PeerRuntime::Synod,
        }
    }

    fn own_host(name: &str) -> GrainHost {
        GrainHost::from(&member(name))
    }

    fn names(history: &RosterHistory, own: &str) -> Vec<alloc::string::String> {
        let mut names: Vec<_> = (0..100)
            .map(|n| ClusterIdentity::new("Chat", &format!("{n}")).expect("a name"))
            .flat_map(|grain| history.previous_owners(&grain, PlacementHash::Synod, &own_host(own)))
            .map(|member| member.authority.host().into())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    const fn at(seconds: u64) -> TimerInstant {
        TimerInstant::from_millis(seconds * 1000)
    }

    #[test]
    fn only_for_a_while_after_a_change_anybody_is_asked() {
        let mut history = RosterHistory::new(Duration::from_secs(10));
        let own = own_host("a");
        assert!(history.advance(&[member("a"), member("b"), member("c")], &own, at(0)));
        assert_eq!(names(&history, "a"), ["b", "c"], "a node that is new asks whoever was there before it");
        history.forget(at(10));
        assert_eq!(names(&history, "a"), [""; 0]);
        // The order does not matter.
        assert!(!history.advance(&[member("c"), member("b"), member("a")], &own, at(11)));
        // Who went cannot be asked, who stayed can.
        let digest = history.digest();
        assert!(history.advance(&[member("a"), member("b")], &own, at(12)));
        assert!(history.is_past(digest) && !history.is_past(history.digest()));
        assert_eq!(names(&history, "a"), ["b"]);
        history.forget(at(22));
        assert!(!history.is_past(digest));
    }

    #[test]
    fn a_new_node_asks_the_owners_before_it_though_it_learns_later_what_they_host() {
        let mut history = RosterHistory::new(Duration::from_secs(10));
        let own = own_host("a");
        let unknown = |name| RosterMember { kinds: vec![], ..member(name) };
        history.advance(&[member("a")], &own, at(0));
        history.advance(&[member("a"), unknown("b"), unknown("c")], &own, at(0));
        assert_eq!(names(&history, "a"), [""; 0], "nobody is known to host anything");
        history.advance(&[member("a"), member("b"), unknown("c")], &own, at(1));
        assert_eq!(names(&history, "a"), ["b"]);
        history.advance(&[member("a"), member("b"), member("c")], &own, at(2));
        let mut at_once = RosterHistory::new(Duration::from_secs(10));
        at_once.advance(&[member("a"), member("b"), member("c")], &own, at(2));
        for number in 0..100 {
            let grain = ClusterIdentity::new("Chat", &format!("{number}")).expect("a name");
            let asks = |history: &RosterHistory| history.previous_owners(&grain, PlacementHash::Synod, &own);
            let (asked, owners) = (asks(&history), asks(&at_once));
            assert!(owners.iter().all(|owner| asked.contains(owner)), "{asked:?} misses {owners:?}");
        }
    }

    #[test]
    fn who_returns_may_have_run_anything_meanwhile() {
        let mut history = RosterHistory::new(Duration::from_secs(10));
        let own = own_host("a");
        history.advance(&[member("a"), member("b")], &own, at(0));
        history.forget(at(20));
        // One that nobody has seen before runs nothing.
        history.advance(&[member("a"), member("b"), member("c")], &own, at(20));
        assert_eq!(names(&history, "a"), ["b"], "what belonged to b may belong to a now, for all this knows");
        history.advance(&[member("a"), member("b")], &own, at(40));
        history.forget(at(60));
        history.advance(&[member("a"), member("b"), member("c")], &own, at(60));
        assert_eq!(names(&history, "a"), ["b", "c"]);
    }

    #[test]
    fn the_heir_of_one_that_left_is_asked_by_one_that_it_did_not_know() {
        let mut history = RosterHistory::new(Duration::from_secs(10));
        // `a` is new; `b` leaves before it has heard of that, and gives everything to `c`.
        history.advance(&[member("a"), member("b"), member("c")], &own_host("a"), at(0));
        history.advance(&[member("a"), member("c")], &own_host("a"), at(1));
        for n in 0..20 {
            let grain = ClusterIdentity::new("Chat", &format!("{n}")).expect("a name");
            let asked = history.previous_owners(&grain, PlacementHash::Synod, &own_host("a"));
            assert_eq!(asked, [own_host("c")]);
        }
    }

    #[test]
    fn history_is_bounded() {
        let mut history = RosterHistory::new(Duration::from_secs(10));
        for n in 0..3000 {
            history.advance(&[member("a"), member(&format!("n{n}"))], &own_host("a"), at(0));
        }
        assert_eq!((history.past.len(), history.departed.order.len()), (PAST_MAX, DEPARTED_MAX));
    }
}
