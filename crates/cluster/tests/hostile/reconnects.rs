//! Connections that end in the middle of something, however the peer ends them.

use std::time::Duration;

use prost::Message as _;
use synod_cluster::remote::{Actor, ActorContext, Message, Pid, RemoteConfig};
use synod_core::outbound::{DeadLetterReason, OutboundConfig, OutboundEvent};
use synod_core::remote::RemoteEvent;
use synod_wire::remote::RemoteMessage;
use tonic::Code;

use super::node::{Node, config, eventually, text, to_probe};
use super::raw_server::{RawServer, Received};

fn body(number: usize) -> String {
    format!("{number} {:1$}", "", 16 << 10)
}

fn numbers(messages: &[Received]) -> Vec<usize> {
    let number = |message: &Received| {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        text.trim_end().parse().expect("a number")
    };
    messages.iter().map(number).collect()
}

#[tokio::test]
async fn what_waits_when_a_connection_ends_goes_over_the_next_one() {
    let outbound = OutboundConfig { queue_bytes_max: 64 << 20, ..config().outbound };
    let mut node = Node::start(RemoteConfig { outbound, ..config() }).await;
    let mut server = RawServer::start().await;
    let sink = server.pid("sink");
    let (mut seen, mut sent) = (Vec::new(), 0);
    // Several connections, each ended after its first frame, in every way there is. More waits than a frame holds.
    for end in 0..5 {
        for _ in 0..600 {
            node.remote.send(&sink, text(&body(sent))).expect("taken");
            sent += 1;
        }
        let (mut control, mut user) = server.connection().await;
        seen.extend(numbers(&user.batch().await.expect("messages").0));
        let rest = match end {
            0 => (Some(control), user.end(Code::Unavailable as i32)),
            1 => (Some(control), user.end(Code::Ok as i32)),
            2 => (None, control.end(Code::Unknown as i32)),
            3 => (Some(control), user.send(&RemoteMessage::disconnect().encode_to_vec())),
            _ => (None, control.send(&to_probe("nonsense"))),
        };
        eventually("the end is noticed", || node.counters().connections_lost() == end + 1).await;
        drop(rest);
    }
    node.remote.send(&sink, text(&body(sent))).expect("taken");
    let (_control, mut user) = server.connection().await;
    while seen.last() != Some(&sent) {
        seen.extend(numbers(&user.batch().await.expect("messages").0));
    }
    // What was in a frame when its connection ended may be lost. Nothing is doubled or overtaken, and nothing that was in
    // no frame is lost.
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    assert_eq!(node.counters().dead_letters(), 0);
    assert_eq!(node.counters().messages_sent(), sent as u64 + 1, "every message was put on the wire once");
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn what_a_connection_gives_back_goes_before_what_still_waited_for_it() {
    // One message at a time leaves the backlog. Each is larger than what a peer that does not read lets through, so after
    // a few of them the lane holds some, the backlog holds newer ones, and both wait when the connection ends.
    let outbound = OutboundConfig { flush_batch: 1, queue_bytes_max: 64 << 20, ..config().outbound };
    let mut node = Node::start(RemoteConfig { outbound, ..config() }).await;
    let mut server = RawServer::start().await;
    let sink = server.pid("sink");
    const MESSAGES: usize = 100;
    for number in 0..MESSAGES {
        let large = format!("{number}{}", " ".repeat(128 << 10));
        node.remote.send(&sink, text(&large)).expect("it waits");
    }
    let (_control, user) = server.connection().await;
    node.event("a part of the backlog", |event| {
        matches!(event, RemoteEvent::Association(OutboundEvent::Flushed { remaining, .. })
            if (1..MESSAGES - 10).contains(remaining))
    })
    .await;
    user.end(Code::Unavailable as i32);
    let (_control, mut user) = server.connection().await;
    let mut seen = Vec::new();
    while seen.len() < MESSAGES && seen.last() != Some(&(MESSAGES - 1)) {
        seen.extend(numbers(&user.batch().await.expect("messages").0));
    }
    assert!(seen.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{seen:?}");
    assert!(seen[0] < 5, "only what was in a frame is lost: {}", seen[0]);
    assert_eq!(node.counters().dead_letters(), 0);
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_peer_that_takes_every_connection_and_ends_it_is_not_stormed() {
    let backoff = Duration::from_millis(100);
    let outbound = OutboundConfig { backoff_min: backoff, backoff_max: backoff, ..config().outbound };
    let mut node = Node::start(RemoteConfig { outbound, ..config() }).await;
    let mut server = RawServer::start().await;
    let sink = server.pid("sink");
    // Somebody here watches somebody there, so the node wants the connection whether it has messages or not.
    let watcher = node.remote.spawn_named("watcher", Watcher).expect("a free name");
    node.remote.send(&watcher, text(&sink.to_string())).expect("taken");
    let started = tokio::time::Instant::now();
    let mut connections = 0;
    while started.elapsed() < 4 * backoff {
        let (_control, user) = server.connection().await;
        connections += 1;
        user.end(Code::Unavailable as i32);
    }
    assert!((3..=7).contains(&connections), "{connections} connections in {:?}", started.elapsed());
    node.serves_an_honest_peer().await;
}

struct Watcher;

impl Actor for Watcher {
    async fn receive(&mut self, context: &mut ActorContext, message: Message) {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        let (address, id) = text.split_once('/').expect("a pid");
        context.watch(&Pid::new(address, id));
    }
}

#[tokio::test]
async fn a_peer_that_is_gone_for_good_is_given_up() {
    let mut node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let sink = server.pid("sink");
    node.remote.send(&sink, text("first")).expect("taken");
    let (_control, mut user) = server.connection().await;
    assert_eq!(&user.messages(1).await[0].payload[..], b"first");
    server.stop_listening();
    user.end(Code::Unavailable as i32);
    eventually("the loss is noticed", || node.counters().connections_lost() == 1).await;
    for number in 0..10 {
        node.remote.send(&sink, text(&number.to_string())).expect("it waits");
    }
    eventually("they are dead letters", || node.counters().dead_letters() == 10).await;
    node.event("an unreachable peer", |event| {
        matches!(event, RemoteEvent::DeadLetter { reason: DeadLetterReason::Unreachable, .. })
    })
    .await;
    node.serves_an_honest_peer().await;
}
