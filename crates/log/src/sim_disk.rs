//! A disk in memory that fails on demand, for tests of this log and of what is built on it.
//!
//! It keeps apart what was written and what was synced. [`SimDisk::crash`] makes the disk that a machine finds after a power
//! cut: all that was synced, and of the rest whatever the seed says, in whole, in part, in pieces with holes, or not at
//! all.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};

/// A simulated disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets this many more changes and syncs succeed. The next one fails, as all do behind it: the power is gone.
    pub fn fail_after(&self, operations: u64) {
        self.lock().fail_after = Some(operations);
    }

    /// Lets this many more syncs of files succeed. The next one fails, and those behind it succeed again, as they do in
    /// kernels that drop what they could not write.
    pub fn fail_one_sync_after(&self, syncs: u64) {
        self.lock().fail_one_sync_after = Some(syncs);
    }

    /// From now on syncs of files succeed and make nothing durable: a power cut takes the end of what was written, however
    /// long ago, and leaves the rest in order.
    pub fn lie_about_syncs(&self) {
        self.lock().is_lying = true;
    }

    /// While full, no file can be made or become longer.
    pub fn fill(&self, is_full: bool) {
        self.lock().is_full = is_full;
    }

    /// While held, syncs of files wait.
    pub fn hold_syncs(&self, is_held: bool) {
        self.hold(|state| &mut state.syncs_held, is_held);
    }

    /// While held, reads of files wait.
    pub fn hold_reads(&self, is_held: bool) {
        self.hold(|state| &mut state.reads_held, is_held);
    }

    /// Waits until a sync is being held.
    pub fn await_held_sync(&self) {
        self.await_held(|state| &mut state.syncs_held);
    }

    /// Waits until a read is being held.
    pub fn await_held_read(&self) {
        self.await_held(|state| &mut state.reads_held);
    }

    /// The number of syncs of files that succeeded.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// The disk after a power cut. What was not synced is there or not as the seed decides.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let state = self.lock();
        let mut dice = Dice(seed);
        let mut entries = state.synced_entries.clone();
        for (name, inode) in &state.pending_entries {
            if dice.roll(2) == 0 {
                match inode {
                    Some(inode) => drop(entries.insert(name.clone(), *inode)),
                    None => drop(entries.remove(name)),
                }
            }
        }
        let after = |inode: &Inode| match state.is_lying {
            true => inode.after_lies(&mut dice),
            false => inode.after_crash(&mut dice),
        };
        let inodes = state.inodes.iter().map(after).map(Inode::clean).collect();
        Self::with(State { inodes, entries: entries.clone(), synced_entries: entries, ..State::default() })
    }

    /// All files and what can be read in them.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.lock();
        let files = state.entries.iter();
        files.map(|(name, inode)| (name.clone(), state.inodes[*inode].live.clone())).collect()
    }

    /// A disk with these files, all of them durable.
    #[must_use]
    pub fn with_contents(contents: BTreeMap<String, Vec<u8>>) -> Self {
        let entries: BTreeMap<String, usize> =
            contents.keys().enumerate().map(|(inode, name)| (name.clone(), inode)).collect();
        let inodes = contents.into_values().map(Inode::clean).collect();
        Self::with(State { inodes, entries: entries.clone(), synced_entries: entries, ..State::default() })
    }

    fn with(state: State) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, gate: fn(&mut State) -> &mut Gate, is_held: bool) {
        gate(&mut self.lock()).is_shut = is_held;
        self.shared.changed.notify_all();
    }

    fn await_held(&self, gate: fn(&mut State) -> &mut Gate) {
        let mut state = self.lock();
        while !gate(&mut state).is_shut || gate(&mut state).waiting == 0 {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Locks the state once a gate is open.
    fn pass(&self, gate: fn(&mut State) -> &mut Gate) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        gate(&mut state).waiting += 1;
        self.shared.changed.notify_all();
        while gate(&mut state).is_shut {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        gate(&mut state).waiting -= 1;
        state
    }

    fn file(&self, inode: usize) -> Box<dyn DiskFile> {
        Box::new(SimFile { disk: self.clone(), inode })
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.lock().entries.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.lock();
        if state.entries.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.take_room()?;
        let inode = state.inodes.len();
        state.inodes.push(Inode::default());
        state.pending_entries.push((name.into(), Some(inode)));
        state.operate()?;
        state.entries.insert(name.into(), inode);
        drop(state);
        Ok(self.file(inode))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.lock().entries.get(name).copied();
        inode.map(|inode| self.file(inode)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.pending_entries.push((name.into(), None));
        state.operate()?;
        state.entries.remove(name).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.operate()?;
        state.synced_entries = state.entries.clone();
        state.pending_entries.clear();
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    entries: BTreeMap<String, usize>,
    synced_entries: BTreeMap<String, usize>,
    /// Names that were given to files or taken away since the last sync.
    pending_entries: Vec<(String, Option<usize>)>,
    fail_after: Option<u64>,
    fail_one_sync_after: Option<u64>,
    is_lying: bool,
    is_full: bool,
    syncs_held: Gate,
    reads_held: Gate,
    syncs: u64,
}

/// Where operations of one kind wait while it is shut.
#[derive(Debug, Default)]
struct Gate {
    is_shut: bool,
    waiting: usize,
}

impl State {
    /// Whether there is room for more than there is.
    fn take_room(&self) -> io::Result<()> {
        if self.is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    /// Whether the disk still works for one more operation.
    fn operate(&mut self) -> io::Result<()> {
        match &mut self.fail_after {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

#[derive(Debug, Default)]
struct Inode {
    live: Vec<u8>,
    synced: Vec<u8>,
    /// What was done since the last sync, and tried: a change that failed may have been done in part.
    pending: Vec<(Change, bool)>,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Inode {
    fn clean(contents: Vec<u8>) -> Self {
        Self { live: contents.clone(), synced: contents, pending: Vec::new() }
    }

    /// Makes durable what was done since the last sync.
    fn settle(&mut self) {
        for (change, is_done) in self.pending.drain(..) {
            match change {
                Change::Truncate(length) if is_done => self.synced.truncate(length),
                Change::Write(offset, bytes) if is_done => write(&mut self.synced, offset, &bytes),
                // What is read now is what a sync keeps.
                Change::Truncate(_) | Change::Write(..) => {}
            }
        }
    }

    fn after_lies(&self, dice: &mut Dice) -> Vec<u8> {
        let mut kept = Self { synced: self.synced.clone(), ..Self::default() };
        let count = dice.roll(self.pending.len() + 1);
        kept.pending.extend(self.pending[..count].iter().cloned());
        kept.settle();
        kept.synced
    }

    fn after_crash(&self, dice: &mut Dice) -> Vec<u8> {
        let mut contents = self.synced.clone();
        for (change, _) in &self.pending {
            match (change, dice.roll(5)) {
                (_, 0) => {}
                (Change::Truncate(length), _) => contents.truncate(*length),
                (Change::Write(offset, bytes), 1) => write(&mut contents, *offset, bytes),
                (Change::Write(offset, bytes), 2) => {
                    write(&mut contents, *offset, &bytes[..dice.roll(bytes.len() + 1)]);
                }
                // The file has grown, and nothing is in it.
                (Change::Write(offset, bytes), 3) => write(&mut contents, *offset, &vec![0; bytes.len()]),
                (Change::Write(offset, bytes), _) => {
                    for (number, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                        if dice.roll(2) == 0 {
                            write(&mut contents, offset + number * SECTOR_BYTES, sector);
                        }
                    }
                }
            }
        }
        contents
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: usize,
}

impl DiskFile for SimFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.lock().inodes[self.inode].live.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.pass(|state| &mut state.reads_held);
        let live = &state.inodes[self.inode].live;
        let rest = live.get(position(offset)?..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut state, offset) = (self.disk.lock(), position(offset)?);
        if offset + bytes.len() > state.inodes[self.inode].live.len() {
            state.take_room()?;
        }
        let operated = state.operate();
        let change = Change::Write(offset, bytes.to_vec());
        state.inodes[self.inode].pending.push((change, operated.is_ok()));
        operated?;
        write(&mut state.inodes[self.inode].live, offset, bytes);
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let (mut state, length) = (self.disk.lock(), position(length)?);
        let operated = state.operate();
        state.inodes[self.inode].pending.push((Change::Truncate(length), operated.is_ok()));
        operated?;
        state.inodes[self.inode].live.truncate(length);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.pass(|state| &mut state.syncs_held);
        state.operate()?;
        state.fail_one_sync_after = match state.fail_one_sync_after {
            Some(0) => {
                state.fail_one_sync_after = None;
                return Err(io::Error::other("the disk could not write"));
            }
            left => left.map(|left| left - 1),
        };
        state.syncs += 1;
        if !state.is_lying {
            state.inodes[self.inode].settle();
        }
        Ok(())
    }
}

/// Numbers that a seed decides (SplitMix64).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    /// A number below `sides`.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % sides as u64) as usize
    }
}

fn write(contents: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if contents.len() < offset + bytes.len() {
        contents.resize(offset + bytes.len(), 0);
    }
    contents[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn position(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Small, so that records of tests lie across many.
const SECTOR_BYTES: usize = 16;
