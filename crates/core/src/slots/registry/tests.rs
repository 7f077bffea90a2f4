//! Three registries and the messages between them, delivered by hand.

use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::*;
use crate::id::Incarnation;
use crate::slots::{BootstrapNode, Pace, Promise, Replication, Tag};

/// Registries that talk over a network without loss, delay or disk.
struct Trio {
    bootstrap: Arc<BootstrapState>,
    now: TimerInstant,
    registries: BTreeMap<NodeId, SlotRegistry>,
    answers: BTreeMap<(NodeId, RequestId), Result<Answer, RequestError>>,
    events: Vec<(NodeId, SlotEvent)>,
    messages: usize,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn id(name: &str) -> NodeId {
    NodeId::new(name).expect("a name")
}

fn bootstrap(nodes: usize, total_slots: u16) -> Arc<BootstrapState> {
    let nodes = NAMES[..nodes].iter().zip([9000u16, 9010, 9020]).map(|(name, port)| {
        let bind = ([127, 0, 0, 1], port).into();
        BootstrapNode::new(id(name), bind, vec!["disk".to_string()]).expect("a node")
    });
    let state = BootstrapState {
        initialized_at: HlcTimestamp::default(),
        initialized_by: id("a"),
        namespace: "test".to_string(),
        nodes: nodes.collect(),
        replication: Replication { total_slots, ..Replication::default() },
        pace: Pace::default(),
        archive: None,
        queue: crate::slots::QueueLayout::default(),
    };
    Arc::new(state.checked().expect("a good state"))
}

impl Trio {
    fn new(nodes: usize, total_slots: u16) -> Self {
        let mut trio = Self {
            bootstrap: bootstrap(nodes, total_slots),
            now: TimerInstant::from_millis(1000),
            registries: BTreeMap::new(),
            answers: BTreeMap::new(),
            events: Vec::new(),
            messages: 0,
        };
        let mut todo = Vec::new();
        for (index, name) in NAMES[..nodes].iter().enumerate() {
            let outcome = trio.start(name, 1, index as u64, Restored::default());
            todo.push((id(name), outcome));
        }
        trio.carry(todo);
        for a in &NAMES[..nodes] {
            for b in &NAMES[..nodes] {
                trio.standing(a, b, Standing::Alive);
            }
        }
        trio
    }

    fn start(&mut self, name: &str, life: u64, seed: u64, restored: Restored) -> RegistryOutcome {
        let own = MemberId::new(id(name), Incarnation::new(life).expect("a life"));
        let address = self.bootstrap.node(&own.node).expect("a node").peer().expect("an address");
        let (registry, outcome) = SlotRegistry::start(
            own,
            address,
            life * 100 + seed,
            Arc::clone(&self.bootstrap),
            SlotRegistryConfig::default(),
            restored,
            0,
            seed,
            self.now,
        )
        .expect("good settings");
        self.registries.insert(id(name), registry);
        outcome
    }

    fn restart(&mut self, name: &str, life: u64, restored: Restored) {
        let outcome = self.start(name, life, life, restored);
        self.carry(vec![(id(name), outcome)]);
        let others: Vec<NodeId> = self.registries.keys().cloned().collect();
        for other in others {
            self.standing(name, other.as_str(), Standing::Alive);
            self.standing(other.as_str(), name, Standing::Alive);
        }
    }

    fn member(&self, node: &NodeId) -> MemberId {
        self.registries[node].own.clone()
    }

    /// Carries out outcomes until nobody has anything to say.
    fn carry(&mut self, mut todo: Vec<(NodeId, RegistryOutcome)>) {
        while let Some((from, outcome)) = todo.pop() {
            let RegistryOutcome { events, gossip_slots, gossip_nodes, send, answers, .. } = outcome;
            self.events.extend(events.into_iter().map(|event| (from.clone(), event)));
            self.answers
                .extend(answers.into_iter().map(|(request, answer)| ((from.clone(), request), answer)));
            let member = self.member(&from);
            for (to, message) in send {
                self.messages += 1;
                if let Some(registry) = self.registries.get_mut(&to) {
                    todo.insert(0, (to, registry.handle_message(&member, message, self.now)));
                }
            }
            if !gossip_slots.is_empty() || !gossip_nodes.is_empty() {
                for (to, registry) in &mut self.registries {
                    if *to != from {
                        let outcome =
                            registry.handle_gossip(gossip_slots.clone(), gossip_nodes.clone(), self.now);
                        todo.insert(0, (to.clone(), outcome));
                    }
                }
            }
        }
    }

