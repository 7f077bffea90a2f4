//! `synod quickstart`: a cluster on this machine, and a line for each thing that it can do.
//!
//! The steps go to standard output, as text or with `--json` as one object per line; everything else goes to standard
//! error.

mod objects;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use anstream::{eprintln, stdout};
use anstyle::{AnsiColor, Style};
use synod_cluster::quickstart::{
    NODES_MAX, NODES_MIN, QuickstartApi, QuickstartBootstrap, QuickstartReport, QuickstartSettings,
    QuickstartStep,
};

use synod_cluster::{MetricsConfig, MetricsConfigError};

/// Arguments of `synod quickstart`. Numbers are taken as text, so that all mistakes can be named at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many nodes, 2 to 16.
    #[arg(long, default_value = "3", allow_hyphen_values = true)]
    nodes: String,
    /// The address that the nodes listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The port of the first node; each node has the next one. 0 lets the system choose.
    #[arg(long, default_value = "0", value_name = "PORT", allow_hyphen_values = true)]
    base_port: String,
    /// The nodes whose addresses the others are given, by name.
    #[arg(long, default_value = "node-1", value_delimiter = ',', value_name = "NAME")]
    seeds: Vec<String>,
    /// Where the first node answers questions over HTTP. Default 127.0.0.1:8400, if that is free.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_api")]
    api: Option<String>,
    /// Answer no questions over HTTP.
    #[arg(long)]
    no_api: bool,
    /// The numbers that every node keeps, of membership, gossip, remote, grains and pubsub; or `off`. Default all.
    #[arg(long, value_delimiter = ',', value_name = "FAMILY")]
    metrics: Vec<String>,
    /// End after the tour, with exit code 0 if every step passed.
    #[arg(long)]
    once: bool,
    /// Print the steps as JSON, one object per line, and nothing else.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut cluster = match settings(args) {
        Ok(cluster) => cluster,
        Err(mistakes) => return usage(&mistakes),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{RED}error:{RED:#} the runtime did not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(show(args, &mut cluster))
}

