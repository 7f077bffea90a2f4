//! What must hold, and the notes that are needed to see whether it does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use synod_core::slots::{RegistryOp, SlotEpoch, SlotEvent, SlotId, Standing};

use super::world::World;

#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Who served each epoch of each slot.
    elected: BTreeMap<(SlotId, SlotEpoch), usize>,
    /// What others had promised when a node lost its disk: the least that it has to learn.
    floors: BTreeMap<(usize, SlotId), SlotEpoch>,
    /// The newest record that each node was seen to have.
    recorded: Vec<BTreeMap<SlotId, SlotEpoch>>,
    /// The node that was killed to take the time, and its slots that nobody serves yet.
    watched: Option<(usize, BTreeSet<SlotId>)>,
    pub(super) suspected: Option<Duration>,
    pub(super) served_again: Option<Duration>,
}

impl Notes {
    pub(super) fn new(nodes: usize) -> Self {
        Self { recorded: vec![BTreeMap::new(); nodes], ..Self::default() }
    }

    pub(super) fn watch(&mut self, node: usize, slots: impl Iterator<Item = SlotId>) {
        self.watched = Some((node, slots.collect()));
    }
}

impl World {
    pub(super) fn note_event(&mut self, node: usize, event: SlotEvent) {
        self.say(Some(node), "slot", format!("{event:?}"));
        match event {
            SlotEvent::Elected { slot, epoch, .. } => {
                self.report.elections += 1;
                if let Some(before) = self.notes.elected.insert((slot, epoch), node) {
                    self.fail(format!(
                        "slot {slot} has two primaries in epoch {epoch}: n{before} and n{node}"
                    ));
                }
                if let Some((_, vacant)) = &mut self.notes.watched {
                    vacant.remove(&slot);
                    if vacant.is_empty() {
                        self.notes.served_again.get_or_insert(self.now);
                    }
                }
            }
            SlotEvent::Conflict(conflict) => {
                let (slot, epoch) = (conflict.known.slot, conflict.known.epoch);
                self.fail(format!("n{node} knows two primaries of slot {slot} in epoch {epoch}"));
            }
            SlotEvent::NameTaken { by } => self.fail(format!("n{node} met another one of its name: {by:?}")),
            SlotEvent::CampaignStarted { .. } | SlotEvent::SteppedDown { .. } | SlotEvent::Learned { .. } => {
            }
        }
    }

    pub(super) fn note_suspicion(&mut self, about: usize, standing: Standing) {
        let is_watched = self.notes.watched.as_ref().is_some_and(|(node, _)| *node == about);
        if is_watched && matches!(standing, Standing::Suspect | Standing::Failed) {
            self.notes.suspected.get_or_insert(self.now);
        }
    }

    pub(super) fn note_lost_disk(&mut self, node: usize) {
        let slots: Vec<SlotId> = self.stores(node).collect();
        for slot in slots {
            let others = self.nodes.iter().filter_map(|other| other.disk.promised(slot));
            if let Some(most) = others.max() {
                self.notes.floors.insert((node, slot), most);
            }
        }
        self.notes.recorded[node].clear();
    }

    /// Something becomes durable.
    pub(super) fn write(&mut self, node: usize, op: &RegistryOp) {
        if let RegistryOp::Promise { slot, epoch, .. } = op
            && let Some(before) = self.nodes[node].disk.promised(*slot).filter(|before| before > epoch)
            && self.config.mistake.is_none()
        {
            self.fail(format!("n{node} promised epoch {epoch} of slot {slot} after epoch {before}"));
        }
        // The first promise on an empty disk is what was learned from the others.
        if let RegistryOp::Promise { slot, epoch, .. } = op
            && let Some(least) = self.notes.floors.remove(&(node, *slot)).filter(|least| least > epoch)
        {
            self.fail(format!(
                "n{node} votes on slot {slot} again and learned of epoch {epoch}; others had promised {least} when its disk was lost"
            ));
        }
        self.nodes[node].disk.write(op);
    }

