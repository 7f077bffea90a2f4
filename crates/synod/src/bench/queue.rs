//! `synod bench queue`: jobs through the native protocol, or through that of beanstalkd.
//!
//! ENQUEUE submits jobs; LIFE submits them, has them delivered to a worker and acknowledges them, and counts those that came
//! to their end. A row keeps so many jobs under way at a time: a job of ENQUEUE until it is on the disks, one of LIFE until
//! its acknowledgement is. The latency is that of a submission. Every row has a queue of its own, and leaves it empty.

mod beanstalk;
mod native;

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anstream::eprintln;
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::inspect::{json, print};
use crate::queue::{At, with_link};
use crate::terminal::{RED, table, with_runtime};

/// Arguments of `synod bench queue`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A server that speaks beanstalkd's protocol, instead of the native one.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "api")]
    beanstalk: Option<String>,
    /// The size of a job in bytes.
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// How many jobs are under way at a time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64, 1024],
        value_parser = clap::builder::RangedU64ValueParser::<u32>::new().range(1..=65_536))]
    in_flight: Vec<u32>,
    /// How long a row runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    seconds: f64,
    #[command(flatten)]
    at: At,
}

/// What a row does with its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Operation {
    Enqueue,
    Life,
}

impl Operation {
    /// How many durable operations a job is: submit, or submit, assign and acknowledge.
    const fn per_job(self) -> u32 {
        match self {
            Self::Enqueue => 1,
            Self::Life => 3,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Enqueue => "ENQUEUE",
            Self::Life => "LIFE",
        })
    }
}

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    operation: Operation,
    bytes: usize,
    in_flight: u32,
    jobs_per_second: f64,
    operations_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    jobs: u64,
    errors: u64,
    /// What went wrong, and how often.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<String, u64>,
}

/// What a row is to do.
#[derive(Clone, Debug)]
struct Load {
    operation: Operation,
    in_flight: u32,
    body: Bytes,
    /// The queue of this row alone.
    queue: String,
    runs_for: Duration,
}

impl Load {
    /// When it is to end, if it begins now.
    fn until(&self) -> Instant {
        Instant::now() + self.runs_for
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match &args.beanstalk {
        Some(server) => with_runtime(async {
            let rows = measure(args, |load| beanstalk::run(server.clone(), load)).await;
            conclude(args, &rows)
        }),
        None => with_link(&args.at, |mut config| async move {
            "synod bench".clone_into(&mut config.name);
            let rows = measure(args, |load| native::run(config.clone(), load)).await;
            Ok(conclude(args, &rows))
        }),
    }
}

async fn measure<F: Future<Output = Tally>>(args: &Args, run: impl Fn(Load) -> F) -> Vec<Row> {
    let mut rows = Vec::new();
    let body: Bytes = std::iter::repeat_with(fastrand::alphanumeric)
        .map(|letter| letter as u8)
        .take(args.bytes)
        .collect::<Vec<_>>()
        .into();
    for operation in [Operation::Enqueue, Operation::Life] {
        for in_flight in &args.in_flight {
            let load = Load {
                operation,
                in_flight: *in_flight,
                body: body.clone(),
                queue: format!("bench-{:016x}", fastrand::u64(..)),
                runs_for: Duration::try_from_secs_f64(args.seconds).unwrap_or_default(),
            };
            let row = run(load).await.into_row(operation, args.bytes, *in_flight);
            eprintln!(
                "{:<7} {:>5} in flight: {:>9.1} jobs/s {:>9.1} operations/s, p50 {:.2} ms, p99 {:.2} ms, {} errors",
                row.operation,
                row.in_flight,
                row.jobs_per_second,
                row.operations_per_second,
                row.p50_ms,
                row.p99_ms,
                row.errors
            );
            rows.push(row);
        }
    }
    rows
}

fn conclude(args: &Args, rows: &[Row]) -> ExitCode {
    let printed = print(&if args.at.ask.json { json(&rows) } else { show(rows) });
    for row in rows {
        for (reason, count) in &row.failures {
            eprintln!(
                "{RED}error:{RED:#} {} with {} in flight: {count} times: {reason}",
                row.operation, row.in_flight
            );
        }
    }
    if rows.iter().all(|row| row.errors == 0) { printed } else { ExitCode::FAILURE }
}

fn show(rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| {
        vec![
            row.operation.to_string(),
            row.bytes.to_string(),
            row.in_flight.to_string(),
            format!("{:.1}", row.jobs_per_second),
            format!("{:.1}", row.operations_per_second),
            format!("{:.2}", row.p50_ms),
            format!("{:.2}", row.p99_ms),
            row.errors.to_string(),
        ]
    });
    let head = ["OPERATION", "BYTES", "IN FLIGHT", "JOBS/S", "OPERATIONS/S", "P50 MS", "P99 MS", "ERRORS"];
    table(&head, &lines.collect::<Vec<_>>())
}

/// Takes the place of a job, and waits for one only if there is nothing else to wait for. False: there is none now.
async fn take_place(places: &Semaphore, waits: bool) -> bool {
    let place = match waits {
        true => places.acquire().await.ok(),
        false => places.try_acquire().ok(),
    };
    place.map(tokio::sync::SemaphorePermit::forget).is_some()
}

/// What a row, or a part of it, saw.
#[derive(Debug, Default)]
struct Tally {
    /// How long each submission took.
    submissions: Vec<Duration>,
    /// Jobs that came to their end.
    jobs: u64,
    /// How long it took until the last one did.
    took: Duration,
    failures: BTreeMap<String, u64>,
}

impl Tally {
    /// Notes that something went wrong.
    fn fail(&mut self, reason: impl fmt::Display) {
        let reason = reason.to_string();
        // As many kinds as anybody would read.
        let is_known = self.failures.contains_key(&reason) || self.failures.len() < FAILURES_NAMED_MAX;
        let name = if is_known { reason } else { "something else".to_owned() };
        *self.failures.entry(name).or_default() += 1;
    }

    fn add(&mut self, other: Self) {
        self.submissions.extend(other.submissions);
        self.jobs += other.jobs;
        self.took = self.took.max(other.took);
        for (reason, count) in other.failures {
            *self.failures.entry(reason).or_default() += count;
        }
    }

    fn into_row(mut self, operation: Operation, bytes: usize, in_flight: u32) -> Row {
        self.submissions.sort_unstable();
        let at = |part: f64| {
            let index = (self.submissions.len().saturating_sub(1) as f64 * part).round() as usize;
            self.submissions.get(index).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
        };
        let jobs_per_second = if self.jobs == 0 { 0.0 } else { self.jobs as f64 / self.took.as_secs_f64() };
        Row {
            operation,
            bytes,
            in_flight,
            jobs_per_second,
            operations_per_second: jobs_per_second * f64::from(operation.per_job()),
            p50_ms: at(0.50),
            p99_ms: at(0.99),
            jobs: self.jobs,
            errors: self.failures.values().sum(),
            failures: self.failures,
        }
    }
}

/// A number in so many parts, as even as they can be.
fn split(whole: u32, parts: u32) -> Vec<u32> {
    (0..parts).map(|part| whole / parts + u32::from(part < whole % parts)).collect()
}

/// How many kinds of failures of a row are named.
const FAILURES_NAMED_MAX: usize = 16;
/// How long what a row has begun may take to end.
const PATIENCE: Duration = Duration::from_secs(30);
