use std::sync::{Arc, Mutex};

use synod_core::TimerInstant;
use synod_core::membership::{NodeStatus, QuarantineReason, TopologyError};

use super::*;
use crate::testing::{self, authority, name};

#[test]
fn a_topology_is_refused_before_the_start_and_after_the_shutdown() {
    let mut core = ClusterCore::new(true);
    let update = update(&["a"], &[], &[], &["a"]);
    assert_eq!(core.try_apply_topology(&update), Err(TopologyApplyError::NotStarted));
    core.start(ClusterMode::Member).expect("a first start");
    assert!(core.try_apply_topology(&update).is_ok());
    core.shutdown();
    assert_eq!(core.try_apply_topology(&update), Err(TopologyApplyError::NotStarted));
    assert_eq!(core.member_count(), 0);
}

#[test]
fn every_contradiction_of_a_topology_is_refused_with_its_own_reason() {
    let duplicate = |set| TopologyError::Duplicate { node: name("x"), set };
    let overlap = |first, second| TopologyError::Overlap { node: name("x"), first, second };
    let stays = |set| TopologyError::DepartedStillMember { node: name("x"), set };
    let cases = [
        (update(&[], &[], &[], &["x", "a", "x"]), duplicate("members")),
        (update(&["x", "x"], &[], &[], &["x"]), duplicate("joined")),
        (update(&[], &["x", "x"], &[], &["a"]), duplicate("left")),
        (update(&[], &[], &["x", "x"], &["a"]), duplicate("dead")),
        (update(&["x"], &["x"], &[], &["a"]), overlap("joined", "left")),
        (update(&["x"], &[], &["x"], &["a"]), overlap("joined", "dead")),
        (update(&[], &["x"], &["x"], &["a"]), overlap("left", "dead")),
        (update(&[], &["x"], &[], &["a", "x"]), stays("left")),
        (update(&[], &[], &["x"], &["a", "x"]), stays("dead")),
        (update(&["x"], &[], &[], &["a"]), TopologyError::JoinedNotMember { member: member("x", 1).id }),
    ];
    let mut core = started(true);
    core.try_apply_topology(&update(&["a"], &[], &[], &["a"])).expect("a sound topology");
    for (number, (contradictory, reason)) in (1..).zip(cases) {
        let refused = core.try_apply_topology(&contradictory);
        assert_eq!(refused, Err(TopologyApplyError::InvalidTopology(reason)));
        // The previous topology stands.
        assert_eq!(core.members(), [member("a", 1)]);
        assert_eq!(core.metrics().map(|m| (m.topology_updates, m.topology_failures)), Ok((1, number)));
    }
}

#[test]
fn the_same_topology_is_applied_once_and_told_once() {
    let mut core = started(true);
    let first = update(&["a", "b"], &[], &[], &["a", "b"]);
    let applied = core.try_apply_topology(&first);
    assert_eq!(applied, Ok(Some(ClusterEvent::TopologyUpdated { update: first.clone() })));
    assert_eq!(core.topology_hash(), Some(first.topology.hash));

    // Equal members have an equal hash, whatever the update says about how they came about.
    assert_eq!(core.try_apply_topology(&first), Ok(None));
    assert_eq!(core.try_apply_topology(&update(&["b"], &[], &[], &["a", "b"])), Ok(None));
    assert_eq!(core.metrics().map(|metrics| metrics.topology_updates), Ok(1));
}

#[test]
fn listeners_hear_who_left_who_died_and_which_lives_were_replaced() {
    let mut core = started(true);
    let told = Arc::new(Mutex::new(Vec::new()));
    core.add_listener(Box::new(Recorder(Arc::clone(&told))));

    apply(&mut core, &update(&["a", "b", "c", "d"], &[], &[], &["a", "b", "c", "d"]));
    // b leaves, c dies and d is restarted, all in one window.
    let restarted = member("d", 2);
    let mut second = update(&[], &["b"], &["c"], &["a"]);
    second.topology.joined.push(restarted.clone());
    second.members.push(restarted);
    second.topology.hash += 1;
    apply(&mut core, &second);

    let departed = vec![member("b", 1), member("c", 1), member("d", 1)];
    assert_eq!(core.departed(), departed);
    assert_eq!(*told.lock().expect("a lock"), [(4, vec![]), (2, departed)]);
}

