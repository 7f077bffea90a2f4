//! Peers that speak the dialect that was not expected, and peers that only seem to.

use std::time::Duration;

use prost::Message as _;
use synod_cluster::remote::RemoteConfig;
use synod_wire::Dialect;
use synod_wire::actor::DeadLetterResponse;
use synod_wire::names;
use synod_wire::remote::{MessageBatch, MessageEnvelope};
use tonic::Code;

use super::node::{
    Node, PATIENCE, TEXT, batch, config, envelope, eventually, frame, text, to_probe, wire_pid,
};
use super::raw_client::RawClient;
use super::raw_server::{RawServer, Received};

fn texts(messages: &[Received]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect()
}

fn expected(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// A batch of dialect A for the probe of a node.
fn in_dialect_a(node: &Node, payload: &str) -> Vec<u8> {
    let target = wire_pid(node.address(), "probe").encode_to_vec();
    frame(MessageBatch { targets: vec![target.into()], ..batch(TEXT, &[], vec![envelope(payload)]) })
}

#[tokio::test]
async fn a_peer_that_cannot_read_one_dialect_is_written_to_in_the_other() {
    let mut node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let sink = server.pid("sink");
    for number in 0..100 {
        node.remote.send(&sink, text(&number.to_string())).expect("taken");
    }
    // What a Go node of the older dialect does with the first frame.
    let (_control_before, mut user) = server.connection().await;
    let (messages, dialect) = user.batch().await.expect("messages");
    assert_eq!((texts(&messages), dialect), (expected(0..100), Some(Dialect::B)));
    for number in 100..150 {
        node.remote.send(&sink, text(&number.to_string())).expect("taken");
    }
    user.end(Code::Internal as i32);
    // All of them come again, once, in order and readable; then what was sent since.
    let (_control, mut user) = server.connection().await;
    let mut seen = Vec::new();
    while seen.len() < 150 {
        let (messages, dialect) = user.batch().await.expect("messages");
        assert_eq!(dialect, Some(Dialect::A));
        assert!(messages.iter().all(|message| message.target == sink), "under the peer's own address");
        seen.extend(texts(&messages));
    }
    assert_eq!(seen, expected(0..150));
    assert_eq!(node.counters().dialects_corrected(), 1);
    assert_eq!(node.counters().dead_letters(), 0);
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_peer_that_can_read_nothing_is_not_told_everything_for_ever() {
    let mut node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let sink = server.pid("sink");
    node.remote.send(&sink, text("poison")).expect("taken");
    let mut controls = Vec::new();
    for expected in [Dialect::B, Dialect::A] {
        let (control, mut user) = server.connection().await;
        let (messages, dialect) = user.batch().await.expect("messages");
        assert_eq!((texts(&messages), dialect), (vec!["poison".to_owned()], Some(expected)));
        user.end(Code::Internal as i32);
        controls.push(control);
    }
    eventually("both ends are noticed", || node.counters().connections_lost() == 2).await;
    // It is not sent a third time: the next thing that comes is the next message, in either dialect.
    node.remote.send(&sink, text("next")).expect("taken");
    let (_control, mut user) = server.connection().await;
    assert_eq!(texts(&user.batch().await.expect("messages").0), ["next"]);
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn only_what_the_ended_connection_carried_is_sent_again() {
    let mut node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let sink = server.pid("sink");
    node.remote.send(&sink, text("read before")).expect("taken");
    let (_control, mut user) = server.connection().await;
    assert_eq!(user.messages(1).await.len(), 1);
    user.end(Code::Unavailable as i32);
    eventually("the end is noticed", || node.counters().connections_lost() == 1).await;
    node.remote.send(&sink, text("misread")).expect("taken");
    let (_control, mut user) = server.connection().await;
    assert_eq!(texts(&user.messages(1).await), ["misread"]);
    user.end(Code::Internal as i32);
    let (_control, mut user) = server.connection().await;
    assert_eq!(texts(&user.messages(1).await), ["misread"], "the first was read long ago");
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_peer_is_answered_in_the_dialect_it_speaks() {
    let mut node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("go#1", &server.address).await;
    stream.send(&in_dialect_a(&node, "hello"));
    assert_eq!(node.next().await, "hello");
    let sink = server.pid("sink");
    node.remote.send(&sink, text("in A")).expect("taken");
    let (_control, mut user) = server.connection().await;
    let (messages, dialect) = user.batch().await.expect("messages");
    assert_eq!((texts(&messages), dialect), (vec!["in A".to_owned()], Some(Dialect::A)));
    // It was no guess, so an error is no reason to doubt it.
    user.end(Code::Internal as i32);
    eventually("the end is noticed", || node.counters().connections_lost() == 1).await;
    node.remote.send(&sink, text("still in A")).expect("taken");
    let (_control, mut user) = server.connection().await;
    let (messages, dialect) = user.batch().await.expect("messages");
    assert_eq!((texts(&messages), dialect), (vec!["still in A".to_owned()], Some(Dialect::A)));
    // A peer that was replaced by a newer one is believed as well.
    stream.send(&to_probe("in B"));
    assert_eq!(node.next().await, "in B");
    node.remote.send(&sink, text("in B, too")).expect("taken");
    assert_eq!(user.batch().await.expect("messages").1, Some(Dialect::B));
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_misread_request_is_asked_again_and_not_failed() {
    let mut node = Node::start(RemoteConfig { default_dialect: Dialect::A, ..config() }).await;
    let mut server = RawServer::start().await;
    let (remote, grain) = (node.remote.clone(), server.pid("grain"));
    let request = tokio::spawn(async move { remote.request(&grain, text("question"), PATIENCE).await });
    let (_control, mut user) = server.connection().await;
    let (messages, dialect) = user.batch().await.expect("messages");
    assert_eq!((texts(&messages), dialect), (vec!["question".to_owned()], Some(Dialect::A)));
    let asker = messages[0].sender.clone().expect("a request has a sender");
    // Meanwhile more is sent to the same peer, in the same wrong dialect.
    for number in 0..20 {
        node.remote.send(&server.pid("sink"), text(&number.to_string())).expect("taken");
    }
    assert_eq!(user.messages(20).await.len(), 20);
    // A Go node of the newer dialect takes the PID for an id, knows nobody by that name and says so.
    let id = String::from_utf8(wire_pid(&server.address, "grain").encode_to_vec()).expect("as text");
    assert_eq!(id.as_bytes()[0], 0x0a);
    let response = DeadLetterResponse { target: Some(wire_pid(&server.address, &id)) };
    let answer = |type_name: &str, payload: Vec<u8>| {
        let envelope = MessageEnvelope {
            message_data: payload.into(),
            target_request_id: asker.request_id(),
            ..MessageEnvelope::default()
        };
        frame(batch(type_name, &[asker.id()], vec![envelope]))
    };
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("go#1", &server.address).await;
    stream.send(&answer(names::DEAD_LETTER_RESPONSE, response.encode_to_vec()));
    // Everything that was misread comes again, in order, before anything newer.
    eventually("the mistake is noticed", || node.counters().dialects_corrected() == 1).await;
    node.remote.send(&server.pid("sink"), text("20")).expect("taken");
    let mut seen = Vec::new();
    while seen.len() < 22 {
        let (messages, dialect) = user.batch().await.expect("messages");
        assert_eq!(dialect, Some(Dialect::B), "{:?}", texts(&messages));
        seen.extend(messages);
    }
    assert_eq!(seen[0].sender, Some(asker.clone()), "the request is the same one");
    assert_eq!(texts(&seen)[0], "question");
    assert_eq!(texts(&seen)[1..], expected(0..21));
    stream.send(&answer(TEXT, b"answer".to_vec()));
    let answer = request.await.expect("no panic").expect("the misread dead letter did not fail it");
    assert_eq!(&answer.payload[..], b"answer");
    assert_eq!(node.counters().dialects_corrected(), 1);
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_real_dead_letter_fails_its_request() {
    let mut node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let (remote, grain) = (node.remote.clone(), server.pid("grain"));
    let request =
        tokio::spawn(async move { remote.request(&grain, text("question"), Duration::from_secs(60)).await });
    let (_control, mut user) = server.connection().await;
    let asker = user.messages(1).await[0].sender.clone().expect("a request has a sender");
    let response = DeadLetterResponse { target: Some(wire_pid(&server.address, "grain")) };
    let envelope = MessageEnvelope {
        message_data: response.encode_to_vec().into(),
        target_request_id: asker.request_id(),
        ..MessageEnvelope::default()
    };
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("go#1", &server.address).await;
    stream.send(&frame(batch(names::DEAD_LETTER_RESPONSE, &[asker.id()], vec![envelope])));
    assert!(request.await.expect("no panic").is_err());
    node.serves_an_honest_peer().await;
}
