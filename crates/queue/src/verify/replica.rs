//! The replica of a node that was stopped, and what the entries of its log do.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use synod_core::jobs::check::Record;
use synod_core::jobs::{JobLimits, SettingOutOfRange};
use synod_log::Disk;

use super::overlay::Overlay;
use crate::jobs::Jobs;
use crate::journal::{EntryId, Journal, JournalConfig, JournalError, Remembered};
use crate::raft::{self, Machine as _};

/// What a node that was stopped has of one group. Nothing on its disk is changed.
pub struct StoppedReplica {
    number: u64,
    group: u16,
    dir: PathBuf,
    journal: Journal,
    remembered: Remembered,
    terms: Terms,
    snapshot: Option<EntryId>,
}

/// What the log of a replica says, applied from its beginning or from its snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Which replica.
    pub replica: u64,
    /// The first entry that was applied; those before it are in the snapshot.
    pub first: u64,
    /// The entry behind the last one.
    pub end: u64,
    /// What happened, and what state came of it.
    pub records: Vec<Record>,
}

/// The data of a replica cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{dir}: {problem}")]
pub struct ReplayError {
    /// Where it is.
    pub dir: PathBuf,
    /// What is wrong with it.
    pub problem: ReplayProblem,
}

/// Why data cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayProblem {
    /// It is not there, cannot be read, makes no sense, or its node runs.
    #[error("the log cannot be opened: {0}")]
    Disk(io::Error),
    /// The journal is damaged.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The log does not begin at the beginning, and there is no snapshot to go on from.
    #[error("the log begins at {first}, and no snapshot reaches that far")]
    NoSnapshot {
        /// The first entry.
        first: u64,
    },
    /// An entry cannot be applied.
    #[error("entry {index} cannot be applied: {error}")]
    Entry {
        /// Which.
        index: u64,
        /// Why.
        error: io::Error,
    },
    /// A limit is out of its range.
    #[error(transparent)]
    Limits(#[from] SettingOutOfRange),
}

impl StoppedReplica {
    /// Opens what a node has of a group. `dir` is the directory of its queue, `number` what the replica is called in records.
    ///
    /// # Errors
    /// There is nothing, it is damaged, or the node runs.
    pub fn open(dir: &Path, group: u16, number: u64) -> Result<Self, ReplayError> {
        let fault = |error| ReplayError { dir: dir.into(), problem: ReplayProblem::Disk(error) };
        Self::open_on(Overlay::open(&dir.join("log")).map_err(fault)?, dir, group, number)
    }

    /// As [`open`](Self::open), with a log that is elsewhere.
    ///
    /// # Errors
    /// It is damaged.
    pub fn open_on(disk: impl Disk, dir: &Path, group: u16, number: u64) -> Result<Self, ReplayError> {
        let fault = |problem| ReplayError { dir: dir.into(), problem };
        // Nothing is ever written.
        let (journal, _flusher, _) =
            Journal::open_apart(JournalConfig::default(), disk).map_err(|error| fault(error.into()))?;
        let remembered = journal.remembered(group);
        let mut replica = Self {
            number,
            group,
            dir: dir.into(),
            journal,
            remembered,
            terms: Terms { first: remembered.purged.map_or(0, |purged| purged.index + 1), terms: Vec::new() },
            snapshot: None,
        };
        let snapshot = replica.snapshot().map_err(fault)?;
        replica.snapshot = snapshot.map(|(last, _)| last);
        let mut terms = Vec::new();
        let walked = replica.walk(replica.terms.first, u64::MAX, |entry| {
            terms.push(entry.id.term);
            Ok(())
        });
        walked.map_err(fault)?;
        replica.terms.terms = terms;
        Ok(replica)
    }

