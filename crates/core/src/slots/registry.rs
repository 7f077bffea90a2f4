//! All slots of one node: elections in batches, requests, repair, and the patience between them.
//!
//! The driver calls [`handle_message`](SlotRegistry::handle_message) for what peers send,
//! [`handle_standing`](SlotRegistry::handle_standing) for what membership thinks of them, requests as they come, and
//! [`poll`](SlotRegistry::poll) when the last outcome said so. Time is monotonic. Each call returns a [`RegistryOutcome`],
//! to be carried out in the order of its fields: what is to be persisted is durable before anything else of it is done.
//!
//! A replica believes that the primary of a slot is missing when membership no longer holds it alive, or when it has not
//! *claimed* the slot for `suspect_timeout`. The first replica in order then becomes a candidate at once, the next one a
//! little later. Whoever still holds the primary alive refuses a candidate out of courtesy; that keeps elections rare and
//! has nothing to do with safety.

mod elections;
mod learning;
mod outcome;
mod requests;
mod sync;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::bootstrap::BootstrapState;
use super::candidacy::Candidacy;
use super::config::{SlotConfigError, SlotRegistryConfig};
use super::hlc::{Hlc, HlcTimestamp};
use super::id::{SlotEpoch, SlotId};
use super::map::SlotMap;
use super::message::{Grant, Refusal, RefusalReason, SlotMessage};
use super::record::{ElectionCause, NodeRecord, SlotRecord};
use super::reign::{Head, Reign};
use super::replica::SlotReplica;
use crate::deadline::DeadlineQueue;
use crate::id::{Authority, MemberId, NodeId};
use crate::time::TimerInstant;
pub use outcome::{
    Answer, LocalSlotView, RegistryCounters, RegistryOp, RegistryOutcome, RequestError, RequestId, Restored,
    Route, SlotEvent, SlotView, Standing,
};
use outcome::{Request, Sender};
use requests::InFlight;

/// The registry machine of one node.
#[derive(Debug)]
pub struct SlotRegistry {
    own: MemberId,
    /// Tells this process from any other of the same name.
    instance: u64,
    bootstrap: Arc<BootstrapState>,
    config: SlotRegistryConfig,
    /// The time of day at the zero of the monotonic clock, in milliseconds since 1970.
    unix_millis_at_zero: u64,
    hlc: Hlc,
    map: SlotMap,
    /// What this node keeps of the slots that it stores.
    slots: BTreeMap<SlotId, Slot>,
    nodes: BTreeMap<NodeId, Node>,
    /// When to ask again whether a slot needs a candidate.
    campaigns: DeadlineQueue<SlotId>,
    /// When to ask again for what was not answered.
    rounds: DeadlineQueue<SlotId>,
    requests: BTreeMap<RequestId, Waiting>,
    expiries: DeadlineQueue<RequestId>,
    next_request: u64,
    next_sync: TimerInstant,
    next_claims: TimerInstant,
    next_learning: Option<TimerInstant>,
    is_leaving: bool,
    rng: fastrand::Rng,
    counters: RegistryCounters,
}

/// What this node keeps of one slot.
#[derive(Debug)]
struct Slot {
    replica: SlotReplica,
    /// Whom this node has to hear before it votes, because it has no memory of the slot.
    learning_from: BTreeSet<NodeId>,
    /// The epoch this node would ask for, and who would grant it.
    sounding: Option<(SlotEpoch, BTreeSet<NodeId>)>,
    candidacy: Option<Candidacy>,
    cause: ElectionCause,
    refused_by: BTreeMap<NodeId, RefusalReason>,
    reign: Option<Reign>,
    /// The highest epoch that anybody mentioned.
    seen: SlotEpoch,
    /// When the primary last said that it serves, or somebody was given the time to become it.
    claimed_at: TimerInstant,
    /// Candidacies without success since somebody served.
    attempts: u32,
    /// When the slot was last offered to another node. No request is begun for a moment after that, so that none is under
    /// way when the other one takes it.
    offered_at: Option<TimerInstant>,
    queue: VecDeque<RequestId>,
    in_flight: Option<InFlight>,
}

