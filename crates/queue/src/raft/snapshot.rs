//! Snapshots as files.
//!
//! ```text
//!   magic "SYNODSNP" 8 │ version u16 │ group u16 │ length of the header u32 │ header │ body │ crc u32
//! ```
//!
//! Numbers are little-endian; the checksum is CRC-32C of all before it. The header says which entry is the last one in it,
//! and who belonged to the group then. A snapshot is written beside its place and renamed once it is durable, so that one
//! with a proper name is whole, or the disk has damaged it.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use prost::Message as _;
use synod_wire::raft as wire;

use super::machine::Machine;
use super::types::{LogId, StoredMembers, entry_id, nonsense, read_header, write_header, write_id};
use crate::journal::EntryId;

/// A snapshot that can be read.
#[derive(Debug)]
pub(crate) struct SnapshotFile {
    pub(crate) path: PathBuf,
    /// Open, so that it can be read even when a newer one has taken its place.
    pub(crate) file: File,
    pub(crate) bytes: u64,
    pub(crate) checksum: u32,
    /// Whether its checksum is known to be right.
    pub(crate) is_verified: bool,
}

impl SnapshotFile {
    /// What tells it from others.
    pub(crate) fn name(&self, last: Option<&LogId>) -> wire::SnapshotName {
        wire::SnapshotName { last: last.map(write_id), bytes: self.bytes, checksum: self.checksum }
    }
}

/// Writes a snapshot that has no name yet, and makes it durable.
pub(crate) fn write<M: Machine>(
    dir: &Path,
    group: u16,
    last: Option<&LogId>,
    members: &StoredMembers,
    frozen: M::Frozen,
) -> io::Result<PathBuf> {
    let path = dir.join(format!("{TEMPORARY}{:016x}", fastrand::u64(..)));
    let mut out = Summing { inner: BufWriter::with_capacity(BUFFER_BYTES, File::create_new(&path)?), sum: 0 };
    let header = write_header(last, members).encode_to_vec();
    let header_bytes = u32::try_from(header.len()).map_err(io::Error::other)?;
    out.write_all(MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&group.to_le_bytes())?;
    out.write_all(&header_bytes.to_le_bytes())?;
    out.write_all(&header)?;
    M::write(frozen, &mut out)?;
    let sum = out.sum;
    out.inner.write_all(&sum.to_le_bytes())?;
    let file = out.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(path)
}

/// Gives a file its name as the newest snapshot, and removes all others. Returns its path and length.
pub(crate) fn adopt(dir: &Path, path: &Path, last: Option<&LogId>) -> io::Result<(PathBuf, u64)> {
    let (term, index) = last.map_or((0, 0), |last| (last.leader_id.term, last.index));
    let name = dir.join(format!("{PREFIX}{term}-{index}"));
    if path != name {
        fs::rename(path, &name)?;
        File::open(dir)?.sync_all()?;
    }
    for other in names(dir)? {
        if other.starts_with(PREFIX) && dir.join(&other) != name {
            fs::remove_file(dir.join(other))?;
        }
    }
    let bytes = fs::metadata(&name)?.len();
    Ok((name, bytes))
}

/// The newest snapshot of a directory. Removes what a crash has left of those that were being written.
pub(crate) fn newest(dir: &Path) -> io::Result<Option<PathBuf>> {
    fs::create_dir_all(dir)?;
    for name in names(dir)? {
        if name.starts_with(TEMPORARY) {
            fs::remove_file(dir.join(&name))?;
        }
    }
    find(dir)
}

/// The machine of the newest snapshot of a directory that nobody uses, and the last entry in it. Changes nothing.
pub(crate) fn look_into<M: Machine>(dir: &Path, group: u16) -> io::Result<Option<(EntryId, M)>> {
    if !dir.try_exists()? {
        return Ok(None);
    }
    let Some(path) = find(dir)? else { return Ok(None) };
    let (_, (last, _)) = open(&path, group)?;
    verify(&path)?;
    let machine = read(&path, group)?;
    Ok(last.map(|last| (entry_id(&last), machine)))
}

fn find(dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut found = Vec::new();
    for name in names(dir)? {
        if let Some((term, index)) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')) {
            let (term, index) = (term.parse::<u64>().ok(), index.parse::<u64>().ok());
            found.extend(term.zip(index).map(|(term, index)| (index, term, dir.join(&name))));
        }
    }
    found.sort();
    Ok(found.pop().map(|(_, _, path)| path))
}

