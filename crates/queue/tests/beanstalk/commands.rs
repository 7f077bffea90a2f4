//! Every command, as it is meant to be used.

use std::time::Duration;

use tokio::time::{Instant, advance};

use crate::Gateway;

#[tokio::test(start_paused = true)]
async fn a_job_is_put_reserved_and_deleted() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client
        .script(&[
            ("put 0 0 60 5|hello", "INSERTED 1"),
            ("put 0 0 60 0|", "INSERTED 2"),
            ("reserve", "RESERVED 1 5 hello"),
            ("reserve", "RESERVED 2 0 "),
            ("delete 1", "DELETED"),
            ("delete 1", "NOT_FOUND"),
            ("peek 1", "NOT_FOUND"),
            ("stats-job 1", "NOT_FOUND"),
            ("delete 2", "DELETED"),
            ("reserve-with-timeout 0", "TIMED_OUT"),
        ])
        .await;
    assert_eq!(gateway.overview_jobs().await, 0);
    gateway.server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn any_bytes_are_a_body() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    let body: Vec<u8> = (0..=255).chain(*b"\r\nquit\r\n").collect();
    client
        .send([format!("put 0 0 60 {}\r\n", body.len()).as_bytes(), &body, b"\r\nreserve\r\n"].concat())
        .await;
    assert_eq!(client.reply().await, "INSERTED 1");
    assert_eq!(client.reply().await, format!("RESERVED 1 {} {}", body.len(), String::from_utf8_lossy(&body)));
}