    fn standing(&mut self, observer: &str, node: &str, standing: Standing) {
        if let Some(registry) = self.registries.get_mut(&id(observer)) {
            let outcome = registry.handle_standing(&id(node), standing, self.now);
            self.carry(vec![(id(observer), outcome)]);
        }
    }

    /// Lets time pass, in steps short enough for every alarm.
    fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now = self.now + Duration::from_millis(50);
            let due: Vec<NodeId> = self.registries.keys().cloned().collect();
            for node in due {
                let outcome = self.registries.get_mut(&node).expect("it is there").poll(self.now);
                self.carry(vec![(node, outcome)]);
            }
        }
    }

    fn write(&mut self, at: &str, slot: u16, expected: Option<Option<Tag>>, value: &str) -> RequestId {
        let (now, patience) = (self.now, Duration::from_secs(5));
        let registry = self.registries.get_mut(&id(at)).expect("it is there");
        let value = Arc::from(value.as_bytes());
        let (request, outcome) =
            registry.write(SlotId::new(slot), expected, value, patience, now).expect("it is the primary");
        self.carry(vec![(id(at), outcome)]);
        request
    }

    fn read(&mut self, at: &str, slot: u16) -> Option<(Tag, Vec<u8>)> {
        let (now, patience) = (self.now, Duration::from_secs(5));
        let registry = self.registries.get_mut(&id(at)).expect("it is there");
        let (request, outcome) = registry.read(SlotId::new(slot), patience, now).expect("it is the primary");
        self.carry(vec![(id(at), outcome)]);
        match self.answer(at, request) {
            Ok(Answer::Read { head }) => head.map(|head| (head.tag, head.value.to_vec())),
            other => panic!("the read was answered with {other:?}"),
        }
    }

    fn answer(&self, at: &str, request: RequestId) -> Result<Answer, RequestError> {
        self.answers.get(&(id(at), request)).expect("it was answered").clone()
    }

    fn primary(&self, seen_by: &str, slot: u16) -> (NodeId, u64) {
        let record =
            self.registries[&id(seen_by)].map().record(SlotId::new(slot)).expect("there was an election");
        (record.primary.clone(), record.epoch.get())
    }

    fn kill(&mut self, name: &str) -> SlotRegistry {
        let killed = self.registries.remove(&id(name)).expect("it is there");
        for other in NAMES {
            self.standing(other, name, Standing::Suspect);
        }
        killed
    }
}

fn memory_of(registry: &SlotRegistry) -> Restored {
    Restored {
        replicas: registry.replicas().map(|(slot, replica)| (slot, replica.clone())).collect(),
        records: registry.map().records().cloned().collect(),
        nodes: registry.nodes().filter_map(|(_, _, record)| record.cloned()).collect(),
        clock: registry.clock(),
        is_new_cluster: false,
    }
}

#[test]
fn a_node_alone_serves_all_slots_at_once() {
    let mut alone = Trio::new(1, 16);
    alone.run_for(Duration::from_millis(50));
    assert!(alone.registries[&id("a")].is_ready());
    let request = alone.write("a", 3, None, "x");
    let Ok(Answer::Written { tag }) = alone.answer("a", request) else { panic!("not written") };
    assert_eq!(alone.read("a", 3), Some((tag, b"x".to_vec())));
}

#[test]
fn new_nodes_learn_from_each_other_and_share_the_slots() {
    let mut trio = Trio::new(3, 12);
    trio.run_for(Duration::from_millis(100));
    for (slot, primary) in (0..12).zip(NAMES.iter().cycle()) {
        for observer in NAMES {
            assert_eq!(trio.primary(observer, slot), (id(primary), 1), "slot {slot} as {observer} sees it");
        }
    }
    assert!(trio.registries.values().all(SlotRegistry::is_ready));
}

