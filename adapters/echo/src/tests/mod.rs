//! Tests of the models without the boundary; only the conformance checks cross it.

mod runs;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forge_adapter_api::request::{ToolResult, Turn, Workspace};
use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Host,
    OutputStrategy, Result, Status, conformance,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::Echo;

async fn echo(config: Value) -> Echo {
    let config = Config::try_from(config).unwrap();
    Echo::initialize(Host::detached(), config).await.unwrap()
}

fn request(model: &str, message: &str) -> ExecutionRequest {
    ExecutionRequest {
        model: Some(model.to_owned()),
        ..ExecutionRequest::sample(message)
    }
}

async fn run(request: ExecutionRequest) -> (Result<ExecutionResult>, Vec<AdapterEvent>) {
    let (events, mut received) = Events::channel(1_000);
    let result = echo(json!({})).await.execute(request, events).await;
    (result, drain(&mut received))
}

fn drain(received: &mut mpsc::Receiver<AdapterEvent>) -> Vec<AdapterEvent> {
    std::iter::from_fn(|| received.try_recv().ok()).collect()
}

fn kinds(events: &[AdapterEvent]) -> Vec<&str> {
    events.iter().map(|event| event.kind.as_str()).collect()
}

#[tokio::test]
async fn the_output_is_the_message() {
    for model in ["ok", "gpt-of-others"] {
        let (result, events) = run(request(model, "hello there")).await;
        let result = result.unwrap();
        assert_eq!(result.output.as_deref(), Some("hello there"));
        assert_eq!(result.usage.total_tokens, Some(4));
        assert_eq!(kinds(&events), ["assistant.text"]);
    }
}

#[tokio::test]
async fn stream_sends_its_pieces_and_returns_their_text() {
    let (result, events) = run(request("stream:3", "a")).await;
    assert_eq!(result.unwrap().output.as_deref(), Some("a 1\na 2\na 3\n"));
    assert_eq!(kinds(&events), ["assistant.text"; 3]);
}

#[tokio::test]
async fn usage_grows_and_ends_with_the_totals() {
    let (result, events) = run(request("usage:2", "one two")).await;
    let result = result.unwrap();
    assert_eq!(result.usage.total_tokens, Some(8));
    let totals: Vec<&Value> = events
        .iter()
        .filter_map(|event| event.data.as_ref()?.get("totalTokens"))
        .collect();
    assert_eq!(totals, [&json!(4), &json!(8)]);
    let last = events.last().unwrap().data.as_ref().unwrap();
    assert_eq!(last["costUsd"].as_f64(), result.cost_usd);
}

#[tokio::test]
async fn tools_are_handed_back_until_they_are_answered() {
    let tool = json!({"name": "search", "inputSchema": {"properties": {"q": {"type": "string"}}}});
    let first = ExecutionRequest {
        tools: vec![serde_json::from_value(tool).unwrap()],
        ..request("tools:2", "find it")
    };
    let (result, events) = run(first.clone()).await;
    let handed = result.unwrap();
    assert_eq!(handed.tool_calls.len(), 1);
    assert_eq!(handed.tool_calls[0].input, json!({"q": "text"}));
    assert!(
        events.is_empty(),
        "the bridge sends the events of calls handed back"
    );

    let answer = |output: Value, is_error| ToolResult {
        tool_call_id: handed.tool_calls[0].tool_call_id.clone(),
        name: "search".to_owned(),
        output,
        is_error,
    };
    let second = ExecutionRequest {
        session_id: handed.session_id.clone(),
        tool_results: vec![answer(json!("one"), false)],
        turns: vec![Turn::default()],
        ..first
    };
    let (result, _) = run(second.clone()).await;
    let again = result.unwrap();
    assert_eq!(again.session_id, handed.session_id);
    assert_ne!(
        again.tool_calls, handed.tool_calls,
        "each call has its own id"
    );

    let third = ExecutionRequest {
        tool_results: vec![answer(json!("no"), true), answer(json!({"n": 2}), false)],
        turns: vec![Turn::default(); 2],
        ..second
    };
    let (result, _) = run(third).await;
    assert_eq!(
        result.unwrap().output.as_deref(),
        Some("failed: no\n{\"n\":2}")
    );
}

