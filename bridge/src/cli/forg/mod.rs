//! `forge-bridge forg`, also called `forg`: sends signals of AI tools to the local agent, connects tools to it, and tests
//! rules over signals.

mod activate;
mod agent;
mod connect;
mod emit;
mod files;
mod hook;
mod keystore;
mod rules;
mod status;
mod transcript;

use std::ffi::OsString;
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
    /// Send a signal to the local agent, signed with the key of its session
    Emit(emit::Arguments),
    /// Keep a token for the engine API, or make one
    Activate(activate::Arguments),
    /// Print the token that is kept
    Token(activate::TokenArguments),
    /// Show the local agent and the tools that report to it
    Status(status::Arguments),
    /// Make a tool send its signals, or stop it from doing so
    Connect(connect::Arguments),
    /// List rules and budgets over signals, test them, and print their schema
    Rules(rules::Arguments),
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        Command::Emit(arguments) => emit::run(context, arguments),
        Command::Activate(arguments) => activate::run(context, arguments),
        Command::Token(arguments) => activate::token(context, arguments),
        Command::Status(arguments) => status::run(context, arguments),
        Command::Connect(arguments) => connect::run(context, arguments),
        Command::Rules(arguments) => rules::run(context, arguments),
    }
}

/// True if these arguments are those of a hook: a tool that calls it would take an exit code of 2 for a block.
pub(super) fn is_hook(arguments: &[OsString]) -> bool {
    let is = |at: usize, word: &str| arguments.get(at).is_some_and(|argument| argument == word);
    let event = arguments.iter().enumerate().find_map(|(at, argument)| {
        let argument = argument.to_str()?;
        match argument {
            "--event" => arguments.get(at + 1)?.to_str(),
            _ => argument.strip_prefix("--event="),
        }
    });
    is(0, "forg") && is(1, "emit") && event.is_some_and(hook::is_event)
}

/// Reports a mistake in the arguments of a hook.
pub(super) fn hook_usage(error: &clap::Error) -> ExitCode {
    // A closed standard error leaves nothing to report to.
    let _ = error.print();
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_hooks_are_told_from_those_of_people() {
        for (words, expected) in [
            ("forg emit --event Stop --bogus", true),
            ("forg emit --bogus --event=NewHook", true),
            ("forg emit --event session.end --bogus", false),
            ("forg emit --event", false),
            ("forg status --event Stop", false),
            ("forg", false),
        ] {
            let arguments: Vec<_> = words.split(' ').map(OsString::from).collect();
            assert_eq!(is_hook(&arguments), expected, "{words}");
        }
    }
}
