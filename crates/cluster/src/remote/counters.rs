//! What went over the connections of a node, and what could not be used.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident),+ $(,)?) => {
        /// Counts since the start of the [`Remote`](super::Remote). Reading is free.
        #[derive(Debug, Default)]
        pub struct RemoteCounters {
            $(pub(super) $name: AtomicU64,)+
        }

        impl RemoteCounters {
            $(#[doc = $doc] #[must_use] pub fn $name(&self) -> u64 {
                self.$name.load(Ordering::Relaxed)
            })+

            /// All counts by name.
            #[must_use]
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name())),+]
            }

            /// All counts by name, each with what it counts.
            pub(crate) fn described(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $doc, self.$name())),+]
            }
        }
    };
}

counters! {
    /// Bytes read from sockets.
    bytes_received,
    /// Bytes written to sockets.
    bytes_sent,
    /// Frames read, good and bad.
    frames_received,
    /// Frames of messages written.
    frames_sent,
    /// Messages read.
    messages_received,
    /// Messages written.
    messages_sent,
    /// Messages that reached nobody.
    dead_letters,
    /// Frames that could not be read and were ignored.
    frames_refused,
    /// Envelopes that could not be read and were ignored.
    envelopes_refused,
    /// Messages that named a type which the receiving part of this node does not take.
    messages_refused,
    /// Streams that ended before they had said who opened them, or said it wrongly.
    handshakes_refused,
    /// Connections turned away because there were too many.
    connections_refused,
    /// Connections closed because nothing useful had come over them for too long.
    connections_expired,
    /// Messages ignored because their sender is blocked.
    messages_from_blocked,
    /// Messages that a full mailbox did not take in time.
    mailbox_overflows,
    /// Connections to peers that were opened.
    connections_opened,
    /// Connections to peers that were lost.
    connections_lost,
    /// Tries to connect that failed.
    connects_failed,
    /// How often a peer turned out to speak the other dialect.
    dialects_corrected,
}

pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
