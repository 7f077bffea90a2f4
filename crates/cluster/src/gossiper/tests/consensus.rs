//! Do all members say the same? R11.

use super::*;
use synod_core::gossip::{ConsensusEvent, ExtractError};

fn whole(name: &str) -> ConsensusChecker {
    ConsensusChecker::new(key(name), |bytes| Ok(bytes.to_vec()))
}

async fn started(members: &[&str]) -> Node {
    Node::started(steady(), Notebook::default(), "a#1", members).await
}

/// R11.1 - R11.3: a check is registered, all equal is agreement, and reaching it is told to who waits, on the stream and
/// to who asks. The Go defect: consensus never fires.
#[tokio::test(start_paused = true)]
async fn equal_values_are_a_consensus() {
    let mut node = started(&["a#1", "b#1"]).await;
    node.set("k", "x").await;
    let check = node.gossiper.register_consensus_check(whole("k")).await.expect("room");
    assert_eq!(check.current(), None, "b has said nothing");
    let waiting = async { check.wait_for_consensus(millis(1_000)).await };
    let answering = async {
        pass(millis(100)).await;
        node.hear("b#1", &[("b#1", "k", "x", 1)]).await;
    };
    let (agreed, ()) = tokio::join!(waiting, answering);
    assert_eq!(agreed, Ok(vec![b"x".to_vec()]));
    assert_eq!(check.current(), Some(vec![b"x".to_vec()]));
    let reached = ConsensusEvent::Reached { check: check.id(), values: vec![b"x".to_vec()] };
    assert!(node.gossiper_events().contains(&GossiperEvent::Consensus(reached)));
    // Who comes later is told at once.
    let late = node.gossiper.register_consensus_check(whole("k")).await.expect("room");
    assert_eq!(late.wait_for_consensus(Duration::ZERO).await, Ok(vec![b"x".to_vec()]));
}

/// Differing values, a missing one, and one that cannot be read are no consensus; waiting for it is bounded.
#[tokio::test(start_paused = true)]
async fn differing_missing_and_unreadable_values_are_none() {
    let node = started(&["a#1", "b#1", "c#1"]).await;
    node.set("k", "x").await;
    let check = ConsensusChecker::new(key("k"), |bytes| match bytes {
        b"unreadable" => Err(ExtractError),
        bytes => Ok(bytes.to_vec()),
    });
    let check = node.gossiper.register_consensus_check(check).await.expect("room");
    let timeout = millis(250);
    let steps = [
        ("b#1", "x", false), // c has said nothing
        ("c#1", "y", false),
        ("c#1", "unreadable", false),
        ("c#1", "x", true),
        ("b#1", "unreadable", false),
        ("b#1", "x", true),
    ];
    for (sequence, (member, text, agree)) in (1..).zip(steps) {
        node.hear("b#1", &[(member, "k", text, sequence)]).await;
        let began = Instant::now();
        let waited = check.wait_for_consensus(timeout).await;
        if agree {
            assert_eq!((waited, began.elapsed()), (Ok(vec![b"x".to_vec()]), Duration::ZERO));
        } else {
            assert_eq!((waited, began.elapsed()), (Err(GossiperError::Timeout { timeout }), timeout));
        }
    }
}

/// A consensus is lost when a value changes, and both edges are seen.
#[tokio::test(start_paused = true)]
async fn a_lost_consensus_is_told() {
    let mut node = started(&["a#1", "b#1"]).await;
    let mut check = node.gossiper.register_consensus_check(whole("k")).await.expect("room");
    node.hear("b#1", &[("b#1", "k", "x", 1)]).await;
    node.set("k", "x").await;
    assert_eq!(soon(check.changed()).await, Ok(Some(vec![b"x".to_vec()])));
    node.gossiper_events();
    node.set("k", "y").await;
    assert_eq!(soon(check.changed()).await, Ok(None));
    let lost = GossiperEvent::Consensus(ConsensusEvent::Lost { check: check.id() });
    assert!(node.gossiper_events().contains(&lost));
}

