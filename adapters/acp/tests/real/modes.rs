//! The mode in which an agent asks before it acts.

use forge_adapter_api::{ExecutionAdapter as _, HealthStatus};
use forge_test_support::execution::Execution;
use serde_json::json;

use crate::bench::{Agent, Bench};

#[tokio::test]
async fn an_agent_that_begins_in_a_mode_of_its_own_asks_before_it_acts() {
    for agent in [Agent::Claude, Agent::Gemini] {
        let bench = Bench::new(agent).await;
        let hooks = json!({"hooks": {"UserPromptSubmit": [{"hooks": [
            {"type": "command", "command": format!("touch {}", bench.path("hooked").display())},
        ]}]}});
        std::fs::create_dir(bench.path(".claude")).unwrap();
        std::fs::write(bench.path(".claude/settings.json"), hooks.to_string()).unwrap();
        let made = bench.path("made");

        let ran = bench
            .say(&agent.shell(&format!("touch {}", made.display())))
            .await;

        ran.succeeded();
        assert_eq!(decisions(&ran), [false], "{agent:?}: {:?}", ran.events);
        assert!(!made.exists(), "{agent:?}");
        assert!(
            !bench.path("hooked").exists(),
            "{agent:?}: a hook of the workspace ran"
        );
        let health = bench.adapter.check_health().await;
        assert_eq!(
            (health.status, health.message),
            (HealthStatus::Healthy, None)
        );
    }
}

#[tokio::test]
async fn the_operators_mode_is_kept_unless_deny_forbids_it() {
    let table = json!({"mode": "yolo", "permission": "allow"});
    let bench = Bench::with(Agent::Gemini, table).await;
    let made = bench.path("made");
    let command = Agent::Gemini.shell(&format!("touch {}", made.display()));
    let ran = bench.say(&command).await;
    ran.succeeded();
    assert!(
        made.exists() && decisions(&ran).is_empty(),
        "{:?}",
        ran.events
    );

    for (mode, code) in [("yolo", "blocked_by_policy"), ("night", "invalid_request")] {
        let bench = Bench::with(Agent::Gemini, json!({"mode": mode})).await;
        let ran = bench.say("hello").await;
        ran.failed(code);
        assert!(
            ran.result.error.as_ref().unwrap().contains(mode),
            "{:?}",
            ran.result
        );
        assert!(bench.model.requests().is_empty(), "{mode}");
    }
}

#[tokio::test]
async fn an_agent_without_a_mode_that_asks_is_a_warning_of_its_health() {
    let bench = Bench::new(Agent::OpenCode).await;
    assert_eq!(bench.adapter.check_health().await.message, None);
    bench.say("hello").await.succeeded();
    let health = bench.adapter.check_health().await;
    assert_eq!(health.status, HealthStatus::Healthy);
    assert!(health.message.unwrap().contains("no mode in which it asks"));
}

/// The decisions on permission requests, true if allowed.
fn decisions(ran: &Execution) -> Vec<bool> {
    let progress = ran.all("exec.progress").into_iter();
    let decided = progress.filter(|data| data["kind"] == "permission");
    decided.map(|data| data["allowed"] == true).collect()
}
