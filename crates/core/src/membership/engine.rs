//! Who knows what: spreads changes of the table and notices when everybody has them.
//!
//! For each peer the engine remembers the last local version it acknowledged (so that a push carries only what is new
//! to it) and the last of its versions that we hold (so that a gap is noticed). Beyond that, every message carries the
//! digest of the sender's view and the set of nodes known to hold exactly that view; equal digests merge these sets, so
//! that agreement spreads as fast as the change did, without everyone asking everyone.
//!
//! ```text
//!             change                        all seen
//!  Confirmed ────────► Diffusing ───────────────────────────► Confirmed
//!                          │  convergence timeout, gap,           ▲
//!                          └─ contradiction ──► Reconciling ──────┘
//! ```

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::time::Duration;

use super::config::{Confirmation, MembershipCoordinatorConfig};
use super::delta::MembershipDelta;
use super::message::ViewDigest;
use super::record::NodeRecord;
use super::status::NodeStatus;
use super::table::{MembershipTable, MembershipVersion};
use crate::id::{Authority, MemberId, NodeId};
use crate::time::TimerInstant;

/// How far a change has spread, as far as this node can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GossipPhase {
    /// A change is on its way.
    Diffusing,
    /// A change takes too long, a range is missing or two views contradict each other.
    Reconciling,
    /// Everyone whose agreement counts holds this view.
    Confirmed,
}

/// Progress of dissemination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GossipEvent {
    /// Two processes claim one identity. The deterministic order of records picked one.
    ConflictDetected {
        /// Who brought the contradiction.
        peer: NodeId,
        /// The record that stands.
        accepted: NodeRecord,
        /// The record that was set aside.
        rejected: NodeRecord,
    },
    /// Everyone whose agreement counts holds this version.
    Confirmed {
        /// The local version.
        version: MembershipVersion,
        /// How long it took since the change.
        took: Duration,
    },
    /// A new version went out for the first time.
    Disseminated {
        /// The local version.
        version: MembershipVersion,
        /// To how many peers.
        peers: usize,
    },
    /// A change was not confirmed in time. Whoever lacks it is served one by one from now on.
    Late {
        /// The local version.
        version: MembershipVersion,
        /// How long it has spread.
        waited: Duration,
    },
    /// A range of a peer's changes is missing and was asked for.
    ReconcilingRequested {
        /// The peer.
        peer: NodeId,
        /// Its last version that is held here.
        after: MembershipVersion,
    },
}

/// The dissemination machine. It reads the table and never changes it.
///
/// Inputs: [`note_change`](Self::note_change) after every change of the table, [`set_peer`](Self::set_peer) and
/// [`remove_peer`](Self::remove_peer), [`accept_delta`](Self::accept_delta), [`accept_ack`](Self::accept_ack) and
/// [`compare_view`](Self::compare_view) for messages, [`round`](Self::round) once per interval. Output: what to push,
/// and [`GossipEvent`]s from [`take_events`](Self::take_events).
#[derive(Clone, Debug)]
pub struct GossipEngine {
    own: Option<(NodeId, Authority)>,
    peers: BTreeMap<NodeId, Peer>,
    phase: GossipPhase,
    changed_at: TimerInstant,
    conflict: bool,
    disseminated: MembershipVersion,
    view: View,
    events: Vec<GossipEvent>,
    rng: fastrand::Rng,
    interval: Duration,
    fanout: usize,
    convergence_timeout: Duration,
    confirmation: Confirmation,
}

#[derive(Clone, Debug)]
struct Peer {
    member: MemberId,
    authority: Authority,
    /// Whether its agreement counts.
    reachable: bool,
    /// The last local version that it holds.
    acked: MembershipVersion,
    /// The last of its versions that we hold; unknown before the first exchange.
    received: Option<MembershipVersion>,
    unanswered: Option<Unanswered>,
    /// How often in a row an exchange ended with views that differ.
    mismatches: u32,
}

