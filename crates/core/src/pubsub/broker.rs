//! The brain of one topic.

mod moving;

pub use moving::{KeptMessage, TopicSnapshot};

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::config::{Guarantee, OverflowRule, PartitionPolicy, TopicConfig, TopicConfigError, TopicOptions};
use super::log::Log;
use super::name::TopicName;
use super::outcome::{
    CreateRefusal, Delivery, DeliveryId, DeliveryStatus, DropReason, PubSubCounts, PubSubEvent,
    PubSubOutcome, PublishRefusal, Published, RemovalReason, SubscribeRefusal, Subscriber,
};
use crate::deadline::DeadlineQueue;
use crate::id::Authority;
use crate::roster::RosterMember;
use crate::time::TimerInstant;

/// One activation of a topic: who subscribes, what they have not had, and what is sent to whom.
///
/// Commands are [`create`](Self::create), [`publish`](Self::publish), [`subscribe`](Self::subscribe) and
/// [`unsubscribe`](Self::unsubscribe); inputs are the `handle_*` calls. Each returns an outcome: a driver sends its deliveries in order and calls
/// [`poll`](Self::poll) at `wake_at`. A delivery that needs a report gets it through
/// [`handle_report`](Self::handle_report), once; without one it counts as failed after a while. Time is monotonic.
/// `P` is a message; it is copied for every delivery, so it should be cheap to clone.
#[derive(Clone, Debug)]
pub struct PubSubBroker<P> {
    topic: TopicName,
    config: TopicConfig,
    existence: Existence,
    subscribers: BTreeMap<Subscriber, State>,
    log: Log<P>,
    members: Vec<RosterMember>,
    has_roster: bool,
    /// Where nothing arrives at the moment.
    suspects: BTreeSet<Authority>,
    /// Nodes that left with subscribers on them.
    gone: BTreeSet<Authority>,
    flights: BTreeMap<DeliveryId, Vec<Subscriber>>,
    last_delivery: u64,
    alarms: DeadlineQueue<Alarm>,
    counts: PubSubCounts,
}

/// Whether anybody has heard of the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existence {
    /// Nobody has.
    Unknown,
    /// Somebody subscribed at some time.
    Subscribed,
    /// Somebody created it.
    Created,
}

#[derive(Clone, Debug)]
struct State {
    /// Where it can be found; a grain may have no host.
    place: Option<Authority>,
    /// The first message that it has not had.
    next: u64,
    /// The first message that it was never sent.
    fresh: u64,
    /// What it was sent and has not acknowledged: up to there.
    flight: Option<(DeliveryId, u64)>,
    /// Whether it waits after a failure.
    is_resting: bool,
    /// Failures in a row.
    failures: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// The oldest message expires.
    Expiry,
    /// A report is overdue.
    Flight(DeliveryId),
    /// A node that left does not come back.
    Gone(Authority),
    /// A subscriber has rested.
    Retry(Subscriber),
}

impl<P: Clone> PubSubBroker<P> {
    /// A topic without subscribers.
    ///
    /// # Errors
    /// A setting out of its range, by name.
    pub fn new(topic: TopicName, config: TopicConfig) -> Result<Self, TopicConfigError> {
        config.validate()?;
        Ok(Self {
            topic,
            config,
            existence: Existence::Unknown,
            subscribers: BTreeMap::new(),
            log: Log::new(),
            members: Vec::new(),
            has_roster: false,
            suspects: BTreeSet::new(),
            gone: BTreeSet::new(),
            flights: BTreeMap::new(),
            last_delivery: 0,
            alarms: DeadlineQueue::new(),
            counts: PubSubCounts::default(),
        })
    }

    /// Opens the topic to subscribers and publishers, with these options from now on.
    pub fn create(&mut self, options: TopicOptions) -> (Result<(), CreateRefusal>, PubSubOutcome<P>) {
        let mut out = PubSubOutcome::default();
        let topic = self.topic.clone();
        let result = if let Some(options) = self.created() {
            Err(CreateRefusal::AlreadyCreated { topic, options })
        } else {
            self.existence = Existence::Created;
            self.config.set_options(options);
            out.events.push(PubSubEvent::Created { topic, options });
            Ok(())
        };
        (result, self.finish(out))
    }

