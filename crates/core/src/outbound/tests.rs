use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use core::time::Duration;

use super::*;

fn peer() -> Authority {
    Authority::new("peer.test:1").expect("an address")
}

fn at(millis: u64) -> TimerInstant {
    TimerInstant::from_millis(millis)
}

fn pipeline(config: OutboundConfig) -> OutboundPipeline<u32> {
    OutboundPipeline::new(config, 7).expect("valid settings")
}

fn small(overflow: OverflowPolicy) -> OutboundConfig {
    OutboundConfig { queue_messages_max: 3, queue_bytes_max: 100, overflow, ..OutboundConfig::default() }
}

fn delivered(outcome: &OutboundOutcome<u32>) -> Vec<u32> {
    outcome.deliver.iter().map(|(_, message)| *message).collect()
}

fn buried(outcome: &OutboundOutcome<u32>) -> Vec<(u32, DeadLetterReason)> {
    outcome.dead_letters.iter().map(|letter| (letter.message, letter.reason.clone())).collect()
}

#[test]
fn messages_wait_for_the_connection_and_keep_their_order() {
    let mut pipeline = pipeline(OutboundConfig { flush_batch: 2, ..OutboundConfig::default() });
    // The first message asks for a connection, the others only wait.
    assert_eq!(pipeline.send(&peer(), 1, 10).connect, [peer()]);
    for message in 2..=5 {
        let outcome = pipeline.send(&peer(), message, 10);
        assert!(outcome.connect.is_empty() && outcome.deliver.is_empty());
    }
    assert_eq!(pipeline.queued(&peer()), (5, 50));
    // The backlog goes out in batches; what is sent in between lines up behind it.
    let outcome = pipeline.handle_connected(&peer(), at(10)).expect("a connection that was asked for");
    assert_eq!(delivered(&outcome), [1, 2]);
    let flushed = OutboundEvent::Flushed { target: peer(), messages: 2, remaining: 3 };
    assert_eq!(outcome.events, [OutboundEvent::Connected(peer()), flushed]);
    assert_eq!(outcome.wake_at, Some(at(10)));
    assert!(pipeline.send(&peer(), 6, 10).deliver.is_empty());
    assert_eq!(delivered(&pipeline.poll(at(10))), [3, 4]);
    assert_eq!(delivered(&pipeline.poll(at(10))), [5, 6]);
    // Then messages pass.
    let outcome = pipeline.send(&peer(), 7, 10);
    assert_eq!((delivered(&outcome), outcome.wake_at), (vec![7], None));
}

/// A node that comes back after a long absence dials its peers. They need not wait out their own long pauses.
#[test]
fn whoever_is_heard_is_dialled_soon() {
    let config = OutboundConfig { connect_failures_max: 100, ..OutboundConfig::default() };
    let shortest = config.backoff_min;
    let mut pipeline = pipeline(config);
    pipeline.send(&peer(), 1, 10);
    let mut now = at(0);
    let mut pause = Duration::ZERO;
    for _ in 0..10 {
        let planned = pipeline.handle_connect_failed(&peer(), now).expect("asked for").wake_at;
        pause = planned.expect("another try").saturating_since(now);
        now = planned.expect("another try");
        assert_eq!(pipeline.poll(now).connect, [peer()]);
    }
    assert!(pause > Duration::from_secs(5));
    let outcome = pipeline.handle_connect_failed(&peer(), now).expect("asked for");
    assert!(outcome.wake_at > Some(now + Duration::from_secs(5)));
    // It does not get sooner, or later, by being heard again.
    let soon = now + shortest;
    assert_eq!(pipeline.handle_heard(&peer(), now).wake_at, Some(soon));
    assert_eq!(pipeline.handle_heard(&peer(), now + shortest / 2).wake_at, Some(soon));
    assert_eq!(pipeline.poll(soon).connect, [peer()]);
    // While a connection is on its way, or stands, or nothing is known, there is nothing to cut down.
    assert_eq!(pipeline.handle_heard(&peer(), soon).wake_at, None);
    let outcome = pipeline.handle_connected(&peer(), soon).expect("asked for");
    assert_eq!(delivered(&outcome), [1]);
    assert_eq!(pipeline.handle_heard(&peer(), soon).wake_at, None);
    let stranger = Authority::new("stranger.test:1").expect("an address");
    assert_eq!(pipeline.handle_heard(&stranger, soon).wake_at, None);
}

