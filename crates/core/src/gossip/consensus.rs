//! Do all members say the same?
//!
//! A check names one or more keys and how to read from each value what is to be compared. It is looked at when it is
//! registered, when a value under one of its keys changes and when the set of members does; it speaks only when the
//! answer changes.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use super::id::{GossipKey, GossipMemberId};
use super::store::GossipStateStore;

/// Names one consensus check of one gossiper; never used twice, not even after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsensusCheckId(pub(super) u64);

/// A check changed its mind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsensusEvent {
    /// Every member has the same values now.
    Reached {
        /// The check.
        check: ConsensusCheckId,
        /// What they agree on, in the order of the check's keys.
        values: Vec<Vec<u8>>,
    },
    /// They did agree on something and no longer do.
    Lost {
        /// The check.
        check: ConsensusCheckId,
    },
}

/// A value does not contain what a check looks for. It counts as no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value does not contain what the consensus check compares")]
pub struct ExtractError;

/// What is compared: for each key, how to read the part that matters from its value.
pub struct ConsensusChecker {
    parts: Vec<(GossipKey, Box<Extractor>)>,
    reached: Option<Vec<Vec<u8>>>,
}

type Extractor = dyn Fn(&[u8]) -> Result<Vec<u8>, ExtractError> + Send + Sync;

impl ConsensusChecker {
    /// Compares what `extractor` reads from the values under `key`.
    pub fn new(
        key: GossipKey,
        extractor: impl Fn(&[u8]) -> Result<Vec<u8>, ExtractError> + Send + Sync + 'static,
    ) -> Self {
        Self { parts: vec![(key, Box::new(extractor))], reached: None }
    }

    /// Compares the values under another key, too: members agree only if they agree on all.
    #[must_use]
    pub fn and(
        mut self,
        key: GossipKey,
        extractor: impl Fn(&[u8]) -> Result<Vec<u8>, ExtractError> + Send + Sync + 'static,
    ) -> Self {
        self.parts.push((key, Box::new(extractor)));
        self
    }

    pub(super) const fn keys(&self) -> usize {
        self.parts.len()
    }

    /// What all members agree on, if they do. A member without a readable value agrees to nothing.
    fn agreed<'a>(
        &self,
        store: &GossipStateStore,
        members: impl Iterator<Item = &'a GossipMemberId>,
    ) -> Option<Vec<Vec<u8>>> {
        let mut agreed = None;
        for member in members {
            let read = |(key, extractor): &(GossipKey, Box<Extractor>)| {
                extractor(store.value(member, key)?.value.bytes()).ok()
            };
            let values = self.parts.iter().map(read).collect::<Option<Vec<_>>>()?;
            match &agreed {
                None => agreed = Some(values),
                Some(first) if *first == values => {}
                Some(_) => return None,
            }
        }
        agreed
    }
}

impl fmt::Debug for ConsensusChecker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.parts.iter().map(|(key, _)| key).collect();
        f.debug_struct("ConsensusChecker").field("keys", &keys).field("reached", &self.reached).finish()
    }
}

/// What an input changed, as far as checks care.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) keys: BTreeSet<GossipKey>,
    pub(super) members: bool,
}

/// All checks of one gossiper.
#[derive(Debug)]
pub(super) struct Checks {
    checks: BTreeMap<ConsensusCheckId, ConsensusChecker>,
    next_id: u64,
}

impl Checks {
    /// No checks yet. Ids count on from `next_id`, so that one of an earlier run removes nothing.
    pub(super) const fn new(next_id: u64) -> Self {
        Self { checks: BTreeMap::new(), next_id }
    }

    /// Adds a check without looking at it; `None` when there are too many.
    pub(super) fn add(&mut self, checker: ConsensusChecker) -> Option<ConsensusCheckId> {
        if self.checks.len() >= CHECKS_MAX {
            return None;
        }
        let id = ConsensusCheckId(self.next_id);
        self.next_id += 1;
        self.checks.insert(id, checker);
        Some(id)
    }

    /// Removes a check. False when there is none of that id.
    pub(super) fn remove(&mut self, id: ConsensusCheckId) -> bool {
        self.checks.remove(&id).is_some()
    }

    /// Looks at the checks that `touched` concerns, and at `new`.
    pub(super) fn evaluate(
        &mut self,
        touched: &Touched,
        new: Option<ConsensusCheckId>,
        store: &GossipStateStore,
        members: &BTreeSet<GossipMemberId>,
    ) -> Vec<ConsensusEvent> {
        let mut events = Vec::new();
        for (id, checker) in &mut self.checks {
            let concerned = touched.members
                || new == Some(*id)
                || checker.parts.iter().any(|(key, _)| touched.keys.contains(key));
            if !concerned {
                continue;
            }
            let agreed = checker.agreed(store, members.iter());
            if agreed == checker.reached {
                continue;
            }
            if checker.reached.is_some() {
                events.push(ConsensusEvent::Lost { check: *id });
            }
            if let Some(values) = &agreed {
                events.push(ConsensusEvent::Reached { check: *id, values: values.clone() });
            }
            checker.reached = agreed;
        }
        events
    }

    /// What a check's members agree on now.
    pub(super) fn reached(&self, id: ConsensusCheckId) -> Option<&[Vec<u8>]> {
        self.checks.get(&id)?.reached.as_deref()
    }

    pub(super) const fn next_id(&self) -> u64 {
        self.next_id
    }
}

/// Most consensus checks of one gossiper.
pub const CHECKS_MAX: usize = 256;
/// Most keys of one consensus check.
pub const CHECK_KEYS_MAX: usize = 16;
