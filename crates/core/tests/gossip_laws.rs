//! The laws that let gossip state converge whatever the network does to it.
//!
//! Entries are drawn from few members, keys and numbers, so that nearly every pair of them meets. A member never writes
//! two values under one number, so what an entry says follows from its place and number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::sample::Index;
use proptest::test_runner::{FileFailurePersistence, TestCaseError};
use proptest::{prop_assert, prop_assert_eq};
use synod_core::TimerInstant;
use synod_core::gossip::{
    GossipKey, GossipKeyValue, GossipMemberId, GossipRequest, GossipState, GossipStateStore, GossipValue,
    Gossiper, GossiperConfig, GossiperOutcome, RequestToken, SequenceNumber,
};

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn merging_states_commutes(a in lines(), b in lines()) {
        prop_assert_eq!(contents(&store(&[&a, &b])), contents(&store(&[&b, &a])));
    }

    #[test]
    fn merging_states_associates(a in lines(), b in lines(), c in lines()) {
        let (left, right) = (store(&[&a, &b]), store(&[&b, &c]));
        let mut grouped_left = left;
        deliver(&mut grouped_left, &state(&c));
        let mut grouped_right = store(&[&a]);
        for (member, entries) in right.members() {
            let mut page = GossipState::default();
            for (key, entry) in entries.iter() {
                page.insert(member, key.clone(), entry.clone());
            }
            deliver(&mut grouped_right, &page);
        }
        prop_assert_eq!(contents(&grouped_left), contents(&grouped_right));
    }

    #[test]
    fn merging_what_is_known_changes_nothing(a in lines(), b in lines()) {
        let once = store(&[&a, &b]);
        for known in [&a, &b] {
            let mut twice = once.clone();
            let merge = twice.merge_state(&state(known), TimerInstant::from_millis(9));
            prop_assert_eq!((merge.updates.len(), merge.refusals.len()), (0, 0));
            // Not even a time stamp moves: an echo is no sign of life.
            prop_assert_eq!(format!("{twice:?}"), format!("{once:?}"));
        }
    }

    #[test]
    fn an_entry_is_only_ever_replaced_by_a_later_one(pages in vec(lines(), 0..12)) {
        let mut store = store(&[]);
        for page in &pages {
            let before = contents(&store);
            let merge = store.merge_state(&state(page), TimerInstant::ZERO);
            let after = contents(&store);
            let mut changes = BTreeSet::new();
            for (place, number) in &after {
                match before.get(place) {
                    Some(old) if old == number => {}
                    Some(old) => {
                        prop_assert!(number > old);
                        changes.insert(place.clone());
                    }
                    None => drop(changes.insert(place.clone())),
                }
            }
            prop_assert!(before.keys().all(|place| after.contains_key(place)));
            // One update for each change, and none besides.
            let told: Vec<_> = merge.updates.iter().map(|update| (update.member.clone(), update.key.clone())).collect();
            prop_assert_eq!(told.len(), changes.len());
            prop_assert_eq!(told.into_iter().collect::<BTreeSet<_>>(), changes);
        }
    }

    #[test]
    fn any_order_and_any_doubling_of_the_same_news_gives_one_state(
        (news, shuffled) in vec(lines(), 0..8).prop_flat_map(|news| {
            let doubled: Vec<_> = news.iter().chain(&news).cloned().collect();
            (Just(news), Just(doubled).prop_shuffle())
        })
    ) {
        let straight = store(&news.iter().collect::<Vec<_>>());
        prop_assert_eq!(contents(&store(&shuffled.iter().collect::<Vec<_>>())), contents(&straight));
    }

    /// Whatever is lost, late or refused, a peer that the watermarks call up to date is up to date, and once messages
    /// arrive everybody has everything. The bounds of a message are so tight that nearly every delta is cut, and the
    /// nodes stand in a line, so that what the outer ones learn of each other they learn from the one between them.
    #[test]
    fn watermarks_never_skip_an_update(max_send in 2..4_usize, steps in vec(step(), 0..80)) {
        let mut cluster = Cluster::new(max_send);
        for step in steps {
            cluster.run(&step)?;
        }
        cluster.settle()?;
    }
}

