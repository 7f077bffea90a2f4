//! Connections that end in the middle of something, however the peer ends them.

use std::time::Duration;

use prost::Message as _;
use synod_cluster::remote::RemoteConfig;
use synod_core::outbound::{DeadLetterReason, OutboundConfig};
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
    let mut node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let sink = server.pid("sink");
    const MESSAGES: usize = 600;
    for number in 0..MESSAGES {
        node.remote.send(&sink, text(&body(number))).expect("taken");
    }
    // Several connections, each ended after some messages, in every way there is.
    let mut seen = Vec::new();
    for end in 0..6 {
        let (mut control, mut user) = server.connection().await;
        if end < 5 {
            seen.extend(numbers(&user.batch().await.expect("messages").0));
        }
        match end {
            0 => user.end(Code::Unavailable as i32),
            1 => user.end(Code::Ok as i32),
            2 => control.end(Code::Unknown as i32),
            3 => user.send(&RemoteMessage::disconnect().encode_to_vec()),
            4 => control.send(&to_probe("nonsense")),
            _ => {
                while seen.last() != Some(&(MESSAGES - 1)) {
                    seen.extend(numbers(&user.batch().await.expect("messages").0));
                }
            }
        }
    }
    // What was in a frame when its connection ended may be lost. Nothing is doubled or overtaken.
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    assert_eq!(node.counters().connections_lost(), 5);
    assert_eq!(node.counters().dead_letters(), 0);
    assert_eq!(node.counters().messages_sent(), MESSAGES as u64, "every message was put on the wire once");
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn what_a_connection_gives_back_goes_before_what_still_waited_for_it() {
    // One message at a time leaves the backlog, so a connection that ends at once has older ones than the backlog.
    let outbound = OutboundConfig { flush_batch: 1, ..config().outbound };
    let mut node = Node::start(RemoteConfig { outbound, ..config() }).await;
    let mut server = RawServer::start().await;
    let sink = server.pid("sink");
    const MESSAGES: usize = 1000;
    for number in 0..MESSAGES {
        node.remote.send(&sink, text(&body(number))).expect("it waits");
    }
    let mut seen = Vec::new();
    for _ in 0..10 {
        let (_control, user) = server.connection().await;
        user.end(Code::Unavailable as i32);
    }
    let (_control, mut user) = server.connection().await;
    while seen.last() != Some(&(MESSAGES - 1)) {
        seen.extend(numbers(&user.batch().await.expect("messages").0));
    }
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
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

impl synod_cluster::remote::Actor for Watcher {
    async fn receive(
        &mut self,
        context: &mut synod_cluster::remote::ActorContext,
        message: synod_cluster::remote::Message,
    ) {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        let (address, id) = text.split_once('/').expect("a pid");
        context.watch(&synod_cluster::remote::Pid::new(address, id));
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
