//! The file that a cluster begins with: its nodes, how slots are stored, its pace, and where objects are archived.
//!
//! The file is read into a tree that knows the line of everything, and the tree is walked once by hand. So an error names
//! the setting by its path and its line, a misspelt key comes with the one that was meant, and all errors that do not hide
//! each other are told at once.
//!
//! ```
//! use synod_store::config::NodeConfig;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = NodeConfig::parse(
//!     "initial_cluster:
//!        nodes:
//!          - {node_id: node1, bind_addr: '127.0.0.1:8400', disks: [{path: ./node1}]}
//! ",
//! )?;
//! assert_eq!(config.bootstrap.nodes[0].ports.peer, 8401);
//! assert_eq!(config.seeds[0].as_str(), "127.0.0.1:8400");
//! # Ok(())
//! # }
//! ```

mod error;
mod read;
mod secret;
mod tree;
mod write;

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use synod_core::id::{Authority, NodeId};
use synod_core::slots::{BootstrapError, BootstrapNode, BootstrapState, HlcTimestamp, Pace, Replication};

pub use error::{ConfigError, ConfigErrors, ConfigProblem, LoadError};
pub use secret::{ArchiveSecret, ClusterSecret, SecretError};

pub use crate::cluster_url::DEFAULT_PORT;

/// The configuration of a cluster, as one of its nodes is given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// What the cluster is made of, checked. Nobody has begun it yet: [`begun_by`](Self::begun_by) says who and when.
    pub bootstrap: BootstrapState,
    /// The HTTP listeners that are asked whether the cluster exists. All nodes unless some are named.
    pub seeds: Vec<Authority>,
    /// Where the registry is kept, if not on the first disk of the node.
    pub persist_dir: Option<PathBuf>,
    /// The file with the secret of the cluster.
    pub secret_file: Option<PathBuf>,
    /// The secret, once it was read from that file.
    pub secret: Option<ClusterSecret>,
    /// The secret key of the archive. It stays on this node: the bootstrap state travels, and has the rest.
    pub archive_secret: Option<ArchiveSecret>,
}

impl NodeConfig {
    /// Reads a configuration file, and the secret that it names. Relative paths in it are relative to the working
    /// directory.
    ///
    /// # Errors
    /// The file cannot be read or used, or its secret cannot.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let failed = |source: io::Error| LoadError::Read { path: path.into(), source };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(failed)?;
        file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > CONFIG_BYTES_MAX {
            return Err(LoadError::TooLong { path: path.into() });
        }
        let text = String::from_utf8(bytes).map_err(|error| failed(io::Error::other(error.utf8_error())))?;
        let mut config = Self::parse(&text).map_err(|errors| errors.in_file(path))?;
        if let Some(file) = &config.secret_file {
            config.secret = Some(ClusterSecret::read(file)?);
        }
        Ok(config)
    }

    /// Reads a configuration. The secret is left to [`load`](Self::load).
    ///
    /// # Errors
    /// Everything that is wrong with it, as far as one error does not hide another.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        read::read(text)
    }

    /// A cluster of one node, `node1`, on the loopback interface, that keeps everything in `dir/node1`.
    ///
    /// # Errors
    /// The port leaves no room for the other listeners, or the path is empty or too long.
    ///
    /// # Panics
    /// Never: the name is a node name.
    pub fn development(dir: &Path, port: u16) -> Result<Self, BootstrapError> {
        let Ok(node) = NodeId::new("node1") else { unreachable!("node1 is a node name") };
        let disk = dir.join("node1").to_string_lossy().into_owned();
        let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let nodes = vec![BootstrapNode::new(node.clone(), bind, vec![disk])?];
        let bootstrap = BootstrapState {
            initialized_at: HlcTimestamp::default(),
            initialized_by: node,
            namespace: NAMESPACE_DEFAULT.into(),
            nodes,
            replication: Replication::default(),
            pace: Pace::default(),
            archive: None,
            queue: synod_core::slots::QueueLayout::default(),
        };
        let bootstrap = bootstrap.checked()?;
        let seeds = all_nodes(&bootstrap);
        Ok(Self {
            bootstrap,
            seeds,
            persist_dir: None,
            secret_file: None,
            secret: None,
            archive_secret: None,
        })
    }

    /// The beginning of the cluster, as `node` writes it down at `at`; `None` when it is not part of the cluster.
    #[must_use]
    pub fn begun_by(&self, node: &NodeId, at: HlcTimestamp) -> Option<BootstrapState> {
        self.bootstrap.node(node)?;
        Some(BootstrapState { initialized_at: at, initialized_by: node.clone(), ..self.bootstrap.clone() })
    }

    /// Where `node` keeps its registry: `persist_dir`, or `registry` on its first disk; `None` when it is not part of the
    /// cluster. Never a place that a restart of the machine empties: a node that forgets its promises could vote twice.
    #[must_use]
    pub fn registry_dir(&self, node: &NodeId) -> Option<PathBuf> {
        let disk = self.bootstrap.node(node)?.disks.first()?;
        Some(self.persist_dir.clone().unwrap_or_else(|| Path::new(disk).join("registry")))
    }

    /// The configuration as a file that reads back as the same, but for the secrets, which it does not contain.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        write::to_yaml(self)
    }
}

fn all_nodes(bootstrap: &BootstrapState) -> Vec<Authority> {
    bootstrap.nodes.iter().filter_map(|node| node.api().ok()).collect()
}

/// Longest configuration file in bytes.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
const NAMESPACE_DEFAULT: &str = "default";

#[cfg(test)]
mod tests;
