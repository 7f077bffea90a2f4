//! Publish and subscribe, over the whole cluster.
//!
//! A topic is a grain: it runs on one member, and everyone finds it by its name. It knows who subscribes, and passes
//! what is published to the nodes of the subscribers, where a courier hands it over.
//!
//! ```text
//!   PubSub::publish ──► grain prototopic/<topic> ──► PubSubBroker ──► $pubsub-delivery of each node ──► subscribers
//!                              ▲                                            │ who does not have it
//!                              └────────────────────────────────────────────┘
//! ```
//!
//! Any actor and any grain can subscribe: it receives published messages like any others. The protocol is
//! protoactor-go's, so topics, publishers and subscribers may live on Go nodes.

#[doc(hidden)]
pub mod codec;
mod delivery;
mod error;
mod events;
mod own_messages;
mod producer;
mod subscription;
mod topic;

pub(crate) use codec::unpack;
pub use error::{PubSubConfigError, PubSubError};
pub use events::{EmittedEvent, KindEvents};
pub use producer::{
    BatchPublisher, BatchingProducer, BatchingProducerConfig, ErrorDecision, ProducerConfigError,
    ProducerError, PublishFailure, PublishReceipt,
};
pub use subscription::{Subscription, SubscriptionId, TopicReceiver};
pub use synod_core::pubsub::{Guarantee, OverflowRule, PartitionPolicy, TopicName, TopicOptions};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use prost::Name;
use synod_core::Authority;
use synod_core::grains::ClusterIdentity;
use synod_core::membership::ClusterEvent;
use synod_core::pubsub::{PubSubCounts, PubSubEvent, PubSubOutcome, TopicConfig};
use synod_core::roster::{PeerRuntime, RosterMember, RosterUpdate};
use synod_wire::cluster::{
    PubSubBatchTransport, PublishResponse, PublishStatus, SubscribeRequest, SubscribeResponse,
    UnsubscribeRequest, UnsubscribeResponse,
};
use synod_wire::names;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::clock::MonotonicClock;
use crate::event_stream::EventStream;
use crate::grains::{CallError, GrainKind, GrainRef, Grains};
use crate::lock;
use crate::remote::{Letter, Message, Pid, Process, ProcessEnded, RegisterError, Remote, SystemMessage};
use delivery::Courier;
use own_messages::{CreateTopic, CreateTopicResponse, TopicCreated};
use topic::{Topic, TopicGrain};

/// Settings of publish and subscribe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PubSubConfig {
    /// How the topics that this node hosts behave. All members should agree.
    pub topic: TopicConfig,
    /// How long a subscriber may take over a batch. Shorter notices dead ones sooner, longer has patience with slow ones.
    /// 1 ms to 1 h. Default 5 s, as in Go.
    pub subscriber_timeout: Duration,
}

impl Default for PubSubConfig {
    fn default() -> Self {
        Self { topic: TopicConfig::default(), subscriber_timeout: Duration::from_secs(5) }
    }
}

impl PubSubConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), PubSubConfigError> {
        self.topic.validate()?;
        if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&self.subscriber_timeout) {
            return Err(PubSubConfigError::SubscriberTimeout { value: self.subscriber_timeout });
        }
        Ok(())
    }
}

/// The topics of a cluster, as one node sees them. Clones are the same.
///
/// ```
/// use synod_cluster::pubsub::{Guarantee, TopicOptions};
/// use synod_cluster::remote::RemoteConfig;
/// use synod_cluster::{Cluster, ClusterConfig, ClusterProvider};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listen = RemoteConfig::new(([127, 0, 0, 1], 0).into());
/// let mut cluster = Cluster::new(ClusterConfig::new("first".parse()?, listen))?;
/// cluster.start_member().await?;
/// let topics = cluster.pubsub().ok_or("not running")?;
///
/// let options = TopicOptions { guarantee: Guarantee::AtLeastOnce, ..TopicOptions::default() };
/// topics.create_topic("news", options).await?;
/// let mut news = topics.subscribe_channel("news", 16).await?;
/// topics.publish("news", &"hello".to_owned()).await?;
/// assert_eq!(news.recv().await.ok_or("stopped")?.decode::<String>()?, "hello");
/// cluster.shutdown(true).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PubSub {
    inner: Arc<Inner>,
}

