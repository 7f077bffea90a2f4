//! The messages of registries and the envelopes of gossip, as bytes and back.
//!
//! Bytes become types here, once. What a peer sends wrongly is an error that names what is wrong with it, and changes
//! nothing.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use synod_core::slots::{
    BUCKETS, BootstrapState, ClusterId, ENVELOPE_VERSION, ElectionCause, Envelope, EnvelopeBody,
    EnvelopeRefusal, ForeignCluster, Grant, Head, HeadRank, HlcTimestamp, NodeRecord, Promise, Refusal,
    RefusalReason, SlotEpoch, SlotId, SlotMessage, SlotRecord, SlotState, Tag, VALUE_BYTES_MAX,
};
use synod_core::{Authority, Incarnation, MemberId, NodeId};
use synod_wire::slots as wire;
use synod_wire::slots::slot_message::Body;

use crate::bootstrap_json;

/// What a peer sent cannot be read. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The bytes are not a message.
    #[error("the bytes are not a message of the registry: {0}")]
    Bytes(String),
    /// Something that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// Something is out of its range or malformed.
    #[error("{field} is malformed: {reason}")]
    Malformed {
        /// What.
        field: &'static str,
        /// Why.
        reason: String,
    },
    /// It belongs to another cluster.
    #[error(transparent)]
    Foreign(#[from] ForeignCluster),
}

/// Writes a batch of messages.
#[must_use]
pub fn batch(cluster: ClusterId, from: &MemberId, messages: &[SlotMessage]) -> wire::SlotBatch {
    wire::SlotBatch {
        cluster: cluster_bytes(cluster),
        node: from.node.to_string(),
        incarnation: from.incarnation.get(),
        messages: messages.iter().map(write_message).collect(),
    }
}

/// Reads a batch of messages for a node of `own`.
///
/// # Errors
/// The batch is of another cluster, or anything in it is malformed.
pub fn read_batch(
    own: ClusterId,
    batch: wire::SlotBatch,
) -> Result<(MemberId, Vec<SlotMessage>), CodecError> {
    check_cluster(own, &batch.cluster)?;
    let from = member(&batch.node, batch.incarnation)?;
    let messages = batch.messages.into_iter().map(read_message).collect::<Result<_, _>>()?;
    Ok((from, messages))
}

/// Refuses what is not of `own`.
///
/// # Errors
/// It is of another cluster, or of none.
pub fn check_cluster(own: ClusterId, bytes: &[u8]) -> Result<(), CodecError> {
    let bytes: [u8; 16] =
        bytes.try_into().map_err(|_| malformed("cluster", format!("{} bytes instead of 16", bytes.len())))?;
    let foreign = ClusterId::new(u128::from_be_bytes(bytes));
    if foreign == own { Ok(()) } else { Err(ForeignCluster { own, foreign }.into()) }
}

/// The id of a cluster as it travels.
#[must_use]
pub fn cluster_bytes(cluster: ClusterId) -> Bytes {
    Bytes::copy_from_slice(&cluster.get().to_be_bytes())
}

/// Writes an envelope.
#[must_use]
pub fn envelope(envelope: &Envelope) -> Bytes {
    let (kind, payload) = match &envelope.body {
        EnvelopeBody::SlotDelta { records, nodes } => {
            let delta = wire::Delta {
                records: records.iter().map(write_record).collect(),
                nodes: nodes.iter().map(write_node).collect(),
                wanted: Vec::new(),
            };
            (KIND_SLOT_DELTA, delta.encode_to_vec())
        }
        EnvelopeBody::BootstrapSnapshot(state) => (KIND_BOOTSTRAP, bootstrap_json::write(state).into_bytes()),
    };
    let cluster = cluster_bytes(envelope.cluster);
    let (kind, payload) = (kind.to_owned(), payload.into());
    Bytes::from(wire::Envelope { version: ENVELOPE_VERSION, kind, cluster, payload }.encode_to_vec())
}

