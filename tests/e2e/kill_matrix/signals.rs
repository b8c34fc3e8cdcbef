//! Signals, killed around the commit of one and around the cursor of forwarding: each is counted once, whether it was
//! answered or is sent again.

use std::fs;
use std::time::Duration;

use forge_base::failpoint::{POINTS, VARIABLE};
use serde_json::{Value, json};

use super::is_of_other_store;
use crate::harness::process::{Home, Process};
use crate::signal_forward::{self, Team, laptop};
use crate::signals::Tool;
use crate::signals_engine;

const RECORDS: usize = 8;
/// Token of an adapter; none is configured.
const TOKEN: &str = "any";

/// True for the points that only a signal passes.
pub(super) fn is_of_signals(point: &str) -> bool {
    point.starts_with("signal.")
}

fn is_of_forwarding(point: &str) -> bool {
    point.starts_with("signal.forward.")
}

fn is_of_engine(point: &str) -> bool {
    point.starts_with("signal.engine.")
}

/// Home with rules that block once all records are counted: one over all time, one of a day.
fn home() -> Home {
    let home = Home::new(&[]);
    let rule = |id: &str, scope: &str, window: &str| json!({"id": id, "scope": scope, "window": window, "action": "block", "condition": {"signals": {"gte": RECORDS}}});
    let rules =
        json!({"version": 1, "rules": [rule("a", "org", "all-time"), rule("b", "user", "1d")]});
    fs::write(home.dir.path().join("rules.json"), rules.to_string()).unwrap();
    let settings = "[signals]\nrules = \"rules.json\"\nuser = \"ana\"\n";
    fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
    home
}

fn record(number: usize) -> Value {
    json!({"adapter": "a", "ts": 0, "model": "m", "tokens_in": 1, "call_id": number.to_string()})
}

/// Sends the records from this one on until the bridge is gone; returns the number of those that were answered.
async fn send(bridge: &Process, from: usize) -> usize {
    let request = json!({"adapter": "a", "client_session_id": "own"});
    let Some(tool) = Tool::try_start(&bridge.api, &request).await else {
        return from;
    };
    for number in from..RECORDS {
        match tool.try_emit(&record(number)).await {
            Some(answer) => assert_eq!(
                answer["blocked"],
                number + 1 == RECORDS,
                "{number}: {answer}"
            ),
            None => return number,
        }
    }
    RECORDS
}

#[tokio::test]
async fn a_signal_is_counted_once_wherever_the_bridge_is_killed() {
    let own = POINTS.iter().copied();
    let own = own.filter(|point| point.starts_with("signal.record."));
    let of_store = [
        "store.commit.before",
        "store.commit.after",
        "store.answered",
        "database.commit.before",
        "database.commit.after",
        "database.answered",
    ];
    let of_store = of_store
        .into_iter()
        .filter(|point| !is_of_other_store(point));
    let points: Vec<_> = own.chain(of_store).collect();
    let mut kills = 0;
    for point in &points {
        for passing in [1, 3, 6] {
            let mut home = home();
            home.set(VARIABLE, &format!("{point}:{passing}"));
            // The store passes its points while the bridge starts, too.
            let answered = match home.launch() {
                Ok(bridge) => send(&bridge, 0).await,
                Err(_) => 0,
            };
            home.variables.remove(VARIABLE);
            kills += usize::from(answered < RECORDS);
            let bridge = home.start();
            assert_eq!(send(&bridge, answered).await, RECORDS, "{point}:{passing}");
            bridge.kill();
        }
    }
    assert_eq!(kills, 3 * points.len(), "each point is reached");
}

/// Sends signals to the engine API like [`send`].
async fn send_to_engine(bridge: &Process, from: usize) -> usize {
    for number in from..RECORDS {
        let signal = json!({
            "type": "post-tool", "adapter": "a", "session_id": "s", "call_id": number.to_string(),
            "metadata": {"tokens_in": 1},
        });
        let Some(answer) = signals_engine::try_send(&bridge.api, TOKEN, &signal).await else {
            return number;
        };
        let blocks = answer["severity"] == "critical";
        assert_eq!(blocks, number + 1 == RECORDS, "{number}: {answer}");
        assert_eq!(answer["logged"], true, "{number}: {answer}");
    }
    RECORDS
}

#[tokio::test]
async fn a_signal_of_the_engine_is_counted_once_wherever_the_bridge_is_killed() {
    let mut kills = 0;
    for point in POINTS.iter().filter(|point| is_of_engine(point)) {
        for passing in [1, 5] {
            let mut home = home();
            home.set(VARIABLE, &format!("{point}:{passing}"));
            let answered = send_to_engine(&home.start(), 0).await;
            assert_eq!(answered, passing - 1, "{point}");
            kills += 1;
            home.variables.remove(VARIABLE);
            let bridge = home.start();
            let all = send_to_engine(&bridge, answered).await;
            assert_eq!(all, RECORDS, "{point}:{passing}");
            bridge.kill();
        }
    }
    assert_eq!(kills, 4, "each point is reached");
}

/// Sends all records and the end of the session, each after the one before was forwarded; false if the bridge is gone.
async fn forward(bridge: &Process) -> bool {
    let request = json!({"adapter": "a", "client_session_id": "own"});
    let Some(tool) = Tool::try_start(&bridge.api, &request).await else {
        return false;
    };
    let records = (0..RECORDS).map(|number| signal_forward::record(number, 1));
    for record in records.chain([signal_forward::end()]) {
        if tool.try_emit(&record).await.is_none() {
            return false;
        }
        // Time for the forwarder to begin: several records at once keep the cursor once.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

#[tokio::test]
async fn a_record_is_forwarded_and_counted_once_wherever_the_bridge_is_killed() {
    let team = Team::start(u64::MAX >> 1);
    let own = POINTS.iter().copied();
    for point in own.filter(|point| is_of_forwarding(point)) {
        for passing in [1, 2] {
            let mut home = laptop(team.address, "signals");
            home.set(VARIABLE, &format!("{point}:{passing}"));
            let bridge = home.start();
            let request = json!({"adapter": "a", "client_session_id": "own"});
            let tool = Tool::try_start(&bridge.api, &request).await.unwrap();
            forward(&bridge).await;
            bridge.ended().await;
            home.variables.remove(VARIABLE);
            let bridge = home.start();
            assert!(forward(&bridge).await, "{point}:{passing}");
            let counted = team.counted(&tool.session).await;
            assert_eq!(counted, RECORDS as u64, "{point}:{passing}");
            bridge.kill();
        }
    }
}
