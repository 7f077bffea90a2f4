//! What a replica does by itself: it becomes part of the group, keeps its members if it leads, its log short, and an eye on
//! whether it has come to the same as the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::{ChangeMembers, Instant as _, RaftMetrics};
use synod_wire::raft as wire;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::group::Inner;
use super::lead::ReplicaInfo;
use super::machine::Machine;
use super::member::write_info;
use super::network::{JOIN_PATH, STATUS_PATH};
use super::types::{Members, ReplicaNode, Types};

/// Founds the group or asks to be taken in, until this replica belongs to it.
pub(crate) async fn belong<M: Machine>(inner: Arc<Inner<M>>, is_new_cluster: bool) {
    let is_first = inner.nodes.first().is_some_and(|node| node.name == inner.own.node);
    let mut metrics = inner.raft.metrics();
    loop {
        let (is_member, is_blank) = {
            let metrics = metrics.borrow_and_update();
            let members = metrics.membership_config.membership();
            (
                members.get_node(&inner.own.id).is_some(),
                metrics.last_log_index.is_none() && metrics.current_term == 0,
            )
        };
        if is_member {
            return;
        }
        if is_first && is_blank && (is_new_cluster || may_found(&inner).await) {
            let node = ReplicaNode { name: inner.own.node.clone(), address: inner.own.address.clone() };
            match inner.raft.initialize(BTreeMap::from([(inner.own.id, node)])).await {
                Ok(()) => {
                    tracing::info!(group = inner.group, replica = inner.own.id, "the group was founded");
                }
                // It was, just before: the metrics come a little later.
                Err(_) if inner.raft.is_initialized().await.unwrap_or(false) => {}
                Err(error) => tracing::warn!(group = inner.group, %error, "the group could not be founded"),
            }
        } else {
            ask_to_join(&inner).await;
        }
        drop(tokio::time::timeout(PAUSE, metrics.changed()).await);
    }
}

/// Whether so many others say that there is no group that there cannot be one which has served.
///
/// A group that serves has a majority of voters. If this node was one of them and lost its disk, at least one less than a
/// majority is among the others: that many, less one, need not be asked.
async fn may_found<M: Machine>(inner: &Arc<Inner<M>>) -> bool {
    let quorum = inner.config.voters_of(inner.nodes.len()) / 2 + 1;
    let others: Vec<_> = inner.nodes.iter().filter(|node| node.name != inner.own.node).cloned().collect();
    let needed = others.len() - quorum.saturating_sub(2).min(others.len());
    let mut calls = JoinSet::new();
    for node in others {
        let caller = inner.caller.clone();
        calls.spawn(async move {
            let question = wire::StatusRequest { target: Some(caller.target(0)) };
            caller.ask::<_, wire::StatusReply>(&node.address, STATUS_PATH, question, CALL_PATIENCE).await
        });
    }
    let mut without = 0;
    for answer in calls.join_all().await {
        match answer {
            Ok(status) if status.is_member => return false,
            Ok(_) => without += 1,
            Err(_) => {}
        }
    }
    without >= needed
}

async fn ask_to_join<M: Machine>(inner: &Arc<Inner<M>>) {
    let mut addresses: Vec<String> = inner.nodes.iter().map(|node| node.address.clone()).collect();
    addresses.retain(|address| *address != inner.own.address);
    let mut asked = BTreeSet::new();
    while let Some(address) = addresses.pop() {
        if !asked.insert(address.clone()) {
            continue;
        }
        let question = wire::JoinRequest {
            target: Some(inner.caller.target(0)),
            replica: Some(write_info(inner.own.clone())),
        };
        let answer: Result<wire::JoinReply, _> =
            inner.caller.ask(&address, JOIN_PATH, question, CALL_PATIENCE).await;
        match answer {
            Ok(reply) if reply.is_noted => return,
            Ok(reply) => addresses.extend(reply.leader.map(|leader| leader.address)),
            Err(status) => tracing::debug!(group = inner.group, address, %status, "a node did not answer"),
        }
    }
}

