//! Whether a queue that really ran kept its promises.
//!
//! ```text
//!   clients, workers ──► History ──────────────────────────┐
//!   nodes, live ───────► states, by index ──► History ─────┼──► verify ──► Report
//!   nodes, stopped ────► logs, snapshots ──► replay ───────┘
//! ```
//!
//! While it runs, clients and workers write down what they see ([`History`], [`RecordedClient`], [`RecordedSession`]). When
//! the nodes are stopped, the log of each is applied once more by the machine that the product has ([`replay`]). Both go to
//! [`synod_core::jobs::check`], which knows the promises and shares no code with the machine.
//!
//! Replays say what the logs say. That nodes were in the states that their logs lead to is seen by states that were asked for
//! while they ran ([`Record::Hash`]), and by their snapshots.

mod history;
mod load;
mod overlay;
mod replica;
mod witness;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use synod_core::jobs::check::{self, Finding, Record, check};

pub use self::history::{History, HistoryError, Recording};
pub use self::load::{Load, LoadDone, WorkerEnd};
pub use self::replica::{Replay, ReplayError, ReplayProblem, StoppedReplica, committed};
pub use self::witness::{RecordedClient, RecordedHands, RecordedSession};

/// Applies the logs of stopped nodes, as far as they are committed. Each directory is the one of a node's queue; the first
/// is replica 1. `hash_at` says after which entries states are wanted.
///
/// # Errors
/// The data of a node cannot be used.
pub fn replay(dirs: &[PathBuf], group: u16, hash_at: &BTreeSet<u64>) -> Result<Vec<Replay>, ReplayError> {
    let opened = (1..).zip(dirs).map(|(number, dir)| StoppedReplica::open(dir, group, number));
    replay_all(&opened.collect::<Result<Vec<_>, _>>()?, hash_at)
}

/// Applies the logs of all replicas of a group, as far as they are committed.
///
/// # Errors
/// The data of a node cannot be used.
pub fn replay_all(replicas: &[StoppedReplica], hash_at: &BTreeSet<u64>) -> Result<Vec<Replay>, ReplayError> {
    let upto = committed(replicas);
    replicas.iter().zip(upto).map(|(replica, upto)| replica.replay(upto, hash_at)).collect()
}

/// After which entries a recording has states of replicas, for [`replay`].
#[must_use]
pub fn hashed(recording: &Recording) -> BTreeSet<u64> {
    let index = |record: &Record| match record {
        Record::Hash { index, .. } => Some(*index),
        _ => None,
    };
    recording.records.iter().filter_map(index).collect()
}

/// Checks a recording against the logs of all replicas.
#[must_use]
pub fn verify(recording: Recording, replicas: Vec<Replay>) -> Report {
    let shown = replicas.iter().map(|replay| ReplicaSeen {
        replica: replay.replica,
        first: replay.first,
        end: replay.end,
    });
    let shown: Vec<ReplicaSeen> = shown.collect();
    let is_whole = replicas.iter().any(|replay| replay.first == 0);
    let Recording { records, expectations } = recording;
    let all = records.into_iter().chain(replicas.into_iter().flat_map(|replay| replay.records));
    // Lives whose beginnings are lost cannot be told; that replicas agree can.
    let told = all.filter(|record| is_whole || matches!(record, Record::Hash { .. }));
    let expectations = if is_whole { expectations } else { check::Expectations::default() };
    Report { is_whole, replicas: shown, checked: check(told, &expectations) }
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether all promises could be looked at. Otherwise no log begins at the beginning, and all that was compared is the
    /// states of the replicas.
    pub is_whole: bool,
    /// What there was of each replica.
    pub replicas: Vec<ReplicaSeen>,
    /// What was found.
    pub checked: check::Report,
}

/// What there was of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ReplicaSeen {
    /// Which.
    pub replica: u64,
    /// The first entry that was applied.
    pub first: u64,
    /// The entry behind the last one.
    pub end: u64,
}

impl Report {
    /// Whether everything was looked at, and all promises were kept.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.is_whole && self.checked.is_clean()
    }

    /// For programs.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let finding = |finding: &Finding| serde_json::json!({ "promise": finding.promise(), "finding": finding.to_string() });
        serde_json::json!({
            "is_clean": self.is_clean(),
            "is_whole": self.is_whole,
            "replicas": self.replicas,
            "seen": self.checked.seen,
            "broken": self.checked.broken,
            "findings": self.checked.findings.iter().map(finding).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.checked.seen;
        writeln!(f, "{} jobs, {} submits acknowledged", seen.jobs, seen.accepted)?;
        writeln!(
            f,
            "{} assignments, {} deliveries, {} acks, {} losses, {} dead",
            seen.assignments, seen.deliveries, seen.acks, seen.losses, seen.dead
        )?;
        for ReplicaSeen { replica, first, end } in &self.replicas {
            writeln!(f, "replica {replica}: entries {first} to {end}")?;
        }
        writeln!(f, "{} states compared", seen.compared)?;
        if !self.is_whole {
            writeln!(f, "no log begins at the beginning: only the states of the replicas were compared")?;
        }
        for finding in &self.checked.findings {
            writeln!(f, "promise {}: {finding}", finding.promise())?;
        }
        for (number, count) in (1..).zip(self.checked.broken).filter(|(_, count)| *count > 0) {
            writeln!(f, "promise {number} was broken {count} times: {}", promise(number))?;
        }
        Ok(())
    }
}

/// A promise by its number, in a few words.
#[must_use]
pub fn promise(number: u8) -> &'static str {
    let place = usize::from(number).checked_sub(1);
    place.and_then(|place| PROMISES.get(place)).copied().unwrap_or("there is no such promise")
}

const PROMISES: [&str; 10] = [
    "no submit that was acknowledged is lost",
    "nothing comes from nowhere, and bodies arrive as they were submitted",
    "an assignment has one holder, is committed before it is delivered, and acked once while it holds",
    "a job is given out again only after a loss that was recorded",
    "a token makes one job",
    "jobs come by priority and number, groups one after the other, none before its time",
    "no cap is exceeded",
    "a job is dead exactly when its tries are used up",
    "replicas agree",
    "nothing is left to do",
];
