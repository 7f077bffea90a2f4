//! Reserving: who waits, for how long, and whose a job is.

use std::time::Duration;

use synod_core::jobs::JobState;
use synod_queue::access::{Answer, Question, QueueAccess};
use synod_queue::beanstalk::BeanstalkConfig;
use tokio::time::{Instant, advance};

use crate::Gateway;

/// Lets everybody do what they can do, without letting time pass.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_waits_for_a_job_and_nothing_of_it_is_done_meanwhile() {
    let gateway = Gateway::start().await;
    let (mut worker, mut client) = (gateway.client().await, gateway.client().await);
    worker.send("reserve\r\nput 0 0 60 3\r\nown\r\ndelete 1\r\n").await;
    while client.stat("stats", "current-waiting").await != "1" {
        settle().await;
    }
    assert_eq!(client.ask("peek-ready").await, "NOT_FOUND");
    assert_eq!(client.ask("put 0 0 60 1\r\nx").await, "INSERTED 1");
    assert_eq!(worker.reply().await, "RESERVED 1 1 x");
    assert_eq!(worker.reply().await, "INSERTED 2");
    assert_eq!(worker.reply().await, "DELETED");
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_the_client_said() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    let begun = Instant::now();
    assert_eq!(client.ask("reserve-with-timeout 12").await, "TIMED_OUT");
    assert_eq!(begun.elapsed().as_secs(), 12);
}

