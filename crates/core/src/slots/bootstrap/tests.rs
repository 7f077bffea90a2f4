//! The beginning of a cluster: what can be one, when two are the same, and who stores what.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::vec;

use proptest::collection::vec as list;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn name(text: &str) -> NodeId {
    NodeId::new(text).expect("a name")
}

fn node(text: &str, port: u16) -> BootstrapNode {
    let bind = ([127, 0, 0, 1], port).into();
    BootstrapNode::new(name(text), bind, vec!["disk".to_owned()]).expect("a node")
}

fn state() -> BootstrapState {
    BootstrapState {
        initialized_at: HlcTimestamp::from_bits(7),
        initialized_by: name("a"),
        namespace: "test".to_owned(),
        nodes: vec![node("a", 9000), node("b", 9010), node("c", 9020)],
        replication: Replication { total_slots: 64, replicas: 3, min_write_replicas: 1 },
        pace: Pace::default(),
        archive: None,
        queue: QueueLayout::default(),
    }
}

type Change = fn(&mut BootstrapState);

/// Everything that makes another cluster of it.
const LAYOUT: [Change; 14] = [
    |state| state.namespace.push('x'),
    |state| state.replication.total_slots += 1,
    |state| state.replication.replicas = 2,
    |state| state.replication.min_write_replicas = 2,
    |state| drop(state.nodes.pop()),
    |state| state.nodes.push(node("d", 9030)),
    |state| state.nodes[1].node = name("bb"),
    |state| state.nodes[1].bind.set_port(9999),
    |state| state.nodes[1].advertise_host.push('1'),
    |state| state.nodes[1].ports.peer = 9991,
    |state| state.nodes[1].ports.gossip = 9992,
    |state| state.nodes[1].ports.s3 = 9993,
    |state| state.nodes[1].ports.jobs = 9994,
    |state| state.nodes[1].disks.push("more".to_owned()),
];

/// Everything that does not.
const REST: [Change; 14] = [
    |state| state.initialized_at = HlcTimestamp::from_bits(8),
    |state| state.initialized_by = name("b"),
    |state| state.archive = Some("s3".to_owned()),
    |state| state.pace.gossip_interval *= 2,
    |state| state.pace.full_sync_interval *= 2,
    |state| state.pace.suspect_timeout *= 2,
    |state| state.pace.fail_timeout *= 2,
    |state| state.pace.fanout += 1,
    |state| state.queue.is_enabled = false,
    |state| state.queue.voters += 1,
    |state| state.queue.groups += 1,
    |state| state.queue.heartbeat -= Duration::from_millis(1),
    |state| state.queue.election_min += Duration::from_millis(1),
    |state| state.queue.election_max += Duration::from_millis(1),
];

fn changed(change: Change) -> BootstrapState {
    let mut state = state();
    change(&mut state);
    state.checked().expect("a good state")
}

#[test]
fn a_cluster_is_its_layout_and_nothing_else() {
    let id = state().cluster_id();
    for (at, change) in LAYOUT.into_iter().enumerate() {
        assert_ne!(changed(change).cluster_id(), id, "change {at}");
    }
    for (at, change) in REST.into_iter().enumerate() {
        assert_eq!(changed(change).cluster_id(), id, "change {at}");
    }
    // A disk under another path, and names that are cut elsewhere, are another layout too.
    let moved = changed(|state| state.nodes[2].disks = vec!["elsewhere".to_owned()]);
    let cut = changed(|state| state.nodes[2].disks = vec!["else".to_owned(), "where".to_owned()]);
    assert_ne!(moved.cluster_id(), id);
    assert_ne!(moved.cluster_id(), cut.cluster_id());
}

#[test]
fn the_order_in_which_nodes_are_listed_does_not_matter() {
    let turned = changed(|state| state.nodes.reverse());
    assert_eq!(turned, changed(|_| {}));
}

