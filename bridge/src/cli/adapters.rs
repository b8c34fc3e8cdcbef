//! `forge-bridge adapters`: what a running bridge has loaded and what is done with it, and trying a
//! library out.

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
    /// One line an adapter (the default)
    List,
    /// Everything known about one
    Inspect { provider: String },
    /// Serve its library file as it is now; what runs ends where it began
    Reload { provider: String },
    /// Start nothing new there, also after a restart; what runs goes on
    Pause { provider: String },
    /// Let executions start there again
    Resume { provider: String },
    /// Write a package with an adapter of this name, to begin with
    New(template::Arguments),
    /// Hold a library file against the rules of the boundary
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

/// How an answer is said to people.
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
        "{} was reloaded and is {}, sha256 {}",
        screen.paint(Tone::Strong, text(adapter, "/provider")),
        text(adapter, "/version"),
        text(adapter, "/digest"),
    ))?;
    leaving(screen, adapter)
}

fn leaving(screen: &Screen, adapter: &Value) -> std::io::Result<()> {
    for edition in adapter["leaving"].as_array().into_iter().flatten() {
        let line = format!(
            "{} still run on {}, sha256 {}",
            text(edition, "/running"),
            text(edition, "/version"),
            text(edition, "/digest"),
        );
        screen.line(screen.paint(Tone::Quiet, line))?;
    }
    Ok(())
}

fn paused(screen: &Screen, adapter: &Value) -> std::io::Result<()> {
    screen.line(format_args!(
        "{} is paused since {}: {} run on, what comes waits, also after a restart",
        screen.paint(Tone::Strong, text(adapter, "/provider")),
        text(adapter, "/pausedAt"),
        text(adapter, "/running"),
    ))
}

fn resumed(screen: &Screen, adapter: &Value) -> std::io::Result<()> {
    let provider = screen.paint(Tone::Strong, text(adapter, "/provider"));
    screen.line(format_args!("{provider} goes on"))
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
        ("at most", "/maxConcurrent"),
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