    /// A node that has just started remembers what was on its disk.
    pub(super) fn check_memory(&mut self, node: usize) {
        let now = self.time();
        let Some(process) = &self.nodes[node].process else { return };
        let disk = &self.nodes[node].disk;
        let forgets = self.bootstrap.slots().find(|slot| {
            let promised = process.registry.view(*slot, now).and_then(|view| view.local);
            let promised = promised.map(|local| local.promised).unwrap_or_default();
            let recorded = process.registry.map().record(*slot).map(|record| record.epoch);
            promised < disk.promised(*slot).unwrap_or_default() || recorded < disk.recorded(*slot)
        });
        if let Some(slot) = forgets {
            self.fail(format!("n{node} does not remember what it wrote down of slot {slot}"));
        }
    }

    /// The map of a node only ever gets newer, and its requests are answered in time.
    pub(super) fn check_node(&mut self, node: usize) {
        let Some(process) = self.nodes[node].process.as_ref().filter(|one| one.frozen.is_none()) else {
            return;
        };
        let mut problem = None;
        for record in process.registry.map().records() {
            // What was not durable may be forgotten by a crash.
            let durable = self.nodes[node].disk.recorded(record.slot);
            let known = self.notes.recorded[node].insert(record.slot, durable.unwrap_or_default());
            if known > Some(record.epoch) {
                problem = Some(format!("the record of slot {} at n{node} became older", record.slot));
            }
        }
        // Its answer may wait for a slow disk.
        let slack = Duration::from_secs(2);
        if let Some(open) = process.requests.values().find(|open| open.deadline + slack < self.now) {
            problem = Some(format!("n{node} did not answer a request for slot {} in time", open.slot));
        }
        if let Some(problem) = problem {
            self.fail(problem);
        }
    }

    /// A slot that nobody serves, in words.
    pub(super) fn unserved(&self) -> Option<String> {
        let now = self.time();
        let is_served = |slot: &SlotId| {
            self.nodes
                .iter()
                .filter_map(|node| node.process.as_ref())
                .any(|one| one.serves(*slot, now).is_some())
        };
        let slot = self.bootstrap.slots().find(|slot| !is_served(slot))?;
        Some(format!("nobody serves slot {slot}: {}", self.describe(slot)))
    }

    /// Whether all nodes that run have the same map.
    pub(super) fn are_maps_equal(&self) -> bool {
        let mut maps = self.nodes.iter().filter_map(|node| Some(node.process.as_ref()?.registry.map()));
        let first = maps.next();
        maps.all(|map| first.is_some_and(|first| first.digests() == map.digests()))
    }

    /// What is left to be done before the cluster is as it was meant, in words.
    pub(super) fn unsettled(&self) -> Option<String> {
        let now = self.time();
        if !self.are_maps_equal() {
            return Some("the maps differ".to_owned());
        }
        for slot in self.bootstrap.slots() {
            let serving: Vec<usize> = (0..self.nodes.len())
                .filter(|node| {
                    self.nodes[*node].process.as_ref().is_some_and(|one| one.serves(slot, now).is_some())
                })
                .collect();
            let first = self.bootstrap.replicas(slot).next().and_then(|first| self.index_of(first));
            if serving.len() != 1 || serving.first() != first.as_ref() {
                return Some(format!("slot {slot} is served by {serving:?}: {}", self.describe(slot)));
            }
        }
        let unready = self.nodes.iter().find_map(|node| {
            let registry = &node.process.as_ref()?.registry;
            (!registry.is_ready()).then(|| {
                let (learning, vacant) = (registry.learning_from(), registry.vacant_count());
                format!("{} is not ready: it learns from {learning:?}, {vacant} slots are vacant", node.name)
            })
        });
        unready.or_else(|| {
            let learning = !self.notes.floors.is_empty();
            learning.then(|| "a node whose disk was lost has not learned all".to_owned())
        })
    }

    /// What everybody thinks of a slot.
    fn describe(&self, slot: SlotId) -> String {
        let now = self.time();
        let views = self.nodes.iter().filter_map(|node| {
            let view = node.process.as_ref()?.registry.view(slot, now)?;
            let record = view.record.map(|record| format!("{} in {}", record.primary, record.epoch));
            let standing = view.primary_standing;
            Some(format!("{}: {record:?} ({standing:?}), {:?}", node.name, view.local?))
        });
        views.collect::<Vec<_>>().join("; ")
    }

    /// The slots that a node stores.
    pub(super) fn stores(&self, node: usize) -> impl Iterator<Item = SlotId> {
        let name = self.nodes[node].name.clone();
        let slots = self.bootstrap.slots();
        slots.filter(move |slot| self.bootstrap.replicas(*slot).any(|replica| *replica == name))
    }
}
