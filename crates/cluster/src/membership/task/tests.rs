use synod_core::membership::{
    ClusterEvent, GossipBody, GossipMessage, GossipOutbound, GossipSender, MembershipCoordinatorConfig,
    MembershipCoordinatorError, MembershipDelta, MembershipError, MembershipVersion, NodeRecord, Refutation,
    ViewDigest,
};
use synod_core::{Incarnation, TimerInstant};

use super::*;
use crate::event_stream::{EventStream, Subscription};
use crate::incarnation::{IncarnationStore, MemoryIncarnationStore};
use crate::testing::{authority, member, name, soon, until, wait_for};
use crate::transport::{InMemoryNetwork, InMemoryTransport};

#[tokio::test(start_paused = true)]
async fn whoever_asks_finds_the_effect_in_the_view() {
    let network = InMemoryNetwork::default();
    let (handle, _events) = spawn(&network, "a", &[]);
    assert_eq!(handle.view().own, Some(member("a", 1)));
    assert_eq!(handle.view().own_status, Some(NodeStatus::Up));

    handle.join(member("b", 1), authority("b")).await.expect("an accepted join");
    assert_eq!(handle.view().status(&name("b")), Some(NodeStatus::Joining));
    assert_eq!(handle.view().members.len(), 2);

    handle.down(name("b")).await.expect("a known node");
    assert_eq!(handle.view().status(&name("b")), Some(NodeStatus::Dead));
    assert_eq!(handle.view().quarantine.len(), 1);

    handle.release(authority("b")).await.expect("a running task");
    assert_eq!(handle.view().quarantine, []);
    let reason = QuarantineReason::Requested("test".into());
    handle.quarantine(authority("c"), reason.clone()).await.expect("another address");
    assert_eq!(handle.view().quarantine.len(), 1);

    let refused = handle.join(member("c", 1), authority("c")).await;
    let Err(MembershipHandleError::Driver(MembershipDriverError::Refused(
        MembershipCoordinatorError::Membership { error, .. },
    ))) = refused
    else {
        panic!("the join was not refused: {refused:?}");
    };
    assert_eq!(error, MembershipError::Quarantined { authority: authority("c"), reason });
}

#[tokio::test(start_paused = true)]
async fn the_task_polls_when_the_coordinator_wants_to() {
    let network = InMemoryNetwork::default();
    let (handle, mut events) = spawn(&network, "a", &[]);
    let reason = QuarantineReason::Requested("test".into());
    handle.quarantine(authority("b"), reason).await.expect("another address");
    let began = tokio::time::Instant::now();
    let lifted = wait_for(&mut events, |event| matches!(event, ClusterEvent::QuarantineLifted { .. })).await;
    assert_eq!(lifted.observed_at(), TimerInstant::from_millis(30_000));
    assert_eq!(began.elapsed(), MembershipCoordinatorConfig::default().quarantine_ttl);
    assert_eq!(handle.view().quarantine, []);
}

