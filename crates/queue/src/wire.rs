//! Between the words of the protocol and those of the machine.

use bytes::Bytes;
use synod_core::jobs::{
    Assignment, Backoff, CancelGuard, ClientId, DeadLetters, Dedupe, Delivery, Fence, JobId, NameError, Op,
    QueueName, QueueSettings, Quota, Rate, Refusal, Reply, SessionId, Submit, UserKey,
};
use synod_wire::queue as wire;

/// Something in a message is not what it has to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// A name cannot be one.
    #[error("{field}: {error}")]
    Name {
        /// Where.
        field: &'static str,
        /// Why.
        error: NameError,
    },
    /// Something that must be there is not.
    #[error("{field} is missing")]
    Missing {
        /// What.
        field: &'static str,
    },
    /// A number that means nothing.
    #[error("{field} is {number}, which means nothing here")]
    Number {
        /// Where.
        field: &'static str,
        /// The number.
        number: u64,
    },
}

/// What a command says is to be done.
pub(crate) fn read_op(op: wire::command::Op) -> Result<Op, Malformed> {
    use wire::command::Op as Wire;
    Ok(match op {
        Wire::Submit(submit) => Op::Submit(read_submit(submit)?),
        Wire::Ack(held) => {
            let Assignment { job, fence } = assignment(held);
            Op::Ack { job, fence }
        }
        Wire::Nack(nack) => {
            let Assignment { job, fence } = held(nack.held)?;
            let wire::Nack { delay_ms, priority, returns_attempt, .. } = nack;
            Op::Nack { job, fence, delay_ms, priority, returns_attempt }
        }
        Wire::Bury(bury) => {
            let Assignment { job, fence } = held(bury.held)?;
            Op::Bury { job, fence, priority: bury.priority }
        }
        Wire::Extend(extend) => {
            let Assignment { job, fence } = held(extend.held)?;
            Op::Extend { job, fence, ttr_ms: extend.ttr_ms }
        }
        Wire::Credit(credit) => Op::Credit {
            session: SessionId::new(credit.session),
            queues: queues(credit.queues)?,
            credits: credit.credits,
            replaces: credit.replaces,
        },
        Wire::Reserve(reserve) => {
            Op::Reserve { session: SessionId::new(reserve.session), job: JobId::new(reserve.job) }
        }
        Wire::SessionOpen(open) => {
            Op::SessionOpen { session: SessionId::new(open.session), secret: open.secret }
        }
        Wire::SessionClose(session) => Op::SessionClose { session: SessionId::new(session) },
        Wire::ExtendAll(session) => Op::ExtendAll { session: SessionId::new(session) },
        Wire::Cancel(cancel) => Op::Cancel {
            job: JobId::new(cancel.job),
            guard: match cancel.guard {
                None => CancelGuard::Idle,
                Some(wire::cancel::Guard::Held(fence)) => CancelGuard::Held(Fence::new(fence)),
                Some(wire::cancel::Guard::Any(_)) => CancelGuard::Any,
            },
        },
        Wire::Kick(kick) => Op::Kick { queue: queue(kick.queue)?, count: kick.count },
        Wire::KickJob(job) => Op::KickJob { job: JobId::new(job) },
        Wire::Pause(pause) => Op::Pause { queue: queue(pause.queue)?, millis: pause.millis },
        Wire::Drain(which) => Op::Drain { queue: queue_or_all(which)? },
        Wire::Resume(which) => Op::Resume { queue: queue_or_all(which)? },
        Wire::QueueSet(set) => Op::QueueSet {
            queue: queue(set.queue)?,
            settings: set.settings.map(|settings| Box::new(read_settings(settings))),
        },
        Wire::QuotaSet(set) => Op::QuotaSet {
            quota: match set.whose.ok_or(Malformed::Missing { field: "whose" })? {
                wire::quota_set::Whose::Clients(_) => Quota::Clients,
                wire::quota_set::Whose::Client(client) => Quota::Client(ClientId::new(client)),
                wire::quota_set::Whose::Workers(_) => Quota::Workers,
                wire::quota_set::Whose::Worker(session) => Quota::Worker(SessionId::new(session)),
            },
            max: set.max,
        },
    })
}

