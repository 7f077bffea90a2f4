//! The hands of the association machine: opens connections, fills lanes, buries what cannot go.
//!
//! The machine is asked only while a peer is not connected or has a backlog. Its lock also orders the changes of the
//! links: a lane is opened, closed and made direct under it, so nothing overtakes what the machine still holds.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use std::time::Duration;

use synod_core::outbound::{
    AssociationState, DeadLetter, DeadLetterReason, OutboundEvent, OutboundOutcome, OutboundPipeline,
};
use synod_core::remote::RemoteEvent;
use synod_core::{Authority, TimerInstant};
use synod_wire::Dialect;

use super::counters::add;
use super::link::{Link, Offer, Outgoing};
use super::{Inner, SendError, Unsent, client, shut_down};
use crate::lock;

impl Inner {
    /// Sends a message to another node.
    pub(super) fn send_out(self: &Arc<Self>, outgoing: Outgoing) -> Result<(), Unsent> {
        let link = match self.link(outgoing.target.address()) {
            Some(link) => link,
            None => match self.make_link(outgoing.target.address()) {
                Ok(link) => link,
                Err(LinkError::InvalidAddress) => {
                    let address = outgoing.target.address().to_owned();
                    return Err(Unsent::Failed(SendError::InvalidAddress { address }));
                }
                Err(LinkError::TooMany) => {
                    let reason = DeadLetterReason::TooManyAssociations;
                    self.count_dead_letter(&outgoing.target, &outgoing.message, &reason);
                    return Err(Unsent::Failed(SendError::Refused { target: outgoing.target, reason }));
                }
            },
        };
        match link.offer(outgoing, &self.bounds) {
            Offer::Taken => Ok(()),
            Offer::TakenInsteadOf(dropped) => {
                for outgoing in dropped {
                    self.bury(&outgoing.target, &outgoing.message, &DeadLetterReason::DroppedOldest);
                }
                Ok(())
            }
            Offer::Full(outgoing) => Err(Unsent::Full(outgoing.message)),
            Offer::Closed(outgoing) => self.send_through_machine(&link, outgoing),
        }
    }

    /// A peer opened a stream to this node.
    pub(super) fn heard(self: &Arc<Self>, authority: &Authority) {
        self.drive(|_, machine, now| machine.handle_heard(authority, now));
    }

    /// Keeps an address out until `until` (`None`: until it is released).
    pub(super) fn quarantine(self: &Arc<Self>, authority: &Authority, reason: &str, until: Option<Duration>) {
        let until = until.map(|pause| self.clock.now() + pause);
        self.drive(|inner, machine, _| {
            let mut outcome = machine.handle_quarantine(authority, reason.to_owned(), until);
            inner.cut(authority, &DeadLetterReason::Quarantined(reason.to_owned()), &mut outcome);
            outcome
        });
        self.end_watches(authority.as_str());
    }

    /// The peer at an address that this node dialled is none that it can deal with. Whoever dials this node may claim any
    /// address, so what such a one says quarantines nobody.
    pub(super) fn invalid_association(self: &Arc<Self>, authority: &Authority, reason: &str) {
        self.publish(RemoteEvent::InvalidAssociation { peer: authority.clone(), reason: reason.to_owned() });
        self.quarantine(
            authority,
            &format!("invalid association: {reason}"),
            Some(self.config.quarantine_ttl),
        );
    }

    /// Ends a quarantine before its time.
    pub(super) fn release(self: &Arc<Self>, authority: &Authority) {
        self.drive(|_, machine, _| machine.handle_release(authority));
    }

    /// The node at `authority` is gone for good, or another one is there now.
    pub(super) fn depart(self: &Arc<Self>, authority: &Authority) {
        self.drive(|inner, machine, _| {
            let mut outcome = machine.handle_departed(authority);
            inner.cut(authority, &DeadLetterReason::Departed, &mut outcome);
            outcome
        });
        if let Some(link) = self.link(authority.as_str()) {
            link.forget_peer();
        }
        self.end_watches(authority.as_str());
    }

