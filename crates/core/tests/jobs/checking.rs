//! The checker finds what is wrong: for each promise, histories of a machine or a cluster that broke it.

use synod_core::jobs::check::{Expectations, Finding, Record, Report, SubmitAnswer, check};
use synod_core::jobs::{
    Assignment, ClientId, Command, DeadReason, Effects, Event, EventKind, Fence, Frame, GatewayId, JobId,
    JobLimits, JobQueue, Lost, Op, QueueName, Reply, SessionId, Submit, Token, UserKey,
};
use xxhash_rust::xxh3::xxh3_64;

/// A cluster of one that writes everything down.
struct Scene {
    queue: JobQueue,
    effects: Effects,
    index: u64,
    sequence: u64,
    records: Vec<Record>,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self {
            queue: JobQueue::new(1, JobLimits::default()).expect("limits"),
            effects: Effects::new(),
            index: 0,
            sequence: 0,
            records: Vec::new(),
        };
        scene.run(Op::GatewayOpen { gateway: GatewayId::new(1) });
        for session in [1, 2].map(SessionId::new) {
            scene.run(Op::SessionOpen { session, secret: 0 });
        }
        scene
    }

    fn run(&mut self, op: Op) {
        self.frame(0, vec![op.into()]);
    }

    fn frame(&mut self, dt_ms: u32, commands: Vec<Command>) {
        self.index += 1;
        self.effects.clear();
        let frame = Frame { dt_ms, wall_ms: 0, commands };
        self.queue.apply(self.index, &frame, &mut self.effects).expect("in order");
        let events = self.effects.events.iter().cloned();
        self.records.extend(events.map(|event| Record::Event { replica: 1, event }));
        for delivery in &self.effects.deliveries {
            self.records.push(Record::Delivery {
                session: delivery.session,
                job: delivery.job,
                fence: delivery.fence,
                body_hash: xxh3_64(&delivery.body),
            });
        }
    }

    fn submit(&mut self, body: &'static str, change: impl FnOnce(&mut Submit)) -> JobId {
        self.sequence += 1;
        let token = Token { gateway: GatewayId::new(1), sequence: self.sequence };
        self.submit_as(token, body, change)
    }

    fn submit_as(&mut self, token: Token, body: &'static str, change: impl FnOnce(&mut Submit)) -> JobId {
        let mut submit = Submit::new(name(), body);
        change(&mut submit);
        self.frame(0, vec![Command { token: Some(token), op: Op::Submit(submit) }]);
        let Ok(Reply::Submitted { job }) = self.effects.replies[0] else {
            panic!("{:?}", self.effects.replies)
        };
        let answer = SubmitAnswer::Accepted { job };
        self.records.push(Record::Submit { token, body_hash: xxh3_64(body.as_bytes()), answer });
        job
    }

    fn pull(&mut self, session: u64) -> Assignment {
        self.run(Op::Pull { session: SessionId::new(session), queues: vec![name()], count: 1, ttr_ms: None });
        let delivery = &self.effects.deliveries[0];
        Assignment { job: delivery.job, fence: delivery.fence }
    }

    fn ack(&mut self, session: u64, held: Assignment) {
        let Assignment { job, fence } = held;
        self.run(Op::Ack { job, fence });
        let is_taken = Some(self.effects.replies[0].is_ok());
        self.records.push(Record::Ack { session: SessionId::new(session), job, fence, is_taken });
    }

    fn pass(&mut self, dt_ms: u32) {
        self.frame(dt_ms, Vec::new());
    }

    fn check(&self) -> Report {
        check(self.records.clone(), &Expectations::default())
    }

    fn without(&self, is_dropped: impl Fn(&Record) -> bool) -> Vec<Record> {
        self.records.iter().filter(|record| !is_dropped(record)).cloned().collect()
    }

    fn event(&mut self, job: JobId, kind: EventKind) {
        self.index += 1;
        let event = Event { index: self.index, time_ms: self.queue.time_ms(), wall_ms: 0, job, kind };
        self.records.push(Record::Event { replica: 1, event });
    }
}

fn name() -> QueueName {
    QueueName::new("default").expect("a name")
}

