//! The commands of the protocol, and how a line becomes one.
//!
//! What beanstalkd takes is taken, to the byte: some of its numbers may be followed by anything, some words may too.

use bytes::Bytes;
use synod_core::jobs::{JobId, QueueName};

use crate::access::PeekState;

/// One command, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Put {
        put: PutLine,
        body: Bytes,
    },
    Use(QueueName),
    Watch(QueueName),
    Ignore(QueueName),
    Reserve,
    /// `None`: for ever.
    ReserveWithTimeout(Option<u32>),
    ReserveJob(JobId),
    Delete(JobId),
    Release {
        job: JobId,
        priority: u32,
        delay_s: u32,
    },
    Bury {
        job: JobId,
        priority: u32,
    },
    Touch(JobId),
    Peek(JobId),
    PeekFirst(PeekState),
    Kick(u32),
    KickJob(JobId),
    PauseTube {
        tube: QueueName,
        seconds: u32,
    },
    Stats,
    StatsJob(JobId),
    StatsTube(QueueName),
    ListTubes,
    ListTubeUsed,
    ListTubesWatched,
    Quit,
}

/// The line of a put. Its body follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PutLine {
    pub(crate) priority: u32,
    pub(crate) delay_s: u32,
    pub(crate) ttr_s: u32,
    pub(crate) bytes: u32,
    /// Whether something follows that does not belong there. It matters only where the body is not too long.
    pub(crate) has_rest: bool,
}

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Whole(Command),
    Put(PutLine),
}

/// What a client sent is not a command. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    BadFormat,
    UnknownCommand,
    ExpectedCrlf,
    JobTooBig,
}

/// What a line says, which comes without its end.
pub(crate) fn parse_line(line: &[u8]) -> Result<Line, Wrong> {
    if line.contains(&0) {
        return Err(Wrong::BadFormat);
    }
    // A word that is the beginning of another comes after it.
    for (word, parse) in WORDS {
        if let Some(rest) = line.strip_prefix(word.as_bytes()) {
            return parse(rest).ok_or(Wrong::BadFormat);
        }
    }
    Err(Wrong::UnknownCommand)
}

type Parse = fn(&[u8]) -> Option<Line>;

const WORDS: [(&str, Parse); 25] = [
    ("put ", put),
    ("reserve-with-timeout ", reserve_with_timeout),
    ("reserve-job ", |rest| whole(Command::ReserveJob(only_job(rest)?))),
    ("reserve", |rest| bare(rest, Command::Reserve)),
    ("delete ", |rest| whole(Command::Delete(only_job(rest)?))),
    ("release ", release),
    ("bury ", bury),
    ("touch ", |rest| whole(Command::Touch(only_job(rest)?))),
    ("use ", |rest| whole(Command::Use(tube(rest)?))),
    ("watch ", |rest| whole(Command::Watch(tube(rest)?))),
    ("ignore ", |rest| whole(Command::Ignore(tube(rest)?))),
    ("peek ", |rest| whole(Command::Peek(only_job(rest)?))),
    ("peek-ready", |rest| bare(rest, Command::PeekFirst(PeekState::Ready))),
    ("peek-delayed", |rest| bare(rest, Command::PeekFirst(PeekState::Delayed))),
    ("peek-buried", |rest| bare(rest, Command::PeekFirst(PeekState::Dead))),
    ("kick ", kick),
    ("kick-job ", |rest| whole(Command::KickJob(only_job(rest)?))),
    ("stats-job ", |rest| whole(Command::StatsJob(only_job(rest)?))),
    ("stats-tube ", |rest| whole(Command::StatsTube(tube(rest)?))),
    ("stats", |rest| bare(rest, Command::Stats)),
    ("list-tubes-watched", |rest| bare(rest, Command::ListTubesWatched)),
    ("list-tube-used", |rest| bare(rest, Command::ListTubeUsed)),
    ("list-tubes", |rest| bare(rest, Command::ListTubes)),
    ("pause-tube", pause_tube),
    // Whatever follows, the client wants to go.
    ("quit", |_| whole(Command::Quit)),
];

#[expect(clippy::unnecessary_wraps, reason = "it ends what may fail")]
const fn whole(command: Command) -> Option<Line> {
    Some(Line::Whole(command))
}

