//! What can be set: the bounds of the whole state, and how each queue treats its jobs.

/// Bounds of the whole state. They are part of the state, so that all replicas refuse alike; [`Op::LimitsSet`] changes them.
///
/// Lowering a bound takes nothing away: it refuses what comes next.
///
/// [`Op::LimitsSet`]: super::Op::LimitsSet
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobLimits {
    /// Most jobs in all queues together, dead ones included. 1 or more. Default 10 000 000.
    pub jobs_max: u64,
    /// Most bytes of bodies in all queues together. 1 or more. Default 8 GiB.
    pub bytes_max: u64,
    /// Longest body. 1 byte to 64 MiB. Default 1 MiB.
    pub body_bytes_max: u32,
    /// Most queues. 1 or more. Default 10 000.
    pub queues_max: u32,
    /// Most open sessions. 1 or more. Default 10 000.
    pub sessions_max: u32,
    /// Most queues that one session watches or one pull names. 1 to 10 000. Default 1 000.
    pub queues_per_session_max: u32,
    /// Most jobs that one session holds. It also bounds its credits. 1 or more. Default 100 000.
    pub inflight_per_session_max: u32,
    /// Most clients with a cap of their own. 1 or more. Default 100 000.
    pub clients_max: u32,
    /// Most gateways whose commands are remembered. 1 or more. Default 4 096.
    pub gateways_max: u32,
    /// How many results of each gateway are remembered. A command that is sent again later than that is refused.
    /// 1 to 65 536. Default 1 024.
    pub gateway_window: u32,
    /// How long a silent gateway is remembered, in queue time. 1 s or more. Default 1 h.
    pub gateway_idle_ms: u64,
    /// How long a queue that was never set and has nothing is remembered, in queue time. 1 s or more. Default 10 min.
    pub queue_idle_ms: u64,
    /// Most dedupe keys in all queues together. 1 or more. Default 1 000 000.
    pub dedupe_keys_max: u64,
    /// How many finished jobs are remembered, without their bodies, for those who ask what became of them.
    /// 0 to 1 000 000. Default 4 096.
    pub finished_max: u32,
    /// How many alarms one frame handles; the others are for the frame after. It bounds the pause that a great many leases
    /// that end at once would make. 1 or more. Default 4 096.
    pub alarms_per_frame_max: u32,
    /// How many jobs one kick moves, one pull takes. 1 or more. Default 10 000.
    pub batch_max: u32,
}

impl Default for JobLimits {
    fn default() -> Self {
        Self {
            jobs_max: 10_000_000,
            bytes_max: 8 << 30,
            body_bytes_max: 1 << 20,
            queues_max: 10_000,
            sessions_max: 10_000,
            queues_per_session_max: 1_000,
            inflight_per_session_max: 100_000,
            clients_max: 100_000,
            gateways_max: 4_096,
            gateway_window: 1_024,
            gateway_idle_ms: 3_600_000,
            queue_idle_ms: 600_000,
            dedupe_keys_max: 1_000_000,
            finished_max: 4_096,
            alarms_per_frame_max: 4_096,
            batch_max: 10_000,
        }
    }
}

impl JobLimits {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), SettingOutOfRange> {
        let fields = [
            ("jobs_max", self.jobs_max, 1, u64::MAX),
            ("bytes_max", self.bytes_max, 1, u64::MAX),
            ("body_bytes_max", self.body_bytes_max.into(), 1, 64 << 20),
            ("queues_max", self.queues_max.into(), 1, u64::MAX),
            ("sessions_max", self.sessions_max.into(), 1, u64::MAX),
            ("queues_per_session_max", self.queues_per_session_max.into(), 1, 10_000),
            ("inflight_per_session_max", self.inflight_per_session_max.into(), 1, u64::MAX),
            ("clients_max", self.clients_max.into(), 1, u64::MAX),
            ("gateways_max", self.gateways_max.into(), 1, u64::MAX),
            ("gateway_window", self.gateway_window.into(), 1, 65_536),
            ("gateway_idle_ms", self.gateway_idle_ms, 1_000, u64::MAX),
            ("queue_idle_ms", self.queue_idle_ms, 1_000, u64::MAX),
            ("dedupe_keys_max", self.dedupe_keys_max, 1, u64::MAX),
            ("finished_max", self.finished_max.into(), 0, 1_000_000),
            ("alarms_per_frame_max", self.alarms_per_frame_max.into(), 1, u64::MAX),
            ("batch_max", self.batch_max.into(), 1, u64::MAX),
        ];
        match fields.into_iter().find(|(_, value, min, max)| !(min..=max).contains(&value)) {
            Some((field, value, ..)) => Err(SettingOutOfRange { field, value }),
            None => Ok(()),
        }
    }
}

