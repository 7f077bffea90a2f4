//! When a state lasts too long: suspicion becomes a verdict, departures and deaths become history.

use super::run::Run;
use super::{MembershipCoordinatorOutcome, MembershipCoordinatorState};
use crate::id::NodeId;
use crate::membership::downing::{DowningVerdict, DowningView};
use crate::membership::event::ClusterEvent;
use crate::membership::record::NodeRecord;
use crate::membership::status::NodeStatus;
use crate::time::TimerInstant;

impl Run {
    pub(super) fn start_timer(&mut self, record: &NodeRecord, now: TimerInstant) {
        let node = &record.member.node;
        let observed = self.observed(now);
        let lasts = match record.status {
            NodeStatus::Joining | NodeStatus::Up => None,
            NodeStatus::Suspect => Some(self.config.suspect_timeout),
            NodeStatus::Leaving => Some(self.config.leave_timeout),
            NodeStatus::Dead => Some(self.config.dead_timeout),
            NodeStatus::Removed => Some(self.config.tombstone_retention),
        };
        match lasts {
            Some(lasts) => {
                self.since.insert(node.clone(), observed);
                self.timers.set(node, observed + lasts);
            }
            None => {
                self.since.remove(node);
                self.timers.clear(node);
            }
        }
    }

    pub(super) fn state_ran_out(
        &mut self,
        node: &NodeId,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        let Some(status) = self.table.record(node).map(|record| record.status) else { return };
        match status {
            NodeStatus::Joining | NodeStatus::Up => {}
            NodeStatus::Suspect => self.suspicion_ran_out(node, now, out),
            NodeStatus::Leaving | NodeStatus::Dead => {
                self.change(node, NodeStatus::Removed, now, out);
                if *node == self.own.node {
                    self.say_goodbye(out);
                }
            }
            NodeStatus::Removed => {
                self.table.prune(node);
                self.since.remove(node);
            }
        }
    }

    fn suspicion_ran_out(
        &mut self,
        node: &NodeId,
        now: TimerInstant,
        out: &mut MembershipCoordinatorOutcome,
    ) {
        let observed = self.observed(now);
        let since = self.since.get(node).copied().unwrap_or(observed);
        let patient_until = since + self.health.stretch(self.config.suspect_timeout);
        // A client observes; verdicts are for members.
        if self.mode != MembershipCoordinatorState::Member {
            return;
        }
        if patient_until > observed {
            return self.timers.set(node, patient_until);
        }
        match self.downing_verdict(observed) {
            DowningVerdict::Down => {
                self.change(node, NodeStatus::Dead, now, out);
            }
            verdict => {
                self.timers.set(node, observed + self.config.heartbeat_interval);
                if verdict == DowningVerdict::QuorumLost && !core::mem::replace(&mut self.quorum_lost, true) {
                    let (reachable, suspected) = self.census();
                    let event = ClusterEvent::QuorumLost { reachable, suspected, observed_at: now };
                    out.member_events.push(event);
                }
            }
        }
    }

    fn downing_verdict(&self, observed: TimerInstant) -> DowningVerdict {
        let (reachable, suspected) = self.census();
        let lowest = |wanted: fn(NodeStatus) -> bool| {
            let mut nodes = self.table.records().filter(|r| wanted(r.status)).map(|r| &r.member.node);
            nodes.next()
        };
        self.config.downing.decide(&DowningView {
            reachable,
            suspected,
            lowest_reachable: lowest(NodeStatus::is_reachable),
            lowest_suspected: lowest(|status| status == NodeStatus::Suspect),
            settled_for: observed.saturating_since(self.unsettled_at),
        })
    }

    pub(super) fn census(&self) -> (usize, usize) {
        let count =
            |wanted: fn(NodeStatus) -> bool| self.table.records().filter(|r| wanted(r.status)).count();
        (count(NodeStatus::is_reachable), count(|status| status == NodeStatus::Suspect))
    }
}
