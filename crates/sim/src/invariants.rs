//! What must hold after every step, whatever the network does.
//!
//! | invariant | meaning |
//! |---|---|
//! | `final-verdict` | in one life of an observer, a dead or removed incarnation never becomes live again |
//! | `record-order` | a record is only ever replaced by a greater one |
//! | `active-set` | the active set holds no dead, removed, leaving or quarantined member |
//! | `topology` | updates never contradict themselves, and their changes lead from the last member list to this one |
//! | `own-record` | a running member holds its own record, and never as dead |
//! | `event-time` | events carry a time that never runs backwards |
//! | `addressing` | nothing is sent to oneself, and nothing but refusals to the quarantined |
//! | `fan-out` | a poll pushes to no more peers than configured |
//! | `progress` | after a poll nothing is due any more |
//! | `detector` | only live members are watched |

use std::collections::BTreeMap;
use std::time::Duration;

use synod_core::membership::{
    ClusterEvent, GossipBody, Member, MembershipCoordinator, MembershipCoordinatorConfig,
    MembershipCoordinatorOutcome, MembershipCoordinatorState, NodeRecord, NodeStatus, PhiFailureDetector,
    QuarantineEntry,
};
use synod_core::{Authority, MemberId, NodeId, TimerInstant};

/// An invariant was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invariant {invariant} broken at {at:?} on {node}: {detail}")]
pub struct Violation {
    /// Which one.
    pub invariant: &'static str,
    /// True simulated time.
    pub at: Duration,
    /// On which node.
    pub node: String,
    /// What was seen.
    pub detail: String,
}

/// What an observer was seen to believe, for comparison with what it believes later.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    life: Option<MemberId>,
    records: BTreeMap<NodeId, NodeRecord>,
    statuses: BTreeMap<MemberId, NodeStatus>,
    members: Vec<Member>,
    last_event_at: TimerInstant,
}

/// What is checked: a call that just returned.
pub(crate) struct Step<'a> {
    pub(crate) now: TimerInstant,
    pub(crate) polled: bool,
    /// Whether to look at the whole table and not only at what was said.
    pub(crate) thorough: bool,
    pub(crate) own_authority: &'a Authority,
    pub(crate) coordinator: &'a MembershipCoordinator,
    pub(crate) outcome: &'a MembershipCoordinatorOutcome,
    pub(crate) config: &'a MembershipCoordinatorConfig,
}

