//! Grains: actors that one calls by name, without knowing where they live or whether they run.
//!
//! ```text
//!   caller                                                          host
//!   GrainRpcRouter ──► PidCache ──► PlacementHash::owner ──────────► VirtualActorRegistry
//!        │  in order, in time          who hosts it, as              spawns it once, stops it when idle,
//!        │                             everyone computes it          hands it over when the roster changes
//!        └──────────► Resolver: may anything be sent there? ───────► the activation
//! ```
//!
//! [`ClusterIdentity`] is the name, [`ActorPid`] one activation. The parts know nothing of each other; a driver asks them
//! in turn.

mod activation;
mod identity;
mod pid;
mod pid_cache;
mod rendezvous;
mod resolver;
mod router;

pub use activation::{
    ActivationCommand, ActivationConfig, ActivationConfigError, ActivationEvent, ActivationId,
    ActivationOutcome, ActivationRefusal, ActivationReply, BEFORE_MAX, ClaimId, ClaimRecord, GrainHost,
    GrainKindConfig, GrainSnapshot, HandoverCounts, RelocationReceipt, RelocationRecord, STOPPED_MAX,
    SnapshotDrop, StopReason, VirtualActorRegistry,
};
pub use identity::{ClusterIdentity, GrainKey, IDENTITY_BYTES_MAX, IdentityError, KIND_BYTES_MAX};
pub use pid::{ACTOR_ID_BYTES_MAX, ActorPid, PidError};
pub use pid_cache::{
    DROPS_TOLD_MAX, DroppedPid, PidCache, PidCacheConfig, PidCacheConfigError, PidCacheCounts,
    PidCacheOutcome, PidDropReason,
};
pub use rendezvous::PlacementHash;
pub use resolver::{ClusterView, ResolveResult, Resolver, RouteHint, StaleView, ViewVersion};
pub use router::{
    Answer, AttemptFailure, CallCounts, CallEnd, CallRejection, CallRequest, CorrelationId, EndedCall,
    GrainRpcRouter, LatencyHistogram, RetryPolicy, RouterCommand, RouterConfig, RouterConfigError,
    RouterEvent, RouterOutcome, SCHEMA_BASE, SCHEMAS_MAX, shared_schema,
};

/// Something happened to a grain or to a call of one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrainEvent {
    /// An activation of this node changed.
    Activation(ActivationEvent),
    /// A call of this node ended without an answer.
    CallFailed(EndedCall),
    /// A call of this node cannot be written. Nothing was sent.
    CallUnwritable {
        /// Who should have been called.
        grain: ClusterIdentity,
        /// Why.
        reason: alloc::string::String,
    },
    /// This node forgot where a grain was.
    PidDropped(DroppedPid),
    /// A call tries again or was slow, or a peer's schema was agreed upon.
    Router(RouterEvent),
}