#[test]
fn everything_that_cannot_be_used_is_refused_by_name() {
    let check = |change: Change| {
        let mut state = state();
        change(&mut state);
        state.checked().map(drop)
    };
    let of = |text: &str| name(text);
    assert_eq!(check(|_| {}), Ok(()));
    assert_eq!(check(|state| state.nodes.clear()), Err(BootstrapError::NodeCount { count: 0 }));
    let crowd: Change = |state| {
        let crowd = (0..=NODES_MAX).map(|at| node(&format!("n{at}"), 10_000 + 5 * at as u16));
        state.nodes = crowd.collect();
    };
    assert_eq!(check(crowd), Err(BootstrapError::NodeCount { count: NODES_MAX + 1 }));
    assert_eq!(check(|state| state.namespace.clear()), Err(BootstrapError::Namespace));
    let long: Change = |state| state.namespace = "x".repeat(NAMESPACE_BYTES_MAX + 1);
    assert_eq!(check(long), Err(BootstrapError::Namespace));
    // Not neighbours in the list, and not equal in anything but the name.
    let twice: Change = |state| state.nodes[2].node = name("a");
    assert_eq!(check(twice), Err(BootstrapError::NodeTwice { node: of("a") }));
    for change in [
        (|state| state.nodes[1].advertise_host = "no host".to_owned()) as Change,
        |state| state.nodes[1].bind.set_port(0),
        |state| state.nodes[1].ports.jobs = 0,
    ] {
        assert!(matches!(check(change), Err(BootstrapError::Address { node, .. }) if node == of("b")));
    }
    for change in [
        (|state| state.nodes[1].ports.s3 = state.nodes[0].ports.gossip) as Change,
        |state| state.nodes[1].ports.peer = state.nodes[1].ports.gossip,
        |state| state.nodes[1].bind.set_port(9000),
    ] {
        assert!(matches!(check(change), Err(BootstrapError::AddressTwice { node, .. }) if node == of("b")));
    }
    // The same ports at another host are another address.
    let elsewhere: Change = |state| {
        state.nodes[1] = BootstrapNode { advertise_host: "other".to_owned(), ..node("b", 9000) };
    };
    assert_eq!(check(elsewhere), Ok(()));
    for change in [
        (|state| state.nodes[2].disks.clear()) as Change,
        |state| state.nodes[2].disks.push(String::new()),
        |state| state.nodes[2].disks.push("x".repeat(PATH_BYTES_MAX + 1)),
        |state| state.nodes[2].disks = vec!["disk".to_owned(); DISKS_MAX + 1],
    ] {
        assert_eq!(check(change), Err(BootstrapError::Disks { node: of("c") }));
    }
}

