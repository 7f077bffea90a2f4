//! Every reply that says no.

use std::sync::atomic::Ordering;
use std::time::Duration;

use synod_core::jobs::{ClientId, JobLimits, Op, QueueName, QueueSettings, Quota, SessionId};
use synod_queue::access::{CallError, QueueAccess};
use synod_queue::beanstalk::{BeanstalkConfig, BeanstalkError, BeanstalkServer};
use synod_queue::memory::MemoryQueue;
use tokio::time::Instant;

use crate::{Gated, Gateway};

#[tokio::test(start_paused = true)]
async fn what_is_no_command_is_refused_and_the_next_one_is_done() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client
        .script(&[
            ("", "UNKNOWN_COMMAND"),
            ("gibberish", "UNKNOWN_COMMAND"),
            ("put 1 2 3", "BAD_FORMAT"),
            ("delete x", "BAD_FORMAT"),
            (&"x".repeat(300), "BAD_FORMAT"),
            ("put 0 0 60 1|xyz", "EXPECTED_CRLF"),
        ])
        .await;
    // What is behind the two bytes that were no line end is the next line.
    assert_eq!(client.reply().await, "UNKNOWN_COMMAND");
    assert_eq!(client.ask("use a").await, "USING a");
    assert_eq!(client.stat("stats", "total-jobs").await, "0");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_long_is_refused_until_the_limit_is_raised() {
    let limits = JobLimits { body_bytes_max: 10, ..JobLimits::default() };
    let gateway = Gateway::with(limits.clone(), BeanstalkConfig::default()).await;
    let mut client = gateway.client().await;
    client
        .script(&[("put 0 0 60 11|12345678901", "JOB_TOO_BIG"), ("put 0 0 60 10|1234567890", "INSERTED 1")])
        .await;
    let raised = JobLimits { body_bytes_max: 11, ..limits };
    gateway.queue.call(Op::LimitsSet(Box::new(raised))).await.unwrap();
    // The node may believe in the old limit for ten seconds.
    assert_eq!(client.ask("reserve").await, "RESERVED 1 10 1234567890");
    assert_eq!(client.ask("reserve-with-timeout 11").await, "TIMED_OUT");
    client
        .script(&[("put 0 0 60 12|123456789012", "JOB_TOO_BIG"), ("put 0 0 60 11|12345678901", "INSERTED 2")])
        .await;
    // One that was lowered is the queue's to know.
    gateway
        .queue
        .call(Op::LimitsSet(Box::new(JobLimits { body_bytes_max: 1, ..limits_of(11) })))
        .await
        .unwrap();
    client.script(&[("put 0 0 60 2|12", "JOB_TOO_BIG"), ("put 0 0 60 1|1", "INSERTED 3")]).await;
}

fn limits_of(body_bytes_max: u32) -> JobLimits {
    JobLimits { body_bytes_max, ..JobLimits::default() }
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_drains_takes_no_jobs() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    assert_eq!(client.ask("put 0 0 60 1\r\nx").await, "INSERTED 1");
    gateway.queue.call(Op::Drain { queue: None }).await.unwrap();
    client.script(&[("put 0 0 60 1|x", "DRAINING"), ("reserve", "RESERVED 1 1 x")]).await;
    assert_eq!(client.stat("stats", "draining").await, "true");
    gateway.queue.call(Op::Resume { queue: None }).await.unwrap();
    assert_eq!(client.ask("put 0 0 60 1\r\nx").await, "INSERTED 2");
}

#[tokio::test(start_paused = true)]
async fn what_is_full_is_out_of_memory() {
    let limits = JobLimits { jobs_max: 2, sessions_max: 1, queues_max: 2, ..JobLimits::default() };
    let gateway = Gateway::with(limits, BeanstalkConfig::default()).await;
    let (mut client, mut other) = (gateway.client().await, gateway.client().await);
    let tube = QueueName::new("small").unwrap();
    let settings = Some(Box::new(QueueSettings { jobs_max: Some(1), ..QueueSettings::default() }));
    gateway.queue.call(Op::QueueSet { queue: tube, settings }).await.unwrap();
    client
        .script(&[
            ("use small", "USING small"),
            ("put 0 0 60 1|x", "INSERTED 1"),
            // The queue is full, then there are too many queues, then all are full.
            ("put 0 0 60 1|x", "OUT_OF_MEMORY"),
            ("use default", "USING default"),
            ("put 0 0 60 1|x", "INSERTED 2"),
            ("put 0 0 60 1|x", "OUT_OF_MEMORY"),
            ("delete 1", "DELETED"),
            ("use third", "USING third"),
            ("put 0 0 60 1|x", "OUT_OF_MEMORY"),
            ("reserve", "RESERVED 2 1 x"),
        ])
        .await;
    assert_eq!(other.ask("reserve-with-timeout 0").await, "OUT_OF_MEMORY", "there is no second session");
    assert_eq!(other.ask("reserve-job 2").await, "OUT_OF_MEMORY");
    gateway.queue.call(Op::QuotaSet { quota: Quota::Workers, max: Some(1) }).await.unwrap();
    assert_eq!(client.ask("reserve").await, "OUT_OF_MEMORY", "it holds as many as it may");
}

