//! Who a replica is: a number that is drawn when its disk is new.
//!
//! A node that lost its disk has forgotten how it voted. It therefore must not come back as the replica that it was; with a
//! new number it is somebody else, whom the group has to take in first.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// The number of the replica in this directory. If `is_blank`, nothing was written to the journal by it: then a new one is
/// drawn, for if there is one in the directory, its journal may have been lost.
///
/// # Errors
/// The disk failed, the file is damaged, is missing though there is a journal, or belongs to another cluster.
pub(crate) fn open(dir: &Path, cluster: &str, is_blank: bool) -> Result<u64, IdentityError> {
    let path = dir.join(FILE);
    if is_blank {
        let id = fastrand::u64(1..);
        write(dir, &path, cluster, id)?;
        return Ok(id);
    }
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(IdentityError::Missing),
        Err(error) => return Err(error.into()),
    };
    let (found, id) = parse(&text).ok_or(IdentityError::Damaged)?;
    match found == cluster {
        true => Ok(id),
        false => Err(IdentityError::Foreign { found: found.into(), expected: cluster.into() }),
    }
}

/// Why a replica does not know who it is. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The disk failed.
    #[error("the identity of the replica cannot be read or written: {0}")]
    Disk(#[from] io::Error),
    /// There is a journal, but no identity.
    #[error("the journal has records of this replica, but its file `identity` is missing")]
    Missing,
    /// The file makes no sense.
    #[error("the file `identity` of the replica is damaged or of another version")]
    Damaged,
    /// The replica belongs to another cluster.
    #[error("the replica belongs to cluster {found}, not to {expected}")]
    Foreign {
        /// The cluster that it belongs to.
        found: String,
        /// The cluster that it was to be opened for.
        expected: String,
    },
}

fn write(dir: &Path, path: &Path, cluster: &str, id: u64) -> io::Result<()> {
    let body = format!("{TITLE}\n{cluster}\n{id:016x}\n");
    let sum = crc32c::crc32c(body.as_bytes());
    let temporary = dir.join(format!("{FILE}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(format!("{body}{sum:08x}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(dir)?.sync_all()
}

fn parse(text: &str) -> Option<(&str, u64)> {
    let (body, sum) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let mut lines = body.split('\n');
    let (title, cluster, id) = (lines.next()?, lines.next()?, lines.next()?);
    let is_sound = title == TITLE && lines.next().is_none();
    let expected = crc32c::crc32c(text.get(..body.len() + 1)?.as_bytes());
    let is_sound = is_sound && u32::from_str_radix(sum, 16).ok()? == expected;
    Some((cluster, u64::from_str_radix(id, 16).ok()?)).filter(|_| is_sound)
}

const FILE: &str = "identity";
const TITLE: &str = "synod replica 1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_kept_as_long_as_its_journal_is() {
        let dir = tempfile::tempdir().expect("there is a directory");
        assert!(matches!(open(dir.path(), "c", false), Err(IdentityError::Missing)));
        let first = open(dir.path(), "c", true).expect("it is drawn");
        assert_eq!(open(dir.path(), "c", false).expect("it is kept"), first);
        assert!(matches!(open(dir.path(), "d", false), Err(IdentityError::Foreign { .. })));
        assert_ne!(open(dir.path(), "c", true).expect("it is drawn"), first);
        fs::write(dir.path().join(FILE), format!("{TITLE}\nc\n{first:016x}\n00000000\n"))
            .expect("it is written");
        assert!(matches!(open(dir.path(), "c", false), Err(IdentityError::Damaged)));
    }
}
