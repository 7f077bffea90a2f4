//! What is to happen at which queue time.

use alloc::collections::BTreeSet;

use super::id::{GatewayId, JobId};

/// All alarms in the order in which they go off.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers(BTreeSet<(u64, Alarm)>);

/// What goes off. Those of one moment go off in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// Nobody took the job in time. Before its delay ends: it is not to be given out any more.
    Expiry(JobId),
    /// Something of a queue: its pause, its rate, its dedupe keys, its idleness.
    Queue(u32),
    /// A gateway may have been silent for too long.
    Gateway(GatewayId),
    /// The lease or the delay of a job ends.
    Job(JobId),
}

impl Timers {
    pub(super) fn set(&mut self, at_ms: u64, alarm: Alarm) {
        self.0.insert((at_ms, alarm));
    }

    pub(super) fn clear(&mut self, at_ms: u64, alarm: Alarm) {
        self.0.remove(&(at_ms, alarm));
    }

    /// The first alarm that is due, and when it was.
    pub(super) fn pop_due(&mut self, now_ms: u64) -> Option<(u64, Alarm)> {
        if self.0.first()?.0 > now_ms { None } else { self.0.pop_first() }
    }

    /// When the first alarm goes off.
    pub(super) fn first(&self) -> Option<u64> {
        self.0.first().map(|(at_ms, _)| *at_ms)
    }
}
