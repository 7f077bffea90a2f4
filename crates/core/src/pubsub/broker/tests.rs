use alloc::vec;
use core::time::Duration;

use proptest::collection::vec as list;
use proptest::prelude::*;

use super::*;
use crate::gossip::GossipMemberId;
use crate::grains::ClusterIdentity;
use crate::roster::PeerRuntime;

const fn at(millis: u64) -> TimerInstant {
    TimerInstant::from_millis(millis)
}

fn node(name: &str) -> Authority {
    Authority::new(&[name, ":1"].concat()).expect("an authority")
}

fn actor(text: &str) -> Subscriber {
    Subscriber::Actor(text.parse().expect("a PID"))
}

fn member(name: &str) -> RosterMember {
    RosterMember {
        id: GossipMemberId::new(name).expect("an id"),
        authority: node(name),
        kinds: vec!["Chat".into()],
        runtime: PeerRuntime::Protoactor,
    }
}

fn at_least_once() -> TopicConfig {
    TopicConfig { guarantee: Guarantee::AtLeastOnce, ..TopicConfig::default() }
}

fn broker(config: TopicConfig, subscribers: &[&str]) -> PubSubBroker<u64> {
    let mut broker = PubSubBroker::new("news".parse().expect("a name"), config).expect("sound settings");
    for subscriber in subscribers {
        assert_eq!(broker.subscribe(&actor(subscriber), at(0)).0, Ok(true));
    }
    broker
}

fn publish(broker: &mut PubSubBroker<u64>, messages: &[u64], now: u64) -> PubSubOutcome<u64> {
    let (result, out) = broker.publish(messages.iter().map(|message| (*message, 10)).collect(), at(now));
    assert!(result.is_ok(), "{result:?}");
    out
}

fn sent(out: &PubSubOutcome<u64>) -> Vec<(&str, usize, &[u64])> {
    let sent = out.deliveries.iter();
    sent.map(|delivery| (delivery.to.host(), delivery.subscribers.len(), &*delivery.messages)).collect()
}

#[test]
fn subscribers_of_one_node_share_a_delivery() {
    let mut broker = broker(TopicConfig::default(), &["a:1/x", "b:1/x", "a:1/y"]);
    assert_eq!(broker.subscribe(&actor("a:1/x"), at(0)).0, Ok(false), "subscribing again only answers");
    let out = publish(&mut broker, &[1, 2], 0);
    assert_eq!(sent(&out), [("a", 2, &[1, 2][..]), ("b", 1, &[1, 2])]);
    assert_eq!(broker.kept(), (0, 0), "what is sent at most once is not kept");
    assert_eq!((broker.counts().published, broker.counts().forwarded), (2, 6));
    assert!(broker.unsubscribe(&actor("a:1/x")).0 && !broker.unsubscribe(&actor("a:1/x")).0);
    assert_eq!(sent(&publish(&mut broker, &[3], 0)), [("a", 1, &[3][..]), ("b", 1, &[3])]);
}

#[test]
fn what_nobody_would_hear_is_refused_with_a_reason() {
    let topic: TopicName = "news".parse().expect("a name");
    let mut broker = broker(TopicConfig { subscribers_max: 1, ..at_least_once() }, &[]);
    let refusal = PublishRefusal::UnknownTopic { topic: topic.clone() };
    let (result, out) = broker.publish(vec![(1, 1)], at(0));
    assert_eq!(result, Err(refusal.clone()));
    assert_eq!(out.events, [PubSubEvent::PublishRefused(refusal)]);
    assert_eq!(broker.publish(vec![], at(0)).0, Err(PublishRefusal::EmptyBatch { topic: topic.clone() }));
    assert_eq!(broker.subscribe(&actor("a:1/x"), at(0)).0, Ok(true));
    assert!(broker.unsubscribe(&actor("a:1/x")).0);
    let refused = broker.publish(vec![(1, 1)], at(0)).0;
    assert_eq!(refused, Err(PublishRefusal::NoSubscribers { topic }), "it was there once");
    assert_eq!(broker.counts().refused, 3);
    assert_eq!(broker.subscribe(&actor("a:1/x"), at(0)).0, Ok(true));
    let refused = broker.subscribe(&actor("a:1/y"), at(0)).0;
    assert!(matches!(refused, Err(SubscribeRefusal::TooManySubscribers { max: 1, .. })), "{refused:?}");
}