/// While this replica leads: takes in those who ask, lets those vote who have caught up, replaces those who come back as
/// somebody else, and has others vote for those who stay away. One change at a time.
pub(crate) async fn keep_members<M: Machine>(inner: Arc<Inner<M>>, mut joins: mpsc::Receiver<ReplicaInfo>) {
    let voters = inner.config.voters_of(inner.nodes.len());
    let mut asking: BTreeMap<String, ReplicaInfo> = BTreeMap::new();
    let mut silent: BTreeMap<u64, Instant> = BTreeMap::new();
    loop {
        // Whether a learner has caught up is looked at time and again: that its log grows is no event of its own.
        if let Ok(Some(replica)) = tokio::time::timeout(PAUSE, joins.recv()).await {
            asking.insert(replica.node.clone(), replica);
        }
        if !inner.lead.borrow().is_own {
            asking.clear();
            silent.clear();
            continue;
        }
        let metrics = inner.metrics();
        let members = metrics.membership_config.membership();
        asking.retain(|_, replica| !is_known(members, replica));
        let heard = heard(&metrics, Duration::from_millis(inner.config.election_ms.end));
        let caught_up = caught_up(&metrics, &heard);
        // A leader that has just begun has heard of nobody, which says nothing about them.
        let quiet = members.voter_ids().filter(|id| *id != inner.own.id && !heard.contains(id));
        let now = Instant::now();
        silent = quiet.map(|id| (id, silent.get(&id).copied().unwrap_or(now))).collect();
        let is_away = |since: &Instant| now.duration_since(*since) >= inner.config.replace_after;
        let away = silent.iter().filter(|(_, since)| is_away(since)).map(|(id, _)| *id).collect();
        let view =
            View { members, caught_up: &caught_up, away: &away, asking: &asking, own: inner.own.id, voters };
        let Some(Change { members: change, retains }) = view.next_change() else { continue };
        tracing::info!(group = inner.group, ?change, "the members of the group change");
        let change = inner.raft.change_membership(change, retains);
        match tokio::time::timeout(CHANGE_PATIENCE, change).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(group = inner.group, %error, "the members could not be changed"),
            Err(_) => tracing::warn!(group = inner.group, "changing the members takes long"),
        }
    }
}

/// Replicas that were heard of lately.
fn heard(metrics: &RaftMetrics<Types>, patience: Duration) -> BTreeSet<u64> {
    let heartbeats = metrics.heartbeat.iter().flatten();
    let heard = heartbeats.filter(|(_, at)| at.is_some_and(|at| at.elapsed() < patience));
    heard.map(|(id, _)| *id).collect()
}

/// Those of them that have nearly all of the log.
fn caught_up(metrics: &RaftMetrics<Types>, heard: &BTreeSet<u64>) -> BTreeSet<u64> {
    let last = metrics.last_log_index.unwrap_or(0);
    let replication = metrics.replication.iter().flatten();
    let near = replication.filter(|(_, matching)| matching.is_some_and(|id| id.index + LAG_MAX >= last));
    near.map(|(id, _)| *id).filter(|id| heard.contains(id)).collect()
}

fn is_known(members: &Members, replica: &ReplicaInfo) -> bool {
    members.get_node(&replica.id).is_some_and(|node| node.address == replica.address)
}

/// What the leader knows when it decides on the next change.
struct View<'a> {
    members: &'a Members,
    caught_up: &'a BTreeSet<u64>,
    /// Voters that were not heard of for too long.
    away: &'a BTreeSet<u64>,
    asking: &'a BTreeMap<String, ReplicaInfo>,
    own: u64,
    /// How many are to vote.
    voters: usize,
}

/// A change of the members.
struct Change {
    members: ChangeMembers<u64, ReplicaNode>,
    /// Whether those who do not vote any more stay, and follow.
    retains: bool,
}

impl View<'_> {
    fn next_change(&self) -> Option<Change> {
        let change = |members, retains| Some(Change { members, retains });
        if let [before, .., after] = &self.members.get_joint_config()[..] {
            // A leader before this one did not finish its change. Who came back as somebody else is not to stay as who it was.
            let is_same = |id: &u64| after.iter().any(|new| self.name(*new) == self.name(*id));
            let retains = !before.difference(after).any(is_same);
            return change(ChangeMembers::AddVoterIds(BTreeSet::new()), retains);
        }
        let voters: BTreeSet<u64> = self.members.voter_ids().collect();
        if let Some(replica) = self.asking.values().next() {
            return change(self.take_in(replica, &voters), false);
        }
        for (id, node) in self.members.nodes() {
            if voters.contains(id) || !self.caught_up.contains(id) {
                continue;
            }
            let with = |out: Option<&u64>| {
                let mut next = voters.clone();
                next.insert(*id);
                if let Some(out) = out {
                    next.remove(out);
                }
                ChangeMembers::ReplaceAllVoters(next)
            };
            let is_same = |voter: &&u64| **voter != self.own && self.name(**voter) == Some(&node.name);
            let before = voters.iter().find(is_same);
            if before.is_some() || voters.len() < self.voters {
                return change(with(before), false);
            }
            // It may come back, and then it follows.
            if let Some(away) = voters.iter().find(|voter| self.away.contains(voter)) {
                return change(with(Some(away)), true);
            }
        }
        None
    }

    fn take_in(&self, replica: &ReplicaInfo, voters: &BTreeSet<u64>) -> ChangeMembers<u64, ReplicaNode> {
        let node = ReplicaNode { name: replica.node.clone(), address: replica.address.clone() };
        if self.members.get_node(&replica.id).is_some() {
            return ChangeMembers::SetNodes(BTreeMap::from([(replica.id, node)]));
        }
        // Learners of that node are what it was before it lost its disk.
        let is_stale = |(id, old): &(&u64, &ReplicaNode)| !voters.contains(*id) && old.name == node.name;
        let stale: BTreeSet<u64> = self.members.nodes().filter(is_stale).map(|(id, _)| *id).collect();
        if stale.is_empty() {
            ChangeMembers::AddNodes(BTreeMap::from([(replica.id, node)]))
        } else {
            ChangeMembers::RemoveNodes(stale)
        }
    }

    fn name(&self, id: u64) -> Option<&String> {
        self.members.get_node(&id).map(|node| &node.name)
    }
}

