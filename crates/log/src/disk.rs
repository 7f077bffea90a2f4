//! The little that a log asks of a disk: one directory, files in it, and a promise when they are synced.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::DiskError;

/// One directory of files.
///
/// A name that was created or removed survives a crash only after [`sync_dir`](Self::sync_dir); what was written to a file
/// only after [`DiskFile::sync`].
pub trait Disk: Send + Sync + 'static {
    /// The names of all files, in any order.
    ///
    /// # Errors
    /// The disk failed.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file. One of that name must not exist.
    ///
    /// # Errors
    /// The disk failed, or the file exists.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// The disk failed, or there is no such file.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Removes a file.
    ///
    /// # Errors
    /// The disk failed, or there is no such file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations and removals durable.
    ///
    /// # Errors
    /// The disk failed.
    fn sync_dir(&self) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    /// The disk failed.
    fn length(&self) -> io::Result<u64>;

    /// Fills the buffer from `offset` on, and says how many bytes there were before the end of the file.
    ///
    /// # Errors
    /// The disk failed.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all of the bytes at `offset`.
    ///
    /// # Errors
    /// The disk failed. Any part of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file to a length.
    ///
    /// # Errors
    /// The disk failed.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Makes the contents and the length durable.
    ///
    /// # Errors
    /// The disk failed. Nobody knows what of it is durable, and nobody will by asking again.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the file system, held by one log at a time.
#[derive(Debug)]
pub struct FileDisk {
    path: PathBuf,
    directory: File,
    /// Locked for as long as this lives: two writers would destroy each other's records.
    _lock: File,
}

impl FileDisk {
    /// Opens a directory, which is made if it does not exist. Its parent must exist.
    ///
    /// # Errors
    /// The directory cannot be made or opened, or another process holds it ([`io::ErrorKind::WouldBlock`]). Names what
    /// could not be opened by its path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DiskError> {
        let path = path.as_ref().to_path_buf();
        let shown = path.display().to_string();
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(DiskError::at("create", &shown)(error));
            }
            _ => {}
        }
        // Without this a crash could take the directory with all that is durable in it. It is done every time, because a
        // process that made the directory may have ended before it came here.
        let parent = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => &path,
        };
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(DiskError::at("sync the parent of", &shown))?;
        let directory = File::open(&path).map_err(DiskError::at("open", &shown))?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(path.join(LOCK));
        let lock = lock.and_then(|lock| lock.try_lock().map(|()| lock).map_err(io::Error::from));
        let lock = lock.map_err(DiskError::at("lock", &shown))?;
        Ok(Self { path, directory, _lock: lock })
    }
}

impl Disk for FileDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let names =
            fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.path.join(name))?;
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).open(self.path.join(name))?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.directory.sync_all()
    }
}

impl DiskFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match FileExt::read_at(self, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

const LOCK: &str = "lock";
