//! Everything that is not about one job in somebody's hands: gateways, sessions, kicks, pauses and settings.

use alloc::vec::Vec;

use super::leases::GivenBack;
use super::{Effects, JobQueue};
use crate::jobs::effects::{EventKind, Refusal, Reply};
use crate::jobs::gateway::Gateway;
use crate::jobs::id::{ClientId, GatewayId, JobId, QueueName, SessionId};
use crate::jobs::job::{JobState, What};
use crate::jobs::queue::Pause;
use crate::jobs::session::Session;
use crate::jobs::settings::{JobLimits, QueueSettings, Quota};
use crate::jobs::timers::Alarm;

impl JobQueue {
    pub(super) fn open_gateway(&mut self, id: GatewayId) -> Result<Reply, Refusal> {
        if let Some(gateway) = self.gateways.get_mut(&id) {
            gateway.seen_ms = self.time_ms;
            return Ok(Reply::Opened { is_resumed: true });
        }
        if self.gateways.len() >= self.limits.gateways_max as usize {
            return Err(Refusal::TooManyGateways);
        }
        let alarm_ms = self.time_ms.saturating_add(self.limits.gateway_idle_ms);
        self.timers.set(alarm_ms, Alarm::Gateway(id));
        self.gateways.insert(
            id,
            Gateway { opened_at: self.index, seen_ms: self.time_ms, alarm_ms, ..Gateway::default() },
        );
        Ok(Reply::Opened { is_resumed: false })
    }

    pub(super) fn close_gateway(&mut self, id: GatewayId) -> Result<Reply, Refusal> {
        if let Some(gateway) = self.gateways.remove(&id) {
            self.timers.clear(gateway.alarm_ms, Alarm::Gateway(id));
        }
        Ok(Reply::Done)
    }

    pub(super) fn open_session(&mut self, id: SessionId, secret: u64) -> Result<Reply, Refusal> {
        match self.sessions.get(&id) {
            Some(session) if session.secret == secret => Ok(Reply::Opened { is_resumed: true }),
            Some(_) => Err(Refusal::SessionTaken),
            None if self.sessions.len() >= self.limits.sessions_max as usize => Err(Refusal::TooManySessions),
            None => {
                self.sessions.insert(id, Session { secret, ..Session::default() });
                Ok(Reply::Opened { is_resumed: false })
            }
        }
    }

    pub(super) fn close_session(&mut self, id: SessionId, effects: &mut Effects) -> Result<Reply, Refusal> {
        if !self.sessions.contains_key(&id) {
            return Err(Refusal::SessionUnknown);
        }
        let watched = self.unwatch(id);
        let Some(session) = self.sessions.get_mut(&id) else {
            return Err(Refusal::SessionUnknown);
        };
        session.credits = 0;
        let held: Vec<JobId> = session.inflight.iter().copied().collect();
        for job in &held {
            let place = self.jobs.get(*job).map(|job| job.queue);
            self.give_back(*job, GivenBack::WorkerDown, effects);
            if let Some(place) = place {
                self.settle(place, effects);
            }
        }
        self.sessions.remove(&id);
        for place in watched {
            self.settle(place, effects);
        }
        Ok(Reply::Counted { count: u32::try_from(held.len()).unwrap_or(u32::MAX) })
    }

    pub(super) fn kick(
        &mut self,
        name: &QueueName,
        count: u32,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let place = self.queues.find(name).ok_or(Refusal::QueueUnknown)?;
        let queue = &self.queues[place];
        let of = if queue.dead.is_empty() { &queue.delayed } else { &queue.dead };
        let count = count.min(self.limits.batch_max) as usize;
        let jobs: Vec<JobId> = of.iter().take(count).map(|(_, job)| *job).collect();
        for job in &jobs {
            self.make_ready(*job, effects);
        }
        self.settle(place, effects);
        Ok(Reply::Counted { count: u32::try_from(jobs.len()).unwrap_or(u32::MAX) })
    }

    pub(super) fn kick_job(&mut self, id: JobId, effects: &mut Effects) -> Result<Reply, Refusal> {
        let job = self.jobs.get(id).ok_or_else(|| self.absent(id, Refusal::JobUnknown))?;
        if !matches!(job.state, JobState::Dead { .. } | JobState::Delayed { .. }) {
            return Err(Refusal::NothingToKick);
        }
        let place = job.queue;
        self.make_ready(id, effects);
        self.settle(place, effects);
        Ok(Reply::Done)
    }

