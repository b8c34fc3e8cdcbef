//! Forwarding: sends the stored records of the local agent to the engine of a team, one at a time, and hands its
//! interventions to the tools. *Invariant: a record is sent before the position after it is kept.*

mod signal;
#[cfg(test)]
mod tests;
mod upstream;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use forge_base::failpoint;
use forge_base::metrics::Counter;
use forge_base::time::{self, Clock};
use forge_net::backoff;
use forge_store::record::{Intervention, SignalEntry, SignalSource};
use forge_store::roles::Signals;

pub use self::upstream::{Config, Error, Upstream};

use self::upstream::{Reply, Told};
use crate::agent::Agent;

/// Records that are read at once. After a kill up to this many are sent again.
const BATCH: usize = 32;
/// Age above which a record is not sent.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
const HEARTBEAT_EVERY: Duration = Duration::from_secs(30);
/// Sessions that heartbeats are sent for, the newest ones.
const MOST_BEATING: usize = 64;
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Pause after a wrong token.
const UNAUTHORIZED_PAUSE: Duration = Duration::from_secs(60);
/// Rule of an intervention of the engine.
const RULE: &str = "upstream";

/// Numbers of records by outcome, and of attempts that failed.
#[derive(Debug, Default)]
pub struct Meters {
    forwarded: Counter,
    expired: Counter,
    refused: Counter,
    failed: Counter,
}

impl Meters {
    /// Outcome and number.
    pub fn outcomes(&self) -> [(&'static str, u64); 4] {
        [
            ("forwarded", self.forwarded.get()),
            ("expired", self.expired.get()),
            ("refused", self.refused.get()),
            ("failed", self.failed.get()),
        ]
    }
}

/// Dependencies of a forwarder.
pub struct Setup {
    pub upstream: Upstream,
    pub store: Arc<dyn Signals>,
    pub agent: Agent,
    /// Tokens of a session at which a milestone is sent.
    pub milestones: Vec<u64>,
    pub clock: Clock,
}

/// Task that forwards records.
pub struct Forwarder {
    setup: Box<Setup>,
    /// Sessions that a heartbeat was sent for and that have not ended, with their adapter.
    beating: BTreeMap<String, String>,
    /// True after a warning about the token, until the engine accepts a signal.
    is_warned: bool,
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder").finish_non_exhaustive()
    }
}

/// Reason to wait before the next record.
enum Pause {
    Failed(String),
    Unauthorized,
}

