//! Any operations, a crash at any of their steps, a file cut or a bit flipped anywhere: what recovery makes of it.
//!
//! These tests drive the store without its thread, so that a seed always tells the same story.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::sim_disk::SimDisk;

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Vec<u8>>),
    TruncateAfter(u64),
    CompactBefore(u64),
    ResetTo(u64),
    Seal,
}

/// What a log may hold after a crash: at least the one, at most the other.
type Bounds = (Model, Model);

/// What the log should hold.
#[derive(Clone, Debug, Default)]
struct Model {
    records: BTreeMap<u64, Vec<u8>>,
    first: u64,
    next: u64,
}

impl Model {
    fn new() -> Self {
        Self { records: BTreeMap::new(), first: 1, next: 1 }
    }

    /// Does a step, on a store whose disk may fail. If it does, says between which bounds the log may be left.
    fn apply(&mut self, store: &mut Store, step: &Step) -> Result<(), Vec<Bounds>> {
        let mut may_be = self.clone();
        let is_done = match step {
            Step::Append(payloads) => {
                for payload in payloads {
                    may_be.push(payload);
                }
                let mut durable = payloads.iter();
                let result = store.append(payloads, |count| {
                    durable.by_ref().take(count).for_each(|payload| self.push(payload));
                });
                result.is_ok()
            }
            Step::TruncateAfter(back) => {
                let index = self.next.saturating_sub(1 + back).max(self.first - 1);
                self.truncate_after(index);
                store.truncate_after(index).is_ok()
            }
            Step::CompactBefore(ahead) => {
                let index = (self.first + ahead).min(self.next);
                let result = store.compact_before(index);
                // Which segments are whole is the store's business. That none is lost which must stay is not.
                may_be.first = self.first;
                self.first = self.first.max(index);
                let survivor = result.is_ok().then(|| store.segments.first_index());
                if let Some(first) = survivor {
                    assert!(first <= index, "compaction before {index} took records up to {first}");
                    self.first = first;
                    self.records.retain(|record, _| *record >= first);
                }
                result.is_ok()
            }
            Step::ResetTo(ahead) => {
                let index = self.first + ahead;
                let mut truncated = self.clone();
                truncated.truncate_after((index - 1).min(self.next - 1));
                *self = Self { records: BTreeMap::new(), first: index, next: index };
                if store.reset_to(index).is_err() {
                    return Err(vec![(truncated, may_be), (self.clone(), self.clone())]);
                }
                true
            }
            Step::Seal => store.seal().is_ok(),
        };
        is_done.then_some(()).ok_or_else(|| vec![(self.clone(), may_be)])
    }

    fn truncate_after(&mut self, index: u64) {
        self.records.retain(|record, _| *record <= index);
        self.next = index + 1;
    }

    fn push(&mut self, payload: &[u8]) {
        self.records.insert(self.next, payload.to_vec());
        self.next += 1;
    }

    /// The log holds at least this and at most what may also be there, without a gap, each record as it was appended.
    fn check(&self, may_be: &Self, store: &Store) -> Result<(), TestCaseError> {
        let found = all(store);
        let (first, next) = (store.segments.first_index(), store.segments.last_index() + 1);
        prop_assert!(may_be.first <= first && first <= self.first, "first {first}, {self:?}, {may_be:?}");
        prop_assert!(self.next <= next && next <= may_be.next, "next {next}, {self:?}, {may_be:?}");
        prop_assert_eq!(found.keys().copied().collect::<Vec<_>>(), (first..next).collect::<Vec<_>>());
        for (index, payload) in &found {
            prop_assert_eq!(Some(payload), may_be.records.get(index), "record {}", index);
        }
        Ok(())
    }
}

/// Does steps on a new log until the disk fails, and says between which bounds the log may be left.
fn run(disk: &SimDisk, steps: &[Step], fill_bytes: usize) -> (Vec<Bounds>, Option<Store>) {
    let mut model = Model::new();
    let Ok((mut store, _)) = Store::open(Arc::new(disk.clone()), &config()) else {
        return (vec![(model.clone(), model)], None);
    };
    store.fill_bytes = fill_bytes;
    for step in steps {
        if let Err(interrupted) = model.apply(&mut store, step) {
            return (interrupted, None);
        }
    }
    (vec![(model.clone(), model)], Some(store))
}

