//! Every rule of the queue as a small story.

use alloc::string::{String, ToString};
use alloc::{format, vec};

use proptest::prelude::*;

use super::*;
use crate::jobs::{
    Assignment, Backoff, CancelGuard, DeadLetters, DeadReason, Dedupe, Delivery, QueueSettings, Quota, Rate,
    SESSION_QUEUES_SHOWN, SessionTotals, Submit, Token, UserKey,
};

/// A queue and its log.
struct World {
    queue: JobQueue,
    index: u64,
    effects: Effects,
}

impl World {
    fn new() -> Self {
        Self::with(JobLimits::default())
    }

    fn with(limits: JobLimits) -> Self {
        Self { queue: JobQueue::new(3, limits).expect("limits"), index: 0, effects: Effects::new() }
    }

    /// One frame of these commands, after so much time.
    fn frame(&mut self, dt_ms: u32, commands: Vec<Command>) -> &Effects {
        self.index += 1;
        self.effects.clear();
        let frame = Frame { dt_ms, wall_ms: 1_000_000 + self.queue.time_ms(), commands };
        self.queue.apply(self.index, &frame, &mut self.effects).expect("the next index");
        &self.effects
    }

    fn run(&mut self, op: Op) -> Result<Reply, Refusal> {
        self.frame(0, vec![op.into()]).replies[0].clone()
    }

    fn pass(&mut self, dt_ms: u32) -> Vec<&'static str> {
        self.frame(dt_ms, vec![]).events.iter().map(|event| event.kind.name()).collect()
    }

    fn submit(&mut self, body: &str) -> JobId {
        self.submit_with(body, |_| {})
    }

    fn submit_with(&mut self, body: &str, change: impl FnOnce(&mut Submit)) -> JobId {
        match self.run(submit(body, change)) {
            Ok(Reply::Submitted { job }) => job,
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self, session: u64) {
        let op = Op::SessionOpen { session: SessionId::new(session), secret: session };
        assert_eq!(self.run(op), Ok(Reply::Opened { is_resumed: false }));
    }

    fn credit(&mut self, session: u64, credits: u32) -> Vec<Delivery> {
        self.run(credit(session, &["default"], credits)).expect("a session");
        self.effects.deliveries.clone()
    }

    /// The jobs that a pull of one gets.
    fn pull(&mut self, session: u64) -> Option<Assignment> {
        match self.run(pull(session, 1)) {
            Ok(Reply::Pulled(assignments)) => assignments.first().copied(),
            other => panic!("{other:?}"),
        }
    }

    fn ack(&mut self, held: Assignment) -> Result<Reply, Refusal> {
        self.run(Op::Ack { job: held.job, fence: held.fence })
    }

    fn nack(&mut self, held: Assignment, delay_ms: Option<u64>) -> Result<Reply, Refusal> {
        let Assignment { job, fence } = held;
        self.run(Op::Nack { job, fence, delay_ms, priority: None, returns_attempt: false })
    }

    fn set(&mut self, settings: QueueSettings) {
        let op = Op::QueueSet { queue: name("default"), settings: Some(Box::new(settings)) };
        assert_eq!(self.run(op), Ok(Reply::Done));
    }

    fn state(&self, job: JobId) -> JobState {
        self.queue.job(job).expect("a job").state
    }

    fn bodies(&self) -> Vec<String> {
        let text = |delivery: &Delivery| String::from_utf8_lossy(&delivery.body).to_string();
        self.effects.deliveries.iter().map(text).collect()
    }

    fn stats(&self) -> (u64, u64, u64, u64) {
        let stats = self.queue.queue(&name("default")).expect("a queue");
        (stats.ready, stats.reserved, stats.delayed, stats.dead)
    }
}

fn name(text: &str) -> QueueName {
    QueueName::new(text).expect("a name")
}

fn key(text: &'static str) -> UserKey {
    UserKey::new(text).expect("a key")
}

fn submit(body: &str, change: impl FnOnce(&mut Submit)) -> Op {
    let mut submit = Submit::new(name("default"), body.to_string());
    change(&mut submit);
    Op::Submit(submit)
}

fn credit(session: u64, queues: &[&str], credits: u32) -> Op {
    let queues = queues.iter().map(|queue| name(queue)).collect();
    Op::Credit { session: SessionId::new(session), queues, credits, replaces: false }
}

fn pull(session: u64, count: u32) -> Op {
    Op::Pull { session: SessionId::new(session), queues: vec![name("default")], count, ttr_ms: None }
}

fn held(delivery: &Delivery) -> Assignment {
    Assignment { job: delivery.job, fence: delivery.fence }
}

#[test]
fn a_job_is_accepted_given_out_and_done() {
    let mut world = World::new();
    world.open(1);
    let job = world.submit("work");
    assert_eq!(world.effects.events[0].kind.name(), "enqueue");
    assert_eq!(world.effects.ready, [name("default")], "whoever pulls should hear of it");
    let deliveries = world.credit(1, 1);
    assert_eq!(deliveries.len(), 1);
    let delivery = &deliveries[0];
    assert_eq!((delivery.job, delivery.session, delivery.attempt), (job, SessionId::new(1), 1));
    assert_eq!((&delivery.body[..], delivery.ttr_ms), (&b"work"[..], 60_000));
    assert_eq!(delivery.fence, Fence::new(world.index), "the fence is the index of the assignment");
    assert_eq!(world.ack(held(delivery)), Ok(Reply::Done));
    assert_eq!(world.queue.job_count(), 0);
    assert_eq!(world.state(job), JobState::Finished { how: Finish::Acked });
    let history: Vec<_> =
        world.queue.job(job).expect("remembered").history.iter().map(|entry| entry.what).collect();
    assert_eq!(history, [What::Assigned, What::Acked]);
}

