//! Recordings of real runs: good ones are found good, and each kind of lie is found under the number of its promise.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use synod_core::jobs::check::{Expectations, Record, SubmitAnswer};
use synod_core::jobs::{Assignment, EventKind, Fence, Op, QueueName, SessionId, Submit};
use synod_log::FileDisk;
use synod_queue::journal::{EntryId, Journal, JournalConfig};
use synod_queue::link::{Link, SessionEvent};
use synod_queue::verify::{History, RecordedClient, RecordedSession, Recording, Replay, Report};
use synod_queue::verify::{hashed, replay, verify};

use crate::cluster::{Cluster, in_time};

/// A run in which nothing is wrong: jobs that are done, given back and asked about, and a leader that dies.
struct Run {
    /// Keeps the disks.
    _cluster: Cluster,
    dirs: Vec<PathBuf>,
    recording: Recording,
}

impl Run {
    async fn record(mut cluster: Cluster) -> Self {
        let leader = cluster.leader().await;
        let history = History::in_memory();
        let queue = QueueName::new("work").expect("a name");
        let client = RecordedClient::new(link(&cluster), history.clone());
        let mut session = session(&cluster, &history, 1).await;
        in_time(session.grant(vec![queue.clone()], 4)).await.expect("a grant");
        submit(&client, &queue, 0..40).await;
        work(&mut session, 40).await;
        look_at(&cluster, &history);
        cluster.kill(leader).await;
        submit(&client, &queue, 40..80).await;
        work(&mut session, 40).await;
        look_at(&cluster, &history);
        cluster.start_node(leader).await;
        cluster.leader().await;
        in_time(session.close()).await.expect("it is closed");
        look_at(&cluster, &history);
        drop(client);
        history.expect(Expectations { is_drained: true, has_listing: true, ..Expectations::default() });
        for node in 0..cluster.nodes.len() {
            cluster.kill(node).await;
        }
        let dirs: Vec<PathBuf> = (0..cluster.nodes.len()).map(|node| cluster.node_dir(node)).collect();
        Self { _cluster: cluster, dirs, recording: history.recording().expect("a recording") }
    }

    fn replays(&self) -> Vec<Replay> {
        replay(&self.dirs, 0, &hashed(&self.recording)).expect("logs that can be read")
    }

    fn report(&self) -> Report {
        verify(self.recording.clone(), self.replays())
    }
}

fn link(cluster: &Cluster) -> Link {
    cluster.client().link().clone()
}

async fn session(cluster: &Cluster, history: &History, number: u64) -> RecordedSession {
    let opened = RecordedSession::open(link(cluster), history.clone(), SessionId::new(number));
    in_time(opened).await.expect("a session")
}

async fn submit(client: &RecordedClient, queue: &QueueName, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let job = Submit { priority: number % 3, ..Submit::new(queue.clone(), format!("job {number}")) };
        in_time(client.submit(job)).await.expect("an answer").expect("a job");
    }
}

/// Does so many jobs. One in four is given back once.
async fn work(session: &mut RecordedSession, mut count: u32) {
    let hands = session.hands();
    while count > 0 {
        let SessionEvent::Delivery(delivery) = in_time(session.next()).await.expect("a link") else {
            continue;
        };
        let (job, fence) = (delivery.job, delivery.fence);
        if delivery.attempt == 1 && job.sequence() % 4 == 0 {
            let nack = Op::Nack { job, fence, delay_ms: Some(1), priority: None, returns_attempt: false };
            in_time(hands.call(nack)).await.expect("it is given back");
        } else {
            assert_eq!(in_time(hands.ack(Assignment { job, fence })).await, Some(true));
            count -= 1;
        }
    }
}

/// Writes down the states that the nodes are in.
fn look_at(cluster: &Cluster, history: &History) {
    for (replica, node) in (1..).zip(&cluster.nodes) {
        for view in node.iter().flat_map(|node| node.queue.groups()) {
            let (index, hash) = (view.digest.0, view.digest.1.into());
            history.saw(Record::Hash { replica, index, hash });
        }
    }
}

