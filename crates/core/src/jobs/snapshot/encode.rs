//! Writing a snapshot.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::{MAGIC, SNAPSHOT_VERSION, kind};
use crate::jobs::codec::{put_byte, put_bytes, put_flag, put_number, put_option};
use crate::jobs::effects::{Refusal, Reply};
use crate::jobs::frame_codec::{put_limits, put_name, put_node, put_settings};
use crate::jobs::id::{JobId, SessionId, UserKey};
use crate::jobs::job::{DeadReason, Finish, Job, JobState, What};
use crate::jobs::machine::JobQueue;
use crate::jobs::queue::{Queue, Totals};
use crate::jobs::table::JobTable;

/// The state after one entry of the log, independent of what happens to the queue later.
#[derive(Clone, Debug)]
pub struct Snapshot {
    index: u64,
    /// All records before the jobs.
    head: Vec<u8>,
    jobs: JobTable,
    finished: VecDeque<Box<Job>>,
}

impl JobQueue {
    /// The state as it is now. It takes time for queues, sessions, gateways and dedupe keys, next to none for jobs, and
    /// copies no body.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut head = Vec::new();
        head.extend_from_slice(MAGIC);
        put_byte(&mut head, SNAPSHOT_VERSION);
        let mut record = Vec::new();
        let mut write = |kind: u8, fill: &mut dyn FnMut(&mut Vec<u8>)| {
            record.clear();
            put_byte(&mut record, kind);
            fill(&mut record);
            put_bytes(&mut head, &record);
        };
        write(kind::HEADER, &mut |out| put_header(out, self));
        let mut place = 0;
        for (next, queue) in self.queues.iter() {
            // Free places are written too: which one is free decides where the next queue goes.
            for _ in place..next {
                write(kind::QUEUE, &mut |out| put_flag(out, false));
            }
            write(kind::QUEUE, &mut |out| put_queue(out, queue));
            place = next + 1;
        }
        for (place, queue) in self.queues.iter() {
            for (key, taken) in &queue.dedupe {
                write(kind::DEDUPE, &mut |out| {
                    put_number(out, place);
                    put_bytes(out, key.as_bytes());
                    put_number(out, taken.job.get());
                    put_number(out, taken.until_ms);
                });
            }
        }
        for (id, session) in &self.sessions {
            write(kind::SESSION, &mut |out| {
                put_number(out, id.get());
                put_number(out, session.secret);
                put_number(out, session.credits);
                put_option(out, session.inflight_max);
                put_number(out, session.last_served);
                put_number(out, session.watching.len() as u64);
                for place in &session.watching {
                    put_number(out, *place);
                }
            });
        }
        for (id, client) in &self.clients {
            if let Some(max) = client.unfinished_max {
                write(kind::CLIENT, &mut |out| {
                    put_number(out, id.get());
                    put_number(out, max);
                });
            }
        }
        for (id, gateway) in &self.gateways {
            write(kind::GATEWAY, &mut |out| {
                put_number(out, id.get());
                put_number(out, gateway.opened_at);
                put_number(out, gateway.highest);
                put_number(out, gateway.forgotten);
                put_number(out, gateway.seen_ms);
                put_number(out, gateway.alarm_ms);
                put_number(out, gateway.results.len() as u64);
                for result in &gateway.results {
                    put_result(out, result.as_ref());
                }
            });
        }
        Snapshot { index: self.index, head, jobs: self.jobs.clone(), finished: self.finished.clone() }
    }

    /// A hash of the whole state, the checksum of its snapshot. It takes time for every byte of every job.
    #[must_use]
    pub fn state_hash(&self) -> u128 {
        self.snapshot().hash()
    }
}

impl Snapshot {
    /// The last entry of the log that is part of it.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// How many jobs are in it.
    #[must_use]
    pub const fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// Its bytes, piece by piece.
    #[must_use]
    pub fn chunks(&self) -> SnapshotChunks<'_> {
        SnapshotChunks {
            snapshot: self,
            stage: Stage::Head { written: 0 },
            sum: Box::new(Xxh3::new()),
            record: Vec::new(),
        }
    }

    /// The hash of the state.
    #[must_use]
    pub fn hash(&self) -> u128 {
        let mut chunks = self.chunks();
        let mut buffer = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 2);
        while chunks.stage != Stage::End {
            buffer.clear();
            chunks.fill(&mut buffer);
        }
        chunks.sum.digest128()
    }
}

