//! Everything this node knows: its own notebook and its copies of the others'.
//!
//! Only the owner of a notebook writes into it, with one counter for all its keys; a copy takes what has a greater number
//! than what it holds. Two copies that were shown the same lines are equal, whatever the order was.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;

use super::config::RESERVED_KEYS_MAX;
use super::error::{GossipBoundError, GossiperError};
use super::id::{GossipKey, GossipMemberId, KEY_BYTES_MAX, SequenceNumber};
use super::outcome::{GossipRefusal, GossipRefusalReason};
use super::state::{
    ENTRY_OVERHEAD_BYTES, GossipKeyValue, GossipMemberState, GossipState, GossipUpdate, GossipValue,
    TYPE_URL_BYTES_MAX, entry_bytes,
};
use crate::time::TimerInstant;

/// The entries of all members, last writer wins by sequence number.
///
/// Inputs: [`set_local_state`](Self::set_local_state) for this node's own entries and
/// [`merge_state`](Self::merge_state) for those of others. A call either takes an entry or leaves everything as it was.
/// What others claim about this node's own entries is never taken; if they claim a later write than there was, the own
/// entry is written anew above the claim, so that it wins everywhere.
#[derive(Clone, Debug)]
pub struct GossipStateStore {
    own: GossipMemberId,
    /// The last write of this node.
    sequence: Option<SequenceNumber>,
    members: BTreeMap<GossipMemberId, Owner>,
    /// What the entries of all other members take.
    others_bytes: usize,
    members_max: usize,
    state_bytes_max: usize,
}

#[derive(Clone, Debug, Default)]
struct Owner {
    state: GossipMemberState,
    /// The keys in the order in which they were written, so that news since a write is found without a search.
    written: BTreeSet<(SequenceNumber, GossipKey)>,
    bytes: usize,
}

/// What a merge did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreMerge {
    /// One per entry that was taken.
    pub updates: Vec<GossipUpdate>,
    /// Entries beyond a bound.
    pub refusals: Vec<GossipRefusal>,
    /// For members of which an entry arrived after a later one: the earliest such entry. Whoever counts on having told
    /// everything up to the later one has to go back before this.
    pub belated: Vec<(GossipMemberId, SequenceNumber)>,
}

impl GossipStateStore {
    /// An empty store of `own`, which keeps at most `state_bytes_max` bytes of at most `members_max` other members.
    #[must_use]
    pub const fn new(own: GossipMemberId, members_max: usize, state_bytes_max: usize) -> Self {
        Self { own, sequence: None, members: BTreeMap::new(), others_bytes: 0, members_max, state_bytes_max }
    }

    /// Writes an entry of this node. Returns its sequence number, one above that of the write before, whatever key
    /// that was for.
    ///
    /// # Errors
    /// Refused beyond [`KEYS_PER_MEMBER_MAX`] and [`MEMBER_BYTES_MAX`], less the room that is kept for the heartbeat.
    pub fn set_local_state(
        &mut self,
        key: &GossipKey,
        value: GossipValue,
        now: TimerInstant,
    ) -> Result<SequenceNumber, GossiperError> {
        let vacant = Owner::default();
        let own = self.members.get(&self.own).unwrap_or(&vacant);
        own.check(key, &value, KEYS_PER_MEMBER_MAX - OWN_KEYS_KEPT, MEMBER_BYTES_MAX - OWN_BYTES_KEPT)?;
        self.write(key, value, now)
    }

    /// Writes an entry of this node into the room that is kept for heartbeats and farewells.
    pub(super) fn set_reserved_state(
        &mut self,
        key: &GossipKey,
        value: GossipValue,
        now: TimerInstant,
    ) -> Result<SequenceNumber, GossiperError> {
        let bytes = value.bytes().len();
        if bytes > HEARTBEAT_BYTES_MAX {
            return Err(GossiperError::HeartbeatTooLarge { bytes });
        }
        self.write(key, value, now)
    }

    /// Takes what is newer than what is held, and stamps it with `now`.
    pub fn merge_state(&mut self, state: &GossipState, now: TimerInstant) -> StoreMerge {
        let mut merge = StoreMerge::default();
        for (member, entries) in state.members() {
            self.merge_member(member, entries, now, &mut merge);
        }
        merge
    }

