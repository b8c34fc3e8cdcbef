//! `forge-bridge drill`: shows on the reader's own disk that a 202 is kept. A bridge of its own works, is
//! killed at random moments and started again; then every promise is looked for.

mod ledger;
mod report;
mod victim;

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
/// The space that a drill takes grows with the kills, and not with the speed of the machine.
const DISPATCHES_A_KILL: u64 = 60;
/// Callers wait when so much is owed.
const MOST_OPEN: usize = 120;
/// A kill comes so long after the bridge is ready.
const LIVES: (u64, u64) = (30, 600);
/// One in so many comes while it starts.
const EARLY: u32 = 5;
/// And then so long after the start at most.
const INFANCY_MS: u64 = 80;
/// For everything, besides `TIME_A_KILL` for each kill.
const TIME: Duration = Duration::from_secs(180);
const TIME_A_KILL: Duration = Duration::from_secs(10);
/// For what is still owed after the last kill.
const CATCH_UP: Duration = Duration::from_secs(120);
/// Between two tries of a client that was cut off.
const AGAIN: Duration = Duration::from_millis(10);

/// What is dispatched, in turn: what echo does, and what a kill in the middle of it leads to.
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
    /// How often the bridge is killed
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,
    /// Where the drill makes its folder; by default on the disk of the configured store
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
        .tempdir_in(&place)
        .with_context(|| format!("cannot make a folder in {}", place.display()))?;
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

/// The nearest folder that is there: the store itself may not have been made yet.
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
    // Whatever ends this function ends them.
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
    progress.show(kills, &ledger, "looking for every promise");
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

/// Those who dispatch, and how far they may go.
struct Load {
    client: Client,
    callback: String,
    ledger: Arc<Ledger>,
    next: AtomicU64,
    killed: AtomicU32,
    /// Nothing new is dispatched; what was begun is sent until it is answered.
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

    /// Sends it until it is answered, as every caller should.
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

    /// Kills, and starts the next one at once. The last one is ready, with how long each of them took.
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

/// Waits until nothing runs and nothing is owed any more. What is not done then counts as lost.
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