/// The same as a client says it. `None`: it is not for clients to say.
pub(crate) fn write_op(op: Op) -> Option<wire::command::Op> {
    use wire::command::Op as Wire;
    Some(match op {
        Op::Submit(submit) => Wire::Submit(write_submit(submit)),
        Op::Ack { job, fence } => Wire::Ack(write_held(job, fence)),
        Op::Nack { job, fence, delay_ms, priority, returns_attempt } => {
            Wire::Nack(wire::Nack { held: Some(write_held(job, fence)), delay_ms, priority, returns_attempt })
        }
        Op::Bury { job, fence, priority } => {
            Wire::Bury(wire::Bury { held: Some(write_held(job, fence)), priority })
        }
        Op::Extend { job, fence, ttr_ms } => {
            Wire::Extend(wire::Extend { held: Some(write_held(job, fence)), ttr_ms })
        }
        Op::Credit { session, queues, credits, replaces } => Wire::Credit(wire::Credit {
            session: session.get(),
            queues: queues.into_iter().map(String::from).collect(),
            credits,
            replaces,
        }),
        Op::Reserve { session, job } => {
            Wire::Reserve(wire::Reserve { session: session.get(), job: job.get() })
        }
        Op::SessionOpen { session, secret } => {
            Wire::SessionOpen(wire::SessionOpen { session: session.get(), secret, held: Vec::new() })
        }
        Op::SessionClose { session } => Wire::SessionClose(session.get()),
        Op::ExtendAll { session } => Wire::ExtendAll(session.get()),
        Op::Cancel { job, guard } => Wire::Cancel(wire::Cancel {
            job: job.get(),
            guard: match guard {
                CancelGuard::Idle => None,
                CancelGuard::Held(fence) => Some(wire::cancel::Guard::Held(fence.get())),
                CancelGuard::Any => Some(wire::cancel::Guard::Any(true)),
            },
        }),
        Op::Kick { queue, count } => Wire::Kick(wire::Kick { queue: queue.into(), count }),
        Op::KickJob { job } => Wire::KickJob(job.get()),
        Op::Pause { queue, millis } => Wire::Pause(wire::Pause { queue: queue.into(), millis }),
        Op::Drain { queue } => Wire::Drain(write_queue_or_all(queue)),
        Op::Resume { queue } => Wire::Resume(write_queue_or_all(queue)),
        Op::QueueSet { queue, settings } => Wire::QueueSet(wire::QueueSet {
            queue: queue.into(),
            settings: settings.map(|settings| write_settings(&settings)),
        }),
        Op::QuotaSet { quota, max } => Wire::QuotaSet(wire::QuotaSet {
            whose: Some(match quota {
                Quota::Clients => wire::quota_set::Whose::Clients(true),
                Quota::Client(client) => wire::quota_set::Whose::Client(client.get()),
                Quota::Workers => wire::quota_set::Whose::Workers(true),
                Quota::Worker(session) => wire::quota_set::Whose::Worker(session.get()),
            }),
            max,
        }),
        Op::GatewayOpen { .. }
        | Op::GatewayClose { .. }
        | Op::Pull { .. }
        | Op::LimitsSet(_)
        | Op::Tick
        | Op::Lead { .. } => {
            return None;
        }
    })
}

