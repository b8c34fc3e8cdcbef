//! `forge-bridge completions`: prints the completion script of a shell.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, options};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Shell to print the script for
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut command = options::hide_idle(Cli::command());
    let name = command.get_name().to_owned();
    // Into memory first: the generator panics if its output cannot be written.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