/// A log is between one of several bounds.
fn check(bounds: &[Bounds], store: &Store) -> Result<(), TestCaseError> {
    let mut outcomes = bounds.iter().map(|(sure, may_be)| sure.check(may_be, store));
    let first = outcomes.next().unwrap_or(Ok(()));
    outcomes.fold(first, Result::or)
}

/// After any crash of that disk the log is there, within its bounds, and goes on.
fn check_after_crash(bounds: &[Bounds], disk: &SimDisk, seed: u64) -> Result<(), TestCaseError> {
    let disk = disk.crash(seed);
    let (mut store, recovery) = Store::open(Arc::new(disk.clone()), &config())
        .map_err(|error| TestCaseError::fail(format!("refused after a mere crash: {error}")))?;
    check(bounds, &store)?;
    prop_assert_eq!(recovery.last_index, store.segments.last_index());

    // What was recovered is durable now, and the log goes on from there: another crash takes nothing of it.
    let recovered = all(&store);
    store.append(&[b"after the crash"], |_| ()).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let (store, recovery) = Store::open(Arc::new(disk.crash(seed)), &config())
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    let mut found = all(&store);
    prop_assert_eq!(recovery.cut, None);
    prop_assert_eq!(found.pop_last(), Some((recovery.last_index, b"after the crash".to_vec())));
    prop_assert_eq!(found, recovered);
    Ok(())
}

