//! What a cluster is made of, agreed once: its nodes, their disks, how often things are stored, and its pace.
//!
//! The id of a cluster is a hash of its layout. Two nodes that start from equal configurations therefore begin the *same*
//! cluster, even if neither can reach the other, and two that start from different ones refuse each other. Nothing here
//! ever changes while the cluster lives; where two nodes have written down different moments of its beginning, the earlier
//! one counts.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use xxhash_rust::xxh3::xxh3_128;

use super::hlc::HlcTimestamp;
use super::id::{ClusterId, SlotId};
use crate::id::{Authority, AuthorityError, NodeId};

/// One node of the layout.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootstrapNode {
    /// Its name.
    pub node: NodeId,
    /// Where it listens for HTTP. Its other listeners are at the same address and [`ports`](Self::ports).
    pub bind: SocketAddr,
    /// The host under which others reach it: a name, an IPv4 address, or an IPv6 address in brackets.
    pub advertise_host: String,
    /// The ports of its listeners.
    pub ports: NodePorts,
    /// The directories it stores in. The first also holds its registry.
    pub disks: Vec<String>,
}

/// The ports of the listeners of a node. Derived from one unless they are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePorts {
    /// Peers, gRPC. The base port and 1.
    pub peer: u16,
    /// Gossip, TCP and UDP. The base port and 2.
    pub gossip: u16,
    /// S3. The base port and 3.
    pub s3: u16,
    /// Jobs, in beanstalkd's protocol. The base port and 4.
    pub jobs: u16,
}

impl NodePorts {
    /// The ports after `base`; `None` when there are not enough.
    #[must_use]
    pub const fn after(base: u16) -> Option<Self> {
        if base == 0 || base > u16::MAX - 4 {
            return None;
        }
        Some(Self { peer: base + 1, gossip: base + 2, s3: base + 3, jobs: base + 4 })
    }
}

impl BootstrapNode {
    /// A node with derived ports that is reached where it listens.
    ///
    /// # Errors
    /// The port leaves no room for the other listeners.
    pub fn new(node: NodeId, bind: SocketAddr, disks: Vec<String>) -> Result<Self, BootstrapError> {
        let advertise_host = host_text(bind.ip());
        let ports =
            NodePorts::after(bind.port()).ok_or_else(|| BootstrapError::Ports { node: node.clone() })?;
        Ok(Self { node, bind, advertise_host, ports, disks })
    }

    /// Where others reach its HTTP listener.
    ///
    /// # Errors
    /// The advertised host is not one; a checked state has only good ones.
    pub fn api(&self) -> Result<Authority, AuthorityError> {
        self.reached_at(self.bind.port())
    }

    /// Where others reach its peer listener.
    ///
    /// # Errors
    /// As [`api`](Self::api).
    pub fn peer(&self) -> Result<Authority, AuthorityError> {
        self.reached_at(self.ports.peer)
    }

    /// Where others reach its gossip.
    ///
    /// # Errors
    /// As [`api`](Self::api).
    pub fn gossip(&self) -> Result<Authority, AuthorityError> {
        self.reached_at(self.ports.gossip)
    }

    fn reached_at(&self, port: u16) -> Result<Authority, AuthorityError> {
        Authority::new(&format!("{}:{port}", self.advertise_host))
    }
}

/// How slots are cut and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Replication {
    /// How many slots there are. 1 to [`SLOTS_MAX`]. Default 2048.
    pub total_slots: u16,
    /// How many nodes store each slot; all of them when there are fewer. 1 to [`REPLICAS_MAX`]. Default 3.
    pub replicas: u8,
    /// How many of them must have stored a write before it is acknowledged. A majority is always needed; this can ask for
    /// more. 1 to the number of replicas. Default 1, which means a majority.
    pub min_write_replicas: u8,
}

impl Default for Replication {
    fn default() -> Self {
        Self { total_slots: 2048, replicas: 3, min_write_replicas: 1 }
    }
}

