//! Who on this node watches whom elsewhere.
//!
//! An actor tells its watchers when it ends. When its whole node is gone nobody does, so this node keeps a list, and
//! tells them itself. A connection that was only lost proves nothing: the watches are asked for again over the next one,
//! and a node that has restarted since answers that there is no such actor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use synod_wire::actor::{TerminatedReason, Unwatch, Watch};

use super::Inner;
use super::actor::terminated_message;
use super::link::Lane;
use super::message::Message;
use super::pid::Pid;
use super::process::SystemMessage;
use crate::lock;

/// Watched actors of other nodes, by address, and their watchers here.
#[derive(Debug, Default)]
pub(super) struct Watches(BTreeMap<String, BTreeMap<Pid, BTreeSet<Pid>>>);

impl Watches {
    fn add(&mut self, watcher: &Pid, watched: &Pid) {
        let by_address = self.0.entry(watched.address().to_owned()).or_default();
        by_address.entry(watched.clone()).or_default().insert(watcher.clone());
    }

    pub(super) fn remove(&mut self, watcher: &Pid, watched: &Pid) {
        let Some(by_address) = self.0.get_mut(watched.address()) else { return };
        if let Some(watchers) = by_address.get_mut(watched) {
            watchers.remove(watcher);
            if watchers.is_empty() {
                by_address.remove(watched);
            }
        }
        if by_address.is_empty() {
            self.0.remove(watched.address());
        }
    }
}

impl Inner {
    pub(super) fn watch(self: &Arc<Self>, watcher: &Pid, other: &Pid) {
        if other.address() != &*self.address {
            lock(&self.watches).add(watcher, other);
        }
        self.ask_to_watch(watcher, other);
    }

    pub(super) fn unwatch(self: &Arc<Self>, watcher: &Pid, other: &Pid) {
        lock(&self.watches).remove(watcher, other);
        let message = Message::new(&Unwatch { watcher: Some(watcher.into()) });
        // If it cannot be sent the other's node is gone, and so is what it remembered.
        drop(self.send(Lane::User, other, message));
    }

    /// Tells `watcher`, here or elsewhere, that `who` has ended.
    pub(super) fn tell_terminated(self: &Arc<Self>, watcher: &Pid, who: &Pid, why: TerminatedReason) {
        if watcher.address() == &*self.address {
            if let Some(process) = self.processes.find(watcher.id()) {
                // A watcher that has ended meanwhile needs no telling.
                drop(process.tell(SystemMessage::Terminated { who: who.clone(), why }));
            }
        } else {
            drop(self.send(Lane::User, watcher, terminated_message(who, why)));
        }
    }

    /// Asks again for everything that is watched at `address`: its node may have forgotten, or be another one.
    pub(super) fn renew_watches(self: &Arc<Self>, address: &str) {
        for (watched, watchers) in lock(&self.watches).0.get(address).cloned().unwrap_or_default() {
            for watcher in watchers {
                self.ask_to_watch(&watcher, &watched);
            }
        }
    }

    /// The node at `address` is gone, and everything that was watched there.
    pub(super) fn end_watches(self: &Arc<Self>, address: &str) {
        let ended = lock(&self.watches).0.remove(address).unwrap_or_default();
        for (watched, watchers) in ended {
            for watcher in watchers {
                self.tell_terminated(&watcher, &watched, TerminatedReason::AddressTerminated);
            }
        }
    }

    fn ask_to_watch(self: &Arc<Self>, watcher: &Pid, other: &Pid) {
        let message = Message::new(&Watch { watcher: Some(watcher.into()) });
        if self.send(Lane::User, other, message).is_err() {
            lock(&self.watches).remove(watcher, other);
            self.tell_terminated(watcher, other, TerminatedReason::AddressTerminated);
        }
    }
}
