//! Good frames with bad messages: wrong numbers, missing names, nobody at home, and answers that must not be given.

use std::time::Duration;

use prost::Message as _;
use synod_cluster::remote::RemoteConfig;
use synod_core::outbound::DeadLetterReason;
use synod_core::remote::RemoteEvent;
use synod_wire::actor::{DeadLetterResponse, Terminated, TerminatedReason, Unwatch, Watch};
use synod_wire::names;
use synod_wire::remote::{MessageBatch, MessageEnvelope};

use super::node::{
    NOWHERE, Node, Stuck, TEXT, batch, config, envelope, eventually, frame, to_probe, wire_pid,
};
use super::raw_client::RawClient;
use super::raw_server::RawServer;

#[tokio::test]
async fn an_envelope_with_a_wrong_number_costs_only_itself() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    let bad = [
        MessageEnvelope { type_id: 1, ..envelope("bad") },
        MessageEnvelope { type_id: -1, ..envelope("bad") },
        MessageEnvelope { type_id: i32::MIN, ..envelope("bad") },
        MessageEnvelope { target: 1, ..envelope("bad") },
        MessageEnvelope { target: -1, ..envelope("bad") },
        MessageEnvelope { target: i32::MAX, ..envelope("bad") },
        MessageEnvelope { sender: 2, ..envelope("bad") },
        MessageEnvelope { sender: -1, ..envelope("bad") },
        MessageEnvelope { sender: i32::MIN, ..envelope("bad") },
        MessageEnvelope { serializer_id: 2, ..envelope("bad") },
        MessageEnvelope { serializer_id: -1, ..envelope("bad") },
    ];
    let mut envelopes = Vec::new();
    for (number, bad) in bad.iter().enumerate() {
        envelopes.push(envelope(&number.to_string()));
        envelopes.push(bad.clone());
    }
    envelopes.push(MessageEnvelope { sender: 1, ..envelope("last") });
    let senders = vec![wire_pid(NOWHERE, "asker")];
    stream.send(&frame(MessageBatch { senders, ..batch(TEXT, &["probe"], envelopes) }));
    for number in 0..bad.len() {
        assert_eq!(node.next().await, number.to_string());
    }
    assert_eq!(node.next().await, "last");
    assert_eq!(node.counters().envelopes_refused(), bad.len() as u64);
    assert_eq!(node.counters().frames_refused(), 0);
    node.refused("type name").await;
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn messages_about_actors_that_say_nothing_are_refused() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    for (number, type_name) in (1..).zip([names::WATCH, names::UNWATCH, names::TERMINATED]) {
        for payload in ["", "\u{a}\u{ff}"] {
            // Once to an actor, once to nobody.
            let to_nobody = MessageEnvelope { target: 1, ..envelope(payload) };
            stream.send(&frame(batch(type_name, &["probe", "nobody"], vec![envelope(payload), to_nobody])));
        }
        stream.send(&to_probe(type_name));
        assert_eq!(node.next().await, type_name);
        assert_eq!(node.counters().messages_refused(), 4 * number);
        node.refused(&format!("a {type_name} that says nothing")).await;
    }
    node.serves_an_honest_peer().await;
}

/// Sends one message to `target` on `node` from `sender`, as the node at `server`.
fn from(sender: &synod_wire::actor::Pid, type_name: &str, target: &str, payload: Vec<u8>) -> Vec<u8> {
    let envelope = MessageEnvelope { sender: 1, message_data: payload.into(), ..MessageEnvelope::default() };
    frame(MessageBatch { senders: vec![sender.clone()], ..batch(type_name, &[target], vec![envelope]) })
}