/// Reads an envelope for a node of `own`.
///
/// # Errors
/// It is of another version, kind or cluster, or malformed. Then it is to be ignored and counted.
pub fn read_envelope(own: ClusterId, bytes: &[u8]) -> Result<Envelope, EnvelopeRefusal> {
    let malformed = |reason: String| EnvelopeRefusal::Malformed { reason };
    let wire::Envelope { version, kind, cluster, payload } =
        wire::Envelope::decode(bytes).map_err(|error| malformed(error.to_string()))?;
    if version != ENVELOPE_VERSION {
        return Err(EnvelopeRefusal::Version { version });
    }
    match check_cluster(own, &cluster) {
        Err(CodecError::Foreign(foreign)) => return Err(foreign.into()),
        other => other.map_err(|error| malformed(error.to_string()))?,
    }
    let body = match kind.as_str() {
        KIND_SLOT_DELTA => {
            let delta = wire::Delta::decode(payload).map_err(|error| malformed(error.to_string()))?;
            let (records, nodes) =
                read_records(&delta.records, &delta.nodes).map_err(|e| malformed(e.to_string()))?;
            EnvelopeBody::SlotDelta { records, nodes }
        }
        KIND_BOOTSTRAP => {
            let text = std::str::from_utf8(&payload).map_err(|error| malformed(error.to_string()))?;
            let state: BootstrapState =
                bootstrap_json::read(text).map_err(|error| malformed(error.to_string()))?;
            EnvelopeBody::BootstrapSnapshot(state)
        }
        _ => return Err(EnvelopeRefusal::Kind { kind }),
    };
    Ok(Envelope { cluster: own, body })
}

/// A tag as it travels.
#[must_use]
pub const fn write_tag(tag: Tag) -> wire::Tag {
    wire::Tag { epoch: tag.epoch.get(), sequence: tag.sequence }
}

/// A tag that came.
///
/// # Errors
/// Its epoch is too large.
pub fn read_tag(tag: wire::Tag) -> Result<Tag, CodecError> {
    Ok(Tag { epoch: read_epoch(tag.epoch)?, sequence: tag.sequence })
}

/// A head as it travels.
#[must_use]
pub fn write_head(head: &Head) -> wire::Head {
    wire::Head {
        tag: Some(write_tag(head.tag)),
        value: Bytes::copy_from_slice(&head.value),
        accepted: head.accepted.get(),
    }
}

/// A head that came.
///
/// # Errors
/// It has no tag, or its value is too long.
pub fn read_head(head: &wire::Head) -> Result<Head, CodecError> {
    let tag = read_tag(head.tag.ok_or(CodecError::Missing("the tag of a head"))?)?;
    if head.value.len() > VALUE_BYTES_MAX {
        return Err(malformed(
            "a value",
            format!("{} bytes are more than {VALUE_BYTES_MAX}", head.value.len()),
        ));
    }
    Ok(Head { tag, accepted: read_epoch(head.accepted)?, value: Arc::from(&head.value[..]) })
}

/// The number of an epoch that came.
///
/// # Errors
/// It is too large to have been reached by elections. Nobody could be elected after it.
pub fn read_epoch(number: u64) -> Result<SlotEpoch, CodecError> {
    if number > EPOCH_MAX {
        return Err(malformed("an epoch", format!("{number} is too large")));
    }
    Ok(SlotEpoch::new(number))
}

/// A number of a slot that came.
///
/// # Errors
/// It is too large for a slot.
pub fn read_slot(number: u32) -> Result<SlotId, CodecError> {
    u16::try_from(number).map(SlotId::new).map_err(|_| malformed("a slot", format!("{number} is too large")))
}

