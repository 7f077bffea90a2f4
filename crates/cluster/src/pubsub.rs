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
mod topic;

pub(crate) use codec::unpack;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use prost::Name;
use synod_core::Authority;
use synod_core::grains::{ClusterIdentity, IdentityError};
use synod_core::pubsub::{
    PubSubCounts, PubSubOutcome, Subscriber, TopicConfig, TopicConfigError, TopicName, TopicNameError,
};
use synod_core::roster::{PeerRuntime, RosterMember, RosterUpdate};
use synod_wire::cluster::{
    PubSubBatchTransport, PublishResponse, PublishStatus, SubscribeRequest, SubscribeResponse,
    UnsubscribeRequest, UnsubscribeResponse,
};
use synod_wire::{PayloadError, names};
use tokio::task::JoinHandle;

use crate::clock::MonotonicClock;
use crate::event_stream::EventStream;
use crate::grains::{CallError, GrainKind, Grains, actor_pid};
use crate::lock;
use crate::remote::{Actor, ActorContext, DecodeMessageError, Message, Pid, RegisterError, Remote};
use delivery::Courier;
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

/// A setting of publish and subscribe cannot be used. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PubSubConfigError {
    /// Of the topics.
    #[error(transparent)]
    Topic(#[from] TopicConfigError),
    /// Of the subscribers.
    #[error("subscriber_timeout must be 1 ms to 1 h, it is {value:?}")]
    SubscriberTimeout {
        /// The refused value.
        value: Duration,
    },
}

