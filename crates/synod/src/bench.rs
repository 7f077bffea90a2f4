//! `synod bench`: loads that anybody can put on a cluster, with figures that can be compared.

mod failover;
mod queue;
mod s3;

use std::process::ExitCode;

use clap::Subcommand;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Kill the leader of a job queue again and again, under load, and see how long jobs have to wait.
    Failover(failover::Args),
    /// Put, get and list objects through S3, of any service that speaks it.
    S3(Box<s3::Args>),
    /// Submit jobs and do them, of a cluster or of any server that speaks beanstalkd's protocol.
    Queue(Box<queue::Args>),
}

pub(crate) fn run(bench: &Bench) -> ExitCode {
    match bench {
        Bench::Failover(args) => failover::run(args),
        Bench::S3(args) => s3::run(args),
        Bench::Queue(args) => queue::run(args),
    }
}
