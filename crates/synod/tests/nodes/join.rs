//! Who may start, as what, and on which disk: `start`, `join`, their refusals, and what the listings promise.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::cluster::{
    CONFIG, Layout, Place, TestCluster, contents, eventually, free_ports, new_dir, synod_in,
};

const ALL: &[usize] = &[0, 1, 2];
const USAGE: i32 = 2;

/// Acceptance 5 and 6: everything comes from the cluster, and any node of the URL is enough.
#[test]
fn a_node_joins_without_a_configuration_by_any_node_of_the_url() {
    let mut cluster = TestCluster::new(&Layout::default());
    cluster.start(0);
    cluster.start(1);
    eventually("a node answers", || cluster.status(0));
    fs::remove_file(cluster.dir.join(CONFIG)).expect("a configuration to remove");

    // Two that are dead, and one that lives.
    let url = format!("cluster://127.0.0.1:1,127.0.0.1:2,{}", cluster.api(0));
    let (listen, host) = (cluster.api(2).to_string(), cluster.api(2).ip().to_string());
    let join = ["join", &url, "--node", "node3", "--listen", &listen, "--advertise-addr", &host];
    cluster.run(2, &join);
    cluster.until_agreed(ALL);
    cluster.write_all(ALL, "joined ");
    cluster.read_all(2, "joined ");
    assert!(cluster.disk(2).join("registry").is_dir(), "its disk is where the cluster says");

    // And once more, as what it was before.
    let life = cluster.status(2).expect("status").incarnation;
    cluster.kill(2);
    cluster.run(2, &["join", &cluster.url(&[1]), "--node", "node3"]);
    cluster.until_agreed(ALL);
    assert!(cluster.status(2).expect("status").incarnation > life);
}

#[test]
fn a_join_that_contradicts_the_cluster_is_refused_with_both_values() {
    let mut cluster = TestCluster::new(&Layout::default());
    cluster.start(0);
    eventually("a node answers", || cluster.status(0));
    let url = cluster.url(&[0]);
    let own = cluster.api(1).to_string();
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--node", "node2", "--conf", CONFIG], &["unexpected argument '--conf'"]),
        (&["--node", "node9"], &["node9 is not part of this cluster", "node1, node2, node3"]),
        (&["--node", "node2", "--listen", "127.0.0.1:9"], &["--listen is 127.0.0.1:9", &own]),
        (
            &["--node", "node2", "--advertise-addr", "10.1.2.3"],
            &["--advertise-addr is 10.1.2.3", "127.0.0.1 for node node2"],
        ),
    ];
    for (arguments, reasons) in cases {
        let output = cluster.synod(&[&["join", &url], arguments].concat());
        assert_refused(&output, USAGE, reasons);
    }
    assert!(!cluster.disk(1).exists(), "nothing was written by a node that may not start");
}

#[test]
fn a_url_that_leads_nowhere_is_refused() {
    let dir = new_dir();
    let cases = [
        ("redis://127.0.0.1:6379", "cluster://"),
        ("cluster://", "no"),
        ("cluster://a:99999", "a:99999"),
        ("cluster://a:1/path", "a:1/path"),
        ("cluster://fe80::1:8400", "fe80::1:8400"),
        ("cluster://127.0.0.1:1,127.0.0.1:2", "127.0.0.1:2"),
    ];
    for (url, reason) in cases {
        let output = synod_in(&dir, &["join", url, "--node", "node1"]);
        assert_refused(&output, USAGE, &[reason]);
    }
    assert_eq!(contents(&dir).len(), 0, "nothing was written");
    fs::remove_dir_all(&dir).ok();
}

/// A name is one process: whoever wants one that lives is refused, whatever it asks for.
#[test]
fn a_name_that_lives_is_refused_and_one_that_failed_is_free() {
    let mut cluster = TestCluster::started();
    cluster.write_all(ALL, "kept ");
    let elsewhere = new_dir();
    let url = cluster.url(&[0, 1]);
    for force in [&[][..], &["--force-takeover"]] {
        let output = synod_in(&elsewhere, &[&["join", &url, "--node", "node3"], force].concat());
        assert_refused(&output, USAGE, &["node3 is alive in this cluster"]);
    }
    assert_eq!(contents(&elsewhere).len(), 0, "nothing was written by a node that may not start");
    // One disk is one process, too.
    let output = cluster.synod(&["start", "--conf", CONFIG, "--node", "node3"]);
    assert_refused(&output, 1, &["node3/registry is in use by another process"]);
    let life = cluster.status(2).expect("status").incarnation;
    cluster.until_agreed(ALL);

    cluster.kill(2);
    for index in [0, 1] {
        cluster.until_opinion(index, 2, &["failed"]);
    }
    cluster.run_in(&elsewhere, 2, &["join", &url, "--node", "node3"]);
    cluster.until_agreed(ALL);
    assert!(cluster.status(2).expect("status").incarnation > life, "a later life, though its disk is new");
    assert!(!elsewhere.join("node3/registry/audit.log").exists(), "nobody was taken over");
    cluster.read_all(2, "kept ");
    drop(cluster);
    fs::remove_dir_all(&elsewhere).ok();
}

