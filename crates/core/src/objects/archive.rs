//! What a cluster knows of the copy of an object in its archive, and what is to be done about it next.
//!
//! The archive is a bucket elsewhere. Nothing there can be fenced: a request that somebody gave up may still take effect. So
//! what counts is written down here, in a record beside the object, under conditions: before a copy is changed, and after.
//!
//! ```text
//!   (no record) ──► uploading ──► archived ──► uploading (overwritten) ──► …
//!                       │             │
//!                       └─ deleted ───┴──► deleting ──► deleted ──(grace)──► (no record)
//! ```
//!
//! Two rules follow. An object that is not here and has *no* record was never here, so that a copy in the archive may be
//! taken for it; with a record it is deleted, whatever the archive has. And whoever changes a copy while the record says that
//! another is about to leaves the record *contested*: after the grace, when no request of the other can be under way any
//! more, somebody looks whether the copy is what it should be.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use core::str::FromStr;

use crate::slots::{SlotEpoch, Tag};

/// What is known of the copy of an object. As text it is `state numbers…`, which is how it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveRecord {
    /// A copy of this generation is being written.
    Uploading {
        /// The generation.
        of: Tag,
        /// The upload in parts, if it is one and has begun. Whoever comes later goes on with it, or ends it.
        upload: Option<String>,
    },
    /// The archive has it.
    Archived {
        /// The generation.
        of: Tag,
        /// What the copy says its generation is: another one if the object was restored from it.
        copy: Tag,
        /// Since when the copy has to be looked at once more, in milliseconds of the wall clock.
        contested_ms: Option<u64>,
    },
    /// The object is deleted, and the copy has yet to be.
    Deleting {
        /// Since when, in milliseconds of the wall clock.
        since_ms: u64,
    },
    /// Both are deleted. The record is kept as long as a late request might bring the copy back.
    Deleted {
        /// Since when, in milliseconds of the wall clock.
        since_ms: u64,
    },
}

/// What to do next for one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveStep {
    /// Nothing, or not yet.
    Nothing,
    /// Write a copy of what is there.
    Upload {
        /// Requests of somebody else may be under way.
        is_contested: bool,
        /// An upload of something else that was left behind: end it first.
        abandoned: Option<String>,
    },
    /// Go on with an upload in parts of what is there, that somebody left behind.
    Resume {
        /// The upload.
        upload: String,
    },
    /// See whether the copy is what the record says.
    Verify {
        /// What the copy has to say of itself.
        copy: Tag,
    },
    /// Write down that the copy has to go.
    MarkDeleting {
        /// An upload that was left behind: end it first.
        abandoned: Option<String>,
    },
    /// Delete the copy, and write that down.
    DeleteCopy,
    /// Delete the copy again, in case that it came back, and the record.
    Forget,
}

impl ArchiveRecord {
    /// What to do next for an object whose generation is `object`, if it is there.
    #[must_use]
    pub fn next_step(record: Option<&Self>, object: Option<Tag>, now_ms: u64, grace_ms: u64) -> ArchiveStep {
        let is_over = |since_ms: u64| now_ms >= since_ms.saturating_add(grace_ms);
        match (object, record) {
            (None, None) => ArchiveStep::Nothing,
            (None, Some(Self::Deleting { .. })) => ArchiveStep::DeleteCopy,
            (None, Some(Self::Deleted { since_ms })) if is_over(*since_ms) => ArchiveStep::Forget,
            (None, Some(Self::Deleted { .. })) => ArchiveStep::Nothing,
            (None, Some(Self::Archived { .. })) => ArchiveStep::MarkDeleting { abandoned: None },
            (None, Some(Self::Uploading { upload, .. })) => {
                ArchiveStep::MarkDeleting { abandoned: upload.clone() }
            }
            (Some(object), Some(Self::Archived { of, copy, contested_ms })) if *of == object => {
                match contested_ms {
                    Some(since_ms) if is_over(*since_ms) => ArchiveStep::Verify { copy: *copy },
                    _ => ArchiveStep::Nothing,
                }
            }
            (Some(_), None | Some(Self::Archived { contested_ms: None, .. })) => {
                ArchiveStep::Upload { is_contested: false, abandoned: None }
            }
            // Every part of it is a part of this very generation, whoever sent it.
            (Some(object), Some(Self::Uploading { of, upload: Some(upload) })) if *of == object => {
                ArchiveStep::Resume { upload: upload.clone() }
            }
            (Some(_), Some(Self::Uploading { upload, .. })) => {
                ArchiveStep::Upload { is_contested: true, abandoned: upload.clone() }
            }
            // A deletion that is told has been answered, but an earlier one may have been given up.
            (Some(_), Some(_)) => ArchiveStep::Upload { is_contested: true, abandoned: None },
        }
    }

