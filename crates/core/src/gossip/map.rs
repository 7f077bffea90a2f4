//! A map that all members write and all members read.
//!
//! Every member keeps what *it* wrote last in one gossip value of its own, a [`GossipMap`]: for each map key a stamp, and
//! the value or the mark that it was removed. A reader takes, among all members' entries for a map key, the one with the
//! greatest (stamp, member id). A writer stamps one above everything it sees for that key, so a removal outlasts every
//! set that it could have seen, and every concurrent one with a smaller stamp, however late that arrives.
//!
//! An entry lives as long as its writer: when a member leaves, its gossip state goes and its entries with it. A writer
//! takes back an entry of its own that it sees outdone, so that it cannot come back then.
//!
//! ```text
//!   version 1 │ count u32 │ { key length u16 │ key │ stamp u64 │ 0, or 1 and length u32 and bytes } …   (big endian)
//! ```

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::id::{GossipKey, GossipMapKey, GossipMemberId};
use super::state::{GossipValue, GossipValueError, VALUE_BYTES_MAX};
use crate::time::TimerInstant;

/// What one member wrote into a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GossipMap {
    entries: BTreeMap<GossipMapKey, MapEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MapEntry {
    stamp: u64,
    /// `None` is the mark that the entry was removed.
    value: Option<Arc<[u8]>>,
}

impl GossipMap {
    /// Reads the map from a gossip value.
    ///
    /// # Errors
    /// [`GossipMapError`] for a value of another type and for one that is not well-formed.
    pub fn decode(value: &GossipValue) -> Result<Self, GossipMapError> {
        if value.type_url() != MAP_TYPE_URL {
            return Err(GossipMapError::NotAMap);
        }
        let mut reader = Reader(value.bytes());
        if reader.take(1)? != [VERSION] {
            return Err(GossipMapError::UnknownVersion);
        }
        let count = u32::from_be_bytes(reader.array()?) as usize;
        if count > MAP_KEYS_MAX {
            return Err(GossipMapError::TooManyKeys);
        }
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let length = u16::from_be_bytes(reader.array()?);
            let key = core::str::from_utf8(reader.take(length.into())?).ok();
            let key = key.and_then(|key| GossipMapKey::new(key).ok()).ok_or(GossipMapError::Malformed)?;
            let stamp = u64::from_be_bytes(reader.array()?);
            let value = match reader.take(1)? {
                [0] => None,
                [1] => {
                    let length = u32::from_be_bytes(reader.array()?);
                    Some(Arc::from(reader.take(length as usize)?))
                }
                _ => return Err(GossipMapError::Malformed),
            };
            entries.insert(key, MapEntry { stamp, value });
        }
        // Leftovers, or a key twice.
        if !reader.0.is_empty() || entries.len() != count {
            return Err(GossipMapError::Malformed);
        }
        Ok(Self { entries })
    }

    /// Writes the map into a gossip value.
    ///
    /// # Errors
    /// [`GossipMapError`] when it is too large for one.
    pub fn encode(&self) -> Result<GossipValue, GossipMapError> {
        if self.entries.len() > MAP_KEYS_MAX {
            return Err(GossipMapError::TooManyKeys);
        }
        let mut bytes = Vec::new();
        bytes.push(VERSION);
        push_length(&mut bytes, self.entries.len());
        for (key, entry) in &self.entries {
            // Nothing is cut off: the bound on a key's length is far below what two bytes can say.
            let length = key.as_str().len() as u16;
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(key.as_str().as_bytes());
            bytes.extend_from_slice(&entry.stamp.to_be_bytes());
            match &entry.value {
                None => bytes.push(0),
                Some(value) => {
                    bytes.push(1);
                    push_length(&mut bytes, value.len());
                    bytes.extend_from_slice(value);
                }
            }
        }
        GossipValue::new(MAP_TYPE_URL, &bytes).map_err(|error| match error {
            GossipValueError::TypeUrlTooLong { bytes } | GossipValueError::TooLarge { bytes } => {
                GossipMapError::TooLarge { bytes }
            }
        })
    }

    /// Writes `value` under `key`, or the mark that it was removed.
    pub(super) fn put(&mut self, key: &GossipMapKey, stamp: u64, value: Option<&[u8]>) {
        self.entries.insert(key.clone(), MapEntry { stamp, value: value.map(Arc::from) });
    }
}