fn event_of(record: &Record) -> Option<&Event> {
    match record {
        Record::Event { event, .. } => Some(event),
        _ => None,
    }
}

fn is_event(record: &Record, kind: &str) -> bool {
    event_of(record).is_some_and(|event| event.kind.name() == kind)
}

/// That only this promise was broken.
fn only(report: &Report, promise: u8) -> &Finding {
    let broken: Vec<_> =
        (1..).zip(report.broken).filter(|(_, count)| *count > 0).map(|(number, _)| number).collect();
    assert_eq!(broken, [promise], "{:?}", report.findings);
    &report.findings[0]
}

#[test]
fn a_good_history_is_clean_and_was_looked_at() {
    let mut scene = Scene::new();
    let job = scene.submit("a", |submit| submit.max_attempts = Some(2));
    scene.pull(1);
    scene.pass(60_000);
    let second = scene.pull(2);
    scene.ack(2, second);
    scene.submit("b", |_| {});
    let held = scene.pull(1);
    scene.run(Op::Bury { job: held.job, fence: held.fence, priority: None });
    let left = Record::Left { job: held.job };
    scene.records.push(left);
    for replica in [1, 2] {
        scene.records.push(Record::Hash { replica, index: scene.index, hash: 5 });
    }
    let expectations = Expectations { has_listing: true, is_drained: true, ..Expectations::default() };
    let report = check(scene.records, &expectations);
    assert!(report.is_clean(), "{:?}", report.findings);
    let seen = report.seen;
    assert_eq!((seen.accepted, seen.jobs, seen.assignments, seen.acks), (2, 2, 3, 1));
    assert_eq!((seen.losses, seen.dead, seen.deliveries, seen.compared), (1, 1, 3, 1));
    assert_eq!(second.job, job);
}

#[test]
fn one_a_disk_that_forgets_loses_a_submit() {
    let mut scene = Scene::new();
    scene.submit("kept", |_| {});
    // The leader answers, and goes down with what its disk only promised to have.
    let before = (scene.queue.clone(), scene.index);
    let lost = scene.submit("lost", |_| {});
    (scene.queue, scene.index) = before;
    let mut records = scene.without(|record| event_of(record).is_some_and(|event| event.job == lost));
    assert_eq!(
        only(&check(records.clone(), &Expectations::default()), 1),
        &Finding::LostSubmit { job: lost }
    );
    // Or the job was in the log, and is not there at the end.
    let expectations = Expectations { has_listing: true, ..Expectations::default() };
    records.clone_from(&scene.records);
    let first = JobId::in_group(1, 1);
    records.push(Record::Left { job: first });
    assert_eq!(only(&check(records, &expectations), 1), &Finding::LostJob { job: lost });
}

#[test]
fn two_what_nobody_submitted_is_a_phantom() {
    let mut scene = Scene::new();
    let job = scene.submit("a", |_| {});
    let held = scene.pull(1);
    scene.ack(1, held);
    assert!(scene.check().is_clean());
    let unsent = scene.without(|record| matches!(record, Record::Submit { .. }));
    let mut other = unsent.clone();
    let token = Token { gateway: GatewayId::new(1), sequence: 99 };
    other.push(Record::Submit { token, body_hash: 0, answer: SubmitAnswer::Unknown });
    assert_eq!(only(&check(other, &Expectations::default()), 2), &Finding::Phantom { job });
    assert!(check(unsent, &Expectations::default()).is_clean(), "where nobody keeps a record of submits");
    // A job that was done comes back.
    let mut again = scene.records.clone();
    again.push(Record::Left { job });
    assert_eq!(only(&check(again, &Expectations::default()), 2), &Finding::Phantom { job });
    scene.records.push(Record::Delivery {
        session: SessionId::new(1),
        job: JobId::new(5),
        fence: held.fence,
        body_hash: 0,
    });
    assert_eq!(only(&scene.check(), 2), &Finding::Phantom { job: JobId::new(5) });
}

