//! Frames as bytes, as the log and the wire carry them.
//!
//! A version, the time, then the commands. Bodies and names that are decoded share the memory of the frame.

use alloc::boxed::Box;
use alloc::vec::Vec;

use bytes::Bytes;

use super::codec::{CodecError, Reader, put_byte, put_bytes, put_flag, put_number, put_option};
use super::frame::{CancelGuard, Command, Dedupe, Frame, Op, Submit, Token};
use super::id::{ClientId, Fence, GatewayId, JobId, QueueName, SessionId, UserKey};
use super::settings::{Backoff, DeadLetters, JobLimits, QueueSettings, Quota, Rate};
use crate::id::NodeId;

impl Frame {
    /// Appends the frame as bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_byte(out, FRAME_VERSION);
        put_number(out, self.dt_ms);
        put_number(out, self.wall_ms);
        put_number(out, self.commands.len() as u64);
        for command in &self.commands {
            command.encode(out);
        }
    }

    /// The frame that these bytes are.
    ///
    /// # Errors
    /// They are none.
    pub fn decode(bytes: Bytes) -> Result<Self, CodecError> {
        let mut input = Reader(bytes);
        let version = input.byte()?;
        if version != FRAME_VERSION {
            return Err(CodecError::Version { version });
        }
        let dt_ms = input.number32()?;
        let wall_ms = input.number()?;
        let count = input.count()?;
        // Two bytes is the shortest command; the room that it takes here is that much larger.
        let mut commands = Vec::with_capacity(count.min(input.0.len() / 2).min(COMMANDS_AT_ONCE));
        for _ in 0..count {
            commands.push(Command::decode(&mut input)?);
        }
        input.end()?;
        Ok(Self { dt_ms, wall_ms, commands })
    }
}

impl Command {
    fn encode(&self, out: &mut Vec<u8>) {
        put_flag(out, self.token.is_some());
        if let Some(token) = self.token {
            put_number(out, token.gateway.get());
            put_number(out, token.sequence);
        }
        encode_op(out, &self.op);
    }

    fn decode(input: &mut Reader) -> Result<Self, CodecError> {
        let token = if input.flag()? {
            Some(Token { gateway: GatewayId::new(input.number()?), sequence: input.number()? })
        } else {
            None
        };
        Ok(Self { token, op: decode_op(input)? })
    }
}

fn encode_op(out: &mut Vec<u8>, op: &Op) {
    match op {
        Op::GatewayOpen { gateway } => {
            put_byte(out, 0);
            put_number(out, gateway.get());
        }
        Op::Submit(submit) => {
            put_byte(out, 1);
            encode_submit(out, submit);
        }
        Op::SessionOpen { session, secret } => {
            put_byte(out, 2);
            put_number(out, session.get());
            put_number(out, *secret);
        }
        Op::SessionClose { session } => {
            put_byte(out, 3);
            put_number(out, session.get());
        }
        Op::Credit { session, queues, credits, replaces } => {
            put_byte(out, 4);
            put_number(out, session.get());
            put_names(out, queues);
            put_number(out, *credits);
            put_flag(out, *replaces);
        }
        Op::Pull { session, queues, count, ttr_ms } => {
            put_byte(out, 5);
            put_number(out, session.get());
            put_names(out, queues);
            put_number(out, *count);
            put_option(out, *ttr_ms);
        }
        Op::Reserve { session, job } => {
            put_byte(out, 6);
            put_number(out, session.get());
            put_number(out, job.get());
        }
        Op::Ack { job, fence } => {
            put_byte(out, 7);
            put_lease(out, *job, *fence);
        }
        Op::Nack { job, fence, delay_ms, priority, returns_attempt } => {
            put_byte(out, 8);
            put_lease(out, *job, *fence);
            put_option(out, *delay_ms);
            put_option(out, *priority);
            put_flag(out, *returns_attempt);
        }
        Op::Bury { job, fence, priority } => {
            put_byte(out, 9);
            put_lease(out, *job, *fence);
            put_option(out, *priority);
        }
        Op::Extend { job, fence, ttr_ms } => {
            put_byte(out, 10);
            put_lease(out, *job, *fence);
            put_option(out, *ttr_ms);
        }
        Op::ExtendAll { session } => {
            put_byte(out, 11);
            put_number(out, session.get());
        }
        Op::Cancel { job, guard } => {
            put_byte(out, 12);
            put_number(out, job.get());
            match guard {
                CancelGuard::Idle => put_byte(out, 0),
                CancelGuard::Held(fence) => {
                    put_byte(out, 1);
                    put_number(out, fence.get());
                }
                CancelGuard::Any => put_byte(out, 2),
            }
        }
        Op::Kick { queue, count } => {
            put_byte(out, 13);
            put_name(out, queue);
            put_number(out, *count);
        }
        Op::KickJob { job } => {
            put_byte(out, 14);
            put_number(out, job.get());
        }
        Op::Pause { queue, millis } => {
            put_byte(out, 15);
            put_name(out, queue);
            put_option(out, *millis);
        }
        Op::Drain { queue } => {
            put_byte(out, 16);
            put_names(out, queue.as_slice());
        }
        Op::Resume { queue } => {
            put_byte(out, 17);
            put_names(out, queue.as_slice());
        }
        Op::QueueSet { queue, settings } => {
            put_byte(out, 18);
            put_name(out, queue);
            put_settings(out, settings.as_deref());
        }
        Op::QuotaSet { quota, max } => {
            put_byte(out, 19);
            let (kind, number) = match quota {
                Quota::Clients => (0, None),
                Quota::Client(client) => (1, Some(client.get())),
                Quota::Workers => (2, None),
                Quota::Worker(session) => (3, Some(session.get())),
            };
            put_byte(out, kind);
            if let Some(number) = number {
                put_number(out, number);
            }
            put_option(out, *max);
        }
        Op::LimitsSet(limits) => {
            put_byte(out, 20);
            put_limits(out, limits);
        }
        Op::Tick => put_byte(out, 21),
        Op::GatewayClose { gateway } => {
            put_byte(out, 22);
            put_number(out, gateway.get());
        }
        Op::Lead { node } => {
            put_byte(out, 23);
            put_node(out, node);
        }
    }
}

