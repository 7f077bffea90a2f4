//! From "silent for too long" to "dead": a policy, because only the operator knows what a wrong verdict costs.
//!
//! [`TimeoutDowning`] gives up on every suspect whose time is over. It is quick and works with any number of nodes, but
//! in a split each side declares the other dead. [`KeepMajority`] gives up on suspects only while the reachable members
//! outnumber them, so that one side of a split at most goes on; the other reports that it lost its quorum and waits.

use core::cmp::Ordering;
use core::fmt;
use core::time::Duration;

use crate::id::NodeId;

/// What a strategy may look at. Counts include the local node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DowningView<'a> {
    /// Members that answer (joining or up).
    pub reachable: usize,
    /// Members that are suspected.
    pub suspected: usize,
    /// The smallest name among those that answer.
    pub lowest_reachable: Option<&'a NodeId>,
    /// The smallest name among the suspected.
    pub lowest_suspected: Option<&'a NodeId>,
    /// How long no member has become suspect or ceased to be.
    pub settled_for: Duration,
}

/// What to do with a suspect whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DowningVerdict {
    /// Declare it dead.
    Down,
    /// Ask again later: the view still changes.
    Wait,
    /// Leave it suspect: this side is too small to decide.
    QuorumLost,
}

/// Decides about suspects whose suspicion timed out.
pub trait Downing: fmt::Debug + Send + Sync {
    /// The verdict, given the whole view.
    fn decide(&self, view: &DowningView<'_>) -> DowningVerdict;
}

/// Every suspect is dead when its time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeoutDowning;

impl Downing for TimeoutDowning {
    fn decide(&self, _view: &DowningView<'_>) -> DowningVerdict {
        DowningVerdict::Down
    }
}

/// Suspects are dead only in the eyes of the larger side. Of two equal sides the one with the smallest name decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepMajority {
    /// How long the view must have been still before it is counted, so that a split is seen whole. Longer is surer and
    /// reacts later. Default 2 s.
    pub stable_after: Duration,
}

impl Default for KeepMajority {
    fn default() -> Self {
        Self { stable_after: Duration::from_secs(2) }
    }
}

impl Downing for KeepMajority {
    fn decide(&self, view: &DowningView<'_>) -> DowningVerdict {
        if view.settled_for < self.stable_after {
            return DowningVerdict::Wait;
        }
        let decides = match view.reachable.cmp(&view.suspected) {
            Ordering::Greater => true,
            Ordering::Equal => view.lowest_reachable < view.lowest_suspected,
            Ordering::Less => false,
        };
        if decides { DowningVerdict::Down } else { DowningVerdict::QuorumLost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_decides_and_a_tie_has_one_winner() {
        let (a, b) = (NodeId::new("a").expect("a name"), NodeId::new("b").expect("a name"));
        let view = |reachable, suspected, lowest_reachable, lowest_suspected| DowningView {
            reachable,
            suspected,
            lowest_reachable: Some(lowest_reachable),
            lowest_suspected: Some(lowest_suspected),
            settled_for: Duration::from_secs(2),
        };
        let majority = KeepMajority::default();
        assert_eq!(majority.decide(&view(3, 2, &b, &a)), DowningVerdict::Down);
        assert_eq!(majority.decide(&view(2, 3, &a, &b)), DowningVerdict::QuorumLost);
        // Both sides of an even split look at the same two names and only one of them is smaller.
        assert_eq!(majority.decide(&view(2, 2, &a, &b)), DowningVerdict::Down);
        assert_eq!(majority.decide(&view(2, 2, &b, &a)), DowningVerdict::QuorumLost);
        let restless = DowningView { settled_for: Duration::from_secs(1), ..view(9, 1, &a, &b) };
        assert_eq!(majority.decide(&restless), DowningVerdict::Wait);
        assert_eq!(TimeoutDowning.decide(&view(1, 9, &b, &a)), DowningVerdict::Down);
    }
}