    /// Makes a dead or delayed job ready. A dead one is tried as often as a new one, and does not expire any more: whoever
    /// kicks it wants it done.
    fn make_ready(&mut self, id: JobId, effects: &mut Effects) {
        let (index, now_ms) = (self.index, self.time_ms);
        let mut place = None;
        self.change(id, |job| {
            if let JobState::Dead { .. } = job.state {
                job.attempts = 0;
                job.expires_ms = None;
            }
            job.state = JobState::Ready;
            job.counts.kicks = job.counts.kicks.saturating_add(1);
            job.remember(index, now_ms, What::Kicked, None);
            place = Some(job.queue);
        });
        if let Some(place) = place {
            self.count(place, |totals| totals.kicked += 1);
            self.emit(id, EventKind::Kicked, effects);
        }
    }

    pub(super) fn pause(
        &mut self,
        name: &QueueName,
        millis: Option<u64>,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let place = self.queues.find(name).ok_or(Refusal::QueueUnknown)?;
        let until_ms = millis.map(|millis| self.time_ms.saturating_add(millis));
        let is_over = until_ms.is_some_and(|until_ms| until_ms <= self.time_ms);
        self.queues[place].pause = (!is_over).then_some(Pause { until_ms });
        self.settle(place, effects);
        Ok(Reply::Done)
    }

    pub(super) fn drain(
        &mut self,
        name: Option<&QueueName>,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        match name {
            None => self.is_draining = true,
            Some(name) => {
                let place = self.queues.find(name).ok_or(Refusal::QueueUnknown)?;
                self.queues[place].is_draining = true;
                self.settle(place, effects);
            }
        }
        Ok(Reply::Done)
    }

    pub(super) fn resume(
        &mut self,
        name: Option<&QueueName>,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        match name {
            None => self.is_draining = false,
            Some(name) => {
                let place = self.queues.find(name).ok_or(Refusal::QueueUnknown)?;
                let queue = &mut self.queues[place];
                queue.is_draining = false;
                queue.pause = None;
                self.settle(place, effects);
            }
        }
        Ok(Reply::Done)
    }

    pub(super) fn set_queue(
        &mut self,
        name: &QueueName,
        settings: Option<&QueueSettings>,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let place = match settings {
            None => self.queues.find(name).ok_or(Refusal::QueueUnknown)?,
            Some(settings) => {
                settings.validate().map_err(|_| Refusal::OutOfRange)?;
                self.queue_or_new(name)?
            }
        };
        self.queues[place].set(settings.cloned(), self.time_ms);
        self.settle(place, effects);
        Ok(Reply::Done)
    }

    pub(super) fn set_quota(
        &mut self,
        quota: Quota,
        max: Option<u32>,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        match quota {
            Quota::Clients => self.client_max = max,
            Quota::Client(id) => self.set_client_max(id, max)?,
            Quota::Workers => {
                self.worker_max = max;
                self.settle_all_sessions(effects);
            }
            Quota::Worker(id) => {
                self.sessions.get_mut(&id).ok_or(Refusal::SessionUnknown)?.inflight_max = max;
                self.line_up(id);
                self.settle_session(id, effects);
            }
        }
        Ok(Reply::Done)
    }

    pub(super) fn set_limits(&mut self, limits: &JobLimits, effects: &mut Effects) -> Result<Reply, Refusal> {
        limits.validate().map_err(|_| Refusal::OutOfRange)?;
        self.limits = limits.clone();
        while self.finished.len() > limits.finished_max as usize {
            self.finished.pop_front();
        }
        self.settle_all_sessions(effects);
        Ok(Reply::Done)
    }

    fn set_client_max(&mut self, id: ClientId, max: Option<u32>) -> Result<(), Refusal> {
        if id == ClientId::default() {
            return Err(Refusal::OutOfRange);
        }
        let was_capped = self.clients.get(&id).is_some_and(|client| client.unfinished_max.is_some());
        // Others are there only as long as they have jobs, which are bounded too.
        if max.is_some() && !was_capped && self.capped_clients >= self.limits.clients_max {
            return Err(Refusal::TooManyClients);
        }
        self.capped_clients += u32::from(max.is_some());
        self.capped_clients -= u32::from(was_capped);
        let client = self.clients.entry(id).or_default();
        client.unfinished_max = max;
        if max.is_none() && client.unfinished == 0 {
            self.clients.remove(&id);
        }
        Ok(())
    }

    fn settle_all_sessions(&mut self, effects: &mut Effects) {
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.line_up(session);
            self.settle_session(session, effects);
        }
    }
}
