//! The job queue as applications and operators meet it: three real processes of the `synod` binary, used through the client
//! library and the command line, told to leave, and given logs that rot.

#![allow(clippy::print_stderr, reason = "what was logged is shown with the test")]

#[path = "../harness/cluster.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod cluster;
#[path = "../harness/http.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod http;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use synod_core::jobs::{QueueName, Submit};
use synod_queue::{Client, Job, Worker};

use cluster::{Layout, TestCluster, eventually};

fn started() -> TestCluster {
    let mut cluster = TestCluster::new(&Layout::patient());
    cluster.start_all();
    until_whole(&cluster);
    cluster
}

fn queue_of(cluster: &TestCluster, index: usize) -> Result<Value, String> {
    cluster.get(index, "/v1/queue")?.json()
}

/// Waits until one node leads and all of them vote, and tells which leads.
fn until_whole(cluster: &TestCluster) -> usize {
    let count = cluster.places.len();
    eventually("the queue is whole", || {
        for index in 0..count {
            let group = queue_of(cluster, index)?["groups"][0].clone();
            let voters = group["voters"].as_array().map_or(0, Vec::len);
            if group["leads"] == true && group["serves"] == true && voters == count {
                return Ok(index);
            }
        }
        Err("nobody leads all of them".to_owned())
    })
}

fn client(cluster: &TestCluster) -> Client {
    Client::connect(cluster.places.iter().map(|place| format!("{}:{}", place.api.ip(), place.api.port() + 1)))
}

fn api(cluster: &TestCluster, index: usize) -> String {
    format!("http://{}", cluster.api(index))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
}

#[test]
fn nodes_are_restarted_one_after_the_other_and_no_call_fails() {
    let mut cluster = started();
    let runtime = runtime();
    let client = runtime.block_on(async { client(&cluster) });
    let done = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&done);
    let worker = Worker::new(&client).queue("work").expect("a name").concurrency(16);
    let running = worker.start(move |_: Job| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    let running = runtime.block_on(running).expect("a worker");
    let is_over = Arc::new(AtomicBool::new(false));
    let submitting = runtime.spawn({
        let (client, is_over) = (client.clone(), Arc::clone(&is_over));
        async move {
            let queue = QueueName::new("work").expect("a name");
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let jobs = (0..10).map(|_| Submit::new(queue.clone(), "x"));
                for result in client.submit_all(jobs).await {
                    result.expect("no call fails");
                    count += 1;
                }
            }
            count
        }
    });
    for index in 0..3 {
        cluster.signal(index, "TERM");
        assert!(cluster.until_ended(index).success(), "{}", cluster.log(index));
        cluster.start(index);
        until_whole(&cluster);
    }
    is_over.store(true, Ordering::Relaxed);
    let submitted = runtime.block_on(submitting).expect("no panic");
    eventually("everything is done", || match done.load(Ordering::Relaxed) {
        count if count == submitted => Ok(()),
        count => Err(format!("{count} of {submitted}")),
    });
    runtime.block_on(running.stop(Duration::from_secs(10)));
    let overview = runtime.block_on(client.overview()).expect("an overview");
    assert_eq!((overview.jobs, overview.totals.worker_down, overview.totals.timed_out), (0, 0, 0));
}

#[test]
fn a_node_with_a_damaged_log_names_the_place_and_comes_back_without_it() {
    let mut cluster = started();
    let runtime = runtime();
    let client = runtime.block_on(async { client(&cluster) });
    for number in 0..50 {
        runtime.block_on(client.submit("work", format!("job {number}"))).expect("a job");
    }
    let victim = (until_whole(&cluster) + 1) % 3;
    cluster.signal(victim, "TERM");
    assert!(cluster.until_ended(victim).success(), "{}", cluster.log(victim));
    let log_dir = cluster.disk(victim).join("queue/log");
    let segment = fs::read_dir(&log_dir).expect("the log").map(|entry| entry.expect("an entry").path());
    let segment = segment.min().expect("a segment");
    let mut bytes = fs::read(&segment).expect("a segment");
    bytes[200] ^= 0x10;
    fs::write(&segment, bytes).expect("a segment");
    cluster.start(victim);
    assert!(!cluster.until_ended(victim).success());
    let told = cluster.log(victim);
    let file = segment.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(told.contains(file) && told.contains("damaged at byte"), "{told}");
    // Without its part of the queue it is somebody new, who learns everything from the others.
    fs::remove_dir_all(cluster.disk(victim).join("queue")).expect("it can be removed");
    cluster.start(victim);
    let leader = until_whole(&cluster);
    eventually("it has all jobs", || {
        let [own, leads] = [victim, leader].map(|index| queue_of(&cluster, index));
        let (own, leads) = (own?["groups"][0].clone(), leads?["groups"][0].clone());
        match own["queues"][0]["ready"] == 50 && own["digest"] == leads["digest"] {
            true => Ok(()),
            false => Err(format!("{} {}", own["queues"], own["digest"])),
        }
    });
}