    /// Connection `number` of `link` stands. Returns false when it is not wanted any more.
    pub(super) fn connected(self: &Arc<Self>, link: &Arc<Link>, number: u64) -> bool {
        let mut wanted = false;
        self.drive(|_, machine, now| {
            // The address may have been closed while this connection was on its way.
            if !link.is_served_by(number) {
                return machine.poll(now);
            }
            match machine.handle_connected(&link.authority, now) {
                Ok(outcome) => {
                    wanted = true;
                    outcome
                }
                Err(_) => machine.poll(now),
            }
        });
        if wanted {
            add(&self.counters.connections_opened, 1);
        }
        wanted
    }

    /// A connection could not be opened.
    pub(super) fn connect_failed(self: &Arc<Self>, link: &Link, number: u64) {
        // Nothing is delivered before a connection stands, so nothing is left to send.
        drop(link.close(number));
        add(&self.counters.connects_failed, 1);
        self.drive(|_, machine, now| {
            let outcome = machine.handle_connect_failed(&link.authority, now);
            outcome.unwrap_or_else(|_| machine.poll(now))
        });
    }

    /// Connection `number` of `link` is gone. What was not sent waits for the next one. If the peer `misread` what was
    /// sent on a guess of its dialect, that goes before it, in the other dialect.
    pub(super) fn lost(self: &Arc<Self>, link: &Link, number: u64, misread: bool) {
        self.drive(|inner, machine, now| {
            let Some(unsent) = link.close(number) else { return machine.poll(now) };
            let guessed = link.take_unconfirmed(misread);
            if !guessed.is_empty() {
                add(&inner.counters.dialects_corrected, 1);
                tracing::info!(peer = %link.authority, dialect = ?link.dialect(), "the peer seems to speak the other dialect");
            }
            let outcome = machine.handle_disconnected(&link.authority, now);
            let mut outcome = outcome.unwrap_or_else(|_| machine.poll(now));
            let unsent = guessed.into_iter().chain(unsent).map(|outgoing| {
                let bytes = outgoing.bytes();
                (outgoing, bytes)
            });
            let returned = machine.handle_unsent(&link.authority, unsent.collect());
            outcome.dead_letters.extend(returned.dead_letters);
            outcome.connect.extend(returned.connect);
            outcome.wake_at = returned.wake_at;
            outcome
        });
        add(&self.counters.connections_lost, 1);
    }

    /// A peer wrote in `dialect`. What it misread goes out again.
    pub(super) fn note_dialect(&self, link: &Link, dialect: Dialect) {
        if link.note_dialect(dialect) {
            add(&self.counters.dialects_corrected, 1);
        }
    }

