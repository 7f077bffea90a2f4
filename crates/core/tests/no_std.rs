//! Core promises to need no std. A library that brings its own panic handler holds it to that.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[test]
fn core_builds_without_std() {
    let output = build(&probe().join("Cargo.toml"));
    assert!(output.status.success(), "the probe did not build:\n{}", stderr(&output));
}

#[test]
fn the_probe_notices_std() {
    // A copy of the probe that pulls std in, as any careless dependency would.
    let copy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("no_std_probe_with_std");
    fs::create_dir_all(copy.join("src")).expect("a directory for the copy");
    let read = |file: &str| fs::read_to_string(probe().join(file)).expect(file);
    let write = |file: &str, text: &str| fs::write(copy.join(file), text).expect(file);
    // Under a name of its own: the builds share a directory, and cargo would take one for the other.
    let renamed =
        |text: &str| replaced(text, r#"name = "synod-core-probe""#, r#"name = "synod-core-probe-with-std""#);
    let core = env!("CARGO_MANIFEST_DIR").replace('\\', "/");
    let manifest = replaced(&read("Cargo.toml"), r#"path = "..""#, &format!(r#"path = "{core}""#));
    write("Cargo.toml", &renamed(&manifest));
    write("Cargo.lock", &renamed(&read("Cargo.lock")));
    write("src/lib.rs", &replaced(&read("src/lib.rs"), "#![no_std]", "#![no_std]\nextern crate std;"));

    let output = build(&copy.join("Cargo.toml"));

    let message = stderr(&output);
    assert!(!output.status.success(), "the probe built although it uses std:\n{message}");
    assert!(message.contains("duplicate lang item") && message.contains("panic_impl"), "{message}");
}

#[test]
fn the_probe_builds_the_dependencies_that_the_workspace_builds() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    let [workspace, probe] = [workspace, probe().join("Cargo.lock")]
        .map(|lock| locked(&fs::read_to_string(lock).expect("a lock file")));
    let strangers: Vec<_> =
        probe.difference(&workspace).filter(|(name, _)| name != r#"name = "synod-core-probe""#).collect();
    assert_eq!(strangers, Vec::<&(String, String)>::new());
}

fn probe() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("probe")
}

/// Both builds share one directory, so that the dependencies are built once.
fn build(manifest: &Path) -> Output {
    let cargo = env::var_os("CARGO").expect("cargo names itself to the tests it runs");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_std_probe");
    let mut command = Command::new(cargo);
    command.args(["build", "--locked", "--manifest-path"]).arg(manifest).arg("--target-dir").arg(target);
    // What the outer cargo says about this package, its flags and its job slots is not meant for the probe.
    for (name, _) in env::vars_os() {
        let leaks = |name: &str| {
            LEAKING.contains(&name) || LEAKING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        };
        if name.to_str().is_some_and(leaks) {
            command.env_remove(name);
        }
    }
    command.output().expect("cargo runs")
}

/// The name and version lines of all locked packages.
fn locked(lock: &str) -> BTreeSet<(String, String)> {
    let mut lines = lock.lines();
    let mut packages = BTreeSet::new();
    while let Some(name) = lines.find(|line| line.starts_with("name = ")) {
        let version = lines.next().expect("a version after the name");
        packages.insert((name.to_owned(), version.to_owned()));
    }
    packages
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Replaces the one place that the test relies on; if it moved, the test must not pass by doing nothing.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "the probe has {from:?} once");
    text.replace(from, to)
}

const LEAKING: &[&str] = &[
    "CARGO_BUILD_TARGET",
    "CARGO_CRATE_NAME",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_MAKEFLAGS",
    "CARGO_PRIMARY_PACKAGE",
    "CARGO_TARGET_DIR",
    "CARGO_TARGET_TMPDIR",
    "MAKEFLAGS",
    "MFLAGS",
    "OUT_DIR",
    "RUSTC_WORKSPACE_WRAPPER",
];
const LEAKING_PREFIXES: &[&str] = &["CARGO_BIN_", "CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_PROFILE_"];
