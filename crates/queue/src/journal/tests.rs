//! The journal against a naive one, with crashes in between.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use synod_log::LogConfig;
use synod_log::sim_disk::SimDisk;

use super::{Entry, EntryId, Journal, JournalConfig, JournalError, Remembered, Vote};

fn small() -> JournalConfig {
    let log = LogConfig { record_bytes_max: 256, queue_bytes_max: 1 << 16, segment_bytes_max: 1024 };
    JournalConfig { log, cache_bytes_max: 200 }
}

fn entry(term: u64, index: u64, body: &[u8]) -> Entry {
    Entry { id: EntryId { term, index }, kind: 1, body: Bytes::copy_from_slice(body) }
}

fn open(disk: &SimDisk) -> Journal {
    Journal::open(small(), disk.clone()).expect("the journal opens").0
}

/// One group, as plainly as it can be.
#[derive(Clone, Debug, Default, PartialEq)]
struct Plain {
    remembered: Remembered,
    entries: Vec<Entry>,
    noted: Option<Option<EntryId>>,
}

impl Plain {
    fn last(&self) -> Option<EntryId> {
        self.entries.last().map(|entry| entry.id).or(self.remembered.purged)
    }

    /// What is written down by the next record that is written.
    fn write_noted(&mut self) -> bool {
        let noted = self.noted.take();
        if let Some(committed) = noted {
            self.remembered.committed = committed;
        }
        noted.is_some()
    }

    fn seen(&self) -> (Remembered, Vec<Entry>) {
        (Remembered { last: self.last(), ..self.remembered }, self.entries.clone())
    }
}

type Plains = BTreeMap<u16, Plain>;

#[derive(Clone, Debug)]
enum Step {
    Append { group: u16, sizes: Vec<usize>, is_new_term: bool },
    Truncate { group: u16, count: usize },
    Purge { group: u16, count: usize, is_ahead: bool },
    Vote { group: u16 },
    Note { group: u16 },
    WriteNoted { group: u16 },
    Wait,
    Compact,
    Reopen,
    Crash { seed: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let group = 0..3_u16;
    prop_oneof![
        6 => (group.clone(), prop::collection::vec(0..120_usize, 0..6), any::<bool>())
            .prop_map(|(group, sizes, is_new_term)| Step::Append { group, sizes, is_new_term }),
        1 => (group.clone(), 0..4_usize).prop_map(|(group, count)| Step::Truncate { group, count }),
        2 => (group.clone(), 0..12_usize, prop::bool::weighted(0.1))
            .prop_map(|(group, count, is_ahead)| Step::Purge { group, count, is_ahead }),
        1 => group.clone().prop_map(|group| Step::Vote { group }),
        2 => group.clone().prop_map(|group| Step::Note { group }),
        1 => group.prop_map(|group| Step::WriteNoted { group }),
        1 => Just(Step::Wait),
        2 => Just(Step::Compact),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
    ]
}

/// The journal, the naive one, and what the naive one was like after each record.
struct Pair {
    disk: SimDisk,
    journal: Journal,
    plains: Plains,
    history: Vec<Plains>,
    /// The state in the history that is durable at least.
    durable: usize,
    term: u64,
}

impl Pair {
    fn new() -> Self {
        let disk = SimDisk::new();
        let journal = open(&disk);
        Self { disk, journal, plains: Plains::new(), history: vec![Plains::new()], durable: 0, term: 1 }
    }

    fn plain(&mut self, group: u16) -> &mut Plain {
        self.plains.entry(group).or_default()
    }

    /// A record was written: a crash may keep it or not.
    fn wrote(&mut self) {
        self.history.push(self.plains.clone());
    }

