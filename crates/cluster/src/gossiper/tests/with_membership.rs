//! Both kinds of gossip in one task. R3.

use super::*;
use crate::incarnation::MemoryIncarnationStore;
use crate::membership::{Departure, MembershipDriver, MembershipExit, MembershipHandle};
use crate::testing::{member, name, wait_for};
use crate::transport::{GossipTransport, InMemoryNetwork, InMemoryTransport};
use synod_core::membership::{
    GossipBody, GossipMessage, GossipOutbound, GossipSender, MembershipCoordinatorConfig, NodeRecord,
    NodeStatus,
};

/// A node of both networks.
struct Full {
    node: Node,
    membership: MembershipHandle,
}

#[derive(Clone, Default)]
struct Roads {
    gossip: InMemoryGossipNetwork,
    membership: InMemoryNetwork,
}

impl Roads {
    fn driver(
        &self,
        node: &Node,
        host: &str,
        seeds: &[&str],
        clock: MonotonicClock,
    ) -> MembershipDriver<InMemoryTransport> {
        let config = MembershipCoordinatorConfig {
            seeds: seeds.iter().map(|seed| authority(seed)).collect(),
            ..MembershipCoordinatorConfig::default()
        };
        let transport = self.membership.attach(&authority(host)).expect("a free address");
        let store = Box::new(MemoryIncarnationStore::new());
        let stream = node.stream.clone();
        let driver = MembershipDriver::new(name(host), authority(host), config, transport, stream, store);
        let mut driver = driver.expect("sound settings");
        driver.start_member(1, clock.now()).expect("a stopped driver");
        driver
    }

    async fn start(&self, host: &str, seeds: &[&str], roster: &[&str]) -> Full {
        let clock = MonotonicClock::start();
        let stream = EventStream::default();
        let events = stream.subscribe();
        let carrier = self.gossip.carrier(&authority(host), "gossip");
        let gossiper = TokioGossiper::new(steady(), stream.clone(), clock, carrier).expect("valid settings");
        self.gossip.attach(&authority(host), &gossiper);
        let node = Node { gossiper, stream, events };
        publish_roster(&node.stream, roster);
        let driver = self.driver(&node, host, seeds, clock);
        let membership = node.gossiper.start_with_membership(driver).await.expect("it starts");
        Full { node, membership }
    }
}

/// R3.1 - R3.5: one task drives both, membership spreads, its events are on the stream and its phase can be read.
#[tokio::test(start_paused = true)]
async fn one_task_spreads_membership_and_state() {
    let roads = Roads::default();
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut a = roads.start("a", &[], &["a#1"]).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), before + 1);
    assert!(a.node.gossiper.phase().is_some());
    let b = roads.start("b", &["a"], &["a#1", "b#1"]).await;
    publish_roster(&a.node.stream, &["a#1", "b#1"]);
    for full in [&a, &b] {
        soon(full.membership.wait_until(|view| {
            ["a", "b"].iter().all(|node| view.status(&name(node)) == Some(NodeStatus::Up))
        }))
        .await
        .expect("they find each other");
        assert_eq!(full.node.gossiper.membership().map(|handle| handle.view()), Some(full.membership.view()));
    }
    let joined = |event: &ClusterEvent| matches!(event, ClusterEvent::MemberStatusChanged { to: NodeStatus::Up, member, .. } if member.node == name("b"));
    wait_for(&mut a.node.events, joined).await;
    soon(a.membership.wait_until(|view| view.phase == Some(GossipPhase::Confirmed)))
        .await
        .expect("it spreads");
    assert_eq!(a.node.gossiper.phase(), Some(GossipPhase::Confirmed));
    a.node.set("k", "x").await;
    pass(millis(600)).await;
    assert_eq!(b.node.values("k"), [("a#1".into(), "x".into())]);
    // The handle gives orders as ever.
    a.membership.down(name("b")).await.expect("a known node");
    assert_eq!(a.membership.view().status(&name("b")), Some(NodeStatus::Dead));
}

