//! Gossip and membership as ordinary messages between nodes, on the control lane.
//!
//! Gossip state travels as protoactor-go sends it, to the actor `gossip`. Membership messages travel between synod nodes
//! only, to an actor of their own; a Go node never sees them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_core::Authority;
use synod_core::gossip::GossipState;
use synod_core::membership::{GossipMessage, GossipOutbound, QuarantineEvent, QuarantineReason};
use synod_core::outbound::DeadLetterReason;
use synod_core::roster::RosterMember;
use synod_wire::cluster::{GossipRequest, GossipResponse};
use synod_wire::{names, payload};
use tokio::sync::{Notify, Semaphore};

use crate::gossiper::{GossipCarrier, GossipCarrierError, TokioGossiper, codec as gossip_codec};
use crate::lock;
use crate::membership::codec;
use crate::remote::{
    Lane, Letter, Message, Pid, Process, ProcessEnded, Remote, RequestError, SendError, SystemMessage,
    TypeName,
};
use crate::transport::{GossipTransport, GossipTransportError};

/// The road of membership messages. Dropping it closes the letter box.
#[derive(Debug)]
pub struct RemoteGossipTransport {
    remote: Remote,
    letters: Arc<MembershipLetters>,
    type_name: TypeName,
    quarantine: BTreeSet<Authority>,
}

impl RemoteGossipTransport {
    /// Opens the letter box on `remote`.
    ///
    /// # Errors
    /// Another one is open.
    pub fn open(remote: Remote) -> Result<Self, crate::remote::RegisterError> {
        let letters =
            MembershipLetters { remote: remote.clone(), arrived: Mutex::default(), ready: Arc::default() };
        let letters = Arc::new(letters);
        remote.register(ACTOR_MEMBERSHIP, Arc::clone(&letters) as Arc<dyn Process>)?;
        let type_name = TypeName::from(names::MEMBERSHIP_MESSAGE);
        Ok(Self { remote, letters, type_name, quarantine: BTreeSet::new() })
    }
}

impl GossipTransport for RemoteGossipTransport {
    fn send(&mut self, outbound: GossipOutbound) -> Result<(), GossipTransportError> {
        let GossipOutbound { target, message } = outbound;
        if self.quarantine.contains(&target) {
            return Err(GossipTransportError::Quarantined { target });
        }
        let bytes = match codec::encode(&message) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%target, %error, "a membership message could not be written");
                return Err(GossipTransportError::Unreachable { target });
            }
        };
        let pid = Pid::new(target.as_str(), ACTOR_MEMBERSHIP);
        match self.remote.send_on(Lane::Control, &pid, Message::raw(self.type_name.clone(), bytes)) {
            Ok(()) => Ok(()),
            Err(SendError::Refused { reason: DeadLetterReason::QueueFull, .. }) => {
                Err(GossipTransportError::QueueFull { target })
            }
            Err(SendError::Refused { reason: DeadLetterReason::Quarantined(_), .. }) => {
                Err(GossipTransportError::Quarantined { target })
            }
            Err(_) => Err(GossipTransportError::Unreachable { target }),
        }
    }

    fn poll_inbound(&mut self) -> Vec<GossipMessage> {
        let mut messages: Vec<_> = lock(&self.letters.arrived).drain(..).collect();
        messages.retain(|message| !self.quarantine.contains(message.sender.authority()));
        messages
    }

    fn inbound_ready(&self) -> Arc<Notify> {
        Arc::clone(&self.letters.ready)
    }

    fn apply_quarantine(&mut self, event: &QuarantineEvent) {
        match event {
            // A verdict concerns one life; the address may be home to the next one.
            QuarantineEvent::Quarantined { reason: QuarantineReason::Dead(_), .. } => {}
            QuarantineEvent::Quarantined { authority, reason, .. } => {
                if self.quarantine.insert(authority.clone()) {
                    // Membership says when it ends.
                    self.remote.quarantine(authority, &reason.to_string(), None);
                }
            }
            QuarantineEvent::Cleared { authority } => {
                if self.quarantine.remove(authority) {
                    self.remote.release(authority);
                }
            }
        }
    }
}

impl Drop for RemoteGossipTransport {
    fn drop(&mut self) {
        self.remote.unregister(ACTOR_MEMBERSHIP);
    }
}

/// Where membership messages of peers arrive.
#[derive(Debug)]
struct MembershipLetters {
    remote: Remote,
    arrived: Mutex<VecDeque<GossipMessage>>,
    ready: Arc<Notify>,
}

