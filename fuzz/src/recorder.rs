//! The flight recorder: the input that is being tried, kept where it outlives the process.
//!
//! A panic can be caught, but an abort, an overflowing stack and an endless loop take the process with them. So before
//! an input is tried it is written to a file, with a number that grows. Whoever watches the process sees by the number
//! whether it still moves, and when it is dead finds the input that killed it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Writes the record.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    record: Vec<u8>,
    inputs: u64,
}

impl Recorder {
    /// A new record at `path`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, record: Vec::new(), inputs: 0 })
    }

    /// Notes that `input` is tried next.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn note(&mut self, input: &[u8]) -> io::Result<()> {
        self.inputs += 1;
        self.record.clear();
        self.record.extend(self.inputs.to_le_bytes());
        self.record.extend((input.len() as u64).to_le_bytes());
        self.record.extend(input);
        self.file.write_all_at(&self.record, 0)
    }
}

/// What a record says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How many inputs were tried.
    pub inputs: u64,
    /// The latest of them.
    pub input: Vec<u8>,
}

impl Record {
    /// Reads the record at `path`; one that was not begun is empty.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        Self::parse(path).unwrap_or_default()
    }

    fn parse(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let (mut inputs, mut length, mut input) = ([0; 8], [0; 8], Vec::new());
        file.read_exact(&mut inputs)?;
        file.read_exact(&mut length)?;
        // Behind the input there may be the rest of a longer one.
        file.take(u64::from_le_bytes(length)).read_to_end(&mut input)?;
        Ok(Self { inputs: u64::from_le_bytes(inputs), input })
    }
}
