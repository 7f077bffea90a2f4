//! What a topic is called.

use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use crate::grains::IDENTITY_BYTES_MAX;

/// The name of a topic: the identity of its grain. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// The topic `name`.
    ///
    /// # Errors
    /// [`TopicNameError`] says what is wrong with it.
    pub fn new(name: &str) -> Result<Self, TopicNameError> {
        if name.is_empty() {
            return Err(TopicNameError::Empty);
        }
        if name.len() > TOPIC_BYTES_MAX {
            return Err(TopicNameError::TooLong { bytes: name.len() });
        }
        match name.chars().find(|character| character.is_control()) {
            Some(character) => Err(TopicNameError::ControlCharacter { character }),
            None => Ok(Self(Arc::from(name))),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicName {
    type Err = TopicNameError;

    fn from_str(name: &str) -> Result<Self, TopicNameError> {
        Self::new(name)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text is not the name of a topic. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicNameError {
    /// It is empty.
    #[error("the name of a topic must not be empty")]
    Empty,
    /// It is longer than [`TOPIC_BYTES_MAX`].
    #[error("the name of a topic has at most {TOPIC_BYTES_MAX} bytes, this one has {bytes}")]
    TooLong {
        /// Length of the refused name.
        bytes: usize,
    },
    /// It contains a control character, which would garble every log it is printed to.
    #[error("the name of a topic must not contain the control character {character:?}")]
    ControlCharacter {
        /// The first refused character.
        character: char,
    },
}

/// Longest name in bytes: what fits into the identity of a grain.
pub const TOPIC_BYTES_MAX: usize = IDENTITY_BYTES_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_name_a_topic_is_refused_with_a_reason() {
        assert_eq!(TopicName::new(""), Err(TopicNameError::Empty));
        assert_eq!(TopicName::new("a\nb"), Err(TopicNameError::ControlCharacter { character: '\n' }));
        let long = "x".repeat(TOPIC_BYTES_MAX + 1);
        assert_eq!(TopicName::new(&long), Err(TopicNameError::TooLong { bytes: long.len() }));
        assert!(TopicName::new(&long[1..]).is_ok());
        assert_eq!(TopicName::new("news/sport").map(|name| name.as_str().len()), Ok(10));
    }
}
