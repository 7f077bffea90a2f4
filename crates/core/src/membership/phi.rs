//! How surprised should we be by this silence?
//!
//! The phi accrual detector learns the rhythm of each peer's heartbeats and expresses silence as a number: phi 1 is a
//! silence that happens once in ten, phi 8 once in a hundred million. Instead of evaluating that number for everyone
//! all the time, the curve is inverted once per heartbeat: the moment at which phi will reach the threshold is
//! `last heartbeat + mean + pause + y · deviation`, with one `y` per threshold. A poll looks only at moments that have
//! come.
//!
//! A peer's history starts with two made-up samples around the expected interval, so that one that beats once and
//! dies is noticed; one that never beats is credited a first heartbeat after a while, for the same reason.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use crate::id::NodeId;
use crate::time::TimerInstant;

/// Settings of the failure detector.
#[derive(Clone, Debug, PartialEq)]
pub struct PhiConfig {
    /// The phi at which a peer is suspected. Higher is slower and surer, but only slightly: from 8 to 12 adds about one
    /// deviation. Finite and above 0. Default 8.
    pub threshold: f64,
    /// How many intervals are remembered per peer, four bytes each. More is steadier, fewer adapts faster. 2 to
    /// [`SAMPLES_MAX`]. Default 200.
    pub max_samples: usize,
    /// The least deviation assumed, so that a very regular peer is not suspected for the first hiccup. Above 0, at most
    /// [`INTERVAL_MAX`]. Default 100 ms.
    pub min_std_deviation: Duration,
    /// Silence that is always tolerated on top of the rhythm (collection pauses, lost packets). This, not the
    /// threshold, sets the detection time. 0 to [`INTERVAL_MAX`]. Default 3 s.
    pub acceptable_pause: Duration,
    /// The interval expected of a peer never heard before. Above 0, at most [`INTERVAL_MAX`]. Default 1 s.
    pub first_heartbeat_estimate: Duration,
    /// How long a new peer may take to its first heartbeat before it is watched all the same. Above 0, at most
    /// [`INTERVAL_MAX`]. Default 1 s.
    pub expected_response_after: Duration,
}

impl Default for PhiConfig {
    fn default() -> Self {
        Self {
            threshold: 8.0,
            max_samples: 200,
            min_std_deviation: Duration::from_millis(100),
            acceptable_pause: Duration::from_secs(3),
            first_heartbeat_estimate: Duration::from_secs(1),
            expected_response_after: Duration::from_secs(1),
        }
    }
}

impl PhiConfig {
    /// For virtual machines on shared hosts: a higher threshold and a longer pause.
    #[must_use]
    pub fn cloud() -> Self {
        Self { threshold: 12.0, acceptable_pause: Duration::from_secs(5), ..Self::default() }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its range, by name.
    pub fn validate(&self) -> Result<(), PhiConfigError> {
        if !(self.threshold.is_finite() && self.threshold > 0.0) {
            return Err(PhiConfigError::Threshold { value: self.threshold });
        }
        if !(2..=SAMPLES_MAX).contains(&self.max_samples) {
            return Err(PhiConfigError::MaxSamples { value: self.max_samples });
        }
        let durations = [
            ("min_std_deviation", self.min_std_deviation, false),
            ("acceptable_pause", self.acceptable_pause, true),
            ("first_heartbeat_estimate", self.first_heartbeat_estimate, false),
            ("expected_response_after", self.expected_response_after, false),
        ];
        for (field, value, zero_allowed) in durations {
            if value > INTERVAL_MAX || (value < RESOLUTION && !(zero_allowed && value.is_zero())) {
                return Err(PhiConfigError::Duration { field, value });
            }
        }
        Ok(())
    }
}

/// A setting of the failure detector is out of range. Nothing was started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PhiConfigError {
    /// The threshold is not a positive finite number.
    #[error("phi.threshold must be finite and above 0, it is {value}")]
    Threshold {
        /// The refused value.
        value: f64,
    },
    /// The window is too small or too large.
    #[error("phi.max_samples must be 2 to {SAMPLES_MAX}, it is {value}")]
    MaxSamples {
        /// The refused value.
        value: usize,
    },
    /// A duration is out of range.
    #[error("phi.{field} must be {RESOLUTION:?} to {INTERVAL_MAX:?}, it is {value:?}")]
    Duration {
        /// The field.
        field: &'static str,
        /// The refused value.
        value: Duration,
    },
}