#[derive(Debug)]
struct Node {
    standing: Standing,
    since: TimerInstant,
    record: Option<NodeRecord>,
}

#[derive(Debug)]
struct Waiting {
    slot: SlotId,
    request: Request,
}

impl Slot {
    /// Whether this node could stand for it.
    fn is_free(&self) -> bool {
        self.learning_from.is_empty()
            && self.reign.is_none()
            && self.candidacy.is_none()
            && self.sounding.is_none()
    }
}

impl SlotRegistry {
    /// The registry of `own`, which peers reach at `address`, with what was on its disk. `instance` tells this process from
    /// any other of the same name, `unix_millis_at_zero` is the time of day at the zero of `now`, and `seed` feeds the
    /// jitter of elections.
    ///
    /// # Errors
    /// A setting out of range.
    ///
    /// # Panics
    /// When `own` is not part of the cluster.
    #[allow(clippy::too_many_arguments)]
    pub fn start(
        own: MemberId,
        address: Authority,
        instance: u64,
        bootstrap: Arc<BootstrapState>,
        config: SlotRegistryConfig,
        restored: Restored,
        unix_millis_at_zero: u64,
        seed: u64,
        now: TimerInstant,
    ) -> Result<(Self, RegistryOutcome), SlotConfigError> {
        config.validate()?;
        assert!(bootstrap.node(&own.node).is_some(), "{own} is not part of its cluster");
        let Restored { replicas, records, nodes, clock, is_new_cluster } = restored;
        let mut registry = Self {
            hlc: Hlc::new(clock, config.clock_offset_max),
            map: SlotMap::new(bootstrap.replication.total_slots),
            slots: BTreeMap::new(),
            nodes: BTreeMap::new(),
            campaigns: DeadlineQueue::new(),
            rounds: DeadlineQueue::new(),
            requests: BTreeMap::new(),
            expiries: DeadlineQueue::new(),
            next_request: 0,
            next_sync: now,
            next_claims: now,
            next_learning: None,
            is_leaving: false,
            rng: fastrand::Rng::with_seed(seed),
            counters: RegistryCounters::default(),
            own,
            instance,
            bootstrap,
            config,
            unix_millis_at_zero,
        };
        for node in &registry.bootstrap.nodes {
            let standing = if node.node == registry.own.node { Standing::Alive } else { Standing::Unknown };
            registry.nodes.insert(node.node.clone(), Node { standing, since: now, record: None });
        }
        for record in nodes {
            if let Some(node) = registry.nodes.get_mut(&record.member.node) {
                node.record = Some(record);
            }
        }
        for record in records {
            // A contradiction was told when it came; the disk has the one that precedes.
            drop(registry.map.merge(record));
        }
        let mut out = Out::default();
        registry.write_own_record(address, now, &mut out);
        registry.take_slots(replicas, is_new_cluster, now, &mut out);
        let outcome = registry.finish(out);
        Ok((registry, outcome))
    }

    /// A message of the registry of another node, sent to this life of this node. What was sent to an earlier life must not
    /// be delivered: a promise that was told to it may have been overtaken since, and a node that has lost its memory would
    /// take it for an answer.
    pub fn handle_message(
        &mut self,
        from: &MemberId,
        message: SlotMessage,
        now: TimerInstant,
    ) -> RegistryOutcome {
        let mut out = Out::default();
        let known = self.nodes.get(&from.node).map(|node| node.record.as_ref());
        let is_over = |record: Option<&NodeRecord>| {
            record.is_some_and(|record| record.member.incarnation > from.incarnation)
        };
        match known {
            Some(record) if from.node != self.own.node && !is_over(record) => {
                self.take_message(from, message, now, &mut out);
            }
            _ => self.counters.strangers += 1,
        }
        self.finish(out)
    }

    /// Records that came with gossip.
    pub fn handle_gossip(
        &mut self,
        records: Vec<SlotRecord>,
        nodes: Vec<NodeRecord>,
        now: TimerInstant,
    ) -> RegistryOutcome {
        let mut out = Out::default();
        self.take_records(records, nodes, now, &mut out);
        self.finish(out)
    }