type Check = Result<(), (&'static str, String)>;

impl Observer {
    /// Checks one step.
    pub(crate) fn check(&mut self, step: &Step<'_>) -> Check {
        if self.life.as_ref() != step.coordinator.own() {
            // A new life of the observer knows nothing of the old one's verdicts.
            self.life = step.coordinator.own().cloned();
            self.records.clear();
            self.statuses.clear();
        }
        self.check_events(step)?;
        check_outbound(step)?;
        if step.polled {
            check_progress(step)?;
        }
        if step.thorough {
            self.check_table(step)?;
        }
        Ok(())
    }

    fn check_events(&mut self, step: &Step<'_>) -> Check {
        let topology = step.outcome.topology_event.iter();
        for event in step.outcome.member_events.iter().chain(topology) {
            let at = event.observed_at();
            if at < self.last_event_at || at > step.now {
                let detail = format!("event at {at}, after one at {}, now {}", self.last_event_at, step.now);
                return Err(("event-time", detail));
            }
            self.last_event_at = at;
            match event {
                ClusterEvent::SelfRejoining { .. } => self.statuses.clear(),
                ClusterEvent::MemberStatusChanged { member, to, .. } => self.check_status(member, *to)?,
                ClusterEvent::TopologyUpdated { update } => {
                    update.validate().map_err(|error| ("topology", error.to_string()))?;
                    let gone = |member: &&Member| {
                        let departed = update.topology.left.iter().chain(&update.topology.dead);
                        let mut replaced = departed.chain(&update.topology.joined);
                        !replaced.any(|other| other.id.node == member.id.node)
                    };
                    let mut expected: Vec<_> = self.members.iter().filter(gone).cloned().collect();
                    expected.extend(update.topology.joined.iter().cloned());
                    expected.sort();
                    if expected != update.members {
                        let detail = format!("expected {expected:?}, told {:?}", update.members);
                        return Err(("topology", detail));
                    }
                    self.members.clone_from(&update.members);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_status(&mut self, member: &MemberId, to: NodeStatus) -> Check {
        match self.statuses.insert(member.clone(), to) {
            Some(from) if from.is_final() && !to.is_final() => {
                Err(("final-verdict", format!("{member} was {from} and became {to}")))
            }
            _ => Ok(()),
        }
    }

    fn check_table(&mut self, step: &Step<'_>) -> Check {
        let snapshot = step.coordinator.snapshot();
        for record in &snapshot.records {
            let node = &record.member.node;
            match self.records.get(node) {
                Some(before) if before.supersedes(record) => {
                    return Err(("record-order", format!("{before:?} was replaced by {record:?}")));
                }
                Some(before) if before == record => {}
                _ => {
                    self.records.insert(node.clone(), record.clone());
                }
            }
        }
        let quarantined = step.coordinator.quarantine_snapshot();
        for member in step.coordinator.active_members() {
            let live = snapshot.record(&member.id.node).is_some_and(|record| record.status.is_active());
            let kept_out =
                quarantined.iter().any(|e| e.authority == member.authority && e.covers(&member.id));
            if !live || kept_out {
                return Err((
                    "active-set",
                    format!("{} is active: live {live}, kept out {kept_out}", member.id),
                ));
            }
        }
        let live = snapshot.records.iter().filter(|record| record.status.is_active()).count();
        let watched = step.coordinator.detector().map_or(0, PhiFailureDetector::watched);
        if watched > live {
            return Err(("detector", format!("{watched} members are watched, {live} are live")));
        }
        if step.coordinator.state() == MembershipCoordinatorState::Member {
            let own = step.coordinator.own().and_then(|own| snapshot.record(&own.node));
            if own.is_none_or(|own| own.status == NodeStatus::Dead) {
                return Err(("own-record", format!("own record is {own:?}")));
            }
        }
        Ok(())
    }
}

fn check_outbound(step: &Step<'_>) -> Check {
    let (mut pushes, mut goodbye) = (0, 0);
    for outbound in &step.outcome.gossip_outbound {
        if outbound.target == *step.own_authority {
            return Err(("addressing", format!("a message to itself: {:?}", outbound.message.body)));
        }
        let refusal = matches!(outbound.message.body, GossipBody::Refused(_));
        let quarantined = || step.coordinator.quarantine_snapshot();
        if !refusal && quarantined().iter().any(|entry| covers_target(step, entry, &outbound.target)) {
            return Err(("addressing", format!("a message to quarantined {}", outbound.target)));
        }
        pushes += usize::from(matches!(outbound.message.body, GossipBody::Push { .. }));
    }
    for event in &step.outcome.member_events {
        match event {
            // The accused is told out of turn.
            ClusterEvent::MemberStatusChanged { to: NodeStatus::Suspect, .. } => goodbye += 1,
            ClusterEvent::MemberStatusChanged { member, to: NodeStatus::Removed, .. }
                if step.coordinator.own() == Some(member) =>
            {
                goodbye += step.config.gossip_fanout;
            }
            _ => {}
        }
    }
    if step.polled && pushes > step.config.gossip_fanout + goodbye {
        return Err(("fan-out", format!("{pushes} pushes in one poll")));
    }
    Ok(())
}

/// Whether a quarantine entry forbids talking to whoever is at `target` in this node's view.
fn covers_target(step: &Step<'_>, entry: &QuarantineEntry, target: &Authority) -> bool {
    let there = || step.coordinator.active_members();
    entry.authority == *target && there().iter().all(|m| m.authority != *target || entry.covers(&m.id))
}

fn check_progress(step: &Step<'_>) -> Check {
    match step.outcome.wake_at {
        Some(at) if at <= step.now => {
            Err(("progress", format!("asks to be polled at {at}, now {}", step.now)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
