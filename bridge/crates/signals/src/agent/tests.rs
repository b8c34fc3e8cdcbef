//! Tests of the agent with the store in memory.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forge_base::digest::{MacKey, hex};
use forge_base::tasks::Tasks;
use forge_store::memory::Memory;
use forge_store::record::{SignalRecord, SignalSessionFilter};
use secrecy::SecretSlice;
use serde_json::json;

use super::*;
use crate::ledger;
use crate::terms::Terms;

/// Agent on a clock that the tests move.
struct Fixture {
    agent: Agent,
    store: Arc<Memory>,
    clock: Clock,
    vault: Vault,
    config: Config,
}

impl Fixture {
    async fn new(config: Config) -> Self {
        tokio::time::pause();
        let vault = Vault::from_key(&SecretSlice::from(vec![7; 32])).unwrap();
        let (store, clock) = (Arc::new(Memory::default()), Clock::tokio());
        let agent = open(&store, clock, &vault, &config).await;
        Self {
            agent,
            store,
            clock,
            vault,
            config,
        }
    }

    /// The agent of a next process.
    async fn again(&self) -> Agent {
        open(&self.store, self.clock, &self.vault, &self.config).await
    }

    async fn session(&self, id: &str) -> (SignalSession, Vec<SignalRecord>) {
        self.store.signal_session(id, 100).await.unwrap().unwrap()
    }
}

async fn open(store: &Arc<Memory>, clock: Clock, vault: &Vault, config: &Config) -> Agent {
    let ledger = ledger::Setup {
        store: Arc::clone(store) as _,
        clock,
        milestones: config.milestones.clone(),
        terms: Terms::default(),
        tracker: Tasks::here(),
    };
    let setup = Setup {
        config: config.clone(),
        store: Arc::clone(store) as _,
        ledger: Ledger::open(ledger).await.unwrap(),
        clock,
    };
    Agent::open(setup, &**store, vault).await.unwrap()
}

fn usage(session: Option<&str>) -> Value {
    json!({
        "adapter": "tool", "ts": "2025-05-28T10:00:00Z", "model": "m", "tokens_in": 10, "tokens_out": 5,
        "session_id": session,
    })
}

fn hook(name: &str) -> Value {
    json!({"adapter": "tool", "ts": "2026-01-01T00:00:00Z", "hook": name})
}

async fn start(agent: &Agent) -> Started {
    agent
        .start(&json!({"adapter": "tool", "user_id": "u"}))
        .await
        .unwrap()
}

/// Sends a record that is signed with the key of a session.
async fn emit(agent: &Agent, key: &Started, record: &Value) -> Result<String, EmitError> {
    let body = record.to_string();
    let bytes = BASE64_STANDARD.decode(&key.session_key).unwrap();
    let digits = hex(&MacKey::new(&bytes).mac([body.as_bytes()]));
    let signature = Signature::parse(format!("sha256={digits}").as_bytes());
    let emitted = agent.emit(body.as_bytes(), record, signature).await?;
    Ok(emitted.session_id)
}

#[tokio::test]
async fn a_session_ends_after_the_timeout_and_not_before() {
    let fixture = Fixture::new(Config::default()).await;
    let agent = &fixture.agent;
    let started = start(agent).await;
    let id = &started.session_id;
    tokio::time::advance(Duration::from_secs(1799)).await;
    assert_eq!(&emit(agent, &started, &usage(Some(id))).await.unwrap(), id);
    tokio::time::advance(Duration::from_secs(1800)).await;
    let second = emit(agent, &started, &usage(Some(id))).await.unwrap();
    assert_ne!(&second, id);
    let (first, records) = fixture.session(id).await;
    assert_eq!((records.len(), first.ended_at), (1, Some(first.last_at)));
    let (successor, _) = fixture.session(&second).await;
    assert_eq!((&successor.key_id, successor.ended_at), (id, None));
    assert_eq!(successor.totals.tokens_in, 10);
    // Both ids name the key.
    assert_eq!(
        emit(agent, &started, &usage(Some(id))).await.unwrap(),
        second
    );
    assert_eq!(
        emit(agent, &started, &usage(Some(&second))).await.unwrap(),
        second
    );
}

#[tokio::test]
async fn an_idle_session_is_ended_without_a_signal() {
    let fixture = Fixture::new(Config::default()).await;
    let started = start(&fixture.agent).await;
    tokio::time::advance(Duration::from_secs(1799)).await;
    fixture.agent.end_idle().await;
    assert_eq!(fixture.session(&started.session_id).await.0.ended_at, None);
    tokio::time::advance(Duration::from_secs(1)).await;
    fixture.agent.end_idle().await;
    let (session, _) = fixture.session(&started.session_id).await;
    assert_eq!(session.ended_at, Some(session.started_at));
}

#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_session_alive() {
    let fixture = Fixture::new(Config::default()).await;
    let started = start(&fixture.agent).await;
    fixture.clock.set(jiff::SignedDuration::from_hours(-1));
    fixture.agent.end_idle().await;
    assert_eq!(fixture.session(&started.session_id).await.0.ended_at, None);
    tokio::time::advance(Duration::from_secs(1800)).await;
    fixture.agent.end_idle().await;
    let (session, _) = fixture.session(&started.session_id).await;
    assert_eq!(session.ended_at, Some(session.started_at));
}

