//! Disks that lie, break or are pulled out.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redb::{Database, ReadableTable, StorageBackend};
use synod_core::objects::{EntryName, SlotFence};

use super::samples::{
    Bench, all_slots, in_parts, inline, object, slot, store, store_message, tell, write_part,
};
use crate::lock;
use crate::objects::disk::table::{HEADS, INDEX};
use crate::objects::disk::values::head_key;
use crate::objects::disk::{Disk, DiskError};

#[test]
fn a_damaged_database_is_refused_by_name() {
    let bench = Bench::new();
    let disk = bench.learned();
    store(&disk, &object("a"), &inline(1, b"x"));
    drop(disk);
    let path = bench.dir.path().join("meta.redb");
    let whole = fs::read(&path).unwrap();
    let damages: [(&str, Vec<u8>); 3] = [
        ("nothing of a database", b"nothing of a database".repeat(1000)),
        ("another beginning", [&[0; 64], &whole[64..]].concat()),
        ("half of it", whole[..whole.len() / 2].to_vec()),
    ];
    for (what, bytes) in damages {
        fs::write(&path, &bytes).unwrap();
        let refused = Disk::open(bench.dir.path(), &bench.options).expect_err(what);
        assert!(refused.to_string().contains("meta.redb"), "{what}: {refused}");
    }
    fs::remove_file(&path).unwrap();
    let refused = Disk::open(bench.dir.path(), &bench.options).unwrap_err();
    assert!(matches!(refused, DiskError::EntriesMissing { .. }), "{refused}");
    assert!(!path.exists());
}

#[test]
fn a_damaged_entry_is_named_and_its_slot_learned_anew() {
    let bench = Bench::new();
    let disk = bench.learned();
    let name = object("a");
    let part = write_part(&disk, b"bytes");
    store(&disk, &name, &in_parts(1, &[part]));
    let learned = disk.fence(slot(&name));
    assert!(!disk.forget_damaged(slot(&name), &name).unwrap());
    drop(disk);
    flip_head(&bench, &name);

    let disk = bench.open();
    let error = disk.head(slot(&name), &name).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("photos/a"), "{error}");
    assert!(matches!(disk.ranks(slot(&name), None, None, 10), Err(DiskError::DamagedEntry { .. })));
    assert_eq!(disk.usage().unwrap().damaged_entries, 2);
    // The disk as a whole works on.
    store(&disk, &object("b"), &inline(1, b"x"));
    assert!(disk.forget_damaged(slot(&name), &name).unwrap());
    assert_eq!(disk.fence(slot(&name)), SlotFence { is_learned: false, ..learned });
    assert_eq!(disk.head(slot(&name), &name).unwrap(), None);
    let expected = u64::from(slot(&object("b")) == slot(&name));
    assert_eq!(disk.summary(slot(&name)).count, expected);
    assert_eq!(disk.usage().unwrap().parts, 0);
    drop(disk);
    assert!(!bench.open().fence(slot(&name)).is_learned);
}

#[test]
fn a_damaged_entry_is_replaced_by_a_newer_one() {
    let bench = Bench::new();
    let disk = bench.learned();
    let name = object("a");
    let part = write_part(&disk, b"bytes");
    store(&disk, &name, &in_parts(1, &[part]));
    drop(disk);
    flip_head(&bench, &name);
    let disk = bench.open();
    store(&disk, &name, &inline(2, b"x"));
    assert_eq!(disk.head(slot(&name), &name).unwrap(), Some(inline(2, b"x")));
    // Its parts are known from elsewhere, and go.
    assert_eq!(disk.collect_garbage(u64::MAX, 10).unwrap().trashed, 1);
}

