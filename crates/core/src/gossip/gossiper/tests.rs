//! The gossiper through its public calls. The letters and numbers name the acceptance criteria of the design.

mod consensus;
mod exchange;
mod haste;
mod life;
mod maps;
mod network;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::*;
use crate::gossip::{ConsensusEvent, GossipRequest, GossiperEvent, SequenceNumber};

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

/// Who a state speaks of, and how many entries of each it has.
fn speaks_of(state: &GossipState) -> Vec<(String, usize)> {
    state.members().map(|(member, entries)| (format!("{member}"), entries.len())).collect()
}

/// A gossiper and its clock.
struct Subject {
    gossiper: Gossiper,
    now: TimerInstant,
}

impl Subject {
    /// Running as `name`, in a cluster of itself and `others`.
    fn with_config(name: &str, others: &[&str], config: GossiperConfig) -> Self {
        let config = GossiperConfig { interval_jitter: 0.0, ..config };
        let mut gossiper = Gossiper::new(config).expect("valid settings");
        let now = TimerInstant::from_millis(1_000);
        gossiper.start(id(name), 7, now).expect("it starts");
        let mut subject = Self { gossiper, now };
        subject.members(others);
        subject
    }

    fn new(name: &str, others: &[&str]) -> Self {
        Self::with_config(name, others, GossiperConfig::default())
    }

    fn members(&mut self, others: &[&str]) -> GossiperOutcome {
        let others: Vec<_> = others.iter().map(|name| id(name)).collect();
        self.gossiper.set_members(&others, self.now).expect("few members")
    }

    fn set(&mut self, name: &str, text: &str) -> GossiperOutcome {
        self.gossiper.set_state(&key(name), value(text), self.now).expect("room")
    }

    fn hear(&mut self, from: &str, entries: &[(&str, &str, &str, i64)]) -> GossiperOutcome {
        self.gossiper.handle_request(&id(from), &said(entries), self.now).expect("it runs")
    }

    /// Lets one interval pass and runs the round that is due then.
    fn round(&mut self) -> GossiperOutcome {
        self.now = self.now + Duration::from_millis(500);
        self.gossiper.round(&value("statistics"), self.now).expect("it runs")
    }

    fn rounds(&mut self, count: usize) -> Vec<GossiperOutcome> {
        (0..count).map(|_| self.round()).collect()
    }

    /// Answers every request of an outcome with nothing.
    fn answer(&mut self, outcome: &GossiperOutcome) {
        for request in &outcome.requests {
            self.gossiper.handle_response(request.token, None, self.now).expect("it is waited for");
        }
    }

    fn blocked(&self) -> Vec<String> {
        self.gossiper.blocked_members().map(|(member, _)| format!("{member}")).collect()
    }

    fn values(&self, name: &str) -> Vec<(String, String)> {
        let text = |entry: &GossipKeyValue| String::from_utf8_lossy(entry.value.bytes()).into_owned();
        self.gossiper.state(&key(name)).map(|(member, entry)| (format!("{member}"), text(entry))).collect()
    }
}