    /// Makes `subscriber` hear what is published from now on. Whoever does already goes on. Returns whether it is new.
    pub fn subscribe(
        &mut self,
        subscriber: &Subscriber,
        now: TimerInstant,
    ) -> (Result<bool, SubscribeRefusal>, PubSubOutcome<P>) {
        let mut out = PubSubOutcome::default();
        // Who asks is alive, whatever was said about its node.
        if let Subscriber::Actor(pid) = subscriber
            && self.gone.contains(pid.authority())
        {
            self.return_node(pid.authority(), now, &mut out);
        }
        let result = if self.subscribers.contains_key(subscriber) {
            Ok(false)
        } else if self.subscribers.len() >= self.config.subscribers_max {
            let (topic, max) = (self.topic.clone(), self.config.subscribers_max);
            Err(SubscribeRefusal::TooManySubscribers { topic, subscriber: subscriber.clone(), max })
        } else {
            self.enter(subscriber.clone(), 0);
            let (topic, subscriber) = (self.topic.clone(), subscriber.clone());
            out.events.push(PubSubEvent::Subscribed { topic, subscriber });
            Ok(true)
        };
        (result, self.finish(out))
    }

    /// Ends a subscription. Returns whether there was one.
    pub fn unsubscribe(&mut self, subscriber: &Subscriber) -> (bool, PubSubOutcome<P>) {
        let mut out = PubSubOutcome::default();
        let was_there = self.forget(subscriber);
        if was_there {
            let (topic, subscriber) = (self.topic.clone(), subscriber.clone());
            out.events.push(PubSubEvent::Unsubscribed { topic, subscriber });
        }
        (was_there, self.finish(out))
    }

    /// Publishes messages, each with its size in bytes, as one batch: all of it is taken, or nothing.
    pub fn publish(
        &mut self,
        batch: Vec<(P, usize)>,
        now: TimerInstant,
    ) -> (Result<Published, PublishRefusal>, PubSubOutcome<P>) {
        let mut out = PubSubOutcome::default();
        let bytes = batch.iter().map(|(_, bytes)| *bytes).fold(0, usize::saturating_add);
        if let Err(refusal) = self.may_publish(batch.len(), bytes) {
            self.counts.refused += 1;
            out.events.push(PubSubEvent::PublishRefused(refusal.clone()));
            return (Err(refusal), self.finish(out));
        }
        let published = Published { messages: batch.len(), subscribers: self.subscribers.len() };
        let messages = batch.len() as u64;
        self.counts.published += messages;
        for (payload, bytes) in batch {
            self.log.push(payload, bytes, published.subscribers, now);
        }
        let unreachable =
            self.subscribers.values().filter(|state| !self.is_reachable(state)).count() as u64 * messages;
        match self.config.partition {
            PartitionPolicy::Delay => self.counts.delayed += unreachable,
            PartitionPolicy::Drop => self.drop_unreachable(&mut out),
        }
        let everyone = self.subscribers.keys().cloned().collect();
        self.advance(everyone, now, &mut out);
        self.trim(&mut out);
        (Ok(published), self.finish(out))
    }

    /// A delivery was tried at everybody: those in `failures` do not have it, all others do. An old report changes nothing.
    pub fn handle_report(
        &mut self,
        delivery: DeliveryId,
        failures: &[(Subscriber, DeliveryStatus)],
        now: TimerInstant,
    ) -> PubSubOutcome<P> {
        let mut out = PubSubOutcome::default();
        let failures: BTreeMap<_, _> = failures.iter().map(|(who, status)| (who, *status)).collect();
        self.land(
            delivery,
            &|who| failures.get(who).copied().unwrap_or(DeliveryStatus::Delivered),
            now,
            &mut out,
        );
        self.finish(out)
    }