#[derive(Clone, Copy, Debug)]
struct Unanswered {
    version: MembershipVersion,
    attempts: u32,
    retry_at: TimerInstant,
}

/// The nodes that the digest covers, in order, and which of them are known to hold it.
#[derive(Clone, Debug, Default)]
struct View {
    order: Vec<NodeId>,
    seen: Vec<u64>,
    required: Vec<u64>,
    order_stale: bool,
    seen_stale: bool,
    required_stale: bool,
}

/// What a round sends to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipPush {
    /// Where it goes.
    pub target: Authority,
    /// The changes the peer lacks; empty for a mere comparison of views.
    pub delta: MembershipDelta,
}

/// A peer's delta begins after what we hold of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GossipGap {
    /// The last of its versions that we hold.
    pub after: MembershipVersion,
}

impl GossipEngine {
    /// An engine without peers. `own` is absent for a client, which agrees to nothing.
    #[must_use]
    pub fn new(own: Option<(NodeId, Authority)>, config: &MembershipCoordinatorConfig, seed: u64) -> Self {
        let view = View { order_stale: true, seen_stale: true, required_stale: true, ..View::default() };
        Self {
            own,
            peers: BTreeMap::new(),
            phase: GossipPhase::Confirmed,
            changed_at: TimerInstant::ZERO,
            conflict: false,
            disseminated: MembershipVersion::ZERO,
            view,
            events: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            interval: config.gossip_interval,
            fanout: config.gossip_fanout,
            convergence_timeout: config.convergence_timeout,
            confirmation: config.confirmation.clone(),
        }
    }

    /// The table changed. `names_changed` when a name appeared or was removed.
    pub fn note_change(&mut self, names_changed: bool, now: TimerInstant) {
        self.view.order_stale |= names_changed;
        self.view.seen_stale = true;
        if self.phase == GossipPhase::Confirmed {
            self.phase = GossipPhase::Diffusing;
            self.changed_at = now;
        }
    }

