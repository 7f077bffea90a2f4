//! Whole clusters in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use synod_cluster::grains::{
    CallError, Grain, GrainContext, GrainError, GrainKind, GrainSnapshot, RetryPolicy,
};
use synod_cluster::pubsub::EmittedEvent;
use synod_cluster::remote::Message;
use synod_cluster::{TestCluster, TestClusterBuilder, TestClusterError, grain};
use tokio::time::Instant;

/// Counts.
#[grain]
trait Counter {
    async fn add(&mut self, number: u64) -> Result<u64, GrainError>;
    /// The address of the node where it runs.
    async fn place(&mut self) -> Result<String, GrainError>;
}

#[derive(Default)]
struct InMemory {
    sum: u64,
}

impl CounterGrain for InMemory {
    async fn add(&mut self, _: &mut GrainContext, number: u64) -> Result<u64, GrainError> {
        self.sum += number;
        Ok(self.sum)
    }

    async fn place(&mut self, context: &mut GrainContext) -> Result<String, GrainError> {
        Ok(context.own().address().to_owned())
    }

    async fn activate(
        &mut self,
        _: &mut GrainContext,
        snapshot: Option<GrainSnapshot>,
    ) -> Result<(), GrainError> {
        self.sum = snapshot.map_or(0, |snapshot| snapshot.version);
        Ok(())
    }

    async fn deactivate(&mut self, _: &mut GrainContext) -> Option<GrainSnapshot> {
        Some(GrainSnapshot { version: self.sum, bytes: Arc::from([]) })
    }
}

fn builder() -> TestClusterBuilder {
    TestCluster::builder().kind(Counter::kind(|_| InMemory::default()))
}

fn counter(cluster: &TestCluster, node: usize, identity: &str) -> CounterClient {
    cluster.node(node).grain::<Counter>(identity).expect("a name")
}

/// A counter that runs on `node`, asked from there.
async fn counter_on(cluster: &TestCluster, node: usize) -> String {
    let authority = cluster.authority(node);
    for number in 0..1000 {
        let identity = format!("counter-{number}");
        if counter(cluster, node, &identity).place().await.expect("settled") == authority.as_str() {
            return identity;
        }
    }
    panic!("no counter lives on node {node}");
}

/// Long enough that the others give up whoever is silent.
const SPLIT: Duration = Duration::from_secs(40);

#[tokio::test(start_paused = true)]
async fn a_cluster_forms_and_every_node_calls_every_grain_in_virtual_time() {
    let began = Instant::now();
    let cluster = builder().nodes(3).seed(7).start().await.expect("it settles");
    let mut places = BTreeSet::new();
    for number in 0..30 {
        let identity = format!("counter-{number}");
        for node in 0..3 {
            assert_eq!(counter(&cluster, node, &identity).add(1).await, Ok(node as u64 + 1));
        }
        places.insert(counter(&cluster, 0, &identity).place().await.expect("it runs"));
    }
    assert_eq!(places.len(), 3, "each node hosts some");
    tokio::time::sleep(Duration::from_secs(120)).await;
    cluster.settled().await.expect("minutes later, too");
    assert!(began.elapsed() >= Duration::from_secs(120));
}

