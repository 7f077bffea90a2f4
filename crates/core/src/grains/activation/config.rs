//! The settings of a host of grains, checked once.

use alloc::string::String;
use core::time::Duration;

use crate::grains::PlacementHash;
use crate::grains::identity::{IdentityError, check_kind};

/// Settings of a [`VirtualActorRegistry`](super::VirtualActorRegistry).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivationConfig {
    /// How owners are computed. All members must compute alike; with a Go node among them only
    /// [`PlacementHash::Protoactor`] does. Default [`PlacementHash::Protoactor`].
    pub placement: PlacementHash,
    /// Most activations on this node, those that start and stop included. More serves more grains and holds more memory;
    /// beyond, requests are refused. 1 to 10 000 000. Default 100 000.
    pub activations_max: usize,
    /// Most requests that wait for one grain to start. Beyond, they are refused. 1 to 100 000. Default 1024.
    pub waiters_max: usize,
    /// Largest snapshot of one grain in bytes. A larger one is dropped, and the event says so. 1 to 64 MiB. Default 1 MiB.
    pub snapshot_bytes_max: usize,
    /// Most bytes of snapshots that are kept for grains that do not run, their names included. More lets more grains come
    /// back with their state; beyond, the oldest is dropped. `snapshot_bytes_max` plus 64 KiB to 16 GiB. Default 64 MiB.
    pub snapshots_bytes_max: usize,
    /// For how long after a change of the roster a grain is started only after its previous owners were asked to yield it.
    /// Longer is safer while views differ for long, shorter spares the question. 1 ms to 10 min. Default 10 s.
    pub handover_window: Duration,
    /// How long a start waits for the answers of previous owners. Longer waits for grains with long turns, shorter starts
    /// sooner without their state. 1 ms to 60 s. Default 2 s.
    pub handover_patience: Duration,
}

impl Default for ActivationConfig {
    fn default() -> Self {
        Self {
            placement: PlacementHash::default(),
            activations_max: 100_000,
            waiters_max: 1024,
            snapshot_bytes_max: 1 << 20,
            snapshots_bytes_max: 64 << 20,
            handover_window: Duration::from_secs(10),
            handover_patience: Duration::from_secs(2),
        }
    }
}

impl ActivationConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), ActivationConfigError> {
        let snapshots_min = self.snapshot_bytes_max.saturating_add(NAMES_BYTES);
        let counts = [
            ("activations_max", self.activations_max, 1, 10_000_000),
            ("waiters_max", self.waiters_max, 1, 100_000),
            ("snapshot_bytes_max", self.snapshot_bytes_max, 1, 64 << 20),
            ("snapshots_bytes_max", self.snapshots_bytes_max, snapshots_min, 16 << 30),
        ];
        for (field, value, min, max) in counts {
            if !(min..=max).contains(&value) {
                return Err(ActivationConfigError::Count { field, value, min, max });
            }
        }
        let times = [
            ("handover_window", self.handover_window, HANDOVER_WINDOW_MAX),
            ("handover_patience", self.handover_patience, HANDOVER_PATIENCE_MAX),
        ];
        for (field, value, max) in times {
            if !(HANDOVER_MIN..=max).contains(&value) {
                return Err(ActivationConfigError::Time { field, value, min: HANDOVER_MIN, max });
            }
        }
        Ok(())
    }
}

/// One kind of grains that this node hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrainKindConfig {
    /// Its name, without a slash.
    pub kind: String,
    /// After how long without a message a grain of this kind is unloaded; `None` never. Shorter frees memory sooner,
    /// longer spares starting grains again. 1 ms to 365 days. Default 1 h.
    pub idle_limit: Option<Duration>,
    /// Whether a grain of this kind is started only from a snapshot: one that was kept here when it was unloaded, that its
    /// last host handed over, or that the application brought. Without one a request is refused, where it would otherwise
    /// start from nothing. Default false.
    pub snapshot_required: bool,
}

