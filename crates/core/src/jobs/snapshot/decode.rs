//! Reading a snapshot, and refusing what is none.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::mem;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::{MAGIC, SNAPSHOT_VERSION, kind};
use crate::id::NodeId;
use crate::jobs::codec::{CodecError, Reader, number_at};
use crate::jobs::effects::{Assignment, Refusal, Reply};
use crate::jobs::frame_codec::{backoff, fence, job, limits, name, node, session, settings, user_key};
use crate::jobs::gateway::Gateway;
use crate::jobs::id::{ClientId, GatewayId, JobId, SessionId};
use crate::jobs::job::{
    DeadReason, Finish, HISTORY_MAX, HistoryEntry, Job, JobCounts, JobState, Moment, What,
};
use crate::jobs::machine::{JobQueue, LEADERS_MAX, kept, link};
use crate::jobs::queue::{Pause, Queue, Taken, Totals};
use crate::jobs::session::Session;
use crate::jobs::timers::Alarm;

/// Bytes are not a snapshot. There is no state of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A field is not what it should be.
    #[error("a record of kind {kind} at byte {offset}: {error}")]
    Field {
        /// Which kind of record.
        kind: u8,
        /// Where it starts.
        offset: u64,
        /// What is wrong.
        error: CodecError,
    },
    /// A record is not where it belongs: out of order, or about something that is not there.
    #[error("a record of kind {kind} at byte {offset} does not fit the records before it")]
    Misplaced {
        /// Which kind of record.
        kind: u8,
        /// Where it starts.
        offset: u64,
    },
    /// The bytes start as no snapshot does.
    #[error("this is not a snapshot of a job queue")]
    Foreign,
    /// It was written by a later release.
    #[error("version {version} of snapshots is not known to this release")]
    Version {
        /// What it says.
        version: u8,
    },
    /// A record is longer than any can be.
    #[error("a record of {bytes} bytes at byte {offset}; none is longer than {RECORD_BYTES_MAX}")]
    TooLong {
        /// What it says.
        bytes: u64,
        /// Where it starts.
        offset: u64,
    },
    /// The sum over the bytes is another one.
    #[error("the checksum does not match")]
    Checksum,
    /// The bytes end before the end.
    #[error("the snapshot ends after {bytes} bytes, before its end")]
    Truncated {
        /// How many there were.
        bytes: u64,
    },
    /// The bytes go on after the end.
    #[error("bytes follow after the end of the snapshot")]
    Trailing,
}

/// Reads a snapshot chunk by chunk. After an error it is of no use any more.
pub struct SnapshotDecoder {
    /// The start of a record of which not all has come.
    carry: Vec<u8>,
    /// How long the carry must be before there is anything to read.
    needed: usize,
    /// How many bytes were read.
    offset: u64,
    sum: Box<Xxh3>,
    is_started: bool,
    is_over: bool,
    version: u8,
    queue: Option<Box<JobQueue>>,
    /// How many places of queues there are, free ones included.
    places: u32,
    last_kind: u8,
    last_place: u32,
    last_number: u64,
    last_key: Bytes,
}

impl Default for SnapshotDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SnapshotDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotDecoder").field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl JobQueue {
    /// The state of which this is the whole snapshot.
    ///
    /// # Errors
    /// It is none.
    pub fn decode_snapshot(bytes: Bytes) -> Result<Self, SnapshotError> {
        let mut decoder = SnapshotDecoder::new();
        decoder.feed(bytes)?;
        decoder.finish()
    }
}

impl SnapshotDecoder {
    /// At the start of a snapshot.
    #[must_use]
    pub fn new() -> Self {
        Self {
            carry: Vec::new(),
            needed: 0,
            offset: 0,
            sum: Box::new(Xxh3::new()),
            is_started: false,
            is_over: false,
            version: SNAPSHOT_VERSION,
            queue: None,
            places: 0,
            last_kind: kind::HEADER,
            last_place: 0,
            last_number: 0,
            last_key: Bytes::new(),
        }
    }

