//! The job queue as applications and operators meet it: three real processes of the `synod` binary, used through the client
//! library and the command line, told to leave, and given logs that rot.

#![allow(clippy::print_stderr, reason = "what was logged is shown with the test")]

#[path = "../harness/cluster.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod cluster;
mod full_disk;
#[path = "../harness/http.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod http;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use synod_core::jobs::{JobId, QueueName, SessionId, Submit};
use synod_queue::link::LinkConfig;
use synod_queue::{Client, Job, Worker};
use tokio::sync::Semaphore;

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

/// Waits until all groups have leaders and all nodes vote in them, and tells which leads the first.
fn until_whole(cluster: &TestCluster) -> usize {
    let count = cluster.places.len();
    eventually("the queue is whole", || {
        for index in 0..count {
            let queue = queue_of(cluster, index)?;
            let groups = queue["groups"].as_array().ok_or("no groups")?;
            let is_whole = |group: &Value| {
                let voters = group["voters"].as_array().map_or(0, Vec::len);
                group["leader"].is_string() && group["serves"] == true && voters == count
            };
            if groups.iter().all(is_whole) && groups[0]["leads"] == true {
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
fn the_life_of_a_job_tells_which_nodes_led() {
    let mut cluster = started();
    let runtime = runtime();
    let client = runtime.block_on(async { client(&cluster) });
    let first = until_whole(&cluster);
    let job = runtime.block_on(client.submit("mail", "x")).expect("a job");
    cluster.signal(first, "TERM");
    assert!(cluster.until_ended(first).success(), "{}", cluster.log(first));
    // The next leader gives it out, and hears that it is done.
    let api = api(&cluster, (first + 1) % 3);
    let worked =
        cluster.synod(&["queue", "work", "mail", "--count", "1", "--api", &api, "--", "true"]).status;
    assert!(worked.success());
    let (_, second) = eventually("somebody leads", || {
        let queue = queue_of(&cluster, (first + 1) % 3)?;
        let leader = queue["groups"][0]["leader"].as_str().ok_or("nobody leads")?.to_owned();
        Ok((queue, leader))
    });
    let first = cluster.places[first].name.clone();
    assert_ne!(first, second);
    let explain = |more: &[&str]| {
        let output = cluster.synod(&[&["explain", "job", &job.to_string(), "--api", &api], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let life = explain(&[]);
    for (node, what) in [(&first, "submitted"), (&second, "given out"), (&second, "done")] {
        let line = life.lines().find(|line| line.contains(&format!("  {what}"))).expect("an event");
        assert!(line.contains(&format!("  {node}  ")), "{what} is not of {node}: {life}");
    }
    let life: Value = serde_json::from_str(&explain(&["--json"])).expect("JSON");
    assert_eq!(life["nodes"], json!([first, second, second]));
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
fn workers_are_seen_with_their_credits_and_what_they_hold() {
    let cluster = started();
    let leader = until_whole(&cluster);
    let api = api(&cluster, leader);
    let runtime = runtime();
    let _entered = runtime.enter();
    let seeds = client(&cluster).link().seeds().to_vec();
    let sender = Client::new(LinkConfig { name: "mail sender".to_owned(), ..LinkConfig::new(seeds) });
    // It takes three jobs at a time, and has two that take their time.
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let worker =
        Worker::new(&sender).queue("mail").expect("a name").queue("post").expect("a name").concurrency(3);
    let running = worker.start(move |_: Job| {
        let gate = Arc::clone(&opened);
        async move { drop(gate.acquire().await) }
    });
    let running = runtime.block_on(running).expect("a worker");
    for _ in 0..2 {
        runtime.block_on(sender.submit("mail", "x")).expect("a job");
    }
    let stats = |after: &[&str]| -> Value {
        let output = cluster.synod(&[&["queue", "stats", "--json", "--api", &api], after].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let stats: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        stats["groups"][0]["workers"].clone()
    };
    let session = running.session().get();
    assert_eq!(
        stats(&[]),
        json!({
            "sessions": 1, "credits": 1, "granted": 3, "inflight": 2, "after": null,
            "page": [{
                "name": "mail sender", "session": session, "credits": 1, "granted": 3, "inflight": 2,
                "watching": ["mail", "post"], "watching_count": 2,
            }],
        })
    );
    let text = String::from_utf8(cluster.synod(&["queue", "stats", "--api", &api]).stdout).expect("text");
    let line = text.lines().find(|line| line.starts_with(&session.to_string())).expect("the worker");
    assert!(line.contains("mail sender") && line.contains(" 1/3 ") && line.ends_with("mail,post"), "{text}");
    let metrics = cluster.get(leader, "/metrics").expect("metrics").body;
    let of_worker = format!("{{group=\"0\",session=\"{session}\",worker=\"mail sender\"}}");
    for line in [
        "synod_queue_sessions{group=\"0\"} 1",
        "synod_queue_credits{group=\"0\",state=\"free\"} 1",
        "synod_queue_credits{group=\"0\",state=\"used\"} 2",
        &format!("synod_queue_worker_credits{of_worker} 1"),
        &format!("synod_queue_worker_granted{of_worker} 3"),
        &format!("synod_queue_worker_inflight{of_worker} 2"),
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    // And on the event stream, whose events are counted.
    eventually("the queues are told in numbers", || {
        let metrics = cluster.get(leader, "/metrics").expect("metrics").body;
        let is_told =
            metrics.contains("synod_events_total{family=\"storage\",kind=\"queues\",result=\"ok\"}");
        is_told.then_some(()).ok_or(metrics)
    });

    // Of very many some are shown at a time, and the rest when it is asked for.
    let others = client(&cluster);
    for number in 1..=150 {
        let opened = others.link().open_session(SessionId::new(number));
        runtime.block_on(opened).expect("a session");
    }
    let first = stats(&[]);
    assert_eq!((&first["sessions"], first["page"].as_array().map(Vec::len)), (&json!(151), Some(100)));
    assert_eq!(first["after"], 100);
    let rest = stats(&["--after", "100"]);
    assert_eq!((rest["page"].as_array().map(Vec::len), &rest["after"]), (Some(51), &Value::Null));
    assert!(rest["page"][0]["name"].is_null(), "it has no name");
    let nonsense = cluster.get(leader, "/v1/queue?after=x").expect("an answer");
    assert_eq!(nonsense.status, 400, "{}", nonsense.body);

    gate.add_permits(2);
    runtime.block_on(running.stop(Duration::from_secs(10)));
    drop(others);
    eventually("they are gone", || match stats(&[]) {
        gone if gone["sessions"] == 0 => Ok(()),
        left => Err(left.to_string()),
    });
}

#[test]
fn groups_of_the_configuration_are_used_by_their_number() {
    let layout = Layout::patient();
    let places = TestCluster::new(&layout).places.clone();
    let mut cluster = TestCluster::at(&layout, places, "queue: {groups: 2}\n");
    cluster.start_all();
    until_whole(&cluster);
    let api = api(&cluster, 0);
    let asked = |arguments: &[&str]| cluster.synod(&[arguments, &["--api", &api]].concat());
    let told = |arguments: &[&str]| {
        let output = asked(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let job = told(&["queue", "submit", "mail", "hello", "--group", "1"]).trim().to_owned();
    assert_eq!(JobId::new(job.parse().expect("a number")).group(), 1);
    assert!(told(&["queue", "peek", "mail", "--group", "1"]).ends_with("hello\n"));
    assert!(!asked(&["queue", "peek", "mail"]).status.success(), "the first group has no such job");
    let stats: Value = serde_json::from_str(&told(&["queue", "stats", "--json"])).expect("JSON");
    let queues = |group: usize| stats["groups"][group]["queues"].as_array().map_or(0, Vec::len);
    assert_eq!((queues(0), queues(1)), (0, 1));
    let work = ["queue", "work", "mail", "--count", "1", "--group", "1", "--api", &api, "--", "cat"];
    assert_eq!(String::from_utf8_lossy(&cluster.synod(&work).stdout), "hello");
    assert!(told(&["explain", "job", &job]).contains("is done"), "the number of a job tells its group");

    let elsewhere = JobId::in_group(7, 1).to_string();
    for (arguments, group) in
        [(&["queue", "submit", "mail", "x", "--group", "2"][..], 2), (&["explain", "job", &elsewhere], 7)]
    {
        let output = asked(arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(&format!("there is no group {group}; there are 2, from 0 on")), "{told}");
    }
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
        let stranger = LinkConfig {
            patience: Duration::from_millis(500),
            ..LinkConfig::new([format!("127.0.0.1:{}", cluster.api(0).port() + 1)])
        };
        Client::new(stranger).submit("work", "x").await
    });
    assert!(refused.is_err());
}
