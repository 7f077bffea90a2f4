//! Repair: digests are compared, and what differs is exchanged.

use alloc::vec::Vec;

use xxhash_rust::xxh3::Xxh3Default;

use super::super::message::SlotMessage;
use super::super::record::{NodeRecord, SlotRecord};
use super::{Out, RegistryOp, SlotEvent, SlotRegistry, Standing};
use crate::id::{Authority, NodeId};
use crate::time::TimerInstant;

impl SlotRegistry {
    pub(super) fn write_own_record(&mut self, address: Authority, now: TimerInstant, out: &mut Out) {
        let heartbeat = self.stamp(now);
        let (member, instance) = (self.own.clone(), self.instance);
        self.adopt_own(NodeRecord { member, address, instance, leaving: false, heartbeat }, out);
    }

    pub(super) fn adopt_own(&mut self, record: NodeRecord, out: &mut Out) {
        if let Some(own) = self.nodes.get_mut(&self.own.node) {
            own.record = Some(record.clone());
        }
        out.persist.push(RegistryOp::Node(record.clone()));
        out.gossip_nodes.push(record);
    }

    pub(super) fn take_records(
        &mut self,
        records: Vec<SlotRecord>,
        nodes: Vec<NodeRecord>,
        now: TimerInstant,
        out: &mut Out,
    ) {
        for node in nodes {
            self.adopt_node(node, now, out);
        }
        for record in records {
            // Who stores a slot is fixed. A record that says otherwise is not of this cluster.
            if self.bootstrap.replicas(record.slot).eq(&record.replicas)
                && record.replicas.contains(&record.primary)
            {
                self.adopt_record(record, now, out);
            }
        }
    }

    fn adopt_node(&mut self, record: NodeRecord, now: TimerInstant, out: &mut Out) {
        if self.hlc.observe(record.heartbeat, self.unix_millis(now)).is_err() {
            self.counters.clocks_ahead += 1;
        }
        let is_own = record.member.node == self.own.node;
        let Some(node) = self.nodes.get_mut(&record.member.node) else { return };
        if is_own {
            let own = node.record.as_ref();
            let is_taken = own.is_some_and(|own| {
                record.member.incarnation > own.member.incarnation
                    || (record.member == own.member && record.instance != own.instance)
            });
            if is_taken {
                out.events.push(SlotEvent::NameTaken { by: record });
            }
            return;
        }
        if node.record.as_ref().is_some_and(|known| record.precedence(known).is_le()) {
            return;
        }
        let has_changed = node.record.as_ref().is_none_or(|known| known.leaving != record.leaving);
        node.record = Some(record.clone());
        out.persist.push(RegistryOp::Node(record.clone()));
        out.gossip_nodes.push(record);
        if has_changed {
            self.reconsider_all(now, out);
        }
    }

    pub(super) fn send_digests(&mut self, out: &mut Out) {
        let mut peers: Vec<NodeId> =
            self.others().into_iter().filter(|node| self.standing(node) != Standing::Failed).collect();
        self.rng.shuffle(&mut peers);
        for peer in peers.iter().take(usize::from(self.bootstrap.pace.fanout)) {
            self.send_digest(peer, out);
        }
    }

    pub(super) fn send_digest(&self, peer: &NodeId, out: &mut Out) {
        let slots = self.map.digests().to_vec();
        out.send.push((peer.clone(), SlotMessage::Digest { slots, nodes: self.nodes_digest() }));
    }

    pub(super) fn take_digest(&self, peer: &NodeId, slots: &[u64], nodes: u64, out: &mut Out) {
        let wanted = self.map.differing(slots);
        let nodes = if nodes == self.nodes_digest() { Vec::new() } else { self.node_records() };
        if wanted.is_empty() && nodes.is_empty() {
            return;
        }
        let records = wanted.iter().flat_map(|bucket| self.map.bucket(*bucket)).cloned().collect();
        out.send.push((peer.clone(), SlotMessage::Delta { records, nodes, wanted }));
    }

    pub(super) fn tell_wanted(&self, peer: &NodeId, wanted: &[u8], out: &mut Out) {
        if wanted.is_empty() {
            return;
        }
        let records = wanted.iter().flat_map(|bucket| self.map.bucket(*bucket)).cloned().collect();
        let nodes = self.node_records();
        out.send.push((peer.clone(), SlotMessage::Delta { records, nodes, wanted: Vec::new() }));
    }

    fn node_records(&self) -> Vec<NodeRecord> {
        self.nodes.values().filter_map(|node| node.record.clone()).collect()
    }

    fn nodes_digest(&self) -> u64 {
        let mut hash = Xxh3Default::new();
        // The version of what is hashed.
        hash.update(&[1]);
        for record in self.nodes.values().filter_map(|node| node.record.as_ref()) {
            hash.update(record.member.node.as_str().as_bytes());
            hash.update(&[0, u8::from(record.leaving)]);
            hash.update(&record.member.incarnation.get().to_le_bytes());
            hash.update(&record.heartbeat.bits().to_le_bytes());
            hash.update(&record.instance.to_le_bytes());
            hash.update(record.address.as_str().as_bytes());
            hash.update(&[0]);
        }
        hash.digest()
    }
}
