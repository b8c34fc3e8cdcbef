//! Command-line interface: arguments, output and exit code of each command. Commands that address a running
//! bridge use its public HTTP API.

mod adapters;
mod callback;
mod check;
mod checklist;
mod client;
mod completions;
mod conform;
mod conformance;
mod deliveries;
mod demo;
mod dev;
mod dispatch;
mod dispatches;
mod drill;
mod forg;
mod forge;
mod health;
mod lines;
mod manual;
mod nodes;
mod options;
mod paging;
mod runs;
mod runtime;
mod sample;
mod screen;
mod secrets;
mod serve;
mod sink;
mod store;
mod stream;
mod tail;
mod template;
mod top;

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use self::options::Global;
use crate::config::{File, Sources};

/// Environment variables of the process, copied at the start.
pub type Environment = BTreeMap<String, String>;

/// The command failed, or it ran and reports a failure.
const FAILED: u8 = 1;
/// Invalid arguments; clap uses the same code.
const USAGE: u8 = 2;
const UNREACHABLE: u8 = 3;
const REFUSED: u8 = 4;
/// A rule over signals blocks the tool.
const BLOCKED: u8 = 5;
/// 128 + SIGINT, as a shell reports a program ended by that signal.
const INTERRUPTED: u8 = 130;

const AFTERWORD: &str = "\
Internal commands, which the bridge starts itself:
  exec          supervises a child process
  relay         connects a program with a socket
  adapter-host  runs one adapter in its own process

Exit codes:
  0    success
  1    failure, or a reported failure: a dispatch that ended with an error, a check
       that found problems, an invalid configuration
  2    invalid arguments
  3    the bridge is unreachable
  4    the bridge answered with an error
  130  interrupted: a dispatch that is followed, the demo, or a bridge immediately
       by a second signal";

/// Execution bridge: accepts dispatches, runs them on agent runtimes and delivers the results.
///
/// Without a command, runs `serve`.
#[derive(Debug, Parser)]
#[command(name = "forge-bridge", version, after_help = AFTERWORD, after_long_help = AFTERWORD)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    global: Global,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT (the default)
    Serve,
    /// Demonstrate one dispatch: its request, events and signed callback; or, with --run, a run
    Demo(demo::Arguments),
    /// Serve for development: echo adapter, callback receiver, no configuration file
    Dev,
    /// Validate the configuration, the files of adapters and external services, and report all problems
    Check(check::Arguments),
    /// Show the secrets that sign callbacks; create tokens; rotate the key of the store
    Secrets(secrets::Arguments),
    /// List and manage the adapters of a running bridge; create and test adapters
    Adapters(adapters::Arguments),
    /// List, edit and compare the agents of a runtime, with their files and channels
    Agents(runtime::Arguments<runtime::agents::Command>),
    /// List, edit, switch and remove the skills of a runtime
    Skills(runtime::Arguments<runtime::skills::Command>),
    /// List the models of a runtime; set that of an agent
    Models(runtime::Arguments<runtime::system::ModelCommand>),
    /// Show the model catalogue and security of a runtime; reload its configuration
    System(runtime::Arguments<runtime::system::Command>),
    /// Post a dispatch and follow it
    Dispatch(dispatch::Arguments),
    /// List dispatches, show one on a page, cancel them, and dispatch them again
    Dispatches(dispatches::Arguments),
    /// Start runs on git repositories, talk to their Captain, follow and control them
    Runs(runs::Arguments),
    /// Show readiness of a bridge and health of its adapters
    Health,
    /// List the bridges that share the store of a running one
    Nodes,
    /// Follow events
    Tail(tail::Arguments),
    /// Show current activity in the terminal, updated live
    Top,
    /// List callback deliveries and retry them
    Deliveries(deliveries::Arguments),
    /// Test a callback receiver
    Callback(callback::Arguments),
    /// Kill a bridge repeatedly on this disk and verify that it loses nothing
    Drill(drill::Arguments),
    /// Check the store for damage, or back it up
    Store(store::Arguments),
    /// Manage external services: the command `forge`
    Forge(forge::Arguments),
    /// Send signals of AI tools, connect tools, test rules over signals: the command `forg`
    Forg(forg::Arguments),
    /// Check an adapter of signals, a local agent or an engine: the command `forg-conformance`
    Conformance(conformance::Arguments),
    /// Print a shell completion script
    Completions(completions::Arguments),
    /// Write the manual pages into a folder
    Manual(manual::Arguments),
}

/// Problem of the arguments or of the file that they name.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unusable(String);

