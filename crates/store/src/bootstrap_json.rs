//! The beginning of a cluster as JSON: for `join`, for gossip and for the disk.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use synod_core::NodeId;
use synod_core::slots::{
    BootstrapError, BootstrapNode, BootstrapState, HlcTimestamp, NodePorts, Pace, QueueLayout, Replication,
};

/// Writes a state.
#[must_use]
pub fn write(state: &BootstrapState) -> String {
    serde_json::to_string(&BootstrapJson::of(state)).expect("a state has nothing that JSON lacks")
}

/// Reads a state, and checks it.
///
/// # Errors
/// It is not JSON of a state, or not one that can be used.
pub fn read(text: &str) -> Result<BootstrapState, BootstrapJsonError> {
    serde_json::from_str::<BootstrapJson>(text)?.into_state()
}

/// A text is not the beginning of a cluster. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapJsonError {
    /// It is not JSON of one.
    #[error("the bootstrap state cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A name is malformed.
    #[error("the bootstrap state cannot be used: {0}")]
    Name(#[from] synod_core::NodeIdError),
    /// It cannot be used.
    #[error("the bootstrap state cannot be used: {0}")]
    State(#[from] BootstrapError),
}

/// The shape of the JSON. Unknown fields are refused: a newer node would mean something by them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BootstrapJson {
    initialized_at: u64,
    initialized_by: String,
    namespace: String,
    nodes: Vec<NodeJson>,
    replication: ReplicationJson,
    pace: PaceJson,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    archive: Option<String>,
    #[serde(default)]
    queue: QueueJson,
}

/// How the queue is replicated. A state that was written before there was one has what is set by itself.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueJson {
    enabled: bool,
    voters: u8,
    groups: u16,
    heartbeat_ms: u64,
    election_min_ms: u64,
    election_max_ms: u64,
}

impl Default for QueueJson {
    fn default() -> Self {
        QueueLayout::default().into()
    }
}

impl From<QueueLayout> for QueueJson {
    fn from(queue: QueueLayout) -> Self {
        Self {
            enabled: queue.is_enabled,
            voters: queue.voters,
            groups: queue.groups,
            heartbeat_ms: millis(queue.heartbeat),
            election_min_ms: millis(queue.election_min),
            election_max_ms: millis(queue.election_max),
        }
    }
}

impl From<QueueJson> for QueueLayout {
    fn from(queue: QueueJson) -> Self {
        Self {
            is_enabled: queue.enabled,
            voters: queue.voters,
            groups: queue.groups,
            heartbeat: Duration::from_millis(queue.heartbeat_ms),
            election_min: Duration::from_millis(queue.election_min_ms),
            election_max: Duration::from_millis(queue.election_max_ms),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct NodeJson {
    node_id: String,
    bind_addr: SocketAddr,
    advertise_addr: String,
    ports: PortsJson,
    disks: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PortsJson {
    peer: u16,
    gossip: u16,
    s3: u16,
    jobs: u16,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ReplicationJson {
    total_slots: u16,
    replicas: u8,
    min_write_replicas: u8,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PaceJson {
    gossip_interval_ms: u64,
    full_sync_interval_ms: u64,
    suspect_timeout_ms: u64,
    fail_timeout_ms: u64,
    fanout: u8,
}

impl BootstrapJson {
    /// The JSON of a state.
    #[must_use]
    pub fn of(state: &BootstrapState) -> Self {
        let nodes = state.nodes.iter().map(|node| {
            let NodePorts { peer, gossip, s3, jobs } = node.ports;
            NodeJson {
                node_id: node.node.to_string(),
                bind_addr: node.bind,
                advertise_addr: node.advertise_host.clone(),
                ports: PortsJson { peer, gossip, s3, jobs },
                disks: node.disks.clone(),
            }
        });
        let Replication { total_slots, replicas, min_write_replicas } = state.replication;
        Self {
            initialized_at: state.initialized_at.bits(),
            initialized_by: state.initialized_by.to_string(),
            namespace: state.namespace.clone(),
            nodes: nodes.collect(),
            replication: ReplicationJson { total_slots, replicas, min_write_replicas },
            pace: PaceJson {
                gossip_interval_ms: millis(state.pace.gossip_interval),
                full_sync_interval_ms: millis(state.pace.full_sync_interval),
                suspect_timeout_ms: millis(state.pace.suspect_timeout),
                fail_timeout_ms: millis(state.pace.fail_timeout),
                fanout: state.pace.fanout,
            },
            archive: state.archive.clone(),
            queue: state.queue.into(),
        }
    }

    /// The state, checked.
    ///
    /// # Errors
    /// A name or a number that cannot be used.
    pub fn into_state(self) -> Result<BootstrapState, BootstrapJsonError> {
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in self.nodes {
            let PortsJson { peer, gossip, s3, jobs } = node.ports;
            nodes.push(BootstrapNode {
                node: NodeId::new(&node.node_id)?,
                bind: node.bind_addr,
                advertise_host: node.advertise_addr,
                ports: NodePorts { peer, gossip, s3, jobs },
                disks: node.disks,
            });
        }
        let ReplicationJson { total_slots, replicas, min_write_replicas } = self.replication;
        let pace = self.pace;
        let state = BootstrapState {
            initialized_at: HlcTimestamp::from_bits(self.initialized_at),
            initialized_by: NodeId::new(&self.initialized_by)?,
            namespace: self.namespace,
            nodes,
            replication: Replication { total_slots, replicas, min_write_replicas },
            pace: Pace {
                gossip_interval: Duration::from_millis(pace.gossip_interval_ms),
                full_sync_interval: Duration::from_millis(pace.full_sync_interval_ms),
                suspect_timeout: Duration::from_millis(pace.suspect_timeout_ms),
                fail_timeout: Duration::from_millis(pace.fail_timeout_ms),
                fanout: pace.fanout,
            },
            archive: self.archive,
            queue: self.queue.into(),
        };
        Ok(state.checked()?)
    }
}
