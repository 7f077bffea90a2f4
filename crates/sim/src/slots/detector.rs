//! What nodes are told about each other: whom they have heard lately, and sometimes a lie.

use std::collections::BTreeMap;
use std::time::Duration;

use synod_core::slots::Standing;

use super::world::{Happening, World};

/// What one node was told about the others.
#[derive(Default)]
pub(super) struct Detector {
    /// When it last heard each other node, and which life of it.
    heard: BTreeMap<usize, Duration>,
    told: BTreeMap<usize, Standing>,
    /// What it is told against all evidence, and until when.
    lies: BTreeMap<usize, (Standing, Duration)>,
    /// Silence that makes a suspect, and a failure.
    patience: (Duration, Duration),
}

impl Detector {
    pub(super) fn new(suspect_after: Duration, fail_after: Duration) -> Self {
        Self { patience: (suspect_after, fail_after), ..Self::default() }
    }

    /// A new life knows nothing.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.patience.0, self.patience.1);
    }

    pub(super) fn lie(&mut self, about: usize, standing: Standing, until: Duration) {
        self.lies.insert(about, (standing, until));
    }

    pub(super) fn tell_the_truth(&mut self) {
        self.lies.clear();
    }

    /// What it is to be told of `about` now.
    fn judge(&mut self, about: usize, is_heard: bool, is_leaving: bool, now: Duration) -> Standing {
        if is_heard {
            self.heard.insert(about, now);
        }
        if let Some((standing, until)) = self.lies.get(&about) {
            if *until > now {
                return *standing;
            }
            self.lies.remove(&about);
        }
        let Some(heard) = self.heard.get(&about) else { return Standing::Unknown };
        let silence = now - *heard;
        let was_leaving = self.told.get(&about) == Some(&Standing::Leaving);
        if is_leaving && is_heard || was_leaving && !is_heard {
            Standing::Leaving
        } else if silence > self.patience.1 {
            Standing::Failed
        } else if silence > self.patience.0 {
            Standing::Suspect
        } else {
            Standing::Alive
        }
    }
}

impl World {
    /// A node looks at all others.
    pub(super) fn detect(&mut self, observer: usize) {
        self.schedule(DETECTOR_INTERVAL, Happening::Detect { observer });
        for about in 0..self.nodes.len() {
            let Some(process) = &self.nodes[observer].process else { return };
            if about == observer || process.frozen.is_some() {
                continue;
            }
            let is_cut = self.network.is_cut(observer, about) || self.network.is_cut(about, observer);
            let peer = self.nodes[about].process.as_ref();
            let is_leaving = peer.is_some_and(|peer| peer.is_leaving);
            let is_heard = !is_cut && peer.is_some_and(|peer| peer.frozen.is_none());
            let detector = &mut self.detectors[observer];
            let standing = detector.judge(about, is_heard, is_leaving, self.now);
            if detector.told.insert(about, standing) != Some(standing) {
                self.tell_standing(observer, about, standing);
            }
        }
    }

    fn tell_standing(&mut self, observer: usize, about: usize, standing: Standing) {
        let now = self.time();
        let name = self.nodes[about].name.clone();
        self.say(Some(observer), "standing", format!("{name} is {standing}"));
        self.note_suspicion(about, standing);
        let Some(process) = &mut self.nodes[observer].process else { return };
        let outcome = process.registry.handle_standing(&name, standing, now);
        self.perform(observer, outcome);
    }
}

/// How often a node looks at the others.
pub(super) const DETECTOR_INTERVAL: Duration = Duration::from_millis(200);
