//! Random lives of a queue: steps that know nothing of the state, and a cast that makes commands of them.

use proptest::prelude::*;
use synod_core::NodeId;
use synod_core::jobs::check::{Record, SubmitAnswer};
use synod_core::jobs::{
    Assignment, Backoff, CancelGuard, ClientId, Command, Dedupe, Effects, Fence, Frame, GatewayId, JobId,
    JobLimits, JobQueue, Op, QueueName, QueueSettings, Quota, Rate, Refusal, Reply, SessionId, Submit, Token,
    UserKey,
};
use xxhash_rust::xxh3::xxh3_64;

/// Something to do, with numbers that stand for whatever is there.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Pass(u32),
    Submit(NewJob),
    /// Sends one of the last commands again.
    Again(usize),
    Open(u64),
    Close(u64),
    Credit(u64, u8, u32),
    Pull(u64, u8, u32),
    Reserve(u64, usize),
    Ack(usize),
    Nack(usize, Option<u64>, Option<u32>, bool),
    Bury(usize, Option<u32>),
    Extend(usize, Option<u64>),
    ExtendAll(u64),
    Cancel(usize, Guard),
    Kick(u8, u32),
    KickJob(usize),
    Pause(u8, Option<u64>),
    Resume(u8),
    QueueSet(u8, Option<(Option<u32>, bool)>),
    WorkerMax(Option<u32>),
    /// What the naive queue does not do.
    Rate(u8, u32, u32),
    ClientMax(Option<u32>),
    Drain(Option<u8>),
    Lead(u8),
    Idle(bool),
}

#[derive(Clone, Debug)]
pub(crate) struct NewJob {
    pub(crate) queue: u8,
    pub(crate) priority: u32,
    pub(crate) delay_ms: u64,
    pub(crate) ttr_ms: Option<u64>,
    pub(crate) max_attempts: u32,
    pub(crate) backoff_ms: u32,
    pub(crate) group: Option<u8>,
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) client: u64,
    pub(crate) dedupe: Option<u8>,
    pub(crate) body: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Guard {
    Idle,
    Held,
    Any,
}

/// Steps that the naive queue does too.
pub(crate) fn plain_step() -> impl Strategy<Value = Step> {
    let session = 1_u64..4;
    let which = 0_usize..6;
    let queues = 1_u8..4;
    prop_oneof![
        6 => new_job().prop_map(|job| Step::Submit(NewJob { dedupe: None, client: 0, ..job })),
        3 => (0_u32..60).prop_map(Step::Pass),
        2 => session.clone().prop_map(Step::Open),
        1 => session.clone().prop_map(Step::Close),
        4 => (session.clone(), queues.clone(), 0_u32..4).prop_map(|(s, q, n)| Step::Credit(s, q, n)),
        3 => (session.clone(), queues, 1_u32..3).prop_map(|(s, q, n)| Step::Pull(s, q, n)),
        1 => (session.clone(), which.clone()).prop_map(|(s, j)| Step::Reserve(s, j)),
        6 => which.clone().prop_map(Step::Ack),
        3 => (which.clone(), prop::option::of(0_u64..40), prop::option::of(0_u32..3), any::<bool>())
            .prop_map(|(w, d, p, r)| Step::Nack(w, d, p, r)),
        1 => (which.clone(), prop::option::of(0_u32..3)).prop_map(|(w, p)| Step::Bury(w, p)),
        1 => (which.clone(), prop::option::of(1_u64..60)).prop_map(|(w, t)| Step::Extend(w, t)),
        1 => session.prop_map(Step::ExtendAll),
        1 => (which.clone(), prop_oneof![Just(Guard::Idle), Just(Guard::Held), Just(Guard::Any)])
            .prop_map(|(w, g)| Step::Cancel(w, g)),
        1 => (0_u8..2, 1_u32..3).prop_map(|(q, n)| Step::Kick(q, n)),
        1 => which.prop_map(Step::KickJob),
        1 => (0_u8..2, prop::option::of(0_u64..40)).prop_map(|(q, m)| Step::Pause(q, m)),
        1 => (0_u8..2).prop_map(Step::Resume),
        1 => (0_u8..2, prop::option::of((prop::option::of(0_u32..3), any::<bool>())))
            .prop_map(|(q, s)| Step::QueueSet(q, s)),
        1 => prop::option::of(0_u32..3).prop_map(Step::WorkerMax),
    ]
}