/// What can happen in a line of three.
#[derive(Clone, Debug)]
enum Step {
    /// A node writes; a large value fills a good part of a message.
    Set { node: usize, key: usize, large: bool },
    /// A node's round is due.
    Round { node: usize },
    /// One of the requests on their way arrives, perhaps a second time, and its answer may get lost.
    Arrive { request: Index, answered: bool },
    /// One of them fails at the sender, whether or not it arrives after all.
    Fail { request: Index },
    /// Somebody outside, with gaps in its knowledge, tells a node a single entry of another one.
    Hearsay { to: usize, about: usize, key: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 0..NODES;
    prop_oneof![
        3 => (node(), 0..4_usize, any::<bool>()).prop_map(|(node, key, large)| Step::Set { node, key, large }),
        3 => node().prop_map(|node| Step::Round { node }),
        4 => (any::<Index>(), any::<bool>()).prop_map(|(request, answered)| Step::Arrive { request, answered }),
        1 => any::<Index>().prop_map(|request| Step::Fail { request }),
        2 => (node(), node(), 0..4_usize).prop_map(|(to, about, key)| Step::Hearsay { to, about, key }),
    ]
}

struct Cluster {
    nodes: Vec<Gossiper>,
    now: TimerInstant,
    in_flight: Vec<GossipRequest>,
    answered: BTreeSet<(GossipMemberId, RequestToken)>,
    writes: u32,
}

impl Cluster {
    fn new(max_send: usize) -> Self {
        // Nobody is blocked and nothing times out unless a step says so.
        let config = GossiperConfig {
            gossip_max_send: max_send,
            delta_bytes_max: 512 * 1024,
            heartbeat_expiration: Duration::from_secs(24 * 3600),
            gossip_request_timeout: Duration::from_secs(3600),
            ..GossiperConfig::default()
        };
        let ids: Vec<_> = (0..NODES).map(member).collect();
        let now = TimerInstant::ZERO;
        let start = |(seed, own): (u64, &GossipMemberId)| {
            let mut gossiper = Gossiper::new(config.clone()).expect("valid settings");
            gossiper.start(own.clone(), seed, now).expect("it starts");
            gossiper
        };
        let mut nodes: Vec<_> = (0..).zip(&ids).map(start).collect();
        for (node, gossiper) in nodes.iter_mut().enumerate() {
            let beside = &ids[node.saturating_sub(1)..=(node + 1).min(NODES - 1)];
            gossiper.set_members(beside, now).expect("few members");
        }
        Self { nodes, now, in_flight: Vec::new(), answered: BTreeSet::new(), writes: 0 }
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Set { node, key: number, large } => {
                self.writes += 1;
                let mut bytes = self.writes.to_be_bytes().to_vec();
                bytes.resize(if *large { 200 * 1024 } else { 8 }, 0);
                let value = GossipValue::new("test", &bytes).expect("it fits");
                self.nodes[*node].set_state(&key(*number), value, self.now).expect("room");
            }
            Step::Round { node } => {
                self.round(*node);
            }
            Step::Arrive { request, answered } => {
                if !self.in_flight.is_empty() {
                    let request = request.get(&self.in_flight).clone();
                    self.arrive(&request, *answered)?;
                }
            }
            Step::Fail { request } => {
                if !self.in_flight.is_empty() {
                    let request = request.get(&self.in_flight).clone();
                    let waited_for = self.answered.insert((request.from.clone(), request.token));
                    let failed = self.nodes[number(&request.from)].handle_failure(request.token, self.now);
                    prop_assert_eq!(failed.is_ok(), waited_for);
                }
            }
            Step::Hearsay { to, about, key: number } => {
                let mut state = GossipState::default();
                let entry = self.entry(*about, *about, *number);
                if let Some(entry) = entry {
                    state.insert(&member(*about), key(*number), entry);
                    self.nodes[*to].handle_request(&stranger(), &state, self.now).expect("it runs");
                }
            }
        }
        Ok(())
    }

    fn round(&mut self, node: usize) -> GossiperOutcome {
        self.now = self.now + Duration::from_millis(1);
        let heartbeat = GossipValue::new("test", b"").expect("it fits");
        let outcome = self.nodes[node].round(&heartbeat, self.now).expect("it runs");
        self.in_flight.extend(outcome.requests.iter().cloned());
        outcome
    }

