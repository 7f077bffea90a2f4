//! Tests.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use proptest::prelude::*;
use synod_core::slots::{RegistryOp, SlotId, Standing, VALUE_BYTES_MAX};

use super::samples::{any_bootstrap, bootstrap, entries, head, node, promise};
use super::*;

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("disk/registry")
    }

    fn open(&self) -> (RegistryFiles, Recovered) {
        self.try_open().expect("a sound registry")
    }

    fn try_open(&self) -> Result<(RegistryFiles, Recovered), FilesError> {
        RegistryFiles::open(&self.path())
    }

    /// The state that a start would find.
    fn state(&self) -> State {
        let (files, _) = self.open();
        files.lock().state.clone()
    }

    /// All files below, with what is in them.
    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut contents = BTreeMap::new();
        let mut dirs = vec![self.path()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    contents.insert(path.clone(), fs::read(&path).expect("a file"));
                }
            }
        }
        contents
    }

    /// Opening is refused, and changes nothing.
    fn refused(&self) -> FilesError {
        let before = self.contents();
        let error = self.try_open().err().expect("it is refused");
        assert_eq!(self.contents(), before, "{error}");
        error
    }

    fn last_segment(&self) -> PathBuf {
        let contents = self.contents();
        let mut segments = contents.keys().filter(|path| path.extension().is_some_and(|ext| ext == "seg"));
        segments.next_back().expect("a segment").clone()
    }
}

fn write(files: &RegistryFiles, entries: &[Entry]) {
    files.append(entries).expect("a ticket").wait().expect("durable");
}

fn joined<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> State {
    let mut state = State::default();
    for entry in entries {
        state.apply(entry).expect("one cluster");
    }
    state.takeovers.clear();
    state
}

#[test]
fn a_restart_forgets_nothing_and_the_highest_promise_counts() {
    let dir = Dir::new();
    let (files, recovered) = dir.open();
    assert!(recovered.restored.replicas.is_empty() && recovered.bootstrap.is_none());
    write(&files, &[Entry::Bootstrap(bootstrap("n", 7)), promise(1, 3, Some("b")), head(1, 2, 9, b"x")]);
    write(&files, &[promise(1, 2, Some("a")), promise(1, 3, Some("c")), head(1, 2, 8, b"old")]);
    write(&files, &[Entry::Bootstrap(bootstrap("n", 5)), Entry::Takeover("b by c".into())]);
    files.close().expect("durable");

    let (_files, recovered) = dir.open();
    let replica = &recovered.restored.replicas[&SlotId::new(1)];
    assert_eq!((replica.promised().get(), replica.granted_to()), (3, Some(&node("b"))));
    assert_eq!(replica.head().map(|head| &*head.value), Some(&b"x"[..]));
    assert_eq!(recovered.bootstrap, Some(bootstrap("n", 5)), "the earlier beginning counts");
    assert_eq!(recovered.takeovers, ["b by c"]);
    assert_eq!(recovered.cut, None);
}

