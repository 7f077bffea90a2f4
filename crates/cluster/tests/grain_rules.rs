//! The rules by which grains are called, kept and forgotten, on whole nodes in virtual time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use synod_cluster::grains::{
    CallError, Grain, GrainContext, GrainError, GrainKind, GrainRef, GrainSnapshot, RetryPolicy,
};
use synod_cluster::remote::Message;
use synod_cluster::{Delivery, Subscription, TestCluster, TestClusterBuilder, grain};
use synod_core::grains::{ActivationEvent, AttemptFailure, CallEnd, GrainEvent, PidDropReason, RouterEvent};
use synod_core::membership::{ClusterEvent, QuarantineReason};
use synod_core::outbound::OverflowPolicy;

const SECOND: Duration = Duration::from_secs(1);

type Log = Arc<Mutex<Vec<String>>>;

/// Notes when calls begin and end, and takes a second for each. A call that is told "quick" takes no time.
struct Slow(Log);

impl Grain for Slow {
    async fn activate(
        &mut self,
        context: &mut GrainContext,
        _: Option<GrainSnapshot>,
    ) -> Result<(), GrainError> {
        match context.identity().identity() {
            "broken" => Err(GrainError::internal("it cannot start")),
            _ => Ok(()),
        }
    }

    async fn call(&mut self, _: &mut GrainContext, _: i32, argument: Bytes) -> Result<Message, GrainError> {
        let text = <String as prost::Message>::decode(argument).expect("a text");
        self.0.lock().expect("unlocked").push(format!("begin {text}"));
        if text != "quick" {
            tokio::time::sleep(SECOND).await;
        }
        self.0.lock().expect("unlocked").push(format!("end {text}"));
        Ok(Message::new(&text))
    }
}

fn builder(log: &Log) -> TestClusterBuilder {
    let log = Arc::clone(log);
    let kind = GrainKind::new("Slow", move |_| Slow(Arc::clone(&log))).idle_after(Some(60 * SECOND));
    TestCluster::builder().nodes(1).kind(kind)
}

fn slow(cluster: &TestCluster, node: usize, identity: &str) -> GrainRef {
    cluster.node(node).grain_ref("Slow", identity).expect("a name").with_timeout(30 * SECOND)
}

async fn call(grain: GrainRef, text: &str) -> Result<String, CallError> {
    grain.call::<String>(0, &text.to_owned()).await
}

/// The events about grains since the last look.
fn told(events: &mut Subscription) -> Vec<GrainEvent> {
    let deliveries = std::iter::from_fn(|| events.try_recv());
    let grain_event = |delivery| match delivery {
        Delivery::Event(event) => match &*event {
            ClusterEvent::Grain { event, .. } => Some(event.clone()),
            _ => None,
        },
        Delivery::Missed(events) => panic!("{events} events were missed"),
    };
    deliveries.filter_map(grain_event).collect()
}

/// 5.3, 5.5: what happens to a key is told, from its first activation on; unused for its limit, it is unloaded.
#[tokio::test(start_paused = true)]
async fn the_life_of_a_key_is_told_from_activation_to_reactivation() {
    let cluster = builder(&Log::default()).start().await.expect("it settles");
    let mut events = cluster.node(0).events().subscribe_live();
    let mut lives = move || -> Vec<String> {
        let events = told(&mut events);
        let lives = events.iter().filter_map(|event| match event {
            GrainEvent::Activation(ActivationEvent::Activated { grain, .. }) => {
                Some(format!("{grain} activated"))
            }
            GrainEvent::Activation(ActivationEvent::Reactivated { grain, .. }) => {
                Some(format!("{grain} reactivated"))
            }
            GrainEvent::Activation(ActivationEvent::Passivated { grain, .. }) => {
                Some(format!("{grain} passivated"))
            }
            _ => None,
        });
        lives.collect()
    };
    let running = || cluster.node(0).grains().expect("running").activation_counts().get("Slow").copied();
    call(slow(&cluster, 0, "a"), "quick").await.expect("an answer");
    tokio::time::sleep(30 * SECOND).await;
    call(slow(&cluster, 0, "b"), "quick").await.expect("an answer");
    assert_eq!((lives(), running()), (vec!["Slow/a activated".into(), "Slow/b activated".into()], Some(2)));
    // Half a minute later the first one has been idle for a minute, the second one for half of it.
    tokio::time::sleep(31 * SECOND).await;
    assert_eq!((lives(), running()), (vec!["Slow/a passivated".into()], Some(1)));
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(lives(), ["Slow/b passivated"]);
    call(slow(&cluster, 0, "a"), "quick").await.expect("an answer");
    assert_eq!((lives(), running()), (vec!["Slow/a reactivated".into()], Some(1)));
}

