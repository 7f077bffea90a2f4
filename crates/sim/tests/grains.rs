//! What the machines of grains promise, shown on simulated clusters whose members never quite agree.
//!
//! `SYNOD_SIM_SEEDS=n` multiplies the number of seeds. A failure prints the seed and the command that shows it again.

use synod_sim::{GrainReport, GrainScenario, GrainSimConfig, TraceSink, run_grains};

fn survive(scenario: GrainScenario, nodes: usize, seeds: u64) -> Vec<GrainReport> {
    let multiplier = std::env::var("SYNOD_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    (0..seeds * multiplier)
        .map(|seed| match run_grains(GrainSimConfig::new(seed, nodes, scenario), None) {
            Ok(report) => report,
            Err(error) => {
                panic!("{error}\nrepeat: synod sim --seed {seed} --nodes {nodes} --scenario {scenario}")
            }
        })
        .collect()
}

#[test]
fn grains_move_with_their_state_and_never_run_twice() {
    let reports = survive(GrainScenario::Moves, 4, 12);
    assert!(reports.iter().map(|report| report.claimed).sum::<u64>() > 0, "some were asked for");
    let (calls, answered) =
        reports.iter().fold((0, 0), |sum, report| (sum.0 + report.calls, sum.1 + report.answered));
    assert!(answered * 10 > calls * 9, "{answered} of {calls}");
}

#[test]
fn grains_survive_kills_restarts_and_partitions() {
    let reports = survive(GrainScenario::Churn, 4, 12);
    assert!(reports.iter().any(|report| report.overlaps > 0), "views did differ");
    assert!(reports.iter().any(|report| report.duplicates > 0), "and that was told");
}

#[test]
fn grains_survive_in_pairs_and_in_crowds() {
    for nodes in [1, 2, 7] {
        survive(GrainScenario::Moves, nodes, 3);
        survive(GrainScenario::Churn, nodes, 3);
    }
}

#[test]
fn one_seed_is_one_history() {
    let run = |seed| {
        let (lines, sink) = std::sync::mpsc::channel();
        let trace = TraceSink::new(move |line| lines.send(line.to_string()).expect("a reader"));
        let config = GrainSimConfig::new(seed, 3, GrainScenario::Moves);
        let report = run_grains(config, Some(trace)).expect("a good run");
        (report, sink.into_iter().collect::<Vec<_>>())
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3).1, run(4).1);
}