#[test]
fn an_old_fence_changes_nothing() {
    let mut world = World::new();
    world.open(1);
    world.submit("work");
    let first = world.pull(1).expect("a job");
    world.pass(60_000);
    let second = world.pull(1).expect("the same job");
    assert!(second.job == first.job && second.fence > first.fence);
    let before = world.queue.clone();
    let Assignment { job, fence } = first;
    for op in [
        Op::Ack { job, fence },
        Op::Nack { job, fence, delay_ms: None, priority: None, returns_attempt: false },
        Op::Bury { job, fence, priority: None },
        Op::Extend { job, fence, ttr_ms: None },
        Op::Cancel { job, guard: CancelGuard::Held(fence) },
    ] {
        assert_eq!(world.run(op), Err(Refusal::LeaseLost));
        assert!(world.effects.events.is_empty());
        assert_eq!(world.queue.job(job), before.job(job));
    }
    assert_eq!(world.ack(second), Ok(Reply::Done));
    assert_eq!(world.ack(second), Err(Refusal::LeaseLost), "an ack counts once");
    let never = Op::Ack { job: JobId::in_group(3, 999), fence };
    assert_eq!(world.run(never), Err(Refusal::JobUnknown));
}

#[test]
fn a_job_given_out_twice_at_one_index_has_two_fences() {
    let mut world = World::new();
    world.open(1);
    world.open(2);
    world.submit("work");
    let session = |number| SessionId::new(number);
    let effects = world.frame(
        0,
        vec![pull(1, 1).into(), Op::SessionClose { session: session(1) }.into(), pull(2, 1).into()],
    );
    let fences: Vec<_> = effects.deliveries.iter().map(|delivery| delivery.fence).collect();
    let holders: Vec<_> = effects.deliveries.iter().map(held).collect();
    assert!(fences[0] < fences[1]);
    assert_eq!(world.ack(holders[0]), Err(Refusal::LeaseLost));
    assert_eq!(world.ack(holders[1]), Ok(Reply::Done));
}

#[test]
fn smaller_priorities_go_first_and_older_jobs_among_equals() {
    let mut world = World::new();
    world.open(1);
    for (body, priority) in [("c", 5), ("d", 5), ("a", 1), ("e", 9), ("b", 1)] {
        world.submit_with(body, |submit| submit.priority = priority);
    }
    world.credit(1, 10);
    assert_eq!(world.bodies(), ["a", "b", "c", "d", "e"]);
}

#[test]
fn a_session_gets_the_best_job_of_all_queues_that_it_watches() {
    let mut world = World::new();
    world.open(1);
    for (body, queue, priority) in [("b", "left", 2), ("a", "right", 1), ("c", "left", 3), ("x", "other", 0)]
    {
        world.submit_with(body, |submit| (submit.queue, submit.priority) = (name(queue), priority));
    }
    world.run(credit(1, &["left", "right", "right"], 10)).expect("a session");
    assert_eq!(world.bodies(), ["a", "b", "c"]);
    // Watching something else is a matter of the next credit.
    world.run(credit(1, &["other"], 0)).expect("a session");
    assert_eq!(world.bodies(), ["x"]);
    world.submit_with("late", |submit| submit.queue = name("left"));
    assert!(world.bodies().is_empty());
}

#[test]
fn jobs_go_to_who_was_served_longest_ago() {
    let mut world = World::new();
    for session in [1, 2, 3] {
        world.open(session);
        world.credit(session, 5);
    }
    let served: Vec<_> = (0..6)
        .map(|_| {
            world.submit("x");
            world.effects.deliveries[0].session.get()
        })
        .collect();
    assert_eq!(served, [1, 2, 3, 1, 2, 3]);
}

#[test]
fn a_session_gets_no_more_than_its_credits_and_an_ack_gives_one_back() {
    let mut world = World::new();
    world.open(1);
    for body in ["a", "b", "c", "d"] {
        world.submit(body);
    }
    let first = world.credit(1, 2);
    assert_eq!(world.bodies(), ["a", "b"]);
    world.ack(held(&first[0])).expect("held");
    assert_eq!(world.bodies(), ["c"]);
    world.nack(held(&first[1]), Some(1_000)).expect("held");
    assert_eq!(world.bodies(), ["d"]);
    assert_eq!(
        world.queue.session(SessionId::new(1)).map(|session| (session.credits, session.inflight)),
        Some((0, 2))
    );
}

