//! One simulated node: its disk, which outlives it, and the process that runs on it now and then.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use synod_core::slots::{
    Head, NodeRecord, RegistryOp, RegistryOutcome, RequestId, Restored, SlotEpoch, SlotId, SlotRecord,
    SlotRegistry, SlotReplica,
};
use synod_core::{MemberId, NodeId, TimerInstant};

use super::world::Happening;

/// What a node has written down. A log of operations, folded.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    promises: BTreeMap<SlotId, (SlotEpoch, Option<NodeId>)>,
    heads: BTreeMap<SlotId, Head>,
    records: BTreeMap<SlotId, SlotRecord>,
    nodes: BTreeMap<NodeId, NodeRecord>,
}

impl Disk {
    pub(super) fn write(&mut self, op: &RegistryOp) {
        match op {
            RegistryOp::Promise { slot, epoch, granted_to } => {
                self.promises.insert(*slot, (*epoch, granted_to.clone()));
            }
            RegistryOp::Head { slot, head } => {
                if self.heads.get(slot).is_none_or(|known| known.rank() < head.rank()) {
                    self.heads.insert(*slot, head.clone());
                }
            }
            RegistryOp::Record(record) => {
                let merged = match self.records.remove(&record.slot) {
                    Some(known) => known.merge(record.clone()),
                    None => record.clone(),
                };
                self.records.insert(record.slot, merged);
            }
            RegistryOp::Node(record) => {
                let node = record.member.node.clone();
                let merged = match self.nodes.remove(&node) {
                    Some(known) => known.merge(record.clone()),
                    None => record.clone(),
                };
                self.nodes.insert(node, merged);
            }
        }
    }

    /// What a driver finds when it reads the log. A head without a promise is of a replica that had not learned yet what it
    /// may vote on.
    pub(super) fn read(&self) -> Restored {
        let replicas = self.promises.iter().map(|(slot, (epoch, granted_to))| {
            let head = self.heads.get(slot).cloned();
            (*slot, SlotReplica::restored(*epoch, granted_to.clone(), head))
        });
        let stamps = self.records.values().map(|record| record.updated_at);
        let clock = stamps.chain(self.nodes.values().map(|record| record.heartbeat)).max();
        Restored {
            replicas: replicas.collect(),
            records: self.records.values().cloned().collect(),
            nodes: self.nodes.values().cloned().collect(),
            clock: clock.unwrap_or_default(),
            is_new_cluster: false,
        }
    }

    pub(super) fn promised(&self, slot: SlotId) -> Option<SlotEpoch> {
        self.promises.get(&slot).map(|(epoch, _)| *epoch)
    }

    pub(super) fn promise_count(&self) -> usize {
        self.promises.len()
    }

    pub(super) fn recorded(&self, slot: SlotId) -> Option<SlotEpoch> {
        self.records.get(&slot).map(|record| record.epoch)
    }

    /// Lowers some promises, as a disk that confirmed what it did not keep.
    pub(super) fn forget_some(&mut self, rng: &mut fastrand::Rng) {
        for (epoch, granted_to) in self.promises.values_mut() {
            if epoch.get() > 0 && rng.bool() {
                *epoch = SlotEpoch::new(epoch.get() - 1);
                *granted_to = None;
            }
        }
    }
}

/// One node of the cluster.
pub(super) struct Node {
    pub(super) name: NodeId,
    pub(super) disk: Disk,
    /// How often it was started.
    pub(super) life: u64,
    pub(super) process: Option<Process>,
    /// How far the time of day is off, in milliseconds.
    pub(super) clock_offset: i64,
    /// When its disk is slow, how slow.
    pub(super) disk_delay_max: Duration,
}

/// One life of a node.
pub(super) struct Process {
    pub(super) member: MemberId,
    pub(super) registry: SlotRegistry,
    pub(super) wake_at: Option<TimerInstant>,
    /// Outcomes that are not durable yet, and that nobody has heard of.
    pub(super) unwritten: VecDeque<RegistryOutcome>,
    /// How many of them the disk is writing at the moment, as one batch.
    pub(super) being_written: usize,
    /// What came while the process was frozen.
    pub(super) frozen: Option<Vec<Happening>>,
    /// Requests that are not answered, with their client and the time at which they must be.
    pub(super) requests: BTreeMap<RequestId, OpenRequest>,
    pub(super) is_leaving: bool,
    /// After so many outcomes it is killed in the middle of one.
    pub(super) dies_in: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRequest {
    pub(super) slot: SlotId,
    /// Its place in the history of the slot.
    pub(super) number: usize,
    pub(super) client: usize,
    pub(super) deadline: Duration,
}

impl Process {
    /// Whether it serves `slot`, and in which epoch.
    pub(super) fn serves(&self, slot: SlotId, now: TimerInstant) -> Option<SlotEpoch> {
        let view = self.registry.view(slot, now)?;
        view.local?.reign.filter(|(_, is_serving)| *is_serving).map(|(epoch, _)| epoch)
    }
}
