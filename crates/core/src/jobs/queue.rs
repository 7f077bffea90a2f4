//! One queue: who waits in it, on both sides.
//!
//! Jobs wait by priority and then by number; workers wait by how long ago they were served. Jobs of a FIFO group form a line
//! of their own, and only the first of the line stands in the queue, and only while no job of the group is in somebody's
//! hands or waits for its next try.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use super::id::{JobId, QueueName, SessionId, UserKey};
use super::job::{Job, JobState};
use super::settings::{QueueSettings, Rate};

/// One queue.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) name: QueueName,
    /// As somebody set it. A queue that nobody set is forgotten when nothing uses it.
    pub(super) settings: Option<QueueSettings>,
    pub(super) pause: Option<Pause>,
    pub(super) is_draining: bool,
    /// Thousandths of a token, where there is a rate.
    pub(super) millitokens: u64,
    /// The queue time up to which tokens have come back.
    pub(super) refilled_ms: u64,
    /// When its alarm goes off, if it is set.
    pub(super) alarm_ms: Option<u64>,
    /// Since when nothing uses it.
    pub(super) idle_since_ms: Option<u64>,
    pub(super) totals: Totals,
    pub(super) dedupe: BTreeMap<UserKey, Taken>,

    // All that follows says again what jobs and sessions say.
    /// What can be given out, best first.
    pub(super) ready: BTreeSet<(u32, JobId)>,
    pub(super) groups: BTreeMap<UserKey, Group>,
    pub(super) delayed: BTreeSet<(u64, JobId)>,
    /// By the entry of the log at which they died.
    pub(super) dead: BTreeSet<(u64, JobId)>,
    /// Sessions that take more, longest waiting first.
    pub(super) waiting: BTreeSet<(u64, SessionId)>,
    /// How many sessions watch it, whether or not they take more.
    pub(super) watchers: u32,
    pub(super) dedupe_due: BTreeSet<(u64, UserKey)>,
    /// Those in lines of groups included.
    pub(super) ready_count: u32,
    pub(super) reserved_count: u32,
    pub(super) job_count: u64,
    pub(super) bytes: u64,
    /// The last frame that told that there is something to pull.
    pub(super) told_index: u64,
}

/// All queues, by name and by place. Jobs and sessions name them by place, the lowest that was free.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    places: Vec<Option<Box<Queue>>>,
    names: BTreeMap<QueueName, u32>,
    free: BTreeSet<u32>,
}

impl Queues {
    pub(super) fn find(&self, name: &QueueName) -> Option<u32> {
        self.names.get(name).copied()
    }

    pub(super) fn get(&self, place: u32) -> Option<&Queue> {
        self.places.get(place as usize)?.as_deref()
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// In the order of their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Queue)> {
        (0..).zip(&self.places).filter_map(|(place, queue)| Some((place, queue.as_deref()?)))
    }

    /// In the order of their names.
    pub(super) fn by_name(&self) -> impl Iterator<Item = &Queue> {
        self.names.values().map(|place| &self[*place])
    }

    /// Adds a queue that is not there yet, in the lowest free place.
    pub(super) fn create(&mut self, name: &QueueName, now_ms: u64) -> u32 {
        let end = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        let place = self.free.pop_first().unwrap_or(end);
        self.put(place, Queue::new(name.detached(), now_ms));
        place
    }

    /// Puts a queue where none is. Those between the others and it are free.
    pub(super) fn put(&mut self, place: u32, queue: Queue) {
        while self.places.len() <= place as usize {
            self.free.extend(u32::try_from(self.places.len()));
            self.places.push(None);
        }
        self.free.remove(&place);
        self.names.insert(queue.name.clone(), place);
        self.places[place as usize] = Some(Box::new(queue));
    }

    pub(super) fn remove(&mut self, place: u32) {
        if let Some(queue) = self.places.get_mut(place as usize).and_then(Option::take) {
            self.names.remove(&queue.name);
            self.free.insert(place);
        }
        // A state that was restored must have the same free places as one that lived through it.
        while self.places.last().is_some_and(Option::is_none) {
            self.places.pop();
            self.free.pop_last();
        }
    }
}

impl Index<u32> for Queues {
    type Output = Queue;

    fn index(&self, place: u32) -> &Queue {
        match self.get(place) {
            Some(queue) => queue,
            None => panic!("no queue at place {place}, which a job or a session names"),
        }
    }
}

