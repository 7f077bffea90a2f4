//! The network between nodes: a delay for each copy of a message, or none at all.

use std::collections::BTreeSet;
use std::time::Duration;

/// How badly the network behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// The share of messages that vanish, 0 to 1.
    pub loss: f64,
    /// The share of messages that arrive twice, 0 to 1.
    pub duplicates: f64,
    /// The shortest delay.
    pub delay_min: Duration,
    /// The longest delay. Each copy draws its own, so messages overtake each other.
    pub delay_max: Duration,
}

impl Default for NetworkConfig {
    /// A local network on an ordinary day: 0.2 to 5 ms, one message in a hundred doubled, none lost.
    fn default() -> Self {
        Self {
            loss: 0.0,
            duplicates: 0.01,
            delay_min: Duration::from_micros(200),
            delay_max: Duration::from_millis(5),
        }
    }
}

/// The network at work.
#[derive(Debug)]
pub(crate) struct Network {
    config: NetworkConfig,
    /// The partition each node is in; nodes of different partitions do not hear each other.
    sides: Vec<usize>,
    /// Nodes that hear nobody, though everybody hears them.
    deaf: Vec<bool>,
    /// Nodes that nobody hears, though they hear everybody.
    mute: Vec<bool>,
    /// Pairs of which the first does not reach the second.
    cuts: BTreeSet<(usize, usize)>,
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
}

impl Network {
    pub(crate) fn new(config: NetworkConfig, nodes: usize) -> Self {
        Self {
            config,
            sides: vec![0; nodes],
            deaf: vec![false; nodes],
            mute: vec![false; nodes],
            cuts: BTreeSet::new(),
            sent: 0,
            lost: 0,
            doubled: 0,
        }
    }

    /// The delays after which copies of a message from `from` arrive at `to`: none, one or two.
    pub(crate) fn route(&mut self, from: usize, to: usize, rng: &mut fastrand::Rng) -> Vec<Duration> {
        self.sent += 1;
        if self.is_cut(from, to) || rng.f64() < self.config.loss {
            self.lost += 1;
            return Vec::new();
        }
        let copies = if rng.f64() < self.config.duplicates { 2 } else { 1 };
        self.doubled += copies - 1;
        let (min, max) = (self.config.delay_min, self.config.delay_max);
        (0..copies).map(|_| min + (max - min).mul_f64(rng.f64())).collect()
    }

    /// Whether nothing that `from` sends reaches `to`.
    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.sides[from] != self.sides[to]
            || self.deaf[to]
            || self.mute[from]
            || self.cuts.contains(&(from, to))
    }

    /// Cuts the network: each group hears only itself, everybody else stays together.
    pub(crate) fn partition(&mut self, groups: &[Vec<usize>]) {
        self.sides.fill(0);
        for (side, group) in groups.iter().enumerate() {
            for &node in group {
                self.sides[node] = side + 1;
            }
        }
    }

    pub(crate) fn deafen(&mut self, node: usize) {
        self.deaf[node] = true;
    }

    pub(crate) fn silence(&mut self, node: usize) {
        self.mute[node] = true;
    }

    /// Cuts one direction of one link.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        self.cuts.insert((from, to));
    }

    pub(crate) fn set_loss(&mut self, loss: f64) {
        self.config.loss = loss;
    }

    /// No more cuts and no more loss. True when there were any.
    pub(crate) fn heal(&mut self) -> bool {
        let one_way = self.deaf.contains(&true) || self.mute.contains(&true) || !self.cuts.is_empty();
        let faulty = self.config.loss > 0.0 || one_way || self.sides.iter().any(|side| *side != 0);
        self.sides.fill(0);
        self.deaf.fill(false);
        self.mute.fill(false);
        self.cuts.clear();
        self.config.loss = 0.0;
        faulty
    }
}
