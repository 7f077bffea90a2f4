//! Where grains were found last, so that not every call has to ask.
//!
//! An entry is a memory, not a promise: it is dropped when its time is over, when room is needed, and as soon as anything
//! suggests that the grain is no longer there. A memory that is wrong costs a failed attempt; one that is missing costs a
//! question. Of entries that compete for room the one that was used least recently goes.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use super::identity::ClusterIdentity;
use super::pid::ActorPid;
use super::rendezvous::PlacementHash;
use crate::deadline::DeadlineQueue;
use crate::gossip::GossipMemberId;
use crate::id::Authority;
use crate::roster::RosterMember;
use crate::time::TimerInstant;

/// Settings of a [`PidCache`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidCacheConfig {
    /// Most entries. More spares questions to owners and holds more memory. 1 to 1 000 000. Default 1024.
    pub capacity: usize,
    /// How long an entry is believed. Longer spares questions, shorter forgets sooner what no event told. 1 ms to 24 h.
    /// Default 300 s.
    pub ttl: Duration,
}

impl Default for PidCacheConfig {
    fn default() -> Self {
        Self { capacity: 1024, ttl: Duration::from_secs(300) }
    }
}

impl PidCacheConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), PidCacheConfigError> {
        if !(1..=CAPACITY_MAX).contains(&self.capacity) {
            let (value, max) = (self.capacity, CAPACITY_MAX);
            return Err(PidCacheConfigError::Count { field: "capacity", value, max });
        }
        if !(TTL_MIN..=TTL_MAX).contains(&self.ttl) {
            let (value, min, max) = (self.ttl, TTL_MIN, TTL_MAX);
            return Err(PidCacheConfigError::Duration { field: "ttl", value, min, max });
        }
        Ok(())
    }
}

/// A setting is out of range. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PidCacheConfigError {
    /// A number is out of range.
    #[error("pid_cache.{field} must be 1 to {max}, it is {value}")]
    Count {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: usize,
        /// The largest value.
        max: usize,
    },
    /// A duration is out of range.
    #[error("pid_cache.{field} must be {min:?} to {max:?}, it is {value:?}")]
    Duration {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: Duration,
        /// The shortest value.
        min: Duration,
        /// The longest value.
        max: Duration,
    },
}

/// Why an entry was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PidDropReason {
    /// Its time was over.
    Expired,
    /// Another entry needed its place.
    Evicted,
    /// Its address is kept out, or was let in again.
    AuthorityInvalid,
    /// Its member is gone.
    MemberGone,
    /// The roster does not list its member.
    NotOnRoster,
    /// By the new roster another member hosts the grain.
    OwnerChanged,
    /// The grain was unloaded or moved.
    GrainGone,
    /// The activation ended, or could not be reached.
    Failed,
}

/// An entry that is no longer there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedPid {
    /// The grain.
    pub grain: ClusterIdentity,
    /// Where it was thought to be.
    pub pid: ActorPid,
    /// Why it is not thought to be there any more.
    pub reason: PidDropReason,
}

/// What became of the entries, for observers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PidCacheOutcome {
    /// The entries that were dropped, at most [`DROPS_TOLD_MAX`] of them.
    pub dropped: Vec<DroppedPid>,
    /// How many more were dropped.
    pub untold: usize,
    /// When to poll next, if there is anything in the cache.
    pub wake_at: Option<TimerInstant>,
}

/// How the cache fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidCacheCounts {
    /// Questions that it answered.
    pub hits: u64,
    /// Questions that it could not answer.
    pub misses: u64,
    /// Entries that were dropped, for any reason.
    pub drops: u64,
}

/// Where grains were found last.
///
/// Inputs: [`insert`](Self::insert) after a grain was found, `handle_*` when something changed;
/// [`poll`](Self::poll) at the `wake_at` of the last outcome. [`get`](Self::get) is the question. Time is monotonic. Every
/// entry that goes in is replaced by its own key or told as dropped, once.
#[derive(Clone, Debug)]
pub struct PidCache {
    config: PidCacheConfig,
    entries: BTreeMap<ClusterIdentity, Entry>,
    /// The grains in the order of their last use.
    recency: BTreeMap<u64, ClusterIdentity>,
    expiry: DeadlineQueue<ClusterIdentity>,
    uses: u64,
    counts: PidCacheCounts,
}

#[derive(Clone, Debug)]
struct Entry {
    pid: ActorPid,
    member: GossipMemberId,
    last_use: u64,
    /// Where it stands in `recency`: its last use, or an earlier one.
    place: u64,
}

