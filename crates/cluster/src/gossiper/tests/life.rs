//! Starting, stopping, and what remains.

use super::*;
use tokio::time::Instant;

/// R1.1, R1.6: it is a gossiper, and can be used from several threads.
#[test]
fn it_is_a_gossiper_that_threads_can_share() {
    fn shared<G: Gossiper + Clone + Send + Sync + 'static>() {}
    shared::<TokioGossiper>();
    fn movable<H: Send + Sync + 'static>() {}
    movable::<ConsensusHandle>();
}

/// R1.6: writes from many threads all arrive.
#[tokio::test(start_paused = true)]
async fn writes_of_many_threads_all_arrive() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1"]).await;
    let writers: Vec<_> = (0..4)
        .map(|number| {
            let gossiper = node.gossiper.clone();
            std::thread::spawn(move || {
                for count in 0..20 {
                    let name = format!("k{}", number * 20 + count);
                    gossiper.set_state(key(&name), value("x")).expect("room in the queue");
                    gossiper.get_state(&key(&name));
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().expect("it ends");
    }
    until(|| (0..80).all(|number| node.values(&format!("k{number}")).len() == 1)).await;
}

/// R1.2 - R1.5: start launches, stop ends, and neither can be done twice.
#[tokio::test(start_paused = true)]
async fn start_and_stop_are_refused_out_of_turn() {
    let road = Notebook::default();
    let node = Node::new(steady(), road.clone());
    assert_eq!(node.gossiper.lifecycle(), GossiperState::New);
    assert_eq!(node.gossiper.stop().await, Err(GossiperError::NotStarted));
    assert_eq!(node.gossiper.set_state(key("k"), value("x")), Err(GossiperError::NotStarted));
    publish_roster(&node.stream, &["a#1", "b#1"]);
    node.gossiper.start(id("a#1")).await.expect("it starts");
    assert_eq!(node.gossiper.lifecycle(), GossiperState::Running);
    assert_eq!(node.gossiper.start(id("a#1")).await, Err(GossiperError::AlreadyStarted));
    pass(millis(1)).await;
    assert_eq!(road.take().len(), 1, "the loop runs");

    node.gossiper.stop().await.expect("it stops");
    assert_eq!(node.gossiper.lifecycle(), GossiperState::Stopped);
    assert_eq!(node.gossiper.stop().await, Err(GossiperError::AlreadyStopped));
    road.take();
    pass(millis(10_000)).await;
    assert_eq!(road.sent().len(), 0, "the loop has ended");
}

/// R9.3: from the moment of the stop nothing is accepted any more.
#[tokio::test(start_paused = true)]
async fn everything_is_refused_after_a_stop() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1", "b#1"]).await;
    node.set("k", "x").await;
    node.gossiper.stop().await.expect("it stops");
    let request = node.gossiper.handle_request(id("b#1"), said(&[("b#1", "k", "x", 1)])).await;
    assert_eq!(request, Err(GossiperError::AlreadyStopped));
    assert_eq!(node.gossiper.set_state(key("k"), value("y")), Err(GossiperError::AlreadyStopped));
    let write = node.gossiper.set_state_request(key("k"), value("y")).await;
    assert_eq!(write, Err(GossiperError::AlreadyStopped));
    let check = ConsensusChecker::new(key("k"), |bytes| Ok(bytes.to_vec()));
    let check = node.gossiper.register_consensus_check(check).await.map(|_| ());
    assert_eq!(check, Err(GossiperError::AlreadyStopped));
    assert!(node.gossiper.get_state(&key("k")).is_empty() && node.blocked().is_empty());
}

/// R9.1: a request that is on its way is waited for; R9.2: the farewell goes out meanwhile.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_what_is_on_its_way() {
    let road = Notebook::default();
    road.expect_next([Reaction::AcknowledgeAfter(millis(1_500)), Reaction::AcknowledgeAfter(millis(100))]);
    let node = Node::started(steady(), road.clone(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(1)).await;
    let began = Instant::now();
    node.gossiper.stop().await.expect("it stops");
    assert_eq!(began.elapsed(), millis(1_499));
    let sent = road.sent();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[1].text("a#1", "gracefully_left").as_deref(), Some(""));
    assert_eq!(node.gossiper.counters().requests_answered(), 2);
}

/// The last words are waited for, but not for ever.
#[tokio::test(start_paused = true)]
async fn a_stop_takes_no_longer_than_the_flush_timeout() {
    let road = Notebook::default();
    road.habit("b", Reaction::Ignore);
    let config = TokioGossiperConfig { flush_timeout: millis(700), ..steady() };
    let node = Node::started(config, road.clone(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(1)).await;
    let began = Instant::now();
    node.gossiper.stop().await.expect("it stops");
    assert_eq!(began.elapsed(), millis(700));

    // Without patience the last words are still sent.
    let road = Notebook::default();
    let config = TokioGossiperConfig { flush_timeout: Duration::ZERO, ..steady() };
    let node = Node::started(config, road.clone(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(1)).await;
    let began = Instant::now();
    node.gossiper.stop().await.expect("it stops");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// R9.4: task, subscriptions, checks and requests are gone after a stop.
#[tokio::test(start_paused = true)]
async fn a_stop_releases_everything() {
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let road = Notebook::default();
    road.habit("b", Reaction::Ignore);
    let node = Node::started(steady(), road.clone(), "a#1", &["a#1", "b#1", "c#1"]).await;
    let check = ConsensusChecker::new(key("k"), |bytes| Ok(bytes.to_vec()));
    let check = node.gossiper.register_consensus_check(check).await.expect("room");
    pass(millis(600)).await;
    assert!(tokio::runtime::Handle::current().metrics().num_alive_tasks() > before);
    node.gossiper.stop().await.expect("it stops");
    until(|| tokio::runtime::Handle::current().metrics().num_alive_tasks() == before).await;
    assert_eq!(node.gossiper.shared().checks.len(), 0);
    assert_eq!(check.wait_for_consensus(millis(1)).await, Err(GossiperError::AlreadyStopped));
    // The road is held by this test and the gossiper alone, and the handle keeps nobody alive.
    let shared = Arc::downgrade(node.gossiper.shared());
    drop(node);
    assert!(shared.upgrade().is_none());
    assert_eq!(Arc::strong_count(&road.inner), 1);
}

/// Whoever drops the last clone ends the task, without a word to the peers.
#[tokio::test(start_paused = true)]
async fn an_abandoned_gossiper_ends_without_a_farewell() {
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let road = Notebook::default();
    let node = Node::started(steady(), road.clone(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(1)).await;
    let copy = node.gossiper.clone();
    drop(node);
    pass(millis(1_000)).await;
    assert_eq!(road.take().len(), 3, "it lives as long as a clone does");
    drop(copy);
    until(|| tokio::runtime::Handle::current().metrics().num_alive_tasks() == before).await;
    assert_eq!(road.sent().len(), 0);
}

/// A stop that nobody waits for any more goes on, and a start waits for its end.
#[tokio::test(start_paused = true)]
async fn a_start_waits_for_the_stop_before_it() {
    let road = Notebook::default();
    let node = Node::started(steady(), road.clone(), "a#1", &["a#1", "b#1"]).await;
    node.set("k", "x").await;
    road.habit("b", Reaction::AcknowledgeAfter(millis(300)));
    assert!(tokio::time::timeout(millis(10), node.gossiper.stop()).await.is_err());
    publish_roster(&node.stream, &["a#2", "b#1"]);
    let began = Instant::now();
    node.gossiper.start(id("a#2")).await.expect("it starts again");
    assert!(began.elapsed() > millis(200), "the farewell was still on its way");
    // A new life has nothing of the old one but its peers.
    assert_eq!((node.values("k"), node.gossiper.lifecycle()), (Vec::new(), GossiperState::Running));
    road.take();
    pass(millis(1)).await;
    let sent = road.take();
    assert_eq!(sent.len(), 1);
    assert!(sent[0].state.member(&id("a#2")).is_some() && sent[0].state.member(&id("a#1")).is_none());
    node.gossiper.stop().await.expect("it stops");
    // An id that said goodbye is blocked by its peers.
    let reused = node.gossiper.start(id("a#2")).await;
    let refused = gossip::GossiperError::MemberIdReused { member: id("a#2") };
    assert_eq!(reused, Err(GossiperError::Refused(refused)));
    node.gossiper.start(id("a#3")).await.expect("a new id");
}

/// R12.2, R12.3: it is made of settings and the parts of a node, and refuses settings out of range by name.
#[tokio::test(start_paused = true)]
async fn an_invalid_setting_is_refused_at_construction() {
    let mut config = TokioGossiperConfig::default();
    config.gossip.gossip_fan_out = 0;
    let (stream, clock) = (EventStream::default(), MonotonicClock::start());
    let refused = TokioGossiper::new(config, stream.clone(), clock, Notebook::default());
    let error = refused.expect_err("no fan-out");
    assert!(matches!(error, GossiperError::InvalidConfig(_)));
    assert!(error.to_string().contains("gossip_fan_out"), "{error}");
    let config = TokioGossiperConfig { gossip_actor_name: String::new(), ..TokioGossiperConfig::default() };
    let refused = TokioGossiper::new(config, stream, clock, Notebook::default());
    assert!(refused.expect_err("no name").to_string().contains("gossip_actor_name"));
}

/// A gossiper whose task panics is stopped, says so, and can be started again.
#[tokio::test(start_paused = true)]
async fn a_task_that_panics_leaves_nothing_that_seems_to_run() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1"]).await;
    let check = ConsensusChecker::new(key("k"), |_| panic!("a fault of the application"));
    let check = node.gossiper.register_consensus_check(check).await.expect("room");
    let write = node.gossiper.set_state_request(key("k"), value("x")).await;
    assert_eq!(write, Err(GossiperError::AlreadyStopped));
    assert_eq!(node.gossiper.lifecycle(), GossiperState::Stopped);
    assert_eq!(check.wait_for_consensus(millis(1)).await, Err(GossiperError::AlreadyStopped));
    assert_eq!(node.gossiper.stop().await, Err(GossiperError::Aborted));
    node.gossiper.start(id("a#2")).await.expect("it starts again");
    node.set("k", "x").await;
}

/// An application that cannot count its actors still has a heartbeat.
#[tokio::test(start_paused = true)]
async fn statistics_that_panic_cost_only_themselves() {
    struct Faulty;
    impl ActorStatisticsSource for Faulty {
        fn actor_count(&self) -> BTreeMap<String, i64> {
            panic!("a fault of the application");
        }
    }
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1"]).await;
    pass(millis(1)).await;
    node.gossiper.set_statistics_source(Faulty);
    pass(millis(600)).await;
    let heartbeat = node.gossiper.get_state(&key("heartbeat")).remove(&id("a#1")).expect("a heartbeat");
    assert_eq!(heartbeat.local_timestamp, TimerInstant::from_millis(500));
    node.gossiper.stop().await.expect("it runs");
}
