//! Frames that are no frames, too large, too full, compressed, or sent to the wrong method.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use synod_wire::limits::{BATCH_ENVELOPES_MAX, FRAME_BYTES_RECEIVED_MAX};
use synod_wire::remote::MessageEnvelope;
use tonic::Code;

use super::node::{NOWHERE, Node, TEXT, batch, config, envelope, eventually, frame, to_probe};
use super::raw_client::{Answer, RECEIVE, RawClient, hello};

#[tokio::test]
async fn malformed_frames_are_ignored_until_there_are_too_many() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    let good = to_probe("good");
    let mut rng = fastrand::Rng::with_seed(1);
    let random: Vec<u8> = (0..200).map(|_| rng.u8(..) | 0x80).collect();
    let malformed = [
        ("an empty message", Vec::new()),
        ("random bytes", random),
        ("truncated", good[..good.len() - 3].to_vec()),
        ("a field that is no kind of frame", vec![0x2a, 0x02, 0x08, 0x01]),
        ("a batch that is a number", vec![0x08, 0x01]),
        ("a handshake that says nothing", vec![0x12, 0x00]),
        ("an answer that nobody asked for", vec![0x1a, 0x00]),
    ];
    // The stream survives each of them, and what is good around them arrives in order.
    for (number, (what, bytes)) in (1..).zip(&malformed) {
        stream.send(bytes);
        stream.send(&to_probe(what));
        assert_eq!(node.next().await, *what);
        assert_eq!(node.counters().frames_refused(), number, "{what}");
    }
    node.refused("no known kind").await;
    node.refused("not a protobuf message").await;
    // Sixteen are enough for one stream.
    for _ in malformed.len()..16 {
        stream.send(&[0xff]);
    }
    assert_eq!(stream.answer().await, Answer::Status(Code::InvalidArgument as i32));
    assert_eq!(node.counters().frames_refused(), 16);
    // The connection is not to blame.
    let mut again = client.greeted("raw#1", NOWHERE).await;
    again.send(&to_probe("again"));
    assert_eq!(node.next().await, "again");
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_frame_beyond_all_bounds_ends_its_stream_before_it_is_sent() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    stream.announce(FRAME_BYTES_RECEIVED_MAX as u32 + 1);
    assert_eq!(stream.answer().await, Answer::Status(Code::OutOfRange as i32));
    assert_eq!(node.counters().frames_refused(), 1);
    node.refused("the stream was ended").await;
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_message_that_breaks_off_is_refused() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    stream.announce(100);
    stream.send_bytes(b"only these".to_vec());
    stream.half_close();
    assert_eq!(stream.answer().await, Answer::Status(Code::Internal as i32));
    assert_eq!(node.counters().frames_refused(), 1);
    node.refused("the stream was ended").await;
    // A flag that gRPC does not have.
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    stream.send_flagged(7, &to_probe("flagged"));
    assert_eq!(stream.answer().await, Answer::Status(Code::Internal as i32));
    assert_eq!(node.counters().frames_refused(), 2);
    // Who just goes away has refused nothing and is refused nothing.
    let gone = client.greeted("raw#1", NOWHERE).await;
    drop((gone, client));
    node.serves_an_honest_peer().await;
    assert_eq!(node.counters().frames_refused(), 2);
}

#[tokio::test]
async fn compressed_frames_are_read_and_bombs_are_not() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let gzip = [("grpc-encoding", "gzip")];
    let mut stream = client.call(RECEIVE, &gzip).await;
    stream.send_flagged(1, &zipped(&hello("raw#1", NOWHERE)));
    stream.greeting().await;
    stream.send_flagged(1, &zipped(&to_probe("compressed")));
    stream.send(&to_probe("plain"));
    assert_eq!(node.next().await, "compressed");
    assert_eq!(node.next().await, "plain");
    // What was never compressed cannot be unpacked.
    stream.send_flagged(1, b"no gzip at all");
    assert_eq!(stream.answer().await, Answer::Status(Code::Internal as i32));
    assert_eq!(node.counters().frames_refused(), 1);
    // A bomb: small to send, beyond the bound when unpacked.
    let mut stream = client.call(RECEIVE, &gzip).await;
    stream.send(&hello("raw#1", NOWHERE));
    stream.greeting().await;
    let bomb = zipped(&vec![0; FRAME_BYTES_RECEIVED_MAX + 1]);
    assert!(bomb.len() < 100_000);
    stream.send_flagged(1, &bomb);
    assert_eq!(stream.answer().await, Answer::Status(Code::ResourceExhausted as i32));
    assert_eq!(node.counters().frames_refused(), 2);
    node.refused("the stream was ended").await;
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_batch_with_too_many_envelopes_is_refused_as_a_whole() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    let envelopes = |count| vec![MessageEnvelope::default(); count];
    stream.send(&frame(batch(TEXT, &["probe"], envelopes(BATCH_ENVELOPES_MAX + 1))));
    node.refused("more than 65536 envelopes").await;
    assert_eq!((node.counters().frames_refused(), node.counters().messages_received()), (1, 0));
    // As many as may be are taken.
    let mut full = envelopes(BATCH_ENVELOPES_MAX - 1);
    full.push(envelope("last"));
    stream.send(&frame(batch(TEXT, &["probe"], full)));
    while node.next().await != "last" {}
    assert_eq!(node.counters().messages_received(), BATCH_ENVELOPES_MAX as u64);
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn other_methods_are_not_served() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    for method in ["/remote.Remoting/ListProcesses", "/remote.Remoting/GetProcessDiagnostics", "/"] {
        let mut stream = client.call(method, &[]).await;
        stream.send(&[]);
        assert_eq!(stream.answer().await, Answer::Status(Code::Unimplemented as i32), "{method}");
        node.refused(&format!("a call of {method}")).await;
    }
    // The same connection can still do what it is for.
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    stream.send(&to_probe("useful"));
    assert_eq!(node.next().await, "useful");
    eventually("one stream", || node.counters().frames_received() == 1).await;
    node.serves_an_honest_peer().await;
}

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}
