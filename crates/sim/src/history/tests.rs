//! Histories that are possible, and the smallest ones that are not.

use std::time::Duration;

use synod_core::slots::{SlotEpoch, Tag};

use super::*;

fn tag(epoch: u64, sequence: u64) -> Tag {
    Tag { epoch: SlotEpoch::new(epoch), sequence }
}

fn request(ask: Ask, said: Said, began: u64, ended: Option<u64>) -> Request {
    let given = None;
    Request { ask, said, began: Duration::from_secs(began), ended: ended.map(Duration::from_secs), given }
}

fn write(value: u64, said: Said, began: u64, ended: Option<u64>) -> Request {
    request(Ask::Write { value, expected: None }, said, began, ended)
}

fn swap(value: u64, expected: Option<Tag>, said: Said, began: u64, ended: Option<u64>) -> Request {
    request(Ask::Write { value, expected: Some(expected) }, said, began, ended)
}

fn read(found: Option<(Tag, u64)>, began: u64, ended: u64) -> Request {
    request(Ask::Read, Said::Found(found), began, Some(ended))
}

#[test]
fn what_overlaps_may_be_seen_or_not() {
    let possible = [
        write(1, Said::Written(tag(1, 1)), 0, Some(10)),
        read(None, 1, 5),
        read(Some((tag(1, 1), 1)), 2, 6),
        // Its answer is lost, and it happens long after.
        write(2, Said::Unknown, 3, None),
        read(Some((tag(1, 1), 1)), 20, 21),
        read(Some((tag(1, 2), 2)), 30, 31),
        swap(3, Some(tag(1, 1)), Said::Found(Some((tag(1, 2), 2))), 32, Some(33)),
        swap(4, Some(tag(1, 2)), Said::Written(tag(2, 1)), 34, Some(35)),
        write(5, Said::Refused, 36, Some(37)),
    ];
    assert_eq!(check(&possible), Ok(()));
}

#[test]
fn a_stale_read_is_found() {
    let history = [write(1, Said::Written(tag(1, 1)), 0, Some(1)), read(None, 2, 3)];
    assert!(check(&history).expect_err("stale").contains("saw nothing, when 1.1 had been answered"));
    let back = [
        write(1, Said::Unknown, 0, None),
        read(Some((tag(1, 1), 1)), 2, 3),
        // Seen, and gone again.
        read(None, 4, 5),
    ];
    assert!(check(&back).is_err());
}

#[test]
fn a_write_that_is_older_than_what_was_there_is_found() {
    let history =
        [write(1, Said::Written(tag(2, 1)), 0, Some(1)), write(2, Said::Written(tag(1, 9)), 2, Some(3))];
    assert!(check(&history).expect_err("it was lost").contains("wrote 1.9, when 2.1 had been answered"));
}

#[test]
fn a_conditional_write_over_something_else_is_found() {
    let history = [
        write(1, Said::Written(tag(1, 1)), 0, Some(9)),
        write(2, Said::Written(tag(1, 2)), 0, Some(9)),
        swap(3, Some(tag(1, 1)), Said::Written(tag(1, 3)), 0, Some(9)),
    ];
    assert_eq!(check(&history), Err("the write 1.3 was to replace 1.1 and replaced 1.2".to_owned()));
    let groundless = [swap(1, None, Said::Found(None), 0, Some(1))];
    assert!(check(&groundless).is_err());
}

#[test]
fn what_was_refused_or_never_written_is_not_seen() {
    let refused = [write(1, Said::Refused, 0, Some(1)), read(Some((tag(1, 1), 1)), 2, 3)];
    assert!(check(&refused).expect_err("refused").contains("was told that it was not written"));
    assert!(check(&[read(Some((tag(1, 1), 1)), 2, 3)]).expect_err("invented").contains("never written"));
    let early = [write(1, Said::Unknown, 5, None), read(Some((tag(1, 1), 1)), 2, 3)];
    assert!(check(&early).expect_err("early").contains("before it was written"));
    let twice =
        [write(1, Said::Written(tag(1, 1)), 0, Some(1)), write(2, Said::Written(tag(1, 1)), 2, Some(3))];
    assert!(check(&twice).is_err());
}

fn deleted(said: Said, tag: Option<Tag>, began: u64, ended: Option<u64>) -> Request {
    let given = tag.map(|tag| (tag, Duration::from_secs(began)));
    Request { given, ..request(Ask::Delete { expected: None }, said, began, ended) }
}

#[test]
fn what_was_deleted_is_gone_until_it_is_written_again() {
    let possible = [
        write(1, Said::Written(tag(1, 1)), 0, Some(1)),
        deleted(Said::Written(tag(1, 2)), None, 2, Some(3)),
        read(None, 4, 5),
        swap(2, None, Said::Written(tag(1, 3)), 6, Some(7)),
        // Its answer is lost. Somebody finds nothing, so it has happened.
        deleted(Said::Unknown, Some(tag(1, 4)), 8, None),
        read(Some((tag(1, 3), 2)), 9, 10),
        read(None, 11, 12),
        // And so has this one, or there would be something.
        write(3, Said::Written(tag(1, 5)), 13, Some(14)),
        deleted(Said::Unknown, Some(tag(1, 6)), 15, None),
        swap(4, None, Said::Written(tag(2, 1)), 20, Some(21)),
    ];
    assert_eq!(check(&possible), Ok(()));
    for end in [3, 7, 10] {
        let mut back = possible[..end].to_vec();
        // Deleted, or never there, and seen; or there, and not seen.
        back.push(if end == 3 { read(Some((tag(1, 1), 1)), 30, 31) } else { read(None, 30, 31) });
        back.retain(|one| one.said != Said::Unknown);
        assert!(check(&back).is_err(), "{end}");
    }
}

#[test]
fn a_lost_deletion_does_not_excuse_everything() {
    let history = |began| {
        vec![
            write(1, Said::Written(tag(1, 2)), 2, Some(3)),
            deleted(Said::Unknown, Some(tag(1, 3)), began, None),
            read(None, 4, 5),
        ]
    };
    assert_eq!(check(&history(4)), Ok(()));
    assert!(check(&history(6)).is_err(), "it began later");
    let mut kept = history(4);
    kept.push(swap(3, Some(tag(1, 2)), Said::Written(tag(1, 4)), 6, Some(7)));
    assert!(check(&kept).is_err(), "what it would have deleted was there afterwards");
}