fn decode_op(input: &mut Reader) -> Result<Op, CodecError> {
    Ok(match input.byte()? {
        0 => Op::GatewayOpen { gateway: GatewayId::new(input.number()?) },
        1 => Op::Submit(decode_submit(input)?),
        2 => Op::SessionOpen { session: session(input)?, secret: input.number()? },
        3 => Op::SessionClose { session: session(input)? },
        4 => Op::Credit {
            session: session(input)?,
            queues: names(input)?,
            credits: input.number32()?,
            replaces: input.flag()?,
        },
        5 => Op::Pull {
            session: session(input)?,
            queues: names(input)?,
            count: input.number32()?,
            ttr_ms: input.option()?,
        },
        6 => Op::Reserve { session: session(input)?, job: job(input)? },
        7 => Op::Ack { job: job(input)?, fence: fence(input)? },
        8 => Op::Nack {
            job: job(input)?,
            fence: fence(input)?,
            delay_ms: input.option()?,
            priority: input.option32()?,
            returns_attempt: input.flag()?,
        },
        9 => Op::Bury { job: job(input)?, fence: fence(input)?, priority: input.option32()? },
        10 => Op::Extend { job: job(input)?, fence: fence(input)?, ttr_ms: input.option()? },
        11 => Op::ExtendAll { session: session(input)? },
        12 => Op::Cancel {
            job: job(input)?,
            guard: match input.byte()? {
                0 => CancelGuard::Idle,
                1 => CancelGuard::Held(fence(input)?),
                2 => CancelGuard::Any,
                value => return Err(CodecError::Kind { field: "guard", value }),
            },
        },
        13 => Op::Kick { queue: name(input)?, count: input.number32()? },
        14 => Op::KickJob { job: job(input)? },
        15 => Op::Pause { queue: name(input)?, millis: input.option()? },
        16 => Op::Drain { queue: optional_name(input)? },
        17 => Op::Resume { queue: optional_name(input)? },
        18 => Op::QueueSet { queue: name(input)?, settings: settings(input)?.map(Box::new) },
        19 => Op::QuotaSet {
            quota: match input.byte()? {
                0 => Quota::Clients,
                1 => Quota::Client(ClientId::new(input.number()?)),
                2 => Quota::Workers,
                3 => Quota::Worker(session(input)?),
                value => return Err(CodecError::Kind { field: "quota", value }),
            },
            max: input.option32()?,
        },
        20 => Op::LimitsSet(Box::new(limits(input)?)),
        21 => Op::Tick,
        22 => Op::GatewayClose { gateway: GatewayId::new(input.number()?) },
        23 => Op::Lead { node: node(input)? },
        value => return Err(CodecError::Kind { field: "command", value }),
    })
}

