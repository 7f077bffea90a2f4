//! What the entries of a group are applied to, and how the engine reaches it.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::{EntryPayload, OptionalSend, StoredMembership};

use super::snapshot::{self, SnapshotFile};
use super::types::{LogId, Output, StoredMembers, Types};
use crate::blocking::blocking;

/// What the entries of a group are applied to. Every replica has one, and all become the same.
pub trait Machine: Send + 'static {
    /// What applying one entry gives to whoever proposed it here.
    type Output: Send + 'static;
    /// A state that can be written out while the machine goes on.
    type Frozen: Send + 'static;

    /// Applies a committed entry. `is_wanted`: somebody here waits for the output, for it was proposed by this node.
    ///
    /// # Errors
    /// The machine cannot go on. The group ends.
    fn apply(&mut self, index: u64, entry: &Bytes, is_wanted: bool) -> io::Result<Self::Output>;

    /// The last entry that was applied, and a digest of all that came of the log up to it. Replicas compare theirs. `None`:
    /// there is nothing to compare.
    fn digest(&self) -> Option<(u64, u64)> {
        None
    }

    /// The digest as it was after an entry, if that is still known.
    fn digest_at(&self, _index: u64) -> Option<u64> {
        None
    }

    /// The state as it is now.
    fn freeze(&self) -> Self::Frozen;

    /// Writes a state out.
    ///
    /// # Errors
    /// The writer failed.
    fn write(frozen: Self::Frozen, out: &mut dyn Write) -> io::Result<()>;

    /// The machine as it was written. Reads to the end.
    ///
    /// # Errors
    /// The reader failed, or what it gave makes no sense.
    fn read(group: u16, input: &mut dyn Read) -> io::Result<Self>
    where
        Self: Sized;
}

/// A machine with its snapshots, shared by the engine and those who read.
pub(crate) struct Shared<M> {
    pub(crate) machine: Mutex<M>,
    group: u16,
    /// Where snapshots are.
    dir: PathBuf,
    current: Mutex<Option<Current>>,
}

/// The newest snapshot.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) last: Option<LogId>,
    members: StoredMembers,
}

impl<M: Machine> Shared<M> {
    /// A machine that is empty, beside the newest snapshot that there is. The engine installs that one when it starts.
    ///
    /// # Errors
    /// The disk failed, or the snapshot is damaged.
    pub(crate) fn open(machine: M, group: u16, dir: PathBuf) -> io::Result<Self> {
        let current = snapshot::newest(&dir)?.map(|path| {
            let (file, header) = snapshot::open(&path, group)?;
            let (last, members) = header;
            Ok::<_, io::Error>(Current { bytes: file.bytes, path, last, members })
        });
        let current = Mutex::new(current.transpose()?);
        Ok(Self { machine: Mutex::new(machine), group, dir, current })
    }

    pub(crate) fn machine(&self) -> MutexGuard<'_, M> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest snapshot.
    pub(crate) fn current(&self) -> Option<Current> {
        self.lock().clone()
    }

    /// Writes a snapshot, unless there is a newer one by then. Blocks.
    fn write(&self, frozen: M::Frozen, last: Option<LogId>, members: &StoredMembers) -> io::Result<()> {
        let temporary = snapshot::write::<M>(&self.dir, self.group, last.as_ref(), members, frozen)?;
        self.adopt(&temporary, last, members)
    }

    /// Reads a snapshot that is verified, makes it the newest and the machine what it says. Blocks.
    fn install(&self, file: &SnapshotFile, last: Option<LogId>, members: &StoredMembers) -> io::Result<()> {
        if !file.is_verified {
            snapshot::verify(&file.path)?;
        }
        let machine = snapshot::read::<M>(&file.path, self.group)?;
        self.adopt(&file.path, last, members)?;
        *self.machine() = machine;
        Ok(())
    }