    /// Takes the next bytes, as many as there are.
    ///
    /// # Errors
    /// They do not go on with a snapshot.
    pub fn feed(&mut self, chunk: Bytes) -> Result<(), SnapshotError> {
        let mut rest = if self.carry.is_empty() {
            chunk
        } else {
            self.carry.extend_from_slice(&chunk);
            if self.carry.len() < self.needed {
                return Ok(());
            }
            Bytes::from(mem::take(&mut self.carry))
        };
        loop {
            let taken = self.take_one(&rest)?;
            if taken == 0 {
                break;
            }
            bytes::Buf::advance(&mut rest, taken);
            self.offset += taken as u64;
        }
        self.carry.extend_from_slice(&rest);
        Ok(())
    }

    /// The state, after all bytes were fed.
    ///
    /// # Errors
    /// The snapshot is not complete.
    pub fn finish(self) -> Result<JobQueue, SnapshotError> {
        let bytes = self.offset + self.carry.len() as u64;
        match self.queue {
            Some(queue) if self.is_over => Ok(*queue),
            _ => Err(SnapshotError::Truncated { bytes }),
        }
    }

    /// Reads one record, if all of it is there. How many bytes it took.
    fn take_one(&mut self, rest: &Bytes) -> Result<usize, SnapshotError> {
        if !self.is_started {
            return self.take_magic(rest);
        }
        if rest.is_empty() {
            return Ok(0);
        }
        if self.is_over {
            return Err(SnapshotError::Trailing);
        }
        let offset = self.offset;
        let (bytes, prefix) = match number_at(rest) {
            Ok(length) => length,
            Err(CodecError::Truncated) => {
                self.needed = rest.len() + 1;
                return Ok(0);
            }
            Err(error) => return Err(SnapshotError::Field { kind: self.last_kind, offset, error }),
        };
        if bytes > RECORD_BYTES_MAX {
            return Err(SnapshotError::TooLong { bytes, offset });
        }
        let end = prefix + bytes as usize;
        if rest.len() < end {
            self.needed = end;
            return Ok(0);
        }
        let mut record = Reader(rest.slice(prefix..end));
        let kind =
            record.byte().map_err(|error| SnapshotError::Field { kind: self.last_kind, offset, error })?;
        if kind == kind::END {
            self.end(&record.0)?;
            return Ok(end);
        }
        self.sum.update(&rest[..end]);
        let misplaced = SnapshotError::Misplaced { kind, offset };
        if kind < self.last_kind {
            return Err(misplaced);
        }
        if kind > self.last_kind {
            (self.last_place, self.last_number) = (0, 0);
            self.last_kind = kind;
        }
        match self.take_record(kind, &mut record) {
            Ok(true) => Ok(end),
            Ok(false) => Err(misplaced),
            Err(error) => Err(SnapshotError::Field { kind, offset, error }),
        }
    }

    fn take_magic(&mut self, rest: &Bytes) -> Result<usize, SnapshotError> {
        let length = MAGIC.len() + 1;
        if rest.len() < length {
            self.needed = length;
            return Ok(0);
        }
        if !rest.starts_with(MAGIC) {
            return Err(SnapshotError::Foreign);
        }
        self.version = rest[MAGIC.len()];
        if !(1..=SNAPSHOT_VERSION).contains(&self.version) {
            return Err(SnapshotError::Version { version: self.version });
        }
        self.sum.update(&rest[..length]);
        self.is_started = true;
        Ok(length)
    }

    fn end(&mut self, sum: &[u8]) -> Result<(), SnapshotError> {
        if sum != self.sum.digest128().to_le_bytes() {
            return Err(SnapshotError::Checksum);
        }
        let misplaced = SnapshotError::Misplaced { kind: kind::END, offset: self.offset };
        let queue = self.queue.as_mut().ok_or(misplaced)?;
        let sessions: Vec<SessionId> = queue.sessions.keys().copied().collect();
        for session in sessions {
            queue.line_up(session);
        }
        if queue.queues.iter().any(|(_, queue)| queue.is_unused() != queue.idle_since_ms.is_some()) {
            return Err(misplaced);
        }
        self.is_over = true;
        Ok(())
    }

