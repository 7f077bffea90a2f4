//! What this node holds for the cluster: the last topology that was applied, and who must hear of it.
//!
//! The coordinator's judgement becomes effective here. An update is checked, compared with what stands, and taken as a
//! whole; then everyone who keeps something per member (caches of addresses, placements) is told who is there and who
//! departed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use synod_core::grains::LatencyHistogram;
use synod_core::membership::{
    ClusterEvent, GossipEvent, Member, MembershipCoordinatorState, TopologyApplyError, TopologyUpdate,
};
use synod_core::{Authority, MemberId};

use crate::metrics::{ClusterMetrics, EventCount, EventResult, EventSummary, MetricFamily, MetricsError};

/// As what a node takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterMode {
    /// A member of the cluster.
    Member,
    /// An observer that is no member.
    Client,
}

impl From<ClusterMode> for MembershipCoordinatorState {
    fn from(mode: ClusterMode) -> Self {
        match mode {
            ClusterMode::Member => Self::Member,
            ClusterMode::Client => Self::Client,
        }
    }
}

impl fmt::Display for ClusterMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        MembershipCoordinatorState::from(*self).fmt(f)
    }
}

/// Keeps something per member and wants to know when the members change.
pub trait TopologyListener: Send {
    /// `update` was applied. `departed` are the lives that are no longer there: those that left or died, and those that
    /// a later life of the same name replaced. Must not block, and must not ask the cluster core anything.
    fn topology_applied(&mut self, update: &TopologyUpdate, departed: &[Member]);
}

/// The applied state of the cluster on one node.
pub struct ClusterCore {
    mode: Option<ClusterMode>,
    members: Vec<Member>,
    departed: Vec<Member>,
    blocked: BTreeSet<Authority>,
    topology_hash: Option<u64>,
    listeners: Vec<Box<dyn TopologyListener>>,
    /// `None` while metrics are off.
    counted: Option<Box<Counted>>,
}

/// What a core counts.
#[derive(Default)]
struct Counted {
    /// Members and quarantine are filled in when asked for.
    metrics: ClusterMetrics,
    /// As many as there are kinds of events, whatever happens.
    events: BTreeMap<(MetricFamily, &'static str, EventResult), u64>,
    convergence: LatencyHistogram,
}

impl ClusterCore {
    /// A core that is not started. Only with `metrics_enabled` does it answer [`metrics`](Self::metrics).
    #[must_use]
    pub fn new(metrics_enabled: bool) -> Self {
        Self {
            mode: None,
            members: Vec::new(),
            departed: Vec::new(),
            blocked: BTreeSet::new(),
            topology_hash: None,
            listeners: Vec::new(),
            counted: metrics_enabled.then(Box::default),
        }
    }

    /// Adds someone who is told of every applied topology. Listeners are called in the order they came.
    pub fn add_listener(&mut self, listener: Box<dyn TopologyListener>) {
        self.listeners.push(listener);
    }

    /// Accepts topologies from now on, and counts from zero.
    ///
    /// # Errors
    /// Refused while started.
    pub fn start(&mut self, mode: ClusterMode) -> Result<(), AlreadyStarted> {
        match self.mode {
            Some(mode) => Err(AlreadyStarted { mode }),
            None => {
                self.counted = self.counted.take().map(|_| Box::default());
                self.mode = Some(mode);
                Ok(())
            }
        }
    }

    /// Forgets the topology and accepts no more. Harmless when it is not started.
    pub fn shutdown(&mut self) {
        self.mode = None;
        self.members.clear();
        self.departed.clear();
        self.blocked.clear();
        self.topology_hash = None;
    }

    /// Applies `update` and returns the event that tells of it, for the caller to publish when it holds no lock.
    /// Returns `None` when the same topology stands already.
    ///
    /// # Errors
    /// Refused before the start, and when the update contradicts itself; the previous topology stands.
    pub fn try_apply_topology(
        &mut self,
        update: &TopologyUpdate,
    ) -> Result<Option<ClusterEvent>, TopologyApplyError> {
        let checked = match self.mode {
            None => Err(TopologyApplyError::NotStarted),
            Some(_) => update.validate().map_err(TopologyApplyError::InvalidTopology),
        };
        if let Err(error) = checked {
            self.count(|metrics| metrics.topology_failures += 1);
            return Err(error);
        }
        if self.topology_hash == Some(update.topology.hash) {
            return Ok(None);
        }
        self.departed = self.departed_with(update);
        self.topology_hash = Some(update.topology.hash);
        self.members.clone_from(&update.members);
        self.blocked = update.blocked.iter().cloned().collect();
        self.count(|metrics| metrics.topology_updates += 1);
        for listener in &mut self.listeners {
            listener.topology_applied(update, &self.departed);
        }
        Ok(Some(ClusterEvent::TopologyUpdated { update: update.clone() }))
    }

