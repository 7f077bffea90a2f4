//! Starting, stopping, signs of life, and the block list.

use super::*;
use crate::gossip::{BlockReason, GossipRefusalReason};

/// R1.4, R1.5, R9.3: what may be called when.
#[test]
fn every_call_out_of_turn_is_refused() {
    let mut gossiper = Gossiper::new(GossiperConfig::default()).expect("valid settings");
    let now = TimerInstant::ZERO;
    assert_eq!(gossiper.lifecycle(), GossiperState::New);
    assert_eq!(gossiper.stop(now), Err(GossiperError::NotStarted));
    assert_eq!(gossiper.poll(now), Err(GossiperError::NotStarted));
    let outcome = gossiper.start(id("a#1"), 1, now).expect("it starts");
    assert!(outcome.round_due && outcome.wake_at == Some(now));
    assert_eq!(gossiper.start(id("a#1"), 1, now), Err(GossiperError::AlreadyStarted));
    assert_eq!(gossiper.stop(now).expect("it stops").wake_at, None);
    assert_eq!(gossiper.lifecycle(), GossiperState::Stopped);
    for refused in [
        gossiper.stop(now),
        gossiper.poll(now),
        gossiper.round(&value(""), now),
        gossiper.set_state(&key("k"), value("x"), now),
        gossiper.handle_request(&id("b"), &GossipState::default(), now),
    ] {
        assert_eq!(refused, Err(GossiperError::AlreadyStopped));
    }
    // Peers have blocked the id that left; a new one is a new member with nothing of the old run.
    let reused = gossiper.start(id("a#1"), 1, now);
    assert_eq!(reused, Err(GossiperError::MemberIdReused { member: id("a#1") }));
    gossiper.start(id("a#2"), 1, now).expect("it starts again");
    assert_eq!(gossiper.set_state(&key("k"), value("x"), now).map(|_| ()), Ok(()));
    assert_eq!(gossiper.state(&key("k")).count(), 1);
}

/// R12.3.
#[test]
fn an_invalid_setting_is_refused_at_construction() {
    let config = GossiperConfig { gossip_fan_out: 0, ..GossiperConfig::default() };
    assert!(matches!(Gossiper::new(config), Err(GossiperError::InvalidConfig(_))));
}

/// R2.1: the machine asks for one round per interval, whenever it is polled.
#[test]
fn a_round_is_due_once_per_interval() {
    let mut a = Subject::new("a", &["b"]);
    let outcome = a.round();
    assert_eq!((outcome.round_due, outcome.wake_at), (false, Some(a.now + Duration::from_millis(500))));
    let early = a.now + Duration::from_millis(499);
    assert!(!a.gossiper.poll(early).expect("it runs").round_due);
    assert!(a.gossiper.poll(a.now + Duration::from_millis(500)).expect("it runs").round_due);
}

/// Nodes that were started together drift apart, but never by more than the settings say.
#[test]
fn an_interval_is_a_little_longer_or_shorter_at_random() {
    let config = GossiperConfig { interval_jitter: 0.2, ..GossiperConfig::default() };
    let mut a = Gossiper::new(config).expect("valid settings");
    let mut now = TimerInstant::ZERO;
    a.start(id("a"), 7, now).expect("it starts");
    let mut pauses = Vec::new();
    for _ in 0..200 {
        let due = a.round(&value(""), now).expect("it runs").wake_at.expect("it runs");
        pauses.push(due.saturating_since(now).as_millis());
        now = due;
    }
    let (shortest, longest) = (pauses.iter().min().copied(), pauses.iter().max().copied());
    assert!((Some(400)..Some(420)).contains(&shortest) && (Some(580)..=Some(600)).contains(&longest));
}

