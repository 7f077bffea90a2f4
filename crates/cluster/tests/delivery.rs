//! What becomes of messages when the way is not there, on a network in memory and in virtual time.

use std::time::Duration;

use synod_cluster::remote::{
    Actor, ActorContext, MemoryNetwork, Message, Pid, Remote, RemoteConfig, RequestError, SendError, TypeName,
};
use synod_cluster::{Delivery, EventStream, MonotonicClock, Subscription};
use synod_core::Authority;
use synod_core::membership::ClusterEvent;
use synod_core::outbound::{
    AssociationState, DeadLetterReason, OutboundConfig, OutboundEvent, OverflowPolicy,
};
use synod_core::remote::RemoteEvent;
use synod_wire::actor::DeadLetterResponse;
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(120);
const SECOND: Duration = Duration::from_secs(1);

struct Node {
    remote: Remote,
    events: Subscription,
}

impl Node {
    async fn start(config: RemoteConfig) -> Self {
        let stream = EventStream::default();
        let events = stream.subscribe();
        let name = config.advertised.as_ref().expect("an address").host().to_owned();
        let remote = Remote::bind(config, stream, MonotonicClock::start()).await.expect("a free address");
        remote.open(&format!("{name}#1"));
        Self { remote, events }
    }

    /// The next thing that `pick` wants to hear of.
    async fn hears<T>(&mut self, what: &str, mut pick: impl FnMut(&RemoteEvent) -> Option<T>) -> T {
        let heard = async {
            loop {
                let Some(Delivery::Event(event)) = self.events.recv().await else {
                    panic!("events were lost")
                };
                if let ClusterEvent::Remote { event, .. } = &*event
                    && let Some(picked) = pick(event)
                {
                    return picked;
                }
            }
        };
        tokio::time::timeout(PATIENCE, heard).await.unwrap_or_else(|_| panic!("{what} was not told"))
    }

    /// Everything told about associations so far.
    fn told(&mut self) -> Vec<OutboundEvent> {
        let mut told = Vec::new();
        while let Some(delivery) = self.events.try_recv() {
            if let Delivery::Event(event) = delivery
                && let ClusterEvent::Remote { event: RemoteEvent::Association(event), .. } = &*event
            {
                told.push(event.clone());
            }
        }
        told
    }
}

fn at(name: &str) -> Authority {
    Authority::new(&format!("{name}:1")).expect("an address")
}

fn config(network: &MemoryNetwork, name: &str) -> RemoteConfig {
    let config = RemoteConfig::in_memory(network.clone(), at(name));
    let outbound = OutboundConfig {
        // Whoever is awaited here comes, however long it takes.
        connect_failures_max: 1000,
        backoff_max: SECOND,
        ..config.outbound
    };
    RemoteConfig { outbound, ..config }
}

/// Reports what it is told: texts as they are, and whose messages came back.
struct Probe(mpsc::UnboundedSender<String>);

impl Actor for Probe {
    async fn receive(&mut self, context: &mut ActorContext, message: Message) {
        let seen = match message.decode::<DeadLetterResponse>() {
            Ok(back) => format!("back from {}", Pid::from(back.target.as_ref().expect("a target"))),
            Err(_) => String::from_utf8_lossy(&message.payload).into_owned(),
        };
        self.0.send(seen).ok();
        context.respond(Message { sender: None, ..message }).ok();
    }
}

fn probe(node: &Node) -> (Pid, mpsc::UnboundedReceiver<String>) {
    let (sender, seen) = mpsc::unbounded_channel();
    (node.remote.spawn_named("probe", Probe(sender)).expect("a free name"), seen)
}

fn text(text: &str) -> Message {
    Message::raw(TypeName::from("test.Text"), text.as_bytes().to_vec().into())
}

async fn next(seen: &mut mpsc::UnboundedReceiver<String>) -> String {
    tokio::time::timeout(PATIENCE, seen.recv()).await.expect("in time").expect("the actor lives")
}

