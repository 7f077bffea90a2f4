//! Bytes of a client become commands, in whatever pieces they come.

use bytes::{Buf, BytesMut};

use super::command::{Command, Line, PutLine, Wrong, parse_line};

/// Where a client is in what it says. It holds no bytes: those stay in the buffer until they are whole.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Line,
    /// The line was too long: its end is looked for.
    LineEnd,
    Body(PutLine),
    /// So many bytes are not wanted.
    Skip {
        left: u64,
    },
}

impl Parser {
    /// The next command, taken out of the buffer; `None`: more bytes are needed.
    pub(crate) fn next(
        &mut self,
        input: &mut BytesMut,
        body_bytes_max: u32,
    ) -> Option<Result<Command, Wrong>> {
        loop {
            match &mut self.state {
                State::Line => match find_crlf(&input[..input.len().min(LINE_BYTES_MAX)]) {
                    Some(end) => {
                        let line = input.split_to(end + 2);
                        match parse_line(&line[..end]) {
                            Err(wrong) => return Some(Err(wrong)),
                            Ok(Line::Whole(command)) => return Some(Ok(command)),
                            Ok(Line::Put(put)) if put.bytes > body_bytes_max => {
                                self.state = State::Skip { left: u64::from(put.bytes) + 2 };
                            }
                            Ok(Line::Put(put)) if put.has_rest => return Some(Err(Wrong::BadFormat)),
                            Ok(Line::Put(put)) => self.state = State::Body(put),
                        }
                    }
                    None if input.len() >= LINE_BYTES_MAX => self.state = State::LineEnd,
                    None => return None,
                },
                State::LineEnd => {
                    let Some(end) = find_crlf(input) else {
                        // The last byte may be the first half of the end.
                        input.advance(input.len().saturating_sub(1));
                        return None;
                    };
                    input.advance(end + 2);
                    self.state = State::Line;
                    return Some(Err(Wrong::BadFormat));
                }
                State::Body(put) => {
                    let bytes = put.bytes as usize;
                    if input.len() < bytes + 2 {
                        return None;
                    }
                    let put = *put;
                    self.state = State::Line;
                    let mut body = input.split_to(bytes + 2);
                    let end = body.split_off(bytes);
                    if end[..] != *b"\r\n" {
                        return Some(Err(Wrong::ExpectedCrlf));
                    }
                    return Some(Ok(Command::Put { put, body: body.freeze() }));
                }
                State::Skip { left } => {
                    let skipped = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                    input.advance(skipped);
                    *left -= skipped as u64;
                    if *left > 0 {
                        return None;
                    }
                    self.state = State::Line;
                    return Some(Err(Wrong::JobTooBig));
                }
            }
        }
    }

    /// How many bytes the buffer must be able to hold for the next command to become whole.
    pub(crate) const fn bytes_wanted(&self) -> usize {
        match &self.state {
            State::Body(put) => put.bytes as usize + 2,
            State::Line | State::LineEnd | State::Skip { .. } => LINE_BYTES_MAX,
        }
    }
}

fn find_crlf(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == b"\r\n")
}

/// The longest line, its end included.
const LINE_BYTES_MAX: usize = 224;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BODY_BYTES_MAX: u32 = 64;

    fn parse(pieces: &[&[u8]]) -> Vec<Result<Command, Wrong>> {
        let (mut parser, mut input, mut parsed) = (Parser::default(), BytesMut::new(), Vec::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            while let Some(next) = parser.next(&mut input, BODY_BYTES_MAX) {
                parsed.push(next);
            }
            assert!(input.len() < parser.bytes_wanted(), "what is left waits for more");
        }
        parsed
    }

    #[test]
    fn a_line_has_224_bytes_at_most_and_a_longer_one_is_skipped() {
        let long = |bytes: usize| [vec![b'a'; bytes], b"\r\nstats\r\n".to_vec()].concat();
        assert_eq!(parse(&[&long(222)]), [Err(Wrong::UnknownCommand), Ok(Command::Stats)]);
        for bytes in [223, 224, 225, 500, 5_000] {
            assert_eq!(parse(&[&long(bytes)]), [Err(Wrong::BadFormat), Ok(Command::Stats)], "{bytes}");
        }
    }

    #[test]
    fn a_body_that_is_too_long_is_skipped_whatever_it_says() {
        let input =
            [b"put 0 0 1 65 x\r\n".to_vec(), b"stats\r\n".repeat(9), b"1234quit\r\n".to_vec()].concat();
        assert_eq!(parse(&[&input]), [Err(Wrong::JobTooBig), Ok(Command::Quit)]);
    }

    #[test]
    fn a_body_without_its_end_is_taken_with_the_two_bytes_behind() {
        assert_eq!(
            parse(&[b"put 0 0 1 1\r\nxyz\r\nquit\r\n"]),
            [Err(Wrong::ExpectedCrlf), Err(Wrong::UnknownCommand), Ok(Command::Quit)]
        );
    }

    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let line = prop::sample::select(vec![
            "stats\r\n",
            "use a\r\n",
            "put 0 0 1 3\r\n",
            "abc\r\n",
            "put 0 0 1 70\r\n",
            "put 1 2 3 0\r\n\r\n",
            "\r",
            "\n",
            "\r\n",
            "kick -1\r\n",
            "delete 7\r\n",
            "put 0 0 1 4294967295\r\n",
            "pause-tube a 1\r\n",
            "quit\r\n",
        ]);
        prop_oneof![
            4 => line.prop_map(|line| line.as_bytes().to_vec()),
            1 => prop::collection::vec(any::<u8>(), 0..40),
            1 => (0_usize..300).prop_map(|bytes| vec![b'x'; bytes]),
        ]
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            parts in prop::collection::vec(piece(), 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let input = parts.concat();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
            cuts.extend([0, input.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &input[cut[0]..cut[1]]).collect();
            let bytes: Vec<&[u8]> = input.chunks(1).collect();
            let whole = parse(&[&input]);
            prop_assert_eq!(&parse(&pieces), &whole);
            prop_assert_eq!(&parse(&bytes), &whole);
        }
    }
}
