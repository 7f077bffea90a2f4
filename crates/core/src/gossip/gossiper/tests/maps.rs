//! Maps that all members write and all members read.

use super::network::Network;
use super::*;

fn read(a: &Subject, name: &str) -> Option<Vec<u8>> {
    a.gossiper.map_value(&key("map"), &map_key(name)).map(|value| value.to_vec())
}

fn set(a: &mut Subject, name: &str, text: &str) {
    a.gossiper.set_map_value(&key("map"), &map_key(name), text.as_bytes(), a.now).expect("room");
}

fn remove(a: &mut Subject, name: &str) {
    a.gossiper.remove_map_value(&key("map"), &map_key(name), a.now).expect("room");
}

#[test]
fn a_map_is_set_read_listed_and_removed() {
    let mut a = Subject::new("a", &["b"]);
    set(&mut a, "x", "1");
    set(&mut a, "y", "2");
    set(&mut a, "x", "3");
    assert_eq!((read(&a, "x"), read(&a, "y")), (Some(b"3".to_vec()), Some(b"2".to_vec())));
    remove(&mut a, "x");
    remove(&mut a, "never set");
    assert_eq!((read(&a, "x"), a.gossiper.map_keys(&key("map"))), (None, [map_key("y")].to_vec()));
    // A key is either a map or a value, and stays what it is.
    let refused = a.gossiper.set_state(&key("map"), value("x"), a.now);
    assert_eq!(refused, Err(GossiperError::KeyHoldsMap { key: key("map") }));
    a.set("plain", "x");
    let refused = a.gossiper.set_map_value(&key("plain"), &map_key("x"), b"1", a.now);
    assert_eq!(refused, Err(GossiperError::KeyHoldsValue { key: key("plain") }));
    // What does not fit changes nothing.
    let large = alloc::vec![0; 300 * 1024];
    assert!(a.gossiper.set_map_value(&key("map"), &map_key("y"), &large, a.now).is_err());
    assert_eq!(read(&a, "y"), Some(b"2".to_vec()));
}

/// Everything that a says about itself, for somebody else to hear at a time of the test's choosing.
fn page(a: &Subject, name: &str) -> GossipState {
    let mut state = GossipState::default();
    let (member, entry) =
        a.gossiper.state(&key("map")).find(|(member, _)| **member == id(name)).expect("a map");
    state.insert(member, key("map"), entry.clone());
    state
}

fn hear(a: &mut Subject, from: &str, state: &GossipState) {
    a.gossiper.handle_request(&id(from), state, a.now).expect("it runs");
}

#[test]
fn a_removal_outlasts_an_older_set_that_arrives_later() {
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Subject::new(name, &["a", "b", "c"]));
    set(&mut a, "x", "1");
    let old = page(&a, "a");
    hear(&mut b, "a", &old);
    assert_eq!(read(&b, "x"), Some(b"1".to_vec()));
    remove(&mut b, "x");
    let removal = page(&b, "b");
    // c hears of the removal first, a and b in the other order; all agree.
    hear(&mut c, "b", &removal);
    hear(&mut c, "a", &old);
    hear(&mut a, "b", &removal);
    assert_eq!([read(&a, "x"), read(&b, "x"), read(&c, "x")], [None, None, None]);
    // When b leaves, what it removed does not come back: a has taken its own entry back.
    hear(&mut c, "a", &page(&a, "a"));
    for subject in [&mut a, &mut c] {
        subject.gossiper.handle_block(&id("b"), subject.now).expect("it runs");
        assert_eq!(read(subject, "x"), None);
    }
    // And a set that knows of the removal wins over it.
    set(&mut b, "x", "2");
    assert_eq!(read(&b, "x"), Some(b"2".to_vec()));
}

#[test]
fn of_two_concurrent_sets_all_members_pick_the_same() {
    let [mut a, mut b] = ["a", "b"].map(|name| Subject::new(name, &["a", "b"]));
    set(&mut a, "x", "of a");
    set(&mut b, "x", "of b");
    let (of_a, of_b) = (page(&a, "a"), page(&b, "b"));
    hear(&mut b, "a", &of_a);
    hear(&mut a, "b", &of_b);
    assert_eq!((read(&a, "x"), read(&b, "x")), (Some(b"of b".to_vec()), Some(b"of b".to_vec())));
}

#[test]
fn a_removal_is_forgotten_when_everybody_knows_it() {
    let mut a = Subject::new("a", &["b"]);
    set(&mut a, "x", "1");
    remove(&mut a, "x");
    let size = |a: &Subject| a.gossiper.state(&key("map")).next().map(|(_, entry)| entry.value.bytes().len());
    let with_mark = size(&a);
    a.rounds(40);
    assert_eq!(size(&a), with_mark, "two expirations are not over yet");
    a.round();
    assert!(size(&a) < with_mark);
    assert_eq!(read(&a, "x"), None);
}

#[test]
fn a_value_that_is_no_map_is_overlooked() {
    let mut a = Subject::new("a", &["b"]);
    a.hear("b", &[("b", "map", "not a map", 1)]);
    set(&mut a, "x", "1");
    assert_eq!(read(&a, "x"), Some(b"1".to_vec()));
}

#[test]
fn maps_converge_over_a_network_that_loses_messages() {
    let mut network = Network::new(4, 11);
    network.loss = 0.3;
    for round in 0_u32..60 {
        let node = round as usize % 4;
        let now = network.now;
        let gossiper = network.gossiper(node);
        let name = map_key(&format!("k{}", round % 5));
        if round % 3 == 0 {
            gossiper.remove_map_value(&key("map"), &name, now).expect("room");
        } else {
            gossiper.set_map_value(&key("map"), &name, &round.to_be_bytes(), now).expect("room");
        }
        network.run(1);
    }
    network.loss = 0.0;
    network.run(20);
    let views: Vec<Vec<_>> = (0..4)
        .map(|node| {
            let gossiper = network.gossiper(node);
            let keys = gossiper.map_keys(&key("map"));
            keys.into_iter().map(|name| (gossiper.map_value(&key("map"), &name), name)).collect()
        })
        .collect();
    assert!(views.iter().all(|view| *view == views[0] && !view.is_empty()), "{views:?}");
}