#[test]
fn departures_in_an_update_that_never_arrived_are_noticed_with_the_next_one() {
    let mut core = started(true);
    apply(&mut core, &update(&["a", "b"], &[], &[], &["a", "b"]));
    // The update that said "b left" was lost; this one only says that c joined.
    apply(&mut core, &update(&["c"], &[], &[], &["a", "c"]));
    assert_eq!(core.departed(), [member("b", 1)]);
}

#[test]
fn metrics_follow_topologies_events_and_the_quarantine_between_them() {
    let mut core = started(true);
    let mut first = update(&["a", "b"], &[], &[], &["a", "b"]);
    first.blocked.push(authority("x"));
    apply(&mut core, &first);
    core.observe(&status_changed("b"));
    core.observe(&quarantined("y"));
    core.observe(&quarantined("y"));
    core.observe_missed(7);
    let expected = ClusterMetrics {
        members: 2,
        quarantined: 2,
        topology_updates: 1,
        topology_failures: 0,
        status_changes: 1,
        late_changes: 0,
        events_missed: 7,
    };
    assert_eq!(core.metrics(), Ok(expected));
    core.observe(&ClusterEvent::QuarantineLifted { authority: authority("x"), observed_at: AT });
    assert_eq!(core.metrics().map(|metrics| metrics.quarantined), Ok(1));
    assert_eq!(core.blocked().collect::<Vec<_>>(), [&authority("y")]);

    // A new run starts from zero.
    core.shutdown();
    core.start(ClusterMode::Client).expect("a second start");
    assert_eq!(core.metrics(), Ok(ClusterMetrics::default()));
}

#[test]
fn while_metrics_are_off_every_question_fails_and_topologies_apply_all_the_same() {
    let mut core = ClusterCore::new(false);
    assert_eq!(core.metrics(), Err(MetricsError::Disabled));
    core.start(ClusterMode::Member).expect("a first start");
    assert_eq!(core.metrics(), Err(MetricsError::Disabled));
    assert!(matches!(core.try_apply_topology(&update(&["a"], &[], &[], &["a"])), Ok(Some(_))));
    core.observe(&status_changed("a"));
    assert_eq!(core.metrics(), Err(MetricsError::Disabled));
    assert_eq!(core.member_count(), 1);
    core.shutdown();
    assert_eq!(core.metrics(), Err(MetricsError::Disabled));
}

#[test]
fn a_second_start_is_refused_and_a_second_shutdown_is_harmless() {
    let mut core = started(false);
    let refused = core.start(ClusterMode::Client);
    assert_eq!(refused, Err(AlreadyStarted { mode: ClusterMode::Member }));
    core.shutdown();
    core.shutdown();
    assert_eq!(core.mode(), None);
    core.start(ClusterMode::Client).expect("a start after the shutdown");
}

type Told = Arc<Mutex<Vec<(usize, Vec<Member>)>>>;

struct Recorder(Told);

impl TopologyListener for Recorder {
    fn topology_applied(&mut self, update: &TopologyUpdate, departed: &[Member]) {
        self.0.lock().expect("a lock").push((update.members.len(), departed.to_vec()));
    }
}

fn started(metrics_enabled: bool) -> ClusterCore {
    let mut core = ClusterCore::new(metrics_enabled);
    core.start(ClusterMode::Member).expect("a first start");
    core
}

fn apply(core: &mut ClusterCore, update: &TopologyUpdate) {
    assert!(matches!(core.try_apply_topology(update), Ok(Some(_))));
}

fn update(joined: &[&str], left: &[&str], dead: &[&str], members: &[&str]) -> TopologyUpdate {
    let list = |names: &[&str]| names.iter().map(|name| member(name, 1)).collect();
    TopologyUpdate::new(list(joined), list(left), list(dead), list(members), vec![], AT)
}

fn status_changed(name: &str) -> ClusterEvent {
    ClusterEvent::MemberStatusChanged {
        member: member(name, 1).id,
        authority: authority(name),
        from: None,
        to: NodeStatus::Joining,
        observed_at: AT,
    }
}

fn quarantined(name: &str) -> ClusterEvent {
    let reason = QuarantineReason::Requested("test".into());
    ClusterEvent::MemberQuarantined { authority: authority(name), reason, observed_at: AT }
}

fn member(node: &str, incarnation: u64) -> Member {
    Member { id: testing::member(node, incarnation), authority: authority(node) }
}

const AT: TimerInstant = TimerInstant::from_millis(5);
