//! What exists between start and stop: where state, watermarks, block list and checks meet.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::{
    BlockReason, ConsensusCheckId, ConsensusChecker, GossipKey, GossipKeyValue, GossipMapKey, GossipMemberId,
    GossipState, GossipValue, GossiperConfig, GossiperError, GossiperOutcome, Outcome, RequestToken,
    TimerInstant,
};
use crate::gossip::consensus::{CHECK_KEYS_MAX, Checks, Touched};
use crate::gossip::liveness::Liveness;
use crate::gossip::map::{GossipMap, MAP_TYPE_URL, MapView, OwnMaps};
use crate::gossip::outcome::{GossipRefusal, GossipRefusalReason, GossipRequest, GossiperEvent};
use crate::gossip::store::{GossipStateStore, StoreMerge};
use crate::gossip::watermark::{Delta, Watermarks};
use crate::haste::Haste;

#[derive(Debug)]
pub(super) struct Run {
    config: Arc<GossiperConfig>,
    store: GossipStateStore,
    marks: Watermarks,
    liveness: Liveness,
    maps: OwnMaps,
    checks: Checks,
    /// Whose values a consensus needs: the members of the topology and this node, without the blocked.
    members: BTreeSet<GossipMemberId>,
    /// Whose life and death somebody else decides.
    vouched: BTreeSet<GossipMemberId>,
    touched: Touched,
    /// A check that nobody has looked at yet.
    unseen: Option<ConsensusCheckId>,
    round_at: TimerInstant,
    /// When members that somebody vouches for are told ahead of the round, because something is new.
    eager_at: Option<TimerInstant>,
    haste: Haste,
    /// Whether one of them could not be told, because it has yet to answer.
    owes_news: bool,
    rng: fastrand::Rng,
}

impl Run {
    pub(super) fn new(
        own: GossipMemberId,
        config: Arc<GossiperConfig>,
        seed: u64,
        now: TimerInstant,
        (next_token, next_check): (u64, u64),
    ) -> Self {
        Self {
            members: BTreeSet::from([own.clone()]),
            store: GossipStateStore::new(own, config.members_max, config.state_bytes_max),
            marks: Watermarks::new(next_token),
            liveness: Liveness::default(),
            maps: OwnMaps::default(),
            checks: Checks::new(next_check),
            vouched: BTreeSet::new(),
            touched: Touched::default(),
            unseen: None,
            round_at: now,
            eager_at: None,
            haste: Haste::new(config.eager_delay, config.gossip_interval),
            owes_news: false,
            rng: fastrand::Rng::with_seed(seed),
            config,
        }
    }

    /// Does one thing, then looks at the checks that it concerns and says when to poll next.
    pub(super) fn step(
        &mut self,
        now: TimerInstant,
        act: impl FnOnce(&mut Self, &mut GossiperOutcome) -> Result<(), GossiperError>,
    ) -> Outcome {
        let mut out = GossiperOutcome::default();
        act(self, &mut out)?;
        if !self.touched.keys.is_empty() {
            self.yield_map_entries(now);
        }
        let touched = core::mem::take(&mut self.touched);
        if touched.members || !touched.keys.is_empty() || self.unseen.is_some() {
            let events = self.checks.evaluate(&touched, self.unseen.take(), &self.store, &self.members);
            out.events.extend(events.into_iter().map(GossiperEvent::Consensus));
        }
        out.round_due = self.round_at <= now;
        let due = [Some(self.round_at), self.eager_at, self.marks.next_deadline()];
        out.wake_at = due.into_iter().flatten().min();
        Ok(out)
    }

    pub(super) fn set_members(&mut self, members: &[GossipMemberId]) -> Result<(), GossiperError> {
        let mut peers: BTreeSet<_> = members.iter().cloned().collect();
        peers.remove(self.store.own());
        let max = self.config.members_max;
        if peers.len() > max {
            return Err(GossiperError::TooManyMembers { members: peers.len(), max });
        }
        peers.retain(|member| !self.liveness.is_blocked(member));
        self.marks.set_peers(&peers);
        peers.insert(self.store.own().clone());
        self.touched.members |= self.members != peers;
        self.members = peers;
        Ok(())
    }