/// A suspect may be alive. Only after `fail_timeout`, and only by force, its name is taken over, and that is written down.
#[test]
fn a_suspect_is_taken_over_by_force_and_after_fail_timeout_only() {
    // Suspected after 3 s of silence, and given up 4 s later: between the 4th and the 7th it can be taken over.
    let layout = Layout { suspect_timeout_sec: 3, fail_timeout_sec: 4, ..Layout::default() };
    let mut cluster = TestCluster::new(&layout);
    cluster.start_all();
    cluster.until_agreed(ALL);
    cluster.write_all(ALL, "kept ");
    let life = cluster.status(2).expect("status").incarnation;
    let elsewhere = new_dir();
    let url = cluster.url(&[0, 1]);

    cluster.kill(2);
    for index in [0, 1] {
        cluster.until_opinion(index, 2, &["suspect"]);
    }
    let output = synod_in(&elsewhere, &["join", &url, "--node", "node3"]);
    assert_refused(&output, USAGE, &["node3 is suspected", "--force-takeover"]);
    assert_eq!(contents(&elsewhere).len(), 0, "nothing was written by a node that may not start");
    eventually("it was silent for long enough", || {
        let seen = [0, 1].map(|index| cluster.opinion(index, 2));
        for member in seen {
            let age = member?.last_heard_ms.ok_or("never heard")?;
            if age < 4_100 {
                return Err(format!("heard {age} ms ago"));
            }
        }
        Ok(())
    });
    cluster.run_in(&elsewhere, 2, &["join", &url, "--node", "node3", "--force-takeover"]);
    cluster.until_agreed(ALL);
    cluster.read_all(2, "kept ");
    let audit = fs::read_to_string(elsewhere.join("node3/registry/audit.log")).expect("an audit log");
    let line: Value = serde_json::from_str(audit.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&line["event"], &line["node"]), (&"takeover".into(), &"node3".into()), "{line}");
    assert_eq!((&line["old_status"], &line["old_incarnation"]), (&"suspect".into(), &life.into()), "{line}");
    assert!(line["last_heard_age_ms"].as_u64().is_some_and(|age| age >= 4_000), "{line}");
    assert!(line["unix_millis"].as_u64().is_some_and(|at| at > 1_600_000_000_000), "{line}");
    let metrics = cluster.get(2, "/metrics").expect("metrics").body;
    assert!(metrics.contains("synod_node_takeovers_total 1\n"), "{metrics}");
    drop(cluster);
    fs::remove_dir_all(&elsewhere).ok();
}

/// The suspect that is too young to be taken over, even by force.
#[test]
fn a_suspect_that_was_heard_lately_is_not_taken_over() {
    let layout = Layout { suspect_timeout_sec: 1, fail_timeout_sec: 30, ..Layout::default() };
    let mut cluster = TestCluster::new(&layout);
    cluster.start_all();
    cluster.until_agreed(ALL);
    let elsewhere = new_dir();
    cluster.kill(2);
    for index in [0, 1] {
        cluster.until_opinion(index, 2, &["suspect"]);
    }
    let join = ["join", &cluster.url(&[0, 1]), "--node", "node3", "--force-takeover"];
    let output = synod_in(&elsewhere, &join);
    assert_refused(&output, USAGE, &["a takeover needs a silence of 30s"]);
    // Its own disk needs no force: no other process can have lived on it since.
    cluster.start(2);
    cluster.until_agreed(ALL);
    drop(cluster);
    fs::remove_dir_all(&elsewhere).ok();
}

