//! Access keys: what they may do, when they no longer may, and that nobody is told their secrets.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use synod_s3::client::Reply;

use crate::cluster::{Layout, TestCluster};
use crate::store::{ALL, BUCKET, Key, Store};

#[test]
fn a_key_may_do_what_it_was_allowed_and_nothing_once_it_is_deleted() {
    let mut cluster = TestCluster::new(&Layout::patient());
    // Everything that could tell a secret is logged.
    cluster.log_level = Some("debug");
    cluster.start_all();
    cluster.until_agreed(ALL);
    let store = Store::new(cluster, false);
    store.put(0, "there", Bytes::from_static(b"something"));

    let key = store.new_key("someone");
    everywhere(&store, |index| {
        assert_refused(&get(&store, index, &key), "AccessDenied");
        assert_refused(&put(&store, index, &key), "AccessDenied");
    });

    allow(&store, &key, &["read"]);
    everywhere(&store, |index| {
        assert_eq!(&get(&store, index, &key).body[..], b"something");
        assert_refused(&put(&store, index, &key), "AccessDenied");
    });
    allow(&store, &key, &["write"]);
    everywhere(&store, |index| {
        assert_refused(&get(&store, index, &key), "AccessDenied");
        assert_eq!(put(&store, index, &key).status.as_u16(), 200);
    });
    // Another bucket is another matter.
    store.must(1, &["key", "allow", &key.id, "--bucket", "elsewhere", "--permission", "read,write,owner"]);
    allow(&store, &key, &[]);
    everywhere(&store, |index| assert_refused(&put(&store, index, &key), "AccessDenied"));

    let listed = store.must(2, &["key", "list", "--json"]);
    let keys: Vec<Value> = serde_json::from_slice(&listed.stdout).expect("keys");
    let mut names: Vec<&str> = keys.iter().filter_map(|key| key["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["everything", "someone"]);
    for output in [&listed, &store.must(2, &["key", "list"])] {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&key.id) && !text.contains(&key.secret), "{text}");
    }

    // A key that is not there, or whose secret is another one, is refused; so is one that was deleted.
    let wrong = Key { secret: store.key.secret.clone(), ..key.clone() };
    everywhere(&store, |index| assert_refused(&get(&store, index, &wrong), "SignatureDoesNotMatch"));
    allow(&store, &key, &["read"]);
    everywhere(&store, |index| assert_eq!(get(&store, index, &key).status.as_u16(), 200));
    store.must(1, &["key", "delete", &key.id]);
    everywhere(&store, |index| assert_refused(&get(&store, index, &key), "InvalidAccessKeyId"));
    let again = store.synod(1, &["key", "delete", &key.id]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");

    for index in ALL {
        let log = store.cluster.log(*index);
        for secret in [&store.key.secret, &key.secret] {
            let line = log.lines().find(|line| line.contains(secret.as_str()));
            assert_eq!(line, None, "the log of {index} tells a secret");
        }
    }
}

fn allow(store: &Store, key: &Key, permissions: &[&str]) {
    let permissions = permissions.join(",");
    let mut arguments = vec!["key", "allow", &key.id, "--bucket", BUCKET];
    if !permissions.is_empty() {
        arguments.extend(["--permission", &permissions]);
    }
    store.must(1, &arguments);
}

/// Asks all nodes, when what they remember of keys must be forgotten.
fn everywhere(store: &Store, check: impl Fn(usize)) {
    std::thread::sleep(REMEMBERED);
    ALL.iter().for_each(|index| check(*index));
    assert_eq!(ALL.len(), store.cluster.places.len());
}

fn get(store: &Store, index: usize, key: &Key) -> Reply {
    let client = store.s3_with(index, key);
    store.run(async move { client.get(BUCKET, "there").await.expect("an answer") })
}

fn put(store: &Store, index: usize, key: &Key) -> Reply {
    let client = store.s3_with(index, key);
    store.run(async move { client.put(BUCKET, "mine", Bytes::new(), &[]).await.expect("an answer") })
}

fn assert_refused(reply: &Reply, code: &str) {
    let text = reply.text();
    assert!(
        reply.status.as_u16() == 403 && text.contains(&format!("<Code>{code}</Code>")),
        "{reply:?}: {text}"
    );
}

/// Nodes remember keys for a moment, and never longer than this.
const REMEMBERED: Duration = Duration::from_secs(2);
