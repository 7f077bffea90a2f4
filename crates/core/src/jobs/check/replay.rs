//! The lives of all jobs, as the committed events tell them, and what is wrong with them.
//!
//! This is a queue once more, told by its events instead of its commands, and kept as plainly as possible.

use alloc::collections::{BTreeMap, BTreeSet};

use super::witnesses::is_loss;
use super::{Expectations, Finding, Report};
use crate::jobs::effects::{Asked, Enqueued, Event, EventKind, Lost};
use crate::jobs::frame::Token;
use crate::jobs::id::{ClientId, Fence, JobId, QueueName, SessionId, UserKey};
use crate::jobs::job::DeadReason;

/// What the events tell.
#[derive(Default)]
pub(super) struct Lives {
    pub(super) jobs: BTreeMap<JobId, Life>,
    /// Who got which assignment.
    pub(super) assignments: BTreeMap<(JobId, Fence), SessionId>,
    /// By which assignment, and by whom, a job was done.
    pub(super) acks: BTreeMap<JobId, (Fence, SessionId)>,
    tokens: BTreeMap<Token, JobId>,
    queues: BTreeMap<QueueName, Waiting>,
    sessions: BTreeMap<SessionId, u32>,
    clients: BTreeMap<ClientId, u32>,
}

/// One job.
pub(super) struct Life {
    pub(super) token: Option<Token>,
    pub(super) body_hash: u64,
    pub(super) stand: Stand,
    queue: QueueName,
    client: ClientId,
    priority: u32,
    due_ms: u64,
    group: Option<UserKey>,
    max_attempts: u32,
    attempts: u32,
    fence: Fence,
}

/// Where a job stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stand {
    Ready,
    Delayed { is_retry: bool },
    Held { session: SessionId },
    Dead,
    Ended,
}

/// Who waits in a queue.
#[derive(Default)]
struct Waiting {
    inflight: u32,
    /// Jobs without a group.
    alone: BTreeSet<(u32, JobId)>,
    groups: BTreeMap<UserKey, GroupLine>,
    /// The first of each group that nobody holds up.
    heads: BTreeSet<(u32, JobId)>,
}

#[derive(Default)]
struct GroupLine {
    line: BTreeMap<JobId, u32>,
    holder: Option<JobId>,
}

/// Replays all events, in their order.
pub(super) fn replay(events: &[Event], expectations: &Expectations, report: &mut Report) -> Lives {
    let mut lives = Lives::default();
    for event in events {
        lives.take(event, expectations, report);
    }
    report.seen.jobs = lives.jobs.len() as u64;
    lives
}

impl Lives {
    fn take(&mut self, event: &Event, expectations: &Expectations, report: &mut Report) {
        let job = event.job;
        match &event.kind {
            EventKind::Enqueue(enqueued) => return self.enqueue(event, enqueued, expectations, report),
            EventKind::Rejected { .. } => return,
            _ => {}
        }
        let Some(stand) = self.jobs.get(&job).map(|life| life.stand) else {
            return report.add(Finding::Phantom { job });
        };
        if is_loss(&event.kind) {
            report.seen.losses += 1;
        }
        match &event.kind {
            EventKind::Assign { session, fence, attempt, asked, .. } => {
                let given = Given { session: *session, fence: *fence, attempt: *attempt, asked: *asked };
                self.assign(event, given, expectations, report);
            }
            EventKind::Ack { session, fence } => {
                report.seen.acks += 1;
                self.must_hold(job, *session, *fence, report);
                if self.acks.insert(job, (*fence, *session)).is_some() {
                    report.add(Finding::WrongAck { job, fence: *fence });
                }
                self.stand(job, Stand::Ended);
            }
            EventKind::TimeoutRequeue { lost }
            | EventKind::WorkerDownRequeue { lost }
            | EventKind::Requeue { lost } => {
                self.must_hold(job, lost.session, lost.fence, report);
                let may_give_back = !matches!(event.kind, EventKind::TimeoutRequeue { .. });
                self.lose(event, *lost, may_give_back, report);
            }
            EventKind::Dlq { session, fence, reason, attempts, priority, is_kept } => {
                report.seen.dead += 1;
                self.must_hold(job, *session, *fence, report);
                let life = &self.jobs[&job];
                let max = life.max_attempts;
                if *attempts != life.attempts {
                    report.add(Finding::WrongAttempt { job, told: *attempts, counted: life.attempts });
                }
                if *reason == DeadReason::Attempts && (max == 0 || *attempts != max) {
                    report.add(Finding::WrongDeath { job, attempts: *attempts, max, is_dead: true });
                }
                if let Some(life) = self.jobs.get_mut(&job) {
                    life.priority = *priority;
                }
                self.stand(job, if *is_kept { Stand::Dead } else { Stand::Ended });
            }
            EventKind::Ready => {
                let due_ms = self.jobs[&job].due_ms;
                if event.time_ms < due_ms {
                    report.add(Finding::TooEarly { job, time_ms: event.time_ms, due_ms });
                }
                self.stand(job, Stand::Ready);
            }
            EventKind::Kicked => {
                if let Some(life) = self.jobs.get_mut(&job) {
                    life.due_ms = event.time_ms;
                    if stand == Stand::Dead {
                        life.attempts = 0;
                    }
                }
                self.stand(job, Stand::Ready);
            }
            EventKind::Cancelled | EventKind::Expired => self.stand(job, Stand::Ended),
            EventKind::Extended { fence, .. } => {
                let life = &self.jobs[&job];
                if !matches!(stand, Stand::Held { .. }) || life.fence != *fence {
                    report.add(Finding::WrongAck { job, fence: *fence });
                }
            }
            EventKind::Enqueue(_) | EventKind::Rejected { .. } => {}
        }
    }