    /// Gives a file its name as the newest snapshot, and removes the others.
    fn adopt(&self, path: &std::path::Path, last: Option<LogId>, members: &StoredMembers) -> io::Result<()> {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|current| current.last > last) {
            return std::fs::remove_file(path);
        }
        let (path, bytes) = snapshot::adopt(&self.dir, path, last.as_ref())?;
        *current = Some(Current { path, bytes, last, members: members.clone() });
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The machine as the engine sees it.
pub(crate) struct MachineStore<M: Machine> {
    shared: Arc<Shared<M>>,
    applied: Option<LogId>,
    members: StoredMembers,
}

impl<M: Machine> MachineStore<M> {
    pub(crate) fn new(shared: Arc<Shared<M>>) -> Self {
        Self { shared, applied: None, members: StoredMembership::default() }
    }
}

impl<M: Machine> RaftStateMachine<Types> for MachineStore<M> {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder<M>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembers)> {
        Ok((self.applied, self.members.clone()))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        let mut batches = entries.ready_chunks(BATCH_ENTRIES_MAX);
        let mut answers = Vec::new();
        while let Some(batch) = batches.next().await {
            {
                let mut machine = self.shared.machine();
                for item in batch {
                    let (entry, responder) = item?;
                    let output = match entry.payload {
                        EntryPayload::Blank => Output::none(),
                        EntryPayload::Membership(members) => {
                            self.members = StoredMembership::new(Some(entry.log_id), members);
                            Output::none()
                        }
                        EntryPayload::Normal(command) => {
                            let output =
                                machine.apply(entry.log_id.index, &command.0, responder.is_some())?;
                            if responder.is_some() { Output::new(output) } else { Output::none() }
                        }
                    };
                    self.applied = Some(entry.log_id);
                    answers.extend(responder.map(|responder| (responder, output)));
                }
            }
            for (responder, output) in answers.drain(..) {
                responder.send(output);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        let frozen = Mutex::new(Some(self.shared.machine().freeze()));
        Builder {
            shared: Arc::clone(&self.shared),
            frozen,
            last: self.applied,
            members: self.members.clone(),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &openraft::alias::SnapshotMetaOf<Types>,
        file: SnapshotFile,
    ) -> io::Result<()> {
        let (shared, last, members) =
            (Arc::clone(&self.shared), meta.last_log_id, meta.last_membership.clone());
        blocking(move || shared.install(&file, last, &members)).await?;
        self.applied = last;
        self.members = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<openraft::alias::SnapshotOf<Types, SnapshotFile>>> {
        self.shared.current().map(|current| current.open(self.shared.group)).transpose()
    }
}

/// Writes a snapshot of a machine that goes on.
pub(crate) struct Builder<M: Machine> {
    shared: Arc<Shared<M>>,
    /// Behind a lock for the engine, which asks for more than is needed: nobody else has it.
    frozen: Mutex<Option<M::Frozen>>,
    last: Option<LogId>,
    members: StoredMembers,
}

impl<M: Machine> RaftSnapshotBuilder<Types> for Builder<M> {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<openraft::alias::SnapshotOf<Types, SnapshotFile>> {
        let frozen = self.frozen.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let frozen = frozen.ok_or_else(|| io::Error::other("the snapshot was written already"))?;
        let (shared, last, members) = (Arc::clone(&self.shared), self.last, self.members.clone());
        let write = move || {
            shared.write(frozen, last, &members)?;
            let current = shared.current().ok_or_else(|| io::Error::other("there is no snapshot"))?;
            current.open(shared.group)
        };
        blocking(write).await
    }
}

impl Current {
    fn open(&self, group: u16) -> io::Result<openraft::alias::SnapshotOf<Types, SnapshotFile>> {
        let (file, _) = snapshot::open(&self.path, group)?;
        let meta = SnapshotMeta { last_log_id: self.last, last_membership: self.members.clone() };
        Ok(Snapshot { meta, snapshot: file })
    }
}

/// The most entries that are applied before others may read the machine.
const BATCH_ENTRIES_MAX: usize = 64;