    fn write_noted(&mut self, group: u16) {
        if self.plain(group).write_noted() {
            self.wrote();
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Append { group, sizes, is_new_term } => {
                self.term += u64::from(*is_new_term);
                let next = self.plain(*group).last().map_or(0, |last| last.index + 1);
                let entries = (next..).zip(sizes);
                let entries: Vec<_> = entries
                    .map(|(index, size)| entry(self.term, index, &vec![(index % 251) as u8; *size]))
                    .collect();
                drop(self.journal.append(*group, &entries).expect("there is room"));
                self.write_noted(*group);
                for entry in entries {
                    self.plain(*group).entries.push(entry);
                    self.wrote();
                }
            }
            Step::Truncate { group, count } => {
                let plain = self.plain(*group);
                let keep = plain.entries.len().saturating_sub(*count);
                let last = plain.entries[..keep].last().map(|entry| entry.id).or(plain.remembered.purged);
                drop(self.journal.truncate_after(*group, last).expect("there is room"));
                self.write_noted(*group);
                self.plain(*group).entries.truncate(keep);
                self.wrote();
            }
            Step::Purge { group, count, is_ahead } => {
                let (term, plain) = (self.term, self.plain(*group));
                let upto = match is_ahead {
                    true => Some(EntryId { term, index: plain.last().map_or(0, |last| last.index) + 5 }),
                    false => plain.entries.get(*count).map(|entry| entry.id),
                };
                let Some(upto) = upto else { return };
                drop(self.journal.purge(*group, upto).expect("there is room"));
                self.write_noted(*group);
                let plain = self.plain(*group);
                plain.entries.retain(|entry| entry.id.index > upto.index);
                plain.remembered.purged = Some(upto);
                self.wrote();
            }
            Step::Vote { group } => {
                self.term += 1;
                let vote = Vote { term: self.term, replica: 7, is_committed: self.term.is_multiple_of(2) };
                let ticket = self.journal.save_vote(*group, vote).expect("there is room");
                self.write_noted(*group);
                self.plain(*group).remembered.vote = Some(vote);
                self.wrote();
                ticket.wait().expect("the disk works");
                self.durable = self.history.len() - 1;
            }
            Step::Note { group } => {
                let last = self.plain(*group).last();
                self.journal.note_committed(*group, last);
                let plain = self.plain(*group);
                if plain.noted.unwrap_or(plain.remembered.committed) != last {
                    plain.noted = Some(last);
                }
            }
            Step::WriteNoted { group } => {
                self.journal.write_noted(*group).expect("there is room");
                self.write_noted(*group);
            }
            Step::Wait => {
                self.journal.durable().expect("it runs").wait().expect("the disk works");
                self.durable = self.history.len() - 1;
            }
            Step::Compact => {
                compact(&self.journal);
                self.durable = self.history.len() - 1;
            }
            Step::Reopen => {
                let journal = std::mem::replace(&mut self.journal, open(&SimDisk::new()));
                journal.close().expect("the disk works");
                for group in 0..3 {
                    self.plain(group).write_noted();
                }
                self.wrote();
                self.journal = open(&self.disk);
                self.durable = self.history.len() - 1;
            }
            Step::Crash { seed } => {
                self.disk = self.disk.crash(*seed);
                self.journal = open(&self.disk);
                let found: Vec<_> = (0..3).map(|group| self.seen(group)).collect();
                let is_it = |plains: &Plains| {
                    let plain = |group| plains.get(&group).map(Plain::seen).unwrap_or_default();
                    (0..3).all(|group| plain(group) == found[usize::from(group)])
                };
                let after: Vec<_> = self.history[self.durable..].to_vec();
                let survivor = after.into_iter().find(is_it);
                let mut survivor = survivor.expect("one of the states since what is durable has survived");
                survivor.values_mut().for_each(|plain| plain.noted = None);
                self.plains = survivor.clone();
                self.history.push(survivor);
                self.durable = self.history.len() - 1;
            }
        }
    }

    fn seen(&self, group: u16) -> (Remembered, Vec<Entry>) {
        let entries = self.journal.read(group, 0, u64::MAX, usize::MAX).expect("they can be read");
        (self.journal.remembered(group), entries)
    }

