//! Groups of replicas.

mod cluster;
mod elections;
mod faults;
mod groups;
mod suite;

use std::io::{self, Read, Write};

use bytes::Bytes;

use super::Machine;

/// A list of what was applied, and its hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct List {
    pub(super) items: Vec<(u64, Bytes)>,
    pub(super) sum: u32,
}

impl Machine for List {
    type Output = usize;
    type Frozen = Self;

    fn apply(&mut self, index: u64, entry: &Bytes, _is_wanted: bool) -> io::Result<usize> {
        if entry.as_ref() == b"poison" {
            return Err(io::Error::other("the machine cannot go on"));
        }
        self.sum = crc32c::crc32c_append(self.sum, entry);
        self.items.push((index, entry.clone()));
        Ok(self.items.len())
    }

    fn digest(&self) -> Option<(u64, u64)> {
        self.items.last().map(|(index, _)| (*index, self.sum.into()))
    }

    fn digest_at(&self, index: u64) -> Option<u64> {
        self.digest().filter(|(last, _)| *last == index).map(|(_, sum)| sum)
    }

    fn freeze(&self) -> Self {
        self.clone()
    }

    fn write(frozen: Self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&(frozen.items.len() as u64).to_le_bytes())?;
        for (index, item) in &frozen.items {
            out.write_all(&index.to_le_bytes())?;
            out.write_all(&(item.len() as u64).to_le_bytes())?;
            out.write_all(item)?;
        }
        Ok(())
    }

    fn read(_group: u16, input: &mut dyn Read) -> io::Result<Self> {
        let mut number = || {
            let mut bytes = [0; 8];
            input.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
        };
        let count = number()?;
        let mut list = Self::default();
        for _ in 0..count {
            let mut number = || {
                let mut bytes = [0; 8];
                input.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
            };
            let (index, length) = (number()?, number()?);
            let mut item = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            input.read_exact(&mut item)?;
            list.apply(index, &item.into(), false)?;
        }
        Ok(list)
    }
}