    /// Polls the machine at the times it asks for, until the node shuts down.
    pub(super) async fn run_timer(self: Arc<Self>) {
        let mut shutdown = self.shutdown.subscribe();
        loop {
            let wake_at = *lock(&self.wake_at);
            let due = async {
                match wake_at {
                    Some(at) => tokio::time::sleep_until(self.clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => self.drive(|_, machine, now| machine.poll(now)),
                () = self.timer.notified() => {}
                () = shut_down(&mut shutdown) => return,
            }
        }
    }

    /// Where an address stands, and how many messages wait for it.
    pub(super) fn association(&self, authority: &Authority) -> (AssociationState, usize) {
        let machine = lock(&self.machine);
        let waiting =
            machine.queued(authority).0 + self.link(authority.as_str()).map_or(0, |link| link.queued());
        (machine.state(authority), waiting)
    }

    pub(super) fn link(&self, address: &str) -> Option<Arc<Link>> {
        self.links().get(address).cloned()
    }

    pub(super) fn links(&self) -> RwLockReadGuard<'_, HashMap<Arc<str>, Arc<Link>>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn make_link(&self, address: &str) -> Result<Arc<Link>, LinkError> {
        let authority = Authority::new(address).ok().filter(|authority| authority.as_str() == address);
        let authority = authority.ok_or(LinkError::InvalidAddress)?;
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(address) {
            return Ok(Arc::clone(link));
        }
        if links.len() >= self.config.outbound.associations_max {
            links.retain(|_, link| !link.is_idle());
        }
        if links.len() >= self.config.outbound.associations_max {
            return Err(LinkError::TooMany);
        }
        let link = Arc::new(Link::new(authority, self.config.default_dialect));
        links.insert(Arc::from(address), Arc::clone(&link));
        Ok(link)
    }

    fn send_through_machine(self: &Arc<Self>, link: &Link, outgoing: Outgoing) -> Result<(), Unsent> {
        let mut refused = None;
        let bytes = outgoing.bytes();
        self.drive(|_, machine, _| {
            let mut outcome = machine.send(&link.authority, outgoing, bytes);
            // The only message that can be buried for another reason than making room is the one just sent.
            let is_refusal = |reason: &DeadLetterReason| *reason != DeadLetterReason::DroppedOldest;
            if let Some(position) = outcome.dead_letters.iter().position(|letter| is_refusal(&letter.reason))
            {
                refused = Some(outcome.dead_letters.swap_remove(position));
            }
            outcome
        });
        match refused {
            None => Ok(()),
            Some(DeadLetter { message, reason: DeadLetterReason::QueueFull, .. }) => {
                Err(Unsent::Full(message.message))
            }
            Some(DeadLetter { message: outgoing, reason, .. }) => {
                self.count_dead_letter(&outgoing.target, &outgoing.message, &reason);
                Err(Unsent::Failed(SendError::Refused { target: outgoing.target, reason }))
            }
        }
    }

    /// Asks the machine something and does what it wants.
    fn drive(
        self: &Arc<Self>,
        act: impl FnOnce(&Self, &mut OutboundPipeline<Outgoing>, TimerInstant) -> OutboundOutcome<Outgoing>,
    ) {
        let (dead_letters, events) = {
            let mut machine = lock(&self.machine);
            let outcome = act(self, &mut machine, self.clock.now());
            let mut dead_letters = outcome.dead_letters;
            let mut flowing: Vec<Arc<Link>> = Vec::new();
            for (authority, outgoing) in outcome.deliver {
                let last = flowing.last().filter(|link| link.authority == authority).cloned();
                let refused = match last.or_else(|| self.link(authority.as_str())) {
                    Some(link) => {
                        let refused = link.push(outgoing);
                        if flowing.last().is_none_or(|last| !Arc::ptr_eq(last, &link)) {
                            flowing.push(link);
                        }
                        refused
                    }
                    None => Some(outgoing),
                };
                dead_letters.extend(refused.map(|message| DeadLetter {
                    target: authority,
                    message,
                    reason: DeadLetterReason::Departed,
                }));
            }
            for event in &outcome.events {
                if let OutboundEvent::Connected(authority) = event {
                    flowing.extend(self.link(authority.as_str()));
                }
            }
            for link in flowing {
                let flows = machine.queued(&link.authority).0 == 0
                    && machine.state(&link.authority) == AssociationState::Connected;
                if flows {
                    link.set_direct(true);
                }
            }
            for authority in outcome.connect {
                if let Some(link) = self.link(authority.as_str()) {
                    let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
                    link.open(number);
                    self.spawn(client::run(Arc::clone(self), link, number));
                }
            }
            let mut wake_at = lock(&self.wake_at);
            if *wake_at != outcome.wake_at {
                *wake_at = outcome.wake_at;
                self.timer.notify_one();
            }
            (dead_letters, outcome.events)
        };
        for letter in dead_letters {
            self.bury(&letter.message.target, &letter.message.message, &letter.reason);
        }
        for event in events {
            self.association_changed(event);
        }
    }

    /// Ends the connection to `authority`, if there is one; what was not sent is buried.
    fn cut(&self, authority: &Authority, reason: &DeadLetterReason, outcome: &mut OutboundOutcome<Outgoing>) {
        let Some(link) = self.link(authority.as_str()) else { return };
        link.hang_up.notify_waiters();
        let unsent = link.close_any();
        outcome.dead_letters.extend(unsent.into_iter().map(|message| DeadLetter {
            target: authority.clone(),
            message,
            reason: reason.clone(),
        }));
    }

    fn association_changed(self: &Arc<Self>, event: OutboundEvent) {
        match &event {
            OutboundEvent::Disconnected(authority) => self.renew_watches(authority.as_str()),
            OutboundEvent::Unreachable { target, .. } => self.end_watches(target.as_str()),
            _ => {}
        }
        tracing::debug!(?event, "an association changed");
        self.publish(RemoteEvent::Association(event));
    }
}

/// Why there is no link to an address.
pub(super) enum LinkError {
    InvalidAddress,
    TooMany,
}
