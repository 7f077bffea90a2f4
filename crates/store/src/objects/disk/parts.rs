//! Parts as files: bytes that are written once, with a checksum for every block.
//!
//! ```text
//!   block 0 │ block 1 │ … │ checksum 0, 1, … │ footer: id, bytes, root
//! ```
//!
//! A part is written to `tmp/` and synced, then *linked* to its place, and its directory synced, and only then does the name
//! in `tmp/` go. So whatever `tmp/` contains after a crash says which directories may not be durable yet. Until the
//! directory is, the part counts as absent: nobody may acknowledge what a power cut could still take.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::error::{DiskError, PartDamage};
use crate::lock;
use crate::objects::content::{PART_BYTES_MAX, PartId, PartRef};

/// The parts of one disk.
pub(super) struct PartStore {
    dir: PathBuf,
    tmp: PathBuf,
    /// Parts that have their name, in a directory that is not yet synced.
    sealing: Mutex<HashSet<PartId>>,
    /// Directories that are there for good.
    dirs: Mutex<HashSet<u16>>,
    next_tmp: AtomicU64,
    pub(super) damaged: AtomicU64,
}

impl PartStore {
    /// Opens the parts below `dir`, and empties `tmp/`. The caller has made sure to be alone.
    pub(super) fn open(dir: &Path) -> Result<Self, DiskError> {
        let (parts, tmp) = (dir.join("parts"), dir.join("tmp"));
        for made in [&parts, &tmp] {
            fs::create_dir_all(made).map_err(DiskError::at("create", made))?;
        }
        sync_dir(dir)?;
        let store = Self {
            dir: parts,
            tmp,
            sealing: Mutex::default(),
            dirs: Mutex::default(),
            next_tmp: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
        };
        store.empty_tmp()?;
        let mut known = lock(&store.dirs);
        for upper in hex_names(&store.dir, 2)? {
            for lower in hex_names(&store.dir.join(format!("{upper:02x}")), 2)? {
                known.insert((upper << 8 | lower) as u16);
            }
        }
        drop(known);
        Ok(store)
    }