    /// Applies the entries up to one, that one included, as far as they are known to be committed. States are told after the
    /// entries of `hash_at`, now and then, and at the end.
    ///
    /// # Errors
    /// An entry cannot be read or applied.
    pub fn replay(&self, upto: Option<u64>, hash_at: &BTreeSet<u64>) -> Result<Replay, ReplayError> {
        let fault = |problem| ReplayError { dir: self.dir.clone(), problem };
        let snapshot = self.snapshot().map_err(fault)?;
        let mut records = Vec::new();
        let (mut machine, first) = match snapshot {
            // The snapshot is what the entries before it should lead to, if they are there.
            Some((last, machine)) if self.terms.first == 0 => {
                records.extend((Some(last.index) <= upto).then(|| self.hash(&machine)));
                (self.empty().map_err(fault)?, 0)
            }
            Some((last, machine)) if last.index + 1 >= self.terms.first => (machine, last.index + 1),
            None if self.terms.first == 0 => (self.empty().map_err(fault)?, 0),
            _ => return Err(fault(ReplayProblem::NoSnapshot { first: self.terms.first })),
        };
        let mut replay = Replay { replica: self.number, first, end: first, records };
        self.go_on(&mut replay, &mut machine, upto, hash_at).map_err(fault)?;
        replay.records.push(self.hash(&machine));
        Ok(replay)
    }

    /// Applies what follows on a replay, up to an entry, to the machine that the replay has led to.
    pub(crate) fn go_on(
        &self,
        replay: &mut Replay,
        machine: &mut Jobs,
        upto: Option<u64>,
        hash_at: &BTreeSet<u64>,
    ) -> Result<(), ReplayProblem> {
        let first = replay.end;
        if self.terms.first > first {
            return Err(ReplayProblem::NoSnapshot { first: self.terms.first });
        }
        let snapshot_at = self.snapshot.map(|last| last.index);
        let end = upto.map_or(0, |upto| upto + 1).min(self.terms.end()).max(first);
        let mut since = 0;
        self.walk(first, end, |entry| {
            let index = entry.id.index;
            let apply = |machine: &mut Jobs| {
                let Some(command) = raft::command_of(entry)? else { return Ok(Vec::new()) };
                Ok(machine.apply(index, &command, true)?.effects.events)
            };
            let events = apply(machine).map_err(|error| ReplayProblem::Entry { index, error })?;
            let replica = replay.replica;
            replay.records.extend(events.into_iter().map(|event| Record::Event { replica, event }));
            since += 1;
            if since >= HASH_EVERY || hash_at.contains(&index) || snapshot_at == Some(index) {
                since = 0;
                replay.records.push(self.hash(machine));
            }
            replay.end = index + 1;
            Ok(())
        })?;
        replay.end = end;
        Ok(())
    }

    /// The last entry that the replica knew to be committed.
    #[must_use]
    pub fn noted(&self) -> Option<u64> {
        let noted = self.remembered.committed.map(|noted| noted.index);
        noted.max(self.snapshot.map(|last| last.index))
    }

    fn hash(&self, machine: &Jobs) -> Record {
        let queue = machine.queue();
        Record::Hash { replica: self.number, index: queue.index(), hash: queue.digest().into() }
    }

    fn empty(&self) -> Result<Jobs, ReplayProblem> {
        Ok(Jobs::new(self.group, JobLimits::default())?)
    }

    fn snapshot(&self) -> Result<Option<(EntryId, Jobs)>, ReplayProblem> {
        let dir = self.dir.join(format!("group-{}", self.group)).join("snapshots");
        raft::look_into(&dir, self.group).map_err(ReplayProblem::Disk)
    }

