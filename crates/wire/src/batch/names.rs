//! A table of a batch while the batch is built: every name once, already encoded.
//!
//! Messages come in runs: the next one often has the type, the receiver and the sender of the one before. So a name is
//! first compared with the one that was found last, then with the few others, and only a large table is looked up by
//! hash. The names are not stored beside their encoding; the entries point into it.

use std::ops::Range;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::build::{field_bytes, put_length};

/// The names of one table, in the order of their numbers.
#[derive(Clone, Debug)]
pub(super) struct NameTable {
    /// Key of the field that each entry is encoded as.
    key: u8,
    encoded: Vec<u8>,
    entries: Vec<Entry>,
    /// The entry that was found or added last.
    last: usize,
    /// Positions of entries by hash, with open addressing; empty while there are at most [`SCANNED_MAX`] entries.
    slots: Vec<u16>,
}

/// Where a name stands in the encoding.
#[derive(Clone, Debug)]
struct Entry {
    address: Range<usize>,
    id: Range<usize>,
}

/// The place of a name in a table.
pub(super) struct Place {
    /// Its number, from 0.
    pub(super) index: usize,
    /// By how much it makes the encoded table longer: zero when the name is already there.
    pub(super) new_bytes: usize,
}

impl NameTable {
    pub(super) const fn new(key: u8) -> Self {
        Self { key, encoded: Vec::new(), entries: Vec::new(), last: 0, slots: Vec::new() }
    }

    /// Adds a name for which [`find`](Self::find) gave this place. Does nothing but remember it if it is there already.
    pub(super) fn settle(&mut self, place: &Place, address: &str, id: &str) {
        self.last = place.index;
        if place.new_bytes == 0 {
            return;
        }
        put_length(self.key, content_bytes(address, id), &mut self.encoded);
        let entry = if address.is_empty() {
            Entry { address: 0..0, id: put(id, &mut self.encoded) }
        } else {
            put_length(PID_ADDRESS_KEY, address.len(), &mut self.encoded);
            let address = put(address, &mut self.encoded);
            put_length(PID_ID_KEY, id.len(), &mut self.encoded);
            Entry { address, id: put(id, &mut self.encoded) }
        };
        self.entries.push(entry);
        if !self.slots.is_empty() {
            self.take_slot(place.index);
        } else if self.entries.len() > SCANNED_MAX {
            self.slots.resize(SLOTS, VACANT);
            for index in 0..self.entries.len() {
                self.take_slot(index);
            }
        }
    }

    /// Forgets all names and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.encoded.clear();
        self.encoded.shrink_to(NAME_BYTES_KEPT);
        self.entries.clear();
        self.slots.clear();
        self.last = 0;
    }

    /// Where a name is, or would be as the next one. With an address it is a PID, without one just the id.
    #[inline]
    pub(super) fn find(&self, address: &str, id: &str) -> Place {
        match self.position(address, id) {
            Some(index) => Place { index, new_bytes: 0 },
            None => Place { index: self.entries.len(), new_bytes: field_bytes(content_bytes(address, id)) },
        }
    }

    /// The table as it is sent.
    pub(super) const fn encoded(&self) -> &[u8] {
        self.encoded.as_slice()
    }

    fn position(&self, address: &str, id: &str) -> Option<usize> {
        let is_same = |entry: &Entry| {
            self.encoded[entry.id.clone()] == *id.as_bytes()
                && entry.address.len() == address.len()
                && (address.is_empty() || self.encoded[entry.address.clone()] == *address.as_bytes())
        };
        if self.entries.get(self.last).is_some_and(is_same) {
            return Some(self.last);
        }
        if self.slots.is_empty() {
            return self.entries.iter().position(is_same);
        }
        let mut slot = hash(address.as_bytes(), id.as_bytes());
        loop {
            let index = usize::from(self.slots[slot % SLOTS]);
            if is_same(self.entries.get(index)?) {
                return Some(index);
            }
            slot += 1;
        }
    }

    fn take_slot(&mut self, index: usize) {
        let Entry { address, id } = &self.entries[index];
        let mut slot = hash(&self.encoded[address.clone()], &self.encoded[id.clone()]);
        while self.slots[slot % SLOTS] != VACANT {
            slot += 1;
        }
        self.slots[slot % SLOTS] = index as u16;
    }
}

/// Appends a text and says where it is now.
fn put(text: &str, buffer: &mut Vec<u8>) -> Range<usize> {
    let start = buffer.len();
    buffer.extend_from_slice(text.as_bytes());
    start..buffer.len()
}

/// Encoded size of an entry without its own key and length.
fn content_bytes(address: &str, id: &str) -> usize {
    if address.is_empty() { id.len() } else { field_bytes(address.len()) + field_bytes(id.len()) }
}

/// Whoever chooses names so that they collide makes a batch slower, but no batch has more than a thousand of them.
fn hash(address: &[u8], id: &[u8]) -> usize {
    // Nearly all entries of a table share one address, so the id has to tell them apart.
    let hash = if address.is_empty() { xxh3_64(id) } else { xxh3_64_with_seed(id, xxh3_64(address)) };
    // Only the lowest bits choose a slot; half of the range leaves room for counting on.
    (hash >> 1) as usize
}

// The fields of `actor.PID`: numbers 1 and 2, length-delimited.
const PID_ADDRESS_KEY: u8 = 0x0a;
const PID_ID_KEY: u8 = 0x12;

/// Most entries that are compared one by one.
const SCANNED_MAX: usize = 8;
/// More than twice as many as there are ever entries, and a power of two.
const SLOTS: usize = 2048;
/// No entry.
const VACANT: u16 = u16::MAX;
/// How much memory for encoded names a table keeps from one batch to the next, in bytes.
const NAME_BYTES_KEPT: usize = 64 * 1024;

const _: () = assert!(SLOTS.is_power_of_two() && SLOTS >= 2 * crate::limits::BATCH_MESSAGES_SENT_MAX);