/// 6.3, D6: calls to one key take turns, in the order in which they were made; other keys do not wait for them.
#[tokio::test(start_paused = true)]
async fn calls_to_one_key_take_turns_in_order() {
    let log = Log::default();
    let cluster = builder(&log).start().await.expect("it settles");
    let calls: Vec<_> = (0..5)
        .map(|number| {
            let grain = slow(&cluster, 0, "a");
            tokio::spawn(async move { call(grain, &number.to_string()).await })
        })
        .collect();
    tokio::time::sleep(SECOND / 2).await;
    let began = tokio::time::Instant::now();
    call(slow(&cluster, 0, "b"), "quick").await.expect("an answer");
    assert_eq!(began.elapsed(), Duration::ZERO);
    log.lock().expect("unlocked").retain(|line| !line.ends_with("quick"));
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.expect("no panic"), Ok(number.to_string()));
    }
    let expected: Vec<_> = (0..5).flat_map(|n| [format!("begin {n}"), format!("end {n}")]).collect();
    assert_eq!(*log.lock().expect("unlocked"), expected);
}

/// D6: one call runs, two wait, and for the others the policy decides. Each loss has its reason, for caller and observers.
#[tokio::test(start_paused = true)]
async fn a_full_queue_of_calls_drops_or_refuses_and_tells_why() {
    for overflow in [OverflowPolicy::DropOldest, OverflowPolicy::RejectNew] {
        let cluster = builder(&Log::default())
            .configure(move |_, config| {
                config.grains.router.queue_depth = 2;
                config.grains.router.overflow = overflow;
            })
            .start()
            .await
            .expect("it settles");
        call(slow(&cluster, 0, "a"), "quick").await.expect("an answer");
        let mut events = cluster.node(0).events().subscribe_live();
        let mut calls = Vec::new();
        for number in 0..5 {
            let grain = slow(&cluster, 0, "a");
            calls.push(tokio::spawn(async move { call(grain, &number.to_string()).await }));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut results = Vec::new();
        for call in calls {
            results.push(call.await.expect("no panic"));
        }
        let lost: Vec<_> = (0..5).filter(|number| results[*number].is_err()).collect();
        let reasons: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        match overflow {
            OverflowPolicy::DropOldest => {
                assert_eq!(lost, [1, 2], "the first one runs");
                assert!(
                    reasons.iter().all(|error| matches!(error, CallError::Dropped { .. })),
                    "{reasons:?}"
                );
            }
            OverflowPolicy::RejectNew => {
                assert_eq!(lost, [3, 4]);
                assert!(
                    reasons.iter().all(|error| matches!(error, CallError::Rejected { .. })),
                    "{reasons:?}"
                );
            }
        }
        let told = told(&mut events).into_iter().filter(|event| {
            let GrainEvent::CallFailed(ended) = event else { return false };
            ended.grain.to_string() == "Slow/a"
                && matches!(
                    (&ended.end, overflow),
                    (CallEnd::DroppedOldest, OverflowPolicy::DropOldest)
                        | (CallEnd::Rejected(_), OverflowPolicy::RejectNew)
                )
        });
        assert_eq!(told.count(), 2);
    }
}

/// 6.2: a call that gets no answer ends in time, with its key and how often it was tried, as its policy says.
#[tokio::test(start_paused = true)]
async fn a_timeout_names_the_key_and_the_policy_decides_about_attempts() {
    let cluster = builder(&Log::default())
        .configure(|_, config| config.grains.router.attempt_timeout = SECOND / 2)
        .start()
        .await
        .expect("it settles");
    let mut events = cluster.node(0).events().subscribe_live();
    let retries = |events: &mut Subscription| {
        let told = told(events);
        let retries = told.iter().filter(|event| {
            matches!(event, GrainEvent::Router(RouterEvent::Retrying { grain, failure, .. })
                if grain.to_string() == "Slow/a" && *failure == AttemptFailure::NoAnswer)
        });
        retries.count()
    };
    let (began, grain) = (tokio::time::Instant::now(), slow(&cluster, 0, "a"));
    let delay = SECOND / 10;
    let twice = RetryPolicy::Fixed { retries: 2, delay };
    let timeout = Duration::from_millis(900);
    let error = call(grain.clone().with_retry(twice).with_timeout(timeout), "x").await.expect_err("too slow");
    assert_eq!(began.elapsed(), timeout);
    assert!(
        matches!(&error, CallError::Timeout { grain, attempts: 2 } if grain.to_string() == "Slow/a"),
        "{error:?}"
    );
    assert!(error.to_string().contains("Slow/a did not answer in time"), "{error}");
    assert_eq!(retries(&mut events), 1);
    // Without another attempt it is over with the only one.
    tokio::time::sleep(10 * SECOND).await;
    let began = tokio::time::Instant::now();
    let error = call(grain.with_retry(RetryPolicy::None), "y").await.expect_err("too slow");
    assert!(
        matches!(&error, CallError::Timeout { grain, attempts: 1 } if grain.to_string() == "Slow/a"),
        "{error:?}"
    );
    assert_eq!((retries(&mut events), began.elapsed()), (0, SECOND / 2));
}

/// What serde cannot write as JSON: keys that are no text.
#[grain(serde)]
trait Atlas {
    async fn store(&mut self, map: HashMap<Option<u8>, u8>) -> Result<(), GrainError>;
}

struct Shelf;

impl AtlasGrain for Shelf {
    async fn store(&mut self, _: &mut GrainContext, _: HashMap<Option<u8>, u8>) -> Result<(), GrainError> {
        Ok(())
    }
}

/// 6.4: a call that cannot be written, or whose answer cannot be read, fails, is told, and completes nothing.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_coded_fails_and_never_completes() {
    let cluster = builder(&Log::default()).kind(Atlas::kind(|_| Shelf)).start().await.expect("it settles");
    let mut events = cluster.node(0).events().subscribe_live();
    let counts = || cluster.node(0).grains().expect("running").call_counts();
    // The answer is a text, and no number is asked for.
    let error = slow(&cluster, 0, "a").call::<u64>(0, &"quick".to_owned()).await.expect_err("a text");
    assert!(matches!(&error, CallError::Answer { grain, .. } if grain.to_string() == "Slow/a"), "{error:?}");
    assert_eq!((counts().completed, counts().failed), (0, 1));
    let failed = told(&mut events).into_iter().any(|event| {
        matches!(event, GrainEvent::CallFailed(ended)
            if ended.grain.to_string() == "Slow/a"
                && matches!(ended.end, CallEnd::Failed(AttemptFailure::Uncodable(_))))
    });
    assert!(failed);
    let map = HashMap::from([(None, 1)]);
    let atlas = cluster.node(0).grain::<Atlas>("a").expect("a name");
    let error = atlas.store(map).await.expect_err("no JSON");
    assert!(matches!(&error, CallError::Failed { failure: AttemptFailure::Uncodable(_), .. }), "{error:?}");
    let unwritable = told(&mut events).into_iter().any(
        |event| matches!(event, GrainEvent::CallUnwritable { grain, .. } if grain.to_string() == "Atlas/a"),
    );
    assert!(unwritable);
    assert_eq!(counts().completed, 0);
    call(slow(&cluster, 0, "a"), "quick").await.expect("an answer");
    assert_eq!(counts().completed, 1);
}

