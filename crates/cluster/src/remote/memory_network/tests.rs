//! Streams that stall, break and take their time.

use std::time::Duration;

use synod_core::Authority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::*;

fn authority(name: &str) -> Authority {
    Authority::new(&format!("{name}:1")).expect("an authority")
}

struct Pair {
    network: MemoryNetwork,
    a: Authority,
    b: Authority,
    listener: MemoryListener,
    _dialer: MemoryListener,
    at_a: MemoryStream,
    at_b: MemoryStream,
}

/// Two ends of a connection that `a` opened to `b`.
async fn pair() -> Pair {
    let network = MemoryNetwork::new(1);
    let (a, b) = (authority("a"), authority("b"));
    let dialer = network.listen(&a).expect("free");
    let mut listener = network.listen(&b).expect("free");
    let at_a = network.connect(&a, &b).await.expect("somebody listens");
    let at_b = listener.accept().await.expect("a connection");
    Pair { network, a, b, listener, _dialer: dialer, at_a, at_b }
}

/// Long enough that whatever can happen has happened.
async fn is_silent(future: impl Future) -> bool {
    timeout(Duration::from_secs(3600), future).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn bytes_arrive_in_order_and_a_full_pipe_makes_its_writer_wait() {
    let mut pair = pair().await;
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8).collect();
    let expected = sent.clone();
    let mut at_a = pair.at_a;
    let writing = tokio::spawn(async move {
        at_a.write_all(&sent).await.expect("it is read");
        at_a.shutdown().await.expect("it is read");
    });
    assert!(!is_silent(tokio::task::yield_now()).await);
    assert!(!writing.is_finished(), "so many bytes are never on their way");
    let mut received = Vec::new();
    pair.at_b.read_to_end(&mut received).await.expect("all of it");
    assert!(received == expected);
    writing.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_cut_is_silence_and_what_stalled_arrives_when_it_is_healed() {
    let Pair { network, a, b, mut listener, _dialer, mut at_a, mut at_b } = pair().await;
    network.cut(&a, &b);
    at_a.write_all(b"stalled").await.expect("a writer does not notice");
    let mut buffer = [0; 7];
    assert!(is_silent(at_b.read_exact(&mut buffer)).await);
    assert!(is_silent(network.connect(&a, &b)).await, "a new connection hangs");
    let dialling = tokio::spawn({
        let (network, a, b) = (network.clone(), a.clone(), b.clone());
        async move { network.connect(&a, &b).await }
    });
    let reading = tokio::spawn(async move {
        at_b.read_exact(&mut buffer).await.expect("healed");
        (at_b, buffer)
    });
    assert!(is_silent(std::future::pending::<()>()).await);
    network.heal(&a, &b);
    let (mut at_b, buffer) = reading.await.expect("no panic");
    assert_eq!(&buffer, b"stalled");
    dialling.await.expect("no panic").expect("a connection that hung comes about");
    listener.accept().await.expect("that connection");

    // In one direction only.
    network.cut_one_way(&a, &b);
    at_a.write_all(b"x").await.expect("unnoticed");
    at_b.write_all(b"y").await.expect("not cut");
    assert_eq!(at_a.read_u8().await.expect("not cut"), b'y');
    assert!(is_silent(at_b.read_u8()).await);
    network.heal_all();
    assert_eq!(at_b.read_u8().await.expect("healed"), b'x');
}

#[tokio::test(start_paused = true)]
async fn whoever_dies_is_missed_only_where_the_news_gets_through() {
    let Pair { network, a, b, listener: _listener, _dialer, mut at_a, mut at_b } = pair().await;
    at_b.write_all(b"lost").await.expect("open");
    network.cut(&a, &b);
    network.kill(&b);
    assert_eq!(at_b.read_u8().await.expect_err("dead").kind(), io::ErrorKind::ConnectionReset);
    assert!(is_silent(at_a.read_u8()).await);
    at_a.write_all(b"x").await.expect("nothing is known here");
    network.heal_all();
    assert_eq!(at_a.read_u8().await.expect_err("gone").kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(at_a.write_u8(1).await.expect_err("gone").kind(), io::ErrorKind::ConnectionReset);
    let refused = network.connect(&a, &b).await.expect_err("nobody listens");
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    // The address is free for the next life, and what is left of the last one does not take it away again.
    assert!(!network.is_listening(&b));
    assert_eq!(network.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_remains_of_a_life_do_not_disturb_the_next_one() {
    let Pair { network, b, listener, .. } = pair().await;
    assert!(network.listen(&b).is_err(), "the address is taken");
    network.kill(&b);
    let next = network.listen(&b).expect("free");
    drop(listener);
    assert!(network.is_listening(&b));
    drop(next);
    assert!(!network.is_listening(&b));
}

#[tokio::test(start_paused = true)]
async fn a_closed_end_is_an_end_for_the_reader_and_an_error_for_the_writer() {
    let Pair { network, a, b, listener: _listener, _dialer, mut at_a, mut at_b } = pair().await;
    at_b.write_all(b"bye").await.expect("open");
    network.cut(&a, &b);
    drop(at_b);
    let mut received = Vec::new();
    assert!(is_silent(at_a.read_to_end(&mut received)).await);
    network.heal(&a, &b);
    at_a.read_to_end(&mut received).await.expect("a proper end");
    assert_eq!(received, b"bye");
    at_a.write_all(b"anybody?").await.expect("on its way");
    assert_eq!(at_a.write_u8(1).await.expect_err("nobody").kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn connections_are_refused_or_broken_when_told_so() {
    let Pair { network, a, b, listener: _listener, _dialer, mut at_a, mut at_b } = pair().await;
    network.refuse(&b, true);
    assert!(network.connect(&a, &b).await.is_err());
    at_a.write_all(b"x").await.expect("what stands is left alone");
    assert_eq!(at_b.read_u8().await.expect("open"), b'x');
    network.refuse(&b, false);
    network.connect(&a, &b).await.expect("open again");
    network.reset(&b, &a);
    assert!(at_a.read_u8().await.is_err() && at_b.read_u8().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn latency_is_virtual_time_and_the_seed_decides_about_it() {
    let Pair { network, a, b, listener: _listener, _dialer, mut at_a, mut at_b } = pair().await;
    let hour = Duration::from_secs(3600);
    network.set_latency(&a, &b, hour..=hour);
    let before = Instant::now();
    at_a.write_all(b"x").await.expect("open");
    assert_eq!(at_b.read_u8().await.expect("open"), b'x');
    assert_eq!(before.elapsed(), hour);
    let before = Instant::now();
    at_b.write_all(b"y").await.expect("open");
    assert_eq!(at_a.read_u8().await.expect("open"), b'y');
    assert_eq!(before.elapsed(), Duration::ZERO, "the way back has its own");

    let varied = async || {
        let Pair { network, mut at_a, mut at_b, .. } = pair().await;
        network.set_default_latency(Duration::ZERO..=hour);
        let before = Instant::now();
        let mut times = Vec::new();
        for number in 0..10 {
            at_a.write_all(&[number]).await.expect("open");
            assert_eq!(at_b.read_u8().await.expect("open"), number);
            times.push(before.elapsed());
        }
        times
    };
    let times = varied().await;
    assert!(times.windows(2).any(|pair| pair[0] != pair[1]));
    assert_eq!(times, varied().await);
}