    /// Whether a record fits those before it; it is part of the state then.
    fn take_record(&mut self, kind: u8, input: &mut Reader) -> Result<bool, CodecError> {
        if kind == kind::HEADER {
            let is_first = self.queue.is_none();
            self.queue = Some(Box::new(header(input, self.version)?));
            return input.end().map(|()| is_first);
        }
        let Some(queue) = self.queue.as_deref_mut() else {
            return Ok(false);
        };
        let fits = match kind {
            kind::QUEUE => {
                if input.flag()? {
                    let added = queue_record(input)?;
                    if queue.queues.find(&added.name).is_some() {
                        return Ok(false);
                    }
                    if let Some(at_ms) = added.alarm_ms {
                        queue.timers.set(at_ms, Alarm::Queue(self.places));
                    }
                    queue.queues.put(self.places, added);
                }
                self.places += 1;
                true
            }
            kind::DEDUPE => {
                let place = input.number32()?;
                let key = user_key(input)?.detached();
                let taken = Taken { job: job(input)?, until_ms: input.number()? };
                let is_next = place > self.last_place
                    || place == self.last_place
                        && (self.last_key.is_empty() || *key.as_bytes() > *self.last_key);
                if !is_next || queue.queues.get(place).is_none() {
                    return Ok(false);
                }
                (self.last_place, self.last_key) = (place, Bytes::copy_from_slice(key.as_bytes()));
                let queue_of_key = &mut queue.queues[place];
                queue_of_key.dedupe_due.insert((taken.until_ms, key.clone()));
                queue_of_key.dedupe.insert(key, taken);
                queue.dedupe_keys += 1;
                true
            }
            kind::SESSION => {
                let id = session(input)?;
                let added = session_record(input)?;
                let is_known = |place: &u32| queue.queues.get(*place).is_some();
                let is_next = queue.sessions.last_key_value().is_none_or(|(last, _)| *last < id);
                if !is_next
                    || !added.watching.iter().all(is_known)
                    || !added.watching.is_sorted_by(|before, after| before < after)
                {
                    return Ok(false);
                }
                for place in &added.watching {
                    queue.queues[*place].watchers += 1;
                }
                queue.sessions.insert(id, added);
                true
            }
            kind::CLIENT => {
                let id = ClientId::new(input.number()?);
                let is_next = queue.clients.last_key_value().is_none_or(|(last, _)| *last < id);
                queue.clients.entry(id).or_default().unfinished_max = Some(input.number32()?);
                queue.capped_clients = queue.capped_clients.saturating_add(1);
                is_next && id != ClientId::default()
            }
            kind::GATEWAY => {
                let id = GatewayId::new(input.number()?);
                let added = gateway_record(input, self.version)?;
                let is_next = queue.gateways.last_key_value().is_none_or(|(last, _)| *last < id);
                queue.timers.set(added.alarm_ms, Alarm::Gateway(id));
                queue.gateways.insert(id, added);
                is_next
            }
            kind::JOB => {
                let added = job_record(input)?;
                let is_next = added.id.get() > self.last_number;
                self.last_number = added.id.get();
                is_next && take_job(queue, Box::new(added))
            }
            kind::FINISHED => {
                let added = job_record(input)?;
                let is_finished = matches!(added.state, JobState::Finished { .. });
                let is_known = queue.queues.get(added.queue).is_some();
                queue.finished.push_back(Box::new(added));
                is_finished && is_known
            }
            value => return Err(CodecError::Kind { field: "record", value }),
        };
        input.end().map(|()| fits)
    }
}