fn broken(report: &Report) -> BTreeSet<u8> {
    report.checked.findings.iter().map(synod_core::jobs::check::Finding::promise).collect()
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        match entry.path().is_dir() {
            true => copy_dir(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy")),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_run_is_found_good_and_lies_are_found() {
    let run = Run::record(Cluster::start(3).await).await;
    let before = contents(&run.dirs[0]);
    let report = run.report();
    assert!(report.is_clean(), "{report}");
    let seen = report.checked.seen;
    assert_eq!((seen.accepted, seen.jobs, seen.acks, seen.losses), (80, 80, 80, 20), "{report}");
    assert_eq!(seen.deliveries, 100, "{report}");
    assert!(seen.compared > 0, "{report}");
    assert_eq!(contents(&run.dirs[0]), before, "looking changes nothing");

    acknowledged_jobs_that_are_lost(&run);
    acks_that_did_not_hold(&run);
    deliveries_without_an_assignment(&run);
    states_that_differ(&run);
    jobs_that_nobody_submitted(&run);
}

/// As if no disk had synced: everybody's log ends early, after an acknowledged submit.
fn acknowledged_jobs_that_are_lost(run: &Run) {
    let enqueued = |record: &Record| match record {
        Record::Event { event, .. } if matches!(event.kind, EventKind::Enqueue(_)) => Some(event.index),
        _ => None,
    };
    let last = run.replays()[0].records.iter().filter_map(enqueued).max().expect("a submit");
    let copies = tempfile::tempdir().expect("a directory");
    let mut dirs = Vec::new();
    for (number, dir) in run.dirs.iter().enumerate() {
        let copy = copies.path().join(number.to_string());
        copy_dir(dir, &copy);
        let disk = FileDisk::open(copy.join("log")).expect("a disk");
        let (journal, _) = Journal::open(JournalConfig::default(), disk).expect("a journal");
        let before = journal.read(0, last - 1, last, usize::MAX).expect("entries");
        let kept: EntryId = before.first().expect("an entry").id;
        drop(journal.truncate_after(0, Some(kept)).expect("it is cut"));
        journal.close().expect("it is closed");
        dirs.push(copy);
    }
    let replays = replay(&dirs, 0, &BTreeSet::new()).expect("logs that can be read");
    let mut recording = run.recording.clone();
    recording.records.retain(|record| matches!(record, Record::Submit { .. }));
    let report = verify(recording, replays);
    let lost =
        report.checked.findings.iter().any(|finding| finding.to_string().contains("is not in the log"));
    assert!(lost && broken(&report).contains(&1), "{report}");
}

/// A worker whose assignment was over is told that its ack was taken; then the replicas take it, too.
fn acks_that_did_not_hold(run: &Run) {
    let mut recording = run.recording.clone();
    let first = |record: &Record| match record {
        Record::Delivery { session, job, fence, .. } if job.sequence() % 4 == 0 => {
            Some((*session, *job, *fence))
        }
        _ => None,
    };
    // Each of these jobs was given back, so that its first assignment is a stale one.
    let (session, job, fence) = recording.records.iter().find_map(first).expect("a delivery");
    recording.records.push(Record::Ack { session, job, fence, is_taken: Some(true) });
    let report = verify(recording, run.replays());
    assert_eq!(broken(&report), BTreeSet::from([3]), "{report}");

    let mut replays = run.replays();
    for record in replays.iter_mut().flat_map(|replay| &mut replay.records) {
        if let Record::Event { event, .. } = record
            && event.job == job
            && let EventKind::Ack { fence: taken, .. } = &mut event.kind
        {
            *taken = fence;
        }
    }
    let report = verify(run.recording.clone(), replays);
    assert_eq!(broken(&report), BTreeSet::from([3]), "{report}");
}

/// A worker gets a job by an assignment that is in no log.
fn deliveries_without_an_assignment(run: &Run) {
    let mut recording = run.recording.clone();
    let delivery = recording.records.iter_mut().find_map(|record| match record {
        Record::Delivery { fence, .. } => Some(fence),
        _ => None,
    });
    *delivery.expect("a delivery") = Fence::new(1 << 40);
    let report = verify(recording, run.replays());
    assert_eq!(broken(&report), BTreeSet::from([3]), "{report}");
}

fn states_that_differ(run: &Run) {
    let mut recording = run.recording.clone();
    let state = recording.records.iter_mut().find_map(|record| match record {
        Record::Hash { hash, .. } => Some(hash),
        _ => None,
    });
    *state.expect("a state") ^= 1;
    let report = verify(recording, run.replays());
    assert_eq!(broken(&report), BTreeSet::from([9]), "{report}");
}

fn jobs_that_nobody_submitted(run: &Run) {
    let mut recording = run.recording.clone();
    let submits =
        |record: &Record| matches!(record, Record::Submit { answer: SubmitAnswer::Accepted { .. }, .. });
    let place = recording.records.iter().position(submits).expect("a submit");
    recording.records.remove(place);
    let report = verify(recording, run.replays());
    assert_eq!(broken(&report), BTreeSet::from([2]), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_what_the_log_before_them_leads_to() {
    // Snapshots come often, and nothing before them is dropped.
    let cluster = Cluster::with(3, |options| {
        options.group.snapshot_log_bytes = 4 << 10;
        options.group.kept_log_bytes = 64 << 20;
    });
    let run = Run::record(cluster.await).await;
    let has_snapshot = |dir: &PathBuf| {
        let found = std::fs::read_dir(dir.join("group-0").join("snapshots"));
        found.is_ok_and(|mut found| found.next().is_some())
    };
    assert!(run.dirs.iter().any(has_snapshot), "there is a snapshot");
    let report = run.report();
    assert!(report.is_clean(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_beginning_only_states_are_compared() {
    let cluster = Cluster::with(3, |options| {
        options.group.snapshot_log_bytes = 4 << 10;
        options.group.kept_log_bytes = 0;
    });
    let run = Run::record(cluster.await).await;
    let replays = run.replays();
    // A replica that was away may have all of its log; the others have not.
    let purged: Vec<Replay> = replays.into_iter().filter(|replay| replay.first > 0).collect();
    assert!(!purged.is_empty(), "logs were purged");
    let report = verify(run.recording.clone(), purged);
    assert!(!report.is_whole && !report.is_clean(), "{report}");
    assert_eq!(broken(&report), BTreeSet::new(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_runs_cannot_be_replayed() {
    let cluster = Cluster::start(1).await;
    cluster.leader().await;
    replay(&[cluster.node_dir(0)], 0, &BTreeSet::new()).expect_err("it runs");
}

#[test]
fn a_recording_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("history");
    let history = History::create(&path).expect("a file");
    history.saw(Record::Hash { replica: 1, index: 2, hash: u128::MAX });
    history.saw(Record::Left { job: synod_core::jobs::JobId::new(3) });
    history.expect(Expectations {
        inflight_per_queue_max: [(QueueName::new("a").expect("a name"), 3)].into(),
        is_drained: true,
        ..Expectations::default()
    });
    let recording = history.recording().expect("it was written");
    assert_eq!(History::read(&path).expect("it can be read"), recording);
    // A recorder that died left half a line.
    let text = std::fs::read_to_string(&path).expect("a text");
    std::fs::write(&path, format!("{text}{{\"saw\":{{\"le")).expect("a file");
    assert_eq!(History::read(&path).expect("it can be read"), recording);
    std::fs::write(&path, format!("nonsense\n{text}")).expect("a file");
    History::read(&path).expect_err("nonsense");
}

fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => found.extend(contents(&path)),
            false => found.push((path.clone(), std::fs::read(&path).expect("a file"))),
        }
    }
    found.sort();
    found
}