    /// Counts an event, whatever it is about. Ignored before the start.
    pub fn tally(&mut self, event: &ClusterEvent) {
        let Some(counted) = self.counted.as_mut().filter(|_| self.mode.is_some()) else { return };
        let EventSummary { family, kind, result, .. } = EventSummary::of(event);
        *counted.events.entry((family, kind, result)).or_default() += 1;
        match event {
            ClusterEvent::Gossip { event: GossipEvent::Confirmed { took, .. }, .. } => {
                counted.convergence.record(*took);
            }
            ClusterEvent::Gossip { event: GossipEvent::Late { .. }, .. } => counted.metrics.late_changes += 1,
            _ => {}
        }
    }

    /// Takes note of an event that is no topology: it counts changes of state, and follows the quarantine between two
    /// topologies. Ignored before the start.
    pub fn observe(&mut self, event: &ClusterEvent) {
        if self.mode.is_none() {
            return;
        }
        match event {
            ClusterEvent::MemberStatusChanged { .. } => self.count(|metrics| metrics.status_changes += 1),
            ClusterEvent::MemberQuarantined { authority, .. } => {
                self.blocked.insert(authority.clone());
            }
            ClusterEvent::QuarantineLifted { authority, .. } => {
                self.blocked.remove(authority);
            }
            _ => {}
        }
    }

    /// Takes note of `events` that were lost on the way here.
    pub fn observe_missed(&mut self, events: u64) {
        self.count(|metrics| metrics.events_missed += events);
    }

    /// As what the node takes part; `None` before the start.
    #[must_use]
    pub const fn mode(&self) -> Option<ClusterMode> {
        self.mode
    }

    /// The members of the last applied topology, in node order.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// How many they are.
    #[must_use]
    pub fn member_count(&self) -> usize {
        self.members.len()
    }

    /// The lives that the last applied topology ended.
    #[must_use]
    pub fn departed(&self) -> &[Member] {
        &self.departed
    }

    /// The quarantined addresses, in order.
    pub fn blocked(&self) -> impl Iterator<Item = &Authority> {
        self.blocked.iter()
    }

    /// The hash of the last applied topology.
    #[must_use]
    pub const fn topology_hash(&self) -> Option<u64> {
        self.topology_hash
    }

    /// The numbers now.
    ///
    /// # Errors
    /// Metrics are switched off.
    pub fn metrics(&self) -> Result<ClusterMetrics, MetricsError> {
        let counted = self.counted()?.metrics;
        Ok(ClusterMetrics { members: self.members.len(), quarantined: self.blocked.len(), ..counted })
    }

    /// How often each kind of event was published, in order of their names.
    ///
    /// # Errors
    /// Metrics are switched off.
    pub fn event_counts(&self) -> Result<Vec<EventCount>, MetricsError> {
        let count = |(&(family, kind, result), &count): (&_, &_)| EventCount { family, kind, result, count };
        Ok(self.counted()?.events.iter().map(count).collect())
    }

    /// How long changes of the membership took until they were confirmed.
    ///
    /// # Errors
    /// Metrics are switched off.
    pub fn convergence(&self) -> Result<&LatencyHistogram, MetricsError> {
        Ok(&self.counted()?.convergence)
    }

    fn counted(&self) -> Result<&Counted, MetricsError> {
        self.counted.as_deref().ok_or(MetricsError::Disabled)
    }

    fn count(&mut self, change: impl FnOnce(&mut ClusterMetrics)) {
        if let Some(counted) = &mut self.counted {
            change(&mut counted.metrics);
        }
    }

    /// Whoever stood here and stands no more, and whoever the update says departed. The former covers replaced lives,
    /// and departures in updates that never arrived.
    fn departed_with(&self, update: &TopologyUpdate) -> Vec<Member> {
        let present: BTreeSet<&MemberId> = update.members.iter().map(|member| &member.id).collect();
        let gone_here = self.members.iter().filter(|member| !present.contains(&member.id));
        let told = update.topology.left.iter().chain(&update.topology.dead);
        let departed: BTreeMap<_, _> = gone_here.chain(told).map(|member| (&member.id, member)).collect();
        departed.into_values().cloned().collect()
    }
}

impl fmt::Debug for ClusterCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterCore")
            .field("mode", &self.mode)
            .field("members", &self.members)
            .field("blocked", &self.blocked)
            .field("topology_hash", &self.topology_hash)
            .finish_non_exhaustive()
    }
}

/// The cluster is started already. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cluster is already started as a {mode}; nothing was changed")]
pub struct AlreadyStarted {
    /// As what it runs.
    pub mode: ClusterMode,
}

#[cfg(test)]
mod tests;
