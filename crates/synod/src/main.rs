//! The `synod` command.

mod quickstart;
mod sim;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

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
    /// Simulate a whole cluster on a hostile network, from a seed.
    Sim(sim::Args),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Sim(args) => sim::run(&args),
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
