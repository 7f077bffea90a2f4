//! The road between coordinators.
//!
//! A driver hands messages to a [`GossipTransport`] and collects what arrived; neither ever waits. A transport also
//! mirrors the quarantine: to an address that is kept out nothing goes, and from it nothing is taken in.
//!
//! [`InMemoryNetwork`] is a road inside one process: one bounded mailbox per address, with cuts that tests can make
//! and mend.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};

use synod_core::Authority;
use synod_core::membership::{GossipMessage, GossipOutbound, QuarantineEvent, QuarantineReason};
use tokio::sync::Notify;

use crate::lock;

/// Carries messages between coordinators. No call blocks.
pub trait GossipTransport: Send {
    /// Takes one message for delivery. Delivery may still fail later; gossip repairs what is lost.
    ///
    /// # Errors
    /// The message was not taken, and why.
    fn send(&mut self, outbound: GossipOutbound) -> Result<(), GossipTransportError>;

    /// Everything that arrived since the last call, oldest first.
    fn poll_inbound(&mut self) -> Vec<GossipMessage>;

    /// Notified, with at least one permit, whenever [`poll_inbound`](Self::poll_inbound) has something to give.
    fn inbound_ready(&self) -> Arc<Notify>;

    /// Keeps an address out, or lets it in again.
    ///
    /// A quarantined address gets nothing. From it nothing is taken in, except from a sender that the quarantine does
    /// not cover: a verdict on one life does not concern a later life at the same address.
    fn apply_quarantine(&mut self, event: &QuarantineEvent);
}

/// A message was not taken. It is lost; nothing else was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GossipTransportError {
    /// Nobody can be reached at the address.
    #[error("{target} cannot be reached; the message was dropped")]
    Unreachable {
        /// The address.
        target: Authority,
    },
    /// As many messages as may wait for the address already do.
    #[error("the queue to {target} is full; the message was dropped")]
    QueueFull {
        /// The address.
        target: Authority,
    },
    /// The address is quarantined here.
    #[error("{target} is quarantined; the message was dropped")]
    Quarantined {
        /// The address.
        target: Authority,
    },
}

impl GossipTransportError {
    /// The address that the message was meant for.
    #[must_use]
    pub const fn target(&self) -> &Authority {
        match self {
            Self::Unreachable { target } | Self::QueueFull { target } | Self::Quarantined { target } => {
                target
            }
        }
    }
}

/// A network inside one process. Clones are the same network.
#[derive(Clone)]
pub struct InMemoryNetwork {
    mailbox_capacity: usize,
    roads: Arc<Mutex<Roads>>,
}

impl InMemoryNetwork {
    /// A network whose mailboxes hold up to `mailbox_capacity` messages each: 1 to [`MAILBOX_CAPACITY_MAX`].
    ///
    /// # Errors
    /// The capacity is out of range.
    pub fn new(mailbox_capacity: usize) -> Result<Self, InMemoryNetworkConfigError> {
        if !(1..=MAILBOX_CAPACITY_MAX).contains(&mailbox_capacity) {
            return Err(InMemoryNetworkConfigError { mailbox_capacity });
        }
        Ok(Self { mailbox_capacity, roads: Arc::default() })
    }

    /// Opens the mailbox of `authority`. It exists until the transport is dropped.
    ///
    /// # Errors
    /// The address is taken.
    pub fn attach(&self, authority: &Authority) -> Result<InMemoryTransport, AttachError> {
        let mut roads = lock(&self.roads);
        if roads.mailboxes.contains_key(authority) {
            return Err(AttachError { authority: authority.clone() });
        }
        let arrived = Arc::new(Notify::new());
        let mailbox = Mailbox { messages: VecDeque::new(), arrived: Arc::clone(&arrived) };
        roads.mailboxes.insert(authority.clone(), mailbox);
        Ok(InMemoryTransport {
            network: self.clone(),
            authority: authority.clone(),
            arrived,
            quarantine: BTreeSet::new(),
        })
    }

    /// Cuts the road between two addresses, in both directions. What is in a mailbox already stays there.
    pub fn disconnect(&self, a: &Authority, b: &Authority) {
        lock(&self.roads).cuts.insert(road(a, b));
    }

    /// Mends the road between two addresses. Harmless when it was not cut.
    pub fn reconnect(&self, a: &Authority, b: &Authority) {
        lock(&self.roads).cuts.remove(&road(a, b));
    }

    /// Whether somebody has a mailbox at `authority`.
    #[must_use]
    pub fn is_attached(&self, authority: &Authority) -> bool {
        lock(&self.roads).mailboxes.contains_key(authority)
    }