    fn check(&mut self) {
        // What is not durable yet is in memory, what is not in memory is durable: all can be read at any time.
        for group in 0..3 {
            let found = self.seen(group);
            let plain = self.plain(group);
            let mut expected = plain.seen();
            expected.0.committed = plain.noted.unwrap_or(expected.0.committed);
            assert_eq!(found, expected, "group {group}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn it_is_as_a_naive_one_and_survives_crashes(steps in prop::collection::vec(step(), 1..60)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.run(step);
            pair.check();
        }
    }
}

#[test]
fn segments_that_no_group_needs_are_given_back_and_votes_stay() {
    let disk = SimDisk::new();
    let journal = open(&disk);
    let vote = Vote { term: 3, replica: 9, is_committed: true };
    drop(journal.save_vote(0, vote).expect("there is room"));
    drop(journal.append(1, &[entry(1, 0, b"idle")]).expect("there is room"));
    for index in 0..100 {
        drop(journal.append(0, &[entry(1, index, &[1; 100])]).expect("there is room"));
    }
    drop(journal.purge(0, EntryId { term: 1, index: 98 }).expect("there is room"));
    // The idle group holds on to the very beginning.
    compact(&journal);
    assert_eq!(journal.first_record(), 1);
    assert!(journal.bytes_held(1) > 100 * 100);
    drop(journal.purge(1, EntryId { term: 1, index: 0 }).expect("there is room"));
    compact(&journal);
    assert!(journal.first_record() > 90);

    journal.close().expect("the disk works");
    let journal = open(&disk);
    let last = Some(EntryId { term: 1, index: 99 });
    let purged = Some(EntryId { term: 1, index: 98 });
    assert_eq!(journal.remembered(0), Remembered { vote: Some(vote), committed: None, purged, last });
    assert_eq!(journal.remembered(1).purged, Some(EntryId { term: 1, index: 0 }));
}

#[test]
fn reading_is_bounded_by_bytes_but_gives_at_least_one() {
    let journal = open(&SimDisk::new());
    let entries: Vec<_> = (0..10).map(|index| entry(1, index, &[0; 79])).collect();
    drop(journal.append(0, &entries).expect("there is room"));
    let indices = |bytes| {
        let entries = journal.read(0, 2, 9, bytes).expect("they can be read");
        entries.into_iter().map(|entry| entry.id.index).collect::<Vec<_>>()
    };
    assert_eq!(indices(1), [2]);
    assert_eq!(indices(300), [2, 3, 4]);
    assert_eq!(indices(usize::MAX), [2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(journal.bytes_after(0, Some(7)), 200);
    assert_eq!(journal.bytes_after(0, None), 1000);
    assert_eq!(journal.index_behind(0, 9, 250), Some(6));
    assert_eq!(journal.index_behind(0, 9, 1000), None);
}

#[test]
fn what_is_not_durable_yet_is_kept_in_memory_however_much_it_is() {
    let disk = SimDisk::new();
    let journal = open(&disk);
    disk.hold_syncs(true);
    let entries: Vec<_> = (0..20).map(|index| entry(1, index, &[7; 100])).collect();
    let ticket = journal.append(0, &entries).expect("there is room");
    let cached = journal.read_cached(0, 0, 20, usize::MAX);
    // Released before anything can fail: the journal waits for its disk when it ends.
    disk.hold_syncs(false);
    assert_eq!(cached, Some(entries.clone()));
    ticket.wait().expect("the disk works");
    drop(journal.append(0, &[entry(1, 20, b"")]).expect("there is room"));
    assert_eq!(journal.read_cached(0, 0, 20, usize::MAX), None);
    assert_eq!(journal.read(0, 0, 20, usize::MAX).expect("they are on the disk"), entries);
}

#[test]
fn entries_that_do_not_follow_are_refused_and_change_nothing() {
    let journal = open(&SimDisk::new());
    drop(journal.append(0, &[entry(1, 0, b"a")]).expect("there is room"));
    for wrong in
        [vec![entry(1, 0, b"b")], vec![entry(1, 2, b"b")], vec![entry(1, 1, b"b"), entry(1, 3, b"c")]]
    {
        assert!(matches!(journal.append(0, &wrong), Err(JournalError::Group { group: 0, .. })));
    }
    let too_large = vec![entry(1, 1, b"b"), entry(1, 2, &[0; 256])];
    assert!(journal.append(0, &too_large).is_err());
    assert_eq!(journal.remembered(0).last, Some(EntryId { term: 1, index: 0 }));
}

#[test]
fn damage_is_named_with_its_file_and_place() {
    let disk = SimDisk::new();
    let journal = open(&disk);
    for index in 0..30 {
        drop(journal.append(0, &[entry(1, index, &[5; 50])]).expect("there is room"));
    }
    journal.close().expect("the disk works");
    let mut contents = disk.contents();
    let (name, bytes) = contents.iter_mut().next().expect("there is a segment");
    bytes[200] ^= 1;
    let name = name.clone();
    let error = Journal::open(small(), SimDisk::with_contents(contents)).expect_err("it is damaged");
    let text = error.to_string();
    assert!(text.contains(&name) && text.contains("is damaged at byte"), "{text}");
}

#[test]
fn a_journal_without_its_beginning_is_refused() {
    let disk = SimDisk::new();
    let journal = open(&disk);
    for index in 0..30 {
        drop(journal.append(0, &[entry(1, index, &[5; 50])]).expect("there is room"));
    }
    journal.close().expect("the disk works");
    let mut contents = disk.contents();
    contents.pop_first();
    let error = Journal::open(small(), SimDisk::with_contents(contents)).expect_err("entries are missing");
    assert!(matches!(error, JournalError::Group { group: 0, .. }), "{error}");
}

fn compact(journal: &Journal) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("there is a runtime");
    runtime.block_on(journal.compact()).expect("the disk works");
}