#[test]
fn a_killed_primary_is_replaced_and_what_it_committed_is_there() {
    let mut trio = Trio::new(3, 6);
    trio.run_for(Duration::from_millis(100));
    trio.write("a", 0, None, "kept");
    trio.kill("a");
    trio.run_for(Duration::from_secs(3));
    assert_eq!(trio.primary("b", 0), (id("b"), 2));
    assert_eq!(trio.primary("c", 0), (id("b"), 2));
    assert_eq!(trio.read("b", 0).expect("a value").1, b"kept");
}

#[test]
fn all_slots_of_a_dead_node_are_asked_for_in_one_message_to_each() {
    let mut trio = Trio::new(3, 600);
    trio.run_for(Duration::from_millis(100));
    trio.messages = 0;
    trio.kill("a");
    trio.run_for(Duration::from_millis(50));
    // 200 slots, two survivors: a few messages each, not a few hundred.
    assert!(trio.messages < 40, "{} messages", trio.messages);
    assert_eq!(trio.registries[&id("b")].vacant_count(), 0);
}

#[test]
fn a_deposed_primary_cannot_write_and_steps_down() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    // Cut off: it neither hears nor says anything, and goes on to believe.
    let mut old = trio.kill("a");
    trio.run_for(Duration::from_secs(3));
    assert_eq!(trio.primary("b", 0), (id("b"), 2));
    let (request, outcome) = old
        .write(SlotId::new(0), None, Arc::from(&b"stale"[..]), Duration::from_secs(5), trio.now)
        .expect("it still thinks that it is the primary");
    assert!(outcome.answers.is_empty());
    // The way is free again; its order reaches both others.
    trio.registries.insert(id("a"), old);
    trio.carry(vec![(id("a"), outcome)]);
    assert_eq!(trio.answer("a", request), Err(RequestError::Indeterminate));
    assert_eq!(trio.read("b", 0), None);
    let stepped = trio.events.iter().any(|(node, event)| {
        *node == id("a") && matches!(event, SlotEvent::SteppedDown { slot, .. } if slot.get() == 0)
    });
    assert!(stepped);
}

#[test]
fn a_write_of_a_deposed_primary_does_not_replace_what_its_successor_has_shown() {
    let mut trio = Trio::new(3, 1);
    trio.run_for(Duration::from_millis(100));
    let swap = |registry: &mut SlotRegistry, value: &[u8], now| {
        let (slot, patience) = (SlotId::new(0), Duration::from_secs(5));
        drop(registry.write(slot, Some(None), Arc::from(value), patience, now).expect("it reigns"));
    };
    // The first primary is cut off, and writes what reaches nobody. The second one begins without it.
    let mut first = trio.kill("a");
    swap(&mut first, b"first", trio.now);
    trio.run_for(Duration::from_secs(3));
    assert_eq!(trio.primary("c", 0), (id("b"), 2));
    // Now that one is cut off, and the write of the first is taken over and shown in a third epoch.
    let mut second = trio.kill("b");
    trio.registries.insert(id("a"), first);
    trio.standing("c", "a", Standing::Alive);
    trio.standing("a", "b", Standing::Suspect);
    trio.run_for(Duration::from_secs(30));
    let (third, _) = trio.primary("c", 0);
    assert_eq!(trio.read(third.as_str(), 0).expect("a value").1, b"first");
    // The second one still thinks that there is nothing, and writes on that condition. Then it comes back.
    swap(&mut second, b"second", trio.now);
    trio.kill("a");
    trio.registries.insert(id("b"), second);
    trio.standing("c", "b", Standing::Alive);
    trio.standing("b", "a", Standing::Suspect);
    trio.run_for(Duration::from_secs(30));
    let (fourth, _) = trio.primary("c", 0);
    assert_eq!(trio.read(fourth.as_str(), 0).expect("a value").1, b"first");
}

#[test]
fn conditional_writes_compare_with_what_is_there() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    let first = trio.write("a", 0, Some(None), "one");
    let Ok(Answer::Written { tag }) = trio.answer("a", first) else { panic!("not written") };
    let again = trio.write("a", 0, Some(None), "two");
    assert!(matches!(trio.answer("a", again), Ok(Answer::Differs { head: Some(head) }) if head.tag == tag));
    let swap = trio.write("a", 0, Some(Some(tag)), "two");
    assert!(matches!(trio.answer("a", swap), Ok(Answer::Written { .. })));
    assert_eq!(trio.read("a", 0).expect("a value").1, b"two");
}

