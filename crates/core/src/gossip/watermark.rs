//! What each peer holds for certain, and what is on its way to it.
//!
//! For each pair of a peer and a member there is a watermark: the peer holds everything of that member up to this write.
//! A delta is cut from what lies above, oldest first, so that a cut-off delta still raises the watermark by a whole
//! piece. The new marks travel with the request and count only when it is answered; a lost one is simply told again.
//! An entry that arrives here after a later one of its member pulls the marks back below it, or nobody would be told.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::config::GossiperConfig;
use super::id::{GossipMemberId, SequenceNumber};
use super::outcome::RequestToken;
use super::state::{GossipState, entry_bytes, member_bytes};
use super::store::GossipStateStore;
use crate::time::TimerInstant;

/// The watermarks of all peers. Peers and members that are gone leave nothing behind.
#[derive(Clone, Debug)]
pub(super) struct Watermarks {
    peers: BTreeMap<GossipMemberId, Peer>,
    in_flight: BTreeMap<RequestToken, InFlight>,
    deadlines: BTreeSet<(TimerInstant, RequestToken)>,
    next_token: u64,
}

#[derive(Clone, Debug, Default)]
struct Peer {
    /// Up to which write of each member it holds everything.
    held: BTreeMap<GossipMemberId, SequenceNumber>,
    /// The member that the last delta ended with: the next one goes on from there.
    told_last: Option<GossipMemberId>,
    /// The one request that waits for its answer.
    waiting: Option<RequestToken>,
}

#[derive(Clone, Debug)]
struct InFlight {
    peer: GossipMemberId,
    marks: BTreeMap<GossipMemberId, SequenceNumber>,
    deadline: TimerInstant,
}

/// What a peer lacks, and the watermarks it will have once it got it.
#[derive(Clone, Debug, Default)]
pub(super) struct Delta {
    pub(super) state: GossipState,
    marks: BTreeMap<GossipMemberId, SequenceNumber>,
}

impl Watermarks {
    /// No peers yet. Tokens count on from `next_token`, so that an answer to an earlier run matches nothing.
    pub(super) const fn new(next_token: u64) -> Self {
        Self { peers: BTreeMap::new(), in_flight: BTreeMap::new(), deadlines: BTreeSet::new(), next_token }
    }

    /// Replaces the set of peers. Those that stay keep their marks and what is on its way to them.
    pub(super) fn set_peers(&mut self, peers: &BTreeSet<GossipMemberId>) {
        let gone: Vec<_> = self.peers.keys().filter(|peer| !peers.contains(*peer)).cloned().collect();
        for peer in &gone {
            self.remove_peer(peer);
        }
        for peer in peers {
            if !self.peers.contains_key(peer) {
                self.peers.insert(peer.clone(), Peer::default());
            }
        }
    }

    /// Forgets a peer and what is on its way to it.
    pub(super) fn remove_peer(&mut self, peer: &GossipMemberId) {
        if let Some(token) = self.peers.remove(peer).and_then(|peer| peer.waiting) {
            self.discard(token);
        }
    }

    /// Forgets what anybody holds of `member`.
    pub(super) fn forget_member(&mut self, member: &GossipMemberId) {
        for peer in self.peers.values_mut() {
            peer.held.remove(member);
        }
        for request in self.in_flight.values_mut() {
            request.marks.remove(member);
        }
    }

    /// An entry of `member` with this number became known after later ones: nobody has been told of it.
    pub(super) fn pull_back(&mut self, member: &GossipMemberId, sequence: SequenceNumber) {
        let held = self.peers.values_mut().map(|peer| &mut peer.held);
        // What is on its way does not carry the entry either, so its answer must not vouch for it.
        for marks in held.chain(self.in_flight.values_mut().map(|request| &mut request.marks)) {
            let Some(mark) = marks.get_mut(member).filter(|mark| **mark >= sequence) else { continue };
            match sequence.previous() {
                Some(before) => *mark = before,
                None => drop(marks.remove(member)),
            }
        }
    }