fn write_message(message: &SlotMessage) -> wire::SlotMessage {
    let body = match message {
        SlotMessage::Sound { asks } => Body::Sound(write_epochs(asks)),
        SlotMessage::Willing { asks } => Body::Willing(write_epochs(asks)),
        SlotMessage::AskGrants { asks, endorsed: false } => Body::AskGrants(write_epochs(asks)),
        SlotMessage::AskGrants { asks, endorsed: true } => Body::AskEndorsedGrants(write_epochs(asks)),
        SlotMessage::Grants { granted, refused } => Body::Grants(write_grants(granted, refused)),
        SlotMessage::AskHeads { slots } => Body::AskHeads(write_epochs(slots)),
        SlotMessage::Heads { heads } => Body::Heads(wire::Heads {
            slots: heads.iter().map(|(slot, _)| slot.get().into()).collect(),
            heads: heads.iter().map(|(_, head)| write_head(head)).collect(),
        }),
        SlotMessage::HandOver { slots } => Body::HandOver(write_epochs(slots)),
        SlotMessage::Claims { slots } => Body::Claims(write_epochs(slots)),
        SlotMessage::AskPromises { slots, asker } => Body::AskPromises(wire::AskPromises {
            slots: slots.iter().map(|slot| slot.get().into()).collect(),
            asker: *asker,
        }),
        SlotMessage::Promises { asker, promises } => {
            let promises = promises.iter().map(|promise| wire::promises::Promise {
                slot: promise.slot.get().into(),
                promised: promise.promised.get(),
                head: promise.head.as_ref().map(write_head),
            });
            Body::Promises(wire::Promises { promises: promises.collect(), asker: *asker })
        }
        SlotMessage::Store { slot, epoch, head } => Body::Store(wire::Store {
            slot: slot.get().into(),
            epoch: epoch.get(),
            head: Some(write_head(head)),
        }),
        SlotMessage::Stored { slot, epoch, tag } => Body::Stored(wire::Stored {
            slot: slot.get().into(),
            epoch: epoch.get(),
            tag: Some(write_tag(*tag)),
        }),
        SlotMessage::Confirm { slot, epoch, nonce } => {
            Body::Confirm(wire::Confirm { slot: slot.get().into(), epoch: epoch.get(), nonce: *nonce })
        }
        SlotMessage::Confirmed { slot, epoch, nonce } => {
            Body::Confirmed(wire::Confirm { slot: slot.get().into(), epoch: epoch.get(), nonce: *nonce })
        }
        SlotMessage::Stale { slot, epoch, promised } => {
            Body::Stale(wire::Stale { slot: slot.get().into(), epoch: epoch.get(), promised: promised.get() })
        }
        SlotMessage::Digest { slots, nodes } => {
            Body::Digest(wire::Digest { slots: slots.clone(), nodes: *nodes })
        }
        SlotMessage::Delta { records, nodes, wanted } => Body::Delta(wire::Delta {
            records: records.iter().map(write_record).collect(),
            nodes: nodes.iter().map(write_node).collect(),
            wanted: wanted.iter().map(|bucket| u32::from(*bucket)).collect(),
        }),
    };
    wire::SlotMessage { body: Some(body) }
}

