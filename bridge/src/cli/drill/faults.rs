//! Faults of a drill: bridges are killed and restarted at random moments; where several share a database, they are also
//! stopped for longer than a lease, and the server of the database is crashed.

use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::process::Command;
use tokio::time::sleep;

use super::Arguments;
use super::ledger::Recovery;
use super::load::Load;
use super::report::Progress;
use super::victim::{Home, LEASE, Victim};

/// Bounds of the time from ready to kill, in milliseconds.
const LIVES: (u64, u64) = (30, 600);
/// One in this many kills hits the bridge while it starts.
const EARLY: u32 = 5;
/// Upper bound of the time from start to such a kill.
const INFANCY_MS: u64 = 80;
/// Of several nodes, one is stopped in the middle of this many kills.
const STOP_EVERY: u32 = 10;
/// Absence in which the others have taken over what a node ran.
const ABSENCE: Duration = LEASE.saturating_mul(2);

/// Bridges, each started.
pub(super) struct Fleet<'a> {
    homes: &'a [Home],
    victims: Vec<Victim>,
    load: &'a Load,
    progress: &'a Progress,
    done: Done,
}

/// Faults that were caused.
#[derive(Default)]
pub(super) struct Done {
    pub(super) kills: u32,
    pub(super) stops: u32,
    pub(super) store_kills: u32,
    /// Times from a kill that was followed by a start until that bridge accepted requests.
    pub(super) restarts: Vec<Duration>,
}

impl<'a> Fleet<'a> {
    /// Starts a bridge in each home, the first one alone: it makes the key and the tables.
    pub(super) async fn start(
        homes: &'a [Home],
        load: &'a Load,
        progress: &'a Progress,
    ) -> anyhow::Result<Self> {
        let mut fleet = Self {
            homes,
            victims: Vec::new(),
            load,
            progress,
            done: Done::default(),
        };
        for (home, client) in homes.iter().zip(&load.bridges) {
            let mut victim = home.start()?;
            victim.ready(client).await?;
            fleet.victims.push(victim);
        }
        Ok(fleet)
    }

    /// Causes all faults. Returns with all bridges ready.
    pub(super) async fn cause(&mut self, arguments: &Arguments) -> anyhow::Result<()> {
        let kills = arguments.kills;
        loop {
            let next = self.done.kills + 1;
            let store_kills = (next * arguments.store_kills / kills).min(arguments.store_kills);
            let stops = if self.homes.len() > 1 {
                (next + STOP_EVERY / 2) / STOP_EVERY
            } else {
                0
            };
            match &arguments.store_command {
                Some(command) if self.done.store_kills < store_kills => {
                    self.crash_store(command).await?;
                }
                _ if self.done.stops < stops => self.stop().await?,
                _ if self.done.kills < kills => self.kill(kills).await?,
                _ => return Ok(()),
            }
        }
    }

    pub(super) fn end(mut self) -> anyhow::Result<Done> {
        for victim in &mut self.victims {
            victim.kill()?;
        }
        Ok(self.done)
    }

    fn any(&self) -> usize {
        rand::random_range(0..self.homes.len())
    }

    /// Kills a bridge and starts it again, at once or after the others have taken over what it ran.
    async fn kill(&mut self, kills: u32) -> anyhow::Result<()> {
        let number = self.any();
        sleep(Duration::from_millis(rand::random_range(LIVES.0..LIVES.1))).await;
        self.victims[number].kill()?;
        let is_left = self.homes.len() > 1 && rand::random_bool(0.5);
        let mut killed = match is_left {
            false => self.count(Recovery::Restart),
            true => {
                self.count(Recovery::TakeOver);
                sleep(ABSENCE).await;
                Instant::now()
            }
        };
        self.victims[number] = self.homes[number].start()?;
        while self.done.kills < kills && rand::random_range(0..EARLY) == 0 {
            sleep(Duration::from_millis(rand::random_range(0..INFANCY_MS))).await;
            self.victims[number].kill()?;
            killed = self.count(Recovery::Restart);
            self.victims[number] = self.homes[number].start()?;
        }
        let client = &self.load.bridges[number];
        self.victims[number].ready(client).await?;
        self.done.restarts.push(killed.elapsed());
        Ok(())
    }

    fn count(&mut self, recovery: Recovery) -> Instant {
        let now = Instant::now();
        self.load.ledger.killed(now, recovery);
        self.load.killed.fetch_add(1, Ordering::Relaxed);
        self.done.kills += 1;
        self.progress.show(self.done.kills, &self.load.ledger, "");
        now
    }

    /// Stops a bridge for longer than its lease, as a machine that sleeps does.
    async fn stop(&mut self) -> anyhow::Result<()> {
        let number = self.any();
        self.progress
            .show(self.done.kills, &self.load.ledger, "one is stopped");
        self.victims[number].freeze()?;
        self.load.ledger.stopped();
        sleep(ABSENCE).await;
        self.victims[number].thaw()?;
        self.done.stops += 1;
        let client = &self.load.bridges[number];
        self.victims[number].ready(client).await
    }

    /// Has the server of the database crash and start again.
    async fn crash_store(&mut self, command: &str) -> anyhow::Result<()> {
        self.progress
            .show(self.done.kills, &self.load.ledger, "the server crashes");
        let crashed = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .status()
            .await
            .context("cannot run --store-command")?;
        if !crashed.success() {
            bail!("--store-command ended with {crashed}");
        }
        self.done.store_kills += 1;
        for (victim, client) in self.victims.iter_mut().zip(&self.load.bridges) {
            victim.ready(client).await?;
        }
        Ok(())
    }
}
