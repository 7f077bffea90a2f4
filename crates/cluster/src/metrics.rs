//! The numbers of a cluster, for whoever switched them on.
//!
//! They are a by-product of applying topologies and of watching the event stream: without them everything happens all the
//! same, only the questions for numbers are refused.

mod config;
mod reporter;
mod summary;

pub use config::{MetricFamily, MetricsConfig, MetricsConfigError};
pub use summary::{EventResult, EventSummary};

pub(crate) use reporter::Reporter;

/// The numbers at one moment. Counts of things that happen run from the start of the cluster core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterMetrics {
    /// Active members in the last applied topology.
    pub members: usize,
    /// Addresses that are kept out.
    pub quarantined: usize,
    /// Topology updates that were applied.
    pub topology_updates: u64,
    /// Topology updates that were refused.
    pub topology_failures: u64,
    /// Changes of a member's state that were observed.
    pub status_changes: u64,
    /// Changes of the membership that were not confirmed in time.
    pub late_changes: u64,
    /// Events that were lost because they came faster than they were taken in.
    pub events_missed: u64,
}

/// How often something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCount {
    /// What the event is about.
    pub family: MetricFamily,
    /// What happened.
    pub kind: &'static str,
    /// How it ended.
    pub result: EventResult,
    /// How often.
    pub count: u64,
}

/// The numbers cannot be told. Nothing else is affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// Metrics are switched off.
    #[error("metrics are switched off on this node")]
    Disabled,
    /// They are counted, and told elsewhere.
    #[error("metrics are not exported over HTTP on this node")]
    NotExported,
}