/// Makes a job part of the state, if it can be.
fn take_job(queue: &mut JobQueue, job: Box<Job>) -> bool {
    let is_known = queue.queues.get(job.queue).is_some()
        && job.id.group() == queue.group
        && job.id.sequence() < queue.next_sequence
        && match job.state {
            JobState::Reserved { session, .. } => queue.sessions.contains_key(&session),
            JobState::Finished { .. } => false,
            JobState::Ready | JobState::Delayed { .. } | JobState::Dead { .. } => true,
        };
    if is_known {
        let bytes = job.body.len() as u64;
        queue.bytes += bytes;
        let of = &mut queue.queues[job.queue];
        of.job_count += 1;
        of.bytes += bytes;
        link(&job, &mut queue.queues, &mut queue.timers, &mut queue.sessions, &mut queue.clients);
        queue.jobs.insert(job);
    }
    is_known
}

fn header(input: &mut Reader, version: u8) -> Result<JobQueue, CodecError> {
    let group = u16::try_from(input.number()?).map_err(|_| CodecError::Number)?;
    let numbers = [(); 6].map(|()| input.number());
    let [index, time_ms, wall_ms, next_sequence, serves, digest] = numbers;
    let limits = limits(input)?;
    let invalid = |_| CodecError::Invalid { field: "a limit" };
    let mut queue = JobQueue::new(group, limits).map_err(invalid)?;
    (queue.index, queue.time_ms, queue.wall_ms) = (index?, time_ms?, wall_ms?);
    (queue.next_sequence, queue.serves, queue.digest) = (next_sequence?, serves?, digest?);
    if JobId::in_group(group, queue.next_sequence).sequence() != queue.next_sequence {
        return Err(CodecError::Number);
    }
    queue.is_draining = input.flag()?;
    queue.client_max = input.option32()?;
    queue.worker_max = input.option32()?;
    queue.totals = totals(input)?;
    if version > 1 {
        queue.leaders = leaders(input, queue.index)?;
    }
    Ok(queue)
}

fn leaders(input: &mut Reader, last: u64) -> Result<VecDeque<(u64, NodeId)>, CodecError> {
    let count = input.count()?;
    if count > LEADERS_MAX {
        return Err(CodecError::Number);
    }
    let mut leaders = VecDeque::with_capacity(count);
    for _ in 0..count {
        let (index, node) = (input.number()?, node(input)?);
        if index > last || leaders.back().is_some_and(|(before, _)| *before > index) {
            return Err(CodecError::Number);
        }
        leaders.push_back((index, node));
    }
    Ok(leaders)
}

fn queue_record(input: &mut Reader) -> Result<Queue, CodecError> {
    let mut queue = Queue::new(name(input)?.detached(), 0);
    queue.settings = settings(input)?;
    if queue.settings().validate().is_err() {
        return Err(CodecError::Invalid { field: "a setting of a queue" });
    }
    queue.pause = if input.flag()? { Some(Pause { until_ms: input.option()? }) } else { None };
    queue.is_draining = input.flag()?;
    queue.millitokens = input.number()?;
    queue.refilled_ms = input.number()?;
    queue.alarm_ms = input.option()?;
    queue.idle_since_ms = input.option()?;
    queue.totals = totals(input)?;
    Ok(queue)
}

fn totals(input: &mut Reader) -> Result<Totals, CodecError> {
    Ok(Totals {
        enqueued: input.number()?,
        assigned: input.number()?,
        acked: input.number()?,
        timed_out: input.number()?,
        worker_down: input.number()?,
        released: input.number()?,
        dead: input.number()?,
        cancelled: input.number()?,
        expired: input.number()?,
        kicked: input.number()?,
        rejected: input.number()?,
    })
}

fn session_record(input: &mut Reader) -> Result<Session, CodecError> {
    let mut session = Session {
        secret: input.number()?,
        credits: input.number32()?,
        inflight_max: input.option32()?,
        last_served: input.number()?,
        ..Session::default()
    };
    for _ in 0..input.count()? {
        session.watching.push(input.number32()?);
    }
    Ok(session)
}

