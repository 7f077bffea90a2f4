//! The settings of a gossiper, checked once.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::id::{GossipKey, KEY_BYTES_MAX, MEMBER_ID_BYTES_MAX};
use super::state::{ENTRY_OVERHEAD_BYTES, MEMBER_OVERHEAD_BYTES, TYPE_URL_BYTES_MAX, VALUE_BYTES_MAX};
use super::store::OWN_BYTES_KEPT;

/// Settings of a [`Gossiper`](super::Gossiper).
#[derive(Clone, Debug, PartialEq)]
pub struct GossiperConfig {
    /// How often news is told. Shorter spreads sooner and costs more. 10 ms to 1 h. Default 500 ms.
    pub gossip_interval: Duration,
    /// How soon something new, other than heartbeats, is told ahead of the next round to up to `gossip_fan_out` members
    /// that are [vouched for](super::Gossiper::set_vouched). Longer lets more travel together, shorter spreads sooner. This
    /// happens up to [`HASTE_MAX`](crate::HASTE_MAX) times at once and in the long run so often per `gossip_interval`. 1 ms
    /// to 1 s; `None` tells everything by the interval alone. Default 2 ms.
    pub eager_delay: Option<Duration>,
    /// By which share of itself an interval is longer or shorter at random, so that nodes that were started together do
    /// not speak all at once for ever. 0 to 0.5. Default 0.1.
    pub interval_jitter: f64,
    /// How long a peer may take to answer. Longer suits slow links; until then the peer is not told more. 10 ms to 1 h.
    /// Default 2 s.
    pub gossip_request_timeout: Duration,
    /// How many peers a round goes to. 1 to 100. Default 3.
    pub gossip_fan_out: usize,
    /// Of how many members one message speaks at most, this node included. 1 to 10 000. Default 50.
    pub gossip_max_send: usize,
    /// How long a member may be silent before it is blocked for good. Longer forgives more and reacts later. More than
    /// the longest interval, at most 1 day. Default 10 s.
    pub heartbeat_expiration: Duration,
    /// How large one message may become, counted generously. Smaller bounds the burst, larger catches up sooner.
    /// 512 KiB to 64 MiB. Default 1 MiB.
    pub delta_bytes_max: usize,
    /// Of how many other members state is kept, and how many the topology may name. 1 to 10 000. Default 1 000.
    pub members_max: usize,
    /// How much state of all other members together is kept, in bytes. 1 MiB to 4 GiB. Default 64 MiB.
    pub state_bytes_max: usize,
    /// The keys under which this node writes its heartbeat and reads those of others. 1 to [`RESERVED_KEYS_MAX`].
    /// Default `heartbeat`.
    pub heartbeat_keys: Vec<GossipKey>,
    /// The keys whose presence says that a member leaves. 1 to [`RESERVED_KEYS_MAX`]. Default `gracefully_left`.
    pub leave_keys: Vec<GossipKey>,
}

impl Default for GossiperConfig {
    fn default() -> Self {
        Self {
            gossip_interval: Duration::from_millis(500),
            eager_delay: Some(Duration::from_millis(2)),
            interval_jitter: 0.1,
            gossip_request_timeout: Duration::from_secs(2),
            gossip_fan_out: 3,
            gossip_max_send: 50,
            heartbeat_expiration: Duration::from_secs(10),
            delta_bytes_max: 1024 * 1024,
            members_max: 1_000,
            state_bytes_max: 64 * 1024 * 1024,
            heartbeat_keys: vec![GossipKey::constant("heartbeat")],
            leave_keys: vec![GossipKey::constant("gracefully_left")],
        }
    }
}

