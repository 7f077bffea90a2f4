//! Parts: what is written is read back or named as damaged, and what nobody names goes in time.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use synod_core::objects::{ObjectMessage, Space};
use synod_core::slots::SlotEpoch;

use super::samples::{
    Bench, in_parts, inline, named, noise, object, slot, store, tag, tell, tombstone, write_part,
    write_part_as,
};
use crate::objects::content::{PART_BYTES_MAX, PartId, PartRef};
use crate::objects::disk::error::PartDamage;
use crate::objects::disk::garbage::GarbageReport;
use crate::objects::disk::parts::BLOCK_BYTES;
use crate::objects::disk::{Disk, DiskError};

#[test]
fn any_range_of_a_part_is_read_back() {
    let bench = Bench::new();
    let disk = bench.open();
    for count in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 77] {
        let bytes = noise(count);
        let part = write_part(&disk, &bytes);
        let reader = disk.open_part(part.id).unwrap().unwrap();
        assert_eq!((reader.bytes(), reader.root()), (count as u64, part.root));
        let mut ends: Vec<usize> = (0..=count / BLOCK_BYTES + 1)
            .flat_map(|block| {
                [block * BLOCK_BYTES, block * BLOCK_BYTES + 1, (block * BLOCK_BYTES).saturating_sub(1)]
            })
            .filter(|end| *end <= count)
            .collect();
        ends.push(count);
        for (start, end) in ends.iter().flat_map(|start| ends.iter().map(move |end| (*start, *end))) {
            if start <= end {
                assert_eq!(reader.read(start as u64..end as u64).unwrap(), bytes[start..end]);
            }
        }
        let beyond = reader.read(0..count as u64 + 1);
        assert!(matches!(beyond, Err(DiskError::OutOfRange { .. })), "{beyond:?}");
        assert!(disk.has_part(&part).unwrap());
        assert!(!disk.has_part(&PartRef { root: part.root ^ 1, ..part }).unwrap());
    }
}

