//! The gossiper through its public calls, in virtual time. The letters and numbers name the acceptance criteria of the
//! design.

mod cluster;
mod consensus;
mod exchange;
mod life;
mod rounds;
mod state;
mod topology;
mod with_membership;

use std::collections::VecDeque;
use std::sync::Mutex;

use synod_core::Authority;
use synod_core::gossip::{GossipState, GossiperEvent, SequenceNumber};
use synod_core::membership::ClusterEvent;
use synod_core::roster::{PeerRuntime, RosterMember, RosterUpdate};
use synod_core::time::TimerInstant;
use tokio::time::Instant;

use super::*;
use crate::clock::MonotonicClock;
use crate::event_stream::{EventStream, Subscription};
use crate::lock;
use crate::testing::{authority, drain, soon, until};

fn id(name: &str) -> GossipMemberId {
    GossipMemberId::new(name).expect("an id")
}

fn key(name: &str) -> GossipKey {
    GossipKey::new(name).expect("a key")
}

fn map_key(name: &str) -> GossipMapKey {
    GossipMapKey::new(name).expect("a map key")
}

fn value(text: &str) -> GossipValue {
    GossipValue::new("test", text.as_bytes()).expect("a small value")
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

async fn pass(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// What a peer would send.
fn said(entries: &[(&str, &str, &str, i64)]) -> GossipState {
    let mut state = GossipState::default();
    for (member, name, text, sequence) in entries {
        let sequence_number = SequenceNumber::new(*sequence).expect("a sequence number");
        let entry =
            GossipKeyValue { value: value(text), sequence_number, local_timestamp: TimerInstant::ZERO };
        state.insert(&id(member), key(name), entry);
    }
    state
}

/// A member of the roster, at an address of the same name.
fn peer(name: &str) -> RosterMember {
    let host = name.split('#').next().expect("a name");
    let runtime = PeerRuntime::Synod;
    RosterMember { id: id(name), authority: authority(host), kinds: Vec::new(), runtime }
}

fn publish_roster(stream: &EventStream, members: &[&str]) {
    let members: Vec<_> = members.iter().map(|name| peer(name)).collect();
    let update = RosterUpdate { hash: 0, members, joined: Vec::new(), left: Vec::new() };
    stream.publish(ClusterEvent::RosterUpdated { update, observed_at: TimerInstant::ZERO });
}

/// Without jitter, for tests that count rounds.
fn steady() -> TokioGossiperConfig {
    let mut config = TokioGossiperConfig { seed: Some(7), ..TokioGossiperConfig::default() };
    config.gossip.interval_jitter = 0.0;
    config
}

/// A node and what can be seen of it.
struct Node {
    gossiper: TokioGossiper,
    stream: EventStream,
    events: Subscription,
}

impl Node {
    /// Not started.
    fn new(config: TokioGossiperConfig, carrier: impl GossipCarrier) -> Self {
        let stream = EventStream::default();
        let events = stream.subscribe();
        let gossiper = TokioGossiper::new(config, stream.clone(), MonotonicClock::start(), carrier);
        Self { gossiper: gossiper.expect("valid settings"), stream, events }
    }

    /// Started as `name`, with `members` as the roster.
    async fn started(
        config: TokioGossiperConfig,
        carrier: impl GossipCarrier,
        name: &str,
        members: &[&str],
    ) -> Self {
        let node = Self::new(config, carrier);
        publish_roster(&node.stream, members);
        node.gossiper.start(id(name)).await.expect("it starts");
        node
    }

    /// Started as `name` at the address of that name on `network`.
    async fn on(network: &InMemoryGossipNetwork, name: &str, members: &[&str]) -> Self {
        Self::on_with(network, name, members, TokioGossiperConfig::default()).await
    }

    async fn on_with(
        network: &InMemoryGossipNetwork,
        name: &str,
        members: &[&str],
        config: TokioGossiperConfig,
    ) -> Self {
        let at = peer(name).authority;
        let node = Self::new(config, network.carrier(&at, "gossip"));
        network.attach(&at, &node.gossiper);
        publish_roster(&node.stream, members);
        node.gossiper.start(id(name)).await.expect("it starts");
        node
    }

    async fn set(&self, name: &str, text: &str) {
        self.gossiper.set_state_request(key(name), value(text)).await.expect("room");
    }

    async fn hear(&self, from: &str, entries: &[(&str, &str, &str, i64)]) -> Option<GossipState> {
        self.gossiper.handle_request(id(from), said(entries)).await.expect("it runs")
    }

    /// What members say under `name`, in member order.
    fn values(&self, name: &str) -> Vec<(String, String)> {
        let text = |entry: &GossipKeyValue| String::from_utf8_lossy(entry.value.bytes()).into_owned();
        let state = self.gossiper.get_state(&key(name));
        state.iter().map(|(member, entry)| (member.to_string(), text(entry))).collect()
    }

    fn blocked(&self) -> Vec<String> {
        self.gossiper.blocked_members().keys().map(ToString::to_string).collect()
    }

    /// The updates that were published since the last look, as member, key and text.
    fn updates(&mut self) -> Vec<(String, String, String)> {
        let events = drain(&mut self.events);
        let updates = events.iter().filter_map(|event| match &**event {
            ClusterEvent::GossipStateUpdated { update, .. } => Some((
                update.member.to_string(),
                update.key.to_string(),
                String::from_utf8_lossy(update.value.bytes()).into_owned(),
            )),
            _ => None,
        });
        updates.collect()
    }

    /// What the gossiper itself said since the last look.
    fn gossiper_events(&mut self) -> Vec<GossiperEvent> {
        let events = drain(&mut self.events);
        let ours = events.iter().filter_map(|event| match &**event {
            ClusterEvent::Gossiper { event, .. } => Some(event.clone()),
            _ => None,
        });
        ours.collect()
    }
}

/// What a scripted peer does with a request.
#[derive(Clone, Debug, Default)]
enum Reaction {
    #[default]
    Acknowledge,
    Answer(GossipState),
    Fail,
    Ignore,
    AcknowledgeAfter(Duration),
}

/// One request that set out.
#[derive(Clone, Debug)]
struct Sent {
    at: Instant,
    target: String,
    state: GossipState,
}

impl Sent {
    /// The entry that it carries of `member` under `name`.
    fn text(&self, member: &str, name: &str) -> Option<String> {
        let entry = self.state.member(&id(member))?.get(&key(name))?;
        Some(String::from_utf8_lossy(entry.value.bytes()).into_owned())
    }
}

/// A carrier that writes down what it is given, and reacts as it is told: first by script, then by habit.
#[derive(Clone, Default)]
struct Notebook {
    inner: Arc<Mutex<Notes>>,
}

#[derive(Default)]
struct Notes {
    sent: Vec<Sent>,
    script: VecDeque<Reaction>,
    habit: BTreeMap<Authority, Reaction>,
}

impl Notebook {
    fn expect_next(&self, reactions: impl IntoIterator<Item = Reaction>) {
        lock(&self.inner).script.extend(reactions);
    }

    fn habit(&self, name: &str, reaction: Reaction) {
        lock(&self.inner).habit.insert(authority(name), reaction);
    }

    fn sent(&self) -> Vec<Sent> {
        lock(&self.inner).sent.clone()
    }

    fn take(&self) -> Vec<Sent> {
        std::mem::take(&mut lock(&self.inner).sent)
    }
}

impl GossipCarrier for Notebook {
    async fn exchange(
        &self,
        target: RosterMember,
        state: GossipState,
        _: Duration,
    ) -> Result<Option<GossipState>, GossipCarrierError> {
        let reaction = {
            let mut notes = lock(&self.inner);
            notes.sent.push(Sent { at: Instant::now(), target: target.id.to_string(), state });
            let habit = notes.habit.get(&target.authority).cloned();
            notes.script.pop_front().or(habit).unwrap_or_default()
        };
        match reaction {
            Reaction::Acknowledge => Ok(None),
            Reaction::Answer(state) => Ok(Some(state)),
            Reaction::Fail => Err(GossipCarrierError::Unreachable { target: target.authority }),
            Reaction::Ignore => std::future::pending().await,
            Reaction::AcknowledgeAfter(delay) => {
                tokio::time::sleep(delay).await;
                Ok(None)
            }
        }
    }
}
