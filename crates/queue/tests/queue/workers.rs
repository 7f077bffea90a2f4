//! Jobs from those who submit them to those who do them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use synod_core::jobs::{JobId, JobState, Op, QueueName, QueueSettings, Refusal, Reply, SessionId, Submit};
use synod_queue::access::{Answer, CallError, Question, QueueAccess as _};
use synod_queue::link::SessionEvent;
use synod_queue::{Client, ClientError, Job, Verdict, Worker};
use tokio::sync::mpsc;

use crate::cluster::{Cluster, eventually, in_time};

#[tokio::test(flavor = "multi_thread")]
async fn jobs_come_to_workers_and_are_done_once() {
    let cluster = Cluster::start(3).await;
    cluster.leader().await;
    let client = cluster.client();
    let (done, mut seen) = mpsc::unbounded_channel();
    let worker = Worker::new(&client).queue("work").expect("a name").concurrency(8);
    let running = worker.start(move |job: Job| {
        let done = done.clone();
        async move { done.send((job.id, job.body, job.attempt)).expect("somebody listens") }
    });
    let running = in_time(running).await.expect("a worker");
    let queue = QueueName::new("work").expect("a name");
    let jobs = (0..500).map(|number| Submit::new(queue.clone(), format!("job {number}")));
    let submitted = in_time(client.submit_all(jobs)).await;
    let mut expected: Vec<_> = submitted
        .into_iter()
        .enumerate()
        .map(|(number, job)| (job.expect("it was taken"), format!("job {number}").into(), 1))
        .collect();
    let mut found = Vec::new();
    while found.len() < expected.len() {
        found.push(in_time(seen.recv()).await.expect("a job"));
    }
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    running.stop(Duration::from_secs(10)).await;
    let overview = in_time(client.overview()).await.expect("an overview");
    assert_eq!((overview.jobs, overview.sessions, overview.totals.acked), (0, 0, 500));
    assert!(seen.try_recv().is_err(), "nothing came twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_is_tried_again_until_it_is_put_aside() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let queue = QueueName::new("fails").expect("a name");
    let settings = Some(Box::new(QueueSettings { max_attempts: 3, ..QueueSettings::default() }));
    in_time(client.do_op(Op::QueueSet { queue: queue.clone(), settings })).await.expect("a queue");
    let tries = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&tries);
    let worker = Worker::new(&client).queue("fails").expect("a name");
    let running = worker.start(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Err::<(), _>("no") }
    });
    let running = in_time(running).await.expect("a worker");
    let job = in_time(client.submit("fails", "x")).await.expect("a job");
    loop {
        let found = in_time(client.job(job)).await.expect("an answer").expect("the job");
        if let JobState::Dead { .. } = found.view.state {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(tries.load(Ordering::Relaxed), 3);
    assert_eq!(in_time(client.redrive("fails", 10)).await, Ok(1));
    eventually("it is tried again", || (tries.load(Ordering::Relaxed) >= 6).then_some(())).await;
    running.stop(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_kept_while_the_worker_works_and_lost_when_it_does_not_say_so() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let submit = |queue: &str| Submit {
        ttr_ms: Some(300),
        ..Submit::new(QueueName::new(queue).expect("a name"), "slow")
    };
    let slow = |_: Job| async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        Verdict::Done
    };
    let kept = Worker::new(&client).queue("kept").expect("a name").start(slow);
    let kept = in_time(kept).await.expect("a worker");
    let lost = Worker::new(&client).queue("lost").expect("a name").keep_leases(false).start(slow);
    let lost = in_time(lost).await.expect("a worker");
    let first = in_time(client.submit_job(submit("kept"))).await.expect("a job");
    in_time(client.submit_job(submit("lost"))).await.expect("a job");
    loop {
        let overview = in_time(client.overview()).await.expect("an overview");
        if overview.totals.timed_out >= 2 && overview.totals.acked == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let found = in_time(client.job(first)).await.expect("an answer").expect("it is remembered");
    assert_eq!((found.view.counts.reserves, found.view.counts.timeouts), (1, 0));
    kept.stop(Duration::ZERO).await;
    lost.stop(Duration::ZERO).await;
}

/// Takes what it is given and never says a word about it, though its connection lives.
struct Mute {
    client: Client,
    session: SessionId,
    events: mpsc::UnboundedReceiver<SessionEvent>,
}

impl Mute {
    async fn start(client: Client, session: u64) -> Self {
        let session = SessionId::new(session);
        let events = in_time(client.link().open_session(session)).await.expect("a session");
        Self { client, session, events }
    }

    async fn grant(&self, credits: u32) {
        let queues = vec![QueueName::new("work").expect("a name")];
        let credit = Op::Credit { session: self.session, queues, credits, replaces: true };
        assert_eq!(in_time(self.client.do_op(credit)).await, Ok(Reply::Done));
    }

    /// The next job that it is given.
    async fn job(&mut self) -> JobId {
        match in_time(self.events.recv()).await {
            Some(SessionEvent::Delivery(delivery)) => delivery.job,
            other => panic!("{other:?}"),
        }
    }

    /// The next job that it loses.
    async fn lost(&mut self) -> JobId {
        match in_time(self.events.recv()).await {
            Some(SessionEvent::Lost(lost)) => lost.job,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_never_answers_holds_no_more_than_its_credits_and_stops_nobody() {
    let cluster = Cluster::start(3).await;
    cluster.leader().await;
    let client = cluster.client();
    let queue = QueueName::new("work").expect("a name");
    let settings = QueueSettings { ttr_ms: 700, max_attempts: 2, ..QueueSettings::default() };
    let settings = Some(Box::new(settings));
    in_time(client.do_op(Op::QueueSet { queue: queue.clone(), settings })).await.expect("a queue");
    let submit = async |count: usize| {
        let jobs = (0..count).map(|_| Submit::new(queue.clone(), "x"));
        let jobs = in_time(client.submit_all(jobs)).await.into_iter();
        jobs.map(|job| job.expect("a job")).collect::<BTreeSet<_>>()
    };
    let stats = async || in_time(client.queues()).await.expect("an answer").swap_remove(0);

    // It is given as much as it wanted, and the rest waits for others.
    let mut mute = Mute::start(cluster.client(), 1).await;
    mute.grant(3).await;
    let jobs = submit(10).await;
    let mut held = BTreeSet::new();
    for _ in 0..3 {
        held.insert(mute.job().await);
    }
    let seen = stats().await;
    assert_eq!((seen.reserved, seen.waiting), (3, 0), "it takes no more");

    // Another one does the rest, and what the first one held when its time is over.
    let (done, mut tries) = mpsc::unbounded_channel();
    let worker = Worker::new(&client).queue("work").expect("a name").concurrency(2);
    let running = worker.start(move |job: Job| {
        done.send((job.id, job.attempt)).expect("somebody listens");
        async {}
    });
    let running = in_time(running).await.expect("a worker");
    let mut by_attempt = [BTreeSet::new(), BTreeSet::new()];
    for _ in 0..10 {
        let (job, attempt) = in_time(tries.recv()).await.expect("a job");
        by_attempt[attempt as usize - 1].insert(job);
    }
    assert_eq!(by_attempt, [jobs.difference(&held).copied().collect(), held.clone()]);
    let mut lost = BTreeSet::new();
    for _ in 0..3 {
        lost.insert(mute.lost().await);
    }
    assert_eq!(lost, held);
    running.stop(Duration::from_secs(10)).await;

    // What it lost has not given it credits: though it is alone now, it is given nothing.
    let late = submit(2).await;
    let seen = stats().await;
    assert_eq!((seen.ready, seen.reserved, seen.totals.acked), (2, 0, 10));

    // Jobs that nobody else takes are put aside after as many tries as they may have.
    for _ in 0..2 {
        mute.grant(2).await;
        let mut seen = BTreeSet::new();
        for _ in 0..2 {
            seen.insert(mute.job().await);
        }
        assert_eq!(seen, late);
        for _ in 0..2 {
            mute.lost().await;
        }
    }
    let question = Question::Dead { queue: queue.clone(), after: None, count: 10 };
    let Ok(Answer::Dead { jobs: dead, more: None }) = in_time(client.link().ask(question)).await else {
        panic!("the dead jobs")
    };
    let dead = dead.into_iter().map(|job| (job.id, job.attempts, job.counts.timeouts));
    assert_eq!(dead.collect::<Vec<_>>(), late.iter().map(|job| (*job, 2, 2)).collect::<Vec<_>>());
    let seen = stats().await;
    assert_eq!((seen.ready, seen.reserved, seen.totals.timed_out, seen.totals.dead), (0, 0, 7, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_held_is_free_when_its_stream_ends() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let gone = cluster.client();
    let job = in_time(client.submit("work", "x")).await.expect("a job");
    let session = SessionId::new(7);
    let mut events = in_time(gone.link().open_session(session)).await.expect("a session");
    let queues = vec![QueueName::new("work").expect("a name")];
    let credit = Op::Credit { session, queues: queues.clone(), credits: 1, replaces: true };
    in_time(gone.do_op(credit)).await.expect("a credit");
    in_time(events.recv()).await.expect("the job");
    // Dropping every handle ends the stream, with a goodbye.
    drop((gone, events));
    let taken = SessionId::new(8);
    in_time(client.link().open_session(taken)).await.expect("a session");
    let again = in_time(client.link().pull(taken, queues)).await.expect("the same job");
    assert_eq!((again.job, again.attempt), (job, 1), "a worker that goes does not cost a try");
    let (job, fence) = (again.job, again.fence);
    assert_eq!(in_time(client.do_op(Op::Ack { job, fence })).await, Ok(Reply::Done));
    let stale = in_time(client.do_op(Op::Ack { job, fence })).await;
    assert_eq!(stale, Err(ClientError::Call(CallError::Refused(Refusal::LeaseLost))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_does_not_wait_takes_what_is_there() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let session = SessionId::new(1);
    in_time(client.link().open_session(session)).await.expect("a session");
    let pull = || {
        let queues = vec![QueueName::new("work").expect("a name")];
        client.link().call(Op::Pull { session, queues, count: 1, ttr_ms: None })
    };
    assert_eq!(in_time(pull()).await, Ok(Reply::Pulled(Vec::new())));
    let job = in_time(client.submit("work", "x")).await.expect("a job");
    let Ok(Reply::Pulled(held)) = in_time(pull()).await else { panic!("the job") };
    assert_eq!(held.iter().map(|held| held.job).collect::<Vec<_>>(), [job]);
    assert_eq!(in_time(client.do_op(Op::Ack { job, fence: held[0].fence })).await, Ok(Reply::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_is_taken_back_loses_no_job() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let session = SessionId::new(1);
    in_time(client.link().open_session(session)).await.expect("a session");
    let queues = || vec![QueueName::new("work").expect("a name")];
    for round in 0..50 {
        // Some are taken back before the job comes, some after, some while it is on its way.
        let pull = client.link().pull(session, queues());
        let waited = tokio::time::timeout(Duration::from_micros(200 * round), pull);
        let (submitted, pulled) = tokio::join!(client.submit("work", "x"), waited);
        let submitted = submitted.expect("a job");
        let delivery = match pulled {
            Ok(delivery) => delivery.expect("a job"),
            Err(_) => in_time(client.link().pull(session, queues())).await.expect("the job"),
        };
        assert_eq!(delivery.job, submitted);
        let Reply::Done = in_time(client.do_op(Op::Ack { job: submitted, fence: delivery.fence }))
            .await
            .expect("it is ours")
        else {
            panic!("an ack is done")
        };
    }
    assert_eq!(in_time(client.overview()).await.expect("an overview").jobs, 0);
}