/// Every operation of the disk that a story of all steps makes is once the last.
#[test]
fn a_crash_at_every_single_operation_is_survived() {
    let batch = |sizes: &[usize]| Step::Append(sizes.iter().map(|size| vec![7; *size]).collect());
    let steps = [
        batch(&[40, 0, 60]),
        batch(&[60; 9]),
        Step::TruncateAfter(3),
        batch(&[60; 5]),
        // Ahead of the log, which is what a snapshot does to a follower that lags.
        Step::ResetTo(100),
        batch(&[30; 12]),
        Step::CompactBefore(8),
        Step::Seal,
        // Inside of it, and then again where it is already.
        Step::ResetTo(4),
        Step::ResetTo(0),
        batch(&[50; 8]),
        Step::ResetTo(8),
        Step::ResetTo(1),
        batch(&[60; 8]),
        Step::Seal,
    ];
    for fill_bytes in FILLS {
        for operations in 0.. {
            let disk = SimDisk::new();
            disk.fail_after(operations);
            let (bounds, survivor) = run(&disk, &steps, fill_bytes);
            for seed in 0..12 {
                if let Err(error) = check_after_crash(&bounds, &disk, seed) {
                    panic!("after {operations} operations, filling {fill_bytes}, seed {seed}: {error}");
                }
            }
            if survivor.is_some() {
                assert!(operations > 100, "the story has {operations} operations only");
                break;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    /// The disk fails at any step of any operations. The process may be started again and see what was written but not
    /// synced. Then the power is cut, and may be cut again during recovery.
    #[test]
    fn after_a_crash_every_acknowledged_record_is_there_and_nothing_else(
        steps in proptest::collection::vec(step(), 1..12),
        fails_after in 0_u64..80,
        restart_fails_after in proptest::option::of(0_u64..8),
        recovery_fails_after in proptest::option::of(0_u64..8),
        fill_bytes in prop::sample::select(FILLS.to_vec()),
        seed: u64,
    ) {
        let disk = SimDisk::new();
        disk.fail_after(fails_after);
        let (bounds, _) = run(&disk, &steps, fill_bytes);
        if let Some(operations) = restart_fails_after {
            disk.fail_after(operations);
            drop(Store::open(Arc::new(disk.clone()), &config()));
        }
        let mut disk = disk.crash(seed);
        if let Some(operations) = recovery_fails_after {
            disk.fail_after(operations);
            drop(Store::open(Arc::new(disk.clone()), &config()));
            disk = disk.crash(!seed);
        }
        check_after_crash(&bounds, &disk, seed)?;
    }

    /// A log that was closed is whole, so that no bit in it can change without being noticed.
    #[test]
    fn a_flipped_bit_in_what_was_durable_is_refused_and_changes_nothing(
        steps in proptest::collection::vec(step(), 1..8),
        fill_bytes in prop::sample::select(FILLS.to_vec()),
        place: prop::sample::Index,
        bit in 0_u8..8,
    ) {
        let disk = SimDisk::new();
        let (bounds, store) = run(&disk, &[&steps[..], &[Step::Seal]].concat(), fill_bytes);
        prop_assert!(store.is_some());

        let mut damaged = disk.contents();
        let total: usize = damaged.values().map(Vec::len).sum();
        let is_near_end = total - place.index(total) <= RECORD_HEADER_BYTES.max(SEGMENT_HEADER_BYTES);
        flip(&mut damaged, place.index(total), bit);
        let disk = SimDisk::with_contents(damaged.clone());
        match Store::open(Arc::new(disk.clone()), &config()) {
            Err(OpenError::Corrupt(_)) => prop_assert_eq!(disk.contents(), damaged),
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
            // The closing mark, or the header of a segment without records: both hold nothing, and both are the end.
            Ok((store, recovery)) => {
                prop_assert!(is_near_end, "a flipped bit went unnoticed");
                prop_assert!(recovery.cut.is_some());
                check(&bounds, &store)?;
            }
        }
    }

    /// Wherever a bit flips, in a log that a crash has left at any of its operations: never is there a record that nobody
    /// wrote, nor one without those before it.
    #[test]
    fn a_flipped_bit_anywhere_makes_no_record_that_was_not_written(
        steps in proptest::collection::vec(step(), 1..8),
        fails_after in 3_u64..60,
        fill_bytes in prop::sample::select(FILLS.to_vec()),
        seed: u64,
        place: prop::sample::Index,
        bit in 0_u8..8,
    ) {
        let disk = SimDisk::new();
        disk.fail_after(fails_after);
        let (bounds, _) = run(&disk, &steps, fill_bytes);
        let mut damaged = disk.crash(seed).contents();
        let total = damaged.values().map(Vec::len).sum::<usize>();
        prop_assume!(total > 0);
        flip(&mut damaged, place.index(total), bit);
        let disk = SimDisk::with_contents(damaged.clone());
        match Store::open(Arc::new(disk.clone()), &config()) {
            Err(OpenError::Corrupt(_)) => prop_assert_eq!(disk.contents(), damaged),
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
            Ok((store, _)) => check_is_prefix(&bounds, &store)?,
        }
    }


    /// In a log that was not closed, the last batch can look as if a crash had torn it. No other can, and what is cut is
    /// reported.
    #[test]
    fn without_a_mark_damage_is_refused_up_to_the_last_batch(
        batches in proptest::collection::vec(batch(), 2..6),
        place: prop::sample::Index,
        bit in 0_u8..8,
    ) {
        // One segment, because a second one would vouch for the first.
        let config = LogConfig { segment_bytes_max: 1 << 20, ..config() };
        let disk = SimDisk::new();
        let (mut store, _) = Store::open(Arc::new(disk.clone()), &config)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        store.fill_bytes = 400;
        let mut before_last = (0, BTreeMap::new());
        for batch in &batches {
            before_last = (store.segments.tail().length, all(&store));
            store.append(batch, |_| ()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        }
        let mut damaged = disk.contents();
        let Some(mut file) = damaged.first_entry() else { return Ok(()) };
        let offset = place.index(file.get().len());
        file.get_mut()[offset] ^= 1 << bit;
        match Store::open(Arc::new(SimDisk::with_contents(damaged)), &config) {
            Err(_) => prop_assert!(offset < before_last.0, "the last batch was refused"),
            Ok((store, recovery)) => {
                prop_assert!(offset >= before_last.0, "a flipped bit went unnoticed");
                prop_assert!(recovery.cut.is_some_and(|cut| cut.offset >= before_last.0 as u64));
                let found = all(&store);
                prop_assert!(before_last.1.iter().all(|(index, payload)| found.get(index) == Some(payload)));
            }
        }
    }
}

proptest! {
    // Each tries hundreds of cuts.
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Every file, cut at every byte. What was acknowledged is there if the cut is behind it; if it is not, the log is
    /// refused and left alone, or what remains is the beginning of what was written.
    #[test]
    fn a_file_cut_anywhere_leaves_a_beginning_or_is_refused(
        steps in proptest::collection::vec(step(), 1..7),
        unacknowledged in batch(),
        fails_after in 0_u64..4,
        fill_bytes in prop::sample::select(FILLS.to_vec()),
    ) {
        let disk = SimDisk::new();
        let (bounds, store) = run(&disk, &steps, fill_bytes);
        let (Some(mut store), Some((mut model, _))) = (store, bounds.into_iter().next()) else {
            return Err(TestCaseError::fail("the disk failed"));
        };
        disk.fail_after(fails_after);
        let bounds = match model.apply(&mut store, &Step::Append(unacknowledged)) {
            Ok(()) => vec![(model.clone(), model)],
            Err(bounds) => bounds,
        };
        let ends: BTreeMap<String, usize> =
            store.segments.read().iter().map(|segment| (segment.name.clone(), segment.length)).collect();
        let whole = disk.contents();
        for (name, bytes) in &whole {
            let is_last = ends.keys().next_back() == Some(name);
            for length in 0..bytes.len() {
                let mut contents = whole.clone();
                contents.insert(name.clone(), bytes[..length].to_vec());
                let disk = SimDisk::with_contents(contents.clone());
                let is_behind = ends.get(name).is_none_or(|end| length >= *end);
                match Store::open(Arc::new(disk.clone()), &config()) {
                    Ok((store, _)) if is_last && !is_behind => check_is_prefix(&bounds, &store)?,
                    // Nothing that counts was cut off, for example the mark of a segment that others follow.
                    Ok((store, _)) => check(&bounds, &store)?,
                    Err(OpenError::Corrupt(corruption)) if !is_behind => {
                        prop_assert!(contents.contains_key(&corruption.file), "{}", corruption);
                        prop_assert_eq!(disk.contents(), contents);
                    }
                    Err(error) => return Err(TestCaseError::fail(format!("{name} cut at {length}: {error}"))),
                }
            }
        }
    }
}

/// Flips a bit at an offset in all files, one after the other.
fn flip(files: &mut BTreeMap<String, Vec<u8>>, mut offset: usize, bit: u8) {
    for contents in files.values_mut() {
        match contents.get_mut(offset) {
            Some(byte) => {
                *byte ^= 1 << bit;
                break;
            }
            None => offset -= contents.len(),
        }
    }
}

/// All records of a log were written so, and between its first and its last none is missing.
fn check_is_prefix(bounds: &[Bounds], store: &Store) -> Result<(), TestCaseError> {
    let found = all(store);
    let (first, next) = (store.segments.first_index(), store.segments.last_index() + 1);
    prop_assert_eq!(found.keys().copied().collect::<Vec<_>>(), (first..next).collect::<Vec<_>>());
    let is_within = bounds.iter().any(|(_, may_be)| {
        let is_written = |(index, payload): (&u64, &Vec<u8>)| may_be.records.get(index) == Some(payload);
        may_be.first <= first && next <= may_be.next && found.iter().all(is_written)
    });
    prop_assert!(is_within, "{first} to {next} of {bounds:?}: {found:?}");
    Ok(())
}

/// What recovery has handed out is acknowledged, though nobody was told so before the crash.
#[test]
fn damage_to_what_was_recovered_is_refused() {
    let disk = SimDisk::new();
    open(&disk).0.append(&[b"the only record"], |_| ()).expect("written");
    let recovered = disk.crash(1);
    assert_eq!(open(&recovered).1.last_index, 1);
    let mut contents = recovered.crash(1).contents();
    let mut file = contents.first_entry().expect("a segment");
    file.get_mut()[SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES] ^= 1;
    let refused = Store::open(Arc::new(SimDisk::with_contents(contents)), &config()).map(|_| ());
    assert!(matches!(refused, Err(OpenError::Corrupt(_))), "{refused:?}");
}

/// Payloads may be records of another log, or of this one. They are never taken for records.
#[test]
fn a_payload_that_looks_like_a_record_does_not_vouch_for_anything() {
    let disk = SimDisk::new();
    let (mut store, _) = open(&disk);
    let mut image = Vec::new();
    RawRecord { index: 2, vouched: 1, payload: b"" }.encode(0, &mut image);
    store.append(&[image], |_| ()).expect("written");
    let mut contents = disk.contents();
    // The header of the record is torn, its payload is not.
    let mut file = contents.first_entry().expect("a segment");
    file.get_mut()[SEGMENT_HEADER_BYTES] ^= 1;
    let (_, recovery) = open(&SimDisk::with_contents(contents));
    assert_eq!(recovery.cut.map(|cut| cut.offset), Some(SEGMENT_HEADER_BYTES as u64));
}

#[test]
fn a_missing_segment_is_a_gap_that_is_refused() {
    let disk = SimDisk::new();
    let (mut store, _) = open(&disk);
    for _ in 0..30 {
        store.append(&[[7; 40]], |_| ()).expect("written");
    }
    let whole = disk.contents();
    assert!(whole.len() >= 4, "{} segments", whole.len());
    let names: Vec<&String> = whole.keys().collect();
    for missing in &names[1..names.len() - 1] {
        let mut contents = whole.clone();
        contents.remove(*missing);
        let refused = Store::open(Arc::new(SimDisk::with_contents(contents)), &config()).map(|_| ());
        let Err(OpenError::Corrupt(Corruption { damage: Damage::Gap { .. }, .. })) = refused else {
            panic!("{missing} is missing: {refused:?}");
        };
    }
}

#[test]
fn the_end_of_a_segment_that_is_not_the_last_is_never_cut() {
    let disk = SimDisk::new();
    let (mut store, _) = open(&disk);
    for _ in 0..12 {
        store.append(&[[7; 40]], |_| ()).expect("written");
    }
    let mut contents = disk.contents();
    let name = contents.keys().next().expect("a segment").clone();
    let segment = contents.get_mut(&name).expect("a segment");
    let end = segment.iter().rposition(|byte| *byte == 7).expect("a payload");
    segment.truncate(end);
    let disk = SimDisk::with_contents(contents.clone());
    let refused = Store::open(Arc::new(disk.clone()), &config()).map(|_| ());
    let Err(OpenError::Corrupt(corruption)) = refused else { panic!("{refused:?}") };
    assert_eq!(corruption.file, name);
    assert!(corruption.to_string().contains("is damaged at byte"), "{corruption}");
    assert_eq!(disk.contents(), contents);
}

#[test]
fn records_larger_than_what_is_read_at_a_time_are_found() {
    let big = LogConfig { record_bytes_max: 300_000, segment_bytes_max: 1 << 20, ..LogConfig::default() };
    let disk = SimDisk::new();
    let (mut store, _) = Store::open(Arc::new(disk.clone()), &big).expect("opened");
    let mut payloads: Vec<Vec<u8>> =
        (0..40_u8).map(|number| vec![number; usize::from(number) * 7000]).collect();
    store.append(&payloads, |_| ()).expect("written");
    let check = |store: &Store, payloads: &[Vec<u8>], when: &str| {
        for (index, payload) in (1..).zip(payloads) {
            let found = store.segments.records(index, 1).expect("read");
            assert!(found == [Record { index, payload: payload.clone() }], "record {index}, {when}");
        }
    };
    check(&store, &payloads, "as written");
    let (mut store, _) = Store::open(Arc::new(disk.clone()), &big).expect("opened");
    check(&store, &payloads, "reopened");
    // Records of other sizes take the place of those that are removed.
    store.truncate_after(30).expect("truncated");
    payloads[30..].reverse();
    store.append(&payloads[30..], |_| ()).expect("written");
    check(&store, &payloads, "written anew");
}

fn open(disk: &SimDisk) -> (Store, Recovery) {
    Store::open(Arc::new(disk.clone()), &config()).expect("opened")
}

fn all(store: &Store) -> BTreeMap<u64, Vec<u8>> {
    let records = store.segments.records(store.segments.first_index(), usize::MAX).expect("read");
    records.into_iter().map(|record| (record.index, record.payload)).collect()
}

/// Small, so that a few records fill a segment.
fn config() -> LogConfig {
    LogConfig { record_bytes_max: 100, queue_bytes_max: 1 << 20, segment_bytes_max: 400 }
}

/// How many zeros are filled in ahead: none, some of the time, up to the end of the segment.
const FILLS: [usize; 3] = [0, 400, FILL_BYTES];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => batch().prop_map(Step::Append),
        1 => (0_u64..12).prop_map(Step::TruncateAfter),
        1 => (0_u64..20).prop_map(Step::CompactBefore),
        1 => (0_u64..40).prop_map(Step::ResetTo),
        1 => Just(Step::Seal),
    ]
}

fn batch() -> impl Strategy<Value = Vec<Vec<u8>>> {
    proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 1..8)
}
