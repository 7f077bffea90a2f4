//! Who gets which job. Nobody proposes assignments: they follow from who waits, on every replica alike.
//!
//! Between two commands, no queue that gives out jobs has both a job that waits and a session that takes it. So whatever
//! changes, a job that gets ready, a session that gets a credit, a queue that may give out again, only has to look around
//! itself. A session gets the best job of all queues that it watches: lowest priority number, then lowest job number. A job
//! goes to the session that was served longest ago.

use alloc::vec::Vec;

use super::{Effects, JobQueue};
use crate::jobs::effects::{Asked, Assignment, Delivery, EventKind, Refusal, Reply};
use crate::jobs::id::{Fence, JobId, QueueName, SessionId};
use crate::jobs::job::{JobState, What};
use crate::jobs::session::Session;

/// On what terms a job is given out.
#[derive(Clone, Copy)]
struct Terms {
    asked: Asked,
    ttr_ms: Option<u64>,
    pulled_by: Option<u32>,
}

const BY_CREDIT: Terms = Terms { asked: Asked::Credit, ttr_ms: None, pulled_by: None };

impl JobQueue {
    /// After anything changed in a queue: gives out what can be given out, and sets its alarm.
    pub(super) fn settle(&mut self, place: u32, effects: &mut Effects) {
        let now_ms = self.time_ms;
        loop {
            let queue = &self.queues[place];
            if queue.next(now_ms).is_none() {
                break;
            }
            let Some(&(_, session)) = queue.waiting.first() else {
                break;
            };
            // It watches this queue, so there is something for it, here or better.
            if !self.serve(session, effects) {
                break;
            }
        }
        let queue = &mut self.queues[place];
        if queue.told_index != self.index && queue.next(now_ms).is_some() {
            queue.told_index = self.index;
            self.told.push(place);
        }
        let is_unused = queue.is_unused();
        if is_unused != queue.idle_since_ms.is_some() {
            queue.idle_since_ms = is_unused.then_some(now_ms);
        }
        self.set_alarm(place);
    }

    /// After a session takes more: gives it what can be given to it.
    pub(super) fn settle_session(&mut self, session: SessionId, effects: &mut Effects) {
        while self.serve(session, effects) {}
    }

    /// Whether a session takes more may have changed: enters it where it waits, or takes it out.
    pub(in crate::jobs) fn line_up(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let inflight_max = inflight_max(session, self.worker_max, self.limits.inflight_per_session_max);
        let waits_as = session.takes_more(inflight_max).then_some(session.last_served);
        if waits_as == session.waits_as {
            return;
        }
        for place in &session.watching {
            let waiting = &mut self.queues[*place].waiting;
            if let Some(before) = session.waits_as {
                waiting.remove(&(before, id));
            }
            if let Some(now) = waits_as {
                waiting.insert((now, id));
            }
        }
        session.waits_as = waits_as;
    }

    /// Lets a session take so many more jobs.
    pub(super) fn credit(
        &mut self,
        id: SessionId,
        queues: &[QueueName],
        (credits, replaces): (u32, bool),
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let session = self.sessions.get(&id).ok_or(Refusal::SessionUnknown)?;
        let credits = if replaces { credits } else { session.credits.saturating_add(credits) };
        if credits > self.limits.inflight_per_session_max {
            return Err(Refusal::WorkerOverCap);
        }
        if !queues.is_empty() {
            self.watch(id, queues, effects)?;
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.credits = credits;
        }
        self.line_up(id);
        self.settle_session(id, effects);
        Ok(Reply::Done)
    }

    /// Makes a session watch these queues and no others.
    fn watch(&mut self, id: SessionId, names: &[QueueName], effects: &mut Effects) -> Result<(), Refusal> {
        let new = {
            let mut unknown: Vec<_> = names.iter().filter(|name| self.queues.find(name).is_none()).collect();
            unknown.sort_unstable();
            unknown.dedup();
            unknown.len()
        };
        if names.len() > self.limits.queues_per_session_max as usize
            || self.queues.len() + new > self.limits.queues_max as usize
        {
            return Err(Refusal::TooManyQueues);
        }
        let before = self.unwatch(id);
        let mut places = Vec::with_capacity(names.len());
        for name in names {
            places.push(self.queue_or_new(name)?);
        }
        places.sort_unstable();
        places.dedup();
        for place in &places {
            self.queues[*place].watchers += 1;
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.watching.clone_from(&places);
        }
        for place in before.into_iter().chain(places) {
            self.settle(place, effects);
        }
        Ok(())
    }

    /// Makes a session watch nothing. What it watched.
    pub(super) fn unwatch(&mut self, id: SessionId) -> Vec<u32> {
        let Some(session) = self.sessions.get_mut(&id) else {
            return Vec::new();
        };
        let waited_as = session.waits_as.take();
        let before = core::mem::take(&mut session.watching);
        for place in &before {
            let queue = &mut self.queues[*place];
            queue.watchers -= 1;
            if let Some(last_served) = waited_as {
                queue.waiting.remove(&(last_served, id));
            }
        }
        before
    }

    /// Takes what is there.
    pub(super) fn pull(
        &mut self,
        id: SessionId,
        names: &[QueueName],
        (count, ttr_ms, position): (u32, Option<u64>, u32),
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let session = self.sessions.get(&id).ok_or(Refusal::SessionUnknown)?;
        let inflight_max = inflight_max(session, self.worker_max, self.limits.inflight_per_session_max);
        let room = (inflight_max as usize).saturating_sub(session.inflight.len());
        if count == 0 || ttr_ms == Some(0) {
            return Err(Refusal::OutOfRange);
        }
        if names.len() > self.limits.queues_per_session_max as usize {
            return Err(Refusal::TooManyQueues);
        }
        if room == 0 {
            return Err(Refusal::WorkerOverCap);
        }
        let places: Vec<u32> = names.iter().filter_map(|name| self.queues.find(name)).collect();
        let terms = Terms { asked: Asked::Pull, ttr_ms, pulled_by: Some(position) };
        let mut taken = Vec::new();
        for _ in 0..room.min(count.min(self.limits.batch_max) as usize) {
            let Some((_, job)) = self.best_of(&places) else {
                break;
            };
            taken.push(self.assign(job, id, terms, effects));
        }
        self.line_up(id);
        Ok(Reply::Pulled(taken))
    }

