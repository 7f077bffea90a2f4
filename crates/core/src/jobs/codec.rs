//! Bytes of frames and snapshots: numbers of variable length, and fields one after the other.
//!
//! Seven bits of a number to a byte, the lowest first, the eighth says that more follow. A number has one spelling: what
//! could be shorter is refused, so that what was decoded is encoded to the same bytes.

use alloc::vec::Vec;

use bytes::Bytes;

/// Bytes are not what they should be. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// They end too early.
    #[error("the bytes end within a field")]
    Truncated,
    /// A number is out of its range or spelled longer than it must be.
    #[error("a number is out of its range")]
    Number,
    /// They were written by a later release.
    #[error("version {version} is not known to this release")]
    Version {
        /// What they say.
        version: u8,
    },
    /// A kind of something that is not known.
    #[error("{value} is no known kind of {field}")]
    Kind {
        /// Of what.
        field: &'static str,
        /// What they say.
        value: u8,
    },
    /// A name that is none.
    #[error("{field} is not valid")]
    Invalid {
        /// What.
        field: &'static str,
    },
    /// They go on after the end.
    #[error("{count} bytes follow after the end")]
    Trailing {
        /// How many.
        count: usize,
    },
    /// The sum over them is another one.
    #[error("the checksum does not match")]
    Checksum,
}

pub(super) fn put_byte(out: &mut Vec<u8>, value: u8) {
    out.push(value);
}

pub(super) fn put_flag(out: &mut Vec<u8>, value: bool) {
    out.push(value.into());
}

pub(super) fn put_number(out: &mut Vec<u8>, value: impl Into<u64>) {
    let mut value = value.into();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_option(out: &mut Vec<u8>, value: Option<impl Into<u64>>) {
    put_flag(out, value.is_some());
    if let Some(value) = value {
        put_number(out, value);
    }
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads fields, and shares the memory of the bytes that it reads.
#[derive(Clone, Debug)]
pub(super) struct Reader(pub(super) Bytes);

impl Reader {
    pub(super) fn byte(&mut self) -> Result<u8, CodecError> {
        let (&byte, _) = self.0.split_first().ok_or(CodecError::Truncated)?;
        bytes::Buf::advance(&mut self.0, 1);
        Ok(byte)
    }

    pub(super) fn flag(&mut self) -> Result<bool, CodecError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(CodecError::Kind { field: "flag", value }),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64, CodecError> {
        let (value, length) = number_at(&self.0)?;
        bytes::Buf::advance(&mut self.0, length);
        Ok(value)
    }

    pub(super) fn number32(&mut self) -> Result<u32, CodecError> {
        u32::try_from(self.number()?).map_err(|_| CodecError::Number)
    }

    pub(super) fn option(&mut self) -> Result<Option<u64>, CodecError> {
        if self.flag()? { self.number().map(Some) } else { Ok(None) }
    }

    pub(super) fn option32(&mut self) -> Result<Option<u32>, CodecError> {
        if self.flag()? { self.number32().map(Some) } else { Ok(None) }
    }

    pub(super) fn bytes(&mut self) -> Result<Bytes, CodecError> {
        let length = usize::try_from(self.number()?).map_err(|_| CodecError::Truncated)?;
        if length > self.0.len() {
            return Err(CodecError::Truncated);
        }
        Ok(self.0.split_to(length))
    }

    /// How many things follow, each of at least one byte: a count that the bytes cannot hold is refused before anything is
    /// allocated for it.
    pub(super) fn count(&mut self) -> Result<usize, CodecError> {
        let count = usize::try_from(self.number()?).map_err(|_| CodecError::Truncated)?;
        if count > self.0.len() { Err(CodecError::Truncated) } else { Ok(count) }
    }

    pub(super) fn end(&self) -> Result<(), CodecError> {
        match self.0.len() {
            0 => Ok(()),
            count => Err(CodecError::Trailing { count }),
        }
    }
}

/// The number at the start of the bytes, and how many it takes.
pub(super) fn number_at(bytes: &[u8]) -> Result<(u64, usize), CodecError> {
    let mut value = 0_u64;
    for (place, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7F);
        if place == 9 && bits > 1 {
            return Err(CodecError::Number);
        }
        value |= bits << (7 * place);
        if byte & 0x80 == 0 {
            let is_shortest = place == 0 || *byte != 0;
            return if is_shortest { Ok((value, place + 1)) } else { Err(CodecError::Number) };
        }
    }
    Err(if bytes.len() < 10 { CodecError::Truncated } else { CodecError::Number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_spelling() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, value);
            assert_eq!(number_at(&out), Ok((value, out.len())));
            assert_eq!(number_at(&out[..out.len() - 1]), Err(CodecError::Truncated));
        }
        for bytes in
            [[0x80, 0].as_slice(), &[0xFF; 11], &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2]]
        {
            assert_eq!(number_at(bytes), Err(CodecError::Number));
        }
    }
}
