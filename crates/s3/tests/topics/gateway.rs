//! The gateway itself: what it says of failures, what it counts, how it stops.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use synod_core::objects::Space;
use synod_s3::{Gateway, GatewayConfig, GatewayError};
use synod_store::objects::contract::StoreError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::client::exchange;
use crate::support::world::World;

#[tokio::test]
async fn failures_of_the_store_are_told_as_what_they_are() {
    let world = World::start().await;
    world.put("/photos/a", "a").await;
    world.put("/photos/large", vec![1; 100_000]).await;
    for (failure, status, code, retry) in [
        (StoreError::Unavailable { reason: "no quorum".into() }, 503, "SlowDown", "1"),
        (StoreError::Indeterminate, 503, "ServiceUnavailable", "1"),
        (StoreError::Damaged { reason: "block".into() }, 500, "InternalError", ""),
        (StoreError::Full { reason: "disk".into() }, 507, "InsufficientStorage", ""),
        (StoreError::TooLarge { reason: "it".into() }, 400, "EntityTooLarge", ""),
    ] {
        world.store.fail(Some(failure));
        for call in [
            world.call("GET", "/photos/a"),
            world.call("PUT", "/photos/a").body("b"),
            world.call("PUT", "/photos/a").body(vec![2; 100_000]),
            world.call("DELETE", "/photos/a"),
            world.call("GET", "/photos"),
        ] {
            let answer = call.send().await;
            assert_eq!(answer.outcome(), (status, code.to_owned()), "{}", answer.text());
            assert_eq!(answer.header("retry-after"), retry);
        }
        world.store.fail(None);
        assert_eq!(world.get("/photos/a").await.text(), "a");
    }
    // Bytes that are gone are said to be, before anything of them is sent.
    world.store.lose_parts();
    assert_eq!(world.get("/photos/large").await.outcome(), (500, "InternalError".to_owned()));
    world.store.spoil(Space::Object, "photos", "a");
    let unreadable = world.get("/photos/a").await;
    assert_eq!(unreadable.outcome(), (500, "InternalError".to_owned()));
    assert!(unreadable.text().contains("version 9"), "{}", unreadable.text());
}

#[tokio::test]
async fn requests_bytes_and_errors_are_counted() {
    let world = World::start().await;
    world.put("/photos/a", vec![1; 1000]).await;
    world.get("/photos/a").await;
    world.get("/photos/a").await;
    world.get("/photos/missing").await;
    world.call("GET", "/photos/a").send_unsigned().await;
    let counters = world.gateway.counters();
    let operation =
        |name: &str| counters.operations.iter().find(|counted| counted.operation == name).unwrap().clone();
    assert_eq!(
        operation("GetObject").statuses.into_iter().collect::<Vec<_>>(),
        [(200, 2), (403, 1), (404, 1)]
    );
    assert_eq!(operation("PutObject").statuses.into_iter().collect::<Vec<_>>(), [(200, 1)]);
    let counted: u64 = operation("GetObject").latency.iter().map(|(_, count)| count).sum();
    assert_eq!(counted, 4);
    assert!(operation("GetObject").latency_sum_us > 0);
    assert_eq!(
        counters.errors.into_iter().collect::<Vec<_>>(),
        [("AccessDenied".to_owned(), 1), ("NoSuchKey".to_owned(), 1)]
    );
    assert_eq!(counters.bytes_in, 1000);
    assert!(counters.bytes_out >= 2000);
    assert_eq!(counters.connections_total, 6);
}

#[tokio::test]
async fn what_was_read_a_moment_ago_is_not_read_again() {
    let world = World::start().await;
    world.put("/photos/a", "a").await;
    let before = world.store.reads();
    let start = std::time::Instant::now();
    let mut requests = 0;
    while requests < 10 {
        world.get("/photos/a").await;
        requests += 1;
    }
    let looked_up = world.store.reads() - before - requests;
    // Key and bucket, once for each second that passed.
    assert!(looked_up <= 2 * (start.elapsed().as_secs() + 2), "{looked_up} look-ups");
}

/// Sends requests one after the other over one connection.
#[tokio::test]
async fn a_connection_serves_many_requests() {
    let world = World::start().await;
    world.put("/photos/a", "hello").await;
    let mut stream = TcpStream::connect(world.gateway.address()).await.unwrap();
    for _ in 0..3 {
        let mut call = world.call("GET", "/photos/a");
        call.sign();
        let request = String::from_utf8(call.bytes()).unwrap().replace("connection: close\r\n", "");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    }
    // A refused body that is small is read to its end, so that the connection goes on.
    let mut call = world.call("PUT", "/photos/b").body(vec![1; 50_000]);
    call.secret = "wrong-secret".to_owned();
    call.sign();
    let text = call.bytes();
    let head = text.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let mut request =
        String::from_utf8(text[..head].to_vec()).unwrap().replace("connection: close", "x-a: b").into_bytes();
    request.extend_from_slice(&text[head..]);
    stream.write_all(&request).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"</Error>") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
    }
    assert!(answer.starts_with(b"HTTP/1.1 403"));
    let mut call = world.call("GET", "/photos/a");
    call.sign();
    stream.write_all(&call.bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.ends_with(b"hello"));
    assert_eq!(world.gateway.counters().connections_total, 3);
}

