//! Tests of the engine with the store in memory.

mod judging;
mod lifecycle;
mod shapes;
mod storing;

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use forge_base::event::NewEvent;
use forge_base::tasks::Tasks;
use forge_store::memory::Memory;
use forge_store::record::{
    Acknowledged, Acknowledgement, EventFilter, Intervention, InterventionFilter, NewSignal, Page,
    SignalEntry, SignalGroup, SignalProperty, SignalRecord, SignalRecorded, SignalSession,
    SignalSessionFilter, SignalSums, SignalTotals,
};
use forge_store::roles::EventLog as _;
use forge_store::{Error, Result};
use serde_json::json;

use super::*;
use crate::{Rules, Terms, ledger};

/// Store that can be away: writes fail at once, or wait for ever.
#[derive(Default)]
struct Disk {
    store: Memory,
    is_away: AtomicBool,
    hangs: AtomicBool,
}

impl Disk {
    async fn check(&self) -> Result<()> {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        match self.is_away.load(Ordering::Relaxed) {
            true => Err(Error::Unavailable("it is away".to_owned())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Signals for Disk {
    async fn open_signal_session(
        &self,
        session: SignalSession,
        events: Vec<NewEvent>,
    ) -> Result<()> {
        self.check().await?;
        self.store.open_signal_session(session, events).await
    }

    async fn record_signal(&self, signal: NewSignal) -> Result<SignalRecorded> {
        self.check().await?;
        self.store.record_signal(signal).await
    }

    async fn end_signal_sessions(
        &self,
        ends: Vec<(String, Timestamp)>,
        events: Vec<NewEvent>,
    ) -> Result<()> {
        self.check().await?;
        self.store.end_signal_sessions(ends, events).await
    }

    async fn recent_signal_sessions(
        &self,
        source: SignalSource,
        since: Timestamp,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<SignalSession>> {
        let recent = self
            .store
            .recent_signal_sessions(source, since, after, limit);
        recent.await
    }

    async fn signal_session(
        &self,
        id: &str,
        records: usize,
    ) -> Result<Option<(SignalSession, Vec<SignalRecord>)>> {
        self.store.signal_session(id, records).await
    }

    async fn mark_signals(&self, mark: Arc<dyn Fn() + Send + Sync>) -> Result<u64> {
        self.store.mark_signals(mark).await
    }

    async fn signal_amounts(
        &self,
        group: SignalGroup,
        since: Timestamp,
        last: u64,
    ) -> Result<Vec<(Timestamp, SignalTotals)>> {
        self.store.signal_amounts(group, since, last).await
    }

    async fn signal_sums(&self, by: SignalProperty, since: Timestamp) -> Result<SignalSums> {
        self.store.signal_sums(by, since).await
    }

    async fn open_interventions(&self, limit: usize) -> Result<Vec<Intervention>> {
        self.store.open_interventions(limit).await
    }

    async fn acknowledge_intervention(
        &self,
        id: &str,
        owner: Option<Digest>,
        acknowledged: Acknowledgement,
        events: Vec<NewEvent>,
    ) -> Result<Acknowledged> {
        self.check().await?;
        let done = self
            .store
            .acknowledge_intervention(id, owner, acknowledged, events);
        done.await
    }

    async fn interventions(&self, filter: InterventionFilter) -> Result<Page<Intervention>> {
        self.store.interventions(filter).await
    }

    async fn signals_to_forward(&self, limit: usize) -> Result<Option<Vec<SignalEntry>>> {
        self.store.signals_to_forward(limit).await
    }

    async fn keep_forwarded(&self, position: u64) -> Result<()> {
        self.check().await?;
        self.store.keep_forwarded(position).await
    }

    async fn signal_sessions(&self, filter: SignalSessionFilter) -> Result<Page<SignalSession>> {
        self.store.signal_sessions(filter).await
    }
}

/// Engine on a clock that the tests move.
struct Fixture {
    engine: Engine,
    disk: Arc<Disk>,
    clock: Clock,
    config: Config,
    rules: Value,
}

async fn open(disk: &Arc<Disk>, clock: Clock, config: &Config, rules: &Value) -> Engine {
    let judges = ledger::Setup {
        store: Arc::clone(disk) as _,
        clock,
        milestones: vec![10_000],
        terms: Terms {
            rules: Rules::read(rules.to_string().as_bytes()).unwrap(),
            ..Terms::default()
        },
        tracker: Tasks::here(),
    };
    let setup = Setup {
        config: config.clone(),
        store: Arc::clone(disk) as _,
        ledger: Ledger::open(judges).await.unwrap(),
        clock,
    };
    Engine::open(setup).await.unwrap()
}

impl Fixture {
    async fn new(config: Config) -> Self {
        tokio::time::pause();
        Self::another(config).await
    }

    /// Fixture in a test whose time is paused already.
    async fn another(config: Config) -> Self {
        Self::of(config, json!({"version": 1})).await
    }

    /// Fixture with these rules.
    async fn judging(rules: Value) -> Self {
        tokio::time::pause();
        Self::of(Config::default(), rules).await
    }

    async fn plain() -> Self {
        Self::new(Config::default()).await
    }

    async fn of(config: Config, rules: Value) -> Self {
        let (disk, clock) = (Arc::new(Disk::default()), Clock::tokio());
        Self {
            engine: open(&disk, clock, &config, &rules).await,
            disk,
            clock,
            config,
            rules,
        }
    }

    /// Continues with the engine of a next process.
    async fn restart(&mut self) {
        self.engine = open(&self.disk, self.clock, &self.config, &self.rules).await;
    }

    /// Sends a signal with the first token.
    async fn send(&self, signal: &Value) -> Answer {
        self.send_by(1, signal).await
    }

    async fn send_by(&self, token: u8, signal: &Value) -> Answer {
        let received = self.receive(token, signal).await;
        received.unwrap_or_else(|error| panic!("{signal}: {error:?}"))
    }

    async fn receive(&self, token: u8, signal: &Value) -> Result<Answer, ReceiveError> {
        let caller = Caller {
            owner: [token; 32],
            user: Some(format!("user {token}")),
        };
        let body = signal.to_string();
        self.engine.receive(&caller, body.as_bytes(), signal).await
    }

    /// Names of the fields that a signal is refused for.
    async fn refused(&self, signal: &Value) -> Vec<String> {
        match self.receive(1, signal).await {
            Err(ReceiveError::Invalid(problems)) => {
                problems.into_iter().map(|one| one.field).collect()
            }
            Ok(_) => Vec::new(),
            Err(error) => panic!("{signal}: {error}"),
        }
    }

    /// All sessions, oldest first, each with its records, oldest first.
    async fn stored(&self) -> Vec<(SignalSession, Vec<SignalRecord>)> {
        let filter = SignalSessionFilter {
            limit: 1000,
            ..SignalSessionFilter::default()
        };
        let page = self.disk.signal_sessions(filter).await.unwrap();
        let mut all = Vec::new();
        for session in page.items.iter().rev() {
            let found = self.disk.signal_session(&session.id, 1000).await.unwrap();
            let (session, mut records) = found.unwrap();
            records.reverse();
            all.push((session, records));
        }
        all
    }

    /// Numbers of records of all sessions, oldest first.
    async fn counts(&self) -> Vec<u64> {
        let stored = self.stored().await.into_iter();
        stored.map(|(session, _)| session.totals.signals).collect()
    }

    async fn events(&self) -> Vec<String> {
        let all = EventFilter::default();
        let page = self.disk.store.events(&all, 0, 1000).await.unwrap();
        let events = page.events.into_iter();
        events.map(|event| event.kind.clone()).collect()
    }
}

fn with(signal: &Value, name: &str, value: Value) -> Value {
    let mut changed = signal.clone();
    changed[name] = value;
    changed
}

/// Each of the ten types with the fields that it needs.
fn minimal() -> Vec<Value> {
    vec![
        json!({"type": "session-start", "adapter_id": "tool"}),
        json!({"type": "session-end", "duration_ms": 1.5, "tasks_completed": 0}),
        json!({"type": "session-pause", "pause_reason": "idle", "context_snapshot_id": "c"}),
        json!({"type": "goal-drift", "drift_score": 0.5, "original_goal": "a", "current_trajectory": "b"}),
        json!({"type": "context-switch", "from_tool": "editor", "to_tool": "browser"}),
        json!({"type": "tool-switch", "tool": "cursor", "previous_tool": "vim"}),
        json!({"type": "token-milestone", "tokens_used": 10_001, "milestone": 10_000}),
        json!({"type": "refocus-ack", "intervention_id": "int_1", "ack_delay_ms": 7}),
        json!({"type": "completion-verified", "goal_id": "g", "confidence": 1}),
        json!({"type": "adapter-heartbeat", "adapter_id": "tool", "latency_ms": 4}),
    ]
}

fn drift(session: &str) -> Value {
    with(&minimal()[3], "session_id", session.into())
}

fn end(session: &str) -> Value {
    with(&minimal()[1], "session_id", session.into())
}

fn start(session: &str) -> Value {
    with(&minimal()[0], "session_id", session.into())
}

fn pause(session: &str) -> Value {
    with(&minimal()[2], "session_id", session.into())
}

fn heartbeat() -> Value {
    minimal()[9].clone()
}