/// The topics of a cluster, as one node sees them. Clones are the same.
#[derive(Clone)]
pub struct PubSub {
    inner: Arc<Inner>,
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
    lasting: Mutex<BTreeSet<(TopicName, Subscriber)>>,
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
                renewal: Mutex::default(),
            }),
        }
    }

    /// The kind of grains that topics are. They are unloaded only when a producer wants it: who subscribes would be lost.
    pub(crate) fn kind(&self) -> GrainKind {
        let pubsub = self.clone();
        GrainKind::new(names::KIND_TOPIC, move |_| TopicGrain::new(pubsub.clone())).idle_after(None)
    }

    /// Takes part from now on.
    pub(crate) fn open(&self, remote: &Remote, grains: &Grains) -> Result<(), RegisterError> {
        let courier = Courier::new(remote.clone(), grains.clone(), self.inner.config.subscriber_timeout);
        remote.register(names::ACTOR_PUBSUB_DELIVERY, Arc::new(courier.clone()))?;
        *lock(&self.inner.open) = Some((grains.clone(), courier));
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
    /// As [`publish`](Self::publish); a batch is taken as a whole, or not at all.
    pub async fn publish_batch(&self, topic: &str, messages: &[Message]) -> Result<(), PubSubError> {
        let topic = TopicName::new(topic)?;
        let (type_names, envelopes) = codec::pack(messages);
        let batch = Message::protocol(&PubSubBatchTransport { type_names, envelopes })?;
        let response: PublishResponse = self.ask(&topic, batch).await?.decode()?;
        match response.status() {
            PublishStatus::Ok => Ok(()),
            PublishStatus::Failed => Err(PubSubError::Failed { topic }),
        }
    }

    /// Makes an actor hear what is published to a topic, until it ends. Harmless when it does already.
    ///
    /// # Errors
    /// Nobody was subscribed, unless the answer was lost.
    pub async fn subscribe(&self, topic: &str, actor: &Pid) -> Result<(), PubSubError> {
        self.subscribe_any(&TopicName::new(topic)?, &actor_subscriber(actor)?).await
    }

    /// Makes a grain hear what is published to a topic, wherever it runs.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe).
    pub async fn subscribe_grain(&self, topic: &str, kind: &str, identity: &str) -> Result<(), PubSubError> {
        let grain = ClusterIdentity::new(kind, identity)?;
        self.subscribe_any(&TopicName::new(topic)?, &Subscriber::Grain(grain)).await
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
        let topic = TopicName::new(topic)?;
        let pid = self.grains()?.remote().spawn(Handler(handler))?;
        let subscriber = actor_subscriber(&pid)?;
        lock(&self.inner.lasting).insert((topic.clone(), subscriber.clone()));
        let subscription = Subscription { pubsub: self.clone(), topic, subscriber, pid, is_over: false };
        self.subscribe_any(&subscription.topic, &subscription.subscriber).await?;
        Ok(subscription)
    }

    /// Ends the subscription of an actor. Harmless when there is none.
    ///
    /// # Errors
    /// It may go on.
    pub async fn unsubscribe(&self, topic: &str, actor: &Pid) -> Result<(), PubSubError> {
        self.unsubscribe_any(&TopicName::new(topic)?, &actor_subscriber(actor)?).await
    }

    /// Ends the subscription of a grain. Harmless when there is none.
    ///
    /// # Errors
    /// It may go on.
    pub async fn unsubscribe_grain(
        &self,
        topic: &str,
        kind: &str,
        identity: &str,
    ) -> Result<(), PubSubError> {
        let grain = ClusterIdentity::new(kind, identity)?;
        self.unsubscribe_any(&TopicName::new(topic)?, &Subscriber::Grain(grain)).await
    }

    /// How the topics of this node have fared, together.
    #[must_use]
    pub fn counts(&self) -> PubSubCounts {
        let past = *lock(&self.inner.past);
        self.topics().iter().fold(past, |sum, topic| sum.plus(topic.counts()))
    }

    /// The members are these now.
    pub(crate) fn handle_roster(&self, update: &RosterUpdate) {
        let members: Arc<[RosterMember]> = update.members.as_slice().into();
        {
            let mut view = lock(&self.inner.view);
            view.runtimes = members.iter().map(|member| (member.authority.clone(), member.runtime)).collect();
            let View { runtimes, suspects, .. } = &mut *view;
            suspects.retain(|suspect| runtimes.contains_key(suspect));
            view.members = Some(Arc::clone(&members));
        }
        for topic in self.topics() {
            topic.run(|broker, now| ((), broker.handle_roster(&members, now)));
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
        *past = past.plus(topic.counts());
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
            for (topic, subscriber) in lasting {
                let is_wanted = lock(&pubsub.inner.lasting).contains(&(topic.clone(), subscriber.clone()));
                if is_wanted && let Err(error) = pubsub.subscribe_any(&topic, &subscriber).await {
                    tracing::warn!(%topic, %error, "a subscription was not renewed");
                }
            }
        });
        if let Some(before) = lock(&self.inner.renewal).replace(renewal) {
            before.abort();
        }
    }

    async fn subscribe_any(&self, topic: &TopicName, who: &Subscriber) -> Result<(), PubSubError> {
        let request = SubscribeRequest { subscriber: Some(codec::wire_subscriber(who)) };
        let answer = self.ask(topic, Message::protocol(&request)?).await?;
        answer.decode::<SubscribeResponse>()?;
        Ok(())
    }

    async fn unsubscribe_any(&self, topic: &TopicName, who: &Subscriber) -> Result<(), PubSubError> {
        let request = UnsubscribeRequest { subscriber: Some(codec::wire_subscriber(who)) };
        let answer = self.ask(topic, Message::protocol(&request)?).await?;
        answer.decode::<UnsubscribeResponse>()?;
        Ok(())
    }

    async fn ask(&self, topic: &TopicName, message: Message) -> Result<Message, PubSubError> {
        let grain = self.grains()?.grain_ref(names::KIND_TOPIC, topic.as_str())?;
        grain.request(message).await.map_err(|error| match error {
            CallError::Grain(error) if error.reason == REASON_NO_SUBSCRIBERS => {
                PubSubError::NoSubscribers { topic: topic.clone() }
            }
            CallError::Grain(error) if error.reason == REASON_BUFFER_FULL => {
                PubSubError::BufferFull { topic: topic.clone() }
            }
            error => PubSubError::Call(error),
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

/// A handler that hears what is published to a topic. It ends when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the subscription"]
pub struct Subscription {
    pubsub: PubSub,
    topic: TopicName,
    subscriber: Subscriber,
    pid: Pid,
    is_over: bool,
}

impl Subscription {
    /// The topic.
    #[must_use]
    pub const fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The actor that the handler runs in.
    #[must_use]
    pub const fn pid(&self) -> &Pid {
        &self.pid
    }

    /// Ends it, and waits until the topic knows. The handler is done with what arrived before.
    ///
    /// # Errors
    /// The topic was not told; it finds out with the next message.
    pub async fn unsubscribe(mut self) -> Result<(), PubSubError> {
        self.is_over = true;
        self.end();
        let told = self.pubsub.unsubscribe_any(&self.topic, &self.subscriber).await;
        if let Ok(grains) = self.pubsub.grains() {
            // A node that shuts down stops it anyway.
            drop(grains.remote().poison(&self.pid));
        }
        told
    }

    /// It is not renewed any more.
    fn end(&self) {
        lock(&self.pubsub.inner.lasting).remove(&(self.topic.clone(), self.subscriber.clone()));
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.end();
        let Ok(grains) = self.pubsub.grains() else { return };
        drop(grains.remote().stop(&self.pid));
        // Without a runtime the topic finds out with the next message.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (pubsub, topic, subscriber) =
                (self.pubsub.clone(), self.topic.clone(), self.subscriber.clone());
            runtime.spawn(async move { drop(pubsub.unsubscribe_any(&topic, &subscriber).await) });
        }
    }
}

/// Publishing or subscribing failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PubSubError {
    /// The name is none of a topic. Nothing was sent.
    #[error(transparent)]
    Topic(#[from] TopicNameError),
    /// Kind and identity do not name a grain. Nothing was sent.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The actor cannot subscribe. Nothing was sent.
    #[error("{pid} is no actor that could subscribe; nothing was sent")]
    NoActor {
        /// The refused actor.
        pid: Pid,
    },
    /// Nobody hears what is published there. The messages were dropped.
    #[error("nobody subscribes to {topic}; the messages were dropped")]
    NoSubscribers {
        /// The topic.
        topic: TopicName,
    },
    /// The topic keeps as much as it may. Nobody has the messages; publishing again later may succeed.
    #[error("{topic} keeps as many messages that have not arrived as it may; these were not taken")]
    BufferFull {
        /// The topic.
        topic: TopicName,
    },
    /// The topic did not take the messages.
    #[error("{topic} did not take the messages")]
    Failed {
        /// The topic.
        topic: TopicName,
    },
    /// The topic could not be asked, or refused.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The messages cannot be sent. Nothing was.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The answer of the topic is not what was asked for.
    #[error(transparent)]
    Answer(#[from] DecodeMessageError),
    /// There are too many actors for another handler. Nothing was sent.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The node is stopped. Nothing was sent.
    #[error("the node is stopped; nothing was sent")]
    Stopped,
}

struct Handler<F>(F);

impl<F, R> Actor for Handler<F>
where
    F: FnMut(Message) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    async fn receive(&mut self, _: &mut ActorContext, message: Message) {
        (self.0)(message).await;
    }
}

fn actor_subscriber(pid: &Pid) -> Result<Subscriber, PubSubError> {
    actor_pid(pid).map(Subscriber::Actor).ok_or_else(|| PubSubError::NoActor { pid: pid.clone() })
}

/// What a topic answers when nobody would hear a message.
const REASON_NO_SUBSCRIBERS: &str = "NO_SUBSCRIBERS";
/// What a topic answers when it keeps as much as it may.
const REASON_BUFFER_FULL: &str = "BUFFER_FULL";
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
