//! A topic, as a grain of the kind `prototopic`.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use synod_core::grains::GrainSnapshot;
use synod_core::membership::ClusterEvent;
use synod_core::pubsub::{
    Delivery, DeliveryStatus, PubSubBroker, PubSubCounts, PubSubOutcome, PublishRefusal, TopicName,
    TopicOptions, TopicSnapshot,
};
use synod_core::roster::PeerRuntime;
use synod_core::time::TimerInstant;
use synod_wire::actor::Touch;
use synod_wire::cluster::{
    Acknowledge, DeliverBatchRequestTransport, GrainErrorResponse, Initialize,
    NotifyAboutFailingSubscribersRequest, NotifyAboutFailingSubscribersResponse,
    PubSubAutoRespondBatchTransport, PubSubBatchTransport, PublishResponse, PublishStatus, SubscribeRequest,
    SubscribeResponse, Subscribers, UnsubscribeRequest, UnsubscribeResponse,
};
use synod_wire::{PayloadError, names, payload};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::codec::{self, Failures};
use super::own_messages::{self, CreateTopic, CreateTopicResponse};
use super::{
    PubSub, REASON_ALREADY_CREATED, REASON_BUFFER_FULL, REASON_NO_SUBSCRIBERS, REASON_UNKNOWN_TOPIC,
};
use crate::grains::{Grain, GrainContext, GrainError, Grains};
use crate::lock;
use crate::remote::{Message, Pid};

/// One activation of a topic.
pub(super) struct Topic {
    pubsub: PubSub,
    grains: Grains,
    own: Pid,
    broker: Mutex<PubSubBroker<Message>>,
    wake_at: Mutex<Option<TimerInstant>>,
    timer: Notify,
    /// How long it may be idle, as a producer wants it, and when it was used last.
    idle: Mutex<(Option<Duration>, Instant)>,
    ticking: Mutex<Option<JoinHandle<()>>>,
}

impl Topic {
    /// Runs the machine and does what it says. In one go, so that deliveries leave in its order.
    pub(super) fn run<T>(
        self: &Arc<Self>,
        step: impl FnOnce(&mut PubSubBroker<Message>, TimerInstant) -> (T, PubSubOutcome<Message>),
    ) -> T {
        let now = self.pubsub.clock().now();
        let mut broker = lock(&self.broker);
        let (result, outcome) = step(&mut broker, now);
        for event in outcome.events {
            self.pubsub.stream().publish(ClusterEvent::PubSub { event, observed_at: now });
        }
        for delivery in outcome.deliveries {
            self.send(broker.topic(), delivery);
        }
        *lock(&self.wake_at) = outcome.wake_at;
        drop(broker);
        self.timer.notify_one();
        result
    }

    pub(super) fn counts(&self) -> (TopicName, PubSubCounts) {
        let broker = lock(&self.broker);
        (broker.topic().clone(), broker.counts())
    }

    /// What it was created with, if it was.
    pub(super) fn created(&self) -> (TopicName, Option<TopicOptions>) {
        let broker = lock(&self.broker);
        (broker.topic().clone(), broker.created())
    }

    fn send(self: &Arc<Self>, topic: &TopicName, delivery: Delivery<Message>) {
        let (type_names, envelopes) = codec::pack(&delivery.messages);
        let peer = self.pubsub.member_runtime(&delivery.to);
        if delivery.needs_report && peer != Some(PeerRuntime::Synod) {
            // A Go node tells of failures only. Its subscribers answer all the same, when they are asked directly.
            let batch = PubSubAutoRespondBatchTransport { type_names, envelopes };
            let Some(courier) = self.pubsub.courier() else { return };
            let done = courier.deliver(delivery.subscribers, &batch);
            let topic = Arc::clone(self);
            tokio::spawn(async move {
                let failures = done.await.unwrap_or_default();
                topic.run(|broker, now| ((), broker.handle_report(delivery.id, &failures, now)));
            });
            return;
        }
        let subscribers = delivery.subscribers.iter().map(codec::wire_subscriber).collect();
        let request = DeliverBatchRequestTransport {
            subscribers: Some(Subscribers { subscribers }),
            batch: Some(PubSubBatchTransport { type_names, envelopes }),
            topic: topic.to_string(),
        };
        let target = Pid::new(delivery.to.as_str(), names::ACTOR_PUBSUB_DELIVERY);
        let message = match Message::protocol(&request) {
            Ok(message) => message,
            Err(error) => return tracing::error!(%topic, %error, "published messages cannot be sent"),
        };
        if !delivery.needs_report {
            // What is not taken has become a dead letter; nobody tries again.
            return drop(self.grains.remote().send(&target, message));
        }
        let topic = Arc::clone(self);
        let timeout = self.pubsub.config().topic.delivery_timeout;
        tokio::spawn(async move {
            let report =
                topic.grains.remote().ask::<NotifyAboutFailingSubscribersRequest>(&target, message, timeout);
            let failures: Failures = match report.await {
                Ok(report) => codec::failures(&report.invalid_deliveries),
                // The node did not take it, so none of its subscribers did.
                Err(_) => {
                    let everyone = delivery.subscribers.into_iter();
                    everyone.map(|subscriber| (subscriber, DeliveryStatus::OtherError)).collect()
                }
            };
            topic.run(|broker, now| ((), broker.handle_report(delivery.id, &failures, now)));
        });
    }

