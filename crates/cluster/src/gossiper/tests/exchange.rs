//! What is told to whom, what counts as told, and what is told again.

use std::task::{Context, Waker};

use super::*;

/// The Go defect: offsets are committed when a delta is cut, so what gets lost is never sent again. Here a watermark
/// advances only on success: failed and unanswered requests are told again. R8.1, R8.3, R8.4: the timeout is a setting,
/// and what exceeds it counts as timed out.
#[tokio::test(start_paused = true)]
async fn what_was_not_answered_is_told_again() {
    let road = Notebook::default();
    let mut config = steady();
    config.gossip.gossip_request_timeout = millis(700);
    let node = Node::started(config, road.clone(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(1)).await;
    road.take();
    node.set("k", "x").await;
    road.expect_next([Reaction::Fail, Reaction::Ignore]);
    pass(millis(500)).await; // 500: fails, told again in the next round
    pass(millis(500)).await; // 1 000: ignored until 1 700
    pass(millis(500)).await; // 1 500: nobody is told twice at once
    pass(millis(500)).await; // 2 000: told again, and acknowledged
    pass(millis(500)).await; // 2 500: only the heartbeat is news
    let told: Vec<_> = road.take().iter().map(|sent| sent.text("a#1", "k")).collect();
    let news = || Some("x".to_string());
    assert_eq!(told, [news(), news(), news(), None]);
    let counters = node.gossiper.counters();
    assert_eq!((counters.requests_failed(), counters.requests_timed_out()), (1, 1));
    assert_eq!((counters.requests_sent(), counters.requests_answered()), (5, 3));
}

/// R8.3: a carrier that never comes back is given up at the deadline, to the millisecond.
#[tokio::test(start_paused = true)]
async fn a_request_times_out_at_its_deadline() {
    let road = Notebook::default();
    road.habit("b", Reaction::Ignore);
    let node = Node::started(steady(), road.clone(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(1_999)).await;
    assert_eq!(node.gossiper.counters().requests_timed_out(), 0);
    pass(millis(2)).await;
    assert_eq!(node.gossiper.counters().requests_timed_out(), 1);
    pass(millis(2_500)).await;
    assert_eq!(node.gossiper.counters().requests_timed_out(), 2, "each is counted once");
}

/// One dead peer does not stall a round: the others are told in every one of them.
#[tokio::test(start_paused = true)]
async fn a_dead_peer_does_not_stall_a_round() {
    let road = Notebook::default();
    road.habit("d", Reaction::Ignore);
    let _node = Node::started(steady(), road.clone(), "a#1", &["a#1", "b#1", "c#1", "d#1"]).await;
    pass(millis(5_001)).await;
    let to = |name: &str| road.sent().iter().filter(|sent| sent.target == name).count();
    assert_eq!((to("b#1"), to("c#1"), to("d#1")), (11, 11, 3), "one request to the dead one per timeout");
}

/// R8.5: never more peers per round than the fan-out, and all get their turn.
#[tokio::test(start_paused = true)]
async fn a_round_goes_to_as_many_peers_as_the_fan_out() {
    let road = Notebook::default();
    let mut config = steady();
    config.gossip.gossip_fan_out = 2;
    let names = ["a#1", "b#1", "c#1", "d#1", "e#1", "f#1"];
    let node = Node::started(config, road.clone(), "a#1", &names).await;
    pass(millis(9_900)).await;
    assert_eq!(node.gossiper.counters().rounds(), 20);
    let sent = road.sent();
    assert_eq!(sent.len(), 40);
    for round in sent.chunks(2) {
        assert!(round[0].at == round[1].at && round[0].target != round[1].target);
    }
    assert!(names[1..].iter().all(|name| sent.iter().any(|sent| sent.target == *name)));
}

/// R8.6 and the Go defect: max-send is off by one. Here a message speaks of exactly so many members, this node
/// included, and the others take turns.
#[tokio::test(start_paused = true)]
async fn a_message_speaks_of_max_send_members_and_all_get_their_turn() {
    let road = Notebook::default();
    let mut config = steady();
    config.gossip.gossip_max_send = 3;
    let node = Node::started(config, road.clone(), "a#1", &["a#1", "b#1"]).await;
    pass(millis(1)).await;
    road.take();
    let others: Vec<_> = (0..6).map(|number| format!("m{number}")).collect();
    let entries: Vec<_> = others.iter().map(|other| (other.as_str(), "k", "x", 1)).collect();
    node.hear("b#1", &entries).await;
    pass(millis(1_600)).await;
    let sent = road.take();
    assert!(sent.iter().all(|sent| sent.state.len() == 3 && sent.state.member(&id("a#1")).is_some()));
    assert!(others.iter().all(|other| sent.iter().any(|sent| sent.text(other, "k").is_some())));
}

/// R8.2: a peer is answered with what it lacks, a stranger with nothing; both are listened to.
#[tokio::test(start_paused = true)]
async fn a_request_is_merged_from_anybody_and_answered_to_peers() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1", "b#1"]).await;
    node.set("k", "x").await;
    let entry = |sequence| codec::encode_request(&id("a#1"), &said(&[("b#1", "k", "y", sequence)]));
    let answer = node.gossiper.handle_wire_request(&authority("nobody"), entry(1)).await.expect("it runs");
    assert_eq!(answer.expect("an answer").state.expect("a state").members.len(), 0);
    assert_eq!(node.values("k").len(), 2);
    // What a Go peer writes as member id is the receiver's; who sent it is who is at that address.
    let answer = node.gossiper.handle_wire_request(&authority("b"), entry(2)).await.expect("it runs");
    let answer = answer.expect("an answer").state.expect("a state");
    assert!(answer.members["a#1"].values.contains_key("k"));
    assert!(answer.members.values().all(|member| !member.values.is_empty()));
    assert_eq!(node.gossiper.counters().requests_received(), 2);
}

/// What a peer answers is merged like what it sends.
#[tokio::test(start_paused = true)]
async fn what_a_peer_answers_is_merged() {
    let road = Notebook::default();
    road.expect_next([Reaction::Answer(said(&[("b#1", "k", "x", 1)]))]);
    let mut node = Node::started(steady(), road, "a#1", &["a#1", "b#1"]).await;
    pass(millis(1)).await;
    assert_eq!(node.values("k"), [("b#1".into(), "x".into())]);
    assert_eq!(node.updates().len(), 1);
}

/// Entries that make no sense are skipped and counted; they cost nobody the rest of the message.
#[tokio::test(start_paused = true)]
async fn unreadable_entries_are_skipped_and_counted() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1", "b#1"]).await;
    let mut request = codec::encode_request(&id("a#1"), &said(&[("b#1", "k", "x", 1), ("b#1", "l", "x", 2)]));
    let state = request.state.as_mut().expect("a state");
    let values = &mut state.members.get_mut("b#1").expect("entries").values;
    values.get_mut("l").expect("an entry").sequence_number = -1;
    let answer = node.gossiper.handle_wire_request(&authority("b"), request).await.expect("it runs");
    assert!(answer.is_some());
    assert_eq!((node.values("k").len(), node.values("l").len()), (1, 0));
    assert_eq!(node.gossiper.counters().entries_undecodable(), 1);
    // Not even a state that is missing does harm.
    let request = synod_wire::cluster::GossipRequest { state: None, member_id: String::new() };
    assert!(node.gossiper.handle_wire_request(&authority("b"), request).await.is_ok());
}

