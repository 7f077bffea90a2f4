//! The settings of a coordinator, checked once.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::downing::{Downing, TimeoutDowning};
use super::phi::{PhiConfig, PhiConfigError};
use crate::id::Authority;

/// Settings of a [`MembershipCoordinator`](super::MembershipCoordinator).
#[derive(Clone, Debug)]
pub struct MembershipCoordinatorConfig {
    /// The failure detector.
    pub phi: PhiConfig,
    /// How often a member sends its heartbeat. Shorter detects sooner and costs more. 10 ms to 1 h. Default 1 s.
    pub heartbeat_interval: Duration,
    /// How many members watch each member. More is surer and costs more. 1 to 100. Default 5.
    pub heartbeat_monitors: usize,
    /// How long a suspect has to be heard again before the downing strategy is asked. Longer means fewer wrong verdicts
    /// and a later reaction. 10 ms to 1 h. Default 5 s.
    pub suspect_timeout: Duration,
    /// What becomes of suspects whose time is over. Default [`TimeoutDowning`].
    pub downing: Arc<dyn Downing>,
    /// How long a dead member is shown as dead before it counts as removed. 10 ms to 7 days. Default 1 min.
    pub dead_timeout: Duration,
    /// How long a leaving member may take until everybody knows. 10 ms to 1 h. Default 3 s.
    pub leave_timeout: Duration,
    /// How long a removed member is remembered, so that stale news cannot bring it back. It should exceed the longest
    /// split one expects. 10 ms to 365 days. Default 24 h.
    pub tombstone_retention: Duration,
    /// How long a quarantine lasts. 10 ms to 365 days. Default 30 s.
    pub quarantine_ttl: Duration,
    /// Whether membership is exchanged with peers at all. Without it the table holds what the provider says.
    /// Default true.
    pub gossip_enabled: bool,
    /// How often changes are pushed. Shorter converges sooner and costs more. 10 ms to 1 h. Default 200 ms.
    pub gossip_interval: Duration,
    /// How soon something new is told ahead of the next round: pushed to up to `gossip_fanout` peers that lack it, each of
    /// which does the same, and told to observers. Longer lets more changes travel together, shorter converges sooner. This
    /// happens up to [`HASTE_MAX`](crate::HASTE_MAX) times at once and in the long run so often per interval; a storm of
    /// changes is gathered. 1 ms to 1 s; `None` tells everything by the intervals alone. Default 2 ms.
    pub eager_delay: Option<Duration>,
    /// How many peers each round goes to. 1 to 100. Default 3.
    pub gossip_fanout: usize,
    /// How long a change may spread before it counts as late and is reconciled peer by peer. 10 ms to 1 h. Default 1 s.
    pub convergence_timeout: Duration,
    /// Whose agreement confirms a view. Default every reachable peer's.
    pub confirmation: Confirmation,
    /// How long changes of the active set are gathered before they are told; the first ones after a calm only for
    /// `eager_delay`. 0 to 1 h. Default 500 ms.
    pub topology_emit_interval: Duration,
    /// How often an address outside the view (a seed, a dead member) is asked whether it lives, so that a split heals.
    /// 10 ms to 1 h. Default 5 s.
    pub reconnect_interval: Duration,
    /// A wake-up later than this means that this node itself was paused: the time does not count as anybody's silence.
    /// 10 ms to 1 h. Default 1 s.
    pub poll_lateness_max: Duration,
    /// Most names in the table, tombstones included. 1 to 100 000. Default 10 000.
    pub members_max: usize,
    /// Addresses to ask for admission. Without any, the node starts a cluster of its own. Default none.
    pub seeds: Vec<Authority>,
    /// When none of the seeds has let the node in for so long, it starts a cluster of its own all the same, and merges with
    /// theirs when they meet. For nodes that are each other's seeds; they should wait differently long. 0 to 1 h. Default
    /// `None`: it goes on asking.
    pub form_alone_after: Option<Duration>,
}

