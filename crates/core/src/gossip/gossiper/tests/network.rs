//! Several gossipers over a network that loses, delays and reorders.

use super::*;
use alloc::collections::BTreeMap;

/// Gossipers on one clock, and what is on its way between them.
pub(super) struct Network {
    nodes: BTreeMap<GossipMemberId, Gossiper>,
    pub(super) now: TimerInstant,
    /// Which part of all messages is lost, requests and answers alike.
    pub(super) loss: f64,
    /// Members between which nothing passes.
    cut: Option<Vec<GossipMemberId>>,
    delayed: Vec<(TimerInstant, Message)>,
    rng: fastrand::Rng,
    events: Vec<(GossipMemberId, GossiperEvent)>,
}

enum Message {
    Request(GossipRequest),
    Answer { to: GossipMemberId, request: GossipRequest, state: GossipState },
}

impl Network {
    pub(super) fn new(size: usize, seed: u64) -> Self {
        let ids: Vec<_> = (0..size).map(|number| id(&format!("n{number:02}"))).collect();
        let now = TimerInstant::from_millis(1_000);
        let start = |(number, own): (usize, &GossipMemberId)| {
            let mut gossiper = Gossiper::new(GossiperConfig::default()).expect("valid settings");
            gossiper.start(own.clone(), seed + number as u64, now).expect("it starts");
            gossiper.set_members(&ids, now).expect("few members");
            (own.clone(), gossiper)
        };
        let nodes = ids.iter().enumerate().map(start).collect();
        let rng = fastrand::Rng::with_seed(seed);
        Self { nodes, now, loss: 0.0, cut: None, delayed: Vec::new(), rng, events: Vec::new() }
    }

    pub(super) fn gossiper(&mut self, node: usize) -> &mut Gossiper {
        self.nodes.values_mut().nth(node).expect("so many nodes")
    }

    /// Lets `rounds` intervals pass, in steps shorter than any delay.
    pub(super) fn run(&mut self, rounds: usize) {
        for _ in 0..rounds * 10 {
            self.now = self.now + Duration::from_millis(50);
            for own in self.nodes.keys().cloned().collect::<Vec<_>>() {
                let outcome = self.with(&own, Gossiper::poll);
                if outcome.is_ok_and(|outcome| outcome.round_due) {
                    self.with(&own, |gossiper, now| gossiper.round(&value(""), now)).expect("it runs");
                }
            }
            while let Some(due) = self.delayed.iter().position(|(at, _)| *at <= self.now) {
                let (_, message) = self.delayed.swap_remove(due);
                self.deliver(message);
            }
        }
    }

    fn with(
        &mut self,
        own: &GossipMemberId,
        call: impl FnOnce(&mut Gossiper, TimerInstant) -> Outcome,
    ) -> Outcome {
        let outcome = call(self.nodes.get_mut(own).expect("a node"), self.now)?;
        self.events.extend(outcome.events.iter().map(|event| (own.clone(), event.clone())));
        for request in &outcome.requests {
            self.send(Message::Request(request.clone()));
        }
        Ok(outcome)
    }

    fn send(&mut self, message: Message) {
        let (from, to) = match &message {
            Message::Request(request) => (&request.from, &request.target),
            Message::Answer { to, request, .. } => (&request.target, to),
        };
        let severed = self.cut.as_ref().is_some_and(|side| side.contains(from) != side.contains(to));
        if severed || self.rng.f64() < self.loss {
            return;
        }
        let delay = Duration::from_millis(self.rng.u64(0..400));
        self.delayed.push((self.now + delay, message));
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Request(request) => {
                if !self.nodes.contains_key(&request.target) {
                    return;
                }
                let target = request.target.clone();
                let outcome = self.with(&target, |gossiper, now| {
                    gossiper.handle_request(&request.from, &request.state, now)
                });
                if let Ok(GossiperOutcome { answer: Some(state), .. }) = outcome {
                    self.send(Message::Answer { to: request.from.clone(), request, state });
                }
            }
            Message::Answer { to, request, state } => {
                if self.nodes.contains_key(&to) {
                    // An answer after the timeout is refused, and should be.
                    drop(self.with(&to, |gossiper, now| {
                        gossiper.handle_response(request.token, Some(&state), now)
                    }));
                }
            }
        }
    }

    /// What every node holds under a key.
    fn views(&self, name: &str) -> Vec<Vec<(GossipMemberId, GossipValue)>> {
        let view = |gossiper: &Gossiper| {
            gossiper.state(&key(name)).map(|(member, entry)| (member.clone(), entry.value.clone())).collect()
        };
        self.nodes.values().map(view).collect()
    }

    fn blocks(&self) -> usize {
        self.nodes.values().map(|gossiper| gossiper.blocked_members().count()).sum()
    }
}

#[test]
fn all_nodes_end_with_all_values_although_a_third_of_the_messages_is_lost() {
    for seed in 0..5 {
        let mut network = Network::new(12, seed);
        network.loss = 0.33;
        let now = network.now;
        for node in 0..12 {
            network.gossiper(node).set_state(&key("k"), value(&format!("of {node}")), now).expect("room");
        }
        network.run(30);
        let views = network.views("k");
        assert!(views.iter().all(|view| view.len() == 12 && *view == views[0]), "seed {seed}");
        assert_eq!(network.blocks(), 0, "seed {seed}: lost messages are no silence");
    }
}

/// Three nodes, of which one leaves: the others know within a few rounds, through each other if need be.
#[test]
fn a_node_that_leaves_is_blocked_everywhere_long_before_it_would_expire() {
    let mut network = Network::new(10, 3);
    network.run(10);
    let leaver = id("n04");
    let outcome = network.with(&leaver, Gossiper::stop).expect("it stops");
    assert_eq!(outcome.requests.len(), 3, "three are told, six are not");
    network.nodes.remove(&leaver);
    network.run(8);
    assert_eq!(network.blocks(), 9);
    assert!(network.views("heartbeat").iter().all(|view| view.iter().all(|(member, _)| *member != leaver)));
    // The farewell does not circulate for ever.
    network.run(60);
    assert_eq!((network.blocks(), network.views("gracefully_left").concat().len()), (9, 0));
}

#[test]
fn a_node_that_crashes_is_blocked_everywhere_once_and_forgotten() {
    let mut network = Network::new(6, 5);
    network.run(10);
    network.nodes.remove(&id("n02"));
    network.run(19);
    assert_eq!(network.blocks(), 0);
    network.run(12);
    assert_eq!(network.blocks(), 5);
    let told = |(_, event): &&(GossipMemberId, GossiperEvent)| matches!(event, GossiperEvent::Blocked { .. });
    assert_eq!(network.events.iter().filter(told).count(), 5);
    assert!(network.nodes.values().all(|gossiper| gossiper.state(&key("heartbeat")).count() == 5));
}

#[test]
fn a_short_partition_heals_and_loses_nothing() {
    let mut network = Network::new(6, 8);
    network.run(5);
    network.cut = Some([id("n00"), id("n01")].to_vec());
    network.run(5);
    let now = network.now;
    network.gossiper(0).set_state(&key("k"), value("here"), now).expect("room");
    network.gossiper(5).set_state(&key("k"), value("there"), now).expect("room");
    network.run(8);
    assert!(network.views("k").iter().all(|view| view.len() == 1));
    network.cut = None;
    network.run(12);
    assert!(network.views("k").iter().all(|view| view.len() == 2));
    assert_eq!(network.blocks(), 0);
}
