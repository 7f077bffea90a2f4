//! `synod bench failover`: how long a queue is without a leader when the one it has is killed.
//!
//! Nodes run as processes of their own, under load. Again and again the leader is ended with kill -9, or told to leave, and
//! what is measured is what a client sees: from the kill to the acknowledgement of the first job submitted after it. The
//! node comes back before the next round. At the end everything that was acknowledged must have been done.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anstream::eprintln;
use serde::Serialize;
use synod_core::jobs::{QueueName, Submit};
use synod_queue::{Client, Job, Worker};
use tokio::time::{Instant, sleep};

use crate::inspect::{json, print};
use crate::nodes::Nodes;
use crate::terminal::{GREEN, RED, with_runtime};

/// Arguments of `synod bench failover`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often a leader is lost.
    #[arg(long, default_value_t = 50)]
    kills: usize,
    /// How many nodes, 3 to 9.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    nodes: u8,
    /// Tell leaders to leave instead of killing them.
    #[arg(long)]
    graceful: bool,
    /// How many jobs are submitted at a time by the load beside it.
    #[arg(long, default_value_t = 32)]
    load: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    kills: usize,
    graceful: bool,
    min_ms: f64,
    p50_ms: f64,
    p90_ms: f64,
    max_ms: f64,
    calls_failed: u64,
    jobs_acknowledged: u64,
    jobs_done: u64,
    jobs_done_again: u64,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    with_runtime(async {
        match measure(args).await {
            Ok(report) => show(args, &report),
            Err(error) => {
                eprintln!("{RED}error:{RED:#} {error}");
                ExitCode::FAILURE
            }
        }
    })
}