/// D17: a grain that does not start is an error of its own, and observers hear the cause.
#[tokio::test(start_paused = true)]
async fn a_grain_that_does_not_start_says_why() {
    let cluster = builder(&Log::default()).start().await.expect("it settles");
    let mut events = cluster.node(0).events().subscribe_live();
    let error = call(slow(&cluster, 0, "broken"), "quick").await.expect_err("it cannot start");
    assert!(
        matches!(&error, CallError::Failed { failure: AttemptFailure::ActivationRefused(why), .. }
            if why.contains("it cannot start")),
        "{error:?}"
    );
    let reason = told(&mut events).into_iter().find_map(|event| match event {
        GrainEvent::Activation(ActivationEvent::SpawnFailed { grain, reason })
            if grain.to_string() == "Slow/broken" =>
        {
            Some(reason)
        }
        _ => None,
    });
    assert!(reason.is_some_and(|reason| reason.contains("it cannot start")));
}

/// D14: a grain that needs the state it left behind does not start without one, and the reason is told.
#[tokio::test(start_paused = true)]
async fn a_grain_that_needs_its_state_and_has_none_fails_with_the_reason() {
    let log = Log::default();
    let notes = Arc::clone(&log);
    let account = GrainKind::new("Account", move |_| Slow(Arc::clone(&notes))).requires_snapshot();
    let cluster = TestCluster::builder().nodes(1).kind(account).start().await.expect("it settles");
    let mut events = cluster.node(0).events().subscribe_live();
    let grain = cluster.node(0).grain_ref("Account", "a").expect("a name").with_timeout(30 * SECOND);
    let error = call(grain, "quick").await.expect_err("there is no state");
    assert!(
        matches!(&error, CallError::Failed { failure: AttemptFailure::ActivationRefused(why), .. }
            if why.contains("needs its state")),
        "{error:?}"
    );
    let missing = told(&mut events).into_iter().any(|event| {
        matches!(event, GrainEvent::Activation(ActivationEvent::SnapshotMissing { grain })
            if grain.to_string() == "Account/a")
    });
    assert!(missing);
    assert!(log.lock().expect("unlocked").is_empty(), "nothing ran");
}

