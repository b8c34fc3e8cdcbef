//! `forge-bridge manual`: writes the manual pages, one for the program and one for each command.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};

use super::{Cli, options};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Output folder; must exist
    folder: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let folder = &arguments.folder;
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(options::hide_idle(command), folder)
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
