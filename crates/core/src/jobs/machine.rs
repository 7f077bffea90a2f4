//! The queue as a machine: frames go in, effects come out.

mod admin;
mod alarms;
mod leases;
mod matcher;
mod submit;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::effects::{Effects, Event, EventKind, Refusal, Reply};
use super::frame::{Command, Frame, Op};
use super::gateway::{Gateway, Known};
use super::id::{ClientId, Fence, GatewayId, JobId, QueueName, SessionId};
use super::job::{Finish, Job, JobState, What};
use super::queue::{Queues, Totals};
use super::session::Session;
use super::settings::{JobLimits, SettingOutOfRange};
use super::table::JobTable;
use super::timers::{Alarm, Timers};
use crate::id::NodeId;

pub(super) use submit::kept;

/// The replicated job queue of one group: the state that all replicas have in common after the same entry of the log.
///
/// A driver calls [`apply`](Self::apply) with every committed frame, in the order of the log and nothing in between. The
/// leader's driver carries the [`Effects`] out, and proposes a frame when [`next_due_ms`](Self::next_due_ms) comes, which
/// is in queue time: the sum of what the frames say. Followers apply the same frames and drop the effects. Everything else
/// here only reads.
#[derive(Clone, Debug)]
pub struct JobQueue {
    pub(super) group: u16,
    pub(super) index: u64,
    pub(super) time_ms: u64,
    pub(super) wall_ms: u64,
    /// The place in the order of the group for the next job.
    pub(super) next_sequence: u64,
    /// Counts assignments.
    pub(super) serves: u64,
    pub(super) digest: u64,
    pub(super) limits: JobLimits,
    pub(super) is_draining: bool,
    pub(super) client_max: Option<u32>,
    pub(super) worker_max: Option<u32>,
    pub(super) totals: Totals,
    pub(super) jobs: JobTable,
    pub(super) queues: Queues,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) clients: BTreeMap<ClientId, Client>,
    pub(super) gateways: BTreeMap<GatewayId, Gateway>,
    /// Without their bodies, the last one last.
    pub(super) finished: VecDeque<Box<Job>>,
    /// Who led from which entry on, the latest last.
    pub(super) leaders: VecDeque<(u64, NodeId)>,

    // All that follows says again what the others say.
    pub(super) timers: Timers,
    pub(super) bytes: u64,
    pub(super) dedupe_keys: u64,
    /// Clients with a cap of their own.
    pub(super) capped_clients: u32,
    /// Queues that have something to pull, during a frame.
    told: Vec<u32>,
}

/// Whoever submits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Client {
    /// Its own cap.
    pub(super) unfinished_max: Option<u32>,
    /// How many of its jobs wait or are in somebody's hands.
    pub(super) unfinished: u32,
}

/// A frame is not the next. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} of the log comes after {applied}, which was applied already")]
pub struct StaleIndex {
    /// The index of the frame.
    pub index: u64,
    /// What was applied last.
    pub applied: u64,
}

impl JobQueue {
    /// An empty queue. All replicas of a group must start with the same limits; later ones go through the log.
    ///
    /// # Errors
    /// A limit is out of its range.
    pub fn new(group: u16, limits: JobLimits) -> Result<Self, SettingOutOfRange> {
        limits.validate()?;
        Ok(Self {
            group,
            index: 0,
            time_ms: 0,
            wall_ms: 0,
            next_sequence: 1,
            serves: 0,
            digest: 0,
            limits,
            is_draining: false,
            client_max: None,
            worker_max: None,
            totals: Totals::default(),
            jobs: JobTable::default(),
            queues: Queues::default(),
            sessions: BTreeMap::new(),
            clients: BTreeMap::new(),
            gateways: BTreeMap::new(),
            finished: VecDeque::new(),
            leaders: VecDeque::new(),
            timers: Timers::default(),
            bytes: 0,
            dedupe_keys: 0,
            capped_clients: 0,
            told: Vec::new(),
        })
    }

    /// Does what a committed frame says: lets its time pass, then does its commands in order.
    ///
    /// # Errors
    /// The frame is not after the last one.
    pub fn apply(&mut self, index: u64, frame: &Frame, effects: &mut Effects) -> Result<(), StaleIndex> {
        if index <= self.index {
            return Err(StaleIndex { index, applied: self.index });
        }
        self.index = index;
        self.time_ms = self.time_ms.saturating_add(frame.dt_ms.into());
        self.wall_ms = self.wall_ms.max(frame.wall_ms);
        self.let_alarms_go_off(effects);
        for (position, command) in (0..).zip(&frame.commands) {
            let reply = self.do_once(position, command, effects);
            self.fold(match &reply {
                Ok(_) => 1,
                Err(refusal) => 2 + *refusal as u64,
            });
            if effects.is_wanted() {
                effects.replies.push(reply);
            }
        }
        self.fold(index ^ self.time_ms.rotate_left(32));
        self.tell_what_is_ready(effects);
        Ok(())
    }