impl GossiperConfig {
    /// The settings that protoactor-go really uses, and its keys beside ours: it spells its heartbeat `heathbeat` in
    /// the releases and `heartbeat` later, and announces that it leaves as `left`.
    #[must_use]
    pub fn protoactor() -> Self {
        Self {
            gossip_interval: Duration::from_millis(300),
            eager_delay: None,
            gossip_request_timeout: Duration::from_millis(500),
            heartbeat_expiration: Duration::from_secs(20),
            heartbeat_keys: vec![GossipKey::constant("heartbeat"), GossipKey::constant("heathbeat")],
            leave_keys: vec![GossipKey::constant("gracefully_left"), GossipKey::constant("left")],
            ..Self::default()
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), GossiperConfigError> {
        let durations = [
            ("gossip_interval", self.gossip_interval, HOUR),
            ("gossip_request_timeout", self.gossip_request_timeout, HOUR),
            ("heartbeat_expiration", self.heartbeat_expiration, HOUR * 24),
        ];
        for (field, value, max) in durations {
            if !(DURATION_MIN..=max).contains(&value) {
                return Err(GossiperConfigError::Duration { field, value, min: DURATION_MIN, max });
            }
        }
        let eager = EAGER_DELAY_MIN..=EAGER_DELAY_MAX;
        if let Some(value) = self.eager_delay.filter(|value| !eager.contains(value)) {
            let (min, max) = eager.into_inner();
            return Err(GossiperConfigError::Duration { field: "eager_delay", value, min, max });
        }
        let counts = [
            ("gossip_fan_out", self.gossip_fan_out, 1, 100),
            ("gossip_max_send", self.gossip_max_send, 1, 10_000),
            ("delta_bytes_max", self.delta_bytes_max, DELTA_BYTES_MIN, 64 * 1024 * 1024),
            ("members_max", self.members_max, 1, 10_000),
            ("state_bytes_max", self.state_bytes_max, 1024 * 1024, STATE_BYTES_MAX),
            ("heartbeat_keys", self.heartbeat_keys.len(), 1, RESERVED_KEYS_MAX),
            ("leave_keys", self.leave_keys.len(), 1, RESERVED_KEYS_MAX),
        ];
        for (field, value, min, max) in counts {
            if !(min..=max).contains(&value) {
                return Err(GossiperConfigError::Count { field, value, min, max });
            }
        }
        if !(0.0..=JITTER_MAX).contains(&self.interval_jitter) {
            let value = self.interval_jitter;
            return Err(GossiperConfigError::Share { field: "interval_jitter", value, max: JITTER_MAX });
        }
        let interval = self.gossip_interval.mul_f64(1.0 + self.interval_jitter);
        if self.heartbeat_expiration <= interval {
            let expiration = self.heartbeat_expiration;
            return Err(GossiperConfigError::ExpiresBeforeNextHeartbeat { expiration, interval });
        }
        let mut keys: Vec<_> = self.heartbeat_keys.iter().chain(&self.leave_keys).collect();
        keys.sort();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(GossiperConfigError::DuplicateKey { key: pair[0].clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn is_reserved(&self, key: &GossipKey) -> bool {
        self.heartbeat_keys.contains(key) || self.leave_keys.contains(key)
    }
}

/// A setting is out of range. Nothing was started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GossiperConfigError {
    /// A number is out of range.
    #[error("{field} must be {min} to {max}, it is {value}")]
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
    /// A share is out of range.
    #[error("{field} must be 0 to {max}, it is {value}")]
    Share {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: f64,
        /// The largest value.
        max: f64,
    },
    /// Every member would be blocked between two of its heartbeats.
    #[error(
        "heartbeat_expiration must exceed the longest gossip_interval ({interval:?}), it is {expiration:?}"
    )]
    ExpiresBeforeNextHeartbeat {
        /// The refused expiration.
        expiration: Duration,
        /// The longest interval.
        interval: Duration,
    },
    /// A key appears twice in `heartbeat_keys` and `leave_keys`.
    #[error("heartbeat_keys and leave_keys must name {key} only once")]
    DuplicateKey {
        /// The key.
        key: GossipKey,
    },
}

/// Most heartbeat keys, and most leave keys.
pub const RESERVED_KEYS_MAX: usize = 4;
const HOUR: Duration = Duration::from_secs(3600);
/// Largest jitter: beyond it a member could seem to be silent for several of its intervals.
const JITTER_MAX: f64 = 0.5;
/// Shortest timer of a gossiper.
const DURATION_MIN: Duration = Duration::from_millis(10);
/// Bounds of a round ahead of its time.
const EAGER_DELAY_MIN: Duration = Duration::from_millis(1);
const EAGER_DELAY_MAX: Duration = Duration::from_secs(1);
/// Smallest bound on a message.
const DELTA_BYTES_MIN: usize = 512 * 1024;
/// Whatever this node's heartbeats take, one entry of another member fits beside them, or it would never be told.
const _: () = {
    let entry = KEY_BYTES_MAX + TYPE_URL_BYTES_MAX + VALUE_BYTES_MAX + ENTRY_OVERHEAD_BYTES;
    let names = 2 * (MEMBER_ID_BYTES_MAX + MEMBER_OVERHEAD_BYTES);
    assert!(names + entry + OWN_BYTES_KEPT <= DELTA_BYTES_MIN);
};
#[cfg(target_pointer_width = "64")]
const STATE_BYTES_MAX: usize = 4 * 1024 * 1024 * 1024;
#[cfg(not(target_pointer_width = "64"))]
const STATE_BYTES_MAX: usize = usize::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// R12.1, R2.6: the numbers of the design, and those of the Go implementation.
    #[test]
    fn both_presets_are_valid_and_differ_where_go_does() {
        let (ours, go) = (GossiperConfig::default(), GossiperConfig::protoactor());
        assert_eq!((ours.validate(), go.validate()), (Ok(()), Ok(())));
        let millis = |config: &GossiperConfig| {
            [config.gossip_interval, config.gossip_request_timeout, config.heartbeat_expiration]
                .map(|duration| duration.as_millis())
        };
        assert_eq!((millis(&ours), millis(&go)), ([500, 2_000, 10_000], [300, 500, 20_000]));
        assert_eq!((ours.gossip_fan_out, ours.gossip_max_send), (3, 50));
        assert!(go.heartbeat_keys.iter().any(|key| key.as_str() == "heathbeat"));
        assert!(go.leave_keys.iter().any(|key| key.as_str() == "left"));
    }

