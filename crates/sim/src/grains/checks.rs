//! What must hold, and the notes that are needed to see whether it does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use synod_core::grains::{ActorPid, ClusterIdentity};

/// A run of one activation.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) grain: ClusterIdentity,
    pub(super) pid: ActorPid,
    pub(super) from: Duration,
    pub(super) to: Option<Duration>,
    /// Whether its node died under it.
    pub(super) is_killed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) lives: BTreeMap<u64, Life>,
    /// Executed calls by grain.
    pub(super) executed: BTreeMap<ClusterIdentity, u64>,
    /// Activations that an owner named as a duplicate.
    pub(super) told: BTreeSet<ActorPid>,
}

impl Notes {
    /// Those that run at this moment, beside `number`.
    pub(super) fn running<'a>(
        &'a self,
        grain: &'a ClusterIdentity,
        number: u64,
    ) -> impl Iterator<Item = &'a Life> {
        let others = self.lives.iter().filter(move |(other, _)| **other != number);
        others.map(|(_, life)| life).filter(move |life| life.to.is_none() && life.grain == *grain)
    }

    /// Pairs of one grain that ran at the same time.
    pub(super) fn overlaps(&self) -> Vec<(&Life, &Life)> {
        let mut found = Vec::new();
        for (number, first) in &self.lives {
            for (_, second) in self.lives.range(number + 1..) {
                let is_over = first.to.is_some_and(|to| to <= second.from);
                if first.grain == second.grain && !is_over {
                    found.push((first, second));
                }
            }
        }
        found
    }

    /// A pair of which one still runs at the end, the other was stopped in good order long before, and nobody said a word of
    /// it, or of one that went on where it left off. Who is killed takes what it knew with it.
    pub(super) fn untold(&self) -> Option<(&Life, &Life)> {
        self.overlaps().into_iter().find_map(|(first, second)| {
            let (stopped, kept) = if first.to.is_some() { (first, second) } else { (second, first) };
            let is_silent = stopped.to.is_some()
                && !stopped.is_killed
                && kept.to.is_none()
                && !self.told.contains(&stopped.pid);
            let is_heir =
                |heir: &Life| heir.grain == stopped.grain && stopped.to.is_some_and(|to| to <= heir.from);
            let mut heirs = self.lives.values().filter(|life| is_heir(life));
            (is_silent && !heirs.any(|heir| heir.is_killed || self.told.contains(&heir.pid)))
                .then_some((stopped, kept))
        })
    }
}