#[tokio::test]
async fn whoever_waits_for_nobody_is_told_and_nobody_else_is() {
    let mut node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("raw#1", &server.address).await;
    let (asker, own) = (wire_pid(&server.address, "asker"), wire_pid(node.address(), "nobody"));
    // None of these may be answered: an answer to nobody's answer, and a message from nobody to itself.
    let response = DeadLetterResponse { target: Some(asker.clone()) }.encode_to_vec();
    stream.send(&from(&asker, names::DEAD_LETTER_RESPONSE, "nobody", response));
    stream.send(&from(&own, TEXT, "nobody", Vec::new()));
    let terminated = Terminated { who: Some(asker.clone()), why: 0 }.encode_to_vec();
    stream.send(&from(&asker, names::TERMINATED, "nobody", terminated));
    let unwatch = Unwatch { watcher: Some(asker.clone()) }.encode_to_vec();
    stream.send(&from(&asker, names::UNWATCH, "nobody", unwatch));
    // These must be.
    let watch = Watch { watcher: Some(wire_pid(&server.address, "watcher")) }.encode_to_vec();
    stream.send(&from(&asker, names::WATCH, "nobody", watch));
    stream.send(&from(&asker, TEXT, "nobody", b"hello".to_vec()));
    let (_control, mut user) = server.connection().await;
    let answers = user.messages(2).await;
    let nobody = wire_pid(node.address(), "nobody");
    assert_eq!((answers[0].target.id(), answers[0].type_name.as_str()), ("watcher", names::TERMINATED));
    let not_found = Terminated { who: Some(nobody.clone()), why: TerminatedReason::NotFound.into() };
    assert_eq!(answers[0].payload, not_found.encode_to_vec());
    assert_eq!(
        (answers[1].target.id(), answers[1].type_name.as_str()),
        ("asker", names::DEAD_LETTER_RESPONSE)
    );
    assert_eq!(answers[1].payload, DeadLetterResponse { target: Some(nobody) }.encode_to_vec());
    assert!(answers.iter().all(|answer| answer.sender.is_none()));
    assert_eq!(answers.len(), 2);
    // The two that were not answered, and the one that was.
    assert_eq!(node.counters().dead_letters(), 3);
    node.event("a dead letter", |event| {
        matches!(event, RemoteEvent::DeadLetter { actor, reason: DeadLetterReason::NoSuchActor, .. } if actor == "nobody")
    })
    .await;
    // Nothing follows: the next thing that comes is what is asked for next.
    stream.send(&from(&asker, TEXT, "probe", b"echo".to_vec()));
    assert_eq!(&user.messages(1).await[0].payload[..], b"echo");
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_full_mailbox_holds_up_its_own_stream_only_and_not_for_long() {
    let patience = Duration::from_millis(150);
    let config = RemoteConfig { mailbox_messages_max: 4, mailbox_patience: patience, ..config() };
    let mut node = Node::start(config).await;
    node.remote.spawn_named("stuck", Stuck).expect("a free name");
    let client = RawClient::connect(node.address()).await;
    let mut user = client.greeted("raw#1", NOWHERE).await;
    let mut control = client.greeted("raw#1", NOWHERE).await;
    let other = RawClient::connect(node.address()).await;
    let mut other = other.greeted("raw#2", NOWHERE).await;
    // The actor takes one and never another; four wait; the rest has nowhere to go.
    user.send(&frame(batch(TEXT, &["stuck"], vec![envelope("first")])));
    eventually("the first message is taken", || node.counters().messages_received() == 1).await;
    let started = tokio::time::Instant::now();
    user.send(&frame(batch(TEXT, &["stuck"], vec![envelope("more"); 100])));
    user.send(&to_probe("behind it"));
    eventually("the batch has arrived", || node.counters().messages_received() == 101).await;
    control.send(&to_probe("control"));
    other.send(&to_probe("other"));
    let mut first = [node.next().await, node.next().await];
    first.sort();
    assert_eq!(first, ["control", "other"]);
    assert_eq!(node.counters().mailbox_overflows(), 0, "they came while the reader was waiting");
    assert_eq!(node.next().await, "behind it");
    let waited = started.elapsed();
    assert!(waited >= patience, "it was patient: {waited:?}");
    let lost = node.counters().mailbox_overflows();
    assert!((96..=97).contains(&lost), "{lost}");
    assert_eq!(node.counters().dead_letters(), lost);
    node.event("a full mailbox", |event| {
        matches!(event, RemoteEvent::DeadLetter { reason: DeadLetterReason::QueueFull, .. })
    })
    .await;
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_stuck_actor_costs_a_frame_its_patience_once() {
    let patience = Duration::from_millis(100);
    let config = RemoteConfig { mailbox_messages_max: 1, mailbox_patience: patience, ..config() };
    let mut node = Node::start(config).await;
    node.remote.spawn_named("stuck", Stuck).expect("a free name");
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    // Alternating, as two busy actors on the same peer would write them.
    let mut envelopes = Vec::new();
    for number in 0..40 {
        envelopes.push(MessageEnvelope { target: 1, ..envelope("stuck") });
        envelopes.push(envelope(&number.to_string()));
    }
    let started = tokio::time::Instant::now();
    stream.send(&frame(batch(TEXT, &["probe", "stuck"], envelopes)));
    for number in 0..40 {
        assert_eq!(node.next().await, number.to_string());
    }
    assert!(started.elapsed() < 10 * patience, "{:?}", started.elapsed());
    assert!((38..=39).contains(&node.counters().mailbox_overflows()));
    node.serves_an_honest_peer().await;
}
