use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::ToString;

use super::*;

/// Picks one duration of the settings.
type Field = fn(&mut PhiConfig) -> &mut Duration;

const NO_EXTRA: Duration = Duration::ZERO;
const NANOSECOND: Duration = Duration::from_nanos(1);
const MICROSECOND: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node name")
}

fn detector(config: PhiConfig) -> PhiFailureDetector {
    PhiFailureDetector::new(config).expect("a valid configuration")
}

/// Lets `node` beat `beats` times at a steady `interval`, beginning at `start`. Returns the time of the last beat.
fn beat(
    detector: &mut PhiFailureDetector,
    node: &NodeId,
    start: TimerInstant,
    interval: Duration,
    beats: u32,
) -> TimerInstant {
    let mut now = start;
    for count in 0..beats {
        now = start + interval * count;
        assert_eq!(detector.heartbeat(node, now), None);
    }
    now
}

/// How long after `last` the detector will suspect the only peer it watches.
fn patience(detector: &PhiFailureDetector, last: TimerInstant) -> f64 {
    detector.next_check().expect("a watched peer").saturating_since(last).as_secs_f64()
}

fn assert_close(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} is not within {tolerance} of {expected}");
}

#[test]
fn phi_is_the_logarithm_of_the_normal_tail() {
    // A fresh peer has a mean of 1 s + 3 s of pause and a deviation of 250 ms, so every y can be chosen by the clock.
    let mut detector = detector(PhiConfig::default());
    let peer = node("a");
    detector.heartbeat(&peer, TimerInstant::ZERO);
    for step in -300..=300 {
        let y = f64::from(step) / 100.0;
        let elapsed = Duration::from_secs_f64(4.0 + y * 0.25);
        let phi = detector.phi(&peer, TimerInstant::ZERO + elapsed);

        let tail = libm::erfc(y / core::f64::consts::SQRT_2) / 2.0;
        // The logistic curve is an approximation: its tail is off by at most 1.5e-4, which is 0.05 of a phi of 3.
        assert_close(libm::pow(10.0, -phi), tail, 1.5e-4);
        assert_close(phi, -libm::log10(tail), 0.05);
    }
}

#[test]
fn phi_never_falls_while_the_silence_lasts() {
    let mut detector = detector(PhiConfig::default());
    let peer = node("a");
    detector.heartbeat(&peer, TimerInstant::ZERO);
    let mut before = 0.0;
    for millis in 0..20_000 {
        let phi = detector.phi(&peer, TimerInstant::from_millis(millis));
        assert!(phi >= before, "phi fell from {before} to {phi} after {millis} ms");
        before = phi;
    }
    // Far out the tail underflows; what is shown stays a number.
    assert_eq!(before, PHI_MAX);
}

#[test]
fn the_alarm_is_set_to_the_very_moment_at_which_phi_reaches_the_threshold() {
    let peer = node("a");
    for threshold in [0.5, 1.0, 3.0, 8.0, 12.0, 16.0] {
        for interval_millis in [5, 37, 250, 1_000, 7_777] {
            let mut detector = detector(PhiConfig { threshold, ..PhiConfig::default() });
            let interval = Duration::from_millis(interval_millis);
            // Few enough beats that the made-up first samples still count: mean and deviation are crooked numbers.
            let last = beat(&mut detector, &peer, TimerInstant::ZERO, interval, 10);
            let at = detector.next_check().expect("a watched peer");

            let before = detector.phi(&peer, at.saturating_sub(MICROSECOND));
            assert!(before < threshold, "{before} reaches {threshold} before its time, after {interval:?}");
            let there = detector.phi(&peer, at);
            assert!(there >= threshold, "{there} misses {threshold} at its time, after {interval:?}");
            // The poll agrees with the curve to the nanosecond.
            assert_eq!(detector.poll(at.saturating_sub(NANOSECOND), NO_EXTRA), None);
            assert_eq!(detector.poll(at, NO_EXTRA), Some(PhiEffect::Suspect(peer.clone())));
            assert!(at > last);
        }
    }
}

#[test]
fn a_threshold_is_worth_the_known_number_of_deviations() {
    let table =
        [(1.0, 1.28), (3.0, 3.06), (5.0, 4.12), (8.0, 5.23), (10.0, 5.80), (12.0, 6.29), (16.0, 7.12)];
    for (threshold, deviations) in table {
        let config = PhiConfig { threshold, acceptable_pause: Duration::ZERO, ..PhiConfig::default() };
        let mut detector = detector(config);
        detector.heartbeat(&node("a"), TimerInstant::ZERO);
        let y = (patience(&detector, TimerInstant::ZERO) - 1.0) / 0.25;
        assert_close(y, deviations, 0.005);
    }
}

