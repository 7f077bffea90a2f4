//! What a gossiper has done so far, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident / $add:ident),* $(,)?) => {
        /// What a gossiper has done so far, across stops and starts.
        #[derive(Debug, Default)]
        pub struct GossiperCounters {
            $($name: AtomicU64,)*
        }

        impl GossiperCounters {
            $(
                #[doc = $doc]
                #[must_use]
                pub fn $name(&self) -> u64 {
                    self.$name.load(Ordering::Relaxed)
                }

                pub(super) fn $add(&self, count: usize) {
                    self.$name.fetch_add(count as u64, Ordering::Relaxed);
                }
            )*

            /// All counts by name, each with what it counts.
            pub(crate) fn described(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $doc, self.$name())),*]
            }
        }
    };
}

counters! {
    /// Rounds of gossip.
    rounds / add_rounds,
    /// Requests handed to the carrier, last words included.
    requests_sent / add_requests_sent,
    /// Requests that were answered in time.
    requests_answered / add_requests_answered,
    /// Requests that the carrier could not deliver.
    requests_failed / add_requests_failed,
    /// Requests that were not answered in time.
    requests_timed_out / add_requests_timed_out,
    /// Requests of others that were handled.
    requests_received / add_requests_received,
    /// Entries of other members that were taken.
    entries_merged / add_entries_merged,
    /// Entries of other members that were not taken, because their owner is blocked or a bound was hit.
    entries_refused / add_entries_refused,
    /// Entries that could not be read and were skipped.
    entries_undecodable / add_entries_undecodable,
    /// Writes without a reply that found the queue full and were dropped.
    commands_dropped / add_commands_dropped,
    /// Writes without a reply that were refused, which nobody but this counter and the log has told.
    commands_refused / add_commands_refused,
}

impl GossiperCounters {
    /// Counts entries that a carrier found unreadable in an answer.
    pub fn note_undecodable(&self, entries: usize) {
        self.add_entries_undecodable(entries);
    }
}
