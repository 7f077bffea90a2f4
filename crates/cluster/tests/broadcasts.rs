//! Messages to every member at once, over real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use synod_cluster::grains::{Audience, Broadcast, Broadcasts};
use synod_cluster::remote::RemoteConfig;
use synod_cluster::{Cluster, ClusterConfig, ClusterProvider};

const PATIENCE: Duration = Duration::from_secs(30);

async fn start(name: &str, seeds: &[&Cluster]) -> Cluster {
    let remote = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut config = ClusterConfig::new(name.parse().expect("a name"), remote);
    let addresses = seeds.iter().filter_map(|seed| seed.remote());
    config.membership.seeds.extend(addresses.map(|remote| remote.authority().clone()));
    let mut node = Cluster::new(config).expect("valid settings");
    assert!(node.broadcast(&"early".to_owned(), Audience::default()).is_err() && node.broadcasts().is_err());
    node.start_member().await.expect("a node on loopback");
    node
}

async fn settle(nodes: &[&Cluster]) {
    for node in nodes {
        let seen = async {
            while node.roster().len() < nodes.len() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.expect("a roster in time");
    }
}

async fn next(from: &mut Broadcasts) -> Broadcast {
    tokio::time::timeout(PATIENCE, from.recv()).await.expect("in time").expect("a running node")
}

async fn hears(from: &mut Broadcasts, expected: &str) {
    match next(from).await {
        Broadcast::Message(message) => assert_eq!(message.decode::<String>().as_deref(), Ok(expected)),
        missed @ Broadcast::Missed(_) => panic!("{missed:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broadcast_reaches_every_other_member_and_the_own_one_if_wanted() {
    let a = start("a", &[]).await;
    let b = start("b", &[&a]).await;
    let c = start("c", &[&a]).await;
    settle(&[&a, &b, &c]).await;
    let [mut at_a, mut at_b, mut at_c] = [&a, &b, &c].map(|node| node.broadcasts().expect("running"));
    assert_eq!(a.broadcast(&"to others".to_owned(), Audience::default()).ok(), Some(2));
    assert_eq!(
        b.broadcast(&"to all".to_owned(), Audience { own: true, ..Audience::default() }).ok(),
        Some(3)
    );
    // In order from one sender; between two there is none.
    let mut at_both = [next(&mut at_c).await, next(&mut at_c).await].map(|heard| match heard {
        Broadcast::Message(message) => message.decode::<String>().expect("a text"),
        missed @ Broadcast::Missed(_) => panic!("{missed:?}"),
    });
    at_both.sort();
    assert_eq!(at_both, ["to all", "to others"]);
    hears(&mut at_a, "to all").await;
    assert_eq!(at_a.try_recv(), None, "it did not hear itself");
    let mut heard_at_b = 0;
    while heard_at_b < 2 {
        assert!(matches!(next(&mut at_b).await, Broadcast::Message(_)));
        heard_at_b += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_listener_keeps_the_newest_and_learns_what_it_lost() {
    let a = start("a", &[]).await;
    settle(&[&a]).await;
    let own = Audience { own: true, ..Audience::default() };
    let mut slow = a.broadcasts().expect("running");
    for number in 0..1030 {
        a.broadcast(&number.to_string(), own).expect("running");
    }
    assert_eq!(next(&mut slow).await, Broadcast::Missed(6));
    hears(&mut slow, "6").await;
    assert_eq!(a.grains().expect("running").broadcasts_missed(), 6);
}