    /// The old life is over for its peers, and this node must not take echoes of it for news of somebody else.
    pub(super) fn rejoin(
        &mut self,
        own: GossipMemberId,
        out: &mut GossiperOutcome,
    ) -> Result<(), GossiperError> {
        if self.liveness.is_blocked(&own) {
            return Err(GossiperError::Blocked { member: own });
        }
        if own == *self.store.own() {
            return Ok(());
        }
        self.marks.remove_peer(&own);
        self.marks.forget_member(&own);
        self.liveness.forget(&own);
        let old = self.store.rename(own.clone());
        if let Some(written) = self.store.member(&own) {
            self.touched.keys.extend(written.iter().map(|(key, _)| key.clone()));
        }
        self.members.insert(own);
        // This node was the one that was cut off: whomever it has declared dead meanwhile is who lets it in again.
        self.liveness.pardon_requested();
        self.block(&old, BlockReason::Outlived, out);
        Ok(())
    }

    pub(super) fn set_vouched(
        &mut self,
        members: &[GossipMemberId],
        now: TimerInstant,
    ) -> Result<(), GossiperError> {
        let max = self.config.members_max;
        if members.len() > max {
            return Err(GossiperError::TooManyMembers { members: members.len(), max });
        }
        let before = core::mem::replace(&mut self.vouched, members.iter().cloned().collect());
        if !self.vouched.is_subset(&before) {
            self.hurry(now);
        }
        Ok(())
    }

    pub(super) fn set_state(
        &mut self,
        key: &GossipKey,
        value: GossipValue,
        now: TimerInstant,
    ) -> Result<(), GossiperError> {
        self.check_writable(key)?;
        // A value that only looks like a map would be changed behind the back of those who keep it.
        if self.maps.maps.contains_key(key) || value.type_url() == MAP_TYPE_URL {
            return Err(GossiperError::KeyHoldsMap { key: key.clone() });
        }
        self.store.set_local_state(key, value, now)?;
        self.touched.keys.insert(key.clone());
        self.hurry(now);
        Ok(())
    }

    pub(super) fn write_map(
        &mut self,
        key: &GossipKey,
        map_key: &GossipMapKey,
        value: Option<&[u8]>,
        now: TimerInstant,
    ) -> Result<(), GossiperError> {
        self.check_writable(key)?;
        let mut map = match self.maps.maps.get(key) {
            Some(map) => map.clone(),
            None if self.store.value(self.store.own(), key).is_some() => {
                return Err(GossiperError::KeyHoldsValue { key: key.clone() });
            }
            None => GossipMap::default(),
        };
        let stamp = self.map(key).next_stamp(map_key).ok_or(GossiperError::SequenceExhausted)?;
        map.put(map_key, stamp, value);
        self.store.set_local_state(key, map.encode()?, now)?;
        self.maps.replace(key, map_key, map, value.is_none().then_some(now));
        self.touched.keys.insert(key.clone());
        self.hurry(now);
        Ok(())
    }

    pub(super) fn register(&mut self, checker: ConsensusChecker) -> Result<ConsensusCheckId, GossiperError> {
        if checker.keys() > CHECK_KEYS_MAX {
            return Err(GossiperError::TooManyCheckKeys { keys: checker.keys() });
        }
        let id = self.checks.add(checker).ok_or(GossiperError::TooManyChecks)?;
        self.unseen = Some(id);
        Ok(id)
    }

    pub(super) fn remove_check(&mut self, id: ConsensusCheckId) -> bool {
        self.checks.remove(id)
    }