#[test]
fn two_a_body_that_changed_on_its_way_is_found() {
    let mut scene = Scene::new();
    let job = scene.submit("a", |_| {});
    scene.pull(1);
    for record in &mut scene.records {
        if let Record::Delivery { body_hash, .. } = record {
            *body_hash ^= 1;
        }
    }
    assert_eq!(only(&scene.check(), 2), &Finding::BodyDiffers { job });
}

#[test]
fn three_delivery_before_commit_makes_two_holders() {
    let mut scene = Scene::new();
    let job = scene.submit("a", |_| {});
    // The old leader delivers what it has not committed, and goes down.
    let before = (scene.queue.clone(), scene.index, scene.records.len());
    let first = scene.pull(1);
    let delivered = scene.records.iter().skip(before.2).filter(|record| event_of(record).is_none()).cloned();
    let delivered: Vec<_> = delivered.collect();
    (scene.queue, scene.index) = (before.0, before.1);
    scene.records.truncate(before.2);
    scene.records.extend(delivered);
    // The new one gives the job to another, at the same entry of the log.
    let second = scene.pull(2);
    assert_eq!(first, second);
    let report = scene.check();
    let fence = first.fence;
    assert_eq!(report.broken, [0, 0, 2, 0, 0, 0, 0, 0, 0, 0], "{:?}", report.findings);
    assert!(report.findings.contains(&Finding::DeliveredUncommitted { job, fence }));
    let (first, second) = (SessionId::new(1), SessionId::new(2));
    assert!(report.findings.contains(&Finding::TwoHolders { job, fence, first, second }));
}

#[test]
fn three_an_ack_with_an_old_fence_is_found() {
    let mut scene = Scene::new();
    scene.submit("a", |_| {});
    let first = scene.pull(1);
    scene.pass(60_000);
    scene.pull(2);
    // A machine without fences takes it.
    let Assignment { job, fence } = first;
    scene.event(job, EventKind::Ack { session: SessionId::new(1), fence });
    assert_eq!(only(&scene.check(), 3), &Finding::WrongAck { job, fence });
}

#[test]
fn three_a_worker_whose_ack_was_taken_twice_or_not_at_all_is_found() {
    let mut scene = Scene::new();
    scene.submit("a", |_| {});
    let held = scene.pull(1);
    let Assignment { job, fence } = held;
    let told = Record::Ack { session: SessionId::new(1), job, fence, is_taken: Some(true) };
    let mut untrue = scene.records.clone();
    untrue.push(told);
    assert_eq!(only(&check(untrue, &Expectations::default()), 3), &Finding::WrongAck { job, fence });
    scene.ack(1, held);
    assert!(scene.check().is_clean());
    scene.event(job, EventKind::Ack { session: SessionId::new(1), fence });
    assert_eq!(only(&scene.check(), 3), &Finding::WrongAck { job, fence });
}

#[test]
fn three_a_fence_that_does_not_grow_is_found() {
    let mut scene = Scene::new();
    let job = scene.submit("a", |_| {});
    scene.pull(1);
    scene.pass(60_000);
    scene.pull(1);
    for record in &mut scene.records {
        match record {
            Record::Event {
                event: Event { index: 7, kind: EventKind::Assign { fence, .. }, .. }, ..
            } => {
                *fence = Fence::new(5);
            }
            Record::Delivery { fence, .. } => *fence = Fence::new(5),
            _ => {}
        }
    }
    assert_eq!(only(&scene.check(), 3), &Finding::FenceNotNew { job, fence: Fence::new(5) });
}

#[test]
fn four_a_job_given_out_again_without_a_loss_is_found() {
    let mut scene = Scene::new();
    let job = scene.submit("a", |_| {});
    let first = scene.pull(1);
    scene.pass(60_000);
    let second = scene.pull(2);
    assert!(scene.check().is_clean());
    let records = scene.without(|record| is_event(record, "timeout_requeue"));
    let finding = Finding::DuplicateWithoutLoss { job, held: first.fence, fence: second.fence };
    assert_eq!(only(&check(records, &Expectations::default()), 4), &finding);
}

