//! Two dialects of one protocol, told apart by listening.
//!
//! protoactor-go changed in August 2025 how a batch names its receivers, and kept every other name and number. A node
//! of the older dialect ([`Dialect::A`]) writes whole PIDs, one of the newer ([`Dialect::B`]) writes only the ids,
//! because the receiver knows its own address. Go nodes of different dialects cannot talk to each other; a synod node
//! answers each peer in the dialect it was spoken to in.
//!
//! Both forms are length-delimited bytes under the same field number. An encoded PID begins with the key of its address
//! (`0x0A`, a line feed as text) or of its id (`0x12`), and no sane actor id does.

use bytes::Bytes;

use crate::actor::DeadLetterResponse;
use crate::scan::{Fields, Value};

/// How a peer names the receivers of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// By PID. Go nodes before August 2025.
    A,
    /// By actor id. Go nodes since then, and the best guess about a peer that was not heard yet.
    #[default]
    B,
}

impl Dialect {
    /// The dialect of a batch with these targets; `None` when they do not tell, because there are none or all are empty.
    ///
    /// # Errors
    /// [`DialectError`] when the targets speak neither dialect, or both.
    pub fn of_targets(targets: &[Bytes]) -> Result<Option<Self>, DialectError> {
        let mut listener = Listener::default();
        for (position, target) in targets.iter().enumerate() {
            listener.handle(position, &Spoken::hear(target).ok_or(DialectError::Unknown { position })?);
        }
        listener.dialect()
    }

    /// Whether a peer that was spoken to in dialect A took a PID for an id: it knows no actor by that name and says so.
    /// The message that it answers is to be sent again in dialect B.
    #[must_use]
    pub fn was_misread(response: &DeadLetterResponse) -> bool {
        response.target.as_ref().is_some_and(|target| encoded_pid(target.id.as_bytes()).is_some())
    }

    /// The one that it is not, for a peer that did not understand.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// The targets of a batch name no receivers that could be understood. The batch was ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DialectError {
    /// A target is neither a PID nor text.
    #[error(
        "the peer sent a batch whose target {position} is neither a PID nor an actor id; the batch was ignored"
    )]
    Unknown {
        /// Which target, from 0.
        position: usize,
    },
    /// Some targets are PIDs, some are text. No node writes such a batch, so every reading of it is a guess.
    #[error(
        "the peer sent a batch with a PID as target {pid} and an actor id as target {text}; the batch was ignored"
    )]
    Mixed {
        /// The first target that is a PID, from 0.
        pid: usize,
        /// The first target that is text, from 0.
        text: usize,
    },
}

/// A target as it was spoken.
pub(crate) enum Spoken<'a> {
    /// Nothing, which is the same in both dialects.
    Nothing,
    /// Address and id of a PID.
    Pid(&'a str, &'a str),
    /// An actor id.
    Text(&'a str),
}

impl<'a> Spoken<'a> {
    /// `None` when the bytes are a target in neither dialect.
    pub(crate) fn hear(target: &'a [u8]) -> Option<Self> {
        if target.is_empty() {
            Some(Self::Nothing)
        } else if let Some((address, id)) = encoded_pid(target) {
            Some(Self::Pid(address, id))
        } else {
            str::from_utf8(target).ok().map(Self::Text)
        }
    }

    /// Address, which may be empty, and id.
    pub(crate) const fn pid(&self) -> (&'a str, &'a str) {
        match *self {
            Self::Nothing => ("", ""),
            Self::Pid(address, id) => (address, id),
            Self::Text(id) => ("", id),
        }
    }
}

/// Hears the targets of one batch and tells its dialect.
#[derive(Default)]
pub(crate) struct Listener {
    /// The first target that is a PID.
    pid: Option<usize>,
    /// The first target that is text.
    text: Option<usize>,
}

impl Listener {
    pub(crate) fn handle(&mut self, position: usize, target: &Spoken<'_>) {
        match target {
            Spoken::Nothing => {}
            Spoken::Pid(..) => _ = self.pid.get_or_insert(position),
            Spoken::Text(_) => _ = self.text.get_or_insert(position),
        }
    }

