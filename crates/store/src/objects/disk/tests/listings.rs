//! Listings and summaries against a model that is too simple to be wrong.

use std::collections::BTreeMap;

use proptest::prelude::*;
use synod_core::objects::{EntryHead, EntryName, ObjectMessage, SlotSummary, Space};
use synod_core::slots::{SlotEpoch, SlotId};

use super::samples::{
    Bench, SLOTS, all_slots, in_parts, inline, named, object, slot, store, tell, tombstone, write_part,
};
use crate::objects::content::{Body, Content};
use crate::objects::contract::ListPosition;
use crate::objects::disk::{Disk, DiskListItem, DiskListQuery, DiskOptions};

#[derive(Clone, Debug)]
struct Question {
    prefix: String,
    delimiter: &'static str,
    after: Option<ListPosition>,
    limit: usize,
    slots: u8,
}

fn keys() -> impl Strategy<Value = String> {
    // Few letters, so that prefixes are shared; some of more than one byte, and one before the delimiter.
    let letter = prop::sample::select(vec!["a", "b", "/", "//", "-", "\u{e9}", "\u{10ffff}", "\u{1}"]);
    prop::collection::vec(letter, 1..6).prop_map(|letters| letters.concat())
}

fn questions() -> impl Strategy<Value = Question> {
    let position = prop_oneof![
        keys().prop_map(|key| Some(ListPosition::Key(key))),
        keys().prop_map(|prefix| Some(ListPosition::Prefix(prefix))),
        Just(None),
    ];
    let prefix = prop_oneof![Just(String::new()), keys()];
    let delimiter = prop::sample::select(vec!["", "/", "//", "\u{e9}"]);
    (prefix, delimiter, position, 0_usize..6, any::<u8>()).prop_map(
        |(prefix, delimiter, after, limit, slots)| Question { prefix, delimiter, after, limit, slots },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Pages put together are what the model says, wherever they end.
    #[test]
    fn listings_are_those_of_the_model(
        writes in prop::collection::vec((keys(), any::<bool>()), 1..60),
        questions in prop::collection::vec(questions(), 20),
        list_scan_max in prop::sample::select(vec![1_usize, 3, 1000]),
    ) {
        let bench = Bench::new();
        let options = DiskOptions { list_scan_max, ..bench.options.clone() };
        let disk = Disk::open(bench.dir.path(), &options).unwrap();
        disk.set_learned(&all_slots()).unwrap();
        let mut model = BTreeMap::new();
        for (sequence, (key, is_deleted)) in (1..).zip(writes) {
            let head = if is_deleted { tombstone(sequence, 17) } else { inline(sequence, b"x") };
            adopt(&disk, &object(&key), &head);
            model.insert(key, head);
        }
        // Beside them, what no listing of these objects shows.
        adopt(&disk, &named(Space::Upload, "a\u{0}1"), &inline(1, b"x"));
        adopt(&disk, &EntryName::new(Space::Object, "photos-2", "a").unwrap(), &inline(1, b"x"));
        adopt(&disk, &EntryName::new(Space::Object, "photo", "a").unwrap(), &inline(1, b"x"));
        for question in questions {
            prop_assert_eq!(ask(&disk, &question), expect(&model, &question), "{:?}", question);
        }
    }

    /// What is kept twice agrees, and what is kept in memory is what a start would find.
    #[test]
    fn index_heads_and_memory_agree(
        writes in prop::collection::vec((0_usize..12, 0_u8..4, 0_u64..6), 1..60),
    ) {
        let bench = Bench::new();
        let disk = bench.learned();
        let names: Vec<EntryName> = (0..12).map(|number| object(&format!("{number}"))).collect();
        let parts: Vec<_> = (0..3).map(|number| write_part(&disk, &[number; 10])).collect();
        let mut model: BTreeMap<EntryName, EntryHead> = BTreeMap::new();
        for (which, kind, sequence) in writes {
            let name = &names[which];
            let stored = model.get(name);
            if kind == 3 {
                let entries = stored.map(|head| (name.clone(), head.tag)).into_iter().collect();
                tell(&disk, ObjectMessage::Forget { slot: slot(name), epoch: SlotEpoch::new(1), entries }).unwrap();
                if stored.is_some_and(|head| head.is_deleted) {
                    model.remove(name);
                }
                continue;
            }
            let head = match kind {
                0 => inline(sequence, b"x"),
                1 => in_parts(sequence, &parts[which % 3..]),
                _ => tombstone(sequence, sequence),
            };
            store(&disk, name, &head);
            if stored.is_none_or(|stored| stored.rank() < head.rank()) {
                model.insert(name.clone(), head);
            }
        }
        check_against(&disk, &model, &names)?;
        drop(disk);
        check_against(&bench.open(), &model, &names)?;
    }
}

fn check_against(
    disk: &Disk,
    model: &BTreeMap<EntryName, EntryHead>,
    names: &[EntryName],
) -> Result<(), TestCaseError> {
    let (mut tombstones, mut expected_tombstones) = (Vec::new(), Vec::new());
    for here in all_slots() {
        let mut summary = SlotSummary::default();
        let mut ranks = Vec::new();
        for (name, head) in model.iter().filter(|(name, _)| slot(name) == here) {
            prop_assert_eq!(disk.head(here, name).unwrap(), Some(head.clone()));
            summary.add(name, head.rank());
            ranks.push((name.clone(), head.rank()));
            expected_tombstones.extend(head.is_deleted.then(|| (name.clone(), head.tag)));
        }
        prop_assert_eq!(disk.ranks(here, None, None, 100).unwrap(), ranks);
        prop_assert_eq!(disk.summary(here), summary);
        tombstones.extend(disk.old_tombstones(here, u64::MAX, 100).unwrap());
    }
    tombstones.sort();
    expected_tombstones.sort();
    let usage = disk.usage().unwrap();
    prop_assert_eq!(usage.tombstones, expected_tombstones.len() as u64);
    prop_assert_eq!(tombstones, expected_tombstones);
    prop_assert_eq!(usage.entries + usage.tombstones, model.len() as u64);
    // Entries with parts name those from their own number on.
    let has_parts =
        |head: &EntryHead| matches!(Content::from_bytes(head.content.clone()).unwrap().body, Body::Parts(_));
    let with_parts = model.iter().filter(|(_, head)| has_parts(head)).map(|(name, _)| name);
    let first =
        with_parts.filter_map(|name| names.iter().position(|other| other == name)).map(|at| at % 3).min();
    prop_assert_eq!(usage.parts, first.map_or(0, |first| 3 - first as u64));
    let query = DiskListQuery {
        space: Space::Object,
        bucket: "photos".into(),
        prefix: String::new(),
        delimiter: String::new(),
        after: None,
        limit: 100,
    };
    let page = disk.list(&query, &|_| true).unwrap();
    let hidden = model.iter().filter(|(_, head)| head.is_deleted);
    prop_assert_eq!(page.hidden, hidden.map(|(name, head)| (name.clone(), head.rank())).collect::<Vec<_>>());
    let listed = page.items.into_iter().map(|item| match item {
        DiskListItem::Entry { entry, rank, .. } => (object(&entry.key), rank, entry.etag),
        DiskListItem::Prefix(prefix) => panic!("{prefix}"),
    });
    let live = model.iter().filter(|(_, head)| !head.is_deleted);
    let live: Vec<_> = live.map(|(name, head)| (name.clone(), head.rank(), head.etag.clone())).collect();
    prop_assert_eq!(listed.collect::<Vec<_>>(), live);
    Ok(())
}

#[test]
fn ranks_are_told_in_stretches() {
    let bench = Bench::new();
    let disk = bench.learned();
    let mut names: Vec<EntryName> = (0..100).map(|number| object(&format!("{number}"))).collect();
    let here = slot(&names[0]);
    names.retain(|name| slot(name) == here);
    names.sort();
    for name in &names {
        adopt(&disk, name, &inline(1, b"x"));
    }
    let told = |after, upto, limit| -> Vec<EntryName> {
        disk.ranks(here, after, upto, limit).unwrap().into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(told(None, None, 1000), names);
    assert_eq!(told(Some(&names[1]), None, 2), names[2..4]);
    assert_eq!(told(Some(&names[1]), Some(&names[4]), 1000), names[2..=4]);
    assert_eq!(told(names.last(), None, 1000), []);
    assert_eq!(disk.ranks(SlotId::new(SLOTS - 1 - here.get()), None, None, 10).unwrap(), []);
}

fn adopt(disk: &Disk, name: &EntryName, head: &EntryHead) {
    let heads = vec![(name.clone(), head.clone())];
    tell(disk, ObjectMessage::Adopt { slot: slot(name), round: 1, heads, learned: None }).unwrap();
}

/// An item of the model: a key, or a common prefix.
type Item = Result<String, String>;

/// All items from the position on, page by page.
fn ask(disk: &Disk, question: &Question) -> Vec<Item> {
    let mut items = Vec::new();
    let mut after = question.after.clone();
    loop {
        let query = DiskListQuery {
            space: Space::Object,
            bucket: "photos".into(),
            prefix: question.prefix.clone(),
            delimiter: question.delimiter.into(),
            after: after.clone(),
            limit: question.limit.max(1),
        };
        let page = disk.list(&query, &|slot| question.slots & (1 << slot.get()) != 0).unwrap();
        assert!(page.items.len() <= query.limit);
        items.extend(page.items.into_iter().map(|item| match item {
            DiskListItem::Entry { entry, slot, rank } => {
                assert_eq!((rank.tag, slot), (entry.tag, object(&entry.key).slot(SLOTS)));
                Ok(entry.key)
            }
            DiskListItem::Prefix(prefix) => {
                let witness = page.hidden.iter().find(|(name, _)| name.key().starts_with(&prefix));
                assert!(witness.is_some(), "nothing vouches for {prefix}");
                Err(prefix)
            }
        }));
        match page.next {
            None => return items,
            Some(next) => {
                assert_ne!(Some(&next), after.as_ref(), "a page goes on where it began");
                after = Some(next);
            }
        }
    }
}

fn expect(model: &BTreeMap<String, EntryHead>, question: &Question) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for (key, head) in model {
        let is_wanted = question.slots & (1 << object(key).slot(SLOTS).get()) != 0;
        let is_behind = match &question.after {
            None => true,
            Some(ListPosition::Key(after)) => key > after,
            Some(ListPosition::Prefix(prefix)) => key > prefix && !key.starts_with(prefix.as_str()),
        };
        if head.is_deleted || !is_wanted || !is_behind || !key.starts_with(&question.prefix) {
            continue;
        }
        let rest = &key[question.prefix.len()..];
        let at = (!question.delimiter.is_empty()).then(|| rest.find(question.delimiter)).flatten();
        let item = match at {
            Some(at) => Err(key[..question.prefix.len() + at + question.delimiter.len()].to_owned()),
            None => Ok(key.clone()),
        };
        if items.last() != Some(&item) {
            items.push(item);
        }
    }
    items
}
