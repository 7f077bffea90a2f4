//! What published messages live through: nodes that cannot be reached, answers that are lost, topics that move.

use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_cluster::grains::ClusterIdentity;
use synod_cluster::pubsub::{
    Guarantee, OverflowRule, PartitionPolicy, Subscription, TopicOptions, TopicReceiver,
};
use synod_cluster::quickstart::{demo_gossip, demo_membership};
use synod_cluster::remote::RemoteConfig;
use synod_cluster::{Cluster, ClusterConfig, ClusterProvider, Delivery, PubSub};
use synod_core::grains::PlacementHash;
use synod_core::membership::ClusterEvent;
use synod_core::pubsub::PubSubEvent;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

const PATIENCE: Duration = Duration::from_secs(30);

/// The only way to a node, which can be cut.
struct Way {
    address: SocketAddr,
    node: SocketAddr,
    is_open: watch::Sender<bool>,
}

impl Way {
    async fn new() -> Self {
        let front = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let behind = StdTcpListener::bind("127.0.0.1:0").expect("a free port");
        let (address, node) = (front.local_addr().expect("bound"), behind.local_addr().expect("bound"));
        drop(behind);
        let is_open = watch::Sender::new(true);
        let mut gate = is_open.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = front.accept().await {
                if !*gate.borrow_and_update() {
                    continue;
                }
                let mut gate = gate.clone();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(node).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = gate.wait_for(|is_open| !is_open) => {}
                    }
                });
            }
        });
        Self { address, node, is_open }
    }

    fn cut(&self) {
        self.is_open.send_replace(false);
    }

    fn heal(&self) {
        self.is_open.send_replace(true);
    }
}

async fn start(name: &str, way: &Way, seeds: &[&Cluster]) -> Cluster {
    let mut remote = RemoteConfig::new(way.node);
    remote.advertised = Some(way.address.to_string().parse().expect("an address"));
    let mut config = ClusterConfig::new(name.parse().expect("a name"), remote);
    config.membership = demo_membership(3);
    // Whoever cannot be reached is suspected soon, and given up much later.
    config.membership.suspect_timeout = Duration::from_secs(600);
    config.gossip = demo_gossip(3);
    config.gossip.gossip.heartbeat_expiration = Duration::from_secs(600);
    let addresses = seeds.iter().filter_map(|seed| seed.remote());
    config.membership.seeds.extend(addresses.map(|remote| remote.authority().clone()));
    config.pubsub.topic.buffer_messages_max = 3;
    config.pubsub.topic.delivery_timeout = Duration::from_millis(300);
    config.pubsub.topic.redelivery_cap = Duration::from_millis(100);
    let mut node = Cluster::new(config).expect("valid settings");
    node.start_member().await.expect("a node on loopback");
    node
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}: not in time"));
}

async fn settle(nodes: &[&Cluster]) {
    for node in nodes {
        until("a roster", || {
            let roster = node.roster();
            roster.len() == nodes.len() && roster.iter().all(|member| !member.kinds.is_empty())
        })
        .await;
    }
}

fn topics(node: &Cluster) -> &PubSub {
    node.pubsub().expect("running")
}

/// The first topic of that stem that `host` hosts, and that `next` would if `host` were not there.
fn topic_on(stem: &str, host: &Cluster, next: Option<&Cluster>) -> String {
    let roster = host.roster();
    let address = |node: &Cluster| node.remote().expect("running").authority().clone();
    let fits = |name: &String| {
        let grain = ClusterIdentity::new("prototopic", name).expect("a name");
        let hash = PlacementHash::default();
        let owner = hash.owner(&grain, roster.iter()).expect("a host");
        let others = roster.iter().filter(|member| member.authority != address(host));
        owner.authority == address(host)
            && next.is_none_or(|next| {
                hash.owner(&grain, others).is_some_and(|owner| owner.authority == address(next))
            })
    };
    (0..1000).map(|number| format!("{stem}-{number}")).find(fits).expect("a topic for every node")
}

async fn hears(channel: &mut TopicReceiver, expected: &[&str]) {
    for word in expected {
        let next = tokio::time::timeout(PATIENCE, channel.recv()).await;
        let next = next.unwrap_or_else(|_| panic!("{word} in time")).expect("open");
        assert_eq!(next.decode::<String>().as_deref(), Ok(*word));
    }
}