#[test]
fn a_full_queue_drops_the_oldest_and_tells_each_loss() {
    let mut pipeline = pipeline(small(OverflowPolicy::DropOldest));
    for message in 1..=3 {
        pipeline.send(&peer(), message, 30);
    }
    assert_eq!(buried(&pipeline.send(&peer(), 4, 10)), [(1, DeadLetterReason::DroppedOldest)]);
    // Bytes count like messages: a large one makes several small ones go.
    let outcome = pipeline.send(&peer(), 5, 80);
    assert_eq!(
        buried(&outcome),
        [(2, DeadLetterReason::DroppedOldest), (3, DeadLetterReason::DroppedOldest)]
    );
    assert_eq!(pipeline.queued(&peer()), (2, 90));
    // What can never fit does not cost the others their place.
    assert_eq!(buried(&pipeline.send(&peer(), 6, 101)), [(6, DeadLetterReason::TooLarge)]);
    assert_eq!(pipeline.queued(&peer()), (2, 90));
}

#[test]
fn a_full_queue_that_rejects_keeps_what_it_has() {
    let mut pipeline = pipeline(small(OverflowPolicy::RejectNew));
    for message in 1..=3 {
        pipeline.send(&peer(), message, 10);
    }
    assert_eq!(buried(&pipeline.send(&peer(), 4, 10)), [(4, DeadLetterReason::QueueFull)]);
    let outcome = pipeline.handle_connected(&peer(), at(0)).expect("a connection that was asked for");
    assert_eq!(delivered(&outcome), [1, 2, 3]);
}

#[test]
fn quarantine_buries_what_waits_and_refuses_what_comes() {
    let mut pipeline = pipeline(OutboundConfig::default());
    pipeline.send(&peer(), 1, 10);
    pipeline.send(&peer(), 2, 10);
    let outcome = pipeline.handle_quarantine(&peer(), "wrong uid".to_string(), Some(at(1_000)));
    let reason = DeadLetterReason::Quarantined("wrong uid".to_string());
    assert_eq!(buried(&outcome), [(1, reason.clone()), (2, reason.clone())]);
    let told =
        OutboundEvent::Quarantined { target: peer(), reason: "wrong uid".to_string(), dead_letters: 2 };
    assert_eq!(outcome.events, [told]);
    assert_eq!(buried(&pipeline.send(&peer(), 3, 10)), [(3, reason)]);
    // A connection that comes all the same is refused, and so is news of one that never was.
    let error = pipeline.handle_connected(&peer(), at(1)).expect_err("a quarantined peer");
    assert_eq!(
        error.to_string(),
        "peer.test:1 is quarantined; it cannot become connected and nothing was changed"
    );
    assert!(pipeline.handle_connect_failed(&peer(), at(1)).is_err());
    // It ends at its very moment, and a connection may be tried again.
    assert!(pipeline.poll(at(999)).events.is_empty());
    assert_eq!(pipeline.poll(at(1_000)).events, [OutboundEvent::Released(peer())]);
    assert_eq!(pipeline.send(&peer(), 4, 10).connect, [peer()]);
}

#[test]
fn a_release_by_hand_gives_an_empty_queue_that_works() {
    let mut pipeline = pipeline(OutboundConfig::default());
    pipeline.send(&peer(), 1, 10);
    let outcome = pipeline.handle_quarantine(&peer(), "by hand".to_string(), None);
    assert_eq!(outcome.wake_at, None, "it has no end of its own");
    assert!(pipeline.poll(at(u64::MAX / 2_000_000)).events.is_empty());
    assert_eq!(pipeline.handle_release(&peer()).events, [OutboundEvent::Released(peer())]);
    assert_eq!(pipeline.state(&peer()), AssociationState::Disconnected);
    assert_eq!(pipeline.queued(&peer()), (0, 0));
    assert!(pipeline.handle_release(&peer()).events.is_empty(), "a second release is harmless");
    pipeline.send(&peer(), 2, 10);
    let outcome = pipeline.handle_connected(&peer(), at(5)).expect("a released peer");
    assert_eq!(delivered(&outcome), [2]);
}

