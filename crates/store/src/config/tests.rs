//! Tests.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use proptest::prelude::*;
use synod_core::id::NodeId;
use synod_core::slots::HlcTimestamp;

use super::*;

const NODE: &str = "initial_cluster: {nodes: [{node_id: a, bind_addr: '127.0.0.1:1', disks: [{path: d}]}]}\n";

/// The file of the design that this product follows, with its two nodes.
const SEED: &str = r#"
registry:
  backend: gossip # options: gossip | redis | etcd
  namespace: default
  gossip:
    transport: "internal_http"
    seeds:
      - "192.19.0.1:482"
      - "192.19.0.2:482"
      - "192.19.0.3:482"
    gossip_interval_ms: 500
    full_sync_interval_sec: 10
    suspect_timeout_sec: 15
    fail_timeout_sec: 45
    fanout: 3
    persist_dir: "./demo/node1/registry"

initial_cluster:
  nodes:
    - node_id: "node1"
      bind_addr: "0.0.0.0:482"
      advertise_addr: "192.19.0.1"
      disks:
        - path: ./demo/node1/disk
    - node_id: "node2"
      bind_addr: "0.0.0.0:482"
      advertise_addr: "192.19.0.2"
      disks:
        - path: ./demo/node2/disk

archive:
  archive_type: s3
  s3:
    bucket: an-archive
    region: us-east-1
    endpoint: http://127.0.0.1:9000
    allow_http: true
    credentials:
      access_key_id: xxx
      secret_access_key: yyy
"#;

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a name")
}

/// The errors as `line path problem`, one each.
fn errors(text: &str) -> Vec<String> {
    let errors = NodeConfig::parse(text).expect_err("a bad configuration");
    let shown =
        errors.errors().iter().map(|error| format!("{} {}: {}", error.line, error.path, error.problem));
    shown.collect()
}

#[test]
fn the_file_of_the_design_is_read() {
    let config = NodeConfig::parse(SEED).expect("a configuration");
    let first = &config.bootstrap.nodes[0];
    assert_eq!(first.api().expect("an address").as_str(), "192.19.0.1:482");
    assert_eq!((first.bind.to_string().as_str(), first.ports.jobs), ("0.0.0.0:482", 486));
    assert_eq!(config.seeds.len(), 3, "{:?}", config.seeds);
    assert_eq!(config.registry_dir(&node("node2")), Some("./demo/node1/registry".into()));
    assert_eq!(config.bootstrap.pace, Pace::default());
    let archive = config.bootstrap.archive.as_deref();
    assert_eq!(
        archive,
        Some(concat!(
            r#"{"archive_type":"s3","s3":{"bucket":"an-archive","region":"us-east-1","#,
            r#""endpoint":"http://127.0.0.1:9000","allow_http":true,"access_key_id":"xxx"}}"#
        ))
    );
    assert_eq!(config.archive_secret.as_ref().map(ArchiveSecret::expose), Some("yyy"));
    assert!(!format!("{config:?}").contains("yyy"), "a secret is never shown");
}

#[test]
fn the_example_is_a_cluster_of_three_and_begins_the_same_cluster_everywhere() {
    let example = NodeConfig::parse(include_str!("../../../../docs/cluster.yaml")).expect("the example");
    assert_eq!((example.bootstrap.nodes.len(), example.bootstrap.write_quorum()), (3, 2));
    let begun = |name: &str, at| example.begun_by(&node(name), HlcTimestamp::from_bits(at)).expect("a node");
    let (early, late) = (begun("node1", 5), begun("node3", 7));
    assert_eq!((early.initialized_by.as_str(), early.cluster_id()), ("node1", late.cluster_id()));
    assert_eq!(example.begun_by(&node("node4"), HlcTimestamp::default()), None);
    let local = NodeConfig::parse(include_str!("../../../../docs/local.yaml")).expect("the local example");
    assert!(
        local.bootstrap.nodes.len() == 3
            && local.bootstrap.nodes.iter().all(|one| one.bind.ip().is_loopback())
    );
}

