//! Receiving a snapshot from the leader.
//!
//! What has arrived stays when the connection breaks, and the leader goes on where it ended. A snapshot is used only when
//! all of it is here, durable, and its checksum is right.

use std::io;
use std::path::{Path, PathBuf};

use openraft::storage::{Snapshot, SnapshotMeta};
use synod_wire::raft as wire;
use tokio::fs::{self, File, OpenOptions};
use tokio::io::AsyncWriteExt as _;
use tonic::{Status, Streaming};

use super::snapshot::{self, SnapshotFile};
use super::types::{Types, read_id};

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
        let path = self.path(name);
        self.clear(Some(&path)).await.map_err(failed)?;
        match fs::metadata(&path).await {
            Ok(metadata) if metadata.len() <= name.bytes => Ok(metadata.len()),
            Ok(_) => fs::remove_file(&path).await.map(|()| 0).map_err(failed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(failed(error)),
        }
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
        let mut file = OpenOptions::new().create(true).append(true).open(&path).await.map_err(failed)?;
        let mut length = file.metadata().await.map_err(failed)?.len();
        if length != first.offset {
            return Err(Status::failed_precondition(format!("{length} bytes of the snapshot are here")));
        }
        loop {
            let message = match rest.message().await {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(status) => {
                    // So much the next attempt need not send again.
                    file.flush().await.map_err(failed)?;
                    return Err(status);
                }
            };
            length += message.data.len() as u64;
            if length > name.bytes {
                fs::remove_file(&path).await.map_err(failed)?;
                return Err(Status::invalid_argument("the snapshot is longer than it was to be"));
            }
            file.write_all(&message.data).await.map_err(failed)?;
        }
        file.flush().await.map_err(failed)?;
        if length < name.bytes {
            return Err(Status::aborted(format!("only {length} bytes of the snapshot have arrived")));
        }
        self.finish(file, path, *name).await
    }

    async fn finish(
        &self,
        file: File,
        path: PathBuf,
        name: wire::SnapshotName,
    ) -> Result<openraft::alias::SnapshotOf<Types, SnapshotFile>, Status> {
        file.sync_all().await.map_err(failed)?;
        let (group, verified) = (self.group, path.clone());
        let verify = tokio::task::spawn_blocking(move || {
            snapshot::verify(&verified)?;
            snapshot::open(&verified, group)
        });
        let verified = verify.await.map_err(|error| Status::internal(error.to_string()))?;
        let (file, (last, members)) = match verified {
            Ok(opened) => opened,
            Err(error) => {
                // It will not get better by receiving more of it.
                fs::remove_file(&path).await.map_err(failed)?;
                return Err(Status::data_loss(error.to_string()));
            }
        };
        if file.checksum != name.checksum || last != name.last.map(read_id) {
            fs::remove_file(&path).await.map_err(failed)?;
            return Err(Status::data_loss("another snapshot has arrived than was announced"));
        }
        let meta = SnapshotMeta { last_log_id: last, last_membership: members };
        Ok(Snapshot { meta, snapshot: SnapshotFile { is_verified: true, ..file } })
    }

    /// Removes parts of snapshots, but for one.
    pub(crate) async fn clear(&self, but: Option<&Path>) -> io::Result<()> {
        let mut entries = fs::read_dir(&self.dir).await?;
        while let Some(entry) = entries.next_entry().await? {
            let is_part = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
            if is_part && Some(entry.path().as_path()) != but {
                fs::remove_file(entry.path()).await?;
            }
        }
        Ok(())
    }

    fn path(&self, name: &wire::SnapshotName) -> PathBuf {
        let last = name.last.unwrap_or_default();
        let (bytes, checksum) = (name.bytes, name.checksum);
        self.dir.join(format!("{PREFIX}{}-{}-{bytes}-{checksum:08x}", last.term, last.index))
    }
}

fn busy() -> Status {
    Status::aborted("a snapshot is being received already")
}

#[allow(clippy::needless_pass_by_value)]
fn failed(error: io::Error) -> Status {
    Status::internal(format!("a snapshot cannot be kept: {error}"))
}

const PREFIX: &str = "part-";
