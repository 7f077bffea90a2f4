//! What a replica refuses, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use synod_wire::raft as wire;
use tonic::Code;

use super::cluster::{CLUSTER, Cluster, GROUP, config, in_time};
use crate::raft::network::{Caller, STATUS_PATH, TcpConnect, VOTE_PATH};
use crate::raft::{GroupConfig, ProposeError};

fn caller(cluster: &str, token: Option<&str>) -> Caller {
    Caller {
        connect: Arc::new(TcpConnect::default()),
        cluster: cluster.into(),
        group: GROUP,
        token: token.map(|token| token.parse().expect("it can be a header")),
        heartbeat: Duration::from_millis(50),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_meant_for_somebody_else_are_refused() {
    let cluster = Cluster::start(1, config()).await;
    cluster.put("a").await;
    let status = cluster.group(0).status();
    let address = &cluster.addresses[0].address;
    let token = Some("Bearer of the cluster");
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
    assert_eq!(ask(caller(CLUSTER, Some("Bearer of the clusteR")), own).await, Err(Code::Unauthenticated));
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
