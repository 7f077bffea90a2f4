//! One replica: what it does with a message, over whatever table keeps its entries.
//!
//! Everything that keeps entries safe is here: two comparisons with the fence of a slot, and one between the ranks of two
//! heads. A driver runs [`handle_message`] inside a transaction and sends the answer after that is durable; so does the
//! simulator, on disks that forget.

use alloc::vec::Vec;

use super::head::{EntryHead, SlotSummary};
use super::message::{FenceRefusal, Fenced, ObjectMessage};
use super::name::EntryName;
use crate::slots::{HeadRank, SlotEpoch, SlotId};

/// What a replica remembers of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotFence {
    /// Nothing of an earlier epoch is taken.
    pub fence: SlotEpoch,
    /// Whether there is a memory of the slot. Without one, the disk is new or was lost: an earlier life may have fenced and
    /// stored what this one does not know, so it takes no part until it has heard all other replicas.
    pub is_learned: bool,
}

impl SlotFence {
    /// Raises the fence to `epoch`, if it may.
    ///
    /// # Errors
    /// Why not: the later epoch that is fenced, or `None` for a slot without a memory. Nothing was changed.
    pub fn raise(&mut self, epoch: SlotEpoch) -> Result<(), Option<SlotEpoch>> {
        if !self.is_learned {
            return Err(None);
        }
        if epoch < self.fence {
            return Err(Some(self.fence));
        }
        self.fence = epoch;
        Ok(())
    }
}

/// What a replica needs of its disk. All calls for one message happen in one transaction.
pub trait EntryTable {
    /// Why the disk failed.
    type Error;

    /// What is remembered of a slot.
    fn fence(&mut self, slot: SlotId) -> Result<SlotFence, Self::Error>;
    /// Remembers something else of a slot.
    fn set_fence(&mut self, slot: SlotId, fence: SlotFence) -> Result<(), Self::Error>;
    /// What is stored of a slot, in brief.
    fn summary(&mut self, slot: SlotId) -> Result<SlotSummary, Self::Error>;
    /// The rank of an entry.
    fn rank(&mut self, slot: SlotId, name: &EntryName) -> Result<Option<HeadRank>, Self::Error>;
    /// The head of an entry.
    fn head(&mut self, slot: SlotId, name: &EntryName) -> Result<Option<EntryHead>, Self::Error>;
    /// Entries of a slot in order: those after `after`, up to and with `upto`, at most `limit` of them.
    fn ranks(
        &mut self,
        slot: SlotId,
        after: Option<&EntryName>,
        upto: Option<&EntryName>,
        limit: usize,
    ) -> Result<Vec<(EntryName, HeadRank)>, Self::Error>;
    /// Keeps a head in place of what is there.
    fn put(&mut self, slot: SlotId, name: &EntryName, head: &EntryHead) -> Result<(), Self::Error>;
    /// Removes an entry.
    fn remove(&mut self, slot: SlotId, name: &EntryName) -> Result<(), Self::Error>;
    /// Whether all parts that a head names are here.
    fn has_parts(&mut self, head: &EntryHead) -> Result<bool, Self::Error>;
}

/// Does what a message asks of a replica, and says what to answer once that is durable. Answers to a primary are not for a
/// replica and give nothing.
///
/// # Errors
/// The disk failed. Nothing may be told, and nothing was changed if the transaction is given up.
pub fn handle_message<T: EntryTable>(
    table: &mut T,
    message: &ObjectMessage,
) -> Result<Option<ObjectMessage>, T::Error> {
    Ok(match message {
        ObjectMessage::Fence { slots } => Some(fence(table, slots)?),
        ObjectMessage::Store { slot, epoch, name, head } => Some(store(table, *slot, *epoch, name, head)?),
        ObjectMessage::Confirm { round, slots } => Some(confirm(*round, slots, |slot| table.fence(slot))?),
        ObjectMessage::Summarize { round, slots } => {
            let known = |slot| Ok((table.fence(slot)?, table.summary(slot)?));
            Some(summarize(*round, slots, known)?)
        }
        ObjectMessage::Compare { slot, round, after, upto, ranks } => {
            Some(compare(table, *slot, *round, after.as_ref(), upto.as_ref(), ranks)?)
        }
        ObjectMessage::Adopt { slot, round, heads, learned } => {
            for (name, head) in heads {
                if table.rank(*slot, name)? < Some(head.rank()) {
                    table.put(*slot, name, head)?;
                }
            }
            if let Some(fence) = learned {
                let known = table.fence(*slot)?;
                table.set_fence(*slot, SlotFence { fence: known.fence.max(*fence), is_learned: true })?;
            }
            Some(ObjectMessage::Adopted { slot: *slot, round: *round })
        }
        ObjectMessage::Forget { slot, epoch, entries } => {
            let mut known = table.fence(*slot)?;
            if known.raise(*epoch).is_ok() {
                for (name, tag) in entries {
                    let stored = table.head(*slot, name)?;
                    if stored.is_some_and(|head| head.is_deleted && head.tag == *tag) {
                        table.remove(*slot, name)?;
                    }
                }
            }
            None
        }
        ObjectMessage::Fenced { .. }
        | ObjectMessage::Stored { .. }
        | ObjectMessage::Stale { .. }
        | ObjectMessage::Confirmed { .. }
        | ObjectMessage::Summaries { .. }
        | ObjectMessage::Compared { .. }
        | ObjectMessage::Adopted { .. } => None,
    })
}

