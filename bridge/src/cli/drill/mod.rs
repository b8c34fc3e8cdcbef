//! `forge-bridge drill`: verifies on the user's own disk or database server that accepted dispatches survive crashes. Runs
//! separate bridges under load, kills and restarts them at random moments, then checks every dispatch that was answered 202.

mod faults;
mod ledger;
mod load;
mod report;
mod victim;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use tempfile::TempDir;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::Client;
use super::screen::Tone;
use super::serve::Signals;
use super::sink::Sink;
use super::{Context, FAILED, INTERRUPTED};
use crate::app::trial::TrialDatabase;
use crate::config::Config;
use faults::Fleet;
use forge_base::tasks;
use ledger::Ledger;
use load::Load;
use report::{Progress, Report};
use victim::{Home, Shared};

const CLIENTS: u32 = 8;
/// Time limit of a drill, plus `TIME_A_KILL` for each kill.
const TIME: Duration = Duration::from_secs(180);
const TIME_A_KILL: Duration = Duration::from_secs(10);
/// Time limit for outstanding work after the last kill. Dispatches still open then count as lost.
const CATCH_UP: Duration = Duration::from_secs(120);
/// Most bridges that share a database.
const MOST_NODES: i64 = 16;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Number of kills
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,
    /// Folder for the drill's temporary data; by default on the disk of the configured store
    #[arg(long, value_name = "FOLDER")]
    at: Option<PathBuf>,
    /// Drill on a PostgreSQL server: a database for the drill is created beside this one, and dropped
    ///
    /// As in store.url; the password can be in PGPASSWORD or store.password_file.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Number of bridges that share the database; each tenth kill, one is also stopped for two leases
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "store", value_parser = clap::value_parser!(u32).range(1..=MOST_NODES))]
    nodes: u32,
    /// Number of crashes of the server
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        requires = "store_command"
    )]
    store_kills: u32,
    /// Shell command that stops the server as a crash does, and starts it, such as `pg_ctl -D DATA -m immediate restart`
    #[arg(long, value_name = "COMMAND", requires_all = ["store", "store_kills"])]
    store_command: Option<String>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = context.sources().load()?.config;
    let place = match &arguments.at {
        Some(folder) => folder.clone(),
        None => existing(&config.data_dir)?,
    };
    let folder = tempfile::Builder::new()
        .prefix("forge-bridge-drill-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&place)
        .with_context(|| format!("cannot create a folder in {}", place.display()))?;
    let screen = context.screen();
    if !context.global.json {
        screen.line(format_args!(
            "{} {} {}",
            screen.paint(Tone::Strong, "forge-bridge drill"),
            screen.paint(Tone::Quiet, "in"),
            folder.path().display()
        ))?;
        screen.line("")?;
    }
    let runtime = tasks::half_runtime()?;
    let drill = async {
        let mut signals = Signals::listen()?;
        let limit = TIME + TIME_A_KILL * arguments.kills;
        tokio::select! {
            report = drill(context, &config, arguments, folder) => report.map(Some),
            () = signals.next() => Ok(None),
            () = sleep(limit) => bail!("the drill did not end within {limit:?}"),
        }
    };
    let Some(report) = runtime.block_on(drill)? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    match context.global.json {
        true => screen.value(&report.json())?,
        false => report.print(&screen)?,
    }
    Ok(match report.passed() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FAILED),
    })
}

/// Nearest existing folder above the store, which itself might not exist yet.
fn existing(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut above = folder.ancestors().skip(1);
    let found = above.find(|folder| folder.is_dir());
    found.map(Path::to_owned).with_context(|| {
        format!(
            "no folder above {} exists; name one with --at",
            folder.display()
        )
    })
}

async fn drill(
    context: &Context,
    config: &Config,
    arguments: &Arguments,
    folder: TempDir,
) -> anyhow::Result<Report> {
    let database = match &arguments.store {
        Some(url) => Some(TrialDatabase::create(config, url).await?),
        None => None,
    };
    let report = drill_in(context, config, arguments, &folder, database.as_ref()).await;
    let is_kept = report.as_ref().is_ok_and(|report| !report.passed());
    if let Some(database) = database.as_ref().filter(|_| !is_kept) {
        database.remove().await?;
    }
    let mut report = report?;
    if is_kept {
        report.kept = Some(folder.keep());
        report.database = database.map(|database| database.name);
    }
    Ok(report)
}

async fn drill_in(
    context: &Context,
    config: &Config,
    arguments: &Arguments,
    folder: &TempDir,
    database: Option<&TrialDatabase>,
) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let shared = Shared::new(folder.path(), config, database)?;
    let homes: Vec<Home> = (1..=arguments.nodes)
        .map(|number| Home::new(&shared, number, &context.environment))
        .collect::<anyhow::Result<_>>()?;
    let bridges: Vec<Client> = homes
        .iter()
        .map(Home::client)
        .collect::<anyhow::Result<_>>()?;
    let (tracker, shutdown) = (TaskTracker::new(), CancellationToken::new());
    // Stops the background tasks on every return path.
    let _ending = shutdown.clone().drop_guard();
    let ledger = Arc::new(Ledger::default());
    let mut sink = Sink::start(0, &tracker, shutdown.clone()).await?;
    let load = Arc::new(Load {
        bridges,
        callback: sink.url(),
        ledger: Arc::clone(&ledger),
        next: AtomicU64::new(0),
        killed: AtomicU32::new(0),
        enough: CancellationToken::new(),
    });
    let receiving = Arc::clone(&ledger);
    tracker.spawn(async move {
        while let Some(callback) = sink.next().await {
            receiving.receive(&callback);
        }
    });
    let progress = Progress::new(arguments.kills);
    let mut fleet = Fleet::start(&homes, &load, &progress).await?;
    let clients = TaskTracker::new();
    for _ in 0..CLIENTS {
        let work = Arc::clone(&load).work();
        let stopping = shutdown.clone();
        clients.spawn(async move { stopping.run_until_cancelled_owned(work).await });
    }
    clients.close();

    fleet.cause(arguments).await?;
    load.enough.cancel();
    let kills = arguments.kills;
    let journal = shared.journal();
    let settling = async {
        clients.wait().await;
        let deadline = Instant::now() + CATCH_UP;
        ledger.settle(&load.bridges[0], &journal, deadline).await
    };
    let findings = tokio::select! {
        findings = settling => findings,
        never = progress.redraw(kills, &ledger, "catching up") => match never {},
    };
    progress.end();
    let done = fleet.end()?;
    Ok(Report {
        nodes: arguments.nodes,
        done,
        findings: findings?,
        took: begun.elapsed(),
        disk_bytes: bytes_in(&homes[0].data()),
        kept: None,
        database: None,
    })
}

fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_made_where_the_store_is_or_would_be() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("not/yet/made");
        assert_eq!(existing(&store).unwrap(), folder.path());
    }
}
