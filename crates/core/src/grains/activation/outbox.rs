//! What was handed over and is not confirmed yet.
//!
//! A state that leaves is kept until its receiver has it, and sent again until then: for a while, and up to a number of
//! bytes. What is given up is told.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use super::outcome::{GrainHost, RelocationRecord};
use super::snapshot::SnapshotDrop;
use crate::deadline::DeadlineQueue;
use crate::grains::ClusterIdentity;
use crate::time::TimerInstant;

/// Something on its way.
#[derive(Clone, Debug)]
pub(super) struct Parcel {
    pub(super) to: GrainHost,
    pub(super) record: RelocationRecord,
    number: u64,
    sends: u32,
    give_up_at: TimerInstant,
}

/// The parcels of this node, at most one of each grain.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    parcels: BTreeMap<ClusterIdentity, Parcel>,
    order: BTreeMap<u64, ClusterIdentity>,
    alarms: DeadlineQueue<ClusterIdentity>,
    last_number: u64,
    bytes: usize,
    bytes_max: usize,
}

/// A parcel that is due: to be sent again, or given up.
pub(super) enum Due {
    Send(GrainHost, RelocationRecord),
    GiveUp(RelocationRecord),
}

impl Outbox {
    pub(super) const fn new(bytes_max: usize) -> Self {
        Self {
            parcels: BTreeMap::new(),
            order: BTreeMap::new(),
            alarms: DeadlineQueue::new(),
            last_number: 0,
            bytes: 0,
            bytes_max,
        }
    }

    /// Keeps a parcel that is being sent, in place of an earlier one of its grain. Returns the states that had to make
    /// room.
    pub(super) fn put(
        &mut self,
        to: GrainHost,
        record: RelocationRecord,
        now: TimerInstant,
    ) -> Vec<(ClusterIdentity, u64, SnapshotDrop)> {
        let grain = record.grain.clone();
        self.take(&grain);
        self.bytes += cost(&record);
        self.last_number += 1;
        let (number, give_up_at) = (self.last_number, now + PATIENCE);
        self.order.insert(number, grain.clone());
        self.alarms.set(&grain, now + RESEND_FIRST);
        self.parcels.insert(grain, Parcel { to, record, number, sends: 1, give_up_at });
        let mut dropped = Vec::new();
        while self.bytes > self.bytes_max && self.parcels.len() > 1 {
            let Some(oldest) = self.order.first_key_value().map(|(_, grain)| grain.clone()) else { break };
            if let Some(Parcel { record, .. }) = self.take(&oldest)
                && let Some(snapshot) = record.snapshot
            {
                dropped.push((oldest, snapshot.version, SnapshotDrop::NoRoom));
            }
        }
        dropped
    }

    pub(super) fn get(&self, grain: &ClusterIdentity) -> Option<&Parcel> {
        self.parcels.get(grain)
    }

    pub(super) fn take(&mut self, grain: &ClusterIdentity) -> Option<Parcel> {
        let parcel = self.parcels.remove(grain)?;
        self.order.remove(&parcel.number);
        self.alarms.clear(grain);
        self.bytes -= cost(&parcel.record);
        Some(parcel)
    }

    /// Whoever leaves has little time, and does not wait longer each time.
    pub(super) fn pop_due(&mut self, is_leaving: bool, now: TimerInstant) -> Option<Due> {
        let grain = self.alarms.pop_due(now)?;
        let parcel = self.parcels.get_mut(&grain)?;
        if parcel.give_up_at <= now {
            return self.take(&grain).map(|parcel| Due::GiveUp(parcel.record));
        }
        let doublings = if is_leaving { 0 } else { parcel.sends.min(3) };
        let pause = (RESEND_FIRST * (1 << doublings)).min(RESEND_MAX);
        parcel.sends += 1;
        self.alarms.set(&grain, (now + pause).min(parcel.give_up_at));
        Some(Due::Send(parcel.to.clone(), parcel.record.clone()))
    }

    pub(super) fn next(&self) -> Option<TimerInstant> {
        self.alarms.next()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parcels.is_empty()
    }

    pub(super) fn parcels(&self) -> impl Iterator<Item = &Parcel> {
        self.parcels.values()
    }
}

fn cost(record: &RelocationRecord) -> usize {
    let state = record.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes.len());
    state + record.grain.key().as_str().len() + OVERHEAD_BYTES
}

/// What a parcel costs beside its name and its state.
const OVERHEAD_BYTES: usize = 256;
/// When what is not confirmed is sent again …
const RESEND_FIRST: Duration = Duration::from_millis(500);
/// … twice as late each time, but not later than this.
const RESEND_MAX: Duration = Duration::from_secs(4);
/// How long what is not confirmed is kept: by then membership has long decided whether the receiver lives.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::*;
    use crate::grains::activation::GrainSnapshot;

    fn host(name: &str) -> GrainHost {
        let id = crate::gossip::GossipMemberId::new(name).expect("an id");
        GrainHost { id, authority: crate::id::Authority::new("two:1").expect("an authority") }
    }

    fn record(identity: &str, bytes: usize) -> RelocationRecord {
        let grain = ClusterIdentity::new("Chat", identity).expect("a name");
        let snapshot = GrainSnapshot { version: 1, bytes: Arc::from(alloc::vec![7; bytes]) };
        RelocationRecord {
            grain,
            from: host("one"),
            stopped: Vec::new(),
            snapshot: Some(snapshot),
            claim: None,
            before: Vec::new(),
            went: None,
            is_leaving: false,
        }
    }

    const fn at(millis: u64) -> TimerInstant {
        TimerInstant::from_millis(millis)
    }

    #[test]
    fn what_is_not_confirmed_is_sent_again_and_given_up_in_the_end() {
        let mut outbox = Outbox::new(10_000);
        assert_eq!(outbox.put(host("two"), record("a", 1), at(0)), []);
        let mut sent = Vec::new();
        let given_up = loop {
            let now = outbox.next().expect("an alarm");
            match outbox.pop_due(false, now).expect("due") {
                Due::Send(..) => sent.push(now.as_nanos() / 1_000_000),
                Due::GiveUp(record) => break (now, record.grain),
            }
        };
        assert_eq!(sent[..5], [500, 1500, 3500, 7500, 11_500]);
        assert_eq!(given_up, (at(60_000), record("a", 1).grain));
        assert!(outbox.is_empty() && outbox.bytes == 0 && outbox.order.is_empty());
        assert!(outbox.next().is_none());
        // Who leaves is in a hurry.
        outbox.put(host("two"), record("a", 1), at(0));
        let hurry: Vec<_> = (1..=5).filter(|n| outbox.pop_due(true, at(n * 500)).is_some()).collect();
        assert_eq!(hurry, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn the_oldest_makes_room() {
        // Each costs 1000, 6 of name and the overhead: two fit.
        let mut outbox = Outbox::new(2600);
        assert_eq!(outbox.put(host("two"), record("a", 1000), at(0)), []);
        assert_eq!(outbox.put(host("two"), record("b", 1000), at(0)), []);
        assert_eq!(outbox.put(host("three"), record("a", 1000), at(0)), [], "in place of the one before");
        let dropped = outbox.put(host("two"), record("c", 1000), at(0));
        assert_eq!(dropped, [(record("b", 1).grain, 1, SnapshotDrop::NoRoom)]);
        assert_eq!(outbox.get(&record("a", 1).grain).map(|parcel| parcel.to.clone()), Some(host("three")));
    }
}