/// Gossip alone would block a silent member for good; membership may still hold it alive, and then it decides.
#[tokio::test(start_paused = true)]
async fn silence_blocks_nobody_whom_membership_holds_alive() {
    let roads = Roads::default();
    let a = roads.start("a", &[], &["a#1"]).await;
    let b = roads.start("b", &["a"], &["a#1", "b#1"]).await;
    publish_roster(&a.node.stream, &["a#1", "b#1"]);
    b.node.set("k", "x").await;
    pass(millis(1000)).await;
    assert_eq!(a.node.values("k"), [("b#1".into(), "x".into())]);
    // Only the road of the state is cut: membership hears of b all the time.
    roads.gossip.disconnect(&authority("a"), &authority("b"));
    pass(millis(15_000)).await;
    assert_eq!(a.node.gossiper.blocked_members().len(), 0);
    b.node.set("k", "y").await;
    roads.gossip.reconnect(&authority("a"), &authority("b"));
    pass(millis(3000)).await;
    assert_eq!(a.node.values("k"), [("b#1".into(), "y".into())]);
    // Once membership gives it up, gossip does, too.
    a.membership.down(name("b")).await.expect("a known node");
    publish_roster(&a.node.stream, &["a#1"]);
    pass(millis(1000)).await;
    assert_eq!(a.node.gossiper.blocked_members().keys().collect::<Vec<_>>(), [&id("b#1")]);
}

/// A stop of the gossiper ends the membership and frees its address; both can be started again.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_both_and_both_start_again() {
    let roads = Roads::default();
    let a = roads.start("a", &[], &["a#1"]).await;
    a.node.gossiper.stop().await.expect("it stops");
    assert_eq!(a.membership.ended().await, MembershipExit::Stopped);
    assert!(!roads.membership.is_attached(&authority("a")));
    assert_eq!(a.node.gossiper.phase(), None);
    // The same life is over; the driver of a new store would begin it again, and is refused.
    let clock = MonotonicClock::start();
    let same = roads.driver(&a.node, "a", &[], clock);
    let refused = a.node.gossiper.start_with_membership(same).await.map(|_| ());
    let reused = gossip::GossiperError::MemberIdReused { member: id("a#1") };
    assert_eq!(refused, Err(GossiperError::Refused(reused)));
    let mut next = roads.driver(&a.node, "a", &[], clock);
    next.stop(clock.now()).expect("it runs");
    next.start_member(1, clock.now()).expect("it starts in its second life");
    let membership = a.node.gossiper.start_with_membership(next).await.expect("a new id");
    assert_eq!(membership.view().own, Some(member("a", 2)));
}

/// A leave through the handle ends the membership only; the gossiper goes on until it is stopped.
#[tokio::test(start_paused = true)]
async fn the_gossiper_outlives_the_membership() {
    let roads = Roads::default();
    let a = roads.start("a", &[], &["a#1"]).await;
    let b = roads.start("b", &["a"], &["a#1", "b#1"]).await;
    publish_roster(&a.node.stream, &["a#1", "b#1"]);
    soon(b.membership.wait_until(|view| view.own_status == Some(NodeStatus::Up))).await.expect("b joins");
    assert_eq!(b.membership.leave_and_stop().await, Ok(Departure::Announced));
    assert_eq!(b.node.gossiper.lifecycle(), GossiperState::Running);
    b.node.set("k", "last words").await;
    b.node.gossiper.stop().await.expect("it stops");
    assert_eq!(a.node.gossiper.blocked_members().get(&id("b#1")), Some(&BlockReason::Left));
}

/// Another process took the name over: the exit is visible through the handle as ever.
#[tokio::test(start_paused = true)]
async fn a_superseded_membership_says_so() {
    let roads = Roads::default();
    let a = roads.start("a", &[], &["a#1"]).await;
    let mut usurper = roads.membership.attach(&authority("usurper")).expect("a free address");
    let record = NodeRecord::joining(member("a", 5), authority("usurper"));
    let body = GossipBody::Heartbeat { sequence: 1 };
    let message = GossipMessage { sender: GossipSender::Member(record), body };
    usurper.send(GossipOutbound { target: authority("a"), message }).expect("an open road");
    let exit = soon(a.membership.ended()).await;
    assert_eq!(exit, MembershipExit::Superseded { by: member("a", 5), at: authority("usurper") });
    assert_eq!(a.node.gossiper.lifecycle(), GossiperState::Running);
    assert_eq!(a.node.gossiper.membership().expect("its handle").ended().await, exit);
}

