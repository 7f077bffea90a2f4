use alloc::format;

use super::*;
use crate::id::{Incarnation, NodeId};

fn at(port: u16) -> Authority {
    Authority::new(&format!("host:{port}")).expect("an authority")
}

fn member(name: &str, incarnation: u64) -> MemberId {
    MemberId::new(
        NodeId::new(name).expect("a node name"),
        Incarnation::new(incarnation).expect("an incarnation"),
    )
}

fn dead(name: &str, incarnation: u64) -> QuarantineReason {
    QuarantineReason::Dead(member(name, incarnation))
}

fn requested(why: &str) -> QuarantineReason {
    QuarantineReason::Requested(why.into())
}

fn invalid(why: &str) -> QuarantineReason {
    QuarantineReason::InvalidAssociation(why.into())
}

fn second(seconds: u64) -> TimerInstant {
    TimerInstant::from_millis(seconds * 1_000)
}

fn for_seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

const NOW: TimerInstant = TimerInstant::ZERO;

#[test]
fn a_verdict_covers_the_life_it_judged_and_a_request_covers_the_address() {
    let mut table = QuarantineTable::new(10);
    table.quarantine(&at(1), dead("a", 2), for_seconds(30), NOW);
    let kept_out =
        |table: &QuarantineTable, port, member: &MemberId| table.covering(&at(port), member).is_some();

    // That life and those before it; whoever returns in a later one, or under another name, is someone new.
    assert!(kept_out(&table, 1, &member("a", 1)));
    assert!(kept_out(&table, 1, &member("a", 2)));
    assert!(!kept_out(&table, 1, &member("a", 3)));
    assert!(!kept_out(&table, 1, &member("b", 1)));
    // Another address is another matter.
    assert!(!kept_out(&table, 2, &member("a", 2)));

    // The transport and the operator judge the address, whoever answers there.
    table.quarantine(&at(2), invalid("handshake"), for_seconds(30), NOW);
    table.quarantine(&at(3), requested("maintenance"), for_seconds(30), NOW);
    for port in [2, 3] {
        assert!(kept_out(&table, port, &member("a", 1)));
        assert!(kept_out(&table, port, &member("b", 99)));
    }
    assert_eq!(table.authorities().cloned().collect::<Vec<_>>(), [at(1), at(2), at(3)]);
}

#[test]
fn a_second_quarantine_extends_the_first_and_never_shortens_it() {
    let mut table = QuarantineTable::new(10);
    let until = |table: &QuarantineTable| table.entry(&at(1)).expect("quarantined").expires_at;

    assert!(table.quarantine(&at(1), requested("x"), for_seconds(30), NOW));
    // Shorter, or the same again: nothing changes and nobody needs to be told.
    assert!(!table.quarantine(&at(1), requested("x"), for_seconds(10), second(10)));
    assert!(!table.quarantine(&at(1), requested("x"), for_seconds(30), NOW));
    assert_eq!(until(&table), Some(second(30)));
    // Longer.
    assert!(table.quarantine(&at(1), requested("x"), for_seconds(30), second(10)));
    assert_eq!(until(&table), Some(second(40)));
    assert_eq!(table.next_expiry(), Some(second(40)));
    assert_eq!(table.pop_expired(second(39)), None);

    // Until released is longer than anything, and stays.
    assert!(table.quarantine(&at(1), requested("x"), None, second(11)));
    assert!(!table.quarantine(&at(1), requested("x"), for_seconds(1_000), second(12)));
    assert_eq!((until(&table), table.next_expiry()), (None, None));
}

#[test]
fn a_second_quarantine_widens_the_first_and_never_narrows_it() {
    let mut table = QuarantineTable::new(10);
    let reason = |table: &QuarantineTable| table.entry(&at(1)).expect("quarantined").reason.clone();

    // A verdict on a later life covers the earlier ones as well; one on an earlier life adds nothing.
    assert!(table.quarantine(&at(1), dead("a", 2), for_seconds(30), NOW));
    assert!(!table.quarantine(&at(1), dead("a", 1), for_seconds(30), NOW));
    assert_eq!(reason(&table), dead("a", 2));
    assert!(table.quarantine(&at(1), dead("a", 3), for_seconds(30), NOW));
    assert_eq!(reason(&table), dead("a", 3));

    // The whole address is wider than any life.
    assert!(table.quarantine(&at(1), requested("x"), for_seconds(30), NOW));
    assert!(!table.quarantine(&at(1), dead("a", 4), for_seconds(30), NOW));
    assert_eq!(reason(&table), requested("x"));

    // A verdict may still extend it, and the scope stays wide.
    assert!(table.quarantine(&at(1), dead("a", 4), for_seconds(60), NOW));
    let entry = table.entry(&at(1)).expect("quarantined");
    assert_eq!((&entry.reason, entry.expires_at), (&requested("x"), Some(second(60))));
    assert!(entry.covers(&member("b", 1)));
}