    fn enqueue(&mut self, event: &Event, told: &Enqueued, expectations: &Expectations, report: &mut Report) {
        let job = event.job;
        if let Some(token) = told.token
            && let Some(first) = self.tokens.insert(token, job)
        {
            report.add(Finding::TokenTwice { token, first, second: job });
        }
        if self.jobs.contains_key(&job) {
            return report.add(Finding::Phantom { job });
        }
        let life = Life {
            token: told.token,
            body_hash: told.body_hash,
            stand: Stand::Ended,
            queue: told.queue.clone(),
            client: told.client,
            priority: told.priority,
            due_ms: told.due_ms,
            group: told.group.clone(),
            max_attempts: told.max_attempts,
            attempts: 0,
            fence: Fence::default(),
        };
        self.jobs.insert(job, life);
        let is_delayed = told.due_ms > event.time_ms;
        self.stand(job, if is_delayed { Stand::Delayed { is_retry: false } } else { Stand::Ready });
        let count = self.clients.get(&told.client).copied().unwrap_or_default();
        if let Some(max) = expectations.unfinished_per_client_max
            && told.client != ClientId::default()
            && count > max
        {
            report.add(Finding::ClientOverCap { index: event.index, client: told.client, count, max });
        }
    }

    fn assign(&mut self, event: &Event, given: Given, expectations: &Expectations, report: &mut Report) {
        report.seen.assignments += 1;
        let (index, job) = (event.index, event.job);
        let Given { session, fence, attempt, asked } = given;
        let life = &self.jobs[&job];
        let (stand, queue) = (life.stand, life.queue.clone());
        match stand {
            Stand::Held { .. } => {
                report.add(Finding::DuplicateWithoutLoss { job, held: life.fence, fence });
            }
            Stand::Ended => report.add(Finding::Phantom { job }),
            Stand::Ready => {}
            // Only who asks for this very job gets it from there.
            Stand::Delayed { .. } | Stand::Dead if asked == Asked::ByNumber => {}
            Stand::Delayed { .. } | Stand::Dead => {
                report.add(Finding::TooEarly { job, time_ms: event.time_ms, due_ms: life.due_ms });
            }
        }
        if fence <= life.fence {
            report.add(Finding::FenceNotNew { job, fence });
        }
        let counted = if stand == Stand::Dead { 1 } else { life.attempts + 1 };
        if attempt != counted {
            report.add(Finding::WrongAttempt { job, told: attempt, counted });
        }
        if let Some(better) = self.better_than(job).filter(|_| asked != Asked::ByNumber) {
            report.add(Finding::OutOfOrder { index, job, better });
        }
        if let Some(holder) = self.holder_of(job).filter(|holder| *holder != job) {
            report.add(Finding::GroupOverlap { index, job, holder });
        }
        if let Some(first) = self.assignments.insert((job, fence), session).filter(|first| *first != session)
        {
            report.add(Finding::TwoHolders { job, fence, first, second: session });
        }
        if let Some(life) = self.jobs.get_mut(&job) {
            life.fence = fence;
            life.attempts = counted;
        }
        self.stand(job, Stand::Held { session });
        let count = self.sessions.get(&session).copied().unwrap_or_default();
        if let Some(max) = expectations.inflight_per_session_max.filter(|max| count > *max) {
            report.add(Finding::SessionOverCap { index, session, count, max });
        }
        let count = self.queues.get(&queue).map_or(0, |queue| queue.inflight);
        let max = expectations.inflight_per_queue_max.get(&queue).copied();
        if let Some(max) = max.filter(|max| count > *max) {
            report.add(Finding::QueueOverCap { index, queue, count, max });
        }
    }

