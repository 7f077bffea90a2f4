//! `synod start` and nothing else: a store of one node whose user has a key without asking for it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;

use bytes::Bytes;
use synod_s3::client::S3Client;
use tokio::runtime::Builder;

use crate::cluster::{Layout, TestCluster, eventually};

#[test]
fn a_node_alone_gives_its_user_a_key_that_works_at_once_and_stays() {
    let mut node = TestCluster::new(&Layout { nodes: 1, ..Layout::default() });
    // Everything that could tell a secret is logged.
    node.log_level = Some("debug");
    start(&mut node, &[]);
    let file = node.dir.join("data/credentials");
    let text = fs::read_to_string(&file).expect("credentials");
    assert_eq!(fs::metadata(&file).expect("credentials").permissions().mode() & 0o777, 0o600);
    let lines: Vec<&str> = text.lines().collect();
    let [head, id, secret] = lines[..] else { panic!("{} lines", lines.len()) };
    assert_eq!(head, "[default]");
    let id = id.strip_prefix("aws_access_key_id = ").expect("an id");
    let secret = secret.strip_prefix("aws_secret_access_key = ").expect("a secret");
    assert!(
        node.log(0).contains("AWS_SHARED_CREDENTIALS_FILE=data/credentials aws --endpoint-url"),
        "it is told"
    );

    let client = S3Client::new(&format!("http://{}", s3(&node)), id, secret);
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let made = client.create_bucket("hello").await.expect("an answer");
        assert_eq!(made.status.as_u16(), 200, "{}", made.text());
        let put = client.put("hello", "world", Bytes::from_static(b"!"), &[]).await.expect("an answer");
        assert_eq!(put.status.as_u16(), 200, "{}", put.text());
    });

    // The same key after a restart, and what it stored.
    node.signal(0, "TERM");
    assert_eq!(node.until_ended(0).code(), Some(0));
    start(&mut node, &[]);
    assert_eq!(fs::read_to_string(&file).expect("credentials"), text);
    let client = S3Client::new(&format!("http://{}", s3(&node)), id, secret);
    let got = runtime.block_on(client.get("hello", "world")).expect("an answer");
    assert_eq!((got.status.as_u16(), &got.body[..]), (200, &b"!"[..]), "{}", got.text());

    // And without S3 there is nobody to speak to.
    node.kill(0);
    start(&mut node, &["--no-s3"]);
    let api = format!("http://{}", node.api(0));
    assert!(TcpStream::connect(s3(&node)).is_err(), "it listens");
    let keys = node.synod(&["key", "list", "--api", &api]);
    assert_eq!(keys.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&keys.stderr).contains("serves no S3"), "{keys:?}");
    assert!(!node.log(0).contains(secret), "the log tells the secret");
}

fn start(node: &mut TestCluster, more: &[&str]) {
    let port = node.api(0).port().to_string();
    let before = node.log(0).len();
    let arguments = [&["start", "--data", "data", "--port", &port], more].concat();
    node.run(0, &arguments);
    eventually("it is ready", || match node.get(0, "/readyz")?.status {
        200 => Ok(()),
        status => Err(format!("status {status}")),
    });
    let told = format!("S3 on http://{}", s3(node));
    if more.is_empty() {
        eventually("it says where it speaks S3", || {
            if node.log(0)[before..].contains(&told) { Ok(()) } else { Err(node.log(0)) }
        });
    } else {
        assert!(!node.log(0)[before..].contains(&told));
    }
}

fn s3(node: &TestCluster) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, node.api(0).port() + 3))
}