#[test]
fn a_topic_is_created_once_and_behaves_as_its_creator_wants() {
    let topic: TopicName = "news".parse().expect("a name");
    let mut broker = broker(TopicConfig::default(), &[]);
    let options = TopicOptions { guarantee: Guarantee::AtLeastOnce, ..TopicOptions::default() };
    let (created, out) = broker.create(options);
    assert_eq!(created, Ok(()));
    assert_eq!(out.events, [PubSubEvent::Created { topic: topic.clone(), options }]);
    let again = broker.create(TopicOptions::default());
    let refusal = CreateRefusal::AlreadyCreated { topic: topic.clone(), options };
    assert_eq!((again.0, again.1.events), (Err(refusal), vec![]));
    let refused = broker.publish(vec![(1, 1)], at(0)).0;
    assert_eq!(refused, Err(PublishRefusal::NoSubscribers { topic }), "it is known, and nobody listens");
    assert_eq!(broker.subscribe(&actor("a:1/x"), at(0)).0, Ok(true));
    assert!(publish(&mut broker, &[1], 0).deliveries[0].needs_report);
    assert_eq!(broker.created(), Some(options));
}

/// Its node left the roster while it could not be reached, before it was ever in a roster.
#[test]
fn a_suspect_that_was_no_member_is_served_when_it_is_one() {
    let mut broker = broker(at_least_once(), &["a:1/x"]);
    drop(broker.handle_reachability(&node("a"), false, at(0)));
    assert!(publish(&mut broker, &[1], 0).deliveries.is_empty());
    assert!(broker.handle_roster(&[member("b")], at(1)).deliveries.is_empty());
    drop(broker.handle_reachability(&node("a"), true, at(2)));
    assert_eq!(sent(&broker.handle_roster(&[member("a"), member("b")], at(3))), [("a", 1, &[1][..])]);
}

#[test]
fn a_topic_that_moves_takes_along_what_somebody_has_not_had() {
    let options = TopicOptions { guarantee: Guarantee::AtLeastOnce, ..TopicOptions::default() };
    let mut old = broker(TopicConfig::default(), &["a:1/x", "b:1/x"]);
    assert_eq!(old.create(options).0, Ok(()));
    let first = publish(&mut old, &[1, 2], 0);
    // One has them all; of the other nobody knows, and a third one comes later.
    drop(old.handle_report(first.deliveries[0].id, &[], at(1)));
    assert_eq!(old.subscribe(&actor("c:1/x"), at(1)).0, Ok(true));
    drop(publish(&mut old, &[3], 400));
    let (snapshot, out) = old.pack_up(usize::MAX, at(1000));
    assert_eq!((out.events, old.counts().dropped), (vec![], 0));
    let needed: Vec<_> = snapshot.subscribers.iter().map(|(_, needed)| *needed).collect();
    assert_eq!((needed, snapshot.created), (vec![1, 3, 1], Some(options)));
    assert_eq!(snapshot.messages[0].age, Duration::from_secs(1));
    assert!(old.handle_reachability(&node("b"), true, at(1001)).deliveries.is_empty(), "it is quiet now");

    let mut new = broker(TopicConfig { expiry: Duration::from_secs(2), ..TopicConfig::default() }, &[]);
    drop(new.handle_roster(&[member("a"), member("b")], at(60_000)));
    let out = new.restore(snapshot, at(60_000));
    assert_eq!(sent(&out), [("a", 1, &[3][..]), ("b", 1, &[1, 2, 3])]);
    assert_eq!(new.created(), Some(options));
    drop(new.handle_report(out.deliveries[1].id, &[], at(60_001)));
    assert_eq!(new.kept(), (1, 10), "a has not acknowledged, and c may come back");
    // They are as old as they were: they expire when they would have.
    drop(new.poll(at(61_399)));
    assert_eq!(new.kept(), (1, 10));
    drop(new.poll(at(61_400)));
    assert_eq!(new.kept(), (0, 0));
}

