//! Every row of the rules by which a name changes hands.

use super::*;

const FAIL: Duration = Duration::from_secs(45);

fn life(number: u64) -> Incarnation {
    Incarnation::new(number).expect("a life")
}

fn name() -> NodeId {
    NodeId::new("a").expect("a name")
}

/// What becomes of life `incarnation` when life 5 of the same name has this standing and was silent for so long.
fn judge(
    standing: Standing,
    silent: Duration,
    incarnation: u64,
    force: bool,
) -> Result<Option<Takeover>, TakeoverRefusal> {
    let holder = Holder { standing, incarnation: life(5), last_heard_age: silent };
    judge_start(&name(), life(incarnation), Some(&holder), force, FAIL)
}

#[test]
fn a_name_that_nobody_holds_is_free() {
    for force in [false, true] {
        assert_eq!(judge_start(&name(), life(1), None, force, FAIL), Ok(None));
    }
}

#[test]
fn a_name_that_lives_is_never_given_away() {
    // One of whom nothing is known may well live.
    for standing in [Standing::Alive, Standing::Unknown] {
        for (force, silent) in [(false, Duration::ZERO), (true, Duration::ZERO), (true, FAIL * 10)] {
            assert_eq!(judge(standing, silent, 6, force), Err(TakeoverRefusal::Alive { node: name() }));
        }
    }
}

#[test]
fn a_suspect_is_taken_over_by_force_alone_and_after_the_fail_timeout() {
    let almost = FAIL - Duration::from_millis(1);
    let refused = |silent| TakeoverRefusal::Suspect { node: name(), last_heard_age: silent };
    for silent in [Duration::ZERO, FAIL, FAIL * 10] {
        assert_eq!(judge(Standing::Suspect, silent, 6, false), Err(refused(silent)));
    }
    assert_eq!(
        judge(Standing::Suspect, almost, 6, true),
        Err(TakeoverRefusal::TooEarly { node: name(), last_heard_age: almost, fail_timeout: FAIL })
    );
    let takeover = judge(Standing::Suspect, FAIL, 6, true).expect("it was silent for long enough");
    let takeover = takeover.expect("it is recorded");
    // What the audit log has to say.
    assert_eq!(alloc::format!("{takeover}"), "a#5 was taken over: it was suspect, last heard 45s ago");
}

#[test]
fn one_who_failed_or_left_is_followed_by_a_later_life_only() {
    for standing in [Standing::Failed, Standing::Leaving] {
        for force in [false, true] {
            assert_eq!(judge(standing, Duration::ZERO, 6, force), Ok(None));
            for old in [4, 5] {
                let refused = TakeoverRefusal::OldLife { node: name(), old_incarnation: life(5) };
                assert_eq!(judge(standing, FAIL * 10, old, force), Err(refused));
            }
        }
    }
}
