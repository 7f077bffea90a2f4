use alloc::string::ToString;
use alloc::vec;
use core::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

const fn at(millis: u64) -> TimerInstant {
    TimerInstant::from_millis(millis)
}

fn grain(identity: &str) -> ClusterIdentity {
    ClusterIdentity::new("Chat", identity).expect("a name")
}

fn pid(text: &str) -> ActorPid {
    text.parse().expect("a PID")
}

fn peer(text: &str) -> Authority {
    Authority::new(text).expect("an authority")
}

/// No retries, no alerts, two may wait.
fn config() -> RouterConfig {
    RouterConfig {
        queue_depth: 2,
        retry: RetryPolicy::None,
        latency_alert: None,
        attempt_timeout: SECOND,
        ..RouterConfig::default()
    }
}

fn router(config: RouterConfig) -> GrainRpcRouter {
    GrainRpcRouter::new(config, 1).expect("sound settings")
}

fn request(identity: &str, deadline: u64) -> CallRequest {
    CallRequest {
        grain: grain(identity),
        deadline: at(deadline),
        schema_min: 1,
        retry: None,
        known: None,
        once: false,
    }
}

/// A call to `a` that has until ten seconds.
fn call(router: &mut GrainRpcRouter, now: u64) -> (CorrelationId, RouterOutcome) {
    router.call(request("a", 10_000), at(now))
}

/// The calls whose turn an outcome begins.
fn begun(out: &RouterOutcome) -> Vec<CorrelationId> {
    out.commands
        .iter()
        .filter_map(|command| match command {
            RouterCommand::Resolve { correlation, .. } => Some(*correlation),
            _ => None,
        })
        .collect()
}

fn ended(out: &RouterOutcome) -> Vec<(CorrelationId, CallEnd)> {
    out.ended.iter().map(|ended| (ended.correlation, ended.end.clone())).collect()
}

fn completed(millis: u64) -> CallEnd {
    CallEnd::Completed { answer: Answer::Success, latency: Duration::from_millis(millis) }
}

/// The grain is found, and answers.
fn answer(router: &mut GrainRpcRouter, correlation: CorrelationId, now: u64) -> RouterOutcome {
    router.handle_resolved(correlation, pid("h:1/a"), at(now));
    router.handle_response(correlation, Answer::Success, 1, at(now))
}

#[test]
fn a_call_that_knows_its_grain_goes_there_at_once_and_looks_when_it_has_waited() {
    let mut router =
        router(RouterConfig { retry: RetryPolicy::Fixed { retries: 1, delay: SECOND }, ..config() });
    let known = || CallRequest { known: Some(pid("h:1/a")), ..request("a", 10_000) };
    let sent = |out: &RouterOutcome| matches!(out.commands[..], [RouterCommand::Send { .. }]);
    let (first, out) = router.call(known(), at(0));
    assert!(sent(&out), "{out:?}");
    let (second, out) = router.call(known(), at(0));
    assert_eq!(out.commands, [], "it waits for its turn");
    let out = router.handle_response(first, Answer::Success, 1, at(1));
    assert_eq!(begun(&out), [second], "what it knew may be wrong by now");
    router.handle_resolved(second, pid("h:1/a"), at(1));
    router.handle_response(second, Answer::Success, 1, at(2));
    // What turns out to be wrong is forgotten, and looked for.
    let (third, _) = router.call(known(), at(3));
    let out = router.handle_failure(third, AttemptFailure::DeadLetter, at(4));
    assert!(matches!(out.commands[..], [RouterCommand::Evict { .. }]), "{out:?}");
    assert_eq!(begun(&router.poll(at(1_004))), [third]);
    assert!(router.cancel(third, at(1_004)).commands.is_empty() && router.is_empty());
}

