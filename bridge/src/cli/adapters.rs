//! `forge-bridge adapters`: shows and manages the adapters of a running bridge; creates and tests adapters.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::client::Target;
use super::screen::{Screen, Tone, text};
use super::{Context, block_on, conform, template};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the adapters, one per line (the default)
    List,
    /// Show details of one adapter
    Inspect { provider: String },
    /// Load the library file again; running executions finish on the old generation
    Reload { provider: String },
    /// Start no new executions, also after a restart; running ones continue
    Pause { provider: String },
    /// Start executions again after a pause
    Resume { provider: String },
    /// Create an adapter package as a starting point
    New(template::Arguments),
    /// Check a library file against the rules of the adapter boundary
    Test(Box<conform::Arguments>),
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        Some(Command::New(arguments)) => template::run(context, arguments),
        Some(Command::Test(arguments)) => conform::run(context, arguments),
        Some(Command::Inspect { provider }) => show(context, &[provider], inspect),
        Some(Command::List) | None => show(context, &[], list),
        Some(Command::Reload { provider }) => change(context, &[provider, "reload"], reloaded),
        Some(Command::Pause { provider }) => change(context, &[provider, "pause"], paused),
        Some(Command::Resume { provider }) => change(context, &[provider, "resume"], resumed),
    }
}

const ROOT: [&str; 3] = ["api", "v2", "adapters"];

/// Prints an answer for people.
type Say = fn(&Screen, &Value) -> std::io::Result<()>;

fn show(context: &Context, rest: &[&str], say: Say) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let path = [ROOT.as_slice(), rest].concat();
    let answer = block_on(async { Ok(client.get(Target::path(&path)).await?) })?;
    tell(context, &answer, say)
}

fn change(context: &Context, rest: &[&str], say: Say) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let path = [ROOT.as_slice(), rest].concat();
    let answer = block_on(async { Ok(client.post(Target::path(&path), &Value::Null).await?) })?;
    tell(context, &answer, say)
}

fn tell(context: &Context, answer: &Value, say: Say) -> anyhow::Result<ExitCode> {
    let screen = context.screen();
    match context.global.json {
        true => screen.value(answer)?,
        false => say(&screen, answer)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn reloaded(screen: &Screen, adapter: &Value) -> std::io::Result<()> {
    screen.line(format_args!(
        "{} was reloaded: version {}, sha256 {}",
        screen.paint(Tone::Strong, text(adapter, "/provider")),
        text(adapter, "/version"),
        text(adapter, "/digest"),
    ))?;
    leaving(screen, adapter)
}

fn leaving(screen: &Screen, adapter: &Value) -> std::io::Result<()> {
    for generation in adapter["leaving"].as_array().into_iter().flatten() {
        let line = format!(
            "{} still running on {}, sha256 {}",
            text(generation, "/running"),
            text(generation, "/version"),
            text(generation, "/digest"),
        );
        screen.line(screen.paint(Tone::Quiet, line))?;
    }
    Ok(())
}

fn paused(screen: &Screen, adapter: &Value) -> std::io::Result<()> {
    screen.line(format_args!(
        "{} is paused since {}: {} still running, new dispatches wait, also after a restart",
        screen.paint(Tone::Strong, text(adapter, "/provider")),
        text(adapter, "/pausedAt"),
        text(adapter, "/running"),
    ))
}

fn resumed(screen: &Screen, adapter: &Value) -> std::io::Result<()> {
    let provider = screen.paint(Tone::Strong, text(adapter, "/provider"));
    screen.line(format_args!("{provider} is resumed"))
}

fn list(screen: &Screen, answer: &Value) -> std::io::Result<()> {
    let state = |adapter: &Value| {
        let held = [("quarantine", ", quarantined"), ("pausedAt", ", paused")];
        let held = held
            .into_iter()
            .filter(|(name, _)| !adapter[*name].is_null());
        let held: String = held.map(|(_, word)| word).collect();
        format!("{}{held}", text(adapter, "/health/status"))
    };
    let heading = ["provider", "health", "version", "running", "capabilities"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for adapter in answer["adapters"].as_array().into_iter().flatten() {
        let running = format!(
            "{}/{}",
            text(adapter, "/running"),
            text(adapter, "/maxConcurrent")
        );
        rows.push(vec![
            text(adapter, "/provider"),
            state(adapter),
            text(adapter, "/version"),
            running,
            text(adapter, "/profile/capabilities"),
        ]);
    }
    screen.table(&rows)
}

fn inspect(screen: &Screen, adapter: &Value) -> std::io::Result<()> {
    let lines = [
        ("provider", "/provider"),
        ("version", "/version"),
        ("file", "/path"),
        ("sha256", "/digest"),
        ("isolation", "/isolation"),
        ("health", "/health/status"),
        ("", "/health/message"),
        ("checked", "/health/checkedAt"),
        ("paused since", "/pausedAt"),
        ("running", "/running"),
        ("max running", "/maxConcurrent"),
        ("interfaces", "/interfaces"),
        ("capabilities", "/profile/capabilities"),
        ("tools", "/profile/nativeTools"),
        ("output", "/profile/outputStrategies"),
        ("cost", "/profile/costTier"),
        ("latency", "/profile/latencyProfile"),
    ];
    for (name, pointer) in lines {
        let value = text(adapter, pointer);
        if !name.is_empty() || value != "-" {
            let name = screen.paint(Tone::Quiet, format_args!("{name:<14}"));
            screen.line(format_args!("{name}{value}"))?;
        }
    }
    leaving(screen, adapter)
}
