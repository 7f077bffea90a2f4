//! Calls to grains, beside the same calls between protoactor-go members.
//!
//!     cargo bench -p synod-cluster --bench grains
//!     cargo bench -p synod-cluster --bench grains -- --calls 50000 --rounds 3 --payload 64 --grains 1000000
//!
//! Two members on loopback: one hosts grains, the other calls them, each caller its own grain, one call after another. Then
//! the same on one member that hosts what it calls. Then grains that nobody calls any more, for the memory they take. Both
//! languages follow `interop/go/cmd/grainbench`, and their runs alternate, so that a busy machine slows both; what is shown
//! are medians of the rounds, and ratios between them. Without Go on this machine only the numbers of this side are printed.

#[path = "support/processes.rs"]
mod processes;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use processes::{ALLOCATIONS, Failure, Server, build_go};
use prost::Message as _;
use serde::Deserialize;
use synod_cluster::grains::{Grain, GrainContext, GrainError, GrainKind, GrainRef};
use synod_cluster::remote::{Message, RemoteConfig};
use synod_cluster::{Cluster, ClusterConfig, ClusterProvider};

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let load = |arguments: &[String]| Load::parse(arguments);
    match arguments.first().map(String::as_str) {
        Some("serve") => runtime.block_on(serve()),
        Some("drive") => runtime.block_on(drive(&load(&arguments[1..])?, false)),
        Some("local") => runtime.block_on(drive(&load(&arguments[1..])?, true)),
        Some("idle") => runtime.block_on(idle(&load(&arguments[1..])?)),
        _ => compare(&load(&arguments)?),
    }
}

/// What is called, how often and by how many.
#[derive(Clone, Debug)]
struct Load {
    to: String,
    calls: usize,
    payload: usize,
    concurrency: usize,
    grains: usize,
    rounds: usize,
}

impl Load {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut load = Self {
            to: String::new(),
            calls: 100_000,
            payload: 64,
            concurrency: 64,
            grains: 1_000_000,
            rounds: 3,
        };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} needs a value", pair[0]).into()) };
            match name.as_str() {
                "--to" => load.to.clone_from(value),
                "--calls" => load.calls = value.parse()?,
                "--payload" => load.payload = value.parse()?,
                "--concurrency" => load.concurrency = value.parse()?,
                "--grains" => load.grains = value.parse()?,
                "--rounds" => load.rounds = value.parse()?,
                other => return Err(format!("unknown setting {other}").into()),
            }
        }
        Ok(load)
    }

    /// One caller waits for every answer, so fewer calls take as long.
    fn with_concurrency(&self, concurrency: usize) -> Self {
        let calls = if concurrency == 1 { self.calls / 5 } else { self.calls };
        Self { concurrency, calls: calls.max(1), ..self.clone() }
    }

    fn arguments(&self) -> Vec<String> {
        let numbers = [
            ("--calls", self.calls),
            ("--payload", self.payload),
            ("--concurrency", self.concurrency),
            ("--grains", self.grains),
        ];
        numbers.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]).collect()
    }
}

/// What a driver of either language prints.
#[derive(Clone, Debug, Deserialize)]
struct Figures {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    allocs_per_call: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Remote,
    Local,
}

