//! `synod sim`: one line per event on the way, a summary at the end.
//!
//! The log goes to standard output, or nowhere with `--json` or `--quiet`; a failure says how to see it again.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anstream::{eprintln, println, stdout};
use anstyle::{AnsiColor, Style};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use synod_sim::{
    GRAIN_NODES_MAX, GrainReport, GrainScenario, GrainSimConfig, NODES_MAX, OBJECT_NODES_MAX,
    OBJECTS_SCENARIO, OBJECTS_SUMMARY, ObjectReport, ObjectSimConfig, Report, RunError, SLOT_NODES_MAX,
    SLOTS_SCENARIO, SLOTS_SUMMARY, Scenario, SimConfig, SimError, SlotReport, SlotSimConfig, SlotTimes,
    TraceLine, TraceSink, run_grains, run_objects, run_scenario, run_slots,
};

/// Arguments of `synod sim`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The seed: one seed is one history. Random when not given.
    #[arg(long)]
    seed: Option<u64>,
    /// How many nodes, 1 to 5000, with grains 1 to 64, with slots or objects 1 to 16.
    #[arg(long, default_value_t = 5, value_parser = nodes)]
    nodes: usize,
    /// What happens to them.
    #[arg(long, default_value = "tour", value_parser = scenario())]
    scenario: Story,
    /// The share of messages that are lost from the beginning, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    loss: f64,
    /// How many seeds to run, counting up from the first.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Print the report as JSON, and nothing else.
    #[arg(long)]
    json: bool,
    /// Do not print events.
    #[arg(long, short)]
    quiet: bool,
}

/// What a run is about: who is a member, where grains run, who serves which slots, or what objects are on them.
#[derive(Clone, Copy, Debug)]
enum Story {
    Membership(Scenario),
    Grains(GrainScenario),
    Slots,
    Objects,
}

impl Story {
    fn all() -> impl Iterator<Item = Self> {
        let membership = Scenario::ALL.into_iter().map(Self::Membership);
        membership.chain(GrainScenario::ALL.into_iter().map(Self::Grains)).chain([Self::Slots, Self::Objects])
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Membership(scenario) => scenario.name(),
            Self::Grains(scenario) => scenario.name(),
            Self::Slots => SLOTS_SCENARIO,
            Self::Objects => OBJECTS_SCENARIO,
        }
    }

    const fn summary(self) -> &'static str {
        match self {
            Self::Membership(scenario) => scenario.summary(),
            Self::Grains(scenario) => scenario.summary(),
            Self::Slots => SLOTS_SUMMARY,
            Self::Objects => OBJECTS_SUMMARY,
        }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let first = args.seed.unwrap_or_else(random_seed);
    let mut slot_reports = Vec::new();
    for seed in first..first.saturating_add(args.seeds.max(1)) {
        let silent = args.json || args.quiet;
        if !silent {
            heading(args, seed);
        }
        let started = Instant::now();
        let scenario = match args.scenario {
            Story::Membership(scenario) => scenario,
            Story::Grains(scenario) => match run_with_grains(args, seed, scenario, silent) {
                Ok(()) => continue,
                Err(code) => return code,
            },
            Story::Slots => match run_with_slots(args, seed, silent) {
                Ok(report) => {
                    slot_reports.push(report);
                    continue;
                }
                Err(code) => return code,
            },
            Story::Objects => match run_with_objects(args, seed, silent) {
                Ok(()) => continue,
                Err(code) => return code,
            },
        };
        let mut config = SimConfig::new(seed, args.nodes);
        config.network.loss = args.loss;
        let sink = (!silent).then(|| TraceSink::new(print_line));
        match run_scenario(config, scenario, sink) {
            Ok(report) if args.json => print_json(serde_json::to_string(&report)),
            Ok(report) => summary(&report, started),
            Err(RunError::Setup(error)) => return usage(&error),
            Err(error) => {
                failure(args, seed, &error);
                return ExitCode::FAILURE;
            }
        }
    }
    if slot_reports.len() > 1 {
        slot_times(args, &slot_reports);
    }
    ExitCode::SUCCESS
}

