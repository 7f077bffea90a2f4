//! Is it them, or is it me?
//!
//! A node that is starved of CPU or cut off sees silence everywhere and would accuse the healthy. Lifeguard's answer is
//! a small score of one's own health: it rises when our own messages go unanswered, when we wake up late, and when
//! others suspect us; it falls when peers answer. The worse the score, the longer we wait before we accuse anybody.

use core::time::Duration;

/// The local health score, from 0 (well) to [`LocalHealth::SCORE_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalHealth {
    score: u32,
}

impl LocalHealth {
    /// The worst score: patience is stretched eightfold.
    pub const SCORE_MAX: u32 = 7;

    /// A peer answered in time.
    pub fn improve(&mut self) {
        self.score = self.score.saturating_sub(1);
    }

    /// A sign that the trouble is ours: an answer missing, a wake-up missed, a suspicion of ourselves.
    pub fn worsen(&mut self) {
        self.score = (self.score + 1).min(Self::SCORE_MAX);
    }

    /// The present score.
    #[must_use]
    pub const fn score(self) -> u32 {
        self.score
    }

    /// `patience`, stretched by the score.
    #[must_use]
    pub fn stretch(self, patience: Duration) -> Duration {
        patience.saturating_mul(self.score + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_stays_in_bounds_and_stretches_patience() {
        let mut health = LocalHealth::default();
        assert_eq!(health.stretch(Duration::from_secs(5)), Duration::from_secs(5));
        for _ in 0..20 {
            health.worsen();
        }
        assert_eq!(health.score(), LocalHealth::SCORE_MAX);
        assert_eq!(health.stretch(Duration::from_secs(5)), Duration::from_secs(40));
        for _ in 0..20 {
            health.improve();
        }
        assert_eq!(health.score(), 0);
    }
}
