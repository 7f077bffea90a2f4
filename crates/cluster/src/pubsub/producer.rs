//! Publishes message after message, many at a time.
//!
//! Whoever produces does not wait: the message goes into a queue, and a receipt comes back that tells what became of it.
//!
//! ```text
//!   produce ──► queue, bounded ──► batch ──► publish, one at a time ──► receipts
//!      │             │ cancelled                  │ failed: the application decides
//!      └► QueueFull  └► Cancelled                 ├► again, after a pause
//!                                                 ├► this batch has failed, go on
//!                                                 └► everything has failed, stop
//! ```
//!
//! Messages are published in the order in which they were produced. A batch that is published again after its answer was
//! lost may arrive twice: what is tried again is the application's choice.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use prost::Name;
use synod_core::pubsub::{TopicName, TopicNameError};
use synod_wire::PayloadError;
use synod_wire::cluster::PubSubBatchTransport;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{PubSub, PubSubError, codec};
use crate::lock;
use crate::remote::Message;

/// Settings of a [`BatchingProducer`].
#[derive(Clone)]
pub struct BatchingProducerConfig {
    /// Most messages in one batch. 1 to 65 536. Default 2000, as in Go.
    pub batch_messages_max: usize,
    /// Most bytes in one batch; a single message may be larger. 1 to 16 MiB. Default 1 MiB.
    pub batch_bytes_max: usize,
    /// How long a batch that is not full waits for more. Longer makes fewer and larger batches, and messages later. 0 to
    /// 1 min. Default 0: what is there goes out as soon as the batch before it is done.
    pub batch_wait: Duration,
    /// Most messages that wait. 1 to 10 000 000. Default 10 000.
    pub queue_messages_max: usize,
    /// How long publishing a batch may take. 1 ms to 1 h. Default 5 s, as in Go.
    pub publish_timeout: Duration,
    /// What follows when a batch was not published. Default always [`ErrorDecision::FailAndStop`].
    pub on_error: Arc<dyn Fn(&PublishFailure<'_>) -> ErrorDecision + Send + Sync>,
}

impl Default for BatchingProducerConfig {
    fn default() -> Self {
        Self {
            batch_messages_max: 2000,
            batch_bytes_max: MIB,
            batch_wait: Duration::ZERO,
            queue_messages_max: 10_000,
            publish_timeout: Duration::from_secs(5),
            on_error: Arc::new(|_| ErrorDecision::FailAndStop),
        }
    }
}

impl BatchingProducerConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), ProducerConfigError> {
        let counts = [
            ("batch_messages_max", self.batch_messages_max, 65_536),
            ("batch_bytes_max", self.batch_bytes_max, 16 * MIB),
            ("queue_messages_max", self.queue_messages_max, 10_000_000),
        ];
        for (field, value, max) in counts {
            if !(1..=max).contains(&value) {
                return Err(ProducerConfigError::Count { field, value, max });
            }
        }
        let durations = [
            ("batch_wait", self.batch_wait, Duration::ZERO, Duration::from_secs(60)),
            ("publish_timeout", self.publish_timeout, super::TIMEOUT_MIN, super::TIMEOUT_MAX),
        ];
        for (field, value, min, max) in durations {
            if !(min..=max).contains(&value) {
                return Err(ProducerConfigError::Duration { field, value, min, max });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for BatchingProducerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchingProducerConfig")
            .field("batch_messages_max", &self.batch_messages_max)
            .field("batch_bytes_max", &self.batch_bytes_max)
            .field("batch_wait", &self.batch_wait)
            .field("queue_messages_max", &self.queue_messages_max)
            .field("publish_timeout", &self.publish_timeout)
            .finish_non_exhaustive()
    }
}

/// A setting of a producer cannot be used. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProducerConfigError {
    /// The name is none of a topic.
    #[error(transparent)]
    Topic(#[from] TopicNameError),
    /// A number is out of its range.
    #[error("{field} must be 1 to {max}, it is {value}")]
    Count {
        /// The setting.
        field: &'static str,
        /// The refused value.
        value: usize,
        /// The largest value.
        max: usize,
    },
    /// A time is out of its range.
    #[error("{field} must be {min:?} to {max:?}, it is {value:?}")]
    Duration {
        /// The setting.
        field: &'static str,
        /// The refused value.
        value: Duration,
        /// The smallest value.
        min: Duration,
        /// The largest value.
        max: Duration,
    },
}

/// A batch was not published, or nobody knows.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PublishFailure<'a> {
    /// How often this batch has been tried.
    pub attempts: u32,
    /// How many messages it has.
    pub messages: usize,
    /// What happened.
    pub error: &'a ProducerError,
}