/// The topics, for those whom they hold themselves.
pub(crate) struct WeakPubSub(Weak<Inner>);

impl WeakPubSub {
    pub(crate) fn upgrade(&self) -> Option<PubSub> {
        self.0.upgrade().map(|inner| PubSub { inner })
    }
}

struct Inner {
    config: PubSubConfig,
    stream: EventStream,
    clock: MonotonicClock,
    open: Mutex<Option<(Grains, Courier)>>,
    view: Mutex<View>,
    /// The topics that run here.
    topics: Mutex<Vec<Weak<Topic>>>,
    /// What topics counted that no longer run here.
    past: Mutex<PubSubCounts>,
    /// Subscriptions of this node that last until their owners drop them.
    lasting: Mutex<BTreeSet<SubscriptionId>>,
    /// The topics that somebody created, wherever they run.
    created: Mutex<BTreeMap<TopicName, TopicOptions>>,
    renewal: Mutex<Option<JoinHandle<()>>>,
}

/// What is known about the nodes.
#[derive(Default)]
struct View {
    members: Option<Arc<[RosterMember]>>,
    runtimes: BTreeMap<Authority, PeerRuntime>,
    suspects: BTreeSet<Authority>,
}

impl PubSub {
    pub(crate) fn new(config: PubSubConfig, stream: EventStream, clock: MonotonicClock) -> Self {
        Self {
            inner: Arc::new(Inner {
                config,
                stream,
                clock,
                open: Mutex::default(),
                view: Mutex::default(),
                topics: Mutex::default(),
                past: Mutex::default(),
                lasting: Mutex::default(),
                created: Mutex::default(),
                renewal: Mutex::default(),
            }),
        }
    }

    /// The kind of grains that topics are. They are unloaded only when a producer wants it: who subscribes would be lost.
    /// One that was handed over starts at once: somebody may wait for what it keeps.
    pub(crate) fn kind(&self) -> GrainKind {
        let pubsub = self.clone();
        let kind = GrainKind::new(names::KIND_TOPIC, move |_| TopicGrain::new(pubsub.clone()));
        kind.idle_after(None).starting_with_state()
    }

    /// Takes part from now on.
    pub(crate) fn open(&self, remote: &Remote, grains: &Grains) -> Result<(), RegisterError> {
        let courier = Courier::new(remote.clone(), grains.clone(), &self.inner.config);
        let door = Door { pubsub: self.clone(), courier: courier.clone() };
        remote.register(names::ACTOR_PUBSUB_DELIVERY, Arc::new(door))?;
        *lock(&self.inner.open) = Some((grains.clone(), courier));
        grains.set_pubsub(WeakPubSub(Arc::downgrade(&self.inner)));
        Ok(())
    }

    /// Renews nothing any more: a node that leaves must not bring its subscribers back.
    pub(crate) fn retire(&self) {
        lock(&self.inner.lasting).clear();
        if let Some(renewal) = lock(&self.inner.renewal).take() {
            renewal.abort();
        }
    }

    /// Takes part no longer.
    pub(crate) fn stop(&self) {
        if let Some((grains, _)) = lock(&self.inner.open).take() {
            grains.remote().unregister(names::ACTOR_PUBSUB_DELIVERY);
        }
        self.retire();
    }

    /// Creates a topic that behaves like this, and tells every synod node of it. Topics need not be created: the first
    /// subscriber opens one that behaves as its host is configured, which is all that protoactor-go has.
    ///
    /// # Errors
    /// It exists already, or nobody knows whether it does.
    pub async fn create_topic(&self, topic: &str, options: TopicOptions) -> Result<(), PubSubError> {
        let topic = TopicName::new(topic)?;
        let grain = self.grain(&topic)?;
        if let Some(host) = self.foreign_host(grain.identity()) {
            return Err(PubSubError::ForeignHost { topic, host });
        }
        let request = Message::new(&CreateTopic { options: Some(options.into()) });
        // A second attempt would find what the first one made.
        self.ask(&topic, grain.once(), request).await?.decode::<CreateTopicResponse>()?;
        Ok(())
    }