/// Answers [`ObjectMessage::Confirm`]. It needs no transaction: a driver that keeps the fences in memory, raised there
/// before a fence is told, asks that.
///
/// # Errors
/// What `fence` says.
pub fn confirm<E>(
    round: u64,
    slots: &[(SlotId, SlotEpoch)],
    mut fence: impl FnMut(SlotId) -> Result<SlotFence, E>,
) -> Result<ObjectMessage, E> {
    let mut stale = Vec::new();
    for (slot, epoch) in slots {
        let known = fence(*slot)?;
        if !known.is_learned {
            stale.push((*slot, SlotEpoch::ZERO));
        } else if known.fence > *epoch {
            stale.push((*slot, known.fence));
        }
    }
    Ok(ObjectMessage::Confirmed { round, stale })
}

/// Answers [`ObjectMessage::Summarize`], likewise.
///
/// # Errors
/// What `known` says.
pub fn summarize<E>(
    round: u64,
    slots: &[SlotId],
    mut known: impl FnMut(SlotId) -> Result<(SlotFence, SlotSummary), E>,
) -> Result<ObjectMessage, E> {
    let mut told = Vec::with_capacity(slots.len());
    for slot in slots {
        let (fence, summary) = known(*slot)?;
        if fence.is_learned {
            told.push((*slot, fence.fence, summary));
        }
    }
    Ok(ObjectMessage::Summaries { round, slots: told })
}

fn fence<T: EntryTable>(table: &mut T, slots: &[(SlotId, SlotEpoch)]) -> Result<ObjectMessage, T::Error> {
    let (mut fenced, mut refused) = (Vec::new(), Vec::new());
    for (slot, epoch) in slots {
        let before = table.fence(*slot)?;
        let mut known = before;
        match known.raise(*epoch) {
            Ok(()) => {
                if known != before {
                    table.set_fence(*slot, known)?;
                }
                fenced.push(Fenced { slot: *slot, epoch: *epoch, summary: table.summary(*slot)? });
            }
            Err(fence) => refused.push(FenceRefusal { slot: *slot, asked: *epoch, fence }),
        }
    }
    Ok(ObjectMessage::Fenced { fenced, refused })
}

fn store<T: EntryTable>(
    table: &mut T,
    slot: SlotId,
    epoch: SlotEpoch,
    name: &EntryName,
    head: &EntryHead,
) -> Result<ObjectMessage, T::Error> {
    let before = table.fence(slot)?;
    let mut known = before;
    match known.raise(epoch) {
        Err(Some(fence)) => return Ok(ObjectMessage::Stale { slot, epoch, fence }),
        // Zero: not refused for good. A primary asks again, and meanwhile others may make the majority.
        Err(None) => return Ok(ObjectMessage::Stale { slot, epoch, fence: SlotEpoch::ZERO }),
        Ok(()) => {}
    }
    if known != before {
        table.set_fence(slot, known)?;
    }
    if table.rank(slot, name)? < Some(head.rank()) {
        table.put(slot, name, head)?;
    }
    let is_complete = table.has_parts(head)?;
    Ok(ObjectMessage::Stored { slot, epoch, name: name.clone(), rank: head.rank(), is_complete })
}

fn compare<T: EntryTable>(
    table: &mut T,
    slot: SlotId,
    round: u64,
    after: Option<&EntryName>,
    upto: Option<&EntryName>,
    theirs: &[(EntryName, HeadRank)],
) -> Result<ObjectMessage, T::Error> {
    let SlotFence { fence, is_learned } = table.fence(slot)?;
    let own = table.ranks(slot, after, upto, COMPARED_MAX)?;
    // What was cut off by the limit is for the next question.
    let mut covered = if own.len() == COMPARED_MAX { own.last().map(|(name, _)| name.clone()) } else { None };
    let (mut newer, mut behind) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    let mut mine = own.into_iter().peekable();
    let mut others =
        theirs.iter().filter(|(name, _)| covered.as_ref().is_none_or(|end| name <= end)).peekable();
    loop {
        let next = match (mine.peek(), others.peek()) {
            (None, None) => break,
            (Some((name, _)), None) => name.clone(),
            (None, Some((name, _))) => name.clone(),
            (Some((name, _)), Some((other, _))) => name.min(other).clone(),
        };
        let rank = mine.next_if(|(name, _)| *name == next).map(|(_, rank)| rank);
        let other = others.next_if(|(name, _)| *name == next).map(|(_, rank)| *rank);
        if rank > other {
            if let Some(head) = table.head(slot, &next)? {
                bytes += head.content.len() + next.as_bytes().len();
                newer.push((next.clone(), head));
            }
            if bytes >= COMPARED_BYTES_MAX {
                covered = Some(next);
                break;
            }
        } else if rank < other {
            behind.push(next);
        }
    }
    Ok(ObjectMessage::Compared { slot, round, fence, is_learned, newer, behind, covered })
}

/// How many entries one question compares at most.
pub(super) const COMPARED_MAX: usize = 1024;
/// After so many bytes of heads an answer ends.
const COMPARED_BYTES_MAX: usize = 1 << 20;
