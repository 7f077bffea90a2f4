//! How much a peer may say at once.
//!
//! A peer is a program that may be broken or hostile, and every byte it sends costs memory here. Two bytes on the wire
//! can become a hundred in memory (an empty envelope does), so a bound on bytes alone is not enough: the number of
//! elements is bounded too, and counted before anything is allocated for them.
//!
//! What we *send* keeps to what an unmodified Go node accepts. What we *receive* is bounded more generously, because Go
//! cuts its batches by the number of messages and never by their size.

use std::fmt;

/// Largest frame that is sent, in bytes: what grpc-go accepts unless told otherwise.
pub const FRAME_BYTES_SENT_MAX: usize = 4 * MIB;

/// Largest frame that is read, in bytes. A transport must not let its own, smaller default get in the way.
pub const FRAME_BYTES_RECEIVED_MAX: usize = 64 * MIB;

/// Most messages in a batch that is sent: as many as Go's own writer puts into one.
pub const BATCH_MESSAGES_SENT_MAX: usize = 1000;

/// Most envelopes in a batch that is read. Go's 1000 can be configured upwards.
pub const BATCH_ENVELOPES_MAX: usize = 65_536;

/// Most type names in a batch that is read. They are distinct, so a program's types bound them.
pub const BATCH_TYPE_NAMES_MAX: usize = 4096;

/// Most targets in a batch that is read.
pub const BATCH_TARGETS_MAX: usize = 65_536;

/// Most senders in a batch that is read.
pub const BATCH_SENDERS_MAX: usize = 65_536;

/// Most headers in a batch that is read, those of all its envelopes together.
pub const BATCH_HEADERS_MAX: usize = 262_144;

/// Most headers of one envelope, sent or read.
pub const ENVELOPE_HEADERS_MAX: usize = 64;

/// Most bytes in the headers of one envelope, names and values together, sent or read.
pub const ENVELOPE_HEADER_BYTES_MAX: usize = 16 * KIB;

/// Largest payload of one envelope that is read, in bytes. What is sent is bounded by [`FRAME_BYTES_SENT_MAX`].
pub const PAYLOAD_BYTES_MAX: usize = 16 * MIB;

/// Longest type name, in bytes.
pub const TYPE_NAME_BYTES_MAX: usize = 512;

/// Longest actor id, in bytes. It holds the identity of a grain, which applications choose.
pub const ACTOR_ID_BYTES_MAX: usize = 4 * KIB;

/// Longest `host:port`, in bytes. A host name has at most 253.
pub const ADDRESS_BYTES_MAX: usize = 512;

/// Longest member id, in bytes.
pub const MEMBER_ID_BYTES_MAX: usize = 512;

/// Most members on a block list.
pub const BLOCK_LIST_MEMBERS_MAX: usize = 4096;

/// Most members in one gossip message. Go keeps the departed ones forever.
pub const GOSSIP_MEMBERS_MAX: usize = 4096;

/// Most values in one gossip message, those of all its members together.
pub const GOSSIP_VALUES_MAX: usize = 65_536;

/// Most items of a gossip value that is itself a map.
pub const GOSSIP_MAP_ITEMS_MAX: usize = 65_536;

/// Most members in one topology, counting those who joined and left.
pub const TOPOLOGY_MEMBERS_MAX: usize = 16_384;

/// Most kinds in one topology or heartbeat, those of all its members together.
pub const MEMBER_KINDS_MAX: usize = 65_536;

/// Most messages in one published batch. Go's producer sends 2000.
pub const PUBSUB_ENVELOPES_MAX: usize = 65_536;

/// Most type names in one published batch.
pub const PUBSUB_TYPE_NAMES_MAX: usize = 4096;

/// Most subscribers in one delivery or one report about deliveries.
pub const SUBSCRIBERS_MAX: usize = 65_536;

/// Most details of one grain error.
pub const GRAIN_ERROR_DETAILS_MAX: usize = 256;

/// Most records in one membership message: as many as a delta of the membership table has.
pub const MEMBERSHIP_RECORDS_MAX: usize = 4096;

/// What is counted before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Counted {
    /// Envelopes of a batch, see [`BATCH_ENVELOPES_MAX`].
    Envelopes,
    /// Type names of a batch, see [`BATCH_TYPE_NAMES_MAX`].
    TypeNames,
    /// Targets of a batch, see [`BATCH_TARGETS_MAX`].
    Targets,
    /// Senders of a batch, see [`BATCH_SENDERS_MAX`].
    Senders,
    /// Headers of all envelopes of a batch, see [`BATCH_HEADERS_MAX`].
    Headers,
    /// Members on a block list, see [`BLOCK_LIST_MEMBERS_MAX`].
    BlockedMembers,
    /// Members in a gossip message, see [`GOSSIP_MEMBERS_MAX`].
    GossipMembers,
    /// Values in a gossip message, see [`GOSSIP_VALUES_MAX`].
    GossipValues,
    /// Items of a gossiped map, see [`GOSSIP_MAP_ITEMS_MAX`].
    GossipMapItems,
    /// Members of a topology, see [`TOPOLOGY_MEMBERS_MAX`].
    TopologyMembers,
    /// Kinds of members, see [`MEMBER_KINDS_MAX`].
    MemberKinds,
    /// Messages of a published batch, see [`PUBSUB_ENVELOPES_MAX`].
    PublishedMessages,
    /// Type names of a published batch, see [`PUBSUB_TYPE_NAMES_MAX`].
    PublishedTypeNames,
    /// Subscribers, see [`SUBSCRIBERS_MAX`].
    Subscribers,
    /// Details of a grain error, see [`GRAIN_ERROR_DETAILS_MAX`].
    GrainErrorDetails,
    /// Records of a membership message, see [`MEMBERSHIP_RECORDS_MAX`].
    MembershipRecords,
}

