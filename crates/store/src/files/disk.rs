//! Directories and files that are their owner's alone, and files that are replaced whole.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use synod_log::{Disk, DiskFile, FileDisk};

use super::error::FilesError;

/// Makes a directory for its owner alone, with those above it, or takes one that exists and closes it to others.
pub(super) fn make_private_dir(dir: &Path) -> Result<(), FilesError> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists());
    if let Some(parent) = parent {
        make_private_dir(parent)?;
    }
    match DirBuilder::new().mode(DIR_MODE).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let metadata = fs::metadata(dir).map_err(FilesError::at("open", dir))?;
            if metadata.permissions().mode() & OTHERS_MASK != 0 {
                let closed = fs::set_permissions(dir, Permissions::from_mode(DIR_MODE));
                closed.map_err(FilesError::at("close to others", dir))?;
            }
        }
        other => other.map_err(FilesError::at("create", dir))?,
    }
    // Every time: a process that made the directory may have ended before it came here, and a crash could then take the
    // directory with all that is durable in it.
    sync_parent(dir)
}

/// Takes the lock of a directory.
pub(super) fn lock(dir: &Path) -> Result<File, FilesError> {
    let path = dir.join(LOCK);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(&path);
    let file = file.map_err(FilesError::at("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(FilesError::InUse { dir: dir.into() }),
        Err(TryLockError::Error(error)) => Err(FilesError::at("lock", &path)(error)),
    }
}

/// The files of a directory and what is in them; none if there is no such directory.
pub(super) fn read_files(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>, FilesError> {
    let failed = FilesError::at("read", dir);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        other => other.map_err(&failed)?,
    };
    let mut files = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(&failed)?;
        let bytes = fs::read(entry.path()).map_err(FilesError::at("read", &entry.path()))?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), bytes);
    }
    Ok(files)
}

/// Replaces a file by one with these bytes, or leaves it as it is, whatever happens in between.
pub(super) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), FilesError> {
    let (path, new) = (dir.join(name), dir.join(format!("{name}.new")));
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&new);
    let mut file = file.map_err(FilesError::at("create", &new))?;
    file.write_all(bytes).map_err(FilesError::at("write", &new))?;
    file.sync_all().map_err(FilesError::at("sync", &new))?;
    fs::rename(&new, &path).map_err(FilesError::at("replace", &path))?;
    sync_parent(&path)
}

/// Makes the name of a file durable.
pub(super) fn sync_parent(file: &Path) -> Result<(), FilesError> {
    let parent = match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => file,
    };
    let synced = File::open(parent).and_then(|parent| parent.sync_all());
    synced.map_err(FilesError::at("sync", parent))
}

/// The directory of a log, with files that only their owner may use.
pub(super) struct PrivateDisk {
    path: PathBuf,
    disk: FileDisk,
}

impl PrivateDisk {
    pub(super) fn open(path: &Path) -> Result<Self, FilesError> {
        let failed = FilesError::at("open", path);
        let disk = FileDisk::open(path).map_err(|error| failed(io::Error::other(error)))?;
        let private = Self { path: path.into(), disk };
        for name in private.list().map_err(&failed)? {
            private.close_to_others(&name).map_err(&failed)?;
        }
        Ok(private)
    }

    fn close_to_others(&self, name: &str) -> io::Result<()> {
        fs::set_permissions(self.path.join(name), Permissions::from_mode(FILE_MODE))
    }
}

impl Disk for PrivateDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.create(name)?;
        self.close_to_others(name)?;
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.disk.open(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
}

/// The mode of a file that only its owner may use.
pub(super) const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
const OTHERS_MASK: u32 = 0o077;
const LOCK: &str = "lock";
