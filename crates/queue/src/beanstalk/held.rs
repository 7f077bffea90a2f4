//! The jobs that one connection holds, and when it will have lost them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use synod_core::jobs::{Fence, JobId};
use tokio::time::Instant;

/// The jobs of one connection.
///
/// Deadlines are this node's estimate, on its own clock. Whether a lease has ended is for the queue to say, whose time can
/// stand still, so a job stays known here for a while after its estimate has passed.
#[derive(Debug, Default)]
pub(crate) struct HeldJobs {
    jobs: BTreeMap<JobId, Held>,
    deadlines: BTreeSet<(Instant, JobId)>,
    /// Those whose deadline has passed, longest passed first.
    late: VecDeque<(JobId, Fence)>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    fence: Fence,
    ttr: Duration,
    deadline: Instant,
}

impl HeldJobs {
    /// A job was reserved, for so long from now, of all the time that it gives.
    pub(crate) fn insert(&mut self, job: JobId, fence: Fence, left: Duration, ttr: Duration) {
        self.remove(job);
        let deadline = after(Instant::now(), left);
        self.jobs.insert(job, Held { fence, ttr, deadline });
        self.deadlines.insert((deadline, job));
    }

    /// The job is in other hands, or in none.
    pub(crate) fn remove(&mut self, job: JobId) {
        if let Some(held) = self.jobs.remove(&job) {
            self.deadlines.remove(&(held.deadline, job));
        }
    }

    /// The job's time has started anew.
    pub(crate) fn touch(&mut self, job: JobId) {
        if let Some(Held { fence, ttr, .. }) = self.jobs.get(&job).copied() {
            self.insert(job, fence, ttr, ttr);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn fence(&self, job: JobId) -> Option<Fence> {
        self.jobs.get(&job).map(|held| held.fence)
    }

    /// From when on the connection must be told that a deadline is near, if it holds a job.
    pub(crate) fn soon_at(&mut self, now: Instant) -> Option<Instant> {
        while let Some((deadline, job)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(deadline, job));
            self.late.extend(self.fence(job).map(|fence| (job, fence)));
        }
        while self.late.len() > LATE_MAX
            && let Some((job, fence)) = self.late.pop_front()
        {
            // It may have been touched or reserved again since.
            if self.fence(job) == Some(fence) && !self.is_running(job) {
                self.remove(job);
            }
        }
        self.deadlines.first().map(|(deadline, _)| deadline.checked_sub(SAFETY_MARGIN).unwrap_or(now))
    }

    fn is_running(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|held| self.deadlines.contains(&(held.deadline, job)))
    }
}

fn after(now: Instant, time: Duration) -> Instant {
    now.checked_add(time).or_else(|| now.checked_add(FAR)).unwrap_or(now)
}

/// In so much time before the deadline of a job that it holds, a connection waits for no other.
const SAFETY_MARGIN: Duration = Duration::from_secs(1);
/// How many jobs whose deadline has passed stay known.
const LATE_MAX: usize = 1_024;
/// As good as never.
const FAR: Duration = Duration::from_secs(u32::MAX as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_lost_long_ago_is_forgotten() {
        let mut held = HeldJobs::default();
        let second = Duration::from_secs(1);
        for number in 0..2_000 {
            held.insert(JobId::new(number), Fence::new(number), second, second);
        }
        held.insert(JobId::new(9_999), Fence::new(1), 9 * second, second);
        tokio::time::advance(2 * second).await;
        // One that was reserved again is not late, though it was.
        assert_eq!(held.soon_at(Instant::now()), Some(Instant::now() + 6 * second));
        held.insert(JobId::new(1_999), Fence::new(5_000), 9 * second, second);
        assert_eq!(held.jobs.len(), LATE_MAX + 1);
        assert_eq!(held.fence(JobId::new(1_999)), Some(Fence::new(5_000)));
        assert_eq!(held.fence(JobId::new(3)), None);
    }
}