/// Whoever takes the turns in a task of its own gives up most of them, because something else happened first.
#[tokio::test(start_paused = true)]
async fn a_cancelled_turn_loses_nothing() {
    let network = InMemoryNetwork::default();
    let (mut driver, _events) = driver(&network, "a", &[], Box::new(MemoryIncarnationStore::new()));
    let clock = MonotonicClock::start();
    driver.start_member(1, clock.now()).expect("a stopped driver");
    let (mut task, handle) = MembershipTask::new(driver, clock);
    let mut cancelled = 0;
    let driving = async {
        loop {
            match tokio::time::timeout(Duration::from_millis(1), task.turn()).await {
                Ok(Some(exit)) => break task.finish(exit),
                Ok(None) => {}
                Err(_) => cancelled += 1,
            }
        }
    };
    let using = async {
        for number in 1..=20 {
            let node = format!("n{number}");
            handle.join(member(&node, 1), authority(&node)).await.expect("an accepted join");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Messages, and what is due by itself, come through just the same.
        let mut elsewhere = network.attach(&authority("n1")).expect("a free address");
        let mut record = NodeRecord::joining(member("n1", 1), authority("n1"));
        record.status = NodeStatus::Up;
        say(&mut elsewhere, "a", record, GossipBody::Heartbeat { sequence: 1 });
        soon(handle.wait_until(|view| view.status(&name("n1")) == Some(NodeStatus::Up)))
            .await
            .expect("heard");
        let reason = QuarantineReason::Requested("test".into());
        handle.quarantine(authority("z"), reason).await.expect("another address");
        soon(handle.wait_until(|view| view.quarantine.is_empty())).await.expect("it is lifted in time");
        assert!(handle.view().records.records.len() > 20);
        handle.stop().await
    };
    let ((), stopped) = tokio::join!(driving, using);
    assert_eq!(stopped, Ok(MembershipExit::Stopped));
    assert!(cancelled > 100, "{cancelled}");
    assert!(!network.is_attached(&authority("a")));
}

#[tokio::test(start_paused = true)]
async fn dropping_all_handles_stops_the_task() {
    let network = InMemoryNetwork::default();
    let (handle, mut events) = spawn(&network, "a", &[]);
    let copy = handle.clone();
    drop(handle);
    copy.join(member("b", 1), authority("b")).await.expect("the task lives as long as a handle does");
    drop(copy);
    wait_for(&mut events, |event| matches!(event, ClusterEvent::Shutdown { .. })).await;
    until(|| !network.is_attached(&authority("a"))).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_frees_the_address_and_an_ended_task_refuses_everything() {
    let network = InMemoryNetwork::default();
    let (handle, _events) = spawn(&network, "a", &[]);
    assert_eq!(handle.stop().await, Ok(MembershipExit::Stopped));
    assert!(!network.is_attached(&authority("a")));
    assert!(!handle.is_running());
    assert_eq!(*handle.view(), MembershipView::default());
    assert_eq!(handle.stop().await, Err(MembershipHandleError::Ended));
    assert_eq!(handle.leave_and_stop().await, Err(MembershipHandleError::Ended));
    assert_eq!(handle.leave(name("a")).await, Err(MembershipHandleError::Ended));
    assert_eq!(handle.wait_until(|_| true).await, Err(MembershipHandleError::Ended));
}

#[tokio::test(start_paused = true)]
async fn a_graceful_leave_waits_until_the_others_know() {
    let network = InMemoryNetwork::default();
    let (a, _a_events) = spawn(&network, "a", &[]);
    let (b, mut b_events) = spawn(&network, "b", &["a"]);
    soon(b.wait_until(|view| view.members.len() == 2 && view.own_status == Some(NodeStatus::Up)))
        .await
        .expect("b joins");
    soon(a.wait_until(|view| view.status(&name("b")) == Some(NodeStatus::Up))).await.expect("a sees b");
    assert_eq!(b.leave_and_stop().await, Ok(Departure::Announced));
    // Everybody knew before b stopped, so the view of a is already settled.
    assert_ne!(a.view().status(&name("b")), Some(NodeStatus::Up));
    soon(a.wait_until(|view| view.status(&name("b")) == Some(NodeStatus::Removed)))
        .await
        .expect("a forgets b");
    let removed = |event: &ClusterEvent| {
        matches!(event, ClusterEvent::MemberStatusChanged { to: NodeStatus::Removed, .. })
    };
    wait_for(&mut b_events, removed).await;
}

#[tokio::test(start_paused = true)]
async fn a_leave_that_nobody_hears_is_bounded_by_its_timeout() {
    let network = InMemoryNetwork::default();
    let (handle, _events) = spawn(&network, "a", &[]);
    // Somebody who never answers.
    handle.join(member("b", 1), authority("b")).await.expect("an accepted join");
    let began = tokio::time::Instant::now();
    handle.leave_and_stop().await.expect("a running task");
    assert!(began.elapsed() <= MembershipCoordinatorConfig::default().leave_timeout);
    assert!(!handle.is_running());
}

#[tokio::test(start_paused = true)]
async fn a_client_just_stops() {
    let network = InMemoryNetwork::default();
    let (_a, _a_events) = spawn(&network, "a", &[]);
    let (mut driver, _events) = driver(&network, "c", &["a"], Box::new(MemoryIncarnationStore::new()));
    let clock = MonotonicClock::start();
    driver.start_client(1, clock.now()).expect("a stopped driver");
    let client = MembershipTask::spawn(driver, clock);
    let view = soon(client.wait_until(|view| view.members.len() == 1)).await.expect("the client learns of a");
    assert_eq!((view.state, view.own.as_ref()), (MembershipCoordinatorState::Client, None));
    assert_eq!(client.leave_and_stop().await, Ok(Departure::Unannounced));
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_name_was_taken_over_ends_and_says_by_whom() {
    let network = InMemoryNetwork::default();
    let (handle, _events) = spawn(&network, "a", &[]);
    let mut elsewhere = network.attach(&authority("z")).expect("a free address");
    let record = NodeRecord::joining(member("a", 9), authority("z"));
    say(&mut elsewhere, "a", record, GossipBody::Heartbeat { sequence: 1 });
    let exit = MembershipExit::Superseded { by: member("a", 9), at: authority("z") };
    assert_eq!(soon(handle.ended()).await, exit);
    assert!(!network.is_attached(&authority("a")));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_store_its_new_life_ends_and_says_so() {
    let network = InMemoryNetwork::default();
    let (mut driver, mut events) = driver(&network, "a", &[], Box::new(StoresOnce(false)));
    let clock = MonotonicClock::start();
    driver.start_member(1, clock.now()).expect("a stopped driver");
    let handle = MembershipTask::spawn(driver, clock);
    let mut peer = network.attach(&authority("b")).expect("a free address");
    handle.join(member("b", 1), authority("b")).await.expect("an accepted join");

    // The peer says that the present life is over.
    let (from, to) = (MembershipVersion::ZERO, MembershipVersion::new(1));
    let verdict =
        NodeRecord { status: NodeStatus::Dead, ..NodeRecord::joining(member("a", 1), authority("a")) };
    let delta = MembershipDelta::new(from, to, vec![verdict]).expect("a sound delta");
    let view = ViewDigest { version: to, digest: 1, seen: vec![] };
    let record = NodeRecord {
        status: NodeStatus::Up,
        refutation: Refutation(0),
        ..NodeRecord::joining(member("b", 1), authority("b"))
    };
    say(&mut peer, "a", record, GossipBody::Push { delta, view });
    assert_eq!(soon(handle.ended()).await, MembershipExit::LifeNotStored(refusal(2)));
    wait_for(&mut events, |event| matches!(event, ClusterEvent::Shutdown { .. })).await;
}

/// A store that takes the first life and no other.
struct StoresOnce(bool);

impl IncarnationStore for StoresOnce {
    fn load(&mut self) -> Result<Option<Incarnation>, IncarnationStoreError> {
        Ok(None)
    }

    fn persist(&mut self, incarnation: Incarnation) -> Result<(), IncarnationStoreError> {
        if std::mem::replace(&mut self.0, true) { Err(refusal(incarnation.get())) } else { Ok(()) }
    }
}

fn refusal(incarnation: u64) -> IncarnationStoreError {
    let incarnation = Incarnation::new(incarnation).expect("an incarnation");
    IncarnationStoreError::Persist { incarnation, reason: "the disk is full".into() }
}

fn driver(
    network: &InMemoryNetwork,
    node: &str,
    seeds: &[&str],
    store: Box<dyn IncarnationStore>,
) -> (MembershipDriver<InMemoryTransport>, Subscription) {
    let stream = EventStream::default();
    let events = stream.subscribe();
    let config = MembershipCoordinatorConfig {
        seeds: seeds.iter().map(|seed| authority(seed)).collect(),
        ..MembershipCoordinatorConfig::default()
    };
    let transport = network.attach(&authority(node)).expect("a free address");
    let driver = MembershipDriver::new(name(node), authority(node), config, transport, stream, store);
    (driver.expect("sound settings"), events)
}

fn spawn(network: &InMemoryNetwork, node: &str, seeds: &[&str]) -> (MembershipHandle, Subscription) {
    let (mut driver, events) = driver(network, node, seeds, Box::new(MemoryIncarnationStore::new()));
    let clock = MonotonicClock::start();
    driver.start_member(1, clock.now()).expect("a stopped driver");
    (MembershipTask::spawn(driver, clock), events)
}

fn say(from: &mut InMemoryTransport, to: &str, record: NodeRecord, body: GossipBody) {
    let message = GossipMessage { sender: GossipSender::Member(record), body };
    from.send(GossipOutbound { target: authority(to), message }).expect("an open road");
}