    /// The record as it is stored.
    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Self::Uploading { of, upload: None } => format!("uploading {of}"),
            Self::Uploading { of, upload: Some(upload) } => format!("uploading {of} {upload}"),
            Self::Archived { of, copy, contested_ms: None } => format!("archived {of} {copy}"),
            Self::Archived { of, copy, contested_ms: Some(since_ms) } => {
                format!("archived {of} {copy} {since_ms}")
            }
            Self::Deleting { since_ms } => format!("deleting {since_ms}"),
            Self::Deleted { since_ms } => format!("deleted {since_ms}"),
        }
    }
}

impl FromStr for ArchiveRecord {
    type Err = ArchiveRecordError;

    fn from_str(text: &str) -> Result<Self, ArchiveRecordError> {
        let mut words = text.split(' ');
        let state = words.next().unwrap_or_default();
        let mut word = || words.next().ok_or(ArchiveRecordError);
        let record = match state {
            "uploading" => Self::Uploading {
                of: parse_generation(word()?)?,
                upload: words.next().map(ToOwned::to_owned),
            },
            "archived" => Self::Archived {
                of: parse_generation(word()?)?,
                copy: parse_generation(word()?)?,
                contested_ms: words.next().map(number).transpose()?,
            },
            "deleting" => Self::Deleting { since_ms: number(word()?)? },
            "deleted" => Self::Deleted { since_ms: number(word()?)? },
            _ => return Err(ArchiveRecordError),
        };
        match words.next() {
            None => Ok(record),
            Some(_) => Err(ArchiveRecordError),
        }
    }
}

/// Reads a generation, `epoch.sequence`.
///
/// # Errors
/// The text is something else.
pub fn parse_generation(text: &str) -> Result<Tag, ArchiveRecordError> {
    let (epoch, sequence) = text.split_once('.').ok_or(ArchiveRecordError)?;
    Ok(Tag { epoch: SlotEpoch::new(number(epoch)?), sequence: number(sequence)? })
}

fn number(text: &str) -> Result<u64, ArchiveRecordError> {
    text.parse().map_err(|_| ArchiveRecordError)
}