    /// How many messages were thrown away on arrival, because the receiver kept their sender out.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        lock(&self.roads).refused
    }

    fn deliver(&self, from: &Authority, outbound: GossipOutbound) -> Result<(), GossipTransportError> {
        let GossipOutbound { target, message } = outbound;
        let arrived = {
            let mut roads = lock(&self.roads);
            let is_cut = roads.cuts.contains(&road(from, &target));
            let mailbox = match roads.mailboxes.get_mut(&target) {
                Some(mailbox) if !is_cut => mailbox,
                _ => return Err(GossipTransportError::Unreachable { target }),
            };
            if mailbox.messages.len() == self.mailbox_capacity {
                return Err(GossipTransportError::QueueFull { target });
            }
            mailbox.messages.push_back(message);
            Arc::clone(&mailbox.arrived)
        };
        arrived.notify_one();
        Ok(())
    }
}

impl Default for InMemoryNetwork {
    /// A network with mailboxes of 1024 messages.
    fn default() -> Self {
        Self { mailbox_capacity: 1024, roads: Arc::default() }
    }
}

impl fmt::Debug for InMemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roads = lock(&self.roads);
        f.debug_struct("InMemoryNetwork")
            .field("attached", &roads.mailboxes.keys().collect::<Vec<_>>())
            .field("cuts", &roads.cuts)
            .finish_non_exhaustive()
    }
}

/// The bound of the mailboxes is out of range. Nothing was created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mailbox_capacity must be 1 to {MAILBOX_CAPACITY_MAX}, it is {mailbox_capacity}; nothing was created"
)]
pub struct InMemoryNetworkConfigError {
    /// The refused value.
    pub mailbox_capacity: usize,
}

/// The address has a mailbox already. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{authority} is already attached to this network; nothing was changed")]
pub struct AttachError {
    /// The address.
    pub authority: Authority,
}

/// One node's end of an [`InMemoryNetwork`]. Dropping it closes its mailbox.
#[derive(Debug)]
pub struct InMemoryTransport {
    network: InMemoryNetwork,
    authority: Authority,
    arrived: Arc<Notify>,
    quarantine: BTreeSet<Authority>,
}

impl GossipTransport for InMemoryTransport {
    fn send(&mut self, outbound: GossipOutbound) -> Result<(), GossipTransportError> {
        if self.quarantine.contains(&outbound.target) {
            return Err(GossipTransportError::Quarantined { target: outbound.target });
        }
        self.network.deliver(&self.authority, outbound)
    }

    fn poll_inbound(&mut self) -> Vec<GossipMessage> {
        let mut messages: Vec<_> = match lock(&self.network.roads).mailboxes.get_mut(&self.authority) {
            Some(mailbox) => mailbox.messages.drain(..).collect(),
            None => Vec::new(),
        };
        let arrived = messages.len();
        messages.retain(|message| !self.quarantine.contains(message.sender.authority()));
        let refused = arrived - messages.len();
        if refused > 0 {
            lock(&self.network.roads).refused += refused as u64;
        }
        messages
    }

    fn inbound_ready(&self) -> Arc<Notify> {
        Arc::clone(&self.arrived)
    }

    fn apply_quarantine(&mut self, event: &QuarantineEvent) {
        match event {
            // A verdict concerns one life; the address may be home to the next one, and the judged one must hear why it
            // is refused. Membership itself sees to that.
            QuarantineEvent::Quarantined { reason: QuarantineReason::Dead(_), .. } => {}
            QuarantineEvent::Quarantined { authority, .. } => {
                self.quarantine.insert(authority.clone());
            }
            QuarantineEvent::Cleared { authority } => {
                self.quarantine.remove(authority);
            }
        }
    }
}

impl Drop for InMemoryTransport {
    fn drop(&mut self) {
        lock(&self.network.roads).mailboxes.remove(&self.authority);
    }
}

#[derive(Default)]
struct Roads {
    mailboxes: BTreeMap<Authority, Mailbox>,
    /// Pairs with the smaller address first.
    cuts: BTreeSet<(Authority, Authority)>,
    refused: u64,
}

struct Mailbox {
    messages: VecDeque<GossipMessage>,
    arrived: Arc<Notify>,
}

fn road(a: &Authority, b: &Authority) -> (Authority, Authority) {
    if a <= b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) }
}

/// Largest mailbox, in messages.
pub const MAILBOX_CAPACITY_MAX: usize = 65_536;

#[cfg(test)]
mod tests;