    /// Does something with the entries from one on and before another.
    fn walk(
        &self,
        from: u64,
        end: u64,
        mut each: impl FnMut(crate::journal::Entry) -> Result<(), ReplayProblem>,
    ) -> Result<(), ReplayProblem> {
        let mut next = from;
        while next < end {
            let entries = self.journal.read(self.group, next, end, READ_BYTES)?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                next = entry.id.index + 1;
                each(entry)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for StoppedReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoppedReplica")
            .field("number", &self.number)
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// How far each of these replicas can be replayed: its last entry that is known to be committed. All replicas of the group
/// should be among them.
///
/// An entry is committed if a replica has noted so. It is as good as committed if a majority has it and nobody else could win
/// an election without it, for then every leader to come has it.
#[must_use]
pub fn committed(replicas: &[StoppedReplica]) -> Vec<Option<u64>> {
    let logs: Vec<&Terms> = replicas.iter().map(|replica| &replica.terms).collect();
    let all = replicas.iter().filter_map(StoppedReplica::noted).max().max(safe(&logs));
    let Some(best) = logs.iter().max_by_key(|log| (log.last_term(), log.end())) else { return Vec::new() };
    // A replica that fell behind may have entries at its end that nobody else took. Those that it applied must be right.
    let own = |replica: &StoppedReplica| replica.terms.shared_with(best).max(replica.noted()).min(all);
    replicas.iter().map(own).collect()
}

/// The terms of the entries of a log, from the first that it has.
#[derive(Debug)]
struct Terms {
    first: u64,
    terms: Vec<u64>,
}

impl Terms {
    fn end(&self) -> u64 {
        self.first + self.terms.len() as u64
    }

    fn last_term(&self) -> u64 {
        self.terms.last().copied().unwrap_or(0)
    }

    /// Whether it has an entry of this term there. What was purged was committed.
    fn has(&self, index: u64, term: u64) -> bool {
        match index.checked_sub(self.first) {
            None => true,
            Some(place) => usize::try_from(place).is_ok_and(|place| self.terms.get(place) == Some(&term)),
        }
    }

    /// The last entry of this log that is in another one too.
    fn shared_with(&self, other: &Self) -> Option<u64> {
        let own = (self.first..).zip(&self.terms);
        let shared = own.take_while(|(index, term)| *index < other.end() && other.has(*index, **term));
        shared.last().map(|(index, _)| index).or_else(|| self.first.checked_sub(1))
    }
}

/// The last entry that every leader to come must have.
fn safe(logs: &[&Terms]) -> Option<u64> {
    let best = logs.iter().max_by_key(|log| (log.last_term(), log.end()))?;
    for (place, term) in best.terms.iter().enumerate().rev() {
        let index = best.first + place as u64;
        let (with, without): (Vec<&&Terms>, Vec<&&Terms>) =
            logs.iter().partition(|log| log.has(index, *term));
        if with.len() * 2 > logs.len() && without.iter().all(|log| log.last_term() <= *term) {
            return Some(index);
        }
    }
    best.first.checked_sub(1)
}

/// How much of a log is in memory at a time.
const READ_BYTES: usize = 4 << 20;
/// A state is told after so many entries at the latest.
const HASH_EVERY: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn log(terms: &[u64]) -> Terms {
        Terms { first: 0, terms: terms.to_vec() }
    }

    fn safe_of(logs: &[&[u64]]) -> Option<u64> {
        let logs: Vec<Terms> = logs.iter().map(|terms| log(terms)).collect();
        safe(&logs.iter().collect::<Vec<_>>())
    }

    #[test]
    fn what_a_majority_has_is_safe_unless_somebody_with_a_later_term_has_not() {
        assert_eq!(safe_of(&[&[1, 1, 1], &[1, 1], &[1]]), Some(1));
        assert_eq!(safe_of(&[&[1], &[], &[]]), None);
        // The leader of term 3 took what a majority has, and nobody took what it added.
        assert_eq!(safe_of(&[&[1, 1, 3], &[1, 1], &[1, 1, 2]]), Some(1));
        // A majority has the second entry of term 1, but a leader of term 2 went on without it and may win.
        assert_eq!(safe_of(&[&[1, 1], &[1, 1, 1], &[1, 2]]), Some(0));
        assert_eq!(safe_of(&[&[1, 1, 4], &[1, 1, 4], &[1, 2]]), Some(2));
    }

    #[test]
    fn a_replica_that_fell_behind_shares_the_beginning() {
        assert_eq!(log(&[1, 1, 2, 2]).shared_with(&log(&[1, 1, 3, 3, 3])), Some(1));
        assert_eq!(log(&[1, 1]).shared_with(&log(&[1])), Some(0));
        assert_eq!(log(&[2]).shared_with(&log(&[1])), None);
        let purged = Terms { first: 2, terms: vec![3] };
        assert_eq!(log(&[1, 1, 3]).shared_with(&purged), Some(2));
        assert_eq!(purged.shared_with(&log(&[1, 1])), Some(1));
    }
}
