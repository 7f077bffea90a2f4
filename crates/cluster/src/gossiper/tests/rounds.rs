//! What happens once per interval.

use super::*;
use bytes::Bytes;
use synod_wire::cluster::MemberHeartbeat;
use synod_wire::payload;

/// R2.1, R2.5: one round per interval on tokio's clock, the first one at once.
#[tokio::test(start_paused = true)]
async fn a_round_comes_once_per_interval() {
    let road = Notebook::default();
    let began = Instant::now();
    let node = Node::started(steady(), road.clone(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(2_100)).await;
    let times: Vec<_> = road.sent().iter().map(|sent| (sent.at - began).as_millis()).collect();
    assert_eq!(times, [0, 500, 1_000, 1_500, 2_000]);
    assert_eq!(node.gossiper.counters().rounds(), 5);
}

/// R2.6: the interval is a setting, and there is a preset that is compatible with protoactor-go.
#[tokio::test(start_paused = true)]
async fn the_interval_is_what_the_settings_say() {
    let mut config = TokioGossiperConfig { seed: Some(7), ..TokioGossiperConfig::protoactor() };
    config.gossip.interval_jitter = 0.0;
    let node = Node::started(config, Notebook::default(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(3_001)).await;
    assert_eq!(node.gossiper.counters().rounds(), 11);
}

/// The jitter keeps nodes from speaking all at once, and stays within its bounds.
#[tokio::test(start_paused = true)]
async fn rounds_are_jittered_by_default() {
    let (road, other) = (Notebook::default(), Notebook::default());
    let began = Instant::now();
    let config = |seed| TokioGossiperConfig { seed: Some(seed), ..TokioGossiperConfig::default() };
    let _node = Node::started(config(1), road.clone(), "a#1", &["a#1", "b#1"]).await;
    let _other = Node::started(config(2), other.clone(), "c#1", &["c#1", "b#1"]).await;
    pass(millis(10_000)).await;
    let times = |road: &Notebook| road.sent().iter().map(|sent| sent.at - began).collect::<Vec<_>>();
    assert_ne!(times(&road)[1..], times(&other)[1..]);
    let pauses: Vec<_> = times(&road).windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    assert!(pauses.iter().all(|pause| (450..=551).contains(pause)), "{pauses:?}");
    assert!(pauses.iter().any(|pause| *pause != 500), "{pauses:?}");
}

/// R2.2, R6.1, R6.2: each round writes the heartbeat anew, with the counts of that moment, under all configured keys.
#[tokio::test(start_paused = true)]
async fn each_round_refreshes_the_heartbeat_with_the_counts_of_the_moment() {
    struct Growing(Mutex<i64>);
    impl ActorStatisticsSource for Growing {
        fn actor_count(&self) -> BTreeMap<String, i64> {
            let mut count = lock(&self.0);
            *count += 1;
            BTreeMap::from([("hello".to_string(), *count)])
        }
    }
    let mut config = steady();
    config.gossip.heartbeat_keys = vec![key("heartbeat"), key("heathbeat")];
    let node = Node::new(config, Notebook::default());
    node.gossiper.set_statistics_source(Growing(Mutex::new(0)));
    node.gossiper.start(id("a#1")).await.expect("it starts");
    let mut last = 0;
    for count in 1..=3 {
        pass(millis(if count == 1 { 1 } else { 500 })).await;
        for name in ["heartbeat", "heathbeat"] {
            let entry = node.gossiper.get_state(&key(name)).remove(&id("a#1")).expect("a heartbeat");
            let heartbeat: MemberHeartbeat =
                payload::decode(Bytes::copy_from_slice(entry.value.bytes())).expect("a heartbeat");
            let counts = heartbeat.actor_statistics.expect("statistics").actor_count;
            assert_eq!(counts, BTreeMap::from([("hello".to_string(), count)]));
            assert_eq!(entry.value.type_url(), "type.googleapis.com/cluster.MemberHeartbeat");
            assert!(entry.sequence_number.get() > last);
            last = entry.sequence_number.get();
        }
    }
}

/// R2.3, R6.3, R6.4, R6.5: whoever is silent for longer than the expiration is blocked, not a moment sooner, and this
/// node never blocks itself.
#[tokio::test(start_paused = true)]
async fn silence_beyond_the_expiration_is_blocked() {
    let mut config = steady();
    config.gossip.heartbeat_expiration = millis(2_000);
    let mut node = Node::started(config, Notebook::default(), "a#1", &["a#1", "b#1", "c#1"]).await;
    pass(millis(1)).await;
    // Exactly at a round, so that the boundary is met exactly.
    pass(millis(499)).await;
    node.hear("b#1", &[("b#1", "heartbeat", "", 1), ("c#1", "heartbeat", "", 1)]).await;
    pass(millis(2_000)).await;
    until(|| node.gossiper.counters().rounds() == 6).await;
    assert_eq!(node.blocked(), [""; 0], "exactly the expiration is not longer than it");
    // An echo of an old heartbeat is no sign of life; a newer one is, through whoever it comes.
    node.hear("c#1", &[("b#1", "heartbeat", "", 1), ("c#1", "heartbeat", "", 2)]).await;
    node.gossiper_events();
    pass(millis(500)).await;
    until(|| node.gossiper.counters().rounds() == 7).await;
    assert_eq!(node.blocked(), ["b#1"]);
    assert_eq!(node.gossiper.blocked_members()[&id("b#1")], BlockReason::Expired);
    let blocked = GossiperEvent::Blocked { member: id("b#1"), reason: BlockReason::Expired };
    assert!(node.gossiper_events().contains(&blocked));
    pass(millis(60_000)).await;
    assert_eq!(node.blocked(), ["b#1", "c#1"]);
    assert!(node.gossiper.get_state(&key("heartbeat")).contains_key(&id("a#1")));
}

/// R2.4, R10.3: the leave key blocks its owner at once; R10.1: the list can be read; R10.4: once is enough.
#[tokio::test(start_paused = true)]
async fn a_graceful_leave_blocks() {
    let mut node = Node::started(steady(), Notebook::default(), "a#1", &["a#1", "b#1", "c#1"]).await;
    node.hear("b#1", &[("b#1", "k", "x", 1)]).await;
    assert_eq!(node.values("k").len(), 1);
    node.gossiper_events();
    node.hear("c#1", &[("b#1", "gracefully_left", "", 2)]).await;
    let left = GossiperEvent::Blocked { member: id("b#1"), reason: BlockReason::Left };
    assert_eq!(node.gossiper_events(), [left]);
    assert_eq!(node.gossiper.blocked_members(), BTreeMap::from([(id("b#1"), BlockReason::Left)]));
    assert_eq!(node.values("k"), []);
    node.hear("c#1", &[("b#1", "gracefully_left", "", 3)]).await;
    assert_eq!(node.gossiper_events(), []);
    // It is not listened to any more, neither directly nor through others.
    let refused = node.gossiper.handle_request(id("b#1"), said(&[("b#1", "k", "y", 9)])).await;
    let blocked = gossip::GossiperError::Blocked { member: id("b#1") };
    assert_eq!(refused, Err(GossiperError::Refused(blocked)));
    node.hear("c#1", &[("b#1", "k", "y", 9)]).await;
    assert_eq!(node.values("k"), []);
    assert!(node.gossiper.counters().entries_refused() >= 1);
}

/// R10.2: blocked members get no gossip.
#[tokio::test(start_paused = true)]
async fn blocked_members_get_nothing() {
    let road = Notebook::default();
    let node = Node::started(steady(), road.clone(), "a#1", &["a#1", "b#1", "c#1"]).await;
    pass(millis(1)).await;
    assert_eq!(road.take().len(), 2);
    node.hear("c#1", &[("b#1", "gracefully_left", "", 2)]).await;
    // The roster may know it for a while longer.
    publish_roster(&node.stream, &["a#1", "b#1", "c#1", "d#1"]);
    pass(millis(5_000)).await;
    let targets: Vec<_> = road.sent().iter().map(|sent| sent.target.clone()).collect();
    assert!(targets.iter().all(|target| target != "b#1") && targets.contains(&"c#1".into()), "{targets:?}");
    assert!(road.sent().iter().all(|sent| sent.target != "a#1"), "never itself");
}