    async fn tick(topic: Weak<Self>) {
        while let Some(this) = topic.upgrade() {
            let wake_at = (*lock(&this.wake_at)).map(|at| this.pubsub.clock().instant(at));
            let idle_at = {
                let (limit, last) = *lock(&this.idle);
                limit.map(|limit| last + limit)
            };
            let next = wake_at.into_iter().chain(idle_at).min();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = this.timer.notified() => continue,
                () = due => {}
            }
            if wake_at.is_some_and(|at| at <= Instant::now()) {
                this.run(|broker, now| ((), broker.poll(now)));
            }
            if idle_at.is_some_and(|at| at <= Instant::now()) {
                if lock(&this.broker).kept().0 > 0 {
                    // Somebody waits for what it keeps.
                    lock(&this.idle).1 = Instant::now();
                    continue;
                }
                // It may be stopping already.
                drop(this.grains.remote().poison(&this.own));
                return;
            }
        }
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic").field("own", &self.own).finish_non_exhaustive()
    }
}

/// The grain behind a topic.
pub(super) struct TopicGrain {
    pubsub: PubSub,
    topic: Option<Arc<Topic>>,
    /// The version of the state that it began with.
    version: u64,
}

impl TopicGrain {
    pub(super) const fn new(pubsub: PubSub) -> Self {
        Self { pubsub, topic: None, version: 0 }
    }

    /// The answer to a message, or why there is none.
    fn answer(topic: &Arc<Topic>, message: &Message) -> Result<Message, GrainError> {
        let bytes = message.payload.clone();
        if message.is::<PubSubBatchTransport>() {
            let batch: PubSubBatchTransport = payload::decode(bytes).map_err(|error| invalid(&error))?;
            let messages = codec::unpack(&batch.type_names, batch.envelopes);
            let sized = messages.into_iter().map(|message| {
                let bytes = codec::kept_bytes(&message);
                (message, bytes)
            });
            let batch = sized.collect();
            topic.run(|broker, now| broker.publish(batch, now)).map_err(|refusal| {
                let reason = match refusal {
                    PublishRefusal::UnknownTopic { .. } => REASON_UNKNOWN_TOPIC,
                    PublishRefusal::NoSubscribers { .. } => REASON_NO_SUBSCRIBERS,
                    PublishRefusal::BufferFull { .. } => REASON_BUFFER_FULL,
                    _ => "INVALID_ARGUMENT",
                };
                GrainError::new(reason, refusal.to_string())
            })?;
            Ok(Message::new(&PublishResponse { status: PublishStatus::Ok.into() }))
        } else if message.is::<SubscribeRequest>() {
            let request: SubscribeRequest = payload::decode(bytes).map_err(|error| invalid(&error))?;
            let subscriber = codec::subscriber(request.subscriber.as_ref()).ok_or_else(not_a_subscriber)?;
            topic
                .run(|broker, now| broker.subscribe(&subscriber, now))
                .map_err(|refusal| GrainError::new("RESOURCE_EXHAUSTED", refusal.to_string()))?;
            Ok(Message::new(&SubscribeResponse {}))
        } else if message.is::<UnsubscribeRequest>() {
            let request: UnsubscribeRequest = payload::decode(bytes).map_err(|error| invalid(&error))?;
            let subscriber = codec::subscriber(request.subscriber.as_ref()).ok_or_else(not_a_subscriber)?;
            topic.run(|broker, _| broker.unsubscribe(&subscriber));
            Ok(Message::new(&UnsubscribeResponse {}))
        } else if message.is::<NotifyAboutFailingSubscribersRequest>() {
            let request: NotifyAboutFailingSubscribersRequest =
                payload::decode(bytes).map_err(|error| invalid(&error))?;
            let failures = codec::failures(&request.invalid_deliveries);
            topic.run(|broker, _| ((), broker.handle_failures(&failures)));
            Ok(Message::new(&NotifyAboutFailingSubscribersResponse {}))
        } else if message.is::<CreateTopic>() {
            let request: CreateTopic =
                message.decode().map_err(|error| GrainError::invalid_argument(error.to_string()))?;
            let options = request.options.unwrap_or_default().into();
            topic
                .run(|broker, _| broker.create(options))
                .map_err(|refusal| GrainError::new(REASON_ALREADY_CREATED, refusal.to_string()))?;
            let name = topic.counts().0;
            topic.pubsub.remember_created(&name, options);
            topic.pubsub.announce(&name, options);
            Ok(Message::new(&CreateTopicResponse {}))
        } else if message.is::<Initialize>() {
            let request: Initialize = payload::decode(bytes).map_err(|error| invalid(&error))?;
            let wanted = request.idle_timeout.and_then(|idle| Duration::try_from(idle).ok());
            if let Some(wanted) = wanted.filter(|wanted| !wanted.is_zero()) {
                lock(&topic.idle).0 = Some(wanted);
            }
            Ok(Message::new(&Acknowledge {}))
        } else {
            Err(GrainError::invalid_argument(format!("a topic does not take a {}", message.type_name)))
        }
    }
}

