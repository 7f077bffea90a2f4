//! What the membership machines promise, shown on simulated clusters of 3 to 1000 nodes.
//!
//! Every test runs many seeds; `SYNOD_SIM_SEEDS=n` multiplies their number by `n` for long runs. A failure prints the seed
//! and the command that shows it again.

use std::sync::Arc;
use std::time::Duration;

use synod_core::membership::{KeepMajority, MembershipCoordinatorConfig, NodeStatus};
use synod_sim::{Formation, Report, Scenario, SimConfig, Simulation, TraceSink, Violation, run_scenario};

/// Runs `scenario` for each seed and fails with the command that repeats the first failure.
fn survive(scenario: Scenario, nodes: usize, seeds: u64) -> Vec<Report> {
    let run = |seed| match run_scenario(SimConfig::new(seed, nodes), scenario, None) {
        Ok(report) => report,
        Err(error) => {
            panic!("{error}\nrepeat: synod sim --seed {seed} --nodes {nodes} --scenario {scenario}")
        }
    };
    (0..seeds * multiplier()).map(run).collect()
}

fn multiplier() -> u64 {
    std::env::var("SYNOD_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// A cluster that has formed and settled.
fn formed(config: SimConfig) -> Simulation {
    let seed = config.seed;
    let mut simulation =
        Simulation::new(SimConfig { formation: Formation::Formed, ..config }).expect("valid settings");
    let settled = simulation.run_until(Duration::from_secs(20), |simulation| simulation.converged().is_ok());
    assert!(matches!(settled, Ok(Some(_))), "seed {seed}: {settled:?} {:?}", simulation.converged());
    simulation
}

fn held<T>(result: Result<T, Violation>, seed: u64) -> T {
    result.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"))
}

#[test]
fn three_nodes_survive_random_faults_of_every_kind() {
    survive(Scenario::Churn, 3, 250);
}

#[test]
fn five_nodes_survive_random_faults_of_every_kind() {
    survive(Scenario::Churn, 5, 200);
}

#[test]
fn ten_nodes_survive_random_faults_of_every_kind() {
    survive(Scenario::Churn, 10, 60);
}

#[test]
fn a_hundred_nodes_survive_random_faults_of_every_kind() {
    survive(Scenario::Churn, 100, 1);
}

#[test]
fn small_clusters_survive_every_single_fault() {
    for scenario in Scenario::ALL.into_iter().filter(|scenario| *scenario != Scenario::Churn) {
        for nodes in [1, 2, 3] {
            survive(scenario, nodes, 70);
        }
        survive(scenario, 10, 10);
    }
}

#[test]
fn a_cluster_of_a_hundred_forms_from_its_seeds() {
    for report in survive(Scenario::Form, 100, 2) {
        assert_eq!(report.members, 100);
        assert_eq!(report.false_deaths, 0);
    }
}

#[test]
fn one_seed_is_one_history() {
    let run = |seed| {
        let (lines, sink) = std::sync::mpsc::channel();
        let trace = TraceSink::new(move |line| lines.send(line.to_string()).expect("a reader"));
        let report = run_scenario(SimConfig::new(seed, 5), Scenario::Churn, Some(trace)).expect("a good run");
        (report, sink.into_iter().collect::<Vec<_>>())
    };
    let (first, second) = (run(7), run(7));
    assert_eq!(first, second);
    assert!(first.1.len() > 100, "a history has events");
    assert_ne!(first.1, run(8).1, "another seed is another history");
}

/// The times after which each of several departures was known everywhere, over seeds.
fn spread(nodes: usize, seeds: u64, changes: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    for seed in 0..seeds * multiplier() {
        let mut simulation = formed(SimConfig::new(seed, nodes));
        for change in 0..changes {
            let subject = (change * 7 + 3) % nodes;
            let began = simulation.now();
            held(simulation.leave(subject), seed);
            let known = |simulation: &Simulation| simulation.believed_by_all(subject, NodeStatus::Leaving);
            let limit = Duration::from_secs(5);
            held(simulation.run_until(limit, |simulation| known(simulation).is_some()), seed);
            let known =
                known(&simulation).unwrap_or_else(|| panic!("seed {seed}: not known after {limit:?}"));
            times.push(known - began);
            // The next departure begins in the middle of this one's aftermath.
            held(simulation.run_for(Duration::from_millis(300)), seed);
        }
    }
    times.sort();
    times
}

/// At 200 ms gossip and fan-out 3, the production settings.
#[test]
fn a_change_reaches_a_hundred_nodes_within_a_second() {
    let config = MembershipCoordinatorConfig::default();
    assert_eq!((config.gossip_interval, config.gossip_fanout), (Duration::from_millis(200), 3));
    let times = spread(100, 25, 8);
    let p99 = times[times.len() * 99 / 100];
    assert!(p99 <= Duration::from_secs(1), "p99 of {} changes is {p99:?}", times.len());
}

#[test]
fn a_change_reaches_a_thousand_nodes_within_two_seconds() {
    let times = spread(1000, 2, 6);
    let p99 = times[times.len() * 99 / 100];
    assert!(p99 <= Duration::from_secs(2), "p99 of {} changes is {p99:?}", times.len());
}

/// How long a node that starts takes until every member holds it for up, over seeds, on a local network.
fn joining(nodes: usize, seeds: u64, eager_delay: Option<Duration>) -> Vec<Duration> {
    let mut times = Vec::new();
    for seed in 0..seeds * multiplier() {
        let mut config = SimConfig::new(seed, nodes);
        config.network.delay_max = Duration::from_millis(1);
        config.membership.eager_delay = eager_delay;
        let mut simulation = formed(config);
        let subject = nodes - 1;
        simulation.crash(subject);
        held(simulation.run_for(Duration::from_secs(60)), seed);
        let began = simulation.now();
        held(simulation.restart(subject), seed);
        let known = |simulation: &Simulation| simulation.believed_by_all(subject, NodeStatus::Up);
        held(simulation.run_until(Duration::from_secs(5), |simulation| known(simulation).is_some()), seed);
        times.push(known(&simulation).unwrap_or_else(|| panic!("seed {seed}: not known")) - began);
    }
    times.sort();
    times
}

/// Two orders of magnitude below the second that the design asks for.
#[test]
fn a_node_that_joins_a_few_is_known_to_all_within_ten_milliseconds() {
    let eager_delay = MembershipCoordinatorConfig::default().eager_delay;
    for nodes in [3, 5] {
        let times = joining(nodes, 100, eager_delay);
        let p99 = times[times.len() * 99 / 100];
        assert!(p99 <= Duration::from_millis(10), "p99 of {nodes} nodes is {p99:?}");
    }
    // It is the eager delay that makes it so, for those whom the new node does not ask itself.
    let times = joining(5, 100, None);
    let p50 = times[times.len() / 2];
    assert!(p50 > Duration::from_millis(20), "p50 without an eager delay is {p50:?}");
}

/// One node freezes long enough to be suspected by everyone and returns before its suspicion runs out, while a tenth of
/// all messages is lost.
fn false_deaths(nodes: usize, seed: u64) -> u64 {
    let mut simulation = formed(SimConfig::new(seed, nodes));
    simulation.set_loss(0.1);
    held(simulation.run_for(Duration::from_secs(3)), seed);
    let subject = usize::try_from(seed).expect("a small seed") % nodes;
    simulation.pause(subject);
    let noticed = |simulation: &Simulation| simulation.believers(subject, NodeStatus::Suspect) > 0;
    let after = held(simulation.run_until(Duration::from_secs(60), noticed), seed);
    assert!(after.is_some(), "{nodes} nodes, seed {seed}: the freeze was not noticed");
    // The suspicion lasts five seconds; news of the return need a little of that.
    held(simulation.run_for(Duration::from_millis(seed % 10 * 400)), seed);
    simulation.resume(subject);
    held(simulation.run_for(Duration::from_secs(15)), seed);
    simulation.heal();
    let settled = held(simulation.run_until(Duration::from_secs(30), |s| s.converged().is_ok()), seed);
    assert!(settled.is_some(), "seed {seed}: {:?}", simulation.converged());
    simulation.false_deaths()
}

#[test]
fn nobody_alive_is_declared_dead_under_loss_and_a_freeze() {
    for (nodes, seeds) in [(3, 200), (10, 100)] {
        for seed in 0..seeds * multiplier() {
            assert_eq!(false_deaths(nodes, seed), 0, "{nodes} nodes, seed {seed}");
        }
    }
}

#[test]
fn nobody_alive_is_declared_dead_among_a_hundred() {
    for seed in 0..4 * multiplier() {
        assert_eq!(false_deaths(100, seed), 0, "seed {seed}");
    }
}

/// The time after which a killed node must be dead everywhere: one interval until the heartbeat that never comes, the
/// rhythm with its largest plausible deviation (a fresh peer's quarter interval at 5.3 deviations), the pause, the
/// suspicion, and the time news take.
fn death_bound(config: &MembershipCoordinatorConfig) -> Duration {
    let rhythm = config.phi.first_heartbeat_estimate.mul_f64(1.0 + 5.3 / 4.0);
    let noticed = config.heartbeat_interval + rhythm + config.phi.acceptable_pause;
    noticed + config.suspect_timeout + 2 * config.convergence_timeout
}

/// Kills a node while this share of all messages is lost, and expects everyone to know in time.
fn kill_one(nodes: usize, loss: f64, seed: u64) {
    let mut simulation = formed(SimConfig::new(seed, nodes));
    if loss > 0.0 {
        simulation.set_loss(loss);
    }
    held(simulation.run_for(Duration::from_secs(5)), seed);
    let config = simulation.config().membership.clone();
    let bound = death_bound(&config);
    let subject = usize::try_from(seed).expect("a small seed") % nodes;
    let killed = simulation.now();
    simulation.crash(subject);
    held(simulation.run_for(bound), seed);
    let dead = simulation.believed_by_all(subject, NodeStatus::Dead);
    let dead = dead.unwrap_or_else(|| panic!("{nodes} nodes, seed {seed}: not dead after {bound:?}"));
    assert!(dead > killed + config.suspect_timeout, "{nodes} nodes, seed {seed}: too soon");
    assert_eq!(simulation.false_deaths(), 0, "{nodes} nodes, seed {seed}");
}

#[test]
fn a_killed_node_is_dead_everywhere_within_the_configured_bound() {
    for (nodes, seeds) in [(3, 200), (10, 200), (100, 3)] {
        (0..seeds * multiplier()).for_each(|seed| kill_one(nodes, 0.0, seed));
    }
}

#[test]
fn a_thousand_nodes_notice_a_death_while_a_tenth_of_all_messages_is_lost() {
    (0..multiplier()).for_each(|seed| kill_one(1000, 0.1, seed));
}

#[test]
fn views_agree_again_after_half_of_all_messages_were_lost() {
    for (nodes, seeds) in [(3, 100), (10, 20), (100, 1)] {
        for seed in 0..seeds * multiplier() {
            let mut simulation = formed(SimConfig::new(seed, nodes));
            simulation.set_loss(0.5);
            held(simulation.leave(1), seed);
            held(simulation.run_for(Duration::from_secs(20)), seed);
            // Even at half loss a departure gets through.
            let known = simulation.believed_by_all(1, NodeStatus::Leaving);
            assert!(known.is_some(), "{nodes} nodes, seed {seed}: the departure is not known");
            simulation.heal();
            let settled =
                held(simulation.run_until(Duration::from_secs(120), |s| s.converged().is_ok()), seed);
            assert!(settled.is_some(), "{nodes} nodes, seed {seed}: {:?}", simulation.converged());
        }
    }
}

#[test]
fn with_keep_majority_only_the_larger_side_gives_up_on_the_other() {
    for seed in 0..100 * multiplier() {
        let mut config = SimConfig::new(seed, 5);
        config.membership.downing = Arc::new(KeepMajority::default());
        let mut simulation = formed(config);
        simulation.partition(&[vec![0, 1]]);
        held(simulation.run_for(Duration::from_secs(60)), seed);
        for node in [0, 1] {
            assert_eq!(
                simulation.believers(node, NodeStatus::Dead),
                3,
                "seed {seed}: the larger side decides"
            );
        }
        for node in 2..5 {
            assert_eq!(
                simulation.believers(node, NodeStatus::Suspect),
                2,
                "seed {seed}: the smaller side noticed"
            );
            assert_eq!(simulation.believers(node, NodeStatus::Dead), 0, "seed {seed}: and must not decide");
            assert_eq!(simulation.coordinator(node).active_members().len(), 3, "seed {seed}");
        }
        // After the cut the larger side keeps its lives; the smaller one begins new ones.
        simulation.heal();
        let settled = held(simulation.run_until(Duration::from_secs(120), |s| s.converged().is_ok()), seed);
        assert!(settled.is_some(), "seed {seed}: {:?}", simulation.converged());
        for (node, incarnation) in [(0, 2), (1, 2), (2, 1), (3, 1), (4, 1)] {
            let own = simulation.coordinator(node).own().expect("a member");
            assert_eq!(own.incarnation.get(), incarnation, "seed {seed}: {own}");
        }
    }
}

#[test]
fn with_keep_majority_a_node_that_hears_nobody_harms_nobody() {
    for seed in 0..100 * multiplier() {
        let mut config = SimConfig::new(seed, 5);
        config.membership.downing = Arc::new(KeepMajority::default());
        let mut simulation = formed(config);
        // Everybody hears its accusations and its heartbeats; it hears neither refutations nor heartbeats.
        simulation.deafen(4);
        held(simulation.run_for(Duration::from_secs(90)), seed);
        assert!((0..4).all(|node| simulation.believers(node, NodeStatus::Suspect) > 0), "seed {seed}");
        assert_eq!(simulation.false_deaths(), 0, "seed {seed}");
        simulation.heal();
        let settled = held(simulation.run_until(Duration::from_secs(60), |s| s.converged().is_ok()), seed);
        assert!(settled.is_some(), "seed {seed}: {:?}", simulation.converged());
        for node in 0..5 {
            let own = simulation.coordinator(node).own().expect("a member");
            assert_eq!(own.incarnation.get(), 1, "seed {seed}: {own} had to start over");
        }
    }
}

#[test]
fn one_isolated_node_does_not_make_the_others_start_over() {
    for seed in 0..100 * multiplier() {
        let mut config = SimConfig::new(seed, 7);
        // The isolated node gives up on all others quickly, which is the worst case.
        config.membership.suspect_timeout = Duration::from_secs(1);
        let mut simulation = formed(config);
        simulation.partition(&[vec![6]]);
        held(simulation.run_for(Duration::from_secs(90)), seed);
        assert_eq!(simulation.coordinator(6).active_members().len(), 1, "seed {seed}: it gave up on all");
        simulation.heal();
        let settled = held(simulation.run_until(Duration::from_secs(120), |s| s.converged().is_ok()), seed);
        assert!(settled.is_some(), "seed {seed}: {:?}", simulation.converged());
        for node in 0..6 {
            let own = simulation.coordinator(node).own().expect("a member");
            assert_eq!(own.incarnation.get(), 1, "seed {seed}: {own} had to start over");
        }
        assert_eq!(simulation.coordinator(6).own().expect("a member").incarnation.get(), 2, "seed {seed}");
    }
}

#[test]
fn a_node_that_lost_its_disk_comes_back_above_everything_seen() {
    for seed in 0..100 * multiplier() {
        let mut simulation = formed(SimConfig::new(seed, 4));
        // Two ordinary restarts bring the name to its third life.
        for _ in 0..2 {
            simulation.crash(3);
            held(simulation.run_for(Duration::from_secs(1)), seed);
            held(simulation.restart(3), seed);
            held(simulation.run_for(Duration::from_secs(5)), seed);
        }
        simulation.crash(3);
        held(simulation.restart_without_disk(3), seed);
        let settled = held(simulation.run_until(Duration::from_secs(60), |s| s.converged().is_ok()), seed);
        assert!(settled.is_some(), "seed {seed}: {:?}", simulation.converged());
        let own = simulation.coordinator(3).own().expect("a member");
        assert_eq!(own.incarnation.get(), 4, "seed {seed}: {own}");
    }
}