#[test]
fn quarantines_end_in_order_of_time_at_their_very_moment() {
    let mut table = QuarantineTable::new(10);
    table.quarantine(&at(1), requested("late"), for_seconds(30), NOW);
    table.quarantine(&at(2), requested("early"), for_seconds(10), NOW);
    table.quarantine(&at(3), requested("late, too"), for_seconds(30), NOW);
    table.quarantine(&at(4), requested("for good"), None, NOW);
    assert_eq!(table.next_expiry(), Some(second(10)));

    // A nanosecond before the time nothing ends; at the time it does.
    assert_eq!(table.pop_expired(TimerInstant::from_nanos(second(10).as_nanos() - 1)), None);
    assert_eq!(table.pop_expired(second(10)).map(|entry| entry.authority), Some(at(2)));
    assert_eq!(table.pop_expired(second(10)), None);

    // A late poll lifts all that ended meanwhile, the earliest first, and leaves those that wait for a release.
    table.quarantine(&at(2), requested("again"), for_seconds(5), second(10));
    let mut lifted = Vec::new();
    while let Some(entry) = table.pop_expired(second(100_000)) {
        lifted.push(entry.authority);
    }
    assert_eq!(lifted, [at(2), at(1), at(3)]);
    assert_eq!(table.next_expiry(), None);
    assert_eq!(table.snapshot().len(), 1);

    // Only a release ends that one.
    assert_eq!(table.release(&at(4)).map(|entry| entry.reason), Some(requested("for good")));
    assert!(table.is_empty());
}

#[test]
fn a_release_ends_a_quarantine_and_its_alarm() {
    let mut table = QuarantineTable::new(10);
    table.quarantine(&at(1), requested("x"), for_seconds(30), NOW);
    assert!(table.release(&at(1)).is_some());
    assert_eq!(table.release(&at(1)), None);
    assert_eq!((table.next_expiry(), table.pop_expired(second(30))), (None, None));

    // The address may be quarantined anew, and the old alarm does not cut that short.
    table.quarantine(&at(1), requested("y"), for_seconds(30), second(20));
    assert_eq!(table.pop_expired(second(30)), None);
    assert!(table.pop_expired(second(50)).is_some());
}

#[test]
fn a_full_table_evicts_what_would_end_first() {
    let mut table = QuarantineTable::new(3);
    table.quarantine(&at(1), requested("for good"), None, NOW);
    table.quarantine(&at(2), requested("long"), for_seconds(60), NOW);
    table.quarantine(&at(3), requested("short"), for_seconds(10), NOW);
    let kept = |table: &QuarantineTable| table.authorities().cloned().collect::<Vec<_>>();

    // A known address takes no room.
    assert_eq!(table.make_room(&at(2)), None);
    table.quarantine(&at(2), requested("longer"), for_seconds(70), NOW);
    assert_eq!(kept(&table), [at(1), at(2), at(3)]);

    // The newest judgement is kept, even if it is shorter than all others.
    assert_eq!(table.make_room(&at(4)).map(|entry| entry.authority), Some(at(3)));
    table.quarantine(&at(4), requested("new"), for_seconds(1), NOW);
    assert_eq!(kept(&table), [at(1), at(2), at(4)]);
    // The evicted one left no alarm behind.
    assert_eq!(table.next_expiry(), Some(second(1)));

    // Those without an end go last.
    assert!(table.make_room(&at(5)).is_some());
    table.quarantine(&at(5), requested("new"), None, NOW);
    assert!(table.make_room(&at(6)).is_some());
    table.quarantine(&at(6), requested("new"), None, NOW);
    assert_eq!(kept(&table), [at(1), at(5), at(6)]);
    assert!(table.make_room(&at(7)).is_some());
    table.quarantine(&at(7), requested("new"), for_seconds(1), NOW);
    assert_eq!(table.snapshot().len(), 3);
    assert!(table.entry(&at(7)).is_some());
}
