//! What the object plane promises, shown on simulated clusters in which everything fails.
//!
//! `SYNOD_SIM_SEEDS=n` multiplies the number of seeds. A failure prints the seed and the command that shows it again.

use synod_sim::{ObjectMistake, ObjectReport, ObjectSimConfig, TraceSink, run_objects};

fn survive(nodes: usize, first: u64, seeds: u64) -> Vec<ObjectReport> {
    let multiplier = std::env::var("SYNOD_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    (first..first + seeds * multiplier)
        .map(|seed| match run_objects(ObjectSimConfig::new(seed, nodes), None) {
            Ok(report) => report,
            Err(error) => {
                panic!("{error}\nrepeat: synod sim --seed {seed} --nodes {nodes} --scenario objects")
            }
        })
        .collect()
}

#[test]
fn objects_of_three_nodes_survive_every_fault() {
    let reports = survive(3, 0, 800);
    // The story is hard, and things get done all the same.
    let sum = |of: fn(&ObjectReport) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|report| report.crashes) > 1000 && sum(|report| report.disks_lost) > 100);
    assert!(sum(|report| report.written) > 5_000 && sum(|report| report.read) > 5_000);
    assert!(sum(|report| report.unknown) > 100, "some writes have no known end");
    assert!(sum(|report| report.listed) > 500 && sum(|report| report.forgotten) > 100);
    assert!(sum(|report| report.renewals) > 100 && sum(|report| report.repaired) > 100);
}

#[test]
fn objects_of_three_nodes_survive_other_faults() {
    survive(3, 1 << 32, 800);
}

#[test]
fn objects_of_five_nodes_survive_every_fault() {
    let reports = survive(5, 0, 400);
    assert!(reports.iter().any(|report| report.replicas == 5) && reports.iter().any(|one| one.replicas == 3));
}

#[test]
fn objects_of_few_and_of_many_nodes_survive_every_fault() {
    for (nodes, seeds) in [(1, 50), (2, 50), (4, 50), (7, 30)] {
        survive(nodes, 0, seeds);
    }
}

/// What is wrong around a coordinator must not go unnoticed, or the runs above would show nothing.
#[test]
fn every_mistake_comes_to_light() {
    for mistake in ObjectMistake::ALL {
        let found = (0..20_000).find(|seed| {
            let config = ObjectSimConfig { mistake: Some(mistake), ..ObjectSimConfig::new(*seed, 3) };
            run_objects(config, None).is_err_and(|violation| violation.is_seen)
        });
        assert!(found.is_some(), "nobody noticed that {mistake}");
    }
}

#[test]
fn one_seed_is_one_history() {
    let run = |seed| {
        let (lines, sink) = std::sync::mpsc::channel();
        let trace = TraceSink::new(move |line| lines.send(line.to_string()).expect("a reader"));
        let report = run_objects(ObjectSimConfig::new(seed, 3), Some(trace)).expect("a good run");
        (report, sink.into_iter().collect::<Vec<_>>())
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3).1, run(4).1);
}
