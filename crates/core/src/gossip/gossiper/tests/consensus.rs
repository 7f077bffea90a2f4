//! R11: do all members say the same, and who hears of it?

use super::*;
use crate::gossip::{CHECKS_MAX, ExtractError};
use alloc::vec;

/// Compares what stands before a slash; a value without one cannot be read.
fn head(bytes: &[u8]) -> Result<Vec<u8>, ExtractError> {
    let end = bytes.iter().position(|byte| *byte == b'/').ok_or(ExtractError)?;
    Ok(bytes[..end].to_vec())
}

fn whole(bytes: &[u8]) -> Result<Vec<u8>, ExtractError> {
    Ok(bytes.to_vec())
}

fn verdicts(outcome: &GossiperOutcome) -> Vec<ConsensusEvent> {
    let consensus = |event: &GossiperEvent| match event {
        GossiperEvent::Consensus(event) => Some(event.clone()),
        GossiperEvent::Alive { .. } | GossiperEvent::Blocked { .. } => None,
    };
    outcome.events.iter().filter_map(consensus).collect()
}

fn register(a: &mut Subject, checker: ConsensusChecker) -> (ConsensusCheckId, Vec<ConsensusEvent>) {
    let (check, outcome) = a.gossiper.register_consensus_check(checker, a.now).expect("room");
    (check, verdicts(&outcome))
}

/// The Go defect: a registered check never fires, because nobody is ever counted as a member.
#[test]
fn a_check_speaks_when_agreement_is_reached_and_when_it_is_lost() {
    let mut a = Subject::new("a", &["b", "c"]);
    a.set("k", "1/a");
    a.hear("b", &[("b", "k", "1/b", 1)]);
    // One member has no value yet.
    let (check, events) = register(&mut a, ConsensusChecker::new(key("k"), head));
    assert_eq!((events, a.gossiper.consensus(check)), (vec![], None));
    let reached = vec![ConsensusEvent::Reached { check, values: vec![b"1".to_vec()] }];
    let lost = vec![ConsensusEvent::Lost { check }];
    assert_eq!(verdicts(&a.hear("c", &[("c", "k", "1/c", 1)])), reached);
    assert_eq!(a.gossiper.consensus(check), Some(&[b"1".to_vec()][..]));
    // A change that the extractor does not see, and one under another key, are no news.
    assert_eq!(verdicts(&a.hear("c", &[("c", "k", "1/d", 2), ("c", "other", "x", 3)])), []);
    // A different value, ours this time, and back.
    assert_eq!(verdicts(&a.set("k", "2/a")), lost);
    assert_eq!(verdicts(&a.set("k", "1/a")), reached);
    // A value that cannot be read counts as none.
    assert_eq!(verdicts(&a.hear("c", &[("c", "k", "1", 4)])), lost);
    // The one who disagrees leaves the topology, or is blocked.
    assert_eq!(verdicts(&a.members(&["b"])), reached);
    assert_eq!(verdicts(&a.members(&["b"])), []);
}

#[test]
fn whoever_is_blocked_does_not_count() {
    let mut a = Subject::new("a", &["b", "c"]);
    a.set("k", "x");
    a.hear("b", &[("b", "k", "x", 1), ("c", "k", "y", 1)]);
    let (check, events) = register(&mut a, ConsensusChecker::new(key("k"), whole));
    assert_eq!(events, []);
    let outcome = a.hear("c", &[("c", "gracefully_left", "", 2)]);
    assert_eq!(verdicts(&outcome), [ConsensusEvent::Reached { check, values: vec![b"x".to_vec()] }]);
    // A newcomer has said nothing yet.
    assert_eq!(verdicts(&a.members(&["b", "d"])), [ConsensusEvent::Lost { check }]);
}

#[test]
fn agreement_on_something_else_is_a_new_agreement() {
    let mut a = Subject::new("a", &["b"]);
    a.members(&[]);
    a.set("k", "1");
    let (check, events) = register(&mut a, ConsensusChecker::new(key("k"), whole));
    assert_eq!(events, [ConsensusEvent::Reached { check, values: vec![b"1".to_vec()] }]);
    let again = ConsensusEvent::Reached { check, values: vec![b"2".to_vec()] };
    assert_eq!(verdicts(&a.set("k", "2")), [ConsensusEvent::Lost { check }, again]);
}

#[test]
fn a_check_of_two_keys_needs_agreement_on_both() {
    let mut a = Subject::new("a", &["b"]);
    a.set("one", "1");
    a.set("two", "2");
    let checker = ConsensusChecker::new(key("one"), whole).and(key("two"), whole);
    let (check, _) = register(&mut a, checker);
    assert_eq!(verdicts(&a.hear("b", &[("b", "one", "1", 1)])), []);
    let values = vec![b"1".to_vec(), b"2".to_vec()];
    assert_eq!(verdicts(&a.hear("b", &[("b", "two", "2", 2)])), [ConsensusEvent::Reached { check, values }]);
}

/// The Go defect: removing a check looks in the wrong index, and the check stays.
#[test]
fn a_removed_check_is_silent_and_the_others_stay() {
    let mut a = Subject::new("a", &["b"]);
    let (first, _) = register(&mut a, ConsensusChecker::new(key("k"), whole));
    let (second, _) = register(&mut a, ConsensusChecker::new(key("k"), whole));
    a.set("k", "x");
    assert_eq!(a.gossiper.remove_consensus_check(first), Ok(true));
    assert_eq!(a.gossiper.remove_consensus_check(first), Ok(false), "an unknown id is harmless");
    let values = vec![b"x".to_vec()];
    let events = verdicts(&a.hear("b", &[("b", "k", "x", 1)]));
    assert_eq!(events, [ConsensusEvent::Reached { check: second, values }]);
    assert_eq!(a.gossiper.consensus(first), None);
}

#[test]
fn checks_are_bounded_and_end_with_the_run() {
    let mut a = Subject::new("a", &["b"]);
    let first = register(&mut a, ConsensusChecker::new(key("k"), whole)).0;
    for _ in 1..CHECKS_MAX {
        register(&mut a, ConsensusChecker::new(key("k"), whole));
    }
    let refused = a.gossiper.register_consensus_check(ConsensusChecker::new(key("k"), whole), a.now);
    assert_eq!(refused.map(|(check, _)| check), Err(GossiperError::TooManyChecks));
    a.gossiper.stop(a.now).expect("it stops");
    a.gossiper.start(id("a#2"), 7, a.now).expect("it starts");
    let (fresh, _) = register(&mut a, ConsensusChecker::new(key("k"), whole));
    assert_ne!(fresh, first, "an id of the earlier run names nothing");
    let wide =
        (0..16).fold(ConsensusChecker::new(key("k"), whole), |checker, _| checker.and(key("k"), whole));
    let refused = a.gossiper.register_consensus_check(wide, a.now);
    assert_eq!(refused.map(|(check, _)| check), Err(GossiperError::TooManyCheckKeys { keys: 17 }));
}
