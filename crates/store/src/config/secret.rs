//! Secrets: read from files that nobody else can read, and never shown.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The secret of a cluster: 32 random bytes that all of its nodes have.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSecret([u8; SECRET_BYTES]);

impl ClusterSecret {
    /// The secret with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// Reads a file with 64 digits of hexadecimal, which only its owner may read.
    ///
    /// # Errors
    /// The file cannot be read, others can read it, or it contains something else.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let failed = |source| SecretError::Read { path: path.into(), source };
        let file = File::open(path).map_err(failed)?;
        // Of the open file: whoever asks by name may be shown another one.
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & OTHERS_MASK != 0 {
            return Err(SecretError::Readable { path: path.into(), mode: mode & 0o777 });
        }
        let mut text = String::new();
        let longest = 2 * SECRET_BYTES as u64 + 3;
        file.take(longest).read_to_string(&mut text).map_err(failed)?;
        parse_hex(text.trim_end()).map(Self).ok_or_else(|| SecretError::Malformed { path: path.into() })
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(..)")
    }
}

/// The secret key of an archive.
#[derive(Clone, PartialEq, Eq)]
pub struct ArchiveSecret(String);

impl ArchiveSecret {
    pub(super) const fn new(key: String) -> Self {
        Self(key)
    }

    /// The key itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ArchiveSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArchiveSecret(..)")
    }
}

/// The secret of a cluster cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret in {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others than its owner may use the file.
    #[error(
        "the secret in {} can be used by others than its owner (mode {mode:o}); run chmod 600 on it",
        path.display()
    )]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file contains something else.
    #[error("{} does not contain a secret, which is 64 digits of hexadecimal", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

fn parse_hex(text: &str) -> Option<[u8; SECRET_BYTES]> {
    let mut bytes = [0; SECRET_BYTES];
    let digits = text.as_bytes();
    if digits.len() != 2 * SECRET_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

const SECRET_BYTES: usize = 32;
/// Permissions of the group and of everybody else.
const OTHERS_MASK: u32 = 0o077;
