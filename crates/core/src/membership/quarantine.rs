//! Who is kept out, why, and until when.
//!
//! The table is the only source of truth about quarantine; everything else mirrors its events. A quarantine that
//! follows a verdict concerns the life that was judged: a later incarnation at the same address is someone new and is
//! let in. One that the transport or an operator asks for concerns the address, whoever answers there.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::deadline::DeadlineQueue;
use crate::id::{Authority, MemberId};
use crate::time::TimerInstant;

/// Why an address is quarantined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuarantineReason {
    /// Its member was declared dead, here or by a peer.
    Dead(MemberId),
    /// The transport found the association invalid.
    InvalidAssociation(String),
    /// An operator asked for it.
    Requested(String),
}

impl fmt::Display for QuarantineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead(member) => write!(f, "{member} was declared dead"),
            Self::InvalidAssociation(detail) => write!(f, "invalid association: {detail}"),
            Self::Requested(detail) => write!(f, "requested: {detail}"),
        }
    }
}

/// One quarantined address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineEntry {
    /// The address.
    pub authority: Authority,
    /// Why it is kept out.
    pub reason: QuarantineReason,
    /// When it is let in again; `None` until it is released by hand.
    pub expires_at: Option<TimerInstant>,
}

impl QuarantineEntry {
    /// Whether `member` at this address is kept out.
    #[must_use]
    pub fn covers(&self, member: &MemberId) -> bool {
        match &self.reason {
            QuarantineReason::Dead(dead) => {
                dead.node == member.node && member.incarnation <= dead.incarnation
            }
            QuarantineReason::InvalidAssociation(_) | QuarantineReason::Requested(_) => true,
        }
    }
}

/// All quarantined addresses, bounded.
#[derive(Clone, Debug)]
pub struct QuarantineTable {
    entries: BTreeMap<Authority, QuarantineEntry>,
    expiry: DeadlineQueue<Authority>,
    entries_max: usize,
}

impl QuarantineTable {
    /// An empty table for at most `entries_max` addresses.
    #[must_use]
    pub const fn new(entries_max: usize) -> Self {
        Self { entries: BTreeMap::new(), expiry: DeadlineQueue::new(), entries_max }
    }

    /// Keeps `authority` out for `ttl` from `now` (`None`: until released). A quarantine is extended or widened by a
    /// second one, never shortened or narrowed. Returns whether the table changed.
    ///
    /// [`make_room`](Self::make_room) before, or the table exceeds its bound by one.
    pub fn quarantine(
        &mut self,
        authority: &Authority,
        reason: QuarantineReason,
        ttl: Option<Duration>,
        now: TimerInstant,
    ) -> bool {
        let mut entry =
            QuarantineEntry { authority: authority.clone(), reason, expires_at: ttl.map(|ttl| now + ttl) };
        if let Some(known) = self.entries.get(authority) {
            entry.expires_at = match (known.expires_at, entry.expires_at) {
                (Some(known), Some(offered)) => Some(known.max(offered)),
                _ => None,
            };
            // A judgement on a life that is kept out anyway must not narrow the quarantine to that life.
            if matches!(&entry.reason, QuarantineReason::Dead(member) if known.covers(member)) {
                entry.reason = known.reason.clone();
            }
            if *known == entry {
                return false;
            }
        }
        match entry.expires_at {
            Some(at) => self.expiry.set(authority, at),
            None => self.expiry.clear(authority),
        }
        self.entries.insert(authority.clone(), entry);
        true
    }

    /// Lifts the quarantine that would end first if the table is full and `authority` is not in it: the newest judgement
    /// matters most. Returns what was lifted.
    pub fn make_room(&mut self, authority: &Authority) -> Option<QuarantineEntry> {
        if self.entries.len() < self.entries_max || self.entries.contains_key(authority) {
            return None;
        }
        let first = self.entries.values().min_by_key(|entry| (entry.expires_at.is_none(), entry.expires_at));
        let first = first.map(|entry| entry.authority.clone())?;
        self.release(&first)
    }

    /// Lets `authority` in again. Returns the entry that was lifted, if there was one.
    pub fn release(&mut self, authority: &Authority) -> Option<QuarantineEntry> {
        self.expiry.clear(authority);
        self.entries.remove(authority)
    }

    /// Lifts one quarantine whose time is over; call until it returns `None`.
    pub fn pop_expired(&mut self, now: TimerInstant) -> Option<QuarantineEntry> {
        let authority = self.expiry.pop_due(now)?;
        self.entries.remove(&authority)
    }

    /// The entry of one address.
    #[must_use]
    pub fn entry(&self, authority: &Authority) -> Option<&QuarantineEntry> {
        self.entries.get(authority)
    }

    /// The entry that keeps `member` at `authority` out, if any does.
    #[must_use]
    pub fn covering(&self, authority: &Authority, member: &MemberId) -> Option<&QuarantineEntry> {
        self.entries.get(authority).filter(|entry| entry.covers(member))
    }

    /// All entries in address order.
    #[must_use]
    pub fn snapshot(&self) -> Vec<QuarantineEntry> {
        self.entries.values().cloned().collect()
    }

    /// Whether nobody is kept out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All quarantined addresses in order.
    pub fn authorities(&self) -> impl Iterator<Item = &Authority> {
        self.entries.keys()
    }

    /// When the next quarantine ends by itself.
    #[must_use]
    pub fn next_expiry(&self) -> Option<TimerInstant> {
        self.expiry.next()
    }
}

#[cfg(test)]
mod tests;