    /// What membership thinks of another node now.
    pub fn handle_standing(
        &mut self,
        node: &NodeId,
        standing: Standing,
        now: TimerInstant,
    ) -> RegistryOutcome {
        let mut out = Out::default();
        if *node != self.own.node
            && let Some(known) = self.nodes.get_mut(node)
            && known.standing != standing
        {
            known.standing = standing;
            known.since = now;
            if standing == Standing::Alive {
                // It may have missed everything, or it may be the one who knows.
                self.send_digest(node, &mut out);
                self.learn_from(node, &mut out);
            }
            self.reconsider_all(now, &mut out);
        }
        self.finish(out)
    }

    /// Begins to leave: says so, and hands its slots over. It goes on to serve what nobody takes.
    /// [`is_drained`](Self::is_drained) says when all are taken.
    pub fn leave(&mut self, now: TimerInstant) -> RegistryOutcome {
        let mut out = Out::default();
        if !self.is_leaving {
            self.is_leaving = true;
            if let Some(mut record) = self.nodes.get(&self.own.node).and_then(|node| node.record.clone()) {
                record.leaving = true;
                record.heartbeat = self.stamp(now);
                self.adopt_own(record.clone(), &mut out);
                for node in self.others() {
                    let message = SlotMessage::Delta {
                        records: Vec::new(),
                        nodes: alloc::vec![record.clone()],
                        wanted: Vec::new(),
                    };
                    out.send.push((node, message));
                }
            }
            let reigning: Vec<SlotId> = self.slots.keys().copied().collect();
            for slot in reigning {
                self.campaigns.clear(&slot);
            }
            self.hand_over(now, &mut out);
        }
        self.finish(out)
    }

    /// Runs everything that is due.
    pub fn poll(&mut self, now: TimerInstant) -> RegistryOutcome {
        let mut out = Out::default();
        while let Some(request) = self.expiries.pop_due(now) {
            self.expire(request, now, &mut out);
        }
        while let Some(slot) = self.rounds.pop_due(now) {
            self.repeat_round(slot, now, &mut out);
        }
        while let Some(slot) = self.campaigns.pop_due(now) {
            self.campaign_if_missing(slot, now, &mut out);
        }
        if self.next_learning.is_some_and(|at| at <= now) {
            self.ask_promises(now, &mut out);
        }
        if self.next_claims <= now {
            self.next_claims = now + self.claims_interval();
            self.send_claims(&mut out);
            self.hand_over(now, &mut out);
        }
        if self.next_sync <= now {
            self.next_sync = now + self.bootstrap.pace.full_sync_interval;
            self.send_digests(&mut out);
        }
        self.finish(out)
    }

    /// Where requests for `slot` go: to its primary, or, before any election, to whoever is to be it first.
    #[must_use]
    pub fn route(&self, slot: SlotId) -> Option<Route> {
        if slot.get() >= self.bootstrap.replication.total_slots {
            return None;
        }
        Some(match self.map.record(slot) {
            Some(record) => Route { primary: record.primary.clone(), epoch: record.epoch },
            None => Route { primary: self.bootstrap.replicas(slot).next()?.clone(), epoch: SlotEpoch::ZERO },
        })
    }

