//! The last stretch: from a node to its subscribers.
//!
//! Every subscriber has a lane of its own while something waits for it. One batch at a time is in a lane, so order is
//! kept; lanes do not wait for each other, so a slow subscriber holds up nobody else.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_core::grains::{ClusterIdentity, PlacementHash};
use synod_core::outbound::AssociationState;
use synod_core::pubsub::{DeliveryStatus, Subscriber};
use synod_core::roster::PeerRuntime;
use synod_wire::cluster::{
    DeliverBatchRequestTransport, NotifyAboutFailingSubscribersRequest, PubSubAutoRespondBatchTransport,
    UnsubscribeRequest,
};
use synod_wire::{PayloadError, names, payload};
use tokio::sync::oneshot;

use super::PubSubConfig;
use super::codec::{Failures, subscriber, wire_failures, wire_subscriber};
use crate::grains::{CallError, Grains, remote_pid};
use crate::lock;
use crate::remote::{Message, Remote, RequestError};

/// Brings batches to subscribers. Clones are the same.
#[derive(Clone)]
pub(super) struct Courier {
    remote: Remote,
    grains: Grains,
    timeout: Duration,
    placement: PlacementHash,
    /// What waits for each subscriber behind the batch that it has in hand.
    lanes: Arc<Mutex<HashMap<Subscriber, VecDeque<Parcel>>>>,
}

struct Parcel {
    message: Message,
    receipt: Arc<Receipt>,
}

/// Collects who does not have a batch, and tells it when the last one is done with it.
struct Receipt {
    failures: Mutex<Failures>,
    done: Mutex<Option<oneshot::Sender<Failures>>>,
}

impl Receipt {
    fn note(&self, subscriber: &Subscriber, status: DeliveryStatus) {
        if status != DeliveryStatus::Delivered {
            lock(&self.failures).push((subscriber.clone(), status));
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(done) = lock(&self.done).take() {
            // Nobody may want to know.
            drop(done.send(std::mem::take(&mut *lock(&self.failures))));
        }
    }
}

impl Courier {
    pub(super) fn new(remote: Remote, grains: Grains, config: &PubSubConfig) -> Self {
        let (timeout, placement) = (config.subscriber_timeout, config.topic.placement);
        Self { remote, grains, timeout, placement, lanes: Arc::default() }
    }

    /// Puts a batch into the lanes of these subscribers. Who does not have it in the end is told through the receiver.
    pub(super) fn deliver(
        &self,
        subscribers: Vec<Subscriber>,
        batch: &PubSubAutoRespondBatchTransport,
    ) -> oneshot::Receiver<Failures> {
        let (done, receiver) = oneshot::channel();
        let receipt = Arc::new(Receipt { failures: Mutex::default(), done: Mutex::new(Some(done)) });
        let message = Message::protocol(batch);
        for subscriber in subscribers {
            let Ok(message) = message.clone() else {
                receipt.note(&subscriber, DeliveryStatus::OtherError);
                continue;
            };
            let parcel = Parcel { message, receipt: Arc::clone(&receipt) };
            let mut lanes = lock(&self.lanes);
            match lanes.get_mut(&subscriber) {
                Some(lane) if lane.len() < LANE_BATCHES_MAX => lane.push_back(parcel),
                Some(_) => receipt.note(&subscriber, DeliveryStatus::Timeout),
                None => {
                    lanes.insert(subscriber.clone(), VecDeque::new());
                    drop(lanes);
                    tokio::spawn(self.clone().run_lane(subscriber, parcel));
                }
            }
        }
        receiver
    }

    async fn run_lane(self, subscriber: Subscriber, first: Parcel) {
        let mut next = Some(first);
        while let Some(Parcel { message, receipt }) = next {
            let status = self.hand_over(&subscriber, message).await;
            receipt.note(&subscriber, status);
            drop(receipt);
            let mut lanes = lock(&self.lanes);
            next = lanes.get_mut(&subscriber).and_then(VecDeque::pop_front);
            if next.is_none() {
                lanes.remove(&subscriber);
            }
        }
    }

