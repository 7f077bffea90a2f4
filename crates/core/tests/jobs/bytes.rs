//! Frames and snapshots as bytes: what comes back is what went in, and what is damaged is refused.

use bytes::Bytes;
use proptest::prelude::*;
use synod_core::jobs::{
    ClientId, CodecError, Command, Dedupe, Effects, Frame, GatewayId, JobLimits, JobQueue, Op, QueueName,
    Quota, Refusal, Reply, SessionId, SnapshotDecoder, SnapshotError, Submit, Token, UserKey,
};
use xxhash_rust::xxh3::xxh3_128;

use crate::script::{Cast, GATEWAY, any_step};

fn bytes_of(queue: &JobQueue) -> Vec<u8> {
    queue.snapshot().chunks().flatten().collect()
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out
}

/// Makes the checksum right again, so that what is behind it has to look for itself.
fn with_right_sum(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 18;
    let sum = xxh3_128(&bytes[..end]).to_le_bytes();
    bytes[end + 2..].copy_from_slice(&sum);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Of all that a restored state could forget, nothing must ever show: it is run on, beside the one that lived.
    #[test]
    fn a_snapshot_and_the_rest_of_the_log_are_the_whole_log(
        steps in prop::collection::vec(any_step(), 1..200),
        cut in 0.0_f64..1.0,
    ) {
        let mut cast = Cast::new(JobLimits::default());
        let cut = (steps.len() as f64 * cut) as usize;
        for step in &steps[..cut] {
            cast.play(step);
        }
        let snapshot = cast.queue.snapshot();
        let mut restored = JobQueue::decode_snapshot(bytes_of(&cast.queue).into()).expect("a snapshot");
        prop_assert_eq!(restored.state_hash(), cast.queue.state_hash());
        prop_assert_eq!(restored.list_sessions(None, usize::MAX), cast.queue.list_sessions(None, usize::MAX));
        let from = cast.log.len();
        let before: Vec<u8> = snapshot.chunks().flatten().collect();
        for step in &steps[cut..] {
            cast.play(step);
        }
        let mut effects = Effects::new();
        let mut replayed = JobQueue::new(1, JobLimits::default()).expect("limits");
        for (place, (index, frame)) in cast.log.iter().enumerate() {
            replayed.apply(*index, frame, &mut Effects::ignored()).expect("in order");
            if place >= from {
                effects.clear();
                restored.apply(*index, frame, &mut effects).expect("in order");
                prop_assert_eq!(restored.next_due_ms(), replayed.next_due_ms());
                prop_assert_eq!(restored.digest(), replayed.digest());
            }
        }
        prop_assert_eq!(bytes_of(&restored), bytes_of(&cast.queue));
        prop_assert_eq!(bytes_of(&replayed), bytes_of(&cast.queue));
        // The snapshot shares its jobs with the queue, which went on; it must not have moved.
        prop_assert_eq!(snapshot.chunks().flatten().collect::<Vec<u8>>(), before);
    }

    #[test]
    fn a_frame_survives_its_bytes(steps in prop::collection::vec(any_step(), 1..60)) {
        let mut cast = Cast::new(JobLimits::default());
        for step in &steps {
            cast.play(step);
        }
        let commands = cast.log.iter().flat_map(|(_, frame)| frame.commands.clone()).collect();
        let frame = Frame { dt_ms: 17, wall_ms: u64::MAX, commands };
        let bytes = encoded(&frame);
        prop_assert_eq!(Frame::decode(bytes.clone().into()), Ok(frame));
        for end in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            prop_assert!(Frame::decode(Bytes::copy_from_slice(&bytes[..end])).is_err());
        }
    }

    #[test]
    fn damaged_frames_are_refused_or_are_other_frames(
        steps in prop::collection::vec(any_step(), 1..30),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut cast = Cast::new(JobLimits::default());
        for step in &steps {
            cast.play(step);
        }
        let commands = cast.log.iter().flat_map(|(_, frame)| frame.commands.clone()).collect();
        let mut bytes = encoded(&Frame { dt_ms: 1, wall_ms: 2, commands });
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Ok(frame) = Frame::decode(bytes.clone().into()) {
            prop_assert_eq!(encoded(&frame), bytes, "one spelling only");
            // What could be decoded can be applied, whatever it says.
            let index = cast.index + 1;
            cast.queue.apply(index, &frame, &mut Effects::new()).expect("in order");
            JobQueue::decode_snapshot(bytes_of(&cast.queue).into()).expect("a snapshot");
        }
    }

    #[test]
    fn damaged_snapshots_are_refused(
        steps in prop::collection::vec(any_step(), 1..60),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in any::<prop::sample::Index>(),
    ) {
        let mut cast = Cast::new(JobLimits::default());
        for step in &steps {
            cast.play(step);
        }
        let whole = bytes_of(&cast.queue);
        let cut = end.index(whole.len());
        prop_assert!(JobQueue::decode_snapshot(Bytes::copy_from_slice(&whole[..cut])).is_err());
        let mut bytes = whole.clone();
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        prop_assert!(bytes == whole || JobQueue::decode_snapshot(bytes.clone().into()).is_err());
        // With a checksum that was made to fit, it is refused, or it is a state that can be worked with.
        if let Ok(mut queue) = JobQueue::decode_snapshot(with_right_sum(bytes).into()) {
            let start = queue.index();
            for (index, frame) in &cast.log {
                let refused = queue.apply(start.saturating_add(*index), frame, &mut Effects::new());
                prop_assert!(refused.is_ok() || start.checked_add(*index).is_none());
            }
            queue.queues().for_each(drop);
        }
    }

    #[test]
    fn a_snapshot_may_come_in_any_pieces(steps in prop::collection::vec(any_step(), 1..60), length in 1_usize..40) {
        let mut cast = Cast::new(JobLimits::default());
        for step in &steps {
            cast.play(step);
        }
        let whole = bytes_of(&cast.queue);
        let mut decoder = SnapshotDecoder::new();
        for piece in whole.chunks(length) {
            decoder.feed(Bytes::copy_from_slice(piece)).expect("a piece");
        }
        let restored = decoder.finish().expect("all of it");
        prop_assert_eq!(bytes_of(&restored), whole);
    }
}