    pub(super) fn request(
        &mut self,
        from: &GossipMemberId,
        state: &GossipState,
        now: TimerInstant,
        out: &mut GossiperOutcome,
    ) -> Result<(), GossiperError> {
        if self.liveness.is_blocked(from) {
            return Err(GossiperError::Blocked { member: from.clone() });
        }
        let complete = self.merge(state, now, out);
        // An answer says that everything was taken. It has none itself, so its marks never count: what it carries is
        // told again with the next request, in case it got lost.
        out.answer = complete.then(|| self.marks.delta(from, &self.store, &self.config).state);
        Ok(())
    }

    pub(super) fn response(
        &mut self,
        token: RequestToken,
        state: Option<&GossipState>,
        now: TimerInstant,
        out: &mut GossiperOutcome,
    ) -> Result<(), GossiperError> {
        self.marks.commit(token).ok_or(GossiperError::UnknownRequest { token })?;
        if core::mem::take(&mut self.owes_news) {
            self.hurry(now);
        }
        if let Some(state) = state {
            self.merge(state, now, out);
        }
        Ok(())
    }

    pub(super) fn failure(&mut self, token: RequestToken) -> Result<(), GossiperError> {
        self.marks.abandon(token).map(|_| ()).ok_or(GossiperError::UnknownRequest { token })
    }

    pub(super) fn request_block(
        &mut self,
        member: &GossipMemberId,
        out: &mut GossiperOutcome,
    ) -> Result<(), GossiperError> {
        if member == self.store.own() {
            return Err(GossiperError::OwnMember { member: member.clone() });
        }
        self.block(member, BlockReason::Requested, out);
        Ok(())
    }

    pub(super) fn round(
        &mut self,
        heartbeat: &GossipValue,
        now: TimerInstant,
        out: &mut GossiperOutcome,
    ) -> Result<(), GossiperError> {
        let config = Arc::clone(&self.config);
        for key in &config.heartbeat_keys {
            self.store.set_reserved_state(key, heartbeat.clone(), now)?;
            self.touched.keys.insert(key.clone());
        }
        let late = now.saturating_since(self.round_at);
        if late > config.gossip_interval {
            self.liveness.forgive(late, now);
        }
        for member in self.liveness.expired(config.heartbeat_expiration, now) {
            if !self.vouched.contains(&member) {
                self.block(&member, BlockReason::Expired, out);
            }
        }
        while let Some(member) = self.liveness.pop_farewell(now) {
            self.forget(&member);
        }
        self.forget_removed_map_entries(now);
        self.time_out(now, out);
        let mut idle: Vec<_> =
            self.marks.peers().filter(|(_, waiting)| !waiting).map(|(peer, _)| peer.clone()).collect();
        self.rng.shuffle(&mut idle);
        for target in idle {
            if out.requests.len() == config.gossip_fan_out {
                break;
            }
            let delta = self.marks.delta(&target, &self.store, &config);
            if !delta.state.is_empty() {
                self.send(target, delta, now, out);
            }
        }
        self.round_at = now + self.next_interval();
        Ok(())
    }

    /// Tells something new to members that somebody vouches for. Others hear of it with the rounds, at the pace that they
    /// know: they may run another software.
    pub(super) fn tell_eagerly(&mut self, now: TimerInstant, out: &mut GossiperOutcome) {
        if self.eager_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let config = Arc::clone(&self.config);
        let peers = self.marks.peers().filter(|(peer, _)| self.vouched.contains(*peer));
        let (waiting, idle): (Vec<_>, Vec<_>) = peers.partition(|(_, waiting)| *waiting);
        self.owes_news |= !waiting.is_empty();
        let mut idle: Vec<_> = idle.into_iter().map(|(peer, _)| peer.clone()).collect();
        self.rng.shuffle(&mut idle);
        for target in idle.into_iter().take(config.gossip_fan_out) {
            let delta = self.marks.delta(&target, &self.store, &config);
            if !delta.state.is_empty() {
                self.send(target, delta, now, out);
            }
        }
    }