    pub(crate) const fn dialect(&self) -> Result<Option<Dialect>, DialectError> {
        match (self.pid, self.text) {
            (Some(pid), Some(text)) => Err(DialectError::Mixed { pid, text }),
            (Some(_), None) => Ok(Some(Dialect::A)),
            (None, Some(_)) => Ok(Some(Dialect::B)),
            (None, None) => Ok(None),
        }
    }
}

/// Address and id of an encoded PID. Stricter than a protobuf decoder, which would skip what it does not know: bytes
/// that hold anything besides a PID are not one.
pub(crate) fn encoded_pid(bytes: &[u8]) -> Option<(&str, &str)> {
    if !bytes.starts_with(&[ADDRESS_KEY]) && !bytes.starts_with(&[ID_KEY]) {
        return None;
    }
    let (mut address, mut id) = ("", "");
    for field in Fields(bytes) {
        match field? {
            (1, Value::Delimited(text)) => address = str::from_utf8(text).ok()?,
            (2, Value::Delimited(text)) => id = str::from_utf8(text).ok()?,
            (3, Value::Varint(_)) => {}
            _ => return None,
        }
    }
    Some((address, id))
}

const ADDRESS_KEY: u8 = 0x0a;
const ID_KEY: u8 = 0x12;

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::actor::Pid;

    fn pid(address: &str, id: &str) -> Bytes {
        Pid { address: address.into(), id: id.into(), request_id: 7 }.encode_to_vec().into()
    }

    fn text(id: &'static str) -> Bytes {
        Bytes::from_static(id.as_bytes())
    }

    #[test]
    fn a_batch_speaks_the_dialect_of_its_targets() {
        assert_eq!(Dialect::of_targets(&[pid("h:1", "x"), pid("", "y")]), Ok(Some(Dialect::A)));
        assert_eq!(Dialect::of_targets(&[text("x"), text("$pubsub-delivery")]), Ok(Some(Dialect::B)));
    }

    #[test]
    fn empty_targets_do_not_tell() {
        assert_eq!(Dialect::of_targets(&[]), Ok(None));
        assert_eq!(Dialect::of_targets(&[text(""), text("")]), Ok(None));
        assert_eq!(Dialect::of_targets(&[text(""), pid("h:1", "x")]), Ok(Some(Dialect::A)));
    }

    #[test]
    fn text_that_only_begins_like_a_pid_is_text() {
        // A length that runs over the end, a field that no PID has, and a PID with something behind it.
        for id in ["\n\u{7f}x", "\n\u{1}x*\u{1}y", "\n\u{1}xyz"] {
            assert_eq!(Dialect::of_targets(&[text(id)]), Ok(Some(Dialect::B)), "{id:?}");
        }
    }

    #[test]
    fn what_speaks_neither_or_both_is_refused() {
        let noise = Bytes::from_static(&[0xff, 0xfe]);
        assert_eq!(Dialect::of_targets(&[text("x"), noise]), Err(DialectError::Unknown { position: 1 }));
        assert_eq!(
            Dialect::of_targets(&[text("x"), text("y"), pid("h:1", "z")]),
            Err(DialectError::Mixed { pid: 2, text: 0 })
        );
    }

    #[test]
    fn a_wrong_guess_shows_in_the_dead_letter() {
        let garbled = String::from_utf8(pid("h:1", "x").to_vec()).unwrap();
        let answer = |id: String| DeadLetterResponse { target: Some(Pid { id, ..Pid::default() }) };
        assert!(Dialect::was_misread(&answer(garbled)));
        assert!(!Dialect::was_misread(&answer("x".into())));
        assert!(!Dialect::was_misread(&DeadLetterResponse { target: None }));
        assert_eq!(Dialect::A.other(), Dialect::B);
        assert_eq!(Dialect::B.other(), Dialect::A);
    }
}