impl IndexMut<u32> for Queues {
    fn index_mut(&mut self, place: u32) -> &mut Queue {
        match self.places.get_mut(place as usize).and_then(Option::as_deref_mut) {
            Some(queue) => queue,
            None => panic!("no queue at place {place}, which a job or a session names"),
        }
    }
}

/// A queue gives out nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// Until this queue time; `None`: until it is resumed.
    pub(super) until_ms: Option<u64>,
}

/// A job that was taken under a dedupe key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) job: JobId,
    pub(super) until_ms: u64,
}

/// The line of a FIFO group.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// Who must be done before the line moves.
    holder: Option<JobId>,
    /// Who waits, with its priority.
    line: BTreeMap<JobId, u32>,
    /// Who stands in the queue for the group.
    shown: Option<(u32, JobId)>,
}

/// How often things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Totals {
    /// Jobs were accepted.
    pub enqueued: u64,
    /// Jobs were given out.
    pub assigned: u64,
    /// Jobs were done.
    pub acked: u64,
    /// Workers held jobs for too long.
    pub timed_out: u64,
    /// Jobs lost their workers.
    pub worker_down: u64,
    /// Workers gave jobs back.
    pub released: u64,
    /// Jobs died.
    pub dead: u64,
    /// Jobs were not wanted any more.
    pub cancelled: u64,
    /// Jobs were taken by nobody in time.
    pub expired: u64,
    /// Jobs were made ready by hand.
    pub kicked: u64,
    /// Submits were refused.
    pub rejected: u64,
}

impl Queue {
    pub(super) fn new(name: QueueName, now_ms: u64) -> Self {
        Self {
            name,
            settings: None,
            pause: None,
            is_draining: false,
            millitokens: 0,
            refilled_ms: now_ms,
            alarm_ms: None,
            idle_since_ms: None,
            totals: Totals::default(),
            dedupe: BTreeMap::new(),
            ready: BTreeSet::new(),
            groups: BTreeMap::new(),
            delayed: BTreeSet::new(),
            dead: BTreeSet::new(),
            waiting: BTreeSet::new(),
            watchers: 0,
            dedupe_due: BTreeSet::new(),
            ready_count: 0,
            reserved_count: 0,
            job_count: 0,
            bytes: 0,
            told_index: 0,
        }
    }

    /// What holds for it.
    pub(super) fn settings(&self) -> &QueueSettings {
        self.settings.as_ref().unwrap_or(&QueueSettings::DEFAULT)
    }

    /// Whether it may give out a job.
    pub(super) fn gives_out(&self, now_ms: u64) -> bool {
        let settings = self.settings();
        self.pause.is_none()
            && settings.inflight_max.is_none_or(|max| self.reserved_count < max)
            && settings.rate.is_none_or(|rate| self.millitokens_at(rate, now_ms) >= MILLI)
    }

    /// The best job that it may give out.
    pub(super) fn next(&self, now_ms: u64) -> Option<(u32, JobId)> {
        let first = self.ready.first().copied()?;
        self.gives_out(now_ms).then_some(first)
    }

    /// Brings tokens back for the time that has passed.
    pub(super) fn refill(&mut self, now_ms: u64) {
        if let Some(rate) = self.settings().rate {
            self.millitokens = self.millitokens_at(rate, now_ms);
            self.refilled_ms = now_ms;
        }
    }

    /// Pays for a job that is given out.
    pub(super) fn spend_token(&mut self, now_ms: u64) {
        if self.settings().rate.is_some() {
            self.refill(now_ms);
            self.millitokens = self.millitokens.saturating_sub(MILLI);
        }
    }

    /// Treats its jobs in another way from now on. A rate starts with a full bucket.
    pub(super) fn set(&mut self, settings: Option<QueueSettings>, now_ms: u64) {
        let had_rate = self.settings().rate.is_some();
        self.refill(now_ms);
        self.settings = settings;
        if let Some(rate) = self.settings().rate {
            let full = u64::from(rate.burst) * MILLI;
            self.millitokens = if had_rate { self.millitokens.min(full) } else { full };
            self.refilled_ms = now_ms;
        }
    }

    fn millitokens_at(&self, rate: Rate, now_ms: u64) -> u64 {
        let come = now_ms.saturating_sub(self.refilled_ms).saturating_mul(rate.per_second.into());
        self.millitokens.saturating_add(come).min(u64::from(rate.burst) * MILLI)
    }

