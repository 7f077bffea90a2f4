//! Listings: one walk over the index, in the order of names, that jumps over what a delimiter collapses.

use std::ops::Bound;

use redb::ReadableTable;
use synod_core::objects::{EntryName, Space};
use synod_core::slots::{HeadRank, SlotId};

use super::Shared;
use super::error::DiskError;
use super::values::IndexRow;
use crate::objects::contract::{ListPosition, ListedEntry};

/// What to list of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskListQuery {
    /// Which kind of entries.
    pub(crate) space: Space,
    /// Of which bucket; empty for what is in none.
    pub(crate) bucket: String,
    /// Only keys that begin so.
    pub(crate) prefix: String,
    /// Keys that have this after the prefix are listed as one, up to and with it. Empty for none.
    pub(crate) delimiter: String,
    /// Where to go on.
    pub(crate) after: Option<ListPosition>,
    /// How many items.
    pub(crate) limit: usize,
}

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskListPage {
    /// In the order of their bytes.
    pub(crate) items: Vec<DiskListItem>,
    /// What the items follow from without being among them: entries that are deleted, and the first that begins with each
    /// prefix. Each counts as much as an item does when a page is made sure of.
    pub(crate) hidden: Vec<(EntryName, HeadRank)>,
    /// Where to go on, when there is more. A page may end before it is full, when much had to be passed over.
    pub(crate) next: Option<ListPosition>,
}

/// One item of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskListItem {
    /// An entry.
    Entry {
        /// What is listed of it.
        entry: ListedEntry,
        /// Its slot.
        slot: SlotId,
        /// How much its head counts.
        rank: HeadRank,
    },
    /// What several keys have in common, up to and with the delimiter.
    Prefix(String),
}

/// Walks the index.
pub(super) fn list(
    index: &impl ReadableTable<&'static [u8], &'static [u8]>,
    shared: &Shared,
    query: &DiskListQuery,
    wanted: &dyn Fn(SlotId) -> bool,
) -> Result<DiskListPage, DiskError> {
    let failed = shared.failed_storage();
    let name_bytes = |key: &str| EntryName::prefix(query.space, &query.bucket, key);
    let base = name_bytes(&query.prefix);
    let mut start = match &query.after {
        None => Bound::Included(base.clone()),
        Some(ListPosition::Key(key)) => Bound::Excluded(name_bytes(key)),
        Some(ListPosition::Prefix(prefix)) => Bound::Included(behind(name_bytes(prefix))),
    };
    if let Bound::Included(from) | Bound::Excluded(from) = &start
        && *from < base
    {
        start = Bound::Included(base.clone());
    }
    let mut page = DiskListPage::default();
    let mut end = None;
    let mut visited = 0;
    'seek: loop {
        let bounds = (start.as_ref().map(Vec::as_slice), Bound::Unbounded);
        for row in index.range::<&[u8]>(bounds).map_err(&failed)? {
            let (key, value) = row.map_err(&failed)?;
            if !key.value().starts_with(&base) {
                return Ok(page);
            }
            let name = EntryName::from_bytes(key.value()).map_err(|error| shared.damaged(error))?;
            if visited == shared.options.list_scan_max {
                page.next = end;
                return Ok(page);
            }
            visited += 1;
            let slot = name.slot(shared.options.total_slots);
            let Some(row) = IndexRow::from_bytes(key.value(), value.value()) else {
                return Err(shared.damaged_entry(slot, &name));
            };
            if row.is_deleted || !wanted(slot) {
                end = Some(ListPosition::Key(name.key().into()));
                if wanted(slot) {
                    page.hidden.push((name, row.rank));
                }
                continue;
            }
            if page.items.len() >= query.limit {
                // Something more is there. What was passed over since the last item need not be passed over again.
                page.next =
                    end.or_else(|| query.after.clone()).or_else(|| Some(ListPosition::Key(String::new())));
                return Ok(page);
            }
            match common_prefix(name.key(), &query.prefix, &query.delimiter) {
                Some(common) => {
                    start = Bound::Included(behind(name_bytes(common)));
                    end = Some(ListPosition::Prefix(common.into()));
                    page.items.push(DiskListItem::Prefix(common.into()));
                    page.hidden.push((name, row.rank));
                    continue 'seek;
                }
                None => {
                    end = Some(ListPosition::Key(name.key().into()));
                    let entry = ListedEntry {
                        key: name.key().into(),
                        tag: row.rank.tag,
                        etag: row.etag,
                        size: row.size,
                        modified_ms: row.modified_ms,
                        brief: row.brief,
                    };
                    page.items.push(DiskListItem::Entry { entry, slot, rank: row.rank });
                }
            }
        }
        return Ok(page);
    }
}

/// What a key is listed as, if not as itself.
fn common_prefix<'a>(key: &'a str, prefix: &str, delimiter: &str) -> Option<&'a str> {
    if delimiter.is_empty() {
        return None;
    }
    let at = key.get(prefix.len()..)?.find(delimiter)?;
    key.get(..prefix.len() + at + delimiter.len())
}

/// The first bytes behind all that begin with these. The last byte of a name or of UTF-8 text is never 255.
fn behind(mut prefix: Vec<u8>) -> Vec<u8> {
    if let Some(last) = prefix.last_mut() {
        *last = last.saturating_add(1);
    }
    prefix
}