#[tokio::test]
async fn a_message_may_say_which_tools_to_call() {
    let (result, _) = run(request("tools", r#"{"add": {"a": 1}, "now": {}}"#)).await;
    let calls = result.unwrap().tool_calls;
    let called: Vec<_> = calls
        .iter()
        .map(|call| (call.name.as_str(), &call.input))
        .collect();
    assert_eq!(called, [("add", &json!({"a": 1})), ("now", &json!({}))]);
}

#[tokio::test]
async fn a_session_remembers_its_turns() {
    let echo = echo(json!({})).await;
    let first = echo
        .execute(request("session", "one"), Events::nowhere())
        .await
        .unwrap();
    let again = ExecutionRequest {
        session_id: first.session_id.clone(),
        ..request("session", "two")
    };
    let second = echo.execute(again, Events::nowhere()).await.unwrap();
    assert_eq!(second.session_id, first.session_id);
    assert_eq!(second.output.as_deref(), Some("one\ntwo"));
}

#[tokio::test]
async fn structured_takes_json_or_samples_the_schema() {
    let (result, _) = run(request("structured", "{\"a\": 1}")).await;
    assert_eq!(result.unwrap().structured_output, Some(json!({"a": 1})));
    let sampled = ExecutionRequest {
        output_schema: Some(json!({"properties": {"n": {"type": "integer"}}})),
        output_strategy: OutputStrategy::Structured,
        ..request("structured", "not json")
    };
    let (result, _) = run(sampled).await;
    assert_eq!(result.unwrap().structured_output, Some(json!({"n": 0})));
}

/// A request to write `file` below `dir`.
fn write_to(dir: &Path, file: &str) -> ExecutionRequest {
    ExecutionRequest {
        output_file: Some(file.to_owned()),
        workspace: Some(Workspace {
            dir: Some(dir.display().to_string()),
            id: None,
        }),
        ..request("file", "written")
    }
}

/// A folder with a workspace, `w`, and a file beside it, `secret`.
fn beside_a_secret() -> (tempfile::TempDir, PathBuf) {
    let held = tempfile::tempdir().unwrap();
    let base = held.path().canonicalize().unwrap();
    std::fs::create_dir(base.join("w")).unwrap();
    std::fs::write(base.join("secret"), "secret").unwrap();
    (held, base)
}

#[tokio::test]
async fn file_writes_below_the_workspace_and_nowhere_else() {
    let (_held, base) = beside_a_secret();
    let dir = base.join("w");
    let (result, _) = run(write_to(&dir, "sub/out.md")).await;
    assert_eq!(result.unwrap().status, Status::Ok);
    let written = std::fs::read_to_string(dir.join("sub/out.md")).unwrap();
    assert_eq!(written, "written");
    symlink(base.join("secret"), dir.join("link")).unwrap();
    symlink(&base, dir.join("up")).unwrap();
    std::fs::hard_link(base.join("secret"), dir.join("hard")).unwrap();
    let made = Command::new("mkfifo").arg(dir.join("pipe")).status();
    assert!(made.unwrap().success());
    for (outside, code) in [
        ("../out.md", "invalid_request"),
        ("/tmp/out.md", "invalid_request"),
        ("link", "internal"),
        ("up/secret", "internal"),
        ("hard", "internal"),
        ("pipe", "internal"),
    ] {
        let (result, _) = run(write_to(&dir, outside)).await;
        assert_eq!(result.unwrap_err().code, code, "{outside}");
    }
    let secret = std::fs::read_to_string(base.join("secret"));
    assert_eq!(secret.unwrap(), "secret");
}

#[tokio::test]
async fn file_does_not_follow_a_link_that_comes_and_goes() {
    let (_held, base) = beside_a_secret();
    let (dir, ended) = (base.join("w"), AtomicBool::new(false));
    let ended = Arc::new(ended);
    let flipping = std::thread::spawn({
        let (base, flip, ended) = (base.clone(), dir.join("flip"), Arc::clone(&ended));
        move || {
            while !ended.load(Ordering::Relaxed) {
                // Each can fail, because the adapter creates the folder too.
                let _ = std::fs::create_dir(&flip);
                let _ = std::fs::remove_dir_all(&flip);
                let _ = symlink(&base, &flip);
                let _ = std::fs::remove_file(&flip);
            }
        }
    });
    let echo = echo(json!({})).await;
    for _ in 0..5_000 {
        let (events, _received) = Events::channel(10);
        // Most attempts are refused.
        let _ = echo.execute(write_to(&dir, "flip/secret"), events).await;
    }
    ended.store(true, Ordering::Relaxed);
    flipping.join().unwrap();
    let secret = std::fs::read_to_string(base.join("secret"));
    assert_eq!(secret.unwrap(), "secret");
}

#[tokio::test]
async fn file_is_not_written_to_a_folder_that_took_the_place_of_the_workspace() {
    let (_held, base) = beside_a_secret();
    let dir = base.join("w");
    let mut request = write_to(&dir, "out.md");
    let id = request.open_workspace().unwrap().unwrap().id().unwrap();
    request.workspace.as_mut().unwrap().id = Some(id);
    std::fs::rename(&dir, base.join("kept")).unwrap();
    std::fs::create_dir(&dir).unwrap();
    let (result, _) = run(request).await;
    assert_eq!(result.unwrap_err().code, "workspace_unavailable");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[tokio::test]
async fn a_malformed_argument_is_an_invalid_request() {
    for model in ["slow:soon", "stream:-1", "large:"] {
        let (result, _) = run(request(model, "x")).await;
        assert_eq!(result.unwrap_err().code, "invalid_request", "{model}");
    }
}

#[tokio::test]
async fn large_is_as_large_as_asked() {
    let (result, _) = run(request("large:70000", "x")).await;
    assert_eq!(result.unwrap().output.unwrap().len(), 70_000);
}

#[tokio::test]
async fn the_profile_is_what_the_configuration_says() {
    let echo = echo(json!({
        "capabilities": ["streaming"], "native_tools": ["Bash"], "max_concurrent": 2,
        "output_strategies": ["stream"], "cost_tier": "high", "latency_profile": "variable",
        "health": "degraded", "health_message": "as configured", "PATH": "/bin",
    }))
    .await;
    let profile = serde_json::to_value(echo.capabilities()).unwrap();
    assert_eq!(
        profile,
        json!({
            "capabilities": ["streaming"], "nativeTools": ["Bash"], "maxConcurrent": 2,
            "outputStrategies": ["stream"], "costTier": "high", "latencyProfile": "variable",
        })
    );
    let health = echo.check_health().await;
    assert_eq!(health.message.as_deref(), Some("as configured"));
}

#[test]
fn conforms() {
    let report = conformance::check::<Echo>(conformance::Options {
        bad_config: Some(json!({"max_concurrent": "many"})),
        slow: Some(request("slow:600000", "later")),
        failing: Some(request("fail", "please")),
        transient: Some(request("busy:1", "please")),
        retry_after: Some(Duration::from_millis(1)),
        retracting: Some(request("retract", "hello")),
        attaching: Some(request("attachments", "hello")),
        steerable: Some(request("slow:600000", "later")),
        ..conformance::Options::default()
    });
    report.assert_ok();
    use conformance::Outcome::{NoInput, NotChecked};
    let unchecked = report
        .rows
        .iter()
        .filter(|row| matches!(row.outcome, NotChecked(_) | NoInput(_)))
        .map(|row| row.area);
    // Its settings hold no secret.
    let expected = ["redaction", "registration"];
    assert_eq!(unchecked.collect::<Vec<_>>(), expected, "{report}");
}

#[tokio::test]
async fn the_journal_has_a_line_for_each_execution() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let echo = echo(json!({"journal": journal})).await;
    for id in ["a/1", "b/1"] {
        let request = ExecutionRequest {
            execution_id: id.to_owned(),
            ..request("ok", "hello")
        };
        let (events, _received) = Events::channel(10);
        echo.execute(request, events).await.unwrap();
    }
    assert_eq!(std::fs::read_to_string(journal).unwrap(), "a/1\nb/1\n");
}
