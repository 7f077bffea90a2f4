//! Bodies on their way to the store and back.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use s3s::dto::StreamingBlob;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Request, S3Result, StdError, TrailingHeaders, s3_error};
use synod_core::objects::EntryName;
use synod_store::objects::content::{Body, Content, INLINE_BYTES_MAX};
use synod_store::objects::contract::{BodyStream, BodyWriter as _, ObjectStore, StoreError};
use tokio_stream::{Stream, StreamExt as _};

use super::Service;
use crate::digests::{Algorithm, BodyHasher, BodySums, Promised};
use crate::errors::{body_error, store_error};
use crate::request::Note;

/// A body that is with the store, though no entry names it yet.
pub(super) struct Received {
    pub(super) body: Body,
    pub(super) sums: BodySums,
}

/// A body on its way in.
pub(super) struct Sent {
    pub(super) stream: Option<StreamingBlob>,
    pub(super) length: u64,
    pub(super) promised: Promised,
    pub(super) trailers: Option<TrailingHeaders>,
    pub(super) note: Option<Arc<Note>>,
}

impl Sent {
    /// The body of a request.
    pub(super) fn of<T>(
        request: &S3Request<T>,
        stream: Option<StreamingBlob>,
        length: Option<i64>,
        promised: Promised,
    ) -> S3Result<Self> {
        // A body in chunks of its own may come without saying how long the chunks are together.
        let decoded = || request.headers.get("x-amz-decoded-content-length")?.to_str().ok()?.parse().ok();
        let length = length.or_else(decoded).ok_or_else(|| {
            s3_error!(MissingContentLength, "You must provide the Content-Length HTTP header.")
        })?;
        let length =
            u64::try_from(length).map_err(|_| s3_error!(InvalidArgument, "A length is not negative."))?;
        if length > super::OBJECT_BYTES_MAX {
            return Err(s3_error!(EntityTooLarge, "Your proposed upload exceeds the maximum allowed size"));
        }
        Ok(Self {
            stream,
            length,
            promised,
            trailers: request.trailing_headers.clone(),
            note: request.extensions.get::<Arc<Note>>().cloned(),
        })
    }

    /// The next bytes, at most as many as were said to come.
    async fn next(&mut self, left: &mut u64) -> S3Result<Option<Bytes>> {
        let Some(stream) = &mut self.stream else {
            return if *left == 0 { Ok(None) } else { Err(incomplete()) };
        };
        match stream.next().await {
            Some(Ok(bytes)) => {
                *left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
                    s3_error!(InvalidRequest, "The body has more bytes than its length says.")
                })?;
                Ok(Some(bytes))
            }
            Some(Err(error)) => {
                let failure = self.note.as_ref().and_then(|note| note.failure());
                Err(body_error(failure, Some(&error)))
            }
            None if *left > 0 => Err(incomplete()),
            None => Ok(None),
        }
    }

    /// Whether what came is what was promised.
    fn check(&mut self, hasher: BodyHasher) -> S3Result<BodySums> {
        let trailers = self.trailers.as_ref().and_then(TrailingHeaders::take);
        self.promised.hear_trailers(trailers.as_ref())?;
        let sums = hasher.finish();
        self.promised.check(&sums)?;
        Ok(sums)
    }
}

impl<S: ObjectStore> Service<S> {
    /// Takes a body to the store. It is summed as promised, or by `algorithm`.
    pub(super) async fn receive(
        &self,
        name: &EntryName,
        mut sent: Sent,
        algorithm: Option<Algorithm>,
    ) -> S3Result<Received> {
        let mut hasher = BodyHasher::new(sent.promised.algorithm.or(algorithm));
        let mut left = sent.length;
        if sent.length <= INLINE_BYTES_MAX as u64 {
            // Usually all of it comes at once, and is not copied.
            let mut whole = Bytes::new();
            let mut gathered = BytesMut::new();
            while let Some(bytes) = sent.next(&mut left).await? {
                hasher.update(&bytes);
                match (whole.is_empty(), gathered.is_empty()) {
                    (true, true) => whole = bytes,
                    (false, true) => {
                        gathered.reserve(usize::try_from(sent.length).unwrap_or(INLINE_BYTES_MAX));
                        gathered.extend_from_slice(&std::mem::take(&mut whole));
                        gathered.extend_from_slice(&bytes);
                    }
                    _ => gathered.extend_from_slice(&bytes),
                }
            }
            let sums = sent.check(hasher)?;
            let bytes = if gathered.is_empty() { whole } else { gathered.freeze() };
            return Ok(Received { body: Body::Inline(bytes), sums });
        }
        let mut writer = self.store().body_writer(name);
        while let Some(bytes) = sent.next(&mut left).await? {
            hasher.update(&bytes);
            writer.write(bytes).await.map_err(store_error)?;
        }
        let sums = sent.check(hasher)?;
        Ok(Received { body: writer.finish().await.map_err(store_error)?, sums })
    }

