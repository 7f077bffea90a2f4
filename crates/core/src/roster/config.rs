//! The settings of a roster, checked once.

use core::time::Duration;

/// Settings of a [`Roster`](super::Roster).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterConfig {
    /// How many polls in a row a foreign member may miss before it counts as gone. More rides out longer hiccups, fewer
    /// notices a crash sooner; 0 is what protoactor-go does. 0 to 1 000. Default 3.
    pub poll_misses_max: u32,
    /// For how long after a heartbeat a missed poll does not count: whoever gossips is not gone. Longer trusts gossip
    /// more; 0 trusts polls alone. 0 to 1 h. Default 5 s.
    pub alive_grace: Duration,
    /// Most members, this node included. 1 to 10 000. Default 1 000.
    pub members_max: usize,
}

impl Default for RosterConfig {
    fn default() -> Self {
        Self { poll_misses_max: 3, alive_grace: Duration::from_secs(5), members_max: 1_000 }
    }
}

impl RosterConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), RosterConfigError> {
        if self.poll_misses_max > MISSES_MAX {
            let (value, max) = (self.poll_misses_max as usize, MISSES_MAX as usize);
            return Err(RosterConfigError::Count { field: "poll_misses_max", value, min: 0, max });
        }
        if self.alive_grace > GRACE_MAX {
            let value = self.alive_grace;
            return Err(RosterConfigError::Duration { field: "alive_grace", value, max: GRACE_MAX });
        }
        if !(1..=MEMBERS_MAX).contains(&self.members_max) {
            let (value, max) = (self.members_max, MEMBERS_MAX);
            return Err(RosterConfigError::Count { field: "members_max", value, min: 1, max });
        }
        Ok(())
    }
}

/// A setting is out of range. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RosterConfigError {
    /// A number is out of range.
    #[error("roster.{field} must be {min} to {max}, it is {value}")]
    Count {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: usize,
        /// The smallest value.
        min: usize,
        /// The largest value.
        max: usize,
    },
    /// A duration is out of range.
    #[error("roster.{field} must be at most {max:?}, it is {value:?}")]
    Duration {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: Duration,
        /// The longest value.
        max: Duration,
    },
}

const MISSES_MAX: u32 = 1_000;
const GRACE_MAX: Duration = Duration::from_secs(3600);
const MEMBERS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_a_range_and_is_named_when_it_is_out_of_it() {
        let sound = RosterConfig::default();
        assert_eq!(sound.validate(), Ok(()));
        let cases = [
            (RosterConfig { poll_misses_max: 1_001, ..sound.clone() }, "poll_misses_max"),
            (RosterConfig { alive_grace: Duration::from_secs(3601), ..sound.clone() }, "alive_grace"),
            (RosterConfig { members_max: 0, ..sound.clone() }, "members_max"),
            (RosterConfig { members_max: 10_001, ..sound }, "members_max"),
        ];
        for (config, name) in cases {
            let Err(RosterConfigError::Count { field, .. } | RosterConfigError::Duration { field, .. }) =
                config.validate()
            else {
                panic!("{name} was accepted");
            };
            assert_eq!(field, name);
        }
    }
}