#[test]
fn failed_connections_are_tried_again_ever_less_often_and_with_jitter() {
    let pauses = |seed| {
        let mut pipeline = OutboundPipeline::new(OutboundConfig::default(), seed).expect("valid settings");
        pipeline.send(&peer(), 1, 10);
        let mut now = at(0);
        let mut pauses = vec![];
        for _ in 0..12 {
            let outcome =
                pipeline.handle_connect_failed(&peer(), now).expect("a connection that was asked for");
            let retry_at = outcome.wake_at.expect("another try");
            pauses.push(retry_at.saturating_since(now));
            assert!(
                pipeline.send(&peer(), 2, 10).connect.is_empty(),
                "a message does not hurry the next try"
            );
            now = retry_at;
            assert_eq!(pipeline.poll(now).connect, [peer()]);
        }
        pauses
    };
    let first = pauses(1);
    for (attempt, pause) in first.iter().enumerate() {
        let nominal = Duration::from_millis(100 << attempt.min(10)).min(Duration::from_secs(10));
        assert!(*pause >= nominal.mul_f64(0.8) && *pause <= nominal.mul_f64(1.2), "{attempt}: {pause:?}");
    }
    assert_ne!(first, pauses(2), "two nodes do not try in step");
}

#[test]
fn a_lost_connection_is_opened_again_when_there_is_something_to_say() {
    let mut pipeline = pipeline(OutboundConfig::default());
    pipeline.send(&peer(), 1, 10);
    pipeline.handle_connected(&peer(), at(0)).expect("a connection that was asked for");
    let outcome = pipeline.handle_disconnected(&peer(), at(500)).expect("a connected peer");
    assert_eq!(outcome.events, [OutboundEvent::Disconnected(peer())]);
    assert!(outcome.connect.is_empty() && outcome.wake_at.is_none(), "nothing waits");
    assert!(pipeline.handle_disconnected(&peer(), at(501)).is_err(), "it is lost only once");
    assert_eq!(pipeline.send(&peer(), 2, 10).connect, [peer()]);
}

#[test]
fn a_connection_that_was_lost_at_once_is_not_opened_at_once() {
    let mut pipeline = pipeline(OutboundConfig::default());
    pipeline.send(&peer(), 1, 10);
    pipeline.handle_connected(&peer(), at(1000)).expect("a connection that was asked for");
    let outcome = pipeline.handle_disconnected(&peer(), at(1001)).expect("a connected peer");
    assert_eq!(outcome.wake_at, Some(at(1100)), "backoff_min after it was opened");
    assert!(pipeline.send(&peer(), 2, 10).connect.is_empty());
    assert!(pipeline.handle_unsent(&peer(), vec![(1, 10)]).connect.is_empty());
    assert!(pipeline.poll(at(1099)).connect.is_empty());
    assert_eq!(pipeline.poll(at(1100)).connect, [peer()]);
    let outcome = pipeline.handle_connected(&peer(), at(1100)).expect("a connection that was asked for");
    assert_eq!(delivered(&outcome), [1, 2]);
    // A pause is no failure: as many tries as ever follow before the messages are given up.
    pipeline.handle_disconnected(&peer(), at(1101)).expect("a connected peer");
    pipeline.send(&peer(), 3, 10);
    for failure in 1..=5 {
        let wake_at = pipeline.poll(at(0)).wake_at.expect("another try");
        assert_eq!(pipeline.poll(wake_at).connect, [peer()]);
        let outcome = pipeline.handle_connect_failed(&peer(), wake_at).expect("it was asked for");
        assert_eq!(outcome.dead_letters.len(), usize::from(failure == 5));
    }
}