#[tokio::test]
async fn connections_beyond_the_bound_wait_for_others_to_end() {
    let world = World::start_with(|config| config.connections_max = 1).await;
    let idle = TcpStream::connect(world.gateway.address()).await.unwrap();
    while world.gateway.counters().connections == 0 {
        tokio::task::yield_now().await;
    }
    let mut call = world.call("GET", "/");
    call.sign();
    let waiting = tokio::spawn(call.send_unsigned());
    while world.gateway.counters().connections_delayed == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    drop(idle);
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_client_that_sends_nothing_more_is_given_up() {
    let world = World::start_with(|config| {
        config.body_timeout = Duration::from_millis(50);
        config.header_timeout = Duration::from_millis(50);
    })
    .await;
    assert_eq!(world.call("PUT", "/photos").send().await.status, 200);
    let mut call = world.call("PUT", "/photos/a").body(vec![1; 1000]);
    call.sign();
    let mut bytes = call.bytes();
    bytes.truncate(bytes.len() - 500);
    let answer = exchange(world.gateway.address(), &bytes, false).await;
    assert_eq!(answer.outcome(), (400, "RequestTimeout".to_owned()));
    let mut silent = TcpStream::connect(world.gateway.address()).await.unwrap();
    let mut nothing = Vec::new();
    // The connection is closed from the other side.
    drop(silent.read_to_end(&mut nothing).await);
    assert_eq!(world.listed("photos").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_request_under_way_comes_to_its_end_before_the_gateway_stops() {
    let world = World::start().await;
    let address = world.gateway.address();
    let mut call = world.call("PUT", "/photos/a").body(vec![1; 1000]);
    call.sign();
    let bytes = call.bytes();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&bytes[..bytes.len() - 500]).await.unwrap();
    while world.gateway.counters().bytes_in == 0 {
        tokio::task::yield_now().await;
    }
    let (store, stopping) =
        (world.store.clone(), tokio::spawn(world.gateway.shutdown(Duration::from_secs(60))));
    // It listens no more.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    stream.write_all(&bytes[bytes.len() - 500..]).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    stopping.await.unwrap();
    assert_eq!(store.count(Space::Object), 1);

    // Who does not come to an end is ended.
    let world = World::start().await;
    let mut stream = TcpStream::connect(world.gateway.address()).await.unwrap();
    stream.write_all(b"PUT /photos/a HTTP/1.1\r\n").await.unwrap();
    while world.gateway.counters().connections < 1 {
        tokio::task::yield_now().await;
    }
    world.gateway.shutdown(Duration::ZERO).await;
    let mut nothing = Vec::new();
    drop(stream.read_to_end(&mut nothing).await);
}

#[tokio::test]
async fn a_configuration_that_cannot_be_is_refused() {
    let world = World::start_with(|_| {}).await;
    let listen = "127.0.0.1:0".parse().unwrap();
    let refused = |change: fn(&mut GatewayConfig)| {
        let mut config = GatewayConfig::new(listen);
        change(&mut config);
        let store = world.store.clone();
        async move { Gateway::start(store, config).await.unwrap_err() }
    };
    for (error, field) in [
        (refused(|config| config.region = String::new()).await, "region"),
        (refused(|config| config.domains = vec!["a..b".to_owned()]).await, "domains"),
        (refused(|config| config.connections_max = 0).await, "connections_max"),
        (refused(|config| config.document_bytes_max = 1).await, "document_bytes_max"),
    ] {
        assert!(matches!(&error, GatewayError::Config { field: named, .. } if *named == field), "{error}");
    }
    let mut config = GatewayConfig::new(world.gateway.address());
    config.region = "eu-1".to_owned();
    let taken = Gateway::start(world.store.clone(), config).await.unwrap_err();
    assert!(matches!(taken, GatewayError::Listen { .. }), "{taken}");
}

#[tokio::test]
async fn who_has_connected_before_the_stop_is_answered() {
    // Which of the two the gateway sees first is chance, so it gets several.
    for _ in 0..20 {
        let world = World::start_with(|_| {}).await;
        // The system lets it in; the gateway has had no turn to take it since.
        let mut stream = std::net::TcpStream::connect(world.gateway.address()).expect("a connection");
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("it is open");
        world.gateway.shutdown(Duration::from_secs(10)).await;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it was not reset");
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    }
}
