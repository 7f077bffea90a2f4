//! A queue that one can read in one go: lists, and a search through all of them for every question.

use std::collections::BTreeMap;

use synod_core::jobs::{
    Assignment, Backoff, CancelGuard, Fence, JobId, Op, QueueName, QueueSettings, Quota, Refusal, Reply,
    SessionId, UserKey,
};

#[derive(Clone, Debug)]
struct Job {
    id: JobId,
    queue: QueueName,
    priority: u32,
    ttr_ms: u64,
    max_attempts: u32,
    backoff: Backoff,
    group: Option<UserKey>,
    expires_ms: Option<u64>,
    attempts: u32,
    fence: u64,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Ready,
    Delayed { until_ms: u64, is_retry: bool },
    Held { session: SessionId, until_ms: u64, by_credit: bool },
    Dead { since: u64 },
}

#[derive(Clone, Debug, Default)]
struct Session {
    credits: u32,
    watching: Vec<QueueName>,
    last_served: u64,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    /// Which came when.
    number: usize,
    settings: Option<QueueSettings>,
    /// `None` in it: until it is resumed.
    paused: Option<Option<u64>>,
}

/// The naive queue.
#[derive(Default)]
pub(crate) struct Model {
    group: u16,
    index: u64,
    time_ms: u64,
    accepted: u64,
    serves: u64,
    worker_max: Option<u32>,
    jobs: Vec<Job>,
    sessions: BTreeMap<SessionId, Session>,
    queues: BTreeMap<QueueName, Queue>,
    /// What was given out by the last frame.
    pub(crate) given: Vec<(SessionId, Assignment, u32)>,
}

impl Model {
    pub(crate) fn new(group: u16) -> Self {
        Self { group, ..Self::default() }
    }

    pub(crate) fn apply(
        &mut self,
        index: u64,
        dt_ms: u32,
        op: Option<&Op>,
    ) -> Option<Result<Reply, Refusal>> {
        self.index = index;
        self.time_ms += u64::from(dt_ms);
        self.given.clear();
        while let Some(alarm) = self.first_alarm() {
            self.go_off(alarm);
        }
        op.map(|op| self.execute(op))
    }

    /// How many jobs of a queue are ready, held, delayed and dead.
    pub(crate) fn counts(&self, queue: &QueueName) -> (u64, u64, u64, u64) {
        let mut counts = (0, 0, 0, 0);
        for job in self.jobs.iter().filter(|job| job.queue == *queue) {
            match job.place {
                Place::Ready => counts.0 += 1,
                Place::Held { .. } => counts.1 += 1,
                Place::Delayed { .. } => counts.2 += 1,
                Place::Dead { .. } => counts.3 += 1,
            }
        }
        counts
    }

    /// The next thing that is due: by time, then expiry before queues before jobs, then by number.
    fn first_alarm(&self) -> Option<(u64, u8, Due)> {
        let expiries = self.jobs.iter().filter_map(|job| {
            let waits = matches!(job.place, Place::Ready | Place::Delayed { .. });
            job.expires_ms.filter(|_| waits).map(|at_ms| (at_ms, 0, Due::Expiry(job.id)))
        });
        let moves = self.jobs.iter().filter_map(|job| match job.place {
            Place::Held { until_ms, .. } | Place::Delayed { until_ms, .. } => {
                Some((until_ms, 2, Due::Job(job.id)))
            }
            _ => None,
        });
        let pauses = self
            .queues
            .iter()
            .filter_map(|(name, queue)| Some((queue.paused??, 1, Due::Pause(queue.number, name.clone()))));
        expiries.chain(moves).chain(pauses).filter(|(at_ms, ..)| *at_ms <= self.time_ms).min()
    }

    fn go_off(&mut self, (_, _, due): (u64, u8, Due)) {
        match due {
            Due::Expiry(id) => {
                let queue = self.job(id).queue.clone();
                self.jobs.retain(|job| job.id != id);
                self.settle(&queue);
            }
            Due::Pause(_, name) => {
                self.queue(&name).paused = None;
                self.settle(&name);
            }
            Due::Job(id) => match self.job(id).place {
                Place::Held { session, .. } => {
                    let queue = self.job(id).queue.clone();
                    let delay_ms = self.job(id).backoff.after(self.job(id).attempts);
                    self.put_back(id, delay_ms);
                    self.settle(&queue);
                    self.settle_session(session);
                }
                _ => {
                    self.job(id).place = Place::Ready;
                    let queue = self.job(id).queue.clone();
                    self.settle(&queue);
                }
            },
        }
    }