#[tokio::test(start_paused = true)]
async fn across_a_split_calls_fail_in_time_and_after_it_everybody_is_reached() {
    let cluster = builder().seed(1).start().await.expect("it settles");
    let (far, near) = (counter_on(&cluster, 0).await, counter_on(&cluster, 1).await);
    counter(&cluster, 1, &far).add(1).await.expect("reachable");
    cluster.partition(&[&[0], &[1, 2]]);

    // Nobody knows yet. The call has its time, and not more, and its error says that nobody can know what became of it.
    let (began, timeout) = (Instant::now(), Duration::from_secs(2));
    let error = counter(&cluster, 1, &far).with_timeout(timeout).add(1).await.expect_err("cut off");
    assert!(matches!(error, CallError::Timeout { .. }), "{error}");
    assert_eq!(began.elapsed(), timeout);
    // Their side of the cut is not affected.
    counter(&cluster, 2, &near).add(1).await.expect("on the same side");

    // Once the others have given it up, its grains live elsewhere, on both sides each.
    tokio::time::sleep(SPLIT).await;
    assert_eq!(counter(&cluster, 2, &far).add(1).await, Ok(1), "a new life, without the old state");
    assert_ne!(counter(&cluster, 2, &far).place().await, Ok(cluster.authority(0).to_string()));
    let alone = counter(&cluster, 0, &near).place().await;
    assert_eq!(alone, Ok(cluster.authority(0).to_string()));
    let unsettled = tokio::time::timeout(SPLIT, cluster.settled()).await;
    assert!(unsettled.is_err(), "a split cluster is not settled");

    cluster.heal();
    cluster.settled().await.expect("one cluster again");
    for node in 0..3 {
        counter(&cluster, node, &far).add(1).await.expect("reachable");
        counter(&cluster, node, &near).add(1).await.expect("reachable");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_that_is_shorter_than_a_call_only_delays_it() {
    let cluster = builder().seed(2).start().await.expect("it settles");
    let far = counter_on(&cluster, 0).await;
    counter(&cluster, 1, &far).add(1).await.expect("reachable");
    cluster.network().cut(&cluster.authority(0), &cluster.authority(1));
    let client =
        counter(&cluster, 1, &far).with_timeout(Duration::from_secs(4)).with_retry(RetryPolicy::None);
    let call = tokio::spawn(async move { client.add(1).await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!call.is_finished());
    cluster.heal();
    assert_eq!(call.await.expect("no panic"), Ok(2), "handled once");
}

#[tokio::test(start_paused = true)]
async fn the_grains_of_a_crashed_node_come_back_elsewhere_and_the_node_under_its_old_name() {
    let mut cluster = builder().seed(3).start().await.expect("it settles");
    let orphan = counter_on(&cluster, 2).await;
    counter(&cluster, 0, &orphan).add(5).await.expect("reachable");
    let before = cluster.node(2).own().expect("a member");
    cluster.kill(2);
    assert!(!cluster.is_running(2));
    cluster.settled().await.expect("the others notice");
    assert_eq!(counter(&cluster, 0, &orphan).add(1).await, Ok(1), "what was only in memory is lost");
    assert_ne!(counter(&cluster, 1, &orphan).place().await, Ok(cluster.authority(2).to_string()));

    cluster.restart(2).await.expect("its address is free");
    cluster.settled().await.expect("it is let in again");
    let after = cluster.node(2).own().expect("a member");
    assert_eq!(after.node, before.node);
    assert!(after.incarnation > before.incarnation);
    assert_eq!(counter(&cluster, 2, &orphan).add(1).await, Ok(2), "handed over to its owner");
    assert_eq!(counter(&cluster, 0, &orphan).place().await, Ok(cluster.authority(2).to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stops_in_order_hands_over_what_its_grains_know() {
    let mut cluster = builder().seed(4).start().await.expect("it settles");
    let grain = counter_on(&cluster, 1).await;
    counter(&cluster, 0, &grain).add(5).await.expect("reachable");
    cluster.stop(1).await.expect("in order");
    cluster.settled().await.expect("the others know");
    assert_eq!(counter(&cluster, 0, &grain).add(1).await, Ok(6));
    assert_eq!(counter(&cluster, 2, &grain).add(1).await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_node_that_dies_are_told() {
    let mut cluster = builder().seed(5).start().await.expect("it settles");
    let (far, near) = (counter_on(&cluster, 0).await, counter_on(&cluster, 1).await);
    cluster.partition(&[&[0], &[1, 2]]);
    let calls: Vec<_> = [far, near]
        .map(|identity| {
            let client = counter(&cluster, 1, &identity);
            tokio::spawn(async move { client.add(1).await })
        })
        .into();
    tokio::time::sleep(Duration::from_millis(100)).await;
    cluster.kill(1);
    let [far, near] = calls.try_into().expect("two");
    let error = far.await.expect("no panic").expect_err("its node is dead");
    assert!(matches!(error, CallError::ShutDown { .. }), "{error}");
    assert_eq!(near.await.expect("no panic"), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn calls_through_a_node_that_has_ended_fail_at_once() {
    let mut cluster = builder().seed(5).start().await.expect("it settles");
    let clients = [0, 1].map(|node| counter(&cluster, node, "a"));
    cluster.kill(0);
    cluster.stop(1).await.expect("in order");
    for client in clients {
        let began = Instant::now();
        let error = client.add(1).await.expect_err("its node has ended");
        assert!(matches!(error, CallError::ShutDown { .. }), "{error}");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_dead_node_lives_on() {
    let mut cluster = builder().nodes(2).seed(6).start().await.expect("it settles");
    counter(&cluster, 0, "a").add(1).await.expect("reachable");
    cluster.kill(1);
    cluster.settled().await.expect("alone");
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let alone = tasks();
    for _ in 0..3 {
        cluster.restart(1).await.expect("its address is free");
        cluster.settled().await.expect("two");
        counter(&cluster, 1, "a").add(1).await.expect("reachable");
        assert!(tasks() > alone);
        cluster.kill(1);
        cluster.settled().await.expect("alone");
        // What waits for a silent peer gives up in this time.
        tokio::time::sleep(SPLIT).await;
    }
    assert!(tasks() <= alone, "{} tasks became {}", alone, tasks());
    assert!(cluster.network().connections() <= 1);
}

#[tokio::test(start_paused = true)]
async fn settings_are_the_tests_own_but_for_what_would_be_a_socket() {
    let cluster = builder()
        .nodes(1)
        .configure(|number, config| {
            assert_eq!(number, 0);
            config.node = "elsewhere".parse().expect("a name");
            config.api = Some(([127, 0, 0, 1], 0).into());
            config.grains.router.queue_depth = 0;
        })
        .start()
        .await
        .expect("alone");
    assert_eq!(cluster.node(0).api_address(), None);
    assert_eq!(cluster.node(0).own().expect("a member").node.as_str(), "node-0");
    let client = counter(&cluster, 0, "a");
    let (first, second) = tokio::join!(client.add(1), client.add(1));
    assert_eq!(first, Ok(1));
    assert!(matches!(second, Err(CallError::Rejected { .. })), "no call waits: {second:?}");

    let none = builder().nodes(0).start().await.expect_err("no nodes");
    assert!(matches!(none, TestClusterError::Nodes { nodes: 0 }));
    let invalid = builder().configure(|_, config| config.remote.lane_messages_max = 0).start().await;
    assert!(matches!(invalid, Err(TestClusterError::Node { node: 0, .. })));
}

/// The same test on the clock of the wall, and on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_forms_in_real_time_with_latency() {
    let latency = Duration::from_millis(1)..=Duration::from_millis(5);
    let mut cluster = builder().nodes(2).latency(latency).start().await.expect("it settles");
    for node in 0..2 {
        for number in 0..10 {
            let identity = format!("counter-{number}");
            assert_eq!(counter(&cluster, node, &identity).add(1).await, Ok(node as u64 + 1));
        }
    }
    cluster.stop(1).await.expect("in order");
    cluster.settled().await.expect("alone");
    assert_eq!(counter(&cluster, 0, "counter-1").add(1).await, Ok(3));
}

/// How often each identity was activated.
type Activations = Arc<Mutex<BTreeMap<String, usize>>>;

/// Says how often it was called.
#[grain]
trait Once {
    async fn call(&mut self) -> Result<u64, GrainError>;
}

struct Counted {
    activations: Activations,
    calls: u64,
}

impl OnceGrain for Counted {
    async fn call(&mut self, _: &mut GrainContext) -> Result<u64, GrainError> {
        self.calls += 1;
        Ok(self.calls)
    }

    async fn activate(
        &mut self,
        context: &mut GrainContext,
        _: Option<GrainSnapshot>,
    ) -> Result<(), GrainError> {
        let identity = context.identity().identity().to_owned();
        *self.activations.lock().expect("unlocked").entry(identity).or_default() += 1;
        // Whoever comes while it starts must wait for it, so let it take its time.
        tokio::task::yield_now().await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn of_ten_thousand_grains_called_by_all_nodes_at_once_there_is_one_each() {
    const KEYS: usize = 10_000;
    let activations = Activations::default();
    let counted = Arc::clone(&activations);
    let kind = Once::kind(move |_| Counted { activations: Arc::clone(&counted), calls: 0 });
    let cluster = TestCluster::builder().kind(kind).seed(9).start().await.expect("it settles");
    let mut calls = tokio::task::JoinSet::new();
    for key in 0..KEYS {
        for node in 0..cluster.len() {
            let client = cluster.node(node).grain::<Once>(&format!("key-{key}")).expect("a name");
            calls.spawn(async move { client.call().await.expect("a stable cluster") });
        }
    }
    let answers = calls.join_all().await;
    let activations = activations.lock().expect("unlocked");
    assert_eq!(activations.len(), KEYS);
    assert_eq!(activations.values().max(), Some(&1), "none of them ran twice");
    // Each of its callers was one of the three that the one activation counted.
    assert_eq!(answers.iter().sum::<u64>(), KEYS as u64 * (1 + 2 + 3));
    let running: usize =
        cluster.running().map(|(_, node)| node.grains().expect("running").activation_counts()["Once"]).sum();
    assert_eq!(running, KEYS);
}

/// Emits what it is called with.
struct Sensor;

impl Grain for Sensor {
    async fn call(
        &mut self,
        context: &mut GrainContext,
        _: i32,
        argument: Bytes,
    ) -> Result<Message, GrainError> {
        let reading = <String as prost::Message>::decode(argument)
            .map_err(|error| GrainError::invalid_argument(error.to_string()))?;
        context.emit(&reading).await.map_err(|error| GrainError::internal(error.to_string()))?;
        Ok(Message::new(&()))
    }
}

/// Whoever listens to a kind hears what its grains emit, on whatever node they run, in order for each grain.
#[tokio::test(start_paused = true)]
async fn the_grains_of_a_kind_have_a_stream_of_events() {
    let cluster = TestCluster::builder()
        .nodes(3)
        .kind(GrainKind::new("Sensor", |_| Sensor))
        .start()
        .await
        .expect("three nodes");
    let emit = async |node: usize, sensor: &str, reading: &str| {
        let grain = cluster.node(node).grain_ref("Sensor", sensor).expect("running");
        grain.call::<()>(0, &reading.to_owned()).await.expect("an answer");
    };
    emit(0, "s0", "nobody hears it").await;
    let mut listeners = Vec::new();
    for node in 0..3 {
        let pubsub = cluster.node(node).pubsub().expect("running");
        listeners.push(pubsub.events_of("Sensor", 64).await.expect("a stream"));
    }
    for turn in 0..2 {
        for sensor in 0..6 {
            emit(sensor % 3, &format!("s{sensor}"), &format!("{sensor}.{turn}")).await;
        }
    }
    for events in &mut listeners {
        let mut heard: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for _ in 0..12 {
            let EmittedEvent { grain, event } = events.recv().await.expect("an event");
            assert_eq!(grain.kind(), "Sensor");
            heard.entry(grain.identity().to_owned()).or_default().push(event.decode().expect("a text"));
        }
        let expected =
            (0..6).map(|sensor| (format!("s{sensor}"), vec![format!("{sensor}.0"), format!("{sensor}.1")]));
        assert_eq!(heard, expected.collect());
    }
}
