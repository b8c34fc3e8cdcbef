//! Tests of the forwarder with the store in memory.

use forge_base::tasks::Tasks;
use forge_base::vault::Vault;
use forge_store::contract::signals::{session, signal};
use forge_store::memory::Memory;
use forge_store::record::{SignalSession, SignalTotals};
use forge_test_support::callback::{Answer, CallbackSink};
use jiff::Timestamp;
use secrecy::SecretSlice;
use serde_json::Value;

use super::*;
use crate::agent;
use crate::ledger::{self, Ledger};
use crate::terms::Terms;

/// URL where nothing listens.
const NOWHERE: &str = "http://127.0.0.1:1";

/// Forwarder to this URL.
async fn forwarder(store: &Arc<Memory>, url: &str, clock: Clock) -> Forwarder {
    let ledger = Ledger::open(ledger::Setup {
        store: Arc::clone(store) as _,
        clock,
        milestones: Vec::new(),
        terms: Terms::default(),
        tracker: Tasks::here(),
    });
    let setup = agent::Setup {
        config: crate::config::Config::default(),
        store: Arc::clone(store) as _,
        ledger: ledger.await.unwrap(),
        clock,
    };
    let vault = Vault::from_key(&SecretSlice::from(vec![7; 32])).unwrap();
    let config = Config {
        url: Some(url.to_owned()),
        token: Some("t".into()),
    };
    let upstream = Upstream::open(&config, &forge_net::Config::default());
    let setup = Setup {
        upstream: upstream.unwrap().unwrap(),
        store: Arc::clone(store) as _,
        agent: Agent::open(setup, &**store, &vault).await.unwrap(),
        milestones: Vec::new(),
        clock,
    };
    Forwarder::open(setup).await.unwrap()
}

async fn waiting(store: &Memory) -> usize {
    store.signals_to_forward(100).await.unwrap().unwrap().len()
}

#[tokio::test]
async fn old_records_and_those_of_others_are_passed() {
    let store = Arc::new(Memory::default());
    let others = SignalSession {
        source: SignalSource::Engine,
        ..session("others")
    };
    for new in [session("own"), others] {
        store.open_signal_session(new, Vec::new()).await.unwrap();
    }
    store.record_signal(signal("own", 1)).await.unwrap();
    let mut forwarder = forwarder(&store, NOWHERE, Clock::System).await;
    assert_eq!(
        waiting(&store).await,
        0,
        "it begins after the newest record"
    );
    let now = Clock::System.now();
    let hours = |hours: u64| Duration::from_secs(hours * 60 * 60);
    for (id, age) in [("own", hours(25)), ("others", hours(0)), ("own", hours(23))] {
        let mut new = signal(id, 1);
        new.record.at = now.checked_sub(age).unwrap();
        store.record_signal(new).await.unwrap();
    }
    assert!(forwarder.forward_batch().await.is_err());
    let counts = forwarder.meters().outcomes();
    let expected = [
        ("forwarded", 0),
        ("expired", 1),
        ("refused", 0),
        ("failed", 1),
    ];
    assert_eq!(counts, expected);
    assert_eq!(waiting(&store).await, 1, "what failed is sent again");
}

/// Session with a signal that arrived now.
fn fresh(id: &str, now: Timestamp) -> SignalSession {
    SignalSession {
        started_at: now,
        last_at: now,
        totals: SignalTotals {
            signals: 1,
            ..SignalTotals::default()
        },
        ..session(id)
    }
}

/// Types and sessions of the signals that an engine has received so far.
fn arrived(engine: &CallbackSink) -> Vec<(String, String)> {
    let all = engine.received().into_iter();
    let all = all.map(|request| {
        let signal: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(signal["adapter"], "claude-code");
        ["type", "session_id"].map(|name| signal[name].as_str().unwrap().to_owned())
    });
    all.map(|[kind, id]| (kind, id)).collect()
}

#[tokio::test]
async fn live_sessions_have_heartbeats_and_idle_ones_an_end() {
    let engine = CallbackSink::start().await;
    engine.answer(Answer::status(200).body(r#"{"action": "noop"}"#));
    let (store, clock) = (Arc::new(Memory::default()), Clock::tokio());
    let now = clock.now();
    let ended = SignalSession {
        ended_at: Some(now),
        ..fresh("ended", now)
    };
    let silent = SignalSession {
        totals: SignalTotals::default(),
        ..fresh("silent", now)
    };
    for one in [fresh("live", now), ended, silent] {
        store.open_signal_session(one, Vec::new()).await.unwrap();
    }
    let mut forwarder = forwarder(&store, &engine.url(""), clock).await;
    let arrive = |kind: &str| (kind.to_owned(), "live".to_owned());
    let mut expected = vec![arrive(signal::HEARTBEAT)];
    forwarder.beat().await;
    assert_eq!(arrived(&engine), expected);

    // What fails is sent with the next ones only.
    engine.answer(Answer::status(503));
    forwarder.beat().await;
    expected.push(arrive(signal::HEARTBEAT));
    assert_eq!(arrived(&engine), expected);
    assert_eq!(forwarder.meters().outcomes()[3], ("failed", 1));

    // The time of the agent moves, and the network needs real time.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(30 * 60)).await;
    tokio::time::resume();
    forwarder.beat().await;
    expected.push(arrive(signal::END));
    assert_eq!(arrived(&engine), expected, "an end that fails");
    engine.answer(Answer::status(200).body(r#"{"action": "noop"}"#));
    for _ in 0..2 {
        forwarder.beat().await;
    }
    expected.push(arrive(signal::END));
    assert_eq!(arrived(&engine), expected, "it ends once");
}

#[test]
fn waits_double_to_a_minute() {
    for (failures, seconds) in [(1, 1.0), (2, 2.0), (3, 4.0)] {
        let waited = wait(failures).as_secs_f64();
        assert!((seconds * 0.8..=seconds * 1.2).contains(&waited));
    }
    assert_eq!(wait(10), LONGEST_WAIT);
    assert_eq!(wait(u32::MAX), LONGEST_WAIT);
}