fn bare(rest: &[u8], command: Command) -> Option<Line> {
    rest.is_empty().then_some(Line::Whole(command))
}

fn put(mut rest: &[u8]) -> Option<Line> {
    Some(Line::Put(PutLine {
        priority: small_number(&mut rest)?,
        delay_s: small_number(&mut rest)?,
        ttr_s: small_number(&mut rest)?,
        bytes: small_number(&mut rest)?,
        has_rest: !rest.is_empty(),
    }))
}

fn release(mut rest: &[u8]) -> Option<Line> {
    let job = JobId::new(number(&mut rest)?);
    let (priority, delay_s) = (small_number(&mut rest)?, small_number(&mut rest)?);
    bare(rest, Command::Release { job, priority, delay_s })
}

fn bury(mut rest: &[u8]) -> Option<Line> {
    let job = JobId::new(number(&mut rest)?);
    let priority = small_number(&mut rest)?;
    bare(rest, Command::Bury { job, priority })
}

/// As C reads a long: no number is 0, too large a one wraps in 32 bits, and a negative one is for ever.
fn reserve_with_timeout(rest: &[u8]) -> Option<Line> {
    let seconds = match c_number(rest) {
        None => 0,
        Some((is_negative, magnitude)) => {
            let magnitude = i64::try_from(magnitude?).ok()?;
            if is_negative { -magnitude } else { magnitude }
        }
    };
    #[expect(clippy::cast_possible_truncation, reason = "as beanstalkd has it")]
    let seconds = seconds as i32;
    whole(Command::ReserveWithTimeout(u32::try_from(seconds).ok()))
}

/// As C reads an unsigned long: a negative number is a very large one.
fn kick(rest: &[u8]) -> Option<Line> {
    let (is_negative, magnitude) = c_number(rest)?;
    let magnitude = magnitude?;
    let bound = if is_negative { magnitude.wrapping_neg() } else { magnitude };
    #[expect(clippy::cast_possible_truncation, reason = "as beanstalkd has it")]
    let bound = bound as u32;
    whole(Command::Kick(bound))
}

fn pause_tube(rest: &[u8]) -> Option<Line> {
    let rest = rest.trim_ascii_start();
    let name_bytes = rest.iter().position(|byte| *byte == b' ')?;
    let (name, mut rest) = rest.split_at(name_bytes);
    let tube = tube(name)?;
    let seconds = small_number(&mut rest)?;
    bare(rest, Command::PauseTube { tube, seconds })
}

fn tube(name: &[u8]) -> Option<QueueName> {
    // In memory of its own: a name outlives what it came with.
    QueueName::from_bytes(Bytes::copy_from_slice(name)).ok()
}

fn only_job(mut rest: &[u8]) -> Option<JobId> {
    let job = number(&mut rest)?;
    rest.is_empty().then_some(JobId::new(job))
}

fn small_number(rest: &mut &[u8]) -> Option<u32> {
    u32::try_from(number(rest)?).ok()
}

/// A decimal number after any spaces, up to the first byte that is no digit.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let spaces = rest.iter().take_while(|byte| **byte == b' ').count();
    let (number, after) = digits(&rest[spaces..])?;
    *rest = after;
    number
}

/// A number as C reads it: after white space and a sign, with anything behind it. Its sign and its magnitude, which is
/// `None` where it is too large; `None` as a whole where there is no number.
fn c_number(rest: &[u8]) -> Option<(bool, Option<u64>)> {
    let is_space = |byte: &&u8| byte.is_ascii_whitespace() || **byte == VERTICAL_TAB;
    let rest = &rest[rest.iter().take_while(is_space).count()..];
    let (is_negative, rest) = match rest.first() {
        Some(b'-') => (true, &rest[1..]),
        Some(b'+') => (false, &rest[1..]),
        _ => (false, rest),
    };
    digits(rest).map(|(magnitude, _)| (is_negative, magnitude))
}

/// The number that these bytes start with, `None` where it is too large, and what follows.
fn digits(bytes: &[u8]) -> Option<(Option<u64>, &[u8])> {
    let count = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return None;
    }
    let (digits, after) = bytes.split_at(count);
    let number = digits
        .iter()
        .try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
    Some((number, after))
}

/// White space for C, and not for Rust.
const VERTICAL_TAB: u8 = 0x0B;

#[cfg(test)]
mod tests {
    use super::*;

