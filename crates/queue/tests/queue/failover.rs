//! What holds when leaders come and go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use synod_core::jobs::{JobId, Op, QueueName, SessionId, Submit};
use synod_queue::access::{CallError, QueueAccess as _};
use synod_queue::link::{LinkConfig, SessionEvent};
use synod_queue::{BearerToken, Client, ClientError, Job, Worker};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::cluster::{Cluster, eventually, in_time, replicas_agree};

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
    replicas_agree(cluster, 0).await;
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
async fn a_client_that_is_there_before_the_nodes_waits_for_them() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let job = in_time(client.submit("work", "x")).await.expect("a job");
    for node in 0..3 {
        cluster.kill(node).await;
    }
    let config =
        LinkConfig { token: BearerToken::new(Some("client")), ..LinkConfig::new(client.link().seeds()) };
    let (early, asked) = (Client::new(config.clone()), client.clone());
    let submitting = tokio::spawn(async move { early.submit("work", "y").await });
    let asking = tokio::spawn(async move { asked.job(job).await });
    // One node is not enough, and says so.
    cluster.start_node(0).await;
    let impatient = LinkConfig { patience: Duration::from_millis(500), ..config };
    let refused = in_time(Client::new(impatient).submit("work", "z")).await;
    assert_eq!(refused, Err(ClientError::Call(CallError::NoLeader)));
    cluster.start_node(1).await;
    cluster.start_node(2).await;
    assert!(in_time(submitting).await.expect("no panic").is_ok());
    assert!(in_time(asking).await.expect("no panic").expect("an answer").is_some());
}

/// Says a line to a gateway of beanstalkd's protocol, and hears one.
async fn say(stream: &mut BufReader<TcpStream>, line: &str) -> String {
    stream.write_all(line.as_bytes()).await.expect("it listens");
    hear(stream).await
}

async fn hear(stream: &mut BufReader<TcpStream>) -> String {
    let mut reply = String::new();
    in_time(stream.read_line(&mut reply)).await.expect("it answers");
    reply.trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_beanstalkd_are_served_by_every_node_through_an_election() {
    let mut cluster = Cluster::with(3, |options| {
        options.beanstalk = Some("127.0.0.1:0".parse().expect("an address"));
    })
    .await;
    let leader = cluster.leader().await;
    let mut followers = Vec::new();
    for node in [(leader + 1) % 3, (leader + 2) % 3] {
        let node = cluster.nodes[node].as_ref().expect("it runs");
        let address = node.queue.beanstalk_address().expect("it listens");
        followers.push(BufReader::new(TcpStream::connect(address).await.expect("it listens")));
    }
    let [one, other] = &mut followers[..] else { panic!("two of them") };
    assert!(say(one, "put 0 0 60 1\r\na\r\n").await.starts_with("INSERTED "));
    let reserved = say(other, "reserve\r\n").await;
    assert!(reserved.starts_with("RESERVED "), "{reserved}");
    assert_eq!(hear(other).await, "a");
    let job = reserved.split(' ').nth(1).expect("a number").to_owned();
    // The leader dies, and neither of them is told anything but what it asked for.
    cluster.kill(leader).await;
    assert!(say(one, "put 0 0 60 1\r\nb\r\n").await.starts_with("INSERTED "));
    assert_eq!(say(other, &format!("delete {job}\r\n")).await, "DELETED", "it has kept what it held");
    assert!(say(other, "reserve\r\n").await.starts_with("RESERVED "));
    assert_eq!(hear(other).await, "b");
}

/// Tests are about what happens, not about how long it takes; this one is, as far as a busy machine lets.
#[tokio::test(flavor = "multi_thread")]
async fn within_a_second_of_the_death_of_a_leader_another_one_commits() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let mut took = Vec::new();
    for _ in 0..5 {
        let leader = cluster.leader().await;
        in_time(client.submit("work", "before")).await.expect("a job");
        let begun = Instant::now();
        let killing = cluster.kill(leader);
        let (submitted, ()) = tokio::join!(client.submit("work", "after"), killing);
        submitted.expect("a job");
        took.push(begun.elapsed());
        cluster.start_node(leader).await;
    }
    took.sort();
    assert!(took[2] < Duration::from_secs(1), "{took:?}");
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