/// The settings of a cluster are what it began with.
#[test]
fn a_changed_configuration_is_refused_by_the_cluster_and_by_the_disk() {
    let layout = Layout::default();
    let mut cluster = TestCluster::new(&layout);
    cluster.start(0);
    eventually("a node answers", || cluster.status(0));
    let change = |from: &str, to: &str| {
        let yaml = cluster.yaml(&layout);
        assert!(yaml.contains(from), "{from} in {yaml}");
        fs::write(cluster.dir.join("changed.yaml"), yaml.replace(from, to)).expect("a configuration");
    };
    let start = |node: &str| cluster.synod(&["start", "--conf", "changed.yaml", "--node", node]);
    let changes = [
        ("total_slots: 60", "total_slots: 61", "initial_cluster.replication"),
        ("path: ./node3", "path: ./node33", "initial_cluster.nodes.node3"),
        ("fail_timeout_sec: 3", "fail_timeout_sec: 5", "registry.gossip"),
        ("namespace: default", "namespace: other", "registry.namespace"),
    ];
    for (from, to, setting) in changes {
        change(from, to);
        assert_refused(&start("node2"), USAGE, &["the configuration and the cluster differ in", setting]);
    }
    assert!(!cluster.disk(1).exists(), "nothing was written by a node that may not start");

    // With nobody to ask, the disk knows.
    let mut cluster = cluster;
    cluster.kill(0);
    let before = contents(&cluster.disk(0));
    let output = cluster.synod(&["start", "--conf", "changed.yaml", "--node", "node1"]);
    assert_refused(&output, USAGE, &["differ in", "registry.namespace"]);
    assert_unchanged(&cluster.disk(0), &before);
}

/// A disk that remembers another cluster joins no other one.
#[test]
fn the_disk_of_another_cluster_is_refused() {
    let mut cluster = TestCluster::new(&Layout::default());
    cluster.start(0);
    eventually("a node answers", || cluster.status(0));
    let mut other = TestCluster::new(&Layout { namespace: "other".to_owned(), ..Layout::default() });
    other.start(1);
    eventually("a node answers", || other.status(1));
    other.kill(1);
    let before = contents(&other.disk(1));
    // In the directory of the other cluster `./node2` is the disk of the other cluster.
    let output = other.synod(&["join", &cluster.url(&[0]), "--node", "node2"]);
    assert_refused(&output, USAGE, &["node2/registry belongs to another cluster"]);
    assert_unchanged(&other.disk(1), &before);
}

/// What is damaged is named with its place and left as it is.
#[test]
fn damaged_files_are_refused_with_their_place_and_left_as_they_are() {
    let mut cluster = TestCluster::started();
    cluster.write_all(ALL, "kept ");
    cluster.kill(2);
    let registry = cluster.disk(2).join("registry");
    let sound = contents(&registry);
    let start = |cluster: &TestCluster| cluster.synod(&["start", "--conf", CONFIG, "--node", "node3"]);

    // A byte in the middle of what was written.
    let (segment, bytes) = sound
        .iter()
        .find(|(path, _)| path.parent().is_some_and(|dir| dir.ends_with("oplog.log")))
        .expect("a segment of the log");
    let written = bytes.iter().rposition(|byte| *byte != 0).expect("something written");
    let mut damaged = bytes.clone();
    damaged[written / 2] ^= 0x20;
    fs::write(segment, &damaged).expect("damage");
    let before = contents(&registry);
    let name = segment.file_name().expect("a name").to_string_lossy();
    assert_refused(&start(&cluster), 1, &[&*name, "is damaged at byte ", "nothing was changed"]);
    assert_unchanged(&registry, &before);
    fs::write(segment, bytes).expect("repair");

    // A snapshot that is none.
    let snapshot = registry.join("snapshot.json");
    let was = fs::read(&snapshot).ok();
    for (text, reason) in
        [("no JSON", "snapshot.json is damaged at byte "), ("{\"format\"", "ends at byte 9")]
    {
        fs::write(&snapshot, text).expect("damage");
        let before = contents(&registry);
        assert_refused(&start(&cluster), 1, &["snapshot.json", reason, "nothing was changed"]);
        assert_unchanged(&registry, &before);
    }
    match was {
        Some(bytes) => fs::write(&snapshot, bytes).expect("repair"),
        None => fs::remove_file(&snapshot).expect("repair"),
    }

    // Repaired, it starts as if nothing had been.
    cluster.start(2);
    cluster.until_agreed(ALL);
    cluster.read_all(2, "kept ");
}

#[test]
fn a_misspelt_setting_is_named_with_its_line_and_the_one_that_was_meant() {
    let layout = Layout::default();
    let cluster = TestCluster::new(&layout);
    let yaml =
        cluster.yaml(&layout).replace("fail_timeout_sec", "fail_timeout_secs").replace("disks", "discs");
    fs::write(cluster.dir.join(CONFIG), yaml).expect("a configuration");
    let output = cluster.synod(&["start", "--conf", CONFIG, "--node", "node1"]);
    let reasons = [
        "cluster.yaml:8: registry.gossip.fail_timeout_secs",
        "did you mean fail_timeout_sec?",
        "initial_cluster.nodes[0].discs",
        "did you mean disks?",
    ];
    assert_refused(&output, USAGE, &reasons);
    let output = cluster.synod(&["start", "--conf", "nowhere.yaml", "--node", "node1"]);
    assert_refused(&output, USAGE, &["nowhere.yaml"]);
    let output = cluster.synod(&["start", "--node", "node1"]);
    assert_refused(&output, USAGE, &["--conf"]);
}

