//! What holds when leaders come and go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use synod_core::jobs::{JobId, Op, QueueName, SessionId, Submit};
use synod_queue::access::QueueAccess as _;
use synod_queue::link::SessionEvent;
use synod_queue::{Client, Job, Worker};

use crate::cluster::{Cluster, eventually, in_time};

/// Submits without a pause until it is told to stop, and tells what was acknowledged.
async fn submit_all_the_time(client: Client, stop: Arc<Mutex<bool>>) -> Vec<JobId> {
    let queue = QueueName::new("work").expect("a name");
    let mut acknowledged = Vec::new();
    while !*stop.lock().expect("a lock") {
        let jobs = (0..20).map(|_| Submit::new(queue.clone(), "x"));
        for result in client.submit_all(jobs).await {
            acknowledged.push(result.expect("no call fails"));
        }
    }
    acknowledged
}

async fn rounds(cluster: &mut Cluster, is_graceful: bool) {
    cluster.leader().await;
    let client = cluster.client();
    let done = Arc::new(Mutex::new(BTreeMap::<JobId, u32>::new()));
    let noted = Arc::clone(&done);
    let worker = Worker::new(&client).queue("work").expect("a name").concurrency(32);
    let running = worker.start(move |job: Job| {
        *noted.lock().expect("a lock").entry(job.id).or_default() += 1;
        async {}
    });
    let running = in_time(running).await.expect("a worker");
    let stop = Arc::new(Mutex::new(false));
    let submitting = tokio::spawn(submit_all_the_time(client.clone(), Arc::clone(&stop)));
    for _ in 0..3 {
        let leader = cluster.leader().await;
        if is_graceful {
            assert!(cluster.leave(leader).await, "somebody else leads");
        } else {
            cluster.kill(leader).await;
        }
        // Goes on without the old leader.
        let before = done.lock().expect("a lock").len();
        eventually("more is done", || (done.lock().expect("a lock").len() > before + 100).then_some(()))
            .await;
        cluster.start_node(leader).await;
    }
    *stop.lock().expect("a lock") = true;
    let acknowledged = in_time(submitting).await.expect("no panic");
    eventually("everything is done", || {
        (done.lock().expect("a lock").len() >= acknowledged.len()).then_some(())
    })
    .await;
    running.stop(Duration::from_secs(10)).await;
    let done = done.lock().expect("a lock").clone();
    assert!(acknowledged.iter().all(|job| done.contains_key(job)), "nothing acknowledged is lost");
    assert_eq!(done.len(), acknowledged.len(), "nothing comes from nowhere");
    assert!(done.values().all(|times| *times == 1), "a worker keeps what it holds through an election");
    let overview = in_time(client.overview()).await.expect("an overview");
    assert_eq!((overview.jobs, overview.totals.worker_down), (0, 0));
    replicas_agree(cluster).await;
}

/// Waits until all replicas are as far as each other, and says that they have come to the same.
async fn replicas_agree(cluster: &Cluster) {
    let digests = eventually("all are as far", || {
        let nodes = cluster.nodes.iter().flatten();
        let digests: Vec<_> = nodes.map(|node| node.queue.groups()[0].digest).collect();
        digests.iter().all(|digest| digest.0 == digests[0].0).then_some(digests)
    });
    let digests = digests.await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_done_twice_when_leaders_are_killed() {
    let mut cluster = Cluster::start(3).await;
    rounds(&mut cluster, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_when_leaders_leave_one_after_the_other() {
    let mut cluster = Cluster::start(3).await;
    rounds(&mut cluster, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_nobody_comes_back_for_is_closed_after_a_grace() {
    let mut cluster = Cluster::with(3, |options| options.desk.grace = Duration::from_millis(500)).await;
    let leader = cluster.leader().await;
    let (client, worker) = (cluster.client(), cluster.client());
    let job = in_time(client.submit("work", "x")).await.expect("a job");
    let session = SessionId::new(5);
    let mut events = in_time(worker.link().open_session(session)).await.expect("a session");
    let queues = vec![QueueName::new("work").expect("a name")];
    let credit = Op::Credit { session, queues: queues.clone(), credits: 1, replaces: true };
    in_time(worker.do_op(credit)).await.expect("a credit");
    let Some(SessionEvent::Delivery(first)) = in_time(events.recv()).await else { panic!("the job") };
    // The worker and the leader go at once: nobody tells the new leader that the worker is gone.
    cluster.kill(leader).await;
    drop((worker, events));
    let taker = SessionId::new(6);
    in_time(client.link().open_session(taker)).await.expect("a session");
    let again = in_time(client.link().pull(taker, queues)).await.expect("the job");
    assert_eq!(again.job, job);
    assert!(again.fence > first.fence);
}