/// The pace of a cluster. The same on all of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pace {
    /// How often gossip is sent. Shorter spreads sooner and costs more. 10 ms to 1 min. Default 500 ms.
    pub gossip_interval: Duration,
    /// How often digests are compared. What gossip lost is repaired within two of them. 100 ms to 1 h. Default 10 s.
    pub full_sync_interval: Duration,
    /// How long a node may be silent before it is suspected. 100 ms to 1 h. Default 15 s.
    pub suspect_timeout: Duration,
    /// How long until a silent node has failed. Above `suspect_timeout`, at most 24 h. Default 45 s.
    pub fail_timeout: Duration,
    /// How many nodes each round of gossip goes to. 1 to 100. Default 3.
    pub fanout: u8,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            gossip_interval: Duration::from_millis(500),
            full_sync_interval: Duration::from_secs(10),
            suspect_timeout: Duration::from_secs(15),
            fail_timeout: Duration::from_secs(45),
            fanout: 3,
        }
    }
}

/// How the job queue is replicated. The same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueLayout {
    /// Whether there is one. Default: yes.
    pub is_enabled: bool,
    /// How many nodes vote and hold every job on their disks; all of them when there are fewer. The others follow, and one
    /// of them takes the place of a voter that lost its disk. 1 to [`REPLICAS_MAX`]. Default 3.
    pub voters: u8,
    /// How many groups, each with a leader of its own. Queues of different groups know nothing of each other. 1 to
    /// [`QUEUE_GROUPS_MAX`]. Default 1.
    pub groups: u16,
    /// How often a leader is heard of. 10 ms to 10 s. Default 50 ms.
    pub heartbeat: Duration,
    /// How long a leader may be silent before another one is elected, at least. Three heartbeats or more. Default 150 ms.
    pub election_min: Duration,
    /// The same, at most: each node draws its own between the two, so that not all of them stand at once. Above
    /// `election_min`, at most 1 min. Default 300 ms.
    pub election_max: Duration,
}

impl Default for QueueLayout {
    fn default() -> Self {
        Self {
            is_enabled: true,
            voters: 3,
            groups: 1,
            heartbeat: Duration::from_millis(50),
            election_min: Duration::from_millis(150),
            election_max: Duration::from_millis(300),
        }
    }
}

/// The beginning of a cluster, the same on all of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootstrapState {
    /// When it was first written down. Where nodes differ, the earliest counts.
    pub initialized_at: HlcTimestamp,
    /// By whom.
    pub initialized_by: NodeId,
    /// Tells clusters apart that have the same layout.
    pub namespace: String,
    /// The nodes, in the order of their names.
    pub nodes: Vec<BootstrapNode>,
    /// How slots are cut and stored.
    pub replication: Replication,
    /// The pace.
    pub pace: Pace,
    /// Where objects are archived, as text that only the archive reads.
    pub archive: Option<String>,
    /// How the job queue is replicated.
    pub queue: QueueLayout,
}

