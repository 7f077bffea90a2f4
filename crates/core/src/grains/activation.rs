//! The grains that run on this node: each at most once, started when called, stopped when idle or when it belongs elsewhere.
//!
//! ```text
//!            request                spawned                 idle, moved, leaving
//!   nothing ─────────► Spawning ───────────────► Active ────────────────────────► Stopping
//!      ▲ │               ▲ │ failed                │ ended by itself                │ terminated
//!      │ └─► Claiming ───┘ │                       │                                │
//!      └───────────────────┴───────────────────────┴────────────────────────────────┘
//! ```
//!
//! Whoever asks while a grain starts waits for that start; whoever asks while it stops waits for its end and the next
//! start. So there are never two of it here. That there are not two of it in the cluster follows from everyone asking the
//! owner, and from a new owner asking those before it first (Claiming). Members that cannot reach each other may run two;
//! when they meet again the owner keeps its own.

mod config;
mod handover;
mod history;
mod outbox;
mod outcome;
mod recent;
mod relocation;
mod snapshot;

pub use config::{ActivationConfig, ActivationConfigError, GrainKindConfig};
pub use outcome::{
    ActivationCommand, ActivationEvent, ActivationId, ActivationOutcome, ActivationRefusal, ActivationReply,
    BEFORE_MAX, ClaimId, ClaimRecord, GrainHost, HandoverCounts, RelocationReceipt, RelocationRecord,
    STOPPED_MAX, StopReason,
};
pub use snapshot::{GrainSnapshot, SnapshotDrop};

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::iter;
use core::time::Duration;

use super::identity::ClusterIdentity;
use super::pid::ActorPid;
use crate::deadline::DeadlineQueue;
use crate::gossip::GossipMemberId;
use crate::time::TimerInstant;
use handover::{Claim, Yielded};
use history::RosterHistory;
use outbox::Outbox;
use recent::Recent;
use snapshot::SnapshotStore;

/// The grains of one node. `R` is whoever asked for one; the registry only moves it.
///
/// Inputs: [`handle_roster`](Self::handle_roster) first and whenever the roster changes;
/// [`handle_activation_request`](Self::handle_activation_request) and the other `handle_*`; [`poll`](Self::poll) at the
/// `wake_at` of the last outcome. Time is monotonic. Every `Spawn` is answered by
/// [`handle_spawned`](Self::handle_spawned) or [`handle_spawn_failed`](Self::handle_spawn_failed), every `Stop` by
/// [`handle_terminated`](Self::handle_terminated), every message that [`handle_message`](Self::handle_message) lets through
/// by [`handle_turn_done`](Self::handle_turn_done), and every request gets exactly one reply. What other nodes send for a
/// `Claim`, `Outdated`, `Transfer` or `Confirm` is given to [`handle_claim`](Self::handle_claim),
/// [`handle_outdated`](Self::handle_outdated), [`handle_relocation`](Self::handle_relocation) and
/// [`handle_receipt`](Self::handle_receipt); it may be lost, doubled and late.
#[derive(Clone, Debug)]
pub struct VirtualActorRegistry<R> {
    config: ActivationConfig,
    kinds: BTreeMap<String, GrainKindConfig>,
    own: GrainHost,
    history: RosterHistory,
    entries: BTreeMap<ClusterIdentity, Entry>,
    /// Requests that wait for the end of the start, or for the start after the end. Few grains have any.
    waiters: BTreeMap<ClusterIdentity, Vec<R>>,
    running: BTreeMap<String, usize>,
    /// When to look whether a grain is idle; each time stands in its entry, too.
    idle: BTreeSet<(TimerInstant, ClusterIdentity)>,
    alarms: DeadlineQueue<Alarm>,
    snapshots: SnapshotStore,
    outbox: Outbox,
    /// Grains that went elsewhere a moment ago.
    yielded: Recent<ClusterIdentity, Yielded>,
    /// Activations elsewhere of whose end this node was told a moment ago.
    ended: Recent<(ClusterIdentity, ActorPid), ()>,
    /// Those of them that the owner of the grain, who is somebody else, is still to be told of.
    strays: Recent<ClusterIdentity, Vec<ActorPid>>,
    /// Members that said that they leave, though the roster still lists them.
    leavers: Recent<GossipMemberId, ()>,
    past: Past,
    counts: HandoverCounts,
    last_activation: u64,
    leaving: bool,
    drained: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    activation: ActivationId,
    state: State,
}