/// A heartbeat in the gossip is a sign of life for the membership: who is heard there is not suspected.
#[tokio::test(start_paused = true)]
async fn gossiped_heartbeats_keep_members_alive() {
    let status = |gossip_works: bool| async move {
        let roads = Roads::default();
        let a = roads.start("a", &[], &["a#1"]).await;
        let b = roads.start("b", &["a"], &["a#1", "b#1"]).await;
        publish_roster(&a.node.stream, &["a#1", "b#1"]);
        soon(a.membership.wait_until(|view| view.status(&name("b")) == Some(NodeStatus::Up)))
            .await
            .expect("up");
        pass(millis(10_000)).await;
        roads.membership.disconnect(&authority("a"), &authority("b"));
        if !gossip_works {
            roads.gossip.disconnect(&authority("a"), &authority("b"));
        }
        pass(millis(30_000)).await;
        drop(b);
        a.membership.view().status(&name("b"))
    };
    assert_eq!(status(true).await, Some(NodeStatus::Up));
    assert_ne!(status(false).await, Some(NodeStatus::Up));
}

/// A node that was declared dead begins a new life, and its gossip goes on under the new id with what it had written.
#[tokio::test(start_paused = true)]
async fn gossip_follows_the_node_into_its_next_life() {
    let roads = Roads::default();
    let a = roads.start("a", &[], &["a#1"]).await;
    let b = roads.start("b", &["a"], &["a#1", "b#1"]).await;
    publish_roster(&a.node.stream, &["a#1", "b#1"]);
    soon(a.membership.wait_until(|view| view.status(&name("b")) == Some(NodeStatus::Up))).await.expect("up");
    b.node.set("k", "x").await;
    pass(millis(1_000)).await;
    a.membership.down(name("b")).await.expect("a known node");
    a.membership.release(authority("b")).await.expect("it runs");
    let reborn = |view: &crate::membership::MembershipView| view.own == Some(member("b", 2));
    soon(b.membership.wait_until(reborn)).await.expect("b begins a new life");
    for full in [&a, &b] {
        publish_roster(&full.node.stream, &["a#1", "b#2"]);
    }
    pass(millis(1_500)).await;
    for full in [&a, &b] {
        assert_eq!(full.node.values("k"), [("b#2".into(), "x".into())]);
        assert_eq!(full.node.blocked(), ["b#1"]);
    }
}

/// A member that the roster leaves out while membership holds it alive is not blocked for good.
#[tokio::test(start_paused = true)]
async fn who_membership_holds_alive_is_not_blocked() {
    let roads = Roads::default();
    let a = roads.start("a", &[], &["a#1", "b#1"]).await;
    let _b = roads.start("b", &["a"], &["a#1", "b#1"]).await;
    soon(a.membership.wait_until(|view| view.status(&name("b")) == Some(NodeStatus::Up))).await.expect("up");
    publish_roster(&a.node.stream, &["a#1"]);
    pass(millis(100)).await;
    assert_eq!(a.node.blocked(), [""; 0]);
    // Not so a Go member, of which membership knows nothing.
    publish_roster(&a.node.stream, &["a#1", "go"]);
    pass(millis(100)).await;
    publish_roster(&a.node.stream, &["a#1", "b#1"]);
    pass(millis(100)).await;
    assert_eq!(a.node.blocked(), ["go"]);
}

/// Only a member gossips.
#[tokio::test(start_paused = true)]
async fn a_client_does_not_gossip() {
    let roads = Roads::default();
    let node = Node::new(steady(), roads.gossip.carrier(&authority("a"), "gossip"));
    let clock = MonotonicClock::start();
    let mut driver = roads.driver(&node, "a", &[], clock);
    driver.stop(clock.now()).expect("it runs");
    driver.start_client(1, clock.now()).expect("it is stopped");
    let refused = node.gossiper.start_with_membership(driver).await.map(|_| ());
    assert_eq!(refused, Err(GossiperError::NotAMember));
    assert_eq!(node.gossiper.lifecycle(), GossiperState::New);
}
