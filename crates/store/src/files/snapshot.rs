//! A snapshot: everything up to one record of the log, as JSON that people can read.
//!
//! The checksum is that of the body in its canonical form, without spaces, so that it does not matter how the file is laid
//! out. It is laid out with one line for each slot and each node.

mod body;
mod layout;

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use self::body::Body;
use super::checksum::checksum;
use super::disk::replace;
use super::error::FilesError;
use super::state::State;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u64,
    checksum: String,
    body: Body,
}

/// What every version has.
#[derive(Deserialize)]
struct Header {
    format: String,
    version: u64,
}

/// Reads a snapshot, and the index of the last record that it covers; `None` when there is none.
pub(super) fn read(file: &Path) -> Result<Option<(State, u64)>, FilesError> {
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(FilesError::at("read", file))?,
    };
    let damaged =
        |offset: u64, damage: String| FilesError::Damaged { file: file.to_path_buf(), offset, damage };
    let malformed = |error: serde_json::Error| {
        if error.is_eof() {
            return FilesError::Truncated { file: file.into(), offset: bytes.len() as u64 };
        }
        damaged(offset_of(&bytes, error.line(), error.column()), error.to_string())
    };
    let header: Header = serde_json::from_slice(&bytes).map_err(malformed)?;
    if header.format != FORMAT {
        return Err(damaged(0, format!("this is not a {FORMAT}")));
    }
    if header.version == 0 {
        return Err(damaged(0, "there is no version 0 of the format".into()));
    }
    if header.version > VERSION {
        let (file, version) = (file.to_path_buf(), header.version);
        return Err(FilesError::LaterVersion { file, offset: 0, version, known: VERSION });
    }
    let document: Document = serde_json::from_slice(&bytes).map_err(malformed)?;
    let canonical = serde_json::to_vec(&document.body).map_err(malformed)?;
    if document.checksum != checksum_text(&canonical) {
        return Err(damaged(0, "the checksum does not fit".into()));
    }
    let covers = document.body.covers;
    let state =
        document.body.into_state().map_err(|what| damaged(0, format!("there is an unsound {what}")))?;
    Ok(Some((state, covers)))
}

/// Writes a snapshot that covers the log up to a record, in place of the one before.
pub(super) fn write(dir: &Path, name: &str, state: &State, covers: u64) -> Result<(), FilesError> {
    let failed = |error: serde_json::Error| FilesError::at("encode", &dir.join(name))(error.into());
    let body = Body::new(state, covers);
    let canonical = serde_json::to_vec(&body).map_err(failed)?;
    let checksum = checksum_text(&canonical);
    let document = Document { format: FORMAT.into(), version: VERSION, checksum, body };
    replace(dir, name, &layout::to_bytes(&document).map_err(failed)?)
}

fn checksum_text(canonical: &[u8]) -> String {
    format!("{:08x}", checksum(canonical))
}

/// The offset of a line and column, both from 1, as the parser counts them.
fn offset_of(bytes: &[u8], line: usize, column: usize) -> u64 {
    let before = bytes.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1));
    (before.map(<[u8]>::len).sum::<usize>() + column.saturating_sub(1)).min(bytes.len()) as u64
}

const FORMAT: &str = "synod registry snapshot";
const VERSION: u64 = 1;
