//! What every member says about itself, told to everybody.
//!
//! Each member owns a small notebook of keys and values, numbers every line it writes, and shows its own notebook and
//! its copies of the others' to a few random peers now and then. A copy takes a line only if its number is greater than
//! the one it has, so copies agree in the end whatever is lost, doubled or reordered. A heartbeat is a line that is
//! rewritten every round: whoever stops rewriting it is blocked, and so is whoever writes that it leaves.
//!
//! ```text
//!   set_state ──► GossipStateStore ◄── merge ◄── requests and answers of peers
//!                    │        │
//!          Watermarks│        └──► updates ──► consensus checks, signs of life, block list
//!                    ▼
//!        delta per peer ──► request ──► answered: the watermarks are committed
//!                                  └──► failed or late: they are dropped and the delta is sent again
//! ```
//!
//! [`Gossiper`] is the only part that combines the others.

mod config;
mod consensus;
mod error;
mod gossiper;
mod id;
mod liveness;
mod map;
mod outcome;
mod state;
mod store;
mod watermark;

pub use config::{GossiperConfig, GossiperConfigError, RESERVED_KEYS_MAX};
pub use consensus::{
    CHECK_KEYS_MAX, CHECKS_MAX, ConsensusCheckId, ConsensusChecker, ConsensusEvent, ExtractError,
};
pub use error::{GossipBoundError, GossiperError};
pub use gossiper::{Gossiper, GossiperState};
pub use id::{
    GossipKey, GossipMapKey, GossipMemberId, GossipNameError, KEY_BYTES_MAX, MAP_KEY_BYTES_MAX,
    MEMBER_ID_BYTES_MAX, SequenceError, SequenceNumber,
};
pub use liveness::{BLOCKED_MAX, BlockReason};
pub use map::{GossipMap, GossipMapError, MAP_KEYS_MAX, MAP_TYPE_URL};
pub use outcome::{
    GossipRefusal, GossipRefusalReason, GossipRequest, GossiperEvent, GossiperOutcome, RequestToken,
};
pub use state::{
    EMPTY_TYPE_URL, GossipKeyValue, GossipMemberState, GossipState, GossipUpdate, GossipValue,
    GossipValueError, TYPE_URL_BYTES_MAX, VALUE_BYTES_MAX,
};
pub use store::{GossipStateStore, HEARTBEAT_BYTES_MAX, KEYS_PER_MEMBER_MAX, MEMBER_BYTES_MAX, StoreMerge};
