//! What the gateway writes into entries, and how it reads it back.
//!
//! A record is one byte of version and then a message, so that a later gateway can tell what it has before it. No bytes at
//! all are a record without anything in it: most objects have nothing to say in a listing.

use bytes::Bytes;
use prost::Message;

/// Something that the gateway writes into an entry.
pub(crate) trait Record: Message + Default + PartialEq {
    /// The record as it is stored.
    fn to_bytes(&self) -> Bytes {
        if *self == Self::default() {
            return Bytes::new();
        }
        let mut bytes = Vec::with_capacity(1 + self.encoded_len());
        bytes.push(VERSION);
        self.encode_raw(&mut bytes);
        bytes.into()
    }

    /// Reads a record back.
    fn from_bytes(mut bytes: Bytes) -> Result<Self, RecordError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        match bytes.split_to(1)[0] {
            VERSION => Self::decode(bytes).map_err(|_| RecordError::Malformed),
            version => Err(RecordError::Version(version)),
        }
    }
}

/// A record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    /// It is of another version.
    #[error("a record of version {0} was written by a later gateway; this one reads version {VERSION}")]
    Version(u8),
    /// It is none.
    #[error("a record is malformed")]
    Malformed,
}

/// A name and a value.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(crate) struct Pair {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// The sum of the bytes of an object, as its writer asked for it.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(crate) struct SumRecord {
    /// [`crate::digests::Algorithm`] as a number.
    #[prost(uint32, tag = "1")]
    pub(crate) algorithm: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    /// Of how many parts the sum is the sum of their sums; zero when it is one of all bytes.
    #[prost(uint32, tag = "3")]
    pub(crate) composite_of: u32,
}

/// What is known of an object beside its bytes.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ObjectMeta {
    #[prost(string, optional, tag = "1")]
    pub(crate) content_type: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) cache_control: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) content_disposition: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(crate) content_encoding: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub(crate) content_language: Option<String>,
    /// In milliseconds of the wall clock.
    #[prost(uint64, optional, tag = "6")]
    pub(crate) expires_ms: Option<u64>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) user: Vec<Pair>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) tags: Vec<Pair>,
    #[prost(message, optional, tag = "9")]
    pub(crate) sum: Option<SumRecord>,
    /// Sizes of the parts of an upload, runs of equal ones once.
    #[prost(uint64, repeated, tag = "10")]
    pub(crate) part_sizes: Vec<u64>,
    /// How long each run is; nothing when each is one part.
    #[prost(uint32, repeated, tag = "11")]
    pub(crate) part_runs: Vec<u32>,
    /// Sums of the parts one after the other, or nothing where they would take too much room.
    #[prost(bytes = "bytes", tag = "12")]
    pub(crate) part_sums: Bytes,
    /// The upload that it came from.
    #[prost(string, tag = "13")]
    pub(crate) upload_id: String,
}

/// What a listing shows of an object.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ObjectBrief {
    #[prost(uint32, tag = "1")]
    pub(crate) algorithm: u32,
    #[prost(bool, tag = "2")]
    pub(crate) is_composite: bool,
}

/// A bucket.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct BucketRecord {
    /// The access key that created it.
    #[prost(string, tag = "1")]
    pub(crate) owner: String,
    #[prost(uint64, tag = "2")]
    pub(crate) created_ms: u64,
    #[prost(message, repeated, tag = "3")]
    pub(crate) cors: Vec<CorsRecord>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) lifecycle: Vec<LifecycleRecord>,
}

/// What a listing shows of a bucket.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct BucketBrief {
    #[prost(string, tag = "1")]
    pub(crate) owner: String,
    #[prost(uint64, tag = "2")]
    pub(crate) created_ms: u64,
    /// Whether there are rules that remove objects or uploads.
    #[prost(bool, tag = "3")]
    pub(crate) has_lifecycle: bool,
}

/// A rule that lets pages of other origins use a bucket.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct CorsRecord {
    #[prost(string, optional, tag = "1")]
    pub(crate) id: Option<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) origins: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) methods: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) headers: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub(crate) exposed: Vec<String>,
    #[prost(uint32, optional, tag = "6")]
    pub(crate) max_age_seconds: Option<u32>,
}