/// 3.2, 3.5, D7, D20: what the queue cannot hold becomes dead letters, exactly so many, and the rest is flushed in order.
#[tokio::test(start_paused = true)]
async fn a_queue_that_overflows_loses_exactly_what_it_tells() {
    const SENT: usize = 1000;
    const HELD: usize = 100;
    for overflow in [OverflowPolicy::DropOldest, OverflowPolicy::RejectNew] {
        let network = MemoryNetwork::new(1);
        let mut settings = config(&network, "a");
        settings.outbound = OutboundConfig { overflow, queue_messages_max: HELD, ..settings.outbound };
        let mut a = Node::start(settings).await;
        let target = Pid::new("b:1", "probe");
        let refused = (0..SENT)
            .filter(|number| match a.remote.send(&target, text(&number.to_string())) {
                Ok(()) => false,
                Err(error) => {
                    let reason = DeadLetterReason::QueueFull;
                    assert_eq!(error, SendError::Refused { target: target.clone(), reason });
                    true
                }
            })
            .count();
        assert_eq!(a.remote.association(&at("b")), (AssociationState::Disconnected, HELD));
        let lost = SENT - HELD;
        assert_eq!(a.remote.counters().dead_letters(), lost as u64);
        let (expected_refused, expected_reason, first_kept) = match overflow {
            OverflowPolicy::DropOldest => (0, DeadLetterReason::DroppedOldest, lost),
            OverflowPolicy::RejectNew => (lost, DeadLetterReason::QueueFull, 0),
        };
        assert_eq!(refused, expected_refused);
        let told = a
            .hears("a loss", |event| match event {
                RemoteEvent::DeadLetter { authority, actor, reason, .. } => {
                    Some((authority.clone(), actor.clone(), reason.clone()))
                }
                _ => None,
            })
            .await;
        assert_eq!(told, ("b:1".to_owned(), "probe".to_owned(), expected_reason));
        // The peer comes up, and what waited arrives in order, each once.
        let b = Node::start(config(&network, "b")).await;
        let (_, mut seen) = probe(&b);
        let mut flushed = 0;
        while flushed < HELD {
            flushed += a
                .hears("a flush", |event| match event {
                    RemoteEvent::Association(OutboundEvent::Flushed { messages, remaining, .. }) => {
                        assert_eq!(flushed + messages + remaining, HELD);
                        Some(*messages)
                    }
                    _ => None,
                })
                .await;
        }
        for number in first_kept..first_kept + HELD {
            assert_eq!(next(&mut seen).await, number.to_string());
        }
        a.remote.request(&target, text("last"), PATIENCE).await.expect("an answer");
        assert_eq!(next(&mut seen).await, "last", "nothing came in between");
        assert_eq!(a.remote.counters().dead_letters(), lost as u64, "nothing else was lost");
    }
}

/// 3.3: what cannot be written is not sent, its sender is told and so are observers. Nothing else suffers.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_is_not_sent_and_told() {
    let network = MemoryNetwork::new(1);
    let (mut a, b) = (Node::start(config(&network, "a")).await, Node::start(config(&network, "b")).await);
    let (own, mut back) = probe(&a);
    let (target, mut seen) = probe(&b);
    let unwritable = Message { type_name: TypeName::from("x".repeat(1 << 20).as_str()), ..text("never") };
    a.remote.send(&target, text("before")).expect("taken");
    a.remote.send(&target, unwritable.with_sender(own)).expect("taken");
    a.remote.send(&target, text("after")).expect("taken");
    assert_eq!(next(&mut seen).await, "before");
    assert_eq!(next(&mut seen).await, "after");
    assert_eq!(next(&mut back).await, format!("back from {target}"));
    let problem = a
        .hears("the error", |event| match event {
            RemoteEvent::DeadLetter { authority, reason: DeadLetterReason::Unsendable(problem), .. }
                if authority == "b:1" =>
            {
                Some(problem.clone())
            }
            _ => None,
        })
        .await;
    assert!(!problem.is_empty());
    assert_eq!((a.remote.counters().dead_letters(), b.remote.counters().messages_received()), (1, 2));
}

