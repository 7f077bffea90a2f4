//! What the registry of slots promises, shown on simulated clusters in which everything fails.
//!
//! `SYNOD_SIM_SEEDS=n` multiplies the number of seeds. A failure prints the seed and the command that shows it again.

use synod_sim::{Mistake, SlotReport, SlotSimConfig, SlotTimes, TraceSink, run_slots};

fn survive(nodes: usize, seeds: u64) -> Vec<SlotReport> {
    let multiplier = std::env::var("SYNOD_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    (0..seeds * multiplier)
        .map(|seed| match run_slots(SlotSimConfig::new(seed, nodes), None) {
            Ok(report) => report,
            Err(error) => {
                panic!("{error}\nrepeat: synod sim --seed {seed} --nodes {nodes} --scenario slots")
            }
        })
        .collect()
}

#[test]
fn slots_of_three_nodes_survive_every_fault() {
    let reports = survive(3, 500);
    // The story is hard, and things get done all the same.
    let sum = |of: fn(&SlotReport) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|report| report.crashes) > 1000 && sum(|report| report.disks_lost) > 100);
    assert!(sum(|report| report.written) > 10_000 && sum(|report| report.read) > 10_000);
    assert!(sum(|report| report.unknown) > 100, "some writes have no known end");
}

#[test]
fn slots_of_five_nodes_survive_every_fault() {
    let reports = survive(5, 300);
    assert!(reports.iter().any(|report| report.replicas == 5) && reports.iter().any(|one| one.replicas == 3));
    let times = SlotTimes::of(&reports);
    let failover = times.failover_ms.expect("a primary was killed");
    assert!(failover.p50 <= failover.p99 && failover.p99 <= failover.max && times.seeds == reports.len());
}

#[test]
fn slots_of_few_and_of_many_nodes_survive_every_fault() {
    for (nodes, seeds) in [(1, 50), (2, 100), (4, 100), (7, 60)] {
        let reports = survive(nodes, seeds);
        let has_failover = |report: &SlotReport| report.failover.is_some();
        assert!(reports.iter().all(|report| has_failover(report) == (nodes > 2)), "{nodes} nodes");
    }
}

/// What is wrong around a registry must not go unnoticed, or the runs above would show nothing.
#[test]
fn every_mistake_comes_to_light() {
    for mistake in Mistake::ALL {
        let found = (0..2000).find(|seed| {
            let config = SlotSimConfig { mistake: Some(mistake), ..SlotSimConfig::new(*seed, 3) };
            run_slots(config, None).is_err_and(|violation| {
                // Two primaries, or a history that no register has.
                violation.what.contains("two primaries") || violation.what.starts_with("slot ")
            })
        });
        assert!(found.is_some(), "nobody noticed that {mistake}");
    }
}

#[test]
fn one_seed_is_one_history() {
    let run = |seed| {
        let (lines, sink) = std::sync::mpsc::channel();
        let trace = TraceSink::new(move |line| lines.send(line.to_string()).expect("a reader"));
        let report = run_slots(SlotSimConfig::new(seed, 3), Some(trace)).expect("a good run");
        (report, sink.into_iter().collect::<Vec<_>>())
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3).1, run(4).1);
}
