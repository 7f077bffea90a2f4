//! `synod queue`: jobs and queues from the command line.

mod show;
mod work;

use std::io::{BufRead as _, Read as _};
use std::process::ExitCode;
use std::time::Duration;

use anstream::eprintln;
use bytes::Bytes;
use clap::Subcommand;
use http::Method;
use synod_core::jobs::{
    Backoff, CancelGuard, DeadLetters, Dedupe, JobId, Op, QueueName, QueueSettings, Rate, Reply, Submit,
    UserKey,
};
use synod_queue::link::LinkConfig;
use synod_queue::{BearerToken, Client, ClientError};
use synod_store::http_client::call_json;

use crate::inspect::{AskArgs, TIMEOUT, fail, json, print};
use crate::jobs::QueueJson;
use crate::terminal::{RED, with_runtime};

/// What to do with the job queue.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Queue {
    /// Make a queue, or say anew how it treats its jobs. Queues come by themselves; this is for those with settings.
    Create(Box<CreateArgs>),
    /// Submit a job, or one for each line of the standard input.
    Submit(Box<SubmitArgs>),
    /// Run a command for each job of a queue: its body is the standard input, and exit code 0 means done.
    Work(Box<work::WorkArgs>),
    /// Show the queues in numbers.
    Stats(show::StatsArgs),
    /// Show the next job of a queue, without taking it.
    Peek {
        /// The queue.
        queue: QueueName,
        /// In which state.
        #[arg(long, value_enum, default_value = "ready")]
        state: show::State,
        #[command(flatten)]
        at: At,
    },
    /// Look after jobs that were put aside.
    #[command(subcommand)]
    Dlq(Dlq),
    /// Give out no jobs of a queue, until it is resumed or for a while.
    Pause {
        /// The queue.
        queue: QueueName,
        /// For so long.
        #[arg(long, value_name = "SECONDS")]
        seconds: Option<f64>,
        #[command(flatten)]
        at: At,
    },
    /// Take no new jobs, of one queue or of all, until it is resumed.
    Drain {
        /// The queue. Without one, all.
        queue: Option<QueueName>,
        #[command(flatten)]
        at: At,
    },
    /// End pause and drain.
    Resume {
        /// The queue. Without one, what was drained as a whole.
        queue: Option<QueueName>,
        #[command(flatten)]
        at: At,
    },
    /// Take a job back that nobody holds.
    Cancel {
        /// The job.
        #[arg(value_parser = job_id)]
        job: JobId,
        /// Even if somebody holds it.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        at: At,
    },
}

/// What to do with jobs that were put aside.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Dlq {
    /// List them, the longest dead first.
    List {
        /// The queue.
        queue: QueueName,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        count: u32,
        #[command(flatten)]
        at: At,
    },
    /// Make them ready again, the longest dead first.
    Redrive {
        /// The queue.
        queue: QueueName,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        count: u32,
        #[command(flatten)]
        at: At,
    },
}

/// Where the queue is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct At {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Which group of queues.
    #[arg(long, default_value_t = 0)]
    pub(crate) group: u16,
}

/// Arguments of `synod queue create`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// The queue.
    queue: QueueName,
    /// Most jobs in it.
    #[arg(long, value_name = "JOBS")]
    jobs_max: Option<u64>,
    /// Most bytes of bodies in it.
    #[arg(long, value_name = "BYTES")]
    bytes_max: Option<u64>,
    /// Most jobs in workers' hands.
    #[arg(long, value_name = "JOBS")]
    inflight_max: Option<u32>,
    /// Give out so many jobs a second at most.
    #[arg(long, value_name = "JOBS")]
    rate: Option<u32>,
    /// How long a worker may hold a job.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    ttr: f64,
    /// How often a job is tried; 0 is for ever.
    #[arg(long, value_name = "TRIES", default_value_t = 0)]
    max_attempts: u32,
    /// How long a job waits after the first try that failed; twice as long after each further one.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    backoff: f64,
    /// How long it waits at most.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600.0)]
    backoff_max: f64,
    /// Drop jobs that were tried as often as they may be, instead of keeping them aside.
    #[arg(long)]
    drop_dead: bool,
    /// A try whose worker went down counts.
    #[arg(long)]
    worker_down_counts: bool,
    #[command(flatten)]
    at: At,
}

