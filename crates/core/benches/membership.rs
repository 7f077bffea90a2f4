//! How much membership costs: heartbeats, idle polls, merges and memory, on one core with a thousand members.
//!
//! `cargo bench -p synod-core` runs it. Wall-clock figures belong to the machine; compare runs on one machine only.

#![expect(clippy::print_stdout, reason = "a benchmark reports to its user")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use synod_core::membership::{
    GossipBody, GossipMessage, GossipSender, MembershipCoordinator, MembershipCoordinatorConfig,
    MembershipDelta, MembershipVersion, NodeRecord, NodeStatus, PhiConfig, PhiFailureDetector, Refutation,
    ViewDigest,
};
use synod_core::{Authority, Incarnation, MemberId, NodeId, TimerInstant};

const MEMBERS: usize = 1_000;

/// Counts live bytes, so that memory per member is a measurement and not an estimate.
struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system allocator; only a counter is kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises about `pointer` and `layout` are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn node(index: usize) -> NodeId {
    NodeId::new(&format!("node-{index:04}")).expect("a valid name")
}

fn record(index: usize, status: NodeStatus) -> NodeRecord {
    NodeRecord {
        member: MemberId::new(node(index), Incarnation::FIRST),
        authority: Authority::new(&format!("10.0.{}.{}:8401", index / 250, index % 250 + 1))
            .expect("an address"),
        status,
        refutation: Refutation::default(),
    }
}

fn started(gossip_enabled: bool) -> MembershipCoordinator {
    let config = MembershipCoordinatorConfig { gossip_enabled, ..MembershipCoordinatorConfig::default() };
    let own = record(0, NodeStatus::Up);
    let mut coordinator =
        MembershipCoordinator::new(own.member.node, own.authority, config).expect("valid settings");
    coordinator.start_member(Incarnation::FIRST, 1, TimerInstant::ZERO).expect("a stopped coordinator");
    coordinator
}

/// A coordinator that watches every one of its members: gossip is off, so all heartbeats come from outside.
fn full(members: usize) -> MembershipCoordinator {
    let mut coordinator = started(false);
    for index in 1..members {
        let NodeRecord { member, authority, .. } = record(index, NodeStatus::Up);
        coordinator.handle_join(&member, &authority, TimerInstant::ZERO).expect("a new member");
        coordinator.handle_heartbeat(&member, TimerInstant::ZERO).expect("a known member");
    }
    coordinator
}

fn heartbeats(criterion: &mut Criterion) {
    let members: Vec<_> = (1..MEMBERS).map(|index| record(index, NodeStatus::Up).member).collect();
    let mut coordinator = full(MEMBERS);
    // Histories are full, as they are after some minutes.
    let mut now = TimerInstant::ZERO;
    let mut round = |coordinator: &mut MembershipCoordinator| {
        for member in &members {
            // A thousand members with an interval of 200 ms: one heartbeat every 200 µs.
            now = now + Duration::from_micros(200);
            black_box(coordinator.handle_heartbeat(member, now)).expect("a known member");
        }
    };
    (0..210).for_each(|_| round(&mut coordinator));
    let mut group = criterion.benchmark_group("coordinator with 1000 members");
    group.throughput(Throughput::Elements(members.len() as u64));
    group.bench_function("a heartbeat of each", |bencher| bencher.iter(|| round(&mut coordinator)));
    group.finish();
}

/// The same poll with ten and with a thousand watched peers: it looks at the earliest deadline and no further.
fn idle_polls(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("detector poll with nothing due");
    for peers in [10, 100, 1_000] {
        let mut detector = PhiFailureDetector::new(PhiConfig::default()).expect("valid settings");
        for index in 0..peers {
            detector.heartbeat(&node(index), TimerInstant::ZERO);
        }
        let now = TimerInstant::from_millis(1_000);
        group.bench_function(format!("{peers} peers"), |bencher| {
            bencher.iter(|| black_box(detector.poll(black_box(now), Duration::ZERO)));
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("coordinator poll with nothing due");
    for members in [10, 100, 1_000] {
        let mut coordinator = full(members);
        let now = TimerInstant::from_millis(1);
        coordinator.poll(now).expect("a running coordinator");
        group.bench_function(format!("{members} members"), |bencher| {
            bencher.iter(|| black_box(coordinator.poll(black_box(now))));
        });
    }
    group.finish();
}

fn merges(criterion: &mut Criterion) {
    let records: Vec<_> = (1..=MEMBERS).map(|index| record(index, NodeStatus::Up)).collect();
    let version = MembershipVersion::new(MEMBERS as u64);
    let delta = MembershipDelta::new(MembershipVersion::ZERO, version, records.clone()).expect("a delta");
    let view = ViewDigest { version, digest: 0, seen: Vec::new() };
    let message = GossipMessage {
        sender: GossipSender::Member(records[0].clone()),
        body: GossipBody::Push { delta, view },
    };
    let mut group = criterion.benchmark_group("a delta of 1000 records");
    group.throughput(Throughput::Elements(MEMBERS as u64));
    // All records are new: each is stored, announced, placed on the ring and made a peer.
    group.bench_function("all new", |bencher| {
        bencher.iter_batched(
            || (started(true), message.clone()),
            |(mut coordinator, message)| {
                let outcome = coordinator.handle_gossip(message, TimerInstant::from_millis(1));
                (coordinator, outcome)
            },
            BatchSize::LargeInput,
        );
    });
    // All records are known: the ordinary case of a repair.
    group.bench_function("all known", |bencher| {
        let mut coordinator = started(true);
        coordinator.handle_gossip(message.clone(), TimerInstant::from_millis(1)).expect("a delta");
        bencher.iter_batched(
            || message.clone(),
            |message| coordinator.handle_gossip(message, TimerInstant::from_millis(1)),
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

/// Not a duration, so criterion only runs it; the figure is printed.
fn memory(_criterion: &mut Criterion) {
    let empty = LIVE_BYTES.load(Ordering::Relaxed);
    let mut coordinator = full(MEMBERS);
    let mut now = TimerInstant::ZERO;
    for _ in 0..220 {
        now = now + Duration::from_millis(200);
        for index in 1..MEMBERS {
            let member = record(index, NodeStatus::Up).member;
            coordinator.handle_heartbeat(&member, now).expect("a known member");
        }
        coordinator.poll(now).expect("a running coordinator");
    }
    let bytes = (LIVE_BYTES.load(Ordering::Relaxed) - empty) / MEMBERS;
    println!("memory: {bytes} bytes per member, with full heartbeat histories (bound: 2048)");
    assert!(bytes < 2048, "a member takes {bytes} bytes");
    drop(coordinator);
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).measurement_time(Duration::from_secs(3));
    targets = memory, heartbeats, idle_polls, merges
}
criterion_main!(benches);
