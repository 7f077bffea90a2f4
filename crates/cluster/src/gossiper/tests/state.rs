//! Own entries, those of others, and maps.

use super::*;

/// R4.1, R4.2: a value that was set is told in the next round, and everybody's is read under one key.
#[tokio::test(start_paused = true)]
async fn a_value_is_told_in_the_next_round_and_read_with_all_others() {
    let road = Notebook::default();
    let node = Node::started(steady(), road.clone(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(1)).await;
    road.take();
    node.gossiper.set_state(key("k"), value("ours")).expect("room");
    node.hear("b#1", &[("b#1", "k", "theirs", 1), ("c#1", "k", "of a third", 9)]).await;
    let read = [("a#1", "ours"), ("b#1", "theirs"), ("c#1", "of a third")];
    assert_eq!(node.values("k"), read.map(|(member, text)| (member.into(), text.into())));
    assert_eq!(road.sent().len(), 0, "not before the next round");
    pass(millis(500)).await;
    assert_eq!(road.sent()[0].text("a#1", "k").as_deref(), Some("ours"));
    assert_eq!(road.sent()[0].text("c#1", "k").as_deref(), Some("of a third"));
}

/// R4.3, R4.4: one counter over all keys, and the local time of the write.
#[tokio::test(start_paused = true)]
async fn a_write_counts_on_and_is_stamped_with_the_local_time() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1"]).await;
    pass(millis(100)).await;
    let entry = |name: &str| node.gossiper.get_state(&key(name)).remove(&id("a#1")).expect("an entry");
    node.set("k", "x").await;
    let first = entry("k");
    assert_eq!(first.local_timestamp, TimerInstant::from_millis(100));
    pass(millis(50)).await;
    node.set("l", "x").await;
    assert_eq!(entry("l").sequence_number.get(), first.sequence_number.get() + 1);
    assert_eq!(entry("l").local_timestamp, TimerInstant::from_millis(150));
    node.set("k", "x").await;
    assert_eq!(
        entry("k").sequence_number.get(),
        first.sequence_number.get() + 2,
        "an equal value is a write, too"
    );
}

/// R4.5: whoever waits for a write can read it; who does not, later.
#[tokio::test(start_paused = true)]
async fn a_write_that_is_waited_for_can_be_read() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1"]).await;
    node.gossiper.set_state(key("k"), value("later")).expect("room");
    assert_eq!(node.values("k"), [], "the task has not run yet");
    node.gossiper.set_state_request(key("l"), value("now")).await.expect("room");
    assert_eq!(node.values("l"), [("a#1".into(), "now".into())]);
    assert_eq!(node.values("k"), [("a#1".into(), "later".into())], "in the order of the calls");
    // What the machine refuses is told to who waits, and counted for who does not.
    let reserved = node.gossiper.set_state_request(key("heartbeat"), value("x")).await;
    let refused = gossip::GossiperError::ReservedKey { key: key("heartbeat") };
    assert_eq!(reserved, Err(GossiperError::Refused(refused)));
    node.gossiper.set_state(key("heartbeat"), value("x")).expect("room in the queue");
    until(|| node.gossiper.counters().commands_refused() == 1).await;
}

/// The queue is bounded: more writes than it holds are refused at once and counted.
#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_writes_and_counts_them() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1"]).await;
    for _ in 0..COMMANDS_MAX {
        node.gossiper.set_state(key("k"), value("x")).expect("room in the queue");
    }
    assert_eq!(node.gossiper.set_state(key("k"), value("y")), Err(GossiperError::QueueFull));
    assert_eq!(node.gossiper.counters().commands_dropped(), 1);
    // Who waits for the effect waits for room, too.
    node.set("l", "z").await;
    assert_eq!(node.values("k"), [("a#1".into(), "x".into())]);
}

/// R5.1 - R5.3: greater numbers overwrite, equal and lower ones are ignored. R5.5: one event per change.
#[tokio::test(start_paused = true)]
async fn only_newer_entries_are_taken_and_each_change_is_told() {
    let mut node = Node::started(steady(), Notebook::default(), "a#1", &["a#1", "b#1"]).await;
    let steps = [
        (5, "first", true),
        (5, "equal", false),
        (4, "lower", false),
        (6, "greater", true),
        (6, "equal again", false),
    ];
    for (sequence, text, taken) in steps {
        node.updates();
        let before = node.values("k");
        node.hear("b#1", &[("b#1", "k", text, sequence)]).await;
        let expected = if taken { vec![("b#1".into(), text.into())] } else { before };
        assert_eq!(node.values("k"), expected);
        let told: Vec<(String, String, String)> =
            if taken { vec![("b#1".into(), "k".into(), text.into())] } else { Vec::new() };
        assert_eq!(node.updates(), told);
    }
    node.hear("b#1", &[("b#1", "k", "x", 7), ("b#1", "l", "y", 8), ("c#1", "k", "z", 1)]).await;
    assert_eq!(node.updates().len(), 3);
    assert_eq!(node.gossiper.counters().entries_merged(), 5);
}