/// Arguments of `synod queue submit`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SubmitArgs {
    /// The queue.
    queue: QueueName,
    /// The body of the job. Without it, what comes on the standard input.
    body: Option<String>,
    /// Every line of the standard input is a job.
    #[arg(long, conflicts_with = "body")]
    lines: bool,
    /// Smaller goes first.
    #[arg(long, default_value_t = 0)]
    priority: u32,
    /// Not before so long from now.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    delay: f64,
    /// How long a worker may hold it; as the queue says otherwise.
    #[arg(long, value_name = "SECONDS")]
    ttr: Option<f64>,
    /// How often it is tried, 0 for ever; as the queue says otherwise.
    #[arg(long, value_name = "TRIES")]
    max_attempts: Option<u32>,
    /// Jobs of one group are done one after the other.
    #[arg(long, value_name = "NAME")]
    fifo: Option<String>,
    /// It is dropped if nobody took it for so long.
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<f64>,
    /// Not taken if a job with this key was taken within the window.
    #[arg(long, value_name = "KEY")]
    dedupe: Option<String>,
    /// How long a key is remembered.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    dedupe_window: f64,
    #[command(flatten)]
    at: At,
}

pub(crate) fn run(command: &Queue) -> ExitCode {
    match command {
        Queue::Create(args) => with_client(&args.at, |client| create(args, client)),
        Queue::Submit(args) => with_client(&args.at, |client| submit(args, client)),
        Queue::Work(args) => with_client(args.at(), |client| work::work(args, client)),
        Queue::Stats(args) => show::stats(args),
        Queue::Peek { queue, state, at } => {
            with_client(at, |client| show::peek(queue, *state, at.ask.json, client))
        }
        Queue::Dlq(Dlq::List { queue, count, at }) => {
            with_client(at, |client| show::list_dead(queue, *count, at.ask.json, client))
        }
        Queue::Dlq(Dlq::Redrive { queue, count, at }) => with_client(at, |client| async move {
            let count = client.redrive(queue.as_str(), *count).await?;
            Ok(tell(at, &serde_json::json!({ "redriven": count }), || {
                format!("{count} jobs are ready again")
            }))
        }),
        Queue::Pause { queue, seconds, at } => {
            let op = Op::Pause { queue: queue.clone(), millis: seconds.map(millis) };
            with_client(at, |client| simply(at, op, "paused", client))
        }
        Queue::Drain { queue, at } => {
            let op = Op::Drain { queue: queue.clone() };
            with_client(at, |client| simply(at, op, "takes no new jobs", client))
        }
        Queue::Resume { queue, at } => {
            let op = Op::Resume { queue: queue.clone() };
            with_client(at, |client| simply(at, op, "resumed", client))
        }
        Queue::Cancel { job, force, at } => {
            let guard = if *force { CancelGuard::Any } else { CancelGuard::Idle };
            let op = Op::Cancel { job: *job, guard };
            with_client(at, |client| simply(at, op, "cancelled", client))
        }
    }
}

/// Runs a command with a client of the queue.
pub(crate) fn with_client<'a, F>(at: &'a At, command: impl FnOnce(Client) -> F + 'a) -> ExitCode
where
    F: Future<Output = Result<ExitCode, ClientError>> + 'a,
{
    with_link(at, |config| command(Client::new(config)))
}

/// Runs a command that makes its own way to the queue.
pub(crate) fn with_link<'a, F>(at: &'a At, command: impl FnOnce(LinkConfig) -> F + 'a) -> ExitCode
where
    F: Future<Output = Result<ExitCode, ClientError>> + 'a,
{
    let token = match at.ask.token() {
        Ok(token) => token,
        Err(code) => return code,
    };
    with_runtime(async move {
        let url = format!("{}/v1/queue", at.ask.api);
        let shown: QueueJson = match call_json(Method::GET, &url, None, token.as_ref(), TIMEOUT).await {
            Ok(shown) => shown,
            Err(error) => return fail(&error),
        };
        let groups = shown.groups.len();
        if usize::from(at.group) >= groups {
            eprintln!("{RED}error:{RED:#} there is no group {}; there are {groups}, from 0 on", at.group);
            return ExitCode::from(crate::terminal::USAGE_ERROR);
        }
        let config = LinkConfig {
            group: at.group,
            token: BearerToken::new(token.as_ref().map(synod_store::admin::AdminToken::text)),
            name: "synod queue".to_owned(),
            ..LinkConfig::new(shown.peers)
        };
        match command(config).await {
            Ok(code) => code,
            Err(error) => {
                eprintln!("{RED}error:{RED:#} {error}");
                ExitCode::FAILURE
            }
        }
    })
}

async fn create(args: &CreateArgs, client: Client) -> Result<ExitCode, ClientError> {
    let millis32 = |seconds: f64| u32::try_from(millis(seconds)).unwrap_or(u32::MAX);
    let backoff = Backoff { base_ms: millis32(args.backoff), cap_ms: millis32(args.backoff_max) };
    let settings = QueueSettings {
        jobs_max: args.jobs_max,
        bytes_max: args.bytes_max,
        inflight_max: args.inflight_max,
        rate: args.rate.map(|per_second| Rate { per_second, burst: per_second.max(1) }),
        ttr_ms: millis(args.ttr),
        max_attempts: args.max_attempts,
        backoff: if args.backoff > 0.0 { backoff } else { Backoff::NONE },
        dead_letters: if args.drop_dead { DeadLetters::Drop } else { DeadLetters::Keep },
        worker_down_counts: args.worker_down_counts,
    };
    client.do_op(Op::QueueSet { queue: args.queue.clone(), settings: Some(Box::new(settings)) }).await?;
    let name = args.queue.as_str();
    Ok(tell(&args.at, &serde_json::json!({ "queue": name }), || format!("queue {name} is there")))
}