#[test]
fn damage_is_found_and_named() {
    let bench = Bench::new();
    let disk = bench.open();
    let bytes = noise(2 * BLOCK_BYTES + 5);
    let part = write_part(&disk, &bytes);
    let path = file_of(&disk, part.id);
    let whole = fs::read(&path).unwrap();

    // A flipped bit in the second block: the others can still be read.
    let mut flipped = whole.clone();
    flipped[BLOCK_BYTES + 9] ^= 4;
    fs::write(&path, &flipped).unwrap();
    let reader = disk.open_part(part.id).unwrap().unwrap();
    assert_eq!(reader.read(0..9).unwrap(), bytes[..9]);
    let error = reader.read(0..BLOCK_BYTES as u64 + 1).unwrap_err();
    assert!(error.is_damage());
    assert!(
        error.to_string().contains("block 1") && error.to_string().contains(&part.id.to_string()),
        "{error}"
    );
    assert!(reader.verify().is_err());
    assert_eq!(disk.usage().unwrap().damaged_parts, 2);

    let damage = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        assert!(!disk.has_part(&part).unwrap());
        match disk.open_part(part.id).map(|found| found.is_some()) {
            Err(DiskError::DamagedPart { damage, .. }) => damage,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(damage(&whole[..whole.len() - 1]), PartDamage::Footer);
    assert_eq!(damage(&whole[..7]), PartDamage::Length { expected: 48, found: 7 });
    let mut longer = whole[..bytes.len()].to_vec();
    longer.push(0);
    longer.extend_from_slice(&whole[bytes.len()..]);
    assert!(matches!(damage(&longer), PartDamage::Length { .. }));
    let mut flipped = whole.clone();
    flipped[bytes.len() + 3] ^= 1;
    assert_eq!(damage(&flipped), PartDamage::Checksums);
    let other = write_part(&disk, b"other");
    assert_eq!(
        damage(&fs::read(file_of(&disk, other.id)).unwrap()),
        PartDamage::Identity { found: other.id }
    );

    // Written again, a damaged part is replaced.
    assert_eq!(write_part_as(&disk, part.id, &bytes).unwrap(), part);
    disk.open_part(part.id).unwrap().unwrap().verify().unwrap();
}

#[test]
fn a_part_is_written_once_and_written_again_in_vain() {
    let bench = Bench::new();
    let disk = bench.open();
    let part = write_part(&disk, b"hello");
    assert_eq!(write_part_as(&disk, part.id, b"hello").unwrap(), part);
    let differs = write_part_as(&disk, part.id, b"hullo");
    assert!(matches!(differs, Err(DiskError::PartDiffers { .. })), "{differs:?}");
    assert_eq!(disk.open_part(part.id).unwrap().unwrap().read(0..5).unwrap(), "hello");
    assert_eq!(files_in(&disk, "tmp"), 0);
    assert_eq!(disk.part_ids(None, 10).unwrap(), [part.id]);
}

#[test]
fn a_part_that_is_not_sealed_leaves_nothing() {
    let bench = Bench::new();
    let disk = bench.open();
    let id = PartId::random();
    let mut part = disk.create_part(id).unwrap();
    part.write(&noise(BLOCK_BYTES * 2)).unwrap();
    assert!(disk.open_part(id).unwrap().is_none());
    let too_much = part.write(&vec![0; PART_BYTES_MAX as usize]);
    assert!(matches!(too_much, Err(DiskError::Refused { .. })), "{too_much:?}");
    drop(part);
    assert_eq!(files_in(&disk, "tmp"), 0);
    // What a crash leaves there goes when the disk is opened again.
    drop(disk);
    fs::write(bench.dir.path().join("tmp").join(format!("{id}.0")), b"half").unwrap();
    let disk = bench.open();
    assert_eq!(files_in(&disk, "tmp"), 0);
    assert_eq!(disk.part_ids(None, 10).unwrap(), []);
}

#[test]
fn a_head_is_complete_when_its_parts_are_here() {
    let bench = Bench::new();
    let disk = bench.learned();
    let other = Bench::new();
    let (first, second) = (write_part(&disk, b"first"), write_part(&other.open(), b"second"));
    let (name, head) = (object("a"), in_parts(1, &[first, second]));
    assert!(!store(&disk, &name, &head));
    assert_eq!(disk.missing_parts(10, None).unwrap(), [(second, slot(&name), name.clone())]);
    assert_eq!(disk.missing_parts(10, Some(second.id)).unwrap(), []);
    assert_eq!(disk.usage().unwrap().missing_parts, 1);

    write_part_as(&disk, second.id, b"second").unwrap();
    assert!(store(&disk, &name, &head));
    assert_eq!(disk.missing_parts(10, None).unwrap(), []);
    let usage = disk.usage().unwrap();
    assert_eq!((usage.parts, usage.part_bytes, usage.missing_parts), (2, 11, 0));

    // What is removed though it is named is missing again, also after a start.
    disk.remove_part(first.id).unwrap();
    assert!(disk.open_part(first.id).unwrap().is_none());
    drop(disk);
    let disk = bench.open();
    assert_eq!(disk.missing_parts(10, None).unwrap(), [(first, slot(&name), name.clone())]);
    assert!(!store(&disk, &name, &head));
    // When nobody names it any more, nobody misses it.
    store(&disk, &name, &inline(2, b"small"));
    assert_eq!(disk.missing_parts(10, None).unwrap(), []);
    assert_eq!(disk.usage().unwrap().parts, 0);
}

#[test]
fn parts_of_an_upload_become_those_of_the_object_whichever_comes_first() {
    for is_object_first in [false, true] {
        let bench = Bench::new();
        let disk = bench.learned();
        let part = write_part(&disk, b"bytes");
        let upload = named(Space::UploadPart, "a\u{0}u1\u{0}00001");
        let order = match is_object_first {
            true => [object("a"), upload.clone()],
            false => [upload.clone(), object("a")],
        };
        for (name, sequence) in order.iter().zip(1..) {
            assert!(store(&disk, name, &in_parts(sequence, &[part])));
        }
        store(&disk, &upload, &tombstone(3, 17));
        assert_eq!(collect(&disk, u64::MAX), (0, 0));
        assert!(disk.has_part(&part).unwrap());

        store(&disk, &object("a"), &tombstone(4, 17));
        assert!(disk.has_part(&part).unwrap());
        assert_eq!(collect(&disk, u64::MAX), (1, 0));
        assert!(!disk.has_part(&part).unwrap());
    }
}

#[test]
fn parts_stay_in_the_trash_for_those_who_read_them() {
    let bench = Bench::new();
    let disk = bench.learned();
    let (part, kept) = (write_part(&disk, b"bytes"), write_part(&disk, b"kept"));
    let name = object("a");
    store(&disk, &name, &in_parts(1, &[part, kept]));
    let released_ms = bench.now_ms.load(Ordering::SeqCst);
    store(&disk, &name, &in_parts(2, &[kept]));
    let due_ms = released_ms + bench.options.trash_grace_ms;
    assert_eq!(collect(&disk, due_ms - 1), (0, 0));
    assert!(disk.has_part(&part).unwrap());
    let reader = disk.open_part(part.id).unwrap().unwrap();

    // Named again and released again: the later time counts.
    store(&disk, &name, &in_parts(3, &[part, kept]));
    bench.now_ms.fetch_add(1000, Ordering::SeqCst);
    store(&disk, &name, &in_parts(4, &[kept]));
    assert_eq!(collect(&disk, due_ms), (0, 0));
    drop(disk);
    let disk = bench.open();
    assert_eq!(collect(&disk, due_ms + 1000), (1, 0));
    assert!(!disk.has_part(&part).unwrap() && disk.has_part(&kept).unwrap());
    assert_eq!(files_in(&disk, "tmp"), 0);
    // Who has it open reads on.
    assert_eq!(reader.read(0..5).unwrap(), "bytes");
}

#[test]
fn parts_that_nobody_ever_named_go_after_a_day() {
    let bench = Bench::new();
    let disk = bench.learned();
    let parts: Vec<PartRef> = (0..10).map(|number| write_part(&disk, &[number])).collect();
    store(&disk, &object("a"), &in_parts(1, &parts[..3]));
    let written_ms = super::super::wall_clock_ms();
    assert_eq!(collect(&disk, written_ms + bench.options.orphan_grace_ms - 60_000), (0, 0));
    assert_eq!(disk.part_ids(None, 100).unwrap().len(), 10);
    assert_eq!(collect(&disk, written_ms + bench.options.orphan_grace_ms + 60_000), (0, 7));
    assert_eq!(disk.part_ids(None, 100).unwrap().len(), 3);
    assert!(parts[..3].iter().all(|part| disk.has_part(part).unwrap()));
    // A walk in small steps sees each once.
    let mut seen = Vec::new();
    while let [id] = disk.part_ids(seen.last().copied(), 1).unwrap()[..] {
        seen.push(id);
    }
    seen.sort_unstable();
    let mut named: Vec<PartId> = parts[..3].iter().map(|part| part.id).collect();
    named.sort_unstable();
    assert_eq!(seen, named);
}

#[test]
fn an_adopted_head_says_which_parts_to_fetch() {
    let bench = Bench::new();
    let disk = bench.open();
    let missing = PartRef { id: PartId(7), bytes: 100_000, root: 1 };
    let name = object("a");
    let heads = vec![(name.clone(), in_parts(3, &[missing]))];
    let adopt = ObjectMessage::Adopt { slot: slot(&name), round: 1, heads, learned: Some(SlotEpoch::new(1)) };
    tell(&disk, adopt).unwrap();
    assert_eq!(disk.missing_parts(1, None).unwrap(), [(missing, slot(&name), name.clone())]);
    assert_eq!(disk.head(slot(&name), &name).unwrap().unwrap().tag, tag(1, 3));
}

/// Collects all there is: how many from the trash, and how many that nobody named.
fn collect(disk: &Disk, now_ms: u64) -> (usize, usize) {
    let (mut trashed, mut orphans) = (0, 0);
    loop {
        let report: GarbageReport = disk.collect_garbage(now_ms, 3).unwrap();
        trashed += report.trashed;
        orphans += report.orphans;
        if report.is_round_done && !report.is_more_due {
            return (trashed, orphans);
        }
    }
}

pub(super) fn file_of(disk: &Disk, id: PartId) -> PathBuf {
    disk.shared().parts.path(id)
}

fn files_in(disk: &Disk, dir: &str) -> usize {
    fs::read_dir(disk.shared().dir.join(dir)).unwrap().count()
}