    /// Publishes one message.
    ///
    /// # Errors
    /// [`PubSubError`] says whether somebody may have it.
    pub async fn publish<M: prost::Message + Name + 'static>(
        &self,
        topic: &str,
        message: &M,
    ) -> Result<(), PubSubError> {
        self.publish_batch(topic, &[Message::new(message)]).await
    }

    /// Publishes messages together. They arrive in this order.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); a batch is taken as a whole, or not at all. What the topic may have taken is not
    /// published again, so an error can mean that everybody has it.
    pub async fn publish_batch(&self, topic: &str, messages: &[Message]) -> Result<(), PubSubError> {
        self.publish_within(&TopicName::new(topic)?, messages, PUBLISH_TIMEOUT).await
    }

    async fn publish_within(
        &self,
        topic: &TopicName,
        messages: &[Message],
        timeout: Duration,
    ) -> Result<(), PubSubError> {
        let (type_names, envelopes) = codec::pack(messages);
        let batch = Message::protocol(&PubSubBatchTransport { type_names, envelopes })?;
        let grain = self.grain(topic)?.with_timeout(timeout).once();
        let response: PublishResponse = self.ask(topic, grain, batch).await?.decode()?;
        match response.status() {
            PublishStatus::Ok => Ok(()),
            PublishStatus::Failed => Err(PubSubError::Failed { topic: topic.clone() }),
        }
    }

    /// A producer that publishes message after message to a topic, many at a time.
    ///
    /// # Errors
    /// A setting that cannot be used.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn producer(
        &self,
        topic: &str,
        config: BatchingProducerConfig,
    ) -> Result<BatchingProducer, ProducerConfigError> {
        BatchingProducer::start(self.clone(), topic, config)
    }

    /// Makes an actor hear what is published to a topic, until it ends. Harmless when it does already.
    ///
    /// # Errors
    /// Nobody was subscribed, unless the answer was lost.
    pub async fn subscribe(&self, topic: &str, actor: &Pid) -> Result<SubscriptionId, PubSubError> {
        let id = SubscriptionId::of_actor(topic, actor)?;
        self.subscribe_as(&id).await?;
        Ok(id)
    }

    /// Makes a grain hear what is published to a topic, wherever it runs.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe).
    pub async fn subscribe_grain(
        &self,
        topic: &str,
        kind: &str,
        identity: &str,
    ) -> Result<SubscriptionId, PubSubError> {
        let id = SubscriptionId::of_grain(topic, kind, identity)?;
        self.subscribe_as(&id).await?;
        Ok(id)
    }

    /// Calls `handler` with every message that is published to a topic, one at a time, until the subscription is dropped.
    /// It is renewed when the topic moves.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe).
    pub async fn subscribe_with<F, R>(&self, topic: &str, handler: F) -> Result<Subscription, PubSubError>
    where
        F: FnMut(Message) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let subscription = Subscription::start(self, topic, handler)?;
        lock(&self.inner.lasting).insert(subscription.id().clone());
        self.subscribe_as(subscription.id()).await?;
        Ok(subscription)
    }

    /// What is published to a topic, to be read one by one. At most `capacity` messages, 1 to 65 536, wait to be read. It
    /// is renewed when the topic moves.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe).
    pub async fn subscribe_channel(
        &self,
        topic: &str,
        capacity: usize,
    ) -> Result<TopicReceiver, PubSubError> {
        if !(1..=CHANNEL_MESSAGES_MAX).contains(&capacity) {
            return Err(PubSubError::Capacity { value: capacity });
        }
        let (sender, receiver) = mpsc::channel(capacity);
        let handler = move |message| {
            let sender = sender.clone();
            // A reader that is gone has unsubscribed.
            async move { drop(sender.send(message).await) }
        };
        Ok(TopicReceiver::new(receiver, self.subscribe_with(topic, handler).await?))
    }

    /// Ends a subscription. Harmless when there is none.
    ///
    /// # Errors
    /// It may go on.
    pub async fn unsubscribe(&self, id: &SubscriptionId) -> Result<(), PubSubError> {
        let request = UnsubscribeRequest { subscriber: Some(codec::wire_subscriber(id.subscriber())) };
        let grain = self.grain(id.topic())?;
        let answer = self.ask(id.topic(), grain, Message::protocol(&request)?).await?;
        answer.decode::<UnsubscribeResponse>()?;
        Ok(())
    }

    /// The topics that somebody created, as far as this node was told, and how they behave.
    #[must_use]
    pub fn created_topics(&self) -> BTreeMap<TopicName, TopicOptions> {
        lock(&self.inner.created).clone()
    }

    /// How each topic that runs on this node has fared.
    #[must_use]
    pub fn topic_counts(&self) -> BTreeMap<TopicName, PubSubCounts> {
        self.topics().iter().map(|topic| topic.counts()).collect()
    }

    /// How the topics of this node have fared, together.
    #[must_use]
    pub fn counts(&self) -> PubSubCounts {
        let past = *lock(&self.inner.past);
        self.topics().iter().fold(past, |sum, topic| sum.plus(topic.counts().1))
    }

    /// The members are these now.
    pub(crate) fn handle_roster(&self, update: &RosterUpdate) {
        let members: Arc<[RosterMember]> = update.members.as_slice().into();
        let mut newcomers = update.joined.clone();
        {
            let mut view = lock(&self.inner.view);
            // What a member runs may become known later than the member.
            let is_news =
                |member: &&RosterMember| view.runtimes.get(&member.authority) != Some(&member.runtime);
            newcomers.extend(members.iter().filter(is_news).cloned());
            view.runtimes = members.iter().map(|member| (member.authority.clone(), member.runtime)).collect();
            let View { runtimes, suspects, .. } = &mut *view;
            suspects.retain(|suspect| runtimes.contains_key(suspect));
            view.members = Some(Arc::clone(&members));
        }
        for topic in self.topics() {
            topic.run(|broker, now| ((), broker.handle_roster(&members, now)));
        }
        for newcomer in &newcomers {
            self.tell_created(newcomer);
        }
        self.renew();
    }

    /// A node answers again, or it does not at the moment.
    pub(crate) fn handle_reachability(&self, authority: &Authority, is_reachable: bool) {
        {
            let suspects = &mut lock(&self.inner.view).suspects;
            let is_news =
                if is_reachable { suspects.remove(authority) } else { suspects.insert(authority.clone()) };
            if !is_news {
                return;
            }
        }
        for topic in self.topics() {
            topic.run(|broker, now| ((), broker.handle_reachability(authority, is_reachable, now)));
        }
        let members = lock(&self.inner.view).members.clone();
        let back =
            members.iter().flat_map(|members| members.iter()).find(|member| member.authority == *authority);
        if let Some(back) = back.filter(|_| is_reachable) {
            self.tell_created(back);
        }
    }

    /// A topic that runs here was created, here or where it ran before: everybody is told, and will remember it if this
    /// node is lost.
    fn announce(&self, topic: &TopicName, options: TopicOptions) {
        let members = lock(&self.inner.view).members.clone();
        for member in members.iter().flat_map(|members| members.iter()) {
            self.tell(member, topic, options);
        }
    }

    /// A member may not have heard of the topics that run here.
    fn tell_created(&self, member: &RosterMember) {
        for topic in self.topics() {
            if let (name, Some(options)) = topic.created() {
                self.tell(member, &name, options);
            }
        }
    }

    fn tell(&self, member: &RosterMember, topic: &TopicName, options: TopicOptions) {
        let Ok(grains) = self.grains() else { return };
        let remote = grains.remote();
        if member.runtime == PeerRuntime::Synod && member.authority != *remote.authority() {
            let target = Pid::new(member.authority.as_str(), names::ACTOR_PUBSUB_DELIVERY);
            // Who misses it is told again when it is back.
            drop(remote.send(&target, Message::new(&TopicCreated::new(topic, options))));
        }
    }

    /// Another node created a topic.
    fn learn(&self, message: &Message) -> Result<(), String> {
        let told: TopicCreated = message.decode().map_err(|error| error.to_string())?;
        let topic = TopicName::new(&told.topic).map_err(|error| error.to_string())?;
        self.hear_of_creation(&topic, told.options.unwrap_or_default().into());
        Ok(())
    }

    /// A topic was created elsewhere, or before this node hosted it.
    fn hear_of_creation(&self, topic: &TopicName, options: TopicOptions) {
        let is_news = self.remember_created(topic, options);
        let running = self.topics().into_iter().find(|running| running.created() == (topic.clone(), None));
        if let Some(running) = running {
            // It began here before the news arrived.
            drop(running.run(|broker, _| broker.create(options)));
        } else if is_news {
            let (topic, observed_at) = (topic.clone(), self.clock().now());
            let event = PubSubEvent::Created { topic, options };
            self.stream().publish(ClusterEvent::PubSub { event, observed_at });
        }
    }

    /// Returns whether that is news.
    fn remember_created(&self, topic: &TopicName, options: TopicOptions) -> bool {
        let mut created = lock(&self.inner.created);
        if created.len() >= CREATED_TOPICS_MAX && !created.contains_key(topic) {
            tracing::warn!(%topic, "too many topics were created to remember this one");
            return true;
        }
        created.insert(topic.clone(), options) != Some(options)
    }

    /// The node that hosts a topic, if that is none of ours.
    fn foreign_host(&self, topic: &ClusterIdentity) -> Option<Authority> {
        let members = lock(&self.inner.view).members.clone()?;
        let owner = self.inner.config.topic.placement.owner(topic, members.iter())?;
        (owner.runtime != PeerRuntime::Synod).then(|| owner.authority.clone())
    }

    /// A topic begins to run here. It is told what is known about the nodes.
    fn enter(&self, topic: &Arc<Topic>) {
        lock(&self.inner.topics).push(Arc::downgrade(topic));
        let (members, suspects) = {
            let view = lock(&self.inner.view);
            (view.members.clone(), view.suspects.clone())
        };
        topic.run(|broker, now| {
            let mut out = PubSubOutcome::default();
            if let Some(members) = members {
                out = broker.handle_roster(&members, now);
            }
            for suspect in suspects {
                // A topic without subscribers has nothing to deliver yet.
                out.wake_at = broker.handle_reachability(&suspect, false, now).wake_at;
            }
            ((), out)
        });
    }

    fn leave(&self, topic: &Arc<Topic>) {
        lock(&self.inner.topics).retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(topic)));
        let past = &mut *lock(&self.inner.past);
        *past = past.plus(topic.counts().1);
    }

    fn topics(&self) -> Vec<Arc<Topic>> {
        lock(&self.inner.topics).iter().filter_map(Weak::upgrade).collect()
    }

    /// Subscribes again for everyone whose subscription lasts: a topic that moved may know nobody.
    fn renew(&self) {
        if lock(&self.inner.lasting).is_empty() {
            return;
        }
        let pubsub = self.clone();
        let renewal = tokio::spawn(async move {
            let lasting = lock(&pubsub.inner.lasting).clone();
            for id in lasting {
                let is_wanted = lock(&pubsub.inner.lasting).contains(&id);
                if is_wanted && let Err(error) = pubsub.subscribe_as(&id).await {
                    tracing::warn!(subscription = %id, %error, "a subscription was not renewed");
                }
            }
        });
        if let Some(before) = lock(&self.inner.renewal).replace(renewal) {
            before.abort();
        }
    }

    async fn subscribe_as(&self, id: &SubscriptionId) -> Result<(), PubSubError> {
        let request = SubscribeRequest { subscriber: Some(codec::wire_subscriber(id.subscriber())) };
        let grain = self.grain(id.topic())?;
        let answer = self.ask(id.topic(), grain, Message::protocol(&request)?).await?;
        answer.decode::<SubscribeResponse>()?;
        Ok(())
    }

    fn grain(&self, topic: &TopicName) -> Result<GrainRef, PubSubError> {
        Ok(self.grains()?.grain_ref(names::KIND_TOPIC, topic.as_str())?)
    }

    async fn ask(
        &self,
        topic: &TopicName,
        grain: GrainRef,
        message: Message,
    ) -> Result<Message, PubSubError> {
        grain.request(message).await.map_err(|error| {
            let topic = topic.clone();
            match error {
                CallError::Grain(error) if error.reason == REASON_ALREADY_CREATED => {
                    PubSubError::AlreadyCreated { topic }
                }
                CallError::Grain(error) if error.reason == REASON_UNKNOWN_TOPIC => {
                    PubSubError::UnknownTopic { topic }
                }
                CallError::Grain(error) if error.reason == REASON_NO_SUBSCRIBERS => {
                    PubSubError::NoSubscribers { topic }
                }
                CallError::Grain(error) if error.reason == REASON_BUFFER_FULL => {
                    PubSubError::BufferFull { topic }
                }
                error => PubSubError::Call(error),
            }
        })
    }

    fn grains(&self) -> Result<Grains, PubSubError> {
        lock(&self.inner.open).as_ref().map(|(grains, _)| grains.clone()).ok_or(PubSubError::Stopped)
    }

    fn courier(&self) -> Option<Courier> {
        lock(&self.inner.open).as_ref().map(|(_, courier)| courier.clone())
    }

    fn member_runtime(&self, authority: &Authority) -> Option<PeerRuntime> {
        lock(&self.inner.view).runtimes.get(authority).copied()
    }

    fn config(&self) -> &PubSubConfig {
        &self.inner.config
    }

    fn stream(&self) -> &EventStream {
        &self.inner.stream
    }

    fn clock(&self) -> MonotonicClock {
        self.inner.clock
    }
}

