//! `synod secret new`: the secret that the nodes of a cluster share.

use std::io::{Read, Write};
use std::process::ExitCode;

use anstream::{eprintln, stdout};
use clap::Subcommand;

use crate::terminal::RED;

/// What to do with secrets.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Secret {
    /// Print a new secret: 32 random bytes in hexadecimal. Keep it in a file that only the node can read.
    New,
}

pub(crate) fn run(command: Secret) -> ExitCode {
    let Secret::New = command;
    let mut bytes = [0; 32];
    // The kernel's randomness, since a secret must not be guessed.
    let drawn = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    if let Err(error) = drawn {
        eprintln!("{RED}error:{RED:#} the system has no randomness to give: {error}");
        return ExitCode::FAILURE;
    }
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if writeln!(stdout(), "{text}").is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
