//! What is taken, what is ignored, and what is refused.

use alloc::format;

use super::*;
use crate::gossip::{GossipValueError, VALUE_BYTES_MAX};

const LATER: TimerInstant = TimerInstant::from_millis(7);

fn id(name: &str) -> GossipMemberId {
    GossipMemberId::new(name).expect("an id")
}

fn key(name: &str) -> GossipKey {
    GossipKey::new(name).expect("a key")
}

fn value(text: &str) -> GossipValue {
    GossipValue::new("test", text.as_bytes()).expect("a small value")
}

fn entry(text: &str, sequence: i64) -> GossipKeyValue {
    let sequence_number = SequenceNumber::new(sequence).expect("a sequence number");
    GossipKeyValue { value: value(text), sequence_number, local_timestamp: TimerInstant::ZERO }
}

fn said(member: &str, name: &str, text: &str, sequence: i64) -> GossipState {
    let mut state = GossipState::default();
    state.insert(&id(member), key(name), entry(text, sequence));
    state
}

fn store() -> GossipStateStore {
    GossipStateStore::new(id("self"), 2, 1024 * 1024)
}

/// R4.3, R4.4.
#[test]
fn one_counter_numbers_the_writes_of_all_keys() {
    let mut store = store();
    let mut numbers = [("a", 1), ("b", 2), ("a", 3)].into_iter().map(|(name, expected)| {
        let number = store.set_local_state(&key(name), value("x"), LATER).expect("room");
        (number.get(), expected)
    });
    assert!(numbers.all(|(number, expected)| number == expected));
    let held = store.value(&id("self"), &key("a")).expect("the entry");
    assert_eq!((held.sequence_number.get(), held.local_timestamp), (3, LATER));
}

/// R5.1 to R5.5.
#[test]
fn only_a_greater_number_is_taken_and_it_is_stamped_here() {
    let mut store = store();
    let merge = store.merge_state(&said("m", "k", "first", 5), LATER);
    assert_eq!(merge.updates.len(), 1);
    assert_eq!(merge.updates[0].sequence_number.get(), 5);
    assert_eq!(store.value(&id("m"), &key("k")).expect("taken").local_timestamp, LATER);
    for ignored in [said("m", "k", "equal", 5), said("m", "k", "lower", 4)] {
        assert_eq!(
            store.merge_state(&ignored, LATER + core::time::Duration::from_secs(1)),
            StoreMerge::default()
        );
    }
    let held = store.value(&id("m"), &key("k")).expect("kept");
    assert_eq!((held.value.clone(), held.local_timestamp), (value("first"), LATER));
    assert_eq!(store.merge_state(&said("m", "k", "greater", 6), LATER).updates[0].value, value("greater"));
}

#[test]
fn an_entry_that_comes_after_a_later_one_is_reported() {
    let mut store = store();
    store.merge_state(&said("m", "new", "x", 5), LATER);
    let merge = store.merge_state(&said("m", "old", "x", 3), LATER);
    assert_eq!(merge.belated, [(id("m"), SequenceNumber::new(3).expect("a number"))]);
    assert_eq!(store.merge_state(&said("m", "newer", "x", 6), LATER).belated, []);
}

#[test]
fn nobody_writes_into_our_notebook_and_our_word_prevails() {
    let mut store = store();
    store.set_local_state(&key("k"), value("ours"), LATER).expect("room");
    // An echo of what we wrote says nothing new.
    assert_eq!(store.merge_state(&said("self", "k", "ours", 1), LATER), StoreMerge::default());
    assert_eq!(store.latest(&id("self")), Some(SequenceNumber::FIRST));
    // A forgery ahead of us is not taken; we write our value again above it, so that it wins everywhere.
    assert_eq!(store.merge_state(&said("self", "k", "forged", 1_000), LATER), StoreMerge::default());
    let held = store.value(&id("self"), &key("k")).expect("kept");
    assert_eq!((held.value.clone(), held.sequence_number.get()), (value("ours"), 1_001));
    // One message cannot use up all the numbers there are.
    store.merge_state(&said("self", "k", "forged", i64::MAX), LATER);
    assert_eq!(store.set_local_state(&key("k"), value("ours"), LATER).expect("room").get(), 1_002);
}