    /// Writes bytes that the store has once more, as the body of another entry.
    pub(super) async fn copy_body(
        &self,
        from: &EntryName,
        content: &Content,
        range: Range<u64>,
        to: &EntryName,
        algorithm: Option<Algorithm>,
    ) -> S3Result<Received> {
        let mut hasher = BodyHasher::new(algorithm);
        if let Body::Inline(bytes) = &content.body {
            let bytes = slice(bytes, &range)?;
            hasher.update(&bytes);
            return Ok(Received { body: Body::Inline(bytes), sums: hasher.finish() });
        }
        let mut left = range.end.saturating_sub(range.start);
        let mut stream = self.store().read_body(from, &content.body, range);
        let mut writer = self.store().body_writer(to);
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.map_err(store_error)?;
            left = left.saturating_sub(bytes.len() as u64);
            hasher.update(&bytes);
            writer.write(bytes).await.map_err(store_error)?;
        }
        if left > 0 {
            return Err(store_error(ended_early()));
        }
        Ok(Received { body: writer.finish().await.map_err(store_error)?, sums: hasher.finish() })
    }

    /// The bytes of an entry for an answer. Its first bytes are there when this returns, so that what is wrong with them is
    /// said instead of cutting the answer off.
    pub(super) async fn send(
        &self,
        name: &EntryName,
        content: &Content,
        range: Range<u64>,
    ) -> S3Result<StreamingBlob> {
        if let Body::Inline(bytes) = &content.body {
            return Ok(StreamingBlob::from(s3s::Body::from(slice(bytes, &range)?)));
        }
        let left = range.end.saturating_sub(range.start);
        if left == 0 {
            return Ok(StreamingBlob::from(s3s::Body::empty()));
        }
        let mut stream = self.store().read_body(name, &content.body, range);
        let first = match stream.next().await {
            Some(first) => first.map_err(store_error)?,
            None => return Err(store_error(ended_early())),
        };
        Ok(StreamingBlob::new(Answered { first: Some(first), stream, left }))
    }
}

/// The bytes of an entry on their way out.
struct Answered {
    first: Option<Bytes>,
    stream: BodyStream,
    left: u64,
}

impl Stream for Answered {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let bytes = match self.first.take() {
            Some(first) => Some(Ok(first)),
            None => ready!(self.stream.poll_next(cx)),
        };
        Poll::Ready(match bytes {
            Some(Ok(bytes)) => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                Some(Ok(bytes))
            }
            // The client sees a connection that ends before its length does.
            Some(Err(error)) => {
                tracing::error!(%error, "an answer was cut off");
                Some(Err(Box::new(error)))
            }
            None if self.left > 0 => Some(Err(Box::new(ended_early()))),
            None => None,
        })
    }
}

impl ByteStream for Answered {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(usize::try_from(self.left).unwrap_or(usize::MAX))
    }
}

fn slice(bytes: &Bytes, range: &Range<u64>) -> S3Result<Bytes> {
    let place = |place| usize::try_from(place).ok().filter(|place| *place <= bytes.len());
    match (place(range.start), place(range.end)) {
        (Some(start), Some(end)) if start <= end => Ok(bytes.slice(start..end)),
        _ => Err(store_error(ended_early())),
    }
}

fn ended_early() -> StoreError {
    StoreError::Damaged { reason: "a body has fewer bytes than its entry says".to_owned() }
}

fn incomplete() -> s3s::S3Error {
    s3_error!(
        IncompleteBody,
        "You did not provide the number of bytes specified by the Content-Length HTTP header."
    )
}