/// What a grain waits for, beside being idle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// Answers of previous owners.
    Claim(ClusterIdentity),
    /// A roster that makes this node the owner of a state that it was given.
    Misplaced(ClusterIdentity),
}

#[derive(Clone, Debug)]
enum State {
    Claiming(Box<Claim>),
    Spawning {
        restored: Option<u64>,
    },
    Active {
        pid: ActorPid,
        last_seen: TimerInstant,
        turns: usize,
        restored: Option<u64>,
        alarm: Option<TimerInstant>,
    },
    Stopping {
        pid: ActorPid,
        reason: StopReason,
    },
}

impl<R> VirtualActorRegistry<R> {
    /// A registry of the node `own` that hosts `kinds`. It starts nothing before it has a roster.
    ///
    /// # Errors
    /// A setting out of range, or a kind given twice.
    pub fn new(
        own: GrainHost,
        kinds: Vec<GrainKindConfig>,
        config: ActivationConfig,
    ) -> Result<Self, ActivationConfigError> {
        config.validate()?;
        let mut known = BTreeMap::new();
        for kind in kinds {
            kind.validate()?;
            if let Some(twice) = known.insert(kind.kind.clone(), kind) {
                return Err(ActivationConfigError::DuplicateKind { kind: twice.kind });
            }
        }
        Ok(Self {
            running: known.keys().map(|kind| (kind.clone(), 0)).collect(),
            kinds: known,
            own,
            history: RosterHistory::new(config.handover_window),
            entries: BTreeMap::new(),
            waiters: BTreeMap::new(),
            idle: BTreeSet::new(),
            alarms: DeadlineQueue::new(),
            snapshots: SnapshotStore::new(config.snapshot_bytes_max, config.snapshots_bytes_max),
            outbox: Outbox::new(config.snapshots_bytes_max),
            yielded: Recent::new(RECENT_MAX),
            ended: Recent::new(RECENT_MAX),
            strays: Recent::new(RECENT_MAX),
            leavers: Recent::new(RECENT_MAX),
            past: Past::default(),
            counts: HandoverCounts::default(),
            last_activation: 0,
            leaving: false,
            drained: false,
            config,
        })
    }

