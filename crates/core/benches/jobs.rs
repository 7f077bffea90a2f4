//! How much a job costs: its life of submit, assignment and ack, and snapshots of a million of them.
//!
//! `cargo bench -p synod-core --bench jobs` runs it. Commands come in frames of 64, bodies have 200 bytes, every command
//! carries a token. A life is two commands. Wall-clock figures belong to the machine; compare runs on one machine only.

#![expect(clippy::print_stdout, reason = "a benchmark reports to its user")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use synod_core::jobs::{
    Assignment, Command, Effects, Frame, GatewayId, JobLimits, JobQueue, Op, QueueName, SessionId, Snapshot,
    SnapshotDecoder, Submit, Token,
};

const BATCH: usize = 64;
const BODY_BYTES: usize = 200;
const MILLION: usize = 1_000_000;
const GATEWAY: GatewayId = GatewayId::new(1);

/// A queue in the middle of its work.
struct Load {
    queue: JobQueue,
    effects: Effects,
    index: u64,
    sequence: u64,
    submits: Frame,
    acks: Frame,
    held: Vec<Assignment>,
}

impl Load {
    /// With so many sessions, and so many jobs that nobody has taken yet.
    fn new(sessions: u64, waiting: usize) -> Self {
        let name = QueueName::new("default").expect("a name");
        let submit = Op::Submit(Submit::new(name.clone(), Bytes::from(vec![7; BODY_BYTES])));
        let token = Some(Token { gateway: GATEWAY, sequence: 0 });
        let frame = |op: Op| Frame { dt_ms: 1, wall_ms: 0, commands: vec![Command { token, op }; BATCH] };
        let ack = Op::Ack { job: Default::default(), fence: Default::default() };
        let mut load = Self {
            queue: JobQueue::new(0, JobLimits::default()).expect("limits"),
            effects: Effects::new(),
            index: 0,
            sequence: 0,
            submits: frame(submit),
            acks: frame(ack),
            held: Vec::new(),
        };
        load.apply_one(Op::GatewayOpen { gateway: GATEWAY });
        for session in (1..=sessions).map(SessionId::new) {
            load.apply_one(Op::SessionOpen { session, secret: 0 });
        }
        for _ in 0..waiting.div_ceil(BATCH) {
            load.submit();
        }
        // As many credits as one batch needs: every ack is followed by an assignment where jobs wait.
        for session in (1..=sessions).map(SessionId::new) {
            let credits = u32::try_from(BATCH as u64 / sessions).expect("small");
            load.apply_one(Op::Credit { session, queues: vec![name.clone()], credits, replaces: false });
        }
        load
    }

    fn apply_one(&mut self, op: Op) {
        self.index += 1;
        self.effects.clear();
        let frame = Frame { dt_ms: 0, wall_ms: 0, commands: vec![op.into()] };
        self.queue.apply(self.index, &frame, &mut self.effects).expect("in order");
        self.take();
    }

    fn submit(&mut self) {
        self.index += 1;
        number(&mut self.submits, &mut self.sequence);
        self.effects.clear();
        self.queue.apply(self.index, &self.submits, &mut self.effects).expect("in order");
        self.take();
    }

    fn take(&mut self) {
        let of = self.effects.deliveries.iter();
        self.held.extend(of.map(|delivery| Assignment { job: delivery.job, fence: delivery.fence }));
    }

    /// A batch of jobs comes, and a batch of jobs is done.
    fn live(&mut self) {
        self.submit();
        self.index += 1;
        for (command, held) in self.acks.commands.iter_mut().zip(self.held.drain(..)) {
            command.op = Op::Ack { job: held.job, fence: held.fence };
        }
        number(&mut self.acks, &mut self.sequence);
        self.effects.clear();
        self.queue.apply(self.index, &self.acks, &mut self.effects).expect("in order");
        self.take();
    }
}

fn number(frame: &mut Frame, sequence: &mut u64) {
    for command in &mut frame.commands {
        *sequence += 1;
        command.token = Some(Token { gateway: GATEWAY, sequence: *sequence });
    }
}

fn lives(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("life");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1)).sample_size(20);
    for (sessions, waiting) in [(1, 1), (64, 1), (1, MILLION), (64, MILLION)] {
        let mut load = Load::new(sessions, waiting);
        group.bench_function(format!("{sessions} sessions, {waiting} waiting"), |bencher| {
            bencher.iter(|| load.live());
        });
        let done = load.queue.totals().acked;
        assert!(done > 0, "jobs were done");
    }
    group.finish();
}

fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame of 64 submits");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1)).sample_size(20);
    let load = Load::new(1, 1);
    let mut out = Vec::new();
    load.submits.encode(&mut out);
    let bytes = Bytes::from(out.clone());
    group.bench_function("encode", |bencher| {
        bencher.iter(|| {
            out.clear();
            load.submits.encode(black_box(&mut out));
        });
    });
    group.bench_function("decode", |bencher| {
        bencher.iter(|| Frame::decode(black_box(bytes.clone())).expect("a frame"));
    });
    group.finish();
}

/// Once each: a million jobs take too long to be repeated.
fn snapshots(_: &mut Criterion) {
    let load = Load::new(64, MILLION);
    let started = Instant::now();
    let snapshot = load.queue.snapshot();
    let taken = started.elapsed();
    let started = Instant::now();
    let chunks: Vec<Bytes> = snapshot.chunks().collect();
    let written = started.elapsed();
    let bytes: usize = chunks.iter().map(Bytes::len).sum();
    let started = Instant::now();
    let mut decoder = SnapshotDecoder::new();
    for chunk in chunks {
        decoder.feed(chunk).expect("a snapshot");
    }
    let restored = decoder.finish().expect("a snapshot");
    let read = started.elapsed();
    let started = Instant::now();
    let hash = Snapshot::hash(&snapshot);
    let hashed = started.elapsed();
    assert_eq!(restored.state_hash(), hash);
    println!(
        "snapshot of {} jobs, {} MiB: taken in {taken:?}, written in {written:?}, read in {read:?}, hashed in {hashed:?}",
        snapshot.job_count(),
        bytes >> 20
    );
}

/// The first frames after a snapshot copy the pages that they touch.
fn lives_beside_a_snapshot(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("life beside a snapshot");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500)).sample_size(20);
    let mut load = Load::new(64, MILLION);
    group.bench_function("taken anew for every 64 lives", |bencher| {
        bencher.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds {
                let snapshot = load.queue.snapshot();
                let started = Instant::now();
                load.live();
                spent += started.elapsed();
                drop(snapshot);
            }
            spent
        });
    });
    group.finish();
}

criterion_group!(benches, lives, lives_beside_a_snapshot, codec, snapshots);
criterion_main!(benches);
