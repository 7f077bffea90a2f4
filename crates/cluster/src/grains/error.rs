//! How calls to grains fail: what a grain says, and what happens on the way.

use std::collections::BTreeMap;

use synod_core::grains::{AttemptFailure, CallRejection, ClusterIdentity, IdentityError};
use synod_wire::cluster::GrainErrorResponse;

/// A grain's own answer that something cannot be had. It travels to callers of either language as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct GrainError {
    /// A word for programs, such as `NOT_FOUND`.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// Details.
    pub metadata: BTreeMap<String, String>,
}

impl GrainError {
    /// An error with a reason of its own.
    #[must_use]
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into(), metadata: BTreeMap::new() }
    }

    /// The argument cannot be understood.
    #[must_use]
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new("INVALID_ARGUMENT", message)
    }

    /// The grain has no such method. Go grains leave such a caller waiting.
    #[must_use]
    pub fn unimplemented(method: i32) -> Self {
        Self::new("UNIMPLEMENTED", format!("the grain has no method {method}"))
    }

    /// Something went wrong inside.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new("INTERNAL", message)
    }

    /// The same error with one more detail.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }
}

impl From<GrainError> for GrainErrorResponse {
    fn from(error: GrainError) -> Self {
        Self { reason: error.reason, message: error.message, metadata: error.metadata }
    }
}

impl From<GrainErrorResponse> for GrainError {
    fn from(response: GrainErrorResponse) -> Self {
        Self { reason: response.reason, message: response.message, metadata: response.metadata }
    }
}

/// For grains that call others: what the other grain said goes on as it is, and the rest becomes `INTERNAL`.
impl From<CallError> for GrainError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Grain(error) => error,
            other => Self::internal(other.to_string()),
        }
    }
}

/// For grains that call others.
impl From<IdentityError> for GrainError {
    fn from(error: IdentityError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// A call to a grain failed. What it says about the grain's state is in each variant.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The grain answered that it cannot be had. It handled the call.
    #[error(transparent)]
    Grain(#[from] GrainError),
    /// Kind and identity do not name a grain. Nothing was sent.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The call was not taken on. Nothing was sent.
    #[error("the call to {grain} was not taken on: {rejection}")]
    Rejected {
        /// Who was called.
        grain: ClusterIdentity,
        /// Why.
        rejection: CallRejection,
    },
    /// The grain waits for this very call, directly or through others. Nothing was sent.
    #[error("{grain} is waiting for this call itself: {}", chain.join(" → "))]
    Cycle {
        /// Who was called.
        grain: ClusterIdentity,
        /// Who calls whom, up to this call.
        chain: Vec<String>,
    },
    /// Newer calls needed its place. Nothing was sent.
    #[error("the call to {grain} made room for newer ones")]
    Dropped {
        /// Who was called.
        grain: ClusterIdentity,
    },
    /// No answer came in time. The grain may have handled the call.
    #[error("{grain} did not answer in time, after {attempts} attempts; it may have handled the call")]
    Timeout {
        /// Who was called.
        grain: ClusterIdentity,
        /// How many attempts were made.
        attempts: u32,
    },
    /// The grain could not be reached, found or understood.
    #[error("the call to {grain} failed: {failure}")]
    Failed {
        /// Who was called.
        grain: ClusterIdentity,
        /// Why.
        failure: AttemptFailure,
    },
    /// The answer is not what was asked for. The grain handled the call.
    #[error("the answer of {grain} cannot be used: {reason}")]
    Answer {
        /// Who was called.
        grain: ClusterIdentity,
        /// What is wrong with it.
        reason: String,
    },
    /// The node has shut down. The grain may have handled the call.
    #[error("the node shut down before {grain} answered")]
    ShutDown {
        /// Who was called.
        grain: ClusterIdentity,
    },
}
