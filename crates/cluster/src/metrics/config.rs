//! Which numbers are told, where and how often, checked once.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Settings of the numbers of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Whether numbers are kept at all. Without them every question for numbers is refused, whatever else is set, and the
    /// event stream goes on. Default true.
    pub enabled: bool,
    /// The numbers that are exported. At least one family. Default all.
    pub families: BTreeSet<MetricFamily>,
    /// Whether `/metrics` of the api listener tells them, if there is one. Default true.
    pub endpoint: bool,
    /// How often they are written to the log, as one `tracing` event of the target `synod::metrics`. 1 s to 1 h. Default
    /// never.
    pub log_interval: Option<Duration>,
}

impl MetricsConfig {
    /// No numbers.
    #[must_use]
    pub fn disabled() -> Self {
        Self { enabled: false, ..Self::default() }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that cannot be used, by name.
    pub fn validate(&self) -> Result<(), MetricsConfigError> {
        if self.families.is_empty() {
            return Err(MetricsConfigError::NoFamilies);
        }
        match self.log_interval {
            Some(value) if !(LOG_INTERVAL_MIN..=LOG_INTERVAL_MAX).contains(&value) => {
                Err(MetricsConfigError::LogInterval { value })
            }
            _ => Ok(()),
        }
    }

    /// Whether the numbers of `family` are exported.
    pub(crate) fn exports(&self, family: MetricFamily) -> bool {
        self.families.contains(&family)
    }
}

impl Default for MetricsConfig {
    fn default() -> Self {
        let families = MetricFamily::ALL.into_iter().collect();
        Self { enabled: true, families, endpoint: true, log_interval: None }
    }
}

/// What numbers and events are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MetricFamily {
    /// Who is a member, who is kept out, and how soon all know.
    Membership,
    /// What members tell each other beyond that.
    Gossip,
    /// Connections, messages and dead letters.
    Remote,
    /// Activations and calls.
    Grains,
    /// Topics.
    PubSub,
    /// Slots and what is kept in them.
    Storage,
}

impl MetricFamily {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Membership, Self::Gossip, Self::Remote, Self::Grains, Self::PubSub, Self::Storage];

    /// Its name in settings and in labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Membership => "membership",
            Self::Gossip => "gossip",
            Self::Remote => "remote",
            Self::Grains => "grains",
            Self::PubSub => "pubsub",
            Self::Storage => "storage",
        }
    }
}

impl fmt::Display for MetricFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MetricFamily {
    type Err = MetricsConfigError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let family = Self::ALL.into_iter().find(|family| family.as_str() == name);
        family.ok_or_else(|| MetricsConfigError::UnknownFamily { name: name.to_owned() })
    }
}

/// A setting of the numbers cannot be used. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsConfigError {
    /// Nothing would be told.
    #[error("metrics.families must name at least one family; without numbers, set metrics.enabled to false")]
    NoFamilies,
    /// There is no such family.
    #[error(
        "metrics.families must be among membership, gossip, remote, grains and pubsub, there is {name:?}"
    )]
    UnknownFamily {
        /// The refused name.
        name: String,
    },
    /// The log would be flooded, or hardly written.
    #[error("metrics.log_interval must be {LOG_INTERVAL_MIN:?} to {LOG_INTERVAL_MAX:?}, it is {value:?}")]
    LogInterval {
        /// The refused value.
        value: Duration,
    },
}

const LOG_INTERVAL_MIN: Duration = Duration::from_secs(1);
const LOG_INTERVAL_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_a_range_and_is_named_when_it_is_out_of_it() {
        let default = MetricsConfig::default();
        assert_eq!(default.validate(), Ok(()));
        let none = MetricsConfig { families: BTreeSet::new(), ..default.clone() };
        assert_eq!(none.validate(), Err(MetricsConfigError::NoFamilies));
        for (millis, is_sound) in [(999, false), (1000, true), (3_600_000, true), (3_600_001, false)] {
            let value = Duration::from_millis(millis);
            let config = MetricsConfig { log_interval: Some(value), ..default.clone() };
            assert_eq!(config.validate().is_ok(), is_sound, "{value:?}");
        }
        for family in MetricFamily::ALL {
            assert_eq!(family.to_string().parse(), Ok(family));
        }
        let error = "grain".parse::<MetricFamily>().expect_err("no such family");
        assert_eq!(error, MetricsConfigError::UnknownFamily { name: "grain".to_owned() });
    }
}