/// Has snapshots written as the log grows, and the log cut behind them.
pub(crate) async fn keep_snapshots<M: Machine>(inner: Arc<Inner<M>>) {
    let mut ticks = tokio::time::interval(SNAPSHOT_PAUSE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = inner.journal.write_noted(inner.group)
            && !error.is_full()
        {
            tracing::error!(group = inner.group, %error, "the journal has stopped");
            inner.end(error.to_string());
            return;
        }
        let current = inner.shared.current();
        let last = current.as_ref().and_then(|current| current.last).map(|last| last.index);
        let applied = inner.metrics().last_applied.map(|applied| applied.index);
        let config = &inner.config;
        // An idle group is not to keep the segments of a busy one.
        let is_holding =
            inner.journal.bytes_held(inner.group) > config.snapshot_log_bytes.saturating_mul(HELD_MAX);
        let grown = inner.journal.bytes_after(inner.group, last);
        let is_long = grown > config.snapshot_log_bytes && grown > current.map_or(0, |current| current.bytes);
        if (is_long || is_holding) && applied > last {
            drop(inner.raft.trigger().snapshot().await);
        }
        let Some(last) = last else { continue };
        let kept = if is_holding { 0 } else { config.kept_log_bytes };
        if let Some(upto) = inner.journal.index_behind(inner.group, last, kept) {
            drop(inner.raft.trigger().purge_log(upto).await);
        }
    }
}

/// Compares what became of the log here with what became of it at the leader. A replica that has come to something else must
/// not go on: the same entries led to two states, and it might lead one day.
pub(crate) async fn compare<M: Machine>(inner: Arc<Inner<M>>) {
    let mut told = None;
    loop {
        tokio::time::sleep(COMPARE_PAUSE).await;
        let lead = inner.lead.borrow().clone();
        let Some(leader) = lead.leader.filter(|_| !lead.is_own) else {
            told = None;
            continue;
        };
        if told.is_none() {
            let question = wire::StatusRequest { target: Some(inner.caller.target(0)) };
            let answer = inner.caller.ask(&leader.address, STATUS_PATH, question, CALL_PATIENCE).await;
            let known = answer.ok().filter(|reply: &wire::StatusReply| reply.digest_index > 0);
            told = known.map(|reply| (reply.digest_index, reply.digest));
        }
        let Some((index, digest)) = told else { continue };
        let (own, reached) = {
            let machine = inner.shared.machine();
            (machine.digest_at(index), machine.digest().map(|(reached, _)| reached))
        };
        match own {
            Some(own) if own != digest => {
                let reason = format!(
                    "after entry {index} the state of this replica differs from that of {}: {own:016x}, not {digest:016x}",
                    leader.node
                );
                tracing::error!(group = inner.group, %reason, "a replica cannot go on");
                inner.end(reason);
                // The engine ends its tasks, whatever this says.
                drop(inner.raft.shutdown().await);
                return;
            }
            // It is not that far yet.
            None if reached < Some(index) => {}
            Some(_) | None => told = None,
        }
    }
}

