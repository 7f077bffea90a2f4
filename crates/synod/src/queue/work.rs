//! `synod queue work`: a command for each job.

use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anstream::eprintln;
use bytes::Bytes;
use synod_core::jobs::QueueName;
use synod_queue::{Client, ClientError, Job, Verdict, Worker};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Notify;

use super::At;
use crate::terminal::{GREEN, RED};

/// Arguments of `synod queue work`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WorkArgs {
    /// The queue.
    queue: QueueName,
    /// Further queues.
    #[arg(long, value_name = "QUEUE")]
    also: Vec<QueueName>,
    /// How many jobs at a time.
    #[arg(long, default_value_t = 1)]
    concurrency: u32,
    /// Leave after so many jobs.
    #[arg(long, value_name = "JOBS")]
    count: Option<u64>,
    /// How long begun jobs may take after Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    leave_patience: u64,
    #[command(flatten)]
    at: At,
    /// The command and its arguments. It gets `SYNOD_JOB`, `SYNOD_QUEUE`, `SYNOD_ATTEMPT` and `SYNOD_FENCE` in its
    /// environment.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl WorkArgs {
    pub(super) const fn at(&self) -> &At {
        &self.at
    }
}

/// Works until it is interrupted, or has done as much as it was to do.
pub(super) async fn work(args: &WorkArgs, client: Client) -> Result<ExitCode, ClientError> {
    let mut worker = Worker::new(&client).concurrency(args.concurrency.max(1)).queue(args.queue.as_str())?;
    for queue in &args.also {
        worker = worker.queue(queue.as_str())?;
    }
    let command = Arc::new(args.command.clone());
    let (done, enough) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let count = args.count.unwrap_or(u64::MAX);
    let (counted, told) = (Arc::clone(&done), Arc::clone(&enough));
    let running = worker
        .start(move |job| {
            let (command, counted, told) = (Arc::clone(&command), Arc::clone(&counted), Arc::clone(&told));
            async move {
                let verdict = run(&command, &job).await;
                let (style, word) = match verdict {
                    Verdict::Done => (GREEN, "done"),
                    Verdict::Retry(_) | Verdict::Bury => (RED, "failed"),
                };
                eprintln!("{style}{word}{style:#} job {} of {}, try {}", job.id, job.queue, job.attempt);
                if counted.fetch_add(1, Ordering::Relaxed) + 1 >= count {
                    told.notify_one();
                }
                verdict
            }
        })
        .await?;
    tokio::select! {
        () = enough.notified() => {}
        _ = tokio::signal::ctrl_c() => eprintln!("leaving: what is begun comes to its end"),
    }
    running.stop(Duration::from_secs(args.leave_patience)).await;
    Ok(ExitCode::SUCCESS)
}

/// Runs the command for one job. It dies with its job.
async fn run(command: &[String], job: &Job) -> Verdict {
    let Some((program, arguments)) = command.split_first() else { return Verdict::Bury };
    let spawned = tokio::process::Command::new(program)
        .args(arguments)
        .env("SYNOD_JOB", job.id.to_string())
        .env("SYNOD_QUEUE", job.queue.as_str())
        .env("SYNOD_ATTEMPT", job.attempt.to_string())
        .env("SYNOD_FENCE", job.fence.to_string())
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            eprintln!("{RED}error:{RED:#} {program} cannot be run: {error}");
            return Verdict::Retry(Some(SPAWN_PAUSE));
        }
    };
    let (stdin, body): (_, Bytes) = (child.stdin.take(), job.body.clone());
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A command need not read its input.
            drop(stdin.write_all(&body).await);
        }
    };
    let ((), status) = tokio::join!(feed, child.wait());
    match status {
        Ok(status) if status.success() => Verdict::Done,
        _ => Verdict::Retry(None),
    }
}

/// How long a job waits whose command could not be run at all.
const SPAWN_PAUSE: Duration = Duration::from_secs(1);
