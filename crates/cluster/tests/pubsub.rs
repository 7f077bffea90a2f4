//! Publish and subscribe between whole nodes over real sockets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use synod_cluster::grains::{Grain, GrainContext, GrainError, GrainKind};
use synod_cluster::pubsub::{Guarantee, Subscription, SubscriptionId, TopicName, TopicOptions};
use synod_cluster::remote::{Actor, ActorContext, Message, RemoteConfig};
use synod_cluster::{Cluster, ClusterConfig, ClusterProvider, Delivery, PubSub, PubSubError};
use synod_core::grains::PlacementHash;
use synod_core::membership::ClusterEvent;
use synod_core::pubsub::PubSubEvent;
use tokio_stream::StreamExt;

const PATIENCE: Duration = Duration::from_secs(30);

/// What somebody heard.
type Heard = Arc<Mutex<Vec<String>>>;

fn text(message: &Message) -> String {
    message.decode::<String>().expect("a text")
}

/// A grain that hears.
struct Listener(Heard);

impl Grain for Listener {
    async fn call(&mut self, _: &mut GrainContext, method: i32, _: Bytes) -> Result<Message, GrainError> {
        Err(GrainError::unimplemented(method))
    }

    async fn receive(&mut self, _: &mut GrainContext, message: Message) {
        self.0.lock().expect("unlocked").push(text(&message));
    }
}

/// An actor that never finishes its first message.
struct Stuck;

impl Actor for Stuck {
    async fn receive(&mut self, _: &mut ActorContext, _: Message) {
        std::future::pending::<()>().await;
    }
}

