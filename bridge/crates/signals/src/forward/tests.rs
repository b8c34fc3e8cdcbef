//! Tests of the forwarder with the store in memory.

use forge_base::tasks::Tasks;
use forge_base::vault::Vault;
use forge_store::contract::signals::{session, signal};
use forge_store::memory::Memory;
use forge_store::record::SignalSession;
use secrecy::SecretSlice;

use super::*;
use crate::agent;
use crate::ledger::{self, Ledger};
use crate::terms::Terms;

/// Forwarder to an address where nothing listens.
async fn forwarder(store: &Arc<Memory>) -> Forwarder {
    let clock = Clock::System;
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
        url: Some("http://127.0.0.1:1".to_owned()),
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
    let mut forwarder = forwarder(&store).await;
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
    let [forwarded, expired, refused, failed] =
        forwarder.meters().outcomes().map(|(_, count)| count);
    assert_eq!((forwarded, expired, refused, failed), (0, 1, 0, 1));
    assert_eq!(waiting(&store).await, 1, "what failed is sent again");
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
