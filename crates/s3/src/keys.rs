//! Access keys: who may do what.
//!
//! A key is an id and a secret. Whoever signs with the secret may do what the key was allowed, bucket by bucket or for all of
//! them. Who creates a bucket with a key owns it. Keys are entries of the store: what is changed here holds for every gateway
//! of the cluster within about a second.

use std::fmt;
use std::sync::Arc;

use synod_core::objects::{Condition, EntryName, Space};
use synod_core::slots::Tag;
use synod_store::objects::content::{Content, META_BYTES_MAX};
use synod_store::objects::contract::{
    LIST_MAX, ListItem, ListPosition, ListQuery, ObjectStore, StoreError, WriteOutcome,
};

use crate::now_ms;
use crate::records::{AccessRecord, GrantRecord, Record as _, RecordError};

/// What a key may do with a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Permissions {
    /// Read and list its objects.
    pub read: bool,
    /// Write and delete its objects.
    pub write: bool,
    /// Set its configuration and delete it.
    pub owner: bool,
}

impl Permissions {
    /// Everything.
    pub const ALL: Self = Self { read: true, write: true, owner: true };
}

/// An access key.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    /// What requests name it by.
    pub id: String,
    /// What requests are signed with. Empty in listings.
    pub secret: String,
    /// What people call it.
    pub name: String,
    /// When it was created, in milliseconds of the wall clock.
    pub created_ms: u64,
    /// Whether it may create buckets.
    pub may_create_buckets: bool,
    /// What it may do with which bucket; `*` is all of them. Buckets that it created are not named here.
    pub permissions: Vec<(String, Permissions)>,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKey")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("may_create_buckets", &self.may_create_buckets)
            .field("permissions", &self.permissions)
            .finish_non_exhaustive()
    }
}

/// The access keys of a store.
#[derive(Clone, Debug)]
pub struct Keys<S>(S);

impl<S: ObjectStore> Keys<S> {
    /// Those of this store.
    pub const fn new(store: S) -> Self {
        Self(store)
    }

    /// Creates a key that may do nothing yet.
    ///
    /// # Errors
    /// The name is too long, the system has no randomness, or the store failed.
    pub async fn create(&self, name: &str) -> Result<AccessKey, KeyError> {
        let mut random = [0; 40];
        getrandom::fill(&mut random).map_err(|_| KeyError::Randomness)?;
        let (id, secret) = random.split_at(10);
        let id = id.iter().fold("SYN".to_owned(), |mut id, byte| {
            id.push(char::from(ID_LETTERS[usize::from(byte >> 4)]));
            id.push(char::from(ID_LETTERS[usize::from(byte & 15)]));
            id
        });
        let secret = base64_simd::URL_SAFE_NO_PAD.encode_to_string(secret);
        self.write_new(id, secret, name, false, Vec::new()).await
    }

    /// Creates the key with this id and this secret, which may do everything. Does nothing if it is there with that secret.
    ///
    /// # Errors
    /// The id or the secret is none, the id is there with another secret, or the store failed.
    pub async fn create_first(&self, id: &str, secret: &str, name: &str) -> Result<AccessKey, KeyError> {
        let grants = vec![GrantRecord { bucket: "*".to_owned(), read: true, write: true, owner: true }];
        match self.write_new(id.to_owned(), secret.to_owned(), name, true, grants).await {
            Err(KeyError::Exists { id }) => match self.read(&id).await? {
                Some((record, _)) if record.secret == secret => {
                    let secret = record.secret.clone();
                    Ok(AccessKey { secret, ..shown(&id, &record) })
                }
                _ => Err(KeyError::Exists { id }),
            },
            outcome => outcome,
        }
    }

    /// All keys, without their secrets, in the order of their ids.
    ///
    /// # Errors
    /// The store failed, or a record of it cannot be read.
    pub async fn list(&self) -> Result<Vec<AccessKey>, KeyError> {
        let mut keys = Vec::new();
        let mut after = None;
        loop {
            let query = ListQuery {
                space: Space::Access,
                bucket: String::new(),
                prefix: String::new(),
                delimiter: String::new(),
                after,
                limit: LIST_MAX,
                beside: None,
            };
            let page = self.0.list(query).await?;
            let Some(ListItem::Entry(last)) = page.items.last() else { return Ok(keys) };
            after = Some(ListPosition::Key(last.key.clone()));
            for item in page.items {
                if let ListItem::Entry(listed) = item
                    && let Some((record, _)) = self.read(&listed.key).await?
                {
                    keys.push(shown(&listed.key, &record));
                }
            }
            if !page.is_truncated {
                return Ok(keys);
            }
        }
    }

    /// Deletes a key. Buckets that it owns stay, and belong to those who may do everything.
    ///
    /// # Errors
    /// There is no such key, or the store failed.
    pub async fn delete(&self, id: &str) -> Result<(), KeyError> {
        match self.0.delete(&entry_name(id)?, Condition::Present).await? {
            WriteOutcome::Done(_) => Ok(()),
            WriteOutcome::Refused(_) => Err(KeyError::Unknown { id: id.to_owned() }),
        }
    }

    /// Says what a key may do with a bucket, or with all of them: `*`. Replaces what was said of that bucket before.
    ///
    /// # Errors
    /// There is no such key, it has too many buckets, or the store failed.
    pub async fn allow(
        &self,
        id: &str,
        bucket: &str,
        permissions: Permissions,
    ) -> Result<AccessKey, KeyError> {
        if bucket != "*" && !s3s::path::check_bucket_name(bucket) {
            return Err(KeyError::Bucket { bucket: bucket.to_owned() });
        }
        self.change(id, |record| {
            record.grants.retain(|grant| grant.bucket != bucket);
            if permissions != Permissions::default() {
                let Permissions { read, write, owner } = permissions;
                record.grants.push(GrantRecord { bucket: bucket.to_owned(), read, write, owner });
            }
        })
        .await
    }

