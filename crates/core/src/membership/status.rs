//! The six states of a member and the edges between them.
//!
//! ```text
//!   Joining ──► Up ──► Leaving ──► Removed
//!      │  │     │ ▲       ▲            ▲
//!      │  └─────┼─┼───────┘            │
//!      └────► Suspect ──► Dead ────────┘
//! ```

use core::fmt;

/// Where a member stands in its life. The order of the variants is the precedence of a merge at equal incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeStatus {
    /// Admitted, but not yet heard from.
    Joining,
    /// Alive.
    Up,
    /// Silent for longer than its own rhythm explains; not yet given up.
    Suspect,
    /// Announced that it goes; takes no new work.
    Leaving,
    /// Given up. Final for this incarnation.
    Dead,
    /// Gone for good; kept for a while so that stale news cannot bring it back. Final for this incarnation.
    Removed,
}

impl NodeStatus {
    /// All states in precedence order.
    pub const ALL: [Self; 6] =
        [Self::Joining, Self::Up, Self::Suspect, Self::Leaving, Self::Dead, Self::Removed];

    /// Whether an observer may move a member from this state to `next` on its own evidence.
    #[must_use]
    pub const fn can_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Joining, Self::Up | Self::Suspect | Self::Leaving)
                | (Self::Up, Self::Suspect | Self::Leaving)
                | (Self::Suspect, Self::Up | Self::Dead)
                | (Self::Leaving | Self::Dead, Self::Removed)
        )
    }

    /// Whether a member in this state belongs to the active set (quarantine may still keep it out).
    #[must_use]
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Joining | Self::Up | Self::Suspect)
    }

    /// Whether no later news about the same incarnation can make the member live again.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Dead | Self::Removed)
    }

    /// Whether the member is believed to run and answer: the peers whose agreement counts.
    #[must_use]
    pub const fn is_reachable(self) -> bool {
        matches!(self, Self::Joining | Self::Up)
    }
}

impl fmt::Display for NodeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Joining => "joining",
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Leaving => "leaving",
            Self::Dead => "dead",
            Self::Removed => "removed",
        })
    }
}