impl BootstrapState {
    /// Checks everything, and puts the nodes in order.
    ///
    /// # Errors
    /// The first thing that cannot be used.
    pub fn checked(mut self) -> Result<Self, BootstrapError> {
        self.nodes.sort();
        if self.nodes.is_empty() || self.nodes.len() > NODES_MAX {
            return Err(BootstrapError::NodeCount { count: self.nodes.len() });
        }
        if self.namespace.is_empty() || self.namespace.len() > NAMESPACE_BYTES_MAX {
            return Err(BootstrapError::Namespace);
        }
        let mut addresses = BTreeSet::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if self.nodes.get(index + 1).is_some_and(|next| next.node == node.node) {
                return Err(BootstrapError::NodeTwice { node: node.node.clone() });
            }
            let ports =
                [node.bind.port(), node.ports.peer, node.ports.gossip, node.ports.s3, node.ports.jobs];
            for port in ports {
                let reached = node.reached_at(port);
                let reached =
                    reached.map_err(|error| BootstrapError::Address { node: node.node.clone(), error })?;
                if !addresses.insert(reached.clone()) {
                    return Err(BootstrapError::AddressTwice { node: node.node.clone(), address: reached });
                }
            }
            let is_sane = |disk: &String| !disk.is_empty() && disk.len() <= PATH_BYTES_MAX;
            if node.disks.is_empty() || node.disks.len() > DISKS_MAX || !node.disks.iter().all(is_sane) {
                return Err(BootstrapError::Disks { node: node.node.clone() });
            }
        }
        self.check_numbers()?;
        Ok(self)
    }

    /// Which cluster this is the beginning of.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        let mut bytes = b"synod cluster 1".to_vec();
        let mut text = |text: &str| {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        };
        text(&self.namespace);
        for node in &self.nodes {
            text(node.node.as_str());
            text(&node.bind.to_string());
            text(&node.advertise_host);
            let NodePorts { peer, gossip, s3, jobs } = node.ports;
            text(&format!("{peer} {gossip} {s3} {jobs} {}", node.disks.len()));
            node.disks.iter().for_each(|disk| text(disk));
        }
        let Replication { total_slots, replicas, min_write_replicas } = self.replication;
        text(&format!("{total_slots} {replicas} {min_write_replicas}"));
        ClusterId::new(xxh3_128(&bytes))
    }

    /// Joins what two nodes know of the beginning of their cluster: the earlier one, by a total order.
    ///
    /// # Errors
    /// They are of different clusters. Nothing was changed.
    pub fn merge(&mut self, other: &Self) -> Result<bool, ForeignCluster> {
        let (own, foreign) = (self.cluster_id(), other.cluster_id());
        if own != foreign {
            return Err(ForeignCluster { own, foreign });
        }
        let is_earlier = other < self;
        if is_earlier {
            *self = other.clone();
        }
        Ok(is_earlier)
    }

    /// What differs between this state and another configuration for the same cluster, by the names of the settings.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut names = Vec::new();
        let mut differ = |name: &str, is_different: bool| {
            if is_different {
                names.push(name.to_owned());
            }
        };
        differ("registry.namespace", self.namespace != other.namespace);
        differ("initial_cluster.replication", self.replication != other.replication);
        differ("registry.gossip", self.pace != other.pace);
        differ("archive", self.archive != other.archive);
        differ("queue", self.queue != other.queue);
        let all: BTreeSet<&NodeId> = self.nodes.iter().chain(&other.nodes).map(|node| &node.node).collect();
        for node in all {
            differ(&format!("initial_cluster.nodes.{node}"), self.node(node) != other.node(node));
        }
        names
    }

    /// The node of this name.
    #[must_use]
    pub fn node(&self, node: &NodeId) -> Option<&BootstrapNode> {
        self.nodes.iter().find(|one| one.node == *node)
    }

    /// Who stores `slot`, in the order in which they are to be its primary: the nodes in order, rotated by the slot.
    pub fn replicas(&self, slot: SlotId) -> impl ExactSizeIterator<Item = &NodeId> + Clone {
        let count = self.nodes.len();
        (0..self.replica_count()).map(move |rank| &self.nodes[(slot.index() + rank) % count].node)
    }

    /// How many nodes store each slot.
    #[must_use]
    pub fn replica_count(&self) -> usize {
        usize::from(self.replication.replicas).min(self.nodes.len())
    }

    /// How many replicas are a majority of a slot.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.replica_count() / 2 + 1
    }

    /// How many replicas must have stored a write before it counts.
    #[must_use]
    pub fn write_quorum(&self) -> usize {
        self.majority().max(usize::from(self.replication.min_write_replicas).min(self.replica_count()))
    }

    /// All slots.
    pub fn slots(&self) -> impl DoubleEndedIterator<Item = SlotId> + use<> {
        (0..self.replication.total_slots).map(SlotId::new)
    }

    fn check_numbers(&self) -> Result<(), BootstrapError> {
        let Replication { total_slots, replicas, min_write_replicas } = self.replication;
        let Pace { gossip_interval, full_sync_interval, suspect_timeout, fail_timeout, fanout } = self.pace;
        let QueueLayout { voters, groups, heartbeat, election_min, election_max, .. } = self.queue;
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let hour = 3_600_000;
        let ranges = [
            ("total_slots", total_slots.into(), 1, SLOTS_MAX.into()),
            ("replicas", replicas.into(), 1, REPLICAS_MAX.into()),
            ("min_write_replicas", min_write_replicas.into(), 1, replicas.into()),
            ("gossip_interval_ms", millis(gossip_interval), 10, 60_000),
            ("full_sync_interval in ms", millis(full_sync_interval), 100, hour),
            ("suspect_timeout in ms", millis(suspect_timeout), 100, hour),
            (
                "fail_timeout in ms",
                millis(fail_timeout),
                millis(suspect_timeout).saturating_add(1),
                24 * hour,
            ),
            ("fanout", fanout.into(), 1, 100),
            ("voters", voters.into(), 1, REPLICAS_MAX.into()),
            ("groups", groups.into(), 1, QUEUE_GROUPS_MAX.into()),
            ("heartbeat_ms", millis(heartbeat), 10, 10_000),
            ("election_min_ms", millis(election_min), 3 * millis(heartbeat), 30_000),
            ("election_max_ms", millis(election_max), millis(election_min) + 1, 60_000),
        ];
        for (field, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(BootstrapError::Range { field, value, min, max });
            }
        }
        Ok(())
    }
}