fn gateway_record(input: &mut Reader, version: u8) -> Result<Gateway, CodecError> {
    let mut gateway = Gateway {
        opened_at: if version > 1 { input.number()? } else { 0 },
        highest: input.number()?,
        forgotten: input.number()?,
        seen_ms: input.number()?,
        alarm_ms: input.number()?,
        results: VecDeque::new(),
    };
    for _ in 0..input.count()? {
        gateway.results.push_back(result(input)?);
    }
    Ok(gateway)
}

fn result(input: &mut Reader) -> Result<Option<Result<Reply, Refusal>>, CodecError> {
    Ok(Some(Ok(match input.byte()? {
        0 => return Ok(None),
        1 => {
            let value = input.byte()?;
            let refusal = Refusal::ALL.get(usize::from(value)).copied();
            return refusal
                .map(|refusal| Some(Err(refusal)))
                .ok_or(CodecError::Kind { field: "refusal", value });
        }
        2 => Reply::Done,
        3 => Reply::Submitted { job: job(input)? },
        4 => Reply::Duplicate { job: job(input)? },
        5 => Reply::Opened { is_resumed: input.flag()? },
        6 => {
            let mut assignments = Vec::new();
            for _ in 0..input.count()? {
                assignments.push(Assignment { job: job(input)?, fence: fence(input)? });
            }
            Reply::Pulled(assignments)
        }
        7 => Reply::Requeued,
        8 => Reply::Dead,
        9 => Reply::Counted { count: input.number32()? },
        value => return Err(CodecError::Kind { field: "reply", value }),
    })))
}

fn job_record(input: &mut Reader) -> Result<Job, CodecError> {
    Ok(Job {
        id: job(input)?,
        queue: input.number32()?,
        client: ClientId::new(input.number()?),
        priority: input.number32()?,
        ttr_ms: input.number()?,
        max_attempts: input.number32()?,
        backoff: backoff(input)?,
        group: if input.0.first() == Some(&0) {
            input.byte()?;
            None
        } else {
            Some(user_key(input)?.detached())
        },
        expires_ms: input.option()?,
        submitted: Moment { index: input.number()?, time_ms: input.number()?, wall_ms: input.number()? },
        state: state(input)?,
        attempts: input.number32()?,
        fence: fence(input)?,
        counts: JobCounts {
            reserves: input.number32()?,
            timeouts: input.number32()?,
            releases: input.number32()?,
            buries: input.number32()?,
            kicks: input.number32()?,
        },
        history: history(input)?,
        body: kept(&input.bytes()?),
    })
}

fn state(input: &mut Reader) -> Result<JobState, CodecError> {
    Ok(match input.byte()? {
        0 => JobState::Ready,
        1 => JobState::Reserved {
            session: session(input)?,
            deadline_ms: input.number()?,
            by_credit: input.flag()?,
        },
        2 => JobState::Delayed { until_ms: input.number()?, is_retry: input.flag()? },
        3 => JobState::Dead {
            reason: if input.flag()? { DeadReason::Buried } else { DeadReason::Attempts },
            since_index: input.number()?,
        },
        4 => JobState::Finished {
            how: match input.byte()? {
                0 => Finish::Acked,
                1 => Finish::Cancelled,
                2 => Finish::Expired,
                3 => Finish::Dropped,
                value => return Err(CodecError::Kind { field: "end of a job", value }),
            },
        },
        value => return Err(CodecError::Kind { field: "state of a job", value }),
    })
}

fn history(input: &mut Reader) -> Result<Vec<HistoryEntry>, CodecError> {
    let count = input.count()?;
    if count > HISTORY_MAX {
        return Err(CodecError::Number);
    }
    let mut history = Vec::with_capacity(count);
    for _ in 0..count {
        let (index, time_ms, value) = (input.number()?, input.number()?, input.byte()?);
        let what = What::ALL.get(usize::from(value)).copied();
        let what = what.ok_or(CodecError::Kind { field: "entry of a history", value })?;
        history.push(HistoryEntry { index, time_ms, what, session: input.option()?.map(SessionId::new) });
    }
    Ok(history)
}

/// Longer than the longest body and all that goes with it.
const RECORD_BYTES_MAX: u64 = 128 << 20;