#[tokio::test(start_paused = true)]
async fn a_client_with_too_many_jobs_waits_for_a_while() {
    let config = BeanstalkConfig { client: ClientId::new(7), ..BeanstalkConfig::default() };
    let gateway = Gateway::with(JobLimits::default(), config).await;
    gateway.queue.call(Op::QuotaSet { quota: Quota::Client(ClientId::new(7)), max: Some(1) }).await.unwrap();
    let (mut client, mut other) = (gateway.client().await, gateway.client().await);
    assert_eq!(client.ask("put 0 0 60 1\r\nx").await, "INSERTED 1");
    let begun = Instant::now();
    assert_eq!(client.ask("put 0 0 60 1\r\nx").await, "OUT_OF_MEMORY");
    assert!((3..4).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    // One that is finished meanwhile makes room.
    client.send("put 0 0 60 1\r\nx\r\n").await;
    assert_eq!(other.ask("reserve-with-timeout 1").await, "RESERVED 1 1 x");
    assert_eq!(other.ask("delete 1").await, "DELETED");
    assert_eq!(client.reply().await, "INSERTED 2");
}

#[tokio::test(start_paused = true)]
async fn a_queue_without_a_leader_is_an_internal_error() {
    let queue = Gated::new(1_000, CallError::NoLeader);
    let gateway = Gateway::of(queue.clone(), BeanstalkConfig::default()).await;
    let mut client = gateway.client().await;
    client.script(&[("put 0 0 60 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    let lines = [
        "put 0 0 60 1\r\nx",
        "reserve",
        "reserve-with-timeout 0",
        "reserve-job 1",
        "touch 1",
        "release 1 0 0",
        "bury 1 0",
        "delete 1",
        "kick 1",
        "kick-job 1",
        "peek 1",
        "peek-ready",
        "stats",
        "stats-job 1",
        "stats-tube default",
        "list-tubes",
        "pause-tube default 1",
    ];
    for line in lines {
        queue.failures.store(1, Ordering::Relaxed);
        assert_eq!(client.ask(line).await, "INTERNAL_ERROR", "to {line:?}");
    }
    // What was not done for sure is still the client's to do.
    client.script(&[("touch 1", "TOUCHED"), ("delete 1", "DELETED")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_queue_is_asked_again() {
    let queue = Gated::new(1_000, CallError::Busy);
    let gateway = Gateway::of(queue.clone(), BeanstalkConfig::default()).await;
    let mut client = gateway.client().await;
    assert_eq!(client.ask("use a").await, "USING a");
    queue.failures.store(5, Ordering::Relaxed);
    assert_eq!(client.ask("put 0 0 60 1\r\nx").await, "INSERTED 1");
    queue.failures.store(usize::MAX, Ordering::Relaxed);
    assert_eq!(client.ask("put 0 0 60 1\r\nx").await, "OUT_OF_MEMORY");
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_session_was_closed_reserves_with_another() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client.script(&[("put 0 0 60 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    let session = session_of_job_1(&gateway.queue).await;
    gateway.queue.call(Op::SessionClose { session }).await.unwrap();
    client.script(&[("touch 1", "NOT_FOUND"), ("reserve", "RESERVED 1 1 x"), ("touch 1", "TOUCHED")]).await;
    assert_ne!(session_of_job_1(&gateway.queue).await, session);
}

async fn session_of_job_1(queue: &MemoryQueue) -> SessionId {
    use synod_core::jobs::{JobId, JobState};
    use synod_queue::access::{Answer, Question};
    match queue.ask(Question::Job { job: JobId::new(1), with_body: false }).await {
        Ok(Answer::Job(Some(job))) => match job.view.state {
            JobState::Reserved { session, .. } => session,
            state => panic!("{state:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_setting_out_of_its_range_is_named() {
    let queue = MemoryQueue::new(JobLimits::default()).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let wrong = [
        (BeanstalkConfig { connections_max: 0, ..BeanstalkConfig::default() }, "connections_max"),
        (
            BeanstalkConfig { commands_under_way_max: 0, ..BeanstalkConfig::default() },
            "commands_under_way_max",
        ),
        (BeanstalkConfig { output_bytes_max: 1, ..BeanstalkConfig::default() }, "output_bytes_max"),
        (
            BeanstalkConfig { over_cap_wait: Duration::from_secs(4_000), ..BeanstalkConfig::default() },
            "over_cap_wait",
        ),
    ];
    for (config, wanted) in wrong {
        match BeanstalkServer::bind(address, config, queue.clone()).await {
            Err(BeanstalkError::Config { field, .. }) => assert_eq!(field, wanted),
            other => panic!("{wanted}: {other:?}"),
        }
    }
    let taken = BeanstalkServer::bind(address, BeanstalkConfig::default(), queue.clone()).await.unwrap();
    let again = BeanstalkServer::bind(taken.local_addr(), BeanstalkConfig::default(), queue).await;
    assert!(matches!(again, Err(BeanstalkError::Bind { .. })), "{again:?}");
}
