//! The settings of the automanaged provider, checked once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use synod_core::Authority;
use synod_core::roster::{RosterConfig, RosterConfigError};

use super::health::{HealthError, check_kinds};
use super::server::HealthServerConfig;

/// Settings of an [`AutomanagedProvider`](super::AutomanagedProvider). All nodes of a cluster have the same `hosts`,
/// `cluster_name` and, if they want to notice departures alike, `refresh_interval`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutomanagedConfig {
    /// The health addresses of all nodes, this one included: a Go node finds itself only through its own entry. Each
    /// node once: a Go node takes two names of one node for two members. 1 to [`HOSTS_MAX`].
    pub hosts: Vec<Authority>,
    /// Where this node's own health endpoint listens. A client has none, and does not look at this.
    pub listen: SocketAddr,
    /// The name of the cluster. Answers of other clusters are ignored. 1 to 256 bytes.
    pub cluster_name: String,
    /// The kinds of grains that this node hosts.
    pub kinds: Vec<String>,
    /// The pause between two rounds of polls. Shorter notices changes sooner and costs more. 10 ms to 1 h. Default 2 s, as
    /// in Go.
    pub refresh_interval: Duration,
    /// How long one host may take to answer. 10 ms to 1 h. Default 2 s, as in Go.
    pub poll_timeout: Duration,
    /// How soon a member that does not answer is given up, and how many there may be.
    pub roster: RosterConfig,
    /// Bounds of the health endpoint.
    pub server: HealthServerConfig,
}