/// All steps.
pub(crate) fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => plain_step(),
        4 => new_job().prop_map(Step::Submit),
        2 => (0_usize..8).prop_map(Step::Again),
        1 => (0_u8..2, 1_u32..200, 1_u32..3).prop_map(|(q, r, b)| Step::Rate(q, r, b)),
        1 => prop::option::of(0_u32..4).prop_map(Step::ClientMax),
        1 => prop::option::of(0_u8..2).prop_map(Step::Drain),
        1 => (1_u8..4).prop_map(Step::Lead),
        1 => any::<bool>().prop_map(Step::Idle),
    ]
}

fn new_job() -> impl Strategy<Value = NewJob> {
    let when = (
        prop_oneof![3 => Just(0), 1 => 1_u64..50],
        prop::option::of(1_u64..50),
        prop::option::weighted(0.2, 1_u64..80),
    );
    let what = (0_u8..2, 0_u32..3, 0_u32..4, prop_oneof![Just(0), Just(7)]);
    let who =
        (prop::option::weighted(0.4, 0_u8..2), 0_u64..3, prop::option::weighted(0.3, 0_u8..2), any::<u8>());
    (when, what, who).prop_map(
        |(
            (delay_ms, ttr_ms, ttl_ms),
            (queue, priority, max_attempts, backoff_ms),
            (group, client, dedupe, body),
        )| NewJob {
            queue,
            priority,
            delay_ms,
            ttr_ms,
            max_attempts,
            backoff_ms,
            group,
            ttl_ms,
            client,
            dedupe,
            body,
        },
    )
}

pub(crate) fn queue_name(number: u8) -> QueueName {
    QueueName::new(["left", "right"][usize::from(number % 2)]).expect("a name")
}

/// A set of queues by bits.
fn queue_names(bits: u8) -> Vec<QueueName> {
    (0..2).filter(|number| bits >> number & 1 == 1).map(queue_name).collect()
}

/// Whoever acts in a life: knows what was submitted and given out, and keeps a log and a record.
pub(crate) struct Cast {
    pub(crate) queue: JobQueue,
    pub(crate) effects: Effects,
    pub(crate) index: u64,
    pub(crate) log: Vec<(u64, Frame)>,
    pub(crate) records: Vec<Record>,
    pub(crate) jobs: Vec<JobId>,
    /// All that were ever given out.
    pub(crate) given: Vec<Assignment>,
    /// The last commands, to be sent again.
    sent: Vec<Command>,
    sequence: u64,
}

pub(crate) const GATEWAY: GatewayId = GatewayId::new(77);

impl Cast {
    pub(crate) fn new(limits: JobLimits) -> Self {
        let queue = JobQueue::new(1, limits).expect("limits");
        let mut cast = Self {
            queue,
            effects: Effects::new(),
            index: 0,
            log: Vec::new(),
            records: Vec::new(),
            jobs: Vec::new(),
            given: Vec::new(),
            sent: Vec::new(),
            sequence: 0,
        };
        cast.apply(0, vec![Op::GatewayOpen { gateway: GATEWAY }.into()]);
        cast
    }

