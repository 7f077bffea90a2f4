//! `synod verify`: has a real cluster fail in all the ways that it should survive, and checks what it promised.
//!
//! What is done and found goes to standard output at the end, each fault to standard error as it happens. The exit code is 1
//! if a promise was broken. The nodes' data and the recording are kept then, so that they can be checked again.

mod faults;
mod load;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anstream::eprintln;
use clap::Subcommand;
use synod_queue::verify::{History, Recording, Report, hashed, replay, verify};

use self::faults::Faults;
use self::load::RunningLoad;
use crate::inspect::{json, print};
use crate::nodes::Nodes;
use crate::terminal::{GREEN, RED, USAGE_ERROR, with_runtime};

/// What to verify.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verify {
    /// Kill, freeze and restart the nodes of a job queue under load, and check that it kept every promise.
    Queue(QueueArgs),
}

/// Arguments of `synod verify queue`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct QueueArgs {
    /// How long there are faults.
    #[arg(long, default_value_t = 60, conflicts_with = "history")]
    seconds: u64,
    /// How many nodes, 3 to 9.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9), conflicts_with = "history")]
    nodes: u8,
    /// What is drawn: faults and jobs. When each happens to strike is not: no two runs are the same. Random when not given.
    #[arg(long, conflicts_with = "history")]
    seed: Option<u64>,
    /// The binary that the nodes run, instead of this one.
    #[arg(long, value_name = "PATH", conflicts_with = "history")]
    synod: Option<PathBuf>,
    /// Check this recording, and run nothing.
    #[arg(long, value_name = "FILE", requires = "data")]
    history: Option<PathBuf>,
    /// The directory of a stopped node's queue; of all nodes, in the order of the recording.
    #[arg(long, value_name = "DIR", requires = "history")]
    data: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(what: &Verify) -> ExitCode {
    let Verify::Queue(args) = what;
    match &args.history {
        Some(history) => again(args, history),
        None => with_runtime(anew(args)),
    }
}

/// Checks a recording that there is.
fn again(args: &QueueArgs, history: &Path) -> ExitCode {
    let recording = match History::read(history) {
        Ok(recording) => recording,
        Err(error) => return refuse(&error),
    };
    match check(recording, &args.data) {
        Ok(report) if args.json => end(&report, print(&json(&report.to_json()))),
        Ok(report) => end(&report, print(report.to_string().trim_end())),
        Err(error) => refuse(&error),
    }
}

/// Runs a cluster of its own.
async fn anew(args: &QueueArgs) -> ExitCode {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let dir = std::env::temp_dir().join(format!("synod-verify-{}-{seed}", std::process::id()));
    let (report, done) = match exercise(args, seed, &dir).await {
        Ok(done) => done,
        Err(error) => {
            eprintln!("{RED}error:{RED:#} {error}");
            eprintln!("what there is was kept in {}", dir.display());
            return ExitCode::FAILURE;
        }
    };
    let printed = if args.json {
        let done = serde_json::json!({ "seed": seed, "run": done, "report": report.to_json() });
        print(&json(&done))
    } else {
        print(&format!("{done}\n{}", report.to_string().trim_end()))
    };
    if report.is_clean() {
        drop(std::fs::remove_dir_all(&dir));
    } else {
        let data = (1..=args.nodes).map(|node| format!(" --data {}/node{node}/queue", dir.display()));
        eprintln!("seed {seed}; everything was kept. Check it again:");
        let data: String = data.collect();
        eprintln!("  synod verify queue --history {}/{HISTORY}{data}", dir.display());
    }
    end(&report, printed)
}

/// What was done to a cluster.
#[derive(Debug, serde::Serialize)]
struct Done {
    seconds: f64,
    faults: Faults,
    load: load::Done,
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Faults { kills, pauses, outages, revived } = self.faults;
        writeln!(f, "{:.1} s: {kills} kills, {pauses} pauses, {outages} outages of all nodes", self.seconds)?;
        let load::Done { elections, submitted, unanswered, vanished, is_drained } = self.load;
        writeln!(f, "{elections} elections, {revived} nodes that ended by themselves")?;
        write!(f, "{submitted} submits, {unanswered} without an answer; {vanished} workers vanished")?;
        if is_drained { Ok(()) } else { write!(f, "; not everything was done in time") }
    }
}

async fn exercise(args: &QueueArgs, seed: u64, dir: &Path) -> Result<(Report, Done), String> {
    let synod = match &args.synod {
        Some(path) => path.clone(),
        None => std::env::current_exe().map_err(|error| error.to_string())?,
    };
    let began = Instant::now();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut nodes = Nodes::lay_out(dir, synod, args.nodes.into()).map_err(|error| error.to_string())?;
    let history = History::create(&dir.join(HISTORY)).map_err(|error| error.to_string())?;
    nodes.start_all().map_err(|error| error.to_string())?;
    nodes.until_served().await?;
    eprintln!("{} nodes serve; seed {seed}", args.nodes);
    let load = RunningLoad::start(nodes.apis(), history.clone(), rng.fork()).await?;
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let faults = faults::strike(&mut nodes, &mut rng, until).await?;
    eprintln!("no more faults: what is left is done");
    nodes.until_served().await?;
    let load = load.finish().await?;
    nodes.stop().await;
    let recording = history.recording().map_err(|error| error.to_string())?;
    eprintln!("the logs are replayed");
    let report = check(recording, &nodes.queue_dirs())?;
    Ok((report, Done { seconds: began.elapsed().as_secs_f64(), faults, load }))
}

fn check(recording: Recording, dirs: &[PathBuf]) -> Result<Report, String> {
    let replays = replay(dirs, 0, &hashed(&recording)).map_err(|error| error.to_string())?;
    Ok(verify(recording, replays))
}

fn end(report: &Report, printed: ExitCode) -> ExitCode {
    if report.is_clean() {
        eprintln!("{GREEN}every promise was kept{GREEN:#}");
        printed
    } else {
        eprintln!("{RED}not every promise was kept, or could be checked{RED:#}");
        ExitCode::FAILURE
    }
}

fn refuse(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("{RED}error:{RED:#} {error}");
    ExitCode::from(USAGE_ERROR)
}

const HISTORY: &str = "history.jsonl";
