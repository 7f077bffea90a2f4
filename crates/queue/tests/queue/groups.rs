//! Several groups over one log: each has a leader and jobs of its own.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_core::jobs::{JobId, QueueName, SessionId};
use synod_queue::access::{CallError, QueueAccess as _};
use synod_queue::{Client, ClientError, Job, Worker};

use crate::cluster::{Cluster, eventually, in_time, replicas_agree};

const GROUPS: u16 = 3;

async fn submit(client: &Client, count: u32) -> BTreeSet<JobId> {
    let mut jobs = BTreeSet::new();
    for number in 0..count {
        jobs.insert(in_time(client.submit("work", format!("{number}"))).await.expect("a job"));
    }
    jobs
}

/// How many jobs of a group wait.
async fn ready(client: &Client) -> u64 {
    let queues = in_time(client.queues()).await.expect("an answer");
    queues.iter().map(|queue| queue.ready).sum()
}

/// Does all jobs of a group, and tells which they were.
async fn work(client: &Client, count: usize) -> BTreeSet<JobId> {
    let done = Arc::new(Mutex::new(BTreeSet::new()));
    let noted = Arc::clone(&done);
    let worker = Worker::new(client).queue("work").expect("a name").concurrency(8);
    let running = worker.start(move |job: Job| {
        assert!(noted.lock().expect("a lock").insert(job.id), "each is done once");
        async {}
    });
    let running = in_time(running).await.expect("a worker");
    eventually("all are done", || (done.lock().expect("a lock").len() >= count).then_some(())).await;
    running.stop(Duration::from_secs(10)).await;
    let done = done.lock().expect("a lock");
    done.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_share_a_log_and_nothing_else() {
    let mut cluster = Cluster::with(3, |options| options.groups = GROUPS).await;
    let mut submitted = Vec::new();
    for group in 0..GROUPS {
        cluster.leader_of(group).await;
        let jobs = submit(&cluster.client_of(group), 5 + u32::from(group)).await;
        assert!(jobs.iter().all(|job| job.group() == group), "the number of a job tells its group");
        submitted.push(jobs);
    }
    for (group, jobs) in (0..GROUPS).zip(&submitted) {
        let (client, other) = (cluster.client_of(group), cluster.client_of((group + 1) % GROUPS));
        assert_eq!(ready(&client).await, jobs.len() as u64, "each has its own and no other");
        let job = *jobs.first().expect("a job");
        assert!(in_time(client.job(job)).await.expect("an answer").is_some());
        assert_eq!(in_time(other.job(job)).await.expect("an answer"), None);
    }

    // A node goes that leads one of them, and perhaps others.
    let gone = cluster.leader_of(1).await;
    cluster.kill(gone).await;
    for (group, jobs) in (0..GROUPS).zip(&mut submitted) {
        let client = cluster.client_of(group);
        assert_eq!(ready(&client).await, jobs.len() as u64, "what each had is there");
        jobs.extend(submit(&client, 3).await);
    }
    cluster.start_node(gone).await;

    // All of them go, and come back with what they had.
    for node in 0..3 {
        cluster.kill(node).await;
    }
    for node in 0..3 {
        cluster.start_node(node).await;
    }
    for (group, jobs) in (0..GROUPS).zip(&submitted) {
        cluster.leader_of(group).await;
        let client = cluster.client_of(group);
        assert_eq!(
            &work(&client, jobs.len()).await,
            jobs,
            "nothing is lost, and nothing comes from elsewhere"
        );
        assert_eq!(ready(&client).await, 0);
        replicas_agree(&cluster, group).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_not_there_is_named_to_whoever_asks_for_it() {
    let cluster = Cluster::with(1, |options| options.groups = GROUPS).await;
    cluster.leader().await;
    let client = cluster.client_of(GROUPS);
    let unknown = || ClientError::Call(CallError::GroupUnknown { group: GROUPS });
    assert_eq!(in_time(client.submit("work", "x")).await, Err(unknown()));
    assert_eq!(in_time(client.overview()).await, Err(unknown()));
    let worker = Worker::new(&client).queue("work").expect("a name").start(|_: Job| async {});
    assert_eq!(in_time(worker).await.map(drop), Err(unknown()));
    let queues = vec![QueueName::new("work").expect("a name")];
    let pulled = in_time(client.link().pull(SessionId::new(1), queues)).await;
    assert_eq!(pulled.map(drop), Err(CallError::GroupUnknown { group: GROUPS }));
    assert!(unknown().to_string().contains("no group 3"), "{}", unknown());
    // Those that are there know nothing of it.
    for group in 0..GROUPS {
        assert_eq!(in_time(cluster.client_of(group).overview()).await.expect("an overview").jobs, 0);
    }
}