    pub(super) fn merge_member(
        &mut self,
        member: &GossipMemberId,
        entries: &GossipMemberState,
        now: TimerInstant,
        merge: &mut StoreMerge,
    ) {
        if *member == self.own {
            self.defend(entries, now);
            return;
        }
        let latest = self.latest(member);
        let mut belated: Option<SequenceNumber> = None;
        for (key, entry) in entries.iter() {
            let sequence = entry.sequence_number;
            if self.value(member, key).is_some_and(|held| sequence <= held.sequence_number) {
                continue;
            }
            if let Err(error) = self.check(member, key, &entry.value) {
                let reason = GossipRefusalReason::Bound(error);
                merge.refusals.push(GossipRefusal { member: member.clone(), key: Some(key.clone()), reason });
                continue;
            }
            let stamped = GossipKeyValue { local_timestamp: now, ..entry.clone() };
            let owner = self.members.entry(member.clone()).or_default();
            self.others_bytes -= owner.bytes;
            owner.put(key, stamped);
            self.others_bytes += owner.bytes;
            if latest.is_some_and(|latest| sequence <= latest) {
                belated = Some(belated.map_or(sequence, |earliest| earliest.min(sequence)));
            }
            merge.updates.push(GossipUpdate {
                member: member.clone(),
                key: key.clone(),
                value: entry.value.clone(),
                sequence_number: sequence,
            });
        }
        merge.belated.extend(belated.map(|sequence| (member.clone(), sequence)));
    }

    /// This node goes on as `own` and takes along what it wrote; its numbers count on. Whatever others claimed about
    /// that id is forgotten. Returns the id before.
    pub(super) fn rename(&mut self, own: GossipMemberId) -> GossipMemberId {
        self.remove(&own);
        let old = core::mem::replace(&mut self.own, own.clone());
        if let Some(written) = self.members.remove(&old) {
            self.members.insert(own, written);
        }
        old
    }

    /// Forgets everything about another member.
    pub(super) fn remove(&mut self, member: &GossipMemberId) {
        if *member != self.own
            && let Some(owner) = self.members.remove(member)
        {
            self.others_bytes -= owner.bytes;
        }
    }

    /// Forgets the entries of another member except those under `keys`.
    pub(super) fn reduce(&mut self, member: &GossipMemberId, keys: &[GossipKey]) {
        let Some(owner) = self.members.get_mut(member).filter(|_| *member != self.own) else { return };
        self.others_bytes -= owner.bytes;
        owner.state.retain(|key| keys.contains(key));
        owner.written.retain(|(_, key)| keys.contains(key));
        owner.bytes = owner.state.iter().map(|(key, entry)| entry_bytes(key, &entry.value)).sum();
        self.others_bytes += owner.bytes;
    }

    /// Every member's entry under `key`, in member order.
    pub fn state(&self, key: &GossipKey) -> impl Iterator<Item = (&GossipMemberId, &GossipKeyValue)> {
        self.members.iter().filter_map(move |(member, owner)| Some((member, owner.state.get(key)?)))
    }

    /// One entry of one member.
    #[must_use]
    pub fn value(&self, member: &GossipMemberId, key: &GossipKey) -> Option<&GossipKeyValue> {
        self.members.get(member)?.state.get(key)
    }

    /// All entries of one member.
    pub(super) fn member(&self, member: &GossipMemberId) -> Option<&GossipMemberState> {
        self.members.get(member).map(|owner| &owner.state)
    }

    /// Everything that is held, in member order.
    pub fn members(&self) -> impl Iterator<Item = (&GossipMemberId, &GossipMemberState)> {
        self.members.iter().map(|(member, owner)| (member, &owner.state))
    }

    /// This node's own id.
    #[must_use]
    pub const fn own(&self) -> &GossipMemberId {
        &self.own
    }

    /// The latest write of `member` that is held.
    pub(super) fn latest(&self, member: &GossipMemberId) -> Option<SequenceNumber> {
        self.members.get(member)?.latest()
    }

