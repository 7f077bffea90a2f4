//! How long a durable write takes, printed for whoever asks: run with `--ignored --nocapture`.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::samples::{Bench, head, object, store};
use crate::objects::content::{Body, Content};
use crate::objects::disk::Disk;

#[test]
#[ignore = "prints figures, and asserts nothing about them"]
fn durable_puts_of_4_kib() {
    let bench = Bench::new();
    let disk = bench.learned();
    let alone = run(&disk, 0, 300);
    println!("one submitter: {}", describe(alone));
    let started = Instant::now();
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let disk = &disk;
        let writers: Vec<_> = (1..=64).map(|writer| scope.spawn(move || run(disk, writer, 100))).collect();
        times.extend(writers.into_iter().flat_map(|writer| writer.join().unwrap()));
    });
    let rate = times.len() as f64 / started.elapsed().as_secs_f64();
    println!("64 submitters: {}, {rate:.0} puts per second", describe(times));
    assert_eq!(disk.usage().unwrap().entries, 300 + 6400);
}

fn run(disk: &Disk, writer: u64, count: u64) -> Vec<Duration> {
    let body = Bytes::from(vec![7; 4096]);
    let content = Content { size: 4096, body: Body::Inline(body), ..Content::default() };
    let put = |number| {
        let started = Instant::now();
        assert!(store(disk, &object(&format!("{writer}/{number}")), &head(number + 1, &content)));
        started.elapsed()
    };
    (0..count).map(put).collect()
}

fn describe(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 100];
    format!("median {:?}, 99 of 100 within {:?}", at(50), at(99))
}