/// Something is not a record of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not the record of a copy in an archive")]
pub struct ArchiveRecordError;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    const GRACE: u64 = 1000;

    fn tag(epoch: u64, sequence: u64) -> Tag {
        Tag { epoch: SlotEpoch::new(epoch), sequence }
    }

    fn archived(of: Tag) -> ArchiveRecord {
        ArchiveRecord::Archived { of, copy: of, contested_ms: None }
    }

    fn step(object: Option<Tag>, record: Option<&ArchiveRecord>, now_ms: u64) -> ArchiveStep {
        ArchiveRecord::next_step(record, object, now_ms, GRACE)
    }

    #[test]
    fn every_record_is_read_as_it_was_written_and_nothing_else_is() {
        let (of, upload) = (tag(3, 17), Some("2~aB-c_".to_string()));
        let records = [
            ArchiveRecord::Uploading { of, upload: None },
            ArchiveRecord::Uploading { of, upload },
            archived(of),
            ArchiveRecord::Archived { of, copy: tag(0, 0), contested_ms: Some(5) },
            ArchiveRecord::Deleting { since_ms: 6 },
            ArchiveRecord::Deleted { since_ms: 7 },
        ];
        for record in records {
            assert_eq!(record.to_text().parse(), Ok(record));
        }
        for text in
            ["", "archived", "archived 1.2", "archived 1 2", "deleted x", "uploading 1.2 a b", "gone 1"]
        {
            assert_eq!(text.parse::<ArchiveRecord>(), Err(ArchiveRecordError), "{text}");
        }
    }

    #[test]
    fn what_is_not_archived_is_uploaded_and_what_is_stays() {
        let plain = ArchiveStep::Upload { is_contested: false, abandoned: None };
        assert_eq!(step(Some(tag(1, 2)), None, 0), plain);
        assert_eq!(step(Some(tag(1, 2)), Some(&archived(tag(1, 1))), 0), plain);
        assert_eq!(step(Some(tag(1, 2)), Some(&archived(tag(1, 2))), 0), ArchiveStep::Nothing);
        // The generation of a new epoch is another one, even when its sequence is lower.
        assert_eq!(step(Some(tag(2, 1)), Some(&archived(tag(1, 2))), 0), plain);
    }

    #[test]
    fn whoever_follows_another_goes_on_with_its_upload_or_ends_it_and_looks_again_later() {
        let left = ArchiveRecord::Uploading { of: tag(1, 1), upload: Some("u".to_string()) };
        let follow = ArchiveStep::Upload { is_contested: true, abandoned: Some("u".to_string()) };
        assert_eq!(step(Some(tag(1, 2)), Some(&left), 0), follow);
        let resume = ArchiveStep::Resume { upload: "u".to_string() };
        assert_eq!(step(Some(tag(1, 1)), Some(&left), 0), resume);
        let begun = ArchiveRecord::Uploading { of: tag(1, 1), upload: None };
        let again = ArchiveStep::Upload { is_contested: true, abandoned: None };
        assert_eq!(step(Some(tag(1, 1)), Some(&begun), 0), again);
        assert_eq!(
            step(None, Some(&left), 0),
            ArchiveStep::MarkDeleting { abandoned: Some("u".to_string()) }
        );
        let contested = ArchiveRecord::Archived { of: tag(2, 2), copy: tag(2, 2), contested_ms: Some(500) };
        assert_eq!(step(Some(tag(2, 2)), Some(&contested), 1499), ArchiveStep::Nothing);
        assert_eq!(step(Some(tag(2, 2)), Some(&contested), 1500), ArchiveStep::Verify { copy: tag(2, 2) });
        // Nobody may forget that it was, when the object is overwritten before anybody looked.
        assert_eq!(step(Some(tag(2, 3)), Some(&contested), 600), again);
    }

    #[test]
    fn a_deletion_goes_on_to_its_end_and_is_remembered_for_the_grace() {
        assert_eq!(step(None, None, 0), ArchiveStep::Nothing);
        let mark = ArchiveStep::MarkDeleting { abandoned: None };
        assert_eq!(step(None, Some(&archived(tag(1, 1))), 0), mark);
        assert_eq!(step(None, Some(&ArchiveRecord::Deleting { since_ms: 9 }), 0), ArchiveStep::DeleteCopy);
        let deleted = ArchiveRecord::Deleted { since_ms: 100 };
        assert_eq!(step(None, Some(&deleted), 1099), ArchiveStep::Nothing);
        assert_eq!(step(None, Some(&deleted), 1100), ArchiveStep::Forget);
        // Written again meanwhile: a late deletion may still hit the new copy.
        let again = ArchiveStep::Upload { is_contested: true, abandoned: None };
        assert_eq!(step(Some(tag(1, 3)), Some(&deleted), 200), again);
        assert_eq!(step(Some(tag(1, 3)), Some(&ArchiveRecord::Deleting { since_ms: 9 }), 200), again);
    }
}
