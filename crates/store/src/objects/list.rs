//! Listings: one page from every primary, merged.
//!
//! Each node lists what it is the primary of, in order, from its own disk, and makes sure that all of it may be shown. The
//! node that was asked merges the pages, and checks that they are about every slot: one whose primary has just changed is in
//! none of them, or in two, and then it asks again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use synod_core::NodeId;
use synod_core::objects::{EntryName, Space};
use synod_core::slots::SlotId;
use synod_wire::objects as wire;
use tokio::time::Instant;

use super::codec::{malformed, read_tag, write_tag};
use super::contract::{LIST_MAX, ListItem, ListPage, ListPosition, ListQuery, ListedEntry, StoreError};
use super::disk::{Disk, DiskListItem, DiskListPage, DiskListQuery};
use super::plane::Plane;
use crate::codec::{CodecError, read_slot};

/// One page of entries of the whole cluster.
pub(crate) async fn list(
    plane: &Arc<Plane>,
    query: &ListQuery,
    patience: Duration,
) -> Result<ListPage, StoreError> {
    if query.limit == 0 {
        return Ok(ListPage::default());
    }
    let deadline = Instant::now() + patience;
    let asked = write_query(plane, query);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let reason = match ask_all(plane, &asked, left).await {
            Ok(pages) => return merge(pages, query),
            Err(reason) => reason,
        };
        if Instant::now() + RETRY_PAUSE >= deadline {
            return Err(StoreError::Unavailable { reason });
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// What every primary lists, once it is about every slot.
async fn ask_all(
    plane: &Arc<Plane>,
    query: &wire::List,
    patience: Duration,
) -> Result<Vec<wire::Page>, String> {
    let slots = match query.slot {
        Some(slot) => BTreeSet::from([slot]),
        None => plane.bootstrap().slots().map(|slot| slot.get().into()).collect(),
    };
    let primaries: BTreeSet<NodeId> = match query.slot {
        Some(slot) => {
            read_slot(slot).ok().and_then(|slot| plane.registry().primary(slot)).into_iter().collect()
        }
        None => plane.registry().slots().into_iter().map(|record| record.primary).collect(),
    };
    let mut calls = tokio::task::JoinSet::new();
    for node in primaries {
        let (plane, query) = (Arc::clone(plane), query.clone());
        calls.spawn(async move {
            if node == *plane.own() {
                return list_here(&plane, query, patience).await;
            }
            list_there(&plane, &node, query, patience).await
        });
    }
    let mut pages = Vec::new();
    let mut covered = BTreeSet::new();
    while let Some(page) = calls.join_next().await {
        let page = page.map_err(|error| error.to_string())??;
        for slot in &page.slots {
            if !covered.insert(*slot) {
                return Err(format!("two nodes list slot {slot}"));
            }
        }
        pages.push(page);
    }
    match slots.iter().find(|slot| !covered.contains(slot)) {
        Some(slot) => Err(format!("nobody serves slot {slot}")),
        None => Ok(pages),
    }
}

async fn list_there(
    plane: &Plane,
    node: &NodeId,
    query: wire::List,
    patience: Duration,
) -> Result<wire::Page, String> {
    let asked = plane.ask(node, wire::request::Operation::List(query), patience);
    let (id, answer) = asked.ok_or_else(|| format!("too much waits for {node}"))?;
    match tokio::time::timeout(patience, answer).await {
        Ok(Ok(wire::Reply { outcome: Some(wire::reply::Outcome::Page(page)), .. })) => Ok(page),
        Ok(Ok(wire::Reply { outcome: Some(wire::reply::Outcome::Failure(failure)), .. })) => {
            Err(failure.text)
        }
        Ok(Ok(_)) => Err(format!("{node} answers wrongly")),
        Ok(Err(_)) => Err(format!("{node} is out of reach")),
        Err(_) => {
            plane.give_up(id);
            Err(format!("{node} does not answer"))
        }
    }
}

/// One page of what this node is the primary of.
pub(crate) async fn list_here(
    plane: &Arc<Plane>,
    query: wire::List,
    patience: Duration,
) -> Result<wire::Page, String> {
    let only = query.slot.map(read_slot).transpose().map_err(|error| error.to_string())?;
    let query = read_query(query).map_err(|error| error.to_string())?;
    let served: Vec<_> =
        plane.serving().into_iter().filter(|(slot, _)| only.is_none_or(|only| only == *slot)).collect();
    let mut wanted = vec![false; usize::from(plane.bootstrap().replication.total_slots)];
    served.iter().for_each(|(slot, _)| wanted[slot.index()] = true);
    let wanted: Arc<[bool]> = wanted.into();
    let deadline = Instant::now() + patience;
    let mut items = Vec::new();
    let mut is_truncated = false;
    for disk in plane.disks() {
        let mut query = query.clone();
        // A page may end early when much had to be passed over; then it goes on.
        loop {
            let page = read_page(disk, &query, &wanted).await?;
            let entries = page.items.iter().filter_map(|item| match item {
                DiskListItem::Entry { entry, rank, .. } => {
                    Some((EntryName::new(query.space, &query.bucket, &entry.key).ok()?, *rank))
                }
                DiskListItem::Prefix(_) => None,
            });
            let entries = entries.chain(page.hidden).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            plane.settle(entries, served.clone(), left).await.map_err(|error| error.to_string())?;
            query.limit -= page.items.len().min(query.limit);
            items.extend(page.items);
            match page.next {
                None => break,
                Some(_) if query.limit == 0 => {
                    is_truncated = true;
                    break;
                }
                next => query.after = next,
            }
        }
    }
    if plane.disks().len() > 1 {
        items.sort_by(|one, other| key_of(one).cmp(key_of(other)));
        items.dedup_by(|one, other| {
            matches!((one, other), (DiskListItem::Prefix(one), DiskListItem::Prefix(other)) if one == other)
        });
        is_truncated |= items.len() > query.limit;
        items.truncate(query.limit);
    }
    let (slots, epochs) = served.iter().map(|(slot, epoch)| (u32::from(slot.get()), epoch.get())).unzip();
    Ok(wire::Page { items: items.into_iter().map(write_item).collect(), is_truncated, slots, epochs })
}

async fn read_page(disk: &Disk, query: &DiskListQuery, wanted: &Arc<[bool]>) -> Result<DiskListPage, String> {
    let (disk, query, wanted) = (disk.clone(), query.clone(), Arc::clone(wanted));
    let read = tokio::task::spawn_blocking(move || {
        disk.list(&query, &|slot: SlotId| wanted.get(slot.index()).copied().unwrap_or(false))
    });
    read.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

fn key_of(item: &DiskListItem) -> &str {
    match item {
        DiskListItem::Entry { entry, .. } => &entry.key,
        DiskListItem::Prefix(prefix) => prefix,
    }
}

/// Merges pages that are each in order. No page that was cut ends before the merged one does: it has as many items itself.
fn merge(pages: Vec<wire::Page>, query: &ListQuery) -> Result<ListPage, StoreError> {
    let mut is_truncated = pages.iter().any(|page| page.is_truncated);
    let mut items: Vec<_> = pages.into_iter().flat_map(|page| page.items).collect();
    items.sort_by(|one, other| one.key.cmp(&other.key));
    items.dedup_by(|one, other| one.is_prefix && other.is_prefix && one.key == other.key);
    is_truncated |= items.len() > query.limit;
    items.truncate(query.limit);
    let items = items.into_iter().map(read_item).collect::<Result<_, _>>();
    let items = items.map_err(|error: CodecError| StoreError::Damaged { reason: error.to_string() })?;
    Ok(ListPage { items, is_truncated })
}

fn write_query(plane: &Plane, query: &ListQuery) -> wire::List {
    let beside = query.beside.as_ref().and_then(|key| EntryName::new(query.space, &query.bucket, key).ok());
    let (after, after_prefix) = match query.after.clone() {
        None => (None, None),
        Some(ListPosition::Key(key)) => (Some(key), None),
        Some(ListPosition::Prefix(prefix)) => (None, Some(prefix)),
    };
    wire::List {
        space: query.space.byte().into(),
        bucket: query.bucket.clone(),
        prefix: query.prefix.clone(),
        delimiter: query.delimiter.clone(),
        after,
        after_prefix,
        limit: u32::try_from(query.limit.min(LIST_MAX)).unwrap_or(u32::MAX),
        slot: beside.map(|name| plane.slot_of(&name).get().into()),
    }
}

fn read_query(query: wire::List) -> Result<DiskListQuery, CodecError> {
    let space = u8::try_from(query.space).ok().and_then(Space::from_byte);
    let after = match (query.after, query.after_prefix) {
        (Some(key), _) => Some(ListPosition::Key(key)),
        (None, prefix) => prefix.map(ListPosition::Prefix),
    };
    Ok(DiskListQuery {
        space: space.ok_or_else(|| malformed("space", format!("there is no {}", query.space)))?,
        bucket: query.bucket,
        prefix: query.prefix,
        delimiter: query.delimiter,
        after,
        limit: (query.limit as usize).min(LIST_MAX),
    })
}

fn write_item(item: DiskListItem) -> wire::Listed {
    match item {
        DiskListItem::Prefix(key) => wire::Listed { key, is_prefix: true, ..wire::Listed::default() },
        DiskListItem::Entry { entry, .. } => wire::Listed {
            key: entry.key,
            is_prefix: false,
            tag: Some(write_tag(entry.tag)),
            size: entry.size,
            modified_ms: entry.modified_ms,
            etag: entry.etag.as_ref().to_owned(),
            brief: entry.brief,
        },
    }
}

fn read_item(item: wire::Listed) -> Result<ListItem, CodecError> {
    if item.is_prefix {
        return Ok(ListItem::Prefix(item.key));
    }
    Ok(ListItem::Entry(ListedEntry {
        key: item.key,
        tag: read_tag(item.tag)?,
        etag: item.etag.into(),
        size: item.size,
        modified_ms: item.modified_ms,
        brief: item.brief,
    }))
}

const RETRY_PAUSE: Duration = Duration::from_millis(20);