/// Runs both sides, alternating, and prints a table.
fn compare(load: &Load) -> Result<(), Failure> {
    let own = std::env::current_exe()?;
    let go = build_go("grainbench")?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "calls with {} bytes each way, medians of {} rounds; remote is two processes on loopback, local is one",
        load.payload, load.rounds
    )?;
    writeln!(out, "place  in flight   side     calls/s   ratio    p50 µs    p99 µs   ratio   allocations")?;
    for (place, concurrency) in [
        (Place::Remote, 1),
        (Place::Remote, 64),
        (Place::Remote, 1024),
        (Place::Local, 1),
        (Place::Local, 64),
    ] {
        let load = load.with_concurrency(concurrency);
        let mut figures: [Vec<Figures>; 2] = Default::default();
        for _ in 0..load.rounds {
            figures[0].push(run_own(&own, place, &load)?);
            if let Some(go) = &go {
                figures[1].push(run_go(go, place, &load)?);
            }
        }
        let medians = figures.map(median);
        let go_side = medians[1].clone();
        for (side, figures) in ["synod", "go"].into_iter().zip(medians) {
            let Some(figures) = figures else { continue };
            let ratio = |of: fn(&Figures) -> f64| {
                go_side.as_ref().map_or_else(|| "-".into(), |go| format!("{:.2}", of(&figures) / of(go)))
            };
            writeln!(
                out,
                "{:<6} {concurrency:>9}   {side:<5} {:>10.0}   {:>5} {:>9.1} {:>9.1}   {:>5} {:>13.1}",
                format!("{place:?}").to_lowercase(),
                figures.per_second,
                ratio(|figures| figures.per_second),
                figures.p50_us,
                figures.p99_us,
                ratio(|figures| figures.p99_us),
                figures.allocs_per_call,
            )?;
        }
    }
    writeln!(out, "idle grains: bytes of resident memory each")?;
    let own_bytes = bytes_per_grain(Command::new(&own).arg("idle").args(load.arguments()))?;
    writeln!(out, "synod {own_bytes:>8.0}   with {} of them", load.grains)?;
    if let Some(go) = &go {
        // Fewer, since a million of them take Go minutes.
        let grains = load.grains.min(100_000);
        let mut command = Command::new(go);
        command.args(["idle", "--grains", &grains.to_string()]).args(alone()?);
        writeln!(out, "go    {:>8.0}   with {grains} of them", bytes_per_grain(&mut command)?)?;
        std::fs::remove_file(go)?;
    }
    Ok(())
}

fn median(mut figures: Vec<Figures>) -> Option<Figures> {
    figures.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    let middle = figures.len() / 2;
    figures.into_iter().nth(middle)
}

fn run_own(program: &Path, place: Place, load: &Load) -> Result<Figures, Failure> {
    if place == Place::Local {
        return output(Command::new(program).arg("local").args(load.arguments()));
    }
    let server = Server::start(program, &["serve"])?;
    output(Command::new(program).args(["drive", "--to", &server.address]).args(load.arguments()))
}

fn run_go(program: &Path, place: Place, load: &Load) -> Result<Figures, Failure> {
    let numbers = load.arguments();
    if place == Place::Local {
        return output(Command::new(program).arg("local").args(alone()?).args(numbers));
    }
    let ports = [free_port()?, free_port()?];
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", ports[0], ports[1]);
    let ports = ports.map(|port| port.to_string());
    let _server = Server::start(program, &["serve", "--health-port", &ports[0], "--hosts", &hosts])?;
    let mut driver = Command::new(program);
    output(driver.args(["drive", "--health-port", &ports[1], "--hosts", &hosts]).args(numbers))
}

/// The flags of a Go member that is alone.
fn alone() -> Result<[String; 4], Failure> {
    let port = free_port()?;
    Ok(["--health-port".into(), port.to_string(), "--hosts".into(), format!("127.0.0.1:{port}")])
}

/// A port that was free a moment ago: Go's health endpoint does not choose one by itself.
fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn bytes_per_grain(command: &mut Command) -> Result<f64, Failure> {
    let figures: serde_json::Value = output(command)?;
    figures["bytes_per_grain"].as_f64().ok_or_else(|| "no figure".into())
}

