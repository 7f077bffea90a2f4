//! Who serves which part of the data: slots, their replicas, and the one primary that each epoch of a slot has.
//!
//! The key space is cut into slots. Each slot has a fixed set of replicas, by the bootstrap state, and at any time at most
//! one of them is its *primary*, for one *epoch*. Think of an office with numbered terms: to hold it one needs the signed
//! consent of a majority, each signs a term only once, and whoever has signed for a term takes no orders from earlier ones.
//!
//! ```text
//!   primary silent ──► candidate ──ask──► replicas: promise epoch e, durably ──grant──► majority?
//!                                                                                        │
//!   serve ◄── publish SlotRecord{epoch e} ◄── recover: adopt the newest head of the granters
//! ```
//!
//! **Grant, recover, publish.** A majority of promises is what fences the primary before: it needs a majority for every
//! write, and one of them refuses. Adopting the newest head among the granters is what keeps committed writes: every
//! majority of writers meets every majority of granters. Gossip comes last: it spreads records, which are unique per slot
//! and epoch, and never decides anything. [`SlotReplica`], [`Candidacy`] and [`Reign`] are these three steps for one slot,
//! small enough to be model-checked; [`SlotRegistry`] runs them for all slots of a node, with the time, the batching and
//! the repair around them.
//!
//! Everything that is merged ([`SlotRecord`], [`NodeRecord`], [`BootstrapState`]) is merged by a maximum or a minimum of a
//! total order, so that any delivery, doubled, late or out of order, ends in the same state.

mod bootstrap;
mod candidacy;
mod config;
mod hlc;
mod id;
mod map;
mod message;
mod record;
mod registry;
mod reign;
mod replica;
mod takeover;

pub use bootstrap::{
    BootstrapError, BootstrapNode, BootstrapState, DISKS_MAX, ForeignCluster, NAMESPACE_BYTES_MAX, NODES_MAX,
    NodePorts, Pace, QUEUE_GROUPS_MAX, QueueLayout, REPLICAS_MAX, Replication, SLOTS_MAX,
};
pub use candidacy::Candidacy;
pub use config::{SlotConfigError, SlotRegistryConfig};
pub use hlc::{ClockAhead, Hlc, HlcTimestamp};
pub use id::{ClusterId, ClusterIdError, SlotEpoch, SlotId, Tag, slot_of};
pub use map::{BUCKETS, SlotConflict, SlotMap};
pub use message::{
    ENVELOPE_VERSION, Envelope, EnvelopeBody, EnvelopeRefusal, Grant, Promise, Refusal, RefusalReason,
    SlotMessage,
};
pub use record::{ElectionCause, NodeRecord, SlotRecord, SlotState};
pub use registry::{
    Answer, LocalSlotView, RegistryCounters, RegistryOp, RegistryOutcome, RequestError, RequestId, Restored,
    Route, SlotEvent, SlotRegistry, SlotView, Standing,
};
pub use reign::{Head, HeadRank, Reign, ReignPhase, VALUE_BYTES_MAX};
pub use replica::{SlotReplica, StaleEpoch};
pub use takeover::{Holder, Takeover, TakeoverRefusal, judge_start};