    /// R12.3: every field that can be wrong, one by one, is named by the error.
    #[test]
    fn a_setting_out_of_range_is_named() {
        type Break = fn(&mut GossiperConfig);
        let broken: [(&str, Break); 19] = [
            ("eager_delay", |c| c.eager_delay = Some(Duration::ZERO)),
            ("eager_delay", |c| c.eager_delay = Some(HOUR)),
            ("gossip_interval", |c| c.gossip_interval = Duration::ZERO),
            ("interval_jitter", |c| c.interval_jitter = 0.51),
            ("interval_jitter", |c| c.interval_jitter = -0.01),
            ("interval_jitter", |c| c.interval_jitter = f64::NAN),
            ("gossip_request_timeout", |c| c.gossip_request_timeout = Duration::ZERO),
            ("heartbeat_expiration", |c| c.heartbeat_expiration = HOUR * 25),
            ("heartbeat_expiration", |c| c.heartbeat_expiration = c.gossip_interval * 11 / 10),
            ("gossip_fan_out", |c| c.gossip_fan_out = 0),
            ("gossip_max_send", |c| c.gossip_max_send = 0),
            ("delta_bytes_max", |c| c.delta_bytes_max = DELTA_BYTES_MIN - 1),
            ("members_max", |c| c.members_max = 10_001),
            ("state_bytes_max", |c| c.state_bytes_max = 0),
            ("heartbeat_keys", |c| c.heartbeat_keys.clear()),
            ("leave_keys", |c| c.leave_keys.clear()),
            ("leave_keys", |c| c.leave_keys = vec![GossipKey::constant("x"); RESERVED_KEYS_MAX + 1]),
            ("leave_keys", |c| c.leave_keys = c.heartbeat_keys.clone()),
            ("heartbeat_keys", |c| c.heartbeat_keys = vec![GossipKey::constant("x"); 2]),
        ];
        for (field, break_it) in broken {
            let mut config = GossiperConfig::default();
            break_it(&mut config);
            let error = config.validate().expect_err(field).to_string();
            assert!(error.contains(field), "{error:?} names {field}");
        }
    }
}