    /// Says whether a key may create buckets.
    ///
    /// # Errors
    /// There is no such key, or the store failed.
    pub async fn allow_creating_buckets(
        &self,
        id: &str,
        may_create_buckets: bool,
    ) -> Result<AccessKey, KeyError> {
        self.change(id, |record| record.may_create_buckets = may_create_buckets).await
    }

    async fn change(&self, id: &str, change: impl Fn(&mut AccessRecord)) -> Result<AccessKey, KeyError> {
        let name = entry_name(id)?;
        for _ in 0..CHANGE_ATTEMPTS_MAX {
            let Some((mut record, tag)) = self.read(id).await? else {
                return Err(KeyError::Unknown { id: id.to_owned() });
            };
            change(&mut record);
            let content = content(&record)?;
            let outcome = self.0.write(&name, Condition::TagIs(tag), Arc::from(""), content).await?;
            if let WriteOutcome::Done(_) = outcome {
                return Ok(shown(id, &record));
            }
        }
        Err(KeyError::Store(StoreError::Unavailable {
            reason: "others change the key all the time".to_owned(),
        }))
    }

    async fn write_new(
        &self,
        id: String,
        secret: String,
        name: &str,
        may_create_buckets: bool,
        grants: Vec<GrantRecord>,
    ) -> Result<AccessKey, KeyError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(KeyError::Name);
        }
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
            return Err(KeyError::Secret);
        }
        let record =
            AccessRecord { secret, name: name.to_owned(), created_ms: now_ms(), may_create_buckets, grants };
        let outcome =
            self.0.write(&entry_name(&id)?, Condition::Absent, Arc::from(""), content(&record)?).await?;
        match outcome {
            WriteOutcome::Done(_) => {
                let key = shown(&id, &record);
                Ok(AccessKey { secret: record.secret, ..key })
            }
            WriteOutcome::Refused(_) => Err(KeyError::Exists { id }),
        }
    }

    async fn read(&self, id: &str) -> Result<Option<(AccessRecord, Tag)>, KeyError> {
        let Some(entry) = self.0.read(&entry_name(id)?).await? else { return Ok(None) };
        let record = AccessRecord::from_bytes(entry.content.meta).map_err(|error| unreadable(id, error))?;
        Ok(Some((record, entry.tag)))
    }
}

/// Something could not be done with keys. Unless the store says otherwise, nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The id is not one.
    #[error("the id of an access key has {ID_BYTES_MIN} to {ID_BYTES_MAX} letters, digits, `-` or `_`")]
    Id,
    /// The secret is not one.
    #[error("the secret of an access key has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes")]
    Secret,
    /// The name is not one.
    #[error("the name of an access key has at most {NAME_BYTES_MAX} bytes")]
    Name,
    /// A bucket cannot be called so.
    #[error("`{bucket}` is not the name of a bucket")]
    Bucket {
        /// What was given.
        bucket: String,
    },
    /// There is no such key.
    #[error("there is no access key `{id}`")]
    Unknown {
        /// What was asked for.
        id: String,
    },
    /// The id is taken.
    #[error("there is an access key `{id}` already, with another secret")]
    Exists {
        /// The id.
        id: String,
    },
    /// A key has as many buckets as fit.
    #[error("the access key has too many buckets; allow it all of them")]
    TooManyBuckets,
    /// What is stored of a key cannot be read.
    #[error("what is stored of the access key `{id}` cannot be read: {reason}")]
    Unreadable {
        /// The key.
        id: String,
        /// Why.
        reason: String,
    },
    /// The system gave no random numbers.
    #[error("the system gives no random numbers")]
    Randomness,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The entry of a key.
pub(crate) fn entry_name(id: &str) -> Result<EntryName, KeyError> {
    let is_id = (ID_BYTES_MIN..=ID_BYTES_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    match is_id {
        true => EntryName::new(Space::Access, "", id).map_err(|_| KeyError::Id),
        false => Err(KeyError::Id),
    }
}

fn content(record: &AccessRecord) -> Result<Content, KeyError> {
    let meta = record.to_bytes();
    match meta.len() <= META_BYTES_MAX {
        true => Ok(Content { modified_ms: now_ms(), meta, ..Content::default() }),
        false => Err(KeyError::TooManyBuckets),
    }
}

fn shown(id: &str, record: &AccessRecord) -> AccessKey {
    let permissions = |grant: &GrantRecord| {
        let GrantRecord { bucket, read, write, owner } = grant;
        (bucket.clone(), Permissions { read: *read, write: *write, owner: *owner })
    };
    AccessKey {
        id: id.to_owned(),
        secret: String::new(),
        name: record.name.clone(),
        created_ms: record.created_ms,
        may_create_buckets: record.may_create_buckets,
        permissions: record.grants.iter().map(permissions).collect(),
    }
}

fn unreadable(id: &str, error: RecordError) -> KeyError {
    KeyError::Unreadable { id: id.to_owned(), reason: error.to_string() }
}

/// Letters that people do not confuse.
const ID_LETTERS: &[u8; 16] = b"ABCDEFGHJKMNPQRS";
/// Shortest id.
const ID_BYTES_MIN: usize = 3;
/// Longest id.
const ID_BYTES_MAX: usize = 64;
/// Shortest secret.
const SECRET_BYTES_MIN: usize = 8;
/// Longest secret.
const SECRET_BYTES_MAX: usize = 128;
/// Longest name.
const NAME_BYTES_MAX: usize = 128;
/// How often a change is begun anew when another one came in between.
const CHANGE_ATTEMPTS_MAX: usize = 16;
