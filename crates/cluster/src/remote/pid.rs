//! Names of actors, on this node or any other.
//!
//! A [`Pid`] is an address and an id. The address is the `host:port` exactly as its node spells it, because a Go node of
//! the older dialect forwards whatever is spelled differently, to itself if need be, forever. Ids that nobody chose
//! count up from `$1` in base 64, as they do in Go.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use synod_wire::{PidRef, actor};

/// The name of an actor.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid {
    address: Arc<str>,
    id: Arc<str>,
    request_id: u32,
}

impl Pid {
    /// The actor `id` on the node at `address`.
    #[must_use]
    pub fn new(address: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Self {
        Self { address: address.into(), id: id.into(), request_id: 0 }
    }

    /// The same actor, with the number of one of the requests it takes part in.
    #[must_use]
    pub fn with_request_id(mut self, request_id: u32) -> Self {
        self.request_id = request_id;
        self
    }

    /// The `host:port` of its node.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its name on that node.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Which of the requests that share this actor is meant; 0 is none.
    #[must_use]
    pub const fn request_id(&self) -> u32 {
        self.request_id
    }

    pub(crate) fn shared_id(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    pub(super) fn as_ref(&self) -> PidRef<'_> {
        PidRef { address: &self.address, id: &self.id, request_id: self.request_id }
    }
}

impl From<&Pid> for actor::Pid {
    fn from(pid: &Pid) -> Self {
        pid.as_ref().to_pid()
    }
}

impl From<&actor::Pid> for Pid {
    fn from(pid: &actor::Pid) -> Self {
        Self::from(PidRef::from(pid))
    }
}

impl From<PidRef<'_>> for Pid {
    fn from(pid: PidRef<'_>) -> Self {
        Self { address: Arc::from(pid.address), id: Arc::from(pid.id), request_id: pid.request_id }
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.id)
    }
}

impl fmt::Debug for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        if self.request_id == 0 { Ok(()) } else { write!(f, "?{}", self.request_id) }
    }
}

/// Gives out ids that nobody chose.
#[derive(Debug, Default)]
pub(super) struct AutoIds(AtomicU64);

impl AutoIds {
    /// `prefix` and the next number: `$1`, `$2`, … `$a`, … `$10`.
    pub(super) fn next(&self, prefix: &str) -> String {
        let mut number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let mut digits = Vec::new();
        while number > 0 {
            digits.push(DIGITS[(number % 64) as usize]);
            number /= 64;
        }
        let mut id = String::with_capacity(prefix.len() + 1 + digits.len());
        id.push_str(prefix);
        id.push('$');
        id.extend(digits.iter().rev().map(|digit| char::from(*digit)));
        id
    }
}

const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ~+";

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that the protocol's description gives.
    #[test]
    fn automatic_ids_count_as_go_does() {
        let after = |number: u64| AutoIds(AtomicU64::new(number - 1)).next("");
        let expected = [
            (1, "$1"),
            (10, "$a"),
            (36, "$A"),
            (62, "$~"),
            (63, "$+"),
            (64, "$10"),
            (4096, "$100"),
            (123_456_789, "$7mYQl"),
        ];
        for (number, id) in expected {
            assert_eq!(after(number), id);
        }
        let ids = AutoIds::default();
        assert_eq!([ids.next("future"), ids.next("future")], ["future$1", "future$2"]);
    }

    #[test]
    fn a_pid_survives_the_wire_type() {
        let pid = Pid::new("h:1", "room/7").with_request_id(9);
        assert_eq!(Pid::from(&actor::Pid::from(&pid)), pid);
        assert_eq!((pid.to_string(), format!("{pid:?}")), ("h:1/room/7".into(), "h:1/room/7?9".into()));
    }
}