    /// A delivery that needs no report failed at these. Actors that have ended are removed.
    pub fn handle_failures(&mut self, failures: &[(Subscriber, DeliveryStatus)]) -> PubSubOutcome<P> {
        let mut out = PubSubOutcome::default();
        for (who, status) in failures {
            if self.subscribers.contains_key(who) {
                self.count_failure(*status);
                self.remove_ended(who, *status, &mut out);
            }
        }
        self.finish(out)
    }

    /// The members are these now. Subscribers on a node that left are given some time; grains may have moved.
    pub fn handle_roster(&mut self, members: &[RosterMember], now: TimerInstant) -> PubSubOutcome<P> {
        let mut out = PubSubOutcome::default();
        let before = mem::replace(&mut self.members, members.to_vec());
        self.has_roster = true;
        let is_member = |authority: &Authority| members.iter().any(|member| member.authority == *authority);
        let suspects = mem::take(&mut self.suspects);
        let (still, left): (BTreeSet<_>, BTreeSet<_>) = suspects.into_iter().partition(is_member);
        self.suspects = still;
        let lost = before.into_iter().map(|old| old.authority).filter(|authority| !is_member(authority));
        for authority in lost.chain(left) {
            self.leave_node(&authority, now);
        }
        let back: Vec<_> = self.gone.iter().filter(|authority| is_member(authority)).cloned().collect();
        for authority in back {
            self.return_node(&authority, now, &mut out);
        }
        let mut moved = Vec::new();
        for (subscriber, state) in &mut self.subscribers {
            let Subscriber::Grain(grain) = subscriber else { continue };
            let place = self.config.placement.owner(grain, members).map(|owner| owner.authority.clone());
            if place != state.place {
                state.place = place;
                moved.push(subscriber.clone());
            }
        }
        self.start_over(&moved);
        self.advance(moved, now, &mut out);
        if self.config.partition == PartitionPolicy::Drop {
            self.drop_unreachable(&mut out);
        }
        self.finish(out)
    }

    /// The node at `authority` answers again, or it does not at the moment.
    pub fn handle_reachability(
        &mut self,
        authority: &Authority,
        is_reachable: bool,
        now: TimerInstant,
    ) -> PubSubOutcome<P> {
        let mut out = PubSubOutcome::default();
        let (topic, node) = (self.topic.clone(), authority.clone());
        if !is_reachable {
            if self.suspects.insert(authority.clone()) {
                out.events.push(PubSubEvent::NodeSuspended { topic, authority: node });
                if self.config.partition == PartitionPolicy::Drop {
                    self.drop_unreachable(&mut out);
                }
            }
        } else if self.suspects.remove(authority) {
            out.events.push(PubSubEvent::NodeResumed { topic, authority: node });
            self.resume(authority, now, &mut out);
        }
        self.finish(out)
    }

    /// Sends again what was not acknowledged, and gives up what has expired.
    pub fn poll(&mut self, now: TimerInstant) -> PubSubOutcome<P> {
        let mut out = PubSubOutcome::default();
        while let Some(alarm) = self.alarms.pop_due(now) {
            match alarm {
                Alarm::Expiry => {
                    while self.log.oldest().is_some_and(|oldest| oldest + self.config.expiry <= now) {
                        self.log.pop();
                    }
                    self.skip_lost(DropReason::Expired, &mut out);
                }
                Alarm::Flight(delivery) => {
                    self.land(delivery, &|_| DeliveryStatus::Timeout, now, &mut out);
                }
                Alarm::Gone(authority) => self.remove_node(&authority, &mut out),
                Alarm::Retry(subscriber) => {
                    if let Some(state) = self.subscribers.get_mut(&subscriber) {
                        state.is_resting = false;
                        self.advance([subscriber].into(), now, &mut out);
                    }
                }
            }
        }
        self.finish(out)
    }