fn show(args: &Args, report: &Report) -> ExitCode {
    let is_whole = report.calls_failed == 0 && report.jobs_done == report.jobs_acknowledged;
    if args.json {
        print(&json(report));
    } else {
        let how = if args.graceful { "told to leave" } else { "killed" };
        let Report { kills, min_ms, p50_ms, p90_ms, max_ms, .. } = report;
        print(&format!(
            "{kills} leaders {how}; to the first acknowledged job: min {min_ms:.0} ms, p50 {p50_ms:.0} ms, \
             p90 {p90_ms:.0} ms, max {max_ms:.0} ms"
        ));
        let Report { jobs_acknowledged, jobs_done, jobs_done_again, calls_failed, .. } = report;
        let (style, mark) = if is_whole { (GREEN, '✓') } else { (RED, '✗') };
        print(&format!(
            "{style}{mark}{style:#} {jobs_acknowledged} jobs acknowledged, {jobs_done} done, {jobs_done_again} of them \
             more than once, {calls_failed} calls failed"
        ));
    }
    if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What clients and workers saw.
#[derive(Default)]
struct Seen {
    is_over: AtomicBool,
    acknowledged: AtomicU64,
    failed: AtomicU64,
    /// Deliveries.
    runs: AtomicU64,
}

async fn measure(args: &Args) -> Result<Report, String> {
    let dir = std::env::temp_dir().join(format!("synod-failover-{}", std::process::id()));
    let measured = measure_in(args, &dir).await;
    // It is in the temporary directory either way.
    drop(std::fs::remove_dir_all(&dir));
    measured
}

async fn measure_in(args: &Args, dir: &std::path::Path) -> Result<Report, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut nodes =
        Nodes::lay_out(dir, std::env::current_exe().map_err(text)?, args.nodes.into()).map_err(text)?;
    nodes.start_all().map_err(text)?;
    nodes.until_whole().await?;
    let seen = Arc::new(Seen::default());
    let client = nodes.client("bench failover", PATIENCE);
    let done = Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let (noted, counted) = (Arc::clone(&done), Arc::clone(&seen));
    let worker = Worker::new(&client).concurrency(64).queue(QUEUE).map_err(|error| error.to_string())?;
    let running = worker.start(move |job: Job| {
        counted.runs.fetch_add(1, Ordering::Relaxed);
        noted.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(job.id);
        async {}
    });
    let running = running.await.map_err(|error| error.to_string())?;
    let load = tokio::spawn(load(nodes.client("load", PATIENCE), args.load, Arc::clone(&seen)));
    let mut waits = Vec::new();
    for round in 1..=args.kills {
        let leader = nodes.until_whole().await?;
        let began = Instant::now();
        let submitted = async {
            let submitted = client.submit(QUEUE, vec![b'x'; BODY_BYTES]).await;
            (submitted, began.elapsed())
        };
        let (_job, wait) = if args.graceful {
            // What is measured is the longest call while the leader leaves.
            let (left, longest) = tokio::join!(nodes.leave(leader), longest_call(&client, &seen));
            left?;
            longest?
        } else {
            nodes.kill(leader).map_err(text)?;
            let (submitted, wait) = submitted.await;
            (submitted.map_err(|error| error.to_string())?, wait)
        };
        seen.acknowledged.fetch_add(1, Ordering::Relaxed);
        waits.push(wait);
        if !args.json {
            eprintln!("{round:>3}  node{}  {:>6.0} ms", leader + 1, wait.as_secs_f64() * 1e3);
        }
        nodes.start(leader).map_err(text)?;
    }
    seen.is_over.store(true, Ordering::Relaxed);
    load.await.map_err(|error| error.to_string())?;
    let acknowledged = seen.acknowledged.load(Ordering::Relaxed);
    let count = || done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len() as u64;
    let began = Instant::now();
    while count() < acknowledged && began.elapsed() < DRAIN_PATIENCE {
        sleep(Duration::from_millis(20)).await;
    }
    running.stop(DRAIN_PATIENCE).await;
    waits.sort();
    let at = |share: f64| {
        let place = (waits.len().saturating_sub(1) as f64 * share).round() as usize;
        waits.get(place).map_or(0.0, |wait| wait.as_secs_f64() * 1e3)
    };
    let runs = seen.runs.load(Ordering::Relaxed);
    Ok(Report {
        kills: args.kills,
        graceful: args.graceful,
        min_ms: at(0.0),
        p50_ms: at(0.5),
        p90_ms: at(0.9),
        max_ms: at(1.0),
        calls_failed: seen.failed.load(Ordering::Relaxed),
        jobs_acknowledged: acknowledged,
        jobs_done: count(),
        jobs_done_again: runs.saturating_sub(count()),
    })
}

/// Submits one job after the other for a while, and tells the longest call.
async fn longest_call(client: &Client, seen: &Seen) -> Result<(synod_core::jobs::JobId, Duration), String> {
    let (began, mut longest, mut last) = (Instant::now(), Duration::ZERO, None);
    while began.elapsed() < GRACEFUL_LOOK {
        let at = Instant::now();
        let job = client.submit(QUEUE, vec![b'x'; BODY_BYTES]).await.map_err(|error| error.to_string())?;
        if last.replace(job).is_some() {
            seen.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        longest = longest.max(at.elapsed());
    }
    Ok((last.ok_or("no job was submitted")?, longest))
}

/// Submits without a pause, some at a time.
async fn load(client: Client, at_once: usize, seen: Arc<Seen>) {
    let Ok(queue) = QueueName::new(QUEUE) else { return };
    while !seen.is_over.load(Ordering::Relaxed) {
        let jobs = (0..at_once).map(|_| Submit::new(queue.clone(), vec![b'x'; BODY_BYTES]));
        for result in client.submit_all(jobs).await {
            match result {
                Ok(_) => seen.acknowledged.fetch_add(1, Ordering::Relaxed),
                Err(_) => seen.failed.fetch_add(1, Ordering::Relaxed),
            };
        }
    }
}

const QUEUE: &str = "bench";
const BODY_BYTES: usize = 200;
/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(30);
const DRAIN_PATIENCE: Duration = Duration::from_secs(60);
/// For how long calls are watched while a leader leaves.
const GRACEFUL_LOOK: Duration = Duration::from_secs(2);