/// Waits until the topic notices that a node cannot be reached.
async fn suspends(events: &mut synod_cluster::Subscription, name: &str) {
    let suspended = async {
        loop {
            let Some(Delivery::Event(event)) = events.recv().await else { panic!("no event") };
            if let ClusterEvent::PubSub { event: PubSubEvent::NodeSuspended { topic, .. }, .. } = &*event
                && topic.as_str() == name
            {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, suspended).await.expect("a suspicion in time");
}

/// 9.2, 9.3, 9.5: who cannot be reached gets everything later and in order, or nothing, as the topic was created; within
/// the bound, beyond which the oldest goes. Who can be reached does not notice, and everything is counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_delays_or_drops_as_the_topic_was_created() {
    let (to_a, to_b) = (Way::new().await, Way::new().await);
    let a = start("a", &to_a, &[]).await;
    let b = start("b", &to_b, &[&a]).await;
    settle(&[&a, &b]).await;
    let options =
        |guarantee, partition| TopicOptions { guarantee, partition, overflow: OverflowRule::DropOldest };
    let cases = [
        ("keeps", options(Guarantee::AtLeastOnce, PartitionPolicy::Delay), ["3", "4", "5"].as_slice()),
        ("drops", options(Guarantee::AtLeastOnce, PartitionPolicy::Drop), [].as_slice()),
        ("delays", options(Guarantee::AtMostOnce, PartitionPolicy::Delay), ["3", "4", "5"].as_slice()),
        ("forgets", options(Guarantee::AtMostOnce, PartitionPolicy::Drop), [].as_slice()),
    ];
    let mut running = Vec::new();
    let mut events = a.events().subscribe_live();
    for (stem, options, arriving) in cases {
        let name = topic_on(stem, &a, None);
        topics(&a).create_topic(&name, options).await.expect("created");
        let near = topics(&a).subscribe_channel(&name, 100).await.expect("subscribed");
        let mut far = topics(&b).subscribe_channel(&name, 100).await.expect("subscribed");
        topics(&b).publish(&name, &"0".to_owned()).await.expect("published");
        hears(&mut far, &["0"]).await;
        running.push((name, options, arriving, near, far));
    }

    to_a.cut();
    to_b.cut();
    for (name, ..) in &running {
        suspends(&mut events, name).await;
    }
    for (name, _, _, near, _) in &mut running {
        for word in ["1", "2", "3", "4", "5"] {
            topics(&a).publish(name, &word.to_owned()).await.expect("published");
        }
        // On this side life goes on.
        hears(near, &["0", "1", "2", "3", "4", "5"]).await;
    }
    for (name, options, arriving, _, far) in &mut running {
        assert!(far.try_recv().is_none());
        let counts = topics(&a).topic_counts()[&name.parse().expect("a name")];
        let delayed = if options.partition == PartitionPolicy::Delay { 5 } else { 0 };
        assert_eq!((counts.delayed, counts.dropped), (delayed, 5 - arriving.len() as u64), "{name}");
    }

    to_a.heal();
    to_b.heal();
    for (name, options, arriving, _, far) in &mut running {
        hears(far, arriving).await;
        // And then it is as before.
        let published = async {
            while topics(&b).publish(name, &"6".to_owned()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, published).await.expect("the nodes are together again");
        let heard = async {
            loop {
                let next = far.recv().await.expect("open").decode::<String>().expect("a text");
                if next == "6" {
                    return;
                }
                // What was on its way when the acknowledgement was lost may come again, if it must arrive.
                assert!(options.guarantee == Guarantee::AtLeastOnce && arriving.contains(&&*next), "{next}");
            }
        };
        tokio::time::timeout(PATIENCE, heard).await.expect("in time");
    }
}

/// A handler that needs a permit for each message, and what it has heard.
async fn gated(node: &Cluster, topic: &str) -> (Subscription, Arc<Semaphore>, Arc<Mutex<Vec<String>>>) {
    let (gate, heard) = (Arc::new(Semaphore::new(0)), Arc::<Mutex<Vec<String>>>::default());
    let (own_gate, own_heard) = (Arc::clone(&gate), Arc::clone(&heard));
    let subscription = topics(node).subscribe_with(topic, move |message| {
        let (gate, heard) = (Arc::clone(&own_gate), Arc::clone(&own_heard));
        async move {
            heard.lock().expect("unlocked").push(message.decode::<String>().expect("a text"));
            gate.acquire().await.expect("open").forget();
        }
    });
    (subscription.await.expect("subscribed"), gate, heard)
}

/// 9.2: an acknowledgement is lost. Who must have a message gets it again, and then what follows; who need not does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_acknowledgement_repeats_the_message_only_where_it_must_arrive() {
    let (to_a, to_b) = (Way::new().await, Way::new().await);
    let a = start("a", &to_a, &[]).await;
    let b = start("b", &to_b, &[&a]).await;
    settle(&[&a, &b]).await;
    let (must, may) = (topic_on("must", &a, None), topic_on("may", &a, None));
    let options = TopicOptions { guarantee: Guarantee::AtLeastOnce, ..TopicOptions::default() };
    topics(&a).create_topic(&must, options).await.expect("created");
    let (_must, must_gate, must_heard) = gated(&b, &must).await;
    let (_may, may_gate, may_heard) = gated(&b, &may).await;
    for name in [&must, &may] {
        topics(&a).publish(name, &"one".to_owned()).await.expect("published");
    }
    for heard in [&must_heard, &may_heard] {
        until("the message", || heard.lock().expect("unlocked").len() == 1).await;
    }
    // They have it, and nobody hears them say so.
    to_a.cut();
    must_gate.add_permits(1000);
    may_gate.add_permits(1000);
    until("it comes again", || must_heard.lock().expect("unlocked").len() >= 2).await;
    to_a.heal();
    for name in [&must, &may] {
        topics(&a).publish(name, &"two".to_owned()).await.expect("published");
    }
    for heard in [&must_heard, &may_heard] {
        until("the next message", || {
            heard.lock().expect("unlocked").last().is_some_and(|last| last == "two")
        })
        .await;
    }
    until("both acknowledged", || topics(&a).topic_counts()[&must.parse().expect("a name")].delivered == 2)
        .await;
    let mut must_heard = must_heard.lock().expect("unlocked").clone();
    assert!(must_heard.is_sorted(), "in order: {must_heard:?}");
    must_heard.dedup();
    assert_eq!(must_heard, ["one", "two"]);
    assert_eq!(*may_heard.lock().expect("unlocked"), ["one", "two"], "never twice");
    let counts = topics(&a).topic_counts();
    assert!(counts[&must.parse().expect("a name")].redelivered >= 1);
    assert_eq!(counts[&may.parse().expect("a name")].redelivered, 0);
}

/// 9.2: the host of a topic leaves while somebody has not had everything. The next host goes on with it.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_not_arrived_moves_with_the_topic() {
    let ways = [Way::new().await, Way::new().await, Way::new().await];
    let mut a = start("a", &ways[0], &[]).await;
    let b = start("b", &ways[1], &[&a]).await;
    let c = start("c", &ways[2], &[&a]).await;
    settle(&[&a, &b, &c]).await;
    let name = topic_on("moving", &a, Some(&c));
    let options = TopicOptions { guarantee: Guarantee::AtLeastOnce, ..TopicOptions::default() };
    topics(&b).create_topic(&name, options).await.expect("created");
    let (_slow, gate, heard) = gated(&b, &name).await;
    for word in ["1", "2", "3"] {
        topics(&b).publish(&name, &word.to_owned()).await.expect("published");
    }
    until("the first message", || !heard.lock().expect("unlocked").is_empty()).await;
    a.shutdown(true).await.expect("a clean end");
    settle(&[&b, &c]).await;
    let topic = name.parse().expect("a name");
    until("the topic runs on c", || topics(&c).topic_counts().contains_key(&topic)).await;
    gate.add_permits(1000);
    until("the last message", || heard.lock().expect("unlocked").last().is_some_and(|last| last == "3"))
        .await;
    let mut heard = heard.lock().expect("unlocked").clone();
    heard.dedup();
    assert_eq!(heard, ["1", "2", "3"], "in order, nothing is missing");
    until("all acknowledged", || topics(&c).topic_counts()[&topic].delivered == 3).await;
    // It still is what it was created as.
    assert!(topics(&c).create_topic(&name, options).await.is_err());
}