#[test]
fn jobs_are_looked_after_from_the_command_line() {
    let cluster = started();
    let leader = until_whole(&cluster);
    let api = api(&cluster, (leader + 1) % 3);
    let told = |arguments: &[&str]| {
        let output = cluster.synod(&[arguments, &["--api", &api]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    told(&["queue", "create", "mail", "--max-attempts", "2"]);
    let job = told(&["queue", "submit", "mail", "hello"]).trim().to_owned();
    assert!(told(&["queue", "peek", "mail"]).ends_with("hello\n"));
    // It fails twice, and is put aside.
    let work = |command: &str, count: &str| {
        cluster.synod(&["queue", "work", "mail", "--count", count, "--api", &api, "--", "sh", "-c", command])
    };
    assert!(work("exit 1", "2").status.success());
    let life = told(&["explain", "job", &job]);
    assert!(life.contains("tried as often as it may be") && life.contains("given out"), "{life}");
    assert!(told(&["queue", "dlq", "list", "mail"]).contains(&job));
    assert_eq!(told(&["queue", "dlq", "redrive", "mail"]), "1 jobs are ready again\n");
    let output = work("cat; test $SYNOD_ATTEMPT = 1", "1");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello");
    assert!(told(&["explain", "job", &job]).contains("is done"));
    told(&["queue", "drain", "mail"]);
    let refused = cluster.synod(&["queue", "submit", "mail", "x", "--api", &api]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("takes no new jobs"));
    told(&["queue", "resume", "mail"]);
    told(&["queue", "pause", "mail"]);
    let stats: Value = serde_json::from_str(&told(&["queue", "stats", "--json"])).expect("JSON");
    let mail = &stats["groups"][0]["queues"][0];
    assert_eq!((&mail["name"], &mail["totals"]["acked"]), (&Value::from("mail"), &Value::from(1)));
    assert_eq!(mail["paused"], "until_resumed");
    let metrics = cluster.get(leader, "/metrics").expect("metrics").body;
    assert!(metrics.contains("synod_queue_events_total{group=\"0\",kind=\"dlq\"} 1"), "{metrics}");
}

#[test]
fn a_cluster_with_a_secret_serves_those_who_know_it() {
    let places = TestCluster::new(&Layout { nodes: 1, ..Layout::default() }).places.clone();
    let layout = Layout { nodes: 1, ..Layout::default() };
    let mut cluster = TestCluster::at(&layout, places, "secret_file: secret\n");
    let secret = cluster.synod(&["secret", "new"]).stdout;
    let file = cluster.dir.join("secret");
    fs::write(&file, secret).expect("a secret");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("permissions");
    cluster.start_all();
    let api = api(&cluster, 0);
    let stats = ["queue", "stats", "--json", "--api", &api, "--secret-file", "secret"];
    eventually("the queue serves", || {
        let told = String::from_utf8_lossy(&cluster.synod(&stats).stdout).into_owned();
        if told.contains("\"serves\": true") { Ok(()) } else { Err(told) }
    });
    let stranger = cluster.synod(&["queue", "stats", "--api", &api]);
    assert!(String::from_utf8_lossy(&stranger.stderr).contains("--secret-file"));
    let submit = ["queue", "submit", "work", "x", "--api", &api];
    let known = cluster.synod(&[&submit[..], &["--secret-file", "secret"]].concat());
    assert!(known.status.success(), "{}", String::from_utf8_lossy(&known.stderr));
    let runtime = runtime();
    let refused = runtime.block_on(async {
        let stranger = synod_queue::link::LinkConfig {
            patience: Duration::from_millis(500),
            ..synod_queue::link::LinkConfig::new([format!("127.0.0.1:{}", cluster.api(0).port() + 1)])
        };
        Client::new(stranger).submit("work", "x").await
    });
    assert!(refused.is_err());
}