impl Grain for TopicGrain {
    async fn call(&mut self, _: &mut GrainContext, method: i32, _: Bytes) -> Result<Message, GrainError> {
        Err(GrainError::unimplemented(method))
    }

    async fn activate(
        &mut self,
        context: &mut GrainContext,
        snapshot: Option<GrainSnapshot>,
    ) -> Result<(), GrainError> {
        let internal = |error: String| GrainError::internal(error);
        let name = TopicName::new(context.identity().identity());
        let name = name.map_err(|error| GrainError::invalid_argument(error.to_string()))?;
        let config = self.pubsub.config().topic.clone();
        let broker = PubSubBroker::new(name, config).map_err(|error| internal(error.to_string()))?;
        let topic = Arc::new(Topic {
            pubsub: self.pubsub.clone(),
            grains: context.grains().clone(),
            own: context.own().clone(),
            broker: Mutex::new(broker),
            wake_at: Mutex::default(),
            timer: Notify::new(),
            idle: Mutex::new((None, Instant::now())),
            ticking: Mutex::default(),
        });
        self.pubsub.enter(&topic);
        self.version = snapshot.as_ref().map_or(0, |snapshot| snapshot.version);
        let mut known = match &snapshot {
            Some(snapshot) => own_messages::read_state(&snapshot.bytes)
                .ok_or_else(|| internal("the state of the topic cannot be read".to_owned()))?,
            None => TopicSnapshot::default(),
        };
        // After a crash of its host all that is left of a topic is what the others were told.
        let name = topic.counts().0;
        known.created = known.created.or_else(|| self.pubsub.created_topics().remove(&name));
        let created = known.created;
        topic.run(|broker, now| ((), broker.restore(known, now)));
        if let Some(options) = created {
            self.pubsub.hear_of_creation(&name, options);
            self.pubsub.announce(&name, options);
        }
        *lock(&topic.ticking) = Some(tokio::spawn(Topic::tick(Arc::downgrade(&topic))));
        self.topic = Some(topic);
        Ok(())
    }

    async fn deactivate(&mut self, context: &mut GrainContext) -> Option<GrainSnapshot> {
        let topic = self.topic.as_ref()?;
        let names = own_messages::subscribers_bytes(
            lock(&topic.broker).subscribers().map(|subscriber| subscriber.to_string().len()),
        );
        let room = context.grains().snapshot_bytes_max().saturating_sub(names + STATE_OVERHEAD_BYTES);
        let snapshot = topic.run(|broker, now| broker.pack_up(room, now));
        self.version += 1;
        let bytes = own_messages::write_state(snapshot);
        Some(GrainSnapshot { version: self.version, bytes: bytes.into() })
    }

    async fn receive(&mut self, context: &mut GrainContext, message: Message) {
        let Some(topic) = &self.topic else { return };
        if message.is::<Touch>() {
            // Answered by the actor around it.
            return;
        }
        lock(&topic.idle).1 = Instant::now();
        let answer = Self::answer(topic, &message);
        // Only synod nodes say how long they wait, and only they understand an error here: a Go node takes the answer to
        // a batch for granted, and stops over any other answer of the wrong type.
        let is_synod = context.remaining().is_some();
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if is_synod => Message::new(&GrainErrorResponse::from(error)),
            Err(error) if message.is::<PubSubBatchTransport>() => {
                let is_taken = [REASON_NO_SUBSCRIBERS, REASON_UNKNOWN_TOPIC].contains(&&*error.reason);
                let status = if is_taken { PublishStatus::Ok } else { PublishStatus::Failed };
                Message::new(&PublishResponse { status: status.into() })
            }
            Err(error) => {
                let peer = context.sender().map_or("a peer", |sender| sender.address());
                return topic.grains.remote().refuse_message(peer, &error.to_string());
            }
        };
        // Whoever asked may be gone; that has become a dead letter then.
        drop(context.respond(answer));
    }
}

impl Drop for TopicGrain {
    fn drop(&mut self) {
        if let Some(topic) = &self.topic {
            if let Some(ticking) = lock(&topic.ticking).take() {
                ticking.abort();
            }
            self.pubsub.leave(topic);
        }
    }
}

fn invalid(error: &PayloadError) -> GrainError {
    GrainError::invalid_argument(error.to_string())
}

fn not_a_subscriber() -> GrainError {
    GrainError::invalid_argument("neither an actor nor a grain that could subscribe")
}

/// What the state of a topic takes besides its subscribers and its messages.
const STATE_OVERHEAD_BYTES: usize = 4096;
