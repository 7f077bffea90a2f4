//! The bytes between nodes: what synod and protoactor-go say to each other, and how much of it is listened to.
//!
//! Everything that crosses a connection becomes a type here, or an error that says what the peer did wrong. Nothing in
//! this crate opens a socket; a transport hands in the bytes of a frame and sends the frames it is given.
//!
//! ```text
//!   bytes ──► Frame::decode ──► Frame::Batch(ReceivedBatch) ──► Envelope ──► payload::decode::<ActivationRequest>
//!   bytes ◄── BatchBuilder::finish_frame                    ◄── Envelope ◄── payload::encode(&ActivationResponse)
//! ```
//!
//! protoactor-go exists in two dialects that differ in how a batch names its receivers. [`Dialect`] tells them apart;
//! everything above this crate sees [`Envelope`]s and need not know.
//!
//! ```
//! use synod_wire::{BatchBuilder, Dialect, Envelope, Frame, PidRef, Push, actor, names, payload};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut builder = BatchBuilder::new(Dialect::B);
//! let target = PidRef::new("127.0.0.1:8080", "greeter");
//! let pushed = builder.push(&Envelope::new(target, names::TOUCH, payload::encode(&actor::Touch {})?))?;
//! assert_eq!(pushed, Push::Added);
//! let frame = builder.finish_frame().ok_or("empty")?;
//!
//! let Frame::Batch(batch) = Frame::decode(frame)? else { return Err("not a batch".into()) };
//! for envelope in batch.envelopes("127.0.0.1:8080") {
//!     assert_eq!(envelope?.target.id, "greeter");
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod batch;
pub mod dialect;
pub mod frame;
pub mod limits;
pub mod names;
pub mod payload;
mod scan;

pub use batch::{
    BatchBuilder, Batches, Envelope, EnvelopeError, EnvelopeFault, PidRef, Places, Push, ReceivedBatch,
    Serializer, Table, UnsendableMessage,
};
pub use dialect::{Dialect, DialectError};
pub use frame::{Frame, FrameError};
pub use limits::{Counted, Text, TextFault};
pub use payload::{Payload, PayloadError};

/// Package `actor`: the names of actors and the messages every actor understands. From `proto/actor.proto`.
#[allow(missing_docs, clippy::all)]
pub mod actor {
    include!(concat!(env!("OUT_DIR"), "/actor.rs"));
}

/// Package `remote`: the frames of a connection, for both dialects. From `proto/remote.proto`.
#[allow(missing_docs, clippy::all)]
pub mod remote {
    include!(concat!(env!("OUT_DIR"), "/remote.rs"));
}

/// Package `cluster`: membership, gossip, grains and topics. From `proto/{cluster,gossip,grain,pubsub}.proto`, which
/// protoactor-go also keeps in one package.
#[allow(missing_docs, clippy::all)]
pub mod cluster {
    include!(concat!(env!("OUT_DIR"), "/cluster.rs"));
}

/// Package `synod.membership`: what the coordinators of synod nodes say to each other. Go nodes have no such types.
/// From `proto/membership.proto`.
#[allow(missing_docs, clippy::all)]
pub mod membership {
    include!(concat!(env!("OUT_DIR"), "/synod.membership.rs"));
}

/// Package `synod.slots.v1`: what the slot registries of synod nodes say to each other. From `proto/slots.proto`.
#[allow(missing_docs, clippy::all)]
pub mod slots {
    include!(concat!(env!("OUT_DIR"), "/synod.slots.v1.rs"));
}

/// Package `synod.objects.v1`: what the object planes of synod nodes say to each other, and what they store. From
/// `proto/objects.proto`.
#[allow(missing_docs, clippy::all)]
pub mod objects {
    include!(concat!(env!("OUT_DIR"), "/synod.objects.v1.rs"));
}

/// Package `synod.raft.v1`: what the replicas of a Raft group say to each other. From `proto/raft.proto`.
#[allow(missing_docs, clippy::all)]
pub mod raft {
    include!(concat!(env!("OUT_DIR"), "/synod.raft.v1.rs"));
}

/// Package `synod.queue.v1`: what clients and workers say to the leader of a queue. From `proto/queue.proto`.
#[allow(missing_docs, clippy::all)]
pub mod queue {
    include!(concat!(env!("OUT_DIR"), "/synod.queue.v1.rs"));
}