/// Most jobs have nothing special: one byte says which fields follow.
fn encode_submit(out: &mut Vec<u8>, submit: &Submit) {
    let flags = [
        submit.client != ClientId::default(),
        submit.delay_ms > 0,
        submit.ttr_ms.is_some(),
        submit.max_attempts.is_some(),
        submit.backoff.is_some(),
        submit.group.is_some(),
        submit.ttl_ms.is_some(),
        submit.dedupe.is_some(),
    ];
    put_byte(out, flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
    put_name(out, &submit.queue);
    put_number(out, submit.priority);
    if flags[0] {
        put_number(out, submit.client.get());
    }
    if flags[1] {
        put_number(out, submit.delay_ms);
    }
    if let Some(ttr_ms) = submit.ttr_ms {
        put_number(out, ttr_ms);
    }
    if let Some(max_attempts) = submit.max_attempts {
        put_number(out, max_attempts);
    }
    if let Some(backoff) = submit.backoff {
        put_number(out, backoff.base_ms);
        put_number(out, backoff.cap_ms);
    }
    if let Some(group) = &submit.group {
        put_bytes(out, group.as_bytes());
    }
    if let Some(ttl_ms) = submit.ttl_ms {
        put_number(out, ttl_ms);
    }
    if let Some(dedupe) = &submit.dedupe {
        put_bytes(out, dedupe.key.as_bytes());
        put_number(out, dedupe.window_ms);
    }
    put_bytes(out, &submit.body);
}

fn decode_submit(input: &mut Reader) -> Result<Submit, CodecError> {
    let flags = input.byte()?;
    let has = |place: u32| flags >> place & 1 == 1;
    let queue = name(input)?;
    let priority = input.number32()?;
    let client = if has(0) { ClientId::new(nonzero(input)?) } else { ClientId::default() };
    let delay_ms = if has(1) { nonzero(input)? } else { 0 };
    let ttr_ms = if has(2) { Some(input.number()?) } else { None };
    let max_attempts = if has(3) { Some(input.number32()?) } else { None };
    let backoff = if has(4) { Some(backoff(input)?) } else { None };
    let group = if has(5) { Some(user_key(input)?) } else { None };
    let ttl_ms = if has(6) { Some(input.number()?) } else { None };
    let dedupe =
        if has(7) { Some(Dedupe { key: user_key(input)?, window_ms: input.number()? }) } else { None };
    let body = input.bytes()?;
    Ok(Submit {
        client,
        queue,
        priority,
        delay_ms,
        ttr_ms,
        max_attempts,
        backoff,
        group,
        ttl_ms,
        dedupe,
        body,
    })
}

pub(super) fn put_limits(out: &mut Vec<u8>, limits: &JobLimits) {
    for number in [
        limits.jobs_max,
        limits.bytes_max,
        limits.body_bytes_max.into(),
        limits.queues_max.into(),
        limits.sessions_max.into(),
        limits.queues_per_session_max.into(),
        limits.inflight_per_session_max.into(),
        limits.clients_max.into(),
        limits.gateways_max.into(),
        limits.gateway_window.into(),
        limits.gateway_idle_ms,
        limits.queue_idle_ms,
        limits.dedupe_keys_max,
        limits.finished_max.into(),
        limits.alarms_per_frame_max.into(),
        limits.batch_max.into(),
    ] {
        put_number(out, number);
    }
}

pub(super) fn limits(input: &mut Reader) -> Result<JobLimits, CodecError> {
    Ok(JobLimits {
        jobs_max: input.number()?,
        bytes_max: input.number()?,
        body_bytes_max: input.number32()?,
        queues_max: input.number32()?,
        sessions_max: input.number32()?,
        queues_per_session_max: input.number32()?,
        inflight_per_session_max: input.number32()?,
        clients_max: input.number32()?,
        gateways_max: input.number32()?,
        gateway_window: input.number32()?,
        gateway_idle_ms: input.number()?,
        queue_idle_ms: input.number()?,
        dedupe_keys_max: input.number()?,
        finished_max: input.number32()?,
        alarms_per_frame_max: input.number32()?,
        batch_max: input.number32()?,
    })
}

pub(super) fn put_settings(out: &mut Vec<u8>, settings: Option<&QueueSettings>) {
    put_flag(out, settings.is_some());
    let Some(settings) = settings else {
        return;
    };
    put_option(out, settings.jobs_max);
    put_option(out, settings.bytes_max);
    put_option(out, settings.inflight_max);
    put_flag(out, settings.rate.is_some());
    if let Some(rate) = settings.rate {
        put_number(out, rate.per_second);
        put_number(out, rate.burst);
    }
    put_number(out, settings.ttr_ms);
    put_number(out, settings.max_attempts);
    put_number(out, settings.backoff.base_ms);
    put_number(out, settings.backoff.cap_ms);
    put_flag(out, settings.dead_letters == DeadLetters::Drop);
    put_flag(out, settings.worker_down_counts);
}

pub(super) fn settings(input: &mut Reader) -> Result<Option<QueueSettings>, CodecError> {
    if !input.flag()? {
        return Ok(None);
    }
    let jobs_max = input.option()?;
    let bytes_max = input.option()?;
    let inflight_max = input.option32()?;
    let rate = if input.flag()? {
        Some(Rate { per_second: input.number32()?, burst: input.number32()? })
    } else {
        None
    };
    Ok(Some(QueueSettings {
        jobs_max,
        bytes_max,
        inflight_max,
        rate,
        ttr_ms: input.number()?,
        max_attempts: input.number32()?,
        backoff: backoff(input)?,
        dead_letters: if input.flag()? { DeadLetters::Drop } else { DeadLetters::Keep },
        worker_down_counts: input.flag()?,
    }))
}

pub(super) fn put_node(out: &mut Vec<u8>, node: &NodeId) {
    put_bytes(out, node.as_str().as_bytes());
}

pub(super) fn node(input: &mut Reader) -> Result<NodeId, CodecError> {
    let invalid = CodecError::Invalid { field: "the name of a node" };
    let name = input.bytes()?;
    let name = core::str::from_utf8(&name).map_err(|_| invalid)?;
    NodeId::new(name).map_err(|_| invalid)
}

pub(super) fn put_name(out: &mut Vec<u8>, name: &QueueName) {
    put_bytes(out, name.as_str().as_bytes());
}

fn put_names(out: &mut Vec<u8>, names: &[QueueName]) {
    put_number(out, names.len() as u64);
    for name in names {
        put_name(out, name);
    }
}

fn put_lease(out: &mut Vec<u8>, job: JobId, fence: Fence) {
    put_number(out, job.get());
    put_number(out, fence.get());
}

pub(super) fn name(input: &mut Reader) -> Result<QueueName, CodecError> {
    QueueName::from_bytes(input.bytes()?).map_err(|_| CodecError::Invalid { field: "the name of a queue" })
}

fn names(input: &mut Reader) -> Result<Vec<QueueName>, CodecError> {
    let count = input.count()?;
    let mut names = Vec::with_capacity(count.min(NAMES_AT_ONCE));
    for _ in 0..count {
        names.push(name(input)?);
    }
    Ok(names)
}

fn optional_name(input: &mut Reader) -> Result<Option<QueueName>, CodecError> {
    if input.flag()? { name(input).map(Some) } else { Ok(None) }
}

pub(super) fn user_key(input: &mut Reader) -> Result<UserKey, CodecError> {
    UserKey::new(input.bytes()?).map_err(|_| CodecError::Invalid { field: "a group or dedupe key" })
}

pub(super) fn backoff(input: &mut Reader) -> Result<Backoff, CodecError> {
    Ok(Backoff { base_ms: input.number32()?, cap_ms: input.number32()? })
}

pub(super) fn session(input: &mut Reader) -> Result<SessionId, CodecError> {
    input.number().map(SessionId::new)
}

pub(super) fn job(input: &mut Reader) -> Result<JobId, CodecError> {
    input.number().map(JobId::new)
}

pub(super) fn fence(input: &mut Reader) -> Result<Fence, CodecError> {
    input.number().map(Fence::new)
}

/// Zero is said by leaving the field out.
fn nonzero(input: &mut Reader) -> Result<u64, CodecError> {
    match input.number()? {
        0 => Err(CodecError::Number),
        number => Ok(number),
    }
}

/// The form of frames that this release writes and reads.
pub const FRAME_VERSION: u8 = 1;
/// For how many commands or names room is made at once; more than that must be there to get more.
const COMMANDS_AT_ONCE: usize = 1_024;
const NAMES_AT_ONCE: usize = 16;