fn read_message(message: wire::SlotMessage) -> Result<SlotMessage, CodecError> {
    Ok(match message.body.ok_or(CodecError::Missing("the body of a message"))? {
        Body::Sound(asks) => SlotMessage::Sound { asks: read_epochs(asks)? },
        Body::Willing(asks) => SlotMessage::Willing { asks: read_epochs(asks)? },
        Body::AskGrants(asks) => SlotMessage::AskGrants { asks: read_epochs(asks)?, endorsed: false },
        Body::AskEndorsedGrants(asks) => SlotMessage::AskGrants { asks: read_epochs(asks)?, endorsed: true },
        Body::Grants(grants) => read_grants(grants)?,
        Body::AskHeads(slots) => SlotMessage::AskHeads { slots: read_epochs(slots)? },
        Body::Heads(wire::Heads { slots, heads }) => {
            if slots.len() != heads.len() {
                return Err(malformed("heads", format!("{} for {} slots", heads.len(), slots.len())));
            }
            let both = slots.into_iter().zip(heads);
            let heads = both.map(|(slot, head)| Ok((read_slot(slot)?, read_head(&head)?)));
            SlotMessage::Heads { heads: heads.collect::<Result<_, CodecError>>()? }
        }
        Body::HandOver(slots) => SlotMessage::HandOver { slots: read_epochs(slots)? },
        Body::Claims(slots) => SlotMessage::Claims { slots: read_epochs(slots)? },
        Body::AskPromises(asks) => {
            let slots = asks.slots.into_iter().map(read_slot).collect::<Result<_, _>>()?;
            SlotMessage::AskPromises { slots, asker: asks.asker }
        }
        Body::Promises(wire::Promises { promises, asker }) => {
            let promises = promises.into_iter().map(|promise| {
                Ok(Promise {
                    slot: read_slot(promise.slot)?,
                    promised: read_epoch(promise.promised)?,
                    head: promise.head.as_ref().map(read_head).transpose()?,
                })
            });
            SlotMessage::Promises { asker, promises: promises.collect::<Result<_, CodecError>>()? }
        }
        Body::Store(wire::Store { slot, epoch, head }) => SlotMessage::Store {
            slot: read_slot(slot)?,
            epoch: read_epoch(epoch)?,
            head: read_head(&head.ok_or(CodecError::Missing("what is to be stored"))?)?,
        },
        Body::Stored(wire::Stored { slot, epoch, tag }) => SlotMessage::Stored {
            slot: read_slot(slot)?,
            epoch: read_epoch(epoch)?,
            tag: read_tag(tag.ok_or(CodecError::Missing("the tag of what was stored"))?)?,
        },
        Body::Confirm(wire::Confirm { slot, epoch, nonce }) => {
            SlotMessage::Confirm { slot: read_slot(slot)?, epoch: read_epoch(epoch)?, nonce }
        }
        Body::Confirmed(wire::Confirm { slot, epoch, nonce }) => {
            SlotMessage::Confirmed { slot: read_slot(slot)?, epoch: read_epoch(epoch)?, nonce }
        }
        Body::Stale(wire::Stale { slot, epoch, promised }) => SlotMessage::Stale {
            slot: read_slot(slot)?,
            epoch: read_epoch(epoch)?,
            promised: read_epoch(promised)?,
        },
        Body::Digest(wire::Digest { slots, nodes }) => SlotMessage::Digest { slots, nodes },
        Body::Delta(wire::Delta { records, nodes, wanted }) => {
            let (records, nodes) = read_records(&records, &nodes)?;
            let buckets = wanted.into_iter().map(|bucket| match u8::try_from(bucket) {
                Ok(small) if usize::from(small) < BUCKETS => Ok(small),
                _ => Err(malformed("a bucket", format!("{bucket} is too large"))),
            });
            SlotMessage::Delta { records, nodes, wanted: buckets.collect::<Result<_, _>>()? }
        }
    })
}

fn write_epochs(epochs: &[(SlotId, SlotEpoch)]) -> wire::Epochs {
    wire::Epochs {
        slots: epochs.iter().map(|(slot, _)| slot.get().into()).collect(),
        epochs: epochs.iter().map(|(_, epoch)| epoch.get()).collect(),
    }
}

fn read_epochs(epochs: wire::Epochs) -> Result<Vec<(SlotId, SlotEpoch)>, CodecError> {
    let wire::Epochs { slots, epochs } = epochs;
    if slots.len() != epochs.len() {
        return Err(malformed("epochs", format!("{} for {} slots", epochs.len(), slots.len())));
    }
    let both = slots.into_iter().zip(epochs);
    both.map(|(slot, epoch)| Ok((read_slot(slot)?, read_epoch(epoch)?))).collect()
}

fn write_grants(granted: &[Grant], refused: &[Refusal]) -> wire::Grants {
    let granted = granted.iter().map(|grant| wire::grants::Granted {
        slot: grant.slot.get().into(),
        epoch: grant.epoch.get(),
        stored: grant.stored.map(|rank| write_tag(rank.tag)),
        accepted: grant.stored.map_or(0, |rank| rank.accepted.get()),
    });
    let refused = refused.iter().map(|refusal| wire::grants::Refused {
        slot: refusal.slot.get().into(),
        asked: refusal.asked.get(),
        promised: refusal.promised.get(),
        reason: refusal.reason as u32,
    });
    wire::Grants { granted: granted.collect(), refused: refused.collect() }
}

