//! A node without a memory: it may have voted, and does not know for what.
//!
//! A new node, one whose disk was replaced, and one whose registry was deleted look the same. None of them votes on a slot,
//! or stores anything for a primary, before it has heard *every* other replica of it. Whoever was granted something by the
//! life before, or had it store something, promised and stored that itself first; so the others together know all of it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::super::id::SlotId;
use super::super::message::{Promise, SlotMessage};
use super::super::reign::Head;
use super::super::replica::SlotReplica;
use super::{Out, SlotEvent, SlotRegistry};
use crate::id::NodeId;
use crate::time::TimerInstant;

impl SlotRegistry {
    /// Asks everyone who was not heard yet.
    pub(super) fn ask_promises(&mut self, now: TimerInstant, out: &mut Out) {
        let mut asks: BTreeMap<NodeId, Vec<SlotId>> = BTreeMap::new();
        for (slot, kept) in &self.slots {
            for node in &kept.learning_from {
                asks.entry(node.clone()).or_default().push(*slot);
            }
        }
        self.next_learning = (!asks.is_empty()).then(|| now + self.config.round_timeout);
        let asker = self.instance;
        for (node, slots) in asks {
            out.send.push((node, SlotMessage::AskPromises { slots, asker }));
        }
    }

    /// Asks `node`, which has just come, without waiting for the next round.
    pub(super) fn learn_from(&self, node: &NodeId, out: &mut Out) {
        let slots = self.slots.iter().filter(|(_, kept)| kept.learning_from.contains(node));
        let slots: Vec<SlotId> = slots.map(|(slot, _)| *slot).collect();
        if !slots.is_empty() {
            let asker = self.instance;
            out.send.push((node.clone(), SlotMessage::AskPromises { slots, asker }));
        }
    }

    pub(super) fn tell_promises(&self, peer: &NodeId, slots: &[SlotId], asker: u64, out: &mut Out) {
        let promises: Vec<Promise> = slots
            .iter()
            .filter_map(|slot| {
                let replica = &self.slots.get(slot)?.replica;
                Some(Promise { slot: *slot, promised: replica.promised(), head: replica.head().cloned() })
            })
            .collect();
        for some in promises.chunks(PROMISES_PER_MESSAGE_MAX) {
            out.send.push((peer.clone(), SlotMessage::Promises { asker, promises: some.to_vec() }));
        }
    }

    pub(super) fn take_promise(&mut self, peer: &NodeId, promise: Promise, now: TimerInstant, out: &mut Out) {
        let Promise { slot, promised, head } = promise;
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        if !kept.learning_from.remove(peer) {
            return;
        }
        kept.seen = kept.seen.max(promised);
        // Nobody is told before the last one was heard, so the disk can wait until then.
        let learned = promised.max(kept.replica.promised());
        let newest = [kept.replica.head().cloned(), head].into_iter().flatten().max_by_key(Head::rank);
        kept.replica = SlotReplica::restored(learned, None, newest);
        if kept.learning_from.is_empty() {
            // The promise says that all is known, so it comes last: a crash may leave the beginning of what is written.
            if let Some(head) = kept.replica.head() {
                out.keep(slot, head);
            }
            out.promise(slot, &kept.replica);
            out.events.push(SlotEvent::Learned { slot });
            self.reconsider(slot, now, out);
        }
    }
}

/// Most promises in one message, each with a head of at most the length of a value.
const PROMISES_PER_MESSAGE_MAX: usize = 64;