/// A grain that lives on `host`, for whoever is there.
async fn placed(cluster: &TestCluster, from: usize, host: usize, not: &[&str]) -> String {
    for number in 0..1000 {
        let identity = format!("grain-{number}");
        if not.contains(&identity.as_str()) {
            continue;
        }
        let before = cluster.node(host).grains().expect("running").activation_counts().get("Slow").copied();
        call(slow(cluster, from, &identity), "quick").await.expect("settled");
        if cluster.node(host).grains().expect("running").activation_counts().get("Slow").copied() > before {
            return identity;
        }
    }
    panic!("no grain lives on node {host}");
}

/// D12, D13: where grains are is remembered for a time, and not of too many, and not where they can no longer be. Each
/// oblivion is told.
#[tokio::test(start_paused = true)]
async fn remembered_places_are_forgotten_by_rule_and_each_is_told() {
    let mut cluster = builder(&Log::default())
        .nodes(2)
        .configure(|node, config| {
            if node == 0 {
                config.grains.cache.capacity = 1;
                config.grains.cache.ttl = 40 * SECOND;
            }
        })
        .start()
        .await
        .expect("it settles");
    let first = placed(&cluster, 0, 1, &[]).await;
    let second = placed(&cluster, 0, 1, &[&first]).await;
    let mut events = cluster.node(0).events().subscribe_live();
    let mut dropped = move || -> Vec<(String, PidDropReason)> {
        let told = told(&mut events).into_iter().filter_map(|event| match event {
            GrainEvent::PidDropped(dropped) => Some((dropped.grain.identity().to_owned(), dropped.reason)),
            _ => None,
        });
        told.collect()
    };
    let misses = |cluster: &TestCluster| cluster.node(0).grains().expect("running").cache_counts().misses;
    // One has room, so each makes the other one go.
    call(slow(&cluster, 0, &first), "quick").await.expect("an answer");
    assert_eq!(dropped(), [(second.clone(), PidDropReason::Evicted)]);
    let before = misses(&cluster);
    call(slow(&cluster, 0, &first), "quick").await.expect("an answer");
    assert_eq!((dropped(), misses(&cluster)), (vec![], before), "it is remembered");
    // Its time is over.
    tokio::time::sleep(41 * SECOND).await;
    call(slow(&cluster, 0, &first), "quick").await.expect("an answer");
    assert_eq!(dropped(), [(first.clone(), PidDropReason::Expired)]);
    // Its address is kept out, and let in again.
    let (host, membership) = (cluster.authority(1), cluster.node(0).membership().expect("running").clone());
    membership.quarantine(host.clone(), QuarantineReason::Requested("a test".into())).await.expect("taken");
    tokio::time::sleep(SECOND / 10).await;
    assert_eq!(dropped(), [(first.clone(), PidDropReason::AuthorityInvalid)]);
    membership.release(host).await.expect("taken");
    cluster.settled().await.expect("both are there");
    let moved = placed(&cluster, 0, 1, &[&first, &second]).await;
    dropped();
    // Its host goes.
    cluster.kill(1);
    cluster.settled().await.expect("one is left");
    let gone: Vec<_> = dropped().into_iter().map(|(grain, _)| grain).collect();
    assert_eq!(gone, [moved]);
}

/// D19: between nodes of one rack, half a millisecond apart, the median call takes a round trip and no more.
#[tokio::test(start_paused = true)]
async fn the_median_call_within_a_rack_takes_less_than_ten_milliseconds() {
    let latency = Duration::from_micros(500);
    let cluster =
        builder(&Log::default()).nodes(3).latency(latency..=latency).start().await.expect("it settles");
    for number in 0..200 {
        for _ in 0..5 {
            call(slow(&cluster, number % 3, &number.to_string()), "quick").await.expect("an answer");
        }
    }
    for (_, node) in cluster.running() {
        let latencies = node.grains().expect("running").latencies();
        assert!(latencies.count() >= 300);
        let median = latencies.quantile(500_000).expect("calls");
        assert!(median < Duration::from_millis(10), "{median:?}");
    }
}