/// What follows when a batch was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorDecision {
    /// It has failed, and so has everything that waits. The producer ends.
    FailAndStop,
    /// It has failed. The next one follows.
    FailAndContinue,
    /// It is tried again after a pause, without messages that were cancelled meanwhile.
    RetryAfter(Duration),
}

/// What became of a message, other than that it was published.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProducerError {
    /// As many messages wait as may. This one was not taken.
    #[error("{max} messages wait to be published to {topic}, as many as may; this one was not taken")]
    QueueFull {
        /// The topic.
        topic: TopicName,
        /// How many may wait.
        max: usize,
    },
    /// The message cannot be sent. It was not taken; others are not concerned.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// It was cancelled. Unless it was being published when that happened, nobody has it.
    #[error("the message for {topic} was cancelled")]
    Cancelled {
        /// The topic.
        topic: TopicName,
    },
    /// The topic did not answer in time. It may have the message all the same.
    #[error("{topic} did not answer within {after:?}; it may have the message")]
    Timeout {
        /// The topic.
        topic: TopicName,
        /// How long it was waited for.
        after: Duration,
    },
    /// Publishing failed.
    #[error(transparent)]
    Publish(#[from] PubSubError),
    /// The producer has ended. A message that was being published then may have arrived.
    #[error("the producer for {topic} has ended")]
    Stopped {
        /// The topic.
        topic: TopicName,
    },
}

/// Publishes batches. [`PubSub`] does; applications may put something before it.
pub trait BatchPublisher: Send + Sync + 'static {
    /// Publishes messages together, within `timeout`.
    fn publish(
        &self,
        topic: &TopicName,
        batch: &[Message],
        timeout: Duration,
    ) -> impl Future<Output = Result<(), PubSubError>> + Send;
}

impl BatchPublisher for PubSub {
    async fn publish(
        &self,
        topic: &TopicName,
        batch: &[Message],
        timeout: Duration,
    ) -> Result<(), PubSubError> {
        self.publish_within(topic, batch, timeout).await
    }
}

/// Publishes to one topic in the background. Dropping it is [`stop`](Self::stop) without the wait.
pub struct BatchingProducer {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl BatchingProducer {
    /// A producer for `topic`.
    ///
    /// # Errors
    /// A setting that cannot be used.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(
        publisher: impl BatchPublisher,
        topic: &str,
        config: BatchingProducerConfig,
    ) -> Result<Self, ProducerConfigError> {
        config.validate()?;
        let shared = Arc::new(Shared {
            topic: TopicName::new(topic)?,
            config,
            queue: Mutex::default(),
            arrived: Notify::new(),
            stopping: watch::Sender::new(false),
        });
        let task = tokio::spawn(run(Arc::clone(&shared), publisher));
        Ok(Self { shared, task: Mutex::new(Some(task)) })
    }

