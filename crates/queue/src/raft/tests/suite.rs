//! The engine's own suite for logs and machines.

use std::sync::Arc;

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use synod_log::FileDisk;
use tempfile::TempDir;

use super::List;
use crate::journal::{Journal, JournalConfig};
use crate::raft::log_store::LogStore;
use crate::raft::machine::{MachineStore, Shared};
use crate::raft::types::Types;

struct Builder;

impl StoreBuilder<Types, LogStore, MachineStore<List>, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, MachineStore<List>), StorageError<Types>> {
        let dir = TempDir::new().expect("there is a directory");
        let disk = FileDisk::open(dir.path().join("log")).expect("the directory opens");
        let (journal, _) = Journal::open(JournalConfig::default(), disk).expect("the journal opens");
        let shared = Shared::open(List::default(), 3, dir.path().join("snapshots")).expect("there are none");
        Ok((dir, LogStore::new(Arc::new(journal), 3), MachineStore::new(Arc::new(shared))))
    }
}

#[tokio::test]
async fn the_log_and_the_machine_are_as_the_engine_wants_them() {
    Suite::test_all(Builder).await.expect("the suite passes");
}
