//! When there is an election, and when there is none.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::Instant as _;
use synod_wire::raft as wire;
use tokio_stream::StreamExt as _;
use tonic::Request;
use tonic_prost::ProstCodec;

use super::cluster::{CLUSTER, Cluster, GROUP, config, in_time, status_when};
use crate::raft::network::APPEND_PATH;
use crate::raft::{GroupConfig, GroupStatus};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_heard_of_is_not_replaced_and_being_heard_of_writes_nothing() {
    let config = GroupConfig { election_ms: 700..1_400, heartbeat_ms: 60, ..config() };
    let silence = Duration::from_millis(config.election_ms.end) * 2;
    let cluster = Cluster::start(3, config).await;
    cluster.complete().await;
    let last = cluster.put("a").await.index;
    cluster.settle(last).await;
    let leader = cluster.leader().await;
    let term = cluster.group(leader).status().term;
    // Nothing is said but that it is there, for longer than any follower waits.
    let begun = tokio::time::Instant::now();
    let heard_for_long = async {
        loop {
            let beats = cluster.group(leader).inner().metrics().heartbeat.unwrap_or_default();
            let late = beats.values().flatten().filter(|at| at.elapsed() + silence < begun.elapsed());
            if late.count() >= 2 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    in_time("beats", heard_for_long).await;
    for node in cluster.running() {
        let status = cluster.group(node).status();
        assert_eq!((status.term, status.last), (term, Some(last)), "node {node}");
        assert_eq!(
            status.leader.map(|leader| leader.address),
            Some(cluster.addresses[leader].address.clone())
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_cut_off_deposes_nobody_when_it_is_back() {
    let mut cluster = Cluster::start(3, config()).await;
    cluster.complete().await;
    let last = cluster.put("a").await.index;
    cluster.settle(last).await;
    let leader = cluster.leader().await;
    let (term, away) = (cluster.group(leader).status().term, (leader + 1) % 3);
    cluster.cut(away).await;
    // It asks the two others, again and again, whether they would vote for it.
    let stood = async {
        while cluster.lost_calls(away) < 6 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time("elections of its own", stood).await;
    cluster.put("b").await;
    cluster.mend(away).await;
    let last = cluster.put("c").await.index;
    assert_eq!(cluster.settle(last).await.items.len(), 3);
    for node in cluster.running() {
        assert_eq!(cluster.group(node).status().term, term, "nobody was elected anew");
    }
    assert_eq!(cluster.leader().await, leader);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_handed_the_lead_does_not_wait_for_silence() {
    // Whoever waited would wait for longer than this test.
    let config = GroupConfig { election_ms: 50_000..60_000, heartbeat_ms: 60, ..config() };
    let cluster = Cluster::start(3, config).await;
    cluster.complete().await;
    let mut took = Vec::new();
    for round in 0..10 {
        let last = cluster.put(format!("{round}")).await.index;
        cluster.settle(last).await;
        let leader = cluster.leader().await;
        let begun = std::time::Instant::now();
        assert!(cluster.group(leader).hand_over(Duration::from_secs(20)).await);
        assert_ne!(cluster.leader().await, leader);
        took.push(begun.elapsed());
    }
    // A busy machine may take its time, but not always.
    assert!(took.iter().min() < Some(&Duration::from_millis(50)), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_begins_with_an_entry_of_its_own() {
    let mut cluster = Cluster::start(3, config()).await;
    cluster.complete().await;
    let last = cluster.put("a").await.index;
    cluster.settle(last).await;
    cluster.kill(cluster.leader().await).await;
    let leader = cluster.leader().await;
    let applied = cluster.group(leader).inner().metrics().last_applied.expect("something is applied");
    assert_eq!(applied.leader_id.term, cluster.group(leader).status().term);
    assert!(applied.index > last, "nobody proposed it, and what was there before is committed with it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_away_for_a_short_time_gets_the_entries_and_no_snapshot() {
    let config = GroupConfig { snapshot_log_bytes: 32 << 10, kept_log_bytes: 96 << 10, ..config() };
    let mut cluster = Cluster::start(3, config).await;
    cluster.complete().await;
    let mut last = cluster.put("before").await.index;
    cluster.settle(last).await;
    let (before, away) = (last, (cluster.leader().await + 1) % 3);
    cluster.kill(away).await;
    let leader = cluster.leader().await;
    // What is behind a snapshot is looked at before the next one is taken: after the second it would be gone.
    for count in [40, 45] {
        for number in 0..count {
            cluster.put(vec![number; 1000]).await;
        }
        let is_new = |status: &GroupStatus| status.snapshot > Some(last);
        last = status_when(cluster.group(leader), is_new).await.snapshot.expect("there is one");
    }
    let purged = cluster.group(leader).status().purged;
    assert!(purged < Some(before), "{purged:?}");
    cluster.start_node(away).await;
    let last = cluster.put("after").await.index;
    assert_eq!(cluster.settle(last).await.items.len(), 87);
    let status = cluster.group(away).status();
    assert_eq!(status.purged, None, "its log is whole: {status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_much_stays_behind_a_snapshot_however_much_is_written() {
    let config = GroupConfig { snapshot_log_bytes: 8 << 10, kept_log_bytes: 16 << 10, ..config() };
    let cluster = Cluster::start(1, config).await;
    let (mut snapshots, mut is_purged) = (BTreeSet::new(), false);
    while snapshots.len() < 5 || !is_purged {
        cluster.put(vec![7; 1000]).await;
        let status = cluster.group(0).status();
        is_purged |= status.purged.is_some();
        snapshots.extend(status.snapshot);
        let kept = status.log_bytes + 2_000;
        assert!(status.purged.is_none() || kept >= 16 << 10, "{} bytes are left", status.log_bytes);
    }
}

/// What a leader says is in its messages, and nowhere else: whoever says the same is followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_says_who_leads_what_comes_before_what_comes_and_what_is_committed() {
    let mut cluster = Cluster::new(3, config()).await;
    cluster.start_node(1).await;
    let status = cluster.group(1).status();
    let address = &cluster.addresses[1].address;
    let target = Some(wire::Target { cluster: CLUSTER.into(), group: GROUP.into(), id: status.own.id });
    let vote = Some(wire::Vote { term: 7, replica: 99, is_committed: true });
    let id = |term, index| Some(wire::EntryId { term, index });
    let entry = |index, body: &str| wire::Entry {
        term: 7,
        index,
        kind: 1,
        body: bytes::Bytes::copy_from_slice(body.as_bytes()),
    };
    let members = {
        let replica = |id, node: &str| wire::Replica { id, node: node.into(), address: node.into() };
        let replicas = vec![replica(99, "leader"), replica(status.own.id, "own")];
        wire::Membership { voters: vec![wire::Voters { ids: vec![99, status.own.id] }], replicas }
    };
    let members =
        wire::Entry { term: 7, index: 0, kind: 2, body: prost::Message::encode_to_vec(&members).into() };
    let say = async |requests: Vec<wire::AppendRequest>| {
        let channel = crate::Channels::default().to(address, |endpoint| endpoint).expect("an address");
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.expect("it listens");
        let mut request = Request::new(tokio_stream::iter(requests));
        let token = "Bearer of the cluster".parse().expect("a header");
        request.metadata_mut().insert("authorization", token);
        let codec = ProstCodec::<wire::AppendRequest, wire::AppendReply>::default();
        let path = http::uri::PathAndQuery::from_static(APPEND_PATH);
        let replies = grpc.streaming(request, path, codec).await.expect("it answers").into_inner();
        let replies: Vec<_> = replies.collect().await;
        replies
            .into_iter()
            .map(|reply| reply.expect("a reply").outcome.expect("an outcome"))
            .collect::<Vec<_>>()
    };
    let first = wire::AppendRequest {
        target: target.clone(),
        vote,
        previous: None,
        entries: vec![members, entry(1, "a"), entry(2, "b")],
        committed: id(7, 1),
    };
    let beat = wire::AppendRequest { previous: id(7, 2), entries: Vec::new(), target: None, ..first.clone() };
    let matching = |index| wire::append_reply::Outcome::Matching(wire::Matching { id: id(7, index) });
    assert_eq!(in_time("answers", say(vec![first.clone(), beat])).await, [matching(2), matching(2)]);
    let status = status_when(cluster.group(1), |status| status.applied == Some(1)).await;
    assert_eq!((status.term, status.last), (7, Some(2)), "what is not committed is not applied");

    // One that does not follow what is there is refused with the place, and one of an older leader with the newer vote.
    let gap = wire::AppendRequest { previous: id(7, 9), entries: vec![entry(10, "j")], ..first.clone() };
    let outcomes = in_time("answers", say(vec![gap])).await;
    assert!(matches!(outcomes[..], [wire::append_reply::Outcome::Conflict(_)]), "{outcomes:?}");
    let old = wire::Vote { term: 6, replica: 98, is_committed: true };
    let late =
        wire::AppendRequest { vote: Some(old), previous: id(7, 2), entries: vec![entry(3, "c")], ..first };
    let outcomes = in_time("answers", say(vec![late])).await;
    assert!(matches!(outcomes[..], [wire::append_reply::Outcome::Higher(higher)] if higher.term == 7));
    assert_eq!(cluster.group(1).status().last, Some(2));
}