    fn execute(&mut self, op: &Op) -> Result<Reply, Refusal> {
        let now = self.time_ms;
        match op {
            Op::Submit(submit) => {
                let settings = self.queue(&submit.queue).settings.clone().unwrap_or_default();
                self.accepted += 1;
                let id = JobId::in_group(self.group, self.accepted);
                let is_delayed = submit.delay_ms > 0;
                self.jobs.push(Job {
                    id,
                    queue: submit.queue.clone(),
                    priority: submit.priority,
                    ttr_ms: submit.ttr_ms.unwrap_or(settings.ttr_ms),
                    max_attempts: submit.max_attempts.unwrap_or(settings.max_attempts),
                    backoff: submit.backoff.unwrap_or(settings.backoff),
                    group: submit.group.clone(),
                    expires_ms: submit.ttl_ms.map(|ttl_ms| now + ttl_ms),
                    attempts: 0,
                    fence: 0,
                    place: if is_delayed {
                        Place::Delayed { until_ms: now + submit.delay_ms, is_retry: false }
                    } else {
                        Place::Ready
                    },
                });
                self.settle(&submit.queue);
                Ok(Reply::Submitted { job: id })
            }
            Op::SessionOpen { session, .. } => {
                let is_resumed = self.sessions.contains_key(session);
                self.sessions.entry(*session).or_default();
                Ok(Reply::Opened { is_resumed })
            }
            Op::SessionClose { session } => {
                if !self.sessions.contains_key(session) {
                    return Err(Refusal::SessionUnknown);
                }
                *self.session(*session) = Session::default();
                let held: Vec<JobId> = self.held_by(*session);
                for id in &held {
                    let queue = self.job(*id).queue.clone();
                    let counts = self.queue(&queue).settings.clone().unwrap_or_default().worker_down_counts;
                    if !counts {
                        self.job(*id).attempts -= 1;
                    }
                    self.put_back(*id, 0);
                    self.settle(&queue);
                }
                self.sessions.remove(session);
                Ok(Reply::Counted { count: held.len() as u32 })
            }
            Op::Credit { session, queues, credits, replaces } => {
                if !self.sessions.contains_key(session) {
                    return Err(Refusal::SessionUnknown);
                }
                for queue in queues {
                    self.queue(queue);
                }
                let of = self.session(*session);
                of.credits = if *replaces { *credits } else { of.credits + credits };
                if !queues.is_empty() {
                    of.watching.clone_from(queues);
                }
                self.settle_session(*session);
                Ok(Reply::Done)
            }
            Op::Pull { session, queues, count, .. } => {
                if !self.sessions.contains_key(session) {
                    return Err(Refusal::SessionUnknown);
                }
                if !self.has_room(*session) {
                    return Err(Refusal::WorkerOverCap);
                }
                let mut taken = Vec::new();
                while taken.len() < *count as usize && self.has_room(*session) {
                    let Some(id) = self.best(queues) else { break };
                    taken.push(self.give(id, *session, false));
                }
                Ok(Reply::Pulled(taken))
            }
            Op::Reserve { session, job } => {
                if !self.sessions.contains_key(session) {
                    return Err(Refusal::SessionUnknown);
                }
                if !self.has_room(*session) {
                    return Err(Refusal::WorkerOverCap);
                }
                let wanted = self.find(*job)?.clone();
                if let Place::Held { .. } = wanted.place {
                    return Err(Refusal::JobHeld);
                }
                if !self.may_go(&wanted) {
                    return Err(Refusal::GroupHeld);
                }
                if self.is_full(&wanted.queue) {
                    return Err(Refusal::WorkerOverCap);
                }
                if let Place::Dead { .. } = wanted.place {
                    self.job(*job).attempts = 0;
                    self.job(*job).expires_ms = None;
                }
                Ok(Reply::Pulled(vec![self.give(*job, *session, false)]))
            }
            Op::Ack { job, fence } => {
                let held = self.held(*job, *fence)?;
                self.jobs.retain(|other| other.id != *job);
                self.after(&held, true);
                Ok(Reply::Done)
            }
            Op::Nack { job, fence, delay_ms, priority, returns_attempt } => {
                let held = self.held(*job, *fence)?;
                let of = self.job(*job);
                of.attempts -= u32::from(*returns_attempt);
                of.priority = priority.unwrap_or(of.priority);
                let delay_ms = delay_ms.unwrap_or_else(|| of.backoff.after(of.attempts));
                let reply = self.put_back(*job, delay_ms);
                self.after(&held, true);
                Ok(reply)
            }
            Op::Bury { job, fence, priority } => {
                let held = self.held(*job, *fence)?;
                let since = self.index;
                let of = self.job(*job);
                of.priority = priority.unwrap_or(of.priority);
                of.place = Place::Dead { since };
                self.after(&held, true);
                Ok(Reply::Dead)
            }
            Op::Extend { job, fence, ttr_ms } => {
                self.held(*job, *fence)?;
                self.prolong(*job, *ttr_ms);
                Ok(Reply::Done)
            }
            Op::ExtendAll { session } => {
                if !self.sessions.contains_key(session) {
                    return Err(Refusal::SessionUnknown);
                }
                let held = self.held_by(*session);
                for id in &held {
                    self.prolong(*id, None);
                }
                Ok(Reply::Counted { count: held.len() as u32 })
            }
            Op::Cancel { job, guard } => {
                if let CancelGuard::Held(fence) = guard {
                    self.held(*job, *fence)?;
                }
                let of = self.find(*job)?.clone();
                let is_held = matches!(of.place, Place::Held { .. });
                if is_held && *guard == CancelGuard::Idle {
                    return Err(Refusal::JobHeld);
                }
                self.jobs.retain(|other| other.id != *job);
                self.after(&of, matches!(guard, CancelGuard::Held(_)));
                Ok(Reply::Done)
            }
            Op::Kick { queue, count } => {
                if !self.queues.contains_key(queue) {
                    return Err(Refusal::QueueUnknown);
                }
                let in_queue = || self.jobs.iter().filter(|job| job.queue == *queue);
                let mut dead: Vec<(u64, JobId)> = in_queue()
                    .filter_map(|job| match job.place {
                        Place::Dead { since } => Some((since, job.id)),
                        _ => None,
                    })
                    .collect();
                if dead.is_empty() {
                    dead = in_queue()
                        .filter_map(|job| match job.place {
                            Place::Delayed { until_ms, .. } => Some((until_ms, job.id)),
                            _ => None,
                        })
                        .collect();
                }
                dead.sort_unstable();
                dead.truncate(*count as usize);
                for (_, id) in &dead {
                    self.make_ready(*id);
                }
                self.settle(queue);
                Ok(Reply::Counted { count: dead.len() as u32 })
            }
            Op::KickJob { job } => {
                let of = self.find(*job)?.clone();
                if !matches!(of.place, Place::Dead { .. } | Place::Delayed { .. }) {
                    return Err(Refusal::NothingToKick);
                }
                self.make_ready(*job);
                self.settle(&of.queue);
                Ok(Reply::Done)
            }
            Op::Pause { queue, millis } => {
                if !self.queues.contains_key(queue) {
                    return Err(Refusal::QueueUnknown);
                }
                let until_ms = millis.map(|millis| now + millis);
                self.queue(queue).paused = (*millis != Some(0)).then_some(until_ms);
                self.settle(queue);
                Ok(Reply::Done)
            }
            Op::Resume { queue: Some(queue) } => {
                if !self.queues.contains_key(queue) {
                    return Err(Refusal::QueueUnknown);
                }
                self.queue(queue).paused = None;
                self.settle(queue);
                Ok(Reply::Done)
            }
            Op::QueueSet { queue, settings } => {
                if settings.is_none() && !self.queues.contains_key(queue) {
                    return Err(Refusal::QueueUnknown);
                }
                self.queue(queue).settings = settings.as_deref().cloned();
                self.settle(queue);
                Ok(Reply::Done)
            }
            Op::QuotaSet { quota: Quota::Workers, max } => {
                self.worker_max = *max;
                for session in self.sessions.keys().copied().collect::<Vec<_>>() {
                    self.settle_session(session);
                }
                Ok(Reply::Done)
            }
            other => panic!("not for the naive queue: {other:?}"),
        }
    }