#[test]
fn what_cannot_go_along_is_counted_and_the_newest_goes() {
    let mut old = broker(at_least_once(), &["a:1/x"]);
    drop(publish(&mut old, &[1, 2, 3], 0));
    let (snapshot, out) = old.pack_up(150, at(1));
    assert_eq!(snapshot.messages.iter().map(|kept| kept.payload).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(snapshot.subscribers, [(actor("a:1/x"), 2)]);
    assert!(matches!(&*out.events, [PubSubEvent::Dropped { messages: 1, reason: DropReason::Moved, .. }]));
    assert_eq!(old.counts().dropped, 1);
}

#[test]
fn a_large_batch_goes_out_in_pieces_and_in_order() {
    let config = TopicConfig { batch_messages_max: 3, batch_bytes_max: 25, ..TopicConfig::default() };
    let mut broker = broker(config, &["a:1/x"]);
    let out = publish(&mut broker, &[1, 2, 3, 4, 5], 0);
    assert_eq!(sent(&out), [("a", 1, &[1, 2][..]), ("a", 1, &[3, 4]), ("a", 1, &[5])]);
    // A message that is too large for a delivery has one of its own.
    let (_, out) = broker.publish(vec![(6, 100), (7, 1)], at(0));
    assert_eq!(sent(&out), [("a", 1, &[6][..]), ("a", 1, &[7])]);
}

#[test]
fn unacknowledged_messages_are_sent_again_with_growing_pauses() {
    let mut broker = broker(at_least_once(), &["a:1/x", "a:1/y"]);
    let out = publish(&mut broker, &[1], 0);
    let first = out.deliveries[0].id;
    // While one delivery is on its way, the next messages wait for it.
    assert!(publish(&mut broker, &[2], 1).deliveries.is_empty());
    let out = broker.handle_report(first, &[(actor("a:1/y"), DeliveryStatus::Timeout)], at(10));
    assert_eq!(sent(&out), [("a", 1, &[2][..])], "who has the first gets the second");
    assert_eq!(out.wake_at, Some(at(110)));
    let out = broker.poll(at(110));
    assert_eq!(sent(&out), [("a", 1, &[1, 2][..])], "the other one gets both");
    assert_eq!(broker.counts().redelivered, 1);
    // An old report changes nothing; no report at all is a failure too.
    assert!(broker.handle_report(first, &[], at(111)).deliveries.is_empty());
    drop(broker.handle_report(
        out.deliveries[0].id,
        &[(actor("a:1/y"), DeliveryStatus::OtherError)],
        at(120),
    ));
    assert!(broker.poll(at(319)).deliveries.is_empty(), "the pause has doubled");
    let again = broker.poll(at(320));
    assert_eq!(sent(&again), [("a", 1, &[1, 2][..])]);
    drop(broker.handle_report(again.deliveries[0].id, &[], at(321)));
    assert_eq!(broker.kept(), (1, 10), "the report about the second message to x is still out");
    let out = broker.poll(at(10 + 15_000));
    assert!(out.deliveries.is_empty() && broker.counts().timeouts == 2);
    let out = broker.poll(at(15_110));
    assert_eq!(sent(&out), [("a", 1, &[2][..])]);
    drop(broker.handle_report(out.deliveries[0].id, &[], at(15_111)));
    assert_eq!((broker.kept(), broker.counts().delivered), ((0, 0), 4));
}

#[test]
fn actors_that_have_ended_are_removed_and_grains_are_not() {
    let grain = Subscriber::Grain(ClusterIdentity::new("Chat", "a").expect("a name"));
    let mut broker = broker(TopicConfig::default(), &["a:1/x"]);
    assert_eq!(broker.subscribe(&grain, at(0)).0, Ok(true));
    let ended = DeliveryStatus::NoLongerReachable;
    let failures = [(grain.clone(), ended), (actor("a:1/x"), ended), (actor("b:1/stranger"), ended)];
    let out = broker.handle_failures(&failures);
    assert!(
        matches!(&*out.events, [PubSubEvent::SubscriberRemoved { subscriber, .. }] if *subscriber == failures[1].0)
    );
    assert_eq!(broker.subscribers().collect::<Vec<_>>(), [&grain]);
    assert_eq!(broker.counts().failures, 2);
}

#[test]
fn a_grain_is_sent_its_messages_where_it_lives_now() {
    let grain = Subscriber::Grain(ClusterIdentity::new("Chat", "a").expect("a name"));
    let mut broker = broker(TopicConfig::default(), &[]);
    assert_eq!(broker.subscribe(&grain, at(0)).0, Ok(true));
    // As long as nobody hosts it, what it should hear is kept.
    assert!(publish(&mut broker, &[1], 0).deliveries.is_empty());
    assert_eq!(broker.counts().delayed, 1);
    assert_eq!(sent(&broker.handle_roster(&[member("a")], at(1))), [("a", 1, &[1][..])]);
    drop(broker.handle_roster(&[member("b")], at(2)));
    assert_eq!(sent(&publish(&mut broker, &[2], 3)), [("b", 1, &[2][..])]);
}

#[test]
fn a_node_that_left_has_some_time_to_come_back() {
    let mut broker = broker(at_least_once(), &["a:1/x", "b:1/x"]);
    drop(broker.handle_roster(&[member("a"), member("b")], at(0)));
    drop(broker.handle_roster(&[member("b")], at(100)));
    let out = publish(&mut broker, &[1], 200);
    assert_eq!(sent(&out), [("b", 1, &[1][..])]);
    assert_eq!(sent(&broker.handle_roster(&[member("a"), member("b")], at(300))), [("a", 1, &[1][..])]);
    // The next time it stays away. What was kept for it goes with its subscribers.
    drop(broker.handle_report(out.deliveries[0].id, &[], at(301)));
    drop(broker.handle_roster(&[member("b")], at(400)));
    assert!(broker.poll(at(10_399)).events.is_empty());
    let out = broker.poll(at(10_400));
    assert!(
        matches!(
            &*out.events,
            [PubSubEvent::SubscriberRemoved { subscriber, reason: RemovalReason::NodeLeft, .. }]
                if *subscriber == actor("a:1/x")
        ),
        "{out:?}"
    );
    assert_eq!((broker.subscribers().len(), broker.kept()), (1, (0, 0)));
}

#[test]
fn those_who_subscribed_to_an_earlier_activation_are_kept_while_their_nodes_live() {
    let mut broker = broker(TopicConfig::default(), &[]);
    drop(broker.handle_roster(&[member("a")], at(0)));
    let subscribers = ["a:1/x", "b:1/x", "c:1/x"].map(|who| (actor(who), 0)).into();
    drop(broker.restore(TopicSnapshot { subscribers, ..TopicSnapshot::default() }, at(0)));
    assert_eq!(sent(&publish(&mut broker, &[1], 1)), [("a", 1, &[1][..])]);
    // One of them asks again: it lives, though it is no member.
    let (subscribed, out) = broker.subscribe(&actor("c:1/x"), at(2));
    assert_eq!((subscribed, sent(&out)), (Ok(false), vec![("c", 1, &[1][..])]));
    drop(broker.poll(at(10_000)));
    assert_eq!(broker.subscribers().cloned().collect::<Vec<_>>(), [actor("a:1/x"), actor("c:1/x")]);
}

#[test]
fn a_partition_delays_or_drops_and_the_others_do_not_notice() {
    for guarantee in [Guarantee::AtMostOnce, Guarantee::AtLeastOnce] {
        for partition in [PartitionPolicy::Delay, PartitionPolicy::Drop] {
            let config = TopicConfig { guarantee, partition, ..TopicConfig::default() };
            let mut broker = broker(config, &["a:1/x", "b:1/x"]);
            let out = broker.handle_reachability(&node("a"), false, at(0));
            assert!(matches!(&*out.events, [PubSubEvent::NodeSuspended { .. }]));
            assert_eq!(sent(&publish(&mut broker, &[1, 2], 1)), [("b", 1, &[1, 2][..])]);
            let out = broker.handle_reachability(&node("a"), true, at(2));
            let counts = broker.counts();
            if partition == PartitionPolicy::Delay {
                assert_eq!(sent(&out), [("a", 1, &[1, 2][..])], "{guarantee:?}");
                assert_eq!((counts.delayed, counts.dropped), (2, 0));
            } else {
                assert_eq!((sent(&out), counts.delayed, counts.dropped), (vec![], 0, 2), "{guarantee:?}");
            }
        }
    }
}

#[test]
fn a_full_buffer_refuses_or_drops_the_oldest() {
    let config = TopicConfig { buffer_messages_max: 3, buffer_bytes_max: 1000, ..at_least_once() };
    let mut rejecting = broker(config.clone(), &["a:1/x"]);
    drop(publish(&mut rejecting, &[1, 2], 0));
    let (refused, _) = rejecting.publish(vec![(3, 10), (4, 10)], at(0));
    assert!(
        matches!(refused, Err(PublishRefusal::BufferFull { messages: 2, bytes: 20, .. })),
        "all of a batch or nothing: {refused:?}"
    );
    let (refused, _) = rejecting.publish(vec![(3, 1001)], at(0));
    assert!(matches!(refused, Err(PublishRefusal::BatchTooLarge { .. })), "{refused:?}");

    let mut dropping = broker(TopicConfig { overflow: OverflowRule::DropOldest, ..config }, &["a:1/x"]);
    let first = publish(&mut dropping, &[1, 2], 0).deliveries[0].id;
    drop(publish(&mut dropping, &[3, 4, 5], 0));
    assert_eq!((dropping.kept().0, dropping.counts().dropped), (3, 0), "what is on its way may arrive");
    drop(dropping.handle_report(first, &[(actor("a:1/x"), DeliveryStatus::Timeout)], at(1)));
    assert_eq!(dropping.counts().dropped, 2);
    assert_eq!(sent(&dropping.poll(at(101))), [("a", 1, &[3, 4, 5][..])]);
}

#[test]
fn messages_expire() {
    let mut broker = broker(TopicConfig { expiry: Duration::from_secs(1), ..at_least_once() }, &["a:1/x"]);
    drop(broker.handle_reachability(&node("a"), false, at(0)));
    drop(publish(&mut broker, &[1], 0));
    let out = publish(&mut broker, &[2], 500);
    assert_eq!(out.wake_at, Some(at(1000)));
    let out = broker.poll(at(1000));
    assert!(matches!(&*out.events, [PubSubEvent::Dropped { messages: 1, reason: DropReason::Expired, .. }]));
    assert_eq!(sent(&broker.handle_reachability(&node("a"), true, at(1001))), [("a", 1, &[2][..])]);
}

/// What a random environment does to a topic.
#[derive(Clone, Debug)]
enum Step {
    Publish(usize),
    /// The n-th outstanding delivery: arrives and is acknowledged, arrives without that, or is lost.
    Land(usize, u8),
    Reach(usize, bool),
    Sleep(u64),
    Roster(u8),
    /// The topic goes on elsewhere.
    Move,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..5_usize).prop_map(Step::Publish),
        (any::<usize>(), 0..3_u8).prop_map(|(which, how)| Step::Land(which, how)),
        (0..3_usize, any::<bool>()).prop_map(|(node, reachable)| Step::Reach(node, reachable)),
        (1..20_000_u64).prop_map(Step::Sleep),
        (0..8_u8).prop_map(Step::Roster),
        Just(Step::Move),
    ];
    list(step, 1..120)
}