#[test]
fn sessions_tell_what_they_may_take_and_what_they_hold() {
    let mut world = World::new();
    for session in 1..=3 {
        world.open(session);
    }
    for body in ["a", "b", "c", "d"] {
        world.submit(body);
    }
    // One takes two of its five, one asks for two, and one waits for what another queue may bring.
    let pushed = world.credit(1, 2);
    for _ in 0..2 {
        world.pull(2).expect("a job");
    }
    world.credit(1, 3);
    world.run(credit(3, &["other", "default"], 7)).expect("a session");
    let seen = |world: &World, after: Option<u64>, count: usize| {
        let (page, has_more) = world.queue.list_sessions(after.map(SessionId::new), count);
        let numbers = page.iter().map(|stats| {
            (stats.session.get(), stats.credits, stats.granted, stats.inflight, stats.watching_count)
        });
        (numbers.collect::<Vec<_>>(), has_more)
    };
    assert_eq!(seen(&world, None, 2), (vec![(1, 3, 5, 2, 1), (2, 0, 0, 2, 0)], true));
    assert_eq!(seen(&world, Some(2), 2), (vec![(3, 7, 7, 0, 2)], false));
    assert_eq!(
        world.queue.session_totals(),
        SessionTotals { sessions: 3, credits: 10, granted: 12, inflight: 4 }
    );
    // What is done gives its credit back. What takes too long takes its credit with it.
    world.ack(held(&pushed[0])).expect("held");
    assert_eq!(seen(&world, None, 1).0, [(1, 4, 5, 1, 1)]);
    world.pass(60_000);
    assert_eq!(world.queue.session_totals().inflight, 3, "they went to those who take more");
    assert_eq!(world.queue.session_totals().granted, 11);
    // However much a session watches, little of it is told.
    let many: Vec<String> = (0..100).map(|number| format!("queue-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    world.run(credit(3, &many, 0)).expect("a session");
    let stats = world.queue.session(SessionId::new(3)).expect("it is open");
    assert_eq!((stats.watching.len(), stats.watching_count), (SESSION_QUEUES_SHOWN, 100));
}

#[test]
fn a_worker_that_wants_no_more_gets_no_more() {
    let mut world = World::new();
    world.open(1);
    world.credit(1, 5);
    let stop = Op::Credit { session: SessionId::new(1), queues: vec![], credits: 0, replaces: true };
    assert_eq!(world.run(stop), Ok(Reply::Done));
    world.submit("x");
    assert_eq!(world.stats(), (1, 0, 0, 0));
    assert_eq!(world.credit(1, 1).len(), 1);
}

#[test]
fn a_lease_that_ends_takes_the_job_and_keeps_the_credit() {
    let mut world = World::new();
    world.open(1);
    world.submit_with("slow", |submit| submit.ttr_ms = Some(100));
    let first = world.credit(1, 1);
    assert_eq!(world.queue.next_due_ms(), Some(100));
    assert_eq!(world.pass(99), Vec::<&str>::new());
    assert_eq!(world.pass(1), ["timeout_requeue"]);
    assert_eq!(world.effects.revocations.len(), 1);
    assert_eq!(world.effects.revocations[0].fence, first[0].fence);
    assert_eq!(world.stats(), (1, 0, 0, 0), "the worker may still be busy with it, so it gets no other one");
    assert_eq!(world.credit(1, 1).len(), 1, "until it says so");
}

#[test]
fn whoever_needs_longer_says_so() {
    let mut world = World::new();
    world.open(1);
    for body in ["a", "b"] {
        world.submit_with(body, |submit| submit.ttr_ms = Some(100));
    }
    let held: Vec<_> = world.credit(1, 2).iter().map(held).collect();
    world.pass(60);
    let extend = Op::Extend { job: held[0].job, fence: held[0].fence, ttr_ms: Some(500) };
    assert_eq!(world.run(extend), Ok(Reply::Done));
    assert_eq!(world.queue.next_due_ms(), Some(100));
    assert_eq!(world.pass(40), ["timeout_requeue"], "only the other one");
    assert_eq!(world.run(Op::ExtendAll { session: SessionId::new(1) }), Ok(Reply::Counted { count: 1 }));
    assert_eq!(world.pass(99), Vec::<&str>::new());
    assert_eq!(world.pass(1), ["timeout_requeue"]);
}

#[test]
fn a_worker_that_goes_harms_no_job() {
    let mut world = World::new();
    world.open(1);
    let job = world.submit_with("x", |submit| {
        (submit.max_attempts, submit.backoff) = (Some(1), Some(Backoff::fixed(50)));
    });
    world.credit(1, 1);
    assert_eq!(world.run(Op::SessionClose { session: SessionId::new(1) }), Ok(Reply::Counted { count: 1 }));
    assert_eq!(world.effects.events[0].kind.name(), "worker_down_requeue");
    assert_eq!(world.state(job), JobState::Ready, "at once, and it may still be tried");
    assert_eq!(world.queue.job(job).map(|job| job.attempts), Some(0));
    assert_eq!(world.run(pull(1, 1)), Err(Refusal::SessionUnknown));
}

#[test]
fn a_queue_may_count_workers_that_go_as_tries() {
    let mut world = World::new();
    world.set(QueueSettings { worker_down_counts: true, max_attempts: 1, ..QueueSettings::default() });
    world.open(1);
    let job = world.submit("poison");
    world.pull(1).expect("a job");
    world.run(Op::SessionClose { session: SessionId::new(1) }).expect("open");
    assert!(matches!(world.state(job), JobState::Dead { reason: DeadReason::Attempts, .. }));
}

#[test]
fn a_job_is_dead_after_as_many_tries_as_it_may_have() {
    let mut world = World::new();
    world.open(1);
    let job = world.submit_with("x", |submit| submit.max_attempts = Some(3));
    let first = world.pull(1).expect("try 1");
    assert_eq!(world.nack(first, None), Ok(Reply::Requeued));
    world.pull(1).expect("try 2");
    assert_eq!(world.pass(60_000), ["timeout_requeue"]);
    let third = world.pull(1).expect("try 3");
    assert_eq!(world.nack(third, Some(5)), Ok(Reply::Dead));
    assert_eq!(world.effects.events[0].kind.name(), "dlq");
    assert_eq!(world.stats(), (0, 0, 0, 1));
    // Kicked, it has all its tries again.
    assert_eq!(world.run(Op::Kick { queue: name("default"), count: 5 }), Ok(Reply::Counted { count: 1 }));
    for _ in 0..2 {
        let again = world.pull(1).expect("a try");
        assert_eq!(world.nack(again, None), Ok(Reply::Requeued));
    }
    let view = world.queue.job(job).expect("a job");
    assert_eq!((view.counts.reserves, view.counts.timeouts, view.counts.releases), (5, 1, 4));
    assert_eq!((view.counts.buries, view.counts.kicks), (1, 1));
}

#[test]
fn a_try_may_be_given_back() {
    let mut world = World::new();
    world.open(1);
    let job = world.submit_with("x", |submit| submit.max_attempts = Some(1));
    for _ in 0..3 {
        let Assignment { job, fence } = world.pull(1).expect("a job");
        let op = Op::Nack { job, fence, delay_ms: None, priority: Some(7), returns_attempt: true };
        assert_eq!(world.run(op), Ok(Reply::Requeued));
    }
    assert_eq!(world.queue.job(job).map(|job| (job.attempts, job.priority)), Some((0, 7)));
}

#[test]
fn tries_that_fail_wait_longer_and_longer() {
    let mut world = World::new();
    world.open(1);
    let job = world.submit_with("x", |submit| submit.backoff = Some(Backoff { base_ms: 100, cap_ms: 300 }));
    for expected in [100, 200, 300, 300] {
        let held = world.pull(1).expect("a job");
        world.nack(held, None).expect("held");
        let until_ms = world.queue.time_ms() + expected;
        assert_eq!(world.state(job), JobState::Delayed { until_ms, is_retry: true });
        assert_eq!(world.pass(u32::try_from(expected).expect("small")), ["ready"]);
    }
}

#[test]
fn a_delayed_job_is_not_early() {
    let mut world = World::new();
    world.open(1);
    world.credit(1, 5);
    let job = world.submit_with("later", |submit| submit.delay_ms = 100);
    assert_eq!(world.queue.peek_delayed(&name("default")), Some(job));
    assert_eq!(world.pass(99), Vec::<&str>::new());
    assert_eq!(world.pass(1), ["ready", "assign"]);
}

#[test]
fn time_stands_still_where_frames_say_so() {
    let mut world = World::new();
    world.open(1);
    world.submit_with("x", |submit| submit.ttr_ms = Some(10));
    world.pull(1).expect("a job");
    for _ in 0..100 {
        assert_eq!(world.pass(0), Vec::<&str>::new());
    }
    assert_eq!(world.stats(), (0, 1, 0, 0));
}

#[test]
fn the_time_of_day_never_runs_backwards_and_decides_nothing() {
    let mut world = World::new();
    let job = world.submit_with("a", |submit| submit.delay_ms = 100);
    let mut seen = Vec::new();
    for wall_ms in [5_000_000, 4_000_000, 0, 6_000_000] {
        world.index += 1;
        world.effects.clear();
        let frame = Frame { dt_ms: 0, wall_ms, commands: vec![submit("b", |_| {}).into()] };
        world.queue.apply(world.index, &frame, &mut world.effects).expect("the next index");
        seen.push((world.queue.wall_ms(), world.effects.events[0].wall_ms));
    }
    assert_eq!(seen, [5_000_000, 5_000_000, 5_000_000, 6_000_000].map(|wall_ms| (wall_ms, wall_ms)));
    assert!(matches!(world.state(job), JobState::Delayed { until_ms: 100, .. }), "no time has passed");
}

#[test]
fn jobs_of_a_group_are_done_one_after_the_other() {
    let mut world = World::new();
    world.open(1);
    for (body, group, priority) in [("a1", "a", 5), ("a2", "a", 0), ("b1", "b", 5), ("a3", "a", 5)] {
        world.submit_with(body, |submit| (submit.group, submit.priority) = (Some(key(group)), priority));
    }
    let first = world.credit(1, 10);
    assert_eq!(world.bodies(), ["a1", "b1"], "a better priority does not overtake within a group");
    assert_eq!(world.stats(), (2, 2, 0, 0));
    // A try that failed keeps the others waiting, also while it waits itself.
    world.nack(held(&first[0]), Some(100)).expect("held");
    assert!(world.bodies().is_empty());
    assert_eq!(world.pass(100), ["ready", "assign"]);
    assert_eq!(world.bodies(), ["a1"]);
    let again = held(&world.effects.deliveries[0]);
    world.ack(again).expect("held");
    assert_eq!(world.bodies(), ["a2"]);
    // A dead one lets the others pass.
    let Assignment { job, fence } = held(&world.effects.deliveries[0]);
    assert_eq!(world.run(Op::Bury { job, fence, priority: None }), Ok(Reply::Dead));
    assert_eq!(world.bodies(), ["a3"]);
    assert_eq!(
        world.run(Op::Reserve { session: SessionId::new(1), job }),
        Err(Refusal::GroupHeld),
        "nor does one who asks by number break the order"
    );
}

#[test]
fn a_group_does_not_wait_for_a_job_that_is_not_due_yet() {
    let mut world = World::new();
    world.open(1);
    world.submit_with("later", |submit| (submit.group, submit.delay_ms) = (Some(key("g")), 100));
    world.submit_with("now", |submit| submit.group = Some(key("g")));
    world.credit(1, 10);
    assert_eq!(world.bodies(), ["now"]);
    assert_eq!(world.pass(100), ["ready"], "but it waits for its turn then");
}

#[test]
fn a_job_that_nobody_takes_in_time_is_dropped() {
    let mut world = World::new();
    world.open(1);
    let lost = world.submit_with("lost", |submit| submit.ttl_ms = Some(100));
    let taken = world.submit_with("taken", |submit| (submit.ttl_ms, submit.priority) = (Some(100), 0));
    assert_eq!(world.pull(1).map(|held| held.job), Some(lost));
    assert_eq!(world.pull(1).map(|held| held.job), Some(taken));
    let held = world.queue.held_by(SessionId::new(1));
    world.nack(held[0], None).expect("held");
    assert_eq!(world.pass(100), ["expired"], "what somebody holds is not dropped");
    assert_eq!(world.state(lost), JobState::Finished { how: Finish::Expired });
    assert_eq!(world.nack(held[1], None), Ok(Reply::Requeued));
    let names: Vec<_> = world.effects.events.iter().map(|event| event.kind.name()).collect();
    assert_eq!(names, ["requeue", "expired"], "until it comes back");
}

#[test]
fn a_dedupe_key_counts_for_its_window() {
    let mut world = World::new();
    let dedupe = |submit: &mut Submit| submit.dedupe = Some(Dedupe { key: key("once"), window_ms: 100 });
    let job = world.submit_with("first", dedupe);
    world.pass(99);
    assert_eq!(world.run(submit("again", dedupe)), Ok(Reply::Duplicate { job }));
    let elsewhere = world.submit_with("x", |submit| {
        dedupe(submit);
        submit.queue = name("other");
    });
    assert_ne!(elsewhere, job);
    world.pass(1);
    assert_ne!(world.submit_with("anew", dedupe), job);
}

#[test]
fn a_dedupe_key_counts_no_longer_when_its_alarm_is_late() {
    let mut world = World::with(JobLimits { alarms_per_frame_max: 1, ..JobLimits::default() });
    let dedupe = |submit: &mut Submit| submit.dedupe = Some(Dedupe { key: key("once"), window_ms: 100 });
    let first = world.submit_with("first", dedupe);
    for _ in 0..3 {
        world.submit_with("x", |submit| submit.delay_ms = 50);
    }
    assert_eq!(world.pass(100), ["ready"], "there is more to do than this frame does");
    let second = world.submit_with("second", dedupe);
    assert_ne!(first, second);
    for _ in 0..5 {
        world.pass(0);
    }
    assert_eq!(world.run(submit("third", dedupe)), Ok(Reply::Duplicate { job: second }), "the new key holds");
}

#[test]
fn a_command_counts_once() {
    let mut world = World::new();
    world.open(1);
    let gateway = GatewayId::new(9);
    let command = |sequence, op| Command { token: Some(Token { gateway, sequence }), op };
    let unknown = world.frame(0, vec![command(1, submit("x", |_| {}))]).replies[0].clone();
    assert_eq!(unknown, Err(Refusal::GatewayUnknown));
    assert_eq!(world.run(Op::GatewayOpen { gateway }), Ok(Reply::Opened { is_resumed: false }));
    let first = world.frame(0, vec![command(1, submit("x", |_| {}))]).replies[0].clone();
    let again = world.frame(0, vec![command(1, submit("x", |_| {}))]).replies[0].clone();
    assert_eq!(first, again);
    assert_eq!(world.queue.job_count(), 1);
    // A pull that is asked again gets the same job again, with its body.
    let first = world.frame(0, vec![command(2, pull(1, 1))]).clone();
    let again = world.frame(7, vec![command(2, pull(1, 1))]).clone();
    assert_eq!(first.replies, again.replies);
    assert_eq!(first.deliveries[0].body, again.deliveries[0].body);
    assert_eq!(again.deliveries[0].ttr_ms, 60_000 - 7);
    assert!(again.events.is_empty());
    // And an ack that is asked again was accepted.
    let Assignment { job, fence } = held(&first.deliveries[0]);
    for _ in 0..2 {
        assert_eq!(world.frame(0, vec![command(3, Op::Ack { job, fence })]).replies, [Ok(Reply::Done)]);
    }
    let late = world.frame(0, vec![command(2_000, Op::Tick), command(3, Op::Ack { job, fence })]);
    assert_eq!(late.replies[1], Err(Refusal::SequenceTooOld));
}

#[test]
fn a_silent_gateway_is_forgotten() {
    let mut world =
        World::with(JobLimits { gateways_max: 1, gateway_idle_ms: 1_000, ..JobLimits::default() });
    let gateway = GatewayId::new(1);
    world.run(Op::GatewayOpen { gateway }).expect("room");
    assert_eq!(world.run(Op::GatewayOpen { gateway: GatewayId::new(2) }), Err(Refusal::TooManyGateways));
    world.pass(900);
    let tick = Command { token: Some(Token { gateway, sequence: 1 }), op: Op::Tick };
    world.frame(0, vec![tick.clone()]);
    world.pass(999);
    assert!(world.queue.knows_gateway(gateway));
    world.pass(1);
    assert!(!world.queue.knows_gateway(gateway));
    assert_eq!(world.frame(0, vec![tick]).replies, [Err(Refusal::GatewayUnknown)]);
    assert_eq!(world.queue.next_due_ms(), None, "an idle queue needs no ticks");
}

#[test]
fn a_gateway_that_says_goodbye_makes_room_at_once() {
    let mut world = World::with(JobLimits { gateways_max: 1, ..JobLimits::default() });
    let gateways = [GatewayId::new(1), GatewayId::new(2)];
    for gateway in gateways {
        world.run(Op::GatewayOpen { gateway }).expect("room");
        assert_eq!(world.run(Op::GatewayClose { gateway }), Ok(Reply::Done));
        assert_eq!(world.run(Op::GatewayClose { gateway }), Ok(Reply::Done));
    }
    assert_eq!(gateways.map(|gateway| world.queue.knows_gateway(gateway)), [false, false]);
    assert_eq!(world.queue.next_due_ms(), None, "an idle queue needs no ticks");
}

#[test]
fn refusals_have_numbers() {
    for refusal in Refusal::ALL {
        assert_eq!(Refusal::from_number(refusal.number()), Some(refusal));
    }
    assert_eq!(Refusal::from_number(u8::MAX), None);
}

#[test]
fn a_session_goes_on_after_a_failover() {
    let mut world = World::new();
    world.open(1);
    world.submit("x");
    let held = world.pull(1).expect("a job");
    let session = SessionId::new(1);
    assert_eq!(world.run(Op::SessionOpen { session, secret: 1 }), Ok(Reply::Opened { is_resumed: true }));
    assert_eq!(world.run(Op::SessionOpen { session, secret: 2 }), Err(Refusal::SessionTaken));
    assert_eq!(world.queue.held_by(session), [held]);
    assert_eq!(world.ack(held), Ok(Reply::Done));
}

#[test]
fn what_is_buried_waits_to_be_kicked() {
    let mut world = World::new();
    world.open(1);
    let jobs: Vec<_> = ["a", "b", "c"].map(|body| world.submit(body)).into();
    let delayed = world.submit_with("d", |submit| submit.delay_ms = 50);
    // Buried in another order than that of their numbers.
    let held: Vec<_> = (0..3).map(|_| world.pull(1).expect("a job")).collect();
    for place in [2, 0, 1] {
        let Assignment { job, fence } = held[place];
        assert_eq!(world.run(Op::Bury { job, fence, priority: None }), Ok(Reply::Dead));
    }
    assert_eq!(world.queue.peek_dead(&name("default")), Some(jobs[2]));
    let (page, cursor) = world.queue.list_dead(&name("default"), None, 2);
    assert_eq!(page.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[2], jobs[0]]);
    let (rest, end) = world.queue.list_dead(&name("default"), cursor, 2);
    assert_eq!((rest[0].id, rest.len(), end), (jobs[1], 1, None));

    assert_eq!(world.run(Op::Kick { queue: name("default"), count: 2 }), Ok(Reply::Counted { count: 2 }));
    assert_eq!(world.stats(), (2, 0, 1, 1));
    assert_eq!(world.run(Op::KickJob { job: jobs[1] }), Ok(Reply::Done));
    assert_eq!(world.run(Op::KickJob { job: jobs[1] }), Err(Refusal::NothingToKick));
    // Nothing is dead any more: delayed ones are kicked.
    assert_eq!(world.run(Op::Kick { queue: name("default"), count: 9 }), Ok(Reply::Counted { count: 1 }));
    assert_eq!(world.state(delayed), JobState::Ready);
    assert_eq!(world.run(Op::Kick { queue: name("none"), count: 9 }), Err(Refusal::QueueUnknown));
}

#[test]
fn a_job_can_be_taken_by_its_number() {
    let mut world = World::new();
    world.open(1);
    let delayed = world.submit_with("later", |submit| submit.delay_ms = 50);
    let reserve = Op::Reserve { session: SessionId::new(1), job: delayed };
    assert!(matches!(world.run(reserve.clone()), Ok(Reply::Pulled(jobs)) if jobs[0].job == delayed));
    assert_eq!(world.bodies(), ["later"]);
    assert_eq!(world.run(reserve), Err(Refusal::JobHeld));
    let none = Op::Reserve { session: SessionId::new(1), job: JobId::new(5) };
    assert_eq!(world.run(none), Err(Refusal::JobUnknown));
}

#[test]
fn a_job_can_be_cancelled_as_far_as_the_guard_lets() {
    let mut world = World::new();
    world.open(1);
    let [idle, held, taken] = ["a", "b", "c"].map(|body| world.submit(body));
    let cancel = |job, guard| Op::Cancel { job, guard };
    assert_eq!(world.run(cancel(idle, CancelGuard::Idle)), Ok(Reply::Done));
    assert_eq!(world.run(cancel(idle, CancelGuard::Idle)), Err(Refusal::JobUnknown));
    let first = world.credit(1, 2);
    assert_eq!(world.run(cancel(held, CancelGuard::Idle)), Err(Refusal::JobHeld));
    assert_eq!(world.run(cancel(held, CancelGuard::Held(first[0].fence))), Ok(Reply::Done));
    assert!(world.effects.revocations.is_empty(), "who cancels it knows");
    assert_eq!(world.run(cancel(taken, CancelGuard::Any)), Ok(Reply::Done));
    assert_eq!(world.effects.revocations[0].job, taken);
    assert_eq!(world.queue.session(SessionId::new(1)).map(|session| session.credits), Some(1));
}

#[test]
fn a_paused_queue_gives_out_nothing() {
    let mut world = World::new();
    world.open(1);
    world.credit(1, 5);
    assert_eq!(world.run(Op::Pause { queue: name("default"), millis: Some(100) }), Ok(Reply::Done));
    world.submit("x");
    assert!(world.effects.ready.is_empty() && !world.queue.has_ready(&name("default")));
    assert_eq!(world.pull(1), None);
    assert_eq!(world.pass(100), ["assign"]);
    world.run(Op::Pause { queue: name("default"), millis: None }).expect("a queue");
    world.submit("y");
    assert_eq!(world.pass(u32::MAX), ["timeout_requeue"]);
    world.run(Op::Resume { queue: Some(name("default")) }).expect("a queue");
    assert_eq!(world.bodies(), ["x", "y"]);
}

#[test]
fn a_drained_queue_takes_nothing() {
    let mut world = World::new();
    world.submit("x");
    for queue in [Some(name("default")), None] {
        assert_eq!(world.run(Op::Drain { queue: queue.clone() }), Ok(Reply::Done));
        assert_eq!(world.run(submit("y", |_| {})), Err(Refusal::Draining));
        assert_eq!(world.effects.events[0].kind.name(), "rejected");
        assert_eq!(world.run(Op::Resume { queue }), Ok(Reply::Done));
    }
    world.submit("y");
}

#[test]
fn caps_of_a_queue_hold() {
    let mut world = World::new();
    world.open(1);
    world.open(2);
    world.set(QueueSettings {
        jobs_max: Some(3),
        bytes_max: Some(20),
        inflight_max: Some(1),
        ..QueueSettings::default()
    });
    world.submit("0123456789");
    assert_eq!(world.run(submit("0123456789x", |_| {})), Err(Refusal::QueueFull));
    world.submit("a");
    world.submit("b");
    assert_eq!(world.run(submit("", |_| {})), Err(Refusal::QueueFull));
    assert_eq!(world.credit(1, 5).len(), 1);
    assert_eq!(world.credit(2, 5).len(), 0);
    assert_eq!(world.pull(2), None);
    let first = world.queue.held_by(SessionId::new(1))[0];
    world.ack(first).expect("held");
    assert_eq!(
        world.effects.deliveries[0].session,
        SessionId::new(2),
        "not again to the one who had it last"
    );
    assert_eq!(world.effects.deliveries.len(), 1);
}

#[test]
fn a_rate_lets_through_so_many_per_time() {
    let mut world = World::new();
    world.open(1);
    world.set(QueueSettings { rate: Some(Rate { per_second: 10, burst: 2 }), ..QueueSettings::default() });
    for body in ["a", "b", "c", "d"] {
        world.submit(body);
    }
    world.credit(1, 10);
    assert_eq!(world.bodies(), ["a", "b"]);
    assert_eq!(world.queue.next_due_ms(), Some(100));
    world.pass(99);
    assert!(world.bodies().is_empty());
    world.pass(1);
    assert_eq!(world.bodies(), ["c"]);
    world.pass(1_000);
    assert_eq!(world.bodies(), ["d"]);
    world.pass(1_000);
    for body in ["e", "f", "g"] {
        world.submit(body);
    }
    assert_eq!(world.stats(), (1, 6, 0, 0), "tokens of a long silence are not saved up");
}

#[test]
fn a_client_has_no_more_unfinished_jobs_than_it_may() {
    let mut world = World::new();
    world.open(1);
    let of = |client: u64| move |submit: &mut Submit| submit.client = ClientId::new(client);
    world.run(Op::QuotaSet { quota: Quota::Clients, max: Some(1) }).expect("valid");
    world.run(Op::QuotaSet { quota: Quota::Client(ClientId::new(7)), max: Some(2) }).expect("valid");
    world.submit_with("a", of(7));
    world.submit_with("b", of(7));
    assert_eq!(world.run(submit("c", of(7))), Err(Refusal::ClientOverCap));
    world.submit_with("d", of(8));
    assert_eq!(world.run(submit("e", of(8))), Err(Refusal::ClientOverCap));
    world.submit_with("f", of(0));
    world.submit_with("g", of(0));
    let first = world.pull(1).expect("a job");
    assert_eq!(world.run(submit("c", of(7))), Err(Refusal::ClientOverCap), "it is not finished yet");
    world.ack(first).expect("held");
    world.submit_with("c", of(7));
    assert_eq!(world.queue.client(ClientId::new(7)), (2, Some(2)));
    let Assignment { job, fence } = world.pull(1).expect("a job");
    world.run(Op::Bury { job, fence, priority: None }).expect("held");
    assert_eq!(world.queue.client(ClientId::new(7)), (1, Some(2)), "nobody waits for a dead job");
}

#[test]
fn a_worker_holds_no_more_than_it_may() {
    let mut world = World::new();
    world.open(1);
    world.run(Op::QuotaSet { quota: Quota::Workers, max: Some(2) }).expect("valid");
    for body in ["a", "b", "c", "d"] {
        world.submit(body);
    }
    let first = world.credit(1, 10);
    assert_eq!(first.len(), 2);
    assert_eq!(world.run(pull(1, 1)), Err(Refusal::WorkerOverCap));
    world.ack(held(&first[0])).expect("held");
    assert_eq!(world.bodies(), ["c"]);
    world.run(Op::QuotaSet { quota: Quota::Worker(SessionId::new(1)), max: Some(3) }).expect("open");
    assert_eq!(world.bodies(), ["d"]);
}

#[test]
fn limits_are_refusals_with_names() {
    let limits = JobLimits {
        jobs_max: 2,
        bytes_max: 10,
        body_bytes_max: 8,
        queues_max: 2,
        sessions_max: 1,
        queues_per_session_max: 1,
        inflight_per_session_max: 5,
        clients_max: 1,
        dedupe_keys_max: 1,
        ..JobLimits::default()
    };
    let mut world = World::with(limits);
    world.open(1);
    let second = Op::SessionOpen { session: SessionId::new(2), secret: 0 };
    assert_eq!(world.run(second), Err(Refusal::TooManySessions));
    assert_eq!(world.run(credit(1, &["a", "b"], 1)), Err(Refusal::TooManyQueues));
    assert_eq!(world.run(credit(1, &["a"], 6)), Err(Refusal::WorkerOverCap));
    assert_eq!(world.run(submit("123456789", |_| {})), Err(Refusal::BodyTooLong));
    assert_eq!(world.run(submit("", |submit| submit.ttr_ms = Some(0))), Err(Refusal::OutOfRange));
    let dedupe =
        |text| move |submit: &mut Submit| submit.dedupe = Some(Dedupe { key: key(text), window_ms: 9 });
    world.submit_with("12345678", dedupe("k"));
    assert_eq!(world.run(submit("", dedupe("l"))), Err(Refusal::TooManyDedupeKeys));
    assert_eq!(world.run(submit("123", |_| {})), Err(Refusal::Full));
    world.submit_with("", |submit| submit.queue = name("b"));
    assert_eq!(world.run(submit("", |_| {})), Err(Refusal::Full));
    let client = |number| Op::QuotaSet { quota: Quota::Client(ClientId::new(number)), max: Some(1) };
    assert_eq!(world.run(client(0)), Err(Refusal::OutOfRange));
    assert_eq!(world.run(client(1)), Ok(Reply::Done));
    assert_eq!(world.run(client(2)), Err(Refusal::TooManyClients));
    let job = world.queue.peek_ready(&name("b")).expect("a job");
    world.run(Op::Cancel { job, guard: CancelGuard::Any }).expect("there");
    assert_eq!(world.run(submit("", |submit| submit.queue = name("c"))), Err(Refusal::TooManyQueues));
    let zero = JobLimits { jobs_max: 0, ..JobLimits::default() };
    assert_eq!(world.run(Op::LimitsSet(Box::new(zero))), Err(Refusal::OutOfRange));
    assert_eq!(world.run(Op::LimitsSet(Box::default())), Ok(Reply::Done));
    world.submit_with("", |submit| submit.queue = name("c"));
}

#[test]
fn a_queue_that_nothing_uses_is_forgotten() {
    let mut world = World::with(JobLimits { queue_idle_ms: 1_000, ..JobLimits::default() });
    world.open(1);
    let job = world.submit("x");
    let held = world.pull(1).expect("a job");
    world.pass(5_000);
    world.ack(held).expect("held");
    world.pass(999);
    assert!(world.queue.queue(&name("default")).is_some());
    assert!(world.queue.job(job).is_some());
    world.pass(1);
    assert!(world.queue.queue(&name("default")).is_none());
    assert!(world.queue.job(job).is_none(), "its finished jobs go with it");
    // A queue that somebody set or watches stays.
    world.set(QueueSettings::default());
    world.run(credit(1, &["watched"], 0)).expect("open");
    world.pass(10_000);
    assert_eq!(world.queue.queues().count(), 2);
    world.run(Op::QueueSet { queue: name("default"), settings: None }).expect("a queue");
    world.run(Op::SessionClose { session: SessionId::new(1) }).expect("open");
    world.pass(1_000);
    assert_eq!(world.queue.queues().count(), 0);
}

#[test]
fn worn_out_jobs_are_dropped_where_no_dead_are_kept_but_buried_ones_are_not() {
    let mut world = World::new();
    world.open(1);
    world.set(QueueSettings { dead_letters: DeadLetters::Drop, max_attempts: 1, ..QueueSettings::default() });
    let worn = world.submit("x");
    let held = world.pull(1).expect("a job");
    assert_eq!(world.nack(held, None), Ok(Reply::Dead));
    assert_eq!(world.state(worn), JobState::Finished { how: Finish::Dropped });
    let buried = world.submit("y");
    let Assignment { job, fence } = world.pull(1).expect("a job");
    world.run(Op::Bury { job, fence, priority: None }).expect("held");
    assert!(matches!(world.state(buried), JobState::Dead { reason: DeadReason::Buried, .. }));
}

#[test]
fn a_frame_handles_no_more_alarms_than_it_may() {
    let mut world = World::with(JobLimits { alarms_per_frame_max: 10, ..JobLimits::default() });
    for _ in 0..25 {
        world.submit_with("x", |submit| submit.delay_ms = 5);
    }
    let counts: Vec<_> = [5, 0, 0, 0].iter().map(|dt_ms| world.pass(*dt_ms).len()).collect();
    assert_eq!(counts, [10, 10, 5, 0]);
    assert_eq!(world.stats(), (25, 0, 0, 0));
}

#[test]
fn the_life_of_a_job_is_remembered_up_to_a_bound() {
    let mut world = World::with(JobLimits { finished_max: 2, ..JobLimits::default() });
    world.open(1);
    let job = world.submit("x");
    for _ in 0..20 {
        let held = world.pull(1).expect("a job");
        world.nack(held, None).expect("held");
    }
    let view = world.queue.job(job).expect("a job");
    assert_eq!(view.history.len(), crate::jobs::HISTORY_MAX);
    assert_eq!(
        view.history.last().map(|entry| (entry.index, entry.what)),
        Some((world.index, What::Released))
    );
    assert_eq!((view.counts.reserves, view.submitted.index), (20, 2));
    let others = ["a", "b"].map(|body| world.submit(body));
    for job in [job].into_iter().chain(others) {
        world.run(Op::Cancel { job, guard: CancelGuard::Any }).expect("there");
    }
    assert!(world.queue.job(job).is_none());
    assert!(world.queue.job(others[1]).is_some());
}

#[test]
fn who_led_when_is_remembered_up_to_a_bound() {
    let mut world = World::new();
    let before = world.submit("x");
    let lead = |name: &str| Op::Lead { node: NodeId::new(name).expect("a name") };
    let leader_at = |queue: &JobQueue, index| queue.leader_at(index).map(ToString::to_string);
    world.run(lead("a")).expect("it is noted");
    let led_by_a = world.index;
    let job = world.submit("y");
    world.run(lead("b")).expect("it is noted");
    let submitted = |world: &World, job| world.queue.job(job).expect("a job").submitted.index;
    assert_eq!(leader_at(&world.queue, submitted(&world, before)), None, "nobody said so");
    assert_eq!(leader_at(&world.queue, led_by_a).as_deref(), Some("a"));
    assert_eq!(leader_at(&world.queue, submitted(&world, job)).as_deref(), Some("a"));
    assert_eq!(leader_at(&world.queue, world.index + 5).as_deref(), Some("b"));
    let bytes = |queue: &JobQueue| queue.snapshot().chunks().flatten().collect::<Vec<u8>>();
    let restored = JobQueue::decode_snapshot(bytes(&world.queue).into()).expect("a snapshot");
    assert_eq!(leader_at(&restored, led_by_a).as_deref(), Some("a"));
    // So many changes later the first ones are not known any more; the later ones are.
    for _ in 0..LEADERS_MAX {
        world.run(lead("c")).expect("it is noted");
    }
    assert_eq!(leader_at(&world.queue, led_by_a), None);
    assert_eq!(leader_at(&world.queue, world.index).as_deref(), Some("c"));
    assert_eq!(world.queue.leaders.len(), LEADERS_MAX);
}

#[test]
fn a_frame_that_was_applied_is_refused() {
    let mut world = World::new();
    world.submit("x");
    let hash = world.queue.state_hash();
    let frame = Frame { dt_ms: 5, wall_ms: 0, commands: vec![submit("y", |_| {}).into()] };
    let refused = world.queue.apply(1, &frame, &mut Effects::new());
    assert_eq!(refused, Err(StaleIndex { index: 1, applied: 1 }));
    assert_eq!(world.queue.state_hash(), hash);
}

#[test]
fn stats_tell_the_oldest_job() {
    let mut world = World::new();
    world.submit_with("old", |submit| submit.priority = 9);
    world.pass(500);
    world.submit_with("new", |submit| submit.priority = 1);
    world.pass(100);
    let stats = world.queue.queue(&name("default")).expect("a queue");
    assert_eq!((stats.oldest_ready_ms, stats.ready, stats.bytes), (Some(600), 2, 6));
    assert_eq!((stats.totals.enqueued, world.queue.totals().enqueued), (2, 2));
    let old = world.queue.peek_ready(&name("default")).and_then(|job| world.queue.body(job));
    assert_eq!(old.as_deref(), Some(&b"new"[..]));
}

#[test]
fn refusals_have_the_numbers_that_snapshots_say() {
    for (number, refusal) in (0..).zip(Refusal::ALL) {
        assert_eq!(refusal as u8, number);
    }
}

proptest! {
    /// A follower that collects nothing decides as the leader does.
    #[test]
    fn effects_that_are_ignored_change_nothing(priorities in proptest::collection::vec(0_u32..3, 1..30)) {
        let mut world = World::new();
        let mut follower = world.queue.clone();
        let mut ignored = Effects::ignored();
        let mut frames = vec![vec![Op::SessionOpen { session: SessionId::new(1), secret: 0 }.into()]];
        frames.push(vec![credit(1, &["default"], 4).into()]);
        for priority in priorities {
            frames.push(vec![submit("x", |submit| submit.priority = priority).into(), Op::Tick.into()]);
        }
        for (index, commands) in (1..).zip(frames) {
            let frame = Frame { dt_ms: 20_000, wall_ms: 0, commands };
            world.effects.clear();
            world.queue.apply(index, &frame, &mut world.effects).expect("in order");
            follower.apply(index, &frame, &mut ignored).expect("in order");
            prop_assert!(!world.effects.replies.is_empty() && ignored.replies.is_empty() && ignored.events.is_empty());
            prop_assert_eq!(world.queue.digest(), follower.digest());
        }
        prop_assert_eq!(world.queue.state_hash(), follower.state_hash());
    }
}
