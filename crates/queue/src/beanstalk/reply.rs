//! What a client is told, as it is written.

use bytes::{Bytes, BytesMut};
use synod_core::jobs::{JobId, QueueName, Refusal};

use super::command::Wrong;
use crate::access::CallError;

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Inserted(JobId),
    Using(QueueName),
    Reserved {
        job: JobId,
        body: Bytes,
    },
    Found {
        job: JobId,
        body: Bytes,
    },
    Watching(usize),
    Kicked(u32),
    Yaml(String),
    /// One that is always the same.
    Word(&'static str),
}

impl Reply {
    pub(crate) const DEADLINE_SOON: Self = Self::Word("DEADLINE_SOON");
    pub(crate) const DELETED: Self = Self::Word("DELETED");
    pub(crate) const INTERNAL_ERROR: Self = Self::Word("INTERNAL_ERROR");
    pub(crate) const NOT_FOUND: Self = Self::Word("NOT_FOUND");
    pub(crate) const OUT_OF_MEMORY: Self = Self::Word("OUT_OF_MEMORY");
    pub(crate) const TIMED_OUT: Self = Self::Word("TIMED_OUT");

    pub(crate) fn write(&self, output: &mut BytesMut) {
        let line = match self {
            Self::Inserted(job) => format!("INSERTED {job}\r\n"),
            Self::Using(tube) => format!("USING {tube}\r\n"),
            Self::Reserved { job, body } => format!("RESERVED {job} {}\r\n", body.len()),
            Self::Found { job, body } => format!("FOUND {job} {}\r\n", body.len()),
            Self::Watching(count) => format!("WATCHING {count}\r\n"),
            Self::Kicked(count) => format!("KICKED {count}\r\n"),
            Self::Yaml(yaml) => format!("OK {}\r\n{yaml}\r\n", yaml.len()),
            Self::Word(word) => format!("{word}\r\n"),
        };
        output.extend_from_slice(line.as_bytes());
        if let Self::Reserved { body, .. } | Self::Found { body, .. } = self {
            output.extend_from_slice(body);
            output.extend_from_slice(b"\r\n");
        }
    }
}

impl From<Wrong> for Reply {
    fn from(wrong: Wrong) -> Self {
        Self::Word(match wrong {
            Wrong::BadFormat => "BAD_FORMAT",
            Wrong::UnknownCommand => "UNKNOWN_COMMAND",
            Wrong::ExpectedCrlf => "EXPECTED_CRLF",
            Wrong::JobTooBig => "JOB_TOO_BIG",
        })
    }
}

/// Why something was not done, in the few words that the protocol has for it.
impl From<CallError> for Reply {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(refusal) => match refusal {
                Refusal::JobUnknown
                | Refusal::LeaseLost
                | Refusal::JobHeld
                | Refusal::NothingToKick
                | Refusal::GroupHeld
                | Refusal::QueueUnknown => Self::NOT_FOUND,
                Refusal::BodyTooLong => Wrong::JobTooBig.into(),
                Refusal::Draining => Self::Word("DRAINING"),
                Refusal::TooManyGateways
                | Refusal::TooManySessions
                | Refusal::TooManyQueues
                | Refusal::TooManyClients
                | Refusal::TooManyDedupeKeys
                | Refusal::Full
                | Refusal::QueueFull
                | Refusal::ClientOverCap
                | Refusal::WorkerOverCap => Self::OUT_OF_MEMORY,
                _ => Self::INTERNAL_ERROR,
            },
            CallError::Busy => Self::OUT_OF_MEMORY,
            CallError::NoLeader
            | CallError::GroupUnknown { .. }
            | CallError::Closed
            | CallError::Nonsense(_) => Self::INTERNAL_ERROR,
        }
    }
}
