//! What a quickstart needs to be told. Every mistake is named at once, so that nobody mends them one run at a time.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::metrics::{MetricsConfig, MetricsConfigError};

/// Settings of a [`QuickstartBootstrap`](super::QuickstartBootstrap). [`local`](Self::local) has them all; the default has
/// none, and is refused with the names of what is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuickstartSettings {
    /// How many nodes. [`NODES_MIN`] to [`NODES_MAX`]. They are called `node-1`, `node-2` and so on.
    pub nodes: Option<usize>,
    /// The address that every node listens on, an address of this machine. Nothing that arrives there is authenticated, so
    /// let it be a loopback address or one of a network that you trust.
    pub host: Option<String>,
    /// The port of `node-1`; each node has the next one. 0 lets the system choose.
    pub base_port: Option<u16>,
    /// The names of the nodes whose addresses the others are given. At least one.
    pub seeds: Vec<String>,
    /// Where the first node answers questions over HTTP. Default nowhere.
    pub api: QuickstartApi,
    /// Which numbers every node keeps, and where it tells them.
    pub metrics: MetricsConfig,
}

/// Where the first node answers questions about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuickstartApi {
    /// Nowhere.
    #[default]
    Off,
    /// There, or nowhere when somebody else has the address.
    IfFree(SocketAddr),
    /// There, or the node does not start.
    At(SocketAddr),
}

impl QuickstartSettings {
    /// `nodes` nodes on 127.0.0.1 with ports that the system chooses; `node-1` is the seed.
    #[must_use]
    pub fn local(nodes: usize) -> Self {
        Self {
            nodes: Some(nodes),
            host: Some("127.0.0.1".to_owned()),
            base_port: Some(0),
            seeds: vec![node_name(0)],
            api: QuickstartApi::Off,
            metrics: MetricsConfig::default(),
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// Everything that is missing or cannot be used.
    pub fn validate(&self) -> Result<(), QuickstartSettingsError> {
        self.plan().map(drop)
    }

    pub(super) fn plan(&self) -> Result<Plan, QuickstartSettingsError> {
        let mut errors = Vec::new();
        let nodes = match self.nodes {
            Some(nodes) if (NODES_MIN..=NODES_MAX).contains(&nodes) => nodes,
            Some(value) => note(&mut errors, QuickstartSettingError::Nodes { value }),
            None => note(&mut errors, QuickstartSettingError::Missing { setting: "nodes" }),
        };
        let host = match self.host.as_deref().map(|host| (host, host.parse::<IpAddr>())) {
            None | Some(("", _)) => {
                errors.push(QuickstartSettingError::Missing { setting: "host" });
                None
            }
            Some((_, Ok(host))) if !host.is_unspecified() => Some(host),
            Some((value, _)) => {
                errors.push(QuickstartSettingError::Host { value: value.to_owned() });
                None
            }
        };
        let base_port = match self.base_port {
            Some(port) if usize::from(port) + nodes.max(1) - 1 <= usize::from(u16::MAX) => port,
            Some(port) => note(&mut errors, QuickstartSettingError::BasePort { port, nodes }),
            None => note(&mut errors, QuickstartSettingError::Missing { setting: "base_port" }),
        };
        // Without a number of nodes nobody can say which of them there are.
        let count = if nodes == 0 { NODES_MAX } else { nodes };
        let names: Vec<_> = (0..count).map(node_name).collect();
        if self.seeds.is_empty() {
            errors.push(QuickstartSettingError::Missing { setting: "seeds" });
        }
        for seed in self.seeds.iter().filter(|seed| !names.contains(seed)) {
            errors.push(QuickstartSettingError::Seed { value: seed.clone(), nodes: count });
        }
        if let Err(error) = self.metrics.validate() {
            errors.push(error.into());
        }
        let Some(host) = host.filter(|_| errors.is_empty()) else {
            return Err(QuickstartSettingsError(errors));
        };
        let port = |number| if base_port == 0 { 0 } else { base_port.saturating_add(number) };
        let mut nodes: Vec<_> = names.into_iter().zip((0..).map(port)).collect();
        // A stable sort: whoever has to be known to the others is there first.
        nodes.sort_by_key(|(name, _)| !self.seeds.contains(name));
        Ok(Plan { host, nodes, seeds: self.seeds.clone(), api: self.api, metrics: self.metrics.clone() })
    }
}

/// Settings that were found sound.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) host: IpAddr,
    /// Names and ports, in the order in which they are started.
    pub(super) nodes: Vec<(String, u16)>,
    pub(super) seeds: Vec<String>,
    pub(super) api: QuickstartApi,
    pub(super) metrics: MetricsConfig,
}

/// Settings are missing or cannot be used. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuickstartSettingsError(pub Vec<QuickstartSettingError>);

impl fmt::Display for QuickstartSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for QuickstartSettingsError {}

/// One setting is missing or cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuickstartSettingError {
    /// It is not there.
    #[error("{setting} is missing")]
    Missing {
        /// Its name.
        setting: &'static str,
    },
    /// Too few nodes for a cluster, or too many for one process.
    #[error("nodes must be {NODES_MIN} to {NODES_MAX}, it is {value}")]
    Nodes {
        /// The refused number.
        value: usize,
    },
    /// Nobody can be reached there.
    #[error("host must be an address of this machine such as 127.0.0.1, it is {value:?}")]
    Host {
        /// The refused address.
        value: String,
    },
    /// The ports of the last nodes would be beyond the last port.
    #[error("base_port must leave room for {nodes} ports up to 65535, it is {port}")]
    BasePort {
        /// The refused port.
        port: u16,
        /// How many are needed.
        nodes: usize,
    },
    /// A setting of the numbers.
    #[error(transparent)]
    Metrics(#[from] MetricsConfigError),
    /// A seed that is no node.
    #[error("seeds must be among node-1 to node-{nodes}, there is {value:?}")]
    Seed {
        /// The refused name.
        value: String,
        /// How many nodes there are.
        nodes: usize,
    },
}

/// Notes an error and goes on with a number that cannot cause another.
fn note<T: Default>(errors: &mut Vec<QuickstartSettingError>, error: QuickstartSettingError) -> T {
    errors.push(error);
    T::default()
}

fn node_name(index: usize) -> String {
    format!("node-{}", index + 1)
}

/// Fewest nodes of a quickstart: one that is alone has nobody to call.
pub const NODES_MIN: usize = 2;
/// Most nodes of a quickstart.
pub const NODES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_that_is_missing_is_named_at_once() {
        let error = QuickstartSettings::default().validate().expect_err("nothing is set");
        assert_eq!(
            error.to_string(),
            "nodes is missing; host is missing; base_port is missing; seeds is missing"
        );
    }

