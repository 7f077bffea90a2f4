//! The bucket of the archive: copies are looked at, read, written and deleted. The only module that speaks to it.

mod parts;

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::multipart::{MultipartStore as _, PartId};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, ObjectStore as _, ObjectStoreExt as _,
    PutMultipartOptions, PutOptions, PutPayload, RetryConfig,
};
use synod_core::objects::EntryName;
use synod_core::slots::Tag;
use synod_store::objects::contract::StoreError;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;

use crate::copy::{Copy, aside_attributes, generation_of};
use crate::names::{copy_path, meta_path};
use crate::settings::{ArchiveError, ArchiveSettings};
use crate::worker::ArchiveCounters;
pub(crate) use parts::SentPart;

/// The archive of a cluster. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Archive {
    s3: Arc<AmazonS3>,
    /// For the one request that the library of the bucket does not know.
    http: reqwest::Client,
    namespace: Arc<str>,
    counters: Arc<ArchiveCounters>,
}

impl Archive {
    /// The archive of the cluster with this namespace. Nobody is asked yet.
    ///
    /// # Errors
    /// The settings cannot be used.
    pub fn open(settings: &ArchiveSettings, namespace: &str) -> Result<Self, ArchiveError> {
        // Another one may be there already; any does.
        drop(rustls::crypto::ring::default_provider().install_default());
        let ArchiveSettings { bucket, region, endpoint, allow_http, access_key_id, secret_access_key } =
            settings;
        let mut builder = match (access_key_id, secret_access_key) {
            (Some(id), Some(secret)) => {
                AmazonS3Builder::new().with_access_key_id(id).with_secret_access_key(secret)
            }
            _ => AmazonS3Builder::from_env(),
        };
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        let options = ClientOptions::new()
            .with_allow_http(*allow_http)
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_read_timeout(READ_TIMEOUT)
            // A body may take as long as it moves.
            .with_timeout_disabled();
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(1),
            base: 2.0,
        };
        // Whoever asks tries again by itself, and knows better whether it is still worth it.
        let retry = RetryConfig { backoff, max_retries: 1, retry_timeout: READ_TIMEOUT };
        let s3 = builder
            .with_bucket_name(bucket)
            .with_region(region)
            .with_client_options(options)
            .with_retry(retry)
            // One object at a time is deleted, and not every service knows how to delete many.
            .with_disable_bulk_delete(true)
            .build()
            .map_err(|error| ArchiveError::Settings { reason: error.to_string() })?;
        let http = reqwest::Client::builder()
            .https_only(!allow_http)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .build()
            .map_err(|error| ArchiveError::Settings { reason: error.to_string() })?;
        Ok(Self { s3: Arc::new(s3), http, namespace: namespace.into(), counters: Arc::default() })
    }

    pub(crate) const fn counters(&self) -> &Arc<ArchiveCounters> {
        &self.counters
    }

    /// What the archive has of an object.
    pub(crate) async fn look(&self, object: &EntryName) -> Result<Option<Copy>, ArchiveError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let found = match within(LOOK_TIMEOUT, self.s3.get_opts(&self.path(object)?, options)).await {
            Ok(found) => found,
            Err(Failure::NotFound) => return Ok(None),
            Err(Failure::Other(error)) => return Err(error),
        };
        let modified_ms = u64::try_from(found.meta.last_modified.timestamp_millis()).unwrap_or(0);
        let etag = found.meta.e_tag.as_deref().unwrap_or_default();
        let (mut copy, is_aside) = Copy::read(&found.attributes, found.meta.size, etag, modified_ms)
            .ok_or_else(|| failed("its metadata cannot be read"))?;
        if is_aside {
            copy.meta = self.meta_aside(object, copy.generation).await?;
        }
        Ok(Some(copy))
    }

    /// Whether the archive has this copy.
    pub(crate) async fn has(&self, object: &EntryName, copy: &Copy) -> Result<bool, ArchiveError> {
        match self.look(object).await {
            // Half of one copy and half of another is neither.
            Err(ArchiveError::Changed) => Ok(false),
            found => Ok(found?.as_ref() == Some(copy)),
        }
    }

    /// Whether the archive has any copy of an object.
    pub(crate) async fn is_there(&self, object: &EntryName) -> Result<bool, ArchiveError> {
        match self.look(object).await {
            Err(ArchiveError::Changed) => Ok(true),
            found => Ok(found?.is_some()),
        }
    }

    async fn meta_aside(&self, object: &EntryName, generation: Option<Tag>) -> Result<Bytes, ArchiveError> {
        let aside = self.meta_path(object)?;
        let read = async {
            let found = self.s3.get_opts(&aside, GetOptions::default()).await?;
            let generation = generation_of(&found.attributes);
            Ok((generation, found.bytes().await?))
        };
        match within(LOOK_TIMEOUT, read).await {
            Ok((found, meta)) if found == generation => Ok(meta),
            Ok(_) | Err(Failure::NotFound) => Err(ArchiveError::Changed),
            Err(Failure::Other(error)) => Err(error),
        }
    }

    /// Streams a range of a copy, which has to be of this generation, into a channel. False when nobody takes it any more.
    pub(crate) async fn read(
        &self,
        object: &EntryName,
        generation: Option<Tag>,
        mut range: Range<u64>,
        pieces: &mpsc::Sender<Result<Bytes, StoreError>>,
    ) -> Result<bool, ArchiveError> {
        if range.is_empty() {
            return Ok(true);
        }
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let path = self.path(object)?;
        let found = match within(LOOK_TIMEOUT, self.s3.get_opts(&path, options)).await {
            Ok(found) => found,
            Err(Failure::NotFound) => return Err(ArchiveError::Changed),
            Err(Failure::Other(error)) => return Err(error),
        };
        if generation_of(&found.attributes) != generation || found.range != range {
            return Err(ArchiveError::Changed);
        }
        let mut stream = found.into_stream();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|error| failed(&error.to_string()))?;
            range.start += piece.len() as u64;
            if range.start > range.end {
                return Err(failed("more bytes came than were asked for"));
            }
            if pieces.send(Ok(piece)).await.is_err() {
                return Ok(false);
            }
        }
        match range.is_empty() {
            true => Ok(true),
            false => Err(failed("fewer bytes came than were asked for")),
        }
    }

    /// Writes a copy at once.
    pub(crate) async fn put(
        &self,
        object: &EntryName,
        copy: &Copy,
        body: Vec<Bytes>,
    ) -> Result<(), ArchiveError> {
        let (attributes, is_aside) = copy.attributes();
        self.put_aside(object, copy, is_aside).await?;
        let options = PutOptions { attributes, ..PutOptions::default() };
        let payload = PutPayload::from_iter(body);
        let path = self.path(object)?;
        within(WRITE_TIMEOUT, self.s3.put_opts(&path, payload, options))
            .await
            .map(drop)
            .map_err(Failure::error)
    }

    /// Begins to write a copy in parts.
    pub(crate) async fn begin(&self, object: &EntryName, copy: &Copy) -> Result<String, ArchiveError> {
        let (attributes, is_aside) = copy.attributes();
        self.put_aside(object, copy, is_aside).await?;
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let path = self.path(object)?;
        let begun = within(WRITE_TIMEOUT, self.s3.create_multipart_opts(&path, options));
        begun.await.map_err(Failure::error)
    }

    pub(crate) async fn put_part(
        &self,
        object: &EntryName,
        upload: &str,
        index: usize,
        body: Vec<Bytes>,
    ) -> Result<PartId, ArchiveError> {
        let (path, upload) = (self.path(object)?, upload.to_owned());
        let put = self.s3.put_part(&path, &upload, index, PutPayload::from_iter(body));
        within(WRITE_TIMEOUT, put).await.map_err(Failure::error)
    }

    pub(crate) async fn complete(
        &self,
        object: &EntryName,
        upload: &str,
        parts: Vec<PartId>,
    ) -> Result<(), ArchiveError> {
        let (path, upload) = (self.path(object)?, upload.to_owned());
        let completed = within(WRITE_TIMEOUT, self.s3.complete_multipart(&path, &upload, parts));
        completed.await.map(drop).map_err(Failure::error)
    }

    /// Ends an upload that nobody will complete. One that is not there any more is ended.
    pub(crate) async fn abort(&self, object: &EntryName, upload: &str) -> Result<(), ArchiveError> {
        let (path, upload) = (self.path(object)?, upload.to_owned());
        gone(within(WRITE_TIMEOUT, self.s3.abort_multipart(&path, &upload)).await)
    }

    /// Deletes a copy. One that is not there is deleted.
    pub(crate) async fn delete(&self, object: &EntryName) -> Result<(), ArchiveError> {
        gone(within(WRITE_TIMEOUT, self.s3.delete(&self.path(object)?)).await)?;
        gone(within(WRITE_TIMEOUT, self.s3.delete(&self.meta_path(object)?)).await)
    }

    async fn put_aside(&self, object: &EntryName, copy: &Copy, is_aside: bool) -> Result<(), ArchiveError> {
        let Some(generation) = copy.generation.filter(|_| is_aside) else { return Ok(()) };
        let options = PutOptions { attributes: aside_attributes(generation), ..PutOptions::default() };
        let path = self.meta_path(object)?;
        let put = self.s3.put_opts(&path, PutPayload::from(copy.meta.clone()), options);
        within(WRITE_TIMEOUT, put).await.map(drop).map_err(Failure::error)
    }

    fn path(&self, object: &EntryName) -> Result<Path, ArchiveError> {
        copy_path(&self.namespace, object).ok_or_else(|| failed("the key cannot be a path"))
    }

    fn meta_path(&self, object: &EntryName) -> Result<Path, ArchiveError> {
        meta_path(&self.namespace, object).ok_or_else(|| failed("the key cannot be a path"))
    }
}

enum Failure {
    NotFound,
    Other(ArchiveError),
}

impl Failure {
    fn error(self) -> ArchiveError {
        match self {
            Self::NotFound => failed("there is no such bucket, or no such upload"),
            Self::Other(error) => error,
        }
    }
}

/// Waits for the archive, and not for ever.
async fn within<T>(patience: Duration, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    match tokio::time::timeout(patience, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Error::NotFound { .. })) => Err(Failure::NotFound),
        Ok(Err(error)) => Err(Failure::Other(failed(&error.to_string()))),
        Err(_) => Err(Failure::Other(failed(&format!("no answer within {} s", patience.as_secs())))),
    }
}

fn gone(done: Result<(), Failure>) -> Result<(), ArchiveError> {
    match done {
        Ok(()) | Err(Failure::NotFound) => Ok(()),
        Err(Failure::Other(error)) => Err(error),
    }
}

fn failed(reason: &str) -> ArchiveError {
    ArchiveError::Failed { reason: reason.to_owned() }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Clients wait for it.
const LOOK_TIMEOUT: Duration = Duration::from_secs(8);
/// How long one request with up to a part may take. Far below the grace after which nobody reckons with it any more.
const WRITE_TIMEOUT: Duration = Duration::from_secs(180);
