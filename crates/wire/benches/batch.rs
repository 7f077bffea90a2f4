//! How much a message costs on its way into a frame and out of it: a thousand messages of 32 bytes per batch.
//!
//! `cargo bench -p synod-wire` runs it; the throughput line is in messages, so its inverse is the time per message.
//! Wall-clock figures belong to the machine; compare runs on one machine only.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use synod_wire::limits::BATCH_MESSAGES_SENT_MAX;
use synod_wire::{BatchBuilder, Dialect, Envelope, Frame, PidRef, Push};

const OWN: &str = "10.0.0.2:8080";
const PEER: &str = "10.0.0.1:8080";
const PAYLOAD_BYTES: usize = 32;

fn batches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("batch");
    group.throughput(Throughput::Elements(BATCH_MESSAGES_SENT_MAX as u64));
    for targets in [1, 100] {
        let ids: Vec<String> = (0..targets).map(|id| format!("partition-activator/player-{id}$1")).collect();
        let payload = Bytes::from(vec![7; PAYLOAD_BYTES]);
        let messages: Vec<Envelope<'_>> = ids
            .iter()
            .cycle()
            .take(BATCH_MESSAGES_SENT_MAX)
            .map(|id| {
                Envelope::new(PidRef::new(OWN, id), "chat.Say", payload.clone())
                    .with_sender(PidRef::new(PEER, "future$1"))
            })
            .collect();

        let mut builder = BatchBuilder::new(Dialect::B);
        group.bench_function(format!("build/{targets}"), |bencher| {
            bencher.iter(|| build(&mut builder, black_box(&messages)));
        });
        let frame = build(&mut builder, &messages);
        group.bench_function(format!("read/{targets}"), |bencher| bencher.iter(|| read(black_box(&frame))));
    }
    group.finish();
}

fn build(builder: &mut BatchBuilder, messages: &[Envelope<'_>]) -> Bytes {
    for message in messages {
        assert_eq!(builder.push(message), Ok(Push::Added));
    }
    builder.finish_frame().unwrap_or_default()
}

fn read(frame: &Bytes) -> usize {
    let Ok(Frame::Batch(batch)) = Frame::decode(frame.clone()) else { return 0 };
    batch.envelopes(OWN).flatten().map(|envelope| black_box(envelope).payload.len()).sum()
}

criterion_group!(benches, batches);
criterion_main!(benches);