    pub(super) fn time_out(&mut self, now: TimerInstant, out: &mut GossiperOutcome) {
        while let Some(request) = self.marks.pop_timed_out(now) {
            out.timed_out.push(request);
        }
    }

    /// The farewell goes alone: it makes everything else that this node said void, and must not fall victim to the
    /// bounds of a message.
    pub(super) fn say_goodbye(
        &mut self,
        now: TimerInstant,
        out: &mut GossiperOutcome,
    ) -> Result<(), GossiperError> {
        let config = Arc::clone(&self.config);
        let mut farewell = GossipState::default();
        for key in &config.leave_keys {
            self.store.set_reserved_state(key, GossipValue::empty(), now)?;
            if let Some(entry) = self.store.value(self.store.own(), key) {
                farewell.insert(self.store.own(), key.clone(), entry.clone());
            }
        }
        let mut peers: Vec<_> =
            self.marks.peers().map(|(peer, waiting)| (waiting, self.rng.u64(..), peer.clone())).collect();
        // Who owes an answer may be dead; there are only a few to tell.
        peers.sort();
        for (_, _, target) in peers.into_iter().take(config.gossip_fan_out) {
            let delta = Delta::unmarked(farewell.clone());
            self.send(target, delta, now, out);
        }
        Ok(())
    }

    pub(super) fn state(&self, key: &GossipKey) -> impl Iterator<Item = (&GossipMemberId, &GossipKeyValue)> {
        self.store.state(key).filter(|(member, _)| !self.liveness.is_blocked(member))
    }

    pub(super) fn map(&self, key: &GossipKey) -> MapView {
        MapView::new(self.state(key).map(|(member, entry)| (member, &entry.value)))
    }

    pub(super) fn consensus(&self, id: ConsensusCheckId) -> Option<&[Vec<u8>]> {
        self.checks.reached(id)
    }

