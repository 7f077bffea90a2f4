//! What cannot be made grains of: each error names the file and what is wrong in it.

use std::{fmt, io};

/// No Rust can be written. No file was changed, unless it is [`Error::Write`].
///
/// Build scripts return it from `main`, which shows it as [`fmt::Debug`]; so that is the same text for people as
/// [`fmt::Display`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be found or read, or is no valid `.proto`.
    #[error("{0:?}")]
    Proto(#[from] protox::Error),
    /// A service cannot be a kind of grains.
    #[error("{file}: service {service} {problem}")]
    Service {
        /// As it is imported.
        file: String,
        /// With its package.
        service: String,
        /// Why not.
        problem: ServiceProblem,
    },
    /// A method cannot be a call of a grain.
    #[error("{file}: method {method} {problem}")]
    Method {
        /// As it is imported.
        file: String,
        /// With its service and package.
        method: String,
        /// Why not.
        problem: MethodProblem,
    },
    /// The Rust code cannot be written to its file.
    #[error("the code cannot be written: {0}")]
    Write(io::Error),
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Why a service cannot be a kind of grains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceProblem {
    /// It has no methods.
    #[error("has no methods: nothing could be called")]
    Empty,
    /// Another service has its name, perhaps in another package.
    #[error("would be the kind {kind} of grains, which service {taken_by} is: kinds have no package")]
    SameKind {
        /// The name in the cluster.
        kind: String,
        /// The other service, with its package.
        taken_by: String,
    },
}

/// Why a method cannot be a call of a grain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MethodProblem {
    /// It streams requests or responses.
    #[error("streams: a call of a grain is one message and one answer")]
    Streaming,
    /// It has the option `reenterable`.
    #[error(
        "is reenterable, but a grain here handles one call at a time; to have it so, call \
         `synod_build::Config::accept_reenterable`"
    )]
    Reenterable,
    /// It has an option of protoactor-go that nothing is known of.
    #[error("has the option (options.method_options).{0}, of which nothing is known")]
    UnknownOption(String),
}
