//! Messages between two processes on this machine, beside the same exchange between two protoactor-go processes.
//!
//!     cargo bench -p synod-cluster --bench remote
//!     cargo bench -p synod-cluster --bench remote -- --messages 200000 --rounds 3 --payload 64
//!
//! Both languages speak the protocol of `interop/go/cmd/bench`: an actor `sink` counts, an actor `echo` answers. Their
//! runs alternate, so that a busy machine slows both; the ratio is between the medians. Without Go on this machine only
//! the numbers of this side are printed.

#[path = "support/processes.rs"]
mod processes;

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use processes::{ALLOCATIONS, Failure, Server, build_go};
use serde::Deserialize;
use synod_cluster::remote::{Actor, ActorContext, Message, Pid, Remote, RemoteConfig};
use synod_cluster::{EventStream, MonotonicClock};
use tokio::sync::mpsc;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments.first().map(String::as_str) {
        Some("serve") => runtime.block_on(serve()),
        Some("drive") => runtime.block_on(drive(&Load::parse(&arguments[1..])?)),
        _ => compare(&Load::parse(&arguments)?),
    }
}

/// What is exchanged.
#[derive(Clone, Debug)]
struct Load {
    to: String,
    mode: String,
    messages: u64,
    payload: usize,
    concurrency: usize,
    rounds: usize,
}

impl Load {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut load = Self {
            to: String::new(),
            mode: String::new(),
            messages: 500_000,
            payload: 64,
            concurrency: 256,
            rounds: 3,
        };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} needs a value", pair[0]).into()) };
            match name.as_str() {
                "--to" => load.to.clone_from(value),
                "--mode" => load.mode.clone_from(value),
                "--messages" => load.messages = value.parse()?,
                "--payload" => load.payload = value.parse()?,
                "--concurrency" => load.concurrency = value.parse()?,
                "--rounds" => load.rounds = value.parse()?,
                other => return Err(format!("unknown setting {other}").into()),
            }
        }
        Ok(load)
    }

    /// Requests wait for each other, so fewer of them take as long.
    fn of_mode(&self, mode: &str, to: &str) -> Self {
        let messages = if mode == "ask" { self.messages / 4 } else { self.messages };
        Self { mode: mode.into(), to: to.into(), messages: messages.max(1), ..self.clone() }
    }

    fn arguments(&self) -> [String; 10] {
        let Self { to, mode, messages, payload, concurrency, .. } = self;
        [
            "--to".into(),
            to.clone(),
            "--mode".into(),
            mode.clone(),
            "--messages".into(),
            messages.to_string(),
            "--payload".into(),
            payload.to_string(),
            "--concurrency".into(),
            concurrency.to_string(),
        ]
    }
}

/// What a driver of either language prints.
#[derive(Clone, Debug, Deserialize)]
struct Figures {
    per_second: f64,
    bytes_out_per_message: f64,
    bytes_in_per_message: f64,
    allocs_per_message: f64,
    server_allocs_per_message: f64,
}