    fn lose(&mut self, event: &Event, lost: Lost, may_give_back: bool, report: &mut Report) {
        let job = event.job;
        let Some(life) = self.jobs.get_mut(&job) else {
            return;
        };
        let given_back = life.attempts.saturating_sub(1);
        if lost.attempts != life.attempts && !(may_give_back && lost.attempts == given_back) {
            report.add(Finding::WrongAttempt { job, told: lost.attempts, counted: life.attempts });
        }
        life.attempts = lost.attempts;
        let (attempts, max) = (life.attempts, life.max_attempts);
        if max > 0 && attempts >= max {
            report.add(Finding::WrongDeath { job, attempts, max, is_dead: false });
        }
        life.due_ms = lost.due_ms;
        // While it is held its priority is in no order.
        life.priority = lost.priority;
        let is_delayed = lost.due_ms > event.time_ms;
        self.stand(job, if is_delayed { Stand::Delayed { is_retry: true } } else { Stand::Ready });
    }

    fn must_hold(&self, job: JobId, session: SessionId, fence: Fence, report: &mut Report) {
        let life = &self.jobs[&job];
        if life.stand != (Stand::Held { session }) || life.fence != fence {
            report.add(Finding::WrongAck { job, fence });
        }
    }

    /// The job of the same queue that should have come instead.
    fn better_than(&self, job: JobId) -> Option<JobId> {
        let life = &self.jobs[&job];
        let queue = self.queues.get(&life.queue)?;
        let best = queue.alone.first().into_iter().chain(queue.heads.first()).min()?;
        let before_in_group = || {
            let group = queue.groups.get(life.group.as_ref()?)?;
            group.line.first_key_value().map(|(first, _)| *first).filter(|first| *first < job)
        };
        if *best < (life.priority, job) { Some(best.1) } else { before_in_group() }
    }

    fn holder_of(&self, job: JobId) -> Option<JobId> {
        let life = &self.jobs[&job];
        self.queues.get(&life.queue)?.groups.get(life.group.as_ref()?)?.holder
    }

    /// Moves a job from where it stands to where it stands now.
    fn stand(&mut self, job: JobId, stand: Stand) {
        let Some(life) = self.jobs.get_mut(&job) else {
            return;
        };
        let before = core::mem::replace(&mut life.stand, stand);
        if !self.queues.contains_key(&life.queue) {
            self.queues.insert(life.queue.clone(), Waiting::default());
        }
        let Some(queue) = self.queues.get_mut(&life.queue) else {
            return;
        };
        queue.leave(job, life, before);
        queue.enter(job, life, stand);
        if let Stand::Held { session } = before
            && let Some(count) = self.sessions.get_mut(&session)
        {
            *count -= 1;
        }
        if let Stand::Held { session } = stand {
            *self.sessions.entry(session).or_default() += 1;
        }
        let is_unfinished = |stand| !matches!(stand, Stand::Dead | Stand::Ended);
        let count = self.clients.entry(life.client).or_default();
        *count += u32::from(is_unfinished(stand));
        *count -= u32::from(is_unfinished(before));
    }
}

/// An assignment as its event tells it.
#[derive(Clone, Copy)]
struct Given {
    session: SessionId,
    fence: Fence,
    attempt: u32,
    asked: Asked,
}

impl Waiting {
    fn leave(&mut self, job: JobId, life: &Life, before: Stand) {
        self.inflight -= u32::from(matches!(before, Stand::Held { .. }));
        let Some(name) = &life.group else {
            // Its priority may have changed since, but only while it was in no order.
            self.alone.remove(&(life.priority, job));
            return;
        };
        self.change(name, |group| {
            group.line.remove(&job);
            if group.holder == Some(job) {
                group.holder = None;
            }
        });
    }

    fn enter(&mut self, job: JobId, life: &Life, stand: Stand) {
        self.inflight += u32::from(matches!(stand, Stand::Held { .. }));
        let holds = matches!(stand, Stand::Held { .. } | Stand::Delayed { is_retry: true });
        match &life.group {
            None if stand == Stand::Ready => {
                self.alone.insert((life.priority, job));
            }
            None => {}
            Some(name) => self.change(name, |group| {
                if stand == Stand::Ready {
                    group.line.insert(job, life.priority);
                }
                if holds {
                    group.holder = Some(job);
                }
            }),
        }
    }

    fn change(&mut self, name: &UserKey, change: impl FnOnce(&mut GroupLine)) {
        let mut group = self.groups.remove(name).unwrap_or_default();
        if let Some((first, priority)) = group.line.first_key_value() {
            self.heads.remove(&(*priority, *first));
        }
        change(&mut group);
        if let Some((first, priority)) = group.line.first_key_value().filter(|_| group.holder.is_none()) {
            self.heads.insert((*priority, *first));
        }
        if group.holder.is_some() || !group.line.is_empty() {
            self.groups.insert(name.clone(), group);
        }
    }
}
