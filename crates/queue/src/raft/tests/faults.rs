//! What a replica refuses, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use openraft::StoredMembership;
use synod_cluster::remote::BearerToken;
use synod_log::sim_disk::SimDisk;
use synod_wire::raft as wire;
use tonic::Code;

use super::List;
use super::cluster::{CLUSTER, Cluster, GROUP, config, in_time, status_when};
use crate::journal::{Journal, JournalConfig};
use crate::raft::network::{Caller, OFFSET_PATH, STATUS_PATH, VOTE_PATH};
use crate::raft::types::log_id;
use crate::raft::{
    Group, GroupConfig, GroupParts, Machine as _, NodeAddress, ProposeError, RaftService, snapshot,
};

fn caller(cluster: &str, token: Option<&str>) -> Caller {
    Caller {
        channels: Arc::default(),
        cluster: cluster.into(),
        group: GROUP,
        token: BearerToken::new(token),
        heartbeat: Duration::from_millis(50),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_meant_for_somebody_else_are_refused() {
    let cluster = Cluster::start(1, config()).await;
    cluster.put("a").await;
    let status = cluster.group(0).status();
    let address = &cluster.addresses[0].address;
    let token = Some("of the cluster");
    // A vote that would be granted by whoever it is meant for.
    let ask = |caller: Caller, id: u64| async move {
        let vote = wire::Vote { term: 99, replica: 1, is_committed: false };
        let last = Some(wire::EntryId { term: 98, index: 1000 });
        let question =
            wire::VoteRequest { target: Some(caller.target(id)), vote: Some(vote), last, is_transfer: true };
        let patience = Duration::from_secs(10);
        let reply: Result<wire::VoteReply, _> = caller.ask(address, VOTE_PATH, question, patience).await;
        reply.map(|reply| reply.is_granted).map_err(|status| status.code())
    };
    let own = status.own.id;
    assert_eq!(ask(caller(CLUSTER, None), own).await, Err(Code::Unauthenticated));
    assert_eq!(ask(caller(CLUSTER, Some("of the clusteR")), own).await, Err(Code::Unauthenticated));
    assert_eq!(ask(caller("another", token), own).await, Err(Code::FailedPrecondition));
    assert_eq!(ask(caller(CLUSTER, token), own + 1).await, Err(Code::FailedPrecondition));
    assert_eq!(ask(caller(CLUSTER, token), 0).await, Err(Code::FailedPrecondition));
    let other_group = Caller { group: GROUP + 1, ..caller(CLUSTER, token) };
    assert_eq!(ask(other_group, own).await, Err(Code::Unavailable));
    assert_eq!(cluster.group(0).status().term, status.term, "nothing was looked at");

    // The same call to the right one is heard.
    assert_eq!(ask(caller(CLUSTER, token), own).await, Ok(true));
    let question = wire::StatusRequest { target: Some(caller(CLUSTER, token).target(0)) };
    let answer: wire::StatusReply = caller(CLUSTER, token)
        .ask(address, STATUS_PATH, question, Duration::from_secs(10))
        .await
        .expect("it answers");
    assert!(answer.is_member);
    assert_eq!(answer.replica.map(|replica| replica.id), Some(own));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_the_outcome_is_not_known() {
    let config = GroupConfig { propose_timeout: Duration::from_secs(2), ..config() };
    let mut cluster = Cluster::start(3, config).await;
    cluster.complete().await;
    let leader = cluster.leader().await;
    cluster.kill((leader + 1) % 3).await;
    cluster.kill((leader + 2) % 3).await;
    let outcome = cluster.group(leader).propose("x".into()).await.expect("it runs").await;
    assert!(matches!(outcome, Err(ProposeError::Unknown | ProposeError::NotLeader { .. })), "{outcome:?}");
    // By now nobody has confirmed its lease for a while: it refuses at once.
    let outcome = cluster.group(leader).propose("y".into()).await.expect("it runs").await;
    assert!(matches!(outcome, Err(ProposeError::NotLeader { .. })), "{outcome:?}");
    assert!(cluster.group(leader).confirm().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_is_too_large_is_refused() {
    let cluster = Cluster::start(1, config()).await;
    cluster.put("a").await;
    let refused = cluster.group(0).propose(vec![0; 9 << 20].into()).await.map(drop);
    assert!(matches!(refused, Err(ProposeError::TooLarge { .. })), "{refused:?}");
    let largest = vec![1; 8 << 20];
    assert_eq!(cluster.put(largest).await.output, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_cannot_go_on_ends_the_replica() {
    let cluster = Cluster::start(1, config()).await;
    cluster.put("a").await;
    let proposed = cluster.group(0).propose("poison".into()).await.expect("it runs");
    let reason = in_time("the end", cluster.group(0).ended()).await;
    assert!(reason.contains("the machine cannot go on"), "{reason}");
    assert_eq!(proposed.await, Err(ProposeError::Unknown));
    assert_eq!(cluster.group(0).propose("b".into()).await.map(drop), Err(ProposeError::Stopped));
    assert!(!cluster.group(0).lead().borrow().is_own);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_not_founded_while_others_are_silent_and_does_not_serve_on_one_disk() {
    let mut cluster = Cluster::new(3, config()).await;
    cluster.start_node(0).await;
    cluster.start_node(1).await;
    // Two of three: the third might belong to a group. Nobody has founded one when it comes.
    let mut lead = cluster.group(0).lead();
    let founded =
        tokio::time::timeout(Duration::from_secs(2), lead.wait_for(|lead| lead.leader.is_some())).await;
    assert!(founded.is_err(), "{founded:?}");
    cluster.start_node(2).await;
    let mut lead = cluster.group(0).lead();
    let alone = in_time("the founder", lead.wait_for(|lead| lead.is_own)).await.expect("it goes on").clone();
    if alone.serves {
        assert!(cluster.group(0).status().voters.len() >= 2);
    }
    cluster.complete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_goes_on_where_it_was_interrupted_and_a_wrong_one_is_not_used() {
    // A snapshot of another machine, as a leader would have it.
    let dir = tempfile::tempdir().expect("there is a directory");
    let mut list = List::default();
    for index in 0..50 {
        list.apply(index, &vec![3; 1000].into(), false).expect("it can be applied");
    }
    let last = log_id(crate::journal::EntryId { term: 7, index: 50 });
    let members = StoredMembership::default();
    let path = snapshot::write::<List>(dir.path(), GROUP, Some(&last), &members, list.clone())
        .expect("it is written");
    let name = snapshot::open(&path, GROUP).expect("it is sound").0.name(Some(&last));
    let bytes = std::fs::read(&path).expect("it can be read");

    let mut cluster = Cluster::new(3, config()).await;
    cluster.start_node(1).await;
    let (caller, own) = (caller(CLUSTER, Some("of the cluster")), cluster.group(1).status().own.id);
    let address = &cluster.addresses[1].address;
    let offset = async |name: &wire::SnapshotName| {
        let question = wire::OffsetRequest { target: Some(caller.target(own)), name: Some(*name) };
        let answer = caller.ask(address, OFFSET_PATH, question, Duration::from_secs(10)).await;
        answer.map(|reply: wire::OffsetReply| reply.offset).expect("it answers")
    };
    let send = async |name: &wire::SnapshotName, offset: u64, data: &[u8]| {
        let vote = Some(wire::Vote { term: 7, replica: 1, is_committed: true });
        let target = Some(caller.target(own));
        let first = wire::InstallRequest { target, vote, name: Some(*name), offset, data: Bytes::new() };
        let chunks = data.chunks(10_000).map(|data| wire::InstallRequest {
            data: Bytes::copy_from_slice(data),
            ..wire::InstallRequest::default()
        });
        let chunks: Vec<_> = std::iter::once(first).chain(chunks).collect();
        in_time("an answer", caller.install(address, tokio_stream::iter(chunks)))
            .await
            .map_err(|status| status.code())
    };

    // It breaks in the middle, and what has arrived is kept, also by a new leader's question.
    assert_eq!(offset(&name).await, 0);
    assert_eq!(send(&name, 0, &bytes[..20_000]).await, Err(Code::Aborted));
    assert_eq!(offset(&name).await, 20_000);
    assert_eq!(send(&name, 10_000, &bytes[10_000..]).await, Err(Code::FailedPrecondition));
    // The rest is not what it should be: nothing of it is used, and it begins anew.
    let mut wrong = bytes.clone();
    wrong[30_000] ^= 1;
    assert_eq!(send(&name, 20_000, &wrong[20_000..]).await, Err(Code::DataLoss));
    assert_eq!(cluster.group(1).read(List::clone), List::default());
    assert_eq!(offset(&name).await, 0);
    // Too much of it is no better.
    assert_eq!(send(&name, 0, &[bytes.as_slice(), b"more"].concat()).await, Err(Code::InvalidArgument));
    assert_eq!(send(&name, 0, &bytes[..30_000]).await, Err(Code::Aborted));
    assert_eq!(send(&name, 30_000, &bytes[30_000..]).await.map(drop), Ok(()));
    assert_eq!(cluster.group(1).read(List::clone), list);
    // Another one takes the place of what is here of this one.
    let other = wire::SnapshotName { checksum: name.checksum ^ 1, ..name };
    assert_eq!(offset(&other).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_snapshot_is_named_and_not_used() {
    let config = GroupConfig { snapshot_log_bytes: 8 << 10, kept_log_bytes: 0, ..config() };
    let mut cluster = Cluster::start(1, config).await;
    for number in 0..20 {
        cluster.put(vec![number; 1000]).await;
    }
    status_when(cluster.group(0), |status| status.purged.is_some()).await;
    cluster.kill(0).await;
    let snapshots = cluster.dir(0).join("group/snapshots");
    let file = std::fs::read_dir(&snapshots)
        .expect("it is there")
        .next()
        .expect("there is one")
        .expect("it is there");
    let mut bytes = std::fs::read(file.path()).expect("it can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file.path(), bytes).expect("it can be written");
    let error = cluster.try_start_node(0).await.expect_err("it is damaged").to_string();
    assert!(error.contains(&file.path().display().to_string()) && error.contains("checksum"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_before_it_is_durable() {
    let (disk, dir) = (SimDisk::new(), tempfile::tempdir().expect("there is a directory"));
    let (journal, _) = Journal::open(JournalConfig::default(), disk.clone()).expect("the journal opens");
    let parts = GroupParts {
        group: GROUP,
        node: "node".into(),
        nodes: vec![NodeAddress { name: "node".into(), address: "127.0.0.1:1".into() }],
        dir: dir.path().into(),
        journal: Arc::new(journal),
        config: config(),
        machine: List::default(),
        service: RaftService::new(CLUSTER.into(), BearerToken::default()),
        channels: Arc::default(),
        is_new_cluster: true,
    };
    let group = Group::open(parts).await.expect("the replica opens");
    let mut lead = group.lead();
    in_time("a leader", lead.wait_for(|lead| lead.is_own && lead.serves)).await.expect("it goes on");

    disk.hold_syncs(true);
    let mut proposed = group.propose("a".into()).await.expect("it runs");
    let held = tokio::task::spawn_blocking({
        let disk = disk.clone();
        move || disk.await_held_sync()
    });
    held.await.expect("nobody panics");
    let early = (&mut proposed).now_or_never();
    let applied = group.read(|list| list.items.len());
    disk.hold_syncs(false);
    assert_eq!((early, applied), (None, 0));
    assert_eq!(in_time("an answer", proposed).await.map(|applied| applied.output), Ok(1));

    // When the disk fails, it is over, and nobody is told that it went well.
    disk.fail_one_sync_after(0);
    let outcome = in_time("an answer", group.propose("b".into()).await.expect("it runs")).await;
    assert_eq!(outcome, Err(ProposeError::Unknown));
    let reason = in_time("the end", group.ended()).await;
    assert!(reason.contains("cannot sync"), "{reason}");
}

/// Has the group write until a node ends: a log has some room of its own before it needs more.
async fn until_ended(cluster: &Cluster, node: usize, acknowledged: &mut Vec<u64>) -> String {
    let writing = async {
        loop {
            acknowledged.push(cluster.put(vec![0; 64 << 10]).await.index);
        }
    };
    let ended = async {
        tokio::select! {
            reason = cluster.group(node).ended() => reason,
            () = writing => unreachable!("it goes on and on"),
        }
    };
    in_time("the end", ended).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_disk_is_full_ends_with_the_cause_and_comes_back_when_there_is_room() {
    let mut cluster = Cluster::new(3, config()).await;
    let disks: Vec<SimDisk> = (0..3).map(|_| SimDisk::new()).collect();
    for (node, disk) in disks.iter().enumerate() {
        cluster.put_log_on(node, disk.clone());
        cluster.start_node(node).await;
    }
    cluster.complete().await;
    let mut acknowledged = Vec::new();
    // The leader first, then somebody who follows.
    for (round, distance) in [0, 1].into_iter().enumerate() {
        acknowledged.push(cluster.put(format!("{round}: room")).await.index);
        let victim = (cluster.leader().await + distance) % 3;
        disks[victim].fill(true);
        let cause = std::io::Error::from(std::io::ErrorKind::StorageFull).to_string();
        let reason = until_ended(&cluster, victim, &mut acknowledged).await;
        assert!(reason.contains("cannot write") && reason.contains(&cause), "{reason}");
        assert_eq!(cluster.group(victim).propose("x".into()).await.map(drop), Err(ProposeError::Stopped));
        cluster.kill(victim).await;
        // The others go on without it.
        acknowledged.push(cluster.put(format!("{round}: without it")).await.index);

        // While there is no room it does not begin, and says why.
        let refused = Journal::open(JournalConfig::default(), disks[victim].clone()).map(drop);
        let refused = refused.expect_err("there is no room").to_string();
        assert!(refused.contains("cannot write") && refused.contains(&cause), "{refused}");

        // With room it is as if nothing had been.
        disks[victim].fill(false);
        cluster.start_node(victim).await;
        let last = cluster.put(format!("{round}: room again")).await.index;
        acknowledged.push(last);
        let list = cluster.settle(last).await;
        let indexes: Vec<u64> = list.items.iter().map(|(index, _)| *index).collect();
        assert!(acknowledged.iter().all(|index| indexes.contains(index)), "{acknowledged:?} {indexes:?}");
        cluster.complete().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_has_come_to_something_else_ends_and_the_others_go_on() {
    let cluster = Cluster::start(3, config()).await;
    cluster.complete().await;
    let last = cluster.put("a").await.index;
    cluster.settle(last).await;
    let leader = cluster.leader().await;
    let odd = (leader + 1) % 3;
    // Its memory rots.
    cluster.group(odd).inner().shared.machine().sum ^= 1;
    let reason = in_time("the end", cluster.group(odd).ended()).await;
    assert!(reason.contains(&format!("after entry {last} the state of this replica differs")), "{reason}");
    assert_eq!(cluster.group(odd).propose("x".into()).await.map(drop), Err(ProposeError::Stopped));
    let last = cluster.put("b").await.index;
    for node in [leader, (leader + 2) % 3] {
        status_when(cluster.group(node), |status| status.applied >= Some(last)).await;
    }
}