    /// Whether this node can serve: it has a memory of all its slots, and knows a primary for every slot.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.learning_count() == 0 && self.vacant_count() == 0
    }

    /// How many slots this node stores and has yet to learn about.
    #[must_use]
    pub fn learning_count(&self) -> usize {
        self.slots.values().filter(|slot| !slot.learning_from.is_empty()).count()
    }

    /// Whom this node has yet to hear before it votes on all of its slots.
    #[must_use]
    pub fn learning_from(&self) -> BTreeSet<NodeId> {
        self.slots.values().flat_map(|slot| slot.learning_from.iter().cloned()).collect()
    }

    /// How many slots have no primary, or one that is not held alive.
    #[must_use]
    pub fn vacant_count(&self) -> usize {
        let is_served = |record: &&SlotRecord| {
            if record.primary == self.own.node {
                let slot = self.slots.get(&record.slot);
                return slot.is_some_and(|slot| slot.reign.as_ref().is_some_and(Reign::is_serving));
            }
            matches!(self.standing(&record.primary), Standing::Alive | Standing::Unknown)
        };
        usize::from(self.bootstrap.replication.total_slots) - self.map.records().filter(is_served).count()
    }

    /// How many slots this node serves.
    #[must_use]
    pub fn serving_count(&self) -> usize {
        self.slots.values().filter(|slot| slot.reign.as_ref().is_some_and(Reign::is_serving)).count()
    }

    /// Whether a node that leaves serves nothing any more, or nobody is left to take it.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.serving_count() == 0
            || !self.nodes.iter().any(|(node, known)| {
                *node != self.own.node && known.standing == Standing::Alive && !is_leaving(known)
            })
    }

    /// The records of all slots.
    #[must_use]
    pub const fn map(&self) -> &SlotMap {
        &self.map
    }

    /// What each node of the cluster said of itself last, and what this node thinks of it.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeId, Standing, Option<&NodeRecord>)> {
        self.nodes.iter().map(|(id, node)| (id, self.standing(id), node.record.as_ref()))
    }

    /// What this node keeps of the slots whose promises it remembers, for a snapshot.
    pub fn replicas(&self) -> impl Iterator<Item = (SlotId, &SlotReplica)> {
        let remembered = self.slots.iter().filter(|(_, slot)| slot.learning_from.is_empty());
        remembered.map(|(id, slot)| (*id, &slot.replica))
    }

    /// This node, in this life.
    #[must_use]
    pub const fn own(&self) -> &MemberId {
        &self.own
    }

    /// The beginning of the cluster.
    #[must_use]
    pub const fn bootstrap(&self) -> &Arc<BootstrapState> {
        &self.bootstrap
    }

    /// The last stamp of the hybrid clock.
    #[must_use]
    pub const fn clock(&self) -> HlcTimestamp {
        self.hlc.last()
    }

    /// How often things happened.
    #[must_use]
    pub const fn counters(&self) -> RegistryCounters {
        self.counters
    }

    /// What this node knows of `slot`.
    #[must_use]
    pub fn view(&self, slot: SlotId, now: TimerInstant) -> Option<SlotView> {
        self.route(slot)?;
        let record = self.map.record(slot).cloned();
        let local = self.slots.get(&slot).map(|kept| LocalSlotView {
            promised: kept.replica.promised(),
            granted_to: kept.replica.granted_to().cloned(),
            learning_from: kept.learning_from.iter().cloned().collect(),
            candidacy: kept
                .candidacy
                .as_ref()
                .map(|candidacy| (candidacy.epoch(), candidacy.granters().iter().cloned().collect())),
            refused_by: kept.refused_by.iter().map(|(node, reason)| (node.clone(), *reason)).collect(),
            reign: kept.reign.as_ref().map(|reign| (reign.epoch(), reign.is_serving())),
            stored: kept.replica.tag(),
            claim_age: now.saturating_since(kept.claimed_at),
        });
        Some(SlotView {
            slot,
            primary_standing: record.as_ref().map(|record| self.standing(&record.primary)),
            record,
            replicas: self.bootstrap.replicas(slot).cloned().collect(),
            local,
        })
    }

    fn take_slots(
        &mut self,
        mut replicas: BTreeMap<SlotId, SlotReplica>,
        is_new_cluster: bool,
        now: TimerInstant,
        out: &mut Out,
    ) {
        let bootstrap = Arc::clone(&self.bootstrap);
        for id in bootstrap.slots() {
            if !bootstrap.replicas(id).any(|replica| *replica == self.own.node) {
                continue;
            }
            let remembered = replicas.remove(&id);
            let others = bootstrap.replicas(id).filter(|replica| **replica != self.own.node);
            let learning_from = match &remembered {
                None if !is_new_cluster => others.cloned().collect(),
                _ => BTreeSet::new(),
            };
            let replica = remembered.unwrap_or_default();
            let record_epoch = self.map.record(id).map_or(SlotEpoch::ZERO, |record| record.epoch);
            let slot = Slot {
                seen: replica.promised().max(record_epoch),
                replica,
                learning_from,
                sounding: None,
                candidacy: None,
                cause: ElectionCause::First,
                refused_by: BTreeMap::new(),
                reign: None,
                claimed_at: now,
                attempts: 0,
                offered_at: None,
                queue: VecDeque::new(),
                in_flight: None,
            };
            self.slots.insert(id, slot);
        }
        if self.learning_count() > 0 {
            self.ask_promises(now, out);
        }
        self.reconsider_all(now, out);
    }

    fn take_message(&mut self, from: Sender<'_>, message: SlotMessage, now: TimerInstant, out: &mut Out) {
        let peer = &from.node;
        match message {
            SlotMessage::Sound { asks } => {
                for (slot, epoch) in asks {
                    self.take_sounding(peer, slot, epoch, now, out);
                }
            }
            SlotMessage::Willing { asks } => {
                for (slot, epoch) in asks {
                    self.take_willing(peer, slot, epoch, now, out);
                }
            }
            SlotMessage::AskGrants { asks, endorsed } => {
                for (slot, epoch) in asks {
                    self.take_ask(peer, slot, epoch, endorsed, now, out);
                }
            }
            SlotMessage::Grants { granted, refused } => {
                for grant in granted {
                    self.take_grant(peer, grant, now, out);
                }
                for refusal in refused {
                    self.take_refusal(peer, refusal, now, out);
                }
            }
            SlotMessage::AskHeads { slots } => self.tell_heads(peer, slots, out),
            SlotMessage::Heads { heads } => {
                for (slot, head) in heads {
                    self.take_head(slot, &head, now, out);
                }
            }
            SlotMessage::HandOver { slots } => {
                for (slot, epoch) in slots {
                    self.take_over(peer, slot, epoch, now, out);
                }
            }
            SlotMessage::Claims { slots } => self.take_claims(peer, slots, now, out),
            SlotMessage::AskPromises { slots, asker } => self.tell_promises(peer, &slots, asker, out),
            SlotMessage::Promises { asker, promises } => {
                if asker == self.instance {
                    for promise in promises {
                        self.take_promise(peer, promise, now, out);
                    }
                }
            }
            SlotMessage::Store { slot, epoch, head } => self.take_store(peer, slot, epoch, &head, now, out),
            SlotMessage::Stored { slot, epoch, tag } => self.take_stored(peer, slot, epoch, tag, now, out),
            SlotMessage::Confirm { slot, epoch, nonce } => {
                self.take_confirm(peer, slot, epoch, nonce, now, out);
            }
            SlotMessage::Confirmed { slot, epoch, nonce } => {
                self.take_confirmed(peer, slot, epoch, nonce, now, out);
            }
            SlotMessage::Stale { slot, epoch, promised } => self.take_stale(slot, epoch, promised, now, out),
            SlotMessage::Digest { slots, nodes } => self.take_digest(peer, &slots, nodes, out),
            SlotMessage::Delta { records, nodes, wanted } => {
                self.take_records(records, nodes, now, out);
                self.tell_wanted(peer, &wanted, out);
            }
        }
    }

    fn standing(&self, node: &NodeId) -> Standing {
        let Some(known) = self.nodes.get(node) else { return Standing::Unknown };
        if is_leaving(known) { Standing::Leaving } else { known.standing }
    }

    fn others(&self) -> Vec<NodeId> {
        self.nodes.keys().filter(|node| **node != self.own.node).cloned().collect()
    }

    fn other_replicas(&self, slot: SlotId) -> Vec<NodeId> {
        self.bootstrap.replicas(slot).filter(|replica| **replica != self.own.node).cloned().collect()
    }

    fn unix_millis(&self, now: TimerInstant) -> u64 {
        self.unix_millis_at_zero.saturating_add(now.as_nanos() / 1_000_000)
    }

    fn stamp(&mut self, now: TimerInstant) -> HlcTimestamp {
        let millis = self.unix_millis(now);
        self.hlc.tick(millis)
    }

    fn claims_interval(&self) -> Duration {
        self.bootstrap.pace.suspect_timeout / 3
    }

    fn finish(&mut self, out: Out) -> RegistryOutcome {
        let alarms = [
            self.campaigns.next(),
            self.rounds.next(),
            self.expiries.next(),
            self.next_learning,
            Some(self.next_claims),
            Some(self.next_sync),
        ];
        out.into_outcome(alarms.into_iter().flatten().min())
    }
}

