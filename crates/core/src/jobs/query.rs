//! What one can ask the queue. Nothing here changes anything.

use alloc::vec::Vec;

use bytes::Bytes;

use super::effects::{Assignment, Delivery};
use super::id::{ClientId, Fence, GatewayId, JobId, QueueName, SessionId, UserKey};
use super::job::{HistoryEntry, Job, JobCounts, JobState, Moment};
use super::machine::JobQueue;
use super::queue::{Queue, Totals};
use super::session::Session;
use super::settings::{Backoff, JobLimits, QueueSettings};
use crate::id::NodeId;

/// A queue in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueStats {
    /// Which.
    pub name: QueueName,
    /// Jobs that wait for a worker, those that wait behind others of their group included.
    pub ready: u64,
    /// Jobs in somebody's hands.
    pub reserved: u64,
    /// Jobs that wait for their time.
    pub delayed: u64,
    /// Jobs put aside.
    pub dead: u64,
    /// Bytes of all bodies.
    pub bytes: u64,
    /// Sessions that watch it.
    pub watchers: u32,
    /// Sessions that would take a job of it now.
    pub waiting: u64,
    /// For how long the oldest job that could be given out has been there, in queue time.
    pub oldest_ready_ms: Option<u64>,
    /// Whether it gives out nothing, and for how long.
    pub paused: Option<Paused>,
    /// Whether it takes no new jobs.
    pub is_draining: bool,
    /// What happened since the queue was there.
    pub totals: Totals,
}

/// For how long a queue gives out nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Paused {
    /// Until this queue time.
    Until(u64),
    /// Until somebody resumes it.
    UntilResumed,
}

/// A session in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SessionStats {
    /// Which.
    pub session: SessionId,
    /// How many more jobs it takes.
    pub credits: u32,
    /// How many it takes at a time: those credits, and the ones by which it got what it holds.
    pub granted: u32,
    /// How many it holds, by credit or because it asked for them.
    pub inflight: u64,
    /// What it watches, the first [`SESSION_QUEUES_SHOWN`] of them.
    pub watching: Vec<QueueName>,
    /// How many queues it watches.
    pub watching_count: u64,
}

/// All sessions in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SessionTotals {
    /// How many are open.
    pub sessions: u64,
    /// How many more jobs they take.
    pub credits: u64,
    /// How many they take at a time.
    pub granted: u64,
    /// How many they hold.
    pub inflight: u64,
}

/// A job, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobView {
    /// Which.
    pub id: JobId,
    /// Where it waits or waited.
    pub queue: QueueName,
    /// Whose it is.
    pub client: ClientId,
    /// Smaller goes first.
    pub priority: u32,
    /// How long a worker may hold it.
    pub ttr_ms: u64,
    /// How often it is tried, 0 for ever.
    pub max_attempts: u32,
    /// How long it waits after a try that failed.
    pub backoff: Backoff,
    /// Its FIFO group.
    pub group: Option<UserKey>,
    /// At which queue time it is dropped if nobody holds it.
    pub expires_ms: Option<u64>,
    /// When it was accepted.
    pub submitted: Moment,
    /// Where it stands.
    pub state: JobState,
    /// Tries that count.
    pub attempts: u32,
    /// Of the last assignment.
    pub fence: Fence,
    /// How often things happened to it.
    pub counts: JobCounts,
    /// How long its body is; 0 when it is finished.
    pub body_bytes: usize,
    /// What happened to it, the latest [`HISTORY_MAX`](super::HISTORY_MAX) events.
    pub history: Vec<HistoryEntry>,
}

/// Where a listing of dead jobs goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeadCursor {
    /// The entry of the log at which the last one listed died.
    pub since_index: u64,
    /// The last one listed.
    pub job: JobId,
}

impl JobQueue {
    /// Since which entry of the log a gateway is known. Another one than before: it was forgotten in between.
    #[must_use]
    pub fn gateway_since(&self, gateway: GatewayId) -> Option<u64> {
        self.gateways.get(&gateway).map(|gateway| gateway.opened_at)
    }

    /// The node that led when an entry of the log was written, if that is still known.
    #[must_use]
    pub fn leader_at(&self, index: u64) -> Option<&NodeId> {
        let later = self.leaders.partition_point(|(from, _)| *from <= index);
        later.checked_sub(1).and_then(|place| self.leaders.get(place)).map(|(_, node)| node)
    }

    /// Which group it is.
    #[must_use]
    pub const fn group(&self) -> u16 {
        self.group
    }

    /// The last entry of the log that was applied.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// Queue time, in milliseconds.
    #[must_use]
    pub const fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// The latest time of day that a leader told, in milliseconds since 1970.
    #[must_use]
    pub const fn wall_ms(&self) -> u64 {
        self.wall_ms
    }

