//! The console in a real browser.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};

use super::external::register;
use super::harness::api::quiet;
use super::harness::{Answer, Bridge, CallbackSink, browser, until};
use super::runs::Origin;
use super::signals::{Tool, agent_url};

const TOKEN: &str = "console-token-console-token-0001";

const SHAKY: &str = "
[plugin.restart]
backoff = \"1ms\"
crash_limit = 2
[adapters.echo]
isolation = \"process\"
";

/// Starts a bridge and waits until its adapter is in quarantine.
async fn quarantined() -> Bridge {
    let bridge = Bridge::configured(SHAKY, &[]).await;
    for task in ["first", "second"] {
        bridge.api.run(quiet(task, "crash")).await;
    }
    until("the quarantine", || async {
        let (_, echo) = bridge.api.get("/api/v2/adapters/echo").await;
        (!echo["quarantine"].is_null()).then_some(())
    })
    .await;
    bridge
}

/// Service with a query, and a command that has to be approved.
fn billing(sink: &CallbackSink) -> Value {
    json!({
        "forgeProtocol": "1.0", "language": "rust",
        "service": {
            "name": "billing", "transport": "http", "baseUrl": sink.url("/"), "health": "/billing/health",
        },
        "entries": [
            {"name": "createInvoice", "kind": "command", "path": "/billing", "needsApproval": true},
            {"name": "listInvoices", "kind": "query", "path": "/billing"},
        ],
    })
}

/// Uses half of a budget of a dollar, and more than another one, whose user is told.
async fn spend(bridge: &Bridge) {
    let agent = agent_url(bridge).await;
    for (user, costs) in [("ana", vec![0.5]), ("ben", vec![0.9, 0.35])] {
        let started = json!({"adapter": "my-tool", "user_id": user, "project_id": "web"});
        let tool = Tool::start(&agent, &started).await;
        for cost in costs {
            let record = json!({"adapter": "my-tool", "ts": 0, "model": "m", "tokens_in": 1200, "cost_usd": cost});
            assert_eq!(tool.emit(&record).await.0, 200);
        }
        let unpriced = json!({"adapter": "my-tool", "ts": 0, "model": "m", "tokens_in": 7});
        assert_eq!(tool.emit(&unpriced).await.0, 200);
    }
}

#[tokio::test]
async fn an_operator_can_do_everything_in_the_console() {
    let sink = CallbackSink::start().await;
    let answer = Arc::new(AtomicU16::new(410));
    let services = tempfile::tempdir().unwrap();
    register(services.path(), &[billing(&sink)]);
    sink.answer_with(move |request| {
        if request.path.starts_with("/billing") {
            return Answer::status(200).body(r#"{"result": {"id": 7}}"#);
        }
        let asked = request.path.split_once('?');
        let asked = asked.and_then(|(_, query)| query.parse().ok());
        if let Some(status) = asked {
            answer.store(status, Ordering::Relaxed);
        }
        Answer::status(answer.load(Ordering::Relaxed))
    });
    let root = services.path();
    let rules = tempfile::NamedTempFile::new().unwrap();
    let limits = json!({
        "version": 1,
        "rules": [{"id": "errors", "scope": "org", "window": "1h", "action": "notify", "condition": {"errors": {"gte": 20}}}],
        "budgets": [{"id": "daily", "scope": "user", "window": "1d", "limitUsd": 1}],
    });
    std::fs::write(rules.path(), limits.to_string()).unwrap();
    let rules = rules.path();
    let file = format!(
        "[external]\nroot = {root:?}\nenforce = [\"approval\"]\n[signals]\nrules = {rules:?}\n"
    );
    let variables = [
        ("BRIDGE_TOKENS", TOKEN),
        // The script closes the breaker itself.
        ("BRIDGE_CALLBACK_BREAKER_OPEN", "5m"),
    ];
    let bridge = Bridge::configured(&file, &variables).await;
    spend(&bridge).await;
    let shaky = quarantined().await;
    let managing = Bridge::with(&[("BRIDGE_ADAPTERS", "echo,manager")]).await;
    let origin = Origin::new();
    let running = Bridge::configured(&origin.settings(), &[]).await;
    let arguments = [
        bridge.api.url.as_str(),
        TOKEN,
        &sink.url("/hook"),
        &shaky.api.url,
        &managing.api.url,
        &running.api.url,
        &origin.url(),
    ];
    browser::run("console.mjs", &arguments).await;
    bridge.stop().await;
    shaky.stop().await;
    managing.stop().await;
    running.stop().await;
}