/// Opens a snapshot and reads what stands at its beginning. Does not verify it.
pub(crate) fn open(path: &Path, group: u16) -> io::Result<(SnapshotFile, (Option<LogId>, StoredMembers))> {
    let named = |error| damaged(path, &error);
    let mut file = File::open(path).map_err(named)?;
    let bytes = file.metadata().map_err(named)?.len();
    let (header, _) = read_start(&mut file, group).map_err(named)?;
    let header = read_header(header).map_err(named)?;
    file.seek(SeekFrom::End(-(SUM_BYTES as i64))).map_err(named)?;
    let mut checksum = [0; SUM_BYTES];
    file.read_exact(&mut checksum).map_err(named)?;
    file.rewind().map_err(named)?;
    let checksum = u32::from_le_bytes(checksum);
    Ok((SnapshotFile { path: path.into(), file, bytes, checksum, is_verified: false }, header))
}

/// Checks the checksum of a snapshot.
pub(crate) fn verify(path: &Path) -> io::Result<()> {
    let named = |error| damaged(path, &error);
    let mut file = File::open(path).map_err(named)?;
    let mut left = file.metadata().map_err(named)?.len().saturating_sub(SUM_BYTES as u64);
    let (mut sum, mut buffer) = (0, vec![0; BUFFER_BYTES]);
    while left > 0 {
        let portion = usize::try_from(left).map_or(BUFFER_BYTES, |left| left.min(BUFFER_BYTES));
        file.read_exact(&mut buffer[..portion]).map_err(named)?;
        sum = crc32c::crc32c_append(sum, &buffer[..portion]);
        left -= portion as u64;
    }
    let mut stored = [0; SUM_BYTES];
    file.read_exact(&mut stored).map_err(named)?;
    match u32::from_le_bytes(stored) == sum {
        true => Ok(()),
        false => Err(damaged(path, &nonsense("its checksum is wrong"))),
    }
}

/// The machine of a snapshot that is verified.
pub(crate) fn read<M: Machine>(path: &Path, group: u16) -> io::Result<M> {
    let named = |error| damaged(path, &error);
    let mut file = File::open(path).map_err(named)?;
    let bytes = file.metadata().map_err(named)?.len();
    let (_, start) = read_start(&mut file, group).map_err(named)?;
    let body = bytes.saturating_sub(start + SUM_BYTES as u64);
    let mut input = BufReader::with_capacity(BUFFER_BYTES, file).take(body);
    let machine = M::read(group, &mut input).map_err(named)?;
    match input.limit() {
        0 => Ok(machine),
        _ => Err(damaged(path, &nonsense("there is something behind its end"))),
    }
}

/// The header, and where the body begins.
fn read_start(file: &mut File, group: u16) -> io::Result<(wire::SnapshotHeader, u64)> {
    let mut start = [0; START_BYTES];
    file.read_exact(&mut start)?;
    let (magic, rest) = start.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(nonsense("it is not a snapshot"));
    }
    let number = |at: usize| u16::from_le_bytes([rest[at], rest[at + 1]]);
    if number(0) != VERSION {
        return Err(nonsense(&format!("version {} of the format is not known", number(0))));
    }
    if number(2) != group {
        return Err(nonsense(&format!("it is of group {}", number(2))));
    }
    let length = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize;
    if length > HEADER_BYTES_MAX {
        return Err(nonsense("its header is too long"));
    }
    let mut header = vec![0; length];
    file.read_exact(&mut header)?;
    let header = wire::SnapshotHeader::decode(header.as_slice()).map_err(io::Error::other)?;
    Ok((header, (START_BYTES + length) as u64))
}

fn damaged(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the snapshot {} cannot be used: {error}", path.display()))
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    entries.filter_map(Result::transpose).collect()
}

/// Writes, and keeps the checksum of what was written.
struct Summing<W> {
    inner: W,
    sum: u32,
}

impl<W: Write> Write for Summing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.sum = crc32c::crc32c_append(self.sum, &bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

const MAGIC: &[u8; 8] = b"SYNODSNP";
const VERSION: u16 = 1;
const START_BYTES: usize = 16;
const SUM_BYTES: usize = 4;
/// Longest header. A membership of a thousand replicas fits.
const HEADER_BYTES_MAX: usize = 1 << 20;
const BUFFER_BYTES: usize = 1 << 20;
const PREFIX: &str = "snap-";
const TEMPORARY: &str = "new-";
