//! A road for gossip inside one process, over the real wire format.
//!
//! Every request and every answer is written to bytes and read again, as between processes. Roads can be cut, slow, or
//! lose what they carry; all of it silently, so that only a timeout tells.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_core::Authority;
use synod_core::gossip::GossipState;
use synod_core::roster::RosterMember;
use synod_wire::cluster::{self, GossipRequest, GossipResponse};
use synod_wire::payload::{self, Payload};

use super::carrier::{GossipCarrier, GossipCarrierError};
use super::codec;
use super::tokio_gossiper::{TokioGossiper, WeakGossiper};
use crate::lock;

/// A network that connects the gossipers of one process. Clones are the same network.
#[derive(Clone, Default)]
pub struct InMemoryGossipNetwork {
    roads: Arc<Mutex<Roads>>,
}

/// What the roads of a network do to what they carry.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoadConditions {
    /// How long one way takes. Default none.
    pub delay: Duration,
    /// The share of requests that get lost, 0 to 1. Default 0.
    pub request_loss: f64,
    /// The share of answers that get lost, after the request was handled, 0 to 1. Default 0.
    pub answer_loss: f64,
}

impl InMemoryGossipNetwork {
    /// A network whose losses follow from `seed`.
    #[must_use]
    pub fn with_seed(seed: u64) -> Self {
        let roads = Roads { rng: fastrand::Rng::with_seed(seed), ..Roads::default() };
        Self { roads: Arc::new(Mutex::new(roads)) }
    }

    /// The carrier of the node at `authority`, whose gossip goes to actors of the name `actor`.
    #[must_use]
    pub fn carrier(&self, authority: &Authority, actor: &str) -> InMemoryGossipCarrier {
        InMemoryGossipCarrier { network: self.clone(), authority: authority.clone(), actor: actor.into() }
    }

    /// Lets `gossiper` take requests at `authority`, instead of whoever did. The network does not keep it alive.
    pub fn attach(&self, authority: &Authority, gossiper: &TokioGossiper) {
        lock(&self.roads).gossipers.insert(authority.clone(), gossiper.downgrade());
    }

    /// Takes the gossiper at `authority` off the network: requests to it fail at once.
    pub fn detach(&self, authority: &Authority) {
        lock(&self.roads).gossipers.remove(authority);
    }

    /// Cuts the road between two addresses, in both directions.
    pub fn disconnect(&self, a: &Authority, b: &Authority) {
        lock(&self.roads).cuts.insert(road(a, b));
    }

    /// Mends the road between two addresses. Harmless when it was not cut.
    pub fn reconnect(&self, a: &Authority, b: &Authority) {
        lock(&self.roads).cuts.remove(&road(a, b));
    }

    /// Changes what all roads do, for everything that sets out from now on.
    pub fn set_conditions(&self, conditions: RoadConditions) {
        lock(&self.roads).conditions = conditions;
    }

    /// How many requests have set out towards `authority`, those that got lost included.
    #[must_use]
    pub fn requests_to(&self, authority: &Authority) -> u64 {
        lock(&self.roads).requests.get(authority).copied().unwrap_or_default()
    }

    fn set_out(&self, from: &Authority, target: &Authority) -> Trip {
        let mut roads = lock(&self.roads);
        *roads.requests.entry(target.clone()).or_default() += 1;
        let RoadConditions { delay, request_loss, answer_loss } = roads.conditions;
        let is_cut = roads.cuts.contains(&road(from, target));
        Trip {
            delay,
            request_lost: is_cut || roads.rng.f64() < request_loss,
            answer_lost: roads.rng.f64() < answer_loss,
        }
    }

    fn gossiper(&self, authority: &Authority) -> Option<TokioGossiper> {
        lock(&self.roads).gossipers.get(authority)?.upgrade()
    }

    fn is_cut(&self, a: &Authority, b: &Authority) -> bool {
        lock(&self.roads).cuts.contains(&road(a, b))
    }
}

impl fmt::Debug for InMemoryGossipNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roads = lock(&self.roads);
        f.debug_struct("InMemoryGossipNetwork")
            .field("attached", &roads.gossipers.keys().collect::<Vec<_>>())
            .field("cuts", &roads.cuts)
            .field("conditions", &roads.conditions)
            .finish_non_exhaustive()
    }
}

/// One node's end of an [`InMemoryGossipNetwork`].
#[derive(Clone, Debug)]
pub struct InMemoryGossipCarrier {
    network: InMemoryGossipNetwork,
    authority: Authority,
    actor: String,
}

impl GossipCarrier for InMemoryGossipCarrier {
    async fn exchange(
        &self,
        target: RosterMember,
        state: GossipState,
        _timeout: Duration,
    ) -> Result<Option<GossipState>, GossipCarrierError> {
        let RosterMember { id, authority, .. } = target;
        let unreadable = |error: payload::PayloadError| GossipCarrierError::Unreadable {
            target: authority.clone(),
            reason: error.to_string(),
        };
        let request: GossipRequest =
            over_the_wire(&codec::encode_request(&id, &state)).map_err(unreadable)?;
        let trip = self.network.set_out(&self.authority, &authority);
        tokio::time::sleep(trip.delay).await;
        if trip.request_lost {
            return std::future::pending().await;
        }
        let gossiper = self.network.gossiper(&authority);
        let gossiper = gossiper.filter(|gossiper| gossiper.config().gossip_actor_name == self.actor);
        let Some(gossiper) = gossiper else {
            return Err(GossipCarrierError::Unreachable { target: authority });
        };
        let answer = gossiper.handle_wire_request(&self.authority, request).await;
        let answer = answer.map_err(|error| GossipCarrierError::Refused {
            target: authority.clone(),
            reason: error.to_string(),
        })?;
        tokio::time::sleep(trip.delay).await;
        match answer {
            // Silence is how a peer says that it did not take everything.
            Some(answer) if !trip.answer_lost && !self.network.is_cut(&self.authority, &authority) => {
                let answer: GossipResponse = over_the_wire(&answer).map_err(unreadable)?;
                Ok(answer.state.map(|state| self.read(state)))
            }
            _ => std::future::pending().await,
        }
    }
}

impl InMemoryGossipCarrier {
    /// Reads an answer; what cannot be read counts for the gossiper that asked.
    fn read(&self, state: cluster::GossipState) -> GossipState {
        let decoded = codec::decode_state(state);
        if let Some(asking) = self.network.gossiper(&self.authority) {
            asking.counters().note_undecodable(decoded.undecodable);
        }
        decoded.state
    }
}

#[derive(Default)]
struct Roads {
    gossipers: BTreeMap<Authority, WeakGossiper>,
    /// Pairs with the smaller address first.
    cuts: BTreeSet<(Authority, Authority)>,
    conditions: RoadConditions,
    requests: BTreeMap<Authority, u64>,
    rng: fastrand::Rng,
}

/// What will happen to one request.
struct Trip {
    delay: Duration,
    request_lost: bool,
    answer_lost: bool,
}

fn over_the_wire<M: Payload>(message: &M) -> Result<M, payload::PayloadError> {
    payload::decode(payload::encode(message)?)
}

fn road(a: &Authority, b: &Authority) -> (Authority, Authority) {
    if a <= b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) }
}
