//! The tool loop with a real MCP server: calls are made, failures are reported to the execution, and no process is
//! left.

use std::path::{Path, PathBuf};

use reqwest::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::harness::api::quiet;
use super::harness::process::Home;
use super::harness::{Answer, Api, Bridge, CallbackSink, until};
use forge_test_support::callback::Received;

const HANG: &str = r#"{"mcp__fixture__hang":{}}"#;

/// File in which the fixture records the ids of its processes.
pub(crate) struct Pids {
    folder: TempDir,
}

impl Pids {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("pids")
    }

    fn all(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    async fn until(&self, count: usize) {
        until("the processes of the fixture", || async {
            (self.all().len() >= count).then_some(())
        })
        .await;
    }

    async fn until_gone(&self) {
        assert!(!self.all().is_empty(), "the fixture never ran");
        until("the end of the fixture's processes", || async {
            let lives = |pid: &String| Path::new("/proc").join(pid).exists();
            (!self.all().iter().any(lives)).then_some(())
        })
        .await;
    }
}

/// Configuration with the fixture as the servers `fixture`, `silent` and `broken`.
fn file(pids: &Pids, mcp: &str) -> String {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/mcp-server/server.py");
    let server = |name: &str, option: &str| {
        format!(
            "[mcp.servers.{name}]\ncommand = \"python3\"\nargs = [{:?}, \"--pids={}\", {option:?}]\n\
             env = {{ FIXTURE_KEY = \"k-1\" }}\n",
            script.display().to_string(),
            pids.file().display(),
        )
    };
    format!(
        "[mcp]\n{mcp}\n{}{}{}[mcp.servers.missing]\ncommand = \"/no/such/program\"\n",
        server("fixture", "--normal"),
        server("silent", "--silent"),
        server("broken", "--broken"),
    )
}

const SUPERVISOR: (&str, &str) = (
    "BRIDGE_PROCESS_SUPERVISOR",
    env!("CARGO_BIN_EXE_forge-bridge"),
);

pub(crate) async fn bridge(pids: &Pids, mcp: &str, variables: &[(&str, &str)]) -> Bridge {
    let mut all = vec![SUPERVISOR];
    all.extend(variables);
    Bridge::configured(&file(pids, mcp), &all).await
}

/// Configuration of echo with these capabilities.
fn echo(capabilities: &str) -> String {
    format!("[adapters.echo]\ncapabilities = [{capabilities}]")
}

/// A dispatch in which echo calls the tools named in the message.
pub(crate) fn asks(task: &str, model: &str, message: &str, extra: &Value) -> Value {
    let mut body = quiet(task, model);
    let members = body.as_object_mut().unwrap();
    members.insert("message".to_owned(), message.into());
    members.insert("mcpServers".to_owned(), json!(["fixture"]));
    members.extend(extra.as_object().unwrap().clone());
    body
}

fn calls(message: &str) -> Value {
    asks("task", "tools", message, &json!({}))
}