#[test]
fn routers_that_share_their_numbers_use_none_twice() {
    let mut routers = [0, 1, 2].map(|first| router(config()).numbered(first, 3));
    let numbers: Vec<_> = (0..6).map(|turn: usize| call(&mut routers[turn % 3], 0).0.get()).collect();
    assert_eq!(numbers, [3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_call_finds_its_grain_is_sent_and_answered() {
    let mut router = router(config());
    let (id, out) = call(&mut router, 0);
    assert_eq!(out.commands, [RouterCommand::Resolve { correlation: id, grain: grain("a") }]);
    let out = router.handle_resolved(id, pid("h:1/a"), at(100));
    let (deadline, remaining) = (at(10_000), Duration::from_millis(9_900));
    let send = RouterCommand::Send { correlation: id, pid: pid("h:1/a"), schema: 1, deadline, remaining };
    assert_eq!(out.commands, [send], "what is left of the time travels with it");
    let out = router.handle_response(id, Answer::Success, 1, at(150));
    assert_eq!(ended(&out), [(id, completed(150))]);
    assert_eq!((router.len(), router.lanes.len(), out.wake_at), (0, 0, None), "nothing stays behind");
    assert_eq!(router.latencies().count(), 1);
    // A second answer finds nobody.
    assert_eq!(router.handle_response(id, Answer::Success, 1, at(151)).ended, []);
    assert_eq!(router.counts().late, 1);
}

#[test]
fn calls_to_one_grain_take_turns_and_calls_to_others_do_not_wait_for_them() {
    let mut router = router(config());
    let (first, out) = call(&mut router, 0);
    assert_eq!(begun(&out), [first]);
    let (second, out) = call(&mut router, 1);
    assert_eq!(begun(&out), []);
    let (third, _) = call(&mut router, 2);
    assert_eq!(router.lane(&grain("a")), (1, 2));
    let (other, out) = router.call(request("b", 10_000), at(3));
    assert_eq!(begun(&out), [other]);
    assert_eq!(begun(&answer(&mut router, first, 10)), [second]);
    assert_eq!(begun(&answer(&mut router, second, 20)), [third]);
    assert_eq!(ended(&answer(&mut router, third, 30)), [(third, completed(28))]);
    assert_eq!(router.lane(&grain("a")), (0, 0));
}

#[test]
fn a_full_queue_rejects_the_newest() {
    let mut router = router(config());
    for now in 0..3 {
        call(&mut router, now);
    }
    let (fourth, out) = call(&mut router, 3);
    let full = CallEnd::Rejected(CallRejection::QueueFull { depth: 2 });
    assert_eq!(ended(&out), [(fourth, full)]);
    let counts = router.counts();
    assert_eq!((counts.accepted, counts.rejected), (3, 1));
}

#[test]
fn or_it_drops_the_oldest_and_tells_its_caller() {
    let mut router = router(RouterConfig { overflow: OverflowPolicy::DropOldest, ..config() });
    let (running, _) = call(&mut router, 0);
    let (oldest, _) = call(&mut router, 1);
    let (next, _) = call(&mut router, 2);
    let (newest, out) = call(&mut router, 3);
    assert_eq!(ended(&out), [(oldest, CallEnd::DroppedOldest)], "the one that runs is not touched");
    assert_eq!(begun(&answer(&mut router, running, 4)), [next]);
    assert_eq!(begun(&answer(&mut router, next, 5)), [newest]);

    // Where nobody may wait there is no oldest: the newcomer is rejected.
    let config = RouterConfig { overflow: OverflowPolicy::DropOldest, queue_depth: 0, ..config() };
    let mut router = self::router(config);
    call(&mut router, 0);
    let (second, out) = call(&mut router, 1);
    assert_eq!(ended(&out), [(second, CallEnd::Rejected(CallRejection::QueueFull { depth: 0 }))]);
}

#[test]
fn calls_are_bounded_over_all_grains_and_refused_when_their_time_is_over() {
    let mut router = router(RouterConfig { calls_max: 1, ..config() });
    let (_, out) = router.call(request("a", 5), at(5));
    assert_eq!(out.ended[0].end, CallEnd::Rejected(CallRejection::DeadlinePassed));
    call(&mut router, 0);
    let (_, out) = router.call(request("b", 10_000), at(0));
    assert_eq!(out.ended[0].end, CallEnd::Rejected(CallRejection::TooManyCalls { max: 1 }));
    let retry = RetryPolicy::Fixed { retries: 0, delay: SECOND };
    let (_, out) = router.call(CallRequest { retry: Some(retry), ..request("c", 10_000) }, at(0));
    assert!(matches!(out.ended[0].end, CallEnd::Rejected(CallRejection::Retry(_))));
    // When the one that runs is over, there is room again, without a poll in between.
    let (next, out) = router.call(request("b", 20_000), at(10_000));
    assert_eq!(begun(&out), [next]);
}

#[test]
fn all_calls_whose_time_is_over_end_at_once_and_the_next_has_its_turn() {
    let mut router = router(RouterConfig { queue_depth: 10, attempt_timeout: 60 * SECOND, ..config() });
    let deadlines = [100, 100, 90, 500, 95];
    let ids = deadlines.map(|deadline| router.call(request("a", deadline), at(0)).0);
    let (other, _) = router.call(request("b", 80), at(0));
    assert_eq!(router.expire(at(79)).ended, []);

    let out = router.expire(at(100));
    let mut over: Vec<_> = ended(&out);
    over.sort_by_key(|(id, _)| *id);
    let timed_out = |attempts| CallEnd::TimedOut { attempts };
    let expected = [
        (ids[0], timed_out(1)),
        (ids[1], timed_out(0)),
        (ids[2], timed_out(0)),
        (ids[4], timed_out(0)),
        (other, timed_out(1)),
    ];
    assert_eq!(over, expected);
    assert_eq!(begun(&out), [ids[3]], "one slot, one turn");
    assert_eq!((router.lane(&grain("a")), router.lane(&grain("b"))), ((1, 0), (0, 0)));
    assert_eq!(out.wake_at, Some(at(500)));
}

#[test]
fn a_completion_passes_over_every_call_whose_time_is_over() {
    let mut router = router(RouterConfig { queue_depth: 10, ..config() });
    let (first, _) = call(&mut router, 0);
    let late = [50, 60, 70].map(|deadline| router.call(request("a", deadline), at(0)).0);
    let (last, _) = call(&mut router, 1);
    router.handle_resolved(first, pid("h:1/a"), at(1));
    // No poll has run since they expired.
    let out = router.handle_response(first, Answer::Success, 1, at(70));
    let mut over: Vec<_> = ended(&out).into_iter().map(|(id, _)| id).collect();
    over.sort();
    assert_eq!(over, [first, late[0], late[1], late[2]]);
    assert_eq!(begun(&out), [last]);
}

#[test]
fn an_answer_after_the_deadline_is_too_late_to_the_nanosecond() {
    for (nanos, in_time) in [(9_999_999_999, true), (10_000_000_000, false)] {
        let mut router = router(RouterConfig { attempt_timeout: 60 * SECOND, ..config() });
        let (id, _) = call(&mut router, 0);
        router.handle_resolved(id, pid("h:1/a"), at(1));
        let out = router.handle_response(id, Answer::Success, 1, TimerInstant::from_nanos(nanos));
        let end = &out.ended[0].end;
        assert_eq!(matches!(end, CallEnd::Completed { .. }), in_time, "{end:?}");
        assert_eq!(matches!(end, CallEnd::TimedOut { attempts: 1 }), !in_time, "{end:?}");
    }
}

#[test]
fn a_dead_letter_makes_the_caller_forget_the_place_and_look_again() {
    let retry = RetryPolicy::Fixed { retries: 2, delay: Duration::from_millis(10) };
    let mut router = router(RouterConfig { retry, ..config() });
    let (id, _) = call(&mut router, 0);
    let (waiting, _) = call(&mut router, 0);
    for (attempts, place) in [(1, "h:1/a"), (2, "h:2/a")] {
        let now = u64::from(attempts) * 100;
        router.handle_resolved(id, pid(place), at(now));
        let out = router.handle_failure(id, AttemptFailure::DeadLetter, at(now));
        let evict = RouterCommand::Evict { correlation: id, grain: grain("a"), pid: pid(place) };
        assert_eq!(out.commands, [evict], "the next call keeps waiting: order is kept");
        let (grain, failure, at_) = (grain("a"), AttemptFailure::DeadLetter, at(now + 10));
        assert_eq!(
            out.events,
            [RouterEvent::Retrying { correlation: id, grain, attempts, failure, at: at_ }]
        );
        assert_eq!(begun(&router.poll(at(now + 9))), []);
        assert_eq!(begun(&router.poll(at(now + 10))), [id]);
    }
    // The third attempt was the last.
    router.handle_resolved(id, pid("h:3/a"), at(300));
    let out = router.handle_failure(id, AttemptFailure::DeadLetter, at(300));
    assert_eq!(ended(&out), [(id, CallEnd::Failed(AttemptFailure::DeadLetter))]);
    assert_eq!((begun(&out), router.counts().retries), (vec![waiting], 2));
}

#[test]
fn an_attempt_without_an_answer_is_given_up_and_its_answer_still_counts() {
    let retry = RetryPolicy::Fixed { retries: 1, delay: Duration::ZERO };
    let mut router = router(RouterConfig { retry, ..config() });
    let (id, _) = call(&mut router, 0);
    router.handle_resolved(id, pid("h:1/a"), at(0));
    let out = router.poll(at(1000));
    assert!(matches!(out.commands[..], [RouterCommand::Evict { .. }]));
    assert_eq!(begun(&router.poll(at(1000))), [id]);
    // The first activation was only slow. Its answer is as good as any.
    let out = router.handle_response(id, Answer::Success, 1, at(1100));
    assert_eq!(ended(&out), [(id, completed(1100))]);
    assert_eq!(router.handle_resolved(id, pid("h:2/a"), at(1200)).commands, [], "nothing is sent any more");

    // Without any answer the last attempt ends the call, long before its deadline, and says why.
    let (id, _) = call(&mut router, 2000);
    router.poll(at(3000));
    router.poll(at(3000));
    let out = router.poll(at(4000));
    assert_eq!(ended(&out), [(id, CallEnd::TimedOut { attempts: 2 })]);
    assert_eq!(out.ended[0].grain, grain("a"));
}

#[test]
fn no_attempt_begins_after_the_deadline_and_some_failures_are_final() {
    let (base, cap) = (SECOND, 100 * SECOND);
    let mut router =
        router(RouterConfig { retry: RetryPolicy::Backoff { retries: 9, base, cap }, ..config() });
    let (id, _) = router.call(request("a", 700), at(0));
    // The pause is at least 800 ms, and 700 are left.
    let out = router.handle_failure(id, AttemptFailure::NoHost, at(0));
    assert_eq!(ended(&out), [(id, CallEnd::Failed(AttemptFailure::NoHost))]);

    let (id, _) = call(&mut router, 0);
    router.handle_resolved(id, pid("h:1/a"), at(0));
    let failure = AttemptFailure::Uncodable("truncated".into());
    let out = router.handle_failure(id, failure.clone(), at(0));
    assert_eq!(ended(&out), [(id, CallEnd::Failed(failure))]);
    assert_eq!(out.commands, [], "the place was right, the words were not");
    let counts = router.counts();
    assert_eq!((counts.failed, counts.completed), (2, 0));
}

#[test]
fn the_schema_is_agreed_with_each_peer_and_both_directions_are_checked() {
    let mut router = router(RouterConfig { schema_versions: vec![1, 2], ..config() });
    let agreed = router.handle_peer_schemas(&peer("h:1"), &[1, 2, 3]).events;
    assert_eq!(agreed, [RouterEvent::SchemaAgreed { peer: peer("h:1"), version: 2 }]);
    let refused = router.handle_peer_schemas(&peer("h:2"), &[7]).events;
    assert_eq!(refused, [RouterEvent::SchemaRefused { peer: peer("h:2"), offered: vec![7] }]);
    let newer = || CallRequest { schema_min: 2, ..request("a", 10_000) };

    // The peer that shares version 2 gets the request in it, and must answer in it.
    let (id, _) = router.call(newer(), at(0));
    let out = router.handle_resolved(id, pid("h:1/a"), at(0));
    assert!(matches!(out.commands[..], [RouterCommand::Send { schema: 2, .. }]));
    let out = router.handle_response(id, Answer::Success, 1, at(1));
    let failure = AttemptFailure::AnswerSchema { answered: 1, agreed: 2 };
    assert_eq!(ended(&out), [(id, CallEnd::Failed(failure))]);

    // One with which nothing is shared, and one that never said more than the base: nothing is sent.
    let cases = [
        ("h:2/a", AttemptFailure::NoCommonSchema(peer("h:2"))),
        ("h:3/a", AttemptFailure::SchemaTooOld { peer: peer("h:3"), needed: 2, shared: SCHEMA_BASE }),
    ];
    for (place, failure) in cases {
        let (id, _) = router.call(newer(), at(2));
        let out = router.handle_resolved(id, pid(place), at(2));
        assert_eq!((out.commands.len(), ended(&out)), (0, vec![(id, CallEnd::Failed(failure))]));
    }
}

#[test]
fn when_a_peer_goes_what_was_sent_there_is_tried_elsewhere() {
    let retry = RetryPolicy::Fixed { retries: 1, delay: Duration::ZERO };
    let mut router = router(RouterConfig { retry, ..config() });
    let (there, _) = call(&mut router, 0);
    let (elsewhere, _) = router.call(request("b", 10_000), at(0));
    router.handle_resolved(there, pid("h:1/a"), at(0));
    router.handle_resolved(elsewhere, pid("h:2/b"), at(0));
    let out = router.handle_peer_gone(&peer("h:1"), at(5));
    assert!(matches!(&out.events[..], [RouterEvent::Retrying { correlation, .. }] if *correlation == there));
    assert_eq!(begun(&router.poll(at(5))), [there]);
    assert_eq!(AttemptFailure::Unreachable(peer("h:1")).to_string(), "h:1 cannot be reached");
}

#[test]
fn a_call_that_must_not_be_repeated_is_not_once_the_grain_may_have_handled_it() {
    let mut router = router(config());
    let retry = Some(RetryPolicy::Fixed { retries: 5, delay: Duration::from_millis(100) });
    let once = || CallRequest { once: true, retry, ..request("a", 10_000) };
    // What never arrived is looked for again, like any other call.
    let (id, _) = router.call(once(), at(0));
    router.handle_failure(id, AttemptFailure::NoHost, at(0));
    assert_eq!(begun(&router.poll(at(200))), [id]);
    router.handle_resolved(id, pid("h:1/a"), at(200));
    router.handle_failure(id, AttemptFailure::DeadLetter, at(200));
    assert_eq!(begun(&router.poll(at(900))), [id]);
    // An attempt may take all the time that is left: another one is not an option.
    router.handle_resolved(id, pid("h:1/a"), at(900));
    assert_eq!(
        router.poll(at(9_999)),
        RouterOutcome { wake_at: Some(at(10_000)), ..RouterOutcome::default() }
    );
    assert_eq!(ended(&router.poll(at(10_000))), [(id, CallEnd::TimedOut { attempts: 3 })]);
    // Who went away may have handled it.
    let (id, _) = router.call(CallRequest { once: true, retry, ..request("b", 20_000) }, at(10_000));
    router.handle_resolved(id, pid("h:1/b"), at(10_000));
    let gone = CallEnd::Failed(AttemptFailure::Unreachable(peer("h:1")));
    assert_eq!(ended(&router.handle_peer_gone(&peer("h:1"), at(10_001))), [(id, gone)]);
}

#[test]
fn a_cancelled_call_frees_its_place_wherever_it_was() {
    let mut router = router(config());
    let (running, _) = call(&mut router, 0);
    let (waiting, _) = call(&mut router, 0);
    let (last, _) = call(&mut router, 0);
    assert_eq!(ended(&router.cancel(waiting, at(1))), [(waiting, CallEnd::Cancelled)]);
    let out = router.cancel(running, at(2));
    assert_eq!((ended(&out), begun(&out)), (vec![(running, CallEnd::Cancelled)], vec![last]));
    assert_eq!(router.cancel(running, at(3)).ended, [], "once");
}

#[test]
fn slow_calls_raise_an_alert_and_errors_of_grains_are_counted() {
    let alert = Duration::from_millis(100);
    let mut router = router(RouterConfig { latency_alert: Some(alert), ..config() });
    let (id, _) = call(&mut router, 0);
    assert_eq!(answer(&mut router, id, 100).events, [], "the threshold itself is no alert");
    let (id, _) = call(&mut router, 200);
    router.handle_resolved(id, pid("h:1/a"), at(200));
    let out = router.handle_response(id, Answer::GrainError, 1, at(301));
    let (grain, latency) = (grain("a"), Duration::from_millis(101));
    assert_eq!(out.events, [RouterEvent::Slow { correlation: id, grain, latency }]);
    let counts = router.counts();
    assert_eq!((counts.completed, counts.grain_errors, counts.slow), (2, 1, 1));
    assert_eq!(router.latencies().longest(), latency);
}

#[test]
fn more_than_one_call_may_have_its_turn() {
    let mut router = router(RouterConfig { concurrency_limit: 2, ..config() });
    let ids = [0; 4].map(|now| call(&mut router, now).0);
    assert_eq!(router.lane(&grain("a")), (2, 2));
    assert_eq!(begun(&answer(&mut router, ids[1], 1)), [ids[2]]);
    assert_eq!(begun(&answer(&mut router, ids[0], 1)), [ids[3]]);
}
