//! Limits of signals that several bridges of one database record.

use serde_json::json;

use super::fleet::Fleet;
use crate::harness::process::Process;
use crate::harness::until;
use crate::signals::Tool;

const LIMIT: usize = 8;

/// Signals that a bridge counts for the rule.
async fn used(bridge: &Process) -> usize {
    let (_, report) = bridge.api.get("/api/v2/signals/rules").await;
    let used = report["rules"][0]["windows"][0]["used"].as_f64();
    used.unwrap_or_default() as usize
}

#[tokio::test]
async fn a_limit_counts_what_the_other_bridges_record() {
    let fleet = Fleet::new(&["one", "two"]);
    let rule = json!({
        "id": "a", "scope": "org", "window": "all-time", "action": "block", "condition": {"signals": {"gte": LIMIT}},
    });
    for home in &fleet.homes {
        let folder = home.dir.path();
        let rules = json!({"version": 1, "rules": [rule]}).to_string();
        std::fs::write(folder.join("rules.json"), rules).unwrap();
        let settings = folder.join("bridge.toml");
        let text = std::fs::read_to_string(&settings).unwrap();
        let text = format!("{text}[signals]\nrules = \"rules.json\"\nuser = \"ana\"\n");
        std::fs::write(settings, text).unwrap();
    }
    let bridges = fleet.start().await;
    let mut tools = Vec::new();
    for (number, bridge) in bridges.iter().enumerate() {
        let request = json!({"adapter": "a", "client_session_id": number.to_string()});
        tools.push(Tool::try_start(&bridge.api, &request).await.unwrap());
    }
    let emit = async |tool: usize, number: usize| {
        let record = json!({
            "adapter": "a", "ts": 0, "model": "m", "tokens_in": 1, "call_id": format!("{tool}-{number}"),
        });
        tools[tool].try_emit(&record).await.unwrap()
    };
    // From now on both have counted.
    for tool in 0..2 {
        assert_eq!(emit(tool, 0).await["blocked"], false);
    }
    for number in 1..LIMIT - 2 {
        assert_eq!(emit(0, number).await["blocked"], false);
    }
    // Of its own ones, the second has one.
    until("the second knows them", async || {
        (used(&bridges[1]).await == LIMIT - 1).then_some(())
    })
    .await;
    assert_eq!(emit(1, 1).await["blocked"], true);
    until("the first knows it", async || {
        (used(&bridges[0]).await == LIMIT).then_some(())
    })
    .await;
    assert_eq!(emit(0, LIMIT).await["blocked"], true);
    // Each counted its own once.
    assert_eq!(used(&bridges[0]).await, LIMIT + 1);
}