/// A node that begins a new life without a restart keeps what it wrote and is somebody else to its peers.
#[test]
fn a_new_life_takes_along_what_was_written_and_nothing_of_the_old_id() {
    let mut a = Subject::new("a#1", &["a#1", "b"]);
    a.set("k", "x");
    a.gossiper.set_map_value(&key("m"), &map_key("e"), b"entry", a.now).expect("room");
    let same = |bytes: &[u8]| Ok(bytes.to_vec());
    let (check, outcome) =
        a.gossiper.register_consensus_check(ConsensusChecker::new(key("k"), same), a.now).expect("room");
    assert_eq!(outcome.events, [], "b says nothing yet");
    let told = a.round();
    a.answer(&told);

    let outcome = a.gossiper.rejoin(id("a#2"), a.now).expect("a fresh id");
    assert_eq!(outcome.events, [GossiperEvent::Blocked { member: id("a#1"), reason: BlockReason::Outlived }]);
    assert_eq!(a.values("k"), [("a#2".into(), "x".into())]);
    assert_eq!(a.gossiper.map_value(&key("m"), &map_key("e")).as_deref(), Some(&b"entry"[..]));
    // What b holds of the old life says nothing about the new one: everything is told again.
    assert_eq!(speaks_of(&a.round().requests[0].state), [("a#2".into(), 3)]);
    // Echoes of the old life are ignored, and the check goes on with the new one.
    let outcome = a.hear("b", &[("a#1", "k", "y", 99), ("b", "k", "x", 1)]);
    assert_eq!(outcome.updates.len(), 1);
    assert_eq!(a.gossiper.consensus(check), Some(&[b"x".to_vec()][..]));
    // There is no way back.
    assert_eq!(a.gossiper.rejoin(id("a#1"), a.now), Err(GossiperError::Blocked { member: id("a#1") }));
}

/// Who changes sides after a split had declared those dead who now let it in.
#[test]
fn a_new_life_takes_back_the_verdicts_of_the_old_one_and_nothing_else() {
    let mut a = Subject::new("a#1", &["a#1", "b", "c"]);
    a.gossiper.handle_block(&id("b"), a.now).expect("running");
    assert!(a.gossiper.handle_request(&id("b"), &GossipState::default(), a.now).is_err());
    a.gossiper.rejoin(id("a#2"), a.now).expect("a fresh id");
    a.gossiper.set_members(&[id("a#2"), id("b"), id("c")], a.now).expect("room");
    a.hear("b", &[("b", "k", "x", 1)]);
    assert_eq!(a.values("k"), [("b".into(), "x".into())], "b is heard again");

    // Its own earlier lives stay blocked through any number of new ones.
    a.gossiper.rejoin(id("a#3"), a.now).expect("a fresh id");
    let blocked: Vec<_> = a.gossiper.blocked_members().collect();
    let outlived = BlockReason::Outlived;
    assert_eq!(blocked, [(&id("a#1"), outlived), (&id("a#2"), outlived)]);
}

/// R2.2, R6.1, R6.2: the heartbeat is rewritten each round with what the driver counted.
#[test]
fn each_round_refreshes_the_heartbeat_under_all_its_keys() {
    let mut a = Subject::with_config("a", &["b"], GossiperConfig::protoactor());
    let sequence = |a: &Subject, name: &str| {
        a.gossiper.state(&key(name)).next().map(|(_, entry)| entry.sequence_number.get())
    };
    a.round();
    assert_eq!((sequence(&a, "heartbeat"), sequence(&a, "heathbeat")), (Some(1), Some(2)));
    a.round();
    assert_eq!((sequence(&a, "heartbeat"), sequence(&a, "heathbeat")), (Some(3), Some(4)));
    assert_eq!(a.values("heartbeat"), [("a".into(), "statistics".into())]);
    // Nobody else writes there, least of all the key that would make everybody block this node.
    for reserved in ["heartbeat", "heathbeat", "left", "gracefully_left"] {
        let refused = a.gossiper.set_state(&key(reserved), value("x"), a.now);
        assert_eq!(refused, Err(GossiperError::ReservedKey { key: key(reserved) }));
    }
}

/// A newer heartbeat, from whomever, is a sign of life; an echo of an old one is none.
#[test]
fn only_a_newer_heartbeat_is_a_sign_of_life() {
    let mut a = Subject::new("a", &["b", "c"]);
    let alive = |outcome: &GossiperOutcome| {
        outcome.events.iter().filter(|event| matches!(event, GossiperEvent::Alive { .. })).count()
    };
    assert_eq!(alive(&a.hear("c", &[("b", "heartbeat", "", 1)])), 1);
    assert_eq!(alive(&a.hear("b", &[("b", "heartbeat", "", 1)])), 0);
    assert_eq!(alive(&a.hear("b", &[("b", "other", "", 2)])), 0);
    assert_eq!(alive(&a.hear("b", &[("b", "heartbeat", "", 3)])), 1);
    assert_eq!(
        alive(&a.hear("b", &[("a", "heartbeat", "", 3)])),
        0,
        "this node needs no sign of its own life"
    );
}