#[test]
fn detection_takes_as_long_as_the_settings_promise() {
    let peer = node("a");
    // A fresh peer gets the benefit of the doubt: its deviation is taken to be a quarter of its interval.
    let mut fresh = detector(PhiConfig::default());
    fresh.heartbeat(&peer, TimerInstant::ZERO);
    assert_close(patience(&fresh, TimerInstant::ZERO), 5.31, 0.005);

    // Once its rhythm is known to be regular only the least deviation is left.
    let settled = |config| {
        let mut detector = detector(config);
        let last = beat(&mut detector, &peer, TimerInstant::ZERO, SECOND, 300);
        patience(&detector, last)
    };
    assert_close(settled(PhiConfig::default()), 4.52, 0.005);
    // The threshold hardly matters; the pause does.
    assert_close(settled(PhiConfig { threshold: 12.0, ..PhiConfig::default() }), 4.63, 0.005);
    let hasty = PhiConfig { acceptable_pause: Duration::ZERO, ..PhiConfig::default() };
    assert_close(settled(hasty), 1.52, 0.005);
}

#[test]
fn a_peer_that_beats_once_or_never_is_suspected_all_the_same() {
    let mut detector = detector(PhiConfig::default());
    detector.watch(&node("never"), TimerInstant::ZERO);
    detector.heartbeat(&node("once"), TimerInstant::ZERO);
    // Watching again must not push the alarm away, or a peer could hide behind a restless caller.
    detector.watch(&node("never"), TimerInstant::from_millis(1_500));
    assert_eq!(detector.phi(&node("never"), TimerInstant::from_millis(1_000)), 0.0);
    assert_eq!(detector.watched(), 2);

    // Silence is 5.31 s for both, but the one never heard is given a second to answer first.
    assert_eq!(detector.poll(TimerInstant::from_millis(5_300), NO_EXTRA), None);
    let effect = detector.poll(TimerInstant::from_millis(5_310), NO_EXTRA);
    assert_eq!(effect, Some(PhiEffect::Suspect(node("once"))));
    assert_eq!(detector.poll(TimerInstant::from_millis(6_300), NO_EXTRA), None);
    let effect = detector.poll(TimerInstant::from_millis(6_310), NO_EXTRA);
    assert_eq!(effect, Some(PhiEffect::Suspect(node("never"))));
}

#[test]
fn the_wait_for_the_first_beat_says_nothing_about_the_rhythm() {
    let mut detector = detector(PhiConfig::default());
    detector.watch(&node("a"), TimerInstant::ZERO);
    // The first beat comes after four seconds; taken as an interval it would stretch the patience.
    let now = TimerInstant::from_millis(4_000);
    detector.heartbeat(&node("a"), now);
    assert_close(patience(&detector, now), 5.31, 0.005);
}

#[test]
fn the_silence_of_an_outage_is_not_taken_for_a_rhythm() {
    let mut detector = detector(PhiConfig::default());
    let peer = node("a");
    let last = beat(&mut detector, &peer, TimerInstant::ZERO, SECOND, 300);
    let before = patience(&detector, last);

    // An hour of silence. Had it entered the history, the next failure would go unnoticed for minutes.
    let back = last + SECOND * 3_600;
    assert_eq!(detector.poll(back, NO_EXTRA), Some(PhiEffect::Suspect(peer.clone())));
    assert_eq!(detector.heartbeat(&peer, back), Some(PhiEffect::Reachable(peer.clone())));
    assert_eq!(patience(&detector, back), before);
    // And the rhythm goes on as if nothing had been.
    let last = beat(&mut detector, &peer, back + SECOND, SECOND, 3);
    assert_eq!(patience(&detector, last), before);
}