    /// Puts a message into the queue.
    ///
    /// # Errors
    /// It was not taken.
    pub fn produce<M: prost::Message + Name + 'static>(
        &self,
        message: &M,
    ) -> Result<PublishReceipt, ProducerError> {
        self.produce_message(Message::new(message))
    }

    /// As [`produce`](Self::produce), for a message that is encoded already.
    ///
    /// # Errors
    /// It was not taken.
    pub fn produce_message(&self, message: Message) -> Result<PublishReceipt, ProducerError> {
        // A batch with something in it that cannot be sent could not be sent at all.
        let (type_names, envelopes) = codec::pack(std::slice::from_ref(&message));
        Message::protocol(&PubSubBatchTransport { type_names, envelopes })?;
        let shared = &self.shared;
        let mut queue = lock(&shared.queue);
        if queue.is_closed {
            return Err(shared.stopped());
        }
        let max = shared.config.queue_messages_max;
        if queue.waiting.len() >= max {
            return Err(ProducerError::QueueFull { topic: shared.topic.clone(), max });
        }
        let (done, receiver) = oneshot::channel();
        queue.last_number += 1;
        let number = queue.last_number;
        let cancelled = Arc::<AtomicBool>::default();
        queue.waiting.push_back(Waiting { number, message, cancelled: Arc::clone(&cancelled), done });
        drop(queue);
        shared.arrived.notify_one();
        Ok(PublishReceipt {
            receiver,
            number,
            cancelled,
            shared: Arc::downgrade(shared),
            topic: shared.topic.clone(),
        })
    }

    /// How many messages wait, without those that are being published.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(&self.shared.queue).waiting.len()
    }

    /// Takes no more, gives up what was not published and waits until that is done.
    pub async fn stop(&self) {
        self.shared.stopping.send_replace(true);
        let task = lock(&self.task).take();
        if let Some(task) = task {
            // A panic of the application's decision ends it too; what waited has been told either way.
            drop(task.await);
        }
    }
}

impl Drop for BatchingProducer {
    fn drop(&mut self) {
        self.shared.stopping.send_replace(true);
    }
}

impl fmt::Debug for BatchingProducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchingProducer").field("topic", &self.shared.topic).finish_non_exhaustive()
    }
}

/// Tells what became of a message, when awaited. Dropping it changes nothing.
#[must_use = "await it to learn what became of the message, or drop it"]
pub struct PublishReceipt {
    receiver: oneshot::Receiver<Result<(), ProducerError>>,
    number: u64,
    cancelled: Arc<AtomicBool>,
    shared: Weak<Shared>,
    topic: TopicName,
}

impl PublishReceipt {
    /// Takes the message back. One that waits is out at once; one that is being published is left out if that fails and
    /// is tried again.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        let Some(shared) = self.shared.upgrade() else { return };
        let mut queue = lock(&shared.queue);
        if let Ok(index) = queue.waiting.binary_search_by_key(&self.number, |waiting| waiting.number)
            && let Some(waiting) = queue.waiting.remove(index)
        {
            waiting.end(Err(shared.cancelled()));
        }
    }
}

impl Future for PublishReceipt {
    type Output = Result<(), ProducerError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let told = ready!(Pin::new(&mut self.receiver).poll(context));
        Poll::Ready(told.unwrap_or_else(|_| Err(ProducerError::Stopped { topic: self.topic.clone() })))
    }
}

impl fmt::Debug for PublishReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishReceipt").field("number", &self.number).finish_non_exhaustive()
    }
}

struct Shared {
    topic: TopicName,
    config: BatchingProducerConfig,
    queue: Mutex<Queue>,
    arrived: Notify,
    stopping: watch::Sender<bool>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    last_number: u64,
    is_closed: bool,
}

struct Waiting {
    number: u64,
    message: Message,
    cancelled: Arc<AtomicBool>,
    done: oneshot::Sender<Result<(), ProducerError>>,
}

impl Waiting {
    fn end(self, result: Result<(), ProducerError>) {
        // Whoever produced it may not want to know.
        drop(self.done.send(result));
    }
}

impl Shared {
    fn stopped(&self) -> ProducerError {
        ProducerError::Stopped { topic: self.topic.clone() }
    }

    fn cancelled(&self) -> ProducerError {
        ProducerError::Cancelled { topic: self.topic.clone() }
    }

    /// Takes nothing any more; what waits ends like this.
    fn close(&self, error: &ProducerError) {
        let waiting = {
            let mut queue = lock(&self.queue);
            queue.is_closed = true;
            std::mem::take(&mut queue.waiting)
        };
        for waiting in waiting {
            waiting.end(Err(error.clone()));
        }
    }

