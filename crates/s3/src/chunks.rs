//! Keeps the chunks of a body in memory's bounds.
//!
//! A body may come in chunks of its own, `size[;chunk-signature=…] CRLF bytes CRLF`, with an empty one at the end and then
//! trailers. The protocol library keeps each chunk whole until its signature is checked, however large it says it is. So
//! before it sees them, large chunks without signatures are cut into small ones, which means the same, and large chunks with
//! signatures are refused.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes, BytesMut};

use crate::request::BodyFailure;

/// Looks at chunks as they pass.
pub(crate) struct ChunkGuard {
    is_signed: bool,
    input: Bytes,
    output: VecDeque<Bytes>,
    /// The beginning of a line that has not come to its end.
    line: BytesMut,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// A line with the size of a chunk is next.
    Size,
    /// So many bytes of a chunk are next.
    Data(u64),
    /// The line end behind a chunk is next, of which so many bytes are missing.
    DataEnd(u8),
    /// What comes behind the last chunk.
    Trailers,
}

impl ChunkGuard {
    pub(crate) fn new(is_signed: bool) -> Self {
        Self {
            is_signed,
            input: Bytes::new(),
            output: VecDeque::new(),
            line: BytesMut::new(),
            state: State::Size,
        }
    }

    /// Takes bytes. Only to be called when [`Self::next`] had nothing more.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.input = bytes;
    }

    /// The next bytes; `None` when more must be pushed first.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, BodyFailure> {
        while self.output.is_empty() && !self.input.is_empty() {
            self.step()?;
        }
        Ok(self.output.pop_front())
    }

    fn step(&mut self) -> Result<(), BodyFailure> {
        match self.state {
            State::Size => {
                let end = self.input.iter().position(|byte| *byte == b'\n');
                let taken = self.input.split_to(end.map_or(self.input.len(), |end| end + 1));
                self.line.extend_from_slice(&taken);
                if self.line.len() > LINE_BYTES_MAX {
                    return Err(BodyFailure::ChunkMalformed);
                }
                if end.is_some() {
                    let line = self.line.split().freeze();
                    let size = chunk_size(&line).ok_or(BodyFailure::ChunkMalformed)?;
                    if self.is_signed && size > SIGNED_CHUNK_BYTES_MAX {
                        return Err(BodyFailure::ChunkTooLarge);
                    }
                    // The size of a chunk without a signature is told again with each piece of it.
                    if self.is_signed || size == 0 {
                        self.output.push_back(line);
                    }
                    self.state = match size {
                        0 => State::Trailers,
                        size => State::Data(size),
                    };
                }
            }
            State::Data(left) => {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(self.input.len());
                let data = self.input.split_to(here);
                if self.is_signed {
                    self.output.push_back(data);
                } else {
                    self.output.push_back(Bytes::from(format!("{here:x}\r\n")));
                    self.output.push_back(data);
                    self.output.push_back(Bytes::from_static(b"\r\n"));
                }
                self.state = match left - here as u64 {
                    0 => State::DataEnd(2),
                    left => State::Data(left),
                };
            }
            State::DataEnd(missing) => {
                let expected = if missing == 2 { b'\r' } else { b'\n' };
                if self.input.get_u8() != expected {
                    return Err(BodyFailure::ChunkMalformed);
                }
                if self.is_signed && missing == 1 {
                    self.output.push_back(Bytes::from_static(b"\r\n"));
                }
                self.state = match missing {
                    1 => State::Size,
                    _ => State::DataEnd(1),
                };
            }
            State::Trailers => self.output.push_back(std::mem::take(&mut self.input)),
        }
        Ok(())
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| matches!(byte, b';' | b'\r' | b'\n')).next()?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() <= SIZE_DIGITS_MAX)?;
    // A sign is none of hexadecimal's business, though the standard library takes one.
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// Largest chunk with a signature. Clients send 64 KiB to a few MiB.
const SIGNED_CHUNK_BYTES_MAX: u64 = 16 << 20;
/// Longest line with a size: a number and a signature.
const LINE_BYTES_MAX: usize = 1024;
/// Most digits of a size.
const SIZE_DIGITS_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(guard: &mut ChunkGuard, input: &[u8], step: usize) -> Result<Vec<u8>, BodyFailure> {
        let mut output = Vec::new();
        for piece in input.chunks(step) {
            guard.push(Bytes::copy_from_slice(piece));
            while let Some(bytes) = guard.next()? {
                output.extend_from_slice(&bytes);
            }
        }
        Ok(output)
    }

    #[test]
    fn signed_chunks_pass_as_they_are_and_large_ones_are_refused() {
        let body = b"5;chunk-signature=ab\r\nhello\r\n0;chunk-signature=cd\r\n\r\n";
        for step in 1..body.len() {
            assert_eq!(pass(&mut ChunkGuard::new(true), body, step).as_deref(), Ok(&body[..]));
        }
        let huge = b"7fffffff;chunk-signature=ab\r\nhello";
        assert_eq!(pass(&mut ChunkGuard::new(true), huge, 7), Err(BodyFailure::ChunkTooLarge));
    }

    #[test]
    fn large_chunks_without_signatures_become_small_ones() {
        let body = b"b\r\nhello world\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n";
        let cut = pass(&mut ChunkGuard::new(false), body, 8).unwrap();
        assert_eq!(
            std::str::from_utf8(&cut).unwrap(),
            "5\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
        );
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        for broken in ["zz\r\n", "5\r\nhelloXX", "+5\r\nhello\r\n", "\r\n", "ffffffffffffffffff\r\n"] {
            let outcome = pass(&mut ChunkGuard::new(false), broken.as_bytes(), 3);
            assert_eq!(outcome, Err(BodyFailure::ChunkMalformed), "{broken}");
        }
        let endless = [b'a'; 4096];
        assert_eq!(pass(&mut ChunkGuard::new(true), &endless, 64), Err(BodyFailure::ChunkMalformed));
    }
}
