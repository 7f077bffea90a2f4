//! Receiving a snapshot from the leader.
//!
//! What has arrived stays when the connection breaks, and the leader goes on where it ended. A snapshot is used only when
//! all of it is here, durable, and its checksum is right.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openraft::storage::{Snapshot, SnapshotMeta};
use synod_wire::raft as wire;
use tonic::{Status, Streaming};

use super::snapshot::{self, SnapshotFile};
use super::types::{Types, read_id};
use crate::blocking::blocking;

/// Where parts of a snapshot are put together. One is received at a time.
pub(crate) struct Receiver {
    dir: PathBuf,
    group: u16,
    busy: tokio::sync::Mutex<()>,
}

impl Receiver {
    pub(crate) fn new(dir: PathBuf, group: u16) -> Self {
        Self { dir, group, busy: tokio::sync::Mutex::new(()) }
    }

    /// How much of a snapshot is here. What is here of others is given up.
    pub(crate) async fn offset(&self, name: &wire::SnapshotName) -> Result<u64, Status> {
        let _busy = self.busy.try_lock().map_err(|_| busy())?;
        let (dir, path, bytes) = (self.dir.clone(), self.path(name), name.bytes);
        let look = move || {
            clear(&dir, Some(&path))?;
            match fs::metadata(&path) {
                Ok(metadata) if metadata.len() <= bytes => Ok(metadata.len()),
                Ok(_) => fs::remove_file(&path).map(|()| 0),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
                Err(error) => Err(error),
            }
        };
        blocking(look).await.map_err(failed)
    }

    /// Takes in the rest of a snapshot, and verifies it.
    pub(crate) async fn receive(
        &self,
        first: &wire::InstallRequest,
        mut rest: Streaming<wire::InstallRequest>,
    ) -> Result<openraft::alias::SnapshotOf<Types, SnapshotFile>, Status> {
        let _busy = self.busy.try_lock().map_err(|_| busy())?;
        let name = first.name.as_ref().ok_or_else(|| Status::invalid_argument("which snapshot?"))?;
        let path = self.path(name);
        let open = {
            let path = path.clone();
            move || {
                let file = OpenOptions::new().create(true).append(true).open(path)?;
                let length = file.metadata()?.len();
                Ok((Arc::new(file), length))
            }
        };
        let (file, mut length) = blocking(open).await.map_err(failed)?;
        if length != first.offset {
            return Err(Status::failed_precondition(format!("{length} bytes of the snapshot are here")));
        }
        // What has arrived when this breaks off, the next attempt need not send again.
        while let Some(message) = rest.message().await? {
            length += message.data.len() as u64;
            if length > name.bytes {
                remove(path).await?;
                return Err(Status::invalid_argument("the snapshot is longer than it was to be"));
            }
            let file = Arc::clone(&file);
            blocking(move || (&*file).write_all(&message.data)).await.map_err(failed)?;
        }
        if length < name.bytes {
            return Err(Status::aborted(format!("only {length} bytes of the snapshot have arrived")));
        }
        self.finish(file, path, *name).await
    }

    async fn finish(
        &self,
        file: Arc<File>,
        path: PathBuf,
        name: wire::SnapshotName,
    ) -> Result<openraft::alias::SnapshotOf<Types, SnapshotFile>, Status> {
        blocking(move || file.sync_all()).await.map_err(failed)?;
        let (group, verified) = (self.group, path.clone());
        let verify = move || {
            snapshot::verify(&verified)?;
            snapshot::open(&verified, group)
        };
        let (file, (last, members)) = match blocking(verify).await {
            Ok(opened) => opened,
            Err(error) => {
                // It will not get better by receiving more of it.
                remove(path).await?;
                return Err(Status::data_loss(error.to_string()));
            }
        };
        if file.checksum != name.checksum || last != name.last.map(read_id) {
            remove(path).await?;
            return Err(Status::data_loss("another snapshot has arrived than was announced"));
        }
        let meta = SnapshotMeta { last_log_id: last, last_membership: members };
        Ok(Snapshot { meta, snapshot: SnapshotFile { is_verified: true, ..file } })
    }

    fn path(&self, name: &wire::SnapshotName) -> PathBuf {
        let last = name.last.unwrap_or_default();
        let (bytes, checksum) = (name.bytes, name.checksum);
        self.dir.join(format!("{PREFIX}{}-{}-{bytes}-{checksum:08x}", last.term, last.index))
    }
}

/// Removes parts of snapshots, but for one.
fn clear(dir: &Path, but: Option<&Path>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_part = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if is_part && Some(entry.path().as_path()) != but {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

async fn remove(path: PathBuf) -> Result<(), Status> {
    blocking(move || fs::remove_file(path)).await.map_err(failed)
}

fn busy() -> Status {
    Status::aborted("a snapshot is being received already")
}

#[allow(clippy::needless_pass_by_value)]
fn failed(error: io::Error) -> Status {
    Status::internal(format!("a snapshot cannot be kept: {error}"))
}

const PREFIX: &str = "part-";