/// The maps of all members under one key, read as one: what stands under each map key.
#[derive(Clone, Debug, Default)]
pub(super) struct MapView {
    standing: BTreeMap<GossipMapKey, (GossipMemberId, MapEntry)>,
}

impl MapView {
    /// Reads every member's map; a value that is none contributes nothing.
    pub(super) fn new<'a>(values: impl Iterator<Item = (&'a GossipMemberId, &'a GossipValue)>) -> Self {
        let mut standing: BTreeMap<GossipMapKey, (GossipMemberId, MapEntry)> = BTreeMap::new();
        for (member, value) in values {
            let entries = GossipMap::decode(value).map(|map| map.entries).unwrap_or_default();
            for (key, entry) in entries {
                let outdone = |(writer, held): &(GossipMemberId, MapEntry)| {
                    (held.stamp, writer) < (entry.stamp, member)
                };
                if standing.get(&key).is_none_or(outdone) {
                    standing.insert(key, (member.clone(), entry));
                }
            }
        }
        Self { standing }
    }

    /// The value under `key`.
    pub(super) fn value(&self, key: &GossipMapKey) -> Option<Arc<[u8]>> {
        self.standing.get(key)?.1.value.clone()
    }

    /// All keys that have a value, in order.
    pub(super) fn keys(&self) -> Vec<GossipMapKey> {
        let present = self.standing.iter().filter(|(_, (_, entry))| entry.value.is_some());
        present.map(|(key, _)| key.clone()).collect()
    }

    /// The stamp of a write that outdoes everything under `key`; `None` when the stamps are used up.
    pub(super) fn next_stamp(&self, key: &GossipMapKey) -> Option<u64> {
        self.standing.get(key).map_or(0, |(_, entry)| entry.stamp).checked_add(1)
    }

    fn writer(&self, key: &GossipMapKey) -> Option<&GossipMemberId> {
        self.standing.get(key).map(|(writer, _)| writer)
    }
}

/// The maps that this node writes, and since when each of its removals is known.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnMaps {
    pub(super) maps: BTreeMap<GossipKey, GossipMap>,
    removed_at: BTreeMap<(GossipKey, GossipMapKey), TimerInstant>,
}

impl OwnMaps {
    /// Replaces the map under `key` by `map`, in which `map_key` was set or, at `removed`, taken out.
    pub(super) fn replace(
        &mut self,
        key: &GossipKey,
        map_key: &GossipMapKey,
        map: GossipMap,
        removed: Option<TimerInstant>,
    ) {
        let place = (key.clone(), map_key.clone());
        match removed {
            Some(at) => drop(self.removed_at.insert(place, at)),
            None => drop(self.removed_at.remove(&place)),
        }
        self.maps.insert(key.clone(), map);
    }

    /// Takes back entries that another member has outdone. Returns whether there were any.
    pub(super) fn yield_to(&mut self, key: &GossipKey, own: &GossipMemberId, view: &MapView) -> bool {
        let Some(map) = self.maps.get_mut(key) else { return false };
        let before = map.entries.len();
        map.entries.retain(|map_key, _| view.writer(map_key) == Some(own));
        self.removed_at.retain(|(at, map_key), _| at != key || map.entries.contains_key(map_key));
        map.entries.len() != before
    }

    /// Forgets removals made before `since`. Returns the keys of the maps that changed.
    pub(super) fn forget_removed(&mut self, since: TimerInstant) -> BTreeSet<GossipKey> {
        let mut changed = BTreeSet::new();
        self.removed_at.retain(|(key, map_key), at| {
            if *at >= since {
                return true;
            }
            if let Some(map) = self.maps.get_mut(key) {
                map.entries.remove(map_key);
            }
            changed.insert(key.clone());
            false
        });
        changed
    }
}