async fn start(name: &str, seeds: &[&Cluster], guarantee: Guarantee, grains: &Heard) -> Cluster {
    let remote = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut config = ClusterConfig::new(name.parse().expect("a name"), remote);
    let addresses = seeds.iter().filter_map(|seed| seed.remote());
    config.membership.seeds.extend(addresses.map(|remote| remote.authority().clone()));
    config.pubsub.topic.guarantee = guarantee;
    config.pubsub.topic.departed_grace = Duration::from_millis(200);
    let heard = Arc::clone(grains);
    config.kinds.push(GrainKind::new("Listener", move |_| Listener(Arc::clone(&heard))));
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

/// Waits until `nodes` all see each other, and what each of them hosts.
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

async fn listen(node: &Cluster, topic: &str) -> (Subscription, Heard) {
    let heard = Heard::default();
    let sink = Arc::clone(&heard);
    let subscription = topics(node).subscribe_with(topic, move |message| {
        sink.lock().expect("unlocked").push(text(&message));
        std::future::ready(())
    });
    (subscription.await.expect("subscribed"), heard)
}

fn heard(by: &Heard) -> Vec<String> {
    by.lock().expect("unlocked").clone()
}

async fn hears(by: &Heard, expected: &[&str]) {
    until("a message", || by.lock().expect("unlocked").len() >= expected.len()).await;
    assert_eq!(heard(by), expected);
}

/// 9.2: whatever the guarantee, all hear it in order, wherever they and the topic are; 9.4: and nobody is a reason.
#[tokio::test(flavor = "multi_thread")]
async fn everybody_hears_everything_in_order_until_they_unsubscribe() {
    for guarantee in [Guarantee::AtMostOnce, Guarantee::AtLeastOnce] {
        let grains = Heard::default();
        let a = start("a", &[], guarantee, &grains).await;
        let b = start("b", &[&a], guarantee, &grains).await;
        settle(&[&a, &b]).await;
        let refused = topics(&b).publish("news", &"nobody".to_owned()).await;
        assert!(matches!(refused, Err(PubSubError::UnknownTopic { .. })), "{refused:?}");

        let (on_a, by_a) = listen(&a, "news").await;
        let (_on_b, by_b) = listen(&b, "news").await;
        topics(&a).subscribe_grain("news", "Listener", "one").await.expect("subscribed");
        topics(&b).publish("news", &"one".to_owned()).await.expect("published");
        let batch: Vec<_> = ["two", "three", "four"].map(|word| Message::new(&word.to_owned())).into();
        topics(&a).publish_batch("news", &batch).await.expect("published");
        for hearer in [&by_a, &by_b, &grains] {
            hears(hearer, &["one", "two", "three", "four"]).await;
        }

        on_a.unsubscribe().await.expect("unsubscribed");
        topics(&b).publish("news", &"five".to_owned()).await.expect("published");
        hears(&by_b, &["one", "two", "three", "four", "five"]).await;
        assert_eq!(heard(&by_a).len(), 4, "it does not listen any more");
        let counts = topics(&a).counts().plus(topics(&b).counts());
        assert_eq!((counts.published, counts.dropped, counts.redelivered), (5, 0, 0), "{guarantee:?}");
    }
}

/// A subscriber that ended, and one that never answers, hold up nobody.
#[tokio::test(flavor = "multi_thread")]
async fn dead_and_stuck_subscribers_do_not_block_the_others() {
    let grains = Heard::default();
    let a = start("a", &[], Guarantee::AtMostOnce, &grains).await;
    let b = start("b", &[&a], Guarantee::AtMostOnce, &grains).await;
    settle(&[&a, &b]).await;
    let remote = b.remote().expect("running");
    let (dead, stuck) = (remote.spawn(Stuck).expect("room"), remote.spawn(Stuck).expect("room"));
    topics(&a).subscribe("news", &dead).await.expect("subscribed");
    topics(&a).subscribe("news", &stuck).await.expect("subscribed");
    remote.stop(&dead).expect("stopped");
    let (_on_b, by_b) = listen(&b, "news").await;
    let words: Vec<_> = (0..20).map(|number| number.to_string()).collect();
    let began = tokio::time::Instant::now();
    for word in &words {
        topics(&a).publish("news", word).await.expect("published");
    }
    hears(&by_b, &words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert!(began.elapsed() < Duration::from_secs(10), "nobody waited for the stuck one");
    let counts = || topics(&a).counts().plus(topics(&b).counts());
    until("the dead one is found out", || counts().failures >= 1).await;
    until("the stuck one is found out", || counts().timeouts >= 1).await;
    let before = counts().forwarded;
    topics(&a).publish("news", &"more".to_owned()).await.expect("published");
    until("the others hear more", || heard(&by_b).len() == 21).await;
    assert_eq!(counts().forwarded - before, 2, "the dead one was removed");
}

/// Subscribers go with their node; when it was the last, publishing says so.
#[tokio::test(flavor = "multi_thread")]
async fn subscribers_on_a_node_that_leaves_are_removed() {
    let grains = Heard::default();
    let a = start("a", &[], Guarantee::AtLeastOnce, &grains).await;
    let mut b = start("b", &[&a], Guarantee::AtLeastOnce, &grains).await;
    settle(&[&a, &b]).await;
    // One topic per node, whichever that is.
    let names: Vec<_> = (0..8).map(|number| format!("news-{number}")).collect();
    let mut subscriptions = Vec::new();
    for name in &names {
        subscriptions.push(listen(&b, name).await);
    }
    let (_on_a, by_a) = listen(&a, "other").await;
    b.shutdown(true).await.expect("a clean end");
    settle(&[&a]).await;
    for name in &names {
        let last = async {
            loop {
                match topics(&a).publish(name, &"gone".to_owned()).await {
                    Err(PubSubError::NoSubscribers { .. }) => return,
                    _ => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, last).await.expect("removed in time");
    }
    // The topic may have moved; who is still there still hears it.
    let told = async {
        while topics(&a).publish("other", &"still here".to_owned()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("renewed in time");
    hears(&by_a, &["still here"]).await;
}

/// Waits until a node says that a topic was created.
async fn hears_of_creation(events: &mut synod_cluster::Subscription, expected: &str) -> TopicOptions {
    let found = async {
        loop {
            let Some(Delivery::Event(event)) = events.recv().await else { panic!("no event") };
            if let ClusterEvent::PubSub { event: PubSubEvent::Created { topic, options }, .. } = &*event
                && topic.as_str() == expected
            {
                return *options;
            }
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("an announcement in time")
}

/// A topic of that stem that `node` hosts.
fn topic_on(node: &Cluster, stem: &str) -> String {
    let own = node.remote().expect("running").authority().clone();
    let roster = node.roster();
    let is_there = |name: &String| {
        let grain = synod_cluster::grains::ClusterIdentity::new("prototopic", name).expect("a name");
        PlacementHash::default().owner(&grain, roster.iter()).is_some_and(|owner| owner.authority == own)
    };
    (0..1000).map(|number| format!("{stem}-{number}")).find(is_there).expect("a topic for every node")
}

/// 9.1: every member hears of a topic that is created, and remembers it when its host is lost; 9.4: publishing to it
/// before anybody subscribes, or to one that nobody knows, fails with a reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_created_once_and_every_member_knows() {
    let grains = Heard::default();
    let a = start("a", &[], Guarantee::AtMostOnce, &grains).await;
    let b = start("b", &[&a], Guarantee::AtMostOnce, &grains).await;
    settle(&[&a, &b]).await;
    let (mut at_a, mut at_b) = (a.events().subscribe(), b.events().subscribe());
    let name = topic_on(&b, "first");
    let options = TopicOptions { guarantee: Guarantee::AtLeastOnce, ..TopicOptions::default() };
    let refused = topics(&a).publish(&name, &"early".to_owned()).await;
    assert!(matches!(refused, Err(PubSubError::UnknownTopic { .. })), "{refused:?}");

    topics(&a).create_topic(&name, options).await.expect("created");
    assert_eq!(hears_of_creation(&mut at_a, &name).await, options);
    assert_eq!(hears_of_creation(&mut at_b, &name).await, options);
    for node in [&a, &b] {
        let again = topics(node).create_topic(&name, TopicOptions::default()).await;
        assert!(matches!(again, Err(PubSubError::AlreadyCreated { .. })), "{again:?}");
    }
    let refused = topics(&a).publish(&name, &"early".to_owned()).await;
    assert!(matches!(refused, Err(PubSubError::NoSubscribers { .. })), "{refused:?}");

    // It behaves as it was created, and not as its host is configured: somebody acknowledges.
    let (_on_a, by_a) = listen(&a, &name).await;
    topics(&a).publish(&name, &"one".to_owned()).await.expect("published");
    hears(&by_a, &["one"]).await;
    until("an acknowledgement", || topics(&b).counts().delivered == 1).await;

    // Who comes later hears of it too.
    let c = start("c", &[&a], Guarantee::AtMostOnce, &grains).await;
    let known: TopicName = name.parse().expect("a name");
    until("the newcomer is told", || topics(&c).created_topics().get(&known) == Some(&options)).await;
    settle(&[&a, &b, &c]).await;

    // Its host is lost, and what was said about the topic is not.
    let name = topic_on(&b, "second");
    topics(&c).create_topic(&name, options).await.expect("created");
    let known: TopicName = name.parse().expect("a name");
    until("the others are told", || topics(&a).created_topics().contains_key(&known)).await;
    until("the others are told", || topics(&c).created_topics().contains_key(&known)).await;
    let (_on_a, by_a) = listen(&a, &name).await;
    drop(b);
    settle(&[&a, &c]).await;
    let told = async {
        while topics(&a).publish(&name, &"two".to_owned()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("it goes on elsewhere");
    hears(&by_a, &["two"]).await;
    let delivered = |node| topics(node).topic_counts().get(&known).map_or(0, |counts| counts.delivered);
    until("acknowledged", || delivered(&a) + delivered(&c) == 1).await;
    let again = topics(&c).create_topic(&name, options).await;
    assert!(matches!(again, Err(PubSubError::AlreadyCreated { .. })), "{again:?}");
}

/// A channel is read at the reader's pace, as a stream or one by one, and ends with its reader.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_can_be_read_from_a_channel() {
    let grains = Heard::default();
    let a = start("a", &[], Guarantee::AtLeastOnce, &grains).await;
    let b = start("b", &[&a], Guarantee::AtLeastOnce, &grains).await;
    settle(&[&a, &b]).await;
    for value in [0, 65_537] {
        let refused = topics(&a).subscribe_channel("news", value).await;
        assert!(matches!(refused, Err(PubSubError::Capacity { value: of }) if of == value));
    }
    // One place, and far more messages: nothing is lost, because the topic waits.
    let mut narrow = topics(&a).subscribe_channel("news", 1).await.expect("subscribed");
    let mut wide = topics(&b).subscribe_channel("news", 100).await.expect("subscribed");
    let words: Vec<_> = (0..50).map(|number| number.to_string()).collect();
    for word in &words {
        topics(&b).publish("news", word).await.expect("published");
    }
    for word in &words {
        let next = tokio::time::timeout(PATIENCE, narrow.recv()).await.expect("in time").expect("open");
        assert_eq!(&text(&next), word);
    }
    let all = (&mut wide).take(words.len()).map(|message| text(&message)).collect::<Vec<_>>();
    assert_eq!(tokio::time::timeout(PATIENCE, all).await.expect("in time"), words);
    assert!(narrow.try_recv().is_none() && wide.try_recv().is_none());

    wide.unsubscribe().await.expect("unsubscribed");
    drop(narrow);
    let ended = async {
        while topics(&a).publish("news", &"nobody".to_owned()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        topics(&a).publish("news", &"nobody".to_owned()).await
    };
    let refused = tokio::time::timeout(PATIENCE, ended).await.expect("in time");
    assert!(matches!(refused, Err(PubSubError::NoSubscribers { .. })), "{refused:?}");
}

/// Whoever has the id of a subscription ends it, from anywhere; subscribing twice is one subscription.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_has_a_name_that_ends_it() {
    let grains = Heard::default();
    let a = start("a", &[], Guarantee::AtMostOnce, &grains).await;
    let b = start("b", &[&a], Guarantee::AtMostOnce, &grains).await;
    settle(&[&a, &b]).await;
    let id = topics(&a).subscribe_grain("news", "Listener", "one").await.expect("subscribed");
    assert_eq!(topics(&b).subscribe_grain("news", "Listener", "one").await, Ok(id.clone()));
    assert_eq!(SubscriptionId::of_grain("news", "Listener", "one"), Ok(id.clone()));
    topics(&b).publish("news", &"once".to_owned()).await.expect("published");
    hears(&grains, &["once"]).await;
    topics(&b).unsubscribe(&id).await.expect("unsubscribed");
    topics(&b).unsubscribe(&id).await.expect("harmless");
    let refused = topics(&a).publish("news", &"twice".to_owned()).await;
    assert!(matches!(refused, Err(PubSubError::NoSubscribers { .. })), "{refused:?}");
    assert_eq!(heard(&grains), ["once"]);
}

/// A topic that takes batches and never says so.
struct Mute(Heard);

impl Grain for Mute {
    async fn call(&mut self, _: &mut GrainContext, method: i32, _: Bytes) -> Result<Message, GrainError> {
        Err(GrainError::unimplemented(method))
    }

    async fn receive(&mut self, _: &mut GrainContext, message: Message) {
        self.0.lock().expect("unlocked").push(message.type_name.to_string());
    }
}

/// What a topic may have taken is not sent to it again, however often calls are retried otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_answer_is_lost_is_not_published_twice() {
    let taken = Heard::default();
    let remote = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut config = ClusterConfig::new("a".parse().expect("a name"), remote);
    config.grains.router.attempt_timeout = Duration::from_millis(100);
    let sink = Arc::clone(&taken);
    config.kinds.push(GrainKind::new("prototopic", move |_| Mute(Arc::clone(&sink))));
    let mut node = Cluster::new(config).expect("valid settings");
    node.start_member().await.expect("a node on loopback");
    settle(&[&node]).await;
    let failed = topics(&node).publish("news", &"one".to_owned()).await;
    assert!(matches!(failed, Err(PubSubError::Call(_))), "{failed:?}");
    assert_eq!(
        heard(&taken),
        ["cluster.PubSubBatchTransport"],
        "once, though there was time for many attempts"
    );
}
