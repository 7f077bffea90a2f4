//! The road that gossip takes: one question, one answer.
//!
//! The gossiper gives each request a task of its own and a deadline, so a carrier may take its time: a peer that does
//! not answer costs nobody else anything.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use synod_core::Authority;
use synod_core::gossip::GossipState;
use synod_core::roster::RosterMember;

/// Carries gossip to peers. Clones, if there are any, share the road.
pub trait GossipCarrier: Send + Sync + 'static {
    /// Sends `state` to `target` and waits for its answer: what the target has to tell in turn, or `None` if it only
    /// acknowledged. After `timeout` the future is dropped, so a carrier needs no timer of its own.
    ///
    /// An `Ok` means that the target took everything; whatever else becomes of the request, it is told again.
    fn exchange(
        &self,
        target: RosterMember,
        state: GossipState,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<GossipState>, GossipCarrierError>> + Send;
}

/// A request was not answered. What it carried will be told again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GossipCarrierError {
    /// Nobody takes requests at the address.
    #[error("{target} cannot be reached; the gossip will be told again")]
    Unreachable {
        /// The address.
        target: Authority,
    },
    /// The peer got the request and did not want it.
    #[error("{target} refused the gossip: {reason}; it will be told again")]
    Refused {
        /// The address.
        target: Authority,
        /// What it said.
        reason: String,
    },
    /// The answer did not come in time.
    #[error("{target} did not answer within {timeout:?}; the gossip will be told again")]
    TimedOut {
        /// The address.
        target: Authority,
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The request or the answer is not what the wire can carry.
    #[error("the gossip with {target} cannot be carried: {reason}; it will be told again")]
    Unreadable {
        /// The address.
        target: Authority,
        /// What is wrong.
        reason: String,
    },
}

/// A carrier whose type nobody needs to know.
pub(super) trait AnyCarrier: Send + Sync {
    fn exchange_boxed(&self, target: RosterMember, state: GossipState, timeout: Duration) -> Exchange<'_>;
}

pub(super) type Exchange<'a> =
    Pin<Box<dyn Future<Output = Result<Option<GossipState>, GossipCarrierError>> + Send + 'a>>;

impl<C: GossipCarrier> AnyCarrier for C {
    fn exchange_boxed(&self, target: RosterMember, state: GossipState, timeout: Duration) -> Exchange<'_> {
        Box::pin(self.exchange(target, state, timeout))
    }
}
