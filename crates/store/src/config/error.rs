//! What can be wrong with a configuration, and where.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use synod_core::id::NodeIdError;
use synod_core::slots::BootstrapError;

use super::secret::SecretError;
use crate::cluster_url::ClusterUrlError;

/// A configuration file was not loaded. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is too long for a configuration.
    #[error("{} is longer than {} bytes, which is no configuration", path.display(), super::CONFIG_BYTES_MAX)]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file is no usable configuration.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The secret that it names cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// All that is wrong with a configuration, in the order of its lines. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    file: Option<PathBuf>,
    errors: Vec<ConfigError>,
}

impl ConfigErrors {
    pub(super) fn new(mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by_key(|error| (error.line, error.column));
        Self { file: None, errors }
    }

    pub(super) fn in_file(mut self, path: &Path) -> Self {
        self.file = Some(path.into());
        self
    }

    /// The errors, in the order of their lines.
    #[must_use]
    pub fn errors(&self) -> &[ConfigError] {
        &self.errors
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            f.write_str(separator)?;
            match &self.file {
                Some(file) => write!(f, "{}:{}: ", file.display(), error.line)?,
                None => write!(f, "line {}: ", error.line)?,
            }
            if !error.path.is_empty() {
                write!(f, "{}: ", error.path)?;
            }
            write!(f, "{}", error.problem)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The setting, as in `initial_cluster.nodes[1].bind_addr`. Empty for the whole file.
    pub path: String,
    /// Its line, from 1.
    pub line: u64,
    /// Its column, from 1.
    pub column: u64,
    /// What is wrong with it.
    pub problem: ConfigProblem,
}

/// What is wrong with a setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigProblem {
    /// The text is not YAML.
    #[error("this is not YAML: {message}")]
    Syntax {
        /// What the parser said.
        message: String,
    },
    /// A setting is there twice.
    #[error("{key} is there twice")]
    KeyTwice {
        /// Its name.
        key: String,
    },
    /// There is no such setting.
    #[error("there is no such setting{}", hint(*nearest, known))]
    UnknownKey {
        /// The one that was probably meant.
        nearest: Option<&'static str>,
        /// All that there are.
        known: &'static [&'static str],
    },
    /// A setting is needed and not there.
    #[error("{key} is missing")]
    Missing {
        /// Its name.
        key: &'static str,
    },
    /// A setting has another type.
    #[error("this must be {expected}, and is {found}")]
    Type {
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A number is out of its range.
    #[error("this is {value}; it must be from {min} to {max}")]
    Range {
        /// The number.
        value: String,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A registry outside of the cluster was asked for.
    #[error("{value:?} is not needed here: the nodes keep the registry themselves, which is backend: gossip")]
    Backend {
        /// The backend.
        value: String,
    },
    /// An unknown way to gossip.
    #[error(
        "{value:?} is no way to gossip; there are internal_http and memberlist, which mean the same here"
    )]
    Transport {
        /// The transport.
        value: String,
    },
    /// An unknown kind of archive.
    #[error("{value:?} is no kind of archive; there is s3")]
    ArchiveType {
        /// The kind.
        value: String,
    },
    /// A name of a node is malformed.
    #[error(transparent)]
    NodeId(NodeIdError),
    /// An address to listen at is malformed.
    #[error("{value:?} is no address to listen at; it is ip:port or [ipv6]:port")]
    BindAddress {
        /// The address.
        value: String,
    },
    /// A node listens everywhere and does not say where it is.
    #[error("advertise_addr is missing: others cannot reach a node at the {bind} where it listens")]
    AdvertiseMissing {
        /// Where it listens.
        bind: String,
    },
    /// An advertised address is malformed, or one that nobody can reach.
    #[error("{value:?} is no address under which others reach a node; it is a name or an IP address")]
    Advertise {
        /// The address.
        value: String,
    },
    /// An advertised address has another port.
    #[error("the port {advertised} is not the one of bind_addr, {bind}; leave it out")]
    AdvertisePort {
        /// The advertised port.
        advertised: u16,
        /// The port of `bind_addr`.
        bind: u16,
    },
    /// A seed is malformed.
    #[error(transparent)]
    Seed(ClusterUrlError),
    /// The name of the bucket of an archive is malformed.
    #[error("{value:?} is no name of a bucket; it consists of letters, digits, '-', '_' and '.'")]
    ArchiveBucket {
        /// The name.
        value: String,
    },
    /// An endpoint of an archive is malformed.
    #[error("{value:?} is no endpoint; it is https://host, or http://host:port")]
    Endpoint {
        /// The endpoint.
        value: String,
    },
    /// An endpoint without encryption was not allowed.
    #[error("{value:?} is not encrypted; set allow_http: true if that is meant")]
    PlainEndpoint {
        /// The endpoint.
        value: String,
    },
    /// A text is empty.
    #[error("this must not be empty")]
    Empty,
    /// The cluster as a whole cannot be used.
    #[error(transparent)]
    Bootstrap(BootstrapError),
}

fn hint(nearest: Option<&str>, known: &[&str]) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean {nearest}?"),
        None => format!("; there are {}", known.join(", ")),
    }
}
