//! The numbers and names of the queue, each a type of its own, so that none is taken for another.

use alloc::string::String;
use core::fmt;

use bytes::Bytes;

macro_rules! number {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(transparent))]
        pub struct $name(u64);

        impl $name {
            /// The one with this number.
            #[must_use]
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// One job, for as long as the cluster lives: the number of its group in the upper 16 bits, then the place in the
    /// order in which the group accepted its jobs.
    JobId
}
number! {
    /// One worker as the queue knows it: what holds jobs and loses them when it goes. Drivers choose the number, unique for
    /// ever, and put the node's number into its upper bits, so that the history of a job tells nodes apart.
    SessionId
}
number! {
    /// Whoever numbers its commands, so that a command that is sent again is not done again.
    GatewayId
}
number! {
    /// Whoever submits, as far as caps are concerned. Zero is nobody in particular, and has no cap.
    ClientId
}
number! {
    /// Which assignment of a job: the log index at which the job was given out, or one more than the job's fence before
    /// where that would not be larger (one frame may take a job back and give it out again). The fences of a job only
    /// grow, so a job and a fence name one assignment, and whoever shows an older fence has lost the job.
    Fence
}

impl JobId {
    /// The job at this place in the order of a group.
    #[must_use]
    pub const fn in_group(group: u16, sequence: u64) -> Self {
        Self((group as u64) << SEQUENCE_BITS | (sequence & SEQUENCE_MAX))
    }

    /// The group that accepted the job.
    #[must_use]
    pub const fn group(self) -> u16 {
        (self.0 >> SEQUENCE_BITS) as u16
    }

    /// The place in the order of its group.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.0 & SEQUENCE_MAX
    }
}

/// The name of a queue: 1 to 200 letters, digits and characters of `-+/;.$_()`, not starting with a hyphen.
///
/// These are the names of beanstalkd's tubes. A name that was decoded shares the memory of what it was decoded from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "String", try_from = "String"))]
pub struct QueueName(Bytes);

impl QueueName {
    /// The queue of this name.
    ///
    /// # Errors
    /// The text is not the name of a queue.
    pub fn new(name: &str) -> Result<Self, NameError> {
        Self::from_bytes(Bytes::copy_from_slice(name.as_bytes()))
    }

    /// The same, of bytes, which are shared.
    ///
    /// # Errors
    /// The bytes are not the name of a queue.
    pub fn from_bytes(name: Bytes) -> Result<Self, NameError> {
        let is_allowed = |byte: &u8| {
            byte.is_ascii_alphanumeric()
                || matches!(byte, b'-' | b'+' | b'/' | b';' | b'.' | b'$' | b'_' | b'(' | b')')
        };
        if !(1..=QUEUE_NAME_BYTES_MAX).contains(&name.len()) {
            return Err(NameError::Length { bytes: name.len(), max: QUEUE_NAME_BYTES_MAX });
        }
        if name.starts_with(b"-") || !name.iter().all(is_allowed) {
            return Err(NameError::Characters);
        }
        Ok(Self(name))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // ASCII, by construction.
        core::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The name in memory of its own.
    pub(super) fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl From<QueueName> for String {
    fn from(name: QueueName) -> Self {
        name.as_str().into()
    }
}

impl core::str::FromStr for QueueName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl TryFrom<String> for QueueName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        Self::from_bytes(name.into_bytes().into())
    }
}

/// What a user calls a FIFO group, or a job that must not be submitted twice: 1 to 128 bytes of any kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "alloc::vec::Vec<u8>", try_from = "alloc::vec::Vec<u8>"))]
pub struct UserKey(Bytes);

impl UserKey {
    /// The key with these bytes, which are shared.
    ///
    /// # Errors
    /// There are none, or too many.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        if (1..=USER_KEY_BYTES_MAX).contains(&bytes.len()) {
            Ok(Self(bytes))
        } else {
            Err(NameError::Length { bytes: bytes.len(), max: USER_KEY_BYTES_MAX })
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key in memory of its own.
    pub(super) fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl From<UserKey> for alloc::vec::Vec<u8> {
    fn from(key: UserKey) -> Self {
        key.0.into()
    }
}

impl TryFrom<alloc::vec::Vec<u8>> for UserKey {
    type Error = NameError;

    fn try_from(bytes: alloc::vec::Vec<u8>) -> Result<Self, NameError> {
        Self::new(bytes)
    }
}

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}

/// Bytes are not a name of this kind. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Empty, or too long.
    #[error("a name of {bytes} bytes; it must have 1 to {max}")]
    Length {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// A character that such a name cannot have.
    #[error("the name of a queue has letters, digits and -+/;.$_() only and does not start with a hyphen")]
    Characters,
}

/// The longest name of a queue, in bytes.
pub const QUEUE_NAME_BYTES_MAX: usize = 200;
/// The longest name of a FIFO group and the longest dedupe key, in bytes.
pub const USER_KEY_BYTES_MAX: usize = 128;
const SEQUENCE_BITS: u32 = 48;
const SEQUENCE_MAX: u64 = (1 << SEQUENCE_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_tubes() {
        for name in ["default", "a-b+c/d;e.f$g_h(i)", "9"] {
            assert_eq!(
                QueueName::new(name).map(|name| alloc::string::ToString::to_string(&name)).as_deref(),
                Ok(name)
            );
        }
        for name in ["-a", "a b", "a\n", "\u{e9}"] {
            assert_eq!(QueueName::new(name), Err(NameError::Characters));
        }
        let long = "x".repeat(201);
        for name in ["", &long] {
            assert_eq!(QueueName::new(name), Err(NameError::Length { bytes: name.len(), max: 200 }));
        }
    }

    #[test]
    fn the_number_of_a_job_tells_its_group() {
        let job = JobId::in_group(7, 12);
        assert_eq!((job.group(), job.sequence(), job.get()), (7, 12, 7 << 48 | 12));
    }
}