/// A rule that removes objects or uploads when they have had their time.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LifecycleRecord {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(bool, tag = "2")]
    pub(crate) is_enabled: bool,
    #[prost(string, tag = "3")]
    pub(crate) prefix: String,
    #[prost(message, repeated, tag = "4")]
    pub(crate) tags: Vec<Pair>,
    #[prost(uint64, optional, tag = "5")]
    pub(crate) larger_than: Option<u64>,
    #[prost(uint64, optional, tag = "6")]
    pub(crate) smaller_than: Option<u64>,
    #[prost(uint32, optional, tag = "7")]
    pub(crate) expire_days: Option<u32>,
    /// In milliseconds of the wall clock.
    #[prost(uint64, optional, tag = "8")]
    pub(crate) expire_date_ms: Option<u64>,
    #[prost(uint32, optional, tag = "9")]
    pub(crate) abort_days: Option<u32>,
    /// How the filter was written, so that it is told as it was set.
    #[prost(uint32, tag = "10")]
    pub(crate) filter_form: u32,
}

/// An access key.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(crate) struct AccessRecord {
    #[prost(string, tag = "1")]
    pub(crate) secret: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(uint64, tag = "3")]
    pub(crate) created_ms: u64,
    #[prost(bool, tag = "4")]
    pub(crate) may_create_buckets: bool,
    #[prost(message, repeated, tag = "5")]
    pub(crate) grants: Vec<GrantRecord>,
}

impl std::fmt::Debug for AccessRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessRecord")
            .field("name", &self.name)
            .field("secret", &"(not shown)")
            .field("grants", &self.grants)
            .finish_non_exhaustive()
    }
}

/// What an access key may do with a bucket, or with all of them.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct GrantRecord {
    #[prost(string, tag = "1")]
    pub(crate) bucket: String,
    #[prost(bool, tag = "2")]
    pub(crate) read: bool,
    #[prost(bool, tag = "3")]
    pub(crate) write: bool,
    #[prost(bool, tag = "4")]
    pub(crate) owner: bool,
}

/// An upload in several parts: what the object will be.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct UploadRecord {
    #[prost(message, optional, tag = "1")]
    pub(crate) meta: Option<ObjectMeta>,
}

/// What a listing shows of an upload.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct UploadBrief {
    /// The access key that began it.
    #[prost(string, tag = "1")]
    pub(crate) initiator: String,
    /// How parts are summed; zero when nobody asked for it.
    #[prost(uint32, tag = "2")]
    pub(crate) algorithm: u32,
    /// Whether the sum of the object is one of all bytes.
    #[prost(bool, tag = "3")]
    pub(crate) is_full_object: bool,
}

/// What a listing shows of a part of an upload.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct PartBrief {
    #[prost(message, optional, tag = "1")]
    pub(crate) sum: Option<SumRecord>,
}

impl Record for ObjectMeta {}
impl Record for ObjectBrief {}
impl Record for BucketRecord {}
impl Record for BucketBrief {}
impl Record for AccessRecord {}
impl Record for UploadRecord {}
impl Record for UploadBrief {}
impl Record for PartBrief {}

/// The version of all records.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_one_of_another_version_is_named() {
        let record = BucketRecord { owner: "a".into(), created_ms: 7, ..BucketRecord::default() };
        let bytes = record.to_bytes();
        assert_eq!(BucketRecord::from_bytes(bytes.clone()), Ok(record));
        assert_eq!(BucketRecord::default().to_bytes(), Bytes::new());
        assert_eq!(BucketRecord::from_bytes(Bytes::new()), Ok(BucketRecord::default()));
        let mut later = bytes.to_vec();
        later[0] = 2;
        assert_eq!(BucketRecord::from_bytes(later.into()), Err(RecordError::Version(2)));
        assert_eq!(BucketRecord::from_bytes(Bytes::from_static(&[1, 255])), Err(RecordError::Malformed));
    }

    #[test]
    fn no_debug_shows_a_secret() {
        let record = AccessRecord { secret: "hidden".into(), ..AccessRecord::default() };
        assert!(!format!("{record:?}").contains("hidden"));
    }
}
