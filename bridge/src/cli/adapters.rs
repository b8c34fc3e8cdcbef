//! `forge-bridge adapters`: what a running bridge has loaded, and trying a library out.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::client::Target;
use super::screen::{Screen, Tone, text};
use super::{Context, block_on, conform};

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
    /// Hold a library file against the rules of the boundary
    Test(Box<conform::Arguments>),
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let provider = match &arguments.command {
        Some(Command::Test(arguments)) => return conform::run(context, arguments),
        Some(Command::Inspect { provider }) => Some(provider.as_str()),
        Some(Command::List) | None => None,
    };
    let client = context.client()?;
    let screen = context.screen();
    let path: Vec<&str> = ["api", "v2", "adapters"]
        .into_iter()
        .chain(provider)
        .collect();
    let answer = block_on(async { Ok(client.get(Target::path(&path)).await?) })?;
    match (context.global.json, provider) {
        (true, _) => screen.value(&answer)?,
        (false, Some(_)) => inspect(&screen, &answer)?,
        (false, None) => list(&screen, &answer)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(screen: &Screen, answer: &Value) -> std::io::Result<()> {
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
            text(adapter, "/health/status"),
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
    Ok(())
}
