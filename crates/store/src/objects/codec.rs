//! What object planes say to each other, as bytes and back.
//!
//! Bytes become types here, once. What a peer sends wrongly is an error that names what is wrong with it, and changes
//! nothing.

use std::sync::Arc;

use bytes::Bytes;
use synod_core::objects::{
    Condition, EntryHead, EntryName, FenceRefusal, Fenced, ObjectMessage, SlotSummary,
};
use synod_core::slots::{HeadRank, SlotEpoch, SlotId, Tag};
use synod_wire::objects as wire;
use synod_wire::objects::object_frame::Body;

use super::content::PartId;
use crate::codec::{CodecError, read_epoch, read_slot};

/// One thing that a peer said.
pub(crate) enum Heard {
    /// A message of its machine or its replica.
    Message(ObjectMessage),
    /// It asks for something on behalf of a client.
    Request(wire::Request),
    /// It answers such a question.
    Reply(wire::Reply),
}

/// A message as it travels; `None` for what a node says to its own disk only.
pub(crate) fn write_message(message: ObjectMessage) -> Option<wire::ObjectFrame> {
    let body = match message {
        ObjectMessage::Fence { slots } => {
            let (slots, epochs) = write_epochs(slots);
            Body::Fence(wire::Fence { slots, epochs })
        }
        ObjectMessage::Fenced { fenced, refused } => Body::Fenced(wire::Fenced {
            done: fenced.into_iter().map(write_fenced).collect(),
            refused: refused.into_iter().map(write_refusal).collect(),
        }),
        ObjectMessage::Store { slot, epoch, name, head } => Body::Store(wire::Store {
            slot: slot.get().into(),
            epoch: epoch.get(),
            name: write_name(&name),
            head: Some(write_head(head)),
        }),
        ObjectMessage::Stored { slot, epoch, name, rank, is_complete } => Body::Stored(wire::Stored {
            slot: slot.get().into(),
            epoch: epoch.get(),
            name: write_name(&name),
            rank: Some(write_rank(rank)),
            is_complete,
        }),
        ObjectMessage::Stale { slot, epoch, fence } => {
            Body::Stale(wire::Stale { slot: slot.get().into(), epoch: epoch.get(), fence: fence.get() })
        }
        ObjectMessage::Confirm { round, slots } => {
            let (slots, epochs) = write_epochs(slots);
            Body::Confirm(wire::Confirm { round, slots, epochs })
        }
        ObjectMessage::Confirmed { round, stale } => {
            let (slots, fences) = write_epochs(stale);
            Body::Confirmed(wire::Confirmed { round, slots, fences })
        }
        ObjectMessage::Summarize { round, slots } => {
            let slots = slots.into_iter().map(|slot| slot.get().into()).collect();
            Body::Summarize(wire::Summarize { round, slots })
        }
        ObjectMessage::Summaries { round, slots } => {
            let slots = slots.into_iter().map(|(slot, fence, summary)| wire::summaries::Slot {
                slot: slot.get().into(),
                fence: fence.get(),
                summary: Some(write_summary(summary)),
            });
            Body::Summaries(wire::Summaries { round, slots: slots.collect() })
        }
        ObjectMessage::Compare { slot, round, after, upto, ranks } => Body::Compare(wire::Compare {
            slot: slot.get().into(),
            round,
            after: after.as_ref().map(write_name),
            upto: upto.as_ref().map(write_name),
            ranks: ranks.into_iter().map(write_named_rank).collect(),
        }),
        ObjectMessage::Compared { slot, round, fence, is_learned, newer, behind, covered } => {
            let newer = newer.into_iter().map(|(name, head)| wire::NamedHead {
                name: write_name(&name),
                head: Some(write_head(head)),
            });
            Body::Compared(wire::Compared {
                slot: slot.get().into(),
                round,
                fence: fence.get(),
                is_learned,
                newer: newer.collect(),
                behind: behind.iter().map(write_name).collect(),
                covered: covered.as_ref().map(write_name),
            })
        }
        ObjectMessage::Forget { slot, epoch, entries } => {
            let tombstones = entries.into_iter().map(|(name, tag)| wire::forget::Tombstone {
                name: write_name(&name),
                tag: Some(write_tag(tag)),
            });
            Body::Forget(wire::Forget {
                slot: slot.get().into(),
                epoch: epoch.get(),
                tombstones: tombstones.collect(),
            })
        }
        ObjectMessage::Adopt { .. } | ObjectMessage::Adopted { .. } => return None,
    };
    Some(wire::ObjectFrame { body: Some(body) })
}