impl fmt::Debug for PubSub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSub").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// What comes to the door of publish and subscribe: batches for subscribers of this node, and news about topics.
struct Door {
    pubsub: PubSub,
    courier: Courier,
}

impl Process for Door {
    fn deliver(&self, letters: &mut VecDeque<Letter>) -> Result<(), ProcessEnded> {
        for Letter { message, .. } in letters.drain(..) {
            let peer = message.sender.as_ref().map_or("a peer", |sender| sender.address()).to_owned();
            let taken = if message.is::<TopicCreated>() {
                self.pubsub.learn(&message)
            } else {
                self.courier.take(message)
            };
            if let (Err(problem), Ok(grains)) = (taken, self.pubsub.grains()) {
                grains.remote().refuse_message(&peer, &problem);
            }
        }
        Ok(())
    }

    fn tell(&self, _: SystemMessage) -> Result<(), ProcessEnded> {
        Ok(())
    }
}

/// What a topic answers when it cannot be created.
const REASON_ALREADY_CREATED: &str = "ALREADY_CREATED";
/// What a topic answers that nobody has heard of.
const REASON_UNKNOWN_TOPIC: &str = "UNKNOWN_TOPIC";
/// What a topic answers when nobody would hear a message.
const REASON_NO_SUBSCRIBERS: &str = "NO_SUBSCRIBERS";
/// What a topic answers when it keeps as much as it may.
const REASON_BUFFER_FULL: &str = "BUFFER_FULL";
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// How long publishing may take unless a producer says otherwise; the same as in Go.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Most messages that wait in a channel.
const CHANNEL_MESSAGES_MAX: usize = 65_536;
/// Most topics whose creation is remembered.
const CREATED_TOPICS_MAX: usize = 65_536;
