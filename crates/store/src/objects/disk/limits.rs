//! What a disk takes, and how much of it at a time.

use synod_core::objects::{EntryHead, EntryName, ObjectMessage};

use super::error::DiskError;
use crate::objects::content::{BRIEF_BYTES_MAX, Content};

/// A head that cannot be kept is refused before anything is.
pub(super) fn check_head(name: &EntryName, head: &EntryHead) -> Result<(), DiskError> {
    let refused = |what: &str| Err(DiskError::Refused { reason: format!("the head of {name}: {what}") });
    if head.etag.len() > ETAG_BYTES_MAX {
        return refused("its ETag is too long");
    }
    if head.content.len() > CONTENT_BYTES_MAX {
        return refused("its content is too long");
    }
    match Content::from_bytes(head.content.clone()) {
        Err(_) => refused("its content cannot be read"),
        Ok(content) if content.brief.len() > BRIEF_BYTES_MAX => refused("what is listed of it is too long"),
        Ok(_) => Ok(()),
    }
}

/// About how much memory a message takes while it waits.
pub(super) fn message_bytes(message: &ObjectMessage) -> usize {
    let of_head = |name: &EntryName, head: &EntryHead| name.as_bytes().len() + head.content.len();
    let more = match message {
        ObjectMessage::Store { name, head, .. } => of_head(name, head),
        ObjectMessage::Adopt { heads, .. } => heads.iter().map(|(name, head)| of_head(name, head)).sum(),
        ObjectMessage::Compare { ranks, .. } => {
            ranks.iter().map(|(name, _)| name.as_bytes().len() + 32).sum()
        }
        ObjectMessage::Forget { entries, .. } => {
            entries.iter().map(|(name, _)| name.as_bytes().len() + 32).sum()
        }
        ObjectMessage::Fence { slots } => slots.len() * 16,
        _ => 0,
    };
    SMALL_JOB_BYTES + more
}

/// Longest `ETag` of an entry.
const ETAG_BYTES_MAX: usize = 1024;
/// Longest content of a head: that of the largest object, with more than 80000 parts.
const CONTENT_BYTES_MAX: usize = 8 << 20;
/// About how much memory a job takes that carries no heads.
pub(super) const SMALL_JOB_BYTES: usize = 256;
