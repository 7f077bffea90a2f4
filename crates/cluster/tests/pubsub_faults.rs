//! What published messages live through: nodes that cannot be reached, answers that are lost, topics that move.

use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_cluster::grains::ClusterIdentity;
use synod_cluster::pubsub::{Guarantee, OverflowRule, PartitionPolicy, TopicOptions, TopicReceiver};
use synod_cluster::quickstart::{demo_gossip, demo_membership};
use synod_cluster::remote::{Actor, ActorContext, Message, RemoteConfig};
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
    /// One for every connection.
    connections: Arc<()>,
}

impl Way {
    async fn new() -> Self {
        let front = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let behind = StdTcpListener::bind("127.0.0.1:0").expect("a free port");
        let (address, node) = (front.local_addr().expect("bound"), behind.local_addr().expect("bound"));
        drop(behind);
        let is_open = watch::Sender::new(true);
        let mut gate = is_open.subscribe();
        let connections = Arc::new(());
        let each = Arc::downgrade(&connections);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = front.accept().await {
                if !*gate.borrow_and_update() {
                    continue;
                }
                let (mut gate, connection) = (gate.clone(), each.upgrade());
                tokio::spawn(async move {
                    let _connection = connection;
                    let Ok(mut far) = TcpStream::connect(node).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = gate.wait_for(|is_open| !is_open) => {}
                    }
                });
            }
        });
        Self { address, node, is_open, connections }
    }

    /// Nothing comes through any more when this is done.
    async fn cut(&self) {
        self.is_open.send_replace(false);
        until("the last connection ends", || Arc::strong_count(&self.connections) == 1).await;
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

    to_a.cut().await;
    to_b.cut().await;
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

/// What a slow subscriber heard, and how many messages it may finish.
#[derive(Clone)]
struct Slow {
    gate: Arc<Semaphore>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Slow {
    /// A subscriber on `node` that nobody subscribes again.
    async fn on(node: &Cluster, topic: &str) -> Self {
        let slow = Self { gate: Arc::new(Semaphore::new(0)), heard: Arc::default() };
        let pid = node.remote().expect("running").spawn(slow.clone()).expect("room");
        topics(node).subscribe(topic, &pid).await.expect("subscribed");
        slow
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("unlocked").clone()
    }

    async fn hears_at_last(&self, word: &str) {
        until(word, || self.heard().last().is_some_and(|last| last == word)).await;
    }
}

impl Actor for Slow {
    async fn receive(&mut self, _: &mut ActorContext, message: Message) {
        self.heard.lock().expect("unlocked").push(message.decode::<String>().expect("a text"));
        self.gate.acquire().await.expect("open").forget();
    }
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
    let (at_must, at_may) = (Slow::on(&b, &must).await, Slow::on(&b, &may).await);
    for name in [&must, &may] {
        topics(&a).publish(name, &"one".to_owned()).await.expect("published");
    }
    at_must.hears_at_last("one").await;
    at_may.hears_at_last("one").await;
    // They have it, and nobody hears them say so.
    to_a.cut().await;
    at_must.gate.add_permits(1000);
    at_may.gate.add_permits(1000);
    until("it comes again", || at_must.heard().len() >= 2).await;
    to_a.heal();
    for name in [&must, &may] {
        topics(&a).publish(name, &"two".to_owned()).await.expect("published");
    }
    at_must.hears_at_last("two").await;
    at_may.hears_at_last("two").await;
    until("both acknowledged", || topics(&a).topic_counts()[&must.parse().expect("a name")].delivered == 2)
        .await;
    let mut heard = at_must.heard();
    heard.dedup();
    assert_eq!(heard, ["one", "two"], "in order");
    assert_eq!(at_may.heard(), ["one", "two"], "never twice");
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
    let slow = Slow::on(&b, &name).await;
    for word in ["1", "2", "3"] {
        topics(&b).publish(&name, &word.to_owned()).await.expect("published");
    }
    slow.hears_at_last("1").await;
    a.shutdown(true).await.expect("a clean end");
    settle(&[&b, &c]).await;
    let topic = name.parse().expect("a name");
    // Nobody calls it there; it starts because it has something to do.
    until("the topic runs on c", || topics(&c).topic_counts().contains_key(&topic)).await;
    slow.gate.add_permits(1000);
    slow.hears_at_last("3").await;
    let mut heard = slow.heard();
    heard.dedup();
    assert_eq!(heard, ["1", "2", "3"], "in order, nothing is missing");
    until("all acknowledged", || topics(&c).topic_counts()[&topic].delivered == 3).await;
    // It still is what it was created as.
    assert!(topics(&c).create_topic(&name, options).await.is_err());
}
