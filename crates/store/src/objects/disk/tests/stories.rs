//! Messages to a disk: what is acknowledged is durable, and what is durable is remembered.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use synod_core::objects::{EntryName, ObjectMessage, SlotFence};
use synod_core::slots::{SlotEpoch, SlotId};

use super::samples::{
    Bench, SLOTS, all_slots, inline, object, slot, store, store_message, tag, tell, tombstone,
};
use crate::objects::disk::{Disk, DiskError, DiskOptions};

#[test]
fn what_is_acknowledged_is_there_after_the_disk_is_opened_again() {
    let bench = Bench::new();
    let disk = bench.learned();
    let (name, head) = (object("a/b.jpg"), inline(1, b"hello"));
    assert!(store(&disk, &name, &head));
    let fence = ObjectMessage::Fence { slots: vec![(slot(&name), SlotEpoch::new(7))] };
    let Some(ObjectMessage::Fenced { fenced, refused }) = tell(&disk, fence).unwrap() else { panic!() };
    assert_eq!((fenced.len(), refused.len()), (1, 0));
    let (summary, ranks) = (disk.summary(slot(&name)), disk.ranks(slot(&name), None, None, 10).unwrap());
    assert_eq!((fenced[0].summary, summary.count), (summary, 1));
    drop(disk);

    let disk = bench.open();
    assert_eq!(disk.head(slot(&name), &name).unwrap(), Some(head.clone()));
    assert_eq!(disk.fence(slot(&name)), SlotFence { fence: SlotEpoch::new(7), is_learned: true });
    assert_eq!(disk.summary(slot(&name)), summary);
    assert_eq!(disk.ranks(slot(&name), None, None, 10).unwrap(), ranks);
    // A primary of an earlier epoch is refused by what was remembered.
    let stale = tell(&disk, store_message(&name, &inline(2, b"late"))).unwrap();
    let stale_as_expected =
        ObjectMessage::Stale { slot: slot(&name), epoch: SlotEpoch::new(1), fence: SlotEpoch::new(7) };
    assert_eq!(stale, Some(stale_as_expected));
    assert_eq!(disk.head(slot(&name), &name).unwrap(), Some(head));
}

#[test]
fn a_new_disk_takes_part_in_nothing_until_it_has_learned() {
    let bench = Bench::new();
    let disk = bench.open();
    let name = object("a");
    let answer = tell(&disk, store_message(&name, &inline(1, b"x"))).unwrap();
    assert!(matches!(answer, Some(ObjectMessage::Stale { fence: SlotEpoch::ZERO, .. })), "{answer:?}");
    assert_eq!(disk.fence(slot(&name)), SlotFence::default());

    let adopt = ObjectMessage::Adopt {
        slot: slot(&name),
        round: 1,
        heads: vec![(name.clone(), inline(1, b"x"))],
        learned: Some(SlotEpoch::new(4)),
    };
    let adopted = ObjectMessage::Adopted { slot: slot(&name), round: 1 };
    assert_eq!(tell(&disk, adopt).unwrap(), Some(adopted));
    assert_eq!(disk.fence(slot(&name)), SlotFence { fence: SlotEpoch::new(4), is_learned: true });
    assert_eq!(disk.summary(slot(&name)).count, 1);
}

#[test]
fn memory_is_up_to_date_when_an_answer_is_told() {
    let bench = Bench::new();
    let disk = bench.learned();
    let (told, seen) = mpsc::channel();
    let slots = all_slots();
    for (epoch, slot) in (1..=50).flat_map(|epoch| slots.iter().map(move |slot| (epoch, *slot))) {
        let (its, told) = (disk.clone(), told.clone());
        let done = Box::new(move |outcome: Result<_, DiskError>| {
            outcome.unwrap();
            told.send((epoch, its.fence(slot).fence)).unwrap();
        });
        disk.submit(ObjectMessage::Fence { slots: vec![(slot, SlotEpoch::new(epoch))] }, done);
    }
    drop(told);
    let seen: Vec<_> = seen.iter().collect();
    assert_eq!(seen.len(), 400);
    assert!(seen.iter().all(|(epoch, fence)| fence.get() >= *epoch));
}

#[test]
fn a_copy_of_the_files_taken_at_any_moment_has_what_was_acknowledged_before() {
    let bench = Bench::new();
    let disk = bench.learned();
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let names: Vec<EntryName> = (0..400).map(|number| object(&format!("key-{number:04}"))).collect();
    let mut copies = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let count = Arc::clone(&acknowledged);
        let done = Box::new(move |outcome: Result<_, DiskError>| {
            outcome.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        });
        disk.submit(store_message(name, &inline(number as u64 + 1, b"body")), done);
        if number % 80 == 79 {
            let before = acknowledged.load(Ordering::SeqCst);
            let copy = tempfile::TempDir::new().unwrap();
            for file in ["meta.redb", "format"] {
                fs::copy(bench.dir.path().join(file), copy.path().join(file)).unwrap();
            }
            copies.push((before, copy));
        }
    }
    drop(disk);
    assert_eq!(acknowledged.load(Ordering::SeqCst), 400);
    for (before, copy) in copies {
        // A copy that was torn while a commit wrote its root may be refused, never misread; jobs run in order.
        let Ok(disk) = Disk::open(copy.path(), &bench.options) else { continue };
        for name in &names[..before] {
            assert!(disk.head(slot(name), name).unwrap().is_some(), "{name}");
        }
    }
}

