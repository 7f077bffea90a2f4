//! The `synod` command.

mod bench;
mod gateway;
mod inspect;
mod jobs;
mod key;
mod nodes;
mod queue;
mod quickstart;
mod secret;
mod serve;
mod sim;
mod store;
mod terminal;
mod verify;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

/// Messages are made on one thread and let go of on another all the time, which this one is good at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A cluster that forms itself.
#[derive(Debug, Parser)]
#[command(name = "synod", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster on this machine and see what it can do.
    Quickstart(quickstart::Args),
    /// Run a node: alone, or of the cluster that a file describes. It forms the cluster, or joins it.
    Start(Box<serve::StartArgs>),
    /// Run a node of a cluster that is running, and that tells it everything.
    Join(Box<serve::JoinArgs>),
    /// Show whether a node is ready, and its cluster in a few lines.
    Status(inspect::ListArgs),
    /// List the members of the cluster.
    Members(inspect::ListArgs),
    /// List the slots of the cluster and who serves them.
    Slots(inspect::SlotsArgs),
    /// Say why something is as it is, who decided it and on which evidence.
    #[command(subcommand)]
    Explain(inspect::Explain),
    /// Show, verify and repair the objects of the cluster.
    #[command(subcommand)]
    Store(store::Store),
    /// Submit and work jobs, and look after queues.
    #[command(subcommand)]
    Queue(queue::Queue),
    /// Make, list and delete the access keys of S3, and say what they may do.
    #[command(subcommand)]
    Key(key::Key),
    /// Put a load on a cluster, and see what it bears.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Make the secret that the nodes of a cluster share.
    #[command(subcommand)]
    Secret(secret::Secret),
    /// Simulate a whole cluster on a hostile network, from a seed.
    Sim(sim::Args),
    /// Have a cluster fail in all the ways that it should survive, and check what it promised.
    #[command(subcommand)]
    Verify(verify::Verify),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Start(args) => serve::start(*args),
        Command::Join(args) => serve::join(*args),
        Command::Status(args) => inspect::status(&args),
        Command::Members(args) => inspect::members(&args),
        Command::Slots(args) => inspect::slots(&args),
        Command::Explain(what) => inspect::explain(&what),
        Command::Store(command) => store::run(&command),
        Command::Queue(command) => queue::run(&command),
        Command::Key(command) => key::run(&command),
        Command::Bench(bench) => bench::run(&bench),
        Command::Secret(command) => secret::run(command),
        Command::Sim(args) => sim::run(&args),
        Command::Verify(what) => verify::run(&what),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "synod", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
