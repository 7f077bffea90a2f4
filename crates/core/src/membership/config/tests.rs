use alloc::format;
use alloc::string::ToString;
use alloc::vec;

use super::*;
use crate::membership::phi::{INTERVAL_MAX, SAMPLES_MAX};

type Config = MembershipCoordinatorConfig;
/// Picks one field of the settings.
type Field<T> = fn(&mut Config) -> &mut T;

const NANOSECOND: Duration = Duration::from_nanos(1);
const HOUR: Duration = Duration::from_secs(3_600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

#[test]
fn the_defaults_and_presets_are_valid() {
    assert_eq!(Config::default().validate(), Ok(()));
    assert_eq!(Config { phi: PhiConfig::cloud(), ..Config::default() }.validate(), Ok(()));
}

#[test]
fn every_duration_is_accepted_up_to_its_bounds_and_refused_beyond_by_name() {
    let shortest = Duration::from_millis(10);
    let week = HOUR * 24 * 7;
    let fields: [(&str, Duration, Duration, Field<Duration>); 11] = [
        ("heartbeat_interval", shortest, HOUR, |config| &mut config.heartbeat_interval),
        ("suspect_timeout", shortest, HOUR, |config| &mut config.suspect_timeout),
        ("dead_timeout", shortest, week, |config| &mut config.dead_timeout),
        ("leave_timeout", shortest, HOUR, |config| &mut config.leave_timeout),
        ("tombstone_retention", shortest, YEAR, |config| &mut config.tombstone_retention),
        ("quarantine_ttl", shortest, YEAR, |config| &mut config.quarantine_ttl),
        ("gossip_interval", shortest, HOUR, |config| &mut config.gossip_interval),
        ("convergence_timeout", shortest, HOUR, |config| &mut config.convergence_timeout),
        ("reconnect_interval", shortest, HOUR, |config| &mut config.reconnect_interval),
        ("poll_lateness_max", shortest, HOUR, |config| &mut config.poll_lateness_max),
        // A window of no length is fine: every change is told at once.
        ("topology_emit_interval", Duration::ZERO, HOUR, |config| &mut config.topology_emit_interval),
    ];
    for (field, min, max, field_of) in fields {
        let with = |value| {
            let mut config = Config::default();
            *field_of(&mut config) = value;
            config.validate()
        };
        assert_eq!(with(min), Ok(()), "{field}");
        assert_eq!(with(max), Ok(()), "{field}");
        for value in [min.checked_sub(NANOSECOND), Some(max + NANOSECOND)].into_iter().flatten() {
            let error = with(value).expect_err(field);
            assert_eq!(error, ConfigError::Duration { field, value, min, max });
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}

#[test]
fn an_eager_delay_is_accepted_within_its_bounds_or_absent_and_refused_beyond_by_name() {
    let with = |value| Config { eager_delay: value, ..Config::default() }.validate();
    let (min, max) = (Duration::from_millis(1), Duration::from_secs(1));
    for value in [None, Some(min), Some(max)] {
        assert_eq!(with(value), Ok(()), "{value:?}");
    }
    for value in [Duration::ZERO, min - NANOSECOND, max + NANOSECOND] {
        let error = ConfigError::Duration { field: "eager_delay", value, min, max };
        assert_eq!(with(Some(value)), Err(error));
    }
}

#[test]
fn every_count_is_accepted_up_to_its_bounds_and_refused_beyond_by_name() {
    let fields: [(&str, usize, Field<usize>); 3] = [
        ("heartbeat_monitors", 100, |config| &mut config.heartbeat_monitors),
        ("gossip_fanout", 100, |config| &mut config.gossip_fanout),
        ("members_max", 100_000, |config| &mut config.members_max),
    ];
    for (field, max, field_of) in fields {
        let with = |value| {
            let mut config = Config::default();
            *field_of(&mut config) = value;
            config.validate()
        };
        assert_eq!(with(1), Ok(()), "{field}");
        assert_eq!(with(max), Ok(()), "{field}");
        for value in [0, max + 1] {
            let error = with(value).expect_err(field);
            assert_eq!(error, ConfigError::Count { field, value, max });
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}

#[test]
fn a_quorum_needs_somebody_to_form_it() {
    let quorum = |seeds| Config { confirmation: Confirmation::SeedQuorum(seeds), ..Config::default() };
    assert_eq!(quorum(vec![]).validate(), Err(ConfigError::NoSeeds));
    let seed = Authority::new("seed:1").expect("an authority");
    assert_eq!(quorum(vec![seed]).validate(), Ok(()));
}

#[test]
fn the_detector_s_settings_are_checked_too_and_named_with_their_place() {
    let with = |phi| Config { phi, ..Config::default() }.validate();
    let phi = PhiConfig::default;
    let refused = [
        ("threshold", with(PhiConfig { threshold: 0.0, ..phi() })),
        ("max_samples", with(PhiConfig { max_samples: SAMPLES_MAX + 1, ..phi() })),
        ("acceptable_pause", with(PhiConfig { acceptable_pause: INTERVAL_MAX + NANOSECOND, ..phi() })),
    ];
    for (field, result) in refused {
        let error = result.expect_err(field);
        assert!(matches!(error, ConfigError::Phi(_)), "{error:?}");
        assert!(error.to_string().contains(&format!("phi.{field}")), "{error}");
    }
}
