//! Manners of the command line: colours, exit codes, tables, and the runtime that commands run on.

use std::future::Future;
use std::process::ExitCode;

use anstream::eprintln;
use anstyle::{AnsiColor, Style};

/// Runs a command on a runtime of its own.
pub(crate) fn with_runtime(command: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => {
            eprintln!("{RED}error:{RED:#} the runtime did not start: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Lines whose columns are as wide as their widest cell.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.max().unwrap_or(0).max(head[column].len())
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&mut head.iter().copied())];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

pub(crate) const RED: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red))).bold();
pub(crate) const GREEN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green))).bold();
pub(crate) const BOLD: Style = Style::new().bold();
/// The exit code of a command that was called wrongly.
pub(crate) const USAGE_ERROR: u8 = 2;
