//! Who took over whom: one line of JSON each, for people. The node only counts them.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use serde::Serialize;
use synod_core::slots::Takeover;

use super::disk::{FILE_MODE, sync_parent};
use super::error::FilesError;

#[derive(Serialize)]
struct Line<'a> {
    unix_millis: u64,
    event: &'static str,
    node: &'a str,
    old_status: String,
    old_incarnation: u64,
    last_heard_age_ms: u64,
}

/// Writes one line behind all others. A line that a crash has torn is left as it is, on a line of its own.
pub(super) fn append(file: &Path, takeover: &Takeover, unix_millis: u64) -> Result<(), FilesError> {
    let line = Line {
        unix_millis,
        event: "takeover",
        node: takeover.node.as_str(),
        old_status: takeover.old_standing.to_string(),
        old_incarnation: takeover.old_incarnation.get(),
        last_heard_age_ms: u64::try_from(takeover.last_heard_age.as_millis()).unwrap_or(u64::MAX),
    };
    let failed = FilesError::at("write", file);
    let mut text = serde_json::to_string(&line).map_err(|error| failed(error.into()))?;
    text.push('\n');
    let mut audit = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(FILE_MODE)
        .open(file)
        .map_err(FilesError::at("open", file))?;
    let length = audit.metadata().map_err(&failed)?.len();
    let mut last = [b'\n'];
    if length > 0 {
        audit.read_exact_at(&mut last, length - 1).map_err(&failed)?;
    }
    if last != [b'\n'] {
        text.insert(0, '\n');
    }
    audit.write_all(text.as_bytes()).map_err(&failed)?;
    audit.sync_all().map_err(FilesError::at("sync", file))?;
    sync_parent(file)
}

/// How many lines there are.
pub(super) fn count(file: &Path) -> Result<u64, FilesError> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count() as u64),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(FilesError::at("read", file)(error)),
    }
}