#[test]
fn defaults_are_those_of_the_cluster_and_nothing_is_kept_where_restarts_forget() {
    let config = NodeConfig::parse(NODE).expect("a configuration");
    assert_eq!(config.bootstrap.replication, Replication::default());
    assert_eq!((config.bootstrap.namespace.as_str(), config.seeds[0].as_str()), ("default", "127.0.0.1:1"));
    assert_eq!(config.registry_dir(&node("a")), Some("d/registry".into()));
    assert_eq!(config.registry_dir(&node("b")), None);
    let development = NodeConfig::development(Path::new("here"), DEFAULT_PORT).expect("a configuration");
    assert_eq!(development.seeds[0].as_str(), "127.0.0.1:8400");
    assert_eq!(development.registry_dir(&node("node1")), Some("here/node1/registry".into()));
    assert!(NodeConfig::development(Path::new("here"), 65_533).is_err(), "no room for the other listeners");
}

#[test]
fn seconds_may_have_fractions() {
    let text = format!("{NODE}registry: {{gossip: {{suspect_timeout_sec: 0.5, fail_timeout_sec: 1.25}}}}");
    let pace = NodeConfig::parse(&text).expect("a configuration").bootstrap.pace;
    let millis = Duration::from_millis;
    assert_eq!((pace.suspect_timeout, pace.fail_timeout), (millis(500), millis(1250)));
}