/// What the detector has to say, once per change of mind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PhiEffect {
    /// The peer's silence reached the threshold.
    Suspect(NodeId),
    /// A suspected peer was heard again.
    Reachable(NodeId),
}

/// One phi accrual detector for all peers of a node.
///
/// Inputs: [`watch`](Self::watch), [`heartbeat`](Self::heartbeat), [`remove`](Self::remove) and
/// [`poll`](Self::poll), with time that never runs backwards. Output: [`PhiEffect`]s, edge-triggered.
#[derive(Clone, Debug)]
pub struct PhiFailureDetector {
    peers: BTreeMap<NodeId, Peer>,
    /// One moment per peer that is not suspect, the same as in its entry: what a poll looks at.
    deadlines: BTreeSet<(TimerInstant, NodeId)>,
    config: PhiConfig,
    /// How many deviations beyond the mean phi reaches the threshold.
    threshold_deviations: f64,
}

#[derive(Clone, Debug)]
struct Peer {
    /// The last sign of life; for a peer never heard, the moment from which it is watched.
    last: TimerInstant,
    heard: bool,
    suspect: bool,
    /// When it is looked at next.
    deadline: TimerInstant,
    history: History,
}

impl PhiFailureDetector {
    /// A detector without peers.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(config: PhiConfig) -> Result<Self, PhiConfigError> {
        config.validate()?;
        Ok(Self::from_validated(config))
    }

    /// A detector for settings that were checked before.
    pub(super) fn from_validated(config: PhiConfig) -> Self {
        let threshold_deviations = deviations_at(config.threshold);
        Self { peers: BTreeMap::new(), deadlines: BTreeSet::new(), config, threshold_deviations }
    }

    /// Starts to watch a peer that should be heard from soon. Does nothing when it is already watched.
    pub fn watch(&mut self, node: &NodeId, now: TimerInstant) {
        if self.peers.contains_key(node) {
            return;
        }
        let last = now + self.config.expected_response_after;
        let history = History::seeded(self.config.first_heartbeat_estimate);
        let deadline = last + silence(&self.config, self.threshold_deviations, &history);
        self.deadlines.insert((deadline, node.clone()));
        self.peers.insert(node.clone(), Peer { last, heard: false, suspect: false, deadline, history });
    }

    /// Notes a sign of life. Returns the effect when the peer was suspect.
    pub fn heartbeat(&mut self, node: &NodeId, now: TimerInstant) -> Option<PhiEffect> {
        let Some(peer) = self.peers.get_mut(node) else {
            self.watch(node, now);
            return self.heartbeat(node, now);
        };
        // An interval that ends an outage, begins before the first beat or runs backwards says nothing about the rhythm.
        if peer.heard && !peer.suspect && now >= peer.last {
            peer.history.push(now.saturating_since(peer.last), self.config.max_samples);
        }
        peer.last = if peer.heard { peer.last.max(now) } else { now };
        peer.heard = true;
        let was_suspect = core::mem::take(&mut peer.suspect);
        let silence = silence(&self.config, self.threshold_deviations, &peer.history);
        let mut key = (core::mem::replace(&mut peer.deadline, peer.last + silence), node.clone());
        self.deadlines.remove(&key);
        key.0 = peer.deadline;
        self.deadlines.insert(key);
        was_suspect.then(|| PhiEffect::Reachable(node.clone()))
    }

    /// Suspects one peer whose moment has come; call until it returns `None`. `extra_pause` is the patience that the
    /// caller's own health demands on top.
    pub fn poll(&mut self, now: TimerInstant, extra_pause: Duration) -> Option<PhiEffect> {
        while self.next_check()? <= now {
            let (_, node) = self.deadlines.pop_first()?;
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            let silence = silence(&self.config, self.threshold_deviations, &peer.history);
            let patient_until = peer.last + silence + extra_pause;
            if patient_until <= now {
                peer.suspect = true;
                return Some(PhiEffect::Suspect(node));
            }
            peer.deadline = patient_until;
            self.deadlines.insert((patient_until, node));
        }
        None
    }

    /// Forgets a peer that left or died.
    pub fn remove(&mut self, node: &NodeId) {
        if let Some(peer) = self.peers.remove(node) {
            self.deadlines.remove(&(peer.deadline, node.clone()));
        }
    }

    /// The present phi of a peer, at most [`PHI_MAX`]; 0 for one that is not watched.
    #[must_use]
    pub fn phi(&self, node: &NodeId, now: TimerInstant) -> f64 {
        let Some(peer) = self.peers.get(node) else { return 0.0 };
        let elapsed = micros(now.saturating_since(peer.last));
        let (mean, deviation) = rhythm(&self.config, &peer.history);
        phi_at((elapsed - mean) / deviation).min(PHI_MAX)
    }

    /// When [`poll`](Self::poll) has something to do.
    #[must_use]
    pub fn next_check(&self) -> Option<TimerInstant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// How many peers are watched.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.peers.len()
    }

    /// Whether `node` is suspected at present.
    #[must_use]
    pub fn is_suspect(&self, node: &NodeId) -> bool {
        self.peers.get(node).is_some_and(|peer| peer.suspect)
    }
}

