use synod_core::TimerInstant;

use super::*;
use crate::testing::soon;
use synod_core::roster::RosterUpdate;

#[tokio::test(start_paused = true)]
async fn a_late_subscriber_gets_the_recent_events_and_then_the_live_ones_without_gap_or_double() {
    let stream = stream(3, 16);
    publish(&stream, 1..=5);

    // Only the newest three are still on the strip.
    let mut late = stream.subscribe();
    publish(&stream, 6..=7);
    assert_eq!(receive(&mut late, 5).await, [event(3), event(4), event(5), event(6), event(7)]);
    assert_eq!(late.try_recv(), None);

    // Who does not care for the past starts with the present.
    let mut live = stream.subscribe_live();
    publish(&stream, 8..=8);
    assert_eq!(receive(&mut live, 1).await, [event(8)]);
}

#[tokio::test(start_paused = true)]
async fn the_latest_roster_is_kept_whatever_came_after_it() {
    let stream = stream(3, 16);
    let mut early = stream.watch_roster();
    assert_eq!(*early.borrow_and_update(), None);
    let roster = |hash| ClusterEvent::RosterUpdated {
        update: RosterUpdate { hash, members: Vec::new(), joined: Vec::new(), left: Vec::new() },
        observed_at: TimerInstant::ZERO,
    };
    stream.publish(roster(1));
    stream.publish(roster(2));
    // Neither the strip nor any box remembers it.
    publish(&stream, 1..=100);
    assert_eq!(stream.watch_roster().borrow().as_deref(), Some(&roster(2)));
    soon(early.changed()).await.expect("the stream is open");
    assert_eq!(early.borrow_and_update().as_deref(), Some(&roster(2)));
    assert!(!early.has_changed().expect("the stream is open"), "other events are no rosters");
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_comes_while_others_publish_sees_one_unbroken_sequence() {
    let stream = stream(65_536, 65_536);
    let publisher = {
        let stream = stream.clone();
        std::thread::spawn(move || publish(&stream, 1..=5_000))
    };
    let mut subscriptions = Vec::new();
    while !publisher.is_finished() {
        subscriptions.push(stream.subscribe());
        std::thread::yield_now();
        if subscriptions.len() > 64 {
            subscriptions.remove(0);
        }
    }
    publisher.join().expect("the publisher ends");
    subscriptions.push(stream.subscribe());
    for mut subscription in subscriptions {
        let seen: Vec<_> = std::iter::from_fn(|| subscription.try_recv()).collect();
        assert_eq!(seen, (1..=5_000).map(event).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_never_blocks_publishing_and_is_told_how_many_events_it_missed() {
    let stream = stream(0, 4);
    let mut slow = stream.subscribe();
    let mut quick = stream.subscribe();

    // Nobody reads while ten events come: publishing returns all the same.
    publish(&stream, 1..=10);
    assert_eq!(soon(slow.recv()).await, Some(Delivery::Missed(6)));
    assert_eq!(receive(&mut slow, 2).await, [event(7), event(8)]);

    // The next loss is counted anew, from where the subscriber stands.
    publish(&stream, 11..=13);
    assert_eq!(soon(slow.recv()).await, Some(Delivery::Missed(1)));
    assert_eq!(receive(&mut slow, 4).await, [event(10), event(11), event(12), event(13)]);

    // Each subscriber loses its own events only.
    assert_eq!(soon(quick.recv()).await, Some(Delivery::Missed(9)));
    assert_eq!(stream.missed_total(), 6 + 1 + 9);
}

#[tokio::test(start_paused = true)]
async fn a_replay_longer_than_the_queue_counts_as_missed() {
    let stream = stream(8, 2);
    publish(&stream, 1..=5);
    let mut late = stream.subscribe();
    assert_eq!(soon(late.recv()).await, Some(Delivery::Missed(3)));
    assert_eq!(receive(&mut late, 2).await, [event(4), event(5)]);
}

#[tokio::test(start_paused = true)]
async fn publishing_from_within_a_subscribers_processing_does_not_deadlock() {
    let stream = stream(8, 2);
    let mut first = stream.subscribe();
    let mut second = stream.subscribe();
    publish(&stream, 1..=1);

    // The subscriber answers every event with more than its own box holds.
    let answering = async {
        let delivery = soon(first.recv()).await;
        publish(&stream, 2..=9);
        (delivery, soon(first.recv()).await)
    };
    let (delivery, next) = soon(answering).await;
    assert_eq!((delivery, next), (Some(event(1)), Some(Delivery::Missed(6))));
    assert_eq!(soon(second.recv()).await, Some(Delivery::Missed(7)));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_subscriber_is_woken_by_the_next_event() {
    let stream = EventStream::default();
    let mut subscription = stream.subscribe();
    let waiting = tokio::spawn(async move { soon(subscription.recv()).await });
    tokio::task::yield_now().await;
    publish(&stream, 1..=1);
    assert_eq!(waiting.await.expect("the subscriber ends"), Some(event(1)));
}

#[test]
fn dropping_the_guard_unsubscribes() {
    let stream = EventStream::default();
    let kept = stream.subscribe();
    let dropped = stream.subscribe();
    assert_eq!(stream.subscriber_count(), 2);
    drop(dropped);
    assert_eq!(stream.subscriber_count(), 1);
    drop(kept);
    assert_eq!(stream.subscriber_count(), 0);
    publish(&stream, 1..=3);
    assert_eq!(stream.missed_total(), 0);
}

#[tokio::test(start_paused = true)]
async fn subscriptions_end_when_all_handles_are_gone_and_the_queue_is_drained() {
    let stream = EventStream::default();
    let other = stream.clone();
    let mut subscription = stream.subscribe();
    publish(&stream, 1..=2);
    drop(stream);
    publish(&other, 3..=3);
    drop(other);
    assert_eq!(receive(&mut subscription, 3).await, [event(1), event(2), event(3)]);
    assert_eq!(soon(subscription.recv()).await, None);
    assert_eq!(soon(subscription.recv()).await, None);
}

#[test]
fn bounds_out_of_range_are_refused_by_name() {
    let refused = |replay_capacity, queue_capacity| {
        EventStream::new(EventStreamConfig { replay_capacity, queue_capacity }).err().map(|e| e.field)
    };
    assert_eq!(refused(0, 1), None);
    assert_eq!(refused(EVENTS_MAX, EVENTS_MAX), None);
    assert_eq!(refused(EVENTS_MAX + 1, 1), Some("replay_capacity"));
    assert_eq!(refused(0, 0), Some("queue_capacity"));
    assert_eq!(refused(0, EVENTS_MAX + 1), Some("queue_capacity"));
}

fn stream(replay_capacity: usize, queue_capacity: usize) -> EventStream {
    EventStream::new(EventStreamConfig { replay_capacity, queue_capacity }).expect("bounds in range")
}

fn publish(stream: &EventStream, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        stream.publish(numbered(number));
    }
}

fn numbered(number: u64) -> ClusterEvent {
    ClusterEvent::QuorumRegained { observed_at: TimerInstant::from_nanos(number) }
}

fn event(number: u64) -> Delivery {
    Delivery::Event(Arc::new(numbered(number)))
}

async fn receive(subscription: &mut Subscription, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for _ in 0..count {
        deliveries.extend(soon(subscription.recv()).await);
    }
    deliveries
}