async fn kinds(api: &Api, id: &str) -> Vec<String> {
    let events = api.events(id).await;
    events
        .iter()
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn the_bridge_makes_the_calls_and_the_run_goes_on_with_their_results() {
    let pids = Pids::new();
    let bridge = bridge(&pids, "", &[]).await;
    let message =
        r#"{"mcp__fixture__add":{"a":2,"b":3},"mcp__fixture__variable":{"name":"FIXTURE_KEY"}}"#;
    let id = bridge.api.dispatch(calls(message)).await;
    let result = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(result["status"], "ok", "{result}");
    assert_eq!(result["output"], "5\nk-1");
    assert!(result["toolCalls"].is_null(), "{result}");
    // One input and one output token in each of two rounds.
    assert_eq!(result["usage"]["totalTokens"], 4, "{result}");
    assert_eq!(result["costUsd"], 0.000_04, "{result}");

    let events = bridge.api.events(&id).await;
    let tool = |at: usize| (events[at]["type"].as_str().unwrap(), &events[at]["data"]);
    let first = events
        .iter()
        .position(|event| event["type"] == "tool.invoked")
        .unwrap();
    let names = json!({"toolCallId": "call-1-1", "name": "mcp__fixture__add"});
    let mut invoked = names.clone();
    invoked["input"] = json!({"a": 2, "b": 3});
    assert_eq!(tool(first), ("tool.invoked", &invoked));
    let mut completed = names;
    completed["output"] = "5".into();
    completed["isError"] = false.into();
    assert_eq!(tool(first + 1), ("tool.completed", &completed));
    assert_eq!(events.last().unwrap()["type"], "execution.completed");
    pids.until_gone().await;
    bridge.stop().await;
}

#[tokio::test]
async fn what_goes_wrong_in_a_tool_is_told_to_the_run() {
    let pids = Pids::new();
    let bridge = bridge(&pids, "call_timeout = \"500ms\"\nresult_bytes = 1000", &[]).await;
    for (task, call, wanted) in [
        (
            "fail",
            json!({"mcp__fixture__fail": {}}),
            "failed: the tool could not do it",
        ),
        (
            "refuse",
            json!({"mcp__fixture__refuse": {}}),
            "failed: MCP server \"fixture\": no 'refuse' (-32601)",
        ),
        (
            "die",
            json!({"mcp__fixture__die": {}}),
            "failed: MCP server \"fixture\": connection closed",
        ),
        (
            "hang",
            json!({"mcp__fixture__hang": {}}),
            "failed: MCP server \"fixture\" gave no answer within 500ms",
        ),
        (
            "large",
            json!({"mcp__fixture__large": {"bytes": 1001}}),
            "failed: the result has 1001 bytes, 1000 are allowed",
        ),
        (
            "args",
            json!({"mcp__fixture__add": [1]}),
            "failed: tool arguments must be a JSON object",
        ),
    ] {
        let id = bridge
            .api
            .dispatch(asks(task, "tools", &call.to_string(), &json!({})))
            .await;
        let result = bridge.api.finished(&id).await["result"].clone();
        assert_eq!(result["status"], "ok", "{task}: {result}");
        assert_eq!(result["output"], wanted, "{task}: {result}");
        let events = bridge.api.events(&id).await;
        let completed = events
            .iter()
            .find(|event| event["type"] == "tool.completed")
            .unwrap();
        assert_eq!(completed["data"]["isError"], true, "{task}");
    }
    pids.until_gone().await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_server_that_cannot_be_used_ends_the_run_and_says_why() {
    let pids = Pids::new();
    let bridge = bridge(&pids, "start_timeout = \"2s\"", &[]).await;
    for (server, wanted) in [
        ("missing", "/no/such/program"),
        ("broken", "the fixture was told to be broken"),
        ("silent", "was not ready within 2s"),
    ] {
        let body = asks(server, "tools", "x", &json!({"mcpServers": [server]}));
        let result = bridge.api.run(body).await;
        assert_eq!(
            result["errorCode"], "mcp_server_unavailable",
            "{server}: {result}"
        );
        let error = result["error"].as_str().unwrap();
        assert!(
            error.contains(wanted) && error.contains(server),
            "{server}: {error}"
        );
    }
    pids.until_gone().await;

    let (status, answer) = bridge
        .api
        .post(
            "/api/v2/dispatch",
            &asks("t", "ok", "x", &json!({"mcpServers": ["other"]})),
        )
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    assert_eq!(answer["details"][0]["field"], "mcpServers", "{answer}");
    let taken = json!({"tools": [{"name": "mcp__fixture__add", "inputSchema": {}}]});
    let (status, answer) = bridge
        .api
        .post("/api/v2/dispatch", &asks("t", "ok", "x", &taken))
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    assert_eq!(answer["details"][0]["field"], "tools", "{answer}");
    bridge.stop().await;
}

#[tokio::test]
async fn the_bounds_of_the_attempt_hold_while_a_tool_runs() {
    let pids = Pids::new();
    let bridge = bridge(&pids, "", &[]).await;
    // Long enough for the servers to start on a busy machine.
    let bounded = |code, bound| bridge.api.run(asks(code, "tools", HANG, &bound));
    let (timeout, stalled) = tokio::join!(
        bounded("timeout", json!({"timeoutSeconds": 8})),
        bounded("stalled", json!({"idleTimeoutSeconds": 8})),
    );
    for (code, result) in [("timeout", timeout), ("stalled", stalled)] {
        assert_eq!(result["errorCode"], code, "{result}");
        assert_eq!(result["usage"]["totalTokens"], 2, "{result}");
    }
    let id = bridge
        .api
        .dispatch(asks("cancel", "tools", HANG, &json!({})))
        .await;
    pids.until(6).await;
    let (_, answer) = bridge
        .api
        .post(&format!("/api/v2/dispatch/{id}/cancel"), &json!({}))
        .await;
    assert_eq!(answer["cancelled"], true, "{answer}");
    let result = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(result["errorCode"], "cancelled", "{result}");
    assert_eq!(result["usage"]["totalTokens"], 2, "{result}");
    assert!(result["toolCalls"].is_null(), "{result}");
    let kinds = kinds(&bridge.api, &id).await;
    assert!(
        !kinds.iter().any(|kind| kind == "tool.completed"),
        "{kinds:?}"
    );
    pids.until_gone().await;
    bridge.stop().await;
}

#[tokio::test]
async fn what_the_tools_say_is_bounded_over_the_whole_loop() {
    let pids = Pids::new();
    let bridge = bridge(&pids, "", &[("BRIDGE_DISPATCH_TOOL_LIMIT_BYTES", "2000")]).await;
    let message = r#"{"mcp__fixture__add":{"a":1,"b":1}}"#;
    let result = bridge
        .api
        .run(asks("bytes", "tools:100", message, &json!({})))
        .await;
    assert_eq!(result["errorCode"], "tool_bytes_exceeded", "{result}");
    pids.until_gone().await;
    bridge.stop().await;
}

#[tokio::test]
async fn rounds_and_budget_are_bounded_over_the_whole_loop() {
    let pids = Pids::new();
    let bridge = bridge(&pids, "", &[("BRIDGE_DISPATCH_MAX_TOOL_ROUNDS", "3")]).await;
    let message = r#"{"mcp__fixture__add":{"a":1,"b":1}}"#;
    let id = bridge
        .api
        .dispatch(asks("rounds", "tools:100", message, &json!({})))
        .await;
    let result = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(result["errorCode"], "tool_rounds_exceeded", "{result}");
    assert_eq!(result["usage"]["totalTokens"], 8, "{result}");
    let kinds = kinds(&bridge.api, &id).await;
    assert_eq!(
        kinds
            .iter()
            .filter(|kind| *kind == "tool.completed")
            .count(),
        3,
        "{kinds:?}"
    );

    let result = bridge
        .api
        .run(asks("enough", "tools:3", message, &json!({})))
        .await;
    assert_eq!(result["output"], "2", "{result}");

    let budget = json!({"budget": {"maxTokens": 3}});
    let result = bridge
        .api
        .run(asks("budget", "tools:100", message, &budget))
        .await;
    assert_eq!(result["errorCode"], "budget_exceeded", "{result}");
    assert_eq!(result["usage"]["totalTokens"], 4, "{result}");
    assert_eq!(result["output"], message, "{result}");
    pids.until_gone().await;
    bridge.stop().await;
}

#[tokio::test]
async fn the_callers_own_calls_are_handed_back_and_answered_by_the_next_dispatch() {
    let pids = Pids::new();
    let bridge = bridge(&pids, "", &[]).await;
    let tools = json!({"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]});
    let message = r#"{"ask":{"q":"why"},"mcp__fixture__add":{"a":1,"b":1}}"#;
    let id = bridge
        .api
        .dispatch(asks("first", "tools", message, &tools))
        .await;
    let handed = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(handed["errorCode"], "input_required", "{handed}");
    assert_eq!(handed["status"], "error");
    let ask = json!([{"toolCallId": "call-1-1", "name": "ask", "input": {"q": "why"}}]);
    assert_eq!(handed["toolCalls"], ask, "only what the caller can answer");
    let kinds = kinds(&bridge.api, &id).await;
    assert!(
        !kinds.iter().any(|kind| kind.starts_with("tool.")),
        "{kinds:?}"
    );

    let mut answer = json!({
        "sessionId": handed["sessionId"],
        "toolResults": [{"toolCallId": "call-1-1", "name": "ask", "output": "because"}],
    });
    let result = bridge
        .api
        .run(asks("second", "tools", message, &answer))
        .await;
    assert_eq!(result["status"], "ok", "{result}");
    assert_eq!(result["output"], "because", "{result}");
    assert_eq!(result["sessionId"], handed["sessionId"], "{result}");

    answer["sessionId"] = Value::Null;
    let body = asks("third", "tools", message, &answer);
    let (status, answer) = bridge.api.post("/api/v2/dispatch", &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    bridge.stop().await;
}

#[tokio::test]
async fn an_adapter_without_sessions_is_told_everything_again() {
    let pids = Pids::new();
    let bridge = bridge(&pids, &echo("\"streaming\", \"cost_tracking\""), &[]).await;
    let message = r#"{"mcp__fixture__add":{"a":4,"b":5}}"#;
    let result = bridge
        .api
        .run(asks("twice", "tools:2", message, &json!({})))
        .await;
    assert_eq!(result["output"], "9", "{result}");
    let answer = json!({
        "sessionId": "s",
        "toolResults": [{"toolCallId": "c", "name": "ask", "output": "because"}],
    });
    let body = asks("answer", "tools", "x", &answer);
    let (status, answer) = bridge.api.post("/api/v2/dispatch", &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
    pids.until_gone().await;
    bridge.stop().await;
}

#[tokio::test]
async fn an_adapter_that_runs_servers_itself_is_left_to_it() {
    let pids = Pids::new();
    let bridge = bridge(&pids, &echo("\"session_resume\", \"mcp_servers\""), &[]).await;
    let result = bridge
        .api
        .run(calls(r#"{"mcp__fixture__add":{"a":4,"b":5}}"#))
        .await;
    assert_eq!(result["errorCode"], "input_required", "{result}");
    assert!(pids.all().is_empty(), "the bridge started a server");
    bridge.stop().await;
}

#[tokio::test]
async fn a_killed_bridge_leaves_no_server_behind() {
    let pids = Pids::new();
    let mut home = Home::new(&[]);
    let path = home.dir.path().join("own.toml");
    std::fs::write(&path, file(&pids, "")).unwrap();
    let path = path.display().to_string();
    home.variables.insert("BRIDGE_CONFIG".to_owned(), path);
    home.variables
        .insert("PATH".to_owned(), std::env::var("PATH").unwrap());
    let process = home.start();
    process.api.dispatch(calls(HANG)).await;
    pids.until(2).await;
    process.kill();
    pids.until_gone().await;
}

#[tokio::test]
async fn a_server_may_be_a_url() {
    let sink = CallbackSink::start().await;
    sink.answer_with(speak_mcp);
    let url = sink.url("/mcp");
    let file = format!(
        "[mcp.servers.fixture]\nurl = \"{url}\"\nheaders = {{ authorization = \"Bearer t-1\" }}\n"
    );
    let bridge = Bridge::configured(&file, &[]).await;
    let result = bridge
        .api
        .run(calls(r#"{"mcp__fixture__upper":{"text":"abc"}}"#))
        .await;
    assert_eq!(result["output"], "ABC", "{result}");
    bridge.stop().await;
    let mut asked = sink.received().into_iter();
    assert!(asked.all(|request| request.headers["authorization"] == "Bearer t-1"));

    // A private address that is not in `callback.allow`.
    let allow = ("BRIDGE_CALLBACK_ALLOW", "192.0.2.1");
    let bridge = Bridge::configured(&file, &[allow]).await;
    let result = bridge.api.run(calls("x")).await;
    assert_eq!(result["errorCode"], "mcp_server_unavailable", "{result}");
    assert!(
        result["error"].as_str().unwrap().contains("loopback"),
        "{result}"
    );
    bridge.stop().await;
}

/// Answers as an MCP server over streamable HTTP, without a session.
fn speak_mcp(request: &Received) -> Answer {
    let Ok(message) = serde_json::from_slice::<Value>(&request.body) else {
        return Answer::status(405);
    };
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "upper", "version": "1"},
        }),
        Some("tools/list") => json!({"tools": [{
            "name": "upper",
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
        }]}),
        Some("tools/call") => {
            let text = message["params"]["arguments"]["text"]
                .as_str()
                .unwrap_or_default();
            json!({"content": [{"type": "text", "text": text.to_uppercase()}]})
        }
        _ => return Answer::status(202),
    };
    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    Answer::status(200)
        .header("content-type", "application/json")
        .body(answer.to_string())
}

#[tokio::test]
async fn a_server_is_told_where_in_the_trace_it_works() {
    let pids = Pids::new();
    let bridge = bridge(&pids, "", &[]).await;
    let message = r#"{"mcp__fixture__variable":{"name":"TRACEPARENT"}}"#;
    let result = bridge.api.run(calls(message)).await;
    let trace = result["traceId"].as_str().unwrap();
    let told = result["output"].as_str().unwrap();
    assert!(told.starts_with(&format!("00-{trace}-")), "{result}");
    pids.until_gone().await;
    bridge.stop().await;
}
