//! The command behind `fuzz/run`: runs targets one after the other, each in a process of its own, and prints a table.

use std::env;
use std::error::Error;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use synod_fuzz::coverage;
use synod_fuzz::engine::{Finding, Fuzzer, INPUT_TIME_MAX, Target};
use synod_fuzz::recorder::{Record, Recorder};
use synod_fuzz::{seeds, targets};

fn main() -> ExitCode {
    let options = match Options::parse(env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let result = match (&options.inside, &options.repro) {
        _ if coverage::edges() == 0 => Err("built without coverage; use fuzz/run".into()),
        (Some(record), _) => inside(&options, record),
        (None, Some(input)) => repro(&options, input),
        (None, None) => supervise(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

const USAGE: &str = "\
Feeds every decoder of synod inputs that reach ever more of it, and reports those that do harm.

Usage: fuzz/run [options]

  --seconds N       how long each target runs [default: 10]
  --target NAME     only this target; may be given several times
  --seed N          the seed of chance [default: 1]
  --repro INPUT     run one target on one input: hexadecimal digits, or a file of them
  --list            the names of the targets
  --self-check      check the fuzzer itself: format, lints, and that it finds planted bugs
  --help            this text

Exit code 1 when an input does harm, 2 when the options make no sense.";

struct Options {
    seconds: f64,
    seed: u64,
    targets: Vec<Target>,
    repro: Option<String>,
    /// Where a process that fuzzes one target keeps its record; only for the processes that this one starts.
    inside: Option<PathBuf>,
}

impl Options {
    /// `None` when only help or a list was asked for.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self { seconds: 10.0, seed: 1, targets: Vec::new(), repro: None, inside: None };
        while let Some(option) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{option} needs a value"));
            match option.as_str() {
                "--seconds" => options.seconds = number(&option, &value()?)?,
                "--seed" => options.seed = number(&option, &value()?)?,
                "--repro" => options.repro = Some(value()?),
                "--inside" => options.inside = Some(value()?.into()),
                "--target" => {
                    let name = value()?;
                    let target = targets::find(&name);
                    options
                        .targets
                        .push(target.ok_or_else(|| format!("there is no target {name:?}, see --list"))?);
                }
                "--list" => {
                    targets::TARGETS.iter().for_each(|target| println!("{}", target.name));
                    return Ok(None);
                }
                "--help" => {
                    println!("{USAGE}");
                    return Ok(None);
                }
                _ => return Err(format!("there is no option {option:?}")),
            }
        }
        if options.repro.is_some() && options.targets.len() != 1 {
            return Err("--repro needs one --target".into());
        }
        if options.targets.is_empty() {
            options.targets = targets::TARGETS.to_vec();
        }
        Ok(Some(options))
    }
}

fn number<T: std::str::FromStr>(option: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{option} needs a number, not {text:?}"))
}

// ---- One input ----

fn repro(options: &Options, input: &str) -> Result<bool, Box<dyn Error>> {
    let target = options.targets[0];
    let input = match seeds::from_hex(input) {
        Some(bytes) => bytes,
        None => seeds::read(Path::new(input))?,
    };
    match target.try_input(&input) {
        Ok(()) => println!("{}: {} bytes do no harm", target.name, input.len()),
        Err(what) => {
            println!("{}: {what}", target.name);
            return Ok(false);
        }
    }
    Ok(true)
}

// ---- The process that fuzzes ----

fn inside(options: &Options, record: &Path) -> Result<bool, Box<dyn Error>> {
    let (target, tokens) = (options.targets[0], seeds::tokens());
    let started = Instant::now();
    let limit = Duration::try_from_secs_f64(options.seconds)?;
    let mut fuzzer = Fuzzer::new(target, &tokens, options.seed).recorded(Recorder::create(record)?);
    let mut finding = fuzzer.seed(targets::seeds(&target)?)?;
    if finding.is_none() {
        finding = fuzzer.fuzz(|_| started.elapsed() < limit)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let (executions, edges, corpus) = (fuzzer.executions(), fuzzer.edges(), fuzzer.corpus().len());
    let per_second = executions as f64 / seconds;
    println!("{executions:>11} {per_second:>9.0} {edges:>7} {corpus:>7}");
    if let Some(Finding { what, .. }) = &finding {
        println!("{what}");
    }
    Ok(finding.is_none())
}

// ---- The process that watches ----

fn supervise(options: &Options) -> Result<bool, Box<dyn Error>> {
    println!(
        "{:<20} {:>11} {:>9} {:>7} {:>7}  result   (seed {}, {} s each)",
        "target", "executions", "execs/s", "edges", "corpus", options.seed, options.seconds
    );
    let mut all_well = true;
    for target in &options.targets {
        let record = env::temp_dir().join(format!("synod-fuzz-{}-{}", std::process::id(), target.name));
        let outcome = watch(options, target, &record);
        let input = Record::read(&record).input;
        let _ = fs::remove_file(&record);
        let Outcome { numbers, harm } = outcome?;
        let result = if harm.is_some() { "FAILED" } else { "ok" };
        println!("{:<20} {numbers:>37}  {result}", target.name);
        if let Some(harm) = harm {
            all_well = false;
            println!("\n  {harm}\n  input: {}\n  again: {}\n", shown(&input), again(target, &input)?);
        }
    }
    Ok(all_well)
}

struct Outcome {
    /// The middle of the table's row; empty when the process died before it could tell.
    numbers: String,
    harm: Option<String>,
}

fn watch(options: &Options, target: &Target, record: &Path) -> Result<Outcome, Box<dyn Error>> {
    let mut child = Command::new(env::current_exe()?)
        .args(["--target", target.name, "--inside"])
        .arg(record)
        .args(["--seconds", &options.seconds.to_string(), "--seed", &options.seed.to_string()])
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (status, hangs) = wait(&mut child, record)?;
    let (mut said, mut complained) = (String::new(), String::new());
    // What it says fits into a pipe.
    child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut said)).transpose()?;
    child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut complained)).transpose()?;
    let mut lines = said.lines();
    let numbers = lines.next().unwrap_or_default().to_owned();
    let harm = match lines.next() {
        Some(what) => Some(what.to_owned()),
        None if hangs => Some(format!("does not come back within {HANG_TIME:?}")),
        None if status.success() => None,
        None => {
            let complaint: Vec<&str> = complained.split_whitespace().collect();
            Some(format!("the process died, {status}: {}", complaint.join(" ")))
        }
    };
    Ok(Outcome { numbers, harm })
}