    pub(super) fn blocked(&self) -> impl Iterator<Item = (&GossipMemberId, BlockReason)> {
        self.liveness.blocked()
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = &GossipMemberId> {
        self.marks.peers().map(|(peer, _)| peer)
    }

    pub(super) fn watermarks(&self) -> usize {
        self.marks.len()
    }

    pub(super) const fn own(&self) -> &GossipMemberId {
        self.store.own()
    }

    pub(super) const fn next_ids(&self) -> (u64, u64) {
        (self.marks.next_token(), self.checks.next_id())
    }

    /// Something is new: if there is somebody to tell, it is told as soon as there is haste, if that is before the round.
    fn hurry(&mut self, now: TimerInstant) {
        let has_hearers = !self.vouched.is_empty() && self.peers().any(|peer| self.vouched.contains(peer));
        if has_hearers && self.eager_at.is_none() {
            self.eager_at = self.haste.take_before(self.round_at, now);
        }
    }

    /// The interval, a little longer or shorter.
    fn next_interval(&mut self) -> Duration {
        let deviation = self.config.interval_jitter * (2.0 * self.rng.f64() - 1.0);
        self.config.gossip_interval.mul_f64(1.0 + deviation)
    }

    /// Takes what is newer. False when something was refused that the sender should offer again.
    fn merge(&mut self, state: &GossipState, now: TimerInstant, out: &mut GossiperOutcome) -> bool {
        let mut complete = true;
        for (member, entries) in state.members() {
            if self.liveness.is_blocked(member) {
                let reason = GossipRefusalReason::Blocked;
                out.refusals.push(GossipRefusal { member: member.clone(), key: None, reason });
                continue;
            }
            let mut merge = StoreMerge::default();
            self.store.merge_member(member, entries, now, &mut merge);
            complete &= merge.refusals.is_empty();
            for (member, sequence) in &merge.belated {
                self.marks.pull_back(member, *sequence);
            }
            let has = |keys: &[GossipKey]| merge.updates.iter().any(|update| keys.contains(&update.key));
            let (alive, leaves) = (has(&self.config.heartbeat_keys), has(&self.config.leave_keys));
            if alive {
                self.liveness.note_alive(member, now);
                out.events.push(GossiperEvent::Alive { member: member.clone() });
            } else if !merge.updates.is_empty() {
                self.liveness.note_known(member, now);
            }
            // A heartbeat is always new, and nobody waits for it.
            if merge.updates.iter().any(|update| !self.config.heartbeat_keys.contains(&update.key)) {
                self.hurry(now);
            }
            self.touched.keys.extend(merge.updates.iter().map(|update| update.key.clone()));
            out.updates.append(&mut merge.updates);
            out.refusals.append(&mut merge.refusals);
            if leaves {
                self.bid_farewell(member, now, out);
            }
        }
        complete
    }

    /// The member leaves. It is blocked at once, but its farewell is passed on for as long as anybody who missed it
    /// would take to notice its silence.
    fn bid_farewell(&mut self, member: &GossipMemberId, now: TimerInstant, out: &mut GossiperOutcome) {
        self.exclude(member, BlockReason::Left, out);
        self.store.reduce(member, &self.config.leave_keys);
        self.liveness.tell_farewell(member, now + self.config.heartbeat_expiration);
    }

    fn block(&mut self, member: &GossipMemberId, reason: BlockReason, out: &mut GossiperOutcome) {
        if self.exclude(member, reason, out) {
            self.forget(member);
        }
    }

    /// Puts a member on the block list and out of everybody's sight.
    fn exclude(&mut self, member: &GossipMemberId, reason: BlockReason, out: &mut GossiperOutcome) -> bool {
        let new = self.liveness.block(member, reason);
        if new {
            self.marks.remove_peer(member);
            self.members.remove(member);
            self.touched.members = true;
            out.events.push(GossiperEvent::Blocked { member: member.clone(), reason });
        }
        new
    }

    fn forget(&mut self, member: &GossipMemberId) {
        self.store.remove(member);
        self.marks.forget_member(member);
    }

    fn send(&mut self, target: GossipMemberId, delta: Delta, now: TimerInstant, out: &mut GossiperOutcome) {
        let deadline = now + self.config.gossip_request_timeout;
        let token = self.marks.begin(&target, &delta, deadline);
        let from = self.store.own().clone();
        out.requests.push(GossipRequest { token, from, target, state: delta.state, deadline });
    }

    /// Takes back map entries that others have outdone.
    fn yield_map_entries(&mut self, now: TimerInstant) {
        let touched = self.maps.maps.keys().filter(|key| self.touched.keys.contains(*key));
        for key in touched.cloned().collect::<Vec<_>>() {
            let view = self.map(&key);
            if self.maps.yield_to(&key, self.store.own(), &view) {
                self.tell_map(key, now);
            }
        }
    }

    /// Forgets removals that everybody knows by now: two expirations after a removal, whoever had not heard of it has
    /// been blocked.
    fn forget_removed_map_entries(&mut self, now: TimerInstant) {
        let known = now.saturating_sub(self.config.heartbeat_expiration * 2);
        for key in self.maps.forget_removed(known) {
            self.tell_map(key, now);
        }
    }

    /// Writes a map that lost entries, which fits where it was. If the sequence numbers are used up it stays as it was
    /// told; the entries in question are outdone or removed just the same.
    fn tell_map(&mut self, key: GossipKey, now: TimerInstant) {
        let smaller = self.maps.maps.get(&key).and_then(|map| map.encode().ok());
        if let Some(value) = smaller
            && self.store.set_local_state(&key, value, now).is_ok()
        {
            self.touched.keys.insert(key);
        }
    }

    fn check_writable(&self, key: &GossipKey) -> Result<(), GossiperError> {
        if self.config.is_reserved(key) {
            return Err(GossiperError::ReservedKey { key: key.clone() });
        }
        Ok(())
    }
}