    /// What beanstalkd 1.12 said to each of these, found by asking it.
    #[test]
    fn lines_are_taken_as_beanstalkd_takes_them() {
        let bad = [
            "put 0 0\t10 1",
            "put +1 0 10 1",
            "put -1 0 10 1",
            "put 4294967296 0 10 1",
            "put ",
            "reserve ",
            "reservex",
            "reserve-job",
            "reserve-with-timeout",
            "reserve-with-timeout 99999999999999999999",
            "kick x",
            "kick ",
            "kick 18446744073709551616",
            "kick-job 1x",
            "delete 99x",
            "delete -1",
            "delete 18446744073709551616",
            "delete 1 ",
            "release 1 1",
            "release 1 1 1 1",
            "bury 99",
            "bury 99 1 ",
            "touch x",
            "use ",
            "use -a",
            "use a b",
            "use  a",
            "ignore -a",
            "pause-tube",
            "pause-tube a",
            "pause-tube default x",
            "pause-tube default 0 ",
            "pause-tube default\t0",
            "pause-tube -a 0",
            "use a\nuse b",
            "use a\0b",
            "foo\0bar",
            "quit\0",
            "stats x",
            "statsx",
            "stats-job x",
            "stats-job ",
            "stats-tube ",
            "stats-tube",
            "stats-tube -a",
            "list-tubes x",
            "list-tubes-watchedx",
            "list-tube-usedx",
            "peek x",
            "peek ",
            "peek-ready x",
            "reserve-job 1x",
        ];
        for line in bad {
            assert_eq!(parse_line(line.as_bytes()), Err(Wrong::BadFormat), "{line:?}");
        }
        let unknown = [
            "",
            "put",
            "kick",
            "use",
            "watch",
            "peek",
            "touch",
            "delete",
            "kick-job",
            "list-tube",
            "PUT 0",
            "Use a",
        ];
        for line in unknown {
            assert_eq!(parse_line(line.as_bytes()), Err(Wrong::UnknownCommand), "{line:?}");
        }
        let timeouts = [
            ("0 ", Some(0)),
            ("x", Some(0)),
            ("", Some(0)),
            ("0x", Some(0)),
            ("+0", Some(0)),
            ("7", Some(7)),
            ("4294967296", Some(0)),
            ("-1", None),
            ("-5", None),
            ("2147483648", None),
        ];
        for (text, seconds) in timeouts {
            let line = format!("reserve-with-timeout {text}");
            assert_eq!(
                parse_line(line.as_bytes()),
                Ok(Line::Whole(Command::ReserveWithTimeout(seconds))),
                "{line:?}"
            );
        }
        let bounds =
            [("1 x", 1), ("-1", u32::MAX), (" 1", 1), ("+1", 1), ("\t1", 1), ("1x", 1), ("4294967296", 0)];
        for (text, bound) in bounds {
            let line = format!("kick {text}");
            assert_eq!(parse_line(line.as_bytes()), Ok(Line::Whole(Command::Kick(bound))), "{line:?}");
        }
        let job = JobId::new;
        let whole = [
            ("delete  18446744073709551615", Command::Delete(job(u64::MAX))),
            ("release 9 8 7", Command::Release { job: job(9), priority: 8, delay_s: 7 }),
            ("quit x", Command::Quit),
            ("peek-buried", Command::PeekFirst(PeekState::Dead)),
        ];
        for (line, command) in whole {
            assert_eq!(parse_line(line.as_bytes()), Ok(Line::Whole(command)), "{line:?}");
        }
        for line in ["pause-tube a 3", "pause-tube  a  3", "pause-tubea 3"] {
            let pause = tube(b"a").map(|tube| Line::Whole(Command::PauseTube { tube, seconds: 3 }));
            assert_eq!(parse_line(line.as_bytes()).ok(), pause, "{line:?}");
        }
    }

    #[test]
    fn a_put_may_have_more_spaces_and_nothing_behind() {
        let put = PutLine { priority: u32::MAX, delay_s: 2, ttr_s: 3, bytes: 4, has_rest: false };
        assert_eq!(parse_line(b"put  4294967295 2  3 4"), Ok(Line::Put(put)));
        assert_eq!(parse_line(b"put 4294967295 2 3 4 "), Ok(Line::Put(PutLine { has_rest: true, ..put })));
    }
}
