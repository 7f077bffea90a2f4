//! The batching producer, over a publisher that does what a test wants, and once over a whole node.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use synod_cluster::pubsub::{
    BatchPublisher, BatchingProducer, BatchingProducerConfig, ErrorDecision, ProducerConfigError,
    ProducerError, PublishReceipt, TopicName,
};
use synod_cluster::remote::{Message, RemoteConfig, TypeName};
use synod_cluster::{Cluster, ClusterConfig, ClusterProvider, PubSubError};
use tokio::sync::Semaphore;

/// What a publisher does with a batch.
#[derive(Clone, Copy)]
enum Act {
    Publish,
    Fail,
    Hang,
}

/// Publishes into a list. The acts of a script come first, then it always publishes.
#[derive(Clone)]
struct Script {
    acts: Arc<Mutex<VecDeque<Act>>>,
    tried: Arc<Mutex<Vec<Vec<String>>>>,
    published: Arc<Mutex<Vec<Vec<String>>>>,
    /// How many batches it may begin.
    turns: Arc<Semaphore>,
}

impl Script {
    fn new(acts: &[Act]) -> Self {
        Self {
            acts: Arc::new(Mutex::new(acts.iter().copied().collect())),
            tried: Arc::default(),
            published: Arc::default(),
            turns: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
        }
    }

    /// One that begins no batch before it is told to.
    fn held(acts: &[Act]) -> Self {
        Self { turns: Arc::new(Semaphore::new(0)), ..Self::new(acts) }
    }

    fn published(&self) -> Vec<Vec<String>> {
        self.published.lock().expect("unlocked").clone()
    }

    fn tried(&self) -> Vec<Vec<String>> {
        self.tried.lock().expect("unlocked").clone()
    }

    /// Waits until it was asked to publish so often.
    async fn has_tried(&self, times: usize) {
        while self.tried.lock().expect("unlocked").len() < times {
            tokio::task::yield_now().await;
        }
    }
}

impl BatchPublisher for Script {
    async fn publish(&self, topic: &TopicName, batch: &[Message], _: Duration) -> Result<(), PubSubError> {
        let batch: Vec<_> = batch.iter().map(|message| message.decode::<String>().expect("a text")).collect();
        self.tried.lock().expect("unlocked").push(batch.clone());
        self.turns.acquire().await.expect("open").forget();
        let act = self.acts.lock().expect("unlocked").pop_front().unwrap_or(Act::Publish);
        match act {
            Act::Publish => self.published.lock().expect("unlocked").push(batch),
            Act::Fail => return Err(failure(topic)),
            Act::Hang => std::future::pending().await,
        }
        Ok(())
    }
}

fn failure(topic: &TopicName) -> PubSubError {
    PubSubError::Failed { topic: topic.clone() }
}

fn news() -> TopicName {
    "news".parse().expect("a name")
}

fn failed() -> Result<(), ProducerError> {
    Err(ProducerError::Publish(failure(&news())))
}

fn stopped() -> ProducerError {
    ProducerError::Stopped { topic: news() }
}

fn cancelled() -> ProducerError {
    ProducerError::Cancelled { topic: news() }
}

fn deciding(decision: ErrorDecision) -> BatchingProducerConfig {
    BatchingProducerConfig { on_error: Arc::new(move |_| decision), ..BatchingProducerConfig::default() }
}

fn producer(script: &Script, config: BatchingProducerConfig) -> BatchingProducer {
    BatchingProducer::start(script.clone(), "news", config).expect("sound settings")
}

fn produce(producer: &BatchingProducer, words: &[&str]) -> Vec<PublishReceipt> {
    words.iter().map(|word| producer.produce(&(*word).to_owned()).expect("room")).collect()
}

async fn ends(receipts: Vec<PublishReceipt>) -> Vec<Result<(), ProducerError>> {
    let mut ends = Vec::new();
    for receipt in receipts {
        ends.push(receipt.await);
    }
    ends
}