impl AutomanagedConfig {
    /// The defaults for a node of `cluster_name` among `hosts`, whose health endpoint listens at `listen`.
    #[must_use]
    pub fn new(cluster_name: impl Into<String>, listen: SocketAddr, hosts: Vec<Authority>) -> Self {
        Self {
            hosts,
            listen,
            cluster_name: cluster_name.into(),
            kinds: Vec::new(),
            refresh_interval: Duration::from_secs(2),
            poll_timeout: Duration::from_secs(2),
            roster: RosterConfig::default(),
            server: HealthServerConfig::default(),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that cannot be used, by name.
    pub fn validate(&self) -> Result<(), AutomanagedConfigError> {
        check_hosts(&self.hosts)?;
        if !(1..=CLUSTER_NAME_BYTES_MAX).contains(&self.cluster_name.len()) {
            let bytes = self.cluster_name.len();
            return Err(AutomanagedConfigError::ClusterName { bytes });
        }
        check_kinds(&self.kinds).map_err(AutomanagedConfigError::Kinds)?;
        check_duration("refresh_interval", self.refresh_interval)?;
        check_duration("poll_timeout", self.poll_timeout)?;
        self.roster.validate()?;
        self.server.validate()
    }
}

/// A setting cannot be used. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AutomanagedConfigError {
    /// The name of the cluster has a wrong length.
    #[error("automanaged.cluster_name must have 1 to {CLUSTER_NAME_BYTES_MAX} bytes, it has {bytes}")]
    ClusterName {
        /// Its length.
        bytes: usize,
    },
    /// A number is out of range.
    #[error("automanaged.{field} must be 1 to {max}, it is {value}")]
    Count {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: usize,
        /// The largest value.
        max: usize,
    },
    /// Two hosts are one.
    #[error("automanaged.hosts names one node twice: {first} and {second}")]
    DuplicateHost {
        /// One name.
        first: Authority,
        /// The other.
        second: Authority,
    },
    /// A duration is out of range.
    #[error("automanaged.{field} must be {DURATION_MIN:?} to {DURATION_MAX:?}, it is {value:?}")]
    Duration {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: Duration,
    },
    /// A kind cannot be announced.
    #[error("automanaged.kinds: {0}")]
    Kinds(#[source] HealthError),
    /// A setting of the roster is out of range.
    #[error(transparent)]
    Roster(#[from] RosterConfigError),
}

/// Names are compared as the system resolves them: in any case, and `localhost` is 127.0.0.1.
pub(super) fn check_hosts(hosts: &[Authority]) -> Result<(), AutomanagedConfigError> {
    check_count("hosts", hosts.len(), HOSTS_MAX)?;
    let mut known = BTreeMap::new();
    for host in hosts {
        let name = host.host().to_ascii_lowercase();
        let name = if name == "localhost" { "127.0.0.1".into() } else { name };
        if let Some(first) = known.insert((name, host.port()), host) {
            let (first, second) = (first.clone(), host.clone());
            return Err(AutomanagedConfigError::DuplicateHost { first, second });
        }
    }
    Ok(())
}

pub(super) const fn check_count(
    field: &'static str,
    value: usize,
    max: usize,
) -> Result<(), AutomanagedConfigError> {
    if value == 0 || value > max {
        return Err(AutomanagedConfigError::Count { field, value, max });
    }
    Ok(())
}

pub(super) fn check_duration(field: &'static str, value: Duration) -> Result<(), AutomanagedConfigError> {
    if (DURATION_MIN..=DURATION_MAX).contains(&value) {
        Ok(())
    } else {
        Err(AutomanagedConfigError::Duration { field, value })
    }
}

/// Most hosts.
pub const HOSTS_MAX: usize = 1024;
const CLUSTER_NAME_BYTES_MAX: usize = 256;
const DURATION_MIN: Duration = Duration::from_millis(10);
const DURATION_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_is_checked_and_named() {
        let sound = config(&["a:6330", "b:6330"]);
        assert_eq!(sound.validate(), Ok(()));
        let second = Duration::from_secs(1);
        let day = second * 86_400;
        let server = HealthServerConfig::default();
        let cases = [
            (AutomanagedConfig { hosts: vec![], ..sound.clone() }, "automanaged.hosts"),
            (AutomanagedConfig { cluster_name: String::new(), ..sound.clone() }, "automanaged.cluster_name"),
            (AutomanagedConfig { kinds: vec![String::new()], ..sound.clone() }, "automanaged.kinds"),
            (
                AutomanagedConfig { refresh_interval: Duration::ZERO, ..sound.clone() },
                "automanaged.refresh_interval",
            ),
            (AutomanagedConfig { poll_timeout: day, ..sound.clone() }, "automanaged.poll_timeout"),
            (
                AutomanagedConfig {
                    roster: RosterConfig { members_max: 0, ..RosterConfig::default() },
                    ..sound.clone()
                },
                "roster.members_max",
            ),
            (
                AutomanagedConfig {
                    server: HealthServerConfig { connections_max: 0, ..server },
                    ..sound.clone()
                },
                "automanaged.server.connections_max",
            ),
            (
                AutomanagedConfig { server: HealthServerConfig { request_timeout: day, ..server }, ..sound },
                "automanaged.server.request_timeout",
            ),
        ];
        for (config, name) in cases {
            let refused = config.validate().map_err(|error| error.to_string());
            assert!(refused.as_ref().is_err_and(|error| error.contains(name)), "{name}: {refused:?}");
        }
    }

    #[test]
    fn one_node_under_two_names_is_refused_with_both() {
        for (first, second) in
            [("a:6330", "a:6330"), ("a:6330", "A:6330"), ("localhost:6330", "127.0.0.1:6330")]
        {
            let [one, other] = [first, second].map(|host| host.parse().expect("an authority"));
            let refused = AutomanagedConfigError::DuplicateHost { first: one, second: other };
            assert_eq!(config(&[first, "b:6330", second]).validate(), Err(refused));
        }
        assert_eq!(config(&["a:6330", "a:6331"]).validate(), Ok(()));
    }

    fn config(hosts: &[&str]) -> AutomanagedConfig {
        let hosts = hosts.iter().map(|host| host.parse().expect("an authority")).collect();
        AutomanagedConfig::new("c", "127.0.0.1:6330".parse().expect("an address"), hosts)
    }
}