struct World {
    broker: PubSubBroker<u64>,
    config: TopicConfig,
    roster: Option<u8>,
    unreachable: BTreeSet<usize>,
    /// What activations before this one counted.
    past: PubSubCounts,
    now: u64,
    published: u64,
    outstanding: Vec<Delivery<u64>>,
    heard: BTreeMap<Subscriber, Vec<u64>>,
}

impl World {
    fn new(config: TopicConfig) -> Self {
        let names = ["a:1/x", "a:1/y", "b:1/x", "c:1/x"];
        let broker = broker(config.clone(), &names);
        let heard = names.iter().map(|name| (actor(name), Vec::new())).collect();
        let (roster, unreachable, past) = (None, BTreeSet::new(), PubSubCounts::default());
        let (outstanding, published) = (Vec::new(), 0);
        Self { broker, config, roster, unreachable, past, now: 0, published, outstanding, heard }
    }

    fn take(&mut self, out: PubSubOutcome<u64>) {
        for delivery in out.deliveries {
            if delivery.needs_report {
                self.outstanding.push(delivery);
            } else {
                self.arrive(&delivery);
            }
        }
    }

    fn arrive(&mut self, delivery: &Delivery<u64>) {
        for subscriber in &delivery.subscribers {
            self.heard.entry(subscriber.clone()).or_default().extend(&delivery.messages);
        }
    }

