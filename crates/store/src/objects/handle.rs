//! The object store of a running node, as gateways use it.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use synod_core::objects::{Condition, EntryAnswer, EntryName, EntryOperation, ObjectEvent};
use tokio::sync::broadcast;

use super::archive::{ArchiveReport, ArchiveStatusJson};
use super::body::{self, PlaneWriter};
use super::codec::CONTENT_BYTES_MAX;
use super::content::{BRIEF_BYTES_MAX, Body, Content, Entry, INLINE_BYTES_MAX, META_BYTES_MAX};
use super::contract::{BodyStream, ListPage, ListQuery, ObjectStore, StoreError, WriteOutcome};
use super::plane::Plane;
use super::{list, request};

/// The object store of a node. Clones are the same one.
#[derive(Clone)]
pub struct Objects {
    pub(crate) plane: Arc<Plane>,
    patience: Duration,
    archive: Arc<OnceLock<ArchiveReport>>,
}

impl Objects {
    pub(crate) fn new(plane: Arc<Plane>) -> Self {
        Self { plane, patience: PATIENCE, archive: Arc::default() }
    }

    /// From now on the status of the node says how its archive is. The first report counts.
    pub fn report_archive(&self, report: ArchiveReport) {
        drop(self.archive.set(report));
    }

    /// How the archive of the node is, if somebody reports it.
    #[must_use]
    pub fn archive_status(&self) -> Option<ArchiveStatusJson> {
        self.archive.get().map(|report| report())
    }

    /// What happens to the objects of this node from now on. The event stream of the cluster tells it too, gathered; here
    /// whoever is too slow is told that it missed something.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<ObjectEvent> {
        self.plane.events()
    }

    async fn perform(&self, name: &EntryName, operation: EntryOperation) -> Result<EntryAnswer, StoreError> {
        request::perform(&self.plane, name, operation, self.patience).await
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("node", self.plane.own()).finish_non_exhaustive()
    }
}

impl ObjectStore for Objects {
    type Writer = PlaneWriter;

    async fn read(&self, name: &EntryName) -> Result<Option<Entry>, StoreError> {
        match self.perform(name, EntryOperation::Read).await? {
            EntryAnswer::Found(head) => entry(head),
            answer => Err(unexpected(&answer)),
        }
    }

    async fn write(
        &self,
        name: &EntryName,
        condition: Condition,
        etag: Arc<str>,
        content: Content,
    ) -> Result<WriteOutcome, StoreError> {
        check(&content)?;
        let content = content.to_bytes();
        if content.len() > CONTENT_BYTES_MAX {
            return Err(too_large("the list of parts", CONTENT_BYTES_MAX));
        }
        outcome(self.perform(name, EntryOperation::Write { condition, etag, content }).await?)
    }

    async fn delete(&self, name: &EntryName, condition: Condition) -> Result<WriteOutcome, StoreError> {
        let content = Content { modified_ms: unix_millis(), ..Content::default() }.to_bytes();
        outcome(self.perform(name, EntryOperation::Delete { condition, content }).await?)
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, StoreError> {
        list::list(&self.plane, &query, self.patience).await
    }

    fn body_writer(&self, name: &EntryName) -> PlaneWriter {
        PlaneWriter::new(Arc::clone(&self.plane), name)
    }

    fn read_body(&self, name: &EntryName, body: &Body, range: Range<u64>) -> BodyStream {
        body::read(Arc::clone(&self.plane), self.plane.slot_of(name), body, range)
    }
}

fn check(content: &Content) -> Result<(), StoreError> {
    if content.brief.len() > BRIEF_BYTES_MAX {
        return Err(too_large("what is listed", BRIEF_BYTES_MAX));
    }
    if content.meta.len() > META_BYTES_MAX {
        return Err(too_large("metadata", META_BYTES_MAX));
    }
    match &content.body {
        Body::Inline(bytes) if bytes.len() > INLINE_BYTES_MAX => {
            Err(too_large("a body in the head", INLINE_BYTES_MAX))
        }
        body if body.bytes() != content.size => {
            Err(StoreError::Damaged { reason: "the body has another size than its entry says".to_owned() })
        }
        _ => Ok(()),
    }
}

fn too_large(what: &str, bytes: usize) -> StoreError {
    StoreError::TooLarge { reason: format!("{what} has at most {bytes} bytes") }
}

fn outcome(answer: EntryAnswer) -> Result<WriteOutcome, StoreError> {
    match answer {
        EntryAnswer::Written(tag) => Ok(WriteOutcome::Done(Some(tag))),
        EntryAnswer::NothingDeleted => Ok(WriteOutcome::Done(None)),
        EntryAnswer::Refused(head) => Ok(WriteOutcome::Refused(entry(head)?)),
        EntryAnswer::Found(_) | EntryAnswer::Settled => Err(unexpected(&answer)),
    }
}

fn entry(head: Option<synod_core::objects::EntryHead>) -> Result<Option<Entry>, StoreError> {
    let entry = head.map(Entry::of_head).transpose();
    Ok(entry.map_err(|error| StoreError::Damaged { reason: error.to_string() })?.flatten())
}

fn unexpected(answer: &EntryAnswer) -> StoreError {
    StoreError::Damaged { reason: format!("the primary answered something else: {answer:?}") }
}

/// The time of the wall clock, in milliseconds.
pub(crate) fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// How long a request waits for a primary, before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);
