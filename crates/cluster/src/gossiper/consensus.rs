//! Waiting until all members say the same.
//!
//! The machine knows whether they do; a [`ConsensusHandle`] shows the latest answer to whoever asked. A handle keeps
//! neither the gossiper nor its task alive, and a check lives no longer than its handle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use synod_core::gossip::{ConsensusCheckId, ConsensusEvent};
use tokio::sync::{Notify, watch};

use super::GossiperError;
use super::tokio_gossiper::Shared;
use crate::lock;

/// What the members agree on, in the order of the check's keys; `None` while they do not.
pub type Agreement = Option<Vec<Vec<u8>>>;

/// One consensus check of a gossiper. Dropping it removes the check.
pub struct ConsensusHandle {
    id: ConsensusCheckId,
    shared: Weak<Shared>,
    agreement: watch::Receiver<Agreement>,
}

impl ConsensusHandle {
    pub(super) const fn new(
        id: ConsensusCheckId,
        shared: Weak<Shared>,
        agreement: watch::Receiver<Agreement>,
    ) -> Self {
        Self { id, shared, agreement }
    }

    /// Waits until the members agree; returns at once when they do already.
    ///
    /// # Errors
    /// [`GossiperError::Timeout`] when they did not within `timeout`; [`GossiperError::CheckRemoved`] and
    /// [`GossiperError::AlreadyStopped`] when there is nothing left to wait for.
    pub async fn wait_for_consensus(&self, timeout: Duration) -> Result<Vec<Vec<u8>>, GossiperError> {
        let mut agreement = self.agreement.clone();
        match tokio::time::timeout(timeout, agreement.wait_for(Option::is_some)).await {
            Ok(Ok(values)) => Ok(values.clone().unwrap_or_default()),
            Ok(Err(_)) => Err(self.end()),
            Err(_) => Err(GossiperError::Timeout { timeout }),
        }
    }

    /// Waits until the answer is another one than this handle has shown before, and returns it. Of several changes in
    /// quick succession only the last is seen.
    ///
    /// # Errors
    /// The check was removed or the gossiper stopped.
    pub async fn changed(&mut self) -> Result<Agreement, GossiperError> {
        match self.agreement.changed().await {
            Ok(()) => Ok(self.agreement.borrow_and_update().clone()),
            Err(_) => Err(self.end()),
        }
    }

    /// What the members agree on now. The last answer when the gossiper has stopped.
    #[must_use]
    pub fn current(&self) -> Agreement {
        self.agreement.borrow().clone()
    }

    /// Names this check in events and in [`Gossiper::remove_consensus_check`](super::Gossiper::remove_consensus_check).
    #[must_use]
    pub const fn id(&self) -> ConsensusCheckId {
        self.id
    }

    /// Removes the check. Harmless when it is gone already.
    pub fn cancel(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.checks.remove(self.id);
        }
    }

    fn end(&self) -> GossiperError {
        match self.shared.upgrade() {
            Some(shared) if shared.is_running() => GossiperError::CheckRemoved,
            _ => GossiperError::AlreadyStopped,
        }
    }
}

impl Drop for ConsensusHandle {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for ConsensusHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsensusHandle").field("id", &self.id).field("current", &self.current()).finish()
    }
}

/// The checks that somebody holds a handle to. There are never more than the machine allows.
#[derive(Debug, Default)]
pub(super) struct HeldChecks {
    checks: Mutex<Checks>,
    removed: Notify,
}

#[derive(Debug, Default)]
struct Checks {
    held: BTreeMap<ConsensusCheckId, watch::Sender<Agreement>>,
    /// Nobody waits for these any more; the machine has yet to be told.
    removed: BTreeSet<ConsensusCheckId>,
}

impl HeldChecks {
    pub(super) fn add(&self, id: ConsensusCheckId) -> watch::Receiver<Agreement> {
        let (sender, receiver) = watch::channel(None);
        lock(&self.checks).held.insert(id, sender);
        receiver
    }

    pub(super) fn show(&self, event: &ConsensusEvent) {
        let (id, agreement) = match event {
            ConsensusEvent::Reached { check, values } => (check, Some(values.clone())),
            ConsensusEvent::Lost { check } => (check, None),
        };
        if let Some(sender) = lock(&self.checks).held.get(id) {
            sender.send_replace(agreement);
        }
    }

    /// Whether there was a check of that id.
    pub(super) fn remove(&self, id: ConsensusCheckId) -> bool {
        let mut checks = lock(&self.checks);
        let held = checks.held.remove(&id).is_some();
        if held {
            checks.removed.insert(id);
            self.removed.notify_one();
        }
        held
    }

    /// Ends all waiting.
    pub(super) fn clear(&self) {
        *lock(&self.checks) = Checks::default();
    }

    /// Waits until some were removed. A cancelled call loses nothing.
    pub(super) async fn removals(&self) {
        self.removed.notified().await;
    }

    pub(super) fn take_removed(&self) -> BTreeSet<ConsensusCheckId> {
        std::mem::take(&mut lock(&self.checks).removed)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.checks).held.len()
    }
}