#[test]
fn what_a_connection_gives_back_goes_before_what_waits() {
    let back = |messages: &[u32]| messages.iter().map(|message| (*message, 10)).collect::<Vec<_>>();
    for overflow in [OverflowPolicy::RejectNew, OverflowPolicy::DropOldest] {
        let mut pipeline = pipeline(OutboundConfig { flush_batch: 1, ..small(overflow) });
        for message in 1..=3 {
            pipeline.send(&peer(), message, 10);
        }
        let outcome = pipeline.handle_connected(&peer(), at(0)).expect("a connection that was asked for");
        assert_eq!(delivered(&outcome), [1]);
        // The connection is lost while 2 and 3 wait, and 1 comes back.
        let outcome = pipeline.handle_disconnected(&peer(), at(500)).expect("a connected peer");
        assert_eq!(outcome.connect, [peer()], "messages wait");
        assert!(pipeline.handle_unsent(&peer(), back(&[1])).dead_letters.is_empty());
        // Beyond the bounds the policy decides, as if they had come in this order.
        let outcome = pipeline.handle_unsent(&peer(), back(&[0]));
        let expected = match overflow {
            OverflowPolicy::RejectNew => (3, DeadLetterReason::QueueFull),
            OverflowPolicy::DropOldest => (0, DeadLetterReason::DroppedOldest),
        };
        assert_eq!(buried(&outcome), [expected]);
        let mut order = delivered(&pipeline.handle_connected(&peer(), at(500)).expect("it was asked for"));
        order.extend(delivered(&pipeline.poll(at(500))));
        order.extend(delivered(&pipeline.poll(at(500))));
        assert!(order.is_sorted() && order.len() == 3, "{order:?}");
        // Nothing is taken back for an address in quarantine.
        pipeline.handle_quarantine(&peer(), "test".to_string(), None);
        assert_eq!(buried(&pipeline.handle_unsent(&peer(), back(&[9]))).len(), 1);
    }
}

#[test]
fn a_departed_target_leaves_nothing_behind() {
    let mut pipeline = pipeline(OutboundConfig { associations_max: 1, ..OutboundConfig::default() });
    pipeline.send(&peer(), 1, 10);
    let other = Authority::new("other.test:1").expect("an address");
    let refused = pipeline.send(&other, 2, 10);
    assert_eq!(buried(&refused), [(2, DeadLetterReason::TooManyAssociations)]);
    assert_eq!(buried(&pipeline.handle_departed(&peer())), [(1, DeadLetterReason::Departed)]);
    assert_eq!(pipeline.send(&other, 3, 10).connect.len(), 1, "its place is free again");
    // Reports about strangers are refused and do not make them known.
    assert!(pipeline.handle_disconnected(&peer(), at(1)).is_err());
    assert!(pipeline.handle_connected(&peer(), at(1)).is_err(), "there is no room");
    // An association that holds nothing makes room for one that does.
    pipeline.handle_connected(&other, at(2)).expect("a connection that was asked for");
    pipeline.handle_disconnected(&other, at(3)).expect("a connected peer");
    assert_eq!(pipeline.send(&peer(), 4, 10).connect, [peer()]);
}