#[test]
fn old_tombstones_are_told_by_age_and_forgotten() {
    let bench = Bench::new();
    let disk = bench.learned();
    let names: Vec<EntryName> = (0..40).map(|number| object(&format!("{number}"))).collect();
    let here = slot(&names[0]);
    let names: Vec<&EntryName> = names.iter().filter(|name| slot(name) == here).collect();
    assert!(names.len() >= 3);
    for (age, name) in (0..).zip(&names) {
        store(&disk, name, &tombstone(1 + age, 1000 - age));
    }
    // One came to life again: it is no tombstone any more.
    store(&disk, names[0], &inline(100, b"again"));
    assert_eq!(disk.usage().unwrap().tombstones, names.len() as u64 - 1);
    let found = disk.old_tombstones(here, 1000, 2).unwrap();
    let newest = names.len() as u64 - 1;
    let expected = vec![
        (names[newest as usize].clone(), tag(1, newest + 1)),
        (names[newest as usize - 1].clone(), tag(1, newest)),
    ];
    assert_eq!(found, expected);
    assert_eq!(disk.old_tombstones(SlotId::new((here.get() + 1) % SLOTS), 1000, 2).unwrap(), []);

    let before = disk.summary(here);
    let forget = ObjectMessage::Forget { slot: here, epoch: SlotEpoch::new(1), entries: expected };
    assert_eq!(tell(&disk, forget).unwrap(), None);
    assert_eq!(disk.summary(here).count, before.count - 2);
    assert!(!disk.old_tombstones(here, u64::MAX, 100).unwrap().contains(&found[0]));
    let summary = disk.summary(here);
    drop(disk);
    assert_eq!(bench.open().summary(here), summary);
}

#[test]
fn what_no_disk_of_this_cluster_keeps_is_refused_alone() {
    let bench = Bench::new();
    let disk = bench.learned();
    let name = object("a");
    let elsewhere = SlotId::new((slot(&name).get() + 1) % SLOTS);
    let good = inline(1, b"x");
    let mut messages = vec![
        ObjectMessage::Store {
            slot: elsewhere,
            epoch: SlotEpoch::new(1),
            name: name.clone(),
            head: good.clone(),
        },
        ObjectMessage::Fence { slots: vec![(SlotId::new(SLOTS), SlotEpoch::new(1))] },
    ];
    for bad in [
        synod_core::objects::EntryHead { content: bytes::Bytes::from_static(b"\xff\xff"), ..good.clone() },
        synod_core::objects::EntryHead { etag: "x".repeat(2000).into(), ..good },
    ] {
        messages.push(store_message(&name, &bad));
    }
    for message in messages {
        let refused = tell(&disk, message.clone());
        assert!(matches!(refused, Err(DiskError::Refused { .. })), "{message:?}: {refused:?}");
    }
    assert!(disk.failed().is_none());
    assert_eq!(disk.usage().unwrap().entries, 0);
}

#[test]
fn a_directory_is_used_once_and_only_as_what_it_is() {
    let bench = Bench::new();
    let disk = bench.open();
    let again = Disk::open(bench.dir.path(), &bench.options);
    assert!(matches!(again, Err(DiskError::InUse { .. })), "{again:?}");
    drop(disk);

    let other = DiskOptions { total_slots: SLOTS + 1, ..bench.options.clone() };
    let refused = Disk::open(bench.dir.path(), &other).unwrap_err();
    assert!(refused.to_string().contains("9 slots"), "{refused}");

    let format = bench.dir.path().join("format");
    fs::write(&format, "synod object disk, version 2, 8 slots\n").unwrap();
    let refused = Disk::open(bench.dir.path(), &bench.options).unwrap_err();
    assert!(matches!(refused, DiskError::UnknownFormat { .. }), "{refused}");
    assert!(refused.to_string().contains("version 2"), "{refused}");
    assert!(refused.to_string().contains("format"), "{refused}");
}

#[test]
fn the_last_clone_may_go_with_an_answer() {
    let bench = Bench::new();
    let disk = bench.learned();
    let name = object("a");
    let (told, heard) = mpsc::channel();
    let its = disk.clone();
    let done = Box::new(move |outcome: Result<_, DiskError>| {
        drop(its);
        told.send(outcome.is_ok()).unwrap();
    });
    disk.submit(store_message(&name, &inline(1, b"x")), done);
    drop(disk);
    assert!(heard.recv().unwrap());
}
