//! The whole queue in a simulated world: three nodes, clients and workers as the product has them, over a network and on
//! disks that fail as a seed says. Time is simulated too: what takes a minute there takes seconds here.
//!
//! ```text
//!   SYNOD_SIM_SEEDS=200 cargo test --profile sim -p synod-queue --lib simulation::promises    more than the usual few seeds
//!   SYNOD_SIM_SEED=17 cargo test -p synod-queue --lib simulation::promises                    one of them again
//! ```
//!
//! A seed is always the same run: it has a process of its own, in which nothing else happens.
//!
//! At the end of each run [`crate::verify`] has to find that every promise was kept. It does not when the product is made
//! to do something that it must not ([`planted`]).

#![allow(clippy::print_stderr, reason = "what happened, and with which seed, is shown with the test")]

mod entropy;
mod faults;
mod network;
pub(crate) mod planted;
mod world;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use self::faults::{Faults, strike};
use self::planted::{Mistake, plant};
use self::world::World;
use crate::verify::{LoadDone, Report, verify};

/// What came of a run.
struct Outcome {
    /// A digest of all that clients, workers and those who looked at the nodes saw.
    digest: u64,
    report: Report,
    faults: Faults,
    load: LoadDone,
    is_drained: bool,
}

/// One run, on a thread of its own. An error says why it did not come to its end.
fn run(seed: u64, mistake: Option<Mistake>, length: Duration) -> Result<Outcome, String> {
    let thread = std::thread::Builder::new().name(format!("seed {seed}"));
    let run = move || {
        entropy::seed(seed);
        plant(mistake);
        let mut world = World::new(seed);
        until(&mut world, "the queue is set up", |world| world.stage.load.borrow().is_some());
        let faults = strike(&mut world, length);
        let load = world.stage.load.borrow().clone().expect("it was set up");
        load.enough();
        until(&mut world, "the rest is done", |world| world.stage.finished.borrow().is_some());
        let finished = world.stage.finished.take().expect("it is finished");
        let is_drained = finished.unwrap_or_else(|error| panic!("what is left is not known: {error}"));
        let replays = world.replays();
        let recording = world.history.recording().expect("it is in memory");
        let digest = xxhash_rust::xxh3::xxh3_64(format!("{recording:?}").as_bytes());
        Outcome { digest, report: verify(recording, replays), faults, load: load.done(), is_drained }
    };
    let joined = thread.spawn(run).expect("a thread").join();
    joined.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
    })
}

fn until(world: &mut World, what: &str, is_so: impl Fn(&World) -> bool) {
    let limit = world.sim.elapsed() + PATIENCE;
    while !is_so(world) {
        assert!(world.sim.elapsed() < limit, "in time: {what}");
        world.step();
    }
}

/// Runs seeds on all processors until one says stop, or all are done.
fn for_each_seed(first: u64, count: u64, each: impl Fn(u64) -> bool + Sync) {
    let (next, is_over) = (AtomicU64::new(first), AtomicBool::new(false));
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    if each(seed) {
                        is_over.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Whether this thread is a simulation.
pub(crate) fn is_running() -> bool {
    turmoil::in_simulation()
}

#[test]
fn promises_are_kept_whatever_happens_to_nodes_networks_and_disks() {
    if let Some(seed) = variable("SYNOD_SIM_SEED") {
        return keeps_promises(seed);
    }
    let failed = std::sync::Mutex::new(Vec::new());
    for_each_seed(1, variable("SYNOD_SIM_SEEDS").unwrap_or(SEEDS), |seed| {
        let output = run_apart(seed);
        let is_sound = output.status.success();
        if !is_sound {
            let (told, why) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            eprintln!("seed {seed}:\n{told}{why}");
            failed.lock().expect("nobody panics").push(seed);
        }
        // Others would only say it again.
        !is_sound
    });
    let failed = failed.into_inner().expect("nobody panics");
    assert_eq!(failed, [] as [u64; 0], "run one of these again with SYNOD_SIM_SEED");
}

#[test]
fn a_seed_is_always_the_same_run() {
    let told = |seed: u64| {
        let output = run_apart(seed);
        let all = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = all.lines().find(|line| line.starts_with("seed")).map(ToOwned::to_owned);
        told.unwrap_or_else(|| panic!("{all}"))
    };
    assert_eq!(told(1), told(1));
}

/// One run in a process of its own.
fn run_apart(seed: u64) -> std::process::Output {
    let program = std::env::current_exe().expect("this is one");
    let name = "simulation::promises_are_kept_whatever_happens_to_nodes_networks_and_disks";
    let mut command = std::process::Command::new(program);
    command.args(["--exact", name, "--nocapture"]).env("SYNOD_SIM_SEED", seed.to_string());
    command.output().expect("it runs again")
}

fn keeps_promises(seed: u64) {
    let Outcome { digest, report, faults, load, is_drained } =
        run(seed, None, LENGTH).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    eprintln!("seed {seed}: {digest:016x} {faults:?}, {load:?}, {:?}", report.checked.seen);
    assert!(report.is_clean(), "seed {seed}: {report}");
    assert!(is_drained, "seed {seed}: not everything was done in time");
    // Clients were answered, so that there was something to break.
    let seen = report.checked.seen;
    assert!(seen.jobs > 50 && seen.acks > 50 && seen.compared > 10, "seed {seed}: {seen:?}");
}

/// Has a mistake made until the checker finds that it broke a promise. False if it never does.
fn is_found(mistake: Mistake, promise: usize) -> bool {
    let is_found = AtomicBool::new(false);
    for_each_seed(1, MISTAKE_SEEDS, |seed| {
        // Some runs come to no end, because nodes find out by themselves that something is wrong.
        let is_broken = |outcome: Outcome| outcome.report.checked.broken[promise - 1] > 0;
        let is_so = run(seed, Some(mistake), LENGTH).is_ok_and(is_broken);
        if is_so {
            eprintln!("{mistake:?} is found with seed {seed}");
        }
        is_found.fetch_or(is_so, Ordering::Relaxed);
        is_so
    });
    is_found.into_inner()
}

#[test]
fn disks_that_do_not_sync_are_found_out() {
    assert!(is_found(Mistake::NoSync, 1), "something acknowledged is lost");
}

#[test]
fn acks_that_need_no_fence_are_found_out() {
    assert!(is_found(Mistake::NoFence, 3), "an ack counts of somebody who does not hold the job");
}

#[test]
fn jobs_that_are_delivered_before_they_are_committed_are_found_out() {
    assert!(is_found(Mistake::EarlyDelivery, 3), "something is delivered that was never assigned");
}

/// How many seeds there are unless somebody wants more.
const SEEDS: u64 = 2;
/// How many seeds may be needed to find a mistake.
const MISTAKE_SEEDS: u64 = 20;
/// How long things happen to the nodes of one seed. Without optimisation that takes about as long here.
const LENGTH: Duration = Duration::from_secs(if cfg!(debug_assertions) { 6 } else { 18 });
/// How long anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(150);
