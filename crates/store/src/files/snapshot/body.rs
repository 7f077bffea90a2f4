//! What is in a snapshot, by names that people can read. Everything is parsed again when it is read.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use synod_core::Incarnation;
use synod_core::id::{Authority, MemberId, NodeId};
use synod_core::slots::{
    BootstrapNode, BootstrapState, ElectionCause, Head, HlcTimestamp, NodePorts, NodeRecord, Pace,
    Replication, SlotEpoch, SlotId, SlotRecord, SlotState, Tag,
};

use crate::bootstrap_json::QueueJson;
use crate::files::state::State;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    /// The last record of the log that is in here.
    pub(super) covers: u64,
    cluster_id: Option<String>,
    incarnation: Option<u64>,
    clock: String,
    bootstrap: Option<BootstrapText>,
    promises: Vec<PromiseText>,
    heads: Vec<HeadText>,
    records: Vec<RecordText>,
    nodes: Vec<NodeText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BootstrapText {
    initialized_at: String,
    initialized_by: String,
    namespace: String,
    nodes: Vec<BootstrapNodeText>,
    replication: ReplicationText,
    pace: PaceText,
    archive: Option<String>,
    #[serde(default)]
    queue: QueueJson,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BootstrapNodeText {
    node: String,
    bind: String,
    advertise_host: String,
    peer_port: u16,
    gossip_port: u16,
    s3_port: u16,
    jobs_port: u16,
    disks: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicationText {
    total_slots: u16,
    replicas: u8,
    min_write_replicas: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PaceText {
    gossip_interval: Duration,
    full_sync_interval: Duration,
    suspect_timeout: Duration,
    fail_timeout: Duration,
    fanout: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PromiseText {
    slot: u16,
    epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    granted_to: Option<String>,
}

/// The value is text where it can be read as such, and hexadecimal where not.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeadText {
    slot: u16,
    epoch: u64,
    sequence: u64,
    accepted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordText {
    slot: u16,
    epoch: u64,
    primary: String,
    replicas: Vec<String>,
    state: String,
    updated_at: String,
    granted_by: Vec<String>,
    cause: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeText {
    node: String,
    incarnation: u64,
    address: String,
    instance: u64,
    leaving: bool,
    heartbeat: String,
}

impl Body {
    pub(super) fn new(state: &State, covers: u64) -> Self {
        Self {
            covers,
            cluster_id: state.bootstrap.as_ref().map(|bootstrap| bootstrap.cluster_id().to_string()),
            incarnation: state.incarnation.map(Incarnation::get),
            clock: state.clock.to_string(),
            bootstrap: state.bootstrap.as_ref().map(bootstrap_text),
            promises: state
                .promises
                .iter()
                .map(|(slot, (epoch, granted_to))| PromiseText {
                    slot: slot.get(),
                    epoch: epoch.get(),
                    granted_to: granted_to.as_ref().map(ToString::to_string),
                })
                .collect(),
            heads: state.heads.iter().map(|(slot, head)| head_text(*slot, head)).collect(),
            records: state.records.values().map(record_text).collect(),
            nodes: state.nodes.values().map(node_text).collect(),
        }
    }

    /// The state, or the name of what is unsound in it.
    pub(super) fn into_state(self) -> Result<State, &'static str> {
        let mut state = State { clock: stamp(&self.clock)?, ..State::default() };
        state.incarnation = self.incarnation.map(incarnation).transpose()?;
        state.bootstrap = self.bootstrap.map(bootstrap).transpose()?;
        let cluster_id = state.bootstrap.as_ref().map(|bootstrap| bootstrap.cluster_id().to_string());
        if cluster_id != self.cluster_id {
            return Err("id of the cluster");
        }
        for PromiseText { slot, epoch, granted_to } in self.promises {
            let granted_to = granted_to.as_deref().map(name).transpose()?;
            state.promises.insert(SlotId::new(slot), (SlotEpoch::new(epoch), granted_to));
        }
        for text in self.heads {
            state.heads.insert(SlotId::new(text.slot), head(text)?);
        }
        for text in self.records {
            state.records.insert(SlotId::new(text.slot), record(&text)?);
        }
        for text in self.nodes {
            state.nodes.insert(name(&text.node)?, node(&text)?);
        }
        Ok(state)
    }
}

fn bootstrap_text(state: &BootstrapState) -> BootstrapText {
    let Replication { total_slots, replicas, min_write_replicas } = state.replication;
    let Pace { gossip_interval, full_sync_interval, suspect_timeout, fail_timeout, fanout } = state.pace;
    let node_text = |node: &BootstrapNode| BootstrapNodeText {
        node: node.node.to_string(),
        bind: node.bind.to_string(),
        advertise_host: node.advertise_host.clone(),
        peer_port: node.ports.peer,
        gossip_port: node.ports.gossip,
        s3_port: node.ports.s3,
        jobs_port: node.ports.jobs,
        disks: node.disks.clone(),
    };
    BootstrapText {
        initialized_at: state.initialized_at.to_string(),
        initialized_by: state.initialized_by.to_string(),
        namespace: state.namespace.clone(),
        nodes: state.nodes.iter().map(node_text).collect(),
        replication: ReplicationText { total_slots, replicas, min_write_replicas },
        pace: PaceText { gossip_interval, full_sync_interval, suspect_timeout, fail_timeout, fanout },
        archive: state.archive.clone(),
        queue: state.queue.into(),
    }
}

fn bootstrap(text: BootstrapText) -> Result<BootstrapState, &'static str> {
    let ReplicationText { total_slots, replicas, min_write_replicas } = text.replication;
    let PaceText { gossip_interval, full_sync_interval, suspect_timeout, fail_timeout, fanout } = text.pace;
    let node = |text: BootstrapNodeText| {
        Ok(BootstrapNode {
            node: name(&text.node)?,
            bind: text.bind.parse().map_err(|_| "address to listen at")?,
            advertise_host: text.advertise_host,
            ports: NodePorts {
                peer: text.peer_port,
                gossip: text.gossip_port,
                s3: text.s3_port,
                jobs: text.jobs_port,
            },
            disks: text.disks,
        })
    };
    let state = BootstrapState {
        initialized_at: stamp(&text.initialized_at)?,
        initialized_by: name(&text.initialized_by)?,
        namespace: text.namespace,
        nodes: text.nodes.into_iter().map(node).collect::<Result<_, &'static str>>()?,
        replication: Replication { total_slots, replicas, min_write_replicas },
        pace: Pace { gossip_interval, full_sync_interval, suspect_timeout, fail_timeout, fanout },
        archive: text.archive,
        queue: text.queue.into(),
    };
    state.checked().map_err(|_| "beginning of the cluster")
}

fn head_text(slot: SlotId, head: &Head) -> HeadText {
    let is_plain = |text: &&str| !text.chars().any(char::is_control);
    let text = str::from_utf8(&head.value).ok().filter(is_plain).map(ToOwned::to_owned);
    let hex = text.is_none().then(|| {
        head.value.iter().fold(String::with_capacity(2 * head.value.len()), |mut hex, byte| {
            assert!(write!(hex, "{byte:02x}").is_ok(), "a string takes every text");
            hex
        })
    });
    let Tag { epoch, sequence } = head.tag;
    let accepted = head.accepted.get();
    HeadText { slot: slot.get(), epoch: epoch.get(), sequence, accepted, text, hex }
}

fn head(text: HeadText) -> Result<Head, &'static str> {
    let tag = Tag { epoch: SlotEpoch::new(text.epoch), sequence: text.sequence };
    let value = match (text.text, text.hex) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(hex)) => bytes(&hex).ok_or("value of a slot")?,
        _ => return Err("value of a slot"),
    };
    Ok(Head { tag, accepted: SlotEpoch::new(text.accepted), value: value.into() })
}