async fn show(args: &Args, cluster: &mut QuickstartBootstrap) -> ExitCode {
    let json = args.json;
    let mut tell = move |step: &QuickstartStep| if json { print_json(step) } else { print_line(step) };
    if !json {
        eprintln!("{BOLD}quickstart{BOLD:#}: {} nodes in this process, over real sockets\n", args.nodes);
    }
    // The tour itself can be interrupted, too.
    let tour = tokio::select! {
        tour = async {
            let mut tour = cluster.tour(&mut tell).await;
            // Who cannot have sockets cannot have objects either.
            if tour.passed() {
                let objects = objects::tour(&mut tell).await;
                tour.elapsed += objects.elapsed;
                tour.steps.extend(objects.steps);
            }
            tour
        } => tour,
        interrupted = interruption() => {
            if interrupted {
                eprintln!("interrupted");
            }
            return ExitCode::FAILURE;
        }
    };
    if !args.once && tour.passed() {
        invite(cluster);
        interruption().await;
        eprintln!();
    }
    let stop = cluster.shutdown(&mut tell).await;
    summary(&tour, &stop);
    if tour.passed() && stop.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Waits for Ctrl-C. Returns false when it cannot be waited for.
async fn interruption() -> bool {
    match tokio::signal::ctrl_c().await {
        Ok(()) => true,
        Err(error) => {
            eprintln!("{RED}error:{RED:#} Ctrl-C cannot be heard: {error}");
            false
        }
    }
}

/// Everything that was asked for, or everything that is wrong with it.
fn settings(args: &Args) -> Result<QuickstartBootstrap, Vec<String>> {
    let mut mistakes = Vec::new();
    // What is no number is replaced by one that causes no further mistake.
    let nodes = args.nodes.parse().unwrap_or_else(|_| {
        mistakes.push(format!("nodes must be {NODES_MIN} to {NODES_MAX}, it is {:?}", args.nodes));
        NODES_MAX
    });
    let base_port = args.base_port.parse().unwrap_or_else(|_| {
        mistakes.push(format!("base_port must be a port from 0 to 65535, it is {:?}", args.base_port));
        0
    });
    let api = match args.api.as_deref().map(str::parse) {
        None if args.no_api => QuickstartApi::Off,
        None => QuickstartApi::IfFree(API_ADDRESS),
        Some(Ok(address)) => QuickstartApi::At(address),
        Some(Err(_)) => {
            let api = args.api.as_deref().unwrap_or_default();
            mistakes.push(format!("api must be an address such as {API_ADDRESS}, it is {api:?}"));
            QuickstartApi::Off
        }
    };
    let seeds = args.seeds.iter().filter(|seed| !seed.is_empty()).cloned().collect();
    let metrics = metrics(&args.metrics, &mut mistakes);
    let host = Some(args.host.clone());
    let settings =
        QuickstartSettings { nodes: Some(nodes), host, base_port: Some(base_port), seeds, api, metrics };
    match QuickstartBootstrap::new(&settings) {
        Ok(cluster) if mistakes.is_empty() => Ok(cluster),
        Ok(_) => Err(mistakes),
        Err(errors) => {
            mistakes.extend(errors.0.iter().map(ToString::to_string));
            Err(mistakes)
        }
    }
}

/// The families that were named, all of them if none was, or none at all.
fn metrics(names: &[String], mistakes: &mut Vec<String>) -> MetricsConfig {
    match names {
        [] => MetricsConfig::default(),
        [off] if off == "off" => MetricsConfig::disabled(),
        names => {
            let families: Result<_, _> = names.iter().map(|name| name.parse()).collect();
            match families {
                Ok(families) => MetricsConfig { families, ..MetricsConfig::default() },
                Err(error) => {
                    let error: MetricsConfigError = error;
                    mistakes.push(error.to_string());
                    MetricsConfig::default()
                }
            }
        }
    }
}

fn usage(mistakes: &[String]) -> ExitCode {
    for mistake in mistakes {
        eprintln!("{RED}error:{RED:#} {mistake}");
    }
    eprintln!("\nNothing was started. For more information, try 'synod quickstart --help'.");
    ExitCode::from(2)
}

fn print_line(step: &QuickstartStep) {
    let (style, mark) = if step.ok { (GREEN, '✓') } else { (RED, '✗') };
    let node = step.node.as_deref().unwrap_or("*");
    let (name, millis) = (step.step, step.elapsed.as_secs_f64() * 1000.0);
    // A closed pipe (`| head`) ends the log, not the run.
    writeln!(stdout(), "{style}{mark}{style:#} {name:<8} {node:<7} {:<72} {millis:>8.1} ms", step.detail)
        .unwrap_or_default();
}

fn print_json(step: &QuickstartStep) {
    match serde_json::to_string(step) {
        Ok(json) => writeln!(stdout(), "{json}").unwrap_or_default(),
        Err(error) => eprintln!("a step could not be printed: {error}"),
    }
}

/// What to do with a cluster that is up.
fn invite(cluster: &QuickstartBootstrap) {
    eprintln!("\nThe cluster is up:");
    for (name, authority) in cluster.addresses() {
        eprintln!("  {name:<7} {authority}");
    }
    match cluster.api_address() {
        Some(api) => eprintln!("\nTry: curl http://{api}/metrics    also /readyz and /healthz"),
        None => eprintln!("\nThere is no api listener; with --api 127.0.0.1:0 the system finds a free port."),
    }
    eprintln!("Press Ctrl-C to leave with every node.");
}

fn summary(tour: &QuickstartReport, stop: &QuickstartReport) {
    let failures = tour.failures() + stop.failures();
    let (steps, seconds) = (tour.steps.len() + stop.steps.len(), (tour.elapsed + stop.elapsed).as_secs_f64());
    if failures == 0 {
        eprintln!("\n{GREEN}✓{GREEN:#} {steps} steps passed in {seconds:.1} s");
        eprintln!("  next: synod sim --seed 1    the same state machines on a network that does its worst");
    } else {
        eprintln!("\n{RED}✗{RED:#} {failures} of {steps} steps failed, in {seconds:.1} s");
    }
}

/// Where the api listener is unless something else is asked for.
const API_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8400);
const BOLD: Style = Style::new().bold();
const GREEN: Style = AnsiColor::Green.on_default().bold();
const RED: Style = AnsiColor::Red.on_default().bold();
