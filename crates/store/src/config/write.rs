//! A configuration as text. Texts are quoted as in JSON, which YAML understands.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;
use synod_core::slots::{NodePorts, Pace, QueueLayout, Replication};

use super::NodeConfig;

pub(super) fn to_yaml(config: &NodeConfig) -> String {
    let mut yaml = String::new();
    assert!(write_all(config, &mut yaml).is_ok(), "a string takes every text");
    yaml
}

fn write_all(config: &NodeConfig, out: &mut String) -> std::fmt::Result {
    let bootstrap = &config.bootstrap;
    let Pace { gossip_interval, full_sync_interval, suspect_timeout, fail_timeout, fanout } = bootstrap.pace;
    writeln!(out, "registry:\n  backend: gossip\n  namespace: {}", quoted(&bootstrap.namespace))?;
    writeln!(out, "  gossip:\n    transport: memberlist\n    seeds:")?;
    for seed in &config.seeds {
        writeln!(out, "      - {}", quoted(seed.as_str()))?;
    }
    writeln!(out, "    gossip_interval_ms: {}", gossip_interval.as_millis())?;
    writeln!(out, "    full_sync_interval_sec: {}", seconds(full_sync_interval))?;
    writeln!(out, "    suspect_timeout_sec: {}", seconds(suspect_timeout))?;
    writeln!(out, "    fail_timeout_sec: {}", seconds(fail_timeout))?;
    writeln!(out, "    fanout: {fanout}")?;
    if let Some(dir) = &config.persist_dir {
        writeln!(out, "    persist_dir: {}", quoted(&dir.to_string_lossy()))?;
    }
    writeln!(out, "\ninitial_cluster:\n  nodes:")?;
    for node in &bootstrap.nodes {
        let NodePorts { peer, gossip, s3, jobs } = node.ports;
        writeln!(out, "    - node_id: {}", quoted(node.node.as_str()))?;
        writeln!(out, "      bind_addr: {}", quoted(&node.bind.to_string()))?;
        writeln!(out, "      advertise_addr: {}", quoted(&node.advertise_host))?;
        writeln!(out, "      ports: {{peer: {peer}, gossip: {gossip}, s3: {s3}, jobs: {jobs}}}")?;
        writeln!(out, "      disks:")?;
        for disk in &node.disks {
            writeln!(out, "        - path: {}", quoted(disk))?;
        }
    }
    let Replication { total_slots, replicas, min_write_replicas } = bootstrap.replication;
    writeln!(out, "  replication:\n    total_slots: {total_slots}\n    replicas: {replicas}")?;
    writeln!(out, "    min_write_replicas: {min_write_replicas}")?;
    let QueueLayout { is_enabled, voters, groups, heartbeat, election_min, election_max } = bootstrap.queue;
    writeln!(out, "\nqueue:\n  enabled: {is_enabled}\n  voters: {voters}\n  groups: {groups}")?;
    writeln!(out, "  heartbeat_ms: {}", heartbeat.as_millis())?;
    writeln!(out, "  election_min_ms: {}", election_min.as_millis())?;
    writeln!(out, "  election_max_ms: {}", election_max.as_millis())?;
    if let Some(s3) = bootstrap.archive.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        let s3 = &s3["s3"];
        writeln!(out, "\narchive:\n  archive_type: s3\n  s3:")?;
        for key in ["bucket", "region", "endpoint", "allow_http"] {
            if let Some(value) = s3.get(key) {
                writeln!(out, "    {key}: {value}")?;
            }
        }
        if let Some(key) = s3.get("access_key_id") {
            writeln!(out, "    credentials:\n      access_key_id: {key}")?;
        }
    }
    if let Some(file) = &config.secret_file {
        writeln!(out, "\nsecret_file: {}", quoted(&file.to_string_lossy()))?;
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Whole seconds without a fraction, others to the millisecond.
fn seconds(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis % 1000 {
        0 => (millis / 1000).to_string(),
        rest => format!("{}.{rest:03}", millis / 1000),
    }
}