/// 3.4, 4.2 to 4.5: what waits when a quarantine begins comes back with the reason, nothing passes while it lasts, and
/// when it ends, by itself or by hand, an empty queue works.
#[tokio::test(start_paused = true)]
async fn a_quarantine_returns_what_waits_and_ends_in_time_or_by_hand() {
    let network = MemoryNetwork::new(1);
    let (mut a, b) = (Node::start(config(&network, "a")).await, Node::start(config(&network, "b")).await);
    let (own, mut back) = probe(&a);
    let (target, mut seen) = probe(&b);
    for by_hand in [false, true] {
        // Some messages wait for a peer that is away.
        network.refuse(&at("b"), true);
        network.reset(&at("a"), &at("b"));
        while a.remote.association(&at("b")).0 != AssociationState::Disconnected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        a.told();
        for number in 0..3 {
            a.remote.send(&target, text(&number.to_string()).with_sender(own.clone())).expect("it waits");
        }
        let pause = (!by_hand).then_some(30 * SECOND);
        a.remote.quarantine(&at("b"), "a test", pause);
        for _ in 0..3 {
            assert_eq!(next(&mut back).await, format!("back from {target}"));
        }
        let reason = "a test".to_owned();
        let begun = OutboundEvent::Quarantined { target: at("b"), reason: reason.clone(), dead_letters: 3 };
        assert_eq!(a.told(), [begun]);

        // Nothing goes out, and the peer, which is back, does not get in.
        network.refuse(&at("b"), false);
        let reason = DeadLetterReason::Quarantined(reason);
        let refused = SendError::Refused { target: target.clone(), reason };
        assert_eq!(a.remote.send(&target, text("refused")), Err(refused));
        let error = a.remote.request(&target, text("refused"), PATIENCE).await.expect_err("quarantined");
        assert!(error.to_string().contains("a test"), "{error}");
        let handshakes = a.remote.counters().handshakes_refused();
        b.remote.send(&own, text("let me in")).expect("it waits");
        tokio::time::sleep(29 * SECOND).await;
        assert!(a.remote.counters().handshakes_refused() > handshakes);
        assert!(back.try_recv().is_err());
        assert!(matches!(a.remote.association(&at("b")).0, AssociationState::Quarantined { .. }));

        if by_hand {
            tokio::time::sleep(300 * SECOND).await;
            a.remote.release(&at("b"));
            assert_eq!(a.remote.association(&at("b")), (AssociationState::Disconnected, 0));
        } else {
            tokio::time::sleep(SECOND + SECOND / 10).await;
        }
        a.remote.request(&target, text("again"), PATIENCE).await.expect("an answer");
        assert_eq!(next(&mut seen).await, "again", "none of the others arrived");
        let ended = a.told();
        assert_eq!(ended[..2], [OutboundEvent::Released(at("b")), OutboundEvent::Connected(at("b"))]);
        assert_eq!(next(&mut back).await, "let me in");
    }
}

/// 4.1, 4.3, D5: whoever is reached and cannot be dealt with is quarantined, for 30 s unless set otherwise, and tried again.
#[tokio::test(start_paused = true)]
async fn an_invalid_association_is_quarantined_with_its_reason() {
    let network = MemoryNetwork::new(1);
    let mut a = Node::start(config(&network, "a")).await;
    let stranger = Node::start(RemoteConfig { call_schemas: vec![7], ..config(&network, "b") }).await;
    let target = stranger.remote.pid("probe");
    let error = a.remote.request(&target, text("hello"), PATIENCE).await.expect_err("nothing in common");
    assert_eq!(error, RequestError::DeadLetter { target: target.clone() });
    let told = a
        .hears("the reason", |event| match event {
            RemoteEvent::InvalidAssociation { peer, reason } => Some((peer.clone(), reason.clone())),
            _ => None,
        })
        .await;
    assert_eq!(told.0, at("b"));
    assert!(told.1.contains("call schema"), "{}", told.1);
    let reason = format!("invalid association: {}", told.1);
    let begun = OutboundEvent::Quarantined { target: at("b"), reason: reason.clone(), dead_letters: 1 };
    assert_eq!(a.told(), [begun]);
    let (state, _) = a.remote.association(&at("b"));
    assert!(matches!(&state, AssociationState::Quarantined { reason: known, .. } if *known == reason));
    // The operator puts a node there that speaks as the others do.
    assert!(stranger.remote.shutdown(SECOND).await);
    network.kill(&at("b"));
    let b = Node::start(config(&network, "b")).await;
    let (target, mut seen) = probe(&b);
    tokio::time::sleep(29 * SECOND).await;
    assert!(a.remote.send(&target, text("too soon")).is_err());
    tokio::time::sleep(SECOND + SECOND / 10).await;
    assert_eq!(a.told(), [OutboundEvent::Released(at("b"))]);
    a.remote.send(&target, text("in time")).expect("taken");
    assert_eq!(next(&mut seen).await, "in time");
}
