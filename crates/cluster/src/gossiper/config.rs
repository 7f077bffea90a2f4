//! The settings of the driver, around those of the machine.

use std::time::Duration;

use synod_core::gossip::{GossiperConfig, GossiperConfigError};
use synod_wire::limits::GOSSIP_MEMBERS_MAX;

/// Settings of a [`TokioGossiper`](super::TokioGossiper).
#[derive(Clone, Debug, PartialEq)]
pub struct TokioGossiperConfig {
    /// What the machine goes by: intervals and their jitter, timeouts, bounds and keys. Two bounds are narrower here,
    /// because the wire carries no more: `delta_bytes_max` is at most [`DELTA_BYTES_MAX`], and `gossip_max_send` at most
    /// [`GOSSIP_MEMBERS_MAX`].
    pub gossip: GossiperConfig,
    /// The name under which a node's gossip is addressed. All nodes of a cluster use one. 1 to
    /// [`ACTOR_NAME_BYTES_MAX`] bytes. Default `gossip`.
    pub gossip_actor_name: String,
    /// How long a stop waits for gossip on its way and for its last words. Longer reaches slower peers, shorter stops
    /// sooner. At most 1 h; zero sends the last words without waiting. Default 2 s, like the request timeout.
    pub flush_timeout: Duration,
    /// Feeds the choice of peers. A fixed seed makes a run repeatable; `None`, the default, draws one at every start.
    pub seed: Option<u64>,
}

impl Default for TokioGossiperConfig {
    fn default() -> Self {
        Self::around(GossiperConfig::default())
    }
}

impl TokioGossiperConfig {
    /// The settings that protoactor-go really uses, see [`GossiperConfig::protoactor`].
    #[must_use]
    pub fn protoactor() -> Self {
        Self::around(GossiperConfig::protoactor())
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), TokioGossiperConfigError> {
        self.gossip.validate()?;
        let bounds = [
            ("delta_bytes_max", self.gossip.delta_bytes_max, DELTA_BYTES_MAX),
            ("gossip_max_send", self.gossip.gossip_max_send, GOSSIP_MEMBERS_MAX),
        ];
        for (field, value, max) in bounds {
            if value > max {
                return Err(TokioGossiperConfigError::MoreThanTheWireCarries { field, value, max });
            }
        }
        let bytes = self.gossip_actor_name.len();
        if !(1..=ACTOR_NAME_BYTES_MAX).contains(&bytes) {
            return Err(TokioGossiperConfigError::ActorName { bytes });
        }
        if self.flush_timeout > FLUSH_TIMEOUT_MAX {
            return Err(TokioGossiperConfigError::FlushTimeout { value: self.flush_timeout });
        }
        Ok(())
    }

    fn around(gossip: GossiperConfig) -> Self {
        let flush_timeout = gossip.gossip_request_timeout;
        Self { gossip, gossip_actor_name: String::from("gossip"), flush_timeout, seed: None }
    }
}

/// A setting is out of range. Nothing was created.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokioGossiperConfigError {
    /// A setting of the machine.
    #[error(transparent)]
    Gossip(#[from] GossiperConfigError),
    /// A message of that size could never be sent, and nobody would ever be told.
    #[error("{field} must be at most {max}, which is what the wire carries; it is {value}")]
    MoreThanTheWireCarries {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: usize,
        /// The largest value.
        max: usize,
    },
    /// The name is empty or too long.
    #[error("gossip_actor_name must have 1 to {ACTOR_NAME_BYTES_MAX} bytes, it has {bytes}")]
    ActorName {
        /// Length of the refused name.
        bytes: usize,
    },
    /// A stop would take too long.
    #[error("flush_timeout must be at most {FLUSH_TIMEOUT_MAX:?}, it is {value:?}")]
    FlushTimeout {
        /// The refused value.
        value: Duration,
    },
}

/// Longest name of the gossip actor in bytes.
pub const ACTOR_NAME_BYTES_MAX: usize = 256;
/// Largest bound on a message in bytes. A frame of protoactor-go has 4 MiB, and there is more in it than gossip.
pub const DELTA_BYTES_MAX: usize = 3 * 1024 * 1024;
const _: () = assert!(DELTA_BYTES_MAX < synod_wire::limits::FRAME_BYTES_SENT_MAX);
const FLUSH_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    /// R12.1, R2.6: the numbers of the design, and those of protoactor-go.
    #[test]
    fn the_defaults_are_those_of_the_design_and_of_go() {
        let (ours, go) = (TokioGossiperConfig::default(), TokioGossiperConfig::protoactor());
        assert_eq!((ours.validate(), go.validate()), (Ok(()), Ok(())));
        assert_eq!(ours.gossip.gossip_interval, Duration::from_millis(500));
        assert_eq!(ours.gossip.gossip_request_timeout, Duration::from_secs(2));
        assert_eq!((ours.gossip.gossip_fan_out, ours.gossip.gossip_max_send), (3, 50));
        assert_eq!(ours.gossip.heartbeat_expiration, Duration::from_secs(10));
        assert_eq!((ours.gossip_actor_name.as_str(), go.gossip_actor_name.as_str()), ("gossip", "gossip"));
        assert!(ours.gossip.interval_jitter == 0.1 && ours.flush_timeout == Duration::from_secs(2));
        assert_eq!(go.gossip.gossip_interval, Duration::from_millis(300));
        assert_eq!(go.flush_timeout, Duration::from_millis(500));
    }

    /// R12.3: every field that can be wrong is named.
    #[test]
    fn a_setting_out_of_range_is_named() {
        type Break = fn(&mut TokioGossiperConfig);
        let broken: [(&str, Break); 7] = [
            ("gossip_actor_name", |c| c.gossip_actor_name.clear()),
            ("gossip_actor_name", |c| c.gossip_actor_name = "n".repeat(ACTOR_NAME_BYTES_MAX + 1)),
            ("flush_timeout", |c| c.flush_timeout = FLUSH_TIMEOUT_MAX + Duration::from_nanos(1)),
            ("interval_jitter", |c| c.gossip.interval_jitter = 0.6),
            ("delta_bytes_max", |c| c.gossip.delta_bytes_max = DELTA_BYTES_MAX + 1),
            ("gossip_max_send", |c| c.gossip.gossip_max_send = GOSSIP_MEMBERS_MAX + 1),
            ("gossip_interval", |c| c.gossip.gossip_interval = Duration::ZERO),
        ];
        for (field, break_it) in broken {
            let mut config = TokioGossiperConfig::default();
            break_it(&mut config);
            let error = config.validate().expect_err(field).to_string();
            assert!(error.contains(field), "{error:?} names {field}");
        }
    }
}