#[test]
fn a_request_whose_time_is_over_makes_way_for_the_next() {
    let mut trio = Trio::new(3, 1);
    trio.run_for(Duration::from_millis(100));
    let away = ["b", "c"].map(|name| (id(name), trio.registries.remove(&id(name)).expect("it is there")));
    let mut read = |patience| {
        let now = trio.now;
        let registry = trio.registries.get_mut(&id("a")).expect("it is there");
        let (request, outcome) = registry.read(SlotId::new(0), patience, now).expect("it is the primary");
        trio.carry(vec![(id("a"), outcome)]);
        request
    };
    let (hasty, patient) = (read(Duration::from_secs(1)), read(Duration::from_secs(9)));
    trio.run_for(Duration::from_secs(2));
    assert_eq!(trio.answer("a", hasty), Err(RequestError::TimedOut));
    // Now somebody is there to confirm.
    trio.registries.extend(away);
    trio.run_for(Duration::from_secs(2));
    assert_eq!(trio.answer("a", patient), Ok(Answer::Read { head: None }));
}

#[test]
fn a_candidate_that_followed_another_stands_again_when_that_one_is_gone() {
    let mut trio = Trio::new(3, 1);
    trio.run_for(Duration::from_millis(100));
    trio.registries.retain(|node, _| *node == id("c"));
    trio.standing("c", "a", Standing::Suspect);
    let slot = SlotId::new(0);
    let b = MemberId::new(id("b"), Incarnation::new(1).expect("a life"));
    let is_candidate = |trio: &mut Trio, epoch| {
        let willing = SlotMessage::Willing { asks: vec![(slot, SlotEpoch::new(epoch))] };
        trio.run_for(Duration::from_millis(50));
        let registry = trio.registries.get_mut(&id("c")).expect("it is there");
        let outcome = registry.handle_message(&b, willing, trio.now);
        let is_start = |event: &SlotEvent| matches!(event, SlotEvent::CampaignStarted { epoch: begun, .. } if begun.get() == epoch);
        outcome.events.iter().any(is_start)
    };
    assert!((0..100).any(|_| is_candidate(&mut trio, 2)), "it stands for the slot of a suspect");
    // Another one has won a later epoch and has something stored; nobody ever hears of its record.
    let tag = Tag { epoch: SlotEpoch::new(3), sequence: 1 };
    let head = Head { tag, accepted: tag.epoch, value: Arc::from(&b"kept"[..]) };
    let store = SlotMessage::Store { slot, epoch: tag.epoch, head };
    let registry = trio.registries.get_mut(&id("c")).expect("it is there");
    drop(registry.handle_message(&b, store, trio.now));
    assert!((0..100).any(|_| is_candidate(&mut trio, 4)), "it stands again");
}

#[test]
fn a_node_that_lost_its_memory_votes_only_after_all_others_were_heard() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    trio.write("a", 0, None, "kept");
    let b = trio.kill("b");
    trio.run_for(Duration::from_secs(3));
    // The disk of `c` is replaced while `b` is away.
    trio.kill("c");
    trio.restart("c", 2, Restored::default());
    trio.run_for(Duration::from_secs(3));
    assert_eq!(trio.registries[&id("c")].learning_from().into_iter().collect::<Vec<_>>(), [id("b")]);
    // With `b` back, all is known again.
    let memory = memory_of(&b);
    trio.restart("b", 2, memory);
    trio.run_for(Duration::from_secs(20));
    assert!(trio.registries.values().all(SlotRegistry::is_ready));
    trio.kill("a");
    trio.run_for(Duration::from_secs(3));
    let (primary, _) = trio.primary("c", 0);
    assert_eq!(trio.read(primary.as_str(), 0).expect("a value").1, b"kept");
}