    fn land(&mut self, which: usize, how: u8) {
        if self.outstanding.is_empty() {
            return;
        }
        let delivery = self.outstanding.remove(which % self.outstanding.len());
        if how < 2 {
            self.arrive(&delivery);
        }
        let lost = if how == 0 { &[][..] } else { &delivery.subscribers };
        let failures: Vec<_> = lost.iter().map(|who| (who.clone(), DeliveryStatus::Timeout)).collect();
        let out = self.broker.handle_report(delivery.id, &failures, at(self.now));
        self.take(out);
    }

    fn step(&mut self, step: &Step) {
        let now = at(self.now);
        match *step {
            Step::Publish(count) => {
                let batch = (0..count as u64).map(|number| (self.published + number, 10)).collect();
                let (result, out) = self.broker.publish(batch, now);
                if result.is_ok() {
                    self.published += count as u64;
                }
                self.take(out);
            }
            Step::Land(which, how) => self.land(which, how),
            Step::Reach(node_index, is_reachable) => {
                if is_reachable {
                    self.unreachable.remove(&node_index);
                } else {
                    self.unreachable.insert(node_index);
                }
                let out = self.broker.handle_reachability(&node(NODES[node_index]), is_reachable, now);
                self.take(out);
            }
            Step::Sleep(millis) => {
                self.now += millis;
                let out = self.broker.poll(at(self.now));
                self.take(out);
            }
            Step::Roster(mask) => {
                self.roster = Some(mask);
                let out = self.broker.handle_roster(&members(mask), now);
                self.take(out);
            }
            Step::Move => self.move_topic(now),
        }
    }