fn record_text(record: &SlotRecord) -> RecordText {
    let names = |names: &[NodeId]| names.iter().map(ToString::to_string).collect();
    RecordText {
        slot: record.slot.get(),
        epoch: record.epoch.get(),
        primary: record.primary.to_string(),
        replicas: names(&record.replicas),
        state: record.state.to_string(),
        updated_at: record.updated_at.to_string(),
        granted_by: names(&record.granted_by),
        cause: CAUSES[usize::from(record.cause.number())].to_owned(),
    }
}

fn record(text: &RecordText) -> Result<SlotRecord, &'static str> {
    let names = |names: &[String]| names.iter().map(|text| name(text)).collect::<Result<Vec<_>, _>>();
    let cause = CAUSES.iter().zip(ElectionCause::ALL).find(|(cause, _)| **cause == text.cause);
    if text.state != SlotState::Stable.to_string() {
        return Err("state of a slot");
    }
    Ok(SlotRecord {
        slot: SlotId::new(text.slot),
        epoch: SlotEpoch::new(text.epoch),
        primary: name(&text.primary)?,
        replicas: names(&text.replicas)?,
        state: SlotState::Stable,
        updated_at: stamp(&text.updated_at)?,
        granted_by: names(&text.granted_by)?,
        cause: cause.ok_or("cause of an election")?.1,
    })
}

fn node_text(record: &NodeRecord) -> NodeText {
    NodeText {
        node: record.member.node.to_string(),
        incarnation: record.member.incarnation.get(),
        address: record.address.to_string(),
        instance: record.instance,
        leaving: record.leaving,
        heartbeat: record.heartbeat.to_string(),
    }
}

fn node(text: &NodeText) -> Result<NodeRecord, &'static str> {
    Ok(NodeRecord {
        member: MemberId::new(name(&text.node)?, incarnation(text.incarnation)?),
        address: Authority::new(&text.address).map_err(|_| "address of a node")?,
        instance: text.instance,
        leaving: text.leaving,
        heartbeat: stamp(&text.heartbeat)?,
    })
}

fn name(text: &str) -> Result<NodeId, &'static str> {
    NodeId::new(text).map_err(|_| "name of a node")
}

fn incarnation(number: u64) -> Result<Incarnation, &'static str> {
    Incarnation::new(number).map_err(|_| "incarnation")
}

/// Reads what a stamp shows: milliseconds, a dot, and a counter.
fn stamp(text: &str) -> Result<HlcTimestamp, &'static str> {
    let parts = text.split_once('.').and_then(|(millis, counter)| {
        let (millis, counter): (u64, u16) = (millis.parse().ok()?, counter.parse().ok()?);
        let stamp = HlcTimestamp::from_bits(millis << u16::BITS | u64::from(counter));
        (stamp.unix_millis() == millis).then_some(stamp)
    });
    parts.ok_or("stamp")
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    if !hex.len().is_multiple_of(2) || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let pairs =
        (0..hex.len()).step_by(2).map(|start| u8::from_str_radix(hex.get(start..start + 2)?, 16).ok());
    pairs.collect()
}

/// The causes of elections, in the order of their numbers.
const CAUSES: [&str; 7] = [
    "first",
    "primary_suspect",
    "primary_failed",
    "primary_leaving",
    "primary_silent",
    "handed_over",
    "renewed",
];
