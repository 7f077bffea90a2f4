//! New jobs: which are accepted, and which are not.

use alloc::boxed::Box;
use alloc::vec::Vec;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::{Effects, JobQueue, link};
use crate::jobs::effects::{Enqueued, EventKind, Refusal, Reply};
use crate::jobs::frame::{Submit, Token};
use crate::jobs::id::{ClientId, Fence, JobId, UserKey};
use crate::jobs::job::{Job, JobCounts, JobState, Moment};
use crate::jobs::queue::Taken;

impl JobQueue {
    /// Accepts a job, or says why not.
    pub(super) fn submit(
        &mut self,
        token: Option<Token>,
        submit: &Submit,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let known = self.queues.find(&submit.queue);
        let admitted = match self.admit(known, submit) {
            Ok(Some(job)) => return Ok(Reply::Duplicate { job }),
            Ok(None) => self.queue_or_new(&submit.queue),
            Err(refusal) => Err(refusal),
        };
        let place = match admitted {
            Ok(place) => place,
            Err(refusal) => {
                self.reject(known, submit, refusal, effects);
                return Err(refusal);
            }
        };
        let job = self.accept(place, token, submit, effects);
        self.settle(place, effects);
        Ok(Reply::Submitted { job })
    }

    /// Whether a job may be accepted. The number of the first one, if it was accepted before.
    fn admit(&self, known: Option<u32>, submit: &Submit) -> Result<Option<JobId>, Refusal> {
        let bytes = submit.body.len() as u64;
        if bytes > self.limits.body_bytes_max.into() {
            return Err(Refusal::BodyTooLong);
        }
        let is_in_range = submit.ttr_ms != Some(0)
            && submit.ttl_ms != Some(0)
            && submit.dedupe.as_ref().is_none_or(|dedupe| dedupe.window_ms > 0);
        if !is_in_range {
            return Err(Refusal::OutOfRange);
        }
        let queue = known.map(|place| &self.queues[place]);
        if let (Some(queue), Some(dedupe)) = (queue, &submit.dedupe)
            // A key that is due counts no more, even when its alarm is late.
            && let Some(taken) = queue.dedupe.get(&dedupe.key).filter(|taken| taken.until_ms > self.time_ms)
        {
            return Ok(Some(taken.job));
        }
        if self.is_draining || queue.is_some_and(|queue| queue.is_draining) {
            return Err(Refusal::Draining);
        }
        if self.jobs.len() as u64 >= self.limits.jobs_max || self.bytes + bytes > self.limits.bytes_max {
            return Err(Refusal::Full);
        }
        if let Some(queue) = queue {
            let settings = queue.settings();
            if settings.jobs_max.is_some_and(|max| queue.job_count >= max)
                || settings.bytes_max.is_some_and(|max| queue.bytes + bytes > max)
            {
                return Err(Refusal::QueueFull);
            }
        }
        if submit.dedupe.is_some() && self.dedupe_keys >= self.limits.dedupe_keys_max {
            return Err(Refusal::TooManyDedupeKeys);
        }
        if submit.client != ClientId::default() {
            let client = self.clients.get(&submit.client).copied().unwrap_or_default();
            if client.unfinished_max.or(self.client_max).is_some_and(|max| client.unfinished >= max) {
                return Err(Refusal::ClientOverCap);
            }
        }
        Ok(None)
    }

    fn accept(&mut self, place: u32, token: Option<Token>, submit: &Submit, effects: &mut Effects) -> JobId {
        let id = JobId::in_group(self.group, self.next_sequence);
        self.next_sequence += 1;
        let now_ms = self.time_ms;
        let due_ms = now_ms.saturating_add(submit.delay_ms);
        let bytes = submit.body.len() as u64;
        let queue = &mut self.queues[place];
        queue.job_count += 1;
        queue.bytes += bytes;
        self.bytes += bytes;
        let settings = queue.settings();
        let job = Box::new(Job {
            id,
            queue: place,
            client: submit.client,
            priority: submit.priority,
            ttr_ms: submit.ttr_ms.unwrap_or(settings.ttr_ms),
            max_attempts: submit.max_attempts.unwrap_or(settings.max_attempts),
            backoff: submit.backoff.unwrap_or(settings.backoff),
            group: submit.group.as_ref().map(UserKey::detached),
            expires_ms: submit.ttl_ms.map(|ttl_ms| now_ms.saturating_add(ttl_ms)),
            submitted: Moment { index: self.index, time_ms: now_ms, wall_ms: self.wall_ms },
            state: if submit.delay_ms > 0 {
                JobState::Delayed { until_ms: due_ms, is_retry: false }
            } else {
                JobState::Ready
            },
            attempts: 0,
            fence: Fence::default(),
            counts: JobCounts::default(),
            body: kept(&submit.body),
            history: Vec::new(),
        });
        if let Some(dedupe) = &submit.dedupe {
            let (key, until_ms) = (dedupe.key.detached(), now_ms.saturating_add(dedupe.window_ms));
            match queue.dedupe.insert(key.clone(), Taken { job: id, until_ms }) {
                Some(before) => {
                    queue.dedupe_due.remove(&(before.until_ms, key.clone()));
                }
                None => self.dedupe_keys += 1,
            }
            queue.dedupe_due.insert((until_ms, key));
        }
        let max_attempts = job.max_attempts;
        link(&job, &mut self.queues, &mut self.timers, &mut self.sessions, &mut self.clients);
        self.jobs.insert(job);
        self.count(place, |totals| totals.enqueued += 1);
        if effects.is_wanted() {
            let enqueued = Enqueued {
                token,
                queue: self.queues[place].name.clone(),
                client: submit.client,
                priority: submit.priority,
                due_ms,
                group: submit.group.as_ref().map(UserKey::detached),
                max_attempts,
                body_hash: xxh3_64(&submit.body),
            };
            self.emit(id, EventKind::Enqueue(enqueued), effects);
        } else {
            self.fold(id.get());
            self.fold(due_ms ^ u64::from(b'e') << 56);
        }
        id
    }

    fn reject(&mut self, known: Option<u32>, submit: &Submit, refusal: Refusal, effects: &mut Effects) {
        match known {
            Some(place) => self.count(place, |totals| totals.rejected += 1),
            None => self.totals.rejected += 1,
        }
        if effects.is_wanted() {
            let queue = submit.queue.detached();
            self.emit(JobId::default(), EventKind::Rejected { queue, refusal }, effects);
        } else {
            self.fold(0);
            self.fold(u64::from(b'r') << 56);
        }
    }
}

/// The body as a job keeps it. A short one is copied: a slice would keep the whole frame in memory, which came with a
/// thousand others, for as long as the last of them lives.
pub(in crate::jobs) fn kept(body: &Bytes) -> Bytes {
    if body.len() < BODY_SHARED_MIN { Bytes::copy_from_slice(body) } else { body.clone() }
}

/// From so many bytes on a body shares the memory of the frame or snapshot that it came with.
const BODY_SHARED_MIN: usize = 16 << 10;
