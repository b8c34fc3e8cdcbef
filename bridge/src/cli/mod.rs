//! The command line: what each command reads, prints and answers to the shell. Commands that ask a
//! running bridge go through its HTTP interface like anybody else.

mod adapters;
mod callback;
mod check;
mod client;
mod completions;
mod conform;
mod deliveries;
mod demo;
mod dev;
mod dispatch;
mod drill;
mod health;
mod manual;
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
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{File, Sources};

/// The variables of the process, by value.
pub type Environment = BTreeMap<String, String>;

/// The command did its work, and what it reports is a failure; or it failed.
const FAILED: u8 = 1;
/// Also what clap answers to arguments it does not know.
const USAGE: u8 = 2;
const UNREACHABLE: u8 = 3;
const REFUSED: u8 = 4;
/// As a shell says it of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

const AFTERWORD: &str = "\
The bridge starts itself as these, which are nobody else's:
  exec          the supervisor of a child process
  relay         joins a program with a socket
  adapter-host  holds one adapter in a process of its own

Exit codes:
  0    done
  1    failed, or what is reported is a failure: a dispatch that ended with an error,
       a check that found something, a configuration that is not valid
  2    arguments that make no sense
  3    the bridge cannot be reached
  4    the bridge answered with an error
  130  stopped at once by a second signal";

/// An execution bridge: accepts a step, runs it on an agent runtime, delivers the result.
///
/// Without a command it serves.
#[derive(Debug, Parser)]
#[command(name = "forge-bridge", version, after_help = AFTERWORD, after_long_help = AFTERWORD)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    global: Global,
}

/// What every command understands.
#[derive(Debug, Clone, Args)]
struct Global {
    /// The configuration file; else BRIDGE_CONFIG, else ./forge-bridge.toml where there is one
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Machine-readable output
    #[arg(long, global = true)]
    json: bool,
    /// The bridge to ask
    #[arg(
        long,
        global = true,
        env = "BRIDGE_URL",
        default_value = "http://127.0.0.1:7420"
    )]
    url: String,
    /// The bearer token for it
    #[arg(long, global = true, env = "BRIDGE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Trust these certificates alone (PEM), for a bridge whose own is signed by itself or by nobody known
    #[arg(long, global = true, env = "BRIDGE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT (the default)
    Serve,
    /// Show the main job: a dispatch, its events and the signed callback
    Demo(demo::Arguments),
    /// Serve for trying things: echo, a callback receiver, a readable log, no configuration
    Dev,
    /// Validate the configuration and load every adapter, and say all that is wrong
    Check,
    /// Show the secret that signs callbacks; make tokens, turn the key of the store
    Secrets(secrets::Arguments),
    /// What adapters a running bridge has
    Adapters(adapters::Arguments),
    /// Post a dispatch and follow it
    Dispatch(dispatch::Arguments),
    /// Ask whether a bridge is ready, and how its adapters are
    Health,
    /// Follow events
    Tail(tail::Arguments),
    /// What goes on now, in the terminal
    Top,
    /// What is owed to callback URLs
    Deliveries(deliveries::Arguments),
    /// Try a receiver of callbacks out
    Callback(callback::Arguments),
    /// Kill a bridge again and again on this disk, and see that it loses nothing
    Drill(drill::Arguments),
    /// Look whether the store is whole, or copy it
    Store(store::Arguments),
    /// Print what a shell needs to complete commands and options
    Completions(completions::Arguments),
    /// Write the manual pages into a folder
    Manual(manual::Arguments),
}

/// Everything a command is given besides its own arguments.
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

    fn client(&self) -> Result<client::Client, client::Error> {
        client::Client::trusting(
            &self.global.url,
            self.global.token.clone(),
            self.global.ca.as_deref(),
        )
    }

    fn screen(&self) -> screen::Screen {
        screen::Screen::new(&self.environment)
    }
}

/// Reads the arguments of the process; ends it with help or an error where they ask for it.
pub fn parse() -> Cli {
    Cli::parse()
}

/// Runs one command.
pub fn run(cli: Cli, environment: Environment) -> ExitCode {
    let context = Context {
        global: cli.global,
        environment,
    };
    let outcome = match cli.command.unwrap_or(Command::Serve) {
        Command::Serve => serve::run(&context),
        Command::Demo(arguments) => demo::run(&context, &arguments),
        Command::Dev => dev::run(&context),
        Command::Check => check::run(&context),
        Command::Secrets(arguments) => secrets::run(&context, arguments),
        Command::Adapters(arguments) => adapters::run(&context, &arguments),
        Command::Dispatch(arguments) => dispatch::run(&context, &arguments),
        Command::Health => health::run(&context),
        Command::Tail(arguments) => tail::run(&context, &arguments),
        Command::Top => top::run(&context),
        Command::Deliveries(arguments) => deliveries::run(&context, &arguments),
        Command::Callback(arguments) => callback::run(&context, &arguments),
        Command::Drill(arguments) => drill::run(&context, &arguments),
        Command::Store(arguments) => store::run(&context, &arguments),
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
        // Whoever read us has seen enough.
        return ExitCode::SUCCESS;
    }
    // Where standard error is gone too there is nobody left to tell.
    let _ = writeln!(io::stderr(), "error: {error:#}");
    let code = match error.downcast_ref::<client::Error>() {
        Some(client::Error::Unreachable { .. }) => UNREACHABLE,
        Some(client::Error::Refused { .. } | client::Error::Unreadable { .. }) => REFUSED,
        Some(client::Error::Address { .. }) => USAGE,
        Some(client::Error::Authority(_) | client::Error::Build(_)) | None => FAILED,
    };
    ExitCode::from(code)
}

/// For commands that only wait for a bridge.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

#[cfg(test)]
mod tests {
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