/// Reads what a peer said.
pub(crate) fn read_frame(frame: wire::ObjectFrame) -> Result<Heard, CodecError> {
    let message = match frame.body.ok_or(CodecError::Missing("the body of a frame"))? {
        Body::Request(request) => return Ok(Heard::Request(request)),
        Body::Reply(reply) => return Ok(Heard::Reply(reply)),
        Body::Fence(fence) => ObjectMessage::Fence { slots: read_epochs(&fence.slots, &fence.epochs)? },
        Body::Fenced(fenced) => ObjectMessage::Fenced {
            fenced: fenced.done.into_iter().map(read_fenced).collect::<Result<_, _>>()?,
            refused: fenced.refused.into_iter().map(read_refusal).collect::<Result<_, _>>()?,
        },
        Body::Store(store) => ObjectMessage::Store {
            slot: read_slot(store.slot)?,
            epoch: read_epoch(store.epoch)?,
            name: read_name(&store.name)?,
            head: read_head(store.head.ok_or(CodecError::Missing("head"))?)?,
        },
        Body::Stored(stored) => ObjectMessage::Stored {
            slot: read_slot(stored.slot)?,
            epoch: read_epoch(stored.epoch)?,
            name: read_name(&stored.name)?,
            rank: read_rank(stored.rank)?,
            is_complete: stored.is_complete,
        },
        Body::Stale(stale) => ObjectMessage::Stale {
            slot: read_slot(stale.slot)?,
            epoch: read_epoch(stale.epoch)?,
            fence: read_epoch(stale.fence)?,
        },
        Body::Confirm(confirm) => ObjectMessage::Confirm {
            round: confirm.round,
            slots: read_epochs(&confirm.slots, &confirm.epochs)?,
        },
        Body::Confirmed(confirmed) => ObjectMessage::Confirmed {
            round: confirmed.round,
            stale: read_epochs(&confirmed.slots, &confirmed.fences)?,
        },
        Body::Summarize(summarize) => ObjectMessage::Summarize {
            round: summarize.round,
            slots: summarize.slots.into_iter().map(read_slot).collect::<Result<_, _>>()?,
        },
        Body::Summaries(summaries) => {
            let read = |slot: wire::summaries::Slot| {
                Ok((read_slot(slot.slot)?, read_epoch(slot.fence)?, read_summary(slot.summary)?))
            };
            let slots = summaries.slots.into_iter().map(read).collect::<Result<_, CodecError>>()?;
            ObjectMessage::Summaries { round: summaries.round, slots }
        }
        Body::Compare(compare) => ObjectMessage::Compare {
            slot: read_slot(compare.slot)?,
            round: compare.round,
            after: compare.after.as_deref().map(read_name).transpose()?,
            upto: compare.upto.as_deref().map(read_name).transpose()?,
            ranks: compare
                .ranks
                .into_iter()
                .map(|named| Ok((read_name(&named.name)?, read_rank(named.rank)?)))
                .collect::<Result<_, CodecError>>()?,
        },
        Body::Compared(compared) => ObjectMessage::Compared {
            slot: read_slot(compared.slot)?,
            round: compared.round,
            fence: read_epoch(compared.fence)?,
            is_learned: compared.is_learned,
            newer: compared
                .newer
                .into_iter()
                .map(|named| {
                    let head = named.head.ok_or(CodecError::Missing("head"))?;
                    Ok((read_name(&named.name)?, read_head(head)?))
                })
                .collect::<Result<_, CodecError>>()?,
            behind: compared.behind.iter().map(|name| read_name(name)).collect::<Result<_, _>>()?,
            covered: compared.covered.as_deref().map(read_name).transpose()?,
        },
        Body::Forget(forget) => ObjectMessage::Forget {
            slot: read_slot(forget.slot)?,
            epoch: read_epoch(forget.epoch)?,
            entries: forget
                .tombstones
                .into_iter()
                .map(|tombstone| Ok((read_name(&tombstone.name)?, read_tag(tombstone.tag)?)))
                .collect::<Result<_, CodecError>>()?,
        },
    };
    Ok(Heard::Message(message))
}