/// R2.3, R6.3, R6.5: silence strictly longer than the expiration, on our clock; never this node itself.
#[test]
fn a_member_that_is_silent_for_too_long_is_blocked() {
    let mut a = Subject::new("a", &["b", "c"]);
    a.hear("b", &[("b", "heartbeat", "", 1), ("b", "k", "x", 2)]);
    a.rounds(19);
    // Echoes of what is known do not keep anybody alive.
    a.hear("c", &[("b", "heartbeat", "", 1)]);
    assert_eq!(a.round().events, [], "exactly the expiration is not too long");
    assert_eq!(a.values("k").len(), 1);
    let outcome = a.round();
    assert_eq!(outcome.events, [GossiperEvent::Blocked { member: id("b"), reason: BlockReason::Expired }]);
    assert_eq!((a.blocked(), a.values("k").len()), (["b".into()].to_vec(), 0));
    // It stays the only one: c was never heard and is for others to judge, this node lives.
    assert!(a.rounds(100).iter().all(|outcome| outcome.events.is_empty()));
    assert_eq!(a.gossiper.peers().collect::<Vec<_>>(), [&id("c")]);
}

/// Whoever knows better than silence does decides alone.
#[test]
fn a_member_that_somebody_answers_for_is_not_blocked_by_its_silence() {
    let mut a = Subject::new("a", &["b", "c"]);
    a.hear("b", &[("b", "heartbeat", "", 1), ("b", "k", "x", 2)]);
    a.hear("c", &[("c", "heartbeat", "", 1)]);
    a.gossiper.set_vouched(&[id("b")], a.now).expect("it runs");
    a.rounds(30);
    assert_eq!((a.blocked(), a.values("k").len()), (["c".into()].to_vec(), 1));
    // When nobody answers for it any more, its silence counts in full.
    a.gossiper.set_vouched(&[], a.now).expect("it runs");
    a.round();
    assert_eq!(a.blocked(), ["b", "c"]);
}

/// A node that was paused itself must not take its own absence for that of all others.
#[test]
fn a_pause_of_this_node_is_nobodys_silence() {
    let mut a = Subject::new("a", &["b"]);
    a.hear("b", &[("b", "heartbeat", "", 1)]);
    a.rounds(10);
    a.now = a.now + Duration::from_secs(3600);
    a.rounds(10);
    assert_eq!(a.blocked(), Vec::<String>::new());
    // But b really is silent, and the seconds before the pause still count.
    a.rounds(2);
    assert_eq!(a.blocked(), ["b"]);
}

/// R2.4, R10.1 to R10.4: whoever leaves is blocked for good, and gets and says nothing any more.
#[test]
fn a_farewell_blocks_and_blocked_members_are_neither_told_nor_heard() {
    let mut a = Subject::new("a", &["b", "c"]);
    a.hear("b", &[("b", "k", "x", 1)]);
    let outcome = a.hear("c", &[("b", "gracefully_left", "", 2)]);
    assert_eq!(outcome.events, [GossiperEvent::Blocked { member: id("b"), reason: BlockReason::Left }]);
    assert_eq!((a.blocked(), a.values("k").len()), (["b".into()].to_vec(), 0));
    // Its entries are refused, from itself and from others, and that is no reason to withhold an answer.
    let own = a.gossiper.handle_request(&id("b"), &said(&[("b", "k", "y", 3)]), a.now);
    assert_eq!(own, Err(GossiperError::Blocked { member: id("b") }));
    let relayed = a.hear("c", &[("b", "k", "y", 3), ("c", "k", "z", 1)]);
    assert_eq!(relayed.refusals[0].reason, GossipRefusalReason::Blocked);
    assert!(relayed.answer.is_some());
    assert_eq!(a.values("k"), [("c".into(), "z".into())]);
    // Blocking again changes nothing and says nothing, and the topology does not bring it back.
    assert_eq!(a.gossiper.handle_block(&id("b"), a.now).expect("it runs").events, []);
    a.members(&["b", "c"]);
    for _ in 0..20 {
        let outcome = a.round();
        assert!(outcome.requests.iter().all(|request| request.target != id("b")));
        a.answer(&outcome);
    }
    assert_eq!(a.gossiper.blocked_members().next(), Some((&id("b"), BlockReason::Left)));
    let own = a.gossiper.handle_block(&id("a"), a.now);
    assert_eq!(own, Err(GossiperError::OwnMember { member: id("a") }));
}

