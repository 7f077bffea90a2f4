//! What clients and workers saw, written down while it happens.
//!
//! A recording is a file of JSON lines: first what is expected of the run, if somebody says so, then one line for each
//! thing that was seen. What is written before a crash of the recorder can be read; a last line that is torn is left out.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use synod_core::jobs::check::{Expectations, Record};

/// A recording that goes on. Clones write to the same one.
#[derive(Clone, Debug, Default)]
pub struct History {
    kept: Arc<Mutex<Kept>>,
}

/// A recording that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// What everybody saw.
    pub records: Vec<Record>,
    /// What is expected of the run.
    pub expectations: Expectations,
}

/// A recording cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The file system failed.
    #[error("the recording {path} cannot be used: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A line makes no sense.
    #[error("line {line} of the recording {path} makes no sense: {error}")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// Why.
        error: serde_json::Error,
    },
    /// Something could not be written while the run lasted. The recording is not whole.
    #[error("the recording is not whole: {0}")]
    Broken(String),
}

#[derive(Debug, Default)]
struct Kept {
    recording: Recording,
    file: Option<BufWriter<File>>,
    /// Why something could not be written.
    broken: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Expect(Expectations),
    Saw(Record),
}

impl History {
    /// A recording in memory.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// A recording in memory and in a new file.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> Result<Self, HistoryError> {
        let file = File::create(path).map_err(|error| HistoryError::File { path: path.into(), error })?;
        let kept = Kept { file: Some(BufWriter::new(file)), ..Kept::default() };
        Ok(Self { kept: Arc::new(Mutex::new(kept)) })
    }

    /// Reads a recording.
    ///
    /// # Errors
    /// The file cannot be read, or a line other than a torn last one makes no sense.
    pub fn read(path: &Path) -> Result<Recording, HistoryError> {
        let fault = |error| HistoryError::File { path: path.into(), error };
        let mut reader = BufReader::new(File::open(path).map_err(fault)?);
        let (mut recording, mut text, mut line) = (Recording::default(), String::new(), 0);
        while reader.read_line(&mut text).map_err(fault)? > 0 {
            line += 1;
            match serde_json::from_str(&text) {
                Ok(Line::Expect(expectations)) => recording.expectations = expectations,
                Ok(Line::Saw(record)) => recording.records.push(record),
                Err(_) if !text.ends_with('\n') => break,
                Err(error) => return Err(HistoryError::Line { path: path.into(), line, error }),
            }
            text.clear();
        }
        Ok(recording)
    }

    /// Says what is expected of the run. The last word counts.
    pub fn expect(&self, expectations: Expectations) {
        let mut kept = self.lock();
        kept.write(&Line::Expect(expectations.clone()));
        kept.recording.expectations = expectations;
    }

    /// Says more about what is expected of the run.
    pub(super) fn expect_more(&self, more: impl FnOnce(&mut Expectations)) {
        let mut expectations = self.lock().recording.expectations.clone();
        more(&mut expectations);
        self.expect(expectations);
    }

    /// Writes something down.
    pub fn saw(&self, record: Record) {
        let mut kept = self.lock();
        if kept.file.is_some() {
            kept.write(&Line::Saw(record.clone()));
        }
        kept.recording.records.push(record);
    }

    /// What was recorded so far.
    ///
    /// # Errors
    /// Something could not be written to the file.
    pub fn recording(&self) -> Result<Recording, HistoryError> {
        let mut kept = self.lock();
        let flushed = kept.file.as_mut().map(Write::flush).transpose();
        if let Err(error) = flushed {
            kept.broken.get_or_insert_with(|| error.to_string());
        }
        match &kept.broken {
            Some(broken) => Err(HistoryError::Broken(broken.clone())),
            None => Ok(kept.recording.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn write(&mut self, line: &Line) {
        let Some(file) = &mut self.file else { return };
        let written = serde_json::to_writer(&mut *file, line).map_err(io::Error::from);
        if let Err(error) = written.and_then(|()| file.write_all(b"\n")) {
            self.broken.get_or_insert_with(|| error.to_string());
        }
    }
}