    async fn hand_over(&self, subscriber: &Subscriber, message: Message) -> DeliveryStatus {
        match subscriber {
            Subscriber::Actor(pid) => {
                match self.remote.request(&remote_pid(pid), message, self.timeout).await {
                    Ok(_) => DeliveryStatus::Delivered,
                    // Without a connection nobody knows whether the actor has ended.
                    Err(RequestError::DeadLetter { .. })
                        if pid.authority() == self.remote.authority()
                            || self.remote.association(pid.authority()).0 == AssociationState::Connected =>
                    {
                        DeliveryStatus::NoLongerReachable
                    }
                    Err(RequestError::Timeout { .. }) => DeliveryStatus::Timeout,
                    Err(_) => DeliveryStatus::OtherError,
                }
            }
            Subscriber::Grain(grain) => {
                let Ok(grain) = self.grains.grain_ref(grain.kind(), grain.identity()) else {
                    return DeliveryStatus::OtherError;
                };
                match grain.with_timeout(self.timeout).request(message).await {
                    Ok(_) => DeliveryStatus::Delivered,
                    Err(CallError::Timeout { .. }) => DeliveryStatus::Timeout,
                    Err(_) => DeliveryStatus::OtherError,
                }
            }
        }
    }

    /// Takes a batch that a topic sent.
    pub(super) fn take(&self, message: Message) -> Result<(), String> {
        if !message.is::<DeliverBatchRequestTransport>() {
            return Err(format!("a {} for the delivery of published messages", message.type_name));
        }
        let request: DeliverBatchRequestTransport =
            payload::decode(message.payload).map_err(|error| error.to_string())?;
        let (Some(subscribers), Some(batch)) = (request.subscribers, request.batch) else {
            return Err("a delivery without a batch".to_owned());
        };
        let subscribers =
            subscribers.subscribers.iter().filter_map(|identity| subscriber(Some(identity))).collect();
        let batch =
            PubSubAutoRespondBatchTransport { type_names: batch.type_names, envelopes: batch.envelopes };
        let done = self.deliver(subscribers, &batch);
        tokio::spawn(self.clone().report(done, message.sender, request.topic));
        Ok(())
    }

    /// Tells a topic that waits for it who does not have a batch, and any other only if there is something to tell.
    async fn report(
        self,
        done: oneshot::Receiver<Failures>,
        asked_by: Option<crate::remote::Pid>,
        topic: String,
    ) {
        let mut failures = done.await.unwrap_or_default();
        if let Some(asked_by) = asked_by {
            if let Ok(notice) = notice(&failures) {
                // A topic that is gone needs no report.
                drop(self.remote.send(&asked_by, notice));
            }
            return;
        }
        let Ok(grain) = self.grains.grain_ref(names::KIND_TOPIC, &topic) else { return };
        let mut requests = Vec::new();
        if self.is_foreign(grain.identity()) {
            // An older Go node loses the whole topic over a report that an actor has ended. It does not mind when the
            // actor unsubscribes, and that comes to the same.
            for (ended, _) in failures.extract_if(.., |(who, status)| has_ended(who, *status)) {
                let subscriber = Some(wire_subscriber(&ended));
                requests.push(Message::protocol(&UnsubscribeRequest { subscriber }));
            }
        }
        if !failures.is_empty() {
            requests.push(notice(&failures));
        }
        for request in requests.into_iter().flatten() {
            if let Err(error) = grain.request(request).await {
                tracing::debug!(topic, %error, "a topic was not told about failed deliveries");
            }
        }
    }

    /// Whether a topic runs on a Go node.
    fn is_foreign(&self, topic: &ClusterIdentity) -> bool {
        let members = self.grains.members();
        let owner = self.placement.owner(topic, members.iter());
        owner.is_some_and(|owner| owner.runtime != PeerRuntime::Synod)
    }
}

fn has_ended(who: &Subscriber, status: DeliveryStatus) -> bool {
    status == DeliveryStatus::NoLongerReachable && matches!(who, Subscriber::Actor(_))
}

fn notice(failures: &Failures) -> Result<Message, PayloadError> {
    Message::protocol(&NotifyAboutFailingSubscribersRequest { invalid_deliveries: wire_failures(failures) })
}

/// Most batches that wait for one subscriber. What comes on top counts as not answered in time.
const LANE_BATCHES_MAX: usize = 1024;