/// The silence after which phi reaches the threshold.
fn silence(config: &PhiConfig, threshold_deviations: f64, history: &History) -> Duration {
    let (mean, deviation) = rhythm(config, history);
    let micros = (mean + threshold_deviations * deviation).max(0.0);
    Duration::from_micros(libm::ceil(micros) as u64)
}

/// Mean and deviation in microseconds, with the configured pause and least deviation applied.
fn rhythm(config: &PhiConfig, history: &History) -> (f64, f64) {
    let (mean, deviation) = history.mean_and_deviation();
    (mean + micros(config.acceptable_pause), deviation.max(micros(config.min_std_deviation)))
}

/// The remembered intervals in microseconds. Sums are integers, so they never drift.
#[derive(Clone, Debug)]
struct History {
    samples: Vec<u32>,
    oldest: usize,
    sum: u64,
    sum_of_squares: u128,
}

impl History {
    fn seeded(estimate: Duration) -> Self {
        let mut history = Self { samples: Vec::new(), oldest: 0, sum: 0, sum_of_squares: 0 };
        let quarter = estimate / 4;
        history.push(estimate - quarter, SAMPLES_MAX);
        history.push(estimate + quarter, SAMPLES_MAX);
        history
    }

    fn push(&mut self, interval: Duration, samples_max: usize) {
        let sample = u32::try_from(interval.min(INTERVAL_MAX).as_micros()).unwrap_or(u32::MAX);
        if self.samples.len() < samples_max {
            if self.samples.len() == self.samples.capacity() {
                // Doubling, but never beyond what will be used.
                let room = self.samples.len().max(2).min(samples_max - self.samples.len());
                self.samples.reserve_exact(room);
            }
            self.samples.push(sample);
        } else if let Some(slot) = self.samples.get_mut(self.oldest) {
            let dropped = u64::from(core::mem::replace(slot, sample));
            self.sum -= dropped;
            self.sum_of_squares -= u128::from(dropped) * u128::from(dropped);
            self.oldest = (self.oldest + 1) % samples_max;
        }
        self.sum += u64::from(sample);
        self.sum_of_squares += u128::from(sample) * u128::from(sample);
    }

    fn mean_and_deviation(&self) -> (f64, f64) {
        let count = self.samples.len() as f64;
        let mean = self.sum as f64 / count;
        // The variance scaled by count² is exact in integers; as a difference of floats it could turn negative.
        let sum = u128::from(self.sum);
        let scaled = self.sum_of_squares * self.samples.len() as u128 - sum * sum;
        (mean, libm::sqrt(scaled as f64) / count)
    }
}

/// Phi for a silence `y` deviations longer than the mean: a logistic approximation of the normal tail.
fn phi_at(y: f64) -> f64 {
    let e = libm::exp(-y * (1.5976 + 0.070_566 * y * y));
    if y > 0.0 { -libm::log10(e / (1.0 + e)) } else { -libm::log10(1.0 - 1.0 / (1.0 + e)) }
}

/// The inverse of [`phi_at`], by bisection: the curve is continuous and strictly rising where it is finite.
fn deviations_at(threshold: f64) -> f64 {
    let (mut low, mut high) = (-DEVIATIONS_MAX, DEVIATIONS_MAX);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if phi_at(middle) < threshold {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1_000.0
}

/// The largest phi reported; beyond it the number has no meaning left.
pub const PHI_MAX: f64 = 1_000.0;
/// Most samples remembered per peer.
pub const SAMPLES_MAX: usize = 10_000;
/// Longest interval and longest setting of the detector.
pub const INTERVAL_MAX: Duration = Duration::from_secs(3_600);
/// Shortest interval the detector can tell from nothing.
const RESOLUTION: Duration = Duration::from_micros(1);
/// Where the search for the threshold ends; phi is infinite far before.
const DEVIATIONS_MAX: f64 = 50.0;

#[cfg(test)]
mod tests;