    /// What `peer` lacks: this node's own entries first, then those of other members in turn, within the bounds of a
    /// message. Empty for strangers.
    pub(super) fn delta(
        &mut self,
        peer: &GossipMemberId,
        store: &GossipStateStore,
        config: &GossiperConfig,
    ) -> Delta {
        let mut delta = Delta::default();
        let Some(known) = self.peers.get_mut(peer) else { return delta };
        let mut room = config.delta_bytes_max;
        let others = store.owners_from(known.told_last.as_ref()).filter(|member| *member != store.own());
        let mut told_last = None;
        for member in core::iter::once(store.own()).chain(others) {
            if delta.state.len() == config.gossip_max_send {
                break;
            }
            let mark = known.held.get(member).copied();
            // A peer needs nobody to tell it about itself.
            if member == peer || store.latest(member) <= mark {
                continue;
            }
            let complete = delta.add(member, mark, store, &mut room);
            if delta.marks.contains_key(member) && member != store.own() {
                told_last = Some(member.clone());
            }
            if !complete {
                break;
            }
        }
        if told_last.is_some() {
            known.told_last = told_last;
        }
        delta
    }

    /// A delta goes out as a request. Its marks count once it is answered.
    pub(super) fn begin(
        &mut self,
        peer: &GossipMemberId,
        delta: &Delta,
        deadline: TimerInstant,
    ) -> RequestToken {
        let token = RequestToken(self.next_token);
        self.next_token += 1;
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.waiting = Some(token);
        }
        let request = InFlight { peer: peer.clone(), marks: delta.marks.clone(), deadline };
        self.deadlines.insert((deadline, token));
        self.in_flight.insert(token, request);
        token
    }

    /// The request was answered: the peer holds what it carried. Returns who answered.
    pub(super) fn commit(&mut self, token: RequestToken) -> Option<GossipMemberId> {
        let request = self.discard(token)?;
        if let Some(peer) = self.peers.get_mut(&request.peer) {
            for (member, mark) in request.marks {
                let held = peer.held.entry(member).or_insert(mark);
                *held = mark.max(*held);
            }
        }
        Some(request.peer)
    }

    /// The request failed: what it carried will be told again. Returns who did not get it.
    pub(super) fn abandon(&mut self, token: RequestToken) -> Option<GossipMemberId> {
        self.discard(token).map(|request| request.peer)
    }

    /// Abandons one request whose time is over; call until it returns `None`.
    pub(super) fn pop_timed_out(&mut self, now: TimerInstant) -> Option<(RequestToken, GossipMemberId)> {
        let (_, token) = *self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        Some((token, self.abandon(token)?))
    }

    /// When the next request times out.
    pub(super) fn next_deadline(&self) -> Option<TimerInstant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Peers in order, and whether a request to each waits for its answer.
    pub(super) fn peers(&self) -> impl Iterator<Item = (&GossipMemberId, bool)> {
        self.peers.iter().map(|(peer, known)| (peer, known.waiting.is_some()))
    }

    pub(super) const fn next_token(&self) -> u64 {
        self.next_token
    }

    /// How many watermarks are kept, on their way ones included.
    pub(super) fn len(&self) -> usize {
        let held: usize = self.peers.values().map(|peer| peer.held.len()).sum();
        held + self.in_flight.values().map(|request| request.marks.len()).sum::<usize>()
    }

    fn discard(&mut self, token: RequestToken) -> Option<InFlight> {
        let request = self.in_flight.remove(&token)?;
        self.deadlines.remove(&(request.deadline, token));
        if let Some(peer) = self.peers.get_mut(&request.peer).filter(|peer| peer.waiting == Some(token)) {
            peer.waiting = None;
        }
        Some(request)
    }
}

impl Delta {
    /// A state whose arrival says nothing about what else its receiver holds.
    pub(super) const fn unmarked(state: GossipState) -> Self {
        Self { state, marks: BTreeMap::new() }
    }

    /// Adds what `member` wrote after `mark`, oldest first, as far as there is room. False when something was left out.
    fn add(
        &mut self,
        member: &GossipMemberId,
        mark: Option<SequenceNumber>,
        store: &GossipStateStore,
        room: &mut usize,
    ) -> bool {
        let mut naming = member_bytes(member);
        for (key, entry) in store.written_after(member, mark) {
            let bytes = naming + entry_bytes(key, &entry.value);
            if bytes > *room {
                // A Go peer that starts counting anew can use a number twice. If the cut falls between two such
                // entries, the mark stays below both.
                if self.marks.get(member) == Some(&entry.sequence_number) {
                    match entry.sequence_number.previous() {
                        Some(before) => drop(self.marks.insert(member.clone(), before)),
                        None => drop(self.marks.remove(member)),
                    }
                }
                return false;
            }
            *room -= bytes;
            naming = 0;
            self.marks.insert(member.clone(), entry.sequence_number);
            self.state.insert(member, key.clone(), entry.clone());
        }
        true
    }
}
