//! Warm processes. `FORGE_ACP_TURNS` sets the number of turns that are measured, with real agents, too.

use std::time::{Duration, Instant};

use forge_adapter_acp::Acp;
use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest, HealthStatus};
use forge_test_support::deadline::until;
use forge_test_support::execution::Execution;
use forge_test_support::instance::with_members;
use forge_test_support::process;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bench::{self, Agent, Bench};

/// An adapter with warm processes of the script, which logs its processes and their sessions.
struct Script {
    adapter: Acp,
    folder: TempDir,
}

impl Script {
    async fn new(what: &str, table: &Value) -> Self {
        let script = format!("{}/tests/real/agent.py", env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let config = json!({
            "program": "python3", "args": [script, what], "env": {"AGENT_LOG": log}, "warm": 1,
        });
        Self {
            adapter: bench::adapter(with_members(config, table)).await,
            folder,
        }
    }

    fn request(&self) -> ExecutionRequest {
        bench::request("hello", self.folder.path())
    }

    async fn run(&self) -> Execution {
        bench::run(&self.adapter, self.request()).await
    }

    /// Ids of the processes that logged this, in order.
    fn logged(&self, what: &str) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let pairs = log.lines().filter_map(|line| line.split_once(' '));
        pairs
            .filter(|(found, _)| *found == what)
            .map(|(_, pid)| pid.to_owned())
            .collect()
    }
}

/// Waits until this number of processes is ready; returns their ids.
async fn waiting(adapter: &Acp, wanted: usize) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let details = adapter.check_health().await.details.unwrap();
        let warm = details["warm"].as_array().unwrap();
        if warm.len() == wanted {
            return warm.iter().map(|line| line["pid"].to_string()).collect();
        }
        assert!(Instant::now() < end, "{details}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn each_process_waits_for_one_run_and_serves_no_other_agent() {
    let script = Script::new("plain", &json!({})).await;
    let mut served = Vec::new();
    for n in 0..6 {
        let mut request = script.request();
        request.agent_id = format!("agent-{}", n % 2);
        let ran = bench::run(&script.adapter, request).await;
        let cwd = script.folder.path().canonicalize().unwrap();
        assert_eq!(ran.succeeded(), format!("{}: hello", cwd.display()));
        served.extend(waiting(&script.adapter, 1).await);
    }
    let last = served.pop().unwrap();
    // The first run started its own process.
    assert_eq!(script.logged("files")[1..], served);
    let (mut started, sessions) = (script.logged("start"), script.logged("files"));
    assert_eq!((started.len(), sessions.len()), (7, 6));
    assert_eq!(started.pop(), Some(last));
    assert_eq!(started, sessions, "one session for each process");
    until(|| !sessions.iter().any(|pid| process::exists(pid))).await;
}

#[tokio::test]
async fn health_has_the_memory_and_the_start_and_nothing_unless_configured() {
    let script = Script::new("plain", &json!({})).await;
    script.run().await.succeeded();
    waiting(&script.adapter, 1).await;
    let health = script.adapter.check_health().await;
    let warm = &health.details.unwrap()["warm"][0];
    assert!(warm["memoryBytes"].as_u64().unwrap() > 1 << 20, "{warm}");
    assert!(warm["startMs"].as_u64().unwrap() > 0, "{warm}");
    let at = warm["startedAt"].as_str().unwrap();
    assert!(at.len() == 24 && at.ends_with('Z'), "{at}");
    let cold = Script::new("plain", &json!({"warm": 0})).await;
    cold.run().await.succeeded();
    assert_eq!(cold.adapter.check_health().await.details, None);
    assert_eq!(cold.logged("start").len(), 1);
}