/// Runs both sides, alternating, and prints a table.
fn compare(load: &Load) -> Result<(), Failure> {
    let own = std::env::current_exe()?;
    let go = build_go("bench")?;
    let mut table = vec![
        "mode   side   messages/s (median)   ratio   bytes out/in per message   allocations driver/server"
            .to_owned(),
    ];
    for mode in ["tell", "echo", "ask"] {
        let mut figures: [Vec<Figures>; 2] = Default::default();
        for _ in 0..load.rounds {
            figures[0].push(run_pair(&own, &["serve"], &["drive"], load, mode)?);
            if let Some(go) = &go {
                figures[1].push(run_pair(
                    go,
                    &["serve", "--port", "0"],
                    &["drive", "--port", "0"],
                    load,
                    mode,
                )?);
            }
        }
        let medians = figures.map(|mut of_side| {
            of_side.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
            let middle = of_side.len() / 2;
            of_side.into_iter().nth(middle)
        });
        let base = medians[1].as_ref().map(|go| go.per_second);
        for (side, median) in ["synod", "go"].into_iter().zip(&medians) {
            let Some(median) = median else { continue };
            let ratio = base.map_or_else(|| "-".into(), |base| format!("{:.2}", median.per_second / base));
            table.push(format!(
                "{mode:<6} {side:<6} {:>19.0}   {ratio:>5}   {:>11.1} / {:<10.1}   {:>10.2} / {:.2}",
                median.per_second,
                median.bytes_out_per_message,
                median.bytes_in_per_message,
                median.allocs_per_message,
                median.server_allocs_per_message,
            ));
        }
    }
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{} messages of {} bytes ({} for ask, {} at a time), {} rounds each, two processes on loopback",
        load.messages,
        load.payload,
        load.of_mode("ask", "").messages,
        load.concurrency,
        load.rounds,
    )?;
    for line in table {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// One server process, one driver process, one exchange.
fn run_pair(
    program: &Path,
    serve: &[&str],
    drive: &[&str],
    load: &Load,
    mode: &str,
) -> Result<Figures, Failure> {
    let server = Server::start(program, serve)?;
    let load = load.of_mode(mode, &server.address);
    let output =
        Command::new(program).args(drive).args(load.arguments()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("the driver {} failed: {}", program.display(), output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

async fn start() -> Result<Remote, Failure> {
    let bind = SocketAddr::from(([127, 0, 0, 1], 0));
    // As in Go, where nothing is refused: the mailbox waits for the actor, the sender for the mailbox.
    let config = RemoteConfig { mailbox_patience: Duration::from_secs(60), ..RemoteConfig::new(bind) };
    let remote = Remote::bind(config, EventStream::default(), MonotonicClock::start()).await?;
    remote.open(&format!("bench#{}", std::process::id()));
    Ok(remote)
}

async fn serve() -> Result<(), Failure> {
    let remote = start().await?;
    remote.spawn_named("sink", Sink { count: 0 })?;
    remote.spawn_named("echo", Echo)?;
    writeln!(
        std::io::stdout(),
        "{}",
        serde_json::json!({"event": "ready", "address": remote.authority().as_str()})
    )?;
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    Ok(())
}

struct Sink {
    count: u64,
}

impl Actor for Sink {
    async fn receive(&mut self, context: &mut ActorContext, message: Message) {
        if message.decode::<Bytes>().is_ok() {
            self.count += 1;
            return;
        }
        let answer = match message.decode::<String>().unwrap_or_default().as_str() {
            "reset" => {
                self.count = 0;
                "ok".to_owned()
            }
            "count" => self.count.to_string(),
            _ => stats(context.remote()),
        };
        context.respond(Message::new(&answer)).ok();
    }
}

struct Echo;

impl Actor for Echo {
    async fn receive(&mut self, context: &mut ActorContext, message: Message) {
        if let (Ok(content), Some(sender)) = (message.decode::<Bytes>(), &message.sender) {
            // As fast as the connection takes it, and no faster: a dropped answer would be waited for in vain.
            context.remote().feed(sender, Message::new(&content)).await.ok();
        }
    }
}

fn stats(remote: &Remote) -> String {
    let counters = remote.counters();
    serde_json::json!({
        "mallocs": ALLOCATIONS.load(Ordering::Relaxed),
        "written": counters.bytes_sent(),
        "read": counters.bytes_received(),
    })
    .to_string()
}

async fn drive(load: &Load) -> Result<(), Failure> {
    let remote = start().await?;
    let sink = Pid::new(load.to.as_str(), "sink");
    let control = async |command: &str| -> Result<String, Failure> {
        Ok(remote.ask(&sink, Message::new(&command.to_owned()), Duration::from_secs(30)).await?)
    };
    exchange(&remote, load, &control).await?;
    let server_before: serde_json::Value = serde_json::from_str(&control("stats").await?)?;
    let before = (
        ALLOCATIONS.load(Ordering::Relaxed),
        remote.counters().bytes_sent(),
        remote.counters().bytes_received(),
    );
    let started = Instant::now();
    exchange(&remote, load, &control).await?;
    let seconds = started.elapsed().as_secs_f64();
    let after = (
        ALLOCATIONS.load(Ordering::Relaxed),
        remote.counters().bytes_sent(),
        remote.counters().bytes_received(),
    );
    let server_after: serde_json::Value = serde_json::from_str(&control("stats").await?)?;
    let messages = load.messages as f64;
    let server_mallocs = |stats: &serde_json::Value| stats["mallocs"].as_f64().unwrap_or_default();
    let figures = serde_json::json!({
        "lang": "rust",
        "mode": load.mode,
        "messages": load.messages,
        "seconds": seconds,
        "per_second": messages / seconds,
        "bytes_out_per_message": (after.1 - before.1) as f64 / messages,
        "bytes_in_per_message": (after.2 - before.2) as f64 / messages,
        "allocs_per_message": (after.0 - before.0) as f64 / messages,
        "server_allocs_per_message": (server_mallocs(&server_after) - server_mallocs(&server_before)) / messages,
    });
    writeln!(std::io::stdout(), "{figures}")?;
    Ok(())
}

async fn exchange(
    remote: &Remote,
    load: &Load,
    control: &impl AsyncFn(&str) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let content = Bytes::from(vec![7; load.payload]);
    match load.mode.as_str() {
        "tell" => {
            control("reset").await?;
            let sink = Pid::new(load.to.as_str(), "sink");
            for _ in 0..load.messages {
                remote.feed(&sink, Message::new(&content)).await?;
            }
            while control("count").await?.parse::<u64>()? < load.messages {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        "echo" => {
            let (done, mut finished) = mpsc::unbounded_channel();
            let counter = remote.spawn(Counter { left: load.messages, done })?;
            let echo = Pid::new(load.to.as_str(), "echo");
            for _ in 0..load.messages {
                remote.feed(&echo, Message::new(&content).with_sender(counter.clone())).await?;
            }
            finished.recv().await.ok_or("the counter ended")?;
            remote.stop(&counter)?;
        }
        "ask" => {
            let mut asking = tokio::task::JoinSet::new();
            let each = load.messages / load.concurrency as u64;
            for number in 0..load.concurrency as u64 {
                let (remote, content) = (remote.clone(), content.clone());
                let echo = Pid::new(load.to.as_str(), "echo");
                let count = each + u64::from(number < load.messages % load.concurrency as u64);
                asking.spawn(async move {
                    for _ in 0..count {
                        let answer: Bytes =
                            remote.ask(&echo, Message::new(&content), Duration::from_secs(30)).await?;
                        assert_eq!(answer.len(), content.len());
                    }
                    Ok::<_, Failure>(())
                });
            }
            while let Some(asked) = asking.join_next().await {
                asked??;
            }
        }
        other => return Err(format!("unknown mode {other:?}: it is tell, echo or ask").into()),
    }
    Ok(())
}

/// Counts answers.
struct Counter {
    left: u64,
    done: mpsc::UnboundedSender<()>,
}

impl Actor for Counter {
    async fn receive(&mut self, _: &mut ActorContext, message: Message) {
        if message.decode::<Bytes>().is_ok() {
            self.left -= 1;
            if self.left == 0 {
                self.done.send(()).ok();
            }
        }
    }
}
