//! S3 itself: what each operation means for the store.

mod attributes;
mod body;
mod buckets;
mod complete;
mod conditions;
mod configuration;
mod copies;
mod listing;
mod metadata;
mod objects;
mod operations;
mod several;
pub(crate) mod uploads;

use std::sync::Arc;
use std::time::Instant;

use s3s::{S3Error, S3Request, S3Result, s3_error};
use synod_core::objects::{EntryName, Space};
use synod_store::objects::contract::ObjectStore;
use tokio::task::JoinSet;

use crate::access::Caller;
use crate::cache::{Cache, Reading};
use crate::errors::{record_error, store_error};
use crate::keys;
use crate::records::{AccessRecord, BucketRecord, Record as _};

/// S3 on a store. Clones are the same.
pub(crate) struct Service<S>(Arc<Shared<S>>);

impl<S> Clone for Service<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Shared<S> {
    store: S,
    region: String,
    keys: Cache<AccessRecord>,
    buckets: Cache<Bucket>,
}

/// A bucket that is there.
pub(crate) struct Bucket {
    pub(crate) record: BucketRecord,
}

impl<S: ObjectStore> Service<S> {
    pub(crate) fn new(store: S, region: String) -> Self {
        Self(Arc::new(Shared { store, region, keys: Cache::new(), buckets: Cache::new() }))
    }

    fn store(&self) -> &S {
        &self.0.store
    }

    /// What an access key may do.
    pub(crate) async fn access_key(&self, id: &str) -> S3Result<Arc<AccessRecord>> {
        let unknown = || {
            s3_error!(InvalidAccessKeyId, "The AWS Access Key Id you provided does not exist in our records.")
        };
        let name = keys::entry_name(id).map_err(|_| unknown())?;
        let reading = match self.0.keys.get(id, Instant::now()) {
            Ok(access) => return Ok(access),
            Err(reading) => reading,
        };
        let entry = self.store().read(&name).await.map_err(store_error)?.ok_or_else(unknown)?;
        let access = Arc::new(AccessRecord::from_bytes(entry.content.meta).map_err(record_error)?);
        self.0.keys.keep(id, &access, reading, Instant::now());
        Ok(access)
    }

    /// A bucket, if it is there, or was a moment ago.
    pub(crate) async fn bucket_if_there(&self, name: &str) -> S3Result<Option<Arc<Bucket>>> {
        match self.0.buckets.get(name, Instant::now()) {
            Ok(bucket) => Ok(Some(bucket)),
            Err(reading) => self.read_bucket(name, reading).await,
        }
    }

    /// A bucket, if it is there now: for whoever asks about the bucket itself, and may have changed it through another node.
    pub(crate) async fn bucket_now(&self, name: &str) -> S3Result<Option<Arc<Bucket>>> {
        let reading = self.0.buckets.reading();
        let bucket = self.read_bucket(name, reading).await?;
        if bucket.is_none() {
            self.0.buckets.forget(name);
        }
        Ok(bucket)
    }

    async fn read_bucket(&self, name: &str, reading: Reading) -> S3Result<Option<Arc<Bucket>>> {
        let Ok(entry_name) = bucket_name(name) else { return Ok(None) };
        let Some(entry) = self.store().read(&entry_name).await.map_err(store_error)? else { return Ok(None) };
        let record = BucketRecord::from_bytes(entry.content.meta).map_err(record_error)?;
        let bucket = Arc::new(Bucket { record });
        self.0.buckets.keep(name, &bucket, reading, Instant::now());
        Ok(Some(bucket))
    }
}

/// The bucket of a request, as the check of its access found it.
fn bucket_of<T>(request: &S3Request<T>) -> S3Result<Arc<Bucket>> {
    request.extensions.get::<Arc<Bucket>>().cloned().ok_or_else(no_such_bucket)
}

/// Who sent a request, as the check of its access found it.
fn caller_of<T>(request: &S3Request<T>) -> S3Result<Caller> {
    request.extensions.get::<Caller>().cloned().ok_or_else(|| s3_error!(AccessDenied))
}

pub(crate) fn no_such_bucket() -> S3Error {
    s3_error!(NoSuchBucket, "The specified bucket does not exist")
}

fn no_such_key() -> S3Error {
    s3_error!(NoSuchKey, "The specified key does not exist.")
}

/// Whether a text can be the key of an object.
pub(crate) fn check_key(key: &str) -> S3Result<()> {
    match () {
        () if key.len() > OBJECT_KEY_BYTES_MAX => Err(s3_error!(KeyTooLongError, "Your key is too long.")),
        () if key.is_empty() => Err(s3_error!(InvalidArgument, "A key has at least one byte.")),
        () if key.contains('\0') => Err(s3_error!(InvalidArgument, "A key has no NUL.")),
        () => Ok(()),
    }
}

fn bucket_name(bucket: &str) -> S3Result<EntryName> {
    let error = || s3_error!(InvalidBucketName, "The specified bucket is not valid.");
    match s3s::path::check_bucket_name(bucket) {
        true => EntryName::new(Space::Bucket, "", bucket).map_err(|_| error()),
        false => Err(error()),
    }
}

fn object_name(bucket: &str, key: &str) -> S3Result<EntryName> {
    check_key(key)?;
    EntryName::new(Space::Object, bucket, key)
        .map_err(|_| s3_error!(KeyTooLongError, "Your key is too long."))
}

/// A version of an object, of which there is only the one without a name.
fn check_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null" | "") => Ok(()),
        Some(_) => Err(s3_error!(NoSuchVersion, "The specified version does not exist.")),
    }
}

/// Does something for each, several at a time, and answers in the order of the questions.
async fn each<I, T, F>(items: Vec<I>, mut task: impl FnMut(I) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut answers: Vec<Option<T>> = items.iter().map(|_| None).collect();
    let mut running = JoinSet::new();
    let mut items = items.into_iter().enumerate();
    loop {
        while running.len() < AT_A_TIME_MAX
            && let Some((place, item)) = items.next()
        {
            let task = task(item);
            running.spawn(async move { (place, task.await) });
        }
        match running.join_next().await {
            Some(Ok((place, answer))) => answers[place] = Some(answer),
            // What panicked there panics here: nothing may be taken for done.
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            None => return answers.into_iter().flatten().collect(),
        }
    }
}

/// How many things a request does at a time.
const AT_A_TIME_MAX: usize = 32;
/// Longest key of an object in bytes.
const OBJECT_KEY_BYTES_MAX: usize = 1024;
/// Largest object that one request writes or copies.
const OBJECT_BYTES_MAX: u64 = 5 << 30;