/// The bytes of a snapshot, in chunks of some 256 KiB, more where a body is longer.
pub struct SnapshotChunks<'a> {
    snapshot: &'a Snapshot,
    stage: Stage,
    /// Of all bytes before the last record.
    sum: Box<Xxh3>,
    record: Vec<u8>,
}

impl fmt::Debug for SnapshotChunks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotChunks").field("stage", &self.stage).finish_non_exhaustive()
    }
}

/// What is written next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Head { written: usize },
    Jobs { after: Option<JobId> },
    Finished { written: usize },
    End,
    Over,
}

impl Iterator for SnapshotChunks<'_> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.stage == Stage::Over {
            return None;
        }
        let mut out = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 8);
        while self.stage != Stage::Over && out.len() < CHUNK_BYTES {
            self.fill(&mut out);
        }
        Some(out.into())
    }
}

impl SnapshotChunks<'_> {
    /// Appends what is next of one stage, up to a chunk of it.
    fn fill(&mut self, out: &mut Vec<u8>) {
        let start = out.len();
        match self.stage {
            Stage::Head { written } => {
                let head = &self.snapshot.head[written..];
                let part = &head[..head.len().min(CHUNK_BYTES)];
                out.extend_from_slice(part);
                let is_all = part.len() == head.len();
                self.stage = if is_all {
                    Stage::Jobs { after: None }
                } else {
                    Stage::Head { written: written + part.len() }
                };
            }
            Stage::Jobs { after } => {
                self.stage = Stage::Finished { written: 0 };
                for job in self.snapshot.jobs.after(after) {
                    put_job(out, &mut self.record, kind::JOB, job);
                    if out.len() >= CHUNK_BYTES {
                        self.stage = Stage::Jobs { after: Some(job.id) };
                        break;
                    }
                }
            }
            Stage::Finished { written } => {
                self.stage = Stage::End;
                for (place, job) in self.snapshot.finished.iter().enumerate().skip(written) {
                    put_job(out, &mut self.record, kind::FINISHED, job);
                    if out.len() >= CHUNK_BYTES {
                        self.stage = Stage::Finished { written: place + 1 };
                        break;
                    }
                }
            }
            Stage::End => {
                let sum = self.sum.digest128().to_le_bytes();
                put_number(out, 1 + sum.len() as u64);
                put_byte(out, kind::END);
                out.extend_from_slice(&sum);
                self.stage = Stage::Over;
            }
            Stage::Over => {}
        }
        if self.stage != Stage::Over {
            self.sum.update(&out[start..]);
        }
    }
}

fn put_header(out: &mut Vec<u8>, queue: &JobQueue) {
    put_number(out, queue.group);
    for number in [queue.index, queue.time_ms, queue.wall_ms, queue.next_sequence, queue.serves, queue.digest]
    {
        put_number(out, number);
    }
    put_limits(out, &queue.limits);
    put_flag(out, queue.is_draining);
    put_option(out, queue.client_max);
    put_option(out, queue.worker_max);
    put_totals(out, &queue.totals);
    put_number(out, queue.leaders.len() as u64);
    for (index, node) in &queue.leaders {
        put_number(out, *index);
        put_node(out, node);
    }
}

fn put_queue(out: &mut Vec<u8>, queue: &Queue) {
    put_flag(out, true);
    put_name(out, &queue.name);
    put_settings(out, queue.settings.as_ref());
    put_flag(out, queue.pause.is_some());
    if let Some(pause) = queue.pause {
        put_option(out, pause.until_ms);
    }
    put_flag(out, queue.is_draining);
    put_number(out, queue.millitokens);
    put_number(out, queue.refilled_ms);
    put_option(out, queue.alarm_ms);
    put_option(out, queue.idle_since_ms);
    put_totals(out, &queue.totals);
}

