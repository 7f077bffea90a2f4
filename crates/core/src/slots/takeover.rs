//! Who may start under a name that the cluster knows already.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use super::registry::Standing;
use crate::id::{Incarnation, NodeId};

/// What the cluster knows of the present holder of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What the member that was asked thinks of it.
    pub standing: Standing,
    /// Its life.
    pub incarnation: Incarnation,
    /// How long ago it was heard.
    pub last_heard_age: Duration,
}

/// A start that replaces a suspect, for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// The name that was taken over.
    pub node: NodeId,
    /// What it was thought to be.
    pub old_standing: Standing,
    /// Its life.
    pub old_incarnation: Incarnation,
    /// How long it had been silent.
    pub last_heard_age: Duration,
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, old_standing, old_incarnation, last_heard_age } = self;
        write!(
            f,
            "{node}#{old_incarnation} was taken over: it was {old_standing}, last heard {last_heard_age:?} ago"
        )
    }
}

/// Decides whether the life `incarnation` of `node` may start, given who holds the name. `Some` when it takes over a
/// suspect, which is to be recorded.
///
/// # Errors
/// The name is taken. Nothing was changed.
pub fn judge_start(
    node: &NodeId,
    incarnation: Incarnation,
    holder: Option<&Holder>,
    force_takeover: bool,
    fail_timeout: Duration,
) -> Result<Option<Takeover>, TakeoverRefusal> {
    let Some(holder) = holder else { return Ok(None) };
    let Holder { standing, incarnation: old_incarnation, last_heard_age } = holder.clone();
    let node = || node.clone();
    match standing {
        Standing::Alive | Standing::Unknown => Err(TakeoverRefusal::Alive { node: node() }),
        Standing::Suspect if !force_takeover => {
            Err(TakeoverRefusal::Suspect { node: node(), last_heard_age })
        }
        Standing::Suspect if last_heard_age < fail_timeout => {
            Err(TakeoverRefusal::TooEarly { node: node(), last_heard_age, fail_timeout })
        }
        Standing::Suspect => {
            Ok(Some(Takeover { node: node(), old_standing: standing, old_incarnation, last_heard_age }))
        }
        Standing::Failed | Standing::Leaving if incarnation > old_incarnation => Ok(None),
        Standing::Failed | Standing::Leaving => {
            Err(TakeoverRefusal::OldLife { node: node(), old_incarnation })
        }
    }
}

/// A node may not start under its name. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TakeoverRefusal {
    /// Another process has the name.
    #[error("node {node} is alive in this cluster; a name belongs to one process")]
    Alive {
        /// The name.
        node: NodeId,
    },
    /// Another process has the name, and may be dead.
    #[error(
        "node {node} is suspected but may be alive (last heard {last_heard_age:?} ago); wait until it has failed, or use --force-takeover"
    )]
    Suspect {
        /// The name.
        node: NodeId,
        /// How long it has been silent.
        last_heard_age: Duration,
    },
    /// A takeover came too early.
    #[error(
        "node {node} was heard {last_heard_age:?} ago; a takeover needs a silence of {fail_timeout:?}, the fail_timeout"
    )]
    TooEarly {
        /// The name.
        node: NodeId,
        /// How long it has been silent.
        last_heard_age: Duration,
        /// How long it must be.
        fail_timeout: Duration,
    },
    /// The life that wants to start is not a later one.
    #[error("node {node} was there before, in life {old_incarnation}; a new start needs a later one")]
    OldLife {
        /// The name.
        node: NodeId,
        /// The life before.
        old_incarnation: Incarnation,
    },
    /// The name is not part of the cluster.
    #[error("node {node} is not part of this cluster; its nodes are {known}")]
    NotPredefined {
        /// The name.
        node: NodeId,
        /// Those that are.
        known: String,
    },
}

#[cfg(test)]
mod tests;
