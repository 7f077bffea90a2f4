//! The fuzzer finds bugs that were planted, and only because it looks where its inputs go.
//!
//! Run by `fuzz/run --self-check`: without instrumentation there is nothing to look at.

use std::process::{Command, Output};

use synod_fuzz::engine::{Finding, Fuzzer};
use synod_fuzz::{coverage, seeds, targets};

#[test]
fn a_bug_behind_four_bytes_is_found_by_following_the_branches() {
    let finding = fuzz("planted-magic", EXECUTIONS, true).expect("found");
    // What is not needed was left out.
    assert_eq!(finding.input, b"\xc5ynd");
    assert!(finding.what.contains("the planted bug"), "{}", finding.what);

    // The same effort without looking finds nothing, so it was not luck.
    assert_eq!(fuzz("planted-magic", EXECUTIONS, false), None);
}

#[test]
fn a_bug_behind_a_number_is_found_by_following_the_comparisons() {
    let finding = fuzz("planted-number", EXECUTIONS, true).expect("found");
    assert_eq!(finding.input, b"\xc5ynd");
    assert_eq!(fuzz("planted-number", EXECUTIONS, false), None);
}

/// As decoders of names, JSON, states and batches could have them: behind what those accept, and near their seeds.
#[test]
fn bugs_behind_a_valid_message_are_found_from_its_seeds() {
    for name in ["planted-slash", "planted-json", "planted-version", "planted-type-id"] {
        let target = targets::find(name).expect("planted");
        let tokens = seeds::tokens();
        let mut fuzzer = Fuzzer::new(target, &tokens, 1);
        // A seed that shows the bug by itself would prove nothing.
        assert_eq!(fuzzer.seed((target.seeds)()).expect("no record"), None, "{name}");
        let finding = fuzzer.fuzz(|done| done < EXECUTIONS).expect("no record").expect(name);
        assert!(finding.what.contains("the planted bug"), "{name}: {}", finding.what);
    }
}

#[test]
fn an_input_that_costs_memory_is_found() {
    let finding = fuzz("planted-memory", EXECUTIONS, true).expect("found");
    assert!(finding.what.contains("bytes of memory"), "{}", finding.what);
    assert_eq!(finding.input.len(), 3);
}

#[test]
fn an_input_that_takes_long_is_found() {
    let slow = targets::find("planted-slow").expect("planted");
    assert_eq!(slow.try_input(b"short"), Ok(()));
    let what = slow.try_input(b"not so short").expect_err("slow");
    assert!(what.contains("12 bytes took 1.1"), "{what}");
}

#[test]
fn one_seed_is_one_sequence_of_inputs() {
    let corpus = |seed| {
        let target = targets::find("gossip-map").expect("a target");
        let tokens = seeds::tokens();
        let mut fuzzer = Fuzzer::new(target, &tokens, seed);
        assert_eq!(fuzzer.seed((target.seeds)()).expect("no record"), None);
        assert_eq!(fuzzer.fuzz(|executions| executions < 20_000).expect("no record"), None);
        (fuzzer.edges(), fuzzer.corpus().to_vec())
    };
    assert!(corpus(1) == corpus(1));
    assert!(corpus(1) != corpus(2));
}

#[test]
fn every_target_takes_its_seeds() {
    for target in targets::TARGETS {
        let inputs = targets::seeds(target).expect("readable seeds");
        assert!(!inputs.is_empty(), "{} has no seeds", target.name);
        for input in inputs {
            assert_eq!(target.try_input(&input), Ok(()), "{}: {}", target.name, seeds::to_hex(&input));
        }
    }
}

#[test]
fn what_kills_the_process_is_found_in_its_record() {
    for (target, what) in [
        ("planted-stack", "overflowed its stack"),
        ("planted-allocation", "memory allocation of 1099511627776 bytes failed"),
        ("planted-hang", "does not come back"),
    ] {
        let output = run(&["--target", target, "--seconds", "30"]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("FAILED") && text.contains(what), "{text}");

        // The input in the record is more than the eight bytes that these bugs need.
        let input = text.lines().find_map(|line| line.strip_prefix("  input: ")).expect("an input");
        assert!(seeds::from_hex(input).is_some_and(|bytes| bytes.len() > 8), "{text}");
    }
}

#[test]
fn a_finding_comes_with_the_command_that_shows_it_again() {
    let output = run(&["--target", "planted-magic", "--seconds", "60"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("again: fuzz/run --target planted-magic --repro 'c5796e64'"), "{text}");

    assert_eq!(run(&["--target", "planted-magic", "--repro", "c5796e64"]).status.code(), Some(1));
    assert_eq!(run(&["--target", "planted-magic", "--repro", "c5796e65"]).status.code(), Some(0));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for options in [&["--target", "nobody"][..], &["--seconds", "x"], &["--repro", "00"], &["--what"]] {
        assert_eq!(run(options).status.code(), Some(2), "{options:?}");
    }
}

fn fuzz(name: &str, executions: u64, is_guided: bool) -> Option<Finding> {
    assert!(coverage::edges() > 0, "built without coverage; use fuzz/run --self-check");
    let mut fuzzer = Fuzzer::new(targets::find(name).expect("planted"), &[], 1);
    if !is_guided {
        fuzzer = fuzzer.unguided();
    }
    assert_eq!(fuzzer.seed(vec![vec![0; 8]]).expect("no record"), None);
    fuzzer.fuzz(|done| done < executions).expect("no record")
}

fn run(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_synod-fuzz")).args(options).output().expect("it runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const EXECUTIONS: u64 = 200_000;
