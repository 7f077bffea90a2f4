//! The node under test, with an actor that shows what arrived and a watch on what was said about it.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use synod_cluster::remote::{Actor, ActorContext, Message, Remote, RemoteConfig, RemoteCounters, TypeName};
use synod_cluster::{Delivery, EventStream, MonotonicClock, Subscription};
use synod_core::membership::ClusterEvent;
use synod_core::outbound::OutboundConfig;
use synod_core::remote::RemoteEvent;
use synod_wire::remote::{MessageBatch, MessageEnvelope, RemoteMessage};
use tokio::sync::mpsc;

/// How long anything may take that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The type of the messages that tests send.
pub(crate) const TEXT: &str = "test.Text";

/// Where no node is. Only said, never dialled successfully.
pub(crate) const NOWHERE: &str = "127.0.0.1:9";

pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// Waits for something that only a counter tells.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(crate) fn config() -> RemoteConfig {
    let defaults = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let outbound = OutboundConfig {
        backoff_min: Duration::from_millis(5),
        backoff_max: Duration::from_millis(40),
        ..defaults.outbound
    };
    RemoteConfig { outbound, ..defaults }
}

/// A node that is open.
pub(crate) async fn start(config: RemoteConfig, member_id: &str, stream: EventStream) -> Remote {
    let remote = Remote::bind(config, stream, MonotonicClock::start()).await.expect("a node on loopback");
    remote.open(member_id);
    remote
}

/// Reports every message to its test, and answers with the same text.
pub(crate) struct Probe(pub(crate) mpsc::UnboundedSender<String>);

impl Actor for Probe {
    async fn receive(&mut self, context: &mut ActorContext, message: Message) {
        self.0.send(String::from_utf8_lossy(&message.payload).into_owned()).ok();
        context.respond(Message { sender: None, ..message }).ok();
    }
}

/// Never finishes its first message.
pub(crate) struct Stuck;

impl Actor for Stuck {
    async fn receive(&mut self, _: &mut ActorContext, _: Message) {
        std::future::pending::<()>().await;
    }
}

/// A node with an actor `probe`.
pub(crate) struct Node {
    pub(crate) remote: Remote,
    pub(crate) seen: mpsc::UnboundedReceiver<String>,
    pub(crate) events: Subscription,
}

impl Node {
    pub(crate) async fn start(config: RemoteConfig) -> Self {
        let stream = EventStream::default();
        let events = stream.subscribe();
        let remote = start(config, "node#1", stream).await;
        let (sender, seen) = mpsc::unbounded_channel();
        remote.spawn_named("probe", Probe(sender)).expect("a free name");
        Self { remote, seen, events }
    }

    pub(crate) fn address(&self) -> &str {
        self.remote.authority().as_str()
    }

    pub(crate) fn counters(&self) -> &RemoteCounters {
        self.remote.counters()
    }

    /// The next text that the probe received.
    pub(crate) async fn next(&mut self) -> String {
        in_time(self.seen.recv()).await.expect("the probe lives")
    }

    /// Waits until observers were told of an input that was refused for `problem`.
    pub(crate) async fn refused(&mut self, problem: &str) {
        let wanted = |event: &RemoteEvent| matches!(event, RemoteEvent::InputRefused { problem: told, .. } if told.contains(problem));
        self.event(problem, wanted).await;
    }

    /// Waits for an event.
    pub(crate) async fn event(&mut self, what: &str, wanted: impl Fn(&RemoteEvent) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let delivery = tokio::time::timeout_at(deadline, self.events.recv()).await;
            match delivery.unwrap_or_else(|_| panic!("no event tells of {what:?}")) {
                Some(Delivery::Event(event)) => {
                    if let ClusterEvent::Remote { event, .. } = &*event
                        && wanted(event)
                    {
                        return;
                    }
                }
                Some(Delivery::Missed(_)) => {}
                None => panic!("the event stream ended"),
            }
        }
    }

    /// An honest peer connects, asks the probe something and gets its answer.
    pub(crate) async fn serves_an_honest_peer(&mut self) {
        let honest = start(config(), "honest#1", EventStream::default()).await;
        let probe = self.remote.pid("probe");
        let answer = honest.request(&probe, text("honest"), PATIENCE).await.expect("an answer");
        assert_eq!(&answer.payload[..], b"honest");
        while self.next().await != "honest" {}
        assert!(honest.shutdown(PATIENCE).await);
    }
}

pub(crate) fn text(text: &str) -> Message {
    Message::raw(TypeName::from(TEXT), Bytes::copy_from_slice(text.as_bytes()))
}

/// A batch of dialect B that names one type, as raw as a test wants it.
pub(crate) fn batch(type_name: &str, targets: &[&str], envelopes: Vec<MessageEnvelope>) -> MessageBatch {
    MessageBatch {
        type_names: vec![type_name.to_owned()],
        targets: targets.iter().map(|target| Bytes::copy_from_slice(target.as_bytes())).collect(),
        envelopes,
        senders: Vec::new(),
    }
}

/// An envelope for the first target, of the first type, from nobody.
pub(crate) fn envelope(payload: &str) -> MessageEnvelope {
    MessageEnvelope { message_data: payload.as_bytes().to_vec().into(), ..MessageEnvelope::default() }
}

/// A frame with one text for the probe.
pub(crate) fn to_probe(payload: &str) -> Vec<u8> {
    frame(batch(TEXT, &["probe"], vec![envelope(payload)]))
}

pub(crate) fn frame(batch: MessageBatch) -> Vec<u8> {
    RemoteMessage::from(batch).encode_to_vec()
}

/// A PID as it travels.
pub(crate) fn wire_pid(address: &str, id: &str) -> synod_wire::actor::Pid {
    synod_wire::actor::Pid { address: address.to_owned(), id: id.to_owned(), request_id: 0 }
}