    pub(super) fn create(self: &Arc<Self>, id: PartId) -> Result<PartWriter, DiskError> {
        let number = self.next_tmp.fetch_add(1, Ordering::Relaxed);
        let path = self.tmp.join(format!("{id}.{number}"));
        let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path);
        let file = file.map_err(DiskError::at("create", &path))?;
        let store = Arc::clone(self);
        let block = Box::new(Xxh3::new());
        Ok(PartWriter { store, id, path, file, bytes: 0, block, block_bytes: 0, checksums: Vec::new() })
    }

    /// A part, if it is there for good.
    pub(super) fn open_part(self: &Arc<Self>, id: PartId) -> Result<Option<PartReader>, DiskError> {
        let path = self.path(id);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(DiskError::at("open", &path))?,
        };
        if lock(&self.sealing).contains(&id) {
            return Ok(None);
        }
        PartReader::open(Arc::clone(self), id, path, file).map(Some)
    }

    /// Whether a file of the length that the part must have is there for good.
    pub(super) fn is_present(&self, part: &PartRef) -> Result<bool, DiskError> {
        let path = self.path(part.id);
        let found = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other.map_err(DiskError::at("look at", &path))?.len(),
        };
        // In this order: what has a name and is not being sealed has been.
        Ok(!lock(&self.sealing).contains(&part.id) && Some(found) == file_bytes(part.bytes))
    }

    /// Takes the name of a part away; the bytes stay until [`PartStore::remove_unnamed`]. False if it had none.
    pub(super) fn unname(&self, id: PartId) -> Result<bool, DiskError> {
        let path = self.path(id);
        match fs::rename(&path, self.unnamed_path(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            other => other.map(|()| true).map_err(DiskError::at("remove", &path)),
        }
    }

    pub(super) fn remove_unnamed(&self, id: PartId) -> Result<(), DiskError> {
        let path = self.unnamed_path(id);
        remove_file(&path).map_err(DiskError::at("remove", &path))
    }

    /// Parts in the order of their places, those after `after`; with each when it was written.
    pub(super) fn walk(
        &self,
        after: Option<PartId>,
        limit: usize,
        mut wanted: impl FnMut(PartId, &fs::Metadata) -> bool,
    ) -> Result<Walk, DiskError> {
        let start = after.map_or(0, place);
        let mut walk = Walk { found: Vec::new(), end: after, is_finished: true };
        let mut visited = 0;
        for upper in hex_names(&self.dir, 2)?.into_iter().filter(|upper| *upper >= u128::from(start >> 8)) {
            let upper_dir = self.dir.join(format!("{upper:02x}"));
            for lower in hex_names(&upper_dir, 2)? {
                let here = (upper << 8 | lower) as u16;
                if here < start {
                    continue;
                }
                let dir = upper_dir.join(format!("{lower:02x}"));
                for id in hex_names(&dir, 32)?.into_iter().map(PartId) {
                    if here == start && after.is_some_and(|after| id <= after) {
                        continue;
                    }
                    if visited == limit {
                        walk.is_finished = false;
                        return Ok(walk);
                    }
                    visited += 1;
                    walk.end = Some(id);
                    // What is gone meanwhile is not there.
                    if fs::metadata(self.path(id)).is_ok_and(|metadata| wanted(id, &metadata)) {
                        walk.found.push(id);
                    }
                }
            }
        }
        Ok(walk)
    }

    /// Where a part is.
    pub(super) fn path(&self, id: PartId) -> PathBuf {
        let place = place(id);
        self.dir.join(format!("{:02x}/{:02x}/{id}", place >> 8, place & 0xff))
    }

    fn unnamed_path(&self, id: PartId) -> PathBuf {
        self.tmp.join(format!("{id}.gone"))
    }

    /// What a crash left: the directories of what was about to be sealed are synced, then the rest goes.
    fn empty_tmp(&self) -> Result<(), DiskError> {
        let failed = DiskError::at("read", &self.tmp);
        for entry in fs::read_dir(&self.tmp).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| u128::from_str_radix(name.get(..32)?, 16).ok());
            let path = id.map(|id| self.path(PartId(id)));
            if let Some(path) = path.filter(|path| path.exists()) {
                for dir in path.ancestors().skip(1).take(3) {
                    sync_dir(dir)?;
                }
            }
            remove_file(&entry.path()).map_err(DiskError::at("remove", &entry.path()))?;
        }
        Ok(())
    }

    fn make_dir(&self, id: PartId) -> Result<(), DiskError> {
        let place = place(id);
        let mut dirs = lock(&self.dirs);
        if dirs.contains(&place) {
            return Ok(());
        }
        let dir = self.dir.join(format!("{:02x}/{:02x}", place >> 8, place & 0xff));
        fs::create_dir_all(&dir).map_err(DiskError::at("create", &dir))?;
        for above in dir.ancestors().skip(1).take(2) {
            sync_dir(above)?;
        }
        dirs.insert(place);
        Ok(())
    }

    fn damaged(&self, file: &Path, damage: PartDamage) -> DiskError {
        self.damaged.fetch_add(1, Ordering::Relaxed);
        DiskError::DamagedPart { file: file.into(), damage }
    }
}

/// Some parts of a disk.
pub(super) struct Walk {
    pub(super) found: Vec<PartId>,
    /// The last one that was looked at.
    pub(super) end: Option<PartId>,
    /// Whether there are none after it.
    pub(super) is_finished: bool,
}

/// What a sealed part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartSeal {
    /// How many bytes it has.
    pub(crate) bytes: u64,
    /// XXH3, 64 bits, of the checksums of its blocks.
    pub(crate) root: u64,
}

impl fmt::Display for PartSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes with root {:016x}", self.bytes, self.root)
    }
}

/// A part that is being written. Dropped before it is sealed, it leaves nothing.
pub(super) struct PartWriter {
    store: Arc<PartStore>,
    id: PartId,
    path: PathBuf,
    file: File,
    bytes: u64,
    block: Box<Xxh3>,
    block_bytes: usize,
    checksums: Vec<u8>,
}

