//! The replicated job queue: what every replica of it does with each entry of the log.
//!
//! Think of a clerk with a ledger. Whoever wants something hands in a slip: here is a job, I take three, this one is done.
//! Slips are bound into the ledger in one order, the same for all clerks, and only then does a clerk act on them: each has
//! the same ledger, so each has the same shelves. One of them, the leader, also speaks to people at the counter.
//!
//! ```text
//!   clients, workers ──► Frame { dt, commands } ──► the log, on a majority ──► apply(index, frame)
//!                                                                                  │ every replica: the same state
//!   workers ◄── deliveries, replies ◄── Effects ◄── the leader ────────────────────┘
//! ```
//!
//! **Assignments are derived.** Nobody proposes who gets which job. [`JobQueue::apply`] finds it from who waits, so two
//! leaders cannot disagree, and a job is delivered only after its assignment is committed. The index of that entry is the
//! [`Fence`]: whoever speaks about a job shows it, and an older one has lost the job.
//!
//! **Time is in the log.** Queue time is the sum of what frames say has passed. Leases, delays and all that expires run on
//! it; no clock can jump over them, and while there is no leader they stand still.
//!
//! **A command counts once.** Gateways number their commands; the result of a number is remembered for a while, and is said
//! again to whoever asks again ([`Token`]).
//!
//! **Everything is bounded** by [`JobLimits`], which are part of the state, and every refusal has a name ([`Refusal`]).
//!
//! Each job carries the latest events of its life in the replicated state, and so do the jobs that were finished last: what
//! became of a job can be told by any replica, after any failover. [`check`] reads what a run of the whole system recorded
//! and says whether the promises were kept.

pub mod check;
mod codec;
mod effects;
mod frame;
mod frame_codec;
mod gateway;
mod id;
mod job;
mod machine;
mod query;
mod queue;
mod session;
mod settings;
mod snapshot;
mod table;
mod timers;

pub use codec::CodecError;
pub use effects::{
    Asked, Assignment, Delivery, Effects, Enqueued, Event, EventKind, Lost, Refusal, Reply, Revocation,
};
pub use frame::{CancelGuard, Command, Dedupe, Frame, Op, Submit, Token};
pub use frame_codec::FRAME_VERSION;
pub use id::{
    ClientId, Fence, GatewayId, JobId, NameError, QUEUE_NAME_BYTES_MAX, QueueName, SessionId,
    USER_KEY_BYTES_MAX, UserKey,
};
pub use job::{DeadReason, Finish, HISTORY_MAX, HistoryEntry, JobCounts, JobState, Moment, What};
pub use machine::{JobQueue, StaleIndex};
pub use query::{DeadCursor, JobView, Paused, QueueStats, SESSION_QUEUES_SHOWN, SessionStats, SessionTotals};
pub use queue::Totals;
pub use settings::{Backoff, DeadLetters, JobLimits, QueueSettings, Quota, Rate, SettingOutOfRange};
pub use snapshot::{SNAPSHOT_VERSION, Snapshot, SnapshotChunks, SnapshotDecoder, SnapshotError};