fn put_totals(out: &mut Vec<u8>, totals: &Totals) {
    for number in [
        totals.enqueued,
        totals.assigned,
        totals.acked,
        totals.timed_out,
        totals.worker_down,
        totals.released,
        totals.dead,
        totals.cancelled,
        totals.expired,
        totals.kicked,
        totals.rejected,
    ] {
        put_number(out, number);
    }
}

fn put_result(out: &mut Vec<u8>, result: Option<&Result<Reply, Refusal>>) {
    match result {
        None => put_byte(out, 0),
        Some(Err(refusal)) => {
            put_byte(out, 1);
            put_byte(out, *refusal as u8);
        }
        Some(Ok(Reply::Done)) => put_byte(out, 2),
        Some(Ok(Reply::Submitted { job })) => {
            put_byte(out, 3);
            put_number(out, job.get());
        }
        Some(Ok(Reply::Duplicate { job })) => {
            put_byte(out, 4);
            put_number(out, job.get());
        }
        Some(Ok(Reply::Opened { is_resumed })) => {
            put_byte(out, 5);
            put_flag(out, *is_resumed);
        }
        Some(Ok(Reply::Pulled(assignments))) => {
            put_byte(out, 6);
            put_number(out, assignments.len() as u64);
            for assignment in assignments {
                put_number(out, assignment.job.get());
                put_number(out, assignment.fence.get());
            }
        }
        Some(Ok(Reply::Requeued)) => put_byte(out, 7),
        Some(Ok(Reply::Dead)) => put_byte(out, 8),
        Some(Ok(Reply::Counted { count })) => {
            put_byte(out, 9);
            put_number(out, *count);
        }
    }
}

/// The body comes last and is not copied into the record first.
fn put_job(out: &mut Vec<u8>, record: &mut Vec<u8>, kind: u8, job: &Job) {
    record.clear();
    put_byte(record, kind);
    put_number(record, job.id.get());
    put_number(record, job.queue);
    put_number(record, job.client.get());
    put_number(record, job.priority);
    put_number(record, job.ttr_ms);
    put_number(record, job.max_attempts);
    put_number(record, job.backoff.base_ms);
    put_number(record, job.backoff.cap_ms);
    put_bytes(record, job.group.as_ref().map_or(&[], UserKey::as_bytes));
    put_option(record, job.expires_ms);
    for number in [job.submitted.index, job.submitted.time_ms, job.submitted.wall_ms] {
        put_number(record, number);
    }
    put_state(record, job.state);
    put_number(record, job.attempts);
    put_number(record, job.fence.get());
    let counts = job.counts;
    for count in [counts.reserves, counts.timeouts, counts.releases, counts.buries, counts.kicks] {
        put_number(record, count);
    }
    put_number(record, job.history.len() as u64);
    for entry in &job.history {
        put_number(record, entry.index);
        put_number(record, entry.time_ms);
        put_byte(record, What::ALL.iter().position(|what| *what == entry.what).unwrap_or_default() as u8);
        put_option(record, entry.session.map(SessionId::get));
    }
    put_number(record, job.body.len() as u64);
    put_number(out, (record.len() + job.body.len()) as u64);
    out.extend_from_slice(record);
    out.extend_from_slice(&job.body);
}

fn put_state(out: &mut Vec<u8>, state: JobState) {
    match state {
        JobState::Ready => put_byte(out, 0),
        JobState::Reserved { session, deadline_ms, by_credit } => {
            put_byte(out, 1);
            put_number(out, session.get());
            put_number(out, deadline_ms);
            put_flag(out, by_credit);
        }
        JobState::Delayed { until_ms, is_retry } => {
            put_byte(out, 2);
            put_number(out, until_ms);
            put_flag(out, is_retry);
        }
        JobState::Dead { reason, since_index } => {
            put_byte(out, 3);
            put_flag(out, reason == DeadReason::Buried);
            put_number(out, since_index);
        }
        JobState::Finished { how } => {
            put_byte(out, 4);
            put_byte(
                out,
                match how {
                    Finish::Acked => 0,
                    Finish::Cancelled => 1,
                    Finish::Expired => 2,
                    Finish::Dropped => 3,
                },
            );
        }
    }
}

/// After so many bytes a chunk ends.
const CHUNK_BYTES: usize = 256 << 10;