impl PartWriter {
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        let total = self.bytes + bytes.len() as u64;
        if total > PART_BYTES_MAX {
            return Err(DiskError::Refused { reason: format!("a part has at most {PART_BYTES_MAX} bytes") });
        }
        self.file.write_all(bytes).map_err(DiskError::at("write", &self.path))?;
        self.bytes = total;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES - self.block_bytes));
            self.block.update(now);
            self.block_bytes += now.len();
            if self.block_bytes == BLOCK_BYTES {
                self.end_block();
            }
            rest = later;
        }
        Ok(())
    }

    pub(super) fn seal(mut self) -> Result<PartSeal, DiskError> {
        if self.block_bytes > 0 {
            self.end_block();
        }
        let seal = PartSeal { bytes: self.bytes, root: xxh3_64(&self.checksums) };
        let footer = footer_to_bytes(self.id, seal);
        let mut tail = std::mem::take(&mut self.checksums);
        tail.extend_from_slice(&footer);
        self.file.write_all(&tail).map_err(DiskError::at("write", &self.path))?;
        self.file.sync_data().map_err(DiskError::at("sync", &self.path))?;
        self.store.make_dir(self.id)?;
        lock(&self.store.sealing).insert(self.id);
        let named = self.give_name(seal);
        if named.is_ok() {
            // Also when it was there already: whoever named it may not have come so far. If this fails, the part stays
            // among those that are being sealed, and so counts as absent.
            sync_dir(self.store.path(self.id).parent().unwrap_or(&self.store.dir))?;
        }
        lock(&self.store.sealing).remove(&self.id);
        named.map(|()| seal)
    }

    fn give_name(&self, seal: PartSeal) -> Result<(), DiskError> {
        let path = self.store.path(self.id);
        match fs::hard_link(&self.path, &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match self.stored(&path) {
                Ok(stored) if stored == seal => {}
                Ok(stored) => return Err(DiskError::PartDiffers { id: self.id, stored, written: seal }),
                // What is there is of no use to anybody; this is.
                Err(error) if error.is_damage() => {
                    fs::rename(&self.path, &path).map_err(DiskError::at("replace", &path))?;
                }
                Err(error) => return Err(error),
            },
            other => other.map_err(DiskError::at("name", &path))?,
        }
        Ok(())
    }

    /// What is there under the name of this part, if every block of it is intact.
    fn stored(&self, path: &Path) -> Result<PartSeal, DiskError> {
        let file = File::open(path).map_err(DiskError::at("open", path))?;
        let reader = PartReader::open(Arc::clone(&self.store), self.id, path.into(), file)?;
        reader.verify()?;
        Ok(reader.seal)
    }

    fn end_block(&mut self) {
        self.checksums.extend_from_slice(&self.block.digest().to_be_bytes());
        self.block.reset();
        self.block_bytes = 0;
    }
}

impl Drop for PartWriter {
    fn drop(&mut self) {
        if let Err(error) = remove_file(&self.path) {
            tracing::warn!(file = %self.path.display(), %error, "cannot remove what is left of a part");
        }
    }
}

/// A part that is there. Its file stays readable, even when the part is removed meanwhile.
pub(crate) struct PartReader {
    store: Arc<PartStore>,
    path: PathBuf,
    file: File,
    seal: PartSeal,
    checksums: Vec<u8>,
}

impl PartReader {
    fn open(store: Arc<PartStore>, id: PartId, path: PathBuf, file: File) -> Result<Self, DiskError> {
        let failed = DiskError::at("read", &path);
        let found = file.metadata().map_err(&failed)?.len();
        let damaged = |damage| store.damaged(&path, damage);
        let footer_at = found
            .checked_sub(FOOTER_BYTES as u64)
            .ok_or_else(|| damaged(PartDamage::Length { expected: FOOTER_BYTES as u64, found }))?;
        let mut footer = [0; FOOTER_BYTES];
        file.read_exact_at(&mut footer, footer_at).map_err(&failed)?;
        let (stored, seal) = footer_from_bytes(&footer).ok_or_else(|| damaged(PartDamage::Footer))?;
        if stored != id {
            return Err(damaged(PartDamage::Identity { found: stored }));
        }
        let expected = file_bytes(seal.bytes).ok_or_else(|| damaged(PartDamage::Footer))?;
        if found != expected {
            return Err(damaged(PartDamage::Length { expected, found }));
        }
        let mut checksums = vec![0; (footer_at - seal.bytes) as usize];
        file.read_exact_at(&mut checksums, seal.bytes).map_err(&failed)?;
        if xxh3_64(&checksums) != seal.root {
            return Err(damaged(PartDamage::Checksums));
        }
        Ok(Self { store, path, file, seal, checksums })
    }

    /// How many bytes it has.
    pub(crate) const fn bytes(&self) -> u64 {
        self.seal.bytes
    }

    /// XXH3, 64 bits, of the checksums of its blocks.
    pub(crate) const fn root(&self) -> u64 {
        self.seal.root
    }

