//! Several nodes on one network, over the real wire format.

use super::*;

const NAMES: [&str; 3] = ["a#1", "b#1", "c#1"];

async fn three(network: &InMemoryGossipNetwork) -> Vec<Node> {
    let mut nodes = Vec::new();
    for name in NAMES {
        nodes.push(Node::on(network, name, &NAMES).await);
    }
    nodes
}

fn agree(nodes: &[Node], name: &str, values: &[(&str, &str)]) -> bool {
    let expected: Vec<(String, String)> =
        values.iter().map(|(member, text)| ((*member).into(), (*text).into())).collect();
    nodes.iter().all(|node| node.values(name) == expected)
}

async fn converge(nodes: &[Node], name: &str, values: &[(&str, &str)]) -> Duration {
    let began = Instant::now();
    while !agree(nodes, name, values) {
        let seen: Vec<_> = nodes.iter().map(|node| node.values(name)).collect();
        assert!(began.elapsed() < Duration::from_secs(60), "they never agree: {seen:?}");
        pass(millis(10)).await;
    }
    began.elapsed()
}

/// Three nodes with the settings of the design agree in less than a second.
#[tokio::test(start_paused = true)]
async fn three_nodes_converge_within_a_second() {
    let network = InMemoryGossipNetwork::with_seed(1);
    network.set_conditions(RoadConditions { delay: millis(20), ..RoadConditions::default() });
    let nodes = three(&network).await;
    pass(millis(2_000)).await;
    for (node, text) in nodes.iter().zip(["x", "y", "z"]) {
        node.gossiper.set_state(key("k"), value(text)).expect("room");
    }
    let took = converge(&nodes, "k", &[("a#1", "x"), ("b#1", "y"), ("c#1", "z")]).await;
    assert!(took < millis(1_000), "{took:?}");
    for node in &nodes {
        let alive = node.gossiper.get_state(&key("heartbeat"));
        assert_eq!((alive.len(), node.blocked().len()), (3, 0));
    }
}

/// R9.2, R10.3: who stops is blocked by everybody at once, also by those it did not reach itself.
#[tokio::test(start_paused = true)]
async fn a_farewell_reaches_everybody() {
    let network = InMemoryGossipNetwork::with_seed(2);
    let mut nodes = three(&network).await;
    pass(millis(2_000)).await;
    network.disconnect(&authority("b"), &authority("c"));
    let c = nodes.pop().expect("three");
    c.gossiper.stop().await.expect("it stops");
    pass(millis(1_100)).await;
    for node in &nodes {
        assert_eq!(node.gossiper.blocked_members(), BTreeMap::from([(id("c#1"), BlockReason::Left)]));
    }
    // The next life at the same address is a new member.
    c.gossiper.start(id("c#2")).await.expect("a new id");
    nodes.push(c);
    network.reconnect(&authority("b"), &authority("c"));
    for node in &nodes {
        publish_roster(&node.stream, &["a#1", "b#1", "c#2"]);
    }
    nodes[2].set("k", "back").await;
    converge(&nodes, "k", &[("c#2", "back")]).await;
}

/// What is written on both sides of a cut is everywhere after it heals, as long as nobody was given up.
#[tokio::test(start_paused = true)]
async fn a_partition_heals() {
    let network = InMemoryGossipNetwork::with_seed(3);
    let nodes = three(&network).await;
    pass(millis(1_000)).await;
    for other in ["a", "b"] {
        network.disconnect(&authority("c"), &authority(other));
    }
    nodes[0].set("k", "majority").await;
    nodes[2].set("k", "alone").await;
    pass(millis(5_000)).await;
    assert_eq!(nodes[1].values("k"), [("a#1".into(), "majority".into())]);
    assert_eq!(nodes[2].values("k"), [("c#1".into(), "alone".into())]);
    assert!(nodes.iter().all(|node| node.blocked().is_empty()));
    for other in ["a", "b"] {
        network.reconnect(&authority("c"), &authority(other));
    }
    let took = converge(&nodes, "k", &[("a#1", "majority"), ("c#1", "alone")]).await;
    assert!(took < millis(3_000), "{took:?}");
    assert!(nodes[0].gossiper.counters().requests_timed_out() > 0);
}

