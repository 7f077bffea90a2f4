//! What entries amount to: one by one, joined.

use std::collections::BTreeMap;

use synod_core::Incarnation;
use synod_core::id::NodeId;
use synod_core::slots::{
    BootstrapState, ForeignCluster, Head, HlcTimestamp, NodeRecord, RegistryOp, Restored, SlotEpoch, SlotId,
    SlotRecord, SlotReplica,
};

use super::entry::Entry;

/// Everything that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) bootstrap: Option<BootstrapState>,
    pub(super) incarnation: Option<Incarnation>,
    pub(super) clock: HlcTimestamp,
    pub(super) promises: BTreeMap<SlotId, (SlotEpoch, Option<NodeId>)>,
    pub(super) heads: BTreeMap<SlotId, Head>,
    pub(super) records: BTreeMap<SlotId, SlotRecord>,
    pub(super) nodes: BTreeMap<NodeId, NodeRecord>,
    /// Of the log only: a snapshot leaves them to the audit log.
    pub(super) takeovers: Vec<String>,
}

impl State {
    /// Whether all entries could be joined.
    pub(super) fn check(&self, entries: &[Entry]) -> Result<(), ForeignCluster> {
        let mut known = self.bootstrap.clone();
        for entry in entries {
            match (entry, &mut known) {
                (Entry::Bootstrap(other), Some(known)) => drop(known.merge(other)?),
                (Entry::Bootstrap(other), None) => known = Some(other.clone()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Joins an entry. Doing it again changes nothing.
    pub(super) fn apply(&mut self, entry: &Entry) -> Result<(), ForeignCluster> {
        match entry {
            Entry::Op(op) => self.apply_op(op),
            Entry::Bootstrap(other) => match &mut self.bootstrap {
                Some(known) => return known.merge(other).map(drop),
                None => self.bootstrap = Some(other.clone()),
            },
            Entry::Incarnation(life) => self.incarnation = self.incarnation.max(Some(*life)),
            Entry::Takeover(text) => self.takeovers.push(text.clone()),
        }
        Ok(())
    }

    /// What the registry goes on with.
    pub(super) fn restored(&self) -> Restored {
        // A slot is remembered by its promise. A head alone would make a replica that believes it never promised anything.
        let replicas = self.promises.iter().map(|(slot, (epoch, granted_to))| {
            let head = self.heads.get(slot).cloned();
            (*slot, SlotReplica::restored(*epoch, granted_to.clone(), head))
        });
        Restored {
            replicas: replicas.collect(),
            records: self.records.values().cloned().collect(),
            nodes: self.nodes.values().cloned().collect(),
            clock: self.clock,
            is_new_cluster: false,
        }
    }

    fn apply_op(&mut self, op: &RegistryOp) {
        match op {
            RegistryOp::Promise { slot, epoch, granted_to } => {
                let known = self.promises.get(slot).map(|(known, _)| *known);
                // An epoch is granted once, so of two entries for one epoch the first counts.
                if known < Some(*epoch) {
                    self.promises.insert(*slot, (*epoch, granted_to.clone()));
                }
            }
            RegistryOp::Head { slot, head } => {
                if self.heads.get(slot).is_none_or(|known| known.rank() < head.rank()) {
                    self.heads.insert(*slot, head.clone());
                }
            }
            RegistryOp::Record(record) => {
                self.clock = self.clock.max(record.updated_at);
                let known = self.records.get(&record.slot);
                if known.is_none_or(|known| record.precedence(known).is_gt()) {
                    self.records.insert(record.slot, record.clone());
                }
            }
            RegistryOp::Node(record) => {
                self.clock = self.clock.max(record.heartbeat);
                let known = self.nodes.get(&record.member.node);
                if known.is_none_or(|known| record.precedence(known).is_gt()) {
                    self.nodes.insert(record.member.node.clone(), record.clone());
                }
            }
        }
    }
}
