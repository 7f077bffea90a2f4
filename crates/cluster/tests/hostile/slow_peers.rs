//! Peers that accept everything and read nothing.

use std::time::Duration;

use synod_cluster::EventStream;
use synod_cluster::remote::{Lane, Pid, RemoteConfig, RequestError, SendError};
use synod_core::Authority;
use synod_core::outbound::{DeadLetterReason, OutboundConfig, OutboundEvent, OverflowPolicy};
use synod_core::remote::RemoteEvent;

use super::node::{Node, PATIENCE, config, eventually, start, text};
use super::raw_server::{RawCall, RawServer};

const LANE_MAX: usize = 50;
/// More than a connection keeps in its own buffers.
const BODY_BYTES: usize = 32 << 10;

fn small_lanes(overflow: OverflowPolicy) -> RemoteConfig {
    let outbound = OutboundConfig { overflow, ..config().outbound };
    RemoteConfig { lane_messages_max: LANE_MAX, outbound, ..config() }
}

fn body(number: usize) -> String {
    format!("{number} {:1$}", "", BODY_BYTES)
}

/// A node that is connected to a peer which reads nothing after the handshakes.
async fn with_slow_peer(config: RemoteConfig) -> (Node, RawServer, Authority, RawCall, RawCall) {
    let node = Node::start(config).await;
    let mut server = RawServer::start().await;
    node.remote.send(&server.pid("sink"), text("open")).expect("taken");
    let (control, user) = server.connection().await;
    let authority = Authority::new(&server.address).expect("an address");
    eventually("the queue is empty", || node.remote.association(&authority).1 == 0).await;
    (node, server, authority, control, user)
}

#[tokio::test]
async fn a_peer_that_never_reads_fills_its_own_queue_and_no_other() {
    let (mut node, server, slow, mut control, _user) =
        with_slow_peer(small_lanes(OverflowPolicy::RejectNew)).await;
    let sink = server.pid("sink");
    // Sending returns at once, always; it succeeds until the bounds are reached, and then it says so.
    let mut taken = 0;
    let refused = loop {
        assert!(taken < 10_000, "the queue has no bound");
        match node.remote.send(&sink, text(&body(taken))) {
            Ok(()) => taken += 1,
            Err(error) => {
                // What fits into the connection's buffers is still on its way there, and a busy lane takes its time to fill
                // its frames.
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                if node.remote.association(&slow).1 == LANE_MAX {
                    break error;
                }
            }
        }
    };
    let reason = DeadLetterReason::QueueFull;
    assert_eq!(refused, SendError::Refused { target: sink.clone(), reason });
    assert!(node.counters().dead_letters() > 0);
    node.event("a full queue", |event| {
        matches!(event, RemoteEvent::DeadLetter { reason: DeadLetterReason::QueueFull, .. })
    })
    .await;
    // The control lane to the same peer is open, and reads at full speed.
    node.remote.send_on(Lane::Control, &server.pid("gossip"), text("control")).expect("it has room");
    assert_eq!(&control.messages(1).await[0].payload[..], b"control");
    // Another peer is served at full speed.
    let other = start(config(), "other#1", EventStream::default()).await;
    for _ in 0..200 {
        other.request(&node.remote.pid("probe"), text("ping"), PATIENCE).await.expect("an answer");
    }
    assert_eq!(node.remote.association(&slow).1, LANE_MAX, "the queue has not grown");
    node.serves_an_honest_peer().await;
    // The end does not wait for the peer.
    let started = tokio::time::Instant::now();
    let all_sent = node.remote.shutdown(Duration::from_millis(100)).await;
    assert!(!all_sent, "it says that something was not sent");
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

#[tokio::test]
async fn where_the_oldest_make_room_they_become_dead_letters() {
    let (mut node, server, slow, _control, mut user) =
        with_slow_peer(small_lanes(OverflowPolicy::DropOldest)).await;
    let sink = server.pid("sink");
    let mut sent = 0;
    while node.counters().dead_letters() < 20 {
        assert!(sent < 10_000, "the queue has no bound");
        node.remote.send(&sink, text(&body(sent))).expect("there is always room");
        sent += 1;
        tokio::task::yield_now().await;
    }
    assert_eq!(node.remote.association(&slow).1, LANE_MAX);
    node.event("a dropped message", |event| {
        matches!(event, RemoteEvent::DeadLetter { reason: DeadLetterReason::DroppedOldest, .. })
    })
    .await;
    // The peer wakes up: what it reads has one gap, of the oldest that waited, and ends with the newest.
    let mut numbers = Vec::new();
    assert_eq!(&user.messages(1).await[0].payload[..], b"open");
    while numbers.last() != Some(&(sent - 1)) {
        for message in user.messages(1).await {
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            numbers.push(text.trim_end().parse::<usize>().expect("a number"));
        }
    }
    assert!(numbers.is_sorted(), "in order");
    let gaps = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    assert_eq!((gaps, sent - numbers.len()), (1, 20));
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_peer_that_accepts_and_then_says_nothing_is_given_up() {
    let connect_timeout = Duration::from_millis(50);
    let outbound = OutboundConfig { connect_failures_max: 2, ..config().outbound };
    let mut node = Node::start(RemoteConfig { connect_timeout, outbound, ..config() }).await;
    // It takes connections and never says a word; HTTP/2 itself does not begin.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let silent = Pid::new(address.as_str(), "sink");
    let error = node.remote.request(&silent, text("hello"), PATIENCE).await.expect_err("nobody answers");
    assert!(matches!(error, RequestError::DeadLetter { .. }), "{error}");
    assert_eq!(node.counters().connects_failed(), 2);
    // It does HTTP/2 but never answers the handshake.
    let mut server = RawServer::start().await;
    let (remote, sink) = (node.remote.clone(), server.pid("sink"));
    let request = tokio::spawn(async move { remote.request(&sink, text("hello"), PATIENCE).await });
    let mut call = server.incoming().await.accept();
    assert!(call.frame().await.is_some(), "the handshake came");
    assert_eq!(call.frame().await, None, "and then the node gave up");
    let error = request.await.expect("no panic").expect_err("no answer");
    assert!(matches!(error, RequestError::DeadLetter { .. }), "{error}");
    node.event("an unreachable address", |event| {
        matches!(event, RemoteEvent::Association(OutboundEvent::Unreachable { .. }))
    })
    .await;
    node.serves_an_honest_peer().await;
}