/// A value is not a map, or a map does not fit a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GossipMapError {
    /// The value is of another type than [`MAP_TYPE_URL`].
    #[error("the gossip value is not a map")]
    NotAMap,
    /// The map was written by a later version.
    #[error("the gossip map has a version other than {VERSION}")]
    UnknownVersion,
    /// The bytes are cut off, left over, or contain what is no entry.
    #[error("the gossip map is malformed")]
    Malformed,
    /// The map has more than [`MAP_KEYS_MAX`] entries, removed ones included.
    #[error("a gossip map has at most {MAP_KEYS_MAX} entries of one member, removed ones included")]
    TooManyKeys,
    /// The map is larger than a gossip value.
    #[error("a gossip map has at most {VALUE_BYTES_MAX} bytes, this one would have {bytes}")]
    TooLarge {
        /// Size of the refused map.
        bytes: usize,
    },
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], GossipMapError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(GossipMapError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GossipMapError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(GossipMapError::Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }
}

/// A length that does not fit belongs to a map that is refused for its size anyway.
fn push_length(bytes: &mut Vec<u8>, length: usize) {
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
}

/// The type of a value that holds a map.
pub const MAP_TYPE_URL: &str = "type.googleapis.com/synod.gossip.Map";
/// Most entries of one member in one map, removed ones included.
pub const MAP_KEYS_MAX: usize = 4_096;
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn map_key(name: &str) -> GossipMapKey {
        GossipMapKey::new(name).expect("a map key")
    }

    #[test]
    fn a_map_survives_the_way_through_a_value() {
        let mut map = GossipMap::default();
        map.put(&map_key("set"), 1, Some(b"x"));
        map.put(&map_key("empty"), 2, Some(b""));
        map.put(&map_key("removed"), u64::MAX, None);
        let value = map.encode().expect("it fits");
        assert_eq!(GossipMap::decode(&value), Ok(map));
        // Every cut, and anything left over, is noticed.
        for cut in 0..value.bytes().len() {
            let cut = GossipValue::new(MAP_TYPE_URL, &value.bytes()[..cut]).expect("it fits");
            assert_eq!(GossipMap::decode(&cut), Err(GossipMapError::Malformed));
        }
        let more = [value.bytes(), b"x"].concat();
        let more = GossipValue::new(MAP_TYPE_URL, &more).expect("it fits");
        assert_eq!(GossipMap::decode(&more), Err(GossipMapError::Malformed));
        let other = GossipValue::new("other", value.bytes()).expect("it fits");
        assert_eq!(GossipMap::decode(&other), Err(GossipMapError::NotAMap));
        let later = GossipValue::new(MAP_TYPE_URL, &[VERSION + 1]).expect("it fits");
        assert_eq!(GossipMap::decode(&later), Err(GossipMapError::UnknownVersion));
    }

    #[test]
    fn a_count_that_no_bytes_follow_reserves_no_memory() {
        let bytes = [VERSION, 0xff, 0xff, 0xff, 0xff];
        let hostile = GossipValue::new(MAP_TYPE_URL, &bytes).expect("it fits");
        assert_eq!(GossipMap::decode(&hostile), Err(GossipMapError::TooManyKeys));
    }

    #[test]
    fn a_map_beyond_its_bounds_is_refused() {
        let mut map = GossipMap::default();
        for number in 0..=MAP_KEYS_MAX {
            map.put(&map_key(&format!("k{number}")), 1, None);
        }
        assert_eq!(map.encode(), Err(GossipMapError::TooManyKeys));
        let mut map = GossipMap::default();
        map.put(&map_key("k"), 1, Some(&alloc::vec![0; VALUE_BYTES_MAX]));
        assert!(matches!(map.encode(), Err(GossipMapError::TooLarge { .. })));
    }
}
