//! What a grain's last host sends to the next, written and read: for those who try to break it from outside.

use synod_core::grains::RelocationRecord;

use super::handover::HandoverMessage;
use crate::remote::Message;

/// The message that carries `record`.
#[must_use]
pub fn write_relocation(record: &RelocationRecord) -> Message {
    HandoverMessage::Relocation(record.clone()).write()
}

/// The record in `message`, if it is one that a grain can begin from.
#[must_use]
pub fn read_relocation(message: &Message) -> Option<RelocationRecord> {
    match HandoverMessage::read(message)? {
        Ok(HandoverMessage::Relocation(record)) => Some(record),
        _ => None,
    }
}
