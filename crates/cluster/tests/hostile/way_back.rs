//! What a node says on streams that a peer opened. A Go node takes anything but one answer and one goodbye for the end,
//! and an end without an error for one that it caused itself, after which it would never connect again.

use prost::Message as _;
use synod_wire::remote::RemoteMessage;
use tonic::Code;

use super::node::{NOWHERE, Node, PATIENCE, config, to_probe};
use super::raw_client::{Answer, RawClient};

#[tokio::test]
async fn the_end_that_a_peer_wants_is_an_error_to_it() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    // A half-close, before and after messages, and a goodbye.
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    stream.half_close();
    assert_eq!(stream.answer().await, Answer::Status(Code::Unavailable as i32));
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    stream.send(&to_probe("last words"));
    stream.half_close();
    assert_eq!(stream.answer().await, Answer::Status(Code::Unavailable as i32));
    assert_eq!(node.next().await, "last words");
    let mut stream = client.greeted("raw#1", NOWHERE).await;
    stream.send(&RemoteMessage::disconnect().encode_to_vec());
    assert_eq!(stream.answer().await, Answer::Status(Code::Unavailable as i32));
    node.serves_an_honest_peer().await;
}

#[tokio::test]
async fn a_node_that_shuts_down_says_goodbye_once_and_means_it() {
    let mut node = Node::start(config()).await;
    let client = RawClient::connect(node.address()).await;
    let mut polite = client.greeted("raw#1", NOWHERE).await;
    let mut rude = client.greeted("raw#1", NOWHERE).await;
    polite.send(&to_probe("heard"));
    assert_eq!(node.next().await, "heard");
    let remote = node.remote.clone();
    let shutdown = tokio::spawn(async move { remote.shutdown(PATIENCE).await });
    let goodbye = RemoteMessage::disconnect().encode_to_vec();
    assert_eq!(polite.answer().await, Answer::Frame(goodbye.clone().into()));
    assert_eq!(rude.answer().await, Answer::Frame(goodbye.into()));
    // One hangs up as it should, the other goes on talking and is cut off.
    polite.half_close();
    assert_eq!(polite.answer().await, Answer::Status(Code::Unavailable as i32));
    rude.send(&to_probe("not heard"));
    assert_eq!(rude.answer().await, Answer::Status(Code::Unavailable as i32));
    assert!(shutdown.await.expect("it ends"), "in time");
    assert!(node.seen.recv().await.is_none(), "what came after the goodbye was not delivered");
}