    /// At which queue time something happens by itself. The leader proposes a frame then; it may already be over.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        self.timers.first()
    }

    /// A digest of all that ever happened, cheap enough to be compared after every frame: replicas that applied the same
    /// frames have the same. [`state_hash`](Self::state_hash) looks at the state itself.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// The bounds of the whole state.
    #[must_use]
    pub const fn limits(&self) -> &JobLimits {
        &self.limits
    }

    /// Whether no queue takes new jobs.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// What happened in all queues since the beginning.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// How many jobs there are, dead ones included.
    #[must_use]
    pub const fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// How many bytes all bodies have together.
    #[must_use]
    pub const fn body_bytes(&self) -> u64 {
        self.bytes
    }

    /// All queues, by name.
    pub fn queues(&self) -> impl Iterator<Item = QueueStats> {
        self.queues.by_name().map(|queue| self.stats_of(queue))
    }

    /// One queue.
    #[must_use]
    pub fn queue(&self, name: &QueueName) -> Option<QueueStats> {
        self.found(name).map(|queue| self.stats_of(queue))
    }

    /// How a queue treats its jobs, and whether somebody set that.
    #[must_use]
    pub fn queue_settings(&self, name: &QueueName) -> Option<(&QueueSettings, bool)> {
        self.found(name).map(|queue| (queue.settings(), queue.settings.is_some()))
    }

    /// Whether a pull of this queue would get anything now.
    #[must_use]
    pub fn has_ready(&self, name: &QueueName) -> bool {
        self.found(name).is_some_and(|queue| queue.next(self.time_ms).is_some())
    }

    /// All open sessions.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }

    /// One session.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<SessionStats> {
        self.sessions.get(&id).map(|session| self.session_stats(id, session))
    }

    /// Open sessions by number, from the one after this on, so many at most, and whether there are more.
    #[must_use]
    pub fn list_sessions(&self, after: Option<SessionId>, count: usize) -> (Vec<SessionStats>, bool) {
        use core::ops::Bound::{Excluded, Unbounded};
        let start = after.map_or(Unbounded, Excluded);
        let mut sessions = self.sessions.range((start, Unbounded));
        let page = sessions.by_ref().take(count).map(|(id, session)| self.session_stats(*id, session));
        (page.collect(), sessions.next().is_some())
    }

    /// All open sessions together. It takes time for each of them.
    #[must_use]
    pub fn session_totals(&self) -> SessionTotals {
        let mut totals = SessionTotals::default();
        for session in self.sessions.values() {
            totals.sessions += 1;
            totals.credits += u64::from(session.credits);
            totals.granted += u64::from(session.granted());
            totals.inflight += session.inflight.len() as u64;
        }
        totals
    }

    /// What a session holds, so that it can go on after its leader is gone.
    #[must_use]
    pub fn held_by(&self, id: SessionId) -> Vec<Assignment> {
        let held = self.sessions.get(&id).into_iter().flat_map(|session| &session.inflight);
        held.filter_map(|job| self.jobs.get(*job))
            .map(|job| Assignment { job: job.id, fence: job.fence })
            .collect()
    }

    /// A job as its worker gets it, to be told again to a worker that may not have heard of it. `None`: the assignment has
    /// ended.
    #[must_use]
    pub fn delivery(&self, assignment: Assignment) -> Option<Delivery> {
        let job = self.held(assignment.job, assignment.fence).ok()?;
        let JobState::Reserved { session, deadline_ms, .. } = job.state else {
            return None;
        };
        Some(Delivery {
            session,
            job: job.id,
            fence: job.fence,
            pulled_by: None,
            queue: self.queues[job.queue].name.clone(),
            attempt: job.attempts,
            ttr_ms: deadline_ms.saturating_sub(self.time_ms),
            body: job.body.clone(),
        })
    }

    /// Whether a gateway is remembered.
    #[must_use]
    pub fn knows_gateway(&self, id: GatewayId) -> bool {
        self.gateways.contains_key(&id)
    }

    /// How many of a client's jobs are unfinished, and how many may be.
    #[must_use]
    pub fn client(&self, id: ClientId) -> (u32, Option<u32>) {
        let client = self.clients.get(&id).copied().unwrap_or_default();
        (client.unfinished, client.unfinished_max.or(self.client_max))
    }

    /// One job, or what is remembered of a finished one.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobView> {
        let job = match self.jobs.get(id) {
            Some(job) => job,
            None => self.finished.iter().rev().find(|job| job.id == id)?,
        };
        Some(self.view(job))
    }

    /// The body of a job that is not finished.
    #[must_use]
    pub fn body(&self, id: JobId) -> Option<Bytes> {
        self.jobs.get(id).map(|job| job.body.clone())
    }

    /// The job that a pull of this queue would get, paused or not.
    #[must_use]
    pub fn peek_ready(&self, name: &QueueName) -> Option<JobId> {
        self.found(name)?.ready.first().map(|(_, job)| *job)
    }

    /// The delayed job that is due first.
    #[must_use]
    pub fn peek_delayed(&self, name: &QueueName) -> Option<JobId> {
        self.found(name)?.delayed.first().map(|(_, job)| *job)
    }

    /// The job that has been dead for longest.
    #[must_use]
    pub fn peek_dead(&self, name: &QueueName) -> Option<JobId> {
        self.found(name)?.dead.first().map(|(_, job)| *job)
    }

    /// Dead jobs of a queue, longest dead first, and where to go on if there are more.
    #[must_use]
    pub fn list_dead(
        &self,
        name: &QueueName,
        after: Option<DeadCursor>,
        count: usize,
    ) -> (Vec<JobView>, Option<DeadCursor>) {
        use core::ops::Bound::{Excluded, Unbounded};
        let Some(queue) = self.found(name) else {
            return (Vec::new(), None);
        };
        let start = after.map_or(Unbounded, |cursor| Excluded((cursor.since_index, cursor.job)));
        let mut keys = queue.dead.range((start, Unbounded));
        let page: Vec<_> = keys.by_ref().take(count).copied().collect();
        let more = keys.next().and_then(|_| page.last());
        let cursor = more.map(|(since_index, job)| DeadCursor { since_index: *since_index, job: *job });
        (page.iter().filter_map(|(_, id)| self.jobs.get(*id)).map(|job| self.view(job)).collect(), cursor)
    }

    fn found(&self, name: &QueueName) -> Option<&Queue> {
        self.queues.find(name).map(|place| &self.queues[place])
    }

    fn session_stats(&self, id: SessionId, session: &Session) -> SessionStats {
        let shown = session.watching.iter().take(SESSION_QUEUES_SHOWN);
        SessionStats {
            session: id,
            credits: session.credits,
            granted: session.granted(),
            inflight: session.inflight.len() as u64,
            watching: shown.map(|place| self.queues[*place].name.clone()).collect(),
            watching_count: session.watching.len() as u64,
        }
    }

    fn stats_of(&self, queue: &Queue) -> QueueStats {
        QueueStats {
            name: queue.name.clone(),
            ready: queue.ready_count.into(),
            reserved: queue.reserved_count.into(),
            delayed: queue.delayed.len() as u64,
            dead: queue.dead.len() as u64,
            bytes: queue.bytes,
            watchers: queue.watchers,
            waiting: queue.waiting.len() as u64,
            oldest_ready_ms: self.oldest_ready_ms(queue),
            paused: queue.pause.map(|pause| pause.until_ms.map_or(Paused::UntilResumed, Paused::Until)),
            is_draining: queue.is_draining,
            totals: queue.totals,
        }
    }

    /// Numbers rise with time, so the oldest job is the first of some priority. Where there are very many priorities, only
    /// the foremost are looked at.
    fn oldest_ready_ms(&self, queue: &Queue) -> Option<u64> {
        let mut oldest: Option<JobId> = None;
        let mut from = (0, JobId::default());
        for _ in 0..PRIORITIES_MAX {
            let Some((priority, job)) = queue.ready.range(from..).next() else {
                break;
            };
            oldest = Some(oldest.map_or(*job, |oldest| oldest.min(*job)));
            match priority.checked_add(1) {
                Some(next) => from = (next, JobId::default()),
                None => break,
            }
        }
        let job = self.jobs.get(oldest?)?;
        Some(self.time_ms.saturating_sub(job.submitted.time_ms))
    }

    fn view(&self, job: &Job) -> JobView {
        JobView {
            id: job.id,
            queue: self.queues[job.queue].name.clone(),
            client: job.client,
            priority: job.priority,
            ttr_ms: job.ttr_ms,
            max_attempts: job.max_attempts,
            backoff: job.backoff,
            group: job.group.clone(),
            expires_ms: job.expires_ms,
            submitted: job.submitted,
            state: job.state,
            attempts: job.attempts,
            fence: job.fence,
            counts: job.counts,
            body_bytes: job.body.len(),
            history: job.history.clone(),
        }
    }
}

/// A session may watch thousands of queues; so many of them are told of each.
pub const SESSION_QUEUES_SHOWN: usize = 16;
/// How many priorities of a queue are looked at for its oldest job.
const PRIORITIES_MAX: usize = 1_024;