#[test]
fn five_a_submit_sent_again_without_its_token_makes_two_jobs() {
    let mut scene = Scene::new();
    let first = scene.submit("a", |_| {});
    let token = Token { gateway: GatewayId::new(1), sequence: 1 };
    // A queue that forgets its gateways.
    scene.run(Op::GatewayOpen { gateway: GatewayId::new(2) });
    let second = scene.submit_as(Token { gateway: GatewayId::new(2), sequence: 1 }, "a", |_| {});
    for record in &mut scene.records {
        match record {
            Record::Submit { token: of, .. } => *of = token,
            Record::Event { event: Event { kind: EventKind::Enqueue(enqueued), .. }, .. } => {
                enqueued.token = Some(token);
            }
            _ => {}
        }
    }
    assert_eq!(only(&scene.check(), 5), &Finding::TokenTwice { token, first, second });
}

#[test]
fn six_a_worse_job_before_a_better_one_is_found() {
    let mut scene = Scene::new();
    let [worse, better] = [9, 1].map(|priority| scene.submit("a", |submit| submit.priority = priority));
    let Assignment { fence, .. } = scene.pull(1);
    for record in &mut scene.records {
        match record {
            Record::Event { event, .. } if event.kind.name() == "assign" => event.job = worse,
            Record::Delivery { job, .. } => *job = worse,
            _ => {}
        }
    }
    assert_eq!(only(&scene.check(), 6), &Finding::OutOfOrder { index: fence.get(), job: worse, better });
}

#[test]
fn six_two_jobs_of_a_group_at_once_are_found() {
    let mut scene = Scene::new();
    let group = || Some(UserKey::new("g").expect("short"));
    let holder = scene.submit("a", |submit| submit.group = group());
    scene.pull(1);
    // A machine that forgets groups.
    let job = scene.submit("b", |_| {});
    scene.pull(2);
    let index = scene.index;
    for record in &mut scene.records {
        if let Record::Event { event: Event { kind: EventKind::Enqueue(enqueued), .. }, .. } = record {
            enqueued.group = group();
        }
    }
    assert_eq!(only(&scene.check(), 6), &Finding::GroupOverlap { index, job, holder });
}

#[test]
fn six_a_job_before_its_time_is_found() {
    let mut scene = Scene::new();
    let job = scene.submit("a", |submit| submit.delay_ms = 100);
    scene.pass(100);
    assert!(scene.check().is_clean());
    for record in &mut scene.records {
        if let Record::Event { event, .. } = record
            && event.kind == EventKind::Ready
        {
            event.time_ms = 99;
        }
    }
    assert_eq!(only(&scene.check(), 6), &Finding::TooEarly { job, time_ms: 99, due_ms: 100 });
}

#[test]
fn seven_caps_that_are_exceeded_are_found() {
    let mut scene = Scene::new();
    let client = ClientId::new(4);
    for _ in 0..3 {
        scene.submit("a", |submit| submit.client = client);
    }
    let index = scene.index;
    let [first, _] = [1, 1].map(|session| scene.pull(session));
    let at_two = scene.index;
    scene.ack(1, first);
    scene.pull(1);
    let found = |expectations: Expectations| check(scene.records.clone(), &expectations);
    let client_max = Expectations { unfinished_per_client_max: Some(2), ..Expectations::default() };
    assert_eq!(
        only(&found(client_max.clone()), 7),
        &Finding::ClientOverCap { index, client, count: 3, max: 2 }
    );
    let worker_max = Expectations { inflight_per_session_max: Some(1), ..Expectations::default() };
    let session = SessionId::new(1);
    assert_eq!(
        only(&found(worker_max), 7),
        &Finding::SessionOverCap { index: at_two, session, count: 2, max: 1 }
    );
    let queue_max = Expectations { inflight_per_queue_max: [(name(), 1)].into(), ..Expectations::default() };
    assert_eq!(
        only(&found(queue_max), 7),
        &Finding::QueueOverCap { index: at_two, queue: name(), count: 2, max: 1 }
    );
    let enough = Expectations {
        unfinished_per_client_max: Some(3),
        inflight_per_session_max: Some(2),
        inflight_per_queue_max: [(name(), 2)].into(),
        ..Expectations::default()
    };
    assert!(found(enough).is_clean());
}