#[test]
fn a_damaged_index_is_repaired_from_the_heads_at_start() {
    let bench = Bench::new();
    let disk = bench.learned();
    let name = object("a");
    store(&disk, &name, &inline(1, b"x"));
    let summary = disk.summary(slot(&name));
    drop(disk);
    let database = Database::create(bench.dir.path().join("meta.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(INDEX).unwrap().insert(name.as_bytes(), b"garbage".as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);

    drop(bench.open());
    let disk = bench.open();
    assert_eq!(disk.summary(slot(&name)), summary);
    assert!(disk.fence(slot(&name)).is_learned);
    assert_eq!(disk.usage().unwrap().damaged_entries, 0);
    store(&disk, &name, &inline(2, b"y"));
}

#[test]
fn a_failing_commit_is_acknowledged_to_nobody_and_ends_the_disk() {
    let bench = Bench::new();
    let backend = Drive::default();
    let disk = Disk::open_on_backend(bench.dir.path(), &bench.options, backend.clone()).unwrap();
    disk.set_learned(&all_slots()).unwrap();
    let name = object("a");
    store(&disk, &name, &inline(1, b"x"));
    let part = write_part(&disk, b"bytes");
    let failures = disk.failures();
    assert!(disk.failed().is_none() && !failures.has_changed().unwrap());

    backend.is_broken.store(true, Ordering::SeqCst);
    let summary = disk.summary(slot(&name));
    let failed = tell(&disk, store_message(&name, &inline(2, b"y")));
    assert!(matches!(failed, Err(DiskError::Failed { .. })), "{failed:?}");
    assert_eq!(disk.summary(slot(&name)), summary);
    assert!(disk.failed().is_some() && failures.has_changed().unwrap());
    // Also when the drive answers again: nobody knows what it kept.
    backend.is_broken.store(false, Ordering::SeqCst);
    assert!(matches!(tell(&disk, store_message(&name, &inline(3, b"z"))), Err(DiskError::Failed { .. })));
    assert!(matches!(disk.head(slot(&name), &name), Err(DiskError::Failed { .. })));
    assert!(matches!(disk.set_learned(&all_slots()), Err(DiskError::Failed { .. })));
    assert!(disk.open_part(part.id).is_err() && disk.usage().is_err());
}

#[test]
fn a_power_cut_takes_nothing_that_was_acknowledged() {
    for seed in 0..24 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bench = Bench::new();
        let drive = Drive::default();
        let disk = Disk::open_on_backend(bench.dir.path(), &bench.options, drive.clone()).unwrap();
        disk.set_learned(&all_slots()).unwrap();
        let acknowledged = Arc::new(Mutex::new(Vec::new()));
        for sequence in 1..=random.u64(1..40) {
            let name = object(&format!("{}", random.u8(..20)));
            let head = inline(sequence, b"some bytes");
            let (log, noted) = (Arc::clone(&acknowledged), (name.clone(), head.clone()));
            let told = Box::new(move |outcome: Result<_, DiskError>| {
                outcome.unwrap();
                lock(&log).push(noted);
            });
            disk.submit(store_message(&name, &head), told);
            if random.u8(..4) == 0 {
                // What waits gathers in batches of different sizes.
                tell(&disk, store_message(&name, &head)).unwrap();
            }
        }
        // In this order: what was acknowledged by now must be on the drive as it is a moment later.
        let promised = lock(&acknowledged).clone();
        let kept = drive.after_power_cut(&mut random);
        drop(disk);
        // The entries are elsewhere, but a disk without this file would be one that lost it.
        fs::write(bench.dir.path().join("meta.redb"), b"").unwrap();
        let disk = Disk::open_on_backend(bench.dir.path(), &bench.options, kept).unwrap();
        for (name, head) in promised {
            let stored = disk.head(slot(&name), &name).unwrap();
            assert!(stored.is_some_and(|stored| stored.rank() >= head.rank()), "seed {seed}: {name}");
        }
        assert!(all_slots().iter().all(|slot| disk.fence(*slot).is_learned), "seed {seed}");
    }
}

/// Flips a bit of what is stored of an entry.
fn flip_head(bench: &Bench, name: &EntryName) {
    let database = Database::create(bench.dir.path().join("meta.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let mut heads = transaction.open_table(HEADS).unwrap();
    let key = head_key(slot(name), name);
    let mut value = heads.get(key.as_slice()).unwrap().unwrap().value().to_vec();
    value[5] ^= 1;
    heads.insert(key.as_slice(), value.as_slice()).unwrap();
    drop(heads);
    transaction.commit().unwrap();
}

/// A drive in memory, with a cache that a power cut empties.
#[derive(Clone, Debug, Default)]
struct Drive {
    state: Arc<Mutex<DriveState>>,
    is_broken: Arc<AtomicBool>,
}

#[derive(Clone, Debug, Default)]
struct DriveState {
    now: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

impl Drive {
    /// What is there after the power came back: what was synced, and of the rest this or that, or half of it.
    fn after_power_cut(&self, random: &mut fastrand::Rng) -> Self {
        let state = lock(&self.state);
        let mut bytes = state.synced.clone();
        for (offset, written) in &state.unsynced {
            let kept = match random.u8(..3) {
                0 => continue,
                1 => random.usize(..=written.len()),
                _ => written.len(),
            };
            if bytes.len() < offset + kept {
                bytes.resize(offset + kept, 0);
            }
            bytes[*offset..offset + kept].copy_from_slice(&written[..kept]);
        }
        let state = DriveState { now: bytes.clone(), synced: bytes, ..DriveState::default() };
        Self { state: Arc::new(Mutex::new(state)), ..Self::default() }
    }

    fn check(&self) -> io::Result<()> {
        match self.is_broken.load(Ordering::SeqCst) {
            true => Err(io::Error::other("the drive is broken")),
            false => Ok(()),
        }
    }
}

impl StorageBackend for Drive {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.state).now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = lock(&self.state);
        let stored = state.now.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(stored.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        lock(&self.state).now.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        let mut state = lock(&self.state);
        state.synced = state.now.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        let mut state = lock(&self.state);
        let start = offset as usize;
        let stored = state.now.get_mut(start..start + data.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        stored.copy_from_slice(data);
        state.unsynced.push((start, data.to_vec()));
        Ok(())
    }
}