/// Of the few peers that hear a farewell each passes it on, or the rest would wait for the silence.
#[test]
fn a_farewell_is_passed_on_until_everybody_must_know() {
    let mut a = Subject::new("a", &["b", "c"]);
    a.hear("b", &[("b", "k", "x", 1), ("b", "gracefully_left", "", 2)]);
    let outcome = a.round();
    let told = outcome.requests[0].state.member(&id("b")).expect("the farewell");
    assert!(told.len() == 1 && told.get(&key("gracefully_left")).is_some());
    // Not answered, so it is told again; after one expiration nothing of it is left.
    let later = a.rounds(5);
    assert!(later.iter().flat_map(|outcome| &outcome.requests).any(|request| request.state.len() == 2));
    let last = a.rounds(20);
    assert!(last[16..].iter().flat_map(|outcome| &outcome.requests).all(|request| request.state.len() == 1));
}

/// R9.2: the leave key goes out in a last, bounded fan-out, whatever else there is to say.
#[test]
fn stopping_says_goodbye_to_as_many_peers_as_a_round_goes_to() {
    let mut a = Subject::new("a", &["b", "c", "d", "e"]);
    // More than one message holds waits to be told, and one peer owes an answer.
    for number in 0..8 {
        a.set(&format!("k{number}"), &"x".repeat(200 * 1024));
    }
    let config = GossiperConfig { gossip_fan_out: 1, ..GossiperConfig::default() };
    let mut single = Subject::with_config("s", &["b", "c"], config);
    let waiting = single.round().requests[0].target.clone();
    for subject in [&mut a, &mut single] {
        let fan_out = if subject.gossiper.peers().count() == 4 { 3 } else { 1 };
        let outcome = subject.gossiper.stop(subject.now).expect("it stops");
        assert_eq!(outcome.requests.len(), fan_out);
        for request in outcome.requests {
            let entries = request.state.member(&request.from).expect("about the sender");
            assert!(entries.get(&key("gracefully_left")).is_some());
            assert_ne!(
                (request.from, request.target),
                (id("s"), waiting.clone()),
                "an idle peer comes first"
            );
        }
    }
    // Nothing is left of the run.
    assert_eq!((a.gossiper.watermarks(), a.gossiper.peers().count()), (0, 0));
}

/// R7.1 to R7.3: joiners become targets, leavers stop being any, and those who stay are not told everything again.
#[test]
fn a_topology_change_keeps_what_is_known_about_those_who_stay() {
    let mut a = Subject::new("a", &["b", "c"]);
    a.set("k", "x");
    let outcome = a.round();
    a.answer(&outcome);
    let waiting = a.round().requests;
    a.members(&["a", "b", "d"]);
    assert_eq!(a.gossiper.peers().collect::<Vec<_>>(), [&id("b"), &id("d")], "never this node itself");
    // The request to the one who left is not waited for any more, the other one is.
    for request in waiting {
        let known = a.gossiper.handle_response(request.token, None, a.now).is_ok();
        assert_eq!(known, request.target == id("b"));
    }
    a.members(&["b", "d"]);
    let outcome = a.round();
    let entries = |request: &GossipRequest| (format!("{}", request.target), speaks_of(&request.state)[0].1);
    let mut told: Vec<_> = outcome.requests.iter().map(entries).collect();
    told.sort();
    assert_eq!(told, [("b".into(), 1), ("d".into(), 2)], "b has the value, d has nothing");
    let many: Vec<_> = (0..1_001).map(|number| id(&format!("m{number}"))).collect();
    let refused = a.gossiper.set_members(&many, a.now);
    assert_eq!(refused, Err(GossiperError::TooManyMembers { members: 1_001, max: 1_000 }));
    assert_eq!(a.gossiper.peers().count(), 2);
}

/// The Go defect: banned members are never purged, neither from the state nor from the offsets.
#[test]
fn nothing_remains_of_members_that_come_and_go() {
    // One peer stays all the time, and is told about all of them.
    let mut a = Subject::new("a", &["stays"]);
    for generation in 0..50 {
        let (name, other) = (format!("m{generation}"), format!("n{generation}"));
        a.members(&["stays", &name, &other]);
        a.hear(&name, &[(&name, "heartbeat", "", 1), (&name, "k", "x", 2)]);
        a.hear(&other, &[(&other, "heartbeat", "", 1)]);
        for _ in 0..25 {
            let outcome = a.round();
            a.answer(&outcome);
        }
    }
    a.members(&["stays"]);
    assert_eq!(
        (a.values("k").len(), a.gossiper.watermarks()),
        (0, 1),
        "what the one who stays holds of this node"
    );
    assert_eq!(a.blocked().len(), 100);
    // All that is told is about this node.
    assert_eq!(speaks_of(&a.round().requests[0].state), [("a".into(), 1)]);
}