impl Default for MembershipCoordinatorConfig {
    fn default() -> Self {
        Self {
            phi: PhiConfig::default(),
            heartbeat_interval: Duration::from_secs(1),
            heartbeat_monitors: 5,
            suspect_timeout: Duration::from_secs(5),
            downing: Arc::new(TimeoutDowning),
            dead_timeout: Duration::from_secs(60),
            leave_timeout: Duration::from_secs(3),
            tombstone_retention: Duration::from_secs(24 * 3600),
            quarantine_ttl: Duration::from_secs(30),
            gossip_enabled: true,
            gossip_interval: Duration::from_millis(200),
            eager_delay: Some(Duration::from_millis(2)),
            gossip_fanout: 3,
            convergence_timeout: Duration::from_secs(1),
            confirmation: Confirmation::EveryPeer,
            topology_emit_interval: Duration::from_millis(500),
            reconnect_interval: Duration::from_secs(5),
            poll_lateness_max: Duration::from_secs(1),
            members_max: 10_000,
            seeds: Vec::new(),
            form_alone_after: None,
        }
    }
}

impl MembershipCoordinatorConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.phi.validate()?;
        let hour = Duration::from_secs(3600);
        let year = hour * 24 * 365;
        let durations = [
            ("heartbeat_interval", self.heartbeat_interval, hour),
            ("suspect_timeout", self.suspect_timeout, hour),
            ("dead_timeout", self.dead_timeout, hour * 24 * 7),
            ("leave_timeout", self.leave_timeout, hour),
            ("tombstone_retention", self.tombstone_retention, year),
            ("quarantine_ttl", self.quarantine_ttl, year),
            ("gossip_interval", self.gossip_interval, hour),
            ("convergence_timeout", self.convergence_timeout, hour),
            ("reconnect_interval", self.reconnect_interval, hour),
            ("poll_lateness_max", self.poll_lateness_max, hour),
        ];
        for (field, value, max) in durations {
            if !(DURATION_MIN..=max).contains(&value) {
                return Err(ConfigError::Duration { field, value, min: DURATION_MIN, max });
            }
        }
        if self.topology_emit_interval > hour {
            let (field, value) = ("topology_emit_interval", self.topology_emit_interval);
            return Err(ConfigError::Duration { field, value, min: Duration::ZERO, max: hour });
        }
        let eager = EAGER_DELAY_MIN..=EAGER_DELAY_MAX;
        if let Some(value) = self.eager_delay.filter(|value| !eager.contains(value)) {
            let (min, max) = eager.into_inner();
            return Err(ConfigError::Duration { field: "eager_delay", value, min, max });
        }
        if let Some(value) = self.form_alone_after.filter(|value| *value > hour) {
            return Err(ConfigError::Duration {
                field: "form_alone_after",
                value,
                min: Duration::ZERO,
                max: hour,
            });
        }
        let counts = [
            ("heartbeat_monitors", self.heartbeat_monitors, 100),
            ("gossip_fanout", self.gossip_fanout, 100),
            ("members_max", self.members_max, MEMBERS_MAX),
        ];
        for (field, value, max) in counts {
            if !(1..=max).contains(&value) {
                return Err(ConfigError::Count { field, value, max });
            }
        }
        if matches!(&self.confirmation, Confirmation::SeedQuorum(seeds) if seeds.is_empty()) {
            return Err(ConfigError::NoSeeds);
        }
        Ok(())
    }
}

/// Whose agreement confirms a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// Every reachable peer holds it.
    EveryPeer,
    /// More than half of these nodes hold it.
    SeedQuorum(Vec<Authority>),
}

/// A setting is out of range. Nothing was started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number is out of range.
    #[error("{field} must be 1 to {max}, it is {value}")]
    Count {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: usize,
        /// The largest value.
        max: usize,
    },
    /// A duration is out of range.
    #[error("{field} must be {min:?} to {max:?}, it is {value:?}")]
    Duration {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: Duration,
        /// The shortest value.
        min: Duration,
        /// The longest value.
        max: Duration,
    },
    /// A quorum of no nodes can never be reached.
    #[error("confirmation asks for a quorum of seeds but names none")]
    NoSeeds,
    /// A setting of the failure detector is out of range.
    #[error(transparent)]
    Phi(#[from] PhiConfigError),
}

/// Largest `members_max`. No view of any node has more members.
pub const MEMBERS_MAX: usize = 100_000;
/// Shortest timer of a coordinator.
const DURATION_MIN: Duration = Duration::from_millis(10);
/// Shorter is in vain: timers are no finer, and an answer takes as long.
const EAGER_DELAY_MIN: Duration = Duration::from_millis(1);
const EAGER_DELAY_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
