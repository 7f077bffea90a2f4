//! What a gateway needs of an object store.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use synod_core::objects::{Condition, EntryName, Space};
use synod_core::slots::Tag;
use tokio::sync::mpsc;

use super::content::{Body, Content, Entry};

/// A store of entries. Reads and writes of one entry are linearizable, whichever node they go through. Clones are the same
/// store.
pub trait ObjectStore: Clone + Send + Sync + 'static {
    /// Takes the bytes of a body.
    type Writer: BodyWriter;

    /// The entry, if it is there.
    fn read(&self, name: &EntryName) -> impl Future<Output = Result<Option<Entry>, StoreError>> + Send;

    /// Writes an entry whole, if the condition holds.
    fn write(
        &self,
        name: &EntryName,
        condition: Condition,
        etag: Arc<str>,
        content: Content,
    ) -> impl Future<Output = Result<WriteOutcome, StoreError>> + Send;

    /// Deletes an entry, if the condition holds.
    fn delete(
        &self,
        name: &EntryName,
        condition: Condition,
    ) -> impl Future<Output = Result<WriteOutcome, StoreError>> + Send;

    /// One page of entries, in the order of their names.
    fn list(&self, query: ListQuery) -> impl Future<Output = Result<ListPage, StoreError>> + Send;

    /// Takes the bytes of a body that is to be the one of `name`. They are kept, where an entry of that slot can name them,
    /// once the writer is finished; without an entry that names them they are collected some time later.
    fn body_writer(&self, name: &EntryName) -> Self::Writer;

    /// The bytes of an entry, or a range of them.
    fn read_body(&self, name: &EntryName, body: &Body, range: Range<u64>) -> BodyStream;
}

/// Takes the bytes of a body in pieces of any size. Dropped before it is finished, it leaves nothing.
pub trait BodyWriter: Send {
    /// Takes more. Waits while the replicas have not taken what came before.
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The body, durable on a majority.
    fn finish(self) -> impl Future<Output = Result<Body, StoreError>> + Send;
}

/// What became of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It took effect, as this write. `None` for the deletion of what was not there.
    Done(Option<Tag>),
    /// The condition does not hold: this is there instead. Nothing was changed.
    Refused(Option<Entry>),
}

/// What to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// Which kind of entries.
    pub space: Space,
    /// Of which bucket; empty for what is in none.
    pub bucket: String,
    /// Only keys that begin so.
    pub prefix: String,
    /// Keys that have this after the prefix are listed as one, up to and with it. Empty for none.
    pub delimiter: String,
    /// Where to go on.
    pub after: Option<ListPosition>,
    /// How many items, at most [`LIST_MAX`].
    pub limit: usize,
    /// All keys that are wanted live where this key does: ask only there.
    pub beside: Option<String>,
}

/// Where a page ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListPosition {
    /// After this key.
    Key(String),
    /// After all keys that begin so.
    Prefix(String),
}

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// In the order of their bytes.
    pub items: Vec<ListItem>,
    /// Whether there is more.
    pub is_truncated: bool,
}

/// One item of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListItem {
    /// An entry.
    Entry(ListedEntry),
    /// What several keys have in common, up to and with the delimiter.
    Prefix(String),
}

/// An entry, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEntry {
    /// Its key.
    pub key: String,
    /// Which write it is.
    pub tag: Tag,
    /// What conditions compare.
    pub etag: Arc<str>,
    /// How many bytes its body has.
    pub size: u64,
    /// When it was written, in milliseconds of the wall clock.
    pub modified_ms: u64,
    /// What its writer wanted to be listed.
    pub brief: Bytes,
}

/// The bytes of a body, as they come.
#[derive(Debug)]
pub struct BodyStream(mpsc::Receiver<Result<Bytes, StoreError>>);

impl BodyStream {
    /// What comes out of this channel.
    #[must_use]
    pub const fn new(pieces: mpsc::Receiver<Result<Bytes, StoreError>>) -> Self {
        Self(pieces)
    }

    /// The next piece; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<Bytes, StoreError>> {
        self.0.recv().await
    }

    /// The next piece, for those who poll.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, StoreError>>> {
        self.0.poll_recv(context)
    }
}

impl tokio_stream::Stream for BodyStream {
    type Item = Result<Bytes, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// Something could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Not now: too few replicas answer, or the slot has no primary. Nothing was changed.
    #[error("not now: {reason}; nothing was changed")]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// A write was begun, and whether it takes effect is not known.
    #[error("whether the write took effect is not known; read it")]
    Indeterminate,
    /// Bytes are damaged on every replica that answers.
    #[error("bytes are damaged: {reason}")]
    Damaged {
        /// Which, and where.
        reason: String,
    },
    /// A bound was exceeded. Nothing was changed.
    #[error("too large: {reason}; nothing was changed")]
    TooLarge {
        /// Which bound.
        reason: String,
    },
    /// There is no room on the disks. Nothing was changed.
    #[error("no room: {reason}; nothing was changed")]
    Full {
        /// Where.
        reason: String,
    },
}

/// How many items a page has at most.
pub const LIST_MAX: usize = 1000;