#[test]
fn each_change_of_mind_is_told_once() {
    let mut detector = detector(PhiConfig::default());
    let peer = node("a");
    let minute = |count: u64| TimerInstant::from_millis(count * 60_000);
    assert_eq!(detector.heartbeat(&peer, TimerInstant::ZERO), None);
    for round in 1..=3 {
        // Silence: one suspicion, however often one asks, and no alarm that would keep the driver awake.
        assert_eq!(detector.poll(minute(2 * round), NO_EXTRA), Some(PhiEffect::Suspect(peer.clone())));
        assert_eq!(detector.poll(minute(2 * round), NO_EXTRA), None);
        assert_eq!(detector.poll(minute(2 * round) + SECOND, NO_EXTRA), None);
        assert_eq!(detector.next_check(), None);
        assert!(detector.is_suspect(&peer));
        // A sign of life: one relief.
        let back = minute(2 * round + 1);
        assert_eq!(detector.heartbeat(&peer, back), Some(PhiEffect::Reachable(peer.clone())));
        assert_eq!(detector.heartbeat(&peer, back + SECOND), None);
        assert!(!detector.is_suspect(&peer));
    }
}

#[test]
fn a_removed_peer_causes_nothing_and_returns_as_a_stranger() {
    let mut detector = detector(PhiConfig::default());
    let (peer, late) = (node("a"), TimerInstant::from_millis(60_000));
    // Removed while it is waited for.
    detector.heartbeat(&peer, TimerInstant::ZERO);
    detector.remove(&peer);
    assert_eq!(detector.next_check(), None);
    assert_eq!(detector.poll(late, NO_EXTRA), None);
    assert_eq!((detector.phi(&peer, late), detector.watched()), (0.0, 0));

    // Removed while it is suspect: the suspicion does not survive it, nor does its history.
    beat(&mut detector, &peer, late, SECOND * 2, 50);
    assert_eq!(detector.poll(late + SECOND * 600, NO_EXTRA), Some(PhiEffect::Suspect(peer.clone())));
    detector.remove(&peer);
    let back = late + SECOND * 601;
    assert_eq!(detector.heartbeat(&peer, back), None);
    assert_close(patience(&detector, back), 5.31, 0.005);
}

#[test]
fn the_window_forgets_the_oldest_interval_and_never_drifts() {
    let config = || PhiConfig { max_samples: 10, ..PhiConfig::default() };
    let peer = node("a");
    let mut regular = detector(config());
    let last = beat(&mut regular, &peer, TimerInstant::ZERO, SECOND, 13);
    let expected = patience(&regular, last);

    // A long and wild past: microseconds beside minutes are what makes running sums of floats drift.
    let mut seasoned = detector(config());
    let mut rng = fastrand::Rng::with_seed(1);
    let mut now = TimerInstant::ZERO;
    for _ in 0..100_000 {
        let magnitude = rng.u32(0..=28);
        now = now + Duration::from_micros(rng.u64(1..=1 << magnitude));
        seasoned.heartbeat(&peer, now);
    }
    // Nine regular intervals leave one wild one in the window; the tenth pushes it out, and nothing of it stays.
    let last = beat(&mut seasoned, &peer, now + SECOND, SECOND, 9);
    assert_ne!(patience(&seasoned, last), expected);
    let last = beat(&mut seasoned, &peer, last + SECOND, SECOND, 1);
    assert_eq!(patience(&seasoned, last), expected);
}

#[test]
fn a_beat_out_of_the_past_changes_nothing() {
    let mut detector = detector(PhiConfig::default());
    let peer = node("a");
    let last = beat(&mut detector, &peer, TimerInstant::from_millis(50_000), SECOND, 10);
    let alarm = detector.next_check();

    // Clocks of machines do run backwards at times. Neither the rhythm nor the last sign of life may suffer.
    for earlier in [last.saturating_sub(NANOSECOND), last.saturating_sub(SECOND * 5), TimerInstant::ZERO] {
        assert_eq!(detector.heartbeat(&peer, earlier), None);
        assert_eq!(detector.poll(earlier, NO_EXTRA), None);
        assert_eq!(detector.phi(&peer, earlier), detector.phi(&peer, last));
        assert_eq!(detector.next_check(), alarm);
    }
    detector.heartbeat(&peer, last + SECOND);
    assert_eq!(detector.next_check().map(|at| at.as_nanos() / 1_000_000_000), Some(64));
}