#[tokio::test(start_paused = true)]
async fn all_messages_are_published_in_order_in_batches_of_the_size_asked_for() {
    let script = Script::new(&[]);
    let producer = producer(
        &script,
        BatchingProducerConfig { batch_messages_max: 10, ..BatchingProducerConfig::default() },
    );
    let words: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
    let receipts = produce(&producer, &words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(ends(receipts).await.iter().all(Result::is_ok));
    let published = script.published();
    assert!(published.iter().all(|batch| batch.len() <= 10), "{published:?}");
    assert_eq!(published.len(), 100, "what waits goes out in full batches");
    assert_eq!(published.concat(), words);
}

#[tokio::test(start_paused = true)]
async fn a_batch_waits_for_more_until_it_is_full_or_its_time_is_over() {
    let script = Script::new(&[]);
    let config = BatchingProducerConfig {
        batch_messages_max: 3,
        batch_wait: Duration::from_secs(10),
        ..BatchingProducerConfig::default()
    };
    let producer = producer(&script, config);
    let first = produce(&producer, &["a", "b"]);
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(script.tried().len(), 0, "it waits for more");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(script.published(), [["a", "b"]]);
    let before = tokio::time::Instant::now();
    let second = produce(&producer, &["c", "d", "e"]);
    assert!(ends(second).await.iter().chain(&ends(first).await).all(Result::is_ok));
    assert_eq!(before.elapsed(), Duration::ZERO, "a full one does not wait");
    assert_eq!(script.published()[1], ["c", "d", "e"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_bounded_in_bytes_and_one_message_always_fits() {
    let script = Script::held(&[]);
    let config = BatchingProducerConfig { batch_bytes_max: 20, ..BatchingProducerConfig::default() };
    let producer = producer(&script, config);
    let long = "x".repeat(100);
    let receipts = produce(&producer, &["12345678", &long, "1234567", "1234567", "1234567"]);
    script.turns.add_permits(100);
    assert!(ends(receipts).await.iter().all(Result::is_ok));
    let sizes: Vec<_> = script.published().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 1, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_producer_refuses_and_tells_everyone_who_waits() {
    let script = Script::held(&[]);
    let producer = producer(
        &script,
        BatchingProducerConfig { batch_messages_max: 1, ..deciding(ErrorDecision::FailAndStop) },
    );
    let receipts = produce(&producer, &["being published", "waiting"]);
    script.has_tried(1).await;
    producer.stop().await;
    assert_eq!(ends(receipts).await, [Err(stopped()), Err(stopped())]);
    assert_eq!(producer.produce(&"late".to_owned()).err(), Some(stopped()));
    producer.stop().await;
    // So does one that is dropped.
    let dropped = self::producer(&Script::held(&[]), BatchingProducerConfig::default());
    let receipts = produce(&dropped, &["waiting"]);
    drop(dropped);
    assert_eq!(ends(receipts).await, [Err(stopped())]);
    assert_eq!(script.published(), Vec::<Vec<String>>::new());
}

#[tokio::test(start_paused = true)]
async fn a_failed_producer_refuses_and_everything_that_waits_has_failed() {
    let script = Script::held(&[Act::Fail]);
    let producer = producer(
        &script,
        BatchingProducerConfig { batch_messages_max: 2, ..BatchingProducerConfig::default() },
    );
    let receipts = produce(&producer, &["a", "b", "c", "d", "e"]);
    script.turns.add_permits(100);
    assert_eq!(ends(receipts).await, vec![failed(); 5]);
    assert_eq!(producer.produce(&"late".to_owned()).err(), Some(stopped()));
    assert_eq!(script.tried().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_decision_leaves_nobody_waiting() {
    let script = Script::held(&[Act::Fail]);
    let config = BatchingProducerConfig {
        batch_messages_max: 1,
        on_error: Arc::new(|_| panic!("on purpose")),
        ..BatchingProducerConfig::default()
    };
    let producer = producer(&script, config);
    let receipts = produce(&producer, &["a", "b"]);
    script.turns.add_permits(100);
    assert_eq!(ends(receipts).await, [Err(stopped()), Err(stopped())]);
    assert_eq!(producer.produce(&"late".to_owned()).err(), Some(stopped()));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_and_has_room_again() {
    let script = Script::held(&[]);
    let config = BatchingProducerConfig {
        batch_messages_max: 1,
        queue_messages_max: 2,
        ..BatchingProducerConfig::default()
    };
    let producer = producer(&script, config);
    let mut receipts = produce(&producer, &["being published"]);
    script.has_tried(1).await;
    receipts.extend(produce(&producer, &["one", "two"]));
    let refused = producer.produce(&"three".to_owned()).err();
    assert_eq!(refused, Some(ProducerError::QueueFull { topic: news(), max: 2 }));
    assert_eq!(producer.waiting(), 2);
    script.turns.add_permits(100);
    assert!(ends(receipts).await.iter().all(Result::is_ok));
    assert!(ends(produce(&producer, &["four"])).await[0].is_ok());
    assert_eq!(script.published().concat(), ["being published", "one", "two", "four"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_message_is_not_published_and_makes_room_at_once() {
    let script = Script::held(&[]);
    let producer = producer(
        &script,
        BatchingProducerConfig { batch_messages_max: 1, ..BatchingProducerConfig::default() },
    );
    let mut receipts = produce(&producer, &["a", "b", "c"]);
    script.has_tried(1).await;
    let b = receipts.remove(1);
    b.cancel();
    b.cancel();
    assert_eq!(b.await, Err(cancelled()), "nobody had to publish anything first");
    assert_eq!(producer.waiting(), 1);
    // What is being published cannot be taken back.
    receipts[0].cancel();
    script.turns.add_permits(100);
    assert!(ends(receipts).await.iter().all(Result::is_ok));
    assert_eq!(script.published().concat(), ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_tried_again_until_it_is_published() {
    let script = Script::new(&[Act::Fail, Act::Fail]);
    let attempts = Arc::<Mutex<Vec<(u32, usize)>>>::default();
    let seen = Arc::clone(&attempts);
    let config = BatchingProducerConfig {
        on_error: Arc::new(move |failure| {
            assert_eq!(*failure.error, ProducerError::Publish(self::failure(&news())));
            seen.lock().expect("unlocked").push((failure.attempts, failure.messages));
            ErrorDecision::RetryAfter(Duration::from_secs(7))
        }),
        ..BatchingProducerConfig::default()
    };
    let producer = producer(&script, config);
    let before = tokio::time::Instant::now();
    assert!(ends(produce(&producer, &["a", "b"])).await.iter().all(Result::is_ok));
    assert_eq!(before.elapsed(), Duration::from_secs(14), "it paused as it was told");
    assert_eq!(*attempts.lock().expect("unlocked"), [(1, 2), (2, 2)]);
    assert_eq!((script.tried().len(), script.published()), (3, vec![vec!["a".to_owned(), "b".to_owned()]]));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_fails_is_skipped_if_so_decided() {
    let script = Script::held(&[Act::Publish, Act::Fail]);
    let config = BatchingProducerConfig { batch_messages_max: 1, ..deciding(ErrorDecision::FailAndContinue) };
    let producer = producer(&script, config);
    let receipts = produce(&producer, &["a", "b", "c"]);
    script.turns.add_permits(100);
    assert_eq!(ends(receipts).await, [Ok(()), failed(), Ok(())]);
    assert_eq!(script.published().concat(), ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_producer_that_tries_for_ever_can_be_stopped() {
    let script = Script::new(&[Act::Fail; 1000]);
    let producer = producer(&script, deciding(ErrorDecision::RetryAfter(Duration::from_millis(10))));
    let receipts = produce(&producer, &["a"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(script.tried().len() > 50);
    producer.stop().await;
    assert_eq!(ends(receipts).await, [Err(stopped())]);
}

#[tokio::test(start_paused = true)]
async fn a_message_cancelled_meanwhile_is_not_tried_again() {
    let script = Script::new(&[Act::Fail]);
    let producer = producer(&script, deciding(ErrorDecision::RetryAfter(Duration::from_secs(1))));
    let mut receipts = produce(&producer, &["a", "b"]);
    script.has_tried(1).await;
    receipts[0].cancel();
    assert_eq!(receipts.remove(0).await, Err(cancelled()));
    assert!(ends(receipts).await[0].is_ok());
    assert_eq!(script.published(), [["b"]]);
    // A batch of which nothing is left is over.
    let script = Script::new(&[Act::Fail; 2]);
    let producer = self::producer(&script, deciding(ErrorDecision::RetryAfter(Duration::from_secs(1))));
    let receipts = produce(&producer, &["a"]);
    script.has_tried(1).await;
    receipts[0].cancel();
    assert_eq!(ends(receipts).await, [Err(cancelled())]);
    assert_eq!(script.tried().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn publishing_that_takes_too_long_has_failed() {
    let script = Script::new(&[Act::Hang]);
    let after = Duration::from_secs(3);
    let config =
        BatchingProducerConfig { publish_timeout: after, ..deciding(ErrorDecision::FailAndContinue) };
    let producer = producer(&script, config);
    let late = ends(produce(&producer, &["a"])).await;
    assert_eq!(late, [Err(ProducerError::Timeout { topic: news(), after })]);
    assert!(ends(produce(&producer, &["b"])).await[0].is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_sent_is_refused_alone() {
    let script = Script::held(&[]);
    let producer = producer(&script, BatchingProducerConfig::default());
    let mut receipts = produce(&producer, &["a"]);
    let nameless = Message::raw(TypeName::from(""), Bytes::new());
    assert!(matches!(producer.produce_message(nameless), Err(ProducerError::Payload(_))));
    let huge = "x".repeat(17 << 20);
    assert!(matches!(producer.produce(&huge), Err(ProducerError::Payload(_))));
    receipts.extend(produce(&producer, &["b"]));
    script.turns.add_permits(100);
    assert!(ends(receipts).await.iter().all(Result::is_ok));
    assert_eq!(script.published().concat(), ["a", "b"]);
}

#[test]
fn a_setting_out_of_range_is_named() {
    let sound = BatchingProducerConfig::default();
    assert_eq!(sound.validate(), Ok(()));
    let refusals = [
        (BatchingProducerConfig { batch_messages_max: 0, ..sound.clone() }, "batch_messages_max"),
        (BatchingProducerConfig { batch_bytes_max: 17 << 20, ..sound.clone() }, "batch_bytes_max"),
        (BatchingProducerConfig { queue_messages_max: 0, ..sound.clone() }, "queue_messages_max"),
        (BatchingProducerConfig { batch_wait: Duration::from_secs(61), ..sound.clone() }, "batch_wait"),
        (BatchingProducerConfig { publish_timeout: Duration::ZERO, ..sound }, "publish_timeout"),
    ];
    for (config, expected) in refusals {
        let (ProducerConfigError::Count { field, .. } | ProducerConfigError::Duration { field, .. }) =
            config.validate().expect_err(expected)
        else {
            panic!("{expected}")
        };
        assert_eq!(field, expected);
    }
}

/// Over whole nodes: everything arrives in order, and a topic that nobody knows is a reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_publishes_to_a_topic_of_the_cluster() {
    let remote = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut node =
        Cluster::new(ClusterConfig::new("a".parse().expect("a name"), remote)).expect("valid settings");
    node.start_member().await.expect("a node on loopback");
    while node.roster().iter().all(|member| member.kinds.is_empty()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let topics = node.pubsub().expect("running");
    let config = deciding(ErrorDecision::FailAndContinue);
    let producer = topics.producer("news", config).expect("sound settings");
    let unknown = ends(produce(&producer, &["nobody"])).await;
    assert_eq!(unknown, [Err(ProducerError::Publish(PubSubError::UnknownTopic { topic: news() }))]);
    let mut listener = topics.subscribe_channel("news", 10_000).await.expect("subscribed");
    let words: Vec<_> = (0..5000).map(|number| number.to_string()).collect();
    let receipts = produce(&producer, &words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(ends(receipts).await.iter().all(Result::is_ok));
    for word in &words {
        let next = tokio::time::timeout(Duration::from_secs(30), listener.recv()).await;
        assert_eq!(next.expect("in time").expect("open").decode::<String>().as_ref(), Ok(word));
    }
}