impl Process for MembershipLetters {
    fn deliver(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        for Letter { message, .. } in letters.drain(..) {
            if message.type_name.as_str() != names::MEMBERSHIP_MESSAGE {
                self.remote.refuse_message("a peer", &format!("a {} for the membership", message.type_name));
                continue;
            }
            match codec::decode(message.payload) {
                Ok(message) => {
                    let mut arrived = lock(&self.arrived);
                    // Whoever is slow hears the newest: every message says what matters again.
                    if arrived.len() == LETTERS_MAX {
                        arrived.pop_front();
                    }
                    arrived.push_back(message);
                }
                Err(error) => self.remote.refuse_message("a peer", &error.to_string()),
            }
        }
        self.ready.notify_one();
        Ok(())
    }

    fn tell(&self, _: SystemMessage) -> Result<(), ProcessEnded> {
        Ok(())
    }

    /// Membership knows itself whose word still counts.
    fn hears_blocked(&self) -> bool {
        true
    }
}

/// The road of gossip state.
#[derive(Clone, Debug)]
pub struct RemoteGossipCarrier {
    remote: Remote,
    actor_name: Arc<str>,
}

impl RemoteGossipCarrier {
    /// Takes gossip to the actors `actor_name` of other nodes.
    #[must_use]
    pub fn new(remote: Remote, actor_name: &str) -> Self {
        Self { remote, actor_name: Arc::from(actor_name) }
    }
}

impl GossipCarrier for RemoteGossipCarrier {
    async fn exchange(
        &self,
        target: RosterMember,
        state: GossipState,
        timeout: Duration,
    ) -> Result<Option<GossipState>, GossipCarrierError> {
        let RosterMember { id, authority, .. } = target;
        let unreadable =
            |reason: String| GossipCarrierError::Unreadable { target: authority.clone(), reason };
        let request = gossip_codec::encode_request(&id, &state);
        let message = Message::protocol(&request).map_err(|error| unreadable(error.to_string()))?;
        let pid = Pid::new(authority.as_str(), Arc::clone(&self.actor_name));
        let answer = match self.remote.request_on(Lane::Control, &pid, message, timeout).await {
            Ok(answer) => answer,
            Err(RequestError::Timeout { .. }) => {
                return Err(GossipCarrierError::TimedOut { target: authority, timeout });
            }
            Err(_) => return Err(GossipCarrierError::Unreachable { target: authority }),
        };
        if !answer.is::<GossipResponse>() {
            return Err(unreadable(format!("it was answered with a {}", answer.type_name)));
        }
        let response: GossipResponse =
            payload::decode(answer.payload).map_err(|error| unreadable(error.to_string()))?;
        Ok(response.state.map(|state| gossip_codec::decode_state(state).state))
    }
}

/// Hands the gossip of peers to a gossiper.
#[derive(Debug)]
pub(super) struct GossipLetters {
    remote: Remote,
    gossiper: TokioGossiper,
    places: Arc<Semaphore>,
}

impl GossipLetters {
    pub(super) fn new(remote: Remote, gossiper: TokioGossiper) -> Self {
        Self { remote, gossiper, places: Arc::new(Semaphore::new(REQUESTS_MAX)) }
    }

    fn take(&self, message: Message) {
        let Some(sender) = message.sender.clone() else {
            return self.remote.refuse_message("a peer", "gossip without a sender");
        };
        let peer = sender.address().to_owned();
        if !message.is::<GossipRequest>() {
            return self.remote.refuse_message(&peer, &format!("a {} for the gossip", message.type_name));
        }
        let authority = match Authority::new(&peer) {
            Ok(authority) => authority,
            Err(error) => return self.remote.refuse_message(&peer, &error.to_string()),
        };
        let request = match payload::decode::<GossipRequest>(message.payload) {
            Ok(request) => request,
            Err(error) => return self.remote.refuse_message(&peer, &error.to_string()),
        };
        // A peer that is not answered tells it all again.
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return self.remote.refuse_message(&peer, "more gossip than can be taken at a time");
        };
        let (remote, gossiper) = (self.remote.clone(), self.gossiper.clone());
        tokio::spawn(async move {
            let _place = place;
            match gossiper.handle_wire_request(&authority, request).await {
                Ok(Some(response)) => match Message::protocol(&response) {
                    Ok(answer) => drop(remote.send_on(Lane::Control, &sender, answer)),
                    Err(error) => tracing::error!(%error, "an answer to gossip could not be written"),
                },
                Ok(None) => {}
                Err(error) => tracing::debug!(%authority, %error, "gossip was refused"),
            }
        });
    }
}

impl Process for GossipLetters {
    fn deliver(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        for letter in letters.drain(..) {
            self.take(letter.message);
        }
        Ok(())
    }

    fn tell(&self, _: SystemMessage) -> Result<(), ProcessEnded> {
        Ok(())
    }
}

/// Takes membership messages on every synod node.
const ACTOR_MEMBERSHIP: &str = "synod-membership";
/// Most membership messages that wait to be read.
const LETTERS_MAX: usize = 4096;
/// Most gossip requests that are worked on at a time.
const REQUESTS_MAX: usize = 256;