    fn arrive(&mut self, request: &GossipRequest, answered: bool) -> Result<(), TestCaseError> {
        let target = &mut self.nodes[number(&request.target)];
        let outcome = target.handle_request(&request.from, &request.state, self.now).expect("it runs");
        prop_assert!(outcome.refusals.is_empty());
        prop_assert!(!request.state.is_empty());
        if answered && self.answered.insert((request.from.clone(), request.token)) {
            let sender = &mut self.nodes[number(&request.from)];
            sender
                .handle_response(request.token, outcome.answer.as_ref(), self.now)
                .expect("it is waited for");
        }
        Ok(())
    }

    /// From now on every request arrives, but answers carry nothing: what is missing has to come by the watermarks.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for request in self.in_flight.clone() {
            if self.answered.insert((request.from.clone(), request.token)) {
                self.nodes[number(&request.from)]
                    .handle_failure(request.token, self.now)
                    .expect("it is waited for");
            }
        }
        for _ in 0..40 {
            for node in 0..NODES {
                for request in self.round(node).requests {
                    let target = &mut self.nodes[number(&request.target)];
                    target.handle_request(&request.from, &request.state, self.now).expect("it runs");
                    self.nodes[node]
                        .handle_response(request.token, None, self.now)
                        .expect("it is waited for");
                }
            }
        }
        for about in 0..NODES {
            for key in 0..4 {
                let number = |node| self.entry(node, about, key).map(|entry| entry.sequence_number);
                let own = number(about);
                for node in 0..NODES {
                    prop_assert_eq!(number(node), own, "node {} about key {} of {}", node, key, about);
                }
            }
        }
        Ok(())
    }

    fn entry(&self, at: usize, about: usize, number: usize) -> Option<GossipKeyValue> {
        let about = member(about);
        let key = key(number);
        let mut entries = self.nodes[at].state(&key);
        entries.find(|(member, _)| **member == about).map(|(_, entry)| entry.clone())
    }
}

/// One line of somebody's notebook: the member, the key, and the number of the write.
fn lines() -> impl Strategy<Value = Vec<(usize, usize, i64)>> {
    vec((0..3_usize, 0..3_usize, 1..6_i64), 0..10)
}

fn state(lines: &[(usize, usize, i64)]) -> GossipState {
    let mut state = GossipState::default();
    for (number, name, sequence) in lines {
        let value =
            GossipValue::new("test", format!("{number}/{name}/{sequence}").as_bytes()).expect("it fits");
        let sequence_number = SequenceNumber::new(*sequence).expect("a sequence number");
        let entry = GossipKeyValue { value, sequence_number, local_timestamp: TimerInstant::ZERO };
        let held = state.member(&member(*number)).and_then(|entries| entries.get(&key(*name)));
        if held.is_none_or(|held| held.sequence_number < sequence_number) {
            state.insert(&member(*number), key(*name), entry);
        }
    }
    state
}

fn store(pages: &[&Vec<(usize, usize, i64)>]) -> GossipStateStore {
    let mut store = GossipStateStore::new(stranger(), 100, 1024 * 1024);
    for page in pages {
        deliver(&mut store, &state(page));
    }
    store
}

fn deliver(store: &mut GossipStateStore, state: &GossipState) {
    let merge = store.merge_state(state, TimerInstant::ZERO);
    assert!(merge.refusals.is_empty(), "there is room for all");
}

/// All entries with their numbers and values.
fn contents(store: &GossipStateStore) -> BTreeMap<(GossipMemberId, GossipKey), (SequenceNumber, Vec<u8>)> {
    let mut contents = BTreeMap::new();
    for (member, entries) in store.members() {
        for (key, entry) in entries.iter() {
            let what = (entry.sequence_number, entry.value.bytes().to_vec());
            contents.insert((member.clone(), key.clone()), what);
        }
    }
    contents
}

fn member(number: usize) -> GossipMemberId {
    GossipMemberId::new(&format!("m{number}")).expect("an id")
}

fn number(member: &GossipMemberId) -> usize {
    member.as_str()[1..].parse().expect("a number")
}

fn stranger() -> GossipMemberId {
    GossipMemberId::new("stranger").expect("an id")
}

fn key(number: usize) -> GossipKey {
    GossipKey::new(&format!("k{number}")).expect("a key")
}

const NODES: usize = 3;