impl GrainKindConfig {
    /// A kind with default settings.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        Self { kind: kind.into(), idle_limit: Some(IDLE_LIMIT), snapshot_required: false }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), ActivationConfigError> {
        if let Err(error) = check_kind(&self.kind) {
            return Err(ActivationConfigError::Kind { kind: self.kind.clone(), error });
        }
        match self.idle_limit {
            Some(value) if !(IDLE_MIN..=IDLE_MAX).contains(&value) => {
                let (kind, min, max) = (self.kind.clone(), IDLE_MIN, IDLE_MAX);
                Err(ActivationConfigError::Idle { kind, value, min, max })
            }
            _ => Ok(()),
        }
    }
}

/// A setting is out of range. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActivationConfigError {
    /// A number is out of range.
    #[error("activation.{field} must be {min} to {max}, it is {value}")]
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
    /// A time is out of range.
    #[error("activation.{field} must be {min:?} to {max:?}, it is {value:?}")]
    Time {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: Duration,
        /// The shortest value.
        min: Duration,
        /// The longest value.
        max: Duration,
    },
    /// The name of a kind is none.
    #[error("kind {kind:?}: {error}")]
    Kind {
        /// The refused name.
        kind: String,
        /// What is wrong with it.
        error: IdentityError,
    },
    /// A kind is given twice.
    #[error("kind {kind:?} is given twice")]
    DuplicateKind {
        /// The kind.
        kind: String,
    },
    /// The idle limit of a kind is out of range.
    #[error("kind {kind:?}: idle_limit must be {min:?} to {max:?}, it is {value:?}")]
    Idle {
        /// The kind.
        kind: String,
        /// The refused value.
        value: Duration,
        /// The shortest value.
        min: Duration,
        /// The longest value.
        max: Duration,
    },
}

/// Room for the names beside one largest snapshot.
const NAMES_BYTES: usize = 64 << 10;
const HANDOVER_MIN: Duration = Duration::from_millis(1);
const HANDOVER_WINDOW_MAX: Duration = Duration::from_secs(600);
const HANDOVER_PATIENCE_MAX: Duration = Duration::from_secs(60);
const IDLE_LIMIT: Duration = Duration::from_secs(3600);
const IDLE_MIN: Duration = Duration::from_millis(1);
const IDLE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_a_range_and_is_named_when_it_is_out_of_it() {
        let sound = ActivationConfig::default();
        assert_eq!(sound.validate(), Ok(()));
        let cases = [
            (ActivationConfig { activations_max: 0, ..sound.clone() }, "activations_max"),
            (ActivationConfig { waiters_max: 100_001, ..sound.clone() }, "waiters_max"),
            (ActivationConfig { snapshot_bytes_max: 0, ..sound.clone() }, "snapshot_bytes_max"),
            (ActivationConfig { snapshots_bytes_max: 1 << 20, ..sound.clone() }, "snapshots_bytes_max"),
        ];
        let hours = Duration::from_secs(3600);
        let times = [
            (ActivationConfig { handover_window: Duration::ZERO, ..sound.clone() }, "handover_window"),
            (ActivationConfig { handover_patience: hours, ..sound }, "handover_patience"),
        ];
        for (config, name) in times {
            let Err(ActivationConfigError::Time { field, .. }) = config.validate() else {
                panic!("{name} was accepted");
            };
            assert_eq!(field, name);
        }
        for (config, name) in cases {
            let Err(ActivationConfigError::Count { field, .. }) = config.validate() else {
                panic!("{name} was accepted");
            };
            assert_eq!(field, name);
        }
    }

    #[test]
    fn a_kind_has_a_name_and_an_idle_limit_in_range() {
        let sound = GrainKindConfig::new("Chat");
        assert_eq!((sound.validate(), sound.idle_limit), (Ok(()), Some(Duration::from_secs(3600))));
        assert_eq!(GrainKindConfig { idle_limit: None, ..sound.clone() }.validate(), Ok(()));
        let nameless = GrainKindConfig::new("a/b").validate();
        assert!(matches!(nameless, Err(ActivationConfigError::Kind { .. })), "{nameless:?}");
        let restless = GrainKindConfig { idle_limit: Some(Duration::ZERO), ..sound }.validate();
        assert!(matches!(restless, Err(ActivationConfigError::Idle { .. })), "{restless:?}");
    }
}