#[test]
fn every_number_has_its_range() {
    let field = |change: Change| {
        let mut state = state();
        change(&mut state);
        match state.checked() {
            Err(BootstrapError::Range { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    let changes: [(Change, &str); 15] = [
        (|state| state.replication.total_slots = 0, "total_slots"),
        (|state| state.replication.total_slots = SLOTS_MAX + 1, "total_slots"),
        (|state| state.replication.replicas = 0, "replicas"),
        (|state| state.replication.replicas = REPLICAS_MAX + 1, "replicas"),
        (|state| state.replication.min_write_replicas = 0, "min_write_replicas"),
        (|state| state.replication.min_write_replicas = 4, "min_write_replicas"),
        (|state| state.pace.gossip_interval = Duration::from_millis(9), "gossip_interval_ms"),
        (|state| state.pace.gossip_interval = Duration::from_millis(60_001), "gossip_interval_ms"),
        (|state| state.pace.full_sync_interval = Duration::from_millis(99), "full_sync_interval in ms"),
        (|state| state.pace.suspect_timeout = Duration::from_millis(99), "suspect_timeout in ms"),
        (|state| state.pace.suspect_timeout = Duration::MAX, "suspect_timeout in ms"),
        (|state| state.pace.fail_timeout = state.pace.suspect_timeout, "fail_timeout in ms"),
        (|state| state.pace.fail_timeout = Duration::from_secs(24 * 3600 + 1), "fail_timeout in ms"),
        (|state| state.pace.fanout = 0, "fanout"),
        (|state| state.pace.fanout = 101, "fanout"),
    ];
    for (change, expected) in changes {
        assert_eq!(field(change), expected);
    }
}

#[test]
fn a_port_must_leave_room_for_the_listeners_after_it() {
    for port in [0, u16::MAX - 3, u16::MAX] {
        let refused = BootstrapNode::new(name("a"), ([127, 0, 0, 1], port).into(), Vec::new());
        assert_eq!(refused, Err(BootstrapError::Ports { node: name("a") }));
    }
    let last = node("a", u16::MAX - 4);
    assert_eq!(last.ports, NodePorts { peer: 65_532, gossip: 65_533, s3: 65_534, jobs: 65_535 });
    let v6 = BootstrapNode::new(name("a"), "[::1]:9000".parse().expect("an address"), Vec::new());
    assert_eq!(v6.expect("a node").gossip().expect("an address").as_str(), "[::1]:9002");
}

#[test]
fn what_differs_is_listed_by_the_names_of_the_settings() {
    assert_eq!(state().differences(&state()), Vec::<String>::new());
    let mut other = state();
    other.initialized_at = HlcTimestamp::from_bits(9);
    other.initialized_by = name("c");
    assert_eq!(state().differences(&other), Vec::<String>::new());
    other.namespace.push('x');
    other.replication.replicas = 2;
    other.pace.fanout = 1;
    other.archive = Some("s3".to_owned());
    other.queue.voters = 5;
    other.nodes[1].disks.push("more".to_owned());
    other.nodes[2].node = name("d");
    let expected = [
        "registry.namespace",
        "initial_cluster.replication",
        "registry.gossip",
        "archive",
        "queue",
        "initial_cluster.nodes.b",
        "initial_cluster.nodes.c",
        "initial_cluster.nodes.d",
    ];
    assert_eq!(state().differences(&other), expected);
    assert_eq!(other.differences(&state()), expected);
}

#[test]
fn a_majority_is_always_needed_and_more_can_be_asked_for() {
    let quorums = |nodes: usize, replicas: u8, min_write_replicas: u8| {
        let mut state = state();
        state.nodes = (0..nodes).map(|at| node(&format!("n{at}"), 9000 + 10 * at as u16)).collect();
        state.replication = Replication { replicas, min_write_replicas, ..state.replication };
        let state = state.checked().expect("a good state");
        (state.replica_count(), state.majority(), state.write_quorum())
    };
    assert_eq!(quorums(1, 3, 1), (1, 1, 1));
    assert_eq!(quorums(2, 3, 1), (2, 2, 2));
    assert_eq!(quorums(3, 3, 1), (3, 2, 2));
    assert_eq!(quorums(3, 3, 3), (3, 2, 3));
    assert_eq!(quorums(4, 4, 1), (4, 3, 3));
    assert_eq!(quorums(9, 5, 4), (5, 3, 4));
    // More than there are cannot store it.
    assert_eq!(quorums(2, 7, 7), (2, 2, 2));
}

proptest! {
    #[test]
    fn slots_are_shared_evenly_and_stay_where_they_are(nodes in 1usize..12, replicas in 1u8..=7, slots in 1u16..300) {
        let mut state = state();
        state.nodes = (0..nodes).map(|at| node(&format!("n{at:02}"), 9000 + 10 * at as u16)).collect();
        state.replication = Replication { total_slots: slots, replicas, min_write_replicas: 1 };
        let state = state.checked().expect("a good state");
        let mut first: BTreeMap<&NodeId, usize> = BTreeMap::new();
        for slot in state.slots() {
            let stored_by: Vec<&NodeId> = state.replicas(slot).collect();
            prop_assert_eq!(stored_by.len(), usize::from(replicas).min(nodes));
            prop_assert_eq!(stored_by.iter().collect::<BTreeSet<_>>().len(), stored_by.len());
            prop_assert_eq!(&state.replicas(slot).collect::<Vec<_>>(), &stored_by);
            *first.entry(stored_by[0]).or_default() += 1;
        }
        // Nobody is first for more than one slot more than anybody else.
        let share = usize::from(slots) / nodes;
        let shares = state.nodes.iter().map(|node| first.get(&node.node).copied().unwrap_or(0));
        prop_assert!(shares.into_iter().all(|slots| slots == share || slots == share + 1));
    }

    #[test]
    fn beginnings_of_one_cluster_join_whatever_the_order(a in variant(), b in variant(), c in variant()) {
        let join = |a: &BootstrapState, b: &BootstrapState| {
            let mut joined = a.clone();
            let is_changed = joined.merge(b).expect("the same cluster");
            assert_eq!(is_changed, joined != *a);
            joined
        };
        let ab = join(&a, &b);
        prop_assert_eq!(&ab, &join(&b, &a));
        prop_assert_eq!(join(&ab, &c), join(&a, &join(&b, &c)));
        prop_assert_eq!(&join(&a, &a), &a);
        for one in [&a, &b] {
            prop_assert_eq!(&join(&ab, one), &ab);
            prop_assert!(ab.initialized_at <= one.initialized_at);
        }
        prop_assert!(ab == a || ab == b);
    }

    #[test]
    fn another_cluster_is_refused_and_changes_nothing(ours in variant(), theirs in variant(), at in 0..LAYOUT.len()) {
        let mut theirs = theirs;
        LAYOUT[at](&mut theirs);
        for (one, other) in [(&ours, &theirs), (&theirs, &ours)] {
            let mut kept = one.clone();
            let refused = ForeignCluster { own: one.cluster_id(), foreign: other.cluster_id() };
            prop_assert_eq!(kept.merge(other), Err(refused));
            prop_assert_eq!(&kept, one);
        }
    }
}

/// What different nodes may have written down of one beginning.
fn variant() -> impl Strategy<Value = BootstrapState> {
    let changes = list(0..REST.len(), 0..3);
    (0u64..3, select(vec!["a", "b"]), changes).prop_map(|(stamp, by, changes)| {
        let mut state = state();
        changes.into_iter().for_each(|at| REST[at](&mut state));
        (state.initialized_at, state.initialized_by) = (HlcTimestamp::from_bits(stamp), name(by));
        state
    })
}