    #[test]
    fn all_that_is_wrong_is_named_at_once() {
        let settings = QuickstartSettings {
            nodes: Some(4),
            host: Some("0.0.0.0".to_owned()),
            base_port: Some(65_533),
            seeds: vec!["node-1".to_owned(), "node-5".to_owned(), "elsewhere".to_owned()],
            api: QuickstartApi::Off,
            metrics: MetricsConfig { families: BTreeSet::new(), ..MetricsConfig::default() },
        };
        let error = settings.validate().expect_err("nothing is right");
        assert_eq!(
            error.0,
            [
                QuickstartSettingError::Host { value: "0.0.0.0".to_owned() },
                QuickstartSettingError::BasePort { port: 65_533, nodes: 4 },
                QuickstartSettingError::Seed { value: "node-5".to_owned(), nodes: 4 },
                QuickstartSettingError::Seed { value: "elsewhere".to_owned(), nodes: 4 },
                QuickstartSettingError::Metrics(MetricsConfigError::NoFamilies),
            ]
        );
        for nodes in [0, 1, 17] {
            let error = QuickstartSettings::local(nodes).validate().expect_err("no such cluster");
            assert_eq!(error.0, [QuickstartSettingError::Nodes { value: nodes }]);
        }
    }

    #[test]
    fn seeds_start_first_and_ports_follow_the_names() {
        let settings = QuickstartSettings {
            base_port: Some(65_533),
            seeds: vec!["node-3".to_owned()],
            ..QuickstartSettings::local(3)
        };
        let plan = settings.plan().expect("sound settings");
        let expected = [("node-3", 65_535), ("node-1", 65_533), ("node-2", 65_534)];
        assert_eq!(plan.nodes, expected.map(|(name, port)| (name.to_owned(), port)));
    }
}