    /// Does a command, or says again what became of it.
    fn do_once(&mut self, position: u32, command: &Command, effects: &mut Effects) -> Result<Reply, Refusal> {
        let Some(token) = command.token else {
            return self.execute(position, command, effects);
        };
        let window = self.limits.gateway_window;
        let gateway = self.gateways.get_mut(&token.gateway).ok_or(Refusal::GatewayUnknown)?;
        gateway.seen_ms = self.time_ms;
        match gateway.look_up(token.sequence, window) {
            Known::TooOld => Err(Refusal::SequenceTooOld),
            Known::Done(result) => {
                let result = result.clone();
                if let Ok(Reply::Pulled(assignments)) = &result {
                    self.deliver_again(assignments, position, effects);
                }
                result
            }
            Known::New => {
                let result = self.execute(position, command, effects);
                let window = self.limits.gateway_window;
                if let Some(gateway) = self.gateways.get_mut(&token.gateway) {
                    gateway.record(token.sequence, window, result.clone());
                }
                result
            }
        }
    }

    fn execute(&mut self, position: u32, command: &Command, effects: &mut Effects) -> Result<Reply, Refusal> {
        match &command.op {
            Op::Submit(submit) => self.submit(command.token, submit, effects),
            Op::Ack { job, fence } => self.ack(*job, *fence, effects),
            Op::Nack { job, fence, delay_ms, priority, returns_attempt } => {
                self.nack(*job, *fence, (*delay_ms, *priority, *returns_attempt), effects)
            }
            Op::Bury { job, fence, priority } => self.bury(*job, *fence, *priority, effects),
            Op::Extend { job, fence, ttr_ms } => self.extend(*job, *fence, *ttr_ms, effects),
            Op::ExtendAll { session } => self.extend_all(*session, effects),
            Op::Credit { session, queues, credits, replaces } => {
                self.credit(*session, queues, (*credits, *replaces), effects)
            }
            Op::Pull { session, queues, count, ttr_ms } => {
                self.pull(*session, queues, (*count, *ttr_ms, position), effects)
            }
            Op::Reserve { session, job } => self.reserve(*session, *job, position, effects),
            Op::Cancel { job, guard } => self.cancel(*job, *guard, effects),
            Op::Kick { queue, count } => self.kick(queue, *count, effects),
            Op::KickJob { job } => self.kick_job(*job, effects),
            Op::GatewayOpen { gateway } => self.open_gateway(*gateway),
            Op::GatewayClose { gateway } => self.close_gateway(*gateway),
            Op::SessionOpen { session, secret } => self.open_session(*session, *secret),
            Op::SessionClose { session } => self.close_session(*session, effects),
            Op::Pause { queue, millis } => self.pause(queue, *millis, effects),
            Op::Drain { queue } => self.drain(queue.as_ref(), effects),
            Op::Resume { queue } => self.resume(queue.as_ref(), effects),
            Op::QueueSet { queue, settings } => self.set_queue(queue, settings.as_deref(), effects),
            Op::QuotaSet { quota, max } => self.set_quota(*quota, *max, effects),
            Op::LimitsSet(limits) => self.set_limits(limits, effects),
            Op::Tick => Ok(Reply::Done),
            Op::Lead { node } => Ok(self.note_leader(node)),
        }
    }

    fn note_leader(&mut self, node: &NodeId) -> Reply {
        if self.leaders.len() >= LEADERS_MAX {
            self.leaders.pop_front();
        }
        self.leaders.push_back((self.index, node.clone()));
        Reply::Done
    }

    /// The place of a queue, which is created if it is not there.
    fn queue_or_new(&mut self, name: &QueueName) -> Result<u32, Refusal> {
        match self.queues.find(name) {
            Some(place) => Ok(place),
            None if self.queues.len() >= self.limits.queues_max as usize => Err(Refusal::TooManyQueues),
            None => Ok(self.queues.create(name, self.time_ms)),
        }
    }

    /// The job that this assignment holds.
    pub(super) fn held(&self, job: JobId, fence: Fence) -> Result<&Job, Refusal> {
        match self.jobs.get(job) {
            Some(held) if held.fence == fence && matches!(held.state, JobState::Reserved { .. }) => Ok(held),
            Some(_) => Err(Refusal::LeaseLost),
            None => Err(self.absent(job, Refusal::LeaseLost)),
        }
    }

    /// Why there is no such job: there was one, or there never was.
    const fn absent(&self, job: JobId, if_gone: Refusal) -> Refusal {
        if job.group() == self.group && job.sequence() > 0 && job.sequence() < self.next_sequence {
            if_gone
        } else {
            Refusal::JobUnknown
        }
    }