#[test]
fn eight_a_job_that_dies_too_early_or_too_late_is_found() {
    let mut scene = Scene::new();
    let job = scene.submit("a", |submit| submit.max_attempts = Some(2));
    let Assignment { fence, .. } = scene.pull(1);
    let session = SessionId::new(1);
    let mut early = Scene {
        records: scene.records.clone(),
        queue: scene.queue.clone(),
        effects: Effects::new(),
        ..scene
    };
    let dead = EventKind::Dlq {
        session,
        fence,
        reason: DeadReason::Attempts,
        attempts: 1,
        priority: 0,
        is_kept: true,
    };
    early.event(job, dead);
    let finding = Finding::WrongDeath { job, attempts: 1, max: 2, is_dead: true };
    assert_eq!(only(&early.check(), 8), &finding);

    let mut scene = Scene::new();
    let job = scene.submit("a", |submit| submit.max_attempts = Some(1));
    let Assignment { fence, .. } = scene.pull(1);
    let lost = Lost { session, fence, due_ms: 0, priority: 0, attempts: 1 };
    scene.event(job, EventKind::TimeoutRequeue { lost });
    let finding = Finding::WrongDeath { job, attempts: 1, max: 1, is_dead: false };
    assert_eq!(only(&scene.check(), 8), &finding);
}

#[test]
fn eight_tries_that_are_counted_wrongly_are_found() {
    let mut scene = Scene::new();
    let job = scene.submit("a", |_| {});
    scene.pull(1);
    for record in &mut scene.records {
        if let Record::Event { event: Event { kind: EventKind::Assign { attempt, .. }, .. }, .. } = record {
            *attempt = 3;
        }
    }
    assert_eq!(only(&scene.check(), 8), &Finding::WrongAttempt { job, told: 3, counted: 1 });
}

#[test]
fn nine_replicas_that_differ_are_found() {
    let mut scene = Scene::new();
    scene.submit("a", |_| {});
    // Another replica read the entry wrongly.
    let mut other = Scene::new();
    other.submit("a", |submit| submit.priority = 1);
    let index = scene.index;
    let mut records = scene.records.clone();
    for (replica, queue) in [(1, &scene.queue), (2, &other.queue)] {
        records.push(Record::Hash { replica, index, hash: queue.state_hash() });
    }
    let finding = Finding::HashesDiffer { index, first: 1, second: 2 };
    assert_eq!(only(&check(records, &Expectations::default()), 9), &finding);

    let events = other.records.iter().filter_map(event_of).cloned();
    let mut records = scene.records.clone();
    records.extend(events.map(|event| Record::Event { replica: 2, event }));
    let finding = Finding::EventsDiffer { index, first: 1, second: 2 };
    assert_eq!(only(&check(records, &Expectations::default()), 9), &finding);

    // The same events from two replicas are one history, also where one stopped early.
    let same = scene.records.iter().filter_map(event_of).cloned();
    let mut records = scene.records.clone();
    records.extend(same.map(|event| Record::Event { replica: 2, event }));
    let report = check(records, &Expectations::default());
    assert!(report.is_clean() && report.seen.jobs == 1, "{:?}", report.findings);
}

#[test]
fn ten_what_is_left_at_the_end_is_found() {
    let mut scene = Scene::new();
    let job = scene.submit("a", |_| {});
    let drained = Expectations { is_drained: true, ..Expectations::default() };
    assert_eq!(only(&check(scene.records.clone(), &drained), 10), &Finding::NotDrained { job });
    let held = scene.pull(1);
    assert_eq!(only(&check(scene.records.clone(), &drained), 10), &Finding::NotDrained { job });
    scene.ack(1, held);
    assert!(check(scene.records, &drained).is_clean());
}

#[test]
fn a_report_tells_only_so_many_findings_of_each_promise() {
    let mut scene = Scene::new();
    for _ in 0..150 {
        scene.submit("a", |_| {});
    }
    let report = check(scene.records, &Expectations { is_drained: true, ..Expectations::default() });
    assert_eq!((report.findings.len(), report.broken[9]), (100, 150));
}
