//! Letters that do not keep their whole frame in memory.
//!
//! What is read from a frame is a slice of it, and a slice keeps all of it alive. One short letter to an actor that never
//! reads would hold on to 64 MiB, and the bounds of its mailbox would mean nothing. So letters from larger frames are
//! copied, those of one target together in small chunks: an actor reads in order, so a chunk lives hardly longer than
//! its letters.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::process::Letter;

/// Copies what would hold on to much more than itself. `letters` are of one target and of a frame of `frame_bytes`.
pub(super) fn detach(letters: &mut VecDeque<Letter>, frame_bytes: usize) {
    if frame_bytes <= FRAME_BYTES_KEPT {
        return;
    }
    let mut open = Chunk::default();
    for position in 0..letters.len() {
        let payload = &letters[position].message.payload;
        // A payload that is most of its frame holds on to little else.
        if payload.is_empty() || payload.len() > frame_bytes / 2 {
            continue;
        }
        if open.bytes.len() + payload.len() > CHUNK_BYTES {
            std::mem::take(&mut open).hand_out(letters);
        }
        let payload = &letters[position].message.payload;
        open.bytes.extend_from_slice(payload);
        open.parts.push((position, payload.len()));
    }
    open.hand_out(letters);
}

/// Payloads of several letters in a row.
#[derive(Default)]
struct Chunk {
    bytes: BytesMut,
    /// The letters, and the lengths of their payloads.
    parts: Vec<(usize, usize)>,
}

impl Chunk {
    fn hand_out(self, letters: &mut VecDeque<Letter>) {
        let mut bytes: Bytes = self.bytes.freeze();
        for (position, length) in self.parts {
            letters[position].message.payload = bytes.split_to(length);
        }
    }
}

/// Frames up to this size may be kept alive by any of their letters.
const FRAME_BYTES_KEPT: usize = 4 << 10;
/// Letters are copied together up to this size.
const CHUNK_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::super::message::Message;
    use super::*;

    fn letters(frame: &Bytes, ranges: &[(usize, usize)]) -> VecDeque<Letter> {
        let letter = |(from, to): &(usize, usize)| Letter {
            request_id: 0,
            message: Message::raw("test.Text".into(), frame.slice(*from..*to)),
        };
        ranges.iter().map(letter).collect()
    }

    #[test]
    fn short_letters_let_their_frame_go_and_keep_their_content() {
        let frame = Bytes::from((0..100_000u32).map(|number| number as u8).collect::<Vec<_>>());
        let ranges: Vec<_> =
            (0..300).map(|number| (number * 100, number * 100 + 90)).chain([(7, 7)]).collect();
        let mut detached = letters(&frame, &ranges);
        let before: Vec<_> = detached.iter().map(|letter| letter.message.payload.to_vec()).collect();
        detach(&mut detached, frame.len());
        let after: Vec<_> = detached.iter().map(|letter| letter.message.payload.to_vec()).collect();
        assert_eq!(before, after);
        assert!(frame.is_unique(), "nobody holds on to the frame");
    }

    #[test]
    fn what_is_most_of_its_frame_is_not_copied() {
        let frame = Bytes::from(vec![1; 100_000]);
        let mut large = letters(&frame, &[(10, 90_000)]);
        detach(&mut large, frame.len());
        assert_eq!(large[0].message.payload.as_ptr(), frame[10..].as_ptr());
        let small = Bytes::from(vec![1; 1000]);
        let mut kept = letters(&small, &[(0, 1)]);
        detach(&mut kept, small.len());
        assert_eq!(kept[0].message.payload.as_ptr(), small.as_ptr());
    }
}