/// Who leaves is not asked any more.
#[tokio::test(start_paused = true)]
async fn a_member_that_left_does_not_count() {
    let node = started(&["a#1", "b#1", "c#1"]).await;
    node.set("k", "x").await;
    node.hear("b#1", &[("b#1", "k", "x", 1), ("c#1", "k", "y", 1)]).await;
    let check = node.gossiper.register_consensus_check(whole("k")).await.expect("room");
    assert_eq!(check.current(), None);
    node.hear("b#1", &[("c#1", "gracefully_left", "", 2)]).await;
    assert_eq!(check.current(), Some(vec![b"x".to_vec()]));
}

/// Several keys: members agree only if they agree on all.
#[tokio::test(start_paused = true)]
async fn a_check_of_two_keys_needs_both() {
    let node = started(&["a#1", "b#1"]).await;
    node.set("k", "x").await;
    node.set("l", "10").await;
    let check = whole("k").and(key("l"), |bytes| Ok(vec![bytes.len() as u8]));
    let check = node.gossiper.register_consensus_check(check).await.expect("room");
    node.hear("b#1", &[("b#1", "k", "x", 1), ("b#1", "l", "1", 2)]).await;
    assert_eq!(check.current(), None);
    node.hear("b#1", &[("b#1", "l", "99", 3)]).await;
    assert_eq!(check.current(), Some(vec![b"x".to_vec(), vec![2]]));
}

/// R11.4: a check is removed by its id; an unknown id is harmless. The Go defect: the removed check stays registered.
#[tokio::test(start_paused = true)]
async fn a_removed_check_is_gone() {
    let mut node = started(&["a#1"]).await;
    let check = node.gossiper.register_consensus_check(whole("k")).await.expect("room");
    let other = node.gossiper.register_consensus_check(whole("k")).await.expect("room");
    assert!(node.gossiper.remove_consensus_check(check.id()));
    assert!(!node.gossiper.remove_consensus_check(check.id()), "once is enough");
    assert_eq!(check.wait_for_consensus(millis(1)).await, Err(GossiperError::CheckRemoved));
    node.gossiper_events();
    node.set("k", "x").await;
    let reached = ConsensusEvent::Reached { check: other.id(), values: vec![b"x".to_vec()] };
    assert_eq!(
        node.gossiper_events(),
        [GossiperEvent::Consensus(reached)],
        "only the one that is left speaks"
    );
}

/// Cancelling and dropping a handle both remove its check, so that there is room for others.
#[tokio::test(start_paused = true)]
async fn a_check_lives_no_longer_than_its_handle() {
    let node = started(&["a#1"]).await;
    for round in 0..3 {
        let mut checks = Vec::new();
        for _ in 0..gossip::CHECKS_MAX {
            checks.push(node.gossiper.register_consensus_check(whole("k")).await.expect("room"));
        }
        let refused = node.gossiper.register_consensus_check(whole("k")).await.map(|_| ());
        assert_eq!(refused, Err(GossiperError::Refused(gossip::GossiperError::TooManyChecks)));
        if round == 1 {
            checks.iter().for_each(ConsensusHandle::cancel);
        }
        drop(checks);
        assert_eq!(node.gossiper.shared().checks.len(), 0);
    }
    // Whoever does not wait for the handle leaves no check behind either.
    let asking = node.gossiper.register_consensus_check(whole("k"));
    assert!(tokio::time::timeout(Duration::ZERO, asking).await.is_err());
    node.set("k", "x").await;
    until(|| node.gossiper.shared().checks.len() == 0).await;
}

/// A handle keeps nothing alive.
#[tokio::test(start_paused = true)]
async fn a_handle_outlives_its_gossiper_harmlessly() {
    let node = started(&["a#1"]).await;
    let mut check = node.gossiper.register_consensus_check(whole("k")).await.expect("room");
    let shared = Arc::downgrade(node.gossiper.shared());
    drop(node);
    until(|| shared.upgrade().is_none()).await;
    assert_eq!(check.changed().await, Err(GossiperError::AlreadyStopped));
    assert_eq!(check.wait_for_consensus(millis(1)).await, Err(GossiperError::AlreadyStopped));
    check.cancel();
}