/// Whoever is cut off for longer than the expiration is given up, by both sides.
#[tokio::test(start_paused = true)]
async fn a_partition_that_lasts_is_a_death() {
    let network = InMemoryGossipNetwork::with_seed(4);
    let nodes = three(&network).await;
    pass(millis(1_000)).await;
    for other in ["a", "b"] {
        network.disconnect(&authority("c"), &authority(other));
    }
    pass(millis(12_000)).await;
    assert_eq!((nodes[0].blocked(), nodes[1].blocked()), (vec!["c#1".into()], vec!["c#1".into()]));
    assert_eq!(nodes[2].blocked(), ["a#1", "b#1"]);
}

/// Requests and answers that get lost only cost time.
#[tokio::test(start_paused = true)]
async fn a_road_that_loses_half_of_everything_is_only_slow() {
    let network = InMemoryGossipNetwork::with_seed(5);
    network.set_conditions(RoadConditions { delay: millis(30), request_loss: 0.3, answer_loss: 0.3 });
    let mut config = TokioGossiperConfig { seed: Some(5), ..TokioGossiperConfig::default() };
    config.gossip.heartbeat_expiration = Duration::from_secs(60);
    let mut nodes = Vec::new();
    for name in NAMES {
        nodes.push(Node::on_with(&network, name, &NAMES, config.clone()).await);
    }
    for (number, node) in nodes.iter().enumerate() {
        for entry in 0..20 {
            node.set(&format!("k{entry}"), &format!("{number}")).await;
        }
    }
    for entry in 0..20 {
        converge(&nodes, &format!("k{entry}"), &[("a#1", "0"), ("b#1", "1"), ("c#1", "2")]).await;
    }
}

/// The Go defect: a node whose peer never answered it is still told everything once the road is there.
#[tokio::test(start_paused = true)]
async fn a_latecomer_is_told_everything() {
    let network = InMemoryGossipNetwork::with_seed(6);
    let a = Node::on(&network, "a#1", &["a#1", "b#1"]).await;
    a.set("k", "written before b was there").await;
    pass(millis(3_000)).await;
    assert!(a.gossiper.counters().requests_failed() > 0, "nobody is at that address");
    let b = Node::on(&network, "b#1", &["a#1", "b#1"]).await;
    pass(millis(1_200)).await;
    assert_eq!(b.values("k"), [("a#1".into(), "written before b was there".into())]);
}

/// R12.1: gossip is addressed by name; a node that goes by another one is not reached.
#[tokio::test(start_paused = true)]
async fn a_node_of_another_name_is_not_reached() {
    let network = InMemoryGossipNetwork::with_seed(7);
    let a = Node::on(&network, "a#1", &["a#1", "b#1"]).await;
    let other = TokioGossiperConfig { gossip_actor_name: "chatter".into(), ..TokioGossiperConfig::default() };
    let b = Node::on_with(&network, "b#1", &["a#1", "b#1"], other).await;
    a.set("k", "x").await;
    pass(millis(2_000)).await;
    assert_eq!(b.gossiper.counters().requests_received(), 0);
    assert!(a.gossiper.counters().requests_failed() > 0);
}

/// A state that does not fit one message is told in several.
#[tokio::test(start_paused = true)]
async fn a_large_state_is_told_in_pieces() {
    let network = InMemoryGossipNetwork::with_seed(8);
    let a = Node::on(&network, "a#1", &["a#1", "b#1"]).await;
    let b = Node::on(&network, "b#1", &["a#1", "b#1"]).await;
    let large = "x".repeat(200 * 1024);
    for entry in 0..12 {
        a.set(&format!("k{entry}"), &large).await;
    }
    pass(millis(3_000)).await;
    assert!((0..12).all(|entry| b.values(&format!("k{entry}")).len() == 1));
}