    /// What is on its way may still arrive, but nobody hears of it.
    fn move_topic(&mut self, now: TimerInstant) {
        let (snapshot, out) = self.broker.pack_up(usize::MAX, now);
        self.take(out);
        self.past = self.past.plus(self.broker.counts());
        self.broker = broker(self.config.clone(), &[]);
        if let Some(mask) = self.roster {
            let out = self.broker.handle_roster(&members(mask), now);
            self.take(out);
        }
        for index in self.unreachable.clone() {
            let out = self.broker.handle_reachability(&node(NODES[index]), false, now);
            self.take(out);
        }
        for delivery in mem::take(&mut self.outstanding) {
            self.arrive(&delivery);
        }
        let out = self.broker.restore(snapshot, now);
        self.take(out);
    }

    fn counts(&self) -> PubSubCounts {
        self.past.plus(self.broker.counts())
    }

    /// Everything works from now on.
    fn heal(&mut self) {
        for index in 0..NODES.len() {
            self.step(&Step::Reach(index, true));
        }
        self.step(&Step::Roster(7));
        for _ in 0..200 {
            while !self.outstanding.is_empty() {
                self.land(0, 0);
            }
            self.step(&Step::Sleep(10_000));
        }
    }
}

fn members(mask: u8) -> Vec<RosterMember> {
    let there = NODES.iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1);
    there.map(|(_, name)| member(name)).collect()
}