fn run_with_slots(args: &Args, seed: u64, silent: bool) -> Result<SlotReport, ExitCode> {
    if args.nodes > SLOT_NODES_MAX {
        eprintln!(
            "{RED}error:{RED:#} a simulation with slots has 1 to {SLOT_NODES_MAX} nodes, not {}",
            args.nodes
        );
        return Err(ExitCode::from(2));
    }
    let mut config = SlotSimConfig::new(seed, args.nodes);
    if args.loss > 0.0 {
        config.network.loss = args.loss;
    }
    match run_slots(config, (!silent).then(|| TraceSink::new(print_line))) {
        Ok(report) => {
            if args.json {
                print_json(serde_json::to_string(&report));
            } else if !args.quiet || args.seeds <= 1 {
                slot_summary(&report);
            }
            Ok(report)
        }
        Err(violation) => {
            failure(args, seed, &violation);
            Err(ExitCode::FAILURE)
        }
    }
}

fn slot_summary(report: &SlotReport) {
    println!(
        "\n{GREEN}✓{GREEN:#} one primary per epoch, and every register is linearizable: {} writes, {} reads",
        report.written, report.read,
    );
    println!(
        "  {} requests, {} without a known end; {} elections, {} crashes, {} disks lost",
        report.requests, report.unknown, report.elections, report.crashes, report.disks_lost,
    );
    if let Some(failover) = &report.failover {
        println!(
            "  a primary of {} slots was killed: suspected after {} ms, replaced after {} ms, known to all after {} ms",
            failover.slots,
            failover.suspected_after_ms,
            failover.served_after_ms,
            failover.converged_after_ms,
        );
    }
    println!(
        "  see it again: synod sim --seed {} --nodes {} --scenario {}",
        report.seed, report.nodes, report.scenario
    );
}

/// The times of many runs.
fn slot_times(args: &Args, reports: &[SlotReport]) {
    let times = SlotTimes::of(reports);
    if args.json {
        return print_json(serde_json::to_string(&times));
    }
    println!("\n{BOLD}{} seeds, {} nodes{BOLD:#}: every promise held", times.seeds, times.nodes);
    let lines = [
        ("a kill until it is suspected", times.suspected_ms),
        ("a kill until all its slots are served", times.failover_ms),
        ("a suspicion until all slots are served", times.election_ms),
        ("a kill until all maps are equal", times.failover_converged_ms),
        ("healing until all slots are served", times.healed_served_ms),
        ("healing until all maps are equal", times.healed_converged_ms),
    ];
    for (what, time) in lines {
        if let Some(time) = time {
            println!(
                "  from {what:<40} p50 {:>5} ms  p99 {:>5} ms  max {:>5} ms",
                time.p50, time.p99, time.max
            );
        }
    }
}

fn run_with_objects(args: &Args, seed: u64, silent: bool) -> Result<(), ExitCode> {
    if args.nodes > OBJECT_NODES_MAX {
        eprintln!(
            "{RED}error:{RED:#} a simulation with objects has 1 to {OBJECT_NODES_MAX} nodes, not {}",
            args.nodes
        );
        return Err(ExitCode::from(2));
    }
    let mut config = ObjectSimConfig::new(seed, args.nodes);
    if args.loss > 0.0 {
        config.network.loss = args.loss;
    }
    match run_objects(config, (!silent).then(|| TraceSink::new(print_line))) {
        Ok(report) if args.json => print_json(serde_json::to_string(&report)),
        Ok(report) => object_summary(&report),
        Err(violation) => {
            failure(args, seed, &violation);
            return Err(ExitCode::FAILURE);
        }
    }
    Ok(())
}

fn object_summary(report: &ObjectReport) {
    println!(
        "\n{GREEN}✓{GREEN:#} every key is linearizable, and all replicas are equal: {} writes, {} reads, {} pages",
        report.written, report.read, report.listed,
    );
    println!(
        "  {} requests, {} without a known end; {} epochs, {} crashes, {} disks lost; {} heads renewed, {} repaired",
        report.requests,
        report.unknown,
        report.elections,
        report.crashes,
        report.disks_lost,
        report.renewals,
        report.repaired,
    );
    println!(
        "  see it again: synod sim --seed {} --nodes {} --scenario {}",
        report.seed, report.nodes, report.scenario
    );
}