fn is_leaving(node: &Node) -> bool {
    node.record.as_ref().is_some_and(|record| record.leaving)
}

/// An outcome in the making. What is said to one node about many slots is gathered into one message.
#[derive(Debug, Default)]
struct Out {
    persist: Vec<RegistryOp>,
    events: Vec<SlotEvent>,
    gossip_slots: Vec<SlotRecord>,
    gossip_nodes: Vec<NodeRecord>,
    send: Vec<(NodeId, SlotMessage)>,
    answers: Vec<(RequestId, Result<Answer, RequestError>)>,
    batches: BTreeMap<NodeId, Batch>,
    /// Drawn once per call, so that slots that fell vacant together are asked for together.
    jitter: Option<Duration>,
}

#[derive(Debug, Default)]
struct Batch {
    soundings: Vec<(SlotId, SlotEpoch)>,
    willing: Vec<(SlotId, SlotEpoch)>,
    asks: Vec<(SlotId, SlotEpoch)>,
    endorsed_asks: Vec<(SlotId, SlotEpoch)>,
    granted: Vec<Grant>,
    refused: Vec<Refusal>,
    ask_heads: Vec<(SlotId, SlotEpoch)>,
    hand_over: Vec<(SlotId, SlotEpoch)>,
    claims: Vec<(SlotId, SlotEpoch)>,
}

