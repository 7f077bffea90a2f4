//! What a group of three goes through.

use std::time::Duration;

use super::cluster::{Cluster, config, status_when};
use crate::raft::{GroupConfig, ProposeError, ReplicaInfo};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_forms_itself_and_applies_what_is_proposed_everywhere() {
    let cluster = Cluster::start(3, config()).await;
    let status = cluster.complete().await;
    assert!(status.learners.is_empty());
    let leader = cluster.leader().await;
    assert!(cluster.group(leader).confirm().await.is_ok());

    // Entries keep the order in which they were proposed, many at a time.
    let mut proposals = Vec::new();
    for number in 0..200_u64 {
        let proposed = cluster.group(leader).propose(number.to_le_bytes().to_vec().into()).await;
        proposals.push(proposed.expect("it runs"));
    }
    let mut last = 0;
    for (number, proposal) in proposals.into_iter().enumerate() {
        let applied = proposal.await.expect("it is applied");
        assert_eq!(applied.output, number + 1);
        last = applied.index;
    }
    let list = cluster.settle(last).await;
    assert_eq!(list.items.len(), 200);
    assert!(list.items.iter().zip(0_u64..).all(|((_, item), number)| **item == number.to_le_bytes()));

    // Followers know who leads, and say so.
    let follower = (leader + 1) % 3;
    let refused = cluster.group(follower).propose("x".into()).await.expect("it runs").await;
    let Err(ProposeError::NotLeader { leader: Some(named) }) = refused else { panic!("{refused:?}") };
    assert_eq!(named.address, cluster.addresses[leader].address);
    assert!(cluster.group(follower).confirm().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_node_is_a_group() {
    let mut cluster = Cluster::start(1, config()).await;
    cluster.put("a").await;
    cluster.kill(0).await;
    cluster.start_node(0).await;
    let applied = cluster.put("b").await;
    let list = cluster.settle(applied.index).await;
    let items: Vec<_> = list.items.iter().map(|(_, item)| item.clone()).collect();
    assert_eq!(items, ["a", "b"]);
}

/// It may have sent entries to others that its own disk never saw: it must not give their indexes again in the same term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_comes_back_at_once_leads_only_in_a_later_term() {
    let mut cluster = Cluster::start(1, config()).await;
    cluster.put("a").await;
    for _ in 0..3 {
        let term = cluster.group(0).status().term;
        cluster.kill(0).await;
        cluster.start_node(0).await;
        cluster.put("b").await;
        let again = cluster.group(0).status().term;
        assert!(again > term, "{again} after {term}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_leaders_die_one_after_the_other() {
    let mut cluster = Cluster::start(3, config()).await;
    cluster.complete().await;
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        for number in 0..10 {
            let entry = format!("{round}-{number}");
            acknowledged.push((cluster.put(entry.clone()).await.index, entry));
        }
        let leader = cluster.leader().await;
        let term = cluster.group(leader).status().term;
        cluster.kill(leader).await;
        let next = cluster.leader().await;
        assert!(cluster.group(next).status().term > term);
        let entry = format!("{round}-without");
        acknowledged.push((cluster.put(entry.clone()).await.index, entry));
        cluster.start_node(leader).await;
    }
    let last = cluster.put("end").await.index;
    let list = cluster.settle(last).await;
    for (index, entry) in acknowledged {
        assert!(list.items.contains(&(index, entry.clone().into())), "{entry} is missing");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_away_for_too_long_gets_a_snapshot() {
    let config = GroupConfig { snapshot_log_bytes: 8 << 10, kept_log_bytes: 0, ..config() };
    let mut cluster = Cluster::start(3, config).await;
    cluster.complete().await;
    let away = (cluster.leader().await + 1) % 3;
    let before = cluster.put("before").await.index;
    status_when(cluster.group(away), |status| status.applied >= Some(before)).await;
    cluster.kill(away).await;
    let mut last = 0;
    for number in 0..100 {
        last = cluster.put(vec![number; 1000]).await.index;
    }
    let leader = cluster.leader().await;
    let purged = status_when(cluster.group(leader), |status| status.purged > Some(before)).await;
    cluster.start_node(away).await;
    status_when(cluster.group(away), |status| status.applied >= Some(last)).await;
    let list = cluster.settle(last).await;
    assert_eq!(list.items.len(), 101);
    assert!(cluster.group(away).status().snapshot >= purged.purged);

    // And a node that starts from its snapshot is the same.
    cluster.kill(leader).await;
    cluster.start_node(leader).await;
    let end = cluster.put("end").await.index;
    assert_eq!(cluster.settle(end).await.items.len(), 102);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_disk_comes_back_as_somebody_else() {
    let mut cluster = Cluster::start(3, config()).await;
    cluster.complete().await;
    // The founder, of all nodes: it must not found a second group.
    let before = cluster.put("before").await.index;
    let old = cluster.group(0).status().own.id;
    cluster.kill(0).await;
    cluster.wipe(0);
    cluster.leader().await;
    cluster.start_node(0).await;
    let new = cluster.group(0).status().own.id;
    assert_ne!(old, new);
    let leader = cluster.leader().await;
    let is_replaced = |status: &crate::raft::GroupStatus| {
        let has = |id| status.voters.iter().any(|voter| voter.id == id);
        status.voters.len() == 3 && has(new) && !has(old)
    };
    status_when(cluster.group(leader), is_replaced).await;
    let after = cluster.put("after").await.index;
    assert!(after > before);
    assert_eq!(cluster.settle(after).await.items.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stays_away_is_replaced_and_follows_when_it_is_back() {
    let replace_after = Duration::from_millis(1_500);
    let mut cluster = Cluster::start(4, GroupConfig { replace_after, ..config() }).await;
    cluster.complete().await;
    let leader = cluster.leader().await;
    let whole = status_when(cluster.group(leader), |status| status.learners.len() == 1).await;
    let first = cluster.put("one").await.index;
    cluster.settle(first).await;

    // A voter that does not lead is lost.
    let place = |info: &ReplicaInfo| cluster.addresses.iter().position(|node| node.name == info.node);
    let learner = place(&whole.learners[0]).expect("it is a node");
    let mut voters = whole.voters.iter().filter_map(place).filter(|node| *node != leader);
    let (lost, other) = (voters.next().expect("a voter"), voters.next().expect("a third one"));
    let has = |replicas: &[ReplicaInfo], node: &str| replicas.iter().any(|replica| replica.node == node);
    let [lost_name, learner_name] = [lost, learner].map(|node| cluster.addresses[node].name.clone());
    cluster.kill(lost).await;
    let is_replaced = |status: &crate::raft::GroupStatus| {
        has(&status.voters, &learner_name) && has(&status.learners, &lost_name) && !status.is_changing
    };
    status_when(cluster.group(leader), is_replaced).await;

    // So the group bears the loss of another voter, which without that would have been one too many.
    cluster.kill(other).await;
    let second = cluster.put("two").await.index;
    // And the first one, back again, follows.
    cluster.start_node(lost).await;
    assert_eq!(cluster.settle(second).await.items.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_can_be_handed_over() {
    let cluster = Cluster::start(3, config()).await;
    cluster.complete().await;
    let last = cluster.put("a").await.index;
    let leader = cluster.leader().await;
    let term = cluster.group(leader).status().term;
    assert!(cluster.group(leader).hand_over(Duration::from_secs(20)).await);
    let next = cluster.leader().await;
    assert_ne!(next, leader);
    assert!(cluster.group(next).status().term > term);
    let after = cluster.put("b").await.index;
    assert!(after > last);
    assert_eq!(cluster.settle(after).await.items.len(), 2);
}
