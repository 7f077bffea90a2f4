//! A desk in front of a disk that does not write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use synod_cluster::remote::BearerToken;
use synod_core::jobs::{GatewayId, JobLimits, Op, QueueName, SessionId, Submit};
use synod_log::sim_disk::SimDisk;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Desk, DeskConfig, ROOM_KIB};
use crate::jobs::Jobs;
use crate::journal::{Journal, JournalConfig};
use crate::raft::{Group, GroupConfig, GroupParts, NodeAddress, RaftService};

/// The desk of a lone node that leads.
async fn desk(disk: SimDisk, dir: &std::path::Path) -> Desk {
    let (journal, _) = Journal::open(JournalConfig::default(), disk).expect("the journal opens");
    let parts = GroupParts {
        group: 0,
        node: "node".into(),
        nodes: vec![NodeAddress { name: "node".into(), address: "127.0.0.1:1".into() }],
        dir: dir.into(),
        journal: Arc::new(journal),
        config: GroupConfig::default(),
        machine: Jobs::new(0, JobLimits::default()).expect("limits"),
        service: RaftService::new("cluster".into(), BearerToken::default()),
        channels: Arc::default(),
        is_new_cluster: true,
    };
    let group = Group::open(parts).await.expect("the replica opens");
    let mut lead = group.lead();
    let leads = timeout(PATIENCE, lead.wait_for(|lead| lead.is_own && lead.serves)).await;
    leads.expect("in time").expect("it goes on");
    Desk::start(group, DeskConfig::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_wait_when_the_disk_does_not_write_and_nothing_is_lost() {
    const STREAMS: u64 = 40;
    const JOBS: u64 = 4;
    let (disk, dir) = (SimDisk::new(), tempfile::tempdir().expect("there is a directory"));
    let desk = desk(disk.clone(), dir.path()).await;
    let mut admitted = Vec::new();
    for gateway in 1..=STREAMS {
        let (out, replies) = mpsc::unbounded_channel();
        let admission = desk.admit(GatewayId::new(gateway), "".into(), out).await.expect("it leads");
        admitted.push((admission, replies));
    }
    disk.hold_syncs(true);
    let (queue, taken) = (QueueName::new("work").expect("a name"), Arc::new(AtomicUsize::new(0)));
    let mut streams = JoinSet::new();
    for (admission, mut replies) in admitted {
        let (desk, queue, taken) = (desk.clone(), queue.clone(), Arc::clone(&taken));
        streams.spawn(async move {
            for sequence in 1..=JOBS {
                let submit = Op::Submit(Submit::new(queue.clone(), vec![0; 1 << 20]));
                assert!(desk.hand_in_commands(admission.stream, vec![(sequence, submit, Vec::new())]).await);
                taken.fetch_add(1, Ordering::Relaxed);
            }
            let mut outcomes = 0;
            while outcomes < JOBS {
                let response = timeout(PATIENCE, replies.recv()).await.expect("in time");
                outcomes += response.expect("the desk is there").expect("a response").outcomes.len() as u64;
            }
        });
    }
    // So much goes in that there is no room for one more.
    let filled = async {
        while desk.room.available_permits() >= 1 << 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, filled).await.expect("in time");
    let in_memory = taken.load(Ordering::Relaxed);
    // What waits, what the desk has taken at once, and what is being written.
    assert!(in_memory <= 2 * ROOM_KIB / (1 << 10) + 16, "{in_memory} MiB are in memory");
    disk.hold_syncs(false);
    while let Some(ended) = timeout(PATIENCE, streams.join_next()).await.expect("in time") {
        ended.expect("every command has its outcome");
    }
    let submitted = desk.group().read(|jobs| jobs.queue().job_count());
    assert_eq!(submitted as u64, STREAMS * JOBS);
    desk.group().stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_closed_leaves_nothing_behind_though_its_stream_stays() {
    let dir = tempfile::tempdir().expect("there is a directory");
    let desk = desk(SimDisk::new(), dir.path()).await;
    let (out, mut replies) = mpsc::unbounded_channel();
    let admission = desk.admit(GatewayId::new(1), "mail sender".into(), out).await.expect("it leads");
    let session = SessionId::new(7);
    let mut seen = Vec::new();
    for (sequence, op) in
        [(1, Op::SessionOpen { session, secret: 1 }), (2, Op::SessionClose { session }), (3, Op::Tick)]
    {
        assert!(desk.hand_in_commands(admission.stream, vec![(sequence, op, Vec::new())]).await);
        timeout(PATIENCE, replies.recv()).await.expect("in time").expect("it is there").expect("a response");
        seen.push(desk.faces().of(session));
    }
    assert_eq!(seen, [Some("mail sender".into()), None, None]);
    desk.group().stop().await;
}

const PATIENCE: Duration = Duration::from_secs(60);
