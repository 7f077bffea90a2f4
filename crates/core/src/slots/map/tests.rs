//! Maps that hear the same records are the same map, and their digests find what one of them has not heard.

use alloc::vec::Vec;

use proptest::collection::vec as list;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::slots::record::tests::slot_record;
use crate::slots::{ElectionCause, HlcTimestamp, SlotEpoch};

proptest! {
    #[test]
    fn any_order_and_any_doubling_gives_one_map(
        (records, shuffled, again) in records().prop_flat_map(|records| {
            let again = list(any::<Index>(), 0..20);
            (Just(records.clone()), Just(records).prop_shuffle(), again)
        }),
    ) {
        let map = map_of(&records);
        let mut other = map_of(&shuffled);
        prop_assert_eq!(&map, &other);
        // What is known already changes nothing.
        for index in again.iter().filter(|_| !records.is_empty()) {
            let record = index.get(&records).clone();
            prop_assert_ne!(other.merge(record), Ok(true));
        }
        prop_assert_eq!(&map, &other);
        prop_assert!(map.differing(other.digests()).is_empty());
    }

    #[test]
    fn maps_only_ever_rise(records in records()) {
        let mut map = SlotMap::new(SLOTS);
        for record in records {
            let before = map.clone();
            let result = map.merge(record.clone());
            for old in before.records() {
                prop_assert!(map.record(old.slot).is_some_and(|new| new.precedence(old).is_ge()));
            }
            let is_changed = map != before;
            prop_assert_eq!(is_changed, map.record(record.slot) == Some(&record) && before.record(record.slot) != Some(&record));
            match result {
                Ok(is_newer) => prop_assert_eq!(is_newer, is_changed),
                Err(conflict) => {
                    prop_assert_eq!(Some(&conflict.known), before.record(record.slot));
                    prop_assert!(conflict.known.contradicts(&conflict.received));
                }
            }
        }
    }

    #[test]
    fn one_exchange_of_digests_makes_two_maps_equal(ours in records(), theirs in records()) {
        let (mut a, mut b) = (map_of(&ours), map_of(&theirs));
        let all: Vec<SlotRecord> = ours.into_iter().chain(theirs).collect();
        exchange(&mut a, &mut b);
        prop_assert_eq!(&a, &b);
        prop_assert_eq!(a.digests(), b.digests());
        prop_assert_eq!(a, map_of(&all));
    }

    /// Gossip loses most of what it carries here. A round of repair in a ring, there and back, makes up for all of it.
    #[test]
    fn what_gossip_loses_is_repaired(heard in list((records(), list(any::<bool>(), 30)), 2..5)) {
        let all: Vec<SlotRecord> = heard.iter().flat_map(|(records, _)| records.clone()).collect();
        let mut maps: Vec<SlotMap> = heard.iter().map(|(records, _)| map_of(records)).collect();
        for (map, (_, arrives)) in maps.iter_mut().zip(&heard) {
            for (record, _) in all.iter().zip(arrives).filter(|(_, arrives)| **arrives) {
                drop(map.merge(record.clone()));
            }
        }
        let count = maps.len();
        let ring = (1..count).chain((1..count).rev());
        for at in ring {
            let (left, right) = maps.split_at_mut(at);
            exchange(&mut left[at - 1], &mut right[0]);
        }
        let whole = map_of(&all);
        for map in maps {
            prop_assert_eq!(map.digests(), whole.digests());
            prop_assert_eq!(&map, &whole);
        }
    }

    #[test]
    fn every_change_of_a_record_changes_its_digest_and_no_other(
        records in records().prop_filter("some", |records| !records.is_empty()),
        index in any::<Index>(),
        change in 0..6,
    ) {
        let map = map_of(&records);
        let place = index.get(&records).slot;
        let mut record = map.record(place).expect("it was merged").clone();
        match change {
            0 => record.epoch = SlotEpoch::new(record.epoch.get() + 1),
            1 => record.updated_at = HlcTimestamp::from_bits(record.updated_at.bits() + 1),
            2 if record.cause != ElectionCause::Renewed => record.cause = ElectionCause::Renewed,
            3 => record.replicas.push(record.primary.clone()),
            4 => record.granted_by.push(record.primary.clone()),
            _ => record.primary = crate::NodeId::new("z").expect("a name"),
        }
        let mut changed = map.clone();
        drop(changed.merge(record.clone()));
        prop_assert_eq!(changed.record(place), Some(&record));
        let buckets = [(place.index() % BUCKETS) as u8];
        prop_assert_eq!(changed.differing(map.digests()), buckets);
        prop_assert_eq!(map.differing(changed.digests()), buckets);
    }

    #[test]
    fn a_map_takes_no_record_of_a_slot_that_it_does_not_have(record in slot_record(SLOTS)) {
        let mut map = SlotMap::new(SLOTS);
        prop_assert_eq!(map.merge(record), Ok(false));
        prop_assert_eq!(map, SlotMap::new(SLOTS));
    }
}

#[test]
fn digests_that_cannot_be_compared_differ_in_all_buckets() {
    let map = SlotMap::new(SLOTS);
    assert_eq!(map.differing(&[]).len(), BUCKETS);
    assert_eq!(map.differing(map.digests()), [0u8; 0]);
}

/// What two registries say to each other: digests, what differs, and what is wanted in return.
fn exchange(a: &mut SlotMap, b: &mut SlotMap) {
    let wanted = b.differing(a.digests());
    let tell = |map: &SlotMap| -> Vec<SlotRecord> {
        wanted.iter().flat_map(|bucket| map.bucket(*bucket)).cloned().collect()
    };
    let (from_a, from_b) = (tell(a), tell(b));
    from_b.into_iter().for_each(|record| drop(a.merge(record)));
    from_a.into_iter().for_each(|record| drop(b.merge(record)));
}

fn map_of(records: &[SlotRecord]) -> SlotMap {
    let mut map = SlotMap::new(SLOTS);
    records.iter().for_each(|record| drop(map.merge(record.clone())));
    map
}

/// Records of slots that share buckets and of some that do not.
fn records() -> impl Strategy<Value = Vec<SlotRecord>> {
    let slot = prop_oneof![Just(0u16), Just(1), Just(64), Just(65), Just(129)];
    list(slot.prop_flat_map(slot_record), 0..12)
}

const SLOTS: u16 = 130;
