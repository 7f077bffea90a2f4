//! Stub.
use std::path::Path;
use synod_core::Incarnation;
use synod_core::slots::*;
use synod_log::{LogError, Ticket};
#[derive(Debug, thiserror::Error)]
pub enum FilesError { #[error(transparent)] Log(#[from] LogError) }
pub enum Entry { Op(RegistryOp), Bootstrap(BootstrapState), Incarnation(Incarnation), Takeover(String) }
pub struct RegistryFiles;
#[derive(Clone, Debug)]
pub struct Recovered { pub bootstrap: Option<BootstrapState>, pub incarnation: Option<Incarnation>, pub restored: Restored }
impl RegistryFiles {
    pub fn open(_dir: &Path) -> Result<(Self, Recovered), FilesError> { todo!() }
    pub fn append(&self, _entries: &[Entry]) -> Result<Ticket, FilesError> { todo!() }
    pub fn wants_snapshot(&self) -> bool { false }
    pub fn snapshot(&self) -> Result<(), FilesError> { todo!() }
    pub fn audit(&self, _takeover: &Takeover, _unix_millis: u64) -> Result<(), FilesError> { todo!() }
}