    /// `asker` wants to know where `grain` runs; if it does not, it is started.
    pub fn handle_activation_request(
        &mut self,
        grain: &ClusterIdentity,
        asker: R,
        now: TimerInstant,
    ) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        if let Some(Entry { state: State::Active { pid, last_seen, .. }, .. }) = self.entries.get_mut(grain) {
            *last_seen = now;
            let result = Ok(pid.clone());
            out.replies.push(ActivationReply { to: asker, grain: grain.clone(), result });
            return self.finish(out);
        }
        if let Err(refusal) = self.may_start(grain) {
            out.refuse(asker, grain, refusal);
            return self.finish(out);
        }
        if self.entries.contains_key(grain) {
            let max = self.config.waiters_max;
            let waiters = self.waiters.entry(grain.clone()).or_default();
            if waiters.len() < max {
                waiters.push(asker);
            } else {
                out.refuse(asker, grain, ActivationRefusal::TooManyWaiters { grain: grain.clone(), max });
            }
        } else {
            self.forget(now);
            self.start(grain, [asker].into(), now, &mut out);
        }
        self.finish(out)
    }

    /// The grain runs as `pid`. Everyone who waited is answered.
    pub fn handle_spawned(
        &mut self,
        grain: &ClusterIdentity,
        activation: ActivationId,
        pid: ActorPid,
        now: TimerInstant,
    ) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        let allowed = self.may_start(grain);
        let restored = match self.entries.get(grain) {
            Some(Entry { activation: known, state: State::Spawning { restored }, .. })
                if *known == activation =>
            {
                *restored
            }
            Some(entry) if entry.activation == activation && entry.state.pid() == Some(&pid) => {
                return self.finish(out);
            }
            _ => {
                let (grain, reason) = (grain.clone(), StopReason::Orphan);
                out.commands.push(ActivationCommand::Stop { grain, pid, reason });
                return self.finish(out);
            }
        };
        let Some(entry) = self.entries.get_mut(grain) else { return self.finish(out) };
        // The grain has its state now; it hands out a newer one when it stops.
        self.snapshots.take(grain);
        *self.running.entry(grain.kind().into()).or_default() += 1;
        let (grain_name, pid_name) = (grain.clone(), pid.clone());
        out.events.push(if restored.is_some() || self.past.contains(grain) {
            ActivationEvent::Reactivated { grain: grain_name, pid: pid_name, activation, restored }
        } else {
            ActivationEvent::Activated { grain: grain_name, pid: pid_name, activation }
        });
        entry.state = State::Active { pid: pid.clone(), last_seen: now, turns: 0, restored, alarm: None };
        let waiters = self.take_waiters(grain);
        match allowed {
            Ok(()) => {
                for to in waiters {
                    let (grain, result) = (grain.clone(), Ok(pid.clone()));
                    out.replies.push(ActivationReply { to, grain, result });
                }
                self.watch_idle(grain, now);
            }
            // The roster changed while it was starting, or this node is about to go.
            Err(refusal) => {
                for waiter in waiters {
                    out.refuse(waiter, grain, refusal.clone());
                }
                let reason = if self.leaving { StopReason::Leaving } else { StopReason::Moved };
                self.stop(grain, reason, &mut out);
            }
        }
        self.finish(out)
    }

    /// The grain could not be started. Everyone who waited is told; the next request tries again.
    pub fn handle_spawn_failed(
        &mut self,
        grain: &ClusterIdentity,
        activation: ActivationId,
        reason: &str,
    ) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        let is_starting = self.entries.get(grain).is_some_and(|entry| {
            entry.activation == activation && matches!(entry.state, State::Spawning { .. })
        });
        if is_starting {
            self.entries.remove(grain);
            for waiter in self.take_waiters(grain) {
                let (grain_name, reason) = (grain.clone(), reason.into());
                out.refuse(waiter, grain, ActivationRefusal::SpawnFailed { grain: grain_name, reason });
            }
            let (grain, reason) = (grain.clone(), reason.into());
            out.events.push(ActivationEvent::SpawnFailed { grain, reason });
        }
        self.finish(out)
    }

    /// A message for the grain came in: its turn begins. Returns where it runs; `None` when it does not, or is about to
    /// stop: the sender must be told so, and ask again.
    pub fn handle_message(&mut self, grain: &ClusterIdentity, now: TimerInstant) -> Option<ActorPid> {
        let entry = self.entries.get_mut(grain)?;
        let State::Active { pid, last_seen, turns, .. } = &mut entry.state else { return None };
        *last_seen = now;
        *turns += 1;
        Some(pid.clone())
    }

    /// The activation `pid` has finished with a message.
    pub fn handle_turn_done(
        &mut self,
        grain: &ClusterIdentity,
        pid: &ActorPid,
        now: TimerInstant,
    ) -> ActivationOutcome<R> {
        if let Some(Entry { state: State::Active { pid: known, last_seen, turns, .. }, .. }) =
            self.entries.get_mut(grain)
            && known == pid
        {
            *last_seen = now;
            *turns = turns.saturating_sub(1);
            if *turns == 0 {
                self.watch_idle(grain, now);
            }
        }
        self.finish(ActivationOutcome::default())
    }

    /// The activation `pid` is over, and left `snapshot` behind. An unknown one changes nothing.
    pub fn handle_terminated(
        &mut self,
        grain: &ClusterIdentity,
        pid: &ActorPid,
        snapshot: Option<GrainSnapshot>,
        now: TimerInstant,
    ) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        self.forget(now);
        if self.entries.get(grain).and_then(|entry| entry.state.pid()) != Some(pid) {
            return self.finish(out);
        }
        self.watch_idle_no_more(grain);
        let Some(Entry { state, .. }) = self.entries.remove(grain) else { return self.finish(out) };
        let waiters = self.take_waiters(grain);
        if let Some(running) = self.running.get_mut(grain.kind()) {
            *running = running.saturating_sub(1);
        }
        self.past.insert(grain);
        self.tell_end(grain, &state, pid, snapshot.as_ref(), &mut out);
        if snapshot.is_none() && self.needs_snapshot(grain) && self.snapshots.get(grain).is_none() {
            out.events.push(ActivationEvent::SnapshotMissing { grain: grain.clone() });
        }
        self.pass_on(grain, Some(pid), snapshot, now, &mut out);
        out.commands.push(ActivationCommand::Announce { grain: grain.clone(), pid: pid.clone() });
        if !waiters.is_empty() {
            match self.may_start(grain) {
                Ok(()) => self.start(grain, waiters, now, &mut out),
                Err(refusal) => {
                    for waiter in waiters {
                        out.refuse(waiter, grain, refusal.clone());
                    }
                }
            }
        }
        self.finish(out)
    }

    /// Stops what has been idle for its limit, and sees to what is waited for. A grain that works is not idle, however long
    /// it takes.
    pub fn poll(&mut self, now: TimerInstant) -> ActivationOutcome<R> {
        let mut out = ActivationOutcome::default();
        while self.idle.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, grain)) = self.idle.pop_first() else { break };
            let limit = self.idle_limit(&grain);
            let Some(Entry { state: State::Active { last_seen, turns, alarm, .. }, .. }) =
                self.entries.get_mut(&grain)
            else {
                continue;
            };
            *alarm = None;
            // Alarms are not moved with every message; one that rings too early is set anew. The end of a turn sets one, too.
            match limit.map(|limit| *last_seen + limit).filter(|_| *turns == 0) {
                Some(at) if at <= now => self.stop(&grain, StopReason::Idle, &mut out),
                Some(at) => {
                    *alarm = Some(at);
                    self.idle.insert((at, grain));
                }
                None => {}
            }
        }
        self.forget(now);
        // Each once: what is due again at once waits for the next call.
        let due: Vec<_> = iter::from_fn(|| self.alarms.pop_due(now)).collect();
        for alarm in due {
            match alarm {
                Alarm::Claim(grain) => self.claim_due(&grain, now, &mut out),
                Alarm::Misplaced(grain) => self.misplaced_due(&grain, now, &mut out),
            }
        }
        self.poll_outbox(now, &mut out);
        self.finish(out)
    }

    /// Where `grain` runs on this node, if it does.
    #[must_use]
    pub fn pid(&self, grain: &ClusterIdentity) -> Option<&ActorPid> {
        match &self.entries.get(grain)?.state {
            State::Active { pid, .. } => Some(pid),
            State::Claiming(_) | State::Spawning { .. } | State::Stopping { .. } => None,
        }
    }

    /// This node, in this life.
    #[must_use]
    pub const fn own(&self) -> &GrainHost {
        &self.own
    }

    /// How grains have come and gone.
    #[must_use]
    pub const fn handover_counts(&self) -> HandoverCounts {
        self.counts
    }

    /// How many grains are being asked for or started, run or stop here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many grains run on this node, by kind: what the heartbeat tells. Kinds without any are listed.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        self.running.iter().map(|(kind, count)| (kind.as_str(), *count))
    }

    /// The grains that do not run and whose state is kept here, in order.
    pub fn kept(&self) -> impl Iterator<Item = &ClusterIdentity> {
        self.snapshots.grains()
    }

    /// Whether this node leaves, no grain runs here any more, and no state of one is still on its way.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.drained
    }

    /// Whether this node may start `grain`.
    fn may_start(&self, grain: &ClusterIdentity) -> Result<(), ActivationRefusal> {
        if !self.kinds.contains_key(grain.kind()) {
            return Err(ActivationRefusal::UnknownKind { kind: grain.kind().into() });
        }
        if self.leaving {
            let successor = self.successor(grain).cloned();
            return Err(ActivationRefusal::Leaving { grain: grain.clone(), successor });
        }
        if let Some(to) = self.ceded(grain) {
            let owner = handover::listed(to);
            return Err(ActivationRefusal::NotOwner { grain: grain.clone(), owner });
        }
        match self.owner(grain) {
            Some(owner) if owner.id == self.own.id => Ok(()),
            Some(owner) => Err(ActivationRefusal::NotOwner { grain: grain.clone(), owner: owner.clone() }),
            None => Err(ActivationRefusal::NoOwner { grain: grain.clone() }),
        }
    }

    /// Starts a grain that does not run here, after its previous owners were asked if there are any.
    fn start(
        &mut self,
        grain: &ClusterIdentity,
        waiters: Vec<R>,
        now: TimerInstant,
        out: &mut ActivationOutcome<R>,
    ) {
        let max = self.config.activations_max;
        if self.entries.len() >= max {
            for waiter in waiters {
                out.refuse(
                    waiter,
                    grain,
                    ActivationRefusal::TooManyActivations { grain: grain.clone(), max },
                );
            }
            return;
        }
        // What this node was about to give away is its own again.
        if let Some(parcel) = self.outbox.take(grain) {
            self.add_strays(grain, parcel.record.stopped, now);
            if let Some(snapshot) = parcel.record.snapshot {
                self.keep_newer(grain, snapshot, out);
            }
        }
        let previous = self.previous_hosts(grain);
        if !previous.is_empty() {
            return self.begin_claim(grain, previous, waiters, now, out);
        }
        self.last_activation += 1;
        self.spawn(grain, ActivationId(self.last_activation), waiters, out);
    }

    fn spawn(
        &mut self,
        grain: &ClusterIdentity,
        activation: ActivationId,
        waiters: Vec<R>,
        out: &mut ActivationOutcome<R>,
    ) {
        let snapshot = self.snapshots.get(grain).cloned();
        if self.needs_snapshot(grain) && snapshot.is_none() {
            out.events.push(ActivationEvent::SnapshotMissing { grain: grain.clone() });
            for waiter in waiters {
                out.refuse(waiter, grain, ActivationRefusal::StateMissing { grain: grain.clone() });
            }
            return;
        }
        self.strays.remove(grain);
        let state = State::Spawning { restored: snapshot.as_ref().map(|snapshot| snapshot.version) };
        self.enter(grain, Entry { activation, state }, waiters);
        out.commands.push(ActivationCommand::Spawn { grain: grain.clone(), activation, snapshot });
    }

    fn enter(&mut self, grain: &ClusterIdentity, entry: Entry, waiters: Vec<R>) {
        self.entries.insert(grain.clone(), entry);
        if !waiters.is_empty() {
            self.waiters.insert(grain.clone(), waiters);
        }
    }

    /// Who waits for `grain`; each of them is to be answered.
    fn take_waiters(&mut self, grain: &ClusterIdentity) -> Vec<R> {
        self.waiters.remove(grain).unwrap_or_default()
    }

    /// Begins to stop an activation. Harmless unless it is active.
    fn stop(&mut self, grain: &ClusterIdentity, reason: StopReason, out: &mut ActivationOutcome<R>) {
        let Some(entry) = self.entries.get_mut(grain) else { return };
        let State::Active { pid, .. } = &entry.state else { return };
        let pid = pid.clone();
        self.watch_idle_no_more(grain);
        let Some(entry) = self.entries.get_mut(grain) else { return };
        entry.state = State::Stopping { pid: pid.clone(), reason };
        out.commands.push(ActivationCommand::Stop { grain: grain.clone(), pid, reason });
    }

    fn tell_end(
        &self,
        grain: &ClusterIdentity,
        state: &State,
        pid: &ActorPid,
        snapshot: Option<&GrainSnapshot>,
        out: &mut ActivationOutcome<R>,
    ) {
        let (grain_name, pid) = (grain.clone(), pid.clone());
        out.events.push(match state {
            State::Stopping { reason: StopReason::Idle, .. } => {
                ActivationEvent::Passivated { grain: grain_name, pid }
            }
            State::Stopping { .. } => ActivationEvent::HandedOver {
                grain: grain_name,
                pid,
                to: self.next_host(grain).map(|host| host.id),
                snapshot: snapshot.map(|snapshot| snapshot.version),
            },
            State::Claiming(_) | State::Active { .. } | State::Spawning { .. } => {
                ActivationEvent::Deactivated { grain: grain_name, pid }
            }
        });
    }

    /// Looks after the idle limit whether the grain is idle, if that is not planned already.
    fn watch_idle(&mut self, grain: &ClusterIdentity, now: TimerInstant) {
        let Some(at) = self.idle_limit(grain).map(|limit| now + limit) else { return };
        if let Some(Entry { state: State::Active { alarm: alarm @ None, .. }, .. }) =
            self.entries.get_mut(grain)
        {
            *alarm = Some(at);
            self.idle.insert((at, grain.clone()));
        }
    }

    fn watch_idle_no_more(&mut self, grain: &ClusterIdentity) {
        if let Some(Entry { state: State::Active { alarm, .. }, .. }) = self.entries.get_mut(grain)
            && let Some(at) = alarm.take()
        {
            self.idle.remove(&(at, grain.clone()));
        }
    }

    fn idle_limit(&self, grain: &ClusterIdentity) -> Option<Duration> {
        self.kinds.get(grain.kind())?.idle_limit
    }

    fn needs_snapshot(&self, grain: &ClusterIdentity) -> bool {
        self.kinds.get(grain.kind()).is_some_and(|kind| kind.snapshot_required)
    }

    /// Forgets what is too long ago to matter.
    fn forget(&mut self, now: TimerInstant) {
        self.history.forget(now);
        self.yielded.forget(now);
        self.ended.forget(now);
        self.strays.forget(now);
        self.leavers.forget(now);
    }

    fn finish(&mut self, mut out: ActivationOutcome<R>) -> ActivationOutcome<R> {
        for event in &out.events {
            match event {
                ActivationEvent::HandoverMissed { .. } => self.counts.missed += 1,
                ActivationEvent::Duplicate { .. } => self.counts.duplicates += 1,
                ActivationEvent::SnapshotDropped { .. } => self.counts.snapshots_dropped += 1,
                _ => {}
            }
        }
        if self.leaving && !self.drained && self.entries.is_empty() && self.outbox.is_empty() {
            self.drained = true;
            out.events.push(ActivationEvent::Drained);
        }
        let alarms = [self.idle.first().map(|(at, _)| *at), self.alarms.next(), self.outbox.next()];
        let forgetting = [self.yielded.next(), self.ended.next(), self.strays.next(), self.leavers.next()];
        out.wake_at = alarms.into_iter().chain(forgetting).flatten().min();
        out
    }
}

impl State {
    const fn pid(&self) -> Option<&ActorPid> {
        match self {
            Self::Active { pid, .. } | Self::Stopping { pid, .. } => Some(pid),
            Self::Claiming(_) | Self::Spawning { .. } => None,
        }
    }
}

/// The grains that ran here before, to tell a return from a first time. Bounded; the oldest is forgotten.
#[derive(Clone, Debug, Default)]
struct Past {
    grains: BTreeSet<ClusterIdentity>,
    order: VecDeque<ClusterIdentity>,
}

impl Past {
    fn insert(&mut self, grain: &ClusterIdentity) {
        if self.grains.insert(grain.clone()) {
            self.order.push_back(grain.clone());
        }
        if self.order.len() > PAST_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.grains.remove(&oldest);
        }
    }

    fn contains(&self, grain: &ClusterIdentity) -> bool {
        self.grains.contains(grain)
    }
}

/// Most grains that are remembered after they ran.
const PAST_MAX: usize = 65_536;
/// Most grains whose last move is remembered.
const RECENT_MAX: usize = 65_536;

#[cfg(test)]
mod tests;