    /// Some of its bytes. Every block that they touch is read and checked.
    ///
    /// # Errors
    /// There are fewer bytes, a block is damaged, or the file cannot be read.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Bytes, DiskError> {
        if range.end > self.seal.bytes || range.start > range.end {
            return Err(DiskError::OutOfRange { bytes: self.seal.bytes, end: range.end });
        }
        let block_bytes = BLOCK_BYTES as u64;
        let first = range.start / block_bytes;
        let start = first * block_bytes;
        let end = range.end.next_multiple_of(block_bytes).min(self.seal.bytes);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let mut bytes = BytesMut::zeroed((end - start) as usize);
        self.file.read_exact_at(&mut bytes, start).map_err(DiskError::at("read", &self.path))?;
        for (block, stored) in (first..).zip(bytes.chunks(BLOCK_BYTES)) {
            let at = block as usize * CHECKSUM_BYTES;
            if self.checksums.get(at..at + CHECKSUM_BYTES) != Some(&xxh3_64(stored).to_be_bytes()) {
                return Err(self.store.damaged(&self.path, PartDamage::Block { block }));
            }
        }
        Ok(bytes.freeze().slice((range.start - start) as usize..(range.end - start) as usize))
    }

    /// Reads and checks every block.
    ///
    /// # Errors
    /// A block is damaged, or the file cannot be read.
    pub(crate) fn verify(&self) -> Result<(), DiskError> {
        let mut start = 0;
        while start < self.seal.bytes {
            let end = self.seal.bytes.min(start + VERIFY_BYTES);
            self.read(start..end)?;
            start = end;
        }
        Ok(())
    }
}

/// How long the file of a part is; `None` for what is no part.
fn file_bytes(bytes: u64) -> Option<u64> {
    let checksums = bytes.div_ceil(BLOCK_BYTES as u64) * CHECKSUM_BYTES as u64;
    (bytes <= PART_BYTES_MAX).then(|| bytes + checksums + FOOTER_BYTES as u64)
}

fn footer_to_bytes(id: PartId, seal: PartSeal) -> [u8; FOOTER_BYTES] {
    let mut footer = [0; FOOTER_BYTES];
    footer[..8].copy_from_slice(&MAGIC);
    footer[8..24].copy_from_slice(&id.0.to_be_bytes());
    footer[24..32].copy_from_slice(&seal.bytes.to_be_bytes());
    footer[32..40].copy_from_slice(&seal.root.to_be_bytes());
    let checksum = xxh3_64(&footer[..40]);
    footer[40..].copy_from_slice(&checksum.to_be_bytes());
    footer
}

fn footer_from_bytes(footer: &[u8; FOOTER_BYTES]) -> Option<(PartId, PartSeal)> {
    let (fields, checksum) = footer.split_last_chunk()?;
    if u64::from_be_bytes(*checksum) != xxh3_64(fields) {
        return None;
    }
    let fields = fields.strip_prefix(&MAGIC)?;
    let (id, fields) = fields.split_first_chunk()?;
    let (bytes, fields) = fields.split_first_chunk()?;
    let (root, _) = fields.split_first_chunk()?;
    let seal = PartSeal { bytes: u64::from_be_bytes(*bytes), root: u64::from_be_bytes(*root) };
    Some((PartId(u128::from_be_bytes(*id)), seal))
}

/// In which of 65536 directories a part is. A hash: whoever chooses the names of parts does not choose this.
fn place(id: PartId) -> u16 {
    (xxh3_64(&id.0.to_be_bytes()) >> 48) as u16
}

/// The names in a directory that are so many digits of lower-case hexadecimal, as numbers in order.
fn hex_names(dir: &Path, digits: usize) -> Result<Vec<u128>, DiskError> {
    let failed = DiskError::at("read", dir);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(&failed)?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(&failed)?.file_name();
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let name = name.to_str().filter(|name| name.len() == digits && name.bytes().all(is_hex));
        numbers.extend(name.and_then(|name| u128::from_str_radix(name, 16).ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), DiskError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(DiskError::at("sync", dir))
}

/// How many bytes have a checksum of their own. Part of the format.
pub(super) const BLOCK_BYTES: usize = 64 * 1024;
const CHECKSUM_BYTES: usize = 8;
const FOOTER_BYTES: usize = 48;
const MAGIC: [u8; 8] = *b"synprt01";
const VERIFY_BYTES: u64 = 1 << 20;
/// The mode of a file that only its owner may use.
pub(super) const FILE_MODE: u32 = 0o600;