impl From<forge_store::Error> for Pause {
    fn from(error: forge_store::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Forwarder {
    /// Begins after the newest record if forwarding was never switched on before.
    pub async fn open(setup: Setup) -> forge_store::Result<Self> {
        if setup.store.signals_to_forward(0).await?.is_none() {
            let newest = setup.store.mark_signals(Arc::new(|| {})).await?;
            setup.store.keep_forwarded(newest).await?;
        }
        Ok(Self {
            setup: Box::new(setup),
            beating: BTreeMap::new(),
            is_warned: false,
        })
    }

    /// Forwards until the token is cancelled.
    pub async fn run(mut self, ending: CancellationToken) {
        ending.run_until_cancelled(self.forward()).await;
    }

    async fn forward(&mut self) {
        let mut beats = interval(HEARTBEAT_EVERY);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failures = 0;
        loop {
            let has_more = match self.forward_batch().await {
                Ok(has_more) => has_more,
                Err(Pause::Unauthorized) => {
                    sleep(UNAUTHORIZED_PAUSE).await;
                    continue;
                }
                Err(Pause::Failed(reason)) => {
                    failures += 1;
                    if failures == 1 {
                        let origin = self.setup.upstream.origin();
                        tracing::warn!("signals are not forwarded to {origin}, retrying: {reason}");
                    }
                    sleep(wait(failures)).await;
                    continue;
                }
            };
            if failures > 0 {
                failures = 0;
                tracing::info!("signals are forwarded again");
            }
            if !has_more {
                tokio::select! {
                    () = self.setup.agent.stored() => {}
                    _ = beats.tick() => self.beat().await,
                }
            }
        }
    }

    /// Sends the next records; true if there can be more.
    async fn forward_batch(&mut self) -> Result<bool, Pause> {
        let entries = self.setup.store.signals_to_forward(BATCH).await?;
        let entries = entries.unwrap_or_default();
        let (mut passed, mut pause) = (None, None);
        for entry in &entries {
            pause = self.forward_entry(entry).await.err();
            if let Some(Pause::Failed(_)) = pause {
                break;
            }
            passed = Some(entry.position);
            if pause.is_some() {
                break;
            }
        }
        if let Some(position) = passed {
            failpoint::point("signal.forward.before");
            self.setup.store.keep_forwarded(position).await?;
            failpoint::point("signal.forward.after");
        }
        match pause {
            Some(pause) => Err(pause),
            None => Ok(entries.len() == BATCH),
        }
    }

    /// Sends the signals of a record, unless it is old or of another source.
    async fn forward_entry(&mut self, entry: &SignalEntry) -> Result<(), Pause> {
        if entry.session.source != SignalSource::Agent {
            return Ok(());
        }
        let age = time::wall_age(entry.record.at, self.setup.clock.now());
        if age > MAX_AGE {
            self.meters().expired.inc();
            return Ok(());
        }
        for signal in signal::signals(entry, &self.setup.milestones) {
            match self.setup.upstream.send(&signal).await {
                Reply::Accepted(told) => self.accept(&entry.session.id, told),
                Reply::Refused(status) => {
                    self.meters().refused.inc();
                    tracing::debug!("a forwarded signal was answered {status}");
                    return Ok(());
                }
                Reply::Unauthorized => {
                    self.meters().refused.inc();
                    if !self.is_warned {
                        let origin = self.setup.upstream.origin();
                        tracing::warn!("{origin} refuses the token of signals.upstream");
                    }
                    self.is_warned = true;
                    return Err(Pause::Unauthorized);
                }
                Reply::Failed(reason) => {
                    self.meters().failed.inc();
                    return Err(Pause::Failed(reason));
                }
            }
        }
        if signal::is_end(entry) {
            self.beating.remove(&entry.session.id);
        }
        self.meters().forwarded.inc();
        Ok(())
    }

    /// Sends the heartbeats of live sessions, and the ends of those that were idle for too long. What fails is not
    /// repeated before the next ones are due.
    async fn beat(&mut self) {
        let now = self.setup.clock.now();
        let live = self.setup.agent.live();
        let idle = self.beating.iter();
        let idle = idle.filter(|(id, _)| live.iter().all(|one| one.id != **id));
        let ends = idle.map(|(id, adapter)| (signal::END, id.clone(), adapter.clone()));
        let newest = live.iter().take(MOST_BEATING);
        let beats = newest.map(|one| (signal::HEARTBEAT, one.id.clone(), one.adapter.clone()));
        for (kind, id, adapter) in ends.chain(beats).collect::<Vec<_>>() {
            let signal = signal::bare(kind, &id, &adapter, now);
            match self.setup.upstream.send(&signal).await {
                Reply::Accepted(told) => self.accept(&id, told),
                Reply::Refused(_) => {}
                Reply::Unauthorized | Reply::Failed(_) => {
                    self.meters().failed.inc();
                    return;
                }
            }
            match kind {
                signal::END => self.beating.remove(&id),
                _ => self.beating.insert(id, adapter),
            };
        }
    }

    /// Leaves an intervention for the next answer in the session.
    fn accept(&mut self, session_id: &str, told: Option<Told>) {
        self.is_warned = false;
        let Some(told) = told else {
            return;
        };
        self.setup.agent.tell(Intervention {
            id: told.id,
            rule_id: RULE.to_owned(),
            blocks: false,
            severity: told.severity,
            message: told.message,
            scope_value: session_id.to_owned(),
            period: 0,
            session_id: session_id.to_owned(),
            at: self.setup.clock.now(),
            is_open: false,
            acknowledged: None,
        });
    }

    fn meters(&self) -> &Meters {
        self.setup.agent.forwarding()
    }
}

/// Time to wait after this many failures in a row.
fn wait(failures: u32) -> Duration {
    let policy = backoff::Policy::Default;
    let delay = backoff::delay(failures, Duration::ZERO, policy, rand::random());
    delay.map_or(LONGEST_WAIT, |delay| delay.min(LONGEST_WAIT))
}