pub(crate) fn write_name(name: &EntryName) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

pub(crate) fn read_name(bytes: &[u8]) -> Result<EntryName, CodecError> {
    EntryName::from_bytes(bytes).map_err(|error| malformed("name", error.to_string()))
}

pub(crate) fn write_tag(tag: Tag) -> wire::Generation {
    wire::Generation { epoch: tag.epoch.get(), sequence: tag.sequence }
}

pub(crate) fn read_tag(tag: Option<wire::Generation>) -> Result<Tag, CodecError> {
    let tag = tag.ok_or(CodecError::Missing("tag"))?;
    Ok(Tag { epoch: read_epoch(tag.epoch)?, sequence: tag.sequence })
}

pub(crate) fn write_head(head: EntryHead) -> wire::EntryHead {
    wire::EntryHead {
        tag: Some(write_tag(head.tag)),
        accepted: head.accepted.get(),
        is_deleted: head.is_deleted,
        etag: head.etag.as_ref().to_owned(),
        content: head.content,
    }
}

pub(crate) fn read_head(head: wire::EntryHead) -> Result<EntryHead, CodecError> {
    if head.etag.len() > ETAG_BYTES_MAX || head.content.len() > CONTENT_BYTES_MAX {
        return Err(malformed(
            "head",
            format!("{} bytes are too many", head.etag.len() + head.content.len()),
        ));
    }
    Ok(EntryHead {
        tag: read_tag(head.tag)?,
        accepted: read_epoch(head.accepted)?,
        is_deleted: head.is_deleted,
        etag: head.etag.into(),
        content: head.content,
    })
}

pub(crate) fn write_condition(condition: &Condition) -> Option<wire::Condition> {
    use wire::condition::{Etags, Kind};
    let list = |etags: &[Arc<str>]| Etags { etags: etags.iter().map(|etag| etag.as_ref().into()).collect() };
    let kind = match condition {
        Condition::Any => return None,
        Condition::Absent => Kind::Absent(true),
        Condition::Present => Kind::Present(true),
        Condition::EtagIn(etags) => Kind::EtagIn(list(etags)),
        Condition::EtagNotIn(etags) => Kind::EtagNotIn(list(etags)),
        Condition::TagIs(tag) => Kind::TagIs(write_tag(*tag)),
        Condition::Never => Kind::Never(true),
    };
    Some(wire::Condition { kind: Some(kind) })
}

pub(crate) fn read_condition(condition: Option<wire::Condition>) -> Result<Condition, CodecError> {
    use wire::condition::Kind;
    let Some(condition) = condition else { return Ok(Condition::Any) };
    Ok(match condition.kind.ok_or(CodecError::Missing("the kind of a condition"))? {
        Kind::Absent(_) => Condition::Absent,
        Kind::Present(_) => Condition::Present,
        Kind::EtagIn(list) => Condition::EtagIn(list.etags.into_iter().map(Arc::from).collect()),
        Kind::EtagNotIn(list) => Condition::EtagNotIn(list.etags.into_iter().map(Arc::from).collect()),
        Kind::TagIs(tag) => Condition::TagIs(read_tag(Some(tag))?),
        Kind::Never(_) => Condition::Never,
    })
}

pub(crate) fn write_part_id(id: PartId) -> Bytes {
    Bytes::copy_from_slice(&id.0.to_be_bytes())
}