    /// Makes a frame of a step and applies it. The command, if the step is one.
    pub(crate) fn play(&mut self, step: &Step) -> Option<Op> {
        if let Step::Pass(dt_ms) = step {
            self.apply(*dt_ms, Vec::new());
            return None;
        }
        let command = match step {
            Step::Again(back) => {
                let place = self.sent.len().checked_sub(back + 1)?;
                self.sent[place].clone()
            }
            step => {
                self.sequence += 1;
                let token = Token { gateway: GATEWAY, sequence: self.sequence };
                Command { token: Some(token), op: self.op(step)? }
            }
        };
        let op = command.op.clone();
        self.sent.push(command.clone());
        self.apply(0, vec![command]);
        Some(op)
    }

    pub(crate) fn apply(&mut self, dt_ms: u32, commands: Vec<Command>) {
        // Indices need not follow one another: other entries of the log are not for the queue.
        self.index += 1 + self.index % 3;
        let frame = Frame { dt_ms, wall_ms: self.index * 10, commands };
        self.effects.clear();
        self.queue.apply(self.index, &frame, &mut self.effects).expect("in order");
        self.remember(&frame);
        self.log.push((self.index, frame));
    }

    fn remember(&mut self, frame: &Frame) {
        for delivery in &self.effects.deliveries {
            let assignment = Assignment { job: delivery.job, fence: delivery.fence };
            if !self.given.contains(&assignment) {
                self.given.push(assignment);
            }
            let Assignment { job, fence } = assignment;
            let body_hash = xxh3_64(&delivery.body);
            self.records.push(Record::Delivery { session: delivery.session, job, fence, body_hash });
        }
        for (command, reply) in frame.commands.iter().zip(&self.effects.replies) {
            if let Ok(Reply::Submitted { job }) = reply
                && !self.jobs.contains(job)
            {
                self.jobs.push(*job);
            }
            match (&command.op, command.token) {
                (Op::Submit(submit), Some(token)) => {
                    let answer = match reply {
                        Ok(Reply::Submitted { job }) => SubmitAnswer::Accepted { job: *job },
                        _ => SubmitAnswer::Refused,
                    };
                    self.records.push(Record::Submit { token, body_hash: xxh3_64(&submit.body), answer });
                }
                (Op::Ack { job, fence }, _) if reply != &Err(Refusal::SequenceTooOld) => {
                    let session = self.holder(*job, *fence);
                    let is_taken = Some(reply == &Ok(Reply::Done));
                    self.records.push(Record::Ack { session, job: *job, fence: *fence, is_taken });
                }
                _ => {}
            }
        }
        self.records.extend(
            self.effects.events.iter().map(|event| Record::Event { replica: 1, event: event.clone() }),
        );
        self.records.push(Record::Hash { replica: 1, index: self.index, hash: self.queue.digest().into() });
    }

    /// To whom something was given.
    fn holder(&self, job: JobId, fence: Fence) -> SessionId {
        let of = |record: &Record| match record {
            Record::Delivery { session, job: of, fence: by, .. } if *of == job && *by == fence => {
                Some(*session)
            }
            _ => None,
        };
        self.records.iter().find_map(of).unwrap_or_default()
    }