fn output<T: for<'de> Deserialize<'de>>(command: &mut Command) -> Result<T, Failure> {
    let output = command.stderr(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(format!("{command:?} failed: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Answers with what it is called with.
struct Bench;

impl Grain for Bench {
    async fn call(
        &mut self,
        _: &mut GrainContext,
        method: i32,
        argument: Bytes,
    ) -> Result<Message, GrainError> {
        if method != 0 {
            return Err(GrainError::unimplemented(method));
        }
        let content =
            Bytes::decode(argument).map_err(|error| GrainError::invalid_argument(error.to_string()))?;
        Ok(Message::new(&content))
    }
}

async fn join(seed: Option<&str>, is_host: bool, grains: usize) -> Result<Cluster, Failure> {
    let mut remote = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    remote.processes_max = remote.processes_max.max(2 * grains);
    let mut config = ClusterConfig::new(format!("bench-{}", std::process::id()).parse()?, remote);
    config.grains.activation.activations_max = config.grains.activation.activations_max.max(2 * grains);
    if let Some(seed) = seed {
        config.membership.seeds.push(seed.parse()?);
    }
    if is_host {
        config.kinds.push(GrainKind::new("Bench", |_| Bench));
    }
    let mut node = Cluster::new(config)?;
    node.start_member().await?;
    Ok(node)
}

async fn serve() -> Result<(), Failure> {
    let node = join(None, true, 0).await?;
    let address = node.remote().ok_or("it does not run")?.authority().to_string();
    writeln!(std::io::stdout(), "{}", serde_json::json!({"event": "ready", "address": address}))?;
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    Ok(())
}

async fn drive(load: &Load, is_host: bool) -> Result<(), Failure> {
    let node = join((!is_host).then_some(load.to.as_str()), is_host, 0).await?;
    while !node.roster().iter().any(|member| member.kinds.iter().any(|kind| kind == "Bench")) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Everybody once, so that the grains run, and as often again as it takes to be warm.
    calling(&node, load, (load.calls / 10).max(load.concurrency)).await?;
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let (took, mut latencies) = calling(&node, load, load.calls).await?;
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    latencies.sort_unstable();
    let at = |percent: usize| latencies[percent * (latencies.len() - 1) / 100].as_nanos() as f64 / 1000.0;
    let calls = latencies.len() as f64;
    let figures = serde_json::json!({
        "lang": "rust",
        "per_second": calls / took.as_secs_f64(),
        "p50_us": at(50),
        "p99_us": at(99),
        "allocs_per_call": allocations as f64 / calls,
    });
    writeln!(std::io::stdout(), "{figures}")?;
    Ok(())
}

async fn calling(node: &Cluster, load: &Load, calls: usize) -> Result<(Duration, Vec<Duration>), Failure> {
    let each = (calls / load.concurrency).max(1);
    let content = Bytes::from(vec![7; load.payload]);
    let began = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..load.concurrency {
        let grain = node.grain_ref("Bench", &format!("k{number}"))?.with_timeout(PATIENCE);
        let content = content.clone();
        callers.spawn(async move {
            let mut latencies = Vec::with_capacity(each);
            for _ in 0..each {
                let start = Instant::now();
                call(&grain, &content).await?;
                latencies.push(start.elapsed());
            }
            Ok::<_, Failure>(latencies)
        });
    }
    let mut latencies = Vec::with_capacity(calls);
    while let Some(of_caller) = callers.join_next().await {
        latencies.extend(of_caller??);
    }
    Ok((began.elapsed(), latencies))
}

async fn call(grain: &GrainRef, content: &Bytes) -> Result<(), Failure> {
    let answer: Bytes = grain.call(0, content).await?;
    if answer.len() == content.len() { Ok(()) } else { Err("another answer".into()) }
}

/// Starts grains, leaves them alone, and looks at the memory.
async fn idle(load: &Load) -> Result<(), Failure> {
    let node = join(None, true, load.grains).await?;
    call(&node.grain_ref("Bench", "k0")?.with_timeout(PATIENCE), &Bytes::new()).await?;
    let before = resident()?;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let grains = node.grains().ok_or("it does not run")?.clone();
        let last = load.grains;
        callers.spawn(async move {
            for number in (caller..last).step_by(CALLERS) {
                let grain = grains.grain_ref("Bench", &format!("idle-{number}"))?.with_timeout(PATIENCE);
                call(&grain, &Bytes::new()).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(called) = callers.join_next().await {
        called??;
    }
    let running: usize = node.grains().ok_or("it does not run")?.activation_counts().values().sum();
    if running < load.grains {
        return Err(format!("{running} of {} grains run", load.grains).into());
    }
    let bytes = (resident()? - before) as f64 / load.grains as f64;
    writeln!(std::io::stdout(), "{}", serde_json::json!({"lang": "rust", "bytes_per_grain": bytes}))?;
    Ok(())
}

/// The resident memory of this process, in bytes.
fn resident() -> Result<usize, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kilobytes: usize = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes << 10)
}

const CALLERS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(60);