/// How one queue treats its jobs. What is not set costs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Most jobs in the queue, dead ones included. Default: no cap of its own.
    pub jobs_max: Option<u64>,
    /// Most bytes of bodies in the queue. Default: no cap of its own.
    pub bytes_max: Option<u64>,
    /// Most jobs of the queue in flight at once. Default: no cap.
    pub inflight_max: Option<u32>,
    /// How many jobs are given out per time. Default: as many as there are takers.
    pub rate: Option<Rate>,
    /// How long a worker may hold a job, where the submitter does not say. 1 ms or more. Default 60 s.
    pub ttr_ms: u64,
    /// How often a job is tried, where the submitter does not say; 0 is for ever. Default 0.
    pub max_attempts: u32,
    /// How long a job waits after a try that failed, where the submitter does not say. Default: not at all.
    pub backoff: Backoff,
    /// What becomes of a job that was tried as often as it may be. Default: kept.
    pub dead_letters: DeadLetters,
    /// Whether the try of a worker that went down counts. A job that kills its workers is then dead one day; without it,
    /// restarts of workers never harm a job. Default: no.
    pub worker_down_counts: bool,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl QueueSettings {
    /// What holds for a queue that nobody has set.
    pub(super) const DEFAULT: Self = Self {
        jobs_max: None,
        bytes_max: None,
        inflight_max: None,
        rate: None,
        ttr_ms: 60_000,
        max_attempts: 0,
        backoff: Backoff::NONE,
        dead_letters: DeadLetters::Keep,
        worker_down_counts: false,
    };

    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), SettingOutOfRange> {
        if self.ttr_ms == 0 {
            return Err(SettingOutOfRange { field: "ttr_ms", value: 0 });
        }
        match self.rate {
            Some(Rate { per_second: 0, .. }) => Err(SettingOutOfRange { field: "rate.per_second", value: 0 }),
            Some(Rate { burst: 0, .. }) => Err(SettingOutOfRange { field: "rate.burst", value: 0 }),
            _ => Ok(()),
        }
    }
}

/// A bucket of tokens, in queue time: a job costs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many tokens come back each second. 1 or more.
    pub per_second: u32,
    /// How many there can be. 1 or more.
    pub burst: u32,
}

/// How long a job waits after a try that failed: `base_ms` doubled after each further one, at most `cap_ms`. Equal numbers
/// make it fixed, zeros make it none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Backoff {
    /// After the first.
    pub base_ms: u32,
    /// At most.
    pub cap_ms: u32,
}

impl Backoff {
    /// No waiting.
    pub const NONE: Self = Self { base_ms: 0, cap_ms: 0 };

    /// Always the same.
    #[must_use]
    pub const fn fixed(millis: u32) -> Self {
        Self { base_ms: millis, cap_ms: millis }
    }

    /// How long, after this many tries.
    #[must_use]
    pub fn after(self, attempts: u32) -> u64 {
        let doublings = attempts.saturating_sub(1).min(32);
        (u64::from(self.base_ms) << doublings).min(self.cap_ms.into())
    }
}

/// What becomes of a job that was tried as often as it may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeadLetters {
    /// It stays among the dead of its queue until it is kicked or cancelled.
    #[default]
    Keep,
    /// It is gone.
    Drop,
}

/// Whose jobs in flight are capped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// The unfinished jobs of every client that has no cap of its own.
    Clients,
    /// The unfinished jobs of one client. Client zero has none.
    Client(super::ClientId),
    /// What every session without a cap of its own holds.
    Workers,
    /// What one open session holds.
    Worker(super::SessionId),
}

/// A setting is out of its range. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, out of its range")]
pub struct SettingOutOfRange {
    /// The setting.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_doubles_up_to_its_cap() {
        let backoff = Backoff { base_ms: 100, cap_ms: 1_000 };
        assert_eq!(
            [1, 2, 3, 4, 5, 200].map(|tries| backoff.after(tries)),
            [100, 200, 400, 800, 1_000, 1_000]
        );
        assert_eq!([1, 9].map(|tries| Backoff::fixed(70).after(tries)), [70, 70]);
        assert_eq!(Backoff::NONE.after(3), 0);
    }

    #[test]
    fn a_setting_out_of_range_is_named() {
        assert_eq!(JobLimits::default().validate(), Ok(()));
        let limits = JobLimits { gateway_window: 0, ..JobLimits::default() };
        assert_eq!(limits.validate().map_err(|error| error.field), Err("gateway_window"));
        let settings = QueueSettings { ttr_ms: 0, ..QueueSettings::default() };
        assert_eq!(settings.validate().map_err(|error| error.field), Err("ttr_ms"));
    }
}