    /// Gives out what can be given out of a queue: to who was served longest ago, the best that there is for it.
    fn settle(&mut self, queue: &QueueName) {
        while self.best(std::slice::from_ref(queue)).is_some() {
            let waits = |(id, session): &(&SessionId, &Session)| {
                session.credits > 0 && session.watching.contains(queue) && self.has_room(**id)
            };
            let next =
                self.sessions.iter().filter(waits).min_by_key(|(id, session)| (session.last_served, **id));
            let Some((id, session)) = next else { break };
            let (id, watching) = (*id, session.watching.clone());
            let job = self.best(&watching).expect("at least the one of this queue");
            self.give(job, id, true);
        }
    }

    fn settle_session(&mut self, id: SessionId) {
        while let Some(session) =
            self.sessions.get(&id).filter(|session| session.credits > 0 && self.has_room(id))
        {
            let watching = session.watching.clone();
            let Some(job) = self.best(&watching) else { break };
            self.give(job, id, true);
        }
    }

    fn best(&self, queues: &[QueueName]) -> Option<JobId> {
        let is_open = |name: &QueueName| {
            self.queues.get(name).is_some_and(|queue| queue.paused.is_none()) && !self.is_full(name)
        };
        let can_go = |job: &&Job| {
            job.place == Place::Ready
                && queues.contains(&job.queue)
                && is_open(&job.queue)
                && self.may_go(job)
        };
        self.jobs.iter().filter(can_go).min_by_key(|job| (job.priority, job.id)).map(|job| job.id)
    }