    /// Waits for a message, and then for more as long as it may.
    async fn next_batch(&self) -> Vec<Waiting> {
        while lock(&self.queue).waiting.is_empty() {
            self.arrived.notified().await;
        }
        let until = Instant::now() + self.config.batch_wait;
        while self.batch_len() == lock(&self.queue).waiting.len()
            && self.batch_len() < self.config.batch_messages_max
        {
            if tokio::time::timeout_at(until, self.arrived.notified()).await.is_err() {
                break;
            }
        }
        let length = self.batch_len();
        lock(&self.queue).waiting.drain(..length).collect()
    }

    /// How many of those that wait fit into one batch.
    fn batch_len(&self) -> usize {
        let queue = lock(&self.queue);
        let mut bytes = 0_usize;
        let fitting = queue.waiting.iter().take(self.config.batch_messages_max).take_while(|waiting| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(waiting.message.payload.len().max(1));
            is_first || bytes <= self.config.batch_bytes_max
        });
        fitting.count()
    }
}

/// However the loop ends, nobody waits for ever.
struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close(&self.0.stopped());
    }
}

async fn run(shared: Arc<Shared>, publisher: impl BatchPublisher) {
    let closing = Closing(Arc::clone(&shared));
    let mut stopping = shared.stopping.subscribe();
    loop {
        let batch = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => break,
            batch = shared.next_batch() => batch,
        };
        if let Err(error) = publish(&shared, &publisher, batch, &mut stopping).await {
            shared.close(&error);
            break;
        }
    }
    drop(closing);
}

/// Publishes a batch until it is done with. An error ends the producer.
async fn publish(
    shared: &Shared,
    publisher: &impl BatchPublisher,
    mut batch: Vec<Waiting>,
    stopping: &mut watch::Receiver<bool>,
) -> Result<(), ProducerError> {
    let end = |batch: Vec<Waiting>, result: &Result<(), ProducerError>| {
        batch.into_iter().for_each(|waiting| waiting.end(result.clone()));
    };
    let Shared { topic, config, .. } = shared;
    for attempts in 1_u32.. {
        let messages: Vec<_> = batch.iter().map(|waiting| waiting.message.clone()).collect();
        let publishing = tokio::time::timeout(
            config.publish_timeout,
            publisher.publish(topic, &messages, config.publish_timeout),
        );
        let published = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => Err(None),
            published = publishing => match published {
                Ok(published) => published.map_err(|error| Some(ProducerError::Publish(error))),
                Err(_) => {
                    let (topic, after) = (topic.clone(), config.publish_timeout);
                    Err(Some(ProducerError::Timeout { topic, after }))
                }
            },
        };
        let error = match published {
            Ok(()) => {
                end(batch, &Ok(()));
                return Ok(());
            }
            Err(None) => {
                end(batch, &Err(shared.stopped()));
                return Err(shared.stopped());
            }
            Err(Some(error)) => error,
        };
        tracing::debug!(%topic, %error, attempts, "a batch was not published");
        match (config.on_error)(&PublishFailure { attempts, messages: batch.len(), error: &error }) {
            ErrorDecision::FailAndStop => {
                // Whoever hears of it must find the producer closed.
                shared.close(&error);
                end(batch, &Err(error.clone()));
                return Err(error);
            }
            ErrorDecision::FailAndContinue => {
                end(batch, &Err(error));
                return Ok(());
            }
            ErrorDecision::RetryAfter(pause) => {
                tokio::select! {
                    biased;
                    _ = stopping.wait_for(|stopping| *stopping) => {
                        end(batch, &Err(shared.stopped()));
                        return Err(shared.stopped());
                    }
                    () = tokio::time::sleep(pause) => {}
                }
                let is_cancelled = |waiting: &mut Waiting| waiting.cancelled.load(Ordering::Relaxed);
                let cancelled = batch.extract_if(.., is_cancelled).collect();
                end(cancelled, &Err(shared.cancelled()));
                if batch.is_empty() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

const MIB: usize = 1024 * 1024;
