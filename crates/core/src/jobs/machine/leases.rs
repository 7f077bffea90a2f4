//! What becomes of a job in somebody's hands: done, given back, put aside, lost.

use alloc::vec::Vec;

use super::{Effects, JobQueue};
use crate::jobs::effects::{EventKind, Lost, Refusal, Reply, Revocation};
use crate::jobs::frame::CancelGuard;
use crate::jobs::id::{Fence, JobId, SessionId};
use crate::jobs::job::{DeadReason, Finish, JobState, What};
use crate::jobs::settings::DeadLetters;

/// Why a job is in nobody's hands again.
#[derive(Clone, Copy)]
pub(super) enum GivenBack {
    Timeout,
    WorkerDown,
    Nack { delay_ms: Option<u64>, priority: Option<u32>, returns_attempt: bool },
}

impl JobQueue {
    pub(super) fn ack(&mut self, id: JobId, fence: Fence, effects: &mut Effects) -> Result<Reply, Refusal> {
        let (place, state) = self.held(id, fence).map(|job| (job.queue, job.state))?;
        let JobState::Reserved { session, .. } = state else {
            return Err(Refusal::LeaseLost);
        };
        self.finish(id, Finish::Acked, What::Acked, Some(session));
        self.count(place, |totals| totals.acked += 1);
        self.emit(id, EventKind::Ack { session, fence }, effects);
        self.after_word(state, place, effects);
        Ok(Reply::Done)
    }

    pub(super) fn nack(
        &mut self,
        id: JobId,
        fence: Fence,
        (delay_ms, priority, returns_attempt): (Option<u64>, Option<u32>, bool),
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let (place, state) = self.held(id, fence).map(|job| (job.queue, job.state))?;
        let reply = self.give_back(id, GivenBack::Nack { delay_ms, priority, returns_attempt }, effects);
        self.after_word(state, place, effects);
        Ok(reply)
    }

    pub(super) fn bury(
        &mut self,
        id: JobId,
        fence: Fence,
        priority: Option<u32>,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let (place, state) = self.held(id, fence).map(|job| (job.queue, job.state))?;
        if let Some(priority) = priority {
            self.change(id, |job| job.priority = priority);
        }
        self.die(id, DeadReason::Buried, effects);
        self.after_word(state, place, effects);
        Ok(Reply::Dead)
    }

    pub(super) fn extend(
        &mut self,
        id: JobId,
        fence: Fence,
        ttr_ms: Option<u64>,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        self.held(id, fence)?;
        if ttr_ms == Some(0) {
            return Err(Refusal::OutOfRange);
        }
        self.prolong(id, ttr_ms, effects);
        Ok(Reply::Done)
    }

    pub(super) fn extend_all(&mut self, id: SessionId, effects: &mut Effects) -> Result<Reply, Refusal> {
        let session = self.sessions.get(&id).ok_or(Refusal::SessionUnknown)?;
        let held: Vec<JobId> = session.inflight.iter().copied().collect();
        for job in &held {
            self.prolong(*job, None, effects);
        }
        Ok(Reply::Counted { count: u32::try_from(held.len()).unwrap_or(u32::MAX) })
    }

    pub(super) fn cancel(
        &mut self,
        id: JobId,
        guard: CancelGuard,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        if let CancelGuard::Held(fence) = guard {
            self.held(id, fence)?;
        }
        let job = self.jobs.get(id).ok_or_else(|| self.absent(id, Refusal::JobUnknown))?;
        let (place, state, fence) = (job.queue, job.state, job.fence);
        if matches!((guard, state), (CancelGuard::Idle, JobState::Reserved { .. })) {
            return Err(Refusal::JobHeld);
        }
        self.finish(id, Finish::Cancelled, What::Cancelled, None);
        self.count(place, |totals| totals.cancelled += 1);
        self.emit(id, EventKind::Cancelled, effects);
        match (guard, state) {
            // Its holder asked for it, so the holder is free.
            (CancelGuard::Held(_), _) => self.after_word(state, place, effects),
            (_, JobState::Reserved { session, .. }) => {
                self.revoke(session, id, fence, effects);
                self.after_loss(session, place, effects);
            }
            _ => self.settle(place, effects),
        }
        Ok(Reply::Done)
    }

    /// The lease of a job has ended.
    pub(super) fn time_out(&mut self, id: JobId, effects: &mut Effects) {
        let Some((place, JobState::Reserved { session, .. }, fence)) =
            self.jobs.get(id).map(|job| (job.queue, job.state, job.fence))
        else {
            return;
        };
        self.give_back(id, GivenBack::Timeout, effects);
        self.revoke(session, id, fence, effects);
        self.after_loss(session, place, effects);
    }