const NODES: [&str; 3] = ["a", "b", "c"];
const FOREVER: Duration = Duration::from_secs(7 * 24 * 3600);

proptest! {
    /// Within its bounds nothing is lost, whatever happens on the way, and everybody hears everything in order.
    #[test]
    fn at_least_once_loses_nothing_within_its_bounds(steps in steps()) {
        let grace = Duration::from_secs(3600);
        let config = TopicConfig {
            expiry: FOREVER, departed_grace: grace, batch_messages_max: 3, ..at_least_once()
        };
        let mut world = World::new(config);
        // Nobody stays away for longer than the grace: each step sleeps 20 s at most.
        for step in &steps {
            world.step(step);
        }
        world.heal();
        for (subscriber, heard) in &world.heard {
            let mut next = 0;
            for message in heard {
                prop_assert!(*message <= next, "{} skipped from {} to {}", subscriber, next, message);
                next = next.max(message + 1);
            }
            prop_assert_eq!(next, world.published, "{} has not had everything", subscriber);
        }
        prop_assert_eq!(world.broker.kept(), (0, 0));
        prop_assert_eq!(world.counts().dropped, 0);
        prop_assert_eq!(world.counts().delivered, world.published * 4);
    }

    /// Bounds hold at every step, and every message is accounted for: acknowledged or given up.
    #[test]
    fn bounds_hold_and_every_message_is_accounted_for(steps in steps(), drops in any::<bool>(), waits in any::<bool>()) {
        let config = TopicConfig {
            buffer_messages_max: 7,
            buffer_bytes_max: 60,
            batch_messages_max: 2,
            expiry: Duration::from_secs(30),
            departed_grace: FOREVER.min(Duration::from_secs(3600)),
            overflow: if drops { OverflowRule::DropOldest } else { OverflowRule::RejectNew },
            partition: if waits { PartitionPolicy::Delay } else { PartitionPolicy::Drop },
            ..at_least_once()
        };
        let mut world = World::new(config);
        for step in &steps {
            world.step(step);
            let (messages, bytes) = world.broker.kept();
            prop_assert!(messages <= 7 && bytes <= 60);
        }
        world.heal();
        let counts = world.counts();
        prop_assert_eq!(counts.delivered + counts.dropped, world.published * 4);
        prop_assert_eq!(world.broker.kept(), (0, 0));
    }

    /// At most once means never twice and never out of order.
    #[test]
    fn at_most_once_never_repeats(steps in steps()) {
        let mut world = World::new(TopicConfig { buffer_messages_max: 9, ..TopicConfig::default() });
        for step in &steps {
            world.step(step);
            prop_assert!(world.broker.kept().0 <= 9);
        }
        for heard in world.heard.values() {
            prop_assert!(heard.windows(2).all(|pair| pair[0] < pair[1]), "{heard:?}");
        }
        prop_assert_eq!(world.counts().redelivered, 0);
    }
}
