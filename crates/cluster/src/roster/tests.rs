use std::time::Duration;

use synod_core::TimerInstant;
use synod_core::gossip::{BlockReason, GossipMemberId};
use synod_core::membership::{RejoinReason, TopologyUpdate};
use synod_core::roster::{RosterConfig, RosterUpdate};

use super::*;
use crate::testing::{authority, drain, member, until, wait_for};

#[tokio::test(start_paused = true)]
async fn the_roster_follows_membership_and_says_what_changed() {
    let (stream, task) = started();
    let mut events = stream.subscribe();
    assert_eq!(names(&task.members()), ["a#1"], "a node is on its own roster from the start");
    assert_eq!(names(&next_update(&mut events).await.joined), ["a#1"]);

    publish_topology(&stream, &[("a", 1), ("b", 3)]);
    let update = next_update(&mut events).await;
    assert_eq!((names(&update.joined), names(&update.members)), (vec!["b#3"], vec!["a#1", "b#3"]));
    // What changes nothing is not told.
    publish_topology(&stream, &[("a", 1), ("b", 3)]);
    // Nor what the spine did not mean: it contradicts itself.
    publish_topology(&stream, &[("b", 4), ("b", 5)]);
    publish_topology(&stream, &[("a", 1)]);
    let update = next_update(&mut events).await;
    assert_eq!((names(&update.left), names(&update.members)), (vec!["b#3"], vec!["a#1"]));

    // Gossip does not decide about synod members.
    publish_topology(&stream, &[("a", 1), ("b", 4)]);
    next_update(&mut events).await;
    let (member, reason) = (GossipMemberId::new("b#4").expect("an id"), BlockReason::Expired);
    let event = GossiperEvent::Blocked { member, reason };
    stream.publish(ClusterEvent::Gossiper { event, observed_at: TimerInstant::ZERO });
    let (previous, current) = (self::member("a", 1), self::member("a", 2));
    let reason = RejoinReason::DeclaredDead;
    let observed_at = TimerInstant::ZERO;
    stream.publish(ClusterEvent::SelfRejoining { previous, current, reason, observed_at });
    let update = next_update(&mut events).await;
    assert_eq!((names(&update.members), names(&update.left)), (vec!["a#2", "b#4"], vec!["a#1"]));
    assert_eq!(names(&task.members()), ["a#2", "b#4"]);
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_nothing_runs_and_nothing_is_told() {
    let (stream, task) = started();
    task.stop().await;
    assert_eq!(stream.subscriber_count(), 0);
    let mut events = stream.subscribe_live();
    publish_topology(&stream, &[("a", 1), ("b", 1)]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(drain(&mut events).len(), 1, "only the topology itself");

    // Dropping ends it as well.
    let (stream, task) = started();
    drop(task);
    until(|| stream.subscriber_count() == 0).await;
}

fn started() -> (EventStream, RosterTask) {
    let stream = EventStream::default();
    let wiring = RosterWiring {
        events: stream.subscribe_live(),
        stream: stream.clone(),
        clock: MonotonicClock::start(),
    };
    let own = Member { id: member("a", 1), authority: authority("a") };
    let roster = Roster::member(own, vec![], RosterConfig::default()).expect("sound settings");
    (stream, RosterTask::start(roster, wiring))
}

fn publish_topology(stream: &EventStream, members: &[(&str, u64)]) {
    let members = members
        .iter()
        .map(|(node, life)| Member { id: member(node, *life), authority: authority(node) })
        .collect();
    let update = TopologyUpdate::new(vec![], vec![], vec![], members, vec![], TimerInstant::ZERO);
    stream.publish(ClusterEvent::TopologyUpdated { update });
}

async fn next_update(events: &mut Subscription) -> RosterUpdate {
    let event = wait_for(events, |event| matches!(event, ClusterEvent::RosterUpdated { .. })).await;
    let ClusterEvent::RosterUpdated { update, .. } = &*event else { panic!("not an update: {event:?}") };
    update.clone()
}

fn names(members: &[RosterMember]) -> Vec<&str> {
    ids(members)
}