    /// When the alarm must go off at the latest, if it must.
    pub(super) fn next_alarm(&self, idle_ms: u64) -> Option<u64> {
        let pause = self.pause.and_then(|pause| pause.until_ms);
        let rate = self.settings().rate.filter(|_| self.millitokens < MILLI && !self.ready.is_empty());
        let token = rate.map(|rate| {
            self.refilled_ms.saturating_add((MILLI - self.millitokens).div_ceil(rate.per_second.into()))
        });
        let key = self.dedupe_due.first().map(|(until_ms, _)| *until_ms);
        let idle = self.idle_since_ms.map(|since_ms| since_ms.saturating_add(idle_ms));
        [pause, token, key, idle].into_iter().flatten().min()
    }

    /// Whether it could be forgotten.
    pub(super) fn is_unused(&self) -> bool {
        self.job_count == 0
            && self.settings.is_none()
            && self.watchers == 0
            && self.pause.is_none()
            && !self.is_draining
            && self.dedupe.is_empty()
    }

    /// Takes a job into the places that belong to its state.
    pub(super) fn attach(&mut self, job: &Job) {
        match job.state {
            JobState::Ready => {
                self.ready_count += 1;
                match &job.group {
                    None => {
                        self.ready.insert((job.priority, job.id));
                    }
                    Some(name) => {
                        if !self.groups.contains_key(name) {
                            self.groups.insert(name.clone(), Group::default());
                        }
                        self.change_group(name, |group| {
                            group.line.insert(job.id, job.priority);
                        });
                    }
                }
            }
            JobState::Reserved { .. } => {
                self.reserved_count += 1;
                self.hold(job);
            }
            JobState::Delayed { until_ms, is_retry } => {
                self.delayed.insert((until_ms, job.id));
                if is_retry {
                    self.hold(job);
                }
            }
            JobState::Dead { since_index, .. } => {
                self.dead.insert((since_index, job.id));
            }
            JobState::Finished { .. } => {}
        }
    }

    /// Takes a job out of the places that belong to its state.
    pub(super) fn detach(&mut self, job: &Job) {
        match job.state {
            JobState::Ready => {
                self.ready_count -= 1;
                match &job.group {
                    None => {
                        self.ready.remove(&(job.priority, job.id));
                    }
                    Some(name) => self.change_group(name, |group| {
                        group.line.remove(&job.id);
                    }),
                }
            }
            JobState::Reserved { .. } => {
                self.reserved_count -= 1;
                self.release(job);
            }
            JobState::Delayed { until_ms, is_retry } => {
                self.delayed.remove(&(until_ms, job.id));
                if is_retry {
                    self.release(job);
                }
            }
            JobState::Dead { since_index, .. } => {
                self.dead.remove(&(since_index, job.id));
            }
            JobState::Finished { .. } => {}
        }
    }

    /// Whether a job that is in nobody's hands could be given out without breaking the order of its group.
    pub(super) fn may_pass(&self, job: &Job) -> bool {
        let Some(group) = job.group.as_ref().and_then(|name| self.groups.get(name)) else {
            return true;
        };
        let is_free = group.holder.is_none_or(|holder| holder == job.id);
        is_free && group.line.first_key_value().is_none_or(|(first, _)| job.id <= *first)
    }

    fn hold(&mut self, job: &Job) {
        if let Some(name) = &job.group {
            if !self.groups.contains_key(name) {
                self.groups.insert(name.clone(), Group::default());
            }
            self.change_group(name, |group| group.holder = Some(job.id));
        }
    }

    fn release(&mut self, job: &Job) {
        if let Some(name) = &job.group {
            self.change_group(name, |group| group.holder = None);
        }
    }

    /// Changes a group and then who stands in the queue for it.
    fn change_group(&mut self, name: &UserKey, change: impl FnOnce(&mut Group)) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        change(group);
        let first = group.line.first_key_value().map(|(id, priority)| (*priority, *id));
        let shown = first.filter(|_| group.holder.is_none());
        if shown != group.shown {
            if let Some(key) = group.shown {
                self.ready.remove(&key);
            }
            if let Some(key) = shown {
                self.ready.insert(key);
            }
            group.shown = shown;
        }
        if group.holder.is_none() && group.line.is_empty() {
            self.groups.remove(name);
        }
    }
}

/// Thousandths in a token.
pub(super) const MILLI: u64 = 1_000;
