//! The settings of a group.

use std::ops::Range;
use std::time::Duration;

use openraft::{Config, SnapshotPolicy, StepDownPolicy};

/// The settings of a group. All its replicas should have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// How long a follower that hears nothing waits before it stands for election, in milliseconds, drawn from this range each
    /// time. It waits out the lease of the old leader first, which is as long as the upper end. Less fails over sooner, and
    /// needs disks and networks that never stall for as long. 30 to 60000, default 150 to 300.
    pub election_ms: Range<u64>,
    /// How often a leader is heard of, in milliseconds. At most a third of the shortest election. At least 10, default 50.
    pub heartbeat_ms: u64,
    /// How many replicas vote, if there are so many nodes. More survive more losses and make every entry wait for more disks.
    /// 1 to 9, odd; default 3.
    pub voters: usize,
    /// How long a voter may be away until a node that follows votes in its place, if there is one that has caught up. When it
    /// comes back it follows. Less is whole again sooner after a node is lost for good, and moves the vote for a restart that
    /// takes long. 100 ms to one day, default 5 min.
    pub replace_after: Duration,
    /// A snapshot is written when the entries since the last one have so many bytes, and more than that one. Less restarts
    /// faster and writes more. At least 4 KiB, default 256 MiB.
    pub snapshot_log_bytes: u64,
    /// So many bytes of entries are kept behind a snapshot, for followers that were away for a short time. Default 64 MiB.
    pub kept_log_bytes: u64,
    /// How long a proposal may take until its outcome is called unknown. 100 ms to one hour, default 30 s.
    pub propose_timeout: Duration,
}

impl GroupConfig {
    /// Whether all settings are in range.
    ///
    /// # Errors
    /// One is not.
    pub fn validate(&self) -> Result<(), GroupConfigError> {
        let Range { start, end } = self.election_ms;
        let problem = |field, problem| Err(GroupConfigError { field, problem });
        if start < 30 || end > 60_000 || start >= end {
            return problem("election_ms", "must be a range within 30 to 60000");
        }
        if self.heartbeat_ms < 10 || self.heartbeat_ms * 3 > start {
            return problem(
                "heartbeat_ms",
                "must be at least 10 and at most a third of the shortest election",
            );
        }
        if !(1..=9).contains(&self.voters) || self.voters.is_multiple_of(2) {
            return problem("voters", "must be odd and 1 to 9");
        }
        if self.snapshot_log_bytes < 4 << 10 {
            return problem("snapshot_log_bytes", "must be at least 4096");
        }
        let away = Duration::from_millis(100)..=Duration::from_secs(24 * 3600);
        if !away.contains(&self.replace_after) {
            return problem("replace_after", "must be 100 ms to one day");
        }
        let timeout = Duration::from_millis(100)..=Duration::from_secs(3600);
        if !timeout.contains(&self.propose_timeout) {
            return problem("propose_timeout", "must be 100 ms to one hour");
        }
        Ok(())
    }

    pub(crate) fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    /// How many replicas are to vote, of so many nodes.
    pub(crate) fn voters_of(&self, nodes: usize) -> usize {
        self.voters.min(nodes)
    }

    /// What the engine is told.
    pub(crate) fn engine(&self, name: String) -> Config {
        Config {
            cluster_name: name,
            election_timeout_min: self.election_ms.start,
            election_timeout_max: self.election_ms.end,
            heartbeat_interval: self.heartbeat_ms,
            enable_pre_vote: Some(true),
            // A leader that comes back must be elected anew. In its old term it would give indexes again that it had given
            // to entries which it sent to others and lost itself, before they were on its disk.
            enable_leader_restore: Some(false),
            // Of the whole of sending and installing one.
            install_snapshot_timeout: 600_000,
            // Both go by the bytes of the log, which the engine does not count.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            removed_leader_step_down: StepDownPolicy::After(self.election_ms.start),
            ..Config::default()
        }
    }
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            election_ms: 150..300,
            heartbeat_ms: 50,
            voters: 3,
            replace_after: Duration::from_secs(300),
            snapshot_log_bytes: 256 << 20,
            kept_log_bytes: 64 << 20,
            propose_timeout: Duration::from_secs(30),
        }
    }
}

/// A setting is out of range. Nothing was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} of a group {problem}")]
pub struct GroupConfigError {
    /// The field.
    pub field: &'static str,
    /// What it must be.
    pub problem: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_a_range_and_is_named_when_it_is_out_of_it() {
        let sound = GroupConfig::default();
        assert_eq!(sound.validate(), Ok(()));
        assert_eq!((sound.election_ms.clone(), sound.heartbeat_ms), (150..300, 50));
        assert_eq!((sound.snapshot_log_bytes, sound.kept_log_bytes), (256 << 20, 64 << 20));
        let cases = [
            (GroupConfig { election_ms: 300..300, ..sound.clone() }, "election_ms"),
            (GroupConfig { heartbeat_ms: 51, ..sound.clone() }, "heartbeat_ms"),
            (GroupConfig { voters: 2, ..sound.clone() }, "voters"),
            (GroupConfig { replace_after: Duration::ZERO, ..sound.clone() }, "replace_after"),
            (GroupConfig { snapshot_log_bytes: 0, ..sound.clone() }, "snapshot_log_bytes"),
            (GroupConfig { propose_timeout: Duration::ZERO, ..sound }, "propose_timeout"),
        ];
        for (config, name) in cases {
            assert_eq!(config.validate().map_err(|error| error.field), Err(name));
        }
    }
}
