//! Who takes messages on this node, by name.
//!
//! A [`Process`] is anything with a letter box: an actor with a mailbox, the requests that wait for answers, a part of
//! the cluster itself. The registry finds it by its id. Delivering never waits; a process that is full says so, and
//! whoever delivers decides how long to be patient.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use synod_wire::actor::TerminatedReason;
use tokio::sync::Notify;

use super::message::Message;
use super::pid::Pid;

/// A message that arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    /// Which of the requests that share the target is meant; 0 is none.
    pub request_id: u32,
    /// The message.
    pub message: Message,
}

/// What an actor is told besides the messages of its peers. It overtakes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemMessage {
    /// Stop now.
    Stop,
    /// An actor that this one watches has ended.
    Terminated {
        /// Which.
        who: Pid,
        /// Why.
        why: TerminatedReason,
    },
    /// Somebody no longer wants to hear of this actor's end.
    Unwatch(Pid),
    /// Somebody wants to hear of this actor's end.
    Watch(Pid),
}

/// Takes messages. No call waits.
pub trait Process: Send + Sync {
    /// Takes letters from the front of `letters`, in order, as many as it has room for.
    ///
    /// # Errors
    /// [`ProcessEnded`] when it takes none any more, now or later.
    fn deliver(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded>;

    /// As [`deliver`](Self::deliver), by somebody who has time for what comes of it. A process may use that time, but not
    /// much of it.
    ///
    /// # Errors
    /// As [`deliver`](Self::deliver).
    fn deliver_and_wait(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        self.deliver(letters)
    }

    /// Tells it something about itself. What means nothing to it is ignored.
    ///
    /// # Errors
    /// [`ProcessEnded`] when it listens no more.
    fn tell(&self, message: SystemMessage) -> Result<(), ProcessEnded>;

    /// Notified when a process that was full has room again; `None` for those that are never full.
    fn room(&self) -> Option<Arc<Notify>> {
        None
    }

    /// Whether it is also for members that are blocked here. That is for whoever judges who is blocked: the other side of
    /// a split has to be heard, or the split never ends.
    fn hears_blocked(&self) -> bool {
        false
    }
}

/// The process takes no more messages. Nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the actor has ended; nothing was delivered")]
pub struct ProcessEnded;

type Processes = HashMap<Arc<str>, Arc<dyn Process>>;

/// The processes of one node.
pub(super) struct ProcessRegistry {
    /// Several maps, so that senders on different cores seldom wait for each other.
    shards: [RwLock<Processes>; SHARDS],
    hasher: RandomState,
    len: AtomicUsize,
    max: usize,
}

impl ProcessRegistry {
    pub(super) fn new(max: usize) -> Self {
        Self { shards: Default::default(), hasher: RandomState::new(), len: AtomicUsize::new(0), max }
    }

    /// Enters `process` under `id`.
    pub(super) fn add(&self, id: &Arc<str>, process: Arc<dyn Process>) -> Result<(), RegisterError> {
        if self.len.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.len.fetch_sub(1, Ordering::Relaxed);
            return Err(RegisterError::TooManyProcesses { max: self.max });
        }
        let mut shard = self.shard(id).write().unwrap_or_else(PoisonError::into_inner);
        if shard.contains_key(id) {
            self.len.fetch_sub(1, Ordering::Relaxed);
            return Err(RegisterError::NameTaken { id: id.to_string() });
        }
        shard.insert(Arc::clone(id), process);
        Ok(())
    }

    pub(super) fn remove(&self, id: &str) -> Option<Arc<dyn Process>> {
        let removed = self.shard(id).write().unwrap_or_else(PoisonError::into_inner).remove(id);
        if removed.is_some() {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        removed
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<dyn Process>> {
        self.shard(id).read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Every process, for the end of the node.
    pub(super) fn all(&self) -> Vec<Arc<dyn Process>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.read().unwrap_or_else(PoisonError::into_inner).values().cloned());
        }
        all
    }

    /// Forgets everybody, at the end of the node.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let forgotten = std::mem::take(&mut *shard.write().unwrap_or_else(PoisonError::into_inner));
            self.len.fetch_sub(forgotten.len(), Ordering::Relaxed);
        }
    }

    fn shard(&self, id: &str) -> &RwLock<Processes> {
        &self.shards[self.hasher.hash_one(id) as usize % SHARDS]
    }
}

impl fmt::Debug for ProcessRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessRegistry").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// An actor was not started. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Another actor of this node has the id.
    #[error("the actor id {id:?} is taken on this node; nothing was started")]
    NameTaken {
        /// The id.
        id: String,
    },
    /// The id is empty, too long, or means something else to every node.
    #[error("{id:?} cannot be the id of an actor: {problem}; nothing was started")]
    InvalidName {
        /// The id.
        id: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There are as many actors as may be.
    #[error("this node has {max} actors already, as many as it may; nothing was started")]
    TooManyProcesses {
        /// How many there may be.
        max: usize,
    },
    /// The node has shut down.
    #[error("the node has shut down; nothing was started")]
    ShutDown,
}

const SHARDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    struct Hole;

    impl Process for Hole {
        fn deliver(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
            letters.clear();
            Ok(())
        }

        fn tell(&self, _: SystemMessage) -> Result<(), ProcessEnded> {
            Ok(())
        }
    }

    #[test]
    fn a_name_belongs_to_one_and_the_number_is_bounded() {
        let registry = ProcessRegistry::new(2);
        let (a, b, c): (Arc<str>, Arc<str>, Arc<str>) = ("a".into(), "b".into(), "c".into());
        assert_eq!(registry.add(&a, Arc::new(Hole)), Ok(()));
        assert!(matches!(registry.add(&a, Arc::new(Hole)), Err(RegisterError::NameTaken { .. })));
        assert_eq!(registry.add(&b, Arc::new(Hole)), Ok(()));
        assert_eq!(
            registry.add(&c, Arc::new(Hole)),
            Err(RegisterError::TooManyProcesses { max: 2 }),
            "a refused name took no place, the third does not fit"
        );
        assert!(registry.remove("a").is_some() && registry.remove("a").is_none());
        assert_eq!((registry.add(&c, Arc::new(Hole)), registry.len()), (Ok(()), 2));
        assert!(registry.find("a").is_none() && registry.find("c").is_some());
    }
}
