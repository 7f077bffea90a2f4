//! Subscriptions of this node: by name, by handler and by channel.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use synod_core::grains::ClusterIdentity;
use synod_core::pubsub::{Subscriber, TopicName};
use tokio::sync::mpsc;
use tokio_stream::Stream;

use super::{PubSub, PubSubError};
use crate::grains::actor_pid;
use crate::lock;
use crate::remote::{Actor, ActorContext, Message, Pid};

/// Names one subscription: who hears what. Subscribing twice is one subscription, and gives the same id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId {
    topic: TopicName,
    subscriber: Subscriber,
}

impl SubscriptionId {
    /// The subscription of an actor.
    ///
    /// # Errors
    /// The name is none of a topic, or the PID none of an actor that could subscribe.
    pub fn of_actor(topic: &str, actor: &Pid) -> Result<Self, PubSubError> {
        let subscriber = actor_pid(actor).map(Subscriber::Actor);
        let subscriber = subscriber.ok_or_else(|| PubSubError::NoActor { pid: actor.clone() })?;
        Ok(Self { topic: TopicName::new(topic)?, subscriber })
    }

    /// The subscription of a grain.
    ///
    /// # Errors
    /// The name is none of a topic, or kind and identity none of a grain.
    pub fn of_grain(topic: &str, kind: &str, identity: &str) -> Result<Self, PubSubError> {
        let subscriber = Subscriber::Grain(ClusterIdentity::new(kind, identity)?);
        Ok(Self { topic: TopicName::new(topic)?, subscriber })
    }

    /// The topic.
    #[must_use]
    pub const fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// Who hears it.
    #[must_use]
    pub const fn subscriber(&self) -> &Subscriber {
        &self.subscriber
    }
}

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.subscriber, self.topic)
    }
}

impl fmt::Debug for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A handler that hears what is published to a topic. It ends when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the subscription"]
pub struct Subscription {
    pubsub: PubSub,
    id: SubscriptionId,
    pid: Pid,
    is_over: bool,
}

impl Subscription {
    /// Starts an actor around `handler`. It hears nothing before it subscribes.
    pub(super) fn start<F, R>(pubsub: &PubSub, topic: &str, handler: F) -> Result<Self, PubSubError>
    where
        F: FnMut(Message) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        TopicName::new(topic)?;
        let pid = pubsub.grains()?.remote().spawn(Handler(handler))?;
        let id = SubscriptionId::of_actor(topic, &pid)?;
        Ok(Self { pubsub: pubsub.clone(), id, pid, is_over: false })
    }

    /// Its name.
    #[must_use]
    pub const fn id(&self) -> &SubscriptionId {
        &self.id
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
        let told = self.pubsub.unsubscribe(&self.id).await;
        if let Ok(grains) = self.pubsub.grains() {
            // A node that shuts down stops it anyway.
            drop(grains.remote().poison(&self.pid));
        }
        told
    }

    /// It is not renewed any more.
    fn end(&self) {
        lock(&self.pubsub.inner.lasting).remove(&self.id);
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
            let (pubsub, id) = (self.pubsub.clone(), self.id.clone());
            runtime.spawn(async move { drop(pubsub.unsubscribe(&id).await) });
        }
    }
}

/// What is published to a topic, to be read one by one; also a [`Stream`]. Dropping it ends the subscription.
///
/// It is bounded: while it is full its subscriber takes nothing more, and counts as slow if that lasts.
#[derive(Debug)]
#[must_use = "dropping it ends the subscription"]
pub struct TopicReceiver {
    receiver: mpsc::Receiver<Message>,
    subscription: Subscription,
}

impl TopicReceiver {
    pub(super) const fn new(receiver: mpsc::Receiver<Message>, subscription: Subscription) -> Self {
        Self { receiver, subscription }
    }

    /// The next message; waits for one. `None` when the node has stopped and everything was read.
    ///
    /// A cancelled call loses nothing.
    pub async fn recv(&mut self) -> Option<Message> {
        self.receiver.recv().await
    }

    /// The next message, if one is there.
    pub fn try_recv(&mut self) -> Option<Message> {
        self.receiver.try_recv().ok()
    }

    /// The name of the subscription.
    #[must_use]
    pub const fn id(&self) -> &SubscriptionId {
        self.subscription.id()
    }

    /// Ends the subscription, and waits until the topic knows. What was not read is lost.
    ///
    /// # Errors
    /// The topic was not told; it finds out with the next message.
    pub async fn unsubscribe(self) -> Result<(), PubSubError> {
        let Self { receiver, subscription } = self;
        // Its handler must not wait for room that nobody makes.
        drop(receiver);
        subscription.unsubscribe().await
    }
}

impl Stream for TopicReceiver {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message>> {
        self.receiver.poll_recv(context)
    }
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
