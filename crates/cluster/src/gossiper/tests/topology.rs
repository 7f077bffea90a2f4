//! Who the peers are. R7.

use super::*;
use prost::Message;
use synod_core::remote::RemoteEvent;
use synod_wire::cluster::ClusterTopology;

/// R7.1, R7.2, R7.4: a roster on the event stream makes those in it targets.
#[tokio::test(start_paused = true)]
async fn who_joins_is_told() {
    let road = Notebook::default();
    let node = Node::started(steady(), road.clone(), "a#1", &["a#1"]).await;
    pass(millis(1_001)).await;
    assert_eq!(road.take().len(), 0, "nobody to tell");
    assert_eq!(node.gossiper.member_at(&authority("b")), None);
    publish_roster(&node.stream, &["a#1", "b#1"]);
    pass(millis(500)).await;
    assert_eq!(road.take().len(), 1);
    assert_eq!(node.gossiper.member_at(&authority("b")), Some(id("b#1")));
}

/// R7.3: who leaves is no target any more and is blocked for good; a later life at its address is somebody else.
#[tokio::test(start_paused = true)]
async fn who_leaves_is_told_nothing_and_blocked() {
    let road = Notebook::default();
    let mut node = Node::started(steady(), road.clone(), "a#1", &["a#1", "b#1", "c#1"]).await;
    pass(millis(1)).await;
    assert_eq!(road.take().len(), 2);
    publish_roster(&node.stream, &["a#1", "c#1"]);
    pass(millis(2_000)).await;
    assert!(road.take().iter().all(|sent| sent.target == "c#1"));
    assert_eq!(node.gossiper.blocked_members(), BTreeMap::from([(id("b#1"), BlockReason::Requested)]));
    node.gossiper_events();
    publish_roster(&node.stream, &["a#1", "b#2", "c#1"]);
    pass(millis(500)).await;
    assert!(road.take().iter().any(|sent| sent.target == "b#2"));
    assert_eq!(node.gossiper.member_at(&authority("b")), Some(id("b#2")));
    assert_eq!((node.blocked(), node.gossiper_events()), (vec!["b#1".into()], Vec::new()), "blocked once");
}

/// A member that was never in the roster is merely unknown: it is not blocked, and once it is there it is told.
#[tokio::test(start_paused = true)]
async fn who_is_not_in_the_roster_yet_is_not_blocked() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1", "b#1"]).await;
    node.hear("b#1", &[("c#1", "k", "x", 1)]).await;
    publish_roster(&node.stream, &["a#1", "b#1"]);
    pass(millis(1)).await;
    assert_eq!((node.blocked(), node.values("k").len()), (Vec::new(), 1));
}

/// Updates that were published before the start, or faster than anybody reads, are not lost: the latest counts.
#[tokio::test(start_paused = true)]
async fn the_latest_roster_counts_whatever_was_missed() {
    let road = Notebook::default();
    let node = Node::new(steady(), road.clone());
    publish_roster(&node.stream, &["a#1", "b#1"]);
    // Long forgotten by the strip of recent events.
    let update = gossip::GossipUpdate {
        member: id("x"),
        key: key("k"),
        value: value(""),
        sequence_number: SequenceNumber::FIRST,
    };
    for _ in 0..5_000 {
        let observed_at = TimerInstant::ZERO;
        node.stream.publish(ClusterEvent::GossipStateUpdated { update: update.clone(), observed_at });
    }
    node.gossiper.start(id("a#1")).await.expect("it starts");
    pass(millis(1)).await;
    assert_eq!(road.take().len(), 1);
    for number in 0..2_000 {
        publish_roster(&node.stream, &["a#1", &format!("c#{}", number + 1)]);
    }
    pass(millis(501)).await;
    assert!(road.take().iter().any(|sent| sent.target == "c#2000"));
    assert_eq!(node.blocked(), ["b#1"], "nobody has seen the others");
}

fn topology(blocked: &[&str]) -> GossipValue {
    let blocked = blocked.iter().map(ToString::to_string).collect();
    let topology = ClusterTopology { blocked, ..ClusterTopology::default() };
    GossipValue::new("type.googleapis.com/cluster.ClusterTopology", &topology.encode_to_vec()).expect("small")
}

async fn claim(node: &Node, from: &str, sequence: i64, value: GossipValue) {
    let mut state = GossipState::default();
    let sequence_number = SequenceNumber::new(sequence).expect("a sequence number");
    let entry = GossipKeyValue { value, sequence_number, local_timestamp: TimerInstant::ZERO };
    state.insert(&id(from), key("topology"), entry);
    node.gossiper.handle_request(id(from), state).await.expect("it runs");
}

/// A peer that says it has blocked us is reported once; whom else it blocks is hearsay.
#[tokio::test(start_paused = true)]
async fn being_blocked_by_a_peer_is_reported_once_and_hearsay_blocks_nobody() {
    let mut node = Node::started(steady(), Notebook::default(), "a#1", &["a#1", "b#1", "c#1"]).await;
    let reports = |node: &mut Node| {
        let events = drain(&mut node.events);
        let peers = events.iter().filter_map(|event| match &**event {
            ClusterEvent::Remote { event: RemoteEvent::BlockedByPeer { peer }, .. } => Some(peer.clone()),
            _ => None,
        });
        peers.collect::<Vec<_>>()
    };
    claim(&node, "b#1", 1, topology(&["c#1", "a#2"])).await;
    assert_eq!((reports(&mut node), node.blocked()), (Vec::new(), Vec::new()));
    claim(&node, "b#1", 2, topology(&["c#1", "a#1"])).await;
    assert_eq!((reports(&mut node), node.blocked()), (vec![authority("b")], Vec::new()));
    claim(&node, "b#1", 3, topology(&["a#1"])).await;
    assert_eq!(reports(&mut node), []);
    claim(&node, "c#1", 1, topology(&["a#1"])).await;
    assert_eq!(reports(&mut node), [authority("c")]);
    // What is no topology is no evidence.
    claim(&node, "c#1", 2, value("a#1")).await;
    assert_eq!(reports(&mut node), []);
}