/// Global options and environment of a command.
struct Context {
    global: Global,
    environment: Environment,
}

impl Context {
    fn sources(&self) -> Sources {
        Sources {
            file: match &self.global.config {
                Some(path) => File::At(path.clone()),
                None => File::Search,
            },
            environment: self.environment.clone(),
        }
    }

    fn client(&self) -> anyhow::Result<client::Client> {
        let client = client::Client::trusting(
            &self.url()?,
            self.global.token.clone(),
            self.global.ca.as_deref(),
        )?;
        Ok(client)
    }

    /// Address of the bridge: as given, or that of a bridge on this machine with the same configuration.
    fn url(&self) -> anyhow::Result<String> {
        if let Some(url) = &self.global.url {
            return Ok(url.clone());
        }
        let loaded = self.sources().load().context(
            "the bridge's address is `listen` of the configuration unless --url or BRIDGE_URL is given",
        )?;
        Ok(loaded.config.local_url())
    }

    fn screen(&self) -> screen::Screen {
        screen::Screen::new(&self.environment)
    }
}

/// Parses the process's arguments. The error is the exit code for `--help`, `--version` and invalid arguments.
pub fn parse() -> Result<Cli, ExitCode> {
    options::parse().map_err(|error| {
        let arguments: Vec<_> = std::env::args_os().skip(1).collect();
        if arguments.first().is_some_and(|first| first == "forge") {
            return forge::usage(
                &error,
                arguments.iter().any(|argument| argument == "--json"),
            );
        }
        if forg::is_hook(&arguments) {
            return forg::hook_usage(&error);
        }
        error.exit()
    })
}

/// Runs the command and returns its exit code.
pub fn run(cli: Cli, environment: Environment) -> ExitCode {
    let context = Context {
        global: cli.global,
        environment,
    };
    let outcome = match cli.command.unwrap_or(Command::Serve) {
        Command::Serve => serve::run(&context),
        Command::Demo(arguments) => demo::run(&context, &arguments),
        Command::Dev => dev::run(&context),
        Command::Check(arguments) => check::run(&context, &arguments),
        Command::Secrets(arguments) => secrets::run(&context, arguments),
        Command::Adapters(arguments) => adapters::run(&context, &arguments),
        Command::Agents(arguments) => runtime::run(&context, &arguments),
        Command::Skills(arguments) => runtime::run(&context, &arguments),
        Command::Models(arguments) => runtime::run(&context, &arguments),
        Command::System(arguments) => runtime::run(&context, &arguments),
        Command::Dispatch(arguments) => dispatch::run(&context, &arguments),
        Command::Dispatches(arguments) => dispatches::run(&context, &arguments),
        Command::Runs(arguments) => runs::run(&context, &arguments),
        Command::Health => health::run(&context),
        Command::Nodes => nodes::run(&context),
        Command::Tail(arguments) => tail::run(&context, &arguments),
        Command::Top => top::run(&context),
        Command::Deliveries(arguments) => deliveries::run(&context, &arguments),
        Command::Callback(arguments) => callback::run(&context, &arguments),
        Command::Drill(arguments) => drill::run(&context, &arguments),
        Command::Store(arguments) => store::run(&context, &arguments),
        Command::Forge(arguments) => forge::run(&context, &arguments),
        Command::Forg(arguments) => forg::run(&context, &arguments),
        Command::Conformance(arguments) => conformance::run(&context, &arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Manual(arguments) => manual::run(&arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    let broken_pipe = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe);
    if broken_pipe {
        // The reader closed the pipe, so it has read what it needs.
        return ExitCode::SUCCESS;
    }
    screen::error(error);
    if error.is::<Unusable>() {
        return ExitCode::from(USAGE);
    }
    let code = match error.downcast_ref::<client::Error>() {
        Some(client::Error::Unreachable { .. }) => UNREACHABLE,
        Some(client::Error::Refused { .. } | client::Error::Unreadable { .. }) => REFUSED,
        Some(client::Error::Address { .. } | client::Error::Token { .. }) => USAGE,
        Some(client::Error::Authority(_) | client::Error::Build(_)) | None => FAILED,
    };
    ExitCode::from(code)
}

/// Runs a future on a single-threaded runtime; for commands that only wait for a bridge.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_command_is_serve() {
        let cli = Cli::parse_from(["forge-bridge"]);
        assert!(cli.command.is_none());
        let cli = Cli::parse_from(["forge-bridge", "--config", "a.toml"]);
        assert_eq!(cli.global.config, Some(PathBuf::from("a.toml")));
    }
}