#[test]
fn what_exceeds_a_bound_is_refused_and_changes_nothing() {
    let mut store = store();
    store.merge_state(&said("a", "k", "x", 1), LATER);
    store.merge_state(&said("b", "k", "x", 1), LATER);
    let refused = |store: &mut GossipStateStore, state: &GossipState| {
        let before = format!("{store:?}");
        let merge = store.merge_state(state, LATER);
        assert_eq!((merge.updates.len(), format!("{store:?}")), (0, before));
        merge.refusals.into_iter().map(|refusal| refusal.reason).collect::<Vec<_>>()
    };
    let bound = |error| [GossipRefusalReason::Bound(error)];
    // A third member.
    let third = said("c", "k", "x", 1);
    assert_eq!(refused(&mut store, &third), bound(GossipBoundError::Members { max: 2 }));
    // More state in total than allowed: four of the largest values are too many for a mebibyte.
    let large = "x".repeat(VALUE_BYTES_MAX);
    for number in 0..3 {
        store.merge_state(&said("a", &format!("k{number}"), &large, 2), LATER);
    }
    let fourth = said("b", "large", &large, 2);
    assert_eq!(refused(&mut store, &fourth), bound(GossipBoundError::StateBytes { max: 1024 * 1024 }));
    // A key beyond the last one; replacing one of those that are there still works.
    for number in 0..KEYS_PER_MEMBER_MAX - 1 {
        store.merge_state(&said("b", &format!("k{number}"), "x", 3), LATER);
    }
    assert_eq!(refused(&mut store, &said("b", "one too many", "x", 4)), bound(GossipBoundError::Keys));
    assert_eq!(store.merge_state(&said("b", "k", "y", 5), LATER).updates.len(), 1);
    // A value too large for anybody never becomes one.
    let bytes = VALUE_BYTES_MAX + 1;
    assert_eq!(GossipValue::new("t", &alloc::vec![0; bytes]), Err(GossipValueError::TooLarge { bytes }));
}

#[test]
fn however_much_is_set_the_heartbeat_finds_room() {
    let mut store = store();
    let large = value(&"x".repeat(VALUE_BYTES_MAX));
    let full = (0..)
        .find_map(|number| store.set_local_state(&key(&format!("l{number}")), large.clone(), LATER).err());
    assert_eq!(full, Some(GossiperError::Bound(GossipBoundError::MemberBytes)));
    let full =
        (0..).find_map(|number| store.set_local_state(&key(&format!("k{number}")), value(""), LATER).err());
    assert_eq!(full, Some(GossiperError::Bound(GossipBoundError::Keys)));
    let largest = value(&"x".repeat(HEARTBEAT_BYTES_MAX));
    for number in 0..OWN_KEYS_KEPT {
        let name = key(&format!("reserved{number}"));
        store.set_reserved_state(&name, largest.clone(), LATER).expect("room is kept");
    }
    assert!(store.members[&id("self")].bytes <= MEMBER_BYTES_MAX, "others will take all of it");
    assert!(store.members[&id("self")].state.len() <= KEYS_PER_MEMBER_MAX);
    let bytes = HEARTBEAT_BYTES_MAX + 1;
    let too_large = store.set_reserved_state(&key("reserved0"), value(&"x".repeat(bytes)), LATER);
    assert_eq!(too_large, Err(GossiperError::HeartbeatTooLarge { bytes }));
}

#[test]
fn what_is_forgotten_makes_room() {
    let mut store = store();
    let large = "x".repeat(VALUE_BYTES_MAX);
    for number in 0..3 {
        store.merge_state(&said("a", &format!("k{number}"), &large, 1 + number), LATER);
    }
    store.reduce(&id("a"), &[key("k1")]);
    assert_eq!(store.members().map(|(_, state)| state.len()).sum::<usize>(), 1);
    assert_eq!(store.latest(&id("a")), SequenceNumber::new(2).ok());
    store.remove(&id("a"));
    assert_eq!((store.others_bytes, store.members().count()), (0, 0));
}