#[tokio::test]
async fn hooks_that_change_nothing_are_not_counted() {
    let fixture = Fixture::new(Config::default()).await;
    let agent = &fixture.agent;
    let started = start(agent).await;
    for (name, count) in [
        ("SessionStart", 0),
        ("Stop", 1),
        ("SessionEnd", 2),
        ("SessionEnd", 2),
    ] {
        emit(agent, &started, &hook(name)).await.unwrap();
        let (session, _) = fixture.session(&started.session_id).await;
        assert_eq!(session.totals.signals, count, "{name}");
    }
    let next = emit(agent, &started, &hook("SessionStart")).await.unwrap();
    assert_ne!(next, started.session_id);
}

#[tokio::test]
async fn a_repeat_is_counted_once() {
    let fixture = Fixture::new(Config::default()).await;
    let agent = &fixture.agent;
    let started = start(agent).await;
    let mut named = usage(None);
    named["call_id"] = "c1".into();
    let mut exact = usage(None);
    exact["ts"] = "2025-05-28T10:00:00.001Z".into();
    // Two calls within one second can be alike.
    for record in [&named, &named, &exact, &exact, &usage(None), &usage(None)] {
        emit(agent, &started, record).await.unwrap();
    }
    let (session, _) = fixture.session(&started.session_id).await;
    assert_eq!(session.totals.signals, 4);
    let agent = fixture.again().await;
    emit(&agent, &started, &named).await.unwrap();
    assert_eq!(
        fixture.session(&started.session_id).await.0.totals.signals,
        4
    );
}

#[tokio::test]
async fn a_key_is_found_without_an_id_and_lasts_a_day() {
    let fixture = Fixture::new(Config::default()).await;
    let agent = &fixture.agent;
    let first = start(agent).await;
    for _ in 0..7 {
        start(agent).await;
    }
    assert_eq!(
        emit(agent, &first, &usage(None)).await.unwrap(),
        first.session_id
    );
    start(agent).await;
    // Of nine sessions the newest eight are tried.
    let unknown = emit(agent, &first, &usage(None)).await.unwrap_err();
    assert!(matches!(unknown, EmitError::Unauthorized(_)), "{unknown}");
    let other =
        json!({"adapter": "tool", "user_id": "other", "ts": 0, "model": "m", "tokens_in": 1});
    assert!(emit(agent, &first, &other).await.is_err());

    tokio::time::advance(KEY_LIFE - Duration::from_secs(1)).await;
    let named = usage(Some(&first.session_id));
    assert!(emit(agent, &first, &named).await.is_ok());
    tokio::time::advance(KEY_LIFE).await;
    assert!(emit(agent, &first, &named).await.is_err());
    agent.end_idle().await;
    assert_eq!(agent.sessions(), 0);
}

#[tokio::test]
async fn a_client_finds_its_session_again() {
    let fixture = Fixture::new(Config::default()).await;
    let request =
        |user: &str| json!({"adapter": "tool", "user_id": user, "client_session_id": "own"});
    let agent = &fixture.agent;
    let (one, two) = (request("u"), request("v"));
    let (first, again, other) =
        tokio::join!(agent.start(&one), agent.start(&one), agent.start(&two));
    let (first, again, other) = (first.unwrap(), again.unwrap(), other.unwrap());
    assert_eq!(first, again);
    assert_ne!(first.session_id, other.session_id);
    let next = fixture.again().await;
    assert_eq!(
        next.start(&one).await.unwrap().session_key,
        first.session_key
    );
    emit(&next, &first, &hook("SessionEnd")).await.unwrap();
    assert_ne!(next.start(&one).await.unwrap().session_id, first.session_id);
}

#[tokio::test]
async fn sessions_are_bounded_and_wrong_requests_refused() {
    let config = Config {
        max_sessions: 2,
        strict: true,
        ..Config::default()
    };
    let fixture = Fixture::new(config).await;
    let agent = &fixture.agent;
    for wrong in [
        json!({}),
        json!([]),
        json!({"adapter": ""}),
        json!({"adapter": "a\u{0}"}),
    ] {
        let refused = agent.start(&wrong).await.unwrap_err();
        assert!(
            matches!(refused, StartError::Invalid(_)),
            "{wrong}: {refused}"
        );
    }
    let started = start(agent).await;
    start(agent).await;
    let full = agent.start(&json!({"adapter": "tool"})).await.unwrap_err();
    assert!(matches!(full, StartError::Full(2)), "{full}");
    let old = emit(agent, &started, &usage(Some(&started.session_id)))
        .await
        .unwrap_err();
    let EmitError::Invalid(problems) = old else {
        panic!("{old}");
    };
    assert_eq!(problems[0].field, "ts");
    tokio::time::advance(KEY_LIFE).await;
    start(agent).await;
}

/// Many signals of one session at once, some of which end it: each is counted in exactly one session.
#[tokio::test]
async fn concurrent_signals_are_each_counted_once() {
    let fixture = Fixture::new(Config::default()).await;
    let agent = &fixture.agent;
    let started = start(agent).await;
    let (signal, end) = (usage(Some(&started.session_id)), hook("SessionEnd"));
    let mut sends = Vec::new();
    for number in 0..200 {
        let record = if number % 10 == 9 { &end } else { &signal };
        sends.push(emit(agent, &started, record));
    }
    futures_util::future::join_all(sends).await;
    let filter = SignalSessionFilter {
        limit: 1000,
        ..SignalSessionFilter::default()
    };
    let sessions = fixture.store.signal_sessions(filter).await.unwrap().items;
    let usage_of = |session: &SignalSession| session.totals.tokens_in;
    assert_eq!(sessions.iter().map(usage_of).sum::<u64>(), 180 * 10);
    let open = sessions.iter().filter(|session| session.ended_at.is_none());
    assert!(open.count() <= 1);
}