pub(crate) fn read_part_id(bytes: &[u8]) -> Result<PartId, CodecError> {
    let bytes: [u8; 16] =
        bytes.try_into().map_err(|_| malformed("part", format!("{} bytes instead of 16", bytes.len())))?;
    Ok(PartId(u128::from_be_bytes(bytes)))
}

pub(crate) fn malformed(field: &'static str, reason: String) -> CodecError {
    CodecError::Malformed { field, reason }
}

fn write_epochs(slots: Vec<(SlotId, SlotEpoch)>) -> (Vec<u32>, Vec<u64>) {
    slots.into_iter().map(|(slot, epoch)| (u32::from(slot.get()), epoch.get())).unzip()
}

/// Epochs may be zero here: that is how a replica says that it has no memory of a slot.
fn read_epochs(slots: &[u32], epochs: &[u64]) -> Result<Vec<(SlotId, SlotEpoch)>, CodecError> {
    if slots.len() != epochs.len() {
        return Err(malformed("epochs", format!("{} of them for {} slots", epochs.len(), slots.len())));
    }
    slots.iter().zip(epochs).map(|(slot, epoch)| Ok((read_slot(*slot)?, read_epoch(*epoch)?))).collect()
}

fn write_rank(rank: HeadRank) -> wire::Rank {
    wire::Rank { tag: Some(write_tag(rank.tag)), accepted: rank.accepted.get() }
}

fn read_rank(rank: Option<wire::Rank>) -> Result<HeadRank, CodecError> {
    let rank = rank.ok_or(CodecError::Missing("rank"))?;
    Ok(HeadRank { accepted: read_epoch(rank.accepted)?, tag: read_tag(rank.tag)? })
}

fn write_named_rank((name, rank): (EntryName, HeadRank)) -> wire::NamedRank {
    wire::NamedRank { name: write_name(&name), rank: Some(write_rank(rank)) }
}

fn write_summary(summary: SlotSummary) -> wire::Summary {
    wire::Summary { digest: Bytes::copy_from_slice(&summary.digest.to_le_bytes()), count: summary.count }
}

fn read_summary(summary: Option<wire::Summary>) -> Result<SlotSummary, CodecError> {
    let summary = summary.ok_or(CodecError::Missing("summary"))?;
    let digest: [u8; 16] = summary
        .digest
        .as_ref()
        .try_into()
        .map_err(|_| malformed("digest", format!("{} bytes instead of 16", summary.digest.len())))?;
    Ok(SlotSummary { digest: u128::from_le_bytes(digest), count: summary.count })
}

fn write_fenced(fenced: Fenced) -> wire::fenced::Done {
    wire::fenced::Done {
        slot: fenced.slot.get().into(),
        epoch: fenced.epoch.get(),
        summary: Some(write_summary(fenced.summary)),
    }
}

fn read_fenced(done: wire::fenced::Done) -> Result<Fenced, CodecError> {
    let summary = read_summary(done.summary)?;
    Ok(Fenced { slot: read_slot(done.slot)?, epoch: read_epoch(done.epoch)?, summary })
}

fn write_refusal(refusal: FenceRefusal) -> wire::fenced::Refused {
    wire::fenced::Refused {
        slot: refusal.slot.get().into(),
        asked: refusal.asked.get(),
        fence: refusal.fence.map(SlotEpoch::get),
    }
}

fn read_refusal(refused: wire::fenced::Refused) -> Result<FenceRefusal, CodecError> {
    let fence = refused.fence.map(read_epoch).transpose()?;
    Ok(FenceRefusal { slot: read_slot(refused.slot)?, asked: read_epoch(refused.asked)?, fence })
}

/// Longest `ETag` in bytes.
const ETAG_BYTES_MAX: usize = 256;
/// Longest content of a head in bytes: that of an object of 5 TiB in parts of 64 MiB fits.
pub(crate) const CONTENT_BYTES_MAX: usize = 8 << 20;