impl Counted {
    /// Everything that is counted.
    pub const ALL: [Self; 16] = [
        Self::Envelopes,
        Self::TypeNames,
        Self::Targets,
        Self::Senders,
        Self::Headers,
        Self::BlockedMembers,
        Self::GossipMembers,
        Self::GossipValues,
        Self::GossipMapItems,
        Self::TopologyMembers,
        Self::MemberKinds,
        Self::PublishedMessages,
        Self::PublishedTypeNames,
        Self::Subscribers,
        Self::GrainErrorDetails,
        Self::MembershipRecords,
    ];

    /// How many there may be.
    #[must_use]
    pub const fn max(self) -> usize {
        match self {
            Self::Envelopes => BATCH_ENVELOPES_MAX,
            Self::TypeNames => BATCH_TYPE_NAMES_MAX,
            Self::Targets => BATCH_TARGETS_MAX,
            Self::Senders => BATCH_SENDERS_MAX,
            Self::Headers => BATCH_HEADERS_MAX,
            Self::BlockedMembers => BLOCK_LIST_MEMBERS_MAX,
            Self::GossipMembers => GOSSIP_MEMBERS_MAX,
            Self::GossipValues => GOSSIP_VALUES_MAX,
            Self::GossipMapItems => GOSSIP_MAP_ITEMS_MAX,
            Self::TopologyMembers => TOPOLOGY_MEMBERS_MAX,
            Self::MemberKinds => MEMBER_KINDS_MAX,
            Self::PublishedMessages => PUBSUB_ENVELOPES_MAX,
            Self::PublishedTypeNames => PUBSUB_TYPE_NAMES_MAX,
            Self::Subscribers => SUBSCRIBERS_MAX,
            Self::GrainErrorDetails => GRAIN_ERROR_DETAILS_MAX,
            Self::MembershipRecords => MEMBERSHIP_RECORDS_MAX,
        }
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Envelopes => "envelopes",
            Self::TypeNames => "type names",
            Self::Targets => "targets",
            Self::Senders => "senders",
            Self::Headers => "headers",
            Self::BlockedMembers => "blocked members",
            Self::GossipMembers => "gossiped members",
            Self::GossipValues => "gossiped values",
            Self::GossipMapItems => "items of a gossiped map",
            Self::TopologyMembers => "topology members",
            Self::MemberKinds => "kinds",
            Self::PublishedMessages => "published messages",
            Self::PublishedTypeNames => "published type names",
            Self::Subscribers => "subscribers",
            Self::GrainErrorDetails => "error details",
            Self::MembershipRecords => "membership records",
        })
    }
}

/// A text that names something, and therefore is neither empty nor long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Text {
    /// The name of a message type, see [`TYPE_NAME_BYTES_MAX`].
    TypeName,
    /// The id of the actor that a message is for, see [`ACTOR_ID_BYTES_MAX`].
    TargetId,
    /// The address of the actor that a message is for, see [`ADDRESS_BYTES_MAX`].
    TargetAddress,
    /// The id of the actor that sent a message, see [`ACTOR_ID_BYTES_MAX`].
    SenderId,
    /// The address of the actor that sent a message, see [`ADDRESS_BYTES_MAX`].
    SenderAddress,
    /// The id of a member, see [`MEMBER_ID_BYTES_MAX`].
    MemberId,
    /// The address of a member, see [`ADDRESS_BYTES_MAX`].
    MemberAddress,
}

impl Text {
    /// How long it may be, in bytes.
    #[must_use]
    pub const fn bytes_max(self) -> usize {
        match self {
            Self::TypeName => TYPE_NAME_BYTES_MAX,
            Self::TargetId | Self::SenderId => ACTOR_ID_BYTES_MAX,
            Self::TargetAddress | Self::SenderAddress | Self::MemberAddress => ADDRESS_BYTES_MAX,
            Self::MemberId => MEMBER_ID_BYTES_MAX,
        }
    }

    /// Whether `text` can be one.
    #[inline]
    pub(crate) fn check(self, text: &str) -> Result<(), TextFault> {
        if text.is_empty() {
            Err(TextFault::Empty { what: self })
        } else if text.len() > self.bytes_max() {
            Err(TextFault::TooLong { what: self, bytes: text.len(), max: self.bytes_max() })
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TypeName => "type name",
            Self::TargetId => "target id",
            Self::TargetAddress => "target address",
            Self::SenderId => "sender id",
            Self::SenderAddress => "sender address",
            Self::MemberId => "member id",
            Self::MemberAddress => "member address",
        })
    }
}

/// A text that ought to name something does not. Reads as the end of a sentence that says who gave it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextFault {
    /// It is empty.
    #[error("an empty {what}")]
    Empty {
        /// What ought to be there.
        what: Text,
    },
    /// It is longer than [`Text::bytes_max`].
    #[error("a {what} of {bytes} bytes, where at most {max} are allowed")]
    TooLong {
        /// What it is.
        what: Text,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

// An index into a table of a batch is an `i32` on the wire, and for senders it starts at 1.
const _: () = assert!(BATCH_MESSAGES_SENT_MAX < i32::MAX as usize);
