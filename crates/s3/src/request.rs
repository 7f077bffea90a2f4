//! A request on its way in, and its answer on its way out.
//!
//! Bodies are wrapped on both ways: to count their bytes, to give up on a client that sends nothing more, to compare
//! documents with the digests that came with them, and to keep the chunks of signed bodies small.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::chunks::ChunkGuard;
use crate::counters::{Counted, OPERATIONS};
use crate::digests::{BodyHasher, Promised};
use crate::lock;

/// What is known of a request while it is served.
pub(crate) struct Note {
    operation: AtomicUsize,
    failure: OnceLock<BodyFailure>,
    /// The rest of a body that nobody read.
    unread: Mutex<Option<Incoming>>,
}

impl Note {
    pub(crate) fn new() -> Self {
        Self {
            operation: AtomicUsize::new(OPERATIONS.len()),
            failure: OnceLock::new(),
            unread: Mutex::new(None),
        }
    }

    pub(crate) fn set_operation(&self, name: &str) {
        let place = OPERATIONS.iter().position(|known| *known == name).unwrap_or(OPERATIONS.len());
        self.operation.store(place, Ordering::Relaxed);
    }

    /// The place of the operation in [`OPERATIONS`].
    pub(crate) fn operation(&self) -> usize {
        self.operation.load(Ordering::Relaxed)
    }

    /// Why the body could not be read to its end.
    pub(crate) fn failure(&self) -> Option<BodyFailure> {
        self.failure.get().copied()
    }

    /// The rest of a body that nobody read.
    pub(crate) fn take_unread(&self) -> Option<Incoming> {
        lock(&self.unread).take()
    }
}

/// Why a body could not be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyFailure {
    /// The connection ended before the body did.
    #[error("the body ended early")]
    Cut,
    /// Nothing came for too long.
    #[error("nothing came for too long")]
    Idle,
    /// A chunk of a signed body is larger than we keep in memory.
    #[error("a chunk of the body is too large")]
    ChunkTooLarge,
    /// The chunks of the body are none.
    #[error("the chunks of the body are malformed")]
    ChunkMalformed,
    /// A document is not what its digests say.
    #[error("the body is not what its digest says")]
    Digest,
}

/// The body of a request.
pub(crate) struct RequestBody {
    inner: Option<Incoming>,
    note: Arc<Note>,
    counted: Arc<Counted>,
    patience: Duration,
    idle: Option<Pin<Box<Sleep>>>,
    guard: Option<ChunkGuard>,
    document: Option<(BodyHasher, Promised)>,
}

impl RequestBody {
    pub(crate) const fn new(
        inner: Incoming,
        note: Arc<Note>,
        counted: Arc<Counted>,
        patience: Duration,
        guard: Option<ChunkGuard>,
        document: Option<(BodyHasher, Promised)>,
    ) -> Self {
        Self { inner: Some(inner), note, counted, patience, idle: None, guard, document }
    }

    fn fail(&mut self, failure: BodyFailure) -> Poll<Option<Result<Frame<Bytes>, BodyFailure>>> {
        let failure = *self.note.failure.get_or_init(|| failure);
        self.inner = None;
        Poll::Ready(Some(Err(failure)))
    }

    /// The next bytes from the network.
    fn poll_network(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyFailure>>> {
        loop {
            let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
            match Pin::new(inner).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.idle = None;
                    // Trailers of HTTP itself mean nothing here.
                    let Ok(bytes) = frame.into_data() else { continue };
                    self.counted.bytes_in.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    return Poll::Ready(Some(Ok(bytes)));
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(BodyFailure::Cut))),
                Poll::Ready(None) => {
                    self.inner = None;
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    let until = Instant::now() + self.patience;
                    let idle = self.idle.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
                    ready!(idle.as_mut().poll(cx));
                    return Poll::Ready(Some(Err(BodyFailure::Idle)));
                }
            }
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyFailure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFailure>>> {
        let this = &mut *self;
        loop {
            if let Some(guard) = &mut this.guard {
                match guard.next() {
                    Ok(Some(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                    Ok(None) => {}
                    Err(failure) => return this.fail(failure),
                }
            }
            match ready!(this.poll_network(cx)) {
                Some(Err(failure)) => return this.fail(failure),
                Some(Ok(bytes)) => {
                    if let Some(guard) = &mut this.guard {
                        guard.push(bytes);
                        continue;
                    }
                    if let Some((hasher, _)) = &mut this.document {
                        hasher.update(&bytes);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                None => {
                    if let Some((hasher, promised)) = this.document.take()
                        && promised.check(&hasher.finish()).is_err()
                    {
                        return this.fail(BodyFailure::Digest);
                    }
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // A document is asked for its end, since its digest is compared there.
        self.document.is_none() && self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.inner, &self.guard) {
            (Some(inner), None) => inner.size_hint(),
            (None, _) => SizeHint::with_exact(0),
            (Some(_), Some(_)) => SizeHint::default(),
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take().filter(|inner| !inner.is_end_stream()) {
            *lock(&self.note.unread) = Some(inner);
        }
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody").finish_non_exhaustive()
    }
}

pin_project_lite::pin_project! {
    /// The body of an answer.
    pub(crate) struct AnswerBody {
        #[pin]
        inner: s3s::Body,
        counted: Arc<Counted>,
    }
}

impl AnswerBody {
    pub(crate) const fn new(inner: s3s::Body, counted: Arc<Counted>) -> Self {
        Self { inner, counted }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        let this = self.project();
        let frame = ready!(this.inner.poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(bytes) = frame.data_ref()
        {
            this.counted.bytes_out.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
