//! Who is in the cluster, and how sure we are.
//!
//! Every node runs one [`MembershipCoordinator`]. It keeps a table of records, one per node name, and changes a record
//! only along the edges of [`NodeStatus`] or by merging a record that a peer holds. Merging takes the greater of two
//! records in one total order, so views converge whatever is lost, doubled or reordered:
//!
//! ```text
//!   evidence                       decisions                          effects (done by a driver)
//!   heartbeats ──► PhiFailureDetector ──► Suspect ──► Downing ──► Dead    persist incarnation
//!   join/leave ──► MembershipTable ◄── merge ◄── GossipEngine ◄── peers   apply quarantine
//!   transport  ──► QuarantineTable                                        publish events
//!                        └──────► TopologyWindow ──► TopologyUpdate       send gossip
//! ```
//!
//! The parts are usable on their own; the coordinator is the only one that combines them.

mod config;
mod coordinator;
mod delta;
mod downing;
mod engine;
mod event;
mod health;
mod heartbeat;
mod message;
mod phi;
mod quarantine;
mod record;
mod status;
mod table;
mod topology;

pub use config::{ConfigError, Confirmation, MEMBERS_MAX, MembershipCoordinatorConfig};
pub use coordinator::{
    MembershipCoordinator, MembershipCoordinatorError, MembershipCoordinatorOutcome,
    MembershipCoordinatorState,
};
pub use delta::{DELTA_RECORDS_MAX, DeltaError, MembershipDelta, MembershipSnapshot};
pub use downing::{Downing, DowningVerdict, DowningView, KeepMajority, TimeoutDowning};
pub use engine::{GossipEngine, GossipEvent, GossipGap, GossipPhase, GossipPush};
pub use event::{ClusterEvent, MembershipEvent, QuarantineEvent, RejoinReason};
pub use health::LocalHealth;
pub use heartbeat::HeartbeatRing;
pub use message::{GossipBody, GossipMessage, GossipOutbound, GossipSender, Refusal, Standing, ViewDigest};
pub use phi::{INTERVAL_MAX, PHI_MAX, PhiConfig, PhiConfigError, PhiEffect, PhiFailureDetector, SAMPLES_MAX};
pub use quarantine::{QuarantineEntry, QuarantineReason, QuarantineTable};
pub use record::{NodeRecord, Refutation};
pub use status::NodeStatus;
pub use table::{MembershipError, MembershipTable, MembershipVersion, RecordChange};
pub use topology::{
    ClusterTopology, Member, TopologyApplyError, TopologyError, TopologyUpdate, TopologyWindow,
};