    /// Takes one job, wherever it waits.
    pub(super) fn reserve(
        &mut self,
        id: SessionId,
        job: JobId,
        position: u32,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let session = self.sessions.get(&id).ok_or(Refusal::SessionUnknown)?;
        let inflight_max = inflight_max(session, self.worker_max, self.limits.inflight_per_session_max);
        if session.inflight.len() >= inflight_max as usize {
            return Err(Refusal::WorkerOverCap);
        }
        let wanted = self.jobs.get(job).ok_or_else(|| self.absent(job, Refusal::JobUnknown))?;
        if let JobState::Reserved { .. } = wanted.state {
            return Err(Refusal::JobHeld);
        }
        let queue = &self.queues[wanted.queue];
        if !queue.may_pass(wanted) {
            return Err(Refusal::GroupHeld);
        }
        if queue.settings().inflight_max.is_some_and(|max| queue.reserved_count >= max) {
            return Err(Refusal::WorkerOverCap);
        }
        if let JobState::Dead { .. } = wanted.state {
            // As if it were kicked first: a job that was worn out gets all its tries again.
            self.change(job, |job| {
                job.attempts = 0;
                job.expires_ms = None;
            });
        }
        let terms = Terms { asked: Asked::ByNumber, ttr_ms: None, pulled_by: Some(position) };
        let assignment = self.assign(job, id, terms, effects);
        self.line_up(id);
        Ok(Reply::Pulled(alloc::vec![assignment]))
    }

    /// Delivers again what a pull got the first time, as far as it still holds.
    pub(super) fn deliver_again(&self, assignments: &[Assignment], position: u32, effects: &mut Effects) {
        if effects.is_wanted() {
            let again = assignments.iter().filter_map(|assignment| self.delivery(*assignment));
            effects
                .deliveries
                .extend(again.map(|delivery| Delivery { pulled_by: Some(position), ..delivery }));
        }
    }

    /// Names the queues that have something to pull.
    pub(super) fn tell_what_is_ready(&mut self, effects: &mut Effects) {
        for place in self.told.drain(..) {
            if effects.is_wanted()
                && let Some(queue) = self.queues.get(place)
                && queue.next(self.time_ms).is_some()
            {
                effects.ready.push(queue.name.clone());
            }
        }
    }

    /// Gives a session that takes more the best job that there is for it.
    fn serve(&mut self, id: SessionId, effects: &mut Effects) -> bool {
        let Some(session) = self.sessions.get(&id).filter(|session| session.waits_as.is_some()) else {
            return false;
        };
        let Some((_, job)) = self.best_of(&session.watching) else {
            return false;
        };
        self.assign(job, id, BY_CREDIT, effects);
        self.line_up(id);
        true
    }

    /// The best job of these queues that may be given out.
    fn best_of(&self, places: &[u32]) -> Option<(u32, JobId)> {
        places.iter().filter_map(|place| self.queues[*place].next(self.time_ms)).min()
    }

    /// Puts a job into the hands of a session.
    fn assign(&mut self, id: JobId, holder: SessionId, terms: Terms, effects: &mut Effects) -> Assignment {
        let (index, now_ms) = (self.index, self.time_ms);
        let by_credit = terms.asked == Asked::Credit;
        self.serves = self.serves.saturating_add(1);
        if let Some(session) = self.sessions.get_mut(&holder) {
            if by_credit {
                session.credits -= 1;
            }
            session.last_served = self.serves;
        }
        let mut granted = None;
        self.change(id, |job| {
            job.fence = Fence::new(index.max(job.fence.get().saturating_add(1)));
            job.attempts = job.attempts.saturating_add(1);
            job.counts.reserves = job.counts.reserves.saturating_add(1);
            let ttr_ms = terms.ttr_ms.unwrap_or(job.ttr_ms);
            let deadline_ms = now_ms.saturating_add(ttr_ms);
            job.state = JobState::Reserved { session: holder, deadline_ms, by_credit };
            job.remember(index, now_ms, What::Assigned, Some(holder));
            granted = Some((job.queue, job.fence, job.attempts, ttr_ms, deadline_ms));
        });
        let Some((place, fence, attempt, ttr_ms, deadline_ms)) = granted else {
            unreachable!("job {id} was found where it waits");
        };
        self.queues[place].spend_token(now_ms);
        self.set_alarm(place);
        self.count(place, |totals| totals.assigned += 1);
        self.emit(
            id,
            EventKind::Assign { session: holder, fence, attempt, deadline_ms, asked: terms.asked },
            effects,
        );
        if effects.is_wanted() {
            effects.deliveries.push(Delivery {
                session: holder,
                job: id,
                fence,
                pulled_by: terms.pulled_by,
                queue: self.queues[place].name.clone(),
                attempt,
                ttr_ms,
                body: self.jobs.get(id).map(|job| job.body.clone()).unwrap_or_default(),
            });
        }
        Assignment { job: id, fence }
    }
}

/// How many jobs a session may hold.
fn inflight_max(session: &Session, worker_max: Option<u32>, limit: u32) -> u32 {
    session.inflight_max.or(worker_max).map_or(limit, |max| max.min(limit))
}
