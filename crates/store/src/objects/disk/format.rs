//! The file that says which version of this format a directory is in, and for how many slots.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::DiskError;
use super::parts::{FILE_MODE, sync_dir};

/// Whether the directory says its version; then it is one that is known.
pub(super) fn check_format(file: &Path, total_slots: u16) -> Result<bool, DiskError> {
    let found = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(DiskError::at("read", file))?,
    };
    let known = format_text(total_slots);
    if found == known.as_bytes() {
        return Ok(true);
    }
    let found = String::from_utf8_lossy(&found[..found.len().min(128)]).trim_end().escape_debug().to_string();
    Err(DiskError::UnknownFormat { file: file.into(), found, known: known.trim_end().into() })
}

pub(super) fn write_format(dir: &Path, total_slots: u16) -> Result<(), DiskError> {
    let (path, new) = (dir.join("format"), dir.join("format.new"));
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&new);
    let mut file = file.map_err(DiskError::at("create", &new))?;
    file.write_all(format_text(total_slots).as_bytes()).map_err(DiskError::at("write", &new))?;
    file.sync_all().map_err(DiskError::at("sync", &new))?;
    fs::rename(&new, &path).map_err(DiskError::at("replace", &path))?;
    sync_dir(dir)
}

fn format_text(total_slots: u16) -> String {
    format!("synod object disk, version {FORMAT_VERSION}, {total_slots} slots\n")
}

const FORMAT_VERSION: u32 = 1;