    /// Members of which there is anything, from `after` on and then from the start.
    pub(super) fn owners_from(
        &self,
        after: Option<&GossipMemberId>,
    ) -> impl Iterator<Item = &GossipMemberId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let wrapped = after.into_iter().flat_map(|after| self.members.range(..=after));
        self.members.range((from, Bound::Unbounded)).chain(wrapped).map(|(member, _)| member)
    }

    /// The entries of `member` written after `mark`, oldest first.
    pub(super) fn written_after(
        &self,
        member: &GossipMemberId,
        mark: Option<SequenceNumber>,
    ) -> impl Iterator<Item = (&GossipKey, &GossipKeyValue)> {
        self.members.get(member).into_iter().flat_map(move |owner| {
            let newest_first =
                owner.written.iter().rev().take_while(move |(at, _)| mark.is_none_or(|mark| *at > mark));
            let mut news: Vec<_> = newest_first.collect();
            news.reverse();
            news.into_iter().filter_map(|(_, key)| Some((key, owner.state.get(key)?)))
        })
    }

    fn write(
        &mut self,
        key: &GossipKey,
        value: GossipValue,
        now: TimerInstant,
    ) -> Result<SequenceNumber, GossiperError> {
        let sequence_number = match self.sequence {
            None => SequenceNumber::FIRST,
            Some(last) => last.next().ok_or(GossiperError::SequenceExhausted)?,
        };
        self.sequence = Some(sequence_number);
        let owner = self.members.entry(self.own.clone()).or_default();
        owner.put(key, GossipKeyValue { value, sequence_number, local_timestamp: now });
        Ok(sequence_number)
    }

    /// Somebody shows us a page of our own notebook. A write that we never made would hide all our next ones, so we
    /// count on from there and repeat what we really wrote. A leap that no counter makes honestly is ignored, or one
    /// message could use up all numbers.
    fn defend(&mut self, claims: &GossipMemberState, now: TimerInstant) {
        let written = self.sequence.map_or(0, SequenceNumber::get);
        let believable = claims.iter().filter(|(_, claim)| {
            let leap = claim.sequence_number.get().saturating_sub(written);
            (1..=SEQUENCE_LEAP_MAX).contains(&leap)
        });
        let claims: Vec<_> = believable.map(|(key, claim)| (key.clone(), claim.sequence_number)).collect();
        self.sequence = claims.iter().map(|(_, sequence)| *sequence).max().max(self.sequence);
        for (key, _) in claims {
            let held = self.value(&self.own, &key).map(|entry| entry.value.clone());
            // Used-up numbers leave the entry as it is; the next write of the user reports it.
            if let Some(value) = held
                && self.write(&key, value, now).is_err()
            {
                return;
            }
        }
    }

    fn check(
        &self,
        member: &GossipMemberId,
        key: &GossipKey,
        value: &GossipValue,
    ) -> Result<(), GossipBoundError> {
        let vacant = Owner::default();
        let owner = match self.members.get(member) {
            Some(owner) => owner,
            None => {
                let others = self.members.len() - usize::from(self.members.contains_key(&self.own));
                if others >= self.members_max {
                    return Err(GossipBoundError::Members { max: self.members_max });
                }
                &vacant
            }
        };
        let grown = owner.check(key, value, KEYS_PER_MEMBER_MAX, MEMBER_BYTES_MAX)?;
        if self.others_bytes - owner.bytes + grown > self.state_bytes_max {
            return Err(GossipBoundError::StateBytes { max: self.state_bytes_max });
        }
        Ok(())
    }
}

impl Owner {
    /// What the entries take once `key` holds `value`.
    fn check(
        &self,
        key: &GossipKey,
        value: &GossipValue,
        keys_max: usize,
        bytes_max: usize,
    ) -> Result<usize, GossipBoundError> {
        let held = self.state.get(key);
        if held.is_none() && self.state.len() >= keys_max {
            return Err(GossipBoundError::Keys);
        }
        let freed = held.map_or(0, |held| entry_bytes(key, &held.value));
        let grown = self.bytes - freed + entry_bytes(key, value);
        if grown > bytes_max { Err(GossipBoundError::MemberBytes) } else { Ok(grown) }
    }

    fn put(&mut self, key: &GossipKey, entry: GossipKeyValue) {
        self.bytes += entry_bytes(key, &entry.value);
        self.written.insert((entry.sequence_number, key.clone()));
        if let Some(old) = self.state.insert(key.clone(), entry) {
            self.bytes -= entry_bytes(key, &old.value);
            self.written.remove(&(old.sequence_number, key.clone()));
        }
    }

    fn latest(&self) -> Option<SequenceNumber> {
        self.written.last().map(|(sequence, _)| *sequence)
    }
}

/// Most keys of one member.
pub const KEYS_PER_MEMBER_MAX: usize = 256;
/// Most bytes that the entries of one member take, counted as in a message.
pub const MEMBER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Largest heartbeat in bytes.
pub const HEARTBEAT_BYTES_MAX: usize = 16 * 1024;
/// Keys that only the gossiper itself writes.
const OWN_KEYS_KEPT: usize = 2 * RESERVED_KEYS_MAX;
/// What they take at most.
pub(super) const OWN_BYTES_KEPT: usize =
    OWN_KEYS_KEPT * (KEY_BYTES_MAX + TYPE_URL_BYTES_MAX + HEARTBEAT_BYTES_MAX + ENTRY_OVERHEAD_BYTES);
/// How far a claim about our own writes may be ahead of them: a write per nanosecond for a quarter of an hour.
const SEQUENCE_LEAP_MAX: i64 = 1 << 40;

#[cfg(test)]
mod tests;