/// R5.4: what is taken is stamped with the local time, so no clock of a sender matters.
#[tokio::test(start_paused = true)]
async fn the_clock_of_a_sender_is_ignored() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(250)).await;
    for (sequence, skewed) in [(1, i64::MIN), (2, 0), (3, i64::MAX)] {
        let mut request = codec::encode_request(&id("a#1"), &said(&[("b#1", "k", "x", sequence)]));
        for member in request.state.as_mut().expect("a state").members.values_mut() {
            for entry in member.values.values_mut() {
                entry.local_timestamp_unix_milliseconds = skewed;
            }
        }
        let answer = node.gossiper.handle_wire_request(&authority("b"), request).await.expect("it runs");
        let answer = answer.expect("an answer").state.expect("a state");
        assert!(
            answer
                .members
                .values()
                .flat_map(|member| member.values.values())
                .all(|entry| { entry.local_timestamp_unix_milliseconds == 0 })
        );
        let entry = node.gossiper.get_state(&key("k")).remove(&id("b#1")).expect("an entry");
        assert_eq!(
            (entry.sequence_number.get(), entry.local_timestamp),
            (sequence, TimerInstant::from_millis(250))
        );
    }
}

/// A peer that claims a later write of ours does not hide our next ones.
#[tokio::test(start_paused = true)]
async fn nobody_else_writes_into_our_notebook() {
    let mut node = Node::started(steady(), Notebook::default(), "a#1", &["a#1", "b#1"]).await;
    node.set("k", "ours").await;
    node.updates();
    node.hear("b#1", &[("a#1", "k", "forged", 1_000)]).await;
    assert_eq!((node.values("k"), node.updates()), (vec![("a#1".into(), "ours".into())], Vec::new()));
    let entry = node.gossiper.get_state(&key("k")).remove(&id("a#1")).expect("an entry");
    assert!(entry.sequence_number.get() > 1_000);
}

/// Map entries are set, read, listed and removed.
#[tokio::test(start_paused = true)]
async fn a_map_is_written_entry_by_entry() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1"]).await;
    let (name, one, two) = (key("m"), map_key("one"), map_key("two"));
    let read = |entry: &GossipMapKey| node.gossiper.get_map_state(&name, entry).map(|value| value.to_vec());
    assert_eq!((read(&one), node.gossiper.get_map_keys(&name)), (None, Vec::new()));
    node.gossiper.set_map_state(name.clone(), one.clone(), b"1".to_vec()).await.expect("room");
    node.gossiper.set_map_state(name.clone(), two.clone(), b"2".to_vec()).await.expect("room");
    node.gossiper.set_map_state(name.clone(), one.clone(), b"1 again".to_vec()).await.expect("room");
    assert_eq!((read(&one), read(&two)), (Some(b"1 again".to_vec()), Some(b"2".to_vec())));
    assert_eq!(node.gossiper.get_map_keys(&name), [one.clone(), two.clone()]);
    node.gossiper.remove_map_state(name.clone(), one.clone()).await.expect("room");
    node.gossiper.remove_map_state(name.clone(), one.clone()).await.expect("harmless");
    assert_eq!((read(&one), node.gossiper.get_map_keys(&name)), (None, vec![two]));
    // Plain values and maps do not mix.
    let plain = node.gossiper.set_state_request(name.clone(), value("x")).await;
    assert_eq!(plain, Err(GossiperError::Refused(gossip::GossiperError::KeyHoldsMap { key: name })));
    node.set("k", "x").await;
    let map = node.gossiper.set_map_state(key("k"), one, Vec::new()).await;
    assert_eq!(map, Err(GossiperError::Refused(gossip::GossiperError::KeyHoldsValue { key: key("k") })));
}

/// A removal outlasts an older set that arrives after it, on every node.
#[tokio::test(start_paused = true)]
async fn a_map_removal_survives_a_set_that_it_has_seen() {
    let network = InMemoryGossipNetwork::with_seed(1);
    let names = ["a#1", "b#1", "c#1"];
    let a = Node::on(&network, "a#1", &names).await;
    let b = Node::on(&network, "b#1", &names).await;
    let (name, entry) = (key("m"), map_key("e"));
    a.gossiper.set_map_state(name.clone(), entry.clone(), b"x".to_vec()).await.expect("room");
    pass(millis(1_000)).await;
    assert_eq!(b.gossiper.get_map_state(&name, &entry).as_deref(), Some(&b"x"[..]));
    b.gossiper.remove_map_state(name.clone(), entry.clone()).await.expect("room");
    // Only now does the third one hear of both.
    let c = Node::on(&network, "c#1", &names).await;
    pass(millis(1_500)).await;
    for node in [&a, &b, &c] {
        assert_eq!(node.gossiper.get_map_state(&name, &entry), None);
        assert!(node.gossiper.get_map_keys(&name).is_empty());
    }
}