#[test]
fn a_head_without_a_promise_is_no_memory_of_a_slot() {
    let dir = Dir::new();
    let (files, _) = dir.open();
    write(&files, &[head(1, 2, 9, b"x"), promise(2, 0, None)]);
    drop(files);
    let (_files, recovered) = dir.open();
    assert_eq!(recovered.restored.replicas.keys().map(|slot| slot.get()).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_snapshot_frees_the_log_and_keeps_everything() {
    let dir = Dir::new();
    let (files, _) = dir.open();
    let value = vec![b'v'; VALUE_BYTES_MAX];
    let mut written = vec![Entry::Bootstrap(bootstrap("n", 1)), promise(3, 1, None)];
    write(&files, &written);
    assert!(!files.wants_snapshot());
    for sequence in 0..600 {
        let one = head(3, 1, sequence, &value);
        // Only the last one is waited for: with it all before are durable.
        let ticket = files.append(std::slice::from_ref(&one)).expect("a ticket");
        written.push(one);
        if sequence == 599 {
            ticket.wait().expect("durable");
        }
    }
    assert!(files.wants_snapshot(), "600 times 16 KiB are more than 8 MiB");
    let bytes = || dir.contents().values().map(Vec::len).sum::<usize>();
    let before = bytes();
    files.snapshot().expect("a snapshot");
    assert!(bytes() < before / 3, "{} of {before} bytes are left", bytes());
    assert!(!files.wants_snapshot());
    write(&files, &[promise(3, 2, None)]);
    drop(files);
    written.push(promise(3, 2, None));
    assert_eq!(dir.state(), joined(&written));
}

#[test]
fn a_snapshot_can_be_read_by_people() {
    let dir = Dir::new();
    let (files, _) = dir.open();
    write(
        &files,
        &[
            Entry::Bootstrap(bootstrap("n", 1)),
            promise(3, 7, Some("a")),
            head(3, 7, 1, b"gr\xc3\xbc\xc3\x9fe"),
        ],
    );
    write(&files, &[head(4, 7, 1, &[0, 255])]);
    files.snapshot().expect("a snapshot");
    let text = fs::read_to_string(dir.path().join(SNAPSHOT)).expect("text");
    for line in [
        "{\"slot\": 3, \"epoch\": 7, \"granted_to\": \"a\"}",
        "{\"slot\": 3, \"epoch\": 7, \"sequence\": 1, \"accepted\": 7, \"text\": \"grüße\"}",
        "{\"slot\": 4, \"epoch\": 7, \"sequence\": 1, \"accepted\": 7, \"hex\": \"00ff\"}",
        &format!("\"cluster_id\": \"{}\"", bootstrap("n", 1).cluster_id()),
    ] {
        assert!(text.lines().any(|found| found.trim().trim_end_matches(',') == line), "{line}\n{text}");
    }
}

#[test]
fn one_process_has_the_directory_and_nobody_else_may_look() {
    let dir = Dir::new();
    let (files, _) = dir.open();
    write(&files, &[promise(1, 1, None)]);
    files.snapshot().expect("a snapshot");
    let takeover = Takeover {
        node: node("b"),
        old_standing: Standing::Suspect,
        old_incarnation: Incarnation::FIRST,
        last_heard_age: Duration::from_secs(50),
    };
    files.audit(&takeover, 5).expect("a line");
    assert!(matches!(dir.refused(), FilesError::InUse { .. }));
    drop(files);

    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!(dir.contents().len(), 5, "{:?}", dir.contents().keys());
    for file in dir.contents().keys() {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
    assert_eq!((mode(&dir.path()), mode(&dir.path().join(OPLOG))), (0o700, 0o700));
    // A directory that somebody else has made is closed too.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    drop(dir.open());
    assert_eq!(mode(&dir.path()), 0o700);
}

#[test]
fn takeovers_are_lines_of_json_even_after_a_torn_one() {
    let dir = Dir::new();
    let (files, _) = dir.open();
    let takeover = Takeover {
        node: node("b"),
        old_standing: Standing::Suspect,
        old_incarnation: Incarnation::FIRST,
        last_heard_age: Duration::from_millis(45_001),
    };
    let audit = dir.path().join(AUDIT);
    fs::write(&audit, "{\"unix_mil").expect("a torn line");
    files.audit(&takeover, 1_700_000_000_000).expect("a line");
    files.audit(&takeover, 1_700_000_000_001).expect("a line");
    let text = fs::read_to_string(&audit).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(
        lines[1],
        "{\"unix_millis\":1700000000000,\"event\":\"takeover\",\"node\":\"b\",\"old_status\":\"suspect\",\
         \"old_incarnation\":1,\"last_heard_age_ms\":45001}"
    );
}

#[test]
fn a_directory_of_another_cluster_is_refused_and_left_alone() {
    let dir = Dir::new();
    let (files, _) = dir.open();
    let (own, foreign) = (bootstrap("own", 1), bootstrap("foreign", 1));
    // Of two clusters in one batch neither is taken.
    let both = [Entry::Bootstrap(own.clone()), Entry::Bootstrap(foreign.clone())];
    assert!(matches!(files.append(&both), Err(FilesError::ForeignCluster { .. })));
    assert_eq!(files.bootstrap(), None);
    write(&files, &[Entry::Bootstrap(own.clone())]);
    files.close().expect("durable");

    let before = dir.contents();
    let (files, _) = dir.open();
    let error = files.append(&[promise(1, 1, None), Entry::Bootstrap(foreign)]).expect_err("another cluster");
    assert!(matches!(error, FilesError::ForeignCluster { .. }), "{error}");
    assert!(error.to_string().contains(&own.cluster_id().to_string()), "{error}");
    files.close().expect("durable");
    assert_eq!(dir.contents(), before);
}

#[test]
fn to_look_at_a_directory_changes_nothing() {
    let dir = Dir::new();
    let early = FoundFiles::look(&dir.path()).expect("nothing to read");
    assert_eq!((early.bootstrap(), early.incarnation()), (None, None));
    assert!(!dir.path().exists());

    let (files, _) = dir.open();
    let own = bootstrap("own", 1);
    write(&files, &[Entry::Bootstrap(own.clone()), Entry::Incarnation(Incarnation::FIRST)]);
    assert!(matches!(FoundFiles::look(&dir.path()), Err(FilesError::InUse { .. })));
    files.close().expect("durable");
    // Something that a log would tidy up when it is opened.
    let segment = dir.contents().into_keys().find(|path| path.extension().is_some_and(|end| end == "seg"));
    let segment = segment.expect("a segment");
    let mut bytes = fs::read(&segment).expect("a segment");
    bytes.extend([0; 4096]);
    fs::write(&segment, bytes).expect("a segment that was filled ahead");

    let before = dir.contents();
    let found = FoundFiles::look(&dir.path()).expect("a sound registry");
    assert_eq!((found.bootstrap(), found.incarnation()), (Some(&own), Some(Incarnation::FIRST)));
    drop(found);
    assert_eq!(dir.contents(), before);
    // Whoever looked before there was anything does not go on with what it saw.
    assert!(matches!(early.open(), Err(FilesError::InUse { .. })));
}

/// A registry with a snapshot and something behind it.
fn with_snapshot() -> Dir {
    let dir = Dir::new();
    let (files, _) = dir.open();
    write(&files, &[Entry::Bootstrap(bootstrap("n", 1)), promise(1, 1, Some("a")), head(1, 1, 1, b"v")]);
    files.snapshot().expect("a snapshot");
    write(&files, &[promise(1, 2, Some("b"))]);
    files.close().expect("durable");
    dir
}

#[test]
fn a_damaged_or_cut_or_later_snapshot_is_refused_and_left_alone() {
    let dir = with_snapshot();
    let file = dir.path().join(SNAPSHOT);
    let sound = fs::read_to_string(&file).expect("text");

    let replaced = sound.replace("\"epoch\": 1", "\"epoch\": 0");
    assert_ne!(replaced, sound);
    fs::write(&file, replaced).expect("a file");
    assert!(matches!(dir.refused(), FilesError::Damaged { .. }));

    fs::write(&file, sound.replace("\"version\": 1", "\"version\": 2")).expect("a file");
    assert!(matches!(dir.refused(), FilesError::LaterVersion { version: 2, known: 1, .. }));

    fs::write(&file, sound.replace("\"clock\"", "\"clack\"")).expect("a file");
    let FilesError::Damaged { file: named, offset, .. } = dir.refused() else { panic!("it is damaged") };
    assert_eq!(named, file);
    let clock = sound.find("\"clock\"").expect("the clock") as u64;
    assert!((clock..clock + 10).contains(&offset), "{offset} is near {clock}");

    for length in 0..sound.trim_end().len() {
        fs::write(&file, &sound[..sound.floor_char_boundary(length)]).expect("a file");
        let error = read(&dir.path()).expect_err("a part of a snapshot");
        assert!(matches!(error, FilesError::Truncated { .. }), "{length}: {error}");
    }
    assert!(matches!(dir.refused(), FilesError::Truncated { .. }));
    // How it is laid out does not matter.
    fs::write(&file, sound.replace('\n', " ")).expect("a file");
    assert_eq!(dir.state().promises[&SlotId::new(1)].0.get(), 2);

    fs::remove_file(&file).expect("removed");
    assert_eq!(dir.state().promises[&SlotId::new(1)].0.get(), 2, "the log still has everything");
}

#[test]
fn every_flipped_bit_of_a_snapshot_is_refused_or_means_nothing() {
    let dir = with_snapshot();
    let (file, state) = (dir.path().join(SNAPSHOT), dir.state());
    let sound = fs::read(&file).expect("a file");
    for bit in 0..8 * sound.len() {
        let mut flipped = sound.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&file, flipped).expect("a file");
        if let Ok(Some((read, _))) = snapshot::read(&file) {
            let mut expected = state.clone();
            expected.promises.insert(SlotId::new(1), (synod_core::slots::SlotEpoch::new(1), Some(node("a"))));
            assert_eq!(read, expected, "bit {bit}");
        }
    }
}

#[test]
fn a_log_that_does_not_fit_its_snapshot_is_refused_and_left_alone() {
    let dir = with_snapshot();
    let segment = dir.last_segment();
    let sound = fs::read(&segment).expect("a file");
    // The log without anything in it is older than the snapshot: what followed the snapshot is gone.
    fs::write(&segment, &sound[..32]).expect("a file");
    assert!(matches!(dir.refused(), FilesError::OplogTruncated { last_index: 0, covers: 2, .. }));
    fs::remove_dir_all(dir.path().join(OPLOG)).expect("removed");
    assert!(matches!(dir.refused(), FilesError::OplogTruncated { .. }));

    // A log that begins behind record 1 needs its snapshot.
    let dir = Dir::new();
    let (files, _) = dir.open();
    let value = vec![1; VALUE_BYTES_MAX];
    let many: Vec<Entry> = (0..200).map(|slot| head(slot, 1, 1, &value)).collect();
    write(&files, &many);
    files.snapshot().expect("a snapshot");
    files.close().expect("durable");
    fs::remove_file(dir.path().join(SNAPSHOT)).expect("removed");
    assert!(matches!(dir.refused(), FilesError::SnapshotMissing { .. }));
}

#[test]
fn damage_in_the_middle_of_the_log_is_refused_and_left_alone() {
    let dir = Dir::new();
    let (files, _) = dir.open();
    (1..5).for_each(|epoch| write(&files, &[promise(1, epoch, None)]));
    files.close().expect("durable");
    let segment = dir.last_segment();
    let mut bytes = fs::read(&segment).expect("a file");
    bytes[60] ^= 1;
    fs::write(&segment, bytes).expect("a file");
    let FilesError::Damaged { file, offset, .. } = dir.refused() else { panic!("it is damaged") };
    assert_eq!((file, offset), (segment, 32));
}

#[test]
fn a_record_of_a_later_version_is_refused_before_a_torn_end_is_cut() {
    let dir = Dir::new();
    let (files, _) = dir.open();
    write(&files, &[promise(1, 1, None)]);
    let mut later = entry::fence();
    later[0] = 2;
    files.log.append(later).expect("a ticket").wait().expect("durable");
    files.close().expect("durable");
    let segment = dir.last_segment();
    let torn = [fs::read(&segment).expect("a file"), vec![9; 30]].concat();
    fs::write(&segment, torn).expect("a file");
    assert!(matches!(dir.refused(), FilesError::LaterEntry { record: 2, version: 2, known: 1, .. }));
}

#[test]
fn a_snapshot_that_failed_leaves_everything_and_may_be_tried_again() {
    let dir = Dir::new();
    let (files, _) = dir.open();
    write(&files, &[promise(1, 1, None)]);
    // A directory in the place of the new snapshot: it cannot be written.
    fs::create_dir(dir.path().join("snapshot.json.new")).expect("a directory");
    let error = files.snapshot().expect_err("no snapshot");
    assert!(matches!(error, FilesError::Disk { operation: "create", .. }), "{error}");
    write(&files, &[promise(1, 2, None)]);
    fs::remove_dir(dir.path().join("snapshot.json.new")).expect("removed");
    files.snapshot().expect("a snapshot");
    drop(files);
    assert_eq!(dir.state().promises[&SlotId::new(1)].0.get(), 2);
}

/// How many records of the log in `dir` are whole, as the log itself counts them.
fn whole_records(dir: &Dir) -> u64 {
    let copy = SimDisk::with_contents(disk::read_files(&dir.path().join(OPLOG)).expect("files"));
    Log::open(log_config(), copy).expect("a log").1.last_index
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Batches with snapshots at any point; then the log is cut at every byte. What is found is what the batches up to the
    /// last whole one amount to, or it is refused because the snapshot knows of more.
    #[test]
    fn a_log_that_is_cut_anywhere_gives_the_state_of_a_prefix(
        batches in proptest::collection::vec((entries(5), prop::bool::weighted(0.2)), 1..7),
        opened: prop::sample::Index,
    ) {
        let dir = Dir::new();
        let (files, _) = dir.open();
        // The state after each record of the log, from the one before the first. A snapshot takes a record too.
        let (mut written, mut states, mut covers) = (Vec::new(), vec![State::default()], 0);
        for (batch, is_snapshot) in &batches {
            write(&files, batch);
            written.extend(batch);
            states.push(joined(written.iter().copied()));
            if *is_snapshot {
                files.snapshot().expect("a snapshot");
                states.push(joined(written.iter().copied()));
                covers = states.len() as u64 - 1;
            }
        }
        files.close().expect("durable");
        prop_assert_eq!(&dir.state(), states.last().expect("a state"));

        let segment = dir.last_segment();
        let sound = fs::read(&segment).expect("a file");
        let used = sound.iter().rposition(|byte| *byte != 0).expect("something is written") + 1;
        let mut fewest = states.len() as u64 - 1;
        for length in (0..=used).rev() {
            fs::write(&segment, &sound[..length]).expect("a file");
            let whole = whole_records(&dir);
            prop_assert!(whole <= fewest, "{} bytes have more records than more bytes", length);
            fewest = whole;
            match read(&dir.path()) {
                Ok((mut state, _)) => {
                    state.takeovers.clear();
                    prop_assert!(whole >= covers, "{} bytes", length);
                    prop_assert_eq!(&state, &states[whole as usize], "{} bytes", length);
                }
                Err(FilesError::OplogTruncated { .. }) => prop_assert!(whole < covers, "{} bytes", length),
                Err(error) => prop_assert!(false, "{} bytes: {}", length, error),
            }
            // To open it syncs, which takes its time.
            if length == opened.index(used + 1) {
                if whole < covers { drop(dir.refused()) } else { drop(dir.open()) }
                prop_assert_eq!(dir.try_open().is_ok(), whole >= covers, "and again");
            }
        }
        prop_assert_eq!(fewest, 0, "nothing is left of an empty file");
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written(entries in entries(60), beginning in any_bootstrap(), covers: u64) {
        let others = entries.iter().filter(|entry| !matches!(entry, Entry::Bootstrap(_)));
        let state = joined(others.chain([&Entry::Bootstrap(beginning)]));
        let dir = Dir::new();
        disk::make_private_dir(&dir.path()).expect("a directory");
        snapshot::write(&dir.path(), SNAPSHOT, &state, covers).expect("a snapshot");
        let read = snapshot::read(&dir.path().join(SNAPSHOT)).expect("a sound snapshot");
        prop_assert_eq!(read, Some((state, covers)));
    }

    /// A join: entries may come again, as after a snapshot that a crash has cut off from its compaction.
    #[test]
    fn to_join_entries_again_changes_nothing(entries in entries(40)) {
        let once = joined(&entries);
        prop_assert_eq!(joined(entries.iter().chain(&entries)), once.clone());
        let heads = entries.iter().filter_map(|entry| match entry {
            Entry::Op(RegistryOp::Head { slot, head }) => Some((*slot, head.rank())),
            _ => None,
        });
        for (slot, rank) in heads {
            prop_assert!(once.heads[&slot].rank() >= rank);
        }
    }
}
