//! `forge-bridge drill`: verifies on the user's own disk that accepted dispatches survive crashes. Runs a separate
//! bridge under load, kills and restarts it at random moments, then checks every dispatch that was answered 202.

mod ledger;
mod report;
mod victim;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{Client, Error, Target};
use super::screen::{Tone, text};
use super::serve::Signals;
use super::sink::Sink;
use super::{Context, FAILED, INTERRUPTED};
use forge_base::tasks;
use ledger::Ledger;
use report::{Progress, Report};
use victim::{Home, Victim};

const CLIENTS: u32 = 8;
/// Bounds the disk space of a drill by the number of kills, whatever the speed of the machine.
const DISPATCHES_A_KILL: u64 = 60;
/// Clients pause while this many callbacks are outstanding.
const MOST_OPEN: usize = 120;
/// Bounds of the time from ready to kill, in milliseconds.
const LIVES: (u64, u64) = (30, 600);
/// One in this many kills hits the bridge while it starts.
const EARLY: u32 = 5;
/// Upper bound of the time from start to such a kill.
const INFANCY_MS: u64 = 80;
/// Time limit of a drill, plus `TIME_A_KILL` for each kill.
const TIME: Duration = Duration::from_secs(180);
const TIME_A_KILL: Duration = Duration::from_secs(10);
/// Time limit for outstanding work after the last kill.
const CATCH_UP: Duration = Duration::from_secs(120);
/// Pause before a client tries again.
const AGAIN: Duration = Duration::from_millis(10);

/// Dispatched in rotation: model of the echo adapter, and recovery policy after a kill.
const KINDS: [(&str, &str); 6] = [
    ("ok", "fail"),
    ("slow:250", "retry"),
    ("stream:5", "resume"),
    ("slow:250", "fail"),
    ("stream:5", "retry"),
    ("slow:60", "resume"),
];

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Number of kills
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,
    /// Folder for the drill's temporary data; by default on the disk of the configured store
    #[arg(long, value_name = "FOLDER")]
    at: Option<PathBuf>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let place = match &arguments.at {
        Some(folder) => folder.clone(),
        None => existing(&context.sources().load()?.config.data_dir)?,
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
            report = drill(context, arguments.kills, folder) => report.map(Some),
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

async fn drill(context: &Context, kills: u32, folder: TempDir) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let home = Home::new(folder.path(), &context.environment)?;
    let client = home.client()?;
    let (tracker, shutdown) = (TaskTracker::new(), CancellationToken::new());
    // Stops the background tasks on every return path.
    let _ending = shutdown.clone().drop_guard();
    let ledger = Arc::new(Ledger::default());
    let mut sink = Sink::start(0, &tracker, shutdown.clone()).await?;
    let load = Arc::new(Load {
        client: client.clone(),
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
    let clients = TaskTracker::new();
    for _ in 0..CLIENTS {
        let work = Arc::clone(&load).work();
        let stopping = shutdown.clone();
        clients.spawn(async move { stopping.run_until_cancelled_owned(work).await });
    }
    clients.close();

    let progress = Progress::new(kills);
    let (mut victim, restarts) = load.kill(&home, kills, &progress).await?;
    load.enough.cancel();
    progress.show(kills, &ledger, "catching up");
    clients.wait().await;
    catch_up(&client, &ledger, &progress, kills).await?;
    progress.show(kills, &ledger, "verifying");
    let findings = ledger.settle(&client, &home.journal()).await;
    progress.end();
    victim.kill()?;
    let mut report = Report {
        kills,
        findings: findings?,
        restarts,
        took: begun.elapsed(),
        disk_bytes: bytes_in(&folder.path().join("data")),
        kept: None,
    };
    if !report.passed() {
        report.kept = Some(folder.keep());
    }
    Ok(report)
}

/// Load shared by the clients, and its limits.
struct Load {
    client: Client,
    callback: String,
    ledger: Arc<Ledger>,
    next: AtomicU64,
    killed: AtomicU32,
    /// Once cancelled, clients start no new dispatch; started ones are sent until answered.
    enough: CancellationToken,
}

impl Load {
    async fn work(self: Arc<Self>) {
        while !self.enough.is_cancelled() {
            let allowed = DISPATCHES_A_KILL * u64::from(self.killed.load(Ordering::Relaxed) + 1);
            let far = self.next.load(Ordering::Relaxed) >= allowed;
            if far || self.ledger.open() >= MOST_OPEN {
                sleep(AGAIN).await;
                continue;
            }
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            self.dispatch(number).await;
        }
    }

    /// Sends one dispatch until it is answered, as every caller should.
    async fn dispatch(&self, number: u64) {
        let (model, policy) = KINDS[number as usize % KINDS.len()];
        let body = json!({
            "taskId": format!("drill-{number}"), "agentId": "drill", "message": "still there?",
            "model": model, "recovery": policy, "callbackUrl": self.callback,
        });
        let path = ["api", "v2", "dispatch"];
        loop {
            match self.client.post(Target::path(&path), &body).await {
                Ok(answer) => return self.ledger.accept(text(&answer, "/dispatchId"), policy),
                Err(Error::Unreachable { .. } | Error::Unreadable { .. }) => {}
                Err(Error::Refused { status, .. }) if status.is_server_error() => {}
                Err(
                    error @ (Error::Refused { .. }
                    | Error::Address { .. }
                    | Error::Authority(_)
                    | Error::Build(_)),
                ) => {
                    return self.ledger.breach(format!("drill-{number}: {error}"));
                }
            }
            sleep(AGAIN).await;
        }
    }

    /// Kills the bridge `kills` times and restarts it immediately. Returns the last one, ready, and the times from kill
    /// to ready.
    async fn kill(
        &self,
        home: &Home,
        kills: u32,
        progress: &Progress,
    ) -> anyhow::Result<(Victim, Vec<Duration>)> {
        let mut victim = home.start()?;
        victim.ready(&self.client).await?;
        let mut restarts = Vec::new();
        let mut born: Option<Instant> = None;
        for done in 1..=kills {
            let early = done > 1 && rand::random_range(0..EARLY) == 0;
            if early {
                sleep(Duration::from_millis(rand::random_range(0..INFANCY_MS))).await;
            } else {
                victim.ready(&self.client).await?;
                restarts.extend(born.map(|born| born.elapsed()));
                let life = rand::random_range(LIVES.0..LIVES.1);
                sleep(Duration::from_millis(life)).await;
            }
            victim.kill()?;
            let now = Instant::now();
            born = Some(now);
            self.ledger.killed(now);
            self.killed.fetch_add(1, Ordering::Relaxed);
            progress.show(done, &self.ledger, "");
            victim = home.start()?;
        }
        victim.ready(&self.client).await?;
        restarts.extend(born.map(|born| born.elapsed()));
        Ok((victim, restarts))
    }
}

/// Waits until no dispatch is queued or running and no callback is pending, up to `CATCH_UP`. Dispatches still open
/// then count as lost.
async fn catch_up(
    client: &Client,
    ledger: &Ledger,
    progress: &Progress,
    kills: u32,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + CATCH_UP;
    let none = |health: &Value, pointer: &str| health.pointer(pointer).is_some_and(|n| *n == 0);
    while Instant::now() < deadline {
        let health = client.get(Target::path(&["api", "health"])).await?;
        let waits = [
            "/adapters/echo/queued",
            "/adapters/echo/running",
            "/deliveries/pending",
        ];
        if waits.iter().all(|pointer| none(&health, pointer)) {
            break;
        }
        progress.show(kills, ledger, "catching up");
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
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
