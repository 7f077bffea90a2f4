//! Listings of many objects: complete, in order, and without holding them all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use http::Method;
use synod_s3::client::S3Client;

use crate::cluster::{Layout, is_long_run};
use crate::store::{ALL, BUCKET, Store};

#[test]
fn many_objects_are_listed_completely_and_in_order_by_every_node() {
    let store = Store::started(&Layout::patient());
    let count = if is_long_run() { 1_000_000 } else { 20_000 };
    put_many(&store, count);
    let mut keys: Vec<String> = (0..count).map(key).collect();
    keys.sort();

    for index in ALL {
        let before = store.memory(*index, "VmRSS");
        let began = Instant::now();
        let client = store.s3(*index);
        let (mut listed, mut pages) = (0, 0);
        let mut token = None;
        store.run(async {
            loop {
                let page = list(&client, &[("max-keys", "1000")], token.as_deref()).await;
                assert!(page.keys.len() <= 1000);
                let expected = keys.get(listed..listed + page.keys.len());
                assert_eq!(Some(&page.keys[..]), expected, "page {pages} by {index}");
                (listed, pages, token) = (listed + page.keys.len(), pages + 1, page.next);
                if token.is_none() {
                    break;
                }
            }
        });
        assert_eq!(listed, count, "by {index}");
        let after = store.memory(*index, "VmRSS");
        eprintln!(
            "{listed} keys in {pages} pages in {:?} by {index}; resident memory {} MiB before, {} MiB after",
            began.elapsed(),
            before >> 20,
            after >> 20
        );
        assert!(after < before + LISTING_BYTES_MAX, "{before} bytes before, {after} after");
    }

    // What is below a directory is one line, and costs a look, not a walk.
    for index in ALL {
        let client = store.s3(*index);
        let page = store.run(list(&client, &[("delimiter", "/")], None));
        assert_eq!((page.keys.len(), page.prefixes, page.next), (0, directories(), None), "by {index}");
        let in_one =
            store.run(list(&client, &[("delimiter", "/"), ("prefix", "d07/"), ("max-keys", "5")], None));
        let expected: Vec<&String> = keys.iter().filter(|key| key.starts_with("d07/")).take(5).collect();
        assert_eq!((in_one.keys.iter().collect::<Vec<_>>(), in_one.prefixes.len()), (expected, 0));
    }
}

#[test]
fn a_listing_shows_at_once_what_was_written_and_not_what_was_deleted() {
    let store = Store::started(&Layout::patient());
    store.run(async {
        for round in 0..30 {
            let (writer, reader) = (store.s3(round % 3), store.s3((round + 1) % 3));
            let key = format!("round/{round:02}");
            let put = writer.put(BUCKET, &key, Bytes::from_static(b"here"), &[]).await.expect("an answer");
            assert!(put.status.is_success(), "{put:?}");
            let page = list(&reader, &[("prefix", "round/")], None).await;
            assert_eq!(page.keys.last(), Some(&key));
            if round % 2 == 1 {
                let deleted = reader.delete(BUCKET, &key, &[]).await.expect("an answer");
                assert!(deleted.status.is_success(), "{deleted:?}");
                let page = list(&writer, &[("prefix", "round/")], None).await;
                assert!(!page.keys.contains(&key), "{key} is gone");
            }
        }
        let kept: Vec<String> = (0..30).step_by(2).map(|round| format!("round/{round:02}")).collect();
        assert_eq!(list(&store.s3(0), &[], None).await.keys, kept);
    });
}

/// Puts so many objects, through all nodes at once.
fn put_many(store: &Store, count: usize) {
    let began = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    store.run(async {
        let clients = (0..CLIENTS).map(|number| {
            let (client, next) = (store.s3(number % 3), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let put = async || {
                        let body = Bytes::from(number.to_string());
                        client.put(BUCKET, &key(number), body, &[]).await.expect("an answer")
                    };
                    let mut reply = put().await;
                    // A busy machine may be late. Whoever is told so writes again.
                    for _ in 0..RETRIES_MAX {
                        if reply.status.as_u16() != 503 {
                            break;
                        }
                        reply = put().await;
                    }
                    assert_eq!(reply.status.as_u16(), 200, "{}", reply.text());
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.expect("a client");
        }
    });
    eprintln!("{count} objects were put in {:?} by {CLIENTS} clients", began.elapsed());
}

/// Keys in an order that is not the order of their numbers.
fn key(number: usize) -> String {
    format!("d{:02}/{:08}-{number}", number % DIRECTORIES, number.wrapping_mul(7_368_787) % 100_000_000)
}

fn directories() -> Vec<String> {
    let all: BTreeSet<String> = (0..DIRECTORIES).map(|number| format!("d{number:02}/")).collect();
    all.into_iter().collect()
}

struct Page {
    keys: Vec<String>,
    prefixes: Vec<String>,
    next: Option<String>,
}

async fn list(client: &S3Client, asked: &[(&str, &str)], token: Option<&str>) -> Page {
    let mut query = vec![("list-type", "2")];
    query.extend(asked);
    query.extend(token.map(|token| ("continuation-token", token)));
    let reply = client.call(Method::GET, &format!("/{BUCKET}"), &query, &[], Bytes::new()).await;
    let reply = reply.expect("an answer");
    let text = reply.text();
    assert_eq!(reply.status.as_u16(), 200, "{text}");
    let next = between(&text, "<NextContinuationToken>", "</NextContinuationToken>").pop();
    assert_eq!(next.is_some(), text.contains("<IsTruncated>true</IsTruncated>"), "{text}");
    let prefixes = between(&text, "<CommonPrefixes><Prefix>", "</Prefix>");
    Page { keys: between(&text, "<Key>", "</Key>"), prefixes, next }
}

fn between(text: &str, begin: &str, end: &str) -> Vec<String> {
    let pieces = text.split(begin).skip(1);
    pieces.map(|piece| piece.split(end).next().unwrap_or_default().to_owned()).collect()
}

const CLIENTS: usize = 96;
/// How often a write is tried again whose outcome is not known.
const RETRIES_MAX: usize = 5;
const DIRECTORIES: usize = 20;
/// What a listing may leave behind: buffers and caches, and not what was listed.
const LISTING_BYTES_MAX: u64 = 48 << 20;
