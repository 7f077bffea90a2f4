//! Peers that come in thousands.

use std::time::Duration;

use synod_cluster::EventStream;
use synod_cluster::remote::{Pid, RemoteConfig, SendError};
use synod_core::outbound::{DeadLetterReason, OutboundConfig};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::node::{Node, PATIENCE, config, eventually, in_time, start, text, to_probe};
use super::raw_client::{RawClient, hello};

const FLOOD: usize = 10_000;
const OPEN_AT_A_TIME: usize = 400;

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test]
async fn ten_thousand_connections_do_not_wash_away_an_honest_one() {
    let handshake_timeout = Duration::from_millis(100);
    let config = RemoteConfig { inbound_connections_max: 32, handshake_timeout, ..config() };
    let mut node = Node::start(config.clone()).await;
    let honest = start(config, "honest#1", EventStream::default()).await;
    let probe = node.remote.pid("probe");
    honest.request(&probe, text("before"), PATIENCE).await.expect("an answer");
    let (before, own_before) = (tasks(), node.remote.task_count());

    let mut open = JoinSet::new();
    for number in 0..FLOOD {
        if open.len() == OPEN_AT_A_TIME {
            open.join_next().await;
        }
        let address = node.address().to_owned();
        open.spawn(async move {
            // Some wait to be hung up on, the others hang up themselves. None waits long: a system whose queue of
            // connections overflows drops some without telling either side.
            let Ok(stream) = TcpStream::connect(address).await else { return };
            if number % 10 == 0 {
                drop(tokio::time::timeout(2 * handshake_timeout, stream.readable()).await);
            }
        });
        if number % 1000 == 0 {
            honest.request(&probe, text("during"), PATIENCE).await.expect("an answer");
        }
    }
    while open.join_next().await.is_some() {}
    honest.request(&probe, text("after"), PATIENCE).await.expect("an answer");
    assert!(node.counters().connections_refused() > 0);
    node.refused("inbound_connections_max").await;
    // Every place is free again, every task has ended.
    eventually("the tasks have ended", || tasks() <= before).await;
    eventually("the places are free", || node.remote.task_count() <= own_before).await;
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn ten_thousand_claims_to_be_somebody_are_not_remembered() {
    let outbound = OutboundConfig { associations_max: 20, ..config().outbound };
    let mut node = Node::start(RemoteConfig { outbound, ..config() }).await;
    let honest = start(config(), "honest#1", EventStream::default()).await;
    let probe = node.remote.pid("probe");
    honest.request(&probe, text("before"), PATIENCE).await.expect("an answer");
    let before = tasks();
    // Many streams of one connection after each other, and several connections.
    let mut claims = JoinSet::new();
    for peer in 0..10 {
        let address = node.address().to_owned();
        claims.spawn(async move {
            let client = RawClient::connect(&address).await;
            for claim in 0..FLOOD / 10 {
                let mut stream = client.open().await;
                stream.send(&hello("liar#1", &format!("10.{peer}.{}.{}:80", claim / 250, claim % 250)));
                stream.greeting().await;
                stream.send(&to_probe("claim"));
                stream.half_close();
                stream.answer().await;
            }
        });
    }
    while let Some(claimed) = in_time(claims.join_next()).await {
        claimed.expect("every claim was answered");
    }
    for _ in 0..FLOOD {
        while node.next().await != "claim" {}
    }
    assert!(node.remote.peer_count() <= 20, "{}", node.remote.peer_count());
    assert_eq!(node.counters().handshakes_refused(), 0);
    eventually("the tasks have ended", || tasks() <= before).await;
    // Who is connected keeps its place among them.
    honest.request(&probe, text("after"), PATIENCE).await.expect("an answer");
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn messages_to_more_addresses_than_may_be_known_are_refused() {
    let outbound = OutboundConfig { associations_max: 3, ..config().outbound };
    let connect_timeout = Duration::from_secs(60);
    let node = Node::start(RemoteConfig { outbound, connect_timeout, ..config() }).await;
    // Peers that take connections and say nothing, so that each keeps its place.
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    }
    let sent = silent.iter().map(|listener| {
        let address = listener.local_addr().expect("an address").to_string();
        node.remote.send(&Pid::new(address, "sink"), text("x"))
    });
    let sent: Vec<_> = sent.collect();
    assert!(sent[..3].iter().all(Result::is_ok));
    let reason = DeadLetterReason::TooManyAssociations;
    assert!(matches!(&sent[3], Err(SendError::Refused { reason: told, .. }) if *told == reason));
    assert_eq!(node.remote.peer_count(), 3);
}
