//! Which life of this node is it?
//!
//! Peers remember the lives that ended and never let one return, so a node must not start twice in the same life. The
//! number of the last life is stored, and raised and stored again *before* the node speaks its first word: a crash in
//! between wastes a number, which costs nothing, instead of using one twice.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use synod_core::Incarnation;

use crate::lock;

/// Keeps the number of a node's last life where a crash cannot reach it.
pub trait IncarnationStore: Send {
    /// The last life that was stored; `None` for a node that never lived.
    ///
    /// # Errors
    /// The store cannot be read.
    fn load(&mut self) -> Result<Option<Incarnation>, IncarnationStoreError>;

    /// Stores the life that begins. When this returns, the number survives a crash.
    ///
    /// # Errors
    /// The number is not stored for certain.
    fn persist(&mut self, incarnation: Incarnation) -> Result<(), IncarnationStoreError>;
}

/// The number of a life could not be read or stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IncarnationStoreError {
    /// The store cannot be read.
    #[error("the stored incarnation cannot be read ({reason}); no new life was begun")]
    Load {
        /// What the store said.
        reason: String,
    },
    /// The store did not take the number.
    #[error("incarnation {incarnation} cannot be stored ({reason}); that life must not begin")]
    Persist {
        /// The number.
        incarnation: Incarnation,
        /// What the store said.
        reason: String,
    },
    /// The numbers are used up.
    #[error("incarnation {last} is the last there can be; the node needs a new name")]
    Exhausted {
        /// The number that was stored.
        last: Incarnation,
    },
}

/// Begins a life: the one after the stored one, or the first. It is stored when this returns.
pub(crate) fn begin_life(store: &mut dyn IncarnationStore) -> Result<Incarnation, IncarnationStoreError> {
    let incarnation = match store.load()? {
        Some(last) => last.next().ok_or(IncarnationStoreError::Exhausted { last })?,
        None => Incarnation::FIRST,
    };
    store.persist(incarnation)?;
    Ok(incarnation)
}

/// A store that outlives the node but not the process, for in-process clusters. Clones share the number, so a
/// restarted node that is given a clone finds its last life.
#[derive(Clone, Debug, Default)]
pub struct MemoryIncarnationStore {
    last: Arc<Mutex<Option<Incarnation>>>,
}

impl MemoryIncarnationStore {
    /// A store for a process that keeps nothing: its lives are numbered from the present time in milliseconds, so that
    /// those of the next process follow. It relies on the clock of this machine being right to the length of a life.
    #[must_use]
    pub fn from_wall_clock() -> Self {
        let millis =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let last = u64::try_from(millis).ok().and_then(|millis| Incarnation::new(millis).ok());
        Self { last: Arc::new(Mutex::new(last)) }
    }

    /// The store of a node that never lived.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The store of a node whose last life was `incarnation`.
    #[must_use]
    pub fn starting_after(incarnation: Incarnation) -> Self {
        Self { last: Arc::new(Mutex::new(Some(incarnation))) }
    }

    /// The number that is stored.
    #[must_use]
    pub fn stored(&self) -> Option<Incarnation> {
        *lock(&self.last)
    }
}

impl IncarnationStore for MemoryIncarnationStore {
    fn load(&mut self) -> Result<Option<Incarnation>, IncarnationStoreError> {
        Ok(self.stored())
    }

    fn persist(&mut self, incarnation: Incarnation) -> Result<(), IncarnationStoreError> {
        *lock(&self.last) = Some(incarnation);
        Ok(())
    }
}

/// One store for the successive drivers of one node.
impl IncarnationStore for Arc<Mutex<dyn IncarnationStore>> {
    fn load(&mut self) -> Result<Option<Incarnation>, IncarnationStoreError> {
        lock(self).load()
    }

    fn persist(&mut self, incarnation: Incarnation) -> Result<(), IncarnationStoreError> {
        lock(self).persist(incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_keeps_nothing_begins_a_later_life() {
        let first = begin_life(&mut MemoryIncarnationStore::from_wall_clock()).expect("a life");
        assert!(first.get() > 1_700_000_000_000, "it is later than 2023");
        let mut kept = MemoryIncarnationStore::from_wall_clock();
        let (second, third) =
            (begin_life(&mut kept).expect("a life"), begin_life(&mut kept).expect("a life"));
        assert!(second >= first && third > second);
    }

    #[test]
    fn every_start_begins_the_life_after_the_stored_one_and_stores_it_first() {
        let store = MemoryIncarnationStore::new();
        assert_eq!(begin_life(&mut store.clone()), Ok(Incarnation::FIRST));
        assert_eq!(store.stored(), Some(Incarnation::FIRST));
        let second = Incarnation::FIRST.next().expect("a second life");
        assert_eq!(begin_life(&mut store.clone()), Ok(second));
        assert_eq!(store.stored(), Some(second));
    }

    #[test]
    fn a_used_up_name_begins_no_life() {
        let last = Incarnation::new(synod_core::id::INCARNATION_MAX).expect("the last incarnation");
        let store = MemoryIncarnationStore::starting_after(last);
        assert_eq!(begin_life(&mut store.clone()), Err(IncarnationStoreError::Exhausted { last }));
        assert_eq!(store.stored(), Some(last));
    }
}
