//! `forge-bridge forg`, also called `forg`: rules over signals.

mod rules;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::Context;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Test rules and budgets over signals, and print their schema
    Rules(rules::Arguments),
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        Command::Rules(arguments) => rules::run(context, arguments),
    }
}