#[tokio::test]
async fn one_that_dies_while_it_waits_is_told_and_replaced_by_the_next_run() {
    let script = Script::new("plain", &json!({})).await;
    script.run().await.succeeded();
    let killed = waiting(&script.adapter, 1).await.remove(0);
    assert!(process::kill(&killed));
    waiting(&script.adapter, 0).await;
    until(|| !process::exists(&killed)).await;
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let health = script.adapter.check_health().await;
        assert_eq!(health.status, HealthStatus::Healthy);
        let message = health.message.unwrap_or_default();
        if message.contains("signal: 9") {
            break;
        }
        assert!(Instant::now() < end, "{message}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    script.run().await.succeeded();
    let next = waiting(&script.adapter, 1).await.remove(0);
    assert_ne!(next, killed);
    let sessions = script.logged("files");
    assert!(!sessions.contains(&killed) && sessions.len() == 2);
    let message = script.adapter.check_health().await.message.unwrap();
    assert!(!message.contains("warm"), "{message}");
}

#[tokio::test]
async fn one_that_cannot_open_the_session_is_replaced_within_the_run() {
    for what in ["dies_when_changed", "login_when_changed"] {
        let script = Script::new(what, &json!({})).await;
        script.run().await.succeeded();
        waiting(&script.adapter, 1).await;
        std::fs::write(script.folder.path().join("log.changed"), "").unwrap();
        script.run().await.succeeded();
        let health = script.adapter.check_health().await;
        assert_eq!(health.status, HealthStatus::Healthy, "{health:?}");
    }
}

#[tokio::test]
async fn one_that_cannot_open_any_session_fails_the_run_after_a_fresh_one_did() {
    let script = Script::new("forgetful", &json!({})).await;
    script.run().await.succeeded();
    waiting(&script.adapter, 1).await;
    let mut request = script.request();
    request.session_id = Some("s".to_owned());
    let ran = bench::run(&script.adapter, request).await;
    ran.failed("invalid_request");
    assert_eq!(
        script.logged("start").len(),
        2,
        "no other would load it either"
    );

    let script = Script::new("forgot", &json!({})).await;
    script.run().await.succeeded();
    waiting(&script.adapter, 1).await;
    let mut request = script.request();
    request.session_id = Some("s".to_owned());
    let ran = bench::run(&script.adapter, request).await;
    ran.failed("session_not_found");
    assert_eq!(script.logged("start").len(), 3);
}

#[tokio::test]
async fn an_unused_one_ends_after_its_time_and_the_next_run_starts_another() {
    let script = Script::new("plain", &json!({"warm_idle": "1s"})).await;
    for _ in 0..2 {
        script.run().await.succeeded();
        until(|| script.logged("start").len() == 2 * script.logged("files").len()).await;
        let started = script.logged("start");
        until(|| !started.iter().any(|pid| process::exists(pid))).await;
        waiting(&script.adapter, 0).await;
    }
    assert_eq!(script.logged("start").len(), 4);
}

#[tokio::test]
async fn a_run_without_a_workspace_gets_no_agent_that_expects_one() {
    let script = Script::new("plain", &json!({})).await;
    script.run().await.succeeded();
    let idle = waiting(&script.adapter, 1).await;
    let mut request = script.request();
    request.workspace = None;
    bench::run(&script.adapter, request).await.succeeded();
    assert_eq!(waiting(&script.adapter, 1).await, idle, "it still waits");
    assert_eq!(script.logged("bare").len(), 1);
    script.run().await.succeeded();
    assert_eq!(script.logged("files")[1..], idle);
}

#[tokio::test]
async fn several_wait_and_all_end_with_the_adapter() {
    for is_shutdown in [false, true] {
        let script = Script::new("plain", &json!({"warm": 3})).await;
        script.run().await.succeeded();
        waiting(&script.adapter, 3).await;
        let two = async || {
            let (first, second) = tokio::join!(script.run(), script.run());
            first.succeeded();
            second.succeeded();
        };
        two().await;
        waiting(&script.adapter, 3).await;
        match is_shutdown {
            true => script.adapter.shutdown().await.unwrap(),
            // At a reload, before the last runs end.
            false => script.adapter.stop_event_relay().await.unwrap(),
        }
        waiting(&script.adapter, 0).await;
        let started = script.logged("start");
        assert_eq!(started.len(), 6);
        until(|| !started.iter().any(|pid| process::exists(pid))).await;
        script.run().await.succeeded();
        assert_eq!(script.logged("start").len(), 7, "none is kept any more");
    }
}

#[tokio::test]
async fn an_agent_that_cannot_start_is_not_started_again_and_again() {
    let script = Script::new("login", &json!({})).await;
    script.run().await.failed("unauthenticated");
    waiting(&script.adapter, 0).await;
    assert_eq!(script.logged("start").len(), 1);
}

/// Each real agent goes on with a session of the process before, in the workspace, with the caller's tools.
#[tokio::test]
async fn real_agents_resume_sessions_and_work_in_the_workspace() {
    for agent in [Agent::Hermes, Agent::OpenCode, Agent::Claude, Agent::Gemini] {
        let bench = Bench::with(agent, json!({"permission": "allow", "warm": 1})).await;
        let first = bench.say("my word is plum").await;
        first.succeeded();
        let idle = waiting(&bench.adapter, 1).await;
        let command = agent.shell("echo $PPID > here");
        let mut request = bench.request(&format!("what is it? {command}"));
        // Gemini CLI 0.61.0 does not find the sessions that it saved over ACP.
        let is_resumed = agent != Agent::Gemini;
        if is_resumed {
            request.session_id.clone_from(&first.result.session_id);
        }
        let second = bench.run(request).await;
        second.succeeded();
        let asked = bench.asked_last("what is it");
        assert_eq!(asked.contains("my word is plum"), is_resumed, "{agent:?}");
        assert!(bench.path("here").exists(), "{agent:?}");
        assert_ne!(waiting(&bench.adapter, 1).await, idle, "{agent:?}");
        assert!(!process::exists(&idle[0]), "{agent:?}: it is used up");
        println_figures(agent, &bench.adapter).await;
    }
}

#[tokio::test]
async fn tools_of_the_caller_are_offered_by_a_warm_process() {
    let bench = Bench::with(Agent::OpenCode, json!({"warm": 1})).await;
    bench.say("hello").await.succeeded();
    waiting(&bench.adapter, 1).await;
    let mut request = bench.request("CALL forge_crm_find {\"who\":\"bob\"}");
    let tools = json!([{"name": "crm.find", "inputSchema": {"type": "object"}}]);
    request.tools = serde_json::from_value(tools).unwrap();
    let asked = bench.run(request).await;
    assert_eq!(
        asked.result.tool_calls[0].name, "crm.find",
        "{:?}",
        asked.result
    );
}

/// Times of turns with and without a warm process, each turn begun when one is ready.
#[tokio::test]
async fn turns_are_measured_with_and_without_a_warm_process() {
    let set = std::env::var("FORGE_ACP_TURNS").ok();
    let turns = set.as_ref().map_or(3, |turns| turns.parse().unwrap());
    let agents: &[Agent] = match set {
        Some(_) => &[Agent::OpenCode, Agent::Claude],
        None => &[],
    };
    for warm in [0, 1] {
        let script = Script::new("plain", &json!({ "warm": warm })).await;
        let request = || script.request();
        measure("script", &script.adapter, warm, turns, request).await;
        for &agent in agents {
            let bench = Bench::with(agent, json!({ "warm": warm })).await;
            let request = || bench.request("hello");
            measure(&format!("{agent:?}"), &bench.adapter, warm, turns, request).await;
        }
    }
}

#[expect(clippy::print_stdout, reason = "figures for people")]
async fn measure(
    name: &str,
    adapter: &Acp,
    warm: usize,
    turns: usize,
    request: impl Fn() -> ExecutionRequest,
) {
    bench::run(adapter, request()).await.succeeded();
    let mut times = Vec::new();
    for _ in 0..turns {
        if warm > 0 {
            waiting(adapter, warm).await;
        }
        let began = Instant::now();
        bench::run(adapter, request()).await.succeeded();
        times.push(began.elapsed());
    }
    times.sort_unstable();
    println!(
        "{name}, warm = {warm}: p50 of {turns} turns {:.0?}, from {:.0?} to {:.0?}",
        times[turns / 2],
        times[0],
        times[turns - 1]
    );
}

#[expect(clippy::print_stdout, reason = "figures for people")]
async fn println_figures(agent: Agent, adapter: &Acp) {
    let health = adapter.check_health().await;
    println!("{agent:?}: {}", health.details.unwrap_or_default());
}
