//! The machines of synod: everything the cluster *decides*, and nothing it *does*.
//!
//! A machine is a plain struct. Inputs are `handle_*` calls, time is an argument ([`TimerInstant`], monotonic),
//! randomness comes from a seed the machine is given, and every call returns an outcome: what to store, what to
//! publish, what to send, and when the machine wants to be polled next. A driver (or the simulator) turns bytes into
//! inputs and outcomes into effects; it decides nothing. Ordered maps throughout, so equal inputs give equal outcomes.
//!
//! [`membership`] decides who is in the cluster; [`gossip`] spreads what each member says about itself; [`roster`] lists
//! everyone there is to talk to, members of another runtime included; [`grains`] decides where actors live that are called
//! by name; [`pubsub`] decides who hears what is said to a topic; [`slots`] decides who serves which part of the data,
//! [`objects`] keeps the data of a slot safe through every change of its primary, and [`jobs`] decides who does which job.
//!
//! The crate is `no_std` + `alloc`: it cannot open a socket, read a clock or start a thread.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod deadline;
pub mod gossip;
pub mod grains;
mod haste;
pub mod id;
pub mod jobs;
pub mod membership;
mod murmur;
pub mod objects;
pub mod outbound;
pub mod pubsub;
pub mod remote;
pub mod roster;
pub mod slots;
pub mod time;

pub use haste::HASTE_MAX;
pub use id::{
    Authority, AuthorityError, Incarnation, IncarnationError, MemberId, MemberIdError, NodeId, NodeIdError,
};
pub use time::TimerInstant;