#[test]
fn every_message_comes_out_exactly_once() {
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let overflow = if rng.bool() { OverflowPolicy::DropOldest } else { OverflowPolicy::RejectNew };
        let mut pipeline = pipeline(OutboundConfig { flush_batch: 2, ..small(overflow) });
        let (mut sent, mut now) = (0, at(0));
        let mut out: Vec<u32> = vec![];
        let mut last_delivered = 0;
        for _ in 0..200 {
            now = now + Duration::from_millis(rng.u64(0..200));
            let outcome = match rng.u32(..9) {
                0..=3 => {
                    sent += 1;
                    pipeline.send(&peer(), sent, rng.usize(1..60))
                }
                4 => pipeline.handle_connected(&peer(), now).unwrap_or_default(),
                5 => pipeline.handle_disconnected(&peer(), now).unwrap_or_default(),
                6 => pipeline.handle_connect_failed(&peer(), now).unwrap_or_default(),
                7 if rng.u32(..4) == 0 => pipeline.handle_quarantine(
                    &peer(),
                    "test".to_string(),
                    Some(now + Duration::from_millis(300)),
                ),
                _ => pipeline.poll(now),
            };
            for message in delivered(&outcome) {
                assert!(message > last_delivered, "seed {seed}: {message} overtook {last_delivered}");
                last_delivered = message;
            }
            out.extend(delivered(&outcome));
            out.extend(outcome.dead_letters.iter().map(|letter| letter.message));
            let (messages, bytes) = pipeline.queued(&peer());
            assert!(messages <= 3 && bytes <= 100, "seed {seed}: {messages} messages, {bytes} bytes");
        }
        out.extend(pipeline.handle_departed(&peer()).dead_letters.iter().map(|letter| letter.message));
        out.sort_unstable();
        assert_eq!(out, (1..=sent).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn every_setting_out_of_range_is_refused_by_name() {
    let good = OutboundConfig::default();
    let long = Duration::from_secs(3601);
    let cases = [
        ("queue_messages_max", OutboundConfig { queue_messages_max: 0, ..good.clone() }),
        ("queue_bytes_max", OutboundConfig { queue_bytes_max: 0, ..good.clone() }),
        ("flush_batch", OutboundConfig { flush_batch: 0, ..good.clone() }),
        ("associations_max", OutboundConfig { associations_max: 0, ..good.clone() }),
        ("queue_messages_max", OutboundConfig { queue_messages_max: 1_000_001, ..good.clone() }),
        ("backoff_min", OutboundConfig { backoff_min: Duration::ZERO, ..good.clone() }),
        ("backoff_max", OutboundConfig { backoff_max: Duration::from_millis(99), ..good.clone() }),
        ("backoff_max", OutboundConfig { backoff_max: long, ..good.clone() }),
    ];
    for (field, config) in cases {
        let error = OutboundPipeline::<u32>::new(config, 0).expect_err(field).to_string();
        assert!(error.starts_with(&format!("outbound.{field} must be")), "{error}");
    }
    assert_eq!(good.validate(), Ok(()));
}

/// Senders are told in bounded time, and the address is not given up: the next message tries again.
#[test]
fn an_address_that_never_answers_is_reported_once_and_tried_again_later() {
    let config = OutboundConfig { connect_failures_max: 2, ..OutboundConfig::default() };
    let mut pipeline = pipeline(config);
    assert_eq!(pipeline.send(&peer(), 1, 10).connect, [peer()]);
    let outcome = pipeline.handle_connect_failed(&peer(), at(0)).expect("it was asked for");
    assert!(outcome.events.is_empty() && outcome.dead_letters.is_empty());
    let again = outcome.wake_at.expect("it is tried again");
    assert_eq!(pipeline.poll(again).connect, [peer()]);
    let outcome = pipeline.handle_connect_failed(&peer(), again).expect("it was asked for");
    assert_eq!(buried(&outcome), [(1, DeadLetterReason::Unreachable)]);
    assert_eq!(outcome.events, [OutboundEvent::Unreachable { target: peer(), dead_letters: 1 }]);
    // A message before the pause is over waits for its end, and its failure is no news.
    let pause_over = outcome.wake_at.expect("a pause");
    assert!(pipeline.send(&peer(), 2, 10).connect.is_empty());
    assert_eq!(pipeline.poll(pause_over).connect, [peer()]);
    let outcome = pipeline.handle_connect_failed(&peer(), pause_over).expect("it was asked for");
    assert_eq!(buried(&outcome), [(2, DeadLetterReason::Unreachable)]);
    assert_eq!(outcome.events, []);
    // With nothing to send nobody connects, and after the pause the next message does at once.
    assert!(pipeline.poll(outcome.wake_at.expect("a pause")).connect.is_empty());
    assert_eq!(pipeline.send(&peer(), 3, 10).connect, [peer()]);
}
