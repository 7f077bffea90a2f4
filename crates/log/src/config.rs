//! The settings of a log, checked once.

use crate::format::{RECORD_HEADER_BYTES, SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_BYTES};

/// Settings of a [`Log`](crate::Log).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Largest payload of one record in bytes. A larger one is refused. 1 to 64 MiB. Default 1 MiB.
    pub record_bytes_max: usize,
    /// Most bytes of records that wait to become durable, each counted with [`LogConfig::RECORD_OVERHEAD`] on top of its
    /// payload. More makes larger batches and holds more memory; beyond, `append` waits and `try_append` refuses.
    /// `record_bytes_max` plus the overhead to 1 GiB. Default 16 MiB.
    pub queue_bytes_max: usize,
    /// Largest size of a segment in bytes. Smaller frees disk space sooner after compaction, larger makes fewer files. Room
    /// for one largest record (plus 80 bytes) to 1 GiB. Default 64 MiB.
    pub segment_bytes_max: usize,
}

impl LogConfig {
    /// What a waiting record is counted for beside its payload, for what is held in memory to answer its ticket.
    pub const RECORD_OVERHEAD: usize = 128;

    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), LogConfigError> {
        let queue_min = self.record_bytes_max.saturating_add(Self::RECORD_OVERHEAD);
        // One header for the record and one for the mark behind it.
        let segment_min =
            self.record_bytes_max.saturating_add(SEGMENT_HEADER_BYTES + 2 * RECORD_HEADER_BYTES);
        let fields = [
            ("record_bytes_max", self.record_bytes_max, 1, 64 << 20),
            ("queue_bytes_max", self.queue_bytes_max, queue_min, 1 << 30),
            ("segment_bytes_max", self.segment_bytes_max, segment_min, SEGMENT_BYTES_LIMIT),
        ];
        for (field, value, min, max) in fields {
            if !(min..=max).contains(&value) {
                return Err(LogConfigError { field, value, min, max });
            }
        }
        Ok(())
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { record_bytes_max: 1 << 20, queue_bytes_max: 16 << 20, segment_bytes_max: 64 << 20 }
    }
}

/// A setting is out of range. Nothing was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log.{field} must be {min} to {max}, it is {value}")]
pub struct LogConfigError {
    /// The field.
    pub field: &'static str,
    /// The refused value.
    pub value: usize,
    /// The smallest value.
    pub min: usize,
    /// The largest value.
    pub max: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_a_range_and_is_named_when_it_is_out_of_it() {
        let sound = LogConfig::default();
        assert_eq!(sound.validate(), Ok(()));
        let cases = [
            (LogConfig { record_bytes_max: 0, ..sound.clone() }, "record_bytes_max"),
            (LogConfig { queue_bytes_max: 1 << 20, ..sound.clone() }, "queue_bytes_max"),
            (LogConfig { segment_bytes_max: (1 << 20) + 79, ..sound.clone() }, "segment_bytes_max"),
            (LogConfig { segment_bytes_max: (1 << 30) + 1, ..sound }, "segment_bytes_max"),
        ];
        for (config, name) in cases {
            assert_eq!(config.validate().map_err(|error| error.field), Err(name));
        }
    }
}
