//! What the fuzzer says about the rest of the repository is true.

use std::collections::BTreeSet;
use std::fs;

use synod_fuzz::{seeds, targets};

#[test]
fn the_fuzzer_builds_the_dependencies_that_the_workspace_builds() {
    let [workspace, fuzz] = [include_str!("../../Cargo.lock"), include_str!("../Cargo.lock")].map(locked);
    let strangers: Vec<_> =
        fuzz.difference(&workspace).filter(|(name, _)| *name != r#"name = "synod-fuzz""#).collect();
    assert_eq!(strangers, Vec::<&(&str, &str)>::new());
}

#[test]
fn every_message_of_the_protocol_is_fuzzed() {
    // Those that are read as parts of a frame, by other targets.
    let parts = [
        "actor.PID",
        "remote.RemoteMessage",
        "remote.MessageBatch",
        "remote.MessageEnvelope",
        "remote.ConnectRequest",
        "remote.ConnectResponse",
        "remote.DisconnectRequest",
    ];
    let tokens = seeds::tokens();
    let is_message =
        |name: &&str| ["actor.", "remote.", "cluster."].iter().any(|package| name.starts_with(package));
    let messages: BTreeSet<&str> =
        tokens.iter().filter_map(|token| str::from_utf8(token).ok()).filter(is_message).collect();
    let fuzzed: BTreeSet<&str> =
        parts.iter().chain(targets::PAYLOAD_NAMES).copied().filter(|name| is_message(name)).collect();
    assert!(messages.len() > 30, "the names were not found: {messages:?}");
    assert_eq!(messages, fuzzed);
}

#[test]
fn the_golden_vectors_are_found() {
    let golden = seeds::golden();
    assert!(golden.contains(&vec![0x22, 0]), "that of a disconnect request");
    assert!(golden.iter().any(|vector| vector.len() > 100), "one that goes over several lines");
    assert!(golden.len() > 15, "{golden:02x?}");
}

#[test]
fn every_kept_seed_belongs_to_a_target() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds");
    let names = fs::read_dir(directory).expect("seeds").map(|entry| entry.expect("an entry").file_name());
    for name in names.map(|name| name.into_string().expect("UTF-8")) {
        assert!(targets::TARGETS.iter().any(|target| target.name == name), "{name} is no target");
        assert!(!seeds::kept(&name).expect("hexadecimal").is_empty(), "{name} has no seeds");
    }
    assert_eq!(seeds::kept("frame").expect("hexadecimal")[0], [0x22, 0xa0, 0xa0, 0x23]);
}

/// The name and version lines of all locked packages.
fn locked(lock: &str) -> BTreeSet<(&str, &str)> {
    let mut lines = lock.lines();
    let mut packages = BTreeSet::new();
    while let Some(name) = lines.find(|line| line.starts_with("name = ")) {
        packages.insert((name, lines.next().expect("a version after the name")));
    }
    packages
}