/// Requests of peers wait in a queue of their own: however many there are, this node can still speak.
#[tokio::test(start_paused = true)]
async fn a_flood_of_requests_does_not_displace_writes() {
    let node = Node::started(steady(), Notebook::default(), "a#1", &["a#1", "b#1"]).await;
    let mut context = Context::from_waker(Waker::noop());
    let mut flood = Vec::new();
    for sequence in 0..(COMMANDS_MAX + REQUESTS_MAX) as i64 {
        let request = node.gossiper.handle_request(id("b#1"), said(&[("b#1", "k", "x", sequence + 1)]));
        let mut request = Box::pin(request);
        assert!(request.as_mut().poll(&mut context).is_pending());
        flood.push(request);
    }
    node.gossiper.set_state(key("l"), value("x")).expect("room in the queue");
    until(|| node.values("l").len() == 1).await;
    for request in flood {
        assert!(request.await.is_ok());
    }
    assert_eq!(node.values("k").len(), 1);
}

/// What could not be taken for want of room is not acknowledged, so that it is offered again.
#[tokio::test(start_paused = true)]
async fn what_is_beyond_a_bound_is_not_acknowledged() {
    let mut config = steady();
    config.gossip.members_max = 2;
    let node = Node::started(config, Notebook::default(), "a#1", &["a#1", "b#1"]).await;
    assert!(node.hear("b#1", &[("b#1", "k", "x", 1), ("c#1", "k", "x", 1)]).await.is_some());
    assert_eq!(node.hear("b#1", &[("d#1", "k", "x", 1)]).await, None);
    assert_eq!(node.gossiper.counters().entries_refused(), 1);
}
