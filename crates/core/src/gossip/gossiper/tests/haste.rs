//! News that does not wait for the round.

use super::*;
use crate::HASTE_MAX;

const EAGER: Duration = Duration::from_millis(5);

/// In a cluster with `vouched`, whom membership answers for, and with `others`.
fn subject(vouched: &[&str], others: &[&str], eager_delay: Option<Duration>) -> Subject {
    let config = GossiperConfig { eager_delay, ..GossiperConfig::default() };
    let mut subject = Subject::with_config("self", &[vouched, others].concat(), config);
    let vouched: Vec<_> = vouched.iter().map(|name| id(name)).collect();
    subject.gossiper.set_vouched(&vouched, subject.now).expect("few members");
    // Everybody has heard everything.
    let told = subject.round();
    subject.answer(&told);
    subject
}

/// Polls whenever the gossiper asks to within `time`, without rounds. Returns whom it told what it has to say.
fn pass(subject: &mut Subject, time: Duration) -> Vec<GossipRequest> {
    let (until, mut requests) = (subject.now + time, Vec::new());
    loop {
        let outcome = subject.gossiper.poll(subject.now).expect("it runs");
        requests.extend(outcome.requests);
        match outcome.wake_at.filter(|at| *at > subject.now && *at <= until) {
            Some(at) => subject.now = at,
            None => break,
        }
    }
    subject.now = until;
    requests
}

fn targets(requests: &[GossipRequest]) -> Vec<String> {
    let mut targets: Vec<_> = requests.iter().map(|request| format!("{}", request.target)).collect();
    targets.sort();
    targets
}

#[test]
fn whoever_is_vouched_for_hears_what_is_new_ahead_of_the_round() {
    let mut subject = subject(&["a", "b"], &["go"], Some(EAGER));
    assert_eq!(subject.set("k", "x").wake_at, Some(subject.now + EAGER));
    assert_eq!(pass(&mut subject, EAGER - Duration::from_nanos(1)), []);
    let requests = pass(&mut subject, Duration::from_nanos(1));
    assert_eq!(targets(&requests), ["a", "b"], "others hear of it with the round");
    let told = |request: &GossipRequest| speaks_of(&request.state).contains(&("self".into(), 1));
    assert!(requests.iter().all(told), "{requests:?}");
    // So does what others said, but not that they are alive.
    for request in requests {
        subject.gossiper.handle_response(request.token, None, subject.now).expect("it is waited for");
    }
    subject.hear("a", &[("a", "heartbeat", "", 1)]);
    assert_eq!(pass(&mut subject, 2 * EAGER), []);
    subject.hear("a", &[("a", "k", "y", 2)]);
    assert_eq!(targets(&pass(&mut subject, EAGER)), ["b"]);
}

#[test]
fn a_new_member_is_told_at_once_who_says_what() {
    let mut subject = subject(&[], &[], Some(EAGER));
    subject.set("k", "x");
    assert_eq!(pass(&mut subject, 2 * EAGER), [], "there is nobody to tell");
    subject.members(&["a"]);
    subject.gossiper.set_vouched(&[id("a")], subject.now).expect("few members");
    assert_eq!(targets(&pass(&mut subject, EAGER)), ["a"]);
}

#[test]
fn whoever_has_yet_to_answer_hears_the_rest_afterwards() {
    let mut subject = subject(&["a"], &[], Some(EAGER));
    subject.set("k", "x");
    let first = pass(&mut subject, EAGER);
    subject.set("k", "y");
    assert_eq!(pass(&mut subject, 2 * EAGER), [], "one request at a time");
    subject.gossiper.handle_response(first[0].token, None, subject.now).expect("it is waited for");
    assert_eq!(targets(&pass(&mut subject, EAGER)), ["a"]);
}

#[test]
fn a_storm_of_news_makes_a_bounded_number_of_requests() {
    let mut subject = subject(&["a"], &[], Some(EAGER));
    let mut requests = 0;
    for storm in 0..450 {
        subject.set("k", &format!("{storm}"));
        for request in pass(&mut subject, Duration::from_millis(1)) {
            requests += 1;
            subject.gossiper.handle_response(request.token, None, subject.now).expect("it is waited for");
        }
    }
    assert!((HASTE_MAX..2 * HASTE_MAX).contains(&requests), "{requests} requests");
}

#[test]
fn without_an_eager_delay_news_waits_for_the_round() {
    let mut subject = subject(&["a"], &[], None);
    subject.set("k", "x");
    assert_eq!(pass(&mut subject, Duration::from_millis(450)), []);
    assert_eq!(targets(&subject.round().requests), ["a"]);
}
