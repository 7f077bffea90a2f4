//! The `synod` command as its users meet it.

use std::collections::BTreeSet;
use std::process::{Command, Output};

fn synod(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_synod")).args(arguments).output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

#[test]
fn the_tour_shows_a_cluster_forming_losing_a_node_and_healing() {
    let output = synod(&["sim", "--seed", "1", "--nodes", "5"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let log = stdout(&output);
    // One line per event, in the order of the story.
    let story = [
        "n002 starts",
        "5 members, joined",
        "is killed",
        "suspect → dead",
        "is started again",
        "cut off",
        "heal",
        "rejoin",
        "5 members agree",
    ];
    let mut rest = log.as_str();
    for chapter in story {
        let found = rest.find(chapter).unwrap_or_else(|| panic!("{chapter:?} is missing in\n{log}"));
        rest = &rest[found..];
    }
    assert!(log.contains("synod sim --seed 1 --nodes 5 --scenario tour"), "the run can be repeated");
    assert!(!log.contains('\u{1b}'), "no colours into a pipe");
}

#[test]
fn one_seed_is_one_history_to_the_last_line() {
    let run = |seed| stdout(&synod(&["sim", "--seed", seed, "--scenario", "churn", "--json"]));
    assert_eq!(run("3"), run("3"));
    assert_ne!(run("3"), run("4"));
}

#[test]
fn the_report_is_one_object_of_json_and_nothing_else() {
    let output = synod(&["sim", "--seed", "5", "--nodes", "3", "--scenario", "crash", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(report["seed"], 5);
    assert_eq!(report["nodes"], 3);
    assert_eq!(report["scenario"], "crash");
    assert_eq!(report["members"], 2);
    assert_eq!(report["false_deaths"], 0);
    assert!(report["messages_sent"].as_u64().is_some_and(|sent| sent > 100));
    assert!(stderr(&output).is_empty());
}

#[test]
fn many_seeds_run_one_after_the_other() {
    let output =
        synod(&["sim", "--seed", "10", "--seeds", "3", "--nodes", "3", "--scenario", "form", "--json"]);
    let seeds: Vec<_> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["seed"].as_u64())
        .collect();
    assert_eq!(seeds, [Some(10), Some(11), Some(12)]);
}

#[test]
fn many_runs_with_slots_end_with_how_long_a_failover_takes() {
    let slots = |more: &[&str]| synod(&[&["sim", "--scenario", "slots", "--seed", "1"], more].concat());
    let output = slots(&["--seeds", "2", "--nodes", "3", "--json"]);
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 3, "one for each seed, and one for all: {}", stderr(&output));
    assert_eq!((&lines[0]["seed"], &lines[1]["seed"], &lines[2]["seeds"]), (&1.into(), &2.into(), &2.into()));
    let served = |line: &serde_json::Value| line["failover"]["served_after_ms"].as_u64();
    assert_eq!(lines[2]["failover_ms"]["max"].as_u64(), served(&lines[0]).max(served(&lines[1])));
    let crowd = slots(&["--nodes", "17"]);
    assert_eq!(crowd.status.code(), Some(2));
    assert!(stderr(&crowd).contains("a simulation with slots has 1 to 16 nodes, not 17"));
}

#[test]
fn a_run_with_objects_says_what_was_done() {
    let objects = |more: &[&str]| synod(&[&["sim", "--scenario", "objects", "--seed", "1"], more].concat());
    let output = objects(&["--seeds", "2", "--nodes", "3", "--json"]);
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.iter().map(|line| line["seed"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2)]);
    assert!(lines[0]["written"].as_u64().is_some_and(|written| written > 0));
    let log = objects(&["--nodes", "3"]);
    assert!(stdout(&log).contains("every key is linearizable"), "{}", stderr(&log));
    let crowd = objects(&["--nodes", "17"]);
    assert_eq!(crowd.status.code(), Some(2));
    assert!(stderr(&crowd).contains("a simulation with objects has 1 to 16 nodes, not 17"));
}

#[test]
fn wrong_input_is_refused_with_a_reason_and_exit_code_two() {
    let cases: [(&[&str], &str); 7] = [
        (&["sim", "--nodes", "0"], "a number from 1 to 5000"),
        (&["sim", "--nodes", "5001"], "a number from 1 to 5000"),
        (&["sim", "--nodes", "many"], "a number from 1 to 5000"),
        (&["sim", "--loss", "1.5"], "a share from 0 to 1"),
        (&["sim", "--scenario", "earthquake"], "[possible values: tour, form, crash"),
        (&["sim", "--seed", "-1"], "unexpected argument"),
        (&["simulate"], "unrecognized subcommand"),
    ];
    for (arguments, reason) in cases {
        let output = synod(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(reason), "{arguments:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty(), "{arguments:?}");
    }
}

/// a cluster forms, every node reaches every other, and a lost node costs nobody an answer.
#[test]
fn the_quickstart_shows_a_cluster_and_every_step_passes() {
    let output = synod(&["quickstart", "--once", "--nodes", "2", "--json", "--api", "127.0.0.1:0"]);
    let steps: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for step in &steps {
        assert_eq!(step["ok"], true, "{step}");
        assert!(step["ms"].as_f64().is_some() && step["detail"].is_string(), "{step}");
    }
    assert!(output.status.success(), "{}", stderr(&output));
    let names: Vec<_> = steps.iter().filter_map(|step| step["step"].as_str()).collect();
    let story = [
        "start", "start", "form", "members", "members", "actor", "actor", "activate", "call", "call",
        "gossip", "api", "publish", "kill", "detect", "recover", "return", "leave", "move", "return",
        "objects", "put", "get", "once", "failover", "back", "jobs", "leader", "stop", "stop",
    ];
    assert_eq!(names, story);
    let members = steps.iter().find(|step| step["step"] == "members").expect("a step");
    assert_eq!(members["detail"], "sees 2 members: node-1, node-2");
}

/// everything that is missing or wrong is named at once, and nothing is started.
#[test]
fn wrong_settings_of_the_quickstart_are_all_named_at_once() {
    let output = synod(&[
        "quickstart",
        "--once",
        "--nodes",
        "1",
        "--host",
        "",
        "--base-port",
        "70000",
        "--seeds",
        "",
        "--api",
        "here",
        "--metrics",
        "grains,weather",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).is_empty());
    let mistakes = [
        "error: base_port must be a port from 0 to 65535, it is \"70000\"",
        "error: api must be an address such as 127.0.0.1:8400, it is \"here\"",
        "error: metrics.families must be among membership, gossip, remote, grains and pubsub, there is \"weather\"",
        "error: nodes must be 2 to 16, it is 1",
        "error: host is missing",
        "error: seeds is missing",
    ];
    let told = stderr(&output);
    assert_eq!(told.lines().filter(|line| line.starts_with("error")).collect::<Vec<_>>(), mistakes);
}

/// the command of the document runs as it stands there, and the document explains every step and every option.
#[test]
fn the_document_holds_the_steps_of_the_quickstart() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/quickstart.md");
    let document = std::fs::read_to_string(path).expect("the document");
    let prefix = "cargo run --release -- ";
    let commands: Vec<_> = document.lines().filter_map(|line| line.trim().strip_prefix(prefix)).collect();
    let tour = commands.iter().find(|command| command.contains("--once")).expect("a tour that ends");
    let output = synod(&tour.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{}", stderr(&output));
    let explained: BTreeSet<_> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once(" |"))
        .flat_map(|(names, _)| names.split(['`', ',', ' ']))
        .filter(|name| !name.is_empty())
        .collect();
    let text = stdout(&output);
    let shown: BTreeSet<_> = text.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert!(shown.len() > 10, "{text}");
    assert!(shown.is_subset(&explained), "{:?}", shown.difference(&explained));
    let help = synod(&["quickstart", "--help"]);
    let help = stdout(&help);
    let options: BTreeSet<_> = help
        .split(|character: char| !(character.is_ascii_lowercase() || character == '-'))
        .filter(|word| word.starts_with("--") && *word != "--help")
        .collect();
    assert!(options.len() > 5, "{help}");
    assert!(options.is_subset(&explained), "{:?}", options.difference(&explained));
}

/// numbers are chosen on the command line, or switched off.
#[test]
fn the_quickstart_keeps_the_numbers_that_it_is_told_to() {
    for metrics in ["off", "grains,pubsub"] {
        let output = synod(&["quickstart", "--once", "--nodes", "2", "--no-api", "--metrics", metrics]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let output = synod(&["quickstart", "--once", "--no-api", "--metrics", ""]);
    assert_eq!(output.status.code(), Some(2));
}

/// A node that cannot start is a step that failed, with its reason.
#[test]
fn a_quickstart_that_fails_says_why_and_ends_with_exit_code_one() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let output = synod(&["quickstart", "--once", "--base-port", &port, "--no-api"]);
    // With a port too close to the last one there is no room for three.
    if output.status.code() != Some(2) {
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(
            stdout(&output).contains(&format!("cannot listen on 127.0.0.1:{port}")),
            "{}",
            stdout(&output)
        );
        assert!(stderr(&output).contains("1 of 1 steps failed"), "{}", stderr(&output));
    }
}

#[test]
fn completions_are_printed_for_the_common_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let output = synod(&["completions", shell]);
        assert!(output.status.success());
        assert!(stdout(&output).contains("scenario"), "{shell}");
    }
}