    /// Puts a job that somebody holds where it waits for its next try, if there is one.
    pub(super) fn give_back(&mut self, id: JobId, why: GivenBack, effects: &mut Effects) -> Reply {
        let (index, now_ms) = (self.index, self.time_ms);
        let Some(job) = self.jobs.get(id) else {
            return Reply::Requeued;
        };
        let JobState::Reserved { session, .. } = job.state else {
            return Reply::Requeued;
        };
        let place = job.queue;
        let counts = match why {
            GivenBack::Timeout => true,
            GivenBack::WorkerDown => self.queues[place].settings().worker_down_counts,
            GivenBack::Nack { returns_attempt, .. } => !returns_attempt,
        };
        let (mut lost, mut is_worn_out, mut is_expired) = (None, false, false);
        self.change(id, |job| {
            if !counts {
                job.attempts = job.attempts.saturating_sub(1);
            }
            let (count, what) = match why {
                GivenBack::Timeout => (Some(&mut job.counts.timeouts), What::TimedOut),
                GivenBack::WorkerDown => (None, What::WorkerDown),
                GivenBack::Nack { .. } => (Some(&mut job.counts.releases), What::Released),
            };
            if let Some(count) = count {
                *count = count.saturating_add(1);
            }
            if let GivenBack::Nack { priority: Some(priority), .. } = why {
                job.priority = priority;
            }
            job.remember(index, now_ms, what, Some(session));
            is_worn_out = job.is_worn_out();
            is_expired = job.expires_ms.is_some_and(|at_ms| at_ms <= now_ms);
            let delay_ms = match why {
                // A worker that goes says nothing about the job.
                GivenBack::WorkerDown => 0,
                GivenBack::Nack { delay_ms: Some(delay_ms), .. } => delay_ms,
                GivenBack::Timeout | GivenBack::Nack { .. } => job.backoff.after(job.attempts),
            };
            let due_ms = now_ms.saturating_add(delay_ms);
            if !is_worn_out && !is_expired {
                job.state = if delay_ms > 0 {
                    JobState::Delayed { until_ms: due_ms, is_retry: true }
                } else {
                    JobState::Ready
                };
            }
            lost = Some(Lost {
                session,
                fence: job.fence,
                due_ms,
                priority: job.priority,
                attempts: job.attempts,
            });
        });
        self.count(place, |totals| match why {
            GivenBack::Timeout => totals.timed_out += 1,
            GivenBack::WorkerDown => totals.worker_down += 1,
            GivenBack::Nack { .. } => totals.released += 1,
        });
        if is_worn_out {
            self.die(id, DeadReason::Attempts, effects);
            return Reply::Dead;
        }
        let Some(lost) = lost else {
            return Reply::Requeued;
        };
        let kind = match why {
            GivenBack::Timeout => EventKind::TimeoutRequeue { lost },
            GivenBack::WorkerDown => EventKind::WorkerDownRequeue { lost },
            GivenBack::Nack { .. } => EventKind::Requeue { lost },
        };
        self.emit(id, kind, effects);
        if is_expired {
            self.expire(id, effects);
        }
        Reply::Requeued
    }

    /// Drops a job that nobody took in time.
    pub(super) fn expire(&mut self, id: JobId, effects: &mut Effects) {
        if let Some(place) = self.jobs.get(id).map(|job| job.queue) {
            self.finish(id, Finish::Expired, What::Expired, None);
            self.count(place, |totals| totals.expired += 1);
            self.emit(id, EventKind::Expired, effects);
        }
    }

    /// Puts a job that somebody holds among the dead.
    fn die(&mut self, id: JobId, reason: DeadReason, effects: &mut Effects) {
        let (index, now_ms) = (self.index, self.time_ms);
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let JobState::Reserved { session, .. } = job.state else {
            return;
        };
        let (place, fence, attempts, priority) = (job.queue, job.fence, job.attempts, job.priority);
        // Only what wore itself out is dropped: a worker that puts a job aside wants it kept.
        let is_kept =
            reason == DeadReason::Buried || self.queues[place].settings().dead_letters == DeadLetters::Keep;
        let what = if reason == DeadReason::Buried { What::Buried } else { What::WornOut };
        if is_kept {
            self.change(id, |job| {
                job.counts.buries = job.counts.buries.saturating_add(1);
                job.state = JobState::Dead { reason, since_index: index };
                job.remember(index, now_ms, what, Some(session));
            });
        } else {
            self.finish(id, Finish::Dropped, what, Some(session));
        }
        self.count(place, |totals| totals.dead += 1);
        self.emit(id, EventKind::Dlq { session, fence, reason, attempts, priority, is_kept }, effects);
    }

    fn prolong(&mut self, id: JobId, ttr_ms: Option<u64>, effects: &mut Effects) {
        let now_ms = self.time_ms;
        let mut extended = None;
        self.change(id, |job| {
            let until_ms = now_ms.saturating_add(ttr_ms.unwrap_or(job.ttr_ms));
            if let JobState::Reserved { deadline_ms, .. } = &mut job.state {
                *deadline_ms = until_ms;
                extended = Some(EventKind::Extended { fence: job.fence, deadline_ms: until_ms });
            }
        });
        if let Some(kind) = extended {
            self.emit(id, kind, effects);
        }
    }

    fn revoke(&self, session: SessionId, job: JobId, fence: Fence, effects: &mut Effects) {
        if effects.is_wanted() {
            effects.revocations.push(Revocation { session, job, fence });
        }
    }

    /// A worker has spoken about a job that it held: the credit by which it came goes back to the worker.
    fn after_word(&mut self, state: JobState, place: u32, effects: &mut Effects) {
        if let JobState::Reserved { session: id, by_credit, .. } = state {
            if let Some(session) = self.sessions.get_mut(&id).filter(|_| by_credit) {
                session.credits = session.credits.saturating_add(1);
            }
            self.after_loss(id, place, effects);
        }
    }

    /// A session holds a job less.
    fn after_loss(&mut self, session: SessionId, place: u32, effects: &mut Effects) {
        self.line_up(session);
        // First whoever waits longest for this queue, then the session itself for others.
        self.settle(place, effects);
        self.settle_session(session, effects);
    }
}
