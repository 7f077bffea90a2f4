//! The tubes that connections of this node use, watch or wait for. A tube is there while one does, with or without jobs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use synod_core::jobs::QueueName;

/// The tubes of one node.
#[derive(Debug, Default)]
pub(crate) struct Tubes {
    tubes: Mutex<BTreeMap<QueueName, Tube>>,
}

/// What connections of this node have to do with one tube.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tube {
    pub(crate) using: u64,
    pub(crate) watching: u64,
    pub(crate) waiting: u64,
    pub(crate) pauses: u64,
    /// As the last pause had it, in seconds.
    pub(crate) pause_s: u32,
}

impl Tubes {
    /// Changes what is known of a tube, which is forgotten when no connection has to do with it any more.
    pub(crate) fn change(&self, name: &QueueName, change: impl FnOnce(&mut Tube)) {
        let mut tubes = self.lock();
        let mut tube = tubes.remove(name).unwrap_or_default();
        change(&mut tube);
        if (tube.using, tube.watching, tube.waiting) != (0, 0, 0) {
            tubes.insert(name.clone(), tube);
        }
    }

    pub(crate) fn find(&self, name: &QueueName) -> Option<Tube> {
        self.lock().get(name).copied()
    }

    pub(crate) fn names(&self) -> Vec<QueueName> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<QueueName, Tube>> {
        self.tubes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
