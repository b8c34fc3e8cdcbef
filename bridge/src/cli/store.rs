//! `forge-bridge store`: checks the store for damage and backs it up; both also while a bridge uses it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::screen::Tone;
use super::{Context, FAILED, block_on};
use crate::app;
use crate::config::Config;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read the whole store and report damage; a changed byte within a stored text is not detected
    Check,
    /// Copy the current state of the store to a new file
    Backup {
        /// File to create
        file: PathBuf,
    },
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = context.sources().load()?.config;
    match &arguments.command {
        Command::Check => check(context, &config),
        Command::Backup { file } => backup(context, &config, file),
    }
}

fn check(context: &Context, config: &Config) -> anyhow::Result<ExitCode> {
    let found = block_on(app::upkeep::check(config))?;
    let (screen, whole) = (context.screen(), found.problems.is_empty());
    let file = found.file.display();
    if context.global.json {
        screen.value(&json!({
            "ok": whole, "file": found.file, "bytes": found.bytes, "dispatches": found.dispatches,
            "unfinished": found.unfinished, "events": found.events,
            "deliveriesPending": found.deliveries_pending, "problems": found.problems,
        }))?;
    } else if whole {
        screen.line(format_args!(
            "{}  {file}: {} dispatches, {} of them unfinished; {} events; {} callbacks pending",
            screen.paint(Tone::Good, "all is well"),
            found.dispatches,
            found.unfinished,
            found.events,
            found.deliveries_pending,
        ))?;
    } else {
        for problem in &found.problems {
            let error = screen.paint(Tone::Bad, "error:");
            screen.line(format_args!("{error} {file}: {problem}"))?;
        }
        screen.line(
            "Stop the bridge, keep the file with its -wal and -shm, and put a backup in its place.",
        )?;
    }
    Ok(match whole {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FAILED),
    })
}

fn backup(context: &Context, config: &Config, file: &PathBuf) -> anyhow::Result<ExitCode> {
    block_on(app::upkeep::backup(config, file.clone()))?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let screen = context.screen();
    let key = config.secret.key_file.display();
    if context.global.json {
        screen
            .value(&json!({ "file": file, "bytes": bytes, "keyFile": config.secret.key_file }))?;
        return Ok(ExitCode::SUCCESS);
    }
    screen.line(format_args!(
        "{}  {}, {:.1} MB",
        screen.paint(Tone::Good, "copied"),
        file.display(),
        bytes as f64 / 1e6
    ))?;
    for line in [
        match config.secret.key {
            Some(_) => {
                "Its secrets are encrypted with the key in BRIDGE_SECRET_KEY: keep that too."
                    .to_owned()
            }
            None => format!("Its secrets are encrypted with {key}: keep that too."),
        },
        format!(
            "To restore: stop the bridge, move bridge.db, bridge.db-wal and bridge.db-shm out of {}, put \
             the copy there as bridge.db, and start. Work unfinished at the time of the copy runs and is \
             delivered again; event cursors are refused, so that readers start over.",
            config.data_dir.display()
        ),
    ] {
        screen.line(screen.paint(Tone::Quiet, line))?;
    }
    Ok(ExitCode::SUCCESS)
}