impl PidCache {
    /// An empty cache.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(config: PidCacheConfig) -> Result<Self, PidCacheConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            entries: BTreeMap::new(),
            recency: BTreeMap::new(),
            expiry: DeadlineQueue::new(),
            uses: 0,
            counts: PidCacheCounts::default(),
        })
    }

    /// Remembers that `grain` was found at `pid`, which `member` hosts. Its time begins anew.
    pub fn insert(
        &mut self,
        grain: &ClusterIdentity,
        pid: ActorPid,
        member: GossipMemberId,
        now: TimerInstant,
    ) -> PidCacheOutcome {
        let mut out = self.expire(now);
        let last_use = self.next_use();
        if let Some(known) =
            self.entries.insert(grain.clone(), Entry { pid, member, last_use, place: last_use })
        {
            self.recency.remove(&known.place);
        }
        self.recency.insert(last_use, grain.clone());
        self.expiry.set(grain, now + self.config.ttl);
        while self.entries.len() > self.config.capacity {
            let Some(oldest) = self.oldest() else { break };
            self.drop_entry(&oldest, PidDropReason::Evicted, &mut out);
        }
        self.finish(out)
    }

    /// Where `grain` was found last, if that is still believed at `now`. A use keeps an entry from being evicted, but not
    /// from expiring.
    pub fn get(&mut self, grain: &ClusterIdentity, now: TimerInstant) -> (Option<ActorPid>, PidCacheOutcome) {
        let out = self.expire(now);
        let last_use = self.next_use();
        let pid = self.entries.get_mut(grain).map(|entry| {
            entry.last_use = last_use;
            entry.pid.clone()
        });
        match pid {
            Some(_) => self.counts.hits += 1,
            None => self.counts.misses += 1,
        }
        (pid, self.finish(out))
    }

    /// `grain` was unloaded or moved.
    pub fn handle_grain_gone(&mut self, grain: &ClusterIdentity) -> PidCacheOutcome {
        let mut out = PidCacheOutcome::default();
        self.drop_entry(grain, PidDropReason::GrainGone, &mut out);
        self.finish(out)
    }

    /// The activation `pid` of `grain` ended or could not be reached. If the grain was found elsewhere since, that stands.
    pub fn handle_failed(&mut self, grain: &ClusterIdentity, pid: &ActorPid) -> PidCacheOutcome {
        let mut out = PidCacheOutcome::default();
        if self.entries.get(grain).is_some_and(|entry| entry.pid == *pid) {
            self.drop_entry(grain, PidDropReason::Failed, &mut out);
        }
        self.finish(out)
    }

    /// `authority` is kept out from now on, or was let in again: who lives there may be someone else.
    pub fn handle_authority_invalid(&mut self, authority: &Authority) -> PidCacheOutcome {
        self.drop_all(|_, entry| {
            (entry.pid.authority() == authority).then_some(PidDropReason::AuthorityInvalid)
        })
    }

    /// This life of `member` is over.
    pub fn handle_member_gone(&mut self, member: &GossipMemberId) -> PidCacheOutcome {
        self.drop_all(|_, entry| (entry.member == *member).then_some(PidDropReason::MemberGone))
    }

    /// The roster changed. Grains whose member is not on it are gone, and so are those that another member hosts now.
    pub fn handle_roster(&mut self, members: &[RosterMember], placement: PlacementHash) -> PidCacheOutcome {
        self.drop_all(|grain, entry| {
            let is_listed = members
                .iter()
                .any(|member| member.id == entry.member && member.authority == *entry.pid.authority());
            if !is_listed {
                return Some(PidDropReason::NotOnRoster);
            }
            let owner = placement.owner(grain, members);
            (owner.map(|owner| &owner.id) != Some(&entry.member)).then_some(PidDropReason::OwnerChanged)
        })
    }

    /// Drops whatever is due.
    pub fn poll(&mut self, now: TimerInstant) -> PidCacheOutcome {
        let out = self.expire(now);
        self.finish(out)
    }

    /// How the cache fares.
    #[must_use]
    pub const fn counts(&self) -> PidCacheCounts {
        self.counts
    }

    /// How many entries there are, expired ones that nobody asked for included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// The entry that was not used for the longest time.
    fn oldest(&mut self) -> Option<ClusterIdentity> {
        // A use does not move an entry; that is made up for here, for those that come first. No other can be older than one
        // that stands where it belongs.
        loop {
            let (place, grain) = self.recency.pop_first()?;
            let Some(entry) = self.entries.get_mut(&grain) else { continue };
            entry.place = entry.last_use;
            self.recency.insert(entry.place, grain.clone());
            if entry.place == place {
                return Some(grain);
            }
        }
    }

    fn expire(&mut self, now: TimerInstant) -> PidCacheOutcome {
        let mut out = PidCacheOutcome::default();
        while let Some(grain) = self.expiry.pop_due(now) {
            self.drop_entry(&grain, PidDropReason::Expired, &mut out);
        }
        out
    }

    fn drop_all(
        &mut self,
        reason: impl Fn(&ClusterIdentity, &Entry) -> Option<PidDropReason>,
    ) -> PidCacheOutcome {
        let mut out = PidCacheOutcome::default();
        let doomed: Vec<_> = self
            .entries
            .iter()
            .filter_map(|(grain, entry)| reason(grain, entry).map(|reason| (grain.clone(), reason)))
            .collect();
        for (grain, reason) in doomed {
            self.drop_entry(&grain, reason, &mut out);
        }
        self.finish(out)
    }

    fn drop_entry(&mut self, grain: &ClusterIdentity, reason: PidDropReason, out: &mut PidCacheOutcome) {
        let Some(Entry { pid, place, .. }) = self.entries.remove(grain) else { return };
        self.recency.remove(&place);
        self.expiry.clear(grain);
        self.counts.drops += 1;
        if out.dropped.len() < DROPS_TOLD_MAX {
            out.dropped.push(DroppedPid { grain: grain.clone(), pid, reason });
        } else {
            out.untold += 1;
        }
    }

    fn finish(&self, mut out: PidCacheOutcome) -> PidCacheOutcome {
        out.wake_at = self.expiry.next();
        out
    }
}

/// Most drops that one outcome tells one by one.
pub const DROPS_TOLD_MAX: usize = 256;
const CAPACITY_MAX: usize = 1_000_000;
const TTL_MIN: Duration = Duration::from_millis(1);
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests;