/// Waits until the process ends, or ends it when its record stands still.
fn wait(child: &mut Child, record: &Path) -> Result<(std::process::ExitStatus, bool), Box<dyn Error>> {
    let (mut inputs, mut moved) = (0, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, false));
        }
        thread::sleep(Duration::from_millis(50));
        let now = Record::read(record).inputs;
        if now != inputs {
            (inputs, moved) = (now, Instant::now());
        } else if moved.elapsed() > HANG_TIME {
            child.kill()?;
            return Ok((child.wait()?, true));
        }
    }
}

/// Hexadecimal, if it can be looked at.
fn shown(input: &[u8]) -> String {
    match input.len() {
        0 => "empty".into(),
        1..=SHOWN_BYTES_MAX => seeds::to_hex(input),
        bytes => format!("{bytes} bytes"),
    }
}

/// The command that tries the input again. A long input goes into a file.
fn again(target: &Target, input: &[u8]) -> Result<String, Box<dyn Error>> {
    let argument = if input.len() <= SHOWN_BYTES_MAX {
        format!("'{}'", seeds::to_hex(input))
    } else {
        let directory = env::current_exe()?.with_file_name("findings");
        fs::create_dir_all(&directory)?;
        let path = directory.join(format!("{}.hex", target.name));
        fs::write(&path, seeds::to_hex(input))?;
        path.display().to_string()
    };
    Ok(format!("fuzz/run --target {} --repro {argument}", target.name))
}

/// How long one input may take before the process is given up. An input is tried three times before it is called slow.
const HANG_TIME: Duration = INPUT_TIME_MAX.saturating_mul(10);
const SHOWN_BYTES_MAX: usize = 1024;
