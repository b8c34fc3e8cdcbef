//! `forge-bridge store`: checks the store for damage and backs it up, both also while a bridge uses it; copies it into a
//! database, and adopts the copy of a database.

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
    /// Copy the SQLite store of a stopped bridge into an empty PostgreSQL database, with all that it has
    ///
    /// The same command continues a copy that was ended. The store does not start any more once the copy has begun; one that
    /// is refused before changes nothing.
    Copy {
        /// Database, as in store.url; the password can be in PGPASSWORD or store.password_file
        #[arg(long, value_name = "URL", required_unless_present = "undo")]
        to: Option<String>,
        /// Let the SQLite store start again
        #[arg(long, conflicts_with = "to")]
        undo: bool,
    },
    /// Make the database of store.url a store of its own if it is a copy, such as a restored dump or a clone
    ///
    /// It gets new names: cursors of the original are refused. Its unfinished work runs and its pending callbacks are sent.
    Adopt,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = context.sources().load()?.config;
    match &arguments.command {
        Command::Check => check(context, &config),
        Command::Backup { file } => backup(context, &config, file),
        Command::Copy { to: Some(url), .. } => copy(context, &config, url),
        Command::Copy { to: None, .. } => undo_copy(context, &config),
        Command::Adopt => adopt(context, &config),
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

fn copy(context: &Context, config: &Config, url: &str) -> anyhow::Result<ExitCode> {
    let screen = context.screen();
    let mut progress = screen.progress();
    let (database, copied) = block_on(app::upkeep::copy(config, url, |table, rows| {
        // A progress line that cannot be drawn ends no copy.
        let _drawn = progress.show(format_args!("{table}  {rows} rows"), "");
    }))?;
    progress.clear()?;
    if context.global.json {
        let tables = copied.iter().map(|one| {
            json!({ "table": one.table, "rows": one.tally.rows, "digest": one.tally.digest() })
        });
        screen.value(&json!({ "database": database, "tables": tables.collect::<Vec<_>>() }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: u64 = copied.iter().map(|one| one.tally.rows).sum();
    let copied_text = match copied.as_slice() {
        [] => "it was copied before".to_owned(),
        tables => format!("{rows} rows of {} tables, which are equal", tables.len()),
    };
    let copied = screen.paint(Tone::Good, "copied");
    screen.line(format_args!("{copied}  {database}: {copied_text}"))?;
    let folder = config.data_dir.display();
    for line in [
        format!(
            "Start the bridge with this database as store.url, first in {folder}: its runs continue there. Keep the key of its secrets."
        ),
        format!(
            "The SQLite store in {folder} does not start any more; `forge-bridge store copy --undo` makes it another store."
        ),
    ] {
        screen.line(screen.paint(Tone::Quiet, line))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn undo_copy(context: &Context, config: &Config) -> anyhow::Result<ExitCode> {
    let undone = block_on(app::upkeep::undo_copy(config))?;
    let screen = context.screen();
    if context.global.json {
        screen.value(&json!({ "undone": undone }))?;
        return Ok(ExitCode::SUCCESS);
    }
    screen.line(match undone {
        true => {
            "The SQLite store starts again. What was unfinished when it was copied is done by both, if the copy is used."
        }
        false => "The SQLite store was not copied.",
    })?;
    Ok(ExitCode::SUCCESS)
}

fn adopt(context: &Context, config: &Config) -> anyhow::Result<ExitCode> {
    let adopted = block_on(app::upkeep::adopt(config))?;
    let screen = context.screen();
    if context.global.json {
        screen.value(&json!({ "adopted": adopted }))?;
        return Ok(ExitCode::SUCCESS);
    }
    screen.line(match adopted {
        true => "The database is a store of its own. Event cursors are refused, so that readers start over.",
        false => "The database is not a copy, and stays as it is.",
    })?;
    Ok(ExitCode::SUCCESS)
}
