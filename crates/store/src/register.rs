//! Requests to the register of a slot, done here or passed on to its primary.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use synod_core::NodeId;
use synod_core::slots::{Answer, ClusterId, RequestError, Route, SlotEpoch, SlotId, Tag};
use synod_wire::slots as wire;
use wire::register_reply::{Failure, Maybe, Outcome};
use wire::register_request::{Expected, Operation as WireOperation, Read, Write};

use crate::codec::{self, CodecError, read_head, read_slot, read_tag, write_head, write_tag};
use crate::registry::RegistryClosed;

/// What is asked of a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterOperation {
    /// What is there.
    Read,
    /// Writes a value.
    Write {
        /// The value.
        value: Arc<[u8]>,
        /// What must be there: anything without it, nothing for `Some(None)`.
        expected: Option<Option<Tag>>,
    },
}

/// A request to a register was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The registry refused or failed it.
    #[error(transparent)]
    Refused(#[from] RequestError),
    /// The primary could not be reached in time. Nothing was written.
    #[error("the primary {primary} of slot {slot} could not be reached: {reason}")]
    Unreachable {
        /// The slot.
        slot: SlotId,
        /// Who is its primary, as far as this node knows.
        primary: NodeId,
        /// What went wrong.
        reason: String,
    },
    /// The registry of this node is closed.
    #[error(transparent)]
    Closed(#[from] RegistryClosed),
}

/// How an answer is given: what was found or done, or why not.
pub type RegisterAnswer = Result<Answer, RegisterError>;

pub(crate) fn write_request(
    cluster: ClusterId,
    slot: SlotId,
    operation: &RegisterOperation,
    patience: Duration,
) -> wire::RegisterRequest {
    let operation = match operation {
        RegisterOperation::Read => WireOperation::Read(Read {}),
        RegisterOperation::Write { value, expected } => WireOperation::Write(Write {
            value: Bytes::copy_from_slice(value),
            expected: expected.map(|tag| Expected { tag: tag.map(write_tag) }),
        }),
    };
    wire::RegisterRequest {
        cluster: codec::cluster_bytes(cluster),
        slot: slot.get().into(),
        patience_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
        operation: Some(operation),
    }
}

pub(crate) fn read_request(
    request: wire::RegisterRequest,
) -> Result<(SlotId, RegisterOperation), CodecError> {
    let slot = read_slot(request.slot)?;
    let operation = match request.operation.ok_or(CodecError::Missing("the operation"))? {
        WireOperation::Read(_) => RegisterOperation::Read,
        WireOperation::Write(Write { value, expected }) => RegisterOperation::Write {
            value: Arc::from(&value[..]),
            expected: expected.map(|expected| expected.tag.map(read_tag).transpose()).transpose()?,
        },
    };
    Ok((slot, operation))
}

pub(crate) fn write_reply(answer: &RegisterAnswer) -> wire::RegisterReply {
    let maybe = |head: &Option<_>| Maybe { head: head.as_ref().map(write_head) };
    let failure = |reason: u32| Outcome::Failure(Failure { reason, ..Failure::default() });
    let outcome = match answer {
        Ok(Answer::Written { tag }) => Outcome::Written(write_tag(*tag)),
        Ok(Answer::Differs { head }) => Outcome::Differs(maybe(head)),
        Ok(Answer::Read { head }) => Outcome::Read(maybe(head)),
        Err(RegisterError::Refused(RequestError::NotPrimary { route, .. })) => Outcome::Failure(Failure {
            reason: NOT_PRIMARY,
            primary: route.primary.to_string(),
            epoch: route.epoch.get(),
        }),
        Err(RegisterError::Refused(RequestError::Busy { .. })) => failure(BUSY),
        Err(RegisterError::Refused(RequestError::Indeterminate)) => failure(INDETERMINATE),
        Err(RegisterError::Refused(RequestError::TooLong { .. })) => failure(TOO_LONG),
        Err(RegisterError::Refused(RequestError::NoSuchSlot { .. })) => failure(NO_SUCH_SLOT),
        // Whatever else there is, nothing was written.
        Err(_) => failure(TIMED_OUT),
    };
    wire::RegisterReply { outcome: Some(outcome) }
}

pub(crate) fn read_reply(
    slot: SlotId,
    bytes: usize,
    total_slots: u16,
    reply: wire::RegisterReply,
) -> Result<Result<Answer, RequestError>, CodecError> {
    let head = |maybe: Maybe| maybe.head.as_ref().map(read_head).transpose();
    Ok(match reply.outcome.ok_or(CodecError::Missing("the outcome of a request"))? {
        Outcome::Written(tag) => Ok(Answer::Written { tag: read_tag(tag)? }),
        Outcome::Differs(maybe) => Ok(Answer::Differs { head: head(maybe)? }),
        Outcome::Read(maybe) => Ok(Answer::Read { head: head(maybe)? }),
        Outcome::Failure(Failure { reason, primary, epoch }) => Err(match reason {
            NOT_PRIMARY => {
                let primary = NodeId::new(&primary).map_err(|error| CodecError::Malformed {
                    field: "the name of a primary",
                    reason: error.to_string(),
                })?;
                RequestError::NotPrimary { slot, route: Route { primary, epoch: SlotEpoch::new(epoch) } }
            }
            BUSY => RequestError::Busy { slot },
            INDETERMINATE => RequestError::Indeterminate,
            TOO_LONG => RequestError::TooLong { bytes },
            NO_SUCH_SLOT => RequestError::NoSuchSlot { slot, total_slots },
            _ => RequestError::TimedOut,
        }),
    })
}

const NOT_PRIMARY: u32 = 1;
const BUSY: u32 = 2;
const TIMED_OUT: u32 = 3;
const INDETERMINATE: u32 = 4;
const TOO_LONG: u32 = 5;
const NO_SUCH_SLOT: u32 = 6;
/// The longest that a request may take.
pub(crate) const PATIENCE_MAX: Duration = Duration::from_secs(60);
