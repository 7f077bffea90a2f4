//! Whole nodes over real sockets of this machine.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use synod_cluster::gossiper::Gossiper;
use synod_cluster::remote::RemoteConfig;
use synod_cluster::{Cluster, ClusterConfig, ClusterProvider, Delivery};
use synod_core::Authority;
use synod_core::gossip::{GossipKey, GossipValue};
use synod_core::membership::ClusterEvent;

const PATIENCE: Duration = Duration::from_secs(30);

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn config(name: &str, seeds: &[&Cluster]) -> ClusterConfig {
    let mut config = ClusterConfig::new(name.parse().expect("a name"), RemoteConfig::new(loopback()));
    let addresses = seeds.iter().filter_map(|seed| seed.remote());
    config.membership.seeds.extend(addresses.map(|remote| remote.authority().clone()));
    config
}

async fn start(config: ClusterConfig) -> Cluster {
    let mut node = Cluster::new(config).expect("valid settings");
    node.start_member().await.expect("a node on loopback");
    node
}

async fn three() -> [Cluster; 3] {
    let a = start(config("a", &[])).await;
    let b = start(config("b", &[&a])).await;
    let c = start(config("c", &[&a])).await;
    for node in [&a, &b, &c] {
        until(node, |node| node.roster().len() == 3).await;
    }
    [a, b, c]
}

fn key(name: &str) -> GossipKey {
    GossipKey::new(name).expect("a key")
}

fn text(text: &str) -> GossipValue {
    GossipValue::new("type.googleapis.com/google.protobuf.StringValue", text.as_bytes()).expect("a value")
}

/// What `node` knows that `of` says under `name`.
fn said(node: &Cluster, of: &str, name: &str) -> Option<Vec<u8>> {
    let state = node.gossiper()?.get_state(&key(name));
    let entry = state.into_iter().find(|(member, _)| member.as_str().starts_with(&format!("{of}#")));
    entry.map(|(_, entry)| entry.value.bytes().to_vec())
}

async fn until(node: &Cluster, condition: impl Fn(&Cluster) -> bool) {
    let mut events = node.events().subscribe_live();
    let reached = async {
        while !condition(node) {
            // Any event may be the one; the pause is for what has none.
            drop(tokio::time::timeout(Duration::from_millis(20), events.recv()).await);
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("in time");
}

/// Cuts or mends the roads between two nodes, at both ends.
fn cut(a: &Cluster, b: &Cluster) {
    for (from, to) in [(a, b), (b, a)] {
        let (from, to) = (from.remote().expect("running"), to.remote().expect("running"));
        from.quarantine(to.authority(), "cut by a test", None);
    }
}

fn mend(a: &Cluster, b: &Cluster) {
    for (from, to) in [(a, b), (b, a)] {
        let (from, to) = (from.remote().expect("running"), to.remote().expect("running"));
        from.release(to.authority());
    }
}

/// The promise of the gossip: with the settings of the design a new key is everywhere within a second.
#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_converge_on_a_new_key() {
    let nodes = three().await;
    let hash = nodes[0].topology_consensus(PATIENCE).await.expect("they agree on who is there");
    let gossiper = nodes[0].gossiper().expect("running");
    let mut soonest = PATIENCE;
    // A machine that is busy with other tests may be late now and then, but not every time.
    for name in ["color", "shape", "size", "taste", "sound"] {
        let started = Instant::now();
        gossiper.set_state_request(key(name), text("blue")).await.expect("written");
        for node in &nodes {
            until(node, |node| said(node, "a", name).as_deref() == Some(b"blue")).await;
        }
        soonest = soonest.min(started.elapsed());
        if soonest < Duration::from_secs(1) {
            break;
        }
    }
    assert!(soonest < Duration::from_secs(1), "it took {soonest:?}");
    assert_eq!(nodes[2].topology_consensus(PATIENCE).await, Ok(hash));
    for mut node in nodes {
        node.shutdown(true).await.expect("a clean end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_is_gone_at_once_and_one_that_comes_back_is_a_new_life() {
    let [a, mut b, c] = three().await;
    let address = b.remote().expect("running").authority().clone();
    let life = b.own().expect("a member");
    b.shutdown(true).await.expect("a clean end");
    assert!(b.remote().is_none() && b.roster().is_empty() && b.mode().is_none());
    for node in [&a, &c] {
        until(node, |node| node.roster().len() == 2).await;
        let gossiper = node.gossiper().expect("running");
        assert!(gossiper.blocked_members().keys().any(|member| member.as_str() == life.to_string()));
    }
    // The same name on the same address, and what it says arrives.
    let mut again = config("b", &[&a]);
    again.remote.bind = address.as_str().parse().expect("an address");
    let b = start(again).await;
    b.gossiper().expect("running").set_state(key("color"), text("red")).expect("taken");
    for node in [&a, &b, &c] {
        until(node, |node| node.roster().len() == 3).await;
        until(node, |node| said(node, "b", "color").as_deref() == Some(b"red")).await;
    }
    assert!(b.own().expect("a member").incarnation > life.incarnation);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_during_a_partition_arrives_after_it() {
    let [a, b, c] = three().await;
    cut(&a, &c);
    cut(&b, &c);
    a.gossiper().expect("running").set_state(key("side"), text("many")).expect("taken");
    c.gossiper().expect("running").set_state(key("side"), text("one")).expect("taken");
    until(&b, |node| said(node, "a", "side").is_some()).await;
    assert_eq!((said(&c, "a", "side"), said(&a, "c", "side")), (None, None));
    mend(&a, &c);
    mend(&b, &c);
    for node in [&a, &b, &c] {
        until(node, |node| said(node, "a", "side").is_some() && said(node, "c", "side").is_some()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_fails_to_start_takes_the_others_back() {
    let a = start(config("a", &[])).await;
    let taken: Authority = a.remote().expect("running").authority().clone();
    let mut second = config("b", &[]);
    second.remote.bind = taken.as_str().parse().expect("an address");
    let mut b = Cluster::new(second).expect("valid settings");
    let mut events = b.events().subscribe();
    let error = b.start_member().await.expect_err("the address is taken");
    assert!(error.to_string().contains(taken.as_str()), "{error}");
    assert!(b.remote().is_none() && b.mode().is_none() && b.membership().is_none());
    // A later part: the health endpoint. What ran before it is gone again, and the address is free.
    let health = std::net::TcpListener::bind(loopback()).expect("a port");
    let health_address = health.local_addr().expect("bound");
    let hosts = vec![health_address.to_string().parse().expect("an address")];
    let automanaged = synod_cluster::AutomanagedConfig::new("test", health_address, hosts);
    let mut third = config("c", &[]);
    third.discovery = synod_cluster::Discovery::Automanaged(automanaged);
    let mut c = Cluster::new(third).expect("valid settings");
    let mut c_events = c.events().subscribe();
    c.start_member().await.expect_err("the health address is taken");
    assert!(c.remote().is_none() && c.mode().is_none() && c.membership().is_none());
    for events in [&mut events, &mut c_events] {
        let failed = std::iter::from_fn(|| events.try_recv()).any(|delivery| {
            matches!(delivery, Delivery::Event(event) if matches!(*event, ClusterEvent::StartupFailed { .. }))
        });
        assert!(failed, "observers are told");
    }
    drop(health);
    c.start_member().await.expect("the address is free now");
    c.shutdown(true).await.expect("a clean end");
}
