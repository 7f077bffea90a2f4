//! Peers that do not say who they are, or say it badly, late, twice, or though they are blocked.

use std::collections::BTreeSet;
use std::time::Duration;

use prost::Message as _;
use synod_cluster::remote::RemoteConfig;
use synod_wire::remote::connect_request::ConnectionType;
use synod_wire::remote::remote_message::MessageType;
use synod_wire::remote::{ClientConnection, ConnectRequest, RemoteMessage, ServerConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use super::node::{NOWHERE, Node, config, eventually, in_time, to_probe};
use super::raw_client::{Answer, RawClient, hello};

fn connect(connection: ConnectionType) -> Vec<u8> {
    let request = ConnectRequest { connection_type: Some(connection) };
    RemoteMessage::from(MessageType::ConnectRequest(request)).encode_to_vec()
}

#[tokio::test]
async fn a_stream_without_a_proper_handshake_is_ended() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let at = |address: &str| {
        let (member_id, address) = ("raw#1".to_owned(), address.to_owned());
        connect(ConnectionType::ServerConnection(ServerConnection {
            member_id,
            address,
            ..ServerConnection::default()
        }))
    };
    let anonymous = ServerConnection { address: NOWHERE.to_owned(), ..ServerConnection::default() };
    let cases = [
        ("messages first", to_probe("too early"), Code::FailedPrecondition),
        ("a goodbye first", RemoteMessage::disconnect().encode_to_vec(), Code::FailedPrecondition),
        ("nothing readable", vec![0xff; 9], Code::InvalidArgument),
        ("nothing at all", Vec::new(), Code::InvalidArgument),
        (
            "a client without an address",
            connect(ConnectionType::ClientConnection(ClientConnection { member_id: "raw#1".to_owned() })),
            Code::Unimplemented,
        ),
        ("no name", connect(ConnectionType::ServerConnection(anonymous)), Code::InvalidArgument),
        ("no port", at("localhost"), Code::InvalidArgument),
        ("no host", at(":80"), Code::InvalidArgument),
        ("a port that is none", at("localhost:99999"), Code::InvalidArgument),
        ("a path", at("http://localhost:80/x"), Code::InvalidArgument),
        ("an unusual spelling", at("LOCALHOST:080"), Code::InvalidArgument),
        ("no address", at(""), Code::InvalidArgument),
    ];
    for (number, (what, bytes, code)) in (1..).zip(cases) {
        let mut stream = client.open().await;
        stream.send(&bytes);
        assert_eq!(stream.answer().await, Answer::Status(code as i32), "{what}");
        assert_eq!(node.counters().handshakes_refused(), number, "{what}");
        node.refused("").await;
    }
    // Who says nothing and hangs up has not said who it is either.
    let mut stream = client.open().await;
    stream.half_close();
    assert_eq!(stream.answer().await, Answer::Status(Code::Cancelled as i32));
    node.refused("ended before a handshake").await;
    node.serves_an_honest_peer().await;
    assert!(node.seen.try_recv().is_err(), "nothing was delivered");
}

#[tokio::test]
async fn who_says_nothing_is_hung_up_on() {
    let handshake_timeout = Duration::from_millis(150);
    let mut node = Node::start(RemoteConfig { handshake_timeout, ..config() }).await;
    // A stream without a handshake, on a connection that has proved itself with another stream.
    let client = RawClient::connect(node.address()).await;
    let mut good = client.greeted("raw#1", NOWHERE).await;
    let mut silent = client.open().await;
    assert_eq!(silent.answer().await, Answer::Status(Code::DeadlineExceeded as i32));
    assert_eq!(node.counters().handshakes_refused(), 1);
    node.refused("no handshake came in time").await;
    // Half a handshake is none.
    let mut halting = client.open().await;
    let hello = hello("raw#1", NOWHERE);
    halting.announce(hello.len() as u32);
    halting.send_bytes(hello[..4].to_vec());
    assert_eq!(halting.answer().await, Answer::Status(Code::DeadlineExceeded as i32));
    // Connections that never get that far: nothing, half of the preface, the preface alone, and something else.
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let openings: [&[u8]; 3] = [b"", &preface[..12], preface];
    for opening in openings {
        let mut silent = TcpStream::connect(node.address()).await.expect("the node listens");
        silent.write_all(opening).await.expect("a connection");
        let mut answer = Vec::new();
        // It ends in time, whether by a farewell or a reset.
        in_time(silent.read_to_end(&mut answer)).await.ok();
    }
    assert_eq!(node.counters().connections_expired(), 3);
    node.refused("that did not say who it is in time").await;
    let mut other = TcpStream::connect(node.address()).await.expect("the node listens");
    other.write_all(b"GET / HTTP/1.1\r\nhost: node\r\n\r\n").await.expect("a connection");
    in_time(other.read_to_end(&mut Vec::new())).await.ok();
    // The stream that did say who it is has outlived them all.
    good.send(&to_probe("patience"));
    assert_eq!(node.next().await, "patience");
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_second_handshake_is_ignored() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    stream.send(&hello("raw#2", "127.0.0.1:10"));
    stream.send(&to_probe("after it"));
    assert_eq!(node.next().await, "after it");
    assert_eq!(node.counters().frames_refused(), 1);
    node.refused("a second handshake").await;
    // It was not answered either: the next thing that comes back is the end.
    stream.half_close();
    assert_eq!(stream.answer().await, Answer::Status(Code::Unavailable as i32));
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn an_endless_talk_of_handshakes_is_ended() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    for _ in 0..16 {
        stream.send(&hello("raw#1", NOWHERE));
    }
    assert_eq!(stream.answer().await, Answer::Status(Code::InvalidArgument as i32));
    assert_eq!(node.counters().frames_refused(), 16);
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn blocked_members_are_told_so_and_not_listened_to() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    // One is blocked before it comes, one while it is here.
    node.remote.set_blocked(BTreeSet::from(["evil#1".to_owned()]));
    let mut evil = client.open().await;
    evil.send(&hello("evil#1", NOWHERE));
    let greeting = evil.greeting().await;
    assert_eq!((greeting.member_id.as_str(), greeting.blocked), ("node#1", true));
    let mut other = client.open().await;
    other.send(&hello("other#1", NOWHERE));
    assert!(!other.greeting().await.blocked);
    evil.send(&to_probe("from evil"));
    eventually("it is ignored", || node.counters().messages_from_blocked() == 1).await;
    other.send(&to_probe("from the other"));
    assert_eq!(node.next().await, "from the other");
    node.remote.set_blocked(BTreeSet::from(["evil#1".to_owned(), "other#1".to_owned()]));
    other.send(&to_probe("too late"));
    eventually("it is ignored", || node.counters().messages_from_blocked() == 2).await;
    // A pardon is heard on streams that stand.
    node.remote.set_blocked(BTreeSet::new());
    evil.send(&to_probe("pardoned"));
    assert_eq!(node.next().await, "pardoned");
    assert_eq!(node.counters().messages_received(), 2);
    node.refused("of a blocked member").await;
    node.serves_an_honest_peer().await;
}