    /// Adds a peer or updates it in place. A new one is taken to hold what we hold now: it was told by whoever let it
    /// in, and if it was not, the digests will say so.
    pub fn set_peer(&mut self, record: &NodeRecord, table: &MembershipTable) {
        self.view.required_stale = true;
        let reachable = record.status.is_reachable();
        let new = || Peer {
            member: record.member.clone(),
            authority: record.authority.clone(),
            reachable,
            acked: table.version(),
            received: None,
            unanswered: None,
            mismatches: 0,
        };
        match self.peers.entry(record.member.node.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(new());
            }
            Entry::Occupied(mut known) => {
                let peer = known.get_mut();
                // The same identity at another address is another process: what the first one held says nothing.
                if peer.member == record.member && peer.authority == record.authority {
                    peer.reachable = reachable;
                } else {
                    *peer = new();
                }
            }
        }
    }

    /// Takes a peer out. Its missing agreement stops counting.
    pub fn remove_peer(&mut self, node: &NodeId) {
        if self.peers.remove(node).is_some() {
            self.view.required_stale = true;
        }
    }

    /// Checks that a delta continues what we hold of this peer, and notes what we hold once it is merged.
    ///
    /// # Errors
    /// [`GossipGap`] when changes are missing in between: do not merge, ask for them.
    pub fn accept_delta(
        &mut self,
        node: &NodeId,
        delta: &MembershipDelta,
        now: TimerInstant,
    ) -> Result<(), GossipGap> {
        let Some(peer) = self.peers.get_mut(node) else { return Ok(()) };
        if let Some(after) = peer.received.filter(|received| delta.from() > *received) {
            self.begin_reconciling(now);
            self.mark_unseen(node);
            self.events.push(GossipEvent::ReconcilingRequested { peer: node.clone(), after });
            return Err(GossipGap { after });
        }
        peer.received = peer.received.max(Some(delta.to()));
        Ok(())
    }

    /// A peer acknowledges our changes up to `version`. True when that answers what was sent to it.
    pub fn accept_ack(&mut self, node: &NodeId, version: MembershipVersion, table: &MembershipTable) -> bool {
        // A stranger's word, or one about a version that never was, counts for nothing.
        let Some(peer) = self.peers.get_mut(node).filter(|_| version <= table.version()) else {
            return false;
        };
        peer.acked = peer.acked.max(version);
        let answers = peer.unanswered.is_some_and(|push| version >= push.version);
        if answers {
            peer.unanswered = None;
        }
        if version == table.version() {
            self.mark_seen(node, table);
        }
        answers
    }

    /// Compares a peer's view with ours. Equal views imply that it holds everything we do, and merge what both know
    /// about who else does.
    pub fn compare_view(&mut self, node: &NodeId, view: &ViewDigest, table: &MembershipTable) -> bool {
        if view.digest != table.digest() {
            return false;
        }
        self.refresh(table);
        for (known, offered) in self.view.seen.iter_mut().zip(&view.seen) {
            *known |= offered;
        }
        self.mark_seen(node, table);
        if let Some(peer) = self.peers.get_mut(node) {
            peer.acked = table.version();
            peer.received = peer.received.max(Some(view.version));
            peer.unanswered = None;
            peer.mismatches = 0;
        }
        true
    }

    /// An exchange ended and the views still differ. True when that happened too often in a row: the peer then gets
    /// everything with the next push, and should be asked for everything.
    pub fn note_mismatch(&mut self, node: &NodeId) -> bool {
        self.mark_unseen(node);
        let Some(peer) = self.peers.get_mut(node) else { return false };
        peer.mismatches += 1;
        if peer.mismatches < TRIES_MAX {
            return false;
        }
        peer.mismatches = 0;
        peer.acked = MembershipVersion::ZERO;
        true
    }

    /// Two processes claim one identity. Until the views agree again, changes from outside should be refused.
    pub fn note_conflict(
        &mut self,
        peer: &NodeId,
        accepted: NodeRecord,
        rejected: NodeRecord,
        now: TimerInstant,
    ) {
        self.conflict = true;
        self.begin_reconciling(now);
        self.mark_unseen(peer);
        self.events.push(GossipEvent::ConflictDetected { peer: peer.clone(), accepted, rejected });
    }

    /// One round: picks peers that are not known to hold our view, or a single random one when all do. Returns the
    /// pushes and how many peers that should have answered turned out to be silent.
    pub fn round(&mut self, table: &MembershipTable, now: TimerInstant) -> (Vec<GossipPush>, usize) {
        self.evaluate(table, now);
        self.refresh(table);
        let mut pushes = Vec::new();
        let mut silent = 0;
        for node in self.targets(now) {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            let attempts = match peer.unanswered {
                None => 0,
                Some(push) => {
                    // The silence of a suspect is known to be its own; that of others may be ours. Each of them is one
                    // sign, however long it lasts: a single dead peer must not pass for a whole cluster out of reach.
                    silent += usize::from(peer.reachable && push.attempts == 0);
                    if push.attempts + 1 == TRIES_MAX {
                        // Whatever the peer may have missed, the next push repairs it.
                        peer.acked = MembershipVersion::ZERO;
                    }
                    (push.attempts + 1).min(TRIES_MAX)
                }
            };
            let delta = table.delta_since(peer.acked);
            let retry_at = now + self.interval * (1 << attempts);
            peer.unanswered = Some(Unanswered { version: delta.to(), attempts, retry_at });
            pushes.push(GossipPush { target: peer.authority.clone(), delta });
        }
        if table.version() > self.disseminated && !pushes.is_empty() {
            self.disseminated = table.version();
            let (version, peers) = (table.version(), pushes.len());
            self.events.push(GossipEvent::Disseminated { version, peers });
        }
        (pushes, silent)
    }

    /// Up to `count` random peers that answer, for the last words of a leaving node.
    pub fn random_peers(&mut self, count: usize) -> Vec<NodeId> {
        let mut reachable: Vec<_> =
            self.peers.iter().filter(|(_, peer)| peer.reachable).map(|(node, _)| node.clone()).collect();
        self.rng.shuffle(&mut reachable);
        reachable.truncate(count);
        reachable
    }

    /// The whole table was just received from the cluster, so nobody there needs it from us.
    pub fn assume_informed(&mut self, table: &MembershipTable) {
        self.peers.values_mut().for_each(|peer| peer.acked = table.version());
    }

    /// Re-evaluates the phase.
    pub fn evaluate(&mut self, table: &MembershipTable, now: TimerInstant) {
        if self.phase == GossipPhase::Confirmed {
            return;
        }
        self.refresh(table);
        if self.agreed() {
            self.phase = GossipPhase::Confirmed;
            self.conflict = false;
            self.assume_informed_if_seen(table);
            let took = now.saturating_since(self.changed_at);
            self.events.push(GossipEvent::Confirmed { version: table.version(), took });
        } else if self.phase == GossipPhase::Diffusing && now >= self.changed_at + self.convergence_timeout {
            self.phase = GossipPhase::Reconciling;
            let waited = now.saturating_since(self.changed_at);
            self.events.push(GossipEvent::Late { version: table.version(), waited });
        }
    }

    /// The last version of `node` that is held here.
    #[must_use]
    pub fn received(&self, node: &NodeId) -> MembershipVersion {
        self.peers.get(node).and_then(|peer| peer.received).unwrap_or_default()
    }

    /// The last local version that `node` acknowledged.
    #[must_use]
    pub fn acked(&self, node: &NodeId) -> Option<MembershipVersion> {
        self.peers.get(node).map(|peer| peer.acked)
    }

    /// The digest to send along.
    pub fn view_digest(&mut self, table: &MembershipTable) -> ViewDigest {
        self.refresh(table);
        ViewDigest { version: table.version(), digest: table.digest(), seen: self.view.seen.clone() }
    }

    /// The present phase.
    #[must_use]
    pub const fn phase(&self) -> GossipPhase {
        self.phase
    }

    /// Whether a contradiction waits to be settled.
    #[must_use]
    pub const fn has_conflict(&self) -> bool {
        self.conflict
    }

    /// The peers that gossip goes to.
    pub fn peers(&self) -> impl Iterator<Item = (&NodeId, &Authority)> {
        self.peers.iter().map(|(node, peer)| (node, &peer.authority))
    }

    /// Events since the last call.
    pub fn take_events(&mut self) -> Vec<GossipEvent> {
        core::mem::take(&mut self.events)
    }

    /// Random peers worth a message: while a change spreads, some not known to have it; when all have it, one. Those that
    /// did not answer wait for their turn.
    fn targets(&mut self, now: TimerInstant) -> Vec<NodeId> {
        let spreading = self.phase != GossipPhase::Confirmed;
        let count = if spreading { self.fanout } else { 1 };
        let (order, seen, peers) = (&self.view.order, &self.view.seen, &self.peers);
        let worth = |index: usize| {
            let due = |peer: &Peer| peer.unanswered.is_none_or(|push| push.retry_at <= now);
            !(spreading && bit(seen, index)) && peers.get(&order[index]).is_some_and(due)
        };
        let mut chosen: Vec<usize> = Vec::with_capacity(count);
        // In a large cluster most draws hit; looking at everyone is for the rest.
        for _ in 0..DRAWS_PER_TARGET * count {
            if chosen.len() == count || order.is_empty() {
                break;
            }
            let index = self.rng.usize(..order.len());
            if !chosen.contains(&index) && worth(index) {
                chosen.push(index);
            }
        }
        if chosen.len() < count {
            let mut rest: Vec<_> =
                (0..order.len()).filter(|index| !chosen.contains(index) && worth(*index)).collect();
            self.rng.shuffle(&mut rest);
            chosen.extend(rest.into_iter().take(count - chosen.len()));
        }
        chosen.into_iter().map(|index| order[index].clone()).collect()
    }

    fn agreed(&self) -> bool {
        match &self.confirmation {
            Confirmation::EveryPeer => {
                self.view.required.iter().zip(&self.view.seen).all(|(required, seen)| required & !seen == 0)
            }
            Confirmation::SeedQuorum(seeds) => {
                let holds = |seed: &&Authority| {
                    self.own.as_ref().is_some_and(|(_, own)| own == *seed)
                        || self
                            .peers
                            .iter()
                            .any(|(node, peer)| peer.authority == **seed && self.has_seen(node))
                };
                seeds.iter().filter(holds).count() * 2 > seeds.len()
            }
        }
    }

    /// Whoever holds our view needs nothing of it. Both lists are in node order, so one walk suffices.
    fn assume_informed_if_seen(&mut self, table: &MembershipTable) {
        let mut order = self.view.order.iter().enumerate().peekable();
        for (node, peer) in &mut self.peers {
            while order.next_if(|(_, other)| *other < node).is_some() {}
            if order.peek().is_some_and(|(index, other)| *other == node && bit(&self.view.seen, *index)) {
                peer.acked = table.version();
            }
        }
    }

    fn has_seen(&self, node: &NodeId) -> bool {
        self.view.order.binary_search(node).is_ok_and(|index| bit(&self.view.seen, index))
    }

    fn mark_seen(&mut self, node: &NodeId, table: &MembershipTable) {
        self.refresh(table);
        if let Ok(index) = self.view.order.binary_search(node) {
            set_bit(&mut self.view.seen, index);
        }
    }

    fn begin_reconciling(&mut self, now: TimerInstant) {
        if self.phase == GossipPhase::Confirmed {
            self.changed_at = now;
        }
        self.phase = GossipPhase::Reconciling;
    }

    /// A peer turned out to hold another view, whatever it acknowledged before.
    fn mark_unseen(&mut self, node: &NodeId) {
        if let Ok(index) = self.view.order.binary_search(node) {
            clear_bit(&mut self.view.seen, index);
        }
    }

    /// Brings the view in line with the table. Done when needed and not at every change: changes come in bursts.
    fn refresh(&mut self, table: &MembershipTable) {
        if self.view.order_stale {
            let covered = table.records().filter(|record| record.status != NodeStatus::Removed);
            self.view.order = covered.map(|record| record.member.node.clone()).collect();
            self.view.seen_stale = true;
            self.view.required_stale = true;
            self.view.order_stale = false;
        }
        let words = self.view.order.len().div_ceil(64);
        if self.view.seen_stale {
            self.view.seen.clear();
            self.view.seen.resize(words, 0);
            if let Some((own, _)) = &self.own
                && let Ok(index) = self.view.order.binary_search(own)
            {
                set_bit(&mut self.view.seen, index);
            }
            self.view.seen_stale = false;
        }
        if self.view.required_stale {
            self.view.required.clear();
            self.view.required.resize(words, 0);
            let mut order = self.view.order.iter().enumerate().peekable();
            for (node, _) in self.peers.iter().filter(|(_, peer)| peer.reachable) {
                while order.next_if(|(_, other)| *other < node).is_some() {}
                if let Some((index, _)) = order.peek().filter(|(_, other)| *other == node) {
                    set_bit(&mut self.view.required, *index);
                }
            }
            self.view.required_stale = false;
        }
    }
}

fn bit(words: &[u64], index: usize) -> bool {
    words.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
}

fn set_bit(words: &mut [u64], index: usize) {
    if let Some(word) = words.get_mut(index / 64) {
        *word |= 1 << (index % 64);
    }
}

fn clear_bit(words: &mut [u64], index: usize) {
    if let Some(word) = words.get_mut(index / 64) {
        *word &= !(1 << (index % 64));
    }
}

/// How often chance is asked for each target before everyone is looked at.
const DRAWS_PER_TARGET: usize = 4;
/// After so many unanswered or fruitless exchanges a peer gets the whole table.
const TRIES_MAX: u32 = 3;

#[cfg(test)]
mod tests;
