//! The directory of a log as it would be after opening it, without changing it.
//!
//! Opening a log cuts what a crash has left at its end, and goes on behind that. Here both happen in memory alone: what is
//! found on the disk of a stopped node can be looked at again, by others, as it was.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use synod_log::{Disk, DiskFile};

/// A directory under a sheet of glass: what is written stays on the glass.
#[derive(Debug)]
pub(super) struct Overlay {
    path: PathBuf,
    /// Files that were opened, made or removed.
    files: Mutex<BTreeMap<String, Option<Arc<OverlayFile>>>>,
    /// Held for as long as this lives, so that no node begins to write.
    _lock: Option<File>,
}

impl Overlay {
    /// Looks at a directory that no node uses.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such directory"));
        }
        let lock = match File::open(path.join(LOCK)) {
            Ok(lock) => {
                lock.try_lock_shared().map_err(io::Error::from)?;
                Some(lock)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Self { path: path.into(), files: Mutex::default(), _lock: lock })
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Option<Arc<OverlayFile>>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for Overlay {
    fn list(&self) -> io::Result<Vec<String>> {
        let files = self.files();
        let found =
            fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = found.collect::<io::Result<Vec<String>>>()?;
        names.retain(|name| !files.contains_key(name));
        names.extend(files.iter().filter(|(_, file)| file.is_some()).map(|(name, _)| name.clone()));
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        if self.list()?.iter().any(|other| other == name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = Arc::new(OverlayFile { below: None, written: Mutex::new(Some(Vec::new())) });
        self.files().insert(name.to_owned(), Some(Arc::clone(&file)));
        Ok(Box::new(Handle(file)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut files = self.files();
        let file = match files.get(name) {
            Some(Some(file)) => Arc::clone(file),
            Some(None) => return Err(io::ErrorKind::NotFound.into()),
            None => {
                let below = Some(File::open(self.path.join(name))?);
                Arc::new(OverlayFile { below, written: Mutex::new(None) })
            }
        };
        files.insert(name.to_owned(), Some(Arc::clone(&file)));
        Ok(Box::new(Handle(file)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files().insert(name.to_owned(), None);
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct OverlayFile {
    below: Option<File>,
    /// All of the file, once something was written.
    written: Mutex<Option<Vec<u8>>>,
}

impl OverlayFile {
    fn written(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut written = self.written();
        if written.is_none() {
            let mut bytes = Vec::new();
            if let Some(below) = &self.below {
                bytes.resize(usize::try_from(below.length()?).map_err(io::Error::other)?, 0);
                DiskFile::read_at(below, 0, &mut bytes)?;
            }
            *written = Some(bytes);
        }
        written.as_mut().map(change);
        Ok(())
    }
}

struct Handle(Arc<OverlayFile>);

impl DiskFile for Handle {
    fn length(&self) -> io::Result<u64> {
        match (&*self.0.written(), &self.0.below) {
            (Some(bytes), _) => Ok(bytes.len() as u64),
            (None, Some(below)) => below.length(),
            (None, None) => Ok(0),
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match (&*self.0.written(), &self.0.below) {
            (Some(bytes), _) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let count = (bytes.len() - from).min(buffer.len());
                buffer[..count].copy_from_slice(&bytes[from..from + count]);
                Ok(count)
            }
            (None, Some(below)) => DiskFile::read_at(below, offset, buffer),
            (None, None) => Ok(0),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        self.0.change(|all| {
            let end = from + bytes.len();
            if all.len() < end {
                all.resize(end, 0);
            }
            all[from..end].copy_from_slice(bytes);
        })
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        self.0.change(|all| all.resize(length, 0))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The file that whoever writes a log has locked.
const LOCK: &str = "lock";