fn read_grants(grants: wire::Grants) -> Result<SlotMessage, CodecError> {
    let granted = grants.granted.into_iter().map(|grant| {
        let accepted = read_epoch(grant.accepted)?;
        let tag = grant.stored.map(read_tag).transpose()?;
        let stored = tag.map(|tag| HeadRank { accepted, tag });
        Ok(Grant { slot: read_slot(grant.slot)?, epoch: read_epoch(grant.epoch)?, stored })
    });
    let refused = grants.refused.into_iter().map(|refusal| {
        let reason = usize::try_from(refusal.reason).ok().and_then(|index| RefusalReason::ALL.get(index));
        let reason = *reason.ok_or_else(|| malformed("a refusal", format!("reason {}", refusal.reason)))?;
        let (asked, promised) = (read_epoch(refusal.asked)?, read_epoch(refusal.promised)?);
        Ok(Refusal { slot: read_slot(refusal.slot)?, asked, promised, reason })
    });
    Ok(SlotMessage::Grants {
        granted: granted.collect::<Result<_, CodecError>>()?,
        refused: refused.collect::<Result<_, CodecError>>()?,
    })
}

fn write_record(record: &SlotRecord) -> wire::SlotRecord {
    wire::SlotRecord {
        slot: record.slot.get().into(),
        epoch: record.epoch.get(),
        primary: record.primary.to_string(),
        replicas: record.replicas.iter().map(NodeId::to_string).collect(),
        state: match record.state {
            SlotState::Stable => 0,
        },
        updated_at: record.updated_at.bits(),
        granted_by: record.granted_by.iter().map(NodeId::to_string).collect(),
        cause: record.cause.number().into(),
    }
}

fn read_record(record: &wire::SlotRecord) -> Result<SlotRecord, CodecError> {
    if record.state != 0 {
        return Err(malformed("the state of a slot", format!("{} is unknown", record.state)));
    }
    let cause = usize::try_from(record.cause).ok().and_then(|index| ElectionCause::ALL.get(index));
    Ok(SlotRecord {
        slot: read_slot(record.slot)?,
        epoch: read_epoch(record.epoch)?,
        primary: node(&record.primary)?,
        replicas: record.replicas.iter().map(|name| node(name)).collect::<Result<_, _>>()?,
        state: SlotState::Stable,
        updated_at: HlcTimestamp::from_bits(record.updated_at),
        granted_by: record.granted_by.iter().map(|name| node(name)).collect::<Result<_, _>>()?,
        cause: *cause.ok_or_else(|| malformed("the cause of an election", format!("{}", record.cause)))?,
    })
}

fn write_node(record: &NodeRecord) -> wire::NodeRecord {
    wire::NodeRecord {
        node: record.member.node.to_string(),
        incarnation: record.member.incarnation.get(),
        address: record.address.to_string(),
        instance: record.instance,
        leaving: record.leaving,
        heartbeat: record.heartbeat.bits(),
    }
}

fn read_node(record: &wire::NodeRecord) -> Result<NodeRecord, CodecError> {
    Ok(NodeRecord {
        member: member(&record.node, record.incarnation)?,
        address: Authority::new(&record.address)
            .map_err(|error| malformed("an address", error.to_string()))?,
        instance: record.instance,
        leaving: record.leaving,
        heartbeat: HlcTimestamp::from_bits(record.heartbeat),
    })
}

type Records = (Vec<SlotRecord>, Vec<NodeRecord>);

fn read_records(records: &[wire::SlotRecord], nodes: &[wire::NodeRecord]) -> Result<Records, CodecError> {
    let records = records.iter().map(read_record).collect::<Result<_, _>>()?;
    let nodes = nodes.iter().map(read_node).collect::<Result<_, _>>()?;
    Ok((records, nodes))
}

fn member(name: &str, incarnation: u64) -> Result<MemberId, CodecError> {
    let incarnation =
        Incarnation::new(incarnation).map_err(|error| malformed("an incarnation", error.to_string()))?;
    Ok(MemberId::new(node(name)?, incarnation))
}

fn node(name: &str) -> Result<NodeId, CodecError> {
    NodeId::new(name).map_err(|error| malformed("the name of a node", error.to_string()))
}

const fn malformed(field: &'static str, reason: String) -> CodecError {
    CodecError::Malformed { field, reason }
}

/// Largest epoch that is believed. Elections never reach it.
const EPOCH_MAX: u64 = 1 << 62;
const KIND_SLOT_DELTA: &str = "slot_delta";
const KIND_BOOTSTRAP: &str = "bootstrap_snapshot";

#[cfg(test)]
mod tests;
