//! `synod verify queue` as operators run it: a cluster of processes that are killed and frozen, and a check of everything.
//!
//! It is short unless `SYNOD_LONG_TESTS` asks for ten minutes. That the check finds what is wrong is tested where it lives,
//! in `synod-queue`.

use std::process::{Command, Output};

#[test]
fn a_queue_keeps_its_promises_while_its_nodes_die() {
    let seconds = if std::env::var_os("SYNOD_LONG_TESTS").is_some() { "600" } else { "8" };
    let output = synod(&["verify", "queue", "--seconds", seconds, "--json"]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}\n{}", String::from_utf8_lossy(&output.stdout));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let number = |path: &str| told.pointer(path).and_then(serde_json::Value::as_u64).unwrap_or_default();
    let faults = ["kills", "pauses", "outages"].map(|kind| number(&format!("/run/faults/{kind}")));
    assert!(faults.iter().sum::<u64>() > 0, "{told:#}");
    // A check of nothing finds nothing.
    for seen in ["accepted", "deliveries", "acks", "losses", "compared"] {
        assert!(number(&format!("/report/seen/{seen}")) > 0, "{seen}: {told:#}");
    }
    assert_eq!(told.pointer("/report/replicas").and_then(|all| Some(all.as_array()?.len())), Some(3));
}

#[test]
fn a_recording_that_is_not_there_is_a_mistake_of_the_caller() {
    let output = synod(&["verify", "queue", "--history", "no-such-file", "--data", "no-such-directory"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let output = synod(&["verify", "queue", "--history", "no-such-file"]);
    assert_eq!(output.status.code(), Some(2), "a recording without data");
}

fn synod(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_synod")).args(arguments).output().expect("the binary runs")
}
