//! Who leads a group, as one of its replicas knows it.

use std::sync::Arc;

use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::{RaftMetrics, ServerState};

use super::group::Inner;
use super::machine::Machine;
use super::types::{ReplicaNode, Types};

/// A replica and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// Its number, which no other replica ever has.
    pub id: u64,
    /// The name of its node.
    pub node: String,
    /// Where the peer listener of its node is.
    pub address: String,
}

impl ReplicaInfo {
    pub(crate) fn new(id: u64, node: &ReplicaNode) -> Self {
        Self { id, node: node.name.clone(), address: node.address.clone() }
    }
}

/// Who leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lead {
    /// The term. In each there is one leader at most.
    pub term: u64,
    /// The leader, if it is known.
    pub leader: Option<ReplicaInfo>,
    /// Whether this replica leads, and has applied all that leaders before it have committed.
    pub is_own: bool,
    /// Whether enough replicas vote for the group to serve: a majority of those that are to. Before that, what is
    /// acknowledged might be on one disk alone.
    pub serves: bool,
}

/// Tells who leads whenever that changes, and when the engine has ended.
pub(crate) async fn follow<M: Machine>(inner: Arc<Inner<M>>) {
    let mut metrics = inner.raft.metrics();
    let voters = inner.config.voters_of(inner.nodes.len());
    loop {
        let (lead, state) = {
            let metrics = metrics.borrow_and_update();
            (read(&metrics, voters), metrics.running_state.clone())
        };
        let ended = state.err().map(|fatal| fatal.to_string());
        let lead = if ended.is_some() { Lead::default() } else { lead };
        inner.lead.send_if_modified(|current| {
            let is_new = *current != lead;
            *current = lead;
            is_new
        });
        if let Some(reason) = ended {
            tracing::error!(group = inner.group, %reason, "a replica cannot go on");
            inner.end(reason);
            return;
        }
        if metrics.changed().await.is_err() {
            let reason = metrics.borrow_watched().running_state.clone().err();
            let reason = reason.map_or_else(|| "the engine ended".into(), |fatal| fatal.to_string());
            inner.lead.send_replace(Lead::default());
            inner.end(reason);
            return;
        }
    }
}

fn read(metrics: &RaftMetrics<Types>, voters: usize) -> Lead {
    let members = metrics.membership_config.membership();
    let leader =
        metrics.current_leader.and_then(|id| members.get_node(&id).map(|node| ReplicaInfo::new(id, node)));
    // An entry of its own term that is applied was committed, and all before it with it.
    let is_applied = metrics.last_applied.is_some_and(|last| last.leader_id.term == metrics.current_term);
    let is_leader = metrics.state == ServerState::Leader && metrics.current_leader == Some(metrics.id);
    // While voters are exchanged both sets have to agree: the smaller one counts.
    let voting = members.get_joint_config().iter().map(std::collections::BTreeSet::len).min().unwrap_or(0);
    Lead { term: metrics.current_term, leader, is_own: is_leader && is_applied, serves: voting > voters / 2 }
}
