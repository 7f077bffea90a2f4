//! What clients send ahead, what they do not read, and how many there may be.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use synod_core::jobs::JobLimits;
use synod_queue::access::CallError;
use synod_queue::beanstalk::BeanstalkConfig;
use tokio::time::timeout;

use crate::{Gated, Gateway};

#[tokio::test(start_paused = true)]
async fn what_is_sent_ahead_is_answered_in_order() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    let (mut input, mut wanted) = (String::new(), Vec::new());
    for round in 0..200 {
        let (first, second) = (2 * round + 1, 2 * round + 2);
        // Each command sees what those before it have done, even about the same job.
        write!(
            input,
            "use t{round}\r\nput 0 0 60 1\r\na\r\nput 1 0 60 1\r\nb\r\nwatch t{round}\r\npeek-ready\r\nreserve\r\n\
             touch {first}\r\nrelease {first} 5 0\r\ntouch {first}\r\nreserve\r\ndelete {second}\r\nnonsense\r\n\
             delete {second}\r\nreserve\r\nbury {first} 0\r\nkick-job {first}\r\ndelete {first}\r\nignore t{round}\r\n"
        )
        .unwrap();
        wanted.extend([
            format!("USING t{round}"),
            format!("INSERTED {first}"),
            format!("INSERTED {second}"),
            "WATCHING 2".to_owned(),
            format!("FOUND {first} 1 a"),
            format!("RESERVED {first} 1 a"),
            "TOUCHED".to_owned(),
            "RELEASED".to_owned(),
            "NOT_FOUND".to_owned(),
            format!("RESERVED {second} 1 b"),
            "DELETED".to_owned(),
            "UNKNOWN_COMMAND".to_owned(),
            "NOT_FOUND".to_owned(),
            format!("RESERVED {first} 1 a"),
            "BURIED".to_owned(),
            "KICKED".to_owned(),
            "DELETED".to_owned(),
            "WATCHING 1".to_owned(),
        ]);
    }
    input.push_str("quit\r\n");
    client.send(&input).await;
    for (number, wanted) in wanted.iter().enumerate() {
        assert_eq!(client.reply().await, *wanted, "reply {number}");
    }
    assert_eq!(client.reply().await, "");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_after_quit() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client.send("put 0 0 60 1\r\nx\r\nquit\r\nput 0 0 60 1\r\nx\r\n").await;
    assert_eq!(client.reply().await, "INSERTED 1");
    assert_eq!(client.reply().await, "");
    assert_eq!(gateway.overview_jobs().await, 1);
}

#[tokio::test(start_paused = true)]
async fn commands_that_are_sent_ahead_are_under_way_together() {
    let queue = Gated::new(0, CallError::NoLeader);
    let config = BeanstalkConfig { commands_under_way_max: 10, ..BeanstalkConfig::default() };
    let gateway = Gateway::of(queue.clone(), config).await;
    let mut client = gateway.client().await;
    client.send("put 0 0 60 1\r\nx\r\n".repeat(25)).await;
    while queue.under_way.load(Ordering::Relaxed) < 10 {
        tokio::task::yield_now().await;
    }
    queue.gate.add_permits(1_000);
    for job in 1..=25 {
        assert_eq!(client.reply().await, format!("INSERTED {job}"));
    }
    assert_eq!(queue.most_under_way.load(Ordering::Relaxed), 10, "and no more than that");
}

#[tokio::test(start_paused = true)]
async fn commands_about_one_job_are_not_under_way_together() {
    let queue = Gated::new(2, CallError::NoLeader);
    let gateway = Gateway::of(queue.clone(), BeanstalkConfig::default()).await;
    let mut client = gateway.client().await;
    client.script(&[("put 0 0 60 1|a", "INSERTED 1"), ("put 0 0 60 1|b", "INSERTED 2")]).await;
    client.send("delete 1\r\nkick-job 1\r\ndelete 1\r\n").await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(queue.under_way.load(Ordering::Relaxed), 1);
    queue.gate.add_permits(1_000);
    for wanted in ["DELETED", "NOT_FOUND", "NOT_FOUND"] {
        assert_eq!(client.reply().await, wanted);
    }
    assert_eq!(queue.most_under_way.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn one_connection_more_than_there_may_be_is_closed() {
    let config = BeanstalkConfig { connections_max: 2, ..BeanstalkConfig::default() };
    let gateway = Gateway::with(JobLimits::default(), config).await;
    let (mut first, mut second) = (gateway.client().await, gateway.client().await);
    first.script(&[("use a", "USING a")]).await;
    second.script(&[("use a", "USING a")]).await;
    let mut third = gateway.client().await;
    assert_eq!(third.reply().await, "OUT_OF_MEMORY");
    assert_eq!(third.reply().await, "");
    // Once one has gone there is room again.
    assert_eq!(first.ask("quit").await, "");
    while second.stat("stats", "current-connections").await != "1" {
        tokio::task::yield_now().await;
    }
    let mut fourth = gateway.client().await;
    assert_eq!(fourth.ask("use a").await, "USING a");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_served() {
    let config = BeanstalkConfig { output_bytes_max: 1 << 10, ..BeanstalkConfig::default() };
    let gateway = Gateway::with(JobLimits::default(), config).await;
    let (mut greedy, mut client) = (gateway.client().await, gateway.client().await);
    let body = "x".repeat(1_000_000);
    assert_eq!(client.ask(&format!("put 0 0 60 1000000\r\n{body}")).await, "INSERTED 1");
    let asked = 200;
    greedy.send("peek 1\r\n".repeat(asked)).await;
    // The system takes a few replies that nobody reads, then nothing more is looked for, however often others are served.
    let (mut served, mut unchanged) = (0, 0);
    while unchanged < 200 {
        let now: usize = client.stat("stats", "cmd-peek").await.parse().unwrap();
        unchanged = if now == served && now > 0 { unchanged + 1 } else { 0 };
        served = now;
    }
    assert!(served < asked / 2, "{served}");
    // When it reads, all replies come.
    for _ in 0..asked {
        let reply = timeout(Duration::from_secs(30), greedy.reply()).await.unwrap();
        assert!(reply.starts_with("FOUND 1 1000000 xxx"), "{}", reply.len());
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_before_the_end_is_done() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client.send(["put 0 0 60 1\r\nx\r\n".repeat(1_000), "put 0 0 60 9\r\nhal".to_owned()].concat()).await;
    tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
    for job in 1..=1_000 {
        assert_eq!(client.reply().await, format!("INSERTED {job}"));
    }
    assert_eq!(client.reply().await, "");
    assert_eq!(gateway.overview_jobs().await, 1_000);
}