#[test]
fn what_is_no_snapshot_is_named() {
    let cast = Cast::new(JobLimits::default());
    let whole = bytes_of(&cast.queue);
    let refused = |bytes: Vec<u8>| JobQueue::decode_snapshot(bytes.into()).err();
    assert_eq!(refused(b"something else".to_vec()), Some(SnapshotError::Foreign));
    let mut later = whole.clone();
    later[8] = 9;
    assert_eq!(refused(later), Some(SnapshotError::Version { version: 9 }));
    let mut flipped = whole.clone();
    *flipped.last_mut().expect("bytes") ^= 1;
    assert_eq!(refused(flipped), Some(SnapshotError::Checksum));
    let more: Vec<u8> = whole.iter().copied().chain([0]).collect();
    assert_eq!(refused(more), Some(SnapshotError::Trailing));
    let short = whole[..whole.len() - 1].to_vec();
    assert_eq!(refused(short), Some(SnapshotError::Truncated { bytes: whole.len() as u64 - 1 }));
    let mut huge = whole[..9].to_vec();
    huge.extend([0xFF, 0xFF, 0xFF, 0xFF, 0x7F]);
    assert!(matches!(refused(huge), Some(SnapshotError::TooLong { .. })));
}

/// Where each record of a snapshot starts and ends, its length included.
fn records(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut records = Vec::new();
    let mut start = 9;
    while start < bytes.len() {
        let (mut length, mut at) = (0, start);
        for shift in (0..).step_by(7) {
            length |= usize::from(bytes[at] & 0x7F) << shift;
            at += 1;
            if bytes[at - 1] & 0x80 == 0 {
                break;
            }
        }
        records.push(start..at + length);
        start = at + length;
    }
    records
}

#[test]
fn a_snapshot_of_the_first_version_is_read() {
    let mut cast = Cast::new(JobLimits::default());
    cast.apply(7, vec![Op::Submit(Submit::new(QueueName::new("mail").expect("a name"), "x")).into()]);
    let whole = bytes_of(&cast.queue);
    // In the first version the header ended before the leaders, of which there are none here, and gateways did not tell
    // since when they are known, which comes behind their name.
    let header = records(&whole)[0].clone();
    let gateway = records(&whole).into_iter().find(|record| whole[record.start + 1] == 5).expect("a gateway");
    let name = gateway.start + 2;
    let since = name + whole[name..].iter().position(|byte| byte & 0x80 == 0).expect("a number") + 1;
    assert_eq!((whole[8], whole[header.end - 1], whole[since]), (2, 0, 1));
    let mut old = whole.clone();
    old[8] = 1;
    for (record, field) in [(&gateway, since), (&header, header.end - 1)] {
        assert!(old[record.start] & 0x7F > 0, "the length does not borrow from its next byte");
        old[record.start] -= 1;
        old.remove(field);
    }
    let restored = JobQueue::decode_snapshot(with_right_sum(old.clone()).into()).expect("a snapshot");
    let mut known = whole.clone();
    known[since] = 0;
    assert_eq!(
        bytes_of(&restored),
        with_right_sum(known),
        "it is the same state, but for what it did not tell"
    );
    // What says that it is of today has to tell all.
    old[8] = 2;
    assert!(JobQueue::decode_snapshot(with_right_sum(old).into()).is_err());
    let mut later = whole;
    later[8] = 3;
    let refused = JobQueue::decode_snapshot(with_right_sum(later).into()).err();
    assert!(matches!(refused, Some(SnapshotError::Version { version: 3 })), "{refused:?}");
}