impl Out {
    fn to(&mut self, node: &NodeId) -> &mut Batch {
        self.batches.entry(node.clone()).or_default()
    }

    fn promise(&mut self, slot: SlotId, replica: &SlotReplica) {
        let (epoch, granted_to) = (replica.promised(), replica.granted_to().cloned());
        self.persist.push(RegistryOp::Promise { slot, epoch, granted_to });
    }

    fn keep(&mut self, slot: SlotId, head: &Head) {
        self.persist.push(RegistryOp::Head { slot, head: head.clone() });
    }

    fn into_outcome(self, wake_at: Option<TimerInstant>) -> RegistryOutcome {
        let Self { persist, events, gossip_slots, gossip_nodes, mut send, answers, batches, jitter: _ } =
            self;
        for (node, batch) in batches {
            let Batch {
                soundings,
                willing,
                asks,
                endorsed_asks,
                granted,
                refused,
                ask_heads,
                hand_over,
                claims,
            } = batch;
            let mut add = |is_wanted: bool, message: SlotMessage| {
                if is_wanted {
                    send.push((node.clone(), message));
                }
            };
            add(!soundings.is_empty(), SlotMessage::Sound { asks: soundings });
            add(!willing.is_empty(), SlotMessage::Willing { asks: willing });
            add(!asks.is_empty(), SlotMessage::AskGrants { asks, endorsed: false });
            add(!endorsed_asks.is_empty(), SlotMessage::AskGrants { asks: endorsed_asks, endorsed: true });
            add(!granted.is_empty() || !refused.is_empty(), SlotMessage::Grants { granted, refused });
            add(!ask_heads.is_empty(), SlotMessage::AskHeads { slots: ask_heads });
            add(!hand_over.is_empty(), SlotMessage::HandOver { slots: hand_over });
            add(!claims.is_empty(), SlotMessage::Claims { slots: claims });
        }
        RegistryOutcome { persist, events, gossip_slots, gossip_nodes, send, answers, wake_at }
    }
}

#[cfg(test)]
mod tests;
