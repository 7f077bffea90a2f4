//! Entries for tests: few slots and nodes and small numbers, so that they meet each other.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use synod_core::Incarnation;
use synod_core::id::{Authority, MemberId, NodeId};
use synod_core::slots::{
    BootstrapNode, BootstrapState, ElectionCause, Head, HlcTimestamp, NodePorts, NodeRecord, Pace,
    RegistryOp, Replication, SlotEpoch, SlotId, SlotRecord, SlotState, Tag,
};

use super::Entry;

pub(super) fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a name")
}

/// The beginning of a cluster with this namespace, written down at this moment.
pub(super) fn bootstrap(namespace: &str, at: u64) -> BootstrapState {
    let bind = "[::1]:9000".parse().expect("an address");
    let state = BootstrapState {
        initialized_at: HlcTimestamp::from_bits(at),
        initialized_by: node("a"),
        namespace: namespace.into(),
        nodes: vec![BootstrapNode::new(node("a"), bind, vec!["/disk ü".into()]).expect("a node")],
        replication: Replication::default(),
        pace: Pace::default(),
        archive: Some("{\"s3\": \"\\\"\"}".into()),
        queue: synod_core::slots::QueueLayout { voters: 5, ..Default::default() },
    };
    state.checked().expect("a sound cluster")
}

pub(super) fn promise(slot: u16, epoch: u64, granted_to: Option<&str>) -> Entry {
    let (slot, epoch) = (SlotId::new(slot), SlotEpoch::new(epoch));
    Entry::Op(RegistryOp::Promise { slot, epoch, granted_to: granted_to.map(node) })
}

pub(super) fn head(slot: u16, epoch: u64, sequence: u64, value: &[u8]) -> Entry {
    let tag = Tag { epoch: SlotEpoch::new(epoch), sequence };
    let head = Head { tag, accepted: tag.epoch, value: value.into() };
    Entry::Op(RegistryOp::Head { slot: SlotId::new(slot), head })
}

/// Any entries of one cluster.
pub(super) fn entries(count: usize) -> impl Strategy<Value = Vec<Entry>> {
    vec(entry(), 0..count)
}

pub(super) fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        4 => (slot(), number(), option::of(name())).prop_map(|(slot, epoch, granted_to)| {
            Entry::Op(RegistryOp::Promise { slot, epoch: SlotEpoch::new(epoch), granted_to })
        }),
        4 => (slot(), number(), number(), vec(any::<u8>(), 0..40)).prop_map(|(slot, epoch, sequence, value)| {
            let tag = Tag { epoch: SlotEpoch::new(epoch), sequence };
            // Stored by its own primary or by a later one.
            let accepted = SlotEpoch::new(epoch.saturating_add(sequence % 2));
            Entry::Op(RegistryOp::Head { slot, head: Head { tag, accepted, value: value.into() } })
        }),
        4 => record().prop_map(|record| Entry::Op(RegistryOp::Record(record))),
        4 => node_record().prop_map(|record| Entry::Op(RegistryOp::Node(record))),
        1 => any::<u64>().prop_map(|at| Entry::Bootstrap(bootstrap("samples", at))),
        1 => incarnation().prop_map(Entry::Incarnation),
        1 => ".{0,20}".prop_map(Entry::Takeover),
    ]
}

/// A beginning of any cluster at all.
pub(super) fn any_bootstrap() -> impl Strategy<Value = BootstrapState> {
    let node = (name(), any::<u32>(), any::<u128>(), any::<bool>(), vec(".{1,12}", 1..3));
    let pace = (10..60_000_u64, 100..3_600_000_u64, 100..3_000_000_u64, 1..=100_u8, 0..1_000_000_u64);
    let settings = (".{1,20}", 1..=16_384_u16, 1..=7_u8, any::<Index>(), option::of(".{0,30}"));
    (any::<u64>(), vec(node, 1..6), pace, settings).prop_map(|(at, nodes, pace, settings)| {
        let (namespace, total_slots, replicas, writes, archive) = settings;
        let nodes = nodes.into_iter().enumerate().map(|(index, (name, v4, v6, is_v4, disks))| {
            let ip = if is_v4 { std::net::IpAddr::from(v4.to_be_bytes()) } else { v6.to_be_bytes().into() };
            let port = 100 + 10 * index as u16;
            let ports = NodePorts { peer: 1, gossip: 2, s3: 3, jobs: 4 };
            let ports = if is_v4 { NodePorts::after(port).expect("ports") } else { ports };
            let advertise_host = format!("host{index}");
            let node = NodeId::new(&format!("{name}{index}")).expect("a name");
            BootstrapNode { node, bind: (ip, port).into(), advertise_host, ports, disks }
        });
        let nodes: Vec<_> = nodes.collect();
        let (gossip, sync, suspect, fanout, nanos) = pace;
        let state = BootstrapState {
            initialized_at: HlcTimestamp::from_bits(at),
            initialized_by: nodes[0].node.clone(),
            namespace,
            nodes,
            replication: Replication {
                total_slots,
                replicas,
                min_write_replicas: 1 + writes.index(replicas.into()) as u8,
            },
            pace: Pace {
                gossip_interval: Duration::from_millis(gossip) + Duration::from_nanos(nanos % 1000),
                full_sync_interval: Duration::from_millis(sync),
                suspect_timeout: Duration::from_millis(suspect),
                fail_timeout: Duration::from_millis(suspect + 1) + Duration::from_nanos(nanos),
                fanout,
            },
            archive,
            queue: synod_core::slots::QueueLayout { groups: 1 + total_slots % 64, ..Default::default() },
        };
        state.checked().expect("a sound cluster")
    })
}

fn slot() -> impl Strategy<Value = SlotId> {
    prop_oneof![3 => 0..4_u16, 1 => any::<u16>()].prop_map(SlotId::new)
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..5_u64, 1 => any::<u64>()]
}

fn name() -> impl Strategy<Value = NodeId> {
    select(vec!["a", "b", "c.d-e_F9"]).prop_map(node)
}

fn incarnation() -> impl Strategy<Value = Incarnation> {
    prop_oneof![1..6_u64, 1..=synod_core::id::INCARNATION_MAX]
        .prop_map(|number| Incarnation::new(number).expect("a life"))
}

fn record() -> impl Strategy<Value = SlotRecord> {
    let names = || vec(name(), 0..4);
    (slot(), number(), name(), names(), any::<u64>(), names(), select(ElectionCause::ALL.to_vec())).prop_map(
        |(slot, epoch, primary, replicas, at, granted_by, cause)| SlotRecord {
            slot,
            epoch: SlotEpoch::new(epoch),
            primary,
            replicas,
            state: SlotState::Stable,
            updated_at: HlcTimestamp::from_bits(at),
            granted_by,
            cause,
        },
    )
}

fn node_record() -> impl Strategy<Value = NodeRecord> {
    let address = select(vec!["a:1", "[::1]:65535", "10.0.0.1:80"]);
    (name(), incarnation(), address, any::<u64>(), any::<bool>(), number()).prop_map(
        |(name, life, address, instance, leaving, heartbeat)| NodeRecord {
            member: MemberId::new(name, life),
            address: Authority::new(address).expect("an address"),
            instance,
            leaving,
            heartbeat: HlcTimestamp::from_bits(heartbeat),
        },
    )
}
