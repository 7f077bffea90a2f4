//! What a run tells: a line per event while it goes on, and a summary at the end.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// One event, as a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLine {
    /// True simulated time.
    pub at: Duration,
    /// The node that observed it; `None` for what the scenario does.
    pub node: Option<String>,
    /// What kind of event, in a word.
    pub kind: &'static str,
    /// The event in plain words.
    pub text: String,
}

impl fmt::Display for TraceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.node.as_deref().unwrap_or("*");
        write!(f, "{:>9.3}s  {:<6} {:<10} {}", self.at.as_secs_f64(), node, self.kind, self.text)
    }
}

/// Receives the lines of a run.
pub struct TraceSink(Box<dyn FnMut(&TraceLine)>);

impl TraceSink {
    /// A sink that calls `receive` for every line.
    pub fn new(receive: impl FnMut(&TraceLine) + 'static) -> Self {
        Self(Box::new(receive))
    }

    pub(crate) fn receive(&mut self, line: &TraceLine) {
        (self.0)(line);
    }
}

impl fmt::Debug for TraceSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TraceSink")
    }
}

/// The summary of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The seed of all chance.
    pub seed: u64,
    /// How many nodes there were.
    pub nodes: usize,
    /// The scenario's name.
    pub scenario: String,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
    /// Calls into machines.
    pub steps: u64,
    /// Messages that nodes sent.
    pub messages_sent: u64,
    /// Messages that the network lost or cut off.
    pub messages_lost: u64,
    /// Messages that the network doubled.
    pub messages_doubled: u64,
    /// Changes of state that nodes observed.
    pub status_changes: u64,
    /// Topology updates that nodes published.
    pub topology_updates: u64,
    /// Verdicts of death about processes that were running.
    pub false_deaths: u64,
    /// How long the views took to agree after everything was healed, in milliseconds.
    pub converged_after_ms: u64,
    /// Members at the end.
    pub members: usize,
    /// The digest of the view that all hold at the end, in hexadecimal.
    pub view_digest: String,
}