    /// What a step means here.
    fn op(&self, step: &Step) -> Option<Op> {
        let session = |number: &u64| SessionId::new(*number);
        let job = |back: &usize| self.jobs.len().checked_sub(back + 1).map(|place| self.jobs[place]);
        let given = |back: &usize| self.given.len().checked_sub(back + 1).map(|place| self.given[place]);
        Some(match step {
            Step::Pass(_) | Step::Again(_) => return None,
            Step::Submit(new) => Op::Submit(Submit {
                client: ClientId::new(new.client),
                queue: queue_name(new.queue),
                priority: new.priority,
                delay_ms: new.delay_ms,
                ttr_ms: new.ttr_ms,
                max_attempts: (new.max_attempts > 0).then_some(new.max_attempts),
                backoff: (new.backoff_ms > 0).then_some(Backoff { base_ms: new.backoff_ms, cap_ms: 20 }),
                group: new.group.map(|group| UserKey::new(vec![b'g', group]).expect("short")),
                ttl_ms: new.ttl_ms,
                dedupe: new
                    .dedupe
                    .map(|key| Dedupe { key: UserKey::new(vec![key + 1]).expect("short"), window_ms: 40 }),
                body: vec![new.body; usize::from(new.body % 7)].into(),
            }),
            Step::Open(number) => Op::SessionOpen { session: session(number), secret: 5 },
            Step::Close(number) => Op::SessionClose { session: session(number) },
            Step::Credit(number, bits, credits) => Op::Credit {
                session: session(number),
                queues: queue_names(*bits),
                credits: *credits,
                replaces: *credits == 0 && bits & 1 == 0,
            },
            Step::Pull(number, bits, count) => {
                Op::Pull { session: session(number), queues: queue_names(*bits), count: *count, ttr_ms: None }
            }
            Step::Reserve(number, back) => Op::Reserve { session: session(number), job: job(back)? },
            Step::Ack(back) => given(back).map(|Assignment { job, fence }| Op::Ack { job, fence })?,
            Step::Nack(back, delay_ms, priority, returns_attempt) => {
                let Assignment { job, fence } = given(back)?;
                Op::Nack {
                    job,
                    fence,
                    delay_ms: *delay_ms,
                    priority: *priority,
                    returns_attempt: *returns_attempt,
                }
            }
            Step::Bury(back, priority) => {
                given(back).map(|Assignment { job, fence }| Op::Bury { job, fence, priority: *priority })?
            }
            Step::Extend(back, ttr_ms) => {
                given(back).map(|Assignment { job, fence }| Op::Extend { job, fence, ttr_ms: *ttr_ms })?
            }
            Step::ExtendAll(number) => Op::ExtendAll { session: session(number) },
            Step::Cancel(back, guard) => match guard {
                Guard::Idle => Op::Cancel { job: job(back)?, guard: CancelGuard::Idle },
                Guard::Any => Op::Cancel { job: job(back)?, guard: CancelGuard::Any },
                Guard::Held => {
                    let Assignment { job, fence } = given(back)?;
                    Op::Cancel { job, guard: CancelGuard::Held(fence) }
                }
            },
            Step::Kick(queue, count) => Op::Kick { queue: queue_name(*queue), count: *count },
            Step::KickJob(back) => Op::KickJob { job: job(back)? },
            Step::Pause(queue, millis) => Op::Pause { queue: queue_name(*queue), millis: *millis },
            Step::Resume(queue) => Op::Resume { queue: Some(queue_name(*queue)) },
            Step::QueueSet(queue, settings) => Op::QueueSet {
                queue: queue_name(*queue),
                settings: settings.map(|(inflight_max, worker_down_counts)| {
                    Box::new(QueueSettings {
                        inflight_max,
                        worker_down_counts,
                        ttr_ms: 30,
                        ..QueueSettings::default()
                    })
                }),
            },
            Step::WorkerMax(max) => Op::QuotaSet { quota: Quota::Workers, max: *max },
            Step::Rate(queue, per_second, burst) => Op::QueueSet {
                queue: queue_name(*queue),
                settings: Some(Box::new(QueueSettings {
                    rate: Some(Rate { per_second: *per_second, burst: *burst }),
                    ..QueueSettings::default()
                })),
            },
            Step::ClientMax(max) => Op::QuotaSet { quota: Quota::Clients, max: *max },
            Step::Drain(Some(queue)) => Op::Drain { queue: Some(queue_name(*queue)) },
            Step::Drain(None) => Op::Drain { queue: None },
            Step::Lead(number) => Op::Lead { node: NodeId::new(&format!("node{number}")).expect("a name") },
            Step::Idle(is_short) => {
                let idle_ms = if *is_short { 1_000 } else { 600_000 };
                Op::LimitsSet(Box::new(JobLimits {
                    queue_idle_ms: idle_ms,
                    finished_max: 3,
                    gateway_window: if *is_short { 3 } else { 8 },
                    alarms_per_frame_max: 3,
                    ..JobLimits::default()
                }))
            }
        })
    }
}