#[test]
fn what_an_earlier_life_was_told_teaches_a_later_one_nothing() {
    let mut trio = Trio::new(3, 1);
    trio.kill("c");
    trio.start("c", 2, 2, Restored::default());
    let before = trio.registries[&id("c")].instance;
    trio.start("c", 3, 3, Restored::default());
    let registry = trio.registries.get_mut(&id("c")).expect("it is there");
    let peer = MemberId::new(id("a"), Incarnation::new(1).expect("a life"));
    let promises = vec![Promise { slot: SlotId::new(0), promised: SlotEpoch::ZERO, head: None }];
    // The answer to the life before was on its way for long.
    let late = SlotMessage::Promises { asker: before, promises: promises.clone() };
    drop(registry.handle_message(&peer, late, trio.now));
    assert_eq!(registry.learning_from().len(), 2);
    let answer = SlotMessage::Promises { asker: registry.instance, promises };
    drop(registry.handle_message(&peer, answer, trio.now));
    assert_eq!(registry.learning_from().into_iter().collect::<Vec<_>>(), [id("b")]);
}

#[test]
fn a_memory_of_which_a_crash_left_a_part_does_not_count_as_whole() {
    let mut trio = Trio::new(3, 1);
    trio.kill("c");
    trio.start("c", 2, 2, Restored::default());
    let tag = Tag { epoch: SlotEpoch::new(1), sequence: 1 };
    let head = Head { tag, accepted: tag.epoch, value: Arc::from(&b"kept"[..]) };
    let slot = SlotId::new(0);
    let mut written = Vec::new();
    for (peer, head) in [("a", Some(head.clone())), ("b", None)] {
        let peer = MemberId::new(id(peer), Incarnation::new(1).expect("a life"));
        let promises = vec![Promise { slot, promised: SlotEpoch::new(1), head }];
        let registry = trio.registries.get_mut(&id("c")).expect("it is there");
        let message = SlotMessage::Promises { asker: registry.instance, promises };
        written.extend(registry.handle_message(&peer, message, trio.now).persist);
    }
    let promise = written.iter().position(|op| matches!(op, RegistryOp::Promise { .. }));
    let stored = written.iter().position(|op| *op == RegistryOp::Head { slot, head: head.clone() });
    assert!(stored.is_some() && stored < promise, "{written:?}");
}

#[test]
fn a_restarted_primary_takes_a_new_epoch() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    trio.write("a", 0, None, "kept");
    let memory = memory_of(&trio.registries[&id("a")]);
    trio.registries.remove(&id("a"));
    trio.restart("a", 2, memory);
    trio.run_for(Duration::from_secs(1));
    assert_eq!(trio.primary("c", 0), (id("a"), 2));
    assert_eq!(trio.read("a", 0).expect("a value").1, b"kept");
}

#[test]
fn a_node_that_leaves_hands_its_slots_over_and_gets_them_back() {
    let mut trio = Trio::new(3, 6);
    trio.run_for(Duration::from_millis(100));
    let now = trio.now;
    let outcome = trio.registries.get_mut(&id("a")).expect("it is there").leave(now);
    trio.carry(vec![(id("a"), outcome)]);
    assert!(trio.registries[&id("a")].is_drained());
    assert_eq!(trio.primary("c", 0), (id("b"), 2));
    let memory = memory_of(&trio.registries[&id("a")]);
    trio.registries.remove(&id("a"));
    trio.restart("a", 2, memory);
    trio.run_for(Duration::from_secs(60));
    assert_eq!(trio.primary("c", 0), (id("a"), 3));
}

#[test]
fn a_primary_that_says_nothing_is_replaced_though_membership_holds_it_alive() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    trio.registries.remove(&id("a"));
    trio.run_for(Duration::from_secs(14));
    assert_eq!(trio.primary("b", 0), (id("a"), 1));
    trio.run_for(Duration::from_secs(4));
    assert_eq!(trio.primary("b", 0), (id("b"), 2));
}

#[test]
fn a_candidate_is_refused_while_the_primary_is_held_alive() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    // Only `b` lost sight of `a`.
    trio.standing("b", "a", Standing::Suspect);
    trio.run_for(Duration::from_secs(3));
    assert_eq!(trio.primary("c", 0).0, id("a"));
    let request = trio.write("a", 0, None, "x");
    assert!(matches!(trio.answer("a", request), Ok(Answer::Written { .. })));
}