fn run_with_grains(args: &Args, seed: u64, scenario: GrainScenario, silent: bool) -> Result<(), ExitCode> {
    if args.nodes > GRAIN_NODES_MAX {
        eprintln!(
            "{RED}error:{RED:#} a simulation with grains has 1 to {GRAIN_NODES_MAX} nodes, not {}",
            args.nodes
        );
        return Err(ExitCode::from(2));
    }
    let mut config = GrainSimConfig::new(seed, args.nodes, scenario);
    if args.loss > 0.0 {
        config.network.loss = args.loss;
    }
    match run_grains(config, (!silent).then(|| TraceSink::new(print_line))) {
        Ok(report) if args.json => print_json(serde_json::to_string(&report)),
        Ok(report) => grain_summary(&report),
        Err(violation) => {
            failure(args, seed, &violation);
            return Err(ExitCode::FAILURE);
        }
    }
    Ok(())
}

fn grain_summary(report: &GrainReport) {
    println!(
        "\n{GREEN}✓{GREEN:#} every grain is found by everybody and runs once; {} of {} calls were answered",
        report.answered, report.calls,
    );
    println!(
        "  {} starts, {} asked for before; {} ran beside another, {} told; {} states dropped",
        report.started, report.claimed, report.overlaps, report.duplicates, report.states_dropped,
    );
    println!(
        "  see it again: synod sim --seed {} --nodes {} --scenario {}",
        report.seed, report.nodes, report.scenario
    );
}

fn heading(args: &Args, seed: u64) {
    println!("{BOLD}{}{BOLD:#}: {}", args.scenario.name(), args.scenario.summary());
    println!("{} nodes, seed {seed}\n", args.nodes);
}

fn print_line(line: &TraceLine) {
    let style = match line.kind {
        "crash" | "partition" | "pause" | "network" => AnsiColor::Red.on_default(),
        "heal" | "restart" | "resume" | "start" => AnsiColor::Green.on_default(),
        "topology" => AnsiColor::Cyan.on_default(),
        "quarantine" | "rejoin" | "quorum" => AnsiColor::Yellow.on_default(),
        _ => Style::new(),
    };
    // A closed pipe (`| head`) ends the log, not the run.
    writeln!(stdout(), "{style}{line}{style:#}").unwrap_or_default();
}

fn summary(report: &Report, started: Instant) {
    println!(
        "\n{GREEN}✓{GREEN:#} {} members agree, {:.2} s after the last fault ended; every invariant held",
        report.members,
        report.converged_after_ms as f64 / 1000.0,
    );
    println!(
        "  {:.1} s simulated in {:.2} s: {} steps, {} messages ({} lost, {} doubled), {} false deaths",
        report.simulated_ms as f64 / 1000.0,
        started.elapsed().as_secs_f64(),
        report.steps,
        report.messages_sent,
        report.messages_lost,
        report.messages_doubled,
        report.false_deaths,
    );
    println!(
        "  see it again: synod sim --seed {} --nodes {} --scenario {}",
        report.seed, report.nodes, report.scenario
    );
}

fn print_json(json: serde_json::Result<String>) {
    match json {
        Ok(json) => println!("{json}"),
        Err(error) => eprintln!("the report could not be printed: {error}"),
    }
}

fn failure(args: &Args, seed: u64, error: &dyn std::error::Error) {
    let loss = if args.loss > 0.0 { format!(" --loss {}", args.loss) } else { String::new() };
    eprintln!("\n{RED}✗{RED:#} {error}");
    eprintln!(
        "  seed {seed}; see it again: synod sim --seed {seed} --nodes {} --scenario {}{loss}",
        args.nodes,
        args.scenario.name()
    );
}

fn usage(error: &SimError) -> ExitCode {
    eprintln!("{RED}error:{RED:#} {error}");
    ExitCode::from(2)
}

fn nodes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(nodes) if (1..=NODES_MAX).contains(&nodes) => Ok(nodes),
        _ => Err(format!("a number from 1 to {NODES_MAX}")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share from 0 to 1".to_owned()),
    }
}

fn scenario() -> impl TypedValueParser<Value = Story> {
    let names = PossibleValuesParser::new(
        Story::all().map(|story| clap::builder::PossibleValue::new(story.name()).help(story.summary())),
    );
    names.try_map(|name| {
        Story::all()
            .find(|story| story.name() == name)
            .ok_or_else(|| format!("there is no scenario {name:?}"))
    })
}

/// A seed nobody chose. It is printed, so the run can be repeated.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Small enough to be typed again.
    RandomState::new().hash_one(0) % 1_000_000
}

const BOLD: Style = Style::new().bold();
const GREEN: Style = AnsiColor::Green.on_default().bold();
const RED: Style = AnsiColor::Red.on_default().bold();