/// `synod start` and nothing else is a cluster.
#[test]
fn a_node_alone_is_ready_and_keeps_its_data_in_the_working_directory() {
    let host = IpAddr::from([127, 0, 0, 1]);
    let api = (host, free_ports(host)).into();
    let place = Place { name: "node1".to_owned(), api, namespace: None };
    let mut cluster = TestCluster::at(&Layout { nodes: 1, ..Layout::default() }, vec![place], "");
    let port = api.port().to_string();
    cluster.run(0, &["start", "--port", &port]);
    cluster.until_agreed(&[0]);
    assert!(cluster.dir.join("synod-data/node1/registry").is_dir());
    cluster.write(0, 2047, "alone").expect("a write");

    cluster.signal(0, "TERM");
    assert!(cluster.until_ended(0).success());
    cluster.run(0, &["start", "--port", &port]);
    cluster.until_agreed(&[0]);
    assert_eq!(cluster.get(0, "/v1/slots/2047/register").expect("an answer").body, "alone");
}

/// The listings for machines have the fields that scripts rely on, and the ones for people a line for each.
#[test]
fn the_listings_have_the_promised_fields() {
    let cluster = TestCluster::started();
    let api = format!("http://{}", cluster.api(1));
    let list = |command: &str| {
        let output = cluster.synod(&[command, "--json", "--api", &api]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let members = list("members");
    let members = members.as_array().expect("a list");
    assert_eq!(members.len(), 3);
    for (index, member) in members.iter().enumerate() {
        let fields = ["address", "api", "incarnation", "last_heard_ms", "node_id", "slots", "status"];
        assert_eq!(names(member), BTreeSet::from(fields), "{member}");
        assert_eq!(member["node_id"], cluster.places[index].name);
        assert_eq!((&member["incarnation"], &member["status"]), (&1.into(), &"alive".into()));
        assert!(member["address"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")));
    }
    let slots = list("slots");
    let slots = slots.as_array().expect("a list");
    assert_eq!(slots.len(), 60);
    for slot in slots {
        let fields = ["epoch", "primary", "replicas", "slot", "state"];
        assert_eq!(names(slot), BTreeSet::from(fields), "{slot}");
        assert!(slot["epoch"].as_u64() > Some(0) && slot["primary"].is_string(), "{slot}");
        assert_eq!((slot["replicas"].as_array().map(Vec::len), &slot["state"]), (Some(3), &"stable".into()));
    }
    assert_eq!(list("status")["ready"], true);

    // For people: a head and a line for each. An explanation asks all of them.
    let table = |arguments: &[&str]| {
        let output = cluster.synod(&[arguments, &["--api", &api]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(table(&["members"]).lines().count(), 4);
    assert_eq!(table(&["slots", "--slot", "7"]).lines().count(), 2);
    for name in ["node1", "node2", "node3"] {
        assert!(table(&["explain", "slot", "7"]).contains(&format!("{name} sees ")), "{name}");
        assert!(table(&["explain", "member", "node1"]).contains(&format!("{name} holds ")), "{name}");
    }
    let output = cluster.synod(&["slots", "--slot", "60", "--api", &api]);
    assert_refused(&output, 1, &["there is no slot 60"]);
}

#[test]
fn a_cluster_lives_on_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let mut cluster = TestCluster::new(&Layout { host: Ipv6Addr::LOCALHOST.into(), ..Layout::default() });
    cluster.start(0);
    cluster.start(1);
    eventually("a node answers", || cluster.status(0));
    let url = format!("cluster://[::1]:1,{}", cluster.api(0));
    cluster.run(2, &["join", &url, "--node", "node3", "--advertise-addr", "::1"]);
    cluster.until_agreed(ALL);
    cluster.write_all(ALL, "over v6 ");
    cluster.read_all(1, "over v6 ");
    let api = format!("http://{}", cluster.api(2));
    assert!(cluster.synod(&["status", "--api", &api]).status.success());
}

/// Everything below `dir` is as it was.
fn assert_unchanged(dir: &Path, before: &BTreeMap<PathBuf, Vec<u8>>) {
    let after = contents(dir);
    let paths: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changed: Vec<_> = paths.into_iter().filter(|path| before.get(*path) != after.get(*path)).collect();
    assert!(changed.is_empty(), "changed: {changed:?}");
}

fn names(object: &Value) -> BTreeSet<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// It ended with this code and these reasons, and printed nothing for machines.
fn assert_refused(output: &Output, code: i32, reasons: &[&str]) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{told}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    for reason in reasons {
        assert!(told.contains(reason), "{reason:?} is not in {told}");
    }
}