/// What became of a command, as it is told.
pub(crate) fn write_outcome(sequence: u64, index: u64, result: Result<Reply, Refusal>) -> wire::Outcome {
    use wire::outcome::Result as Wire;
    let result = match result {
        Err(refusal) => Wire::Refusal(refusal.number().into()),
        Ok(Reply::Done) => Wire::Done(true),
        Ok(Reply::Submitted { job }) => Wire::Submitted(job.get()),
        Ok(Reply::Duplicate { job }) => Wire::Duplicate(job.get()),
        Ok(Reply::Opened { is_resumed }) => Wire::OpenedResumed(is_resumed),
        Ok(Reply::Pulled(assignments)) => {
            let held = assignments.into_iter().map(|held| write_held(held.job, held.fence)).collect();
            Wire::Pulled(wire::Assignments { held })
        }
        Ok(Reply::Requeued) => Wire::Requeued(true),
        Ok(Reply::Dead) => Wire::Dead(true),
        Ok(Reply::Counted { count }) => Wire::Counted(count),
    };
    wire::Outcome { sequence, index, result: Some(result) }
}

/// What became of a command, as it was told.
pub(crate) fn read_outcome(
    result: Option<wire::outcome::Result>,
) -> Result<Result<Reply, Refusal>, Malformed> {
    use wire::outcome::Result as Wire;
    Ok(Ok(match result.ok_or(Malformed::Missing { field: "result" })? {
        Wire::Refusal(number) => return refusal(number).map(Err),
        Wire::Done(_) => Reply::Done,
        Wire::Submitted(job) => Reply::Submitted { job: JobId::new(job) },
        Wire::Duplicate(job) => Reply::Duplicate { job: JobId::new(job) },
        Wire::OpenedResumed(is_resumed) => Reply::Opened { is_resumed },
        Wire::Pulled(assignments) => Reply::Pulled(assignments.held.into_iter().map(assignment).collect()),
        Wire::Requeued(_) => Reply::Requeued,
        Wire::Dead(_) => Reply::Dead,
        Wire::Counted(count) => Reply::Counted { count },
    }))
}

/// The refusal of a number.
pub(crate) fn refusal(number: u32) -> Result<Refusal, Malformed> {
    u8::try_from(number)
        .ok()
        .and_then(Refusal::from_number)
        .ok_or_else(|| Malformed::Number { field: "refusal", number: number.into() })
}

/// A job for a worker, as it is told. Of the two numbers, one says who asked for it.
pub(crate) fn write_delivery(delivery: Delivery, reserved_by: u64, pulled_by: u64) -> wire::Delivery {
    let Delivery { session, job, fence, queue, attempt, ttr_ms, body, .. } = delivery;
    wire::Delivery {
        session: session.get(),
        job: job.get(),
        fence: fence.get(),
        queue: queue.into(),
        attempt,
        ttr_ms,
        body,
        reserved_by,
        pulled_by,
    }
}

/// A job for a worker, as it was told.
pub(crate) fn read_delivery(delivery: wire::Delivery) -> Result<Delivery, Malformed> {
    let wire::Delivery { session, job, fence, queue: name, attempt, ttr_ms, body, .. } = delivery;
    Ok(Delivery {
        session: SessionId::new(session),
        job: JobId::new(job),
        fence: Fence::new(fence),
        pulled_by: None,
        queue: queue(name)?,
        attempt,
        ttr_ms,
        body,
    })
}

/// The queue of this name.
pub(crate) fn queue(name: String) -> Result<QueueName, Malformed> {
    QueueName::try_from(name).map_err(|error| Malformed::Name { field: "queue", error })
}

/// The queues of these names.
pub(crate) fn queues(names: Vec<String>) -> Result<Vec<QueueName>, Malformed> {
    names.into_iter().map(queue).collect()
}

/// An assignment.
pub(crate) const fn assignment(held: wire::Held) -> Assignment {
    Assignment { job: JobId::new(held.job), fence: Fence::new(held.fence) }
}

/// An assignment, as it is told.
pub(crate) const fn write_held(job: JobId, fence: Fence) -> wire::Held {
    wire::Held { job: job.get(), fence: fence.get() }
}

