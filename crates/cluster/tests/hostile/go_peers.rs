//! What a Go node must never be sent, because it would crash or hang up.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use synod_cluster::remote::{Message, Pid, TypeName};
use synod_core::outbound::DeadLetterReason;
use synod_core::remote::RemoteEvent;
use synod_wire::limits::{BATCH_MESSAGES_SENT_MAX, FRAME_BYTES_SENT_MAX};
use synod_wire::remote::{RemoteMessage, ServerConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::node::{Node, config, eventually, text, to_probe};
use super::raw_client::RawClient;
use super::raw_server::RawServer;

fn own_type() -> Message {
    Message::raw(TypeName::from("synod.membership.Ping"), Bytes::new())
}

#[tokio::test]
async fn what_a_go_node_dies_of_is_not_sent() {
    let mut node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let sink = server.pid("sink");
    node.remote.send(&sink, own_type()).expect("taken");
    node.remote.send(&sink, text("good")).expect("taken");
    node.remote.send(&server.pid("guardian$1"), text("deadly")).expect("taken");
    node.remote.send(&sink, text("good, too")).expect("taken");
    let (_control, mut user) = server.connection().await;
    let messages = user.messages(2).await;
    assert_eq!(messages.len(), 2);
    assert!(messages.iter().all(|message| message.target == sink && message.payload.starts_with(b"good")));
    assert_eq!(node.counters().dead_letters(), 2);
    node.event("a type of our own", |event| {
        matches!(event, RemoteEvent::DeadLetter { reason: DeadLetterReason::UnknownToPeer, .. })
    })
    .await;
    // Somebody else claims to be a synod node at the address of this Go node. That changes nothing.
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.open().await;
    let claim = ServerConnection {
        member_id: "liar#1".into(),
        address: server.address.clone(),
        runtime: "synod/9.9.9".into(),
        call_schemas: Vec::new(),
        ..ServerConnection::default()
    };
    stream.send(&RemoteMessage::connect(claim).expect("names").encode_to_vec());
    stream.greeting().await;
    stream.send(&to_probe("I am synod"));
    assert_eq!(node.next().await, "I am synod");
    node.remote.send(&sink, own_type()).expect("taken");
    eventually("it is a dead letter", || node.counters().dead_letters() == 3).await;
    node.remote.send(&sink, text("good again")).expect("taken");
    assert_eq!(&user.messages(1).await[0].payload[..], b"good again");
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_synod_peer_gets_what_go_nodes_do_not() {
    let node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    node.remote.send(&server.pid("sink"), own_type()).expect("taken");
    let _control = server.incoming().await.shake_hands("synod/0.1.0").await;
    let mut user = server.incoming().await.shake_hands("synod/0.1.0").await;
    assert_eq!(user.messages(1).await[0].type_name, "synod.membership.Ping");
}

#[tokio::test]
async fn a_lot_of_messages_is_cut_into_frames_that_a_go_node_takes() {
    let mut node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let (large, small) = (server.pid("large"), server.pid("small"));
    // The connection stands first, so that everything waits in its lane.
    node.remote.send(&small, text("0")).expect("taken");
    let (_control, mut user) = server.connection().await;
    let said = user.peer.clone().expect("a handshake");
    assert_eq!((said.member_id.as_str(), said.address.as_str()), ("node#1", node.address()));
    assert_eq!(user.messages(1).await.len(), 1);
    // Ten mebibytes in few large messages, and many small ones between them.
    const LARGE: usize = 1 << 20;
    for number in 1..=3000 {
        if number % 300 == 0 {
            let mut body = number.to_string().into_bytes();
            body.resize(LARGE, b' ');
            node.remote.send(&large, Message::raw(TypeName::from("test.Text"), body.into())).expect("taken");
        }
        node.remote.send(&small, text(&number.to_string())).expect("taken");
    }
    let too_large = Message::raw(TypeName::from("test.Text"), vec![0; FRAME_BYTES_SENT_MAX].into());
    node.remote.send(&large, too_large).expect("taken");
    let mut numbers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut frames = 0;
    while numbers.values().map(Vec::len).sum::<usize>() < 3010 {
        let (messages, _) = user.batch().await.expect("messages");
        frames += 1;
        let bytes: usize = messages.iter().map(|message| message.payload.len()).sum();
        assert!(bytes < FRAME_BYTES_SENT_MAX && messages.len() <= BATCH_MESSAGES_SENT_MAX);
        for message in messages {
            let number = String::from_utf8_lossy(&message.payload).trim_end().parse().expect("a number");
            numbers.entry(message.target.id().to_owned()).or_default().push(number);
        }
    }
    assert!(frames >= 4);
    assert!(user.largest <= FRAME_BYTES_SENT_MAX, "{}", user.largest);
    assert_eq!(numbers["small"], (1..=3000).collect::<Vec<_>>());
    assert_eq!(numbers["large"], (1..=10).map(|count| count * 300).collect::<Vec<_>>());
    eventually("what fits into no frame is a dead letter", || node.counters().dead_letters() == 1).await;
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_silent_connection_is_not_pinged() {
    let node = Node::start(config()).await;
    let mut server = RawServer::start().await;
    let (tapped, mut kinds) = tap(&server.address).await;
    node.remote.send(&Pid::new(tapped.as_str(), "sink"), text("hello")).expect("taken");
    let (_control, mut user) = server.connection().await;
    assert_eq!(user.messages(1).await.len(), 1);
    // Nothing is awaited here: that nothing comes can only be seen by looking for a while.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut pings = 0;
    let mut frames = 0;
    while let Ok(kind) = kinds.try_recv() {
        frames += 1;
        pings += usize::from(kind == PING);
    }
    assert!(frames > 3, "the tap reads frames");
    assert_eq!(pings, 0);
}

/// Passes bytes on to `address`, and reports the kind of every HTTP/2 frame that the client sends.
async fn tap(address: &str) -> (String, mpsc::UnboundedReceiver<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let tapped = listener.local_addr().expect("an address").to_string();
    let (sender, kinds) = mpsc::unbounded_channel();
    let address = address.to_owned();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.expect("a connection");
        let server = TcpStream::connect(address).await.expect("the server listens");
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
            (client.into_split(), server.into_split());
        tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        let mut preface = [0; 24];
        from_client.read_exact(&mut preface).await.expect("the preface");
        to_server.write_all(&preface).await.expect("the server reads");
        let mut header = [0; 9];
        while from_client.read_exact(&mut header).await.is_ok() {
            sender.send(header[3]).ok();
            let mut body = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
            from_client.read_exact(&mut body).await.expect("a whole frame");
            to_server.write_all(&[&header[..], &body].concat()).await.expect("the server reads");
        }
    });
    (tapped, kinds)
}

const PING: u8 = 6;
