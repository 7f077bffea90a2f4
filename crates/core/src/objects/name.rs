//! What entries are called, and which slot they belong to.
//!
//! A name is one string of bytes, `space bucket NUL key`, so that the order of names is the order in which they are listed:
//! by space, then by bucket, then by key. The slot depends on the bucket and on the key up to its first NUL: an upload and
//! its parts are called `key NUL upload …` and live where the object will.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::slots::{SlotId, slot_of};

/// What kind of thing a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// An object of a bucket.
    Object,
    /// A bucket; it is the key, in no bucket.
    Bucket,
    /// An access key; its id is the key, in no bucket.
    Access,
    /// An upload in several parts: `key NUL upload id`.
    Upload,
    /// A part of an upload: `key NUL upload id NUL number`.
    UploadPart,
    /// What is known of the copy of an object in the archive; bucket and key are those of the object.
    Archive,
}

impl Space {
    /// All of them, in order.
    pub const ALL: [Self; 6] =
        [Self::Object, Self::Bucket, Self::Access, Self::Upload, Self::UploadPart, Self::Archive];

    /// The byte in front of every name of this kind. Part of the format of a disk.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Object => 1,
            Self::Bucket => 2,
            Self::Access => 3,
            Self::Upload => 4,
            Self::UploadPart => 5,
            Self::Archive => 6,
        }
    }

    /// The kind with this byte.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|space| space.byte() == byte)
    }
}

/// The name of an entry. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName(Arc<[u8]>);

impl EntryName {
    /// A name.
    ///
    /// # Errors
    /// The bucket or the key is too long, the bucket has a NUL, or the key is empty.
    pub fn new(space: Space, bucket: &str, key: &str) -> Result<Self, NameError> {
        if bucket.len() > BUCKET_BYTES_MAX || bucket.contains('\0') {
            return Err(NameError::Bucket);
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(NameError::Key { bytes: key.len() });
        }
        let mut bytes = Self::prefix(space, bucket, key);
        bytes.shrink_to_fit();
        Ok(Self(bytes.into()))
    }

    /// The beginning of all names in `space` and `bucket` whose keys begin with `prefix`, as bytes.
    #[must_use]
    pub fn prefix(space: Space, bucket: &str, prefix: &str) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(2 + bucket.len() + prefix.len());
        bytes.push(space.byte());
        bytes.extend_from_slice(bucket.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(prefix.as_bytes());
        bytes
    }

    /// Reads a name back from its bytes.
    ///
    /// # Errors
    /// They are not those of a name.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NameError> {
        let (space, rest) = bytes.split_first().ok_or(NameError::Malformed)?;
        let space =
            Space::ALL.into_iter().find(|known| known.byte() == *space).ok_or(NameError::Malformed)?;
        let end = rest.iter().position(|byte| *byte == 0).ok_or(NameError::Malformed)?;
        let bucket = core::str::from_utf8(&rest[..end]).map_err(|_| NameError::Malformed)?;
        let key = core::str::from_utf8(&rest[end + 1..]).map_err(|_| NameError::Malformed)?;
        Self::new(space, bucket, key)
    }

    /// The bytes of the name, whose order is the order of names.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// What kind of thing it means.
    #[must_use]
    pub fn space(&self) -> Space {
        // A name has the byte of a space in front; it was made so.
        Space::from_byte(self.0[0]).unwrap_or(Space::Object)
    }

    /// The bucket, or nothing for what is in none.
    #[must_use]
    pub fn bucket(&self) -> &str {
        self.parts().0
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.parts().1
    }

    /// The slot of the entry in a cluster of so many. Part of the format of a cluster; it never changes.
    #[must_use]
    pub fn slot(&self, total_slots: u16) -> SlotId {
        let placed = self.0[1..].split(|byte| *byte == 0);
        let mut hashed = Vec::with_capacity(self.0.len());
        for (index, piece) in placed.take(2).enumerate() {
            if index == 1 {
                hashed.push(0);
            }
            hashed.extend_from_slice(piece);
        }
        slot_of(&hashed, total_slots)
    }

    fn parts(&self) -> (&str, &str) {
        let rest = &self.0[1..];
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        let text = |bytes| core::str::from_utf8(bytes).unwrap_or_default();
        (text(&rest[..end]), text(rest.get(end + 1..).unwrap_or_default()))
    }
}

impl fmt::Debug for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{}/{:?}", self.space(), self.bucket(), self.key())
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bucket() {
            "" => write!(f, "{}", self.key().escape_default()),
            bucket => write!(f, "{bucket}/{}", self.key().escape_default()),
        }
    }
}

/// Something is not the name of an entry. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The bucket.
    #[error("the name of a bucket has at most {BUCKET_BYTES_MAX} bytes and no NUL")]
    Bucket,
    /// The key.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes, not {bytes}")]
    Key {
        /// How many it has.
        bytes: usize,
    },
    /// Bytes that no name has.
    #[error("these bytes are not the name of an entry")]
    Malformed,
}

/// Longest name of a bucket in bytes.
pub const BUCKET_BYTES_MAX: usize = 255;
/// Longest key in bytes: 1024 of an object, and what an upload adds.
pub const KEY_BYTES_MAX: usize = 1024 + 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ordered_as_they_are_listed_and_read_back() {
        let names = [
            (Space::Object, "a", "z"),
            (Space::Object, "a", "z/1"),
            (Space::Object, "a-b", "a"),
            (Space::Bucket, "", "a"),
            (Space::Upload, "a", "z\u{0}17"),
        ];
        let names = names.map(|(space, bucket, key)| EntryName::new(space, bucket, key).unwrap());
        assert!(names.is_sorted());
        for name in &names {
            assert_eq!(EntryName::from_bytes(name.as_bytes()).as_ref(), Ok(name));
        }
        assert_eq!((names[1].space(), names[1].bucket(), names[1].key()), (Space::Object, "a", "z/1"));
    }

    #[test]
    fn an_upload_and_an_archive_record_live_where_their_object_does() {
        let slot = |space, key: &str| EntryName::new(space, "photos", key).unwrap().slot(2048);
        let object = slot(Space::Object, "a/b.jpg");
        assert_eq!(slot(Space::Upload, "a/b.jpg\u{0}u1"), object);
        assert_eq!(slot(Space::UploadPart, "a/b.jpg\u{0}u1\u{0}00001"), object);
        assert_eq!(slot(Space::Archive, "a/b.jpg"), object);
        // Published: it must never change.
        assert_eq!(object.get(), slot_of(b"photos\0a/b.jpg", 2048).get());
        let other = EntryName::new(Space::Object, "photo", "sa/b.jpg").unwrap().slot(2048);
        assert_ne!(other, object);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        assert_eq!(EntryName::new(Space::Object, "a", ""), Err(NameError::Key { bytes: 0 }));
        assert_eq!(EntryName::new(Space::Object, "a\u{0}", "k"), Err(NameError::Bucket));
        for bytes in [b"".as_slice(), b"\x01a", b"\x09a\0k", b"\x01\xff\0k", b"\x01a\0"] {
            assert!(EntryName::from_bytes(bytes).is_err(), "{bytes:?}");
        }
    }
}