/// The beginning of a cluster cannot be used. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// Too few or too many nodes.
    #[error("a cluster has 1 to {NODES_MAX} nodes, this one has {count}")]
    NodeCount {
        /// How many.
        count: usize,
    },
    /// Two nodes have the same name.
    #[error("node {node} is there twice")]
    NodeTwice {
        /// The name.
        node: NodeId,
    },
    /// The address of a node is malformed.
    #[error("node {node}: {error}")]
    Address {
        /// The node.
        node: NodeId,
        /// What is wrong with it.
        error: AuthorityError,
    },
    /// Two listeners have the same address.
    #[error("node {node}: {address} is already the address of another listener")]
    AddressTwice {
        /// The node.
        node: NodeId,
        /// The address.
        address: Authority,
    },
    /// The port leaves no room for the listeners that follow it.
    #[error("node {node}: its port and the four after it must be from 1 to 65535")]
    Ports {
        /// The node.
        node: NodeId,
    },
    /// A node has no disks, too many, or one without a sensible path.
    #[error("node {node} has 1 to {DISKS_MAX} disks, each with a path of 1 to {PATH_BYTES_MAX} bytes")]
    Disks {
        /// The node.
        node: NodeId,
    },
    /// The namespace is empty or too long.
    #[error("a namespace has 1 to {NAMESPACE_BYTES_MAX} bytes")]
    Namespace,
    /// A number is out of its range.
    #[error("{field} is {value}; it must be from {min} to {max}")]
    Range {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
}

/// Something belongs to another cluster. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is of cluster {foreign}, and the node belongs to cluster {own}; nothing was changed")]
pub struct ForeignCluster {
    /// The cluster of this node.
    pub own: ClusterId,
    /// The other one.
    pub foreign: ClusterId,
}

fn host_text(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Most nodes of a cluster.
pub const NODES_MAX: usize = 100;
/// Most slots of a cluster.
pub const SLOTS_MAX: u16 = 16_384;
/// Most nodes that store a slot.
pub const REPLICAS_MAX: u8 = 7;
/// Most groups of the job queue.
pub const QUEUE_GROUPS_MAX: u16 = 64;
/// Most disks of a node.
pub const DISKS_MAX: usize = 64;
/// Longest namespace in bytes.
pub const NAMESPACE_BYTES_MAX: usize = 128;
const PATH_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests;
