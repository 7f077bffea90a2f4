//! What the grains of a kind tell everybody: one stream of events per kind, over the whole cluster.
//!
//! A grain emits an event in a turn; whoever listens to its kind hears it with the name of the grain. Underneath there is a
//! topic per kind, so what is promised about topics holds here.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use prost::Name;
use synod_core::grains::ClusterIdentity;
use synod_core::pubsub::TopicName;
use tokio_stream::Stream;

use super::error::PubSubError;
use super::{PubSub, TopicReceiver};
use crate::grains::GrainContext;
use crate::remote::{Message, TypeName};

/// An event that a grain emitted.
#[derive(Clone, Debug, PartialEq)]
pub struct EmittedEvent {
    /// Which grain.
    pub grain: ClusterIdentity,
    /// What it said; [`Message::decode`] reads it.
    pub event: Message,
}

/// The events of the grains of one kind, to be read one by one; also a [`Stream`]. Dropping it ends the subscription.
#[derive(Debug)]
#[must_use = "dropping it ends the subscription"]
pub struct KindEvents {
    receiver: TopicReceiver,
}

impl KindEvents {
    /// The next event; waits for one. `None` when the node has stopped and everything was read.
    ///
    /// A cancelled call loses nothing.
    pub async fn recv(&mut self) -> Option<EmittedEvent> {
        loop {
            // What else somebody publishes there is no event.
            if let Some(event) = Emitted::read(&self.receiver.recv().await?) {
                return Some(event);
            }
        }
    }

    /// Ends the subscription, and waits until that is known. What was not read is lost.
    ///
    /// # Errors
    /// Nobody was told; it is found out with the next event.
    pub async fn unsubscribe(self) -> Result<(), PubSubError> {
        self.receiver.unsubscribe().await
    }
}

impl Stream for KindEvents {
    type Item = EmittedEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<EmittedEvent>> {
        loop {
            match Pin::new(&mut self.receiver).poll_next(context) {
                Poll::Ready(Some(message)) => {
                    if let Some(event) = Emitted::read(&message) {
                        return Poll::Ready(Some(event));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl PubSub {
    /// What grains of `kind` emit from now on, wherever they run. At most `capacity` events, 1 to 65 536, wait to be read.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe).
    pub async fn events_of(&self, kind: &str, capacity: usize) -> Result<KindEvents, PubSubError> {
        Ok(KindEvents { receiver: self.subscribe_channel(&topic_of(kind), capacity).await? })
    }

    async fn emit(&self, grain: &ClusterIdentity, event: &Message) -> Result<(), PubSubError> {
        let topic = TopicName::new(&topic_of(grain.kind()))?;
        // A Go node does not survive messages of types that it does not know.
        if let Some(host) = self.foreign_host(self.grain(&topic)?.identity()) {
            return Err(PubSubError::ForeignHost { topic, host });
        }
        match self.publish_batch(topic.as_str(), &[Message::new(&Emitted::write(grain, event))]).await {
            // An event is not addressed to anybody.
            Err(PubSubError::UnknownTopic { .. } | PubSubError::NoSubscribers { .. }) => Ok(()),
            told => told,
        }
    }
}

impl GrainContext {
    /// The topics of the cluster; `None` while the node stops.
    #[must_use]
    pub fn pubsub(&self) -> Option<PubSub> {
        self.grains().pubsub()
    }

    /// Tells everybody who listens to the kind of this grain, see [`PubSub::events_of`]. It is no error if nobody does.
    ///
    /// # Errors
    /// The event may not have been told, or not to everybody: the node stops, the topic of the kind cannot be reached, or it
    /// belongs to a protoactor-go node, which has no such streams.
    pub async fn emit<M: prost::Message + Name + 'static>(&self, event: &M) -> Result<(), PubSubError> {
        let pubsub = self.pubsub().ok_or(PubSubError::Stopped)?;
        pubsub.emit(self.identity(), &Message::new(event)).await
    }
}

/// An event as it travels.
#[derive(Clone, PartialEq, prost::Message)]
struct Emitted {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    identity: String,
    #[prost(string, tag = "3")]
    type_name: String,
    #[prost(bytes = "bytes", tag = "4")]
    payload: Bytes,
}

impl Name for Emitted {
    const NAME: &'static str = "Emitted";
    const PACKAGE: &'static str = "synod.grains";
}

impl Emitted {
    fn write(grain: &ClusterIdentity, event: &Message) -> Self {
        Self {
            kind: grain.kind().to_owned(),
            identity: grain.identity().to_owned(),
            type_name: event.type_name.to_string(),
            payload: event.payload.clone(),
        }
    }

    fn read(message: &Message) -> Option<EmittedEvent> {
        let Self { kind, identity, type_name, payload } = message.decode().ok()?;
        let grain = ClusterIdentity::new(&kind, &identity).ok()?;
        Some(EmittedEvent { grain, event: Message::raw(TypeName::from(type_name.as_str()), payload) })
    }
}

/// The topic of the events of a kind.
fn topic_of(kind: &str) -> String {
    format!("grain-events/{kind}")
}