#[test]
fn of_two_conditional_writes_that_nobody_confirmed_at_most_one_is_ever_seen() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    let slot = SlotId::new(0);
    // Two primaries in a row write on the condition that nothing is there, and are cut off before anybody hears of it.
    let write_alone = |trio: &mut Trio, name: &str, value: &[u8]| {
        let now = trio.now;
        let mut alone = trio.kill(name);
        let patience = Duration::from_secs(5);
        drop(alone.write(slot, Some(None), Arc::from(value), patience, now).expect("it is the primary"));
        trio.run_for(Duration::from_secs(3));
        memory_of(&alone)
    };
    let first = write_alone(&mut trio, "a", b"one");
    assert_eq!(trio.primary("b", 0), (id("b"), 2));
    let second = write_alone(&mut trio, "b", b"two");
    // The first is back, the second is not. What the first has written takes effect, and is read.
    trio.restart("a", 2, first);
    trio.run_for(Duration::from_secs(20));
    let (primary, _) = trio.primary("c", 0);
    assert_eq!(trio.read(primary.as_str(), 0).expect("a value").1, b"one");
    // Now it is the other way around. The write of the second came too late: its condition does not hold any more.
    trio.kill("a");
    trio.restart("b", 2, second);
    trio.run_for(Duration::from_secs(20));
    let (primary, _) = trio.primary("c", 0);
    assert_eq!(trio.read(primary.as_str(), 0).expect("a value").1, b"one");
}

#[test]
fn a_request_that_expires_lets_the_next_one_go() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    let away = ["b", "c"].map(|name| trio.registries.remove(&id(name)).expect("it is there"));
    let mut read = |patience| {
        let a = trio.registries.get_mut(&id("a")).expect("it is there");
        let (request, outcome) = a.read(SlotId::new(0), patience, trio.now).expect("it is the primary");
        trio.carry(vec![(id("a"), outcome)]);
        request
    };
    let (hasty, patient) = (read(Duration::from_secs(1)), read(Duration::from_secs(60)));
    trio.run_for(Duration::from_secs(2));
    assert_eq!(trio.answer("a", hasty), Err(RequestError::TimedOut));
    // The others are back. Nobody asks for anything more, and the second one is answered.
    trio.registries.extend(away.map(|registry| (registry.own.node.clone(), registry)));
    trio.run_for(Duration::from_secs(3));
    assert_eq!(trio.answer("a", patient), Ok(Answer::Read { head: None }));
}

#[test]
fn a_record_that_loses_a_conflict_is_told_and_not_passed_on() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    let (now, slot) = (trio.now, SlotId::new(2));
    let b = trio.registries.get_mut(&id("b")).expect("it is there");
    let known = b.map().record(slot).expect("there was an election").clone();
    assert_eq!(known.primary, id("c"));
    let impossible = SlotRecord { primary: id("a"), ..known.clone() };
    let outcome = b.handle_gossip(vec![impossible.clone()], Vec::new(), now);
    assert!(matches!(&outcome.events[..], [SlotEvent::Conflict(told)] if told.received == impossible));
    assert_eq!((outcome.persist, outcome.gossip_slots), (Vec::new(), Vec::new()));
    assert_eq!(b.map().record(slot), Some(&known));
    assert_eq!(b.counters().conflicts, 1);
}

#[test]
fn a_candidate_that_followed_another_primary_stands_again_when_that_one_is_silent() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    let (slot, c) = (SlotId::new(0), trio.member(&id("c")));
    let mut now = trio.now;
    let b = trio.registries.get_mut(&id("b")).expect("it is there");
    // It is a candidate, and nobody answers; then a primary of a later epoch gives it an order.
    drop(b.handle_standing(&id("a"), Standing::Suspect, now));
    drop(b.poll(now));
    let asks = vec![(slot, SlotEpoch::new(2))];
    let stood = b.handle_message(&c, SlotMessage::Willing { asks }, now);
    assert!(stood.send.iter().any(|(_, message)| matches!(message, SlotMessage::AskGrants { .. })));
    let epoch = SlotEpoch::new(3);
    let head = Head { tag: Tag { epoch, sequence: 1 }, accepted: epoch, value: Arc::from(&b"x"[..]) };
    let stored = b.handle_message(&c, SlotMessage::Store { slot, epoch, head }, now);
    assert!(stored.send.iter().any(|(_, message)| matches!(message, SlotMessage::Stored { .. })));
    // From then on it hears nothing more of anybody.
    let mut asks = Vec::new();
    while now < trio.now + Duration::from_secs(20) {
        now = now + Duration::from_millis(50);
        for (_, message) in b.poll(now).send {
            if let SlotMessage::Sound { asks: more } = message {
                asks.extend(more);
            }
        }
    }
    assert!(asks.contains(&(slot, SlotEpoch::new(4))), "{asks:?}");
}