#[test]
fn records_that_come_twice_or_out_of_order_are_refused() {
    let mut cast = Cast::new(JobLimits::default());
    let name = QueueName::new("default").expect("a name");
    for session in [1, 2].map(SessionId::new) {
        cast.apply(0, vec![Op::SessionOpen { session, secret: 0 }.into()]);
    }
    for gateway in [1, 2].map(GatewayId::new) {
        cast.apply(0, vec![Op::GatewayOpen { gateway }.into()]);
    }
    for key in ["a", "b"] {
        let mut submit = Submit::new(name.clone(), "x");
        submit.dedupe = Some(Dedupe { key: UserKey::new(key).expect("short"), window_ms: 100 });
        submit.client = ClientId::new(1);
        cast.apply(0, vec![Op::Submit(submit).into()]);
    }
    for client in [1, 2].map(ClientId::new) {
        cast.apply(0, vec![Op::QuotaSet { quota: Quota::Client(client), max: Some(9) }.into()]);
    }
    let whole = bytes_of(&cast.queue);
    let places = records(&whole);
    let (_, but_the_sum) = places.split_last().expect("records");
    assert!(but_the_sum.len() >= 10);
    for place in but_the_sum {
        let twice = [&whole[..place.end], &whole[place.clone()], &whole[place.end..]].concat();
        let refused = JobQueue::decode_snapshot(with_right_sum(twice).into());
        assert!(matches!(refused, Err(SnapshotError::Misplaced { .. })), "{place:?}: {:?}", refused.err());
    }
    for pair in but_the_sum.windows(2) {
        let [first, second] = [pair[0].clone(), pair[1].clone()];
        let swapped =
            [&whole[..first.start], &whole[second.clone()], &whole[first], &whole[second.end..]].concat();
        let refused = JobQueue::decode_snapshot(with_right_sum(swapped).into());
        assert!(matches!(refused, Err(SnapshotError::Misplaced { .. })), "{second:?}: {:?}", refused.err());
    }
}

#[test]
fn what_was_forgotten_stays_forgotten_after_a_restore() {
    let mut cast = Cast::new(JobLimits { gateway_window: 2, ..JobLimits::default() });
    let command = |sequence| Command { token: Some(Token { gateway: GATEWAY, sequence }), op: Op::Tick };
    for sequence in 1..=6 {
        cast.apply(0, vec![command(sequence)]);
    }
    cast.queue = JobQueue::decode_snapshot(bytes_of(&cast.queue).into()).expect("a snapshot");
    cast.apply(0, vec![Op::LimitsSet(Box::default()).into(), command(3), command(6)]);
    assert_eq!(cast.effects.replies[1..], [Err(Refusal::SequenceTooOld), Ok(Reply::Done)]);
}

#[test]
fn what_is_no_frame_is_named() {
    let frame = Frame { dt_ms: 1, wall_ms: 2, commands: vec![Op::Tick.into()] };
    let bytes = encoded(&frame);
    let refused = |bytes: Vec<u8>| Frame::decode(bytes.into()).err();
    assert_eq!(refused(vec![9]), Some(CodecError::Version { version: 9 }));
    assert_eq!(refused(bytes.iter().copied().chain([0]).collect()), Some(CodecError::Trailing { count: 1 }));
    let mut unknown = bytes.clone();
    *unknown.last_mut().expect("bytes") = 200;
    assert_eq!(refused(unknown), Some(CodecError::Kind { field: "command", value: 200 }));
    // A count that the bytes cannot hold.
    assert_eq!(refused(vec![1, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F]), Some(CodecError::Truncated));
}

#[test]
fn a_decoded_body_shares_the_memory_of_its_frame() {
    let name = QueueName::new("default").expect("a name");
    let frame =
        Frame { dt_ms: 0, wall_ms: 0, commands: vec![Op::Submit(Submit::new(name, vec![7; 100])).into()] };
    let bytes = Bytes::from(encoded(&frame));
    let decoded = Frame::decode(bytes.clone()).expect("a frame");
    let Op::Submit(submit) = &decoded.commands[0].op else { panic!("a submit") };
    let range = bytes.as_ptr_range();
    assert!(range.contains(&submit.body.as_ptr()));
}
