use synod_core::TimerInstant;
use synod_core::membership::{TopologyApplyError, TopologyError, TopologyUpdate};
use tokio::sync::mpsc;

use super::*;
use crate::event_stream::EventStreamConfig;
use crate::testing::{self, drain, soon, until};

#[tokio::test(start_paused = true)]
async fn an_update_on_the_stream_is_applied_and_not_published_again() {
    let stream = EventStream::default();
    let (mut extension, mut applied) = extension(&stream, true);
    let mut observer = stream.subscribe();
    extension.start(ClusterMode::Member).expect("a first start");

    stream.publish(topology(&["a"], &["a"], 1));
    stream.publish(topology(&["b"], &["a", "b"], 2));
    // The same topology once more changes nothing.
    stream.publish(topology(&["b"], &["a", "b"], 3));
    stream.publish(topology(&["c"], &["a", "b", "c"], 4));
    assert_eq!(applied_counts(&mut applied, 3).await, [1, 2, 3]);
    assert_eq!(extension.members().len(), 3);
    assert_eq!(extension.metrics().map(|m| (m.members, m.topology_updates)), Ok((3, 3)));

    // An observer saw the four that were published and nothing else.
    assert_eq!(times(&mut observer), [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_contradictory_update_is_reported_with_its_own_time_and_the_previous_topology_stands() {
    let stream = EventStream::default();
    let (mut extension, mut applied) = extension(&stream, true);
    extension.start(ClusterMode::Member).expect("a first start");
    stream.publish(topology(&["a"], &["a"], 1));
    assert_eq!(applied_counts(&mut applied, 1).await, [1]);

    // Observed long before it is applied: the failure must carry the first of the two times.
    let mut observer = stream.subscribe_live();
    tokio::time::advance(std::time::Duration::from_secs(60)).await;
    stream.publish(topology(&["b"], &["a"], 1_234));
    let published = soon(observer.recv()).await;
    assert!(matches!(&published, Some(Delivery::Event(event)) if **event == topology(&["b"], &["a"], 1_234)));
    let failed = ClusterEvent::TopologyApplyFailed {
        reason: TopologyApplyError::InvalidTopology(TopologyError::JoinedNotMember {
            member: member("b").id,
        }),
        observed_at: TimerInstant::from_millis(1_234),
    };
    assert_eq!(soon(observer.recv()).await, Some(Delivery::Event(Arc::new(failed))));
    assert_eq!(extension.members(), [member("a")]);
    assert_eq!(extension.metrics().map(|metrics| metrics.topology_failures), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn it_subscribes_on_a_successful_start_only_and_unsubscribes_before_the_shutdown() {
    let stream = EventStream::default();
    let (mut extension, _applied) = extension(&stream, true);
    assert_eq!(stream.subscriber_count(), 0);
    extension.start(ClusterMode::Client).expect("a first start");
    assert_eq!(stream.subscriber_count(), 1);
    let refused = extension.start(ClusterMode::Member);
    assert_eq!(refused, Err(AlreadyStarted { mode: ClusterMode::Client }));
    assert_eq!(stream.subscriber_count(), 1);

    extension.shutdown().await;
    extension.shutdown().await;
    assert_eq!((stream.subscriber_count(), extension.mode()), (0, None));
    // What is published now reaches nobody, so nothing fails to apply either.
    stream.publish(topology(&["a"], &["a"], 1));
    tokio::task::yield_now().await;
    assert_eq!(extension.metrics().map(|metrics| metrics.topology_failures), Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_apply_the_topologies_of_the_run_before() {
    let stream = EventStream::default();
    let (mut extension, mut applied) = extension(&stream, true);
    extension.start(ClusterMode::Member).expect("a first start");
    stream.publish(topology(&["a", "b"], &["a", "b"], 1));
    assert_eq!(applied_counts(&mut applied, 1).await, [2]);
    extension.shutdown().await;

    extension.start(ClusterMode::Member).expect("a second start");
    stream.publish(topology(&["a"], &["a"], 2));
    assert_eq!(applied_counts(&mut applied, 1).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn after_missed_events_the_next_update_repairs_the_view() {
    let bounds = EventStreamConfig { replay_capacity: 0, queue_capacity: 1 };
    let stream = EventStream::new(bounds).expect("bounds in range");
    let (mut extension, mut applied) = extension(&stream, true);
    extension.start(ClusterMode::Member).expect("a first start");
    stream.publish(topology(&["a", "b"], &["a", "b"], 1));
    assert_eq!(applied_counts(&mut applied, 1).await, [2]);

    // Two updates come while the extension has no chance to run; the first of them, b's departure, is lost.
    let left = TopologyUpdate::new(vec![], vec![member("b")], vec![], vec![member("a")], vec![], at(2));
    stream.publish(ClusterEvent::TopologyUpdated { update: left });
    stream.publish(topology(&["c"], &["a", "c"], 3));
    let (members, departed) = soon(applied.recv()).await.expect("an applied update");
    assert_eq!((members, departed), (2, vec![member("b")]));
    assert_eq!(extension.metrics().map(|m| (m.events_missed, m.topology_updates)), Ok((1, 2)));
}

#[tokio::test(start_paused = true)]
async fn when_the_node_stops_by_itself_the_core_is_shut_down_too() {
    let stream = EventStream::default();
    let (mut extension, mut applied) = extension(&stream, true);
    extension.start(ClusterMode::Member).expect("a first start");
    stream.publish(topology(&["a"], &["a"], 1));
    assert_eq!(applied_counts(&mut applied, 1).await, [1]);
    stream.publish(ClusterEvent::Shutdown { mode: ClusterMode::Member.into(), observed_at: at(2) });
    until(|| extension.mode().is_none()).await;
    assert_eq!((stream.subscriber_count(), extension.members()), (0, vec![]));
    extension.start(ClusterMode::Member).expect("a start after the stop");
}

#[tokio::test(start_paused = true)]
async fn while_metrics_are_off_every_question_fails_and_all_events_flow() {
    let stream = EventStream::default();
    let (mut extension, mut applied) = extension(&stream, false);
    let mut observer = stream.subscribe();
    assert_eq!(extension.metrics(), Err(MetricsError::Disabled));
    extension.start(ClusterMode::Member).expect("a first start");
    stream.publish(topology(&["a"], &["a"], 1));
    stream.publish(topology(&["x"], &["a"], 2));
    assert_eq!(applied_counts(&mut applied, 1).await, [1]);
    assert_eq!(extension.metrics(), Err(MetricsError::Disabled));
    // Both updates and the failure of the second.
    for millis in [1, 2, 2] {
        let delivery = soon(observer.recv()).await;
        assert!(matches!(delivery, Some(Delivery::Event(event)) if event.observed_at() == at(millis)));
    }
    extension.shutdown().await;
    assert_eq!(extension.metrics(), Err(MetricsError::Disabled));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_extension_ends_its_subscription() {
    let stream = EventStream::default();
    let (mut extension, _applied) = extension(&stream, true);
    extension.start(ClusterMode::Member).expect("a first start");
    drop(extension);
    until(|| stream.subscriber_count() == 0).await;
}

struct Recorder(mpsc::UnboundedSender<(usize, Vec<Member>)>);

impl TopologyListener for Recorder {
    fn topology_applied(&mut self, update: &TopologyUpdate, departed: &[Member]) {
        self.0.send((update.members.len(), departed.to_vec())).expect("the test listens");
    }
}

type Applied = mpsc::UnboundedReceiver<(usize, Vec<Member>)>;

fn extension(stream: &EventStream, metrics_enabled: bool) -> (ClusterExtension, Applied) {
    let (sender, applied) = mpsc::unbounded_channel();
    let extension = ClusterExtension::new(stream.clone(), ClusterCore::new(metrics_enabled));
    extension.add_listener(Box::new(Recorder(sender)));
    (extension, applied)
}

async fn applied_counts(applied: &mut Applied, updates: usize) -> Vec<usize> {
    let mut counts = Vec::new();
    for _ in 0..updates {
        counts.push(soon(applied.recv()).await.expect("an applied update").0);
    }
    counts
}

fn times(observer: &mut Subscription) -> Vec<u64> {
    drain(observer).iter().map(|event| event.observed_at().as_nanos() / 1_000_000).collect()
}

fn topology(joined: &[&str], members: &[&str], millis: u64) -> ClusterEvent {
    let list = |names: &[&str]| names.iter().map(|name| member(name)).collect();
    let update = TopologyUpdate::new(list(joined), vec![], vec![], list(members), vec![], at(millis));
    ClusterEvent::TopologyUpdated { update }
}

fn member(node: &str) -> Member {
    Member { id: testing::member(node, 1), authority: testing::authority(node) }
}

const fn at(millis: u64) -> TimerInstant {
    TimerInstant::from_millis(millis)
}