#[test]
fn two_processes_of_one_name_are_found_by_repair() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    let now = trio.now;
    // The twin of `c` is heard by `b` alone.
    let b = trio.registries.get_mut(&id("b")).expect("it is there");
    let (_, _, record) = b.nodes().find(|(node, _, _)| **node == id("c")).expect("a node of the cluster");
    let mut twin = record.expect("it was heard").clone();
    twin.instance += 1;
    drop(b.handle_gossip(Vec::new(), vec![twin.clone()], now));
    trio.run_for(Duration::from_secs(30));
    let is_told = |(node, event): &(NodeId, SlotEvent)| {
        *node == id("c") && *event == SlotEvent::NameTaken { by: twin.clone() }
    };
    assert!(trio.events.iter().any(is_told));
}

#[test]
fn one_who_recovers_is_told_when_its_epoch_is_over() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    trio.write("a", 0, None, "x");
    let (now, slot, late) = (trio.now, SlotId::new(0), SlotEpoch::ZERO);
    let b = trio.member(&id("b"));
    let c = trio.registries.get_mut(&id("c")).expect("it is there");
    let outcome = c.handle_message(&b, SlotMessage::AskHeads { slots: vec![(slot, late)] }, now);
    let promised = SlotEpoch::new(1);
    assert_eq!(outcome.send, [(id("b"), SlotMessage::Stale { slot, epoch: late, promised })]);
}

#[test]
fn nobody_serves_an_epoch_that_two_were_granted_and_a_new_vote_settles_it() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    let mut forged = trio.registries[&id("a")].map().record(SlotId::new(0)).expect("an election").clone();
    forged.primary = id("c");
    let now = trio.now;
    let outcome =
        trio.registries.get_mut(&id("a")).expect("it is there").handle_gossip(vec![forged], vec![], now);
    assert!(matches!(outcome.events[..], [SlotEvent::Conflict(_), SlotEvent::SteppedDown { .. }]));
    let registry = trio.registries.get_mut(&id("a")).expect("it is there");
    let refused = registry.write(SlotId::new(0), None, Arc::from(&b"x"[..]), Duration::from_secs(1), now);
    assert!(matches!(refused, Err(RequestError::NotPrimary { .. })));
    trio.carry(vec![(id("a"), outcome)]);
    trio.run_for(Duration::from_secs(20));
    let primaries = NAMES.map(|name| trio.primary(name, 0));
    assert!(primaries.iter().all(|one| *one == primaries[0] && one.1 > 1), "{primaries:?}");
}

#[test]
fn no_write_is_under_way_while_a_slot_is_offered() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    let (now, slot, patience) = (trio.now, SlotId::new(0), Duration::from_secs(5));
    let a = trio.registries.get_mut(&id("a")).expect("it is there");
    let offered = a.leave(now);
    assert!(offered.send.iter().any(|(_, message)| matches!(message, SlotMessage::HandOver { .. })));
    // A write that comes between the offer and its acceptance waits, and goes to whoever accepts.
    let (request, waits) = a.write(slot, None, Arc::from(&b"x"[..]), patience, now).expect("it serves yet");
    assert!(waits.send.is_empty() && waits.persist.is_empty(), "{waits:?}");
    trio.carry(vec![(id("a"), offered)]);
    assert!(matches!(trio.answer("a", request), Err(RequestError::NotPrimary { .. })));
    assert_eq!(trio.primary("c", 0), (id("b"), 2));
}

#[test]
fn a_write_goes_on_when_nobody_takes_what_was_offered() {
    let mut trio = Trio::new(3, 3);
    trio.run_for(Duration::from_millis(100));
    let (now, slot, patience) = (trio.now, SlotId::new(0), Duration::from_secs(5));
    let a = trio.registries.get_mut(&id("a")).expect("it is there");
    // The offer is lost on its way.
    drop(a.leave(now));
    let (request, _) = a.write(slot, None, Arc::from(&b"x"[..]), patience, now).expect("it serves yet");
    trio.run_for(Duration::from_millis(500));
    assert!(matches!(trio.answer("a", request), Ok(Answer::Written { .. })));
}