    /// No other of the group is held or waits for its next try, and no earlier one is ready.
    fn may_go(&self, job: &Job) -> bool {
        job.group.is_none()
            || !self.jobs.iter().any(|other| {
                let is_same = other.group == job.group && other.queue == job.queue && other.id != job.id;
                is_same
                    && match other.place {
                        Place::Held { .. } | Place::Delayed { is_retry: true, .. } => true,
                        Place::Ready => other.id < job.id,
                        Place::Delayed { .. } | Place::Dead { .. } => false,
                    }
            })
    }

    fn is_full(&self, queue: &QueueName) -> bool {
        let max =
            self.queues.get(queue).and_then(|queue| queue.settings.as_ref()).and_then(|set| set.inflight_max);
        max.is_some_and(|max| self.counts(queue).1 >= u64::from(max))
    }

    fn has_room(&self, session: SessionId) -> bool {
        self.worker_max.is_none_or(|max| self.held_by(session).len() < max as usize)
    }

    fn give(&mut self, id: JobId, session: SessionId, by_credit: bool) -> Assignment {
        self.serves += 1;
        let serves = self.serves;
        let of = self.session(session);
        of.credits -= u32::from(by_credit);
        of.last_served = serves;
        let (index, now) = (self.index, self.time_ms);
        let job = self.job(id);
        job.fence = index.max(job.fence + 1);
        job.attempts += 1;
        job.place = Place::Held { session, until_ms: now + job.ttr_ms, by_credit };
        let (assignment, attempt) = (Assignment { job: id, fence: Fence::new(job.fence) }, job.attempts);
        self.given.push((session, assignment, attempt));
        assignment
    }

    fn put_back(&mut self, id: JobId, delay_ms: u64) -> Reply {
        let (index, now) = (self.index, self.time_ms);
        let job = self.job(id);
        if job.max_attempts > 0 && job.attempts >= job.max_attempts {
            job.place = Place::Dead { since: index };
            return Reply::Dead;
        }
        if job.expires_ms.is_some_and(|at_ms| at_ms <= now) {
            self.jobs.retain(|job| job.id != id);
            return Reply::Requeued;
        }
        job.place = match delay_ms {
            0 => Place::Ready,
            _ => Place::Delayed { until_ms: now + delay_ms, is_retry: true },
        };
        Reply::Requeued
    }

    fn after(&mut self, before: &Job, returns_credit: bool) {
        if let Place::Held { session, by_credit, .. } = before.place {
            self.session(session).credits += u32::from(returns_credit && by_credit);
            self.settle(&before.queue);
            self.settle_session(session);
        } else {
            self.settle(&before.queue);
        }
    }

    fn make_ready(&mut self, id: JobId) {
        let job = self.job(id);
        if let Place::Dead { .. } = job.place {
            job.attempts = 0;
            job.expires_ms = None;
        }
        job.place = Place::Ready;
    }

    fn prolong(&mut self, id: JobId, ttr_ms: Option<u64>) {
        let now = self.time_ms;
        let job = self.job(id);
        let until = now + ttr_ms.unwrap_or(job.ttr_ms);
        if let Place::Held { until_ms, .. } = &mut job.place {
            *until_ms = until;
        }
    }

    fn held_by(&self, session: SessionId) -> Vec<JobId> {
        let is_held = |job: &&Job| matches!(job.place, Place::Held { session: by, .. } if by == session);
        self.jobs.iter().filter(is_held).map(|job| job.id).collect()
    }

    fn held(&self, id: JobId, fence: Fence) -> Result<Job, Refusal> {
        let job = self.jobs.iter().find(|job| job.id == id).ok_or(Refusal::LeaseLost)?;
        let is_held = matches!(job.place, Place::Held { .. }) && job.fence == fence.get();
        if is_held { Ok(job.clone()) } else { Err(Refusal::LeaseLost) }
    }

    fn find(&self, id: JobId) -> Result<&Job, Refusal> {
        self.jobs.iter().find(|job| job.id == id).ok_or(Refusal::JobUnknown)
    }

    fn job(&mut self, id: JobId) -> &mut Job {
        self.jobs.iter_mut().find(|job| job.id == id).expect("a job")
    }

    fn session(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).expect("a session")
    }

    fn queue(&mut self, name: &QueueName) -> &mut Queue {
        let number = self.queues.len();
        self.queues.entry(name.clone()).or_insert_with(|| Queue { number, ..Queue::default() })
    }
}

/// What goes off.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Expiry(JobId),
    Pause(usize, QueueName),
    Job(JobId),
}