fn held(held: Option<wire::Held>) -> Result<Assignment, Malformed> {
    held.map(assignment).ok_or(Malformed::Missing { field: "held" })
}

fn queue_or_all(which: wire::QueueOrAll) -> Result<Option<QueueName>, Malformed> {
    if which.queue.is_empty() { Ok(None) } else { queue(which.queue).map(Some) }
}

fn write_queue_or_all(queue: Option<QueueName>) -> wire::QueueOrAll {
    wire::QueueOrAll { queue: queue.map(String::from).unwrap_or_default() }
}

fn read_submit(submit: wire::Submit) -> Result<Submit, Malformed> {
    Ok(Submit {
        client: ClientId::new(submit.client),
        queue: queue(submit.queue)?,
        priority: submit.priority,
        delay_ms: submit.delay_ms,
        ttr_ms: submit.ttr_ms,
        max_attempts: submit.max_attempts,
        backoff: submit.backoff.map(read_backoff),
        group: user_key("group", submit.group)?,
        ttl_ms: submit.ttl_ms,
        dedupe: user_key("dedupe_key", submit.dedupe_key)?
            .map(|key| Dedupe { key, window_ms: submit.dedupe_window_ms }),
        body: submit.body,
    })
}

fn write_submit(submit: Submit) -> wire::Submit {
    let (dedupe_key, dedupe_window_ms) = match submit.dedupe {
        None => (Bytes::new(), 0),
        Some(Dedupe { key, window_ms }) => (Vec::from(key).into(), window_ms),
    };
    wire::Submit {
        queue: submit.queue.into(),
        body: submit.body,
        priority: submit.priority,
        delay_ms: submit.delay_ms,
        ttr_ms: submit.ttr_ms,
        max_attempts: submit.max_attempts,
        backoff: submit.backoff.map(write_backoff),
        group: submit.group.map(|key| Vec::from(key).into()).unwrap_or_default(),
        ttl_ms: submit.ttl_ms,
        dedupe_key,
        dedupe_window_ms,
        client: submit.client.get(),
    }
}

fn user_key(field: &'static str, key: Bytes) -> Result<Option<UserKey>, Malformed> {
    if key.is_empty() {
        return Ok(None);
    }
    UserKey::new(key).map(Some).map_err(|error| Malformed::Name { field, error })
}

const fn read_backoff(backoff: wire::Backoff) -> Backoff {
    Backoff { base_ms: backoff.base_ms, cap_ms: backoff.cap_ms }
}

const fn write_backoff(backoff: Backoff) -> wire::Backoff {
    wire::Backoff { base_ms: backoff.base_ms, cap_ms: backoff.cap_ms }
}

fn read_settings(settings: wire::Settings) -> QueueSettings {
    QueueSettings {
        jobs_max: settings.jobs_max,
        bytes_max: settings.bytes_max,
        inflight_max: settings.inflight_max,
        rate: settings.rate.map(|rate| Rate { per_second: rate.per_second, burst: rate.burst }),
        ttr_ms: settings.ttr_ms,
        max_attempts: settings.max_attempts,
        backoff: settings.backoff.map(read_backoff).unwrap_or_default(),
        dead_letters: if settings.drops_dead { DeadLetters::Drop } else { DeadLetters::Keep },
        worker_down_counts: settings.worker_down_counts,
    }
}

fn write_settings(settings: &QueueSettings) -> wire::Settings {
    wire::Settings {
        jobs_max: settings.jobs_max,
        bytes_max: settings.bytes_max,
        inflight_max: settings.inflight_max,
        rate: settings.rate.map(|rate| wire::Rate { per_second: rate.per_second, burst: rate.burst }),
        ttr_ms: settings.ttr_ms,
        max_attempts: settings.max_attempts,
        backoff: Some(write_backoff(settings.backoff)),
        drops_dead: settings.dead_letters == DeadLetters::Drop,
        worker_down_counts: settings.worker_down_counts,
    }
}