#[tokio::test(start_paused = true)]
async fn a_client_is_told_that_a_deadline_is_near() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    let begun = Instant::now();
    client.script(&[("put 0 0 5 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    // While it waits, the second before the deadline begins.
    assert_eq!(client.ask("reserve").await, "DEADLINE_SOON");
    assert_eq!(begun.elapsed().as_secs(), 4);
    // In that second it does not wait at all, but what is ready is given to it.
    assert_eq!(client.ask("reserve-with-timeout 9").await, "DEADLINE_SOON");
    client
        .script(&[
            ("reserve-with-timeout 0", "DEADLINE_SOON"),
            ("put 0 0 60 1|y", "INSERTED 2"),
            ("reserve", "RESERVED 2 1 y"),
            ("touch 1", "TOUCHED"),
        ])
        .await;
    assert_eq!(begun.elapsed().as_secs(), 4);
    assert_eq!(client.ask("reserve-with-timeout 2").await, "TIMED_OUT");
    assert_eq!(client.ask("delete 1").await, "DELETED");
    assert_eq!(client.ask("reserve-with-timeout 9").await, "TIMED_OUT");
}

#[tokio::test(start_paused = true)]
async fn a_lost_job_is_somebody_elses() {
    let gateway = Gateway::start().await;
    let (mut late, mut other) = (gateway.client().await, gateway.client().await);
    late.script(&[("put 0 0 2 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    let begun = Instant::now();
    assert_eq!(other.ask("reserve").await, "RESERVED 1 1 x");
    assert_eq!(begun.elapsed().as_secs(), 2);
    late.script(&[
        ("touch 1", "NOT_FOUND"),
        ("release 1 0 0", "NOT_FOUND"),
        ("bury 1 0", "NOT_FOUND"),
        ("delete 1", "NOT_FOUND"),
    ])
    .await;
    assert_eq!(other.stat("stats-job 1", "timeouts").await, "1");
    assert_eq!(other.stat("stats", "job-timeouts").await, "1");
    assert_eq!(other.ask("delete 1").await, "DELETED");
}

#[tokio::test(start_paused = true)]
async fn a_lost_job_that_waits_is_anybodys_to_delete() {
    let gateway = Gateway::start().await;
    let mut late = gateway.client().await;
    late.script(&[("put 0 0 2 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    advance(Duration::from_millis(2_500)).await;
    late.script(&[("touch 1", "NOT_FOUND"), ("delete 1", "DELETED"), ("delete 1", "NOT_FOUND")]).await;
}

#[tokio::test(start_paused = true)]
async fn only_its_holder_speaks_about_a_job() {
    let gateway = Gateway::start().await;
    let (mut holder, mut other) = (gateway.client().await, gateway.client().await);
    holder.script(&[("put 0 0 60 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    other
        .script(&[
            ("delete 1", "NOT_FOUND"),
            ("release 1 0 0", "NOT_FOUND"),
            ("bury 1 0", "NOT_FOUND"),
            ("touch 1", "NOT_FOUND"),
            ("kick-job 1", "NOT_FOUND"),
            ("peek 1", "FOUND 1 1 x"),
        ])
        .await;
    assert_eq!(holder.ask("release 1 0 0").await, "RELEASED");
    // Nobody holds it: anybody may delete it.
    assert_eq!(other.ask("delete 1").await, "DELETED");
}

#[tokio::test(start_paused = true)]
async fn what_a_client_held_is_given_back_when_it_goes() {
    let gateway = Gateway::start().await;
    let (mut one, mut other) = (gateway.client().await, gateway.client().await);
    one.script(&[("put 0 0 600 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    let begun = Instant::now();
    drop(one);
    assert_eq!(other.ask("reserve").await, "RESERVED 1 1 x");
    assert!(begun.elapsed() < Duration::from_secs(1), "it did not have to time out");
    assert_eq!(other.ask("quit").await, "");
    let mut third = gateway.client().await;
    assert_eq!(third.ask("reserve").await, "RESERVED 1 1 x");
    assert_eq!(third.stat("stats-job 1", "timeouts").await, "0");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_while_it_waits_takes_no_job_with_it() {
    let gateway = Gateway::start().await;
    let (mut gone, mut client) = (gateway.client().await, gateway.client().await);
    gone.send("reserve\r\n").await;
    while client.stat("stats", "current-waiting").await != "1" {
        settle().await;
    }
    let begun = Instant::now();
    drop(gone);
    while client.stat("stats", "current-connections").await != "1" {
        settle().await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "it was noticed at once");
    client.script(&[("put 0 0 60 1|x", "INSERTED 1"), ("reserve-with-timeout 0", "RESERVED 1 1 x")]).await;
    assert_eq!(client.stat("stats-job 1", "reserves").await, "1");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sent_too_much_ahead_is_noticed_when_it_goes() {
    let gateway = Gateway::start().await;
    let (mut gone, mut client) = (gateway.client().await, gateway.client().await);
    gone.send(["reserve\r\n".to_owned(), "list-tube-used\r\n".repeat(5_000)].concat()).await;
    while client.stat("stats", "current-waiting").await != "1" {
        settle().await;
    }
    drop(gone);
    // It is looked for once a second.
    assert_eq!(client.ask("reserve-with-timeout 3").await, "TIMED_OUT");
    assert_eq!(client.stat("stats", "current-connections").await, "1");
}

#[tokio::test(start_paused = true)]
async fn each_job_goes_to_one_of_those_who_wait() {
    let gateway = Gateway::start().await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        let mut worker = gateway.client().await;
        worker.send("reserve-with-timeout 5\r\n").await;
        workers.push(worker);
    }
    let mut client = gateway.client().await;
    while client.stat("stats", "current-waiting").await != "3" {
        settle().await;
    }
    client.script(&[("put 0 0 60 1|x", "INSERTED 1"), ("put 0 0 60 1|x", "INSERTED 2")]).await;
    let mut replies = Vec::new();
    for worker in &mut workers {
        replies.push(worker.reply().await);
    }
    replies.sort_unstable();
    assert_eq!(replies, ["RESERVED 1 1 x", "RESERVED 2 1 x", "TIMED_OUT"]);
}

#[tokio::test(start_paused = true)]
async fn stopping_gives_back_what_clients_hold_and_tells_them() {
    let gateway = Gateway::start().await;
    let (mut holder, mut waiting) = (gateway.client().await, gateway.client().await);
    holder.script(&[("put 0 0 60 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    waiting.send("reserve\r\n").await;
    while holder.stat("stats", "current-waiting").await != "1" {
        settle().await;
    }
    let Gateway { server, queue } = gateway;
    server.stop().await;
    assert_eq!(waiting.reply().await, "");
    assert_eq!(holder.reply().await, "");
    let Ok(Answer::Overview(overview)) = queue.ask(Question::Overview).await else { panic!("an overview") };
    assert_eq!((overview.sessions, overview.totals.worker_down), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_session_carries_the_number_of_its_node() {
    let config = BeanstalkConfig { node: 0xBEE, ..BeanstalkConfig::default() };
    let gateway = Gateway::with(synod_core::jobs::JobLimits::default(), config).await;
    let mut client = gateway.client().await;
    client.script(&[("put 0 0 60 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    let question = Question::Job { job: synod_core::jobs::JobId::new(1), with_body: false };
    let Ok(Answer::Job(Some(job))) = gateway.queue.ask(question).await else { panic!("a job") };
    let JobState::Reserved { session, .. } = job.view.state else { panic!("{:?}", job.view.state) };
    assert_eq!(session.get() >> 48, 0xBEE);
}