async fn submit(args: &SubmitArgs, client: Client) -> Result<ExitCode, ClientError> {
    let with_body = |body: Bytes| -> Result<Submit, ClientError> {
        let key = |text: &Option<String>| {
            text.as_ref().map(|text| UserKey::new(Bytes::copy_from_slice(text.as_bytes()))).transpose()
        };
        let dedupe = key(&args.dedupe)?.map(|key| Dedupe { key, window_ms: millis(args.dedupe_window) });
        Ok(Submit {
            priority: args.priority,
            delay_ms: millis(args.delay),
            ttr_ms: args.ttr.map(millis),
            max_attempts: args.max_attempts,
            group: key(&args.fifo)?,
            ttl_ms: args.ttl.map(millis),
            dedupe,
            ..Submit::new(args.queue.clone(), body)
        })
    };
    if args.lines {
        return submit_lines(args, &client, with_body).await;
    }
    let body = match &args.body {
        Some(body) => Bytes::copy_from_slice(body.as_bytes()),
        None => {
            let mut body = Vec::new();
            if let Err(error) = std::io::stdin().take(STDIN_BYTES_MAX).read_to_end(&mut body) {
                eprintln!("{RED}error:{RED:#} the standard input cannot be read: {error}");
                return Ok(ExitCode::FAILURE);
            }
            body.into()
        }
    };
    let reply = client.do_op(Op::Submit(with_body(body)?)).await?;
    let (job, is_new) = match reply {
        Reply::Submitted { job } => (job, true),
        Reply::Duplicate { job } => (job, false),
        _ => return Ok(ExitCode::FAILURE),
    };
    let shown = serde_json::json!({ "job": job, "is_new": is_new });
    Ok(tell(&args.at, &shown, || match is_new {
        true => job.to_string(),
        false => format!("{job} (it was there already)"),
    }))
}

/// Submits a job for each line, a window of them at a time. What was refused is named by its line.
async fn submit_lines(
    args: &SubmitArgs,
    client: &Client,
    with_body: impl Fn(Bytes) -> Result<Submit, ClientError>,
) -> Result<ExitCode, ClientError> {
    let mut lines = std::io::stdin().lock().lines();
    let (mut taken, mut refused, mut number) = (0_u64, 0_u64, 0_u64);
    loop {
        let mut jobs = Vec::new();
        for line in lines.by_ref().take(LINES_AT_ONCE) {
            match line {
                Ok(line) => jobs.push(with_body(line.into_bytes().into())?),
                Err(error) => {
                    eprintln!("{RED}error:{RED:#} the standard input cannot be read: {error}");
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
        if jobs.is_empty() {
            break;
        }
        for result in client.submit_all(jobs).await {
            number += 1;
            match result {
                Ok(_) => taken += 1,
                Err(error) => {
                    refused += 1;
                    eprintln!("{RED}error:{RED:#} line {number}: {error}");
                }
            }
        }
    }
    let shown = serde_json::json!({ "submitted": taken, "refused": refused });
    tell(&args.at, &shown, || format!("{taken} jobs were submitted"));
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn simply(at: &At, op: Op, what: &'static str, client: Client) -> Result<ExitCode, ClientError> {
    client.do_op(op).await?;
    Ok(tell(at, &serde_json::json!({ "done": what }), || what.to_owned()))
}

fn tell(at: &At, shown: &serde_json::Value, text: impl FnOnce() -> String) -> ExitCode {
    if at.ask.json { print(&json(shown)) } else { print(&text()) }
}

/// Says why a job is where it is: `synod explain job`.
pub(crate) fn explain(job: JobId, ask: &AskArgs) -> ExitCode {
    let at = At { ask: ask.clone(), group: job.group() };
    with_client(&at, |client| show::explain(job, ask.json, client))
}

/// The number of a job.
pub(crate) fn job_id(text: &str) -> Result<JobId, String> {
    text.parse().map(JobId::new).map_err(|_| "a job is a number".to_owned())
}

fn millis(seconds: f64) -> u64 {
    Duration::try_from_secs_f64(seconds.max(0.0))
        .map_or(u64::MAX, |duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Longer bodies than the queue takes need not be read.
const STDIN_BYTES_MAX: u64 = 65 << 20;
/// Lines whose jobs are on their way at once.
const LINES_AT_ONCE: usize = 4_096;