#[test]
fn among_a_thousand_peers_only_the_silent_ones_cost_attention() {
    let mut detector = detector(PhiConfig::default());
    let peers: Vec<_> = (0..1_000).map(|index| node(&format!("n{index:03}"))).collect();
    let silent: BTreeSet<_> = [3, 500, 999].map(|index| peers[index].clone()).into();
    let mut suspects = Vec::new();
    // One beat of somebody per millisecond, so that each peer beats once per second.
    for millis in 0..30_000 {
        let now = TimerInstant::from_millis(millis);
        let peer = &peers[millis as usize % 1_000];
        // Three fall silent after ten seconds.
        if !(millis >= 10_000 && silent.contains(peer)) {
            assert_eq!(detector.heartbeat(peer, now), None);
        }
        let due = detector.next_check().expect("watched peers") <= now;
        let effect = detector.poll(now, NO_EXTRA);
        // A poll has something to say exactly when the alarm rang, so nobody who is well was looked at.
        assert_eq!(effect.is_some(), due, "at {now}");
        if let Some(PhiEffect::Suspect(suspect)) = effect {
            suspects.push((suspect, millis));
        }
        assert!(detector.next_check().expect("watched peers") > now);
    }
    assert_eq!(suspects.iter().map(|(peer, _)| peer.clone()).collect::<BTreeSet<_>>(), silent);
    assert_eq!(suspects.len(), 3);
    // They beat last between 9 s and 10 s, ten times at most, which is too short a history for the least deviation.
    assert!(suspects.iter().all(|(_, millis)| (13_500..15_400).contains(millis)), "{suspects:?}");
}

#[test]
fn extra_patience_delays_the_suspicion_and_a_beat_in_between_prevents_it() {
    let mut detector = detector(PhiConfig::default());
    let peer = node("a");
    let extra = SECOND * 2;
    for beats_in_between in [false, true] {
        let start = TimerInstant::from_millis(if beats_in_between { 100_000 } else { 0 });
        detector.remove(&peer);
        detector.heartbeat(&peer, start);
        let at = detector.next_check().expect("a watched peer");

        // At the usual moment the caller is told to come back later.
        assert_eq!(detector.poll(at, extra), None);
        assert_eq!(detector.next_check(), Some(at + extra));
        if beats_in_between {
            detector.heartbeat(&peer, at + SECOND);
            assert_eq!(detector.poll(at + extra, extra), None);
        } else {
            assert_eq!(detector.poll((at + extra).saturating_sub(NANOSECOND), extra), None);
            assert_eq!(detector.poll(at + extra, extra), Some(PhiEffect::Suspect(peer.clone())));
        }
    }
}

#[test]
fn every_setting_out_of_range_is_refused_by_name() {
    let base = PhiConfig::default;
    for value in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = PhiFailureDetector::new(PhiConfig { threshold: value, ..base() }).expect_err("refused");
        assert!(matches!(error, PhiConfigError::Threshold { .. }), "{error:?}");
        assert!(error.to_string().contains("phi.threshold"), "{error}");
    }
    assert_eq!(PhiConfig { threshold: f64::MIN_POSITIVE, ..base() }.validate(), Ok(()));

    for value in [0, 1, SAMPLES_MAX + 1] {
        let error = PhiConfig { max_samples: value, ..base() }.validate().expect_err("refused");
        assert_eq!(error, PhiConfigError::MaxSamples { value });
        assert!(error.to_string().contains("phi.max_samples"), "{error}");
    }
    for max_samples in [2, SAMPLES_MAX] {
        assert_eq!(PhiConfig { max_samples, ..base() }.validate(), Ok(()));
    }

    let fields: [(&str, Duration, Field); 4] = [
        ("min_std_deviation", MICROSECOND, |config| &mut config.min_std_deviation),
        // Only the pause may be nothing at all; anything else below the resolution would be a silent zero.
        ("acceptable_pause", Duration::ZERO, |config| &mut config.acceptable_pause),
        ("first_heartbeat_estimate", MICROSECOND, |config| &mut config.first_heartbeat_estimate),
        ("expected_response_after", MICROSECOND, |config| &mut config.expected_response_after),
    ];
    for (field, min, field_of) in fields {
        let with = |value| {
            let mut config = base();
            *field_of(&mut config) = value;
            config.validate()
        };
        for value in [min, MICROSECOND, INTERVAL_MAX] {
            assert_eq!(with(value), Ok(()), "{field} {value:?}");
        }
        let below = if min.is_zero() { NANOSECOND } else { Duration::ZERO };
        for value in [below, MICROSECOND - NANOSECOND, INTERVAL_MAX + NANOSECOND] {
            let error = with(value).expect_err(field);
            assert_eq!(error, PhiConfigError::Duration { field, value });
            assert!(error.to_string().contains(&format!("phi.{field}")), "{error}");
        }
    }
}