    /// The topic.
    #[must_use]
    pub const fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// What it was created with; `None` if nobody did.
    #[must_use]
    pub fn created(&self) -> Option<TopicOptions> {
        (self.existence == Existence::Created).then(|| self.config.options())
    }

    /// Everybody who subscribes, in order.
    pub fn subscribers(&self) -> impl ExactSizeIterator<Item = &Subscriber> {
        self.subscribers.keys()
    }

    /// How the topic has fared.
    #[must_use]
    pub const fn counts(&self) -> PubSubCounts {
        self.counts
    }

    /// How many messages are kept, and how many bytes they have.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        (self.log.len(), self.log.bytes())
    }

    fn may_publish(&self, messages: usize, bytes: usize) -> Result<(), PublishRefusal> {
        let topic = || self.topic.clone();
        let config = &self.config;
        if messages == 0 {
            return Err(PublishRefusal::EmptyBatch { topic: topic() });
        }
        if self.existence == Existence::Unknown {
            return Err(PublishRefusal::UnknownTopic { topic: topic() });
        }
        if self.subscribers.is_empty() {
            return Err(PublishRefusal::NoSubscribers { topic: topic() });
        }
        if config.guarantee == Guarantee::AtMostOnce {
            return Ok(());
        }
        if messages > config.buffer_messages_max || bytes > config.buffer_bytes_max {
            return Err(PublishRefusal::BatchTooLarge { topic: topic(), messages, bytes });
        }
        let is_full = self.log.len() + messages > config.buffer_messages_max
            || self.log.bytes() + bytes > config.buffer_bytes_max;
        if is_full && config.overflow == OverflowRule::RejectNew {
            let (messages, bytes) = self.kept();
            return Err(PublishRefusal::BufferFull { topic: topic(), messages, bytes });
        }
        Ok(())
    }

    /// Enters a subscriber that needs the last `needed` messages of those that are kept.
    fn enter(&mut self, subscriber: Subscriber, needed: u64) {
        let place = match &subscriber {
            Subscriber::Actor(pid) => Some(pid.authority().clone()),
            Subscriber::Grain(grain) => {
                self.config.placement.owner(grain, &self.members).map(|owner| owner.authority.clone())
            }
        };
        if self.existence == Existence::Unknown {
            self.existence = Existence::Subscribed;
        }
        let next = self.log.end().saturating_sub(needed);
        let state = State { place, next, fresh: next, flight: None, is_resting: false, failures: 0 };
        self.subscribers.entry(subscriber).or_insert(state);
    }

    /// Takes a subscriber out, and what was kept for it. Returns whether there was one.
    fn forget(&mut self, subscriber: &Subscriber) -> bool {
        let Some(state) = self.subscribers.remove(subscriber) else { return false };
        self.log.release(state.next, self.log.end());
        self.alarms.clear(&Alarm::Retry(subscriber.clone()));
        true
    }

    fn is_reachable(&self, state: &State) -> bool {
        let place = state.place.as_ref();
        place.is_some_and(|place| !self.suspects.contains(place) && !self.gone.contains(place))
    }

    /// Sends these subscribers what they have not had, one delivery for all that stand at one place on one node.
    fn advance(&mut self, subscribers: Vec<Subscriber>, now: TimerInstant, out: &mut PubSubOutcome<P>) {
        let mut groups: BTreeMap<(Authority, u64, u64), Delivery<P>> = BTreeMap::new();
        let needs_report = self.config.guarantee == Guarantee::AtLeastOnce;
        for subscriber in subscribers {
            let Some(state) = self.subscribers.get(&subscriber) else { continue };
            let Some(place) = state.place.clone().filter(|_| self.is_reachable(state)) else { continue };
            let Some(state) = self.subscribers.get_mut(&subscriber) else { continue };
            if state.flight.is_some() || state.is_resting {
                continue;
            }
            while state.next < self.log.end() {
                let from = state.next;
                let to =
                    self.log.batch_end(from, self.config.batch_messages_max, self.config.batch_bytes_max);
                let delivery = groups.entry((place.clone(), from, to)).or_insert_with(|| {
                    self.last_delivery += 1;
                    Delivery {
                        id: DeliveryId(self.last_delivery),
                        to: place.clone(),
                        subscribers: Vec::new(),
                        messages: self.log.payloads(from, to),
                        needs_report,
                    }
                });
                delivery.subscribers.push(subscriber.clone());
                self.counts.forwarded += to - from;
                self.counts.redelivered += state.fresh.min(to).saturating_sub(from);
                state.fresh = state.fresh.max(to);
                if needs_report {
                    state.flight = Some((delivery.id, to));
                    break;
                }
                state.next = to;
                self.log.release(from, to);
            }
        }
        for delivery in groups.into_values() {
            if needs_report {
                self.flights.insert(delivery.id, delivery.subscribers.clone());
                self.alarms.set(&Alarm::Flight(delivery.id), now + self.config.delivery_timeout);
            }
            out.deliveries.push(delivery);
        }
    }

    /// A delivery is over.
    fn land(
        &mut self,
        delivery: DeliveryId,
        status_of: &dyn Fn(&Subscriber) -> DeliveryStatus,
        now: TimerInstant,
        out: &mut PubSubOutcome<P>,
    ) {
        let Some(subscribers) = self.flights.remove(&delivery) else { return };
        self.alarms.clear(&Alarm::Flight(delivery));
        let mut ready = Vec::new();
        for subscriber in subscribers {
            let Some(state) = self.subscribers.get_mut(&subscriber) else { continue };
            let Some((_, to)) = state.flight.filter(|(id, _)| *id == delivery) else { continue };
            state.flight = None;
            match status_of(&subscriber) {
                DeliveryStatus::Delivered => {
                    state.failures = 0;
                    let from = mem::replace(&mut state.next, to);
                    self.counts.delivered += to - from;
                    self.log.release(from, to);
                    ready.push(subscriber);
                }
                status => {
                    state.failures = state.failures.saturating_add(1);
                    state.is_resting = true;
                    let pause = self.config.pause(state.failures);
                    self.alarms.set(&Alarm::Retry(subscriber.clone()), now + pause);
                    self.count_failure(status);
                    self.remove_ended(&subscriber, status, out);
                }
            }
        }
        // What made room while it was in the air was not counted then: it might have arrived.
        self.skip_lost(DropReason::BufferFull, out);
        self.advance(ready, now, out);
    }

    const fn count_failure(&mut self, status: DeliveryStatus) {
        match status {
            DeliveryStatus::Delivered => {}
            DeliveryStatus::Timeout => self.counts.timeouts += 1,
            DeliveryStatus::NoLongerReachable | DeliveryStatus::OtherError => self.counts.failures += 1,
        }
    }

    fn remove_ended(&mut self, who: &Subscriber, status: DeliveryStatus, out: &mut PubSubOutcome<P>) {
        let has_ended = status == DeliveryStatus::NoLongerReachable && matches!(who, Subscriber::Actor(_));
        if has_ended {
            self.remove(who, RemovalReason::NoLongerReachable, out);
        }
    }

    fn remove(&mut self, who: &Subscriber, reason: RemovalReason, out: &mut PubSubOutcome<P>) {
        if self.forget(who) {
            let (topic, subscriber) = (self.topic.clone(), who.clone());
            out.events.push(PubSubEvent::SubscriberRemoved { topic, subscriber, reason });
        }
    }

    /// A node left. If actors on it subscribe, it has some time to come back.
    fn leave_node(&mut self, authority: &Authority, now: TimerInstant) {
        if self.gone.insert(authority.clone()) {
            self.alarms.set(&Alarm::Gone(authority.clone()), now + self.config.departed_grace);
        }
    }

    fn return_node(&mut self, authority: &Authority, now: TimerInstant, out: &mut PubSubOutcome<P>) {
        self.gone.remove(authority);
        self.alarms.clear(&Alarm::Gone(authority.clone()));
        self.resume(authority, now, out);
    }

    fn remove_node(&mut self, authority: &Authority, out: &mut PubSubOutcome<P>) {
        self.gone.remove(authority);
        let is_there =
            |who: &&Subscriber| matches!(who, Subscriber::Actor(pid) if pid.authority() == authority);
        let lost: Vec<_> = self.subscribers.keys().filter(is_there).cloned().collect();
        for subscriber in lost {
            self.remove(&subscriber, RemovalReason::NodeLeft, out);
        }
    }

    /// A node is back: what was on its way there may be lost and is sent again.
    fn resume(&mut self, authority: &Authority, now: TimerInstant, out: &mut PubSubOutcome<P>) {
        let is_there = |state: &State| state.place.as_ref() == Some(authority);
        let there = self.subscribers.iter().filter(|(_, state)| is_there(state));
        let there: Vec<_> = there.map(|(subscriber, _)| subscriber.clone()).collect();
        self.start_over(&there);
        self.advance(there, now, out);
    }

    /// Nothing that was sent to these is waited for any more.
    fn start_over(&mut self, subscribers: &[Subscriber]) {
        for subscriber in subscribers {
            if let Some(state) = self.subscribers.get_mut(subscriber) {
                state.flight = None;
                state.is_resting = false;
                state.failures = 0;
                self.alarms.clear(&Alarm::Retry(subscriber.clone()));
            }
        }
    }

    /// Keeps the buffer within its bounds.
    fn trim(&mut self, out: &mut PubSubOutcome<P>) {
        let before = self.log.first();
        while self.log.len() > self.config.buffer_messages_max
            || self.log.bytes() > self.config.buffer_bytes_max
        {
            self.log.pop();
        }
        if self.log.first() > before {
            self.skip_lost(DropReason::BufferFull, out);
        }
    }

    /// Moves everybody who needs messages that are no longer there on to the first that is.
    fn skip_lost(&mut self, reason: DropReason, out: &mut PubSubOutcome<P>) {
        let (first, mut lost) = (self.log.first(), 0);
        for state in self.subscribers.values_mut().filter(|state| state.flight.is_none()) {
            if state.next < first {
                lost += first - state.next;
                state.next = first;
                state.fresh = state.fresh.max(first);
            }
        }
        self.tell_dropped(lost, reason, out);
    }

    fn drop_unreachable(&mut self, out: &mut PubSubOutcome<P>) {
        let (end, mut lost) = (self.log.end(), 0);
        let unreachable = self.subscribers.iter().filter(|(_, state)| !self.is_reachable(state));
        let unreachable: Vec<_> = unreachable.map(|(subscriber, _)| subscriber.clone()).collect();
        self.start_over(&unreachable);
        for subscriber in unreachable {
            if let Some(state) = self.subscribers.get_mut(&subscriber) {
                let from = mem::replace(&mut state.next, end);
                state.fresh = end;
                lost += end - from;
                self.log.release(from, end);
            }
        }
        self.tell_dropped(lost, DropReason::Partition, out);
    }

    fn tell_dropped(&mut self, messages: u64, reason: DropReason, out: &mut PubSubOutcome<P>) {
        if messages > 0 {
            self.counts.dropped += messages;
            out.events.push(PubSubEvent::Dropped { topic: self.topic.clone(), messages, reason });
        }
    }

    fn finish(&mut self, mut out: PubSubOutcome<P>) -> PubSubOutcome<P> {
        match self.log.oldest() {
            Some(oldest) => self.alarms.set(&Alarm::Expiry, oldest + self.config.expiry),
            None => self.alarms.clear(&Alarm::Expiry),
        }
        out.wake_at = self.alarms.next();
        out
    }
}

impl TopicConfig {
    /// The pause after so many failures in a row.
    fn pause(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        self.redelivery_base.saturating_mul(1 << doublings).min(self.redelivery_cap)
    }
}

#[cfg(test)]
mod tests;