#[test]
fn all_errors_are_told_at_once_with_their_paths_and_lines() {
    let text = "registry:
  backend: redis
  gossip:
    fanuot: 3
    transport: carrier_pigeon
    seeds: [\"a:0\", 7]
    gossip_interval_ms: soon
    suspect_timeout_sec: -1
initial_cluster:
  nodes:
    - node_id: a b
      bind_addr: localhost
      disks: []
    - bind_addr: \"0.0.0.0:8400\"
      disk: []
  replication:
    total_slots: 70000
    replicas: 2.5
archive: {archive_type: tape, s3: {bucket: b, endpoint: \"http://x\"}}
colour: blue
";
    let expected = [
        "2 registry.backend: \"redis\" is not needed here: the nodes keep the registry themselves, which is backend: gossip",
        "4 registry.gossip.fanuot: there is no such setting; did you mean fanout?",
        "5 registry.gossip.transport: \"carrier_pigeon\" is no way to gossip; there are internal_http and memberlist, which mean the same here",
        "6 registry.gossip.seeds[0]: \"a:0\" has no port from 1 to 65535 behind its colon",
        "6 registry.gossip.seeds[1]: this must be text, and is a number (put it in quotes)",
        "7 registry.gossip.gossip_interval_ms: this must be a whole number, and is text",
        "8 registry.gossip.suspect_timeout_sec: this is -1; it must be from 0 to 1000000000",
        "11 initial_cluster.nodes[0].node_id: a node name consists of letters, digits, '-', '_' and '.'; ' ' is none of them",
        "12 initial_cluster.nodes[0].bind_addr: \"localhost\" is no address to listen at; it is ip:port or [ipv6]:port",
        "14 initial_cluster.nodes[1]: node_id is missing",
        "14 initial_cluster.nodes[1]: advertise_addr is missing: others cannot reach a node at the 0.0.0.0:8400 where it listens",
        "14 initial_cluster.nodes[1]: disks is missing",
        "15 initial_cluster.nodes[1].disk: there is no such setting; did you mean disks?",
        "17 initial_cluster.replication.total_slots: this is 70000; it must be from 1 to 16384",
        "18 initial_cluster.replication.replicas: this must be a whole number, and is a number with a fraction",
        "19 archive.archive_type: \"tape\" is no kind of archive; there is s3",
        "19 archive.s3.endpoint: \"http://x\" is not encrypted; set allow_http: true if that is meant",
        "20 colour: there is no such setting; there are registry, initial_cluster, queue, archive, secret_file",
    ];
    assert_eq!(errors(text), expected);
}

#[test]
fn what_is_wrong_with_an_archive_is_named_by_the_setting_and_its_line() {
    let no_endpoint = |value: &str| {
        format!("4 archive.s3.endpoint: {value:?} is no endpoint; it is https://host, or http://host:port")
    };
    for (archive, expected) in [
        (
            "  bucket: b",
            vec![
                "2 archive: archive_type is missing".to_owned(),
                "2 archive: s3 is missing".to_owned(),
                "3 archive.bucket: there is no such setting; there are archive_type, s3".to_owned(),
            ],
        ),
        ("  archive_type: s3\n  s3: {region: r}", vec!["4 archive.s3: bucket is missing".to_owned()]),
        (
            "  archive_type: s3\n  s3: {bucket: '', region: '', buket: b}",
            vec![
                "4 archive.s3.bucket: this must not be empty".to_owned(),
                "4 archive.s3.region: this must not be empty".to_owned(),
                "4 archive.s3.buket: there is no such setting; did you mean bucket?".to_owned(),
            ],
        ),
        (
            "  archive_type: s3\n  s3: {bucket: 'a/b', allow_http: 'yes please'}",
            vec![
                "4 archive.s3.bucket: \"a/b\" is no name of a bucket; it consists of letters, digits, '-', '_' and '.'"
                    .to_owned(),
                "4 archive.s3.allow_http: this must be true or false, and is text".to_owned(),
            ],
        ),
        ("  archive_type: s3\n  s3: {bucket: b, endpoint: s3.example.com}", vec![no_endpoint("s3.example.com")]),
        ("  archive_type: s3\n  s3: {bucket: b, endpoint: 'https://'}", vec![no_endpoint("https://")]),
        ("  archive_type: s3\n  s3: {bucket: b, endpoint: 'https:///b'}", vec![no_endpoint("https:///b")]),
        ("  archive_type: s3\n  s3: {bucket: b, endpoint: 'https://h o'}", vec![no_endpoint("https://h o")]),
        ("  archive_type: s3\n  s3: {bucket: b, endpoint: 'https://id:key@h'}", vec![no_endpoint("https://id:key@h")]),
        (
            "  archive_type: s3\n  s3: {bucket: b, credentials: {access_key: a, secret_access_key: s}}",
            vec![
                "4 archive.s3.credentials: access_key_id is missing".to_owned(),
                "4 archive.s3.credentials.access_key: there is no such setting; did you mean access_key_id?".to_owned(),
            ],
        ),
    ] {
        let mut found = errors(&format!("{NODE}archive:\n{archive}\n"));
        let mut expected = expected;
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{archive}");
    }
}

#[test]
fn what_the_cluster_refuses_is_named_by_the_setting_and_its_line() {
    let gossip = format!("{NODE}registry:\n  gossip:\n    suspect_timeout_sec: 5\n    fail_timeout_sec: 5\n");
    assert_eq!(
        errors(&gossip),
        ["5 registry.gossip.fail_timeout_sec: fail_timeout in ms is 5000; it must be from 5001 to 86400000"]
    );
    let twice = "initial_cluster:
  replication: {replicas: 2}
  nodes:
    - {node_id: a, bind_addr: '127.0.0.1:1', disks: [{path: d}]}
    - {node_id: a, bind_addr: '127.0.0.1:10', disks: [{path: d}]}
";
    assert_eq!(errors(twice), ["5 initial_cluster.nodes[1]: node a is there twice"]);
    let writes = "initial_cluster:
  nodes: [{node_id: a, bind_addr: '127.0.0.1:1', disks: [{path: d}]}]
  replication:
    replicas: 2
    min_write_replicas: 3
";
    assert_eq!(
        errors(writes),
        ["5 initial_cluster.replication.min_write_replicas: min_write_replicas is 3; it must be from 1 to 2"]
    );
    let namespace = format!("{NODE}registry:\n  namespace: ''\n");
    assert_eq!(errors(&namespace), ["3 registry.namespace: a namespace has 1 to 128 bytes"]);
    assert_eq!(
        errors("initial_cluster: {nodes: []}"),
        ["1 initial_cluster: a cluster has 1 to 100 nodes, this one has 0"]
    );
    assert_eq!(errors("initial_cluster: {replication: {}}"), ["1 initial_cluster: nodes is missing"]);
}

#[test]
fn what_is_not_yaml_or_no_section_is_refused_with_its_line() {
    assert_eq!(errors(""), ["1 : initial_cluster is missing"]);
    assert_eq!(errors("- a"), ["1 : this must be a section, and is a list"]);
    assert_eq!(errors("registry: 3\n")[0], "1 registry: this must be a section, and is a number");
    assert_eq!(errors("a: 1\nb: 2\na: 3\n"), ["3 : a is there twice"]);
    let broken = errors("registry:\n  gossip: [1,\n");
    assert!(broken[0].starts_with("2 : this is not YAML: "), "{broken:?}");
}

#[test]
fn an_advertised_address_is_a_host_that_others_can_reach() {
    let advertised = |bind: &str, advertise: &str| {
        let text = format!(
            "initial_cluster: {{nodes: [{{node_id: a, bind_addr: '{bind}', advertise_addr: '{advertise}', disks: [{{path: d}}]}}]}}"
        );
        let config = NodeConfig::parse(&text).map_err(|errors| errors.errors()[0].problem.to_string());
        config.map(|config| config.bootstrap.nodes[0].advertise_host.clone())
    };
    for (advertise, host) in [
        ("10.0.0.1", "10.0.0.1"),
        ("node1.example", "node1.example"),
        ("node1:8400", "node1"),
        ("::1", "[::1]"),
        ("[0::1]", "[::1]"),
        ("[::1]:8400", "[::1]"),
    ] {
        assert_eq!(advertised("[::]:8400", advertise), Ok(host.into()), "{advertise}");
    }
    for bad in ["0.0.0.0", "::", "[::]:8400", "a b", "", "a:b:c", "x:99999"] {
        let error = advertised("0.0.0.0:8400", bad).expect_err(bad);
        assert!(error.contains("is no address under which others reach a node"), "{bad}: {error}");
    }
    let port = advertised("0.0.0.0:8400", "node1:8401").expect_err("another port");
    assert_eq!(port, "the port 8401 is not the one of bind_addr, 8400; leave it out");
}

#[test]
fn ports_are_derived_unless_they_are_given() {
    let with = |bind: &str, ports: &str| {
        let text = format!(
            "initial_cluster: {{nodes: [{{node_id: a, bind_addr: '{bind}', ports: {{{ports}}}, disks: [{{path: d}}]}}]}}"
        );
        let config = NodeConfig::parse(&text).map_err(|errors| errors.to_string());
        config.map(|config| config.bootstrap.nodes[0].ports)
    };
    let mixed = with("[::1]:9000", "s3: 80").expect("a configuration");
    assert_eq!((mixed.peer, mixed.gossip, mixed.s3, mixed.jobs), (9001, 9002, 80, 9004));
    assert!(with("[::1]:65535", "peer: 1, gossip: 2, s3: 3, jobs: 4").is_ok());
    let error = with("[::1]:65535", "peer: 1").expect_err("no room");
    assert_eq!(
        error,
        "line 1: initial_cluster.nodes[0].bind_addr: node a: its port and the four after it must be from 1 to 65535"
    );
    let error = with("[::1]:9000", "peer: 9000").expect_err("one port for two listeners");
    assert!(error.contains("[::1]:9000 is already the address of another listener"), "{error}");
}

#[test]
fn a_secret_is_read_only_from_a_file_of_its_owner() {
    let dir = tempfile::tempdir().expect("a directory");
    let (secret, file) = (dir.path().join("secret"), dir.path().join("cluster.yaml"));
    let write = |text: &str, mode| {
        fs::write(&secret, text).expect("a file");
        fs::set_permissions(&secret, Permissions::from_mode(mode)).expect("permissions");
    };
    fs::write(&file, format!("{NODE}secret_file: {:?}\n", secret.display().to_string())).expect("a file");

    let error = NodeConfig::load(&file).expect_err("no secret yet");
    assert!(matches!(error, LoadError::Secret(SecretError::Read { .. })), "{error}");
    write(&"0f".repeat(32), 0o640);
    let error = NodeConfig::load(&file).expect_err("the group can read it");
    assert!(matches!(error, LoadError::Secret(SecretError::Readable { mode: 0o640, .. })), "{error}");
    for bad in ["", "0f", &"0f".repeat(33), &"0g".repeat(32), &format!("{} {}", "0f".repeat(32), "x")] {
        write(bad, 0o600);
        let error = NodeConfig::load(&file).expect_err(bad);
        assert!(matches!(error, LoadError::Secret(SecretError::Malformed { .. })), "{bad}: {error}");
    }
    write(&format!("{}\n", "0f".repeat(32)), 0o600);
    let config = NodeConfig::load(&file).expect("a configuration");
    assert_eq!(config.secret.map(|secret| *secret.bytes()), Some([15; 32]));
}

#[test]
fn the_queue_is_laid_out_as_the_file_says() {
    use synod_core::slots::QueueLayout;

    let parsed = |queue: &str| NodeConfig::parse(&format!("{NODE}queue: {{{queue}}}\n"));
    let layout = |queue: &str| parsed(queue).expect("a configuration").bootstrap.queue;
    assert_eq!(layout(""), QueueLayout::default());
    let (heartbeat, election_min, election_max) =
        (Duration::from_millis(20), Duration::from_millis(60), Duration::from_millis(61));
    assert_eq!(
        layout(
            "enabled: false, voters: 5, groups: 4, heartbeat_ms: 20, election_min_ms: 60, election_max_ms: 61"
        ),
        QueueLayout { is_enabled: false, voters: 5, groups: 4, heartbeat, election_min, election_max }
    );
    for (queue, setting) in [
        ("voters: 0", "queue.voters"),
        ("groups: 65", "queue.groups"),
        ("heartbeat_ms: 51", "queue.election_min_ms"),
        ("election_max_ms: 150", "queue.election_max_ms"),
        ("leaders: 2", "queue.leaders"),
    ] {
        let errors = parsed(queue).expect_err(queue);
        assert_eq!(errors.errors()[0].path, setting, "{errors}");
    }
}

#[test]
fn an_error_of_a_file_names_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("cluster.yaml");
    fs::write(&file, "colour: blue\n").expect("a file");
    let error = NodeConfig::load(&file).expect_err("a bad file").to_string();
    assert!(error.contains("cluster.yaml:1: colour: there is no such setting"), "{error}");
    fs::write(&file, vec![b'#'; (1 << 20) + 1]).expect("a file");
    assert!(matches!(NodeConfig::load(&file), Err(LoadError::TooLong { .. })));
}

#[test]
fn what_is_written_reads_back_as_the_same() {
    let extra = format!(
        "{NODE}secret_file: \"a \\\" b\"\nregistry: {{namespace: 'n: #x', gossip: {{seeds: ['[::1]'], suspect_timeout_sec: 0.125, persist_dir: ü}}}}"
    );
    for text in [SEED, NODE, &extra, include_str!("../../../../docs/cluster.yaml")] {
        let config = NodeConfig::parse(text).expect("a configuration");
        let yaml = config.to_yaml();
        assert!(!yaml.contains("yyy"), "secrets are not written");
        let again = NodeConfig::parse(&yaml).unwrap_or_else(|errors| panic!("{errors}\n{yaml}"));
        assert_eq!(again, NodeConfig { archive_secret: None, ..config });
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[a-c:{}\\[\\],'\" \n0-9.&*<|>!-]{0,80}") {
        drop(NodeConfig::parse(&text));
    }

    /// Every scalar of the example replaced by something else: refused with a line, or read.
    #[test]
    fn no_setting_makes_it_panic(line in 0..60_usize, value in "[0-9a-z:.\\[\\]-]{0,12}") {
        let lines = SEED.lines().enumerate().map(|(number, text)| match text.split_once(": ") {
            Some((key, _)) if number == line => format!("{key}: {value}"),
            _ => text.to_owned(),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        if let Err(errors) = NodeConfig::parse(&text) {
            prop_assert!(errors.errors().iter().all(|error| error.line > 0));
        }
    }
}