/// How often states are compared.
const COMPARE_PAUSE: Duration = Duration::from_secs(1);
/// How long is waited before something is tried or looked at again.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a node may take to say whether it belongs to a group, or to note that another wants to.
const CALL_PATIENCE: Duration = Duration::from_secs(1);
/// How long a change may take before the leader looks again.
const CHANGE_PATIENCE: Duration = Duration::from_secs(10);
/// So many entries behind, a learner has caught up.
const LAG_MAX: u64 = 64;
/// How often it is looked whether the log is long.
const SNAPSHOT_PAUSE: Duration = Duration::from_millis(200);
/// So many times as much as makes a snapshot, a group may keep others from giving back.
const HELD_MAX: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Members `id@node`, of which some vote.
    fn members(voters: &[&[u64]], replicas: &[(u64, &str)]) -> Members {
        let node = |name: &str| ReplicaNode { name: name.into(), address: name.into() };
        let voters = voters.iter().map(|ids| ids.iter().copied().collect()).collect();
        let replicas: BTreeMap<_, _> = replicas.iter().map(|(id, name)| (*id, node(name))).collect();
        Members::new(voters, replicas).expect("they make sense")
    }

    fn next(members: &Members, caught_up: &[u64], asking: &[(u64, &str)]) -> String {
        next_without(members, &[], caught_up, asking)
    }

    fn next_without(members: &Members, away: &[u64], caught_up: &[u64], asking: &[(u64, &str)]) -> String {
        let info =
            |(id, name): &(u64, &str)| ReplicaInfo { id: *id, node: (*name).into(), address: (*name).into() };
        let asking: BTreeMap<_, _> = asking.iter().map(|one| (one.1.to_string(), info(one))).collect();
        let [caught_up, away] = [caught_up, away].map(|ids| ids.iter().copied().collect());
        let view = View { members, caught_up: &caught_up, away: &away, asking: &asking, own: 1, voters: 3 };
        let told = |change: Change| match change.retains {
            true => format!("{}, and keep", change.members),
            false => change.members.to_string(),
        };
        view.next_change().map_or_else(|| "-".into(), told)
    }

    #[test]
    fn members_change_one_step_at_a_time() {
        let three: &[(u64, &str)] = &[(1, "a"), (2, "b"), (3, "c")];
        // Nothing to do.
        assert_eq!(next(&members(&[&[1, 2, 3]], three), &[2, 3], &[]), "-");
        // Who asks learns first, and votes when it has caught up, not before.
        assert_eq!(
            next(&members(&[&[1]], &[(1, "a")]), &[], &[(2, "b")]).split('(').next(),
            Some("AddNodes")
        );
        assert_eq!(next(&members(&[&[1]], &three[..2]), &[], &[]), "-");
        assert_eq!(next(&members(&[&[1]], &three[..2]), &[2], &[]), "ReplaceAllVoters([1,2])");
        // Nobody votes beyond the three.
        let four = [three, &[(4, "d")]].concat();
        assert_eq!(next(&members(&[&[1, 2, 3]], &four), &[2, 3, 4], &[]), "-");
        // Who came back as somebody else takes the place of who it was, in one step.
        let back = [three, &[(9, "c")]].concat();
        assert_eq!(next(&members(&[&[1, 2, 3]], &back), &[2], &[]), "-");
        assert_eq!(next(&members(&[&[1, 2, 3]], &back), &[2, 9], &[]), "ReplaceAllVoters([1,2,9])");
        // A learner that was lost in turn goes first.
        assert_eq!(next(&members(&[&[1, 2, 3]], &back), &[2], &[(8, "c")]), "RemoveNodes([9])");
        // Who stays away is replaced by who has caught up, and follows if it comes back; without such a one it stays.
        let four = [three, &[(4, "d")]].concat();
        let members_of_four = members(&[&[1, 2, 3]], &four);
        assert_eq!(next_without(&members_of_four, &[3], &[2], &[]), "-");
        assert_eq!(next_without(&members_of_four, &[3], &[2, 4], &[]), "ReplaceAllVoters([1,2,4]), and keep");
        // One at a time, and whoever asks comes first.
        assert_eq!(next_without(&members_of_four, &[2, 3], &[4], &[]), "ReplaceAllVoters([1,3,4]), and keep");
        assert_eq!(
            next_without(&members_of_four, &[3], &[2, 4], &[(5, "e")]).split('(').next(),
            Some("AddNodes")
        );
        // What another leader left half done is finished before anything else.
        let joint = members(&[&[1, 2, 3], &[1, 2, 9]], &back);
        assert_eq!(next(&joint, &[2, 9], &[(8, "c")]), "AddVoterIds([])");
        let joint = members(&[&[1, 2, 3], &[1, 2, 4]], &four);
        assert_eq!(next(&joint, &[2, 4], &[]), "AddVoterIds([]), and keep");
    }
}