#[tokio::test(start_paused = true)]
async fn smaller_priorities_go_first_and_equal_ones_in_order() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    for priority in [5, u32::MAX, 0, 5, 0] {
        client.send(format!("put {priority} 0 60 1\r\nx\r\n")).await;
        client.reply().await;
    }
    for job in [3, 5, 1, 4, 2] {
        assert_eq!(client.ask("reserve").await, format!("RESERVED {job} 1 x"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_delayed_job_waits_for_its_time() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    let begun = Instant::now();
    client
        .script(&[
            ("put 0 3 60 1|x", "INSERTED 1"),
            ("peek-delayed", "FOUND 1 1 x"),
            ("peek-ready", "NOT_FOUND"),
            ("reserve-with-timeout 1", "TIMED_OUT"),
            ("reserve-with-timeout 5", "RESERVED 1 1 x"),
        ])
        .await;
    assert_eq!(begun.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_job_is_released_with_a_priority_and_a_delay() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client
        .script(&[
            ("put 5 0 60 1|a", "INSERTED 1"),
            ("put 5 0 60 1|b", "INSERTED 2"),
            ("reserve", "RESERVED 1 1 a"),
            ("release 1 9 0", "RELEASED"),
            ("release 1 9 0", "NOT_FOUND"),
            ("reserve", "RESERVED 2 1 b"),
            ("release 2 1 30", "RELEASED"),
            ("reserve", "RESERVED 1 1 a"),
        ])
        .await;
    for (key, value) in
        [("state", "delayed"), ("pri", "1"), ("delay", "30"), ("time-left", "29"), ("releases", "1")]
    {
        assert_eq!(client.stat("stats-job 2", key).await, value, "{key}");
    }
    assert_eq!(client.ask("reserve-with-timeout 40").await, "RESERVED 2 1 b");
}

#[tokio::test(start_paused = true)]
async fn a_buried_job_is_kicked() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client
        .script(&[
            ("put 5 0 60 1|a", "INSERTED 1"),
            ("put 5 0 60 1|b", "INSERTED 2"),
            ("put 5 99 60 1|c", "INSERTED 3"),
            ("reserve", "RESERVED 1 1 a"),
            ("reserve", "RESERVED 2 1 b"),
            ("bury 2 7", "BURIED"),
            ("bury 1 8", "BURIED"),
            ("bury 1 8", "NOT_FOUND"),
            ("peek-buried", "FOUND 2 1 b"),
            ("reserve-with-timeout 0", "TIMED_OUT"),
            // The buried ones, the longest buried first; the delayed one is left where it is.
            ("kick 1", "KICKED 1"),
            ("peek-ready", "FOUND 2 1 b"),
            ("kick-job 2", "NOT_FOUND"),
            ("kick-job 1", "KICKED"),
            ("peek-buried", "NOT_FOUND"),
            // Without any, the delayed ones.
            ("kick 10", "KICKED 1"),
            ("kick 10", "KICKED 0"),
            ("use empty", "USING empty"),
            ("kick 10", "KICKED 0"),
            ("reserve", "RESERVED 3 1 c"),
            ("reserve", "RESERVED 2 1 b"),
            ("reserve", "RESERVED 1 1 a"),
            ("peek 1", "FOUND 1 1 a"),
        ])
        .await;
    for (key, value) in
        [("state", "reserved"), ("pri", "8"), ("buries", "1"), ("kicks", "1"), ("reserves", "2")]
    {
        assert_eq!(client.stat("stats-job 1", key).await, value, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_is_reserved_by_its_number() {
    let gateway = Gateway::start().await;
    let (mut one, mut other) = (gateway.client().await, gateway.client().await);
    one.script(&[
        ("put 5 0 60 1|a", "INSERTED 1"),
        ("put 5 99 60 1|b", "INSERTED 2"),
        ("reserve-job 2", "RESERVED 2 1 b"),
        ("reserve-job 2", "NOT_FOUND"),
        ("reserve-job 3", "NOT_FOUND"),
        ("bury 2 0", "BURIED"),
        ("reserve-job 2", "RESERVED 2 1 b"),
    ])
    .await;
    assert_eq!(other.ask("reserve-job 2").await, "NOT_FOUND");
    assert_eq!(other.ask("reserve-job 1").await, "RESERVED 1 1 a");
    assert_eq!(one.ask("delete 2").await, "DELETED");
}

#[tokio::test(start_paused = true)]
async fn tubes_are_used_watched_and_ignored() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client
        .script(&[
            ("list-tube-used", "USING default"),
            ("list-tubes-watched", "OK 14 ---\n- default\n"),
            ("use b", "USING b"),
            ("list-tube-used", "USING b"),
            ("put 1 0 60 1|b", "INSERTED 1"),
            ("use a", "USING a"),
            ("put 2 0 60 1|a", "INSERTED 2"),
            ("reserve-with-timeout 0", "TIMED_OUT"),
            ("watch a", "WATCHING 2"),
            ("watch b", "WATCHING 3"),
            ("watch b", "WATCHING 3"),
            ("ignore nothing", "WATCHING 3"),
            ("list-tubes-watched", "OK 22 ---\n- default\n- a\n- b\n"),
            ("ignore default", "WATCHING 2"),
            ("reserve", "RESERVED 1 1 b"),
            ("ignore b", "WATCHING 1"),
            ("ignore a", "NOT_IGNORED"),
            ("reserve", "RESERVED 2 1 a"),
            ("list-tubes", "OK 22 ---\n- default\n- a\n- b\n"),
        ])
        .await;
    // A tube is there while it has jobs, or while somebody uses or watches it.
    let mut other = gateway.client().await;
    other.script(&[("delete 1", "NOT_FOUND"), ("use c", "USING c")]).await;
    assert_eq!(client.ask("delete 1").await, "DELETED");
    assert_eq!(client.ask("list-tubes").await, "OK 22 ---\n- default\n- a\n- c\n");
    assert_eq!(client.ask("stats-tube b").await, "NOT_FOUND");
    assert_eq!(client.stat("stats-tube c", "current-using").await, "1");
    assert_eq!(other.ask("use default").await, "USING default");
    assert_eq!(client.ask("stats-tube c").await, "NOT_FOUND");
}

#[tokio::test(start_paused = true)]
async fn a_paused_tube_gives_out_nothing() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    let begun = Instant::now();
    client
        .script(&[
            ("pause-tube nothing 1", "NOT_FOUND"),
            // Tubes that nobody has put anything into, but that are there.
            ("pause-tube default 7", "PAUSED"),
            ("put 0 0 60 1|x", "INSERTED 1"),
            ("peek-ready", "FOUND 1 1 x"),
        ])
        .await;
    for (key, value) in
        [("pause", "7"), ("pause-time-left", "6"), ("cmd-pause-tube", "1"), ("current-jobs-ready", "1")]
    {
        assert_eq!(client.stat("stats-tube default", key).await, value, "{key}");
    }
    client.script(&[("reserve-with-timeout 2", "TIMED_OUT"), ("reserve", "RESERVED 1 1 x")]).await;
    assert_eq!(begun.elapsed().as_secs(), 7);
    client
        .script(&[
            ("watch w", "WATCHING 2"),
            ("pause-tube w 100", "PAUSED"),
            ("use w", "USING w"),
            ("put 0 0 60 1|y", "INSERTED 2"),
            ("reserve-with-timeout 0", "TIMED_OUT"),
            ("pause-tube w 0", "PAUSED"),
            ("reserve-with-timeout 0", "RESERVED 2 1 y"),
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_touched_job_has_all_its_time_again() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client.script(&[("put 0 0 5 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    for _ in 0..3 {
        advance(Duration::from_secs(4)).await;
        assert_eq!(client.ask("touch 1").await, "TOUCHED");
        assert_eq!(client.stat("stats-job 1", "time-left").await, "4");
    }
    assert_eq!(client.ask("touch 2").await, "NOT_FOUND");
    assert_eq!(client.stat("stats-job 1", "timeouts").await, "0");
}

#[tokio::test(start_paused = true)]
async fn no_time_to_run_is_one_second() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client.script(&[("put 0 0 0 1|x", "INSERTED 1"), ("reserve", "RESERVED 1 1 x")]).await;
    assert_eq!(client.stat("stats-job 1", "ttr").await, "1");
    advance(Duration::from_millis(1_001)).await;
    assert_eq!(client.stat("stats-job 1", "timeouts").await, "1");
}

#[tokio::test(start_paused = true)]
async fn statistics_have_the_keys_of_beanstalkd_in_its_order() {
    let gateway = Gateway::start().await;
    let mut client = gateway.client().await;
    client
        .script(&[
            ("put 0 0 9 1|x", "INSERTED 1"),
            ("put 0 9 9 1|x", "INSERTED 2"),
            ("put 0 0 9 1|x", "INSERTED 3"),
            ("reserve", "RESERVED 1 1 x"),
            ("bury 1 0", "BURIED"),
            ("reserve-with-timeout 0", "RESERVED 3 1 x"),
            ("delete 2", "DELETED"),
            ("put 0 9 9 1|x", "INSERTED 4"),
            ("put 0 0 9 1|x", "INSERTED 5"),
            ("put 0 0 9 1|xyz", "EXPECTED_CRLF"),
        ])
        .await;
    assert_eq!(client.reply().await, "UNKNOWN_COMMAND");
    let keys = |yaml: &str| -> Vec<String> {
        yaml.lines().filter_map(|line| line.split_once(": ")).map(|(key, _)| key.to_owned()).collect()
    };
    // As beanstalkd 1.12 has them.
    let wanted = "current-jobs-urgent current-jobs-ready current-jobs-reserved current-jobs-delayed current-jobs-buried \
        cmd-put cmd-peek cmd-peek-ready cmd-peek-delayed cmd-peek-buried cmd-reserve cmd-reserve-with-timeout cmd-delete \
        cmd-release cmd-use cmd-watch cmd-ignore cmd-bury cmd-kick cmd-touch cmd-stats cmd-stats-job cmd-stats-tube \
        cmd-list-tubes cmd-list-tube-used cmd-list-tubes-watched cmd-pause-tube job-timeouts total-jobs max-job-size \
        current-tubes current-connections current-producers current-workers current-waiting total-connections pid version \
        rusage-utime rusage-stime uptime binlog-oldest-index binlog-current-index binlog-records-migrated \
        binlog-records-written binlog-max-size draining id hostname os platform";
    assert_eq!(keys(&client.ask("stats").await), wanted.split(' ').collect::<Vec<_>>());
    let wanted = "name current-jobs-urgent current-jobs-ready current-jobs-reserved current-jobs-delayed \
        current-jobs-buried total-jobs current-using current-watching current-waiting cmd-delete cmd-pause-tube pause \
        pause-time-left";
    assert_eq!(keys(&client.ask("stats-tube default").await), wanted.split(' ').collect::<Vec<_>>());
    let wanted = "id tube state pri age delay ttr time-left file reserves timeouts releases buries kicks";
    assert_eq!(keys(&client.ask("stats-job 1").await), wanted.split(' ').collect::<Vec<_>>());

    let values = [
        ("current-jobs-ready", "1"),
        ("current-jobs-reserved", "1"),
        ("current-jobs-delayed", "1"),
        ("current-jobs-buried", "1"),
        ("cmd-put", "6"),
        ("cmd-reserve", "1"),
        ("cmd-reserve-with-timeout", "1"),
        ("cmd-delete", "1"),
        ("cmd-bury", "1"),
        ("cmd-stats-job", "1"),
        ("total-jobs", "5"),
        ("max-job-size", "1048576"),
        ("current-tubes", "1"),
        ("current-connections", "1"),
        ("current-producers", "1"),
        ("current-workers", "1"),
        ("current-waiting", "0"),
        ("draining", "false"),
    ];
    for (key, value) in values {
        assert_eq!(client.stat("stats", key).await, value, "{key}");
    }
    // Another client that waits is counted, and one that is gone is not.
    let mut other = gateway.client().await;
    other.script(&[("watch w", "WATCHING 2"), ("ignore default", "WATCHING 1")]).await;
    other.send("reserve\r\n").await;
    for (key, value) in [("current-waiting", "1"), ("current-connections", "2"), ("current-workers", "2")] {
        assert_eq!(client.stat("stats", key).await, value, "{key}");
    }
    assert_eq!(client.stat("stats-tube w", "current-waiting").await, "1");
    drop(other);
    while client.stat("stats", "current-connections").await != "1" {
        tokio::task::yield_now().await;
    }
    for (key, value) in [("current-waiting", "0"), ("total-connections", "2"), ("current-workers", "1")] {
        assert_eq!(client.stat("stats", key).await, value, "{key}");
    }
}