    /// Changes a job, and with it all places where it is known by what it was.
    pub(super) fn change(&mut self, id: JobId, change: impl FnOnce(&mut Job)) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        unlink(job, &mut self.queues, &mut self.timers, &mut self.sessions, &mut self.clients);
        change(job);
        link(job, &mut self.queues, &mut self.timers, &mut self.sessions, &mut self.clients);
    }

    /// Ends the life of a job.
    fn finish(&mut self, id: JobId, how: Finish, what: What, session: Option<SessionId>) {
        let Some(mut job) = self.jobs.remove(id) else {
            return;
        };
        unlink(&job, &mut self.queues, &mut self.timers, &mut self.sessions, &mut self.clients);
        let bytes = job.body.len() as u64;
        self.bytes -= bytes;
        let queue = &mut self.queues[job.queue];
        queue.job_count -= 1;
        queue.bytes -= bytes;
        if self.limits.finished_max == 0 {
            return;
        }
        job.state = JobState::Finished { how };
        job.body = bytes::Bytes::new();
        job.remember(self.index, self.time_ms, what, session);
        self.finished.push_back(job);
        while self.finished.len() > self.limits.finished_max as usize {
            self.finished.pop_front();
        }
    }

    /// Counts something, for its queue and for all.
    fn count(&mut self, queue: u32, count: impl Fn(&mut Totals)) {
        count(&mut self.totals);
        count(&mut self.queues[queue].totals);
    }

    /// Tells what happened.
    fn emit(&mut self, job: JobId, kind: EventKind, effects: &mut Effects) {
        let number = match &kind {
            EventKind::Assign { session, fence, .. } => fence.get() ^ session.get().rotate_left(32),
            EventKind::Ack { fence, .. }
            | EventKind::Extended { fence, .. }
            | EventKind::Dlq { fence, .. } => fence.get(),
            EventKind::TimeoutRequeue { lost }
            | EventKind::WorkerDownRequeue { lost }
            | EventKind::Requeue { lost } => lost.fence.get() ^ lost.due_ms.rotate_left(32),
            EventKind::Enqueue(enqueued) => enqueued.due_ms,
            EventKind::Ready
            | EventKind::Cancelled
            | EventKind::Expired
            | EventKind::Kicked
            | EventKind::Rejected { .. } => 0,
        };
        self.fold(job.get());
        self.fold(number ^ u64::from(kind.name().as_bytes()[0]) << 56);
        if effects.is_wanted() {
            let (index, time_ms, wall_ms) = (self.index, self.time_ms, self.wall_ms);
            effects.events.push(Event { index, time_ms, wall_ms, job, kind });
        }
    }

    /// Makes a number part of the digest of all that ever happened.
    const fn fold(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
}

/// Makes a job known in all places that belong to its state.
pub(super) fn link(
    job: &Job,
    queues: &mut Queues,
    timers: &mut Timers,
    sessions: &mut BTreeMap<SessionId, Session>,
    clients: &mut BTreeMap<ClientId, Client>,
) {
    queues[job.queue].attach(job);
    match job.state {
        JobState::Reserved { session, deadline_ms, by_credit } => {
            timers.set(deadline_ms, Alarm::Job(job.id));
            if let Some(session) = sessions.get_mut(&session) {
                session.inflight.insert(job.id);
                session.by_credit += u32::from(by_credit);
            }
        }
        JobState::Delayed { until_ms, .. } => timers.set(until_ms, Alarm::Job(job.id)),
        JobState::Ready | JobState::Dead { .. } | JobState::Finished { .. } => {}
    }
    if let (Some(at_ms), JobState::Ready | JobState::Delayed { .. }) = (job.expires_ms, job.state) {
        timers.set(at_ms, Alarm::Expiry(job.id));
    }
    if job.client != ClientId::default() && job.state.is_unfinished() {
        clients.entry(job.client).or_default().unfinished += 1;
    }
}

/// Takes a job out of all places that belong to its state.
fn unlink(
    job: &Job,
    queues: &mut Queues,
    timers: &mut Timers,
    sessions: &mut BTreeMap<SessionId, Session>,
    clients: &mut BTreeMap<ClientId, Client>,
) {
    queues[job.queue].detach(job);
    match job.state {
        JobState::Reserved { session, deadline_ms, by_credit } => {
            timers.clear(deadline_ms, Alarm::Job(job.id));
            if let Some(session) = sessions.get_mut(&session) {
                session.inflight.remove(&job.id);
                session.by_credit -= u32::from(by_credit);
            }
        }
        JobState::Delayed { until_ms, .. } => timers.clear(until_ms, Alarm::Job(job.id)),
        JobState::Ready | JobState::Dead { .. } | JobState::Finished { .. } => {}
    }
    if let (Some(at_ms), JobState::Ready | JobState::Delayed { .. }) = (job.expires_ms, job.state) {
        timers.clear(at_ms, Alarm::Expiry(job.id));
    }
    if job.client != ClientId::default()
        && job.state.is_unfinished()
        && let Some(client) = clients.get_mut(&job.client)
    {
        client.unfinished -= 1;
        if *client == Client::default() {
            clients.remove(&job.client);
        }
    }
}

/// How many changes of the leader are remembered.
pub(super) const LEADERS_MAX: usize = 256;
